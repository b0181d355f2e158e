//! CB_COMPOUND: the calls of a server to its clients (RFC 7530 section 16.35, RFC 8881 section 20,
//! RFC 7862 section 16).
//!
//! This module has no sessions or sockets. The client decodes [`CbCompound`] and encodes
//! [`CbCompoundReply`]; the server encodes and decodes in the opposite direction.

use super::compound::{OPS_MAX, dec_ops};
use super::ops40::OpenDelegation;
use super::ops42::CbOffloadArgs;
use super::table::op_table;
use super::types::{
    Component, Deviceid, Fh, Fsid, LayoutIomode, LayoutType, Sessionid, StateOwner, Stateid, Tag, Verifier,
};
use super::{Attrs, Bitmap4, Nfsstat4, Results};
use crate::xdr::{Dec, Enc, List, Opaque, Result as XdrResult, Xdr};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most notifications or referring calls in a list that are decoded.
pub const CB_LIST_MAX: usize = 1024;
/// Longest values of one notification that are decoded, in bytes.
pub const NOTIFY_MAX_BYTES: usize = 1 << 20;

/// Types of state in CB_RECALL_ANY, as bit numbers (`RCA4_TYPE_MASK_*`).
#[allow(missing_docs)]
pub mod rca4 {
    pub const RDATA_DLG: u32 = 0;
    pub const WDATA_DLG: u32 = 1;
    pub const DIR_DLG: u32 = 2;
    pub const FILE_LAYOUT: u32 = 3;
    pub const BLK_LAYOUT: u32 = 4;
    pub const OBJ_LAYOUT_MIN: u32 = 8;
    pub const OBJ_LAYOUT_MAX: u32 = 9;
    pub const OTHER_LAYOUT_MIN: u32 = 12;
    pub const OTHER_LAYOUT_MAX: u32 = 15;
}

xdr_enum! {
    /// `notify_type4`, as bit numbers.
    pub enum NotifyType {
        CHANGE_CHILD_ATTRS = 0, CHANGE_DIR_ATTRS = 1, REMOVE_ENTRY = 2, ADD_ENTRY = 3,
        RENAME_ENTRY = 4, CHANGE_COOKIE_VERIFIER = 5,
    }
    /// `notify_deviceid_type4`, as bit numbers.
    pub enum NotifyDeviceidType { CHANGE = 1, DELETE = 2 }
}

xdr_struct! {
    /// Arguments of CB_GETATTR.
    pub struct CbGetattrArgs {
        /// A file under a write delegation.
        pub fh: Fh,
        /// The requested attributes: change and size, with RFC 9754 also times.
        pub attr_request: Bitmap4,
    }
    /// Arguments of CB_RECALL.
    pub struct CbRecallArgs {
        /// The delegation.
        pub stateid: Stateid,
        /// The client need not flush its data, because the file will be truncated.
        pub truncate: bool,
        /// The file.
        pub fh: Fh,
    }
    /// `layoutrecall_file4`.
    pub struct LayoutRecallFile {
        /// The file.
        pub fh: Fh,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; all ones means to the end.
        pub length: u64,
        /// The layout stateid.
        pub stateid: Stateid,
    }
    /// Arguments of CB_LAYOUTRECALL.
    pub struct CbLayoutrecallArgs {
        /// Type of the recalled layouts.
        pub layout_type: LayoutType,
        /// Layouts for reading, for reading and writing, or any.
        pub iomode: LayoutIomode,
        /// The data has moved. The client must not write it to the old place.
        pub changed: bool,
        /// The recalled layouts.
        pub recall: LayoutRecall,
    }
    /// `notify_entry4`.
    pub struct NotifyEntry {
        /// The name.
        pub file: Component,
        /// The entry's attributes.
        pub attrs: Attrs,
    }
    /// `prev_entry4`: the entry before.
    pub struct PrevEntry {
        /// The entry.
        pub entry: NotifyEntry,
        /// The entry's cookie.
        pub cookie: u64,
    }
    /// `notify_remove4`.
    pub struct NotifyRemove {
        /// The entry.
        pub old_entry: NotifyEntry,
        /// The entry's cookie.
        pub old_entry_cookie: u64,
    }
    /// `notify_add4`.
    pub struct NotifyAdd {
        /// The entry that a rename replaced.
        pub old_entry: Option<NotifyRemove>,
        /// The new entry.
        pub new_entry: NotifyEntry,
        /// The new entry's cookie.
        pub new_entry_cookie: Option<u64>,
        /// The entry before the new one.
        pub prev_entry: Option<PrevEntry>,
        /// The new entry is the directory's last.
        pub last_entry: bool,
    }
    /// `notify_rename4`.
    pub struct NotifyRename {
        /// The removed entry.
        pub old_entry: NotifyRemove,
        /// The new entry.
        pub new_entry: NotifyAdd,
    }
    /// `notify_verifier4`.
    #[derive(Copy)]
    pub struct NotifyVerifier {
        /// Verifier before the change.
        pub old_cookieverf: Verifier,
        /// Verifier after the change.
        pub new_cookieverf: Verifier,
    }
    /// `notify_deviceid_delete4`.
    #[derive(Copy)]
    pub struct NotifyDeviceidDelete {
        /// Layout type of the device.
        pub layout_type: LayoutType,
        /// The device.
        pub deviceid: Deviceid,
    }
    /// `notify_deviceid_change4`.
    #[derive(Copy)]
    pub struct NotifyDeviceidChange {
        /// Layout type of the device.
        pub layout_type: LayoutType,
        /// The device.
        pub deviceid: Deviceid,
        /// The old addresses are no longer valid.
        pub immediate: bool,
    }
    /// `notify4`: values in ascending order of the mask's bits, like attributes.
    pub struct Notify {
        /// [`NotifyType`] or [`NotifyDeviceidType`] bits.
        pub mask: Bitmap4,
        /// `Notify*` structures by bit.
        pub vals: Opaque<NOTIFY_MAX_BYTES>,
    }
    /// Arguments of CB_NOTIFY.
    pub struct CbNotifyArgs {
        /// The directory delegation.
        pub stateid: Stateid,
        /// The directory.
        pub fh: Fh,
        /// The changes.
        pub changes: List<Notify, CB_LIST_MAX>,
    }
    /// Arguments of CB_PUSH_DELEG.
    pub struct CbPushDelegArgs {
        /// The file.
        pub fh: Fh,
        /// The delegation.
        pub delegation: OpenDelegation,
    }
    /// Arguments of CB_RECALL_ANY and CB_RECALLABLE_OBJ_AVAIL.
    #[derive(Copy)]
    pub struct CbRecallAnyArgs {
        /// Number of objects that the client may keep.
        pub objects_to_keep: u32,
        /// Types of those objects (`rca4::*`).
        pub type_mask: Bitmap4,
    }
    /// `referring_call4`.
    #[derive(Copy)]
    pub struct ReferringCall {
        /// Sequence number of the slot.
        pub sequenceid: u32,
        /// The slot.
        pub slotid: u32,
    }
    /// `referring_call_list4`: calls whose replies precede this callback.
    pub struct ReferringCallList {
        /// Session of the calls.
        pub sessionid: Sessionid,
        /// The calls.
        pub referring_calls: List<ReferringCall, CB_LIST_MAX>,
    }
    /// Arguments of CB_SEQUENCE.
    pub struct CbSequenceArgs {
        /// The session.
        pub sessionid: Sessionid,
        /// The slot's last sequence number plus one.
        pub sequenceid: u32,
        /// The slot.
        pub slotid: u32,
        /// Greatest slot in use.
        pub highest_slotid: u32,
        /// Keep the reply for a retransmission.
        pub cachethis: bool,
        /// Calls that caused this callback.
        pub referring_call_lists: List<ReferringCallList, CB_LIST_MAX>,
    }
    /// Result of CB_SEQUENCE.
    #[derive(Copy)]
    pub struct CbSequenceOk {
        /// The session of the call.
        pub sessionid: Sessionid,
        /// The sequence number of the call.
        pub sequenceid: u32,
        /// The slot of the call.
        pub slotid: u32,
        /// Greatest slot that the client supports.
        pub highest_slotid: u32,
        /// Greatest slot that the server should use.
        pub target_highest_slotid: u32,
    }
    /// Arguments of CB_WANTS_CANCELLED.
    #[derive(Copy)]
    pub struct CbWantsCancelledArgs {
        /// Wants that waited because of contention.
        pub contended: bool,
        /// Wants that waited because of resources.
        pub resourced: bool,
    }
    /// Arguments of CB_NOTIFY_LOCK.
    pub struct CbNotifyLockArgs {
        /// The file.
        pub fh: Fh,
        /// The owner that may try again.
        pub lock_owner: StateOwner,
    }
}

xdr_union! {
    /// `layoutrecall4`.
    pub enum LayoutRecall {
        /// Layouts of a file.
        File(LayoutRecallFile) = 1,
        /// Layouts of a file system.
        Fsid(Fsid) = 2,
        /// All layouts.
        All = 3,
    }
}

op_table! {
    /// `nfs_cb_opnum4`.
    number NfsCbOpnum4;
    /// A callback operation and its arguments (`nfs_cb_argop4`).
    call CbOp;
    /// A callback operation's result (`nfs_cb_resop4`).
    result CbRes;
    /// A type for each callback operation, for [`Results::outcome`].
    markers cb_op;
    illegal 10044;
    /// Requests attributes that only the holder of a write delegation knows.
    3 CB_GETATTR Getattr cb_getattr(CbGetattrArgs) -> Attrs;
    /// Recalls a delegation.
    4 CB_RECALL Recall cb_recall(CbRecallArgs) -> ();
    /// Recalls layouts.
    5 CB_LAYOUTRECALL Layoutrecall cb_layoutrecall(CbLayoutrecallArgs) -> ();
    /// Reports changes of a directory under delegation.
    6 CB_NOTIFY Notify cb_notify(CbNotifyArgs) -> ();
    /// Grants a delegation that the client requested earlier.
    7 CB_PUSH_DELEG PushDeleg cb_push_deleg(CbPushDelegArgs) -> ();
    /// Recalls any delegations or layouts beyond a number.
    8 CB_RECALL_ANY RecallAny cb_recall_any(CbRecallAnyArgs) -> ();
    /// Reports that resources for delegations or layouts are available again.
    9 CB_RECALLABLE_OBJ_AVAIL RecallableObjAvail cb_recallable_obj_avail(CbRecallAnyArgs) -> ();
    /// Requests fewer slots; the argument is the new greatest slot.
    10 CB_RECALL_SLOT RecallSlot cb_recall_slot(u32) -> ();
    /// Uses a slot of the backchannel.
    11 CB_SEQUENCE Sequence cb_sequence(CbSequenceArgs) -> CbSequenceOk;
    /// Reports that wants for delegations were dropped.
    12 CB_WANTS_CANCELLED WantsCancelled cb_wants_cancelled(CbWantsCancelledArgs) -> ();
    /// Reports that a lock may be free.
    13 CB_NOTIFY_LOCK NotifyLock cb_notify_lock(CbNotifyLockArgs) -> ();
    /// Reports changes of devices.
    14 CB_NOTIFY_DEVICEID NotifyDeviceid cb_notify_deviceid(List<Notify, CB_LIST_MAX>) -> ();
    /// Reports the end of a copy.
    15 CB_OFFLOAD Offload cb_offload(CbOffloadArgs) -> ();
}

/// `CB_COMPOUND4args`. As in [`super::Compound`], an unknown operation number is the last
/// operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CbCompound {
    /// Text for diagnostics. The reply contains the same tag.
    pub tag: Tag,
    /// Minor version: 0, 1 or 2.
    pub minorversion: u32,
    /// Identifier from SETCLIENTID (NFSv4.0 only).
    pub callback_ident: u32,
    /// The operations.
    pub ops: Vec<CbOp>,
}

impl Xdr for CbCompound {
    fn enc(&self, e: &mut Enc) {
        self.tag.enc(e);
        self.minorversion.enc(e);
        self.callback_ident.enc(e);
        e.u32(self.ops.len() as u32);
        self.ops.iter().for_each(|op| op.enc(e));
    }
    fn dec(d: &mut Dec<'_>) -> XdrResult<Self> {
        let tag = Tag::dec(d)?;
        let (minorversion, callback_ident) = (d.u32()?, d.u32()?);
        let ops = dec_ops(d, |op, _| matches!(op, CbOp::Illegal(_)))?;
        Ok(Self { tag, minorversion, callback_ident, ops })
    }
}

xdr_struct! {
    /// `CB_COMPOUND4res`.
    pub struct CbCompoundReply {
        /// Status of the last result, or the reason why there are no results.
        pub status: Nfsstat4,
        /// Tag of the call.
        pub tag: Tag,
        /// The results.
        pub results: List<CbRes, OPS_MAX>,
    }
}

impl CbCompoundReply {
    /// A cursor over the results.
    pub fn results(self) -> Results<CbRes> {
        Results::new(self.status, self.results.0)
    }
}
