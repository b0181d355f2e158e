//! A large file that is read once, in a cache of files in use.

use super::*;
use crate::policy::Policy;
use crate::policy::model;

const HOT: u64 = 100;
const HOT_LEN: u64 = 25_000;

fn limits(policy: Policy) -> DataCacheOptions {
    DataCacheOptions { soft_bytes: 8 * MIB / 10 * 9, hard_bytes: 8 * MIB, policy, ..options() }
}

impl Lab {
    /// Reads these files; returns the bytes found in the cache and in the model. The model has a
    /// number for each file.
    async fn read_all(&self, files: &[(u32, Fh, u64)], played: &mut model::Model) -> (u64, u64) {
        let before = (self.disk.stats().hit_bytes, played.score().hit_bytes);
        for (number, fh, len) in files {
            assert_eq!(self.cat(fh, 128 << 10).await.len() as u64, *len);
            self.settle().await;
            for at in (0..*len).step_by(128 << 10) {
                played.read(*number, *len, at, 128 << 10);
            }
        }
        // The cleaner has finished.
        tokio::time::sleep(Duration::from_secs(2)).await;
        (self.disk.stats().hit_bytes - before.0, played.score().hit_bytes - before.1)
    }
}

/// Used files stay under every policy, the large file keeps a part, each byte is requested once,
/// and the simulation agrees.
#[tokio::test(start_paused = true)]
async fn disk_scan_keeps_hot_files() {
    for (policy, len) in Policy::ALL.into_iter().flat_map(|p| [(p, 12 * MIB), (p, 5 * MIB)]) {
        let l = Lab::new(limits(policy)).await;
        let mut played = model::Model::new(policy, 8 * MIB);
        let mut hot = Vec::new();
        for i in 0..HOT {
            hot.push((i as u32, l.file(&format!("hot{i}"), &pattern(i, HOT_LEN)).await, HOT_LEN));
        }
        for _ in 0..3 {
            l.read_all(&hot, &mut played).await;
        }
        let large = [(5000, l.file("large", &pattern(9, len)).await, len)];
        let before = l.disk.stats();
        assert_eq!(l.read_all(&large, &mut played).await.1, 0);
        let s = l.disk.stats();
        assert_eq!(s.fetched_bytes - before.fetched_bytes, len, "{policy:?}: nothing is asked for twice");
        assert_eq!(s.refused_full, 0);
        let found = l.read_all(&hot, &mut played).await;
        assert!(found.0 >= 90 * HOT_LEN, "{policy:?} {len}: {} bytes of {HOT} hot files", found.0);
        assert_eq!(found.0, found.1, "{policy:?} {len}: the simulation");
        let entry = l.disk.shelf().unwrap().look(format::Key::of(&large[0].1)).unwrap();
        assert!(entry.1 >= 2 * MIB, "{policy:?} {len}: {} bytes of the large file", entry.1);
        assert!(s.entry_bytes <= 8 * MIB);
    }
}

/// A pinned file is cached at any length. The rest of the space is for the other files.
#[tokio::test(start_paused = true)]
async fn pinned_large_file_stays_complete() {
    let l = Lab::new(limits(Policy::S3Fifo)).await;
    let mut played = model::Model::new(Policy::S3Fifo, 8 * MIB);
    let mut others = Vec::new();
    for i in 0..200 {
        others.push((i as u32, l.file(&format!("f{i}"), &pattern(i, HOT_LEN)).await, HOT_LEN));
    }
    l.read_all(&others, &mut played).await;
    let large = l.file("large", &pattern(9, 5 * MIB)).await;
    l.disk.shelf().unwrap().pin(&[format::Key::of(&large)], true);
    let has_all = || l.disk.shelf().unwrap().has_all(format::Key::of(&large), 5 * MIB);
    // At the hard limit nothing is added until the cleaner has run.
    for _ in 0..20 {
        l.cat(&large, 128 << 10).await;
        l.settle().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        if has_all() {
            break;
        }
    }
    assert!(has_all());
    assert!(l.disk.stats().entry_bytes <= 8 * MIB);
}

/// Refused blocks wait for their reader in memory, and then free it.
#[tokio::test(start_paused = true)]
async fn refused_blocks_free_their_memory() {
    let l = Lab::new(DataCacheOptions { queue_bytes: 4 * MIB, ..limits(Policy::Lru) }).await;
    let (a, b) = (l.file("a", &pattern(1, 10 * MIB)).await, l.file("b", &pattern(2, 10 * MIB)).await);
    let open = l.open(&a).await;
    for at in (0..9 * MIB).step_by(MIB as usize) {
        assert_eq!(l.read(&open, at, MIB as u32).await.len() as u64, MIB);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let s = l.disk.stats();
    let passing = l.disk.passing.units() as u64 * QUEUE_UNIT;
    assert!(
        s.refused_large > 0 && passing > 0 && passing <= 2 * MIB && s.queue_bytes == 0,
        "{passing} {s:?}"
    );
    l.disk.roomy().await;
    assert_eq!(l.cat(&b, MIB as u32).await, pattern(2, 10 * MIB));
    l.close(open).await;
    l.settle().await;
    assert_eq!((l.disk.stats().queue_bytes, l.disk.passing.units()), (0, 0));
}
