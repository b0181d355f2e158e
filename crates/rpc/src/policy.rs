//! The times at which a call is sent again, and at which its caller learns that the server does not
//! answer.
//!
//! Pure arithmetic: time comes in as an argument. The terms are nfs(5)'s, and the times are those
//! of the Linux client over TCP: a call's first timeout is `timeo`, each further one is longer by
//! `timeo`, none is longer than 600 s; the *major* timeout is `timeo * (retrans + 1)` after the
//! call began, 600 s at most. At a minor timeout the call may be sent again; at the major timeout
//! a soft call fails, and a hard call starts over.

use std::time::Duration;
use tokio::time::Instant;

/// Longest timeout over TCP (nfs(5), `timeo`).
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// Shortest `timeo`: nfs(5) counts in tenths of a second.
const TIMEO_MIN: Duration = Duration::from_millis(100);

/// The action at the major timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Never give up.
    Hard,
    /// The call fails with EIO.
    Soft,
    /// The call fails with ETIMEDOUT.
    Softerr,
}

/// The mount's `timeo`, `retrans` and `hard`/`soft`/`softerr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// First timeout; nfs(5) counts it in tenths of a second. 100 ms to 600 s, else the nearest.
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

    /// From the beginning of a call to its major timeout.
    pub fn major_timeout(&self) -> Duration {
        self.first().saturating_mul(self.retrans.saturating_add(1)).min(TIMEOUT_MAX)
    }
}

/// Which timeout has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The call may be sent again.
    Minor,
    /// The server does not answer.
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
    /// Of a call that begins `now`.
    pub fn new(policy: RetryPolicy, now: Instant) -> Self {
        let current = policy.first();
        Self { policy, current, minor: now + current, major: now + policy.major_timeout() }
    }

    /// When to call [`Timeouts::expire`].
    pub fn next(&self) -> Instant {
        self.minor.min(self.major)
    }

    /// The passed timeouts; moves on; `None` before [`Timeouts::next`].
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

    /// The default mount: sent again after 60 s, given up (or started over) after 180 s.
    #[test]
    fn default_times_are_those_of_linux() {
        use Expiry::*;
        assert_eq!(events(60, 2, 4), [(60, Minor), (180, Major), (240, Minor), (360, Major)]);
    }

    /// Each timeout is longer than the one before by `timeo`.
    #[test]
    fn backoff_is_linear() {
        use Expiry::*;
        assert_eq!(events(1, 9, 4), [(1, Minor), (3, Minor), (6, Minor), (10, Major)]);
        assert_eq!(events(5, 0, 2), [(5, Major), (10, Major)]);
    }

    /// No timeout is longer than 600 s, whatever the configuration.
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
