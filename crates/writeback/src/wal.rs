//! A durable journal of delayed writes: a crash of the client loses nothing that was promised.
//!
//! It knows nothing of NFS. The layer of delayed writes appends each write before it acknowledges
//! it, says what it is about to send and what the server told of the file since, and which records
//! the server has on stable storage. After a crash [`Wal::open`] finds what is left, and
//! [`Wal::recover`] puts it where it belongs when the file is as it was left, or keeps it as a
//! named conflict.
//!
//! - `record`: what is written; `log`: writing, syncing, giving room back; `place`: the directory,
//!   and what tests put in its place.
//! - `scan`: what a crash left; `replay`: what becomes of it; `made`: objects that the server does
//!   not have; `conflict`: what could not be written.
//!
//! A journal's directory has `lock`, `source` (for humans), `works` (or `failed`, when writes went
//! past it), `*.wal`, `conflicts/` and `aside-*/` with what was damaged.

mod conflict;
mod log;
mod made;
mod place;
mod record;
mod removed;
mod replay;
mod scan;
#[cfg(test)]
pub(crate) mod tests;

pub use conflict::{About, Conflicts, Range};
pub use log::{Failed, Ticket};
pub use replay::{Outcome, open_as};
pub use scan::{FileLeft, Left, MadeLeft, RemovedLeft, SetLeft};

pub(crate) use made::{New, put, set_directory};
pub(crate) use record::{Attributes, Base, Event, New as Begun, Record, Removed, What, Write};

use hither_vfs::{Env, Fh, Name, Vfs};
use log::Log;
use parking_lot::Mutex;
use place::Dir;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Names that are remembered for the paths of journaled files.
const NAMES_MOST: usize = 64 << 10;
/// Deepest path that is put together.
const DEPTH_MOST: usize = 256;
/// A daemon that was just killed may take a moment to end.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// Somebody has it.
    #[error(
        "the journal {0} is in use by another mount of the same export: give each its own cache directory (cache=DIR)"
    )]
    Busy(PathBuf),
    /// The directory cannot be used.
    #[error("the journal {0}: {1}")]
    Io(PathBuf, io::Error),
}

/// A journal in use.
pub struct Wal {
    dir: PathBuf,
    log: Arc<Log>,
    /// A number that nobody outside knows.
    key: u64,
    max_bytes: u64,
    /// The last write did not go in.
    full: AtomicBool,
    names: Mutex<Names>,
    counters: Counters,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Names {
    root: Option<Fh>,
    of: HashMap<Fh, (Fh, Name)>,
}

/// Counted by the layer of delayed writes.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub writes: AtomicU64,
    pub live_bytes: AtomicU64,
    pub files: AtomicU64,
    pub writes_through: AtomicU64,
    pub local_commits: AtomicU64,
}

/// What the journal of a mount did so far, and what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct WalStats {
    /// Files with bytes in the journal that the server may not have on stable storage.
    pub journal_files: u64,
    /// Such bytes.
    pub journal_bytes: u64,
    /// What the journal takes on the local disk, in bytes.
    pub journal_room_bytes: u64,
    /// The most it may take.
    pub journal_max_bytes: u64,
    /// Writes that were journaled.
    pub journal_writes: u64,
    /// Bytes appended, with everything that goes with them.
    pub journal_appended_bytes: u64,
    /// Syncs of the local disk.
    pub journal_syncs: u64,
    /// Calls of fsync and close that were answered when the journal was durable (`exclusive`).
    pub journal_local_commits: u64,
    /// Writes that waited for the server because the journal was full or failed.
    pub journal_writes_through: u64,
    /// Whether it takes nothing now (1).
    pub journal_failed: u64,
    /// Files whose bytes were put at the server when this mount began, after a crash.
    pub journal_replayed_files: u64,
    /// Those bytes.
    pub journal_replayed_bytes: u64,
    /// Conflicts that are kept.
    pub conflicts: u64,
}

impl Wal {
    /// Takes the journal in `dir`, making it when it is missing, with what a crash left in it. It
    /// takes at most about `max_bytes` of disk. `source` is what is mounted, and `of` which file
    /// system that is and in what protocol: a line each.
    ///
    /// # Errors
    /// It cannot be used.
    pub async fn open(
        dir: &Path,
        (source, of): (&str, &str),
        max_bytes: u64,
        env: &Env,
    ) -> Result<(Arc<Self>, Left), WalError> {
        let place = lock(dir).await?;
        let unusable = |e| WalError::Io(dir.to_path_buf(), e);
        let key = (env.random)();
        let (path, source, of, now) = (dir.to_path_buf(), source.to_string(), of.to_string(), (env.wall)());
        let opened = tokio::task::spawn_blocking(move || {
            place.write("source", &(source + "\n"))?;
            place.write("of", &(of + "\n"))?;
            let written = place::segments(&path)?
                .last()
                .map(|n| place::open_segment(&path, *n)?.metadata()?.modified());
            let ago = written.transpose()?.map(|at| now.duration_since(at).unwrap_or_default());
            let (log, left) = begin(place, key)?;
            Ok((log, Left { written_ago: ago, ..left }))
        });
        let (log, left) = opened.await.map_err(io::Error::other).flatten().map_err(unusable)?;
        let wal = Self {
            dir: dir.to_path_buf(),
            log: Arc::new(log),
            key,
            max_bytes,
            full: AtomicBool::new(false),
            names: Mutex::default(),
            counters: Counters::default(),
            outcome: Mutex::default(),
        };
        Ok((Arc::new(wal), left))
    }

    /// A journal without a directory.
    #[cfg(test)]
    pub(crate) fn over(place: Box<dyn place::Place>, max_bytes: u64) -> Arc<Self> {
        let log = Log::start(place, 1, 0, &[]).expect("threads start");
        Arc::new(Self {
            dir: PathBuf::from("/nowhere"),
            log: Arc::new(log),
            key: 1,
            max_bytes,
            full: AtomicBool::new(false),
            names: Mutex::default(),
            counters: Counters::default(),
            outcome: Mutex::default(),
        })
    }

    /// Puts what a crash left where it belongs, or keeps it as conflicts; nothing may be written
    /// through `below` meanwhile.
    ///
    /// # Errors
    /// What could not be put anywhere stays in the journal.
    pub async fn recover(
        &self,
        below: Arc<dyn Vfs>,
        left: Left,
        source: &str,
        exclusive: bool,
        wsize_bytes: u32,
    ) -> io::Result<Outcome> {
        let replay = replay::Replay {
            below,
            dir: self.dir.clone(),
            log: self.log.clone(),
            conflicts: self.conflicts(),
            source: source.to_string(),
            exclusive,
            wsize_bytes,
        };
        let damaged = left.damage.is_some().then(|| left.segments.clone());
        let outcome = replay::replay(replay, left).await?;
        if let Some(segments) = damaged {
            let (dir, key) = (self.dir.clone(), self.key);
            let numbers: Vec<u64> = segments.iter().map(|(number, _)| *number).collect();
            let moving = numbers.clone();
            let moved = tokio::task::spawn_blocking(move || set_aside(&dir, &moving, key));
            let aside = moved.await.map_err(io::Error::other).flatten()?;
            self.log.trust()?;
            numbers.into_iter().for_each(|number| self.log.dead(number, 1));
            tracing::error!(
                "the damaged journal is set aside as {}, what is whole of it is kept as conflicts",
                aside.display()
            );
        }
        *self.outcome.lock() = outcome.clone();
        Ok(outcome)
    }

    /// Keeps the bytes of a new file that the server refuses; path and time of its last change, in
    /// seconds since 1970, are for humans. Blocks.
    pub(crate) fn keep_new(
        &self,
        fh: &Fh,
        (path, wall_s): (&str, i64),
        cred: &hither_vfs::Cred,
        data: &[u8],
        why: String,
    ) -> io::Result<String> {
        let source = std::fs::read_to_string(self.dir.join("source")).unwrap_or_default();
        let range = Range {
            start_bytes: 0,
            len_bytes: data.len() as u64,
            uid: cred.uid,
            gid: cred.gid,
            groups: cred.groups.to_vec(),
        };
        let about = About {
            version: 1,
            source: source.trim_end().to_string(),
            path: path.to_string(),
            fileid: 0,
            filehandle: fh.0.iter().map(|b| format!("{b:02x}")).collect(),
            why,
            first_s: wall_s,
            last_s: wall_s,
            ranges: vec![range],
        };
        let name = conflict::name_of(path.as_bytes(), 0, wall_s, 0);
        self.conflicts().keep(&name, &about, |file| std::os::unix::fs::FileExt::write_all_at(file, data, 0))
    }

    /// Conflicts that are kept beside it.
    pub fn conflicts(&self) -> Conflicts {
        Conflicts::of(&self.dir)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Why it takes nothing now.
    pub fn trouble(&self) -> Option<String> {
        let full = || format!("it is full ({} bytes): writes wait for the server", self.max_bytes);
        let is_full = || self.full.load(Relaxed) && self.is_half_full();
        self.log.trouble().or_else(|| is_full().then(full))
    }

    /// Counters.
    pub fn stats(&self) -> WalStats {
        let (log, c, outcome) = (self.log.stats(), &self.counters, self.outcome.lock());
        WalStats {
            journal_files: c.files.load(Relaxed),
            journal_bytes: c.live_bytes.load(Relaxed),
            journal_room_bytes: log.bytes,
            journal_max_bytes: self.max_bytes,
            journal_writes: c.writes.load(Relaxed),
            journal_appended_bytes: log.appended_bytes,
            journal_syncs: log.syncs,
            journal_local_commits: c.local_commits.load(Relaxed),
            journal_writes_through: c.writes_through.load(Relaxed),
            journal_failed: u64::from(!self.log.works()),
            journal_replayed_files: outcome.files,
            journal_replayed_bytes: outcome.bytes,
            conflicts: self.conflicts().count(),
        }
    }

    /// Ends it: what lives in it stays for the next mount.
    pub fn close(&self) {
        self.log.close();
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Whether a write of so many bytes may be journaled.
    pub(crate) fn takes(&self, len: u64) -> bool {
        if !self.log.works() {
            return false;
        }
        // Near the limit it does not say so with every write.
        let slack = if self.full.load(Relaxed) { self.max_bytes / 8 } else { 0 };
        let full = self.log.bytes() + len + slack > self.max_bytes;
        if self.full.load(Relaxed) != full && self.full.swap(full, Relaxed) != full {
            match full {
                true => tracing::warn!(
                    "the journal of delayed writes is full ({} bytes): writes wait for the server",
                    self.max_bytes
                ),
                false => tracing::info!("the journal of delayed writes takes writes again"),
            }
        }
        !full
    }

    /// Whether it is time to give room back.
    pub(crate) fn is_half_full(&self) -> bool {
        self.log.bytes() > self.max_bytes / 2
    }

    /// A directory that has no name here.
    pub(crate) fn is_root(&self, fh: &Fh) {
        self.names.lock().root.get_or_insert_with(|| own(fh));
    }

    /// An object has a name.
    pub(crate) fn named(&self, fh: &Fh, dir: &Fh, name: &Name) {
        let mut names = self.names.lock();
        if names.of.get(fh).is_some_and(|(d, n)| d == dir && n == name) {
            return;
        }
        if names.of.len() >= NAMES_MOST {
            names.of.clear();
        }
        names.of.insert(own(fh), (own(dir), name.clone()));
    }

    /// Whether that is the last known name of an object.
    pub(crate) fn is_named(&self, fh: &Fh, dir: &Fh, name: &Name) -> bool {
        self.names.lock().of.get(fh).is_some_and(|(d, n)| d == dir && n == name)
    }

    /// The path of an object as far as it is known.
    pub(crate) fn path(&self, fh: &Fh) -> Vec<u8> {
        let (names, mut parts, mut at) = (self.names.lock(), Vec::new(), fh);
        for _ in 0..DEPTH_MOST {
            let Some((dir, name)) = names.of.get(at) else { break };
            parts.push(name.as_bytes());
            at = dir;
        }
        if names.root.as_ref() != Some(at) && !parts.is_empty() {
            parts.push(b"...");
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

impl std::fmt::Debug for Wal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wal").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Not a slice of the message that the handle came in.
fn own(fh: &Fh) -> Fh {
    Fh(bytes::Bytes::copy_from_slice(&fh.0))
}

/// Whether the journal in a directory holds something that the server may not have; also one that
/// cannot be read. Blocks.
pub fn holds(dir: &Path) -> bool {
    let numbers = place::segments(dir).unwrap_or_default();
    let left = scan::scan(&numbers, |n| place::read_segment(dir, n));
    !numbers.is_empty() && left.map_or(true, |left| !left.is_empty() || left.damage.is_some())
}

/// Journals beside that in `dir` that hold something and that nobody uses, each with what was
/// mounted (`source`) and which file system that is (`of`), as [`Wal::open`] was told. Blocks.
pub fn left_beside(dir: &Path) -> Vec<(PathBuf, String, String)> {
    let beside = dir.parent().and_then(|all| std::fs::read_dir(all).ok()).into_iter().flatten().flatten();
    let others = beside.map(|entry| entry.path()).filter(|path| path != dir);
    // Shared: two who look at the same time do not take each other for its user.
    let is_used = |path: &PathBuf| {
        let lock = std::fs::File::open(path.join("lock")).map(|lock| lock.try_lock_shared().is_err());
        lock.unwrap_or(true)
    };
    let said = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).ok();
    let left = others.filter(|path| !is_used(path) && holds(path));
    let told = |path: PathBuf| {
        let (source, of) = (said(&path, "source")?, said(&path, "of").unwrap_or_default());
        Some((path, source.trim_end().to_string(), of.trim_end().to_string()))
    };
    left.filter_map(told).collect()
}

async fn lock(dir: &Path) -> Result<Dir, WalError> {
    for _ in 0..LOCK_TRIES {
        match Dir::open(dir) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => tokio::time::sleep(LOCK_PAUSE).await,
            other => return other.map_err(|e| WalError::Io(dir.to_path_buf(), e)),
        }
    }
    Err(WalError::Busy(dir.to_path_buf()))
}

/// Reads what is there and goes on behind it.
fn begin(place: Dir, key: u64) -> io::Result<(Log, Left)> {
    let path = place.path().to_path_buf();
    let numbers = place::segments(&path)?;
    let mut left = match scan::scan(&numbers, |n| place::read_segment(&path, n)) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            let aside = set_aside(&path, &numbers, key)?;
            tracing::error!(
                "the journal {} is of another version ({e}): set aside as {}; mount with the hither that wrote it to have it sent",
                path.display(),
                aside.display()
            );
            place::Place::set_failed(&place, false)?;
            return Ok((Log::start(Box::new(place), key, 0, &[])?, Left::default()));
        }
        left => left?,
    };
    if left.damage.is_none() && place.is_failed() {
        if left.is_empty() {
            numbers.iter().try_for_each(|number| place::Place::remove(&place, *number))?;
            place::Place::sync_names(&place)?;
            place::Place::set_failed(&place, false)?;
            return Ok((Log::start(Box::new(place), key, left.last_seq, &[])?, left));
        }
        left.damage = Some("its disk failed, and later writes are not in it".into());
    }
    let live = left.live();
    let live = |number| live.get(&number).copied().unwrap_or(0);
    if let Some(damage) = &left.damage {
        tracing::error!("the journal {} is damaged: {damage}", path.display());
        // It stays where it is, one record more alive in each segment, until all of it is kept.
        let old: Vec<_> = left.segments.iter().map(|&(n, bytes)| (n, bytes, live(n) + 1)).collect();
        return Ok((Log::start(Box::new(place), key, left.last_seq, &old)?, left));
    }
    if left.torn_bytes > 0 {
        tracing::info!("the journal {} ends in a torn record, as a crash leaves it", path.display());
    }
    let mut old = Vec::new();
    if left.is_empty() {
        for &number in &numbers {
            place::Place::remove(&place, number)?;
        }
    } else {
        for &(number, keep) in &left.segments {
            let head = record::segment_head(number, key);
            place.mend(number, keep, (keep == 0).then_some(&head[..]))?;
            let bytes = keep.max(head.len() as u64);
            old.push((number, bytes, live(number)));
        }
    }
    Ok((Log::start(Box::new(place), key, left.last_seq, &old)?, left))
}

fn set_aside(dir: &Path, numbers: &[u64], key: u64) -> io::Result<PathBuf> {
    let aside = dir.join(format!("aside-{key:016x}"));
    std::fs::create_dir(&aside)?;
    for number in numbers {
        let name = format!("{number:016x}.wal");
        std::fs::rename(dir.join(&name), aside.join(&name))?;
    }
    std::fs::File::open(&aside)?.sync_all()?;
    std::fs::File::open(dir)?.sync_all()?;
    Ok(aside)
}

/// Bytes that were sent and of which nobody has heard: where they go, and what they are.
#[cfg(test)]
pub(crate) fn scan_for_tests(numbers: &[u64], read: impl Fn(u64) -> Vec<u8>) -> Vec<(u64, Vec<u8>)> {
    let left = scan::scan(numbers, |n| Ok(read(n))).expect("it is readable");
    let mut out = Vec::new();
    for file in left.files.values() {
        let heard =
            |s: &scan::Sent| file.landed.iter().any(|l| l.start_bytes == s.start_bytes && l.upto == s.upto);
        for sent in file.sent.iter().filter(|s| s.end_bytes != u64::MAX && !heard(s)) {
            let mut bytes = vec![None; (sent.end_bytes - sent.start_bytes) as usize];
            for p in file.pieces.iter().filter(|p| p.seq <= sent.upto) {
                let segment = read(p.segment);
                for i in 0..p.len_bytes {
                    let to = (p.start_bytes + i).checked_sub(sent.start_bytes).map(|to| to as usize);
                    if let Some(to) = to.filter(|to| *to < bytes.len()) {
                        bytes[to] = Some(segment[(p.at + i) as usize]);
                    }
                }
            }
            out.extend(bytes.into_iter().collect::<Option<Vec<u8>>>().map(|bytes| (sent.start_bytes, bytes)));
        }
    }
    out
}
