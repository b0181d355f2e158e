//! Moments of the last lease withdrawals and local changes, by file. They judge attributes that a
//! layer above has known for some time. That layer may not have processed an event that this layer
//! has already seen.
//!
//! The moments of the last events are kept by file. Of the earlier events, only the latest moment
//! is kept, which counts for all files.

use hither_vfs::Fh;
use std::collections::{HashMap, VecDeque};
use tokio::time::Instant;

/// Events that are kept by file.
const MAX: usize = 1024;

/// Events of one kind.
#[derive(Debug, Default)]
pub(super) struct Moments {
    last: HashMap<Fh, Instant>,
    order: VecDeque<(Fh, Instant)>,
    of_all: Option<Instant>,
}

impl Moments {
    /// Records an event of a file.
    pub fn note(&mut self, fh: &Fh, at: Instant) {
        self.last.insert(fh.clone(), at);
        if let Some((_, last)) = self.order.back_mut().filter(|(last, _)| last == fh) {
            // Consecutive events of one file, such as writes, do not displace events of other
            // files.
            *last = at;
            return;
        }
        self.order.push_back((fh.clone(), at));
        if self.order.len() > MAX
            && let Some((fh, at)) = self.order.pop_front()
        {
            if self.last.get(&fh) == Some(&at) {
                self.last.remove(&fh);
            }
            self.of_all = self.of_all.max(Some(at));
        }
    }

    /// Records an event of all files.
    pub fn note_all(&mut self, at: Instant) {
        *self = Self { of_all: Some(at), ..Self::default() };
    }

    /// The last event that may concern a file.
    pub fn since(&self, fh: &Fh) -> Option<Instant> {
        self.last.get(fh).copied().max(self.of_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn fh(n: usize) -> Fh {
        Fh(n.to_string().into())
    }

    /// The latest withdrawals are known by file. An older, dropped withdrawal counts for every
    /// file.
    #[test]
    fn dropped_withdrawals_count_for_all() {
        let (start, mut all) = (Instant::now(), Moments::default());
        let at = |n: usize| start + Duration::from_millis(n as u64);
        assert_eq!(all.since(&fh(1)), None);
        (0..MAX).for_each(|n| all.note(&fh(n), at(n)));
        assert_eq!((all.since(&fh(7)), all.since(&fh(MAX))), (Some(at(7)), None));
        // Of two events the later one counts, also after the earlier one was dropped.
        all.note(&fh(0), at(MAX));
        assert_eq!((all.since(&fh(0)), all.since(&fh(MAX))), (Some(at(MAX)), Some(at(0))));
        (MAX + 1..=MAX + 10).for_each(|n| all.note(&fh(n), at(n)));
        assert_eq!(all.since(&fh(3)), Some(at(10)));
        assert_eq!((all.last.len(), all.order.len()), (MAX, MAX));
        (0..MAX).for_each(|n| all.note(&fh(5), at(2000 + n)));
        assert_eq!((all.since(&fh(5)), all.since(&fh(4))), (Some(at(1999 + MAX)), Some(at(11))));
        all.note_all(at(5000));
        assert_eq!((all.since(&fh(0)), all.last.len(), all.order.len()), (Some(at(5000)), 0, 0));
    }
}
