//! Delegations: attributes of files and directories that are valid until a recall (RFC 8881
//! sections 10.4 and 10.9).
//!
//! While a delegation is held, attributes requested after its grant carry [`Validity::Lease`].
//! [`Upcalls`] informs the layer above before the delegation is returned. Without a subscriber, and
//! with `noac`, no attributes carry a lease and no delegation is requested.
//!
//! Delegations outlive the opens that brought them, up to [`HELD_MAX`]. Beyond it the least
//! recently used are returned, many in one compound. A recall is answered at once. Then, in this
//! order:
//!
//! - Answers no longer carry the lease.
//! - The layer above drops its data, within `withdraw_max`, or [`WRITE_WITHDRAW_TIMEOUT`] while it
//!   sends delayed writes. Concurrently, locks that the client decided are taken at the
//!   server (`lock_authority`).
//! - Writes under a write delegation are committed.
//! - DELEGRETURN.
//!
//! A recall can overtake the reply that grants the delegation. The delegation is still returned,
//! and the recall is remembered until that reply arrives.
//!
//! At `hither serve` the client asks to maintain the times of files that it writes (NFSv4.2, RFC
//! 9754 section 5). It answers CB_GETATTR with the modification time that local programs see, and
//! sets that time under the delegation. It does so until DELEGRETURN, also while a recall is in
//! progress.
//!
//! All leases expire with the lease of the client: [`Core::watch_lease`] counts from the last
//! renewal.

use super::call::{Answer, Compound};
use super::closer::{Closing, Waiting};
use super::core::Core;
use super::fail::Answered;
use super::state::wire_fh;
use crate::AttrCache;
use hither_proto::nfs4::{
    Attrs as WireAttrs, Nfsstat4, Op, OpenDelegation, OpenOk, SpaceLimit, Stateid, open,
};
use hither_vfs::{
    Attr, Attrs, BoxFuture, Error, Fh, FileKind, RequestContext, Time, Unsent, Upcalls, Validity,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Most delegations that are kept.
pub(crate) const HELD_MAX: usize = 10_000;
/// Number of delegations that are returned together beyond [`HELD_MAX`].
const EVICTED_AT_ONCE: usize = 40;
/// Longest time for the layer above when it may have delayed writes to send first. Servers revoke a
/// delegation that is not returned.
const WRITE_WITHDRAW_TIMEOUT: Duration = Duration::from_secs(600);
/// Recalls that are remembered before the delegation is known.
const EARLY_MAX: usize = 256;
/// Compounds of DELEGRETURN in flight.
const RETURNS_AT_ONCE: usize = 4;

/// All delegations of a mount.
pub(crate) struct Delegations {
    held: Mutex<DelegationTable>,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    /// The server reports revoked delegations. The client is finding out which.
    suspect: AtomicBool,
    /// Recalls that arrived before the reply that grants the delegation.
    early: Mutex<VecDeque<[u8; 12]>>,
    /// Files with a write delegation when the server lost all delegations.
    lost: Mutex<HashMap<Fh, LostWrite>>,
    /// Delegations whose holder maintains the times, from a recall until DELEGRETURN.
    returning: Mutex<HashMap<Fh, Stateid>>,
    /// [`HELD_MAX`]; tests use another value.
    pub most: AtomicUsize,
    /// Number of CB_RECALL calls from the server. `getattrs` is the number of CB_GETATTR calls.
    pub recalls: AtomicU64,
    pub getattrs: AtomicU64,
}

/// Delegations that a mount holds now, and callbacks of the server since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelegationCounts {
    /// Files with a read delegation.
    pub reading: u64,
    /// Files with a write delegation.
    pub writing: u64,
    /// Directories with a delegation.
    pub directories: u64,
    /// Number of CB_RECALL calls.
    pub recalls: u64,
    /// Number of CB_GETATTR calls.
    pub getattrs: u64,
}

#[derive(Default)]
struct DelegationTable {
    files: HashMap<Fh, Delegation>,
    by_stateid: HashMap<[u8; 12], Fh>,
    /// By last use, oldest first.
    order: BTreeMap<u64, Fh>,
    uses: u64,
    /// When the server last reported the loss of all delegations.
    doubted: Option<Instant>,
}

struct Delegation {
    stateid: Stateid,
    write: bool,
    directory: bool,
    /// Largest length of a file with unsent data at a close.
    limit_bytes: u64,
    /// The client may decide locks under it. It was not recalled before its grant, and is not from
    /// before a restart.
    sure: bool,
    /// Time of the reply that granted it. Answers to calls sent after this time are under the
    /// delegation.
    since: Instant,
    used: u64,
    /// The server's first `change` under the delegation, for CB_GETATTR (RFC 8881 section 10.4.3).
    granted: Option<u64>,
    /// The client maintains the file's times.
    times: bool,
    /// The server's last attributes.
    last: Noted,
}

/// The attributes of a delegated file that CB_GETATTR asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Noted {
    pub change: u64,
    pub size_bytes: u64,
}

impl Noted {
    pub fn of(attr: &Attr) -> Self {
        Self { change: attr.change, size_bytes: attr.size_bytes }
    }

    /// `None` when the server omits an attribute.
    pub fn of_wire(wire: &WireAttrs) -> Option<Self> {
        Some(Self { change: wire.change?, size_bytes: wire.size? })
    }
}

/// A file under a write delegation, including delayed writes of the layers above.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// `None` when the client cannot describe the file.
    pub attrs: Option<Noted>,
    /// The modification time of unsent bytes, when the client maintains the file's times. Without
    /// unsent bytes the server's own time is the correct one, and the client's copy may be older.
    pub mtime: Option<Time>,
}

/// A write delegation that the server has lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LostWrite {
    /// The client maintained the file's times.
    pub times: bool,
}

/// The kind of a delegation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of<'a> {
    /// A file, for reading.
    Reading,
    /// A file, also for writing, within the server's space limit. `times`: the client maintains the
    /// file's times.
    Writing {
        limit: &'a SpaceLimit,
        times: bool,
    },
    Directory,
}

/// A delegation that the client has dropped and the server still has.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub fh: Fh,
    pub stateid: Stateid,
    pub write: bool,
    /// The client maintains the file's times.
    pub times: bool,
}

/// The state at the server of a file that is about to lose its last name.
#[derive(Default)]
pub(super) struct LastState {
    /// Opens that wait for their CLOSE.
    pub closes: Vec<Waiting>,
    /// The delegation.
    pub delegation: Option<Taken>,
}

impl Default for Delegations {
    fn default() -> Self {
        Self {
            held: Mutex::default(),
            upcalls: OnceLock::new(),
            suspect: AtomicBool::new(false),
            early: Mutex::default(),
            lost: Mutex::default(),
            returning: Mutex::default(),
            most: AtomicUsize::new(HELD_MAX),
            recalls: AtomicU64::new(0),
            getattrs: AtomicU64::new(0),
        }
    }
}

impl DelegationTable {
    fn touch(&mut self, fh: &Fh) {
        let Some(d) = self.files.get_mut(fh) else { return };
        self.order.remove(&d.used);
        self.uses += 1;
        d.used = self.uses;
        self.order.insert(d.used, fh.clone());
    }

    fn take(&mut self, fh: &Fh) -> Option<Taken> {
        let d = self.files.remove(fh)?;
        self.by_stateid.remove(&d.stateid.other);
        self.order.remove(&d.used);
        Some(Taken { fh: fh.clone(), stateid: d.stateid, write: d.write, times: d.times })
    }

    fn take_oldest(&mut self, count: usize) -> Vec<Taken> {
        let oldest: Vec<Fh> = self.order.values().take(count).cloned().collect();
        oldest.iter().filter_map(|fh| self.take(fh)).collect()
    }
}

impl Delegations {
    /// Sets the subscriber of the upcalls.
    pub fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        if self.upcalls.set(upcalls).is_err() {
            tracing::warn!("only the first subscriber receives the end of leases");
        }
    }

    /// The path of a file, if a layer above knows it.
    pub fn path(&self, fh: &Fh) -> Option<String> {
        self.upcalls.get()?.path(fh)
    }

    /// Whether the answer to a call about `fh`, sent at `asked`, is valid as long as the
    /// delegation.
    fn covers(&self, fh: &Fh, asked: Instant) -> bool {
        if self.upcalls.get().is_none() || self.suspect.load(Ordering::Acquire) {
            return false;
        }
        let mut held = self.held.lock();
        let covered = held.files.get(fh).is_some_and(|d| asked >= d.since);
        if covered {
            held.touch(fh);
        }
        covered
    }

    /// The length limit of `fh` under a write delegation.
    fn limit_bytes(&self, fh: &Fh) -> Option<u64> {
        let subscribed = self.upcalls.get().is_some() && !self.suspect.load(Ordering::Acquire);
        let held = self.held.lock();
        held.files.get(fh).filter(|d| subscribed && d.write).map(|d| d.limit_bytes)
    }

    /// The stateid of a file's write delegation.
    pub fn for_writing(&self, fh: &Fh) -> Option<Stateid> {
        self.held.lock().files.get(fh).filter(|d| d.write).map(|d| d.stateid)
    }

    /// Whether `fh` has a write delegation, so that the client may decide its locks. `Some(false)`
    /// while the server's report of revoked delegations is being checked.
    pub fn for_locks(&self, fh: &Fh) -> Option<bool> {
        let mut held = self.held.lock();
        held.files.get(fh).filter(|d| d.write && d.sure)?;
        held.touch(fh);
        Some(!self.suspect.load(Ordering::Acquire))
    }

    /// Stops lock decisions under the present delegations, and under delegations from before the
    /// server's report of their loss.
    pub fn doubt_all(&self) {
        let mut held = self.held.lock();
        held.files.values_mut().for_each(|d| d.sure = false);
        held.doubted = Some(Instant::now());
    }

    /// Allows lock decisions under a delegation, if it is still held. Its reply answered a call
    /// sent at `asked`.
    pub fn confirm(&self, fh: &Fh, stateid: &Stateid, asked: Instant) {
        let mut held = self.held.lock();
        let late = held.doubted.is_some_and(|at| asked < at);
        if let Some(d) = held.files.get_mut(fh).filter(|d| d.stateid.other == stateid.other && !late) {
            d.sure = true;
        }
    }

    /// The write delegation of `fh` when the server lost all delegations.
    pub fn was_for_writing(&self, fh: &Fh) -> Option<LostWrite> {
        self.lost.lock().get(fh).copied()
    }

    /// Whether the client maintains the times of `fh`.
    fn maintains_times(&self, fh: &Fh) -> bool {
        self.held.lock().files.get(fh).is_some_and(|d| d.times)
    }

    /// The stateid under which the client may set the times of `fh`, also while it returns the
    /// delegation.
    pub fn for_times(&self, fh: &Fh) -> Option<Stateid> {
        let held = self.held.lock().files.get(fh).filter(|d| d.times).map(|d| d.stateid);
        held.or_else(|| self.returning.lock().get(fh).copied())
    }

    /// Whether `fh` is held by `stateid`. Results of the same compound after the grant are then
    /// valid as long.
    fn is(&self, fh: &Fh, stateid: &Stateid) -> bool {
        let subscribed = self.upcalls.get().is_some() && !self.suspect.load(Ordering::Acquire);
        subscribed && self.held.lock().files.get(fh).is_some_and(|d| d.stateid.other == stateid.other)
    }

    /// Keeps a delegation. Returns the delegations to give back.
    fn keep(&self, fh: &Fh, stateid: Stateid, of: Of<'_>) -> Vec<Taken> {
        let write = matches!(of, Of::Writing { .. });
        let times = matches!(of, Of::Writing { times: true, .. });
        let directory = matches!(of, Of::Directory);
        let limit_bytes = match of {
            Of::Writing { limit: SpaceLimit::Size(bytes), .. } => *bytes,
            // The limit counts changed bytes. A file of at most this length cannot exceed it.
            Of::Writing { limit: SpaceLimit::Blocks(l), .. } => {
                u64::from(l.num_blocks) * u64::from(l.bytes_per_block)
            }
            Of::Reading | Of::Directory => 0,
        };
        let mut held = self.held.lock();
        let mut back = Vec::new();
        let (mut granted, mut last, mut sure) = (None, Noted::default(), false);
        if let Some(old) = held.files.get(fh) {
            let same = old.stateid.other == stateid.other;
            (granted, last, sure) = (old.granted.filter(|_| same), old.last, same && old.sure);
            back.extend(held.take(fh).filter(|_| !same));
        }
        held.uses += 1;
        let used = held.uses;
        let since = Instant::now();
        let new =
            Delegation { stateid, write, directory, limit_bytes, sure, since, used, granted, times, last };
        held.files.insert(fh.clone(), new);
        held.by_stateid.insert(stateid.other, fh.clone());
        held.order.insert(used, fh.clone());
        if held.files.len() > self.most.load(Ordering::Relaxed) {
            back.extend(held.take_oldest(EVICTED_AT_ONCE));
        }
        back
    }

    /// Ends the use of delegations that were taken to set times.
    fn returned(&self, taken: &[Taken]) {
        let mut returning = self.returning.lock();
        for t in taken.iter().filter(|t| t.times) {
            if returning.get(&t.fh).is_some_and(|stateid| stateid.other == t.stateid.other) {
                returning.remove(&t.fh);
            }
        }
    }

    /// Whether `fh` has a delegation.
    pub fn holds(&self, fh: &Fh) -> bool {
        self.held.lock().files.contains_key(fh)
    }

    /// Whether a further delegation replaces no other.
    pub fn has_room(&self) -> bool {
        self.held.lock().files.len() < self.most.load(Ordering::Relaxed)
    }

    /// Whether the delegation of `stateid` is held.
    pub fn is_held(&self, stateid: &Stateid) -> bool {
        self.held.lock().by_stateid.contains_key(&stateid.other)
    }

    /// Takes the delegation of `fh`.
    pub fn take(&self, fh: &Fh) -> Option<Taken> {
        self.held.lock().take(fh)
    }

    /// Takes the delegation of `stateid`.
    pub fn take_stateid(&self, stateid: &Stateid) -> Option<Taken> {
        let mut held = self.held.lock();
        let fh = held.by_stateid.get(&stateid.other)?.clone();
        held.take(&fh)
    }

    /// Takes all but the `keep` most recently used.
    pub fn take_all_but(&self, keep: usize) -> Vec<Taken> {
        let mut held = self.held.lock();
        let count = held.files.len().saturating_sub(keep);
        held.take_oldest(count)
    }

    /// All delegations held now.
    pub fn all(&self) -> Vec<(Fh, Stateid)> {
        self.held.lock().files.iter().map(|(fh, d)| (fh.clone(), d.stateid)).collect()
    }

    /// Records the server's last attributes of `fh`.
    pub fn note(&self, fh: &Fh, noted: Noted) {
        if let Some(d) = self.held.lock().files.get_mut(fh) {
            d.granted.get_or_insert(noted.change);
            d.last = noted;
        }
    }

    /// A file under a write delegation, for CB_GETATTR.
    pub fn written(&self, fh: &Fh) -> Option<Written> {
        // Read first: data that arrives at the server in between is then counted in one of the two
        // values.
        let unsent = self.upcalls.get().map_or(Unsent::More, |above| above.unsent(fh));
        let held = self.held.lock();
        let d = held.files.get(fh).filter(|d| d.write)?;
        let attrs = d.granted.and_then(|change| match unsent {
            Unsent::Nothing => Some(Noted { change, ..d.last }),
            // Any `change` that differs from the grant's reports a change. This one is greater.
            Unsent::Bytes { size_bytes, .. } => Some(Noted { change: change.checked_add(1)?, size_bytes }),
            Unsent::More => None,
        });
        let mtime = match unsent {
            Unsent::Bytes { mtime, .. } => mtime.filter(|_| d.times),
            Unsent::Nothing | Unsent::More => None,
        };
        Some(Written { attrs, mtime })
    }

    /// The number of delegations and of callbacks.
    pub fn counts(&self) -> DelegationCounts {
        let calls = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let mut counts = DelegationCounts {
            recalls: calls(&self.recalls),
            getattrs: calls(&self.getattrs),
            ..DelegationCounts::default()
        };
        for d in self.held.lock().files.values() {
            let count = if d.directory {
                &mut counts.directories
            } else if d.write {
                &mut counts.writing
            } else {
                &mut counts.reading
            };
            *count += 1;
        }
        counts
    }

    fn remember_recall(&self, stateid: &Stateid) {
        let mut early = self.early.lock();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(stateid.other);
    }

    fn recalled_early(&self, stateid: &Stateid) -> bool {
        let mut early = self.early.lock();
        let at = early.iter().position(|other| *other == stateid.other);
        at.is_some_and(|i| early.remove(i).is_some())
    }

    /// Stops or resumes leases on attributes.
    pub fn suspend(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Release);
    }

    /// Informs the layer above that this client changed an object without a call from above.
    pub fn changed_here(&self, fh: &Fh) {
        if let Some(upcalls) = self.upcalls.get() {
            drop(upcalls.revoke(fh));
        }
    }

    /// Informs the layer above that all leases are lost.
    pub fn revoke_all(&self) {
        if let Some(upcalls) = self.upcalls.get() {
            drop(upcalls.revoke_all());
        }
    }

    /// Informs the layer above. The returned future ends when the layer has dropped its data of all
    /// of them.
    fn revoke(&self, taken: &[Taken]) -> impl Future<Output = ()> + Send + use<> {
        let upcalls = self.upcalls.get();
        let waits: Vec<BoxFuture<()>> =
            upcalls.map_or_else(Vec::new, |up| taken.iter().map(|t| up.revoke(&t.fh)).collect());
        async move {
            for wait in waits {
                wait.await;
            }
        }
    }
}

impl Core {
    /// The `OPEN4_SHARE_ACCESS_WANT_*` value of opens: whether delegations are useful.
    pub fn wanted_delegation(&self) -> u32 {
        if self.delegations.upcalls.get().is_some() && self.opts.delegations {
            open::WANT_NO_PREFERENCE
        } else {
            open::WANT_NO_DELEG
        }
    }

    /// As [`Core::wanted_delegation`], and whether the client wants to maintain the times of a file
    /// that it opens to write. Access times stay the server's, because reads of cached data do not
    /// change them.
    pub fn wanted_with(&self, writes: bool) -> u32 {
        let wanted = self.wanted_delegation();
        let offered = self.facts().delegated_times && self.own_server.load(Ordering::Relaxed);
        let times = offered && writes && wanted != open::WANT_NO_DELEG;
        if times { wanted | open::WANT_DELEG_TIMESTAMPS } else { wanted }
    }

    /// Whether the client maintains the times of a file that may have unsent data.
    pub fn delegates_times(&self, fh: &Fh) -> bool {
        self.delegations.maintains_times(fh) && self.delegated_bytes(fh).is_some()
    }

    /// Keeps the delegation of an OPEN reply. Returns its stateid, if any.
    pub fn note_delegation(self: &Arc<Self>, fh: &Fh, ok: &OpenOk) -> Option<Stateid> {
        let (recall, of) = match &ok.delegation {
            OpenDelegation::Read(d) | OpenDelegation::ReadAttrs(d) => (d.recall, Of::Reading),
            OpenDelegation::Write(d) => (d.recall, Of::Writing { limit: &d.space_limit, times: false }),
            OpenDelegation::WriteAttrs(d) => (d.recall, Of::Writing { limit: &d.space_limit, times: true }),
            OpenDelegation::None | OpenDelegation::NoneExt(_) => (false, Of::Reading),
        };
        let stateid = ok.delegation.stateid()?;
        self.keep_delegation(fh, stateid, of, recall);
        Some(stateid)
    }

    /// Keeps a delegation, unless it was recalled before its reply arrived.
    pub fn keep_delegation(self: &Arc<Self>, fh: &Fh, stateid: Stateid, of: Of<'_>, recall: bool) {
        let mut back = self.delegations.keep(fh, stateid, of);
        // The server has dropped the previous delegation: other clients may have used the file in
        // between.
        if let Some(file) = self.files.file(fh).filter(|_| back.iter().any(|t| t.write && t.fh == *fh)) {
            file.lose_locks("the server gave another delegation than the one that covered the lock");
        }
        if self.delegations.recalled_early(&stateid) {
            // The delegation is already being returned.
            self.delegations.take(fh);
        } else if recall {
            back.extend(self.delegations.take(fh));
        }
        self.give_back(back);
    }

    /// Returns a recalled delegation. An unknown delegation is returned as well. Perhaps its reply
    /// was lost, and the server would wait. Or its reply is in flight, and then the delegation is
    /// not kept.
    pub fn recalled(self: &Arc<Self>, fh: &Fh, stateid: &Stateid) {
        self.valid.doubt(fh, Instant::now());
        if let Some(taken) = self.delegations.take_stateid(stateid) {
            return self.give_back(vec![taken]);
        }
        if self.files.opens_under_way() || self.owners.in_use() || self.directories.are_asked_for() {
            self.delegations.remember_recall(stateid);
        }
        // The reply may have arrived just now.
        let taken = self.delegations.take_stateid(stateid);
        let unknown = Taken { fh: fh.clone(), stateid: *stateid, write: false, times: false };
        self.give_back(vec![taken.unwrap_or(unknown)]);
    }

    /// Whether attributes may carry a lease. With `lookupcache=none` attributes are valid for one
    /// call, because a name is valid no longer than its directory. With `noac` all attributes are
    /// valid for one call, and may carry a lease.
    fn may_last(&self, attrs: &Attrs) -> bool {
        attrs.valid != Validity::Once || self.opts.attr_cache == AttrCache::NONE
    }

    /// Length up to which a file may have unsent data. Until the client returns the delegation, the
    /// server shows the file to no other client.
    pub fn delegated_bytes(&self, fh: &Fh) -> Option<u64> {
        let limit = self.delegations.limit_bytes(fh)?;
        let lease = self.lease.lock();
        (Instant::now() < lease.renewed + lease.time).then_some(limit)
    }

    /// Adds the lease to attributes from a call sent at `asked`, when the object has one.
    pub fn leased(&self, fh: &Fh, mut attrs: Attrs) -> Attrs {
        if matches!(attrs.attr.kind, FileKind::Regular | FileKind::Directory)
            && self.may_last(&attrs)
            && self.delegations.covers(fh, attrs.asked)
        {
            attrs.valid = Validity::Lease;
        }
        self.files.leaving.settle(fh, attrs)
    }

    /// Adds the lease to attributes that follow an OPEN in its compound. The OPEN brought the
    /// delegation `granted`.
    pub fn leased_by(&self, fh: &Fh, mut attrs: Attrs, granted: Option<Stateid>) -> Attrs {
        if self.may_last(&attrs) && granted.is_some_and(|stateid| self.delegations.is(fh, &stateid)) {
            attrs.valid = Validity::Lease;
        }
        self.files.leaving.settle(fh, attrs)
    }

    /// Returns delegations in the background, after the layer above has dropped its data.
    pub fn give_back(self: &Arc<Self>, taken: Vec<Taken>) {
        if taken.is_empty() {
            return;
        }
        let with_times = || taken.iter().filter(|t| t.times);
        self.delegations.returning.lock().extend(with_times().map(|t| (t.fh.clone(), t.stateid)));
        let revoked = self.delegations.revoke(&taken);
        let core = self.clone();
        tokio::spawn(async move {
            let delayed = taken.iter().any(|t| t.write);
            let most = if delayed { WRITE_WITHDRAW_TIMEOUT } else { core.opts.withdraw_max };
            let locks = async {
                for t in taken.iter().filter(|t| t.write) {
                    core.hand_over(&t.fh).await;
                }
            };
            let (in_time, ()) = tokio::join!(tokio::time::timeout(most, revoked), locks);
            if in_time.is_err() {
                tracing::debug!(files = taken.len(), "the layer above did not drop recalled files in time");
            }
            for t in taken.iter().filter(|t| t.write) {
                if let Err(e) = core.writes().commit(&core.own_cx(), &t.fh, None).await {
                    tracing::debug!(fh = ?t.fh, "sending data before a delegation is returned: {e}");
                }
            }
            core.delegations.returned(&taken);
            core.delegreturn(taken).await;
        });
    }

    /// Executes `ops`, which remove a name of a file. In front of them, in the same compound, the
    /// file's state goes back. Some servers cannot take it back by a filehandle without a name. The
    /// results of `ops` are left in the answer.
    pub async fn returning(
        self: &Arc<Self>,
        cx: &RequestContext,
        label: &'static str,
        first: LastState,
        ops: Vec<Op>,
    ) -> Answered<Answer> {
        let held = first.delegation;
        if let Some(held) = &held {
            // Without waiting: the layer above requested this operation.
            if let Some(above) = self.delegations.upcalls.get() {
                drop(if cx.target_unused { above.withdraw_unused(&held.fh) } else { above.revoke(&held.fh) });
            }
            if held.write {
                self.hand_over(&held.fh).await;
            }
        }
        let mut repeated = false;
        let closing = Closing::begin(&first.closes);
        let returned = held.iter().flat_map(|t| [Op::Putfh(wire_fh(&t.fh)), Op::Delegreturn(t.stateid)]);
        let back: Vec<Op> = closing.ops().chain(returned).collect();
        if !back.is_empty() {
            let c = Compound::new(label, back.into_iter().chain(ops.iter().cloned()));
            let mut answer = self.compound(cx, c).await?;
            let mut done = closing.end(self, &mut answer).await;
            if let Some(held) = &held {
                done = done && self.is_returned(held, &mut answer);
            }
            let waits = matches!(answer.results.status(), Nfsstat4::DELAY | Nfsstat4::GRACE);
            if done && !(waits && Compound::new(label, ops.clone()).changed_nothing(&answer)) {
                return Ok(answer);
            }
            repeated = answer.repeated;
        }
        let answer = self.compound(cx, Compound::new(label, ops)).await?;
        Ok(Answer { repeated: answer.repeated || repeated, ..answer })
    }

    /// Sends DELEGRETURN of all `taken`, in few compounds.
    pub async fn delegreturn(self: &Arc<Self>, taken: Vec<Taken>) {
        let Ok(session) = self.ready().await else { return };
        let at_once = (session.limits.max_ops as usize).saturating_sub(1) / 2;
        let at_once = at_once.min(self.ops_limit.load(Ordering::Relaxed) / 2).max(1);
        let mut running = JoinSet::new();
        for some in taken.chunks(at_once) {
            while running.len() >= RETURNS_AT_ONCE {
                running.join_next().await;
            }
            let (core, some) = (self.clone(), some.to_vec());
            running.spawn(async move { core.return_some(&some).await });
        }
        while running.join_next().await.is_some() {}
    }

    async fn return_some(self: &Arc<Self>, mut taken: &[Taken]) {
        while !taken.is_empty() {
            let ops = taken.iter().flat_map(|t| [Op::Putfh(wire_fh(&t.fh)), Op::Delegreturn(t.stateid)]);
            let mut answer = match self.compound(&self.own_cx(), Compound::new("DELEGRETURN", ops)).await {
                Ok(answer) => answer,
                Err(f) => return tracing::debug!("DELEGRETURN: {}", Error::from(f)),
            };
            let done = taken.iter().take_while(|t| self.is_returned(t, &mut answer)).count();
            taken = &taken[taken.len().min(done + 1)..];
        }
    }

    /// Reads the results of PUTFH and DELEGRETURN. Returns whether the server has taken the
    /// delegation back. It reports a revoked delegation until its record is freed (RFC 8881 section
    /// 18.38).
    fn is_returned(self: &Arc<Self>, taken: &Taken, answer: &mut Answer) -> bool {
        let returned = answer.results.putfh().and_then(|()| answer.results.delegreturn());
        let Err(e) = returned else { return true };
        let status = e.status();
        tracing::debug!(fh = ?taken.fh, ?status, "a delegation could not be returned");
        if status == Some(Nfsstat4::DELEG_REVOKED) {
            let (core, stateid) = (self.clone(), taken.stateid);
            tokio::spawn(async move { core.free_stateid(&stateid).await });
        }
        false
    }

    /// Drops all delegations, because the server has lost them.
    pub fn delegations_lost(&self) {
        self.delegations.doubt_all();
        let lost = self.delegations.take_all_but(0).into_iter();
        let lost = lost.filter(|t| t.write).map(|t| (t.fh, LostWrite { times: t.times }));
        *self.delegations.lost.lock() = lost.collect();
        self.delegations.revoke_all();
    }

    /// Ends all leases when the client's lease may have expired at the server.
    pub async fn watch_lease(self: &Arc<Self>) {
        let mut told = None;
        loop {
            let (renewed, end) = {
                let lease = self.lease.lock();
                (lease.renewed, lease.renewed + lease.time)
            };
            if Instant::now() < end {
                tokio::time::sleep_until(end).await;
                continue;
            }
            if told != Some(renewed) {
                told = Some(renewed);
                self.delegations.revoke_all();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
