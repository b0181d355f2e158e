//! Bounds on flushing: recovery and the eviction of a lease end although a client writes all the
//! time. They do not end during a write.

use hither_lease::{
    Access, Action, Boot, ClientId, Config, Decision, Ended, FileKey, Go, Kind, Op, Permit, Table, Term, Want,
};

const FILE: FileKey = FileKey([1, 2]);
const WRITER: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);

/// Carries out the table's actions. Returns the reasons of ended leases.
fn settle(t: &mut Table) -> Vec<Ended> {
    let mut ended = Vec::new();
    while let Some(action) = t.poll_action() {
        match action {
            Action::Reserve { end, epoch } => t.reserved(end, epoch),
            Action::Ended { how, .. } => ended.push(how),
            _ => {}
        }
    }
    ended
}

fn access(client: ClientId, op: Op, kind: Option<Kind>) -> Access {
    let lease = kind.map(|kind| Want { kind, term: Term::For(0), optional: false });
    Access { client: Some(client), file: FILE, op, lease, claim: None }
}

fn permit(decision: Decision) -> Permit {
    match decision {
        Decision::Go(Go { permit: Some(permit), .. }) => permit,
        other => panic!("{other:?}"),
    }
}

/// Recovery ends in time although a client pushes delayed writes all the time.
#[test]
fn recovery_ends_despite_pushes() {
    let config = Config { flush_max_ms: 20_000, ..Config::default() };
    let bound = 60_000 + u64::from(config.skew_ms) + 20_000 + u64::from(config.write_slack_ms);
    for pipelined in [false, true] {
        let boot = Boot { reserved_end: 0, epoch: 0, outstanding_ms: 60_000 };
        let mut t = Table::new(config.clone(), boot, 0);
        settle(&mut t);
        let (mut now, mut last, mut pushed) = (0, None, 0);
        while t.is_recovering() {
            assert!(now <= bound + 2_000, "recovery does not end");
            // Of two overlapping writes one is always under way.
            let next = match t.begin(now, access(WRITER, Op::Push, None)) {
                Decision::Go(go) => go.permit,
                Decision::TryLater { .. } | Decision::Expired if now > bound => None,
                other => panic!("{other:?} at {now}"),
            };
            pushed += usize::from(next.is_some());
            let ends = if pipelined { std::mem::replace(&mut last, next) } else { next };
            if let Some(permit) = ends {
                t.finish(now, permit, true);
            }
            settle(&mut t);
            now += 1_000;
            t.handle_timeout(now);
            settle(&mut t);
        }
        assert!(pushed > 80, "delayed writes are pushed until then: {pushed}");
        assert!(now > bound - 1_000, "{now}");
    }
}

/// A table at time `now` with an evicted lease. Its holder has written for as long as it may.
fn overdue(config: &Config) -> (Table, u64, Permit) {
    let mut t = Table::new(config.clone(), Boot::FIRST, 0);
    settle(&mut t);
    assert!(matches!(t.begin(0, access(WRITER, Op::Lease, Some(Kind::Write))), Decision::Go(_)));
    assert!(matches!(t.begin(1, access(OTHER, Op::Read, None)), Decision::Wait(_)));
    let mut now = 1;
    while now + 1_000 < 1 + u64::from(config.flush_max_ms) {
        let running = permit(t.begin(now, access(WRITER, Op::Write, None)));
        t.finish(now, running, true);
        assert_eq!(settle(&mut t), []);
        now += 1_000;
    }
    let running = permit(t.begin(now, access(WRITER, Op::Write, None)));
    assert_eq!(settle(&mut t), []);
    (t, now, running)
}

/// An overdue lease ends only after the write under way, and no further write begins.
#[test]
fn overdue_lease_waits_for_write() {
    let config = Config::default();
    let (mut t, mut now, running) = overdue(&config);
    for _ in 0..120 {
        now += 1_000;
        t.handle_timeout(now);
        assert_eq!(settle(&mut t), [], "a write is under way at {now}");
    }
    assert_eq!(t.held(WRITER, FILE), Some(Kind::Write));
    // No other write begins, because the lease would never end.
    assert!(matches!(t.begin(now, access(WRITER, Op::Write, None)), Decision::TryLater { .. }));
    t.finish(now, running, true);
    t.handle_timeout(now + 200);
    assert_eq!(settle(&mut t), [Ended::Overdue]);
    assert_eq!(t.held(WRITER, FILE), None);
}

/// A table is vacant when all caching leases are returned, although their client still uses the
/// files.
#[test]
fn returned_leases_make_table_vacant() {
    let mut t = Table::new(Config::default(), Boot { reserved_end: 0, epoch: 0, outstanding_ms: 0 }, 0);
    settle(&mut t);
    let files = [FILE, FileKey([3, 4])];
    for (now, file) in (1..).zip(files) {
        let p = permit(t.begin(now, Access { file, ..access(WRITER, Op::Write, Some(Kind::Write)) }));
        t.finish(now, p, true);
        settle(&mut t);
    }
    assert!(!t.is_vacant(), "the client may cache two files");
    // As with VACATED: the client caches no data and may still use the file.
    t.vacated(10, WRITER, files[0], None, true);
    settle(&mut t);
    assert!(!t.is_vacant(), "the client may cache one file");
    t.vacated(11, WRITER, files[1], None, true);
    settle(&mut t);
    assert!(t.is_vacant());
}
