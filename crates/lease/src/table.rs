//! The server's part of the lease protocol: the leases of each client on each file, and the
//! operations that wait for them.
//!
//! A caller brackets every operation. [`Table::begin`] decides whether the operation goes ahead,
//! waits or must be tried later. It also grants the requested lease. An operation that changes the
//! file ends with [`Table::finish`]. Conflicting leases are evicted ([`Action::Evict`]). A lease
//! ends when its holder returns it ([`Table::vacated`]), or when it has expired (`due.rs`). Then
//! the waiting operations go ahead in the order of their arrival ([`Action::Ready`]).
//!
//! No client caches a write-shared file. Each client then has a *non-caching* lease, which only
//! states that it uses the file. No caching lease is granted while such leases of several clients
//! conflict. The same holds for a growing time after repeated evictions.
//!
//! Records: 64 bytes per lease, 64 bytes per file, and one record per client. They are in arrays
//! and linked by index (`record.rs`).

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
    /// Only request the lease [`Access::lease`].
    Lease,
    /// Read data or attributes, or list a directory.
    Read,
    /// Change the file (data, attributes, entries), or open it for a change. The client claims no
    /// lease for it.
    Write,
    /// Change the file under a lease that the client claims: a delayed write, or a write through
    /// under a non-caching lease. It overtakes waiting operations, and is served during recovery.
    /// It is refused when the lease is gone, because other clients may have changed the file since.
    Push,
}

/// The duration of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Term {
    /// The number of milliseconds from the grant on; 0 for the default. A new request prolongs it.
    For(u32),
    /// Until it is returned or revoked, as long as its client renews itself ([`Table::renew`]).
    Held,
}

/// A request for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Want {
    /// The kind of lease.
    pub kind: Kind,
    /// Requested duration.
    pub term: Term,
    /// The lease is optional: no other lease is evicted for it, and the operation does not wait for
    /// it.
    pub optional: bool,
}

/// An operation and its requested lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// The client; `None` for callers that never hold leases (NFSv3 clients, local processes).
    pub client: Option<ClientId>,
    /// The file.
    pub file: FileKey,
    /// The operation.
    pub op: Op,
    /// The requested lease.
    pub lease: Option<Want>,
    /// For an [`Op::Push`]: [`Grant::seq`] of the claimed lease, when the protocol has it. Without
    /// this number, the server cannot refuse a delayed write of a long ended lease while it
    /// recovers from a restart.
    pub claim: Option<u64>,
}

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The kind of lease.
    pub kind: Kind,
    /// False for a non-caching lease: no data may be cached and no write delayed. For the holder of
    /// a caching lease it is equivalent to an eviction.
    pub cachable: bool,
    /// Duration in milliseconds from the grant on; 0 for [`Term::Held`].
    pub term_ms: u32,
    /// Distinguishes the lease from earlier leases of the same client on the same file, also from
    /// those before a restart.
    pub seq: u64,
}

/// A change under way. The caller returns it to [`Table::finish`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use = "the table counts the operation as running until it is finished"]
pub struct Permit {
    file: u32,
}

/// The operation may go ahead now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Go {
    /// For [`Table::finish`] at the end of the operation. Operations without changes have none.
    pub permit: Option<Permit>,
    /// The granted lease.
    pub grant: Option<Grant>,
    /// The file's modify revision before the operation. Data that is read now is at least as new.
    pub revision: u64,
}

/// A waiting operation.
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
    /// The operation waits for conflicting leases or for a free lease record. [`Action::Ready`]
    /// follows, unless the caller itself answers "try later" and [cancels](Table::cancel) the
    /// operation.
    Wait(Ticket),
    /// The client should repeat the operation after about this time.
    TryLater {
        /// Milliseconds.
        after_ms: u32,
    },
    /// The operation claimed a lease that has ended.
    Expired,
}

/// The reason why a lease ended without being returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    /// It expired.
    Expired,
    /// It was evicted, and its holder still flushed data after [`Config::flush_max_ms`].
    Overdue,
}

/// The tasks for the caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Evict a lease (Evicted, CB_RECALL). Repeated until the lease ends.
    Evict {
        /// The holder.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// The number of the lease.
        seq: u64,
        /// The kind of lease.
        kind: Kind,
        /// 0 for the first attempt.
        attempt: u8,
    },
    /// The decision about a waiting operation: any but [`Decision::Wait`].
    Ready {
        /// The operation.
        ticket: Ticket,
        /// The decision about it.
        decision: Decision,
    },
    /// A lease without expiry was not returned in time, or its client did not renew itself. From
    /// now on every reply to the client says so until it has returned the lease (NFSv4.1: a flag of
    /// SEQUENCE). A client without contact stops using the lease by itself.
    Revoked {
        /// The holder.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// The number of the lease.
        seq: u64,
    },
    /// A caching lease ended without being returned. The holder of a write lease may still send
    /// delayed writes, which are refused. To refuse them also after a restart, a server makes
    /// client, file and lease durable before it carries out any later action. It passes them to
    /// [`Table::fence`] at the start, until the client got [`Decision::Expired`] or another lease.
    Ended {
        /// The holder.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// The number of the lease.
        seq: u64,
        /// The kind of lease.
        kind: Kind,
        /// The reason.
        how: Ended,
    },
    /// Make these numbers durable, then call [`Table::reserved`] with them. They are the numbers of
    /// [`Boot`] at the next start. The first ones come at the start and at the end of recovery.
    /// Operations that depend on them are not served before they are durable.
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
    /// List of files without leases or operations. The first file is removed first.
    idle_first: u32,
    idle_last: u32,
    /// Files on which no client gets a lease for a while.
    quiet: HashMap<u32, Quiet>,
    /// Operations that wait for a free lease record.
    no_room: VecDeque<Ticket>,
    revisions: Revisions,
    recovery: Option<Recovery>,
    /// Number of this lifetime of the server; 0 until it is durable.
    epoch: u32,
    /// The requested durable epoch: that of the last lifetime until recovery ends.
    asked_epoch: u32,
    last_epoch: u32,
    /// Clients and files with late delayed writes, which are refused also during recovery.
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
    /// A table without leases at the start of a server.
    pub fn new(config: Config, boot: Boot, now: Ms) -> Self {
        Self::build(config, Rules::ALL, boot, now)
    }

    /// As [`Table::new`] with some rules switched off, for tests that show that each rule is
    /// needed.
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

    /// The next task. The caller fetches tasks after every other call until there is none.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The time of the next [`handle_timeout`](Self::handle_timeout). It may also be called
    /// earlier.
    pub fn poll_timeout(&self) -> Option<Ms> {
        let lease = self.timers.first().map(|i| self.leases[i].deadline_ms);
        let recovery = self.recovery.as_ref().map(|r| self.recovery_end(r).saturating_add(1));
        [lease, recovery].into_iter().flatten().min()
    }

    /// Handles expired timers: ends expired leases, repeats evictions, ends recovery.
    pub fn handle_timeout(&mut self, now: Ms) {
        self.end_recovery(now);
        self.run_due(now);
    }

    /// Sets whether a worker waits for work, so that every call that has arrived is served. Without
    /// such a worker no write lease ends, because queued calls may be its last writes.
    pub fn set_idle(&mut self, idle: bool) {
        self.idle_workers = idle;
    }

    /// Requests an operation. The caller must follow the decision. After [`Decision::Go`] with a
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
        // During recovery no lease is granted, because older leases may still be held.
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

    /// Whether a client's lease on a file has a record or can get one. Without a record, an
    /// operation that requests a lease waits.
    pub fn has_room(&self, client: ClientId, file: FileKey) -> bool {
        !self.leases.is_full() || self.lease_of(client, file).is_some()
    }

    /// Ends a change. With `changed` the file gets a new modify revision. Returns the modify
    /// revision.
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

    /// A client returned a lease, by itself or after an eviction (Vacated, DELEGRETURN,
    /// FREE_STATEID).
    ///
    /// `seq` is the number of its [`Grant`], `None` when the protocol has none. Without a number,
    /// the caller must not deliver a Vacated twice, and the client must not request a lease before
    /// its Vacated is answered. `in_use`: the client may still use the file, and counts as sharing
    /// it until its lease would have expired.
    pub fn vacated(&mut self, now: Ms, client: ClientId, file: FileKey, seq: Option<u64>, in_use: bool) {
        self.handle_timeout(now);
        let Some(i) = self.lease_of(client, file) else { return };
        let lease = &self.leases[i];
        if !lease.cachable || (self.rules.seq && seq.is_some_and(|s| s != self.seq_of(i))) {
            return;
        }
        self.end_caching(now, i, in_use);
    }

    /// A client renewed itself. Its leases without expiry last `term_ms` from now on, except
    /// revoked ones.
    pub fn renew(&mut self, now: Ms, client: ClientId, term_ms: u32) {
        self.handle_timeout(now);
        let Some(c) = self.client_or_insert(client) else { return };
        let c = &mut self.clients[c];
        (c.known, c.renewed_ms, c.term_ms) = (true, now, term_ms);
    }

    /// A client is gone (it restarted, or its state was discarded). All its leases end at once.
    pub fn forget(&mut self, now: Ms, client: ClientId) {
        self.handle_timeout(now);
        let Some(c) = self.client(client) else { return };
        self.clients[c].known = false;
        while self.clients[c].leases != NONE {
            let i = self.clients[c].leases;
            let last = self.leases[i].next_in_client == NONE;
            if self.leases[i].cachable {
                self.end_caching(now, i, false);
            } else {
                self.free_lease(now, i);
            }
            if last {
                return; // The client's record was removed with its last lease.
            }
        }
        self.drop_client_if_unused(c);
    }

    /// A process on the server changed a file without the table. The file gets a new modify
    /// revision, and clients that cache it are evicted.
    pub fn changed(&mut self, now: Ms, file: FileKey) {
        self.handle_timeout(now);
        if !self.revisions.has(u64::from(self.writes_in_flight) + 1) {
            return;
        }
        let Some(f) = self.file_or_insert(file) else {
            // There is no room for a record, so the floor rises: all files without a record count
            // as changed.
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

    /// The current modify revision of a file.
    pub fn revision(&self, file: FileKey) -> u64 {
        self.file(file).map_or(self.revisions.floor(), |f| self.files[f].revision)
    }

    /// The highest modify revision of all files. A file that later has a higher revision was
    /// changed meanwhile, or its record was removed.
    pub fn last_revision(&self) -> u64 {
        self.revisions.last()
    }

    /// Whether changes of a file are under way.
    pub fn is_changing(&self, file: FileKey) -> bool {
        self.file(file).is_some_and(|f| self.files[f].in_flight > 0)
    }

    /// Evicts a client's caching lease on a file without a waiting operation.
    pub fn recall(&mut self, now: Ms, client: ClientId, file: FileKey) {
        self.handle_timeout(now);
        if let Some(i) = self.lease_of(client, file).filter(|&i| self.leases[i].cachable) {
            self.evict(now, i);
        }
    }

    /// [`Action::Reserve`] is durable.
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

    /// Whether no other client holds a caching write lease, so that a read does not wait.
    pub fn may_read(&self, client: Option<ClientId>, file: FileKey) -> bool {
        !self.conflicts(&Access { client, file, op: Op::Read, lease: None, claim: None })
    }

    /// True when no client holds a caching lease, so that a server that stops now needs no
    /// recovery. A client that has returned its lease and still uses the file has a record until
    /// the term ends.
    pub fn is_vacant(&self) -> bool {
        self.leases.used().all(|lease| !lease.cachable)
    }

    fn reserve(&mut self) {
        if let Some(end) = self.revisions.reserve() {
            self.actions.push_back(Action::Reserve { end, epoch: self.asked_epoch });
        }
    }

    /// Requests a durable new epoch after all leases of earlier lifetimes have ended.
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

/// The result of one attempt of an operation.
enum Attempt {
    Done(Decision),
    /// Leases of other clients conflict.
    Blocked,
    /// There is no record for the requested lease.
    NoRoom,
}
