//! Bodies of replies.

use hither_vfs::{Attr, FileKind, Time};
use std::time::Duration;

/// Size of a directory entry before its name in bytes.
pub(crate) const DIRENT_BYTES: usize = 24;
/// Size of a directory entry with an entry reply, before its name, in bytes.
pub(crate) const DIRENTPLUS_BYTES: usize = 128 + DIRENT_BYTES;

/// Appends integers to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Out {
    buf: Vec<u8>,
}

impl Out {
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buf: Vec::with_capacity(bytes) }
    }

    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.buf.extend_from_slice(&v.to_ne_bytes());
        self
    }

    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.buf.extend_from_slice(&v.to_ne_bytes());
        self
    }

    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.buf.extend_from_slice(&v.to_ne_bytes());
        self
    }

    pub fn zeros(&mut self, n: usize) -> &mut Self {
        self.buf.resize(self.buf.len() + n, 0);
        self
    }

    pub fn bytes(&mut self, b: &[u8]) -> &mut Self {
        self.buf.extend_from_slice(b);
        self
    }

    pub fn len(&self) -> usize {
        self.buf.len()
    }

    pub fn into_vec(self) -> Vec<u8> {
        self.buf
    }
}

/// An object in a reply.
#[derive(Debug, Clone)]
pub(crate) struct EntryReply<'a> {
    /// Inode; 0 for "no such name".
    pub nodeid: u64,
    /// Number in `st_ino`.
    pub ino: u64,
    /// Validity of the name.
    pub entry_valid: Duration,
    /// Validity of the attributes.
    pub attr_valid: Duration,
    /// Attributes; `None` only with inode 0.
    pub attr: Option<&'a Attr>,
}

/// Type bits of `st_mode`.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::Fifo => libc::S_IFIFO,
    }
}

/// The kernel's encoding of a device number in 32 bits: low byte of minor, major, rest of minor.
fn rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Whole seconds and nanoseconds. A very long time is limited, so that the kernel can add it to its
/// clock.
fn valid(d: Duration) -> (u64, u32) {
    (d.as_secs().min(u64::from(u32::MAX)), d.subsec_nanos())
}

/// Preferred size of reads and writes in bytes, in `st_blksize`. stdio and cp(1) use this size, and
/// every call is one request.
const BLOCK_BYTES: u32 = 256 << 10;

fn attr(o: &mut Out, ino: u64, a: &Attr) {
    let secs = |t: Time| t.secs as u64;
    o.u64(ino).u64(a.size_bytes.min(i64::MAX as u64)).u64(a.used_bytes.div_ceil(512));
    o.u64(secs(a.atime)).u64(secs(a.mtime)).u64(secs(a.ctime));
    o.u32(a.atime.nanos).u32(a.mtime.nanos).u32(a.ctime.nanos);
    o.u32(type_bits(a.kind) | (a.mode & 0o7777)).u32(a.nlink).u32(a.uid).u32(a.gid).u32(rdev(a.rdev));
    o.u32(BLOCK_BYTES).u32(0);
}

/// Body of LOOKUP and of requests that create a name (128 bytes).
pub(crate) fn entry_out(o: &mut Out, e: &EntryReply<'_>) {
    let (entry, attrs) = (valid(e.entry_valid), valid(e.attr_valid));
    o.u64(e.nodeid).u64(0).u64(entry.0).u64(attrs.0).u32(entry.1).u32(attrs.1);
    match e.attr {
        Some(a) => attr(o, e.ino, a),
        None => {
            o.zeros(88);
        }
    }
}

/// Sets the validity of name and attributes in the entry reply at byte `at`.
pub(crate) fn set_times(o: &mut Out, at: usize, entry_valid: Duration, attr_valid: Duration) {
    let (entry, attrs) = (valid(entry_valid), valid(attr_valid));
    let mut times = Out::with_capacity(24);
    times.u64(entry.0).u64(attrs.0).u32(entry.1).u32(attrs.1);
    if let Some(place) = o.buf.get_mut(at + 16..at + 40) {
        place.copy_from_slice(&times.buf);
    }
}

/// Body of GETATTR and SETATTR (104 bytes).
pub(crate) fn attr_out(ino: u64, a: &Attr, attr_valid: Duration) -> Vec<u8> {
    let mut o = Out::with_capacity(104);
    let (secs, nanos) = valid(attr_valid);
    o.u64(secs).u32(nanos).u32(0);
    attr(&mut o, ino, a);
    o.into_vec()
}

/// Body of OPEN and OPENDIR, and tail of CREATE (16 bytes).
pub(crate) fn open_out(o: &mut Out, fh: u64, flags: u32, backing_id: u32) {
    o.u64(fh).u32(flags).u32(backing_id);
}

/// One entry of a READDIR reply, padded to 8 bytes.
pub(crate) fn dirent(o: &mut Out, ino: u64, offset: u64, kind: Option<FileKind>, name: &[u8]) {
    let kind = kind.map_or(0, |k| type_bits(k) >> 12);
    o.u64(ino).u64(offset).u32(name.len() as u32).u32(kind).bytes(name);
    o.zeros(o.len().next_multiple_of(8) - o.len());
}

/// One entry of a READDIRPLUS reply.
pub(crate) fn direntplus(
    o: &mut Out,
    entry: &EntryReply<'_>,
    ino: u64,
    offset: u64,
    kind: Option<FileKind>,
    name: &[u8],
) {
    entry_out(o, entry);
    dirent(o, ino, offset, kind, name);
}
