//! New names that another client makes in directories with complete cached listings. A program
//! finds such a name although it never looked the name up before.
//!
//! The tests need root and nfs-ganesha: `cargo test -p hither --test absence -- --include-ignored`.
//! `HITHER_SEED` repeats a history. `HITHER_STEPS` makes it longer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, Random, hither, is_mounted, pause};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for which a name that was never looked up counts as absent.
const LIMIT: Duration = Duration::from_secs(1);

/// Servers and the options of their mounts.
const CASES: [(&str, &str); 7] = [
    ("ganesha", "vers=4.2"),
    ("ganesha", "vers=4.1"),
    ("ganesha", "vers=3"),
    ("hither", "vers=4.2"),
    ("hither", "vers=3"),
    ("hither", "vers=nqnfs"),
    ("hither", "vers=4.2,subtree=other:bounded=60"),
];

enum Server {
    Ganesha(Ganesha),
    Hither(Serve),
}

impl Server {
    fn start(kind: &str) -> Self {
        if kind == "ganesha" {
            return Self::Ganesha(Ganesha::start());
        }
        let mut server = Serve::of_directory().with(&["--nqnfs"]);
        server.serve();
        Self::Hither(server)
    }

    /// Path of a served file in the server's own file system.
    fn export(&self, name: &str) -> PathBuf {
        match self {
            Self::Ganesha(ganesha) => ganesha.export(name),
            Self::Hither(server) => server.export(name),
        }
    }

    /// Mounts the server on a directory of this name.
    fn mount(&self, options: &str, name: &str) -> Mount {
        let mnt = match self {
            Self::Ganesha(ganesha) => ganesha.dir.path().join(name),
            Self::Hither(server) => server.mnt(name),
        };
        let _ = fs::create_dir(&mnt);
        match self {
            Self::Ganesha(ganesha) => ganesha.mount(options, &mnt).ok(),
            Self::Hither(server) => server.mount(options, &mnt).ok(),
        };
        Mount(mnt)
    }
}

struct Mount(PathBuf);

impl Mount {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn calls(&self, operations: &[&str]) -> u64 {
        let said = hither(&["stat", "--json", self.0.to_str().unwrap()]).ok();
        let report: Value = serde_json::from_str(&said.out).unwrap();
        let of = |op: &Value| operations.contains(&op["name"].as_str().unwrap());
        let all = report["operations"].as_array().unwrap().iter().filter(|op| of(op));
        all.map(|op| op["calls"].as_u64().unwrap()).sum()
    }

    fn unmount(self) {
        hither(&["umount", self.0.to_str().unwrap()]).ok();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

fn is_there(path: &Path) -> bool {
    match fs::File::open(path) {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::NotFound => false,
        Err(e) => panic!("{}: {e}", path.display()),
    }
}

/// A random history of two mounts. Each mount makes files and directories under new names and lists
/// directories. Each also opens files that the other mount made more than a second before. These
/// files are found, also when a look at once after their creation did not find them.
/// Promise: 7'
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn unasked_names_are_found() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    println!("HITHER_SEED={seed}");
    let steps = number("HITHER_STEPS").unwrap_or(24);
    let mut server: Option<(&str, Server)> = None;
    for (kind, options) in CASES {
        if server.as_ref().is_none_or(|(running, _)| *running != kind) {
            drop(server.take());
            server = Some((kind, Server::start(kind)));
        }
        let mounts = ["a", "b"].map(|name| server.as_ref().unwrap().1.mount(options, name));
        let mut random = Random(seed);
        let root = format!("of {}", options.replace(['=', ',', ':'], " "));
        fs::create_dir(mounts[0].path(&root)).unwrap();
        let mut dirs = vec![root];
        let mut made: VecDeque<(usize, String, Instant)> = VecDeque::new();
        for step in 0..steps {
            let who = random.below(2) as usize;
            let dir = dirs[random.below(dirs.len() as u64) as usize].clone();
            let name = format!("{dir}/n{step}");
            match random.below(8) {
                0 if dirs.len() < 3 => {
                    // Both mounts know this name.
                    fs::create_dir(mounts[who].path(&name)).unwrap();
                    pause(LIMIT.as_millis() as u64);
                    assert!(mounts[1 - who].path(&name).is_dir(), "{kind} {options}: {name}");
                    dirs.push(name);
                }
                0..=3 => {
                    fs::write(mounts[who].path(&name), &name).unwrap();
                    if random.below(2) == 0 {
                        // An answer from a recent confirmation is no request of the name.
                        let _ = is_there(&mounts[1 - who].path(&name));
                    }
                    made.push_back((1 - who, name, Instant::now()));
                }
                4 => drop(fs::read_dir(mounts[who].path(&dir)).unwrap().count()),
                5 => assert!(!is_there(&mounts[who].path(&format!("{name} is nowhere")))),
                _ => {
                    let Some((who, name, when)) = made.pop_front() else { continue };
                    let left = LIMIT.saturating_sub(when.elapsed());
                    pause(left.as_millis() as u64 + 1);
                    assert!(is_there(&mounts[who].path(&name)), "{kind} {options}: {name}, step {step}");
                }
            }
        }
        mounts.into_iter().for_each(Mount::unmount);
    }
}

/// Requests that look for names.
const QUESTIONS: &[&str] = &["LOOKUP", "GETATTR", "READDIR", "READDIRPLUS", "ACCESS"];

/// Time within which no other cached state expires.
const SOON: Duration = Duration::from_secs(25);

/// A burst of lookups of absent names costs about one request a second, also when it is repeated.
/// Names that a call creates cost no LOOKUP.
/// Promise: 7'
#[test]
#[ignore = "needs root"]
fn lookup_burst_costs_few_requests() {
    let mut server = Serve::of_directory();
    server.serve();
    let server = Server::Hither(server);
    for options in ["vers=4.2", "vers=3"] {
        let (a, b) = (server.mount(options, "a"), server.mount(options, "b"));
        let dir = format!("dir {}", &options[5..]);
        fs::create_dir(b.path(&dir)).unwrap();
        (0..20).for_each(|n| fs::write(b.path(&format!("{dir}/f{n}")), "").unwrap());
        // A directory that changed a moment ago may change again without a new time stamp. No
        // absence is inferred from such a directory.
        pause(6_000);
        let began = Instant::now();
        assert_eq!(fs::read_dir(a.path(&dir)).unwrap().count(), 20);
        let looks = |operations: &[&str]| {
            pause(1_100);
            let (began, before) = (Instant::now(), a.calls(operations));
            (0..200).for_each(|n| assert!(!is_there(&a.path(&format!("{dir}/none{n}")))));
            (a.calls(operations) - before, began.elapsed().as_secs())
        };
        let (asked, seconds) = looks(QUESTIONS);
        assert!(asked <= 3 * (1 + seconds), "{options}: {asked} in {seconds} s");
        // The first name asked the server.
        pause(1_100);
        let before = a.calls(&["LOOKUP"]);
        assert!(!is_there(&a.path(&format!("{dir}/none0"))));
        let asked = a.calls(&["LOOKUP"]) - before;
        assert!(asked == 0 || began.elapsed() > SOON, "{options}: {asked} for a name that was asked for");
        // The other names were answered from its confirmation, and count as never requested.
        let (asked, seconds) = looks(&["LOOKUP"]);
        assert!(asked <= 1 + seconds || began.elapsed() > SOON, "{options}: {asked} in {seconds} s again");
        pause(1_100);
        let before = a.calls(&["LOOKUP"]);
        for n in 0..20 {
            let (file, sub) = (a.path(&format!("{dir}/new{n}")), a.path(&format!("{dir}/sub{n}")));
            fs::write(&file, "").unwrap();
            fs::create_dir(&sub).unwrap();
            fs::rename(&file, sub.join("moved")).unwrap();
        }
        let asked = a.calls(&["LOOKUP"]) - before;
        // With NFSv3 this server does not return the directory's attributes after a change. The
        // mount therefore forgets the names of the directory.
        let forgotten = options == "vers=3" || began.elapsed() > SOON;
        assert!(asked == 0 || forgotten, "{options}: {asked} for names that are made");
        [a, b].into_iter().for_each(Mount::unmount);
    }
}

/// The lookups of "page open": 15 absent names in each of 40 directories that were listed before.
/// The requests cover many directories at once. Prints their cost:
/// `cargo test -p hither --test absence -- --include-ignored --nocapture page_open`.
#[test]
#[ignore = "needs root"]
fn page_open_batches_directories() {
    let mut server = Serve::of_directory();
    server.serve();
    for d in 0..40 {
        fs::create_dir(server.export(&format!("d{d}"))).unwrap();
        fs::write(server.export(&format!("d{d}/file")), "").unwrap();
    }
    pause(6_000);
    let server = Server::Hither(server);
    for (options, per_second) in [("vers=4.2", 8), ("vers=3", 80)] {
        let m = server.mount(options, "a");
        let page = |round: &str| {
            let (began, before) = (Instant::now(), m.calls(QUESTIONS));
            for name in (0..40).flat_map(|d| (0..15).map(move |n| format!("d{d}/{round}{n}"))) {
                assert!(!is_there(&m.path(&name)));
            }
            (m.calls(QUESTIONS) - before, 1 + began.elapsed().as_secs())
        };
        let (cold, _) = page("first");
        pause(1_100);
        let (same, _) = page("first");
        pause(1_100);
        let (others, seconds) = page("second");
        println!(
            "{options}: {cold} messages cold, {same} for the same names, {others} in {seconds} s for others"
        );
        assert!(others <= per_second * seconds, "{options}: {others} in {seconds} s");
        m.unmount();
    }
}

/// Ways to make a name that fail if the name exists.
const WAYS: [&str; 5] = ["open", "mkdir", "symlink", "link", "mknod"];

/// Makes a name in one of [`WAYS`]. `spare` is another file in the same directory.
fn make(way: &str, at: &Path, spare: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, linkat, mknodat};
    match way {
        "open" => fs::File::options().write(true).create_new(true).open(at).map(drop),
        "mkdir" => fs::create_dir(at),
        "symlink" => std::os::unix::fs::symlink("target", at),
        "link" => Ok(linkat(CWD, spare, CWD, at, rustix::fs::AtFlags::empty())?),
        _ => Ok(mknodat(CWD, at, FileType::Fifo, Mode::RUSR, 0)?),
    }
}

/// A call that makes a name finds out that another client has removed the name. So a lock that is a
/// file or a directory is free when its holder has removed it.
/// Promise: 8
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn removed_names_can_be_made() {
    let mut server: Option<(&str, Server)> = None;
    for (kind, options) in CASES {
        if server.as_ref().is_none_or(|(running, _)| *running != kind) {
            drop(server.take());
            server = Some((kind, Server::start(kind)));
        }
        let [a, b] = ["a", "b"].map(|name| server.as_ref().unwrap().1.mount(options, name));
        let root = format!("made {}", options.replace(['=', ',', ':'], " "));
        fs::create_dir_all(a.path(&format!("{root}/deep"))).unwrap();
        // The kernel keeps no names of a directory that not everybody may search.
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(a.path(&format!("{root}/deep")), fs::Permissions::from_mode(0o700)).unwrap();
        // The absence of names that were never looked up.
        pause(LIMIT.as_millis() as u64);
        let mut wrong = Vec::new();
        let dirs = [root.clone(), format!("{root}/deep")];
        let names: Vec<_> = dirs.iter().flat_map(|dir| WAYS.map(|way| (dir, way))).collect();
        let name = |(dir, way): (&String, &str)| format!("{dir}/{way}");
        let spare = |(dir, way): (&String, &str), who: &Mount| who.path(&format!("{dir}/for {way}"));
        for &one in &names {
            fs::write(spare(one, &a), "").unwrap();
            make(one.1, &a.path(&name(one)), &spare(one, &a)).unwrap();
        }
        // The second mount looks the names up, tries to make them, and keeps them.
        pause(LIMIT.as_millis() as u64);
        for &one in &names {
            fs::symlink_metadata(b.path(&name(one))).unwrap();
            fs::write(spare(one, &b), "").unwrap();
            let refused = make(one.1, &b.path(&name(one)), &spare(one, &b)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{kind} {options}: {}", name(one));
        }
        // A thread that made no name a moment ago is not looked at.
        pause(5);
        for &one in &names {
            let gone = if one.1 == "mkdir" { fs::remove_dir } else { fs::remove_file };
            gone(a.path(&name(one))).unwrap();
            if let Err(e) = make(one.1, &b.path(&name(one)), &spare(one, &b)) {
                wrong.push(format!("{kind} {options}: {}: {e}", name(one)));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        [a, b].into_iter().for_each(Mount::unmount);
    }
}

/// A call on a known name finds that another client has removed the file. The thread then looks for
/// the name again and again, and makes no other call. It finds the name soon after the other client
/// has made it.
/// Promise: 8
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn name_is_found_after_failed_call() {
    const SOON: Duration = Duration::from_secs(5);
    for (kind, options) in CASES.iter().filter(|(_, options)| !options.contains("subtree")) {
        let server = Server::start(kind);
        let [a, b] = ["a", "b"].map(|name| server.mount(&format!("{options},actimeo=1"), name));
        for round in 0..2 {
            let (dir, file) = (format!("d{round}"), format!("d{round}/f"));
            fs::create_dir(a.path(&dir)).unwrap();
            fs::write(a.path(&file), "first").unwrap();
            assert!(b.path(&file).exists());
            fs::remove_file(a.path(&file)).unwrap();
            let failed = fs::set_permissions(b.path(&file), PermissionsExt::from_mode(0o600)).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::NotFound, "{kind}, {options}");
            fs::write(a.path(&file), "second").unwrap();
            let began = Instant::now();
            while !b.path(&file).exists() {
                assert!(began.elapsed() < SOON, "{kind}, {options}, round {round}: the name is absent");
                pause(100);
            }
            println!("{kind}, {options}: found after {:?}", began.elapsed());
        }
        a.unmount();
        b.unmount();
    }
}

/// A call of a thread finds that another client has replaced its object. The next calls of the
/// thread are not taken for that call: an open finds the file that has the name now, and a change
/// of a removed file fails.
/// Promise: 7
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn next_calls_are_calls_of_their_own() {
    for (kind, options) in CASES.iter().filter(|(_, options)| !options.contains("subtree")) {
        let case = format!("{kind}, {options}");
        let server = Server::start(kind);
        let [a, b] = ["a", "b"].map(|name| server.mount(options, name));
        let replace = |name: &str, text: &str| {
            fs::write(a.path("new"), text).unwrap();
            fs::rename(a.path("new"), a.path(name)).unwrap();
        };
        let read = |name: &str| fs::read_to_string(b.path(name)).unwrap();
        let names = ["one", "two", "three"];
        names.iter().for_each(|name| fs::write(a.path(name), "first").unwrap());
        pause(LIMIT.as_millis() as u64);
        names.iter().for_each(|name| assert_eq!(read(name), "first"));
        // A walk that ends at a directory.
        fs::remove_file(a.path("one")).unwrap();
        fs::create_dir(a.path("one")).unwrap();
        // The old file stays at the server.
        fs::hard_link(a.path("two"), a.path("two.old")).unwrap();
        replace("two", "second");
        assert!(fs::File::open(b.path("one")).unwrap().metadata().unwrap().is_dir(), "{case}");
        assert_eq!(read("two"), "second", "{case}");
        // A change after a change.
        let change = |mode| fs::set_permissions(b.path("three"), PermissionsExt::from_mode(mode));
        replace("three", "second");
        change(0o640).unwrap_or_else(|e| panic!("{case}: {e}"));
        let mode = fs::metadata(server.export("three")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{case}");
        fs::remove_file(a.path("three")).unwrap();
        let failed = change(0o600).expect_err("the file is gone");
        assert_eq!(failed.kind(), ErrorKind::NotFound, "{case}");
        a.unmount();
        b.unmount();
    }
}
