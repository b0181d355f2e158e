//! The lock manager of NFSv3 (NLM). It has no locks and denies them at once.
//!
//! Without this program, a Linux client that was mounted without `nolock` waits forever in its
//! first lock. TEST, LOCK and related procedures get DENIED_NOLOCKS (ENOLCK for the program).
//! UNLOCK, CANCEL and UNSHARE are granted, as no client holds a lock. The asynchronous procedures
//! (`_MSG`) get no result. Their clients ask rpcbind on their own machine for a callback program,
//! and continue after their own time limit.
//!
//! The module knows neither exports nor files. NFS is offered over TCP alone. Some clients lock
//! over UDP even when NFS is mounted over TCP.

use bytes::Bytes;
use hither_proto::nlm::{NlmArgs, NlmProc, NlmRes, NlmShareRes, NlmStat, PROGRAM, VERSIONS};
use hither_proto::rpc::{AcceptStat, Message, ReplyHeader, VersionRange, reply};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::server::Outcome;

/// Answers a call.
pub(crate) fn answer(vers: u32, proc: u32, args: &Bytes) -> Outcome {
    if !VERSIONS.contains(&vers) {
        return Outcome::ProcUnavail;
    }
    let proc = NlmProc(proc);
    let stat = match proc {
        NlmProc::NULL | NlmProc::FREE_ALL => return Outcome::Done(Enc::new()),
        NlmProc::TEST | NlmProc::LOCK | NlmProc::SHARE | NlmProc::NM_LOCK => NlmStat::DENIED_NOLOCKS,
        NlmProc::CANCEL | NlmProc::UNLOCK | NlmProc::UNSHARE => NlmStat::GRANTED,
        // This server never makes a client wait for a lock.
        NlmProc::GRANTED => NlmStat::DENIED,
        NlmProc(6..=15) => return Outcome::Done(Enc::new()),
        _ => return Outcome::ProcUnavail,
    };
    let Ok(NlmArgs { cookie }) = Dec::all(args) else { return Outcome::GarbageArgs };
    Outcome::Done(match proc {
        NlmProc::SHARE | NlmProc::UNSHARE => Enc::of(&NlmShareRes { cookie, stat, sequence: 0 }),
        _ => Enc::of(&NlmRes { cookie, stat }),
    })
}

/// The reply to a call in a datagram. `None` when the datagram is no call.
#[must_use]
pub fn answer_datagram(datagram: &Bytes) -> Option<Vec<u8>> {
    let Ok(Message::Call(header, args)) = Message::decode(datagram) else { return None };
    let accepted = |stat| Enc::of(&ReplyHeader::accepted(header.xid, stat));
    let known = VERSIONS.contains(&header.vers);
    let out = if header.prog != PROGRAM {
        accepted(AcceptStat::ProgUnavail)
    } else if !known {
        accepted(AcceptStat::ProgMismatch(VersionRange { low: 1, high: 4 }))
    } else {
        match answer(header.vers, header.proc, &args) {
            Outcome::Done(result) => reply(header.xid, result),
            Outcome::GarbageArgs => accepted(AcceptStat::GarbageArgs),
            _ => accepted(AcceptStat::ProcUnavail),
        }
    };
    Some(out.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_proto::nlm::Cookie;
    use hither_proto::rpc::{OpaqueAuth, call};

    fn ask(vers: u32, proc: NlmProc) -> Option<Bytes> {
        let mut args = Enc::new();
        // The cookie, and a lock that the server does not decode.
        args.raw(&Enc::of(&NlmArgs { cookie: Cookie::from(&b"cookie"[..]) }).to_bytes());
        args.raw(&Bytes::from_static(&[7; 60]));
        let call = call(5, PROGRAM, vers, proc.0, &OpaqueAuth::none(), args).to_bytes();
        let reply = Bytes::from(answer_datagram(&call).unwrap());
        let Ok(Message::Reply(header, body)) = Message::decode(&reply) else { panic!("{reply:?}") };
        assert_eq!(header.xid, 5);
        header.is_success().then_some(body)
    }

    /// Each version denies locks at once and grants unlocks.
    /// Promise: S14
    #[test]
    fn locks_are_denied_at_once() {
        for vers in VERSIONS {
            for (proc, stat) in [
                (NlmProc::TEST, NlmStat::DENIED_NOLOCKS),
                (NlmProc::LOCK, NlmStat::DENIED_NOLOCKS),
                (NlmProc::NM_LOCK, NlmStat::DENIED_NOLOCKS),
                (NlmProc::CANCEL, NlmStat::GRANTED),
                (NlmProc::UNLOCK, NlmStat::GRANTED),
            ] {
                let res: NlmRes = Dec::all(&ask(vers, proc).unwrap()).unwrap();
                assert_eq!((&res.cookie[..], res.stat), (&b"cookie"[..], stat), "{proc:?}");
            }
            for (proc, stat) in
                [(NlmProc::SHARE, NlmStat::DENIED_NOLOCKS), (NlmProc::UNSHARE, NlmStat::GRANTED)]
            {
                let res: NlmShareRes = Dec::all(&ask(vers, proc).unwrap()).unwrap();
                assert_eq!((&res.cookie[..], res.stat), (&b"cookie"[..], stat), "{proc:?}");
            }
            for void in [NlmProc::NULL, NlmProc::FREE_ALL, NlmProc::LOCK_MSG, NlmProc::GRANTED_RES] {
                assert_eq!(ask(vers, void), Some(Bytes::new()), "{void:?}");
            }
            assert_eq!(ask(vers, NlmProc(16)), None);
        }
        assert_eq!(ask(2, NlmProc::LOCK), None);
        assert_eq!(answer_datagram(&Bytes::from_static(b"none")), None);
        let none = answer(4, NlmProc::LOCK.0, &Bytes::new());
        assert!(matches!(none, Outcome::GarbageArgs));
    }
}
