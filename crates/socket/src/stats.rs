//! The counters of the socket.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the start of the mount.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub connections: AtomicU64,
    pub connected: AtomicU64,
    pub refused: AtomicU64,
    pub malformed: AtomicU64,
    pub requests: AtomicU64,
    pub files_open: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub pieces: AtomicU64,
    pub pieces_together: AtomicU64,
    pub pieces_held: AtomicU64,
}

/// Counters of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SocketStats {
    /// Connections since the start of the mount.
    pub connections: u64,
    /// Current connections.
    pub connected: u64,
    /// Refused connections beyond the limit.
    pub refused: u64,
    /// Connections that ended with a malformed message.
    pub malformed: u64,
    /// Requests.
    pub requests: u64,
    /// Current open files.
    pub files_open: u64,
    /// Bytes read by programs.
    pub read_bytes: u64,
    /// Bytes written by programs.
    pub written_bytes: u64,
    /// Ranges of files in requests for many files.
    pub pieces: u64,
    /// The part of `pieces` that was read from the server together with other files.
    pub pieces_together: u64,
    /// The part of `pieces` that was answered from the cache.
    pub pieces_held: u64,
}

impl Stats {
    pub fn snapshot(&self) -> SocketStats {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        SocketStats {
            connections: of(&self.connections),
            connected: of(&self.connected),
            refused: of(&self.refused),
            malformed: of(&self.malformed),
            requests: of(&self.requests),
            files_open: of(&self.files_open),
            read_bytes: of(&self.read_bytes),
            written_bytes: of(&self.written_bytes),
            pieces: of(&self.pieces),
            pieces_together: of(&self.pieces_together),
            pieces_held: of(&self.pieces_held),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
