//! A model of the disk cache: the reads that it answers, without a disk.
//!
//! The model follows the cache in numbers. Files have blocks of 64 KiB, and 8 KiB more for an
//! entry. The soft limit is nine tenths of the hard one. No block is stored beyond the hard limit.
//! Missing blocks are requested in calls of at most 1 MiB. The order of eviction ([`Order`]) and
//! the admission of blocks are the cache's own code. Reads are sequential, and the bytes of a read
//! are on the disk before the next one. The cache counts a use for each open. A list of reads has
//! no opens. So a read that goes back in its file counts as a use, and a read that continues does
//! not.

use super::{Item, ItemId, Order, Policy, max_file_bytes};
use std::collections::HashMap;

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// Bytes of an entry besides its blocks.
pub const ENTRY_BYTES: u64 = 8 << 10;
/// Most bytes per call.
pub const CALL_BYTES: u64 = 1 << 20;
/// Most bytes per call of P4's client.
pub const P4_CALL_BYTES: u64 = 8 << 10;

/// Counters of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Score {
    /// Reads with all bytes in the cache.
    pub hits: u64,
    /// Bytes read from the cache.
    pub hit_bytes: u64,
    /// Bytes requested.
    pub fetched_bytes: u64,
    /// Calls of at most 1 MiB for missing bytes.
    pub calls: u64,
    /// Calls of at most 8 KiB for missing bytes.
    pub calls_8k: u64,
    /// Evicted files.
    pub evictions: u64,
}

struct Numbered(u32);

impl Item for Numbered {
    fn mark(&self) -> u32 {
        self.0
    }
}

/// The cached part of a file.
struct CachedPart {
    place: ItemId,
    here: Vec<bool>,
    /// End of the last read.
    reached: u64,
}

/// A model of a disk cache.
pub struct Model {
    order: Order<Numbered>,
    kept: HashMap<u32, CachedPart>,
    bytes: u64,
    soft: u64,
    hard: u64,
    score: Score,
}

/// Bytes of a block in a file of this length.
fn block_bytes(size: u64, block: u64) -> u64 {
    BLOCK_BYTES.min(size.saturating_sub(block * BLOCK_BYTES))
}

impl Model {
    /// An empty cache of at most `bytes` bytes.
    pub fn new(policy: Policy, bytes: u64) -> Self {
        let (soft, score) = (bytes / 10 * 9, Score::default());
        Self { order: Order::new(policy), kept: HashMap::new(), bytes: 0, soft, hard: bytes, score }
    }

    /// The counters so far.
    pub fn score(&self) -> &Score {
        &self.score
    }

    /// Reads `len` bytes at `from` of a file of `size` bytes. Returns whether all of them were
    /// cached.
    pub fn read(&mut self, file: u32, size: u64, from: u64, len: u64) -> bool {
        let to = from.saturating_add(len).min(size);
        let blocks = if from < to { from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES) } else { 0..0 };
        let asked: u64 = blocks.clone().map(|block| block_bytes(size, block)).sum();
        let mut kept = self.kept.get_mut(&file);
        let is_here =
            |block: &u64| kept.as_ref().is_some_and(|kept| kept.here.get(*block as usize) == Some(&true));
        let missing: Vec<u64> = blocks.filter(|block| !is_here(block)).collect();
        if let Some(kept) = &mut kept
            && from < std::mem::replace(&mut kept.reached, to)
        {
            self.order.used(kept.place);
        }
        let fetched: u64 = missing.iter().map(|block| block_bytes(size, *block)).sum();
        self.score.hits += u64::from(missing.is_empty());
        self.score.hit_bytes += asked - fetched;
        self.score.fetched_bytes += fetched;
        self.score.calls_8k += fetched.div_ceil(P4_CALL_BYTES);
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            let bytes: u64 = run.iter().map(|block| block_bytes(size, *block)).sum();
            self.score.calls += bytes.div_ceil(CALL_BYTES);
        }
        self.put(file, size, to, &missing);
        missing.is_empty()
    }

    /// Caches written data. A partly written block is not added.
    pub fn wrote(&mut self, file: u32, size: u64, from: u64, len: u64) {
        let to = from.saturating_add(len);
        let whole = |block: &u64| {
            let begins = block * BLOCK_BYTES;
            from <= begins && begins + block_bytes(size, *block) <= to
        };
        let blocks: Vec<u64> = (from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES)).filter(whole).collect();
        self.put(file, size, to, &blocks);
    }

    /// Drops a file that was removed or changed.
    pub fn forget(&mut self, file: u32) {
        if let Some(kept) = self.kept.remove(&file) {
            self.bytes -= self.order.bytes(kept.place);
            self.order.remove(kept.place);
        }
    }

    fn put(&mut self, file: u32, size: u64, reached: u64, blocks: &[u64]) {
        if size > max_file_bytes(self.hard) {
            return;
        }
        for &block in blocks {
            if self.bytes >= self.hard {
                break;
            }
            let (order, bytes) = (&mut self.order, &mut self.bytes);
            let kept = self.kept.entry(file).or_insert_with(|| {
                *bytes += ENTRY_BYTES;
                CachedPart { place: order.insert(Numbered(file), ENTRY_BYTES), here: Vec::new(), reached }
            });
            let (at, len) = (block as usize, block_bytes(size, block));
            let is_roomy = *bytes + len <= self.soft;
            let admitted =
                is_roomy || order.may_displace(kept.place, len, size.saturating_add(ENTRY_BYTES), self.soft);
            if kept.here.get(at) != Some(&true) && *bytes + len <= self.hard && admitted {
                kept.here.resize(kept.here.len().max(at + 1), false);
                kept.here[at] = true;
                order.resize(kept.place, order.bytes(kept.place) + len);
                *bytes += len;
            }
        }
        let Some(goal) = self.order.policy().goal(self.bytes, self.soft, 0) else { return };
        while self.bytes > goal
            && let Some((_, Numbered(file), bytes)) = self.order.evict(|_| false)
        {
            self.kept.remove(&file);
            self.bytes -= bytes;
            self.score.evictions += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The model keeps the blocks of a read until other files need the room.
    #[test]
    fn model_keeps_blocks_until_eviction() {
        let mut cache = Model::new(Policy::Lru, 4 * MIB);
        assert!(!cache.read(1, MIB, 0, 100));
        assert!(cache.read(1, MIB, 100, 1000), "the same block");
        assert!(!cache.read(1, MIB, BLOCK_BYTES - 1, 2), "one of two");
        assert_eq!((cache.score().calls, cache.score().fetched_bytes), (2, 2 * BLOCK_BYTES));
        for file in 2..7 {
            assert!(!cache.read(file, MIB, 0, MIB));
        }
        assert!(!cache.read(1, MIB, 0, 100), "it was not used for longest");
        assert!(cache.score().evictions >= 2);
    }

    /// The model keeps completely written blocks, including the shorter last block of a file.
    #[test]
    fn model_keeps_written_blocks() {
        let mut cache = Model::new(Policy::Gdsf, 4 * MIB);
        cache.wrote(1, 2 * BLOCK_BYTES + 10, 0, 2 * BLOCK_BYTES - 1);
        assert!(cache.read(1, 2 * BLOCK_BYTES + 10, 5, 10));
        assert!(!cache.read(1, 2 * BLOCK_BYTES + 10, BLOCK_BYTES, 10), "its last byte is not known");
        cache.wrote(1, 2 * BLOCK_BYTES + 10, 2 * BLOCK_BYTES, 10);
        assert!(cache.read(1, 2 * BLOCK_BYTES + 10, 2 * BLOCK_BYTES, 10), "the last one is shorter");
        cache.forget(1);
        assert!(!cache.read(1, 2 * BLOCK_BYTES + 10, 5, 10));
    }

    /// A read of an empty range, or beyond the end, causes no call.
    #[test]
    fn empty_read_sends_no_call() {
        let mut cache = Model::new(Policy::S3Fifo, MIB);
        assert!(cache.read(1, 0, 0, 10) && cache.read(1, 10, 10, 10) && cache.read(1, 10, u64::MAX, 10));
        assert_eq!(cache.score().calls, 0);
    }

    const KB: u64 = 1000;

    /// Number of completely cached files in `files`, and cached bytes of the file `large`.
    fn found(cache: &Model, files: std::ops::Range<u32>, size: u64, large: u32) -> (usize, u64) {
        let whole = |file: &u32| {
            let blocks = size.div_ceil(BLOCK_BYTES) as usize;
            cache.kept.get(file).is_some_and(|kept| kept.here.iter().filter(|here| **here).count() == blocks)
        };
        let part = cache.kept.get(&large).map_or(0, |kept| cache.order.bytes(kept.place));
        (files.filter(whole).count(), part)
    }

    fn scan(cache: &mut Model, file: u32, size: u64) {
        for at in (0..size).step_by(128 << 10) {
            cache.read(file, size, at, 128 << 10);
        }
    }

    /// One sequential read of a file larger than the cache keeps the used files, under every
    /// policy. This holds with free space and in a cache full of files that were read once. A part
    /// of the large file is also cached.
    #[test]
    fn model_scan_keeps_hot_files() {
        for (policy, filled, len) in Policy::ALL.into_iter().flat_map(|policy| {
            [(policy, false, 200 * MIB), (policy, true, 200 * MIB), (policy, true, 40 * MIB)]
        }) {
            let mut cache = Model::new(policy, 64 * MIB);
            for _ in 0..3 {
                (0..100).for_each(|file| _ = cache.read(file, 200 * KB, 0, 200 * KB));
            }
            if filled {
                (1000..1150).for_each(|file| _ = cache.read(file, 200 * KB, 0, 200 * KB));
                (0..100).for_each(|file| _ = cache.read(file, 200 * KB, 0, 200 * KB));
            }
            scan(&mut cache, 5000, len);
            let (hot, part) = found(&cache, 0..100, 200 * KB, 5000);
            assert!(hot >= 90 && part >= 2 * MIB, "{policy:?} {filled} {len}: {hot} hot files, {part} bytes");
            assert!(cache.bytes <= cache.hard);
            // Small files read afterwards take the space of the large file, or of files that were
            // read once.
            (2000..2100).for_each(|file| _ = cache.read(file, 200 * KB, 0, 200 * KB));
            let (hot, _) = found(&cache, 0..100, 200 * KB, 5000);
            assert!(hot >= 90 || policy == Policy::Lru, "{policy:?} {filled} {len}: {hot} hot files at last");
        }
    }

    /// A file that fits and is read again is cached completely, although others are evicted for it.
    /// A file that cannot fit is never cached completely. A file many times as large as the cache
    /// is not cached.
    #[test]
    fn reread_file_is_cached_completely() {
        for policy in Policy::ALL {
            let mut cache = Model::new(policy, 64 * MIB);
            (0..400).for_each(|file| _ = cache.read(file, 200 * KB, 0, 200 * KB));
            for (file, len, whole) in [(5000, 30 * MIB, true), (6000, 60 * MIB, false)] {
                (0..4).for_each(|_| scan(&mut cache, file, len));
                let (_, part) = found(&cache, 0..0, 1, file);
                assert_eq!(part >= len, whole, "{policy:?}: {part} of {len}");
                assert!(part >= 5 * MIB, "{policy:?}: {part} of {len}");
            }
            scan(&mut cache, 7000, 64 * 16 * MIB + 1);
            assert!(!cache.kept.contains_key(&7000));
        }
    }
}
