//! Walks: from memory as far as it holds, then one request for the rest.

use super::contents::Version;
use super::list::NODE_ENTRY_BYTES;
use super::moment::{LEASE, Moment};
use super::names::{Bound, Id, whole_seconds};
use super::objects::{Answer, Dir, Limits, Object, When, limited};
use super::single_flight::{InFlight, Question, WAITS_MAX};
use super::{MetadataCache, stats};
use hither_vfs::{
    Access, Along, Attrs, Error, Fh, FileKind, Name, Node, PathRef, Read, RequestContext, Result, Stop,
    Validity, WalkRequest, WalkResult,
};

/// Most requests below for one walk. A path that is renamed all the time does not hold a caller for
/// ever.
const ROUNDS: usize = 16;
/// Maximum number of names that are searched for the name of a known directory.
const PARENT_NAMES_MAX: usize = 4096;

/// The part of a path that memory answers.
pub(super) struct Progress {
    /// Valid nodes.
    pub steps: Vec<Node>,
    /// Why the walk ended; `None` when a request is needed.
    pub stop: Option<Stop>,
    /// Objects to revalidate, when memory knows the rest of the path but some of it has expired.
    pub again: Option<Vec<Fh>>,
    /// In that case, the object at the end of the path, if known.
    pub last: Option<Id>,
    /// The directory of an inferred absence that was confirmed too long ago.
    pub unconfirmed: Option<Id>,
}

impl Progress {
    fn none(most: usize) -> Self {
        Self { steps: Vec::with_capacity(most), stop: None, again: None, last: None, unconfirmed: None }
    }
}

/// The state of one name in memory.
enum Step {
    Child {
        id: Id,
        until: Moment,
        holds: bool,
    },
    Absent(Absence),
    /// The absence has expired, and holds again if the directory is unchanged.
    OldAbsent,
    /// The absence is inferred, and the directory was confirmed too long ago.
    Unconfirmed,
    Stop(Stop),
    Unknown,
}

/// The absence of a name in memory.
struct Absence {
    until: Moment,
    /// The absence is inferred from the complete listing of the directory.
    complete: bool,
    /// When the absence was confirmed, if the name counts as requested from now on.
    noted: Option<Moment>,
}

/// A walk in progress.
struct Walk<'a> {
    at: PathRef<'a>,
    began: Moment,
    /// The nodes found so far.
    steps: Vec<Node>,
    /// Waits for the same request of other calls.
    waits: u32,
    /// Waits for confirmations by other calls.
    confirm_waits: u32,
    /// Whether expired objects of the path were revalidated.
    revalidated: bool,
    /// Whether listings of directories were requested.
    listed: bool,
    /// Whether memory led to an object that is gone.
    stale: bool,
}

impl<'a> Walk<'a> {
    /// The directory of the next name.
    fn base(&self) -> &Fh {
        self.steps.last().map_or(self.at.base, |n| &n.fh)
    }

    /// The names without nodes.
    fn rest(&self) -> &'a [Name] {
        &self.at.path[self.steps.len()..]
    }
}

/// One request of a walk.
struct Round<'a> {
    when: When,
    want: WalkRequest,
    /// Whether the request is for the bytes of a known file.
    exactly: bool,
    /// The directory whose inferred absences the request confirms.
    confirming: Option<(Id, InFlight<'a>)>,
}

/// The answers that a walk requests beside the names.
enum Beside {
    Nothing,
    /// The bytes of a known file.
    Bytes,
    /// A directory whose listing is not confirmed, together with others.
    Confirmation(Id),
    /// Directories that a traversal reaches next.
    Listings(Vec<Fh>),
}

impl MetadataCache {
    /// Attributes of an object, if they are valid and fresh enough.
    pub(super) fn known_attrs(&self, fh: &Fh, when: &When) -> Option<Attrs> {
        let (id, attrs) = self.table.with(fh, |id, o| (id, o.holds(when).then(|| self.attrs_of(o, when))))?;
        let attrs = attrs?;
        self.note_use(id);
        Some(attrs)
    }

    pub(super) fn attrs_of(&self, object: &Object, when: &When) -> Attrs {
        Attrs {
            attr: self.table.unpack(&object.attr),
            valid: self.validity(object.until, when.now),
            asked: self.clock.instant(object.asked),
        }
    }

    /// Follows a path in memory.
    pub(super) fn progress(&self, cx: &RequestContext, at: PathRef<'_>, when: &When) -> Progress {
        let mut out = Progress::none(at.path.len());
        let cred = self.cred(&cx.cred);
        let Some(mut dir) = self.table.find(at.base) else { return out };
        let mut old: Option<Vec<Fh>> = None;
        for (i, name) in at.path.iter().enumerate() {
            let is_made = cx.makes_last && i + 1 == at.path.len();
            let inferred_nanos = if is_made { u64::MAX } else { self.limits.inferred_nanos };
            let limits = Limits { inferred_nanos, ..self.limits };
            let step = self.table.with_id(dir, |o| {
                self.note_ahead_use(o);
                self.step(o, cred, (name, i > 0), when, limits)
            });
            let (id, until) = match step.unwrap_or(Step::Unknown) {
                Step::Child { id, until, holds } => {
                    if !holds {
                        self.must_ask(&mut old, dir);
                    }
                    (id, until)
                }
                Step::Absent(absence) if old.is_none() => {
                    self.use_absence(dir, name, &absence);
                    out.stop = Some(Stop::Missing(self.validity(absence.until, when.now)));
                    return out;
                }
                Step::Unconfirmed if old.is_none() => {
                    out.unconfirmed = Some(dir);
                    return out;
                }
                Step::OldAbsent | Step::Unconfirmed => {
                    self.must_ask(&mut old, dir);
                    out.again = old;
                    return out;
                }
                Step::Stop(stop) if old.is_none() => {
                    out.stop = Some(stop);
                    return out;
                }
                Step::Absent(_) | Step::Stop(_) => {
                    out.again = old;
                    return out;
                }
                Step::Unknown => return out,
            };
            let node = self.table.with_id(id, |o| self.node_of(o, until, when));
            match node {
                Some(Some(node)) if old.is_none() => out.steps.push(node),
                Some(Some(_)) => {}
                Some(None) => self.must_ask(&mut old, id),
                // The object was dropped meanwhile.
                None => return out,
            }
            dir = id;
        }
        match old {
            Some(_) => (out.again, out.last) = (old, Some(dir)),
            None => {
                self.note_use(dir);
                out.stop = Some(Stop::Complete);
            }
        }
        out
    }

    /// Counts an absence that memory answers, and stores it if the name counts as requested.
    fn use_absence(&self, dir: Id, name: &Name, absence: &Absence) {
        stats::add(&self.counters.negative_hits, 1);
        stats::add(&self.counters.complete_hits, u64::from(absence.complete));
        if let Some(asked) = absence.noted {
            self.table.with_id(dir, |o| self.note_absent(o.dir_mut(), name, (asked, absence.until)));
            self.relieve();
        }
        self.note_use(dir);
    }

    fn must_ask(&self, old: &mut Option<Vec<Fh>>, id: Id) {
        let fh = self.fh_of(id);
        let old = old.get_or_insert_default();
        old.extend(fh.filter(|fh| old.last() != Some(fh)));
    }

    /// The filehandle of an object.
    pub(super) fn fh_of(&self, id: Id) -> Option<Fh> {
        self.table.with_id(id, |o| super::handle(o))
    }

    /// The state of a name in a directory, for this caller. `below`: the directory was found by its
    /// own name.
    fn step(
        &self,
        dir: &Object,
        cred: u32,
        (name, below): (&Name, bool),
        when: &When,
        limits: Limits,
    ) -> Step {
        if dir.asked != 0 && dir.attr.kind() != FileKind::Directory {
            let link = dir.attr.kind() == FileKind::Symlink;
            let stop = if link { Stop::Symlink } else { Stop::NotDirectory };
            return if below && dir.holds(when) { Step::Stop(stop) } else { Step::Unknown };
        }
        let Some(names) = dir.dir() else { return Step::Unknown };
        // An expired right is proven again with the directory's attributes.
        let may = |when: &When| dir.rights(cred, Access::LOOKUP, when) == Some(Access::LOOKUP);
        let always = When { now: 0, ..when.any_age() };
        if !may(when) && !may(&always) && !dir.has_restored_right(cred, Access::LOOKUP) {
            return Step::Unknown;
        }
        let Some(answer) = names.answer(self.table.hash(name.as_bytes()), name.as_bytes(), limits) else {
            return Step::Unknown;
        };
        if answer.complete && name.may_be_unlisted() {
            return Step::Unknown;
        }
        let trusted = self.trusts_names(answer.child.is_none());
        let fits =
            if trusted { when.fits(answer.until, answer.asked) } else { when.just_asked(answer.asked) };
        let holds = fits && may(when);
        match answer.child {
            None if trusted && !holds && answer.complete && self.confirms_all(dir, limits, when) => {
                Step::Unconfirmed
            }
            _ if !(holds || trusted && answer.renewable) => Step::Unknown,
            Some(id) => Step::Child { id, until: answer.until, holds },
            None if holds => Step::Absent(self.absent(names, &answer, when)),
            // The directory's attributes are valid: one request asks for the name and for them.
            None if when.valid(names.until) => Step::Unknown,
            None => Step::OldAbsent,
        }
    }

    /// Whether the next look-up of an inferred absence confirms all the others, by the attributes
    /// of the directory or by a new listing.
    fn confirms_all(&self, dir: &Object, limits: Limits, when: &When) -> bool {
        let unconfirmed = dir.dir().filter(|names| names.is_unconfirmed(limits, when));
        unconfirmed.is_some_and(|names| !names.unproven || self.wants_relisting(dir))
    }

    /// A name that is absent for this call, and the end of its absence for other calls. A name
    /// whose inferred absence was confirmed for this call counts as requested from now on.
    fn absent(&self, names: &Dir, answer: &Answer, when: &When) -> Absence {
        let until = answer.absent_until(self.limits);
        let confirmed = when.just_asked(answer.asked) && when.fits(until, answer.asked);
        if !answer.complete || until & LEASE != 0 || !confirmed {
            return Absence { until, complete: answer.complete, noted: None };
        }
        let until = limited(names.until, answer.asked, self.limits.asked_nanos);
        Absence { until, complete: true, noted: (until > when.now).then_some(answer.asked) }
    }

    /// Stores the absence of a looked-up name, unless an answer or a local change of the name came
    /// between.
    fn note_absent(&self, dir: &mut Dir, name: &Name, (asked, until): (Moment, Moment)) {
        let hash = self.table.hash(name.as_bytes());
        let busy = dir.in_flight.iter().any(|f| f.0 == hash);
        if busy || !dir.is_complete() || dir.names.find(hash, name.as_bytes()).is_some() {
            return;
        }
        let (valid_s, labeled) = (whole_seconds(asked, until), dir.label.is_some());
        self.put_name(dir, name, Bound { child: None, asked, valid_s, labeled, cookie: None });
    }

    /// The node of an object found by a name that holds until `until`, if its attributes hold.
    fn node_of(&self, object: &Object, until: Moment, when: &When) -> Option<Node> {
        if !object.holds(when) {
            return None;
        }
        let mut attrs = self.attrs_of(object, when);
        // A lease on the object does not cover the name.
        let both = if object.until & LEASE != 0 { until } else { object.until.min(until) };
        if object.until & LEASE == 0 || until & LEASE == 0 {
            attrs.valid = self.validity(both, when.now);
        }
        Some(Node { fh: super::handle(object), attrs })
    }

    /// The directory above, if a valid name in it leads to `dir`. Rights are not checked.
    fn known_parent(&self, cx: &RequestContext, dir: &Fh) -> Option<Node> {
        let when = self.when(cx);
        let (id, slot) = self.table.with(dir, |id, o| (id, o.parent))?;
        let fh = self.table.with_slot(slot, |_, above| {
            let names = above.dir()?;
            let (name, _) =
                names.names.all().take(PARENT_NAMES_MAX).find(|(_, bound)| bound.child == Some(id))?;
            let answer = names.answer(self.table.hash(name), name, self.limits)?;
            let trusted = self.trusts_names(false);
            let (until, asked) = (answer.until, answer.asked);
            let holds = if trusted { when.fits(until, asked) } else { when.just_asked(asked) };
            (holds && answer.child == Some(id)).then(|| super::handle(above))
        })??;
        let attrs = self.known_attrs(&fh, &when)?;
        stats::add(&self.counters.attr_hits, 1);
        Some(Node { fh, attrs })
    }

    /// See [`Vfs::parent`](hither_vfs::Vfs::parent).
    pub(super) async fn ask_parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        if let Some(node) = self.known_parent(cx, dir)
            && self.ask_rights(cx, dir, Access::LOOKUP).await?.contains(Access::LOOKUP)
        {
            return Ok(node);
        }
        let ticket = self.ticket();
        let node = self.below.parent(cx, dir).await.map_err(|e| self.failed(dir, e))?;
        self.learn_attrs(&node.fh, &node.attrs, &ticket);
        Ok(node)
    }

    /// See [`Vfs::peek`](hither_vfs::Vfs::peek).
    pub(super) fn peek_known(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let when = self.when(cx);
        if at.path.is_empty() {
            let attrs = self.known_attrs(at.base, &when)?;
            stats::add(&self.counters.attr_hits, 1);
            return Some(WalkResult::new(vec![Node { fh: at.base.clone(), attrs }], Stop::Complete));
        }
        let known = self.progress(cx, at, &when);
        let stop = known.stop?;
        stats::add(&self.counters.name_hits, known.steps.len() as u64);
        Some(WalkResult::new(known.steps, stop))
    }

    /// See [`Vfs::walk`](hither_vfs::Vfs::walk).
    pub(super) async fn walk_on(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
    ) -> Result<WalkResult> {
        let mut walk = Walk {
            at,
            began: self.clock.now(),
            steps: Vec::new(),
            waits: 0,
            confirm_waits: if self.limits.inferred_nanos == 0 { WAITS_MAX } else { 0 },
            revalidated: false,
            listed: false,
            stale: false,
        };
        for _ in 0..ROUNDS {
            let when = When { since: Some(walk.began), ..self.when(cx) };
            let known = self.known_rest(cx, &walk, &when);
            stats::add(&self.counters.name_hits, known.steps.len() as u64);
            if let Some(stop) = known.stop {
                walk.steps.extend(known.steps);
                return Ok(self.with_along(cx, WalkResult::new(walk.steps, stop), want));
            }
            let last = known.last.filter(|_| want.read_bytes > 0);
            let spare = last.is_some_and(|id| self.has_bytes(id));
            let exactly = !spare && last.is_some_and(|id| self.lacks_bytes(id));
            let want = if spare { WalkRequest { read_bytes: 0, ..want } } else { want };
            let again = known.again.filter(|_| !walk.revalidated && !exactly && when.fresh.is_none());
            if let Some(old) = again {
                // All names were known: one request revalidates their directories and the objects
                // used with them.
                walk.revalidated = true;
                let opening = want.read_bytes > 0 || want.access.intersects(Access::READ | Access::EXECUTE);
                self.ask_again(cx, &old, opening).await;
                continue;
            }
            let confirming = match known.unconfirmed.and_then(|id| Some((id, self.fh_of(id)?))) {
                Some((id, fh)) => {
                    let key = (fh, Question::Walk(Vec::new()));
                    match self.single_flight.register(&key, walk.confirm_waits) {
                        Ok(flight) => Some((id, flight)),
                        Err(waiting) => {
                            // The request on its way may confirm this name, too.
                            walk.confirm_waits += 1;
                            waiting.wait(cx).await?;
                            continue;
                        }
                    }
                }
                None => None,
            };
            walk.steps.extend(known.steps);
            let round = Round { when, want, exactly, confirming };
            if let Some(result) = self.request_rest(cx, &mut walk, round).await? {
                return Ok(result);
            }
        }
        Ok(WalkResult::new(walk.steps, Stop::Limit))
    }

    /// Follows the rest of a walk in memory.
    fn known_rest(&self, cx: &RequestContext, walk: &Walk<'_>, when: &When) -> Progress {
        if walk.rest().is_empty() || walk.stale {
            return Progress::none(0);
        }
        self.progress(cx, PathRef { base: walk.base(), path: walk.rest() }, when)
    }

    /// Requests the rest of a walk, or waits for the same request of another call. `None`: the walk
    /// continues in memory.
    async fn request_rest(
        &self,
        cx: &RequestContext,
        walk: &mut Walk<'_>,
        round: Round<'_>,
    ) -> Result<Option<WalkResult>> {
        let Round { when, want, exactly, confirming } = round;
        let base = walk.base().clone();
        let rest = walk.rest();
        let key = (base.clone(), Question::Walk(rest.to_vec()));
        let flight = match self.single_flight.register(&key, walk.waits) {
            Ok(flight) => flight,
            Err(waiting) => {
                stats::add(&self.counters.shared_walks, 1);
                walk.waits += 1;
                waiting.wait(cx).await?;
                return Ok(None);
            }
        };
        stats::add(&self.counters.name_misses, rest.len() as u64);
        let from = PathRef { base: &base, path: rest };
        let beside = match &confirming {
            _ if exactly => Beside::Bytes,
            Some((id, _)) => Beside::Confirmation(*id),
            None if walk.listed => Beside::Nothing,
            None => self.walk_ahead(cx, from, want, &when).map_or(Beside::Nothing, Beside::Listings),
        };
        walk.listed |= matches!(beside, Beside::Listings(_));
        if let (Beside::Listings(dirs), 1) = (&beside, rest.len()) {
            // The listing answers the name, too.
            self.because(cx, from, want);
            drop(self.list_with(cx, &base, dirs.clone(), self.options.listing_bytes).await);
            return Ok(None);
        }
        let found = self.ask_missing(cx, from, want, beside).await;
        drop((flight, confirming));
        self.extend_walk(walk, found)
    }

    /// Adds the answer of a request to a walk. `None`: the walk continues.
    fn extend_walk(&self, walk: &mut Walk<'_>, found: Result<WalkResult>) -> Result<Option<WalkResult>> {
        let trail = match found {
            Err(e) if e.errno == libc::ESTALE && !walk.steps.is_empty() && !walk.stale => {
                // A known object is gone: walk once more from the start, without memory.
                walk.stale = true;
                walk.steps.clear();
                return Ok(None);
            }
            Err(e) if walk.steps.is_empty() => return Err(e),
            Err(e) => return Ok(Some(WalkResult::new(std::mem::take(&mut walk.steps), Stop::Failed(e)))),
            Ok(trail) => trail,
        };
        // Attributes that hold for this call only are not worth a batch.
        let kept = trail.steps.last().filter(|node| node.attrs.valid != Validity::Once);
        if let Some(id) = kept.and_then(|node| self.table.find(&node.fh)) {
            self.note_use(id);
        }
        if walk.at.path.is_empty() {
            return Ok(Some(trail));
        }
        let got = trail.steps.len();
        walk.steps.extend(trail.steps);
        if matches!(trail.stop, Stop::Limit) && got > 0 {
            return Ok(None);
        }
        let along = Along { base: None, ..trail.along };
        Ok(Some(WalkResult { steps: std::mem::take(&mut walk.steps), stop: trail.stop, along }))
    }

    /// Requests the names of a walk that are not known, and the answers beside them.
    async fn ask_missing(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
        beside: Beside,
    ) -> Result<WalkResult> {
        let walk = self.ask_walk(cx, at, want);
        match beside {
            Beside::Nothing => walk.await,
            Beside::Bytes => self.ask_exactly(cx, at, want).await,
            Beside::Confirmation(id) => tokio::join!(walk, self.confirm_others(cx, id)).0,
            Beside::Listings(dirs) => {
                let most = self.options.listing_bytes;
                tokio::join!(walk, self.list_with(cx, at.base, dirs, most)).0
            }
        }
    }

    /// Directories to list together with the base of a walk, if a program looks at the attributes
    /// of many objects in a tree. Not for opens: they need a request in any case.
    fn walk_ahead(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
        when: &When,
    ) -> Option<Vec<Fh>> {
        let looks = want.read_bytes == 0 && want.access.is_empty() && !cx.makes_last;
        if !looks || self.table.with(at.base, |_, o| wants_listing(o, when.now)) != Some(true) {
            return None;
        }
        let ahead = self.list_ahead_of(cx, at.base, when);
        (!ahead.is_empty()).then_some(ahead)
    }

    /// Whether an object without bytes here is a small file that was not read. A request for the
    /// attributes alone would only be the first of two requests.
    fn lacks_bytes(&self, id: Id) -> bool {
        let small = u64::from(self.options.small_file_bytes);
        let unread = self.table.with_id(id, |o| {
            let read = o.extra.as_ref().is_some_and(|e| e.read_change == Some(o.attr.change));
            o.attr.kind() == FileKind::Regular && (1..=small).contains(&o.attr.size_bytes) && !read
        });
        unread == Some(true)
    }

    /// Whether this layer or one below has bytes of the file in its last known version.
    fn has_bytes(&self, id: Id) -> bool {
        let file = self.table.with_id(id, |o| (super::handle(o), o.version()));
        file.is_some_and(|(fh, version)| self.contents.has(&fh, version) || self.is_near(&fh))
    }

    /// Sends one request below, possibly with a listing, and stores the answer.
    pub(super) async fn ask_walk(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
    ) -> Result<WalkResult> {
        let mut asked = want;
        if at.path.len() == 1 {
            let now = self.clock.now();
            let wants = |o: &Object| wants_listing(o, now) || self.wants_relisting(o);
            let ask = self.table.with(at.base, |_, o| wants(o)).unwrap_or(true);
            asked.listing_bytes =
                if ask { want.listing_bytes.max(self.options.listing_bytes) } else { want.listing_bytes };
        } else if !at.path.is_empty() && !self.has_tried_last(at) {
            asked.listing_bytes = want.listing_bytes.max(self.options.listing_bytes);
        }
        self.ask_exactly(cx, at, asked).await
    }

    /// Whether the directory of the last name was found to be too long for one listing. Names that
    /// have expired lead to it, too.
    fn has_tried_last(&self, at: PathRef<'_>) -> bool {
        let Some((_, above)) = at.path.split_last() else { return false };
        let child = |dir: Id, name: &Name| {
            let hash = self.table.hash(name.as_bytes());
            self.table.with_id(dir, |o| o.dir()?.names.find(hash, name.as_bytes())?.child)?
        };
        let now = self.clock.now();
        let dir = self.table.find(at.base).and_then(|base| above.iter().try_fold(base, child));
        let tried = |dir| self.table.with_id(dir, |o| o.dir().is_some_and(|d| d.has_tried(now)));
        dir.and_then(tried).unwrap_or(false)
    }

    /// The same without an additional listing.
    pub(super) async fn ask_exactly(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        want: WalkRequest,
    ) -> Result<WalkResult> {
        let label = self.label(at.base);
        let mut asked = want;
        if !want.access.is_empty() || want.read_bytes > 0 {
            asked.access = want.access | Access::READ | Access::EXECUTE;
        }
        stats::add(&self.counters.walks, 1);
        let ticket = self.ticket();
        self.because(cx, at, asked);
        let out = self.below.walk(cx, at, asked).await;
        match out {
            Ok(mut trail) => {
                self.learn_trail(cx, at.base, at.path, label, asked.access, &trail, &ticket);
                trail.along.access = trail.along.access.map(|a| a & want.access);
                Ok(trail)
            }
            Err(e) => Err(self.failed(at.base, e)),
        }
    }

    /// Whether a look-up in a completely known directory requests its listing again. An equal
    /// `change` proves nothing about a directory that was changed here. The listing confirms all
    /// absent names.
    fn wants_relisting(&self, dir: &Object) -> bool {
        let fits = |names: usize| names * NODE_ENTRY_BYTES <= self.options.listing_bytes as usize;
        let when = self.at_present();
        !self.options.stateless_opens
            && dir.dir().is_some_and(|d| {
                let fits = !d.has_tried(when.now) && fits(d.names.len());
                d.unproven && fits && d.is_unconfirmed(self.limits, &when)
            })
    }

    /// Processes an error: a stale object is dropped with all its names and contents.
    pub(super) fn failed(&self, fh: &Fh, e: Error) -> Error {
        if e.errno == libc::ESTALE {
            self.contents.drop_file(fh, &self.counters);
            self.table.forget(fh, self.next_seq());
        }
        e
    }

    /// Adds known rights and bytes to a walk answered from memory; sends no request for them.
    fn with_along(&self, cx: &RequestContext, mut trail: WalkResult, want: WalkRequest) -> WalkResult {
        let Some(node) = trail.steps.last().filter(|_| matches!(trail.stop, Stop::Complete)) else {
            return trail;
        };
        let cred = self.cred(&cx.cred);
        let when = self.when(cx);
        let rights =
            |want: Access| self.table.with(&node.fh, |_, o| o.rights(cred, want, &when.any_age()))?;
        if !want.access.is_empty() {
            trail.along.access = rights(want.access);
        }
        if want.read_bytes > 0 && rights(Access::READ) == Some(Access::READ) {
            trail.along.first = self.held_start(&node.fh, &node.attrs, want.read_bytes);
        }
        trail
    }

    /// The first bytes of a file that is completely in memory, in the version of these attributes.
    pub(super) fn held_start(&self, fh: &Fh, attrs: &Attrs, most_bytes: u32) -> Option<Read> {
        let version = Version { change: attrs.attr.change, asked: self.clock.of(attrs.asked), leased: None };
        let same = |v: &Version| (v.change, v.asked) == (version.change, version.asked);
        let version = self.table.with(fh, |_, o| o.version()).filter(same).unwrap_or(version);
        let held = self.contents.find(fh, version, &self.counters)?;
        let len = held.len().min(most_bytes as usize);
        Some(Read { data: held.slice(..len).into(), eof: len == held.len() })
    }
}

/// Whether the listing of a directory is worth a request: it is unknown, and was not found to be
/// too long.
fn wants_listing(dir: &Object, now: Moment) -> bool {
    dir.dir().is_none_or(|d| !d.is_complete() && !d.has_tried(now))
}
