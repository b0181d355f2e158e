//! How fast calls are taken while clients recover from a restart: so many a second of all
//! connections together.
//!
//! It knows neither connections nor programs. The reader of a connection's calls waits here for its
//! turn, one call at a time, and reads no further meanwhile: later calls wait with the client, and
//! nothing is refused. Turns are given in the order in which they were asked for, so of N
//! connections that have calls each gets every Nth, however many it has.
//!
//! State that a server ends after a time of silence must not end as long as calls wait here
//! ([`Pace::holds_up`], [`Pace::since_held_up`]). A client that calls all the time could prevent
//! every end. So that is over after the `most` of [`Pace::new`], and no call waits from then on.

use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

/// A call that waited is followed by the client's next one within this time: the round trip, and
/// the client's own time before.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(5);
/// Calls that come together after a silence are taken together as far as they make up this part of
/// a second.
const BURST_PART: u32 = 10;

/// A rate of calls.
#[derive(Debug)]
pub struct Pace {
    /// Between calls.
    interval: Duration,
    /// By how much calls may be ahead of their time.
    ahead: Duration,
    began: Instant,
    end: Instant,
    over: AtomicBool,
    /// When the next call is due, if calls come evenly. A caller that waits for its turn has this,
    /// or waits for it.
    due: Mutex<Instant>,
    waiting: AtomicUsize,
    /// When the last wait ended, in milliseconds since it began, plus one; 0: there was none.
    held_up_ms: AtomicU64,
    calls: AtomicU64,
    waits: AtomicU64,
    longest_ms: AtomicU64,
}

/// The counters of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paced {
    /// Calls that were taken.
    pub calls: u64,
    /// Those of them that waited.
    pub waits: u64,
    /// The longest wait.
    pub longest: Duration,
}

impl Pace {
    /// So many calls a second, for at most so long.
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

    /// Waits until one more call may be taken. A cancelled wait takes no other caller's turn.
    pub async fn turn(&self) {
        if self.is_over() {
            return;
        }
        self.calls.fetch_add(1, Relaxed);
        // No other caller waits, and it is time.
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

    /// When the call after one that is taken now is due.
    fn after(&self, due: Instant) -> Instant {
        due.max(Instant::now()) + self.interval
    }

    /// Whether calls wait, or have waited just now: clients may have something to say that has not
    /// been read.
    pub fn holds_up(&self) -> bool {
        self.since_held_up() < FOLLOWED_WITHIN
    }

    /// How long no call has waited.
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

    /// Calls are taken as they come from now on, after those that wait. Returns the counters;
    /// `None` when they were returned already.
    pub fn finish(&self) -> Option<Paced> {
        let first = !self.over.swap(true, Relaxed);
        first.then(|| Paced {
            calls: self.calls.load(Relaxed),
            waits: self.waits.load(Relaxed),
            longest: Duration::from_millis(self.longest_ms.load(Relaxed)),
        })
    }

    /// Whether calls are taken as they come.
    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed) || Instant::now() >= self.end
    }
}

/// A call that waits.
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
        // Before it is counted as one that waits no more, so that no moment lies between.
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

    /// Connections that make so many calls each, one after the other; the moments of each, in
    /// milliseconds.
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

    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn the_rate_is_kept_but_for_a_burst() {
        let pace = Arc::new(Pace::new(100, LONG));
        let at = connections(&pace, &[40; 20]).await.concat();
        assert_eq!(at.len(), 800);
        assert!(most_within(at.clone(), 1000) <= 111, "{}", most_within(at.clone(), 1000));
        assert!(most_within(at.clone(), 100) <= 21, "{}", most_within(at.clone(), 100));
        let end = *at.iter().max().unwrap();
        assert!((7_850..=7_950).contains(&end), "it is used, too: {end}");
        // After a silence there is one burst and not the unused rest.
        tokio::time::advance(LONG / 2).await;
        let at = connections(&pace, &[40; 20]).await.concat();
        assert!(most_within(at, 1000) <= 111);
    }

    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn many_calls_of_one_connection_keep_nobody_else_waiting() {
        let pace = Arc::new(Pace::new(10, LONG));
        let mut calls = vec![2_000];
        calls.extend([3; 9]);
        let at = connections(&pace, &calls).await;
        // Ten connections: a turn a second each.
        for one in &at[1..] {
            assert!(one.iter().zip(1..).all(|(at, n)| *at <= n * 1000 + 200), "{one:?}");
        }
        // Alone, it has all.
        let many = &at[0];
        assert!((1_990..2_010).contains(&most_within(many.clone(), 201_000)), "{}", many.len());
    }

    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn who_goes_away_takes_no_turn() {
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

    /// Promise: S12
    #[tokio::test(start_paused = true)]
    async fn nobody_is_held_up_for_ever() {
        let pace = Arc::new(Pace::new(1, Duration::from_secs(60)));
        assert!(!pace.holds_up() && pace.since_held_up() == Duration::MAX);
        let at = connections(&pace, &[10; 100]).await.concat();
        assert_eq!(at.iter().filter(|at| **at < 59_000).count(), 59);
        assert!(at.iter().all(|at| *at <= 60_001));
        assert!(pace.is_over() && !pace.holds_up());
    }

    #[tokio::test(start_paused = true)]
    async fn it_holds_up_until_those_who_waited_could_come_again() {
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
