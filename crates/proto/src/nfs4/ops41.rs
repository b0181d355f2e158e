//! Arguments and results of the operations that NFSv4.1 adds, but for pNFS (RFC 8881 section 18).
//!
//! It knows nothing of compounds. An operation with one argument or one result uses that type
//! itself and has nothing here.

use super::types::{
    ClientOwner, Clientid, DelegationType, ImplId, OPAQUE_MAX_BYTES, SecOid, ServerOwner, Sessionid, Stateid,
    Time, Verifier,
};
use super::{Bitmap4, Nfsstat4, ops40::GssService};
use crate::rpc::AuthSys;
use crate::xdr::{List, Opaque};
use crate::{xdr_enum, xdr_struct, xdr_union};

/// Most security mechanisms and handles in a list that we take.
pub const SECURITY_MAX: usize = 64;
/// Most stateids of one TEST_STATEID that we take.
pub const TEST_STATEID_MAX: usize = 1 << 16;

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
    /// `channel_dir_from_client4`: the directions that the client wants for the connection.
    pub enum ChannelDirFromClient { FORE = 1, BACK = 2, FORE_OR_BOTH = 3, BACK_OR_BOTH = 7 }
    /// `channel_dir_from_server4`: its directions.
    pub enum ChannelDirFromServer { FORE = 1, BACK = 2, BOTH = 3 }
    /// `secinfo_style4`, the argument of SECINFO_NO_NAME.
    pub enum SecinfoStyle { CURRENT_FH = 0, PARENT = 1 }
}

xdr_struct! {
    /// `gss_cb_handles4`.
    pub struct GssCbHandles {
        /// Authentication, integrity or privacy.
        pub service: GssService,
        /// The context that the server gave.
        pub handle_from_server: Opaque<OPAQUE_MAX_BYTES>,
        /// The context that the client gave.
        pub handle_from_client: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// Arguments of BACKCHANNEL_CTL.
    pub struct BackchannelCtlArgs {
        /// Program number of callbacks.
        pub cb_program: u32,
        /// How callbacks may authenticate.
        pub sec_parms: List<CallbackSec, SECURITY_MAX>,
    }
    /// Arguments of BIND_CONN_TO_SESSION.
    #[derive(Copy)]
    pub struct BindConnToSessionArgs {
        /// The session.
        pub sessionid: Sessionid,
        /// Which channels.
        pub dir: ChannelDirFromClient,
        /// RDMA.
        pub use_conn_in_rdma_mode: bool,
    }
    /// Result of BIND_CONN_TO_SESSION.
    #[derive(Copy)]
    pub struct BindConnToSessionOk {
        /// The session.
        pub sessionid: Sessionid,
        /// Which channels.
        pub dir: ChannelDirFromServer,
        /// RDMA.
        pub use_conn_in_rdma_mode: bool,
    }
    /// `state_protect_ops4`: operations as bit numbers.
    #[derive(Copy)]
    pub struct StateProtectOps {
        /// Only with the protecting credential.
        pub must_enforce: Bitmap4,
        /// With it even for another's state.
        pub must_allow: Bitmap4,
    }
    /// `ssv_sp_parms4`.
    pub struct SsvParms {
        /// Operations.
        pub ops: StateProtectOps,
        /// Hash algorithms.
        pub hash_algs: List<SecOid, SECURITY_MAX>,
        /// Encryption algorithms.
        pub encr_algs: List<SecOid, SECURITY_MAX>,
        /// Old keys that remain valid.
        pub window: u32,
        /// Handles wanted.
        pub num_gss_handles: u32,
    }
    /// `ssv_prot_info4`.
    pub struct SsvInfo {
        /// Operations.
        pub ops: StateProtectOps,
        /// Index into the client's hash algorithms.
        pub hash_alg: u32,
        /// Index into the client's encryption algorithms.
        pub encr_alg: u32,
        /// Bytes of the key.
        pub ssv_len: u32,
        /// Old keys that remain valid.
        pub window: u32,
        /// Handles.
        pub handles: List<Opaque<OPAQUE_MAX_BYTES>, SECURITY_MAX>,
    }
    /// Arguments of EXCHANGE_ID.
    pub struct ExchangeIdArgs {
        /// The client's own name.
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
        /// The short name.
        pub clientid: Clientid,
        /// For CREATE_SESSION.
        pub sequenceid: u32,
        /// `exchgid::*`.
        pub flags: u32,
        /// The protection of the client's state.
        pub state_protect: StateProtectOk,
        /// The server; equal ones may share sessions.
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
        /// Bytes of a request with its RPC header.
        pub maxrequestsize: u32,
        /// Bytes of a reply with its RPC header.
        pub maxresponsesize: u32,
        /// Bytes of a reply that is kept for a repetition.
        pub maxresponsesize_cached: u32,
        /// Operations of a compound.
        pub maxoperations: u32,
        /// Slots.
        pub maxrequests: u32,
        /// RDMA.
        pub rdma_ird: Option<u32>,
    }
    /// Arguments of CREATE_SESSION.
    pub struct CreateSessionArgs {
        /// The client.
        pub clientid: Clientid,
        /// From EXCHANGE_ID, then one more each time.
        pub sequence: u32,
        /// `create_session::*`.
        pub flags: u32,
        /// The client's wish for its calls.
        pub fore_chan_attrs: ChannelAttrs,
        /// Its limits for callbacks.
        pub back_chan_attrs: ChannelAttrs,
        /// Program number of callbacks.
        pub cb_program: u32,
        /// How callbacks may authenticate.
        pub sec_parms: List<CallbackSec, SECURITY_MAX>,
    }
    /// Result of CREATE_SESSION.
    #[derive(Copy)]
    pub struct CreateSessionOk {
        /// The session.
        pub sessionid: Sessionid,
        /// As in the call.
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
        /// Tell when one can be had.
        pub signal_deleg_avail: bool,
        /// `NotifyType` bits.
        pub notification_types: Bitmap4,
        /// How late entries' attributes may be.
        pub child_attr_delay: Time,
        /// How late the directory's may be.
        pub dir_attr_delay: Time,
        /// Which of entries.
        pub child_attributes: Bitmap4,
        /// Which of the directory.
        pub dir_attributes: Bitmap4,
    }
    /// A granted directory delegation.
    #[derive(Copy)]
    pub struct DirDelegation {
        /// Of READDIR cookies.
        pub cookieverf: Verifier,
        /// The delegation.
        pub stateid: Stateid,
        /// Notifications that will come.
        pub notification: Bitmap4,
        /// Attributes of entries.
        pub child_attributes: Bitmap4,
        /// Attributes of the directory.
        pub dir_attributes: Bitmap4,
    }
    /// Arguments of SEQUENCE.
    #[derive(Copy)]
    pub struct SequenceArgs {
        /// The session.
        pub sessionid: Sessionid,
        /// One more than the slot's last.
        pub sequenceid: u32,
        /// The slot.
        pub slotid: u32,
        /// Greatest slot in use.
        pub highest_slotid: u32,
        /// Keep the reply for a repetition.
        pub cachethis: bool,
    }
    /// Result of SEQUENCE.
    #[derive(Copy)]
    pub struct SequenceOk {
        /// As in the call.
        pub sessionid: Sessionid,
        /// As in the call.
        pub sequenceid: u32,
        /// As in the call.
        pub slotid: u32,
        /// Greatest slot that the server keeps.
        pub highest_slotid: u32,
        /// Greatest slot that the client should use.
        pub target_highest_slotid: u32,
        /// `seq4_status::*`.
        pub status_flags: u32,
    }
    /// Arguments of SET_SSV.
    pub struct SetSsvArgs {
        /// Changes the key.
        pub ssv: Opaque<OPAQUE_MAX_BYTES>,
        /// Proves knowledge of it.
        pub digest: Opaque<OPAQUE_MAX_BYTES>,
    }
    /// Arguments of WANT_DELEGATION.
    pub struct WantDelegationArgs {
        /// `open::WANT_*`.
        pub want: u32,
        /// The claim that gives the right.
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
        /// Not protected.
        None = 0,
        /// By the machine credential.
        MachCred(StateProtectOps) = 1,
        /// By a shared secret.
        Ssv(SsvParms) = 2,
    }
    /// `state_protect4_r`.
    pub enum StateProtectOk {
        /// Not protected.
        None = 0,
        /// By the machine credential.
        MachCred(StateProtectOps) = 1,
        /// By a shared secret.
        Ssv(SsvInfo) = 2,
    }
    /// Result of GET_DIR_DELEGATION.
    pub enum GetDirDelegationOk {
        /// Granted.
        Granted(DirDelegation) = 0,
        /// Not now; true: the server will signal when it can.
        Unavail(bool) = 1,
    }
    /// `deleg_claim4`.
    pub enum DelegClaim {
        /// No special right.
        Fh = 4,
        /// Held in this client's former life.
        DelegPrevFh = 6,
        /// Reclaim after a server restart.
        Previous(DelegationType) = 1,
    }
}

/// Argument of TEST_STATEID.
pub type TestStateidArgs = List<Stateid, TEST_STATEID_MAX>;
/// Result of TEST_STATEID: a status for each.
pub type TestStateidOk = List<Nfsstat4, TEST_STATEID_MAX>;
