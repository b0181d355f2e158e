//! The hits of a disk cache of each size, with each policy. The example runs the cleaner's own code
//! over profiles of reads, without a disk.
//!
//! `cargo run --release -p hither-cache --example sweep` plays P4's three profiles with caches of 5
//! KB to 5 MB. It also plays a large file read once between small ones, and a Zipf profile over
//! 100,000 files of 10 GB, without and with scans of all files in between. It prints a line of JSON
//! for each policy and size.
//! `... --example sweep FILE` plays the reads in FILE with the sizes and policies that follow:
//! `FILE lru 16777216 gdsf 16777216`. A line of FILE is `name bytes`, and stands for one read of
//! the whole file. `lab/work/sweep.py check` compares that with a mount.
//!
//! `hither_cache::policy::model` applies the operations of the disk cache to numbers.
//!
//! Two further schedules know the future. `belady` keeps whole files, those that are read again
//! soonest. Such a schedule is possible, and it is the best one if all files have one size. `bound`
//! is a limit that no schedule exceeds (PFOO-L; Berger, Beckmann and Harchol-Balter, SIGMETRICS
//! 2018). Each interval between two reads of a file costs its bytes × its length. The total to
//! spend is the cache's bytes × all reads. The cheapest intervals are hits until the total is
//! spent. The best schedule is between the two.

use hither_cache::policy::Policy;
use hither_cache::policy::model::{
    CALL_BYTES as CALL, ENTRY_BYTES as ENTRY, Model, P4_CALL_BYTES as P4_CALL, Score,
};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// A profile: sizes of files, and the sequence of files that are read.
struct Profile {
    name: String,
    sizes: Vec<u64>,
    reads: Vec<u32>,
}

impl Profile {
    fn play(&self, policy: Policy, bytes: u64) -> Score {
        let mut cache = Model::new(policy, bytes);
        for &file in &self.reads {
            let size = self.sizes[file as usize];
            cache.read(file, size, 0, size);
        }
        cache.score().clone()
    }

    /// For each read, the index of the next read of the same file.
    fn next_reads(&self) -> Vec<usize> {
        let mut next = vec![usize::MAX; self.reads.len()];
        let mut seen = HashMap::new();
        for (at, file) in self.reads.iter().enumerate().rev() {
            if let Some(later) = seen.insert(file, at) {
                next[at] = later;
            }
        }
        next
    }

    fn size(&self, at: usize) -> u64 {
        self.sizes[self.reads[at] as usize]
    }

    /// Keeps whole files, those that are read again soonest.
    fn belady(&self, next: &[usize], most: u64) -> Score {
        let (mut score, mut bytes) = (Score::default(), 0);
        // Kept files, by their next read.
        let mut kept: BTreeSet<usize> = BTreeSet::new();
        for (at, later) in next.iter().enumerate() {
            let size = self.size(at);
            if kept.remove(&at) {
                score.hits += 1;
                score.hit_bytes += size;
            } else {
                bytes += size + ENTRY;
                score.fetched_bytes += size;
                score.calls += size.div_ceil(CALL);
                score.calls_8k += size.div_ceil(P4_CALL);
            }
            match later {
                &usize::MAX => bytes -= size + ENTRY,
                later => drop(kept.insert(*later)),
            }
            while bytes > most
                && let Some(last) = kept.pop_last()
            {
                bytes -= self.size(last) + ENTRY;
                score.evictions += 1;
            }
        }
        score
    }

    /// A limit for every schedule: most hits, most bytes of hits, and fewest calls. Each figure is
    /// bounded separately.
    fn bound(&self, next: &[usize], most: u64) -> Score {
        let stretches = || next.iter().enumerate().filter(|(_, later)| **later != usize::MAX);
        let room = |(at, later): (usize, &usize)| (self.size(at) + ENTRY) as u128 * (later - at) as u128;
        // Intervals with the best value for their room come first. The last one that fits in part
        // counts whole.
        let pack = |value: &dyn Fn(usize) -> u64| -> u64 {
            let mut all: Vec<_> = stretches().map(|(at, later)| (room((at, later)), value(at))).collect();
            all.sort_by(|a, b| (a.0 * u128::from(b.1)).cmp(&(b.0 * u128::from(a.1))));
            let mut left = u128::from(most) * self.reads.len() as u128;
            let mut sum = 0;
            for (room, value) in all {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(room);
                sum += value;
            }
            sum
        };
        let of_all =
            |calls: u64| -> u64 { (0..self.reads.len()).map(|at| self.size(at).div_ceil(calls)).sum() };
        Score {
            hits: pack(&|_| 1),
            hit_bytes: pack(&|at| self.size(at)),
            calls: of_all(CALL) - pack(&|at| self.size(at).div_ceil(CALL)),
            calls_8k: of_all(P4_CALL) - pack(&|at| self.size(at).div_ceil(P4_CALL)),
            ..Score::default()
        }
    }

    fn tell(&self, policy: &str, cache_bytes: u64, score: &Score) {
        let all: u64 = (0..self.reads.len()).map(|at| self.size(at)).sum();
        let reads = self.reads.len() as u64;
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let mut line = String::new();
        let _ = write!(
            line,
            r#"{{"profile":"{}","policy":"{policy}","cache_bytes":{cache_bytes},"reads":{reads},"hits":{},"hit_ratio":{:.4}"#,
            self.name,
            score.hits,
            ratio(score.hits, reads)
        );
        let _ = write!(
            line,
            r#","byte_hit_ratio":{:.4},"fetched_bytes":{},"calls":{},"calls_8k":{},"evictions":{}}}"#,
            ratio(score.hit_bytes, all),
            all - score.hit_bytes.min(all),
            score.calls,
            score.calls_8k,
            score.evictions
        );
        println!("{line}");
    }

    fn sweep(&self, caches: &[u64]) {
        let next = self.next_reads();
        for bytes in caches {
            for policy in Policy::ALL {
                self.tell(policy.name(), *bytes, &self.play(policy, *bytes));
            }
            self.tell("belady", *bytes, &self.belady(&next, *bytes));
            self.tell("bound", *bytes, &self.bound(&next, *bytes));
        }
    }
}

/// The profiles of P4. The first reads ten files of 16 KB, ten times. The second reads three files
/// of 1 MB, 440 KB and 188 KB, ten times. The third reads all of them four times, one after the
/// other.
fn profiles() -> [Profile; 3] {
    let (small, large) = (vec![16 << 10; 10], vec![1 << 20, 440 << 10, 188 << 10]);
    let both = [small.clone(), large.clone()].concat();
    [("several small", small, 10), ("few large", large, 10), ("interspersed", both, 4)].map(
        |(name, sizes, times)| {
            let count = sizes.len() as u32;
            Profile { name: name.into(), reads: (0..times).flat_map(|_| 0..count).collect(), sizes }
        },
    )
}

/// A hundred files of 200 KB, read three times, then one file of 200 MiB, then the hundred again.
fn hot_and_large() -> Profile {
    let hot = || 0..100;
    let reads = hot().chain(hot()).chain(hot()).chain([100]).chain(hot()).collect();
    Profile { name: "hot+large".into(), sizes: [vec![200_000; 100], vec![200 << 20]].concat(), reads }
}

/// A reproducible generator of random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Files with linear sizes from 2 bytes to 200 KB, read in random order. The file of rank n is read
/// in proportion to n^-0.9, and its rank does not depend on its size. `scans` is the number of
/// scans of all files in between.
fn zipf(files: u32, reads: usize, scans: usize) -> Profile {
    let mut random = Random(7);
    let mut by_rank: Vec<u32> = (0..files).collect();
    for i in (1..by_rank.len()).rev() {
        by_rank.swap(i, (random.next() % (i as u64 + 1)) as usize);
    }
    let weights = (1..=files).map(|rank| f64::from(rank).powf(-0.9));
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, w| {
            *sum += w;
            Some(*sum)
        })
        .collect();
    let whole = sums.last().copied().unwrap_or(1.0);
    let mut all = Vec::with_capacity(reads);
    for i in 0..reads {
        if scans > 0 && i > 0 && i % (reads / (scans + 1)) == 0 {
            all.extend(0..files);
        }
        let at = random.unit() * whole;
        all.push(by_rank[sums.partition_point(|sum| *sum < at).min(files as usize - 1)]);
    }
    let name = if scans > 0 { "zipf+scans" } else { "zipf" };
    Profile { name: name.into(), sizes: (1..=u64::from(files)).map(|i| i * 2).collect(), reads: all }
}

fn from_file(path: &str) -> std::io::Result<Profile> {
    let (mut numbers, mut sizes, mut reads) = (HashMap::new(), Vec::new(), Vec::new());
    for line in std::fs::read_to_string(path)?.lines() {
        let Some((name, size)) = line.rsplit_once(' ') else { continue };
        let size = size.parse().map_err(std::io::Error::other)?;
        let number = *numbers.entry(name.to_string()).or_insert_with(|| {
            sizes.push(size);
            sizes.len() as u32 - 1
        });
        reads.push(number);
    }
    Ok(Profile { name: path.into(), sizes, reads })
}

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((file, cells)) = words.split_first() {
        let profile = from_file(file)?;
        for cell in cells.chunks(2) {
            let policy = Policy::of(&cell[0]).ok_or_else(|| std::io::Error::other("lru, s3-fifo or gdsf"))?;
            let bytes =
                cell.get(1).and_then(|n| n.parse().ok()).ok_or_else(|| std::io::Error::other("bytes"))?;
            profile.tell(policy.name(), bytes, &profile.play(policy, bytes));
        }
        return Ok(());
    }
    for profile in profiles() {
        profile.sweep(&(0..11).map(|i| 5_000 << i).collect::<Vec<_>>());
    }
    hot_and_large().sweep(&[16, 32, 64, 96, 128].map(|mb| 1_000_000 * mb));
    let caches: Vec<u64> =
        [1, 2, 5, 10, 20, 30, 50, 70, 100, 115].map(|percent| 100_000_000 * percent).into();
    zipf(100_000, 1_000_000, 0).sweep(&caches);
    zipf(100_000, 1_000_000, 4).sweep(&caches);
    Ok(())
}
