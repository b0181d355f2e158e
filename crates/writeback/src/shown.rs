//! Times of objects that programs saw before the server had the objects in that state.
//!
//! The module knows nothing of layers and of sending. A server sets the change time itself, and
//! some servers round the times that a client sets. The seen times are shown until the object
//! changes: until the server reports another change time than it had after the sending.
//!
//! While changes of a directory's names wait, the directory shows the times of the last change by a
//! program. The server has earlier times, or later ones after it executed some of the changes.

use crate::clock::next;
use hither_vfs::{Attrs, Fh, Time, Validity};
use std::collections::{BTreeMap, HashMap};
use tokio::time::Instant;

/// The most objects with remembered times. The oldest are dropped first.
const MAX: usize = 64 << 10;

/// The remembered times.
#[derive(Debug, Default)]
pub(crate) struct ShownTimes {
    objects: HashMap<Fh, Shown>,
    /// The objects by the number of their last [`ShownTimes::keep`].
    order: BTreeMap<u64, Fh>,
    last: u64,
    /// Directories with waiting changes of names. Their number is limited by that of the changes.
    waiting: HashMap<Fh, Waiting>,
}

/// The times and the change attribute of a directory after the last change by a program.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    mtime: Time,
    ctime: Time,
    change: u64,
}

#[derive(Debug, Clone, Copy)]
struct Shown {
    number: u64,
    /// `None` when the server has the modification time that programs saw.
    mtime: Option<Time>,
    /// `None` after a change of attributes at the server.
    ctime: Option<Time>,
    /// The time of sending. Answers to earlier requests have other times.
    sent: Instant,
    /// The server's change time of the same state, once known.
    theirs: Option<Time>,
}

impl ShownTimes {
    /// Remembers the times of an object that was sent just now. `theirs` is the change time that
    /// the server gave it, if known.
    pub fn keep(&mut self, fh: &Fh, mtime: Option<Time>, ctime: Time, theirs: Option<Time>) {
        self.forget(fh);
        self.last += 1;
        let shown = Shown { number: self.last, mtime, ctime: Some(ctime), sent: Instant::now(), theirs };
        self.objects.insert(fh.clone(), shown);
        self.order.insert(self.last, fh.clone());
        if self.order.len() > MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.objects.remove(&oldest);
        }
    }

    /// Whether no times are remembered.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.waiting.is_empty()
    }

    /// Notes that a program changed names of a directory, and that a change of its names waits.
    pub fn touch(&mut self, dir: &Fh, now: Time, change: u64) {
        let last = self.waiting.remove(dir);
        self.forget(dir);
        let now = last.map_or(now, |last| now.max(next(last.ctime)));
        self.keep_waiting(dir, (now, now), change);
    }

    /// Remembers modification and change time of a directory while changes of its names wait.
    pub fn keep_waiting(&mut self, dir: &Fh, (mtime, ctime): (Time, Time), change: u64) {
        self.waiting.insert(dir.clone(), Waiting { mtime, ctime, change });
    }

    /// Notes that a program changes attributes of an object at the server, but not its modification
    /// time.
    pub fn set_attributes(&mut self, fh: &Fh) {
        match self.objects.get_mut(fh) {
            Some(shown) if shown.mtime.is_some() => {
                *shown = Shown { sent: Instant::now(), theirs: None, ctime: None, ..*shown };
            }
            _ => self.forget(fh),
        }
    }

    /// Notes that a program changed attributes of a directory, if changes of its names wait.
    pub fn touch_attributes(&mut self, dir: &Fh, now: Time, change: u64) {
        if let Some(waiting) = self.waiting.get_mut(dir) {
            (waiting.ctime, waiting.change) = (now.max(next(waiting.ctime)), change);
        }
    }

    /// Notes that the server has, or refuses, all waiting changes of a directory.
    pub fn settle(&mut self, dir: &Fh) {
        match self.waiting.remove(dir) {
            Some(Waiting { mtime, ctime, .. }) => self.keep(dir, Some(mtime), ctime, None),
            None => self.sent_again(dir, None),
        }
    }

    /// Forgets an object that a program changes: the server's times apply from now on.
    pub fn forget(&mut self, fh: &Fh) {
        if let Some(shown) = self.objects.remove(fh) {
            self.order.remove(&shown.number);
        }
    }

    /// Notes that this client changed the object at the server just now, and that programs saw this
    /// change before. `mtime` replaces the modification time.
    pub fn sent_again(&mut self, fh: &Fh, mtime: Option<Time>) {
        if let Some(shown) = self.objects.get_mut(fh) {
            *shown = Shown { sent: Instant::now(), theirs: None, mtime: mtime.or(shown.mtime), ..*shown };
        }
    }

    /// Puts the remembered times into the server's attributes. `is_settled`: the server has all
    /// changes of the object that were requested before the answer.
    pub fn show(&mut self, fh: &Fh, attrs: &mut Attrs, is_settled: bool) {
        if let Some(Waiting { mtime, ctime, change }) = self.waiting.get(fh) {
            (attrs.attr.mtime, attrs.attr.ctime, attrs.attr.change) = (*mtime, *ctime, *change);
            attrs.valid = Validity::Once;
            return;
        }
        let Some(shown) = self.objects.get_mut(fh) else { return };
        if attrs.asked > shown.sent && is_settled {
            let theirs = *shown.theirs.get_or_insert(attrs.attr.ctime);
            if theirs != attrs.attr.ctime {
                return self.forget(fh);
            }
        }
        attrs.attr.ctime = shown.ctime.unwrap_or(attrs.attr.ctime);
        attrs.attr.mtime = shown.mtime.unwrap_or(attrs.attr.mtime);
    }
}
