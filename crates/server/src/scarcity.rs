//! What there is not enough of: descriptors, memory, room for opens and locks.
//!
//! Clients are told to come back while it may pass, and that it failed when it does not. The log
//! hears of it once a minute, whoever asks how often. It is about the process, so there is one for
//! all servers in it.

use hither_vfs::Error;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// How long clients are told to come back.
const PATIENCE: Duration = Duration::from_secs(15);
/// When nothing was scarce for so long, the next time is another one.
const OVER_AFTER: Duration = Duration::from_secs(60);
/// How often the log hears of it.
const TOLD_EVERY: Duration = Duration::from_secs(60);

static NOW: Mutex<Scarcity> = Mutex::new(Scarcity { since: None, last: None, told: None });
/// Whether `NOW` says that something is scarce.
static IS_SCARCE: AtomicBool = AtomicBool::new(false);
static TIMES: AtomicU64 = AtomicU64::new(0);

struct Scarcity {
    since: Option<Instant>,
    last: Option<Instant>,
    told: Option<Instant>,
}

impl Scarcity {
    /// Something was not there. Returns whether to give up, and whether to tell the log.
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

/// Whether an error says that something is used up.
pub(crate) fn is_one(e: &Error) -> bool {
    matches!(e.errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM)
}

/// Something is used up. Returns whether that has lasted: then it is not worth coming back.
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

/// How often something was used up.
pub(crate) fn times() -> u64 {
    TIMES.load(Relaxed)
}

/// For how long that lasts.
pub(crate) fn lasts() -> Duration {
    let since = NOW.lock().since;
    since.map_or(Duration::ZERO, |since| since.elapsed())
}

/// There was enough again.
pub(crate) fn is_over() {
    if IS_SCARCE.swap(false, Relaxed) {
        NOW.lock().since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_back_for_a_while_and_the_log_is_told_now_and_then() {
        let (mut it, begun) = (Scarcity { since: None, last: None, told: None }, Instant::now());
        let mut at = |ms: u64| it.met(begun + Duration::from_millis(ms));
        assert_eq!(at(0), (false, true));
        assert_eq!(at(14_000), (false, false));
        assert_eq!(at(15_000), (true, false));
        assert_eq!(at(59_000), (true, false));
        assert_eq!(at(61_000), (true, true));
        // Another time.
        assert_eq!(at(200_000), (false, true));
        it.since = None;
        assert_eq!(it.met(begun + Duration::from_secs(220)), (false, false));
        assert_eq!(it.met(begun + Duration::from_secs(236)), (true, false));
    }
}
