//! Not Quite NFS (R. Macklem, 1994, appendix "Protocol Details"): NFS version 2 (RFC 1094) with
//! leases, 64-bit sizes and a few procedures more. Program 300105 version 1.
//!
//! It knows nothing of connections or of the meaning of a lease. This file has the common parts of
//! procedures and their table; [`args`] and [`res`] have the procedures. Every call but NULL and
//! EVICTED begins with a request for a lease on its file ([`Asking`]), every successful reply with
//! the answer to that ([`Res`]); both are one word when no lease is asked for. EVICTED travels from
//! the server to the client.
//!
//! Beyond the paper, and never used with peers that do not know them: HELLO, by which a client
//! claims its connections and both sides state their limits, and handles longer than 32 bytes
//! ([`fh`]).
//!
//! The paper leaves open whether VACATED, GETLEASE, READDIRLOOK and ACCESS carry the request, too.
//! In 4.4BSD everything but EVICTED does, so it is so here; NULL has no arguments, as in RFC 1094.

pub mod args;
pub mod fh;
pub mod mount1;
pub mod res;

use crate::xdr::{Dec, Enc, Opaque, Result, Xdr};
use crate::{rpc_program, xdr_enum, xdr_struct, xdr_union};
pub use args::*;
pub use fh::Fh;
pub use res::*;

/// Program number of NQNFS.
pub const PROGRAM: u32 = 300_105;
/// Its only version.
pub const VERSION: u32 = 1;

/// Bytes of a file handle (`FHSIZE` of RFC 1094).
pub const FH_BYTES: usize = 32;
/// Longest name of one component (`MAXNAMLEN`).
pub const NAME_MAX_BYTES: usize = 255;
/// Longest content of a symbolic link (`MAXPATHLEN`).
pub const PATH_MAX_BYTES: usize = 1024;
/// Longest READ or WRITE payload. NFS has 8192 bytes; NQNFS lifts that (section 6), and a record
/// ends long before this.
pub const DATA_MAX_BYTES: usize = 1 << 30;
/// Payload that every peer takes, also over UDP (`MAXDATA`).
pub const DATA_SAFE_BYTES: u32 = 8192;
/// Most entries of a READDIR or READDIRLOOK reply that are listened to; the protocol sets no bound.
pub const ENTRIES_MAX: usize = 1 << 17;
/// In [`Sattr`], beyond the paper and only for servers that know HELLO: the server's present time.
pub const SERVER_TIME: Time = Time { seconds: 0, nano_seconds: 1_000_000_000 };
/// In [`Sattr`]: leave it as it is.
pub const DONT_SET: u32 = u32::MAX;

/// Name of one component (`filename`); bytes of no particular encoding.
pub type Filename = Opaque<NAME_MAX_BYTES>;
/// Content of a symbolic link (`path`).
pub type Path = Opaque<PATH_MAX_BYTES>;
/// READ or WRITE payload (`nfsdata`).
pub type Nfsdata = Opaque<DATA_MAX_BYTES>;
/// Grows with every modification of the file, and is never zero (`modifyrev`).
pub type Modifyrev = u64;

rpc_program! {
    /// NQNFS version 1.
    program 300105 version 1, NqProc, NqCall, NqReply {
        /// Does nothing.
        NULL = 0, Null(NullArgs) -> ();
        /// Attributes of a file.
        GETATTR = 1, Getattr(Asking<GetattrArgs>) -> Res<Fattr>;
        /// Sets attributes.
        SETATTR = 2, Setattr(Asking<SetattrArgs>) -> Res<Fattr>;
        /// Obsolete.
        ROOT = 3, Root(Asking<RootArgs>) -> ();
        /// A name becomes a handle, on demand with a lease.
        LOOKUP = 4, Lookup(Asking<LookupArgs>) -> Res<LookupOk>;
        /// Content of a symbolic link.
        READLINK = 5, Readlink(Asking<ReadlinkArgs>) -> Res<Path>;
        /// Reads from a file.
        READ = 6, Read(Asking<ReadArgs>) -> Res<ReadOk>;
        /// Never used.
        WRITECACHE = 7, Writecache(Asking<WritecacheArgs>) -> ();
        /// Writes to a file.
        WRITE = 8, Write(Asking<WriteArgs>) -> Res<Fattr>;
        /// Creates a file.
        CREATE = 9, Create(Asking<CreateArgs>) -> Res<DiropOk>;
        /// Removes a file.
        REMOVE = 10, Remove(Asking<RemoveArgs>) -> Res<()>;
        /// Renames.
        RENAME = 11, Rename(Asking<RenameArgs>) -> Res<()>;
        /// Creates a hard link.
        LINK = 12, Link(Asking<LinkArgs>) -> Res<()>;
        /// Creates a symbolic link.
        SYMLINK = 13, Symlink(Asking<SymlinkArgs>) -> Res<()>;
        /// Creates a directory.
        MKDIR = 14, Mkdir(Asking<MkdirArgs>) -> Res<DiropOk>;
        /// Removes a directory.
        RMDIR = 15, Rmdir(Asking<RmdirArgs>) -> Res<()>;
        /// Lists names.
        READDIR = 16, Readdir(Asking<ReaddirArgs>) -> Res<ReaddirOk>;
        /// How full the file system is.
        STATFS = 17, Statfs(Asking<StatfsArgs>) -> Res<StatfsOk>;
        /// Lists names, handles, attributes and leases (Readdir_and_Lookup).
        READDIRLOOK = 18, Readdirlook(Asking<ReaddirlookArgs>) -> Res<ReaddirlookOk>;
        /// Gets a lease.
        GETLEASE = 19, Getlease(Asking<GetleaseArgs>) -> Res<GetleaseOk>;
        /// Client to server: a lease is given up.
        VACATED = 20, Vacated(Asking<VacatedArgs>) -> ();
        /// Server to client: a lease is to be given up.
        EVICTED = 21, Evicted(EvictedArgs) -> ();
        /// Asks for the caller's rights.
        ACCESS = 22, Access(Asking<AccessArgs>) -> Res<()>;
        /// Extension: the client of this connection, and the limits of both sides.
        HELLO = 0x6869_7468, Hello(Asking<HelloArgs>) -> Res<HelloOk>;
    }
}

xdr_enum! {
    /// The status of a procedure (`stat`), without its prefixes `NFSERR_` and `NQNFS_`.
    pub enum Stat {
        OK = 0,
        PERM = 1,
        NOENT = 2,
        IO = 5,
        NXIO = 6,
        ACCES = 13,
        EXIST = 17,
        NODEV = 19,
        NOTDIR = 20,
        ISDIR = 21,
        FBIG = 27,
        NOSPC = 28,
        ROFS = 30,
        NAMETOOLONG = 63,
        NOTEMPTY = 66,
        DQUOT = 69,
        STALE = 70,
        WFLUSH = 99,
        /// The lease that the call relies on is over.
        EXPIRED = 500,
        /// The server recovers, or is waiting for others.
        TRYLATER = 501,
        /// The credential was refused.
        AUTHERR = 502,
    }

    /// Type of a file (`ftype`).
    pub enum Ftype { NON = 0, REG = 1, DIR = 2, BLK = 3, CHR = 4, LNK = 5 }

    /// Kind of a lease (`cachetype`).
    pub enum Cachetype {
        /// No lease.
        NONE = 0,
        /// Reads may be cached.
        READ = 1,
        /// Writes may be delayed.
        WRITE = 2,
    }
}

xdr_union! {
    /// A lease asked for along with a call (`getleaserequest`); the number is its term in seconds.
    #[derive(Copy, Default)]
    pub enum LeaseRequest else Other {
        /// None.
        #[default]
        None = Cachetype::NONE.0,
        /// For reading.
        Read(u32) = Cachetype::READ.0,
        /// For writing.
        Write(u32) = Cachetype::WRITE.0,
    }

    /// The result of GETLEASE (`getleaserequestres`).
    #[derive(Copy, Default)]
    pub enum LeaseReply else Other {
        /// None was asked for, or given.
        #[default]
        None = Cachetype::NONE.0,
        /// For reading.
        Read(Lease) = Cachetype::READ.0,
        /// For writing.
        Write(Lease) = Cachetype::WRITE.0,
    }
}

xdr_struct! {
    /// A lease.
    #[derive(Copy, Default)]
    pub struct Lease {
        /// False for a non-caching lease.
        pub cachable: bool,
        /// Seconds from when it was issued.
        pub duration: u32,
        /// The file's modify revision.
        pub rev: Modifyrev,
    }

    /// A time since 1970 (`nqnfs_time`).
    #[derive(Copy, Hash, Default, PartialOrd, Ord)]
    pub struct Time {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds.
        pub nano_seconds: u32,
    }

    /// Attributes of a file (`nqnfs_fattr`).
    #[derive(Copy, Hash, Default)]
    pub struct Fattr {
        /// Type.
        pub ftype: Ftype,
        /// Permission bits with the type.
        pub mode: u32,
        /// Hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length in bytes.
        pub size: u64,
        /// Preferred size of transfers in bytes.
        pub blocksize: u32,
        /// Device, for special files.
        pub rdev: u32,
        /// Bytes of storage it takes.
        pub bytes: u64,
        /// File system.
        pub fsid: u32,
        /// Number within the file system.
        pub fid: u32,
        /// Last access.
        pub atime: Time,
        /// Last change of the data.
        pub mtime: Time,
        /// Last change of the attributes.
        pub ctime: Time,
        /// `va_flags` of 4.4BSD.
        pub flags: u32,
        /// `va_gen` of 4.4BSD.
        pub gen_number: u32,
        /// Modify revision.
        pub rev: Modifyrev,
    }

    /// Attributes to set (`nqnfs_sattr`); all ones leave one as it is.
    #[derive(Copy, Hash)]
    pub struct Sattr {
        /// Permission bits.
        pub mode: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length in bytes.
        pub size: u64,
        /// Last access.
        pub atime: Time,
        /// Last change of the data.
        pub mtime: Time,
        /// `va_flags` of 4.4BSD.
        pub flags: u32,
        /// As the paper has it: an unsigned integer, whose use it does not tell.
        pub rev: u32,
    }

    /// A name in a directory (`diropargs`).
    pub struct Diropargs {
        /// The directory.
        pub dir: Fh,
        /// The name.
        pub name: Filename,
    }
}

impl Sattr {
    /// Leaves everything as it is.
    pub const NOTHING: Self = {
        let time = Time { seconds: DONT_SET, nano_seconds: DONT_SET };
        Self {
            mode: DONT_SET,
            uid: DONT_SET,
            gid: DONT_SET,
            size: u64::MAX,
            atime: time,
            mtime: time,
            flags: DONT_SET,
            rev: DONT_SET,
        }
    };
}

/// Arguments with the lease that is asked for along with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking<A> {
    /// Comes first, and is about the file that the procedure works on.
    pub lease: LeaseRequest,
    /// The procedure's own.
    pub args: A,
}

impl<A> Asking<A> {
    /// No lease is asked for.
    pub fn nothing(args: A) -> Self {
        Self { lease: LeaseRequest::None, args }
    }
}

impl<A: Xdr> Xdr for Asking<A> {
    fn enc(&self, e: &mut Enc) {
        self.lease.enc(e);
        self.args.enc(e);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        Ok(Self { lease: LeaseRequest::dec(d)?, args: A::dec(d)? })
    }
}

/// The results of a procedure: with the lease and `T` when it succeeded, nothing but the status
/// when it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Res<T> {
    /// It succeeded. The lease stands between status and results.
    Ok(LeaseReply, T),
    /// It failed with this status, which is never [`Stat::OK`].
    Err(Stat),
}

impl<T> Res<T> {
    /// The status.
    pub fn status(&self) -> Stat {
        match self {
            Self::Ok(..) => Stat::OK,
            Self::Err(status) => *status,
        }
    }

    /// As a `std::result::Result`.
    ///
    /// # Errors
    /// The status.
    pub fn into_result(self) -> std::result::Result<(LeaseReply, T), Stat> {
        match self {
            Self::Ok(lease, v) => Ok((lease, v)),
            Self::Err(status) => Err(status),
        }
    }
}

impl<T: Xdr> Xdr for Res<T> {
    fn enc(&self, e: &mut Enc) {
        self.status().enc(e);
        match self {
            Self::Ok(lease, v) => {
                lease.enc(e);
                v.enc(e);
            }
            Self::Err(status) => debug_assert_ne!(*status, Stat::OK, "a failure needs a status"),
        }
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        Ok(match Stat::dec(d)? {
            Stat::OK => Self::Ok(LeaseReply::dec(d)?, T::dec(d)?),
            status => Self::Err(status),
        })
    }
}

#[cfg(any(test, feature = "sample"))]
mod sample {
    use super::{Asking, LeaseReply, LeaseRequest, Res, Stat};
    use crate::sample::{Sample, Source};

    impl<A: Sample> Sample for Asking<A> {
        fn sample(s: &mut Source<'_>) -> Self {
            Self { lease: LeaseRequest::sample(s), args: A::sample(s) }
        }
    }

    impl<T: Sample> Sample for Res<T> {
        fn sample(s: &mut Source<'_>) -> Self {
            match Stat::sample(s) {
                Stat::OK => Self::Ok(LeaseReply::sample(s), T::sample(s)),
                _ if s.byte() & 1 == 0 => Self::Ok(LeaseReply::sample(s), T::sample(s)),
                status => Self::Err(status),
            }
        }
    }
}

#[cfg(test)]
mod tests;
