//! The state of clients: opens with their share reservations, byte-range locks (RFC 8881 sections 8
//! and 9), and delegations.
//!
//! The module knows nothing of operations on the wire. A stateid is a number of the server. It
//! stays the same for all changes of one open, or of one owner's locks on a file. Its sequence
//! number grows with each change. A file with opens has one entry with all of them. Share
//! reservations and locks of different clients are compared there. An open of the `Vfs` lives as
//! long as a call uses it, even when the client closes the file during the call.
//!
//! Calls of one client run concurrently. Some clients free a stateid while they request its owner's
//! next lock. Changes of a file's state are therefore serialised by the file's `order`. A call
//! looks its stateid up (again) under `order`, and takes the sequence number of its reply there.
//!
//! Locks: `Registry::files`, then a file's `opens` or `lockers`, then a client's `states`, then
//! `Registry::states`. A file's `order` is held across awaits and taken first.

use super::clients::Client;
use super::delegation::Delegation;
use super::ranges::Ranges;
use crate::table::Export;
use bytes::Bytes;
use hither_proto::nfs4::{Nfsstat4, Stateid, open};
use hither_vfs::{Cred, Fh, OpenAccess, OpenId, RequestContext};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The identity of a file: the number of its export, and its handle.
pub(crate) type FileKey = (u32, Fh);

/// An open of the `Vfs`, closed after its last use.
pub(crate) struct VfsOpen {
    pub export: Arc<Export>,
    pub fh: Fh,
    pub id: OpenId,
    pub access: OpenAccess,
}

impl Drop for VfsOpen {
    fn drop(&mut self) {
        let (export, fh, id) = (self.export.clone(), self.fh.clone(), self.id);
        // Outside of a runtime the process is ending, and its opens end with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let cx = RequestContext::new(Arc::new(Cred::root()));
            if let Err(e) = export.vfs.close(&cx, &fh, id).await {
                tracing::warn!("closing a file of {}: {e}", export.path);
            }
        });
    }
}

/// A file with opens.
pub(crate) struct FileState {
    pub key: FileKey,
    pub export: Arc<Export>,
    pub opens: Mutex<Vec<Arc<Open>>>,
    /// Owners with locks. They end with their open.
    pub lockers: Mutex<Vec<Arc<Locks>>>,
    pub ranges: Mutex<Ranges>,
    /// Owners that requested a conflicting lock and wait for CB_NOTIFY_LOCK.
    pub waiters: Mutex<Vec<Waiter>>,
    /// Serialises changes of opens and locks, from the look-up of the stateid to the new stateid.
    /// The tables and the layer below change together.
    pub order: tokio::sync::Mutex<()>,
    /// Notified when an OPEN in progress ends.
    pub settled: tokio::sync::Notify,
}

/// A lock-owner that waits for a lock.
#[derive(Clone)]
pub(crate) struct Waiter {
    pub client: Arc<Client>,
    pub owner: Bytes,
    pub minor: u32,
}

/// An open of a client: one for each file and open-owner.
pub(crate) struct Open {
    pub other: [u8; 12],
    pub client: Arc<Client>,
    pub owner: Bytes,
    pub file: Arc<FileState>,
    pub inner: Mutex<OpenInner>,
}

pub(crate) struct OpenInner {
    /// 0 until an OPEN has succeeded.
    pub seqid: u32,
    /// `SHARE_ACCESS_*`.
    pub access: u32,
    /// `SHARE_DENY_*`.
    pub deny: u32,
    /// The access and deny bits of OPENs in progress. They count for other opens, and become bits
    /// of this one when the OPEN succeeds.
    pub pending: SmallVec<[(u32, u32); 1]>,
    pub below: SmallVec<[Arc<VfsOpen>; 1]>,
    pub closed: bool,
}

/// The locks of one owner on one file.
pub(crate) struct Locks {
    pub other: [u8; 12],
    pub client: Arc<Client>,
    /// The client's name for the owner.
    pub owner: Bytes,
    /// The server's number for the owner.
    pub number: u64,
    /// The opens through which the owner took locks, at least one. The locks end with the last.
    pub opens: Mutex<SmallVec<[Arc<Open>; 1]>>,
    pub seqid: Mutex<u32>,
}

/// The state that a stateid names.
#[derive(Clone)]
pub(crate) enum State {
    Open(Arc<Open>),
    Locks(Arc<Locks>),
    Delegation(Arc<Delegation>),
}

impl State {
    pub fn client(&self) -> &Arc<Client> {
        match self {
            Self::Open(o) => &o.client,
            Self::Locks(l) => &l.client,
            Self::Delegation(d) => &d.client,
        }
    }

    /// The file of an open or of locks. `None` for a delegation.
    pub fn file(&self) -> Option<Arc<FileState>> {
        self.open_for(0).map(|open| open.file.clone())
    }

    /// The open for I/O with these access bits; one without them when there is no such open. `None`
    /// for a delegation.
    pub fn open_for(&self, access: u32) -> Option<Arc<Open>> {
        match self {
            Self::Open(o) => Some(o.clone()),
            Self::Locks(l) => Some(l.open_for(access)),
            Self::Delegation(_) => None,
        }
    }

    pub fn seqid(&self) -> u32 {
        match self {
            Self::Open(o) => o.inner.lock().seqid,
            Self::Locks(l) => *l.seqid.lock(),
            Self::Delegation(d) => d.stateid().seqid,
        }
    }
}

impl Open {
    pub fn stateid(&self) -> Stateid {
        Stateid { seqid: self.inner.lock().seqid, other: self.other }
    }

    /// Ends an OPEN in progress. The caller holds the file's `order`.
    pub fn settle(&self, claim: (u32, u32)) -> MutexGuard<'_, OpenInner> {
        let mut inner = self.inner.lock();
        inner.settle(claim);
        self.file.settled.notify_waiters();
        inner
    }

    /// An open of the `Vfs` with this access, when there is one.
    pub fn below(&self, access: OpenAccess) -> Option<Arc<VfsOpen>> {
        self.inner.lock().below.iter().find(|b| b.access.contains(access)).cloned()
    }
}

impl OpenInner {
    /// The access and deny bits with those of OPENs in progress.
    pub fn claims(&self) -> (u32, u32) {
        let all = (self.access, self.deny);
        self.pending.iter().fold(all, |all, claim| (all.0 | claim.0, all.1 | claim.1))
    }

    /// An OPEN in progress has ended.
    fn settle(&mut self, claim: (u32, u32)) {
        if let Some(place) = self.pending.iter().position(|pending| *pending == claim) {
            self.pending.swap_remove(place);
        }
    }
}

impl Locks {
    /// An open of the owner with these access bits, or one without them.
    pub fn open_for(&self, access: u32) -> Arc<Open> {
        let opens = self.opens.lock();
        opens.iter().find(|o| o.inner.lock().access & access == access).unwrap_or(&opens[0]).clone()
    }

    pub fn file(&self) -> Arc<FileState> {
        self.opens.lock()[0].file.clone()
    }

    /// The owner has taken a lock through an open.
    pub fn bind(&self, open: &Arc<Open>) {
        let mut opens = self.opens.lock();
        if !opens.iter().any(|o| Arc::ptr_eq(o, open)) {
            opens.push(open.clone());
        }
    }

    /// An open ends. Returns whether the locks end with it.
    fn unbind(&self, open: &Arc<Open>) -> bool {
        let mut opens = self.opens.lock();
        let bound = opens.iter().position(|o| Arc::ptr_eq(o, open));
        match bound {
            Some(place) if opens.len() > 1 => {
                opens.swap_remove(place);
                false
            }
            bound => bound.is_some(),
        }
    }

    /// Advances the sequence number and returns the new stateid.
    pub fn changed(&self) -> Stateid {
        let mut seqid = self.seqid.lock();
        *seqid = next(*seqid);
        Stateid { seqid: *seqid, other: self.other }
    }
}

/// The next sequence number of a stateid. It skips zero, which means the current one.
pub(crate) fn next(seqid: u32) -> u32 {
    match seqid.wrapping_add(1) {
        0 => 1,
        n => n,
    }
}

/// All state of all clients.
pub(crate) struct Registry {
    boot: u32,
    next: AtomicU64,
    files: Mutex<HashMap<FileKey, Weak<FileState>>>,
    states: Mutex<HashMap<[u8; 12], State>>,
    count: AtomicUsize,
    max: usize,
}

impl Registry {
    pub fn new(boot: u32, max: usize) -> Self {
        Self {
            boot,
            next: AtomicU64::new(1),
            files: Mutex::default(),
            states: Mutex::default(),
            count: AtomicUsize::new(0),
            max,
        }
    }

    /// Number of opens, locks and delegations.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    pub fn max(&self) -> usize {
        self.max
    }

    pub fn is_full(&self) -> bool {
        self.count() >= self.max
    }

    /// A number that was never used before, for stateids and lock owners.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    pub fn other(&self) -> [u8; 12] {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.boot.to_be_bytes());
        other[4..].copy_from_slice(&self.number().to_be_bytes());
        other
    }

    /// The entry of a file. `None` when no client has the file open.
    pub fn file(&self, key: &FileKey) -> Option<Arc<FileState>> {
        self.files.lock().get(key).and_then(Weak::upgrade)
    }

    /// The entry of a file, created when there is none.
    pub fn file_or_new(&self, export: &Arc<Export>, fh: &Fh) -> Arc<FileState> {
        let key = (export.number, fh.clone());
        let mut files = self.files.lock();
        if let Some(file) = files.get(&key).and_then(Weak::upgrade) {
            return file;
        }
        let file = Arc::new(FileState {
            key: key.clone(),
            export: export.clone(),
            opens: Mutex::default(),
            lockers: Mutex::default(),
            ranges: Mutex::default(),
            waiters: Mutex::default(),
            order: tokio::sync::Mutex::new(()),
            settled: tokio::sync::Notify::new(),
        });
        files.insert(key, Arc::downgrade(&file));
        file
    }

    /// Adds state of a client.
    ///
    /// # Errors
    /// `EXPIRED`: the client has been removed.
    pub fn add(&self, state: State) -> Result<(), Nfsstat4> {
        let other = match &state {
            State::Open(o) => o.other,
            State::Locks(l) => l.other,
            State::Delegation(d) => d.other,
        };
        let client = state.client().clone();
        let mut of_client = client.states.lock();
        if client.is_gone() {
            return Err(Nfsstat4::EXPIRED);
        }
        of_client.insert(other, state.clone());
        self.states.lock().insert(other, state);
        self.count.fetch_add(1, Relaxed);
        Ok(())
    }

    pub fn forget(&self, client: &Client, other: &[u8; 12]) {
        client.states.lock().remove(other);
        if self.states.lock().remove(other).is_some() {
            self.count.fetch_sub(1, Relaxed);
        }
    }

    /// The state that a client's stateid names (RFC 8881 section 8.2.4).
    pub fn find(&self, client: &Client, id: &Stateid) -> Result<State, Nfsstat4> {
        if id.is_special() {
            return Err(Nfsstat4::BAD_STATEID);
        }
        let state = self.states.lock().get(&id.other).cloned();
        let Some(state) = state else {
            let of_this_run = id.other[..4] == self.boot.to_be_bytes();
            return Err(if of_this_run { Nfsstat4::BAD_STATEID } else { Nfsstat4::STALE_STATEID });
        };
        if state.client().id != client.id {
            return Err(Nfsstat4::BAD_STATEID);
        }
        match state.seqid() {
            _ if id.seqid == 0 => Ok(state),
            now if now == id.seqid => Ok(state),
            now if id.seqid.wrapping_sub(now) < 1 << 31 => Err(Nfsstat4::BAD_STATEID),
            _ => Err(Nfsstat4::OLD_STATEID),
        }
    }

    /// Ends an open, and the locks whose owners have no other open. The caller holds the file's
    /// `order`. Returns the locks' owners, which the caller must release in the layer below.
    pub fn close(&self, open: &Arc<Open>) -> Vec<Arc<Locks>> {
        let below = {
            let mut inner = open.inner.lock();
            inner.closed = true;
            std::mem::take(&mut inner.below)
        };
        open.file.opens.lock().retain(|o| !Arc::ptr_eq(o, open));
        let of_open: Vec<Arc<Locks>> =
            open.file.lockers.lock().iter().filter(|l| l.unbind(open)).cloned().collect();
        for locks in &of_open {
            self.release_locks(locks);
        }
        self.forget(&open.client, &open.other);
        drop(below);
        self.forget_file(&open.file);
        of_open
    }

    /// Ends all locks of an owner on a file. The caller holds the file's `order`.
    pub fn release_locks(&self, locks: &Arc<Locks>) {
        let all = hither_vfs::FileRange { start_bytes: 0, end_bytes: u64::MAX };
        let file = locks.file();
        file.ranges.lock().release(locks.number, all);
        file.lockers.lock().retain(|l| !Arc::ptr_eq(l, locks));
        self.forget(&locks.client, &locks.other);
    }

    /// The locks of an owner on a file.
    pub fn locks_of(&self, client: &Client, file: &Arc<FileState>, owner: &[u8]) -> Option<Arc<Locks>> {
        let lockers = file.lockers.lock();
        lockers.iter().find(|l| l.client.id == client.id && l.owner == owner).cloned()
    }

    /// Removes the entry of a file without opens.
    fn forget_file(&self, file: &Arc<FileState>) {
        let mut files = self.files.lock();
        // Only the ending open refers to the entry. Any other reference belongs to a call that has
        // found the entry and is about to use it. A second entry beside it would lack its opens and
        // locks.
        let is_this = files.get(&file.key).and_then(Weak::upgrade).is_some_and(|f| Arc::ptr_eq(&f, file));
        if is_this && file.opens.lock().is_empty() && Arc::strong_count(file) == 1 {
            files.remove(&file.key);
        }
    }

    /// Opens of a client.
    pub fn opens_of(&self, client: &Client) -> Vec<Arc<Open>> {
        let states = client.states.lock();
        states.values().filter_map(|s| if let State::Open(o) = s { Some(o.clone()) } else { None }).collect()
    }

    /// Opens of the files that `wanted` selects.
    pub fn opens_where(&self, wanted: impl Fn(&FileState) -> bool) -> Vec<Arc<Open>> {
        let files: Vec<Arc<FileState>> = self.files.lock().values().filter_map(Weak::upgrade).collect();
        files.iter().filter(|file| wanted(file)).flat_map(|file| file.opens.lock().clone()).collect()
    }

    /// Drops entries of files without opens.
    pub fn tidy(&self) {
        self.files.lock().retain(|_, file| file.strong_count() > 0);
    }
}

/// Whether two opens exclude each other (RFC 8881 section 9.7).
pub(crate) fn excludes(a: (u32, u32), b: (u32, u32)) -> bool {
    a.0 & b.1 != 0 || b.0 & a.1 != 0
}

/// The access of an open in terms of the `Vfs`.
pub(crate) fn access(share: u32) -> OpenAccess {
    let mut access = OpenAccess::empty();
    if share & open::SHARE_ACCESS_READ != 0 {
        access |= OpenAccess::READ;
    }
    if share & open::SHARE_ACCESS_WRITE != 0 {
        access |= OpenAccess::WRITE;
    }
    access
}
