//! `close=delegated`: data written to a file under a write delegation of `hither serve` waits on
//! the client. Other clients that look at the file still see the data.
//!
//! The tests need root. Two mounts of one server are two clients. `HITHER_SEED` repeats a history.
//! `HITHER_STEPS` makes it longer.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests of processes wait in real time"
)]

mod common;

use common::serve::Serve;
use common::{HITHER, Random, daemons, hither, run, sh, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Options under which data is not sent because of its age, and names are always revalidated.
const MINE: &str = "vers=4.2,close=delegated,dirty-age=3600,lookupcache=none";

fn server() -> Serve {
    let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
    server.serve();
    server
}

/// A server of a tmpfs of this size, and the path of the tmpfs.
fn on_tmpfs(size: &str) -> (Serve, String) {
    let mut server = Serve::of_directory();
    let export = server.export("").display().to_string();
    sh(&format!("mount -t tmpfs -o size={size},mode=755 none {export}")).ok();
    server.serve();
    (server, export)
}

fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// Length of the file at the server. stat(2) on the server makes no client send data.
fn at_server(server: &Serve, name: &str) -> u64 {
    fs::metadata(server.export(name)).unwrap().len()
}

/// Writes new files until the data of one waits on the client after its close. Returns the name of
/// that file. For the first files the server does not know yet whether it can call its client.
fn delayed(server: &Serve, mnt: &Path, prefix: &str, body: &str) -> String {
    let (mut n, mut name) = (0, String::new());
    wait_for("a close that does not wait", 60, || {
        n += 1;
        name = format!("{prefix}{n}");
        fs::write(mnt.join(&name), body).unwrap();
        at_server(server, &name) == 0
    });
    name
}

/// A way to look at a file at the server, and its result.
type Look<'a> = (&'a str, &'a dyn Fn(&str) -> String);

/// Other clients of each version and programs on the server see delayed data. `hither sync`, fsync
/// and umount send it.
/// Promise: 6a'
#[test]
#[ignore = "needs root"]
fn delayed_data_is_visible_to_others() {
    let server = server();
    let (a, b, c) = (server.mnt("a"), server.mnt("b"), server.mnt("c"));
    server.mount(MINE, &a).ok();
    server.mount("vers=4.2,lookupcache=none", &b).ok();
    server.mount("vers=3,lookupcache=none", &c).ok();
    let looks: [Look<'_>; 5] = [
        ("open", &|name| fs::read_to_string(b.join(name)).unwrap()),
        ("stat", &|name| "x".repeat(fs::metadata(b.join(name)).unwrap().len() as usize)),
        ("v3", &|name| fs::read_to_string(c.join(name)).unwrap()),
        ("local", &|name| fs::read_to_string(server.export(name)).unwrap()),
        ("sync", &|name| {
            hither(&["sync", a.to_str().unwrap()]).ok();
            "x".repeat(at_server(&server, name) as usize)
        }),
    ];
    let body = "x".repeat(10_000);
    for (how, look) in looks {
        let name = delayed(&server, &a, how, &body);
        assert_eq!(look(&name), body, "{how}");
        assert_eq!(fs::read_to_string(a.join(&name)).unwrap(), body, "{how}: here");
    }
    // fsync(2) waits for the server.
    let name = delayed(&server, &a, "fsync", &body);
    File::options().write(true).open(a.join(&name)).unwrap().sync_all().unwrap();
    assert_eq!(at_server(&server, &name), 10_000);
    // One of two names is removed. Another client still sees the data by the other name.
    let name = delayed(&server, &a, "linked", &body);
    fs::hard_link(a.join(&name), a.join("other name")).unwrap();
    let twice = fs::read_to_string(a.join(&name)).unwrap() + "more";
    let mut file = File::options().append(true).open(a.join(&name)).unwrap();
    file.write_all(b"more").unwrap();
    drop(file);
    fs::remove_file(a.join(&name)).unwrap();
    assert_eq!(fs::read_to_string(b.join("other name")).unwrap(), twice);
    // A removed file is not sent. The unmount sends the other files.
    let gone = delayed(&server, &a, "gone", &body);
    fs::remove_file(a.join(&gone)).unwrap();
    assert!(!server.export(&gone).exists());
    let last = delayed(&server, &a, "last", &body);
    umount(&a);
    assert_eq!(at_server(&server, &last), 10_000);
    umount(&b);
    umount(&c);
}

/// A delegation counter of the mount.
fn counted(mnt: &Path, name: &str) -> u64 {
    let said = run(Command::new(HITHER).arg("stat").arg("--json").arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    json["layers"]["leases"][name].as_u64().unwrap()
}

/// A value of the server's metrics page.
fn figure(socket: &Path, name: &str) -> u64 {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let line =
        page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.trim().parse().unwrap()
}

/// A client that only stats a file under a write delegation sees all bytes of the writer. It
/// recalls no delegation. A client that reads the file gets the data.
/// Promise: S10c
#[test]
#[ignore = "needs root"]
fn getattr_keeps_write_delegation() {
    let mut server = Serve::of_directory();
    let figures = server.mnt("figures").join("socket");
    server = server.with(&["--max-delegations", "1000", "--metrics", figures.to_str().unwrap()]);
    server.serve();
    let (a, b, c) = (server.mnt("a"), server.mnt("b"), server.mnt("c"));
    server.mount(MINE, &a).ok();
    server.mount("vers=4.2,consistency=strict", &b).ok();
    server.mount("vers=3,consistency=strict", &c).ok();
    let name = delayed(&server, &a, "f", "begun");
    let file = File::options().append(true).open(a.join(&name)).unwrap();
    let recalls = counted(&a, "recalls");
    assert_eq!(
        counted(&a, "delegations_write"),
        figure(&figures, "hither_server_delegations{kind=\"write\"}")
    );
    let (began, done) = (Arc::new(AtomicU64::new(5)), Arc::new(AtomicU64::new(5)));
    let writer = std::thread::spawn({
        let (began, done, mut file) = (began.clone(), done.clone(), file.try_clone().unwrap());
        move || {
            for i in 0..300_u64 {
                let bytes = vec![b'x'; 1 + i as usize % 7];
                let len = began.fetch_add(bytes.len() as u64, SeqCst) + bytes.len() as u64;
                file.write_all(&bytes).unwrap();
                done.store(len, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let mut seen = Vec::new();
    let mut look = |i: usize| {
        let mnt = if i % 4 == 3 { &c } else { &b };
        let at_least = done.load(SeqCst);
        let found = fs::metadata(mnt.join(&name)).unwrap();
        let at_most = began.load(SeqCst);
        assert!((at_least..=at_most).contains(&found.len()), "{at_least}..{at_most}: {}", found.len());
        seen.push((found.len(), found.modified().unwrap()));
    };
    (0..100).for_each(&mut look);
    writer.join().unwrap();
    (100..104).for_each(&mut look);
    assert!(seen.is_sorted() && seen.is_sorted_by_key(|(_, time)| *time), "{seen:?}");
    let lengths: BTreeSet<u64> = seen.iter().map(|(len, _)| *len).collect();
    assert!(lengths.len() > 10, "{lengths:?}");
    // The writer neither sent data nor gave the delegation back.
    assert_eq!((at_server(&server, &name), counted(&a, "recalls")), (0, recalls));
    let asked = counted(&a, "getattrs");
    assert!(asked >= 104, "{asked}");
    assert_eq!(figure(&figures, "hither_server_callbacks_total{call=\"getattr\"}"), asked);
    let whole = format!("begun{}", "x".repeat(done.load(SeqCst) as usize - 5));
    assert_eq!(fs::read_to_string(b.join(&name)).unwrap(), whole);
    assert_eq!(counted(&a, "recalls"), recalls + 1);
    assert!(figure(&figures, "hither_server_callbacks_total{call=\"recall\"}") > recalls);
    let last = fs::metadata(b.join(&name)).unwrap();
    let shown = seen.last().unwrap();
    assert!(last.len() == shown.0 && last.modified().unwrap() >= shown.1, "{last:?} {seen:?}");
    drop(file);

    // Attribute changes that wait together with data are seen as well.
    let name = delayed(&server, &a, "mode", "begun");
    let before = fs::metadata(b.join(&name)).unwrap().permissions().mode() & 0o777;
    let mut file = File::options().append(true).open(a.join(&name)).unwrap();
    file.write_all(b"more").unwrap();
    file.set_permissions(Permissions::from_mode(before | 0o111)).unwrap();
    let found = fs::metadata(b.join(&name)).unwrap();
    assert_eq!((found.len(), found.permissions().mode() & 0o777), (9, before | 0o111));
    drop(file);
    [&a, &b, &c].into_iter().for_each(|mnt| umount(mnt));
}

/// With a journal, fsync and close wait only for the journal. A killed daemon loses none of the
/// journaled data.
/// Promise: 6a'
#[test]
#[ignore = "needs root"]
fn journaled_writes_survive_daemon_kill() {
    let server = server();
    let (a, b) = (server.mnt("a"), server.mnt("b"));
    let journal = server.mnt("journal");
    let options = format!("{MINE},writeback=journal,journal-dir={}", journal.display());
    server.mount(&options, &a).ok();
    server.mount("vers=4.2,lookupcache=none", &b).ok();
    let name = delayed(&server, &a, "f", "closed");
    assert_eq!(fs::read_to_string(b.join(&name)).unwrap(), "closed");

    let closed = delayed(&server, &a, "g", "closed");
    let synced = delayed(&server, &a, "h", "");
    let file = File::create(a.join(&synced)).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    let here = at_server(&server, &synced) == 0;
    for pid in daemons(&a) {
        // SAFETY: kill takes numbers.
        assert_eq!(unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) }, 0);
    }
    wait_for("the daemon's end", 60, || daemons(&a).is_empty());
    drop(file);
    run(Command::new("umount").arg("-l").arg(&a)).ok();
    server.mount(&options, &a).ok();
    umount(&a);
    assert_eq!(fs::read_to_string(b.join(&closed)).unwrap(), "closed");
    assert_eq!(fs::read_to_string(b.join(&synced)).unwrap(), "synced");
    assert!(here, "fsync has waited for the server");
    umount(&b);
}

struct World {
    server: Serve,
    /// The directories of two mounts, and the directory at the server.
    dirs: [PathBuf; 3],
    random: Random,
    files: BTreeMap<String, Vec<u8>>,
    written: usize,
    log: Vec<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        for mnt in &self.dirs[..2] {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

impl World {
    /// Programs on the server only look at files. A client that has the file closed does not learn
    /// of their changes.
    fn step(&mut self) {
        let what = self.random.below(14);
        let who = self.random.below(if what < 5 { 3 } else { 2 }) as usize;
        let (one, other) = (format!("f{}", self.random.below(6)), format!("f{}", self.random.below(6)));
        let [path, to] = [&one, &other].map(|name| self.dirs[who].join(name));
        self.log.push(format!("{what} {one} {other} by {who}"));
        self.written += 1;
        let body =
            vec![b'a' + (self.written % 26) as u8; 1 + self.written + 4096 * self.random.below(3) as usize];
        match what {
            0..5 => {
                let seen = fs::read(&path).ok();
                let want = self.files.get(&one);
                let tail = self.log.len().saturating_sub(30);
                let lengths = (seen.as_ref().map(Vec::len), want.map(Vec::len));
                assert_eq!(seen.as_ref(), want, "{one} by {who}: {lengths:?}, {:?}", &self.log[tail..]);
            }
            5..9 => {
                fs::write(&path, &body).unwrap();
                self.files.insert(one, body);
            }
            9 => {
                let mut file = File::options().append(true).create(true).open(&path).unwrap();
                file.write_all(&body).unwrap();
                drop(file);
                self.files.entry(one).or_default().extend(&body);
            }
            10 => {
                let gone = fs::remove_file(&path).is_ok();
                assert_eq!(self.files.remove(&one).is_some(), gone, "{:?}", self.log.last());
            }
            11 => {
                let moved = fs::rename(&path, &to).is_ok();
                let was = self.files.get(&one).cloned();
                assert_eq!(was.is_some(), moved, "{:?}", self.log.last());
                if let (Some(was), true) = (was, one != other) {
                    self.files.remove(&one);
                    self.files.insert(other, was);
                }
            }
            12 => {
                let Ok(file) = File::options().write(true).open(&path) else { return };
                file.set_len(3).unwrap();
                drop(file);
                self.files.get_mut(&one).unwrap().resize(3, 0);
            }
            _ => std::thread::sleep(Duration::from_millis(self.random.below(300))),
        }
    }
}
/// At a full server, `umount` fails when data is unsent. With a journal nothing is lost: the next
/// mount fails while the server is full, and sends everything when it is not.
/// Promise: 6c, 6g, 27
#[test]
#[ignore = "needs root"]
fn full_server_at_umount_is_told() {
    for journal in [false, true] {
        let (mut server, export) = on_tmpfs("2m");
        let (mnt, dir) = (server.mnt("mnt"), server.mnt("journal"));
        let options = if journal {
            format!("vers=4.2,writeback=journal,exclusive,creates=here,journal-dir={}", dir.display())
        } else {
            "vers=4.2,close=lazy".into()
        };
        server.mount(&options, &mnt).ok();
        // The first file teaches the mount the owner of new objects.
        fs::write(mnt.join("first"), "").unwrap();
        run(Command::new(HITHER).arg("sync").arg(&mnt)).ok();
        let bytes = vec![7; 50_000];
        (0..60).for_each(|n| fs::write(mnt.join(format!("f{n}")), &bytes).unwrap());
        fs::create_dir(mnt.join("dir")).unwrap();
        let ended = run(Command::new(HITHER).arg("umount").arg(&mnt));
        assert!(ended.code != 0 && ended.err.contains("is unmounted, but not everything"), "{ended:?}");
        assert_eq!(ended.err.contains("the journal keeps the rest"), journal, "{ended:?}");
        if journal {
            let refused = server.mount(&options, &mnt);
            assert!(refused.code != 0 && refused.err.contains("cannot be sent now"), "{refused:?}");
            sh(&format!("mount -o remount,size=20m {export}")).ok();
            server.mount(&options, &mnt).ok();
            (0..60).for_each(|n| assert_eq!(fs::read(server.export(&format!("f{n}"))).unwrap(), bytes));
            assert!(server.export("dir").is_dir());
            umount(&mnt);
        }
        assert_eq!(server.stop(), 0);
        sh(&format!("umount {export}")).ok();
    }
}

/// Files with data in the journal when the daemon is killed have all of it after the next mount
/// that succeeds. The server has coarse file times. It may be full meanwhile, and refuse mounts. No
/// other client changes anything, so there is no conflict.
/// Promise: 6c, 6d
#[test]
#[ignore = "needs root"]
fn journal_survives_kill_and_full_server() {
    const WAITING: &str = "vers=4.2,dirty-age=600";
    let modes = ["durability=local", "durability=local-names", "writeback=journal,exclusive"];
    for (mode, refusals) in modes.into_iter().flat_map(|mode| [(mode, 0), (mode, 2)]) {
        let (mut server, export) = on_tmpfs("4m");
        let (mnt, dir) = (server.mnt("mnt"), server.mnt("journal"));
        let options = format!("{WAITING},{mode},journal-dir={}", dir.display());
        server.mount(&options, &mnt).ok();
        let body = |n: usize| vec![n as u8 + 1; 50_000 + n];
        for n in 0..8 {
            let mut file = File::create(mnt.join(format!("f{n}"))).unwrap();
            file.write_all(&body(n)).unwrap();
            file.sync_all().unwrap();
        }
        sh(&format!("kill -9 {}; umount -l {}", daemons(&mnt)[0], mnt.display())).ok();
        wait_for("the end of the daemon", 60, || daemons(&mnt).is_empty());
        if refusals > 0 {
            assert_ne!(sh(&format!("cat /dev/zero > {export}/ballast")).code, 0);
        }
        for _ in 0..refusals {
            let refused = server.mount(&options, &mnt);
            assert!(refused.code != 0 && refused.err.contains("cannot be sent now"), "{mode}: {refused:?}");
        }
        let _ = fs::remove_file(server.export("ballast"));
        server.mount(&options, &mnt).ok();
        let conflicts = hither(&["conflicts", "list"]).out;
        for n in 0..8 {
            let there = fs::read(mnt.join(format!("f{n}"))).unwrap();
            assert!(there == body(n), "{mode}, {refusals}: f{n} has {} bytes; {conflicts}", there.len());
        }
        umount(&mnt);
        assert_eq!(server.stop(), 0);
        sh(&format!("umount {export}")).ok();
    }
}

/// An orderly end of the mount leaves no hidden name of a file that was removed and then closed,
/// however soon it follows.
/// Promise: 13, 27
#[test]
#[ignore = "needs root"]
fn unmount_leaves_no_hidden_names() {
    let mut server = Serve::of_directory();
    server.serve();
    let (mnt, journal) = (server.mnt("mnt"), server.mnt("journal"));
    let local = format!("vers=4.2,durability=local-names,journal-dir={}", journal.display());
    for options in ["vers=4.2", "vers=4.2,close=lazy", "vers=3,close=lazy", &local] {
        for round in 0..5 {
            server.mount(options, &mnt).ok();
            let dir = format!("{} {round}", &options[..14.min(options.len())]);
            fs::create_dir(mnt.join(&dir)).unwrap();
            let mut files: Vec<File> = (0..6)
                .map(|n| {
                    let path = mnt.join(format!("{dir}/f{n}"));
                    let mut file = File::create(&path).unwrap();
                    file.write_all(&[7; 5000]).unwrap();
                    if n % 2 == 0 {
                        file.sync_all().unwrap();
                        fs::hard_link(&path, path.with_extension("other")).unwrap();
                        fs::remove_file(&path).unwrap();
                    }
                    file
                })
                .collect();
            files.iter_mut().for_each(|file| file.write_all(b"more").unwrap());
            drop(files);
            umount(&mnt);
            let mut names: Vec<String> = fs::read_dir(server.export(&dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            assert_eq!(names, ["f0.other", "f1", "f2.other", "f3", "f4.other", "f5"], "{options}, {round}");
        }
    }
    assert_eq!(server.stop(), 0);
}

/// Random histories of two clients that both delay writes, while the server is killed now and then.
/// An open sees all data that was closed before.
/// Promise: 6a'
#[test]
#[ignore = "needs root"]
fn open_sees_closed_data() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let steps = number("HITHER_STEPS").unwrap_or(400);
    println!("HITHER_SEED={seed}");
    history(seed, steps, false);
    history(seed, steps, true);
}

fn history(seed: u64, steps: u64, journal: bool) {
    let server = server();
    let dirs = [server.mnt("a"), server.mnt("b"), server.export("")];
    for mnt in &dirs[..2] {
        let dir = mnt.with_extension("journal");
        let journal =
            if journal { format!(",writeback=journal,journal-dir={}", dir.display()) } else { String::new() };
        server.mount(&format!("{MINE}{journal}"), mnt).ok();
    }
    let waits = delayed(&server, &dirs[0], "first", "x");
    let mut world =
        World { server, dirs, random: Random(seed), files: BTreeMap::new(), written: 0, log: Vec::new() };
    assert_eq!(fs::read_to_string(world.dirs[1].join(waits)).unwrap(), "x");
    for step in 1..=steps {
        if step % 150 == 0 {
            world.log.push("the server is killed".into());
            world.server.kill();
            world.server.serve();
            // The server delays local programs only for delegations that a client has reclaimed.
            // These calls make the clients reclaim first.
            for mnt in &world.dirs[..2] {
                fs::metadata(mnt.join("no such file")).unwrap_err();
            }
        }
        world.step();
    }
    for mnt in &world.dirs[..2] {
        let said = hither(&["stat", "--json", mnt.to_str().unwrap()]).ok();
        let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let lazy = json["layers"]["dirty"]["lazy_closes"].as_u64().unwrap();
        assert!(lazy > steps / 40, "only {lazy} closes did not wait");
        umount(mnt);
    }
    for (name, body) in &world.files {
        assert_eq!(&fs::read(world.dirs[2].join(name)).unwrap(), body, "{name} at the server");
    }
}

/// A write by another user to a set-id file clears the bits before write(2) returns, on every mount
/// that delays writes. So nobody gains rights by changing such a program.
/// Promise: 19a
#[test]
#[ignore = "needs root"]
fn write_clears_set_id_at_once() {
    const GROUP: u32 = 12_345;
    let journal = |server: &Serve, more: &str| {
        format!("writeback=journal,journal-dir={}{more}", server.dir.path().join("journal").display())
    };
    for version in ["4.2", "3"] {
        for more in ["", ",exclusive", ",exclusive,creates=here", ",close=delegated"] {
            let server = server();
            let mnt = server.mnt("mnt");
            fs::set_permissions(server.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            server.mount(&format!("vers={version},{}", journal(&server, more)), &mnt).ok();
            let program = mnt.join("program");
            fs::copy("/usr/bin/id", &program).unwrap();
            std::os::unix::fs::chown(&program, Some(0), Some(GROUP)).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4775)).unwrap();
            fs::metadata(&program).unwrap();
            let script =
                format!("dd if=/usr/bin/id of={0} conv=notrunc status=none && {0} -u", program.display());
            let group = GROUP.to_string();
            let said = run(Command::new("setpriv").args([
                "--reuid",
                &group,
                "--regid",
                &group,
                "--clear-groups",
                "sh",
                "-c",
                &script,
            ]))
            .ok();
            assert_eq!(said.out.trim(), group, "{version}{more}: the program ran as another user");
            let there = fs::metadata(server.export("program")).unwrap().permissions().mode();
            assert_eq!(there & 0o7777, 0o775, "{version}{more}: at the server");
            umount(&mnt);
        }
    }
}
