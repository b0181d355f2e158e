//! NFS version 3 (RFC 1813): arguments and results of every procedure, in both directions.
//!
//! This module has no connections, caches or file systems. This file has the common parts (status,
//! attributes, weak cache consistency data) and the table of procedures. [`args`] and [`res`] have
//! the arguments and results. Failure arms contain the RFC's data, because a failed call still
//! shows how the directory changed. READ and WRITE payloads are slices of the message.
//!
//! The RFC sets no maximum for names and paths. This module uses [`NAME_MAX_BYTES`] and
//! [`PATH_MAX_BYTES`], the longest that a kernel can accept.

pub mod args;
pub mod res;

use crate::xdr::{Dec, Enc, Opaque, Result, Xdr};
use crate::{rpc_program, xdr_enum, xdr_struct, xdr_union};
pub use args::*;
pub use res::*;

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 3;
/// The well-known port.
pub const PORT: u16 = 2049;

/// Longest file handle (`NFS3_FHSIZE`).
pub const FH_MAX_BYTES: usize = 64;

/// Longest component name that is decoded. File systems stop at 255 bytes or 255 UTF-16 units. A
/// server must decode a longer name to answer `NFS3ERR_NAMETOOLONG`.
pub const NAME_MAX_BYTES: usize = 1 << 20;

/// Longest target of a symbolic link: `PATH_MAX` of Linux. No Linux call can return a longer one.
pub const PATH_MAX_BYTES: usize = 4096;

/// Longest READ or WRITE payload. The shorter limit of a record applies first.
pub const DATA_MAX_BYTES: usize = 1 << 30;

/// Most entries of a READDIR or READDIRPLUS reply. With one-byte names this number takes 3.5 MiB,
/// more than any client requests. The entries take six times as much memory when decoded.
pub const ENTRIES_MAX: usize = 1 << 17;

/// File handle (`nfs_fh3`).
pub type Fh3 = Opaque<FH_MAX_BYTES>;
/// Name of one component (`filename3`), bytes without an encoding.
pub type Name3 = Opaque<NAME_MAX_BYTES>;
/// Target of a symbolic link (`nfspath3`).
pub type Path3 = Opaque<PATH_MAX_BYTES>;
/// Target of a new symbolic link. It may exceed [`PATH_MAX_BYTES`].
pub type NewPath3 = Opaque<NAME_MAX_BYTES>;
/// READ or WRITE payload.
pub type Data3 = Opaque<DATA_MAX_BYTES>;
/// Identifies a state of a directory for which cookies are valid (`cookieverf3`).
pub type Cookieverf3 = [u8; 8];
/// Identifies an exclusive creation (`createverf3`).
pub type Createverf3 = [u8; 8];
/// Identifies a boot of the server (`writeverf3`).
pub type Writeverf3 = [u8; 8];
/// Attributes, which the server may omit (`post_op_attr`).
pub type PostOpAttr = Option<Fattr3>;
/// A filehandle, which the server may omit (`post_op_fh3`).
pub type PostOpFh3 = Option<Fh3>;

rpc_program! {
    /// NFS version 3 (RFC 1813 section 3).
    program 100003 version 3, Proc3, Call3, Reply3 {
        /// Does nothing.
        NULL = 0, Null(NullArgs) -> ();
        /// Returns the attributes of a file.
        GETATTR = 1, Getattr(GetattrArgs) -> GetattrRes;
        /// Sets attributes.
        SETATTR = 2, Setattr(SetattrArgs) -> SetattrRes;
        /// Looks up a name and returns its handle.
        LOOKUP = 3, Lookup(LookupArgs) -> LookupRes;
        /// Checks the caller's access rights.
        ACCESS = 4, Access(AccessArgs) -> AccessRes;
        /// Returns the target of a symbolic link.
        READLINK = 5, Readlink(ReadlinkArgs) -> ReadlinkRes;
        /// Reads from a file.
        READ = 6, Read(ReadArgs) -> ReadRes;
        /// Writes to a file.
        WRITE = 7, Write(WriteArgs) -> WriteRes;
        /// Creates a file.
        CREATE = 8, Create(CreateArgs) -> CreateRes;
        /// Creates a directory.
        MKDIR = 9, Mkdir(MkdirArgs) -> CreateRes;
        /// Creates a symbolic link.
        SYMLINK = 10, Symlink(SymlinkArgs) -> CreateRes;
        /// Creates a special file.
        MKNOD = 11, Mknod(MknodArgs) -> CreateRes;
        /// Removes a file.
        REMOVE = 12, Remove(RemoveArgs) -> RemoveRes;
        /// Removes a directory.
        RMDIR = 13, Rmdir(RmdirArgs) -> RemoveRes;
        /// Renames an entry.
        RENAME = 14, Rename(RenameArgs) -> RenameRes;
        /// Creates a hard link.
        LINK = 15, Link(LinkArgs) -> LinkRes;
        /// Lists names.
        READDIR = 16, Readdir(ReaddirArgs) -> ReaddirRes;
        /// Lists names, attributes and handles.
        READDIRPLUS = 17, Readdirplus(ReaddirplusArgs) -> ReaddirplusRes;
        /// Returns the free and total space of the file system.
        FSSTAT = 18, Fsstat(FsstatArgs) -> FsstatRes;
        /// Returns the properties of the file system.
        FSINFO = 19, Fsinfo(FsinfoArgs) -> FsinfoRes;
        /// Returns POSIX limits.
        PATHCONF = 20, Pathconf(PathconfArgs) -> PathconfRes;
        /// Writes data to stable storage.
        COMMIT = 21, Commit(CommitArgs) -> CommitRes;
    }
}

xdr_enum! {
    /// The status of a procedure (`nfsstat3`, RFC 1813 section 2.6), without its prefix `NFS3ERR_`.
    pub enum Nfsstat3 {
        OK = 0,
        PERM = 1,
        NOENT = 2,
        IO = 5,
        NXIO = 6,
        ACCES = 13,
        EXIST = 17,
        XDEV = 18,
        NODEV = 19,
        NOTDIR = 20,
        ISDIR = 21,
        INVAL = 22,
        FBIG = 27,
        NOSPC = 28,
        ROFS = 30,
        MLINK = 31,
        NAMETOOLONG = 63,
        NOTEMPTY = 66,
        DQUOT = 69,
        STALE = 70,
        REMOTE = 71,
        BADHANDLE = 10001,
        NOT_SYNC = 10002,
        BAD_COOKIE = 10003,
        NOTSUPP = 10004,
        TOOSMALL = 10005,
        SERVERFAULT = 10006,
        BADTYPE = 10007,
        JUKEBOX = 10008,
    }

    /// Type of a file (`ftype3`).
    pub enum Ftype3 { REG = 1, DIR = 2, BLK = 3, CHR = 4, LNK = 5, SOCK = 6, FIFO = 7 }

    /// Stability of a write (`stable_how`).
    pub enum StableHow {
        /// The data is lost if the server crashes before COMMIT.
        UNSTABLE = 0,
        /// The data is on stable storage.
        DATA_SYNC = 1,
        /// Data and all metadata are on stable storage.
        FILE_SYNC = 2,
    }
}

/// Bits of ACCESS (RFC 1813 section 3.3.4).
pub mod access {
    /// Read data, list a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name.
    pub const LOOKUP: u32 = 0x02;
    /// Overwrite data, change directory entries.
    pub const MODIFY: u32 = 0x04;
    /// Add data, add directory entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete directory entries.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// Bits of [`FsinfoOk::properties`] (RFC 1813 section 3.3.19).
pub mod fsf {
    /// The file system has hard links.
    pub const LINK: u32 = 0x01;
    /// The file system has symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for every file.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times.
    pub const CANSETTIME: u32 = 0x10;
    /// Attributes in listings, and of directories in other replies, may be older than the call. Not
    /// in RFC 1813: a gateway of hither tells it to clients of hither, and others ignore it.
    pub const OLD_BESIDE: u32 = 1 << 31;
}

xdr_struct! {
    /// Seconds and nanoseconds since 1970 (`nfstime3`).
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Nfstime3 {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds.
        pub nseconds: u32,
    }

    /// Major and minor number of a device (`specdata3`).
    #[derive(Copy, Hash, Default)]
    pub struct Specdata3 {
        /// Major number.
        pub specdata1: u32,
        /// Minor number.
        pub specdata2: u32,
    }

    /// Attributes of a file (`fattr3`).
    #[derive(Copy, Hash, Default)]
    pub struct Fattr3 {
        /// Type.
        pub ftype: Ftype3,
        /// Permission bits, without the type.
        pub mode: u32,
        /// Number of hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length in bytes.
        pub size: u64,
        /// Bytes of storage that the file occupies.
        pub used: u64,
        /// Device number, for special files.
        pub rdev: Specdata3,
        /// Identifier of the file system.
        pub fsid: u64,
        /// Number within the file system.
        pub fileid: u64,
        /// Time of the last access.
        pub atime: Nfstime3,
        /// Time of the last change of the data.
        pub mtime: Nfstime3,
        /// Time of the last change of the attributes.
        pub ctime: Nfstime3,
    }

    /// Attributes before an operation (`wcc_attr`). They show whether another client changed the
    /// file since.
    #[derive(Copy, Hash, Default)]
    pub struct WccAttr {
        /// Length in bytes.
        pub size: u64,
        /// Time of the last change of the data.
        pub mtime: Nfstime3,
        /// Time of the last change of the attributes.
        pub ctime: Nfstime3,
    }

    /// Attributes before and after an operation (`wcc_data`). The server may omit each of them.
    #[derive(Copy, Hash, Default)]
    pub struct WccData {
        /// Attributes before the operation (`pre_op_attr`).
        pub before: Option<WccAttr>,
        /// Attributes after the operation.
        pub after: PostOpAttr,
    }

    /// Attributes to set (`sattr3`). `None` leaves an attribute unchanged.
    #[derive(Copy, Hash, Default)]
    pub struct Sattr3 {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Length in bytes.
        pub size: Option<u64>,
        /// Time of the last access.
        pub atime: SetTime,
        /// Time of the last change of the data.
        pub mtime: SetTime,
    }

    /// A name in a directory (`diropargs3`).
    pub struct Diropargs3 {
        /// The directory.
        pub dir: Fh3,
        /// The name.
        pub name: Name3,
    }
}

xdr_union! {
    /// The new value of a time attribute (`set_atime`, `set_mtime`).
    #[derive(Copy, Hash, Default)]
    pub enum SetTime {
        /// Leaves the time unchanged.
        #[default]
        DontChange = 0,
        /// Sets the server's present time.
        ToServerTime = 1,
        /// Sets this time.
        ToClientTime(Nfstime3) = 2,
    }
}

/// The results of a procedure: `T` after success, `F` after failure. A failure may contain
/// attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Res<T, F = ()> {
    /// The procedure succeeded.
    Ok(T),
    /// The procedure failed with this status, which is never [`Nfsstat3::OK`].
    Err(Nfsstat3, F),
}

impl<T, F> Res<T, F> {
    /// The status.
    pub fn status(&self) -> Nfsstat3 {
        match self {
            Self::Ok(_) => Nfsstat3::OK,
            Self::Err(status, _) => *status,
        }
    }

    /// Converts into a `std::result::Result`.
    ///
    /// # Errors
    /// The status and the data of the failure.
    pub fn into_result(self) -> std::result::Result<T, (Nfsstat3, F)> {
        match self {
            Self::Ok(v) => Ok(v),
            Self::Err(status, f) => Err((status, f)),
        }
    }
}

impl<T: Xdr, F: Xdr> Xdr for Res<T, F> {
    fn enc(&self, e: &mut Enc) {
        self.status().enc(e);
        match self {
            Self::Ok(v) => v.enc(e),
            Self::Err(status, f) => {
                debug_assert_ne!(*status, Nfsstat3::OK, "a failure needs a status");
                f.enc(e);
            }
        }
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        Ok(match Nfsstat3::dec(d)? {
            Nfsstat3::OK => Self::Ok(T::dec(d)?),
            status => Self::Err(status, F::dec(d)?),
        })
    }
}

#[cfg(any(test, feature = "sample"))]
impl<T: crate::sample::Sample, F: crate::sample::Sample> crate::sample::Sample for Res<T, F> {
    fn sample(s: &mut crate::sample::Source<'_>) -> Self {
        match Nfsstat3::sample(s) {
            Nfsstat3::OK => Self::Ok(T::sample(s)),
            _ if s.byte() & 1 == 0 => Self::Ok(T::sample(s)),
            status => Self::Err(status, F::sample(s)),
        }
    }
}

#[cfg(test)]
mod tests;
