//! Clients of NFSv4: their identity, their sessions, and the time of their last call (RFC 8881
//! sections 2.4, 8.3, 18.35, 18.36).
//!
//! The module knows nothing of files. A client introduces itself by EXCHANGE_ID with a name and a
//! verifier that changes when the client restarts. Its first session confirms it. A confirmed
//! client that is silent beyond its lease keeps its state as a courtesy. The state ends when
//! another client wants it, when a day has passed, or when room is needed.

use super::session::{Back, Session};
use super::state::State;
use crate::figures::Traffic;
use bytes::Bytes;
use hither_proto::nfs4::{ChannelAttrs, Clientid, CreateSessionOk, Nfsstat4, Sessionid, Verifier};
use hither_rpc::server::{Pace, Peer, Transport};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

/// Most sessions of a client. A client with many connections still has one session.
const SESSIONS_MAX: usize = 64;
/// One address may have at most this fraction of all clients: one in `HOST_PART`.
const HOST_PART: usize = 4;
/// Least time between two log messages about too many clients.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Between the name of a client and its transport in [`Client::owner`].
const VIA: &[u8] = b"\0via ";

/// The user of a client: that of its EXCHANGE_ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Principal {
    /// Without an identity.
    Nobody,
    /// A number that the client names.
    Uid(u32),
    /// An authenticated name.
    Kerberos(Arc<str>),
}

impl Principal {
    /// The number, if the client names one.
    pub fn uid(&self) -> Option<u32> {
        match self {
            Self::Uid(uid) => Some(*uid),
            Self::Nobody | Self::Kerberos(_) => None,
        }
    }
}

/// The name of a client among those of all transports and Kerberos principals ([`Client::owner`]).
/// Different names, transports or principals give different results. A client that claims the name
/// of another with a weaker proof is therefore another client, also after a restart. On plain
/// connections without Kerberos it is the client's own name.
pub(crate) fn owner_via(name: &[u8], transport: &Transport, principal: &Principal) -> Bytes {
    let has_mark = name.windows(VIA.len()).any(|part| part == VIA);
    let transport_name = transport.to_string();
    match (transport, principal) {
        (_, Principal::Kerberos(principal)) => {
            [name, VIA, b"krb5 ", principal.as_bytes(), b"\0", transport_name.as_bytes()].concat().into()
        }
        (Transport::Plain, _) if !has_mark => Bytes::copy_from_slice(name),
        _ => [name, VIA, transport_name.as_bytes()].concat().into(),
    }
}

/// The name in a result of [`owner_via`].
pub(crate) fn own_name(owner: &Bytes) -> Bytes {
    let mark = owner.windows(VIA.len()).rposition(|part| part == VIA);
    mark.map_or_else(|| owner.clone(), |at| owner.slice(..at))
}

/// One instance of a client. A restarted client is a new instance.
pub(crate) struct Client {
    pub id: Clientid,
    /// The name that the client gave itself, with its transport ([`owner_via`]).
    pub owner: Bytes,
    /// The transport of its EXCHANGE_ID. Its sessions work on no other.
    pub transport: Transport,
    /// The address from which the client sent EXCHANGE_ID.
    pub host: IpAddr,
    pub verifier: Verifier,
    pub principal: Principal,
    pub confirmed: AtomicBool,
    /// The client may reclaim its state from before the server's restart.
    pub may_reclaim: bool,
    /// The client has sent RECLAIM_COMPLETE.
    pub reclaim_done: AtomicBool,
    /// The client has been removed.
    pub gone: AtomicBool,
    /// Time of the client's last call, in milliseconds since the server began.
    heard_ms: AtomicU64,
    /// Number of calls of its sessions in progress. A client cannot renew its lease while they fill
    /// its slots.
    pub running: AtomicUsize,
    /// Sequence number and answer of the last CREATE_SESSION, which is also executed only once.
    pub creation: tokio::sync::Mutex<Creation>,
    sessions: Mutex<HashMap<Sessionid, Arc<Session>>>,
    /// The client's opens, locks and delegations.
    pub states: Mutex<HashMap<[u8; 12], State>>,
    /// Number of the client's delegations.
    pub delegations: AtomicUsize,
    /// Number of revoked delegations that the client has not freed.
    pub revoked: AtomicUsize,
    pub traffic: Traffic,
}

/// The last CREATE_SESSION of a client.
#[derive(Default)]
pub(crate) struct Creation {
    pub sequence: u32,
    pub answer: Option<Result<CreateSessionOk, Nfsstat4>>,
}

/// Numbers of a client's states.
#[derive(Debug, Clone, Copy, Default)]
pub struct StateCounts {
    pub opens: usize,
    /// Owners of locks in a file.
    pub locks: usize,
    pub delegations: usize,
}

impl Client {
    pub fn heard(&self, at: Moment) {
        self.heard_ms.store(at.0, Relaxed);
    }

    /// The time since the last call of the client, zero during a call.
    fn unheard(&self, now: Moment) -> Duration {
        if self.running.load(SeqCst) > 0 {
            return Duration::ZERO;
        }
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

    /// The present numbers of states.
    pub fn state_counts(&self) -> StateCounts {
        let states = self.states.lock();
        let mut counts = StateCounts::default();
        for state in states.values() {
            match state {
                State::Open(_) => counts.opens += 1,
                State::Locks(_) => counts.locks += 1,
                State::Delegation(_) => counts.delegations += 1,
            }
        }
        counts
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
    /// Distinguishes the client ids of this run from those of other runs.
    boot: u32,
    inner: Mutex<Inner>,
    sessions: Mutex<HashMap<Sessionid, Arc<Session>>>,
    /// Limits the rate of calls. While calls wait, a silent client may have sent a call that is not
    /// read yet.
    pace: Option<Arc<Pace>>,
}

#[derive(Default)]
struct Inner {
    /// Time of the last log message about too many clients.
    told: Option<Instant>,
    by_id: HashMap<Clientid, Arc<Client>>,
    by_owner: HashMap<Bytes, Lives>,
    next: u32,
    next_session: u32,
}

/// The current instances of a client: the confirmed one, and one that has sent only EXCHANGE_ID.
#[derive(Default, Clone)]
struct Lives {
    confirmed: Option<Arc<Client>>,
    introduced: Option<Arc<Client>>,
}

/// The arguments of EXCHANGE_ID.
pub(crate) struct Introduction {
    /// [`Client::owner`].
    pub owner: Bytes,
    pub transport: Transport,
    pub host: IpAddr,
    pub verifier: Verifier,
    pub principal: Principal,
    /// The client claims that it is confirmed.
    pub update: bool,
    pub may_reclaim: bool,
}

impl Clients {
    pub fn new(boot: u32, pace: Option<Arc<Pace>>) -> Self {
        Self { began: Instant::now(), boot, inner: Mutex::default(), sessions: Mutex::default(), pace }
    }

    /// For how long a client has been silent. While calls wait, no client counts as silent.
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

    /// The confirmed client of another principal with the name in an EXCHANGE_ID. The caller must
    /// end it first (RFC 8881 section 18.35.4, item 3).
    ///
    /// # Errors
    /// `CLID_INUSE`: that client has state or a session, and called within its `lease`.
    pub fn collision(&self, who: &Introduction, lease: Duration) -> Result<Option<Arc<Client>>, Nfsstat4> {
        let confirmed = self.inner.lock().by_owner.get(&who.owner).and_then(|lives| lives.confirmed.clone());
        let other = confirmed.filter(|c| c.principal != who.principal && !who.update);
        let Some(client) = other else { return Ok(None) };
        let has_state = client.holds_anything() || !client.sessions.lock().is_empty();
        if has_state && self.silent(&client) <= lease { Err(Nfsstat4::CLID_INUSE) } else { Ok(Some(client)) }
    }

    /// Makes room for one more client of an address, among `max` clients in total. At the limit of
    /// the address or of the total, one client without state is removed. The first choice is the
    /// oldest client without a session. The second choice is the client that is silent longest
    /// beyond its lease. A client that is already in the table needs no room.
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
                    "{host} has {of_host} of {} NFSv4 clients; the limits are {max} clients and {share} from one address: {}",
                    inner.by_id.len(),
                    if gone.is_some() { "an idle client is removed" } else { "the new client has to wait" }
                );
            }
            gone
        };
        gone.map(|client| self.remove(&client)).ok_or(Nfsstat4::DELAY)
    }

    /// EXCHANGE_ID (RFC 8881 section 18.35.4) of a client without a collision.
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
            transport: who.transport,
            host: who.host,
            verifier: who.verifier,
            principal: who.principal,
            confirmed: AtomicBool::new(false),
            may_reclaim: who.may_reclaim,
            reclaim_done: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            heard_ms: AtomicU64::new(now.0),
            running: AtomicUsize::new(0),
            creation: Default::default(),
            sessions: Mutex::default(),
            states: Mutex::default(),
            delegations: AtomicUsize::new(0),
            revoked: AtomicUsize::new(0),
            traffic: Traffic::default(),
        });
        inner.by_id.insert(client.id, client.clone());
        inner.by_owner.entry(who.owner).or_default().introduced = Some(client.clone());
        Ok(client)
    }

    /// Confirms a client at its first session. Returns its earlier instance, whose state the caller
    /// must end.
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

    /// Creates a session of a confirmed client.
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

    /// Removes a client and its sessions. The caller ends the client's state.
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

    /// Handles the end of a connection: it carries no more callbacks.
    pub fn closed(&self, peer: &Peer) {
        // Only the sessions that use the connection for callbacks refer to it. There are about as
        // many sessions as clients.
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

    fn who(verifier: u8, uid: u32, update: bool) -> Introduction {
        Introduction {
            owner: Bytes::from_static(b"client"),
            transport: Transport::Plain,
            host: IpAddr::from([192, 0, 2, 1]),
            verifier: [verifier; 8],
            principal: Principal::Uid(uid),
            update,
            may_reclaim: false,
        }
    }

    /// A name on one transport and of one principal never equals a name on another, even if it
    /// contains the mark.
    #[test]
    fn owner_is_unique_across_transports() {
        let mutual = |name: &str| Transport::MutualTls { names: [name.to_string()].into() };
        let transports = [Transport::Plain, Transport::Tls, mutual("a"), mutual("a b"), mutual("")];
        let names: [&[u8]; 5] = [b"c", b"", b"c\0via tls", b"c\0via tls\0via none", b"\0via mtls a"];
        let mut seen = std::collections::HashSet::new();
        let principals =
            [Principal::Uid(0), Principal::Kerberos("a".into()), Principal::Kerberos("b".into())];
        for (name, transport) in names.iter().flat_map(|n| transports.iter().map(move |t| (n, t))) {
            for principal in &principals {
                let owner = owner_via(name, transport, principal);
                assert_eq!(own_name(&owner), name);
                assert!(seen.insert(owner.clone()), "{} {transport}", owner.escape_ascii());
            }
        }
        // Numbers without a proof are not a part of the name.
        for principal in [Principal::Nobody, Principal::Uid(7)] {
            assert_eq!(&owner_via(b"c", &Transport::Plain, &principal)[..], b"c");
        }
    }

    /// The cases of EXCHANGE_ID in RFC 8881 section 18.35.4.
    #[tokio::test]
    async fn exchange_id_follows_rfc_cases() {
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

    /// A client that uses another principal's client name is refused while the other client has a
    /// session and calls within its lease.
    #[tokio::test(start_paused = true)]
    async fn active_client_keeps_name() {
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

    /// An address that introduces clients without end fills only its own share. Clients without a
    /// session are removed first.
    /// Promise: S7
    #[tokio::test(start_paused = true)]
    async fn address_fills_only_own_share() {
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
        // Many addresses fill the table. Then the oldest of all clients is removed.
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
