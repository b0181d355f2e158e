//! The server: its programs, and the state that their calls share.
//!
//! This module knows no procedure. It finds the program of a call and builds a [`Request`]. A
//! request holds the current exports, the client's address and the identity that the client claims.

use crate::access::{ClientNames, Groups, GroupsOf, Rights};
use crate::counters::{Counters, OperationCounts};
use crate::drc::ReplyCache;
use crate::nqnfs::{self, NqnfsOptions};
use crate::table::{Export, Table};
use crate::v4::delegation::{DelegationCounts, Leases};
use crate::{mountd, nlm, v3, v4};
use bytes::Bytes;
use hither_proto::nqnfs as wire;
use hither_proto::{mount, nfs3, nfs4};
use hither_rpc::BoxFuture;
use hither_rpc::server::{Caller, Incoming, Outcome, Pace, Peer, Program, SMALL_BYTES, Service};
use hither_vfs::{Answered, Env, Error, Fh, RequestContext, Spent};
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Longest listing in one reply, in bytes.
const LISTING_MAX_BYTES: u32 = 1 << 20;
/// Memory of a listing in relation to its reply. An entry is in memory twice beside the reply, and
/// has room for attributes. A short name takes 32 bytes of a reply without attributes.
const NAMES_FACTOR: u32 = 24;
const NODES_FACTOR: u32 = 14;

/// Settings of a server.
#[derive(Clone)]
pub struct Options {
    /// Longest READ and WRITE, in bytes.
    pub io_max_bytes: u32,
    /// Longest listing of one call, in bytes of its reply.
    pub listing_max_bytes: u32,
    /// NFSv3 and MOUNT are offered.
    pub v3: bool,
    /// NFSv4.1 and 4.2 are offered.
    pub v4: bool,
    /// Lease time of NFSv4: a silent client keeps its state for at least this time.
    pub lease: Duration,
    /// Grace period: the time after a restart in which clients may reclaim their state.
    pub grace: Duration,
    /// Most calls a second while clients recover from a restart. 0: no limit.
    pub recovery_rate: u32,
    /// For how long a client that is silent beyond its lease keeps state that no other client asks
    /// for.
    pub courtesy: Duration,
    /// Most clients of NFSv4.
    pub clients_max: usize,
    /// Most opens and locks of all clients of NFSv4. One client may hold at most seven eighths of
    /// them.
    pub states_max: usize,
    /// Most files delegated to clients of NFSv4; 0: none.
    pub delegations_max: usize,
    /// Settings of NQNFS. `None`: NQNFS is not offered.
    pub nqnfs: Option<NqnfsOptions>,
    /// Directory for the names of the clients that may reclaim after a restart. `None`: no names
    /// are kept, and no client may reclaim.
    pub state_dir: Option<PathBuf>,
    /// Looks up a user's groups, for exports with `manage-gids`.
    pub groups: Option<Arc<GroupsOf>>,
    /// Looks up names of clients, for exports to names with wildcards.
    pub names: Option<Arc<ClientNames>>,
    /// Randomness and wall clock.
    pub env: Env,
}

impl Options {
    /// The longest listing of a call when all calls share `memory_bytes`. One call may use a
    /// quarter.
    pub fn listing_within(memory_bytes: usize) -> u32 {
        let quarter = u32::try_from(memory_bytes / 4).unwrap_or(u32::MAX);
        (quarter / NAMES_FACTOR).min(LISTING_MAX_BYTES)
    }

    /// The most bytes of memory that a listing takes for a reply of `count` bytes. `nodes`: with
    /// attributes and handles.
    pub(crate) fn listing_bytes(&self, count: u32, nodes: bool) -> usize {
        let factor = if nodes { NODES_FACTOR } else { NAMES_FACTOR };
        count.min(self.listing_max_bytes) as usize * factor as usize
    }

    /// The default settings.
    pub fn new(env: Env) -> Self {
        Self {
            io_max_bytes: 1 << 20,
            listing_max_bytes: LISTING_MAX_BYTES,
            v3: true,
            v4: true,
            lease: Duration::from_secs(90),
            grace: Duration::from_secs(90),
            recovery_rate: 0,
            courtesy: Duration::from_secs(24 * 3600),
            clients_max: 16_384,
            states_max: 1 << 20,
            delegations_max: 1 << 16,
            nqnfs: None,
            state_dir: None,
            groups: None,
            names: None,
            env,
        }
    }
}

/// An NFS server over any number of exports, for an [`hither_rpc::server::Acceptor`].
pub struct Server {
    pub(crate) options: Options,
    programs: Vec<Program>,
    table: RwLock<Arc<Table>>,
    groups: Groups,
    pub(crate) replies: ReplyCache,
    pub(crate) counters: Counters,
    verifier: AtomicU64,
    pub(crate) v4: v4::Nfs4,
    pub(crate) nqnfs: nqnfs::Shared,
    life: u64,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl Server {
    /// A server of `table`. Reads the names of the clients that may reclaim their state from before
    /// the restart.
    ///
    /// # Errors
    /// The directory for the names of clients cannot be used.
    pub fn new(options: Options, table: Table) -> std::io::Result<Arc<Self>> {
        let (low, high) = (if options.v3 { 3 } else { 4 }, if options.v4 { 4 } else { 3 });
        let mut programs = vec![Program { number: nfs3::PROGRAM, low, high }];
        if options.v3 || options.nqnfs.is_some() {
            let low = if options.nqnfs.is_some() { wire::mount1::VERSION } else { mount::VERSION };
            let high = if options.v3 { mount::VERSION } else { wire::mount1::VERSION };
            programs.push(Program { number: mount::PROGRAM, low, high });
        }
        if options.v3 {
            programs.push(Program { number: hither_proto::nlm::PROGRAM, low: 1, high: 4 });
        }
        if options.nqnfs.is_some() {
            programs.push(Program { number: wire::PROGRAM, low: wire::VERSION, high: wire::VERSION });
        }
        let v4 = v4::Nfs4::new(&options)?;
        be_told(&table, &v4.leases);
        Ok(Arc::new(Self {
            programs,
            table: RwLock::new(Arc::new(table)),
            groups: Groups::new(options.groups.clone()),
            replies: ReplyCache::default(),
            counters: Counters::default(),
            verifier: AtomicU64::new((options.env.random)()),
            nqnfs: nqnfs::Shared::default(),
            life: (options.env.random)(),
            v4,
            options,
        }))
    }

    /// Background work: ends the state of silent clients and runs the timers of leases. The future
    /// never completes; the caller drops it.
    pub async fn tend(self: Arc<Self>) {
        tokio::join!(self.v4.tend(&self), self.v4.leases.run());
    }

    /// Numbers of delegations and recalls.
    pub fn delegations(&self) -> DelegationCounts {
        self.v4.leases.counts()
    }

    /// Counts of the answered calls, by procedure and by operation of NFSv4.
    pub fn operations(&self) -> Vec<OperationCounts> {
        self.counters.snapshot()
    }

    /// Ends service. If no client holds state and no lease is out, the next server starts without a
    /// grace period.
    pub fn end(&self) {
        self.v4.end();
        self.v4.leases.act(|inner, _| {
            if let Some(numbers) = inner.numbers.as_mut().filter(|_| inner.table.is_vacant()) {
                numbers.vacant();
            }
        });
    }

    /// Replaces the exports. Filehandles of exports that stay remain valid. Opens and locks of the
    /// other exports end. File systems that no other program uses can then be unmounted.
    pub fn replace(self: &Arc<Self>, table: Table) {
        let leases = &self.v4.leases;
        let _naming = leases.naming(true);
        be_told(&table, leases);
        let table = Arc::new(table);
        let before = std::mem::replace(&mut *self.table.write(), table.clone());
        self.v4.exports_changed();
        leases.exports_changed(|number| before.export(number).is_some_and(|export| table.serves(export)));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let server = self.clone();
            runtime.spawn(async move { server.v4.close_unserved(&table).await });
        }
    }

    /// Fills the reply caches with calls that an earlier process executed, as the layer below
    /// reports them after a restart. A repeated call then gets its stored reply and is not executed
    /// again. Must be called before the server serves any client.
    pub fn made_before(&self, export_path: &str, calls: &[Answered]) {
        let table = self.table();
        let Some(export) = table.exports().iter().find(|export| export.path == export_path) else { return };
        for (key, reply) in calls.iter().filter_map(|call| v3::remembered(self, export, call)) {
            self.replies.fill(key, reply);
        }
        self.v4.replays.fill(export.number, calls);
    }

    /// The current exports.
    pub fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// The write verifier of an export. A new verifier tells clients that UNSTABLE data may have
    /// been lost.
    pub(crate) fn write_verifier(&self, export: &Export) -> [u8; 8] {
        (self.verifier.load(Relaxed) ^ export.epoch().rotate_left(32)).to_be_bytes()
    }

    /// A number that differs in each life of the server.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Handles a failed COMMIT. When the data may be lost, the write verifier changes, so that
    /// clients write the data again.
    pub(crate) fn commit_failed(&self, e: &Error) {
        if matches!(e.errno, libc::EIO | libc::ENOSPC | libc::EDQUOT) {
            tracing::error!("written data cannot be made stable: {e}; clients will send the data again");
            self.verifier.store((self.options.env.random)(), Relaxed);
        }
    }

    async fn counted(self: Arc<Self>, call: Incoming) -> Outcome {
        let spent = Arc::new(Spent::default());
        let begun = self.counters.begin(&call);
        let outcome = self.dispatch(call, &spent).await;
        begun.end(&outcome, &spent);
        outcome
    }

    async fn dispatch(self: &Arc<Self>, call: Incoming, spent: &Arc<Spent>) -> Outcome {
        if let Some(names) = &self.options.names {
            names.learn(call.peer.addr.ip()).await;
        }
        match (call.prog, call.vers, call.proc) {
            (_, _, 0) => Outcome::Done(Default::default()),
            (wire::PROGRAM, ..) => nqnfs::answer(self, call, spent).await,
            // MNT of version 2 returns the same handle as MNT of version 1.
            (mount::PROGRAM, 1 | 2, 1) => nqnfs::mount(self, call, spent).await,
            (hither_proto::nlm::PROGRAM, ..) => nlm::answer(call.vers, call.proc, &call.args),
            (mount::PROGRAM, ..) => mountd::answer(self, call, spent).await,
            (nfs3::PROGRAM, nfs3::VERSION, _) => v3::answer(self, call, spent).await,
            (nfs4::PROGRAM, nfs4::VERSION, nfs4_proc) if nfs4_proc == nfs4::Proc4::COMPOUND.0 => {
                v4::answer(self, call, spent).await
            }
            _ => Outcome::ProcUnavail,
        }
    }
}

/// Registers with the watched exports, so that changes by other programs end delegations.
fn be_told(table: &Table, leases: &Arc<Leases>) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    for export in table.exports() {
        let Some(watch) = export.others.watch() else { continue };
        let (leases, runtime) = (Arc::downgrade(leases), runtime.clone());
        watch.tell(Arc::new(move |fh| {
            let _runtime = runtime.enter();
            if let Some(leases) = leases.upgrade() {
                leases.changed_elsewhere(fh);
            }
        }));
    }
}

impl Service for Server {
    fn programs(&self) -> &[Program] {
        &self.programs
    }

    fn pace(&self) -> Option<&Pace> {
        self.v4.pace(self.options.v3)
    }

    fn call(self: Arc<Self>, call: Incoming) -> BoxFuture<'static, Outcome> {
        let call = self.counted(call);
        debug_assert!(size_of_val(&call) <= SMALL_BYTES, "{} bytes", size_of_val(&call));
        Box::pin(call)
    }

    fn closed(&self, peer: &Peer) {
        self.v4.closed(peer);
        if let Some(short) = &self.v4.leases.short {
            short.clients.closed(peer);
        }
    }
}

/// The state that the parts of one call share.
pub(crate) struct Request {
    pub server: Arc<Server>,
    pub table: Arc<Table>,
    pub peer: Arc<Peer>,
    pub caller: Caller,
    /// The time of its arrival.
    pub began: Instant,
    /// The call's unique key, for layers that keep it in a journal.
    pub call: Option<Bytes>,
    /// The waits of the call.
    pub spent: Arc<Spent>,
    /// An export has refused the call because of its transport.
    pub too_weak: AtomicBool,
}

/// The reason why an export refuses a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The client may not use the export.
    Client,
    /// The client's port is not privileged.
    Port,
    /// The export does not admit the principal of the caller.
    Principal,
    /// The export does not accept the transport of the connection.
    Transport,
}

impl Request {
    pub fn new(server: &Arc<Server>, (peer, caller): (Arc<Peer>, Caller), spent: &Arc<Spent>) -> Self {
        let (server, table) = (server.clone(), server.table());
        Self {
            server,
            table,
            peer,
            caller,
            began: Instant::now(),
            call: None,
            spent: spent.clone(),
            too_weak: AtomicBool::new(false),
        }
    }

    /// The export over a directory of `from`, if this client may use that export. Any other client
    /// sees the directory itself.
    pub fn crossing(&self, from: &Export, dir: &Fh) -> Option<&Arc<Export>> {
        self.table.crossing(from, dir).filter(|export| export.rights(&self.peer).is_some())
    }

    /// The identity under which a call uses an export, if the export accepts the connection.
    pub async fn enter(&self, export: &Export) -> Result<(RequestContext, Rights), Denied> {
        let entered = self.enter_any(export).await?;
        if self.accepts(export, &entered.1) {
            return Ok(entered);
        }
        self.too_weak.store(true, Relaxed);
        Err(Denied::Transport)
    }

    /// Whether an export accepts the connection and the flavor of the call.
    pub fn accepts(&self, export: &Export, rights: &Rights) -> bool {
        if !rights.flavors.accept(&self.caller) {
            let (path, addr) = (&export.path, self.peer.addr);
            tracing::debug!("{path}: {addr} is refused: the export has sec={}", rights.flavors);
            return false;
        }
        self.accepts_transport(export, rights)
    }

    /// Whether an export accepts the connection.
    pub fn accepts_transport(&self, export: &Export, rights: &Rights) -> bool {
        let accepts = rights.transports.accept(&self.peer.transport);
        if !accepts {
            tracing::debug!(
                "{}: {} is refused: its connection is '{}', and the export has xprtsec={}",
                export.path,
                self.peer.addr,
                self.peer.transport,
                rights.transports
            );
        }
        accepts
    }

    /// As [`Request::enter`], for any connection. The caller checks [`Request::accepts`].
    pub async fn enter_any(&self, export: &Export) -> Result<(RequestContext, Rights), Denied> {
        let rights = export.rights(&self.peer).ok_or(Denied::Client)?;
        if !rights.port_suffices(&self.peer.addr) {
            tracing::debug!(
                "{}: {} is refused because it does not call from a privileged port; `insecure` allows it",
                export.path,
                self.peer.addr
            );
            return Err(Denied::Port);
        }
        if !rights.principals.admit(&self.caller) {
            let (path, addr) = (&export.path, self.peer.addr);
            tracing::debug!("{path}: {addr} is refused: the export has principal={}", rights.principals);
            return Err(Denied::Principal);
        }
        let groups = match &self.caller {
            Caller::Sys(sys) if rights.manage_gids => self.server.groups.of(sys.uid).await,
            _ => None,
        };
        let cred = rights.cred(&self.caller, groups.as_deref());
        let (call, spent) = (self.call.clone(), Some(self.spent.clone()));
        let host = Some(self.peer.addr.ip());
        Ok((RequestContext { call, spent, host, ..RequestContext::new(Arc::new(cred)) }, rights))
    }
}
