//! Blocks that pass by: those of a large file that the cache does not keep.
//!
//! They were asked for ahead of a reader who has yet to come for them, so they stay in memory for a
//! while: the last ones, as many as a part of the queue's memory holds, whatever files they are of.
//! The room of a block in the queue stays taken.

use super::fill::Job;
use super::held::Held;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use tokio::sync::OwnedSemaphorePermit;

/// Of eight parts of the queue's memory so many. More than the window ahead of one reader, and less
/// than half: those who wait for half of it ([`roomy`](super::Disk::roomy)) would wait for ever.
const PARTS: usize = 3;

/// The last blocks that passed by.
pub(super) struct Passing {
    inner: Mutex<Inner>,
    /// Most memory, in units of the queue.
    most: usize,
}

#[derive(Default)]
struct Inner {
    blocks: VecDeque<(Weak<Held>, u64, OwnedSemaphorePermit)>,
    units: usize,
    /// So many want all memory back.
    closed: usize,
}

/// Nothing passes by as long as this is kept.
pub(super) struct Closed<'a>(&'a Passing);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.inner.lock().closed -= 1;
    }
}

impl Passing {
    /// Of a queue of so many units.
    pub fn new(queue_units: usize) -> Self {
        Self { inner: Mutex::default(), most: queue_units / 8 * PARTS }
    }

    /// Memory that they take, in units of the queue.
    pub fn units(&self) -> usize {
        self.inner.lock().units
    }

    /// Takes a block that was refused.
    pub fn take(&self, job: Job) {
        let mut inner = self.inner.lock();
        inner.units += job.room.num_permits();
        let Job { held, block, room, .. } = job;
        inner.blocks.push_back((Arc::downgrade(&held), block, room));
        let most = if inner.closed > 0 { 0 } else { self.most };
        Self::shrink(&mut inner, most);
    }

    /// Lets all of them go, and those that come as long as the answer is kept.
    pub fn close(&self) -> Closed<'_> {
        let mut inner = self.inner.lock();
        inner.closed += 1;
        Self::shrink(&mut inner, 0);
        Closed(self)
    }

    fn shrink(inner: &mut Inner, most: usize) {
        while inner.units > most
            && let Some((held, block, room)) = inner.blocks.pop_front()
        {
            inner.units -= room.num_permits();
            if let Some(held) = held.upgrade() {
                held.unready(block);
            }
        }
    }
}
