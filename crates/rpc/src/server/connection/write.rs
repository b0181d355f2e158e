//! The writer of a connection: sends queued messages in batches.
//!
//! The module knows no calls. A message keeps its resources until it is written.

use super::super::Global;
use super::super::piped::{Piped, Sink, read_all, send_more, send_piped};
use super::{Ended, Outgoing, Shared, Stall};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Most bytes and segments of one vectored write. A single larger message is still written.
const BATCH_MAX_BYTES: usize = 1 << 20;
const BATCH_MAX_SEGMENTS: usize = 64;

/// Writes queued messages until the connection ends. Returns the stream when a handshake follows.
pub(super) async fn write<W: Sink>(
    global: Arc<Global>,
    shared: Arc<Shared>,
    mut stream: W,
) -> Result<W, Ended> {
    let mut batch: Vec<Outgoing> = Vec::new();
    let stall = global.limits.stall;
    loop {
        let work = shared.work.notified();
        let bytes = {
            let queue = &mut *shared.queue.lock();
            let (mut bytes, mut segments) = (0, 0);
            while let Some(next) = queue.messages.front()
                && !batch.last().is_some_and(|m| m.then_tls)
            {
                segments += next.segments.len();
                bytes += next.bytes;
                if !batch.is_empty() && (bytes > BATCH_MAX_BYTES || segments > BATCH_MAX_SEGMENTS) {
                    break;
                }
                batch.extend(queue.messages.pop_front());
            }
            batch.iter().map(|m| m.bytes).sum::<usize>()
        };
        if batch.is_empty() {
            tokio::select! {
                () = work => continue,
                () = shared.last_written.cancelled() => {}
                () = shared.ended.cancelled() => {}
            }
            // In TLS this sends close_notify.
            let _ = stream.shutdown().await;
            // A draining connection is still read.
            shared.ended.cancelled().await;
            return Err(Ended::Closed);
        }
        let written = write_all(&mut stream, &batch, (&shared, stall)).await;
        if written.is_ok() {
            shared.counts.sent(batch.iter().map(Outgoing::wire_bytes).sum());
        }
        let then_tls = batch.last().is_some_and(|m| m.then_tls);
        batch.clear();
        shared.queue.lock().bytes -= bytes;
        shared.written.notify_waiters();
        if let Err(e) = written {
            return match e.kind() {
                io::ErrorKind::TimedOut => Err(Ended::misbehaved("does not read its replies")),
                _ => Err(Ended::Io(e)),
            };
        }
        if then_tls {
            return Ok(stream);
        }
    }
}

/// Writes all segments with vectored writes, and each payload at its place.
async fn write_all<W: Sink>(
    stream: &mut W,
    batch: &[Outgoing],
    stall: (&Shared, Duration),
) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = Vec::new();
    for message in batch {
        slices.extend(message.segments.iter().map(|s| IoSlice::new(s)));
        let Some((piped, after)) = &message.piped else { continue };
        match stream.socket() {
            Some(socket) => write_piped(socket, &mut slices, &**piped, stall).await?,
            None => {
                write_slices(stream, &mut slices, stall).await?;
                let bytes = read_all(&**piped)?;
                write_slices(stream, &mut [IoSlice::new(&bytes)], stall).await?;
            }
        }
        slices.clear();
        slices.extend(after.iter().map(|s| IoSlice::new(s)));
    }
    write_slices(stream, &mut slices, stall).await?;
    // TLS keeps encrypted bytes until they are flushed.
    stall.0.step(Stall::Write, stall.1, stream.flush()).await
}

/// Writes slices. Each step must finish within `stall`.
async fn write_slices<W: Sink>(
    stream: &mut W,
    slices: &mut [IoSlice<'_>],
    (shared, stall): (&Shared, Duration),
) -> io::Result<()> {
    let mut left = slices;
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match shared.step(Stall::Write, stall, stream.write_vectored(left)).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => IoSlice::advance_slices(&mut left, n),
        }
    }
    Ok(())
}

/// Writes slices to a socket and moves a payload after them. Each step must finish within `stall`.
async fn write_piped(
    socket: &TcpStream,
    slices: &mut [IoSlice<'_>],
    piped: &dyn Piped,
    (shared, stall): (&Shared, Duration),
) -> io::Result<()> {
    let mut before = slices;
    IoSlice::advance_slices(&mut before, 0);
    while !before.is_empty() {
        let sent = shared.step(Stall::Write, stall, send_more(socket, before)).await?;
        IoSlice::advance_slices(&mut before, sent);
    }
    let mut left = piped.len();
    while left > 0 {
        left -= shared.step(Stall::Write, stall, send_piped(socket, piped, left)).await?;
    }
    Ok(())
}
