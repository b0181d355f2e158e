//! Why a call has no result.

use crate::policy::Mode;
use hither_proto::rpc::AuthStat;
use std::io;

/// The reason why a call has no result. The blame differs: [`CallError::PeerMisbehaved`] and
/// [`CallError::GarbageArgs`] are bugs of the server or of ours, `Denied` is configuration, the
/// others are circumstances.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No reply within the major timeout of a soft mount; `Soft` becomes EIO, `Softerr` ETIMEDOUT.
    #[error("the server does not answer")]
    TimedOut(Mode),
    /// The call's own deadline passed.
    #[error("the deadline of the call has passed")]
    DeadlinePassed,
    /// The caller gave up.
    #[error("interrupted")]
    Cancelled,
    /// The server refuses the credential (RFC 5531 `AUTH_ERROR`).
    #[error("the server refuses the credential ({0:?})")]
    Denied(AuthStat),
    /// The server does not speak RPC version 2.
    #[error("the server speaks RPC versions {low} to {high}, not 2")]
    RpcMismatch {
        /// Lowest RPC version it speaks.
        low: u32,
        /// Highest RPC version it speaks.
        high: u32,
    },
    /// The server does not have the program (NFS, MOUNT, ...).
    #[error("the server does not offer this program")]
    ProgUnavail,
    /// The server has other versions of the program.
    #[error("the server offers versions {low} to {high} of this program")]
    ProgMismatch {
        /// Lowest version it offers.
        low: u32,
        /// Highest version it offers.
        high: u32,
    },
    /// The server does not have the procedure.
    #[error("the server does not offer this procedure")]
    ProcUnavail,
    /// The server could not decode the arguments.
    #[error("the server could not decode the arguments")]
    GarbageArgs,
    /// The server failed (memory, for example).
    #[error("the server reports an internal error")]
    SystemErr,
    /// The connection could not be made, and the caller asked not to wait for better times:
    /// [`crate::Client::connect_now`], or [`crate::ClientConfig::fail_when_unreachable`].
    #[error("{0}")]
    Connect(#[source] io::Error),
    /// The reply to this call cannot be understood.
    #[error("the server misbehaves: {0}")]
    PeerMisbehaved(&'static str),
    /// The message does not fit into one record of the size that was agreed on.
    #[error("the call of {len} bytes exceeds the maximum of {max}")]
    TooLarge {
        /// Bytes of the call.
        len: usize,
        /// [`crate::ClientConfig::max_record_bytes`].
        max: usize,
    },
    /// [`crate::Client::shutdown`] was called.
    #[error("the mount is going away")]
    Shutdown,
}
