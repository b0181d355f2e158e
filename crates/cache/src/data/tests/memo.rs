//! Pieces for the layers above survive all failures, as a complete set or not at all.

use super::sim::Sim;
use super::*;
use crate::data::memo;

fn set(n: u8) -> Vec<Vec<u8>> {
    (0..4).map(|i| vec![n.wrapping_mul(7).wrapping_add(i); 3000 * usize::from(i) + 5]).collect()
}

/// A kill at any point of a write leaves the previous set or the new one. A power cut may also
/// leave an older set, or none.
/// Promise: 11b
#[test]
fn interrupted_memo_write_keeps_whole_set() {
    for seed in 0..200 {
        let mut io = Sim::new(seed);
        let mut last: Vec<Vec<u8>> = Vec::new();
        for round in 1..6u8 {
            io.cut_after((seed * 7 + u64::from(round) * 3) % 12);
            let outcome = memo::write(&*io, &set(round), seed ^ u64::from(round) << 32);
            let cut = io.is_off();
            io = if seed % 2 == 0 { io.after_power_cut() } else { io.after_kill() };
            let (found, damaged) = memo::read(&*io).unwrap();
            assert_eq!(damaged, 0);
            if outcome.is_ok() && !cut && seed % 2 == 1 {
                assert_eq!(found, set(round), "seed {seed}, round {round}");
            }
            // A power cut may lose a name that was not yet durable. The found set is then an older
            // one, or none.
            let known = found.is_empty() || (1..=round).any(|n| found == set(n));
            assert!(known, "seed {seed}, round {round}");
            if seed % 2 == 1 && !last.is_empty() {
                assert!(!found.is_empty(), "seed {seed}, round {round}: there was a set before");
            }
            last = found;
        }
    }
}

/// Memo pieces are found after a restart and are no entries of the cache. A read-only cache writes
/// none.
#[tokio::test(start_paused = true)]
async fn memo_survives_restart() {
    let mut l = Lab::new(options()).await;
    assert!(l.disk.memo().await.is_empty());
    l.disk.set_memo(set(1)).await;
    l.restart(options()).await;
    assert_eq!(l.disk.memo().await, set(1));
    // The pieces are no entries of the cache, and the cleaner does not evict them.
    assert_eq!(l.disk.stats().entries, 0);
    l.restart(DataCacheOptions { read_only: true, ..options() }).await;
    assert_eq!(l.disk.memo().await, set(1));
    l.disk.set_memo(set(2)).await;
    l.restart(options()).await;
    assert_eq!(l.disk.memo().await, set(1));
}
