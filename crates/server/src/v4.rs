//! NFSv4.1 and 4.2 (RFC 8881, 7862, 8276) over a `Vfs`.
//!
//! It knows nothing of connections but that calls come on them and can go back. A compound is
//! executed operation by operation ([`exec`]); a run of LOOKUPs is one walk of the `Vfs`. What
//! clients hold is in [`clients`], [`session`] and [`state`]; what of it outlives a restart in
//! [`stable`]. After a restart in which clients held something there is a grace period: they take
//! it back before anybody else gets anything that could be in its way.
//!
//! NFSv4.0 is not offered. Files are delegated for reading and for writing ([`delegation`]).

mod acl;
mod attrs;
mod callback;
mod clients;
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
mod session;
mod setup;
mod stable;
mod state;
#[cfg(test)]
mod tests;
mod xattr;

use crate::piped;
use crate::scarcity;
use crate::server::{Options, Request, Server};
use crate::table::Table;
use bytes::Bytes;
use clients::{Client, Clients};
use delegation::Leases;
use exec::Exec;
use hither_proto::nfs4::{Compound, CompoundReply, Nfsstat4, Op, OpRes, SequenceArgs};
use hither_proto::xdr::{Dec, Enc, Xdr};
use hither_rpc::server::{Incoming, Outcome, Pace, Peer, Piped};
use hither_vfs::{Cred, Cx};
use parking_lot::Mutex;
use replay::{CallId, Replays, Turn};
use session::{Session, Slotted};
use stable::Stable;
pub(crate) use stable::write_durably;
use state::{Locks, Registry};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a reply that a READ or READDIR leaves for the results behind it, at most.
const ROOM_BYTES: usize = 512;
/// Bytes of a result that says nothing but a status.
const FAILURE_BYTES: usize = 8;
/// Longest result of an operation that changes something: that of an OPEN with a delegation for
/// writing has 116 bytes.
const RESULT_OF_CHANGE_MAX_BYTES: usize = 128;
/// By so much calls that wait for their turn prolong recovery at most; as delayed writes of NQNFS
/// do.
const HELD_UP_MAX: Duration = Duration::from_secs(300);

/// What NFSv4 remembers.
pub(crate) struct Nfs4 {
    pub(crate) clients: Clients,
    pub(crate) registry: Registry,
    pub(crate) replays: Replays,
    stable: Stable,
    /// The server's name, and the scope of its filehandles and state.
    name: Bytes,
    /// Who held something before the restart and has not said that there is nothing more to
    /// reclaim.
    reclaimers: Mutex<HashSet<Bytes>>,
    /// Those of them who may have held delegations, and until when they may believe so.
    outstanding: Mutex<HashSet<Bytes>>,
    outstanding_end: Deadline,
    /// Some of these may be for writing.
    outstanding_writes: bool,
    pub(crate) leases: Arc<Leases>,
    grace_end: Deadline,
    /// How fast calls are taken while clients recover.
    pace: Option<Arc<Pace>>,
    lease: Duration,
    courtesy: Duration,
    clients_max: usize,
    /// Most opens and locks of one client.
    states_of_client_max: usize,
    /// Changes with the exports.
    generation: AtomicU64,
}

/// A moment that comes later when calls wait for their turn then, and once.
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
    /// Reads who may reclaim.
    pub fn new(options: &Options) -> std::io::Result<Self> {
        let dir = options.state_dir.as_deref();
        let (stable, reclaimers) = Stable::open(dir)?;
        let boot = (options.env.random)() as u32;
        if !reclaimers.is_empty() {
            tracing::info!(
                "{} clients may reclaim their state of before the restart, within {} s",
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

    /// Whether others than those who reclaim have to wait.
    fn in_grace(&self) -> bool {
        !self.is_past(&self.grace_end) && !self.reclaimers.lock().is_empty()
    }

    /// Whether a moment has come until which clients may do something, and none of their calls
    /// waits here.
    fn is_past(&self, deadline: &Deadline) -> bool {
        deadline.is_past(self.pace.as_ref().is_some_and(|pace| pace.holds_up()))
    }

    /// How fast calls are taken now. Clients of NFSv3 recover, too, and say nothing of it: with
    /// `stateless` the whole time of grace is theirs.
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

    /// Whether somebody may still rely on a delegation of before the restart, so that nothing may
    /// be changed that he could have.
    pub(crate) fn may_be_delegated(&self) -> bool {
        !self.is_past(&self.outstanding_end) && !self.outstanding.lock().is_empty()
    }

    /// Whether somebody may still delay writes under a delegation of before the restart, so that
    /// nothing is to be read that he could have.
    pub(crate) fn may_be_dirty(&self) -> bool {
        self.outstanding_writes && self.may_be_delegated()
    }

    /// The exports have changed, and with them the directories that lead to them.
    pub fn exports_changed(&self) {
        self.generation.fetch_add(1, Relaxed);
    }

    /// A connection has ended.
    pub fn closed(&self, peer: &Peer) {
        self.clients.closed(peer);
    }

    /// Ends what clients hold that are silent for too long, and the grace period. Runs until it is
    /// dropped.
    pub async fn tend(&self, server: &Arc<Server>) {
        let mut every = tokio::time::interval((self.lease / 4).max(Duration::from_millis(100)));
        loop {
            every.tick().await;
            if self.is_past(&self.grace_end) {
                let late: Vec<Bytes> = self.reclaimers.lock().drain().collect();
                for owner in late {
                    tracing::info!("client {} did not reclaim its state in time", owner.escape_ascii());
                    self.stable.forget(owner);
                }
            }
            let crowded = self.registry.count() > self.registry_limit()
                || self.clients.count() > self.clients_max / 4 * 3;
            for client in self.clients.all() {
                let silent = self.clients.silent(&client);
                let confirmed = client.confirmed.load(Relaxed);
                let patience = if confirmed && !crowded { self.lease + self.courtesy } else { self.lease };
                if silent > patience {
                    tracing::info!(
                        "client {} has been silent for {} s: its state ends",
                        client.owner.escape_ascii(),
                        silent.as_secs()
                    );
                    self.expire(&client).await;
                }
            }
            // A call that had begun before the exports changed may have opened one.
            self.close_unserved(&server.table()).await;
            self.registry.tidy();
        }
    }

    fn registry_limit(&self) -> usize {
        self.registry.max() / 4 * 3
    }

    /// Whether a client's lease has run out, so that what it holds gives way.
    fn is_courtesy(&self, client: &Client) -> bool {
        self.clients.silent(client) > self.lease
    }

    /// Something that opens need is used up: ends what clients hold whose lease has run out.
    /// Returns whether it is worth to come back: something ended, or another client may be dead and
    /// its lease will run out.
    pub(crate) async fn relieve(&self, own: &Client) -> bool {
        let (mut ended, mut may_end) = (false, false);
        for client in self.clients.all() {
            if client.id == own.id || !client.holds_anything() {
                continue;
            }
            if self.is_courtesy(&client) {
                tracing::info!(
                    "client {} is silent beyond its lease, and room is needed: its state ends",
                    client.owner.escape_ascii()
                );
                self.expire(&client).await;
                ended = true;
            }
            may_end |= self.clients.silent(&client) > MAY_BE_DEAD;
        }
        ended || (may_end && scarcity::lasts() <= self.lease + MAY_BE_DEAD)
    }

    /// Ends a client and what it holds.
    pub(crate) async fn expire(&self, client: &Arc<Client>) {
        self.clients.remove(client);
        self.leases.forget(&self.registry, client);
        self.close_all(client).await;
        if client.confirmed.load(Relaxed) {
            self.stable.forget(client.owner.clone());
        }
    }

    /// Nobody is served any more: clients that hold nothing have nothing to reclaim, so the next
    /// server waits for none of them.
    pub(crate) fn end(&self) {
        for client in self.clients.all() {
            if client.confirmed.load(Relaxed) && !client.holds_anything() {
                self.stable.forget_now(&client.owner);
            }
        }
    }

    /// Ends a former life of a client that has begun another.
    async fn end_former(&self, client: &Arc<Client>) {
        self.clients.remove(client);
        self.leases.forget(&self.registry, client);
        self.close_all(client).await;
    }

    /// Ends all opens of a client that is gone.
    async fn close_all(&self, client: &Client) {
        self.close_each(self.registry.opens_of(client)).await;
    }

    /// Ends all opens of files that are in no export any more: no call can name them, and they keep
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

    /// Ends an open and the locks under it, here and below. With the file's `order` held.
    async fn close(&self, open: &Arc<state::Open>) {
        unlock_below(&self.registry.close(open)).await;
    }
}

/// Tells the layer below, and whoever waits, that locks are gone.
async fn unlock_below(locks: &[Arc<Locks>]) {
    let all = hither_vfs::FileRange { start_bytes: 0, end_bytes: u64::MAX };
    let cx = Cx::new(Arc::new(Cred::root()));
    for l in locks {
        let file = hither_vfs::File { fh: &l.open.file.key.1, open: None };
        let owner = hither_vfs::LockOwner { id: l.number, flock: false };
        let _ = l.open.file.export.vfs.unlock(&cx, file, owner, all).await;
        lock::tell_waiters(&l.open.file);
    }
}

/// A client that holds something and is silent for so long may be dead.
const MAY_BE_DEAD: Duration = Duration::from_secs(10);
/// Largest extended attribute, and list of them.
const LARGE_XATTR_BYTES: usize = 64 << 10;

/// Answers a COMPOUND.
pub(crate) async fn answer(server: &Arc<Server>, call: Incoming) -> Outcome {
    let Ok(compound) = Dec::all::<Compound>(&call.args) else { return Outcome::GarbageArgs };
    call.room.expect(reply_bytes(&compound, server.options.io_max_bytes)).await;
    let sum = replay::checksum(&call.args, &call.caller);
    let len = call.args.len() + setup::header_bytes(&call.caller);
    let request = Request::new(server, call.peer, call.caller);
    if !(1..=2).contains(&compound.minorversion) {
        return whole(&compound, Nfsstat4::MINOR_VERS_MISMATCH, vec![]);
    }
    let Some(first) = compound.ops.first() else { return whole(&compound, Nfsstat4::OK, vec![]) };
    match first {
        Op::Sequence(args) => in_session(&request, &compound, *args, sum, len).await,
        _ => outside_session(&request, &compound).await,
    }
}

/// Most bytes of a reply, as far as it may be large: a session allows one payload of the largest
/// size.
fn reply_bytes(compound: &Compound, io_max_bytes: u32) -> usize {
    let payload = |op: &Op| match op {
        Op::Read(a) => a.count as usize,
        Op::Readdir(a) => a.maxcount as usize,
        Op::Listxattrs(_) | Op::Getxattr(_) => LARGE_XATTR_BYTES,
        _ => 0,
    };
    let all = compound.ops.iter().map(payload).fold(0, usize::saturating_add);
    all.min((io_max_bytes + setup::OVERHEAD_BYTES) as usize)
}

fn whole(compound: &Compound, status: Nfsstat4, results: Vec<OpRes>) -> Outcome {
    Outcome::Done(Enc::of(&CompoundReply { status, tag: compound.tag.clone(), results: results.into() }))
}

fn failed(compound: &Compound, op: &Op, status: Nfsstat4) -> Outcome {
    whole(compound, status, vec![OpRes::failed(op.number(), status)])
}

/// Operations that make sessions stand alone.
async fn outside_session(request: &Request, compound: &Compound) -> Outcome {
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
        (Op::Illegal(_), ..) => {
            whole(compound, Nfsstat4::OP_ILLEGAL, vec![OpRes::Illegal(Nfsstat4::OP_ILLEGAL)])
        }
        (_, false, _) => failed(compound, op, Nfsstat4::OP_NOT_IN_SESSION),
        (_, true, 2..) => failed(compound, op, Nfsstat4::NOT_ONLY_OP),
        (_, true, _) => {
            let mut exec = Exec::new(request, compound.minorversion);
            let result = exec.execute(op, &[]).await;
            whole(compound, result.status(), vec![result])
        }
    }
}

async fn in_session(
    request: &Request,
    compound: &Compound,
    args: SequenceArgs,
    sum: u64,
    len: usize,
) -> Outcome {
    let nfs = &request.server.v4;
    let refuse = |status| failed(compound, &compound.ops[0], status);
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
    let running = Running { session: session.clone(), args };
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
    drop(running);
    // Calls that take long renew the lease when they end, too.
    client.heard(nfs.clients.now());
    outcome
}

/// A call in a session that is not known: one that a life before may have executed.
async fn of_a_life_before(request: &Request, compound: &Compound, args: SequenceArgs, sum: u64) -> Outcome {
    let refuse = |status| failed(compound, &compound.ops[0], status);
    let id = CallId::of(&args, sum);
    let Some((done, turn)) = request.server.v4.replays.find(id) else {
        return refuse(Nfsstat4::BADSESSION);
    };
    // One at a time, and once only: the first reply is for all who ask.
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

/// A slot whose call is being executed; one that fails leaves it without a reply, not busy for
/// ever.
struct Running {
    session: Arc<Session>,
    args: SequenceArgs,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.session.abandon(&self.args);
    }
}

fn segments(reply: Vec<Bytes>) -> Enc {
    let mut out = Enc::new();
    for part in reply {
        out.push_segment(part);
    }
    out
}

/// What a compound is answered.
enum Reply {
    Whole(Enc),
    /// Up to the payload of a READ, that, and what follows.
    Piped(Enc, Box<dyn Piped>, Enc),
}

/// The room that a result has.
struct Room {
    bytes: usize,
    /// In a reply that is to be kept.
    cached_bytes: usize,
}

impl Room {
    /// Behind `used` bytes of a reply with limits `most`. A failure of the operation that follows
    /// has room, too.
    fn after(used: usize, is_last: bool, most: (usize, usize), cached: bool) -> Self {
        let used = if is_last { used } else { used + FAILURE_BYTES };
        let cached_bytes = if cached { most.1.saturating_sub(used) } else { usize::MAX };
        Self { bytes: most.0.saturating_sub(used), cached_bytes }
    }

    /// Why a result of so many bytes cannot be sent.
    fn refuses(&self, bytes: usize) -> Option<Nfsstat4> {
        match bytes.max(FAILURE_BYTES) {
            bytes if bytes > self.bytes => Some(Nfsstat4::REP_TOO_BIG),
            bytes if bytes > self.cached_bytes => Some(Nfsstat4::REP_TOO_BIG_TO_CACHE),
            _ => None,
        }
    }

    /// Bytes of data for an operation that returns as much as there is room for: results behind it
    /// have some as well.
    fn for_data(&self) -> usize {
        self.bytes.saturating_sub((self.bytes / 8).clamp(64, ROOM_BYTES))
    }
}

/// Executes operations up to the first that fails. `most`: bytes of a reply, and of one that is
/// kept.
async fn run(exec: &mut Exec<'_>, compound: &Compound, most: (usize, usize), args: &SequenceArgs) -> Reply {
    let mut results = Enc::new();
    // With results before it.
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
        let too_big = room.refuses(if exec::changes(op) { RESULT_OF_CHANGE_MAX_BYTES } else { 0 });
        let result = match (op, too_big) {
            (Op::Sequence(_), _) if i == 0 => exec.sequence(args),
            (Op::Sequence(_), _) => OpRes::failed(op.number(), Nfsstat4::SEQUENCE_POS),
            (_, Some(status)) => OpRes::failed(op.number(), status),
            _ => exec.execute_or_again(op, &compound.ops[i + 1..]).await,
        };
        status = result.status();
        let mut encoded = Enc::of(&result);
        // An operation that changed nothing may have been executed in vain.
        let in_vain = i > 0 && (!exec::changes(op) || status != Nfsstat4::OK);
        if let Some(too_big) = room.refuses(encoded.len()).filter(|_| in_vain) {
            let result = OpRes::failed(op.number(), too_big);
            (status, encoded) = (too_big, Enc::of(&result));
        }
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
