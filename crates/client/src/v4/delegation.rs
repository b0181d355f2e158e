//! Delegations: files and directories whose attributes hold until the server says otherwise (RFC
//! 8881 sections 10.4 and 10.9).
//!
//! It knows nothing of callbacks' transport and of what is kept above. While a delegation is held,
//! attributes that were asked for after it was granted carry [`Validity::Lease`]; the layer above
//! is told through [`Upcalls`] before it is given back. Nobody gets a lease before somebody has
//! subscribed to be told, nor with `noac`, and no delegation is asked for then.
//!
//! Delegations outlive the opens that brought them, up to [`HELD_MAX`]; beyond it the least
//! recently used go back, many in one compound. A recall is answered at once; then, in this order:
//! no answer carries the lease any more, the layer above lets go (for at most [`WITHDRAW_TIMEOUT`],
//! or [`WRITE_WITHDRAW_TIMEOUT`] while it sends what it delayed) and locks that were decided here
//! are taken at the server (`place`), what was written under a write delegation is committed,
//! DELEGRETURN. A recall can overtake the reply that grants the delegation: it goes back all the
//! same, and the recall is remembered until that reply comes.
//!
//! All leases end by themselves when the lease of the client does: [`Core::watch_lease`] counts
//! from the last renewal.

use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::Answered;
use super::state::wire_fh;
use crate::AttrCache;
use hither_proto::nfs4::{Nfsstat4, Op, OpenDelegation, OpenOk, SpaceLimit, Stateid, open};
use hither_vfs::{Attrs, BoxFuture, Cx, Error, Fh, FileKind, Unsent, Upcalls, Validity};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Delegations that are kept.
pub(crate) const HELD_MAX: usize = 10_000;
/// How many go back at once when there are more.
const EVICTED_AT_ONCE: usize = 40;
/// How long the layer above may take to let go.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);
/// The same where it may have delayed writes, which are to come before: servers take back what does
/// not come.
const WRITE_WITHDRAW_TIMEOUT: Duration = Duration::from_secs(600);
/// Recalls that are remembered before the delegation is known.
const EARLY_MAX: usize = 256;
/// Compounds of DELEGRETURN in flight.
const RETURNS_AT_ONCE: usize = 4;

/// All delegations of a mount.
pub(crate) struct Delegations {
    held: Mutex<Held>,
    upcalls: OnceLock<Arc<dyn Upcalls>>,
    /// The server says that it revoked some; which is being found out.
    suspect: AtomicBool,
    /// Recalled before the reply that grants them came.
    early: Mutex<VecDeque<[u8; 12]>>,
    /// Held for writing when the server lost all.
    lost: Mutex<HashSet<Fh>>,
    /// [`HELD_MAX`], but for tests.
    pub most: AtomicUsize,
    /// What the server has called for.
    pub recalls: AtomicU64,
    pub getattrs: AtomicU64,
}

/// Delegations that a mount has now, and what its server has called for since the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DelegationCounts {
    /// Files delegated for reading.
    pub reading: u64,
    /// Files delegated for writing.
    pub writing: u64,
    /// Directories.
    pub directories: u64,
    /// CB_RECALL.
    pub recalls: u64,
    /// CB_GETATTR.
    pub getattrs: u64,
}

#[derive(Default)]
struct Held {
    files: HashMap<Fh, Delegation>,
    by_stateid: HashMap<[u8; 12], Fh>,
    /// By last use, oldest first.
    order: BTreeMap<u64, Fh>,
    uses: u64,
    /// When the server said last that it has lost all.
    doubted: Option<Instant>,
}

struct Delegation {
    stateid: Stateid,
    write: bool,
    directory: bool,
    /// How long the file may be when some of it is unsent at a close.
    limit_bytes: u64,
    /// Locks may be decided under it: it was not recalled before it came, and is not from before a
    /// restart.
    sure: bool,
    /// When the reply that granted it came: what is asked from then on was answered under it.
    since: Instant,
    used: u64,
    /// `change` as the server said first under it, for CB_GETATTR (RFC 8881 section 10.4.3).
    granted: Option<u64>,
    /// Length as the server said last.
    size_bytes: u64,
}

/// What a delegation is of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of<'a> {
    /// A file, for reading.
    Reading,
    /// A file, also for writing: as far as the server has room.
    Writing(&'a SpaceLimit),
    Directory,
}

/// A delegation that is no longer held here, and still is at the server.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub fh: Fh,
    pub stateid: Stateid,
    pub write: bool,
}

impl Default for Delegations {
    fn default() -> Self {
        Self {
            held: Mutex::default(),
            upcalls: OnceLock::new(),
            suspect: AtomicBool::new(false),
            early: Mutex::default(),
            lost: Mutex::default(),
            most: AtomicUsize::new(HELD_MAX),
            recalls: AtomicU64::new(0),
            getattrs: AtomicU64::new(0),
        }
    }
}

impl Held {
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
        Some(Taken { fh: fh.clone(), stateid: d.stateid, write: d.write })
    }

    fn take_oldest(&mut self, count: usize) -> Vec<Taken> {
        let oldest: Vec<Fh> = self.order.values().take(count).cloned().collect();
        oldest.iter().filter_map(|fh| self.take(fh)).collect()
    }
}

impl Delegations {
    /// Who is told from now on.
    pub fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        if self.upcalls.set(upcalls).is_err() {
            tracing::warn!("only the first who subscribes is told when leases end");
        }
    }

    /// Whether what was asked about `fh` at `asked` holds as long as the delegation.
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

    /// The limit of `fh` when it is held for writing.
    fn limit_bytes(&self, fh: &Fh) -> Option<u64> {
        let subscribed = self.upcalls.get().is_some() && !self.suspect.load(Ordering::Acquire);
        let held = self.held.lock();
        held.files.get(fh).filter(|d| subscribed && d.write).map(|d| d.limit_bytes)
    }

    /// The stateid under which a file is delegated for writing.
    pub fn for_writing(&self, fh: &Fh) -> Option<Stateid> {
        self.held.lock().files.get(fh).filter(|d| d.write).map(|d| d.stateid)
    }

    /// Whether `fh` is delegated for writing, so that its locks may be decided here; `Some(false)`
    /// while that is being found out.
    pub fn for_locks(&self, fh: &Fh) -> Option<bool> {
        let mut held = self.held.lock();
        held.files.get(fh).filter(|d| d.write && d.sure)?;
        held.touch(fh);
        Some(!self.suspect.load(Ordering::Acquire))
    }

    /// No locks are decided under what is held now, nor under what the server gave before it said
    /// that it has lost all.
    pub fn doubt_all(&self) {
        let mut held = self.held.lock();
        held.files.values_mut().for_each(|d| d.sure = false);
        held.doubted = Some(Instant::now());
    }

    /// Locks may be decided under the delegation that the reply to a question of `asked` brought,
    /// if it is still held.
    pub fn confirm(&self, fh: &Fh, stateid: &Stateid, asked: Instant) {
        let mut held = self.held.lock();
        let late = held.doubted.is_some_and(|at| asked < at);
        if let Some(d) = held.files.get_mut(fh).filter(|d| d.stateid.other == stateid.other && !late) {
            d.sure = true;
        }
    }

    /// Whether `fh` was held for writing when the server lost all.
    pub fn was_for_writing(&self, fh: &Fh) -> bool {
        self.lost.lock().contains(fh)
    }

    /// Whether `fh` is held by `stateid`, so that what followed in the compound that brought it
    /// holds as long.
    fn is(&self, fh: &Fh, stateid: &Stateid) -> bool {
        let subscribed = self.upcalls.get().is_some() && !self.suspect.load(Ordering::Acquire);
        subscribed && self.held.lock().files.get(fh).is_some_and(|d| d.stateid.other == stateid.other)
    }

    /// Keeps a delegation; what has to go back instead.
    fn keep(&self, fh: &Fh, stateid: Stateid, of: Of<'_>) -> Vec<Taken> {
        let (write, directory) = (matches!(of, Of::Writing(_)), matches!(of, Of::Directory));
        let limit_bytes = match of {
            Of::Writing(SpaceLimit::Size(bytes)) => *bytes,
            // Of what is changed: no file is longer then.
            Of::Writing(SpaceLimit::Blocks(l)) => u64::from(l.num_blocks) * u64::from(l.bytes_per_block),
            Of::Reading | Of::Directory => 0,
        };
        let mut held = self.held.lock();
        let mut back = Vec::new();
        let (mut granted, mut size_bytes, mut sure) = (None, 0, false);
        if let Some(old) = held.files.get(fh) {
            let same = old.stateid.other == stateid.other;
            (granted, size_bytes, sure) = (old.granted.filter(|_| same), old.size_bytes, same && old.sure);
            back.extend(held.take(fh).filter(|_| !same));
        }
        held.uses += 1;
        let used = held.uses;
        let since = Instant::now();
        let new =
            Delegation { stateid, write, directory, limit_bytes, sure, since, used, granted, size_bytes };
        held.files.insert(fh.clone(), new);
        held.by_stateid.insert(stateid.other, fh.clone());
        held.order.insert(used, fh.clone());
        if held.files.len() > self.most.load(Ordering::Relaxed) {
            back.extend(held.take_oldest(EVICTED_AT_ONCE));
        }
        back
    }

    /// Whether there is one of `fh`.
    pub fn holds(&self, fh: &Fh) -> bool {
        self.held.lock().files.contains_key(fh)
    }

    /// Whether the one that `stateid` names is held.
    pub fn is_held(&self, stateid: &Stateid) -> bool {
        self.held.lock().by_stateid.contains_key(&stateid.other)
    }

    /// Takes the delegation of `fh`.
    pub fn take(&self, fh: &Fh) -> Option<Taken> {
        self.held.lock().take(fh)
    }

    /// Takes the one that `stateid` names.
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

    /// All, as they are held now.
    pub fn all(&self) -> Vec<(Fh, Stateid)> {
        self.held.lock().files.iter().map(|(fh, d)| (fh.clone(), d.stateid)).collect()
    }

    /// What the server said about `fh` last.
    pub fn note(&self, fh: &Fh, change: u64, size_bytes: u64) {
        if let Some(d) = self.held.lock().files.get_mut(fh) {
            d.granted.get_or_insert(change);
            d.size_bytes = size_bytes;
        }
    }

    /// `change` and length of a file under a write delegation, for who asks the server: with what
    /// waits above. The first is `None` when that cannot be told.
    pub fn written(&self, fh: &Fh) -> Option<(Option<u64>, u64)> {
        // Before: what arrives at the server meanwhile is in one of the two.
        let unsent = self.upcalls.get().map_or(Unsent::More, |above| above.unsent(fh));
        let held = self.held.lock();
        let d = held.files.get(fh).filter(|d| d.write)?;
        Some(match unsent {
            Unsent::Nothing => (d.granted, d.size_bytes),
            // Any other than the one of the grant says so; this one is greater, whatever it is made
            // of.
            Unsent::Bytes { size_bytes } => (d.granted.and_then(|c| c.checked_add(1)), size_bytes),
            Unsent::More => (None, d.size_bytes),
        })
    }

    /// What is held, and was called for.
    pub fn counts(&self) -> DelegationCounts {
        let calls = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let mut counts = DelegationCounts {
            recalls: calls(&self.recalls),
            getattrs: calls(&self.getattrs),
            ..DelegationCounts::default()
        };
        for d in self.held.lock().files.values() {
            *match (d.directory, d.write) {
                (true, _) => &mut counts.directories,
                (false, true) => &mut counts.writing,
                (false, false) => &mut counts.reading,
            } += 1;
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

    /// Nobody has a lease any more, for a while.
    pub fn suspend(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Release);
    }

    /// Tells the layer above that all leases are lost.
    pub fn withdraw_all(&self) {
        if let Some(upcalls) = self.upcalls.get() {
            drop(upcalls.withdraw_all());
        }
    }

    /// Tells the layer above; what is returned ends when it has let go of all of them.
    fn withdraw(&self, taken: &[Taken]) -> impl Future<Output = ()> + Send + use<> {
        let upcalls = self.upcalls.get();
        let waits: Vec<BoxFuture<()>> =
            upcalls.map_or_else(Vec::new, |up| taken.iter().map(|t| up.withdraw(&t.fh)).collect());
        async move {
            for wait in waits {
                wait.await;
            }
        }
    }
}

impl Core {
    /// Whether delegations are of any use, as `OPEN4_SHARE_ACCESS_WANT_*`.
    pub fn wanted_delegation(&self) -> u32 {
        match self.delegations.upcalls.get().is_some() && self.opts.delegations {
            true => open::WANT_NO_PREFERENCE,
            false => open::WANT_NO_DELEG,
        }
    }

    /// Keeps the delegation that came with an OPEN; its stateid when there was one.
    pub fn note_delegation(self: &Arc<Self>, fh: &Fh, ok: &OpenOk) -> Option<Stateid> {
        let (recall, of) = match &ok.delegation {
            OpenDelegation::Read(d) | OpenDelegation::ReadAttrs(d) => (d.recall, Of::Reading),
            OpenDelegation::Write(d) | OpenDelegation::WriteAttrs(d) => {
                (d.recall, Of::Writing(&d.space_limit))
            }
            OpenDelegation::None | OpenDelegation::NoneExt(_) => (false, Of::Reading),
        };
        let stateid = ok.delegation.stateid()?;
        self.keep_delegation(fh, stateid, of, recall);
        Some(stateid)
    }

    /// Keeps a delegation, unless it was recalled before it came.
    pub fn keep_delegation(self: &Arc<Self>, fh: &Fh, stateid: Stateid, of: Of<'_>, recall: bool) {
        let mut back = self.delegations.keep(fh, stateid, of);
        // The server has forgotten the one of before: others may have had the file in between.
        if let Some(file) = self.files.file(fh).filter(|_| back.iter().any(|t| t.write && t.fh == *fh)) {
            file.lose_locks("the server gave another delegation than the one that covered the lock");
        }
        if self.delegations.recalled_early(&stateid) {
            // It has gone back already.
            self.delegations.take(fh);
        } else if recall {
            back.extend(self.delegations.take(fh));
        }
        self.give_back(back);
    }

    /// The server wants one back. One that is not known goes back as well: perhaps the reply that
    /// grants it was lost, and the server would wait for it; or that reply is under way, and then
    /// the delegation is not kept.
    pub fn recalled(self: &Arc<Self>, fh: &Fh, stateid: &Stateid) {
        if let Some(taken) = self.delegations.take_stateid(stateid) {
            return self.give_back(vec![taken]);
        }
        if self.files.opens_under_way() || self.owners.in_use() || self.directories.are_asked_for() {
            self.delegations.remember_recall(stateid);
        }
        // It may have come just now.
        let taken = self.delegations.take_stateid(stateid);
        let unknown = Taken { fh: fh.clone(), stateid: *stateid, write: false };
        self.give_back(vec![taken.unwrap_or(unknown)]);
    }

    /// Whether attributes may hold under a lease: those that hold for one call only
    /// (`lookupcache=none`) do where directories hold no longer, because a name is believed no
    /// longer than its directory.
    fn may_last(&self, attrs: &Attrs) -> bool {
        attrs.valid != Validity::Once || self.opts.attr_cache == AttrCache::NONE
    }

    /// Up to which length a file may be left unsent, when the server shows it to nobody else before
    /// it was given back here.
    pub fn delegated_bytes(&self, fh: &Fh) -> Option<u64> {
        let limit = self.delegations.limit_bytes(fh)?;
        let lease = self.lease.lock();
        (Instant::now() < lease.renewed + lease.time).then_some(limit)
    }

    /// The lease on attributes that a question sent at `asked` brought, when there is one.
    pub fn leased(&self, fh: &Fh, mut attrs: Attrs) -> Attrs {
        if matches!(attrs.attr.kind, FileKind::Regular | FileKind::Directory)
            && self.may_last(&attrs)
            && self.delegations.covers(fh, attrs.asked)
        {
            attrs.valid = Validity::Lease;
        }
        attrs
    }

    /// The lease on attributes that came in the compound that brought the delegation `granted`,
    /// behind its OPEN.
    pub fn leased_by(&self, fh: &Fh, mut attrs: Attrs, granted: Option<Stateid>) -> Attrs {
        if self.may_last(&attrs) && granted.is_some_and(|stateid| self.delegations.is(fh, &stateid)) {
            attrs.valid = Validity::Lease;
        }
        attrs
    }

    /// Gives delegations back in the background, when everybody has let go.
    pub fn give_back(self: &Arc<Self>, taken: Vec<Taken>) {
        if taken.is_empty() {
            return;
        }
        let withdrawn = self.delegations.withdraw(&taken);
        let core = self.clone();
        tokio::spawn(async move {
            let delayed = taken.iter().any(|t| t.write);
            let most = if delayed { WRITE_WITHDRAW_TIMEOUT } else { WITHDRAW_TIMEOUT };
            let locks = async {
                for t in taken.iter().filter(|t| t.write) {
                    core.hand_over(&t.fh).await;
                }
            };
            let (in_time, ()) = tokio::join!(tokio::time::timeout(most, withdrawn), locks);
            if in_time.is_err() {
                tracing::debug!(files = taken.len(), "recalled files were not dropped everywhere in time");
            }
            for t in taken.iter().filter(|t| t.write) {
                if let Err(e) = core.writes().commit(&core.own_cx(), &t.fh, None).await {
                    tracing::debug!(fh = ?t.fh, "sending data before a delegation is returned: {e}");
                }
            }
            core.delegreturn(taken).await;
        });
    }

    /// Executes `ops`, which take the name of a file whose delegation is `held`, and returns that
    /// in the same compound: a handle without a name may be of no use to return it by. Its results
    /// are taken off.
    pub async fn returning(
        self: &Arc<Self>,
        cx: &Cx,
        label: &'static str,
        held: Option<Taken>,
        ops: Vec<Op>,
    ) -> Answered<Answer> {
        let mut repeated = false;
        if let Some(held) = held {
            // Nobody is waited for: it is the layer above that asks for this.
            drop(self.delegations.withdraw(std::slice::from_ref(&held)));
            if held.write {
                self.hand_over(&held.fh).await;
            }
            let first = [Op::Putfh(wire_fh(&held.fh)), Op::Delegreturn(held.stateid)];
            let c = Compound::new(label, first.into_iter().chain(ops.iter().cloned()));
            let mut answer = self.compound(cx, c).await?;
            let returned = answer.results.putfh().is_ok() && answer.results.delegreturn().is_ok();
            let waits = matches!(answer.results.status(), Nfsstat4::DELAY | Nfsstat4::GRACE);
            if returned && !(waits && Compound::new(label, ops.clone()).changed_nothing(&answer)) {
                return Ok(answer);
            }
            repeated = answer.repeated;
        }
        let answer = self.compound(cx, Compound::new(label, ops)).await?;
        Ok(Answer { repeated: answer.repeated || repeated, ..answer })
    }

    /// DELEGRETURN of all `taken`, in few compounds.
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
        while let Some(first) = taken.first() {
            let ops = taken.iter().flat_map(|t| [Op::Putfh(wire_fh(&t.fh)), Op::Delegreturn(t.stateid)]);
            let c = Compound::new("DELEGRETURN", ops);
            let done = match self.compound(&self.own_cx(), c).await {
                Ok(mut answer) => {
                    let one =
                        |_: &&Taken| answer.results.putfh().is_ok() && answer.results.delegreturn().is_ok();
                    taken.iter().take_while(one).count()
                }
                Err(f) => return tracing::debug!("DELEGRETURN: {}", Error::from(f)),
            };
            if done < taken.len() {
                tracing::debug!(fh = ?taken[done].fh, first = ?first.fh, "a delegation could not be returned");
            }
            taken = &taken[taken.len().min(done + 1)..];
        }
    }

    /// The server has none of our delegations any more.
    pub fn delegations_lost(&self) {
        self.delegations.doubt_all();
        let lost = self.delegations.take_all_but(0).into_iter();
        *self.delegations.lost.lock() = lost.filter(|t| t.write).map(|t| t.fh).collect();
        self.delegations.withdraw_all();
    }

    /// Ends all leases when the client's lease may have ended at the server without our knowing.
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
                self.delegations.withdraw_all();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
