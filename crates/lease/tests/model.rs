//! Every state of small configurations: reads are never stale, writes are never lost, and every
//! operation ends. With a rule off, a wrong state is found.

use hither_lease::sim::model::{Setup, explore};
use hither_lease::{HolderRules, Rules};

fn all(setup: &Setup) {
    let e = explore(setup).unwrap_or_else(|e| panic!("{e}"));
    println!("{e:?} of {setup:?}");
    assert!(e.all, "not all states were visited");
}

#[test]
fn two_clients_with_every_fault() {
    all(&Setup { lag: 1, losses: 1, crashes: 1, ..Setup::new(2, 1, 1) });
}

#[test]
fn two_clients_and_two_operations() {
    all(&Setup::new(2, 1, 2));
}

/// `STATES=50000000 cargo test --release -p hither-lease --test model -- --ignored --nocapture`
#[test]
#[ignore = "visits as many states as STATES says, with much memory"]
fn large_setups_with_every_fault() {
    let max = std::env::var("STATES").ok().and_then(|v| v.parse().ok()).unwrap_or(2_000_000);
    let faults = |s| Setup { lag: 1, losses: 1, crashes: 1, states_max: max, ..s };
    for setup in [Setup::new(2, 1, 2), Setup::new(2, 1, 3), Setup::new(3, 1, 3), Setup::new(2, 2, 3)] {
        let setup = faults(setup);
        println!("{:?} of {setup:?}", explore(&setup).unwrap_or_else(|e| panic!("{e}")));
    }
}

/// Checks that a wrong state is found with the rule off, and none with all rules on.
fn caught(change: fn(&mut Rules, &mut HolderRules)) {
    let mut setup = Setup { states_max: 30_000, ..Setup::new(2, 1, 3) };
    explore(&setup).unwrap_or_else(|e| panic!("all rules kept: {e}"));
    setup.states_max = 300_000;
    change(&mut setup.rules, &mut setup.holder_rules);
    println!("caught: {}", explore(&setup).expect_err("the broken rule is noticed"));
}

#[test]
fn eviction_waits_for_vacated() {
    caught(|r, _| r.await_vacated = false);
}

#[test]
fn delayed_writes_are_pushed_before_vacating() {
    caught(|_, h| h.push_before_vacating = false);
}

#[test]
fn write_sharing_ends() {
    caught(|r, _| r.sharing_ends = false);
}
