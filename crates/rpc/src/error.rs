//! The errors of a call.

use crate::gss::GssError;
use crate::policy::Mode;
use hither_proto::rpc::AuthStat;
use std::io;

/// The reason why a call has no result. [`CallError::PeerMisbehaved`] and
/// [`CallError::GarbageArgs`] are bugs of the server or of this client. `Denied` is a matter of
/// configuration. The others are network or server conditions.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No reply within the major timeout of a soft mount; `Soft` becomes EIO, `Softerr` ETIMEDOUT.
    #[error("the server does not answer")]
    TimedOut(Mode),
    /// The call's own deadline passed.
    #[error("the deadline of the call has passed")]
    DeadlinePassed,
    /// The caller cancelled the call.
    #[error("interrupted")]
    Cancelled,
    /// The server refuses the credential (RFC 5531 `AUTH_ERROR`).
    #[error("the server refuses the credential ({0:?})")]
    Denied(AuthStat),
    /// There is no security context for the call, which was not sent.
    #[error("{0}")]
    Gss(#[source] GssError),
    /// The security context ended while the call waited for its reply.
    #[error("the Kerberos context expired during the call: {0}")]
    ContextEnded(#[source] GssError),
    /// The server does not speak RPC version 2.
    #[error("the server speaks RPC versions {low} to {high}, not 2")]
    RpcMismatch {
        /// Lowest RPC version of the server.
        low: u32,
        /// Highest RPC version of the server.
        high: u32,
    },
    /// The server does not offer the program (NFS, MOUNT, ...).
    #[error("the server does not offer this program")]
    ProgUnavail,
    /// The server offers other versions of the program.
    #[error("the server offers versions {low} to {high} of this program")]
    ProgMismatch {
        /// Lowest version of the program.
        low: u32,
        /// Highest version of the program.
        high: u32,
    },
    /// The server does not offer the procedure.
    #[error("the server does not offer this procedure")]
    ProcUnavail,
    /// The server could not decode the arguments.
    #[error("the server could not decode the arguments")]
    GarbageArgs,
    /// The server failed, for example for lack of memory.
    #[error("the server reports an internal error")]
    SystemErr,
    /// The connection could not be made, and the caller asked not to retry:
    /// [`crate::Client::connect_now`], or [`crate::ClientConfig::fail_when_unreachable`].
    #[error("{0}")]
    Connect(#[source] io::Error),
    /// The reply cannot be decoded.
    #[error("the server misbehaves: {0}")]
    PeerMisbehaved(&'static str),
    /// The call is longer than the longest record.
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
