//! One direction of a simulated connection: chunks, each with a delivery time.
//!
//! Lock order: a pipe's state is a leaf and is not held while the network's state is locked.

use super::{Net, Transit};
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The state that the two ends of one direction share.
#[derive(Debug, Clone)]
pub(super) struct Pipe {
    net: Net,
    state: Arc<Mutex<PipeState>>,
}

#[derive(Debug, Default)]
struct PipeState {
    chunks: VecDeque<(Instant, Bytes)>,
    buffered: usize,
    /// When the line is free for the next chunk.
    line_free: Option<Instant>,
    /// When the last chunk arrives. Later chunks arrive no earlier, so that bytes stay in order.
    last_arrival: Option<Instant>,
    /// When the end of the stream arrives, once the writer is dropped.
    end: Option<Instant>,
    reader_gone: bool,
    reset: bool,
    held: bool,
    /// Resets both directions after this many more bytes.
    reset_after: Option<(usize, Pipe)>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl PipeState {
    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}

impl Pipe {
    pub fn new(net: Net) -> Self {
        Self { net, state: Arc::default() }
    }

    pub fn reset(&self) {
        let mut s = self.state.lock();
        s.reset = true;
        s.wake();
    }

    /// Holds back all bytes, or releases the held bytes.
    pub fn hold(&self, held: bool) {
        let mut s = self.state.lock();
        s.held = held;
        s.wake();
    }

    pub fn reset_after(&self, bytes: usize, other: Pipe) {
        self.state.lock().reset_after = Some((bytes, other));
    }

    pub fn is_finished(&self) -> bool {
        let s = self.state.lock();
        s.reset || (s.end.is_some() && s.reader_gone)
    }
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct PipeReader {
    pipe: Pipe,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl PipeReader {
    pub fn new(pipe: Pipe) -> Self {
        Self { pipe, alarm: None }
    }
}

/// The next event for a reader.
enum Found {
    Bytes,
    End,
    Later(Instant),
    Nothing,
    Cut(Pipe),
}

impl PipeState {
    fn find(&mut self, now: Instant, buf: &mut ReadBuf<'_>) -> Found {
        if self.held {
            return Found::Nothing;
        }
        if let Some((0, other)) = &self.reset_after {
            return Found::Cut(other.clone());
        }
        match self.chunks.front_mut() {
            Some((at, _)) if *at > now => Found::Later(*at),
            Some((_, chunk)) => {
                let allowed = self.reset_after.as_ref().map_or(usize::MAX, |(n, _)| *n);
                let n = chunk.len().min(buf.remaining()).min(allowed);
                buf.put_slice(&chunk[..n]);
                chunk.advance(n);
                if chunk.is_empty() {
                    self.chunks.pop_front();
                }
                self.buffered -= n;
                if let Some((left, _)) = &mut self.reset_after {
                    *left -= n;
                }
                Found::Bytes
            }
            None => match self.end {
                Some(at) if at <= now => Found::End,
                Some(at) => Found::Later(at),
                None => Found::Nothing,
            },
        }
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let now = Instant::now();
            let pipe = self.pipe.clone();
            let mut s = pipe.state.lock();
            if s.reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            match s.find(now, buf) {
                Found::Bytes => {
                    s.writer.take().into_iter().for_each(Waker::wake);
                    return Poll::Ready(Ok(()));
                }
                Found::End => return Poll::Ready(Ok(())),
                Found::Cut(other) => {
                    drop(s);
                    pipe.reset();
                    other.reset();
                }
                Found::Nothing => {
                    s.reader = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Found::Later(at) => {
                    s.reader = Some(cx.waker().clone());
                    drop(s);
                    let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(at)));
                    alarm.as_mut().reset(at);
                    if alarm.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut s = self.pipe.state.lock();
        s.reader_gone = true;
        s.wake();
    }
}

/// The sending end.
#[derive(Debug)]
pub(super) struct PipeWriter {
    pipe: Pipe,
}

impl PipeWriter {
    pub fn new(pipe: Pipe) -> Self {
        Self { pipe }
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let Transit { occupies, delay, window } = self.pipe.net.draw(data.len());
        let mut s = self.pipe.state.lock();
        if s.reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if s.reader_gone && !s.held {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = window.saturating_sub(s.buffered);
        if room == 0 {
            s.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = data.len().min(room);
        let now = Instant::now();
        let sent =
            s.line_free.map_or(now, |t| t.max(now)) + occupies.mul_f64(n as f64 / data.len().max(1) as f64);
        let arrives = s.last_arrival.map_or(sent + delay, |t| t.max(sent + delay));
        s.line_free = Some(sent);
        s.last_arrival = Some(arrives);
        s.chunks.push_back((arrives, Bytes::copy_from_slice(&data[..n])));
        s.buffered += n;
        s.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(n))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pipe.end();
        Poll::Ready(Ok(()))
    }
}

impl Pipe {
    fn end(&self) {
        let delay = self.net.draw(0).delay;
        let mut s = self.state.lock();
        let at = Instant::now() + delay;
        let at = s.last_arrival.map_or(at, |t| t.max(at));
        s.end.get_or_insert(at);
        s.reader.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.pipe.end();
    }
}
