//! Payloads of replies that no code has read: they wait in a pipe and move from there to the
//! socket.
//!
//! The kernel moves pages and copies nothing. Where the connection is no socket, the bytes are read
//! out of the pipe and written.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// A pipe with bytes in it.
pub trait Piped: fmt::Debug + Send + Sync {
    /// The end to read from; never blocks.
    fn fd(&self) -> BorrowedFd<'_>;

    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where replies go.
pub(crate) trait Sink: AsyncWrite + Send + Unpin + 'static {
    /// The socket, if it is one.
    fn socket(&self) -> Option<&TcpStream>;
}

impl Sink for OwnedWriteHalf {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

/// A descriptor that is no socket, or not known to be one.
pub(crate) struct Other<W>(pub W);

impl<W: AsyncWrite + Send + Unpin + 'static> Sink for Other<W> {
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Other<W> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> std::task::Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Sends one piece, to be followed by `more`.
pub(crate) async fn send_more(socket: &TcpStream, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
    let send = || socket2::SockRef::from(socket).send_vectored_with_flags(slices, MSG_MORE);
    socket.async_io(Interest::WRITABLE, send).await
}

/// `MSG_MORE | MSG_NOSIGNAL | MSG_DONTWAIT` of send(2).
const MSG_MORE: i32 = 0x8000 | 0x4000 | 0x40;

/// Moves at most `len` bytes from the pipe to the socket.
pub(crate) async fn send_piped(socket: &TcpStream, piped: &dyn Piped, len: usize) -> io::Result<usize> {
    use rustix::pipe::{SpliceFlags, splice};
    let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
    let send = || match splice(piped.fd(), None, socket.as_fd(), None, len, flags) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(n) => Ok(n),
        Err(e) => Err(e.into()),
    };
    socket.async_io(Interest::WRITABLE, send).await
}

/// Reads all that is in a pipe.
pub(crate) fn read_all(piped: &dyn Piped) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(piped.len());
    while out.len() < piped.len() {
        if rustix::io::read(piped.fd(), rustix::buffer::spare_capacity(&mut out))? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(out)
}
