//! The bytes on the socket: frames, requests, replies. docs/SOCKET.md describes them in words.
//!
//! It knows nothing of connections. Numbers are little-endian. A frame is a header of twelve bytes
//! (length of the rest, number of the request, operation, flags) and a body; byte strings carry
//! their length in front. Both sides use this module, so each reads exactly the form that the other
//! writes. A length beyond its bound is refused before memory is taken for it.

use std::fmt;

/// First bytes of a connection's first request.
pub const MAGIC: [u8; 4] = *b"hthr";
/// The version that this module speaks.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Longest body, in either direction.
pub const BODY_MAX_BYTES: usize = (1 << 20) + (64 << 10);
/// Most bytes of one READ, WRITE, or item of READ_MANY.
pub const IO_MAX_BYTES: u32 = 1 << 20;
/// Longest path: longer ones are answered with `ENAMETOOLONG`.
pub const PATH_MAX_BYTES: usize = 4096;
/// Most paths in one request: more are answered with `E2BIG`.
pub const ITEMS_MAX: usize = 16_384;
/// Frames that a reply of many may be ahead of the reader; [`Request::More`] allows more.
pub const FRAMES_AHEAD: u32 = 16;

/// More frames of the same reply follow.
pub const FLAG_MORE: u16 = 1;
/// The body is an errno and a line of text, and the reply ends.
pub const FLAG_ERROR: u16 = 2;
/// A file descriptor comes with the frame.
pub const FLAG_FD: u16 = 4;

/// For reading ([`Request::Open`]).
pub const OPEN_READ: u32 = 1;
/// For writing.
pub const OPEN_WRITE: u32 = 2;
/// Create it when it is missing.
pub const OPEN_CREATE: u32 = 4;
/// With [`OPEN_CREATE`]: it must be missing.
pub const OPEN_EXCLUSIVE: u32 = 8;
/// Cut it to nothing.
pub const OPEN_TRUNCATE: u32 = 16;
/// A symbolic link at the end of the path is not followed.
pub const NO_FOLLOW: u32 = 32;
/// [`Request::Write`]: on stable storage before it is answered.
pub const WRITE_STABLE: u32 = 1;
/// [`Request::Write`]: at the end that the file has then. The offset is [`APPEND_AT`].
pub const WRITE_APPEND: u32 = 2;
/// Stands for an offset with [`WRITE_APPEND`].
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
    /// The request that it is or belongs to.
    pub id: u32,
    /// Operation.
    pub op: u16,
    /// `FLAG_*`; 0 in requests.
    pub flags: u16,
}

impl Header {
    /// As bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..8].copy_from_slice(&self.id.to_le_bytes());
        out[8..10].copy_from_slice(&self.op.to_le_bytes());
        out[10..].copy_from_slice(&self.flags.to_le_bytes());
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// A body that would be too long.
    pub fn decode(from: &[u8; HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut r = Reader(from);
        let header = Self { len: r.u32()?, id: r.u32()?, op: r.u16()?, flags: r.u16()? };
        match header.len as usize <= BODY_MAX_BYTES {
            true => Ok(header),
            false => Err(Malformed("a body that is too long")),
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
    /// From where, in bytes.
    pub offset: u64,
    /// At most so many bytes.
    pub len: u32,
}

/// A request. Paths are those below the mount point, names separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// The first one: [`MAGIC`] and the highest version that the program speaks. Reply: [`Hello`].
    Hello(u16),
    /// Opens `path` with `OPEN_*` flags, and permissions for a file that is created. Reply:
    /// [`Opened`].
    Open(&'a [u8], u32, u32),
    /// Ends an open: its writes are stable, or the error says why not. Empty reply.
    Close(u64),
    /// Reads from an open file: offset, length. Reply: whether that is the end (u8), then the
    /// bytes.
    Read(u64, u64, u32),
    /// Writes to an open file: offset, flags, bytes. Reply: bytes written (u32), with
    /// [`WRITE_APPEND`] also where they begin (u64).
    Write(u64, u64, u32, &'a [u8]),
    /// Returns when everything written to the file is stable. Empty reply.
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
    /// A directory and everything below it, so many levels deep. Reply: frames of [`Entry`] whose
    /// names are paths below it.
    Walk(&'a [u8], u32),
    /// Tells of changes of these paths until it is cancelled. Reply: frames of [`Stated`], first of
    /// how each is.
    Watch(Vec<&'a [u8]>),
    /// Makes a directory with permissions. Empty reply.
    Mkdir(&'a [u8], u32),
    /// Removes a name; of an empty directory when the flag is 1. Empty reply.
    Remove(&'a [u8], u32),
    /// Renames; flags. Empty reply.
    Rename(&'a [u8], &'a [u8], u32),
    /// Makes a symbolic link: target, path. Empty reply.
    Symlink(&'a [u8], &'a [u8]),
    /// Asks for a descriptor with all bytes of an open file ([`FLAG_FD`]). Empty reply;
    /// `EOPNOTSUPP` when there is none.
    Lend(u64),
    /// Allows so many further frames of a reply. No reply.
    More(u32, u32),
    /// Ends a reply of many frames early. No reply of its own.
    Cancel(u32),
}

impl<'a> Request<'a> {
    /// Operation number.
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

    /// Appends header and body.
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

    /// Reads a body. The code that serves the request judges the length, number and content of
    /// paths.
    ///
    /// # Errors
    /// Anything but exactly a request of this version.
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
    /// The version that is spoken from now on.
    pub version: u16,
    /// Nothing can be changed here.
    pub read_only: bool,
    /// Where it is mounted; empty without a mount.
    pub dir: Vec<u8>,
    /// The mounted export: `server:/path`.
    pub source: Vec<u8>,
}

impl Hello {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).u16(self.version).u8(u8::from(self.read_only)).bytes(&self.dir).bytes(&self.source);
    }

    /// Reads it; a later version may say more.
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
    /// Bytes taken at the server.
    pub used: u64,
    /// The server's file system.
    pub fsid: (u64, u64),
    /// Number of the object in it.
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
    /// Its bytes on the wire.
    pub const BYTES: usize = 1 + 4 * 6 + 8 * 6 + 12 * 3;

    /// Appends them.
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

    /// Reads them.
    ///
    /// # Errors
    /// Too short, or of a type that does not exist.
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
    /// Its number on this connection.
    pub file: u64,
    /// Its attributes.
    pub attr: Attr,
}

impl Opened {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).u64(self.file);
        self.attr.encode(out);
    }

    /// Reads it.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(body);
        Ok(Self { file: r.u64()?, attr: Attr::decode(&mut r)? })
    }
}

/// Attributes of one of many paths, or why there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// Which of the paths.
    pub index: u32,
    /// The answer; an errno.
    pub attr: Result<Attr, i32>,
}

impl Stated {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).u32(self.index).u32(self.attr.err().unwrap_or(0) as u32);
        if let Ok(attr) = &self.attr {
            attr.encode(out);
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (index, errno) = (r.u32()?, r.u32()? as i32);
        let attr = if errno == 0 { Ok(Attr::decode(r)?) } else { Err(errno) };
        Ok(Self { index, attr })
    }
}

/// A part of one of many files, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Which of the parts.
    pub index: u32,
    /// The answer: length of the file, the bytes; an errno.
    pub read: Result<(u64, &'a [u8]), i32>,
}

impl<'a> Piece<'a> {
    /// Bytes of one on the wire beside the data.
    pub const BYTES: usize = 20;

    /// Appends everything but the data, of which there will be `len` bytes.
    pub fn encode_head(index: u32, read: Result<(u64, u32), i32>, out: &mut Vec<u8>) {
        let (size, len) = read.unwrap_or_default();
        Writer(out).u32(index).u32(read.err().unwrap_or(0) as u32).u64(size).u32(len);
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (index, errno, size) = (r.u32()?, r.u32()? as i32, r.u64()?);
        let data = r.data()?;
        Ok(Self { index, read: if errno == 0 { Ok((size, data)) } else { Err(errno) } })
    }
}

/// An entry of a directory or tree, with attributes or why there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name, or its path below where a walk began.
    pub name: &'a [u8],
    /// Attributes, of a link itself; an errno.
    pub attr: Result<Attr, i32>,
}

impl<'a> Entry<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Writer(out).bytes(self.name).u32(self.attr.err().unwrap_or(0) as u32);
        if let Ok(attr) = &self.attr {
            attr.encode(out);
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn decode(r: &mut Reader<'a>) -> Result<Self, Malformed> {
        let name = r.bytes()?;
        let errno = r.u32()? as i32;
        Ok(Self { name, attr: if errno == 0 { Ok(Attr::decode(r)?) } else { Err(errno) } })
    }
}

/// An error's body.
pub fn encode_error(errno: i32, why: &str, out: &mut Vec<u8>) {
    Writer(out).u32(errno as u32).bytes(why.as_bytes());
}

/// Reads an error's body: errno and a line that may be empty.
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

/// Takes numbers and strings off the front.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Whether everything was read.
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

    /// A byte.
    ///
    /// # Errors
    /// At the end.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A number of four bytes.
    ///
    /// # Errors
    /// At the end.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    /// At the end.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A byte string.
    ///
    /// # Errors
    /// When it is cut.
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

    /// A number of things of at least `each` bytes.
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
