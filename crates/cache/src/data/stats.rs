//! Counters of the disk cache.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a [`DataCache`](super::DataCache) since its start; the last five are present
        /// values.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct DataCacheStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Cached files now, complete or partial.
            pub entries: u64,
            /// Space of the cached files, in bytes.
            pub entry_bytes: u64,
            /// Bytes in memory on their way to the disk.
            pub queue_bytes: u64,
            /// Files waiting to be completed.
            pub fill_waiting: u64,
            /// 1 while nothing is cached: another daemon uses the directory, or the disk failed.
            pub off: u64,
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn snapshot(&self) -> DataCacheStats {
                DataCacheStats { $($name: self.$name.load(Ordering::Relaxed),)* ..DataCacheStats::default() }
            }
        }
    };
}

counters! {
    /// Reads without a request below: their bytes were cached or on their way.
    hits,
    /// Those among them whose bytes the frontend reads from the data file.
    slices,
    /// Bytes answered from the cache.
    hit_bytes,
    /// Reads that needed bytes from below.
    misses,
    /// Bytes of these reads that came from below.
    miss_bytes,
    /// Reads of files that are not cached (too young, too small, too large), sent below.
    passed_reads,
    /// READ calls below.
    fetches,
    /// Bytes that these calls returned.
    fetched_bytes,
    /// Calls ahead of a sequential reader.
    ahead_fetches,
    /// Files completed while the link was idle.
    filled_files,
    /// Bytes requested to complete files.
    filled_bytes,
    /// Files whose unchanged blocks were kept over writes of this mount, under a lease.
    kept_over_writes,
    /// Readers that waited for the call of another reader.
    shared_fetches,
    /// Requests for attributes of a file because its attributes had expired.
    revalidations,
    /// Opens answered without a request.
    virtual_opens,
    /// Opens answered without a request that needed an open below later.
    virtual_made_real,
    /// Bytes written to the disk.
    stored_bytes,
    /// Blocks not cached because too many were on their way to the disk.
    queue_full,
    /// Blocks not cached because the cache or its file system was full.
    refused_full,
    /// Blocks not cached because their file is large, was read once and has its share of a full
    /// cache.
    refused_large,
    /// Entries evicted by the cleaner.
    evictions,
    /// Space of the evicted entries, in bytes.
    evicted_bytes,
    /// Entries dropped because the file had changed.
    dropped_by_change,
    /// Entries dropped because of a local change.
    dropped_by_write,
    /// Entries dropped because a checksum or map was wrong.
    damaged,
    /// Disk errors.
    errors,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
