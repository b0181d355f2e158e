//! Cached facts about a directory that hold until the directory changes. They are handles of names,
//! a listing that fits into one answer, and the callers that may search and read it.
//!
//! All facts belong to one value of the directory's `change`. When `change` differs, the kernel is
//! asked again. With multigrain timestamps the kernel never gives one `change` to two states of a
//! directory (`attr`). So while `change` stays the same, each name means the same object, and the
//! kernel would grant a caller the same access. New, removed and renamed entries change it, and so
//! do changes of owner, permissions and ACLs. Attributes of objects are never cached.
//!
//! During a change the kernel holds the lock of the directory. It sets the ctime first, and updates
//! the names in its memory afterwards. So a look-up right after the new ctime may still find the
//! old object. A read of the directory takes the lock. A look-up after that read finds the object
//! that belongs to the ctime, or a newer one; then the ctime is newer as well. The directory is
//! read at the second question about the same state. So directories that change all the time cost
//! nothing more.

use super::Inner;
use super::attr::is_lasting;
use super::object::Object;
use super::pool::Worker;
use hither_vfs::{
    Cred, DirEntry, DirPage, Fh, FileKind, Name, Node, PathRef, RequestContext, Stop, WalkRequest, WalkResult,
};
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::fs::{OFlags, RawDir, StatxAttributes};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Approximate limit of all cached facts, in bytes.
const KNOWN_MAX_BYTES: usize = 64 << 20;
/// Memory for a name besides its own bytes.
const NAME_BYTES: usize = 160;
/// Callers whose access to a directory is cached.
const CALLERS_MAX: usize = 8;
/// Most entries of a listing that is answered without another thread.
const ENTRIES_AT_ONCE: usize = 512;
/// Space for one entry.
const ENTRY_MAX_BYTES: usize = 1 << 10;

/// Access bits: search and read.
pub(super) const SEARCH: u8 = 1;
pub(super) const READ: u8 = 4;

/// Bytes of all cached facts.
#[derive(Default)]
pub(super) struct Budget(Arc<AtomicUsize>);

#[cfg(test)]
impl Budget {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The cached facts about one state of a directory.
pub(super) struct DirectoryFacts {
    change: u64,
    /// All changes that began before this ctime was noted have ended.
    settled: AtomicBool,
    names: Mutex<HashMap<Name, Fh>>,
    listing: OnceLock<Vec<Listed>>,
    callers: Mutex<Vec<(Arc<Cred>, u8)>>,
    /// Whether a call has used the facts since the last check.
    used: AtomicBool,
    bytes: AtomicUsize,
    all: Arc<AtomicUsize>,
}

/// An entry of a listing, with the handle of its object if that was found.
pub(super) struct Listed {
    pub entry: DirEntry,
    pub fh: Option<Fh>,
}

impl Drop for DirectoryFacts {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl DirectoryFacts {
    fn new(change: u64, budget: &Budget) -> Self {
        Self {
            change,
            settled: AtomicBool::new(false),
            names: Mutex::default(),
            listing: OnceLock::new(),
            callers: Mutex::default(),
            used: AtomicBool::new(true),
            bytes: AtomicUsize::new(0),
            all: budget.0.clone(),
        }
    }

    /// Reserves memory; `false` when the limit is reached.
    fn takes(&self, bytes: usize) -> bool {
        let taken = self.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= KNOWN_MAX_BYTES;
        if taken {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.all.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// The object of a name.
    pub fn find(&self, name: &Name) -> Option<Fh> {
        self.names.lock().get(name).cloned()
    }

    /// Caches the object that a caller found under a name. The look-up shows that the caller may
    /// search the directory.
    pub fn note(&self, name: &Name, fh: &Fh, cred: &Arc<Cred>) {
        self.grant(cred, SEARCH);
        let mut names = self.names.lock();
        if !names.contains_key(name) && self.takes(NAME_BYTES + name.as_bytes().len()) {
            // The given name is a piece of a message, so the cache keeps a copy.
            if let Ok(name) = Name::new(bytes::Bytes::copy_from_slice(name.as_bytes())) {
                names.insert(name, fh.clone());
            }
        }
    }

    /// Notes an access that the kernel granted to a caller.
    pub fn grant(&self, cred: &Arc<Cred>, bits: u8) {
        let mut callers = self.callers.lock();
        match callers.iter_mut().find(|(c, _)| same(c, cred)) {
            Some((_, has)) => *has |= bits,
            None => {
                if callers.len() >= CALLERS_MAX {
                    callers.remove(0);
                }
                callers.push((cred.clone(), bits));
            }
        }
    }

    /// Whether the kernel has granted a caller all of `bits`.
    pub fn may(&self, cred: &Arc<Cred>, bits: u8) -> bool {
        self.callers.lock().iter().any(|(c, has)| has & bits == bits && same(c, cred))
    }

    /// Caches a whole listing.
    pub fn list(&self, listing: Vec<Listed>) {
        let bytes = listing.iter().map(|l| NAME_BYTES + l.entry.name.as_bytes().len()).sum();
        if self.listing.get().is_none() && self.takes(bytes) {
            // If another thread set the listing first, it is the same listing.
            let _ = self.listing.set(listing);
        }
    }

    /// The whole listing.
    pub fn listing(&self) -> Option<&[Listed]> {
        self.listing.get().map(Vec::as_slice)
    }
}

fn same(a: &Arc<Cred>, b: &Arc<Cred>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

impl Object {
    /// The cached facts about this state of the directory, if they are settled.
    fn known_at(&self, change: u64) -> Option<Arc<DirectoryFacts>> {
        let known = self.known.lock().clone()?;
        if known.change != change || !known.settled.load(Ordering::Acquire) {
            return None;
        }
        known.used.store(true, Ordering::Relaxed);
        Some(known)
    }

    /// Drops facts that were not used since the last call.
    pub(super) fn forget_unused(&self) {
        let mut known = self.known.lock();
        if known.as_ref().is_some_and(|k| !k.used.swap(false, Ordering::Relaxed)) {
            *known = None;
        }
    }
}

impl Inner {
    /// Whether names of directories can be cached. The file system must have multigrain timestamps
    /// and kernel handles. The tree must be a private mount: other mounts in the tree change names
    /// without a change of their directories.
    fn knows_names(&self) -> bool {
        self.attributer.multigrain && self.table.is_none() && self.mount.is_none()
    }

    /// The cached facts about a directory with this `change`. The first call for a `change` returns
    /// `None` unless `at_once` is set. From the second call on, new facts can be added.
    pub(super) fn known(
        &self,
        worker: &mut Worker,
        dir: &Object,
        change: u64,
        at_once: bool,
    ) -> Option<Arc<DirectoryFacts>> {
        if !self.knows_names() || !is_lasting(change) || self.is_covered(&dir.fh) {
            return None;
        }
        let (known, first) = {
            let mut slot = dir.known.lock();
            match &*slot {
                Some(known) if known.change == change => (known.clone(), false),
                _ => {
                    let known = Arc::new(DirectoryFacts::new(change, &self.known_budget));
                    *slot = Some(known.clone());
                    (known, true)
                }
            }
        };
        known.used.store(true, Ordering::Relaxed);
        if known.settled.load(Ordering::Acquire) {
            return Some(known);
        }
        if first && !at_once {
            return None;
        }
        self.wait_for_changes(worker, dir)?;
        known.settled.store(true, Ordering::Release);
        Some(known)
    }

    /// Waits until all current changes of entries and permissions of a directory have ended. The
    /// wait is for the kernel's lock of the directory.
    fn wait_for_changes(&self, worker: &mut Worker, dir: &Object) -> Option<()> {
        // Names in an encrypted directory change when the key is added.
        if dir.stat().ok()?.stx_attributes.contains(StatxAttributes::ENCRYPTED) {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = worker.root(|| dir.reopen(self.proc_fd.as_fd(), flags)).ok()?;
        let mut buf = Vec::with_capacity(ENTRY_MAX_BYTES);
        let first = RawDir::new(&fd, buf.spare_capacity_mut()).next().map(|entry| entry.map(drop));
        first.is_none_or(|entry| entry.is_ok()).then_some(())
    }

    /// A walk along cached names, without another thread. `None`: some names are not cached.
    pub(super) fn walk_known(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
    ) -> Option<WalkResult> {
        if want != WalkRequest::default() || at.path.is_empty() {
            return None;
        }
        let mut here = self.find_in_place(at.base)?;
        here.known.lock().as_ref()?;
        let before = self.attrs(&here).ok()?;
        let mut change = before.attr.change;
        let mut steps = Vec::with_capacity(at.path.len());
        for name in at.path {
            if here.kind != FileKind::Directory || self.is_covered(&here.fh) {
                return None;
            }
            let known = here.known_at(change)?;
            if !known.may(&cx.cred, SEARCH) {
                return None;
            }
            here = self.objects.find(&known.find(name)?)?;
            let node = self.node(&here).ok()?;
            change = node.attrs.attr.change;
            steps.push(node);
        }
        let mut trail = WalkResult::new(steps, Stop::Complete);
        trail.along.base = Some(before);
        Some(trail)
    }

    /// A whole cached listing with nodes, without another thread. `None`: some facts are not
    /// cached.
    pub(super) fn page_known(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        max_bytes: u32,
    ) -> Option<DirPage> {
        if cookie != 0 {
            return None;
        }
        let dir = self.find_in_place(dir).filter(|dir| dir.kind == FileKind::Directory)?;
        if self.is_covered(&dir.fh) {
            return None;
        }
        let known = dir.known_at(self.attrs(&dir).ok()?.attr.change)?;
        let listing = known.listing().filter(|listing| listing.len() <= ENTRIES_AT_ONCE)?;
        if !known.may(&cx.cred, SEARCH | READ) || !super::list::fits(listing, max_bytes) {
            return None;
        }
        let mut entries = Vec::with_capacity(listing.len());
        let asked = tokio::time::Instant::now();
        for listed in listing {
            let object = self.objects.find(listed.fh.as_ref()?)?;
            let attrs = self.attrs_since(&object, asked).ok()?;
            entries.push(listed.with(Node { fh: object.fh.clone(), attrs }));
        }
        Some(DirPage { entries, verifier: [0; 8], eof: true, access: None })
    }
}

impl Listed {
    /// An entry as it was just found.
    pub fn of(entry: &DirEntry) -> Self {
        Self {
            fh: entry.node.as_ref().map(|node| node.fh.clone()),
            entry: DirEntry { node: None, ..entry.clone() },
        }
    }

    /// The entry with the present attributes of its object.
    pub fn with(&self, node: Node) -> DirEntry {
        let attr = &node.attrs.attr;
        DirEntry { fileid: attr.fileid, kind: Some(attr.kind), node: Some(node), ..self.entry.clone() }
    }
}
