//! The byte ranges of a lock owner, merged and split as in POSIX.
//!
//! A client keeps them to reclaim locks after a server restart, and to decide locks itself.

use crate::{FileRange, LockConflict, LockKind};

/// Ranges with their kind: sorted, disjoint, neighbours of one kind merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockRanges(Vec<(FileRange, LockKind)>);

impl LockRanges {
    /// Takes `range` as `kind`. Replaces the previous locks in it.
    pub fn lock(&mut self, range: FileRange, kind: LockKind) {
        self.unlock(range);
        if range.start_bytes >= range.end_bytes {
            return;
        }
        let at = self.0.partition_point(|(r, _)| r.start_bytes < range.start_bytes);
        self.0.insert(at, (range, kind));
        self.0.dedup_by(|next, kept| {
            let joins = next.1 == kept.1 && next.0.start_bytes == kept.0.end_bytes;
            if joins {
                kept.0.end_bytes = next.0.end_bytes;
            }
            joins
        });
    }

    /// Releases the locks in `range`.
    pub fn unlock(&mut self, range: FileRange) {
        if range.start_bytes >= range.end_bytes {
            return;
        }
        let mut out = Vec::with_capacity(self.0.len() + 1);
        for &(held, kind) in &self.0 {
            let left = FileRange { end_bytes: held.end_bytes.min(range.start_bytes), ..held };
            let right = FileRange { start_bytes: held.start_bytes.max(range.end_bytes), ..held };
            out.extend([left, right].into_iter().filter(|r| r.start_bytes < r.end_bytes).map(|r| (r, kind)));
        }
        self.0 = out;
    }

    /// Whether `range` has no locks.
    pub fn is_free(&self, range: FileRange) -> bool {
        !self.0.iter().any(|(r, _)| r.start_bytes < range.end_bytes && range.start_bytes < r.end_bytes)
    }

    /// The lock that prevents another owner from taking `range` as `kind`.
    pub fn conflict(&self, kind: LockKind, range: FileRange) -> Option<LockConflict> {
        let shared = |held: LockKind| kind == LockKind::Read && held == LockKind::Read;
        let overlaps = |r: &FileRange| r.start_bytes < range.end_bytes && range.start_bytes < r.end_bytes;
        let found = self.0.iter().find(|(r, held)| overlaps(r) && !shared(*held));
        // The process id of the holder is unknown.
        found.map(|&(range, kind)| LockConflict { kind, range, pid: 0 })
    }

    /// Whether there are no locks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The locks in order.
    pub fn iter(&self) -> impl Iterator<Item = (FileRange, LockKind)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockKind::{Read, Write};

    fn range(start_bytes: u64, end_bytes: u64) -> FileRange {
        FileRange { start_bytes, end_bytes }
    }

    fn held(r: &LockRanges) -> Vec<(u64, u64, LockKind)> {
        r.iter().map(|(r, k)| (r.start_bytes, r.end_bytes, k)).collect()
    }

    /// A lock inside a lock of another kind splits it. An unlock keeps the rest.
    #[test]
    fn split_and_merge() {
        let mut r = LockRanges::default();
        r.lock(range(0, 100), Read);
        r.lock(range(40, 60), Write);
        assert_eq!(held(&r), [(0, 40, Read), (40, 60, Write), (60, 100, Read)]);
        r.lock(range(40, 60), Read);
        assert_eq!(held(&r), [(0, 100, Read)]);
        r.unlock(range(10, 20));
        assert_eq!(held(&r), [(0, 10, Read), (20, 100, Read)]);
        assert!(r.is_free(range(10, 20)) && !r.is_free(range(9, 11)));
        r.lock(range(20, u64::MAX), Write);
        assert_eq!(held(&r), [(0, 10, Read), (20, u64::MAX, Write)]);
        r.unlock(range(0, u64::MAX));
        assert!(r.is_empty());
    }

    /// Many random operations give the same result as a byte map.
    #[test]
    fn agrees_with_a_byte_map() {
        let (mut r, mut map, mut x) = (LockRanges::default(), [None; 64], 12345u64);
        for _ in 0..5000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (a, b, op) = ((x >> 33) % 64, (x >> 43) % 64, (x >> 60) % 3);
            let (a, b) = (a.min(b), a.max(b) + 1);
            let kind = [None, Some(Read), Some(Write)][op as usize];
            map[a as usize..b as usize].fill(kind);
            match kind {
                None => r.unlock(range(a, b)),
                Some(k) => r.lock(range(a, b), k),
            }
            for (i, want) in map.iter().enumerate() {
                let at = i as u64;
                let got = r.iter().find(|(r, _)| r.start_bytes <= at && at < r.end_bytes).map(|(_, k)| k);
                assert_eq!(got, *want);
            }
            assert!(r.0.windows(2).all(|w| w[0].0.end_bytes <= w[1].0.start_bytes
                && (w[0].1 != w[1].1 || w[0].0.end_bytes < w[1].0.start_bytes)));
        }
    }
}
