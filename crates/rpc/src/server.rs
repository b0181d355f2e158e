//! The RPC server: receives the calls of clients and sends replies.
//!
//! This module has no program of its own: a [`Service`] names its programs and answers their calls.
//! Each connection has a reader task, a writer task and one task for each waiting call. The reader
//! answers calls that need not wait. Replies leave in any order. The server itself answers the
//! errors of RPC: unknown programs, other versions, unreadable credentials.
//!
//! Limits protect the server from slow and hostile clients:
//!
//! - Records and their fragments have a maximum length. A record that has begun must make progress.
//! - Calls in progress are limited for each connection, and for all connections of an address.
//! - No further call is read while replies wait for the client. Replies that the client does not
//!   read end the connection.
//! - Memory for a call and its reply is acquired before the call is received and executed
//!   (`budget`). When memory is short, connections without progress end.
//!
//! A client that asks for TLS gets it, when the server has [`Tls`]: the calls in progress end, and
//! the connection continues encrypted. Calls behind the question are refused.
//!
//! A [`Pace`] limits the rate of calls while clients recover from a server restart. The server
//! calls its clients (NFSv4 backchannel) on the connections that they made ([`Peer::call`]).

mod budget;
mod connection;
mod pace;
mod piped;
mod seen;
#[cfg(test)]
mod tests;
mod tls;
mod turns;

use crate::gss::{GssAcceptor, GssCaller};
use crate::tcp::break_after;
use crate::transport::BoxFuture;
use budget::{Account, Budget, RELIEF_EVERY};
pub use budget::{Room, SMALL_BYTES};
use bytes::Bytes;
pub use connection::{CallBack, Peer};
use connection::{Shared, serve_streams};
use hither_proto::rpc::{AuthStat, AuthSys};
use hither_proto::xdr::Enc;
pub use pace::{Pace, Paced};
use parking_lot::Mutex;
pub use piped::Piped;
pub use seen::{AcceptorFigures, ConnectionFigures};
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
pub use tls::{Tls, TlsFiles, Transport};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use turns::Turns;

/// Pause after a failure to accept a connection (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two warnings about connections that cannot be accepted.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Time between two looks for remaining connections at the end.
const DRAIN_STEP: Duration = Duration::from_millis(5);
/// Most dropped connections that are logged within [`DROPS_WITHIN`].
const DROPS_LOGGED: u32 = 20;
/// The period of [`DROPS_LOGGED`]. Further dropped connections are only counted.
const DROPS_WITHIN: Duration = Duration::from_secs(60);
/// One address may have this part of all connections (a half).
const HOST_CONNECTIONS_PART: usize = 2;
/// A connection without progress for this time ends when other calls wait for memory.
const STALLED: Duration = Duration::from_secs(1);
/// Each relief frees at least this part of the memory (an eighth).
const RELIEF_PART: usize = 8;
/// A call counts against its address's calls in progress for this time.
const HOST_TURN: Duration = Duration::from_secs(1);
/// A call counts against [`ServerLimits::large_calls_max`] for this time. A call that takes longer
/// waits for a disk, a lock or another server.
const LARGE_TURN: Duration = Duration::from_millis(10);

/// A program of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Program number.
    pub number: u32,
    /// Lowest version.
    pub low: u32,
    /// Highest version.
    pub high: u32,
}

/// The caller's identity in the credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// AUTH_NONE: no identity.
    Nobody,
    /// AUTH_SYS: user and group numbers. The service trusts them as far as it trusts the address.
    Sys(AuthSys),
    /// RPCSEC_GSS: an authenticated principal.
    Gss(GssCaller),
}

/// A call to answer.
#[derive(Debug)]
pub struct Incoming {
    /// Program number, one of the service's.
    pub prog: u32,
    /// Version, in the program's range.
    pub vers: u32,
    /// Procedure number, any.
    pub proc: u32,
    /// Transaction id. A retransmitted call has the same xid.
    pub xid: u32,
    /// The caller.
    pub caller: Caller,
    /// Encoded arguments: a slice of the receive buffer.
    pub args: Bytes,
    /// The connection that carried the call.
    pub peer: Arc<Peer>,
    /// Length of the call's record in bytes, without record marks.
    pub record_bytes: usize,
    /// Memory reserved for the reply.
    pub room: Room,
}

/// The result of a call.
#[derive(Debug)]
pub enum Outcome {
    /// The call was executed. The results follow.
    Done(Enc),
    /// The call was executed. The results are two encoded parts with a payload between them.
    Piped(Enc, Box<dyn Piped>, Enc),
    /// The program has no such procedure.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server failed.
    SystemErr,
    /// The caller is refused with this status.
    Refused(AuthStat),
    /// No reply is sent. The client will send the call again.
    Silence,
}

/// The programs of a server.
pub trait Service: Send + Sync + 'static {
    /// The served programs.
    fn programs(&self) -> &[Program];

    /// The present limit of the rate of calls; `None`: no limit.
    fn pace(&self) -> Option<&Pace>;

    /// Answers one call. Many calls run at the same time. The future is not dropped when the
    /// connection ends: a received call is executed.
    fn call(self: Arc<Self>, call: Incoming) -> BoxFuture<'static, Outcome>;

    /// Called when a connection has ended.
    fn closed(&self, peer: &Peer);
}

/// The resources that clients may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Longest call in bytes.
    pub record_max_bytes: usize,
    /// Most calls of one connection in progress. Further calls are not read yet.
    pub calls_max: usize,
    /// Most calls in progress on all connections of one address, so that many connections of one
    /// client do not crowd out others. Each call counts for a second at most. Further calls are not
    /// read yet. An eighth is reserved for connections that recently used little time.
    pub host_calls_max: usize,
    /// Most calls with large replies that execute at once, so that they do not occupy the
    /// processors. Each call counts for ten milliseconds at most. Further calls wait.
    pub large_calls_max: usize,
    /// Most connections. One address may have half of them. A new connection beyond the limit ends
    /// the connection that has been idle longest.
    pub connections_max: usize,
    /// Bytes of the calls and replies of all connections.
    pub memory_max_bytes: usize,
    /// Bytes of replies that wait on one connection. Above this number no call is read.
    pub queued_max_bytes: usize,
    /// Longest time in which a connection accepts no bytes of its replies, or sends no bytes of an
    /// incomplete record.
    pub stall: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            record_max_bytes: (1 << 20) + (64 << 10),
            calls_max: 128,
            host_calls_max: 256,
            large_calls_max: usize::MAX,
            connections_max: 4096,
            memory_max_bytes: 512 << 20,
            queued_max_bytes: 8 << 20,
            stall: Duration::from_secs(60),
        }
    }
}

/// The protections that a server offers.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// TLS: clients may continue their connections with it (RFC 9289 section 4.1).
    pub tls: Option<Arc<Tls>>,
    /// RPCSEC_GSS (RFC 2203).
    pub gss: Option<Arc<GssAcceptor>>,
}

/// The state that all connections of a server share.
pub(crate) struct Global {
    pub service: Arc<dyn Service>,
    pub limits: ServerLimits,
    /// Keys of TLS, if it is offered.
    tls: Option<Arc<Tls>>,
    /// The contexts of RPCSEC_GSS, if it is offered.
    gss: Option<Arc<GssAcceptor>>,
    budget: Arc<Budget>,
    /// Permits for calls with large replies.
    large: Arc<Semaphore>,
    /// When stalled connections were last ended.
    relieved: Mutex<Option<Instant>>,
    next_id: AtomicU64,
    peers: Mutex<HashMap<u64, Arc<Shared>>>,
    /// For each address with connections, the turns of its calls.
    hosts: Mutex<HashMap<IpAddr, Weak<Turns>>>,
    drops: Mutex<Drops>,
    /// The counts of ended connections.
    ended: seen::Ended,
    /// When the log last reported too many connections.
    crowd_told: Mutex<Option<Instant>>,
}

/// The dropped connections in the log.
#[derive(Default)]
struct Drops {
    /// When the present period began.
    since: Option<Instant>,
    logged: u32,
    /// Dropped connections in this period that were not logged.
    more: u64,
}

/// Accepts connections for a [`Service`]. Connections continue when the acceptor is dropped.
/// [`Acceptor::shutdown`] ends them.
pub struct Acceptor {
    global: Arc<Global>,
    ends: Ends,
}

/// The end of an acceptor.
#[derive(Default)]
struct Ends {
    /// Accept no connection, and read no further call.
    drain: CancellationToken,
    /// End all connections.
    stop: CancellationToken,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// Makes an acceptor without TLS. It accepts connections after [`Acceptor::listen`] or
    /// [`Acceptor::serve`].
    pub fn new(service: Arc<dyn Service>, limits: ServerLimits) -> Self {
        Self::secure(service, limits, Security::default())
    }

    /// As [`Acceptor::new`], with the protections that clients may use.
    pub fn secure(service: Arc<dyn Service>, limits: ServerLimits, security: Security) -> Self {
        let Security { tls, gss } = security;
        let global = Global {
            service,
            tls,
            gss,
            budget: Budget::new(
                limits.memory_max_bytes,
                limits.queued_max_bytes.max(limits.memory_max_bytes / RELIEF_PART),
            ),
            large: Arc::new(Semaphore::new(limits.large_calls_max.clamp(1, Semaphore::MAX_PERMITS))),
            limits,
            relieved: Mutex::default(),
            next_id: AtomicU64::new(1),
            peers: Mutex::default(),
            hosts: Mutex::default(),
            drops: Mutex::default(),
            ended: seen::Ended::default(),
            crowd_told: Mutex::default(),
        };
        Self { global: Arc::new(global), ends: Ends::default() }
    }

    /// Reads the files of TLS again. Connections end whose client certificate is no longer valid.
    /// Does nothing without TLS. Blocks.
    ///
    /// # Errors
    /// A file cannot be used. The earlier keys stay in use.
    pub fn reload_tls(&self) -> io::Result<()> {
        let Some(tls) = &self.global.tls else { return Ok(()) };
        tls.reload()?;
        let peers: Vec<_> = self.global.peers.lock().values().cloned().collect();
        for peer in peers {
            if let Err(why) = tls.check(peer.certificates()) {
                self.global.dropped(peer.addr, &format!("has a client certificate that fails now: {why}"));
                peer.end();
            }
        }
        Ok(())
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.global.peers.lock().len()
    }

    /// Bytes of calls and replies in memory.
    pub fn memory_bytes(&self) -> usize {
        self.global.budget.used()
    }

    /// Accepts connections on `listener` until [`Acceptor::shutdown`].
    pub async fn listen(&self, listener: TcpListener) {
        let mut told = None;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.ends.drain.cancelled() => return,
                () = self.ends.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, peer)) if self.global.make_room(peer.ip()) => {
                    if let Err(error) = self.take(stream, peer) {
                        tracing::debug!(%peer, %error, "connection lost at once");
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    if told.is_none_or(|at: Instant| at.elapsed() >= TOLD_EVERY) {
                        told = Some(Instant::now());
                        tracing::warn!("cannot accept a connection: {error}");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream, addr: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        break_after(&SockRef::from(&stream), self.global.limits.stall, true)?;
        let local = stream.local_addr()?;
        let (reader, writer) = stream.into_split();
        self.begin(reader, writer, addr, local, Transport::Plain);
        Ok(())
    }

    /// Serves a connection that the caller established.
    pub fn serve<R, W>(&self, reader: R, writer: W, addr: SocketAddr, local: SocketAddr)
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        self.serve_protected(reader, writer, addr, local, Transport::Plain);
    }

    /// As [`Acceptor::serve`], for a connection that the caller has protected.
    pub fn serve_protected<R, W>(
        &self,
        reader: R,
        writer: W,
        addr: SocketAddr,
        local: SocketAddr,
        transport: Transport,
    ) where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        self.begin(reader, piped::Other(writer), addr, local, transport);
    }

    fn begin<R, W>(&self, reader: R, writer: W, addr: SocketAddr, local: SocketAddr, transport: Transport)
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: piped::Sink,
    {
        let id = self.global.next_id.fetch_add(1, Relaxed);
        let shared = Arc::new(Shared::new(id, addr, local, &self.ends));
        shared.protect(transport);
        self.global.peers.lock().insert(id, shared.clone());
        self.global.ended.accepted();
        tokio::spawn(serve_streams(self.global.clone(), shared, reader, writer));
    }

    /// Ends the listeners, and reads no further call. Each connection ends when its calls in
    /// progress are answered, at the latest after `most`.
    pub async fn drain(&self, most: Duration) {
        self.ends.drain.cancel();
        let ended = async {
            while self.connections() > 0 {
                tokio::time::sleep(DRAIN_STEP).await;
            }
        };
        let _ = tokio::time::timeout(most, ended).await;
        self.shutdown();
    }

    /// Ends the listeners and all connections. Calls in progress run to their end.
    pub fn shutdown(&self) {
        self.ends.stop.cancel();
    }
}

impl Global {
    /// The turns that the connections of an address share.
    fn host(&self, addr: IpAddr) -> Arc<Turns> {
        let mut hosts = self.hosts.lock();
        if let Some(host) = hosts.get(&addr).and_then(Weak::upgrade) {
            return host;
        }
        // Removes addresses whose last call ended after their last connection.
        if hosts.len() >= self.limits.connections_max {
            hosts.retain(|_, host| host.strong_count() > 0);
        }
        let host = Turns::new(self.limits.host_calls_max);
        hosts.insert(addr, Arc::downgrade(&host));
        host
    }

    /// Records the end of a connection of `addr`.
    fn left(&self, addr: IpAddr, host: Arc<Turns>) {
        let mut hosts = self.hosts.lock();
        drop(host);
        if hosts.get(&addr).is_some_and(|host| host.strong_count() == 0) {
            hosts.remove(&addr);
        }
    }

    /// Makes room for one more connection of `addr`. Returns false when there is none. At the limit
    /// of one address, its longest idle connection ends. At the limit of all, the longest idle
    /// connection of the address with the most connections ends.
    fn make_room(&self, addr: IpAddr) -> bool {
        let most = self.limits.connections_max;
        let peers: Vec<_> = self.peers.lock().values().filter(|p| !p.has_ended()).cloned().collect();
        let mut hosts: HashMap<IpAddr, usize> = HashMap::new();
        peers.iter().for_each(|peer| *hosts.entry(peer.addr.ip()).or_default() += 1);
        let of_addr = hosts.get(&addr).copied().unwrap_or(0);
        let host = match hosts.iter().max_by_key(|(_, count)| **count) {
            _ if of_addr >= (most / HOST_CONNECTIONS_PART).max(1) => addr,
            Some((host, _)) if peers.len() >= most => *host,
            _ => return true,
        };
        let idle = peers.iter().filter(|peer| peer.addr.ip() == host && peer.is_idle());
        let oldest = idle.min_by_key(|peer| peer.heard());
        let now = Instant::now();
        let mut told = self.crowd_told.lock();
        if told.is_none_or(|at| now - at >= TOLD_EVERY) {
            *told = Some(now);
            let (of_host, all) = (hosts.get(&host).copied().unwrap_or(0), peers.len());
            let what = if oldest.is_some() {
                "the longest idle connection ends"
            } else {
                "further connections are refused"
            };
            tracing::warn!("{host} has {of_host} of {all} connections, the maximum is {most}: {what}");
        }
        drop(told);
        if let Some(oldest) = oldest {
            oldest.end();
        }
        oldest.is_some()
    }

    /// Runs while a call waits for `wanted` bytes of memory. Ends stalled connections that hold
    /// memory, the largest first.
    fn relieve(&self, wanted: usize) {
        let now = Instant::now();
        {
            let mut relieved = self.relieved.lock();
            if relieved.is_some_and(|at| now - at < RELIEF_EVERY) {
                return;
            }
            *relieved = Some(now);
        }
        let stalled = |shared: &&Arc<Shared>| !shared.has_ended() && shared.stalled_for(now) >= STALLED;
        let mut stalled: Vec<_> = self.peers.lock().values().filter(stalled).cloned().collect();
        stalled.sort_by_key(|shared| std::cmp::Reverse(shared.account.used()));
        let mut freed = 0;
        for shared in stalled {
            if freed >= wanted.max(self.budget.total() / RELIEF_PART) {
                break;
            }
            freed += shared.account.used();
            self.dropped(shared.addr, "made no progress while memory is short");
            shared.end();
        }
    }

    /// Logs a dropped connection, at most [`DROPS_LOGGED`] times in [`DROPS_WITHIN`].
    fn dropped(&self, addr: SocketAddr, why: &str) {
        self.ended.dropped();
        let now = Instant::now();
        let mut drops = self.drops.lock();
        if drops.since.is_none_or(|since| now - since >= DROPS_WITHIN) {
            if drops.more > 0 {
                tracing::warn!("{} more connections were dropped in the minute before", drops.more);
            }
            *drops = Drops { since: Some(now), ..Drops::default() };
        }
        if drops.logged < DROPS_LOGGED {
            tracing::warn!("connection from {addr} dropped: it {why}");
        } else {
            drops.more += 1;
        }
        drops.logged = drops.logged.saturating_add(1);
    }

    /// Checks that the service has the program in this version.
    fn program(&self, prog: u32, vers: u32) -> Result<(), Mismatch> {
        match self.service.programs().iter().find(|p| p.number == prog) {
            None => Err(Mismatch::Program),
            Some(p) if (p.low..=p.high).contains(&vers) => Ok(()),
            Some(p) => Err(Mismatch::Version(p.low, p.high)),
        }
    }
}

enum Mismatch {
    Program,
    Version(u32, u32),
}
