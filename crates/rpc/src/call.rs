//! A call and its reply, as the protocol layers above RPC see them.

use crate::gss::GssUser;
use crate::transport::BoxFuture;
use bytes::Bytes;
use hither_proto::rpc::{AuthSys, CallHeader, OpaqueAuth};
use hither_proto::xdr::Enc;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One remote procedure call.
#[derive(Debug)]
pub struct Call {
    /// Program number.
    pub prog: u32,
    /// Program version.
    pub vers: u32,
    /// Procedure number.
    pub proc: u32,
    /// Label in the statistics: `READ`, `OPEN`, ...
    pub op: &'static str,
    /// The user for whom the call is made.
    pub cred: Credential,
    /// Encoded arguments. Long payloads are sent by reference and not copied.
    pub args: Enc,
    /// The index of the only connection that may carry the call, for binding a session to it.
    /// `None` takes the least loaded connection.
    pub connection: Option<usize>,
    /// When the client may retransmit the call.
    pub retransmit: Retransmit,
    /// The time at which the call fails with [`crate::CallError::DeadlinePassed`].
    pub deadline: Option<Instant>,
    /// The caller cancels this token to abandon the call. The server may still execute the call.
    pub cancel: Option<CancellationToken>,
}

/// When a call without a reply may be sent again. The xid stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retransmit {
    /// On the same connection after each timeout, and on a new connection. NFSv3 uses this.
    OnReconnectAndTimeout,
    /// On a new connection only. NFSv4 forbids retransmission on the same connection (RFC 7530
    /// section 3.1.1, RFC 8881 section 2.9.2).
    OnReconnect,
}

/// The credential of a call. All calls of one user share its encoded form, so a clone is cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE.
    #[default]
    None,
    /// An encoded `opaque_auth` (RFC 5531 section 8.2): [`Credential::sys`].
    Encoded(Bytes),
    /// RPCSEC_GSS (RFC 2203). The user's context with the server seals the call.
    Gss(Arc<GssUser>),
}

impl Credential {
    /// AUTH_SYS (RFC 5531 appendix A).
    pub fn sys(sys: &AuthSys) -> Self {
        Self::Encoded(Enc::of(&OpaqueAuth::sys(sys)).to_bytes())
    }
}

/// A reply with the status SUCCESS.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The results: a slice of the receive buffer.
    pub body: Bytes,
    /// The server's verifier. Under RPCSEC_GSS it is checked.
    pub verifier: OpaqueAuth,
    /// Index of the connection that carried the reply.
    pub connection: usize,
}

/// Answers calls that the server makes on the client's connections (NFSv4.1 backchannel).
pub trait CallbackHandler: Send + Sync {
    /// Answers one call. `body` holds its arguments. The result is the whole reply message without
    /// its record mark. The client sends the reply on the connection that carried the call.
    fn call(&self, header: CallHeader, body: Bytes) -> BoxFuture<'static, Enc>;
}
