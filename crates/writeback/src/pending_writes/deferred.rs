//! Attributes that a program has set and the server does not have yet. They are sent with the last
//! bytes.
//!
//! The module does not know how they are sent. Attributes may wait under these conditions:
//!
//! - The caller created the file, and the open of the creation is not closed.
//! - The server reports the caller as the file's owner.
//! - The server is certain to grant the change to an owner. This holds for times that every server
//!   can store. It holds for permissions that remove no right and have no set-id or sticky bits.
//!
//! The attributes that tar(1) and cp(1) set on new files thus cost no call of their own. Other
//! changes are never delayed: a change that removes rights, gives the file away, changes its
//! length, or requests the server's time as modification time. A change without effect is not
//! delayed either, unless the file is to be sent anyway.
//!
//! The order of the program's calls is kept:
//!
//! - Bytes written later supersede a modification time that was set before, and are not sent
//!   together with it.
//! - Attributes that are set again replace delayed ones. Bytes written in between are then sent
//!   first.
//! - A call that needs the server to have the file ([`super`], "Order") sends the attributes, too.
//!
//! Permissions and access times are independent of bytes. When they are due and bytes block a
//! modification time, they are sent alone, in parallel with the bytes. The same happens for a call
//! that needs them (`send_deferred.rs`). The creator's privilege ends with the first fsync or
//! close.
//!
//! The modification time of a write that a program saw waits, too (`seen.rs`). It needs no open
//! creation. Later bytes do not supersede it, but move it.
//!
//! The attributes that the server has got are remembered, because the answer to an earlier request
//! may lack them ([`Landed`]).

use super::file::Origin;
use super::seen::Seen;
use hither_vfs::{Attrs, Cred, Error, OpenId, SetAttr, SetTime, Time, Validity};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The creator of a file, while the creating open lasts.
#[derive(Debug, Clone)]
pub(super) struct Creator {
    pub cred: Arc<Cred>,
    pub open: OpenId,
}

/// Delayed attributes.
#[derive(Debug, Clone)]
pub(super) struct Deferred {
    pub set: SetAttr,
    pub by: Creator,
    /// The time of the first delayed change.
    pub since: Instant,
    /// The time of the last change by the local clock, shown as the change time.
    at: Time,
    /// The modification time is that of a write, and a program saw it (`seen.rs`).
    seen: bool,
    number: u64,
}

impl Deferred {
    /// Whether no program set any of the attributes.
    pub fn is_seen_time(&self) -> bool {
        self.seen && SetAttr { mtime: self.set.mtime, ..SetAttr::default() } == self.set
    }
}

/// Attributes that the server has got, and the end of that call. Answers to earlier requests may be
/// older.
#[derive(Debug, Default)]
struct Landed {
    set: SetAttr,
    at: Option<Instant>,
}

/// All delayed attributes of one file.
#[derive(Debug, Default)]
pub(super) struct DeferredAttrs {
    creator: Option<Creator>,
    waiting: Option<Deferred>,
    /// Attributes in flight.
    sent: Option<Deferred>,
    landed: Landed,
    /// The waiting attributes are to be sent.
    due: bool,
    /// A caller waits for the permissions. They are sent at once, whatever happens to the bytes.
    urgent: bool,
    /// The call in flight sets the modification time. No bytes are sent together with it.
    holds: bool,
    /// The attributes in flight are not sent again after a failure, because no caller would get the
    /// error.
    given_up: bool,
    /// The last attempt failed for now, with the time of the next one. Bytes are not affected.
    trouble: Option<(Error, Instant)>,
    backoff: Option<Duration>,
    /// The number of the last delayed change, and of the last completed one.
    made: u64,
    done: u64,
}

impl DeferredAttrs {
    /// Notes the creation of the file through this open.
    pub fn created(&mut self, cred: Arc<Cred>, open: OpenId) {
        self.creator = Some(Creator { cred, open });
    }

    /// Ends the creator's privilege, at a close or fsync of its open.
    pub fn closed(&mut self, open: OpenId) {
        if self.creator.as_ref().is_some_and(|c| c.open == open) {
            self.creator = None;
        }
    }

    /// Whether no attributes are waiting or in flight.
    pub fn is_none(&self) -> bool {
        self.waiting.is_none() && self.sent.is_none()
    }

    /// Whether attributes are waiting or in flight that other clients would miss beside the bytes.
    pub fn is_for_others(&self) -> bool {
        [&self.waiting, &self.sent].into_iter().flatten().any(|o| !o.is_seen_time())
    }

    /// Whether permissions are waiting or in flight.
    pub fn has_mode(&self) -> bool {
        [&self.waiting, &self.sent].into_iter().flatten().any(|o| o.set.mode.is_some())
    }

    /// Whether permissions are in flight, or are to be sent at once.
    pub fn mode_goes(&self) -> bool {
        self.sent.as_ref().is_some_and(|o| o.set.mode.is_some()) || self.is_urgent()
    }

    /// Requests that waiting permissions are sent at once.
    pub fn urge(&mut self) {
        self.urgent = true;
        self.urgent = self.is_urgent();
        if self.urgent {
            self.trouble = None;
        }
    }

    /// Notes a failed attempt. `first` and `most` are the bounds of the pause. Returns the time of
    /// the next attempt.
    pub fn troubled(&mut self, e: Error, now: Instant, first: Duration, most: Duration) -> Instant {
        let pause = self.backoff.map_or(first, |b| (b * 2).min(most));
        self.backoff = Some(pause);
        self.trouble = Some((e, now + pause));
        now + pause
    }

    /// The error of the last attempt, until the next one is due.
    pub fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref().map(|(e, _)| e)
    }

    /// Permits the next attempt: at once, or if it is due at `now`.
    pub fn retry(&mut self, now: Option<Instant>) {
        if self.trouble.as_ref().is_some_and(|(_, at)| now.is_none_or(|now| *at <= now)) {
            self.trouble = None;
        }
    }

    /// Whether a modification time is waiting or in flight.
    pub fn is_mtime_near(&self) -> bool {
        self.holds || self.waiting.as_ref().is_some_and(|o| o.set.mtime.is_some())
    }

    /// Whether delayed permissions have reached the server at or after `since`.
    pub fn mode_landed_since(&self, since: Instant) -> bool {
        self.landed.set.mode.is_some() && self.landed.at.is_some_and(|at| at >= since)
    }

    /// Gives up the attributes set through `open`. Those in flight are not sent again.
    pub fn give_up(&mut self, open: OpenId) {
        self.given_up |= self.sent.as_ref().is_some_and(|o| o.by.open == open);
        if self.waiting.as_ref().is_some_and(|o| o.by.open == open) {
            self.forget();
        }
    }

    fn is_urgent(&self) -> bool {
        self.urgent && self.waiting.as_ref().is_some_and(|o| o.set.mode.is_some())
    }

    /// The user who sets the modification time. The visible one is then the one that the server
    /// will have.
    pub fn sets_mtime(&self) -> Option<&Arc<Cred>> {
        let sets = |o: &&Deferred| matches!(o.set.mtime, Some(SetTime::To(_)));
        [&self.waiting, &self.sent].into_iter().flatten().find(sets).map(|o| &o.by.cred)
    }

    /// The time of the first waiting change.
    pub fn since(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|o| o.since)
    }

    /// The part of `set` that must be sent, if all of `set` may wait. `now` are the visible
    /// attributes. `dirty`: bytes are to be sent anyway.
    pub fn may_wait(&self, cred: &Arc<Cred>, set: &SetAttr, now: &Attrs, dirty: bool) -> Option<SetAttr> {
        let creator = self.creator.as_ref()?;
        let attr = &now.attr;
        let others = [&self.waiting, &self.sent].into_iter().flatten().any(|o| o.by.cred != *cred);
        let mine = creator.cred == *cred && attr.uid == cred.uid && !others;
        let takes_away = set.mode.is_some_and(|mode| attr.mode & 0o777 & !mode != 0);
        // Servers may clear or refuse these bits.
        let special = set.mode.is_some_and(|mode| (mode | attr.mode) & !0o777 != 0);
        // The server's own time must come from its clock, and not every server can store every
        // time.
        let odd = |t: SetTime| matches!(t, SetTime::To(t) if !(0..=i64::from(i32::MAX)).contains(&t.secs));
        let times = set.mtime == Some(SetTime::Now) || [set.atime, set.mtime].into_iter().flatten().any(odd);
        let gives = set.uid.is_some_and(|uid| uid != attr.uid) || set.gid.is_some_and(|gid| gid != attr.gid);
        // A change of the owner clears these bits.
        let clears = (set.uid.is_some() || set.gid.is_some()) && attr.mode & 0o6000 != 0;
        if !mine || set.size_bytes.is_some() || takes_away || special || times || gives || clears {
            return None;
        }
        let set = SetAttr { uid: None, gid: None, ..set.clone() };
        let changes = set.mode.is_some_and(|mode| mode != attr.mode) || set.atime.or(set.mtime).is_some();
        (changes || dirty || self.waiting.is_some()).then_some(set)
    }

    /// Adds `set` to the waiting attributes.
    pub fn add(&mut self, set: &SetAttr, now: Instant, at: Time) {
        let Some(by) = self.creator.clone() else { return };
        let since = self.waiting.as_ref().map_or(now, |o| o.since);
        let old = self.waiting.take();
        let seen = set.mtime.is_none() && old.as_ref().is_some_and(|o| o.seen);
        let old = old.map(|o| o.set).unwrap_or_default();
        self.wait(Deferred { set: over(&old, set), by, since, at, seen, number: 0 });
    }

    /// Adds the modification time of a write that a program saw. The writer owns the file.
    pub fn see(&mut self, writer: Origin, times: Seen, now: Instant) {
        let by = Creator { cred: writer.cred, open: writer.open };
        let new = Deferred {
            set: SetAttr { mtime: Some(SetTime::To(times.mtime)), ..SetAttr::default() },
            by,
            since: now,
            at: times.ctime,
            seen: true,
            number: 0,
        };
        let new = match self.waiting.take() {
            Some(old) => {
                Deferred { set: over(&old.set, &new.set), at: old.at.max(new.at), seen: true, ..old }
            }
            None => new,
        };
        self.wait(new);
    }

    fn wait(&mut self, deferred: Deferred) {
        if deferred.set != SetAttr::default() {
            self.made += 1;
            self.waiting = Some(Deferred { number: self.made, ..deferred });
        }
    }

    /// Notes a write or truncation, which supersedes the modification time that was set before.
    /// `written`: the local time of a write, which follows a time that a program saw.
    pub fn modified(&mut self, written: Option<Time>) {
        self.landed.set.mtime = None;
        let mut seen = None;
        for deferred in [&mut self.sent, &mut self.waiting].into_iter().flatten() {
            if let (true, Some(SetTime::To(time))) = (deferred.seen, deferred.set.mtime.take()) {
                seen = Some((time, deferred.by.clone(), deferred.since));
            }
        }
        if self.waiting.as_ref().is_some_and(|o| o.set == SetAttr::default()) {
            self.waiting = None;
            self.settle();
        }
        if let (Some((before, by, since)), Some(now)) = (seen, written) {
            let mtime = before.max(now);
            let writer = Origin { cred: by.cred, open: by.open };
            self.see(writer, Seen { mtime, ctime: mtime }, since);
        }
    }

    /// Whether the waiting attributes are to be sent.
    pub fn is_sealed(&self) -> bool {
        self.due
    }

    /// Marks the waiting attributes to be sent. Returns a number for [`DeferredAttrs::is_done`].
    pub fn seal(&mut self) -> u64 {
        self.due = self.waiting.is_some();
        self.made
    }

    /// Whether all sealed attributes are completed.
    pub fn is_done(&self, sealed: u64) -> bool {
        self.done >= sealed
    }

    /// Whether [`DeferredAttrs::take`] would return attributes.
    pub fn is_due(&self) -> bool {
        self.due && self.waiting.is_some() && self.sent.is_none() && self.trouble.is_none()
    }

    /// Whether [`DeferredAttrs::take_free`] would return attributes.
    pub fn is_free(&self) -> bool {
        let free = |o: &Deferred| match o.set.mode {
            Some(_) => self.due || self.urgent,
            None => self.due && o.set.mtime.is_none(),
        };
        self.sent.is_none() && self.trouble.is_none() && self.waiting.as_ref().is_some_and(free)
    }

    /// Whether [`DeferredAttrs::take_free`] would return attributes for which a caller waits.
    pub fn is_pressing(&self) -> bool {
        self.is_urgent() && self.is_free()
    }

    /// Takes the attributes to be sent now.
    pub fn take(&mut self) -> Option<Deferred> {
        if !self.is_due() {
            return None;
        }
        self.take_all()
    }

    fn take_all(&mut self) -> Option<Deferred> {
        (self.due, self.urgent) = (false, false);
        self.sent = self.waiting.take();
        self.holds = self.sent.as_ref().is_some_and(|o| o.set.mtime.is_some());
        self.sent.clone()
    }

    /// Takes the attributes that are due and independent of bytes. The modification time keeps
    /// waiting.
    pub fn take_free(&mut self) -> Option<Deferred> {
        if !self.is_free() {
            return None;
        }
        let waiting = self.waiting.as_mut()?;
        if waiting.set.mtime.is_none() {
            return self.take_all();
        }
        let set = SetAttr { mtime: None, ..waiting.set.clone() };
        waiting.set = SetAttr { mtime: waiting.set.mtime, ..SetAttr::default() };
        // The number stays with the remaining part, which completes the change.
        self.sent = Some(Deferred { set, number: 0, seen: false, ..waiting.clone() });
        self.urgent = false;
        self.sent.clone()
    }

    /// Notes that the taken attributes are at the server. `attrs` are the attributes afterwards.
    pub fn landed(&mut self, now: Instant, attrs: Option<&Attrs>) {
        if let Some(sent) = self.arrived() {
            self.has(&sent.set, now, attrs);
        }
        self.backoff = None;
        self.settle();
    }

    fn arrived(&mut self) -> Option<Deferred> {
        (self.holds, self.given_up) = (false, false);
        let sent = self.sent.take()?;
        self.done = self.done.max(sent.number);
        Some(sent)
    }

    /// Notes that the server has got `set`, by a call that ends at `now`.
    pub fn has(&mut self, set: &SetAttr, now: Instant, attrs: Option<&Attrs>) {
        let time = |set: Option<SetTime>, theirs: Option<Time>| match (set?, theirs) {
            (_, Some(time)) => Some(SetTime::To(time)),
            (SetTime::Now, None) => None,
            (set, None) => Some(set),
        };
        let new = SetAttr {
            // A write may have cleared bits of a mode that was set before.
            mode: set.mode.or(self.landed.set.mode).map(|mode| attrs.map_or(mode, |a| a.attr.mode)),
            unmasked: None,
            atime: time(set.atime, attrs.map(|a| a.attr.atime)),
            mtime: time(set.mtime, attrs.map(|a| a.attr.mtime)),
            ..SetAttr::default()
        };
        if set.uid.is_some() || set.gid.is_some() {
            // A change of the owner may clear bits.
            self.landed.set.mode = None;
        }
        self.landed = Landed { set: over(&self.landed.set, &new), at: Some(now) };
    }

    /// Whether the taken attributes are a time that no program set.
    pub fn sends_seen_time(&self) -> bool {
        self.sent.as_ref().is_some_and(Deferred::is_seen_time)
    }

    /// Gives up the taken attributes after a permanent refusal.
    pub fn refused(&mut self) -> Option<Deferred> {
        let refused = self.arrived();
        self.settle();
        refused
    }

    /// Gives up a seen time among the taken attributes, and makes the others wait again. Returns
    /// the owner of the file; `None` when a program set all of the taken attributes, or none of
    /// them.
    pub fn refused_seen_time(&mut self) -> Option<Arc<Cred>> {
        let sent = self.sent.as_mut().filter(|o| o.seen && o.set.mtime.is_some() && !o.is_seen_time())?;
        sent.set.mtime = None;
        sent.seen = false;
        let owner = sent.by.cred.clone();
        self.failed();
        Some(owner)
    }

    /// Makes the taken attributes wait again.
    pub fn failed(&mut self) {
        if self.given_up {
            self.refused();
            return;
        }
        self.holds = false;
        if let Some(sent) = self.sent.take() {
            let newer = self.waiting.take();
            let at = newer.as_ref().map_or(sent.at, |o| o.at);
            let seen = newer.as_ref().filter(|o| o.set.mtime.is_some()).map_or(sent.seen, |o| o.seen);
            let set = over(&sent.set, &newer.map(|o| o.set).unwrap_or_default());
            if set != SetAttr::default() {
                self.waiting = Some(Deferred { set, at, seen, number: self.made, ..sent });
                self.due = true;
            }
        }
        self.settle();
    }

    /// Drops the waiting attributes.
    pub fn forget(&mut self) {
        self.waiting = None;
        self.settle();
    }

    /// Whether attributes are in flight.
    pub fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Whether a modification time is in flight, which a later write would change.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Removes the waiting attributes that a separate call with `set` supersedes. Returns them for
    /// [`DeferredAttrs::restore`].
    pub fn withdraw(&mut self, set: &SetAttr) -> Option<Deferred> {
        let deferred = self.waiting.as_mut()?;
        let whole = deferred.clone();
        let mut old = SetAttr::default();
        if set.mode.is_some() {
            old.mode = deferred.set.mode.take();
        }
        if set.atime.is_some() {
            old.atime = deferred.set.atime.take();
        }
        if set.mtime.is_some() || set.size_bytes.is_some() {
            old.mtime = deferred.set.mtime.take();
        }
        if deferred.set == SetAttr::default() {
            self.waiting = None;
            self.settle();
        }
        (old != SetAttr::default()).then_some(Deferred { set: old, number: 0, ..whole })
    }

    /// Makes withdrawn attributes wait again after that call failed, under newer ones.
    pub fn restore(&mut self, old: Deferred) {
        let newer = self.waiting.take();
        let seen = newer.as_ref().filter(|o| o.set.mtime.is_some()).map_or(old.seen, |o| o.seen);
        let newer = newer.map(|o| o.set).unwrap_or_default();
        self.wait(Deferred { set: over(&old.set, &newer), seen, ..old });
    }

    /// The waiting attributes.
    pub fn waiting(&self) -> Option<&Deferred> {
        self.waiting.as_ref()
    }

    fn settle(&mut self) {
        if self.is_none() {
            (self.done, self.due, self.urgent) = (self.made, false, false);
            (self.trouble, self.backoff) = (None, None);
        }
    }

    /// Adds delayed attributes, and those set after the request at the server, to its attributes.
    pub fn dress(&self, attrs: &mut Attrs) {
        let Landed { set, at } = &self.landed;
        if at.is_some_and(|at| attrs.asked <= at) {
            let to = |time: Option<SetTime>, theirs| match time {
                Some(SetTime::To(time)) => time,
                _ => theirs,
            };
            let attr = &mut attrs.attr;
            let had = (attr.mode, attr.atime, attr.mtime);
            attr.mode = set.mode.unwrap_or(attr.mode);
            (attr.atime, attr.mtime) = (to(set.atime, attr.atime), to(set.mtime, attr.mtime));
            if had != (attr.mode, attr.atime, attr.mtime) {
                attrs.valid = Validity::Once;
            }
        }
        for Deferred { set, at, .. } in [&self.sent, &self.waiting].into_iter().flatten() {
            let time = |t: SetTime| match t {
                SetTime::Now => *at,
                SetTime::To(t) => t,
            };
            let attr = &mut attrs.attr;
            attr.mode = set.mode.unwrap_or(attr.mode);
            attr.atime = set.atime.map_or(attr.atime, time);
            attr.mtime = set.mtime.map_or(attr.mtime, time);
            attr.ctime = attr.ctime.max(*at);
            attrs.valid = Validity::Once;
        }
    }
}

/// Merges `new` over `old`.
pub(super) fn over(old: &SetAttr, new: &SetAttr) -> SetAttr {
    SetAttr {
        mode: new.mode.or(old.mode),
        unmasked: None,
        uid: new.uid.or(old.uid),
        gid: new.gid.or(old.gid),
        size_bytes: new.size_bytes.or(old.size_bytes),
        atime: new.atime.or(old.atime),
        mtime: new.mtime.or(old.mtime),
    }
}
