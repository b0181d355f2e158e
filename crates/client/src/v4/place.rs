//! Where the locks of a file are: at the server, or here, under a delegation for writing (RFC 8881
//! sections 10.2 and 10.4.2).
//!
//! It knows nothing of how a lock is taken at the server. Who holds a file delegated for writing
//! knows that nobody else has it open or locked, so a lock between programs of this machine is
//! decided against theirs and costs no message. [`Place`] is the file's, not a lock's: either the
//! server has all locks that are held on it, or none.
//!
//! - Server to here: when a lock is asked for, the file is delegated for sure, no lock of it is
//!   held and no call about one is under way. A file with locks from before its delegation goes on
//!   with the server until they are released.
//! - Here to server: before the delegation goes back ([`Core::hand_over`]), each lock is taken at
//!   the server; meanwhile all who ask wait. Whoever finds the file here and its delegation gone
//!   hands it over himself, so it does not matter who comes first. A lock that the server does not
//!   give is lost, as one that could not be claimed after a restart.
//! - After a restart of the server the locks stay here if the delegation is given again and stays;
//!   else they are claimed there ([`Core::claim_file`](super::core::Core)), like all others.
//!
//! A decision here is one critical section of `FileState::inner`, in which the delegation is looked
//! at as well. A delegation is taken out of `Delegations` before that lock is taken to hand over:
//! so a lock that was granted in time is there to be handed over, and none is granted afterwards.
//! Not sure is whoever may have lost the lease, or was told that something was revoked: he waits
//! until that is known.
//!
//! Lock order: `FileState::inner`, then `OpenState::inner`, then `LockState::inner`; `Delegations`
//! and the lease are leaves below the first. None is held while waiting.

use super::call::Compound;
use super::core::{Core, going_away};
use super::fail::{Answered, Fail, is_state_lost};
use super::lock::LockState;
use super::recover::{Reclaim, Via};
use super::state::{FileInner, FileState, OpenState, wire_fh};
use hither_proto::nfs4::{LockType, Nfsstat4, Op};
use hither_vfs::{Cx, Error, Fh, FileRange, LockConflict, LockKind, LockOwner};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// State that is lost again and again is given up.
const STATE_TRIES: u32 = 5;
/// How often it is looked whether the server has revoked a delegation or not.
const SUSPECT_WAIT: Duration = Duration::from_millis(20);
const ALL: FileRange = FileRange { start_bytes: 0, end_bytes: u64::MAX };

/// Where the locks of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the server; so many calls about them are under way.
    Server { asking: u32 },
    /// Here, and nowhere else.
    Here,
    /// On their way to the server: all who ask wait.
    Moving,
    /// The same, in the hands of recovery.
    Claiming,
}

impl Default for Place {
    fn default() -> Self {
        Self::Server { asking: 0 }
    }
}

/// Whether locks of a file may be decided here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    Yes,
    /// As far as is known; which is to be found out.
    Perhaps,
    No,
}

/// How a call about locks goes on.
pub(super) enum Decided<T> {
    /// It was decided.
    Here(T),
    /// The server decides, as long as this is kept.
    Server(Asking),
}

/// A call about locks of a file is under way to the server.
pub(super) struct Asking(Arc<FileState>);

impl Drop for Asking {
    fn drop(&mut self) {
        if let Place::Server { asking } = &mut self.0.inner.lock().place {
            *asking = asking.saturating_sub(1);
        }
    }
}

/// The locks of a file are on their way to the server; there when this is dropped.
struct Moving(Arc<FileState>);

impl Drop for Moving {
    fn drop(&mut self) {
        self.0.arrived(Place::Moving);
    }
}

/// What one look at a file comes to.
enum Look<T> {
    Done(Decided<T>),
    /// They are on their way.
    Wait,
    Unsure,
    /// They are here, and the delegation is not.
    Gone,
}

impl FileState {
    /// What was on its way is at the server now; whatever is not is lost.
    pub fn arrived(&self, from: Place) {
        if self.inner.lock().place == from {
            self.lose("the server did not grant it", from);
        }
    }

    /// All locks that are here are lost with the delegation.
    pub fn lose_locks(&self, why: &str) {
        self.lose(why, Place::Here);
    }

    fn lose(&self, why: &str, from: Place) {
        let mut inner = self.inner.lock();
        for state in inner.states.values() {
            for lock in state.inner.lock().locks.values() {
                if lock.inner.lock().here {
                    lock.lose(&self.fh, why);
                }
            }
        }
        if inner.place == from {
            inner.place = Place::default();
        }
        drop(inner);
        self.lock_freed.notify_waiters();
    }

    /// The open that `state` stood for is gone, and the delegation with it.
    pub fn lose_locks_of(&self, state: &OpenState) {
        let state = state.inner.lock();
        let is_used = state.needed() != 0;
        for lock in state.locks.values().filter(|lock| lock.inner.lock().here) {
            if is_used {
                lock.lose(&self.fh, "its file could not be opened again")
            } else {
                lock.release(ALL)
            }
        }
    }

    /// Recovery takes the locks into its hands.
    pub fn claiming(&self) {
        let mut inner = self.inner.lock();
        if inner.place == Place::Here {
            inner.place = Place::Claiming;
        }
    }

    /// `state` stands for no open any more: nobody has locks by it.
    pub fn unused(&self, state: &OpenState) {
        let inner = self.inner.lock();
        let mut state = state.inner.lock();
        if inner.place != Place::Here || state.needed() != 0 {
            return;
        }
        state.locks.retain(|_, lock| {
            lock.release(ALL);
            lock.inner.lock().stateid.is_some()
        });
        drop((state, inner));
        self.lock_freed.notify_waiters();
    }

    /// What becomes known when it is notified, from now on.
    fn news(&self) -> Notified<'_> {
        self.lock_freed.notified()
    }
}

impl FileInner {
    /// A lock of somebody else in the way.
    pub fn conflict(&self, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict> {
        self.states.values().find_map(|state| {
            let state = state.inner.lock();
            let mut others = state.locks.values().filter(|lock| lock.owner != owner);
            others.find_map(|lock| lock.inner.lock().ranges.conflict(kind, range))
        })
    }

    /// Whether anybody holds a lock.
    fn is_locked(&self) -> bool {
        self.states.values().any(|s| s.inner.lock().locks.values().any(|l| !l.inner.lock().ranges.is_empty()))
    }

    /// Takes a lock here; false when it is taken.
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
            // Closed meanwhile: nobody would release it.
            if state.needed() == 0 {
                return Err(Error::new(libc::EBADF));
            }
        }
        if self.conflict(owner, kind, range).is_some() {
            return Ok(false);
        }
        // What the owner has by another open there is replaced, too.
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

    /// Releases what `owner` has here.
    pub fn release_lock(&self, owner: LockOwner, range: FileRange) {
        for state in self.states.values() {
            let mut state = state.inner.lock();
            let Some(lock) = state.locks.get(&owner) else { continue };
            lock.release(range);
            let inner = lock.inner.lock();
            let idle = inner.ranges.is_empty() && !inner.lost && inner.stateid.is_none();
            drop(inner);
            if idle {
                state.locks.remove(&owner);
            }
        }
    }
}

impl LockState {
    /// Gives up what is held in `range`, of which the server knows nothing.
    fn release(&self, range: FileRange) {
        let mut inner = self.inner.lock();
        inner.ranges.unlock(range);
        inner.here &= !inner.ranges.is_empty();
        inner.lost &= range != ALL;
    }

    /// It could not be kept: I/O fails until its owner unlocks.
    pub fn lose(&self, fh: &Fh, why: &str) {
        tracing::warn!(?fh, "a lock was lost: {why}");
        let mut inner = self.inner.lock();
        inner.lost = true;
        inner.here = false;
        inner.ranges.clear();
    }
}

impl Core {
    /// Decides a call about the locks of `file` here, if that can be, or lets it go to the server.
    /// One that only releases is never refused, so it needs no right.
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
                    // A recovery may be about to claim it.
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
        let asking = match inner.place {
            Place::Moving | Place::Claiming => return Look::Wait,
            Place::Here if releases => return Look::Done(Decided::Here(decide(&inner))),
            Place::Here => {
                return match self.may_lock(&file.fh) {
                    Right::Yes => Look::Done(Decided::Here(decide(&inner))),
                    Right::Perhaps => Look::Unsure,
                    Right::No => Look::Gone,
                };
            }
            Place::Server { asking } => asking,
        };
        if asking == 0 && !releases && self.may_lock(&file.fh) == Right::Yes && !inner.is_locked() {
            inner.place = Place::Here;
            return Look::Done(Decided::Here(decide(&inner)));
        }
        inner.place = Place::Server { asking: asking + 1 };
        Look::Done(Decided::Server(Asking(file.clone())))
    }

    fn may_lock(&self, fh: &Fh) -> Right {
        match self.delegations.for_locks(fh) {
            None => Right::No,
            Some(true) if self.lease_is_sure() => Right::Yes,
            Some(_) => Right::Perhaps,
        }
    }

    /// Whether the server keeps what this client has, as far as time goes.
    fn lease_is_sure(&self) -> bool {
        let lease = self.lease.lock();
        Instant::now() < lease.renewed + lease.time
    }

    /// Takes at the server all locks of a file that are here. None are when it returns.
    pub async fn hand_over(self: &Arc<Self>, fh: &Fh) {
        let Some(file) = self.files.file(fh) else { return };
        // A recovery that is under way claims them, in the grace period.
        if self.ready().await.is_err() {
            return;
        }
        let states: Vec<Arc<OpenState>> = loop {
            let news = file.news();
            {
                let mut inner = file.inner.lock();
                match inner.place {
                    Place::Server { .. } => return,
                    Place::Here => {
                        inner.place = Place::Moving;
                        break inner.states.values().cloned().collect();
                    }
                    Place::Moving | Place::Claiming => {}
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
                    // Some of its ranges may be there.
                    if let Some(stateid) = stateid {
                        let op = Op::locku(stateid.any_seqid(), LockType::WRITE, 0, u64::MAX);
                        let c = Compound::new("LOCKU", [Op::Putfh(wire_fh(fh)), op]);
                        let _ = self.compound(&Cx::new(state.cred.clone()), c).await;
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
                    // That of its owner at the server is no better.
                    lock.inner.lock().stateid = None;
                }
                Err(Fail::Nfs(Nfsstat4::OLD_STATEID)) => {}
                done => return done,
            }
        }
        Err(Error::because(libc::EIO, "the server keeps losing the open behind it").into())
    }

    async fn take_all(self: &Arc<Self>, state: &Arc<OpenState>, lock: &Arc<LockState>) -> Answered<()> {
        let ranges: Vec<_> = {
            let inner = lock.inner.lock();
            // Nothing is held, or a recovery has claimed it.
            if !inner.here {
                return Ok(());
            }
            inner.ranges.iter().collect()
        };
        for (range, kind) in ranges {
            if state.inner.lock().stateid.is_none() {
                return Err(Error::because(libc::EIO, "its file is not open at the server").into());
            }
            match self.claim_lock(&Via::Ordinary, state, lock, range, kind, Reclaim::Late).await {
                Ok(taken) => taken?,
                Err(_) => return Err(Error::because(libc::EIO, "the session is lost").into()),
            }
        }
        let mut inner = lock.inner.lock();
        inner.here = false;
        // Its delegation was found to be no good meanwhile.
        if inner.lost {
            Err(Error::because(libc::EIO, "its delegation was lost before").into())
        } else {
            Ok(())
        }
    }
}
