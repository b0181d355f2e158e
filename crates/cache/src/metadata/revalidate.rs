//! Revalidates expired objects in batches.
//!
//! A ring records the order in which objects are used. When an expired object is needed, the
//! objects used after it last time will most likely be needed next. The same request asks about
//! them and about the directories above them. Names of an unchanged directory then hold again. If a
//! directory would fill a message with its expired entries, and is small and completely known, it
//! is listed instead. The listing brings the attributes of all its entries.

use super::names::Id;
use super::objects::When;
use super::revalidate_restored::{Opening, Way};
use super::single_flight::Question;
use super::{MetadataCache, stats};
use hither_vfs::{Access, Attrs, Fh, File, PathRef, RequestContext, Result, WalkRequest};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};

/// Uses in the ring: a power of two.
const RING: usize = 1 << 15;
/// Uses in the ring after that of the needed object that are examined.
const AHEAD: u32 = 512;
/// The same after a restart, when all objects need revalidation.
const RESTORED_AHEAD: u32 = 4096;
/// An object among the last so many uses is not recorded again.
const RECENT: u32 = 64;
/// Most directories listed in one request, and most names in each of them.
const LISTINGS: usize = 24;
const LISTED_NAMES: usize = 400;
/// Most directories whose inferred absences are confirmed together with a look-up.
const CONFIRMED: usize = 64;
/// Most levels of directories above an object that are examined.
const ABOVE: usize = 16;

/// Order of use.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Mutex<Vec<Id>>,
    next: AtomicU32,
}

impl Ring {
    pub fn new() -> Self {
        Self { slots: Mutex::new(Vec::new()), next: AtomicU32::new(RECENT + 1) }
    }

    fn push(&self, id: Id) -> u32 {
        let mut slots = self.slots.lock();
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let i = at as usize % RING;
        if slots.len() <= i {
            slots.resize((i + 1).next_power_of_two().min(RING), Id::NONE);
        }
        slots[i] = id;
        at
    }

    /// Objects used after a position, in that order, and then those used shortly before it.
    fn after(&self, at: u32, ahead: u32) -> Vec<Id> {
        let slots = self.slots.lock();
        let next = self.next.load(Ordering::Relaxed);
        let known = next.wrapping_sub(at);
        if known as usize >= RING || slots.is_empty() {
            return Vec::new();
        }
        // An object that is used again soon keeps its older position. So an earlier position may
        // belong to a later use.
        let before = (1..RECENT).map(|d| at.wrapping_sub(d));
        (1..known.min(ahead))
            .map(|d| at.wrapping_add(d))
            .chain(before)
            .filter_map(|at| slots.get(at as usize % RING).copied())
            .filter(|id| *id != Id::NONE)
            .collect()
    }
}

/// The parts of a batch.
#[derive(Default)]
struct Plan {
    objects: Vec<Fh>,
    listings: Vec<Fh>,
    /// Directories that the caller could search or list before a restart: the rights are requested
    /// with the attributes.
    proofs: Vec<Fh>,
    /// Files restored after a restart whose bytes are on the local disk. An open revalidates such a
    /// file, proves the caller's right to read it, and may bring a lease.
    opens: Vec<Opening>,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.listings.is_empty() && self.proofs.is_empty() && self.opens.is_empty()
    }
}

impl MetadataCache {
    /// Records a use before a restart, after the uses recorded so far.
    pub(super) fn remember_use(&self, id: Id) {
        let at = self.ring.push(id);
        self.table.with_id(id, |o| o.used = at);
    }

    /// Records a use.
    pub(super) fn note_use(&self, id: Id) {
        let next = self.ring.next.load(Ordering::Relaxed);
        let recent = self.table.with_id(id, |o| next.wrapping_sub(o.used) < RECENT);
        if recent == Some(false) {
            let at = self.ring.push(id);
            self.table.with_id(id, |o| o.used = at);
        }
    }

    /// Records a coming use of an expired object. Attributes that hold for one call only are not
    /// worth a batch.
    pub(super) fn note_expired_use(&self, id: Id) {
        if self.table.with_id(id, |o| o.until != o.asked) == Some(true) {
            self.note_use(id);
        }
    }

    /// Revalidates expired objects, with others that are likely to be needed next. Returns the
    /// answer about the first object, if the batch asked for it by itself. `opening`: the caller is
    /// going to open a file.
    pub(super) async fn ask_again(
        &self,
        cx: &RequestContext,
        old: &[Fh],
        opening: bool,
    ) -> Option<Result<Attrs>> {
        let plan = self.plan(cx, old, opening);
        let many = plan.objects.len() + plan.listings.len() + plan.proofs.len() + plan.opens.len();
        if many > 1 || !plan.listings.is_empty() {
            stats::add(&self.counters.batches, 1);
            stats::add(&self.counters.batched_objects, many as u64);
            stats::add(&self.counters.batched_listings, plan.listings.len() as u64);
        }
        let (first, (), _, ()) = tokio::join!(
            self.ask_objects(cx, &plan.objects),
            self.ask_listings(cx, &plan.listings),
            self.ask_revalidations(cx, &plan.proofs, Access::all()),
            self.ask_opens(cx, plan.opens),
        );
        first.filter(|_| plan.objects.first() == old.first())
    }

    /// Requests the attributes of many objects; returns the answer about the first.
    async fn ask_objects(&self, cx: &RequestContext, objects: &[Fh]) -> Option<Result<Attrs>> {
        let first = objects.first()?;
        let ticket = self.ticket();
        self.because(cx, PathRef::fh(first), WalkRequest::default());
        let answers = match objects {
            [fh] => vec![self.below.getattr(cx, File { fh, open: None }).await],
            _ => self.below.getattr_many(cx, objects).await,
        };
        stats::add(&self.counters.attr_misses, answers.len() as u64);
        let mut out = None;
        for (fh, answer) in objects.iter().zip(answers) {
            if matches!(&answer, Err(e) if e.errno == libc::EAGAIN && objects.len() > 1) {
                // A busy object. A call about this object alone waits.
                continue;
            }
            let answer = answer.map_err(|e| self.failed(fh, e));
            if let Ok(attrs) = &answer {
                let id = self.learn_attrs(fh, attrs, &ticket);
                self.note_use(id);
            }
            if fh == first {
                out = Some(answer);
            }
        }
        out
    }

    /// Confirms the inferred absences of the directories that are likely to be searched next. So
    /// the search of a name along a path of directories costs one request.
    pub(super) async fn confirm_others(&self, cx: &RequestContext, dir: Id) {
        if self.options.stateless_opens || self.options.batch_objects <= 1 {
            return;
        }
        let when = self.at_present();
        let due = |o: &super::objects::Object| {
            o.holds(&when) && o.dir().is_some_and(|d| !d.unproven && d.is_unconfirmed(self.limits, &when))
        };
        let Some(used) = self.table.with_id(dir, |o| o.used) else { return };
        self.note_use(dir);
        let mut others: Vec<Id> = Vec::new();
        for id in self.ring.after(used, AHEAD) {
            // The use of a file counts for its directory.
            let above = self.table.with_id(id, |o| o.parent).unwrap_or(u32::MAX);
            let above = self.table.with_slot(above, |id, _| id);
            let is_due = |id: &Id| *id != dir && self.table.with_id(*id, |o| due(o)) == Some(true);
            for id in [Some(id), above].into_iter().flatten().filter(is_due) {
                if !others.contains(&id) {
                    others.push(id);
                }
            }
            if others.len() >= CONFIRMED {
                break;
            }
        }
        let others: Vec<Fh> = others.into_iter().filter_map(|id| self.fh_of(id)).collect();
        self.ask_objects(cx, &others).await;
    }

    async fn ask_listings(&self, cx: &RequestContext, dirs: &[Fh]) {
        if dirs.is_empty() {
            return;
        }
        let ticket = self.ticket();
        let answers = self.below.list_many(cx, dirs, self.options.listing_bytes).await;
        for (fh, answer) in dirs.iter().zip(answers) {
            match answer {
                Ok((attrs, page)) => {
                    self.learn_attrs(fh, &attrs, &ticket);
                    self.learn_page(cx, fh, 0, &page, Some(attrs.attr.change), &ticket);
                }
                Err(e) => {
                    self.failed(fh, e);
                }
            }
        }
    }

    /// Chooses the parts of the batch. `old` is always included.
    fn plan(&self, cx: &RequestContext, old: &[Fh], opening: bool) -> Plan {
        let when = self.when(cx).any_age();
        let most = self.options.batch_objects.max(1);
        let mut wanted: Vec<Id> = old.iter().filter_map(|fh| self.table.find(fh)).collect();
        let cred = self.cred(&cx.cred);
        if most > 1
            && let Some(last) = wanted.last()
        {
            let used = self.table.with_id(*last, |o| (o.used, o.is_restored()));
            let (at, restored) = used.unwrap_or_default();
            let (ahead, enough) =
                if restored { (RESTORED_AHEAD, RESTORED_AHEAD as usize) } else { (AHEAD, most * 2) };
            let mut seen: HashSet<Id> = wanted.iter().copied().collect();
            for id in self.ring.after(at, ahead) {
                self.with_those_above(id, (cred, &when), &mut seen, &mut wanted);
                if wanted.len() >= enough {
                    break;
                }
            }
        }
        let most_opens = self.opens_at_once(&when);
        // Opens are left out of listings: a listing would bring the attributes that the open brings
        // again. Valid objects are left out: a listing would bring nothing new about them.
        let opens = |id: &&Id| opening && matches!(self.way(**id, cred, most_opens > 0), Way::Open(_));
        let old_ones = |id: &&Id| self.table.with_id(**id, |o| !o.holds(&when)).unwrap_or(false);
        let listable: Vec<Id> = wanted.iter().filter(|id| old_ones(id) && !opens(id)).copied().collect();
        let homes = self.groups(cx, &listable, &when);
        let mut plan = Plan::default();
        for (i, id) in wanted.iter().enumerate() {
            let home = homes.get(id).and_then(|dir| self.fh_of(*dir));
            let fh = home.filter(|fh| plan.listings.contains(fh) || plan.listings.len() < LISTINGS);
            match (fh, self.fh_of(*id)) {
                (Some(dir), _) if !plan.listings.contains(&dir) => plan.listings.push(dir),
                (Some(_), _) => {}
                (None, Some(fh)) => {
                    let needed = i < old.len();
                    match self.way(*id, cred, most_opens > 0) {
                        Way::Revalidate if needed || plan.proofs.len() < most => plan.proofs.push(fh),
                        Way::Open(parent) if needed || plan.opens.len() < most_opens => {
                            plan.opens.push(Opening { fh, parent });
                        }
                        Way::Ask if needed || plan.objects.len() < most => plan.objects.push(fh),
                        _ => {}
                    }
                }
                (None, None) => {}
            }
        }
        if plan.is_empty() {
            plan.objects.extend(old.first().cloned());
        }
        // A second request is sent only for needed objects.
        if !plan.listings.is_empty() {
            plan.objects.retain(|fh| old.contains(fh));
            plan.opens.retain(|open| old.contains(&open.fh));
            plan.proofs.retain(|fh| old.contains(fh));
            let unproven = |fh: &&Fh| {
                self.table.with(fh, |_, o| o.has_restored_right(cred, Access::LOOKUP)) == Some(true)
            };
            plan.proofs.extend(plan.listings.iter().filter(unproven).cloned());
        }
        plan
    }

    /// Adds the expired directories above an object and then the object, if it has expired. A
    /// directory also counts as expired while a right on it is only remembered. A file under a
    /// lease is not added.
    fn with_those_above(
        &self,
        id: Id,
        (cred, when): (u32, &When),
        seen: &mut HashSet<Id>,
        wanted: &mut Vec<Id>,
    ) {
        let unproven =
            |o: &super::objects::Object| o.dir().is_some() && o.has_restored_right(cred, Access::LOOKUP);
        let known = |o: &super::objects::Object| o.asked != 0 && !o.attr.is_nameless();
        let expired = |o: &super::objects::Object| known(o) && (!o.holds(when) || unproven(o));
        let Some((itself, mut above)) = self.table.with_id(id, |o| (expired(o), o.parent)) else { return };
        let start = wanted.len();
        if itself && seen.insert(id) {
            wanted.push(id);
        }
        for _ in 0..ABOVE {
            let next = self.table.with_slot(above, |id, o| (id, expired(o) && o.dir().is_some(), o.parent));
            let Some((dir, expired, parent)) = next else { break };
            if !seen.insert(dir) {
                break;
            }
            if expired {
                wanted.push(dir);
            }
            above = parent;
        }
        wanted[start..].reverse();
    }

    /// The directory to list for each object that has one worth listing.
    fn groups(&self, cx: &RequestContext, wanted: &[Id], when: &When) -> HashMap<Id, Id> {
        let cred = self.cred(&cx.cred);
        let mut by_parent: HashMap<u32, Vec<Id>> = HashMap::new();
        for id in wanted {
            let parent = self.table.with_id(*id, |o| o.parent).unwrap_or(u32::MAX);
            if parent != u32::MAX {
                by_parent.entry(parent).or_default().push(*id);
            }
        }
        let always = When { now: 0, ..*when };
        let worth = |(slot, members): (u32, Vec<Id>)| {
            self.table.with_slot(slot, |id, o| {
                let may = o.rights(cred, Access::READ, &always) == Some(Access::READ)
                    || o.has_restored_right(cred, Access::READ);
                let dir = o.dir()?;
                let small = dir.is_complete() && dir.names.len() <= LISTED_NAMES;
                let itself = usize::from(wanted.contains(&id));
                (may && small && members.len() + itself >= self.options.worth_listing)
                    .then_some((id, members))
            })?
        };
        let groups = by_parent.into_iter().filter_map(worth);
        groups.flat_map(|(dir, members)| members.into_iter().chain([dir]).map(move |id| (id, dir))).collect()
    }

    /// See [`Vfs::getattr`](hither_vfs::Vfs::getattr).
    pub(super) async fn attrs(&self, cx: &RequestContext, file: File<'_>, below: File<'_>) -> Result<Attrs> {
        let when = self.when(cx).beginning();
        if let Some(attrs) = self.known_attrs(file.fh, &when) {
            stats::add(&self.counters.attr_hits, 1);
            return Ok(attrs);
        }
        let key = (file.fh.clone(), Question::Walk(Vec::new()));
        let mut waits = 0;
        loop {
            match self.single_flight.register(&key, waits) {
                Ok(_flight) if when.fresh.is_none() => {
                    let answer = self.ask_again(cx, std::slice::from_ref(file.fh), false).await;
                    if let Some(answer) = answer {
                        return answer;
                    }
                    if let Some(attrs) = self.known_attrs(file.fh, &when) {
                        return Ok(attrs);
                    }
                    return self.ask_attrs(cx, below).await;
                }
                Ok(_flight) => return self.ask_attrs(cx, below).await,
                Err(waiting) => {
                    waiting.wait(cx).await?;
                    if let Some(attrs) = self.known_attrs(file.fh, &when) {
                        return Ok(attrs);
                    }
                    waits += 1;
                }
            }
        }
    }

    /// Requests the attributes of one object and stores the answer.
    pub(super) async fn ask_attrs(&self, cx: &RequestContext, below: File<'_>) -> Result<Attrs> {
        let ticket = self.ticket();
        stats::add(&self.counters.attr_misses, 1);
        self.because(cx, PathRef::fh(below.fh), WalkRequest::default());
        let attrs = self.below.getattr(cx, below).await.map_err(|e| self.failed(below.fh, e))?;
        self.learn_attrs(below.fh, &attrs, &ticket);
        Ok(attrs)
    }
}
