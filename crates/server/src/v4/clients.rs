//! Clients of NFSv4: who they are, their sessions, and how long they have been silent (RFC 8881
//! sections 2.4, 8.3, 18.35, 18.36).
//!
//! It knows nothing of files. A client introduces itself with a name and a verifier that changes
//! when it restarts; it is confirmed by its first session. A confirmed client that is silent for
//! longer than its lease keeps what it holds out of courtesy, until somebody else wants it, or a
//! day has passed, or room is needed.

use super::session::{Back, Session};
use super::state::State;
use bytes::Bytes;
use hither_proto::nfs4::{ChannelAttrs, Clientid, CreateSessionOk, Nfsstat4, Sessionid, Verifier};
use hither_rpc::server::{Pace, Peer};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Most sessions of a client; one with many connections still has one.
const SESSIONS_MAX: usize = 64;
/// One address may have this part of all clients.
const HOST_PART: usize = 4;
/// How often the log hears that there are too many clients.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Who a client is to the server: the flavor and user of its EXCHANGE_ID.
pub(crate) type Principal = Option<u32>;

/// A client in one of its lives.
pub(crate) struct Client {
    pub id: Clientid,
    /// Its own name.
    pub owner: Bytes,
    /// Where it introduced itself from.
    pub host: IpAddr,
    pub verifier: Verifier,
    pub principal: Principal,
    pub confirmed: AtomicBool,
    /// It may take back what it held before the server restarted.
    pub may_reclaim: bool,
    /// It has said that there is nothing more to take back.
    pub reclaim_done: AtomicBool,
    /// Nothing of it counts any more.
    pub gone: AtomicBool,
    /// When it was heard last, in milliseconds since the server began.
    heard_ms: AtomicU64,
    /// CREATE_SESSION is executed once, too: its last sequence number and answer.
    pub creation: tokio::sync::Mutex<Creation>,
    sessions: Mutex<HashMap<Sessionid, Arc<Session>>>,
    /// What it holds.
    pub states: Mutex<HashMap<[u8; 12], State>>,
    /// Delegations that it holds.
    pub delegations: AtomicUsize,
    /// Delegations that it has lost and has not said so yet.
    pub revoked: AtomicUsize,
}

/// The last CREATE_SESSION of a client.
#[derive(Default)]
pub(crate) struct Creation {
    pub sequence: u32,
    pub answer: Option<Result<CreateSessionOk, Nfsstat4>>,
}

impl Client {
    pub fn heard(&self, at: Moment) {
        self.heard_ms.store(at.0, Relaxed);
    }

    /// How long nothing of it has been read.
    fn unheard(&self, now: Moment) -> Duration {
        Duration::from_millis(now.0.saturating_sub(self.heard_ms.load(Relaxed)))
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    pub fn holds_anything(&self) -> bool {
        !self.states.lock().is_empty()
    }

    pub fn state_count(&self) -> usize {
        self.states.lock().len()
    }
}

/// Milliseconds since the server began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub u64);

/// All clients and sessions.
pub(crate) struct Clients {
    began: Instant,
    /// Distinguishes the client numbers of this run from those of others.
    boot: u32,
    inner: Mutex<Inner>,
    sessions: Mutex<HashMap<Sessionid, Arc<Session>>>,
    /// Calls may wait, and with them what a client says to be heard.
    pace: Option<Arc<Pace>>,
}

#[derive(Default)]
struct Inner {
    /// When the log last heard that there are too many.
    told: Option<Instant>,
    by_id: HashMap<Clientid, Arc<Client>>,
    by_owner: HashMap<Bytes, Lives>,
    next: u32,
    next_session: u32,
}

/// The lives of a client that matter: the confirmed one, and one that has only introduced itself.
#[derive(Default, Clone)]
struct Lives {
    confirmed: Option<Arc<Client>>,
    introduced: Option<Arc<Client>>,
}

/// A client that introduces itself.
pub(crate) struct Introduction {
    pub owner: Bytes,
    pub host: IpAddr,
    pub verifier: Verifier,
    pub principal: Principal,
    /// It says that it is confirmed already.
    pub update: bool,
    pub may_reclaim: bool,
}

impl Clients {
    pub fn new(boot: u32, pace: Option<Arc<Pace>>) -> Self {
        Self { began: Instant::now(), boot, inner: Mutex::default(), sessions: Mutex::default(), pace }
    }

    /// How long a client has been silent. Nobody is while calls wait.
    pub fn silent(&self, client: &Client) -> Duration {
        let held_up = self.pace.as_ref().map_or(Duration::MAX, |pace| pace.since_held_up());
        client.unheard(self.now()).min(held_up)
    }

    pub fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_millis() as u64)
    }

    pub fn count(&self) -> usize {
        self.inner.lock().by_id.len()
    }

    pub fn all(&self) -> Vec<Arc<Client>> {
        self.inner.lock().by_id.values().cloned().collect()
    }

    pub fn by_id(&self, id: Clientid) -> Option<Arc<Client>> {
        self.inner.lock().by_id.get(&id).cloned()
    }

    pub fn session(&self, id: &Sessionid) -> Option<Arc<Session>> {
        self.sessions.lock().get(id).cloned()
    }

    /// The confirmed client of another principal whose name an EXCHANGE_ID uses, which has to end
    /// first (RFC 8881 section 18.35.4, item 3).
    ///
    /// # Errors
    /// That client lives: it has state or a session, and was heard of within its `lease`.
    pub fn collision(&self, who: &Introduction, lease: Duration) -> Result<Option<Arc<Client>>, Nfsstat4> {
        let confirmed = self.inner.lock().by_owner.get(&who.owner).and_then(|lives| lives.confirmed.clone());
        let other = confirmed.filter(|c| c.principal != who.principal && !who.update);
        let Some(client) = other else { return Ok(None) };
        let has_state = client.holds_anything() || !client.sessions.lock().is_empty();
        match has_state && self.silent(&client) <= lease {
            true => Err(Nfsstat4::CLID_INUSE),
            false => Ok(Some(client)),
        }
    }

    /// Makes room for one more client of an address, among `max` of all. At the limit of the
    /// address, or of all, the oldest client goes that holds nothing and has made no session, else
    /// the one that is silent longest beyond its lease. A client that is known already needs no
    /// room.
    pub fn make_room(&self, who: &Introduction, max: usize, lease: Duration) -> Result<(), Nfsstat4> {
        let host = who.host;
        let gone = {
            let inner = &mut *self.inner.lock();
            let share = (max / HOST_PART).max(1);
            if inner.by_id.len() < share || inner.by_owner.contains_key(&who.owner) {
                return Ok(());
            }
            let of_host = inner.by_id.values().filter(|client| client.host == host).count();
            if of_host < share && inner.by_id.len() < max {
                return Ok(());
            }
            let may_go = |client: &&Arc<Client>| {
                let is_of_host = of_host < share || client.host == host;
                let is_idle = !client.confirmed.load(Relaxed) || self.silent(client) > lease;
                is_of_host && is_idle && !client.holds_anything()
            };
            let oldest = |client: &&Arc<Client>| {
                (client.confirmed.load(Relaxed), client.heard_ms.load(Relaxed), client.id)
            };
            let gone = inner.by_id.values().filter(may_go).min_by_key(oldest).cloned();
            let now = Instant::now();
            if inner.told.is_none_or(|told| now - told >= TOLD_EVERY) {
                inner.told = Some(now);
                tracing::warn!(
                    "{host} has {of_host} of {} NFSv4 clients, the limit is {max} and {share} of an address: {}",
                    inner.by_id.len(),
                    if gone.is_some() { "the oldest without a session goes" } else { "it has to wait" }
                );
            }
            gone
        };
        gone.map(|client| self.remove(&client)).ok_or(Nfsstat4::DELAY)
    }

    /// EXCHANGE_ID (RFC 8881 section 18.35.4) of a client that collides with no other.
    pub fn introduce(&self, who: Introduction) -> Result<Arc<Client>, Nfsstat4> {
        let now = self.now();
        let mut inner = self.inner.lock();
        let lives = inner.by_owner.get(&who.owner).cloned().unwrap_or_default();
        if let Some(client) = &lives.confirmed {
            let same = client.principal == who.principal;
            match (who.update, client.verifier == who.verifier, same) {
                (true, false, _) => return Err(Nfsstat4::NOT_SAME),
                (true, true, false) => return Err(Nfsstat4::PERM),
                (_, true, true) => {
                    client.heard(now);
                    return Ok(client.clone());
                }
                (false, _, false) => return Err(Nfsstat4::CLID_INUSE),
                (false, false, true) => {}
            }
        } else if who.update {
            return Err(Nfsstat4::NOENT);
        }
        if let Some(old) = lives.introduced {
            inner.by_id.remove(&old.id);
        }
        inner.next += 1;
        let client = Arc::new(Client {
            id: u64::from(self.boot) << 32 | u64::from(inner.next),
            owner: who.owner.clone(),
            host: who.host,
            verifier: who.verifier,
            principal: who.principal,
            confirmed: AtomicBool::new(false),
            may_reclaim: who.may_reclaim,
            reclaim_done: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            heard_ms: AtomicU64::new(now.0),
            creation: Default::default(),
            sessions: Mutex::default(),
            states: Mutex::default(),
            delegations: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
        });
        inner.by_id.insert(client.id, client.clone());
        inner.by_owner.entry(who.owner).or_default().introduced = Some(client.clone());
        Ok(client)
    }

    /// Confirms a client that makes its first session; returns its former life, whose state ends.
    pub fn confirm(&self, client: &Arc<Client>) -> Option<Arc<Client>> {
        let mut inner = self.inner.lock();
        if client.confirmed.swap(true, Relaxed) {
            return None;
        }
        let lives = inner.by_owner.entry(client.owner.clone()).or_default();
        if lives.introduced.as_ref().is_some_and(|c| c.id == client.id) {
            lives.introduced = None;
        }
        let former = lives.confirmed.replace(client.clone());
        if let Some(former) = &former {
            inner.by_id.remove(&former.id);
        }
        former
    }

    /// Makes a session of a confirmed client.
    pub fn add_session(
        &self,
        client: &Arc<Client>,
        fore: ChannelAttrs,
        back: Back,
        random: u32,
    ) -> Result<Arc<Session>, Nfsstat4> {
        if client.sessions.lock().len() >= SESSIONS_MAX {
            return Err(Nfsstat4::NOSPC);
        }
        let number = {
            let mut inner = self.inner.lock();
            inner.next_session = inner.next_session.wrapping_add(1);
            inner.next_session
        };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&client.id.to_be_bytes());
        id[8..12].copy_from_slice(&number.to_be_bytes());
        id[12..].copy_from_slice(&random.to_be_bytes());
        let session = Arc::new(Session::new(id, client, fore, back));
        client.sessions.lock().insert(id, session.clone());
        self.sessions.lock().insert(id, session.clone());
        Ok(session)
    }

    /// Ends a session.
    pub fn remove_session(&self, id: &Sessionid) -> Option<Arc<Session>> {
        let session = self.sessions.lock().remove(id)?;
        if let Some(client) = session.client.upgrade() {
            client.sessions.lock().remove(id);
        }
        Some(session)
    }

    /// Forgets a client and its sessions. Its state is ended by whoever calls.
    pub fn remove(&self, client: &Arc<Client>) {
        client.gone.store(true, Relaxed);
        let sessions: Vec<Sessionid> = client.sessions.lock().drain().map(|(id, _)| id).collect();
        {
            let mut all = self.sessions.lock();
            sessions.iter().for_each(|id| drop(all.remove(id)));
        }
        let mut inner = self.inner.lock();
        inner.by_id.remove(&client.id);
        if let Some(lives) = inner.by_owner.get_mut(&client.owner) {
            let is_it = |c: &Option<Arc<Client>>| c.as_ref().is_some_and(|c| c.id == client.id);
            if is_it(&lives.confirmed) {
                lives.confirmed = None;
            }
            if is_it(&lives.introduced) {
                lives.introduced = None;
            }
            if lives.confirmed.is_none() && lives.introduced.is_none() {
                inner.by_owner.remove(&client.owner);
            }
        }
    }

    /// A connection has ended: no calls go back on it.
    pub fn closed(&self, peer: &Peer) {
        // Only sessions whose way back it was remember it; there are as many sessions as clients.
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        for session in sessions {
            let mut back = session.back.lock();
            if back.peer.as_ref().is_some_and(|p| p.id == peer.id) {
                back.peer = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_proto::rpc::OpaqueAuth;

    const LEASE: Duration = Duration::from_secs(90);

    fn who(verifier: u8, principal: u32, update: bool) -> Introduction {
        Introduction {
            owner: Bytes::from_static(b"client"),
            host: IpAddr::from([192, 0, 2, 1]),
            verifier: [verifier; 8],
            principal: Some(principal),
            update,
            may_reclaim: false,
        }
    }

    /// The cases of RFC 8881 section 18.35.4.
    #[tokio::test]
    async fn introductions() {
        let clients = Clients::new(1, None);
        let introduce = |w: Introduction| clients.introduce(w);
        assert_eq!(introduce(who(1, 0, true)).err(), Some(Nfsstat4::NOENT));
        let first = introduce(who(1, 0, false)).unwrap();
        let again = introduce(who(1, 0, false)).unwrap();
        assert_ne!(first.id, again.id, "an unconfirmed life is replaced");
        assert!(clients.by_id(first.id).is_none());
        assert!(clients.confirm(&again).is_none());
        assert_eq!(introduce(who(1, 0, false)).unwrap().id, again.id);
        assert_eq!(introduce(who(1, 0, true)).unwrap().id, again.id);
        assert_eq!(introduce(who(2, 0, true)).err(), Some(Nfsstat4::NOT_SAME));
        assert_eq!(introduce(who(1, 9, true)).err(), Some(Nfsstat4::PERM));
        let restarted = introduce(who(2, 0, false)).unwrap();
        assert!(clients.by_id(again.id).is_some(), "the old life lasts until the new one is confirmed");
        assert_eq!(clients.confirm(&restarted).map(|c| c.id), Some(again.id));
        assert!(clients.by_id(again.id).is_none());
        clients.remove(&restarted);
        assert_eq!(clients.count(), 0);
    }

    /// Whoever uses the name of a client of another principal waits while that client has a session
    /// and is heard of.
    #[tokio::test(start_paused = true)]
    async fn collisions() {
        let clients = Clients::new(1, None);
        let first = clients.introduce(who(1, 0, false)).unwrap();
        clients.confirm(&first);
        assert!(clients.collision(&who(2, 0, false), LEASE).unwrap().is_none(), "a restart is none");
        assert!(clients.collision(&who(1, 9, true), LEASE).unwrap().is_none(), "nor is an update");
        let found = clients.collision(&who(1, 9, false), LEASE).unwrap();
        assert_eq!(found.map(|c| c.id), Some(first.id), "it has no state");
        let back = Back { prog: 0, cred: OpaqueAuth::none(), wanted: false, peer: None, proven: None };
        clients.add_session(&first, ChannelAttrs::default(), back, 7).unwrap();
        assert_eq!(clients.collision(&who(1, 9, false), LEASE).err(), Some(Nfsstat4::CLID_INUSE));
        assert_eq!(clients.introduce(who(1, 9, false)).err(), Some(Nfsstat4::CLID_INUSE));
        tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        let found = clients.collision(&who(1, 9, false), LEASE).unwrap().unwrap();
        clients.remove(&found);
        assert!(clients.introduce(who(1, 9, false)).is_ok());
        assert!(clients.by_id(first.id).is_none());
    }

    /// An address that introduces clients without end fills its own part only, and those go first
    /// that made no session.
    /// Promise: S7
    #[tokio::test(start_paused = true)]
    async fn one_address_does_not_fill_the_table() {
        const MAX: usize = 64;
        let clients = Clients::new(1, None);
        let come = |host: u8, n: u32| {
            let host = IpAddr::from([192, 0, 2, host]);
            let owner = format!("{host} {n}").into();
            let who = Introduction { owner, host, ..who(1, 0, false) };
            clients.make_room(&who, MAX, LEASE)?;
            clients.introduce(who)
        };
        let own = come(1, 0).unwrap();
        clients.confirm(&own);
        for n in 1..1000 {
            come(1, n).unwrap();
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(clients.count(), MAX / HOST_PART);
        assert_eq!(come(1, 0).unwrap().id, own.id, "a known client needs no room");
        // Many addresses fill the table: of all of them the oldest goes.
        for host in 2..=64 {
            let client = come(host, 0).unwrap();
            assert!(clients.count() <= MAX);
            clients.confirm(&client);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(clients.count(), MAX);
        assert_eq!(come(200, 0).err(), Some(Nfsstat4::DELAY), "all of them have sessions and are heard");
        tokio::time::advance(LEASE * 2).await;
        come(200, 0).unwrap();
        assert!(clients.by_id(own.id).is_none(), "it is silent longest");
    }
}
