//! Clients of NQNFS, and the calls to them.
//!
//! It knows nothing of leases. A client that says HELLO is known by its address and the number that
//! it chose, on all its connections and on those that take their place. One that does not is its
//! connection: the protocol has nothing else by which two clients at one address could be told
//! apart, and one taken for the other would read what the other has delayed. Evictions go out on
//! the client's newest connection; what comes back does not matter, only Vacated does, and the
//! lease table asks again.

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

/// Numbers of these clients begin here; those of NFSv4 are below.
const FIRST: u32 = 1 << 31;
/// How many numbers there are.
const NUMBERS: u32 = 1 << 30;
/// Most clients, those that have gone and may hold leases included.
const CLIENTS_MAX: usize = 16_384;
/// When there are too many, those that may be forgotten are looked for so often.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// An eviction is answered at once, if at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Whether a client speaks NQNFS.
pub(crate) fn is_one(client: ClientId) -> bool {
    client.0 >= FIRST
}

/// One client.
struct One {
    /// Its connections, newest last.
    peers: Vec<Arc<Peer>>,
    name: Option<(IpAddr, u64)>,
    /// It takes long handles.
    long: bool,
    /// Since when it has no connection.
    gone: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    all: HashMap<ClientId, One>,
    by_peer: HashMap<u64, ClientId>,
    by_name: HashMap<(IpAddr, u64), ClientId>,
    next: u32,
    most: usize,
    /// After so long whatever a client without connections held has ended.
    forgotten_after: Duration,
    /// When clients were forgotten last because there were too many.
    forgot: Option<Instant>,
}

/// All clients.
pub(crate) struct Clients {
    inner: Mutex<Inner>,
}

/// Whose a connection is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub id: ClientId,
    /// It takes long handles.
    pub long: bool,
    /// It has said who it is, and is the same on other connections.
    pub named: bool,
}

impl Clients {
    /// None. Those that have been without a connection for `forgotten_after` are forgotten.
    pub fn new(forgotten_after: Duration) -> Self {
        Self { inner: Mutex::new(Inner { forgotten_after, most: CLIENTS_MAX, ..Inner::default() }) }
    }

    /// Whose connection this is; nobody's when there are too many clients or it has ended.
    pub fn of(&self, peer: &Arc<Peer>) -> Option<Known> {
        let mut inner = self.inner.lock();
        let id = match inner.by_peer.get(&peer.id) {
            Some(id) => *id,
            None => inner.add(peer, None, false)?,
        };
        let one = inner.all.get(&id)?;
        Some(Known { id, long: one.long, named: one.name.is_some() })
    }

    /// A connection says whose it is. False when it is somebody's already, or there are too many
    /// clients.
    pub fn hello(&self, peer: &Arc<Peer>, args: &HelloArgs, long: bool) -> bool {
        let mut inner = self.inner.lock();
        let name = (peer.addr.ip(), args.client);
        if let Some(id) = inner.by_peer.get(&peer.id) {
            return inner.all.get(id).is_some_and(|one| one.name == Some(name));
        }
        let Some(id) = inner.by_name.get(&name).copied() else {
            return inner.add(peer, Some(name), long).is_some();
        };
        // Nobody would take it away again.
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

    /// A connection has ended.
    pub fn closed(&self, peer: &Peer) {
        let mut inner = self.inner.lock();
        let Some(id) = inner.by_peer.remove(&peer.id) else { return };
        if let Some(one) = inner.all.get_mut(&id) {
            one.peers.retain(|p| p.id != peer.id);
            one.gone = one.peers.is_empty().then(Instant::now);
        }
    }

    /// Forgets those who have been gone for so long that whatever they held has ended.
    pub fn forget(&self) {
        self.inner.lock().forget();
    }

    /// Tells a client that its lease on a file is wanted by others.
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
    /// Changes how many there may be.
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
        // The last call of a connection may be answered after its end, and nobody would take it
        // away again.
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
