//! Delegations: files of which clients keep what they read without asking, or delay what they write
//! (RFC 8881 section 10.4), and directories of which they keep the names (section 10.9), from the
//! one lease table.
//!
//! It knows nothing of operations on the wire. A delegation for reading says that nobody else
//! changes the file, its attributes or its names, neither through this server (by NFSv3, by NFSv4)
//! nor, where the files can be watched ([`Watch`](hither_vfs::Watch)), by a local program. The
//! holder itself may change the file, as long as it can still be watched then ([`change`]), but a
//! name that it removes recalls its own delegation. So every operation that changes a file asks
//! first ([`Leases::change`]): what is delegated is recalled, and the operation waits a moment for
//! it to come back, then its client is told to try later. A delegation for writing says that nobody
//! else has the file open or looks at its bytes or attributes: whoever reads asks first as well
//! ([`Leases::read`]), but for whoever wants nothing but attributes: for him the holder is asked,
//! and keeps it ([`ask`]). Delegations whose holder does not answer end when the holder's own lease
//! has surely ended, one for writing not while he still writes (`hither_lease`).
//!
//! A file is delegated ([`give`]) only to a client that has answered a callback on the connection
//! it has now; for reading, only while nobody has the file open for writing, and for writing, only
//! while nobody else has it open. A directory is delegated for reading, and its holder may change
//! it himself.
//!
//! Locks: `inner`, then a client's `states`. What follows from a change of the table is done
//! without the lock, and in this order: files are watched no longer, then those who waited go on.

mod ask;
mod change;
mod give;

pub use ask::DelegationCounts;
pub(crate) use ask::{Look, Told};
pub(crate) use give::Wish;

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

/// How long an operation of NFSv4 waits for a recall: a few round trips. Longer would hold a slot
/// that the holder may need.
pub(crate) const PATIENCE_V4: Duration = Duration::from_millis(250);
/// The same for NFSv3, whose clients come back only after seconds.
pub(crate) const PATIENCE_V3: Duration = Duration::from_secs(3);
/// A client that says so often that it has no such delegation has none: the reply that granted it
/// was lost for good.
const UNKNOWN_MAX: u8 = 4;
/// A file that was taken from its holders a second time is delegated to nobody for so long, and for
/// twice as long after each further time.
const QUIET_MS: u32 = 500;
/// The longest such time: a file that is read and written in turn costs a recall in so many
/// milliseconds.
const QUIET_MAX_MS: u32 = 10_000;
/// What the table allows clocks to differ by over a lease.
pub(super) const SKEW: Duration = Duration::from_secs(3);

/// A file or directory delegated to a client.
pub(crate) struct Delegation {
    pub other: [u8; 12],
    pub client: Arc<Client>,
    /// Export and handle.
    pub file: (u32, Fh),
    /// For reading, or also for writing; as it was granted first.
    granted: Kind,
    /// It was for reading, and is for writing as well.
    writes_too: AtomicBool,
    /// The client was told that.
    seqid: AtomicU32,
    /// Of a directory.
    pub directory: bool,
    key: FileKey,
    /// The table's number of it.
    seq: u64,
    minor: u32,
    recalled: AtomicBool,
    life: Mutex<Life>,
    /// A recall is on its way.
    calling: AtomicBool,
    watched: Mutex<Option<Watched>>,
    /// How the file is watched, if others can change it.
    watch: Option<Arc<dyn Watch>>,
    /// Nobody else uses the file, so that the holder may change it. Held while that is found out.
    alone: tokio::sync::Mutex<bool>,
    /// What the holder is asked for.
    asking: Asking,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Held,
    /// It was taken away; the client has to say that it knows (FREE_STATEID).
    Revoked,
    Gone,
}

impl Delegation {
    pub fn stateid(&self) -> Stateid {
        Stateid { seqid: self.seqid.load(SeqCst), other: self.other }
    }

    /// For reading, or also for writing.
    pub fn kind(&self) -> Kind {
        if self.writes_too.load(SeqCst) { Kind::Write } else { self.granted }
    }

    /// It was taken away; the client has to say that it knows (FREE_STATEID).
    pub fn is_revoked(&self) -> bool {
        *self.life.lock() == Life::Revoked
    }

    /// It is on its way back, or should be.
    pub fn is_recalled(&self) -> bool {
        self.recalled.load(SeqCst)
    }

    /// From now on the client is told that it has lost something, until it has said that it knows.
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

    /// Its stateid means nothing any more.
    fn bury(&self) {
        if std::mem::replace(&mut *self.life.lock(), Life::Gone) == Life::Revoked {
            self.client.revoked.fetch_sub(1, SeqCst);
        }
    }

    fn holder(&self) -> ClientId {
        id(&self.client)
    }
}

/// The lease table and what belongs to it.
pub(crate) struct Leases {
    began: Instant,
    lease: Duration,
    /// Most delegations; 0: none are granted and nothing is asked.
    most: usize,
    inner: Mutex<Inner>,
    /// Something may be due earlier.
    moved: Notify,
    count: AtomicUsize,
    /// Those of them that are for writing.
    writers: AtomicUsize,
    /// Those of them that are of directories.
    directories: AtomicUsize,
    /// Recalls that were sent.
    recalls: AtomicU64,
    questions: Questions,
    /// Operations under way that change what files names lead to, where nothing was delegated when
    /// they began.
    naming: AtomicUsize,
    /// It is recorded that files are delegated: 0, not; 1, for reading; 2, also for writing.
    marked: AtomicU8,
    /// Whoever records that is alone.
    pub(crate) marking: tokio::sync::Mutex<()>,
    /// What clients of NQNFS hold, when there can be any.
    pub(crate) short: Option<Short>,
    /// Calls may wait that are not in the table yet.
    pace: Option<Arc<Pace>>,
}

pub(crate) struct Inner {
    pub table: Table,
    waiting: HashMap<Ticket, oneshot::Sender<Turn>>,
    held: HashMap<(ClientId, FileKey), Arc<Delegation>>,
    /// Those of them that are for writing: one of a file.
    writing: HashMap<FileKey, Arc<Delegation>>,
    /// Files of leases that clients of NQNFS may cache under.
    pub short: crate::nqnfs::leases::Held,
    /// Where the table's numbers are made durable, when somebody depends on them.
    pub numbers: Option<Numbers>,
    /// What the timer waits for.
    due_ms: Option<u64>,
}

/// What those who wait are told: the operation may go on, or not.
type Turn = Result<Going, Refusal>;

/// An operation may go on.
pub(crate) struct Going {
    /// Nobody caches what it contradicts until this is dropped.
    pub changing: Changing,
    /// The lease that was asked for with it.
    pub grant: Option<Grant>,
    /// The file's modify revision before the operation.
    pub revision: u64,
}

/// An operation may not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its client has to come back.
    Later,
    /// It relies on a lease that is over.
    Expired,
}

/// An operation that changes a file is under way: nobody gets a delegation of it until this is
/// dropped.
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
    /// The operation is over. The file's modify revision now, if it can have been changed and
    /// anybody asks for revisions.
    pub fn done(&mut self) -> Option<u64> {
        let permit = self.permit.take()?;
        // Otherwise nobody asks for modify revisions: change attributes are the file system's.
        let numbered = self.leases.short.is_some();
        let revision = self.leases.act(|inner, now| inner.table.finish(now, permit, numbered));
        numbered.then_some(revision)
    }
}

/// A name is about to lead elsewhere: nobody gets a delegation of anything until this is dropped.
pub(crate) struct Naming {
    leases: Arc<Leases>,
    /// The file or directory that it leads to now.
    pub file: Option<(Fh, Changing)>,
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.leases.naming.fetch_sub(1, SeqCst);
    }
}

/// What follows from a change of the table.
#[derive(Default)]
struct Todo {
    ended: Vec<Arc<Delegation>>,
    ready: Vec<(oneshot::Sender<Turn>, Decision)>,
    recall: Vec<(Arc<Delegation>, u8)>,
    /// Leases of NQNFS to call back.
    evict: Vec<(ClientId, (u32, Fh))>,
    /// Files that are watched no longer.
    unwatched: Vec<Watched>,
    earlier: bool,
}

/// An operation stops waiting when nobody waits for its answer.
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
    // The other half of the number is the server's.
    ClientId(client.id as u32)
}

/// A file's number in the table.
pub(crate) fn key(fh: &Fh) -> FileKey {
    FileKey([XxHash3_64::oneshot(&fh.0), XxHash3_64::oneshot_with_seed(1, &fh.0)])
}

impl Leases {
    /// At most `most` delegations to clients whose own lease lasts for `lease`, and leases of NQNFS
    /// as `short` says.
    ///
    /// # Errors
    /// What must not be lost cannot be made durable.
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
            // What was held before a restart is taken back or over before anybody changes
            // something: see `Nfs4::grace`.
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

    /// Whether it is recorded that files are delegated like that.
    pub fn is_marked(&self, kind: Kind) -> bool {
        self.most == 0 || self.marked.load(SeqCst) >= mark(kind)
    }

    /// That is recorded.
    pub fn marked(&self, kind: Kind) {
        self.marked.fetch_max(mark(kind), SeqCst);
    }

    /// Whether anything may be delegated.
    pub fn delegates(&self) -> bool {
        self.most > 0
    }

    /// Whether anything is delegated or leased, as far as is known without looking.
    pub fn any(&self) -> bool {
        self.count.load(SeqCst) > 0 || self.short.is_some()
    }

    /// Whether somebody may delay writes to any file, so that whoever reads has to ask.
    pub fn may_be_delayed(&self) -> bool {
        self.writers.load(SeqCst) > 0 || self.short.as_ref().is_some_and(Short::may_be_delayed)
    }

    /// Changes the table and does what follows.
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
            // Whoever does not wait any more gives the permit back.
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

    /// Begins an operation: waits until nobody caches what it contradicts, for at most `patience`.
    ///
    /// # Errors
    /// Somebody still does, or the operation relies on a lease that is over.
    pub async fn begin(self: &Arc<Self>, access: Access, patience: Duration) -> Turn {
        self.begin_with(patience, |_| Ok(access)).await
    }

    /// The same for an operation that depends on what the table says in the moment in which it
    /// begins.
    ///
    /// # Errors
    /// As [`Leases::begin`], and what `access` says.
    pub async fn begin_with(
        self: &Arc<Self>,
        patience: Duration,
        access: impl FnOnce(&Inner) -> Result<Access, Refusal>,
    ) -> Turn {
        let begun = self.act(|inner, now| {
            // What has ended by now is not asked for its opinion.
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

    /// Whoever calls is about to read a file, or to open it for that: waits until nobody else
    /// delays writes to it. True when somebody may have: what was read before is not to be used.
    ///
    /// # Errors
    /// Somebody still does: the client should come back.
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

    /// Calls back what keeps a client from reading a file; waits for nothing.
    pub fn want(self: &Arc<Self>, client: Option<&Arc<Client>>, fh: &Fh) {
        let client = client.map(|c| id(c));
        let access = Access { client, file: key(fh), op: Op::Read, lease: None, claim: None };
        self.act(|inner, now| {
            if let Decision::Wait(ticket) = inner.table.begin(now, access) {
                inner.table.cancel(now, ticket);
            }
        });
    }

    /// Whether somebody else may delay writes to a file at the moment.
    pub fn is_delayed(self: &Arc<Self>, client: Option<&Arc<Client>>, fh: &Fh) -> bool {
        let client = client.map(|c| id(c));
        let delayed =
            |inner: &mut Inner, _| inner.table.is_recovering() || !inner.table.may_read(client, key(fh));
        self.may_be_delayed() && self.act(delayed)
    }

    /// Whether a client has a file delegated.
    pub fn holds(&self, client: &Client, fh: &Fh) -> bool {
        self.inner.lock().held.contains_key(&(id(client), key(fh)))
    }

    /// Whether leases of before a restart may be out, so that nothing but delayed writes is served.
    pub fn is_recovering(self: &Arc<Self>) -> bool {
        self.short.is_some() && self.act(|inner, _| inner.table.is_recovering())
    }

    /// Lets time pass. Runs until it is dropped.
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

    /// A client was heard of.
    pub fn heard(self: &Arc<Self>, client: &Client) {
        if client.delegations.load(SeqCst) > 0 {
            let lease_ms = self.lease.as_millis() as u32;
            self.act(|inner, now| inner.table.renew(now, id(client), lease_ms));
        }
    }

    /// A delegation came back, or its client does not have it.
    pub fn end(self: &Arc<Self>, registry: &Registry, d: &Arc<Delegation>) {
        registry.forget(&d.client, &d.other);
        d.bury();
        self.give_up(d);
    }

    /// Those who wait for a delegation go on.
    fn give_up(self: &Arc<Self>, d: &Arc<Delegation>) {
        // First: what those who wait do would wait for us.
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

    /// The table has ended a delegation.
    fn lapse(&self, d: &Arc<Delegation>) {
        // Before: what turns up to be watched later is dropped.
        d.revoke();
        drop(d.watched.lock().take());
        self.uncount(d);
    }

    /// All that a client holds ends.
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

    /// Somebody else changes a file, or wants to.
    pub fn changed_elsewhere(self: &Arc<Self>, fh: &Fh) {
        if self.any() {
            self.act(|inner, now| inner.table.changed(now, key(fh)));
        }
    }

    /// Recalls delegations after a change of exports: those of directories, whose names may lead
    /// elsewhere now, and those of exports that are not served any more.
    pub fn exports_changed(self: &Arc<Self>, is_served: impl Fn(u32) -> bool) {
        self.act(|inner, now| {
            let concerned = inner.held.values().filter(|d| d.directory || !is_served(d.file.0));
            let keys: Vec<FileKey> = concerned.map(|d| d.key).collect();
            keys.into_iter().for_each(|key| inner.table.changed(now, key));
        });
    }

    /// Asks for a delegation back.
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
    /// What the table wants done.
    fn todo(&mut self) -> Todo {
        let mut todo = Todo::default();
        while let Some(action) = self.table.poll_action() {
            match action {
                Action::Reserve { end, epoch } => {
                    // Without NQNFS nothing depends on these numbers being durable: revisions are
                    // not given to anybody.
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
