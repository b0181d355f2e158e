//! A simulated network on virtual time, for tests.
//!
//! Of RPC, this module uses only the framing of records. A [`Net`] connects any number of clients
//! to one server. [`Net::connector`] makes the clients' connections; the server is an asynchronous
//! function over the records of a [`Peer`]. Each direction of a connection is a queue of chunks.
//! Each chunk has a delivery time on tokio's clock. With `start_paused` a test of minutes runs in
//! milliseconds, and equal seeds give equal runs. The network behaves like TCP: bytes arrive in
//! order or not at all. A lost packet delays all following bytes. Different connections overtake
//! each other.
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

/// The properties of the network between client and server.
#[derive(Debug, Clone, Copy)]
pub struct Conditions {
    /// Delay of one direction.
    pub latency: Duration,
    /// Each chunk is delayed further by a random time up to this value, so that connections
    /// overtake each other.
    pub jitter: Duration,
    /// Bytes per second of each direction of each connection; `None`: no limit.
    pub bandwidth: Option<u64>,
    /// Probability that a chunk (one write) is lost. TCP sends it again after 200 ms, doubled for
    /// each further loss. The delay holds up all following chunks.
    pub loss: f64,
    /// Bytes that a connection accepts from its writer before the reader reads them.
    pub window_bytes: usize,
    /// Longest wait for an answer to a connection attempt.
    pub connect_timeout: Duration,
}

impl Default for Conditions {
    /// 1 ms latency each way, no loss, windows of 1 MiB. Connection attempts end after 10 s.
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
    /// A reset (RST): both ends notice it at once.
    Reset,
    /// Bytes vanish without notice until [`Net::heal`]. TCP then delivers the bytes that both ends
    /// sent meanwhile. New connections are not answered.
    BlackHole,
}

type Server = Arc<dyn Fn(Peer) -> BoxFuture<'static, ()> + Send + Sync>;

/// A network with one server. A clone refers to the same network.
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
    /// A network with random events from `seed`. It refuses connections until it has a server.
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

    /// Sets the server: an async function that runs as a task for each connection. The connection
    /// closes when the function has returned and all senders of its [`Peer`] are dropped.
    pub fn serve<F, Fut>(&self, server: F)
    where
        F: Fn(Peer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.state.lock().server = Some(Arc::new(move |peer| Box::pin(server(peer))));
    }

    /// Sets a server that answers each call in a task of its own. The function receives the
    /// connection's number (from 0), the call's header and its arguments. It returns the reply
    /// message (`hither_proto::rpc::reply`) or nothing.
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

    /// A [`Connect`] for clients of this network.
    pub fn connector(&self) -> Arc<dyn Connect> {
        Arc::new(self.clone())
    }

    /// Changes the conditions for bytes sent from now on.
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

    /// Resets the next new connection after its client has received `bytes` bytes.
    pub fn cut_reply_after(&self, bytes: usize) {
        self.state.lock().cut_reply_after = Some(bytes);
    }

    /// Number of connection attempts so far, successful or not.
    pub fn attempts(&self) -> u64 {
        self.state.lock().attempts
    }

    /// Number of accepted connections so far.
    pub fn accepted(&self) -> u64 {
        self.state.lock().accepted
    }

    /// The transit of a chunk of `len` bytes, drawn from the conditions.
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

/// The transit of a chunk.
#[derive(Debug, Clone, Copy)]
struct Transit {
    /// Time that the chunk occupies the line.
    occupies: Duration,
    /// Time from then to the arrival.
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

    /// The next record without its marks, or `None` at the end of the connection.
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

    /// The next call: its header and arguments. `None` at the end of the connection, or when the
    /// next record is not a call.
    pub async fn recv_call(&mut self) -> Option<(CallHeader, Bytes)> {
        match Message::decode(&self.recv().await?) {
            Ok(Message::Call(header, args)) => Some((header, args)),
            _ => None,
        }
    }

    /// A sender for use by other tasks.
    pub fn sender(&self) -> PeerSender {
        self.sender.clone()
    }

    /// Sends a message as one record.
    pub fn send(&self, message: Enc) {
        self.sender.send(message);
    }

    /// Sends bytes without framing.
    pub fn send_raw(&self, bytes: Bytes) {
        self.sender.send_raw(bytes);
    }
}

impl PeerSender {
    /// Sends a message as one record. Does nothing when the connection has ended.
    pub fn send(&self, message: Enc) {
        let _ = self.0.send(vec![record::frame(message).concat().into()]);
    }

    /// Sends bytes without framing.
    pub fn send_raw(&self, bytes: Bytes) {
        let _ = self.0.send(vec![bytes]);
    }
}

#[cfg(test)]
mod tests;
