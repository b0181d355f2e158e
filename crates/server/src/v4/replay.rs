//! Calls in sessions of an earlier process: their stored effects are reported and not repeated.
//!
//! A session ends with the server. Before its client learns that, the client repeats unanswered
//! calls in the same slots with the same sequence numbers. Every operation that changes state has a
//! name ([`CallId::op`]). A layer with a journal stores that name with the operation's effect. A
//! call with such names is executed once more, without a session. Operations with a stored effect
//! report success. Operations that only read are executed again. The other operations are executed
//! now, unless they need opens or locks. Those are gone until the client reclaims them. A call
//! without stored names gets NFS4ERR_BADSESSION, as without a journal.
//!
//! These are not the persistent sessions of RFC 8881 section 2.10.6.5. Persistent sessions answer
//! every executed call with its first reply.

use super::exec::{Exec, Here, Object};
use super::names::wire_change;
use super::open::VERIFIER_ATTRS;
use crate::access::{caller_number, transport_number};
use bytes::Bytes;
use hither_proto::nfs4::{
    Bitmap4, ChangeInfo as WireChange, CreateHow, CreateOk, Nfsstat4, Op, OpRes, OpenArgs, OpenDelegation,
    OpenOk, RenameOk, SequenceArgs, SequenceOk, Sessionid, SetattrArgs, StableHow, Stateid, WriteOk, open,
};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::{Caller, Transport};
use hither_vfs::{Answered, ChangeInfo, Fh, RequestContext};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// First word of an operation's name. Names of NFSv3 calls begin with an address family.
const TAG: u32 = 41;
/// Bytes of a call in its checksum. The number is enough to distinguish calls, and small compared
/// with a WRITE of a megabyte.
const SUM_BYTES: usize = 4096;
/// Place of the transport's number in the seed of a checksum, above the length of a call.
const TRANSPORT_SHIFT: u32 = 31;
/// Longest reply that is kept for a second repetition. With all calls in a journal, the replies
/// take 64 MiB.
const KEPT_MAX_BYTES: usize = 4096;

/// A checksum of a call, its user and its transport.
pub(super) fn checksum(args: &[u8], caller: &Caller, transport: &Transport) -> u64 {
    let transport = u64::from(transport_number(transport)) << TRANSPORT_SHIFT;
    let seed = caller_number(caller).rotate_left(32) ^ args.len() as u64 ^ transport;
    XxHash3_64::oneshot_with_seed(seed, &args[..args.len().min(SUM_BYTES)])
}

/// A call in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallId {
    session: Sessionid,
    slot: u32,
    seqid: u32,
    sum: u64,
}

impl CallId {
    /// The call with these arguments of SEQUENCE and this checksum.
    pub fn of(args: &SequenceArgs, sum: u64) -> Self {
        Self { session: args.sessionid, slot: args.slotid, seqid: args.sequenceid, sum }
    }

    /// The name of an operation, by its index in the compound.
    pub fn op(&self, at: usize) -> Bytes {
        let mut out = Enc::new();
        out.u32(TAG);
        out.raw(&self.session);
        [self.slot, self.seqid, at as u32].into_iter().for_each(|n| out.u32(n));
        out.u64(self.sum);
        out.to_bytes()
    }

    /// The call and the index in a name from [`CallId::op`]. `None` for other names.
    fn parse(raw: &Bytes) -> Option<(Self, usize)> {
        let mut raw = Dec::new(raw);
        let is_one = raw.u32().ok()? == TAG;
        let session = raw.fixed::<16>().ok()?;
        let mut word = || raw.u32().ok();
        let (slot, seqid, at) = (word()?, word()?, word()?);
        let sum = raw.u64().ok()?;
        (is_one && raw.remaining() == 0).then_some((Self { session, slot, seqid, sum }, at as usize))
    }
}

/// The stored effect of an operation.
#[derive(Debug, Clone)]
struct Did {
    /// The number of the export.
    export: u32,
    /// The object that was made, changed, moved or removed.
    fh: Fh,
    /// Bytes written.
    bytes: u32,
}

/// The stored effects of a call, by the index of the operation.
pub(super) type Done = Arc<Deeds>;

/// See [`Done`].
#[derive(Debug, Clone, Default)]
pub(super) struct Deeds {
    by_place: HashMap<usize, Did>,
    last: usize,
}

/// The last call of a slot.
#[derive(Clone)]
struct Call {
    id: CallId,
    done: Done,
    turn: Arc<tokio::sync::Mutex<Turn>>,
}

/// Whether a call has been executed once more.
#[derive(Default)]
pub(super) enum Turn {
    #[default]
    No,
    /// The execution has begun. It is in progress, was cut off, or had too long a reply.
    Begun,
    Done(Bytes),
}

/// The calls in journals.
#[derive(Default)]
pub(crate) struct Replays {
    /// By session and slot. The journals limit their number.
    calls: Mutex<HashMap<(Sessionid, u32), Call>>,
}

impl Replays {
    /// Adds the effects of an earlier process in an export, oldest first.
    pub fn fill(&self, export: u32, made: &[Answered]) {
        let mut calls = self.calls.lock();
        for was in made {
            let Some((id, at)) = CallId::parse(&was.call) else { continue };
            let new = || Call { id, done: Done::default(), turn: Arc::default() };
            let call = calls.entry((id.session, id.slot)).or_insert_with(new);
            if call.id != id {
                // Only the last call of a slot can be repeated.
                if (id.seqid.wrapping_sub(call.id.seqid) as i32) < 0 {
                    continue;
                }
                *call = new();
            }
            let done = Arc::make_mut(&mut call.done);
            done.by_place.insert(at, Did { export, fh: was.fh.clone(), bytes: was.bytes });
            done.last = done.last.max(at);
        }
    }

    /// The stored effects of a call. `None`: there are none, or they belong to another call.
    pub(super) fn find(&self, id: CallId) -> Option<(Done, Arc<tokio::sync::Mutex<Turn>>)> {
        let calls = self.calls.lock();
        let call = calls.get(&(id.session, id.slot)).filter(|call| call.id == id)?;
        Some((call.done.clone(), call.turn.clone()))
    }
}

impl Turn {
    /// Stores the reply of a call that was executed once more.
    pub fn finish(&mut self, reply: &[Bytes]) {
        if reply.iter().map(Bytes::len).sum::<usize>() <= KEPT_MAX_BYTES {
            *self = Self::Done(reply.concat().into());
        }
    }
}

/// The result of SEQUENCE for a session that has ended.
pub(super) fn sequence(args: &SequenceArgs) -> OpRes {
    OpRes::Sequence(Ok(SequenceOk {
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid: args.highest_slotid,
        target_highest_slotid: args.highest_slotid,
        status_flags: 0,
    }))
}

impl Exec<'_> {
    /// The identity for a change, with the operation's name for the journal.
    pub(super) fn named(&self, cx: &RequestContext) -> RequestContext {
        RequestContext { call: self.call.map(|call| call.op(self.at)), ..cx.clone() }
    }

    /// Executes an operation of a call that an earlier process has begun.
    pub(super) async fn execute_again(&mut self, done: &Deeds, op: &Op, rest: &[Op]) -> OpRes {
        if let Some(did) = done.by_place.get(&self.at) {
            let again = self.did(op, did).await;
            return again.unwrap_or_else(|status| OpRes::failed(op.number(), status));
        }
        match op {
            // VERIFY and NVERIFY succeed: later operations may have changed the attributes that
            // they compare.
            Op::Verify(_) if self.at < done.last => OpRes::Verify(Ok(())),
            Op::Nverify(_) if self.at < done.last => OpRes::Nverify(Ok(())),
            // Neither opens nor delegations survive the restart.
            Op::Delegreturn(_) => OpRes::Delegreturn(Ok(())),
            Op::Close(_) => OpRes::Close(Ok(Stateid::INVALID)),
            _ => match self.execute(op, rest).await {
                // The operation needs a client. The client must create a session and reclaim its
                // state first.
                result if result.status() == Nfsstat4::OP_NOT_IN_SESSION => {
                    OpRes::failed(op.number(), Nfsstat4::GRACE)
                }
                result => result,
            },
        }
    }

    /// The result of an operation with a stored effect.
    async fn did(&mut self, op: &Op, did: &Did) -> Result<OpRes, Nfsstat4> {
        let here = self.object(Nfsstat4::ROFS)?;
        if here.export.number != did.export {
            return Err(Nfsstat4::SERVERFAULT);
        }
        self.changed();
        Ok(match op {
            Op::Create(a) => {
                let cinfo = self.some_change(&here).await;
                self.go(Here::Object(Object { fh: did.fh.clone(), known: None, ..here }));
                OpRes::Create(Ok(CreateOk { cinfo, attrset: a.createattrs.mask() }))
            }
            Op::Open(a) => {
                let cinfo = self.some_change(&here).await;
                self.go(Here::Object(Object { fh: did.fh.clone(), known: None, ..here }));
                // The stateid names no open. The client notices the restart and reclaims the open.
                let stateid = Stateid { seqid: 1, other: self.nfs.registry.other() };
                self.stateid = Some(stateid);
                let (rflags, delegation) = (open::RESULT_LOCKTYPE_POSIX, OpenDelegation::None);
                OpRes::Open(Ok(OpenOk { stateid, cinfo, rflags, attrset: set_by(a), delegation }))
            }
            Op::Remove(_) => OpRes::Remove(Ok(self.some_change(&here).await)),
            Op::Rename(_) => {
                let from = self.saved_object()?;
                let (source_cinfo, target_cinfo) =
                    (self.some_change(&from).await, self.some_change(&here).await);
                OpRes::Rename(Ok(RenameOk { source_cinfo, target_cinfo }))
            }
            Op::Link(_) => OpRes::Link(Ok(self.some_change(&here).await)),
            Op::Setattr(SetattrArgs { attrs, .. }) => OpRes::Setattr(Ok(attrs.mask())),
            Op::Write(_) => {
                let writeverf = self.r.server.write_verifier(&here.export);
                OpRes::Write(Ok(WriteOk { count: did.bytes, committed: StableHow::FILE_SYNC, writeverf }))
            }
            _ => return Err(Nfsstat4::SERVERFAULT),
        })
    }

    /// A non-atomic change of a directory, so that clients drop its cached names.
    async fn some_change(&self, dir: &Object) -> WireChange {
        let now = dir.export.vfs.getattr(&dir.cx, dir.file(None)).await.map_or(0, |a| a.attr.change);
        wire_change(&ChangeInfo {
            atomic: false,
            before: now.wrapping_sub(1),
            after: now,
            ..Default::default()
        })
    }
}

/// Attributes that an OPEN set when it created its file.
fn set_by(a: &OpenArgs) -> Bitmap4 {
    match &a.how {
        None => Bitmap4::EMPTY,
        Some(CreateHow::Unchecked(attrs) | CreateHow::Guarded(attrs)) => attrs.mask(),
        Some(CreateHow::Exclusive(_)) => VERIFIER_ATTRS,
        Some(CreateHow::Exclusive41(c)) => c.attrs.mask().union(VERIFIER_ATTRS),
    }
}
