//! Each rule is needed. With a rule off, the simulation finds a wrong history, a lost write, or an
//! operation that waits too long. With all rules on, the same worlds are right.

use hither_lease::sim::world::{Faults, Report, Setup, run};
use hither_lease::{HolderRules, Rules};

const SEEDS: u64 = 16;

/// The error of a world.
fn wrong(setup: &Setup, also: fn(&Setup, &Report) -> Option<String>) -> Option<String> {
    match run(setup) {
        Err(e) => Some(e),
        Ok(r) => also(setup, &r),
    }
}

/// An error when a write was lost without a crash of its client.
fn losses(_: &Setup, r: &Report) -> Option<String> {
    (r.lost > 0).then(|| format!("{} writes lost", r.lost))
}

fn nothing(_: &Setup, _: &Report) -> Option<String> {
    None
}

/// Checks that worlds of `setup` are right, and that one of them is wrong with the rule of `change`
/// off.
fn caught(
    setup: impl Fn(u64) -> Setup,
    also: fn(&Setup, &Report) -> Option<String>,
    change: impl Fn(&mut Rules, &mut HolderRules),
) {
    let mut found = None;
    for seed in 0..SEEDS {
        let mut s = setup(seed);
        s.steps = 40_000;
        if found.is_none() || seed < 4 {
            assert_eq!(wrong(&s, also), None, "seed {seed}, all rules kept");
        }
        change(&mut s.rules, &mut s.holder_rules);
        found = found.or_else(|| wrong(&s, also).map(|w| format!("seed {seed}: {w}")));
        if found.is_some() && seed >= 3 {
            break;
        }
    }
    println!("caught: {}", found.expect("the broken rule is noticed"));
}

fn no_callbacks(seed: u64) -> Setup {
    Setup::new(seed, Faults { callbacks_lost: true, client_crashes: false, ..Faults::BOUNDED })
}

/// Leases expire often, and writes are pushed at the last moment.
fn last_moment(seed: u64, faults: Faults) -> Setup {
    let mut s = Setup { think_max_ms: 800, ..Setup::new(seed, faults) };
    (s.holder.push_before_ms, s.holder.renew_before_ms) = (1, 20);
    s
}

#[test]
fn clock_skew() {
    let quiet = Faults { callbacks_lost: true, drift: true, ..Faults::NONE };
    let reads = |seed| Setup { writes: 150, think_max_ms: 100, ..Setup::new(seed, quiet) };
    caught(reads, losses, |r, _| r.skew = false);
}

#[test]
fn write_slack() {
    let f = Faults { callbacks_lost: true, partition_max_ms: 1_000, every_ms: 2_000, ..Faults::NONE };
    let late = move |seed| {
        let mut s = last_moment(seed, f);
        (s.table.skew_ms, s.table.write_slack_ms) = (1, 4_000);
        s
    };
    caught(late, losses, |r, _| r.slack = false);
}

#[test]
fn idle_worker() {
    let f = Faults { callbacks_lost: true, stall_max_ms: 8_000, every_ms: 6_000, ..Faults::NONE };
    let stalls = move |seed| {
        let mut s = last_moment(seed, f);
        s.table.write_slack_ms = 600;
        s
    };
    caught(stalls, losses, |r, _| r.idle = false);
}

#[test]
fn grace_after_restart() {
    caught(|seed| Setup::new(seed, Faults::BOUNDED), losses, |r, _| r.grace = false);
}

#[test]
fn write_slack_after_restart() {
    let f = Faults { server_down_max_ms: 20, partition_max_ms: 1_000, every_ms: 3_000, ..Faults::NONE };
    let restarts = move |seed| {
        let mut s = last_moment(seed, f);
        (s.table.skew_ms, s.table.write_slack_ms) = (1, 4_000);
        s
    };
    caught(restarts, losses, |r, _| r.grace_slack = false);
}

#[test]
fn eviction_waits_for_vacated() {
    caught(|seed| Setup::new(seed, Faults::NONE), nothing, |r, _| r.await_vacated = false);
}

#[test]
fn write_sharing_stops_caching() {
    let tight = |seed| Setup {
        files: 1,
        leaseless: 0,
        locality: 0,
        think_max_ms: 20,
        ..Setup::new(seed, Faults::NONE)
    };
    let thrash = |_: &Setup, r: &Report| {
        (r.evictions * 10 > r.operations).then(|| format!("{} evictions", r.evictions))
    };
    caught(tight, thrash, |r, _| r.noncaching = false);
}

#[test]
fn write_sharing_ends() {
    caught(|seed| Setup::new(seed, Faults::NONE), nothing, |r, _| r.sharing_ends = false);
}

#[test]
fn modify_revision_grows() {
    caught(|seed| Setup::new(seed, Faults::BOUNDED), losses, |r, _| r.revision_grows = false);
}

#[test]
fn modify_revision_survives_restarts() {
    let f = Faults { every_ms: 5_000, client_crashes: false, ..Faults::BOUNDED };
    caught(
        move |seed| Setup { writes: 100, ..Setup::new(seed, f) },
        losses,
        |r, _| r.revision_durable = false,
    );
}

#[test]
fn no_lease_while_others_write() {
    let writers = |seed| Setup { leaseless: 3, think_max_ms: 60, ..Setup::new(seed, Faults::NONE) };
    caught(writers, nothing, |r, _| r.in_flight = false);
}

/// A lease is not renewed while an operation waits for the file.
#[test]
fn wanted_lease_is_not_renewed() {
    let f = Faults { callbacks_lost: true, ..Faults::NONE };
    let patient = |seed| Setup { latency_max_ms: Some(20_000), locality: 900, ..Setup::new(seed, f) };
    caught(patient, losses, |r, _| r.no_renewal_when_wanted = false);
}

#[test]
fn claims_of_ended_leases_are_refused() {
    caught(|seed| Setup::new(seed, Faults::UNBOUNDED), nothing, |r, _| r.expired = false);
}

#[test]
fn claims_of_older_lifetimes_are_refused() {
    let f = Faults { every_ms: 8_000, client_crashes: false, ..Faults::UNBOUNDED };
    let f = Faults { partition_max_ms: 60_000, stall_max_ms: 0, ..f };
    caught(move |seed| Setup { think_max_ms: 100, ..Setup::new(seed, f) }, nothing, |r, _| r.claim = false);
}

/// A push under a lease that ended before a restart is refused after the restart.
#[test]
fn fenced_claims_are_refused() {
    let f = Faults { every_ms: 10_000, client_crashes: false, ..Faults::UNBOUNDED };
    caught(move |seed| Setup::new(seed, f), nothing, |r, _| r.fence = false);
}

#[test]
fn evictions_are_repeated() {
    let f = Faults { loss: 150, ..Faults::NONE };
    let held = move |seed| {
        let mut s = Setup { heard_ms: 2_000, latency_max_ms: Some(5_000), ..Setup::new(seed, f) };
        s.table.recall_timeout_ms = 60_000;
        s
    };
    caught(held, losses, |r, _| r.evict_retry = false);
}

/// A revoked delegation ends only after its client must have noticed the revocation.
#[test]
fn revoked_delegation_ends_after_notice() {
    let f = Faults { callbacks_lost: true, ..Faults::NONE };
    let held = move |seed| {
        let mut s = Setup { heard_ms: 2_000, think_max_ms: 60, ..Setup::new(seed, f) };
        s.table.recall_timeout_ms = 300;
        s
    };
    caught(held, losses, |r, _| r.revoke_waits = false);
}

/// A return of an earlier lease does not end the current one.
#[test]
fn return_of_earlier_lease_is_ignored() {
    let f = Faults { late: 200, duplicates: 400, ..Faults::NONE };
    let f = Faults { late_max_ms: 4_000, ..f };
    caught(move |seed| Setup { think_max_ms: 60, ..Setup::new(seed, f) }, nothing, |r, _| r.seq = false);
}

#[test]
fn terms_count_from_sending() {
    let f = Faults { callbacks_lost: true, delay_max_ms: 400, ..Faults::NONE };
    let reads = move |seed| {
        let mut s = Setup { writes: 150, think_max_ms: 100, ..Setup::new(seed, f) };
        s.table.skew_ms = 1;
        s
    };
    caught(reads, nothing, |_, h| h.from_sending = false);
}

/// No data is served from the cache after the end of the lease.
#[test]
fn expired_lease_serves_no_data() {
    caught(no_callbacks, losses, |_, h| h.stop_at_expiry = false);
}

#[test]
fn delayed_writes_are_pushed_before_vacating() {
    caught(|seed| Setup::new(seed, Faults::NONE), nothing, |_, h| h.push_before_vacating = false);
}

/// A grant is void when its request was sent before an eviction arrived.
#[test]
fn eviction_voids_overtaken_grant() {
    let f = Faults { late: 200, late_max_ms: 1_500, ..Faults::NONE };
    caught(
        move |seed| Setup { think_max_ms: 60, ..Setup::new(seed, f) },
        nothing,
        |_, h| h.void_when_evicted = false,
    );
}

/// Cached data is dropped when a grant shows another modify revision.
#[test]
fn other_revision_drops_cached_data() {
    caught(|seed| Setup::new(seed, Faults::NONE), nothing, |_, h| h.revision = false);
}
