//! stat(2) of files that wait on the client: it sends nothing where no other client can see the
//! file, and the times and the length that it showed stay when the file is sent.
//!
//! They need root and nfs-ganesha: `cargo test -p hither --test stat_times -- --include-ignored`.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests of processes wait in real time"
)]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, daemons, hither, run, wait_for};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Nothing is sent because of its age, and no name is trusted.
const LATER: &str = ",dirty-age=3600,lookupcache=none";
const FILES: usize = 10;

/// A server: `hither serve` with delegations and leases, or nfs-ganesha.
enum Server {
    Serve(Serve),
    Ganesha(Ganesha),
}

impl Server {
    fn start(kind: &str) -> Self {
        if kind == "ganesha" {
            return Self::Ganesha(Ganesha::start());
        }
        let words = ["--max-delegations", "1000", "--nqnfs", "-o", "insecure"];
        let mut server = Serve::of_directory().with(&words);
        server.serve();
        Self::Serve(server)
    }

    fn dir(&self) -> &Path {
        match self {
            Self::Serve(server) => server.dir.path(),
            Self::Ganesha(ganesha) => ganesha.dir.path(),
        }
    }

    fn mount(&self, options: &str, name: &str) -> PathBuf {
        let mnt = self.dir().join(name);
        let _ = fs::create_dir(&mnt);
        match self {
            Self::Serve(server) => server.mount(options, &mnt).ok(),
            Self::Ganesha(ganesha) => ganesha.mount(options, &mnt).ok(),
        };
        mnt
    }

    fn export(&self, name: &str) -> PathBuf {
        self.dir().join("export").join(name)
    }

    /// Writes files until one waits after its close. The first ones find a server that does not
    /// know yet whether its client can be called.
    fn warm_up(&self, mnt: &Path, options: &str) {
        if !options.contains("close=") {
            return std::thread::sleep(std::time::Duration::from_secs(2));
        }
        let mut n = 0;
        wait_for("a close that does not wait", 60, || {
            n += 1;
            fs::write(mnt.join(format!("warm{n}")), "x").unwrap();
            fs::metadata(self.export(&format!("warm{n}"))).is_ok_and(|m| m.len() == 0)
        });
    }
}

fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// The number of WRITEs that a mount has sent.
fn writes(mnt: &Path) -> u64 {
    let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let operations = json["operations"].as_array().unwrap();
    operations.iter().filter(|o| o["name"] == "WRITE").map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// Length and modification time.
type Shown = (u64, i64, i64);

fn shown(m: &fs::Metadata) -> Shown {
    (m.len(), m.mtime(), m.mtime_nsec())
}

fn change_time(m: &fs::Metadata) -> (i64, i64) {
    (m.ctime(), m.ctime_nsec())
}

/// Creates, writes, looks, closes, and looks again.
fn written(path: &Path) -> fs::Metadata {
    let mut file = File::options().write(true).create_new(true).open(path).unwrap();
    file.write_all(b"some ").unwrap();
    let early = file.metadata().unwrap();
    file.write_all(b"bytes").unwrap();
    let seen = file.metadata().unwrap();
    assert!(early.modified().unwrap() < seen.modified().unwrap() && early.len() == 5);
    drop(file);
    let closed = fs::metadata(path).unwrap();
    assert_eq!((shown(&closed), change_time(&closed)), (shown(&seen), change_time(&seen)), "{path:?}");
    seen
}

/// Under a delegation or lease, and with close=lazy, stat(2) sends no WRITE. The times that it
/// showed are the server's and other clients' after the bytes were sent: by `hither sync`, by the
/// recall of the delegation, and at umount.
/// Promise: 5
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn stat_sends_no_bytes() {
    let cases = [
        ("serve", "vers=4.2,close=delegated"),
        ("serve", "vers=4.1,close=delegated"),
        ("serve", "vers=4.2"),
        ("serve", "vers=4.2,close=lazy"),
        ("serve", "vers=nqnfs,close=delegated"),
        ("serve", "vers=3,mountport=2049,close=lazy"),
        ("ganesha", "vers=4.2,close=lazy"),
        ("ganesha", "vers=3,close=lazy"),
    ];
    for (kind, options) in cases {
        for way in ["sync", "look", "umount"] {
            if way == "look" && options.contains("lazy") {
                // Other clients see such files late.
                continue;
            }
            let server = Server::start(kind);
            let a = server.mount(&format!("{options}{LATER}"), "a");
            server.warm_up(&a, options);
            let before = writes(&a);
            let seen: Vec<_> = (0..FILES).map(|i| written(&a.join(format!("f{i}")))).collect();
            let closes = if options.contains("close=") { 0 } else { FILES as u64 };
            assert_eq!(writes(&a) - before, closes, "{kind} {options}");
            let version = if options.contains("nqnfs") { "vers=nqnfs" } else { "vers=4.2" };
            let b = server.mount(&format!("{version},lookupcache=none"), "b");
            match way {
                "sync" => drop(hither(&["sync", a.to_str().unwrap()]).ok()),
                "look" => {}
                _ => umount(&a),
            }
            for (i, seen) in seen.iter().enumerate() {
                let name = format!("f{i}");
                assert_eq!(fs::read(b.join(&name)).unwrap(), b"some bytes", "{kind} {options} {way}");
                let there = fs::metadata(b.join(&name)).unwrap();
                assert_eq!(shown(&there), shown(seen), "{kind} {options} {way}: another mount");
                let there = fs::metadata(server.export(&name)).unwrap();
                assert_eq!(shown(&there), shown(seen), "{kind} {options} {way}: the server");
            }
            if way == "umount" {
                server.mount(&format!("{options}{LATER}"), "a");
            }
            for (i, seen) in seen.iter().enumerate() {
                let here = fs::metadata(a.join(format!("f{i}"))).unwrap();
                assert_eq!(shown(&here), shown(seen), "{kind} {options} {way}: here");
                if way != "umount" {
                    assert_eq!(change_time(&here), change_time(seen), "{kind} {options} {way}: here");
                }
            }
            umount(&a);
            umount(&b);
        }
    }
}

/// Temporary files that are written, looked at and removed are never sent.
/// Promise: 6a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn removed_temporary_files_send_nothing() {
    let cases = [
        ("serve", "vers=4.2,close=delegated"),
        ("serve", "vers=4.2,close=lazy"),
        ("serve", "vers=nqnfs,close=delegated"),
        ("ganesha", "vers=4.2,close=lazy"),
        ("ganesha", "vers=3,close=lazy"),
    ];
    for (kind, options) in cases {
        let server = Server::start(kind);
        let a = server.mount(&format!("{options}{LATER}"), "a");
        server.warm_up(&a, options);
        let before = writes(&a);
        for i in 0..FILES {
            let path = a.join(format!("t{i}"));
            written(&path);
            run(Command::new("rm").arg(&path)).ok();
        }
        hither(&["sync", a.to_str().unwrap()]).ok();
        let warm = fs::read_dir(server.export("")).unwrap().count() as u64;
        assert!(writes(&a) - before <= warm, "{kind} {options}: only the first files are sent");
        umount(&a);
    }
}

/// The next mount sends the journal of a killed daemon, and the times that programs saw.
/// Promise: 6c
#[test]
#[ignore = "needs root"]
fn killed_daemon_keeps_seen_times() {
    for options in ["vers=4.2,close=delegated", "vers=4.2,exclusive", "vers=4.2,exclusive,creates=here"] {
        let server = Server::start("serve");
        let journal = server.dir().join("journal");
        let options = format!("{options}{LATER},writeback=journal,journal-dir={}", journal.display());
        let a = server.mount(&options, "a");
        // A file of this user shows who owns new files.
        fs::write(a.join("first"), "x").unwrap();
        std::thread::sleep(std::time::Duration::from_secs(2));
        fs::write(a.join("second"), "x").unwrap();
        let seen: Vec<_> = (0..FILES).map(|i| written(&a.join(format!("f{i}")))).collect();
        for pid in daemons(&a) {
            // SAFETY: kill takes numbers.
            assert_eq!(unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) }, 0);
        }
        wait_for("the daemon's end", 60, || daemons(&a).is_empty());
        run(Command::new("umount").arg("-l").arg(&a)).ok();
        server.mount(&options, "a");
        for (i, seen) in seen.iter().enumerate() {
            let here = fs::metadata(a.join(format!("f{i}"))).unwrap();
            assert_eq!(shown(&here), shown(seen), "{options}");
        }
        umount(&a);
        for (i, seen) in seen.iter().enumerate() {
            let there = fs::metadata(server.export(&format!("f{i}"))).unwrap();
            assert_eq!(shown(&there), shown(seen), "{options}: the server");
        }
    }
}
