//! The state of a journal, for reports.

use super::Log;
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
    /// The beginning of the running checkpoint.
    began: Option<Instant>,
}

impl Health {
    /// Notes a durable batch.
    pub fn written(&mut self, records: u64) {
        self.stats.batches += 1;
        self.stats.records += records;
    }

    /// Notes the beginning of a checkpoint.
    pub fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    /// Notes the end of a checkpoint.
    pub fn end(&mut self, done: &io::Result<()>) {
        let took = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
        if done.is_err() {
            self.stats.checkpoint_failures += 1;
            return;
        }
        self.stats.checkpoints += 1;
        self.stats.last_checkpoint = took;
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
        LogStats { oldest: state.live.front().map(|batch| batch.durable_at.elapsed()), ..state.health.stats }
    }
}
