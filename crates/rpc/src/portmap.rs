//! Queries the rpcbind of a host for the port of a program (RFC 1833), and registers programs with
//! the local rpcbind.
//!
//! IPv4 queries use portmap version 2, which every server has. IPv6 queries use rpcbind version 4,
//! because portmap lacks IPv6.

mod register;

use crate::call::{Call, Credential, Retransmit};
use crate::client::{Client, ClientConfig};
use crate::error::CallError;
use crate::policy::{Mode, RetryPolicy};
use crate::stats::Stats;
use crate::tcp::{Endpoint, TcpConnect};
use hither_proto::portmap::{
    IPPROTO_TCP, Mapping, PORT, PORTMAP_VERSION, PROGRAM, PortmapProc, RPCBIND_VERSIONS, Rpcb, RpcbindProc,
    Text, parse_universal, tcp_netid,
};
use hither_proto::xdr::{Dec, Enc, Xdr};
pub use register::{RPCBIND_SOCKET, Registered, Registration, Rpcbind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The reason why a port is not known.
#[derive(Debug, thiserror::Error)]
pub enum PortmapError {
    /// The client cannot reach rpcbind.
    #[error("rpcbind on {host} (port 111) cannot be reached: {cause}")]
    Unreachable {
        /// The queried host.
        host: IpAddr,
        /// The cause.
        cause: CallError,
    },
    /// rpcbind answers that the program is not registered.
    #[error("program {prog} version {vers} over TCP is not registered with rpcbind on {host}")]
    NotRegistered {
        /// The queried host.
        host: IpAddr,
        /// Program number.
        prog: u32,
        /// Program version.
        vers: u32,
    },
    /// rpcbind refuses the query, or its answer is malformed.
    #[error("rpcbind on {host}: {cause}")]
    Refused {
        /// The queried host.
        host: IpAddr,
        /// The refusal or the decoding error.
        cause: CallError,
    },
}

/// The TCP port of a program on `host`.
///
/// # Errors
/// See [`PortmapError`]. The query ends within `timeout`.
pub async fn getport(host: IpAddr, prog: u32, vers: u32, timeout: Duration) -> Result<u16, PortmapError> {
    let deadline = Instant::now() + timeout;
    let endpoint = Endpoint {
        addr: SocketAddr::new(host, PORT),
        resvport: false,
        keepalive: false,
        connect_timeout: timeout,
    };
    let cfg = ClientConfig {
        policy: RetryPolicy { timeo: timeout, retrans: 0, mode: Mode::Soft },
        max_record_bytes: 64 << 10,
        fail_when_unreachable: true,
        ..ClientConfig::default()
    };
    let rpcbind = Client::new(Arc::new(TcpConnect::new(endpoint)), cfg, Arc::new(Stats::new()));
    getport_via(&rpcbind, host, prog, vers, deadline).await
}

/// The TCP port of a program on `host`. `rpcbind` is a client of the host's rpcbind.
///
/// # Errors
/// See [`PortmapError`]. The query ends at `deadline`.
pub async fn getport_via(
    rpcbind: &Client,
    host: IpAddr,
    prog: u32,
    vers: u32,
    deadline: Instant,
) -> Result<u16, PortmapError> {
    let call = |vers, proc, args| Call {
        prog: PROGRAM,
        vers,
        proc,
        op: "GETPORT",
        cred: Credential::None,
        args,
        connection: None,
        retransmit: Retransmit::OnReconnectAndTimeout,
        deadline: Some(deadline),
        cancel: None,
    };
    let port = if host.is_ipv4() {
        let args = Enc::of(&Mapping { prog, vers, prot: IPPROTO_TCP, port: 0 });
        let port: u32 = ask(rpcbind, host, call(PORTMAP_VERSION, PortmapProc::GETPORT.0, args)).await?;
        u16::try_from(port).map_err(|_| misbehaved(host, "the port is larger than 65535"))?
    } else {
        let args = Enc::of(&Rpcb::query(prog, vers, tcp_netid(&host)));
        let addr: Text = ask(rpcbind, host, call(RPCBIND_VERSIONS[0], RpcbindProc::GETADDR.0, args)).await?;
        match &addr[..] {
            [] => 0,
            addr => parse_universal(addr)
                .ok_or_else(|| misbehaved(host, "the answer is not a universal address"))?
                .port(),
        }
    };
    match port {
        0 => Err(PortmapError::NotRegistered { host, prog, vers }),
        port => Ok(port),
    }
}

async fn ask<T: Xdr>(rpcbind: &Client, host: IpAddr, call: Call) -> Result<T, PortmapError> {
    match rpcbind.call(call).await {
        Ok(reply) => Dec::all(&reply.body).map_err(|_| misbehaved(host, "the answer cannot be decoded")),
        Err(CallError::DeadlinePassed) => {
            Err(PortmapError::Unreachable { host, cause: CallError::TimedOut(Mode::Soft) })
        }
        Err(cause @ (CallError::Connect(_) | CallError::TimedOut(_) | CallError::Shutdown)) => {
            Err(PortmapError::Unreachable { host, cause })
        }
        Err(cause) => Err(PortmapError::Refused { host, cause }),
    }
}

fn misbehaved(host: IpAddr, what: &'static str) -> PortmapError {
    PortmapError::Refused { host, cause: CallError::PeerMisbehaved(what) }
}

#[cfg(test)]
mod tests;
