//! The open files, as this client and the server see them.
//!
//! A [`FileState`] is a file that is open on this client. It has an [`OpenState`] for each
//! credential that opened it. An [`OpenState`] is the server's view: one stateid, and the union of
//! the access of its opens. Each `OpenId` is an [`OpenEntry`] that counts in one [`OpenState`]. An
//! open in progress counts as well ([`Files::start`]), so that its state is not closed.
//!
//! The removal of a file's last name depends on whether the file is open ([`Files::claim`]). Opens
//! by filehandle wait from that decision until the server has removed the name ([`Files::begin`]).
//! No open is thus granted for a file that is about to be deleted. A removal waits for a close in
//! progress, because the program that closed the file has already returned.
//!
//! NFSv4.1 does not serialise open-owners by seqid, so opens and closes of one file may overtake
//! each other. The stateids alone show the result. The same `other` with a greater seqid is newer.
//! A different `other` means that the old state has ended.
//!
//! Lock order: `Files::table`, then `FileState::inner`, then `OpenState::inner`, then
//! `LockState::inner`.

use super::late_locks::LateLocks;
use super::lock::LockState;
use super::lock_authority::LockAuthority;
use super::names::Silly;
use crate::silly::Leaving;
use crate::writes::OpenMark;
use bytes::Bytes;
use hither_proto::nfs4::{self, StateOwner, Stateid, open};
use hither_vfs::{Cred, Error, Fh, LockOwner, Name, OpenAccess, OpenId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Longest wait of a directory's removal for hidden names of closed files. [`CLOSING_WAIT`] is that
/// for open files.
const CLOSED_WAIT: Duration = Duration::from_secs(5);
const CLOSING_WAIT: Duration = Duration::from_millis(50);
/// Owners that are remembered while no file is open.
const OWNERS_MAX: usize = 4096;

/// All open files of a mount.
pub(crate) struct Files {
    table: Mutex<Table>,
    next_open: AtomicU64,
    /// Opens by name in progress, of any file. Each may have overtaken a CLOSE.
    pub naming: AtomicUsize,
    /// Files that were unlinked while open, and still are open.
    pub silly: AtomicUsize,
    /// Unlinked files that are closed, and whose hidden name is being removed.
    pub going: AtomicUsize,
    pub leaving: Leaving,
    /// Calls for locks whose caller does not wait any more.
    pub late_locks: Arc<LateLocks>,
    /// Notified when a lock may have become free.
    pub lock_freed: tokio::sync::Notify,
    /// Notified at the end of a close or a removal.
    fewer: tokio::sync::Notify,
    /// Opens by filehandle in progress.
    opening: AtomicUsize,
    /// Distinguishes the owners of this mount from those of others.
    unique: u64,
    next_owner: AtomicU64,
}

#[derive(Default)]
struct Table {
    files: HashMap<Fh, Arc<FileState>>,
    opens: HashMap<OpenId, Arc<OpenEntry>>,
    owners: HashMap<Arc<Cred>, Bytes>,
    /// Open files by the directory and name of their last open.
    named: HashMap<(Fh, Name), Fh>,
    /// Files that were not open when the removal of a name began, with the number of removals in
    /// progress.
    removing: HashMap<Fh, usize>,
}

impl Table {
    fn forget_name(&mut self, named: &(Fh, Name), fh: &Fh) {
        if self.named.get(named) == Some(fh) {
            self.named.remove(named);
        }
    }
}

/// An open file.
pub(crate) struct FileState {
    /// The file.
    pub fh: Fh,
    /// Opens, including opens in progress. Guarded by the table's lock.
    users: AtomicUsize,
    pub inner: Mutex<FileInner>,
    /// Notified when a lock of the file was released on this client, or when the authority over its
    /// locks has changed.
    pub lock_freed: tokio::sync::Notify,
}

/// The mutable part of an open file.
#[derive(Default)]
pub(crate) struct FileInner {
    pub states: HashMap<Arc<Cred>, Arc<OpenState>>,
    /// The authority over its locks.
    pub lock_authority: LockAuthority,
    /// Its entry in `Table::named`.
    named: Option<(Fh, Name)>,
    /// Its hidden name after the removal of its last known name.
    pub silly: Option<Silly>,
    /// The server keeps the file while it is open (OPEN4_RESULT_PRESERVE_UNLINKED).
    pub preserved: bool,
    /// The last `change` seen. It shows whether another client changed the file while a lease was
    /// lost.
    pub change: u64,
    /// The last length seen.
    pub size_bytes: u64,
    /// The last link count seen, without the hidden name.
    pub links: Option<u32>,
}

/// One open in the server's view.
pub(crate) struct OpenState {
    /// The file.
    pub file: Arc<FileState>,
    /// The credential of the opens.
    pub cred: Arc<Cred>,
    /// `open_owner4`.
    pub owner: Bytes,
    pub inner: Mutex<OpenInner>,
    /// One CLOSE or OPEN_DOWNGRADE at a time.
    pub closing: tokio::sync::Mutex<()>,
    /// One recovery of this state at a time.
    pub recovering: tokio::sync::Mutex<()>,
}

/// The mutable part of an [`OpenState`].
#[derive(Default)]
pub(crate) struct OpenInner {
    /// `None`: not open at the server.
    pub stateid: Option<Stateid>,
    /// Bits 1, 2 and 3 for access that was opened at the server and not downgraded since.
    held: u8,
    /// Opens by access: reading, writing, both.
    counts: [u32; 3],
    /// Number of opens with a close in progress.
    closing: u32,
    /// Opens in progress.
    opening: u32,
    /// Locks by owner.
    pub locks: HashMap<LockOwner, Arc<LockState>>,
    /// The reason why the open could not be recovered.
    pub lost: Option<Error>,
    /// The server did not let the client reclaim the open. The recovery opens the file anew.
    pub too_late: bool,
}

/// The open of an `OpenId`.
pub(crate) struct OpenEntry {
    pub state: Arc<OpenState>,
    pub access: OpenAccess,
    /// The write errors that this open has reported.
    pub mark: Mutex<Option<Arc<OpenMark>>>,
    /// Serialises its open and its end.
    pub further: tokio::sync::Mutex<Further>,
    closing: AtomicBool,
}

/// A further open, for the access that flock(2) locks need and the [`OpenEntry`] lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Further {
    /// No lock has needed one.
    #[default]
    None,
    /// Counts in the same [`OpenState`], and ends with the entry.
    Open(OpenId),
    /// The entry has ended.
    Closed,
}

impl Further {
    /// Ends the entry. Returns the previous value.
    pub fn end(&mut self) -> Self {
        std::mem::replace(self, Self::Closed)
    }
}

/// State of a file at the removal of one of its names.
pub(crate) enum Claim<'a> {
    /// The file is open.
    Open(Arc<FileState>),
    /// The file is not open. Opens by filehandle wait until the drop of this value.
    Alone(Removing<'a>),
}

/// A removal in progress. Drop ends it.
pub(crate) struct Removing<'a> {
    files: &'a Files,
    fh: Fh,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        let mut table = self.files.table.lock();
        if let Some(count) = table.removing.get_mut(&self.fh) {
            *count -= 1;
            if *count == 0 {
                table.removing.remove(&self.fh);
            }
        }
        drop(table);
        self.files.fewer.notify_waiters();
    }
}

impl Files {
    /// Starts without files. `unique` is random.
    pub fn new(unique: u64) -> Self {
        Self {
            table: Mutex::default(),
            next_open: AtomicU64::new(1),
            naming: AtomicUsize::new(0),
            silly: AtomicUsize::new(0),
            going: AtomicUsize::new(0),
            leaving: Leaving::default(),
            late_locks: Arc::default(),
            lock_freed: tokio::sync::Notify::new(),
            fewer: tokio::sync::Notify::new(),
            opening: AtomicUsize::new(0),
            unique,
            next_owner: AtomicU64::new(1),
        }
    }

    /// `open_owner4` of a credential.
    pub fn owner(&self, cred: &Arc<Cred>) -> Bytes {
        let mut table = self.table.lock();
        if let Some(owner) = table.owners.get(cred) {
            return owner.clone();
        }
        if table.owners.len() >= OWNERS_MAX && table.files.is_empty() {
            // While a file is open, its owner must stay the same.
            table.owners.clear();
        }
        let n = self.next_owner.fetch_add(1, Ordering::Relaxed);
        let owner = Bytes::from(format!("open {:016x} {n:x}", self.unique));
        table.owners.insert(cred.clone(), owner.clone());
        owner
    }

    /// `open_owner4` of opens that last for one compound.
    pub fn bring_owner(&self, number: u32) -> Bytes {
        Bytes::from(format!("bring {:016x} {number:x}", self.unique))
    }

    /// Begins an open of `fh` by filehandle, after removals of its names have ended: see
    /// [`Files::start`].
    pub async fn begin(&self, fh: &Fh, cred: &Arc<Cred>) -> Arc<OpenState> {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            if let Some(state) = self.try_begin(fh, cred) {
                return state;
            }
            fewer.await;
        }
    }

    /// As [`Files::begin`], without waiting: `None` during a removal.
    pub fn try_begin(&self, fh: &Fh, cred: &Arc<Cred>) -> Option<Arc<OpenState>> {
        let owner = self.owner(cred);
        let mut table = self.table.lock();
        (!table.removing.contains_key(fh)).then(|| self.start_in(&mut table, owner, fh, cred))
    }

    /// Begins an open of `fh`. Keeps its state until [`Files::opened`] or [`Files::abandoned`].
    pub fn start(&self, fh: &Fh, cred: &Arc<Cred>) -> Arc<OpenState> {
        let owner = self.owner(cred);
        self.start_in(&mut self.table.lock(), owner, fh, cred)
    }

    fn start_in(&self, table: &mut Table, owner: Bytes, fh: &Fh, cred: &Arc<Cred>) -> Arc<OpenState> {
        let new = || {
            let (users, inner) = (AtomicUsize::new(0), Mutex::default());
            Arc::new(FileState { fh: fh.clone(), users, inner, lock_freed: tokio::sync::Notify::new() })
        };
        let file = table.files.entry(fh.clone()).or_insert_with(new).clone();
        file.users.fetch_add(1, Ordering::Relaxed);
        let mut inner = file.inner.lock();
        let state = inner.states.entry(cred.clone()).or_insert_with(|| {
            Arc::new(OpenState {
                file: file.clone(),
                cred: cred.clone(),
                owner,
                inner: Mutex::default(),
                closing: tokio::sync::Mutex::default(),
                recovering: tokio::sync::Mutex::default(),
            })
        });
        state.inner.lock().opening += 1;
        self.opening.fetch_add(1, Ordering::SeqCst);
        state.clone()
    }

    /// The open file that was last opened by this name. The file may have another name now.
    pub fn by_name(&self, dir: &Fh, name: &Name) -> Option<Fh> {
        self.table.lock().named.get(&(dir.clone(), name.clone())).cloned()
    }

    /// Records the name by which an open file was opened.
    pub fn note_name(&self, file: &FileState, dir: &Fh, name: &Name) {
        let mut table = self.table.lock();
        let key = (dir.clone(), name.clone());
        let mut inner = file.inner.lock();
        if inner.named.as_ref() != Some(&key)
            && let Some(old) = inner.named.replace(key.clone())
        {
            table.forget_name(&old, &file.fh);
        }
        table.named.insert(key, file.fh.clone());
    }

    /// Records that a file has another name now.
    pub fn note_renamed(&self, from: (&Fh, &Name), to: (&Fh, &Name)) {
        let file = {
            let table = self.table.lock();
            let fh = table.named.get(&(from.0.clone(), from.1.clone()));
            fh.and_then(|fh| table.files.get(fh)).cloned()
        };
        if let Some(file) = file {
            self.note_name(&file, to.0, to.1);
        }
    }

    /// Registers the success of an open begun by [`Files::start`].
    pub fn opened(&self, state: &Arc<OpenState>, access: OpenAccess) -> OpenId {
        let id = OpenId(self.next_open.fetch_add(1, Ordering::Relaxed));
        let mut table = self.table.lock();
        let (mark, further) = (Mutex::new(None), tokio::sync::Mutex::default());
        let closing = AtomicBool::new(false);
        let entry = OpenEntry { state: state.clone(), access, mark, further, closing };
        table.opens.insert(id, Arc::new(entry));
        self.opening.fetch_sub(1, Ordering::SeqCst);
        let mut inner = state.inner.lock();
        inner.opening -= 1;
        inner.counts[index(access)] += 1;
        id
    }

    /// Registers the failure of an open begun by [`Files::start`]. The caller must then settle the
    /// state and leave the file.
    pub fn abandoned(&self, state: &Arc<OpenState>) {
        self.opening.fetch_sub(1, Ordering::SeqCst);
        state.inner.lock().opening -= 1;
    }

    /// Marks an `OpenId` as closing.
    pub fn closing(&self, id: OpenId) {
        let Ok(entry) = self.entry(id) else { return };
        {
            let mut inner = entry.state.inner.lock();
            inner.closing += u32::from(!entry.closing.swap(true, Ordering::SeqCst));
        }
        // The further open for flock(2) locks ends with it.
        let further = entry.further.try_lock().ok().map(|further| *further);
        if let Some(Further::Open(further)) = further {
            self.closing(further);
        }
    }

    /// Ends an `OpenId`. The caller must then settle the state and leave the file.
    pub fn closed(&self, id: OpenId) -> Option<Arc<OpenEntry>> {
        let entry = self.table.lock().opens.remove(&id)?;
        let mut inner = entry.state.inner.lock();
        inner.counts[index(entry.access)] -= 1;
        inner.closing -= u32::from(entry.closing.load(Ordering::SeqCst));
        drop(inner);
        self.fewer.notify_waiters();
        Some(entry)
    }

    /// Prepares the removal of a name of the file. Waits for closes in progress.
    pub async fn claim(&self, fh: &Fh) -> Claim<'_> {
        loop {
            let fewer = self.fewer.notified();
            tokio::pin!(fewer);
            fewer.as_mut().enable();
            if let Some(claim) = self.try_claim(fh) {
                return claim;
            }
            fewer.await;
        }
    }

    /// As [`Files::claim`]; `None` while all remaining opens of the file are being closed.
    pub fn try_claim(&self, fh: &Fh) -> Option<Claim<'_>> {
        let mut table = self.table.lock();
        if let Some(file) = table.files.get(fh) {
            match file.use_of() {
                Use::Open => return Some(Claim::Open(file.clone())),
                Use::Closing => return None,
                Use::None => {}
            }
        }
        *table.removing.entry(fh.clone()).or_default() += 1;
        Some(Claim::Alone(Removing { files: self, fh: fh.clone() }))
    }

    /// Removes one user. After the last one forgets the file and returns the remaining work.
    pub fn leave(&self, file: &Arc<FileState>) -> Option<Leftover<'_>> {
        let mut table = self.table.lock();
        if file.users.fetch_sub(1, Ordering::Relaxed) > 1 {
            return None;
        }
        table.files.remove(&file.fh);
        let mut inner = file.inner.lock();
        inner.states.clear();
        if let Some(named) = inner.named.take() {
            table.forget_name(&named, &file.fh);
        }
        let silly = inner.silly.take()?;
        self.leaving.begin(&file.fh, inner.links);
        self.going.fetch_add(1, Ordering::SeqCst);
        self.silly.fetch_sub(1, Ordering::SeqCst);
        *table.removing.entry(file.fh.clone()).or_default() += 1;
        Some(Leftover { silly, _alone: Removing { files: self, fh: file.fh.clone() } })
    }

    /// How long a caller may wait for the removal of hidden names. [`CLOSED_WAIT`] when their files
    /// are closed, [`CLOSING_WAIT`] when a close may be about to begin, zero without hidden names.
    pub fn hidden_names_go(&self) -> Duration {
        // [`Files::leave`] holds the lock while it moves a file from `silly` to `going`.
        let table = self.table.lock();
        if self.going.load(Ordering::SeqCst) > 0 {
            return CLOSED_WAIT;
        }
        if self.silly.load(Ordering::SeqCst) == 0 {
            return Duration::ZERO;
        }
        let closed = |file: &Arc<FileState>| {
            let hidden = file.inner.lock().silly.is_some();
            hidden && file.use_of() != Use::Open
        };
        if table.files.values().any(closed) { CLOSED_WAIT } else { CLOSING_WAIT }
    }

    /// The open `id`.
    ///
    /// # Errors
    /// `EBADF` when there is none.
    pub fn entry(&self, id: OpenId) -> Result<Arc<OpenEntry>, Error> {
        self.table.lock().opens.get(&id).cloned().ok_or_else(|| Error::new(libc::EBADF))
    }

    /// The open file; `None` when it is not open on this client.
    pub fn file(&self, fh: &Fh) -> Option<Arc<FileState>> {
        self.table.lock().files.get(fh).cloned()
    }

    /// Whether any file is open.
    pub fn any(&self) -> bool {
        !self.table.lock().files.is_empty()
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<FileState>> {
        self.table.lock().files.values().cloned().collect()
    }

    /// Files that the server did not let the client reclaim.
    pub fn too_late(&self) -> Vec<Arc<FileState>> {
        self.all().into_iter().filter(|file| file.is_too_late()).collect()
    }

    /// All `OpenId`s.
    pub fn open_ids(&self) -> Vec<OpenId> {
        self.table.lock().opens.keys().copied().collect()
    }

    /// Whether an open is in progress, whose reply may bring a delegation.
    pub fn opens_under_way(&self) -> bool {
        self.opening.load(Ordering::SeqCst) + self.naming.load(Ordering::SeqCst) > 0
    }

    /// `lock_owner4` of a local lock owner: the kind, the number of this client, and the owner's. A
    /// server sends the owner of a lock to the clients that it refuses.
    pub fn lock_owner(&self, owner: LockOwner) -> StateOwner {
        let mut name = [0; LOCK_OWNER_BYTES];
        name[..4].copy_from_slice(if owner.flock { b"flk " } else { b"psx " });
        name[4..12].copy_from_slice(&self.unique.to_be_bytes());
        name[12..].copy_from_slice(&owner.id.to_be_bytes());
        StateOwner { clientid: 0, owner: name[..].into() }
    }
}

/// Length of a `lock_owner4` in bytes. Since Linux 6.15, and in updates of earlier releases, Linux
/// clients have room for an owner of this length in the reply to a refused LOCK. With a longer
/// owner their programs get EIO instead of EAGAIN.
const LOCK_OWNER_BYTES: usize = 20;

/// Remaining work for a file without users: the removal of its hidden name.
pub(crate) struct Leftover<'a> {
    pub silly: Silly,
    _alone: Removing<'a>,
}

/// The outcome of [`FileState::hide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hidden {
    Now,
    /// The file has a hidden name already. One is enough.
    Before,
    NotOpen,
}

/// Whether a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    None,
    /// Each of its opens is being closed.
    Closing,
    Open,
}

impl FileState {
    /// Records a hidden name as the file's last, when the file is still open.
    pub fn hide(&self, silly: &Silly) -> Hidden {
        let mut inner = self.inner.lock();
        if !inner.states.values().any(|state| state.inner.lock().use_of() == Use::Open) {
            return Hidden::NotOpen;
        }
        if inner.silly.is_some() {
            return Hidden::Before;
        }
        inner.links = inner.links.map(|links| links.saturating_sub(1));
        inner.silly = Some(silly.clone());
        Hidden::Now
    }

    /// Whether the server did not let the client reclaim one of its states.
    pub fn is_too_late(&self) -> bool {
        self.inner.lock().states.values().any(|state| state.inner.lock().too_late)
    }

    fn use_of(&self) -> Use {
        let inner = self.inner.lock();
        inner.states.values().map(|state| state.inner.lock().use_of()).max().unwrap_or(Use::None)
    }
}

/// The next step for a state without opens in progress; see [`OpenState::next_step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// CLOSE this stateid.
    Close(Stateid),
    /// OPEN_DOWNGRADE this stateid to that access.
    Downgrade(Stateid, u32),
    /// Nothing.
    None,
}

impl OpenState {
    /// Records an open that the server granted.
    pub fn granted(&self, stateid: Stateid, access: OpenAccess) {
        let mut inner = self.inner.lock();
        inner.note(stateid);
        inner.held |= 1 << share(access);
        inner.lost = None;
    }

    /// The step that makes the server's state equal to the local one.
    pub fn next_step(&self) -> Step {
        let inner = self.inner.lock();
        let (Some(stateid), 0) = (inner.stateid, inner.opening) else { return Step::None };
        match inner.needed() {
            0 => Step::Close(stateid),
            needed if needed != inner.held_access() => Step::Downgrade(stateid, needed),
            _ => Step::None,
        }
    }

    /// Records that the state of `stateid` has ended at the server.
    pub fn gone(&self, stateid: &Stateid) {
        let mut inner = self.inner.lock();
        if inner.stateid.is_some_and(|s| s.other == stateid.other) {
            inner.stateid = None;
            inner.held = 0;
            // Locks at the server ended with it. Their owner must get an error instead of
            // continuing without them.
            inner.locks.retain(|_, lock| {
                let mut lock = lock.inner.lock();
                lock.stateid = None;
                if lock.here {
                    return true;
                }
                lock.lose();
                !lock.lost.is_empty()
            });
        }
    }

    /// Whether the state has local opens, but is not open at the server.
    pub fn is_bare(&self) -> bool {
        let inner = self.inner.lock();
        inner.stateid.is_none() && inner.lost.is_none() && inner.needed() != 0
    }

    /// Records that the server downgraded to `access`. `stateid` is `None` when the server refused.
    pub fn downgraded(&self, access: u32, stateid: Option<Stateid>) {
        let mut inner = self.inner.lock();
        inner.held = match access {
            open::SHARE_ACCESS_READ | open::SHARE_ACCESS_WRITE => 1 << access,
            _ => inner.held,
        };
        if let Some(s) = stateid {
            inner.note(s);
        }
    }

    /// The stateid for I/O. It is that of the locks when exactly one owner has locks at the server,
    /// else that of the open. Sequence number 0 means "current".
    ///
    /// # Errors
    /// `EIO` when the open or a lock was lost. After the loss of a lock, the error is final:
    /// another client may have changed the bytes that the lock protected.
    pub fn io_stateid(&self) -> Result<Stateid, Error> {
        let inner = self.inner.lock();
        if let Some(lost) = &inner.lost {
            return Err(lost.clone());
        }
        let mut locked = None;
        let mut owners = 0;
        for lock in inner.locks.values() {
            let lock = lock.inner.lock();
            if !lock.lost.is_empty() {
                return Err(Error::lost("a lock on this file was lost"));
            }
            if !lock.here && !lock.ranges.is_empty() {
                locked = lock.stateid;
                owners += 1;
            }
        }
        let stateid = if owners == 1 { locked.or(inner.stateid) } else { inner.stateid };
        Ok(stateid.map_or(Stateid::ANONYMOUS, Stateid::any_seqid))
    }

    /// Whether `used` is still the stateid of this state. Only then an error about it needs
    /// recovery.
    pub fn is_current(&self, used: &Stateid) -> bool {
        let inner = self.inner.lock();
        inner.stateid.is_some_and(|s| s.other == used.other)
            || inner.locks.values().any(|l| l.inner.lock().stateid.is_some_and(|s| s.other == used.other))
    }
}

impl OpenInner {
    /// Access that local opens need, as `SHARE_ACCESS` bits.
    pub fn needed(&self) -> u32 {
        (1..=3).filter(|&a| self.counts[a as usize - 1] > 0).fold(0, |all, a| all | a)
    }

    fn held_access(&self) -> u32 {
        (1..=3).filter(|a| self.held & (1 << a) != 0).fold(0, |all, a| all | a)
    }

    fn use_of(&self) -> Use {
        match self.counts.iter().sum::<u32>() {
            opens if self.opening > 0 || opens > self.closing => Use::Open,
            0 => Use::None,
            _ => Use::Closing,
        }
    }

    /// Records a stateid from the server: the newer of two of one state, or a new state.
    pub fn note(&mut self, stateid: Stateid) {
        match &mut self.stateid {
            Some(known) if known.other == stateid.other => {
                // Sequence numbers wrap around, skipping 0.
                if stateid.seqid.wrapping_sub(known.seqid) as i32 > 0 {
                    known.seqid = stateid.seqid;
                }
            }
            other => *other = Some(stateid),
        }
    }

    /// Records that the open was made again with `access`, under a new stateid.
    pub fn reopened(&mut self, stateid: Stateid, access: u32) {
        self.stateid = Some(stateid);
        self.held = 1 << access;
        self.lost = None;
        self.too_late = false;
    }
}

/// `SHARE_ACCESS` bits.
pub(crate) fn share(access: OpenAccess) -> u32 {
    match (access.contains(OpenAccess::READ), access.contains(OpenAccess::WRITE)) {
        (_, false) => open::SHARE_ACCESS_READ,
        (false, true) => open::SHARE_ACCESS_WRITE,
        (true, true) => open::SHARE_ACCESS_BOTH,
    }
}

fn index(access: OpenAccess) -> usize {
    share(access) as usize - 1
}

/// A filehandle of the server, copied out of its message.
pub(crate) fn own_fh(fh: &nfs4::Fh) -> Fh {
    Fh(Bytes::copy_from_slice(fh))
}

/// A filehandle for the server.
pub(crate) fn wire_fh(fh: &Fh) -> nfs4::Fh {
    fh.0.clone().into()
}

/// A name for the server.
pub(crate) fn wire_name(name: &Name) -> nfs4::Component {
    name.bytes().clone().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The removal of a directory waits for the hidden name of a closed file at each moment until
    /// that name is gone.
    #[test]
    fn closed_file_is_waited_for() {
        const ROUNDS: u64 = 200_000;
        let (files, closed) = (Files::new(1), AtomicU64::new(0));
        let cred = Arc::new(Cred::root());
        let fh = Fh(Bytes::from_static(b"file"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let state = files.start(&fh, &cred);
                    let id = files.opened(&state, OpenAccess::READ);
                    let silly = Silly { dir: fh.clone(), name: Name::new("hidden").unwrap() };
                    assert_eq!(state.file.hide(&silly), Hidden::Now);
                    files.silly.fetch_add(1, Ordering::SeqCst);
                    files.closing(id);
                    files.closed(id);
                    closed.store(round, Ordering::SeqCst);
                    let left = files.leave(&state.file);
                    assert!(left.is_some());
                    closed.store(0, Ordering::SeqCst);
                    files.leaving.end(&fh);
                    files.going.fetch_sub(1, Ordering::SeqCst);
                }
                closed.store(u64::MAX, Ordering::SeqCst);
            });
            let mut looks = 0;
            loop {
                let round = closed.load(Ordering::SeqCst);
                if round == u64::MAX {
                    break;
                }
                let wait = files.hidden_names_go();
                if round > 0 && closed.load(Ordering::SeqCst) == round {
                    looks += 1;
                    assert_eq!(wait, CLOSED_WAIT);
                }
            }
            println!("{looks} looks");
        });
    }

    /// Two removals of names of one open file may each make a hidden name. The file keeps the
    /// first.
    #[test]
    fn file_has_one_hidden_name() {
        let files = Files::new(1);
        let fh = Fh(Bytes::from_static(b"file"));
        let state = files.start(&fh, &Arc::new(Cred::root()));
        let [first, second] =
            ["first", "second"].map(|name| Silly { dir: fh.clone(), name: Name::new(name).unwrap() });
        files.opened(&state, OpenAccess::READ);
        assert_eq!([&first, &second].map(|silly| state.file.hide(silly)), [Hidden::Now, Hidden::Before]);
        assert_eq!(state.file.inner.lock().silly.as_ref().map(|s| &s.name), Some(&first.name));
    }

    /// Linux clients read at most 20 bytes of the owner of a lock that refuses theirs. Each kind
    /// and number of a local owner has its own name.
    #[test]
    fn lock_owners_are_short() {
        let files = Files::new(u64::MAX);
        let owner = |id, flock| files.lock_owner(LockOwner { id, flock }).owner;
        let all = [owner(1, true), owner(1, false), owner(u64::MAX, true), owner(u64::MAX, false)];
        assert!(all.iter().all(|name| name.len() <= 20));
        let different: std::collections::HashSet<Vec<u8>> = all.iter().map(|name| name.to_vec()).collect();
        assert_eq!(different.len(), all.len());
    }
}
