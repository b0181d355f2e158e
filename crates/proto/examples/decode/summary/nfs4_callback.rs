//! Summaries of NFSv4 callbacks.

use super::Fields;
use super::nfs4::{fh, lock_owner, slots, span, stateid, write_response};
use super::nfs4_attrs::{attrs, bitmap_attrs};
use bytes::Bytes;
use hither_proto::nfs4::*;
use hither_proto::xdr::{Dec, Result as XdrResult};

/// Appends the values of a callback. Returns the procedure's name, or `None` if it is unknown.
///
/// # Errors
/// The message is malformed.
pub fn callback(f: &mut Fields, proc: u32, call: bool, body: &Bytes) -> XdrResult<Option<&'static str>> {
    if proc == CB_PROC_NULL {
        return Ok(Some("CB_NULL"));
    }
    if proc != CB_PROC_COMPOUND {
        return Ok(None);
    }
    if call {
        let c: CbCompound = Dec::all(body)?;
        f.text("nfs.tag", &c.tag);
        f.num("nfs.minorversion", c.minorversion);
        f.num("nfs.callback.ident", c.callback_ident);
        for op in &c.ops {
            f.num("nfs.cb.operation", op.number().0);
            cb_args(f, op);
        }
    } else {
        let c: CbCompoundReply = Dec::all(body)?;
        f.num("nfs.nfsstat4", c.status.0);
        f.text("nfs.tag", &c.tag);
        for r in c.results.iter() {
            f.num("nfs.cb.operation", r.number().0);
            f.num("nfs.nfsstat4", r.status().0);
            match r {
                CbRes::Getattr(Ok(a)) => attrs(f, a),
                CbRes::Sequence(Ok(s)) => {
                    f.hex("nfs.session_id4", &s.sessionid);
                    slots(f, s.sequenceid, s.slotid, s.highest_slotid);
                    f.num("nfs.target_high_slotid", s.target_highest_slotid);
                }
                _ => {}
            }
        }
    }
    Ok(Some("CB_COMPOUND"))
}

fn cb_args(f: &mut Fields, op: &CbOp) {
    match op {
        CbOp::Recall(a) => {
            stateid(f, &a.stateid);
            f.flag("nfs.truncate", a.truncate);
            fh(f, &a.fh);
        }
        CbOp::Getattr(a) => {
            fh(f, &a.fh);
            bitmap_attrs(f, a.attr_request);
        }
        CbOp::Sequence(a) => {
            f.hex("nfs.session_id4", &a.sessionid);
            slots(f, a.sequenceid, a.slotid, a.highest_slotid);
            f.flag("nfs.cachethis4", a.cachethis);
            for list in a.referring_call_lists.iter() {
                f.hex("nfs.session_id4", &list.sessionid);
                for call in list.referring_calls.iter() {
                    f.num("nfs.seqid", call.sequenceid);
                    f.num("nfs.slotid", call.slotid);
                }
            }
        }
        CbOp::Layoutrecall(a) => {
            f.num("nfs.layouttype", a.layout_type.0);
            f.num("nfs.iomode", a.iomode.0);
            f.flag("nfs.clorachanged", a.changed);
            f.num("nfs.recalltype", a.recall.discriminant());
            match &a.recall {
                LayoutRecall::File(file) => {
                    fh(f, &file.fh);
                    span(f, file.offset, file.length);
                    stateid(f, &file.stateid);
                }
                LayoutRecall::Fsid(fsid) => {
                    f.num("nfs.fsid4.major", fsid.major);
                    f.num("nfs.fsid4.minor", fsid.minor);
                }
                LayoutRecall::All => {}
            }
        }
        CbOp::NotifyLock(a) => {
            fh(f, &a.fh);
            lock_owner(f, &a.lock_owner);
        }
        CbOp::Offload(a) => {
            fh(f, &a.fh);
            stateid(f, &a.stateid);
            match &a.offload_info {
                Ok(done) => {
                    f.num("nfs.nfsstat4", 0);
                    write_response(f, done);
                }
                Err(failed) => f.num("nfs.nfsstat4", failed.status.0),
            }
        }
        _ => {}
    }
}
