//! The byte streams of a connection, and the trait that makes connections.
//!
//! This module transports bytes, not messages. A [`Connect`] makes [`Link`]s: two byte streams and
//! their addresses. The upper layers work on any pair of streams. Tests inject latency, loss and
//! cuts with simulated streams.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncWrite};

/// A boxed future, so that traits with asynchronous methods stay object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes connections to one server.
pub trait Connect: Send + Sync {
    /// Connects once and reports the result; the caller retries. The attempt must end within a
    /// bounded time (`TimedOut`). `previous` is the local address of the replaced connection.
    /// Servers recognise NFSv3 retransmissions by this address, so the new connection uses it if
    /// possible.
    fn connect(&self, previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>>;

    /// The server in log lines and error messages, for example `192.0.2.1:2049`.
    fn server(&self) -> String;
}

/// An established connection.
pub struct Link {
    /// Bytes from the peer.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// Bytes to the peer.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// The local address, when the transport has addresses.
    pub local: Option<SocketAddr>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("local", &self.local).finish_non_exhaustive()
    }
}
