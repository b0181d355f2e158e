//! Checkpoints free the space of records.
//!
//! First [`Settle`] makes the changes of old records stable in the file system below. Then a header
//! with the new tail is written, and then the space is used again. A failed checkpoint keeps all
//! records: the kernel reports an error of the disk once, and the next sync may succeed although
//! data is lost. The checkpoint is tried again. The layer above then writes the records again
//! ([`Log::scan`]).
//!
//! A checkpoint settles the records that are due, and not all. So space is freed often and in small
//! parts, and a file that is written all the time is written back once in a while. When the ring
//! fills up all the same, changes are slowed down, at first a little ([`Log::admit`]).

use super::{Log, Shared, State};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Records are due after this time. It is shorter than the 30 seconds after which the kernel writes
/// old dirty pages back by itself, all at once.
const DUE_AFTER: Duration = Duration::from_secs(20);
/// Records are due when this part of the ring has newer ones.
const DUE_PART: u64 = 4;
/// The time between checkpoints, unless half of the ring is in use. Each is a commit of the file
/// system below, which commits about as often by itself.
const EVERY: Duration = Duration::from_secs(5);
/// The longest time of a checkpoint that settles only due records, and of one for which a full ring
/// waits.
const WITHIN: Duration = Duration::from_secs(5);
const WITHIN_HURRIED: Duration = Duration::from_millis(250);
/// The time between two looks at the age of records.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before a failed checkpoint is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// The pause of a change when the ring is full.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The records that a checkpoint should settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// The last record whose change was applied. Later records must not be settled.
    pub upto: u64,
    /// The last record that is due. Newer records may be settled, too.
    pub due: u64,
    /// The time after which the rest waits for the next checkpoint. `None`: nothing may wait.
    pub within: Option<Duration>,
}

impl Goal {
    /// All records up to this one.
    pub fn all(upto: u64) -> Self {
        Self { upto, due: upto, within: None }
    }
}

/// Makes changes stable in the file system below, and returns the last settled record. This record
/// and all earlier ones are never read again. If it returns before the due ones are settled, it is
/// called again soon. After a failed call, the next call must not assume that the disk has the
/// changes applied before.
pub type Settle = dyn Fn(Goal) -> io::Result<u64> + Send + Sync;

impl Log {
    /// Settles all records now.
    ///
    /// # Errors
    /// Those of `settle` and the device. The journal keeps its records.
    pub fn checkpoint(&self) -> io::Result<()> {
        self.shared.checkpoint(true)
    }

    /// Whether a checkpoint should hurry: three quarters of the ring are in use, or the journal is
    /// closed.
    pub fn pressed(&self) -> Arc<AtomicBool> {
        self.shared.pressed.clone()
    }

    /// Number of the next record.
    pub fn next_seq(&self) -> u64 {
        self.shared.state.lock().next_seq
    }

    /// Pauses a thread that is about to make a change when more than three quarters of the ring are
    /// in use. The pause grows with the rest, up to 100 ms, so changes slow down evenly to the rate
    /// at which space is freed. To be called without locks.
    pub fn admit(&self) {
        if !self.shared.pressed.load(Ordering::SeqCst) {
            return;
        }
        let began = Instant::now();
        let mut state = self.shared.state.lock();
        while !state.closed && !self.failed() {
            let pause = PAUSE_MAX.mul_f64(state.pressure());
            let Some(left) = pause.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                return;
            };
            self.shared.room.wait_for(&mut state, left);
        }
    }
}

impl State {
    fn ring_bytes(&self) -> u64 {
        self.head.size - super::RING_AT
    }

    /// The used part of the last quarter of the ring, squared: 0 to 1.
    fn pressure(&self) -> f64 {
        let quarter = self.ring_bytes() / 4;
        let part = self.used.saturating_sub(quarter * 3) as f64 / quarter as f64;
        part.min(1.0).powi(2)
    }

    pub(super) fn is_pressed(&self) -> bool {
        self.closed || self.used > self.ring_bytes() / 4 * 3
    }

    /// Whether the next checkpoint should begin at once, if records are due.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.used > self.ring_bytes() / 2
    }

    /// The last record that is due; 0 when none is.
    fn due(&self) -> u64 {
        let mut newer = 0;
        let due = self.live.iter().rev().find(|batch| {
            newer += batch.taken;
            newer > self.ring_bytes() / DUE_PART || batch.durable_at.elapsed() >= DUE_AFTER
        });
        due.map_or(0, |batch| batch.last_seq)
    }
}

impl Shared {
    /// The checkpoint thread: makes checkpoints when they are wanted.
    pub(super) fn check(&self) {
        let mut last_end = Instant::now();
        loop {
            let was_stuck = {
                let mut state = self.state.lock();
                loop {
                    if state.closed || self.failed.load(Ordering::SeqCst) {
                        return;
                    }
                    let rested = last_end.elapsed();
                    let begins = if state.stuck {
                        rested >= RETRY_EVERY
                    } else {
                        (rested >= EVERY || state.wants_checkpoint()) && state.due() > 0
                    };
                    if state.hurry || begins {
                        break;
                    }
                    self.wanted.wait_for(&mut state, LOOK_EVERY);
                }
                state.stuck
            };
            match self.checkpoint(false) {
                Err(e) if !was_stuck => {
                    tracing::error!(
                        "a checkpoint of the journal failed, and the journal keeps its records: {e}"
                    );
                }
                Err(e) => tracing::debug!("the checkpoint failed again: {e}"),
                Ok(()) => {}
            }
            last_end = Instant::now();
        }
    }

    /// Settles all records, or those that are due, and frees their space.
    pub(super) fn checkpoint(&self, all: bool) -> io::Result<()> {
        let _turn = self.turn.lock();
        self.state.lock().health.begin();
        let done = self.settle(all);
        self.state.lock().health.end(&done);
        done
    }

    /// See [`Shared::checkpoint`].
    fn settle(&self, all: bool) -> io::Result<()> {
        let (goal, kept_all) = {
            let state = self.state.lock();
            // The change of each numbered record was applied.
            let upto = state.next_seq - 1;
            let goal = if all || state.stuck {
                Goal::all(upto)
            } else if state.hurry {
                Goal { upto, due: upto, within: Some(WITHIN_HURRIED) }
            } else {
                Goal { upto, due: state.due(), within: Some(WITHIN) }
            };
            (goal, state.kept_all)
        };
        let done = (self.settle)(goal);
        let (settled, head) = {
            let mut state = self.state.lock();
            state.hurry = false;
            let done = match done {
                Ok(settled) if state.kept_all == kept_all => Ok(settled.min(goal.upto)),
                Ok(_) => Err(io::Error::other("the disk below failed meanwhile")),
                Err(e) => Err(e),
            };
            state.stuck = done.is_err();
            if state.stuck {
                self.room.notify_all();
            }
            // Settled records stay settled.
            let settled = done?.max(state.head.tail.seq - 1);
            let frees = state.live.front().is_some_and(|batch| batch.last_seq <= settled);
            if settled < state.head.tail.seq && !frees {
                self.room.notify_all();
                return Ok(());
            }
            let tail = match state.live.iter().find(|batch| batch.last_seq > settled) {
                Some(batch) => batch.position,
                None => state.end,
            };
            // This also covers a batch that is still being written. A settled record must never be
            // applied again over later changes of the file.
            state.head.tail = super::Position { seq: settled + 1, ..tail };
            state.head.generation += 1;
            (settled, state.head)
        };
        if let Err(e) = head.write(&*self.device) {
            // The other header is good, and a second attempt would overwrite it.
            self.fail(&e.to_string(), Vec::new());
            return Err(e);
        }
        let mut state = self.state.lock();
        // Not all settled batches are freed. A batch may have become durable while the header was
        // written, and this header names it as the beginning of the journal. If it were
        // overwritten, the next start would miss all batches after it. The next checkpoint frees
        // its space.
        while state.live.front().is_some_and(|batch| batch.position.batch < head.tail.batch) {
            if let Some(batch) = state.live.pop_front() {
                state.used -= batch.taken;
            }
        }
        self.settled.fetch_max(settled, Ordering::SeqCst);
        self.pressed.store(state.is_pressed(), Ordering::SeqCst);
        drop(state);
        self.room.notify_all();
        Ok(())
    }
}
