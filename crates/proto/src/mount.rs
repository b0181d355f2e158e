//! MOUNT version 3 (RFC 1813 appendix I), which maps a path of the server to NFSv3's first
//! filehandle.
//!
//! This module has no NFS procedures. MOUNT version 1 has the same program and procedure numbers.
//! Its MNT returns NFSv2 handles and is in [`crate::nqnfs`]; its other procedures have the same
//! messages.

use crate::rpc::AuthFlavor;
use crate::xdr::{Chain, List, Opaque};
use crate::{rpc_program, xdr_enum, xdr_struct, xdr_union};

/// Program number of MOUNT.
pub const PROGRAM: u32 = 100_005;
/// The version for NFSv3.
pub const VERSION: u32 = 3;

/// Longest path (`MNTPATHLEN`).
pub const PATH_MAX_BYTES: usize = 1024;
/// Longest name of a host or group (`MNTNAMLEN`).
pub const NAME_MAX_BYTES: usize = 255;
/// Longest file handle (`FHSIZE3`).
pub const FH_MAX_BYTES: usize = 64;
/// Most exports, mounts, or groups of an export that are decoded. The RFC sets no bound.
pub const LIST_MAX: usize = 65536;
/// Most flavors of an export; there are about eight.
pub const FLAVORS_MAX: usize = 256;

/// Path on the server (`dirpath`).
pub type Dirpath = Opaque<PATH_MAX_BYTES>;
/// Name of a host or group (`name`).
pub type Name = Opaque<NAME_MAX_BYTES>;

rpc_program! {
    /// MOUNT version 3 (RFC 1813 appendix I).
    program 100005 version 3, MountProc, MountCall, MountReply {
        /// Does nothing.
        NULL = 0, Null(NullArgs) -> ();
        /// Maps a path to a handle. The server records the client.
        MNT = 1, Mnt(MntArgs) -> MntRes;
        /// The recorded clients and their mounts.
        DUMP = 2, Dump(DumpArgs) -> Chain<Mountbody, LIST_MAX>;
        /// Removes the record of one mount.
        UMNT = 3, Umnt(UmntArgs) -> ();
        /// Removes the records of all mounts of the caller.
        UMNTALL = 4, Umntall(UmntallArgs) -> ();
        /// The exports, and the clients that may mount them.
        EXPORT = 5, Export(ExportArgs) -> Chain<Exportnode, LIST_MAX>;
    }
}

xdr_enum! {
    /// The status of MNT (`mountstat3`), without its prefix `MNT3ERR_`.
    pub enum Mountstat3 {
        OK = 0,
        PERM = 1,
        NOENT = 2,
        IO = 5,
        ACCES = 13,
        NOTDIR = 20,
        INVAL = 22,
        NAMETOOLONG = 63,
        NOTSUPP = 10004,
        SERVERFAULT = 10006,
    }
}

xdr_struct! {
    /// NULL takes nothing.
    pub struct NullArgs {}
    /// MNT.
    pub struct MntArgs { /// The path to mount.
        pub dirpath: Dirpath }
    /// DUMP takes nothing.
    pub struct DumpArgs {}
    /// UMNT.
    pub struct UmntArgs { /// The path to unmount.
        pub dirpath: Dirpath }
    /// UMNTALL takes nothing.
    pub struct UmntallArgs {}
    /// EXPORT takes nothing.
    pub struct ExportArgs {}

    /// MNT succeeded (`mountres3_ok`).
    pub struct MntOk {
        /// Handle of the path.
        pub fhandle: Opaque<FH_MAX_BYTES>,
        /// Authentication flavors for callers, in the server's order of preference.
        pub auth_flavors: List<AuthFlavor, FLAVORS_MAX>,
    }

    /// A mount in the server's records (`mountbody`).
    pub struct Mountbody {
        /// Name of the client.
        pub hostname: Name,
        /// The mounted directory.
        pub directory: Dirpath,
    }

    /// An export (`exportnode`).
    pub struct Exportnode {
        /// Path of the export.
        pub dir: Dirpath,
        /// Clients that may mount it; an empty list means all clients.
        pub groups: Chain<Name, LIST_MAX>,
    }
}

xdr_union! {
    /// The result of MNT (`mountres3`).
    pub enum MntRes else Refused {
        /// Success: the handle and the authentication flavors.
        Granted(MntOk) = Mountstat3::OK.0,
    }
}

impl MntRes {
    /// Converts into a `std::result::Result`.
    ///
    /// # Errors
    /// The status of a refusal.
    pub fn into_result(self) -> Result<MntOk, Mountstat3> {
        match self {
            Self::Granted(ok) => Ok(ok),
            Self::Refused(status) => Err(Mountstat3(status)),
        }
    }
}

#[cfg(test)]
mod tests;
