//! Leases for reading that a mount holds (section 4 of the paper), and how they go back.
//!
//! What may be cached, for how long, and what is answered to an eviction decides [`Holder`]; here
//! are its clock, its messages, and what its files are called. A lease is asked for along with
//! calls that read (LOOKUP, GETATTR, READ, ACCESS, READDIRLOOK), and by GETLEASE for a file that is
//! open when its lease is about to end. While it is held, attributes that were told under it carry
//! [`Validity::Lease`](hither_vfs::Validity), and the layer above asks no more.
//!
//! An eviction is answered in this order: no answer carries the lease any more, the layer above
//! lets go (for at most [`WITHDRAW_TIMEOUT`]), VACATED. A lease that ends by itself lapses above:
//! nobody is known to have changed anything.
//!
//! The paper's requests name the file that a call is about, but LOOKUP and READDIRLOOK bring leases
//! on files that are known only from the answer. What may have overtaken such a grant is remembered
//! ([`Recent`]): an eviction, its end, a change by this client.
//!
//! This client's own changes end no lease. But the server stops watching the file for local
//! programs when its holder changes it, until the holder asks again: until then attributes hold as
//! they do without a lease, and the next call that reads asks.

use super::convert;
use crate::v3::wire::{Caller, Patience};
use bytes::Bytes;
use hither_lease::{FileKey, Grant, Holder, HolderAction, HolderConfig, Kind, Op, Request};
use hither_proto::nqnfs::{
    Asking as Call, Cachetype, EvictedArgs, Fattr, Fh as WireFh, GetleaseArgs, Lease, LeaseReply,
    LeaseRequest, NqProc, PROGRAM, VERSION, VacatedArgs,
};
use hither_proto::rpc::{AcceptStat, CallHeader, ReplyHeader, VersionRange};
use hither_proto::xdr::{Dec, Enc};
use hither_rpc::{BoxFuture, CallbackHandler};
use hither_vfs::{Attr, Cred, Fh, Upcalls};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// Term that is asked for: "about optimal", says section 4 of the paper.
const TERM_SECONDS: u32 = 30;
/// Leases that are held; when there are as many, no more are asked for until some have ended.
const HELD_MAX: usize = 10_000;
/// Evictions that are being answered; beyond it they wait for the server to repeat them.
const EVICTED_AT_ONCE: usize = 10_000;
/// How long the layer above may take to let go.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);
/// The same where it may have delayed writes, which are to come before: servers wait no longer.
const WRITE_WITHDRAW_TIMEOUT: Duration = Duration::from_secs(300);
/// A lease for writing that was refused is not asked for again for so long: each write goes to the
/// server.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// What may have overtaken a grant is remembered so often; before that, anything may have.
pub(super) const RECENT_MAX: usize = 1024;
/// Leases that are given up at once when the mount ends, and for how long.
const GIVEN_UP_AT_ONCE: usize = 64;
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2);

/// The leases of a mount.
pub(crate) struct Leases {
    caller: Weak<Caller>,
    upcalls: Arc<dyn Upcalls>,
    /// Where [`Holder`]'s time begins.
    origin: Instant,
    term_seconds: u32,
    inner: Mutex<Inner>,
    /// The next thing is due at another time.
    due: Arc<Notify>,
}

struct Inner {
    holder: Holder,
    /// Under leases.
    files: HashMap<FileKey, Leased>,
    /// VACATED is about to be sent, or not answered yet.
    vacating: HashMap<FileKey, WireFh>,
    /// How often files are open.
    open: HashMap<FileKey, u32>,
    /// Others use them so that nothing of them may be kept, as far as is known: taken back, or
    /// granted as non-caching, since the last lease under which they could be.
    shared: HashSet<FileKey>,
    /// Leases for writing that the server refused lately.
    refused: HashMap<FileKey, Instant>,
    evicted: Recent,
    changed: Recent,
}

/// A file under a lease.
struct Leased {
    wire: WireFh,
    /// Who reads it, and has it renewed.
    cred: Arc<Cred>,
    /// When the answer came that granted it: what is asked from then on is answered under it.
    since: Instant,
    /// What the server said under it.
    known: Option<Attr>,
    /// This client has changed the file, so local programs can, too, until it has asked again.
    unwatched: bool,
    /// It is a lease for writing.
    write: bool,
    /// How often somebody was told that what he writes may wait, and how often until the lease was
    /// last granted.
    delays: u64,
    delays_renewed: u64,
}

/// What happened to files lately, in its order.
#[derive(Default)]
pub(super) struct Recent {
    pub last: u64,
    events: VecDeque<(u64, FileKey)>,
}

impl Recent {
    pub fn note(&mut self, key: FileKey) {
        self.last += 1;
        if let Some((n, _)) = self.events.back_mut().filter(|(_, last)| *last == key) {
            // One after the other to one file, as writes are: others are not forgotten for them.
            *n = self.last;
            return;
        }
        if self.events.len() == RECENT_MAX {
            self.events.pop_front();
        }
        self.events.push_back((self.last, key));
    }

    /// Whether something may have happened to a file after `then`, a value of [`Recent::last`].
    pub fn since(&self, key: FileKey, then: u64) -> bool {
        let forgotten = self.events.front().map_or(self.last, |(first, _)| first - 1);
        then < forgotten || self.events.iter().rev().take_while(|(n, _)| *n > then).any(|(_, k)| *k == key)
    }
}

/// What follows from a look at the leases, to be done without holding them.
#[derive(Default)]
struct Todo {
    lapsed: Vec<Fh>,
    /// Files, and whether something may be delayed above.
    vacate: Vec<(FileKey, WireFh, bool)>,
    renew: Vec<(FileKey, Kind)>,
    /// Files with delayed writes, and how often some had been delayed.
    push: Vec<(FileKey, WireFh, u64)>,
}

impl Todo {
    fn add(&mut self, more: Todo) {
        self.lapsed.extend(more.lapsed);
        self.vacate.extend(more.vacate);
        self.renew.extend(more.renew);
        self.push.extend(more.push);
    }
}

fn key(file: &WireFh) -> FileKey {
    key_of(&file.bytes())
}

fn key_of(handle: &[u8]) -> FileKey {
    FileKey([XxHash3_64::oneshot_with_seed(1, handle), XxHash3_64::oneshot_with_seed(2, handle)])
}

fn own(file: &WireFh) -> Fh {
    Fh(file.bytes().into())
}

impl Leases {
    /// None yet. `term_max_seconds`: the longest that the server grants, when it has said so.
    pub fn begin(
        caller: &Arc<Caller>,
        upcalls: Arc<dyn Upcalls>,
        term_max_seconds: Option<u32>,
    ) -> Arc<Self> {
        let term_seconds = TERM_SECONDS.min(term_max_seconds.unwrap_or(TERM_SECONDS)).max(1);
        let term_ms = term_seconds * 1000;
        let config = HolderConfig {
            term_ms,
            renew_before_ms: term_ms / 3,
            push_before_ms: term_ms / 8,
            renew_retry_ms: u64::from(term_ms) / 12,
        };
        let leases = Arc::new(Self {
            caller: Arc::downgrade(caller),
            upcalls,
            origin: Instant::now(),
            term_seconds,
            inner: Mutex::new(Inner {
                holder: Holder::new(config),
                files: HashMap::new(),
                vacating: HashMap::new(),
                open: HashMap::new(),
                shared: HashSet::new(),
                refused: HashMap::new(),
                evicted: Recent::default(),
                changed: Recent::default(),
            }),
            due: Arc::new(Notify::new()),
        });
        caller.client.set_callback_handler(Arc::new(Evictions(Arc::downgrade(&leases))));
        tokio::spawn(tend(Arc::downgrade(&leases), leases.due.clone()));
        leases
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_millis()).unwrap_or(u64::MAX)
    }

    /// Looks at the leases at a moment, and does what follows.
    fn act<T>(self: &Arc<Self>, f: impl FnOnce(&mut Inner, u64) -> T) -> T {
        let (done, todo, sooner) = {
            let mut inner = self.inner.lock();
            let (before, now) = (inner.holder.poll_timeout(), self.ms(Instant::now()));
            // What has ended is over before something else begins.
            inner.holder.handle_timeout(now);
            let mut todo = inner.todo(now);
            let done = f(&mut inner, now);
            todo.add(inner.todo(now));
            (done, todo, inner.holder.poll_timeout() != before)
        };
        if sooner {
            self.due.notify_one();
        }
        self.carry_out(todo);
        done
    }

    fn carry_out(self: &Arc<Self>, todo: Todo) {
        if !todo.lapsed.is_empty() {
            let lapsed = self.upcalls.lapse(&todo.lapsed);
            tokio::spawn(lapsed);
        }
        for (key, file, delays) in todo.push {
            let settled = self.upcalls.settle(&own(&file));
            let leases = self.clone();
            tokio::spawn(async move {
                settled.await;
                leases.act(|inner, now| {
                    // What could not be sent is kept above, and sent as what is delayed without a
                    // lease.
                    let more = inner.files.get(&key).is_some_and(|l| l.delays != delays);
                    inner.holder.pushed(now, key, 0, more);
                });
            });
        }
        for (key, file, write) in todo.vacate {
            // At once: nothing is told under the lease after this.
            let withdrawn = self.upcalls.withdraw(&own(&file));
            let leases = self.clone();
            let most = if write { WRITE_WITHDRAW_TIMEOUT } else { WITHDRAW_TIMEOUT };
            tokio::spawn(async move {
                if tokio::time::timeout(most, withdrawn).await.is_err() {
                    tracing::debug!(?file, "an evicted file was not dropped everywhere in time");
                }
                leases.send_vacated(&file).await;
                leases.act(|inner, now| {
                    inner.vacating.remove(&key);
                    inner.evicted.note(key);
                    inner.holder.vacated(now, key);
                });
            });
        }
        for (key, kind) in todo.renew {
            let leases = self.clone();
            tokio::spawn(async move { leases.renew(key, kind).await });
        }
    }

    async fn send_vacated(&self, file: &WireFh) {
        let Some(caller) = self.caller.upgrade() else { return };
        let call = Call::nothing(VacatedArgs { file: *file });
        if let Err(e) = caller.send(&Cred::root(), &Patience::policy(), &call).await {
            tracing::debug!(?file, "VACATED: {e}");
        }
    }

    /// GETLEASE for a file that is in use.
    async fn renew(self: &Arc<Self>, key: FileKey, kind: Kind) {
        let held = self.inner.lock().files.get(&key).map(|l| (l.wire, l.cred.clone()));
        let Some((file, cred)) = held else { return };
        let asking = self.ask_for(&file, kind, Op::Lease);
        let _ = self.getlease(&cred, &Patience::policy(), &file, asking).await;
    }

    /// Asks for a lease, if that is wanted; what became of it.
    async fn getlease(
        &self,
        cred: &Arc<Cred>,
        patience: &Patience,
        file: &WireFh,
        asking: Asking,
    ) -> Option<LeaseReply> {
        let caller = self.caller.upgrade()?;
        let (rw, duration) = match asking.lease {
            LeaseRequest::Read(duration) => (Cachetype::READ, duration),
            LeaseRequest::Write(duration) => (Cachetype::WRITE, duration),
            _ => return None,
        };
        let call = Call::nothing(GetleaseArgs { file: *file, rw, duration });
        let (_, ok) = caller.send(cred, patience, &call).await.ok()?.into_result().ok()?;
        let lease = Lease { cachable: ok.cachable, duration: ok.duration, rev: ok.rev };
        let reply = if rw == Cachetype::WRITE { LeaseReply::Write(lease) } else { LeaseReply::Read(lease) };
        asking.answered(cred, file, &reply, Some(&ok.attr));
        Some(reply)
    }

    /// Whether what is written to a file may be delayed, because it is leased for writing for some
    /// time yet. Whoever is told so is asked for it in time.
    pub fn may_delay(self: &Arc<Self>, fh: &Fh) -> bool {
        let key = key_of(&fh.0);
        self.act(|inner, now| {
            let may = inner.holder.may_delay(now, key);
            if may {
                inner.holder.delayed(now, key);
                inner.files.entry(key).and_modify(|l| l.delays += 1);
            }
            may
        })
    }

    /// Asks for a lease for writing; whether what is written may be delayed.
    pub async fn ask_to_delay(self: &Arc<Self>, cred: &Arc<Cred>, patience: &Patience, fh: &Fh) -> bool {
        let Some(file) = WireFh::from_bytes(&fh.0) else { return false };
        let key = key(&file);
        let ask = {
            let (mut inner, now) = (self.inner.lock(), Instant::now());
            let refused = inner.refused.get(&key).is_some_and(|at| now < *at + REFUSED_FOR);
            if !refused {
                inner.refused.remove(&key);
            }
            // Under a non-caching lease every write goes to the server, until it ends.
            let non_caching = inner.holder.lease(self.ms(now), key) == Some((Kind::Write, false));
            !refused && !non_caching
        };
        if !ask {
            return false;
        }
        let asking = self.ask_for(&file, Kind::Write, Op::Lease);
        let wanted = asking.lease != LeaseRequest::None;
        let reply = self.getlease(cred, patience, &file, asking).await;
        if self.may_delay(fh) {
            return true;
        }
        if wanted && !matches!(reply, Some(LeaseReply::Write(Lease { cachable: true, .. }))) {
            let mut inner = self.inner.lock();
            if inner.refused.len() >= HELD_MAX {
                inner.refused.clear();
            }
            inner.refused.insert(key, Instant::now());
        }
        false
    }

    /// Whether others use a file so that nothing of it may be kept.
    pub fn is_shared(&self, fh: &Fh) -> bool {
        let inner = self.inner.lock();
        !inner.shared.is_empty() && inner.shared.contains(&key_of(&fh.0))
    }

    /// Whether the server keeps others from a file until everything was written that is delayed
    /// here.
    pub fn is_for_writing(&self, fh: &Fh) -> bool {
        let inner = self.inner.lock();
        inner.holder.may_delay(self.ms(Instant::now()), key_of(&fh.0))
    }

    /// The same of a file as it goes over the wire.
    pub(super) fn keeps_others_out(&self, file: &WireFh) -> bool {
        self.is_for_writing(&own(file))
    }

    /// A call that reads a file is about to be sent.
    pub(super) fn ask(self: &Arc<Self>, file: &WireFh) -> Asking {
        let unwatched = self.inner.lock().files.get(&key(file)).is_some_and(|l| l.unwatched && !l.write);
        self.ask_for(file, Kind::Read, if unwatched { Op::Lease } else { Op::Read })
    }

    fn ask_for(self: &Arc<Self>, file: &WireFh, kind: Kind, op: Op) -> Asking {
        let key = key(file);
        self.act(|inner, now| {
            let room = inner.files.len() < HELD_MAX || inner.files.contains_key(&key);
            let request = inner.holder.request(now, key, kind, op, false);
            let lease = match request.want {
                Some(_) if room => self.lease_request(kind),
                _ => LeaseRequest::None,
            };
            self.asking(inner, lease, Some((key, request)))
        })
    }

    fn lease_request(&self, kind: Kind) -> LeaseRequest {
        match kind {
            Kind::Read => LeaseRequest::Read(self.term_seconds),
            Kind::Write => LeaseRequest::Write(self.term_seconds),
        }
    }

    /// A call that finds files, or makes one to be written, is about to be sent.
    pub(super) fn ask_unknown(self: &Arc<Self>, kind: Kind) -> Asking {
        self.act(|inner, _| {
            let lease = match inner.files.len() < HELD_MAX {
                true => self.lease_request(kind),
                false => LeaseRequest::None,
            };
            self.asking(inner, lease, None)
        })
    }

    fn asking(
        self: &Arc<Self>,
        inner: &Inner,
        lease: LeaseRequest,
        request: Option<(FileKey, Request)>,
    ) -> Asking {
        Asking {
            leases: self.clone(),
            lease,
            request,
            sent: Instant::now(),
            evicted: inner.evicted.last,
            changed: inner.changed.last,
        }
    }

    /// A call that changes a file is about to be sent, and ends when the result is dropped.
    pub(super) fn changing(self: &Arc<Self>, file: &WireFh) -> Changing {
        let key = key(file);
        let (began, delayed) = {
            let mut inner = self.inner.lock();
            inner.change(key);
            if let Some(leased) = inner.files.get_mut(&key) {
                leased.known = None;
            }
            let writes =
                inner.holder.lease(self.ms(Instant::now()), key).is_some_and(|(k, _)| k == Kind::Write);
            (inner.changed.last, writes || inner.holder.is_dirty(key))
        };
        Changing { leases: self.clone(), key, file: *file, began, delayed }
    }

    /// Whether attributes are what the server says under a lease that is held.
    pub fn covers(&self, fh: &Fh, attr: &Attr) -> bool {
        let key = key_of(&fh.0);
        let inner = self.inner.lock();
        // Where nobody else may write, it does not matter who is watched.
        let leased = inner.files.get(&key).filter(|l| l.write || !l.unwatched);
        // Reading sets the time of the last access.
        let same = leased
            .and_then(|l| l.known.as_ref())
            .is_some_and(|known| Attr { atime: attr.atime, ..known.clone() } == *attr);
        same && inner.holder.lease(self.ms(Instant::now()), key).is_some_and(|(_, cachable)| cachable)
    }

    /// A file is opened, or closed.
    pub fn opened(self: &Arc<Self>, fh: &Fh, opens: bool) {
        let key = key_of(&fh.0);
        self.act(|inner, now| {
            let count = inner.open.entry(key).or_default();
            *count = if opens { *count + 1 } else { count.saturating_sub(1) };
            let in_use = *count > 0;
            if !in_use {
                inner.open.remove(&key);
            }
            inner.holder.set_in_use(now, key, in_use);
        });
    }

    /// Gives all up, within bounds, because the mount ends: nobody has to wait until they have
    /// ended.
    pub async fn give_up(self: &Arc<Self>) {
        let files: Vec<WireFh> = {
            let mut inner = self.inner.lock();
            inner.files.drain().map(|(_, leased)| leased.wire).collect()
        };
        let all = async {
            let mut calls = JoinSet::new();
            for file in files {
                if calls.len() >= GIVEN_UP_AT_ONCE {
                    calls.join_next().await;
                }
                let leases = self.clone();
                calls.spawn(async move { leases.send_vacated(&file).await });
            }
            calls.join_all().await;
        };
        let _ = tokio::time::timeout(GIVEN_UP_WITHIN, all).await;
    }

    /// The server wants a lease back.
    fn evicted(self: &Arc<Self>, file: &WireFh) {
        let key = key(file);
        self.act(|inner, now| {
            inner.evicted.note(key);
            inner.share(key);
            // One that is on its way back need not be taken again.
            if inner.vacating.len() < EVICTED_AT_ONCE || inner.vacating.contains_key(&key) {
                inner.vacating.entry(key).or_insert(*file);
                inner.holder.evicted(now, key, 0);
            }
        });
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.due.notify_one();
    }
}

impl Inner {
    /// This client changes a file.
    fn change(&mut self, key: FileKey) {
        self.changed.note(key);
        if let Some(leased) = self.files.get_mut(&key) {
            leased.unwatched = true;
        }
    }

    /// Others use a file so that nothing of it may be kept.
    fn share(&mut self, key: FileKey) {
        if self.shared.len() >= 2 * HELD_MAX {
            // They are asked about as without leases.
            self.shared.clear();
        }
        self.shared.insert(key);
    }

    fn todo(&mut self, now: u64) -> Todo {
        let mut todo = Todo::default();
        while let Some(action) = self.holder.poll_action() {
            match action {
                HolderAction::Renew { file, kind: Kind::Read } => todo.renew.push((file, Kind::Read)),
                HolderAction::Renew { file, kind: Kind::Write } => match self.files.get(&file) {
                    Some(l) if l.delays != l.delays_renewed => todo.renew.push((file, Kind::Write)),
                    // Nothing was written for a while: what is read next brings a lease for
                    // reading.
                    _ => self.holder.push(now, file),
                },
                HolderAction::Push { file } => match self.files.get(&file) {
                    Some(l) => todo.push.push((file, l.wire, l.delays)),
                    None => self.holder.pushed(now, file, 0, false),
                },
                HolderAction::Vacate { file, .. } => {
                    let leased = self.files.remove(&file).map(|l| (l.wire, l.write));
                    let wire = leased.or_else(|| self.vacating.get(&file).map(|wire| (*wire, false)));
                    if let Some((wire, write)) = wire {
                        self.vacating.insert(file, wire);
                        todo.vacate.push((file, wire, write));
                    }
                }
                HolderAction::Ended { file } => {
                    todo.lapsed.extend(self.files.remove(&file).map(|l| own(&l.wire)));
                }
                // What comes too late is written as what is delayed without a lease, and the layers
                // above compare versions.
                HolderAction::Lost { .. } | HolderAction::Invalidate { .. } => {}
            }
        }
        todo
    }
}

/// A file is being changed by this client.
pub(super) struct Changing {
    leases: Arc<Leases>,
    key: FileKey,
    file: WireFh,
    began: u64,
    /// It may have been delayed under a lease for writing.
    pub delayed: bool,
}

impl Changing {
    /// It is done, and left these attributes.
    pub fn done(&self, attr: &Fattr) {
        let attr = crate::v3::attr(&convert::attr(attr, &self.file));
        let mut inner = self.leases.inner.lock();
        // Of changes side by side nobody knows which came last.
        let alone = !inner.changed.since(self.key, self.began);
        if let Some(leased) = inner.files.get_mut(&self.key).filter(|l| l.write && alone) {
            leased.known = attr;
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.leases.inner.lock().change(self.key);
    }
}

/// A call that may bring leases.
pub(super) struct Asking {
    leases: Arc<Leases>,
    /// What to ask for along with it.
    pub lease: LeaseRequest,
    request: Option<(FileKey, Request)>,
    sent: Instant,
    evicted: u64,
    changed: u64,
}

impl Asking {
    /// What to ask for, as LOOKUP and READDIRLOOK have it: 0 for nothing.
    pub fn duration(&self) -> u32 {
        match self.lease {
            LeaseRequest::Read(seconds) => seconds,
            _ => 0,
        }
    }

    /// The answer told of a file: what came of its lease, and its attributes.
    pub fn answered(&self, cred: &Arc<Cred>, file: &WireFh, reply: &LeaseReply, attr: Option<&Fattr>) {
        let grant = match (reply, self.lease) {
            (_, LeaseRequest::None) => None,
            (LeaseReply::Read(l), _) => Some(grant(l, Kind::Read)),
            (LeaseReply::Write(l), LeaseRequest::Write(_)) => Some(grant(l, Kind::Write)),
            _ => None,
        };
        let attr = attr.and_then(|f| crate::v3::attr(&convert::attr(f, file)));
        let key = key(file);
        self.leases.act(|inner, now| {
            let granted = grant.is_some_and(|grant| self.take(inner, now, key, grant));
            match grant {
                Some(grant) if !grant.cachable => inner.share(key),
                Some(_) if granted => drop(inner.shared.remove(&key)),
                _ => {}
            }
            let Some((kind, true)) = inner.holder.lease(now, key) else { return };
            let (came, changed) = (Instant::now(), inner.changed.since(key, self.changed));
            if granted {
                let new = || Leased {
                    wire: *file,
                    cred: cred.clone(),
                    since: came,
                    known: None,
                    unwatched: changed,
                    write: kind == Kind::Write,
                    delays: 0,
                    delays_renewed: 0,
                };
                let leased = inner.files.entry(key).or_insert_with(new);
                (leased.unwatched, leased.write) = (changed, kind == Kind::Write);
                leased.delays_renewed = leased.delays;
            }
            let Some(leased) = inner.files.get_mut(&key) else { return };
            let watched = leased.write || !leased.unwatched;
            if attr.is_some() && (granted || self.sent >= leased.since) && watched && !changed {
                leased.known = attr;
            }
        });
    }

    /// Takes a lease; false when it is void.
    fn take(&self, inner: &mut Inner, now: u64, key: FileKey, mut grant: Grant) -> bool {
        if inner.evicted.since(key, self.evicted) {
            return false;
        }
        if grant.cachable && inner.holder.lease(now, key) == Some((Kind::Write, true)) {
            // Who asks for less keeps what he has.
            grant.kind = Kind::Write;
        }
        let request = match self.request {
            Some((asked, request)) if asked == key => request,
            // It was asked for before the file was known.
            _ => inner.holder.request(self.leases.ms(self.sent), key, grant.kind, Op::Lease, false),
        };
        let blocked = request.want.is_none();
        inner.holder.answered(now, request, Some(grant).filter(|_| !blocked), 0, false);
        !blocked && grant.cachable
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some((key, _)) = self.request {
            // Nothing is left of a call that brought nothing.
            self.leases.act(|inner, now| inner.holder.dropped(now, key));
        }
    }
}

/// The protocol does not number leases: one that was not evicted and has not expired goes on.
fn grant(lease: &Lease, kind: Kind) -> Grant {
    Grant { kind, cachable: lease.cachable, term_ms: lease.duration.saturating_mul(1000), seq: 1 }
}

/// Lets time pass.
async fn tend(leases: Weak<Leases>, due: Arc<Notify>) {
    loop {
        let Some(next) = leases.upgrade().map(|leases| {
            let next = leases.inner.lock().holder.poll_timeout();
            next.map(|ms| leases.origin + Duration::from_millis(ms))
        }) else {
            return;
        };
        match next {
            Some(at) => tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = due.notified() => {}
            },
            None => due.notified().await,
        }
        let Some(leases) = leases.upgrade() else { return };
        leases.act(|_, _| ());
    }
}

/// Hears the server.
struct Evictions(Weak<Leases>);

impl CallbackHandler for Evictions {
    fn call(&self, header: CallHeader, body: Bytes) -> BoxFuture<'static, Enc> {
        let refuse = |stat| Enc::of(&ReplyHeader::accepted(header.xid, stat));
        let reply = match (header.prog, header.vers, NqProc(header.proc)) {
            (PROGRAM, VERSION, NqProc::EVICTED) => match Dec::all::<EvictedArgs>(&body) {
                Ok(args) => {
                    if let Some(leases) = self.0.upgrade() {
                        leases.evicted(&args.file);
                    }
                    Enc::of(&ReplyHeader::success(header.xid))
                }
                Err(_) => refuse(AcceptStat::GarbageArgs),
            },
            (PROGRAM, VERSION, _) => refuse(AcceptStat::ProcUnavail),
            (PROGRAM, ..) => refuse(AcceptStat::ProgMismatch(VersionRange { low: VERSION, high: VERSION })),
            _ => refuse(AcceptStat::ProgUnavail),
        };
        Box::pin(async move { reply })
    }
}
