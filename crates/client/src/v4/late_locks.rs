//! Calls for locks that continue although their caller was interrupted or has timed out.
//!
//! Such a LOCK may still be granted, and is then released. Such a LOCKU may still be executed. The
//! owner's next lock would end with either, so it waits for them.

use hither_vfs::{Fh, LockOwner};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Number of late calls for each file and owner.
#[derive(Debug, Default)]
pub(crate) struct LateLocks {
    late: Mutex<HashMap<(Fh, LockOwner), usize>>,
    ended: Notify,
}

impl LateLocks {
    /// Waits until the owner has no late call for the file.
    pub async fn end(&self, fh: &Fh, owner: LockOwner) {
        let at = (fh.clone(), owner);
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !self.late.lock().contains_key(&at) {
                return;
            }
            ended.await;
        }
    }

    /// Starts a call. Returns its two halves.
    pub fn call(self: &Arc<Self>, fh: &Fh, owner: LockOwner) -> (Caller, Arc<LockCall>) {
        let call =
            Arc::new(LockCall { all: self.clone(), at: (fh.clone(), owner), late: AtomicBool::default() });
        (Caller(call.clone()), call)
    }
}

/// A call for a lock. It ends when all references to it are dropped.
#[derive(Debug)]
pub(crate) struct LockCall {
    all: Arc<LateLocks>,
    at: (Fh, LockOwner),
    late: AtomicBool,
}

/// The waiting caller of a [`LockCall`]. The call is late from the drop on.
#[derive(Debug)]
pub(crate) struct Caller(Arc<LockCall>);

impl Drop for Caller {
    fn drop(&mut self) {
        *self.0.all.late.lock().entry(self.0.at.clone()).or_default() += 1;
        self.0.late.store(true, Ordering::Relaxed);
    }
}

impl Drop for LockCall {
    fn drop(&mut self) {
        if !self.late.load(Ordering::Relaxed) {
            return;
        }
        let mut late = self.all.late.lock();
        if let Some(count) = late.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                late.remove(&self.at);
            }
        }
        drop(late);
        self.all.ended.notify_waiters();
    }
}
