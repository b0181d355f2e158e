//! Registers programs with the local rpcbind (RFC 1833, rpcbind(8)). The connection is rpcbind's
//! local socket, where rpcbind sees the caller's user.

use super::{PortmapError, ask, misbehaved};
use crate::call::{Call, Credential, Retransmit};
use crate::client::{Client, ClientConfig};
use crate::policy::{Mode, RetryPolicy};
use crate::stats::Stats;
use crate::transport::{BoxFuture, Connect, Link};
use hither_proto::portmap::{
    PROGRAM, REGISTRATIONS_MAX, RPCBIND_VERSIONS, Rpcb, RpcbindProc, Text, format_universal, parse_universal,
    tcp_netid,
};
use hither_proto::xdr::{Chain, Enc, Xdr};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::Instant;

/// The socket on which rpcbind listens for local programs.
pub const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

/// A program that listens on TCP or UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Program number.
    pub prog: u32,
    /// Program version.
    pub vers: u32,
    /// The address of the program. rpcbind replaces an unspecified address (`0.0.0.0`, `::`) in its
    /// answers by the address that the query arrived at.
    pub addr: SocketAddr,
    /// True for UDP, false for TCP.
    pub udp: bool,
}

impl Registration {
    fn netid(&self) -> &'static str {
        match (self.udp, self.addr.ip()) {
            (true, IpAddr::V4(_)) => "udp",
            (true, IpAddr::V6(_)) => "udp6",
            (false, ip) => tcp_netid(&ip),
        }
    }
}

/// The result of a [`Registration`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// rpcbind registered the program.
    Done,
    /// Another server has registered the program, at this port.
    Taken(u16),
    /// rpcbind refuses the registration for this user.
    Refused,
}

/// A local rpcbind.
pub struct Rpcbind {
    client: Client,
    deadline: Instant,
}

impl std::fmt::Debug for Rpcbind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rpcbind")
    }
}

impl Rpcbind {
    /// The rpcbind behind `socket` (usually [`RPCBIND_SOCKET`]). The first call connects. All calls
    /// together end within `timeout`.
    pub fn local(socket: &Path, timeout: Duration) -> Self {
        let cfg = ClientConfig {
            policy: RetryPolicy { timeo: timeout, retrans: 0, mode: Mode::Soft },
            max_record_bytes: 1 << 20,
            fail_when_unreachable: true,
            ..ClientConfig::default()
        };
        let connect = LocalConnect { socket: socket.to_path_buf(), timeout };
        let client = Client::new(Arc::new(connect), cfg, Arc::new(Stats::new()));
        Self { client, deadline: Instant::now() + timeout }
    }

    /// Registers a program. A stale entry of an earlier process on the same port is replaced,
    /// because the caller listens on that port now.
    ///
    /// # Errors
    /// See [`PortmapError`].
    pub async fn register(&self, what: &Registration) -> Result<Registered, PortmapError> {
        if self.set(what).await? {
            return Ok(Registered::Done);
        }
        let Some(port) = self.port_of(what).await? else { return Ok(Registered::Refused) };
        if port != what.addr.port() {
            return Ok(Registered::Taken(port));
        }
        self.unset(what).await?;
        Ok(if self.set(what).await? { Registered::Done } else { Registered::Refused })
    }

    /// Ends a registration. Returns false when there was no registration, when it belongs to
    /// another user, or when another server has registered the program since.
    ///
    /// # Errors
    /// See [`PortmapError`].
    pub async fn unregister(&self, what: &Registration) -> Result<bool, PortmapError> {
        Ok(self.port_of(what).await? == Some(what.addr.port()) && self.unset(what).await?)
    }

    async fn unset(&self, what: &Registration) -> Result<bool, PortmapError> {
        let rpcb = Rpcb::query(what.prog, what.vers, what.netid());
        self.ask(RpcbindProc::UNSET, "UNSET", Enc::of(&rpcb)).await
    }

    async fn set(&self, what: &Registration) -> Result<bool, PortmapError> {
        let addr = Text::copy(format_universal(&what.addr).as_bytes());
        let rpcb = Rpcb { addr, ..Rpcb::query(what.prog, what.vers, what.netid()) };
        self.ask(RpcbindProc::SET, "SET", Enc::of(&rpcb)).await
    }

    /// The registered port of a program.
    async fn port_of(&self, what: &Registration) -> Result<Option<u16>, PortmapError> {
        let all: Chain<Rpcb, REGISTRATIONS_MAX> = self.ask(RpcbindProc::DUMP, "DUMP", Enc::new()).await?;
        let netid = what.netid().as_bytes();
        let same = |r: &&Rpcb| r.prog == what.prog && r.vers == what.vers && r.netid[..] == *netid;
        let Some(found) = all.iter().find(same) else { return Ok(None) };
        let at = parse_universal(&found.addr);
        at.map(|at| Some(at.port()))
            .ok_or_else(|| misbehaved(HERE, "a registration has no universal address"))
    }

    async fn ask<T: Xdr>(&self, proc: RpcbindProc, op: &'static str, args: Enc) -> Result<T, PortmapError> {
        let call = Call {
            prog: PROGRAM,
            vers: RPCBIND_VERSIONS[0],
            proc: proc.0,
            op,
            cred: Credential::None,
            args,
            connection: None,
            retransmit: Retransmit::OnReconnectAndTimeout,
            deadline: Some(self.deadline),
            cancel: None,
        };
        ask(&self.client, HERE, call).await
    }
}

/// The local rpcbind's address in messages.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Connections to a socket of this machine.
struct LocalConnect {
    socket: PathBuf,
    timeout: Duration,
}

impl Connect for LocalConnect {
    fn connect(&self, _previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        Box::pin(async move {
            let stream = tokio::time::timeout(self.timeout, UnixStream::connect(&self.socket)).await??;
            let (reader, writer) = stream.into_split();
            Ok(Link { reader: Box::new(reader), writer: Box::new(writer), local: None })
        })
    }

    fn server(&self) -> String {
        self.socket.display().to_string()
    }
}
