//! Connections over TCP.
//!
//! This module transports bytes, not messages. It sets the TCP options that NFS needs: no Nagle
//! delay, keepalive probes that detect a vanished server, and a bound on unacknowledged bytes. It
//! also uses a privileged source port where servers require one. A reconnect uses the same source
//! port, because NFSv3 servers use the port to find a retransmission in their reply cache.

use crate::transport::{BoxFuture, Connect, Link};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// An idle connection is broken after a given time. The first keepalive probe is sent after this
/// part of that time. With 60 s the kernel breaks the connection after four lost probes at 20, 30,
/// 40 and 50 s.
const KEEPALIVE_IDLE_PART: u32 = 3;
const KEEPALIVE_INTERVAL_PART: u32 = 6;

/// Longest time that bytes may stay unacknowledged (RFC 5482). After a network cut TCP's own
/// retransmission waits about as long as the cut has lasted. A new connection is faster.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// Privileged ports in the order of preference: from 665 up, like the Linux client, then from
/// bindresvport(3)'s 512 up.
const RESVPORT_FIRST: u16 = 512;
const RESVPORT_PREFERRED: u16 = 665;
const RESVPORT_LAST: u16 = 1023;

/// Ports reserved for other daemons: printing, LDAP, backup, mail, name service control.
const RESVPORT_AVOID: [u16; 11] = [587, 623, 631, 636, 664, 774, 873, 921, 953, 993, 995];

/// Most privileged ports to try when the server still holds an earlier connection from each port.
const RESVPORT_CONNECTS_MAX: usize = 16;

/// The server's address and the properties of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The server's address and port.
    pub addr: SocketAddr,
    /// Bind to a privileged source port, which many servers require (`secure` in exports(5)).
    pub resvport: bool,
    /// Send keepalive probes on an idle connection, to detect a vanished server.
    pub keepalive: bool,
    /// Longest time to establish a connection. Use at most about 10 s, because an attempt that
    /// began before the network healed may have to time out first.
    pub connect_timeout: Duration,
}

/// Makes the kernel break a connection after `time` with unacknowledged bytes. With `probes` the
/// kernel also breaks it after `time` with unanswered keepalive probes. The time counts from the
/// last received byte, so probes must start well before its end.
pub(crate) fn break_after(socket: &SockRef<'_>, time: Duration, probes: bool) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(time))?;
    if probes {
        let part = |part: u32| (time / part).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new()
            .with_time(part(KEEPALIVE_IDLE_PART))
            .with_interval(part(KEEPALIVE_INTERVAL_PART));
        socket.set_tcp_keepalive(&keepalive)?;
    }
    Ok(())
}

/// Connects to an [`Endpoint`].
#[derive(Debug)]
pub struct TcpConnect {
    endpoint: Endpoint,
    warned: AtomicBool,
}

impl TcpConnect {
    /// A connector to `endpoint`. It does not connect yet.
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, warned: AtomicBool::new(false) }
    }
}

impl Connect for TcpConnect {
    fn connect(&self, previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        Box::pin(async move {
            let limit = self.endpoint.connect_timeout;
            let stream = timeout(limit, self.establish(previous)).await.unwrap_or_else(|_| {
                let text = format!("no answer within {} s", limit.as_secs_f32());
                Err(io::Error::new(ErrorKind::TimedOut, text))
            })?;
            link(stream)
        })
    }

    fn server(&self) -> String {
        self.endpoint.addr.to_string()
    }
}

impl TcpConnect {
    async fn establish(&self, previous: Option<SocketAddr>) -> io::Result<TcpStream> {
        if let Some(previous) = previous.filter(|p| p.port() != 0 && self.suits(p.port()))
            && let Ok(socket) = self.socket()
            && socket.set_reuse_address(true).is_ok()
            && socket.bind(&previous.into()).is_ok()
        {
            match self.finish(socket).await {
                Err(e) if is_port_trouble(&e) => {}
                result => return result,
            }
        }
        if self.endpoint.resvport {
            match self.establish_privileged().await {
                Err(e) if e.kind() == ErrorKind::PermissionDenied => self.warn_unprivileged(),
                result => return result,
            }
        }
        let socket = self.socket()?;
        // Lets a reconnect bind the same port.
        socket.set_reuse_address(true)?;
        socket.bind(&self.local(0).into())?;
        self.finish(socket).await
    }

    /// Connects from a privileged port. `PermissionDenied`: the process may not bind one.
    async fn establish_privileged(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(ErrorKind::AddrInUse, "all privileged source ports are in use");
        let mut connects = 0;
        for port in privileged_ports(rand::random()) {
            let socket = self.socket()?;
            match socket.bind(&self.local(port).into()) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::AddrInUse => continue,
                Err(e) => return Err(e),
            }
            socket.set_reuse_address(true)?;
            match self.finish(socket).await {
                Err(e) if is_port_trouble(&e) => last = e,
                result => return result,
            }
            connects += 1;
            if connects == RESVPORT_CONNECTS_MAX {
                break;
            }
        }
        Err(last)
    }

    fn socket(&self) -> io::Result<Socket> {
        let socket = Socket::new(
            Domain::for_address(self.endpoint.addr),
            Type::STREAM.nonblocking().cloexec(),
            Some(Protocol::TCP),
        )?;
        socket.set_tcp_nodelay(true)?;
        break_after(&SockRef::from(&socket), USER_TIMEOUT, self.endpoint.keepalive)?;
        Ok(socket)
    }

    async fn finish(&self, socket: Socket) -> io::Result<TcpStream> {
        TcpSocket::from_std_stream(socket.into()).connect(self.endpoint.addr).await
    }

    fn local(&self, port: u16) -> SocketAddr {
        let any: IpAddr = match self.endpoint.addr {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(any, port)
    }

    /// Whether `port` meets the endpoint's `resvport` requirement.
    fn suits(&self, port: u16) -> bool {
        !self.endpoint.resvport || port <= RESVPORT_LAST || self.warned.load(Relaxed)
    }

    fn warn_unprivileged(&self) {
        if !self.warned.swap(true, Relaxed) {
            tracing::warn!(
                "no permission to use a privileged source port; server {} may refuse us: \
                 mount as root, or with noresvport and `insecure` in the server's exports",
                self.endpoint.addr
            );
        }
    }
}

/// Whether the error concerns the local address or port, so that another port may work.
fn is_port_trouble(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

/// Each privileged port once, starting at a random place, so that several mounts rarely collide.
fn privileged_ports(start: u16) -> impl Iterator<Item = u16> {
    let rotated = move |first: u16, last: u16| {
        let n = last - first + 1;
        (0..n).map(move |i| first + (start % n + i) % n)
    };
    rotated(RESVPORT_PREFERRED, RESVPORT_LAST)
        .chain(rotated(RESVPORT_FIRST, RESVPORT_PREFERRED - 1))
        .filter(|port| !RESVPORT_AVOID.contains(port))
}

fn link(stream: TcpStream) -> io::Result<Link> {
    let local = stream.local_addr().ok();
    // Every end of the connection, including SIGKILL, sends RST instead of FIN. Unsent calls are
    // then not executed after their caller is gone, and the port is free at once. If the option
    // cannot be set, the connection closes with FIN.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    let (reader, writer) = stream.into_split();
    Ok(Link { reader: Box::new(reader), writer: Box::new(writer), local })
}

#[cfg(test)]
mod tests;
