//! The kernel's FUSE protocol, version 7.34 to 7.45: numbers and layouts.
//!
//! The module has no file system logic. A request is parsed once, from the buffer that the kernel
//! filled, into an [`Op`]. Names and payloads of an [`Op`] are slices of that buffer. Replies are
//! built as bytes. All integers are in the machine's byte order. A request that is shorter than its
//! layout is an error, never a panic. (Source: the kernel's `include/uapi/linux/fuse.h`.)

mod init;
mod parse;
mod reply;
#[cfg(test)]
mod tests;

pub(crate) use init::{InitIn, InitOut, init_flags};
pub(crate) use parse::{Header, LockCall, NewMode, Op, SetattrIn};
pub(crate) use reply::{
    DIRENT_BYTES, DIRENTPLUS_BYTES, EntryReply, Out, attr_out, dirent, direntplus, entry_out, open_out,
    set_times,
};

/// Protocol major version.
pub(crate) const MAJOR: u32 = 7;
/// Newest supported minor version.
pub(crate) const MINOR: u32 = 45;
/// Oldest supported minor version: Linux 5.15 offers 7.34.
pub(crate) const MINOR_OLDEST: u32 = 34;
/// Number of the root inode.
pub(crate) const ROOT_ID: u64 = 1;
/// Size of the header of every request in bytes.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Size of the header of every reply and notification in bytes.
pub(crate) const OUT_HEADER_BYTES: usize = 16;
/// Size of a WRITE request before its payload in bytes.
pub(crate) const WRITE_HEAD_BYTES: usize = IN_HEADER_BYTES + 40;

/// Operation codes.
pub(crate) mod opcode {
    #![allow(missing_docs)]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const COPY_FILE_RANGE_64: u32 = 53;
    /// The largest code plus one, for tables.
    pub const COUNT: usize = 64;

    /// Name of a code in the kernel's header.
    pub fn name(code: u32) -> &'static str {
        const NAMES: [&str; 54] = [
            "",
            "LOOKUP",
            "FORGET",
            "GETATTR",
            "SETATTR",
            "READLINK",
            "SYMLINK",
            "",
            "MKNOD",
            "MKDIR",
            "UNLINK",
            "RMDIR",
            "RENAME",
            "LINK",
            "OPEN",
            "READ",
            "WRITE",
            "STATFS",
            "RELEASE",
            "",
            "FSYNC",
            "SETXATTR",
            "GETXATTR",
            "LISTXATTR",
            "REMOVEXATTR",
            "FLUSH",
            "INIT",
            "OPENDIR",
            "READDIR",
            "RELEASEDIR",
            "FSYNCDIR",
            "GETLK",
            "SETLK",
            "SETLKW",
            "ACCESS",
            "CREATE",
            "INTERRUPT",
            "BMAP",
            "DESTROY",
            "IOCTL",
            "POLL",
            "NOTIFY_REPLY",
            "BATCH_FORGET",
            "FALLOCATE",
            "READDIRPLUS",
            "RENAME2",
            "LSEEK",
            "COPY_FILE_RANGE",
            "SETUPMAPPING",
            "REMOVEMAPPING",
            "SYNCFS",
            "TMPFILE",
            "STATX",
            "COPY_FILE_RANGE_64",
        ];
        match NAMES.get(code as usize) {
            Some(&name) if !name.is_empty() => name,
            _ => "?",
        }
    }
}

/// Bits of a SETATTR request's `valid`.
pub(crate) mod fattr {
    #![allow(missing_docs)]
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// Flags of an OPEN, OPENDIR or CREATE reply.
pub(crate) mod fopen {
    /// Bypass the page cache.
    pub const DIRECT_IO: u32 = 1;
    /// Keep the pages cached under earlier opens.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The page cache keeps the listing.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// No FLUSH at close(2).
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one inode may run concurrently.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// The kernel reads from a local file.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Codes of notifications to the kernel.
pub(crate) mod notify {
    /// Attributes and pages of an inode are invalid.
    pub const INVAL_INODE: i32 = 2;
    /// A name is invalid.
    pub const INVAL_ENTRY: i32 = 3;
    /// All names are invalid (7.44).
    pub const INC_EPOCH: i32 = 8;
    /// In `INVAL_ENTRY`: the kernel looks the name up again, and keeps mounts and caches below it.
    pub const EXPIRE_ONLY: u32 = 1;
}

/// In a GETATTR request: `fh` is valid.
pub(crate) const GETATTR_FH: u32 = 1;
/// In a lock request: an flock(2) lock.
pub(crate) const LK_FLOCK: u32 = 1;
/// In a WRITE request: written back from the page cache, with a guessed handle.
pub(crate) const WRITE_CACHE: u32 = 1;
/// In a WRITE request: written past the page cache, with a valid lock owner.
pub(crate) const WRITE_LOCKOWNER: u32 = 2;
/// In a WRITE request: the write removes set-id bits.
pub(crate) const WRITE_KILL_PRIV: u32 = 4;

/// In a READ request: read for a waiting caller, with its lock owner. Reads that fill pages do not
/// have the flag.
pub(crate) const READ_LOCKOWNER: u32 = 2;
/// In `flags` of an OPEN request: the open is for execve(2).
pub(crate) const OPEN_FOR_EXEC: u32 = 0x20;
/// Type of the extension with a supplementary group.
pub(crate) const EXT_GROUPS: u32 = 32;
