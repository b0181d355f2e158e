//! Random histories on virtual time. The programs' view is linearizable for each file under all
//! faults of the network, the clocks and the machines. Within the bounds no write is lost. Beyond
//! the bounds every lost write is reported.

use hither_lease::sim::world::{Faults, Report, Setup, run};

/// Plays worlds of `setup` with seeds from `first` on. Returns the sum of their reports.
fn play(first: u64, seeds: u64, setup: impl Fn(u64) -> Setup) -> Report {
    let mut sum = Report::default();
    for seed in first..first + seeds {
        let r = run(&setup(seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        sum.steps += r.steps;
        sum.operations += r.operations;
        sum.cached += r.cached;
        sum.evictions += r.evictions;
        sum.faults += r.faults;
        sum.died += r.died;
        sum.lost += r.lost;
        sum.slowest_ms = sum.slowest_ms.max(r.slowest_ms);
    }
    println!("{sum:?}");
    // A simulation without cached operations and evictions proves nothing.
    assert!(sum.cached > sum.operations / 20 && sum.evictions > 100, "{sum:?}");
    sum
}

fn delegations(setup: Setup) -> Setup {
    Setup { heard_ms: 2_000, ..setup }
}

/// Without faults no operation takes longer than 500 ms, with leases and with delegations.
#[test]
fn without_faults_latency_is_bounded() {
    let sum = play(1, 3, |seed| Setup { latency_max_ms: Some(500), ..Setup::new(seed, Faults::NONE) });
    assert_eq!((sum.lost, sum.died), (0, 0));
    let sum =
        play(1, 3, |seed| delegations(Setup { latency_max_ms: Some(500), ..Setup::new(seed, Faults::NONE) }));
    assert_eq!((sum.lost, sum.died), (0, 0));
}

/// With faults within the bounds no acknowledged write is lost.
#[test]
fn bounded_faults_lose_no_write() {
    let sum = play(10, 5, |seed| Setup::new(seed, Faults::BOUNDED));
    assert_eq!(sum.lost, 0);
    assert!(sum.faults > 100 && sum.died > 0);
}

/// With faults within the bounds no write under a delegation is lost.
#[test]
fn delegation_survives_bounded_faults() {
    let sum = play(20, 5, |seed| delegations(Setup::new(seed, Faults::BOUNDED)));
    assert_eq!(sum.lost, 0);
    assert!(sum.faults > 100 && sum.died > 0);
}

/// With longer partitions lost writes are reported, and the histories stay linearizable.
#[test]
fn unbounded_faults_report_lost_writes() {
    let sum = play(30, 5, |seed| Setup::new(seed, Faults::UNBOUNDED));
    assert!(sum.lost > 0, "partitions were long enough");
    let sum = play(40, 5, |seed| delegations(Setup::new(seed, Faults::UNBOUNDED)));
    assert!(sum.lost > 0, "partitions were long enough");
}

/// With few records clients wait, and no write is lost.
#[test]
fn full_table_loses_no_write() {
    let small = |seed| {
        let mut s = Setup { files: 12, ..Setup::new(seed, Faults::BOUNDED) };
        (s.table.leases_max, s.table.files_max) = (5, 16);
        s
    };
    let sum = play(50, 3, small);
    assert_eq!(sum.lost, 0);
}

/// `SEED=1 SEEDS=20 STEPS=5000000 cargo test --release -p hither-lease --test simulation --
/// --ignored --nocapture`
#[test]
#[ignore = "runs for hours with large STEPS"]
fn long_random_histories() {
    let number =
        |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (first, seeds, steps) = (number("SEED", 1), number("SEEDS", 4), number("STEPS", 2_000_000));
    for seed in first..first + seeds {
        for faults in [Faults::BOUNDED, Faults::UNBOUNDED] {
            for held in [false, true] {
                let setup = |seed| Setup { steps, ..Setup::new(seed, faults) };
                let sum = play(seed, 1, |seed| if held { delegations(setup(seed)) } else { setup(seed) });
                assert!(sum.lost == 0 || faults == Faults::UNBOUNDED);
            }
        }
    }
}
