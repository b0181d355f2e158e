//! Arguments and results of the pNFS operations (RFC 8881 sections 18.40 to 18.44, RFC 7862
//! sections 15.6 and 15.7) and the file layout's own types.
//!
//! It knows nothing of other layouts: their bodies stay opaque.

use super::types::{Body, Deviceid, Fh, LayoutIomode, LayoutType, Netaddr, Stateid, Time, Verifier};
use super::{Bitmap4, NfsOpnum4, Nfsstat4, fail_arm};
use crate::xdr::List;
use crate::{xdr_struct, xdr_union};

/// Most layouts, devices or errors in a list that we take.
pub const LAYOUTS_MAX: usize = 1024;
/// Most stripes of a file layout that we take (the Linux client's limit).
pub const STRIPES_MAX: usize = 4096;

xdr_struct! {
    /// `layout_content4`.
    pub struct LayoutContent {
        /// Whose structure the body has.
        pub layout_type: LayoutType,
        /// [`FileLayout`] for `NFSV4_1_FILES`.
        pub body: Body,
    }
    /// `layout4`.
    pub struct Layout {
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones is to the end.
        pub length: u64,
        /// Reading or both.
        pub iomode: LayoutIomode,
        /// Where the data are.
        pub content: LayoutContent,
    }
    /// `device_addr4`.
    pub struct DeviceAddr {
        /// Whose structure the body has.
        pub layout_type: LayoutType,
        /// [`FileLayoutDsAddr`] for `NFSV4_1_FILES`.
        pub body: Body,
    }
    /// `layoutupdate4`.
    pub struct LayoutUpdate {
        /// Whose structure the body has.
        pub layout_type: LayoutType,
        /// The changes.
        pub body: Body,
    }
    /// `layoutreturn_file4`.
    pub struct LayoutReturnFile {
        /// First byte.
        pub offset: u64,
        /// Bytes; all ones is to the end.
        pub length: u64,
        /// The layouts.
        pub stateid: Stateid,
        /// Whose structure depends on the layout type.
        pub body: Body,
    }
    /// Arguments of GETDEVICEINFO.
    #[derive(Copy)]
    pub struct GetdeviceinfoArgs {
        /// The device.
        pub device_id: Deviceid,
        /// Of which layouts.
        pub layout_type: LayoutType,
        /// Bytes of the result.
        pub maxcount: u32,
        /// Notifications wanted.
        pub notify_types: Bitmap4,
    }
    /// Result of GETDEVICEINFO.
    pub struct GetdeviceinfoOk {
        /// The device.
        pub device_addr: DeviceAddr,
        /// Notifications that will come.
        pub notification: Bitmap4,
    }
    /// Arguments of GETDEVICELIST.
    #[derive(Copy)]
    pub struct GetdevicelistArgs {
        /// Of which layouts.
        pub layout_type: LayoutType,
        /// How many.
        pub maxdevices: u32,
        /// 0, or where to go on.
        pub cookie: u64,
        /// 0, or the verifier of the first reply.
        pub cookieverf: Verifier,
    }
    /// Result of GETDEVICELIST.
    pub struct GetdevicelistOk {
        /// Where to go on.
        pub cookie: u64,
        /// To send back with it.
        pub cookieverf: Verifier,
        /// The devices.
        pub deviceid_list: List<Deviceid, LAYOUTS_MAX>,
        /// None follow.
        pub eof: bool,
    }
    /// Arguments of LAYOUTCOMMIT.
    pub struct LayoutcommitArgs {
        /// First byte.
        pub offset: u64,
        /// Bytes.
        pub length: u64,
        /// After a server restart.
        pub reclaim: bool,
        /// The layouts.
        pub stateid: Stateid,
        /// Last byte written.
        pub last_write_offset: Option<u64>,
        /// Wish for the time of the last change.
        pub time_modify: Option<Time>,
        /// The changes of the layout.
        pub layoutupdate: LayoutUpdate,
    }
    /// Arguments of LAYOUTGET.
    #[derive(Copy)]
    pub struct LayoutgetArgs {
        /// Tell when one can be had.
        pub signal_layout_avail: bool,
        /// Which kind.
        pub layout_type: LayoutType,
        /// Reading or both.
        pub iomode: LayoutIomode,
        /// First byte.
        pub offset: u64,
        /// Bytes wanted.
        pub length: u64,
        /// Bytes at least.
        pub minlength: u64,
        /// Open, lock, delegation or layout.
        pub stateid: Stateid,
        /// Bytes of the result.
        pub maxcount: u32,
    }
    /// Result of LAYOUTGET.
    pub struct LayoutgetOk {
        /// To be returned when the file is closed.
        pub return_on_close: bool,
        /// The layouts.
        pub stateid: Stateid,
        /// At least one.
        pub layouts: List<Layout, LAYOUTS_MAX>,
    }
    /// Arguments of LAYOUTRETURN.
    pub struct LayoutreturnArgs {
        /// After a server restart.
        pub reclaim: bool,
        /// Which kind.
        pub layout_type: LayoutType,
        /// Reading, both, or any.
        pub iomode: LayoutIomode,
        /// Which.
        pub layoutreturn: LayoutReturn,
    }
    /// `device_error4`.
    #[derive(Copy)]
    pub struct DeviceError {
        /// The device.
        pub deviceid: Deviceid,
        /// Its status.
        pub status: Nfsstat4,
        /// To which operation.
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
        /// Operations.
        pub count: u64,
        /// Bytes.
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
        /// The reads.
        pub read: IoInfo,
        /// The writes.
        pub write: IoInfo,
        /// The device.
        pub deviceid: Deviceid,
        /// More, by layout type.
        pub layoutupdate: LayoutUpdate,
    }
    /// `nfsv4_1_file_layouthint4`.
    #[derive(Copy)]
    pub struct FileLayoutHint {
        /// Which hints are given.
        pub care: u32,
        /// Dense or sparse, stripe unit.
        pub util: u32,
        /// Stripes.
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
        /// Dense or sparse, stripe unit.
        pub util: u32,
        /// Where the pattern starts.
        pub first_stripe_index: u32,
        /// Where in the file the pattern starts.
        pub pattern_offset: u64,
        /// Handles on the data servers.
        pub fh_list: List<Fh, STRIPES_MAX>,
    }
}

xdr_union! {
    /// `layoutreturn4`.
    pub enum LayoutReturn else Other {
        /// Of one file.
        File(LayoutReturnFile) = 1,
        /// Of the current filehandle's file system.
        Fsid = 2,
        /// All of them.
        All = 3,
    }
}

fail_arm! {
    /// Failure of GETDEVICEINFO.
    pub enum GetdeviceinfoFail {
        /// `NFS4ERR_TOOSMALL`: bytes that the result needs.
        TooSmall(u32) = TOOSMALL
    }
}
fail_arm! {
    /// Failure of LAYOUTGET.
    pub enum LayoutgetFail {
        /// `NFS4ERR_LAYOUTTRYLATER`; true: the server will signal.
        TryLater(bool) = LAYOUTTRYLATER
    }
}
