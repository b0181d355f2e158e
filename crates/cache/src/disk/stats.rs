//! What the cache on disk counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a [`Disk`](super::Disk) since it began; the last five are present values.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct DiskStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Files that are here now, whole or in part.
            pub entries: u64,
            /// Space they take, in bytes.
            pub entry_bytes: u64,
            /// Bytes in memory on their way to the disk.
            pub queue_bytes: u64,
            /// Files that wait to be completed.
            pub fill_waiting: u64,
            /// 1 while nothing is kept: the directory is in use by another, or the disk failed.
            pub off: u64,
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn snapshot(&self) -> DiskStats {
                DiskStats { $($name: self.$name.load(Ordering::Relaxed),)* ..DiskStats::default() }
            }
        }
    };
}

counters! {
    /// Reads that asked for nothing below: what they wanted was here or on its way.
    hits,
    /// Bytes answered from what was here.
    hit_bytes,
    /// Reads that needed bytes from below.
    misses,
    /// Bytes of their answers that came from below.
    miss_bytes,
    /// Reads of files that are not kept here (too young, too small, too large), passed on.
    passed_reads,
    /// Calls below for bytes.
    fetches,
    /// Bytes that they brought.
    fetched_bytes,
    /// Of these calls, those ahead of a sequential reader.
    ahead_fetches,
    /// Files that were completed because nothing else was asked for.
    filled_files,
    /// Bytes asked for to complete files.
    filled_bytes,
    /// Files whose other blocks were kept over writes of this mount, under a lease.
    kept_over_writes,
    /// Readers that waited for another's call instead of asking.
    shared_fetches,
    /// Questions whether the file is still the same, because the time of its attributes was over.
    revalidations,
    /// Opens that were answered without asking.
    virtual_opens,
    /// Of these, those that had to be made below later.
    virtual_made_real,
    /// Bytes written to the disk.
    stored_bytes,
    /// Blocks that were not kept because too many were on their way to the disk.
    queue_full,
    /// Blocks that were not kept because the cache or its file system was full.
    refused_full,
    /// Blocks that were not kept because their file is large, was read once and has its share of a
    /// full cache.
    refused_large,
    /// Entries that the cleaner removed.
    evictions,
    /// Space that they took, in bytes.
    evicted_bytes,
    /// Entries dropped because the file had changed.
    dropped_by_change,
    /// Entries dropped because of a change of our own.
    dropped_by_write,
    /// Entries dropped because a checksum or map was wrong.
    damaged,
    /// Errors of the disk.
    errors,
}

/// Counts.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
