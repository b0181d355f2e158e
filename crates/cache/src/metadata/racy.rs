//! Recent changes, after which the next change may have the same `change`. This concerns servers
//! that make `change` from a clock.
//!
//! This module knows nothing of the consequences. The age of an object is judged by the local
//! clock. If the server's clock is behind, the server's clock counts. Local changes show the
//! difference, because they have just been made.

use super::MetadataCache;
use super::moment::Moment;
use super::objects::Object;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::SystemTime;

/// Age below which another change of an object may leave `change` as it is, in seconds after its
/// ctime.
const RACY_S: i64 = 5;
/// For so long a measured clock difference is used, in nanoseconds.
const SHOWN_NANOS: u64 = 600_000_000_000;

/// How far the server's clock is ahead of the local clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    ahead_secs: AtomicI64,
    /// When the difference was measured; 0: never.
    at: AtomicU64,
}

impl ServerClock {
    /// Takes the ctime of an object that has just been changed. A call that changed nothing shows
    /// an older ctime, so the largest difference counts.
    pub fn shown(&self, ctime_secs: i64, wall_secs: i64, now: Moment) {
        let (ahead, at) = (ctime_secs.saturating_sub(wall_secs), self.at.load(Ordering::Relaxed));
        if at == 0 || ahead >= self.ahead_secs.load(Ordering::Relaxed) || now > at.saturating_add(SHOWN_NANOS)
        {
            self.ahead_secs.store(ahead, Ordering::Relaxed);
            self.at.store(now, Ordering::Relaxed);
        }
    }

    /// Whether an object with this ctime may have changed within the last seconds. A ctime in the
    /// future counts as recent: the server's clock is ahead.
    fn is_racy(&self, ctime_secs: i64, wall_secs: i64) -> bool {
        let behind = self.ahead_secs.load(Ordering::Relaxed).min(0);
        ctime_secs.saturating_add(RACY_S) > wall_secs.saturating_add(behind)
    }
}

impl MetadataCache {
    /// Whether the next change of the object may have the same `change` value.
    pub(super) fn is_racy(&self, object: &Object) -> bool {
        self.options.coarse_change
            && object.asked != 0
            && self.server_clock.is_racy(object.attr.ctime_secs(), self.wall_secs())
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

    /// A recent change is recognised, whichever clock is behind.
    /// Promise: 8
    #[test]
    fn recent_change_is_young() {
        let clock = ServerClock::default();
        assert!(clock.is_racy(1000, 1000) && clock.is_racy(1000, 1004) && !clock.is_racy(1000, 1005));
        assert!(clock.is_racy(1060, 1000), "the server is ahead");
        clock.shown(1000, 1060, 1);
        assert!(clock.is_racy(1000, 1064) && !clock.is_racy(1000, 1065), "it is behind");
        clock.shown(10, 1060, 2);
        assert!(clock.is_racy(1000, 1064) && !clock.is_racy(1000, 1065), "nothing was changed");
        clock.shown(1058, 1060, SHOWN_NANOS + 9);
        assert!(!clock.is_racy(1000, 1064), "it was set");
    }
}
