//! The client's half: the data that may be served from the cache, the time when delayed writes must
//! be pushed, the answer to an eviction, and the lease to ask for.
//!
//! It keeps rights, not data: the caller has the data, and reports its state. Terms count from the
//! moment a request was *sent*, on this client's clock, so that a lease ends here before it ends at
//! the server. A grant whose request was sent before an eviction arrived is void, because the
//! server may have meant just that lease. Delayed writes that outlived their lease are pushed, or
//! given up when the server says so, before another lease is asked for.

use crate::rules::HolderRules;
use crate::{ClientId, FileKey, Grant, HolderConfig, Kind, Ms, Op, Term, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The caller's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HolderAction {
    /// Ask for the lease again ([`Holder::request`], [`Op::Lease`]).
    Renew {
        /// The file.
        file: FileKey,
        /// The kind of lease.
        kind: Kind,
    },
    /// Write all delayed data of this file to the server ([`Op::Push`]), then call
    /// [`Holder::pushed`]. Given once; the caller repeats it until there is an answer.
    Push {
        /// Which.
        file: FileKey,
    },
    /// Tell the server that the lease is given up (Vacated, DELEGRETURN), then call
    /// [`Holder::vacated`].
    Vacate {
        /// The file.
        file: FileKey,
        /// Which lease.
        seq: u64,
    },
    /// Forget the cached data.
    Invalidate {
        /// The file.
        file: FileKey,
    },
    /// A lease has ended by itself, and nothing was delayed under it: cached data is as good as its
    /// revision.
    Ended {
        /// The file.
        file: FileKey,
    },
    /// Delayed writes cannot be pushed any more: the lease is gone and others may have changed the
    /// file. They must be reported, and kept apart if at all.
    Lost {
        /// The file.
        file: FileKey,
    },
}

/// A request under way, to be given back with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request {
    /// The file.
    pub file: FileKey,
    /// The lease to ask for; `None` when no lease is asked for.
    pub want: Option<Want>,
    /// The lease for writing that is held, so that a write may be an [`Op::Push`].
    pub claim: Option<u64>,
    sent_ms: Ms,
    voided: u64,
    written: u64,
}

/// Revision of cached data that the server does not have yet.
const OWN: u64 = u64::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    kind: Kind,
    cachable: bool,
    /// On this clock; [`Ms::MAX`] for one that lasts as long as this client renews itself.
    expiry_ms: Ms,
    seq: u64,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    lease: Option<Held>,
    /// Data of this modify revision is cached; 0 when none is, [`OWN`] when it is ahead of the
    /// server.
    revision: u64,
    dirty: bool,
    /// The lease under which writes were delayed.
    dirty_seq: u64,
    pushing: bool,
    in_use: bool,
    giving_up: bool,
    /// Vacated was sent and not answered.
    vacating: bool,
    /// When the last renewal was asked for.
    renewed_ms: Option<Ms>,
    /// Requests with another number are void.
    voided: u64,
    /// Changes with every write that is sent: data read meanwhile is not cached.
    written: u64,
    /// Writes without an answer.
    writing: u32,
    /// Its entry among the timers.
    timer_ms: Option<Ms>,
}

/// The leases of one incarnation of a client.
#[derive(Debug, Clone)]
pub struct Holder {
    config: HolderConfig,
    rules: HolderRules,
    files: BTreeMap<FileKey, Entry>,
    timers: BTreeSet<(Ms, FileKey)>,
    /// Source of numbers for [`Entry::voided`] and [`Entry::written`], which must not repeat when a
    /// file was forgotten.
    numbers: u64,
    /// Leases without an end of their own hold until then.
    alive_until_ms: Ms,
    actions: VecDeque<HolderAction>,
}

impl Holder {
    /// Without leases.
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

    /// The same with some rules broken, for tests that show that they are needed.
    #[cfg(any(test, feature = "sim"))]
    pub fn with_rules(config: HolderConfig, rules: HolderRules) -> Self {
        Self { rules, ..Self::new(config) }
    }

    /// The next task. To be called until there is nothing left after every other call.
    pub fn poll_action(&mut self) -> Option<HolderAction> {
        self.actions.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Ms> {
        self.timers.first().map(|&(t, _)| t)
    }

    /// Whether a read may be answered from the cache.
    pub fn may_read(&self, now: Ms, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| e.revision != 0 && self.caches(now, e))
    }

    /// Whether a write may be delayed.
    pub fn may_delay(&self, now: Ms, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| {
            let writes = e.lease.is_some_and(|l| l.kind == Kind::Write);
            writes && self.caches(now + u64::from(self.config.push_before_ms), e)
        })
    }

    /// Whether delayed writes wait to be pushed.
    pub fn is_dirty(&self, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| e.dirty)
    }

    /// Whether they are being pushed.
    pub fn is_pushing(&self, file: FileKey) -> bool {
        self.files.get(&file).is_some_and(|e| e.pushing)
    }

    /// The lease that is held and in force: its kind, and whether it is a caching lease.
    pub fn lease(&self, now: Ms, file: FileKey) -> Option<(Kind, bool)> {
        let e = self.files.get(&file)?;
        let l = e.lease.filter(|l| self.lives(now, l))?;
        Some((l.kind, l.cachable))
    }

    /// A file is opened (leases on it are renewed) or closed by its last user.
    pub fn set_in_use(&mut self, now: Ms, file: FileKey, in_use: bool) {
        self.entry(file).in_use = in_use;
        self.settle(now, file);
    }

    /// The cached data of a file is gone (no room).
    pub fn dropped(&mut self, now: Ms, file: FileKey) {
        let e = self.entry(file);
        if !e.dirty {
            e.revision = 0;
        }
        self.settle(now, file);
    }

    /// A call about the file is about to be sent first (retransmissions do not count): returns the
    /// lease to ask for with it. `held` asks for a lease without an end of its own. For a write,
    /// [`Holder::wrote`] follows the answer.
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

    /// A request was answered. `grant` is the lease that came with it. `revision` is the file's
    /// when the call was executed ([`Go::revision`](crate::Go::revision) of a read, the result of
    /// [`Table::finish`](crate::Table::finish) for a write); `has_data` says that all cached data
    /// is now of that revision. True when it may be kept in the cache.
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

    /// Takes a lease. True when the cached data is of another revision.
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
                // As good as an eviction.
                self.evicted(now, file, grant.seq);
                return false;
            }
            let expiry_ms = request.sent_ms + u64::from(grant.term_ms);
            e.lease = Some(Held { kind: grant.kind, cachable: false, expiry_ms, seq: grant.seq });
            return false;
        }
        let from = if rules.from_sending { request.sent_ms } else { now };
        let expiry_ms = match request.want.map(|w| w.term) {
            Some(Term::Held) => Ms::MAX,
            _ => from + u64::from(grant.term_ms),
        };
        // Without a gap: cached data is as good as it was.
        let continues =
            e.lease.is_some_and(|l| l.cachable && l.seq == grant.seq) && request.sent_ms < end && now < end;
        e.lease = Some(Held { kind: grant.kind, cachable: true, expiry_ms, seq: grant.seq });
        !continues && !e.dirty && e.revision != 0 && e.revision != revision && rules.revision
    }

    /// A write that [`request`](Self::request) was called for was answered, whether it was executed
    /// or not. To be called before [`answered`](Self::answered), which says whether the written
    /// data may be cached.
    pub fn wrote(&mut self, request: Request) {
        let e = self.entry(request.file);
        e.writing -= 1;
        if !e.dirty {
            e.revision = 0;
        }
    }

    /// A write was delayed: [`may_delay`](Self::may_delay) has said yes. The cache has the whole of
    /// the data.
    pub fn delayed(&mut self, now: Ms, file: FileKey) {
        let e = self.entry(file);
        (e.dirty, e.revision) = (true, OWN);
        e.dirty_seq = e.lease.map_or(0, |l| l.seq);
        self.settle(now, file);
    }

    /// Delayed writes shall be pushed now (fsync, age, memory).
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

    /// The delayed writes were pushed, which gave the file this modify revision; `more` have been
    /// delayed since. To be called after [`wrote`](Self::wrote).
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

    /// The server has refused delayed writes because their lease is gone.
    pub fn expired(&mut self, now: Ms, file: FileKey) {
        let number = self.number();
        let e = self.entry(file);
        let (lost, giving_up) = (e.dirty, e.giving_up);
        (e.pushing, e.dirty, e.revision, e.voided) = (false, false, 0, number);
        if lost {
            self.actions.push_back(HolderAction::Lost { file });
        }
        self.actions.push_back(HolderAction::Invalidate { file });
        match giving_up {
            true => self.vacate(file, 0),
            false => self.entry(file).lease = None,
        }
        self.settle(now, file);
    }

    /// The server calls a lease back; `seq` tells which, 0 when the protocol does not. It is
    /// answered even if there is none: the server may have granted one whose answer is still under
    /// way, and that one will be void.
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
        match e.dirty && rules.push_before_vacating {
            true => self.start_push(file),
            false => self.vacate(file, seq),
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

    /// The server has heard that a lease was given up.
    pub fn vacated(&mut self, now: Ms, file: FileKey) {
        self.entry(file).vacating = false;
        self.settle(now, file);
    }

    /// The server has heard of this client: the call was sent at `sent_ms`. Leases without an end
    /// of their own hold for `term_ms` from then. Revoked leases in the same answer come first
    /// ([`Holder::evicted`]), and the grant in it last.
    pub fn renewed(&mut self, sent_ms: Ms, term_ms: u32) {
        self.alive_until_ms = self.alive_until_ms.max(sent_ms + u64::from(term_ms));
    }

    /// The server has forgotten this client: leases without an end of their own are gone. Delayed
    /// writes are pushed while the server recovers.
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

    /// Lets time pass.
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

    /// When a file's lease ends here; never when it has none.
    fn end_of(&self, file: FileKey) -> Ms {
        self.files.get(&file).and_then(|e| e.lease).map_or(Ms::MAX, |l| self.end(&l))
    }

    fn end(&self, l: &Held) -> Ms {
        if !self.rules.stop_at_expiry {
            return Ms::MAX;
        }
        if l.expiry_ms == Ms::MAX { self.alive_until_ms } else { l.expiry_ms }
    }

    /// When something is due about a file; only later than `now` right after [`look`](Self::look).
    fn next(&self, now: Ms, e: &Entry) -> Option<Ms> {
        let l = e.lease?;
        let end = self.end(&l);
        if now >= end {
            // Its answer decides.
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

    /// After a change: sets the timer of a file, and forgets a file of which there is nothing to
    /// know.
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

    fn lives(&self, now: Ms, l: &Held) -> bool {
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

    /// The state of a request after later events: whether it is void, and whether its data was
    /// overtaken.
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
    /// When it was sent first.
    pub fn sent_ms(&self) -> Ms {
        self.sent_ms
    }

    /// The operation as the table sees it: a write becomes a push when a lease covers it and no
    /// other is asked for.
    pub fn access(&self, client: ClientId, op: Op) -> crate::Access {
        let op = match op {
            Op::Write if self.claim.is_some() && self.want.is_none() => Op::Push,
            op => op,
        };
        let claim = self.claim.filter(|_| op == Op::Push);
        crate::Access { client: Some(client), file: self.file, op, lease: self.want, claim }
    }
}
