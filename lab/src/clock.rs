//! The one place where the laboratory asks the machine for the time.
//!
//! It waits for other processes and measures real servers: virtual time would be meaningless here.

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

/// Calls `done` every 50 ms until it is true; false when `limit` passed first.
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
