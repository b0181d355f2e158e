//! Results of the NQNFS procedures. Field names are those of RFC 1094 and of the paper.

use super::*;
use crate::xdr::Chain;

xdr_struct! {
    /// LOOKUP succeeded (`lookup_diropok`).
    pub struct LookupOk {
        /// The lease on the found object.
        pub lookup_lease: LeaseReply,
        /// Its handle.
        pub file: Fh,
        /// Its attributes.
        pub attr: Fattr,
    }

    /// READ succeeded.
    pub struct ReadOk {
        /// Attributes of the file.
        pub attributes: Fattr,
        /// The bytes; fewer than asked for at the end of the file.
        pub data: Nfsdata,
    }

    /// CREATE or MKDIR succeeded (`diropok`).
    #[derive(Copy)]
    pub struct DiropOk {
        /// Handle of the new object.
        pub file: Fh,
        /// Its attributes.
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
        /// Its name.
        pub name: Filename,
        /// Goes on behind it.
        pub cookie: u32,
    }

    /// STATFS succeeded (`nqnfs_statfsres`).
    #[derive(Copy, Default)]
    pub struct StatfsOk {
        /// Preferred bytes of a transfer.
        pub tsize: u32,
        /// Bytes of a block.
        pub bsize: u32,
        /// Blocks in all.
        pub blocks: u32,
        /// Free blocks.
        pub bfree: u32,
        /// Free blocks that users may use.
        pub bavail: u32,
        /// Files in all.
        pub files: u32,
        /// Files that can be created.
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
        /// Not 0 for a caching lease.
        pub cachable: u32,
        /// Seconds of the lease; 0 for none.
        pub duration: u32,
        /// The file's modify revision.
        pub rev: Modifyrev,
        /// Its handle.
        pub entry_fh: Fh,
        /// Its attributes.
        pub entry_attrib: Fattr,
        /// Its number.
        pub fid: u32,
        /// Its name.
        pub name: Filename,
        /// Goes on behind it.
        pub cookie: u32,
    }

    /// GETLEASE succeeded.
    #[derive(Copy)]
    pub struct GetleaseOk {
        /// False for a non-caching lease.
        pub cachable: bool,
        /// Seconds from when it was issued.
        pub duration: u32,
        /// The file's modify revision.
        pub rev: Modifyrev,
        /// Its attributes.
        pub attr: Fattr,
    }

    /// HELLO succeeded.
    #[derive(Copy)]
    pub struct HelloOk {
        /// Another number in each life of the server.
        pub server: u64,
        /// Longest handle that this server sends to the client, in bytes on the wire.
        pub fh_max: u32,
        /// Longest READ and WRITE, in bytes.
        pub transfer_max: u32,
        /// Longest lease, in seconds.
        pub term_max: u32,
    }
}
