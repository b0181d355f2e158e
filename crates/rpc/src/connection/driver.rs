//! Keeps the link of a connection alive: connects, reads, writes and reconnects.
//!
//! One task per connection establishes a link and starts two more tasks. The writer takes batches
//! from the queue. The reader passes records to their calls. Any fault of a link ends both tasks:
//! an I/O error, the end of the stream, malformed bytes, or silence that a call reports. The task
//! then reconnects: at once if the link had worked, else after a delay that doubles up to 5 s. A
//! connection without pending calls and without a backchannel stays closed until the next call.

use super::{Batch, Connection, Results};
use crate::client::Shared;
use crate::error::CallError;
use crate::gss::Sealer;
use crate::stats::add;
use crate::tls::TlsError;
use crate::transport::Link;
use bytes::Bytes;
use hither_proto::record::{self, Limits, RecordError};
use hither_proto::rpc::{
    AcceptStat, AcceptedReply, CallHeader, DeniedReply, Message, RPC_VERSION, ReplyBody, ReplyHeader,
    VersionRange,
};
use hither_proto::xdr::Enc;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Least time between the starts of two connection attempts, and the first delay.
const RECONNECT_MIN: Duration = Duration::from_millis(250);

/// Longest delay between attempts. The client notices a healed network this late at most.
const RECONNECT_MAX: Duration = Duration::from_secs(5);

/// Most calls of the server in progress on one link. NFSv4.1 servers use only the few backchannel
/// slots that the session grants.
const CALLBACKS_MAX: usize = 64;

/// Records up to this length are copied out of the shared receive buffer. Filehandles kept in
/// caches then do not keep a whole buffer in memory, and the buffer is reused.
const COPY_MAX_BYTES: usize = 2048;

/// Runs until the client is shut down. `first` is a link that exists already.
pub(crate) async fn maintain(shared: Arc<Shared>, connection: Arc<Connection>, first: Option<Link>) {
    let shutdown = shared.shutdown.clone();
    let work = async {
        let mut state = Maintenance::new(&shared, &connection);
        let mut link = first;
        loop {
            let next = match link.take() {
                Some(link) => link,
                None => state.connect().await,
            };
            state.use_link(next).await;
            if !shared.has_callback_handler() {
                connection.wanted().await;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
    connection.stats.connected.store(false, Relaxed);
    connection.down();
    connection.fail_all(|| CallError::Shutdown);
}

struct Maintenance<'a> {
    shared: &'a Arc<Shared>,
    connection: &'a Arc<Connection>,
    backoff: Backoff,
    previous: Option<SocketAddr>,
    generation: u64,
}

impl<'a> Maintenance<'a> {
    fn new(shared: &'a Arc<Shared>, connection: &'a Arc<Connection>) -> Self {
        let backoff = Backoff::new(shared.cfg.seed.wrapping_add(connection.index as u64));
        Self { shared, connection, backoff, previous: None, generation: 0 }
    }

    /// Attempts to connect until a link is established.
    async fn connect(&mut self) -> Link {
        loop {
            if let Some(at) = self.backoff.next_attempt() {
                sleep_until(at).await;
            }
            let started = Instant::now();
            self.backoff.attempt(started);
            let result = self.shared.connect.connect(self.previous).await;
            let stats = &self.connection.stats;
            add(&stats.binds, 1);
            add(&stats.connect_ms, started.elapsed().as_millis() as u64);
            match result {
                Ok(link) => return link,
                Err(error) => {
                    add(&stats.connect_failures, 1);
                    self.backoff.failed();
                    tracing::debug!(server = self.shared.server, %error, "cannot connect");
                    if self.shared.cfg.fail_when_unreachable {
                        self.connection.fail_all(|| CallError::Connect(same_error(&error)));
                        self.connection.wanted().await;
                    }
                }
            }
        }
    }

    /// Uses a link until it ends.
    async fn use_link(&mut self, link: Link) {
        let (shared, connection) = (self.shared, self.connection);
        self.generation += 1;
        self.previous = link.local;
        let stats = &connection.stats;
        add(&stats.connects, 1);
        stats.local_port.store(link.local.map_or(0, |a| u64::from(a.port())), Relaxed);
        stats.connected.store(true, Relaxed);

        let kill = CancellationToken::new();
        connection.up(self.generation, kill.clone(), shared.stats.age_ms(Instant::now()));
        shared.generations.send_modify(|all| all[connection.index] = self.generation);
        let ended = run(shared, connection, self.generation, &kill, link).await;
        stats.connected.store(false, Relaxed);
        add(&stats.drops, 1);
        if connection.down() {
            self.backoff.reset();
        } else {
            self.backoff.failed();
        }
        match &ended {
            Ended::Misbehaved(_) => {
                tracing::warn!(server = shared.server, "connection dropped: the server {ended}")
            }
            _ => tracing::info!(server = shared.server, "connection lost: {ended}"),
        }
    }
}

/// Reads and writes until the link ends.
async fn run(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    generation: u64,
    kill: &CancellationToken,
    link: Link,
) -> Ended {
    let Link { reader, writer, .. } = link;
    let mut tasks = JoinSet::new();
    let limits = Limits { record_max_bytes: shared.cfg.max_record_bytes, ..Limits::default() };
    let inbound = Inbound {
        shared: shared.clone(),
        connection: connection.clone(),
        generation,
        callbacks: Arc::new(Semaphore::new(CALLBACKS_MAX)),
    };
    tasks.spawn(inbound.read(reader, limits));
    tasks.spawn(write(shared.clone(), connection.clone(), writer));
    let ended = tokio::select! {
        first = tasks.join_next() => match first {
            Some(Ok(ended)) => ended,
            _ => Ended::Io(io::Error::other("a connection task failed")),
        },
        () = kill.cancelled() => Ended::Silent,
    };
    tasks.shutdown().await;
    ended
}

/// Why a link ended.
#[derive(Debug)]
enum Ended {
    Closed,
    ClosedInRecord,
    Silent,
    Io(io::Error),
    Misbehaved(&'static str),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by the server"),
            Self::ClosedInRecord => f.write_str("closed by the server inside a message"),
            Self::Silent => f.write_str("no answer for a long time"),
            Self::Io(e) => write!(f, "{e}"),
            Self::Misbehaved(what) => f.write_str(what),
        }
    }
}

/// The records that arrive on one link.
struct Inbound {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    generation: u64,
    callbacks: Arc<Semaphore>,
}

impl Inbound {
    async fn read(self, mut stream: Box<dyn AsyncRead + Send + Unpin>, limits: Limits) -> Ended {
        let mut records = record::Reader::new(limits);
        loop {
            loop {
                let handled = match records.next_record() {
                    Ok(Some(record)) => self.handle(record),
                    Ok(None) => break,
                    Err(RecordError::TooLong { .. }) => Err("sent a message longer than was agreed"),
                    Err(RecordError::TooManyFragments { .. }) => Err("sent a message in too many fragments"),
                };
                if let Err(what) = handled {
                    return Ended::Misbehaved(what);
                }
            }
            match stream.read_buf(&mut records.space()).await {
                Ok(0) if records.is_between_records() => return Ended::Closed,
                Ok(0) => return Ended::ClosedInRecord,
                Ok(n) => {
                    self.connection.heard(self.shared.stats.age_ms(Instant::now()));
                    add(&self.connection.stats.bytes_received, n as u64);
                }
                Err(e) => return Ended::Io(e),
            }
        }
    }

    fn handle(&self, record: Bytes) -> Result<(), &'static str> {
        let bytes = record.len();
        let record = match bytes {
            0..=COPY_MAX_BYTES => Bytes::copy_from_slice(&record),
            _ => record,
        };
        match Message::decode(&record) {
            Ok(Message::Reply(header, body)) => {
                let result = match self.connection.context_of(header.xid) {
                    None => outcome(header.body, body),
                    Some((sealer, sequences)) => opened(&sealer, &sequences, header.body, body),
                };
                self.reply(header.xid, result, bytes)
            }
            Ok(Message::Call(header, body)) => self.call(header, body),
            Ok(Message::UnknownVersion { xid, .. }) => {
                let versions = VersionRange { low: RPC_VERSION, high: RPC_VERSION };
                self.answer(Enc::of(&ReplyHeader::denied(xid, DeniedReply::RpcMismatch(versions))))
            }
            Err(_) => {
                const WHAT: &str = "sent a message that is not RPC";
                // The call with this xid fails. A retransmission would break the new link in the
                // same way.
                if let Some(xid) = record.first_chunk().map(|b| u32::from_be_bytes(*b)) {
                    let _ = self.connection.complete(xid, Err(CallError::PeerMisbehaved(WHAT)), bytes);
                }
                Err(WHAT)
            }
        }
    }

    fn reply(&self, xid: u32, result: Result<Results, CallError>, bytes: usize) -> Result<(), &'static str> {
        let stats = &self.connection.stats;
        match self.connection.complete(xid, result, bytes) {
            Ok(()) => add(&stats.recvs, 1),
            // The call was abandoned, or an earlier reply answered it.
            Err(true) => add(&stats.bad_xids, 1),
            Err(false) => {
                add(&stats.bad_xids, 1);
                return Err("answered a call that was never made");
            }
        }
        self.shared.server_responds();
        Ok(())
    }

    fn call(&self, header: CallHeader, body: Bytes) -> Result<(), &'static str> {
        let Some(handler) = self.shared.callback_handler() else {
            return self.answer(Enc::of(&ReplyHeader::accepted(header.xid, AcceptStat::ProgUnavail)));
        };
        let permit = self.callbacks.clone().try_acquire_owned().map_err(|_| TOO_MANY_CALLS)?;
        let (connection, generation) = (self.connection.clone(), self.generation);
        tokio::spawn(async move {
            let reply = handler.call(header, body).await;
            connection.answer(generation, record::frame(reply), permit);
        });
        Ok(())
    }

    fn answer(&self, reply: Enc) -> Result<(), &'static str> {
        let permit = self.callbacks.clone().try_acquire_owned().map_err(|_| TOO_MANY_CALLS)?;
        self.connection.answer(self.generation, record::frame(reply), permit);
        Ok(())
    }
}

const TOO_MANY_CALLS: &str = "makes too many calls at once";

/// The result of a call, from the status in the reply's header.
fn outcome(reply: ReplyBody, body: Bytes) -> Result<Results, CallError> {
    let (stat, verifier) = match reply {
        ReplyBody::Accepted(AcceptedReply { stat, verf }) => (stat, verf),
        ReplyBody::Denied(DeniedReply::AuthError(stat)) => return Err(CallError::Denied(stat)),
        ReplyBody::Denied(DeniedReply::RpcMismatch(VersionRange { low, high })) => {
            return Err(CallError::RpcMismatch { low, high });
        }
    };
    Err(match stat {
        AcceptStat::Success => return Ok(Results { verifier, body }),
        AcceptStat::ProgUnavail => CallError::ProgUnavail,
        AcceptStat::ProgMismatch(VersionRange { low, high }) => CallError::ProgMismatch { low, high },
        AcceptStat::ProcUnavail => CallError::ProcUnavail,
        AcceptStat::GarbageArgs => CallError::GarbageArgs,
        AcceptStat::SystemErr => CallError::SystemErr,
        AcceptStat::Other(_) => CallError::PeerMisbehaved("sent an accept_stat that RFC 5531 does not have"),
    })
}

/// The same for a call under a security context. Only a refusal of the credential needs no proof.
fn opened(sealer: &Sealer, sequences: &[u32], reply: ReplyBody, body: Bytes) -> Result<Results, CallError> {
    if let ReplyBody::Accepted(AcceptedReply { verf, .. }) = &reply
        && !sealer.is_genuine(sequences, verf)
    {
        return Err(CallError::PeerMisbehaved("its reply has a wrong RPCSEC_GSS verifier"));
    }
    let Results { verifier, body } = outcome(reply, body)?;
    match sealer.results(sequences, body) {
        Some(body) => Ok(Results { verifier, body }),
        None => Err(CallError::PeerMisbehaved("its results fail the checks of RPCSEC_GSS")),
    }
}

async fn write(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    mut stream: Box<dyn AsyncWrite + Send + Unpin>,
) -> Ended {
    loop {
        let batch = connection.next_batch(|| shared.backlog.load(Relaxed)).await;
        if let Err(e) = write_batch(&mut stream, &batch).await {
            return Ended::Io(e);
        }
        connection.written(&batch);
        add(&connection.stats.bytes_sent, batch.bytes() as u64);
    }
}

/// Writes all segments with vectored writes.
async fn write_batch(stream: &mut (dyn AsyncWrite + Send + Unpin), batch: &Batch) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = batch.segments().map(|s| IoSlice::new(s)).collect();
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match stream.write_vectored(left).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => IoSlice::advance_slices(&mut left, n),
        }
    }
    stream.flush().await
}

/// The schedule of connection attempts.
#[derive(Debug)]
struct Backoff {
    failures: u32,
    last: Option<Instant>,
    rng: SmallRng,
}

impl Backoff {
    fn new(seed: u64) -> Self {
        Self { failures: 0, last: None, rng: SmallRng::seed_from_u64(seed) }
    }

    fn attempt(&mut self, now: Instant) {
        self.last = Some(now);
    }

    fn failed(&mut self) {
        self.failures += 1;
    }

    fn reset(&mut self) {
        self.failures = 0;
    }

    /// When the next attempt may start. Jitter spreads the clients of a restarted server. `None`
    /// before the first attempt.
    fn next_attempt(&mut self) -> Option<Instant> {
        let delay = RECONNECT_MIN.saturating_mul(1 << self.failures.min(16)).min(RECONNECT_MAX);
        let jitter = if self.failures == 0 { 1.0 } else { self.rng.random_range(0.75..1.25) };
        self.last.map(|last| last + delay.mul_f64(jitter))
    }
}

/// A copy of an error, for several callers.
fn same_error(e: &io::Error) -> io::Error {
    match (e.raw_os_error(), TlsError::of(e)) {
        (Some(code), _) => io::Error::from_raw_os_error(code),
        (None, Some(tls)) => tls.clone().into(),
        (None, None) => io::Error::new(e.kind(), e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients that lose a server at the same moment reconnect at different moments. After several
    /// failed attempts their reconnects spread over half of the delay.
    #[tokio::test(start_paused = true)]
    async fn reconnects_spread_over_time() {
        const CLIENTS: usize = 500;
        let began = Instant::now();
        for attempts in [3_u32, 6, 12] {
            let mut at: Vec<u64> = (0..CLIENTS)
                .map(|seed| {
                    let mut backoff = Backoff::new(seed as u64);
                    backoff.attempt(began);
                    // All clients have failed equally often and last tried at the same moment.
                    for _ in 0..attempts {
                        backoff.failed();
                    }
                    (backoff.next_attempt().unwrap() - began).as_millis() as u64
                })
                .collect();
            at.sort_unstable();
            let pause = (RECONNECT_MIN.saturating_mul(1 << attempts)).min(RECONNECT_MAX).as_millis() as u64;
            assert!(
                at[0] >= pause * 3 / 4 && at[CLIENTS - 1] <= pause * 5 / 4,
                "{:?}",
                (at[0], at[CLIENTS - 1])
            );
            let most =
                (0..CLIENTS).map(|i| at[i..].iter().take_while(|t| **t < at[i] + pause / 20).count()).max();
            // A twentieth of the delay is a tenth of the spread: an even spread puts a tenth of the
            // clients there.
            assert!(most.unwrap() <= CLIENTS / 5, "{most:?} at once");
        }
    }
}
