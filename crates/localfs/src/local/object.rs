//! Known objects of the directory: each has a descriptor, which is kept while there is space.
//!
//! An object is found by its filehandle. It holds an `O_PATH` descriptor, which pins the inode, so
//! the inode number is not used again meanwhile. Regular files also get descriptors for reading and
//! writing. The superuser opens them at the first use, and all calls share them. Each open and call
//! checks the permissions of its caller. When descriptors are scarce (`descriptors`), they are
//! opened for each use. Attributes and contents come from the kernel each time, so changes by local
//! programs are seen at once. Names are cached in `known`.
//!
//! The objects that were not used for the longest time are evicted (CLOCK). Open objects are
//! evicted only when descriptors are scarce. The table then keeps the number of their opens, and
//! the next call opens them by their handle. Open objects without a name stay until their last
//! close, because the kernel cannot open their handle. Files with unsynced or journaled writes stay
//! until they are synced. The kernel reports an error of the disk only to descriptors that were
//! open when it happened.

use super::descriptors::{Counted, Descriptors};
use super::known::DirectoryFacts;
use super::sys;
use hither_vfs::{Error, Fh, FileKind, Result};
use parking_lot::Mutex;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Shards of the table, each with its own lock.
const SHARDS: usize = 16;
/// Objects that an eviction looks at to find one.
const TRIES: usize = 16;
/// Most objects evicted for one new object.
const DROPPED_MAX: usize = 2;
/// While descriptors are scarce, `tidy` looks at this many times as many objects.
const SCARCE_TIMES: usize = 64;

/// An error from an errno of rustix.
pub(super) fn os(e: rustix::io::Errno) -> Error {
    Error::new(e.raw_os_error())
}

/// One object.
pub(super) struct Object {
    pub fh: Fh,
    pub kind: FileKind,
    path: Counted,
    io: Mutex<Io>,
    /// Opens that were not closed. Changed under the lock of the shard.
    opens: AtomicU32,
    /// Changes through this server that began and ended. Attributes read during a change may be
    /// older than the data.
    pub changes: Changes,
    /// Those of the changes that set owner or permissions.
    pub modes: Changes,
    /// Whether there are unsynced writes.
    pub unsynced: AtomicBool,
    /// Held while bytes are written and their record is made, so both have the same order.
    pub order: Mutex<()>,
    /// The last record in the journal with bytes of this file; 0: none.
    pub journaled: AtomicU64,
    /// The number of the last record of this file at the last write without a record.
    pub bare: AtomicU64,
    /// A descriptor that reports failed write-backs, opened before records were made.
    pub probe: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether the next checkpoint syncs this object.
    pub listed: AtomicBool,
    /// Whether a watch holds a write lease on the object. Then no other descriptor is opened.
    pub alone: AtomicBool,
    /// Cached facts about the names of a directory.
    pub known: Mutex<Option<Arc<DirectoryFacts>>>,
    used: AtomicBool,
}

#[derive(Default)]
struct Io {
    read: Option<Arc<Counted>>,
    write: Option<Arc<Counted>>,
    used: bool,
}

/// Counts changes.
#[derive(Default)]
pub(super) struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Changes {
    /// Begins a change, which ends when the result is dropped.
    pub fn begin(&self) -> Changing<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Changing(self)
    }

    /// Number of changes begun; `None` while a change is in progress.
    pub fn quiet(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }

    /// Whether no change has begun since `begun` were counted.
    pub fn still(&self, begun: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == begun
    }
}

/// A change in progress.
pub(super) struct Changing<'a>(&'a Changes);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Object {
    /// Whether there are opens that were not closed.
    pub fn is_open(&self) -> bool {
        self.opens.load(Ordering::SeqCst) > 0
    }

    /// Present attributes from the kernel.
    pub fn stat(&self) -> Result<Statx> {
        stat(self.path.as_fd())
    }

    /// The `O_PATH` descriptor.
    pub fn path(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }

    /// A descriptor opened with `flags` and with the present identity of the thread. `proc_fd` is
    /// /proc/self/fd.
    pub fn reopen(&self, proc_fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        let name = self.path.as_raw_fd().to_string();
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        rustix::fs::openat(proc_fd, name, flags, Mode::empty()).map_err(os)
    }

    /// Name of the descriptor in /proc/self/fd.
    pub fn proc_name(&self) -> String {
        self.path.as_raw_fd().to_string()
    }

    /// An `O_PATH` descriptor of the object of `fd`.
    pub fn path_of(fd: &OwnedFd, proc_fd: BorrowedFd<'_>) -> Result<OwnedFd> {
        let name = fd.as_raw_fd().to_string();
        rustix::fs::openat(proc_fd, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(os)
    }

    /// Keeps a descriptor for writing, unless the object has one or descriptors are scarce.
    pub fn keep_io(&self, fd: OwnedFd) {
        if !self.path.among().are_scarce() {
            self.io.lock().write.get_or_insert(Arc::new(self.counted(fd)));
        }
    }

    fn counted(&self, fd: OwnedFd) -> Counted {
        Counted::new(fd, self.path.among())
    }

    /// The kept descriptor of a regular file for reading or writing, if any.
    pub fn io_now(&self, write: bool) -> Option<Arc<Counted>> {
        let mut io = self.io.lock();
        io.used = true;
        if write { io.write.clone() } else { io.read.clone().or_else(|| io.write.clone()) }
    }

    /// A descriptor of a regular file for reading or writing. Runs as the superuser.
    ///
    /// # Errors
    /// `EISDIR` and `EINVAL` unless this is a regular file; those of open(2).
    pub fn io(&self, proc_fd: BorrowedFd<'_>, write: bool) -> Result<Arc<Counted>> {
        if let Some(fd) = self.io_now(write) {
            // A descriptor for writing that serves a read stays in its slot alone.
            return Ok(fd);
        }
        let fd = self.io_once(proc_fd, write)?;
        // A writer needs its descriptor until the data is synced.
        if !write && self.path.among().are_scarce() {
            return Ok(fd);
        }
        let mut io = self.io.lock();
        // The first descriptor stays: the kernel reports errors of the disk to it.
        let slot = if write { &mut io.write } else { &mut io.read };
        Ok(slot.get_or_insert(fd).clone())
    }

    /// As [`Object::io`], but a newly opened descriptor is not kept.
    pub fn io_once(&self, proc_fd: BorrowedFd<'_>, write: bool) -> Result<Arc<Counted>> {
        self.need_regular()?;
        if let Some(fd) = self.io_now(write) {
            return Ok(fd);
        }
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(Arc::new(self.counted(self.reopen(proc_fd, flags)?)))
    }

    /// The same for an open: shows that the file can be read, or also written.
    pub fn io_to_open(&self, proc_fd: BorrowedFd<'_>, write: bool) -> Result<Arc<Counted>> {
        if self.path.among().are_scarce() { self.io_once(proc_fd, write) } else { self.io(proc_fd, write) }
    }

    /// Fails unless this is a regular file.
    pub fn need_regular(&self) -> Result<()> {
        match self.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(Error::new(libc::EISDIR)),
            _ => Err(Error::new(libc::EINVAL)),
        }
    }

    /// Fails unless this is a directory.
    pub fn need_dir(&self) -> Result<()> {
        if self.kind == FileKind::Directory { Ok(()) } else { Err(Error::new(libc::ENOTDIR)) }
    }

    /// Fails unless the present identity of the thread has all of `bits` (rwx as 4, 2, 1).
    pub fn access(&self, bits: u32) -> Result<()> {
        sys::access(self.path.as_fd(), bits)
    }

    /// Whether this open object can do without a descriptor for a while. An object under a write
    /// lease cannot, nor can an object without a name.
    fn can_be_reopened(&self) -> bool {
        let watched = self.alone.load(Ordering::SeqCst);
        self.kind == FileKind::Regular && !watched && self.stat().is_ok_and(|stat| stat.stx_nlink > 0)
    }

    /// Closes the descriptors for reading and writing; `false` when a call uses one, or writes are
    /// unsynced.
    pub fn close_io(&self) -> bool {
        let mut io = self.io.lock();
        // Checked under the lock: a writer takes the descriptor before it sets `unsynced`.
        let at_work = |fd: &Option<Arc<Counted>>| fd.as_ref().is_some_and(|fd| Arc::strong_count(fd) > 1);
        if at_work(&io.read) || at_work(&io.write) || self.unsynced.load(Ordering::SeqCst) {
            return false;
        }
        *io = Io::default();
        true
    }

    /// Closes the descriptor for writing; `false` when a call uses it, or writes are unsynced.
    pub fn stop_writing(&self) -> bool {
        if self.unsynced.load(Ordering::SeqCst) {
            return false;
        }
        let mut io = self.io.lock();
        if io.write.as_ref().is_some_and(|fd| Arc::strong_count(fd) > 1) {
            return false;
        }
        io.write = None;
        true
    }

    /// Closes the descriptor for reading. From then on the descriptor for writing serves reads,
    /// while it is open. `false` when a call uses it, or there is no descriptor for writing.
    pub fn stop_reading(&self) -> bool {
        let mut io = self.io.lock();
        if io.read.as_ref().is_some_and(|fd| Arc::strong_count(fd) > 1) || io.write.is_none() {
            return false;
        }
        io.read = None;
        true
    }

    /// Closes descriptors for reading and writing that were not used since the last call: a file
    /// that is open for writing cannot be executed. Those of open files are closed only when
    /// descriptors are scarce.
    fn rest(&self) {
        if self.unsynced.load(Ordering::SeqCst) {
            return;
        }
        if self.is_open() {
            if self.path.among().are_scarce() && !std::mem::take(&mut self.io.lock().used) {
                self.close_idle();
            }
            return;
        }
        let mut io = self.io.lock();
        if !std::mem::take(&mut io.used) {
            *io = Io::default();
        }
    }

    /// Closes descriptors for reading and writing that no call uses. Files with unsynced writes
    /// keep theirs, because those get errors of the disk. The journal syncs files with records, by
    /// descriptors of its own.
    pub fn close_idle(&self) {
        if !self.alone.load(Ordering::SeqCst) {
            self.close_io();
        }
    }
}

/// Attributes of the object of a descriptor.
pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<Statx> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, want).map_err(os)
}

/// A hash of filehandles. A filehandle ends in an authenticator that no client can choose
/// (`handle`), so its last bytes are scattered already. Forged filehandles are never in a table.
type Scatter = BuildHasherDefault<LastBytes>;

#[derive(Default)]
struct LastBytes(u64);

impl Hasher for LastBytes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk() {
            self.0 = u64::from_ne_bytes(*last);
        }
    }

    fn write_usize(&mut self, _: usize) {}
}

/// All known objects.
pub(super) struct Objects {
    shards: [Mutex<Shard>; SHARDS],
    shard_max: usize,
    /// The last settled record of the journal.
    settled: Arc<AtomicU64>,
    descriptors: Arc<Descriptors>,
    /// Whether this process can open an object by its handle alone, wherever the object was moved.
    reopens: bool,
}

#[derive(Default)]
struct Shard {
    known: HashMap<Fh, Arc<Object>, Scatter>,
    /// The number of opens of each open object that is not in `known`.
    away: HashMap<Fh, u32, Scatter>,
    /// All of `known`, and some evicted objects, the longest known first.
    ring: VecDeque<Fh>,
}

impl Objects {
    /// At most about `max` objects that are not open.
    pub fn new(max: usize, settled: Arc<AtomicU64>, descriptors: Arc<Descriptors>, reopens: bool) -> Self {
        let max = max.min(descriptors.max() / 4);
        let shard_max = (max / SHARDS).max(4);
        Self { shards: Default::default(), shard_max, settled, descriptors, reopens }
    }

    /// Frees a descriptor for one more file, if necessary.
    ///
    /// # Errors
    /// `EMFILE`: no descriptor is left for it.
    pub fn room(&self) -> Result<()> {
        for shard in &self.shards {
            if !self.descriptors.are_gone() {
                return Ok(());
            }
            let dropped = shard.lock().evict(self.settled.load(Ordering::SeqCst), self.gives_back());
            drop(dropped);
        }
        if self.descriptors.are_gone() { Err(Error::new(libc::EMFILE)) } else { Ok(()) }
    }

    /// Whether no descriptor is left for one more use.
    pub fn are_used_up(&self) -> bool {
        self.descriptors.are_gone()
    }

    /// Whether idle open objects release their descriptors.
    fn gives_back(&self) -> bool {
        self.reopens && self.are_scarce()
    }

    /// Whether descriptors that can be opened again are to be closed.
    pub fn are_scarce(&self) -> bool {
        self.descriptors.are_scarce()
    }

    /// Up to `each_max` objects of each shard, others at each call.
    pub fn some(&self, each_max: usize) -> impl Iterator<Item = Arc<Object>> {
        self.shards.iter().flat_map(move |shard| {
            let mut shard = shard.lock();
            let count = shard.ring.len().min(each_max);
            (0..count).filter_map(|_| shard.turn()).collect::<Vec<_>>()
        })
    }

    /// Counts a descriptor.
    pub fn counted(&self, fd: OwnedFd) -> Counted {
        Counted::new(fd, &self.descriptors)
    }

    fn shard(&self, fh: &Fh) -> &Mutex<Shard> {
        // These bits differ from those that the table of the shard uses.
        &self.shards[(Scatter::default().hash_one(fh) >> 32) as usize % SHARDS]
    }

    /// A known object.
    pub fn find(&self, fh: &Fh) -> Option<Arc<Object>> {
        let object = self.shard(fh).lock().known.get(fh)?.clone();
        object.used.store(true, Ordering::Relaxed);
        Some(object)
    }

    /// The object of a descriptor with this filehandle. If the object is known already, returns the
    /// known one.
    pub fn add(&self, fh: Fh, fd: OwnedFd, stat: &Statx) -> Result<Arc<Object>> {
        let kind = super::attr::kind(stat)?;
        let mut dropped = Vec::new();
        let object = {
            let mut shard = self.shard(&fh).lock();
            if let Some(object) = shard.known.get(&fh) {
                object.used.store(true, Ordering::Relaxed);
                let object = object.clone();
                drop(shard);
                return Ok(object);
            }
            // More than one is evicted per new object. Otherwise open objects from before the
            // scarcity would stay.
            while shard.known.len() >= self.shard_max && dropped.len() < DROPPED_MAX {
                match shard.evict(self.settled.load(Ordering::SeqCst), self.gives_back()) {
                    Some(object) => dropped.push(object),
                    None => break,
                }
            }
            let object = Arc::new(Object {
                fh: fh.clone(),
                kind,
                path: self.counted(fd),
                io: Mutex::default(),
                opens: AtomicU32::new(shard.away.remove(&fh).unwrap_or(0)),
                changes: Changes::default(),
                modes: Changes::default(),
                unsynced: AtomicBool::new(false),
                order: Mutex::new(()),
                journaled: AtomicU64::new(0),
                bare: AtomicU64::new(0),
                probe: Mutex::default(),
                listed: AtomicBool::new(false),
                alone: AtomicBool::new(false),
                known: Mutex::default(),
                used: AtomicBool::new(false),
            });
            shard.known.insert(fh.clone(), object.clone());
            shard.ring.push_back(fh);
            object
        };
        // Closed without the lock: the last close of an unlinked file frees its blocks.
        drop(dropped);
        Ok(object)
    }

    /// Counts an open, until [`Objects::close`].
    pub fn open(&self, object: &Arc<Object>) -> Arc<Object> {
        let mut shard = self.shard(&object.fh).lock();
        // The object may have been evicted between the look-up and the open.
        let known = match shard.known.get(&object.fh) {
            Some(known) => known.clone(),
            None => {
                shard.known.insert(object.fh.clone(), object.clone());
                shard.ring.push_back(object.fh.clone());
                object.clone()
            }
        };
        known.opens.fetch_add(1, Ordering::SeqCst);
        known
    }

    /// Counts a close, and drops an object without names.
    pub fn close(&self, fh: &Fh) {
        let closed = {
            let mut shard = self.shard(fh).lock();
            match shard.known.get(fh) {
                Some(object) => (object.opens.fetch_sub(1, Ordering::SeqCst) == 1).then(|| object.clone()),
                None => {
                    if let Entry::Occupied(mut away) = shard.away.entry(fh.clone()) {
                        *away.get_mut() -= 1;
                        if *away.get() == 0 {
                            away.remove();
                        }
                    }
                    None
                }
            }
        };
        if let Some(object) = closed {
            self.forget_if_gone(&object);
        }
    }

    /// Whether an object must be held while one of its names is removed. Otherwise its opens might
    /// lose it.
    pub fn is_to_be_held(&self, fh: &Fh) -> bool {
        if self.gives_back() {
            return true;
        }
        let shard = self.shard(fh).lock();
        shard.away.contains_key(fh) || shard.known.get(fh).is_some_and(|object| object.is_open())
    }

    /// Drops an object without names, unless it is open.
    pub fn forget_if_gone(&self, object: &Arc<Object>) {
        if object.stat().is_ok_and(|s| s.stx_nlink == 0) {
            self.forget(object);
        }
    }

    /// Drops an object unless it is open.
    pub fn forget(&self, object: &Arc<Object>) {
        let mut shard = self.shard(&object.fh).lock();
        if object.is_open() {
            return;
        }
        let same = shard.known.get(&object.fh).is_some_and(|known| Arc::ptr_eq(known, object));
        let gone = if same { shard.known.remove(&object.fh) } else { None };
        drop(shard);
        drop(gone);
    }

    /// Whether all records of a file are settled.
    pub fn is_settled(&self, object: &Object) -> bool {
        object.journaled.load(Ordering::SeqCst) <= self.settled.load(Ordering::SeqCst)
    }

    /// Number of known objects.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().known.len()).sum()
    }

    /// Looks at some objects: closes unused descriptors and drops objects without names. Returns
    /// files whose writes are to be synced.
    pub fn tidy(&self, each_max: usize) -> Vec<Arc<Object>> {
        let mut unsynced = Vec::new();
        let each_max = if self.are_scarce() { each_max * SCARCE_TIMES } else { each_max };
        for shard in &self.shards {
            let some: Vec<Arc<Object>> = {
                let mut shard = shard.lock();
                let count = shard.ring.len().min(each_max);
                (0..count).filter_map(|_| shard.turn()).collect()
            };
            for object in some {
                object.rest();
                object.forget_unused();
                if object.unsynced.load(Ordering::SeqCst) && !object.used.swap(false, Ordering::Relaxed) {
                    unsynced.push(object);
                } else if !object.is_open() {
                    self.forget_if_gone(&object);
                }
            }
        }
        unsynced
    }
}

impl Shard {
    /// Moves the longest known object to the end; `None` when it was evicted already.
    fn turn(&mut self) -> Option<Arc<Object>> {
        let fh = self.ring.pop_front()?;
        let object = self.known.get(&fh)?.clone();
        self.ring.push_back(fh);
        Some(object)
    }

    /// Evicts an object that is not in use. With `open_ones`, this may be an open object that can
    /// be opened by its handle.
    fn evict(&mut self, settled: u64, open_ones: bool) -> Option<Arc<Object>> {
        for _ in 0..TRIES {
            if self.ring.is_empty() {
                return None;
            }
            let Some(object) = self.turn() else { continue };
            let used = object.used.swap(false, Ordering::Relaxed);
            // Two references: the table's and this one. A further reference is a call that uses the
            // object.
            let busy = Arc::strong_count(&object) > 2 || object.is_open() && !open_ones;
            // An object with records stays, so that a sync of the file can void them.
            let recorded = object.journaled.load(Ordering::SeqCst) > settled;
            if used || busy || recorded || object.unsynced.load(Ordering::SeqCst) {
                continue;
            }
            let opens = object.opens.load(Ordering::SeqCst);
            if opens > 0 {
                if !object.can_be_reopened() {
                    continue;
                }
                self.away.insert(object.fh.clone(), opens);
            }
            self.ring.pop_back();
            return self.known.remove(&object.fh);
        }
        None
    }
}
