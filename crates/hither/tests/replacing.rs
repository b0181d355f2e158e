//! Files that are replaced or removed while programs of the same mount open them.
//!
//! No call fails with ESTALE, and no read returns bytes of two files. A directory is empty when the
//! last of its files was closed and removed. The tests need root and nfs-ganesha.
//! `HITHER_REPLACING` is the number of seconds for each combination of server, version and kind.
//! `HITHER_REPLACING_PART=1/4` is the second of four parts of the combinations of server, version
//! and mode, so that parts run side by side.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, Random, map, own_files, run};
use rustix::fs::{Access, AtFlags, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// Size of the replaced file in bytes.
const FILE_BYTES: usize = 4000;
/// Number of writing programs. The number of readers is the same.
const WRITERS: u64 = 4;
const READERS: u64 = 4;

/// Servers and protocol versions.
const CASES: &[(&str, &str)] = &[
    ("nfs-ganesha", "3"),
    ("hither serve", "3"),
    ("nfs-ganesha", "4.2"),
    ("hither serve", "4.2"),
    ("nfs-ganesha", "4.1"),
    ("hither serve", "4.1"),
    ("hither serve", "nqnfs"),
];
/// Duration of each case in a short run.
const SHORT: Duration = Duration::from_millis(300);

/// Modes of a long run. The modes of a short run are the first two.
const MODES: &[&str] = &[
    "",
    ",noac",
    ",nocto",
    ",consistency=strict",
    ",consistency=bounded=5",
    ",consistency=frozen",
    ",close=lazy",
    ",close=delegated",
    ",writeback=journal,exclusive,creates=here",
];

/// Runs `test` on a mount of each case. A long run also tries the other modes.
fn for_each_mount(test: impl Fn(&str, &Path)) {
    let modes = if long().is_some() { MODES } else { &MODES[..2] };
    for_each_case(&["one"], modes, |mount, mounts| test(mount, mounts[0]));
}

/// Mounts each case with each mode at the named places, and runs `test` there.
fn for_each_case(places: &[&str], modes: &[&str], test: impl Fn(&str, &[&Path])) {
    let ganesha = Ganesha::start();
    let mut serve = Serve::of_directory().with(&["--nqnfs"]);
    serve.serve();
    let (part, parts) = part();
    let combinations = CASES.iter().flat_map(|case| modes.iter().map(move |mode| (case, mode)));
    for ((server, version), mode) in combinations.skip(part).step_by(parts) {
        let mut options = format!("vers={version}{mode}");
        let journal = tempfile::tempdir().unwrap();
        if mode.contains("journal") {
            options.push_str(&format!(",journal-dir={}", journal.path().display()));
        }
        let mounts = places.iter().map(|place| {
            if *server == "nfs-ganesha" {
                let mnt = ganesha.dir.path().join(place);
                let _ = fs::create_dir(&mnt);
                ganesha.mount(&options, &mnt).ok();
                return Mounted(mnt);
            }
            let mnt = serve.mnt(place);
            serve.mount(&options, &mnt).ok();
            Mounted(mnt)
        });
        let mounts: Vec<Mounted> = mounts.collect();
        let paths: Vec<&Path> = mounts.iter().map(|mounted| mounted.0.as_path()).collect();
        test(&format!("{server}, vers={version}{mode}"), &paths);
        for mnt in paths {
            umount(mnt);
        }
    }
}

/// A mount that ends before its server when a test fails.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

/// Runs its function at its end.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// The part of the combinations to run, and the number of parts.
fn part() -> (usize, usize) {
    let part = std::env::var("HITHER_REPLACING_PART").unwrap_or_else(|_| String::from("0/1"));
    let (part, parts) = part.split_once('/').unwrap();
    (part.parse().unwrap(), parts.parse().unwrap())
}

fn long() -> Option<Duration> {
    std::env::var("HITHER_REPLACING").ok().map(|s| Duration::from_secs(s.parse().unwrap()))
}

/// The faults and their counts.
#[derive(Default)]
struct Faults(Mutex<BTreeMap<String, u64>>);

impl Faults {
    fn note(&self, what: String) {
        *self.0.lock().unwrap().entry(what).or_default() += 1;
    }

    /// Records an error of a call unless its errno is in `allowed`.
    fn check<T>(&self, call: &str, outcome: io::Result<T>, allowed: &[i32]) -> Option<T> {
        outcome
            .inspect_err(|e| {
                if !e.raw_os_error().is_some_and(|errno| allowed.contains(&errno)) {
                    self.note(format!("{call}: {e}"));
                }
            })
            .ok()
    }

    #[track_caller]
    fn none(&self, what: &str) {
        let faults = self.0.lock().unwrap();
        assert!(faults.is_empty(), "{what}: {faults:?}");
    }
}

/// Ways to give a file new contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Rename,
    UnlinkAndCreate,
    LinkAndRename,
}

fn replace(dir: &Path, way: Way, writer: u64, number: u64, faults: &Faults) {
    let (file, own) = (dir.join("c"), dir.join(format!("t{writer}")));
    let bytes = vec![b'a' + (number % 26) as u8; FILE_BYTES];
    let open = |path: &Path, new: bool| {
        let mut how = OpenOptions::new();
        how.write(true).truncate(!new).create(!new).create_new(new);
        how.open(path)
    };
    let fill = |mut f: File| faults.check("write", f.write_all(&bytes), &[]);
    match way {
        Way::Rename => {
            faults.check("creat", open(&own, false), &[]).and_then(fill);
            faults.check("rename", fs::rename(&own, &file), &[]);
        }
        Way::UnlinkAndCreate => {
            faults.check("unlink", fs::remove_file(&file), &[libc::ENOENT]);
            faults.check("create", open(&file, true), &[libc::EEXIST]).and_then(fill);
        }
        Way::LinkAndRename => {
            let other = dir.join(format!("l{writer}"));
            faults.check("creat", open(&own, false), &[]).and_then(fill);
            faults.check("link", fs::hard_link(&own, &other), &[]);
            faults.check("rename", fs::rename(&other, &file), &[]);
            faults.check("unlink", fs::remove_file(&own), &[]);
        }
    }
}

fn look(dir: &Path, way: Way, mapped: bool, faults: &Faults) {
    let absent: &[i32] = if way == Way::UnlinkAndCreate { &[libc::ENOENT] } else { &[] };
    let Some(mut file) = faults.check("open", File::open(dir.join("c")), absent) else { return };
    let mut bytes = Vec::new();
    if mapped {
        let Some(found) = faults.check("fstat", file.metadata(), &[]) else { return };
        match faults.check(&format!("map of {}", found.len()), map(&file, found.len() as usize), &[]) {
            Some(mapped) => bytes = mapped,
            None => {
                let now = file.metadata().map(|m| (m.len(), m.nlink()));
                faults.note(format!("after it: {now:?}"));
                return;
            }
        }
    } else if faults.check("read", file.read_to_end(&mut bytes), &[]).is_none() {
        return;
    }
    let whole = bytes.len() == FILE_BYTES || way == Way::UnlinkAndCreate;
    if !whole || bytes.windows(2).any(|two| two[0] != two[1]) {
        faults.note(format!("read {} bytes", bytes.len()));
    }
    if let Some(found) = faults.check("fstat after", file.metadata(), &[])
        && whole
        && way != Way::UnlinkAndCreate
        && found.len() != FILE_BYTES as u64
    {
        faults.note(format!("st_size {}", found.len()));
    }
}

/// Four writers replace a file while four readers open it, read or map it, and ask for its length.
/// No call fails with ESTALE.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn file_is_replaced_under_readers() {
    let time = long().unwrap_or(SHORT);
    for_each_mount(|mount, mnt| {
        for way in [Way::Rename, Way::UnlinkAndCreate, Way::LinkAndRename] {
            let (dir, faults) = (mnt.join(format!("{way:?}")), Faults::default());
            fs::create_dir(&dir).unwrap();
            replace(&dir, way, 0, 0, &faults);
            let until = Instant::now() + time;
            let during = |work: &dyn Fn(u64)| {
                let mut n = 0;
                while Instant::now() < until {
                    n += 1;
                    work(n);
                }
                n
            };
            let (at, noted, during) = (&dir, &faults, &during);
            let write = |w| move || during(&|n| replace(at, way, w, w + n * WRITERS, noted));
            let read = |r| move || during(&|_| look(at, way, r % 2 == 1, noted));
            let (replaced, opened): (u64, u64) = std::thread::scope(|s| {
                let writers: Vec<_> = (0..WRITERS).map(|w| s.spawn(write(w))).collect();
                let readers: Vec<_> = (0..READERS).map(|r| s.spawn(read(r))).collect();
                let replaced = writers.into_iter().map(|w| w.join().unwrap()).sum();
                (replaced, readers.into_iter().map(|r| r.join().unwrap()).sum())
            });
            let what = format!("{mount}, {way:?}, {replaced} replaced, {opened} opened");
            println!("{what}: {:?}", faults.0.lock().unwrap());
            faults.none(&what);
            remove_tree(&dir, &what);
        }
    });
}

/// Removes a directory whose files are all closed.
#[track_caller]
fn remove_tree(dir: &Path, what: &str) {
    let names =
        || -> Vec<_> { fs::read_dir(dir).into_iter().flatten().map(|e| e.map(|e| e.file_name())).collect() };
    if let Err(e) = fs::remove_dir_all(dir) {
        let now = names();
        common::pause(2_000);
        let later = names();
        let again = fs::remove_dir(dir);
        panic!("{what}: {e}; it held {now:?}, later {later:?}; rmdir again: {again:?}");
    }
}

/// Replaces the program `c` until a file `stop` exists. `$0` is the writer's own name.
const REPLACE_PROGRAM: [(&str, &str); 2] = [
    ("rename", "while [ ! -e stop ]; do cp /bin/true $0; mv -f $0 c; done"),
    ("unlink and link", "while [ ! -e stop ]; do cp /bin/true $0; rm -f c; ln $0 c || :; rm $0; done"),
];

/// Four writers replace a program file while programs are started from it, four at a time.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn program_is_replaced_while_started() {
    let time = long().unwrap_or(SHORT);
    own_files();
    for_each_mount(|mount, mnt| {
        for (way, script) in REPLACE_PROGRAM {
            let (dir, faults) = (mnt.join("programs"), Faults::default());
            fs::create_dir(&dir).unwrap();
            fs::copy("/bin/true", dir.join("c")).unwrap();
            fs::set_permissions(dir.join("c"), Permissions::from_mode(0o755)).unwrap();
            // The writers are processes of their own, so that no child of the starters inherits
            // their descriptors.
            let writers: Vec<_> = (0..WRITERS)
                .map(|w| {
                    let mut sh = Command::new("sh");
                    sh.args(["-ec", script, &format!("t{w}")]).current_dir(&dir).stderr(Stdio::null());
                    sh.spawn().unwrap()
                })
                .collect();
            let absent: &[i32] = if way == "rename" { &[] } else { &[libc::ENOENT] };
            let until = Instant::now() + time;
            let start = || {
                let mut started = 0;
                while Instant::now() < until {
                    started += 1;
                    let ended = Command::new(dir.join("c")).stdin(Stdio::null()).status();
                    if let Some(ended) = faults.check("exec", ended, absent)
                        && !ended.success()
                    {
                        faults.note(format!("exec: {ended}"));
                    }
                }
                started
            };
            let started: u64 = std::thread::scope(|s| {
                let starters: Vec<_> = (0..READERS).map(|_| s.spawn(start)).collect();
                starters.into_iter().map(|starter| starter.join().unwrap()).sum()
            });
            File::create(dir.join("stop")).unwrap();
            for mut writer in writers {
                assert!(writer.wait().unwrap().success(), "{mount}, {way}: a writer");
            }
            let what = format!("{mount}, {way}, {started} started");
            println!("{what}: {:?}", faults.0.lock().unwrap());
            faults.none(&what);
            fs::remove_dir_all(&dir).unwrap();
        }
    });
}

/// A new file gets the number of a removed file whose inode the kernel still has. It is a file of
/// its own, whichever mount removes the old one and makes the new one. The other mount looks at the
/// old file all the time: so the server may still answer for it after its removal.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn inode_number_is_reused() {
    const ROUNDS: u64 = 10;
    const ATTEMPTS: usize = 10;
    // Each look asks the server.
    for_each_case(&["one", "two"], &[",noac,lookupcache=none"], |mount, mounts| {
        let [mnt, other] = mounts else { unreachable!() };
        let (number, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let look = || {
            while !over.load(SeqCst) {
                let _ = fs::metadata(other.join(format!("old{}", number.load(SeqCst))));
            }
        };
        let list = || {
            while !over.load(SeqCst) {
                let _ =
                    fs::read_dir(other).map(|names| names.for_each(|name| drop(name.map(|n| n.metadata()))));
            }
        };
        let reuse = |removed_in: &Path, made_in: &Path| {
            let n = number.fetch_add(1, SeqCst) + 1;
            let (old, new) = (format!("old{n}"), format!("new{n}"));
            fs::write(mnt.join(&old), "").unwrap();
            // It keeps the inode and is no open at the server.
            let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(mnt.join(&old)).unwrap();
            let old_ino = held.metadata().unwrap().ino();
            fs::remove_file(removed_in.join(&old)).unwrap();
            let at = format!("{mount}: round {n}, removed in {removed_in:?}, made in {made_in:?}");
            fs::write(made_in.join(&new), &new).unwrap_or_else(|e| panic!("{at}: {e}"));
            for reader in [mnt, other] {
                let found = fs::read_to_string(reader.join(&new));
                assert_eq!(found.map_err(|e| e.to_string()), Ok(new.clone()), "{at}, read in {reader:?}");
            }
            let new_ino = mnt.join(&new).metadata().unwrap().ino();
            fs::remove_file(mnt.join(&new)).unwrap();
            new_ino == old_ino
        };
        let reused = std::thread::scope(|s| {
            let _end = OnDrop(|| over.store(true, SeqCst));
            s.spawn(look);
            s.spawn(list);
            let mut reused = 0;
            // Other programs of the machine may take the numbers for a while.
            for attempt in 0..ATTEMPTS {
                for (removed_in, made_in) in [(mnt, mnt), (mnt, other), (other, mnt), (other, other)] {
                    reused += (0..ROUNDS).filter(|_| reuse(removed_in, made_in)).count();
                }
                if reused > 0 || mount.contains("nqnfs") {
                    break;
                }
                println!("{mount}: no number was used again in attempt {attempt}");
            }
            reused
        });
        println!("{mount}: {reused} reused");
        // The server watches a file with an NQNFS lease through a descriptor. That keeps its
        // number.
        assert_eq!(reused > 0, !mount.contains("nqnfs"), "{mount}: {reused} numbers were used again");
    });
}

/// Uses a file in one of several ways and removes it.
fn use_and_remove(dir: &Path, kind: u64) -> io::Result<()> {
    let path = dir.join("f");
    match kind {
        0 => drop(File::create(&path)?),
        1 => fs::write(&path, "some bytes")?,
        2 => {
            fs::write(&path, vec![b'x'; 5000])?;
            fs::read(&path)?;
        }
        // Removes the file while it is open, and closes it before its directory is removed.
        3 => {
            let mut file = File::create(&path)?;
            fs::remove_file(&path)?;
            file.write_all(b"more bytes")?;
        }
        4 => {
            fs::write(&path, "bytes")?;
            let mut file = File::open(&path)?;
            fs::remove_file(&path)?;
            file.read_to_end(&mut Vec::new())?;
        }
        // Replaces the file while it is open.
        _ => {
            let file = File::create(&path)?;
            fs::write(dir.join("g"), "other bytes")?;
            fs::rename(dir.join("g"), &path)?;
            drop(file);
        }
    }
    match fs::remove_file(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && (kind == 3 || kind == 4) => Ok(()),
        removed => removed,
    }
}

/// A directory can be removed as soon as the last of its files was closed and removed. The hidden
/// name of a file that was removed while open is gone by then.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn directory_is_empty_after_last_close() {
    let time = long().unwrap_or(SHORT);
    for_each_mount(|mount, mnt| {
        let (top, faults) = (mnt.join("emptied"), Faults::default());
        fs::create_dir(&top).unwrap();
        let until = Instant::now() + time;
        std::thread::scope(|s| {
            for t in 0..4 {
                let (top, faults) = (&top, &faults);
                s.spawn(move || {
                    let mut n = 0;
                    while Instant::now() < until || n < 24 {
                        n += 1;
                        let dir = top.join(format!("{t}.{n}"));
                        faults.check("mkdir", fs::create_dir(&dir), &[]);
                        faults.check(&format!("kind {}", n % 6), use_and_remove(&dir, n % 6), &[]);
                        faults.check(&format!("kind {}: rmdir", n % 6), fs::remove_dir(&dir), &[]);
                    }
                });
            }
        });
        println!("{mount}: {:?}", faults.0.lock().unwrap());
        faults.none(mount);
        fs::remove_dir(&top).unwrap();
    });
}

/// Opens a file with two names, removes the one in `dir` in one of several ways, and closes it.
fn lose_a_name(file: &Path, dir: &Path, kind: u64) -> io::Result<()> {
    fs::write(file, "bytes")?;
    let other = dir.join("f");
    let open_by = if kind.is_multiple_of(2) { file } else { &other };
    fs::hard_link(file, &other)?;
    let mut open = OpenOptions::new().read(true).write(kind < 4).open(open_by)?;
    if kind < 2 {
        open.write_all(b"more bytes")?;
    }
    if kind.is_multiple_of(3) {
        fs::write(dir.join("g"), "other bytes")?;
        fs::rename(dir.join("g"), &other)?;
        fs::remove_file(&other)
    } else {
        fs::remove_file(&other)
    }
}

/// When a file with another name has lost a name while it was open, and was closed, its link count
/// is right, and the directory of the lost name can be removed.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn closed_files_have_no_hidden_names() {
    let modes = ["", ",close=lazy", ",writeback=journal,exclusive,creates=here"];
    for_each_case(&["one"], &modes, |mount, mounts| {
        let (top, faults) = (mounts[0].join("links"), Faults::default());
        fs::create_dir(&top).unwrap();
        for n in 0..12 {
            let (file, dir) = (top.join(format!("file{n}")), top.join(format!("d{n}")));
            let kind = n % 6;
            faults.check("mkdir", fs::create_dir(&dir), &[]);
            faults.check(&format!("kind {kind}"), lose_a_name(&file, &dir, kind), &[]);
            let links = faults.check(&format!("kind {kind}: stat"), fs::metadata(&file), &[]);
            if links.is_some_and(|metadata| metadata.nlink() != 1) {
                faults.note(format!("kind {kind}: link count"));
            }
            faults.check(&format!("kind {kind}: rmdir"), fs::remove_dir(&dir), &[]);
        }
        faults.none(mount);
        fs::remove_dir_all(&top).unwrap();
    });
}

/// Processes make, read and remove trees side by side: first each its own tree, then all the same
/// tree.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn trees_are_removed_side_by_side() {
    let until = Instant::now() + long().unwrap_or(Duration::ZERO);
    for_each_mount(|mount, mnt| {
        let mut random = Random(1);
        loop {
            let top = mnt.join(format!("trees{}", random.next()));
            fs::create_dir(&top).unwrap();
            let script = "mkdir -p $0/a/b $0/c; for f in a/1 a/b/2 a/b/3 c/4 5; do echo $f >$0/$f; done; cat $0/a/b/* >/dev/null; \
                          rm -r $0";
            let trees: Vec<_> = (0..16)
                .map(|n| {
                    let mut sh = Command::new("sh");
                    sh.args(["-ec", script, &format!("tree{n}")]).current_dir(&top).stderr(Stdio::piped());
                    sh.spawn().unwrap()
                })
                .collect();
            for tree in trees {
                let ended = tree.wait_with_output().unwrap();
                assert!(ended.status.success(), "{mount}: {}", String::from_utf8_lossy(&ended.stderr));
            }
            let left: Vec<PathBuf> = fs::read_dir(&top).unwrap().map(|e| e.unwrap().path()).collect();
            assert!(left.is_empty(), "{mount}: {left:?}");
            fs::remove_dir(&top).unwrap();
            if Instant::now() >= until {
                break;
            }
        }
    });
}

/// An extended attribute of each replaced file.
const XATTR: &str = "user.number";

/// Kinds of objects that are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Symlink,
    Directory,
}

/// Replaces the object `o` by another one of its kind.
fn replace_object(dir: &Path, kind: Kind, writer: u64, faults: &Faults) {
    let (object, own) = (dir.join("o"), dir.join(format!("t{writer}")));
    match kind {
        Kind::File => faults.check("creat", File::create(&own).map(drop), &[]),
        Kind::Symlink => faults.check("symlink", symlink("target", &own), &[]),
        Kind::Directory => faults.check("mkdir", fs::create_dir(&own), &[]),
    };
    if kind == Kind::File {
        let set = rustix::fs::setxattr(&own, XATTR, b"1", XattrFlags::empty());
        faults.check("setxattr", set.map_err(Into::into), &[libc::EOPNOTSUPP]);
    }
    let absent: &[i32] = if kind == Kind::Directory { &[libc::ENOTEMPTY] } else { &[] };
    if faults.check("rename", fs::rename(&own, &object), absent).is_none() {
        let _ = fs::remove_dir(&own);
    }
}

/// Looks at the object `o` by its path with one of several calls.
fn look_by_path(dir: &Path, kind: Kind, call: u64, faults: &Faults) {
    let object = &dir.join("o");
    let (here, no_follow) = (rustix::fs::CWD, AtFlags::SYMLINK_NOFOLLOW);
    // A symbolic link's target does not exist, and has no extended attributes.
    let follows: &[i32] = if kind == Kind::Symlink { &[libc::ENOENT] } else { &[] };
    let xattrs: &[i32] = &[libc::EOPNOTSUPP, libc::EPERM, libc::ENODATA];
    let xattrs = if kind == Kind::File { &xattrs[..1] } else { xattrs };
    match (call % 9, kind) {
        (0, _) => drop(faults.check("lstat", fs::symlink_metadata(object), &[])),
        (1, Kind::Symlink) => drop(faults.check("readlink", fs::read_link(object), &[])),
        (1, _) => drop(faults.check("stat", fs::metadata(object), &[])),
        (2, _) => {
            let allowed = rustix::fs::accessat(here, object, Access::READ_OK, no_follow);
            faults.check("access", allowed.map_err(Into::into), &[]);
        }
        (3, _) => {
            let names = rustix::fs::llistxattr(object, &mut [0; 256]);
            faults.check("listxattr", names.map_err(Into::into), &xattrs[..1]);
        }
        (4, Kind::Directory) => {
            // opendir(3) also calls fstat(2).
            let names = fs::read_dir(object).and_then(|mut names| names.next().transpose());
            faults.check("readdir", names, &[]);
        }
        (4, Kind::File) => {
            faults.check("chmod", fs::set_permissions(object, Permissions::from_mode(0o644)), &[]);
        }
        (5, Kind::Directory) => {
            let absent = fs::symlink_metadata(object.join("absent"));
            faults.check("stat in it", absent, &[libc::ENOENT]);
        }
        (6, Kind::Directory) => {
            let made = fs::create_dir(object.join("d"));
            faults.check("mkdir in it", made, &[libc::ENOENT, libc::EEXIST]);
            faults.check("rmdir in it", fs::remove_dir(object.join("d")), &[libc::ENOENT]);
        }
        (7, _) => {
            let sizes = rustix::fs::statfs(object);
            faults.check("statfs", sizes.map_err(Into::into), follows);
        }
        (8, _) => {
            let value = rustix::fs::lgetxattr(object, XATTR, &mut [0; 2]);
            let len = faults.check("getxattr", value.map_err(Into::into), xattrs);
            len.filter(|len| *len != 1).inspect(|len| faults.note(format!("{len} bytes of the xattr")));
        }
        _ => {
            let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            let set = rustix::fs::utimensat(here, object, &times, no_follow);
            faults.check("utimens", set.map_err(Into::into), &[]);
        }
    }
}

/// Calls by path find one of the objects while writers replace it. No call fails, in any mode.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn path_calls_meet_replaced_objects() {
    let time = long().unwrap_or(SHORT);
    let modes = if long().is_some() { MODES } else { &MODES[..4] };
    for_each_case(&["one"], modes, |mount, mounts| {
        for kind in [Kind::File, Kind::Symlink, Kind::Directory] {
            let (dir, faults) = (mounts[0].join(format!("{kind:?}")), Faults::default());
            fs::create_dir(&dir).unwrap();
            replace_object(&dir, kind, 0, &faults);
            let until = Instant::now() + time;
            let (at, noted) = (&dir, &faults);
            let looked: u64 = std::thread::scope(|s| {
                for writer in 0..WRITERS {
                    s.spawn(move || {
                        while Instant::now() < until {
                            replace_object(at, kind, writer, noted);
                        }
                    });
                }
                let read = |reader| {
                    move || {
                        let calls = (0..).take_while(|_| Instant::now() < until);
                        calls.map(|n| look_by_path(at, kind, n + reader, noted)).count() as u64
                    }
                };
                let readers: Vec<_> = (0..READERS).map(|r| s.spawn(read(r))).collect();
                readers.into_iter().map(|r| r.join().unwrap()).sum()
            });
            let what = format!("{mount}, {kind:?}, {looked} calls");
            faults.none(&what);
            fs::remove_dir_all(&dir).unwrap();
        }
    });
}

/// A program keeps a directory open that is removed on the same mount, by rmdir or by rename over
/// it. Calls on the descriptor succeed, and the directory has no names, as on a local disk.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn removed_directory_stays_open() {
    for_each_case(&["one"], &MODES[..4], |mount, mounts| {
        for by_rename in [false, true] {
            let (dir, other) = (mounts[0].join("d"), mounts[0].join("e"));
            fs::create_dir(&dir).unwrap();
            let opened = File::open(&dir).unwrap();
            let before = opened.metadata().unwrap();
            if by_rename {
                fs::create_dir(&other).unwrap();
                fs::rename(&other, &dir).unwrap();
            } else {
                fs::remove_dir(&dir).unwrap();
            }
            let what = format!("{mount}, by rename: {by_rename}");
            let after = opened.metadata().expect(&what);
            assert_eq!((after.ino(), after.nlink()), (before.ino(), 0), "{what}");
            opened.set_permissions(Permissions::from_mode(0o700)).expect(&what);
            rustix::fs::fstatfs(&opened).expect(&what);
            let names = rustix::fs::Dir::read_from(&opened).map(Iterator::count);
            assert_eq!(names.unwrap_or(0), 0, "{what}");
            if by_rename {
                fs::remove_dir(&dir).unwrap();
            }
        }
    });
}

/// Another client has put an object of the other kind under a known name. unlink(2) and rmdir(2)
/// fail, and the object stays.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn removals_keep_other_kinds() {
    for_each_case(&["one", "two"], &MODES[..4], |mount, mounts| {
        let (one, two) = (mounts[0], mounts[1]);
        let errno = |done: io::Result<()>| done.unwrap_err().raw_os_error();
        fs::write(two.join("f"), "file").unwrap();
        fs::create_dir(two.join("d")).unwrap();
        assert!(one.join("f").is_file() && one.join("d").is_dir(), "{mount}");
        fs::remove_file(two.join("f")).unwrap();
        fs::create_dir(two.join("f")).unwrap();
        fs::remove_dir(two.join("d")).unwrap();
        fs::write(two.join("d"), "bytes").unwrap();
        assert_eq!(errno(fs::remove_file(one.join("f"))), Some(libc::EISDIR), "{mount}");
        assert_eq!(errno(fs::remove_dir(one.join("d"))), Some(libc::ENOTDIR), "{mount}");
        assert!(two.join("f").is_dir(), "{mount}");
        assert_eq!(fs::read(two.join("d")).unwrap(), b"bytes", "{mount}");
        fs::remove_dir(two.join("f")).unwrap();
        fs::remove_file(two.join("d")).unwrap();
    });
}

/// Another client has removed or replaced the target of a rename that this mount has open. The
/// rename succeeds, and the open file keeps its bytes as far as the server keeps them.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn rename_meets_lost_target() {
    for_each_case(&["one", "two"], &MODES[..4], |mount, mounts| {
        let (one, two) = (mounts[0], mounts[1]);
        let ways = ["removed", "replaced", "replaced and open"];
        // All exist before the other mount looks at the directory.
        let held = ways.map(|way| {
            fs::write(one.join(way), "old").unwrap();
            File::open(one.join(way)).unwrap()
        });
        for way in ways {
            let what = format!("{mount}, {way}");
            fs::remove_file(two.join(way)).expect(&what);
            if way != "removed" {
                fs::write(two.join("theirs"), "theirs").unwrap();
                fs::rename(two.join("theirs"), two.join(way)).unwrap();
            }
            let other = (way == "replaced and open").then(|| File::open(two.join(way)).unwrap());
            fs::write(one.join("new"), "ours").unwrap();
            fs::rename(one.join("new"), one.join(way)).expect(&what);
            assert_eq!(fs::read(one.join(way)).expect(&what), b"ours", "{what}");
            drop(other);
            fs::remove_file(one.join(way)).expect(&what);
        }
        drop(held);
    });
}
