//! The kernel's caches under leases, and their withdrawal.
//!
//! An answer under a lease holds until the layer below withdraws it. So the kernel gets a long
//! validity, and an invalidation at the withdrawal ([`Upcalls`]). The lease may be withdrawn
//! between the answer of the layer below and the reply to the kernel. So each request records the
//! time before it, and keeps that time with the answer. A lease is passed on only when no lease was
//! withdrawn since that time. Withdrawals wait from that check until the reply is written. Other
//! answers hold for the call only.
//!
//! The invalidation of pages waits for running reads of them, so it runs on threads that may block.

use crate::inode::{Clock, Moment};
use crate::session::Session;
use hither_vfs::{BoxFuture, Fh, Upcalls};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// Maximum time for which the kernel keeps state under a lease without a new request.
pub(crate) const LEASE_TIME: Duration = Duration::from_secs(3600);

/// Leases that were passed on to the kernel.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Calls that pass on a lease hold it for reading, until their reply is written.
    gate: Arc<RwLock<()>>,
    withdrawals: AtomicU64,
    /// Time of the last withdrawal.
    last: Mutex<Moment>,
    /// Inodes whose attributes the kernel keeps under a lease.
    held: Mutex<HashSet<u64>>,
}

/// The right to pass on leases. No lease is withdrawn while it exists.
pub(crate) type Grant = OwnedRwLockReadGuard<()>;

impl Leases {
    /// The right to pass on leases that were requested at `asked`. `None` when a lease was
    /// withdrawn since.
    pub fn grant(&self, asked: Moment) -> Option<Grant> {
        let grant = self.gate.clone().try_read_owned().ok()?;
        self.none_since(asked).then_some(grant)
    }

    /// Whether no lease was withdrawn since `asked`. Must be called with a [`Grant`].
    pub fn none_since(&self, asked: Moment) -> bool {
        *self.last.lock() <= asked
    }

    /// Records that the kernel has attributes of an inode under a lease.
    pub fn passed_on(&self, inode: u64) {
        self.held.lock().insert(inode);
    }

    /// Records that the kernel has forgotten an inode.
    pub fn forget(&self, inode: u64) {
        let mut held = self.held.lock();
        if !held.is_empty() {
            held.remove(&inode);
        }
    }

    /// Records a withdrawal, after the last call that passes on leases has written its reply.
    /// `take_back` removes the recorded leases before the next call passes on a lease.
    pub async fn revoke<T>(&self, clock: &Clock, take_back: impl FnOnce() -> T) -> T {
        let gate = self.gate.write().await;
        self.withdrawals.fetch_add(1, Ordering::SeqCst);
        *self.last.lock() = clock.tick();
        let taken = take_back();
        drop(gate);
        taken
    }

    /// Number of objects whose attributes the kernel keeps under a lease, and number of
    /// withdrawals.
    pub fn counts(&self) -> (u64, u64) {
        (self.held.lock().len() as u64, self.withdrawals.load(Ordering::SeqCst))
    }

    /// Removes and returns all inodes under leases.
    pub fn take_all(&self) -> Vec<u64> {
        self.held.lock().drain().collect()
    }
}

/// The receiver of upcalls from the layer below. It is created before the session.
#[derive(Debug, Default)]
pub(crate) struct Revoker {
    session: OnceLock<Weak<Session>>,
}

impl Revoker {
    /// Sets the session.
    pub fn serves(&self, session: &Arc<Session>) {
        let _ = self.session.set(Arc::downgrade(session));
    }

    /// Runs work of the session, also when no caller waits for it.
    fn start<F>(&self, work: impl FnOnce(Arc<Session>) -> F) -> BoxFuture<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Without a session no request was answered.
        let Some(session) = self.session.get().and_then(Weak::upgrade) else { return Box::pin(async {}) };
        let task = session.runtime().spawn(work(session.clone()));
        Box::pin(async move { drop(task.await) })
    }
}

impl Upcalls for Revoker {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        let fh = fh.clone();
        self.start(|session| async move { session.revoke(&fh).await })
    }

    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        let files = files.to_vec();
        self.start(|session| async move { session.expire(&files).await })
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        let names = self.session.get()?.upgrade()?.inodes.path_of(fh)?;
        let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name.as_bytes())).collect();
        Some(names.join("/"))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        self.start(|session| async move { session.revoke_all().await })
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

    /// A lease is passed on only when no withdrawal started since its request. A withdrawal waits
    /// for the reply.
    #[tokio::test]
    async fn withdrawal_blocks_grant() {
        let (leases, clock) = (Leases::default(), Clock::default());
        let began = clock.now();
        let grant = leases.grant(began);
        assert!(grant.is_some());
        let withdrawal = leases.revoke(&clock, || ());
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
