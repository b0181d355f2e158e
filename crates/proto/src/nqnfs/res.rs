//! Results of the NQNFS procedures. Field names are those of RFC 1094 and of the paper.

use super::*;
use crate::xdr::Chain;

xdr_struct! {
    /// LOOKUP succeeded (`lookup_diropok`).
    pub struct LookupOk {
        /// The lease on the found object.
        pub lookup_lease: LeaseReply,
        /// Handle of the object.
        pub file: Fh,
        /// Attributes of the object.
        pub attr: Fattr,
    }

    /// READ succeeded.
    pub struct ReadOk {
        /// Attributes of the file.
        pub attributes: Fattr,
        /// The data, shorter than requested at the end of the file.
        pub data: Nfsdata,
    }

    /// CREATE or MKDIR succeeded (`diropok`).
    #[derive(Copy)]
    pub struct DiropOk {
        /// Handle of the new object.
        pub file: Fh,
        /// Attributes of the new object.
        pub attributes: Fattr,
    }

    /// READDIR succeeded.
    pub struct ReaddirOk {
        /// The entries.
        pub entries: Chain<Entry, ENTRIES_MAX>,
        /// No entries follow.
        pub eof: bool,
    }

    /// A directory entry (`entry` of RFC 1094).
    pub struct Entry {
        /// Number of the file.
        pub fileid: u32,
        /// Name of the entry.
        pub name: Filename,
        /// Position after this entry.
        pub cookie: u32,
    }

    /// STATFS succeeded (`nqnfs_statfsres`).
    #[derive(Copy, Default)]
    pub struct StatfsOk {
        /// Preferred bytes of a transfer.
        pub tsize: u32,
        /// Bytes of a block.
        pub bsize: u32,
        /// Total blocks.
        pub blocks: u32,
        /// Free blocks.
        pub bfree: u32,
        /// Free blocks for unprivileged users.
        pub bavail: u32,
        /// Total files.
        pub files: u32,
        /// Files that can still be created.
        pub files_free: u32,
    }

    /// READDIRLOOK succeeded.
    pub struct ReaddirlookOk {
        /// The entries.
        pub entries: Chain<EntryLook, ENTRIES_MAX>,
        /// No entries follow.
        pub eof: bool,
    }

    /// A directory entry with handle, attributes and lease (`entry` of the paper).
    pub struct EntryLook {
        /// Nonzero for a caching lease.
        pub cachable: u32,
        /// Term of the lease in seconds; 0 for none.
        pub duration: u32,
        /// The file's modify revision.
        pub rev: Modifyrev,
        /// Handle of the file.
        pub entry_fh: Fh,
        /// Attributes of the file.
        pub entry_attrib: Fattr,
        /// Number of the file.
        pub fid: u32,
        /// Name of the entry.
        pub name: Filename,
        /// Position after this entry.
        pub cookie: u32,
    }

    /// GETLEASE succeeded.
    #[derive(Copy)]
    pub struct GetleaseOk {
        /// False for a non-caching lease.
        pub cachable: bool,
        /// Seconds from the issue of the lease.
        pub duration: u32,
        /// The file's modify revision.
        pub rev: Modifyrev,
        /// Attributes of the file.
        pub attr: Fattr,
    }

    /// HELLO succeeded.
    #[derive(Copy)]
    pub struct HelloOk {
        /// Number of the server's instance. It differs after each restart.
        pub server: u64,
        /// Longest handle that this server sends to the client, in bytes on the wire.
        pub fh_max: u32,
        /// Longest READ and WRITE, in bytes.
        pub transfer_max: u32,
        /// Longest lease, in seconds.
        pub term_max: u32,
    }
}
