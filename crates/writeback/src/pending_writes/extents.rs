//! The bytes of one file that were written locally and are not at the server yet: a pure state
//! machine.
//!
//! The module knows only the instants that its callers pass, and nothing of errors and waiting
//! tasks. Bytes are *dirty* until a flight takes them, and *in flight* until it lands. Bytes
//! written over bytes in flight are dirty again. They are not taken before that flight lands. The
//! versions of a byte therefore reach the server in the order of their writing. Dirty pieces never
//! overlap one another. Neither do flights.
//!
//! Large writes are kept as the received buffers. Small writes are copied into growing buffers. A
//! thousand appends are thus one piece, and a small write does not keep a large message in memory.
//! `runs` are the maximal dirty ranges without gaps. A run of a whole chunk is sent at once.
//!
//! An *epoch* is sealed ([`Extents::seal`]) to name all bytes written until then. Bytes of sealed
//! epochs are not merged with later ones. Each epoch counts its bytes. Bytes that replace dirty
//! bytes of an older epoch belong to that epoch. A caller that waits for an epoch thus waits until
//! its bytes, or newer versions, are at the server.

use super::file::Origin;
use bytes::{Bytes, BytesMut};
use hither_vfs::{Data, OpenId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// Smaller writes are copied and merged. Larger ones keep their received buffers.
const SMALL_BYTES: usize = 32 << 10;
/// The largest buffer of merged small writes.
const MERGED_BYTES: usize = 256 << 10;
/// The largest gap that is cheaper as zeros than as the end of a WRITE. Such a gap is smaller than
/// a block, so the file loses no hole.
const GAP_BYTES: u64 = (4 << 10) - 1;

static ZEROS: [u8; GAP_BYTES as usize] = [0; GAP_BYTES as usize];

/// The dirty and flying bytes of one file.
#[derive(Debug)]
pub(super) struct Extents {
    chunk_bytes: u64,
    /// Smaller writes are merged.
    small_bytes: usize,
    dirty: BTreeMap<u64, Piece>,
    /// Start and end of the ranges without gaps in `dirty`.
    runs: BTreeMap<u64, u64>,
    /// The starts of the runs of at least a chunk.
    whole: BTreeSet<u64>,
    flights: Vec<Flying>,
    next_flight: u64,
    epoch: u64,
    epochs: BTreeMap<u64, Epoch>,
    dirty_bytes: u64,
    flying_bytes: u64,
    /// The offset at which the next flight of a flush starts its search.
    cursor: u64,
}

#[derive(Debug)]
struct Piece {
    buf: Buf,
    origin: Origin,
    epoch: u64,
}

#[derive(Debug)]
enum Buf {
    Shared(Bytes),
    Own(BytesMut),
}

#[derive(Debug)]
struct Epoch {
    /// The time at which the first byte was written.
    since: Instant,
    dirty_bytes: u64,
    flying_bytes: u64,
}

#[derive(Debug)]
struct Flying {
    id: u64,
    start: u64,
    end: u64,
    origin: Origin,
    parts: SmallVec<[(u64, u64, Bytes); 1]>,
    /// No other flight was in the air at the same time.
    alone: bool,
}

/// Bytes taken to be sent. Ends with [`Extents::landed`].
#[derive(Debug, Clone)]
pub(super) struct Flight {
    /// The number of the flight.
    pub id: u64,
    /// Offset of the first byte.
    pub start_bytes: u64,
    /// The bytes.
    pub data: Data,
    /// The open and credential of the writer.
    pub origin: Origin,
    /// No other bytes are dirty or in flight.
    pub last: bool,
    /// Gaps in the flight were filled with zeros ([`Rules::zero_from`]).
    pub filled: bool,
}

/// The rules for the bytes that may be taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Bytes of epochs up to this one are taken in any amount, bytes of later epochs in whole
    /// chunks only.
    pub flush_to: u64,
    /// No bytes from this offset on are taken.
    pub hold_from: u64,
    /// From this offset on the file has only the local bytes, and no other client can change that
    /// before they are sent. Small gaps may be sent as zeros.
    pub zero_from: u64,
}

impl Buf {
    fn len(&self) -> usize {
        match self {
            Buf::Shared(b) => b.len(),
            Buf::Own(b) => b.len(),
        }
    }

    /// A part of the buffer, by reference where possible.
    fn slice(&self, from: usize, to: usize) -> Bytes {
        match self {
            Buf::Shared(b) => b.slice(from..to),
            Buf::Own(b) => Bytes::copy_from_slice(&b[from..to]),
        }
    }

    /// Keeps the bytes before `at` and returns the rest.
    fn split_off(&mut self, at: usize) -> Buf {
        match self {
            Buf::Own(b) => Buf::Own(b.split_off(at)),
            Buf::Shared(b) => {
                let rest = b.split_off(at);
                *b = small(std::mem::take(b));
                Buf::Shared(small(rest))
            }
        }
    }

    fn freeze(self) -> Bytes {
        match self {
            Buf::Shared(b) => b,
            Buf::Own(b) => b.freeze(),
        }
    }
}

/// Copies a small rest, so that it does not keep a large buffer in memory.
fn small(b: Bytes) -> Bytes {
    if b.len() < SMALL_BYTES { Bytes::copy_from_slice(&b) } else { b }
}

impl Piece {
    fn len(&self) -> u64 {
        self.buf.len() as u64
    }
}

impl Extents {
    /// No dirty bytes. Flights take at most `chunk_bytes`.
    pub fn new(chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes: chunk_bytes.max(1),
            small_bytes: SMALL_BYTES.min(chunk_bytes as usize / 2),
            dirty: BTreeMap::new(),
            runs: BTreeMap::new(),
            whole: BTreeSet::new(),
            flights: Vec::new(),
            next_flight: 0,
            epoch: 1,
            epochs: BTreeMap::new(),
            dirty_bytes: 0,
            flying_bytes: 0,
            cursor: 0,
        }
    }

    /// Bytes dirty and in flight.
    pub fn bytes(&self) -> u64 {
        self.dirty_bytes + self.flying_bytes
    }

    /// The number of dirty pieces. Each costs some 200 bytes of memory beside its content.
    pub fn pieces(&self) -> usize {
        self.dirty.len()
    }

    /// Whether no bytes are dirty or in flight.
    pub fn is_clean(&self) -> bool {
        self.bytes() == 0
    }

    /// Whether any bytes are in flight.
    pub fn is_flying(&self) -> bool {
        !self.flights.is_empty()
    }

    /// The most bytes of one flight.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The number of flights so far.
    pub fn taken(&self) -> u64 {
        self.next_flight
    }

    /// The number of flights in the air.
    pub fn flying(&self) -> usize {
        self.flights.len()
    }

    /// The bytes of these flights.
    pub fn flying_bytes(&self) -> u64 {
        self.flying_bytes
    }

    /// The number of dirty ranges without gaps.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The credential of the first dirty bytes.
    pub fn first_cred(&self) -> Option<&std::sync::Arc<hither_vfs::Cred>> {
        self.dirty.first_key_value().map(|(_, piece)| &piece.origin.cred)
    }

    /// Whether all dirty bytes belong to epochs up to `epoch`, and to one origin.
    pub fn is_one(&self, epoch: u64) -> bool {
        let mut pieces = self.dirty.values();
        let Some(first) = pieces.next() else { return false };
        self.epochs.keys().next_back().is_none_or(|last| *last <= epoch)
            && pieces.all(|piece| piece.origin == first.origin)
    }

    /// Whether bytes are in flight, or will be without a flush.
    pub fn is_busy(&self) -> bool {
        self.is_flying() || !self.whole.is_empty()
    }

    /// Whether bytes at or after `offset_bytes` are in flight.
    pub fn is_flying_from(&self, offset_bytes: u64) -> bool {
        self.flights.iter().any(|f| f.end > offset_bytes)
    }

    /// Whether bytes written through `open` are in flight.
    pub fn is_flying_of(&self, open: OpenId) -> bool {
        self.flights.iter().any(|f| f.origin.open == open)
    }

    /// One past the last byte dirty or in flight. 0 without such bytes.
    pub fn end_bytes(&self) -> u64 {
        let dirty = self.runs.last_key_value().map_or(0, |(_, end)| *end);
        self.flights.iter().map(|f| f.end).max().unwrap_or(0).max(dirty)
    }

    /// The time of writing of the oldest byte dirty or in flight.
    pub fn oldest(&self) -> Option<Instant> {
        self.epochs.values().next().map(|e| e.since)
    }

    /// Ends the present epoch and returns it. All bytes written until now belong to it or to
    /// earlier epochs.
    pub fn seal(&mut self) -> u64 {
        if self.epochs.contains_key(&self.epoch) {
            self.epoch += 1;
        }
        self.epoch - 1
    }

    /// Whether no bytes of `epoch` and earlier epochs are left.
    pub fn is_done(&self, epoch: u64) -> bool {
        self.epochs.keys().next().is_none_or(|first| *first > epoch)
    }

    /// Adds written bytes. Returns the number of bytes that were merged into an earlier buffer.
    pub fn insert(&mut self, offset_bytes: u64, data: &Data, origin: &Origin, now: Instant) -> u64 {
        let len = data.len();
        if len == 0 {
            return 0;
        }
        let end = offset_bytes + len as u64;
        let epoch = self.oldest_within(offset_bytes, end).map_or(self.epoch, |older| older.min(self.epoch));
        self.epochs.entry(epoch).or_insert(Epoch { since: now, dirty_bytes: 0, flying_bytes: 0 });
        if len < self.small_bytes {
            if !self.merge(offset_bytes, data, origin, epoch) {
                self.remove(offset_bytes, end, epoch);
                let mut own = BytesMut::with_capacity(len);
                data.parts().iter().for_each(|p| own.extend_from_slice(p));
                self.put(offset_bytes, Buf::Own(own), origin.clone(), epoch);
                return 0;
            }
            return len as u64;
        }
        self.remove(offset_bytes, end, epoch);
        let mut at = offset_bytes;
        for part in data.parts() {
            self.put(at, Buf::Shared(part.clone()), origin.clone(), epoch);
            at += part.len() as u64;
        }
        0
    }

    /// The oldest epoch of the dirty bytes within a range.
    fn oldest_within(&self, start: u64, end: u64) -> Option<u64> {
        let first = self.piece_at(start).map_or(start, |(s, _)| s);
        self.dirty.range(first..end).map(|(_, piece)| piece.epoch).min()
    }

    /// Writes into, or directly after, the piece at `at`, if that piece is a growing buffer of the
    /// same origin.
    fn merge(&mut self, at: u64, data: &Data, origin: &Origin, epoch: u64) -> bool {
        let len = data.len() as u64;
        let Some((&start, piece)) = self.dirty.range(..=at).next_back() else { return false };
        let piece_end = start + piece.len();
        let fits = (at - start + len) as usize <= MERGED_BYTES.max(piece.buf.len());
        let ours = piece.epoch == epoch && piece.origin == *origin && matches!(piece.buf, Buf::Own(_));
        if at > piece_end || !fits || !ours {
            return false;
        }
        let end = at + len;
        if end > piece_end {
            self.remove(piece_end, end, epoch);
        }
        let Some(Piece { buf: Buf::Own(own), .. }) = self.dirty.get_mut(&start) else { return false };
        let mut to = (at - start) as usize;
        for part in data.parts() {
            let inside = part.len().min(own.len() - to);
            own[to..to + inside].copy_from_slice(&part[..inside]);
            own.extend_from_slice(&part[inside..]);
            to += part.len();
        }
        if end > piece_end {
            self.count(epoch, end - piece_end);
            self.add_run(piece_end, end);
        }
        true
    }

    fn put(&mut self, at: u64, buf: Buf, origin: Origin, epoch: u64) {
        let len = buf.len() as u64;
        if len == 0 {
            return;
        }
        self.dirty.insert(at, Piece { buf, origin, epoch });
        self.count(epoch, len);
        self.add_run(at, at + len);
    }

    fn count(&mut self, epoch: u64, bytes: u64) {
        self.dirty_bytes += bytes;
        if let Some(e) = self.epochs.get_mut(&epoch) {
            e.dirty_bytes += bytes;
        }
    }

    fn uncount(&mut self, epoch: u64, bytes: u64) {
        self.dirty_bytes -= bytes;
        if let Some(e) = self.epochs.get_mut(&epoch) {
            e.dirty_bytes -= bytes;
        }
        self.end_epoch(epoch);
    }

    fn end_epoch(&mut self, epoch: u64) {
        if self.epochs.get(&epoch).is_some_and(|e| e.dirty_bytes + e.flying_bytes == 0) {
            self.epochs.remove(&epoch);
        }
    }

    /// Splits the piece around `at` into two.
    fn split(&mut self, at: u64) {
        let Some((&start, piece)) = self.dirty.range_mut(..at).next_back() else { return };
        if at < start + piece.len() {
            let buf = piece.buf.split_off((at - start) as usize);
            let rest = Piece { buf, origin: piece.origin.clone(), epoch: piece.epoch };
            self.dirty.insert(at, rest);
        }
    }

    /// Removes and returns dirty bytes.
    fn extract(&mut self, start: u64, end: u64) -> SmallVec<[(u64, Piece); 1]> {
        self.split(start);
        self.split(end);
        let mut out = SmallVec::new();
        while let Some((&at, _)) = self.dirty.range(start..end).next() {
            let Some(piece) = self.dirty.remove(&at) else { break };
            out.push((at, piece));
        }
        self.cut_run(start, end);
        out
    }

    /// Drops bytes that new bytes of `epoch` replace.
    fn remove(&mut self, start: u64, end: u64, epoch: u64) {
        // The epoch of the new bytes must survive while it has no bytes.
        let keep = self.epochs.get(&epoch).map(|e| e.since);
        for (_, piece) in self.extract(start, end) {
            self.uncount(piece.epoch, piece.len());
        }
        if let Some(since) = keep {
            self.epochs.entry(epoch).or_insert(Epoch { since, dirty_bytes: 0, flying_bytes: 0 });
        }
    }

    fn add_run(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&s, &e)) = self.runs.range(..=start).next_back()
            && e >= start
        {
            self.drop_run(s);
            (start, end) = (s, end.max(e));
        }
        while let Some((&s, &e)) = self.runs.range(start..=end).next() {
            self.drop_run(s);
            end = end.max(e);
        }
        self.set_run(start, end);
    }

    fn cut_run(&mut self, start: u64, end: u64) {
        if let Some((&s, &e)) = self.runs.range(..start).next_back()
            && e > start
        {
            self.drop_run(s);
            self.set_run(s, start);
            self.set_run(end, e);
        }
        while let Some((&s, &e)) = self.runs.range(start..end).next() {
            self.drop_run(s);
            self.set_run(end, e);
        }
    }

    fn set_run(&mut self, start: u64, end: u64) {
        if start < end {
            self.runs.insert(start, end);
            if end - start >= self.chunk_bytes {
                self.whole.insert(start);
            }
        }
    }

    fn drop_run(&mut self, start: u64) {
        self.runs.remove(&start);
        self.whole.remove(&start);
    }

    /// Drops the bytes from `size_bytes` on, because the file was truncated there.
    pub fn cut(&mut self, size_bytes: u64) {
        self.drop_dirty(size_bytes, u64::MAX);
    }

    fn drop_dirty(&mut self, start: u64, end: u64) {
        for (_, piece) in self.extract(start, end) {
            self.uncount(piece.epoch, piece.len());
        }
    }

    /// Drops the dirty bytes that were written through `open`, and returns their ranges.
    pub fn drop_open(&mut self, open: OpenId) -> Vec<(u64, u64)> {
        let of = |(at, p): (&u64, &Piece)| (p.origin.open == open).then_some((*at, *at + p.len()));
        let ranges: Vec<_> = self.dirty.iter().filter_map(of).collect();
        ranges.iter().for_each(|(start, end)| self.drop_dirty(*start, *end));
        ranges
    }

    /// Whether [`Extents::take`] would take any bytes.
    pub fn has_work(&self, rules: Rules) -> bool {
        self.next_start(rules).is_some()
    }

    /// Like [`Extents::take`], from the first dirty byte on instead of the end of the last flight.
    /// Dirty bytes that fit into one flight are then taken completely.
    pub fn take_whole(&mut self, rules: Rules) -> Option<Flight> {
        self.cursor = 0;
        self.take(rules)
    }

    /// Takes at most a chunk of neighbouring bytes of one origin.
    pub fn take(&mut self, rules: Rules) -> Option<Flight> {
        let start = self.next_start(rules)?;
        let (_, &run_end) = self.runs.range(..=start).next_back()?;
        let until = rules.hold_from.min(self.free_until(start));
        let mut end = self.over_gaps(start, run_end, until, rules).min(until);
        if end - start > self.chunk_bytes {
            end = start + self.chunk_bytes - start % self.chunk_bytes;
        }
        let origin = self.piece_at(start)?.1.origin.clone();
        let other = self.dirty.range(start..end).find(|(_, p)| p.origin != origin).map(|(at, _)| *at);
        end = other.unwrap_or(end);
        let id = self.next_flight;
        self.next_flight += 1;
        let (mut data, mut parts, mut filled) = (Data::default(), SmallVec::new(), false);
        let mut next = start;
        for (at, piece) in self.extract(start, end) {
            if next < at {
                data.push(Bytes::from_static(&ZEROS[..(at - next) as usize]));
                filled = true;
            }
            next = at + piece.len();
            let (epoch, len) = (piece.epoch, piece.len());
            self.dirty_bytes -= len;
            self.flying_bytes += len;
            if let Some(e) = self.epochs.get_mut(&epoch) {
                e.dirty_bytes -= len;
                e.flying_bytes += len;
            }
            let bytes = piece.buf.freeze();
            data.push(bytes.clone());
            parts.push((at, epoch, bytes));
        }
        let alone = self.flights.is_empty();
        self.flights.iter_mut().for_each(|f| f.alone = false);
        self.cursor = next;
        self.flights.push(Flying { id, start, end: next, origin: origin.clone(), parts, alone });
        Some(Flight { id, start_bytes: start, data, origin, last: alone && self.dirty_bytes == 0, filled })
    }

    /// The end of a flight that begins with the run from `start` to `end`. The flight also covers
    /// further due runs after gaps that may be filled.
    fn over_gaps(&self, start: u64, mut end: u64, until: u64, rules: Rules) -> u64 {
        for (&from, &to) in self.runs.range(end..) {
            let small = end >= rules.zero_from && from - end <= GAP_BYTES;
            let due = self.dirty.get(&from).is_some_and(|piece| piece.epoch <= rules.flush_to);
            if !small || !due || from >= until || to.min(until) - start > self.chunk_bytes {
                break;
            }
            end = to;
        }
        end
    }

    fn piece_at(&self, at: u64) -> Option<(u64, &Piece)> {
        self.dirty.range(..=at).next_back().map(|(s, p)| (*s, p)).filter(|(s, p)| at < s + p.len())
    }

    /// The start of the first flight after `at`.
    fn free_until(&self, at: u64) -> u64 {
        self.flights.iter().map(|f| f.start).filter(|s| *s > at).min().unwrap_or(u64::MAX)
    }

    /// The first offset from `at` on that no flight covers.
    fn free_from(&self, mut at: u64) -> u64 {
        while let Some(f) = self.flights.iter().find(|f| f.start <= at && at < f.end) {
            at = f.end;
        }
        at
    }

    fn next_start(&self, rules: Rules) -> Option<u64> {
        self.flush_start(rules).or_else(|| self.whole_start(rules))
    }

    /// The start of a whole chunk that may be taken.
    fn whole_start(&self, rules: Rules) -> Option<u64> {
        for start in &self.whole {
            let end = self.runs.get(start).map_or(*start, |end| (*end).min(rules.hold_from));
            let mut at = self.free_from(*start);
            while at < end {
                let until = end.min(self.free_until(at));
                if until - at >= self.chunk_bytes {
                    return Some(at);
                }
                at = self.free_from(until);
            }
        }
        None
    }

    /// The start of bytes to be flushed. The search begins at the end of the last flight, and then
    /// at the first byte.
    fn flush_start(&self, rules: Rules) -> Option<u64> {
        if !self.epochs.range(..=rules.flush_to).any(|(_, e)| e.dirty_bytes > 0) {
            return None;
        }
        let around = self.piece_at(self.cursor).map(|(s, _)| s).unwrap_or(self.cursor);
        let pieces = self.dirty.range(around..).chain(self.dirty.range(..around));
        for (&start, piece) in pieces.filter(|(_, p)| p.epoch <= rules.flush_to) {
            let at = self.free_from(start);
            if at < (start + piece.len()).min(rules.hold_from) {
                return Some(at);
            }
        }
        None
    }

    /// Ends a flight. Its first `sent_bytes` are at the server or given up. The others are dirty
    /// again, unless newer bytes replace them. Returns true when no other flight was in the air
    /// meanwhile.
    pub fn landed(&mut self, id: u64, sent_bytes: u64) -> bool {
        let Some(i) = self.flights.iter().position(|f| f.id == id) else { return false };
        let flight = self.flights.swap_remove(i);
        let sent_to = flight.start.saturating_add(sent_bytes);
        for (at, epoch, mut bytes) in flight.parts {
            let len = bytes.len() as u64;
            self.flying_bytes -= len;
            if let Some(e) = self.epochs.get_mut(&epoch) {
                e.flying_bytes -= len;
            }
            let gone = sent_to.saturating_sub(at).min(len);
            if gone < len {
                self.put_under(at + gone, bytes.split_off(gone as usize), &flight.origin, epoch);
            }
            self.end_epoch(epoch);
        }
        flight.alone
    }

    fn put_under(&mut self, start: u64, bytes: Bytes, origin: &Origin, epoch: u64) {
        let end = start + bytes.len() as u64;
        let mut at = start;
        for (from, to) in self.covered(start, end).into_iter().chain([(end, end)]) {
            if at < from {
                let buf = Buf::Shared(bytes.slice((at - start) as usize..(from - start) as usize));
                self.put(at, buf, origin.clone(), epoch);
            }
            self.age(from, to, epoch);
            at = at.max(to);
        }
    }

    /// Assigns dirty bytes to `epoch`, because they replace unsent bytes of that epoch.
    fn age(&mut self, start: u64, end: u64, epoch: u64) {
        if start >= end {
            return;
        }
        self.split(start);
        self.split(end);
        let mut moved: SmallVec<[(u64, u64); 4]> = SmallVec::new();
        for (_, piece) in self.dirty.range_mut(start..end).filter(|(_, piece)| piece.epoch > epoch) {
            moved.push((piece.epoch, piece.len()));
            piece.epoch = epoch;
        }
        for (from, len) in moved {
            self.uncount(from, len);
            self.count(epoch, len);
        }
    }

    /// The dirty ranges within a range, in order.
    fn covered(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.runs.range(..start).next_back().filter(|(_, e)| **e > start);
        let runs = before.into_iter().chain(self.runs.range(start..end));
        runs.map(|(s, e)| (start.max(*s), end.min(*e))).collect()
    }

    /// The newest local bytes within a range: pieces in order, with their offsets.
    pub fn overlay(&self, start: u64, end: u64) -> Vec<(u64, Bytes)> {
        let first = self.piece_at(start).map_or(start, |(s, _)| s);
        let clip = |at: u64, len: u64| (start.max(at), end.min(at + len));
        let mut out = Vec::new();
        for (&at, piece) in self.dirty.range(first..end) {
            let (from, to) = clip(at, piece.len());
            out.push((from, piece.buf.slice((from - at) as usize, (to - at) as usize)));
        }
        let flying: Vec<_> = self.flights.iter().filter(|f| f.start < end && start < f.end).collect();
        if flying.is_empty() {
            return out;
        }
        let covered = self.covered(start, end);
        let mut gap = start;
        for (from, to) in covered.into_iter().chain([(end, end)]) {
            for (at, _, bytes) in flying.iter().flat_map(|f| &f.parts) {
                let (a, b) = (gap.max(*at), from.min(at + bytes.len() as u64));
                if a < b {
                    out.push((a, bytes.slice((a - at) as usize..(b - at) as usize)));
                }
            }
            gap = gap.max(to);
        }
        out.sort_unstable_by_key(|(at, _)| *at);
        out
    }

    /// Checks the invariants.
    #[cfg(test)]
    pub fn check(&self) {
        let mut epochs: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let (mut at, mut runs) = (0, Vec::<(u64, u64)>::new());
        for (&start, piece) in &self.dirty {
            assert!(start >= at && piece.len() > 0);
            at = start + piece.len();
            match runs.last_mut() {
                Some(run) if run.1 == start => run.1 = at,
                _ => runs.push((start, at)),
            }
            epochs.entry(piece.epoch).or_default().0 += piece.len();
        }
        assert_eq!(runs, self.runs.iter().map(|(s, e)| (*s, *e)).collect::<Vec<_>>());
        let whole: Vec<_> = runs.iter().filter(|(s, e)| e - s >= self.chunk_bytes).map(|r| r.0).collect();
        assert_eq!(whole, self.whole.iter().copied().collect::<Vec<_>>());
        for (i, f) in self.flights.iter().enumerate() {
            assert!(self.flights[..i].iter().all(|g| g.end <= f.start || f.end <= g.start));
            f.parts.iter().for_each(|(_, e, b)| epochs.entry(*e).or_default().1 += b.len() as u64);
        }
        let counted: Vec<_> =
            self.epochs.iter().map(|(k, e)| (*k, (e.dirty_bytes, e.flying_bytes))).collect();
        assert_eq!(counted, epochs.clone().into_iter().collect::<Vec<_>>());
        assert_eq!(self.dirty_bytes, epochs.values().map(|e| e.0).sum::<u64>());
        assert_eq!(self.flying_bytes, epochs.values().map(|e| e.1).sum::<u64>());
    }
}

#[cfg(test)]
mod tests;
