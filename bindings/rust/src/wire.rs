//! The bytes on the socket: frames, requests, replies. docs/SOCKET.md describes them in words.
//!
//! The module knows nothing of connections. Numbers are little-endian. A frame is a header of
//! twelve bytes and a body. The header has the length of the body, the number of the request, the
//! operation and flags. Byte strings carry their length in front. Both sides use this module, so
//! each reads exactly the form that the other writes. A length beyond its bound is refused before
//! memory is allocated for it.

use std::fmt;

/// First bytes of the body of a connection's first request.
pub const MAGIC: [u8; 4] = *b"hthr";
/// Version of the protocol in this module.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Longest body, in either direction.
pub const BODY_MAX_BYTES: usize = (1 << 20) + (64 << 10);
/// Most bytes of one READ, WRITE, or item of READ_MANY.
pub const IO_MAX_BYTES: u32 = 1 << 20;
/// Longest path in bytes. Longer paths are answered with `ENAMETOOLONG`.
pub const PATH_MAX_BYTES: usize = 4096;
/// Most paths in one request. More are answered with `E2BIG`.
pub const ITEMS_MAX: usize = 16_384;
/// Most frames that a reply may be ahead of the reader. [`Request::More`] allows more.
pub const FRAMES_AHEAD: u32 = 16;

/// More frames of the same reply follow.
pub const FLAG_MORE: u16 = 1;
/// The body is an errno and a line of text, and ends the reply.
pub const FLAG_ERROR: u16 = 2;
/// A file descriptor arrives with the frame.
pub const FLAG_FD: u16 = 4;

/// Opens for reading ([`Request::Open`]).
pub const OPEN_READ: u32 = 1;
/// Opens for writing.
pub const OPEN_WRITE: u32 = 2;
/// Creates a missing file.
pub const OPEN_CREATE: u32 = 4;
/// With [`OPEN_CREATE`]: the file must be missing.
pub const OPEN_EXCLUSIVE: u32 = 8;
/// Truncates the file to length 0.
pub const OPEN_TRUNCATE: u32 = 16;
/// A symbolic link at the end of the path is not followed.
pub const NO_FOLLOW: u32 = 32;
/// [`Request::Write`]: the data is on stable storage before the reply.
pub const WRITE_STABLE: u32 = 1;
/// [`Request::Write`]: writes at the end of the file. The offset is [`APPEND_AT`].
pub const WRITE_APPEND: u32 = 2;
/// The offset of a write with [`WRITE_APPEND`].
pub const APPEND_AT: u64 = u64::MAX;
/// [`Request::Rename`]: the target must be missing.
pub const RENAME_NOREPLACE: u32 = 1;

/// The received bytes do not follow the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for std::io::Error {
    fn from(e: Malformed) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, e)
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the body.
    pub len: u32,
    /// Number of the request to which the frame belongs.
    pub id: u32,
    /// Operation.
    pub op: u16,
    /// `FLAG_*`; 0 in requests.
    pub flags: u16,
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..10].copy_from_slice(&self.op.to_le_bytes());
        out[10..].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// A body that would be too long.
    pub fn decode(from: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut r = Reader(from);
        let header = Self { len: r.u32()?, id: r.u32()?, op: r.u16()?, flags: r.u16()? };
        if header.len as usize <= BODY_MAX_BYTES {
            Ok(header)
        } else {
            Err(Malformed("a body that is too long"))
        }
    }
}

/// Operation numbers.
pub mod op {
    #![allow(missing_docs, reason = "their requests are documented")]
    pub const HELLO: u16 = 1;
    pub const OPEN: u16 = 2;
    pub const CLOSE: u16 = 3;
    pub const READ: u16 = 4;
    pub const WRITE: u16 = 5;
    pub const SYNC: u16 = 6;
    pub const SET_LEN: u16 = 7;
    pub const STAT_FILE: u16 = 8;
    pub const STAT_MANY: u16 = 9;
    pub const READ_MANY: u16 = 10;
    pub const READ_LINK: u16 = 11;
    pub const LIST: u16 = 12;
    pub const WALK: u16 = 13;
    pub const WATCH: u16 = 14;
    pub const MKDIR: u16 = 15;
    pub const REMOVE: u16 = 16;
    pub const RENAME: u16 = 17;
    pub const SYMLINK: u16 = 18;
    pub const LEND: u16 = 19;
    pub const MORE: u16 = 20;
    pub const CANCEL: u16 = 21;
}

/// A part of a file to read, by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The file.
    pub path: &'a [u8],
    /// Offset in bytes.
    pub offset: u64,
    /// Most bytes to read.
    pub len: u32,
}

/// A request. Paths are relative to the mount point, with names separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first request: [`MAGIC`] and the highest version that the program speaks. Reply:
    /// [`Hello`].
    Hello(u16),
    /// Opens `path` with `OPEN_*` flags, and with permissions for a new file. Reply: [`Opened`].
    Open(&'a [u8], u32, u32),
    /// Closes an open file. On success its writes are stable. Empty reply.
    Close(u64),
    /// Reads from an open file: offset, length. Reply: whether the file ends there (u8), then the
    /// bytes.
    Read(u64, u64, u32),
    /// Writes to an open file: offset, flags, bytes. Reply: number of written bytes (u32), with
    /// [`WRITE_APPEND`] also their offset (u64).
    Write(u64, u64, u32, &'a [u8]),
    /// Makes all written data of the file stable. Empty reply.
    Sync(u64),
    /// Sets the length of an open file. Empty reply.
    SetLen(u64, u64),
    /// Attributes of an open file. Reply: [`Attr`].
    StatFile(u64),
    /// Attributes of many paths ([`NO_FOLLOW`] or 0). Reply: frames of [`Stated`].
    StatMany(u32, Vec<&'a [u8]>),
    /// Parts of many files. Reply: frames of [`Piece`], in any order.
    ReadMany(Vec<Part<'a>>),
    /// Target of a symbolic link. Reply: its bytes.
    ReadLink(&'a [u8]),
    /// A directory's entries with attributes. Reply: frames of [`Entry`].
    List(&'a [u8]),
    /// A directory and all objects below it, to a number of levels. Reply: frames of [`Entry`]
    /// whose names are paths below the directory.
    Walk(&'a [u8], u32),
    /// Reports changes of these paths until the request is cancelled. Reply: frames of [`Stated`],
    /// first with the present state of each path.
    Watch(Vec<&'a [u8]>),
    /// Makes a directory with permissions. Empty reply.
    Mkdir(&'a [u8], u32),
    /// Removes a name. The flag 1 means an empty directory. Empty reply.
    Remove(&'a [u8], u32),
    /// Renames: old path, new path, flags. Empty reply.
    Rename(&'a [u8], &'a [u8], u32),
    /// Makes a symbolic link: target, path. Empty reply.
    Symlink(&'a [u8], &'a [u8]),
    /// Asks for a descriptor with all bytes of an open file ([`FLAG_FD`]). Empty reply.
    /// `EOPNOTSUPP` when there is none.
    Lend(u64),
    /// Allows a number of further frames of a reply. No reply.
    More(u32, u32),
    /// Ends a reply of many frames early. No reply of its own.
    Cancel(u32),
}

impl<'a> Request<'a> {
    /// The operation number.
    pub fn op(&self) -> u16 {
        match self {
            Request::Hello(_) => op::HELLO,
            Request::Open(..) => op::OPEN,
            Request::Close(_) => op::CLOSE,
            Request::Read(..) => op::READ,
            Request::Write(..) => op::WRITE,
            Request::Sync(_) => op::SYNC,
            Request::SetLen(..) => op::SET_LEN,
            Request::StatFile(_) => op::STAT_FILE,
            Request::StatMany(..) => op::STAT_MANY,
            Request::ReadMany(_) => op::READ_MANY,
            Request::ReadLink(_) => op::READ_LINK,
            Request::List(_) => op::LIST,
            Request::Walk(..) => op::WALK,
            Request::Watch(_) => op::WATCH,
            Request::Mkdir(..) => op::MKDIR,
            Request::Remove(..) => op::REMOVE,
            Request::Rename(..) => op::RENAME,
            Request::Symlink(..) => op::SYMLINK,
            Request::Lend(_) => op::LEND,
            Request::More(..) => op::MORE,
            Request::Cancel(_) => op::CANCEL,
        }
    }

    /// Appends the header and the body.
    pub fn encode(&self, id: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; HEADER_BYTES]);
        self.body(out);
        let len = (out.len() - start - HEADER_BYTES) as u32;
        let header = Header { len, id, op: self.op(), flags: 0 };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    }

    fn body(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        match self {
            Request::Hello(version) => {
                w.0.extend(MAGIC);
                w.u16(*version);
            }
            Request::Open(path, flags, mode) => w.bytes(path).u32(*flags).u32(*mode).end(),
            Request::Close(file) | Request::Sync(file) | Request::StatFile(file) | Request::Lend(file) => {
                w.u64(*file);
            }
            Request::Read(file, offset, len) => w.u64(*file).u64(*offset).u32(*len).end(),
            Request::Write(file, offset, flags, data) => {
                w.u64(*file).u64(*offset).u32(*flags).bytes(data);
            }
            Request::SetLen(file, len) => w.u64(*file).u64(*len).end(),
            Request::StatMany(flags, paths) => w.u32(*flags).paths(paths),
            Request::ReadMany(parts) => {
                w.u32(parts.len() as u32);
                parts.iter().for_each(|p| w.bytes(p.path).u64(p.offset).u32(p.len).end());
            }
            Request::ReadLink(path) | Request::List(path) => w.bytes(path).end(),
            Request::Walk(path, depth) => w.bytes(path).u32(*depth).end(),
            Request::Watch(paths) => w.paths(paths),
            Request::Mkdir(path, n) | Request::Remove(path, n) => w.bytes(path).u32(*n).end(),
            Request::Rename(from, to, flags) => w.bytes(from).bytes(to).u32(*flags).end(),
            Request::Symlink(target, path) => w.bytes(target).bytes(path).end(),
            Request::More(id, frames) => w.u32(*id).u32(*frames).end(),
            Request::Cancel(id) => w.u32(*id).end(),
        }
    }

    /// Decodes a body. The code that serves the request checks the length, number and content of
    /// paths.
    ///
    /// # Errors
    /// Any body that is not exactly a request of this version.
    pub fn decode(op: u16, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let request = match op {
            op::HELLO => {
                if r.take(4)? != MAGIC {
                    return Err(Malformed("a greeting that is none"));
                }
                Request::Hello(r.u16()?)
            }
            op::OPEN => Request::Open(r.bytes()?, r.u32()?, r.u32()?),
            op::CLOSE => Request::Close(r.u64()?),
            op::READ => Request::Read(r.u64()?, r.u64()?, r.io_len()?),
            op::WRITE => Request::Write(r.u64()?, r.u64()?, r.u32()?, r.data()?),
            op::SYNC => Request::Sync(r.u64()?),
            op::SET_LEN => Request::SetLen(r.u64()?, r.u64()?),
            op::STAT_FILE => Request::StatFile(r.u64()?),
            op::STAT_MANY => Request::StatMany(r.u32()?, r.paths()?),
            op::READ_MANY => {
                let n = r.count(16)?;
                let parts = (0..n)
                    .map(|_| Ok(Part { path: r.bytes()?, offset: r.u64()?, len: r.io_len()? }))
                    .collect::<Result<_, Malformed>>()?;
                Request::ReadMany(parts)
            }
            op::READ_LINK => Request::ReadLink(r.bytes()?),
            op::LIST => Request::List(r.bytes()?),
            op::WALK => Request::Walk(r.bytes()?, r.u32()?),
            op::WATCH => Request::Watch(r.paths()?),
            op::MKDIR => Request::Mkdir(r.bytes()?, r.u32()?),
            op::REMOVE => Request::Remove(r.bytes()?, r.u32()?),
            op::RENAME => Request::Rename(r.bytes()?, r.bytes()?, r.u32()?),
            op::SYMLINK => Request::Symlink(r.bytes()?, r.bytes()?),
            op::LEND => Request::Lend(r.u64()?),
            op::MORE => Request::More(r.u32()?, r.u32()?),
            op::CANCEL => Request::Cancel(r.u32()?),
            _ => return Err(Malformed("an operation that does not exist")),
        };
        r.end()?;
        Ok(request)
    }
}

/// The first message of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The version for the rest of the connection.
    pub version: u16,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// The mount point. Empty without a mount.
    pub dir: Vec<u8>,
    /// The mounted export: `server:/path`.
    pub source: Vec<u8>,
}

impl Hello {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).u16(self.version).u8(u8::from(self.read_only)).bytes(&self.dir).bytes(&self.source);
    }

    /// Decodes a greeting. A later version may be longer.
    ///
    /// # Errors
    /// When it is too short.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        let (version, read_only) = (r.u16()?, r.u8()? != 0);
        Ok(Self { version, read_only, dir: r.bytes()?.to_vec(), source: r.bytes()?.to_vec() })
    }
}

/// Type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Block device.
    BlockDevice = 4,
    /// Character device.
    CharDevice = 5,
    /// UNIX socket.
    Socket = 6,
    /// Named pipe.
    Fifo = 7,
}

/// Attributes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Type.
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits (07777).
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device numbers, major and minor.
    pub rdev: (u32, u32),
    /// Length in bytes.
    pub size: u64,
    /// Bytes that the object takes at the server.
    pub used: u64,
    /// Number of the file system at the server.
    pub fsid: (u64, u64),
    /// Number of the object in its file system.
    pub fileid: u64,
    /// Last access: seconds since 1970, nanoseconds.
    pub atime: (i64, u32),
    /// Last change of data.
    pub mtime: (i64, u32),
    /// Last change of data or attributes.
    pub ctime: (i64, u32),
    /// Differs whenever data or attributes differ.
    pub change: u64,
}

impl Attr {
    /// Length of the encoded attributes in bytes.
    pub const BYTES: usize = 1 + 4 * 6 + 8 * 6 + 12 * 3;

    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        w.u8(self.kind as u8).u32(self.mode).u32(self.nlink).u32(self.uid).u32(self.gid);
        w.u32(self.rdev.0).u32(self.rdev.1).u64(self.size).u64(self.used);
        w.u64(self.fsid.0).u64(self.fsid.1).u64(self.fileid);
        for (secs, nanos) in [self.atime, self.mtime, self.ctime] {
            w.u64(secs as u64).u32(nanos);
        }
        w.u64(self.change);
    }

    /// Decodes attributes.
    ///
    /// # Errors
    /// Too few bytes, or an unknown type.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let kind = match r.u8()? {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            4 => Kind::BlockDevice,
            5 => Kind::CharDevice,
            6 => Kind::Socket,
            7 => Kind::Fifo,
            _ => return Err(Malformed("a type that does not exist")),
        };
        let (mode, nlink, uid, gid) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let (rdev, size, used) = ((r.u32()?, r.u32()?), r.u64()?, r.u64()?);
        let (fsid, fileid) = ((r.u64()?, r.u64()?), r.u64()?);
        let mut time = || Ok((r.u64()? as i64, r.u32()?));
        let (atime, mtime, ctime) = (time()?, time()?, time()?);
        let change = r.u64()?;
        Ok(Self { kind, mode, nlink, uid, gid, rdev, size, used, fsid, fileid, atime, mtime, ctime, change })
    }
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The file's number on this connection.
    pub file: u64,
    /// The file's attributes.
    pub attr: Attr,
}

impl Opened {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).u64(self.file);
        self.attr.encode(out);
    }

    /// Decodes an open file.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        Ok(Self { file: r.u64()?, attr: Attr::decode(&mut r)? })
    }
}

/// Attributes of one of many paths, or the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// Index of the path in the request.
    pub index: u32,
    /// The attributes, or an errno.
    pub attr: Result<Attr, i32>,
}

impl Stated {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).u32(self.index).u32(self.attr.err().unwrap_or(0) as u32);
        if let Ok(attr) = &self.attr {
            attr.encode(out);
        }
    }

    /// Decodes one answer.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (index, errno) = (r.u32()?, r.u32()? as i32);
        let attr = if errno == 0 { Ok(Attr::decode(r)?) } else { Err(errno) };
        Ok(Self { index, attr })
    }
}

/// One of many parts of files, or the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Index of the part in the request.
    pub index: u32,
    /// The length of the file and the bytes, or an errno.
    pub read: Result<(u64, &'a [u8]), i32>,
}

impl<'a> Piece<'a> {
    /// Length of the encoded piece without its data, in bytes.
    pub const BYTES: usize = 20;

    /// Appends all except the data, which will have `len` bytes.
    pub fn encode_head(index: u32, read: Result<(u64, u32), i32>, out: &mut Vec<u8>) {
        let (size, len) = read.unwrap_or_default();
        Writer(out).u32(index).u32(read.err().unwrap_or(0) as u32).u64(size).u32(len);
    }

    /// Decodes one piece.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (index, errno, size) = (r.u32()?, r.u32()? as i32, r.u64()?);
        let data = r.data()?;
        Ok(Self { index, read: if errno == 0 { Ok((size, data)) } else { Err(errno) } })
    }
}

/// An entry of a directory or tree, with attributes or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The entry's name. In a walk, its path below the directory where the walk began.
    pub name: &'a [u8],
    /// The attributes, for a symbolic link those of the link itself. Otherwise an errno.
    pub attr: Result<Attr, i32>,
}

impl<'a> Entry<'a> {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).bytes(self.name).u32(self.attr.err().unwrap_or(0) as u32);
        if let Ok(attr) = &self.attr {
            attr.encode(out);
        }
    }

    /// Decodes one entry.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let name = r.bytes()?;
        let errno = r.u32()? as i32;
        Ok(Self { name, attr: if errno == 0 { Ok(Attr::decode(r)?) } else { Err(errno) } })
    }
}

/// Appends the body of an error.
pub fn encode_error(errno: i32, why: &str, out: &mut Vec<u8>) {
    Writer(out).u32(errno as u32).bytes(why.as_bytes());
}

/// Decodes the body of an error: errno and a line that may be empty.
///
/// # Errors
/// When it is malformed.
pub fn decode_error(body: &[u8]) -> Result<(i32, String), Malformed> {
    let mut r = Reader(body);
    Ok((r.u32()? as i32, String::from_utf8_lossy(r.bytes()?).into_owned()))
}

/// Appends numbers and strings.
struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, n: u8) -> &mut Self {
        self.0.push(n);
        self
    }
    fn u16(&mut self, n: u16) -> &mut Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn u32(&mut self, n: u32) -> &mut Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn u64(&mut self, n: u64) -> &mut Self {
        self.0.extend(n.to_le_bytes());
        self
    }
    fn bytes(&mut self, b: &[u8]) -> &mut Self {
        self.u32(b.len() as u32);
        self.0.extend(b);
        self
    }
    fn paths(&mut self, paths: &[&[u8]]) {
        self.u32(paths.len() as u32);
        paths.iter().for_each(|p| self.bytes(p).end());
    }
    fn end(&mut self) {}
}

/// Takes numbers and strings from the front of a byte slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Whether all bytes were read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Malformed("too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed("too short"))
    }

    /// Takes a byte.
    ///
    /// # Errors
    /// When no byte is left.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Takes a number of four bytes.
    ///
    /// # Errors
    /// When too few bytes are left.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes a number of eight bytes.
    ///
    /// # Errors
    /// When too few bytes are left.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes a byte string.
    ///
    /// # Errors
    /// When too few bytes are left.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn data(&mut self) -> Result<&'a [u8], Malformed> {
        let data = self.bytes()?;
        if data.len() > IO_MAX_BYTES as usize {
            return Err(Malformed("more bytes than a call may have"));
        }
        Ok(data)
    }

    fn io_len(&mut self) -> Result<u32, Malformed> {
        let len = self.u32()?;
        if len > IO_MAX_BYTES { Err(Malformed("more bytes than a call may have")) } else { Ok(len) }
    }

    /// Takes a count of items of at least `each` bytes.
    fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let n = self.u32()? as usize;
        if n.saturating_mul(each) > self.0.len() {
            return Err(Malformed("more paths than bytes"));
        }
        Ok(n)
    }

    fn paths(&mut self) -> Result<Vec<&'a [u8]>, Malformed> {
        let n = self.count(4)?;
        (0..n).map(|_| self.bytes()).collect()
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes behind the end")) }
    }
}

#[cfg(test)]
mod tests;
