//! Frames on their way to a program.
//!
//! A reply takes its bytes out of its connection's allowance before they are there, and gives them
//! back when they are written: unread data is bounded. Replies of many frames wait for the
//! program's word ([`Request::More`]) before that, so that an unread one keeps nothing from the
//! others.
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

/// How long a program may take to read a frame.
const SEND_WITHIN: Duration = Duration::from_secs(60);
/// How long reading the rest may take when its connection ends.
const LAST_WITHIN: Duration = Duration::from_secs(2);
/// How long a program may take to send the body of a request, and any part of its header but the
/// first.
const RECEIVE_WITHIN: Duration = Duration::from_secs(60);
/// Bytes on their way to and from one program.
pub(crate) const ALLOWANCE_BYTES: usize = 16 << 20;
/// Frames that wait to be written.
pub(crate) const QUEUE_FRAMES: usize = 64;
/// A frame of many small things is sent when it has so many bytes.
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

/// The way back from one request.
#[derive(Clone)]
pub(crate) struct Reply {
    pub id: u32,
    pub op: u16,
    pub out: mpsc::Sender<Frame>,
    pub allowance: Arc<Semaphore>,
    /// Frames that the program is ready for, beside the last.
    pub credit: Arc<Semaphore>,
    /// Its program does not want it any more.
    pub over: CancellationToken,
}

/// The program's word for one frame of many, and room for its bytes.
pub(crate) struct Turn {
    credit: OwnedSemaphorePermit,
    allowance: OwnedSemaphorePermit,
}

impl Reply {
    /// Waits until the program is ready for a frame, and then until so many bytes may be on their
    /// way.
    pub async fn turn(&self, bytes: usize) -> Result<Turn> {
        // The order matters: a reply that a program never asks on for must not keep room from the
        // others.
        let credit = tokio::select! {
            credit = self.credit.clone().acquire_owned() => credit.map_err(|_| gone())?,
            () = self.over.cancelled() => return Err(gone()),
        };
        Ok(Turn { credit, allowance: self.allow(bytes).await? })
    }

    /// Waits until so many bytes may be on their way.
    pub async fn allow(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let n = u32::try_from(bytes.min(ALLOWANCE_BYTES)).unwrap_or(u32::MAX);
        tokio::select! {
            permit = self.allowance.clone().acquire_many_owned(n) => permit.map_err(|_| gone()),
            () = self.over.cancelled() => Err(gone()),
        }
    }

    /// Sends a whole reply; its bytes were allowed.
    pub async fn answer(&self, parts: Vec<Bytes>, allowance: Option<OwnedSemaphorePermit>) {
        self.send(0, parts, None, allowance).await;
    }

    /// Sends a reply with a descriptor.
    pub async fn lend(&self, fd: File) {
        // A descriptor needs a byte to travel with.
        self.send(FLAG_FD, Vec::new(), Some(fd), None).await;
    }

    /// Sends why there is no (further) reply.
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
        // When the writer has gone, the connection is over.
        let _ = self.out.send(frame).await;
    }
}

/// The program, or this daemon, ends the connection.
pub(crate) fn gone() -> Error {
    Error::new(libc::ECANCELED)
}

/// Things that are collected to frames.
pub(crate) struct Collected<'a> {
    reply: &'a Reply,
    body: Vec<u8>,
}

impl<'a> Collected<'a> {
    pub fn new(reply: &'a Reply) -> Self {
        Self { reply, body: Vec::new() }
    }

    /// Adds one.
    pub async fn add(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        encode(&mut self.body);
        if self.body.len() >= FULL_BYTES { self.flush().await } else { Ok(()) }
    }

    /// Sends the available frames.
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

/// Writes frames until there will be no more, or the program does not read. Once the connection is
/// over there is little time.
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
    // As many as the kernel takes in one call.
    let slices = &slices[..slices.len().min(1024)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    Ok(sendmsg(stream, slices, &mut control, SendFlags::NOSIGNAL)?)
}

/// Reads a frame's header; `None` when the program has hung up between two.
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

/// Reads a body.
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
