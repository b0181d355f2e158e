//! Local changes: their effect on the cache while they run and when their reply arrives.

use super::learn::Ticket;
use super::moment::Moment;
use super::names::{Bound, Id, whole_seconds};
use super::objects::{Dir, Pending};
use super::{MetadataCache, stats};
use hither_vfs::{Attrs, ChangeInfo, Error, Fh, Name, Node, Validity};

/// After a local change with an unseen end, the object is not cached for so long: the change may
/// still be on its way.
const UNSETTLED_NANOS: u64 = 60_000_000_000;

/// A local change of an object, from before its request until its reply is processed.
#[must_use]
pub(super) struct Changing<'a> {
    meta: &'a MetadataCache,
    pub fh: Fh,
    /// No other local change of the object was running when this one began.
    alone: bool,
    ticket: Ticket,
    /// Hashes of the names that the call changes in a directory.
    names: [Option<u64>; 2],
    /// A lease proves that the removed name led to the known object, regardless of other clients.
    sure: bool,
    settled: bool,
}

/// The effect of a call on a name.
pub(super) enum Renamed<'a> {
    /// The name is bound to this object now.
    To(&'a Node),
    /// The name is bound to a known object whose attributes are unknown.
    Moved(Id),
    /// The same, if no other client changed the directory that the object was in.
    Believed(Id),
    /// The name is absent now.
    Gone,
    /// The binding of the name is unknown.
    Unknown,
}

impl MetadataCache {
    /// Begins a change of an object's attributes or contents.
    pub(super) fn changing(&self, fh: &Fh) -> Changing<'_> {
        self.contents.drop_file(fh, &self.counters);
        self.begin(fh, [None, None])
    }

    /// Begins a change of names in a directory.
    pub(super) fn renaming(&self, dir: &Fh, names: &[&Name]) -> Changing<'_> {
        let mut hashes = [None, None];
        for (to, name) in hashes.iter_mut().zip(names) {
            *to = Some(self.table.hash(name.as_bytes()));
        }
        self.begin(dir, hashes)
    }

    fn begin(&self, fh: &Fh, names: [Option<u64>; 2]) -> Changing<'_> {
        let ticket = self.ticket();
        let alone = self.table.ensure(fh, |_, object| {
            object.modifying += 1;
            let alone = object.modifying == 1;
            if names[0].is_some() {
                let flying = &mut object.dir_mut().in_flight;
                for hash in names.into_iter().flatten() {
                    let meets = flying.iter().any(|f| f.0 == hash);
                    flying.iter_mut().filter(|f| f.0 == hash).for_each(|f| f.1 = true);
                    flying.push((hash, meets));
                }
            }
            alone
        });
        Changing { meta: self, fh: fh.clone(), alone, ticket, names, sure: false, settled: false }
    }
}

/// Whether a failed call may have been executed, or may still be.
fn is_unknown(e: &Error) -> bool {
    matches!(e.errno, libc::EINTR | libc::EIO | libc::ETIMEDOUT | libc::ECANCELED)
}

impl Changing<'_> {
    /// The call ended. `outcome` has the attributes of the object after the call, if they arrived.
    pub fn done(self, outcome: std::result::Result<Option<&Attrs>, &Error>) {
        self.end(outcome, false);
    }

    fn end(mut self, outcome: std::result::Result<Option<&Attrs>, &Error>, removed: bool) {
        self.settled = true;
        let (meta, unknown) = (self.meta, outcome.as_ref().is_err_and(|e| is_unknown(e)));
        let attrs = outcome.unwrap_or(None);
        meta.contents.drop_file(&self.fh, &meta.counters);
        meta.table.with(&self.fh, |_, object| {
            let alone = self.alone && object.modifying == 1 && object.barrier <= self.ticket.seq;
            object.modifying = object.modifying.saturating_sub(1);
            object.barrier = object.barrier.max(meta.next_seq());
            match attrs {
                Some(attrs) if alone => meta.store_attrs(object, attrs, &self.ticket, true),
                _ => object.expire(),
            }
            if removed {
                object.attr.lost_a_name();
            }
            let last = object.modifying == 0;
            if let Some(dir) = object.known_dir().filter(|dir| last && !dir.pending.is_empty()) {
                meta.left_over(dir, meta.clock.now());
                object.revoke();
            }
            if unknown {
                object.extra().unsettled_until = meta.clock.now() + UNSETTLED_NANOS;
            }
        });
        meta.relieve();
    }

    /// The call removed a name of the object. Batches do not revalidate the remaining object: a
    /// server answers a filehandle without a name with an error, and stops the compound there.
    pub fn removed(self) {
        self.end(Ok(None), true);
    }

    /// The call changed nothing.
    pub fn nothing(mut self) {
        self.settled = true;
        let (names, meta) = (self.names, self.meta);
        meta.table.with(&self.fh, |_, object| {
            object.modifying = object.modifying.saturating_sub(1);
            let last = object.modifying == 0;
            let Some(dir) = object.known_dir() else { return };
            take_flying(dir, names);
            if last && !dir.pending.is_empty() {
                meta.left_over(dir, meta.clock.now());
                object.revoke();
                object.expire();
            }
        });
    }

    /// The call found the object that the name is bound to, and changed nothing.
    pub fn found(self, name: &Name, node: &Node) {
        let (meta, fh) = (self.meta, self.fh.clone());
        self.nothing();
        let id = meta.table.find(&node.fh);
        meta.table.with(&fh, |_, object| {
            let Some(dir) = object.known_dir() else { return };
            let answer = dir.answer(meta.table.hash(name.as_bytes()), name.as_bytes(), meta.limits);
            if answer.is_some_and(|answer| answer.child.is_none() || answer.child != id) {
                meta.doubt(dir, name);
            }
        });
    }

    /// Records whether a lease proves the binding of the removed name. Asked before the call, and
    /// again after it before the reply is processed.
    pub fn sure(&mut self, sure: bool) {
        self.sure = sure;
    }

    /// Like [`Changing::done`], for a call that may have changed the rights on the object.
    pub fn done_rights(self, outcome: std::result::Result<Option<&Attrs>, &Error>) {
        let (meta, fh) = (self.meta, self.fh.clone());
        self.done(outcome);
        meta.table.with(&fh, |_, object| object.revoke());
    }

    /// The call that changes names of a directory ended. `outcome` has the successive changes of
    /// the directory; none when the server did not report them. Returns whether no other client can
    /// have changed the directory since its names were learned.
    pub fn renamed(
        mut self,
        outcome: std::result::Result<&[&ChangeInfo], &Error>,
        names: &[(&Name, Renamed<'_>)],
    ) -> bool {
        self.settled = true;
        let meta = self.meta;
        let bounds: Vec<_> =
            names.iter().map(|(name, what)| (*name, meta.bound(what, &self.ticket))).collect();
        let kept = meta.table.with(&self.fh, |_, object| {
            let alone = self.alone && object.modifying == 1 && object.barrier <= self.ticket.seq;
            object.modifying = object.modifying.saturating_sub(1);
            object.barrier = object.barrier.max(meta.next_seq());
            let last = object.modifying == 0;
            let now = meta.clock.now();
            let dir = object.dir_mut();
            let arrival = Arrival { now, last, meddled: take_flying(dir, self.names) };
            let mut effect = match outcome {
                Ok(changes) => self.follow(dir, changes, names, bounds, arrival),
                Err(e) if is_unknown(e) => {
                    dir.reset(None, now);
                    Effect::default()
                }
                // The failed call changed nothing. The cached facts about the names may be wrong.
                Err(e) => Effect { believed: meta.check_names(dir, names, e), ..Effect::default() },
            };
            if last && !dir.pending.is_empty() {
                // Local changes waited for a predecessor of another client.
                effect.others = true;
                meta.left_over(dir, now);
            }
            if let Some(label) = effect.label {
                object.attr.change = label;
            }
            if effect.others {
                // Another client may also have changed rights.
                object.revoke();
            }
            let attrs = outcome.ok().and_then(|c| c.last()).and_then(|change| change.attrs.as_ref());
            match attrs {
                Some(attrs) if alone => meta.store_attrs(object, attrs, &self.ticket, true),
                _ if effect.believed => {}
                _ => object.expire(),
            }
            if outcome.is_err_and(is_unknown) {
                object.extra().unsettled_until = now + UNSETTLED_NANOS;
            }
            effect.kept
        });
        meta.relieve();
        kept.unwrap_or(false)
    }

    /// Follows the directory changes that the call reports, and binds the names of the call.
    fn follow(
        &self,
        dir: &mut Dir,
        changes: &[&ChangeInfo],
        names: &[(&Name, Renamed<'_>)],
        mut bounds: Vec<(&Name, Option<Bound>)>,
        arrival: Arrival,
    ) -> Effect {
        let Arrival { now, last, meddled } = arrival;
        let meta = self.meta;
        let takes = names.iter().any(|(_, what)| !matches!(what, Renamed::To(_)));
        if takes && meddled.contains(&true) {
            // The removed name may have been bound to an unknown object.
            meta.raise_fence();
        }
        let (label, met) = advance(dir, changes, takes, last, now);
        // Another client's change in the same tick of the server's clock leaves no trace in
        // `change`.
        dir.unproven |= meta.options.coarse_change && label.is_some();
        if met == Met::OthersAndTook || met == Met::Untold && takes && !self.sure {
            meta.raise_fence();
        }
        let alone_here = met == Met::Nobody && !meddled.contains(&true) && dir.pending.is_empty();
        let kept = alone_here && label.is_some() && !dir.unproven;
        for ((_, bound), (_, what)) in bounds.iter_mut().zip(names) {
            if !kept && matches!(what, Renamed::Believed(_)) {
                *bound = None;
            }
        }
        meta.bind(dir, label, bounds, meddled);
        Effect { label, others: matches!(met, Met::Others | Met::OthersAndTook), kept, believed: false }
    }
}

/// The arrival of a reply about names of a directory.
struct Arrival {
    now: Moment,
    /// No other local change of the directory is running.
    last: bool,
    /// For each name, whether another local change affected it.
    meddled: [bool; 2],
}

/// The effect of a reply on a directory.
#[derive(Default)]
struct Effect {
    /// The new `change` of the directory, if it is known.
    label: Option<u64>,
    /// Another client has changed the directory.
    others: bool,
    /// No other client can have changed the directory since its names were learned.
    kept: bool,
    /// The call failed, and its error agrees with the known names.
    believed: bool,
}

impl MetadataCache {
    /// Stores the bindings that a local change made, except where another local change affected the
    /// name.
    fn bind(
        &self,
        dir: &mut Dir,
        label: Option<u64>,
        names: Vec<(&Name, Option<Bound>)>,
        meddled: [bool; 2],
    ) {
        for (i, (name, bound)) in names.into_iter().enumerate() {
            match bound.filter(|_| !meddled[i.min(1)]) {
                Some(bound) => {
                    let bound = Bound { labeled: bound.labeled && label.is_some(), ..bound };
                    self.put_name(dir, name, bound);
                }
                None => self.doubt(dir, name),
            }
        }
    }

    /// Drops the binding of a name, and the completeness of the listing.
    pub(super) fn doubt(&self, dir: &mut Dir, name: &Name) {
        dir.names.remove(&self.table.hasher, name.as_bytes());
        dir.names.unlist();
        dir.listing = None;
    }

    /// No local change is left that could close the gap before the pending ones: another client
    /// changed the directory.
    fn left_over(&self, dir: &mut Dir, now: Moment) {
        if dir.pending.iter().any(|p| p.takes) {
            self.raise_fence();
        }
        dir.pending.clear();
        dir.reset(None, now);
    }

    /// Whether an error contradicts the known binding of a name.
    fn belies(&self, dir: &Dir, name: &Name, e: &Error) -> bool {
        let answer = dir.answer(self.table.hash(name.as_bytes()), name.as_bytes(), self.limits);
        match (e.errno, answer) {
            (libc::EEXIST, Some(answer)) => answer.child.is_none(),
            (libc::ENOENT, Some(answer)) => answer.child.is_some(),
            (libc::EISDIR | libc::ENOTDIR | libc::ELOOP | libc::ESTALE, _) => true,
            _ => false,
        }
    }

    /// Drops the bindings of names if an error contradicts one of them. Returns whether none was
    /// contradicted.
    fn check_names(&self, dir: &mut Dir, names: &[(&Name, Renamed<'_>)], e: &Error) -> bool {
        let believed = names.iter().all(|(name, _)| !self.belies(dir, name, e));
        if !believed {
            names.iter().for_each(|(name, _)| self.doubt(dir, name));
        }
        believed
    }

    /// The binding that a local change made.
    fn bound(&self, what: &Renamed<'_>, ticket: &Ticket) -> Option<Bound> {
        let (child, asked, valid) = match what {
            Renamed::To(node) => {
                let child = self.learn_attrs(&node.fh, &node.attrs, ticket);
                (Some(child), self.clock.of(node.attrs.asked), node.attrs.valid)
            }
            Renamed::Moved(id) | Renamed::Believed(id) => (Some(*id), ticket.asked, Validity::Lease),
            Renamed::Gone => (None, ticket.asked, Validity::Lease),
            Renamed::Unknown => return None,
        };
        let until = self.name_end(&valid, asked);
        let valid_s = whole_seconds(asked, until);
        Some(Bound { child, asked, valid_s, labeled: valid != Validity::Once, cookie: None })
    }
}

/// Removes the names of a call from those in flight. Returns for each name whether another local
/// change affected it.
fn take_flying(dir: &mut Dir, names: [Option<u64>; 2]) -> [bool; 2] {
    names.map(|hash| {
        let Some(hash) = hash else { return false };
        let found = dir.in_flight.iter().position(|f| f.0 == hash);
        found.is_some_and(|at| dir.in_flight.swap_remove(at).1)
    })
}

/// Changes of a directory by other clients between local changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Nobody,
    /// Another client may have changed the directory. Without a local change, that would be noticed
    /// no sooner, so names keep their validity.
    Untold,
    Others,
    /// Another client changed the directory, and a local change removed a name that may have been
    /// bound to another object.
    OthersAndTook,
}

/// Follows the directory's `change` over a local change. Replies of overlapping calls arrive in any
/// order. A reply that does not continue from the present label waits for its predecessor. If no
/// call is left, another client's change lies between. Returns the label under which the call's own
/// names hold, and the detected changes of other clients.
fn advance(
    dir: &mut Dir,
    changes: &[&ChangeInfo],
    takes: bool,
    last: bool,
    now: Moment,
) -> (Option<u64>, Met) {
    let Some(change) = changes.last() else {
        dir.pending.clear();
        dir.reset(None, now);
        return (None, if takes { Met::OthersAndTook } else { Met::Others });
    };
    if dir.pending.is_empty() && !changes.iter().any(|change| change.is_told()) {
        (dir.unproven, dir.untold) = (true, true);
        return (dir.label, Met::Untold);
    }
    for change in changes {
        if change.before != change.after || Some(change.after) != dir.label {
            let ChangeInfo { before, after, atomic, .. } = **change;
            dir.pending.push(Pending { before, after, atomic, takes });
        }
    }
    while let Some(next) = dir.pending.iter().position(|p| Some(p.before) == dir.label) {
        let Pending { after, atomic, .. } = dir.pending.swap_remove(next);
        dir.label = Some(after);
        dir.label_seen = now;
        dir.unproven |= !atomic;
    }
    if !last || dir.pending.is_empty() {
        return (dir.label, Met::Nobody);
    }
    let met = if dir.pending.iter().any(|p| p.takes) { Met::OthersAndTook } else { Met::Others };
    // The names of this call hold under the last remaining change, if it is the only one and
    // atomic.
    let label = (dir.pending.len() == 1 && change.atomic).then_some(change.after);
    dir.pending.clear();
    dir.reset(label, now);
    (label, met)
}

impl Drop for Changing<'_> {
    /// The caller stopped waiting. The call continues below for an unknown time.
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let meta = self.meta;
        stats::add(&meta.counters.overtaken, 1);
        meta.contents.drop_file(&self.fh, &meta.counters);
        meta.table.with(&self.fh, |_, object| {
            object.modifying = object.modifying.saturating_sub(1);
            object.barrier = object.barrier.max(meta.next_seq());
            object.expire();
            object.revoke();
            let now = meta.clock.now();
            let last = object.modifying == 0;
            if let Some(dir) = object.known_dir() {
                take_flying(dir, self.names);
                dir.reset(None, now);
                if last {
                    meta.left_over(dir, now);
                }
            }
            object.extra().unsettled_until = now + UNSETTLED_NANOS;
        });
    }
}
