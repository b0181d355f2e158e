//! Random histories of two clients of a real server, checked against close-to-open. An open file
//! shows the bytes of its last close, under the file's present name at the server. The tests also
//! check the maximum age of stat and listings.
//!
//! The tests need root and nfs-ganesha: `cargo test -p hither -- --include-ignored`, as in
//! `make test`. `HITHER_SEED` repeats a history. `HITHER_STEPS` makes it longer.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Random, pause, run};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirEntryExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

struct Mounts([PathBuf; 2]);

impl Drop for Mounts {
    /// Unmounts after a failed test. The fixture's directory cannot be removed while its mounts
    /// wait for its server.
    fn drop(&mut self) {
        for mnt in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

struct World {
    mounts: Mounts,
    /// The contents of each file.
    files: BTreeMap<String, Vec<u8>>,
    random: Random,
    /// Number of writes. Each write leaves another length, so that a server with a slow clock shows
    /// at least the length.
    written: usize,
    log: Vec<String>,
}

impl World {
    fn some_file(&mut self) -> String {
        let n = self.random.below(self.files.len() as u64) as usize;
        self.files.keys().nth(n).unwrap().clone()
    }

    fn fresh(&mut self) -> Vec<u8> {
        self.written += 1;
        let len = 1 + self.written + 4096 * self.random.below(4) as usize;
        vec![b'a' + (self.written % 26) as u8; len]
    }

    fn step(&mut self) {
        let who = self.random.below(2) as usize;
        let mnt = self.mounts.0[who].clone();
        let name = self.some_file();
        let path = mnt.join(&name);
        let what = self.random.below(12);
        self.log.push(format!("{what} {name} by {who}"));
        match what {
            0 | 1 => {
                let data = self.fresh();
                std::fs::write(&path, &data).unwrap();
                self.files.insert(name, data);
            }
            2 => {
                let data = self.fresh();
                OpenOptions::new().append(true).open(&path).unwrap().write_all(&data).unwrap();
                self.files.get_mut(&name).unwrap().extend(data);
            }
            3 => self.overwrite(&path, &name),
            4 => {
                let to = self.files[&name].len() / 2;
                OpenOptions::new().write(true).open(&path).unwrap().set_len(to as u64).unwrap();
                self.files.get_mut(&name).unwrap().truncate(to);
            }
            5 => {
                // Saves as editors do: a new file replaces the old.
                let (data, new) = (self.fresh(), mnt.join("new"));
                std::fs::write(&new, &data).unwrap();
                std::fs::rename(&new, &path).unwrap();
                self.files.insert(name, data);
            }
            6 => {
                // Rotates as logs do: two names change places.
                let other = self.some_file();
                let spare = mnt.join("spare");
                if other != name {
                    std::fs::rename(&path, &spare).unwrap();
                    std::fs::rename(mnt.join(&other), &path).unwrap();
                    std::fs::rename(&spare, mnt.join(&other)).unwrap();
                    let (a, b) = (self.files[&name].clone(), self.files[&other].clone());
                    self.files.insert(name, b);
                    self.files.insert(other, a);
                }
            }
            _ => self.check(who, &name),
        }
    }

    fn overwrite(&mut self, path: &Path, name: &str) {
        let data = self.fresh();
        let at = self.random.below(self.files[name].len() as u64 + 1) as usize;
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        file.write_all(&data).unwrap();
        let held = self.files.get_mut(name).unwrap();
        held.resize(held.len().max(at + data.len()), 0);
        held[at..at + data.len()].copy_from_slice(&data);
    }

    fn check(&mut self, who: usize, name: &str) {
        let mut got = Vec::new();
        let read = File::open(self.mounts.0[who].join(name)).and_then(|mut f| f.read_to_end(&mut got));
        let want = &self.files[name];
        let right = read.is_ok() && got == *want;
        assert!(
            right,
            "{name} by {who}: {read:?}, {} bytes {:?} instead of {} bytes {:?}, after {:#?}",
            got.len(),
            got.first().map(|b| *b as char),
            want.len(),
            want.first().map(|b| *b as char),
            &self.log[self.log.len().saturating_sub(20)..]
        );
    }
}

/// A random history of writes and renames by two clients. An open sees all data that was closed
/// before.
/// Promise: 11a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn open_sees_closed_data() {
    let ganesha = Ganesha::start();
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let steps = number("HITHER_STEPS").unwrap_or(800);
    println!("HITHER_SEED={seed}");
    for (version, cached) in [("4.2", false), ("3", false), ("4.2", true), ("3", true)] {
        let mounts = Mounts([ganesha.mnt(), ganesha.dir.path().join("mnt2")]);
        let _ = std::fs::create_dir(&mounts.0[1]);
        for (i, mnt) in mounts.0.iter().enumerate() {
            let cache = ganesha.dir.path().join(format!("cache{i}"));
            let cache = format!(",cache={},cache-age=0", cache.display());
            ganesha.mount(&format!("vers={version}{}", if cached { &cache } else { "" }), mnt).ok();
        }
        let mut world =
            World { mounts, files: BTreeMap::new(), random: Random(seed), written: 0, log: Vec::new() };
        for n in 0..6 {
            let (name, data) = (format!("f{n}"), world.fresh());
            std::fs::write(world.mounts.0[0].join(&name), &data).unwrap();
            world.files.insert(name, data);
        }
        for _ in 0..steps {
            world.step();
        }
        for mnt in &world.mounts.0 {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}

/// Maximum age of attributes and names in the test below. `SLACK` is the delay that an otherwise
/// idle machine may add between an answer and its use. The kernel counts the age from the arrival
/// of the answer.
const AGE: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(250);

/// A thread that wakes every few milliseconds and records longer gaps: the end and the length of
/// each. Other threads may have waited as long.
struct Pulse {
    gaps: Arc<Mutex<Vec<(Instant, Duration)>>>,
    over: Arc<AtomicBool>,
}

impl Pulse {
    fn start() -> Self {
        let (gaps, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (noted, ends) = (gaps.clone(), over.clone());
        std::thread::spawn(move || {
            let mut last = Instant::now();
            while !ends.load(Relaxed) {
                pause(5);
                let gap = last.elapsed();
                last = Instant::now();
                if gap > SLACK / 5 {
                    noted.lock().unwrap().push((last, gap));
                }
            }
        });
        Self { gaps, over }
    }

    /// The delay that the machine may have added to an answer that was used at `began`.
    fn slack(&self, began: Instant) -> Duration {
        let from = began.checked_sub(3 * AGE).unwrap_or(began);
        let gaps = self.gaps.lock().unwrap();
        SLACK
            + 2 * gaps
                .iter()
                .filter(|(until, _)| *until >= from)
                .map(|(_, gap)| *gap)
                .max()
                .unwrap_or_default()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// The object of a name: inode number, length and permissions. `None` when the name is absent.
type Seen = Option<(u64, u64, u32)>;

/// A file at the server: its inode number, which may be reused, and its creation time.
type Inode = (u64, SystemTime);

/// A fact about a name (its inode) or about an inode (length and permissions). `by` is the client
/// that caused the fact, and `done` its time.
struct State<T> {
    what: T,
    by: usize,
    done: Instant,
}

/// Two clients that change and read the names of one directory.
struct Street {
    mounts: Mounts,
    /// The directory at the server.
    truth: PathBuf,
    names: BTreeMap<String, Vec<State<Option<Inode>>>>,
    inodes: BTreeMap<Inode, Vec<State<(u64, u32)>>>,
    random: Random,
    looks: u64,
    log: Vec<String>,
    pulse: Pulse,
}

fn look(path: &Path) -> Seen {
    match std::fs::symlink_metadata(path) {
        Ok(m) => Some((m.ino(), m.len(), m.mode() & 0o7777)),
        Err(e) => {
            assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{path:?}: {e}");
            None
        }
    }
}

/// The facts that `who` may see at `began`: those within the allowed age, and none before the last
/// change of `who`.
fn believable<T>(
    states: &[State<T>],
    who: usize,
    began: Instant,
    slack: Duration,
) -> impl Iterator<Item = &T> {
    let own = states.iter().rposition(|s| s.by == who).unwrap_or(0);
    let oldest = began.checked_sub(AGE + slack).unwrap_or(began);
    (own..states.len())
        .filter(move |&i| states.get(i + 1).is_none_or(|next| next.done >= oldest))
        .map(|i| &states[i].what)
}

impl Street {
    /// Records the facts of all names after a change by `who`. An outdated name may have changed
    /// the permissions of another file.
    fn changed(&mut self, who: usize) {
        let done = Instant::now();
        for name in (0..6).map(|n| format!("n{n}")) {
            let m = std::fs::symlink_metadata(self.truth.join(&name)).ok();
            let inode = m.as_ref().map(|m| (m.ino(), m.created().unwrap()));
            let states = self.names.entry(name).or_default();
            if states.last().is_none_or(|last| last.what != inode) {
                states.push(State { what: inode, by: who, done });
            }
            let (Some(inode), Some(m)) = (inode, m) else { continue };
            let (len, mode) = (m.len(), m.mode() & 0o7777);
            let states = self.inodes.entry(inode).or_default();
            if states.last().is_none_or(|last| last.what != (len, mode)) {
                states.push(State { what: (len, mode), by: who, done });
            }
        }
    }

    fn step(&mut self) {
        let who = self.random.below(2) as usize;
        let (one, other) = (format!("n{}", self.random.below(6)), format!("n{}", self.random.below(6)));
        let (path, to) = (self.mounts.0[who].join(&one), self.mounts.0[who].join(&other));
        let what = self.random.below(14);
        self.log.push(format!("{what} {one} {other} by {who}"));
        let done = match what {
            0 => {
                let len = 1 + self.random.below(60_000) as usize;
                std::fs::write(&path, vec![b'x'; len])
            }
            1 => std::fs::remove_file(&path),
            2 if one != other => std::fs::rename(&path, &to),
            3 => {
                let mode = 0o600 + self.random.below(64) as u32;
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            }
            4..=6 => return self.list(who),
            7 => return pause(self.random.below(700)),
            _ => return self.stat(who, &one),
        };
        match done {
            Ok(()) => self.changed(who),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{e} {:?}", self.log.last()),
        }
    }

    fn stat(&mut self, who: usize, name: &str) {
        let (began, seen) = (Instant::now(), look(&self.mounts.0[who].join(name)));
        let slack = self.pulse.slack(began);
        let right = believable(&self.names[name], who, began, slack).any(|inode| match (inode, seen) {
            (None, None) => true,
            (Some(inode), Some((ino, len, mode))) if inode.0 == ino => {
                // The permissions of a file that another client has removed may have changed
                // through an outdated name.
                let named = self.names.values().any(|s| s.last().is_some_and(|s| s.what == Some(*inode)));
                let mut states = believable(&self.inodes[inode], who, began, slack);
                states.any(|what| what.0 == len && (what.1 == mode || !named))
            }
            _ => false,
        });
        self.judge(right, || format!("stat of {name} by {who}: {seen:?}"));
    }

    fn list(&mut self, who: usize) {
        let began = Instant::now();
        let entries = std::fs::read_dir(&self.mounts.0[who]).unwrap().map(|e| e.unwrap());
        let listed: BTreeMap<String, u64> =
            entries.map(|e| (e.file_name().into_string().unwrap(), e.ino())).collect();
        let names: Vec<_> = self.names.keys().cloned().collect();
        let slack = self.pulse.slack(began);
        for name in names {
            let ino = listed.get(&name).copied();
            let right = believable(&self.names[&name], who, began, slack).any(|i| i.map(|i| i.0) == ino);
            self.judge(right, || format!("listing of {name} by {who}: {ino:?}"));
        }
    }

    #[track_caller]
    fn judge(&mut self, right: bool, what: impl Fn() -> String) {
        self.looks += 1;
        if right {
            return;
        }
        let now = Instant::now();
        let names: Vec<_> = self
            .names
            .iter()
            .map(|(n, states)| {
                let last = states.iter().rev().take(6);
                (n, last.map(|s| (s.what, s.by, now - s.done)).collect::<Vec<_>>())
            })
            .collect();
        let inodes: Vec<_> = self
            .inodes
            .iter()
            .map(|(n, states)| (n, states.iter().map(|s| (s.what, s.by, now - s.done)).collect::<Vec<_>>()))
            .collect();
        panic!(
            "{}, names {names:?}, inodes {inodes:?}, after {:?}",
            what(),
            &self.log[self.log.len().saturating_sub(40)..]
        );
    }
}

/// stat(2) and readdir(3) show another client's state of at most a second before, and the client's
/// own changes at once (promises 8 and 11).
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn stat_and_readdir_respect_max_age() {
    let ganesha = Ganesha::start();
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let steps = number("HITHER_STEPS").unwrap_or(600);
    println!("HITHER_SEED={seed}");
    for version in ["4.2", "3"] {
        let mounts = Mounts([ganesha.mnt(), ganesha.dir.path().join("mnt2")]);
        let _ = std::fs::create_dir(&mounts.0[1]);
        for mnt in &mounts.0 {
            ganesha.mount(&format!("vers={version},actimeo={}", AGE.as_secs()), mnt).ok();
        }
        let mut street = Street {
            mounts,
            truth: ganesha.export(""),
            names: BTreeMap::new(),
            inodes: BTreeMap::new(),
            random: Random(seed),
            looks: 0,
            log: vec![],
            pulse: Pulse::start(),
        };
        for n in 0..6 {
            let _ = std::fs::remove_file(street.mounts.0[0].join(format!("n{n}")));
        }
        street.changed(0);
        for _ in 0..steps {
            street.step();
        }
        assert!(street.looks > steps / 2, "{} looks", street.looks);
        for mnt in &street.mounts.0 {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}

/// A rename moves the object that the server has under that name, for every cached state. The
/// renaming client then sees that object.
/// Promise: 12
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn rename_moves_current_object() {
    let ganesha = Ganesha::start();
    for version in ["4.2", "3"] {
        let mounts = Mounts([ganesha.mnt(), ganesha.dir.path().join("mnt2")]);
        let [mine, theirs] = &mounts.0;
        let _ = std::fs::create_dir(theirs);
        for mnt in [mine, theirs] {
            // No cached state expires during this test.
            ganesha.mount(&format!("vers={version},actimeo=600"), mnt).ok();
        }
        for (n, (moves_before, to)) in
            [(false, "d/new"), (true, "d/new"), (false, "e/new"), (true, "e/new")].into_iter().enumerate()
        {
            let [mine, theirs] = [mine, theirs].map(|mnt| mnt.join(format!("{version}-{n}")));
            for dir in ["d", "e"] {
                std::fs::create_dir_all(theirs.join(dir)).unwrap();
            }
            std::fs::write(theirs.join("d/old"), "first").unwrap();
            std::fs::write(theirs.join("d/else"), "else").unwrap();
            let known = [mine.join("d/old"), mine.join("d/else")];
            known.iter().for_each(|path| drop(std::fs::read(path).unwrap()));
            let listed = std::fs::read_dir(mine.join("e")).unwrap().count();
            assert_eq!(listed, 0);
            std::fs::rename(theirs.join("d/old"), theirs.join("d/first")).unwrap();
            std::fs::write(theirs.join("d/old"), "the second one").unwrap();
            if moves_before {
                std::fs::rename(mine.join("d/else"), mine.join("d/elsewhere")).unwrap();
            }
            std::fs::rename(mine.join("d/old"), mine.join(to)).unwrap();
            let truth =
                std::fs::metadata(ganesha.export("").join(format!("{version}-{n}")).join(to)).unwrap();
            let seen = std::fs::metadata(mine.join(to)).unwrap();
            let case = format!("vers={version}, {to}, moved something before: {moves_before}");
            assert_eq!((seen.ino(), seen.len()), (truth.ino(), truth.len()), "{case}");
            assert_eq!(std::fs::read(mine.join(to)).unwrap(), b"the second one", "{case}");
        }
        // In the cached state both names have the same object. The kernel must not treat the rename
        // as one between two names of one file, which does nothing.
        for appended_to in [false, true] {
            let [mine, theirs] = [mine, theirs].map(|mnt| mnt.join(format!("{version}-{appended_to}")));
            std::fs::create_dir(&theirs).unwrap();
            std::fs::write(theirs.join("old"), "first").unwrap();
            assert_eq!(std::fs::read(mine.join("old")).unwrap(), b"first");
            std::fs::rename(theirs.join("old"), theirs.join("new")).unwrap();
            std::fs::write(theirs.join("old"), "the second one").unwrap();
            if appended_to {
                std::fs::OpenOptions::new().append(true).create(true).open(mine.join("new")).unwrap();
            }
            std::fs::rename(mine.join("old"), mine.join("new")).unwrap();
            let case = format!("vers={version}, appended to: {appended_to}");
            assert_eq!(std::fs::read(mine.join("new")).unwrap(), b"the second one", "{case}");
            assert_eq!(std::fs::read(theirs.join("new")).unwrap(), b"the second one", "{case}");
        }
        for mnt in [mine, theirs] {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}
