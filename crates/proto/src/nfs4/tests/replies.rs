//! Tests of the cursor that checks replies against calls.

use super::*;

fn reply(status: Nfsstat4, results: Vec<OpRes>) -> Results<OpRes> {
    CompoundReply { status, tag: Tag::default(), results: results.into() }.results()
}

/// The cursor returns the results in the order of the call.
#[test]
fn results_keep_call_order() {
    let attrs = Attrs { size: Some(5), ..Default::default() };
    let results =
        vec![OpRes::Putfh(Ok(())), OpRes::Getfh(Ok(Fh::copy(b"f"))), OpRes::Getattr(Ok(attrs.clone()))];
    let mut r = reply(Nfsstat4::OK, results);
    assert_eq!((r.remaining(), r.peek_number()), (3, Some(NfsOpnum4::PUTFH)));
    assert_eq!(r.putfh(), Ok(()));
    assert_eq!(r.getfh(), Ok(Fh::copy(b"f")));
    assert_eq!(r.getattr(), Ok(attrs));
    assert_eq!(r.finish(), Ok(()));
}

#[test]
fn a_failure_names_the_operation() {
    let mut r = reply(Nfsstat4::NOENT, vec![OpRes::Putfh(Ok(())), OpRes::Lookup(Err(Nfsstat4::NOENT))]);
    r.putfh().unwrap();
    let e = r.lookup().unwrap_err();
    assert_eq!(e, OpError::Status { index: 1, op: NfsOpnum4::LOOKUP, status: Nfsstat4::NOENT });
    assert_eq!(e.to_string(), "LOOKUP (operation 1): NFS4ERR_NOENT");
    assert_eq!(e.status(), Some(Nfsstat4::NOENT));
}

/// A compound that fails without results gives its status to the first operation.
#[test]
fn failed_compound_fails_first_operation() {
    let mut r = reply(Nfsstat4::MINOR_VERS_MISMATCH, vec![]);
    let e = r.exchange_id().unwrap_err();
    assert_eq!(e.status(), Some(Nfsstat4::MINOR_VERS_MISMATCH));
}

/// An operation that the server does not know fails with `NFS4ERR_OP_ILLEGAL`.
#[test]
fn illegal_operation_fails() {
    let mut r = reply(Nfsstat4::OP_ILLEGAL, vec![OpRes::Illegal(Nfsstat4::OP_ILLEGAL)]);
    assert_eq!(r.seek().unwrap_err().status(), Some(Nfsstat4::OP_ILLEGAL));
}

/// The cursor detects a result of another operation, a missing result and extra results.
#[test]
fn cursor_detects_misbehaving_server() {
    let (index, expected) = (0, NfsOpnum4::GETFH);
    let mut r = reply(Nfsstat4::OK, vec![OpRes::Putfh(Ok(()))]);
    let found = NfsOpnum4::PUTFH;
    assert_eq!(r.getfh(), Err(OpError::Mismatch { index, expected, found }));
    let mut r = reply(Nfsstat4::OK, vec![OpRes::Illegal(Nfsstat4::OK)]);
    let found = NfsOpnum4::ILLEGAL;
    assert_eq!(r.getfh(), Err(OpError::Mismatch { index, expected, found }));
    let mut r = reply(Nfsstat4::OK, vec![]);
    assert_eq!(r.getfh(), Err(OpError::Missing { index, expected }));
    let mut r = reply(Nfsstat4::OK, vec![OpRes::Putfh(Ok(())), OpRes::Savefh(Ok(()))]);
    r.putfh().unwrap();
    let e = r.finish().unwrap_err();
    assert_eq!((e, e.status()), (OpError::Extra { count: 1 }, None));
}

/// `outcome` keeps the conflicting lock of a denied LOCK. `lock` returns its status.
#[test]
fn denied_lock_keeps_conflicting_lock() {
    let denied = LockDenied {
        offset: 0,
        length: 1,
        locktype: LockType::READ,
        owner: StateOwner { clientid: 1, owner: b"o"[..].into() },
    };
    let fail = LockFail::Denied(denied);
    let mut r = reply(Nfsstat4::DENIED, vec![OpRes::Lock(Err(fail.clone()))]);
    assert_eq!(r.outcome::<op::Lock>(), Ok(Err(fail.clone())));
    let mut r = reply(Nfsstat4::DENIED, vec![OpRes::Lock(Err(fail))]);
    assert_eq!(r.lock().unwrap_err().status(), Some(Nfsstat4::DENIED));
}

#[test]
fn callbacks_name_their_own_operations() {
    let results = vec![CbRes::Recall(Err(Nfsstat4::BADHANDLE))];
    let reply = CbCompoundReply { status: Nfsstat4::BADHANDLE, tag: Tag::default(), results: results.into() };
    let e = reply.results().cb_recall().unwrap_err();
    assert_eq!(e.to_string(), "CB_RECALL (operation 0): NFS4ERR_BADHANDLE");
}

/// GETATTR is idempotent, REMOVE is not.
#[test]
fn idempotent_operations_are_recognised() {
    assert!(Op::getattr(&Bitmap4::EMPTY).is_idempotent());
    assert!(!Op::remove(b"f").is_idempotent());
}
