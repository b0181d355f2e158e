//! Counters of the delayed writes of a mount.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The reason for sending bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// `fsync`.
    Commit,
    /// The last close of an open.
    Close,
    /// The age of the bytes.
    Age,
    /// Lack of room.
    Pressure,
    /// Another call needed the server to have the bytes: attributes, locks, copies, holes, stable
    /// writes.
    Order,
    /// The recall of a delegation.
    Recall,
    /// The end of the mount.
    Shutdown,
}

const REASONS: usize = 7;

/// The counters in use.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub dirty_bytes_peak: AtomicU64,
    pub writes_in: AtomicU64,
    pub bytes_in: AtomicU64,
    pub writes_merged: AtomicU64,
    pub writes_through: AtomicU64,
    pub writes_out: AtomicU64,
    pub bytes_out: AtomicU64,
    pub writes_failed: AtomicU64,
    pub finishes: AtomicU64,
    pub lazy_closes: AtomicU64,
    pub attributes_merged: AtomicU64,
    pub bytes_dropped: AtomicU64,
    pub bytes_unsent: AtomicU64,
    pub pushbacks: AtomicU64,
    flushes: [AtomicU64; REASONS],
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    pub fn flush(&self, reason: Reason) {
        self.flushes[reason as usize].fetch_add(1, Relaxed);
    }

    pub fn read(&self, files: u64, dirty_bytes: u64, dirty_max_bytes: u64) -> WriteBackStats {
        let n = |counter: &AtomicU64| counter.load(Relaxed);
        let flushes = |reason: Reason| n(&self.flushes[reason as usize]);
        WriteBackStats {
            dirty_files: files,
            dirty_bytes,
            dirty_bytes_peak: n(&self.dirty_bytes_peak),
            dirty_max_bytes,
            writes_in: n(&self.writes_in),
            bytes_in: n(&self.bytes_in),
            writes_merged: n(&self.writes_merged),
            writes_through: n(&self.writes_through),
            writes_out: n(&self.writes_out),
            bytes_out: n(&self.bytes_out),
            writes_failed: n(&self.writes_failed),
            finishes: n(&self.finishes),
            lazy_closes: n(&self.lazy_closes),
            attributes_merged: n(&self.attributes_merged),
            bytes_dropped: n(&self.bytes_dropped),
            bytes_unsent: n(&self.bytes_unsent),
            pushbacks: n(&self.pushbacks),
            flushes_commit: flushes(Reason::Commit),
            flushes_close: flushes(Reason::Close),
            flushes_age: flushes(Reason::Age),
            flushes_pressure: flushes(Reason::Pressure),
            flushes_order: flushes(Reason::Order),
            flushes_recall: flushes(Reason::Recall),
            flushes_shutdown: flushes(Reason::Shutdown),
        }
    }
}

/// Counters of the delayed writes of a mount, and their present load.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct WriteBackStats {
    /// Files with bytes that the server does not have yet.
    pub dirty_files: u64,
    /// The bytes of these files, including those in flight.
    pub dirty_bytes: u64,
    /// The most dirty bytes so far.
    pub dirty_bytes_peak: u64,
    /// The most dirty bytes allowed.
    pub dirty_max_bytes: u64,
    /// Writes answered from memory.
    pub writes_in: u64,
    /// The bytes of these writes.
    pub bytes_in: u64,
    /// Writes that were merged into the buffer of an earlier one.
    pub writes_merged: u64,
    /// Writes passed on at once: O_SYNC, without an open, or for lack of room.
    pub writes_through: u64,
    /// WRITE calls of delayed bytes that the layer below answered.
    pub writes_out: u64,
    /// Bytes accepted by these calls.
    pub bytes_out: u64,
    /// WRITE calls that failed.
    pub writes_failed: u64,
    /// Files whose remaining bytes and attributes were sent in one call.
    pub finishes: u64,
    /// Opens that were closed before all bytes were sent (`close=lazy`).
    pub lazy_closes: u64,
    /// Changes of attributes that were sent with written bytes.
    pub attributes_merged: u64,
    /// Bytes dropped after an error, which was reported.
    pub bytes_dropped: u64,
    /// Bytes of removed files that were never sent.
    pub bytes_unsent: u64,
    /// Writers that had to wait for room.
    pub pushbacks: u64,
    /// Flushes by `fsync`, including `flush` at close(2).
    pub flushes_commit: u64,
    /// Flushes by the end of an open.
    pub flushes_close: u64,
    /// Flushes by age.
    pub flushes_age: u64,
    /// Flushes for lack of room.
    pub flushes_pressure: u64,
    /// Flushes because another call needed the server to have the bytes.
    pub flushes_order: u64,
    /// Flushes by the recall of a delegation.
    pub flushes_recall: u64,
    /// Flushes by the end of the mount.
    pub flushes_shutdown: u64,
}
