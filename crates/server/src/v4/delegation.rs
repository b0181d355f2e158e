//! Delegations of files (RFC 8881 section 10.4) and directories (section 10.9). Under a delegation
//! a client caches the data of a file without asking, delays writes to it, or caches the names of a
//! directory. All delegations are in the one lease table.
//!
//! The module knows nothing of operations on the wire. A read delegation promises that no other
//! client of this server changes the file, its attributes or its names. The promise covers NFSv3
//! and NFSv4 clients. Where files can be watched ([`Watch`](hither_vfs::Watch)), it also covers
//! local programs. The holder itself may change the file, as long as the file can still be watched
//! then ([`change`]). A name that the holder removes recalls the holder's own delegation. Every
//! operation that changes a file first calls [`Leases::change`]. That recalls the delegations and
//! waits a moment for their return; after that the operation's client gets "try later".
//!
//! A write delegation promises that no other client has the file open or reads its data or
//! attributes. Every operation that reads a file first calls [`Leases::read`]. An operation that
//! reads only attributes is an exception: the server asks the holder, which keeps its delegation
//! ([`ask`]). If a holder does not answer, its delegation ends when the holder's lease has
//! certainly expired. A write delegation does not end while the holder still writes
//! (`hither_lease`).
//!
//! A file is delegated ([`give`]) only to a client that has answered a callback on its current
//! connection. A read delegation is granted only while no client has the file open for writing. A
//! write delegation is granted only while no other client has the file open. A directory is
//! delegated for reading, and its holder may change it.
//!
//! Locks: `inner`, then a client's `states`. The effects of a table change are carried out without
//! the lock, in this order: watches end, then waiting operations proceed.

mod ask;
mod change;
mod give;
mod times;

pub use ask::DelegationCounts;
pub(crate) use ask::{HolderAnswer, LeaseCounts, Look};
pub(crate) use give::Wish;
pub(crate) use times::{HolderTimes, Times};

use ask::{Asking, Questions};

use super::clients::Client;
use super::state::{Registry, State};
use crate::handle;
use crate::nqnfs::leases::{Numbers, Short};
use hither_lease::{
    Access, Action, Boot, ClientId, Config, Decision, FileKey, Grant, Kind, Op, Permit, Table, Ticket,
};
use hither_proto::nfs4::{CbOp, CbRecallArgs, CbRes, Nfsstat4, Stateid};
use hither_rpc::server::Pace;
use hither_vfs::{Env, Fh, Watch, Watched};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// For how long an operation of NFSv4 waits for a recall: a few round trips. A longer wait would
/// hold a slot that the holder may need.
pub(crate) const PATIENCE_V4: Duration = Duration::from_millis(250);
/// For how long an operation of NFSv3 waits for a recall. NFSv3 clients repeat a call only after
/// seconds.
pub(crate) const PATIENCE_V3: Duration = Duration::from_secs(3);
/// Number of recalls that a client must answer with "no such delegation" before the server ends the
/// delegation. The reply with the grant was then lost for good.
const UNKNOWN_MAX: u8 = 4;
/// A file that was recalled a second time is not delegated again for this time. The time doubles
/// with each further recall.
const QUIET_MS: u32 = 500;
/// The longest such time. A file that is read and written in turn costs one recall in this time.
const QUIET_MAX_MS: u32 = 10_000;
/// The most that clocks may drift apart during a lease.
pub(super) const SKEW: Duration = Duration::from_secs(3);

/// A file or directory delegated to a client.
pub(crate) struct Delegation {
    pub other: [u8; 12],
    pub client: Arc<Client>,
    /// Number of the export, and handle.
    pub file: (u32, Fh),
    /// The kind when first granted: for reading, or also for writing.
    granted: Kind,
    /// The delegation was for reading, and is for writing now.
    writes_too: AtomicBool,
    /// Sequence number of the stateid. It grows when the client gets an upgrade to a write
    /// delegation.
    seqid: AtomicU32,
    /// The delegation is of a directory.
    pub directory: bool,
    key: FileKey,
    /// The lease's number in the table.
    seq: u64,
    minor: u32,
    recalled: AtomicBool,
    life: Mutex<Life>,
    /// A recall is in progress.
    calling: AtomicBool,
    watched: Mutex<Option<Watched>>,
    /// The watch of the export, if local programs can change the file.
    watch: Option<Arc<dyn Watch>>,
    /// Whether no local program uses the file, so that the holder may change it. The lock is held
    /// during the check.
    alone: tokio::sync::Mutex<bool>,
    /// CB_GETATTR calls to the holder.
    asking: Asking,
    /// The file's times at the grant, when the holder maintains the times.
    original: Mutex<Option<Times>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Held,
    /// The server has revoked the delegation. The client must confirm that by FREE_STATEID.
    Revoked,
    Gone,
}

impl Delegation {
    pub fn stateid(&self) -> Stateid {
        Stateid { seqid: self.seqid.load(SeqCst), other: self.other }
    }

    /// The current kind: for reading, or also for writing.
    pub fn kind(&self) -> Kind {
        if self.writes_too.load(SeqCst) { Kind::Write } else { self.granted }
    }

    /// The server has revoked the delegation, and the client has not confirmed that by
    /// FREE_STATEID.
    pub fn is_revoked(&self) -> bool {
        *self.life.lock() == Life::Revoked
    }

    /// The client has been asked to return the delegation.
    pub fn is_recalled(&self) -> bool {
        self.recalled.load(SeqCst)
    }

    /// Revokes the delegation. SEQUENCE reports that to the client until the client frees the
    /// stateid.
    fn revoke(&self) {
        let mut life = self.life.lock();
        if *life == Life::Held {
            *life = Life::Revoked;
            self.client.revoked.fetch_add(1, SeqCst);
            tracing::info!(
                client = %self.client.owner.escape_ascii(),
                "a delegation was not returned in time and is revoked"
            );
        }
    }

    /// Invalidates the stateid.
    fn bury(&self) {
        if std::mem::replace(&mut *self.life.lock(), Life::Gone) == Life::Revoked {
            self.client.revoked.fetch_sub(1, SeqCst);
        }
    }

    fn holder(&self) -> ClientId {
        id(&self.client)
    }
}

/// The lease table and its surroundings.
pub(crate) struct Leases {
    began: Instant,
    lease: Duration,
    /// Most delegations. 0: none are granted.
    most: usize,
    inner: Mutex<Inner>,
    /// Wakes the timer: the next deadline may be earlier.
    moved: Notify,
    count: AtomicUsize,
    /// Of these, write delegations.
    writers: AtomicUsize,
    /// Of these, delegations of directories.
    directories: AtomicUsize,
    /// Number of CB_RECALLs.
    recalls: AtomicU64,
    questions: Questions,
    /// Number of operations in progress that change the target of a name, where that target was not
    /// delegated at the start.
    naming: AtomicUsize,
    /// Number of ended operations that may have removed a name.
    removals: AtomicU64,
    /// The durable mark that files are delegated. 0: none. 1: for reading. 2: also for writing.
    marked: AtomicU8,
    /// Held while the mark is written.
    pub(crate) marking: tokio::sync::Mutex<()>,
    /// State of NQNFS, when the server offers it.
    pub(crate) short: Option<Short>,
    /// Limits the rate of calls. A waiting call is not in the table yet.
    pace: Option<Arc<Pace>>,
}

pub(crate) struct Inner {
    pub table: Table,
    waiting: HashMap<Ticket, oneshot::Sender<Turn>>,
    held: HashMap<(ClientId, FileKey), Arc<Delegation>>,
    /// Of these, write delegations. A file has at most one.
    writing: HashMap<FileKey, Arc<Delegation>>,
    /// Leases under which NQNFS clients may cache.
    pub short: crate::nqnfs::leases::GrantedLeases,
    /// Stores the table's numbers durably, when NQNFS needs them.
    pub numbers: Option<Numbers>,
    /// The next deadline of the table.
    due_ms: Option<u64>,
}

/// The outcome of waiting: the operation may proceed, or not.
type Turn = Result<Going, Refusal>;

/// An operation that may proceed.
pub(crate) struct Going {
    /// Until this is dropped, no client caches the file in conflict with the operation.
    pub changing: Changing,
    /// The lease that the operation requested.
    pub grant: Option<Grant>,
    /// The file's modify revision before the operation.
    pub revision: u64,
}

/// The reason why an operation may not proceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The client must try again later.
    Later,
    /// The operation relies on a lease that has ended.
    Expired,
}

/// An operation in progress that changes a file. Until this is dropped, no client gets a delegation
/// of the file.
pub(crate) struct Changing {
    leases: Arc<Leases>,
    permit: Option<Permit>,
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.done();
    }
}

impl Changing {
    /// Ends the operation. Returns the file's new modify revision, if the file may have changed and
    /// NQNFS is offered.
    pub fn done(&mut self) -> Option<u64> {
        let permit = self.permit.take()?;
        // Without NQNFS no client uses modify revisions. Change attributes come from the file
        // system.
        let numbered = self.leases.short.is_some();
        let revision = self.leases.act(|inner, now| inner.table.finish(now, permit, numbered));
        numbered.then_some(revision)
    }
}

/// A change of a name in progress. Until this is dropped, no client gets any delegation.
pub(crate) struct Naming {
    leases: Arc<Leases>,
    /// The name may be removed, or lead to another file afterwards.
    removes: bool,
    /// The current target of the name.
    pub file: Option<(Fh, Changing)>,
}

impl Drop for Naming {
    fn drop(&mut self) {
        // In this order: [`Leases::grant`] first reads `naming`.
        self.leases.removals.fetch_add(u64::from(self.removes), SeqCst);
        self.leases.naming.fetch_sub(1, SeqCst);
    }
}

/// The effects of a table change.
#[derive(Default)]
struct Todo {
    ended: Vec<Arc<Delegation>>,
    ready: Vec<(oneshot::Sender<Turn>, Decision)>,
    recall: Vec<(Arc<Delegation>, u8)>,
    /// NQNFS leases to evict.
    evict: Vec<(ClientId, (u32, Fh))>,
    /// Watches to end.
    unwatched: Vec<Watched>,
    earlier: bool,
}

/// Cancels the wait of an operation when the operation's future is dropped.
struct Waiting<'a> {
    leases: &'a Arc<Leases>,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.leases.act(|inner, now| {
            if inner.waiting.remove(&self.ticket).is_some() {
                inner.table.cancel(now, self.ticket);
            }
        });
    }
}

fn mark(kind: Kind) -> u8 {
    match kind {
        Kind::Read => 1,
        Kind::Write => 2,
    }
}

fn id(client: &Client) -> ClientId {
    // The upper half of a client id is the server's boot number.
    ClientId(client.id as u32)
}

/// The file's key in the table.
pub(crate) fn key(fh: &Fh) -> FileKey {
    FileKey([XxHash3_64::oneshot(&fh.0), XxHash3_64::oneshot_with_seed(1, &fh.0)])
}

impl Leases {
    /// A table with at most `most` delegations, for clients with the lease time `lease`. `short`
    /// has the settings of NQNFS.
    ///
    /// # Errors
    /// The numbers of NQNFS cannot be made durable.
    pub fn new(
        most: usize,
        lease: Duration,
        env: &Env,
        short: Option<(Short, Numbers)>,
        pace: Option<Arc<Pace>>,
    ) -> std::io::Result<Arc<Self>> {
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let most_u32 = u32::try_from(most).unwrap_or(u32::MAX / 4);
        let boot = short.as_ref().map_or(Boot::FIRST, |(_, numbers)| numbers.boot());
        let (short, numbers) = short.unzip();
        let leases_max = most_u32.max(1).saturating_add(short.as_ref().map_or(0, |s| s.options.leases_max));
        let usual = short.as_ref().map_or_else(Config::default, Short::config);
        let config = Config {
            recall_timeout_ms: lease_ms,
            skew_ms: SKEW.as_millis() as u32,
            quiet_ms: QUIET_MS,
            quiet_max_ms: QUIET_MAX_MS,
            leases_max,
            files_max: leases_max.saturating_add(1 << 20),
            hash_seed: (env.random)(),
            ..usual
        };
        let inner = Inner {
            // `Nfs4::may_be_delegated` delays changes until delegations from before a restart are
            // reclaimed or have expired.
            table: Table::new(config, boot, 0),
            waiting: HashMap::new(),
            held: HashMap::new(),
            writing: HashMap::new(),
            short: short.as_ref().map(Short::held).unwrap_or_default(),
            numbers,
            due_ms: None,
        };
        let leases = Arc::new(Self {
            began: Instant::now(),
            lease,
            most,
            inner: Mutex::new(inner),
            moved: Notify::new(),
            count: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            directories: AtomicUsize::new(0),
            recalls: AtomicU64::new(0),
            questions: Questions::new(env),
            naming: AtomicUsize::new(0),
            removals: AtomicU64::new(0),
            marked: AtomicU8::new(0),
            marking: tokio::sync::Mutex::default(),
            short,
            pace,
        });
        leases.act(|inner, _| match &mut inner.numbers {
            Some(numbers) => numbers.check(),
            None => Ok(()),
        })?;
        leases.act(|_, _| ());
        Ok(leases)
    }

    /// Whether the durable mark covers delegations of this kind.
    pub fn is_marked(&self, kind: Kind) -> bool {
        self.most == 0 || self.marked.load(SeqCst) >= mark(kind)
    }

    /// Records that the durable mark has been written.
    pub fn marked(&self, kind: Kind) {
        self.marked.fetch_max(mark(kind), SeqCst);
    }

    /// Whether the server grants delegations.
    pub fn delegates(&self) -> bool {
        self.most > 0
    }

    /// Whether any delegation or NQNFS lease may exist. Takes no lock.
    pub fn any(&self) -> bool {
        self.count.load(SeqCst) > 0 || self.short.is_some()
    }

    /// Whether any client may delay writes to any file, so that reads must ask.
    pub fn may_be_delayed(&self) -> bool {
        self.writers.load(SeqCst) > 0 || self.short.as_ref().is_some_and(Short::may_be_delayed)
    }

    /// Changes the table and carries out the effects.
    pub(crate) fn act<T>(self: &Arc<Self>, change: impl FnOnce(&mut Inner, u64) -> T) -> T {
        let now = self.began.elapsed().as_millis() as u64;
        let (result, todo) = {
            let mut inner = self.inner.lock();
            if let Some(pace) = &self.pace {
                inner.table.set_idle(!pace.holds_up());
            }
            let result = change(&mut inner, now);
            (result, inner.todo())
        };
        self.carry_out(todo);
        result
    }

    fn carry_out(self: &Arc<Self>, todo: Todo) {
        for d in todo.ended {
            self.lapse(&d);
        }
        drop(todo.unwatched);
        for (tell, decision) in todo.ready {
            // If the receiver is gone, the decision is dropped, and its permit with it.
            let _ = tell.send(self.turn(decision));
        }
        for (client, file) in todo.evict {
            if let Some(short) = &self.short {
                short.clients.evict(client, &file);
            }
        }
        for (d, attempt) in todo.recall {
            if !d.calling.swap(true, SeqCst) {
                tokio::spawn(self.clone().recall(d, attempt));
            }
        }
        if todo.earlier {
            self.moved.notify_one();
        }
    }

    fn turn(self: &Arc<Self>, decision: Decision) -> Turn {
        match decision {
            Decision::Go(go) => {
                let changing = Changing { leases: self.clone(), permit: go.permit };
                Ok(Going { changing, grant: go.grant, revision: go.revision })
            }
            Decision::Expired => Err(Refusal::Expired),
            Decision::Wait(_) | Decision::TryLater { .. } => Err(Refusal::Later),
        }
    }

    /// Begins an operation: waits until no client caches the file in conflict with it, for at most
    /// `patience`.
    ///
    /// # Errors
    /// A client still does, or the operation relies on a lease that has ended.
    pub async fn begin(self: &Arc<Self>, access: Access, patience: Duration) -> Turn {
        self.begin_with(patience, |_| Ok(access)).await
    }

    /// As [`Leases::begin`], for an operation that depends on the table at the moment of its start.
    ///
    /// # Errors
    /// As [`Leases::begin`], and those of `access`.
    pub async fn begin_with(
        self: &Arc<Self>,
        patience: Duration,
        access: impl FnOnce(&Inner) -> Result<Access, Refusal>,
    ) -> Turn {
        let begun = self.act(|inner, now| {
            // Leases that have expired by now must not delay the operation.
            inner.table.handle_timeout(now);
            let access = match access(inner) {
                Ok(access) => access,
                Err(refusal) => return Ok(Err(refusal)),
            };
            match inner.table.begin(now, access) {
                Decision::Wait(ticket) => {
                    let (tell, told) = oneshot::channel();
                    inner.waiting.insert(ticket, tell);
                    Err((ticket, told))
                }
                decision => Ok(Ok(decision)),
            }
        });
        match begun {
            Ok(decision) => self.turn(decision?),
            Err((ticket, told)) => {
                let _waiting = Waiting { leases: self, ticket };
                let turn = tokio::time::timeout(patience, told).await;
                turn.map_err(|_| Refusal::Later)?.map_err(|_| Refusal::Later)?
            }
        }
    }

    /// Waits until no other client has delayed writes to a file that is about to be read or opened
    /// for reading. Returns true when a client may have had some: earlier reads are out of date.
    ///
    /// # Errors
    /// `DELAY`: a client still has delayed writes, and the operation should be repeated.
    pub async fn read(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        fh: &Fh,
        patience: Duration,
    ) -> Result<bool, Nfsstat4> {
        if !self.may_be_delayed() {
            return Ok(false);
        }
        let client = client.map(|c| id(c));
        let access = Access { client, file: key(fh), op: Op::Read, lease: None, claim: None };
        self.begin(access, patience).await.map_err(|_| Nfsstat4::DELAY)?;
        Ok(true)
    }

    /// Recalls the delegations that prevent a client from reading a file, without waiting.
    pub fn want(self: &Arc<Self>, client: Option<&Arc<Client>>, fh: &Fh) {
        let client = client.map(|c| id(c));
        let access = Access { client, file: key(fh), op: Op::Read, lease: None, claim: None };
        self.act(|inner, now| {
            if let Decision::Wait(ticket) = inner.table.begin(now, access) {
                inner.table.cancel(now, ticket);
            }
        });
    }

    /// Whether another client may have delayed writes to a file now.
    pub fn is_delayed(self: &Arc<Self>, client: Option<&Arc<Client>>, fh: &Fh) -> bool {
        let client = client.map(|c| id(c));
        let delayed =
            |inner: &mut Inner, _| inner.table.is_recovering() || !inner.table.may_read(client, key(fh));
        self.may_be_delayed() && self.act(delayed)
    }

    /// Whether a client has a delegation of a file.
    pub fn holds(&self, client: &Client, fh: &Fh) -> bool {
        self.inner.lock().held.contains_key(&(id(client), key(fh)))
    }

    /// Whether NQNFS leases from before a restart may be out. Until they end, only delayed writes
    /// are served.
    pub fn is_recovering(self: &Arc<Self>) -> bool {
        self.short.is_some() && self.act(|inner, _| inner.table.is_recovering())
    }

    /// Runs the timers of leases. Runs until the caller drops it.
    pub async fn run(self: &Arc<Self>) {
        loop {
            let due = self.inner.lock().due_ms;
            match due {
                Some(ms) => {
                    let at = self.began + Duration::from_millis(ms);
                    tokio::select! { () = tokio::time::sleep_until(at) => {}, () = self.moved.notified() => {} }
                }
                None => self.moved.notified().await,
            }
            self.act(|inner, now| inner.table.handle_timeout(now));
            if let Some(short) = &self.short {
                short.tend(self);
            }
        }
    }

    /// Renews a client's delegations after a call of the client.
    pub fn heard(self: &Arc<Self>, client: &Client) {
        if client.delegations.load(SeqCst) > 0 {
            let lease_ms = self.lease.as_millis() as u32;
            self.act(|inner, now| inner.table.renew(now, id(client), lease_ms));
        }
    }

    /// Ends a delegation that was returned, or that its client does not have.
    pub fn end(self: &Arc<Self>, registry: &Registry, d: &Arc<Delegation>) {
        registry.forget(&d.client, &d.other);
        d.bury();
        self.give_up(d);
    }

    /// Lets operations proceed that wait for a delegation.
    fn give_up(self: &Arc<Self>, d: &Arc<Delegation>) {
        // The watch ends first: the waiting operations would otherwise wait for it.
        drop(d.watched.lock().take());
        self.act(|inner, now| {
            inner.table.vacated(now, d.holder(), d.key, Some(d.seq), false);
            self.drop_held(inner, d);
        });
    }

    fn drop_held(&self, inner: &mut Inner, d: &Arc<Delegation>) {
        let place = (d.holder(), d.key);
        if inner.held.get(&place).is_some_and(|held| Arc::ptr_eq(held, d)) {
            inner.held.remove(&place);
            inner.writes_no_more(d);
            self.uncount(d);
        }
    }

    fn count(&self, d: &Delegation) {
        self.count.fetch_add(1, SeqCst);
        if d.kind() == Kind::Write {
            self.writers.fetch_add(1, SeqCst);
        }
        if d.directory {
            self.directories.fetch_add(1, SeqCst);
        }
        d.client.delegations.fetch_add(1, SeqCst);
    }

    fn uncount(&self, d: &Delegation) {
        if d.kind() == Kind::Write {
            self.writers.fetch_sub(1, SeqCst);
        }
        if d.directory {
            self.directories.fetch_sub(1, SeqCst);
        }
        self.count.fetch_sub(1, SeqCst);
        d.client.delegations.fetch_sub(1, SeqCst);
    }

    /// Handles a delegation that the table has ended.
    fn lapse(&self, d: &Arc<Delegation>) {
        // Revoke first, so that a watch that is set up concurrently is dropped.
        d.revoke();
        drop(d.watched.lock().take());
        self.uncount(d);
    }

    /// Ends all delegations of a client.
    pub fn forget(self: &Arc<Self>, registry: &Registry, client: &Arc<Client>) {
        let all: Vec<Arc<Delegation>> = {
            let states = client.states.lock();
            let delegations = states.values().filter_map(|s| match s {
                State::Delegation(d) => Some(d.clone()),
                _ => None,
            });
            delegations.collect()
        };
        all.iter().for_each(|d| self.end(registry, d));
        self.act(|inner, now| inner.table.forget(now, id(client)));
    }

    /// Recalls delegations of a file that a local program changes or wants to change.
    pub fn changed_elsewhere(self: &Arc<Self>, fh: &Fh) {
        if self.any() {
            self.act(|inner, now| inner.table.changed(now, key(fh)));
        }
    }

    /// Recalls delegations after a change of the exports: those of directories, where names may
    /// lead elsewhere now, and those of removed exports.
    pub fn exports_changed(self: &Arc<Self>, is_served: impl Fn(u32) -> bool) {
        self.act(|inner, now| {
            let concerned = inner.held.values().filter(|d| d.directory || !is_served(d.file.0));
            let keys: Vec<FileKey> = concerned.map(|d| d.key).collect();
            keys.into_iter().for_each(|key| inner.table.changed(now, key));
        });
    }

    /// Sends CB_RECALL.
    async fn recall(self: Arc<Self>, d: Arc<Delegation>, attempt: u8) {
        let op = CbOp::Recall(CbRecallArgs {
            stateid: d.stateid(),
            truncate: false,
            fh: handle::object(d.file.0, &d.file.1).into(),
        });
        let session = d.client.sessions().into_iter().find(|s| s.back_is_up());
        let answer = match session {
            Some(session) => {
                self.recalls.fetch_add(1, SeqCst);
                session.call_back(d.minor, op).await.ok()
            }
            None => None,
        };
        d.calling.store(false, SeqCst);
        let unknown = matches!(answer, Some(CbRes::Recall(Err(Nfsstat4::BAD_STATEID | Nfsstat4::BADHANDLE))));
        if unknown && attempt >= UNKNOWN_MAX {
            tracing::debug!(client = %d.client.owner.escape_ascii(), "a client did not receive its delegation");
            self.give_up(&d);
        }
    }
}

impl Inner {
    /// The actions that the table requests.
    fn todo(&mut self) -> Todo {
        let mut todo = Todo::default();
        while let Some(action) = self.table.poll_action() {
            match action {
                Action::Reserve { end, epoch } => {
                    // Without NQNFS these numbers need not be durable, because no client gets
                    // revisions.
                    if self.numbers.as_mut().is_none_or(|n| n.reserve(end, epoch)) {
                        self.table.reserved(end, epoch);
                    }
                }
                Action::Ready { ticket, decision } => {
                    let Some(tell) = self.waiting.remove(&ticket) else { continue };
                    todo.ready.push((tell, decision));
                }
                Action::Evict { client, file, seq, attempt, .. } => {
                    todo.evict.extend(self.short.file(client, file).map(|at| (client, at)));
                    if let Some(d) = self.held.get(&(client, file)).filter(|d| d.seq == seq) {
                        d.recalled.store(true, SeqCst);
                        todo.recall.push((d.clone(), attempt));
                    }
                }
                Action::Revoked { client, file, seq } => {
                    if let Some(d) = self.held.get(&(client, file)).filter(|d| d.seq == seq) {
                        d.revoke();
                    }
                }
                Action::Ended { client, file, seq, kind, .. } => {
                    if crate::nqnfs::clients::is_one(client) {
                        todo.unwatched.extend(self.short.ended(client, file, kind));
                    }
                    if self.held.get(&(client, file)).is_some_and(|d| d.seq == seq)
                        && let Some(d) = self.held.remove(&(client, file))
                    {
                        self.writes_no_more(&d);
                        todo.ended.push(d);
                    }
                }
            }
        }
        let due = self.table.poll_timeout();
        todo.earlier = due != self.due_ms;
        self.due_ms = due;
        todo
    }

    fn writes_no_more(&mut self, d: &Arc<Delegation>) {
        if self.writing.get(&d.key).is_some_and(|held| Arc::ptr_eq(held, d)) {
            self.writing.remove(&d.key);
        }
    }
}
