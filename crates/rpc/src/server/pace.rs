//! Limits the rate of calls of all connections together while clients recover from a server
//! restart.
//!
//! This module knows neither connections nor programs. The reader of a connection waits for a turn
//! for one call at a time and reads no further call meanwhile. Later calls wait at the client, and
//! no call is refused. Turns are given in the order of the requests. Each of N busy connections
//! therefore gets every Nth turn, however many calls it has.
//!
//! A server must not expire silent state while calls wait for a turn ([`Pace::holds_up`],
//! [`Pace::since_held_up`]). A client that calls all the time could prevent that expiry for ever.
//! The pace therefore ends after the `most` of [`Pace::new`], and no call waits from then on.

use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// The client sends its next call within this time after a waiting call: a round trip and the
/// client's own processing time.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(5);
/// After a silence, a burst of calls up to this part of a second's calls is taken at once (a
/// tenth).
const BURST_PART: u32 = 10;

/// A limit of the rate of calls.
#[derive(Debug)]
pub struct Pace {
    /// Time between two calls.
    interval: Duration,
    /// How long before its due time a call may be taken.
    ahead: Duration,
    began: Instant,
    end: Instant,
    over: AtomicBool,
    /// When the next call is due at an even rate. The caller at the head of the queue holds this
    /// mutex; the other callers wait for it.
    due: Mutex<Instant>,
    waiting: AtomicUsize,
    /// When the last wait ended, in milliseconds since `began`, plus one. 0: no call has waited.
    held_up_ms: AtomicU64,
    calls: AtomicU64,
    waits: AtomicU64,
    longest_ms: AtomicU64,
}

/// The counters of a pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paced {
    /// Calls that were taken.
    pub calls: u64,
    /// Calls that waited.
    pub waits: u64,
    /// The longest wait.
    pub longest: Duration,
}

impl Pace {
    /// A limit of `calls_a_second` that ends after `most`.
    pub fn new(calls_a_second: u32, most: Duration) -> Self {
        let rate = calls_a_second.max(1);
        let interval = Duration::from_secs(1) / rate;
        let now = Instant::now();
        Self {
            interval,
            ahead: interval * (rate / BURST_PART).max(1).saturating_sub(1),
            began: now,
            end: now + most,
            over: AtomicBool::new(false),
            due: Mutex::new(now),
            waiting: AtomicUsize::new(0),
            held_up_ms: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            longest_ms: AtomicU64::new(0),
        }
    }

    /// Waits until one more call may be taken. A cancelled wait takes no turn.
    pub async fn turn(&self) {
        if self.is_over() {
            return;
        }
        self.calls.fetch_add(1, Relaxed);
        // No other caller waits, and the call may be taken now.
        if let Ok(mut due) = self.due.try_lock()
            && self.earliest(*due) <= Instant::now()
        {
            *due = self.after(*due);
            return;
        }
        let _wait = Wait::begin(self);
        let mut due = self.due.lock().await;
        sleep_until(self.earliest(*due)).await;
        *due = self.after(*due);
    }

    fn earliest(&self, due: Instant) -> Instant {
        let earliest = due.checked_sub(self.ahead).unwrap_or(due);
        earliest.min(self.end)
    }

    /// When the next call is due after a call that is taken now.
    fn after(&self, due: Instant) -> Instant {
        due.max(Instant::now()) + self.interval
    }

    /// Whether calls wait or have waited within `FOLLOWED_WITHIN`. Clients may then have calls
    /// that the server has not read.
    pub fn holds_up(&self) -> bool {
        self.since_held_up() < FOLLOWED_WITHIN
    }

    /// The time since a call last waited.
    pub fn since_held_up(&self) -> Duration {
        let now = Instant::now();
        if now >= self.end {
            return Duration::MAX;
        }
        if self.waiting.load(Acquire) > 0 {
            return Duration::ZERO;
        }
        match self.held_up_ms.load(Relaxed) {
            0 => Duration::MAX,
            ms => now.saturating_duration_since(self.began + Duration::from_millis(ms)),
        }
    }

    /// Ends the limit: later calls do not wait. Calls that wait already keep their turns. Returns
    /// the counters at the first call, `None` later.
    pub fn finish(&self) -> Option<Paced> {
        let first = !self.over.swap(true, Relaxed);
        first.then(|| Paced {
            calls: self.calls.load(Relaxed),
            waits: self.waits.load(Relaxed),
            longest: Duration::from_millis(self.longest_ms.load(Relaxed)),
        })
    }

    /// Whether the limit has ended.
    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed) || Instant::now() >= self.end
    }
}

/// A waiting call.
struct Wait<'a> {
    pace: &'a Pace,
    since: Instant,
}

impl<'a> Wait<'a> {
    fn begin(pace: &'a Pace) -> Self {
        pace.waiting.fetch_add(1, Relaxed);
        pace.waits.fetch_add(1, Relaxed);
        Self { pace, since: Instant::now() }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let (pace, now) = (self.pace, Instant::now());
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        // The time is stored before `waiting` is decremented, so that `since_held_up` sees no gap.
        pace.held_up_ms.fetch_max(ms(now - pace.began).saturating_add(1), Relaxed);
        pace.longest_ms.fetch_max(ms(now - self.since), Relaxed);
        pace.waiting.fetch_sub(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(3600);

    /// Runs one connection for each entry of `calls`. An entry is the number of calls that the
    /// connection makes one after another. Returns the times of the calls in milliseconds.
    async fn connections(pace: &Arc<Pace>, calls: &[usize]) -> Vec<Vec<u64>> {
        let began = Instant::now();
        let mut tasks = Vec::new();
        for n in calls.iter().copied() {
            let pace = pace.clone();
            tasks.push(tokio::spawn(async move {
                let mut at = Vec::new();
                for _ in 0..n {
                    pace.turn().await;
                    at.push(began.elapsed().as_millis() as u64);
                }
                at
            }));
        }
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.unwrap());
        }
        all
    }

    fn most_within(mut at: Vec<u64>, ms: u64) -> usize {
        at.sort_unstable();
        (0..at.len()).map(|i| at[i..].iter().take_while(|t| **t < at[i] + ms).count()).max().unwrap_or(0)
    }

    /// Twenty busy connections get 100 calls in each second, plus one burst. The full rate is used.
    /// After a silence there is one burst, and the unused rest of the rate is lost.
    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn pace_keeps_rate_with_burst() {
        let pace = Arc::new(Pace::new(100, LONG));
        let at = connections(&pace, &[40; 20]).await.concat();
        assert_eq!(at.len(), 800);
        assert!(most_within(at.clone(), 1000) <= 111, "{}", most_within(at.clone(), 1000));
        assert!(most_within(at.clone(), 100) <= 21, "{}", most_within(at.clone(), 100));
        let end = *at.iter().max().unwrap();
        assert!((7_850..=7_950).contains(&end), "it is used, too: {end}");
        // After a silence there is one burst. The unused rest is lost.
        tokio::time::advance(LONG / 2).await;
        let at = connections(&pace, &[40; 20]).await.concat();
        assert!(most_within(at, 1000) <= 111);
    }

    /// A connection with many calls does not delay nine connections with few calls: each connection
    /// gets one turn a second.
    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn busy_connection_delays_no_other() {
        let pace = Arc::new(Pace::new(10, LONG));
        let mut calls = vec![2_000];
        calls.extend([3; 9]);
        let at = connections(&pace, &calls).await;
        // Ten connections get one turn a second each.
        for one in &at[1..] {
            assert!(one.iter().zip(1..).all(|(at, n)| *at <= n * 1000 + 200), "{one:?}");
        }
        // A connection alone gets the full rate.
        let many = &at[0];
        assert!((1_990..2_010).contains(&most_within(many.clone(), 201_000)), "{}", many.len());
    }

    /// A cancelled wait takes no turn: after 100 cancelled waits the next call waits one second at
    /// most.
    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn cancelled_wait_takes_no_turn() {
        let pace = Arc::new(Pace::new(1, LONG));
        pace.turn().await;
        let gone: Vec<_> = (0..100)
            .map(|_| {
                let pace = pace.clone();
                tokio::spawn(async move { pace.turn().await })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(pace.holds_up());
        gone.iter().for_each(tokio::task::JoinHandle::abort);
        let began = Instant::now();
        pace.turn().await;
        assert!(began.elapsed() <= Duration::from_secs(1));
    }

    /// The pace ends after its maximum time. Calls that still wait are then taken, and `holds_up`
    /// is false.
    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn pace_ends_after_maximum() {
        let pace = Arc::new(Pace::new(1, Duration::from_secs(60)));
        assert!(!pace.holds_up() && pace.since_held_up() == Duration::MAX);
        let at = connections(&pace, &[10; 100]).await.concat();
        assert_eq!(at.iter().filter(|at| **at < 59_000).count(), 59);
        assert!(at.iter().all(|at| *at <= 60_001));
        assert!(pace.is_over() && !pace.holds_up());
    }

    /// `holds_up` stays true for [`FOLLOWED_WITHIN`] after a wait, so that the waiting client can
    /// call again.
    #[tokio::test(start_paused = true)]
    async fn holds_up_outlasts_wait() {
        let pace = Pace::new(1, LONG);
        pace.turn().await;
        assert!(!pace.holds_up());
        pace.turn().await;
        tokio::time::advance(FOLLOWED_WITHIN - Duration::from_millis(10)).await;
        assert!(pace.holds_up());
        tokio::time::advance(Duration::from_millis(20)).await;
        assert!(!pace.holds_up() && pace.since_held_up() >= FOLLOWED_WITHIN);
        let paced = pace.finish().unwrap();
        assert_eq!((paced.calls, paced.waits), (2, 1));
        assert!(paced.longest >= Duration::from_millis(999));
        assert_eq!(pace.finish(), None);
    }
}
