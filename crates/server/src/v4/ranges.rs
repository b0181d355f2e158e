//! Byte-range locks of one file, and conflicts between them.
//!
//! The module knows nothing of stateids or clients: owners are numbers. Locks of one owner never
//! overlap. A new lock replaces the owner's locks in its range, as POSIX requires. A part of a lock
//! can therefore be upgraded, downgraded or released.

use hither_vfs::{FileRange, LockKind};

/// Most locks of a file. The limit stops a program that locks single bytes before it exhausts the
/// server's memory.
const LOCKS_MAX: usize = if cfg!(test) { 256 } else { 16_384 };

/// A lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeLock {
    pub owner: u64,
    pub kind: LockKind,
    pub range: FileRange,
}

/// All locks of a file, by first byte.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    held: Vec<RangeLock>,
}

impl Ranges {
    /// A lock of another owner that conflicts with `kind` on `range`.
    pub fn conflict(&self, owner: u64, kind: LockKind, range: FileRange) -> Option<RangeLock> {
        let forbids = |h: &&RangeLock| h.kind == LockKind::Write || kind == LockKind::Write;
        let before_its_end = self.held.partition_point(|h| h.range.start_bytes < range.end_bytes);
        self.held[..before_its_end]
            .iter()
            .filter(forbids)
            .find(|h| h.owner != owner && h.range.end_bytes > range.start_bytes)
            .copied()
    }

    /// Whether there is room for one more lock. A new lock may split another into three.
    pub fn has_room(&self) -> bool {
        self.held.len() + 2 <= LOCKS_MAX
    }

    /// Takes a lock without a conflict according to [`Ranges::conflict`].
    pub fn take(&mut self, owner: u64, kind: LockKind, mut range: FileRange) {
        self.release(owner, range);
        // Adjacent locks of the same kind are merged, so that a program that locks byte by byte
        // uses one lock.
        self.held.retain(|h| {
            let touches = h.range.end_bytes == range.start_bytes || h.range.start_bytes == range.end_bytes;
            let joins = h.owner == owner && h.kind == kind && touches;
            if joins {
                range.start_bytes = range.start_bytes.min(h.range.start_bytes);
                range.end_bytes = range.end_bytes.max(h.range.end_bytes);
            }
            !joins
        });
        self.insert(RangeLock { owner, kind, range });
    }

    /// Releases an owner's locks in a range. Returns whether there were any.
    pub fn release(&mut self, owner: u64, range: FileRange) -> bool {
        let mut rest: Vec<RangeLock> = Vec::new();
        let before = self.held.len();
        self.held.retain(|h| {
            let r = h.range;
            if h.owner != owner || r.end_bytes <= range.start_bytes || r.start_bytes >= range.end_bytes {
                return true;
            }
            let mut keep = |start_bytes, end_bytes| {
                if start_bytes < end_bytes {
                    rest.push(RangeLock { range: FileRange { start_bytes, end_bytes }, ..*h });
                }
            };
            keep(r.start_bytes, range.start_bytes.min(r.end_bytes));
            keep(range.end_bytes.max(r.start_bytes), r.end_bytes);
            false
        });
        let released = self.held.len() != before;
        rest.into_iter().for_each(|h| self.insert(h));
        released
    }

    /// Whether an owner has any lock.
    pub fn holds(&self, owner: u64) -> bool {
        self.held.iter().any(|h| h.owner == owner)
    }

    fn insert(&mut self, held: RangeLock) {
        let at = self.held.partition_point(|h| h.range.start_bytes <= held.range.start_bytes);
        self.held.insert(at, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Read, Write};

    fn r(start_bytes: u64, end_bytes: u64) -> FileRange {
        FileRange { start_bytes, end_bytes }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut l = Ranges::default();
        l.take(1, Read, r(0, 10));
        assert_eq!(l.conflict(2, Read, r(0, 10)), None);
        assert_eq!(l.conflict(2, Write, r(9, 12)).map(|h| h.owner), Some(1));
        assert_eq!(l.conflict(2, Write, r(10, 12)), None);
        assert_eq!(l.conflict(1, Write, r(0, 10)), None);
    }

    /// An owner can change the kind of a part of its lock, or release a part. The rest of the lock
    /// stays.
    #[test]
    fn part_of_lock_can_end() {
        let mut l = Ranges::default();
        l.take(1, Write, r(0, 100));
        l.take(1, Read, r(40, 60));
        assert_eq!(l.conflict(2, Read, r(45, 50)), None);
        assert!(l.conflict(2, Read, r(39, 40)).is_some() && l.conflict(2, Read, r(60, 61)).is_some());
        assert!(l.release(1, r(0, 50)));
        assert_eq!(l.conflict(2, Write, r(0, 50)), None);
        assert!(l.conflict(2, Write, r(50, 51)).is_some());
        assert!(l.release(1, r(0, u64::MAX)) && !l.holds(1) && !l.release(1, r(0, u64::MAX)));
    }

    /// Adjacent locks of one owner and one kind become one lock.
    #[test]
    fn adjacent_locks_merge() {
        let mut l = Ranges::default();
        (0..1000).for_each(|i| l.take(1, Write, r(i, i + 1)));
        assert_eq!(l.held, [RangeLock { owner: 1, kind: Write, range: r(0, 1000) }]);
    }

    /// Compares the locks with a table of bytes, over many short histories.
    #[test]
    fn locks_match_byte_table() {
        let mut seed = 1u64;
        let mut next = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let (mut l, mut bytes) = (Ranges::default(), [[None::<LockKind>; 16]; 3]);
            for _ in 0..40 {
                let (owner, a, b) = (next(3), next(16), next(16));
                let range = r(a.min(b), a.max(b) + 1);
                let kind = if next(2) == 0 { Read } else { Write };
                let inside = range.start_bytes as usize..range.end_bytes as usize;
                let clash = (0..3)
                    .filter(|o| *o != owner as usize)
                    .any(|o| bytes[o][inside.clone()].iter().flatten().any(|k| *k == Write || kind == Write));
                assert_eq!(l.conflict(owner, kind, range).is_some(), clash);
                let set = if next(3) == 0 {
                    l.release(owner, range);
                    None
                } else if !clash {
                    l.take(owner, kind, range);
                    Some(kind)
                } else {
                    continue;
                };
                bytes[owner as usize][inside].fill(set);
            }
        }
    }
}
