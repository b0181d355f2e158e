//! CLOSE of many files in one compound.
//!
//! No program waits for a CLOSE, which reports no error of its data. After its last open has ended,
//! a file waits a moment for other files. They are closed together. A file that is opened again in
//! this time is not closed. [`Core::release`] handles the files that a batch leaves open (a
//! refusal, or a state in use) alone.

use super::call::{Answer, Compound};
use super::core::Core;
use super::state::{FileState, OpenState, Step, wire_fh};
use hither_proto::nfs4::{Op, Stateid};
use hither_vfs::{Fh, RequestContext};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{MutexGuard, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Time for which a file waits for others.
const WAIT: Duration = Duration::from_millis(200);
/// Number of waiting files at which the wait ends.
const MAX: usize = 16;
/// Most closes of a file that go in front of its removal.
const BEFORE_MAX: usize = 4;

/// Files that wait for their CLOSE.
#[derive(Default)]
pub(crate) struct Closer {
    queue: Mutex<Queue>,
    /// The ends of opens. The end of the mount waits for them.
    releases: TaskTracker,
}

impl Closer {
    /// Begins the end of an open, which lasts until the result is dropped.
    pub fn ending(&self) -> TaskTrackerToken {
        self.releases.token()
    }
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Whether a task waits for the time of the first file.
    is_timed: bool,
}

impl Queue {
    fn take(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }
}

/// A file that waits. The end of its last open goes on when this value is dropped.
pub(super) struct Waiting {
    state: Arc<OpenState>,
    since: Instant,
    _done: oneshot::Sender<()>,
}

impl Core {
    /// Ends a use of `state`, as [`Core::release`]. A CLOSE that can wait is sent later, together
    /// with others. The caller does not wait for it.
    pub async fn release_soon(self: &Arc<Self>, state: &Arc<OpenState>) {
        let Some(done) = self.close_soon(state) else { return self.release(state).await };
        let (core, state) = (self.clone(), state.clone());
        self.closer.releases.spawn(async move {
            // With any outcome of the batch.
            let _ = done.await;
            core.release(&state).await;
        });
    }

    /// Adds `state` to the waiting files, when it needs a CLOSE that can wait. The result ends
    /// after the CLOSE.
    fn close_soon(self: &Arc<Self>, state: &Arc<OpenState>) -> Option<oneshot::Receiver<()>> {
        let hidden = state.file.inner.lock().silly.is_some();
        let locked = !state.inner.lock().locks.is_empty();
        if hidden || locked || self.stop.is_cancelled() || !matches!(state.next_step(), Step::Close(_)) {
            return None;
        }
        let (done, told) = oneshot::channel();
        let (start_timer, full) = {
            let mut queue = self.closer.queue.lock();
            queue.waiting.push(Waiting { state: state.clone(), since: Instant::now(), _done: done });
            let full = (queue.waiting.len() >= MAX).then(|| queue.take());
            (full.is_none() && !std::mem::replace(&mut queue.is_timed, true), full)
        };
        let core = self.clone();
        if let Some(batch) = full {
            tokio::spawn(async move { core.close_many(batch).await });
        } else if start_timer {
            tokio::spawn(async move { core.close_in_time().await });
        }
        Some(told)
    }

    /// Closes the waiting files when the first of them has waited long enough, until none waits.
    async fn close_in_time(self: &Arc<Self>) {
        loop {
            let until = {
                let mut queue = self.closer.queue.lock();
                let Some(first) = queue.waiting.first() else {
                    queue.is_timed = false;
                    return;
                };
                first.since + WAIT
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = self.stop.cancelled() => {}
            }
            let batch = {
                let mut queue = self.closer.queue.lock();
                // The removal of the first file may have taken it.
                let is_due = queue.waiting.first().is_some_and(|w| w.since <= until - WAIT);
                if is_due || self.stop.is_cancelled() { queue.take() } else { Vec::new() }
            };
            self.close_many(batch).await;
        }
    }

    /// Takes the waiting closes of a file that is about to lose its last name. They go in front of
    /// the removal, in the same compound ([`Core::returning`]). Some servers cannot close a file
    /// without a name by its filehandle. Closes that cannot go there are sent now.
    pub async fn take_closes(self: &Arc<Self>, cx: &RequestContext, fh: &Fh) -> Vec<Waiting> {
        let (mine, is_left) = {
            let waiting = &mut self.closer.queue.lock().waiting;
            let of_file = |w: &Waiting| w.state.file.fh == *fh;
            let mine: Vec<_> =
                waiting.extract_if(.., |w| of_file(w) && w.state.cred == cx.cred).take(BEFORE_MAX).collect();
            (mine, waiting.iter().any(of_file))
        };
        if is_left {
            self.close_waiting().await;
        }
        let states = |file: Arc<FileState>| file.inner.lock().states.values().cloned().collect::<Vec<_>>();
        for state in self.files.file(fh).map(states).unwrap_or_default() {
            // A CLOSE in progress.
            drop(state.closing.lock().await);
        }
        mine
    }

    /// Closes all waiting files, and waits until all ended opens have left the server.
    pub async fn close_all_waiting(self: &Arc<Self>) {
        self.close_waiting().await;
        self.closer.releases.close();
        self.closer.releases.wait().await;
    }

    /// Closes all waiting files now.
    async fn close_waiting(self: &Arc<Self>) {
        let batch = self.closer.queue.lock().take();
        self.close_many(batch).await;
    }

    async fn close_many(self: &Arc<Self>, mut batch: Vec<Waiting>) {
        if batch.is_empty() {
            return;
        }
        let Ok(session) = self.ready().await else { return };
        let most = (session.limits.max_ops as usize).saturating_sub(1) / 2;
        let most = most.min(self.ops_limit.load(Ordering::Relaxed) / 2).clamp(1, MAX);
        while let Some(first) = batch.first() {
            let cred = first.state.cred.clone();
            let (mut some, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|w| w.state.cred == cred);
            batch = rest;
            while !some.is_empty() {
                let now: Vec<_> = some.drain(..most.min(some.len())).collect();
                self.close_together(&RequestContext::new(cred.clone()), &now).await;
            }
        }
    }

    /// One compound with the CLOSEs that are still needed.
    async fn close_together(self: &Arc<Self>, cx: &RequestContext, batch: &[Waiting]) {
        let closing = Closing::begin(batch);
        if closing.states.is_empty() {
            return;
        }
        let c = Compound::new("CLOSE", closing.ops());
        if let Ok(mut answer) = self.compound(cx, c).await {
            closing.end(self, &mut answer).await;
        }
    }
}

/// CLOSEs in one compound. Opens of these files wait until the end of this value, as for every
/// CLOSE.
pub(super) struct Closing<'a> {
    states: Vec<(&'a Arc<OpenState>, Stateid)>,
    _held: Vec<MutexGuard<'a, ()>>,
}

impl<'a> Closing<'a> {
    /// The CLOSEs that are still needed.
    pub fn begin(batch: &'a [Waiting]) -> Self {
        let (mut held, mut states) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for Waiting { state, .. } in batch {
            if let Ok(guard) = state.closing.try_lock()
                && let Step::Close(stateid) = state.next_step()
                && state.inner.lock().locks.is_empty()
            {
                held.push(guard);
                states.push((state, stateid));
            }
        }
        Self { states, _held: held }
    }

    /// The operations.
    pub fn ops(&self) -> impl Iterator<Item = Op> {
        self.states.iter().flat_map(|(s, id)| [Op::Putfh(wire_fh(&s.file.fh)), Op::close(*id)])
    }

    /// Takes the results of the operations. Returns whether all files were closed.
    pub async fn end(self, core: &Arc<Core>, answer: &mut Answer) -> bool {
        for (state, stateid) in self.states {
            if answer.results.putfh().is_err() || answer.results.close().is_err() {
                return false;
            }
            state.gone(&stateid);
            // An open by name has overtaken the CLOSE, and the server closed that open, too.
            core.open_again(state).await;
        }
        true
    }
}
