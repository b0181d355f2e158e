//! Frames to and from a program.
//!
//! A reply reserves bytes of its connection's allowance before it reads them, and releases them
//! after they are written. So unread data is bounded. Replies of many frames first wait for a
//! request for more frames ([`Request::More`]). So an unread reply does not block other replies.
//!
//! [`Request::More`]: hither_client::wire::Request::More

use bytes::Bytes;
use hither_client::wire::{self, FLAG_ERROR, FLAG_FD, FLAG_MORE, HEADER_BYTES, Header};
use hither_vfs::{Error, Result};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum time in which a program must read a frame.
const SEND_WITHIN: Duration = Duration::from_secs(60);
/// Maximum time for the remaining frames after the end of a connection.
const LAST_WITHIN: Duration = Duration::from_secs(2);
/// Maximum time in which a program must send the body of a request, and each part of its header
/// after the first.
const RECEIVE_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of bytes of unread replies per connection.
pub(crate) const ALLOWANCE_BYTES: usize = 16 << 20;
/// Maximum number of queued frames.
pub(crate) const QUEUE_FRAMES: usize = 64;
/// A frame of many small items is sent when it has this number of bytes.
pub(crate) const FULL_BYTES: usize = 64 << 10;

/// A frame to send.
pub(crate) struct Frame {
    id: u32,
    op: u16,
    flags: u16,
    parts: Vec<Bytes>,
    fd: Option<File>,
    _allowance: Option<OwnedSemaphorePermit>,
}

/// The return path of one request.
#[derive(Clone)]
pub(crate) struct Reply {
    pub id: u32,
    pub op: u16,
    pub out: mpsc::Sender<Frame>,
    pub allowance: Arc<Semaphore>,
    /// Number of frames besides the last that the program has requested.
    pub credit: Arc<Semaphore>,
    /// Cancelled when the program does not need the reply any more.
    pub over: CancellationToken,
}

/// Permission for one frame of a reply: the program's request for it, and the reserved bytes.
pub(crate) struct Turn {
    credit: OwnedSemaphorePermit,
    allowance: OwnedSemaphorePermit,
}

impl Reply {
    /// Waits until the program requests a frame, and then until `bytes` bytes are reserved.
    pub async fn turn(&self, bytes: usize) -> Result<Turn> {
        // In this order, because a reply without requested frames must not reserve bytes.
        let credit = tokio::select! {
            credit = self.credit.clone().acquire_owned() => credit.map_err(|_| gone())?,
            () = self.over.cancelled() => return Err(gone()),
        };
        Ok(Turn { credit, allowance: self.allow(bytes).await? })
    }

    /// Waits until `bytes` bytes are reserved.
    pub async fn allow(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let n = u32::try_from(bytes.min(ALLOWANCE_BYTES)).unwrap_or(u32::MAX);
        tokio::select! {
            permit = self.allowance.clone().acquire_many_owned(n) => permit.map_err(|_| gone()),
            () = self.over.cancelled() => Err(gone()),
        }
    }

    /// Sends a whole reply with reserved bytes.
    pub async fn answer(&self, parts: Vec<Bytes>, allowance: Option<OwnedSemaphorePermit>) {
        self.send(0, parts, None, allowance).await;
    }

    /// Sends a reply with a descriptor.
    pub async fn lend(&self, fd: File) {
        // A descriptor is sent with at least one byte, here the header.
        self.send(FLAG_FD, Vec::new(), Some(fd), None).await;
    }

    /// Sends an error as the end of the reply.
    pub async fn fail(&self, e: &Error) {
        let mut body = Vec::new();
        wire::encode_error(e.errno, e.why.as_deref().unwrap_or(""), &mut body);
        self.send(FLAG_ERROR, vec![body.into()], None, None).await;
    }

    /// Sends one frame of many.
    pub async fn part(&self, turn: Turn, parts: Vec<Bytes>) {
        turn.credit.forget();
        self.send(FLAG_MORE, parts, None, Some(turn.allowance)).await;
    }

    async fn send(
        &self,
        flags: u16,
        parts: Vec<Bytes>,
        fd: Option<File>,
        allowance: Option<OwnedSemaphorePermit>,
    ) {
        let frame = Frame { id: self.id, op: self.op, flags, parts, fd, _allowance: allowance };
        // After the end of the writer the connection is over.
        let _ = self.out.send(frame).await;
    }
}

/// The error of requests that end with the connection.
pub(crate) fn gone() -> Error {
    Error::new(libc::ECANCELED)
}

/// Collects small items into frames.
pub(crate) struct Collected<'a> {
    reply: &'a Reply,
    body: Vec<u8>,
}

impl<'a> Collected<'a> {
    pub fn new(reply: &'a Reply) -> Self {
        Self { reply, body: Vec::new() }
    }

    /// Adds an item.
    pub async fn add(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        encode(&mut self.body);
        if self.body.len() >= FULL_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Sends the collected items.
    pub async fn flush(&mut self) -> Result<()> {
        if self.body.is_empty() {
            return Ok(());
        }
        let body = std::mem::take(&mut self.body);
        let turn = self.reply.turn(body.len()).await?;
        self.reply.part(turn, vec![body.into()]).await;
        Ok(())
    }
}

/// Writes frames until the queue ends or the program does not read in time. After the end of the
/// connection the time is short.
pub(crate) async fn write_all(
    stream: &UnixStream,
    mut frames: mpsc::Receiver<Frame>,
    over: &CancellationToken,
) -> io::Result<()> {
    let mut last = LAST_WITHIN;
    while let Some(frame) = frames.recv().await {
        let begun = Instant::now();
        let late = async {
            over.cancelled().await;
            tokio::time::sleep(last).await;
        };
        tokio::select! {
            sent = tokio::time::timeout(SEND_WITHIN, write(stream, &frame)) => sent.map_err(|_| late_error())??,
            () = late => return Err(late_error()),
        }
        if over.is_cancelled() {
            last = last.saturating_sub(begun.elapsed());
        }
    }
    Ok(())
}

fn late_error() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

async fn write(stream: &UnixStream, frame: &Frame) -> io::Result<()> {
    let len = frame.parts.iter().map(Bytes::len).sum::<usize>() as u32;
    let header = Header { len, id: frame.id, op: frame.op, flags: frame.flags }.encode();
    let mut slices = Vec::with_capacity(1 + frame.parts.len());
    slices.push(IoSlice::new(&header));
    slices.extend(frame.parts.iter().map(|part| IoSlice::new(part)));
    let (mut rest, mut fd) = (&mut slices[..], frame.fd.as_ref());
    while !rest.is_empty() {
        stream.ready(Interest::WRITABLE).await?;
        match stream.try_io(Interest::WRITABLE, || send(stream, rest, fd)) {
            Ok(n) => {
                fd = None;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn send(stream: &UnixStream, slices: &[IoSlice<'_>], fd: Option<&File>) -> io::Result<usize> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    // Maximum number of slices of one system call.
    let slices = &slices[..slices.len().min(1024)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    Ok(sendmsg(stream, slices, &mut control, SendFlags::NOSIGNAL)?)
}

/// Reads the header of a frame. `None` when the program closed the connection before a header.
pub(crate) async fn read_header(stream: &UnixStream) -> io::Result<Option<Header>> {
    let mut header = [0; HEADER_BYTES];
    let mut have = 0;
    loop {
        match read_some(stream, &mut header[have..], have > 0).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => have += n,
        }
        if have == HEADER_BYTES {
            return Ok(Some(Header::decode(&header)?));
        }
    }
}

/// Reads the body of a frame.
pub(crate) async fn read_body(stream: &UnixStream, len: usize) -> io::Result<Bytes> {
    let mut body = vec![0; len];
    let mut have = 0;
    let reading = async {
        while have < len {
            match read_some(stream, &mut body[have..], false).await? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                n => have += n,
            }
        }
        Ok(())
    };
    tokio::time::timeout(RECEIVE_WITHIN, reading).await.map_err(|_| late_error())??;
    Ok(body.into())
}

async fn read_some(stream: &UnixStream, into: &mut [u8], begun: bool) -> io::Result<usize> {
    loop {
        let ready = stream.readable();
        if begun {
            let ready = tokio::time::timeout(RECEIVE_WITHIN, ready).await;
            ready.map_err(|_| late_error())??;
        } else {
            ready.await?;
        }
        match stream.try_read_vectored(&mut [IoSliceMut::new(into)]) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}
