//! Counters of the metadata cache.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a [`MetadataCache`](super::MetadataCache) since its start. `memory_bytes`
        /// and `objects` are present values.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct MetadataCacheStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Memory of names, attributes and contents now, in bytes.
            pub memory_bytes: u64,
            /// Objects in memory now.
            pub objects: u64,
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn snapshot(&self) -> MetadataCacheStats {
                MetadataCacheStats { $($name: self.$name.load(Ordering::Relaxed),)* memory_bytes: 0, objects: 0 }
            }
        }
    };
}

counters! {
    /// Names answered from memory.
    name_hits,
    /// Names requested below.
    name_misses,
    /// Absent names answered from memory.
    negative_hits,
    /// Absent names answered because the listing of the directory is complete.
    complete_hits,
    /// Attributes answered from memory.
    attr_hits,
    /// Attributes requested below.
    attr_misses,
    /// Pages of listings answered from memory.
    listing_hits,
    /// Pages of listings requested below.
    listing_misses,
    /// Rights answered from memory.
    access_hits,
    /// Rights requested below.
    access_misses,
    /// Walks sent below.
    walks,
    /// Walks that waited for the answer of another walk.
    shared_walks,
    /// Requests below about many expired objects.
    batches,
    /// Objects in these requests.
    batched_objects,
    /// Directories in these requests that were listed with the attributes of all entries.
    batched_listings,
    /// Directories listed ahead of their use, with the listing of another one.
    listed_ahead,
    /// Directories among them that were used.
    listed_ahead_used,
    /// Objects restored after a restart.
    recalled_objects,
    /// Files restored after a restart that were opened in batches.
    reopened_files,
    /// Small files fetched ahead of their use.
    prefetched_files,
    /// Bytes of small files fetched ahead of their use.
    prefetched_bytes,
    /// Prefetched bytes that were read later.
    prefetch_used_bytes,
    /// Prefetched bytes that were dropped unread.
    prefetch_wasted_bytes,
    /// Opens answered without a request.
    virtual_opens,
    /// Opens answered without a request that needed an open below later.
    virtual_made_real,
    /// Opens sent below.
    real_opens,
    /// Reads answered from contents in memory.
    content_hits,
    /// Objects dropped to stay within the memory bound.
    evictions,
    /// Times that all attributes expired because a local change affected an unknown object.
    fences,
    /// Answers that were not kept because a local change affected the object meanwhile.
    overtaken,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
