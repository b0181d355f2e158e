//! Linearizability of a register: whether the programs' view of a file is possible with one copy of
//! it.
//!
//! Every write writes another value, so each read shows which write it saw. Then the check is
//! possible in O(n log n) (P. Gibbons and E. Korach, "Testing shared memories", 1997). All
//! operations on one value form a cluster. A cluster with operations that do not overlap must
//! occupy the whole time between them (*forward zone*). Other clusters can be shrunk to a point
//! (*backward zone*). The history is linearizable if and only if these conditions hold:
//! - no read ends before its write begins;
//! - no two forward zones overlap;
//! - no backward zone is inside a forward zone.
//!
//! The tests compare this check with a search over all orders.

use std::collections::{HashMap, HashSet};

/// One operation of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The client. It has another number after a crash.
    pub client: u32,
    /// A write, not a read.
    pub write: bool,
    /// The value written or read; 0 is the initial value of the file.
    pub value: u64,
    /// Its start, in an order of all events.
    pub start: u64,
    /// Its end; `None` without an end.
    pub end: Option<u64>,
}

/// Removes writes that delayed writes may lose. A client lost them with its memory or its lease
/// before the server had them. The client's own reads of them are removed, too. A lost value that
/// another client saw counts as a normal write.
pub fn without_lost(events: &[Event], lost: &HashSet<u64>) -> Vec<Event> {
    let mut writer = HashMap::new();
    events.iter().filter(|e| e.write).for_each(|e| {
        writer.insert(e.value, e.client);
    });
    let seen: HashSet<u64> = events
        .iter()
        .filter(|e| !e.write && writer.get(&e.value) != Some(&e.client))
        .map(|e| e.value)
        .collect();
    let gone = |v: u64| lost.contains(&v) && !seen.contains(&v);
    events.iter().filter(|e| !gone(e.value)).copied().collect()
}

struct Zone {
    write: Option<(u64, u64)>,
    first_end: u64,
    last_start: u64,
    value: u64,
}

/// Checks the history of one file.
///
/// # Errors
/// The reason why it is not linearizable.
pub fn check(events: &[Event]) -> Result<(), String> {
    let mut zones: HashMap<u64, Zone> = HashMap::new();
    let read: HashSet<u64> = events.iter().filter(|e| !e.write && e.end.is_some()).map(|e| e.value).collect();
    zones.insert(0, Zone { write: Some((0, 0)), first_end: 0, last_start: 0, value: 0 });
    for e in events {
        // Reads without an end are ignored. Writes without an end count only if a read saw them.
        if e.end.is_none() && (!e.write || !read.contains(&e.value)) {
            continue;
        }
        let end = e.end.unwrap_or(u64::MAX);
        let z = zones.entry(e.value).or_insert(Zone {
            write: None,
            first_end: u64::MAX,
            last_start: 0,
            value: e.value,
        });
        if e.write {
            z.write = Some((e.start, end));
        }
        z.first_end = z.first_end.min(end);
        z.last_start = z.last_start.max(e.start);
    }
    for e in events.iter().filter(|e| !e.write) {
        let Some(end) = e.end else { continue };
        match zones.get(&e.value).and_then(|z| z.write) {
            None => return Err(format!("{e:?} saw a value that no client wrote")),
            Some((start, _)) if end < start => {
                return Err(format!("{e:?} saw a value before it was written"));
            }
            Some(_) => {}
        }
    }
    let mut forward: Vec<&Zone> = zones.values().filter(|z| z.first_end < z.last_start).collect();
    forward.sort_by_key(|z| z.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_start {
            return Err(describe(pair[0], pair[1], events));
        }
    }
    for z in zones.values().filter(|z| z.first_end >= z.last_start) {
        // The last forward zone that begins before this zone.
        let at = forward.partition_point(|f| f.first_end < z.last_start);
        if at > 0 && z.first_end < forward[at - 1].last_start {
            return Err(describe(forward[at - 1], z, events));
        }
    }
    Ok(())
}

fn describe(a: &Zone, b: &Zone, events: &[Event]) -> String {
    let mut of: Vec<&Event> = events.iter().filter(|e| e.value == a.value || e.value == b.value).collect();
    of.sort_by_key(|e| e.start);
    let shown: Vec<String> = of.iter().take(12).map(|e| format!("{e:?}")).collect();
    format!("values {} and {} cannot be put in order:\n  {}", a.value, b.value, shown.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    /// Tries all orders (Wing and Gong). It remembers the tried sets of operations with their
    /// value.
    fn search(events: &[Event]) -> bool {
        fn go(events: &[Event], done: u32, value: u64, tried: &mut HashSet<(u32, u64)>) -> bool {
            let open = |i: usize| done & (1 << i) == 0;
            if (0..events.len()).all(|i| !open(i) || events[i].end.is_none()) {
                return true;
            }
            if !tried.insert((done, value)) {
                return false;
            }
            let first_end = (0..events.len())
                .filter(|&i| open(i))
                .filter_map(|i| events[i].end)
                .min()
                .unwrap_or(u64::MAX);
            (0..events.len()).filter(|&i| open(i)).any(|i| {
                let e = &events[i];
                let next = if e.write { e.value } else { value };
                let allowed = e.start <= first_end && (e.write || e.value == value);
                allowed && go(events, done | 1 << i, next, tried)
            })
        }
        go(events, 0, 0, &mut HashSet::new())
    }

    /// The zone check and the search over all orders agree on random histories.
    #[test]
    fn zone_check_agrees_with_search() {
        let mut random = Random::new(7);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let n = 2 + random.below(5);
            let mut times: Vec<u64> = (1..=2 * n).collect();
            for i in (1..times.len()).rev() {
                times.swap(i, random.below(i as u64 + 1) as usize);
            }
            let mut written = vec![0];
            let events: Vec<Event> = (0..n as usize)
                .map(|i| {
                    let (a, b) = (times[2 * i], times[2 * i + 1]);
                    let write = random.below(2) == 0;
                    let value = if write {
                        i as u64 + 1
                    } else {
                        written[random.below(written.len() as u64) as usize]
                    };
                    if write {
                        written.push(value);
                    }
                    let end = (random.below(6) > 0).then_some(a.max(b));
                    Event { client: 0, write, value, start: a.min(b), end }
                })
                .collect();
            let found = check(&events);
            assert_eq!(found.is_ok(), search(&events), "{found:?} for {events:#?}");
            *(if found.is_ok() { &mut good } else { &mut bad }) += 1;
        }
        assert!(good > 1000 && bad > 1000, "{good} and {bad}");
    }

    /// A lost value may vanish with its client's own reads. A value that another client read may
    /// not vanish.
    #[test]
    fn lost_value_has_no_other_reader() {
        let e = |client, write, value, start| Event { client, write, value, start, end: Some(start + 1) };
        let lost = HashSet::from([1]);
        let alone = [e(1, true, 1, 1), e(1, false, 1, 3), e(2, false, 0, 5)];
        assert!(check(&alone).is_err());
        assert!(check(&without_lost(&alone, &lost)).is_ok());
        let seen = [e(1, true, 1, 1), e(3, false, 1, 3), e(2, false, 0, 5)];
        assert!(check(&without_lost(&seen, &lost)).is_err());
    }
}
