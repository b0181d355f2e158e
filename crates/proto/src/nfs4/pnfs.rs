//! Arguments and results of the pNFS operations (RFC 8881 sections 18.40 to 18.44, RFC 7862
//! sections 15.6 and 15.7) and the types of the file layout.
//!
//! Bodies of other layouts stay opaque.

use super::types::{Body, Deviceid, Fh, LayoutIomode, LayoutType, Netaddr, Stateid, Time, Verifier};
use super::{Bitmap4, NfsOpnum4, Nfsstat4, fail_arm};
use crate::xdr::List;
use crate::{xdr_struct, xdr_union};

/// Most layouts, devices or errors in a list that are decoded.
pub const LAYOUTS_MAX: usize = 1024;
/// Most stripes of a file layout that are decoded (the Linux client's limit).
pub const STRIPES_MAX: usize = 4096;

xdr_struct! {
    /// `layout_content4`.
    pub struct LayoutContent {
        /// Layout type that defines `body`.
        pub layout_type: LayoutType,
        /// [`FileLayout`] for `NFSV4_1_FILES`.
        pub body: Body,
    }
    /// `layout4`.
    pub struct Layout {
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end of the file.
        pub length: u64,
        /// Reading, or reading and writing.
        pub iomode: LayoutIomode,
        /// Location of the data.
        pub content: LayoutContent,
    }
    /// `device_addr4`.
    pub struct DeviceAddr {
        /// Layout type that defines `body`.
        pub layout_type: LayoutType,
        /// [`FileLayoutDsAddr`] for `NFSV4_1_FILES`.
        pub body: Body,
    }
    /// `layoutupdate4`.
    pub struct LayoutUpdate {
        /// Layout type that defines `body`.
        pub layout_type: LayoutType,
        /// The changes.
        pub body: Body,
    }
    /// `layoutreturn_file4`.
    pub struct LayoutReturnFile {
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end of the file.
        pub length: u64,
        /// The layout stateid.
        pub stateid: Stateid,
        /// Data that the layout type defines.
        pub body: Body,
    }
    /// Arguments of GETDEVICEINFO.
    #[derive(Copy)]
    pub struct GetdeviceinfoArgs {
        /// The device.
        pub device_id: Deviceid,
        /// Layout type of the device.
        pub layout_type: LayoutType,
        /// Most bytes of the result.
        pub maxcount: u32,
        /// Requested notifications.
        pub notify_types: Bitmap4,
    }
    /// Result of GETDEVICEINFO.
    pub struct GetdeviceinfoOk {
        /// The device.
        pub device_addr: DeviceAddr,
        /// Notifications that the server will send.
        pub notification: Bitmap4,
    }
    /// Arguments of GETDEVICELIST.
    #[derive(Copy)]
    pub struct GetdevicelistArgs {
        /// Layout type of the devices.
        pub layout_type: LayoutType,
        /// Most devices of the result.
        pub maxdevices: u32,
        /// 0, or the cookie of the earlier result.
        pub cookie: u64,
        /// 0, or the verifier of the first reply.
        pub cookieverf: Verifier,
    }
    /// Result of GETDEVICELIST.
    pub struct GetdevicelistOk {
        /// Cookie for the next call.
        pub cookie: u64,
        /// Verifier for the next call.
        pub cookieverf: Verifier,
        /// The devices.
        pub deviceid_list: List<Deviceid, LAYOUTS_MAX>,
        /// No devices follow.
        pub eof: bool,
    }
    /// Arguments of LAYOUTCOMMIT.
    pub struct LayoutcommitArgs {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// A reclaim after a server restart.
        pub reclaim: bool,
        /// The layout stateid.
        pub stateid: Stateid,
        /// Last byte written.
        pub last_write_offset: Option<u64>,
        /// Suggested time of the last change.
        pub time_modify: Option<Time>,
        /// Data that the layout type defines.
        pub layoutupdate: LayoutUpdate,
    }
    /// Arguments of LAYOUTGET.
    #[derive(Copy)]
    pub struct LayoutgetArgs {
        /// Signal when a layout becomes available.
        pub signal_layout_avail: bool,
        /// Type of the layout.
        pub layout_type: LayoutType,
        /// Reading, or reading and writing.
        pub iomode: LayoutIomode,
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// Fewest bytes.
        pub minlength: u64,
        /// Stateid: open, lock, delegation or layout.
        pub stateid: Stateid,
        /// Most bytes of the result.
        pub maxcount: u32,
    }
    /// Result of LAYOUTGET.
    pub struct LayoutgetOk {
        /// The client must return the layouts when it closes the file.
        pub return_on_close: bool,
        /// The layout stateid.
        pub stateid: Stateid,
        /// One or more layouts.
        pub layouts: List<Layout, LAYOUTS_MAX>,
    }
    /// Arguments of LAYOUTRETURN.
    pub struct LayoutreturnArgs {
        /// A reclaim after a server restart.
        pub reclaim: bool,
        /// Type of the returned layouts.
        pub layout_type: LayoutType,
        /// Layouts for reading, for reading and writing, or any.
        pub iomode: LayoutIomode,
        /// The returned layouts.
        pub layoutreturn: LayoutReturn,
    }
    /// `device_error4`.
    #[derive(Copy)]
    pub struct DeviceError {
        /// The device.
        pub deviceid: Deviceid,
        /// Status of the failed operation.
        pub status: Nfsstat4,
        /// The failed operation.
        pub opnum: NfsOpnum4,
    }
    /// Arguments of LAYOUTERROR.
    pub struct LayouterrorArgs {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// The errors.
        pub errors: List<DeviceError, LAYOUTS_MAX>,
    }
    /// `io_info4`.
    #[derive(Copy)]
    pub struct IoInfo {
        /// Number of operations.
        pub count: u64,
        /// Number of bytes.
        pub bytes: u64,
    }
    /// Arguments of LAYOUTSTATS.
    pub struct LayoutstatsArgs {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// The layout.
        pub stateid: Stateid,
        /// Reads.
        pub read: IoInfo,
        /// Writes.
        pub write: IoInfo,
        /// The device.
        pub deviceid: Deviceid,
        /// Further data, by layout type.
        pub layoutupdate: LayoutUpdate,
    }
    /// `nfsv4_1_file_layouthint4`.
    #[derive(Copy)]
    pub struct FileLayoutHint {
        /// The hints that are present.
        pub care: u32,
        /// Dense or sparse layout, and the stripe unit.
        pub util: u32,
        /// Number of stripes.
        pub stripe_count: u32,
    }
    /// `nfsv4_1_file_layout_ds_addr4`.
    pub struct FileLayoutDsAddr {
        /// Index of the data server for each stripe.
        pub stripe_indices: List<u32, STRIPES_MAX>,
        /// Addresses of each data server.
        pub multipath_ds_list: List<List<Netaddr, 64>, 256>,
    }
    /// `nfsv4_1_file_layout4`.
    pub struct FileLayout {
        /// The device.
        pub deviceid: Deviceid,
        /// Dense or sparse layout, and the stripe unit.
        pub util: u32,
        /// Index of the pattern's first stripe.
        pub first_stripe_index: u32,
        /// Offset of the pattern in the file.
        pub pattern_offset: u64,
        /// Filehandles on the data servers.
        pub fh_list: List<Fh, STRIPES_MAX>,
    }
}

xdr_union! {
    /// `layoutreturn4`.
    pub enum LayoutReturn else Other {
        /// Layouts of one file.
        File(LayoutReturnFile) = 1,
        /// Layouts of the current filehandle's file system.
        Fsid = 2,
        /// All layouts.
        All = 3,
    }
}

fail_arm! {
    /// Failure of GETDEVICEINFO.
    pub enum GetdeviceinfoFail {
        /// `NFS4ERR_TOOSMALL`: size of the result in bytes.
        TooSmall(u32) = TOOSMALL
    }
}
fail_arm! {
    /// Failure of LAYOUTGET.
    pub enum LayoutgetFail {
        /// `NFS4ERR_LAYOUTTRYLATER`; true: the server will signal when a layout is available.
        TryLater(bool) = LAYOUTTRYLATER
    }
}
