//! Each status has an errno, and each failed mount one line.

use super::*;
use hither_proto::rpc::AuthStat;

/// Every status that the protocol names has an entry: a new one in `proto` fails here.
#[test]
fn every_status_has_an_errno() {
    for &s in Nfsstat3::VALUES.iter().filter(|s| **s != Nfsstat3::OK) {
        assert!(nfs3_errno(s).is_some(), "no errno for {s:?}");
        assert!((1..134).contains(&nfs3(s).errno), "{s:?} becomes an errno that no program knows");
    }
    for &s in Nfsstat4::VALUES.iter().filter(|s| **s != Nfsstat4::OK) {
        assert!(nfs4_errno(s).is_some(), "no errno for {s}");
        assert!((1..134).contains(&nfs4(s).errno), "{s} becomes an errno that no program knows");
    }
}

/// The three parts of the v4 table do not contradict each other: no status is in two of them.
#[test]
fn each_v4_status_stands_in_one_table() {
    for &s in Nfsstat4::VALUES {
        let found = [nfs4_file_errno(s), nfs4_state_errno(s), nfs4_session_errno(s)];
        assert!(found.iter().flatten().count() <= 1, "{s} has two entries");
    }
}

#[test]
fn unknown_statuses_are_told_and_do_not_panic() {
    for e in [nfs3(Nfsstat3(4711)), nfs4(Nfsstat4(4711))] {
        assert_eq!(e.errno, libc::EIO);
        assert!(e.to_string().contains("4711"), "{e}");
        assert_eq!(e.level(), tracing::Level::WARN);
    }
}

#[test]
fn everyday_answers_are_quiet() {
    assert_eq!(nfs3(Nfsstat3::NOENT).level(), tracing::Level::DEBUG);
    assert_eq!(nfs4(Nfsstat4::NOENT).level(), tracing::Level::DEBUG);
}

/// nfs(5): `soft` gives EIO, `softerr` ETIMEDOUT, an interrupted call EINTR.
#[test]
fn calls_without_result() {
    let errno = |e| call(&e).errno;
    assert_eq!(errno(CallError::TimedOut(Mode::Soft)), libc::EIO);
    assert_eq!(errno(CallError::TimedOut(Mode::Softerr)), libc::ETIMEDOUT);
    assert_eq!(errno(CallError::Cancelled), libc::EINTR);
    assert_eq!(errno(CallError::Denied(AuthStat::TOOWEAK)), libc::EACCES);
}
