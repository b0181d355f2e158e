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
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::sync::Mutex;

/// Size of a page of memory.
const PAGE_BYTES: u64 = 4096;

/// The appends through one open.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    last: Mutex<Last>,
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

/// A running request of an append. Must be dropped before the answer: the next append has its own
/// distance.
#[derive(Debug)]
pub(crate) struct Append<'a> {
    appends: &'a Appends,
    /// Place of the write.
    pub offset: u64,
}

impl Appends {
    /// Begins a request at `offset`. `known` tells the kernel's length, if that is certain, and
    /// `end` requests the real one. `request_bytes` is the longest length of a request.
    pub async fn begin(
        &self,
        (offset, request_bytes): (u64, u64),
        known: impl Fn() -> Option<u64>,
        end: impl Future<Output = Result<u64>>,
    ) -> Result<Append<'_>> {
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
            // The kernel divides a buffer at pages, so a request may miss the longest length.
            let first_bytes = request_bytes.saturating_sub(PAGE_BYTES);
            let is_later = known.is_none() && offset >= end.saturating_add(first_bytes);
            let from = known.unwrap_or(if is_later { end } else { offset });
            distance = end.wrapping_sub(from) as i64;
            // With the same distance this may be a later request of the last append.
            let first = if distance == last.distance { last.from.min(from) } else { from };
            *last = Last { from: first, distance };
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        Ok(Append { appends: self, offset: offset.wrapping_add_signed(distance) })
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

    const MIB: u64 = 1 << 20;

    /// Appends of three requests each keep their bytes in order, for all orders of the requests,
    /// with and without overlap, and when the file has become longer or shorter meanwhile.
    #[tokio::test]
    async fn requests_of_one_append_move_together() {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for (order, is_parallel, certain) in orders.into_iter().flat_map(|order| {
            [(order, true, true), (order, false, true), (order, true, false), (order, false, false)]
        }) {
            let appends = Appends::default();
            // The kernel's length and the real one.
            let (mut kernels, mut real) = (100_u64, 100_u64);
            for foreign in [0_i64, 500, -70, 3 * MIB as i64, 0, 0] {
                if !certain && foreign != 0 {
                    continue;
                }
                real = real.max(100).saturating_add_signed(foreign);
                let (from, to) = (kernels, real);
                let mut running = Vec::new();
                for n in order {
                    let offset = from + n * MIB;
                    let known = certain.then_some(kernels);
                    let append = appends.begin((offset, MIB), || known, ready(Ok(real))).await.unwrap();
                    assert_eq!(append.offset, to + n * MIB, "{order:?} {is_parallel} {certain} {foreign}");
                    if is_parallel {
                        running.push(append);
                    } else if certain {
                        drop(append);
                        (kernels, real) = (kernels.max(offset + MIB), real.max(to + (n + 1) * MIB));
                    } else {
                        running.push(append);
                    }
                }
                drop(running);
                (kernels, real) = (from + 3 * MIB, to + 3 * MIB);
            }
        }
    }

    /// A write with RWF_NOAPPEND stays at its place.
    #[tokio::test]
    async fn positional_writes_stay() {
        let appends = Appends::default();
        let begin = async |offset, known, end| {
            appends.begin((offset, MIB), || known, ready(Ok(end))).await.unwrap().offset
        };
        assert_eq!(begin(50, Some(100), 300).await, 50);
        assert_eq!(begin(100, Some(100), 300).await, 300);
        assert_eq!(begin(60, Some(120), 320).await, 60);
    }
}
