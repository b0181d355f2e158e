//! The byte streams of a connection, and the trait that makes connections.
//!
//! This module transports bytes, not messages. A [`Connect`] makes [`Link`]s: two byte streams and
//! their addresses. The upper layers work on any pair of streams. Tests inject latency, loss and
//! cuts with simulated streams.

use bytes::Bytes;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};

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

/// Most fragments of a record that [`read_record`] accepts.
const FRAGMENTS_MAX: usize = 16;

/// Reads one record (RFC 5531 section 11) and not a byte more: the bytes that follow belong to the
/// user of the connection. For the first calls on a connection.
///
/// # Errors
/// `InvalidData`: the record is longer than `max_bytes` or has too many fragments. Errors of the
/// stream.
pub async fn read_record(
    reader: &mut (impl AsyncRead + Unpin + ?Sized),
    max_bytes: usize,
) -> io::Result<Bytes> {
    let mut record = Vec::new();
    for _ in 0..FRAGMENTS_MAX {
        let mark = reader.read_u32().await?;
        let start = record.len();
        let len = (mark & (u32::MAX >> 1)) as usize;
        if len > max_bytes - start {
            break;
        }
        record.resize(start + len, 0);
        reader.read_exact(&mut record[start..]).await?;
        if mark >> 31 == 1 {
            return Ok(record.into());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("the answer is longer than {max_bytes} bytes")))
}
