//! File attributes: the table of all attributes, and a typed set of attribute values.
//!
//! This module has no operations. On the wire an attribute set is a bitmap and the values in
//! ascending order of the numbers, without lengths (`fattr4`). [`Attrs`] has an `Option` for each
//! attribute of NFSv4.0 to 4.2. Per-file attributes are plain fields. Attributes of a file system,
//! ACLs and other rare attributes are in a box ([`RareAttrs`]), so that entries of a large
//! directory stay small. Each attribute also has an accessor method. One table declares all
//! attributes.
//!
//! The values of unknown attributes have unknown lengths. Their numbers are greater than all known
//! numbers, so their bytes follow the last known value. The decoder keeps those bytes unchanged.

use super::attr_types::{
    Acl, Acl41, ChangePolicy, FsLocations, FsLocationsInfo, FsStatus, LayoutHint, LayoutTypes, MdsThreshold,
    Mimetype, ModeMasked, ModeUmask, OpenArguments, RetentionGet, RetentionSet, SecLabel,
};
use super::types::{BODY_MAX_BYTES, ChangeAttrType, Fh, Fsid, Ftype, OwnerName, SetTime, Specdata, Time};
use super::{Bitmap4, Nfsstat4};
use crate::xdr::{Dec, Enc, Result, Xdr};
use bytes::Bytes;

/// Longest attribute list that is decoded, in bytes. An ACL of [`super::ACL_MAX_ENTRIES`] fits.
const ATTRLIST_MAX_BYTES: usize = BODY_MAX_BYTES;

macro_rules! attr_table {
    // Sorts the rows into fields of the struct and fields of the box, then declares both.
    (@sort [$($own:tt)*] [$($rare:tt)*] [$($all:tt)*]
        $(#[$m:meta])* $n:literal own $NAME:ident $f:ident: $t:ty; $($rest:tt)*) => {
        attr_table!(@sort [$($own)* { $(#[$m])* $f: $t }] [$($rare)*]
            [$($all)* { $(#[$m])* $n own $NAME $f: $t }] $($rest)*);
    };
    (@sort [$($own:tt)*] [$($rare:tt)*] [$($all:tt)*]
        $(#[$m:meta])* $n:literal rare $NAME:ident $f:ident: $t:ty; $($rest:tt)*) => {
        attr_table!(@sort [$($own)*] [$($rare)* { $(#[$m])* $f: $t }]
            [$($all)* { $(#[$m])* $n rare $NAME $f: $t }] $($rest)*);
    };
    (@sort [$({ $(#[$om:meta])* $of:ident: $ot:ty })*] [$({ $(#[$rm:meta])* $rf:ident: $rt:ty })*]
        [$({ $(#[$m:meta])* $n:literal $place:ident $NAME:ident $f:ident: $t:ty })*]) => {
        /// Attribute numbers.
        pub mod attr {
            $($(#[$m])* pub const $NAME: u32 = $n;)*
            /// Attribute numbers below this are known.
            pub const COUNT: u32 = [$($n),*].len() as u32;

            /// The attribute's name in the protocol, in lower case.
            #[allow(unreachable_patterns, reason = "`type` cannot be a field's name")]
            pub fn name(n: u32) -> Option<&'static str> {
                Some(match n { TYPE => "type", $($NAME => stringify!($f),)* _ => return None })
            }
        }

        /// Attributes of one object. Absent attributes are `None`.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct Attrs {
            $($(#[$om])* pub $of: Option<$ot>,)*
            /// The rare attributes.
            pub rare: Option<Box<RareAttrs>>,
            /// The unknown attributes.
            pub unknown: Option<UnknownAttrs>,
        }

        /// Attributes of a file system, and rarely requested attributes.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct RareAttrs { $($(#[$rm])* pub $rf: Option<$rt>,)* }

        impl Attrs {
            $($(#[$m])* pub fn $f(&self) -> Option<&$t> { attr_table!(@read $place self $f) })*

            /// The numbers of the present attributes.
            pub fn mask(&self) -> Bitmap4 {
                let mut mask = self.unknown.as_ref().map_or(Bitmap4::EMPTY, |u| u.mask);
                $(if self.$f().is_some() { mask.insert($n); })*
                mask
            }

            /// Drops the attributes that are not in `mask`.
            pub fn retain(&mut self, mask: Bitmap4) {
                $(if !mask.has($n) && self.$f().is_some() { *attr_table!(@write $place self $f) = None; })*
                if self.unknown.as_ref().is_some_and(|u| !u.mask.is_subset(mask)) {
                    self.unknown = None;
                }
                if self.rare.as_deref() == Some(&RareAttrs::default()) {
                    self.rare = None;
                }
            }

            /// Reads the value of attribute `n`. Returns false for an unknown attribute.
            fn dec_attr(&mut self, n: u32, d: &mut Dec<'_>) -> Result<bool> {
                match n {
                    $($n => *attr_table!(@write $place self $f) = Some(<$t>::dec(d)?),)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn enc_vals(&self, e: &mut Enc) {
                $(if let Some(v) = self.$f() { v.enc(e); })*
                if let Some(u) = &self.unknown { e.raw(&u.vals); }
            }

            /// Gives attribute `n` a sample value.
            #[cfg(any(test, feature = "sample"))]
            pub(super) fn sample_attr(&mut self, n: u32, s: &mut crate::sample::Source<'_>) {
                match n {
                    $($n => *attr_table!(@write $place self $f) = Some(crate::sample::Sample::sample(s)),)*
                    _ => {}
                }
            }
        }
    };
    (@read own $self:ident $f:ident) => { $self.$f.as_ref() };
    (@read rare $self:ident $f:ident) => { $self.rare.as_ref().and_then(|r| r.$f.as_ref()) };
    (@write own $self:ident $f:ident) => { &mut $self.$f };
    (@write rare $self:ident $f:ident) => { &mut $self.rare_mut().$f };
    ($($rows:tt)*) => { attr_table!(@sort [] [] [] $($rows)*); };
}

// The numbers ascend without gaps. The decoder relies on this order, and a test checks it.
attr_table! {
    /// Attributes that the server supports on this object.
    0 rare SUPPORTED_ATTRS supported_attrs: Bitmap4;
    /// Type of the object.
    1 own TYPE ftype: Ftype;
    /// Whether filehandles expire (`FH4_*`).
    2 rare FH_EXPIRE_TYPE fh_expire_type: u32;
    /// Changes with each change of data or metadata.
    3 own CHANGE change: u64;
    /// Size in bytes.
    4 own SIZE size: u64;
    /// Hard links are possible.
    5 rare LINK_SUPPORT link_support: bool;
    /// Symbolic links are possible.
    6 rare SYMLINK_SUPPORT symlink_support: bool;
    /// The object has named attributes.
    7 rare NAMED_ATTR named_attr: bool;
    /// Identifier of the file system.
    8 own FSID fsid: Fsid;
    /// Different filehandles identify different objects.
    9 rare UNIQUE_HANDLES unique_handles: bool;
    /// Lease time in seconds.
    10 rare LEASE_TIME lease_time: u32;
    /// The error that prevented READDIR from reading the entry's attributes.
    11 own RDATTR_ERROR rdattr_error: Nfsstat4;
    /// Access control list.
    12 rare ACL acl: Acl;
    /// Supported types of ACL entries.
    13 rare ACLSUPPORT aclsupport: u32;
    /// The object was archived since its last change.
    14 rare ARCHIVE archive: bool;
    /// Times can be set exactly.
    15 rare CANSETTIME cansettime: bool;
    /// Names that differ only in case are equal.
    16 rare CASE_INSENSITIVE case_insensitive: bool;
    /// The server preserves the case of names.
    17 rare CASE_PRESERVING case_preserving: bool;
    /// Only privileged users may change the owner.
    18 rare CHOWN_RESTRICTED chown_restricted: bool;
    /// The filehandle.
    19 own FILEHANDLE filehandle: Fh;
    /// Number of the object within its file system.
    20 own FILEID fileid: u64;
    /// Files that this user may still create.
    21 rare FILES_AVAIL files_avail: u64;
    /// Free file slots.
    22 rare FILES_FREE files_free: u64;
    /// All file slots.
    23 rare FILES_TOTAL files_total: u64;
    /// The locations of the file system.
    24 rare FS_LOCATIONS fs_locations: FsLocations;
    /// The Windows attribute "hidden".
    25 rare HIDDEN hidden: bool;
    /// All objects of the file system have the same values of per-file-system attributes.
    26 rare HOMOGENEOUS homogeneous: bool;
    /// Greatest size of a file.
    27 rare MAXFILESIZE maxfilesize: u64;
    /// Most hard links.
    28 rare MAXLINK maxlink: u32;
    /// Longest name in bytes.
    29 rare MAXNAME maxname: u32;
    /// Most bytes of one READ.
    30 rare MAXREAD maxread: u64;
    /// Most bytes of one WRITE.
    31 rare MAXWRITE maxwrite: u64;
    /// MIME type.
    32 rare MIMETYPE mimetype: Mimetype;
    /// Permission bits (07777).
    33 own MODE mode: u32;
    /// The server refuses a name that is too long and does not truncate it.
    34 rare NO_TRUNC no_trunc: bool;
    /// Number of hard links.
    35 own NUMLINKS numlinks: u32;
    /// Owner.
    36 own OWNER owner: OwnerName;
    /// Group.
    37 own OWNER_GROUP owner_group: OwnerName;
    /// Bytes until the hard quota.
    38 rare QUOTA_AVAIL_HARD quota_avail_hard: u64;
    /// Bytes until the soft quota.
    39 rare QUOTA_AVAIL_SOFT quota_avail_soft: u64;
    /// Bytes used of the quota.
    40 rare QUOTA_USED quota_used: u64;
    /// Device numbers of a device file.
    41 own RAWDEV rawdev: Specdata;
    /// Bytes that this user may still use.
    42 rare SPACE_AVAIL space_avail: u64;
    /// Free bytes.
    43 rare SPACE_FREE space_free: u64;
    /// All bytes.
    44 rare SPACE_TOTAL space_total: u64;
    /// Bytes that the object occupies.
    45 own SPACE_USED space_used: u64;
    /// The Windows attribute "system".
    46 rare SYSTEM system: bool;
    /// Time of the last access.
    47 own TIME_ACCESS time_access: Time;
    /// SETATTR: sets the time of the last access.
    48 own TIME_ACCESS_SET time_access_set: SetTime;
    /// Time of the last backup.
    49 rare TIME_BACKUP time_backup: Time;
    /// Time of creation.
    50 own TIME_CREATE time_create: Time;
    /// Granularity of times.
    51 rare TIME_DELTA time_delta: Time;
    /// Time of the last change of metadata (ctime).
    52 own TIME_METADATA time_metadata: Time;
    /// Time of the last change of data.
    53 own TIME_MODIFY time_modify: Time;
    /// SETATTR: sets the time of the last change of data.
    54 own TIME_MODIFY_SET time_modify_set: SetTime;
    /// Fileid of the directory that a mounted file system covers.
    55 own MOUNTED_ON_FILEID mounted_on_fileid: u64;
    /// Longest delay of notifications about the directory's attributes.
    56 rare DIR_NOTIF_DELAY dir_notif_delay: Time;
    /// Longest delay of notifications about entries' attributes.
    57 rare DIRENT_NOTIF_DELAY dirent_notif_delay: Time;
    /// The part of the ACL that allows and denies.
    58 rare DACL dacl: Acl41;
    /// The part of the ACL that audits.
    59 rare SACL sacl: Acl41;
    /// Changes when a policy of the server for the file system changes.
    60 rare CHANGE_POLICY change_policy: ChangePolicy;
    /// State of the file system.
    61 rare FS_STATUS fs_status: FsStatus;
    /// Layout types of the file system.
    62 rare FS_LAYOUT_TYPES fs_layout_types: LayoutTypes;
    /// Requested layout for a new object.
    63 rare LAYOUT_HINT layout_hint: LayoutHint;
    /// Layout types of the file.
    64 rare LAYOUT_TYPES layout_types: LayoutTypes;
    /// Preferred block size for layouts.
    65 rare LAYOUT_BLKSIZE layout_blksize: u32;
    /// Preferred alignment for layouts.
    66 rare LAYOUT_ALIGNMENT layout_alignment: u32;
    /// The locations of the file system, in detail.
    67 rare FS_LOCATIONS_INFO fs_locations_info: FsLocationsInfo;
    /// Size from which a layout is worth its cost.
    68 rare MDSTHRESHOLD mdsthreshold: MdsThreshold;
    /// Retention.
    69 rare RETENTION_GET retention_get: RetentionGet;
    /// SETATTR: sets the retention.
    70 rare RETENTION_SET retention_set: RetentionSet;
    /// Event-based retention.
    71 rare RETENTEVT_GET retentevt_get: RetentionGet;
    /// SETATTR: sets the event-based retention.
    72 rare RETENTEVT_SET retentevt_set: RetentionSet;
    /// Administrative holds, one bit each.
    73 rare RETENTION_HOLD retention_hold: u64;
    /// SETATTR: changes some mode bits.
    74 rare MODE_SET_MASKED mode_set_masked: ModeMasked;
    /// Attributes that EXCLUSIVE4_1 may set.
    75 rare SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap4;
    /// Permitted characters of names.
    76 rare FS_CHARSET_CAP fs_charset_cap: u32;
    /// Alignment for CLONE.
    77 rare CLONE_BLKSIZE clone_blksize: u32;
    /// Bytes that removing the file frees.
    78 rare SPACE_FREED space_freed: u64;
    /// How the change attribute changes.
    79 rare CHANGE_ATTR_TYPE change_attr_type: ChangeAttrType;
    /// Security label.
    80 rare SEC_LABEL sec_label: SecLabel;
    /// Mode and umask of a new object (RFC 8275).
    81 own MODE_UMASK mode_umask: ModeUmask;
    /// Extended attributes are possible (RFC 8276).
    82 rare XATTR_SUPPORT xattr_support: bool;
    /// The data is on slow storage (RFC 9754).
    83 rare OFFLINE offline: bool;
    /// Last access according to the delegation's holder (RFC 9754).
    84 rare TIME_DELEG_ACCESS time_deleg_access: Time;
    /// Last change according to the delegation's holder (RFC 9754).
    85 rare TIME_DELEG_MODIFY time_deleg_modify: Time;
    /// Arguments of OPEN that the server supports (RFC 9754).
    86 rare OPEN_ARGUMENTS open_arguments: OpenArguments;
}

/// Unknown attributes: their numbers and the bytes of all their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownAttrs {
    /// Their numbers, [`attr::COUNT`] or greater.
    pub mask: Bitmap4,
    /// Their values as received.
    pub vals: Bytes,
}

impl Attrs {
    /// The rare attributes. The box is created if absent.
    pub fn rare_mut(&mut self) -> &mut RareAttrs {
        self.rare.get_or_insert_default()
    }
}

impl Xdr for Attrs {
    fn enc(&self, e: &mut Enc) {
        self.mask().enc(e);
        e.counted(|e| self.enc_vals(e));
    }

    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let mask = Bitmap4::dec(d)?;
        let mut vals = d.nested(ATTRLIST_MAX_BYTES)?;
        let mut attrs = Self::default();
        for n in mask.iter() {
            if !attrs.dec_attr(n, &mut vals)? {
                let known: Bitmap4 = (0..attr::COUNT).collect();
                attrs.unknown = Some(UnknownAttrs { mask: mask.difference(known), vals: vals.rest() });
                break;
            }
        }
        vals.finish()?;
        Ok(attrs)
    }
}
