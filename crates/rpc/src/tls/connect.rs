//! Connections through TLS: the probe, the handshake, and the encrypted streams.
//!
//! [`TlsConnect`] wraps another [`Connect`], so it knows no sockets. One time limit covers probe,
//! handshake and confirmation. The two halves of the encrypted stream share a lock, which is held
//! for one poll and never across a wait. A writer that waits for the peer therefore blocks no
//! reader.
//!
//! In TLS 1.3 the client finishes its handshake before the server has checked the client
//! certificate. After a server asked for one, the client makes a NULL call and waits for the reply.
//! A refusal is thus an error of the connection attempt, with its reason.

use super::HANDSHAKE_TIMEOUT;
use super::client::{ClientTls, TlsStart};
use super::error::{TlsError, is_closed};
use super::probe::{self, Program, REPLY_MAX_BYTES};
use crate::transport::{BoxFuture, Connect, Link, read_record};
use parking_lot::Mutex;
use rustls::HandshakeKind;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{
    AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Join, ReadBuf, ReadHalf, WriteHalf, join, split,
};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Bytes of one read from the inner stream: some TLS records of 16 KiB. rustls itself reads 4 KiB.
const READ_BYTES: usize = 64 << 10;

/// Both directions of the inner connection.
type Inner = Join<BufReader<Box<dyn AsyncRead + Send + Unpin>>, Box<dyn AsyncWrite + Send + Unpin>>;

/// Makes TLS connections to one server.
pub struct TlsConnect {
    inner: Arc<dyn Connect>,
    tls: Arc<ClientTls>,
    program: Program,
    confirms: bool,
    log: Mutex<Log>,
}

/// The state of the log about a server. The first attempts are the caller's to report.
#[derive(Debug, Default)]
struct Log {
    worked: bool,
    trouble: Option<String>,
}

impl TlsConnect {
    /// Wraps `inner`. `program` is the program that the connection will use.
    pub fn new(inner: Arc<dyn Connect>, tls: Arc<ClientTls>, program: Program) -> Self {
        Self { inner, tls, program, confirms: true, log: Mutex::default() }
    }

    /// Makes no NULL call after the handshake. For callers whose own first call must be the first
    /// of the connection, and who read its reply before they use the connection.
    pub fn without_confirmation(self) -> Self {
        Self { confirms: false, ..self }
    }

    async fn secure(&self, link: Link) -> io::Result<Link> {
        let Link { reader, writer, local } = link;
        let mut stream = join(BufReader::with_capacity(READ_BYTES, reader), writer);
        if self.tls.settings().start == TlsStart::Probe {
            self.probe(&mut stream).await?;
        }
        let has_certificate = self.tls.has_certificate();
        let requests = self.tls.certificate_requests();
        let connector = TlsConnector::from(self.tls.config().await);
        let stream = connector
            .connect(self.tls.server_name().clone(), stream)
            .await
            .map_err(|e| TlsError::from_stream(&e, has_certificate, "during the TLS handshake"))?;
        let session = stream.get_ref().1;
        let kind = session.handshake_kind();
        let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
        let (reader, writer) = split(stream);
        let mut reader = TlsReader { inner: reader, has_certificate };
        let mut writer = TlsWriter { inner: writer, unsent: false };
        // Another connection may have counted the request. Then the call is needless and harmless.
        let asked = self.tls.certificate_requests() != requests && kind != Some(HandshakeKind::Resumed);
        if asked && self.confirms {
            self.confirm(&mut reader, &mut writer).await?;
        }
        self.tls.record(kind, suite);
        Ok(Link { reader: Box::new(reader), writer: Box::new(writer), local })
    }

    /// Asks the server for TLS.
    async fn probe(&self, stream: &mut Inner) -> io::Result<()> {
        let xid = rand::random();
        let failed = |e| TlsError::from_stream(&e, false, "at the AUTH_TLS probe");
        stream.write_all(&self.program.probe(xid)).await.map_err(failed)?;
        stream.flush().await.map_err(failed)?;
        let reply = read_record(stream, REPLY_MAX_BYTES).await.map_err(|e| match e.kind() {
            io::ErrorKind::InvalidData => {
                TlsError::NotOffered("its answer to the AUTH_TLS probe is not RPC".to_owned())
            }
            _ => failed(e),
        })?;
        probe::judge(&reply, xid)?;
        match stream.reader().buffer() {
            [] => Ok(()),
            _ => Err(TlsError::Injected.into()),
        }
    }

    /// Makes a NULL call. Any reply shows that the server accepted the client.
    async fn confirm(&self, reader: &mut TlsReader, writer: &mut TlsWriter) -> io::Result<()> {
        let has_certificate = reader.has_certificate;
        let confirmation = self.program.confirmation(rand::random());
        let sent = match writer.write_all(&confirmation).await {
            Ok(()) => writer.flush().await,
            failed => failed,
        };
        // A server that refuses the client may close the connection before the call arrives. Its
        // alert, which has the reason, arrived before.
        let error = match (read_record(reader, REPLY_MAX_BYTES).await, sent) {
            (Ok(_), Ok(())) => return Ok(()),
            (Ok(_), Err(e)) | (Err(e), _) => e,
        };
        let during = "after the TLS handshake, in which it asked for a client certificate";
        Err(TlsError::from_stream(&error, has_certificate, during).into())
    }

    fn note(&self, result: &io::Result<Link>) {
        let mut log = self.log.lock();
        match result {
            Ok(_) => {
                log.worked = true;
                if log.trouble.take().is_some() {
                    tracing::info!("server {}: TLS works again", self.server());
                }
            }
            Err(e) if log.worked && TlsError::of(e).is_some() => {
                let trouble = e.to_string();
                if log.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!("server {}: {trouble}; trying again", self.server());
                    log.trouble = Some(trouble);
                }
            }
            Err(_) => {}
        }
    }
}

impl Connect for TlsConnect {
    fn connect(&self, previous: Option<SocketAddr>) -> BoxFuture<'_, io::Result<Link>> {
        Box::pin(async move {
            let link = self.inner.connect(previous).await?;
            let result = timeout(HANDSHAKE_TIMEOUT, self.secure(link)).await;
            let result = result.unwrap_or_else(|_| Err(TlsError::Silent.into()));
            self.note(&result);
            result
        })
    }

    fn server(&self) -> String {
        self.inner.server()
    }
}

/// The decrypted bytes from the server. Alerts become a [`TlsError`]. The end of the inner stream
/// without close_notify is an end as well: record marks show whether a message is whole.
struct TlsReader {
    inner: ReadHalf<TlsStream<Inner>>,
    has_certificate: bool,
}

impl AsyncRead for TlsReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.inner).poll_read(cx, buf));
        Poll::Ready(match result {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(e) if !is_closed(&e) => Err(TlsError::from_stream(&e, self.has_certificate, "").into()),
            other => other,
        })
    }
}

/// Encrypts bytes to the server. Its end sends close_notify (RFC 8446 section 6.1), unless bytes
/// wait: an unsent call must not be executed after its caller has gone.
struct TlsWriter {
    inner: WriteHalf<TlsStream<Inner>>,
    /// Whether bytes may wait since the last complete flush.
    unsent: bool,
}

impl AsyncWrite for TlsWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.unsent = true;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.unsent = true;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.unsent = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl Drop for TlsWriter {
    fn drop(&mut self) {
        if !self.unsent {
            // One attempt without waiting: the connection ends either way.
            let _ = Pin::new(&mut self.inner).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

#[cfg(test)]
mod tests;
