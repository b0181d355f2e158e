//! The orderly end of a connection ([`super::super::Acceptor::drain`]).
//!
//! The reader stops between two reads. When all calls are answered, the writer ends its direction,
//! so that the client closes the connection. Bytes that arrive until then are dropped. A close with
//! unread bytes would reset the connection, and the client would lose replies. The client repeats
//! unread calls on its next connection.

use super::{Ended, Inbound};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

/// Longest wait for the client's end of the connection.
const CLOSING_MAX: Duration = Duration::from_secs(1);
/// Size of the buffer for dropped bytes.
const UNREAD_BYTES: usize = 4096;

impl Inbound {
    /// Waits until all calls are answered and written, and then for the client's end of the
    /// connection.
    pub(super) async fn drain<R: AsyncRead + Unpin>(&self, mut stream: R) -> Ended {
        self.all_answered().await;
        self.shared.last_written.cancel();
        let mut unread = vec![0; UNREAD_BYTES];
        let rest = async { while stream.read(&mut unread).await.is_ok_and(|bytes| bytes > 0) {} };
        let _ = timeout(CLOSING_MAX, rest).await;
        Ended::Closed
    }

    /// Waits until no call is in progress and all replies are written.
    pub(super) async fn all_answered(&self) {
        let all = u32::try_from(self.calls_max()).unwrap_or(u32::MAX);
        let _ = self.calls.acquire_many(all).await;
    }
}
