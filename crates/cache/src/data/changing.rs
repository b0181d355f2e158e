//! Local changes. While one is running, no read is answered from the cache, and earlier blocks of
//! the file are dropped. Blocks that writes under a lease leave unchanged are kept (`own`).

use super::DataCache;
use super::live::Using;
use super::stats::add;
use hither_vfs::{Fh, FileRange, Result};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Time in which a change with an unseen end may still happen.
const UNSEEN: Duration = Duration::from_secs(60);

/// A running change. Dropped without [`Changing::done`], its end was not seen.
pub(super) struct Changing {
    disk: Weak<DataCache>,
    using: Option<Arc<Using>>,
    fh: Fh,
}

impl Changing {
    /// Begins a change. `written`: the change writes these bytes and nothing else.
    pub fn begin(disk: &DataCache, using: Using, fh: &Fh, written: Option<FileRange>) -> Self {
        {
            let mut s = using.state.lock();
            match written {
                Some(range) => disk.withhold(&s, fh, range),
                None => disk.own_ends(Some(fh)),
            }
            s.changing += 1;
            s.known = None;
            if let Some(held) = s.held.take() {
                held.kill();
            }
        }
        if disk.forget(fh) {
            add(&disk.counters.dropped_by_write, 1);
        }
        Self { disk: disk.me.clone(), using: Some(Arc::new(using)), fh: fh.clone() }
    }

    /// Ends the change with its outcome.
    pub fn done<T>(mut self, outcome: &Result<T>) {
        let seen = match outcome {
            Ok(_) => true,
            Err(e) => !matches!(e.errno, libc::EINTR | libc::ETIMEDOUT | libc::EIO),
        };
        if let (Err(_), Some(disk)) = (outcome, self.disk.upgrade()) {
            disk.own_ends(Some(&self.fh));
        }
        if seen && let (Some(disk), Some(using)) = (self.disk.upgrade(), self.using.take()) {
            end(&disk, &using, &self.fh);
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let Some(using) = self.using.take() else { return };
        if let Some(disk) = self.disk.upgrade() {
            disk.own_ends(Some(&self.fh));
        }
        let (disk, fh) = (self.disk.clone(), self.fh.clone());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            tokio::time::sleep(UNSEEN).await;
            if let Some(disk) = disk.upgrade() {
                end(&disk, &using, &fh);
            }
        });
    }
}

fn end(disk: &DataCache, using: &Using, fh: &Fh) {
    let barrier = disk.ask();
    disk.fence.fetch_max(barrier, Ordering::AcqRel);
    disk.changed.lock().note(fh, Instant::now());
    {
        let mut s = using.state.lock();
        s.changing -= 1;
        s.barrier = barrier;
        s.known = None;
        if let Some(held) = s.held.take() {
            held.kill();
        }
    }
    disk.forget(fh);
}
