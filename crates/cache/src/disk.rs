//! What was read of files, kept on a local disk for good.
//!
//! It knows nothing of NFS and FUSE: it is a [`Vfs`] over a [`Vfs`]. A remote file has a sparse
//! local file of its own length and a map of the blocks that are in it (`format`, `entry`); a
//! directory of them is a shelf (`shelf`, `home`). Reads are answered from blocks that are here and
//! ask below only for the others, once however many readers wait (`held`, `read`); what comes is
//! handed up at once and written behind (`fill`); what was read in part is completed while nobody
//! asks (`fillin`). Names and attributes pass through (`pass`) and are looked at on their way
//! (`live`).
//!
//! # Which bytes are answered
//!
//! 1. All that is here of a file stands under one *version*: change attribute and length. Bytes
//!    come under a version only if the question for them was sent after an answer had told that
//!    version, and no other version was told before they came: they are of that version or newer.
//!    When somebody is told that the file is still of that version, they are exactly that.
//! 2. Another version in an answer that was asked for later drops all of the file. Answers asked
//!    for before the end of a change of our own tell nothing; while such a change is running, all
//!    reads are passed on. What writes under a lease leave as it is survives them (`own`).
//! 3. Bytes that are here are answered only while the attributes that told the version hold (or
//!    were asked for since the call's [`Cx::fresh_since`](hither_vfs::Cx)); otherwise the file's
//!    attributes are asked for first.
//! 4. A file that changed less than `cache_age` ago is not kept: `change` may be made of a clock
//!    whose tick hides a second change. It is measured by this machine's clock, which may be ahead
//!    of the server's by less than `cache_age`; or by how long the version has been known here.
//! 5. A block is in the map only after its bytes are on stable storage. After a start it is
//!    compared with its checksum before its first use. What is damaged is dropped and fetched
//!    again.
//! 6. Nothing on the disk says that a version is the present one: after a start each file's version
//!    is asked for before use.
//!
//! A file is read only through opens: the server (or the layer above,
//! [`OpenHow::known`](hither_vfs::OpenHow)) has allowed the opener to read it, whoever fetched the
//! bytes.
//!
//! When the disk is full, read-only or broken, reads are passed on, and it is tried again later.

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
mod saved;
mod shelf;
mod stats;
mod survey;
#[cfg(test)]
mod tests;
mod tools;
mod total;
mod unused;
mod withdrawn;

pub use home::DiskError;
pub use kept::DiskRanges;
pub use stats::DiskStats;
pub use survey::{DiskPart, evict_all, survey};
pub use tools::{DiskCheck, DiskEntry, DiskRoom, DiskSlot, DiskVerify, KeyAct};

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

/// Unit of the memory that is on its way to the disk, in bytes.
const QUEUE_UNIT: u64 = 4 << 10;

/// How much is kept, and what.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// Above so much the cleaner removes what the policy says, in bytes.
    pub soft_bytes: u64,
    /// Above so much nothing is added, in bytes.
    pub hard_bytes: u64,
    /// Above so much in the whole directory, parts that no mount uses and then all others give
    /// something up, in bytes.
    pub dir_soft_bytes: u64,
    /// Above so much in the whole directory nothing is added, in bytes; `u64::MAX`: there is no
    /// limit.
    pub dir_hard_bytes: u64,
    /// What goes first.
    pub policy: Policy,
    /// So much stays free in the file system of the cache, in bytes.
    pub min_free_bytes: u64,
    /// Smaller files are not kept, in bytes.
    pub cache_min_file: u64,
    /// Larger files are not kept, in bytes.
    pub cache_max_file: u64,
    /// Files that changed less long ago are not kept.
    pub cache_age: Duration,
    /// What is there is used; nothing is added or removed.
    pub read_only: bool,
    /// Memory for bytes on their way to the disk and ahead of readers, in bytes.
    pub queue_bytes: u64,
    /// Most bytes asked for in one call below; a multiple of 64 KiB.
    pub fetch_bytes: u64,
    /// Farthest ahead of a sequential reader, in bytes.
    pub ahead_max_bytes: u64,
    /// After an error of the disk, so long nothing is added.
    pub retry: Duration,
    /// Whether files that were read in part are completed.
    pub fill: Fill,
}

/// When files that were read in part are completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Never.
    Off,
    /// When nobody asks for anything else.
    Idle,
    /// Always, with so many bytes a second.
    Rate(u64),
}

impl Default for DiskOptions {
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

/// The cache.
pub struct Disk {
    me: Weak<Disk>,
    below: Arc<dyn Vfs>,
    options: DiskOptions,
    env: Env,
    /// `None` while another daemon has the directory.
    shelf: RwLock<Option<Arc<Shelf>>>,
    lives: Mutex<HashMap<Fh, Arc<Live>>>,
    opens: opens::Opens,
    own: own::Own,
    /// Orders questions and the ends of changes of our own.
    seq: AtomicU64,
    /// The end of the last change of our own to any file.
    fence: AtomicU64,
    /// Leases that were withdrawn: answers asked for before are not under a lease.
    withdrawals: AtomicU64,
    withdrawn: Mutex<withdrawn::Moments>,
    /// The ends of changes of our own.
    changed: Mutex<withdrawn::Moments>,
    queue: Arc<Semaphore>,
    passing: passing::Passing,
    jobs: mpsc::UnboundedSender<Job>,
    trouble: fill::Trouble,
    candidates: fillin::Candidates,
    emptied: unused::Emptied,
    began: Instant,
    /// When somebody last asked for something that needed the link, in milliseconds since it began.
    asked_ms: AtomicU64,
    /// Someone stopped this layer: nothing is added.
    ended: AtomicBool,
    /// Bounds what is asked of the pool of threads for disk calls.
    pool: Semaphore,
    counters: Arc<Counters>,
    above: OnceLock<Arc<dyn Upcalls>>,
    /// Held as long as the directory is ours.
    lock: Mutex<Option<home::Home>>,
    /// Whether it was taken into use.
    taken: watch::Sender<bool>,
    /// Why the directory is not in use.
    off: Mutex<Option<String>>,
}

/// Disk calls at a time.
const POOL: usize = 32;
/// How long a mount waits for its cache directory.
const PATIENCE: Duration = Duration::from_secs(3);
/// How soon a part is tried again that somebody has for a moment only, perhaps to clean it.
const SOON: Duration = Duration::from_millis(200);
/// Where more files than about so many have to be looked at, it does not wait at all.
const FILES_WAITED_FOR: u64 = 50_000;

/// Whether a directory could be taken into use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Yes, or nobody wants it any more.
    Yes,
    /// Not now, but most likely in a moment.
    Soon,
    /// No.
    No,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Disk {
    /// A cache over `below` in `dir`, which several mounts may share; `identity` names the server
    /// and what of it is mounted (handles of different identities are never mixed up). Whatever is
    /// wrong with the directory, there is a layer: it goes on without keeping anything, says why
    /// ([`Disk::trouble`]), and looks now and then whether it can. So it does while another daemon
    /// has the same identity in use. A directory that takes long to look through is waited for a
    /// moment only.
    pub async fn start(
        below: Arc<dyn Vfs>,
        dir: &Path,
        identity: &[u8],
        options: DiskOptions,
        env: Env,
    ) -> Arc<Self> {
        let disk = Self::new(below, None, options, env);
        let (dir, identity) = (dir.to_path_buf(), identity.to_vec());
        *disk.off.lock() = Some("the cache directory is being looked through".into());
        let (told, mut settled) = watch::channel(false);
        tokio::spawn(Self::settle(disk.me.clone(), dir, identity, disk.options.retry, told));
        let _ = tokio::time::timeout(PATIENCE, settled.wait_for(|done| *done)).await;
        disk
    }

    /// Whether the directory was taken into use, perhaps long after the start: [`Disk::memo`] is
    /// there from then on.
    pub fn taken(&self) -> watch::Receiver<bool> {
        self.taken.subscribe()
    }

    /// Tries to take the directory until that is settled.
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

    /// Takes the directory into use, if it can be; blocks. `first`: it was not tried before.
    fn take(&self, dir: &Path, identity: &[u8], told: &watch::Sender<bool>, first: bool) -> Taken {
        let why = match self.try_take(dir, identity, told) {
            Ok(true) => {
                let before = self.off.lock().take();
                self.taken.send_replace(true);
                tracing::info!(?before, "disk cache: {} is in use", dir.display());
                return Taken::Yes;
            }
            // Whoever cleans it says so a moment after he has it.
            Ok(false) if first || home::Home::is_being_cleaned(dir, identity) => return Taken::Soon,
            Ok(false) => {
                format!("cache directory {}: in use by another mount of the same export", dir.display())
            }
            Err(e) => e.to_string(),
        };
        let mut off = self.off.lock();
        if off.as_ref() != Some(&why) {
            tracing::warn!("{why}; going on without a disk cache");
            *off = Some(why);
        }
        if self.is_ended() { Taken::Yes } else { Taken::No }
    }

    fn try_take(&self, dir: &Path, identity: &[u8], told: &watch::Sender<bool>) -> Result<bool, DiskError> {
        let Some(home) = home::Home::open(dir, identity, &self.env)? else { return Ok(false) };
        let io = Arc::new(io::RealIo { dir: home.dir.clone() });
        if saved::policy(&*io).is_none() && home.file_count() > FILES_WAITED_FOR {
            tracing::info!("disk cache: {} was not left in order: looking at all files", dir.display());
            // Nobody waits for that.
            told.send_replace(true);
        }
        let shelf = self.shelf_in(io);
        let shelf = shelf.map_err(|e| DiskError::unusable(dir, &e))?;
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

    /// Why nothing is added now, in a line for the user; `None` when all is well.
    pub fn trouble(&self) -> Option<String> {
        let off = self.off.lock().clone();
        off.or_else(|| self.trouble.line(self.options.retry)).or_else(|| {
            let full = !self.options.read_only && self.shelf.read().is_some() && !self.may_store();
            full.then(|| "the disk cache, or the file system that it is in, is full".into())
        })
    }

    fn new(below: Arc<dyn Vfs>, io: Option<Arc<dyn io::Io>>, options: DiskOptions, env: Env) -> Arc<Self> {
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
            withdrawn: Mutex::default(),
            changed: Mutex::default(),
            queue: Arc::new(Semaphore::new(queue.min(Semaphore::MAX_PERMITS))),
            passing: passing::Passing::new(queue),
            jobs,
            trouble: fill::Trouble::default(),
            candidates: fillin::Candidates::default(),
            emptied: unused::Emptied::default(),
            began: Instant::now(),
            asked_ms: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            pool: Semaphore::new(POOL),
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

    /// Counters so far.
    pub fn stats(&self) -> DiskStats {
        let (entries, entry_bytes) = self.shelf().map_or((0, 0), |shelf| shelf.size());
        let free = self.queue.available_permits() as u64 * QUEUE_UNIT;
        DiskStats {
            entries,
            entry_bytes,
            queue_bytes: (self.options.queue_bytes / QUEUE_UNIT * QUEUE_UNIT)
                .saturating_sub(free + self.passing.units() as u64 * QUEUE_UNIT),
            fill_waiting: self.candidates.len() as u64,
            off: u64::from(!self.is_on()),
            ..self.counters.snapshot()
        }
    }

    fn shelf(&self) -> Option<Arc<Shelf>> {
        self.shelf.read().clone()
    }

    /// Whether something can be added now.
    fn is_on(&self) -> bool {
        self.shelf.read().is_some() && !self.trouble.is_on(self.options.retry) && !self.is_ended()
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The number of a question that is sent now.
    fn ask(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::AcqRel)
    }

    fn now_s(&self) -> u64 {
        (self.env.wall)().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Runs a disk call where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<T> {
        let _turn = self.pool.acquire().await.map_err(std::io::Error::other)?;
        tokio::task::spawn_blocking(f).await.map_err(std::io::Error::other)
    }
}

impl crate::meta::Near for Disk {
    fn has(&self, fh: &Fh) -> bool {
        self.is_on_disk(fh)
    }

    fn has_all(&self, fh: &Fh, size_bytes: u64) -> bool {
        self.shelf().is_some_and(|shelf| shelf.has_all(format::Key::of(fh), size_bytes))
    }
}

impl Disk {
    /// What is known of a file is under no lease any more.
    fn lease_ends(&self, fh: &Fh) {
        // Noted before it is counted, as `learn_known` wants.
        self.withdrawn.lock().note(fh, Instant::now());
        self.withdrawals.fetch_add(1, Ordering::AcqRel);
        let live = self.lives.lock().get(fh).cloned();
        if let Some(live) = live {
            live.expire();
        }
        // Behind it: what begins later finds no lease.
        self.own_ends(Some(fh));
    }
}

/// Passes upcalls on, and lets go of what stood under a lease.
struct Hearer(Weak<Disk>);

impl Upcalls for Hearer {
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        disk.lease_ends(fh);
        disk.above.get().map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.withdraw(fh))
    }

    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        for fh in files {
            disk.lease_ends(fh);
        }
        disk.above.get().map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.lapse(files))
    }

    fn settle(&self, fh: &Fh) -> BoxFuture<()> {
        let disk = self.0.upgrade();
        let above = disk.as_ref().and_then(|disk| disk.above.get());
        above.map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.settle(fh))
    }

    fn unsent(&self, fh: &Fh) -> Unsent {
        let disk = self.0.upgrade();
        disk.as_ref().and_then(|disk| disk.above.get()).map_or(Unsent::More, |above| above.unsent(fh))
    }

    fn withdraw_all(&self) -> BoxFuture<()> {
        let Some(disk) = self.0.upgrade() else { return Box::pin(async {}) };
        disk.withdrawn.lock().note_all(Instant::now());
        disk.withdrawals.fetch_add(1, Ordering::AcqRel);
        disk.lives.lock().values().for_each(|live| live.expire_lease());
        disk.own_ends(None);
        disk.above.get().map_or_else(|| Box::pin(async {}) as BoxFuture<()>, |above| above.withdraw_all())
    }
}
