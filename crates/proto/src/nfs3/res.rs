//! Results of the NFSv3 procedures, in the order of RFC 1813 section 3.3. Field names are those of
//! the RFC.

use super::*;
use crate::xdr::Chain;

/// GETATTR.
pub type GetattrRes = Res<Fattr3>;
/// SETATTR.
pub type SetattrRes = Res<WccData, WccData>;
/// LOOKUP; a failure has the directory's attributes.
pub type LookupRes = Res<LookupOk, PostOpAttr>;
/// ACCESS; a failure has the file's attributes.
pub type AccessRes = Res<AccessOk, PostOpAttr>;
/// READLINK; a failure has the link's attributes.
pub type ReadlinkRes = Res<ReadlinkOk, PostOpAttr>;
/// READ; a failure has the file's attributes.
pub type ReadRes = Res<ReadOk, PostOpAttr>;
/// WRITE; a failure has the file's attributes.
pub type WriteRes = Res<WriteOk, WccData>;
/// CREATE, MKDIR, SYMLINK and MKNOD; a failure has the directory's attributes.
pub type CreateRes = Res<CreateOk, WccData>;
/// REMOVE and RMDIR; success and failure have the directory's attributes.
pub type RemoveRes = Res<WccData, WccData>;
/// RENAME; success and failure have the attributes of both directories.
pub type RenameRes = Res<RenameWcc, RenameWcc>;
/// LINK; success and failure have the attributes of the file and the directory.
pub type LinkRes = Res<LinkWcc, LinkWcc>;
/// READDIR; a failure has the directory's attributes.
pub type ReaddirRes = Res<ReaddirOk, PostOpAttr>;
/// READDIRPLUS; a failure has the directory's attributes.
pub type ReaddirplusRes = Res<ReaddirplusOk, PostOpAttr>;
/// FSSTAT; a failure has the file's attributes.
pub type FsstatRes = Res<FsstatOk, PostOpAttr>;
/// FSINFO; a failure has the file's attributes.
pub type FsinfoRes = Res<FsinfoOk, PostOpAttr>;
/// PATHCONF; a failure has the file's attributes.
pub type PathconfRes = Res<PathconfOk, PostOpAttr>;
/// COMMIT; a failure has the file's attributes.
pub type CommitRes = Res<CommitOk, WccData>;

xdr_struct! {
    /// LOOKUP succeeded.
    pub struct LookupOk {
        /// The handle.
        pub object: Fh3,
        /// Attributes of the file.
        pub obj_attributes: PostOpAttr,
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
    }

    /// ACCESS succeeded.
    #[derive(Copy)]
    pub struct AccessOk {
        /// Attributes of the file.
        pub obj_attributes: PostOpAttr,
        /// Granted bits of [`access`], among the requested ones.
        pub access: u32,
    }

    /// READLINK succeeded.
    pub struct ReadlinkOk {
        /// Attributes of the link.
        pub symlink_attributes: PostOpAttr,
        /// Target of the link.
        pub data: Path3,
    }

    /// READ succeeded.
    pub struct ReadOk {
        /// Attributes of the file.
        pub file_attributes: PostOpAttr,
        /// Bytes read. A correct peer sends the length of `data`.
        pub count: u32,
        /// The read reached the end of the file.
        pub eof: bool,
        /// The data.
        pub data: Data3,
    }

    /// WRITE succeeded.
    #[derive(Copy)]
    pub struct WriteOk {
        /// The file's attributes before and after.
        pub file_wcc: WccData,
        /// Bytes written, possibly fewer than were sent.
        pub count: u32,
        /// Stability of the data, at least as strong as requested.
        pub committed: StableHow,
        /// If COMMIT returns another verifier, unstable writes are lost.
        pub verf: Writeverf3,
    }

    /// CREATE, MKDIR, SYMLINK or MKNOD succeeded.
    pub struct CreateOk {
        /// Handle of the new file.
        pub obj: PostOpFh3,
        /// Attributes of the new file.
        pub obj_attributes: PostOpAttr,
        /// The directory's attributes before and after.
        pub dir_wcc: WccData,
    }

    /// Attributes in RENAME's results, after success and failure.
    #[derive(Copy)]
    pub struct RenameWcc {
        /// The old directory's attributes before and after.
        pub fromdir_wcc: WccData,
        /// The new directory's attributes before and after.
        pub todir_wcc: WccData,
    }

    /// Attributes in LINK's results, after success and failure.
    #[derive(Copy)]
    pub struct LinkWcc {
        /// Attributes of the file.
        pub file_attributes: PostOpAttr,
        /// The directory's attributes before and after.
        pub linkdir_wcc: WccData,
    }

    /// READDIR succeeded.
    pub struct ReaddirOk {
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
        /// Verifier for later calls with these cookies.
        pub cookieverf: Cookieverf3,
        /// The entries.
        pub entries: Chain<Entry3, ENTRIES_MAX>,
        /// No entries follow.
        pub eof: bool,
    }

    /// A directory entry (`entry3`).
    pub struct Entry3 {
        /// Number of the file.
        pub fileid: u64,
        /// Name of the entry.
        pub name: Name3,
        /// Position after this entry.
        pub cookie: u64,
    }

    /// READDIRPLUS succeeded.
    pub struct ReaddirplusOk {
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
        /// Verifier for later calls with these cookies.
        pub cookieverf: Cookieverf3,
        /// The entries.
        pub entries: Chain<Entryplus3, ENTRIES_MAX>,
        /// No entries follow.
        pub eof: bool,
    }

    /// A directory entry with attributes and handle (`entryplus3`).
    pub struct Entryplus3 {
        /// Number of the file.
        pub fileid: u64,
        /// Name of the entry.
        pub name: Name3,
        /// Position after this entry.
        pub cookie: u64,
        /// Attributes.
        pub name_attributes: PostOpAttr,
        /// Handle.
        pub name_handle: PostOpFh3,
    }

    /// FSSTAT succeeded.
    #[derive(Copy)]
    pub struct FsstatOk {
        /// Attributes of the file.
        pub obj_attributes: PostOpAttr,
        /// Total bytes.
        pub tbytes: u64,
        /// Free bytes.
        pub fbytes: u64,
        /// Free bytes that this user may use.
        pub abytes: u64,
        /// Total files.
        pub tfiles: u64,
        /// Free files.
        pub ffiles: u64,
        /// Free files that this user may use.
        pub afiles: u64,
        /// Seconds during which these values are expected to stay the same.
        pub invarsec: u32,
    }

    /// FSINFO succeeded.
    #[derive(Copy)]
    pub struct FsinfoOk {
        /// Attributes of the file.
        pub obj_attributes: PostOpAttr,
        /// Most bytes of a READ.
        pub rtmax: u32,
        /// Preferred bytes of a READ.
        pub rtpref: u32,
        /// READ sizes should be multiples of this number.
        pub rtmult: u32,
        /// Most bytes of a WRITE.
        pub wtmax: u32,
        /// Preferred bytes of a WRITE.
        pub wtpref: u32,
        /// WRITE sizes should be multiples of this number.
        pub wtmult: u32,
        /// Preferred bytes of a READDIR.
        pub dtpref: u32,
        /// Longest file in bytes.
        pub maxfilesize: u64,
        /// Granularity of times.
        pub time_delta: Nfstime3,
        /// Bits of [`fsf`].
        pub properties: u32,
    }

    /// PATHCONF succeeded.
    #[derive(Copy)]
    pub struct PathconfOk {
        /// Attributes of the file.
        pub obj_attributes: PostOpAttr,
        /// Most hard links.
        pub linkmax: u32,
        /// Longest name in bytes.
        pub name_max: u32,
        /// A longer name is refused, not cut.
        pub no_trunc: bool,
        /// Only the superuser may change owners.
        pub chown_restricted: bool,
        /// Names that differ only in case are equal.
        pub case_insensitive: bool,
        /// The server preserves the case of names.
        pub case_preserving: bool,
    }

    /// COMMIT succeeded.
    #[derive(Copy)]
    pub struct CommitOk {
        /// The file's attributes before and after.
        pub file_wcc: WccData,
        /// If this verifier differs from that of a WRITE, the written data is lost.
        pub verf: Writeverf3,
    }
}
