//! Connections over TCP.

use crate::transport::{BoxFuture, Connect, Link};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Where and how to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The server's address and port.
    pub addr: SocketAddr,
    /// Bind to a privileged source port, as many servers demand (`secure` in exports(5)).
    pub resvport: bool,
    /// Probe an idle connection, so that a server that vanished is noticed.
    pub keepalive: bool,
    /// Longest time to establish a connection.
    pub connect_timeout: Duration,
}

/// Connects to an [`Endpoint`].
#[derive(Debug)]
pub struct TcpConnect {
    endpoint: Endpoint,
}

impl TcpConnect {
    /// Connections to `endpoint`. Connects nothing yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint }
    }
}

impl Connect for TcpConnect {
    fn connect(&self, previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        let _ = previous;
        Box::pin(async move { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn server(&self) -> String {
        self.endpoint.addr.to_string()
    }
}
