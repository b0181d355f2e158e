//! Files that `hither serve` delegates. A delegated file costs no request while it does not change.
//! A reader sees nothing stale when the file changes, through the server or on its disk.
//!
//! The tests need root. Two mounts of one server are two clients.
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
use std::os::fd::AsRawFd;
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

/// Operations that a mount has sent, without those that renew its lease and those that end earlier
/// opens.
fn calls(mnt: &Path) -> u64 {
    calls_but(mnt, &["SEQUENCE", "CLOSE"])
}

fn calls_but(mnt: &Path, not: &[&str]) -> u64 {
    let said = run(Command::new(HITHER).arg("stat").arg("--json").arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let operations = json["operations"].as_array().unwrap();
    let counted = operations.iter().filter(|o| !o["name"].as_str().is_some_and(|name| not.contains(&name)));
    counted.map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// Writes new bytes until the mount reads them under a delegation. A second read then sends no
/// request.
///
/// The server grants no delegation while the writer has the file open, nor for a while after a
/// recall. A client that knows the bytes does not ask for a delegation.
fn until_delegated(mnt: &Path, path: &Path, writer: &Path) {
    wait_for("a delegation", 5, || {
        fs::write(writer, "delegated").unwrap();
        std::thread::sleep(Duration::from_millis(700));
        // The server may learn late that a local program created the file. A file of another client
        // exists already.
        let local = writer.iter().any(|part| part == "export");
        if local && !path.exists() {
            return false;
        }
        assert_eq!(read(path), "delegated");
        // A name that was looked up before the delegation is looked up once more.
        read(path);
        let before = calls(mnt);
        read(path);
        calls(mnt) == before
    });
}

/// A delegated file is opened and read without a request, for longer than any time limit of
/// attributes.
/// Promise: S10
#[test]
#[ignore = "needs root"]
fn delegated_file_costs_no_requests() {
    for version in ["4.1", "4.2"] {
        let two = Two::mount([
            &format!("vers={version},acregmin=1,acregmax=1,acdirmin=60,acdirmax=60"),
            "vers=4.2",
        ]);
        let f = two.a.join("f");
        // A server that learns late of this last write recalls the delegation and grants it again.
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
        assert!((0..20).any(|_| asked() == 0), "vers={version}: a delegated file cost requests");
        two.unmount();
    }
}

/// Number of recalls that the mount received.
fn recalls(mnt: &Path) -> u64 {
    let said = run(Command::new(HITHER).arg("stat").arg("--json").arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    json["layers"]["leases"]["recalls"].as_u64().unwrap()
}

/// A client with a read delegation opens and writes its file without a recall. Calls of other
/// clients and of local programs recall the delegation as before.
/// Promise: S10
#[test]
#[ignore = "needs root"]
fn own_open_keeps_delegation() {
    let two = Two::mount(["vers=4.2,acregmin=60,acregmax=60,acdirmax=60", "vers=4.2"]);
    let mut times = Vec::new();
    let count = 8;
    for n in 0..count {
        fs::write(two.server.export(&format!("f{n}")), "old").unwrap();
    }
    let f = |n: u32| two.a.join(format!("f{n}"));
    // The server delegates files to a client that it can call, but not a file that has just
    // changed.
    until_delegated(&two.a, &two.a.join("first"), &two.server.export("first"));
    std::thread::sleep(Duration::from_millis(100));
    for n in 0..count {
        assert_eq!(read(&f(n)), "old");
    }
    let before = recalls(&two.a);
    for n in 0..count {
        let begun = Instant::now();
        let file = File::options().write(true).open(f(n)).unwrap();
        times.push(begun.elapsed());
        file.write_all_at(b"new", 0).unwrap();
        file.sync_all().unwrap();
    }
    times.sort();
    println!(
        "{} recalls, opens took {:?} to {:?}",
        recalls(&two.a) - before,
        times[0],
        times[times.len() - 1]
    );
    assert_eq!(recalls(&two.a), before, "{times:?}");
    // Another client reads the new bytes, and a local program writes.
    assert_eq!(read(&two.b.join("f0")), "new");
    fs::write(two.server.export("f1"), "local").unwrap();
    assert_eq!(read(&f(1)), "local");
    fs::write(two.b.join("f2"), "other").unwrap();
    assert_eq!(read(&f(2)), "other");
    assert!(recalls(&two.a) > before);
    two.unmount();
}

/// A file changes by NFSv4, by NFSv3 or on the server while other clients hold it delegated. The
/// change returns only when no client shows the old file any more. This holds for open(2), for
/// stat(2) and for earlier descriptors.
/// Promise: S10
#[test]
#[ignore = "needs root"]
fn file_change_reaches_delegation_holders() {
    for writer in ["vers=4.2", "vers=3", "local"] {
        let other = if writer == "local" { "vers=4.2" } else { writer };
        let two = Two::mount(["vers=4.2,acregmin=60,acregmax=60,acdirmax=60", other]);
        let path = if writer == "local" { two.server.export("f") } else { two.b.join("f") };
        let f = two.a.join("f");
        fs::write(&path, "").unwrap();
        for round in 1..=2 {
            let (mut held, mut bytes) = (None, vec![0; 9]);
            wait_for(&format!("{writer}: delegated and open"), 5, || {
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

/// A change without new bytes ends delegations as well. Clients see it at once when it comes
/// through the server, and a moment later otherwise.
/// Promise: S10a
#[test]
#[ignore = "needs root"]
fn permissions_and_names_end_delegations() {
    // With this option no cached state expires while the test waits.
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

/// A local program of the server, or another client, replaces files that are delegated to a mount.
/// A program of the mount that opens them at that moment reads the old or the new bytes.
/// Promise: S10
#[test]
#[ignore = "needs root"]
fn replaced_delegated_file_is_read() {
    // Without it, a look-up at the wrong moment would hide each new name for a while.
    let two = Two::mount(["vers=4.2,lookupcache=pos", "vers=4.2"]);
    for (who, through) in [("b", two.b.clone()), ("local", two.server.export(""))] {
        for n in 0..150 {
            let name = format!("{who}{n}");
            fs::write(through.join(&name), "old").unwrap();
            let seen = two.a.join(&name);
            wait_for("the new name", 20, || seen.exists());
            // Two reads get a delegation.
            assert_eq!([read(&seen), read(&seen)], ["old", "old"]);
            fs::write(through.join("fresh"), "new").unwrap();
            fs::rename(through.join("fresh"), through.join(&name)).unwrap();
            wait_for("the new file", 20, || {
                let found = read(&seen);
                assert!(found == "old" && who == "local" || found == "new", "{name}: {found}");
                found == "new"
            });
        }
    }
    two.unmount();
}

/// A stopped holder of a file delegation delays a writer for at most twice the length of its lease
/// (ten seconds in this test). It shows nothing stale when it goes on.
/// Promise: S10
#[test]
#[ignore = "needs root"]
fn stopped_file_holder_delays_briefly() {
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
    // A server that learns late of the last write recalls the delegation earlier.
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
        assert!(round < 5, "no delegation, or the writer did not wait: {took:?}");
    }
    until_delegated(&two.a, &f, &local);
    two.unmount();
}

/// A reader has many files delegated while three writers of all kinds write at once. No read shows
/// less than the writes acknowledged before it began.
/// Promise: S10
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
                        // Overwrites in place: the name stays, and all bytes change at once.
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

/// Options under which directories expire every other second, and files do not expire during a
/// test.
const SHORT: &str = "vers=4.2,acregmin=60,acregmax=60,acdirmin=2,acdirmax=2";

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Lists a tree as `ls -lR` does, and looks up absent names.
fn look_around(dir: &Path) {
    fs::metadata(dir).unwrap();
    for name in names(dir) {
        let path = dir.join(&name);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            look_around(&path);
        }
        assert!(!dir.join(format!("no-{name}")).exists());
    }
}

/// The number of requests of a pass after all cached state has expired.
fn looks_cost(mnt: &Path, dir: &Path) -> u64 {
    std::thread::sleep(Duration::from_millis(2100));
    let before = calls(mnt);
    look_around(dir);
    calls(mnt) - before
}

/// Looks around until a pass costs no request. The server delegates a directory to a client that
/// asks about it again, and not soon after a recall.
fn until_directories_are_delegated(mnt: &Path, dir: &Path) {
    look_around(dir);
    wait_for("delegated directories", 60, || looks_cost(mnt, dir) == 0);
}

fn tree(server: &Two) -> PathBuf {
    let d = server.server.export("d");
    for sub in ["", "e", "e/deep", "g"] {
        fs::create_dir(d.join(sub)).unwrap();
        for f in ["one", "two"] {
            fs::write(d.join(sub).join(f), f).unwrap();
        }
    }
    server.a.join("d")
}

/// A client lists delegated directories that do not change and looks up their names without a
/// request. This includes absent names, and lasts longer than any time limit. The holder may change
/// the directories itself and keeps the delegations.
/// Promise: 8f, S10b
#[test]
#[ignore = "needs root"]
fn directory_delegation_saves_requests() {
    let two = Two::mount([SHORT, SHORT]);
    let d = tree(&two);
    until_directories_are_delegated(&two.a, &d);
    until_directories_are_delegated(&two.b, &two.b.join("d"));
    assert_eq!(looks_cost(&two.a, &d), 0, "there may be many holders");
    // The other mount loses its delegation of this directory.
    fs::create_dir(d.join("g/own")).unwrap();
    fs::write(d.join("g/mine"), "mine").unwrap();
    fs::remove_file(d.join("g/one")).unwrap();
    fs::rename(d.join("g/two"), d.join("e/two2")).unwrap();
    assert_eq!(names(&two.b.join("d/g")), ["mine", "own"]);
    look_around(&d);
    let asked = looks_cost(&two.a, &d.join("e/deep"));
    assert_eq!(asked, 0, "an unchanged directory stays delegated");
    assert_eq!(names(&d.join("g")), ["mine", "own"]);
    assert_eq!(names(&d.join("e")), ["deep", "one", "two", "two2"]);
    assert!(!d.join("g/one").exists());
    until_directories_are_delegated(&two.a, &d);
    two.unmount();
}

/// Another client makes, removes or moves names, by NFSv4, by NFSv3 or on the server. Holders of a
/// delegation of the directory see the change when the call returns. On the server itself they see
/// it a moment later.
/// Promise: 8f, S10b
#[test]
#[ignore = "needs root"]
fn directory_change_reaches_delegation_holders() {
    for writer in ["vers=4.2", "vers=3", "local"] {
        let two = Two::mount([SHORT, if writer == "local" { "vers=4.2" } else { writer }]);
        let d = tree(&two);
        let other = if writer == "local" { two.server.export("d") } else { two.b.join("d") };
        let seen = |what: &str, is: &dyn Fn() -> bool| match writer {
            "local" => wait_for(what, 60, is),
            _ => assert!(is(), "{writer}: {what}"),
        };
        until_directories_are_delegated(&two.a, &d);
        fs::write(other.join("new"), "new").unwrap();
        seen("a new file", &|| read_if(&d.join("new")).as_deref() == Some("new"));
        seen("a new file in the list", &|| names(&d) == ["e", "g", "new", "one", "two"]);
        until_directories_are_delegated(&two.a, &d);
        fs::remove_file(other.join("new")).unwrap();
        seen("a removed file", &|| !d.join("new").exists());
        until_directories_are_delegated(&two.a, &d);
        assert!(!d.join("g/moved").exists());
        fs::rename(other.join("e/one"), other.join("g/moved")).unwrap();
        seen("a moved file", &|| d.join("g/moved").exists() && !d.join("e/one").exists());
        until_directories_are_delegated(&two.a, &d);
        fs::set_permissions(other.join("g"), fs::Permissions::from_mode(0o711)).unwrap();
        let mode = || fs::metadata(d.join("g")).unwrap().permissions().mode() & 0o777;
        seen("other permissions", &|| mode() == 0o711);
        until_directories_are_delegated(&two.a, &d);
        for name in ["deep/one", "deep/two", "deep"] {
            let path = other.join("e").join(name);
            if path.is_dir() { fs::remove_dir(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
        seen("a removed directory", &|| !d.join("e/deep").exists() && names(&d.join("e")) == ["two"]);
        two.unmount();
    }
}

fn read_if(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// A stopped holder of a directory delegation delays a client that changes names in the directory
/// for at most twice the length of its lease.
/// Promise: S10b
#[test]
#[ignore = "needs root"]
fn stopped_directory_holder_delays_briefly() {
    let two = Two::mount([SHORT, "vers=4.2"]);
    let d = tree(&two);
    until_directories_are_delegated(&two.a, &d);
    let holder = daemons(&two.a);
    let signal = |signal| {
        holder.iter().for_each(|pid| {
            // SAFETY: kill takes numbers; the daemon is alive.
            assert_eq!(unsafe { libc::kill(*pid as libc::pid_t, signal) }, 0);
        })
    };
    signal(libc::SIGSTOP);
    wait_for("a stopped holder", 60, || holder.iter().all(|pid| has_stopped(*pid)));
    let begun = Instant::now();
    fs::create_dir(two.b.join("d/new")).unwrap();
    let took = begun.elapsed();
    signal(libc::SIGCONT);
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(40), "{took:?}");
    wait_for("the new name", 60, || d.join("new").is_dir());
    until_directories_are_delegated(&two.a, &d);
    two.unmount();
}

/// A reader that opens a recently written file again and again soon sends no request. The server
/// refuses a delegation while the writer has the file open, and for a while after a recall from the
/// writer. The reader asks again.
#[test]
#[ignore = "needs root"]
fn written_file_is_soon_delegated() {
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
        assert!(opens > 1, "a delegation at once: the test proves nothing");
        let before = calls(&two.a);
        for _ in 0..200 {
            assert_eq!(read(&seen), "later");
        }
        assert_eq!(calls(&two.a), before, "a delegated file cost requests");
        two.unmount();
    }
}

/// Lock requests that a mount has sent, and all its requests.
fn lock_calls(mnt: &Path) -> (u64, u64) {
    let all = calls(mnt);
    (all - calls_but(mnt, &["SEQUENCE", "CLOSE", "LOCK", "LOCKT", "LOCKU", "FREE_STATEID"]), all)
}

fn for_writing(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Calls fcntl(2) on a range of bytes. Returns 0 or the errno.
fn fcntl_lock(file: &File, command: i32, kind: i32, start: i64, len: i64) -> i32 {
    // SAFETY: all zeros is a valid flock. The descriptor is open, and fcntl(2) only reads the
    // structure.
    let done = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence) = (kind as i16, libc::SEEK_SET as i16);
        (lock.l_start, lock.l_len) = (start, len);
        libc::fcntl(file.as_raw_fd(), command, &lock)
    };
    if done == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

fn takes(file: &File, kind: i32, start: i64, len: i64) {
    assert_eq!(fcntl_lock(file, libc::F_SETLK, kind, start, len), 0);
}

/// Opens a file for writing until it is delegated for writing, so that its locks cost no request.
fn opened_and_delegated(mnt: &Path, path: &Path) -> File {
    let mut opened = for_writing(path);
    wait_for("a delegation for writing", 60, || {
        opened = for_writing(path);
        let before = lock_calls(mnt).0;
        takes(&opened, libc::F_WRLCK, 0, 1);
        takes(&opened, libc::F_UNLCK, 0, 1);
        lock_calls(mnt).0 == before || {
            std::thread::sleep(Duration::from_millis(200));
            false
        }
    });
    opened
}

/// A thousand locks and unlocks send no message under a write delegation. Without a delegation they
/// send two thousand.
/// Promise: 16a
#[test]
#[ignore = "needs root"]
fn delegated_locks_send_no_messages() {
    for delegations in ["1000", "0"] {
        let mut server = Serve::of_directory().with(&["--max-delegations", delegations]);
        server.serve();
        let mnt = server.mnt("a");
        server.mount("vers=4.2", &mnt).ok();
        let path = mnt.join("f");
        fs::write(&path, "some bytes").unwrap();
        let f = match delegations {
            "0" => for_writing(&path),
            _ => opened_and_delegated(&mnt, &path),
        };
        let before = lock_calls(&mnt);
        for i in 0..1000 {
            takes(&f, libc::F_WRLCK, i, 10);
            takes(&f, libc::F_UNLCK, i, 10);
        }
        let after = lock_calls(&mnt);
        let sent = (after.0 - before.0, after.1 - before.1);
        println!("--max-delegations {delegations}: {} messages about locks, {} in all", sent.0, sent.1);
        assert_eq!(sent.0, if delegations == "0" { 2000 } else { 0 });
        // The client sends no other request about the file either. It would for a file that another
        // client locks.
        assert!(delegations == "0" || sent.1 < 10, "{} messages", sent.1);
        drop(f);
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
}

/// SQLite's calls for transactions of two programs on one machine, under a write delegation. The
/// locks of a rollback journal cost no message and exclude each other. The writes of both programs
/// arrive.
/// Promise: 16a
#[test]
#[ignore = "needs root"]
fn sqlite_transactions_lock_locally() {
    const PENDING: i64 = 0x4000_0000;
    const RESERVED: i64 = PENDING + 1;
    const SHARED: i64 = PENDING + 2;
    let two = Two::mount(["vers=4.2", "vers=4.2"]);
    let path = two.a.join("db");
    let db = opened_and_delegated(&two.a, &path);
    let before = lock_calls(&two.a).0;
    for number in 1..=100u64 {
        takes(&db, libc::F_RDLCK, PENDING, 1);
        takes(&db, libc::F_RDLCK, SHARED, 510);
        takes(&db, libc::F_UNLCK, PENDING, 1);
        let mut last = [0; 8];
        let read = db.read_at(&mut last, 0).unwrap();
        assert_eq!(if read == 8 { u64::from_le_bytes(last) } else { 0 }, number - 1);
        takes(&db, libc::F_WRLCK, RESERVED, 1);
        takes(&db, libc::F_WRLCK, PENDING, 1);
        takes(&db, libc::F_WRLCK, SHARED, 510);
        db.write_all_at(&number.to_le_bytes(), 0).unwrap();
        db.sync_all().unwrap();
        takes(&db, libc::F_RDLCK, SHARED, 510);
        takes(&db, libc::F_UNLCK, PENDING, 2);
        takes(&db, libc::F_UNLCK, 0, 0);
    }
    assert_eq!(lock_calls(&two.a).0, before);
    assert_eq!(fs::read(two.server.export("db")).unwrap(), 100u64.to_le_bytes());
    drop(db);
    two.unmount();
}

/// A recall moves local locks to the server, where another client finds them. That client is
/// refused while the locks are held, and gets released ones. The same holds for waiting locks, on
/// both sides.
/// Promise: 16a
#[test]
#[ignore = "needs root"]
fn local_locks_reach_server_on_recall() {
    let two = Two::mount(["vers=4.2", "vers=4.2"]);
    let a = opened_and_delegated(&two.a, &two.a.join("f"));
    let before = lock_calls(&two.a).0;
    takes(&a, libc::F_WRLCK, 100, 100);
    // The lock of another program on this machine. flock(2) locks belong to the open file.
    let beside = for_writing(&two.a.join("f"));
    assert!(matches!(beside.try_lock(), Err(fs::TryLockError::WouldBlock)));
    assert_eq!(lock_calls(&two.a).0, before);
    let b = for_writing(&two.b.join("f"));
    assert_eq!(fcntl_lock(&b, libc::F_SETLK, libc::F_WRLCK, 150, 1), libc::EAGAIN);
    takes(&b, libc::F_WRLCK, 200, 10);
    assert_eq!(fcntl_lock(&a, libc::F_SETLK, libc::F_RDLCK, 205, 1), libc::EAGAIN);
    assert!(matches!(beside.try_lock(), Err(fs::TryLockError::WouldBlock)));
    a.write_all_at(b"held", 100).unwrap();
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(fcntl_lock(&b, libc::F_SETLKW, libc::F_WRLCK, 100, 50), 0);
            assert!(released.load(SeqCst), "two owners held the lock");
            let mut seen = [0; 4];
            b.read_exact_at(&mut seen, 100).unwrap();
            assert_eq!(seen, *b"held");
        });
        std::thread::sleep(Duration::from_secs(1));
        released.store(true, SeqCst);
        takes(&a, libc::F_UNLCK, 0, 0);
    });
    assert_eq!(fcntl_lock(&a, libc::F_SETLK, libc::F_WRLCK, 120, 1), libc::EAGAIN);
    drop(b);
    wait_for("a lock that the other one has given up", 10, || {
        fcntl_lock(&a, libc::F_SETLK, libc::F_WRLCK, 0, 0) == 0
    });
    takes(&a, libc::F_UNLCK, 0, 0);
    drop((a, beside));
    // When no other client has the file open, its locks are local again.
    let a = opened_and_delegated(&two.a, &two.a.join("f"));
    takes(&a, libc::F_WRLCK, 0, 10);
    // A lock that waits in another program of this machine continues to wait at the server after
    // the delegation is returned.
    let beside = for_writing(&two.a.join("f"));
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            beside.lock().unwrap();
            assert!(released.load(SeqCst), "two owners held the lock");
        });
        std::thread::sleep(Duration::from_millis(300));
        let b = for_writing(&two.b.join("f"));
        assert_eq!(fcntl_lock(&b, libc::F_SETLK, libc::F_WRLCK, 5, 1), libc::EAGAIN);
        released.store(true, SeqCst);
        takes(&a, libc::F_UNLCK, 0, 0);
    });
    drop((a, beside));
    two.unmount();
}

/// A lock that only the client knows survives a restart of the server. No other client gets the
/// lock, in the grace period or after it.
/// Promise: 16a
#[test]
#[ignore = "needs root"]
fn local_locks_survive_server_restart() {
    let mut two = Two::mount(["vers=4.2", "vers=4.2"]);
    let a = opened_and_delegated(&two.a, &two.a.join("f"));
    a.write_all_at(b"locked", 0).unwrap();
    let before = lock_calls(&two.a).0;
    takes(&a, libc::F_WRLCK, 0, 10);
    assert_eq!(lock_calls(&two.a).0, before);
    two.server.kill();
    two.server.serve();
    let b = for_writing(&two.b.join("f"));
    assert_eq!(fcntl_lock(&b, libc::F_SETLK, libc::F_WRLCK, 5, 1), libc::EAGAIN);
    a.write_all_at(b"LOCKED", 0).unwrap();
    a.sync_all().unwrap();
    takes(&b, libc::F_WRLCK, 10, 10);
    takes(&a, libc::F_UNLCK, 0, 0);
    assert_eq!(fcntl_lock(&b, libc::F_SETLKW, libc::F_WRLCK, 0, 10), 0);
    let mut seen = [0; 6];
    b.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"LOCKED");
    drop((a, b));
    two.unmount();
}
