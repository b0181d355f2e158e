//! The cleaner: evicts entries when the cache is too large or too little space is free.
//!
//! It starts above the soft limit of the shelf or of the whole directory (`total`). It also starts
//! when the file system has less free space than required. It stops at the goal of the policy
//! ([`Policy::goal`](crate::policy::Policy::goal)). Entries leave the index one at a time, each
//! under the lock for a short time. Threads that may block remove their files; no reader waits for
//! that. Pinned files are not in the order.

use super::shelf::Shelf;
use super::stats::add;
use std::sync::atomic::Ordering;

/// Entries evicted before their files are removed.
const TURN: u64 = 64;
/// Free space beyond the required one that ends a shortage, as a part of the cache size: one in so
/// many.
const SLACK_PART: u64 = 8;

impl Shelf {
    /// Evicts at most `most` entries, if a limit is exceeded; returns their number. Only one caller
    /// at a time cleans.
    pub fn clean(&self, most: u64) -> u64 {
        let Some(_alone) = self.cleaning.try_lock() else { return 0 };
        if !self.is_to_clean() {
            return 0;
        }
        let (mut gone, mut freed) = (0, 0);
        while gone < most
            && let Some(bytes) = self.evict_next()
        {
            (gone, freed) = (gone + 1, freed + bytes);
            if gone % TURN == 0 {
                self.empty_trash();
            }
        }
        self.empty_trash();
        add(&self.counters.evictions, gone);
        add(&self.counters.evicted_bytes, freed);
        gone
    }

    fn is_to_clean(&self) -> bool {
        let free = self.io.free_bytes().unwrap_or(u64::MAX);
        let short = self.limits.min_free_bytes.saturating_sub(free);
        let mut index = self.index.lock();
        let taken = index.bytes() + self.withheld();
        if short > 0 {
            self.tight_bytes.store(taken.saturating_sub(short), Ordering::Relaxed);
        } else if free - self.limits.min_free_bytes.min(free) > taken / SLACK_PART {
            self.tight_bytes.store(u64::MAX, Ordering::Relaxed);
        }
        if index.goal.is_none() {
            let short = short.max(self.total.get().map_or(0, |total| total.take_short(taken)));
            index.goal = index.policy().goal(taken, self.limits.soft_bytes, short);
        }
        index.goal.is_some()
    }

    fn evict_next(&self) -> Option<u64> {
        let mut index = self.index.lock();
        let taken = index.bytes() + self.withheld();
        let next = if index.goal.is_some_and(|goal| taken > goal) { index.evict() } else { None };
        let Some((slot, bytes)) = next else {
            // The goal is reached, or no entry may be evicted.
            index.goal = None;
            return None;
        };
        drop(index);
        self.gone(&slot);
        Some(bytes)
    }
}
