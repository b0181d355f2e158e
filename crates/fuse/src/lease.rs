//! The kernel's caches under leases, and their withdrawal.
//!
//! An answer under a lease holds until the layer below withdraws it, so the kernel gets a long
//! lifetime and an invalidation in the end ([`Upcalls`]). The lease may be withdrawn between the
//! answer of the layer below and the moment when the kernel takes it. So each question notes the
//! moment before it, and keeps that moment with the answer for as long as the answer is kept. A
//! lease is passed on only while none was withdrawn since that moment. From that check until the
//! reply is written, a moment without waiting, withdrawals are held up. Answers without this
//! protocol hold for the call only.
//!
//! It knows nothing of servers. Invalidating pages waits for reads of them, so it happens on
//! threads that may block.

use crate::inode::{Clock, Moment};
use crate::session::Session;
use hither_vfs::{BoxFuture, Fh, Upcalls};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// Longest time for which the kernel may keep state under a lease before it asks again.
pub(crate) const LEASE_TIME: Duration = Duration::from_secs(3600);

/// Leases passed on to the kernel.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Held for reading by calls that pass a lease on, until their reply is written.
    gate: Arc<RwLock<()>>,
    withdrawals: AtomicU64,
    /// When the last one was.
    last: Mutex<Moment>,
    /// Inodes that the kernel keeps attributes of under a lease.
    held: Mutex<HashSet<u64>>,
}

/// The right to pass leases on; as long as it lives, none is withdrawn.
pub(crate) type Grant = OwnedRwLockReadGuard<()>;

impl Leases {
    /// The right to pass on leases that were asked for at `asked`; `None` when one was withdrawn
    /// since.
    pub fn grant(&self, asked: Moment) -> Option<Grant> {
        let grant = self.gate.clone().try_read_owned().ok()?;
        self.none_since(asked).then_some(grant)
    }

    /// Whether no lease was withdrawn since then; to be asked with a [`Grant`] in hand.
    pub fn none_since(&self, asked: Moment) -> bool {
        *self.last.lock() <= asked
    }

    /// Notes that the kernel has attributes of an inode under a lease.
    pub fn passed_on(&self, inode: u64) {
        self.held.lock().insert(inode);
    }

    /// Notes that the kernel has forgotten an inode.
    pub fn forget(&self, inode: u64) {
        let mut held = self.held.lock();
        if !held.is_empty() {
            held.remove(&inode);
        }
    }

    /// Notes a withdrawal, after the last call that passes leases on has written its reply, and
    /// takes back the noted leases before the next call passes any on.
    pub async fn withdraw<T>(&self, clock: &Clock, take_back: impl FnOnce() -> T) -> T {
        let gate = self.gate.write().await;
        self.withdrawals.fetch_add(1, Ordering::SeqCst);
        *self.last.lock() = clock.tick();
        let taken = take_back();
        drop(gate);
        taken
    }

    /// Objects that the kernel keeps attributes of under a lease, and withdrawals so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.held.lock().len() as u64, self.withdrawals.load(Ordering::SeqCst))
    }

    /// Inodes under leases, which end here.
    pub fn take_all(&self) -> Vec<u64> {
        self.held.lock().drain().collect()
    }
}

/// The calls of the layer below. It exists before the session does.
#[derive(Debug, Default)]
pub(crate) struct Withdrawer {
    session: OnceLock<Weak<Session>>,
}

impl Withdrawer {
    /// Names the session.
    pub fn serves(&self, session: &Arc<Session>) {
        let _ = self.session.set(Arc::downgrade(session));
    }

    /// Does something with the session, also without a waiting caller.
    fn start<F>(&self, work: impl FnOnce(Arc<Session>) -> F) -> BoxFuture<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Without a session nothing has been answered.
        let Some(session) = self.session.get().and_then(Weak::upgrade) else { return Box::pin(async {}) };
        let task = session.runtime().spawn(work(session.clone()));
        Box::pin(async move { drop(task.await) })
    }
}

impl Upcalls for Withdrawer {
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()> {
        let fh = fh.clone();
        self.start(|session| async move { session.withdraw(&fh).await })
    }

    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        let files = files.to_vec();
        self.start(|session| async move { session.lapse(&files).await })
    }

    fn withdraw_all(&self) -> BoxFuture<()> {
        self.start(|session| async move { session.withdraw_all().await })
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_is_passed_on_only_when_none_was_withdrawn_meanwhile() {
        let (leases, clock) = (Leases::default(), Clock::default());
        let began = clock.now();
        let grant = leases.grant(began);
        assert!(grant.is_some());
        let withdrawal = leases.withdraw(&clock, || ());
        tokio::pin!(withdrawal);
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut withdrawal).await.is_err(), "a reply is being written");
        assert!(leases.grant(began).is_none(), "a withdrawal waits");
        drop(grant);
        withdrawal.await;
        assert!(leases.grant(began).is_none());
        assert!(leases.grant(clock.now()).is_some());
    }
}
