//! The counters of the socket.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the mount began.
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

/// The programs' calls on the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SocketStats {
    /// Connections so far.
    pub connections: u64,
    /// Connections now.
    pub connected: u64,
    /// Connections that were too many.
    pub refused: u64,
    /// Connections that ended because of something malformed.
    pub malformed: u64,
    /// Requests.
    pub requests: u64,
    /// Open files now.
    pub files_open: u64,
    /// Bytes given to programs.
    pub read_bytes: u64,
    /// Bytes taken from programs.
    pub written_bytes: u64,
    /// Parts of files that were asked for together with others.
    pub pieces: u64,
    /// Of these, asked of the server together with others.
    pub pieces_together: u64,
    /// Of these, answered from memory.
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
