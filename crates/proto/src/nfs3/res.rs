//! Results of the NFSv3 procedures, in the order of RFC 1813 section 3.3. Field names are the
//! RFC's.

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
/// WRITE; a failure has the file's.
pub type WriteRes = Res<WriteOk, WccData>;
/// CREATE, MKDIR, SYMLINK and MKNOD; a failure has the directory's.
pub type CreateRes = Res<CreateOk, WccData>;
/// REMOVE and RMDIR: the directory's either way.
pub type RemoveRes = Res<WccData, WccData>;
/// RENAME: both directories' either way.
pub type RenameRes = Res<RenameWcc, RenameWcc>;
/// LINK: the file's attributes and the directory's either way.
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
/// COMMIT; a failure has the file's.
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
        /// Bits of [`access`] that are granted, of those asked about.
        pub access: u32,
    }

    /// READLINK succeeded.
    pub struct ReadlinkOk {
        /// Attributes of the link.
        pub symlink_attributes: PostOpAttr,
        /// Its target.
        pub data: Path3,
    }

    /// READ succeeded.
    pub struct ReadOk {
        /// Attributes of the file.
        pub file_attributes: PostOpAttr,
        /// Bytes read; the length of `data`, unless the peer is odd.
        pub count: u32,
        /// The read reached the end of the file.
        pub eof: bool,
        /// The bytes.
        pub data: Data3,
    }

    /// WRITE succeeded.
    #[derive(Copy)]
    pub struct WriteOk {
        /// The file before and after.
        pub file_wcc: WccData,
        /// Bytes written, possibly fewer than were sent.
        pub count: u32,
        /// How durable they are, at least as durable as the call asked.
        pub committed: StableHow,
        /// If COMMIT answers another one, unstable writes are lost.
        pub verf: Writeverf3,
    }

    /// CREATE, MKDIR, SYMLINK or MKNOD succeeded.
    pub struct CreateOk {
        /// Handle of the new file.
        pub obj: PostOpFh3,
        /// Its attributes.
        pub obj_attributes: PostOpAttr,
        /// The directory before and after.
        pub dir_wcc: WccData,
    }

    /// The data of RENAME, in success and failure.
    #[derive(Copy)]
    pub struct RenameWcc {
        /// The old directory before and after.
        pub fromdir_wcc: WccData,
        /// The new directory before and after.
        pub todir_wcc: WccData,
    }

    /// The data of LINK, in success and failure.
    #[derive(Copy)]
    pub struct LinkWcc {
        /// Attributes of the file.
        pub file_attributes: PostOpAttr,
        /// The directory before and after.
        pub linkdir_wcc: WccData,
    }

    /// READDIR succeeded.
    pub struct ReaddirOk {
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
        /// To be sent with a cookie.
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
        /// Its name.
        pub name: Name3,
        /// Goes on behind it.
        pub cookie: u64,
    }

    /// READDIRPLUS succeeded.
    pub struct ReaddirplusOk {
        /// Attributes of the directory.
        pub dir_attributes: PostOpAttr,
        /// To be sent with a cookie.
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
        /// Its name.
        pub name: Name3,
        /// Goes on behind it.
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
        /// Bytes in all.
        pub tbytes: u64,
        /// Free bytes.
        pub fbytes: u64,
        /// Free bytes that this user may use.
        pub abytes: u64,
        /// Files in all.
        pub tfiles: u64,
        /// Free files.
        pub ffiles: u64,
        /// Free files that this user may use.
        pub afiles: u64,
        /// Seconds for which nothing of this is expected to change.
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
        /// READ sizes should be multiples of this.
        pub rtmult: u32,
        /// Most bytes of a WRITE.
        pub wtmax: u32,
        /// Preferred bytes of a WRITE.
        pub wtpref: u32,
        /// WRITE sizes should be multiples of this.
        pub wtmult: u32,
        /// Preferred bytes of a READDIR.
        pub dtpref: u32,
        /// Longest file in bytes.
        pub maxfilesize: u64,
        /// Resolution of times.
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
        /// Names that differ only in case are the same.
        pub case_insensitive: bool,
        /// Case is kept.
        pub case_preserving: bool,
    }

    /// COMMIT succeeded.
    #[derive(Copy)]
    pub struct CommitOk {
        /// The file before and after.
        pub file_wcc: WccData,
        /// If it differs from a WRITE's, that write is lost.
        pub verf: Writeverf3,
    }
}
