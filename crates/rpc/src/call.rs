//! A call and its reply, as the program layers see them.

use crate::transport::BoxFuture;
use bytes::Bytes;
use hither_proto::rpc::{AuthSys, CallHeader, OpaqueAuth};
use hither_proto::xdr::Enc;
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
    /// On whose behalf.
    pub cred: Credential,
    /// Encoded arguments; long payloads are sent from where they are.
    pub args: Enc,
    /// Send on this connection only (binding a session to it); `None` takes the least loaded.
    pub connection: Option<usize>,
    /// When the call may be sent again.
    pub retransmit: Retransmit,
    /// When the result is no longer wanted.
    pub deadline: Option<Instant>,
    /// Cancelled when the result is no longer wanted. The server may execute the call all the same.
    pub cancel: Option<CancellationToken>,
}

/// When a call that has no reply may be sent again, always with the same xid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retransmit {
    /// After each timeout on the same connection, and on a new connection: NFSv3.
    OnReconnectAndTimeout,
    /// On a new connection only: NFSv4 forbids the other (RFC 7530 section 3.1.1, RFC 8881
    /// section 2.9.2).
    OnReconnect,
}

/// The credential of a call, encoded once and shared by its user's calls: cloning is cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE.
    #[default]
    None,
    /// An encoded `opaque_auth` (RFC 5531 section 8.2): [`Credential::sys`].
    Encoded(Bytes),
}

impl Credential {
    /// AUTH_SYS (RFC 5531 appendix A).
    pub fn sys(sys: &AuthSys) -> Self {
        Self::Encoded(Enc::of(&OpaqueAuth::sys(sys)).to_bytes())
    }
}

/// A reply that says SUCCESS.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The results: a slice of the receive buffer.
    pub body: Bytes,
    /// Index of the connection that it came on.
    pub connection: usize,
}

/// Answers calls that the server makes on our connections (NFSv4.1 backchannel).
pub trait CallbackHandler: Send + Sync {
    /// Answers one call. `body` holds its arguments. The result is the whole reply message without
    /// its record mark; it goes out on the connection that the call came on.
    fn call(&self, header: CallHeader, body: Bytes) -> BoxFuture<'static, Enc>;
}
