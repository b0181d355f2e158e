//! One connection through the relay: two directions, each delayed, each stopped by a cut.
//!
//! A direction has a reader thread. With a delay it also has a writer thread, which sends each
//! chunk when the chunk is due. Without a delay the reader writes itself, because passing data
//! between threads would cost more than the emulated network.
//!
//! The relay connects from the client's port number. Servers recognise a repeated NFSv3 call by
//! that port, and clients keep it when they connect again.

use super::count::Conversation;
use super::{Shared, lock};
use crate::clock;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes under way in one direction before the reader waits: 50 ms at 1 GB/s.
const QUEUE_MAX_BYTES: usize = 64 << 20;

/// A listening port, its target, and the state of the cable between them.
pub struct Line {
    /// Port on which the line listens.
    pub port: u16,
    /// Address to which the line connects.
    pub target: String,
    cut: Mutex<bool>,
    healed: Condvar,
    live: Mutex<Vec<Weak<(TcpStream, TcpStream)>>>,
}

impl Line {
    /// A line that is not cut.
    pub fn new(port: u16, target: String) -> Self {
        Self { port, target, cut: Mutex::new(false), healed: Condvar::new(), live: Mutex::default() }
    }

    /// Cuts the line, or ends the cut.
    pub fn cut(&self, cut: bool) {
        *lock(&self.cut) = cut;
        self.healed.notify_all();
    }

    /// Closes every connection. Returns their number.
    pub fn close_all(&self) -> usize {
        let open: Vec<_> = lock(&self.live).drain(..).filter_map(|w| w.upgrade()).collect();
        for pair in &open {
            let _ = pair.0.shutdown(Shutdown::Both);
            // A reset leaves no TIME_WAIT, which would block the port for the next connection.
            let _ = rustix::net::connect_unspec(&pair.1);
            let _ = pair.1.shutdown(Shutdown::Both);
        }
        open.len()
    }

    /// Waits while the line is cut.
    fn pass(&self) {
        let mut cut = lock(&self.cut);
        while *cut {
            cut = self.healed.wait(cut).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn remember(&self, pair: &Arc<(TcpStream, TcpStream)>) {
        let mut live = lock(&self.live);
        live.retain(|w| w.strong_count() > 0);
        live.push(Arc::downgrade(pair));
    }
}

/// Forwards one accepted connection until both sides have closed it.
pub fn carry(client: TcpStream, line: &Arc<Line>, shared: &Arc<Shared>) -> std::io::Result<()> {
    line.pass();
    let server = connect_like(client.peer_addr()?.port(), &line.target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    lock(&shared.stats).connections += 1;
    let pair = Arc::new((client, server));
    line.remember(&pair);
    let talk = Arc::new(Mutex::new(Conversation::default()));
    let back = {
        let (pair, line, shared, talk) = (pair.clone(), line.clone(), shared.clone(), talk.clone());
        thread::spawn(move || direction(&pair.1, &pair.0, &line, &shared, &talk, false))
    };
    direction(&pair.0, &pair.1, line, shared, &talk, true);
    let _ = back.join();
    Ok(())
}

/// First port that any user may bind. A server with the export option `secure` accepts only calls
/// from lower ports.
const PRIVILEGED: u16 = 1024;

/// Connects from the given source port. The port may be in use towards the target by another client
/// or by an old connection. Then connects from another port that servers trust equally.
fn connect_like(port: u16, target: &str) -> std::io::Result<TcpStream> {
    for port in alike(port) {
        match connect_from(port, target) {
            Err(e) if matches!(e.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
            outcome => return outcome,
        }
    }
    TcpStream::connect(target)
}

/// The port, and other ports that servers trust equally.
fn alike(port: u16) -> impl Iterator<Item = u16> {
    let others = (512..PRIVILEGED).rev().filter(move |_| port < PRIVILEGED);
    std::iter::once(port).chain(others)
}

/// Connects from the given source port.
fn connect_from(port: u16, target: &str) -> std::io::Result<TcpStream> {
    let target: SocketAddr = target.parse().map_err(std::io::Error::other)?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    };
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &any)?;
    rustix::net::connect(&socket, &target)?;
    Ok(socket.into())
}

/// Chunks that wait until they are due.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    /// Whether the writer is in the middle of a chunk.
    writing: bool,
    closed: bool,
    broken: bool,
}

fn direction(
    from: &TcpStream,
    to: &TcpStream,
    line: &Line,
    shared: &Shared,
    talk: &Mutex<Conversation>,
    from_client: bool,
) {
    let queue = Queue::default();
    thread::scope(|scope| {
        scope.spawn(|| drain(&queue, to, line));
        let mut buf = vec![0u8; 256 * 1024];
        let mut source = from;
        loop {
            let n = match source.read(&mut buf) {
                Ok(0) | Err(_) => break,
                Ok(n) => n,
            };
            // Counted before forwarding, so that a reply cannot overtake the count of its call.
            lock(talk).feed(&buf[..n], from_client, &shared.stats);
            let delay = Duration::from_micros(shared.delay_us.load(Ordering::Relaxed));
            if !forward(&queue, to, line, &buf[..n], delay) {
                break;
            }
        }
        lock(&queue.state).closed = true;
        queue.changed.notify_all();
    });
    // After one side has closed, the bytes of the other side are lost. A cut line must show
    // neither.
    line.pass();
    let _ = from.shutdown(Shutdown::Read);
    let _ = to.shutdown(Shutdown::Write);
}

/// Sends a chunk now or queues it. Returns false when the other side has closed.
fn forward(queue: &Queue, mut to: &TcpStream, line: &Line, data: &[u8], delay: Duration) -> bool {
    let mut state = lock(&queue.state);
    if delay.is_zero() && state.chunks.is_empty() && !state.writing {
        drop(state);
        line.pass();
        return to.write_all(data).is_ok();
    }
    while state.bytes > QUEUE_MAX_BYTES && !state.broken {
        state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    state.bytes += data.len();
    state.chunks.push_back((clock::now() + delay, data.to_vec()));
    queue.changed.notify_all();
    !state.broken
}

/// The writer: sends queued chunks when they are due.
fn drain(queue: &Queue, mut to: &TcpStream, line: &Line) {
    let mut state = lock(&queue.state);
    loop {
        let Some((due, data)) = state.chunks.pop_front() else {
            if state.closed {
                return;
            }
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.writing = true;
        drop(state);
        clock::pause(due.saturating_duration_since(clock::now()));
        line.pass();
        let sent = to.write_all(&data);
        state = lock(&queue.state);
        state.writing = false;
        state.bytes -= data.len();
        state.broken |= sent.is_err();
        queue.changed.notify_all();
        if state.broken {
            state.chunks.clear();
            state.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::count::Stats;
    use super::*;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicU64;

    /// A relay before an echo server. Returns the client's end, the line, and the shared state.
    fn echo(delay_us: u64) -> (TcpStream, Arc<Line>, Arc<Shared>) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = server.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for s in server.incoming().flatten() {
                thread::spawn(move || {
                    let (mut r, mut w) = (s.try_clone().unwrap(), s);
                    let _ = std::io::copy(&mut r, &mut w);
                });
            }
        });
        let near = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Arc::new(Line::new(near.local_addr().unwrap().port(), target));
        let shared =
            Arc::new(Shared { delay_us: AtomicU64::new(delay_us), stats: Mutex::new(Stats::default()) });
        let client = TcpStream::connect(near.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let accepted = near.accept().unwrap().0;
        let (l, s) = (line.clone(), shared.clone());
        thread::spawn(move || carry(accepted, &l, &s));
        (client, line, shared)
    }

    fn ask(c: &mut TcpStream, word: &[u8]) -> Duration {
        let t = clock::now();
        c.write_all(word).unwrap();
        let mut back = vec![0; word.len()];
        c.read_exact(&mut back).unwrap();
        assert_eq!(back, word);
        t.elapsed()
    }

    /// Each direction adds its delay once. Bytes keep their order when the delay changes.
    #[test]
    fn delay_keeps_order_of_bytes() {
        let (mut c, _line, shared) = echo(20_000);
        let t = ask(&mut c, b"delayed");
        assert!(t >= Duration::from_millis(40), "{t:?}");
        // Queued chunks go first, although the next chunk has no delay.
        c.write_all(b"first").unwrap();
        clock::pause(Duration::from_millis(5));
        shared.delay_us.store(0, Ordering::Relaxed);
        c.write_all(b"second").unwrap();
        let mut back = [0; 11];
        c.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"firstsecond");
        // On a busy machine some exchanges take long, but not each.
        assert!((0..100).any(|_| ask(&mut c, b"free") < Duration::from_millis(30)));
    }

    /// A cut line passes no bytes. They arrive when the cut ends.
    #[test]
    fn cut_line_holds_bytes() {
        let (mut c, line, _shared) = echo(0);
        ask(&mut c, b"before");
        line.cut(true);
        c.write_all(b"during").unwrap();
        c.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(c.read(&mut [0; 16]).is_err(), "bytes passed a cut line");
        line.cut(false);
        c.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut back = [0; 6];
        c.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"during");
    }

    #[test]
    fn break_closes_connections() {
        let (mut c, line, _shared) = echo(0);
        ask(&mut c, b"x");
        assert_eq!(line.close_all(), 1);
        assert_eq!(c.read(&mut [0; 4]).unwrap_or(0), 0);
        assert_eq!(line.close_all(), 0);
    }

    /// A client that reconnects from its old port reaches the server with that port, also directly
    /// after a break.
    #[test]
    fn client_port_is_kept() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpListener::bind("127.0.0.1:0").unwrap();
        let line =
            Arc::new(Line::new(near.local_addr().unwrap().port(), server.local_addr().unwrap().to_string()));
        let shared = Arc::new(Shared { delay_us: AtomicU64::new(0), stats: Mutex::new(Stats::default()) });
        let mut port = 0;
        for _ in 0..3 {
            let client = connect_from(port, &near.local_addr().unwrap().to_string()).unwrap();
            port = client.local_addr().unwrap().port();
            let (accepted, l, s) = (near.accept().unwrap().0, line.clone(), shared.clone());
            let carried = thread::spawn(move || carry(accepted, &l, &s));
            let (served, seen) = server.accept().unwrap();
            assert_eq!(seen.port(), port);
            rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
            // The server has the connection a moment before the line has registered it.
            while line.close_all() == 0 {
                thread::yield_now();
            }
            drop((client, served));
            carried.join().unwrap().unwrap();
        }
    }

    /// Servers that export with `secure` check the port. A second client with the same port is
    /// forwarded from another privileged port.
    #[test]
    fn privileged_port_stays_privileged() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = server.local_addr().unwrap().to_string();
        let first = connect_like(1023, &target).unwrap();
        let second = connect_like(1023, &target).unwrap();
        let ports = [&first, &second].map(|c| c.local_addr().unwrap().port());
        assert!(ports[0] != ports[1] && ports.iter().all(|p| *p < PRIVILEGED), "{ports:?}");
        drop(server);
        assert_eq!(connect_like(1023, &target).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}
