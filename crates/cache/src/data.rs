//! The disk cache: file contents on a local disk, kept over restarts.
//!
//! This module knows nothing of NFS and FUSE: it is a [`Vfs`] over a [`Vfs`]. A *local change* is a
//! change of a file by a call through this layer.
//!
//! - `format` and `entry`: a cached file is a sparse local file of the same length, with a map of
//!   its cached blocks.
//! - `shelf` and `home`: a directory of cached files.
//! - `held` and `read`: reads are answered from cached blocks, and request only the others from
//!   below, once for all waiting readers.
//! - `fill`: fetched bytes are returned at once, and written to the disk behind the read.
//! - `fillin`: partly read files are completed while the link is idle.
//! - `pass`: names and attributes pass through to the layer below. `live` learns the versions of
//!   open files from them.
//!
//! # Which bytes are answered
//!
//! 1. All cached blocks of a file belong to one *version*: change attribute and length. Bytes are
//!    stored under a version only if their request followed an answer with that version. No other
//!    version may have arrived before the bytes. Such bytes are of that version or newer. A later
//!    answer with the same version proves that they are exactly of that version.
//! 2. Another version in a later answer drops all blocks of the file. Answers to requests from
//!    before the end of a local change are ignored. While a local change is running, all reads are
//!    sent below. Blocks that writes under a lease leave unchanged are kept (`own`).
//! 3. Cached bytes are answered only while the attributes with their version are valid, or were
//!    requested since the call's [`RequestContext::fresh_since`](hither_vfs::RequestContext).
//!    Otherwise the file's attributes are requested first.
//! 4. A file that changed less than `cache_age` ago is not cached: a server may make `change` from
//!    a clock whose tick hides a second change. The local clock measures the age; it may be ahead
//!    of the server's clock by less than `cache_age`. The time since the version was first seen
//!    counts too.
//! 5. A block enters the map only after its bytes are on stable storage. After a start, a block is
//!    compared with its checksum before its first use. Damaged blocks are dropped and fetched
//!    again.
//! 6. The disk does not prove that a version is the present one: after a start, each file's version
//!    is requested before its use.
//!
//! A file is read only through opens. The server, or the layer above
//! ([`OpenHow::known`](hither_vfs::OpenHow)), has allowed the opener to read it, regardless of the
//! reader that fetched the bytes.
//!
//! When the disk is full, read-only or broken, reads are sent below, and the cache retries later.

mod changing;
mod clean;
mod entry;
mod fill;
mod fillin;
mod format;
mod held;
mod home;
mod index;
mod io;
mod kept;
mod live;
mod memo;
mod opens;
mod own;
mod pass;
mod passing;
mod read;
mod revoked;
mod saved;
mod shelf;
mod stats;
mod survey;
#[cfg(test)]
mod tests;
mod tools;
mod total;
mod unused;

pub use home::DataCacheError;
pub use kept::DataCacheRanges;
pub use stats::DataCacheStats;
pub use survey::{DataCachePart, evict_all, survey};
pub use tools::{DataCacheCheck, DataCacheEntry, DataCacheRoom, DataCacheSlot, DataCacheVerify, KeyAct};

use crate::policy::Policy;
use fill::Job;
use hither_vfs::{BoxFuture, Env, Fh, Unsent, Upcalls, Vfs};
use live::Live;
use parking_lot::{Mutex, RwLock};
use shelf::{Limits, Shelf};
use stats::Counters;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

/// Unit of the memory for blocks on their way to the disk, in bytes.
const QUEUE_UNIT: u64 = 4 << 10;

/// Options of the disk cache.
#[derive(Debug, Clone)]
pub struct DataCacheOptions {
    /// Size above which the cleaner evicts files, in bytes.
    pub soft_bytes: u64,
    /// Size above which nothing is added, in bytes.
    pub hard_bytes: u64,
    /// Size of the whole directory above which unused parts, and then all others, give up files, in
    /// bytes.
    pub dir_soft_bytes: u64,
    /// Size of the whole directory above which nothing is added, in bytes; `u64::MAX`: no limit.
    pub dir_hard_bytes: u64,
    /// Which files are evicted first.
    pub policy: Policy,
    /// Space that stays free in the file system of the cache, in bytes.
    pub min_free_bytes: u64,
    /// Smaller files are not cached, in bytes.
    pub cache_min_file: u64,
    /// Larger files are not cached, in bytes.
    pub cache_max_file: u64,
    /// Files that changed within this time are not cached.
    pub cache_age: Duration,
    /// Cached files are used; nothing is added or removed.
    pub read_only: bool,
    /// Memory for bytes on their way to the disk and ahead of readers, in bytes.
    pub queue_bytes: u64,
    /// Most bytes requested in one call below; a multiple of 64 KiB.
    pub fetch_bytes: u64,
    /// Longest read-ahead of a sequential reader, in bytes.
    pub ahead_max_bytes: u64,
    /// Time without additions after a disk error.
    pub retry: Duration,
    /// When partly read files are completed.
    pub fill: Fill,
}

/// When partly read files are completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Never.
    Off,
    /// While the link is idle.
    Idle,
    /// Always, at this rate in bytes per second.
    Rate(u64),
}

impl Default for DataCacheOptions {
    fn default() -> Self {
        Self {
            soft_bytes: 9 << 30,
            hard_bytes: 10 << 30,
            dir_soft_bytes: u64::MAX,
            dir_hard_bytes: u64::MAX,
            policy: Policy::Lru,
            min_free_bytes: 1 << 30,
            cache_min_file: 1,
            cache_max_file: 1 << 40,
            cache_age: Duration::from_secs(30),
            read_only: false,
            queue_bytes: 64 << 20,
            fetch_bytes: 1 << 20,
            ahead_max_bytes: 16 << 20,
            retry: Duration::from_secs(30),
            fill: Fill::Off,
        }
    }
}

/// The disk cache.
pub struct DataCache {
    me: Weak<DataCache>,
    below: Arc<dyn Vfs>,
    options: DataCacheOptions,
    env: Env,
    /// `None` while the directory is not in use, for example because another daemon has it.
    shelf: RwLock<Option<Arc<Shelf>>>,
    lives: Mutex<HashMap<Fh, Arc<Live>>>,
    opens: opens::Opens,
    own: own::Own,
    /// Orders requests and the ends of local changes.
    seq: AtomicU64,
    /// The end of the last local change of any file.
    fence: AtomicU64,
    /// Number of withdrawn leases. Answers to requests from before a withdrawal are not under a
    /// lease.
    withdrawals: AtomicU64,
    revoked: Mutex<revoked::Moments>,
    /// The ends of local changes.
    changed: Mutex<revoked::Moments>,
    /// Expired answers hold ([`DataCache::answer_stale`]).
    stale: AtomicBool,
    queue: Arc<Semaphore>,
    passing: passing::Passing,
    jobs: mpsc::UnboundedSender<Job>,
    trouble: fill::Trouble,
    candidates: fillin::Candidates,
    emptied: unused::Emptied,
    began: Instant,
    /// When a call last needed the link, in milliseconds since the start.
    asked_ms: AtomicU64,
    /// This layer was shut down: nothing is added.
    ended: AtomicBool,
    /// Bounds the disk calls in the thread pool.
    pool: Semaphore,
    counters: Arc<Counters>,
    above: OnceLock<Arc<dyn Upcalls>>,
    /// Held while this daemon uses the directory.
    lock: Mutex<Option<home::Home>>,
    /// Whether the directory was taken into use.
    taken: watch::Sender<bool>,
    /// Why the directory is not in use.
    off: Mutex<Option<String>>,
}

/// Most concurrent disk calls of a cache. Each occupies a thread for blocking work.
pub const DISK_CALLS_MAX: usize = 32;
/// How long a mount waits for its cache directory.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time until the next attempt, when another daemon has the part for a moment only, as while
/// cleaning.
const SOON: Duration = Duration::from_millis(200);
/// About the most files to scan for which a mount waits.
const FILES_WAITED_FOR: u64 = 50_000;

/// Whether a directory was taken into use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Yes, or this layer has ended.
    Yes,
    /// Not now, but probably in a moment.
    Soon,
    /// No.
    No,
}

impl std::fmt::Debug for DataCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataCache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl DataCache {
    /// A cache over `below` in `dir`, which several mounts may share. `identity` names the server
    /// and the mounted export; filehandles of different identities are kept apart. A layer is
    /// returned even if the directory is unusable or another daemon uses the same identity. It then
    /// works without caching, gives the reason in [`DataCache::trouble`], and retries from time to
    /// time. The call waits only a moment for a directory that takes long to scan.
    pub async fn start(
        below: Arc<dyn Vfs>,
        dir: &Path,
        identity: &[u8],
        options: DataCacheOptions,
        env: Env,
    ) -> Arc<Self> {
        let disk = Self::new(below, None, options, env);
        let (dir, identity) = (dir.to_path_buf(), identity.to_vec());
        *disk.off.lock() = Some("the cache directory is being scanned".into());
        let (told, mut settled) = watch::channel(false);
        tokio::spawn(Self::settle(disk.me.clone(), dir, identity, disk.options.retry, told));
        let _ = tokio::time::timeout(PATIENCE, settled.wait_for(|done| *done)).await;
        disk
    }

    /// Whether the directory was taken into use, possibly long after the start. [`DataCache::memo`]
    /// works from then on.
    pub fn taken(&self) -> watch::Receiver<bool> {
        self.taken.subscribe()
    }

    /// Tries to take the directory until it is taken or this layer ends.
    async fn settle(
        me: Weak<Self>,
        dir: PathBuf,
        identity: Vec<u8>,
        every: Duration,
        told: watch::Sender<bool>,
    ) {
        let mut first = true;
        loop {
            let Some(disk) = me.upgrade().filter(|disk| !disk.is_ended()) else { return };
            let (within, of) = (dir.clone(), identity.clone());
            let teller = told.clone();
            let taken = tokio::task::spawn_blocking(move || disk.take(&within, &of, &teller, first)).await;
            let wait = match taken.unwrap_or(Taken::Yes) {
                Taken::Soon => SOON,
                Taken::Yes => Duration::ZERO,
                Taken::No => every,
            };
            first = false;
            if wait != SOON {
                told.send_replace(true);
            }
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes the directory into use, if possible; blocks. `first`: this is the first attempt.
    fn take(&self, dir: &Path, identity: &[u8], told: &watch::Sender<bool>, first: bool) -> Taken {
        let why = match self.try_take(dir, identity, told) {
            Ok(true) => {
                let before = self.off.lock().take();
                self.taken.send_replace(true);
                tracing::info!(?before, "disk cache: {} is in use", dir.display());
                return Taken::Yes;
            }
            // The daemon that cleans the directory announces it only after taking the lock.
            Ok(false) if first || home::Home::is_being_cleaned(dir, identity) => return Taken::Soon,
            Ok(false) => {
                format!("cache directory {}: in use by another mount of the same export", dir.display())
            }
            Err(e) => e.to_string(),
        };
        let mut off = self.off.lock();
        if off.as_ref() != Some(&why) {
            tracing::warn!("{why}; continuing without a disk cache");
            *off = Some(why);
        }
        if self.is_ended() { Taken::Yes } else { Taken::No }
    }

    fn try_take(
        &self,
        dir: &Path,
        identity: &[u8],
        told: &watch::Sender<bool>,
    ) -> Result<bool, DataCacheError> {
        let Some(home) = home::Home::open(dir, identity, &self.env)? else { return Ok(false) };
        let io = Arc::new(io::RealIo { dir: home.dir.clone() });
        if saved::policy(&*io).is_none() && home.file_count() > FILES_WAITED_FOR {
            tracing::info!("disk cache: {} was not shut down properly: scanning all files", dir.display());
            // The mount does not wait for the scan.
            told.send_replace(true);
        }
        let shelf = self.shelf_in(io);
        let shelf = shelf.map_err(|e| DataCacheError::unusable(dir, &e))?;
        shelf.set_pins(home::read_pins(&home.dir));
        if !self.options.read_only {
            let limits = (self.options.dir_soft_bytes, self.options.dir_hard_bytes);
            let total = total::Total::new(home.lock.clone(), &home.lock_path, limits, shelf.size().1);
            let _ = shelf.total.set(total);
        }
        let mut lock = self.lock.lock();
        if !self.is_ended() {
            *self.shelf.write() = Some(shelf);
            *lock = Some(home);
        }
        Ok(true)
    }

    /// Why nothing is added now, in a line for the user; `None` when the cache works.
    pub fn trouble(&self) -> Option<String> {
        let off = self.off.lock().clone();
        off.or_else(|| self.trouble.line(self.options.retry)).or_else(|| {
            let full = !self.options.read_only && self.shelf.read().is_some() && !self.may_store();
            full.then(|| "the disk cache or its file system is full".into())
        })
    }

    fn new(
        below: Arc<dyn Vfs>,
        io: Option<Arc<dyn io::Io>>,
        options: DataCacheOptions,
        env: Env,
    ) -> Arc<Self> {
        let (jobs, received) = mpsc::unbounded_channel();
        let queue = usize::try_from(options.queue_bytes / QUEUE_UNIT).unwrap_or(usize::MAX);
        let disk = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            below,
            options,
            env,
            shelf: RwLock::new(None),
            lives: Mutex::default(),
            opens: opens::Opens::default(),
            own: own::Own::default(),
            seq: AtomicU64::new(1),
            fence: AtomicU64::new(0),
            withdrawals: AtomicU64::new(0),
            revoked: Mutex::default(),
            changed: Mutex::default(),
            stale: AtomicBool::new(false),
            queue: Arc::new(Semaphore::new(queue.min(Semaphore::MAX_PERMITS))),
            passing: passing::Passing::new(queue),
            jobs,
            trouble: fill::Trouble::default(),
            candidates: fillin::Candidates::default(),
            emptied: unused::Emptied::default(),
            began: Instant::now(),
            asked_ms: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            pool: Semaphore::new(DISK_CALLS_MAX),
            counters: Arc::default(),
            above: OnceLock::new(),
            lock: Mutex::default(),
            taken: watch::Sender::new(io.is_some()),
            off: Mutex::default(),
        });
        if let Some(io) = io {
            match disk.shelf_in(io) {
                Ok(shelf) => *disk.shelf.write() = Some(shelf),
                Err(e) => disk.trouble.note(&disk.counters, &e),
            }
        }
        tokio::spawn(fill::run(Arc::downgrade(&disk), received));
        if disk.options.fill != Fill::Off && !disk.options.read_only {
            tokio::spawn(fillin::run(Arc::downgrade(&disk)));
        }
        disk.below.subscribe(Arc::new(Hearer(disk.me.clone())));
        disk
    }

    fn shelf_in(&self, io: Arc<dyn io::Io>) -> std::io::Result<Arc<Shelf>> {
        let o = &self.options;
        let limits = Limits {
            soft_bytes: o.soft_bytes.min(o.hard_bytes),
            hard_bytes: o.hard_bytes,
            min_free_bytes: o.min_free_bytes,
            policy: o.policy,
            read_only: o.read_only,
        };
        let shelf = Shelf::open(io, limits, self.counters.clone(), self.env.random.clone())?;
        Ok(Arc::new(shelf))
    }

    /// Bytes on their way to the disk.
    fn queued_bytes(&self) -> u64 {
        let free = self.queue.available_permits() + self.passing.units();
        (self.options.queue_bytes / QUEUE_UNIT * QUEUE_UNIT).saturating_sub(free as u64 * QUEUE_UNIT)
    }

    /// Counters so far.
    pub fn stats(&self) -> DataCacheStats {
        let (entries, entry_bytes) = self.shelf().map_or((0, 0), |shelf| shelf.size());
        DataCacheStats {
            entries,
            entry_bytes,
            queue_bytes: self.queued_bytes(),
            fill_waiting: self.candidates.len() as u64,
            off: u64::from(!self.is_on()),
            ..self.counters.snapshot()
        }
    }

    fn shelf(&self) -> Option<Arc<Shelf>> {
        self.shelf.read().clone()
    }

    /// Whether files can be added now.
    fn is_on(&self) -> bool {
        self.shelf.read().is_some() && !self.trouble.is_on(self.options.retry) && !self.is_ended()
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The number of a request that is sent now.
    fn ask(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::AcqRel)
    }

    fn now_s(&self) -> u64 {
        (self.env.wall)().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Runs a disk call on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<T> {
        let _turn = self.pool.acquire().await.map_err(std::io::Error::other)?;
        tokio::task::spawn_blocking(f).await.map_err(std::io::Error::other)
    }
}

impl crate::metadata::Near for DataCache {
    fn has(&self, fh: &Fh) -> bool {
        self.is_started(fh)
    }

    fn has_all(&self, fh: &Fh, size_bytes: u64) -> bool {
        self.shelf().is_some_and(|shelf| shelf.has_all(format::Key::of(fh), size_bytes))
    }
}

impl DataCache {
    /// Ends the lease on a file.
    fn lease_ends(&self, fh: &Fh) {
        // Recorded before it is counted, as `learn_known` requires.
        self.revoked.lock().note(fh, Instant::now());
        self.withdrawals.fetch_add(1, Ordering::AcqRel);
        let live = self.lives.lock().get(fh).cloned();
        if let Some(live) = live {
            live.expire();
        }
        // After the count: a later write finds no lease.
        self.own_ends(Some(fh));
    }
}

/// Subscriber to the layer below: passes upcalls on, and ends leases.
struct Hearer(Weak<DataCache>);

impl Upcalls for Hearer {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        disk.lease_ends(fh);
        disk.above.get().map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.revoke(fh))
    }

    fn withdraw_unused(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        disk.lease_ends(fh);
        disk.above
            .get()
            .map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.withdraw_unused(fh))
    }

    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        for fh in files {
            disk.lease_ends(fh);
        }
        disk.above.get().map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.expire(files))
    }

    fn flush(&self, fh: &Fh) -> BoxFuture<()> {
        let disk = self.0.upgrade();
        let above = disk.as_ref().and_then(|disk| disk.above.get());
        above.map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.flush(fh))
    }

    fn flush_unused(&self, fh: &Fh) -> BoxFuture<()> {
        let disk = self.0.upgrade();
        let above = disk.as_ref().and_then(|disk| disk.above.get());
        above.map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.flush_unused(fh))
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        self.0.upgrade()?.above.get()?.path(fh)
    }

    fn unsent(&self, fh: &Fh) -> Unsent {
        let disk = self.0.upgrade();
        disk.as_ref().and_then(|disk| disk.above.get()).map_or(Unsent::More, |above| above.unsent(fh))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        disk.revoked.lock().note_all(Instant::now());
        disk.withdrawals.fetch_add(1, Ordering::AcqRel);
        disk.lives.lock().values().for_each(|live| live.expire_lease());
        disk.own_ends(None);
        disk.above.get().map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.revoke_all())
    }
}
