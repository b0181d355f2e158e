//! Moments as one number: nanoseconds since the layer began. A cached fact carries 8 bytes of time.

use std::time::Duration;
use tokio::time::Instant;

/// Nanoseconds since the layer began, at least [`FIRST`]. 0 is "never".
pub(super) type Moment = u64;

/// The moment at which the layer began. Smaller numbers are older than any request.
pub(super) const FIRST: Moment = 2;

/// The bit that marks the end of a validity as a lease. The other bits are the lease's epoch.
pub(super) const LEASE: u64 = 1 << 63;

/// A duration in nanoseconds.
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

    /// The moment of an instant. Instants before the beginning map to the beginning.
    pub fn of(&self, at: Instant) -> Moment {
        let since = at.saturating_duration_since(self.base).as_nanos();
        FIRST + u64::try_from(since).map_or(LEASE / 2, |nanos| nanos.min(LEASE / 2))
    }

    /// The instant of a moment.
    pub fn instant(&self, at: Moment) -> Instant {
        self.base + Duration::from_nanos((at & !LEASE).saturating_sub(FIRST))
    }
}
