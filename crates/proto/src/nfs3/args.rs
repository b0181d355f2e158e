//! Arguments of the NFSv3 procedures, in the order of RFC 1813 section 3.3. Field names are those
//! of the RFC.

use super::*;

xdr_struct! {
    /// Arguments of NULL (none).
    #[derive(Copy, Default)]
    pub struct NullArgs {}

    /// GETATTR.
    pub struct GetattrArgs {
        /// The file.
        pub object: Fh3,
    }

    /// SETATTR.
    pub struct SetattrArgs {
        /// The file.
        pub object: Fh3,
        /// The attributes to set.
        pub new_attributes: Sattr3,
        /// The call succeeds only if the file's ctime equals this time (`sattrguard3`).
        pub guard: Option<Nfstime3>,
    }

    /// LOOKUP.
    pub struct LookupArgs {
        /// Directory and name.
        pub what: Diropargs3,
    }

    /// ACCESS.
    pub struct AccessArgs {
        /// The file.
        pub object: Fh3,
        /// Bits of [`access`] to check.
        pub access: u32,
    }

    /// READLINK.
    pub struct ReadlinkArgs {
        /// The symbolic link.
        pub symlink: Fh3,
    }

    /// READ.
    pub struct ReadArgs {
        /// The file.
        pub file: Fh3,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub count: u32,
    }

    /// WRITE.
    pub struct WriteArgs {
        /// The file.
        pub file: Fh3,
        /// First byte.
        pub offset: u64,
        /// Number of bytes. A correct peer sends the length of `data`.
        pub count: u32,
        /// Requested stability.
        pub stable: StableHow,
        /// The data.
        pub data: Data3,
    }

    /// CREATE.
    pub struct CreateArgs {
        /// Directory and name.
        pub r#where: Diropargs3,
        /// The behaviour if the name exists.
        pub how: Createhow3,
    }

    /// MKDIR.
    pub struct MkdirArgs {
        /// Directory and name.
        pub r#where: Diropargs3,
        /// Attributes of the new directory.
        pub attributes: Sattr3,
    }

    /// SYMLINK.
    pub struct SymlinkArgs {
        /// Directory and name.
        pub r#where: Diropargs3,
        /// Attributes of the new link.
        pub symlink_attributes: Sattr3,
        /// Target of the new link.
        pub symlink_data: NewPath3,
    }

    /// MKNOD.
    pub struct MknodArgs {
        /// Directory and name.
        pub r#where: Diropargs3,
        /// The object to create.
        pub what: Mknoddata3,
    }

    /// A new device (`devicedata3`).
    #[derive(Copy)]
    pub struct Devicedata3 {
        /// Attributes of the new device.
        pub dev_attributes: Sattr3,
        /// Major and minor number.
        pub spec: Specdata3,
    }

    /// REMOVE.
    pub struct RemoveArgs {
        /// Directory and name.
        pub object: Diropargs3,
    }

    /// RMDIR.
    pub struct RmdirArgs {
        /// Directory and name.
        pub object: Diropargs3,
    }

    /// RENAME.
    pub struct RenameArgs {
        /// Present directory and name.
        pub from: Diropargs3,
        /// New directory and name.
        pub to: Diropargs3,
    }

    /// LINK.
    pub struct LinkArgs {
        /// The file.
        pub file: Fh3,
        /// Directory and name of the new link.
        pub link: Diropargs3,
    }

    /// READDIR.
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: Fh3,
        /// Cookie of the last entry; 0 at the beginning.
        pub cookie: u64,
        /// Verifier from the reply that contained the cookie; zeros at the beginning.
        pub cookieverf: Cookieverf3,
        /// Most bytes of the reply.
        pub count: u32,
    }

    /// READDIRPLUS.
    pub struct ReaddirplusArgs {
        /// The directory.
        pub dir: Fh3,
        /// Cookie of the last entry; 0 at the beginning.
        pub cookie: u64,
        /// Verifier from the reply that contained the cookie; zeros at the beginning.
        pub cookieverf: Cookieverf3,
        /// Most bytes of names and cookies.
        pub dircount: u32,
        /// Most bytes of the reply.
        pub maxcount: u32,
    }

    /// FSSTAT.
    pub struct FsstatArgs {
        /// Any file of the file system.
        pub fsroot: Fh3,
    }

    /// FSINFO.
    pub struct FsinfoArgs {
        /// Any file of the file system.
        pub fsroot: Fh3,
    }

    /// PATHCONF.
    pub struct PathconfArgs {
        /// The file.
        pub object: Fh3,
    }

    /// COMMIT.
    pub struct CommitArgs {
        /// The file.
        pub file: Fh3,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; 0 means to the end of the file.
        pub count: u32,
    }
}

xdr_union! {
    /// The behaviour of CREATE if the name exists (`createhow3`).
    #[derive(Copy)]
    pub enum Createhow3 {
        /// Sets the attributes of the existing file.
        Unchecked(Sattr3) = 0,
        /// Fails if the name exists.
        Guarded(Sattr3) = 1,
        /// Fails if the name exists, except for a repeated request with the same verifier.
        Exclusive(Createverf3) = 2,
    }

    /// The new object of MKNOD (`mknoddata3`).
    #[derive(Copy)]
    pub enum Mknoddata3 else Other {
        /// A block device.
        Blk(Devicedata3) = Ftype3::BLK.0,
        /// A character device.
        Chr(Devicedata3) = Ftype3::CHR.0,
        /// A socket.
        Sock(Sattr3) = Ftype3::SOCK.0,
        /// A named pipe.
        Fifo(Sattr3) = Ftype3::FIFO.0,
    }
}
