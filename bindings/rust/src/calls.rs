//! Requests and their replies. One thread reads, and each caller waits for its own reply.
//!
//! A partly sent request ends the connection. The daemon would take later bytes for the rest of
//! that request, for example for file data. A child process inherits the socket and not the thread,
//! so each of its calls is refused before it waits.

use crate::descriptor::receive_exact;
use crate::wire::{
    self, FLAG_ERROR, FLAG_MORE, FRAMES_AHEAD, HEADER_BYTES, Header, Hello, Request, decode_error,
};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most requests under way at a time. The daemon accepts a few more.
const REQUESTS_MAX: usize = 192;
/// Most walks and watches among them. A program may hold these without limit of time, and the other
/// requests end by themselves.
pub(crate) const HELD_MAX: usize = 128;

/// A connection after the greeting.
#[derive(Debug)]
pub(crate) struct Connection {
    pub hello: Hello,
    stream: Mutex<UnixStream>,
    waiting: Arc<Waiting>,
    process: u32,
}

/// A frame from the daemon.
#[derive(Debug)]
struct Frame {
    header: Header,
    body: Vec<u8>,
    fd: Option<OwnedFd>,
}

/// The callers that wait for replies.
#[derive(Debug, Default)]
struct Waiting {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    calls: HashMap<u32, Sender<Frame>>,
    last: u32,
    /// Number of walks and watches that the program has not ended yet.
    held: usize,
    over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves the data under these locks consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request under way. A drop before its end cancels it.
#[derive(Debug)]
pub(crate) struct Call {
    conn: Arc<Connection>,
    id: u32,
    replies: Receiver<Frame>,
    /// Frames received since the client last allowed more.
    taken: u32,
    held: bool,
    over: bool,
}

impl Connection {
    /// Greets the daemon at the other end.
    pub fn greet(mut stream: UnixStream) -> io::Result<Self> {
        let mut out = Vec::new();
        Request::Hello(wire::VERSION).encode(0, &mut out);
        stream.write_all(&out)?;
        let greeted = frame(&stream)?;
        if greeted.header.flags & FLAG_ERROR != 0 {
            return Err(failure(&greeted.body));
        }
        let hello = Hello::decode(&greeted.body)?;
        if hello.version == 0 || hello.version > wire::VERSION {
            return Err(io::Error::new(ErrorKind::InvalidData, "the daemon speaks another version"));
        }
        let waiting = Arc::new(Waiting::default());
        let (reading, told) = (stream.try_clone()?, waiting.clone());
        std::thread::Builder::new().name("hither-client".into()).spawn(move || {
            while let Ok(frame) = frame(&reading) {
                told.take(frame);
            }
            let mut state = lock(&told.state);
            state.over = true;
            // The end of its channel tells each waiting caller.
            state.calls.clear();
            told.room.notify_all();
        })?;
        Ok(Self { hello, stream: Mutex::new(stream), waiting, process: std::process::id() })
    }

    /// Whether this process is a child of the process that connected.
    fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    fn own(&self) -> io::Result<()> {
        let why = "the connection is one of the process that this one was forked from";
        if self.is_inherited() { Err(io::Error::new(ErrorKind::ConnectionAborted, why)) } else { Ok(()) }
    }

    /// Sends a request. Waits while too many requests are under way.
    pub fn begin(self: &Arc<Self>, request: &Request<'_>) -> io::Result<Call> {
        self.start(request, false)
    }

    /// As [`Self::begin`], for a request that the program may hold for any time. `WouldBlock` when
    /// there are too many of these.
    pub fn begin_held(self: &Arc<Self>, request: &Request<'_>) -> io::Result<Call> {
        self.start(request, true)
    }

    fn start(self: &Arc<Self>, request: &Request<'_>, held: bool) -> io::Result<Call> {
        self.own()?;
        let (sender, replies) = channel();
        let id = self.waiting.add(sender, held)?;
        let mut call = Call { conn: self.clone(), id, replies, taken: 0, held, over: false };
        // The daemon never received this request, so it needs no cancellation and gets no answer.
        let bytes = encoded(id, request).inspect_err(|_| {
            self.waiting.forget(id);
            call.over = true;
        })?;
        self.write(&bytes)?;
        Ok(call)
    }

    /// Sends a request and waits for its reply of one frame.
    pub fn call(self: &Arc<Self>, request: &Request<'_>) -> io::Result<Vec<u8>> {
        self.begin(request)?.one()
    }

    fn send(&self, id: u32, request: &Request<'_>) -> io::Result<()> {
        self.write(&encoded(id, request)?)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = lock(&self.stream);
        stream.write_all(bytes).map_err(|e| {
            let _ = stream.shutdown(Shutdown::Both);
            match e.kind() {
                // The reading thread notices the end of the connection a moment later.
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => lost(),
                _ => e,
            }
        })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let _ = lock(&self.stream).shutdown(Shutdown::Both);
    }
}

impl Waiting {
    fn add(&self, sender: Sender<Frame>, held: bool) -> io::Result<u32> {
        let mut state = lock(&self.state);
        if held && state.held >= HELD_MAX {
            return Err(ErrorKind::WouldBlock.into());
        }
        while state.calls.len() >= REQUESTS_MAX && !state.over {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.over {
            return Err(lost());
        }
        loop {
            state.last = state.last.wrapping_add(1);
            let id = state.last;
            if id != 0 && !state.calls.contains_key(&id) {
                state.calls.insert(id, sender);
                state.held += usize::from(held);
                return Ok(id);
            }
        }
    }

    /// Removes a call that was never sent.
    fn forget(&self, id: u32) {
        lock(&self.state).calls.remove(&id);
        self.room.notify_one();
    }

    /// Delivers a frame to its waiting caller.
    fn take(&self, frame: Frame) {
        let header = frame.header;
        let mut state = lock(&self.state);
        if let Some(sender) = state.calls.get(&header.id) {
            // The caller may have gone.
            let _ = sender.send(frame);
        }
        if header.flags & FLAG_MORE == 0 {
            state.calls.remove(&header.id);
            self.room.notify_one();
        }
    }
}

impl Call {
    /// The only frame of the reply.
    pub fn one(self) -> io::Result<Vec<u8>> {
        self.only().map(|frame| frame.body)
    }

    /// The descriptor that the reply carries.
    pub fn descriptor(self) -> io::Result<OwnedFd> {
        self.only()?.fd.ok_or_else(|| wire::Malformed("no descriptor").into())
    }

    fn only(mut self) -> io::Result<Frame> {
        self.conn.own()?;
        let frame = self.replies.recv().map_err(|_| lost())?;
        self.over = frame.header.flags & FLAG_MORE == 0;
        if frame.header.flags & FLAG_ERROR != 0 { Err(failure(&frame.body)) } else { Ok(frame) }
    }

    /// The next frame of a reply with many frames. `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.over {
            return Ok(None);
        }
        self.conn.own()?;
        let frame = self.replies.recv().map_err(|_| lost())?;
        self.took(frame)
    }

    /// As [`Self::next`], with a time limit.
    pub fn next_within(&mut self, within: std::time::Duration) -> io::Result<Option<Vec<u8>>> {
        use std::sync::mpsc::RecvTimeoutError;
        if self.over {
            return Ok(None);
        }
        self.conn.own()?;
        let frame = self.replies.recv_timeout(within).map_err(|e| match e {
            RecvTimeoutError::Timeout => ErrorKind::TimedOut.into(),
            RecvTimeoutError::Disconnected => lost(),
        })?;
        self.took(frame)
    }

    fn took(&mut self, frame: Frame) -> io::Result<Option<Vec<u8>>> {
        let (flags, body) = (frame.header.flags, frame.body);
        if flags & FLAG_ERROR != 0 {
            self.over = true;
            return Err(failure(&body));
        }
        if flags & FLAG_MORE == 0 {
            self.over = true;
            return Ok(Some(body).filter(|body| !body.is_empty()));
        }
        self.taken += 1;
        if self.taken >= FRAMES_AHEAD / 2 {
            self.conn.send(self.id, &Request::More(self.id, self.taken))?;
            self.taken = 0;
        }
        Ok(Some(body))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.conn.is_inherited() {
            return;
        }
        if self.held {
            lock(&self.conn.waiting.state).held -= 1;
        }
        if !self.over {
            // The request number stays in use until the daemon has ended the request.
            let _ = self.conn.send(self.id, &Request::Cancel(self.id));
        }
    }
}

/// The bytes of a request. `InvalidInput` when they exceed the daemon's limit.
fn encoded(id: u32, request: &Request<'_>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    request.encode(id, &mut out);
    if out.len() > HEADER_BYTES + wire::BODY_MAX_BYTES {
        Err(io::Error::new(ErrorKind::InvalidInput, "more bytes of paths than a request may have"))
    } else {
        Ok(out)
    }
}

fn frame(stream: &UnixStream) -> io::Result<Frame> {
    let mut fd = None;
    let mut header = [0; HEADER_BYTES];
    receive_exact(stream, &mut header, &mut fd)?;
    let header = Header::decode(&header)?;
    let mut body = vec![0; header.len as usize];
    receive_exact(stream, &mut body, &mut fd)?;
    Ok(Frame { header, body, fd })
}

fn failure(body: &[u8]) -> io::Error {
    match decode_error(body) {
        Ok((errno, _)) => io::Error::from_raw_os_error(errno),
        Err(e) => e.into(),
    }
}

fn lost() -> io::Error {
    io::Error::new(ErrorKind::ConnectionAborted, "the mount's daemon ended the connection")
}
