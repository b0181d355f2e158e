//! Authority over the locks of a file: the server, or this client under a write delegation (RFC
//! 8881 sections 10.2 and 10.4.2).
//!
//! Under a write delegation no other client has the file open or locked. A lock between programs of
//! this machine is then decided against their locks, without a call. A [`LockAuthority`] belongs to
//! the file, not to a lock: the server has all locks on the file, or none.
//!
//! - Server to client: when a lock is requested and the delegation is certain. No lock of the file
//!   may be held, and no call about one may be in progress. A file with locks from before its
//!   delegation stays with the server until their release.
//! - Client to server: before the delegation is returned ([`Core::hand_over`]), each lock is taken
//!   at the server. Callers wait in this time. A caller that finds client authority without the
//!   delegation also hands the locks over, so the order does not matter. A lock that the server
//!   refuses is lost, like one that could not be reclaimed after a restart.
//! - After a restart of the server the locks stay with the client if the delegation is granted
//!   again and stays. Otherwise they are reclaimed at the server
//!   ([`Core::claim_file`](super::core::Core)), like all others.
//!
//! A decision in the client is one critical section of `FileState::inner`, which also checks the
//! delegation. A delegation is taken out of `Delegations` before that mutex is taken for the
//! hand-over. A lock granted in time is therefore handed over, and none is granted afterwards. The
//! delegation is uncertain when the lease may have expired, or the server reported a revocation. A
//! caller then waits until the state is known.
//!
//! Lock order: `FileState::inner`, then `OpenState::inner`, then `LockState::inner`. `Delegations`
//! and the lease are leaves after the first. None is held while waiting.

use super::call::Compound;
use super::core::{Core, going_away};
use super::fail::{Answered, Fail, is_state_lost};
use super::lock::{LockInner, LockState};
use super::recover::{Reclaim, Via};
use super::state::{FileInner, FileState, OpenState, wire_fh};
use hither_proto::nfs4::{LockType, Nfsstat4, Op};
use hither_vfs::{Error, Fh, FileRange, LockConflict, LockKind, LockOwner, RequestContext};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// Tries before a repeatedly lost state is given up.
const STATE_TRIES: u32 = 5;
/// Interval of the check whether the server has revoked a delegation.
const SUSPECT_WAIT: Duration = Duration::from_millis(20);
const ALL: FileRange = FileRange { start_bytes: 0, end_bytes: u64::MAX };

/// Authority over the locks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockAuthority {
    /// The server, with the number of calls about locks in progress.
    Server { asking: u32 },
    /// This client alone.
    Here,
    /// The locks are being taken at the server: callers wait.
    Moving,
    /// Recovery is reclaiming the locks: callers wait.
    Claiming,
}

impl Default for LockAuthority {
    fn default() -> Self {
        Self::Server { asking: 0 }
    }
}

/// Whether the client may decide locks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Yes,
    /// The delegation is uncertain, and must be checked.
    Perhaps,
    No,
}

/// The authority for one call about locks.
pub(super) enum Decided<T> {
    /// The client has decided.
    Here(T),
    /// The server decides, while this value is kept.
    Server(Asking),
}

/// A call to the server about locks of a file, in progress.
pub(super) struct Asking(Arc<FileState>);

impl Drop for Asking {
    fn drop(&mut self) {
        if let LockAuthority::Server { asking } = &mut self.0.inner.lock().lock_authority {
            *asking = asking.saturating_sub(1);
        }
    }
}

/// A hand-over of the locks of a file. Drop ends it.
struct Moving(Arc<FileState>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.arrived(LockAuthority::Moving);
    }
}

/// Result of one check of a file.
enum Look<T> {
    Done(Decided<T>),
    /// The locks are being moved.
    Wait,
    Unsure,
    /// The client has the locks, and not the delegation.
    Gone,
}

impl FileState {
    /// Ends a move of locks. The server has the authority, and locks that it does not have are
    /// lost.
    pub fn arrived(&self, from: LockAuthority) {
        if self.inner.lock().lock_authority == from {
            self.lose("the server did not grant the lock", from);
        }
    }

    /// Marks all locks under the client's authority as lost with the delegation.
    pub fn lose_locks(&self, why: &str) {
        self.lose(why, LockAuthority::Here);
    }

    fn lose(&self, why: &str, from: LockAuthority) {
        let mut inner = self.inner.lock();
        for state in inner.states.values() {
            for lock in state.inner.lock().locks.values() {
                if lock.inner.lock().here {
                    lock.lose(&self.fh, why);
                }
            }
        }
        if inner.lock_authority == from {
            inner.lock_authority = LockAuthority::default();
        }
        drop(inner);
        self.lock_freed.notify_waiters();
    }

    /// Marks the client's locks of `state` as lost, because its open and the delegation are lost.
    pub fn lose_locks_of(&self, state: &OpenState) {
        let state = state.inner.lock();
        let is_used = state.needed() != 0;
        for lock in state.locks.values().filter(|lock| lock.inner.lock().here) {
            if is_used {
                lock.lose(&self.fh, "the file could not be opened again")
            } else {
                lock.release(ALL)
            }
        }
    }

    /// Recovery takes the authority over the locks.
    pub fn claiming(&self) {
        let mut inner = self.inner.lock();
        if inner.lock_authority == LockAuthority::Here {
            inner.lock_authority = LockAuthority::Claiming;
        }
    }

    /// Releases the client's locks of `state`, when it has no opens.
    pub fn unused(&self, state: &OpenState) {
        let inner = self.inner.lock();
        let mut state = state.inner.lock();
        if inner.lock_authority != LockAuthority::Here || state.needed() != 0 {
            return;
        }
        state.locks.retain(|_, lock| {
            lock.release(ALL);
            lock.inner.lock().stateid.is_some()
        });
        drop((state, inner));
        self.lock_freed.notify_waiters();
    }

    /// Subscribes to the next notification. Notifications from now on count.
    fn news(&self) -> Notified<'_> {
        self.lock_freed.notified()
    }
}

impl FileInner {
    /// A conflicting lock of another owner.
    pub fn conflict(&self, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict> {
        self.states.values().find_map(|state| {
            let state = state.inner.lock();
            let mut others = state.locks.values().filter(|lock| lock.owner != owner);
            others.find_map(|lock| lock.inner.lock().ranges.conflict(kind, range))
        })
    }

    /// Whether any owner holds a lock.
    fn is_locked(&self) -> bool {
        self.any_lock(|lock| !lock.ranges.is_empty())
    }

    fn any_lock(&self, is: impl Fn(&LockInner) -> bool) -> bool {
        self.states.values().any(|s| s.inner.lock().locks.values().any(|l| is(&l.inner.lock())))
    }

    /// Whether a lock was lost that its owner has not released.
    pub fn has_lost_locks(&self) -> bool {
        self.any_lock(|lock| !lock.lost.is_empty())
    }

    /// Takes a lock in the client. False when a conflicting lock is held.
    pub fn take_lock(
        &self,
        state: &OpenState,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<bool, Error> {
        {
            let state = state.inner.lock();
            if let Some(lost) = &state.lost {
                return Err(lost.clone());
            }
            // Closed in between: the lock would never be released.
            if state.needed() == 0 {
                return Err(Error::new(libc::EBADF));
            }
        }
        if self.conflict(owner, kind, range).is_some() {
            return Ok(false);
        }
        // The owner's locks in the range by other opens are replaced, too.
        for other in self.states.values() {
            if let Some(lock) = other.inner.lock().locks.get(&owner) {
                let mut inner = lock.inner.lock();
                inner.ranges.unlock(range);
                inner.here &= !inner.ranges.is_empty();
            }
        }
        let lock = state.inner.lock().locks.entry(owner).or_insert_with(|| LockState::new(owner)).clone();
        let mut inner = lock.inner.lock();
        inner.ranges.lock(range, kind);
        inner.here = true;
        Ok(true)
    }

    /// Releases the locks of `owner` in the client.
    pub fn release_lock(&self, owner: LockOwner, range: FileRange) {
        for state in self.states.values() {
            let mut state = state.inner.lock();
            let Some(lock) = state.locks.get(&owner) else { continue };
            lock.release(range);
            let inner = lock.inner.lock();
            let idle = inner.ranges.is_empty() && inner.lost.is_empty() && inner.stateid.is_none();
            drop(inner);
            if idle {
                state.locks.remove(&owner);
            }
        }
    }
}

impl LockState {
    /// Releases the locks in `range`, which the server does not know.
    fn release(&self, range: FileRange) {
        let mut inner = self.inner.lock();
        inner.ranges.unlock(range);
        inner.here &= !inner.ranges.is_empty();
        inner.lost.unlock(range);
    }

    /// Marks a lock as lost: I/O fails until its owner unlocks.
    pub fn lose(&self, fh: &Fh, why: &str) {
        tracing::warn!(?fh, "a lock was lost: {why}");
        self.inner.lock().lose();
    }
}

impl Core {
    /// Decides a call about the locks of `file` in the client, if it has the authority, or lets the
    /// server decide. A release is never refused, so it needs no delegation.
    pub(super) async fn decide_lock<T>(
        self: &Arc<Self>,
        file: &Arc<FileState>,
        releases: bool,
        decide: impl Fn(&FileInner) -> T,
    ) -> Answered<Decided<T>> {
        let mut settled = false;
        loop {
            let news = file.news();
            match self.look(file, releases, &decide) {
                Look::Done(decided) => return Ok(decided),
                Look::Wait => tokio::select! {
                    () = news => {}
                    () = self.stop.cancelled() => return Err(going_away().into()),
                },
                Look::Unsure if self.lease_is_sure() => tokio::time::sleep(SUSPECT_WAIT).await,
                Look::Unsure => drop(self.compound(&self.own_cx(), Compound::new("SEQUENCE", [])).await?),
                Look::Gone => {
                    // A recovery may be about to reclaim the delegation.
                    self.ready().await?;
                    if settled {
                        self.hand_over(&file.fh).await;
                    }
                    settled = true;
                }
            }
        }
    }

    fn look<T>(&self, file: &Arc<FileState>, releases: bool, decide: &impl Fn(&FileInner) -> T) -> Look<T> {
        let mut inner = file.inner.lock();
        let asking = match inner.lock_authority {
            LockAuthority::Moving | LockAuthority::Claiming => return Look::Wait,
            LockAuthority::Here if releases => return Look::Done(Decided::Here(decide(&inner))),
            LockAuthority::Here => {
                return match self.may_lock(&file.fh) {
                    Right::Yes => Look::Done(Decided::Here(decide(&inner))),
                    Right::Perhaps => Look::Unsure,
                    Right::No => Look::Gone,
                };
            }
            LockAuthority::Server { asking } => asking,
        };
        if asking == 0 && !releases && self.may_lock(&file.fh) == Right::Yes && !inner.is_locked() {
            inner.lock_authority = LockAuthority::Here;
            return Look::Done(Decided::Here(decide(&inner)));
        }
        inner.lock_authority = LockAuthority::Server { asking: asking + 1 };
        Look::Done(Decided::Server(Asking(file.clone())))
    }

    fn may_lock(&self, fh: &Fh) -> Right {
        match self.delegations.for_locks(fh) {
            None => Right::No,
            Some(true) if self.lease_is_sure() => Right::Yes,
            Some(_) => Right::Perhaps,
        }
    }

    /// Whether the lease has not expired, by time.
    fn lease_is_sure(&self) -> bool {
        let lease = self.lease.lock();
        Instant::now() < lease.renewed + lease.time
    }

    /// Takes all client locks of a file at the server. On return the client has none.
    pub async fn hand_over(self: &Arc<Self>, fh: &Fh) {
        let Some(file) = self.files.file(fh) else { return };
        // A recovery in progress reclaims them in the grace period.
        if self.ready().await.is_err() {
            return;
        }
        let states: Vec<Arc<OpenState>> = loop {
            let news = file.news();
            {
                let mut inner = file.inner.lock();
                match inner.lock_authority {
                    LockAuthority::Server { .. } => return,
                    LockAuthority::Here => {
                        inner.lock_authority = LockAuthority::Moving;
                        break inner.states.values().cloned().collect();
                    }
                    LockAuthority::Moving | LockAuthority::Claiming => {}
                }
            }
            tokio::select! { () = news => {}, () = self.stop.cancelled() => return }
        };
        let _moving = Moving(file.clone());
        for state in states {
            let locks: Vec<_> = state.inner.lock().locks.values().cloned().collect();
            for lock in locks {
                if let Err(f) = self.hand_over_lock(&state, &lock).await {
                    let stateid = lock.inner.lock().stateid;
                    lock.lose(fh, &Error::from(f).to_string());
                    // The server may have some of its ranges.
                    if let Some(stateid) = stateid {
                        let op = Op::locku(stateid.any_seqid(), LockType::WRITE, 0, u64::MAX);
                        let c = Compound::new("LOCKU", [Op::Putfh(wire_fh(fh)), op]);
                        let _ = self.compound(&RequestContext::new(state.cred.clone()), c).await;
                    }
                }
            }
        }
    }

    async fn hand_over_lock(self: &Arc<Self>, state: &Arc<OpenState>, lock: &Arc<LockState>) -> Answered<()> {
        for _ in 0..STATE_TRIES {
            if state.is_bare() {
                self.open_again(state).await;
            }
            match self.take_all(state, lock).await {
                Err(f) if f.status().is_some_and(is_state_lost) => {
                    let used = lock.inner.lock().stateid.or(state.inner.lock().stateid);
                    if let Some(used) = used {
                        self.state_lost(state, &used).await;
                    }
                    // The lock stateid at the server is lost, too.
                    lock.inner.lock().stateid = None;
                }
                Err(Fail::Nfs(Nfsstat4::OLD_STATEID)) => {}
                done => return done,
            }
        }
        Err(Error::because(libc::EIO, "the server repeatedly loses the open of the lock").into())
    }

    async fn take_all(self: &Arc<Self>, state: &Arc<OpenState>, lock: &Arc<LockState>) -> Answered<()> {
        let ranges: Vec<_> = {
            let inner = lock.inner.lock();
            // No lock is held, or a recovery has reclaimed it.
            if !inner.here {
                return Ok(());
            }
            inner.ranges.iter().collect()
        };
        for (range, kind) in ranges {
            if state.inner.lock().stateid.is_none() {
                return Err(Error::because(libc::EIO, "the file is not open at the server").into());
            }
            match self.claim_lock(&Via::Ordinary, state, lock, range, kind, Reclaim::Late).await {
                Ok(taken) => taken?,
                Err(_) => return Err(Error::because(libc::EIO, "the session is lost").into()),
            }
        }
        let mut inner = lock.inner.lock();
        inner.here = false;
        // The delegation was found lost in between.
        if !inner.lost.is_empty() {
            Err(Error::because(libc::EIO, "the delegation was lost before").into())
        } else {
            Ok(())
        }
    }
}
