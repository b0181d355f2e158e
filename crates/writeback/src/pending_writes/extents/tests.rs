//! Random operations, compared with a reference that has one cell per byte.

use super::*;
use hither_vfs::Cred;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

const LEN: usize = 64;
const CHUNK: u64 = 16;

#[derive(Debug, Clone)]
enum Op {
    Insert { at: u64, lens: Vec<usize>, open: u64 },
    Take { flush: bool, hold: Option<u64> },
    Land { which: usize, sent: u64 },
    Cut(u64),
    Seal,
    DropOpen(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let at = 0..LEN as u64 - 24;
    prop_oneof![
        8 => (at, vec(1usize..12, 1..3), 0..2u64).prop_map(|(at, lens, open)| Op::Insert { at, lens, open }),
        6 => (any::<bool>(), proptest::option::weighted(0.2, 0..LEN as u64))
            .prop_map(|(flush, hold)| Op::Take { flush, hold }),
        5 => (any::<usize>(), 0..2 * CHUNK).prop_map(|(which, sent)| Op::Land { which, sent }),
        1 => (0..LEN as u64).prop_map(Op::Cut),
        2 => Just(Op::Seal),
        1 => (0..2u64).prop_map(Op::DropOpen),
    ]
}

/// Value, open and epoch of a byte.
type Cell = Option<(u8, u64, u64)>;

#[derive(Default)]
struct Reference {
    dirty: Vec<Cell>,
    flights: Vec<(Flight, Vec<Cell>)>,
    /// The newest value of each byte that the server got.
    server: Vec<Option<u8>>,
    epoch: u64,
    flush_to: u64,
    next: u8,
}

impl Reference {
    fn local(&self, at: usize) -> Option<u8> {
        let flying = || {
            self.flights.iter().find_map(|(f, cells)| {
                let start = f.start_bytes as usize;
                (start <= at && at < start + cells.len()).then(|| cells[at - start]).flatten()
            })
        };
        self.dirty[at].or_else(flying).map(|c| c.0)
    }

    fn oldest_epoch(&self) -> Option<u64> {
        let flying = self.flights.iter().flat_map(|(_, cells)| cells);
        self.dirty.iter().chain(flying).flatten().map(|c| c.2).min()
    }
}

fn origin(open: u64) -> Origin {
    Origin { cred: Arc::new(Cred::root()), open: OpenId(open) }
}

fn flat(data: &Data) -> Vec<u8> {
    data.clone().into_bytes().to_vec()
}

fn step(x: &mut Extents, r: &mut Reference, op: Op, now: Instant) {
    match op {
        Op::Insert { at, lens, open } => {
            let mut data = Data::default();
            for len in &lens {
                r.next = r.next.wrapping_add(1);
                data.push(vec![r.next; *len].into());
            }
            let bytes = flat(&data);
            let older = r.dirty[at as usize..][..bytes.len()].iter().flatten().map(|c| c.2).min();
            let epoch = older.map_or(r.epoch, |older| older.min(r.epoch));
            for (i, b) in bytes.into_iter().enumerate() {
                r.dirty[at as usize + i] = Some((b, open, epoch));
            }
            x.insert(at, &data, &origin(open), now);
        }
        Op::Take { flush, hold } => {
            let hold_from = hold.unwrap_or(u64::MAX);
            let rules =
                Rules { flush_to: if flush { r.flush_to } else { 0 }, hold_from, zero_from: u64::MAX };
            assert_eq!(x.has_work(rules), x.next_start(rules).is_some());
            let free = |at: usize| {
                r.flights
                    .iter()
                    .all(|(f, c)| (at as u64) < f.start_bytes || f.start_bytes + c.len() as u64 <= at as u64)
            };
            let due = |(at, c): (usize, &Cell)| {
                free(at) && (at as u64) < hold_from && c.is_some_and(|c| c.2 <= rules.flush_to)
            };
            let wanted = r.dirty.iter().enumerate().any(due);
            let taken = x.take(rules);
            assert!(taken.is_some() || !wanted, "nothing due stays behind");
            let Some(flight) = taken else { return };
            let (start, len) = (flight.start_bytes as usize, flight.data.len());
            assert!(len > 0 && len as u64 <= CHUNK && (start + len) as u64 <= hold_from);
            let cells: Vec<Cell> = r.dirty[start..start + len].to_vec();
            let bytes: Vec<u8> = cells.iter().map(|c| c.expect("only dirty bytes are taken").0).collect();
            assert_eq!(bytes, flat(&flight.data));
            assert!(cells.iter().flatten().all(|c| OpenId(c.1) == flight.origin.open));
            assert!((start..start + len).all(free), "two versions of a byte are never in flight");
            r.dirty[start..start + len].fill(None);
            let last = r.flights.is_empty() && r.dirty.iter().all(Option::is_none);
            assert_eq!(flight.last, last);
            r.flights.push((flight, cells));
        }
        Op::Land { which, sent } => {
            if r.flights.is_empty() {
                return;
            }
            let (flight, cells) = r.flights.remove(which % r.flights.len());
            x.landed(flight.id, sent);
            for (i, cell) in cells.into_iter().enumerate() {
                let at = flight.start_bytes as usize + i;
                if (i as u64) < sent {
                    r.server[at] = cell.map(|c| c.0);
                } else if let (Some(newer), Some(old)) = (&mut r.dirty[at], &cell) {
                    newer.2 = newer.2.min(old.2);
                } else if r.dirty[at].is_none() {
                    r.dirty[at] = cell;
                }
            }
        }
        Op::Cut(size) => {
            x.cut(size);
            r.dirty[size as usize..].fill(None);
        }
        Op::Seal => {
            let used = |c: &Cell| c.is_some_and(|c| c.2 == r.epoch);
            let used = r.dirty.iter().any(used) || r.flights.iter().any(|(_, cells)| cells.iter().any(used));
            r.flush_to = x.seal();
            assert!(!used || r.flush_to == r.epoch);
            r.epoch = r.flush_to + 1;
        }
        Op::DropOpen(open) => {
            let before = r.dirty.iter().flatten().count();
            r.dirty.iter_mut().for_each(|c| *c = c.filter(|c| c.1 != open));
            let dropped = before - r.dirty.iter().flatten().count();
            let ranges = x.drop_open(OpenId(open));
            assert_eq!(ranges.iter().map(|(start, end)| end - start).sum::<u64>(), dropped as u64);
        }
    }
}

fn compare(x: &Extents, r: &Reference) {
    x.check();
    let local: Vec<_> = (0..LEN).map(|at| r.local(at)).collect();
    for (start, end) in [(0, LEN), (3, 40), (17, 18), (20, 64)] {
        let mut seen = [None; LEN];
        let mut at = 0;
        for (from, bytes) in x.overlay(start as u64, end as u64) {
            assert!(from >= at, "in order and not overlapping");
            at = from + bytes.len() as u64;
            for (i, b) in bytes.iter().enumerate() {
                seen[from as usize + i] = Some(*b);
            }
        }
        assert_eq!(seen[start..end], local[start..end]);
        assert!(seen[..start].iter().chain(&seen[end..]).all(Option::is_none));
    }
    let end = local.iter().rposition(Option::is_some).map_or(0, |at| at as u64 + 1);
    assert_eq!(x.end_bytes(), end);
    let oldest = r.oldest_epoch();
    for epoch in r.epoch.saturating_sub(3)..=r.epoch {
        assert_eq!(x.is_done(epoch), oldest.is_none_or(|first| first > epoch));
    }
    assert_eq!(x.is_clean(), oldest.is_none());
    assert_eq!(x.oldest().is_some(), oldest.is_some());
}

/// A caller that waits for an epoch also waits for bytes that replaced those of the epoch. Neither
/// version is at the server before.
#[test]
fn overwritten_bytes_delay_older_epoch() {
    let now = Instant::now();
    let write = |x: &mut Extents, at, len, with: u8| {
        x.insert(at, &bytes::Bytes::from(vec![with; len]).into(), &origin(0), now)
    };
    let mut x = Extents::new(CHUNK);
    write(&mut x, 0, 4, 1);
    let waited = x.seal();
    write(&mut x, 2, 4, 2);
    assert!(!x.is_done(waited));
    // The result is the same when the old version was in flight and did not arrive.
    let flight = x.take(Rules { flush_to: waited, hold_from: u64::MAX, zero_from: u64::MAX }).unwrap();
    assert_eq!(flight.data.len(), 6);
    write(&mut x, 0, 6, 3);
    x.landed(flight.id, 0);
    assert!(!x.is_done(waited));
    let flight = x.take(Rules { flush_to: waited, hold_from: u64::MAX, zero_from: u64::MAX }).unwrap();
    assert_eq!(flat(&flight.data), [3; 6]);
    x.landed(flight.id, 6);
    assert!(x.is_done(waited) && x.is_clean());
    x.check();
}

/// Small gaps beyond the server's end are sent as zeros, in one flight with the bytes around them.
/// No other gaps are. Bytes that do not arrive stay dirty without the zeros.
#[test]
fn gaps_beyond_end_are_zero_filled() {
    let now = Instant::now();
    let chunk = 4 * GAP_BYTES;
    let with = |runs: &[(u64, usize)]| {
        let mut x = Extents::new(chunk);
        for (at, len) in runs {
            x.insert(*at, &bytes::Bytes::from(vec![7; *len]).into(), &origin(0), now);
        }
        let flush_to = x.seal();
        (x, move |zero_from| Rules { flush_to, hold_from: u64::MAX, zero_from })
    };
    let (mut x, rules) = with(&[(10, 2), (15, 3), (20, 1)]);
    let flight = x.take(rules(12)).unwrap();
    assert!(flight.filled && flight.last);
    assert_eq!((flight.start_bytes, flat(&flight.data)), (10, vec![7, 7, 0, 0, 0, 7, 7, 7, 0, 0, 7]));
    x.check();
    // Six bytes arrived. Three of the zeros do not become dirty bytes.
    x.landed(flight.id, 6);
    x.check();
    let left = x.take(rules(u64::MAX)).unwrap();
    assert!(!left.filled);
    assert_eq!((left.start_bytes, flat(&left.data)), (16, vec![7, 7]));
    let last = x.take(rules(0)).unwrap();
    assert_eq!((last.start_bytes, flat(&last.data)), (20, vec![7]));
    // Gaps that are not filled: the server has bytes there, the gap is too large, the next run has
    // a later epoch, or the flight would be too long.
    let (mut x, rules) = with(&[(10, 2), (15, 3)]);
    assert_eq!(x.take(rules(13)).unwrap().data.len(), 2);
    let (mut x, rules) = with(&[(0, 1), (2 + GAP_BYTES, 1)]);
    assert_eq!(x.take(rules(0)).unwrap().data.len(), 1);
    let (mut x, rules) = with(&[(0, 1)]);
    x.insert(3, &bytes::Bytes::from_static(b"x").into(), &origin(0), now);
    assert_eq!(x.take(rules(0)).unwrap().data.len(), 1);
    let (mut x, rules) = with(&[(0, chunk as usize - 2), (chunk, 1)]);
    assert_eq!(x.take(rules(0)).unwrap().data.len() as u64, chunk - 2);
    // The run after the gap has another origin: no zeros follow the last byte.
    let (mut x, _) = with(&[(0, 1)]);
    x.insert(3, &bytes::Bytes::from_static(b"x").into(), &origin(1), now);
    let flush_to = x.seal();
    let flight = x.take(Rules { flush_to, hold_from: u64::MAX, zero_from: 0 }).unwrap();
    assert_eq!((flight.data.len(), flight.filled), (1, false));
    x.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..Default::default() })]

    /// Under any order of operations the newest version of each byte is visible and finally sent.
    /// All counters are correct. Two versions of a byte are never in flight at the same time.
    #[test]
    fn extents_match_reference_model(ops in vec(op(), 1..60)) {
        let now = Instant::now();
        let mut x = Extents::new(CHUNK);
        let mut r = Reference {
            dirty: vec![None; LEN],
            server: vec![None; LEN],
            epoch: 1,
            ..Default::default()
        };
        for op in ops {
            step(&mut x, &mut r, op, now);
            compare(&x, &r);
        }
        // All bytes are sent in the end.
        let newest: Vec<_> = (0..LEN).map(|at| r.local(at)).collect();
        while !r.flights.is_empty() {
            step(&mut x, &mut r, Op::Land { which: 0, sent: CHUNK }, now);
        }
        step(&mut x, &mut r, Op::Seal, now);
        while !x.is_clean() {
            step(&mut x, &mut r, Op::Take { flush: true, hold: None }, now);
            step(&mut x, &mut r, Op::Land { which: 0, sent: CHUNK }, now);
            compare(&x, &r);
        }
        for (at, byte) in newest.into_iter().enumerate().filter(|(_, b)| b.is_some()) {
            prop_assert_eq!(r.server[at], byte);
        }
    }
}
