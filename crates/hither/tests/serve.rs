//! `hither serve` as a process: mounts of it, repeated kills, exports, and hostile clients.
//!
//! The tests need root. The server listens on a loopback address. No foreign server is started.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::wire::Wire;
use common::{HITHER, daemons, pause, run, sh, wait_for};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "tests of processes measure in real time")]
fn now() -> Instant {
    Instant::now()
}

/// The acknowledged changes of one program through a mount: names with their objects.
type Truth = BTreeMap<String, Body>;

#[derive(Default)]
struct Body {
    bytes: Vec<u8>,
    /// The mode, once it was set.
    mode: Option<u32>,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len);
    for _ in 0..len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.push(x as u8);
    }
    out
}

/// Number of repeated calls that found their work done by the first attempt.
static DONE_BEFORE: AtomicU64 = AtomicU64::new(0);

/// The last calls of a worker, printed when it fails.
struct Log {
    dir: std::path::PathBuf,
    lines: std::collections::VecDeque<String>,
}

impl Log {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_path_buf(), lines: Default::default() }
    }

    fn note<T: std::fmt::Debug>(&mut self, what: impl std::fmt::Display, result: &std::io::Result<T>) {
        let said = result.as_ref().map(|_| "ok").map_err(|e| e.kind());
        self.lines.push_back(format!("{what}: {said:?}"));
        if self.lines.len() > 200 {
            self.lines.pop_front();
        }
    }

    #[track_caller]
    fn ok<T: std::fmt::Debug>(&mut self, what: impl std::fmt::Display, result: std::io::Result<T>) -> T {
        self.note(&what, &result);
        if let Err(e) = &result {
            let names =
                fs::read_dir(&self.dir).map(|d| d.map(|e| e.map(|e| e.file_name())).collect::<Vec<_>>());
            panic!("{what}: {e}\nnow there: {names:?}\nbefore: {:#?}", self.lines);
        }
        result.unwrap()
    }

    /// Accepts that a repeated call finds its work done, because its first reply was lost.
    #[track_caller]
    fn again(&mut self, what: impl std::fmt::Display, result: std::io::Result<()>, done: ErrorKind) {
        match result {
            Err(e) if e.kind() == done => {
                DONE_BEFORE.fetch_add(1, Ordering::Relaxed);
                self.note(what, &Err::<(), _>(e));
            }
            other => self.ok(what, other),
        }
    }
}

/// Changes its own directory until `over` is set.
fn worker(dir: &Path, seed: u64, over: &AtomicBool, count: &AtomicU64) -> Truth {
    let (mut truth, mut log) = (Truth::new(), Log::new(dir));
    for i in 0.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let dice = bytes(seed << 32 | i, 16);
        let len = usize::from(dice[0]) * 97;
        let (name, data) = (format!("f{}", dice[1] % 24), bytes(seed ^ i << 8, len));
        match dice[2] % 11 {
            0 => {
                let to = format!("f{}", dice[3] % 24);
                if truth.contains_key(&name) && name != to {
                    let done = fs::rename(dir.join(&name), dir.join(&to));
                    log.again(format!("rename {name} {to}"), done, ErrorKind::NotFound);
                    let moved = truth.remove(&name).unwrap();
                    truth.insert(to, moved);
                }
            }
            1 => {
                if truth.remove(&name).is_some() {
                    let done = fs::remove_file(dir.join(&name));
                    log.again(format!("remove {name}"), done, ErrorKind::NotFound);
                }
            }
            2 => {
                // Overwrites bytes in the middle and syncs each write.
                if let Some(body) = truth.get_mut(&name) {
                    let at = usize::from(dice[4]) * 11;
                    let opened =
                        OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(dir.join(&name));
                    let file = log.ok(format!("open {name} to write"), opened);
                    file.write_all_at(&data, at as u64).unwrap();
                    body.bytes.resize(body.bytes.len().max(at + len), 0);
                    body.bytes[at..at + len].copy_from_slice(&data);
                }
            }
            3 => {
                if let Some(body) = truth.get_mut(&name) {
                    let opened = OpenOptions::new().write(true).open(dir.join(&name));
                    let file = log.ok(format!("open {name} to cut"), opened);
                    file.set_len(len as u64).unwrap();
                    body.bytes.resize(len, 0);
                }
            }
            4 => {
                let mode = 0o600 | u32::from(dice[4] & 0o77);
                if let Some(body) = truth.get_mut(&name) {
                    let done = fs::set_permissions(dir.join(&name), Permissions::from_mode(mode));
                    log.ok(format!("chmod {name}"), done);
                    body.mode = Some(mode);
                }
            }
            5 => {
                // Moves a file by adding a second name and removing the first.
                let to = format!("f{}", dice[3] % 24);
                if truth.contains_key(&name) && !truth.contains_key(&to) {
                    let done = fs::hard_link(dir.join(&name), dir.join(&to));
                    log.again(format!("link {name} {to}"), done, ErrorKind::AlreadyExists);
                    let done = fs::remove_file(dir.join(&name));
                    log.again(format!("remove {name}"), done, ErrorKind::NotFound);
                    let moved = truth.remove(&name).unwrap();
                    truth.insert(to, moved);
                }
            }
            6 => {
                let (from, to) = (dir.join("dir"), dir.join("dir2"));
                log.again("mkdir", fs::create_dir(&from), ErrorKind::AlreadyExists);
                log.again("rename of it", fs::rename(&from, &to), ErrorKind::NotFound);
                log.again("rmdir", fs::remove_dir(&to), ErrorKind::NotFound);
            }
            _ => {
                let mut file = log.ok(format!("create {name}"), File::create(dir.join(&name)));
                file.write_all(&data[..len / 2]).unwrap();
                file.write_all(&data[len / 2..]).unwrap();
                file.sync_all().unwrap();
                truth.entry(name).or_default().bytes = data;
            }
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
    truth
}

/// Writes to a file that stays open, and with NFSv4 locked. Returns the required contents.
fn keeper(file: &File, over: &AtomicBool) -> Vec<u8> {
    let mut all = Vec::new();
    let mut file = file;
    for i in 0_u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        let line = format!("line {i}\n");
        file.write_all(line.as_bytes()).unwrap();
        all.extend_from_slice(line.as_bytes());
        if i % 5 == 0 {
            file.sync_data().unwrap();
        }
        pause(2);
    }
    file.sync_all().unwrap();
    all
}

/// Kills the server again and again under load. In the end all acknowledged data is on its disk.
fn kills(version: &str, mut server: Serve, rounds: u64) {
    server.serve();
    let mnt = server.mnt("mnt");
    server.mount(&format!("vers={version}"), &mnt).ok();
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = (0..3)
        .map(|n| {
            let (dir, over, count) = (mnt.join(format!("d{n}")), over.clone(), count.clone());
            // Made before the first kill, because a repeated mkdir may find its directory.
            fs::create_dir(&dir).unwrap();
            std::thread::spawn(move || worker(&dir, n, &over, &count))
        })
        .collect();
    let kept = File::create(mnt.join("kept")).unwrap();
    kept.lock().unwrap();
    let keeper = {
        let (file, over) = (kept.try_clone().unwrap(), over.clone());
        std::thread::spawn(move || keeper(&file, &over))
    };
    for round in 0..rounds {
        let before = count.load(Ordering::Relaxed);
        wait_for("work to go on after a restart", 180, || count.load(Ordering::Relaxed) > before + 30);
        pause(37 * round % 101);
        server.kill();
        server.serve();
    }
    println!(
        "NFS {version}, {rounds} kills: {} calls found their work done",
        DONE_BEFORE.swap(0, Ordering::Relaxed)
    );
    let before = count.load(Ordering::Relaxed);
    wait_for("work to go on after the last restart", 180, || count.load(Ordering::Relaxed) > before + 30);
    over.store(true, Ordering::Relaxed);
    let truths: Vec<Truth> = workers.into_iter().map(|w| w.join().unwrap()).collect();
    let line = keeper.join().unwrap();
    if version != "3" {
        // The client reclaimed the lock each time, so no other client can get it.
        let other = server.mnt("other");
        server.mount(&format!("vers={version}"), &other).ok();
        let file = File::options().write(true).open(other.join("kept")).unwrap();
        assert!(matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)), "the lock was lost");
        drop(file);
        run(Command::new(HITHER).arg("umount").arg(&other)).ok();
    }
    drop(kept);
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(fs::read(server.export("kept")).unwrap(), line, "the open file (NFS {version})");
    for (n, truth) in truths.iter().enumerate() {
        let dir = server.export(&format!("d{n}"));
        let mut names: Vec<String> =
            fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, truth.keys().cloned().collect::<Vec<_>>(), "names of d{n} (NFS {version})");
        for (name, want) in truth {
            let (found, bytes) = (fs::read(dir.join(name)).unwrap(), &want.bytes);
            assert!(
                found == *bytes,
                "d{n}/{name} (NFS {version}): {} bytes, not {}",
                found.len(),
                bytes.len()
            );
            let mode = fs::metadata(dir.join(name)).unwrap().mode() & 0o7777;
            assert_eq!(mode, want.mode.unwrap_or(mode), "d{n}/{name} (NFS {version})");
        }
    }
    server.stop();
}

/// All acknowledged data is at the server after repeated kills.
/// Promise: S5
#[test]
#[ignore = "needs root"]
fn acknowledged_data_survives_server_kills() {
    for version in ["4.2", "4.1", "3"] {
        kills(version, Serve::of_directory(), 4);
    }
}

/// As above, with a journal. Each start replays records and undoes no later change.
/// Promise: S8, S8b
#[test]
#[ignore = "needs root"]
fn killed_server_with_journal_loses_nothing() {
    let rounds = std::env::var("HITHER_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for version in ["4.2", "3"] {
        kills(version, with_journal("8"), rounds / 2);
    }
}

fn with_journal(size_mib: &str) -> Serve {
    let server = Serve::of_directory();
    let journal = server.dir.path().join("journal").display().to_string();
    server.with(&["--journal", &journal, "--journal-size", size_mib])
}

/// A restarted server answers the repeated calls of an NFSv3 user and executes none again.
/// Promise: S8c
#[test]
#[ignore = "needs root"]
fn replayed_nfsv3_calls_run_once() {
    use hither_proto::nfs3::*;
    let mut server = with_journal("8");
    server.serve();
    let mut wire = Wire::connect(server.port);
    let root = wire.root();
    let at = |dir: &Fh3, name: &str| Diropargs3 { dir: dir.clone(), name: name.as_bytes().into() };
    let sattr = |size| Sattr3 { size, mode: Some(0o750), ..Sattr3::default() };
    let mkdir = |name: &str| MkdirArgs { r#where: at(&root, name), attributes: sattr(None) };
    let create =
        |name: &str, size| CreateArgs { r#where: at(&root, name), how: Createhow3::Guarded(sattr(size)) };
    let dir = wire.made(&mkdir("d"));
    wire.made(&mkdir("gone"));
    let file = wire.made(&create("f", None));
    wire.made(&create("long", Some(5000)));
    wire.made(&SymlinkArgs {
        r#where: at(&root, "s"),
        symlink_attributes: Sattr3::default(),
        symlink_data: b"f"[..].into(),
    });
    wire.done(&LinkArgs { file: file.clone(), link: at(&dir, "l") });
    wire.done(&RenameArgs { from: at(&root, "f"), to: at(&root, "g") });
    for size in [None, Some(9)] {
        let ctime = wire.call(&GetattrArgs { object: file.clone() }).into_result().unwrap().ctime;
        let object = file.clone();
        wire.done(&SetattrArgs { object, new_attributes: sattr(size), guard: Some(ctime) });
    }
    let write = |data: &'static [u8]| {
        let (file, data) = (file.clone(), bytes::Bytes::from_static(data).into());
        WriteArgs { file, offset: 3, count: 6, stable: StableHow::FILE_SYNC, data }
    };
    wire.done(&write(b"stable"));
    wire.done(&RemoveArgs { object: at(&root, "s") });
    wire.done(&RmdirArgs { object: at(&root, "gone") });
    // Later changes of another client, which must survive the repetitions.
    wire.call(&write(b"newer!")).into_result().unwrap();
    wire.call(&create("f", None)).into_result().unwrap();
    wire.call(&create("s", None)).into_result().unwrap();
    wire.call(&mkdir("gone")).into_result().unwrap();
    // Replies come from the journal, from replies saved beside it, and from an orderly end.
    for life in 0..4 {
        match life {
            2 => assert_eq!(server.stop(), 0),
            _ => server.kill(),
        }
        server.serve();
        wire.reconnect();
        wire.repeat();
        assert!(!wire.repeat_as(1234).contains(&0), "another user gets a reply");
        let names = sh(&format!("echo $(ls {})", server.export("").display())).ok().out;
        assert_eq!(names.trim(), "d f g gone long s", "life {life}");
        assert_eq!(fs::read(server.export("g")).unwrap(), b"\0\0\0newer!", "life {life}");
    }
    // The repetitions above were recognised. New calls of the same kind are executed.
    let remove = RemoveArgs { object: at(&root, "s") };
    assert_eq!(wire.call(&remove).status(), Nfsstat3::OK);
    assert_eq!(wire.call(&remove).status(), Nfsstat3::NOENT);
    assert_eq!(wire.call(&mkdir("d")).status(), Nfsstat3::EXIST);
    assert_eq!(server.stop(), 0);
}

/// A start without the journal that holds records, or with a foreign journal, is refused.
/// Promise: S9
#[test]
#[ignore = "needs root"]
fn start_checks_the_right_journal() {
    let mut server = with_journal("8");
    server.serve();
    let mnt = server.mnt("mnt");
    server.mount("vers=3,sync", &mnt).ok();
    fs::write(mnt.join("f"), "stable").unwrap();
    let dir = server.dir.path().to_path_buf();
    let journal = dir.join("journal");
    let second = |seconds: &str, words: &[&str]| {
        let export = dir.join(if words.contains(&"other") { "other" } else { "export" });
        let words = words.iter().filter(|w| **w != "other");
        let state = dir.join("state");
        let mut command = Command::new("timeout");
        command
            .args([seconds, HITHER, "serve", "--listen", "127.0.0.1:2050", "--state-dir"])
            .arg(state)
            .arg(export);
        run(command.args(words))
    };
    let named = ["--journal", journal.to_str().unwrap()];
    let used = second("120", &named);
    assert!(used.code != 0 && used.err.contains("another server uses it"), "{used:?}");
    server.kill();
    // Without its journal, the server might later replay the records over newer bytes.
    let without = second("120", &[]);
    assert!(without.code != 0 && without.err.contains("start the server with it (--journal "), "{without:?}");
    let other = dir.join("journal2");
    let without = second("120", &["--journal", other.to_str().unwrap()]);
    assert!(without.code != 0 && without.err.contains("start the server with it (--journal "), "{without:?}");
    let fs = server.mnt("other");
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&fs)).ok();
    let foreign = second("120", &["other", named[0], named[1]]);
    assert!(foreign.code != 0 && foreign.err.contains("another machine or file system"), "{foreign:?}");
    server.serve();
    assert_eq!(fs::read_to_string(mnt.join("f")).unwrap(), "stable");
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0);
    // An orderly end empties the journal, so the next start may omit it.
    let without = second("3", &[]);
    assert_eq!(without.code, 124, "it serves until timeout(1) ends it: {without:?}");
}

/// A state directory has one server at a time. A journal with records belongs to one directory.
/// Promise: S9
#[test]
#[ignore = "needs root"]
fn a_state_directory_has_one_server() {
    let mut server = with_journal("8");
    server.serve();
    let mnt = server.mnt("mnt");
    server.mount("vers=3,sync", &mnt).ok();
    fs::write(mnt.join("f"), "stable").unwrap();
    let dir = server.dir.path().to_path_buf();
    let other = |seconds: &str, state: &str, words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args([seconds, HITHER, "serve", "--listen", "127.0.0.1:2051", "--state-dir"]);
        run(command.arg(dir.join(state)).arg(dir.join("export")).args(words))
    };
    let shared = other("60", "state", &[]);
    assert!(shared.code != 0 && shared.err.contains("another server uses it"), "{shared:?}");
    server.kill();
    let journal = dir.join("journal");
    let named = ["--journal", journal.to_str().unwrap()];
    let foreign = other("60", "state2", &named);
    assert!(foreign.code != 0 && foreign.err.contains("another state directory"), "{foreign:?}");
    server.serve();
    assert_eq!(fs::read_to_string(mnt.join("f")).unwrap(), "stable");
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0, "{}", server.complaints());
    // An orderly end empties the journal, and any server may use it.
    let empty = other("5", "state2", &named);
    assert_eq!(empty.code, 124, "it serves until timeout(1) ends it: {empty:?}");
}

/// `hither serve` prints a working mount command. A signal ends the server in an orderly way.
#[test]
#[ignore = "needs root"]
fn printed_command_mounts_export() {
    let mut server = Serve::of_directory();
    server.serve();
    wait_for("its words", 60, || server.said().contains("vers=3"));
    let said = server.said();
    let export = server.export("").display().to_string();
    assert!(
        said.starts_with(&format!("serving {} *(rw,no_root_squash,secure)\n", export.trim_end_matches('/'))),
        "{said}"
    );
    let line = said.lines().map(str::trim).find(|l| l.starts_with("hither mount")).unwrap();
    let mnt = server.mnt("mnt");
    let line = line.replacen("hither", "\"$HITHER\"", 1).replace("DIR", mnt.to_str().unwrap());
    sh(&line).ok();
    fs::create_dir(mnt.join("sub")).unwrap();
    fs::write(mnt.join("sub/f"), "body").unwrap();
    symlink("sub/f", mnt.join("link")).unwrap();
    assert_eq!(fs::read_to_string(mnt.join("link")).unwrap(), "body");
    assert_eq!(fs::read_to_string(server.export("sub/f")).unwrap(), "body");
    // A second server does not get the port, and its message names the remedy.
    let listen = format!("127.0.0.1:{}", server.port);
    let second = run(Command::new(HITHER)
        .args(["serve", "/", "--listen", &listen, "--state-dir"])
        .arg(server.mnt("s2")));
    second.fails(
        2,
        &format!(
            "hither: {listen} is in use, perhaps by another NFS server: --listen 127.0.0.1:PORT takes another port"
        ),
    );
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0);
    assert!(daemons(&mnt).is_empty());
}

/// Asserts that the server refused a change for a missing permission or a read-only export.
#[track_caller]
fn refused(result: std::io::Result<()>) {
    let errno = result.unwrap_err().raw_os_error();
    assert!(matches!(errno, Some(libc::EROFS | libc::EACCES)), "{errno:?}");
}

/// Each export grants its own rights. The server reads the exports again on SIGHUP.
/// Promise: S6
#[test]
#[ignore = "needs root"]
fn exports_decide_rights_and_reload() {
    let conf = tempfile::tempdir().unwrap();
    let file = conf.path().join("a.exports");
    let server = Serve::prepare();
    let dir = server.export("");
    for sub in ["ro", "squash", "all", "denied"] {
        fs::create_dir(dir.join(sub)).unwrap();
        fs::set_permissions(dir.join(sub), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    fs::write(dir.join("ro/f"), "old").unwrap();
    let private = dir.join("squash/private");
    fs::write(&private, "x").unwrap();
    fs::set_permissions(&private, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let d = dir.display();
    let lines = format!(
        "# Comments and continued lines are as in exports(5).\n\
         {d}ro 127.0.0.1(ro,no_root_squash)\n\
         {d}squash 127.0.0.0/8(rw,root_squash) \\\n  192.0.2.0/24(rw)\n\
         {d}all *(rw,all_squash,anonuid=1234,anongid=4321)\n\
         {d}denied 192.0.2.0/24(rw)\n"
    );
    fs::write(&file, &lines).unwrap();
    let mut server = server.with(&["--config", file.to_str().unwrap()]);
    server.serve();
    let at = |sub: &str, version: &str| {
        let mnt = server.mnt(&format!("mnt-{sub}-{version}"));
        let said = server.mount_path(&format!("vers={version}"), &format!("{d}{sub}"), &mnt);
        (mnt, said)
    };
    for version in ["4.2", "3"] {
        let (ro, said) = at("ro", version);
        said.ok();
        assert_eq!(fs::read_to_string(ro.join("f")).unwrap(), "old");
        refused(fs::write(ro.join("f"), "new"));
        refused(fs::remove_file(ro.join("f")));
        refused(fs::create_dir(ro.join("d")));
        let (squash, said) = at("squash", version);
        said.ok();
        let made = squash.join(format!("by-root-{version}"));
        fs::write(&made, "x").unwrap();
        let owner = fs::metadata(dir.join("squash").join(made.file_name().unwrap())).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (65534, 65534));
        assert_eq!(fs::read(squash.join("private")).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let (all, said) = at("all", version);
        said.ok();
        fs::write(all.join(format!("f{version}")), "x").unwrap();
        let owner = fs::metadata(dir.join(format!("all/f{version}"))).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (1234, 4321));
        let (_, said) = at("denied", version);
        assert_eq!(said.code, 32, "{said:?}");
    }
    // SIGHUP makes an export writable on existing mounts. A file with a mistake changes nothing.
    let ro = server.mnt("mnt-ro-4.2");
    fs::write(&file, "/nonsense").unwrap();
    server.signal(libc::SIGHUP);
    pause(300);
    refused(fs::write(ro.join("f"), "new"));
    fs::write(&file, lines.replace("(ro,", "(rw,")).unwrap();
    server.signal(libc::SIGHUP);
    wait_for("the exports to be read again", 60, || fs::write(ro.join("f"), "new").is_ok());
    assert_eq!(fs::read_to_string(dir.join("ro/f")).unwrap(), "new");
    server.stop();
}

/// Opens connections that send invalid bytes until `over` is set. `all` counts them.
fn hostile(port: u16, seed: u64, over: &AtomicBool, all: &AtomicU64) {
    let mut held: Vec<TcpStream> = Vec::new();
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        count += 1;
        all.fetch_add(1, Ordering::Relaxed);
        let Ok(mut s) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        s.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        s.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let noise = bytes(seed << 20 | count, 4096);
        // A NULL call of NFSv3: mark, xid, CALL, version 2, program, version, procedure,
        // credentials.
        let call: Vec<u8> = [0x8000_0028_u32, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]
            .iter()
            .flat_map(|w| w.to_be_bytes())
            .collect();
        let _ = match count % 6 {
            0 => s.write_all(&noise),
            // Announces a record of 2 GiB.
            1 => s.write_all(&[0xff; 4]).and_then(|()| s.write_all(&noise)),
            2 => (0..1000).try_for_each(|_| s.write_all(&[0, 0, 0, 0])),
            // Sends a mark without its record, and keeps the connection open.
            3 => s.write_all(&[0x80, 0, 1, 0, 1, 2, 3]),
            // Sends calls, never reads the replies, and keeps the connection open.
            4 => (0..2_000).try_for_each(|_| s.write_all(&call)),
            _ => s.write_all(&call).and_then(|()| s.write_all(&noise)),
        };
        let mut buf = [0; 64];
        match count % 6 {
            3 | 4 if held.len() < 100 => held.push(s),
            _ => drop(s.read(&mut buf)),
        }
    }
}

/// Hostile clients neither delay another client for long nor exceed the memory limit.
/// Promise: S7
#[test]
#[ignore = "needs root"]
fn hostile_clients_harm_no_others() {
    let mut server = Serve::of_directory().with(&["--max-memory", "64", "--max-connections", "1000"]);
    server.serve();
    let mnt = server.mnt("mnt");
    server.mount("vers=4.2", &mnt).ok();
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let port = server.port;
    let bad: Vec<_> = (0..4)
        .map(|n| {
            let (over, count) = (over.clone(), count.clone());
            std::thread::spawn(move || hostile(port, n, &over, &count))
        })
        .collect();
    let mut slowest = Duration::ZERO;
    let began = now();
    let mut good = 0;
    while began.elapsed() < Duration::from_secs(6) || good < 20 || count.load(Ordering::Relaxed) <= 100 {
        let (from, body) = (now(), bytes(good, 50_000));
        let path = mnt.join(format!("f{}", good % 10));
        fs::write(&path, &body).unwrap();
        let mut file = File::open(&path).unwrap();
        let mut read = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut read).unwrap();
        assert!(read == body, "wrong bytes");
        slowest = slowest.max(from.elapsed());
        good += 1;
    }
    over.store(true, Ordering::Relaxed);
    bad.into_iter().for_each(|b| b.join().unwrap());
    assert!(slowest < Duration::from_secs(20), "a file took {slowest:?}");
    let peak = server.memory_peak_kib();
    assert!(peak < 512 << 10, "{peak} KiB of memory");
    let path: PathBuf = mnt.join("f0");
    assert_eq!(fs::read(path).unwrap().len(), 50_000);
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0, "the server ended in an orderly way");
}

/// A child process that is killed at the end of its test.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The TCP programs registered with rpcbind: number, version, port.
fn registered() -> Vec<(u32, u32, u16)> {
    let out = Command::new("rpcinfo").args(["-p", "127.0.0.1"]).output().unwrap();
    assert!(out.status.success(), "rpcinfo: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let words = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let tcp = words.filter(|w| w[2] == "tcp" && w[0] != "100000");
    let mut all: Vec<_> =
        tcp.map(|w| (w[0].parse().unwrap(), w[1].parse().unwrap(), w[3].parse().unwrap())).collect();
    all.sort_unstable();
    all
}

/// `hither serve` registers its ports with rpcbind and removes them at an orderly end.
/// Promise: S14
#[test]
#[ignore = "needs root, rpcbind and nfs-common"]
fn rpcbind_knows_the_ports() {
    let mut server = Serve::of_directory().with(&["--listen", "0.0.0.0:2050", "--options", "rw,insecure"]);
    sh("mount -t tmpfs -o mode=755 run /run && mkdir -p /run/hither /run/rpcbind && chown _rpc /run/rpcbind");
    server.serve();
    wait_for("a line about rpcbind", 60, || server.said().contains("rpcbind"));
    assert!(server.said().contains("cannot be queried"), "{}", server.said());
    assert_eq!(server.stop(), 0, "{}", server.complaints());

    let _rpcbind = Child(Command::new("rpcbind").arg("-f").spawn().expect("rpcbind"));
    wait_for("rpcbind", 60, || TcpStream::connect("127.0.0.1:111").is_ok());
    let mut all = vec![(100_003, 3, 2050), (100_003, 4, 2050), (100_005, 3, 2050)];
    all.extend([1, 3, 4].map(|version| (100_021, version, 2050)));
    server.serve();
    wait_for("registrations", 60, || registered() == all);
    assert!(run(Command::new("showmount").args(["-e", "127.0.0.1"])).out.contains('/'));
    fs::write(server.export("f"), "found").unwrap();
    let mnt = server.mnt("mnt");
    let mut mount = Command::new(HITHER);
    mount.args(["mount", "-o", "retry=0,vers=3", "127.0.0.1:/"]).arg(&mnt);
    run(&mut mount).ok();
    assert_eq!(fs::read_to_string(mnt.join("f")).unwrap(), "found");
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();

    // A second server leaves these entries alone, also at its end. With `off` it reports nothing.
    for (port, when, says) in [(2051, "auto", Some("of another server, on port 2050")), (2052, "off", None)] {
        let said = server.dir.path().join(format!("said-{port}"));
        let mut other = Command::new(HITHER);
        other.args(["serve", "--memory", "--rpcbind", when, "--listen", &format!("0.0.0.0:{port}")]);
        let state = server.dir.path().join(format!("state-{port}"));
        other.arg("--state-dir").arg(state).stdout(File::create(&said).unwrap());
        let mut other = Child(other.spawn().unwrap());
        let told = || fs::read_to_string(&said).unwrap();
        wait_for("the other server", 60, || TcpStream::connect(("127.0.0.1", port)).is_ok());
        if let Some(says) = says {
            wait_for("its line", 60, || told().contains(says));
        }
        // SAFETY: kill takes numbers. The child was not waited for yet.
        assert_eq!(unsafe { libc::kill(other.0.id() as libc::pid_t, libc::SIGTERM) }, 0);
        assert!(other.0.wait().unwrap().success());
        assert_eq!(told().contains("rpcbind"), says.is_some(), "{}", told());
        assert_eq!(registered(), all);
    }

    // A crash leaves entries. The next start takes them over, and an orderly end removes them.
    server.kill();
    assert_eq!(registered(), all);
    server.serve();
    let lines = || server.said().matches("rpcbind gives").count();
    wait_for("registrations", 60, || lines() == 2);
    assert_eq!(registered(), all);
    assert_eq!(server.stop(), 0, "{}", server.complaints());
    assert_eq!(registered(), []);
}

/// NFSv4 ACLs show and change the POSIX ACLs of the served file system.
/// Promise: S8e
#[test]
#[ignore = "needs root, acl, nfs4-acl-tools and util-linux"]
fn acls_match_served_file_system() {
    let mut server = Serve::of_directory();
    server.serve();
    let mnt = server.mnt("mnt");
    server.mount("vers=4.2,actimeo=0", &mnt).ok();
    let (here, there) = (mnt.join("f"), server.export("f"));
    fs::write(&here, "bytes").unwrap();
    fs::set_permissions(&here, Permissions::from_mode(0o640)).unwrap();
    let words = |line: &str, path: &Path| {
        let mut words = line.split(' ');
        run(Command::new(words.next().unwrap()).args(words).arg(path))
    };
    let getfacl = |path: &Path| words("getfacl -cEpn", path).ok().out;
    let reads =
        |uid: u32| words(&format!("setpriv --reuid {uid} --regid {uid} --clear-groups cat"), &here).code == 0;

    words("setfacl -m u:1001:rw,g:1002:r", &there).ok();
    let seen = words("nfs4_getfacl", &here).ok().out;
    assert!(seen.contains("A::1001:rwatcy\n") && seen.contains("A:g:1002:rtcy\n"), "{seen}");
    assert!(reads(1001) && reads(1002) && !reads(1003));

    words("nfs4_setfacl -a A::1003:rx", &here).ok();
    let set =
        "user::rw-\nuser:1001:rw-\nuser:1003:r-x\ngroup::r--\ngroup:1002:r--\nmask::rwx\nother::---\n\n";
    assert_eq!(getfacl(&there), set);
    assert!(reads(1003) && !reads(1004));
    assert_eq!(fs::metadata(&here).unwrap().mode() & 0o7777, 0o670, "the mask is the group's permissions");

    // A new mode restricts every entry that the mask covers, and keeps the list.
    fs::set_permissions(&here, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(getfacl(&there), set.replace("mask::rwx", "mask::---"));
    assert!(!reads(1001) && !reads(1003));

    // New objects in a directory start with the directory's default ACL.
    fs::create_dir(mnt.join("d")).unwrap();
    words("setfacl -d -m u:1001:rw", &server.export("d")).ok();
    let seen = words("nfs4_getfacl", &mnt.join("d")).ok().out;
    assert!(seen.contains("A:fdi:1001:"), "{seen}");
    fs::write(mnt.join("d/new"), "").unwrap();
    assert!(getfacl(&server.export("d/new")).contains("user:1001:rw-"));
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    assert_eq!(server.stop(), 0, "{}", server.complaints());
}

/// Large files are read unchanged by each version, whole and in parts, also after local changes.
/// Promise: S4
#[test]
#[ignore = "needs root"]
fn large_files_read_back_unchanged() {
    let mut server = Serve::of_directory();
    server.serve();
    let mounts = ["vers=3", "vers=4.1", "vers=4.2"].map(|options| {
        let mnt = server.mnt(options);
        server.mount(options, &mnt).ok();
        mnt
    });
    let file = server.export("large");
    for (round, len) in [5 << 20, (3 << 20) + 17, 70_000, (6 << 20) + 4095, 100].into_iter().enumerate() {
        // The first read may come from memory. Later rounds change the file in place.
        let mut content = bytes(round as u64, len);
        fs::write(&file, &content).unwrap();
        for at in [0, len / 2, len.saturating_sub(50)] {
            for mnt in &mounts {
                assert!(fs::read(mnt.join("large")).unwrap() == content, "{round} {at} {}", mnt.display());
                let opened = File::open(mnt.join("large")).unwrap();
                let mut piece = vec![0; len.min(300_000)];
                let from = (len - piece.len()) / 3;
                opened.read_exact_at(&mut piece, from as u64).unwrap();
                assert!(piece == content[from..from + piece.len()]);
            }
            let end = (at + 40).min(len);
            content[at..end].fill(at as u8 ^ round as u8);
            OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .write_all_at(&content[at..end], at as u64)
                .unwrap();
        }
    }
    for mnt in &mounts {
        sh(&format!("umount {}", mnt.display())).ok();
    }
}
