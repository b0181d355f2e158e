//! One object as it is kept: packed attributes, times, and what only some objects have.

use super::contents::Version;
use super::moment::{FIRST, LEASE, Moment};
use super::names::{Bound, Id, Names};
use bytes::Bytes;
use hither_vfs::{Access, Attr, FileKind, Time};
use smallvec::SmallVec;
use std::hash::RandomState;

/// When a right was asked for that is only remembered from before a restart: it says what to ask
/// about, nothing else.
const REMEMBERED: Moment = 0;

/// Rights of at most so many credentials are kept per object; the oldest goes.
const RIGHTS_MAX: usize = 16;

/// Attributes in 88 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Packed {
    pub size_bytes: u64,
    /// Space in use; device numbers for devices, which take no space.
    used: u64,
    fileid: u64,
    pub change: u64,
    times: [[u32; 3]; 3],
    uid: u32,
    gid: u32,
    nlink: u32,
    /// Number of the file system in the table.
    fsid: u16,
    /// Permission bits, and the kind above them.
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
    /// Packs attributes; `fsid` is the number of their file system.
    pub fn new(attr: &Attr, fsid: u16) -> Self {
        let kind = KINDS.iter().position(|&k| k == attr.kind).unwrap_or(0) as u16;
        let device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
        let time = |t: Time| [t.secs as u32, (t.secs >> 32) as u32, t.nanos];
        Self {
            size_bytes: attr.size_bytes,
            used: match device {
                true => u64::from(attr.rdev.0) << 32 | u64::from(attr.rdev.1),
                false => attr.used_bytes,
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

    /// A name of it was removed, the last one as far as is known.
    pub fn lost_a_name(&mut self) {
        if self.kind() == FileKind::Directory || self.nlink <= 1 {
            self.nlink = 0;
        }
    }

    /// Whether it had no name any more.
    pub fn is_nameless(&self) -> bool {
        self.nlink == 0
    }

    /// The attributes; `fsid` is their file system.
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

/// A filehandle, in place while it is as short as servers' usual ones.
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

/// What one credential may do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Right {
    /// Number of the credential.
    cred: u32,
    /// Which rights are known, and which of them are granted.
    known: u8,
    have: u8,
    /// They hold at least until then, and as long as the object's attributes do.
    until: Moment,
    /// When the question was sent.
    asked: Moment,
}

/// What only some objects have.
#[derive(Debug, Default)]
pub(super) struct Extra {
    rights: SmallVec<[Right; 2]>,
    /// When the present lease was asked for, and when it was known here.
    pub leased: (Moment, Moment),
    /// Target of a symbolic link, with the `change` it belongs to.
    pub target: Option<(u64, Bytes)>,
    /// Nothing is kept until then: something of our own may still be on its way to the server.
    pub unsettled_until: Moment,
    /// The `change` under which contents were read through here: the frontend may have them.
    pub read_change: Option<u64>,
    /// A name was taken from the file here. The layer below may keep it under a hidden name, for as
    /// long as it is open there.
    pub lost_name: bool,
    pub questions: Questions,
    pub dir: Option<Box<Dir>>,
}

/// Questions in a row, before opens of a file, that were asked while its `change` was this.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Questions {
    pub change: u64,
    pub count: u32,
}

/// A listing from its start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listing {
    pub verifier: [u8; 8],
    /// Whether it reaches the end.
    pub eof: bool,
    /// Cookie after the last entry.
    pub next: u64,
    /// When its first page was asked for.
    pub asked: Moment,
}

/// A change of our own that a directory's label has not followed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub before: u64,
    pub after: u64,
    pub atomic: bool,
    /// It took a name from an object.
    pub takes: bool,
}

/// What is known about the names of a directory.
#[derive(Debug, Default)]
pub(super) struct Dir {
    pub names: Names,
    /// The `change` under which labeled names hold.
    pub label: Option<u64>,
    /// False after a change of our own that the server did not tell atomically: names hold for
    /// their time, but an equal `change` proves nothing about them.
    pub unproven: bool,
    /// A change of our own of which the server did not tell what it made of `change`: the next one
    /// that is seen may be just that, and names hold for their time.
    pub untold: bool,
    /// Until when labeled names hold, and when that was asked.
    pub until: Moment,
    pub asked: Moment,
    /// When this label was first seen.
    pub label_seen: Moment,
    pub listing: Option<Listing>,
    /// The label under which a listing was wished for and did not come whole.
    pub tried: Option<Option<u64>>,
    /// Changes of our own whose predecessors' replies have not come yet.
    pub pending: SmallVec<[Pending; 2]>,
    /// Hashes of names that calls of ours are changing, and whether another call meddled.
    pub in_flight: SmallVec<[(u64, bool); 2]>,
    /// When a file of the directory was last opened, and how often since the burst began.
    pub opened: (Moment, u32),
    pub prefetching: bool,
    /// Names that were asked for before hold by themselves no longer: a lease on the directory was
    /// withdrawn then.
    pub withdrawn: Moment,
}

impl Dir {
    /// Forgets all names; what is learnt from now on holds under `label`.
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

    /// Forgets the order of the names, which something new does not fit into.
    pub fn unlist(&mut self) {
        self.names.unlist();
        if let Some(listing) = &mut self.listing {
            // All names are still known.
            listing.next = u64::MAX;
        }
    }

    /// Whether every name that is not known is absent, as long as the label holds.
    pub fn is_complete(&self) -> bool {
        self.listing.is_some_and(|l| l.eof)
    }

    /// Takes note of the directory's attributes: its names hold as long, or are gone.
    pub fn confirm(&mut self, change: u64, until: Moment, asked: Moment) {
        // Under a lease names hold although an equal `change` proves nothing about them, and no
        // longer.
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

    /// Names hold by no lease any more: they are as good as if their time had passed.
    pub fn lapse(&mut self) {
        if self.until & LEASE != 0 {
            self.until = self.asked + 1;
        }
    }

    /// Nothing is believed of the names before the directory's attributes have come again.
    pub fn withdraw(&mut self, now: Moment) {
        self.lapse();
        self.withdrawn = now;
    }

    /// Names were learnt that an equal `change` proves nothing about. `leased`: under the lease
    /// that the directory has now, if it has one.
    pub fn unprove(&mut self, leased: bool) {
        self.unproven = true;
        if !leased {
            self.lapse();
        }
    }

    /// What is known about a name, and how long and since when: see [`Answer`]. Absence has limits
    /// of its own.
    pub fn answer(&self, hash: u64, name: &[u8], limits: Limits) -> Option<Answer> {
        let labeled = (self.until, self.asked);
        // Directories whose attributes hold for one call only renew nothing.
        let renews = !self.unproven && self.until > self.asked;
        match self.names.find(hash, name) {
            Some(bound) => {
                let (mut until, mut asked) = (bound.until(), bound.asked);
                if asked < self.withdrawn {
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

    /// Whether the absence of names that nobody asked for was last confirmed longer ago than their
    /// limit, while the directory's attributes hold.
    pub fn is_unconfirmed(&self, limits: Limits, when: &When) -> bool {
        let asked = self.listing.filter(|listing| listing.eof).map(|listing| listing.asked.max(self.asked));
        asked.is_some_and(|asked| {
            when.valid(self.until) && !when.valid(limited(self.until, asked, limits.inferred_nanos))
        })
    }

    /// Puts a name.
    pub fn put(&mut self, hasher: &RandomState, name: &[u8], bound: Bound) -> Option<u32> {
        self.names.put(hasher, name, bound)
    }
}

/// The later of two ends of validity.
fn later(a: Moment, b: Moment) -> Moment {
    a.max(b)
}

/// How long names are believed to be absent after a question has shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// A name that was asked for.
    pub asked_nanos: u64,
    /// A name that nobody asked for: the directory is known as a whole.
    pub inferred_nanos: u64,
}

/// The end of an absence that was true when it was asked for; a lease has no limit.
pub(super) fn limited(until: Moment, asked: Moment, limit_nanos: u64) -> Moment {
    if until & LEASE == 0 { until.min(asked.saturating_add(limit_nanos)) } else { until }
}

/// What a directory says about a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// The object; `None` when absent.
    pub child: Option<Id>,
    pub until: Moment,
    pub asked: Moment,
    /// Absent because the whole directory is known.
    pub complete: bool,
    /// It holds again when the directory's attributes turn out to be the same.
    pub renewable: bool,
}

impl Answer {
    /// The end of an absence under these limits.
    pub fn absent_until(&self, limits: Limits) -> Moment {
        let limit_nanos = if self.complete { limits.inferred_nanos } else { limits.asked_nanos };
        limited(self.until, self.asked, limit_nanos)
    }
}

/// One object.
#[derive(Debug)]
pub(super) struct Object {
    pub fh: Handle,
    pub attr: Packed,
    /// When the question for the attributes was sent; 0 when there are none.
    pub asked: Moment,
    /// Until when they hold.
    pub until: Moment,
    /// Answers to questions before this number in the sequence are not kept.
    pub barrier: u64,
    pub extra: Option<Box<Extra>>,
    pub generation: u32,
    /// Slot of a directory that it was seen in, for guesses only.
    pub parent: u32,
    /// Position of its last use in the ring.
    pub used: u32,
    /// Calls of ours that are changing it.
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

    /// Whether the attributes may be used now, for somebody who needs them asked at or after
    /// `fresh`.
    pub fn holds(&self, when: &When) -> bool {
        if self.asked == 0 || self.asked < when.fence {
            return false;
        }
        when.fits(self.until, self.asked)
    }

    /// The state that its contents are in.
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

    /// The directory's part when there is one.
    pub fn known_dir(&mut self) -> Option<&mut Dir> {
        self.extra.as_mut()?.dir.as_deref_mut()
    }

    /// Whether a name that was proven to lead here at that moment still does, because a lease has
    /// been held since: servers recall it before a file gets another name (RFC 8881 section
    /// 10.4.4).
    pub fn keeps_name(&self, proven: Moment, when: &When) -> bool {
        let Some(extra) = &self.extra else { return false };
        let (asked, known) = extra.leased;
        self.until & LEASE != 0 && self.holds(when) && (proven == asked || proven >= known)
    }

    /// Replaces the attributes. With another `change`, what belonged to the old one goes; `ours`
    /// when the change is our own and rights stay. It is `now`.
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

    /// The attributes no longer hold.
    pub fn expire(&mut self) {
        self.until = 0;
        self.asked = self.asked.min(FIRST - 1);
    }

    /// The attributes no longer hold by a lease.
    pub fn lapse(&mut self) {
        if self.until & LEASE != 0 {
            self.until = self.asked + 1;
        }
        if let Some(dir) = self.known_dir() {
            dir.lapse();
        }
    }

    /// Whether something that was asked for then was asked for under the present lease, if there is
    /// one.
    pub fn is_since_lease(&self, asked: Moment) -> bool {
        self.until & LEASE == 0 || self.extra.as_ref().is_some_and(|e| asked >= e.leased.1)
    }

    /// Names are about to be learnt that were asked for then, under the directory's present
    /// `change`. Those that were asked for since its lease is known here hold under that; what is
    /// there from before and does not, goes. (The lease is held without a question, so no
    /// attributes would come under which names could hold again.)
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

    /// Notes rights that a question brought. `until`: they hold at least so long.
    pub fn grant(&mut self, cred: u32, known: Access, have: Access, until: Moment, asked: Moment) {
        let (known, have) = (known.bits() as u8, have.bits() as u8);
        let rights = &mut self.extra().rights;
        if let Some(at) = rights.iter().position(|r| r.cred == cred && r.asked == REMEMBERED) {
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

    /// Notes rights that the credential had before a restart.
    pub fn remember(&mut self, cred: u32, have: Access) {
        let rights = &mut self.extra().rights;
        if rights.len() < RIGHTS_MAX && !rights.iter().any(|r| r.cred == cred) {
            let have = have.bits() as u8;
            rights.push(Right { cred, known: have, have, until: 0, asked: REMEMBERED });
        }
    }

    /// Whether the credential had these rights before a restart and was not heard of since: worth
    /// asking for, no more.
    pub fn remembers(&self, cred: u32, want: Access) -> bool {
        let of = |r: &&Right| r.cred == cred && r.asked == REMEMBERED;
        let right = self.extra.as_ref().and_then(|e| e.rights.iter().find(of));
        right.is_some_and(|r| u32::from(r.have) & want.bits() == want.bits())
    }

    /// Rights that somebody was granted, by credential, to be remembered.
    pub fn granted(&self) -> impl Iterator<Item = (u32, Access)> {
        let rights = self.extra.iter().flat_map(|e| e.rights.iter());
        rights.map(|r| (r.cred, Access::from_bits_truncate(u32::from(r.have)))).filter(|r| !r.1.is_empty())
    }

    /// Which of `want` the credential has; `None` when that is not known for all of them.
    pub fn rights(&self, cred: u32, want: Access, when: &When) -> Option<Access> {
        let of = |r: &&Right| r.cred == cred && r.asked != REMEMBERED;
        let right = self.extra.as_ref()?.rights.iter().find(of)?;
        let holds = when.now < right.until
            || self.asked != 0 && when.valid(self.until)
            || when.just_asked(right.asked);
        let all = u32::from(right.known) & want.bits() == want.bits();
        (holds && all).then(|| Access::from_bits_truncate(u32::from(right.have)) & want)
    }

    /// Takes attributes from before a restart: nobody may use them, but all that hangs on them
    /// holds if they come again.
    pub fn recall(&mut self, attr: Packed) {
        self.attr = attr;
        self.asked = FIRST - 1;
        self.until = FIRST;
    }

    /// Whether nothing was heard of it since a restart, or since it expired before its time.
    pub fn is_remembered(&self) -> bool {
        self.asked == FIRST - 1
    }

    /// Forgets what anybody may do.
    pub fn revoke(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.rights.clear();
        }
    }

    /// Memory beside the slot itself.
    pub fn memory_bytes(&self) -> usize {
        let long = if let Handle::Long(raw) = &self.fh { raw.len() } else { 0 };
        let Some(extra) = &self.extra else { return long };
        let spilled = if extra.rights.spilled() { extra.rights.capacity() * size_of::<Right>() } else { 0 };
        let target = extra.target.as_ref().map_or(0, |(_, t)| t.len() + 32);
        let dir = extra.dir.as_ref().map_or(0, |d| size_of::<Dir>() + d.names.memory_bytes());
        long + size_of::<Extra>() + spilled + target + dir
    }
}

/// The moment of a question, and how new answers must be.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub now: Moment,
    /// Answers must have been asked at or after this moment.
    pub fresh: Option<Moment>,
    /// When the call began: what was asked since is good for it, however short it holds.
    pub since: Option<Moment>,
    /// The present epoch of leases.
    pub leases: u64,
    /// Attributes that were asked for before do not hold.
    pub fence: Moment,
}

impl When {
    /// Whether something valid until then holds now.
    pub fn valid(&self, until: Moment) -> bool {
        match until & LEASE {
            0 => self.now < until,
            _ => until == self.leases | LEASE,
        }
    }

    /// Whether an answer will do.
    pub fn fits(&self, until: Moment, asked: Moment) -> bool {
        match self.fresh {
            Some(fresh) => asked >= fresh || until & LEASE != 0 && self.valid(until),
            None => self.valid(until) || self.since.is_some_and(|since| asked >= since),
        }
    }

    /// Whether an answer was asked on behalf of this very call, or as late.
    pub fn just_asked(&self, asked: Moment) -> bool {
        self.fresh.or(self.since).is_some_and(|since| asked >= since)
    }

    /// The same, for a call that begins now.
    pub fn beginning(&self) -> When {
        When { since: Some(self.now), ..*self }
    }

    /// The same without freshness.
    pub fn any_age(&self) -> When {
        When { fresh: None, ..*self }
    }
}
