//! The server's clock, as this machine knows it.
//!
//! Times that this machine gives to files must be in order with the times that the server gives.
//! Each time that the server took between a request and its reply bounds the difference of the
//! clocks from both sides. The estimate is the greatest lower bound: it is not ahead of the
//! server's clock, and not behind any time that the server reported. A difference beyond the upper
//! bound means that a clock was set.

use hither_vfs::{Env, Time};
use parking_lot::Mutex;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The lag of a file system's clock: a timer tick at 100 Hz, twice.
const TICK_NANOS: i128 = 20_000_000;
/// The most that the estimate may lag behind a time of the server: more than a round trip.
const LAG_SECS: i64 = 1;

/// The earliest time after `last`.
pub(crate) fn next(last: Time) -> Time {
    match last.nanos {
        999_999_999 => Time { secs: last.secs.saturating_add(1), nanos: 0 },
        nanos => Time { nanos: nanos + 1, ..last },
    }
}

/// An estimate of the server's clock.
pub(crate) struct Clock {
    env: Env,
    /// The server's clock minus this machine's, in nanoseconds, once known.
    ahead_nanos: Mutex<Option<i128>>,
}

impl Clock {
    pub fn new(env: Env) -> Self {
        Self { env, ahead_nanos: Mutex::new(None) }
    }

    /// The time by the server's clock.
    pub fn now(&self) -> Time {
        let nanos = self.wall_nanos() + self.ahead_nanos.lock().unwrap_or(0);
        let second = Duration::from_secs(1).as_nanos() as i128;
        Time { secs: nanos.div_euclid(second) as i64, nanos: nanos.rem_euclid(second) as u32 }
    }

    /// The time of a change after an object had `last` as its modification time. A later time than
    /// the present is no time of the server's clock, and the change ends it.
    pub fn after(&self, last: Time) -> Time {
        let now = self.now();
        if last < now || last.secs > now.secs.saturating_add(LAG_SECS) {
            return now;
        }
        next(last)
    }

    /// Notes a time that the server took after `asked`, from a reply that arrived just now.
    pub fn heard(&self, theirs: Time, asked: Instant) {
        let least = theirs.as_nanos() - self.wall_nanos();
        let most = least + asked.elapsed().as_nanos() as i128 + TICK_NANOS;
        let mut ahead = self.ahead_nanos.lock();
        if ahead.is_none_or(|ahead| ahead < least || most < ahead) {
            *ahead = Some(least);
        }
    }

    fn wall_nanos(&self) -> i128 {
        (self.env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as i128
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    fn at(ms: u64) -> Time {
        Time { secs: (ms / 1000) as i64, nanos: (ms % 1000) as u32 * 1_000_000 }
    }

    /// The estimate lies between the server's last report and the server's clock, whatever the
    /// delay of replies, and follows a clock that was set.
    #[tokio::test(start_paused = true)]
    async fn estimate_follows_server_clock() {
        let wall = Arc::new(AtomicU64::new(1_000_000));
        let here = wall.clone();
        let env = Env {
            random: Arc::new(|| 0),
            wall: Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_millis(here.load(Relaxed))),
        };
        let clock = Clock::new(env);
        assert_eq!(clock.now(), at(1_000_000), "before the first reply");
        let pass = async |ms: u64| {
            wall.fetch_add(ms, Relaxed);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        };
        for (step, ahead) in [5_000_i64, 5_000, -3_000, 90_000].into_iter().enumerate() {
            for (there, back) in [(1, 40), (30, 2), (5, 5), (200, 1)] {
                let asked = Instant::now();
                pass(there).await;
                let theirs = (wall.load(Relaxed) as i64 + ahead) as u64;
                pass(back).await;
                clock.heard(at(theirs), asked);
                pass(7).await;
                let now = (wall.load(Relaxed) as i64 + ahead) as u64;
                assert!((at(theirs)..=at(now)).contains(&clock.now()), "{step}: {:?}", clock.now());
                assert!(at(now) < clock.after(at(now)), "a change has a later time");
                assert!(clock.after(at(now + 5000)) <= at(now), "a time in the future ends");
            }
        }
    }
}
