//! The record with the next deadline: a binary heap of record indices. Each record stores its
//! position in the heap, so that a deadline is changed or removed without a search. Four bytes per
//! record.

use crate::Ms;
use crate::slab::Slab;

/// Position of a record that is not in the heap.
pub(crate) const OUT: u32 = u32::MAX;

/// A record with a deadline.
pub(crate) trait Timed {
    /// The deadline.
    fn deadline_ms(&self) -> Ms;
    /// The position in the heap, or [`OUT`].
    fn place(&mut self) -> &mut u32;
}

/// The heap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heap(Vec<u32>);

impl Heap {
    /// The index of the record with the earliest deadline.
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// Allocated bytes.
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * 4
    }

    /// Adds record `i`, or moves it to the position of its changed deadline.
    pub fn put<T: Timed>(&mut self, slab: &mut Slab<T>, i: u32) {
        let at = match *slab[i].place() {
            OUT => {
                if self.0.len() == self.0.capacity() {
                    self.0.reserve_exact(64 + self.0.len() / 8);
                }
                self.0.push(i);
                self.0.len() - 1
            }
            at => at as usize,
        };
        *slab[i].place() = at as u32;
        let at = self.up(slab, at);
        self.down(slab, at);
    }

    /// Removes record `i`, if it is in the heap.
    pub fn take<T: Timed>(&mut self, slab: &mut Slab<T>, i: u32) {
        let at = std::mem::replace(slab[i].place(), OUT);
        if at == OUT {
            return;
        }
        let last = self.0.pop().expect("a record in the heap means that it is not empty");
        if last != i {
            self.0[at as usize] = last;
            *slab[last].place() = at;
            let at = self.up(slab, at as usize);
            self.down(slab, at);
        }
    }

    fn up<T: Timed>(&mut self, slab: &mut Slab<T>, mut at: usize) -> usize {
        while at > 0 {
            let above = (at - 1) / 2;
            if slab[self.0[above]].deadline_ms() <= slab[self.0[at]].deadline_ms() {
                break;
            }
            self.swap(slab, at, above);
            at = above;
        }
        at
    }

    fn down<T: Timed>(&mut self, slab: &mut Slab<T>, mut at: usize) {
        loop {
            let mut least = at;
            for below in [2 * at + 1, 2 * at + 2] {
                if below < self.0.len()
                    && slab[self.0[below]].deadline_ms() < slab[self.0[least]].deadline_ms()
                {
                    least = below;
                }
            }
            if least == at {
                return;
            }
            self.swap(slab, at, least);
            at = least;
        }
    }

    fn swap<T: Timed>(&mut self, slab: &mut Slab<T>, a: usize, b: usize) {
        self.0.swap(a, b);
        *slab[self.0[a]].place() = a as u32;
        *slab[self.0[b]].place() = b as u32;
    }
}
