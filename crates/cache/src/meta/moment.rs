//! Moments as one number: nanoseconds since the layer began, so that a cached fact carries 8 bytes
//! of time.

use std::time::Duration;
use tokio::time::Instant;

/// Nanoseconds since the layer began, at least [`FIRST`]. 0 is "never".
pub(super) type Moment = u64;

/// The beginning. What lies before it is older than any question.
pub(super) const FIRST: Moment = 2;

/// The bit that makes the end of a validity a lease; the rest is the number of the lease's epoch.
pub(super) const LEASE: u64 = 1 << 63;

/// A length of time as moments count it.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Turns instants into moments and back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    base: Instant,
}

impl Clock {
    /// A clock that begins now.
    pub fn new() -> Self {
        Self { base: Instant::now() }
    }

    /// Now.
    pub fn now(&self) -> Moment {
        self.of(Instant::now())
    }

    /// The moment of an instant; everything before the beginning is the beginning.
    pub fn of(&self, at: Instant) -> Moment {
        let since = at.saturating_duration_since(self.base).as_nanos();
        FIRST + u64::try_from(since).map_or(LEASE / 2, |nanos| nanos.min(LEASE / 2))
    }

    /// The instant of a moment.
    pub fn instant(&self, at: Moment) -> Instant {
        self.base + Duration::from_nanos((at & !LEASE).saturating_sub(FIRST))
    }
}
