//! The leases that a mount holds (section 4 of the paper), and their return.
//!
//! [`Holder`] decides which data may be cached, for how long, and the answer to an eviction. This
//! module supplies its clock, its messages and its file keys. Calls that read (LOOKUP, GETATTR,
//! READ, ACCESS, READDIRLOOK) also request a lease. GETLEASE renews the lease of an open file
//! before its end. Attributes received under a lease carry
//! [`Validity::Lease`](hither_vfs::Validity). The layer above does not revalidate them.
//!
//! An eviction has three steps. New answers no longer carry the lease. The layer above drops its
//! data, within [`WITHDRAW_TIMEOUT`]. Then the client sends VACATED. A lease that expires only
//! lapses in the layer above, because no other client is known to have changed the file.
//!
//! A request of the paper names the file of its call. LOOKUP and READDIRLOOK grant leases on files
//! that are known only from the answer. [`Recent`] remembers the events that may overtake such a
//! grant: an eviction, its end, and a change by this client.
//!
//! Changes by this client end no lease. But when the holder changes a file, the server stops
//! watching it for local programs until the next request of the holder. Until then attributes are
//! valid for the same time as without a lease. The next call that reads requests the lease again.

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

/// Requested term of a lease in seconds: "about optimal" in section 4 of the paper.
const TERM_SECONDS: u32 = 30;
/// Most leases held. At this number the client requests no more until some have ended.
const HELD_MAX: usize = 10_000;
/// Most evictions in progress. The server repeats evictions beyond this number.
const EVICTED_AT_ONCE: usize = 10_000;
/// Longest time for the layer above to drop its data.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for the layer above when it may have delayed writes to send first. Servers do not
/// wait longer.
const WRITE_WITHDRAW_TIMEOUT: Duration = Duration::from_secs(300);
/// Time without a new request after a refused write lease. Each write is sent to the server in this
/// time.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Number of remembered events that may have overtaken a grant. Older events count as possible for
/// every file.
pub(super) const RECENT_MAX: usize = 1024;
/// Number of leases that are returned concurrently at the end of the mount. [`GIVEN_UP_WITHIN`]
/// bounds the time.
const GIVEN_UP_AT_ONCE: usize = 64;
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(2);

/// The leases of a mount.
pub(crate) struct Leases {
    caller: Weak<Caller>,
    upcalls: Arc<dyn Upcalls>,
    /// Start of the clock of [`Holder`].
    origin: Instant,
    term_seconds: u32,
    inner: Mutex<Inner>,
    /// Notified when the time of the next event changes.
    due: Arc<Notify>,
}

struct Inner {
    holder: Holder,
    /// Files under leases.
    files: HashMap<FileKey, Leased>,
    /// Files with a VACATED in preparation or without an answer.
    vacating: HashMap<FileKey, WireFh>,
    /// Number of opens of each file.
    open: HashMap<FileKey, u32>,
    /// Files that other clients share, so that no data may be cached. The last lease was evicted or
    /// granted as non-caching.
    shared: HashSet<FileKey>,
    /// Write leases that the server refused recently.
    refused: HashMap<FileKey, Instant>,
    evicted: Recent,
    changed: Recent,
}

/// A file under a lease.
struct Leased {
    wire: WireFh,
    /// Credential of the reader, also used for renewals.
    cred: Arc<Cred>,
    /// Time of the answer that granted the lease. Answers to calls sent after this time are under
    /// the lease.
    since: Instant,
    /// The server's last attributes under the lease.
    known: Option<Attr>,
    /// This client has changed the file. Local programs on the server may change it until the next
    /// request for the lease.
    unwatched: bool,
    /// The lease is a write lease.
    write: bool,
    /// Number of writes that the client allowed to be delayed. `delays_renewed` is the number at
    /// the last grant of the lease.
    delays: u64,
    delays_renewed: u64,
}

/// Recent events of files in their order.
#[derive(Default)]
pub(super) struct Recent {
    pub last: u64,
    events: VecDeque<(u64, FileKey)>,
}

impl Recent {
    pub fn note(&mut self, key: FileKey) {
        self.last += 1;
        if let Some((n, _)) = self.events.back_mut().filter(|(_, last)| *last == key) {
            // Consecutive events of one file, for example writes, take one entry. Events of other
            // files stay remembered.
            *n = self.last;
            return;
        }
        if self.events.len() == RECENT_MAX {
            self.events.pop_front();
        }
        self.events.push_back((self.last, key));
    }

    /// Whether an event of the file may have happened after `then`, a value of [`Recent::last`].
    pub fn since(&self, key: FileKey, then: u64) -> bool {
        let forgotten = self.events.front().map_or(self.last, |(first, _)| first - 1);
        then < forgotten || self.events.iter().rev().take_while(|(n, _)| *n > then).any(|(_, k)| *k == key)
    }
}

/// Actions that are carried out without the lock on the leases.
#[derive(Default)]
struct Todo {
    expired: Vec<Fh>,
    /// Files, and whether the layer above may have delayed writes.
    vacate: Vec<(FileKey, WireFh, bool)>,
    renew: Vec<(FileKey, Kind)>,
    /// Files with delayed writes, and the value of `delays`.
    push: Vec<(FileKey, WireFh, u64)>,
}

impl Todo {
    fn add(&mut self, more: Todo) {
        self.expired.extend(more.expired);
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
    /// Starts without leases. `term_max_seconds` is the server's longest term, when the server
    /// announced it.
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

    /// Runs `f` on the leases at the present time, and carries out the actions that follow.
    fn act<T>(self: &Arc<Self>, f: impl FnOnce(&mut Inner, u64) -> T) -> T {
        let (done, todo, sooner) = {
            let mut inner = self.inner.lock();
            let (before, now) = (inner.holder.poll_timeout(), self.ms(Instant::now()));
            // Leases that have expired end before `f` runs.
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
        if !todo.expired.is_empty() {
            let expired = self.upcalls.expire(&todo.expired);
            tokio::spawn(expired);
        }
        for (key, file, delays) in todo.push {
            let flushed = self.upcalls.flush(&own(&file));
            let leases = self.clone();
            tokio::spawn(async move {
                flushed.await;
                leases.act(|inner, now| {
                    // The layer above keeps data that it could not send. It sends that data later
                    // as data delayed without a lease.
                    let more = inner.files.get(&key).is_some_and(|l| l.delays != delays);
                    inner.holder.pushed(now, key, 0, more);
                });
            });
        }
        for (key, file, write) in todo.vacate {
            // Starts at once. The client uses no attribute under the lease afterwards.
            let revoked = self.upcalls.revoke(&own(&file));
            let leases = self.clone();
            let most = if write { WRITE_WITHDRAW_TIMEOUT } else { WITHDRAW_TIMEOUT };
            tokio::spawn(async move {
                if tokio::time::timeout(most, revoked).await.is_err() {
                    tracing::debug!(?file, "the layer above did not drop an evicted file in time");
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

    /// GETLEASE for an open file.
    async fn renew(self: &Arc<Self>, key: FileKey, kind: Kind) {
        let held = self.inner.lock().files.get(&key).map(|l| (l.wire, l.cred.clone()));
        let Some((file, cred)) = held else { return };
        let asking = self.ask_for(&file, kind, Op::Lease);
        let _ = self.getlease(&cred, &Patience::policy(), &file, asking).await;
    }

    /// Sends GETLEASE, if `asking` has a request. Returns the server's answer.
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

    /// Whether writes to a file may be delayed: the file has a write lease with enough time left.
    /// After true the layer above must be ready to send the delayed data before the lease ends.
    pub fn can_cache_writes(self: &Arc<Self>, fh: &Fh) -> bool {
        let key = key_of(&fh.0);
        self.act(|inner, now| {
            let may = inner.holder.can_cache_writes(now, key);
            if may {
                inner.holder.delayed(now, key);
                inner.files.entry(key).and_modify(|l| l.delays += 1);
            }
            may
        })
    }

    /// Requests a write lease. Returns whether writes may be delayed.
    pub async fn request_write_caching(
        self: &Arc<Self>,
        cred: &Arc<Cred>,
        patience: &Patience,
        fh: &Fh,
    ) -> bool {
        let Some(file) = WireFh::from_bytes(&fh.0) else { return false };
        let key = key(&file);
        let ask = {
            let (mut inner, now) = (self.inner.lock(), Instant::now());
            let refused = inner.refused.get(&key).is_some_and(|at| now < *at + REFUSED_FOR);
            if !refused {
                inner.refused.remove(&key);
            }
            // Under a non-caching lease every write is sent to the server until the lease ends.
            let non_caching = inner.holder.lease(self.ms(now), key) == Some((Kind::Write, false));
            !refused && !non_caching
        };
        if !ask {
            return false;
        }
        let asking = self.ask_for(&file, Kind::Write, Op::Lease);
        let wanted = asking.lease != LeaseRequest::None;
        let reply = self.getlease(cred, patience, &file, asking).await;
        if self.can_cache_writes(fh) {
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

    /// Whether other clients share a file, so that no data may be cached.
    pub fn is_noncacheable(&self, fh: &Fh) -> bool {
        let inner = self.inner.lock();
        !inner.shared.is_empty() && inner.shared.contains(&key_of(&fh.0))
    }

    /// Whether the server excludes other clients from a file until this client has sent all delayed
    /// data.
    pub fn is_for_writing(&self, fh: &Fh) -> bool {
        let inner = self.inner.lock();
        inner.holder.can_cache_writes(self.ms(Instant::now()), key_of(&fh.0))
    }

    /// As [`Leases::is_for_writing`], for a filehandle of the wire.
    pub(super) fn keeps_others_out(&self, file: &WireFh) -> bool {
        self.is_for_writing(&own(file))
    }

    /// Prepares a call that reads a file.
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

    /// Prepares a call that finds files, or that creates a file for writing.
    pub(super) fn ask_unknown(self: &Arc<Self>, kind: Kind) -> Asking {
        self.act(|inner, _| {
            let lease =
                if inner.files.len() < HELD_MAX { self.lease_request(kind) } else { LeaseRequest::None };
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

    /// Prepares a call that changes a file. The change ends at the drop of the result.
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

    /// Whether the attributes equal the server's last attributes under a lease that is held.
    pub fn covers(&self, fh: &Fh, attr: &Attr) -> bool {
        let key = key_of(&fh.0);
        let inner = self.inner.lock();
        // Under a write lease other programs cannot change the file, with or without watching.
        let leased = inner.files.get(&key).filter(|l| l.write || !l.unwatched);
        // A read changes the access time.
        let same = leased
            .and_then(|l| l.known.as_ref())
            .is_some_and(|known| Attr { atime: attr.atime, ..known.clone() } == *attr);
        same && inner.holder.lease(self.ms(Instant::now()), key).is_some_and(|(_, cachable)| cachable)
    }

    /// Counts an open or a close of a file.
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

    /// Returns all leases at the end of the mount, within bounds of number and time. Other clients
    /// then need not wait for their expiry.
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

    /// Handles the server's eviction of a lease.
    fn evicted(self: &Arc<Self>, file: &WireFh) {
        let key = key(file);
        self.act(|inner, now| {
            inner.evicted.note(key);
            inner.share(key);
            // A lease that is already being returned is not taken again.
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
    /// Records a change by this client.
    fn change(&mut self, key: FileKey) {
        self.changed.note(key);
        if let Some(leased) = self.files.get_mut(&key) {
            leased.unwatched = true;
        }
    }

    /// Records that other clients share a file, so that no data may be cached.
    fn share(&mut self, key: FileKey) {
        if self.shared.len() >= 2 * HELD_MAX {
            // The attributes of these files are then valid for the same time as without leases.
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
                    // There was no write since the last grant. The next read requests a read lease.
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
                    todo.expired.extend(self.files.remove(&file).map(|l| own(&l.wire)));
                }
                // Late data is written as data delayed without a lease. The layers above compare
                // versions.
                HolderAction::Lost { .. } | HolderAction::Invalidate { .. } => {}
            }
        }
        todo
    }
}

/// A change of a file by this client in progress.
pub(super) struct Changing {
    leases: Arc<Leases>,
    key: FileKey,
    file: WireFh,
    began: u64,
    /// The data may have been delayed under a write lease.
    pub delayed: bool,
}

impl Changing {
    /// Records the attributes after the change.
    pub fn done(&self, attr: &Fattr) {
        let attr = crate::v3::attr(&convert::attr(attr, &self.file));
        let mut inner = self.leases.inner.lock();
        // The order of concurrent changes is unknown.
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

/// A call that may grant leases.
pub(super) struct Asking {
    leases: Arc<Leases>,
    /// The lease to request in the call.
    pub lease: LeaseRequest,
    request: Option<(FileKey, Request)>,
    sent: Instant,
    evicted: u64,
    changed: u64,
}

impl Asking {
    /// The term to request in LOOKUP and READDIRLOOK in seconds; 0 for no lease.
    pub fn duration(&self) -> u32 {
        match self.lease {
            LeaseRequest::Read(seconds) => seconds,
            _ => 0,
        }
    }

    /// Records the answer for a file: its lease and its attributes.
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

    /// Takes a lease. False when the lease is void.
    fn take(&self, inner: &mut Inner, now: u64, key: FileKey, mut grant: Grant) -> bool {
        if inner.evicted.since(key, self.evicted) {
            return false;
        }
        if grant.cachable && inner.holder.lease(now, key) == Some((Kind::Write, true)) {
            // A request for a read lease does not reduce a write lease.
            grant.kind = Kind::Write;
        }
        let request = match self.request {
            Some((asked, request)) if asked == key => request,
            // The request was sent before the file was known.
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
            // A call without an answer leaves no pending request.
            self.leases.act(|inner, now| inner.holder.dropped(now, key));
        }
    }
}

/// The protocol does not number leases. A lease that was not evicted and has not expired continues.
fn grant(lease: &Lease, kind: Kind) -> Grant {
    Grant { kind, cachable: lease.cachable, term_ms: lease.duration.saturating_mul(1000), seq: 1 }
}

/// Runs the timers of the leases.
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

/// Handles calls from the server.
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
