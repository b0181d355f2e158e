//! Arguments of the NQNFS procedures, in the order of their numbers. Field names are those of RFC
//! 1094 and of the paper.

use super::*;

xdr_struct! {
    /// NULL takes nothing.
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
        /// Seconds of the lease for the found objects; 0 for none.
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
        /// Bytes.
        pub count: u32,
    }

    /// WRITECACHE takes nothing.
    #[derive(Copy, Default)]
    pub struct WritecacheArgs {}

    /// WRITE (`nqnfs_writeargs`).
    pub struct WriteArgs {
        /// The file.
        pub file: Fh,
        /// First byte; of no meaning when appending.
        pub offset: u64,
        /// At the end of the file, wherever that is when the call is executed.
        pub append: bool,
        /// The bytes.
        pub data: Nfsdata,
    }

    /// CREATE (`createargs`).
    pub struct CreateArgs {
        /// Directory and name.
        pub r#where: Diropargs,
        /// First attributes.
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
        /// Its target.
        pub to: Path,
        /// First attributes.
        pub attributes: Sattr,
    }

    /// MKDIR.
    pub struct MkdirArgs {
        /// Directory and name.
        pub r#where: Diropargs,
        /// First attributes.
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
        /// Where to go on; 0 at the beginning.
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
        /// Where to go on; 0 at the beginning.
        pub cookie: u32,
        /// Most bytes of the reply.
        pub cnt: u32,
        /// Seconds of the leases to get for the entries; 0 for none.
        pub duration: u32,
    }

    /// GETLEASE.
    #[derive(Copy)]
    pub struct GetleaseArgs {
        /// The file.
        pub file: Fh,
        /// Kind of the lease.
        pub rw: Cachetype,
        /// Seconds.
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
        /// To read it.
        pub read: bool,
        /// To write it.
        pub write: bool,
        /// To execute or search it.
        pub exec: bool,
    }

    /// HELLO. Without it a connection is a client of its own.
    #[derive(Copy)]
    pub struct HelloArgs {
        /// One incarnation of a client, by a number made at random: all connections from one
        /// address with the same number are its own, those that take the place of lost ones
        /// included.
        pub client: u64,
        /// Longest handle that it takes, in bytes on the wire: 32 or 64.
        pub fh_max: u32,
        /// Longest READ and WRITE that it would like, in bytes.
        pub transfer_max: u32,
    }
}
