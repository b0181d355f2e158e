//! The places of writes with O_APPEND.
//!
//! The kernel appends at its last known length. That length may be older than a lock that the
//! program holds, and the write would replace bytes of another client. So the daemon appends at the
//! end that the layer below knows. The kernel divides a long write into several requests, and may
//! send them in parallel. All of them move by the same distance. The kernel runs one append of a
//! file at a time.

use hither_vfs::Result;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Mutex;

/// The appends through one open.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    /// Distance from the kernel's place to the real one, of the running requests.
    distance: Mutex<i64>,
    running: AtomicU32,
}

/// A running request of an append. Must be dropped before the answer: the next append has its own
/// distance.
#[derive(Debug)]
pub(crate) struct Append<'a> {
    appends: &'a Appends,
    /// Place of the write.
    pub offset: u64,
}

impl Appends {
    /// Begins a request of an append at `offset`. `from` is the kernel's length before the append,
    /// and `end` requests the real one.
    pub async fn begin(
        &self,
        offset: u64,
        from: u64,
        end: impl Future<Output = Result<u64>>,
    ) -> Result<Append<'_>> {
        let mut distance = self.distance.lock().await;
        if self.running.load(Ordering::Acquire) == 0 {
            *distance = end.await?.wrapping_sub(from) as i64;
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        Ok(Append { appends: self, offset: offset.wrapping_add_signed(*distance) })
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        self.appends.running.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::future::ready;

    /// All requests of one append move by the distance of the first, in any order. The next append
    /// has a new distance.
    #[tokio::test]
    async fn requests_of_one_append_move_together() {
        let appends = Appends::default();
        let begin = async |offset, from, end| appends.begin(offset, from, ready(Ok(end))).await.unwrap();
        let second = begin(1100, 100, 500).await;
        let first = begin(100, 100, 9999).await;
        assert_eq!((first.offset, second.offset), (500, 1500));
        drop(second);
        // The end contains the second request now.
        let third = begin(2100, 100, 2500).await;
        assert_eq!(third.offset, 2500);
        drop((first, third));
        let shorter = begin(3100, 3100, 40).await;
        assert_eq!(shorter.offset, 40);
    }
}
