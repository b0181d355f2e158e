//! Open files and directories, by the handle numbers of the kernel.

use crate::appends::Appends;
use crate::in_use::Quiet;
use crate::inode::{Inode, Moment};
use crate::passthrough::Noted;
use hither_vfs::{Attr, Cred, Data, DirEntry, OpenAccess, OpenId, Read};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// An open file. Reads and writes use the identity of its opener, as NFS does.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// The file.
    pub inode: Arc<Inode>,
    /// The open of the layer below.
    pub open: OpenId,
    /// Access of the open.
    pub access: OpenAccess,
    /// Whether the file may be closed already.
    pub quiet: Quiet,
    /// The opener.
    pub cred: Arc<Cred>,
    /// First bytes that the open returned, until they are read.
    pub first: Mutex<Option<First>>,
    /// Number of writes of the file that were stable at the last check through this open or before
    /// the open. Each open must get the error of a write.
    pub committed: AtomicU64,
    /// The running appends.
    pub appends: Appends,
    /// The read path of the open, in mounts with passthrough, until the kernel releases the open.
    pub noted: Mutex<Option<Noted>>,
}

/// First bytes of a file from the reply to an open or a walk.
#[derive(Debug, Clone)]
pub(crate) struct First {
    /// The change attribute of the bytes.
    pub change: u64,
    /// The time of the request. Two states of a file can have one change attribute when the
    /// server's clock is coarse.
    pub asked: Moment,
    /// The bytes.
    pub read: Read,
}

impl OpenFile {
    /// At most `size` of the first bytes at `offset`, and whether the file ends with them.
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

/// Opens with unread first bytes, oldest first. Files may be open for a long time without a read.
#[derive(Debug, Default)]
pub(crate) struct Unread(Mutex<VecDeque<u64>>);

impl Unread {
    /// Adds an open. Returns the open that must drop its bytes when there are more than `most`.
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
    /// Its attributes at the open.
    pub attr: Attr,
    /// The opener.
    pub cred: Arc<Cred>,
    /// The kernel may use its cached listing for this open.
    pub cached: bool,
    /// The last page. Readers of one descriptor take turns.
    pub page: tokio::sync::Mutex<Page>,
}

/// A page of a directory. The kernel may read it in smaller pieces.
#[derive(Debug)]
pub(crate) struct Page {
    /// Cookie of the request.
    pub from: u64,
    /// Entries in order.
    pub entries: Vec<DirEntry>,
    /// Index after the last piece.
    pub next: usize,
    /// Cookie of the last returned entry. A request with another cookie follows a seek.
    pub given: u64,
    /// Maximum number of entries of a piece.
    pub piece_max: usize,
    /// The page is the last one.
    pub eof: bool,
    /// Whether the page was read.
    pub filled: bool,
    /// Verifier for the cookies.
    pub verifier: [u8; 8],
    /// Time of the request.
    pub asked: Moment,
    /// End of the validity of all objects since the start of the listing; `None` when some objects
    /// were missing.
    pub hold: Option<Instant>,
    /// Time of the request for the start of the listing, and change attribute of the kernel's
    /// cached listing at that time.
    pub began: Moment,
    pub base: Option<u64>,
    /// End of the validity of all entries since the start of the listing.
    pub until: Instant,
    /// The directory was under a lease before the start of the listing.
    pub leased: bool,
    /// Size of the next request in bytes.
    pub ask_bytes: u32,
    /// Number of pages since the start, and an earlier cookie. When the cookie repeats, the
    /// server's listing is a loop.
    pub pages: u64,
    pub milestone: Option<u64>,
}

/// Objects with unique numbers.
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
    /// Whether an object satisfies `like`.
    pub fn any(&self, like: impl Fn(&T) -> bool) -> bool {
        self.table.lock().values().any(|thing| like(thing))
    }

    /// An object that satisfies `like`.
    pub fn find_like(&self, like: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.table.lock().values().find(|thing| like(thing)).cloned()
    }

    /// Adds an object.
    pub fn add(&self, thing: T) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.lock().insert(id, Arc::new(thing));
        id
    }

    /// Finds an object.
    pub fn find(&self, id: u64) -> Option<Arc<T>> {
        self.table.lock().get(&id).cloned()
    }

    /// Removes an object.
    pub fn remove(&self, id: u64) -> Option<Arc<T>> {
        self.table.lock().remove(&id)
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.table.lock().values().cloned().collect()
    }

    /// Removes all objects.
    pub fn drain(&self) -> Vec<Arc<T>> {
        self.table.lock().drain().map(|(_, thing)| thing).collect()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.table.lock().len()
    }
}
