//! Turns: permits for the calls of one address in progress.
//!
//! A turn counts against its connection by the time that it lasts. Connections that recently used
//! little time come first, and a part of the turns is reserved for them. A program with many slow
//! calls therefore does not delay other connections of its address.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A connection that recently used less time comes first. An open turn counts as this much time.
const LITTLE: Duration = Duration::from_millis(100);
/// The initial use of a new connection. It does not count as little.
const AT_FIRST: Duration = Duration::from_millis(200);
/// A connection may use this part of one turn permanently (a tenth) and still count as light.
const USE_PART: u32 = 10;
/// This part of the turns is reserved for connections that used little time (an eighth).
const RESERVE_PART: usize = 8;

/// The turns of an address.
pub(super) struct Turns {
    reserve: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Waiting connections that used little time. They come first.
    light: VecDeque<Waiter>,
    others: VecDeque<Waiter>,
}

struct Waiter {
    usage: Arc<Usage>,
    granted: oneshot::Sender<Turn>,
}

/// The time that a connection's turns took recently, and when it was last updated.
pub(super) struct Usage(Mutex<(Instant, Duration)>);

impl Usage {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((Instant::now(), AT_FIRST))))
    }

    /// Adds `used` time and subtracts `less`, which was counted before. The sum decays at a tenth
    /// of real time. Returns the sum.
    fn count(&self, used: Duration, less: Duration) -> Duration {
        let now = Instant::now();
        let (since, sum) = &mut *self.0.lock();
        let past = now.saturating_duration_since(*since) / USE_PART;
        *sum = (sum.saturating_sub(past) + used).saturating_sub(less);
        *since = now;
        *sum
    }

    fn is_light(&self) -> bool {
        self.count(Duration::ZERO, Duration::ZERO) < LITTLE
    }
}

/// The permit for one call. Dropping it ends the turn.
pub(super) struct Turn {
    turns: Arc<Turns>,
    usage: Arc<Usage>,
    since: Instant,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.usage.count(self.since.elapsed(), LITTLE);
        self.turns.release();
    }
}

impl Turns {
    pub fn new(max: usize) -> Arc<Self> {
        let max = max.max(1);
        let state = State { free: max, light: VecDeque::new(), others: VecDeque::new() };
        Arc::new(Self { reserve: max / RESERVE_PART, state: Mutex::new(state) })
    }

    /// Waits for a turn.
    pub async fn take(self: &Arc<Self>, usage: &Arc<Usage>) -> Turn {
        let granted = {
            let state = &mut *self.state.lock();
            let is_light = usage.is_light();
            if state.free > if is_light { 0 } else { self.reserve } {
                state.free -= 1;
                return self.turn(usage.clone());
            }
            let (granted, turn) = oneshot::channel();
            let waiting = if is_light { &mut state.light } else { &mut state.others };
            waiting.push_back(Waiter { usage: usage.clone(), granted });
            turn
        };
        match granted.await {
            Ok(turn) => turn,
            Err(_) => unreachable!("a waiter goes with its turn only"),
        }
    }

    fn turn(self: &Arc<Self>, usage: Arc<Usage>) -> Turn {
        usage.count(LITTLE, Duration::ZERO);
        Turn { turns: self.clone(), usage, since: Instant::now() }
    }

    fn release(self: &Arc<Self>) {
        let next = {
            let state = &mut *self.state.lock();
            state.free += 1;
            let next = match next_of(&mut state.light) {
                None if state.free > self.reserve => next_of(&mut state.others),
                light => light,
            };
            state.free -= usize::from(next.is_some());
            next
        };
        // Runs without the lock: a turn whose receiver was dropped is released at once, under the
        // lock.
        if let Some(Waiter { usage, granted }) = next {
            let _ = granted.send(self.turn(usage));
        }
    }
}

/// The first waiter whose call was not dropped.
fn next_of(waiting: &mut VecDeque<Waiter>) -> Option<Waiter> {
    std::iter::from_fn(|| waiting.pop_front()).find(|waiter| !waiter.granted.is_closed())
}
