//! State of a file in use: its version, the validity of that, and the cached blocks under it.

use super::format::{Key, Version};
use super::held::CachedVersion;
use super::stats::add;
use super::{DataCache, changing};
use hither_vfs::{
    Attr, Attrs, Error, Fh, File, FileKind, FileRange, OpenId, RequestContext, Result, Validity,
};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tokio::time::Instant;

/// A file in use.
#[derive(Default)]
pub(super) struct Live {
    pub state: Mutex<State>,
    /// One caller revalidates the file; the others wait for the answer.
    asking: tokio::sync::Mutex<()>,
    /// Opens that have none below.
    pub virtuals: Mutex<Vec<OpenId>>,
    /// Held for writing by an open below that brings the first bytes. Other opens request none
    /// meanwhile, and reads of these bytes wait.
    pub start: Arc<RwLock<()>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Opens, changes and calls that refer to the file.
    users: usize,
    /// Running local changes.
    pub changing: usize,
    /// Requests with lower numbers were sent before the end of a local change.
    pub barrier: u64,
    /// Answers to requests up to this moment have no validity: another client may have held a lock
    /// then.
    pub doubted: Option<Instant>,
    pub known: Option<ReportedVersion>,
    pub held: Option<Arc<CachedVersion>>,
}

/// The last reported version.
#[derive(Debug, Clone)]
pub(super) struct ReportedVersion {
    pub version: Version,
    valid: Validity,
    asked: Instant,
    seq: u64,
    first_seen: Instant,
}

impl ReportedVersion {
    /// Whether the version is valid until a lease is withdrawn.
    pub fn is_leased(&self) -> bool {
        self.valid == Validity::Lease
    }

    /// Whether the version is valid for a call that began at `began`.
    fn holds(&self, cx: &RequestContext, began: Instant) -> bool {
        let fresh = cx.fresh_since.is_none_or(|since| self.asked >= since);
        match self.valid {
            Validity::Lease => true,
            _ if self.asked >= began => true,
            Validity::Until(end) => fresh && end > Instant::now(),
            Validity::Once => false,
        }
    }
}

/// The moment of a request, by which its answer is judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    seq: u64,
    withdrawals: u64,
    at: Instant,
    /// No request was sent: a layer above has had the answer for some time.
    second_hand: bool,
}

impl Ticket {
    /// When the request was sent.
    pub fn at(&self) -> Instant {
        self.at
    }
}

/// How an open gets the first bytes of its file.
pub(super) enum Start {
    /// With its own request below.
    Alone,
    /// The same, and others wait until this is dropped.
    Shared { _others_wait: OwnedRwLockWriteGuard<()> },
    /// The bytes are cached, or another call brings them.
    Elsewhere,
}

/// A reference to a file in use.
pub(super) struct Using {
    disk: Weak<DataCache>,
    fh: Fh,
    live: Arc<Live>,
}

impl Using {
    pub fn arc(&self) -> &Arc<Live> {
        &self.live
    }
}

impl Deref for Using {
    type Target = Live;

    fn deref(&self) -> &Live {
        &self.live
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let Some(disk) = self.disk.upgrade() else { return };
        let mut lives = disk.lives.lock();
        let mut state = self.live.state.lock();
        state.users -= 1;
        if state.users == 0 {
            lives.remove(&self.fh);
        }
    }
}

impl Live {
    /// The cached version, and whether its attributes are valid for a call.
    pub fn held(&self, cx: &RequestContext, began: Instant) -> Option<(Arc<CachedVersion>, bool)> {
        let s = self.state.lock();
        let (held, known) = (s.held.as_ref()?, s.known.as_ref()?);
        Some((held.clone(), known.holds(cx, began)))
    }

    /// The cached version, of any age.
    pub fn here(&self) -> Option<Arc<CachedVersion>> {
        self.state.lock().held.clone()
    }

    /// Expires the attributes.
    pub fn expire(&self) {
        if let Some(known) = &mut self.state.lock().known {
            known.valid = Validity::Once;
        }
    }

    /// Expires the attributes, and those from all requests up to now.
    pub fn doubt(&self) {
        self.state.lock().doubted = Some(Instant::now());
        self.expire();
    }

    /// Expires the attributes if they are under a lease.
    pub fn expire_lease(&self) {
        if let Some(known) = &mut self.state.lock().known
            && known.valid == Validity::Lease
        {
            known.valid = Validity::Once;
        }
    }

    /// Drops the version, because bytes did not match it.
    pub fn distrust(&self, held: &Arc<CachedVersion>) {
        held.kill();
        let mut s = self.state.lock();
        if s.held.as_ref().is_some_and(|h| Arc::ptr_eq(h, held)) {
            (s.held, s.known) = (None, None);
        }
    }
}

impl DataCache {
    /// References a file.
    pub(super) fn using(&self, fh: &Fh) -> Using {
        let mut lives = self.lives.lock();
        let live = lives.entry(fh.clone()).or_insert_with(|| {
            // Earlier changes of the file are forgotten. So answers to requests from before the
            // last change of any file are ignored.
            let state = State { barrier: self.fence.load(Ordering::Acquire), ..State::default() };
            Arc::new(Live { state: Mutex::new(state), ..Live::default() })
        });
        let live = live.clone();
        live.state.lock().users += 1;
        Using { disk: self.me.clone(), fh: fh.clone(), live }
    }

    /// The file's state, if it is in use.
    pub(super) fn used(&self, fh: &Fh) -> Option<Arc<Live>> {
        self.lives.lock().get(fh).cloned()
    }

    /// A ticket for a request that is sent now.
    pub(super) fn ticket(&self) -> Ticket {
        self.needs_link();
        self.ticket_quietly()
    }

    /// The same for a request that yields to others, or without a request.
    pub(super) fn ticket_quietly(&self) -> Ticket {
        let withdrawals = self.withdrawals.load(Ordering::Acquire);
        Ticket { seq: self.ask(), withdrawals, at: Instant::now(), second_hand: false }
    }

    /// Whether expired answers hold, because the server is away. Changes made here still count.
    pub fn answer_stale(&self, stale: bool) {
        self.stale.store(stale, Ordering::Relaxed);
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Processes attributes of a file, if it is in use. Returns the cached version if the
    /// attributes are accepted.
    pub(super) fn learn(&self, fh: &Fh, attrs: &Attrs, ticket: Ticket) -> Option<Arc<CachedVersion>> {
        let live = self.used(fh)?;
        self.learn_live(fh, &live, attrs, ticket)
    }

    /// The same for attributes that a layer above has known for some time.
    pub(super) fn learn_known(&self, fh: &Fh, live: &Live, attrs: &Attrs) -> Option<Arc<CachedVersion>> {
        // Events that the ticket does not count are recorded by now. The ticket detects later
        // events.
        let ticket = Ticket { second_hand: true, ..self.ticket_quietly() };
        let is_revoked = |at: Instant| !self.is_stale() && attrs.asked <= at;
        if self.revoked.lock().since(fh).is_some_and(is_revoked) {
            return None;
        }
        if self.changed.lock().since(fh).is_some_and(|at| attrs.asked <= at) {
            return None;
        }
        self.learn_live(fh, live, attrs, ticket)
    }

    pub(super) fn learn_live(
        &self,
        fh: &Fh,
        live: &Live,
        attrs: &Attrs,
        ticket: Ticket,
    ) -> Option<Arc<CachedVersion>> {
        let attr = &attrs.attr;
        if attr.kind != FileKind::Regular {
            return None;
        }
        let version = Version { change: attr.change, size: attr.size_bytes };
        let mut s = live.state.lock();
        // Read under the lock: a withdrawal is counted first, and then waits for the lock.
        let lost = ticket.withdrawals != self.withdrawals.load(Ordering::Acquire);
        let doubted = s.doubted.is_some_and(|at| attrs.asked <= at);
        let valid = match attrs.valid {
            Validity::Lease if lost => Validity::Once,
            _ if doubted => Validity::Once,
            valid => valid,
        };
        if s.changing > 0 || ticket.seq < s.barrier {
            return None;
        }
        if let Some(k) = s.known.as_ref().filter(|k| ticket.second_hand && k.asked > attrs.asked) {
            // This layer has seen a newer answer that the layer above has not processed yet.
            return s.held.clone().filter(|_| k.version == version);
        }
        if s.known.as_ref().is_none_or(|k| ticket.seq >= k.seq) {
            self.own.told(self.shelf().as_deref(), fh, version, valid);
        }
        match &mut s.known {
            Some(k) if k.version == version => {
                if ticket.seq >= k.seq {
                    (k.valid, k.asked, k.seq) = (valid, attrs.asked, ticket.seq);
                }
            }
            Some(k) if ticket.seq < k.seq => return None,
            known => {
                let first_seen = Instant::now();
                let replaced = known.replace(ReportedVersion {
                    version,
                    valid,
                    asked: attrs.asked,
                    seq: ticket.seq,
                    first_seen,
                });
                if let Some(held) = s.held.take() {
                    held.kill();
                }
                if replaced.is_some() && self.forget(fh) {
                    add(&self.counters.dropped_by_change, 1);
                }
            }
        }
        let first_seen = s.known.as_ref().map(|k| k.first_seen);
        if s.held.is_none() && self.is_to_keep(fh, attr, first_seen) {
            s.held = Some(Arc::new(CachedVersion::new(fh, version)));
        }
        s.held.clone()
    }

    /// Whether the first bytes of a file are in the cache or on their way to it, in any version.
    pub(super) fn is_started(&self, fh: &Fh) -> bool {
        let is_coming = |live: Arc<Live>| {
            live.start.try_read().is_err() || live.here().is_some_and(|held| held.has_first())
        };
        self.is_on_disk(fh) || self.used(fh).is_some_and(is_coming)
    }

    /// The right to request the first bytes of a file with an open, if no other call brings them.
    /// Only for files that are cached: others cannot share the bytes.
    pub(super) fn begin_start(&self, fh: &Fh, live: &Live, known: Option<&Attrs>) -> Start {
        let is_kept = || known.is_some_and(|known| self.is_to_keep(fh, &known.attr, None));
        if self.is_on_disk(fh) || live.here().is_some_and(|held| held.has_first()) {
            return Start::Elsewhere;
        }
        if !self.may_store() || !(live.here().is_some() || is_kept()) {
            return Start::Alone;
        }
        match live.start.clone().try_write_owned() {
            Ok(guard) => Start::Shared { _others_wait: guard },
            Err(_) => Start::Elsewhere,
        }
    }

    /// Whether the file is to be cached.
    fn is_to_keep(&self, fh: &Fh, attr: &Attr, first_seen: Option<Instant>) -> bool {
        let o = &self.options;
        let Some(shelf) = self.shelf() else { return false };
        let size = attr.size_bytes;
        if size == 0 || size < o.cache_min_file || size > o.cache_max_file {
            return false;
        }
        if (o.read_only || !self.is_on()) && !shelf.has(Key::of(fh)) {
            return false;
        }
        let now = (self.env.wall)().duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::new(attr.ctime.secs.max(0) as u64, attr.ctime.nanos);
        let old = now.checked_sub(changed).is_some_and(|age| age >= o.cache_age);
        old || first_seen.is_some_and(|at| at.elapsed() >= o.cache_age)
    }

    /// Drops the entry of a file.
    pub(super) fn forget(&self, fh: &Fh) -> bool {
        self.shelf().is_some_and(|shelf| shelf.forget(Key::of(fh), None))
    }

    /// Revalidates a file, unless that happened since `began`.
    pub(super) async fn revalidate(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        live: &Live,
        open: Option<OpenId>,
        began: Instant,
    ) -> Result<()> {
        let _turn = tokio::select! {
            turn = live.asking.lock() => turn,
            () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR)),
        };
        let stale = self.is_stale();
        if live.state.lock().known.as_ref().is_some_and(|k| stale || k.holds(cx, began)) {
            return Ok(());
        }
        add(&self.counters.revalidations, 1);
        let ticket = self.ticket();
        // At least as fresh as the call: attributes cached below are not enough.
        let cx = cx.fresh(cx.fresh_since.map_or(began, |since| since.max(began)));
        let attrs = self.below.getattr(&cx, File { fh, open }).await?;
        self.learn_live(fh, live, &attrs, ticket);
        Ok(())
    }

    /// Begins a local change of a file.
    pub(super) fn changing(&self, fh: &Fh) -> changing::Changing {
        changing::Changing::begin(self, self.using(fh), fh, None)
    }

    /// Begins a write of a file.
    pub(super) fn writing(&self, fh: &Fh, written: FileRange) -> changing::Changing {
        changing::Changing::begin(self, self.using(fh), fh, Some(written))
    }
}
