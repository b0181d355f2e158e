//! The cleaner: what goes when there is too much, or too little is free.
//!
//! It begins above the soft limit (its own, or that of the whole directory: `total`), or when the
//! file system has less free than it should, and ends where the policy says
//! ([`Policy::goal`](crate::policy::Policy::goal)). Entries leave the index one at a time, each
//! under the lock for as long as it takes to look at a few, and their files are removed by those
//! who may block; no reader waits for it. Files that are pinned are not in the order at all.

use super::shelf::Shelf;
use super::stats::add;
use std::sync::atomic::Ordering;

/// Entries that leave before their files are removed.
const TURN: u64 = 64;
/// A file system that was short of space is so no longer when it has more than this part of what is
/// kept to spare.
const SLACK_PART: u64 = 8;

impl Shelf {
    /// Removes at most `most` entries, if it is time; how many went. One at a time cleans.
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
            // As few as wanted, or nothing is left that may go.
            index.goal = None;
            return None;
        };
        drop(index);
        self.gone(&slot);
        Some(bytes)
    }
}
