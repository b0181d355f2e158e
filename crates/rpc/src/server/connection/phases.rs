//! The phases of a connection: plain, then TLS if the client asks for it.
//!
//! The module knows no calls. Each phase has its own reader and writer. A phase that another one
//! follows returns its streams.

use super::super::piped::{Other, Sink};
use super::super::tls::{self, Transport};
use super::write::write;
use super::{Ended, Inbound, Stall};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// Longest time for the alert close_notify at the end of TLS (RFC 8446 section 6.1).
const FAREWELL_MAX: Duration = Duration::from_millis(200);

/// A stream that has ended its plain phase.
enum Half<R, W> {
    Reader(R),
    Writer(W),
}

/// Serves the plain phase of a connection, and the phase in TLS if the client asks for it.
pub(super) async fn phases<R, W>(inbound: &mut Inbound, reader: R, writer: W) -> Ended
where
    R: AsyncRead + Send + Unpin + 'static,
    W: Sink,
{
    let (reader, writer) = match carry(inbound.clone(), reader, writer).await {
        Ok(streams) => streams,
        Err(why) => return why,
    };
    let stream = match handshake(inbound, tokio::io::join(reader, writer)).await {
        Ok(stream) => stream,
        Err(why) => return why,
    };
    let (reader, writer) = tokio::io::split(stream);
    inbound.shared.forget_calls();
    inbound.global.service.closed(&inbound.peer);
    inbound.peer = inbound.shared.peer(inbound.global.next_id.fetch_add(1, Relaxed));
    carry(inbound.clone(), reader, Other(writer)).await.err().unwrap_or(Ended::Closed)
}

/// Serves one phase of a connection. Returns the streams when a handshake follows.
async fn carry<R, W>(inbound: Inbound, reader: R, writer: W) -> Result<(R, W), Ended>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: Sink,
{
    let shared = inbound.shared.clone();
    let writing = write(inbound.global.clone(), shared.clone(), writer);
    let mut tasks: JoinSet<Result<Half<R, W>, Ended>> = JoinSet::new();
    let has_farewell = inbound.peer.transport != Transport::Plain;
    let reading = tasks.spawn(async move { inbound.read(reader).await.map(Half::Reader) });
    tasks.spawn(async move { writing.await.map(Half::Writer) });
    let mut reader = None;
    let mut writer = None;
    let why = loop {
        let done = tokio::select! {
            done = tasks.join_next() => done,
            () = shared.ended.cancelled() => break Ended::Closed,
        };
        match done {
            Some(Ok(Ok(Half::Reader(stream)))) => reader = Some(stream),
            Some(Ok(Ok(Half::Writer(stream)))) => writer = Some(stream),
            Some(Ok(Err(why))) => break why,
            _ => break Ended::Io(io::Error::other("a connection's task failed")),
        }
        match (reader, writer) {
            (Some(reader), Some(writer)) => return Ok((reader, writer)),
            waiting => (reader, writer) = waiting,
        }
    };
    shared.end();
    // A client that does not read its replies would not read the alert either.
    if has_farewell && shared.queued_bytes() == 0 {
        reading.abort();
        let ended = async { while tasks.join_next().await.is_some() {} };
        let _ = timeout(FAREWELL_MAX, ended).await;
    }
    tasks.shutdown().await;
    Err(why)
}

/// Performs the handshake of a connection, within a bounded time and with memory of the budget.
async fn handshake<S>(inbound: &Inbound, stream: S) -> Result<TlsStream<S>, Ended>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shared = &inbound.shared;
    let Some(keys) = &inbound.global.tls else { return Err(Ended::Closed) };
    let accept = async {
        let _memory = inbound.memory(tls::HANDSHAKE_BYTES).await;
        Ok(tls::accept(keys, stream).await)
    };
    shared.in_handshake.store(true, Relaxed);
    let accepted = tokio::select! {
        accepted = shared.step(Stall::Read, inbound.handshake_max(), accept) => accepted,
        () = shared.ended.cancelled() => return Err(Ended::Closed),
    };
    shared.in_handshake.store(false, Relaxed);
    match accepted {
        Ok(Ok((stream, session))) => {
            tracing::debug!(peer = %shared.addr, transport = %session.transport, "TLS has begun");
            let _ = shared.tls.set(session);
            Ok(stream)
        }
        Ok(Err(why)) => Err(Ended::misbehaved(format!("failed the TLS handshake: {why}"))),
        Err(_) => Err(Ended::misbehaved("did not finish the TLS handshake in time")),
    }
}
