//! Values of the structured attributes: ACLs, locations, retention, layouts, labels.
//!
//! This module has no attribute numbers. Sources: RFC 8881 sections 5, 6 and 11, RFC 7862 section
//! 12, RFC 8275, RFC 9754.

use super::Bitmap4;
use super::types::{Ace, Body, Component, LayoutType, OPAQUE_MAX_BYTES, Pathname, Text, Time};
use crate::xdr::{List, Opaque};
use crate::{xdr_enum, xdr_struct};

/// Most entries of an ACL that are decoded.
pub const ACL_MAX_ENTRIES: usize = 1 << 16;
/// Most servers, locations or hints in a list that are decoded.
pub const LOCATIONS_MAX: usize = 256;

/// `fattr4_acl`.
pub type Acl = List<Ace, ACL_MAX_ENTRIES>;
/// `layouttype4` list.
pub type LayoutTypes = List<LayoutType, 64>;

xdr_enum! {
    /// `fs4_status_type`.
    pub enum FsStatusType { FIXED = 1, UPDATED = 2, VERSIONED = 3, WRITABLE = 4, REFERRAL = 5 }
}

xdr_struct! {
    /// `nfsacl41`: an ACL with flags (`dacl`, `sacl`).
    pub struct Acl41 {
        /// `ace::ACL_*`.
        pub flag: u32,
        /// The entries.
        pub aces: Acl,
    }
    /// `fs_location4`: one location of the file system.
    pub struct FsLocation {
        /// Host names or addresses of equal servers.
        pub server: List<Text, LOCATIONS_MAX>,
        /// Root of the file system on those servers.
        pub rootpath: Pathname,
    }
    /// `fs_locations4`.
    pub struct FsLocations {
        /// Root of the file system on this server.
        pub fs_root: Pathname,
        /// The locations of the file system.
        pub locations: List<FsLocation, LOCATIONS_MAX>,
    }
    /// `fs_locations_server4`: one replica.
    pub struct FsLocationsServer {
        /// Age of the replica's data in seconds, or -1.
        pub currency: i32,
        /// Flags, classes and ranks, one byte each (`FSLI4BX_*`).
        pub info: Opaque<OPAQUE_MAX_BYTES>,
        /// Name or address of the server.
        pub server: Text,
    }
    /// `fs_locations_item4`: replicas with a common root.
    pub struct FsLocationsItem {
        /// The replicas.
        pub entries: List<FsLocationsServer, LOCATIONS_MAX>,
        /// Root of the file system on the replicas.
        pub rootpath: Pathname,
    }
    /// `fs_locations_info4`.
    pub struct FsLocationsInfo {
        /// `FSLI4IF_*`.
        pub flags: u32,
        /// Validity of this information in seconds.
        pub valid_for: i32,
        /// Root of the file system on this server.
        pub fs_root: Pathname,
        /// The locations of the file system.
        pub items: List<FsLocationsItem, LOCATIONS_MAX>,
    }
    /// `fs4_status`.
    pub struct FsStatus {
        /// True if the file system is absent from this server.
        pub absent: bool,
        /// How the file system changes.
        pub status_type: FsStatusType,
        /// Original source of the file system.
        pub source: Text,
        /// Present version of the file system as text.
        pub current: Text,
        /// Seconds since the last update, or -1.
        pub age: i32,
        /// Version of the file system as a time.
        pub version: Time,
    }
    /// `change_policy4`.
    #[derive(Copy)]
    pub struct ChangePolicy {
        /// First half of the value.
        pub major: u64,
        /// Second half of the value.
        pub minor: u64,
    }
    /// `layouthint4`.
    pub struct LayoutHint {
        /// Layout type that defines `body`.
        pub layout_type: LayoutType,
        /// The hint.
        pub body: Body,
    }
    /// `threshold_item4`: the thresholds of one layout type.
    pub struct ThresholdItem {
        /// The layout type.
        pub layout_type: LayoutType,
        /// The present thresholds (`TH4_*`).
        pub hintset: Bitmap4,
        /// One 64-bit value for each bit of `hintset`.
        pub hintlist: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// `retention_get4`.
    pub struct RetentionGet {
        /// Seconds; all ones means without end.
        pub duration: u64,
        /// Start of the retention.
        pub begin_time: Option<Time>,
    }
    /// `retention_set4`.
    pub struct RetentionSet {
        /// Start the retention now.
        pub enable: bool,
        /// Duration in seconds.
        pub duration: Option<u64>,
    }
    /// `mode_masked4`: a change of some mode bits.
    #[derive(Copy)]
    pub struct ModeMasked {
        /// New values of the bits.
        pub value: u32,
        /// The bits to change.
        pub mask: u32,
    }
    /// `mode_umask4` (RFC 8275): the mode and the umask of a new object. The server applies the
    /// umask only if no default ACL applies.
    #[derive(Copy)]
    pub struct ModeUmask {
        /// Mode that the application requested.
        pub mode: u32,
        /// The application's umask.
        pub umask: u32,
    }
    /// `sec_label4`.
    pub struct SecLabel {
        /// Label format.
        pub lfs: u32,
        /// Policy identifier.
        pub pi: u32,
        /// The label, e.g. an SELinux context.
        pub data: Opaque<4096>,
    }
    /// `open_arguments4` (RFC 9754): the arguments of OPEN that the server supports.
    pub struct OpenArguments {
        /// `OPEN4_SHARE_ACCESS_*`.
        pub share_access: Bitmap4,
        /// `OPEN4_SHARE_DENY_*`.
        pub share_deny: Bitmap4,
        /// Supported wants, as bit numbers.
        pub share_access_want: Bitmap4,
        /// Supported claims.
        pub open_claim: Bitmap4,
        /// Supported create modes.
        pub create_mode: Bitmap4,
    }
}

/// `mdsthreshold4`.
pub type MdsThreshold = List<ThresholdItem, 64>;
/// `fattr4_mimetype` and other short ASCII strings.
pub type Mimetype = Component;
