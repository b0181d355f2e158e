//! Parsing of requests.

use super::{EXT_GROUPS, IN_HEADER_BYTES, InitIn, opcode};
use bytes::Bytes;
use hither_vfs::Name;
use smallvec::SmallVec;

/// Reads integers and byte strings from the front of a buffer. Errors are errnos: `EINVAL` for a
/// request that is too short.
pub(crate) struct Dec {
    buf: Bytes,
}

impl Dec {
    pub fn new(buf: Bytes) -> Self {
        Self { buf }
    }

    pub fn take(&mut self, n: usize) -> Result<Bytes, i32> {
        if n > self.buf.len() {
            return Err(libc::EINVAL);
        }
        Ok(self.buf.split_to(n))
    }

    pub fn u16(&mut self) -> Result<u16, i32> {
        let (head, _) = self.buf.split_first_chunk().ok_or(libc::EINVAL)?;
        let v = u16::from_ne_bytes(*head);
        bytes::Buf::advance(&mut self.buf, 2);
        Ok(v)
    }

    pub fn u32(&mut self) -> Result<u32, i32> {
        let (head, _) = self.buf.split_first_chunk().ok_or(libc::EINVAL)?;
        let v = u32::from_ne_bytes(*head);
        bytes::Buf::advance(&mut self.buf, 4);
        Ok(v)
    }

    pub fn u64(&mut self) -> Result<u64, i32> {
        let (head, _) = self.buf.split_first_chunk().ok_or(libc::EINVAL)?;
        let v = u64::from_ne_bytes(*head);
        bytes::Buf::advance(&mut self.buf, 8);
        Ok(v)
    }

    /// A NUL-terminated string, without the NUL.
    fn string(&mut self) -> Result<Bytes, i32> {
        let end = self.buf.iter().position(|&b| b == 0).ok_or(libc::EINVAL)?;
        let s = self.buf.split_to(end);
        bytes::Buf::advance(&mut self.buf, 1);
        Ok(s)
    }

    fn name(&mut self) -> Result<Name, i32> {
        Name::new(self.string()?).map_err(|e| e.errno)
    }
}

/// The header of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Operation code.
    pub opcode: u32,
    /// Number of the request, repeated in the reply.
    pub unique: u64,
    /// Inode of the request.
    pub nodeid: u64,
    /// Caller's file-system user id.
    pub uid: u32,
    /// Caller's file-system group id.
    pub gid: u32,
    /// Caller's thread; 0 when it is not visible in this process namespace.
    pub tid: u32,
    /// Supplementary groups in the request: the group of the parent directory for creating calls
    /// (7.38).
    pub groups: SmallVec<[u32; 1]>,
}

/// SETATTR.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) struct SetattrIn {
    /// Bits of the valid fields (`fattr`).
    pub valid: u32,
    pub fh: u64,
    pub size: u64,
    pub atime: (i64, u32),
    pub mtime: (i64, u32),
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// GETLK, SETLK, SETLKW. `end` is inclusive, as in the kernel; `kind` is `F_RDLCK`, `F_WRLCK` or
/// `F_UNLCK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) struct LockCall {
    pub fh: u64,
    pub owner: u64,
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
    pub flags: u32,
}

/// Type and permission bits of a new object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMode {
    /// The bits before the umask.
    pub mode: u32,
    /// Bits that the object gets only from a default ACL of its directory.
    pub umask: u32,
}

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Op {
    Lookup {
        name: Name,
    },
    Forget {
        count: u64,
    },
    BatchForget {
        list: Vec<(u64, u64)>,
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: Name,
        target: Bytes,
    },
    Mknod {
        mode: NewMode,
        rdev: u32,
        name: Name,
    },
    Mkdir {
        mode: NewMode,
        name: Name,
    },
    Unlink {
        name: Name,
    },
    Rmdir {
        name: Name,
    },
    Rename {
        from: Name,
        new_dir: u64,
        to: Name,
        flags: u32,
    },
    Link {
        old: u64,
        name: Name,
    },
    Open {
        flags: u32,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
    },
    Write {
        fh: u64,
        offset: u64,
        write_flags: u32,
        flags: u32,
        data: Bytes,
    },
    Statfs,
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
    },
    Setxattr {
        name: Bytes,
        value: Bytes,
        flags: u32,
    },
    Getxattr {
        name: Bytes,
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Bytes,
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Init(InitIn),
    Opendir,
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir,
    Getlk(LockCall),
    Setlk(LockCall),
    Setlkw(LockCall),
    Access {
        mask: u32,
    },
    Create {
        flags: u32,
        mode: NewMode,
        name: Name,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyRange {
        fh: u64,
        from: u64,
        to_node: u64,
        to_fh: u64,
        to: u64,
        length: u64,
        wide: bool,
    },
    Syncfs,
    Ioctl,
    /// An operation that is not supported. The kernel continues without it.
    Unserved,
}

impl Header {
    /// Splits a request into header and body. The length field must be the number of bytes read.
    pub fn parse(buf: &Bytes) -> Result<(Self, Dec), i32> {
        let mut d = Dec::new(buf.clone());
        let head_bytes = d.take(IN_HEADER_BYTES)?;
        let mut h = Dec::new(head_bytes);
        let len = h.u32()? as usize;
        let opcode = h.u32()?;
        let (unique, nodeid) = (h.u64()?, h.u64()?);
        let (uid, gid, tid) = (h.u32()?, h.u32()?, h.u32()?);
        let ext_bytes = usize::from(h.u16()?) * 8;
        if len != buf.len() || ext_bytes > d.buf.len() {
            return Err(libc::EINVAL);
        }
        let ext = d.buf.split_off(d.buf.len() - ext_bytes);
        let groups = parse_groups(ext).unwrap_or_default();
        Ok((Self { opcode, unique, nodeid, uid, gid, tid, groups }, d))
    }
}

/// Groups in the extensions. Other extensions are skipped.
fn parse_groups(ext: Bytes) -> Result<SmallVec<[u32; 1]>, i32> {
    let mut d = Dec::new(ext);
    while !d.buf.is_empty() {
        let (size, kind) = (d.u32()? as usize, d.u32()?);
        let mut body = Dec::new(d.take(size.checked_sub(8).ok_or(libc::EINVAL)?)?);
        if kind == EXT_GROUPS {
            let count = body.u32()?;
            return (0..count.min(64)).map(|_| body.u32()).collect();
        }
    }
    Ok(SmallVec::new())
}

impl Op {
    /// The name in the request, in the directory of the request.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Op::Lookup { name }
            | Op::Symlink { name, .. }
            | Op::Mknod { name, .. }
            | Op::Mkdir { name, .. }
            | Op::Unlink { name }
            | Op::Rmdir { name }
            | Op::Link { name, .. }
            | Op::Create { name, .. }
            | Op::Rename { from: name, .. } => Some(name),
            _ => None,
        }
    }

    /// The change of contents by a request about object `node`: the changed object, the first byte
    /// and the number of bytes.
    pub fn contents(&self, node: u64) -> Option<(u64, u64, u64)> {
        match self {
            // The kernel's pages already have these bytes.
            Op::Write { write_flags, .. } if write_flags & super::WRITE_CACHE != 0 => None,
            Op::Write { offset, data, .. } => Some((node, *offset, data.len() as u64)),
            Op::Setattr(set) if set.valid & super::fattr::SIZE != 0 => Some((node, 0, u64::MAX)),
            Op::Fallocate { offset, length, .. } => Some((node, *offset, *length)),
            Op::CopyRange { to_node, to, length, .. } => Some((*to_node, *to, *length)),
            _ => None,
        }
    }

    /// The names that a request about directory `dir` creates, renames or removes.
    pub fn changed_names(&self, dir: u64) -> SmallVec<[(u64, Name); 1]> {
        let mut names = SmallVec::new();
        if !matches!(self, Op::Lookup { .. }) {
            names.extend(self.name().map(|name| (dir, name.clone())));
        }
        if let Op::Rename { new_dir, to, .. } = self {
            names.push((*new_dir, to.clone()));
        }
        names
    }

    /// Offset and number of bytes of a read or write.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Op::Read { offset, size, .. } => (*offset, u64::from(*size)),
            Op::Write { offset, data, .. } => (*offset, data.len() as u64),
            _ => (0, 0),
        }
    }

    /// Parses the body of a request. `setxattr_ext`: the negotiated layout of SETXATTR.
    ///
    /// Errors are the errno of the reply: `EINVAL` for a malformed request, `ENAMETOOLONG` for a
    /// long name.
    pub fn parse(opcode: u32, mut d: Dec, setxattr_ext: bool) -> Result<Self, i32> {
        let d = &mut d;
        Ok(match opcode {
            opcode::LOOKUP => Op::Lookup { name: d.name()? },
            opcode::FORGET => Op::Forget { count: d.u64()? },
            opcode::BATCH_FORGET => parse_batch_forget(d)?,
            opcode::GETATTR => {
                let (flags, _, fh) = (d.u32()?, d.u32()?, d.u64()?);
                Op::Getattr { fh: (flags & super::GETATTR_FH != 0).then_some(fh) }
            }
            opcode::SETATTR => Op::Setattr(parse_setattr(d)?),
            opcode::READLINK => Op::Readlink,
            opcode::SYMLINK => Op::Symlink { name: d.name()?, target: d.string()? },
            opcode::MKNOD => {
                let (mode, rdev, umask, _) = (d.u32()?, d.u32()?, d.u32()?, d.u32()?);
                Op::Mknod { mode: NewMode { mode, umask }, rdev, name: d.name()? }
            }
            opcode::MKDIR => {
                let (mode, umask) = (d.u32()?, d.u32()?);
                Op::Mkdir { mode: NewMode { mode, umask }, name: d.name()? }
            }
            opcode::UNLINK => Op::Unlink { name: d.name()? },
            opcode::RMDIR => Op::Rmdir { name: d.name()? },
            opcode::RENAME => {
                let new_dir = d.u64()?;
                Op::Rename { new_dir, flags: 0, from: d.name()?, to: d.name()? }
            }
            opcode::RENAME2 => {
                let (new_dir, flags, _) = (d.u64()?, d.u32()?, d.u32()?);
                Op::Rename { new_dir, flags, from: d.name()?, to: d.name()? }
            }
            opcode::LINK => Op::Link { old: d.u64()?, name: d.name()? },
            opcode::CREATE => {
                let (flags, mode, umask, _) = (d.u32()?, d.u32()?, d.u32()?, d.u32()?);
                Op::Create { flags, mode: NewMode { mode, umask }, name: d.name()? }
            }
            opcode::INIT => Op::Init(InitIn::parse(d)?),
            opcode::INTERRUPT => Op::Interrupt { unique: d.u64()? },
            opcode::DESTROY => Op::Destroy,
            opcode::STATFS => Op::Statfs,
            opcode::ACCESS => Op::Access { mask: d.u32()? },
            opcode::SYNCFS => Op::Syncfs,
            opcode::IOCTL => Op::Ioctl,
            opcode::OPENDIR => Op::Opendir,
            opcode::FSYNCDIR => Op::Fsyncdir,
            opcode::RELEASEDIR => Op::Releasedir { fh: d.u64()? },
            opcode::READDIR | opcode::READDIRPLUS => {
                let (fh, offset, size) = (d.u64()?, d.u64()?, d.u32()?);
                Op::Readdir { fh, offset, size, plus: opcode == opcode::READDIRPLUS }
            }
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                parse_xattr(opcode, d, setxattr_ext)?
            }
            _ => parse_file(opcode, d)?,
        })
    }
}

/// Requests on an open file.
fn parse_file(opcode: u32, d: &mut Dec) -> Result<Op, i32> {
    Ok(match opcode {
        opcode::OPEN => Op::Open { flags: d.u32()? },
        opcode::READ => {
            let (fh, offset, size, read_flags) = (d.u64()?, d.u64()?, d.u32()?, d.u32()?);
            Op::Read { fh, offset, size, read_flags }
        }
        opcode::WRITE => {
            let (fh, offset, size, write_flags) = (d.u64()?, d.u64()?, d.u32()?, d.u32()?);
            let (_owner, flags, _) = (d.u64()?, d.u32()?, d.u32()?);
            Op::Write { fh, offset, write_flags, flags, data: d.take(size as usize)? }
        }
        opcode::RELEASE => Op::Release { fh: d.u64()? },
        opcode::FSYNC => Op::Fsync { fh: d.u64()? },
        opcode::FLUSH => {
            let (fh, _, lock_owner) = (d.u64()?, d.u64()?, d.u64()?);
            Op::Flush { fh, lock_owner }
        }
        opcode::GETLK => Op::Getlk(parse_lock(d)?),
        opcode::SETLK => Op::Setlk(parse_lock(d)?),
        opcode::SETLKW => Op::Setlkw(parse_lock(d)?),
        opcode::FALLOCATE => {
            let (fh, offset, length) = (d.u64()?, d.u64()?, d.u64()?);
            Op::Fallocate { fh, offset, length, mode: d.u32()? }
        }
        opcode::LSEEK => {
            let (fh, offset) = (d.u64()?, d.u64()?);
            Op::Lseek { fh, offset, whence: d.u32()? }
        }
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            let (fh, from, to_node) = (d.u64()?, d.u64()?, d.u64()?);
            let (to_fh, to, length) = (d.u64()?, d.u64()?, d.u64()?);
            let wide = opcode == opcode::COPY_FILE_RANGE_64;
            Op::CopyRange { fh, from, to_node, to_fh, to, length, wide }
        }
        _ => Op::Unserved,
    })
}

fn parse_xattr(opcode: u32, d: &mut Dec, setxattr_ext: bool) -> Result<Op, i32> {
    Ok(match opcode {
        opcode::SETXATTR => {
            let (size, flags) = (d.u32()?, d.u32()?);
            if setxattr_ext {
                d.u64()?;
            }
            let name = d.string()?;
            Op::Setxattr { name, value: d.take(size as usize)?, flags }
        }
        opcode::GETXATTR => {
            let (size, _) = (d.u32()?, d.u32()?);
            Op::Getxattr { name: d.string()?, size }
        }
        opcode::LISTXATTR => Op::Listxattr { size: d.u32()? },
        _ => Op::Removexattr { name: d.string()? },
    })
}

fn parse_batch_forget(d: &mut Dec) -> Result<Op, i32> {
    let (count, _) = (d.u32()? as usize, d.u32()?);
    if count > d.buf.len() / 16 {
        return Err(libc::EINVAL);
    }
    let list = (0..count).map(|_| Ok((d.u64()?, d.u64()?))).collect::<Result<_, i32>>()?;
    Ok(Op::BatchForget { list })
}

fn parse_setattr(d: &mut Dec) -> Result<SetattrIn, i32> {
    let (valid, _) = (d.u32()?, d.u32()?);
    let (fh, size, _owner) = (d.u64()?, d.u64()?, d.u64()?);
    let (atime, mtime, _ctime) = (d.u64()? as i64, d.u64()? as i64, d.u64()?);
    let (atime_nanos, mtime_nanos, _ctime_nanos) = (d.u32()?, d.u32()?, d.u32()?);
    let (mode, _, uid, gid) = (d.u32()?, d.u32()?, d.u32()?, d.u32()?);
    Ok(SetattrIn {
        valid,
        fh,
        size,
        atime: (atime, atime_nanos),
        mtime: (mtime, mtime_nanos),
        mode,
        uid,
        gid,
    })
}

fn parse_lock(d: &mut Dec) -> Result<LockCall, i32> {
    let (fh, owner, start, end) = (d.u64()?, d.u64()?, d.u64()?, d.u64()?);
    let (kind, pid, flags) = (d.u32()?, d.u32()?, d.u32()?);
    Ok(LockCall { fh, owner, start, end, kind, pid, flags })
}
