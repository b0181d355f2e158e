//! Reads into the kernel's pages beside truncations by the mount.
//!
//! A read during a truncation may find the file short already. The kernel still has the old length,
//! and fills the page with zeros up to it. A program would read zeros that nobody has written. So a
//! truncation waits for reads under way, and reads wait until the truncation is answered. The Linux
//! client separates them in the same way.

use super::Inode;
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::{Instant, sleep_until, timeout};

/// Longest wait for each other. A server may recall a delegation before it answers a truncation.
/// The recall drops pages, which waits for the reads.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Time in which the kernel takes the new length, after the answer.
const SETTLE: Duration = Duration::from_millis(10);

/// Separates the reads and truncations of a file. Contains the time from which the kernel has the
/// length of the last truncation.
#[derive(Debug, Default)]
pub(crate) struct Resizing(RwLock<Option<Instant>>);

/// A truncation in progress.
#[derive(Debug)]
pub(crate) struct Truncation<'a>(RwLockWriteGuard<'a, Option<Instant>>);

impl Resizing {
    /// Waits for truncations under way. Later ones wait for the drop of the result.
    pub async fn read(&self) -> Option<RwLockReadGuard<'_, Option<Instant>>> {
        let guard = timeout(WAIT_MAX, self.0.read()).await.ok()?;
        if let Some(settled) = *guard
            && settled > Instant::now()
        {
            sleep_until(settled).await;
        }
        Some(guard)
    }
}

impl Inode {
    /// Waits for reads and truncations under way, before the mount sets this length. Later ones
    /// wait for the drop of the result. `None`: the file does not become shorter, or the wait was
    /// too long.
    pub async fn truncating(&self, size_bytes: u64) -> Option<Truncation<'_>> {
        let known = self.state.lock().length.known();
        if known.is_some_and(|known| known <= size_bytes) {
            return None;
        }
        timeout(WAIT_MAX, self.resizing.0.write()).await.ok().map(Truncation)
    }
}

impl Drop for Truncation<'_> {
    fn drop(&mut self) {
        *self.0 = Some(Instant::now() + SETTLE);
    }
}
