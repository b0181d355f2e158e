//! Reads the records that a crash left in a journal of delayed writes.
//!
//! The module knows nothing of the server. Records are read in order until one is missing or torn.
//! A power cut may leave the last pages in any order. The records after such a place are ignored,
//! unless a later whole record shows that the missing one had been durable. In that case the
//! journal is damaged. All whole records of a damaged journal are returned, but they are not the
//! complete content.

use super::record::{
    ALIGN_BYTES, Attributes, Base, Event, New, Parsed, Removed, SEGMENT_HEAD_BYTES, SegmentHead, parse,
    parse_segment,
};
use hither_vfs::{Cred, Fh, Name, Time};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of one write that the server may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Number of their record.
    pub seq: u64,
    /// First byte in the file.
    pub start_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// The segment that holds the bytes.
    pub segment: u64,
    /// The offset of the bytes in the segment.
    pub at: u64,
    /// The credentials of the writer.
    pub cred: Arc<Cred>,
    /// Length of the file in the last earlier report of the server, or after a later truncation.
    pub base_size: Option<u64>,
}

/// Bytes that were sent and are not known to be on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// First byte.
    pub start_bytes: u64,
    /// One past the last byte. `u64::MAX` for a truncation.
    pub end_bytes: u64,
    /// The last record that may be in the range.
    pub upto: u64,
}

/// Bytes that arrived and are not known to be on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// First byte.
    pub start_bytes: u64,
    /// One past the last byte.
    pub end_bytes: u64,
    /// The last record that may be in the range.
    pub upto: u64,
    /// The record of the server's answer.
    pub seq: u64,
}

/// A file with bytes that the server may not have.
#[derive(Debug, Clone, Default)]
pub struct FileLeft {
    /// Number of the file at the server.
    pub fileid: u64,
    /// Last known path. May be empty.
    pub path: Vec<u8>,
    /// The pieces in the order of writing.
    pub pieces: VecDeque<Piece>,
    /// Sent ranges in the order of sending.
    pub sent: Vec<Sent>,
    /// States that the server reported since the first piece was written, each with the number of
    /// its record.
    pub states: HashMap<Base, u64>,
    /// Ranges that arrived at the server, in the order of the replies.
    pub landed: Vec<Landed>,
    /// This client changed names or attributes of the file.
    pub touched: bool,
    /// The times of the first and the last write, in seconds since 1970.
    pub wall_s: (i64, i64),
    /// The modification time of the last piece, if a program saw it, and the owner of the file.
    pub seen: Option<(Arc<Cred>, Time)>,
}

/// An object that the server does not have, or has only in part.
#[derive(Debug, Clone)]
pub struct MadeLeft {
    /// Number and segment of the record of creation.
    pub place: (u64, u64),
    /// The object as created, in its present directory.
    pub new: New,
    /// The present name.
    pub name: Name,
    /// Number of the record that gave the object this name.
    pub named: u64,
    /// Length of a file in bytes.
    pub size_bytes: u64,
    /// Access and modification time that were set.
    pub times: (Option<Time>, Option<Time>),
    /// The time of the last write.
    pub written: Time,
    /// The object may be at the server.
    pub sent: bool,
}

/// Times of a directory. They are set after its pending objects were created.
#[derive(Debug, Clone)]
pub struct SetLeft {
    /// Number and segment of the record.
    pub place: (u64, u64),
    /// The times.
    pub set: Attributes,
}

/// A name that was removed locally and that the server may still have.
#[derive(Debug, Clone)]
pub struct RemovedLeft {
    /// Number and segment of the record.
    pub place: (u64, u64),
    /// The directory, the credentials and the kind.
    pub removed: Removed,
    /// The name.
    pub name: Name,
}

/// The content of a journal after a crash.
#[derive(Debug, Default)]
pub struct Left {
    /// Files by filehandle.
    pub files: HashMap<Fh, FileLeft>,
    /// Objects that the server may not have, by their local handle.
    pub made: HashMap<Fh, MadeLeft>,
    /// Objects that were created at the server: from the local handle to the server's.
    pub there: HashMap<Fh, Fh>,
    /// Times of directories, by their local handle.
    pub set: HashMap<Fh, SetLeft>,
    /// Names to be removed, by the handle of the object.
    pub removed: HashMap<Fh, RemovedLeft>,
    /// The damage, if the journal is damaged.
    pub damage: Option<String>,
    /// Torn bytes at the end.
    pub torn_bytes: u64,
    /// The age of the last write to the journal, when the journal was not closed.
    pub written_ago: Option<Duration>,
    /// The last valid record.
    pub last_seq: u64,
    /// Segments in order, each with the length of its valid part in bytes. 0: not even the
    /// head is valid.
    pub segments: Vec<(u64, u64)>,
}

/// Reads the segments with these numbers, in order.
///
/// # Errors
/// Errors of `read`, and `Unsupported` for a segment of another version.
pub fn scan(numbers: &[u64], read: impl Fn(u64) -> io::Result<Vec<u8>>) -> io::Result<Left> {
    // Segments are removed from the oldest on. Segments before a gap in the numbers remain from an
    // interrupted removal.
    let first = (1..numbers.len()).rev().find(|i| numbers[i - 1] + 1 != numbers[*i]).unwrap_or(0);
    let mut reading = Reading::default();
    for &number in &numbers[first..] {
        reading.segment(number, &read(number)?)?;
    }
    let mut left = Left::default();
    let counts = match reading.gap {
        Some(gap) => {
            left.damage = reading.damage(gap);
            if left.damage.is_some() { reading.events.len() } else { gap.events }
        }
        None => reading.events.len(),
    };
    for &number in &numbers[..first] {
        left.segments.push((number, 0));
    }
    let cut = reading.gap.filter(|_| left.damage.is_none()).map(|gap| gap.segment);
    // Segments after a gap have no valid part.
    let keep =
        |(number, whole)| if cut.is_some_and(|cut| number > cut) { (number, 0) } else { (number, whole) };
    left.segments.extend(reading.whole.drain(..).map(keep));
    left.torn_bytes = reading.torn_bytes;
    for (segment, at, parsed) in reading.events.drain(..).take(counts) {
        left.last_seq = parsed.seq;
        left.apply(segment, at, parsed);
    }
    left.replaced();
    // Only pending objects and times need the translation of handles.
    if left.made.is_empty() && left.set.is_empty() {
        left.there.clear();
    }
    left.files.retain(|_, file| !file.pieces.is_empty());
    Ok(left)
}

/// The first missing record.
#[derive(Debug, Clone, Copy)]
struct Gap {
    segment: u64,
    at: u64,
    /// Number of the missing record.
    seq: u64,
    /// Events before the gap.
    events: usize,
}

#[derive(Debug, Default)]
struct Reading {
    events: Vec<(u64, u64, Parsed)>,
    gap: Option<Gap>,
    whole: Vec<(u64, u64)>,
    torn_bytes: u64,
}

impl Reading {
    fn next_seq(&self) -> Option<u64> {
        self.events.last().map(|(_, _, p)| p.seq + 1)
    }

    fn missing(&mut self, segment: u64, at: u64) {
        if self.gap.is_none() {
            let seq = self.next_seq().unwrap_or(0);
            self.gap = Some(Gap { segment, at, seq, events: self.events.len() });
        }
    }

    fn segment(&mut self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let key = match parse_segment(bytes, number) {
            SegmentHead::Ours(key) => key,
            SegmentHead::Version(version) => {
                let why =
                    format!("segment {number} is of version {version}, which this hither does not read");
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            SegmentHead::Torn => {
                self.torn_bytes += bytes.len() as u64;
                self.missing(number, 0);
                self.whole.push((number, 0));
                return Ok(());
            }
        };
        let (mut at, mut whole) = (SEGMENT_HEAD_BYTES, None);
        while at < bytes.len() {
            let parsed = parse(&bytes[at..], key);
            let expected = |p: &Parsed| self.next_seq().is_none_or(|next| p.seq == next);
            match parsed {
                Some(parsed) if expected(&parsed) || (self.gap.is_some() && self.follows(&parsed)) => {
                    let room = parsed.room_bytes;
                    self.events.push((number, at as u64, parsed));
                    at += room;
                }
                Some(_) if self.gap.is_none() => {
                    // The record is whole, but not the next one. The next iteration reads it as a
                    // record after a gap.
                    self.missing(number, at as u64);
                    whole.get_or_insert(at as u64);
                }
                _ => {
                    self.missing(number, at as u64);
                    whole.get_or_insert(at as u64);
                    self.torn_bytes += ALIGN_BYTES.min(bytes.len() - at) as u64;
                    at += ALIGN_BYTES;
                }
            }
        }
        // `at` lies beyond the end when the padding of the last record is missing.
        self.whole.push((number, whole.unwrap_or(at as u64)));
        Ok(())
    }

    /// Whether a record is later than all earlier ones.
    fn follows(&self, parsed: &Parsed) -> bool {
        self.next_seq().is_none_or(|next| parsed.seq >= next)
    }

    /// Describes the damage, if the record missing at a gap had been durable.
    fn damage(&self, gap: Gap) -> Option<String> {
        let durable = self.events[gap.events..].iter().map(|(_, _, p)| p.durable).max()?;
        let mut seqs = self.events[gap.events..].iter().map(|(_, _, p)| p.seq);
        // Without earlier events, all records before the first whole one are missing.
        let missing = if gap.events == 0 { seqs.next()?.saturating_sub(1) } else { gap.seq };
        let Gap { segment, at, .. } = gap;
        (durable >= missing && missing > 0)
            .then(|| format!("record {missing} is damaged (segment {segment:016x}, at byte {at})"))
    }
}

impl Left {
    /// A change of a directory's entries: a modification time that was set before no longer
    /// applies.
    fn changed_in(&mut self, dir: &Fh) {
        if let Some(dir) = self.made.get_mut(dir) {
            dir.times.1 = None;
        }
    }

    /// Drops objects that another object replaced by a rename, when the crash lost the record of
    /// their end.
    fn replaced(&mut self) {
        let mut last: HashMap<(&Fh, &Name), u64> = HashMap::new();
        for made in self.made.values() {
            let named = last.entry((&made.new.dir, &made.name)).or_default();
            *named = made.named.max(*named);
        }
        let is_over = |made: &MadeLeft| !made.sent && last[&(&made.new.dir, &made.name)] > made.named;
        let over: Vec<Fh> =
            self.made.iter().filter(|(_, made)| is_over(made)).map(|(fh, _)| fh.clone()).collect();
        for fh in over {
            self.made.remove(&fh);
            self.files.remove(&fh);
        }
    }

    /// Applies an event of a pending object or a removed name. Returns the record when the event
    /// concerns something else.
    fn apply_made(&mut self, segment: u64, parsed: Parsed) -> Option<Parsed> {
        let place = (parsed.seq, segment);
        let name = || Name::new(parsed.name.clone()).ok();
        match &parsed.event {
            Event::Made(new) => {
                let made = MadeLeft::of(place, new.clone(), name()?);
                self.changed_in(&new.dir);
                self.made.insert(parsed.fh, made);
                None
            }
            Event::Moved(dir) => {
                if let (Some(made), Some(name)) = (self.made.get_mut(&parsed.fh), name()) {
                    let from = std::mem::replace(&mut made.new.dir, dir.clone());
                    (made.name, made.named) = (name, parsed.seq);
                    self.changed_in(&from);
                    self.changed_in(dir);
                }
                None
            }
            Event::Set(set) => {
                match self.made.get_mut(&parsed.fh) {
                    Some(made) => made.set(set),
                    None => drop(self.set.insert(parsed.fh, SetLeft { place, set: set.clone() })),
                }
                None
            }
            Event::There(real) => {
                self.made.remove(&parsed.fh);
                self.files.remove(&parsed.fh);
                self.set.remove(&parsed.fh);
                self.there.insert(parsed.fh, real.clone());
                None
            }
            Event::Gone => {
                // The record of creation may have left the journal before the records of the bytes.
                if let Some(made) = self.made.remove(&parsed.fh) {
                    self.changed_in(&made.new.dir);
                }
                self.files.remove(&parsed.fh);
                self.set.remove(&parsed.fh);
                None
            }
            Event::Removed(removed) => {
                let (removed, name) = (removed.clone(), name()?);
                self.removed.insert(parsed.fh, RemovedLeft { place, removed, name });
                None
            }
            Event::Settled => {
                self.removed.remove(&parsed.fh);
                None
            }
            Event::Touched if self.made.contains_key(&parsed.fh) => {
                self.made.entry(parsed.fh).and_modify(|made| made.sent = true);
                None
            }
            Event::Data(w) => {
                if let Some(made) = self.made.get_mut(&parsed.fh) {
                    made.wrote(w.offset_bytes + parsed.data.len() as u64, w.wall_s);
                }
                Some(parsed)
            }
            Event::Seen(_, mtime) if self.made.contains_key(&parsed.fh) => {
                let mtime = *mtime;
                self.made.entry(parsed.fh).and_modify(|made| made.written = mtime);
                None
            }
            _ => Some(parsed),
        }
    }

    fn apply(&mut self, segment: u64, at: u64, parsed: Parsed) {
        let Some(parsed) = self.apply_made(segment, parsed) else { return };
        let file = self.files.entry(parsed.fh).or_default();
        match parsed.event {
            Event::Data(w) => {
                if file.pieces.is_empty() {
                    *file = FileLeft { wall_s: (w.wall_s, w.wall_s), ..FileLeft::default() };
                }
                file.wall_s.1 = w.wall_s;
                file.seen = None;
                file.fileid = w.fileid;
                if !w.path.is_empty() {
                    file.path = w.path;
                }
                file.states.extend(w.base.map(|base| (base, parsed.seq)));
                file.pieces.push_back(Piece {
                    seq: parsed.seq,
                    start_bytes: w.offset_bytes,
                    len_bytes: parsed.data.len() as u64,
                    segment,
                    at: at + parsed.data.start as u64,
                    cred: w.cred,
                    base_size: w.base.map(|b| b.size_bytes),
                });
            }
            Event::Sent { start_bytes, end_bytes, upto } => {
                file.sent.push(Sent { start_bytes, end_bytes, upto });
            }
            Event::State(base) => {
                file.states.insert(base, parsed.seq);
            }
            Event::Landed { start_bytes, end_bytes, upto, base } => {
                file.landed.push(Landed { start_bytes, end_bytes, upto, seq: parsed.seq });
                file.states.extend(base.map(|base| (base, parsed.seq)));
            }
            Event::Retire(upto) => {
                while file.pieces.front().is_some_and(|p| p.seq <= upto) {
                    file.pieces.pop_front();
                }
                file.sent.retain(|s| s.upto > upto);
                file.landed.retain(|l| l.upto > upto);
                if file.pieces.is_empty() {
                    *file = FileLeft::default();
                }
            }
            Event::Void { start_bytes, end_bytes } => {
                // An answered truncation does not explain a later state of the file.
                file.sent.retain(|s| {
                    (s.start_bytes, s.end_bytes) != (start_bytes, end_bytes) || end_bytes != u64::MAX
                });
                file.void((start_bytes, end_bytes), u64::MAX);
                if end_bytes == u64::MAX {
                    file.was_cut(start_bytes);
                }
                file.seen = None;
            }
            Event::Touched => file.touched = true,
            Event::Seen(owner, mtime) => file.seen = Some((owner, mtime)),
            Event::Made(_)
            | Event::Moved(_)
            | Event::Set(_)
            | Event::There(_)
            | Event::Gone
            | Event::Removed(_)
            | Event::Settled => {}
        }
    }
}

impl Left {
    /// Whether a call was sent and its answer is not known.
    pub fn is_on_its_way(&self) -> bool {
        if !self.removed.is_empty() {
            // A delayed REMOVE would remove the object that has the name at that time.
            return true;
        }
        self.files.values().any(|f| !f.unheard().is_empty()) || self.made.values().any(|made| made.sent)
    }

    /// Whether the server has all changes.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.made.is_empty() && self.set.is_empty() && self.removed.is_empty()
    }

    /// The number of live records in each segment.
    pub fn live(&self) -> HashMap<u64, u64> {
        let mut records: HashSet<(u64, u64)> = HashSet::new();
        records.extend(self.files.values().flat_map(|f| &f.pieces).map(|p| (p.segment, p.seq)));
        let made = self.made.values().map(|m| m.place).chain(self.set.values().map(|s| s.place));
        let removed = self.removed.values().map(|r| r.place);
        records.extend(made.chain(removed).map(|(seq, segment)| (segment, seq)));
        let mut live = HashMap::new();
        records.into_iter().for_each(|(segment, _)| *live.entry(segment).or_default() += 1);
        live
    }
}

impl MadeLeft {
    /// An object after the record of its creation.
    fn of(place: (u64, u64), new: New, name: Name) -> Self {
        Self {
            place,
            name,
            named: place.0,
            size_bytes: 0,
            times: (None, None),
            written: new.time,
            sent: false,
            new,
        }
    }

    /// A program set attributes.
    fn set(&mut self, set: &Attributes) {
        self.new.mode = set.mode.unwrap_or(self.new.mode);
        self.times.0 = set.atime.or(self.times.0);
        match set.size_bytes {
            // A truncation is a change of the bytes, at the recorded time.
            Some(size) => {
                self.size_bytes = size;
                (self.times.1, self.written) = (None, set.mtime.unwrap_or(self.written));
            }
            None => self.times.1 = set.mtime.or(self.times.1),
        }
    }

    /// A program wrote bytes up to `end_bytes`, at `wall_s` seconds since 1970.
    fn wrote(&mut self, end_bytes: u64, wall_s: i64) {
        self.size_bytes = self.size_bytes.max(end_bytes);
        self.written = Time { secs: wall_s, nanos: 0 };
        self.times.1 = None;
    }
}

impl FileLeft {
    /// Removes the bytes of a range, up to record `upto`.
    fn void(&mut self, (start, end): (u64, u64), upto: u64) {
        let mut kept = VecDeque::with_capacity(self.pieces.len() + 1);
        for piece in self.pieces.drain(..) {
            if piece.seq > upto {
                kept.push_back(piece);
                continue;
            }
            let piece_end = piece.start_bytes + piece.len_bytes;
            for (from, to) in
                [(piece.start_bytes, piece_end.min(start)), (piece.start_bytes.max(end), piece_end)]
            {
                if from < to {
                    let at = piece.at + (from - piece.start_bytes);
                    kept.push_back(Piece { start_bytes: from, len_bytes: to - from, at, ..piece.clone() });
                }
            }
        }
        self.pieces = kept;
    }

    /// The server truncated the file. Earlier WRITEs and reported states explain nothing beyond its
    /// new end. The remaining bytes were written to a file of at most this size.
    fn was_cut(&mut self, size_bytes: u64) {
        for landed in &mut self.landed {
            // An empty range still answers its WRITE.
            landed.end_bytes = landed.end_bytes.min(size_bytes.max(landed.start_bytes));
        }
        self.states.retain(|state, _| state.size_bytes <= size_bytes);
        for piece in &mut self.pieces {
            piece.base_size = piece.base_size.map(|base| base.min(size_bytes));
        }
    }

    /// The file after a truncation that the server has executed and whose answer is unknown.
    pub fn after_cut(&self, cut: &Sent) -> Self {
        let mut file = Self { seen: None, ..self.clone() };
        file.void((cut.start_bytes, u64::MAX), cut.upto);
        file
    }

    /// The sent ranges without a known answer.
    pub fn unheard(&self) -> Vec<Sent> {
        // Of a range sent twice and answered once, one WRITE may still be in flight.
        let mut heard: HashMap<(u64, u64), usize> = HashMap::new();
        for landed in &self.landed {
            *heard.entry((landed.start_bytes, landed.upto)).or_default() += 1;
        }
        let is_unheard = |sent: &&Sent| match heard.get_mut(&(sent.start_bytes, sent.upto)) {
            Some(n) if *n > 0 => {
                *n -= 1;
                false
            }
            _ => true,
        };
        self.sent.iter().filter(is_unheard).copied().collect()
    }

    /// The newest version of each byte: start, end and piece, in ascending order, without overlap.
    pub fn image(&self) -> Vec<(u64, u64, &Piece)> {
        let mut map: BTreeMap<u64, (u64, &Piece)> = BTreeMap::new();
        for piece in &self.pieces {
            let (start, end) = (piece.start_bytes, piece.start_bytes + piece.len_bytes);
            let over: Vec<_> =
                map.range(..end).rev().take_while(|(_, (e, _))| *e > start).map(|(s, v)| (*s, *v)).collect();
            for (s, (e, old)) in over {
                map.remove(&s);
                if s < start {
                    map.insert(s, (start, old));
                }
                if e > end {
                    map.insert(end, (e, old));
                }
            }
            map.insert(start, (end, piece));
        }
        map.into_iter().map(|(s, (e, p))| (s, e, p)).collect()
    }
}
