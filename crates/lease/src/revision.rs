//! Modify revisions: growing numbers that are never reused, even after a crash.
//!
//! One counter serves all files. A file's revision is the counter's value at its last change. The
//! end of a range is made durable before numbers of the range are used ([`Revisions::reserve`],
//! [`Revisions::reserved`]). A restart continues after the last durable end. With steps of 2^32
//! that costs one durable write per four thousand million changes. A file without a record has the
//! [`floor`](Revisions::floor): the highest revision of all removed records. So a revision may grow
//! without a change, but it always grows with a change.

/// The counter.
#[derive(Debug, Clone)]
pub struct Revisions {
    last: u64,
    floor: u64,
    durable_end: u64,
    asked_end: u64,
    step: u64,
    grows: bool,
    unlimited: bool,
}

impl Revisions {
    /// Continues after `reserved_end`, the last durable end (0 at the first start), in steps of
    /// `step`.
    pub fn new(reserved_end: u64, step: u64) -> Self {
        // A revision is never zero.
        let start = reserved_end.max(1);
        Self {
            last: start,
            floor: start,
            durable_end: reserved_end,
            asked_end: reserved_end,
            step: step.max(2),
            grows: true,
            unlimited: false,
        }
    }

    /// Switches off the growth of revisions, or their reservation.
    pub(crate) fn breaking(self, growth: bool, durability: bool) -> Self {
        Self { grows: !growth, unlimited: durability, ..self }
    }

    /// The end that was requested last.
    pub fn asked_end(&self) -> u64 {
        self.asked_end
    }

    /// The highest revision until now.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The revision of a file without a record.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The record of a file with this revision was removed.
    pub fn forget(&mut self, revision: u64) {
        self.floor = self.floor.max(revision);
    }

    /// Whether the reserved range has numbers for `changes` changes.
    pub fn has(&self, changes: u64) -> bool {
        self.unlimited || self.last.saturating_add(changes) < self.durable_end
    }

    /// The next number. Only after [`has`](Self::has) returned true.
    pub fn number(&mut self) -> u64 {
        if self.grows {
            debug_assert!(self.has(1), "a modify revision that is not reserved");
            self.last += 1;
        }
        self.last
    }

    /// The end of the range to make durable now, when the current range is half used.
    pub fn reserve(&mut self) -> Option<u64> {
        if self.unlimited
            || self.durable_end != self.asked_end
            || self.last.saturating_add(self.step / 2) < self.durable_end
        {
            return None;
        }
        let end = self.last.max(self.durable_end) / self.step;
        self.asked_end = end.saturating_add(1).saturating_mul(self.step);
        Some(self.asked_end)
    }

    /// `end` is durable.
    pub fn reserved(&mut self, end: u64) {
        self.durable_end = self.durable_end.max(end);
        self.asked_end = self.asked_end.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Revisions grow across 50 restarts, also when a crash prevents a reservation.
    #[test]
    fn revisions_never_repeat_across_crashes() {
        let (mut stored, mut highest) = (0, 0);
        for lifetime in 0..50u64 {
            let mut r = Revisions::new(stored, 8);
            assert!(!r.has(1), "nothing is given out before it is reserved");
            for change in 0..lifetime {
                if let Some(end) = r.reserve() {
                    // In every third round the crash happens before the end is durable.
                    if change % 3 == 2 {
                        break;
                    }
                    stored = end;
                    r.reserved(end);
                }
                if r.has(1) {
                    let next = r.number();
                    assert!(next > highest && next < stored);
                    highest = next;
                }
            }
        }
        assert!(highest > 100);
    }

    /// After a file is forgotten, the floor is at least its revision. So its clients see a change.
    #[test]
    fn forgotten_file_raises_floor() {
        let mut r = Revisions::new(0, 8);
        let end = r.reserve().unwrap();
        r.reserved(end);
        let before = r.floor();
        let changed = r.number();
        assert!(changed > before);
        r.forget(changed);
        assert!(r.floor() >= changed);
    }

    /// A range is requested once, before the previous range is used up.
    #[test]
    fn range_is_reserved_once() {
        let mut r = Revisions::new(0, 8);
        assert_eq!((r.reserve(), r.reserve()), (Some(8), None));
        r.reserved(8);
        assert_eq!(r.reserve(), None);
        while r.reserve().is_none() {
            r.number();
        }
        assert!(r.has(2), "there is room while the next range becomes durable");
        r.reserved(16);
        assert!(r.has(9));
    }
}
