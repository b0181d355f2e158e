//! Objects of the directory that are known: a descriptor each, kept as long as there is room.
//!
//! An object is found by its filehandle and holds an `O_PATH` descriptor, which pins the inode: the
//! number is not used again while we have it. Regular files get descriptors for reading and writing
//! as well, opened by the superuser when first needed and shared by all; who may use them is
//! decided with each open and call. When descriptors are scarce (`descriptors`) they are opened for
//! each use. Attributes and contents are asked of the kernel each time, so that what others do to
//! the directory is seen at once; what is remembered of names is in `known`.
//!
//! The objects that were not used for the longest time go (CLOCK). Open objects go only when
//! descriptors are scarce: the table keeps the number of their opens, and the next call opens them
//! by their handle. Open objects without a name stay until their last close, because the kernel
//! opens no handle of theirs. Files with unsynced or journaled writes stay until they are synced:
//! an error of the disk is reported only to those who had the file open when it happened.

use super::descriptors::{Counted, Descriptors};
use super::known::Known;
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

/// Parts of the table, each with its own lock.
const SHARDS: usize = 16;
/// Objects looked at to find one that may go.
const TRIES: usize = 16;
/// Objects that go for one that comes.
const DROPPED_MAX: usize = 2;
/// So many times as many are looked at now and then when descriptors are scarce.
const SCARCE_TIMES: usize = 64;

/// Errno of rustix as ours.
pub(super) fn os(e: rustix::io::Errno) -> Error {
    Error::new(e.raw_os_error())
}

/// One object.
pub(super) struct Object {
    pub fh: Fh,
    pub kind: FileKind,
    path: Counted,
    io: Mutex<Io>,
    /// Opens that were not closed. Changed under the lock of the table's shard.
    opens: AtomicU32,
    /// Changes begun and ended through us: attributes that were taken while one was going on may be
    /// older than the data.
    pub changes: Changes,
    /// Changes of the owner or the permissions among them.
    pub modes: Changes,
    /// Whether there are writes that were not synced.
    pub unsynced: AtomicBool,
    /// Held while bytes and their record are made, so that their orders agree.
    pub order: Mutex<()>,
    /// The last record in the journal with bytes of this file; 0: none.
    pub journaled: AtomicU64,
    /// The last record when bytes without a record were last written.
    pub bare: AtomicU64,
    /// A descriptor that is told of failures to write its pages back, opened before records were
    /// made.
    pub probe: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether it is among those that the next checkpoint syncs.
    pub listed: AtomicBool,
    /// Whether somebody watches it alone: no descriptor is opened then.
    pub alone: AtomicBool,
    /// What is known of a directory's names.
    pub known: Mutex<Option<Arc<Known>>>,
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

    /// Number of changes begun, when none is going on.
    pub fn quiet(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(ended)
    }

    /// Whether no change was begun since there were so many.
    pub fn still(&self, begun: u64) -> bool {
        self.begun.load(Ordering::SeqCst) == begun
    }
}

/// A change that is going on.
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

    /// Attributes as the kernel has them now.
    pub fn stat(&self) -> Result<Statx> {
        stat(self.path.as_fd())
    }

    /// The `O_PATH` descriptor.
    pub fn path(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }

    /// A descriptor to read (or also to write) with, opened as whoever asks; `proc_fd` is
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

    /// A descriptor without rights of what another one is open on.
    pub fn path_of(fd: &OwnedFd, proc_fd: BorrowedFd<'_>) -> Result<OwnedFd> {
        let name = fd.as_raw_fd().to_string();
        rustix::fs::openat(proc_fd, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(os)
    }

    /// Keeps a descriptor for writing unless there is one, or they are scarce.
    pub fn keep_io(&self, fd: OwnedFd) {
        if !self.path.among().are_scarce() {
            self.io.lock().write.get_or_insert(Arc::new(self.counted(fd)));
        }
    }

    fn counted(&self, fd: OwnedFd) -> Counted {
        Counted::new(fd, self.path.among())
    }

    /// A descriptor of a regular file for reading or writing, if there is one.
    pub fn io_now(&self, write: bool) -> Option<Arc<Counted>> {
        let mut io = self.io.lock();
        io.used = true;
        match write {
            true => io.write.clone(),
            false => io.read.clone().or_else(|| io.write.clone()),
        }
    }

    /// A descriptor of a regular file for reading or writing. To be called as the superuser.
    ///
    /// # Errors
    /// `EISDIR` and `EINVAL` for what is no regular file; those of open(2).
    pub fn io(&self, proc_fd: BorrowedFd<'_>, write: bool) -> Result<Arc<Counted>> {
        if let Some(fd) = self.io_now(write) {
            // One for writing that is read by is kept as that alone.
            return Ok(fd);
        }
        let fd = self.io_once(proc_fd, write)?;
        // Whoever writes needs it until that is synced.
        if !write && self.path.among().are_scarce() {
            return Ok(fd);
        }
        let mut io = self.io.lock();
        // The first one stays: it is the one that errors of the disk will be reported to.
        let slot = if write { &mut io.write } else { &mut io.read };
        Ok(slot.get_or_insert(fd).clone())
    }

    /// As [`Object::io`], and it is kept only if it was there before.
    pub fn io_once(&self, proc_fd: BorrowedFd<'_>, write: bool) -> Result<Arc<Counted>> {
        self.need_regular()?;
        if let Some(fd) = self.io_now(write) {
            return Ok(fd);
        }
        let flags = if write { OFlags::RDWR } else { OFlags::RDONLY };
        Ok(Arc::new(self.counted(self.reopen(proc_fd, flags)?)))
    }

    /// For an open: whether the file can be read, or also written.
    pub fn io_to_open(&self, proc_fd: BorrowedFd<'_>, write: bool) -> Result<Arc<Counted>> {
        match self.path.among().are_scarce() {
            true => self.io_once(proc_fd, write),
            false => self.io(proc_fd, write),
        }
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

    /// Whether the caller has all of `bits` (rwx as 4, 2, 1).
    pub fn access(&self, bits: u32) -> Result<()> {
        sys::access(self.path.as_fd(), bits)
    }

    /// Whether this open object can do without a descriptor for a while. One that is watched alone
    /// cannot, nor one without a name.
    fn can_be_reopened(&self) -> bool {
        let watched = self.alone.load(Ordering::SeqCst);
        self.kind == FileKind::Regular && !watched && self.stat().is_ok_and(|stat| stat.stx_nlink > 0)
    }

    /// Closes the descriptors for reading and writing. False when somebody is at work with one.
    pub fn close_io(&self) -> bool {
        let mut io = self.io.lock();
        // Looked at with the lock: who writes has the descriptor before he says that it is
        // unsynced.
        let at_work = |fd: &Option<Arc<Counted>>| fd.as_ref().is_some_and(|fd| Arc::strong_count(fd) > 1);
        if at_work(&io.read) || at_work(&io.write) || self.unsynced.load(Ordering::SeqCst) {
            return false;
        }
        *io = Io::default();
        true
    }

    /// Closes the descriptor for writing; false when somebody is at work with it, or there are
    /// writes that were not synced.
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

    /// Closes the descriptor for reading: from then on there is the one for writing, while there is
    /// one. False when somebody is at work with it.
    pub fn stop_reading(&self) -> bool {
        let mut io = self.io.lock();
        if io.read.as_ref().is_some_and(|fd| Arc::strong_count(fd) > 1) || io.write.is_none() {
            return false;
        }
        io.read = None;
        true
    }

    /// Closes descriptors for reading and writing that nobody used since the last call: a file open
    /// for writing cannot be executed. Those of open files only when they are scarce.
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

    /// Closes descriptors for reading and writing that nobody is at work with. Not of who has
    /// written what was not synced, and is to be told of errors of the disk; what has records is
    /// synced by the journal, and by descriptors of its own.
    pub fn close_idle(&self) {
        if !self.alone.load(Ordering::SeqCst) {
            self.close_io();
        }
    }
}

/// Attributes of what a descriptor stands for.
pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<Statx> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, want).map_err(os)
}

/// Filehandles are scattered already: they end in an authenticator that nobody can choose
/// (`handle`), and others are never in a table.
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

/// All objects that are known.
pub(super) struct Objects {
    shards: [Mutex<Shard>; SHARDS],
    shard_max: usize,
    /// The last record of the journal that is where it belongs.
    settled: Arc<AtomicU64>,
    descriptors: Arc<Descriptors>,
    /// Whether this process can open an object with a name by its handle alone, wherever it was
    /// moved.
    reopens: bool,
}

#[derive(Default)]
struct Shard {
    known: HashMap<Fh, Arc<Object>, Scatter>,
    /// The number of opens of each open object that is not in `known`.
    away: HashMap<Fh, u32, Scatter>,
    /// All of `known`, and some that went already, from the longest known on.
    ring: VecDeque<Fh>,
}

impl Objects {
    /// At most about so many objects that are not open.
    pub fn new(max: usize, settled: Arc<AtomicU64>, descriptors: Arc<Descriptors>, reopens: bool) -> Self {
        let max = max.min(descriptors.max() / 4);
        let shard_max = (max / SHARDS).max(4);
        Self { shards: Default::default(), shard_max, settled, descriptors, reopens }
    }

    /// Another file is to be opened, or held for another reason.
    ///
    /// # Errors
    /// `EMFILE`: there are no descriptors for it.
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

    /// Whether there are none for one more use.
    pub fn are_used_up(&self) -> bool {
        self.descriptors.are_gone()
    }

    /// Whether idle open objects give their descriptors back.
    fn gives_back(&self) -> bool {
        self.reopens && self.are_scarce()
    }

    /// Whether those that can be opened again are to be closed.
    pub fn are_scarce(&self) -> bool {
        self.descriptors.are_scarce()
    }

    /// Some of the objects, others each time.
    pub fn some(&self, each_max: usize) -> impl Iterator<Item = Arc<Object>> {
        self.shards.iter().flat_map(move |shard| {
            let mut shard = shard.lock();
            let count = shard.ring.len().min(each_max);
            (0..count).filter_map(|_| shard.turn()).collect::<Vec<_>>()
        })
    }

    /// Has a descriptor counted.
    pub fn counted(&self, fd: OwnedFd) -> Counted {
        Counted::new(fd, &self.descriptors)
    }

    fn shard(&self, fh: &Fh) -> &Mutex<Shard> {
        // Other bits than those by which the shard's own table goes.
        &self.shards[(Scatter::default().hash_one(fh) >> 32) as usize % SHARDS]
    }

    /// A known object.
    pub fn find(&self, fh: &Fh) -> Option<Arc<Object>> {
        let object = self.shard(fh).lock().known.get(fh)?.clone();
        object.used.store(true, Ordering::Relaxed);
        Some(object)
    }

    /// The object behind a descriptor whose filehandle is known; when there is one already, that
    /// one.
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
            // More than one new, lest open objects of before the scarcity stay.
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
        // Closed without the lock: the last descriptor of an unlinked file frees its blocks.
        drop(dropped);
        Ok(object)
    }

    /// Counts an open, until [`Objects::close`].
    pub fn open(&self, object: &Arc<Object>) -> Arc<Object> {
        let mut shard = self.shard(&object.fh).lock();
        // It may have gone between being found and being opened.
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

    /// Counts a close, and forgets an object that has no names.
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

    /// Whether removing a name may take an object from its opens unless its descriptor is held
    /// meanwhile.
    pub fn is_to_be_held(&self, fh: &Fh) -> bool {
        if self.gives_back() {
            return true;
        }
        let shard = self.shard(fh).lock();
        shard.away.contains_key(fh) || shard.known.get(fh).is_some_and(|object| object.is_open())
    }

    /// Forgets an object without names, unless it is open.
    pub fn forget_if_gone(&self, object: &Arc<Object>) {
        if object.stat().is_ok_and(|s| s.stx_nlink == 0) {
            self.forget(object);
        }
    }

    /// Forgets an object unless it is open.
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

    /// Whether all that the journal has of a file is where it belongs.
    pub fn is_settled(&self, object: &Object) -> bool {
        object.journaled.load(Ordering::SeqCst) <= self.settled.load(Ordering::SeqCst)
    }

    /// Number of objects known.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().known.len()).sum()
    }

    /// Looks at some of the objects: closes what was not used, forgets what has no names. Returns
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
    /// The longest known object goes to the end; `None` when it is not known any more.
    fn turn(&mut self) -> Option<Arc<Object>> {
        let fh = self.ring.pop_front()?;
        let object = self.known.get(&fh)?.clone();
        self.ring.push_back(fh);
        Some(object)
    }

    /// Takes out an object that is not in use; with `open_ones`, also an open one that can be
    /// opened by its handle.
    fn evict(&mut self, settled: u64, open_ones: bool) -> Option<Arc<Object>> {
        for _ in 0..TRIES {
            if self.ring.is_empty() {
                return None;
            }
            let Some(object) = self.turn() else { continue };
            let used = object.used.swap(false, Ordering::Relaxed);
            // Two here: the table's and this one. Whoever else has it is at work with it.
            let busy = Arc::strong_count(&object) > 2 || object.is_open() && !open_ones;
            // Who has records is told of when the file is synced otherwise.
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
