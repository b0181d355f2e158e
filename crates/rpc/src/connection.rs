//! One connection of a client: its calls in flight and the queue of its writer.
//!
//! This module uses neither streams nor timeouts; [`driver`] and the client do. A `Connection`
//! outlives its links. A call enters the table of pending calls with its own xid and gets its
//! encoded message. The call leaves the table with its reply, or when the caller drops its
//! [`Flight`]. Messages wait in the queue while a link is up. A new link replaces the queue by all
//! pending calls in the order of their creation.
//!
//! Locks: the state's mutex is a leaf and is never held across an await.

pub(crate) mod driver;
mod xid;

use crate::error::CallError;
use crate::gss::{SEQUENCES_KEPT, Sealer, Transmission};
use crate::stats::{TransportStats, add};
use bytes::Bytes;
use hither_proto::rpc::OpaqueAuth;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
pub(crate) use xid::CONNECTIONS_MAX;
use xid::Xids;

/// Most bytes and segments of one vectored write. A single larger message is still written.
const BATCH_MAX_BYTES: usize = 256 << 10;
const BATCH_MAX_SEGMENTS: usize = 64;
/// Segments of a sealed call, before it is encoded.
const SEALED_SEGMENTS: usize = 2;

/// The longest tolerated silence of a link is doubled at most this many times.
const SILENCE_DOUBLINGS_MAX: u32 = 5;

/// The state of a connection, for choosing one for a new call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Established.
    Up,
    /// Closed while idle. The next call makes it connect.
    Dormant,
    /// Being established, or failing to be.
    Connecting,
}

/// One of a client's connections.
#[derive(Debug)]
pub(crate) struct Connection {
    pub index: usize,
    pub stats: Arc<TransportStats>,
    state: Mutex<State>,
    status: AtomicU8,
    /// When bytes last arrived, in milliseconds since the counters began.
    heard_ms: AtomicU64,
    /// Notified when a message is queued, or when a call needs a dormant connection.
    work: Notify,
}

#[derive(Debug)]
struct State {
    xids: Xids,
    next_seq: u64,
    pending: HashMap<u32, Pending>,
    queue: VecDeque<Outgoing>,
    link: Option<LinkState>,
    /// Consecutive links that were dropped because no bytes arrived.
    silent_links: u32,
}

#[derive(Debug)]
struct LinkState {
    /// The number of the link. An answer to a server's call is sent only on the link of that call.
    generation: u64,
    /// Cancelled to drop the link.
    kill: CancellationToken,
    /// True after a call was answered on this link.
    proven: bool,
}

#[derive(Debug)]
enum Outgoing {
    Call(u32),
    Callback(Vec<Bytes>, OwnedSemaphorePermit),
}

/// The progress of a pending call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallStage {
    Encoding,
    AwaitingLink,
    Queued,
    Writing,
    Sent,
}

#[derive(Debug)]
struct Pending {
    seq: u64,
    place: CallStage,
    message: OutgoingCall,
    bytes: usize,
    trips: Trips,
    done: oneshot::Sender<Done>,
}

/// The message of a pending call.
#[derive(Debug, Clone)]
enum OutgoingCall {
    /// A whole record with its mark.
    Encoded(Arc<Vec<Bytes>>),
    /// Encoded anew for each transmission. The sequence numbers of the last transmissions.
    Sealed(Arc<Sealer>, Vec<u32>),
}

/// The results of a call.
#[derive(Debug)]
pub(crate) struct Results {
    pub verifier: OpaqueAuth,
    pub body: Bytes,
}

/// How often and when a call was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trips {
    pub transmissions: u32,
    pub first_sent: Option<Instant>,
    pub last_sent: Option<Instant>,
    /// When the call was first sent on the present link.
    pub sent_on_link: Option<Instant>,
}

/// The end of a call.
#[derive(Debug)]
pub(crate) struct Done {
    pub result: Result<Results, CallError>,
    pub trips: Trips,
    pub bytes_received: usize,
}

/// Messages for one vectored write.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    messages: Vec<Message>,
    bytes: usize,
    segments: usize,
}

#[derive(Debug)]
enum Message {
    Call(u32, Arc<Vec<Bytes>>),
    Sealed(u32, Arc<Sealer>),
    Callback(
        Vec<Bytes>,
        #[allow(dead_code, reason = "held until the reply is written")] OwnedSemaphorePermit,
    ),
}

impl Message {
    /// The encoded segments; none before the message is sealed.
    fn segments(&self) -> &[Bytes] {
        match self {
            Self::Call(_, segments) => segments,
            Self::Callback(segments, _) => segments,
            Self::Sealed(..) => &[],
        }
    }
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All segments in order.
    pub fn segments(&self) -> impl Iterator<Item = &Bytes> {
        self.messages.iter().flat_map(Message::segments)
    }

    fn has_room(&self) -> bool {
        self.is_empty() || (self.bytes < BATCH_MAX_BYTES && self.segments < BATCH_MAX_SEGMENTS)
    }

    fn push(&mut self, message: Message, bytes: usize, segments: usize) {
        self.bytes += bytes;
        self.segments += segments;
        self.messages.push(message);
    }
}

impl Connection {
    pub fn new(index: usize, seed: u64, stats: Arc<TransportStats>) -> Self {
        let state = State {
            xids: Xids::new(index, seed),
            next_seq: 0,
            pending: HashMap::new(),
            queue: VecDeque::new(),
            link: None,
            silent_links: 0,
        };
        Self {
            index,
            stats,
            state: Mutex::new(state),
            status: AtomicU8::new(Status::Connecting as u8),
            heard_ms: AtomicU64::new(0),
            work: Notify::new(),
        }
    }

    /// Number of calls in flight.
    pub fn load(&self) -> usize {
        self.stats.in_flight.load(Relaxed)
    }

    pub fn status(&self) -> Status {
        match self.status.load(Relaxed) {
            s if s == Status::Up as u8 => Status::Up,
            s if s == Status::Dormant as u8 => Status::Dormant,
            _ => Status::Connecting,
        }
    }

    fn set_status(&self, status: Status) {
        self.status.store(status as u8, Relaxed);
    }

    // ---- methods for callers

    /// Adds a new call. The call is sent after [`Flight::submit`] provides its message.
    pub fn begin(self: &Arc<Self>) -> Flight {
        let (done, reply) = oneshot::channel();
        let mut state = self.state.lock();
        let State { xids, pending, .. } = &mut *state;
        let xid = xids.allocate(|xid| pending.contains_key(&xid));
        let seq = state.next_seq;
        state.next_seq += 1;
        let message = OutgoingCall::Encoded(Arc::default());
        let p = Pending { seq, place: CallStage::Encoding, message, bytes: 0, trips: Trips::default(), done };
        state.pending.insert(xid, p);
        self.stats.in_flight.store(state.pending.len(), Relaxed);
        self.stats.max_slots.fetch_max(state.pending.len() as u64, Relaxed);
        drop(state);
        Flight { connection: self.clone(), xid, reply: Some(reply) }
    }

    /// Sends an unanswered call again. Returns `false` when there is no link or the call was not
    /// yet sent.
    fn resend(&self, xid: u32) -> bool {
        let mut state = self.state.lock();
        let State { pending, queue, link, .. } = &mut *state;
        match pending.get_mut(&xid) {
            Some(p) if p.place == CallStage::Sent && link.is_some() => {
                p.place = CallStage::Queued;
                queue.push_back(Outgoing::Call(xid));
            }
            _ => return false,
        }
        drop(state);
        self.work.notify_one();
        true
    }

    // ---- methods for the link's tasks

    /// Records a new link and queues all pending calls for it.
    pub fn up(&self, generation: u64, kill: CancellationToken, now_ms: u64) {
        self.heard(now_ms);
        let mut state = self.state.lock();
        let State { pending, queue, link, .. } = &mut *state;
        queue.clear();
        let mut again: Vec<_> = pending.iter_mut().filter(|(_, p)| p.place != CallStage::Encoding).collect();
        again.sort_unstable_by_key(|(_, p)| p.seq);
        for (&xid, p) in again {
            p.place = CallStage::Queued;
            p.trips.sent_on_link = None;
            queue.push_back(Outgoing::Call(xid));
        }
        *link = Some(LinkState { generation, kill, proven: false });
        drop(state);
        self.set_status(Status::Up);
        self.work.notify_one();
    }

    /// Records the loss of the link. True when a call was answered on that link.
    pub fn down(&self) -> bool {
        self.set_status(Status::Connecting);
        let mut state = self.state.lock();
        state.queue.clear();
        for p in state.pending.values_mut().filter(|p| p.place != CallStage::Encoding) {
            p.place = CallStage::AwaitingLink;
        }
        state.link.take().is_some_and(|link| link.proven)
    }

    /// Waits until a call needs a link. Returns at once when one needs it already.
    pub async fn wanted(&self) {
        loop {
            if self.load() > 0 {
                return self.set_status(Status::Connecting);
            }
            self.set_status(Status::Dormant);
            self.work.notified().await;
        }
    }

    /// Records the arrival of bytes.
    pub fn heard(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Relaxed);
        self.stats.last_used_ms.store(now_ms, Relaxed);
    }

    /// Drops the link after `silence` without bytes. Earlier links dropped in a row for silence
    /// each double that time, so that an answer slower than the timeouts arrives. Returns false
    /// when bytes arrived within `silence`.
    pub fn drop_silent_link(&self, silence: Duration, now_ms: u64) -> bool {
        let mut state = self.state.lock();
        let State { silent_links, link: Some(link), .. } = &mut *state else { return true };
        let silent = Duration::from_millis(now_ms.saturating_sub(self.heard_ms.load(Relaxed)));
        if silent < silence {
            return false;
        }
        let limit = silence.saturating_mul(1 << (*silent_links).min(SILENCE_DOUBLINGS_MAX));
        if silent >= limit && !link.kill.is_cancelled() {
            *silent_links += 1;
            link.kill.cancel();
        }
        true
    }

    /// Drops the link. The driver makes a new one.
    pub fn drop_link(&self) {
        if let Some(link) = &self.state.lock().link {
            link.kill.cancel();
        }
    }

    /// Ends a call with its reply. `Err` means that no such call is in flight; `Err(true)` that
    /// there was one earlier.
    pub fn complete(
        &self,
        xid: u32,
        result: Result<Results, CallError>,
        bytes_received: usize,
    ) -> Result<(), bool> {
        let mut state = self.state.lock();
        let Some(p) = state.pending.remove(&xid) else {
            return Err(state.xids.was_issued(xid));
        };
        self.stats.in_flight.store(state.pending.len(), Relaxed);
        if !matches!(result, Err(CallError::PeerMisbehaved(_))) {
            state.silent_links = 0;
            state.link.iter_mut().for_each(|link| link.proven = true);
        }
        drop(state);
        // The caller may have been dropped in the meantime.
        let _ = p.done.send(Done { result, trips: p.trips, bytes_received });
        Ok(())
    }

    /// Ends all calls with `error`.
    pub fn fail_all(&self, error: impl Fn() -> CallError) {
        let calls = std::mem::take(&mut self.state.lock().pending);
        self.stats.in_flight.store(0, Relaxed);
        for p in calls.into_values() {
            let _ = p.done.send(Done { result: Err(error()), trips: p.trips, bytes_received: 0 });
        }
    }

    /// Queues the answer to a server's call. The answer is dropped when the call's link is gone.
    pub fn answer(&self, generation: u64, segments: Vec<Bytes>, permit: OwnedSemaphorePermit) {
        let mut state = self.state.lock();
        if state.link.as_ref().is_some_and(|link| link.generation == generation) {
            state.queue.push_back(Outgoing::Callback(segments, permit));
            drop(state);
            self.work.notify_one();
        }
    }

    /// Waits for messages to write. `backlog` counts the callers that wait for room in flight; the
    /// statistics record it.
    pub async fn next_batch(&self, backlog: impl Fn() -> u64) -> Batch {
        loop {
            let batch = self.take_batch(&backlog);
            if batch.is_empty() {
                self.work.notified().await;
                continue;
            }
            let batch = self.sealed(batch);
            if !batch.is_empty() {
                return batch;
            }
        }
    }

    fn take_batch(&self, backlog: &impl Fn() -> u64) -> Batch {
        let mut batch = Batch::default();
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            return batch;
        }
        let now = Instant::now();
        let State { pending, queue, .. } = &mut *state;
        let (queued, in_flight, mut sent) = (queue.len() as u64, pending.len() as u64, 0);
        while batch.has_room() {
            match queue.pop_front() {
                None => break,
                Some(Outgoing::Callback(segments, permit)) => {
                    let (bytes, count) = (segments.iter().map(Bytes::len).sum(), segments.len());
                    batch.push(Message::Callback(segments, permit), bytes, count);
                }
                Some(Outgoing::Call(xid)) => {
                    // The caller was dropped, so the call is not sent.
                    let Some(p) = pending.get_mut(&xid) else { continue };
                    p.place = CallStage::Writing;
                    p.trips.transmissions += 1;
                    p.trips.first_sent.get_or_insert(now);
                    p.trips.last_sent = Some(now);
                    p.trips.sent_on_link.get_or_insert(now);
                    match &p.message {
                        OutgoingCall::Encoded(segments) => {
                            batch.push(Message::Call(xid, segments.clone()), p.bytes, segments.len());
                        }
                        OutgoingCall::Sealed(sealer, _) => {
                            batch.push(Message::Sealed(xid, sealer.clone()), p.bytes, SEALED_SEGMENTS);
                        }
                    }
                    sent += 1;
                }
            }
        }
        drop(state);
        self.count_sends(sent, queued, in_flight, backlog);
        batch
    }

    /// Encodes the calls under security contexts. Calls whose context has ended fail.
    fn sealed(&self, batch: Batch) -> Batch {
        if !batch.messages.iter().any(|m| matches!(m, Message::Sealed(..))) {
            return batch;
        }
        let mut out = Batch::default();
        for message in batch.messages {
            let message = match message {
                Message::Sealed(xid, sealer) => match sealer.transmission(xid) {
                    Ok(Transmission { sequence, segments, bytes }) => {
                        self.transmitted(xid, sequence, bytes);
                        Message::Call(xid, Arc::new(segments))
                    }
                    Err(e) => {
                        self.fail(xid, CallError::ContextEnded(e));
                        continue;
                    }
                },
                encoded => encoded,
            };
            let segments = message.segments();
            let (bytes, count) = (segments.iter().map(Bytes::len).sum(), segments.len());
            out.push(message, bytes, count);
        }
        out
    }

    /// Records the sequence number of a transmission.
    fn transmitted(&self, xid: u32, sequence: u32, bytes: usize) {
        if let Some(p) = self.state.lock().pending.get_mut(&xid)
            && let OutgoingCall::Sealed(_, sequences) = &mut p.message
        {
            p.bytes = bytes;
            if sequences.len() == SEQUENCES_KEPT {
                sequences.remove(0);
            }
            sequences.push(sequence);
        }
    }

    /// The context of a pending call, and the sequence numbers of its transmissions.
    pub fn context_of(&self, xid: u32) -> Option<(Arc<Sealer>, Vec<u32>)> {
        match &self.state.lock().pending.get(&xid)?.message {
            OutgoingCall::Sealed(sealer, sequences) => Some((sealer.clone(), sequences.clone())),
            OutgoingCall::Encoded(_) => None,
        }
    }

    /// Ends a call without a reply.
    fn fail(&self, xid: u32, error: CallError) {
        let mut state = self.state.lock();
        let Some(p) = state.pending.remove(&xid) else { return };
        self.stats.in_flight.store(state.pending.len(), Relaxed);
        drop(state);
        let _ = p.done.send(Done { result: Err(error), trips: p.trips, bytes_received: 0 });
    }

    fn count_sends(&self, sent: u64, queued: u64, in_flight: u64, backlog: &impl Fn() -> u64) {
        let s = &self.stats;
        add(&s.sends, sent);
        add(&s.sending_u, sent * queued);
        add(&s.pending_u, sent * in_flight);
        add(&s.req_u, sent * in_flight.saturating_sub(queued));
        add(&s.bklog_u, sent * backlog());
    }

    /// Records that a batch was written whole.
    pub fn written(&self, batch: &Batch) {
        let mut state = self.state.lock();
        for message in &batch.messages {
            if let Message::Call(xid, _) = message
                && let Some(p) = state.pending.get_mut(xid)
                && p.place == CallStage::Writing
            {
                p.place = CallStage::Sent;
            }
        }
    }
}

/// A caller's handle to a call in flight. Dropping it abandons the call.
#[derive(Debug)]
pub(crate) struct Flight {
    connection: Arc<Connection>,
    pub xid: u32,
    reply: Option<oneshot::Receiver<Done>>,
}

impl Flight {
    /// The receiver of the call's end. The caller takes it once.
    pub fn take_reply(&mut self) -> oneshot::Receiver<Done> {
        self.reply.take().expect("the reply is taken once")
    }

    /// Provides the encoded message of the call: a whole record with its mark.
    pub fn submit(&self, segments: Vec<Bytes>, bytes: usize) {
        self.queue(OutgoingCall::Encoded(Arc::new(segments)), bytes);
    }

    /// Provides a call that is encoded anew for each transmission; `bytes` at most.
    pub fn submit_sealed(&self, sealer: Arc<Sealer>, bytes: usize) {
        self.queue(OutgoingCall::Sealed(sealer, Vec::new()), bytes);
    }

    fn queue(&self, message: OutgoingCall, bytes: usize) {
        let c = &self.connection;
        let mut state = c.state.lock();
        let State { pending, queue, link, .. } = &mut *state;
        let Some(p) = pending.get_mut(&self.xid) else { return };
        p.message = message;
        p.bytes = bytes;
        p.place = CallStage::AwaitingLink;
        if link.is_some() {
            p.place = CallStage::Queued;
            queue.push_back(Outgoing::Call(self.xid));
        }
        drop(state);
        c.work.notify_one();
    }

    /// Sends the call again on the same link, if it was sent on it.
    pub fn resend(&self) -> bool {
        self.connection.resend(self.xid)
    }

    /// How often and when the call was sent so far.
    pub fn trips(&self) -> Trips {
        self.connection.state.lock().pending.get(&self.xid).map(|p| p.trips).unwrap_or_default()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut state = self.connection.state.lock();
        if state.pending.remove(&self.xid).is_some() {
            self.connection.stats.in_flight.store(state.pending.len(), Relaxed);
        }
    }
}
