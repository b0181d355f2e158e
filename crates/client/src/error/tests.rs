//! Each status has an errno, and each failed mount has one line.

use super::*;
use hither_proto::rpc::AuthStat;
use hither_rpc::tls::TlsError;

/// Every status of the protocol has an entry. A new status in `proto` fails this test.
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

/// No status is in two of the three parts of the v4 table.
#[test]
fn v4_status_tables_are_disjoint() {
    for &s in Nfsstat4::VALUES {
        let found = [nfs4_file_errno(s), nfs4_state_errno(s), nfs4_session_errno(s)];
        assert!(found.iter().flatten().count() <= 1, "{s} has two entries");
    }
}

/// An unknown status gives EIO and no panic. The message has its number, at level WARN.
#[test]
fn unknown_status_becomes_eio() {
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

fn from_call(e: CallError) -> MountError {
    let addr = "192.0.2.1:2049".parse().unwrap();
    MountError::from_call("filer", "/data", Service::Nfs, addr, "NFS version 3", e)
}

fn from_tls(e: TlsError) -> MountError {
    from_call(CallError::Connect(e.into()))
}

/// Only a silent server is worth another attempt. A MOUNT service without TLS has a remedy of its
/// own.
#[test]
fn failed_tls_ends_attempts() {
    assert!(from_tls(TlsError::Silent).is_transient());
    for e in [TlsError::Expired, TlsError::NotTls, TlsError::Closed("x"), TlsError::CertificateRequired] {
        assert!(!from_tls(e.clone()).is_transient() && !from_tls(e).other_version_may_work());
    }
    assert!(from_tls(TlsError::NoSuchVersion { offered: None }).other_version_may_work());
    let addr = "192.0.2.1:20048".parse().unwrap();
    let e = CallError::Connect(TlsError::NotOffered("x".into()).into());
    let e = MountError::from_call("filer", "/data", Service::Mount, addr, "MOUNT version 3", e);
    assert!(e.to_string().ends_with("NFSv4 needs no MOUNT service: vers=4.2"), "{e}");
}

fn from_io(kind: std::io::ErrorKind) -> MountError {
    from_call(CallError::Connect(kind.into()))
}

/// A failed mount is one line: the server, the failure, and the remedy. The exit status is that of
/// mount(8).
#[test]
fn mount_failure_is_one_line() {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, PermissionDenied, TimedOut};
    let no_such = |exports: Option<Vec<&str>>| MountError::NoSuchExport {
        server: "filer".into(),
        path: "/data".into(),
        exports: exports.map(|e| e.into_iter().map(str::to_owned).collect()),
    };
    for (e, exit, words) in [
        (from_io(ConnectionRefused), 32, ["refuses connections", "port="]),
        (from_io(HostUnreachable), 32, ["cannot be reached", "routes"]),
        (from_io(TimedOut), 32, ["does not answer", "firewall"]),
        (
            from_tls(TlsError::UnknownAuthority),
            32,
            ["filer: NFS at 192.0.2.1:2049: no trusted authority", "tls-ca"],
        ),
        (from_tls(TlsError::NotOffered("x".into())), 32, ["offers no TLS (x)", "xprtsec=none"]),
        (from_tls(TlsError::NoSuchVersion { offered: Some((4, 4)) }), 32, ["NFS version 3", "it offers 4)"]),
        (from_io(PermissionDenied), 2, ["privileged", "noresvport"]),
        (from_call(CallError::TimedOut(Mode::Soft)), 32, ["does not answer", "192.0.2.1:2049"]),
        (from_call(CallError::Denied(AuthStat::TOOWEAK)), 32, ["filer:/data: access denied", "resvport"]),
        (from_call(CallError::ProgMismatch { low: 4, high: 4 }), 32, ["NFS version 3", "it offers 4)"]),
        (from_call(CallError::ProgUnavail), 32, ["does not offer NFS version 3", "vers="]),
        (from_call(CallError::GarbageArgs), 32, ["protocol", "arguments"]),
        (no_such(None), 32, ["no such export", "check the path"]),
        (no_such(Some(vec![])), 32, ["no such export", "exports nothing"]),
        (no_such(Some(vec!["/a", "/b"])), 32, ["no such export", "exports /a, /b"]),
    ] {
        let line = e.to_string();
        assert!(line.starts_with("filer") && !line.contains('\n'), "{line}");
        words.iter().for_each(|w| assert!(line.contains(w), "{line:?} lacks {w:?}"));
        assert_eq!(e.exit_code(), exit, "{line}");
    }
    assert_eq!(from_call(CallError::Cancelled).exit_code(), 8);
}

/// `retry=` applies when the server is absent. Negotiation continues when the server speaks another
/// version. A denied mount is final.
#[test]
fn mount_error_decides_retry() {
    let refused = from_io(std::io::ErrorKind::ConnectionRefused);
    assert!(refused.is_transient() && !refused.other_version_may_work());
    let version = from_call(CallError::ProgMismatch { low: 4, high: 4 });
    assert!(!version.is_transient() && version.other_version_may_work());
    let denied = from_call(CallError::Denied(AuthStat::BADCRED));
    assert!(!denied.is_transient() && !denied.other_version_may_work());
}

/// An unreachable rpcbind and an unregistered program give different messages.
#[test]
fn rpcbind_failures() {
    use hither_rpc::PortmapError;
    let host = "192.0.2.1".parse().unwrap();
    let line = |e| {
        let addr = "192.0.2.1:111".parse().unwrap();
        MountError::from_portmap("filer", Service::Mount, addr, "mountport=PORT", e).to_string()
    };
    let refused = CallError::Connect(std::io::ErrorKind::ConnectionRefused.into());
    let l = line(PortmapError::Unreachable { host, cause: refused });
    assert!(l.contains("rpcbind at 192.0.2.1:111 refuses") && l.contains("mountport="), "{l}");
    let l = line(PortmapError::NotRegistered { host, prog: 100_005, vers: 3 });
    assert!(l.contains("mountd") && l.contains("not registered") && l.contains("mountport="), "{l}");
    let l = line(PortmapError::Unreachable { host, cause: CallError::DeadlinePassed });
    assert!(l.contains("does not answer"), "{l}");
}
