//! What is in a journal of delayed writes: records, and their bytes.
//!
//! It knows nothing of files and of when something is written. A record has a head (magic, number,
//! how far the journal was durable when it was made, length, kind, checksum) and a payload, padded
//! to eight bytes. The checksum is keyed with a number of its segment that nobody outside knows:
//! bytes of a program that look like a record are none.

use hither_vfs::{Attrs, Cred, Data, Fh, Time};
use std::hash::Hasher;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// What a record starts with.
pub const MAGIC: u64 = 0x6c77_7265_6874_6968;
/// Length of a record's head.
pub const HEAD_BYTES: usize = 40;
/// Records begin at multiples of this.
pub const ALIGN_BYTES: usize = 8;
/// Longest path that is kept, in bytes.
pub const PATH_MAX_BYTES: usize = 4096;
/// Most groups of a writer that are kept.
const GROUPS_MAX: usize = 1024;
/// What a segment starts with.
const SEGMENT_MAGIC: &[u8; 8] = b"hitherwl";
/// Version of segments and records.
pub const VERSION: u32 = 3;
/// The first version, which is read as well: it only lacks the kinds of records that came later.
const VERSION_FIRST: u32 = 1;
/// Length of a segment's head.
pub const SEGMENT_HEAD_BYTES: usize = 40;

/// A state that a file had at the server, as a reply told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Base {
    /// Its change attribute.
    pub change: u64,
    /// Its length.
    pub size_bytes: u64,
    /// Its modification time.
    pub mtime: Time,
}

impl Base {
    /// The state that these attributes tell.
    pub fn of(attrs: &Attrs) -> Self {
        let a = &attrs.attr;
        Self { change: a.change, size_bytes: a.size_bytes, mtime: a.mtime }
    }
}

/// Whose bytes these are and what was known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Number of the file at the server, for humans.
    pub fileid: u64,
    /// Last known path below the mount, for humans; may be empty.
    pub path: Vec<u8>,
    /// Who wrote.
    pub cred: Arc<Cred>,
    /// Where.
    pub offset_bytes: u64,
    /// The file as the server told last.
    pub base: Option<Base>,
    /// When, by the clock on the wall, in seconds since 1970.
    pub wall_s: i64,
}

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A program wrote; the bytes follow.
    Data(Write),
    /// Bytes of a range, of records up to a number, are about to be sent.
    Sent {
        /// First byte.
        start_bytes: u64,
        /// One past the last.
        end_bytes: u64,
        /// Last record that may be in it.
        upto: u64,
    },
    /// The same arrived; the file afterwards, when the reply told.
    Landed {
        /// First byte.
        start_bytes: u64,
        /// One past the last.
        end_bytes: u64,
        /// Last record that may be in it.
        upto: u64,
        /// The file then.
        base: Option<Base>,
    },
    /// The server told a state of the file.
    State(Base),
    /// Everything up to that record is on the server's stable storage, or given up with the
    /// program's knowledge.
    Retire(u64),
    /// What was written before this to a range no longer counts: the file was cut, or something
    /// else is there.
    Void {
        /// First byte.
        start_bytes: u64,
        /// One past the last.
        end_bytes: u64,
    },
    /// This client is about to change names or attributes of the file: its change attribute moves,
    /// its bytes do not. Of an object that the server does not have: it is about to be created
    /// there.
    Touched,
    /// An object was made that the server does not have; its name follows.
    Made(New),
    /// It has another name now, in that directory; the name follows.
    Moved(Fh),
    /// Attributes of such an object were set, or of a directory in which such objects are: those
    /// times that are to be its own when they are at the server.
    Set(Attributes),
    /// The server has it now, under this handle.
    There(Fh),
    /// It was removed before, or those attributes are set, or it was given up with a conflict.
    Gone,
    /// A name of an object that the server has was removed here; the name follows.
    Removed(Removed),
    /// The server has removed it as well, or refuses to.
    Settled,
}

/// A name that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The directory it was in.
    pub dir: Fh,
    /// Who removed it.
    pub cred: Arc<Cred>,
    /// What it led to is a directory.
    pub is_dir: bool,
}

/// What a new object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with this target.
    Link(Vec<u8>),
}

/// A new object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct New {
    /// The directory it is in.
    pub dir: Fh,
    /// Its kind.
    pub what: What,
    /// Permission bits (07777).
    pub mode: u32,
    /// Who made it.
    pub cred: Arc<Cred>,
    /// When, by the server's clock as far as it is known.
    pub time: Time,
}

/// Attributes that were set; `None` leaves one as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Who set them.
    pub cred: Arc<Cred>,
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Length in bytes.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub atime: Option<Time>,
    /// Modification time.
    pub mtime: Option<Time>,
}

/// A record to be written.
#[derive(Debug, Clone)]
pub struct Record {
    /// The file.
    pub fh: Fh,
    /// What happened.
    pub event: Event,
    /// The bytes of [`Event::Data`], the name of [`Event::Made`], [`Event::Moved`] and
    /// [`Event::Removed`].
    pub data: Data,
}

impl Record {
    /// One without bytes.
    pub fn of(fh: &Fh, event: Event) -> Self {
        Self { fh: fh.clone(), event, data: Data::default() }
    }

    fn kind(&self) -> u32 {
        match self.event {
            Event::Data(_) => 1,
            Event::Sent { .. } => 2,
            Event::State(_) => 3,
            Event::Retire(_) => 4,
            Event::Void { .. } => 5,
            Event::Touched => 6,
            Event::Landed { .. } => 7,
            Event::Made(_) => 8,
            Event::Moved(_) => 9,
            Event::Set(_) => 10,
            Event::There(_) => 11,
            Event::Gone => 12,
            Event::Removed(_) => 13,
            Event::Settled => 14,
        }
    }

    /// The payload without the bytes.
    fn front(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        put_fh(&mut out, &self.fh);
        let mut number = |n: u64| out.extend_from_slice(&n.to_le_bytes());
        match &self.event {
            Event::Data(w) => put_write(&mut out, w),
            Event::Sent { start_bytes, end_bytes, upto } => {
                [*start_bytes, *end_bytes, *upto].into_iter().for_each(&mut number);
            }
            Event::Landed { start_bytes, end_bytes, upto, base } => {
                [*start_bytes, *end_bytes, *upto].into_iter().for_each(&mut number);
                put_some_base(&mut out, base.as_ref());
            }
            Event::State(base) => put_base(&mut out, base),
            Event::Retire(upto) => number(*upto),
            Event::Void { start_bytes, end_bytes } => {
                [*start_bytes, *end_bytes].into_iter().for_each(&mut number);
            }
            Event::Touched | Event::Gone | Event::Settled => {}
            Event::Removed(removed) => {
                put_fh(&mut out, &removed.dir);
                out.push(u8::from(removed.is_dir));
                put_cred(&mut out, &removed.cred);
            }
            Event::Made(new) => put_new(&mut out, new),
            Event::Moved(fh) | Event::There(fh) => put_fh(&mut out, fh),
            Event::Set(set) => put_attributes(&mut out, set),
        }
        out
    }

    /// Bytes that the record takes in a segment.
    pub fn room_bytes(&self) -> u64 {
        let payload = self.front().len() + self.data.len();
        (HEAD_BYTES + payload).next_multiple_of(ALIGN_BYTES) as u64
    }

    /// Head and front of the payload; the bytes follow, and then [`padding`].
    pub fn encode(&self, seq: u64, durable: u64, key: u64) -> Vec<u8> {
        let front = self.front();
        let len = front.len() + self.data.len();
        let mut out = Vec::with_capacity(HEAD_BYTES + front.len());
        for n in [MAGIC, seq, durable] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&self.kind().to_le_bytes());
        let mut sum = XxHash3_64::with_seed(key);
        sum.write(&out);
        sum.write(&front);
        self.data.parts().iter().for_each(|part| sum.write(part));
        out.extend_from_slice(&sum.finish().to_le_bytes());
        out.extend_from_slice(&front);
        out
    }
}

/// Zeros behind a payload of so many bytes.
pub fn padding(payload_bytes: usize) -> &'static [u8] {
    let end = HEAD_BYTES + payload_bytes;
    &[0; ALIGN_BYTES][..end.next_multiple_of(ALIGN_BYTES) - end]
}

fn put_base(out: &mut Vec<u8>, base: &Base) {
    for n in [base.change, base.size_bytes, base.mtime.secs as u64, u64::from(base.mtime.nanos)] {
        out.extend_from_slice(&n.to_le_bytes());
    }
}

fn put_some_base(out: &mut Vec<u8>, base: Option<&Base>) {
    match base {
        Some(base) => {
            out.push(1);
            put_base(out, base);
        }
        None => out.push(0),
    }
}

fn put_write(out: &mut Vec<u8>, w: &Write) {
    out.extend_from_slice(&w.fileid.to_le_bytes());
    out.extend_from_slice(&w.offset_bytes.to_le_bytes());
    out.extend_from_slice(&w.wall_s.to_le_bytes());
    put_some_base(out, w.base.as_ref());
    put_cred(out, &w.cred);
    let path = &w.path[..w.path.len().min(PATH_MAX_BYTES)];
    out.extend_from_slice(&(path.len() as u16).to_le_bytes());
    out.extend_from_slice(path);
}

fn put_fh(out: &mut Vec<u8>, fh: &Fh) {
    out.push(fh.0.len() as u8);
    out.extend_from_slice(&fh.0);
}

fn put_cred(out: &mut Vec<u8>, cred: &Cred) {
    out.extend_from_slice(&cred.uid.to_le_bytes());
    out.extend_from_slice(&cred.gid.to_le_bytes());
    let groups = &cred.groups[..cred.groups.len().min(GROUPS_MAX)];
    out.extend_from_slice(&(groups.len() as u16).to_le_bytes());
    groups.iter().for_each(|g| out.extend_from_slice(&g.to_le_bytes()));
}

fn put_time(out: &mut Vec<u8>, time: &Time) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

fn put_some<T>(out: &mut Vec<u8>, value: Option<&T>, put: impl FnOnce(&mut Vec<u8>, &T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

fn put_new(out: &mut Vec<u8>, new: &New) {
    put_fh(out, &new.dir);
    let (what, target) = match &new.what {
        What::File => (0, &[][..]),
        What::Directory => (1, &[][..]),
        What::Link(target) => (2, &target[..]),
    };
    out.push(what);
    out.extend_from_slice(&(target.len() as u16).to_le_bytes());
    out.extend_from_slice(target);
    out.extend_from_slice(&new.mode.to_le_bytes());
    put_cred(out, &new.cred);
    put_time(out, &new.time);
}

fn put_attributes(out: &mut Vec<u8>, set: &Attributes) {
    put_cred(out, &set.cred);
    put_some(out, set.mode.as_ref(), |out, mode| out.extend_from_slice(&mode.to_le_bytes()));
    put_some(out, set.size_bytes.as_ref(), |out, size| out.extend_from_slice(&size.to_le_bytes()));
    put_some(out, set.atime.as_ref(), put_time);
    put_some(out, set.mtime.as_ref(), put_time);
}

/// A record that was read, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// Its number.
    pub seq: u64,
    /// The journal was durable up to that record when this one was made.
    pub durable: u64,
    /// The file.
    pub fh: Fh,
    /// What happened.
    pub event: Event,
    /// Where the bytes are, from the start of the record.
    pub data: std::ops::Range<usize>,
    /// The name that a record with one has.
    pub name: Vec<u8>,
    /// Length of the whole record.
    pub room_bytes: usize,
}

/// The record at the start of `bytes`, when there is one, whole.
pub fn parse(bytes: &[u8], key: u64) -> Option<Parsed> {
    let mut head = Reader(bytes);
    if head.u64()? != MAGIC {
        return None;
    }
    let (seq, durable) = (head.u64()?, head.u64()?);
    let (len, kind) = (head.u32()? as usize, head.u32()?);
    let told = head.u64()?;
    let payload = bytes.get(HEAD_BYTES..HEAD_BYTES.checked_add(len)?)?;
    let mut sum = XxHash3_64::with_seed(key);
    sum.write(&bytes[..HEAD_BYTES - 8]);
    sum.write(payload);
    if sum.finish() != told {
        return None;
    }
    let mut r = Reader(payload);
    let fh = r.fh()?;
    let event = match kind {
        1 => Event::Data(r.write()?),
        2 => Event::Sent { start_bytes: r.u64()?, end_bytes: r.u64()?, upto: r.u64()? },
        3 => Event::State(r.base()?),
        4 => Event::Retire(r.u64()?),
        5 => Event::Void { start_bytes: r.u64()?, end_bytes: r.u64()? },
        6 => Event::Touched,
        7 => {
            Event::Landed { start_bytes: r.u64()?, end_bytes: r.u64()?, upto: r.u64()?, base: r.some_base()? }
        }
        8 => Event::Made(r.new_object()?),
        9 => Event::Moved(r.fh()?),
        10 => Event::Set(r.attributes()?),
        11 => Event::There(r.fh()?),
        12 => Event::Gone,
        13 => Event::Removed(r.removed()?),
        14 => Event::Settled,
        _ => return None,
    };
    let end = HEAD_BYTES + len;
    let data = end - r.0.len()..end;
    let named = matches!(event, Event::Made(_) | Event::Moved(_) | Event::Removed(_));
    let name = if named { r.0.to_vec() } else { Vec::new() };
    Some(Parsed { seq, durable, fh, event, data, name, room_bytes: end.next_multiple_of(ALIGN_BYTES) })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn base(&mut self) -> Option<Base> {
        let (change, size_bytes) = (self.u64()?, self.u64()?);
        let mtime = Time { secs: self.u64()? as i64, nanos: u32::try_from(self.u64()?).ok()? };
        Some(Base { change, size_bytes, mtime })
    }

    fn some_base(&mut self) -> Option<Option<Base>> {
        match self.take(1)?[0] {
            0 => Some(None),
            _ => self.base().map(Some),
        }
    }

    fn write(&mut self) -> Option<Write> {
        let (fileid, offset_bytes, wall_s) = (self.u64()?, self.u64()?, self.u64()? as i64);
        let base = self.some_base()?;
        let cred = self.cred()?;
        let len = self.u16()?;
        let path = self.take(len.into())?.to_vec();
        Some(Write { fileid, path, cred, offset_bytes, base, wall_s })
    }

    fn fh(&mut self) -> Option<Fh> {
        let len = self.take(1)?[0];
        Some(Fh(bytes::Bytes::copy_from_slice(self.take(len.into())?)))
    }

    fn cred(&mut self) -> Option<Arc<Cred>> {
        let (uid, gid) = (self.u32()?, self.u32()?);
        let groups = (0..self.u16()?).map(|_| self.u32()).collect::<Option<_>>()?;
        Some(Arc::new(Cred { uid, gid, groups }))
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time { secs: self.u64()? as i64, nanos: self.u32()? })
    }

    fn some<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.take(1)?[0] {
            0 => Some(None),
            _ => read(self).map(Some),
        }
    }

    fn removed(&mut self) -> Option<Removed> {
        let (dir, is_dir) = (self.fh()?, self.take(1)?[0] != 0);
        Some(Removed { dir, cred: self.cred()?, is_dir })
    }

    fn new_object(&mut self) -> Option<New> {
        let (dir, what, len) = (self.fh()?, self.take(1)?[0], self.u16()?);
        let target = self.take(len.into())?.to_vec();
        let what = match what {
            0 => What::File,
            1 => What::Directory,
            2 => What::Link(target),
            _ => return None,
        };
        Some(New { dir, what, mode: self.u32()?, cred: self.cred()?, time: self.time()? })
    }

    fn attributes(&mut self) -> Option<Attributes> {
        let cred = self.cred()?;
        let (mode, size_bytes) = (self.some(Self::u32)?, self.some(Self::u64)?);
        let (atime, mtime) = (self.some(Self::time)?, self.some(Self::time)?);
        Some(Attributes { cred, mode, size_bytes, atime, mtime })
    }
}

/// The head of a segment.
pub fn segment_head(number: u64, key: u64) -> Vec<u8> {
    let mut out = SEGMENT_MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(&XxHash3_64::oneshot(&out).to_le_bytes());
    out
}

/// What a segment's head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentHead {
    /// It is whole; the key of its checksums.
    Ours(u64),
    /// It is whole, of another version.
    Version(u32),
    /// It is not whole.
    Torn,
}

/// Reads the head of the segment with that number.
pub fn parse_segment(bytes: &[u8], number: u64) -> SegmentHead {
    let read = || {
        let head = bytes.get(..SEGMENT_HEAD_BYTES)?;
        let mut r = Reader(head.strip_prefix(SEGMENT_MAGIC)?);
        let (version, _) = (r.u32()?, r.u32()?);
        let (told_number, key, sum) = (r.u64()?, r.u64()?, r.u64()?);
        let whole = XxHash3_64::oneshot(&head[..SEGMENT_HEAD_BYTES - 8]) == sum && told_number == number;
        whole.then_some((version, key))
    };
    match read() {
        Some((VERSION_FIRST..=VERSION, key)) => SegmentHead::Ours(key),
        Some((version, _)) => SegmentHead::Version(version),
        None => SegmentHead::Torn,
    }
}
