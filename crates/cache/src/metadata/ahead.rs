//! Lists directories ahead of their use.
//!
//! A program that traverses a tree (`find`, `ls -lR`, `git status`) needs one directory after the
//! other. Without this module each listing is a round trip, cold and after all timeouts. When a
//! program needs a second directory inside one directory, the request for it also lists the
//! directories that a depth-first traversal reaches next: those inside it, those after it, and
//! those after the directories above it. The number of directories grows from request to request.
//!
//! A listing ahead has the caller's identity, and is stored as any other listing. Its names and
//! attributes hold as long as if the program had asked for them at that moment, and no longer.
//! Calls that ask for freshness use none of them, and cause none.
//!
//! Wrong guesses cost bytes. So a request lists at most four times as many directories as the one
//! before, and few while most directories that were listed ahead stay unused.

use super::moment::{LEASE, Moment};
use super::names::Id;
use super::objects::{Dir, Object, Packed, When};
use super::{LookupCache, MetadataCache, stats};
use crate::metadata::list::NODE_ENTRY_BYTES;
use hither_vfs::{Access, Cred, DirPage, Fh, FileKind, RequestContext};
use std::sync::atomic::Ordering;

/// Most directories of one request besides the wanted one. Together they fit into one compound of
/// 96 operations and a reply of 1 MiB.
const AHEAD: usize = 22;
/// Directories to list ahead at first, if the listing of the wanted one is not known, or if it has
/// expired: a program has listed it before, most likely with those after it.
const FIRST: usize = 4;
const FIRST_AGAIN: usize = 16;
/// Growth from request to request.
const GROWTH: usize = 4;
/// Most directories of one request while guesses are bad.
const CAREFUL: usize = 2;
/// Unused directories up to which guesses count as good.
const UNUSED: u64 = 128;
/// Longest time between two directories of one traversal, in nanoseconds.
const PAUSE_NANOS: u64 = 10_000_000_000;
/// Levels above a directory that belong to its traversal.
const LEVELS: usize = 4;
/// Most names of one directory, and most objects in all, that are examined for a request.
const NAMES: usize = 4096;
const EXAMINED: usize = 8192;

/// The traversal of a directory: its subdirectories are listed or searched one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traversal {
    /// When a subdirectory was last requested, and its slot.
    last: Moment,
    child: u32,
    /// Subdirectories requested since the traversal began.
    count: u16,
    /// Directories that the last request of the traversal listed ahead.
    window: u16,
    /// This directory was listed ahead and not used yet.
    pub unused: bool,
}

impl Traversal {
    fn is_live(&self, when: &When) -> bool {
        when.now.saturating_sub(self.last) < PAUSE_NANOS
    }
}

/// A search for directories to list.
struct Search<'a> {
    meta: &'a MetadataCache,
    /// The caller, and its number in the cache.
    cred: &'a Cred,
    number: u32,
    when: &'a When,
    most: usize,
    left: usize,
    /// The wanted directory, and then those to list with it.
    found: Vec<Id>,
}

impl MetadataCache {
    /// Directories to list together with `dir`, which is about to be listed. `dir` itself is not
    /// among them.
    pub(super) fn list_ahead_of(&self, cx: &RequestContext, dir: &Fh, when: &When) -> Vec<Fh> {
        let lists = self.options.listing_bytes > 0 && self.options.batch_objects > 1;
        let keeps = self.options.lookup_cache == LookupCache::All && when.fresh.is_none();
        if !lists || !keeps || self.options.stateless_opens || self.options.strict {
            return Vec::new();
        }
        let found = self.table.with(dir, |id, o| (id, o.parent, o.dir().is_some_and(Dir::is_complete)));
        let Some((id, parent, again)) = found else { return Vec::new() };
        let most = self.next_window((id.slot, parent), if again { FIRST_AGAIN } else { FIRST }, when);
        if most == 0 {
            return Vec::new();
        }
        let cred = &*cx.cred;
        let number = self.cred(&cx.cred);
        let mut search =
            Search { meta: self, cred, number, when, most: most + 1, left: EXAMINED, found: vec![id] };
        search.inside(id);
        search.after(id, parent);
        search.found[1..].iter().filter_map(|id| self.fh_of(*id)).collect()
    }

    /// Records the request for the subdirectory in slot `child` of the directory in slot `parent`.
    /// Returns the number of directories to list ahead. A subdirectory that is requested over and
    /// over is no traversal.
    fn next_window(&self, (child, parent): (u32, u32), first: usize, when: &When) -> usize {
        let mut above = Vec::with_capacity(LEVELS);
        let (mut slot, mut window, mut count) = (parent, 0, 0);
        while above.len() < LEVELS {
            let next = self.table.with_slot(slot, |id, o| {
                let traversal = &mut o.known_dir()?.traversal;
                if !traversal.is_live(when) {
                    (traversal.count, traversal.window) = (0, 0);
                }
                if slot == parent {
                    traversal.last = when.now;
                    let is_next = traversal.count == 0 || traversal.child != child;
                    traversal.count = traversal.count.saturating_add(u16::from(is_next));
                    traversal.child = child;
                    count = traversal.count;
                }
                window = window.max(usize::from(traversal.window));
                Some((id, o.parent))
            });
            let Some(Some((id, next))) = next else { break };
            above.push(id);
            slot = next;
        }
        let most = match window {
            0 if count < 2 => return 0,
            0 => first,
            _ => (window * GROWTH).min(AHEAD),
        };
        for id in above {
            self.table.with_id(id, |o| {
                if let Some(dir) = o.known_dir() {
                    (dir.traversal.last, dir.traversal.window) = (when.now, most as u16);
                }
            });
        }
        let listed = self.counters.listed_ahead.load(Ordering::Relaxed);
        let used = self.counters.listed_ahead_used.load(Ordering::Relaxed);
        let good = listed.saturating_sub(used) <= UNUSED.max(used);
        if good { most } else { most.min(CAREFUL) }
    }

    /// Lists `dir` and `ahead` with one request; returns the page of `dir`. An error is no answer
    /// about `dir`: a request about many directories waits for no busy one.
    pub(super) async fn list_with(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        ahead: Vec<Fh>,
        max_bytes: u32,
    ) -> Option<DirPage> {
        let mut dirs = Vec::with_capacity(ahead.len() + 1);
        dirs.push(dir.clone());
        dirs.extend(ahead);
        let ticket = self.ticket();
        stats::add(&self.counters.listed_ahead, dirs.len() as u64 - 1);
        let mut wanted = None;
        for (fh, answer) in dirs.iter().zip(self.below.list_many(cx, &dirs, max_bytes).await) {
            let answer = answer.map_err(|e| self.failed(fh, e));
            if let Ok((attrs, page)) = &answer {
                self.learn_attrs(fh, attrs, &ticket);
                self.learn_page(cx, fh, 0, page, Some(attrs.attr.change), &ticket);
                // The listing does not prove the right to search.
                if let Some(have) = page.access {
                    self.learn_rights(&cx.cred, (fh, attrs.attr.change), Access::all(), have, &ticket);
                }
            }
            if fh == dir {
                wanted = answer.ok().map(|(_, page)| page);
                continue;
            }
            if let Some(parent) = self.note_ahead(fh, answer.is_ok()) {
                // Each failure costs a compound: the traversal begins anew.
                self.table.with_slot(parent, |_, o| {
                    o.known_dir().into_iter().for_each(|dir| dir.traversal = Traversal::default());
                });
            }
        }
        wanted
    }

    /// Records a listing ahead. Returns the slot of the directory above after a failure.
    fn note_ahead(&self, fh: &Fh, listed: bool) -> Option<u32> {
        let failed = self.table.with(fh, |_, o| {
            let parent = o.parent;
            let dir = o.known_dir()?;
            if listed {
                dir.traversal.unused = true;
                return None;
            }
            dir.note_tried(self.clock.now());
            Some(parent)
        });
        failed.flatten()
    }

    /// Records that a program uses a directory, if it was listed ahead.
    pub(super) fn note_ahead_use(&self, object: &mut Object) {
        if let Some(dir) = object.known_dir().filter(|dir| dir.traversal.unused) {
            dir.traversal.unused = false;
            stats::add(&self.counters.listed_ahead_used, 1);
        }
    }

    /// The first and the last entry of a valid listing; without entries when a new listing is not
    /// worth a request. `None` without a valid listing.
    fn listing_ends(&self, dir: Option<&Dir>, when: &When) -> Option<Vec<Id>> {
        let dir = dir?;
        let is_small = dir.names.len() * NODE_ENTRY_BYTES <= self.options.listing_bytes as usize;
        if !dir.is_complete() {
            return dir.has_tried(when.now).then(Vec::new);
        }
        if dir.until & LEASE != 0 || !is_small {
            return Some(Vec::new());
        }
        if !when.valid(dir.until) {
            return None;
        }
        let mut listed = dir.names.listed(0).filter_map(|(_, _, bound)| bound.child);
        let first = listed.next();
        Some(first.into_iter().chain(listed.last()).collect())
    }
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.found.len() >= self.most || self.left == 0
    }

    /// Adds a directory, if it is worth a listing. Expired names may lead to one directory twice.
    fn add(&mut self, dir: Id) {
        if self.is_worth(dir) && !self.found.contains(&dir) {
            self.found.push(dir);
        }
    }

    /// Whether a small directory has no valid listing with attributes, and a request may bring one.
    fn is_worth(&self, dir: Id) -> bool {
        let table = &self.meta.table;
        let ends = table.peek_id(dir, |o| {
            if self.is_usual(o) && self.may_list(&o.attr) {
                self.meta.listing_ends(o.dir(), self.when)
            } else {
                Some(Vec::new())
            }
        });
        match ends {
            None => false,
            Some(None) => true,
            Some(Some(ends)) => ends
                .into_iter()
                .any(|id| table.peek_id(id, |o| o.until & LEASE == 0 && !o.holds(self.when)).unwrap_or(true)),
        }
    }

    /// Whether an answer about a directory can be kept, and the server has not denied it to the
    /// caller. Attributes under a lease stay without a listing.
    fn is_usual(&self, object: &Object) -> bool {
        let expires = object.until & LEASE == 0 && object.until > object.asked;
        let always = When { now: 0, ..*self.when };
        let is_denied = |want| object.rights(self.number, want, &always).is_some_and(|have| have.is_empty());
        let denied = is_denied(Access::READ) || is_denied(Access::LOOKUP);
        object.asked != 0 && object.modifying == 0 && !object.attr.is_nameless() && expires && !denied
    }

    /// Whether the caller may list a directory, to judge by its mode. A wrong guess costs a
    /// request: the server decides.
    fn may_list(&self, attr: &Packed) -> bool {
        let (uid, gid) = attr.owner();
        let is_member = self.cred.gid == gid || self.cred.groups.contains(&gid);
        let bits = if self.cred.uid == uid {
            attr.mode() >> 6
        } else if is_member {
            attr.mode() >> 3
        } else {
            attr.mode()
        };
        self.cred.uid == 0 || bits & 0o5 == 0o5
    }

    /// The listed subdirectories of a directory, in the server's order, from the one after `child`.
    fn children(&mut self, dir: Id, child: Option<Id>) -> Vec<Id> {
        let listed = self.meta.table.peek_id(dir, |o| {
            let names = &o.dir()?.names;
            let mut all = names.listed(0).take(NAMES).filter_map(|(_, _, bound)| bound.child);
            if let Some(child) = child {
                all.find(|id| *id == child)?;
            }
            Some(all.take(self.left).collect::<Vec<_>>())
        });
        let listed = listed.flatten().unwrap_or_default();
        self.left -= listed.len();
        let is_dir = |o: &Object| o.asked != 0 && o.attr.kind() == FileKind::Directory;
        listed.into_iter().filter(|id| self.meta.table.peek_id(*id, is_dir) == Some(true)).collect()
    }

    /// Adds directories inside a directory, each before those inside it.
    fn inside(&mut self, dir: Id) {
        let mut next = self.children(dir, None);
        next.reverse();
        while let Some(id) = next.pop() {
            if self.is_over() {
                return;
            }
            self.add(id);
            let inner = self.children(id, None);
            next.extend(inner.into_iter().rev());
        }
    }

    /// Adds directories after `id` in the directory of slot `parent`, and after those above it.
    fn after(&mut self, mut id: Id, mut parent: u32) {
        for _ in 0..LEVELS {
            if self.is_over() {
                return;
            }
            let above = self.meta.table.with_slot(parent, |above, o| (above, o.parent));
            let Some((above, next)) = above else { return };
            for child in self.children(above, Some(id)) {
                if self.is_over() {
                    return;
                }
                self.add(child);
                self.inside(child);
            }
            (id, parent) = (above, next);
        }
    }
}
