//! Shortages of descriptors, of memory, and of room for opens and locks.
//!
//! Calls get "try later" while a shortage may pass, and an error when the shortage lasts. The log
//! has one message a minute, independent of the number of calls. The state belongs to the process:
//! all servers in the process share it.

use hither_vfs::Error;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// For how long calls get "try later".
const PATIENCE: Duration = Duration::from_secs(15);
/// After this time without a shortage, the next shortage counts as a new one.
const OVER_AFTER: Duration = Duration::from_secs(60);
/// Least time between two log messages.
const TOLD_EVERY: Duration = Duration::from_secs(60);

static NOW: Mutex<Scarcity> = Mutex::new(Scarcity { since: None, last: None, told: None });
/// Whether `NOW` records a current shortage.
static IS_SCARCE: AtomicBool = AtomicBool::new(false);
static TIMES: AtomicU64 = AtomicU64::new(0);

struct Scarcity {
    since: Option<Instant>,
    last: Option<Instant>,
    told: Option<Instant>,
}

impl Scarcity {
    /// Records a shortage. Returns whether calls should now fail, and whether to log a message.
    fn met(&mut self, now: Instant) -> (bool, bool) {
        let again = self.last.is_some_and(|last| now.saturating_duration_since(last) < OVER_AFTER);
        let since = *self.since.get_or_insert(now);
        let since = if again { since } else { now };
        (self.since, self.last) = (Some(since), Some(now));
        let tell = self.told.is_none_or(|told| now.saturating_duration_since(told) >= TOLD_EVERY);
        if tell {
            self.told = Some(now);
        }
        (now.saturating_duration_since(since) >= PATIENCE, tell)
    }
}

/// Whether an error reports a shortage.
pub(crate) fn is_one(e: &Error) -> bool {
    matches!(e.errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}

/// Records a shortage. Returns true when the shortage has lasted so long that calls should fail.
pub(crate) fn has_lasted(e: &Error) -> bool {
    let (lasted, tell) = NOW.lock().met(Instant::now());
    IS_SCARCE.store(true, Relaxed);
    TIMES.fetch_add(1, Relaxed);
    if tell {
        let what = match e.errno {
            libc::ENOMEM => "memory is short",
            _ => {
                "too many files are open for the limit of descriptors (RLIMIT_NOFILE, in systemd LimitNOFILE)"
            }
        };
        tracing::warn!("{what}; calls are delayed, and fail after a while: {e}");
    }
    lasted
}

/// The number of shortages that calls met.
pub(crate) fn times() -> u64 {
    TIMES.load(Relaxed)
}

/// The time since the current shortage began.
pub(crate) fn lasts() -> Duration {
    let since = NOW.lock().since;
    since.map_or(Duration::ZERO, |since| since.elapsed())
}

/// Records the end of a shortage.
pub(crate) fn is_over() {
    if IS_SCARCE.swap(false, Relaxed) {
        NOW.lock().since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a shortage calls get "try later" for 15 seconds, and then fail. The log gets at most one
    /// message a minute.
    #[test]
    fn shortage_delays_calls_before_failure() {
        let (mut it, begun) = (Scarcity { since: None, last: None, told: None }, Instant::now());
        let mut at = |ms: u64| it.met(begun + Duration::from_millis(ms));
        assert_eq!(at(0), (false, true));
        assert_eq!(at(14_000), (false, false));
        assert_eq!(at(15_000), (true, false));
        assert_eq!(at(59_000), (true, false));
        assert_eq!(at(61_000), (true, true));
        // A new shortage.
        assert_eq!(at(200_000), (false, true));
        it.since = None;
        assert_eq!(it.met(begun + Duration::from_secs(220)), (false, false));
        assert_eq!(it.met(begun + Duration::from_secs(236)), (true, false));
    }
}
