//! The other side: a socket on which clients make calls.
//!
//! It knows no program: a [`Service`] names its programs and answers their calls. Each connection
//! has a task that reads records and answers calls that need not wait, one that writes replies, and
//! one for each call that is waiting; replies are sent in any order. RPC's own errors (no such
//! program, other versions, unreadable credentials) are answered here.
//!
//! A client may be slow or hostile. Records and their fragments are limited; a record that has
//! begun must go on; a connection has so many calls at a time, and so have all connections of its
//! address together, and no further call is read while replies wait for it to read; replies that it
//! does not take end it. Memory for a call and its reply is acquired before it is received and
//! executed (`budget`), and when it is short, connections end that make no progress. While clients
//! recover from a restart calls can be taken at a [`Pace`]. The server calls its clients (NFSv4's
//! backchannel) on the connections that they made ([`Peer::call`]).

mod budget;
mod connection;
mod pace;
mod piped;
#[cfg(test)]
mod tests;
mod turns;

use crate::tcp::break_after;
use crate::transport::BoxFuture;
pub use budget::Room;
use budget::{Account, Budget, RELIEF_EVERY};
use bytes::Bytes;
pub use connection::{CallBack, Peer};
use connection::{Shared, serve_streams};
use hither_proto::rpc::{AuthStat, AuthSys};
use hither_proto::xdr::Enc;
pub use pace::{Pace, Paced};
use parking_lot::Mutex;
pub use piped::Piped;
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use turns::Turns;

/// Pause after a failure to accept a connection (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the log hears that connections cannot be accepted.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Connections that are dropped are logged so often...
const DROPS_LOGGED: u32 = 20;
/// ...in this time; those beyond are counted.
const DROPS_WITHIN: Duration = Duration::from_secs(60);
/// One address may have this part of all connections.
const HOST_CONNECTIONS_PART: usize = 2;
/// A connection that makes no progress for so long ends when others wait for memory.
const STALLED: Duration = Duration::from_secs(1);
/// So much is given back then at a time, at least.
const RELIEF_PART: usize = 8;
/// For so long a call counts against its address's share of calls at a time.
const HOST_TURN: Duration = Duration::from_secs(1);

/// A program of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Number.
    pub number: u32,
    /// Lowest version.
    pub low: u32,
    /// Highest version.
    pub high: u32,
}

/// The caller, as far as the credential names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// AUTH_NONE: no identity.
    Nobody,
    /// AUTH_SYS: numbers, believed as far as the service believes the address.
    Sys(AuthSys),
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
    /// Transaction id: a call that is sent again has the same.
    pub xid: u32,
    /// The caller.
    pub caller: Caller,
    /// Encoded arguments: a slice of the receive buffer.
    pub args: Bytes,
    /// The connection that it came on.
    pub peer: Arc<Peer>,
    /// Memory for its reply.
    pub room: Room,
}

/// The outcome of a call.
#[derive(Debug)]
pub enum Outcome {
    /// Executed; the results.
    Done(Enc),
    /// Executed; the results up to a payload, the payload, and the rest.
    Piped(Enc, Box<dyn Piped>, Enc),
    /// There is no such procedure.
    ProcUnavail,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// The server failed.
    SystemErr,
    /// The caller is refused.
    Refused(AuthStat),
    /// No answer: the client will call again.
    Silence,
}

/// Answers calls.
pub trait Service: Send + Sync + 'static {
    /// The served programs.
    fn programs(&self) -> &[Program];

    /// How fast calls are taken now; `None`: as they come.
    fn pace(&self) -> Option<&Pace>;

    /// Answers one call. Many run at a time. The future is not dropped when the connection ends: a
    /// call that came is executed.
    fn call(self: Arc<Self>, call: Incoming) -> BoxFuture<'static, Outcome>;

    /// A connection has ended.
    fn closed(&self, peer: &Peer);
}

/// The limits of clients on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Longest call.
    pub record_max_bytes: usize,
    /// Calls of one connection at a time; more wait unread.
    pub calls_max: usize,
    /// Calls of all connections of one address that are being answered, each for a second at most,
    /// so that many connections do not get more than their part; more wait unread. An eighth is
    /// left to connections that took little time of late.
    pub host_calls_max: usize,
    /// Connections, of which one address has half at most; for more, those end that are idle
    /// longest.
    pub connections_max: usize,
    /// Bytes of calls and replies of all connections.
    pub memory_max_bytes: usize,
    /// Bytes of replies that wait for one connection; no call is read meanwhile.
    pub queued_max_bytes: usize,
    /// Longest time in which a connection takes no bytes of its replies, or sends no bytes of a
    /// record that has begun.
    pub stall: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            record_max_bytes: (1 << 20) + (64 << 10),
            calls_max: 128,
            host_calls_max: 256,
            connections_max: 4096,
            memory_max_bytes: 512 << 20,
            queued_max_bytes: 8 << 20,
            stall: Duration::from_secs(60),
        }
    }
}

/// The state that all connections of a server share.
pub(crate) struct Global {
    pub service: Arc<dyn Service>,
    pub limits: ServerLimits,
    budget: Arc<Budget>,
    /// When stalled connections were last looked for.
    relieved: Mutex<Option<Instant>>,
    next_id: AtomicU64,
    peers: Mutex<HashMap<u64, Arc<Shared>>>,
    /// For each address with connections, the calls that may be answered at a time.
    hosts: Mutex<HashMap<IpAddr, Weak<Turns>>>,
    drops: Mutex<Drops>,
    /// When the log last heard that there are too many connections.
    crowd_told: Mutex<Option<Instant>>,
}

/// The logged entries about dropped connections.
#[derive(Default)]
struct Drops {
    /// When this minute began.
    since: Option<Instant>,
    logged: u32,
    /// Not logged since.
    more: u64,
}

/// Accepts connections for a [`Service`]. Dropping it lets connections go on;
/// [`Acceptor::shutdown`] ends them.
pub struct Acceptor {
    global: Arc<Global>,
    stop: CancellationToken,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("connections", &self.connections()).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// An acceptor that listens nowhere yet.
    pub fn new(service: Arc<dyn Service>, limits: ServerLimits) -> Self {
        let global = Global {
            service,
            budget: Budget::new(
                limits.memory_max_bytes,
                limits.queued_max_bytes.max(limits.memory_max_bytes / RELIEF_PART),
            ),
            limits,
            relieved: Mutex::default(),
            next_id: AtomicU64::new(1),
            peers: Mutex::default(),
            hosts: Mutex::default(),
            drops: Mutex::default(),
            crowd_told: Mutex::default(),
        };
        Self { global: Arc::new(global), stop: CancellationToken::new() }
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.global.peers.lock().len()
    }

    /// Bytes of calls and replies.
    pub fn memory_bytes(&self) -> usize {
        self.global.budget.used()
    }

    /// Accepts connections on `listener` until [`Acceptor::shutdown`].
    pub async fn listen(&self, listener: TcpListener) {
        let mut told = None;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
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
        self.begin(reader, writer, addr, local);
        Ok(())
    }

    /// Serves a connection that was made elsewhere.
    pub fn serve<R, W>(&self, reader: R, writer: W, addr: SocketAddr, local: SocketAddr)
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        self.begin(reader, piped::Other(writer), addr, local);
    }

    fn begin<R, W>(&self, reader: R, writer: W, addr: SocketAddr, local: SocketAddr)
    where
        R: tokio::io::AsyncRead + Send + Unpin + 'static,
        W: piped::Sink,
    {
        let id = self.global.next_id.fetch_add(1, Relaxed);
        let shared = Arc::new(Shared::new(id, addr, local, &self.stop));
        self.global.peers.lock().insert(id, shared.clone());
        tokio::spawn(serve_streams(self.global.clone(), shared, reader, writer));
    }

    /// Ends the listeners and all connections; calls that are being answered run to their end.
    pub fn shutdown(&self) {
        self.stop.cancel();
    }
}

impl Global {
    /// What the connections of an address share.
    fn host(&self, addr: IpAddr) -> Arc<Turns> {
        let mut hosts = self.hosts.lock();
        if let Some(host) = hosts.get(&addr).and_then(Weak::upgrade) {
            return host;
        }
        // Those whose last call outlived their last connection.
        if hosts.len() >= self.limits.connections_max {
            hosts.retain(|_, host| host.strong_count() > 0);
        }
        let host = Turns::new(self.limits.host_calls_max);
        hosts.insert(addr, Arc::downgrade(&host));
        host
    }

    /// A connection of an address has ended.
    fn left(&self, addr: IpAddr, host: Arc<Turns>) {
        let mut hosts = self.hosts.lock();
        drop(host);
        if hosts.get(&addr).is_some_and(|host| host.strong_count() == 0) {
            hosts.remove(&addr);
        }
    }

    /// Whether there is room for one more connection of an address. At the limit of the address, or
    /// of all, the connection ends that is idle longest: one of this address, or of the address
    /// with the most.
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
        let idle = peers.iter().filter(|peer| peer.addr.ip() == host && peer.account.used() == 0);
        let oldest = idle.min_by_key(|peer| peer.heard());
        let now = Instant::now();
        let mut told = self.crowd_told.lock();
        if told.is_none_or(|at| now - at >= TOLD_EVERY) {
            *told = Some(now);
            let (of_host, all) = (hosts.get(&host).copied().unwrap_or(0), peers.len());
            let what =
                if oldest.is_some() { "the one that is idle longest ends" } else { "more are refused" };
            tracing::warn!("{host} has {of_host} connections of {all}, at most {most} are taken: {what}");
        }
        drop(told);
        if let Some(oldest) = oldest {
            oldest.end();
        }
        oldest.is_some()
    }

    /// A call waits for so much memory: ends connections that have some and make no progress, the
    /// largest first.
    fn relieve(&self, wanted: usize) {
        let now = Instant::now();
        {
            let mut relieved = self.relieved.lock();
            if relieved.is_some_and(|at| now - at < RELIEF_EVERY) {
                return;
            }
            *relieved = Some(now);
        }
        let stalled = |shared: &&Arc<Shared>| shared.stalled_for(now) >= STALLED;
        let mut stalled: Vec<_> = self.peers.lock().values().filter(stalled).cloned().collect();
        stalled.sort_by_key(|shared| std::cmp::Reverse(shared.account.used()));
        let mut freed = 0;
        for shared in stalled {
            if freed >= wanted.max(self.budget.total() / RELIEF_PART) {
                break;
            }
            freed += shared.account.used();
            self.dropped(shared.addr, "does not go on while memory is short");
            shared.end();
        }
    }

    /// Says that a connection was dropped, unless that was said too often in this minute.
    fn dropped(&self, addr: SocketAddr, why: &str) {
        let now = Instant::now();
        let mut drops = self.drops.lock();
        if drops.since.is_none_or(|since| now - since >= DROPS_WITHIN) {
            if drops.more > 0 {
                tracing::warn!("{} more connections were dropped in the minute before", drops.more);
            }
            *drops = Drops { since: Some(now), ..Drops::default() };
        }
        match drops.logged < DROPS_LOGGED {
            true => tracing::warn!("connection from {addr} dropped: it {why}"),
            false => drops.more += 1,
        }
        drops.logged = drops.logged.saturating_add(1);
    }

    /// The program of a call, or how it is answered.
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
