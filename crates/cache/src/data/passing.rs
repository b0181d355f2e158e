//! Refused blocks: blocks of a large file that the cache does not store.
//!
//! They were requested ahead of a reader that has yet to read them. So the last of them stay in
//! memory for a while, of all files together, within a part of the queue's memory. A refused block
//! keeps its reserved memory in the queue.

use super::fill::Job;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Part of the queue's memory, in eighths. It is more than the window ahead of one reader. It is
/// less than half: calls that wait for half of the queue ([`roomy`](super::DataCache::roomy)) would
/// wait for ever.
const PARTS: usize = 3;

/// The last refused blocks.
pub(super) struct Passing {
    inner: Mutex<Inner>,
    /// Most memory, in units of the queue.
    most: usize,
}

#[derive(Default)]
struct Inner {
    blocks: VecDeque<Job>,
    units: usize,
    /// Number of callers that want all memory back.
    closed: usize,
}

/// Keeps refused blocks out of memory until dropped.
pub(super) struct Closed<'a>(&'a Passing);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().closed -= 1;
    }
}

impl Passing {
    /// For a queue of so many units.
    pub fn new(queue_units: usize) -> Self {
        Self { inner: Mutex::default(), most: queue_units / 8 * PARTS }
    }

    /// Memory of the refused blocks, in units of the queue.
    pub fn units(&self) -> usize {
        self.inner.lock().units
    }

    /// Stores a refused block.
    pub fn take(&self, job: Job) {
        let mut inner = self.inner.lock();
        inner.units += job.room.num_permits();
        inner.blocks.push_back(job);
        let most = if inner.closed > 0 { 0 } else { self.most };
        Self::shrink(&mut inner, most);
    }

    /// Drops all refused blocks, and new ones until the result is dropped.
    pub fn close(&self) -> Closed<'_> {
        let mut inner = self.inner.lock();
        inner.closed += 1;
        Self::shrink(&mut inner, 0);
        Closed(self)
    }

    fn shrink(inner: &mut Inner, most: usize) {
        while inner.units > most
            && let Some(job) = inner.blocks.pop_front()
        {
            inner.units -= job.room.num_permits();
            job.held.unready(job.block);
        }
    }
}
