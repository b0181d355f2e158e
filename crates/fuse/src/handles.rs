//! Open files and directories, under the numbers that the kernel passes back.

use crate::in_use::Quiet;
use crate::inode::{Inode, Moment};
use crate::passthrough::Noted;
use hither_vfs::{Cred, Data, DirEntry, LockOwner, OpenAccess, OpenId, Read};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// An open file. Data moves through it with the identity of its opener, as NFS does.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The file.
    pub inode: Arc<Inode>,
    /// The open of the layer below.
    pub open: OpenId,
    /// Use.
    pub access: OpenAccess,
    /// Whether it may be closed already.
    pub quiet: Quiet,
    /// The opener.
    pub cred: Arc<Cred>,
    /// Held for reading by calls that take locks, until an abandoned lock is given back; closing
    /// waits for them.
    pub locking: Arc<tokio::sync::RwLock<()>>,
    /// Owners of fcntl(2) locks taken through this open. A process gives its locks up with FLUSH.
    /// Locks left at the release belong to the open itself (F_OFD_SETLK), and the kernel does not
    /// name it there.
    pub lockers: Mutex<HashSet<LockOwner>>,
    /// First bytes that came along, until they were read.
    pub first: Mutex<Option<First>>,
    /// So many writes of the file were made stable when somebody asked through this open, or before
    /// it: each open has to be told of errors.
    pub committed: AtomicU64,
    /// Where its reads go, in mounts where they may go elsewhere; until the kernel has given it up.
    pub noted: Mutex<Option<Noted>>,
}

/// First bytes of a file that came along with an answer.
#[derive(Debug, Clone)]
pub(crate) struct First {
    /// The change value they belong to.
    pub change: u64,
    /// When the answer was asked for. Two states of a file can have one change value, where the
    /// server's clock is coarse.
    pub asked: Moment,
    /// The bytes.
    pub read: Read,
}

impl OpenFile {
    /// Bytes at `offset` that came along with the open, at most `size`, and whether the file ends
    /// with them.
    pub fn take_first(&self, offset: u64, size: usize) -> (Data, bool) {
        let mut first = self.first.lock();
        let none = (Data::default(), false);
        let Some(First { change, asked, read }) = first.as_ref() else { return none };
        let (len, from) = (read.data.len(), usize::try_from(offset).unwrap_or(usize::MAX));
        if !self.inode.holds(*change, *asked) || from >= len {
            *first = None;
            return none;
        }
        let to = len.min(from.saturating_add(size));
        let (mut data, mut start) = (Data::default(), 0);
        for part in read.data.parts() {
            let (a, b) = (from.max(start), to.min(start + part.len()));
            if a < b {
                data.push(part.slice(a - start..b - start));
            }
            start += part.len();
        }
        let end = to == len && read.eof;
        if to == len {
            *first = None;
        }
        (data, end)
    }
}

/// Opens whose first bytes came along and were not read yet, the oldest first: files may be open
/// for long without being read.
#[derive(Debug, Default)]
pub(crate) struct Unread(Mutex<VecDeque<u64>>);

impl Unread {
    /// Takes note of one more; returns the one that has to give its bytes up for it when there are
    /// `most`.
    pub fn add(&self, id: u64, most: usize) -> Option<u64> {
        let mut ids = self.0.lock();
        ids.push_back(id);
        (ids.len() > most).then(|| ids.pop_front()).flatten()
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    /// The directory.
    pub inode: Arc<Inode>,
    /// The opener.
    pub cred: Arc<Cred>,
    /// The kernel may answer from its cache through it.
    pub cached: bool,
    /// The page read last. Readers of one descriptor take turns.
    pub page: tokio::sync::Mutex<Page>,
}

/// A page of a directory, kept because the kernel may take it in smaller pieces.
#[derive(Debug)]
pub(crate) struct Page {
    /// Cookie it was asked for with.
    pub from: u64,
    /// Entries in order.
    pub entries: Vec<DirEntry>,
    /// Where the last piece ended.
    pub next: usize,
    /// Cookie of the last entry given: a reader that asks for another one has sought.
    pub given: u64,
    /// Entries of a piece at most.
    pub piece_max: usize,
    /// Nothing follows.
    pub eof: bool,
    /// There is a page.
    pub filled: bool,
    /// Verifier for the cookies.
    pub verifier: [u8; 8],
    /// When it was asked for.
    pub asked: Moment,
    /// Until when all objects given to the kernel since the start hold; `None` when some were
    /// missing.
    pub hold: Option<Instant>,
    /// When the start was asked for, and the change value of the listing that the kernel had cached
    /// then.
    pub began: Moment,
    pub base: Option<u64>,
    /// Until when all entries given since the start hold.
    pub until: Instant,
    /// The directory was under a lease before anything of it was asked for.
    pub leased: bool,
    /// Bytes to ask for next time.
    pub ask_bytes: u32,
    /// Pages since the start, and a cookie seen on the way: meeting it again means that the server
    /// runs in a circle.
    pub pages: u64,
    pub milestone: Option<u64>,
}

/// Things under numbers that are never used twice.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    table: Mutex<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { table: Mutex::default(), next: AtomicU64::new(1) }
    }
}

impl<T> Handles<T> {
    /// Whether there is one like that.
    pub fn any(&self, like: impl Fn(&T) -> bool) -> bool {
        self.table.lock().values().any(|thing| like(thing))
    }

    /// Adds a thing.
    pub fn add(&self, thing: T) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.lock().insert(id, Arc::new(thing));
        id
    }

    /// Finds a thing.
    pub fn find(&self, id: u64) -> Option<Arc<T>> {
        self.table.lock().get(&id).cloned()
    }

    /// Removes a thing.
    pub fn remove(&self, id: u64) -> Option<Arc<T>> {
        self.table.lock().remove(&id)
    }

    /// Everything.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.table.lock().values().cloned().collect()
    }

    /// Removes everything.
    pub fn drain(&self) -> Vec<Arc<T>> {
        self.table.lock().drain().map(|(_, thing)| thing).collect()
    }

    /// Number of things.
    pub fn len(&self) -> usize {
        self.table.lock().len()
    }
}
