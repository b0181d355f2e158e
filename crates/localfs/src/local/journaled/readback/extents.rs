//! Ranges of a file, with the newest record that has the bytes of each.

use bytes::Bytes;
use std::collections::BTreeMap;

/// The place of the bytes of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// On the device of the journal, at this offset.
    Journal(u64),
    /// In memory.
    Memory(Bytes),
}

impl Source {
    /// The source without its first `count` bytes.
    pub fn skip(&self, count: u64) -> Self {
        match self {
            Self::Journal(at) => Self::Journal(at + count),
            Self::Memory(bytes) => Self::Memory(bytes.slice((count as usize).min(bytes.len())..)),
        }
    }
}

#[derive(Debug, Clone)]
struct Extent {
    len: u64,
    seq: u64,
    source: Source,
}

/// Ranges that do not overlap, by offset.
#[derive(Debug, Default)]
pub(super) struct Extents(BTreeMap<u64, Extent>);

impl Extents {
    /// Adds the bytes of a record that is newer than all others.
    pub fn insert(&mut self, start: u64, len: u64, seq: u64, source: Source) {
        let end = start.saturating_add(len);
        if end == start {
            return;
        }
        self.split(start);
        self.split(end);
        let covered: Vec<u64> = self.0.range(start..end).map(|(&at, _)| at).collect();
        for at in covered {
            self.0.remove(&at);
        }
        self.0.insert(start, Extent { len: end - start, seq, source });
    }

    /// Removes the records up to `upto`.
    pub fn void(&mut self, upto: u64) {
        self.0.retain(|_, extent| extent.seq > upto);
    }

    /// The parts of a range that are in records, in order: offset, length, record and source of
    /// each.
    pub fn over(&self, start: u64, end: u64) -> Vec<(u64, u64, u64, Source)> {
        if start >= end {
            return Vec::new();
        }
        let before = self.0.range(..start).next_back();
        let after = self.0.range(start..end);
        let part = |(&at, extent): (&u64, &Extent)| {
            let (from, to) = (at.max(start), (at + extent.len).min(end));
            (from < to).then(|| (from, to - from, extent.seq, extent.source.skip(from - at)))
        };
        before.into_iter().chain(after).filter_map(part).collect()
    }

    /// Splits the range that contains `at`.
    fn split(&mut self, at: u64) {
        let Some((&start, extent)) = self.0.range_mut(..at).next_back() else { return };
        if start + extent.len <= at {
            return;
        }
        let rest =
            Extent { len: start + extent.len - at, seq: extent.seq, source: extent.source.skip(at - start) };
        extent.len = at - start;
        self.0.insert(at, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte has the newest record that wrote it, and its own place in that record.
    #[test]
    fn newest_record_has_each_byte() {
        const SIZE: u64 = 200;
        for seed in 0..200_u64 {
            let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut roll = |n: u64| {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                dice % n
            };
            let (mut extents, mut naive) = (Extents::default(), vec![None; SIZE as usize]);
            for seq in 1..40_u64 {
                if roll(8) == 0 {
                    let upto = roll(seq);
                    extents.void(upto);
                    naive
                        .iter_mut()
                        .filter(|is| is.is_some_and(|(of, _)| of <= upto))
                        .for_each(|is| *is = None);
                }
                let start = roll(SIZE);
                let len = roll(SIZE - start + 1);
                extents.insert(start, len, seq, Source::Journal(seq * 1000));
                for at in start..start + len {
                    naive[at as usize] = Some((seq, seq * 1000 + at - start));
                }
                let (from, to) = (roll(SIZE), SIZE - roll(SIZE / 2));
                let mut found = vec![None; SIZE as usize];
                for (at, len, seq, source) in extents.over(from, to) {
                    let Source::Journal(place) = source else { panic!("there is no other") };
                    (0..len).for_each(|i| found[(at + i) as usize] = Some((seq, place + i)));
                }
                for at in 0..SIZE {
                    let is_asked = (from..to).contains(&at);
                    assert_eq!(found[at as usize], naive[at as usize].filter(|_| is_asked), "{seed} {at}");
                }
            }
        }
    }
}
