//! Stores answers from the layer below, and decides which are not stored.
//!
//! The rules are in the documentation of [`metadata`](super), "Which answers are kept".

use super::moment::{LEASE, Moment, nanos};
use super::names::{Bound, Id, whole_seconds};
use super::objects::{Listing, Object, When};
use super::{LookupCache, MetadataCache, stats};
use bytes::Bytes;
use hither_vfs::{
    Access, Attrs, Cred, Data, DirPage, Fh, FileKind, Name, Node, Read, RequestContext, Stop, Validity,
    WalkResult, Wrote, bytes_prove_reading,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The coarsest clock of servers' timestamps, with a margin, in nanoseconds.
const TICK_NANOS: u64 = 20_000_000;

/// Taken before a request is sent: it decides which local changes the answer includes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub seq: u64,
    pub asked: Moment,
    leases: u64,
}

/// The binding that an answer brought.
pub(super) struct Found<'a> {
    pub name: &'a Name,
    /// The object; `None` when the name is absent.
    pub child: Option<Id>,
    pub asked: Moment,
    pub valid: Validity,
}

/// For how long an expired answer holds each time, while the server is away.
const STALE_FOR: Duration = Duration::from_secs(1);

impl MetadataCache {
    /// Takes a ticket before a request below.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket {
            seq: self.seq.load(Ordering::Acquire),
            asked: self.clock.now(),
            leases: self.leases.load(Ordering::Acquire),
        }
    }

    /// The next number of the sequence. Tickets taken before have lower numbers.
    pub(super) fn next_seq(&self) -> u64 {
        self.seq.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn when(&self, cx: &RequestContext) -> When {
        When { fresh: cx.fresh_since.map(|at| self.clock.of(at)), ..self.at_present() }
    }

    /// The present moment, for calls that ask for no freshness.
    pub(super) fn at_present(&self) -> When {
        When {
            now: self.clock.now(),
            fresh: None,
            since: None,
            leases: self.leases.load(Ordering::Acquire),
            fence: self.fence.load(Ordering::Acquire),
            stale: self.stale.load(Ordering::Relaxed),
        }
    }

    /// The moment at which a validity ends.
    pub(super) fn end(&self, ticket: &Ticket, valid: &Validity, asked: Moment) -> Moment {
        match valid {
            Validity::Once => asked,
            Validity::Until(end) => self.clock.of(*end),
            Validity::Lease if ticket.leases == self.leases.load(Ordering::Acquire) => LEASE | ticket.leases,
            Validity::Lease => asked,
        }
    }

    /// The end of a name's own validity, from the validity of its object and the request time.
    pub(super) fn name_end(&self, valid: &Validity, asked: Moment) -> Moment {
        let most = nanos(self.options.names_max);
        match valid {
            Validity::Until(end) => self.clock.of(*end).min(asked.saturating_add(most)),
            Validity::Once | Validity::Lease => asked,
        }
    }

    /// Limits the validity of attributes that arrive with a name to that of the name.
    pub(super) fn name_holds(&self, attrs: &mut Attrs) {
        if let (Validity::Until(end), Some(most)) =
            (attrs.valid, attrs.asked.checked_add(self.options.names_max))
        {
            attrs.valid = Validity::Until(end.min(most));
        }
    }

    /// The validity that ends at this moment.
    pub(super) fn validity(&self, until: Moment, now: Moment) -> Validity {
        let is_over = match until & LEASE {
            0 => until <= now,
            // The lease has ended since.
            _ => until != LEASE | self.leases.load(Ordering::Acquire),
        };
        match until {
            u if is_over && u != 0 && self.stale.load(Ordering::Relaxed) => {
                Validity::Until(self.clock.instant(now) + STALE_FOR)
            }
            _ if is_over => Validity::Once,
            u if u & LEASE != 0 => Validity::Lease,
            u => Validity::Until(self.clock.instant(u)),
        }
    }

    /// Whether the answer to a request may be stored.
    pub(super) fn may_keep(&self, object: &Object, ticket: &Ticket) -> bool {
        let unsettled = object.extra.as_ref().is_some_and(|e| self.clock.now() < e.unsettled_until);
        let ok = object.modifying == 0 && ticket.seq >= object.barrier && !unsettled;
        if !ok {
            stats::add(&self.counters.overtaken, 1);
        }
        ok
    }

    /// Stores attributes; returns the object's id in any case.
    pub(super) fn learn_attrs(&self, fh: &Fh, attrs: &Attrs, ticket: &Ticket) -> Id {
        let id = self.table.ensure(fh, |id, object| {
            if self.may_keep(object, ticket) {
                self.store_attrs(object, attrs, ticket, false);
            }
            id
        });
        self.relieve();
        id
    }

    /// Puts attributes into an object, unless it has newer ones. `ours`: they follow a change by
    /// this client.
    pub(super) fn store_attrs(&self, object: &mut Object, attrs: &Attrs, ticket: &Ticket, ours: bool) {
        let asked = self.clock.of(attrs.asked);
        let Some(packed) = self.table.pack(&attrs.attr) else { return };
        let until = self.end(ticket, &attrs.valid, asked);
        if until & LEASE != 0 {
            self.leased.fetch_max(self.clock.now(), Ordering::Relaxed);
        }
        if object.asked > asked && until & LEASE == 0 {
            if ours {
                // The newer attributes may be from before this client's change.
                object.expire();
            }
            return;
        }
        if self.options.strict && until & LEASE != 0 && object.until != until {
            object.revoke();
        }
        object.set_attr(packed, (until, self.clock.now()), asked, ours);
        if ours {
            self.server_clock.shown(object.attr.ctime_secs(), self.wall_secs(), self.clock.now());
        }
    }

    pub(super) fn relieve(&self) {
        let dropped = self.table.relieve(self.clock.now());
        if dropped > 0 {
            stats::add(&self.counters.evictions, dropped);
        }
    }

    /// The label of a directory: the `change` under which its names are known now.
    pub(super) fn label(&self, dir: &Fh) -> Option<u64> {
        self.table.with(dir, |_, object| object.dir()?.label)?
    }

    /// Stores a name of `dir` that was requested under `label`, and the caller's proven right to
    /// search.
    pub(super) fn learn_name(
        &self,
        cred: u32,
        dir: &Fh,
        label: Option<u64>,
        found: &Found<'_>,
        ticket: &Ticket,
    ) {
        let until = self.name_end(&found.valid, found.asked);
        let once = found.valid == Validity::Once;
        let parent = self.table.ensure(dir, |id, object| {
            if !self.may_keep(object, ticket) {
                return id;
            }
            // The directory has changed since the request: the answer proves nothing about its
            // names and rights now.
            if object.dir_mut().label != label {
                return id;
            }
            object.grant(cred, Access::LOOKUP, Access::LOOKUP, until, ticket.asked);
            let (racy, leased) = (self.is_racy(object), object.is_since_lease(found.asked));
            object.cover_names(found.asked);
            let dir = object.dir_mut();
            if label.is_some() && racy && found.asked < dir.label_seen + TICK_NANOS {
                dir.unprove(leased);
            }
            let bound = Bound {
                child: found.child,
                asked: found.asked,
                valid_s: whole_seconds(found.asked, until),
                labeled: label.is_some() && !once,
                cookie: None,
            };
            self.put_name(dir, found.name, bound);
            id
        });
        if let Some(child) = found.child {
            self.table.with_id(child, |object| object.parent = parent.slot);
        }
        self.relieve();
    }

    /// Stores a name in a directory, within the memory bound. A new name has no position in the
    /// listing.
    pub(super) fn put_name(&self, dir: &mut super::objects::Dir, name: &Name, bound: Bound) {
        if bound.child.is_some() && dir.listing.is_some() {
            let hash = self.table.hash(name.as_bytes());
            let listed = dir.names.find(hash, name.as_bytes());
            if !listed.is_some_and(|b| b.child.is_some() && b.cookie.is_some()) {
                dir.unlist();
            }
        }
        dir.put(&self.table.hasher, name.as_bytes(), bound);
        if dir.names.memory_bytes() > self.table.directory_most_bytes() {
            let (label, seen) = (dir.label, dir.label_seen);
            dir.reset(label, seen);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one call and all of its answer")]
    /// Stores all parts of the answer to a walk from `base`. `label` is the label of `base` at the
    /// time of the request.
    pub(super) fn learn_trail(
        &self,
        cx: &RequestContext,
        base: &Fh,
        path: &[Name],
        label: Option<u64>,
        wanted: Access,
        trail: &WalkResult,
        ticket: &Ticket,
    ) {
        let cred = self.cred(&cx.cred);
        let mut label = label;
        if let Some(attrs) = &trail.along.base {
            self.learn_attrs(base, attrs, ticket);
            label = Some(attrs.attr.change);
        }
        if path.is_empty()
            && let Some(node) = trail.steps.first()
        {
            self.learn_attrs(&node.fh, &node.attrs, ticket);
        }
        let holder = path.len().checked_sub(1);
        let mut dir = base;
        for (i, name) in path.iter().enumerate() {
            if holder == Some(i)
                && let Some(page) = &trail.along.listing
            {
                self.learn_page(cx, dir, 0, page, label, ticket);
            }
            match (trail.steps.get(i), &trail.stop) {
                (Some(node), _) => {
                    let child = Some(self.learn_attrs(&node.fh, &node.attrs, ticket));
                    let (asked, valid) = (self.clock.of(node.attrs.asked), node.attrs.valid);
                    self.learn_name(cred, dir, label, &Found { name, child, asked, valid }, ticket);
                    (dir, label) = (&node.fh, Some(node.attrs.attr.change));
                }
                (None, Stop::Missing(valid)) if i == trail.steps.len() => {
                    let found = Found { name, child: None, asked: ticket.asked, valid: *valid };
                    self.learn_name(cred, dir, label, &found, ticket);
                    break;
                }
                _ => break,
            }
        }
        if let (Stop::Complete, Some(node)) = (&trail.stop, trail.steps.last()) {
            self.learn_along(cx, node, wanted, trail, ticket);
        }
    }

    /// Stores the rights and first bytes that came with the last step of a walk.
    fn learn_along(
        &self,
        cx: &RequestContext,
        node: &Node,
        wanted: Access,
        trail: &WalkResult,
        ticket: &Ticket,
    ) {
        let under = (&node.fh, node.attrs.attr.change);
        if let Some(have) = trail.along.access {
            self.learn_rights(&cx.cred, under, wanted | have, have, ticket);
        }
        if let Some(target) = &trail.along.target {
            self.learn_target(under, target, ticket);
        }
        if let Some(read) = &trail.along.first {
            let asked = trail.along.access.is_some_and(|have| (wanted | have).contains(Access::READ));
            if !asked && bytes_prove_reading(node.attrs.attr.mode) {
                self.learn_rights(&cx.cred, under, Access::READ, Access::READ, ticket);
            }
            self.learn_contents(&node.fh, &node.attrs, read, ticket, false);
        }
    }

    /// Stores the target of a symbolic link, read under this `change`.
    pub(super) fn learn_target(&self, (fh, change): (&Fh, u64), target: &Bytes, ticket: &Ticket) {
        self.table.with(fh, |_, o| {
            let is_link = o.asked != 0 && o.attr.kind() == FileKind::Symlink;
            if self.may_keep(o, ticket) && o.attr.change == change && is_link {
                o.extra().target = Some((change, Bytes::copy_from_slice(target)));
            }
        });
    }

    /// Stores the contents of a small file that arrived complete with these attributes.
    pub(super) fn learn_contents(
        &self,
        fh: &Fh,
        attrs: &Attrs,
        read: &Read,
        ticket: &Ticket,
        guessed: bool,
    ) -> bool {
        let keep = self.table.with(fh, |_, o| self.may_keep(o, ticket).then(|| self.is_racy(o)));
        let Some(racy) = keep.flatten() else { return false };
        let version = (&attrs.attr, self.clock.of(attrs.asked));
        let small = self.options.small_file_bytes;
        let proves = !racy && !self.options.strict;
        let kept = self.contents.learn(fh, version, read, small, (proves, guessed));
        self.contents.relieve(&self.counters);
        kept
    }

    /// The written data, if it can be all of a small file.
    pub(super) fn whole(&self, offset_bytes: u64, data: &Data) -> Option<Data> {
        let small = offset_bytes == 0 && data.len() <= self.options.small_file_bytes as usize;
        small.then(|| data.clone())
    }

    /// Stores written data that is all of a small file under a lease. The file can then be opened
    /// and read without a request. The owner may read the file if its mode allows that.
    pub(super) fn learn_written(&self, cx: &RequestContext, fh: &Fh, whole: Option<Data>, wrote: &Wrote) {
        let (Some(data), Some(attrs)) = (whole, &wrote.attrs) else { return };
        let len = data.len() as u64;
        if attrs.valid != Validity::Lease || wrote.bytes != len || attrs.attr.size_bytes != len {
            return;
        }
        let ticket = self.ticket();
        // The attributes of this write were stored: no other local change of the file was running.
        let (asked, change) = (self.clock.of(attrs.asked), attrs.attr.change);
        let alone =
            self.table.with(fh, |_, o| o.until & LEASE != 0 && o.asked == asked && o.attr.change == change);
        if alone != Some(true) {
            return;
        }
        self.learn_contents(fh, attrs, &Read { data, eof: true }, &ticket, false);
        self.learn_owned(cx, fh, attrs, &ticket);
    }

    /// Stores the owner's right to read a file that was written or created here under a lease, if
    /// the mode allows that. The lease ends before another client can change the mode.
    pub(super) fn learn_owned(&self, cx: &RequestContext, fh: &Fh, attrs: &Attrs, ticket: &Ticket) {
        let attr = &attrs.attr;
        if attrs.valid == Validity::Lease && attr.mode & 0o400 != 0 && attr.uid == cx.cred.uid {
            self.learn_rights(&cx.cred, (fh, attr.change), Access::READ, Access::READ, ticket);
        }
    }

    /// Stores rights that were found under this `change`. They hold as long as the object's
    /// attributes.
    pub(super) fn learn_rights(
        &self,
        cred: &Arc<Cred>,
        (fh, change): (&Fh, u64),
        known: Access,
        have: Access,
        ticket: &Ticket,
    ) {
        let cred = self.cred(cred);
        self.table.with(fh, |_, object| {
            if object.attr.change == change && self.may_keep(object, ticket) {
                object.grant(cred, known, have, 0, ticket.asked);
            }
        });
    }

    /// Stores a page of a listing that was requested under `label`, with its objects.
    pub(super) fn learn_page(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        page: &DirPage,
        label: Option<u64>,
        ticket: &Ticket,
    ) {
        let children: Vec<_> = page
            .entries
            .iter()
            .map(|e| e.node.as_ref().map(|n| self.learn_attrs(&n.fh, &n.attrs, ticket)))
            .collect();
        let cred = self.cred(&cx.cred);
        let whole = children.iter().all(Option::is_some);
        let slot = self.table.ensure(dir, |id, object| {
            if !self.may_keep(object, ticket) {
                return id.slot;
            }
            if object.dir_mut().label != label {
                return id.slot;
            }
            object.grant(cred, Access::READ, Access::READ, 0, ticket.asked);
            let (racy, leased) = (self.is_racy(object), object.is_since_lease(ticket.asked));
            object.cover_names(ticket.asked);
            let dir = object.dir_mut();
            if label.is_some() && racy && ticket.asked < dir.label_seen + TICK_NANOS {
                dir.unprove(leased);
            }
            let goes_on = match dir.listing {
                _ if label.is_none() => false,
                _ if cookie == 0 => {
                    if dir.unproven && page.eof {
                        // A name believed present is dropped, if the complete page lacks it.
                        dir.names.keep_absent(&self.table.hasher);
                    } else {
                        dir.names.unlist();
                    }
                    let (verifier, asked) = (page.verifier, ticket.asked);
                    dir.listing = Some(Listing { verifier, eof: false, next: 0, asked });
                    true
                }
                Some(l) => !l.eof && l.next == cookie && l.verifier == page.verifier,
                None => false,
            };
            self.put_page(dir, page, &children, label.is_some(), goes_on);
            if cookie == 0 && !(page.eof && whole) {
                dir.note_tried(ticket.asked);
            }
            id.slot
        });
        for child in children.into_iter().flatten() {
            self.table.with_id(child, |object| object.parent = slot);
        }
        self.relieve();
    }

    fn put_page(
        &self,
        dir: &mut super::objects::Dir,
        page: &DirPage,
        children: &[Option<Id>],
        labeled: bool,
        goes_on: bool,
    ) {
        let now = self.clock.now();
        let mut whole = goes_on;
        for (entry, child) in page.entries.iter().zip(children) {
            let (Some(node), Some(child)) = (&entry.node, child) else {
                whole = false;
                continue;
            };
            let asked = self.clock.of(node.attrs.asked);
            let until = self.name_end(&node.attrs.valid, asked);
            let valid_s = whole_seconds(asked, until);
            let once = node.attrs.valid == Validity::Once;
            let bound = Bound {
                child: Some(*child),
                asked,
                valid_s,
                labeled: labeled && !once,
                cookie: Some(entry.cookie),
            };
            match dir.put(&self.table.hasher, entry.name.as_bytes(), bound) {
                Some(number) if whole => dir.names.list(number),
                _ => whole = false,
            }
        }
        let Some(listing) = &mut dir.listing else { return };
        if !goes_on {
            return;
        }
        if let Some(last) = page.entries.last() {
            listing.next = last.cookie;
        }
        listing.eof = whole && page.eof;
        if !whole {
            dir.listing = None;
            dir.names.unlist();
        } else if page.eof {
            if dir.unproven {
                // The same as for a listing of one page.
                dir.names.keep_listed(&self.table.hasher);
            }
            dir.names.settle(&self.table.hasher);
        }
        if dir.names.memory_bytes() > self.table.directory_most_bytes() {
            let label = dir.label;
            dir.reset(label, now);
            dir.note_tried(now);
        }
    }

    /// Stores that a newly created directory is empty, and that its creator, as the owner, has the
    /// rights of the owner's mode bits.
    pub(super) fn learn_empty(&self, cx: &RequestContext, node: &Node, ticket: &Ticket) {
        let change = node.attrs.attr.change;
        let owner = cx.cred.uid == node.attrs.attr.uid && node.attrs.attr.mode & 0o500 == 0o500;
        let cred = self.cred(&cx.cred);
        self.table.with(&node.fh, |_, object| {
            let same = object.asked != 0 && object.attr.kind() == FileKind::Directory;
            if !same || object.attr.change != change || !self.may_keep(object, ticket) {
                return;
            }
            if owner {
                let rights = Access::READ | Access::LOOKUP;
                let until = if object.until & LEASE == 0 { object.until } else { 0 };
                object.grant(cred, rights, rights, until, ticket.asked);
            }
            let racy = self.is_racy(object);
            let dir = object.dir_mut();
            if dir.label == Some(change) && dir.listing.is_none() && dir.names.len() == 0 {
                // Complete, in no order that the server knows.
                let asked = ticket.asked;
                dir.listing = Some(Listing { verifier: [0; 8], eof: true, next: u64::MAX, asked });
                dir.unproven |= racy;
            }
        });
    }

    /// Whether names are answered from memory during their validity.
    pub(super) fn trusts_names(&self, absent: bool) -> bool {
        match self.options.lookup_cache {
            LookupCache::All => true,
            LookupCache::Positive => !absent,
            LookupCache::None => false,
        }
    }
}
