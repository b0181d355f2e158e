//! A network on virtual time, for tests.
//!
//! It knows nothing of RPC but the framing of records. A [`Net`] joins any number of clients (each
//! made with [`Net::connector`]) to one server, an asynchronous function over the records of a
//! [`Peer`]. Both directions of a connection are queues of chunks with a time of delivery on
//! tokio's clock, so with `start_paused` a test of minutes runs in milliseconds, and equal seeds
//! give equal runs. The network behaves as TCP does: bytes arrive in order or not at all; a lost
//! packet is a delay of all that follows; different connections overtake each other.
//!
//! ```
//! # let mut runtime = tokio::runtime::Builder::new_current_thread();
//! # runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
//! use hither_proto::{rpc, xdr::Enc};
//! use hither_rpc::{sim, Client, ClientConfig, Stats};
//! let net = sim::Net::new(1, sim::Conditions::default());
//! let seven = || Enc::of(&7u32);
//! net.answer(move |_connection, call, _args| async move { Some(rpc::reply(call.xid, seven())) });
//! let client = Client::new(net.connector(), ClientConfig::default(), Stats::new().into());
//! client.connect_now().await.unwrap();
//! # });
//! ```

mod pipe;

use crate::transport::{BoxFuture, Connect, Link};
use bytes::Bytes;
use hither_proto::record;
use hither_proto::rpc::{CallHeader, Message};
use hither_proto::xdr::Enc;
use parking_lot::Mutex;
use pipe::{Pipe, PipeReader, PipeWriter};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep, timeout};

/// The conditions between client and server.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// One way.
    pub latency: Duration,
    /// Each chunk may be later by up to this, drawn anew: connections overtake each other.
    pub jitter: Duration,
    /// Bytes per second of each direction of each connection; `None`: no limit.
    pub bandwidth: Option<u64>,
    /// Probability that a chunk (one write) is lost and sent again by TCP, which delays it and all
    /// that follows by 200 ms, doubling while it is lost again.
    pub loss: f64,
    /// Bytes that a connection takes from its writer before the reader has them.
    pub window_bytes: usize,
    /// How long an attempt to connect waits for an answer.
    pub connect_timeout: Duration,
}

impl Default for Conditions {
    /// 1 ms each way, nothing lost, windows of 1 MiB, attempts to connect end after 10 s.
    fn default() -> Self {
        Self {
            latency: Duration::from_millis(1),
            jitter: Duration::ZERO,
            bandwidth: None,
            loss: 0.0,
            window_bytes: 1 << 20,
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// How connections are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both ends learn of it at once (RST).
    Reset,
    /// Bytes vanish without notice until [`Net::heal`], after which TCP delivers the bytes that
    /// both ends sent meanwhile. New connections are not answered.
    BlackHole,
}

type Server = Arc<dyn Fn(Peer) -> BoxFuture<'static, ()> + Send + Sync>;

/// A network with one server. Clones are the same network.
#[derive(Clone)]
pub struct Net {
    state: Arc<Mutex<State>>,
    healed: Arc<Notify>,
}

struct State {
    conditions: Conditions,
    rng: SmallRng,
    server: Option<Server>,
    black_hole: bool,
    refuse: bool,
    attempts: u64,
    accepted: u64,
    cut_reply_after: Option<usize>,
    pipes: Vec<(Pipe, Pipe)>,
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sim::Net")
    }
}

impl Net {
    /// A network whose chances are drawn from `seed`. Without a server connections are refused.
    pub fn new(seed: u64, conditions: Conditions) -> Self {
        let state = State {
            conditions,
            rng: SmallRng::seed_from_u64(seed),
            server: None,
            black_hole: false,
            refuse: false,
            attempts: 0,
            accepted: 0,
            cut_reply_after: None,
            pipes: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), healed: Arc::default() }
    }

    /// The server: called for each connection, as a task. The connection closes when the function
    /// returns and all senders of its [`Peer`] are gone.
    pub fn serve<F, Fut>(&self, server: F)
    where
        F: Fn(Peer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.state.lock().server = Some(Arc::new(move |peer| Box::pin(server(peer))));
    }

    /// A server that answers calls, each in a task of its own: the function gets the connection's
    /// number (from 0), the call's header and its arguments, and returns the reply message
    /// (`hither_proto::rpc::reply`) or nothing.
    pub fn answer<F, Fut>(&self, f: F)
    where
        F: Fn(u64, CallHeader, Bytes) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Enc>> + Send + 'static,
    {
        let f = Arc::new(f);
        self.serve(move |mut peer| {
            let f = f.clone();
            async move {
                while let Some(record) = peer.recv().await {
                    if let Ok(Message::Call(header, args)) = Message::decode(&record) {
                        let (reply, sender) = (f(peer.connection, header, args), peer.sender());
                        tokio::spawn(async move {
                            if let Some(reply) = reply.await {
                                sender.send(reply);
                            }
                        });
                    }
                }
            }
        });
    }

    /// Connects clients to this network.
    pub fn connector(&self) -> Arc<dyn Connect> {
        Arc::new(self.clone())
    }

    /// Changes the conditions for bytes that are sent from now on.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.state.lock().conditions = conditions;
    }

    /// Cuts all connections.
    pub fn cut(&self, how: Cut) {
        let mut state = self.state.lock();
        match how {
            Cut::Reset => {
                for (a, b) in state.pipes.drain(..) {
                    a.reset();
                    b.reset();
                }
            }
            Cut::BlackHole => {
                state.black_hole = true;
                state.pipes.iter().flat_map(|(a, b)| [a, b]).for_each(|p| p.hold(true));
            }
        }
    }

    /// Ends a black hole.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.black_hole = false;
        state.pipes.iter().flat_map(|(a, b)| [a, b]).for_each(|p| p.hold(false));
        drop(state);
        self.healed.notify_waiters();
    }

    /// Whether new connections are refused, as by a host whose server is not running.
    pub fn refuse(&self, refuse: bool) {
        self.state.lock().refuse = refuse;
    }

    /// Resets the next new connection after its client has received `bytes`.
    pub fn cut_reply_after(&self, bytes: usize) {
        self.state.lock().cut_reply_after = Some(bytes);
    }

    /// Attempts to connect so far, successful or not.
    pub fn attempts(&self) -> u64 {
        self.state.lock().attempts
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.state.lock().accepted
    }

    /// Delay and completion time of a chunk, drawn by the conditions.
    fn draw(&self, len: usize) -> Transit {
        let mut state = self.state.lock();
        let c = state.conditions;
        let mut delay = c.latency;
        if !c.jitter.is_zero() {
            delay += c.jitter.mul_f64(state.rng.random());
        }
        let mut retransmission = Duration::from_millis(200);
        while c.loss > 0.0 && state.rng.random_bool(c.loss.min(0.99)) {
            delay += retransmission;
            retransmission = (retransmission * 2).min(Duration::from_secs(120));
        }
        let per_second = |rate| Duration::from_secs_f64(len as f64 / rate as f64);
        Transit { occupies: c.bandwidth.map_or(Duration::ZERO, per_second), delay, window: c.window_bytes }
    }

    async fn establish(&self) -> io::Result<Link> {
        let latency = {
            let mut state = self.state.lock();
            state.attempts += 1;
            state.conditions.latency
        };
        loop {
            let healed = self.healed.notified();
            if !self.state.lock().black_hole {
                break;
            }
            healed.await;
        }
        sleep(2 * latency).await;
        let mut state = self.state.lock();
        let Some(server) = state.server.clone().filter(|_| !state.refuse) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let (up, down) = (Pipe::new(self.clone()), Pipe::new(self.clone()));
        if let Some(bytes) = state.cut_reply_after.take() {
            down.reset_after(bytes, up.clone());
        }
        state.pipes.retain(|(up, down)| !up.is_finished() || !down.is_finished());
        state.pipes.push((up.clone(), down.clone()));
        up.hold(state.black_hole);
        down.hold(state.black_hole);
        let peer = Peer::new(state.accepted, PipeReader::new(up.clone()), PipeWriter::new(down.clone()));
        state.accepted += 1;
        drop(state);
        tokio::spawn(server(peer));
        Ok(Link {
            reader: Box::new(PipeReader::new(down)),
            writer: Box::new(PipeWriter::new(up)),
            local: None,
        })
    }
}

/// How a chunk travels.
#[derive(Debug, Clone, Copy)]
struct Transit {
    /// How long it occupies the line.
    occupies: Duration,
    /// How long it takes from then.
    delay: Duration,
    window: usize,
}

impl Connect for Net {
    fn connect(&self, _previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        Box::pin(async move {
            let limit = self.state.lock().conditions.connect_timeout;
            match timeout(limit, self.establish()).await {
                Ok(result) => result,
                Err(_) => Err(io::ErrorKind::TimedOut.into()),
            }
        })
    }

    fn server(&self) -> String {
        "simulated".into()
    }
}

/// The server's end of one connection.
#[derive(Debug)]
pub struct Peer {
    /// Number of the connection, from 0 in order of acceptance.
    pub connection: u64,
    reader: PipeReader,
    records: record::Reader,
    sender: PeerSender,
}

/// Sends to the client; any number of clones.
#[derive(Debug, Clone)]
pub struct PeerSender(mpsc::UnboundedSender<Vec<Bytes>>);

impl Peer {
    fn new(connection: u64, reader: PipeReader, mut writer: PipeWriter) -> Self {
        let (send, mut queue) = mpsc::unbounded_channel::<Vec<Bytes>>();
        tokio::spawn(async move {
            while let Some(segments) = queue.recv().await {
                for segment in segments {
                    if writer.write_all(&segment).await.is_err() {
                        return;
                    }
                }
            }
        });
        let records = record::Reader::new(record::Limits::default());
        Self { connection, reader, records, sender: PeerSender(send) }
    }

    /// The next record without its marks; `None` at the end of the connection.
    pub async fn recv(&mut self) -> Option<Bytes> {
        loop {
            if let Some(record) = self.records.next_record().ok()? {
                return Some(record);
            }
            if self.reader.read_buf(&mut self.records.space()).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// The next call: its header and arguments; `None` at the end, or when it is no call.
    pub async fn recv_call(&mut self) -> Option<(CallHeader, Bytes)> {
        match Message::decode(&self.recv().await?) {
            Ok(Message::Call(header, args)) => Some((header, args)),
            _ => None,
        }
    }

    /// For sending from elsewhere.
    pub fn sender(&self) -> PeerSender {
        self.sender.clone()
    }

    /// Sends a message as one record.
    pub fn send(&self, message: Enc) {
        self.sender.send(message);
    }

    /// Sends bytes as they are.
    pub fn send_raw(&self, bytes: Bytes) {
        self.sender.send_raw(bytes);
    }
}

impl PeerSender {
    /// Sends a message as one record. To a connection that is gone: nothing happens.
    pub fn send(&self, message: Enc) {
        let _ = self.0.send(vec![record::frame(message).concat().into()]);
    }

    /// Sends bytes as they are.
    pub fn send_raw(&self, bytes: Bytes) {
        let _ = self.0.send(vec![bytes]);
    }
}

#[cfg(test)]
mod tests;
