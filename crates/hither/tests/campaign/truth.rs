//! The answers that a writer got, and the bytes that may therefore be at the server. The check
//! reads the server's own directory.
//!
//! A file consists of records of one length, each at its place. Each place has a list of records
//! that it may hold, oldest first. A promised record removes all older records from the list. A
//! promise is the return of write(2), or the return of fsync and close. The fault and the mode
//! decide which of the two counts.

use crate::common::record;
use std::collections::BTreeMap;

/// The calls whose return promises that their data is at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// The return of write(2).
    Write,
    /// The return of fsync(2), and of close(2) where the mode says so.
    Sync,
}

/// The events of a file, in order.
#[derive(Clone, Debug)]
pub enum Event {
    /// A record was written. `told` is true when write(2) returned success.
    Wrote { place: u64, number: u64, told: bool },
    /// The file was truncated to `keep` places.
    Cut { keep: u64, told: bool },
    /// All earlier data is on stable storage.
    Synced,
    /// A close reported that some earlier data is missing.
    GivenUp,
    /// Another client wrote at a place, over any record there. `holds` is true until a conflict is
    /// applied.
    Foreign { place: u64, number: u64, holds: bool },
}

/// The writer that stands for all other clients.
pub const FOREIGN: u64 = 255;

/// A file as its writer knows it.
#[derive(Clone, Default)]
pub struct Body {
    /// The state at the last check, with no call under way.
    pub image: Vec<u8>,
    /// The events since the last check.
    pub log: Vec<Event>,
    /// Number of places.
    pub places: u64,
    /// The length is not certain, or it is no multiple of a record.
    pub odd: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum May {
    Image,
    /// Zeros, or the end of the file.
    Nothing,
    Record(u64),
    Foreign(u64),
}

/// The records that a place may hold, oldest first. The flag says whether the writer had a promise
/// for the record.
type Candidates = Vec<(May, bool)>;

fn forget_before_the_last_told(all: &mut Candidates) {
    if let Some(last) = all.iter().rposition(|(_, told)| *told) {
        all.drain(..last);
    }
}

impl Body {
    /// Makes the records found at the server the known state.
    pub fn settle(&mut self, image: Vec<u8>, len: usize) {
        self.places = image.len().div_ceil(len) as u64;
        self.odd = !image.len().is_multiple_of(len);
        self.log.clear();
        self.image = image;
    }

    fn candidates(&self, len: usize, promise: Promise) -> BTreeMap<u64, Candidates> {
        let mut all: BTreeMap<u64, Candidates> =
            (0..self.image.len().div_ceil(len) as u64).map(|p| (p, vec![(May::Image, true)])).collect();
        let fresh = || vec![(May::Nothing, true)];
        for event in &self.log {
            match *event {
                Event::Wrote { place, number, told } => {
                    all.entry(place).or_insert_with(fresh).push((May::Record(number), told));
                }
                Event::Foreign { place, number, holds } => {
                    all.entry(place).or_insert_with(fresh).push((May::Foreign(number), holds));
                }
                Event::Cut { keep, told } => {
                    for (_, may) in all.range_mut(keep..) {
                        if told {
                            may.clear();
                        }
                        may.push((May::Nothing, told));
                    }
                }
                Event::Synced => all.values_mut().for_each(forget_before_the_last_told),
                // The oldest record was promised before.
                Event::GivenUp => {
                    all.values_mut().for_each(|may| may.iter_mut().skip(1).for_each(|m| m.1 = false));
                }
            }
        }
        if promise == Promise::Write {
            all.values_mut().for_each(forget_before_the_last_told);
        }
        all
    }

    /// The fault in these bytes of the file, if there is one.
    pub fn wrong(&self, writer: u64, len: usize, bytes: &[u8], promise: Promise) -> Option<String> {
        let all = self.candidates(len, promise);
        let mut end = 0;
        for (&place, may) in &all {
            let from = place as usize * len;
            let known: Vec<Option<Vec<u8>>> =
                may.iter().map(|(may, _)| self.bytes_of(*may, writer, place, len)).collect();
            let longest = known.iter().flatten().map(Vec::len).max().unwrap_or(0);
            end = end.max(if longest == 0 { 0 } else { from + longest });
            let is = bytes.get(from..bytes.len().min(from + len)).unwrap_or_default();
            if known.iter().flatten().any(|k| k == is) {
                continue;
            }
            // A write without an answer may be present in part.
            let fits = |i: usize, byte: Option<&u8>| {
                known.iter().any(|k| match (k.as_ref().and_then(|k| k.get(i)), byte) {
                    (Some(a), Some(b)) => a == b,
                    (None, byte) => byte.is_none_or(|b| *b == 0),
                    (Some(_), None) => false,
                })
            };
            if let Some(i) = (0..len).find(|&i| !fits(i, is.get(i))) {
                let told = is.get(..8).map(|n| u64::from_le_bytes(n.try_into().unwrap_or_default()));
                return Some(format!(
                    "place {place} of {len} bytes, byte {i} is none of {may:?}: number {told:?} is there, the file has {} bytes",
                    bytes.len()
                ));
            }
        }
        for event in &self.log {
            if let Event::Cut { keep, .. } = event {
                end = end.max(*keep as usize * len);
            }
        }
        // Behind the last place the file has no bytes, not even zeros.
        (bytes.len() > end)
            .then(|| format!("the file has {} bytes, no byte was written behind {end}", bytes.len()))
    }

    /// Chooses the bytes to judge after a journal whose disk had failed was applied. The journal
    /// also overwrites newer bytes that bypassed it. If the earlier bytes are right and the later
    /// bytes are not, the earlier ones count.
    pub fn either(
        &self,
        writer: u64,
        len: usize,
        (before, after): (&[u8], &[u8]),
        promise: Promise,
    ) -> Vec<u8> {
        let mut out = after.to_vec();
        for (&place, may) in &self.candidates(len, promise) {
            let from = place as usize * len;
            let known: Vec<Vec<u8>> =
                may.iter().filter_map(|(may, _)| self.bytes_of(*may, writer, place, len)).collect();
            for (i, is) in out.iter_mut().skip(from).take(len).enumerate() {
                let right = |byte: u8| known.iter().any(|k| k.get(i) == Some(&byte));
                if let Some(old) = before.get(from + i).filter(|old| !right(*is) && right(**old)) {
                    *is = *old;
                }
            }
        }
        out
    }

    /// The bytes of a record. `None` for [`May::Nothing`].
    fn bytes_of(&self, may: May, writer: u64, place: u64, len: usize) -> Option<Vec<u8>> {
        let from = place as usize * len;
        match may {
            May::Image => self.image.get(from..self.image.len().min(from + len)).map(<[u8]>::to_vec),
            May::Nothing => None,
            May::Record(number) => Some(record(writer, place, number, len)),
            May::Foreign(number) => Some(record(FOREIGN, place, number, len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 40;

    fn wrote(place: u64, number: u64) -> Event {
        Event::Wrote { place, number, told: true }
    }

    fn bytes(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().enumerate().flat_map(|(p, n)| record(7, p as u64, *n, LEN)).collect()
    }

    fn body(log: &[Event]) -> Body {
        Body { log: log.to_vec(), ..Body::default() }
    }

    #[track_caller]
    fn check(log: &[Event], promise: Promise, is: &[u8], right: bool) {
        let wrong = body(log).wrong(7, LEN, is, promise);
        assert_eq!(wrong.is_none(), right, "{wrong:?}");
    }

    #[test]
    fn promised_record_must_be_present() {
        let log = [wrote(0, 1), wrote(1, 2), Event::Synced, wrote(0, 3)];
        check(&log, Promise::Write, &bytes(&[3, 2]), true);
        check(&log, Promise::Write, &bytes(&[1, 2]), false);
        check(&log, Promise::Sync, &bytes(&[1, 2]), true);
        check(&log, Promise::Sync, &bytes(&[3, 2]), true);
        check(&log, Promise::Sync, &bytes(&[1]), false);
        check(&log, Promise::Sync, &[], false);
        check(&log, Promise::Sync, &[0; 2 * LEN], false);
        check(&log, Promise::Write, &bytes(&[3, 2, 9]), false);
        check(&log, Promise::Write, &bytes(&[3, 9]), false);
        let mut flipped = bytes(&[3, 2]);
        flipped[LEN + 35] ^= 1;
        check(&log, Promise::Write, &flipped, false);
    }

    #[test]
    fn truncated_record_stays_gone() {
        let log = [wrote(0, 1), wrote(1, 2), Event::Cut { keep: 1, told: true }, wrote(2, 3)];
        let mut hole = bytes(&[1]);
        hole.resize(2 * LEN, 0);
        hole.extend(record(7, 2, 3, LEN));
        check(&log, Promise::Write, &hole, true);
        check(&log, Promise::Write, &bytes(&[1, 2, 3]), false);
        let tried = [wrote(0, 1), wrote(1, 2), Event::Cut { keep: 1, told: false }];
        check(&tried, Promise::Write, &bytes(&[1, 2]), true);
        check(&tried[..2], Promise::Write, &bytes(&[1]), false);
    }

    #[test]
    fn unacknowledged_write_may_be_partial() {
        let log = [wrote(0, 1), Event::Synced, Event::Wrote { place: 0, number: 2, told: false }];
        let mut mixed = bytes(&[1]);
        mixed[20..].copy_from_slice(&bytes(&[2])[20..]);
        check(&log, Promise::Write, &mixed, true);
        mixed[20..].copy_from_slice(&bytes(&[3])[20..]);
        check(&log, Promise::Write, &mixed, false);
    }

    #[test]
    fn failed_close_drops_unsynced_promises() {
        let log = [wrote(0, 1), Event::Synced, wrote(0, 2), Event::GivenUp];
        check(&log, Promise::Write, &bytes(&[1]), true);
        check(&log, Promise::Write, &bytes(&[2]), true);
        check(&log, Promise::Write, &[], false);
        check(&log[..3], Promise::Write, &bytes(&[1]), false);
    }

    #[test]
    fn applied_conflict_hides_no_loss() {
        let now = body(&[wrote(0, 1), wrote(0, 2)]);
        let either = |before: &[u64], after: &[u64]| {
            now.either(7, LEN, (&bytes(before), &bytes(after)), Promise::Write)
        };
        assert_eq!(either(&[2], &[1]), bytes(&[2]));
        assert_eq!(either(&[1], &[2]), bytes(&[2]));
        let lost = either(&[1], &[1]);
        assert!(now.wrong(7, LEN, &lost, Promise::Write).is_some());
    }

    #[test]
    fn foreign_record_is_not_overwritten() {
        let log = [wrote(0, 1), Event::Foreign { place: 0, number: 9, holds: true }];
        check(&log, Promise::Write, &record(FOREIGN, 0, 9, LEN), true);
        check(&log, Promise::Write, &bytes(&[1]), false);
        let applied = [wrote(0, 1), Event::Foreign { place: 0, number: 9, holds: false }];
        check(&applied, Promise::Write, &bytes(&[1]), true);
    }
}
