//! What is known of a file that is in use: its version, how long that holds, and what is here under
//! it.

use super::format::{Key, Version};
use super::held::Held;
use super::stats::add;
use super::{Disk, changing};
use hither_vfs::{Attr, Attrs, Cx, Error, Fh, File, FileKind, FileRange, OpenId, Result, Validity};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::Instant;

/// A file in use.
#[derive(Default)]
pub(super) struct Live {
    pub state: Mutex<State>,
    /// One asks whether the file is still the same; the others wait for the answer.
    asking: tokio::sync::Mutex<()>,
    /// Opens that nobody below knows of.
    pub virtuals: Mutex<Vec<OpenId>>,
}

#[derive(Default)]
pub(super) struct State {
    /// Opens, changes and calls that refer to it.
    users: usize,
    /// Changes of our own that are running.
    pub changing: usize,
    /// Questions with lower numbers were sent before the end of a change of our own.
    pub barrier: u64,
    /// What was asked for up to this moment does not say how long anything holds: somebody else may
    /// have had a lock then.
    pub doubted: Option<Instant>,
    pub known: Option<Known>,
    pub held: Option<Arc<Held>>,
}

/// The version that was told last.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub version: Version,
    valid: Validity,
    asked: Instant,
    seq: u64,
    first_seen: Instant,
}

impl Known {
    /// Whether it holds until a lease is withdrawn.
    pub fn is_leased(&self) -> bool {
        self.valid == Validity::Lease
    }

    /// Whether it may be used for a call that began at `began`.
    fn holds(&self, cx: &Cx, began: Instant) -> bool {
        let fresh = cx.fresh_since.is_none_or(|since| self.asked >= since);
        match self.valid {
            Validity::Lease => true,
            _ if self.asked >= began => true,
            Validity::Until(end) => fresh && end > Instant::now(),
            Validity::Once => false,
        }
    }
}

/// A question, as answers are judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    seq: u64,
    withdrawals: u64,
    at: Instant,
    /// Nobody was asked: the answer is one that somebody above has had for some time.
    second_hand: bool,
}

impl Ticket {
    /// When the question was sent.
    pub fn at(&self) -> Instant {
        self.at
    }
}

/// A reference to a file in use.
pub(super) struct Using {
    disk: Weak<Disk>,
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
    /// What is held and whether the attributes that told its version hold for a call.
    pub fn held(&self, cx: &Cx, began: Instant) -> Option<(Arc<Held>, bool)> {
        let s = self.state.lock();
        let (held, known) = (s.held.as_ref()?, s.known.as_ref()?);
        Some((held.clone(), known.holds(cx, began)))
    }

    /// What is held, however long ago that was right.
    pub fn here(&self) -> Option<Arc<Held>> {
        self.state.lock().held.clone()
    }

    /// The attributes hold no longer.
    pub fn expire(&self) {
        if let Some(known) = &mut self.state.lock().known {
            known.valid = Validity::Once;
        }
    }

    /// Nor do those that come in answer to questions of up to now.
    pub fn doubt(&self) {
        self.state.lock().doubted = Some(Instant::now());
        self.expire();
    }

    /// The attributes hold no longer if they stand under a lease.
    pub fn expire_lease(&self) {
        if let Some(known) = &mut self.state.lock().known
            && known.valid == Validity::Lease
        {
            known.valid = Validity::Once;
        }
    }

    /// Nothing is known any more, because something does not fit.
    pub fn distrust(&self, held: &Arc<Held>) {
        held.kill();
        let mut s = self.state.lock();
        if s.held.as_ref().is_some_and(|h| Arc::ptr_eq(h, held)) {
            (s.held, s.known) = (None, None);
        }
    }
}

impl Disk {
    /// Uses a file.
    pub(super) fn using(&self, fh: &Fh) -> Using {
        let mut lives = self.lives.lock();
        let live = lives.entry(fh.clone()).or_insert_with(|| {
            // Its changes of before are forgotten: what was asked for before the last change to any
            // file tells nothing.
            let state = State { barrier: self.fence.load(Ordering::Acquire), ..State::default() };
            Arc::new(Live { state: Mutex::new(state), ..Live::default() })
        });
        let live = live.clone();
        live.state.lock().users += 1;
        Using { disk: self.me.clone(), fh: fh.clone(), live }
    }

    /// The same if somebody else does.
    pub(super) fn used(&self, fh: &Fh) -> Option<Arc<Live>> {
        self.lives.lock().get(fh).cloned()
    }

    /// For a question that is sent now.
    pub(super) fn ticket(&self) -> Ticket {
        self.needs_link();
        self.ticket_quietly()
    }

    /// The same for one that makes way for others, or that nobody is asked.
    pub(super) fn ticket_quietly(&self) -> Ticket {
        let withdrawals = self.withdrawals.load(Ordering::Acquire);
        Ticket { seq: self.ask(), withdrawals, at: Instant::now(), second_hand: false }
    }

    /// Takes in attributes of a file in use, if any. What is held under them when they are
    /// believed.
    pub(super) fn learn(&self, fh: &Fh, attrs: &Attrs, ticket: Ticket) -> Option<Arc<Held>> {
        let live = self.used(fh)?;
        self.learn_live(fh, &live, attrs, ticket)
    }

    /// The same for attributes that somebody above has known for some time.
    pub(super) fn learn_known(&self, fh: &Fh, live: &Live, attrs: &Attrs) -> Option<Arc<Held>> {
        // What the ticket does not count is noted by now; what comes from now on it will miss.
        let ticket = Ticket { second_hand: true, ..self.ticket_quietly() };
        for events in [&self.withdrawn, &self.changed] {
            if events.lock().since(fh).is_some_and(|at| attrs.asked <= at) {
                return None;
            }
        }
        self.learn_live(fh, live, attrs, ticket)
    }

    fn learn_live(&self, fh: &Fh, live: &Live, attrs: &Attrs, ticket: Ticket) -> Option<Arc<Held>> {
        let attr = &attrs.attr;
        if attr.kind != FileKind::Regular {
            return None;
        }
        let version = Version { change: attr.change, size: attr.size_bytes };
        let mut s = live.state.lock();
        // Looked at under the lock: a withdrawal is counted first, and then waits for the lock.
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
            // Here something newer has passed, of which whoever hands them down has not heard yet.
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
                let replaced =
                    known.replace(Known { version, valid, asked: attrs.asked, seq: ticket.seq, first_seen });
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
            s.held = Some(Arc::new(Held::new(fh, version)));
        }
        s.held.clone()
    }

    /// Whether the file is one that is kept.
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

    /// Drops what is kept of a file, now.
    pub(super) fn forget(&self, fh: &Fh) -> bool {
        self.shelf().is_some_and(|shelf| shelf.forget(Key::of(fh), None))
    }

    /// Asks whether a file is still the same, unless that was asked since `began`.
    pub(super) async fn revalidate(
        &self,
        cx: &Cx,
        fh: &Fh,
        live: &Live,
        open: Option<OpenId>,
        began: Instant,
    ) -> Result<()> {
        let _turn = tokio::select! {
            turn = live.asking.lock() => turn,
            () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR)),
        };
        if live.state.lock().known.as_ref().is_some_and(|k| k.holds(cx, began)) {
            return Ok(());
        }
        add(&self.counters.revalidations, 1);
        let ticket = self.ticket();
        // Not older than the call: what is known below will not do.
        let cx = cx.fresh(cx.fresh_since.map_or(began, |since| since.max(began)));
        let attrs = self.below.getattr(&cx, File { fh, open }).await?;
        self.learn_live(fh, live, &attrs, ticket);
        Ok(())
    }

    /// A change of ours to a file begins.
    pub(super) fn changing(&self, fh: &Fh) -> changing::Changing {
        changing::Changing::begin(self, self.using(fh), fh, None)
    }

    /// The same for a write.
    pub(super) fn writing(&self, fh: &Fh, written: FileRange) -> changing::Changing {
        changing::Changing::begin(self, self.using(fh), fh, Some(written))
    }
}
