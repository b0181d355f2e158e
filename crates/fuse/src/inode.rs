//! Inodes: the kernel's numbers for objects, and the attributes that the kernel has.
//!
//! Each object identity `(fsid, fileid)` has one number, so that hard links share pages and locks
//! in the kernel. Numbers are never reused. An inode exists while the kernel counts lookups of it,
//! or while it is open. LOOKUP and similar requests increase the count, FORGET decreases it.
//!
//! The kernel's pages of a file belong to one value of the change attribute, stored in `pages`. The
//! mount's own modifications make that value unknown, because an answer cannot show whether another
//! client wrote meanwhile. After a change of attributes, [`Contents`] shows that. A different value
//! is another client's change if the mount has modified nothing meanwhile or since. Then the
//! kernel's pages must be dropped ([`Seen::pages_stale`]). One counter per mount ([`Clock`]) orders
//! answers and modifications. A call reads it before its request. Each modification advances it at
//! its start and end.

mod clock;
mod contents;
pub(crate) mod extending;
mod length;
mod resizing;
mod rights;
mod table;

use crate::in_use::InUse;
use crate::lockers::Lockers;
use bytes::Bytes;
use hither_vfs::{Asks, Attr, Attrs, ConsistencyDomain, Error, Fh, FileKind, Name, Node, Validity};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

pub(crate) use clock::{Clock, Moment};
use contents::Contents;
use length::Length;
pub(crate) use length::{QUEUED_MAX, Telling};
use resizing::Resizing;
pub(crate) use rights::OnExec;
use rights::Rights;
pub(crate) use table::{Ambiguous, Inodes, Named};

/// Time for which a thread with an ESTALE answer is expected to open the file again.
const STALE_RETRY: Duration = Duration::from_secs(2);
/// Maximum number of such threads.
const STALE_RETRIES_MAX: usize = 64;
/// Maximum time before the end of validity at which an open file is revalidated, so that the kernel
/// shows no older data.
pub(crate) const LEAD_MAX: Duration = Duration::from_millis(200);
/// Interval of checks of an open file without valid attributes.
const LOOK_UNKNOWN: Duration = Duration::from_secs(1);
/// Interval of checks of a file that is not cached because other clients use it.
const LOOK_SHARED: Duration = Duration::from_secs(30);
/// Minimum and maximum interval of checks of an open file.
const LOOK_FLOOR: Duration = Duration::from_millis(50);
const LOOK_CEILING: Duration = Duration::from_secs(3600);
/// Maximum number of absent names per directory that the kernel gets under a lease.
const ABSENT_MAX: usize = 4096;
/// Maximum number of further filehandles per object.
const ALIASES_MAX: usize = 4;

/// Identity of an object: the server's numbers, and the consistency domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ident {
    fsid: (u64, u64),
    fileid: u64,
    domain: u8,
}

impl Ident {
    /// Identity in the attributes.
    pub fn of(attr: &Attr, domain: ConsistencyDomain) -> Self {
        Self { fsid: attr.fsid, fileid: attr.fileid, domain: domain.number }
    }

    /// Whether the attributes have the same numbers at the server.
    pub fn is_of(self, attr: &Attr) -> bool {
        self.fsid == attr.fsid && self.fileid == attr.fileid
    }

    /// The identity of another object of the same file system.
    pub fn sibling(self, fileid: u64) -> Self {
        Self { fileid, ..self }
    }

    /// Number for `st_ino` in a mount with a root in file system `root`. In that file system it is
    /// the server's number. In other file systems it is mixed with the file system's number, so
    /// that the numbers of two file systems do not collide.
    pub fn ino(self, root: Ident) -> u64 {
        if self.fsid == root.fsid {
            return self.fileid.max(1);
        }
        // Finisher of SplitMix64: every input bit changes half of the output bits.
        let mut x = self.fsid.0 ^ self.fsid.1.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) ^ self.fileid).max(1)
    }
}

/// An object that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inode {
    /// The kernel's number.
    pub id: u64,
    /// The server's numbers.
    pub ident: Ident,
    /// The revalidation rule of the object's consistency domain; `None`: that of the mount.
    pub asks: Option<Asks>,
    /// Type.
    pub kind: FileKind,
    /// Starting opens, handles, and removals of its names.
    pub in_use: InUse,
    /// Owners of its locks.
    pub lockers: Lockers,
    /// Separates reads into the kernel's pages from truncations by the mount.
    pub resizing: Resizing,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fh: Fh,
    aliases: SmallVec<[Fh; 1]>,
    /// Last seen permission bits and owner.
    mode: u32,
    uid: u32,
    /// Mode and owners that the kernel has; `None` when it may have others.
    told_rights: Option<Rights>,
    /// The kernel may have set-id bits.
    told_set_id: bool,
    /// Change attribute of the kernel's pages; `None` when unknown.
    pages: Option<u64>,
    /// Last seen change attribute without a later modification of the mount. The kernel's pages
    /// need not belong to it, but a different value is still another client's change.
    seen: Option<u64>,
    /// Marks of the contents of that version. A change of attributes by the mount leaves them, and
    /// makes the change attribute unknown.
    contents: Option<Contents>,
    /// Time of the request of the newest attributes.
    newest: Instant,
    /// Whether the kernel may have pages.
    opened: bool,
    /// The open file that makes the kernel drop its pages, and the version of the pages after that.
    drops_by: Option<(u64, u64, Moment)>,
    /// No data was read or written since the kernel's pages were dropped.
    empty: bool,
    /// A read or write has used the kernel's pages.
    filled: bool,
    /// Length that the kernel has.
    length: Length,
    /// Change attribute that the kernel has; `None` when the kernel asks again.
    told_change: Option<u64>,
    /// Number of running modifications of the mount, and the last start or end of one.
    modifying: u32,
    modified: Moment,
    /// Number of writes, and the number of those known to be stable.
    writes: u64,
    committed: u64,
    /// Names of the object were forgotten, so a call with a forgotten name is not known to concern
    /// it.
    names_forgotten: bool,
    /// Threads whose opens for appending got ESTALE, and the time.
    stale_retries: SmallVec<[(u32, Instant); 1]>,
    /// Validity of the kernel's attributes and pages; `None` when they must be checked. A lease is
    /// stored only after it was passed on, so that its withdrawal finds it.
    valid: Option<Validity>,
    /// Time of the next check while the file is open.
    look: Instant,
    /// Planned time of the next check; `None` when no program has it open.
    queued: Option<Instant>,
    /// Time until which checks are postponed.
    postponed: Option<Instant>,
    /// Last seen attributes without a later change by the mount. They are never under a lease,
    /// because no withdrawal would remove them.
    known: Option<Attrs>,
    /// Last read target of a symbolic link.
    target: Option<Bytes>,
    /// End of validity of the objects in the last whole listing of this directory.
    listed: Option<Instant>,
    /// End of validity of the entries of this directory in the kernel's cache.
    entries: Option<Instant>,
    /// Absent names of this directory that the kernel has under a lease.
    absent: HashSet<Name>,
    /// A write error that no program has got.
    error: Option<Error>,
}

/// The effect of attributes on the kernel's caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Another client changed the contents. Cached pages must be dropped before the answer.
    pub pages_stale: bool,
    /// Cached names in the directory must not be used. Not all users may search it any more, or the
    /// machine's protections of sticky directories apply from now on.
    pub distrusts_names: bool,
    /// The object is open and must be checked earlier than planned.
    pub sooner: bool,
}

/// The effect of an open on the kernel's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnOpen {
    /// The cached pages are right.
    pub keep: bool,
    /// The kernel's attributes are out of date.
    pub attrs_stale: bool,
    /// The kernel may have another length.
    pub length_differs: bool,
    /// The mount itself is changing the file, or has changed it during the open.
    pub ours: bool,
}

/// A running modification, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Modifying<'a> {
    inode: &'a Inode,
    clock: &'a Clock,
    began: Moment,
    attrs: Option<Attrs>,
}

impl Modifying<'_> {
    /// Sets the attributes in the reply to the modification.
    pub fn brought(&mut self, attrs: Attrs) {
        self.attrs = Some(attrs);
    }
}

impl Drop for Modifying<'_> {
    fn drop(&mut self) {
        let mut s = self.inode.state.lock();
        s.modifying -= 1;
        // The order of the attributes of concurrent modifications is unknown.
        s.known = if s.modified == self.began { self.attrs.take().filter(unleased) } else { None };
        s.seen = s.known.as_ref().map(|a| a.attr.change);
        s.contents = s.known.as_ref().map(|a| Contents::of(&a.attr));
        s.modified = self.clock.tick();
        s.pages = None;
        s.told_change = None;
    }
}

/// A running change of attributes or entries, which ends when dropped.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    inode: &'a Inode,
    clock: &'a Clock,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.inode.touch(self.clock);
    }
}

impl Inode {
    fn new(id: u64, node: &Node, domain: ConsistencyDomain) -> Self {
        let attr = &node.attrs.attr;
        let state = State {
            fh: own_fh(&node.fh),
            aliases: SmallVec::new(),
            mode: attr.mode,
            uid: attr.uid,
            told_rights: Some(Rights::of(attr)),
            told_set_id: Rights::of(attr).is_set_id(),
            pages: None,
            seen: None,
            contents: None,
            newest: node.attrs.asked,
            opened: false,
            drops_by: None,
            empty: true,
            filled: false,
            length: Length::new(attr.size_bytes),
            told_change: Some(attr.change),
            modifying: 0,
            modified: Moment::default(),
            writes: 0,
            committed: 0,
            names_forgotten: false,
            stale_retries: SmallVec::new(),
            valid: Some(node.attrs.valid).filter(|v| *v != Validity::Lease),
            look: Instant::now(),
            queued: None,
            postponed: None,
            known: Some(&node.attrs).filter(|a| unleased(a)).cloned(),
            target: None,
            listed: None,
            entries: None,
            absent: HashSet::new(),
            error: None,
        };
        let ident = Ident::of(attr, domain);
        let (in_use, lockers) = (InUse::default(), Lockers::default());
        let (asks, kind, resizing, state) = (domain.asks, attr.kind, Resizing::default(), Mutex::new(state));
        Self { id, ident, asks, kind, in_use, lockers, resizing, state }
    }

    /// The filehandle.
    pub fn fh(&self) -> Fh {
        self.state.lock().fh.clone()
    }

    /// Adds another filehandle of the same object. Returns a copy of it, and a removed filehandle.
    fn add_alias(&self, fh: &Fh) -> (Fh, Option<Fh>) {
        let mut s = self.state.lock();
        let gone = (s.aliases.len() >= ALIASES_MAX).then(|| s.aliases.remove(0));
        let own = own_fh(fh);
        s.aliases.push(own.clone());
        (own, gone)
    }

    fn handles(&self) -> SmallVec<[Fh; 2]> {
        let s = self.state.lock();
        std::iter::once(&s.fh).chain(&s.aliases).cloned().collect()
    }

    /// Whether this is a filehandle of the object.
    pub fn knows(&self, fh: &Fh) -> bool {
        let s = self.state.lock();
        s.fh == *fh || s.aliases.contains(fh)
    }

    /// Whether all users may look up names in the directory. Only then the kernel may use cached
    /// names without asking.
    pub fn world_searchable(&self) -> bool {
        self.state.lock().mode & 0o111 == 0o111
    }

    /// Starts a modification of the contents.
    pub fn modify<'a>(&'a self, clock: &'a Clock) -> Modifying<'a> {
        let mut s = self.state.lock();
        s.modifying += 1;
        s.modified = clock.tick();
        s.empty = false;
        s.pages = None;
        s.known = None;
        s.seen = None;
        s.contents = None;
        Modifying { inode: self, clock, began: s.modified, attrs: None }
    }

    /// Starts a change of attributes or entries, without a change of contents.
    pub fn changing<'a>(&'a self, clock: &'a Clock) -> Changing<'a> {
        self.touch(clock);
        Changing { inode: self, clock }
    }

    /// Records a change of attributes by the mount, which also changes the change attribute.
    pub fn touch(&self, clock: &Clock) {
        let mut s = self.state.lock();
        s.modified = clock.tick();
        s.told_change = None;
        s.pages = None;
        s.known = None;
        s.seen = None;
        s.listed = None;
    }

    /// Whether the mount changed the object since `asked`.
    pub fn changed_since(&self, asked: Moment) -> bool {
        let s = self.state.lock();
        s.modifying > 0 || s.modified > asked
    }

    /// The moment of the mount's last change of the object.
    fn last_changed(&self) -> Moment {
        self.state.lock().modified
    }

    /// Records that the kernel has a symbolic link's target in its page cache.
    pub fn link_read(&self, target: &Bytes) {
        let mut s = self.state.lock();
        s.opened = true;
        s.pages = s.told_change;
        s.target = Some(Bytes::copy_from_slice(target));
    }

    /// The last read target of a symbolic link. The kernel may follow it without asking.
    pub fn link_target(&self) -> Option<Bytes> {
        self.state.lock().target.clone()
    }

    /// Records a successful write up to `end`. The kernel extends the length in the same way.
    /// Returns the number of writes.
    pub fn wrote(&self, end: u64, stable: bool) -> u64 {
        let mut s = self.state.lock();
        s.length.extend(end);
        s.writes += 1;
        if stable && s.committed + 1 == s.writes {
            s.committed = s.writes;
        }
        s.writes
    }

    /// Records the length after a truncation by the mount.
    pub fn resized(&self, size: u64) {
        let mut s = self.state.lock();
        s.length.set(size);
        s.writes += 1;
    }

    /// Records a change of attributes, which the layer below may send with the last bytes.
    pub fn set_attributes(&self) {
        self.state.lock().writes += 1;
    }

    /// Number of writes, and the number of those known to be stable.
    pub fn writes(&self) -> (u64, u64) {
        let s = self.state.lock();
        (s.writes, s.committed)
    }

    /// Records that the first `writes` writes are stable.
    pub fn committed(&self, writes: u64) {
        let mut s = self.state.lock();
        s.committed = s.committed.max(writes);
    }

    /// Records attributes, requested at `asked`. `told`: they are about to be passed to the kernel.
    pub fn observe(&self, attrs: &Attrs, asked: Moment, told: bool) -> Seen {
        let attr = &attrs.attr;
        let mut s = self.state.lock();
        let search_lost = s.mode & 0o111 == 0o111 && attr.mode & 0o111 != 0o111;
        let protects = |mode| mode & libc::S_ISVTX != 0 && mode & (libc::S_IWGRP | libc::S_IWOTH) != 0;
        let protected = !protects(s.mode) && protects(attr.mode);
        let distrusts_names = self.kind == FileKind::Directory && (search_lost || protected);
        (s.mode, s.uid) = (attr.mode, attr.uid);
        let rights = Rights::of(attr);
        if s.modifying > 0 || s.modified > asked {
            // The kernel ignores these attributes too, by its own counter.
            s.ignores(rights);
            let sooner = s.hold(None);
            return Seen { pages_stale: false, distrusts_names, sooner };
        }
        if attrs.asked < s.newest && s.seen.is_some_and(|seen| seen != attr.change) {
            // An answer from before the last open or answer.
            s.ignores(rights);
            return Seen { pages_stale: false, distrusts_names, sooner: false };
        }
        s.newest = s.newest.max(attrs.asked);
        let contents = Contents::of(attr);
        let differs = match s.pages.or(s.seen) {
            Some(change) => change != attr.change,
            // The mount changed attributes meanwhile.
            None => s.contents.is_some_and(|before| before != contents),
        };
        let changed = differs && self.kind != FileKind::Directory;
        (s.seen, s.contents) = (Some(attr.change), Some(contents));
        s.known = Some(attrs).filter(|a| unleased(a)).cloned();
        let resized =
            s.length.known().is_some_and(|known| known != attr.size_bytes) && self.kind == FileKind::Regular;
        let sooner = s.hold(Some(attrs.valid));
        let pages_stale = s.opened && (changed || resized);
        if pages_stale {
            (s.pages, s.drops_by) = (None, None);
        }
        if told && pages_stale {
            // The pages are dropped before the answer, so the kernel ignores the attributes.
            s.ignores(rights);
        } else if told {
            s.told_change = Some(attr.change);
            (s.told_rights, s.told_set_id) = (Some(rights), rights.is_set_id());
        }
        Seen { pages_stale, distrusts_names, sooner }
    }

    /// Records that the kernel's pages were dropped, after attributes requested at `asked`.
    pub fn pages_dropped(&self, attr: &Attr, asked: Moment) {
        let mut s = self.state.lock();
        if s.length.known() != Some(attr.size_bytes) {
            s.length.outdate();
        }
        s.told_change = None;
        s.empty = true;
        if s.modifying == 0 && s.modified <= asked {
            (s.pages, s.contents) = (Some(attr.change), Some(Contents::of(attr)));
        }
    }

    /// Records an open that returned `attrs`, requested at `asked`. Returns which kernel caches
    /// stay valid.
    pub fn opened(&self, attrs: &Attrs, asked: Moment) -> OnOpen {
        self.paged();
        self.opened_past_pages(attrs, asked)
    }

    /// As [`Inode::opened`] for an open with reads past the kernel's pages.
    pub fn opened_past_pages(&self, attrs: &Attrs, asked: Moment) -> OnOpen {
        let attr = &attrs.attr;
        let mut s = self.state.lock();
        s.hold(Some(attrs.valid));
        (s.mode, s.uid) = (attr.mode, attr.uid);
        if s.modifying > 0 || s.modified > asked {
            s.known = None;
            return OnOpen { keep: false, attrs_stale: true, length_differs: true, ours: true };
        }
        let (known, is_file) = (s.length.known(), self.kind == FileKind::Regular);
        let size_differs = is_file && known.is_some_and(|known| known != attr.size_bytes);
        // The kernel's attributes are known only when they are recorded. Otherwise the kernel asks
        // again.
        let attrs_stale = known != Some(attr.size_bytes) || s.told_change != Some(attr.change);
        let keep = s.pages == Some(attr.change) && !size_differs;
        s.empty |= !keep;
        (s.seen, s.contents) = (Some(attr.change), Some(Contents::of(attr)));
        s.newest = s.newest.max(attrs.asked);
        s.known.take_if(|known| known.attr.change != attr.change);
        // The kernel drops the pages of a file after the answer ([`Inode::read_by`]).
        s.pages = Some(attr.change).filter(|_| keep || !is_file);
        OnOpen { keep, attrs_stale, length_differs: known != Some(attr.size_bytes), ours: false }
    }

    /// Records that the kernel must request the attributes again.
    pub fn attrs_dropped(&self) {
        let mut s = self.state.lock();
        s.known = None;
        s.told_change = None;
    }

    /// Records that the kernel may have pages.
    pub fn paged(&self) {
        self.state.lock().opened = true;
    }

    /// Records a read or write through the kernel's pages.
    pub fn fills(&self) {
        self.state.lock().filled = true;
    }

    /// Whether the kernel may have pages, right or wrong.
    pub fn is_filled(&self) -> bool {
        self.state.lock().filled
    }

    /// Records the open file that makes the kernel drop its pages. After that its pages are those
    /// of `change`, requested at `asked`.
    pub fn drops_by(&self, file: u64, change: u64, asked: Moment) {
        self.state.lock().drops_by = Some((file, change, asked));
    }

    /// Records that the kernel reads contents through an open file. It has finished the open by
    /// now, and dropped its pages if the open made it do so.
    pub fn read_by(&self, file: u64) {
        let mut s = self.state.lock();
        s.empty = false;
        if let Some((_, change, asked)) = s.drops_by.take_if(|(by, ..)| *by == file)
            && s.pages.is_none()
            && s.modifying == 0
            && s.modified <= asked
        {
            s.pages = Some(change);
        }
    }

    /// Whether the kernel may have right pages.
    pub fn has_pages(&self) -> bool {
        let s = self.state.lock();
        s.opened && !s.empty && s.pages.is_some()
    }

    /// Whether contents with change attribute `change`, requested at `asked`, are still those of
    /// the file as far as known.
    pub fn holds(&self, change: u64, asked: Moment) -> bool {
        let s = self.state.lock();
        s.modifying == 0 && s.modified <= asked && s.pages == Some(change)
    }

    /// Records that earlier answers are invalid, and that the kernel's caches are being
    /// invalidated. Returns true when the object is open and must be checked earlier than planned.
    pub fn note_revoked(&self) -> bool {
        let mut s = self.state.lock();
        (s.known, s.listed) = (None, None);
        (s.pages, s.drops_by, s.told_change) = (None, None, None);
        s.hold(None)
    }

    /// Records that attributes are not under a lease any more, and that the kernel must request
    /// them again. Returns as [`Inode::note_revoked`].
    pub fn note_expired(&self) -> bool {
        let mut s = self.state.lock();
        (s.known, s.listed) = (None, None);
        s.told_change = None;
        s.hold(None)
    }

    /// Records that the kernel's attributes and pages are under a lease that is passed on.
    pub fn leased(&self) {
        let mut s = self.state.lock();
        (s.valid, s.look) = (Some(Validity::Lease), Instant::now() + LOOK_CEILING);
    }

    /// The validity of the kernel's attributes.
    pub fn valid(&self) -> Validity {
        self.state.lock().valid.unwrap_or(Validity::Once)
    }

    /// Whether the kernel's pages are known to be those of `attr`.
    pub fn pages_are_right(&self, attr: &Attr) -> bool {
        let s = self.state.lock();
        s.modifying == 0 && s.pages == Some(attr.change) && s.length.known() == Some(attr.size_bytes)
    }

    /// Cached attributes that are valid at `now`.
    pub fn known(&self, now: Instant) -> Option<Attrs> {
        let s = self.state.lock();
        let may_hold = s.modifying == 0 && !s.names_forgotten;
        s.known.clone().filter(|a| may_hold && !a.valid.left(now).is_zero())
    }

    /// Whether names of the object were forgotten.
    pub fn has_forgotten_names(&self) -> bool {
        self.state.lock().names_forgotten
    }

    /// Records that a name of the object was forgotten.
    pub fn forget_names(&self) {
        self.state.lock().names_forgotten = true;
    }

    /// Records a complete listing of this directory with all its objects, which are valid until
    /// `until`; `None` when some were missing. The listing counts only when `base` is the change
    /// attribute of the kernel's cached listing.
    pub fn listed(&self, until: Option<Instant>, asked: Moment, base: Option<u64>) {
        let mut s = self.state.lock();
        s.listed = until.filter(|_| s.modified <= asked && s.pages == base);
    }

    /// Change attribute of the kernel's caches, when known.
    pub fn pages(&self) -> Option<u64> {
        self.state.lock().pages
    }

    /// Records that the kernel gets entries of this directory that are valid until `until`.
    pub fn entries_given(&self, until: Instant) {
        let mut s = self.state.lock();
        s.entries = Some(s.entries.map_or(until, |e| e.min(until)));
    }

    /// Sets the end of validity of all entries in the kernel's cache; `None` when there are none.
    pub fn entries_hold(&self, until: Option<Instant>) {
        self.state.lock().entries = until;
    }

    /// End of validity of all entries that the kernel may have in its cache.
    pub fn entries_until(&self) -> Option<Instant> {
        self.state.lock().entries
    }

    /// Records an absent name that the kernel gets under a lease. Returns false when there are too
    /// many.
    pub fn leases_absent(&self, name: &Name) -> bool {
        let mut s = self.state.lock();
        let room = s.absent.contains(name) || s.absent.len() < ABSENT_MAX;
        if room {
            s.absent.insert(table::own_name(name));
        }
        room
    }

    /// Removes and returns the recorded absent names.
    pub fn take_absent(&self) -> Vec<Name> {
        self.state.lock().absent.drain().collect()
    }

    /// Whether the kernel may use its cached listing, because the objects in it are still valid.
    /// Otherwise a new listing returns all of them at once, while a lookup of each would follow a
    /// cached one.
    pub fn listing_holds(&self, now: Instant) -> bool {
        self.state.lock().listed.is_some_and(|until| now < until)
    }

    /// Whether the kernel's caches of an open file must be revalidated.
    pub fn is_due(&self, now: Instant) -> bool {
        let s = self.state.lock();
        s.opened && s.modifying == 0 && s.look <= now
    }

    /// The time of the next check of an open file, which is recorded as planned.
    pub fn plan_look(&self) -> Instant {
        let mut s = self.state.lock();
        s.queued = Some(s.look);
        s.look
    }

    /// Records a check. When it did not succeed, a new one is planned.
    pub fn looked(&self, now: Instant) {
        let mut s = self.state.lock();
        if s.look <= now {
            s.look = now + LOOK_UNKNOWN;
        }
    }

    /// Postpones a check for a while. Returns whether it was postponed.
    pub fn postpone(&self, now: Instant) -> bool {
        let mut s = self.state.lock();
        let until = s.postponed.take().unwrap_or(now + LOOK_SHARED);
        let off = now < until;
        if off {
            (s.postponed, s.look) = (Some(until), until);
        }
        off
    }

    /// Records that no program has the object open.
    pub fn plan_nothing(&self) {
        self.state.lock().queued = None;
    }

    /// Keeps an error until a program can get it.
    pub fn keep_error(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
    }

    /// Removes and returns the error.
    pub fn take_error(&self) -> Option<Error> {
        self.state.lock().error.take()
    }

    /// Records that an open for appending by thread `tid` gets ESTALE. Returns false when there are
    /// too many.
    pub fn send_back(&self, tid: u32, now: Instant) -> bool {
        let mut s = self.state.lock();
        let room = s.stale_retries.len() < STALE_RETRIES_MAX;
        if room {
            s.stale_retries.push((tid, now));
        }
        room
    }

    /// Whether thread `tid` opens again after ESTALE. It must not get a second ESTALE.
    pub fn came_back(&self, tid: u32, now: Instant) -> bool {
        let mut s = self.state.lock();
        s.stale_retries.retain(|(_, at)| now.duration_since(*at) < STALE_RETRY);
        let found = s.stale_retries.iter().position(|&(t, _)| t == tid);
        found.map(|i| s.stale_retries.remove(i)).is_some()
    }
}

impl State {
    /// Records that the kernel gets attributes with these rights, and may ignore them.
    fn ignores(&mut self, rights: Rights) {
        self.told_rights = None;
        self.told_set_id |= rights.is_set_id();
        self.told_change = None;
    }

    /// Sets the validity of the kernel's attributes and pages. Returns true when they must be
    /// checked earlier than planned. A lease changes nothing here.
    fn hold(&mut self, valid: Option<Validity>) -> bool {
        let now = Instant::now();
        let look = match valid {
            Some(Validity::Lease) => return false,
            Some(Validity::Until(end)) if end > now => {
                let left = end - now;
                now + (left - (left / 8).min(LEAD_MAX)).clamp(LOOK_FLOOR, LOOK_CEILING)
            }
            // Repeated invalid answers do not postpone the planned check.
            _ if self.queued.is_some() => self.look.min(now + LOOK_UNKNOWN),
            _ => now + LOOK_UNKNOWN,
        };
        (self.valid, self.look) = (valid, look);
        let sooner = self.queued.is_some_and(|queued| self.look < queued);
        if sooner {
            self.queued = Some(self.look);
        }
        sooner
    }
}

/// Whether the validity of attributes is not a lease.
fn unleased(attrs: &Attrs) -> bool {
    attrs.valid != Validity::Lease
}

/// A copy that does not keep the message buffer of the filehandle alive.
fn own_fh(fh: &Fh) -> Fh {
    Fh(Bytes::copy_from_slice(&fh.0))
}

#[cfg(test)]
pub(crate) mod tests;
