//! Arguments and results of the operations that NFSv4.1 adds, without pNFS (RFC 8881 section 18).
//!
//! This module has no compounds. An operation with a single argument or result uses that value's
//! type directly.

use super::types::{
    ClientOwner, Clientid, DelegationType, ImplId, OPAQUE_MAX_BYTES, SecOid, ServerOwner, Sessionid, Stateid,
    Time, Verifier,
};
use super::{Bitmap4, Nfsstat4};
use crate::rpc::AuthSys;
use crate::rpc::gss::GssService;
use crate::xdr::{List, Opaque};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most security mechanisms and handles in a list that are decoded.
pub const SECURITY_MAX: usize = 64;
/// Most stateids of a TEST_STATEID that are decoded.
pub const TEST_STATEID_MAX: usize = 1 << 16;

/// `nii_domain` of hither's client and server.
pub const HITHER_DOMAIN: &[u8] = b"hither-fs.github.io";

/// Flags of EXCHANGE_ID (RFC 8881 section 18.35).
#[allow(missing_docs)]
pub mod exchgid {
    pub const SUPP_MOVED_REFER: u32 = 0x01;
    pub const SUPP_MOVED_MIGR: u32 = 0x02;
    pub const SUPP_FENCE_OPS: u32 = 0x04;
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    pub const MASK_PNFS: u32 = 0x7_0000;
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    pub const CONFIRMED_R: u32 = 0x8000_0000;
}

/// Flags of CREATE_SESSION (RFC 8881 section 18.36).
#[allow(missing_docs)]
pub mod create_session {
    pub const PERSIST: u32 = 1;
    pub const CONN_BACK_CHAN: u32 = 2;
    pub const CONN_RDMA: u32 = 4;
}

/// Status bits in each SEQUENCE reply (RFC 8881 section 18.46).
#[allow(missing_docs)]
pub mod seq4_status {
    pub const CB_PATH_DOWN: u32 = 0x0001;
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x0002;
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x0004;
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x0008;
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x0010;
    pub const ADMIN_STATE_REVOKED: u32 = 0x0020;
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x0040;
    pub const LEASE_MOVED: u32 = 0x0080;
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x0100;
    pub const CB_PATH_DOWN_SESSION: u32 = 0x0200;
    pub const BACKCHANNEL_FAULT: u32 = 0x0400;
    pub const DEVID_CHANGED: u32 = 0x0800;
    pub const DEVID_DELETED: u32 = 0x1000;
}

xdr_enum! {
    /// `channel_dir_from_client4`: the channels that the client requests for the connection.
    pub enum ChannelDirFromClient { FORE = 1, BACK = 2, FORE_OR_BOTH = 3, BACK_OR_BOTH = 7 }
    /// `channel_dir_from_server4`: the channels of the connection.
    pub enum ChannelDirFromServer { FORE = 1, BACK = 2, BOTH = 3 }
    /// `secinfo_style4`, the argument of SECINFO_NO_NAME.
    pub enum SecinfoStyle { CURRENT_FH = 0, PARENT = 1 }
}

xdr_struct! {
    /// `gss_cb_handles4`.
    pub struct GssCbHandles {
        /// Authentication, integrity or privacy.
        pub service: GssService,
        /// GSS context of the server.
        pub handle_from_server: Opaque<OPAQUE_MAX_BYTES>,
        /// GSS context of the client.
        pub handle_from_client: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// Arguments of BACKCHANNEL_CTL.
    pub struct BackchannelCtlArgs {
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Security of the callbacks.
        pub sec_parms: List<CallbackSec, SECURITY_MAX>,
    }
    /// Arguments of BIND_CONN_TO_SESSION.
    #[derive(Copy)]
    pub struct BindConnToSessionArgs {
        /// The session.
        pub sessionid: Sessionid,
        /// Requested channels.
        pub dir: ChannelDirFromClient,
        /// Use RDMA.
        pub use_conn_in_rdma_mode: bool,
    }
    /// Result of BIND_CONN_TO_SESSION.
    #[derive(Copy)]
    pub struct BindConnToSessionOk {
        /// The session.
        pub sessionid: Sessionid,
        /// Channels of the connection.
        pub dir: ChannelDirFromServer,
        /// Use RDMA.
        pub use_conn_in_rdma_mode: bool,
    }
    /// `state_protect_ops4`: operations as bit numbers.
    #[derive(Copy)]
    pub struct StateProtectOps {
        /// Operations that require the protecting credential.
        pub must_enforce: Bitmap4,
        /// Operations that the protecting credential permits on other users' state.
        pub must_allow: Bitmap4,
    }
    /// `ssv_sp_parms4`.
    pub struct SsvParms {
        /// The protected operations.
        pub ops: StateProtectOps,
        /// Hash algorithms.
        pub hash_algs: List<SecOid, SECURITY_MAX>,
        /// Encryption algorithms.
        pub encr_algs: List<SecOid, SECURITY_MAX>,
        /// Number of old keys that remain valid.
        pub window: u32,
        /// Number of requested handles.
        pub num_gss_handles: u32,
    }
    /// `ssv_prot_info4`.
    pub struct SsvInfo {
        /// The protected operations.
        pub ops: StateProtectOps,
        /// Index into the client's hash algorithms.
        pub hash_alg: u32,
        /// Index into the client's encryption algorithms.
        pub encr_alg: u32,
        /// Length of the key in bytes.
        pub ssv_len: u32,
        /// Number of old keys that remain valid.
        pub window: u32,
        /// Handles.
        pub handles: List<Opaque<OPAQUE_MAX_BYTES>, SECURITY_MAX>,
    }
    /// Arguments of EXCHANGE_ID.
    pub struct ExchangeIdArgs {
        /// Name that the client chose for itself.
        pub clientowner: ClientOwner,
        /// `exchgid::*`.
        pub flags: u32,
        /// The protection of the client's state.
        pub state_protect: StateProtectArgs,
        /// The implementation of the client.
        pub impl_id: Option<ImplId>,
    }
    /// Result of EXCHANGE_ID.
    pub struct ExchangeIdOk {
        /// The server's identifier of the client.
        pub clientid: Clientid,
        /// Sequence number for CREATE_SESSION.
        pub sequenceid: u32,
        /// `exchgid::*`.
        pub flags: u32,
        /// The protection of the client's state.
        pub state_protect: StateProtectOk,
        /// Identity of the server. Equal servers may share sessions.
        pub server_owner: ServerOwner,
        /// Servers with the same scope share filehandles and state.
        pub server_scope: Opaque<OPAQUE_MAX_BYTES>,
        /// The implementation of the server.
        pub impl_id: Option<ImplId>,
    }
    /// `channel_attrs4`.
    #[derive(Copy, Default)]
    pub struct ChannelAttrs {
        /// RDMA padding.
        pub headerpadsize: u32,
        /// Longest request with its RPC header, in bytes.
        pub maxrequestsize: u32,
        /// Longest reply with its RPC header, in bytes.
        pub maxresponsesize: u32,
        /// Longest reply that is kept for a retransmission, in bytes.
        pub maxresponsesize_cached: u32,
        /// Most operations of a compound.
        pub maxoperations: u32,
        /// Number of slots.
        pub maxrequests: u32,
        /// RDMA reads in progress.
        pub rdma_ird: Option<u32>,
    }
    /// Arguments of CREATE_SESSION.
    pub struct CreateSessionArgs {
        /// The client.
        pub clientid: Clientid,
        /// Sequence number from EXCHANGE_ID, plus one for each further session.
        pub sequence: u32,
        /// `create_session::*`.
        pub flags: u32,
        /// Requested limits of calls.
        pub fore_chan_attrs: ChannelAttrs,
        /// The client's limits of callbacks.
        pub back_chan_attrs: ChannelAttrs,
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Security of the callbacks.
        pub sec_parms: List<CallbackSec, SECURITY_MAX>,
    }
    /// Result of CREATE_SESSION.
    #[derive(Copy)]
    pub struct CreateSessionOk {
        /// The session.
        pub sessionid: Sessionid,
        /// Sequence number of the call.
        pub sequence: u32,
        /// `create_session::*`.
        pub flags: u32,
        /// Limits of calls.
        pub fore_chan_attrs: ChannelAttrs,
        /// Limits of callbacks.
        pub back_chan_attrs: ChannelAttrs,
    }
    /// Arguments of GET_DIR_DELEGATION.
    #[derive(Copy)]
    pub struct GetDirDelegationArgs {
        /// Signal when a delegation becomes available.
        pub signal_deleg_avail: bool,
        /// `NotifyType` bits.
        pub notification_types: Bitmap4,
        /// Longest delay of notifications about entries' attributes.
        pub child_attr_delay: Time,
        /// Longest delay of notifications about the directory's attributes.
        pub dir_attr_delay: Time,
        /// Attributes of entries to report.
        pub child_attributes: Bitmap4,
        /// Attributes of the directory to report.
        pub dir_attributes: Bitmap4,
    }
    /// A granted directory delegation.
    #[derive(Copy)]
    pub struct DirDelegation {
        /// Verifier of READDIR cookies.
        pub cookieverf: Verifier,
        /// Stateid of the delegation.
        pub stateid: Stateid,
        /// Notifications that the server will send.
        pub notification: Bitmap4,
        /// Attributes of entries that the server will report.
        pub child_attributes: Bitmap4,
        /// Attributes of the directory that the server will report.
        pub dir_attributes: Bitmap4,
    }
    /// Arguments of SEQUENCE.
    #[derive(Copy)]
    pub struct SequenceArgs {
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
    }
    /// Result of SEQUENCE.
    #[derive(Copy)]
    pub struct SequenceOk {
        /// The session of the call.
        pub sessionid: Sessionid,
        /// The sequence number of the call.
        pub sequenceid: u32,
        /// The slot of the call.
        pub slotid: u32,
        /// Greatest slot that the server supports.
        pub highest_slotid: u32,
        /// Greatest slot that the client should use.
        pub target_highest_slotid: u32,
        /// `seq4_status::*`.
        pub status_flags: u32,
    }
    /// Arguments of SET_SSV.
    pub struct SetSsvArgs {
        /// Change of the key.
        pub ssv: Opaque<OPAQUE_MAX_BYTES>,
        /// Proof that the client knows the key.
        pub digest: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// Arguments of WANT_DELEGATION.
    pub struct WantDelegationArgs {
        /// `open::WANT_*`.
        pub want: u32,
        /// The basis of the delegation.
        pub claim: DelegClaim,
    }
}

xdr_union! {
    /// `callback_sec_parms4`.
    pub enum CallbackSec {
        /// AUTH_NONE.
        None = 0,
        /// AUTH_SYS.
        Sys(AuthSys) = 1,
        /// RPCSEC_GSS.
        Gss(GssCbHandles) = 6,
    }
    /// `state_protect4_a`.
    pub enum StateProtectArgs {
        /// No protection.
        None = 0,
        /// Protection by the machine credential.
        MachCred(StateProtectOps) = 1,
        /// Protection by a shared secret.
        Ssv(SsvParms) = 2,
    }
    /// `state_protect4_r`.
    pub enum StateProtectOk {
        /// No protection.
        None = 0,
        /// Protection by the machine credential.
        MachCred(StateProtectOps) = 1,
        /// Protection by a shared secret.
        Ssv(SsvInfo) = 2,
    }
    /// Result of GET_DIR_DELEGATION.
    pub enum GetDirDelegationOk {
        /// The server granted the delegation.
        Granted(DirDelegation) = 0,
        /// No delegation now; true: the server will signal when one is available.
        Unavail(bool) = 1,
    }
    /// `deleg_claim4`.
    pub enum DelegClaim {
        /// No basis except the current filehandle.
        Fh = 4,
        /// A delegation of this client's earlier instance.
        DelegPrevFh = 6,
        /// A reclaim after a server restart.
        Previous(DelegationType) = 1,
    }
}

/// Argument of TEST_STATEID.
pub type TestStateidArgs = List<Stateid, TEST_STATEID_MAX>;
/// Result of TEST_STATEID: a status for each stateid.
pub type TestStateidOk = List<Nfsstat4, TEST_STATEID_MAX>;
