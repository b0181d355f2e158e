//! The RPC client: sends the calls of its callers over its connections and returns the replies.
//!
//! This module does not use streams. A call waits until the bytes in flight are below their
//! maximum. The client then picks the least loaded connection, encodes the call as one record and
//! queues the record. The caller's future watches the mount's timeouts, the call's deadline and the
//! cancellation token.

use crate::call::{Call, CallbackHandler, Credential, Reply, Retransmit};
use crate::connection::driver::maintain;
use crate::connection::{CONNECTIONS_MAX, Connection, Done, Flight, Results, Status, Trips};
use crate::error::CallError;
use crate::gss::Sealer;
use crate::policy::{Expiry, Mode, RetryPolicy, Timeouts};
use crate::stats::{Finished, OpStats, Stats};
use crate::transport::{Connect, Link};
use bytes::Bytes;
use hither_proto::rpc::RPC_VERSION;
use hither_proto::xdr::Enc;
use parking_lot::{Mutex, RwLock};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Fewest bytes that a call counts against [`ClientConfig::max_queued_bytes`]. A small call also
/// costs this much memory.
const CALL_MIN_BYTES: usize = 1024;

/// Consecutive major timeouts of a call after which its connection is dropped although other calls
/// receive replies. The server lost the reply, which RFC 8881 section 2.9.2 forbids.
const LOST_AFTER_MAJOR_TIMEOUTS: u32 = 3;

/// Header bytes of a call without its credential: record mark, xid, message type, RPC version,
/// program, version, procedure, verifier (flavor and length).
const HEADER_BYTES: usize = 9 * 4;

/// The configuration of a [`Client`].
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Number of connections (`nconnect`), 1 to 16. A value outside becomes the nearest bound.
    pub nconnect: usize,
    /// `timeo`, `retrans` and `hard`/`soft`/`softerr`.
    pub policy: RetryPolicy,
    /// Longest record that is sent or accepted, in bytes without record marks.
    pub max_record_bytes: usize,
    /// Most bytes of calls in flight on all connections together. Further callers wait.
    pub max_queued_bytes: usize,
    /// Fail calls with [`CallError::Connect`] when the connection cannot be made, instead of trying
    /// again. Short-lived clients of portmap and MOUNT set this.
    pub fail_when_unreachable: bool,
    /// Determines the first xid and the jitter of back-off delays. Random by default, fixed in
    /// simulations.
    pub seed: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            nconnect: 1,
            policy: RetryPolicy::default(),
            max_record_bytes: 4 << 20,
            max_queued_bytes: 64 << 20,
            fail_when_unreachable: false,
            seed: rand::random(),
        }
    }
}

/// A client of one server. A clone is cheap. The connections close when the last clone is dropped.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Ends the connections' tasks when the last client is dropped. The tasks hold the shared state
/// too.
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("server", &self.shared().server).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client. It connects at its first call or at [`Client::connect_now`]. That call must
    /// run within a tokio runtime.
    pub fn new(connect: Arc<dyn Connect>, cfg: ClientConfig, stats: Arc<Stats>) -> Client {
        Self { owner: Arc::new(Owner(Arc::new(Shared::new(connect, cfg, stats)))) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.owner.0
    }

    /// Connects once and reports the exact error; for use at mount time. Without this method the
    /// first call connects and follows the retry policy. Does nothing on a connected client.
    ///
    /// # Errors
    /// [`CallError::Connect`] with the cause (refused, no route, timed out);
    /// [`CallError::Shutdown`].
    pub async fn connect_now(&self) -> Result<(), CallError> {
        let shared = self.shared();
        if shared.started.load(Relaxed) {
            return Ok(());
        }
        let link = tokio::select! {
            link = shared.connect.connect(None) => link.map_err(CallError::Connect)?,
            () = shared.shutdown.cancelled() => return Err(CallError::Shutdown),
        };
        shared.start(Some(link));
        Ok(())
    }

    /// Calls the server and waits for the result. Dropping the future abandons the call: the server
    /// may still execute it, and the client ignores its late reply.
    ///
    /// # Errors
    /// See [`CallError`]; never `TimedOut` on a hard mount.
    pub async fn call(&self, c: Call) -> Result<Reply, CallError> {
        match c.cred.clone() {
            // Boxed: few mounts use contexts, and all futures of callers would be longer.
            Credential::Gss(user) => Box::pin(user.call(self, c)).await,
            _ => self.call_once(c, None).await,
        }
    }

    /// Makes a call as it is; `sealer`: its context.
    pub(crate) async fn call_once(&self, c: Call, sealer: Option<Arc<Sealer>>) -> Result<Reply, CallError> {
        let mut course = Course::new(self.shared(), &c);
        let result = course.run(c, sealer).await;
        course.failed = result.is_err();
        result
    }

    /// Sets the handler of calls from the server. Without a handler the client answers
    /// PROG_UNAVAIL. With a handler the client keeps idle connections open.
    pub fn set_callback_handler(&self, handler: Arc<dyn CallbackHandler>) {
        *self.shared().callback.write() = Some(handler);
    }

    /// Number of connections.
    pub fn nconnect(&self) -> usize {
        self.shared().connections.len()
    }

    /// For each connection the number of times it was established; 0 before the first time. The
    /// value changes after a reconnect. The caller must then bind its session to the connection
    /// again for the backchannel (RFC 8881 section 2.10.3.1), by a call with [`Call::connection`].
    pub fn generations(&self) -> watch::Receiver<Vec<u64>> {
        self.shared().generations.subscribe()
    }

    /// The server in messages, for example `192.0.2.1:2049`.
    pub fn server(&self) -> &str {
        &self.shared().server
    }

    /// The counters of this client's calls.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared().stats
    }

    /// Ends all connections. Calls in flight and later calls fail with [`CallError::Shutdown`].
    pub fn shutdown(&self) {
        self.shared().shutdown();
    }
}

/// The state that callers and the connections' tasks share.
pub(crate) struct Shared {
    pub connect: Arc<dyn Connect>,
    pub cfg: ClientConfig,
    pub stats: Arc<Stats>,
    pub server: String,
    pub generations: watch::Sender<Vec<u64>>,
    pub shutdown: CancellationToken,
    /// Number of callers that wait for room in flight.
    pub backlog: AtomicU64,
    connections: Vec<Arc<Connection>>,
    callback: RwLock<Option<Arc<dyn CallbackHandler>>>,
    /// Bytes that further calls may put in flight.
    room: Semaphore,
    /// True after the log reported that the server does not respond.
    silent: AtomicBool,
    started: AtomicBool,
    start: Mutex<()>,
    turn: AtomicUsize,
}

impl Shared {
    fn new(connect: Arc<dyn Connect>, mut cfg: ClientConfig, stats: Arc<Stats>) -> Self {
        cfg.nconnect = cfg.nconnect.clamp(1, CONNECTIONS_MAX);
        cfg.max_queued_bytes = cfg.max_queued_bytes.clamp(CALL_MIN_BYTES, u32::MAX as usize);
        cfg.max_record_bytes = cfg.max_record_bytes.min(hither_proto::record::FRAGMENT_MAX_BYTES);
        let connection = |i| Arc::new(Connection::new(i, cfg.seed, stats.add_transport()));
        Self {
            server: connect.server(),
            generations: watch::Sender::new(vec![0; cfg.nconnect]),
            shutdown: CancellationToken::new(),
            backlog: AtomicU64::new(0),
            connections: (0..cfg.nconnect).map(connection).collect(),
            callback: RwLock::new(None),
            room: Semaphore::new(cfg.max_queued_bytes),
            silent: AtomicBool::new(false),
            started: AtomicBool::new(false),
            start: Mutex::new(()),
            turn: AtomicUsize::new(0),
            connect,
            cfg,
            stats,
        }
    }

    /// Starts the tasks of the connections. Later calls do nothing.
    fn start(self: &Arc<Self>, mut first: Option<Link>) {
        let _guard = self.start.lock();
        if self.started.swap(true, Relaxed) {
            return;
        }
        for connection in &self.connections {
            tokio::spawn(maintain(self.clone(), connection.clone(), first.take()));
        }
    }

    fn shutdown(&self) {
        self.shutdown.cancel();
        self.room.close();
        self.connections.iter().for_each(|c| c.fail_all(|| CallError::Shutdown));
    }

    /// The least loaded of the established connections. Equal ones take turns.
    fn pick(&self) -> &Arc<Connection> {
        let n = self.connections.len();
        let turn = self.turn.fetch_add(1, Relaxed);
        (0..n)
            .map(|i| &self.connections[turn.wrapping_add(i) % n])
            .min_by_key(|c| (c.status() == Status::Connecting, c.load()))
            .expect("there is at least one connection")
    }

    pub fn callback_handler(&self) -> Option<Arc<dyn CallbackHandler>> {
        self.callback.read().clone()
    }

    pub fn has_callback_handler(&self) -> bool {
        self.callback.read().is_some()
    }

    fn server_is_silent(&self, what: &str) {
        if !self.silent.swap(true, Relaxed) {
            tracing::warn!("server {} not responding, {what}", self.server);
        }
    }

    pub fn server_responds(&self) {
        if self.silent.load(Relaxed) && self.silent.swap(false, Relaxed) {
            tracing::info!("server {} OK", self.server);
        }
    }
}

/// One call from its start to its end. Dropping it counts the call, also when the caller abandons
/// it.
struct Course<'a> {
    shared: &'a Arc<Shared>,
    op: Arc<OpStats>,
    started: Instant,
    timeouts: Timeouts,
    deadline: Option<Instant>,
    cancel: Option<CancellationToken>,
    retransmit: Retransmit,
    connection: Option<&'a Arc<Connection>>,
    flight: Option<Flight>,
    bytes: usize,
    major_timeouts: u32,
    /// Number of major timeouts after which the reply counts as lost.
    lost_after: u32,
    end: Option<(Trips, usize)>,
    failed: bool,
}

impl<'a> Course<'a> {
    fn new(shared: &'a Arc<Shared>, c: &Call) -> Self {
        let started = Instant::now();
        Self {
            shared,
            op: shared.stats.op(c.op),
            started,
            timeouts: Timeouts::new(shared.cfg.policy, started),
            deadline: c.deadline,
            cancel: c.cancel.clone(),
            retransmit: c.retransmit,
            connection: None,
            flight: None,
            bytes: 0,
            major_timeouts: 0,
            lost_after: LOST_AFTER_MAJOR_TIMEOUTS,
            end: None,
            failed: true,
        }
    }

    async fn run(&mut self, c: Call, sealer: Option<Arc<Sealer>>) -> Result<Reply, CallError> {
        let shared = self.shared;
        let len = sealer.as_ref().map_or_else(|| message_bytes(&c), |sealer| sealer.message_max_bytes());
        let max = shared.cfg.max_record_bytes;
        if len > max {
            return Err(CallError::TooLarge { len, max });
        }
        shared.start(None);
        let _room = self.enter(len).await?;
        let connection = match c.connection {
            Some(i) => &shared.connections[i],
            None => shared.pick(),
        };
        let mut flight = connection.begin();
        // This check follows `begin`: a later shutdown finds the call in the table and fails it.
        if shared.shutdown.is_cancelled() {
            return Err(CallError::Shutdown);
        }
        self.bytes = len + 4;
        match sealer {
            None => flight.submit(encode(flight.xid, c, len), self.bytes),
            Some(sealer) => flight.submit_sealed(sealer, self.bytes),
        }
        let (index, reply) = (connection.index, flight.take_reply());
        self.connection = Some(connection);
        self.flight = Some(flight);
        let done = self.wait(reply).await?;
        // Only a client in shutdown drops calls without an answer.
        let Done { result, trips, bytes_received } = done.map_err(|_| CallError::Shutdown)?;
        self.end = Some((trips, bytes_received));
        result.map(|Results { verifier, body }| Reply { body, verifier, connection: index })
    }

    /// Waits until the call's bytes may be in flight.
    async fn enter(&mut self, len: usize) -> Result<SemaphorePermit<'a>, CallError> {
        let shared = self.shared;
        let bytes = len.clamp(CALL_MIN_BYTES, shared.cfg.max_queued_bytes) as u32;
        if let Ok(permit) = shared.room.try_acquire_many(bytes) {
            return Ok(permit);
        }
        shared.backlog.fetch_add(1, Relaxed);
        let permit = self.wait(shared.room.acquire_many(bytes)).await;
        shared.backlog.fetch_sub(1, Relaxed);
        permit?.map_err(|_| CallError::Shutdown)
    }

    /// Waits for `what`. The deadline, a cancelled token and a major timeout of the policy end the
    /// wait.
    async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Result<T, CallError> {
        tokio::pin!(what);
        let cancel = self.cancel.clone();
        let cancelled = async {
            match &cancel {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(cancelled);
        loop {
            let next = self.timeouts.next();
            let wake = self.deadline.map_or(next, |d| d.min(next));
            tokio::select! {
                biased;
                result = &mut what => return Ok(result),
                () = &mut cancelled => return Err(CallError::Cancelled),
                () = sleep_until(wake) => {}
            }
            let now = Instant::now();
            if self.deadline.is_some_and(|d| d <= now) {
                return Err(CallError::DeadlinePassed);
            }
            match self.timeouts.expire(now) {
                Some(Expiry::Minor) => self.minor_timeout(),
                Some(Expiry::Major) => self.major_timeout()?,
                None => {}
            }
        }
    }

    fn minor_timeout(&self) {
        if let (Some(flight), Retransmit::OnReconnectAndTimeout) = (&self.flight, self.retransmit) {
            flight.resend();
        }
    }

    fn major_timeout(&mut self) -> Result<(), CallError> {
        let shared = self.shared;
        self.major_timeouts += 1;
        let mode = shared.cfg.policy.mode;
        if mode != Mode::Hard {
            shared.server_is_silent("timed out");
            return Err(CallError::TimedOut(mode));
        }
        shared.server_is_silent("still trying");
        self.leave_dead_link();
        self.minor_timeout();
        Ok(())
    }

    /// Runs after a major timeout. If the call was sent a major timeout ago and the link has been
    /// silent since, the link is dropped. If other calls received replies, the link is dropped only
    /// after `lost_after` major timeouts, because the reply was lost. Each drop lengthens the next
    /// wait.
    fn leave_dead_link(&mut self) {
        let (Some(connection), Some(flight)) = (self.connection, &self.flight) else { return };
        let now = Instant::now();
        let policy = &self.shared.cfg.policy;
        // Subtracts half a timeout, because the call may have been sent some time after its start.
        let long = policy.major_timeout() - policy.first() / 2;
        let trips = flight.trips();
        if trips.sent_on_link.is_none_or(|sent| now - sent < long) {
            return;
        }
        let silent = connection.drop_silent_link(long, self.shared.stats.age_ms(now));
        if !silent && self.major_timeouts >= self.lost_after {
            self.lost_after = self.major_timeouts + 2 * self.lost_after;
            connection.drop_link();
        }
    }
}

impl Drop for Course<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let (trips, bytes_received) = match (self.end, &self.flight) {
            (Some(end), _) => end,
            (None, Some(flight)) => (flight.trips(), 0),
            (None, None) => Default::default(),
        };
        let since = |t: Option<Instant>| t.map(|t| now.saturating_duration_since(t));
        self.op.finish(&Finished {
            transmissions: trips.transmissions,
            major_timeouts: self.major_timeouts,
            bytes_sent: self.bytes as u64 * u64::from(trips.transmissions),
            bytes_received: bytes_received as u64,
            queue: trips.first_sent.unwrap_or(now).saturating_duration_since(self.started),
            rtt: self.end.and_then(|_| since(trips.last_sent)).unwrap_or_default(),
            execute: now.saturating_duration_since(self.started),
            error: self.failed,
        });
    }
}

/// Length of the call's message without the record mark.
fn message_bytes(c: &Call) -> usize {
    let cred = match &c.cred {
        Credential::None | Credential::Gss(_) => 8,
        Credential::Encoded(bytes) => bytes.len(),
    };
    HEADER_BYTES - 4 + cred + c.args.len()
}

/// The call as one record in one fragment.
fn encode(xid: u32, c: Call, len: usize) -> Vec<Bytes> {
    const LAST_FRAGMENT: u32 = 1 << 31;
    const CALL: u32 = 0;
    let mut e = Enc::new();
    for word in [LAST_FRAGMENT | len as u32, xid, CALL, RPC_VERSION, c.prog, c.vers, c.proc] {
        e.u32(word);
    }
    match &c.cred {
        Credential::None | Credential::Gss(_) => e.u64(0),
        Credential::Encoded(bytes) => e.raw(bytes),
    }
    e.u64(0);
    e.append(c.args);
    e.finish()
}

#[cfg(test)]
mod tests;
