//! Attributes that a program set and the server does not have yet: they go with the last bytes.
//!
//! It knows nothing of how they are sent. Only the one who created the file, as long as the open
//! that created it lasts and the file is his by the server's own word, and only what the server is
//! certain to grant to a file's owner, may wait: times that every server can keep, and permissions
//! that take nothing away from anybody and have no set-id or sticky bits. So what tar(1) and cp(1)
//! set on the files they make costs no call of its own. What takes rights away, gives the file to
//! somebody else, changes its length or asks for the server's time as modification time is never
//! delayed; nor is what changes nothing, unless something goes to the server anyway.
//!
//! In a program's order: bytes written later make a modification time that was set before void, and
//! are not sent beside it; setting attributes again goes over what waits, and then bytes written in
//! between are sent before; whatever else needs the server to have the file ([`super`], "Order")
//! sends these, too. Permissions and access times have no order to bytes: when they are to be sent
//! and bytes are in the way of a modification time, they go alone, side by side with those, and so
//! they do for whoever needs them (`pay.rs`). With the first fsync or close the creator's privilege
//! ends.
//!
//! What the server has got is remembered: an answer to a question from before may lack it
//! ([`Landed`]).

use hither_vfs::{Attrs, Cred, Error, OpenId, SetAttr, SetTime, Time, Validity};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Who created a file, for as long as he has it open.
#[derive(Debug, Clone)]
pub(super) struct Creator {
    pub cred: Arc<Cred>,
    pub open: OpenId,
}

/// Attributes that wait.
#[derive(Debug, Clone)]
pub(super) struct Owed {
    pub set: SetAttr,
    pub by: Creator,
    /// Since when, the first of them.
    pub since: Instant,
    /// The same by the local clock: shown as the time of the change.
    at: Time,
    number: u64,
}

/// Attributes that were set at the server by a call of ours that ended at that moment: answers to
/// questions from before may be older.
#[derive(Debug, Default)]
struct Landed {
    set: SetAttr,
    at: Option<Instant>,
}

/// All that waits for one file.
#[derive(Debug, Default)]
pub(super) struct Owing {
    creator: Option<Creator>,
    waiting: Option<Owed>,
    /// On its way.
    sent: Option<Owed>,
    landed: Landed,
    /// It is time to send what waits.
    due: bool,
    /// Somebody waits for the permissions: they go at once, whatever becomes of the bytes.
    urgent: bool,
    /// What is on its way sets the modification time: no bytes beside it.
    holds: bool,
    /// What is on its way is not to be sent again: nobody is left who would hear of it.
    given_up: bool,
    /// The last try failed for now: it is of no use to try again before that moment. Bytes know
    /// nothing of it.
    trouble: Option<(Error, Instant)>,
    backoff: Option<Duration>,
    /// Number of the last change that waited, and of the last one that does no more.
    made: u64,
    done: u64,
}

impl Owing {
    /// The file was created through this open.
    pub fn created(&mut self, cred: Arc<Cred>, open: OpenId) {
        self.creator = Some(Creator { cred, open });
    }

    /// An open is closed, or what was done through it until now is to be at the server: nothing new
    /// waits.
    pub fn closed(&mut self, open: OpenId) {
        if self.creator.as_ref().is_some_and(|c| c.open == open) {
            self.creator = None;
        }
    }

    /// Nothing waits or is on its way.
    pub fn is_none(&self) -> bool {
        self.waiting.is_none() && self.sent.is_none()
    }

    /// Whether permissions wait.
    pub fn has_mode(&self) -> bool {
        [&self.waiting, &self.sent].into_iter().flatten().any(|o| o.set.mode.is_some())
    }

    /// Whether permissions are on their way, or are to be at once.
    pub fn mode_goes(&self) -> bool {
        self.sent.as_ref().is_some_and(|o| o.set.mode.is_some()) || self.is_urgent()
    }

    /// Permissions that wait go at once.
    pub fn urge(&mut self) {
        self.urgent = true;
        self.urgent = self.is_urgent();
        if self.urgent {
            self.trouble = None;
        }
    }

    /// The last try failed for now; `first` and `most` bound how long it is of no use. Returns the
    /// moment of the next one.
    pub fn troubled(&mut self, e: Error, now: Instant, first: Duration, most: Duration) -> Instant {
        let pause = self.backoff.map_or(first, |b| (b * 2).min(most));
        self.backoff = Some(pause);
        self.trouble = Some((e, now + pause));
        now + pause
    }

    /// Why what waits is not sent for now.
    pub fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref().map(|(e, _)| e)
    }

    /// It may be tried again: at once, or when its time has come.
    pub fn retry(&mut self, now: Option<Instant>) {
        if self.trouble.as_ref().is_some_and(|(_, at)| now.is_none_or(|now| *at <= now)) {
            self.trouble = None;
        }
    }

    /// Whether a modification time waits or is on its way.
    pub fn is_mtime_near(&self) -> bool {
        self.holds || self.waiting.as_ref().is_some_and(|o| o.set.mtime.is_some())
    }

    /// Whether permissions that waited have got to the server since then.
    pub fn mode_landed_since(&self, since: Instant) -> bool {
        self.landed.set.mode.is_some() && self.landed.at.is_some_and(|at| at >= since)
    }

    /// What was set through `open` is given up, and what is on its way is not sent again.
    pub fn give_up(&mut self, open: OpenId) {
        self.given_up |= self.sent.as_ref().is_some_and(|o| o.by.open == open);
        if self.waiting.as_ref().is_some_and(|o| o.by.open == open) {
            self.forget();
        }
    }

    fn is_urgent(&self) -> bool {
        self.urgent && self.waiting.as_ref().is_some_and(|o| o.set.mode.is_some())
    }

    /// Whether a modification time is shown that the server will have.
    pub fn has_mtime(&self) -> bool {
        self.waiting.as_ref().is_some_and(|o| matches!(o.set.mtime, Some(SetTime::To(_))))
    }

    /// Since when something waits.
    pub fn since(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|o| o.since)
    }

    /// The part of `set` that has to be sent, when all of it may wait; `now` are the attributes as
    /// they are shown, `dirty` tells whether bytes are to be sent anyway.
    pub fn may_wait(&self, cred: &Arc<Cred>, set: &SetAttr, now: &Attrs, dirty: bool) -> Option<SetAttr> {
        let creator = self.creator.as_ref()?;
        let attr = &now.attr;
        let others = [&self.waiting, &self.sent].into_iter().flatten().any(|o| o.by.cred != *cred);
        let mine = creator.cred == *cred && attr.uid == cred.uid && !others;
        let takes_away = set.mode.is_some_and(|mode| attr.mode & 0o777 & !mode != 0);
        // Servers clear and refuse these as they think fit.
        let special = set.mode.is_some_and(|mode| (mode | attr.mode) & !0o777 != 0);
        // Its own clock is what others compare with; not every server can keep every time.
        let odd = |t: SetTime| matches!(t, SetTime::To(t) if !(0..=i64::from(i32::MAX)).contains(&t.secs));
        let times = set.mtime == Some(SetTime::Now) || [set.atime, set.mtime].into_iter().flatten().any(odd);
        let gives = set.uid.is_some_and(|uid| uid != attr.uid) || set.gid.is_some_and(|gid| gid != attr.gid);
        // Being given to its owner clears what these bits say.
        let clears = (set.uid.is_some() || set.gid.is_some()) && attr.mode & 0o6000 != 0;
        if !mine || set.size_bytes.is_some() || takes_away || special || times || gives || clears {
            return None;
        }
        let set = SetAttr { uid: None, gid: None, ..set.clone() };
        let changes = set.mode.is_some_and(|mode| mode != attr.mode) || set.atime.or(set.mtime).is_some();
        (changes || dirty || self.waiting.is_some()).then_some(set)
    }

    /// Keeps `set`, over what waits already.
    pub fn add(&mut self, set: &SetAttr, now: Instant, at: Time) {
        let Some(by) = self.creator.clone() else { return };
        let since = self.waiting.as_ref().map_or(now, |o| o.since);
        let old = self.waiting.take().map(|o| o.set).unwrap_or_default();
        self.wait(Owed { set: over(&old, set), by, since, at, number: 0 });
    }

    fn wait(&mut self, owed: Owed) {
        if owed.set != SetAttr::default() {
            self.made += 1;
            self.waiting = Some(Owed { number: self.made, ..owed });
        }
    }

    /// Bytes were written or cut: what was set before is not the modification time any more.
    pub fn modified(&mut self) {
        self.landed.set.mtime = None;
        if let Some(sent) = &mut self.sent {
            sent.set.mtime = None;
        }
        if let Some(owed) = &mut self.waiting {
            owed.set.mtime = None;
            if owed.set == SetAttr::default() {
                self.waiting = None;
                self.settle();
            }
        }
    }

    /// Whether what waits is to be sent already.
    pub fn is_sealed(&self) -> bool {
        self.due
    }

    /// What waits is to be sent; returns a number for [`Owing::is_done`].
    pub fn seal(&mut self) -> u64 {
        self.due = self.waiting.is_some();
        self.made
    }

    /// Whether nothing of what was sealed is left.
    pub fn is_done(&self, sealed: u64) -> bool {
        self.done >= sealed
    }

    /// Whether [`Owing::take`] would take something.
    pub fn is_due(&self) -> bool {
        self.due && self.waiting.is_some() && self.sent.is_none() && self.trouble.is_none()
    }

    /// Whether [`Owing::take_free`] would take something.
    pub fn is_free(&self) -> bool {
        let free = |o: &Owed| match o.set.mode {
            Some(_) => self.due || self.urgent,
            None => self.due && o.set.mtime.is_none(),
        };
        self.sent.is_none() && self.trouble.is_none() && self.waiting.as_ref().is_some_and(free)
    }

    /// Whether [`Owing::take_free`] would take something that somebody waits for.
    pub fn is_pressing(&self) -> bool {
        self.is_urgent() && self.is_free()
    }

    /// What is to be sent now.
    pub fn take(&mut self) -> Option<Owed> {
        if !self.is_due() {
            return None;
        }
        self.take_all()
    }

    fn take_all(&mut self) -> Option<Owed> {
        (self.due, self.urgent) = (false, false);
        self.sent = self.waiting.take();
        self.holds = self.sent.as_ref().is_some_and(|o| o.set.mtime.is_some());
        self.sent.clone()
    }

    /// What is to be sent now and has no order to bytes: without the modification time, which waits
    /// on.
    pub fn take_free(&mut self) -> Option<Owed> {
        if !self.is_free() {
            return None;
        }
        let waiting = self.waiting.as_mut()?;
        if waiting.set.mtime.is_none() {
            return self.take_all();
        }
        let set = SetAttr { mtime: None, ..waiting.set.clone() };
        waiting.set = SetAttr { mtime: waiting.set.mtime, ..SetAttr::default() };
        // What has the number is done with the rest.
        self.sent = Some(Owed { set, number: 0, ..waiting.clone() });
        self.urgent = false;
        self.sent.clone()
    }

    /// What was taken is at the server; `attrs` are those afterwards.
    pub fn landed(&mut self, now: Instant, attrs: Option<&Attrs>) {
        if let Some(sent) = self.arrived() {
            self.has(&sent.set, now, attrs);
        }
        self.backoff = None;
        self.settle();
    }

    fn arrived(&mut self) -> Option<Owed> {
        (self.holds, self.given_up) = (false, false);
        let sent = self.sent.take()?;
        self.done = self.done.max(sent.number);
        Some(sent)
    }

    /// The server has got `set`, by a call that ends `now`.
    pub fn has(&mut self, set: &SetAttr, now: Instant, attrs: Option<&Attrs>) {
        let time = |set: Option<SetTime>, theirs: Option<Time>| match (set?, theirs) {
            (_, Some(time)) => Some(SetTime::To(time)),
            (SetTime::Now, None) => None,
            (set, None) => Some(set),
        };
        let new = SetAttr {
            // What was set before may have lost bits to a write.
            mode: set.mode.or(self.landed.set.mode).map(|mode| attrs.map_or(mode, |a| a.attr.mode)),
            atime: time(set.atime, attrs.map(|a| a.attr.atime)),
            mtime: time(set.mtime, attrs.map(|a| a.attr.mtime)),
            ..SetAttr::default()
        };
        if set.uid.is_some() || set.gid.is_some() {
            // Being given to somebody may clear bits.
            self.landed.set.mode = None;
        }
        self.landed = Landed { set: over(&self.landed.set, &new), at: Some(now) };
    }

    /// What was taken is refused for good.
    pub fn refused(&mut self) {
        self.arrived();
        self.settle();
    }

    /// What was taken is to be sent again.
    pub fn failed(&mut self) {
        if self.given_up {
            return self.refused();
        }
        self.holds = false;
        if let Some(sent) = self.sent.take() {
            let newer = self.waiting.take();
            let at = newer.as_ref().map_or(sent.at, |o| o.at);
            let set = over(&sent.set, &newer.map(|o| o.set).unwrap_or_default());
            if set != SetAttr::default() {
                self.waiting = Some(Owed { set, at, number: self.made, ..sent });
                self.due = true;
            }
        }
        self.settle();
    }

    /// Nobody needs what waits any more, or it was sent in another way.
    pub fn forget(&mut self) {
        self.waiting = None;
        self.settle();
    }

    /// Something is on its way.
    pub fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// A modification time is on its way: what is written later would spoil it.
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// A call of its own sets `set` now: what waits of the same attributes is older. Returns it,
    /// for [`Owing::restore`].
    pub fn withdraw(&mut self, set: &SetAttr) -> Option<Owed> {
        let owed = self.waiting.as_mut()?;
        let (by, since, at) = (owed.by.clone(), owed.since, owed.at);
        let mut old = SetAttr::default();
        if set.mode.is_some() {
            old.mode = owed.set.mode.take();
        }
        if set.atime.is_some() {
            old.atime = owed.set.atime.take();
        }
        if set.mtime.is_some() || set.size_bytes.is_some() {
            old.mtime = owed.set.mtime.take();
        }
        if owed.set == SetAttr::default() {
            self.waiting = None;
            self.settle();
        }
        (old != SetAttr::default()).then_some(Owed { set: old, by, since, at, number: 0 })
    }

    /// That call failed: what was withdrawn waits again, under what was set since.
    pub fn restore(&mut self, old: Owed) {
        let newer = self.waiting.take().map(|o| o.set).unwrap_or_default();
        self.wait(Owed { set: over(&old.set, &newer), ..old });
    }

    /// What waits, when it goes with a call of its own.
    pub fn waiting(&self) -> Option<&Owed> {
        self.waiting.as_ref()
    }

    fn settle(&mut self) {
        if self.is_none() {
            (self.done, self.due, self.urgent) = (self.made, false, false);
            (self.trouble, self.backoff) = (None, None);
        }
    }

    /// Puts what the server does not have yet, or had not when it was asked, over its attributes.
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
        for Owed { set, at, .. } in [&self.sent, &self.waiting].into_iter().flatten() {
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

/// `new` over `old`.
pub(super) fn over(old: &SetAttr, new: &SetAttr) -> SetAttr {
    SetAttr {
        mode: new.mode.or(old.mode),
        uid: new.uid.or(old.uid),
        gid: new.gid.or(old.gid),
        size_bytes: new.size_bytes.or(old.size_bytes),
        atime: new.atime.or(old.atime),
        mtime: new.mtime.or(old.mtime),
    }
}
