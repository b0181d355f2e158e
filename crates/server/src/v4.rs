//! NFSv4.1 and 4.2 (RFC 8881, 7862, 8276) over a `Vfs`.
//!
//! Of connections the module knows only that calls arrive on them and callbacks leave on them. A
//! compound is executed operation by operation ([`exec`]). A run of LOOKUPs is one walk of the
//! `Vfs`. The state of clients is in [`clients`], [`session`] and [`state`]; the part that outlives
//! a restart is in [`stable`]. If clients held state before a restart, a grace period follows. In
//! it clients reclaim their state before any client gets new state that could conflict.
//!
//! NFSv4.0 is not offered. Files are delegated for reading and for writing ([`delegation`]).

mod acl;
mod attrs;
mod callback;
pub(crate) mod clients;
pub(crate) mod delegation;
mod directory;
mod exec;
mod io;
mod list;
mod lock;
mod names;
mod open;
mod ranges;
mod replay;
mod security;
mod session;
mod setup;
pub(crate) mod stable;
mod state;
#[cfg(test)]
mod tests;
mod xattr;

use crate::counters;
use crate::piped;
use crate::scarcity;
use crate::server::{Options, Request, Server};
use crate::table::Table;
use bytes::Bytes;
use clients::{Client, Clients};
use delegation::Leases;
use exec::Exec;
use hither_proto::nfs4::{Compound, CompoundReply, NfsOpnum4, Nfsstat4, Op, OpRes, SequenceArgs};
use hither_proto::rpc::AuthStat;
use hither_proto::xdr::{Enc, Xdr};
use hither_rpc::server::{Incoming, Outcome, Pace, Peer, Piped};
use hither_vfs::{Cred, RequestContext, Spent};
use parking_lot::Mutex;
use replay::{CallId, Replays, Turn};
use session::{Session, Slotted};
use stable::Stable;
pub(crate) use stable::write_durably;
use state::{Locks, Registry};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

/// Most bytes of a reply that a READ or READDIR leaves for the results after it.
const ROOM_BYTES: usize = 512;
/// Bytes of a result that has only a status.
const FAILURE_BYTES: usize = 8;
/// Longest result of an operation that changes state. An OPEN with a write delegation has 116
/// bytes.
const RESULT_OF_CHANGE_MAX_BYTES: usize = 128;
/// The most time by which waiting calls prolong recovery. Delayed writes of NQNFS have the same
/// limit.
const HELD_UP_MAX: Duration = Duration::from_secs(300);

/// The state of NFSv4.
pub(crate) struct Nfs4 {
    pub(crate) clients: Clients,
    pub(crate) registry: Registry,
    pub(crate) replays: Replays,
    stable: Stable,
    /// The server's name. It is also the scope of its filehandles and state.
    name: Bytes,
    /// Names of the clients that held state before the restart and have not sent RECLAIM_COMPLETE.
    reclaimers: Mutex<HashSet<Bytes>>,
    /// Orders the records of an ended client before those of its next instance.
    records: tokio::sync::Mutex<()>,
    /// Of these, the clients that may have held delegations, and the time until which they may rely
    /// on them.
    outstanding: Mutex<HashSet<Bytes>>,
    outstanding_end: Deadline,
    /// Some of these delegations may be for writing.
    outstanding_writes: bool,
    pub(crate) leases: Arc<Leases>,
    grace_end: Deadline,
    /// Limits the rate of calls while clients recover.
    pace: Option<Arc<Pace>>,
    lease: Duration,
    courtesy: Duration,
    clients_max: usize,
    /// Most opens and locks of one client.
    states_of_client_max: usize,
    /// Change attribute of the directories above the exports.
    generation: AtomicU64,
}

/// A moment that is postponed while calls wait for their turn. Once passed, it stays passed.
struct Deadline {
    at: Instant,
    past: AtomicBool,
}

impl Deadline {
    fn after(d: Duration) -> Self {
        Self { at: Instant::now() + d, past: AtomicBool::new(false) }
    }

    fn is_past(&self, held_up: bool) -> bool {
        if Instant::now() >= self.at && !held_up {
            self.past.store(true, Relaxed);
        }
        self.past.load(Relaxed)
    }
}

impl Nfs4 {
    /// Reads the names of the clients that may reclaim.
    pub fn new(options: &Options) -> std::io::Result<Self> {
        let dir = options.state_dir.as_deref();
        let (stable, reclaimers) = Stable::open(dir)?;
        let boot = (options.env.random)() as u32;
        if !reclaimers.is_empty() {
            tracing::info!(
                "{} clients may reclaim their state from before the restart within {} s",
                reclaimers.len(),
                options.grace.as_secs()
            );
        }
        let delegated = stable.delegated()?;
        let outstanding = if delegated.is_some() { reclaimers.clone() } else { HashSet::new() };
        let believed = delegated.map(|d| d.believed).unwrap_or_default();
        let believed = believed.max(options.lease).max(options.grace);
        let wall = (options.env.wall)().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let short = crate::nqnfs::leases::begin(options)?;
        let longest = short.as_ref().map_or(Duration::ZERO, |(short, numbers)| short.recovery(numbers));
        let longest = longest.max(believed + delegation::SKEW) + HELD_UP_MAX;
        let rate = Some(options.recovery_rate).filter(|rate| *rate > 0);
        let pace = rate.map(|rate| Arc::new(Pace::new(rate, longest)));
        Ok(Self {
            clients: Clients::new(boot, pace.clone()),
            registry: Registry::new(boot, options.states_max),
            replays: Replays::default(),
            stable,
            name: Stable::name(dir, || (options.env.random)())?,
            reclaimers: Mutex::new(reclaimers),
            records: tokio::sync::Mutex::default(),
            outstanding: Mutex::new(outstanding),
            outstanding_end: Deadline::after(believed + delegation::SKEW),
            outstanding_writes: delegated.is_some_and(|d| d.writing),
            leases: Leases::new(options.delegations_max, options.lease, &options.env, short, pace.clone())?,
            grace_end: Deadline::after(options.grace),
            pace,
            lease: options.lease,
            courtesy: options.courtesy,
            clients_max: options.clients_max,
            states_of_client_max: options.states_max / 8 * 7,
            generation: AtomicU64::new(wall.as_nanos() as u64),
        })
    }

    /// Whether the grace period lasts, so that only reclaims are granted. It ends when the records
    /// of clients that did not reclaim are removed ([`Self::end_grace`]).
    fn in_grace(&self) -> bool {
        !self.reclaimers.lock().is_empty()
    }

    /// The time until the grace period ends at the latest, while it lasts, and the number of
    /// clients that may reclaim.
    pub(crate) fn grace(&self) -> (Option<Duration>, usize) {
        let reclaimers = self.reclaimers.lock().len();
        let left = self.grace_end.at.saturating_duration_since(Instant::now());
        ((reclaimers > 0).then_some(left), reclaimers)
    }

    /// Ends the grace period when its time is over. A client that reclaimed nothing must not
    /// reclaim in a later grace period, because other clients may get its locks now.
    async fn end_grace(&self) {
        if !self.in_grace() || !self.is_past(&self.grace_end) {
            return;
        }
        let _order = self.records.lock().await;
        let late: Vec<Bytes> = self.reclaimers.lock().iter().cloned().collect();
        for owner in &late {
            tracing::info!("client {} did not reclaim its state in time", owner.escape_ascii());
        }
        self.stable.forget(late).await;
        self.reclaimers.lock().clear();
    }

    /// Whether a deadline of clients has passed and no call of theirs is waiting in the server.
    fn is_past(&self, deadline: &Deadline) -> bool {
        deadline.is_past(self.pace.as_ref().is_some_and(|pace| pace.holds_up()))
    }

    /// The rate limit of calls, while clients recover. NFSv3 clients recover too, but do not
    /// announce it: with `stateless`, the limit lasts for the whole grace period.
    pub(crate) fn pace(&self, stateless: bool) -> Option<&Pace> {
        let pace = self.pace.as_deref().filter(|pace| !pace.is_over())?;
        let recovering = (stateless && !self.is_past(&self.grace_end))
            || self.in_grace()
            || self.may_be_delegated()
            || self.leases.is_recovering();
        if recovering {
            return Some(pace);
        }
        if let Some(paced) = pace.finish() {
            tracing::info!(
                "recovery has ended: {} calls, of which {} waited for their turn, for {} ms at most",
                paced.calls,
                paced.waits,
                paced.longest.as_millis()
            );
        }
        None
    }

    /// Whether a client may still rely on a delegation from before the restart. No file may change
    /// then that the client could have delegated.
    pub(crate) fn may_be_delegated(&self) -> bool {
        !self.is_past(&self.outstanding_end) && !self.outstanding.lock().is_empty()
    }

    /// Whether a client may still delay writes under a delegation from before the restart. No file
    /// may be read then that the client could have delegated.
    pub(crate) fn may_be_dirty(&self) -> bool {
        self.outstanding_writes && self.may_be_delegated()
    }

    /// Records a change of the exports, which changes the directories that lead to them.
    pub fn exports_changed(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    /// Handles the end of a connection.
    pub fn closed(&self, peer: &Peer) {
        self.clients.closed(peer);
    }

    /// Ends the state of clients that are silent for too long, and the grace period. Runs until the
    /// caller drops it.
    pub async fn tend(&self, server: &Arc<Server>) {
        let every = (self.lease / 4).max(Duration::from_millis(100));
        loop {
            self.end_grace().await;
            let crowded = self.registry.count() > self.registry_limit()
                || self.clients.count() > self.clients_max / 4 * 3;
            for client in self.clients.all() {
                let silent = self.clients.silent(&client);
                let confirmed = client.confirmed.load(Relaxed);
                let patience = if confirmed && !crowded { self.lease + self.courtesy } else { self.lease };
                if silent > patience && self.expire_silent(&client, patience).await {
                    tracing::info!(
                        "client {} has been silent for {} s: its state has ended",
                        client.owner.escape_ascii(),
                        silent.as_secs()
                    );
                }
            }
            // A call that began before the exports changed may have opened a file of a removed
            // export.
            self.close_unserved(&server.table()).await;
            self.registry.tidy();
            tokio::time::sleep(if self.in_grace() { every.min(GRACE_LOOK) } else { every }).await;
        }
    }

    fn registry_limit(&self) -> usize {
        self.registry.max() / 4 * 3
    }

    /// Ends the state of a client whose lease has expired, because it is in the way of another
    /// client. Returns false for other clients.
    async fn end_courtesy(&self, client: &Arc<Client>) -> bool {
        self.clients.silent(client) > self.lease && self.expire_silent(client, self.lease).await
    }

    /// Handles a shortage in OPEN: ends the state of clients whose lease has expired. Returns
    /// whether the client should try again. That is so when state has ended, or when another client
    /// may be dead and its lease will expire.
    pub(crate) async fn relieve(&self, own: &Client) -> bool {
        let (mut ended, mut may_end) = (false, false);
        for client in self.clients.all() {
            if client.id == own.id || !client.holds_anything() {
                continue;
            }
            if self.end_courtesy(&client).await {
                tracing::info!(
                    "client {} was silent beyond its lease, and room is needed: its state has ended",
                    client.owner.escape_ascii()
                );
                ended = true;
            }
            may_end |= self.clients.silent(&client) > MAY_BE_DEAD;
        }
        ended || (may_end && scarcity::lasts() <= self.lease + MAY_BE_DEAD)
    }

    /// Removes a client and ends its state.
    pub(crate) async fn expire(&self, client: &Arc<Client>) {
        let _ = self.expire_if(client, || true).await;
    }

    /// As [`Nfs4::expire`], if the client is silent for longer than `patience`. Returns whether it
    /// is.
    async fn expire_silent(&self, client: &Arc<Client>, patience: Duration) -> bool {
        self.expire_if(client, || self.clients.silent(client) > patience).await
    }

    async fn expire_if(&self, client: &Arc<Client>, may_end: impl Fn() -> bool) -> bool {
        {
            let _order = self.records.lock().await;
            // The client may have sent a call during the wait.
            if !may_end() {
                return false;
            }
            // The record of a client that has ended before belongs to its next instance.
            let has_record = client.confirmed.load(Relaxed) && !client.gone.load(Relaxed);
            self.clients.remove(client);
            if has_record {
                self.stable.forget(vec![client.owner.clone()]).await;
            }
        }
        self.leases.forget(&self.registry, client);
        self.close_all(client).await;
        true
    }

    /// Ends service. Clients without state have nothing to reclaim, so the next server waits for
    /// none of them.
    pub(crate) fn end(&self) {
        for client in self.clients.all() {
            if client.confirmed.load(Relaxed) && !client.holds_anything() {
                self.stable.forget_now(&client.owner);
            }
        }
    }

    /// Ends the state of a client's earlier instance after the client has restarted.
    async fn end_former(&self, client: &Arc<Client>) {
        self.clients.remove(client);
        self.leases.forget(&self.registry, client);
        self.close_all(client).await;
    }

    /// Ends all opens of a removed client.
    async fn close_all(&self, client: &Client) {
        self.close_each(self.registry.opens_of(client)).await;
    }

    /// Ends all opens of files of removed exports. No call can name these opens, and they keep
    /// their file system in use.
    pub(crate) async fn close_unserved(&self, table: &Table) {
        self.close_each(self.registry.opens_where(|file| !table.serves(&file.export))).await;
    }

    async fn close_each(&self, opens: Vec<Arc<state::Open>>) {
        for open in opens {
            let _order = open.file.order.lock().await;
            self.close(&open).await;
        }
    }

    /// Ends an open and the locks under it, in the server and in the layer below. The caller holds
    /// the file's `order`.
    async fn close(&self, open: &Arc<state::Open>) {
        unlock_below(&self.registry.close(open)).await;
    }
}

/// Releases locks in the layer below, and notifies the clients that wait for them.
async fn unlock_below(locks: &[Arc<Locks>]) {
    let all = hither_vfs::FileRange { start_bytes: 0, end_bytes: u64::MAX };
    let cx = RequestContext::new(Arc::new(Cred::root()));
    for l in locks {
        let state = l.file();
        let file = hither_vfs::File { fh: &state.key.1, open: None };
        let owner = hither_vfs::LockOwner { id: l.number, flock: false };
        let _ = state.export.vfs.unlock(&cx, file, owner, all).await;
        lock::tell_waiters(&state);
    }
}

/// Longest time between the end of the grace period and its effect.
const GRACE_LOOK: Duration = Duration::from_millis(250);
/// A client with state that is silent for this time may be dead.
const MAY_BE_DEAD: Duration = Duration::from_secs(10);
/// The most bytes of an extended attribute, and of a list of them.
const LARGE_XATTR_BYTES: usize = 64 << 10;

/// Answers a COMPOUND.
pub(crate) async fn answer(server: &Arc<Server>, call: Incoming, spent: &Arc<Spent>) -> Outcome {
    let Ok(sized) = Compound::sized(&call.args) else { return Outcome::GarbageArgs };
    let compound = Sized(sized.0, sized.1);
    call.room.expect(reply_bytes(&compound, &server.options)).await;
    let transport = &call.peer.transport;
    let sum = replay::checksum(&call.args, &call.caller, transport);
    if setup::is_of_other_transport(&server.v4, &compound.ops, transport) {
        return Outcome::Refused(AuthStat::TOOWEAK);
    }
    let len = call.args.len() + setup::header_bytes(&call.caller);
    let request = Request::new(server, (call.peer, call.caller), spent);
    if !(1..=2).contains(&compound.minorversion) {
        return whole(&compound, Nfsstat4::MINOR_VERS_MISMATCH, vec![]);
    }
    let Some(first) = compound.ops.first() else { return whole(&compound, Nfsstat4::OK, vec![]) };
    match first {
        // Boxed, so that a call that waits for memory takes little of it.
        Op::Sequence(args) => Box::pin(in_session(&request, &compound, *args, sum, len)).await,
        _ => Box::pin(outside_session(&request, &compound)).await,
    }
}

/// A compound, and the encoded length of each of its operations in bytes.
struct Sized(Compound, Vec<u32>);

impl std::ops::Deref for Sized {
    type Target = Compound;

    fn deref(&self) -> &Compound {
        &self.0
    }
}

/// An operation that is being executed, for the counters.
struct Counted<'a> {
    request: &'a Request,
    received_bytes: usize,
    began: Instant,
    before: (Duration, Duration),
}

impl<'a> Counted<'a> {
    fn begin(request: &'a Request, compound: &Sized, at: usize) -> Self {
        let received_bytes = compound.1.get(at).map_or(0, |bytes| *bytes as usize);
        let before = (request.spent.store(), request.spent.journal());
        Self { request, received_bytes, began: Instant::now(), before }
    }

    fn end(self, op: NfsOpnum4, status: Nfsstat4, sent_bytes: usize) {
        let spent = (self.before, &*self.request.spent);
        let bytes = (self.received_bytes, sent_bytes);
        self.request.server.counters.operation((op, status), bytes, self.began, spent);
    }
}

/// The most bytes of memory that the payloads of a reply may take. A session allows one payload of
/// the largest size.
fn reply_bytes(compound: &Compound, options: &Options) -> usize {
    let payload = |op: &Op| match op {
        Op::Read(a) => a.count as usize,
        Op::Listxattrs(_) | Op::Getxattr(_) => LARGE_XATTR_BYTES,
        _ => 0,
    };
    let all = compound.ops.iter().map(payload).fold(0, usize::saturating_add);
    let listed = |op: &Op| if let Op::Readdir(a) = op { a.maxcount } else { 0 };
    // The entries of all listings stay until the reply is encoded.
    let listed = compound.ops.iter().map(listed).fold(0, u32::saturating_add);
    all.min((options.io_max_bytes + setup::OVERHEAD_BYTES) as usize) + options.listing_bytes(listed, false)
}

fn whole(compound: &Compound, status: Nfsstat4, results: Vec<OpRes>) -> Outcome {
    Outcome::Done(Enc::of(&CompoundReply { status, tag: compound.tag.clone(), results: results.into() }))
}

/// Refuses a compound at its first operation.
fn failed(request: &Request, compound: &Sized, status: Nfsstat4) -> Outcome {
    let op = compound.ops[0].number();
    refused(request, compound, OpRes::failed(op, status))
}

fn refused(request: &Request, compound: &Sized, result: OpRes) -> Outcome {
    let status = result.status();
    Counted::begin(request, compound, 0).end(result.number(), status, FAILURE_BYTES);
    whole(compound, status, vec![result])
}

/// Executes an operation that creates or ends clients and sessions. Such an operation is alone in
/// its compound.
async fn outside_session(request: &Request, compound: &Sized) -> Outcome {
    let op = &compound.ops[0];
    let alone = matches!(
        op,
        Op::ExchangeId(_)
            | Op::CreateSession(_)
            | Op::DestroySession(_)
            | Op::BindConnToSession(_)
            | Op::DestroyClientid(_)
    );
    match (op, alone, compound.ops.len()) {
        (Op::Illegal(_), ..) => refused(request, compound, OpRes::Illegal(Nfsstat4::OP_ILLEGAL)),
        (_, false, _) => failed(request, compound, Nfsstat4::OP_NOT_IN_SESSION),
        (_, true, 2..) => failed(request, compound, Nfsstat4::NOT_ONLY_OP),
        (_, true, _) => {
            let mut exec = Exec::new(request, compound.minorversion);
            let counted = Counted::begin(request, compound, 0);
            let result = exec.execute(op, &[]).await;
            counted.end(result.number(), result.status(), Enc::of(&result).len());
            whole(compound, result.status(), vec![result])
        }
    }
}

async fn in_session(
    request: &Request,
    compound: &Sized,
    args: SequenceArgs,
    sum: u64,
    len: usize,
) -> Outcome {
    let nfs = &request.server.v4;
    let refuse = |status| failed(request, compound, status);
    let Some(session) = nfs.clients.session(&args.sessionid) else {
        return of_a_life_before(request, compound, args, sum).await;
    };
    let Some(client) = session.client.upgrade().filter(|c| !c.is_gone()) else {
        return refuse(Nfsstat4::BADSESSION);
    };
    if compound.ops.len() > session.fore.maxoperations as usize {
        return refuse(Nfsstat4::TOO_MANY_OPS);
    }
    if len > session.fore.maxrequestsize as usize {
        return refuse(Nfsstat4::REQ_TOO_BIG);
    }
    match session.begin(&args, sum).await {
        Err(status) => return refuse(status),
        Ok(Slotted::Again(reply)) => {
            client.heard(nfs.clients.now());
            return Outcome::Done(segments(reply));
        }
        Ok(Slotted::New) => {}
    }
    client.heard(nfs.clients.now());
    nfs.leases.heard(&client);
    let running = Running::new(&session, &client, args);
    let mut exec = Exec::new(request, compound.minorversion);
    exec.begin(session.clone(), client.clone(), CallId::of(&args, sum));
    let most = (session.fore.maxresponsesize as usize, session.fore.maxresponsesize_cached as usize);
    exec.may_pipe = !args.cachethis;
    let outcome = match run(&mut exec, compound, most, &args).await {
        Reply::Whole(reply) => {
            let reply = reply.finish();
            session.finish(&args, &reply);
            Outcome::Done(segments(reply))
        }
        Reply::Piped(before, payload, after) => {
            session.finish_unkept(&args);
            Outcome::Piped(before, payload, after)
        }
    };
    client.traffic.add(compound.minorversion, len, counters::reply_bytes(&outcome));
    // The end of a long call renews the lease, too.
    client.heard(nfs.clients.now());
    drop(running);
    outcome
}

/// Executes a call of an unknown session, which an earlier process of the server may have executed.
async fn of_a_life_before(request: &Request, compound: &Sized, args: SequenceArgs, sum: u64) -> Outcome {
    let refuse = |status| failed(request, compound, status);
    let id = CallId::of(&args, sum);
    let Some((done, turn)) = request.server.v4.replays.find(id) else {
        return refuse(Nfsstat4::BADSESSION);
    };
    // The call is executed once, and every repetition gets its reply.
    let mut turn = turn.lock().await;
    match &*turn {
        Turn::No => *turn = Turn::Begun,
        Turn::Begun => return refuse(Nfsstat4::RETRY_UNCACHED_REP),
        Turn::Done(reply) => return Outcome::Done(segments(vec![reply.clone()])),
    }
    let mut exec = Exec::new(request, compound.minorversion);
    exec.begin_again(done, id);
    let most = (request.server.options.io_max_bytes + setup::OVERHEAD_BYTES) as usize;
    let Reply::Whole(reply) = run(&mut exec, compound, (most, most), &args).await else {
        return Outcome::SystemErr;
    };
    let reply = reply.finish();
    turn.finish(&reply);
    Outcome::Done(segments(reply))
}

/// A slot with a call in progress. Dropping it frees the slot, even when the call ended without a
/// reply.
struct Running {
    session: Arc<Session>,
    client: Arc<Client>,
    args: SequenceArgs,
}

impl Running {
    fn new(session: &Arc<Session>, client: &Arc<Client>, args: SequenceArgs) -> Self {
        client.running.fetch_add(1, SeqCst);
        Self { session: session.clone(), client: client.clone(), args }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.session.abandon(&self.args);
        self.client.running.fetch_sub(1, SeqCst);
    }
}

fn segments(reply: Vec<Bytes>) -> Enc {
    let mut out = Enc::new();
    for part in reply {
        out.push_segment(part);
    }
    out
}

/// The reply to a compound.
enum Reply {
    Whole(Enc),
    /// The bytes before the payload of a READ, the payload in a pipe, and the bytes after it.
    Piped(Enc, Box<dyn Piped>, Enc),
}

/// Room for a result, in bytes.
struct Room {
    bytes: usize,
    /// Room in a reply that the session must cache.
    cached_bytes: usize,
}

impl Room {
    /// The room after `used` bytes of a reply with the limits `most`. Room for the failure of the
    /// next operation is reserved.
    fn after(used: usize, is_last: bool, most: (usize, usize), cached: bool) -> Self {
        let used = if is_last { used } else { used + FAILURE_BYTES };
        let cached_bytes = if cached { most.1.saturating_sub(used) } else { usize::MAX };
        Self { bytes: most.0.saturating_sub(used), cached_bytes }
    }

    /// The status with which a result of this size is refused.
    fn refuses(&self, bytes: usize) -> Option<Nfsstat4> {
        match bytes.max(FAILURE_BYTES) {
            bytes if bytes > self.bytes => Some(Nfsstat4::REP_TOO_BIG),
            bytes if bytes > self.cached_bytes => Some(Nfsstat4::REP_TOO_BIG_TO_CACHE),
            _ => None,
        }
    }

    /// Room for the data of an operation that fills its result. Some room is left for the results
    /// after it.
    fn for_data(&self) -> usize {
        self.bytes.saturating_sub((self.bytes / 8).clamp(64, ROOM_BYTES))
    }
}

/// Executes operations up to the first failure. `most` has the limits of a reply and of a cached
/// reply, in bytes.
async fn run(exec: &mut Exec<'_>, compound: &Sized, most: (usize, usize), args: &SequenceArgs) -> Reply {
    let mut results = Enc::new();
    // The payload, and the results before it.
    let mut piped = None;
    let mut before_bytes = 0;
    let (mut status, mut count) = (Nfsstat4::OK, 0u32);
    let head = setup::REPLY_HEADER_BYTES + 12 + compound.tag.len().next_multiple_of(4);
    for (i, op) in compound.ops.iter().enumerate() {
        let used = head + before_bytes + results.len();
        let is_last = i + 1 == compound.ops.len();
        let room = Room::after(used, is_last, most, args.cachethis);
        exec.at = i;
        exec.room_bytes = room.for_data();
        exec.listing_room_bytes = (exec.r.server.options.listing_max_bytes as usize).saturating_sub(used);
        let counted = Counted::begin(exec.r, compound, i);
        let too_big = room.refuses(if exec::changes(op) { RESULT_OF_CHANGE_MAX_BYTES } else { 0 });
        let result = match (op, too_big) {
            (Op::Sequence(_), _) if i == 0 => exec.sequence(args),
            (Op::Sequence(_), _) => OpRes::failed(op.number(), Nfsstat4::SEQUENCE_POS),
            (_, Some(status)) => OpRes::failed(op.number(), status),
            _ => exec.execute_or_again(op, &compound.ops[i + 1..]).await,
        };
        status = result.status();
        let mut encoded = Enc::of(&result);
        // The result of an operation that changed nothing may be replaced by a failure.
        let in_vain = i > 0 && (!exec::changes(op) || status != Nfsstat4::OK);
        if let Some(too_big) = room.refuses(encoded.len()).filter(|_| in_vain) {
            let result = OpRes::failed(op.number(), too_big);
            (status, encoded) = (too_big, Enc::of(&result));
        }
        let payload_bytes = exec.piped.as_ref().map_or(0, |payload| payload.len().next_multiple_of(4));
        counted.end(result.number(), status, encoded.len() + payload_bytes);
        if let Some(payload) = exec.piped.take() {
            let mut after = Enc::new();
            piped::around(&mut encoded, payload.len() as u32, &mut after);
            results.append(encoded);
            before_bytes = results.len() + payload.len();
            piped = Some((std::mem::replace(&mut results, after), piped::payload(payload)));
            exec.may_pipe = false;
        } else {
            results.append(encoded);
        }
        count += 1;
        if status != Nfsstat4::OK {
            break;
        }
    }
    let mut reply = Enc::new();
    status.enc(&mut reply);
    compound.tag.enc(&mut reply);
    reply.u32(count);
    match piped {
        None => {
            reply.append(results);
            Reply::Whole(reply)
        }
        Some((before, payload)) => {
            reply.append(before);
            Reply::Piped(reply, payload, results)
        }
    }
}
