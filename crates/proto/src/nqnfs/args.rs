//! Arguments of the NQNFS procedures, in the order of their numbers. Field names are those of RFC
//! 1094 and of the paper.

use super::*;

xdr_struct! {
    /// Arguments of NULL (none).
    #[derive(Copy, Default)]
    pub struct NullArgs {}

    /// GETATTR.
    #[derive(Copy)]
    pub struct GetattrArgs { /// The file.
        pub file: Fh }

    /// SETATTR (`sattrargs`).
    #[derive(Copy)]
    pub struct SetattrArgs {
        /// The file.
        pub file: Fh,
        /// The attributes to set.
        pub attributes: Sattr,
    }

    /// ROOT takes nothing.
    #[derive(Copy, Default)]
    pub struct RootArgs {}

    /// LOOKUP (`lookup_diropargs`).
    pub struct LookupArgs {
        /// Term of the lease on the found object in seconds; 0 for none.
        pub duration: u32,
        /// The directory.
        pub dir: Fh,
        /// The name.
        pub name: Filename,
    }

    /// READLINK.
    #[derive(Copy)]
    pub struct ReadlinkArgs { /// The symbolic link.
        pub file: Fh }

    /// READ (`nqnfs_readargs`).
    #[derive(Copy)]
    pub struct ReadArgs {
        /// The file.
        pub file: Fh,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub count: u32,
    }

    /// WRITECACHE takes nothing.
    #[derive(Copy, Default)]
    pub struct WritecacheArgs {}

    /// WRITE (`nqnfs_writeargs`).
    pub struct WriteArgs {
        /// The file.
        pub file: Fh,
        /// First byte; ignored when appending.
        pub offset: u64,
        /// Append at the end of the file at the time of execution.
        pub append: bool,
        /// The data.
        pub data: Nfsdata,
    }

    /// CREATE (`createargs`).
    pub struct CreateArgs {
        /// Directory and name.
        pub r#where: Diropargs,
        /// Attributes of the new file.
        pub attributes: Sattr,
    }

    /// REMOVE.
    pub struct RemoveArgs { /// Directory and name.
        pub what: Diropargs }

    /// RENAME.
    pub struct RenameArgs {
        /// Present directory and name.
        pub from: Diropargs,
        /// New directory and name.
        pub to: Diropargs,
    }

    /// LINK.
    pub struct LinkArgs {
        /// The file.
        pub from: Fh,
        /// Directory and name of the new link.
        pub to: Diropargs,
    }

    /// SYMLINK.
    pub struct SymlinkArgs {
        /// Directory and name.
        pub from: Diropargs,
        /// Target of the new link.
        pub to: Path,
        /// Attributes of the new link.
        pub attributes: Sattr,
    }

    /// MKDIR.
    pub struct MkdirArgs {
        /// Directory and name.
        pub r#where: Diropargs,
        /// Attributes of the new directory.
        pub attributes: Sattr,
    }

    /// RMDIR.
    pub struct RmdirArgs { /// Directory and name.
        pub what: Diropargs }

    /// READDIR.
    #[derive(Copy)]
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: Fh,
        /// Cookie of the last entry; 0 at the beginning.
        pub cookie: u32,
        /// Most bytes of the reply.
        pub count: u32,
    }

    /// STATFS.
    #[derive(Copy)]
    pub struct StatfsArgs { /// Any file of the file system.
        pub file: Fh }

    /// READDIRLOOK.
    #[derive(Copy)]
    pub struct ReaddirlookArgs {
        /// The directory.
        pub file: Fh,
        /// Cookie of the last entry; 0 at the beginning.
        pub cookie: u32,
        /// Most bytes of the reply.
        pub cnt: u32,
        /// Term of the leases on the entries in seconds; 0 for none.
        pub duration: u32,
    }

    /// GETLEASE.
    #[derive(Copy)]
    pub struct GetleaseArgs {
        /// The file.
        pub file: Fh,
        /// Kind of the lease.
        pub rw: Cachetype,
        /// Term in seconds.
        pub duration: u32,
    }

    /// VACATED.
    #[derive(Copy)]
    pub struct VacatedArgs { /// The file.
        pub file: Fh }

    /// EVICTED.
    #[derive(Copy)]
    pub struct EvictedArgs { /// The file.
        pub file: Fh }

    /// ACCESS.
    #[derive(Copy)]
    pub struct AccessArgs {
        /// The file.
        pub file: Fh,
        /// Check read access.
        pub read: bool,
        /// Check write access.
        pub write: bool,
        /// Check execute or search access.
        pub exec: bool,
    }

    /// HELLO. Without it each connection counts as a separate client.
    #[derive(Copy)]
    pub struct HelloArgs {
        /// A random number that identifies one instance of a client. All connections from one
        /// address with the same number belong to that client, including those that replace lost
        /// ones.
        pub client: u64,
        /// Longest handle that the client accepts, in bytes on the wire: 32 or 64.
        pub fh_max: u32,
        /// Preferred longest READ and WRITE, in bytes.
        pub transfer_max: u32,
    }
}
