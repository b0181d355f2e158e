//! Calls from the server: CB_COMPOUND on the session's connections (RFC 8881 section 20).
//!
//! The slot of each CB_SEQUENCE keeps the last reply for repetitions. Recalls are answered at once.
//! `delegation` then returns the delegation.

use super::core::{Core, Phase};
use super::mount::{CB_PROGRAM, CB_SLOTS};
use super::state::own_fh;
use bytes::Bytes;
use hither_proto::nfs4::{
    self, Attrs, CB_PROC_COMPOUND, CB_PROC_NULL, CB_VERSION, CbCompound, CbCompoundReply, CbGetattrArgs,
    CbOp, CbRes, CbSequenceArgs, CbSequenceOk, Nfsstat4, Sessionid,
};
use hither_proto::rpc::{AcceptStat, CallHeader, ReplyHeader, VersionRange};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::{BoxFuture, CallbackHandler};
use hither_vfs::Fh;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// Answers calls from the server.
pub(crate) struct Callbacks {
    core: Weak<Core>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    session: Sessionid,
    slots: Vec<CbSlot>,
}

#[derive(Default, Clone)]
struct CbSlot {
    seqid: u32,
    reply: Bytes,
}

/// Decision of CB_SEQUENCE about a call.
enum Turn {
    New(CbSequenceOk),
    Repeated(Bytes),
}

impl Callbacks {
    /// The handler for the mount `core`.
    pub fn new(core: &Arc<Core>) -> Arc<Self> {
        Arc::new(Self { core: Arc::downgrade(core), slots: Mutex::default() })
    }

    fn answer(&self, header: &CallHeader, body: &Bytes) -> Enc {
        let xid = header.xid;
        let refuse = |stat| Enc::of(&ReplyHeader::accepted(xid, stat));
        if header.prog != CB_PROGRAM {
            return refuse(AcceptStat::ProgUnavail);
        }
        if header.vers != CB_VERSION {
            return refuse(AcceptStat::ProgMismatch(VersionRange { low: CB_VERSION, high: CB_VERSION }));
        }
        let mut reply = Enc::of(&ReplyHeader::success(xid));
        match header.proc {
            CB_PROC_NULL => {}
            CB_PROC_COMPOUND => match Dec::all::<CbCompound>(body) {
                Ok(call) => reply.raw(&self.compound(call)),
                Err(_) => return refuse(AcceptStat::GarbageArgs),
            },
            _ => return refuse(AcceptStat::ProcUnavail),
        }
        reply
    }

    /// The encoded CB_COMPOUND4res.
    fn compound(&self, call: CbCompound) -> Bytes {
        let encode = |status, results: Vec<CbRes>, call: &CbCompound| {
            Enc::of(&CbCompoundReply { status, tag: call.tag.clone(), results: results.into() }).to_bytes()
        };
        let Some(core) = self.core.upgrade() else { return encode(Nfsstat4::BADSESSION, vec![], &call) };
        if call.minorversion != core.minor {
            return encode(Nfsstat4::MINOR_VERS_MISMATCH, vec![], &call);
        }
        let Some(CbOp::Sequence(seq)) = call.ops.first() else {
            return encode(Nfsstat4::OP_NOT_IN_SESSION, vec![], &call);
        };
        let ok = match self.turn(&core, seq) {
            Ok(Turn::New(ok)) => ok,
            Ok(Turn::Repeated(reply)) => return reply,
            Err(status) => return encode(status, vec![CbRes::Sequence(Err(status))], &call),
        };
        let mut results = vec![CbRes::Sequence(Ok(ok))];
        let mut status = Nfsstat4::OK;
        for op in &call.ops[1..] {
            let result = core.callback(op);
            status = result.status();
            results.push(result);
            if status != Nfsstat4::OK {
                break;
            }
        }
        let reply = encode(status, results, &call);
        let mut slots = self.slots.lock();
        if slots.session == seq.sessionid
            && let Some(slot) = slots.slots.get_mut(seq.slotid as usize)
        {
            slot.reply = reply.clone();
        }
        reply
    }

    /// Checks the sequence of a slot (RFC 8881 section 20.9).
    fn turn(&self, core: &Core, seq: &CbSequenceArgs) -> Result<Turn, Nfsstat4> {
        // The id of a session may be unknown to the client during its creation.
        match &*core.phase.borrow() {
            Phase::Ready(session) if session.id != seq.sessionid => return Err(Nfsstat4::BADSESSION),
            Phase::Stopped => return Err(Nfsstat4::BADSESSION),
            _ => {}
        }
        if seq.slotid >= CB_SLOTS {
            return Err(Nfsstat4::BADSLOT);
        }
        let mut slots = self.slots.lock();
        if slots.session != seq.sessionid {
            *slots = Slots { session: seq.sessionid, slots: vec![CbSlot::default(); CB_SLOTS as usize] };
        }
        let slot = &mut slots.slots[seq.slotid as usize];
        if seq.sequenceid == slot.seqid && seq.sequenceid != 0 {
            return if slot.reply.is_empty() {
                // The first execution is still in progress.
                Err(Nfsstat4::DELAY)
            } else {
                Ok(Turn::Repeated(slot.reply.clone()))
            };
        }
        if seq.sequenceid != slot.seqid.wrapping_add(1) {
            return Err(Nfsstat4::SEQ_MISORDERED);
        }
        *slot = CbSlot { seqid: seq.sequenceid, reply: Bytes::new() };
        Ok(Turn::New(CbSequenceOk {
            sessionid: seq.sessionid,
            sequenceid: seq.sequenceid,
            slotid: seq.slotid,
            highest_slotid: CB_SLOTS - 1,
            target_highest_slotid: CB_SLOTS - 1,
        }))
    }
}

impl CallbackHandler for Callbacks {
    fn call(&self, header: CallHeader, body: Bytes) -> BoxFuture<'static, Enc> {
        let reply = self.answer(&header, &body);
        Box::pin(async move { reply })
    }
}

impl Core {
    fn callback(self: &Arc<Self>, op: &CbOp) -> CbRes {
        match op {
            CbOp::Recall(args) => {
                tracing::debug!(fh = ?args.fh, "a delegation is recalled");
                self.delegations.recalls.fetch_add(1, Ordering::Relaxed);
                self.recalled(&own_fh(&args.fh), &args.stateid);
                CbRes::Recall(Ok(()))
            }
            CbOp::RecallAny(args) => {
                self.give_back(self.delegations.take_all_but(args.objects_to_keep as usize));
                CbRes::RecallAny(Ok(()))
            }
            CbOp::RecallSlot(target) => {
                if let Phase::Ready(session) = &*self.phase.borrow() {
                    session.adapt(*target, u32::MAX);
                }
                CbRes::RecallSlot(Ok(()))
            }
            CbOp::NotifyLock(_) => {
                self.files.lock_freed.notify_waiters();
                CbRes::NotifyLock(Ok(()))
            }
            CbOp::Getattr(args) => {
                self.delegations.getattrs.fetch_add(1, Ordering::Relaxed);
                CbRes::Getattr(self.delegated_attrs(args))
            }
            CbOp::Layoutrecall(_) => CbRes::Layoutrecall(Err(Nfsstat4::NOMATCHING_LAYOUT)),
            CbOp::PushDeleg(_) => CbRes::PushDeleg(Err(Nfsstat4::REJECT_DELEG)),
            CbOp::Illegal(_) => CbRes::Illegal(Nfsstat4::OP_ILLEGAL),
            other => CbRes::failed(other.number(), Nfsstat4::NOTSUPP),
        }
    }

    /// Attributes from the holder of a write delegation, which include delayed writes. When the
    /// length alone does not describe the delayed changes, the answer is DELAY and the delegation
    /// is returned.
    fn delegated_attrs(self: &Arc<Self>, args: &CbGetattrArgs) -> Result<Attrs, Nfsstat4> {
        let fh: Fh = own_fh(&args.fh);
        let written = self.delegations.written(&fh).ok_or(Nfsstat4::BADHANDLE)?;
        let Some(noted) = written.attrs else {
            self.give_back(self.delegations.take(&fh).into_iter().collect());
            return Err(Nfsstat4::DELAY);
        };
        let mut attrs =
            Attrs { change: Some(noted.change), size: Some(noted.size_bytes), ..Attrs::default() };
        if let Some(t) = written.mtime {
            attrs.rare_mut().time_deleg_modify = Some(nfs4::Time { seconds: t.secs, nseconds: t.nanos });
        }
        attrs.retain(args.attr_request);
        Ok(attrs)
    }
}
