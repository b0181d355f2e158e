//! The format of a journal of delayed writes: segments, records and their bytes.
//!
//! The module knows nothing of files and of the time of a write. A record has a head and a payload,
//! padded to eight bytes. The head has the magic, the number, the last durable record at that time,
//! the length, the kind and the checksum. The checksum is keyed with a random number of the
//! segment. Bytes of a program that imitate a record therefore fail the check.

use hither_vfs::{Attrs, Cred, Data, Fh, Time};
use std::hash::Hasher;
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// The first bytes of a record.
pub const MAGIC: u64 = 0x6c77_7265_6874_6968;
/// Length of a record's head.
pub const HEAD_BYTES: usize = 40;
/// Records begin at multiples of this.
pub const ALIGN_BYTES: usize = 8;
/// The longest path that is kept, in bytes.
pub const PATH_MAX_BYTES: usize = 4096;
/// The most groups of a writer that are kept.
const GROUPS_MAX: usize = 1024;
/// The first bytes of a segment.
const SEGMENT_MAGIC: &[u8; 8] = b"hitherwl";
/// Version of segments and records.
pub const VERSION: u32 = 4;
/// The oldest version that is read. It only lacks the later kinds of records.
const VERSION_FIRST: u32 = 1;
/// Length of a segment's head.
pub const SEGMENT_HEAD_BYTES: usize = 40;

/// A state of a file, as a reply of the server reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Base {
    /// The change attribute.
    pub change: u64,
    /// The length of the file.
    pub size_bytes: u64,
    /// The modification time.
    pub mtime: Time,
}

impl Base {
    /// The state in these attributes.
    pub fn of(attrs: &Attrs) -> Self {
        let a = &attrs.attr;
        Self { change: a.change, size_bytes: a.size_bytes, mtime: a.mtime }
    }
}

/// The description of a journaled write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Number of the file at the server, for humans.
    pub fileid: u64,
    /// Last known path below the mount, for humans. May be empty.
    pub path: Vec<u8>,
    /// The credentials of the writer.
    pub cred: Arc<Cred>,
    /// The offset in the file.
    pub offset_bytes: u64,
    /// The last state that the server reported.
    pub base: Option<Base>,
    /// The wall clock time of the write, in seconds since 1970.
    pub wall_s: i64,
}

/// An event in the life of a file or name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A program wrote. The bytes follow.
    Data(Write),
    /// A range is about to be sent, with bytes of records up to `upto`.
    Sent {
        /// First byte.
        start_bytes: u64,
        /// One past the last byte. `u64::MAX` for a truncation.
        end_bytes: u64,
        /// The last record that may be in the range.
        upto: u64,
    },
    /// The server answered the WRITE of such a range.
    Landed {
        /// First byte.
        start_bytes: u64,
        /// One past the last byte.
        end_bytes: u64,
        /// The last record that may be in the range.
        upto: u64,
        /// The state of the file after the WRITE, when the reply had one.
        base: Option<Base>,
    },
    /// The server reported a state of the file.
    State(Base),
    /// All bytes up to that record are on the server's stable storage, or were given up with an
    /// error to the program.
    Retire(u64),
    /// Earlier writes to a range no longer count, because the file was truncated or the range was
    /// replaced.
    Void {
        /// First byte.
        start_bytes: u64,
        /// One past the last byte.
        end_bytes: u64,
    },
    /// This client is about to change names or attributes of the file. The change attribute
    /// changes, the bytes do not. For a pending object: the object is about to be created at the
    /// server.
    Touched,
    /// A pending object was created. Its name follows.
    Made(New),
    /// The pending object has a new name in that directory. The name follows.
    Moved(Fh),
    /// Attributes of a pending object were set, or times of a directory with pending objects. The
    /// directory gets these times after its pending objects were created at the server.
    Set(Attributes),
    /// The pending object was created at the server and has this filehandle.
    There(Fh),
    /// The pending object was removed before its creation, or was given up with a conflict, or the
    /// times of the directory were set.
    Gone,
    /// A name of an object at the server was removed locally. The name follows.
    Removed(Removed),
    /// The server has removed the name, or refuses to.
    Settled,
    /// Programs saw, or may have seen, this modification time of the last write. The credentials
    /// are those of the owner: only the owner has the right to set it.
    Seen(Arc<Cred>, Time),
}

/// A removed name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The directory of the name.
    pub dir: Fh,
    /// The credentials of the remover.
    pub cred: Arc<Cred>,
    /// The name led to a directory.
    pub is_dir: bool,
}

/// The kind of a new object.
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
    /// The directory of the object.
    pub dir: Fh,
    /// The kind.
    pub what: What,
    /// Permission bits (07777).
    pub mode: u32,
    /// The credentials of the creator.
    pub cred: Arc<Cred>,
    /// The time of creation, by the server's clock as far as it is known.
    pub time: Time,
}

/// Attributes that were set. `None` leaves an attribute unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// The credentials of the caller that set them.
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
    /// The event.
    pub event: Event,
    /// The bytes of [`Event::Data`], or the name of [`Event::Made`], [`Event::Moved`] and
    /// [`Event::Removed`].
    pub data: Data,
}

impl Record {
    /// A record without bytes.
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
            Event::Seen(..) => 15,
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
            Event::Seen(cred, mtime) => {
                put_cred(&mut out, cred);
                put_time(&mut out, mtime);
            }
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

    /// The space of the record in a segment, in bytes.
    pub fn room_bytes(&self) -> u64 {
        let payload = self.front().len() + self.data.len();
        (HEAD_BYTES + payload).next_multiple_of(ALIGN_BYTES) as u64
    }

    /// Head and front of the payload. The bytes and the [`padding`] come after these.
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

/// The zeros after a payload of this length.
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

/// A parsed record, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    /// The number of the record.
    pub seq: u64,
    /// The last durable record at the time when this record was made.
    pub durable: u64,
    /// The file.
    pub fh: Fh,
    /// The event.
    pub event: Event,
    /// The range of the bytes, relative to the start of the record.
    pub data: std::ops::Range<usize>,
    /// The name, for events with a name. Empty otherwise.
    pub name: Vec<u8>,
    /// Length of the whole record.
    pub room_bytes: usize,
}

/// Parses the record at the start of `bytes`. `None` when no whole record is there.
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
        15 => Event::Seen(r.cred()?, r.time()?),
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

/// The result of parsing a segment's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentHead {
    /// The head is whole. The value is the key of the checksums.
    Ours(u64),
    /// The head is whole and has a version that is not read.
    Version(u32),
    /// The head is torn.
    Torn,
}

/// Parses the head of the segment with that number.
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
