//! Clients of NQNFS, and the calls to them.
//!
//! The module knows nothing of leases. A client that sends HELLO is identified by its address and
//! the number that it chose, on all its connections. A client that sends no HELLO is identified by
//! its connection. The protocol has no other way to distinguish two clients at one address. If the
//! server confused them, one client could read data that the other has delayed. The server sends
//! evictions on the client's newest connection. The reply to an eviction does not matter: only
//! VACATED does, and the lease table repeats the eviction.

use crate::handle;
use hither_lease::ClientId;
use hither_proto::nqnfs::{EvictedArgs, Fh as WireFh, HelloArgs, NqProc, PROGRAM, VERSION};
use hither_proto::rpc::OpaqueAuth;
use hither_proto::xdr::Enc;
use hither_rpc::server::{CallBack, Peer};
use hither_vfs::Fh;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Ids of NQNFS clients begin with this number. Ids of NFSv4 clients are lower.
const FIRST: u32 = 1 << 31;
/// Number of ids.
const NUMBERS: u32 = 1 << 30;
/// Most clients, including disconnected ones that may still hold leases.
const CLIENTS_MAX: usize = 16_384;
/// Least time between two searches for clients to forget, while the table is full.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Timeout of an eviction: a client replies at once or not at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Whether a client uses NQNFS.
pub(crate) fn is_one(client: ClientId) -> bool {
    client.0 >= FIRST
}

/// A client.
struct One {
    /// The client's connections, newest last.
    peers: Vec<Arc<Peer>>,
    name: Option<(IpAddr, u64)>,
    /// The client takes long handles.
    long: bool,
    /// The time of the loss of the last connection.
    gone: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    all: HashMap<ClientId, One>,
    by_peer: HashMap<u64, ClientId>,
    by_name: HashMap<(IpAddr, u64), ClientId>,
    next: u32,
    most: usize,
    /// Time after which a client without connections can hold no lease any more.
    forgotten_after: Duration,
    /// Time of the last search for clients to forget in a full table.
    forgot: Option<Instant>,
}

/// All clients.
pub(crate) struct Clients {
    inner: Mutex<Inner>,
}

/// Numbers of clients.
pub(crate) struct ClientCounts {
    pub clients: usize,
    /// Of these, clients with a connection.
    pub connected: usize,
}

/// The client of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionClient {
    pub id: ClientId,
    /// The client takes long handles.
    pub long: bool,
    /// The client has sent HELLO, so its id is the same on all its connections.
    pub named: bool,
}

impl Clients {
    /// An empty table. Clients without a connection are forgotten after `forgotten_after`.
    pub fn new(forgotten_after: Duration) -> Self {
        Self { inner: Mutex::new(Inner { forgotten_after, most: CLIENTS_MAX, ..Inner::default() }) }
    }

    /// The client of a connection. `None` when there are too many clients or the connection has
    /// ended.
    pub fn of(&self, peer: &Arc<Peer>) -> Option<ConnectionClient> {
        let mut inner = self.inner.lock();
        let id = match inner.by_peer.get(&peer.id) {
            Some(id) => *id,
            None => inner.add(peer, None, false)?,
        };
        let one = inner.all.get(&id)?;
        Some(ConnectionClient { id, long: one.long, named: one.name.is_some() })
    }

    pub fn counts(&self) -> ClientCounts {
        let inner = self.inner.lock();
        let connected = inner.all.values().filter(|one| !one.peers.is_empty()).count();
        ClientCounts { clients: inner.all.len(), connected }
    }

    /// Handles HELLO on a connection. False when the connection belongs to another client, or there
    /// are too many clients.
    pub fn hello(&self, peer: &Arc<Peer>, args: &HelloArgs, long: bool) -> bool {
        let mut inner = self.inner.lock();
        let name = (peer.addr.ip(), args.client);
        if let Some(id) = inner.by_peer.get(&peer.id) {
            return inner.all.get(id).is_some_and(|one| one.name == Some(name));
        }
        let Some(id) = inner.by_name.get(&name).copied() else {
            return inner.add(peer, Some(name), long).is_some();
        };
        // No later event would remove a closed connection from the table.
        if peer.is_closed() {
            return false;
        }
        inner.by_peer.insert(peer.id, id);
        if let Some(one) = inner.all.get_mut(&id) {
            one.peers.push(peer.clone());
            (one.gone, one.long) = (None, long);
        }
        true
    }

    /// Handles the end of a connection.
    pub fn closed(&self, peer: &Peer) {
        let mut inner = self.inner.lock();
        let Some(id) = inner.by_peer.remove(&peer.id) else { return };
        if let Some(one) = inner.all.get_mut(&id) {
            one.peers.retain(|p| p.id != peer.id);
            one.gone = one.peers.is_empty().then(Instant::now);
        }
    }

    /// Forgets clients that have been disconnected for so long that they can hold no lease.
    pub fn forget(&self) {
        self.inner.lock().forget();
    }

    /// Sends an eviction: other clients want the file of this client's lease.
    pub fn evict(&self, client: ClientId, file: &(u32, Fh)) {
        let peer = {
            let inner = self.inner.lock();
            let one = inner.all.get(&client);
            one.and_then(|one| one.peers.iter().rev().find(|p| !p.is_closed()).cloned())
        };
        let fh = WireFh::pack(&handle::object(file.0, &file.1));
        let (Some(peer), Some(file)) = (peer, fh) else { return };
        let args = Enc::of(&EvictedArgs { file });
        let call = CallBack {
            prog: PROGRAM,
            vers: VERSION,
            proc: NqProc::EVICTED.0,
            cred: OpaqueAuth::none(),
            args,
        };
        tokio::spawn(async move {
            if let Err(e) = peer.call(call, ANSWER_WITHIN).await {
                tracing::debug!(?peer, "an eviction was not answered: {e}");
            }
        });
    }
}

#[cfg(test)]
impl Clients {
    /// Changes the most clients.
    pub fn set_most(&self, most: usize) {
        self.inner.lock().most = most;
    }

    /// All connections.
    pub fn peers(&self) -> Vec<Arc<Peer>> {
        self.inner.lock().all.values().flat_map(|one| one.peers.clone()).collect()
    }
}

impl Inner {
    fn forget(&mut self) {
        let Self { all, by_name, forgotten_after, .. } = self;
        all.retain(|_, one| {
            let keep = one.gone.is_none_or(|gone| gone.elapsed() < *forgotten_after);
            if let (false, Some(name)) = (keep, one.name) {
                by_name.remove(&name);
            }
            keep
        });
    }

    fn add(&mut self, peer: &Arc<Peer>, name: Option<(IpAddr, u64)>, long: bool) -> Option<ClientId> {
        // The last call of a connection may be answered after the connection's end. No later event
        // would remove the connection from the table.
        if peer.is_closed() {
            return None;
        }
        if self.all.len() >= self.most && self.forgot.is_none_or(|at| at.elapsed() >= FORGET_EVERY) {
            self.forgot = Some(Instant::now());
            self.forget();
        }
        if self.all.len() >= self.most {
            return None;
        }
        let id = loop {
            self.next = (self.next + 1) % NUMBERS;
            let id = ClientId(FIRST + self.next);
            if !self.all.contains_key(&id) {
                break id;
            }
        };
        self.all.insert(id, One { peers: vec![peer.clone()], name, long, gone: None });
        self.by_peer.insert(peer.id, id);
        if let Some(name) = name {
            self.by_name.insert(name, id);
        }
        Some(id)
    }
}
