//! Owners of the locks of a file, their handles, and running calls for locks.
//!
//! The kernel's number of a lock owner is the address of an object: of the table of descriptors for
//! fcntl(2) locks of a process, of the open file for flock(2) and F_OFD_SETLK. The object's memory
//! is used again, so a new owner can have the number of an earlier one. FLUSH ends the locks of a
//! process, and close(2) waits for it. RELEASE ends the locks of an open file, and can be processed
//! after the locks of later files. So it must end only locks of its own handle:
//!
//! - The number of the handle is the owner of flock(2) locks. It is never used again.
//! - A request of F_OFD_SETLK looks like a request of a process. A lock with the number of another
//!   handle waits until that handle is released, if it may be closed. RELEASE ends only owners that
//!   have no other handle.
//! - A lock waits while the locks of an owner with its number are being released.
//!
//! An interrupted call for a lock is answered at once, and may still get the lock. That lock is
//! released. The next call of the owner waits for this, or it would lose its own lock.

use crate::call::Pending;
use crate::handles::OpenFile;
use hither_vfs::{Error, FileRange, LockConflict, LockKind, LockOwner, LockRanges, Result};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Owners that may have locks of a file.
#[derive(Debug, Default)]
pub(crate) struct Lockers {
    state: Mutex<State>,
    /// Notified when a call or the release of an owner's locks ends.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    owners: HashMap<LockOwner, Locker>,
    calls: SmallVec<[LockCall; 1]>,
}

#[derive(Debug, Default)]
struct Locker {
    /// Handles through which the owner locks.
    handles: SmallVec<[u64; 1]>,
    /// Its locks are being released.
    ending: bool,
    /// Its locks.
    held: LockRanges,
    /// The process that took the last of them.
    pid: u32,
}

/// A lock that another owner of this mount holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The owner.
    pub owner: LockOwner,
    /// Its process.
    pub pid: u32,
    /// The lock.
    pub lock: LockConflict,
}

/// A running call for a lock.
#[derive(Debug)]
struct LockCall {
    owner: LockOwner,
    handle: u64,
    pending: Arc<Pending>,
}

impl Lockers {
    /// Whether the owner may have locks, all through handles other than `handle`.
    pub fn has_only_others(&self, owner: LockOwner, handle: u64) -> bool {
        self.state.lock().owners.get(&owner).is_some_and(|locker| !locker.handles.contains(&handle))
    }

    /// Starts a call for a lock through `handle`. Waits while locks of an owner with this number
    /// are being released.
    ///
    /// # Errors
    /// `EINTR`: the call was interrupted, and its answer sent.
    pub async fn locks(
        file: &Arc<OpenFile>,
        owner: LockOwner,
        handle: u64,
        pending: &Arc<Pending>,
    ) -> Result<Locking> {
        let call = || LockCall { owner, handle, pending: pending.clone() };
        let lockers = &file.inode.lockers;
        let mut begun = false;
        lockers
            .when(|state| {
                // Checked under the lock: another call of the owner may have begun since.
                let over = pending.cancel.is_cancelled();
                begun = !over && state.try_lock(owner, handle, call);
                over || begun
            })
            .await;
        if begun {
            Ok(Locking { file: file.clone(), owner, unique: pending.unique })
        } else {
            Err(Error::new(libc::EINTR))
        }
    }

    /// Records a lock that process `pid` has got.
    pub fn granted(&self, owner: LockOwner, kind: LockKind, range: FileRange, pid: u32) {
        if let Some(locker) = self.state.lock().owners.get_mut(&owner) {
            locker.held.lock(range, kind);
            locker.pid = pid;
        }
    }

    /// Records the release of locks.
    pub fn released(&self, owner: LockOwner, range: FileRange) {
        if let Some(locker) = self.state.lock().owners.get_mut(&owner) {
            locker.held.unlock(range);
        }
    }

    /// The owners whose locks prevent `owner` from taking `range` as `kind`.
    pub fn holders(&self, owner: LockOwner, kind: LockKind, range: FileRange) -> Vec<Holder> {
        let state = self.state.lock();
        let others = state.owners.iter().filter(|(other, _)| **other != owner && other.flock == owner.flock);
        let holder = |(&owner, locker): (&LockOwner, &Locker)| {
            let lock = locker.held.conflict(kind, range)?;
            Some(Holder { owner, pid: locker.pid, lock })
        };
        others.filter_map(holder).collect()
    }

    /// Starts the release of all locks of an owner. Returns `None` when it has none, or another
    /// call releases them.
    pub fn end(&self, owner: LockOwner) -> Option<Ending<'_>> {
        let mut state = self.state.lock();
        let locker = state.owners.get_mut(&owner).filter(|locker| !locker.ending)?;
        locker.ending = true;
        Some(Ending { lockers: self, owner })
    }

    /// Starts the release of all locks of the owners that have locks only through `handle`, which
    /// the kernel has closed. Waits for running calls.
    pub async fn end_with(&self, handle: u64) -> Vec<Ending<'_>> {
        self.when(|state| state.calls.iter().all(|call| call.handle != handle)).await;
        let owners = self.state.lock().end_with(handle);
        owners.into_iter().map(|owner| Ending { lockers: self, owner }).collect()
    }

    /// Adds an owner with a lock.
    #[cfg(test)]
    pub fn note_holder(&self, owner: LockOwner, kind: LockKind, range: FileRange) {
        self.state.lock().owners.entry(owner).or_default().held.lock(range, kind);
    }

    async fn when(&self, mut is_so: impl FnMut(&mut State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&mut self.state.lock()) {
                return;
            }
            changed.await;
        }
    }
}

impl State {
    fn try_lock(&mut self, owner: LockOwner, handle: u64, call: impl Fn() -> LockCall) -> bool {
        let is_late = |call: &LockCall| call.owner == owner && call.pending.cancel.is_cancelled();
        if self.calls.iter().any(is_late) || self.owners.get(&owner).is_some_and(|locker| locker.ending) {
            return false;
        }
        let locker = self.owners.entry(owner).or_default();
        if !locker.handles.contains(&handle) {
            locker.handles.push(handle);
        }
        self.calls.push(call());
        true
    }

    fn end_with(&mut self, handle: u64) -> Vec<LockOwner> {
        let mut ending = Vec::new();
        for (&owner, locker) in self.owners.iter_mut().filter(|(_, locker)| !locker.ending) {
            let before = locker.handles.len();
            locker.handles.retain(|h| *h != handle);
            if locker.handles.is_empty() && before > 0 {
                locker.ending = true;
                ending.push(owner);
            }
        }
        ending
    }
}

/// A running call for a lock, until its answer was taken or its lock released.
#[derive(Debug)]
pub(crate) struct Locking {
    /// The handle of the call.
    pub file: Arc<OpenFile>,
    /// The owner of the lock.
    pub owner: LockOwner,
    unique: u64,
}

impl Drop for Locking {
    fn drop(&mut self) {
        let lockers = &self.file.inode.lockers;
        lockers.state.lock().calls.retain(|call| call.pending.unique != self.unique);
        lockers.changed.notify_waiters();
    }
}

/// A running release of all locks of an owner.
#[derive(Debug)]
pub(crate) struct Ending<'a> {
    lockers: &'a Lockers,
    /// The owner.
    pub owner: LockOwner,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.lockers.state.lock().owners.remove(&self.owner);
        self.lockers.changed.notify_waiters();
    }
}
