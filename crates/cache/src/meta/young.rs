//! What changed so recently that the next change may have the same `change`, where servers make
//! that of a clock.
//!
//! It knows nothing of what follows from that. Whether something is young is judged by the local
//! clock and, where the server's is behind, by that one: changes of our own show it, because they
//! have just been made.

use super::Meta;
use super::moment::Moment;
use super::objects::Object;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::SystemTime;

/// An object whose ctime is this young may change again without its `change` telling.
const YOUNG_S: i64 = 5;
/// For so long the server's clock is believed to be as far from ours as it was.
const SHOWN_NANOS: u64 = 600_000_000_000;

/// How far the server's clock is ahead of ours.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    ahead_secs: AtomicI64,
    /// When that was shown; 0: never.
    at: AtomicU64,
}

impl ServerClock {
    /// Something that has just changed has this ctime. (A call that changed nothing after all shows
    /// an older one: the latest counts.)
    pub fn shown(&self, ctime_secs: i64, wall_secs: i64, now: Moment) {
        let (ahead, at) = (ctime_secs.saturating_sub(wall_secs), self.at.load(Ordering::Relaxed));
        if at == 0 || ahead >= self.ahead_secs.load(Ordering::Relaxed) || now > at.saturating_add(SHOWN_NANOS)
        {
            self.ahead_secs.store(ahead, Ordering::Relaxed);
            self.at.store(now, Ordering::Relaxed);
        }
    }

    /// Whether what has this ctime may have changed within the last seconds. What seems to come
    /// from the future may: the server's clock is ahead.
    fn is_young(&self, ctime_secs: i64, wall_secs: i64) -> bool {
        let behind = self.ahead_secs.load(Ordering::Relaxed).min(0);
        ctime_secs.saturating_add(YOUNG_S) > wall_secs.saturating_add(behind)
    }
}

impl Meta {
    /// Whether the next change may have the same `change` value.
    pub(super) fn is_young(&self, object: &Object) -> bool {
        self.options.coarse_change
            && object.asked != 0
            && self.server_clock.is_young(object.attr.ctime_secs(), self.wall_secs())
    }

    /// Seconds since 1970.
    pub(super) fn wall_secs(&self) -> i64 {
        let since = (self.env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever clock is behind.
    /// Promise: 8
    #[test]
    fn what_has_just_changed_is_young() {
        let clock = ServerClock::default();
        assert!(clock.is_young(1000, 1000) && clock.is_young(1000, 1004) && !clock.is_young(1000, 1005));
        assert!(clock.is_young(1060, 1000), "the server is ahead");
        clock.shown(1000, 1060, 1);
        assert!(clock.is_young(1000, 1064) && !clock.is_young(1000, 1065), "it is behind");
        clock.shown(10, 1060, 2);
        assert!(clock.is_young(1000, 1064) && !clock.is_young(1000, 1065), "nothing was changed");
        clock.shown(1058, 1060, SHOWN_NANOS + 9);
        assert!(!clock.is_young(1000, 1064), "it was set");
    }
}
