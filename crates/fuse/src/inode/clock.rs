//! The order of the mount's own modifications.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that orders the mount's own modifications.
#[derive(Debug, Default)]
pub(crate) struct Clock(AtomicU64);

/// A value of a [`Clock`]. Withdrawals of leases advance the clock too. So the moment of a request
/// shows whether its answer is older than a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Moment(u64);

impl Clock {
    /// The current moment. Answers to earlier requests show no later modifications.
    pub fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    /// Advances the clock.
    pub fn tick(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}
