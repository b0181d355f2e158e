//! The places of writes with O_APPEND.
//!
//! The kernel appends at its last known length. That length may be older than a lock that the
//! program holds, and the write would replace bytes of another client. So the daemon appends at the
//! end that the layer below knows. The kernel divides a long write into several requests, and may
//! send them in parallel and in any order. All of them move by the same distance. The kernel runs
//! one append of a file at a time.
//!
//! A write with RWF_NOAPPEND has the flag O_APPEND, too. It begins before the kernel's length.

use hither_vfs::Result;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// Time in which the requests of an append arrive. The kernel sends them without a pause.
const GATHER: Duration = Duration::from_millis(5);

/// The appends through one open.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    last: tokio::sync::Mutex<Last>,
    /// The kernel's places of the requests that wait or run.
    arrived: Mutex<Vec<u64>>,
    /// Number of running requests.
    running: AtomicU32,
}

/// The running append, or the last one.
#[derive(Debug, Default)]
struct Last {
    /// The kernel's length before it, or before an earlier append with this distance.
    from: u64,
    /// Distance from the kernel's place to the real one.
    distance: i64,
}

/// A request of an append. Must be dropped before the answer: the next append has its own distance.
#[derive(Debug)]
pub(crate) struct Append<'a> {
    appends: &'a Appends,
    /// The kernel's place.
    kernel_offset: u64,
    runs: bool,
    /// Place of the write.
    pub offset: u64,
}

impl Appends {
    /// Begins a request at `offset`. `known` tells the kernel's length, if that is certain, and
    /// `end` requests the real one.
    pub async fn begin(
        &self,
        offset: u64,
        known: impl Fn() -> Option<u64>,
        end: impl Future<Output = Result<u64>>,
    ) -> Result<Append<'_>> {
        self.arrived.lock().push(offset);
        let mut append = Append { appends: self, kernel_offset: offset, runs: false, offset };
        let mut last = self.last.lock().await;
        // The requests before this one have extended it by now.
        let known = known();
        // A request behind a later one of its append.
        let is_late = known.is_some_and(|known| last.from <= offset && offset < known);
        let mut distance = last.distance;
        if known.is_some_and(|known| offset < known) && !is_late {
            distance = 0;
        } else if self.running.load(Ordering::Acquire) == 0 && !is_late {
            let end = end.await?;
            let from = self.start(offset, known, end).await;
            distance = end.wrapping_sub(from) as i64;
            // With the same distance this may be a later request of the last append.
            let first = if distance == last.distance { last.from.min(from) } else { from };
            *last = Last { from: first, distance };
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        append.runs = true;
        append.offset = offset.wrapping_add_signed(distance);
        Ok(append)
    }

    /// The kernel's length before an append, of which one request is at `offset`. `end` is the real
    /// length.
    async fn start(&self, offset: u64, known: Option<u64>, end: u64) -> u64 {
        match known {
            Some(known) if known == offset => offset,
            // A later request of the append, unless the append begins at the real length.
            Some(known) => match self.first(offset).await {
                first if first == end => first,
                _ => known,
            },
            None if end == offset => offset,
            None => self.first(offset).await,
        }
    }

    /// The place of the first request of an append, of which one is at `offset`.
    async fn first(&self, offset: u64) -> u64 {
        sleep(GATHER).await;
        self.arrived.lock().iter().min().map_or(offset, |&first| first)
    }
}

impl Drop for Append<'_> {
    fn drop(&mut self) {
        let mut arrived = self.appends.arrived.lock();
        if let Some(at) = arrived.iter().position(|&at| at == self.kernel_offset) {
            arrived.swap_remove(at);
        }
        if self.runs {
            self.appends.running.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::future::ready;

    const MIB: u64 = 1 << 20;
    const ORDERS: [[u64; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    /// Changes of the real length by another client, before each append.
    const FOREIGN: [i64; 6] = [0, 500, -70, 3 * MIB as i64, 0, 0];

    /// Requests that are sent in parallel keep their bytes in order, in all orders of their
    /// arrival, whether the kernel's length is certain or not.
    #[tokio::test(start_paused = true)]
    async fn parallel_requests_move_together() {
        for (order, certain) in ORDERS.into_iter().flat_map(|order| [(order, true), (order, false)]) {
            let appends = Appends::default();
            let (mut kernels, mut real) = (100_u64, 100_u64);
            for foreign in FOREIGN {
                real = real.saturating_add_signed(foreign);
                let known = || certain.then_some(kernels);
                let begin = |n| appends.begin(kernels + n * MIB, known, ready(Ok(real)));
                let [first, second, third] = order.map(begin);
                let begun: [_; 3] = tokio::join!(first, second, third).into();
                for (append, n) in begun.iter().zip(order) {
                    let offset = append.as_ref().unwrap().offset;
                    assert_eq!(offset, real + n * MIB, "{order:?} {certain} {foreign}");
                }
                (kernels, real) = (kernels + 3 * MIB, real + 3 * MIB);
            }
        }
    }

    /// The same for requests of which each ends before the next one begins. With an uncertain
    /// length of the kernel they come in their order.
    #[tokio::test(start_paused = true)]
    async fn serial_requests_move_together() {
        let uncertain = (ORDERS[0], false);
        for (order, certain) in ORDERS.map(|order| (order, true)).into_iter().chain([uncertain]) {
            let appends = Appends::default();
            let (mut kernels, mut real) = (100_u64, 100_u64);
            for foreign in FOREIGN {
                real = real.saturating_add_signed(foreign);
                let (from, to) = (kernels, real);
                for n in order {
                    let known = || certain.then_some(kernels);
                    let append = appends.begin(from + n * MIB, known, ready(Ok(real))).await.unwrap();
                    assert_eq!(append.offset, to + n * MIB, "{order:?} {certain} {foreign}");
                    kernels = kernels.max(from + (n + 1) * MIB);
                    real = real.max(to + (n + 1) * MIB);
                }
            }
            assert!(appends.arrived.lock().is_empty());
        }
    }

    /// An append at the real length stays there, whatever the kernel's length was believed to be.
    #[tokio::test(start_paused = true)]
    async fn append_at_real_length_stays() {
        for known in [None, Some(300), Some(400)] {
            let appends = Appends::default();
            let append = appends.begin(400, || known, ready(Ok(400))).await.unwrap();
            assert_eq!(append.offset, 400, "{known:?}");
        }
    }

    /// A write with RWF_NOAPPEND stays at its place.
    #[tokio::test]
    async fn positional_writes_stay() {
        let appends = Appends::default();
        let begin =
            async |offset, known, end| appends.begin(offset, || known, ready(Ok(end))).await.unwrap().offset;
        assert_eq!(begin(50, Some(100), 300).await, 50);
        assert_eq!(begin(100, Some(100), 300).await, 300);
        assert_eq!(begin(60, Some(120), 320).await, 60);
    }
}
