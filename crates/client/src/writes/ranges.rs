//! Locks on ranges of one file, first come first served.
//!
//! Overlapping writes must reach the server one after the other, in the order of their calls. After
//! a restart of the server, a piece that is written again must not overwrite a newer write of the
//! same bytes. Ranges that do not overlap do not wait for each other. A waiter stands behind every
//! earlier entry that overlaps, both holders and waiters. No waiter starves.

use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::oneshot;

/// The locks of one file.
#[derive(Debug, Default, Clone)]
pub(super) struct Ranges {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    /// In order of arrival.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    start: u64,
    end: u64,
    /// Present while the entry waits.
    wake: Option<oneshot::Sender<()>>,
}

/// Holds a range, or a place in the queue. Drop releases it.
#[derive(Debug)]
pub(super) struct RangeGuard {
    queue: Arc<Mutex<Queue>>,
    id: u64,
}

impl Ranges {
    /// Waits until earlier entries that overlap `start..end` have ended. The place in the queue is
    /// taken at the call, not at the first poll of the future.
    pub fn lock(&self, start: u64, end: u64) -> impl Future<Output = RangeGuard> + Send + use<> {
        let mut queue = self.queue.lock();
        let id = queue.next;
        queue.next += 1;
        let (wake, woken) = oneshot::channel();
        let free = !queue.entries.iter().any(|e| overlap(e, start, end));
        let entry = Entry { id, start, end, wake: (!free).then_some(wake) };
        queue.entries.push(entry);
        drop(queue);
        let guard = RangeGuard { queue: self.queue.clone(), id };
        async move {
            if !free {
                // The entry owns the sender until its use. The entry exists until the drop of the
                // guard.
                let _ = woken.await;
            }
            guard
        }
    }
}

fn overlap(e: &Entry, start: u64, end: u64) -> bool {
    e.start < end && start < e.end
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut queue = self.queue.lock();
        queue.entries.retain(|e| e.id != self.id);
        for i in 0..queue.entries.len() {
            let (before, rest) = queue.entries.split_at_mut(i);
            let entry = &mut rest[0];
            if !before.iter().any(|e| overlap(e, entry.start, entry.end))
                && let Some(wake) = entry.wake.take()
            {
                let _ = wake.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Overlapping ranges are locked in the order of their requests. A range without an overlap
    /// does not wait.
    #[tokio::test]
    async fn overlapping_ranges_wait_in_order() {
        let ranges = Ranges::default();
        let first = ranges.lock(0, 10).await;
        let mut second = Box::pin(ranges.lock(5, 15));
        let mut third = Box::pin(ranges.lock(12, 20));
        let fourth = ranges.lock(20, 30).await;
        for waiting in [&mut second, &mut third] {
            assert!(tokio::time::timeout(std::time::Duration::ZERO, waiting).await.is_err());
        }
        drop(first);
        let second = second.await;
        assert!(tokio::time::timeout(std::time::Duration::ZERO, &mut third).await.is_err());
        drop(second);
        third.await;
        drop(fourth);
        assert!(ranges.queue.lock().entries.is_empty());
    }

    /// A dropped waiter lets the next waiter pass.
    #[tokio::test]
    async fn dropped_waiter_unblocks_next() {
        let ranges = Ranges::default();
        let first = ranges.lock(0, 10).await;
        let second = ranges.lock(0, 10);
        let third = ranges.lock(0, 10);
        drop(second);
        drop(first);
        third.await;
        assert!(ranges.queue.lock().entries.is_empty());
    }
}
