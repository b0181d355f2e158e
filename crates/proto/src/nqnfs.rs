//! Not Quite NFS (R. Macklem, 1994, appendix "Protocol Details"): NFS version 2 (RFC 1094) with
//! leases, 64-bit sizes and some further procedures. Program 300105 version 1.
//!
//! This module has no connections and no lease logic. This file has the common parts of procedures
//! and their table; [`args`] and [`res`] have the arguments and results. Every call except NULL and
//! EVICTED begins with a request for a lease on its file ([`Asking`]). Every successful reply
//! begins with the answer to that request ([`Res`]). Request and answer are one word each when no
//! lease is requested. EVICTED is a call from the server to the client.
//!
//! Two extensions exceed the paper and are used only between peers that know them. With HELLO a
//! client claims its connections, and both sides state their limits. Handles may exceed 32 bytes
//! ([`fh`]).
//!
//! The paper does not state whether VACATED, GETLEASE, READDIRLOOK and ACCESS contain the lease
//! request. In 4.4BSD every procedure except EVICTED contains it, and this module does the same.
//! NULL has no arguments, as in RFC 1094.

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
/// The only version of NQNFS.
pub const VERSION: u32 = 1;

/// Bytes of a file handle (`FHSIZE` of RFC 1094).
pub const FH_BYTES: usize = 32;
/// Longest name of one component (`MAXNAMLEN`).
pub const NAME_MAX_BYTES: usize = 255;
/// Longest target of a symbolic link (`MAXPATHLEN`).
pub const PATH_MAX_BYTES: usize = 1024;
/// Longest READ or WRITE payload. NFS allows 8192 bytes; NQNFS removes that limit (section 6). The
/// shorter limit of a record applies first.
pub const DATA_MAX_BYTES: usize = 1 << 30;
/// Payload that every peer accepts, also over UDP (`MAXDATA`).
pub const DATA_SAFE_BYTES: u32 = 8192;
/// Most entries of a READDIR or READDIRLOOK reply that are decoded. The protocol sets no bound.
pub const ENTRIES_MAX: usize = 1 << 17;
/// In [`Sattr`]: the server's present time. It exceeds the paper and is sent only to servers that
/// know HELLO.
pub const SERVER_TIME: Time = Time { seconds: 0, nano_seconds: 1_000_000_000 };
/// In [`Sattr`]: leaves the attribute unchanged.
pub const DONT_SET: u32 = u32::MAX;

/// Name of one component (`filename`), bytes without an encoding.
pub type Filename = Opaque<NAME_MAX_BYTES>;
/// Target of a symbolic link (`path`).
pub type Path = Opaque<PATH_MAX_BYTES>;
/// READ or WRITE payload (`nfsdata`).
pub type Nfsdata = Opaque<DATA_MAX_BYTES>;
/// Increases with every modification of the file and is never zero (`modifyrev`).
pub type Modifyrev = u64;

rpc_program! {
    /// NQNFS version 1.
    program 300105 version 1, NqProc, NqCall, NqReply {
        /// Does nothing.
        NULL = 0, Null(NullArgs) -> ();
        /// Returns the attributes of a file.
        GETATTR = 1, Getattr(Asking<GetattrArgs>) -> Res<Fattr>;
        /// Sets attributes.
        SETATTR = 2, Setattr(Asking<SetattrArgs>) -> Res<Fattr>;
        /// Obsolete.
        ROOT = 3, Root(Asking<RootArgs>) -> ();
        /// Looks up a name and returns its handle, on request with a lease.
        LOOKUP = 4, Lookup(Asking<LookupArgs>) -> Res<LookupOk>;
        /// Returns the target of a symbolic link.
        READLINK = 5, Readlink(Asking<ReadlinkArgs>) -> Res<Path>;
        /// Reads from a file.
        READ = 6, Read(Asking<ReadArgs>) -> Res<ReadOk>;
        /// Not used.
        WRITECACHE = 7, Writecache(Asking<WritecacheArgs>) -> ();
        /// Writes to a file.
        WRITE = 8, Write(Asking<WriteArgs>) -> Res<Fattr>;
        /// Creates a file.
        CREATE = 9, Create(Asking<CreateArgs>) -> Res<DiropOk>;
        /// Removes a file.
        REMOVE = 10, Remove(Asking<RemoveArgs>) -> Res<()>;
        /// Renames an entry.
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
        /// Returns the free and total space of the file system.
        STATFS = 17, Statfs(Asking<StatfsArgs>) -> Res<StatfsOk>;
        /// Lists names, handles, attributes and leases (Readdir_and_Lookup).
        READDIRLOOK = 18, Readdirlook(Asking<ReaddirlookArgs>) -> Res<ReaddirlookOk>;
        /// Requests a lease.
        GETLEASE = 19, Getlease(Asking<GetleaseArgs>) -> Res<GetleaseOk>;
        /// Client to server: the client has given up a lease.
        VACATED = 20, Vacated(Asking<VacatedArgs>) -> ();
        /// Server to client: the client must give up a lease.
        EVICTED = 21, Evicted(EvictedArgs) -> ();
        /// Checks the caller's access rights.
        ACCESS = 22, Access(Asking<AccessArgs>) -> Res<()>;
        /// Extension: identifies the client of this connection and states the limits of both sides.
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
        /// The lease of the call has expired.
        EXPIRED = 500,
        /// The server is in its recovery period, or waits for other clients.
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
        /// The client may cache reads.
        READ = 1,
        /// The client may delay writes.
        WRITE = 2,
    }
}

xdr_union! {
    /// A lease request in a call (`getleaserequest`). The number is the term in seconds.
    #[derive(Copy, Default)]
    pub enum LeaseRequest else Other {
        /// No lease is requested.
        #[default]
        None = Cachetype::NONE.0,
        /// A read lease.
        Read(u32) = Cachetype::READ.0,
        /// A write lease.
        Write(u32) = Cachetype::WRITE.0,
    }

    /// The answer to a lease request (`getleaserequestres`).
    #[derive(Copy, Default)]
    pub enum LeaseReply else Other {
        /// No lease was requested or granted.
        #[default]
        None = Cachetype::NONE.0,
        /// A read lease.
        Read(Lease) = Cachetype::READ.0,
        /// A write lease.
        Write(Lease) = Cachetype::WRITE.0,
    }
}

xdr_struct! {
    /// A lease.
    #[derive(Copy, Default)]
    pub struct Lease {
        /// False for a non-caching lease.
        pub cachable: bool,
        /// Seconds from the issue of the lease.
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
        /// Number of hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Length in bytes.
        pub size: u64,
        /// Preferred size of transfers in bytes.
        pub blocksize: u32,
        /// Device number, for special files.
        pub rdev: u32,
        /// Bytes of storage that the file occupies.
        pub bytes: u64,
        /// Identifier of the file system.
        pub fsid: u32,
        /// Number within the file system.
        pub fid: u32,
        /// Time of the last access.
        pub atime: Time,
        /// Time of the last change of the data.
        pub mtime: Time,
        /// Time of the last change of the attributes.
        pub ctime: Time,
        /// `va_flags` of 4.4BSD.
        pub flags: u32,
        /// `va_gen` of 4.4BSD.
        pub gen_number: u32,
        /// Modify revision.
        pub rev: Modifyrev,
    }

    /// Attributes to set (`nqnfs_sattr`). A value of all ones leaves an attribute unchanged.
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
        /// Time of the last access.
        pub atime: Time,
        /// Time of the last change of the data.
        pub mtime: Time,
        /// `va_flags` of 4.4BSD.
        pub flags: u32,
        /// An unsigned integer in the paper, which does not state its use.
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
    /// Leaves all attributes unchanged.
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

/// Arguments with a lease request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking<A> {
    /// The lease request, which comes first. It concerns the procedure's file.
    pub lease: LeaseRequest,
    /// The procedure's arguments.
    pub args: A,
}

impl<A> Asking<A> {
    /// Arguments without a lease request.
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

/// The results of a procedure: the lease answer and `T` after success, only the status after
/// failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Res<T> {
    /// The procedure succeeded. The lease answer is between the status and the results.
    Ok(LeaseReply, T),
    /// The procedure failed with this status, which is never [`Stat::OK`].
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

    /// Converts into a `std::result::Result`.
    ///
    /// # Errors
    /// The status of the failure.
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
