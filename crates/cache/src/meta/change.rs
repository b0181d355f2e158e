//! Changes of our own: what they do to what is known, while they run and when their reply comes.

use super::learn::Ticket;
use super::moment::Moment;
use super::names::{Bound, Id, whole_seconds};
use super::objects::{Dir, Pending};
use super::{Meta, stats};
use hither_vfs::{Attrs, ChangeInfo, Error, Fh, Name, Node, Validity};

/// For so long nothing is kept about an object after a change of our own whose end was not seen: it
/// may still be on its way.
const UNSETTLED_NANOS: u64 = 60_000_000_000;

/// A change of an object by a call of ours, from before it is sent until its reply was taken in.
#[must_use]
pub(super) struct Changing<'a> {
    meta: &'a Meta,
    pub fh: Fh,
    /// No other call was changing it when this one began.
    alone: bool,
    ticket: Ticket,
    /// Hashes of the names that this call changes, for a directory.
    names: [Option<u64>; 2],
    /// What it takes a name from is what that was known to lead to, whatever others do: a lease
    /// says so.
    sure: bool,
    settled: bool,
}

/// What a call did to a name.
pub(super) enum Renamed<'a> {
    /// The name is bound to this object now.
    To(&'a Node),
    /// The name is bound to a known object whose attributes are not known.
    Moved(Id),
    /// The same, if nobody else has changed the directory that the object was in.
    Believed(Id),
    /// The name is absent now.
    Gone,
    /// Nobody knows.
    Unknown,
}

impl Meta {
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

/// Whether a failed call may still be executed, or have been.
fn is_unknown(e: &Error) -> bool {
    matches!(e.errno, libc::EINTR | libc::EIO | libc::ETIMEDOUT | libc::ECANCELED)
}

impl Changing<'_> {
    /// The call ended: `attrs` are the object's afterwards, when they came along. `ours`: it was
    /// sent after this call began.
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

    /// The call took a name from the object. What is left of it is not asked about by the way: a
    /// server answers a handle without a name with an error, behind which it does not go on.
    pub fn removed(self) {
        self.end(Ok(None), true);
    }

    /// The call changed nothing after all.
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

    /// Notes whether the name that is taken leads to what it was known to: asked before the call
    /// and, before anything is kept of it, after it.
    pub fn sure(&mut self, sure: bool) {
        self.sure = sure;
    }

    /// As [`Changing::done`], when the rights on the object may be others now.
    pub fn done_rights(self, outcome: std::result::Result<Option<&Attrs>, &Error>) {
        let (meta, fh) = (self.meta, self.fh.clone());
        self.done(outcome);
        meta.table.with(&fh, |_, object| object.revoke());
    }

    /// The call that changes names of a directory ended. Its changes of the directory, one after
    /// the other; none when the server did not tell. Whether nobody else can have changed the
    /// directory since what is known of it was learnt.
    pub fn renamed(
        mut self,
        outcome: std::result::Result<&[&ChangeInfo], &Error>,
        names: &[(&Name, Renamed<'_>)],
    ) -> bool {
        self.settled = true;
        let meta = self.meta;
        let takes = names.iter().any(|(_, what)| !matches!(what, Renamed::To(_)));
        let mut ids: Vec<_> =
            names.iter().map(|(name, what)| (*name, meta.bound(what, &self.ticket))).collect();
        let kept = meta.table.with(&self.fh, |_, object| {
            let alone = self.alone && object.modifying == 1 && object.barrier <= self.ticket.seq;
            object.modifying = object.modifying.saturating_sub(1);
            object.barrier = object.barrier.max(meta.next_seq());
            let last = object.modifying == 0;
            let now = meta.clock.now();
            let dir = object.dir_mut();
            let meddled = take_flying(dir, self.names);
            if takes && outcome.is_ok() && meddled.contains(&true) {
                // What the name was bound to when it was taken is anybody's guess.
                meta.raise_fence();
            }
            let (mut believed, mut others, mut kept, mut followed) = (false, false, false, None);
            match outcome {
                Ok(changes) => {
                    let (label, met) = advance(dir, changes, takes, last, now);
                    // Whoever else changes it in the same tick of the server's clock leaves no
                    // trace in `change`.
                    dir.unproven |= meta.options.coarse_change && label.is_some();
                    if met == Met::OthersAndTook || met == Met::Untold && takes && !self.sure {
                        meta.raise_fence();
                    }
                    others = matches!(met, Met::Others | Met::OthersAndTook);
                    let alone_here = met == Met::Nobody && !meddled.contains(&true) && dir.pending.is_empty();
                    kept = alone_here && label.is_some() && !dir.unproven;
                    for (id, (_, what)) in ids.iter_mut().zip(names) {
                        if !kept && matches!(what, Renamed::Believed(_)) {
                            id.1 = None;
                        }
                    }
                    meta.bind(dir, label, ids, meddled);
                    followed = label;
                }
                Err(e) if is_unknown(e) => dir.reset(None, now),
                // Nothing was changed; what was believed about the names may be wrong.
                Err(e) => {
                    believed = names.iter().all(|(name, _)| !meta.belies(dir, name, e));
                    if !believed {
                        names.iter().for_each(|(name, _)| meta.doubt(dir, name));
                    }
                }
            }
            if last && !dir.pending.is_empty() {
                // Others waited for a predecessor that was none of ours.
                others = true;
                meta.left_over(dir, now);
            }
            if let Some(label) = followed {
                object.attr.change = label;
            }
            if others {
                // They may have changed rights, too.
                object.revoke();
            }
            let attrs = outcome.ok().and_then(|c| c.last()).and_then(|change| change.attrs.as_ref());
            match attrs {
                Some(attrs) if alone => meta.store_attrs(object, attrs, &self.ticket, true),
                _ if believed => {}
                _ => object.expire(),
            }
            if outcome.is_err_and(is_unknown) {
                object.extra().unsettled_until = now + UNSETTLED_NANOS;
            }
            kept
        });
        meta.relieve();
        kept.unwrap_or(false)
    }
}

impl Meta {
    /// Puts in what a call of ours bound its names to, except where another one meddled.
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

    /// Forgets what is known about a name, and that everything is known.
    pub(super) fn doubt(&self, dir: &mut Dir, name: &Name) {
        dir.names.remove(&self.table.hasher, name.as_bytes());
        dir.names.unlist();
        dir.listing = None;
    }

    /// No call of ours is left to close the gap before changes of ours: somebody else changed the
    /// directory.
    fn left_over(&self, dir: &mut Dir, now: Moment) {
        if dir.pending.iter().any(|p| p.takes) {
            self.raise_fence();
        }
        dir.pending.clear();
        dir.reset(None, now);
    }

    /// Whether an error shows that what is known about a name is not so.
    fn belies(&self, dir: &Dir, name: &Name, e: &Error) -> bool {
        let answer = dir.answer(self.table.hash(name.as_bytes()), name.as_bytes(), self.limits);
        match (e.errno, answer) {
            (libc::EEXIST, Some(answer)) => answer.child.is_none(),
            (libc::ENOENT, Some(answer)) => answer.child.is_some(),
            (libc::EISDIR | libc::ENOTDIR | libc::ELOOP | libc::ESTALE, _) => true,
            _ => false,
        }
    }

    /// The binding that a call of ours made.
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

/// Takes the names of a call out of those in flight; whether another call meddled with each.
fn take_flying(dir: &mut Dir, names: [Option<u64>; 2]) -> [bool; 2] {
    names.map(|hash| {
        let Some(hash) = hash else { return false };
        let found = dir.in_flight.iter().position(|f| f.0 == hash);
        found.is_some_and(|at| dir.in_flight.swap_remove(at).1)
    })
}

/// Who else changed a directory between changes of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Nobody,
    /// Somebody may have, who would be noticed without a change of ours as little: names hold for
    /// their time.
    Untold,
    Others,
    /// And a call of ours took a name that may not have been bound to what we knew.
    OthersAndTook,
}

/// Follows the directory's `change` over a change of our own. Replies of calls that overlap come in
/// any order: one that does not go on from where we are waits for its predecessor; when no call is
/// left, somebody else's change is between. Returns the label under which the call's own names
/// hold, and whom the changes met.
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
        dir.tried = None;
    }
    if !last || dir.pending.is_empty() {
        return (dir.label, Met::Nobody);
    }
    let met = if dir.pending.iter().any(|p| p.takes) { Met::OthersAndTook } else { Met::Others };
    // The newest of what is left is what the names of this call hold under, if nothing was between.
    let label = (dir.pending.len() == 1 && change.atomic).then_some(change.after);
    dir.pending.clear();
    dir.reset(label, now);
    (label, met)
}

impl Drop for Changing<'_> {
    /// The caller stopped waiting; the call goes on below, nobody knows how long.
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
