//! Times of objects that programs saw before the server had the objects in that state.
//!
//! The module knows nothing of layers and of sending. A server sets the change time itself, and
//! some servers round the times that a client sets. The seen times are shown until the object
//! changes: until the server reports another change time than it had after the sending.

use hither_vfs::{Attrs, Fh, Time};
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
}

#[derive(Debug, Clone, Copy)]
struct Shown {
    number: u64,
    /// `None` when the server has the modification time that programs saw.
    mtime: Option<Time>,
    ctime: Time,
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
        let shown = Shown { number: self.last, mtime, ctime, sent: Instant::now(), theirs };
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
        self.objects.is_empty()
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
        let Some(shown) = self.objects.get_mut(fh) else { return };
        if attrs.asked > shown.sent && is_settled {
            let theirs = *shown.theirs.get_or_insert(attrs.attr.ctime);
            if theirs != attrs.attr.ctime {
                return self.forget(fh);
            }
        }
        attrs.attr.ctime = shown.ctime;
        attrs.attr.mtime = shown.mtime.unwrap_or(attrs.attr.mtime);
    }
}
