//! Reply payloads in a pipe. The kernel moves their pages from the pipe to the socket without a
//! copy.
//!
//! If the connection is not a socket, the server reads the payload from the pipe and writes it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use tokio::io::{AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// A pipe that holds the bytes of a payload.
pub trait Piped: fmt::Debug + Send + Sync {
    /// The read end of the pipe, which never blocks.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Number of bytes in the pipe.
    fn len(&self) -> usize;

    /// Whether the pipe is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The destination of replies.
pub(crate) trait Sink: AsyncWrite + Send + Unpin + 'static {
    /// The destination as a TCP socket, if it is one.
    fn socket(&self) -> Option<&TcpStream>;
}

impl Sink for OwnedWriteHalf {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

/// A destination that is not known to be a socket.
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

/// Sends slices to the socket and announces that more bytes follow.
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

/// Reads all bytes of a pipe.
pub(crate) fn read_all(piped: &dyn Piped) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(piped.len());
    while out.len() < piped.len() {
        if rustix::io::read(piped.fd(), rustix::buffer::spare_capacity(&mut out))? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(out)
}
