//! The privileges of running daemons, as the kernel shows them in `/proc/PID/task/TID/status`.
//!
//! The tests need root.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{daemons, is_mounted, run, wait_for};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Capabilities (capabilities(7)) that no daemon keeps: KILL, SETPCAP, NET_ADMIN, NET_RAW,
/// SYS_MODULE, SYS_RAWIO, SYS_BOOT, SYS_TIME, MAC_ADMIN, SYSLOG, BPF.
const GIVEN_UP: [u32; 11] = [5, 8, 12, 13, 16, 17, 22, 25, 33, 34, 39];
/// SETGID, SETUID: a server acts as the user of a call, a mount does not.
const IDENTITY: [u32; 2] = [6, 7];
/// SYS_CHROOT, SYS_PTRACE: a mount reads the calls of programs, a server does not.
const CALLERS: [u32; 2] = [18, 19];

/// Checks each thread of a process. `without` and `with` are numbers of capabilities.
fn check(pid: u32, without: &[u32], with: &[u32]) {
    let threads: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    assert!(threads.len() > 1, "the runtime has threads");
    for thread in threads {
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            line.unwrap_or_else(|| panic!("no {name} in {status}"))
        };
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1", "2"), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let set = u64::from_str_radix(field(set), 16).unwrap();
            let kept = GIVEN_UP.iter().chain(without).find(|&bit| set >> bit & 1 == 1);
            assert_eq!(kept, None, "{status}");
        }
        // A server's thread that acts as another user has no effective capabilities at that time.
        let permitted = u64::from_str_radix(field("CapPrm"), 16).unwrap();
        assert!(with.iter().all(|bit| permitted >> bit & 1 == 1), "{status}");
    }
}

/// Whether a process has a lease (fcntl(2), F_SETLEASE) on a file.
fn has_lease(pid: u32, file: &std::path::Path) -> bool {
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let (pid, inode) = (pid.to_string(), format!(":{}", std::fs::metadata(file).unwrap().ino()));
    locks.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(1) == Some(&"LEASE") && words.get(4) == Some(&&*pid) && words[5].ends_with(&inode)
    })
}

/// Server, gateway and mounts have given up privileges in every thread. They still read and write
/// as another user, and the mounts unmount at the end and at SIGTERM.
#[test]
#[ignore = "needs root"]
fn daemons_give_up_privileges() {
    let mut origin = Serve::of_directory().with(&["--max-delegations", "1000"]);
    origin.serve();
    let mut gateway = Serve::gateway(&origin, "vers=4.2");
    gateway.serve();
    for (server, word) in [(&origin, "serve"), (&gateway, "gateway")] {
        check(server.pid(), &CALLERS, &IDENTITY);
        let mnt = server.mnt("mnt");
        server.mount("vers=4.2", &mnt).ok();
        let daemon = daemons(&mnt)[0];
        check(daemon, &IDENTITY, &CALLERS);
        let file = mnt.join(word);
        std::fs::write(&file, "bytes").unwrap();
        std::os::unix::fs::chown(&file, Some(1234), Some(1234)).unwrap();
        let as_user = format!("echo more >>{0} && cat {0}", file.display());
        let said = run(Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c"])
            .arg(as_user));
        assert_eq!(said.ok().out, "bytesmore\n");
        if word == "serve" {
            let theirs = server.export("theirs");
            std::fs::write(&theirs, "bytes").unwrap();
            std::os::unix::fs::chown(&theirs, Some(1234), Some(1234)).unwrap();
            wait_for("the server's lease on a user's file", 20, || {
                let read = std::fs::read(mnt.join("theirs"));
                read.is_ok() && has_lease(server.pid(), &theirs)
            });
        }
        check(daemon, &IDENTITY, &CALLERS);
        check(server.pid(), &CALLERS, &IDENTITY);
        // SAFETY: kill(2) with the id of a daemon of this test.
        unsafe { libc::kill(daemon as i32, libc::SIGTERM) };
        wait_for("the unmount", 20, || !is_mounted(&mnt));
    }
}
