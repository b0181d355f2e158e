//! When a call is sent again and when its caller is told that the server does not answer.
//!
//! Pure arithmetic: time comes in as an argument. The terms are nfs(5)'s, and the times are those
//! of the Linux client over TCP: a call's first timeout is `timeo`, each further one is longer by
//! `timeo`, none is longer than 600 s; the *major* timeout is `timeo * (retrans + 1)` after the
//! call began, 600 s at most. At a minor timeout the call may be sent again; at the major timeout
//! a soft call fails, and a hard call starts over.

use std::time::Duration;

/// Longest timeout over TCP (nfs(5), `timeo`).
pub(crate) const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// What happens at the major timeout.
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
    /// First timeout; nfs(5) counts it in tenths of a second.
    pub timeo: Duration,
    /// Retries before the major timeout.
    pub retrans: u32,
    /// What happens then.
    pub mode: Mode,
}

impl Default for RetryPolicy {
    /// nfs(5) defaults over TCP: `hard,timeo=600,retrans=2`.
    fn default() -> Self {
        Self { timeo: Duration::from_secs(60), retrans: 2, mode: Mode::Hard }
    }
}
