//! The figures of a server's connections, for reports.
//!
//! Each connection counts in atomics of its own. When a connection ends, its counts are added to
//! those of the acceptor, so that no byte is lost.

use super::{Acceptor, Caller, Global, Transport};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// No user has been seen.
const NOBODY: u64 = u64::MAX;

/// The counts of one connection.
pub(super) struct Counts {
    since: Instant,
    calls: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Program and version of the last call.
    program: AtomicU64,
    /// The last user.
    uid: AtomicU64,
}

impl Counts {
    pub fn new() -> Self {
        Self {
            since: Instant::now(),
            calls: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            program: AtomicU64::new(0),
            uid: AtomicU64::new(NOBODY),
        }
    }

    pub fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn called(&self, (prog, vers): (u32, u32), caller: &Caller) {
        self.calls.fetch_add(1, Relaxed);
        self.program.store(u64::from(prog) << 32 | u64::from(vers), Relaxed);
        let uid = match caller {
            Caller::Sys(sys) => Some(sys.uid),
            Caller::Gss(gss) => gss.ids.as_ref().map(|ids| ids.uid),
            Caller::Nobody => None,
        };
        if let Some(uid) = uid {
            self.uid.store(uid.into(), Relaxed);
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            calls: self.calls.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
        }
    }
}

/// The counts of ended connections.
#[derive(Default)]
pub(super) struct Ended {
    totals: Mutex<Totals>,
    accepted: AtomicU64,
    dropped: AtomicU64,
}

impl Ended {
    pub fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub fn dropped(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    calls: u64,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Totals {
    fn add(&mut self, more: Self) {
        self.calls += more.calls;
        self.received_bytes += more.received_bytes;
        self.sent_bytes += more.sent_bytes;
    }
}

/// The figures of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionFigures {
    /// [`super::Peer::id`] before TLS began.
    pub id: u64,
    /// The client's address and port.
    pub addr: SocketAddr,
    /// The server's address and port.
    pub local: SocketAddr,
    /// Its protection.
    pub transport: Transport,
    /// The age of the connection.
    pub age: Duration,
    /// The time since the last message of the client.
    pub idle: Duration,
    /// Program and version of the last call. `None` before the first call.
    pub program: Option<(u32, u32)>,
    /// The user of the last call with AUTH_SYS.
    pub uid: Option<u32>,
    /// Calls that were handed to the service.
    pub calls: u64,
    /// Bytes read, with record marks.
    pub received_bytes: u64,
    /// Bytes written, with record marks.
    pub sent_bytes: u64,
    /// Bytes of replies that wait for the client.
    pub queued_bytes: usize,
    /// Memory of calls and replies.
    pub memory_bytes: usize,
}

/// The figures of an acceptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptorFigures {
    /// The present connections, oldest first.
    pub connections: Vec<ConnectionFigures>,
    /// Most connections.
    pub connections_max: usize,
    /// Connections since the start.
    pub accepted: u64,
    /// Connections that the server ended because of their client.
    pub dropped: u64,
    /// Calls of all connections since the start.
    pub calls: u64,
    /// Bytes read from all connections since the start.
    pub received_bytes: u64,
    /// Bytes written to all connections since the start.
    pub sent_bytes: u64,
    /// Memory of calls and replies.
    pub memory_bytes: usize,
    /// Most memory of calls and replies.
    pub memory_max_bytes: usize,
}

impl Acceptor {
    /// The present figures.
    pub fn figures(&self) -> AcceptorFigures {
        let global = &self.global;
        // A connection that ends meanwhile is counted once: its counts move under this lock.
        let peers = global.peers.lock();
        let mut totals = *global.ended.totals.lock();
        let mut connections: Vec<_> = peers.values().map(|shared| shared.figures(&mut totals)).collect();
        drop(peers);
        connections.sort_by_key(|connection| connection.id);
        AcceptorFigures {
            connections,
            connections_max: global.limits.connections_max,
            accepted: global.ended.accepted.load(Relaxed),
            dropped: global.ended.dropped.load(Relaxed),
            calls: totals.calls,
            received_bytes: totals.received_bytes,
            sent_bytes: totals.sent_bytes,
            memory_bytes: global.budget.used(),
            memory_max_bytes: global.budget.total(),
        }
    }
}

impl super::connection::Shared {
    fn figures(&self, all: &mut Totals) -> ConnectionFigures {
        let (now, totals) = (Instant::now(), self.counts.totals());
        all.add(totals);
        let program = self.counts.program.load(Relaxed);
        ConnectionFigures {
            id: self.id,
            addr: self.addr,
            local: self.local,
            transport: self.transport(),
            age: now.saturating_duration_since(self.counts.since),
            idle: now.saturating_duration_since(self.heard()),
            program: (program != 0).then_some(((program >> 32) as u32, program as u32)),
            uid: u32::try_from(self.counts.uid.load(Relaxed)).ok(),
            calls: totals.calls,
            received_bytes: totals.received_bytes,
            sent_bytes: totals.sent_bytes,
            queued_bytes: self.queued_bytes(),
            memory_bytes: self.account.used(),
        }
    }
}

impl Global {
    /// Removes an ended connection and keeps its counts.
    pub(super) fn forget(&self, id: u64) {
        let mut peers = self.peers.lock();
        if let Some(shared) = peers.remove(&id) {
            self.ended.totals.lock().add(shared.counts.totals());
        }
    }
}
