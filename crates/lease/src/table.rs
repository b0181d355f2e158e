//! The server's half: which client holds which lease on which file, and which operations have to
//! wait for it.
//!
//! A caller brackets every operation. [`Table::begin`] says whether it may go ahead, must wait, or
//! should be tried later, and at the same time grants the lease that came with it; an operation
//! that changes something ends with [`Table::finish`]. Conflicting leases are called back
//! ([`Action::Evict`]). A lease ends when its holder gives it up ([`Table::vacated`]), or, if
//! nothing is heard, when it has surely expired (`due.rs`). Then the waiting operations go ahead,
//! first come first ([`Action::Ready`]).
//!
//! Write-shared files are cached by no client: each client then has a *non-caching* lease, which
//! says only that it uses the file. As long as such leases of several clients contradict each
//! other, and for a growing time after leases were taken back and forth, no caching lease is
//! granted.
//!
//! Records: one of 64 bytes per lease, one of 64 per file, one per client; all in arrays, linked by
//! index (`record.rs`).

mod act;
#[cfg(any(test, feature = "sim"))]
mod canonical;
mod due;
mod grant;
mod memory;
mod record;
mod recovery;
mod wait;

use crate::heap::Heap;
use crate::slab::Slab;
use crate::{Boot, ClientId, Config, FileKey, Kind, Ms, Revisions, rules::Rules};
#[cfg(any(test, feature = "sim"))]
pub use canonical::Canonical;
use hashbrown::HashTable;
pub use memory::{Sizes, Usage};
use record::{ClientRec, FileRec, LeaseRec, NONE, Quiet, Waiter};
use recovery::Recovery;
use std::collections::{HashMap, VecDeque};

/// A client's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Nothing but have the lease that [`Access::lease`] names.
    Lease,
    /// Read data or attributes, or list a directory.
    Read,
    /// Change the file (data, attributes, entries), or open it for that. The client claims no lease
    /// for it.
    Write,
    /// Change the file under a lease that the client claims to hold: a delayed write, or a write
    /// through under a non-caching lease. It overtakes waiting operations, and goes ahead even in
    /// recovery. It is refused when the lease is gone, because other clients may have changed the
    /// file since.
    Push,
}

/// How long a lease lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Term {
    /// For so long after it is granted, and longer when it is asked for again; 0 for the default.
    For(u32),
    /// Until it is returned or revoked, as long as its client is heard of ([`Table::renew`]).
    Held,
}

/// A request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Want {
    /// The kind of lease.
    pub kind: Kind,
    /// For how long.
    pub term: Term,
    /// The client can do without: no lease is evicted for it, and it is not waited for.
    pub optional: bool,
}

/// An operation and the lease asked for with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// The client; `None` for callers that never hold leases (NFSv3 clients, local processes).
    pub client: Option<ClientId>,
    /// The file.
    pub file: FileKey,
    /// The operation.
    pub op: Op,
    /// The lease that is asked for.
    pub lease: Option<Want>,
    /// Of an [`Op::Push`]: [`Grant::seq`] of the lease that is claimed, if the protocol carries it.
    /// Without it a delayed write whose lease ended long ago is accepted when the server happens to
    /// recover from a restart.
    pub claim: Option<u64>,
}

/// A lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The kind of lease.
    pub kind: Kind,
    /// False for a non-caching lease: nothing may be cached and no write delayed. To the holder of
    /// a caching lease it is as good as an eviction.
    pub cachable: bool,
    /// From the grant on; 0 when it lasts as long as the client is heard of.
    pub term_ms: u32,
    /// Tells it from earlier leases of the same client on the same file, also from those before a
    /// restart.
    pub seq: u64,
}

/// An operation that changes something is under way. To be given back to [`Table::finish`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "the table counts the operation as running until it is finished"]
pub struct Permit {
    file: u32,
}

/// The operation may go ahead now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Go {
    /// Given back when the operation is done; operations that change nothing have none.
    pub permit: Option<Permit>,
    /// The lease, if one was asked for and granted.
    pub grant: Option<Grant>,
    /// The file's modify revision before the operation: data read now is at least as new.
    pub revision: u64,
}

/// Stands for an operation that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    slot: u32,
    number: u32,
}

/// The decision about an operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Decision {
    /// It goes ahead.
    Go(Go),
    /// Leases of others are in its way, or lease records have run out: [`Action::Ready`] follows,
    /// unless the caller answers "try later" of its own and [cancels](Table::cancel).
    Wait(Ticket),
    /// The client should ask again after about this time.
    TryLater {
        /// Milliseconds.
        after_ms: u32,
    },
    /// It claimed a lease that is gone.
    Expired,
}

/// How a lease ended without being given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its time was over.
    Expired,
    /// It was called back, and its holder went on flushing for [`Config::flush_max_ms`].
    Overdue,
}

/// The caller's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Call back a lease (Evicted, CB_RECALL). Repeated until it ends.
    Evict {
        /// Whose.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// Which.
        seq: u64,
        /// The kind of lease.
        kind: Kind,
        /// 0 the first time.
        attempt: u8,
    },
    /// An operation that waited: any decision but [`Decision::Wait`].
    Ready {
        /// Which.
        ticket: Ticket,
        /// The decision about it.
        decision: Decision,
    },
    /// A lease without an end of its own did not come back in time, or its client was not heard of.
    /// From now on every reply to the client says so (NFSv4.1: a flag of SEQUENCE) until it has
    /// given the lease up; a client that is not heard of stops using it by itself.
    Revoked {
        /// Whose.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// Which.
        seq: u64,
    },
    /// A caching lease ended without being given back. If it was for writing, its holder may come
    /// back with delayed writes, which are refused. A server that wants that even if it restarts in
    /// between makes client, file and lease durable before it carries out any later action, and
    /// hands them to [`Table::fence`] at the start, until the client got [`Decision::Expired`] or
    /// another lease.
    Ended {
        /// Whose.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// Which.
        seq: u64,
        /// The kind of lease.
        kind: Kind,
        /// How.
        how: Ended,
    },
    /// Make these numbers durable, then call [`Table::reserved`] with them. They are those of
    /// [`Boot`] at the next start. The first come with the start and with the end of recovery, and
    /// operations that depend on them are not served before they are carried out.
    Reserve {
        /// [`Boot::reserved_end`].
        end: u64,
        /// [`Boot::epoch`].
        epoch: u32,
    },
}

/// The lease table.
#[derive(Debug, Clone)]
pub struct Table {
    config: Config,
    rules: Rules,
    leases: Slab<LeaseRec>,
    files: Slab<FileRec>,
    clients: Slab<ClientRec>,
    waiters: Slab<Waiter>,
    by_owner: HashTable<u32>,
    by_key: HashTable<u32>,
    by_client: HashTable<u32>,
    timers: Heap,
    /// Files without a holder, by disuse: the first is forgotten first.
    idle_first: u32,
    idle_last: u32,
    /// Files that are leased to no client for a while.
    quiet: HashMap<u32, Quiet>,
    /// Operations that wait for a free lease record.
    no_room: VecDeque<Ticket>,
    revisions: Revisions,
    recovery: Option<Recovery>,
    /// Tells this lifetime of the server from others; 0 as long as nothing says so durably.
    epoch: u32,
    /// The numbers to make durable: the last lifetime's until recovery ends.
    asked_epoch: u32,
    last_epoch: u32,
    /// Whose delayed writes come too late even in recovery.
    fenced: HashMap<(ClientId, FileKey), u64>,
    settle_until_ms: Ms,
    admitted: u64,
    settle_from_ms: Ms,
    writes_in_flight: u32,
    idle_workers: bool,
    next_seq: u32,
    next_ticket: u32,
    actions: VecDeque<Action>,
}

impl Table {
    /// A table without leases, at a server's start.
    pub fn new(config: Config, boot: Boot, now: Ms) -> Self {
        Self::build(config, Rules::ALL, boot, now)
    }

    /// The same with some rules broken, for tests that show that they are needed.
    #[cfg(any(test, feature = "sim"))]
    pub fn with_rules(config: Config, rules: Rules, boot: Boot, now: Ms) -> Self {
        Self::build(config, rules, boot, now)
    }

    fn build(config: Config, rules: Rules, boot: Boot, now: Ms) -> Self {
        let revisions = Revisions::new(boot.reserved_end, config.revision_step)
            .breaking(!rules.revision_grows, !rules.revision_durable);
        let mut t = Self {
            leases: Slab::new(config.leases_max),
            files: Slab::new(config.files_max),
            clients: Slab::new(config.leases_max.saturating_mul(2)),
            waiters: Slab::new(config.waiters_max),
            by_owner: HashTable::new(),
            by_key: HashTable::new(),
            by_client: HashTable::new(),
            timers: Heap::default(),
            idle_first: NONE,
            idle_last: NONE,
            quiet: HashMap::new(),
            no_room: VecDeque::new(),
            revisions,
            recovery: None,
            epoch: 0,
            asked_epoch: boot.epoch,
            last_epoch: boot.epoch,
            fenced: HashMap::new(),
            settle_until_ms: 0,
            admitted: 0,
            settle_from_ms: now,
            writes_in_flight: 0,
            idle_workers: true,
            next_seq: 0,
            next_ticket: 0,
            actions: VecDeque::new(),
            rules,
            config,
        };
        if rules.grace {
            t.start_recovery(now, boot.outstanding_ms);
        }
        match t.recovery {
            Some(_) => t.reserve(),
            None => t.ask_for_epoch(),
        }
        t
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The next task. To be called until there is nothing left after every other call.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called; it may be called at any other
    /// time, too.
    pub fn poll_timeout(&self) -> Option<Ms> {
        let lease = self.timers.first().map(|i| self.leases[i].deadline_ms);
        let recovery = self.recovery.as_ref().map(|r| self.recovery_end(r).saturating_add(1));
        [lease, recovery].into_iter().flatten().min()
    }

    /// Lets time pass: expired leases end, evictions are repeated, recovery ends.
    pub fn handle_timeout(&mut self, now: Ms) {
        self.end_recovery(now);
        self.run_due(now);
    }

    /// Whether a worker waits for work, so that no call that has arrived is still unserved. As long
    /// as none does, no write lease counts as ended: queued calls may be its last writes.
    pub fn set_idle(&mut self, idle: bool) {
        self.idle_workers = idle;
    }

    /// Asks for permission. The decision is to be obeyed; when it is [`Decision::Go`] with a
    /// [`Permit`], the operation is under way until [`finish`](Self::finish).
    pub fn begin(&mut self, now: Ms, access: Access) -> Decision {
        self.handle_timeout(now);
        let writes = matches!(access.op, Op::Write | Op::Push);
        if self.epoch == 0 && self.recovery.is_none() {
            return self.try_later();
        }
        if writes && !self.revisions.has(u64::from(self.writes_in_flight) + 1) {
            return self.try_later();
        }
        if let Some(refusal) = self.refuse_in_recovery(now, &access) {
            return refusal;
        }
        if writes && self.comes_overdue(now, &access) {
            return self.try_later();
        }
        // Leases are granted only when all older ones are known to be over.
        let access = Access { lease: access.lease.filter(|_| self.recovery.is_none()), ..access };
        match self.attempt(now, &access) {
            Attempt::Done(decision) => decision,
            Attempt::Blocked => {
                let decision = self.enqueue(&access);
                self.evict_for(now, &access);
                if !self.rules.await_vacated {
                    self.drop_conflicting(now, &access);
                }
                decision
            }
            Attempt::NoRoom => {
                let decision = self.enqueue(&access);
                if let Decision::Wait(ticket) = decision {
                    self.no_room.push_back(ticket);
                }
                decision
            }
        }
    }

    /// Whether there is a record for a client's lease on a file. Without one, an operation that
    /// asks for a lease waits for room.
    pub fn has_room(&self, client: ClientId, file: FileKey) -> bool {
        !self.leases.is_full() || self.lease_of(client, file).is_some()
    }

    /// An operation is done. `changed` says whether the file was changed; if so it gets a new
    /// modify revision, which is returned.
    pub fn finish(&mut self, now: Ms, permit: Permit, changed: bool) -> u64 {
        self.writes_in_flight -= 1;
        let f = permit.file;
        if changed {
            self.files[f].revision = self.revisions.number();
            self.files[f].last_write_ms = now;
            self.reserve();
        }
        self.files[f].in_flight -= 1;
        let revision = self.files[f].revision;
        self.note_write(now);
        self.rest(f);
        revision
    }

    /// A client gave a lease back, asked or not (Vacated, DELEGRETURN, FREE_STATEID). `seq` is the
    /// one of its [`Grant`], `None` when the protocol cannot tell: then the caller must not deliver
    /// a Vacated twice, and the client must not ask for a lease before its Vacated is answered.
    /// `in_use`: it goes on using the file, as far as is known, and counts as sharing it until its
    /// lease would have expired.
    pub fn vacated(&mut self, now: Ms, client: ClientId, file: FileKey, seq: Option<u64>, in_use: bool) {
        self.handle_timeout(now);
        let Some(i) = self.lease_of(client, file) else { return };
        let lease = &self.leases[i];
        if !lease.cachable || (self.rules.seq && seq.is_some_and(|s| s != self.seq_of(i))) {
            return;
        }
        self.end_caching(now, i, in_use);
    }

    /// A client was heard of. Its leases without an end of their own last `term_ms` from now on,
    /// except those that were revoked.
    pub fn renew(&mut self, now: Ms, client: ClientId, term_ms: u32) {
        self.handle_timeout(now);
        let Some(c) = self.client_or_insert(client) else { return };
        let c = &mut self.clients[c];
        (c.known, c.renewed_ms, c.term_ms) = (true, now, term_ms);
    }

    /// A client is gone for good (it restarted, or its state was discarded): all it held ends at
    /// once.
    pub fn forget(&mut self, now: Ms, client: ClientId) {
        self.handle_timeout(now);
        let Some(c) = self.client(client) else { return };
        self.clients[c].known = false;
        while self.clients[c].leases != NONE {
            let i = self.clients[c].leases;
            let last = self.leases[i].next_in_client == NONE;
            match self.leases[i].cachable {
                true => self.end_caching(now, i, false),
                false => self.free_lease(now, i),
            }
            if last {
                return; // The record of the client went with its last lease.
            }
        }
        self.drop_client_if_unused(c);
    }

    /// A file changed behind the table's back (a process on the server, seen afterwards): it has a
    /// new modify revision, and clients that cache it are evicted.
    pub fn changed(&mut self, now: Ms, file: FileKey) {
        self.handle_timeout(now);
        if !self.revisions.has(u64::from(self.writes_in_flight) + 1) {
            return;
        }
        let Some(f) = self.file_or_insert(file) else {
            // No room to remember it: then nothing that is not remembered can be distinguished from
            // it.
            let next = self.revisions.number();
            self.revisions.forget(next);
            return;
        };
        self.files[f].revision = self.revisions.number();
        self.reserve();
        let access = Access { client: None, file, op: Op::Write, lease: None, claim: None };
        self.evict_for(now, &access);
        self.rest(f);
    }

    /// The present modify revision of a file.
    pub fn revision(&self, file: FileKey) -> u64 {
        self.file(file).map_or(self.revisions.floor(), |f| self.files[f].revision)
    }

    /// No file has a higher modify revision than this now: one that has a higher one later was
    /// changed in between, or forgotten.
    pub fn last_revision(&self) -> u64 {
        self.revisions.last()
    }

    /// Whether changes of a file are under way.
    pub fn is_changing(&self, file: FileKey) -> bool {
        self.file(file).is_some_and(|f| self.files[f].in_flight > 0)
    }

    /// Calls back a client's caching lease on a file, although no operation waits for the file.
    pub fn recall(&mut self, now: Ms, client: ClientId, file: FileKey) {
        self.handle_timeout(now);
        if let Some(i) = self.lease_of(client, file).filter(|&i| self.leases[i].cachable) {
            self.evict(now, i);
        }
    }

    /// [`Action::Reserve`] was carried out.
    pub fn reserved(&mut self, end: u64, epoch: u32) {
        self.revisions.reserved(end);
        if epoch != self.last_epoch {
            self.epoch = epoch;
        }
    }

    /// A client's caching lease on a file.
    pub fn held(&self, client: ClientId, file: FileKey) -> Option<Kind> {
        let lease = &self.leases[self.lease_of(client, file)?];
        lease.cachable.then_some(lease.kind)
    }

    /// Whether no other client holds a caching lease for writing, so that a read would not wait.
    pub fn may_read(&self, client: Option<ClientId>, file: FileKey) -> bool {
        !self.conflicts(&Access { client, file, op: Op::Read, lease: None, claim: None })
    }

    /// True when no client holds a caching lease: a server that stops now needs no recovery. (A
    /// client that has given one up and goes on using the file still has a record, until the term
    /// ends.)
    pub fn is_vacant(&self) -> bool {
        self.leases.used().all(|lease| !lease.cachable)
    }

    fn reserve(&mut self) {
        if let Some(end) = self.revisions.reserve() {
            self.actions.push_back(Action::Reserve { end, epoch: self.asked_epoch });
        }
    }

    /// Leases of earlier lifetimes are over: makes sure that the next start will know.
    fn ask_for_epoch(&mut self) {
        if self.asked_epoch == self.last_epoch {
            self.asked_epoch = self.last_epoch.wrapping_add(1).max(1);
            let end = self.revisions.reserve().unwrap_or(self.revisions.asked_end());
            self.actions.push_back(Action::Reserve { end, epoch: self.asked_epoch });
        }
    }

    fn try_later(&self) -> Decision {
        Decision::TryLater { after_ms: self.config.try_later_ms }
    }
}

/// The result of one look at an operation.
enum Attempt {
    Done(Decision),
    /// Leases of others are in the way.
    Blocked,
    /// A record for the lease asked for is lacking.
    NoRoom,
}
