//! Which files are open, as this client and the server see it.
//!
//! It knows nothing of messages. A [`FileState`] is a file that is open here; it has an
//! [`OpenState`] for each credential that opened it, which is what the server knows: one stateid,
//! the union of the access of all opens it stands for. Each `OpenId` is an [`OpenEntry`] that
//! counts in one of them. An open under way counts as well ([`Files::start`]), so that the state is
//! not closed under it.
//!
//! Whether a file is open decides what becomes of it with its last name ([`Files::claim`]). From
//! that decision until the server has removed the name, opens of the file by handle wait
//! ([`Files::begin`]), so that none of them is granted for a file that is about to be lost. A close
//! that has begun is waited for: the program that closed the file is told already.
//!
//! NFSv4.1 has no seqid serialisation of open-owners, so opens and closes of one file may pass each
//! other. What is true then follows from the stateids alone: the same `other` with a greater seqid
//! is newer; another `other` means that the old state is gone.
//!
//! Lock order: `Files::table`, then `FileState::inner`, then `OpenState::inner`, then
//! `LockState::inner`.

use super::lock::LockState;
use super::names::Silly;
use super::place::Place;
use crate::writes::OpenMark;
use bytes::Bytes;
use hither_proto::nfs4::{self, StateOwner, Stateid, open};
use hither_vfs::{Cred, Error, Fh, LockOwner, Name, OpenAccess, OpenId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a directory's removal waits for hidden names of closed files, and of open ones.
const CLOSED_WAIT: Duration = Duration::from_secs(5);
const CLOSING_WAIT: Duration = Duration::from_millis(50);
/// Owners that are remembered while nothing is open.
const OWNERS_MAX: usize = 4096;

/// All open files of a mount.
pub(crate) struct Files {
    table: Mutex<Table>,
    next_open: AtomicU64,
    /// Opens by name under way, of any file: a CLOSE may have been passed by one of them.
    pub naming: AtomicUsize,
    /// Files that were unlinked while open.
    pub silly: AtomicUsize,
    /// Those that were closed since, and whose hidden name is being removed.
    pub going: AtomicUsize,
    /// A lock may have become free.
    pub lock_freed: tokio::sync::Notify,
    /// A close has ended, or a removal.
    fewer: tokio::sync::Notify,
    /// Opens by handle under way.
    opening: AtomicUsize,
    /// Makes owners of this mount differ from those of others.
    unique: u64,
    next_owner: AtomicU64,
}

#[derive(Default)]
struct Table {
    files: HashMap<Fh, Arc<FileState>>,
    opens: HashMap<OpenId, Arc<OpenEntry>>,
    owners: HashMap<Arc<Cred>, Bytes>,
    /// Open files by the directory and name that they were last opened by.
    named: HashMap<(Fh, Name), Fh>,
    /// Files that were not open when the removal of a name began, and the number of removals under
    /// way.
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
    /// Opens and opens under way; guarded by the table's lock.
    users: AtomicUsize,
    pub inner: Mutex<FileInner>,
    /// One of its locks was released here, or they are elsewhere now.
    pub lock_freed: tokio::sync::Notify,
}

/// What changes about an open file.
#[derive(Default)]
pub(crate) struct FileInner {
    pub states: HashMap<Arc<Cred>, Arc<OpenState>>,
    /// Where its locks are.
    pub place: Place,
    /// Its entry in `Table::named`.
    named: Option<(Fh, Name)>,
    /// Where it went when its last known name was removed.
    pub silly: Option<Silly>,
    /// The server keeps it while it is open (OPEN4_RESULT_PRESERVE_UNLINKED).
    pub preserved: bool,
    /// The last `change` seen, to find out whether anybody touched the file while a lease was lost.
    pub change: u64,
    /// The last length seen.
    pub size_bytes: u64,
}

/// One open as the server knows it.
pub(crate) struct OpenState {
    /// The file.
    pub file: Arc<FileState>,
    /// Whose.
    pub cred: Arc<Cred>,
    /// `open_owner4`.
    pub owner: Bytes,
    pub inner: Mutex<OpenInner>,
    /// One CLOSE or OPEN_DOWNGRADE at a time.
    pub closing: tokio::sync::Mutex<()>,
    /// One recovery of this state at a time.
    pub recovering: tokio::sync::Mutex<()>,
}

/// What changes about an [`OpenState`].
#[derive(Default)]
pub(crate) struct OpenInner {
    /// `None`: not open at the server.
    pub stateid: Option<Stateid>,
    /// Bits 1, 2 and 3 for access that was opened at the server and not downgraded since.
    held: u8,
    /// Opens by access: reading, writing, both.
    counts: [u32; 3],
    /// Those of them whose close has begun.
    closing: u32,
    /// Opens under way.
    opening: u32,
    /// Locks by owner.
    pub locks: HashMap<LockOwner, Arc<LockState>>,
    /// The open could not be recovered: why.
    pub lost: Option<Error>,
}

/// What an `OpenId` stands for.
pub(crate) struct OpenEntry {
    pub state: Arc<OpenState>,
    pub access: OpenAccess,
    /// What this open has seen of write errors.
    pub mark: Mutex<Option<Arc<OpenMark>>>,
    /// One at a time opens or closes it.
    pub further: tokio::sync::Mutex<Further>,
    closing: AtomicBool,
}

/// The open that gives an [`OpenEntry`] the access which its flock(2) locks need and it was not
/// opened with.
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
    /// The entry ends: what there was.
    pub fn end(&mut self) -> Self {
        std::mem::replace(self, Self::Closed)
    }
}

/// What the removal of a name finds.
pub(crate) enum Claim<'a> {
    /// The file is open.
    Open(Arc<FileState>),
    /// The file is not open, and is not opened until this is dropped.
    Alone(Removing<'a>),
}

/// A removal under way; ends when dropped.
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
    /// No files; `unique` is random.
    pub fn new(unique: u64) -> Self {
        Self {
            table: Mutex::default(),
            next_open: AtomicU64::new(1),
            naming: AtomicUsize::new(0),
            silly: AtomicUsize::new(0),
            going: AtomicUsize::new(0),
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
            // As long as anything is open its owner must stay the same.
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

    /// An open of `fh` by handle begins, when no removal is under way: see [`Files::start`].
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

    /// The same without waiting.
    pub fn try_begin(&self, fh: &Fh, cred: &Arc<Cred>) -> Option<Arc<OpenState>> {
        let owner = self.owner(cred);
        let mut table = self.table.lock();
        (!table.removing.contains_key(fh)).then(|| self.start_in(&mut table, owner, fh, cred))
    }

    /// An open of `fh` begins: keeps its state until [`Files::opened`] or [`Files::abandoned`].
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

    /// The file that is open here and was opened by this name. It may have another by now.
    pub fn by_name(&self, dir: &Fh, name: &Name) -> Option<Fh> {
        self.table.lock().named.get(&(dir.clone(), name.clone())).cloned()
    }

    /// An open file was opened by this name.
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

    /// The open that began with [`Files::start`] succeeded.
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

    /// The open that began with [`Files::start`] failed. The state must be settled, then left.
    pub fn abandoned(&self, state: &Arc<OpenState>) {
        self.opening.fetch_sub(1, Ordering::SeqCst);
        state.inner.lock().opening -= 1;
    }

    /// The close of an `OpenId` begins.
    pub fn closing(&self, id: OpenId) {
        let Ok(entry) = self.entry(id) else { return };
        {
            let mut inner = entry.state.inner.lock();
            inner.closing += u32::from(!entry.closing.swap(true, Ordering::SeqCst));
        }
        // The open that its flock(2) locks needed ends with it.
        let further = entry.further.try_lock().ok().map(|further| *further);
        if let Some(Further::Open(further)) = further {
            self.closing(further);
        }
    }

    /// Ends an `OpenId`. The state must be settled, then left.
    pub fn closed(&self, id: OpenId) -> Option<Arc<OpenEntry>> {
        let entry = self.table.lock().opens.remove(&id)?;
        let mut inner = entry.state.inner.lock();
        inner.counts[index(entry.access)] -= 1;
        inner.closing -= u32::from(entry.closing.load(Ordering::SeqCst));
        drop(inner);
        self.fewer.notify_waiters();
        Some(entry)
    }

    /// A name of the file is about to be removed. Waits for closes that have begun.
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

    /// The same; `None` while closes are under way and nothing else.
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

    /// One user less. After the last one the file is forgotten; what is left to do for it is
    /// returned.
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
        self.going.fetch_add(1, Ordering::SeqCst);
        self.silly.fetch_sub(1, Ordering::SeqCst);
        *table.removing.entry(file.fh.clone()).or_default() += 1;
        Some(Leftover { silly, _alone: Removing { files: self, fh: file.fh.clone() } })
    }

    /// How long hidden names that are about to go may be waited for: a while when their files are
    /// closed already, a moment when a close may just be beginning, not at all when there are none.
    pub fn hidden_names_go(&self) -> Duration {
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
        if self.all().iter().any(closed) { CLOSED_WAIT } else { CLOSING_WAIT }
    }

    /// The open `id`.
    ///
    /// # Errors
    /// `EBADF` when there is none.
    pub fn entry(&self, id: OpenId) -> Result<Arc<OpenEntry>, Error> {
        self.table.lock().opens.get(&id).cloned().ok_or_else(|| Error::new(libc::EBADF))
    }

    /// The open file, when it is open here.
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

    /// All `OpenId`s.
    pub fn open_ids(&self) -> Vec<OpenId> {
        self.table.lock().opens.keys().copied().collect()
    }

    /// Whether any open is under way, whose reply may bring a delegation.
    pub fn opens_under_way(&self) -> bool {
        self.opening.load(Ordering::SeqCst) + self.naming.load(Ordering::SeqCst) > 0
    }

    /// `lock_owner4` of a local lock owner. Ours are recognised by their beginning.
    pub fn lock_owner(&self, owner: LockOwner) -> StateOwner {
        let kind = if owner.flock { "flock" } else { "posix" };
        let name = Bytes::from(format!("lock {:016x} {kind} {:x}", self.unique, owner.id));
        StateOwner { clientid: 0, owner: name.into() }
    }
}

/// What remains to do for a file that nobody uses any more: its hidden name is to be removed.
pub(crate) struct Leftover<'a> {
    pub silly: Silly,
    _alone: Removing<'a>,
}

/// Whether a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    None,
    /// Every open of it has begun to end.
    Closing,
    Open,
}

impl FileState {
    /// Gives the file a hidden name as its last, when it is open still.
    pub fn hide(&self, silly: &Silly) -> bool {
        let mut inner = self.inner.lock();
        let open = inner.states.values().any(|state| state.inner.lock().use_of() == Use::Open);
        if open {
            inner.silly = Some(silly.clone());
        }
        open
    }

    fn use_of(&self) -> Use {
        let inner = self.inner.lock();
        inner.states.values().map(|state| state.inner.lock().use_of()).max().unwrap_or(Use::None)
    }
}

/// What a state that nobody is opening needs next; see [`OpenState::next_step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// CLOSE this.
    Close(Stateid),
    /// OPEN_DOWNGRADE this to that access.
    Downgrade(Stateid, u32),
    /// Nothing.
    None,
}

impl OpenState {
    /// The server granted an open.
    pub fn granted(&self, stateid: Stateid, access: OpenAccess) {
        let mut inner = self.inner.lock();
        inner.note(stateid);
        inner.held |= 1 << share(access);
        inner.lost = None;
    }

    /// What brings the server's view in line with the local one.
    pub fn next_step(&self) -> Step {
        let inner = self.inner.lock();
        let (Some(stateid), 0) = (inner.stateid, inner.opening) else { return Step::None };
        match inner.needed() {
            0 => Step::Close(stateid),
            needed if needed != inner.held_access() => Step::Downgrade(stateid, needed),
            _ => Step::None,
        }
    }

    /// The state that `stateid` named is gone at the server.
    pub fn gone(&self, stateid: &Stateid) {
        let mut inner = self.inner.lock();
        if inner.stateid.is_some_and(|s| s.other == stateid.other) {
            inner.stateid = None;
            inner.held = 0;
            // A lock that is held there went with it: its owner must hear of that, not go on
            // without.
            inner.locks.retain(|_, lock| {
                let mut lock = lock.inner.lock();
                lock.stateid = None;
                if lock.here {
                    return true;
                }
                lock.lost |= !lock.ranges.is_empty();
                lock.ranges.clear();
                lock.lost
            });
        }
    }

    /// In use here, and not open at the server.
    pub fn is_bare(&self) -> bool {
        let inner = self.inner.lock();
        inner.stateid.is_none() && inner.lost.is_none() && inner.needed() != 0
    }

    /// The server downgraded to `access` (or will not do so, with `None`).
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

    /// The stateid for I/O: of the locks when exactly one owner has some at the server, else of the
    /// open. Sequence number 0 means "as it is now".
    ///
    /// # Errors
    /// `EIO` when the open or a lock was lost.
    pub fn io_stateid(&self) -> Result<Stateid, Error> {
        let inner = self.inner.lock();
        if let Some(lost) = &inner.lost {
            return Err(lost.clone());
        }
        let mut locked = None;
        let mut owners = 0;
        for lock in inner.locks.values() {
            let lock = lock.inner.lock();
            if lock.lost {
                return Err(Error::because(libc::EIO, "a lock on this file was lost"));
            }
            if !lock.here && !lock.ranges.is_empty() {
                locked = lock.stateid;
                owners += 1;
            }
        }
        let stateid = if owners == 1 { locked.or(inner.stateid) } else { inner.stateid };
        Ok(stateid.map_or(Stateid::ANONYMOUS, Stateid::any_seqid))
    }

    /// Whether `used` is still what this state is known by, so that an error about it is news.
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

    /// A stateid that the server gave: the newer of two of one state, or a new state.
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

    /// The open was made again with `access`, under a new stateid.
    pub fn reopened(&mut self, stateid: Stateid, access: u32) {
        self.stateid = Some(stateid);
        self.held = 1 << access;
        self.lost = None;
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

/// A filehandle of the server, copied out of the message it came in.
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
