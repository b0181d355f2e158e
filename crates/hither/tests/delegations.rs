//! Files that `hither serve` delegates: nothing is asked as long as nobody changes them, and nothing stale is seen when somebody
//! does, through the server or beside it.
//!
//! They need root. Two mounts of one server are two clients.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests of processes wait in real time"
)]

mod common;

use common::serve::Serve;
use common::{HITHER, daemons, has_stopped, run, wait_for};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Two mounts of one server.
struct Two {
    server: Serve,
    a: PathBuf,
    b: PathBuf,
}

impl Two {
    fn mount(options: [&str; 2]) -> Self {
        let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
        server.serve();
        let (a, b) = (server.mnt("a"), server.mnt("b"));
        server.mount(options[0], &a).ok();
        server.mount(options[1], &b).ok();
        Self { server, a, b }
    }

    fn unmount(&self) {
        for mnt in [&self.a, &self.b] {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Operations that a mount has sent, without those that renew its lease and end opens of before.
fn calls(mnt: &Path) -> u64 {
    let said = run(Command::new(HITHER).arg("stat").arg("--json").arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let operations = json["operations"].as_array().unwrap();
    let counted = operations.iter().filter(|o| !matches!(o["name"].as_str(), Some("SEQUENCE" | "CLOSE")));
    counted.map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// Makes new bytes until they are read under a delegation: read again they ask nothing. (One is not given while the writer has not
/// closed the file, nor for a while after one was taken; and a client that knows the bytes does not ask for one.)
fn until_delegated(mnt: &Path, path: &Path, writer: &Path) {
    wait_for("a delegation", 5, || {
        fs::write(writer, "delegated").unwrap();
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(read(path), "delegated");
        // A name that was looked up before the delegation was there is looked up once more.
        read(path);
        let before = calls(mnt);
        read(path);
        calls(mnt) == before
    });
}

/// A file that is delegated is opened and read without a question, for longer than any time limit of attributes.
#[test]
#[ignore = "needs root"]
fn nothing_is_asked_while_nobody_changes_anything() {
    for version in ["4.1", "4.2"] {
        let two = Two::mount([
            &format!("vers={version},acregmin=1,acregmax=1,acdirmin=60,acdirmax=60"),
            "vers=4.2",
        ]);
        let f = two.a.join("f");
        // (A server that is late to learn of the last write here takes the delegation back, and gives it again.)
        let asked = || {
            until_delegated(&two.a, &f, &two.server.export("f"));
            read(&two.b.join("f"));
            let before = calls(&two.a);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(3) {
                assert_eq!(read(&f), "delegated");
                fs::metadata(&f).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            calls(&two.a) - before
        };
        assert!((0..20).any(|_| asked() == 0), "vers={version}: what is delegated is asked about");
        two.unmount();
    }
}

/// Whoever changes a file that others have delegated, by NFSv4, by NFSv3 or on the server, is not done before nobody
/// shows the old one any more: not to open(2), not to stat(2), not in a descriptor that was there before.
#[test]
#[ignore = "needs root"]
fn a_change_is_seen_when_it_is_done() {
    for writer in ["vers=4.2", "vers=3", "local"] {
        let other = if writer == "local" { "vers=4.2" } else { writer };
        let two = Two::mount(["vers=4.2,acregmin=60,acregmax=60,acdirmax=60", other]);
        let path = if writer == "local" { two.server.export("f") } else { two.b.join("f") };
        let f = two.a.join("f");
        fs::write(&path, "").unwrap();
        for round in 1..=2 {
            let (mut held, mut bytes) = (None, vec![0; 9]);
            wait_for(&format!("{writer}: it is delegated, and open"), 5, || {
                until_delegated(&two.a, &f, &path);
                held.insert(File::open(&f).unwrap()).read_exact_at(&mut bytes, 0).unwrap();
                let before = calls(&two.a);
                assert_eq!(read(&f), "delegated");
                calls(&two.a) == before
            });
            let held = held.unwrap();
            for i in 0..4 {
                let body = format!("{round}-{i}-{}", "x".repeat(i + 5));
                fs::write(&path, &body).unwrap();
                assert_eq!(read(&f), body, "{writer}");
                assert_eq!(fs::metadata(&f).unwrap().len(), body.len() as u64);
                bytes.resize(body.len(), 0);
                held.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(bytes, body.as_bytes(), "{writer}: a descriptor that was there");
            }
        }
        two.unmount();
    }
}

/// What changes no bytes is seen as well: at once when it goes through the server, and a moment later when it does not.
#[test]
#[ignore = "needs root"]
fn permissions_and_names_end_delegations() {
    // Nothing comes to light by itself while the test waits.
    let two = Two::mount(["vers=4.2,actimeo=3600", "vers=4.2"]);
    for (i, through) in [two.b.clone(), two.server.export("")].into_iter().enumerate() {
        let name = format!("f{i}");
        let (seen, other) = (two.a.join(&name), through.join(&name));
        until_delegated(&two.a, &seen, &other);
        fs::set_permissions(&other, fs::Permissions::from_mode(0o640)).unwrap();
        let mode = || fs::metadata(&seen).unwrap().permissions().mode() & 0o777;
        if i == 0 {
            assert_eq!(mode(), 0o640);
        } else {
            wait_for("the new permissions", 120, || mode() == 0o640);
        }
        until_delegated(&two.a, &seen, &other);
        let fresh = through.join("fresh");
        fs::write(&fresh, "new").unwrap();
        fs::rename(&fresh, &other).unwrap();
        if i == 0 {
            assert_eq!(read(&seen), "new");
        } else {
            wait_for("the new file", 120, || read(&seen) == "new");
        }
    }
    two.unmount();
}

/// A holder that is stopped holds a writer up for the length of its lease (ten seconds here) at most twice, and shows nothing old
/// when it goes on.
#[test]
#[ignore = "needs root"]
fn a_stopped_holder_holds_nobody_up_for_long() {
    let two = Two::mount(["vers=4.2,acregmin=60,acregmax=60", "vers=4.2"]);
    let f = two.a.join("f");
    let local = two.server.export("f");
    let holder = daemons(&two.a);
    let signal = |signal| {
        holder.iter().for_each(|pid| {
            // SAFETY: kill takes numbers; the daemon is alive.
            assert_eq!(unsafe { libc::kill(*pid as libc::pid_t, signal) }, 0);
        })
    };
    // (A server that is late to learn of the last write takes the delegation back before.)
    for round in 0.. {
        until_delegated(&two.a, &f, &local);
        signal(libc::SIGSTOP);
        wait_for("a stopped holder", 60, || holder.iter().all(|pid| has_stopped(*pid)));
        let begun = Instant::now();
        fs::write(two.b.join("f"), "new").unwrap();
        let took = begun.elapsed();
        signal(libc::SIGCONT);
        assert!(took < Duration::from_secs(40), "{took:?}");
        wait_for("the new contents", 60, || read(&f) == "new");
        if took > Duration::from_secs(3) {
            break;
        }
        assert!(round < 5, "it was not delegated, or the writer did not wait: {took:?}");
    }
    until_delegated(&two.a, &f, &local);
    two.unmount();
}

/// Many files, a reader that has them delegated, and three writers of all kinds at once: no read shows less than what was
/// acknowledged before it began.
#[test]
#[ignore = "needs root"]
fn nothing_stale_is_ever_read() {
    const FILES: usize = 24;
    let two = Two::mount(["vers=4.2,acregmin=60,acregmax=60,acdirmin=60,acdirmax=60", "vers=4.2"]);
    let third = two.server.mnt("c");
    two.server.mount("vers=3", &third).ok();
    let acknowledged: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    for i in 0..FILES {
        fs::write(two.server.export(&format!("f{i}")), format!("{:016}", 0)).unwrap();
    }
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let before = calls(&two.a);
    std::thread::scope(|scope| {
        for (w, dir) in [two.b.clone(), third.clone(), two.server.export("")].into_iter().enumerate() {
            let (acknowledged, over) = (&acknowledged, &over);
            scope.spawn(move || {
                // Each file has one writer, so that its versions grow.
                for version in 1.. {
                    for i in (w..FILES).step_by(3) {
                        if over.load(SeqCst) {
                            return;
                        }
                        // In place: a name that stays, and all bytes at once.
                        let file = File::options().write(true).open(dir.join(format!("f{i}"))).unwrap();
                        file.write_all_at(format!("{version:016}").as_bytes(), 0).unwrap();
                        file.sync_all().unwrap();
                        drop(file);
                        acknowledged[i].store(version, SeqCst);
                        std::thread::sleep(Duration::from_millis(700));
                    }
                }
            });
        }
        let begun = Instant::now();
        let mut i = 0;
        while begun.elapsed() < Duration::from_secs(30) {
            i = (i * 7 + 5) % 1_000_003;
            let n = i % FILES;
            let least = acknowledged[n].load(SeqCst);
            let seen: u64 = read(&two.a.join(format!("f{n}"))).parse().unwrap();
            assert!(seen >= least, "f{n}: {seen} was read after {least} was acknowledged");
            reads.fetch_add(1, SeqCst);
        }
        over.store(true, SeqCst);
    });
    let (reads, asked) = (reads.into_inner(), calls(&two.a) - before);
    assert!(asked < reads, "{reads} reads asked {asked} times: nothing was delegated");
    run(Command::new(HITHER).arg("umount").arg(&third)).ok();
    two.unmount();
}

/// A reader who opens a file that was written a moment before, again and again, soon asks nothing: he is refused a delegation as long as
/// the writer has the file open and for a while after one was taken from him, and asks for one again.
#[test]
#[ignore = "needs root"]
fn what_was_just_written_is_soon_read_without_a_question() {
    for through_the_server in [true, false] {
        let two = Two::mount(["vers=4.2", "vers=4.2"]);
        let (path, seen) =
            (if through_the_server { two.b.join("f") } else { two.server.export("f") }, two.a.join("f"));
        fs::write(&path, "first").unwrap();
        let mut writer = File::options().write(true).open(&path).unwrap();
        for _ in 0..3 {
            assert_eq!(read(&seen), "first");
        }
        std::io::Write::write_all(&mut writer, b"later").unwrap();
        drop(writer);
        let mut opens = 0;
        wait_for("a delegation", 30, || {
            std::thread::sleep(Duration::from_millis(10));
            let before = calls(&two.a);
            assert_eq!(read(&seen), "later");
            opens += 1;
            calls(&two.a) == before
        });
        assert!(opens > 1, "it was delegated at once: nothing was tried");
        let before = calls(&two.a);
        for _ in 0..200 {
            assert_eq!(read(&seen), "later");
        }
        assert_eq!(calls(&two.a), before, "what is delegated is asked about");
        two.unmount();
    }
}
