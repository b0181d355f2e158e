//! The times at which a call is sent again, and at which it fails for lack of an answer.
//!
//! This module is pure arithmetic: the time is an argument. The terms are those of nfs(5), the
//! times those of the Linux client over TCP. A call's first timeout is `timeo`. Each further
//! timeout is longer by `timeo`, up to 600 s. The *major* timeout is `timeo * (retrans + 1)` after
//! the start of the call, at most 600 s. At a minor timeout the call may be sent again. At the
//! major timeout a soft call fails, and a hard call starts its timeouts again.

use std::time::Duration;
use tokio::time::Instant;

/// Longest timeout over TCP (nfs(5), `timeo`).
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// Shortest `timeo`: nfs(5) counts in tenths of a second.
const TIMEO_MIN: Duration = Duration::from_millis(100);

/// The action at the major timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The call waits without limit.
    Hard,
    /// The call fails with EIO.
    Soft,
    /// The call fails with ETIMEDOUT.
    Softerr,
}

/// The mount's `timeo`, `retrans` and `hard`/`soft`/`softerr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// First timeout, 100 ms to 600 s. A value outside becomes the nearest bound. nfs(5) counts it
    /// in tenths of a second.
    pub timeo: Duration,
    /// Retries before the major timeout.
    pub retrans: u32,
    /// The action at the major timeout.
    pub mode: Mode,
}

impl Default for RetryPolicy {
    /// nfs(5) defaults over TCP: `hard,timeo=600,retrans=2`.
    fn default() -> Self {
        Self { timeo: Duration::from_secs(60), retrans: 2, mode: Mode::Hard }
    }
}

impl RetryPolicy {
    /// `timeo` within its bounds.
    pub(crate) fn first(&self) -> Duration {
        self.timeo.clamp(TIMEO_MIN, TIMEOUT_MAX)
    }

    /// Time from the start of a call to its major timeout.
    pub fn major_timeout(&self) -> Duration {
        self.first().saturating_mul(self.retrans.saturating_add(1)).min(TIMEOUT_MAX)
    }
}

/// Which timeout has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// At this timeout the call may be sent again.
    Minor,
    /// At this timeout the server counts as not answering.
    Major,
}

/// The timeouts of one call.
#[derive(Debug)]
pub(crate) struct Timeouts {
    policy: RetryPolicy,
    current: Duration,
    minor: Instant,
    major: Instant,
}

impl Timeouts {
    /// The timeouts of a call that starts at `now`.
    pub fn new(policy: RetryPolicy, now: Instant) -> Self {
        let current = policy.first();
        Self { policy, current, minor: now + current, major: now + policy.major_timeout() }
    }

    /// When [`Timeouts::expire`] is due.
    pub fn next(&self) -> Instant {
        self.minor.min(self.major)
    }

    /// Returns the timeout that passed by `now` and sets the next one. `None` before
    /// [`Timeouts::next`].
    pub fn expire(&mut self, now: Instant) -> Option<Expiry> {
        if now >= self.major {
            *self = Self::new(self.policy, now);
            return Some(Expiry::Major);
        }
        if now >= self.minor {
            self.current = (self.current + self.policy.first()).min(TIMEOUT_MAX);
            self.minor = now + self.current;
            return Some(Expiry::Minor);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(timeo_s: u64, retrans: u32, count: usize) -> Vec<(u64, Expiry)> {
        let policy = RetryPolicy { timeo: Duration::from_secs(timeo_s), retrans, mode: Mode::Hard };
        let start = Instant::now();
        let mut t = Timeouts::new(policy, start);
        let mut out = Vec::new();
        for _ in 0..count {
            let at = t.next();
            assert_eq!(t.expire(at - Duration::from_nanos(1)), None, "not before its time");
            out.push(((at - start).as_secs(), t.expire(at).unwrap()));
        }
        out
    }

    /// The default mount retransmits after 60 s. It fails, or starts again, after 180 s.
    #[test]
    fn default_times_match_linux() {
        use Expiry::*;
        assert_eq!(events(60, 2, 4), [(60, Minor), (180, Major), (240, Minor), (360, Major)]);
    }

    /// Each timeout is longer than the previous one by `timeo`.
    #[test]
    fn backoff_is_linear() {
        use Expiry::*;
        assert_eq!(events(1, 9, 4), [(1, Minor), (3, Minor), (6, Minor), (10, Major)]);
        assert_eq!(events(5, 0, 2), [(5, Major), (10, Major)]);
    }

    /// No timeout exceeds 600 s under any configuration.
    #[test]
    fn timeouts_are_capped() {
        use Expiry::*;
        assert_eq!(events(400, 5, 2), [(400, Minor), (600, Major)]);
        assert_eq!(events(100_000, u32::MAX, 1), [(600, Major)]);
        assert_eq!(events(0, 0, 1), [(0, Major)]);
        assert_eq!(
            RetryPolicy { timeo: Duration::ZERO, retrans: 0, mode: Mode::Soft }.major_timeout(),
            TIMEO_MIN
        );
    }
}
