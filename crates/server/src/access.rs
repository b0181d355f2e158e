//! The right to use an export, and the identity under which a client's calls run.
//!
//! The module knows neither files nor the syntax of exports(5). An export's [`Admit`] maps a
//! client's address and certificate to its [`Rights`]. [`Rights::cred`] makes the identity of a
//! call from the identity that the client claims.

use crate::pattern::matches_pattern;
use hither_rpc::Flavor;
use hither_rpc::gss::GssCaller;
use hither_rpc::server::{Caller, Peer, Transport};
use hither_vfs::Cred;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// The anonymous user and group, when an export names no other.
pub const NOBODY: u32 = 65_534;
/// Ports below this need privileges on the client.
const PRIVILEGED_PORTS: u16 = 1024;
/// For how long a user's groups are cached, and the most users in the cache.
const GROUPS_TTL: Duration = Duration::from_secs(600);
const GROUPS_MAX: usize = 16_384;

/// The users whose identity the server replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// No user: the client is trusted.
    None,
    /// The superuser.
    Root,
    /// All users.
    All,
}

/// The protections of connections that an export accepts (exports(5), `xprtsec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transports {
    /// No TLS.
    pub none: bool,
    /// TLS without a client certificate.
    pub tls: bool,
    /// TLS with a client certificate.
    pub mtls: bool,
}

impl Transports {
    /// Every connection.
    pub const ALL: Self = Self { none: true, tls: true, mtls: true };

    /// Whether calls of a connection are accepted.
    pub fn accept(&self, transport: &Transport) -> bool {
        match transport {
            Transport::Plain => self.none,
            Transport::Tls => self.tls,
            Transport::MutualTls { .. } => self.mtls,
        }
    }

    /// Parses words with `:` between them. `None`: a word is unknown.
    pub fn parse(text: &str) -> Option<Self> {
        let mut accepted = Self { none: false, tls: false, mtls: false };
        for word in text.split(':') {
            match word {
                "none" => accepted.none = true,
                "tls" => accepted.tls = true,
                "mtls" => accepted.mtls = true,
                _ => return None,
            }
        }
        Some(accepted)
    }
}

/// The words that [`Transports::parse`] reads.
impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.none, "none"), (self.tls, "tls"), (self.mtls, "mtls")];
        let words: Vec<_> = all.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
        f.write_str(&words.join(":"))
    }
}

/// The flavors that an export accepts (exports(5), `sec`), in the order that clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flavors(SmallVec<[Flavor; 4]>);

impl Default for Flavors {
    fn default() -> Self {
        Self(SmallVec::from_slice(&[Flavor::Sys]))
    }
}

impl Flavors {
    /// Whether calls of a caller are accepted. Calls without an identity pass where the server
    /// trusts the numbers of clients.
    pub fn accept(&self, caller: &Caller) -> bool {
        self.0.contains(&flavor_of(caller))
    }

    /// Whether a Kerberos flavor is accepted.
    pub fn uses_kerberos(&self) -> bool {
        self.iter().any(|flavor| flavor.service().is_some())
    }

    /// The flavors.
    pub fn iter(&self) -> impl Iterator<Item = Flavor> {
        self.0.iter().copied()
    }

    /// Parses words with `:` between them. `None`: a word is unknown.
    pub fn parse(text: &str) -> Option<Self> {
        let mut all = SmallVec::new();
        for word in text.split(':') {
            let flavor = word.parse().ok()?;
            if !all.contains(&flavor) {
                all.push(flavor);
            }
        }
        Some(Self(all))
    }
}

/// The words that [`Flavors::parse`] reads.
impl fmt::Display for Flavors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.iter().map(Flavor::name).collect();
        f.write_str(&words.join(":"))
    }
}

/// The Kerberos principals that an export admits: patterns with `*`, `?` and `[a-z]`. Empty: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Principals(Arc<[String]>);

impl Principals {
    /// Whether an export admits a caller. A caller without a principal is refused by its flavor.
    pub fn admit(&self, caller: &Caller) -> bool {
        let Caller::Gss(gss) = caller else { return true };
        let fits = |pattern: &String| matches_pattern(pattern.as_bytes(), gss.principal.as_bytes());
        self.are_all() || self.0.iter().any(fits)
    }

    /// Whether the export admits each principal.
    pub fn are_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses patterns with `:` between them. `None`: a pattern is empty.
    pub fn parse(text: &str) -> Option<Self> {
        let all: Arc<[String]> = text.split(':').map(String::from).collect();
        (!all.iter().any(String::is_empty)).then_some(Self(all))
    }
}

/// The words that [`Principals::parse`] reads.
impl fmt::Display for Principals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(":"))
    }
}

fn flavor_of(caller: &Caller) -> Flavor {
    match caller {
        Caller::Nobody | Caller::Sys(_) => Flavor::Sys,
        Caller::Gss(gss) => Flavor::of_service(gss.service),
    }
}

/// A number for a transport, in keys of calls. Different transports have different numbers. For
/// client certificates the number is made of the first name.
pub(crate) fn transport_number(transport: &Transport) -> u32 {
    match transport {
        Transport::Plain => 0,
        Transport::Tls => 1,
        Transport::MutualTls { .. } => {
            let hash = XxHash3_64::oneshot(transport.subject().unwrap_or_default().as_bytes());
            2 | (hash as u32) << 2
        }
    }
}

/// A number for a caller, in keys of calls. No Kerberos principal has the number of a uid.
pub(crate) fn caller_number(caller: &Caller) -> u64 {
    match caller {
        Caller::Nobody => u64::from(u32::MAX),
        Caller::Sys(sys) => sys.uid.into(),
        Caller::Gss(gss) => XxHash3_64::oneshot(gss.principal.as_bytes()) | 1 << 63,
    }
}

/// The rights of a client to an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The client may not change the export.
    pub read_only: bool,
    /// The users who become the anonymous user.
    pub squash: Squash,
    /// The anonymous user.
    pub anon_uid: u32,
    /// The group of the anonymous user.
    pub anon_gid: u32,
    /// Calls must come from a privileged port.
    pub secure: bool,
    /// A user's groups come from this machine's user database, not from the client.
    pub manage_gids: bool,
    /// The accepted connections.
    pub transports: Transports,
    /// The accepted flavors.
    pub flavors: Flavors,
    /// The Kerberos principals that may use the export.
    pub principals: Principals,
}

impl Default for Rights {
    /// As in exports(5): read-only, `root_squash`, `secure`, any transport, `sec=sys`.
    fn default() -> Self {
        Self {
            read_only: true,
            squash: Squash::Root,
            anon_uid: NOBODY,
            anon_gid: NOBODY,
            secure: true,
            manage_gids: false,
            transports: Transports::ALL,
            flavors: Flavors::default(),
            principals: Principals::default(),
        }
    }
}

/// Maps a client to its rights. `None`: the client may not learn of the export. Must not block.
pub type Admit = dyn Fn(&Asker<'_>) -> Option<Rights> + Send + Sync;

/// A client that asks for an export.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// Its address. An IPv4 address is never mapped to IPv6.
    pub addr: IpAddr,
    /// The names in its certificate, if it has a valid one.
    pub subjects: &'a [String],
}

impl<'a> Asker<'a> {
    /// The client of a connection.
    pub fn of(peer: &'a Peer) -> Self {
        Self { addr: peer.addr.ip().to_canonical(), subjects: peer.transport.names() }
    }
}

/// Groups of a user on this machine, the primary group first. `None`: unknown user. May block.
pub type GroupsOf = dyn Fn(u32) -> Option<Vec<u32>> + Send + Sync;

impl Rights {
    /// Whether a client's port satisfies `secure`.
    pub fn port_suffices(&self, peer: &SocketAddr) -> bool {
        !self.secure || peer.port() < PRIVILEGED_PORTS
    }

    /// The identity of a caller. `groups` come from [`Groups`] when `manage_gids` is set.
    pub fn cred(&self, caller: &Caller, groups: Option<&[u32]>) -> Cred {
        let anonymous = Cred { uid: self.anon_uid, gid: self.anon_gid, groups: SmallVec::new() };
        let (uid, gid, gids) = match caller {
            Caller::Sys(sys) => (sys.uid, sys.gid, &sys.gids[..]),
            Caller::Gss(GssCaller { ids: Some(ids), .. }) => (ids.uid, ids.gid, &ids.gids[..]),
            Caller::Nobody | Caller::Gss(_) => return anonymous,
        };
        match self.squash {
            Squash::All => anonymous,
            Squash::Root if uid == 0 => anonymous,
            squash => {
                let map = |gid: u32| if squash == Squash::Root && gid == 0 { self.anon_gid } else { gid };
                let (gid, gids) = match groups {
                    Some(groups) => (groups.first().copied().unwrap_or(gid), groups),
                    None => (gid, gids),
                };
                Cred { uid, gid: map(gid), groups: gids.iter().copied().map(map).collect() }
            }
        }
    }
}

/// A cache of users' groups, as this machine's user database names them.
pub struct Groups {
    look_up: Option<Arc<GroupsOf>>,
    known: Mutex<HashMap<u32, CachedGroups>>,
}

/// The time of the look-up, and its result.
type CachedGroups = (Instant, Option<Arc<[u32]>>);

impl Groups {
    /// An empty cache that asks `look_up`. `None`: no user has managed groups.
    pub fn new(look_up: Option<Arc<GroupsOf>>) -> Self {
        Self { look_up, known: Mutex::default() }
    }

    /// The groups of a user. `None` when this machine does not have the user.
    pub async fn of(&self, uid: u32) -> Option<Arc<[u32]>> {
        let look_up = self.look_up.clone()?;
        let now = Instant::now();
        if let Some((at, groups)) = self.known.lock().get(&uid)
            && now.duration_since(*at) < GROUPS_TTL
        {
            return groups.clone();
        }
        let found = tokio::task::spawn_blocking(move || look_up(uid)).await.ok().flatten();
        let groups: Option<Arc<[u32]>> = found.map(Arc::from);
        let mut known = self.known.lock();
        if known.len() >= GROUPS_MAX {
            known.clear();
        }
        known.insert(uid, (now, groups.clone()));
        groups
    }
}

/// Names of an address on this machine. Returns only names that resolve to the address. May block.
pub type LookUpNames = dyn Fn(IpAddr) -> Vec<String> + Send + Sync;

/// A cache of clients' names. The server looks a name up before the client's first call is served,
/// and renews it every ten minutes.
pub struct ClientNames {
    look_up: Arc<LookUpNames>,
    wanted: AtomicBool,
    known: Mutex<HashMap<IpAddr, Named>>,
}

/// The time when a look-up began, and its result.
type Named = (Instant, Arc<OnceCell<Arc<[String]>>>);

impl ClientNames {
    /// An empty cache that asks `look_up`. Names are not wanted until [`ClientNames::want`].
    pub fn new(look_up: Arc<LookUpNames>) -> Arc<Self> {
        Arc::new(Self { look_up, wanted: AtomicBool::new(false), known: Mutex::default() })
    }

    /// Sets whether any export depends on the names of clients.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Release);
    }

    /// The names of an address that [`ClientNames::learn`] has cached. Does not block.
    pub fn known(&self, client: IpAddr) -> Vec<String> {
        let known = self.known.lock().get(&client).and_then(|(_, names)| names.get().cloned());
        known.map(|names| names.to_vec()).unwrap_or_default()
    }

    /// Looks up the names of a client, if names are wanted. Names that are older than ten minutes
    /// hold until the new look-up ends.
    pub async fn learn(self: &Arc<Self>, client: IpAddr) {
        if !self.wanted.load(Ordering::Acquire) {
            return;
        }
        let client = client.to_canonical();
        let names = {
            let mut known = self.known.lock();
            if known.len() >= GROUPS_MAX {
                known.clear();
            }
            let (began, names) = known.entry(client).or_insert_with(|| (Instant::now(), Arc::default()));
            if began.elapsed() >= GROUPS_TTL && names.initialized() {
                *began = Instant::now();
                tokio::spawn(self.clone().renew(client));
            }
            names.clone()
        };
        names.get_or_init(|| self.ask(client)).await;
    }

    async fn renew(self: Arc<Self>, client: IpAddr) {
        let names = self.ask(client).await;
        self.known.lock().insert(client, (Instant::now(), Arc::new(OnceCell::new_with(Some(names)))));
    }

    async fn ask(&self, client: IpAddr) -> Arc<[String]> {
        let look_up = self.look_up.clone();
        tokio::task::spawn_blocking(move || look_up(client)).await.unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_proto::rpc::AuthSys;

    fn caller(uid: u32, gid: u32, gids: &[u32]) -> Caller {
        let (stamp, machinename) = (0, Default::default());
        Caller::Sys(AuthSys { stamp, machinename, uid, gid, gids: gids.to_vec().into() })
    }

    fn rights(squash: Squash) -> Rights {
        Rights { squash, anon_uid: 7, anon_gid: 8, ..Rights::default() }
    }

    /// `root_squash` replaces uid 0 and gid 0 of a caller, and `all_squash` replaces every caller.
    /// A caller without credentials is always anonymous.
    #[test]
    fn squash_replaces_caller_ids() {
        let root = caller(0, 0, &[0, 5]);
        let user = caller(1000, 0, &[0, 5]);
        assert_eq!(rights(Squash::None).cred(&root, None).uid, 0);
        assert_eq!(rights(Squash::Root).cred(&root, None), rights(Squash::All).cred(&user, None));
        let kept = rights(Squash::Root).cred(&user, None);
        assert_eq!((kept.uid, kept.gid, &kept.groups[..]), (1000, 8, &[8, 5][..]));
        assert_eq!(rights(Squash::None).cred(&Caller::Nobody, None).uid, 7);
    }

    /// Concurrent calls of one address share one look-up of its names. After ten minutes the old
    /// names hold until a new look-up ends.
    /// Promise: S2b
    #[tokio::test(start_paused = true)]
    async fn client_names_are_cached_and_renewed() {
        let asked = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = asked.clone();
        let names = ClientNames::new(Arc::new(move |addr| {
            vec![format!("{addr}-{}", count.fetch_add(1, Ordering::SeqCst))]
        }));
        let one = IpAddr::from([192, 0, 2, 1]);
        names.learn(one).await;
        assert!(names.known(one).is_empty(), "names are not wanted");
        names.want(true);
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0201]);
        tokio::join!(names.learn(one), names.learn(mapped), names.learn(one));
        assert_eq!(names.known(one), ["192.0.2.1-0"]);
        tokio::time::advance(GROUPS_TTL).await;
        names.learn(one).await;
        assert_eq!(names.known(one).len(), 1, "the old ones hold meanwhile");
        while names.known(one) != ["192.0.2.1-1"] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// With `manage_gids` the groups of the server's user database replace all groups in the
    /// client's call.
    #[test]
    fn managed_groups_replace_client_groups() {
        let cred = rights(Squash::Root).cred(&caller(1000, 0, &[0, 5]), Some(&[100, 101, 102]));
        assert_eq!((cred.gid, &cred.groups[..]), (100, &[100, 101, 102][..]));
    }

    #[test]
    fn secure_means_privileged_ports() {
        let at = |port| SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port);
        assert!(Rights::default().port_suffices(&at(1023)));
        assert!(!Rights::default().port_suffices(&at(1024)));
        assert!(Rights { secure: false, ..Rights::default() }.port_suffices(&at(1024)));
    }
}
