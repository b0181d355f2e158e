//! A durable journal of delayed writes. Acknowledged writes survive a crash of the client.
//!
//! The module knows nothing of NFS. The layer of delayed writes appends each write before the layer
//! acknowledges the write. The layer also records the WRITEs that it is about to send and the
//! attributes that the server returned. It records which writes the server has on stable storage.
//! After a crash [`Wal::open`] reads the remaining records. [`Wal::recover`] writes their bytes to
//! each file that is unchanged since, and keeps the others as named conflicts.
//!
//! - `record`: the format of the records.
//! - `log`: append, sync, and release of disk space.
//! - `storage`: the directory of the journal, which tests replace.
//! - `scan`: the records that a crash left.
//! - `replay`: the decision about each of these records.
//! - `made`: objects that the server does not have.
//! - `conflict`: bytes that could not be written to the server.
//!
//! A journal's directory has these entries:
//!
//! - `lock`, and `source` and `of`, which name the mounted file system;
//! - `works`, or `failed` when later writes bypassed the journal;
//! - `*.wal`, the segments;
//! - `conflicts/`, and `aside-*/` with damaged or unreadable segments.

mod conflict;
mod log;
mod made;
mod record;
mod removed;
mod replay;
mod scan;
mod storage;
#[cfg(test)]
pub(crate) mod tests;

pub use conflict::{About, Conflicts, Range};
pub use log::{Failed, Ticket};
pub(crate) use replay::passes;
pub use replay::{Outcome, open_as};
pub use scan::{FileLeft, Left, MadeLeft, RemovedLeft, SetLeft};

pub(crate) use made::{New, put, set_directory};
pub(crate) use record::{Attributes, Base, Event, New as Begun, Record, Removed, What, Write};

use hither_vfs::{Env, Fh, Name, Vfs};
use log::Log;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use storage::Dir;

/// The most names that are kept for the paths of journaled files.
const NAMES_MAX: usize = 64 << 10;
/// Components of the longest path that is assembled.
const DEPTH_MAX: usize = 256;
/// A killed daemon may take a moment to release its lock.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The reason why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// Another mount uses the journal.
    #[error(
        "the journal {0} is in use by another mount of the same export: give each mount its own cache directory (cache=DIR)"
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
    /// A random number. The checksums of the records are keyed with it.
    key: u64,
    max_bytes: u64,
    /// The last write found the journal full.
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

/// Counters that the layer of delayed writes maintains.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub writes: AtomicU64,
    pub live_bytes: AtomicU64,
    pub files: AtomicU64,
    pub writes_through: AtomicU64,
    pub local_commits: AtomicU64,
}

/// Counters of a mount's journal, and its present content.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct WalStats {
    /// Files with bytes in the journal that the server may not have on stable storage.
    pub journal_files: u64,
    /// The number of these bytes.
    pub journal_bytes: u64,
    /// Disk space of the journal, in bytes.
    pub journal_room_bytes: u64,
    /// The most disk space that the journal may take, in bytes.
    pub journal_max_bytes: u64,
    /// Journaled writes.
    pub journal_writes: u64,
    /// Appended bytes, with the heads of records and segments.
    pub journal_appended_bytes: u64,
    /// Syncs of the local disk.
    pub journal_syncs: u64,
    /// Calls of fsync and close that were answered when the journal was durable (`exclusive`).
    pub journal_local_commits: u64,
    /// Writes that waited for the server because the journal was full or had failed.
    pub journal_writes_through: u64,
    /// 1 while the journal takes no records because of a failure, else 0.
    pub journal_failed: u64,
    /// Files that this mount wrote to the server at its start, after a crash.
    pub journal_replayed_files: u64,
    /// The bytes of these files.
    pub journal_replayed_bytes: u64,
    /// Kept conflicts.
    pub conflicts: u64,
}

impl Wal {
    /// Opens the journal in `dir` and reads the records that a crash left. A missing directory is
    /// created. The journal takes at most about `max_bytes` of disk space. `source` is the mounted
    /// source. `of` names its file system and the protocol. Each is one line.
    ///
    /// # Errors
    /// `Busy` when another mount uses the journal, `Io` when the directory cannot be used.
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
            let written = storage::segments(&path)?
                .last()
                .map(|n| storage::open_segment(&path, *n)?.metadata()?.modified());
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
    pub(crate) fn over(place: Box<dyn storage::SegmentStore>, max_bytes: u64) -> Arc<Self> {
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

    /// Writes the records of a crash to the server, or keeps them as conflicts. Nothing may be
    /// written through `below` meanwhile.
    ///
    /// # Errors
    /// Local input and output. Records that were neither written nor kept stay in the journal.
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
                "the damaged journal was moved to {}; its intact writes are kept as conflicts",
                aside.display()
            );
        }
        *self.outcome.lock() = outcome.clone();
        Ok(outcome)
    }

    /// Keeps the bytes of a new file that the server refuses, and returns the name of the conflict.
    /// `path` and `wall_s` are for humans. `wall_s` is the time of the last change in seconds since
    /// 1970. Blocks.
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

    /// The conflicts in this journal's directory.
    pub fn conflicts(&self) -> Conflicts {
        Conflicts::of(&self.dir)
    }

    /// The directory of the journal.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The reason why the journal takes no records at the moment.
    pub fn trouble(&self) -> Option<String> {
        let full = || format!("the journal is full ({} bytes): writes wait for the server", self.max_bytes);
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

    /// Closes the journal. Live records stay for the next mount.
    pub fn close(&self) {
        self.log.close();
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Whether a write of `len` bytes may be journaled.
    pub(crate) fn takes(&self, len: u64) -> bool {
        if !self.log.works() {
            return false;
        }
        // The slack keeps the state, and its message, from changing with every write near the
        // limit.
        let slack = if self.full.load(Relaxed) { self.max_bytes / 8 } else { 0 };
        let full = self.log.bytes() + len + slack > self.max_bytes;
        if self.full.load(Relaxed) != full && self.full.swap(full, Relaxed) != full {
            if full {
                tracing::warn!(
                    "the journal of delayed writes is full ({} bytes): writes wait for the server",
                    self.max_bytes
                )
            } else {
                tracing::info!("the journal of delayed writes accepts writes again")
            }
        }
        !full
    }

    /// Whether the journal is more than half full, so that space should be released.
    pub(crate) fn is_half_full(&self) -> bool {
        self.log.bytes() > self.max_bytes / 2
    }

    /// Notes a directory without a name as the root.
    pub(crate) fn is_root(&self, fh: &Fh) {
        self.names.lock().root.get_or_insert_with(|| own(fh));
    }

    /// Notes the name of an object.
    pub(crate) fn named(&self, fh: &Fh, dir: &Fh, name: &Name) {
        let mut names = self.names.lock();
        if names.of.get(fh).is_some_and(|(d, n)| d == dir && n == name) {
            return;
        }
        if names.of.len() >= NAMES_MAX {
            names.of.clear();
        }
        names.of.insert(own(fh), (own(dir), name.clone()));
    }

    /// Whether this is the last known name of an object.
    pub(crate) fn is_named(&self, fh: &Fh, dir: &Fh, name: &Name) -> bool {
        self.names.lock().of.get(fh).is_some_and(|(d, n)| d == dir && n == name)
    }

    /// The path of an object, as far as the names are known.
    pub(crate) fn path(&self, fh: &Fh) -> Vec<u8> {
        let (names, mut parts, mut at) = (self.names.lock(), Vec::new(), fh);
        for _ in 0..DEPTH_MAX {
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

/// Copies a filehandle, so that it does not keep the received message in memory.
fn own(fh: &Fh) -> Fh {
    Fh(bytes::Bytes::copy_from_slice(&fh.0))
}

/// Whether the journal in a directory holds changes that the server may not have. True also for a
/// journal that cannot be read. Blocks.
pub fn holds(dir: &Path) -> bool {
    let numbers = storage::segments(dir).unwrap_or_default();
    let left = scan::scan(&numbers, |n| storage::read_segment(dir, n));
    !numbers.is_empty() && left.map_or(true, |left| !left.is_empty() || left.damage.is_some())
}

/// An unused journal with changes that the server may lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedJournal {
    /// Its directory.
    pub dir: PathBuf,
    /// The `source` that [`Wal::open`] got.
    pub source: String,
    /// The `of` that [`Wal::open`] got.
    pub of: String,
}

/// The unused journals in the directory `all` that hold changes and that `wanted` selects. Blocks:
/// it reads those journals.
pub fn left_in(all: &Path, wanted: impl Fn(&UnusedJournal) -> bool) -> Vec<UnusedJournal> {
    // The lock is shared, so that two processes that look at the same time do not exclude each
    // other.
    let is_used = |dir: &Path| {
        let lock = std::fs::File::open(dir.join("lock")).map(|lock| lock.try_lock_shared().is_err());
        lock.unwrap_or(true)
    };
    let said = |dir: &Path, name: &str| {
        let text = std::fs::read_to_string(dir.join(name)).ok()?;
        Some(text.trim_end().to_string())
    };
    let told = |dir: PathBuf| {
        let (source, of) = (said(&dir, "source")?, said(&dir, "of").unwrap_or_default());
        Some(UnusedJournal { dir, source, of })
    };
    let dirs = std::fs::read_dir(all).into_iter().flatten().flatten().map(|entry| entry.path());
    dirs.filter_map(told).filter(|one| wanted(one) && !is_used(&one.dir) && holds(&one.dir)).collect()
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

/// Reads the existing segments and starts the log after them.
fn begin(place: Dir, key: u64) -> io::Result<(Log, Left)> {
    let path = place.path().to_path_buf();
    let numbers = storage::segments(&path)?;
    let mut left = match scan::scan(&numbers, |n| storage::read_segment(&path, n)) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            let aside = set_aside(&path, &numbers, key)?;
            tracing::error!(
                "the journal {} has another version ({e}) and was moved to {}; to send its writes, mount with the hither version that wrote it",
                path.display(),
                aside.display()
            );
            storage::SegmentStore::set_failed(&place, false)?;
            return Ok((Log::start(Box::new(place), key, 0, &[])?, Left::default()));
        }
        left => left?,
    };
    if left.damage.is_none() && place.is_failed() {
        if left.is_empty() {
            numbers.iter().try_for_each(|number| storage::SegmentStore::remove(&place, *number))?;
            storage::SegmentStore::sync_names(&place)?;
            storage::SegmentStore::set_failed(&place, false)?;
            return Ok((Log::start(Box::new(place), key, left.last_seq, &[])?, left));
        }
        left.damage = Some("its disk failed, and it lacks later writes".into());
    }
    let live = left.live();
    let live = |number| live.get(&number).copied().unwrap_or(0);
    if let Some(damage) = &left.damage {
        tracing::error!("the journal {} is damaged: {damage}", path.display());
        // Each segment stays in place, with one extra live record, until all its records are kept.
        let old: Vec<_> = left.segments.iter().map(|&(n, bytes)| (n, bytes, live(n) + 1)).collect();
        return Ok((Log::start(Box::new(place), key, left.last_seq, &old)?, left));
    }
    if left.torn_bytes > 0 {
        tracing::info!("the journal {} ends in a torn record, which is normal after a crash", path.display());
    }
    let mut old = Vec::new();
    if left.is_empty() {
        for &number in &numbers {
            storage::SegmentStore::remove(&place, number)?;
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

/// The bytes that were sent and not acknowledged, with their offsets.
#[cfg(test)]
pub(crate) fn scan_for_tests(numbers: &[u64], read: impl Fn(u64) -> Vec<u8>) -> Vec<(u64, Vec<u8>)> {
    let left = scan::scan(numbers, |n| Ok(read(n))).expect("the journal is readable");
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
