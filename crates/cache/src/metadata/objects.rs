//! One cached object: packed attributes, times, and the parts that only some objects have.

use super::ahead::Traversal;
use super::contents::Version;
use super::moment::{FIRST, LEASE, Moment};
use super::names::{Bound, Id, Names};
use bytes::Bytes;
use hither_vfs::{Access, Attr, FileKind, Time};
use smallvec::SmallVec;
use std::hash::RandomState;

/// The request time of a right remembered from before a restart. Such a right selects requests; it
/// answers nothing.
const RESTORED: Moment = 0;

/// Most credentials per object with known rights; the oldest is dropped first.
const RIGHTS_MAX: usize = 16;

/// Attributes in 88 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Packed {
    pub size_bytes: u64,
    /// Space in use; the device number of a device, which takes no space.
    used: u64,
    fileid: u64,
    pub change: u64,
    times: [[u32; 3]; 3],
    uid: u32,
    gid: u32,
    nlink: u32,
    /// Number of the file system in the table.
    fsid: u16,
    /// Permission bits in the low 12 bits, the kind above them.
    mode: u16,
}

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::BlockDevice,
    FileKind::CharDevice,
    FileKind::Socket,
    FileKind::Fifo,
];

impl Packed {
    /// Packs attributes. `fsid` is the table's number of their file system.
    pub fn new(attr: &Attr, fsid: u16) -> Self {
        let kind = KINDS.iter().position(|&k| k == attr.kind).unwrap_or(0) as u16;
        let device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
        let time = |t: Time| [t.secs as u32, (t.secs >> 32) as u32, t.nanos];
        Self {
            size_bytes: attr.size_bytes,
            used: if device {
                u64::from(attr.rdev.0) << 32 | u64::from(attr.rdev.1)
            } else {
                attr.used_bytes
            },
            fileid: attr.fileid,
            change: attr.change,
            times: [time(attr.atime), time(attr.mtime), time(attr.ctime)],
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            fsid,
            mode: kind << 12 | (attr.mode & 0o7777) as u16,
        }
    }

    /// Counts the removal of a name. The count becomes 0 for a directory and for the last known
    /// name.
    pub fn lost_a_name(&mut self) {
        if self.kind() == FileKind::Directory || self.nlink <= 1 {
            self.nlink = 0;
        }
    }

    /// Whether the object has no name any more.
    pub fn is_nameless(&self) -> bool {
        self.nlink == 0
    }

    /// Unpacks the attributes. `fsid` is their file system.
    pub fn attr(&self, fsid: (u64, u64)) -> Attr {
        let kind = self.kind();
        let device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
        let time = |t: [u32; 3]| Time { secs: (u64::from(t[1]) << 32 | u64::from(t[0])) as i64, nanos: t[2] };
        Attr {
            kind,
            mode: self.mode(),
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if device { ((self.used >> 32) as u32, self.used as u32) } else { (0, 0) },
            size_bytes: self.size_bytes,
            used_bytes: if device { 0 } else { self.used },
            fsid,
            fileid: self.fileid,
            atime: time(self.times[0]),
            mtime: time(self.times[1]),
            ctime: time(self.times[2]),
            change: self.change,
        }
    }

    /// Number of the file system in the table.
    pub fn fsid(&self) -> u16 {
        self.fsid
    }

    pub fn kind(&self) -> FileKind {
        KINDS[usize::from(self.mode >> 12).min(KINDS.len() - 1)]
    }

    /// User and group.
    pub fn owner(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    pub fn mode(&self) -> u32 {
        u32::from(self.mode & 0o7777)
    }

    /// Seconds of the last change of data or attributes.
    pub fn ctime_secs(&self) -> i64 {
        (u64::from(self.times[2][1]) << 32 | u64::from(self.times[2][0])) as i64
    }

    fn same_owner_and_mode(&self, other: &Self) -> bool {
        (self.uid, self.gid, self.mode) == (other.uid, other.gid, other.mode)
    }
}

/// A filehandle, stored inline up to the usual length of servers.
#[derive(Debug, Clone)]
pub(super) enum Handle {
    Short(u8, [u8; 38]),
    Long(Box<[u8]>),
}

impl Handle {
    pub fn new(raw: &[u8]) -> Self {
        let mut short = [0; 38];
        match short.get_mut(..raw.len()) {
            Some(to) => {
                to.copy_from_slice(raw);
                Self::Short(raw.len() as u8, short)
            }
            None => Self::Long(raw.into()),
        }
    }

    pub fn raw(&self) -> &[u8] {
        match self {
            Self::Short(len, raw) => &raw[..usize::from(*len)],
            Self::Long(raw) => raw,
        }
    }
}

/// The rights of one credential.
#[derive(Debug, Clone, Copy)]
pub(super) struct Right {
    /// Number of the credential.
    cred: u32,
    /// The rights that are known, and the granted rights among them.
    known: u8,
    have: u8,
    /// The rights hold at least until this moment, and as long as the object's attributes hold.
    until: Moment,
    /// When the request was sent.
    asked: Moment,
}

/// The parts that only some objects have.
#[derive(Debug, Default)]
pub(super) struct Extra {
    rights: SmallVec<[Right; 2]>,
    /// When the present lease was requested, and when its reply arrived.
    pub leased: (Moment, Moment),
    /// Target of a symbolic link, with the `change` it belongs to.
    pub target: Option<(u64, Bytes)>,
    /// Nothing is cached until this moment: a local change may still be on its way to the server.
    pub unsettled_until: Moment,
    /// The `change` under which contents were read through this layer: the frontend may have cached
    /// them.
    pub read_change: Option<u64>,
    /// A local change removed a name of the file. The layer below may keep the file under a
    /// silly-rename name as long as it is open there.
    pub lost_name: bool,
    pub questions: Questions,
    pub dir: Option<Box<Dir>>,
}

/// Consecutive revalidations before opens of a file, under one `change`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Questions {
    pub change: u64,
    pub count: u32,
}

/// A listing from the start of the directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listing {
    pub verifier: [u8; 8],
    /// Whether the listing reaches the end.
    pub eof: bool,
    /// Cookie after the last entry.
    pub next: u64,
    /// When the first page was requested.
    pub asked: Moment,
}

/// A local change that a directory's label has not followed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub before: u64,
    pub after: u64,
    pub atomic: bool,
    /// The change removed a name from an object.
    pub takes: bool,
}

/// How long no other request brings the listing of a directory whose last listing did not arrive
/// complete, in nanoseconds. Most such directories stay too long however often they change.
const TRIED_NANOS: u64 = 10_000_000_000;

/// A listing that did not arrive complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tried {
    label: Option<u64>,
    at: Moment,
}

/// The known names of a directory.
#[derive(Debug, Default)]
pub(super) struct Dir {
    pub names: Names,
    /// The `change` under which labeled names hold.
    pub label: Option<u64>,
    /// Whether an equal `change` proves nothing about the names: the server reported a local change
    /// as not atomic, or names were learned right after a change. Names keep their validity.
    pub unproven: bool,
    /// Whether the server did not report the effect of a local change on `change`. The next
    /// `change` may be its result, so names keep their validity.
    pub untold: bool,
    /// When labeled names expire, and when the attributes for that were requested.
    pub until: Moment,
    pub asked: Moment,
    /// When this label was first seen.
    pub label_seen: Moment,
    pub listing: Option<Listing>,
    /// The last listing that was requested and did not arrive complete: the label, and when.
    pub tried: Option<Tried>,
    /// Local changes that wait for the reply of their predecessor.
    pub pending: SmallVec<[Pending; 2]>,
    /// Hashes of the names that running local changes affect, and whether a second call affects the
    /// same name.
    pub in_flight: SmallVec<[(u64, bool); 2]>,
    /// When a file of the directory was last opened, and the number of opens since the burst began.
    pub opened: (Moment, u32),
    pub prefetching: bool,
    pub traversal: Traversal,
    /// When a lease on the directory was withdrawn. A name requested before that has no validity of
    /// its own any more.
    pub revoked: Moment,
}

impl Dir {
    /// Drops all names. Names learned from now on hold under `label`.
    pub fn reset(&mut self, label: Option<u64>, seen: Moment) {
        self.names = Names::default();
        self.listing = None;
        self.unproven = false;
        self.untold = false;
        self.label = label;
        self.label_seen = seen;
        self.until = 0;
        self.asked = 0;
    }

    /// Drops the order of the listing, because a new name has no position in it.
    pub fn unlist(&mut self) {
        self.names.unlist();
        if let Some(listing) = &mut self.listing {
            // All names are still known.
            listing.next = u64::MAX;
        }
    }

    /// Records that a listing did not arrive complete.
    pub fn note_tried(&mut self, now: Moment) {
        self.tried = Some(Tried { label: self.label, at: now });
    }

    /// Whether another listing would most likely not arrive complete either.
    pub fn has_tried(&self, now: Moment) -> bool {
        self.tried.is_some_and(|t| t.label == self.label || now.saturating_sub(t.at) < TRIED_NANOS)
    }

    /// Whether every unknown name is absent while the label holds.
    pub fn is_complete(&self) -> bool {
        self.listing.is_some_and(|l| l.eof)
    }

    /// Processes new attributes of the directory: its names hold as long as these, or are dropped.
    pub fn confirm(&mut self, change: u64, until: Moment, asked: Moment) {
        // Unproven names hold under a lease although an equal `change` proves nothing. They are
        // dropped with that lease.
        let lease_is_over = self.until & LEASE != 0 && self.until != until;
        let expired_unproven = self.unproven && (lease_is_over || asked >= self.until);
        let ours = std::mem::take(&mut self.untold) && self.label.is_some();
        if expired_unproven || self.label != Some(change) && !ours {
            self.reset(Some(change), asked);
        }
        self.label = Some(change);
        if !self.unproven {
            self.until = until;
            self.asked = self.asked.max(asked);
        }
    }

    /// Ends the lease on the names: they are kept as expired.
    pub fn end_lease(&mut self) {
        if self.until & LEASE != 0 {
            self.until = self.asked + 1;
        }
    }

    /// Expires all names until the directory's attributes arrive again.
    pub fn expire_names(&mut self, now: Moment) {
        self.end_lease();
        self.revoked = now;
    }

    /// Marks the names: an equal `change` proves nothing about them. `leased`: the names were
    /// requested under the directory's present lease, or the directory has no lease.
    pub fn unprove(&mut self, leased: bool) {
        self.unproven = true;
        if !leased {
            self.end_lease();
        }
    }

    /// The known answer about a name, with its validity and request time (see [`Answer`]). Absence
    /// has limits of its own.
    pub fn answer(&self, hash: u64, name: &[u8], limits: Limits) -> Option<Answer> {
        let labeled = (self.until, self.asked);
        // Attributes that hold for one call only renew nothing.
        let renews = !self.unproven && self.until > self.asked;
        match self.names.find(hash, name) {
            Some(bound) => {
                let (mut until, mut asked) = (bound.until(), bound.asked);
                if asked < self.revoked {
                    until = asked;
                }
                if bound.labeled {
                    until = later(until, labeled.0);
                    asked = asked.max(labeled.1);
                }
                let until = match bound.child {
                    Some(_) => until,
                    None => limited(until, asked, limits.asked_nanos),
                };
                let renewable = renews && bound.labeled;
                Some(Answer { child: bound.child, until, asked, complete: false, renewable })
            }
            None => {
                let listing = self.listing.filter(|listing| listing.eof)?;
                let asked = labeled.1.max(listing.asked);
                let until = limited(labeled.0, asked, limits.inferred_nanos);
                Some(Answer { child: None, until, asked, complete: true, renewable: renews })
            }
        }
    }

    /// Whether inferred absences are past their limit while the directory's attributes still hold.
    pub fn is_unconfirmed(&self, limits: Limits, when: &When) -> bool {
        let asked = self.listing.filter(|listing| listing.eof).map(|listing| listing.asked.max(self.asked));
        asked.is_some_and(|asked| {
            when.valid(self.until) && !when.valid(limited(self.until, asked, limits.inferred_nanos))
        })
    }

    /// Stores a name; returns its entry number.
    pub fn put(&mut self, hasher: &RandomState, name: &[u8], bound: Bound) -> Option<u32> {
        self.names.put(hasher, name, bound)
    }
}

/// The later of two ends of validity.
fn later(a: Moment, b: Moment) -> Moment {
    a.max(b)
}

/// How long absences are believed after a request confirmed them, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Limit for a requested name.
    pub asked_nanos: u64,
    /// Limit for an inferred absence.
    pub inferred_nanos: u64,
}

/// The end of an absence that was confirmed at `asked`. A lease lifts the limit.
pub(super) fn limited(until: Moment, asked: Moment, limit_nanos: u64) -> Moment {
    if until & LEASE == 0 { until.min(asked.saturating_add(limit_nanos)) } else { until }
}

/// The answer of a directory about one name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// The object; `None` when the name is absent.
    pub child: Option<Id>,
    pub until: Moment,
    pub asked: Moment,
    /// The absence is inferred from the complete listing.
    pub complete: bool,
    /// Equal attributes of the directory renew the answer.
    pub renewable: bool,
}

impl Answer {
    /// The end of an absence under these limits.
    pub fn absent_until(&self, limits: Limits) -> Moment {
        let limit_nanos = if self.complete { limits.inferred_nanos } else { limits.asked_nanos };
        limited(self.until, self.asked, limit_nanos)
    }
}

/// One cached object.
#[derive(Debug)]
pub(super) struct Object {
    pub fh: Handle,
    pub attr: Packed,
    /// When the attributes were requested; 0 when there are none.
    pub asked: Moment,
    /// When the attributes expire.
    pub until: Moment,
    /// Answers to requests with a lower sequence number are not kept.
    pub barrier: u64,
    pub extra: Option<Box<Extra>>,
    pub generation: u32,
    /// Slot of a directory that contained the object; used for guesses only.
    pub parent: u32,
    /// Position of the last use in the ring.
    pub used: u32,
    /// Running local changes of the object.
    pub modifying: u16,
    pub live: bool,
    pub referenced: bool,
}

impl Object {
    pub fn new(raw: &[u8], generation: u32, barrier: u64) -> Self {
        Self {
            fh: Handle::new(raw),
            attr: Packed::default(),
            asked: 0,
            until: 0,
            barrier,
            extra: None,
            generation,
            parent: u32::MAX,
            used: 0,
            modifying: 0,
            live: true,
            referenced: true,
        }
    }

    /// Whether the attributes are valid now, and fresh enough for the call of `when`.
    pub fn holds(&self, when: &When) -> bool {
        if self.asked == 0 || self.asked < when.fence {
            return false;
        }
        when.fits(self.until, self.asked)
    }

    /// The version of the object's contents.
    pub fn version(&self) -> Version {
        let leased = self.extra.as_ref().filter(|_| self.until & LEASE != 0).map(|e| e.leased.0);
        Version { change: self.attr.change, asked: self.asked, leased }
    }

    pub fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub fn dir(&self) -> Option<&Dir> {
        self.extra.as_ref()?.dir.as_deref()
    }

    pub fn dir_mut(&mut self) -> &mut Dir {
        self.extra().dir.get_or_insert_default()
    }

    /// The names of the directory, if any are known.
    pub fn known_dir(&mut self) -> Option<&mut Dir> {
        self.extra.as_mut()?.dir.as_deref_mut()
    }

    /// Whether a binding proven at `proven` still holds because of a lease held since then. Servers
    /// recall the lease before a file gets another name (RFC 8881 section 10.4.4).
    pub fn keeps_name(&self, proven: Moment, when: &When) -> bool {
        let Some(extra) = &self.extra else { return false };
        let (asked, known) = extra.leased;
        self.until & LEASE != 0 && self.holds(when) && (proven == asked || proven >= known)
    }

    /// Replaces the attributes. Another `change` drops the link target of the old one, and the
    /// rights. `ours`: a local change made the new attributes; rights stay if owner and mode are
    /// the same. `now` is the present moment.
    pub fn set_attr(&mut self, attr: Packed, (until, now): (Moment, Moment), asked: Moment, ours: bool) {
        let changed = self.asked == 0 || self.attr.change != attr.change;
        let same_mode = self.attr.same_owner_and_mode(&attr);
        if until & LEASE != 0 && self.until != until {
            self.extra().leased = (asked, now);
        }
        self.attr = attr;
        self.asked = asked;
        self.until = until;
        if attr.kind() == FileKind::Directory {
            self.dir_mut().confirm(attr.change, until, asked);
        }
        if changed && let Some(extra) = &mut self.extra {
            if !ours || !same_mode {
                extra.rights.clear();
            }
            if extra.target.as_ref().is_some_and(|t| t.0 != attr.change) {
                extra.target = None;
            }
        }
    }

    /// Expires the attributes.
    pub fn expire(&mut self) {
        self.until = 0;
        self.asked = self.asked.min(FIRST - 1);
    }

    /// Ends the lease on the attributes and names.
    pub fn end_lease(&mut self) {
        if self.until & LEASE != 0 {
            self.until = self.asked + 1;
        }
        if let Some(dir) = self.known_dir() {
            dir.end_lease();
        }
    }

    /// Whether a request at `asked` was sent under the present lease. True without a lease.
    pub fn is_since_lease(&self, asked: Moment) -> bool {
        self.until & LEASE == 0 || self.extra.as_ref().is_some_and(|e| asked >= e.leased.1)
    }

    /// Prepares for names that were requested at `asked`, under the directory's present `change`.
    /// Names requested after the lease is known hold under that lease. Older names without the
    /// lease are dropped: no request is due while the lease lasts, so no attributes would renew
    /// them.
    pub fn cover_names(&mut self, asked: Moment) {
        let (until, label) = (self.until, Some(self.attr.change));
        if until & LEASE == 0 || !self.is_since_lease(asked) {
            return;
        }
        let dir = self.dir_mut();
        if dir.until != until && dir.label == label {
            (dir.names, dir.listing) = (Names::default(), None);
            (dir.until, dir.asked) = (until, dir.asked.max(asked));
        }
    }

    /// Stores rights from an answer. The rights hold at least until `until`.
    pub fn grant(&mut self, cred: u32, known: Access, have: Access, until: Moment, asked: Moment) {
        let (known, have) = (known.bits() as u8, have.bits() as u8);
        let rights = &mut self.extra().rights;
        if let Some(at) = rights.iter().position(|r| r.cred == cred && r.asked == RESTORED) {
            rights.remove(at);
        }
        if let Some(right) = rights.iter_mut().find(|r| r.cred == cred) {
            right.have = right.have & !known | have & known;
            right.known |= known;
            right.until = right.until.max(until);
            right.asked = asked;
            return;
        }
        if rights.len() >= RIGHTS_MAX {
            rights.remove(0);
        }
        rights.push(Right { cred, known, have: have & known, until, asked });
    }

    /// Stores rights that the credential had before a restart.
    pub fn restore_right(&mut self, cred: u32, have: Access) {
        let rights = &mut self.extra().rights;
        if rights.len() < RIGHTS_MAX && !rights.iter().any(|r| r.cred == cred) {
            let have = have.bits() as u8;
            rights.push(Right { cred, known: have, have, until: 0, asked: RESTORED });
        }
    }

    /// Whether the credential had these rights before a restart, and no answer has come since. Such
    /// a right is worth a request, and answers nothing.
    pub fn has_restored_right(&self, cred: u32, want: Access) -> bool {
        let of = |r: &&Right| r.cred == cred && r.asked == RESTORED;
        let right = self.extra.as_ref().and_then(|e| e.rights.iter().find(of));
        right.is_some_and(|r| u32::from(r.have) & want.bits() == want.bits())
    }

    /// All granted rights, by credential number.
    pub fn granted(&self) -> impl Iterator<Item = (u32, Access)> {
        let rights = self.extra.iter().flat_map(|e| e.rights.iter());
        rights.map(|r| (r.cred, Access::from_bits_truncate(u32::from(r.have)))).filter(|r| !r.1.is_empty())
    }

    /// The granted rights among `want`; `None` unless all of `want` are known.
    pub fn rights(&self, cred: u32, want: Access, when: &When) -> Option<Access> {
        let of = |r: &&Right| r.cred == cred && r.asked != RESTORED;
        let right = self.extra.as_ref()?.rights.iter().find(of)?;
        let holds = when.now < right.until
            || self.asked != 0 && when.valid(self.until)
            || when.just_asked(right.asked);
        let all = u32::from(right.known) & want.bits() == want.bits();
        (holds && all).then(|| Access::from_bits_truncate(u32::from(right.have)) & want)
    }

    /// Restores attributes from before a restart as expired. Equal attributes of the server make
    /// the names, rights and contents that depend on them valid again.
    pub fn restore(&mut self, attr: Packed) {
        self.attr = attr;
        self.asked = FIRST - 1;
        self.until = FIRST;
    }

    /// Whether no answer about the object has come since a restart or an early expiry.
    pub fn is_restored(&self) -> bool {
        self.asked == FIRST - 1
    }

    /// Drops the rights of all credentials.
    pub fn revoke(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.rights.clear();
        }
    }

    /// Memory in use besides the slot itself, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let long = if let Handle::Long(raw) = &self.fh { raw.len() } else { 0 };
        let Some(extra) = &self.extra else { return long };
        let spilled = if extra.rights.spilled() { extra.rights.capacity() * size_of::<Right>() } else { 0 };
        let target = extra.target.as_ref().map_or(0, |(_, t)| t.len() + 32);
        let dir = extra.dir.as_ref().map_or(0, |d| size_of::<Dir>() + d.names.memory_bytes());
        long + size_of::<Extra>() + spilled + target + dir
    }
}

/// The moment of a call, and the age of answers that it accepts.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub now: Moment,
    /// Answers must have been requested at or after this moment.
    pub fresh: Option<Moment>,
    /// When the call began. An answer requested since then fits the call, even if it expired at
    /// once.
    pub since: Option<Moment>,
    /// The present epoch of leases.
    pub leases: u64,
    /// Attributes requested before this moment do not hold.
    pub fence: Moment,
    /// The server is away, and expired answers hold.
    pub stale: bool,
}

impl When {
    /// Whether a validity with this end holds now.
    pub fn valid(&self, until: Moment) -> bool {
        if self.stale {
            // 0: a change made here needs the server's answer.
            return until != 0;
        }
        match until & LEASE {
            0 => self.now < until,
            _ => until == self.leases | LEASE,
        }
    }

    /// Whether the call accepts an answer with this end of validity and request time.
    pub fn fits(&self, until: Moment, asked: Moment) -> bool {
        if self.stale {
            return self.valid(until);
        }
        match self.fresh {
            Some(fresh) => asked >= fresh || until & LEASE != 0 && self.valid(until),
            None => self.valid(until) || self.since.is_some_and(|since| asked >= since),
        }
    }

    /// Whether an answer was requested for this call or later.
    pub fn just_asked(&self, asked: Moment) -> bool {
        self.fresh.or(self.since).is_some_and(|since| asked >= since)
    }

    /// The same for a call that begins now.
    pub fn beginning(&self) -> When {
        When { since: Some(self.now), ..*self }
    }

    /// The same without freshness.
    pub fn any_age(&self) -> When {
        When { fresh: None, ..*self }
    }
}
