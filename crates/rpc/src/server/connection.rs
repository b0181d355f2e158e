//! One connection of a server: its reader, its calls in progress, and its queue of replies.
//!
//! This module knows neither listeners nor programs. A call's permit stays with its reply until the
//! reply is written. A client that does not read its replies therefore runs out of permits.
//!
//! A connection has one or two phases. An AUTH_TLS call ends the plain phase, when TLS is offered.
//! The reader waits for the calls in progress and queues the reply. The writer stops after that
//! reply. The handshake joins both streams, and a new reader and writer continue over TLS. For the
//! service the connection ends then, and another one begins: bytes of an attacker before the
//! handshake must not influence calls behind it.
//!
//! Locks: the queue and the table of calls to the client are leaves. They are never held across an
//! await.

mod drain;
mod phases;
mod write;

use super::budget::{Grant, SMALL_BYTES};
use super::piped::{Piped, Sink, read_all};
use super::seen::Counts;
use super::tls::{self, Transport};
use super::turns::{Turns, Usage};
use super::{Account, Caller, Ends, Global, HOST_TURN, Incoming, Mismatch, Outcome, Room};
use crate::error::CallError;
use crate::gss::GssAcceptor;
use crate::gss::server::{GssCall, Received};
use crate::tls::STARTTLS;
use crate::transport::BoxFuture;
use bytes::Bytes;
use hither_proto::record::{self, Limits};
use hither_proto::rpc::gss::InitArgs;
use hither_proto::rpc::{
    AcceptStat, AcceptedReply, AuthFlavor, AuthStat, CallHeader, DeniedReply, Message, OpaqueAuth,
    RPC_VERSION, ReplyBody, ReplyHeader, VersionRange,
};
use hither_proto::xdr::Enc;
use parking_lot::Mutex;
use phases::phases;
use rustls::pki_types::CertificateDer;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// A client's connection, as services see it.
#[derive(Clone)]
pub struct Peer {
    /// Number of the connection. Numbers are not reused. A connection gets a new number when TLS
    /// begins.
    pub id: u64,
    /// The client's address and port.
    pub addr: SocketAddr,
    /// The server's address and port of the connection.
    pub local: SocketAddr,
    /// The protection of the call that came with this value.
    pub transport: Transport,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.addr, self.id)
    }
}

/// A call to a client. The caller chooses the program.
#[derive(Debug)]
pub struct CallBack {
    /// Program number.
    pub prog: u32,
    /// Version.
    pub vers: u32,
    /// Procedure.
    pub proc: u32,
    /// The server's credential.
    pub cred: OpaqueAuth,
    /// Encoded arguments.
    pub args: Enc,
}

impl Peer {
    /// Calls the client on its own connection (RFC 8881 section 2.10.3.1). Returns the results. The
    /// call fails after `within`.
    ///
    /// # Errors
    /// The connection has ended, the client refuses the call, or the client does not answer in
    /// time.
    pub async fn call(&self, call: CallBack, within: Duration) -> Result<Bytes, CallError> {
        let xid = self.shared.next_xid.fetch_add(1, Relaxed);
        let (tx, rx) = oneshot::channel();
        self.shared.calls.lock().insert(xid, tx);
        let message = hither_proto::rpc::call(xid, call.prog, call.vers, call.proc, &call.cred, call.args);
        if self.shared.push(Outgoing::new(record::frame(message), 0, None)).is_none() {
            self.shared.calls.lock().remove(&xid);
            return Err(CallError::Shutdown);
        }
        let answer = tokio::select! {
            answer = timeout(within, rx) => answer,
            () = self.shared.ended.cancelled() => Ok(Ok(Err(CallError::Shutdown))),
        };
        self.shared.calls.lock().remove(&xid);
        match answer {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(CallError::Shutdown),
            Err(_) => Err(CallError::DeadlinePassed),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.shared.ended.cancel();
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.shared.ended.is_cancelled()
    }
}

/// A connection's state.
pub(crate) struct Shared {
    pub(super) id: u64,
    pub(super) addr: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) counts: Counts,
    pub(super) account: Arc<Account>,
    /// When the last message arrived.
    heard: Mutex<Instant>,
    /// Since when a write and a read wait for the client, in the order of [`Stall`].
    stalls: Mutex<[Option<Instant>; 2]>,
    queue: Mutex<Queue>,
    /// Notified when a message is queued.
    work: Notify,
    /// Notified when a batch was written.
    written: Notify,
    ended: CancellationToken,
    /// No further call is read.
    draining: CancellationToken,
    /// All replies of a draining connection are written.
    last_written: CancellationToken,
    /// Calls to the client, by xid.
    calls: Mutex<HashMap<u32, oneshot::Sender<Result<Bytes, CallError>>>>,
    next_xid: AtomicU32,
    /// A handshake is in progress.
    in_handshake: AtomicBool,
    /// Set by the handshake.
    tls: OnceLock<tls::Session>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Outgoing>,
    bytes: usize,
    closed: bool,
}

struct Outgoing {
    segments: Vec<Bytes>,
    /// A payload after `segments`, and the segments after the payload.
    piped: Option<(Box<dyn Piped>, Vec<Bytes>)>,
    bytes: usize,
    /// No further message is sent before the handshake.
    then_tls: bool,
    /// Released when the message is written.
    #[expect(dead_code, reason = "held, not used")]
    permit: Option<Permit>,
}

/// The resources of a call, held until its reply is written.
struct Permit {
    #[expect(dead_code, reason = "held, not used")]
    call: OwnedSemaphorePermit,
    #[expect(dead_code, reason = "held, not used")]
    memory: Option<Grant>,
}

impl Outgoing {
    fn new(segments: Vec<Bytes>, bytes: usize, permit: Option<Permit>) -> Self {
        Self { segments, piped: None, bytes, then_tls: false, permit }
    }

    /// Bytes on the wire, with record marks.
    fn wire_bytes(&self) -> usize {
        let sum = |segments: &[Bytes]| segments.iter().map(Bytes::len).sum::<usize>();
        let piped = self.piped.as_ref().map_or(0, |(payload, after)| payload.len() + sum(after));
        sum(&self.segments) + piped
    }
}

/// An entry of `Shared::stalls`.
#[derive(Clone, Copy)]
enum Stall {
    Write = 0,
    Read = 1,
}

impl Shared {
    pub fn new(id: u64, addr: SocketAddr, local: SocketAddr, ends: &Ends) -> Self {
        Self {
            id,
            addr,
            local,
            counts: Counts::new(),
            account: Account::new(addr.ip()),
            heard: Mutex::new(Instant::now()),
            stalls: Mutex::default(),
            queue: Mutex::default(),
            work: Notify::new(),
            written: Notify::new(),
            ended: ends.stop.child_token(),
            draining: ends.drain.child_token(),
            last_written: CancellationToken::new(),
            calls: Mutex::default(),
            // The type of a message distinguishes calls from replies, so these xids may equal the
            // client's.
            next_xid: AtomicU32::new(1),
            in_handshake: AtomicBool::new(false),
            tls: OnceLock::new(),
        }
    }

    /// The protection of the connection.
    pub(super) fn transport(&self) -> Transport {
        self.tls.get().map_or(Transport::Plain, |session| session.transport.clone())
    }

    /// Records a protection that the connection has from its beginning.
    pub fn protect(&self, transport: Transport) {
        if transport != Transport::Plain {
            let _ = self.tls.set(tls::Session { transport, chain: Vec::new() });
        }
    }

    /// The client's certificates, if it presented any.
    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        self.tls.get().map_or(&[], |session| &session.chain)
    }

    /// Memory of a reply besides its own bytes: its encrypted copy.
    fn copy_bytes(&self) -> usize {
        self.tls.get().map_or(0, |_| tls::UNSENT_BYTES)
    }

    /// Whether the connection may end without harm to a call.
    pub(super) fn is_idle(&self) -> bool {
        self.account.used() == 0 || self.in_handshake.load(Relaxed)
    }

    /// Queues a message and returns the queued bytes. Returns `None` when the connection has ended.
    fn push(&self, message: Outgoing) -> Option<usize> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return None;
        }
        queue.bytes += message.bytes;
        queue.messages.push_back(message);
        let bytes = queue.bytes;
        drop(queue);
        self.work.notify_one();
        Some(bytes)
    }

    /// How long the longest wait for the client has lasted.
    pub(super) fn stalled_for(&self, now: Instant) -> Duration {
        let since = self.stalls.lock().iter().flatten().min().copied();
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    pub(super) fn heard(&self) -> Instant {
        *self.heard.lock()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Runs one step that needs the client's progress. The step fails after `most`.
    async fn step<T>(
        &self,
        which: Stall,
        most: Duration,
        step: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        self.stalls.lock()[which as usize] = Some(Instant::now());
        let done = timeout(most, step).await;
        self.stalls.lock()[which as usize] = None;
        done.map_err(|_| io::ErrorKind::TimedOut)?
    }

    fn peer(self: &Arc<Self>, id: u64) -> Arc<Peer> {
        let transport = self.transport();
        Arc::new(Peer { id, addr: self.addr, local: self.local, transport, shared: self.clone() })
    }

    /// Drops the server's calls of the plain phase.
    fn forget_calls(&self) {
        self.calls.lock().clear();
        let queue = &mut *self.queue.lock();
        queue.messages.clear();
        queue.bytes = 0;
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.queue.lock().bytes
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve_streams<R, W>(global: Arc<Global>, shared: Arc<Shared>, reader: R, writer: W)
where
    R: AsyncRead + Send + Unpin + 'static,
    W: Sink,
{
    let host = global.host(shared.addr.ip());
    tracing::debug!(peer = %shared.addr, "connected");
    let mut inbound = Inbound {
        calls: Arc::new(Semaphore::new(global.limits.calls_max.max(1))),
        host: host.clone(),
        usage: Usage::new(),
        global: global.clone(),
        shared: shared.clone(),
        peer: shared.peer(shared.id),
    };
    let why = phases(&mut inbound, reader, writer).await;
    let peer = inbound.peer.clone();
    drop(inbound);
    shared.end();
    let left = {
        let mut queue = shared.queue.lock();
        queue.closed = true;
        queue.bytes = 0;
        std::mem::take(&mut queue.messages)
    };
    drop(left);
    global.forget(shared.id);
    global.left(shared.addr.ip(), host);
    match why {
        Ended::Closed => tracing::debug!(peer = %shared.addr, "disconnected"),
        Ended::Io(error) => tracing::debug!(peer = %shared.addr, %error, "connection lost"),
        Ended::Misbehaved(what) => global.dropped(shared.addr, &what),
    }
    global.service.closed(&peer);
}

enum Ended {
    Closed,
    Io(io::Error),
    Misbehaved(Cow<'static, str>),
}

impl Ended {
    fn misbehaved(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Misbehaved(what.into())
    }
}

/// The incoming calls of a connection.
#[derive(Clone)]
struct Inbound {
    global: Arc<Global>,
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    /// Permits for calls in progress.
    calls: Arc<Semaphore>,
    /// Turns of calls in progress on all connections of the address.
    host: Arc<Turns>,
    usage: Arc<Usage>,
}

impl Inbound {
    /// Reads calls until the connection ends. Returns the stream when a handshake follows.
    async fn read<R: AsyncRead + Send + Unpin>(self, mut stream: R) -> Result<R, Ended> {
        let limits = &self.global.limits;
        let mut records =
            record::Reader::new(Limits { record_max_bytes: limits.record_max_bytes, ..Limits::default() });
        let mut draining = pin!(self.shared.draining.cancelled());
        // Memory of a long incoming record, with its announced length.
        let mut memory: Option<(usize, Grant)> = None;
        loop {
            loop {
                match records.next_record() {
                    Ok(Some(record)) => {
                        let memory = memory.take().map(|(_, grant)| grant);
                        if let Next::Tls(xid) = self.handle(record, memory).await? {
                            self.end_plain_phase(xid, &records).await?;
                            return Ok(stream);
                        }
                    }
                    Ok(None) => break,
                    Err(_) => return Err(Ended::misbehaved("sent a record beyond the limits")),
                }
            }
            let between = records.is_between_records();
            let announced = records.announced_bytes();
            let is_new = memory.as_ref().is_none_or(|(upto, _)| *upto < announced);
            if announced > record::READ_AHEAD_BYTES && is_new {
                // The present memory is released first. Otherwise two calls could each wait for the
                // memory of the other for ever.
                drop(memory.take());
                memory = Some((announced, self.memory(self.call_bytes(announced)).await));
            }
            let mut space = records.space();
            let read = stream.read_buf(&mut space);
            let read = async {
                if between { read.await } else { self.shared.step(Stall::Read, limits.stall, read).await }
            };
            let read = tokio::select! {
                read = read => read,
                () = &mut draining => break,
            };
            match read {
                Ok(0) => return Err(Ended::Closed),
                Ok(bytes) => self.shared.counts.received(bytes),
                Err(e) if e.kind() == io::ErrorKind::TimedOut && !between => {
                    return Err(Ended::misbehaved("left a record unfinished"));
                }
                Err(e) => return Err(Ended::Io(e)),
            }
        }
        Err(self.drain(stream).await)
    }

    /// Answers an AUTH_TLS call when all other calls are answered. `records` must be empty: bytes
    /// behind the call would be read as if they had been encrypted.
    async fn end_plain_phase(&self, xid: u32, records: &record::Reader) -> Result<(), Ended> {
        if !records.is_between_records() {
            return Err(Ended::misbehaved("sent more than its request for TLS"));
        }
        let answered = timeout(self.handshake_max(), self.all_answered()).await;
        if answered.is_err() {
            return Err(Ended::misbehaved("requested TLS during calls that did not end in time"));
        }
        let verf = OpaqueAuth { flavor: AuthFlavor::NONE, body: STARTTLS[..].into() };
        let body = ReplyBody::Accepted(AcceptedReply { verf, stat: AcceptStat::Success });
        let message = Enc::of(&ReplyHeader { xid, body });
        let bytes = message.len();
        let reply = Outgoing::new(record::frame(message), bytes, None);
        self.shared.push(Outgoing { then_tls: true, ..reply });
        Ok(())
    }

    fn calls_max(&self) -> usize {
        self.global.limits.calls_max.max(1)
    }

    /// Longest time of a handshake, and of the calls before it.
    fn handshake_max(&self) -> Duration {
        self.global.limits.stall.min(tls::HANDSHAKE_MAX)
    }

    /// Memory of a call of `bytes` and of a small reply.
    fn call_bytes(&self, bytes: usize) -> usize {
        bytes + SMALL_BYTES + self.shared.copy_bytes()
    }

    /// Acquires memory for a call.
    async fn memory(&self, bytes: usize) -> Grant {
        let relieve = |bytes| self.global.relieve(bytes);
        let began = Instant::now();
        let mut grant = self.global.budget.take(&self.shared.account, (bytes, 0), relieve).await;
        grant.waited = began.elapsed();
        grant
    }

    async fn handle(&self, record: Bytes, memory: Option<Grant>) -> Result<Next, Ended> {
        *self.shared.heard.lock() = Instant::now();
        match Message::decode(&record) {
            Ok(Message::Call(header, args)) => self.call(header, args, &record, memory).await,
            Ok(Message::Reply(header, body)) => {
                // No caller waits for a late answer.
                if let Some(waiting) = self.shared.calls.lock().remove(&header.xid) {
                    let _ = waiting.send(results(header.body, body));
                }
                Ok(Next::Record)
            }
            Ok(Message::UnknownVersion { xid, .. }) => {
                let permit = Permit { call: self.permit().await?, memory };
                let versions = VersionRange { low: RPC_VERSION, high: RPC_VERSION };
                let header = ReplyHeader::denied(xid, DeniedReply::RpcMismatch(versions));
                reply(&self.shared, Enc::of(&header), permit);
                Ok(Next::Record)
            }
            Err(_) => Err(Ended::misbehaved("sent a message that is not RPC")),
        }
    }

    /// Waits until queued replies are below their limit, and then acquires the permit for one more
    /// call.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, Ended> {
        loop {
            let written = self.shared.written.notified();
            if self.shared.queued_bytes() <= self.global.limits.queued_max_bytes {
                break;
            }
            written.await;
        }
        self.calls.clone().acquire_owned().await.map_err(|_| Ended::Closed)
    }

    async fn call(
        &self,
        header: CallHeader,
        args: Bytes,
        record: &Bytes,
        memory: Option<Grant>,
    ) -> Result<Next, Ended> {
        let bytes = record.len();
        if self.requests_tls(&header) {
            return Ok(Next::Tls(header.xid));
        }
        let began = Instant::now();
        let permit = self.permit().await?;
        let (caller, args, gss) = match self.identify(&header, args, record) {
            Identified::Caller(caller, args, gss) => (caller, args, gss),
            Identified::Repeated => return Ok(Next::Record),
            Identified::Answer(answer) => {
                reply(&self.shared, answer, Permit { call: permit, memory });
                return Ok(Next::Record);
            }
            Identified::Token(gss, token) => {
                let shared = self.shared.clone();
                tokio::spawn(async move {
                    let answer = gss.init(header.xid, token).await;
                    reply(&shared, answer, Permit { call: permit, memory });
                });
                return Ok(Next::Record);
            }
        };
        // The following calls are not read until this call has its turn.
        if let Some(pace) = self.global.service.pace() {
            pace.turn().await;
        }
        // Memory is acquired before the turn: a connection that waits for memory takes no turn from
        // other connections of its address.
        let (memory, waited_before) = match memory {
            Some(memory) => {
                let waited = memory.waited;
                (memory, waited)
            }
            None => (self.memory(self.call_bytes(bytes)).await, Duration::ZERO),
        };
        let turn = self.host.take(&self.usage).await;
        self.shared.counts.called((header.prog, header.vers), &caller);
        let room = Room::new(&self.global, memory, turn, waited_before + began.elapsed());
        let incoming = Incoming {
            prog: header.prog,
            vers: header.vers,
            proc: header.proc,
            xid: header.xid,
            caller,
            args,
            peer: self.peer.clone(),
            record_bytes: bytes,
            room: room.clone(),
        };
        let shared = self.shared.clone();
        let failure = OnFailure { shared, xid: header.xid, gss, permit: Some(permit), room: room.clone() };
        let answer = self.global.service.clone().call(incoming);
        run_call(room, failure, answer).await;
        Ok(Next::Record)
    }

    /// Finds the caller of a received call, or the answer to a call without one.
    fn identify(&self, header: &CallHeader, args: Bytes, record: &Bytes) -> Identified {
        let accepted = |stat| Identified::Answer(Enc::of(&ReplyHeader::accepted(header.xid, stat)));
        let refused = |stat| {
            let denied = DeniedReply::AuthError(stat);
            Identified::Answer(Enc::of(&ReplyHeader::denied(header.xid, denied)))
        };
        match self.global.program(header.prog, header.vers) {
            Ok(()) => {}
            Err(Mismatch::Program) => return accepted(AcceptStat::ProgUnavail),
            Err(Mismatch::Version(low, high)) => {
                return accepted(AcceptStat::ProgMismatch(VersionRange { low, high }));
            }
        }
        let Some(gss) = self.global.gss.as_ref().filter(|_| header.cred.flavor == AuthFlavor::GSS) else {
            return match caller(header, self.global.tls.is_some()) {
                Ok(caller) => Identified::Caller(caller, args, None),
                Err(stat) => refused(stat),
            };
        };
        let signed = record.len() - args.len() - verifier_bytes(&header.verf);
        match gss.receive(header, &record[..signed], args) {
            Received::Call(call, caller, args) => Identified::Caller(Caller::Gss(caller), args, Some(call)),
            Received::Garbage(call) => Identified::Answer(call.accepted(header.xid, AcceptStat::GarbageArgs)),
            Received::Destroy(call) => Identified::Answer(gss.destroy(header.xid, &call)),
            Received::Refused(stat) => refused(stat),
            Received::Old => Identified::Repeated,
            Received::Init(token) => Identified::Token(gss.clone(), token),
        }
    }

    /// Whether a call asks for TLS on this connection (RFC 9289 section 4.1), and gets it.
    fn requests_tls(&self, header: &CallHeader) -> bool {
        header.cred.flavor == AuthFlavor::TLS
            && header.cred.body.is_empty()
            && header.proc == 0
            && self.global.tls.is_some()
            && self.peer.transport == Transport::Plain
            && self.global.program(header.prog, header.vers).is_ok()
    }
}

/// The identity behind a received call.
enum Identified {
    /// A caller, with the arguments and the context of the call.
    Caller(Caller, Bytes, Option<GssCall>),
    /// The call is not executed. Its reply.
    Answer(Enc),
    /// The call asks for a context.
    Token(Arc<GssAcceptor>, InitArgs),
    /// The call was received before. No reply is sent.
    Repeated,
}

/// The bytes that follow a record.
enum Next {
    /// Another record.
    Record,
    /// A TLS handshake, after the reply with this xid.
    Tls(u32),
}

/// Runs a call and answers it. A call that waits continues in a task.
async fn run_call(room: Room, mut failure: OnFailure, mut call: BoxFuture<'static, Outcome>) {
    // Many calls find their data in memory and finish before a task could start.
    if let Some(outcome) = now(&mut call).await {
        return failure.answer(outcome);
    }
    tokio::spawn(async move {
        // The turn ends with the answer and not with the written reply: a client that does not read
        // its replies delays only itself. The turn also ends after `HOST_TURN`: a call that waits
        // for a disk or a lock does not block the address's other connections.
        let soon = timeout(HOST_TURN, &mut call).await;
        room.end_turn();
        let outcome = match soon {
            Ok(outcome) => outcome,
            Err(_) => call.await,
        };
        failure.answer(outcome);
    });
}

/// The result of a call that does not wait. A call that panics is answered too.
async fn now(answer: &mut BoxFuture<'static, Outcome>) -> Option<Outcome> {
    let once = std::future::poll_fn(|cx| {
        let poll = std::panic::AssertUnwindSafe(|| answer.as_mut().poll(cx));
        Poll::Ready(std::panic::catch_unwind(poll))
    });
    match once.await {
        Ok(Poll::Ready(outcome)) => Some(outcome),
        Ok(Poll::Pending) => None,
        Err(_) => Some(Outcome::SystemErr),
    }
}

/// Bytes of a verifier in a message.
fn verifier_bytes(verf: &OpaqueAuth) -> usize {
    8 + verf.body.0.len().next_multiple_of(4)
}

/// The caller's identity in the credential.
fn caller(header: &CallHeader, offers_tls: bool) -> Result<Caller, AuthStat> {
    let cred = &header.cred;
    match cred.flavor {
        AuthFlavor::NONE => Ok(Caller::Nobody),
        AuthFlavor::SYS => match cred.as_sys() {
            Ok(Some(sys)) => Ok(Caller::Sys(sys)),
            _ => Err(AuthStat::BADCRED),
        },
        // A request for TLS. An answer without the TLS verifier means that the server has no TLS
        // (RFC 9289 section 4.1).
        AuthFlavor::TLS if header.proc == 0 && !offers_tls => Ok(Caller::Nobody),
        AuthFlavor::TLS => Err(AuthStat::BADCRED),
        AuthFlavor::SHORT => Err(AuthStat::REJECTEDCRED),
        _ => Err(AuthStat::TOOWEAK),
    }
}

/// Answers a call. A call whose task failed gets the answer SYSTEM_ERR.
struct OnFailure {
    shared: Arc<Shared>,
    xid: u32,
    /// The context of the call.
    gss: Option<GssCall>,
    permit: Option<OwnedSemaphorePermit>,
    room: Room,
}

impl OnFailure {
    fn answer(&mut self, outcome: Outcome) {
        let Some(call) = self.permit.take() else { return };
        let room = self.room.clone();
        let copy_bytes = self.shared.copy_bytes();
        let permit = |bytes| Permit { call, memory: room.finish(bytes + copy_bytes) };
        let (xid, gss) = (self.xid, self.gss.as_ref());
        let accepted = |stat| match gss {
            Some(gss) => gss.accepted(xid, stat),
            None => Enc::of(&ReplyHeader::accepted(xid, stat)),
        };
        let message = match (outcome, gss) {
            (Outcome::Done(results), Some(gss)) => gss.success(xid, results),
            (Outcome::Done(results), None) => hither_proto::rpc::reply(xid, results),
            (Outcome::Piped(mut before, piped, after), Some(gss)) if gss.seals_results() => {
                match read_all(&*piped) {
                    Ok(data) => {
                        before.push_segment(data.into());
                        before.append(after);
                        gss.success(xid, before)
                    }
                    Err(_) => accepted(AcceptStat::SystemErr),
                }
            }
            (Outcome::Piped(before, piped, after), gss) => {
                let before = match gss {
                    Some(gss) => gss.success(xid, before),
                    None => hither_proto::rpc::reply(xid, before),
                };
                let bytes = before.len() + piped.len() + after.len();
                match record::frame_beginning(before, piped.len() + after.len()) {
                    Some(segments) => {
                        // The payload is in the kernel's pipe and does not count against the
                        // budget. TLS reads it into memory.
                        let in_pipe = if copy_bytes == 0 { piped.len() } else { 0 };
                        let permit = Some(permit(bytes - in_pipe));
                        let piped = Some((piped, after.finish()));
                        self.shared.push(Outgoing { segments, piped, bytes, then_tls: false, permit });
                        return;
                    }
                    None => accepted(AcceptStat::SystemErr),
                }
            }
            (Outcome::ProcUnavail, _) => accepted(AcceptStat::ProcUnavail),
            (Outcome::GarbageArgs, _) => accepted(AcceptStat::GarbageArgs),
            (Outcome::SystemErr, _) => accepted(AcceptStat::SystemErr),
            (Outcome::Refused(stat), _) => Enc::of(&ReplyHeader::denied(xid, DeniedReply::AuthError(stat))),
            (Outcome::Silence, _) => {
                drop(permit(0));
                return;
            }
        };
        let permit = permit(message.len());
        reply(&self.shared, message, permit);
    }
}

impl Drop for OnFailure {
    fn drop(&mut self) {
        self.answer(Outcome::SystemErr);
    }
}

/// Queues a reply.
fn reply(shared: &Arc<Shared>, message: Enc, permit: Permit) {
    let bytes = message.len();
    shared.push(Outgoing::new(record::frame(message), bytes, Some(permit)));
}

/// The result of a call to the client, from the client's reply.
fn results(reply: ReplyBody, body: Bytes) -> Result<Bytes, CallError> {
    match reply {
        ReplyBody::Accepted(accepted) => match accepted.stat {
            AcceptStat::Success => Ok(body),
            AcceptStat::ProgUnavail => Err(CallError::ProgUnavail),
            AcceptStat::ProgMismatch(VersionRange { low, high }) => {
                Err(CallError::ProgMismatch { low, high })
            }
            AcceptStat::ProcUnavail => Err(CallError::ProcUnavail),
            AcceptStat::GarbageArgs => Err(CallError::GarbageArgs),
            AcceptStat::SystemErr | AcceptStat::Other(_) => Err(CallError::SystemErr),
        },
        ReplyBody::Denied(DeniedReply::AuthError(stat)) => Err(CallError::Denied(stat)),
        ReplyBody::Denied(DeniedReply::RpcMismatch(VersionRange { low, high })) => {
            Err(CallError::RpcMismatch { low, high })
        }
    }
}
