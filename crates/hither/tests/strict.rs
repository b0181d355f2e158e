//! `consistency=strict`: random histories and races of two mounts of one server. Every read, stat,
//! listing and failed lookup shows the last call of either mount that returned before it began.
//!
//! The tests need root and nfs-ganesha. `HITHER_SEED` repeats a history. `HITHER_STEPS` makes it
//! longer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, Random, pause, run, wait_for};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Kinds of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// nfs-ganesha: without delegations, and with a `change` attribute derived from a ticking
    /// clock.
    Ganesha,
    Hither,
    /// `hither serve --max-delegations`.
    Delegating,
}

/// Servers, and the versions of the two mounts.
const PAIRS: [(Kind, [&str; 2]); 6] = [
    (Kind::Ganesha, ["4.2", "4.2"]),
    (Kind::Ganesha, ["3", "3"]),
    (Kind::Ganesha, ["4.2", "3"]),
    (Kind::Hither, ["4.2", "3"]),
    (Kind::Delegating, ["4.2", "4.2"]),
    (Kind::Delegating, ["4.2", "3"]),
];

enum Server {
    Ganesha(Ganesha),
    Hither(Serve),
}

impl Server {
    fn start(kind: Kind) -> Self {
        let served = |words: &[&str]| {
            let mut server = Serve::of_directory().with(words);
            server.serve();
            Self::Hither(server)
        };
        match kind {
            Kind::Ganesha => Self::Ganesha(Ganesha::start()),
            Kind::Hither => served(&[]),
            Kind::Delegating => served(&["--max-delegations", "1000"]),
        }
    }

    fn mount(&self, options: &str, name: &str) -> PathBuf {
        match self {
            Self::Ganesha(ganesha) => {
                let dir = ganesha.dir.path().join(name);
                fs::create_dir(&dir).unwrap();
                ganesha.mount(options, &dir).ok();
                dir
            }
            Self::Hither(server) => {
                let dir = server.mnt(name);
                server.mount(options, &dir).ok();
                dir
            }
        }
    }
}

/// Two strict mounts.
struct Two {
    mounts: [PathBuf; 2],
    _server: Server,
}

impl Two {
    fn mount(kind: Kind, versions: [&str; 2]) -> Self {
        let server = Server::start(kind);
        let one =
            |i: usize| server.mount(&format!("vers={},consistency=strict", versions[i]), &format!("m{i}"));
        Self { mounts: [one(0), one(1)], _server: server }
    }

    fn unmount(&self) {
        for mnt in &self.mounts {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}

impl Drop for Two {
    /// Unmounts after a failed test. The fixture's directory cannot be removed while its mounts
    /// wait for its server.
    fn drop(&mut self) {
        for mnt in &self.mounts {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

/// The required state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Truth {
    bytes: Vec<u8>,
    mode: u32,
}

/// An open file: the mount that has it open, its object, and whether it was opened for appending.
struct MountedOpen {
    who: usize,
    object: usize,
    appends: bool,
    file: File,
}

struct World {
    mounts: [PathBuf; 2],
    names: BTreeMap<String, usize>,
    objects: BTreeMap<usize, Truth>,
    held: Vec<MountedOpen>,
    made: usize,
    random: Random,
    /// Whether the history pauses now and then, so that the server can delegate files.
    rests: bool,
    log: Vec<String>,
}

const NAMES: u64 = 5;
const HELD_MAX: usize = 8;

impl World {
    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn fresh(&mut self) -> Vec<u8> {
        self.made += 1;
        let len = match self.below(4) {
            0 => 1 + self.below(30),
            1 => 4096,
            _ => 1 + self.below(20_000),
        };
        // The length often equals that of the old contents, so that only the bytes differ.
        vec![b'a' + (self.made % 26) as u8; len]
    }

    /// Chooses an open file.
    fn some(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.below(self.held.len()))
    }

    fn is_held(&self, name: &str) -> bool {
        self.names.get(name).is_some_and(|object| self.held.iter().any(|h| h.object == *object))
    }

    fn step(&mut self) {
        let (who, what) = (self.below(2), self.below(20));
        let name = format!("n{}", self.random.below(NAMES));
        self.log.push(format!("{what} {name} by {who}"));
        let path = self.mounts[who].join(&name);
        match what {
            0 => self.save(&path, name),
            1 => self.hold(who, &path, &name),
            2 => drop(self.some().map(|i| self.held.remove(i))),
            3..=5 => self.write_held(),
            6 => self.cut(&path, &name),
            7 => self.remove(&path, &name),
            8 => self.rename(who, &path, name),
            9 => self.replace(who, &path, name),
            10 => self.set_mode(&path, &name),
            11 if self.rests => pause(300),
            _ => {}
        }
        for who in 0..2 {
            let name = format!("n{}", self.random.below(NAMES));
            match self.below(6) {
                0 => self.check_list(who),
                1 => self.check_mapping(who, &name),
                _ => self.check(who, &name),
            }
            if let Some(i) = self.some() {
                self.check_held(i);
            }
        }
    }

    fn save(&mut self, path: &Path, name: String) {
        let bytes = self.fresh();
        fs::write(path, &bytes).unwrap();
        match self.names.get(&name) {
            Some(object) => self.objects.get_mut(object).unwrap().bytes = bytes,
            None => {
                let mode = path.metadata().unwrap().mode() & 0o7777;
                self.objects.insert(self.made, Truth { bytes, mode });
                self.names.insert(name, self.made);
            }
        }
    }

    fn hold(&mut self, who: usize, path: &Path, name: &str) {
        let appends = self.below(3) == 0;
        let Some(&object) = self.names.get(name).filter(|_| self.held.len() < HELD_MAX) else { return };
        let file = OpenOptions::new().read(true).write(!appends).append(appends).open(path).unwrap();
        self.held.push(MountedOpen { who, object, appends, file });
    }

    /// Writes through an open file, which stays open.
    fn write_held(&mut self) {
        let (bytes, Some(i)) = (self.fresh(), self.some()) else { return };
        let MountedOpen { object, appends, .. } = self.held[i];
        let mut now = self.objects[&object].bytes.clone();
        let at = if appends { now.len() } else { self.below(now.len() + 1) };
        self.log.push(format!("{} bytes at {at} of {object} by {}", bytes.len(), self.held[i].who));
        if appends {
            self.held[i].file.write_all(&bytes).unwrap();
        } else {
            self.held[i].file.write_all_at(&bytes, at as u64).unwrap();
        }
        now.resize(now.len().max(at + bytes.len()), 0);
        now[at..at + bytes.len()].copy_from_slice(&bytes);
        self.objects.get_mut(&object).unwrap().bytes = now;
    }

    fn cut(&mut self, path: &Path, name: &str) {
        let Some(&object) = self.names.get(name) else { return };
        let to = self.objects[&object].bytes.len() * 2 / 3;
        OpenOptions::new().write(true).open(path).unwrap().set_len(to as u64).unwrap();
        self.objects.get_mut(&object).unwrap().bytes.truncate(to);
    }

    /// Removes a file that no program has open. With NFSv3 an open file would be gone for the other
    /// mount (promise 13).
    fn remove(&mut self, path: &Path, name: &str) {
        if !self.is_held(name) {
            assert_eq!(fs::remove_file(path).is_ok(), self.names.remove(name).is_some(), "{}", self.tail());
        }
    }

    fn rename(&mut self, who: usize, path: &Path, name: String) {
        let to = format!("n{}", self.random.below(NAMES));
        if to == name || self.is_held(&to) {
            return;
        }
        let done = fs::rename(path, self.mounts[who].join(&to));
        let object = self.names.remove(&name);
        assert_eq!(done.is_ok(), object.is_some(), "{done:?} {}", self.tail());
        self.names.extend(object.map(|object| (to, object)));
    }

    /// Replaces a file as editors do: the name gets another file.
    fn replace(&mut self, who: usize, path: &Path, name: String) {
        if !self.is_held(&name) {
            let spare = self.mounts[who].join("spare");
            self.names.remove(&name);
            let (bytes, mode) = (self.fresh(), 0o640);
            fs::write(&spare, &bytes).unwrap();
            fs::set_permissions(&spare, Permissions::from_mode(mode)).unwrap();
            fs::rename(&spare, path).unwrap();
            self.objects.insert(self.made, Truth { bytes, mode });
            self.names.insert(name, self.made);
        }
    }

    fn set_mode(&mut self, path: &Path, name: &str) {
        let mode = 0o600 + self.random.below(64) as u32;
        if let Some(object) = self.names.get(name) {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            self.objects.get_mut(object).unwrap().mode = mode;
        }
    }

    fn check(&self, who: usize, name: &str) {
        let path = self.mounts[who].join(name);
        let truth = self.names.get(name).map(|object| &self.objects[object]);
        let seen = match fs::metadata(&path) {
            Ok(m) => Some((m.len() as usize, m.mode() & 0o7777)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{name} by {who}: {e} {}", self.tail());
                None
            }
        };
        let wanted = truth.map(|t| (t.bytes.len(), t.mode));
        assert_eq!(seen, wanted, "stat of {name} by {who} {}", self.tail());
        if let Some(truth) = truth {
            self.same(&fs::read(&path).unwrap(), &truth.bytes, &format!("{name} read by {who}"));
        }
    }

    fn check_held(&mut self, i: usize) {
        let bytes = self.objects[&self.held[i].object].bytes.clone();
        let (from, len) = (self.below(bytes.len() + 1), 1 + self.below(30_000));
        let wanted = &bytes[from..bytes.len().min(from + len)];
        let held = &mut self.held[i];
        let what = format!("file {}, held by {}", held.object, held.who);
        let mut got = vec![0; len];
        let n = read_at(&held.file, &mut got, from);
        let length = held.file.metadata().unwrap().len() as usize;
        let end = held.file.seek(SeekFrom::End(0)).unwrap() as usize;
        self.same(&got[..n], wanted, &what);
        assert_eq!((length, end), (bytes.len(), bytes.len()), "length of {what} {}", self.tail());
    }

    fn check_list(&self, who: usize) {
        let entries = fs::read_dir(&self.mounts[who]).unwrap().map(|e| e.unwrap().file_name());
        let names = entries.map(|name| name.into_string().unwrap());
        // The end of an open may come after the removal (promise 13).
        let listed: BTreeSet<String> = names.filter(|name| !name.starts_with(".nfs")).collect();
        let wanted: BTreeSet<String> = self.names.keys().cloned().collect();
        assert_eq!(listed, wanted, "listing by {who} {}", self.tail());
    }

    /// Checks the bytes of a new mapping.
    fn check_mapping(&self, who: usize, name: &str) {
        let Some(object) = self.names.get(name) else { return };
        let file = File::open(self.mounts[who].join(name)).unwrap();
        let bytes = &self.objects[object].bytes;
        if !bytes.is_empty() {
            self.same(&mapped(&file, bytes.len()), bytes, &format!("{name} mapped by {who}"));
        }
    }

    #[track_caller]
    fn same(&self, got: &[u8], wanted: &[u8], what: &str) {
        let differ = got.iter().zip(wanted).position(|(a, b)| a != b);
        let lengths = (got.len(), wanted.len());
        assert!(got == wanted, "{what}: {lengths:?}, differ at {differ:?} {}", self.tail());
    }

    fn tail(&self) -> String {
        format!("after {:#?}", &self.log[self.log.len().saturating_sub(30)..])
    }
}

fn read_at(file: &File, buffer: &mut [u8], at: usize) -> usize {
    let mut n = 0;
    while n < buffer.len() {
        match file.read_at(&mut buffer[n..], (at + n) as u64).unwrap() {
            0 => break,
            more => n += more,
        }
    }
    n
}

/// The bytes of a file as a new shared mapping shows them.
fn mapped(file: &File, len: usize) -> Vec<u8> {
    // SAFETY: the mapping is new and not empty. It is read before its removal, and no program
    // truncates the file meanwhile.
    unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), len).to_vec();
        libc::munmap(at, len);
        bytes
    }
}

/// In a random history of two mounts, every call sees the latest change.
/// Promise: 8d
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn every_call_sees_the_latest_change() {
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let steps = number("HITHER_STEPS").unwrap_or(400);
    println!("HITHER_SEED={seed}");
    for (kind, versions) in PAIRS {
        println!("{kind:?} {versions:?}");
        let two = Two::mount(kind, versions);
        let mut world = World {
            mounts: two.mounts.clone(),
            names: BTreeMap::new(),
            objects: BTreeMap::new(),
            held: Vec::new(),
            made: 0,
            random: Random(seed),
            rests: kind == Kind::Delegating,
            log: Vec::new(),
        };
        for _ in 0..steps {
            world.step();
        }
        drop(world);
        two.unmount();
    }
}

/// Calls of an operation that a mount has sent.
fn calls(mnt: &Path, operation: &str) -> u64 {
    let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(mnt)).ok();
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let all = report["operations"].as_array().unwrap();
    all.iter().filter(|o| o["name"] == operation).map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// The bytes of a small file under a delegation are requested once. Without a delegation each read
/// requests them. Names are requested each time.
/// Promise: 8d
#[test]
#[ignore = "needs root"]
fn delegated_file_is_read_locally() {
    for (kind, kept) in [(Kind::Delegating, true), (Kind::Hither, false)] {
        let two = Two::mount(kind, ["4.2", "4.2"]);
        let [a, b] = &two.mounts;
        let quiet = || {
            fs::write(b.join("f"), "delegated").unwrap();
            // The server does not delegate a file for a while after a write.
            pause(700);
            for _ in 0..3 {
                assert_eq!(fs::read(a.join("f")).unwrap(), b"delegated");
            }
            let before = (calls(a, "READ"), calls(a, "LOOKUP"));
            for _ in 0..10 {
                assert_eq!(fs::read(a.join("f")).unwrap(), b"delegated");
            }
            assert!(calls(a, "LOOKUP") >= before.1 + 10, "names are not delegated");
            calls(a, "READ") == before.0
        };
        if kept {
            wait_for("reads without a request", 60, quiet);
        } else {
            assert!(!quiet(), "no delegation covers the cached bytes");
        }
        fs::write(b.join("f"), "changed").unwrap();
        assert_eq!(fs::read(a.join("f")).unwrap(), b"changed");
        two.unmount();
    }
}

/// A number that one thread writes and others read: the last begun write and the last returned one.
#[derive(Default)]
struct Register {
    begun: AtomicU64,
    done: AtomicU64,
    looks: AtomicU64,
}

impl Register {
    /// Writes growing numbers until they were read often enough.
    fn write(&self, over: &AtomicBool, looks: u64, write: impl Fn(u64)) {
        let _end = EndAll(over);
        for n in 1.. {
            self.begun.store(n, SeqCst);
            write(n);
            self.done.store(n, SeqCst);
            if over.load(SeqCst) || n >= 50 && self.looks.load(SeqCst) >= looks {
                return;
            }
        }
    }

    /// Reads until the writers have ended. `None` from `look` means that the object was absent.
    fn look(&self, over: &AtomicBool, what: &str, look: impl Fn() -> Option<u64>) {
        let _end = EndAll(over);
        while !over.load(SeqCst) {
            let least = self.done.load(SeqCst);
            let Some(seen) = look() else { continue };
            let most = self.begun.load(SeqCst);
            assert!(least <= seen && seen <= most, "{what}: {seen}, and not {least} to {most}");
            self.looks.fetch_add(1, SeqCst);
        }
    }
}

/// Ends all threads when one of them panics.
struct EndAll<'a>(&'a AtomicBool);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, SeqCst);
        }
    }
}

/// Reads a number of eight bytes.
fn eight(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// The contents of a file that other threads replace and remove. With NFSv3 a very late reader may
/// find the file gone.
fn unless_gone(read: std::io::Result<Vec<u8>>) -> Option<u64> {
    match read {
        Ok(bytes) => Some(eight(&bytes)),
        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => None,
        Err(e) => panic!("{e}"),
    }
}

/// One mount writes while the other reads, all the time: a file that both hold open, a replaced
/// file, the length of a growing file, and names that come and go. A call that begins sees every
/// call that has returned.
/// Promise: 8d
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn returned_call_is_visible_to_next() {
    const LOOKS: u64 = 150;
    for (kind, versions) in PAIRS {
        println!("{kind:?} {versions:?}");
        let two = Two::mount(kind, versions);
        let [a, b] = &two.mounts;
        fs::create_dir(a.join("d")).unwrap();
        for name in ["held", "replaced"] {
            fs::write(a.join(name), 0u64.to_le_bytes()).unwrap();
        }
        fs::write(a.join("grown"), "").unwrap();
        let [held, replaced, grown, named]: [Register; 4] = Default::default();
        let over = AtomicBool::new(false);
        let open = |name: &str| OpenOptions::new().read(true).write(true).open(a.join(name)).unwrap();
        let (writer, appender) =
            (open("held"), OpenOptions::new().append(true).open(a.join("grown")).unwrap());
        let (reader, grower) = (File::open(b.join("held")).unwrap(), File::open(b.join("grown")).unwrap());
        let at_once = || {
            let mut bytes = [0; 8];
            reader.read_exact_at(&mut bytes, 0).unwrap();
            Some(eight(&bytes))
        };
        std::thread::scope(|scope| {
            let writers = [
                scope.spawn(|| {
                    held.write(&over, 3 * LOOKS, |n| writer.write_all_at(&n.to_le_bytes(), 0).unwrap())
                }),
                scope.spawn(|| {
                    replaced.write(&over, LOOKS, |n| {
                        // With NFSv3 an open file disappears with its last name. Another name keeps
                        // it for a while.
                        fs::write(a.join("new"), n.to_le_bytes()).unwrap();
                        fs::hard_link(a.join("new"), a.join(format!("old{n}"))).unwrap();
                        if n > 20 {
                            fs::remove_file(a.join(format!("old{}", n - 20))).unwrap();
                        }
                        fs::rename(a.join("new"), a.join("replaced")).unwrap();
                    });
                }),
                scope.spawn(|| grown.write(&over, 2 * LOOKS, |_| (&appender).write_all(b"x").unwrap())),
                scope.spawn(|| {
                    named.write(&over, 2 * LOOKS, |n| {
                        fs::write(a.join(format!("d/{n}")), "").unwrap();
                        if n > 20 {
                            fs::remove_file(a.join(format!("d/{}", n - 20))).unwrap();
                        }
                    });
                }),
            ];
            scope.spawn(|| held.look(&over, "a file held open", at_once));
            scope.spawn(|| held.look(&over, "the same by two", at_once));
            scope.spawn(|| held.look(&over, "by name", || Some(eight(&fs::read(b.join("held")).unwrap()))));
            scope.spawn(|| {
                replaced.look(&over, "replaced", || unless_gone(fs::read(b.join("replaced"))));
            });
            scope.spawn(|| grown.look(&over, "length", || Some(b.join("grown").metadata().unwrap().len())));
            scope.spawn(|| grown.look(&over, "length held", || Some(grower.metadata().unwrap().len())));
            scope.spawn(|| {
                let newest = || {
                    let names = fs::read_dir(b.join("d")).unwrap();
                    let newest =
                        names.map(|e| e.unwrap().file_name().to_str().unwrap().parse().unwrap()).max();
                    Some(newest.unwrap_or(0))
                };
                named.look(&over, "listing", newest);
            });
            scope.spawn(|| {
                named.look(&over, "name", || {
                    // The absent name is looked up again and again.
                    let next = named.done.load(SeqCst) + 1;
                    let there = |made: bool| {
                        let looked = b.join(format!("d/{next}")).metadata();
                        let is = looked.is_ok();
                        let removed = named.begun.load(SeqCst) >= next + 20;
                        assert!(is || !made || removed, "{next} is absent, and was made: {looked:?}");
                        is || removed
                    };
                    while !there(named.done.load(SeqCst) >= next) {
                        if over.load(SeqCst) {
                            return None;
                        }
                    }
                    (named.begun.load(SeqCst) < next + 20).then_some(next)
                });
            });
            let ended: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
            over.store(true, SeqCst);
            assert!(ended.iter().all(|e| e.is_ok()));
        });
        drop((writer, appender, reader, grower));
        two.unmount();
    }
}
