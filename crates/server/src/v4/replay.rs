//! Calls of sessions of a life before: what they did is answered again and not done again.
//!
//! A session ends with the server. Its client sends again what was not answered, in the same slot
//! under the same number, before it learns that. Every operation that changes something has a name
//! ([`CallId::op`]), which a layer with a journal keeps with what the operation did. When there are
//! such names of a call, it is executed once more, in no session: what was done is answered as
//! done, what only looks looks again, and the rest is done now, but for what needs opens and locks,
//! which are gone: it has to wait for the client to take them back. A call of which nothing is
//! known gets NFS4ERR_BADSESSION, as if there were no journal.
//!
//! These are not the persistent sessions of RFC 8881 section 2.10.6.5: those answer every call that
//! was executed, whole and as it was answered first.

use super::exec::{Exec, Here, Object};
use super::names::wire_change;
use super::open::VERIFIER_ATTRS;
use bytes::Bytes;
use hither_proto::nfs4::{
    Bitmap4, ChangeInfo as WireChange, CreateHow, CreateOk, Nfsstat4, Op, OpRes, OpenArgs, OpenDelegation,
    OpenOk, RenameOk, SequenceArgs, SequenceOk, Sessionid, SetattrArgs, StableHow, Stateid, WriteOk, open,
};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::Caller;
use hither_vfs::{Answered, ChangeInfo, Cx, Fh};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// What names of operations begin with; those of NFSv3 begin with an address family.
const TAG: u32 = 41;
/// Bytes of a call that its checksum covers: enough to tell two calls apart, little enough for a
/// WRITE of a megabyte.
const SUM_BYTES: usize = 4096;
/// Longest reply that is kept for one who asks a third time: with all calls that a journal tells
/// of, 64 MiB.
const KEPT_MAX_BYTES: usize = 4096;

/// A checksum of a call, and of who makes it.
pub(super) fn checksum(args: &[u8], caller: &Caller) -> u64 {
    let who = match caller {
        Caller::Nobody => u32::MAX,
        Caller::Sys(sys) => sys.uid,
    };
    let seed = u64::from(who) << 32 ^ args.len() as u64;
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
    /// A call with this checksum.
    pub fn of(args: &SequenceArgs, sum: u64) -> Self {
        Self { session: args.sessionid, slot: args.slotid, seqid: args.sequenceid, sum }
    }

    /// The name of an operation, by its place in the compound.
    pub fn op(&self, at: usize) -> Bytes {
        let mut out = Enc::new();
        out.u32(TAG);
        out.raw(&self.session);
        [self.slot, self.seqid, at as u32].into_iter().for_each(|n| out.u32(n));
        out.u64(self.sum);
        out.to_bytes()
    }

    /// The call and the place that [`CallId::op`] named; `None` for another name.
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

/// Something that was done.
#[derive(Debug, Clone)]
struct Did {
    /// The number of the export.
    export: u32,
    /// The object that was made, changed, moved or removed.
    fh: Fh,
    /// Bytes written.
    bytes: u32,
}

/// What a call did, by the places of its operations.
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

/// Whether a call was executed once more.
#[derive(Default)]
pub(super) enum Turn {
    #[default]
    No,
    /// Or is being executed, or that was cut off; its reply is not known.
    Begun,
    Done(Bytes),
}

/// The calls that a journal tells of.
#[derive(Default)]
pub(crate) struct Replays {
    /// By session and slot. As many at most as the journals keep.
    calls: Mutex<HashMap<(Sessionid, u32), Call>>,
}

impl Replays {
    /// Adds what a life before did in an export, oldest first.
    pub fn fill(&self, export: u32, made: &[Answered]) {
        let mut calls = self.calls.lock();
        for was in made {
            let Some((id, at)) = CallId::parse(&was.call) else { continue };
            let new = || Call { id, done: Done::default(), turn: Arc::default() };
            let call = calls.entry((id.session, id.slot)).or_insert_with(new);
            if call.id != id {
                // Only the last call of a slot can be sent again.
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

    /// What is known of a call; `None`: nothing, or it is not the very call.
    pub(super) fn find(&self, id: CallId) -> Option<(Done, Arc<tokio::sync::Mutex<Turn>>)> {
        let calls = self.calls.lock();
        let call = calls.get(&(id.session, id.slot)).filter(|call| call.id == id)?;
        Some((call.done.clone(), call.turn.clone()))
    }
}

impl Turn {
    /// A call was executed once more and has this reply.
    pub fn finish(&mut self, reply: &[Bytes]) {
        if reply.iter().map(Bytes::len).sum::<usize>() <= KEPT_MAX_BYTES {
            *self = Self::Done(reply.concat().into());
        }
    }
}

/// What SEQUENCE says of a session that is no more.
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
    /// The same caller, for the change that the operation makes, by the name that it is known by
    /// after a restart.
    pub(super) fn named(&self, cx: &Cx) -> Cx {
        Cx { call: self.call.map(|call| call.op(self.at)), ..cx.clone() }
    }

    /// Executes an operation of a call of a life before.
    pub(super) async fn execute_again(&mut self, done: &Deeds, op: &Op, rest: &[Op]) -> OpRes {
        if let Some(did) = done.by_place.get(&self.at) {
            let again = self.did(op, did).await;
            return again.unwrap_or_else(|status| OpRes::failed(op.number(), status));
        }
        match op {
            // What they looked at may be what was changed after them.
            Op::Verify(_) if self.at < done.last => OpRes::Verify(Ok(())),
            Op::Nverify(_) if self.at < done.last => OpRes::Nverify(Ok(())),
            // Neither opens nor delegations have outlived the restart.
            Op::Delegreturn(_) => OpRes::Delegreturn(Ok(())),
            Op::Close(_) => OpRes::Close(Ok(Stateid::INVALID)),
            _ => match self.execute(op, rest).await {
                // Whatever needs a client: he has to come with a session, and to take back what he
                // held.
                result if result.status() == Nfsstat4::OP_NOT_IN_SESSION => {
                    OpRes::failed(op.number(), Nfsstat4::GRACE)
                }
                result => result,
            },
        }
    }

    /// The result of an operation that was done.
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
                // No stateid of anything: the client finds that the server has restarted, and takes
                // the open back.
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

    /// That a directory was changed, by whoever: clients forget what they know of it.
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

/// Attributes that an OPEN set which has made its file.
fn set_by(a: &OpenArgs) -> Bitmap4 {
    match &a.how {
        None => Bitmap4::EMPTY,
        Some(CreateHow::Unchecked(attrs) | CreateHow::Guarded(attrs)) => attrs.mask(),
        Some(CreateHow::Exclusive(_)) => VERIFIER_ATTRS,
        Some(CreateHow::Exclusive41(c)) => c.attrs.mask().union(VERIFIER_ATTRS),
    }
}
