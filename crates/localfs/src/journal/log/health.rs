//! The state of a journal, for reports.

use super::{Log, Shared};
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// The state of the log of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches that became durable since the start. Each is one write.
    pub batches: u64,
    /// Records in those batches.
    pub records: u64,
    /// The time since the oldest record that no checkpoint has settled became durable. `None`: all
    /// records are settled.
    pub oldest: Option<Duration>,
    /// Checkpoints that settled their records.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoint_failures: u64,
    /// The time of the last checkpoint that succeeded.
    pub last_checkpoint: Duration,
}

/// Counts of batches and checkpoints.
#[derive(Default)]
pub(super) struct Health {
    stats: LogStats,
    /// When the first record became durable that is not settled.
    oldest: Option<Instant>,
    /// The same for the records since the running checkpoint began.
    newer: Option<Instant>,
    /// The beginning of the running checkpoint.
    began: Option<Instant>,
}

impl Health {
    /// Notes a durable batch.
    pub fn written(&mut self, records: u64) {
        let now = Instant::now();
        self.stats.batches += 1;
        self.stats.records += records;
        self.oldest.get_or_insert(now);
        if self.began.is_some() {
            self.newer.get_or_insert(now);
        }
    }

    fn begin(&mut self) {
        self.newer = None;
        self.began = Some(Instant::now());
    }

    fn end(&mut self, done: &io::Result<()>) {
        let took = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
        if done.is_err() {
            self.stats.checkpoint_failures += 1;
            return;
        }
        self.stats.checkpoints += 1;
        self.stats.last_checkpoint = took;
        self.oldest = self.newer.take();
    }
}

impl Log {
    /// Bytes of the ring in use, and size of the ring in bytes.
    pub fn used(&self) -> (u64, u64) {
        let state = self.shared.state.lock();
        (state.used, state.head.size - super::RING_AT)
    }

    /// The present state.
    pub fn stats(&self) -> LogStats {
        let state = self.shared.state.lock();
        LogStats { oldest: state.health.oldest.map(|at| at.elapsed()), ..state.health.stats }
    }
}

impl Shared {
    /// Settles all appended records, and frees their space.
    pub(super) fn checkpoint(&self) -> io::Result<()> {
        let _turn = self.turn.lock();
        self.state.lock().health.begin();
        let done = self.settle_all();
        self.state.lock().health.end(&done);
        done
    }
}
