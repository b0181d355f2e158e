//! What the cache counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a [`Meta`](super::Meta) since it began; `memory_bytes` is the present value.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct MetaStats {
            $($(#[$doc])* pub $name: u64,)*
            /// Memory that names, attributes and contents take now, in bytes.
            pub memory_bytes: u64,
            /// Objects that are known now.
            pub objects: u64,
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn snapshot(&self) -> MetaStats {
                MetaStats { $($name: self.$name.load(Ordering::Relaxed),)* memory_bytes: 0, objects: 0 }
            }
        }
    };
}

counters! {
    /// Names answered from memory.
    name_hits,
    /// Names asked below.
    name_misses,
    /// Absent names answered from memory.
    negative_hits,
    /// Of these, because the whole directory is known.
    complete_hits,
    /// Attributes answered from memory.
    attr_hits,
    /// Attributes asked below.
    attr_misses,
    /// Pages of listings answered from memory.
    listing_hits,
    /// Pages of listings asked below.
    listing_misses,
    /// Rights answered from memory.
    access_hits,
    /// Rights asked below.
    access_misses,
    /// Walks sent below.
    walks,
    /// Walks that waited for another's answer instead of asking.
    shared_walks,
    /// Questions below about many expired objects at once.
    batches,
    /// Objects in them.
    batched_objects,
    /// Directories among them that were listed, with the attributes of all their entries.
    batched_listings,
    /// Objects that were remembered over a restart.
    recalled_objects,
    /// Files remembered over a restart that were opened many in a question.
    reopened_files,
    /// Small files fetched ahead of their use.
    prefetched_files,
    /// Their bytes.
    prefetched_bytes,
    /// Bytes of them that were read later.
    prefetch_used_bytes,
    /// Bytes of them that were dropped unread.
    prefetch_wasted_bytes,
    /// Opens that were answered here, nothing sent.
    virtual_opens,
    /// Of these, those that had to be made real later.
    virtual_made_real,
    /// Opens sent below.
    real_opens,
    /// Reads answered from contents held here.
    content_hits,
    /// Objects dropped to stay within the memory allowed.
    evictions,
    /// Times that all attributes expired, because a call changed an object that was not known.
    fences,
    /// Answers not kept because something of our own changed the object meanwhile.
    overtaken,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
