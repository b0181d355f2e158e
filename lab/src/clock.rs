//! The only module of the laboratory that reads the machine's clock.
//!
//! The laboratory waits for other processes and measures real servers, so virtual time would be
//! meaningless.

use std::time::{Duration, Instant};

/// The monotonic clock.
#[allow(clippy::disallowed_methods)] // real servers run on real time
pub fn now() -> Instant {
    Instant::now()
}

/// Blocks the calling thread.
#[allow(clippy::disallowed_methods)] // there is no runtime here, only threads that wait for processes
pub fn pause(d: Duration) {
    std::thread::sleep(d);
}

/// Calls `done` every 50 ms until it returns true. Returns false after `limit`.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = now() + limit;
    loop {
        if done() {
            return true;
        }
        if now() >= end {
            return false;
        }
        pause(Duration::from_millis(50));
    }
}
