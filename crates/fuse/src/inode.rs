//! Inodes: the kernel's numbers for objects, and the attributes that the kernel was given.
//!
//! One number per object identity `(fsid, fileid)`, so that hard links share pages and locks in the
//! kernel; numbers are never used twice. An inode lives while the kernel counts look-ups of it
//! (LOOKUP and its kin add, FORGET subtracts) or something is open.
//!
//! The kernel's pages of a file are right for one value of the change attribute, remembered in
//! `pages`. The mount's own modifications make that value unknown, because an answer cannot tell
//! whether another client wrote in between. A different value with no modification of ours in
//! flight or since is another client's change, and then the kernel's pages must be dropped
//! ([`Seen::pages_stale`]). To order answers and modifications there is one counter for the mount
//! ([`Clock`]): a call samples it before it asks, each modification moves it at its beginning and
//! end.

mod table;

use crate::in_use::InUse;
use bytes::Bytes;
use hither_vfs::{Asks, Attr, Attrs, Error, Fh, FileKind, LockOwner, Name, Node, Realm, Validity};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) use table::{Ambiguous, Inodes, Named};

/// How long a thread that was sent back to look up a file takes to come again, at most.
const SENT_BACK: Duration = Duration::from_secs(2);
/// Threads sent back at a time.
const SENT_BACK_MAX: usize = 64;
/// Longest time before its expiry at which an open file is revalidated: the kernel must not show
/// older data.
pub(crate) const LEAD_MAX: Duration = Duration::from_millis(200);
/// How often an open file is looked at whose attributes do not hold.
const LOOK_UNKNOWN: Duration = Duration::from_secs(1);
/// How often one is looked at of which nothing is kept, because others use it at the same time.
const LOOK_SHARED: Duration = Duration::from_secs(30);
/// How often one is looked at, at most and at least.
const LOOK_FLOOR: Duration = Duration::from_millis(50);
const LOOK_CEILING: Duration = Duration::from_secs(3600);
/// Absent names of a directory told under a lease, at most.
const ABSENT_MAX: usize = 4096;
/// Further handles accepted for one object.
const ALIASES_MAX: usize = 4;

/// Identity of an object: numbers that the server gives it, and the part of the mount in which it
/// was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ident {
    fsid: (u64, u64),
    fileid: u64,
    realm: u8,
}

impl Ident {
    /// Identity that attributes tell.
    pub fn of(attr: &Attr, realm: Realm) -> Self {
        Self { fsid: attr.fsid, fileid: attr.fileid, realm: realm.number }
    }

    /// Whether these are its numbers at the server.
    pub fn is_of(self, attr: &Attr) -> bool {
        self.fsid == attr.fsid && self.fileid == attr.fileid
    }

    /// Another object of the same file system.
    pub fn sibling(self, fileid: u64) -> Self {
        Self { fileid, ..self }
    }

    /// Number to show as `st_ino` in a mount whose root is in file system `root`: the server's own
    /// number there; mixed with the file system's number elsewhere, so that numbers of two do not
    /// meet.
    pub fn ino(self, root: Ident) -> u64 {
        if self.fsid == root.fsid {
            return self.fileid.max(1);
        }
        // SplitMix64's finisher: every bit of the input moves half the bits of the output.
        let mut x = self.fsid.0 ^ self.fsid.1.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) ^ self.fileid).max(1)
    }
}

/// Mode and owners as attributes tell them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Rights {
    fn of(attr: &Attr) -> Self {
        Self { mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid }
    }

    fn is_set_id(self) -> bool {
        self.mode & (libc::S_ISUID | libc::S_ISGID) != 0
    }
}

/// How an exec compares with the attributes that the kernel takes the identity of the program from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExec {
    /// Set-id bits and owners are the file's, or there are no such bits.
    Same,
    /// The kernel does not have set-id bits or owners that the file has.
    Less,
    /// The kernel may have set-id bits that the file does not have, or has with another owner.
    More,
}

/// Moments of a mount's own modifications.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

/// A moment of a [`Clock`]. Withdrawals of leases move the clock too: the moment of its question
/// shows whether an answer is older than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(u64);

impl Clock {
    /// Now; answers to calls begun before this moment tell nothing of modifications after it.
    pub fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    /// Moves on.
    pub fn tick(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// An object that the kernel knows.
#[derive(Debug)]
pub(crate) struct Inode {
    /// The kernel's number.
    pub id: u64,
    /// The server's numbers.
    pub ident: Ident,
    /// When the layer below asks the server, where that is not as everywhere.
    pub asks: Option<Asks>,
    /// Type.
    pub kind: FileKind,
    /// Opens under way, handles, and removals of its names.
    pub in_use: InUse,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fh: Fh,
    aliases: SmallVec<[Fh; 1]>,
    /// Permission bits and owner as last seen.
    mode: u32,
    uid: u32,
    /// Mode and owners that the kernel has; `None` when it may have been told others.
    told_rights: Option<Rights>,
    /// The kernel may have set-id bits.
    told_set_id: bool,
    /// Change value for which the kernel's pages are right; `None` when unknown.
    pages: Option<u64>,
    /// Change value last seen with no modification of ours since: a foundation less firm than
    /// `pages`, but a different value later is still another client's change.
    seen: Option<u64>,
    /// Whether the kernel can have pages at all.
    opened: bool,
    /// Nothing was read or written since the kernel's pages were dropped.
    empty: bool,
    /// A read or write has gone through the kernel's pages.
    filled: bool,
    /// Length the kernel takes the file to have; `None` when it has to ask. (Attributes that arrive
    /// together with an invalidation are ignored by the kernel.)
    told_size: Option<u64>,
    /// Change value of the attributes the kernel has; `None` when it asks again anyway.
    told_change: Option<u64>,
    /// Own modifications under way, and the last beginning or end of one.
    modifying: u32,
    modified: Moment,
    /// Writes so far, and how many of them are known to be stable.
    writes: u64,
    committed: u64,
    /// Names of it were forgotten: a call that takes one of them may not be known to be about it.
    names_forgotten: bool,
    /// Owners that took byte-range locks.
    lock_owners: HashSet<LockOwner>,
    /// Threads whose opens for appending were sent back to look the file up again, and when.
    sent_back: SmallVec<[(u32, Instant); 1]>,
    /// Until when the kernel's attributes and pages hold; `None` when they are to be looked at. A
    /// lease only once it was passed on, so that its withdrawal finds it.
    valid: Option<Validity>,
    /// When an open file is to be looked at again.
    look: Instant,
    /// When it is going to be; `None` when no program has it open.
    queued: Option<Instant>,
    /// Until when looks were put off.
    postponed: Option<Instant>,
    /// Attributes last seen, with nothing of ours happening to the object since. Never under a
    /// lease: no withdrawal would end it here.
    known: Option<Attrs>,
    /// The last target read of a symbolic link.
    target: Option<Bytes>,
    /// Until when the objects hold that came along with the last whole listing of this directory.
    listed: Option<Instant>,
    /// Until when the entries of this directory hold that the kernel may have in its cache.
    entries: Option<Instant>,
    /// Absent names of this directory that the kernel got under a lease.
    absent: HashSet<Name>,
    /// An error of written bytes that no program has been told yet.
    error: Option<Error>,
}

/// The effect of observed attributes on the kernel's caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Another client changed the contents: cached pages must go before the answer is given.
    pub pages_stale: bool,
    /// A directory is no longer searchable by all users: cached names in it must not be used.
    pub search_lost: bool,
    /// It is open, and to be looked at sooner than planned.
    pub sooner: bool,
}

/// The effect of an open on the kernel's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnOpen {
    /// The pages cached before are right.
    pub keep: bool,
    /// The kernel's attributes are out of date.
    pub attrs_stale: bool,
    /// The kernel may not know the length.
    pub size_unknown: bool,
}

/// A modification under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Modifying<'a> {
    inode: &'a Inode,
    clock: &'a Clock,
    began: Moment,
    attrs: Option<Attrs>,
}

impl Modifying<'_> {
    /// Hands over the attributes that came back with the modification.
    pub fn brought(&mut self, attrs: Attrs) {
        self.attrs = Some(attrs);
    }
}

impl Drop for Modifying<'_> {
    fn drop(&mut self) {
        let mut s = self.inode.state.lock();
        s.modifying -= 1;
        // The order of the attributes of simultaneous modifications is unknown.
        s.known = if s.modified == self.began { self.attrs.take().filter(unleased) } else { None };
        s.seen = s.known.as_ref().map(|a| a.attr.change);
        s.modified = self.clock.tick();
        s.pages = None;
        s.told_change = None;
    }
}

/// A change of attributes or entries under way; ends when dropped.
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
    fn new(id: u64, node: &Node, realm: Realm) -> Self {
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
            opened: false,
            empty: true,
            filled: false,
            told_size: Some(attr.size_bytes),
            told_change: Some(attr.change),
            modifying: 0,
            modified: Moment(0),
            writes: 0,
            committed: 0,
            names_forgotten: false,
            lock_owners: HashSet::new(),
            sent_back: SmallVec::new(),
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
        let ident = Ident::of(attr, realm);
        let in_use = InUse::default();
        Self { id, ident, asks: realm.asks, kind: attr.kind, in_use, state: Mutex::new(state) }
    }

    /// The handle.
    pub fn fh(&self) -> Fh {
        self.state.lock().fh.clone()
    }

    /// Accepts another handle of the same object; returns it, and the one that had to go for it.
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

    /// Whether a handle is one of its own.
    pub fn knows(&self, fh: &Fh) -> bool {
        let s = self.state.lock();
        s.fh == *fh || s.aliases.contains(fh)
    }

    /// Whether all users may look names up here: only then may the kernel do it without asking.
    pub fn world_searchable(&self) -> bool {
        self.state.lock().mode & 0o111 == 0o111
    }

    /// Begins a modification of the contents.
    pub fn modify<'a>(&'a self, clock: &'a Clock) -> Modifying<'a> {
        let mut s = self.state.lock();
        s.modifying += 1;
        s.modified = clock.tick();
        s.empty = false;
        s.pages = None;
        s.known = None;
        s.seen = None;
        Modifying { inode: self, clock, began: s.modified, attrs: None }
    }

    /// Begins a change of attributes or entries; contents stay.
    pub fn changing<'a>(&'a self, clock: &'a Clock) -> Changing<'a> {
        self.touch(clock);
        Changing { inode: self, clock }
    }

    /// Notes a change of attributes by the mount itself, which moves the change attribute too.
    pub fn touch(&self, clock: &Clock) {
        let mut s = self.state.lock();
        s.modified = clock.tick();
        s.told_change = None;
        s.pages = None;
        s.known = None;
        s.seen = None;
        s.listed = None;
    }

    /// Whether the mount itself changed the object since `asked`.
    pub fn changed_since(&self, asked: Moment) -> bool {
        let s = self.state.lock();
        s.modifying > 0 || s.modified > asked
    }

    /// The mount's last change of the object.
    fn last_changed(&self) -> Moment {
        self.state.lock().modified
    }

    /// Notes that the kernel has a symbolic link's target in its page cache.
    pub fn link_read(&self, target: &Bytes) {
        let mut s = self.state.lock();
        s.opened = true;
        s.pages = s.told_change;
        s.target = Some(Bytes::copy_from_slice(target));
    }

    /// Target of a symbolic link as the kernel read it last: it may go on there without asking.
    pub fn link_target(&self) -> Option<Bytes> {
        self.state.lock().target.clone()
    }

    /// Notes that a write up to `end` succeeded; the kernel extends the length likewise. Returns
    /// the number of writes until now.
    pub fn wrote(&self, end: u64, stable: bool) -> u64 {
        let mut s = self.state.lock();
        s.told_size = s.told_size.map(|size| size.max(end));
        s.writes += 1;
        if stable && s.committed + 1 == s.writes {
            s.committed = s.writes;
        }
        s.writes
    }

    /// Notes the length after a truncation of ours.
    pub fn resized(&self, size: u64) {
        let mut s = self.state.lock();
        s.told_size = Some(size);
        s.writes += 1;
    }

    /// Notes that attributes were set: the layer below may send them with the last bytes.
    pub fn set_attributes(&self) {
        self.state.lock().writes += 1;
    }

    /// Number of writes until now, and how many of them are known to be stable.
    pub fn writes(&self) -> (u64, u64) {
        let s = self.state.lock();
        (s.writes, s.committed)
    }

    /// Notes that the first `writes` writes are stable.
    pub fn committed(&self, writes: u64) {
        let mut s = self.state.lock();
        s.committed = s.committed.max(writes);
    }

    /// Remembers that `owner` may hold byte-range locks.
    pub fn note_lock_owner(&self, owner: LockOwner) {
        self.state.lock().lock_owners.insert(owner);
    }

    /// Forgets that; true when it had been noted.
    pub fn drop_lock_owner(&self, owner: LockOwner) -> bool {
        self.state.lock().lock_owners.remove(&owner)
    }

    /// Takes note of attributes asked for at `asked`, which are about to be given to the kernel.
    pub fn observe(&self, attrs: &Attrs, asked: Moment) -> Seen {
        let attr = &attrs.attr;
        let mut s = self.state.lock();
        let search_lost =
            self.kind == FileKind::Directory && s.mode & 0o111 == 0o111 && attr.mode & 0o111 != 0o111;
        (s.mode, s.uid) = (attr.mode, attr.uid);
        let rights = Rights::of(attr);
        if s.modifying > 0 || s.modified > asked {
            s.told_rights = None;
            s.told_set_id |= rights.is_set_id();
            // The kernel ignores these attributes too: it orders by its own counter in the same
            // way.
            s.told_change = None;
            let sooner = s.hold(None);
            return Seen { pages_stale: false, search_lost, sooner };
        }
        let changed =
            s.pages.or(s.seen).is_some_and(|p| p != attr.change) && self.kind != FileKind::Directory;
        s.seen = Some(attr.change);
        s.known = Some(attrs).filter(|a| unleased(a)).cloned();
        let resized = s.told_size.is_some_and(|t| t != attr.size_bytes) && self.kind == FileKind::Regular;
        s.told_size = Some(attr.size_bytes);
        s.told_change = Some(attr.change);
        (s.told_rights, s.told_set_id) = (Some(rights), rights.is_set_id());
        let sooner = s.hold(Some(attrs.valid));
        let pages_stale = s.opened && (changed || resized);
        if pages_stale {
            s.pages = None;
        }
        Seen { pages_stale, search_lost, sooner }
    }

    /// Notes that the kernel's pages were dropped after attributes with `change`, asked for at
    /// `asked`, were seen.
    pub fn pages_dropped(&self, change: u64, asked: Moment) {
        let mut s = self.state.lock();
        s.told_size = None;
        s.told_change = None;
        s.empty = true;
        if s.modifying == 0 && s.modified <= asked {
            s.pages = Some(change);
        }
    }

    /// Notes an open that returned `attr` and was begun at `asked`: the kernel caches that may
    /// stay.
    pub fn opened(&self, attrs: &Attrs, asked: Moment) -> OnOpen {
        self.paged();
        self.opened_past_pages(attrs, asked)
    }

    /// The same for an open whose reads do not go through the kernel's pages.
    pub fn opened_past_pages(&self, attrs: &Attrs, asked: Moment) -> OnOpen {
        let attr = &attrs.attr;
        let mut s = self.state.lock();
        s.hold(Some(attrs.valid));
        (s.mode, s.uid) = (attr.mode, attr.uid);
        if s.modifying > 0 || s.modified > asked {
            s.known = None;
            return OnOpen { keep: false, attrs_stale: true, size_unknown: true };
        }
        let size_differs =
            self.kind == FileKind::Regular && s.told_size.is_some_and(|t| t != attr.size_bytes);
        // The kernel's attributes are only known when they are noted: in doubt it asks again, or it
        // would end reads at an old length.
        let attrs_stale = s.told_size != Some(attr.size_bytes) || s.told_change != Some(attr.change);
        let keep = s.pages == Some(attr.change) && !size_differs;
        s.empty |= !keep;
        s.pages = Some(attr.change);
        OnOpen { keep, attrs_stale, size_unknown: s.told_size != Some(attr.size_bytes) }
    }

    /// Notes that the kernel gets mode and owners, which it may ignore.
    pub fn observe_rights(&self, attr: &Attr) {
        let mut s = self.state.lock();
        s.told_rights = None;
        s.told_set_id |= Rights::of(attr).is_set_id();
    }

    /// How the kernel would run the file with `attr`.
    pub fn on_exec(&self, attr: &Attr) -> OnExec {
        let (s, rights) = (self.state.lock(), Rights::of(attr));
        match (s.told_rights == Some(rights), s.told_set_id) {
            (true, _) => OnExec::Same,
            (false, true) => OnExec::More,
            (false, false) if rights.is_set_id() => OnExec::Less,
            (false, false) => OnExec::Same,
        }
    }

    /// Whether the file had set-id bits when its attributes were last seen.
    pub fn is_set_id(&self) -> bool {
        self.kind == FileKind::Regular && self.state.lock().mode & (libc::S_ISUID | libc::S_ISGID) != 0
    }

    /// Permission bits and owner as last seen.
    pub fn mode_and_owner(&self) -> (u32, u32) {
        let s = self.state.lock();
        (s.mode, s.uid)
    }

    /// Notes that the kernel has to ask for the attributes again.
    pub fn attrs_dropped(&self) {
        let mut s = self.state.lock();
        s.known = None;
        s.told_size = None;
        s.told_change = None;
    }

    /// Notes that the kernel can have pages.
    pub fn paged(&self) {
        self.state.lock().opened = true;
    }

    /// Notes a read or write through the kernel's pages.
    pub fn fills(&self) {
        self.state.lock().filled = true;
    }

    /// Whether the kernel may have pages, right or wrong.
    pub fn is_filled(&self) -> bool {
        self.state.lock().filled
    }

    /// Notes that the kernel reads contents.
    pub fn read(&self) {
        self.state.lock().empty = false;
    }

    /// Whether the kernel may have pages that are right.
    pub fn has_pages(&self) -> bool {
        let s = self.state.lock();
        s.opened && !s.empty && s.pages.is_some()
    }

    /// Whether contents that belong to `change`, and were asked for then, are still those of the
    /// file, as far as is known here.
    pub fn holds(&self, change: u64, asked: Moment) -> bool {
        let s = self.state.lock();
        s.modifying == 0 && s.modified <= asked && s.pages == Some(change)
    }

    /// Notes that nothing answered before holds any more, and that the kernel is being told to drop
    /// it. True when it is open, and to be looked at sooner than planned.
    pub fn withdrawn(&self) -> bool {
        let mut s = self.state.lock();
        (s.known, s.listed) = (None, None);
        (s.pages, s.told_size, s.told_change) = (None, None, None);
        s.hold(None)
    }

    /// Notes that attributes do not hold under a lease any more, and that the kernel is being told
    /// to ask for them again. True as [`Inode::withdrawn`] is.
    pub fn lapsed(&self) -> bool {
        let mut s = self.state.lock();
        (s.known, s.listed) = (None, None);
        (s.told_size, s.told_change) = (None, None);
        s.hold(None)
    }

    /// Notes that the kernel's attributes and pages hold under a lease that is passed on.
    pub fn leased(&self) {
        let mut s = self.state.lock();
        (s.valid, s.look) = (Some(Validity::Lease), Instant::now() + LOOK_CEILING);
    }

    /// The lifetime of attributes that the kernel was given last.
    pub fn valid(&self) -> Validity {
        self.state.lock().valid.unwrap_or(Validity::Once)
    }

    /// Whether the kernel's pages are known to be those of `attr`.
    pub fn pages_are_right(&self, attr: &Attr) -> bool {
        let s = self.state.lock();
        s.modifying == 0 && s.pages == Some(attr.change) && s.told_size == Some(attr.size_bytes)
    }

    /// Attributes that still hold.
    pub fn known(&self, now: Instant) -> Option<Attrs> {
        let s = self.state.lock();
        let may_hold = s.modifying == 0 && !s.names_forgotten;
        s.known.clone().filter(|a| may_hold && !a.valid.left(now).is_zero())
    }

    /// Whether it has names that are not remembered.
    pub fn has_forgotten_names(&self) -> bool {
        self.state.lock().names_forgotten
    }

    /// Not every name of it is remembered any more.
    pub fn forget_names(&self) {
        self.state.lock().names_forgotten = true;
    }

    /// Notes that this directory was listed to its end with all its objects, which hold until then;
    /// `None` when some were missing. The directory has to be the one (`base`) that the kernel's
    /// cache was begun with.
    pub fn listed(&self, until: Option<Instant>, asked: Moment, base: Option<u64>) {
        let mut s = self.state.lock();
        s.listed = until.filter(|_| s.modified <= asked && s.pages == base);
    }

    /// Change value for which the kernel's caches are right, as far as that is known.
    pub fn pages(&self) -> Option<u64> {
        self.state.lock().pages
    }

    /// Notes that the kernel is given entries of this directory that hold until then.
    pub fn entries_given(&self, until: Instant) {
        let mut s = self.state.lock();
        s.entries = Some(s.entries.map_or(until, |e| e.min(until)));
    }

    /// Notes until when all entries hold that the kernel has in its cache; `None` when there are
    /// none.
    pub fn entries_hold(&self, until: Option<Instant>) {
        self.state.lock().entries = until;
    }

    /// Until when all entries hold that the kernel may have in its cache.
    pub fn entries_until(&self) -> Option<Instant> {
        self.state.lock().entries
    }

    /// Notes a name that the kernel gets as absent under a lease; false when there are too many.
    pub fn leases_absent(&self, name: &Name) -> bool {
        let mut s = self.state.lock();
        let room = s.absent.contains(name) || s.absent.len() < ABSENT_MAX;
        if room {
            s.absent.insert(table::own_name(name));
        }
        room
    }

    /// The names noted so, which are forgotten.
    pub fn take_absent(&self) -> Vec<Name> {
        self.state.lock().absent.drain().collect()
    }

    /// Whether the kernel can do with the listing it has cached: the objects on it still hold. When
    /// they do not, a new listing brings all of them at once, while a cached one would be followed
    /// by a look-up of each.
    pub fn listing_holds(&self, now: Instant) -> bool {
        self.state.lock().listed.is_some_and(|until| now < until)
    }

    /// Whether the kernel's caches of an open file are due for revalidation.
    pub fn is_due(&self, now: Instant) -> bool {
        let s = self.state.lock();
        s.opened && s.modifying == 0 && s.look <= now
    }

    /// When an open file is to be looked at next, which is noted as planned.
    pub fn plan_look(&self) -> Instant {
        let mut s = self.state.lock();
        s.queued = Some(s.look);
        s.look
    }

    /// Notes that it was looked at; without success when it is due still.
    pub fn looked(&self, now: Instant) {
        let mut s = self.state.lock();
        if s.look <= now {
            s.look = now + LOOK_UNKNOWN;
        }
    }

    /// Puts a look off, for a while; true when it was.
    pub fn postpone(&self, now: Instant) -> bool {
        let mut s = self.state.lock();
        let until = s.postponed.take().unwrap_or(now + LOOK_SHARED);
        let off = now < until;
        if off {
            (s.postponed, s.look) = (Some(until), until);
        }
        off
    }

    /// Notes that no program has it open any more.
    pub fn plan_nothing(&self) {
        self.state.lock().queued = None;
    }

    /// Keeps an error until a program can get it.
    pub fn keep_error(&self, error: Error) {
        self.state.lock().error.get_or_insert(error);
    }

    /// The error kept, once.
    pub fn take_error(&self) -> Option<Error> {
        self.state.lock().error.take()
    }

    /// Sends an open for appending by thread `tid` back to look the file up again; false when there
    /// are too many.
    pub fn send_back(&self, tid: u32, now: Instant) -> bool {
        let mut s = self.state.lock();
        let room = s.sent_back.len() < SENT_BACK_MAX;
        if room {
            s.sent_back.push((tid, now));
        }
        room
    }

    /// Whether thread `tid` comes back from being sent: it must not be sent again.
    pub fn came_back(&self, tid: u32, now: Instant) -> bool {
        let mut s = self.state.lock();
        s.sent_back.retain(|(_, at)| now.duration_since(*at) < SENT_BACK);
        let found = s.sent_back.iter().position(|&(t, _)| t == tid);
        found.map(|i| s.sent_back.remove(i)).is_some()
    }
}

impl State {
    /// Notes how long the kernel's attributes and pages hold; true when that is looked at sooner
    /// than planned. A lease says nothing yet.
    fn hold(&mut self, valid: Option<Validity>) -> bool {
        let now = Instant::now();
        let look = match valid {
            Some(Validity::Lease) => return false,
            Some(Validity::Until(end)) if end > now => {
                let left = end - now;
                now + (left - (left / 8).min(LEAD_MAX)).clamp(LOOK_FLOOR, LOOK_CEILING)
            }
            // However often that is found, it is looked at.
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

/// Whether attributes hold for a time that is known.
fn unleased(attrs: &Attrs) -> bool {
    attrs.valid != Validity::Lease
}

/// A copy that does not keep the message alive which the handle came in.
fn own_fh(fh: &Fh) -> Fh {
    Fh(Bytes::copy_from_slice(&fh.0))
}

#[cfg(test)]
pub(crate) mod tests;
