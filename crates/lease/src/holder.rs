//! The client's part of the lease protocol. It decides which cached data may be served, when
//! delayed writes must be pushed, how an eviction is answered, and which lease is requested.
//!
//! The holder stores rights and no data. The caller has the data and reports its state. A term
//! starts when the request was *sent*, on this client's clock. So a lease ends on the client before
//! it ends on the server. A grant is void when its request was sent before an eviction arrived,
//! because the server may have evicted just that lease. Delayed writes that outlived their lease
//! are pushed before another lease is requested. They are dropped when the server refuses them.

use crate::rules::HolderRules;
use crate::{ClientId, FileKey, Grant, HolderConfig, Kind, Ms, Op, Term, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The tasks for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HolderAction {
    /// Request the lease again ([`Holder::request`], [`Op::Lease`]).
    Renew {
        /// The file.
        file: FileKey,
        /// The kind of lease.
        kind: Kind,
    },
    /// Write all delayed data of this file to the server ([`Op::Push`]), then call
    /// [`Holder::pushed`]. The action is given once. The caller repeats the push until there is a
    /// reply.
    Push {
        /// The file.
        file: FileKey,
    },
    /// Return the lease to the server (Vacated, DELEGRETURN), then call [`Holder::vacated`].
    Vacate {
        /// The file.
        file: FileKey,
        /// The number of the lease.
        seq: u64,
    },
    /// Drop the cached data.
    Invalidate {
        /// The file.
        file: FileKey,
    },
    /// A lease expired without delayed writes. Cached data may be used while its modify revision is
    /// current.
    Ended {
        /// The file.
        file: FileKey,
    },
    /// Delayed writes cannot be pushed any more: the lease is gone and other clients may have
    /// changed the file. The caller must report them, and may keep them outside of the file.
    Lost {
        /// The file.
        file: FileKey,
    },
}

/// A request under way. The caller passes it back with the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The file.
    pub file: FileKey,
    /// The requested lease; `None` for no lease.
    pub want: Option<Want>,
    /// The number of the held write lease, which makes a write an [`Op::Push`].
    pub claim: Option<u64>,
    sent_ms: Ms,
    voided: u64,
    written: u64,
}

/// Revision of cached data that the server does not have yet.
const OWN: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldLease {
    kind: Kind,
    cachable: bool,
    /// End of the lease on this clock. [`Ms::MAX`] for a lease that lasts as long as this client
    /// renews itself.
    expiry_ms: Ms,
    seq: u64,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    lease: Option<HeldLease>,
    /// Modify revision of the cached data; 0 without cached data. [`OWN`] when the cached data is
    /// newer than the server's.
    revision: u64,
    dirty: bool,
    /// The number of the lease for the delayed writes.
    dirty_seq: u64,
    pushing: bool,
    in_use: bool,
    giving_up: bool,
    /// The return of the lease was sent and has no reply.
    vacating: bool,
    /// The time of the last renewal request.
    renewed_ms: Option<Ms>,
    /// Requests with another number are void.
    voided: u64,
    /// Changes with every write that is sent. Data read meanwhile is not cached.
    written: u64,
    /// Number of writes without a reply.
    writing: u32,
    /// The deadline in `timers`.
    timer_ms: Option<Ms>,
}

/// The leases of one incarnation of a client.
#[derive(Debug, Clone)]
pub struct Holder {
    config: HolderConfig,
    rules: HolderRules,
    files: BTreeMap<FileKey, Entry>,
    timers: BTreeSet<(Ms, FileKey)>,
    /// Source of numbers for [`Entry::voided`] and [`Entry::written`]. They must not repeat after a
    /// file was forgotten.
    numbers: u64,
    /// The end of leases that last as long as this client renews itself.
    alive_until_ms: Ms,
    actions: VecDeque<HolderAction>,
}

impl Holder {
    /// A holder without leases.
    pub fn new(config: HolderConfig) -> Self {
        Self {
            config,
            rules: HolderRules::ALL,
            files: BTreeMap::new(),
            timers: BTreeSet::new(),
            numbers: 0,
            alive_until_ms: 0,
            actions: VecDeque::new(),
        }
    }

    /// As [`Holder::new`] with some rules switched off, for tests that show that each rule is
    /// needed.
    #[cfg(any(test, feature = "sim"))]
    pub fn with_rules(config: HolderConfig, rules: HolderRules) -> Self {
        Self { rules, ..Self::new(config) }
    }

    /// The next task. The caller fetches tasks after every other call until there is none.
    pub fn poll_action(&mut self) -> Option<HolderAction> {
        self.actions.pop_front()
    }

    /// The time of the next [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Ms> {
        self.timers.first().map(|&(t, _)| t)
    }

    /// Whether a read may be served from the cache.
    pub fn may_read(&self, now: Ms, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| e.revision != 0 && self.caches(now, e))
    }

    /// Whether a write may be delayed.
    pub fn can_cache_writes(&self, now: Ms, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| {
            let writes = e.lease.is_some_and(|l| l.kind == Kind::Write);
            writes && self.caches(now + u64::from(self.config.push_before_ms), e)
        })
    }

    /// Whether the file has delayed writes.
    pub fn is_dirty(&self, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| e.dirty)
    }

    /// Whether the delayed writes are being pushed.
    pub fn is_pushing(&self, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| e.pushing)
    }

    /// The valid lease on a file: its kind, and whether it is a caching lease.
    pub fn lease(&self, now: Ms, file: FileKey) -> Option<(Kind, bool)> {
        let e = self.files.get(&file)?;
        let l = e.lease.filter(|l| self.lives(now, l))?;
        Some((l.kind, l.cachable))
    }

    /// A file was opened, or its last user closed it. Leases on open files are renewed.
    pub fn set_in_use(&mut self, now: Ms, file: FileKey, in_use: bool) {
        self.entry(file).in_use = in_use;
        self.settle(now, file);
    }

    /// The cached data of a file was dropped for lack of space.
    pub fn dropped(&mut self, now: Ms, file: FileKey) {
        let e = self.entry(file);
        if !e.dirty {
            e.revision = 0;
        }
        self.settle(now, file);
    }

    /// Prepares a call about the file that is about to be sent for the first time. Retransmissions
    /// do not count. Returns the lease to request with the call. `held` requests a lease that lasts
    /// as long as the client renews itself. For a write, [`Holder::wrote`] follows the reply.
    pub fn request(&mut self, now: Ms, file: FileKey, kind: Kind, op: Op, held: bool) -> Request {
        let (rules, term_ms) = (self.rules, self.config.term_ms);
        let renew_ms = u64::from(self.config.renew_before_ms);
        let number = self.number();
        let end = self.end_of(file);
        let e = self.entry(file);
        let live = e.lease.filter(|_| now < end);
        let lapsed = e.dirty && !live.is_some_and(|l| l.cachable && l.kind == Kind::Write);
        let blocked = e.giving_up || e.vacating || (lapsed && rules.push_before_asking);
        let enough = live.is_some_and(|l| {
            l.kind >= kind && (!l.cachable || l.expiry_ms == Ms::MAX || end - now > renew_ms)
        });
        let term = if held { Term::Held } else { Term::For(term_ms) };
        let want = (!blocked && (!enough || op == Op::Lease)).then_some(Want { kind, term, optional: held });
        if matches!(op, Op::Write | Op::Push) {
            e.written = number;
            e.writing += 1;
        }
        let live = live.filter(|l| l.kind == Kind::Write).map(|l| l.seq);
        let claim = if e.dirty { Some(e.dirty_seq) } else { live };
        Request { file, want, claim, sent_ms: now, voided: e.voided, written: e.written }
    }

    /// Handles the reply to a request. `grant` is the granted lease. `revision` is the file's
    /// modify revision at the execution of the call. For a read it is
    /// [`Go::revision`](crate::Go::revision), for a write the result of
    /// [`Table::finish`](crate::Table::finish). `has_data` means that all cached data has that
    /// revision. Returns whether the data may be kept in the cache.
    pub fn answered(
        &mut self,
        now: Ms,
        request: Request,
        grant: Option<Grant>,
        revision: u64,
        has_data: bool,
    ) -> bool {
        let file = request.file;
        let outdated = grant.is_some_and(|g| self.granted(now, request, g, revision));
        let rules = self.rules;
        let e = self.entry(file);
        let void = rules.void_when_evicted && request.voided != e.voided;
        let overtaken = request.written != e.written || e.writing > 0 || e.dirty;
        let keep = has_data && !void && !overtaken && e.lease.is_some_and(|l| l.cachable);
        if keep {
            e.revision = revision;
        } else if outdated {
            e.revision = 0;
            self.actions.push_back(HolderAction::Invalidate { file });
        }
        self.settle(now, file);
        keep
    }

    /// Stores a granted lease. Returns whether the cached data has another revision.
    fn granted(&mut self, now: Ms, request: Request, grant: Grant, revision: u64) -> bool {
        let (rules, file) = (self.rules, request.file);
        let end = self.end_of(file);
        let e = self.entry(file);
        e.renewed_ms = None;
        if rules.void_when_evicted && request.voided != e.voided {
            return false;
        }
        if !grant.cachable {
            if e.lease.is_some_and(|l| l.cachable) {
                // Equivalent to an eviction.
                self.evicted(now, file, grant.seq);
                return false;
            }
            let expiry_ms = request.sent_ms + u64::from(grant.term_ms);
            e.lease = Some(HeldLease { kind: grant.kind, cachable: false, expiry_ms, seq: grant.seq });
            return false;
        }
        let from = if rules.from_sending { request.sent_ms } else { now };
        let expiry_ms = match request.want.map(|w| w.term) {
            Some(Term::Held) => Ms::MAX,
            _ => from + u64::from(grant.term_ms),
        };
        // The lease continues without a gap, so cached data stays valid.
        let continues =
            e.lease.is_some_and(|l| l.cachable && l.seq == grant.seq) && request.sent_ms < end && now < end;
        e.lease = Some(HeldLease { kind: grant.kind, cachable: true, expiry_ms, seq: grant.seq });
        !continues && !e.dirty && e.revision != 0 && e.revision != revision && rules.revision
    }

    /// Handles the reply to a write of [`request`](Self::request), executed or not. To be called
    /// before [`answered`](Self::answered), which decides whether the written data may be cached.
    pub fn wrote(&mut self, request: Request) {
        let e = self.entry(request.file);
        e.writing -= 1;
        if !e.dirty {
            e.revision = 0;
        }
    }

    /// Records a delayed write, which [`can_cache_writes`](Self::can_cache_writes) has allowed. The
    /// cache has all the data.
    pub fn delayed(&mut self, now: Ms, file: FileKey) {
        let e = self.entry(file);
        (e.dirty, e.revision) = (true, OWN);
        e.dirty_seq = e.lease.map_or(0, |l| l.seq);
        self.settle(now, file);
    }

    /// Starts the push of delayed writes (fsync, age, memory).
    pub fn push(&mut self, now: Ms, file: FileKey) {
        self.start_push(file);
        self.settle(now, file);
    }

    fn start_push(&mut self, file: FileKey) {
        let e = self.entry(file);
        if e.dirty && !e.pushing {
            e.pushing = true;
            self.actions.push_back(HolderAction::Push { file });
        }
    }

    /// The delayed writes were pushed, and the file has this modify revision. `more`: further
    /// writes were delayed meanwhile. To be called after [`wrote`](Self::wrote).
    pub fn pushed(&mut self, now: Ms, file: FileKey, revision: u64, more: bool) {
        let end = self.end_of(file);
        let e = self.entry(file);
        (e.pushing, e.dirty) = (false, more);
        if !more {
            e.revision = revision;
        }
        let gone = now >= end || !e.lease.is_some_and(|l| l.cachable);
        match (more, e.giving_up) {
            (true, giving_up) if giving_up || gone => self.start_push(file),
            (false, true) => self.vacate(file, 0),
            _ => {}
        }
        self.settle(now, file);
    }

    /// The server refused delayed writes because their lease is gone.
    pub fn expired(&mut self, now: Ms, file: FileKey) {
        let number = self.number();
        let e = self.entry(file);
        let (lost, giving_up) = (e.dirty, e.giving_up);
        (e.pushing, e.dirty, e.revision, e.voided) = (false, false, 0, number);
        if lost {
            self.actions.push_back(HolderAction::Lost { file });
        }
        self.actions.push_back(HolderAction::Invalidate { file });
        if giving_up {
            self.vacate(file, 0);
        } else {
            self.entry(file).lease = None;
        }
        self.settle(now, file);
    }

    /// The server evicts a lease. `seq` is its number, 0 when the protocol has none. An eviction is
    /// answered even without a lease. The server may have granted a lease in a reply that is under
    /// way, and that lease becomes void.
    pub fn evicted(&mut self, now: Ms, file: FileKey, seq: u64) {
        let rules = self.rules;
        let number = self.number();
        let e = self.entry(file);
        let older = e.lease.is_some_and(|l| l.cachable && seq != 0 && l.seq.wrapping_sub(seq) as i64 > 0);
        if older {
            return;
        }
        e.voided = number;
        if e.vacating {
            return;
        }
        e.giving_up = true;
        if e.dirty && rules.push_before_vacating {
            self.start_push(file);
        } else {
            self.vacate(file, seq);
        }
        self.settle(now, file);
    }

    fn vacate(&mut self, file: FileKey, seq: u64) {
        let number = self.number();
        let e = self.entry(file);
        let seq = e.lease.filter(|l| l.cachable).map_or(seq, |l| l.seq);
        e.lease = None;
        (e.giving_up, e.vacating, e.voided) = (false, true, number);
        self.actions.push_back(HolderAction::Vacate { file, seq });
    }

    /// The server has received the return of a lease.
    pub fn vacated(&mut self, now: Ms, file: FileKey) {
        self.entry(file).vacating = false;
        self.settle(now, file);
    }

    /// The server has received a call of this client, sent at `sent_ms`. Leases that last as long
    /// as the client renews itself hold for `term_ms` from then. The caller first reports revoked
    /// leases of the same reply ([`Holder::evicted`]), and last its grant.
    pub fn renewed(&mut self, sent_ms: Ms, term_ms: u32) {
        self.alive_until_ms = self.alive_until_ms.max(sent_ms + u64::from(term_ms));
    }

    /// The server has restarted: leases that last as long as the client renews itself are gone.
    /// Delayed writes are pushed while the server recovers.
    pub fn server_restarted(&mut self, now: Ms) {
        let held = |e: &Entry| e.lease.is_some_and(|l| l.expiry_ms == Ms::MAX);
        let files: Vec<FileKey> = self.files.iter().filter(|(_, e)| held(e)).map(|(&f, _)| f).collect();
        for file in files {
            let number = self.number();
            let e = self.entry(file);
            (e.lease, e.voided, e.giving_up) = (None, number, false);
            self.start_push(file);
            self.settle(now, file);
        }
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Ms) {
        while let Some(&(t, file)) = self.timers.first() {
            if t > now {
                return;
            }
            self.look(now, file);
            self.settle(now, file);
            debug_assert!(self.timers.first().is_none_or(|&(t, f)| f != file || t > now), "no progress");
        }
    }

    fn look(&mut self, now: Ms, file: FileKey) {
        let (renew, push) = (u64::from(self.config.renew_before_ms), u64::from(self.config.push_before_ms));
        let retry = self.config.renew_retry_ms;
        let end = self.end_of(file);
        let e = self.entry(file);
        let Some(l) = e.lease else { return };
        if now >= end {
            if !e.dirty {
                e.lease = None;
                if l.cachable {
                    self.actions.push_back(HolderAction::Ended { file });
                }
            }
            return self.start_push(file);
        }
        let asked = e.renewed_ms.is_some_and(|t| now < t + retry);
        let due = now + renew >= end && (e.in_use || e.dirty) && !asked && !e.giving_up;
        let late = e.dirty && now + push >= end;
        if due && l.cachable && l.expiry_ms != Ms::MAX {
            e.renewed_ms = Some(now);
            self.actions.push_back(HolderAction::Renew { file, kind: l.kind });
        }
        if late {
            self.start_push(file);
        }
    }

    /// The end of a file's lease on this clock; [`Ms::MAX`] without a lease.
    fn end_of(&self, file: FileKey) -> Ms {
        self.files.get(&file).and_then(|e| e.lease).map_or(Ms::MAX, |l| self.end(&l))
    }

    fn end(&self, l: &HeldLease) -> Ms {
        if !self.rules.stop_at_expiry {
            return Ms::MAX;
        }
        if l.expiry_ms == Ms::MAX { self.alive_until_ms } else { l.expiry_ms }
    }

    /// The time of the next task of a file. It is later than `now` only right after
    /// [`look`](Self::look).
    fn next(&self, now: Ms, e: &Entry) -> Option<Ms> {
        let l = e.lease?;
        let end = self.end(&l);
        if now >= end {
            // The reply to the push decides.
            return (!(e.dirty && e.pushing)).then_some(now);
        }
        let mut next = end;
        if e.dirty && !e.pushing {
            next = next.min(end.saturating_sub(u64::from(self.config.push_before_ms)));
        }
        if l.expiry_ms != Ms::MAX && l.cachable && (e.in_use || e.dirty) && !e.giving_up {
            let renew = end.saturating_sub(u64::from(self.config.renew_before_ms));
            next = next.min(e.renewed_ms.map_or(renew, |t| t + self.config.renew_retry_ms));
        }
        Some(next)
    }

    fn entry(&mut self, file: FileKey) -> &mut Entry {
        let numbers = &mut self.numbers;
        self.files.entry(file).or_insert_with(|| {
            *numbers += 2;
            Entry { voided: *numbers - 1, written: *numbers, ..Entry::default() }
        })
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Updates the timer of a file after a change, and removes an entry without state.
    fn settle(&mut self, now: Ms, file: FileKey) {
        let Some(e) = self.files.get(&file) else { return };
        let next = self.next(now, e);
        let busy = e.dirty || e.in_use || e.giving_up || e.vacating || e.writing > 0;
        let empty = e.lease.is_none() && e.revision == 0 && !busy;
        if next != e.timer_ms {
            if let Some(t) = e.timer_ms {
                self.timers.remove(&(t, file));
            }
            if let Some(t) = next {
                self.timers.insert((t, file));
            }
            self.entry(file).timer_ms = next;
        }
        if empty {
            self.files.remove(&file);
        }
    }

    fn lives(&self, now: Ms, l: &HeldLease) -> bool {
        now < self.end(l)
    }

    fn caches(&self, now: Ms, e: &Entry) -> bool {
        !e.giving_up && e.lease.is_some_and(|l| l.cachable && self.lives(now, &l))
    }

    /// Appends the state at `now`, as [`Table::canonical`](crate::Table) does.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn canonical(&self, now: Ms, window: Ms, out: &mut crate::table::Canonical) {
        out.time(now, self.alive_until_ms, window);
        for (file, e) in &self.files {
            out.plain.extend(file.0);
            let flags = [e.dirty, e.pushing, e.in_use, e.giving_up, e.vacating, e.writing > 0];
            out.plain.extend(flags.map(u64::from));
            out.plain.push(u64::from(e.writing));
            out.revisions.push(e.revision);
            out.time(now, e.renewed_ms.unwrap_or(Ms::MAX), window);
            match e.lease {
                None => out.plain.push(0),
                Some(l) => {
                    out.plain.push(1 + 2 * (l.kind as u64) + u64::from(l.cachable));
                    out.time(now, l.expiry_ms, window);
                    out.seqs.push(l.seq);
                }
            }
        }
    }

    /// The state of a request after later events: whether it is void, and whether its data is
    /// outdated by a write.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn standing(&self, r: &Request) -> [u64; 2] {
        let e = self.files.get(&r.file);
        [
            u64::from(e.is_none_or(|e| e.voided != r.voided)),
            u64::from(e.is_none_or(|e| e.written != r.written)),
        ]
    }
}

impl Request {
    /// The time of the first transmission.
    pub fn sent_ms(&self) -> Ms {
        self.sent_ms
    }

    /// The operation for the table. A write becomes a push when a lease covers it and no other
    /// lease is requested.
    pub fn access(&self, client: ClientId, op: Op) -> crate::Access {
        let op = match op {
            Op::Write if self.claim.is_some() && self.want.is_none() => Op::Push,
            op => op,
        };
        let claim = self.claim.filter(|_| op == Op::Push);
        crate::Access { client: Some(client), file: self.file, op, lease: self.want, claim }
    }
}
