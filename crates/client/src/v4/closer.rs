//! CLOSE of many files in one compound.
//!
//! No program waits for a CLOSE: its close(2) has returned before. After its last open has ended, a
//! file waits a moment for other files. They are closed together. A file that is opened again in
//! this time is not closed. [`Core::release`] handles the files that a batch leaves open (a
//! refusal, or a state in use) alone.

use super::call::Compound;
use super::core::Core;
use super::state::{FileState, OpenState, Step, wire_fh};
use hither_proto::nfs4::{Op, Stateid};
use hither_vfs::{Fh, RequestContext};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// Time for which a file waits for others.
const WAIT: Duration = Duration::from_millis(200);
/// Number of waiting files at which the wait ends.
const MAX: usize = 16;

/// Files that wait for their CLOSE.
#[derive(Default)]
pub(crate) struct Closer {
    waiting: Mutex<Vec<Waiting>>,
}

struct Waiting {
    state: Arc<OpenState>,
    done: oneshot::Sender<()>,
}

impl Core {
    /// Closes `state` at the server together with others, when it needs a CLOSE that can wait.
    pub async fn close_soon(self: &Arc<Self>, state: &Arc<OpenState>) {
        let hidden = state.file.inner.lock().silly.is_some();
        let locked = !state.inner.lock().locks.is_empty();
        if hidden || locked || self.stop.is_cancelled() || !matches!(state.next_step(), Step::Close(_)) {
            return;
        }
        let (done, told) = oneshot::channel();
        let (first, full) = {
            let mut waiting = self.closer.waiting.lock();
            waiting.push(Waiting { state: state.clone(), done });
            let full = (waiting.len() >= MAX).then(|| std::mem::take(&mut *waiting));
            (waiting.len() == 1, full)
        };
        if let Some(batch) = full {
            let core = self.clone();
            tokio::spawn(async move { core.close_many(batch).await });
        } else if first {
            let core = self.clone();
            tokio::spawn(async move {
                tokio::select! {
                    () = tokio::time::sleep(WAIT) => {}
                    () = core.stop.cancelled() => {}
                }
                core.close_waiting().await;
            });
        }
        // With any outcome of the batch.
        let _ = told.await;
    }

    /// Closes a waiting file before the removal of its last name. Some servers cannot close a file
    /// without a name by its filehandle.
    pub async fn close_first(self: &Arc<Self>, fh: &Fh) {
        if self.closer.waiting.lock().iter().any(|w| w.state.file.fh == *fh) {
            self.close_waiting().await;
        }
        let states = |file: Arc<FileState>| file.inner.lock().states.values().cloned().collect::<Vec<_>>();
        for state in self.files.file(fh).map(states).unwrap_or_default() {
            // A CLOSE in progress.
            drop(state.closing.lock().await);
        }
    }

    /// Closes all waiting files now.
    pub async fn close_waiting(self: &Arc<Self>) {
        let batch = std::mem::take(&mut *self.closer.waiting.lock());
        self.close_many(batch).await;
    }

    async fn close_many(self: &Arc<Self>, mut batch: Vec<Waiting>) {
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
                for waiting in now {
                    // The receiver may have stopped waiting.
                    let _ = waiting.done.send(());
                }
            }
        }
    }

    /// One compound with the CLOSEs that are still needed.
    async fn close_together(self: &Arc<Self>, cx: &RequestContext, batch: &[Waiting]) {
        // Opens of these files wait until this function returns, as for every CLOSE.
        let mut held = Vec::with_capacity(batch.len());
        let mut closing: Vec<(&Arc<OpenState>, Stateid)> = Vec::with_capacity(batch.len());
        for Waiting { state, .. } in batch {
            if let Ok(guard) = state.closing.try_lock()
                && let Step::Close(stateid) = state.next_step()
                && state.inner.lock().locks.is_empty()
            {
                held.push(guard);
                closing.push((state, stateid));
            }
        }
        if closing.is_empty() {
            return;
        }
        let ops = closing.iter().flat_map(|(s, id)| [Op::Putfh(wire_fh(&s.file.fh)), Op::close(*id)]);
        let Ok(mut answer) = self.compound(cx, Compound::new("CLOSE", ops)).await else { return };
        for (state, stateid) in closing {
            if answer.results.putfh().is_err() || answer.results.close().is_err() {
                return;
            }
            state.gone(&stateid);
            // An open by name has overtaken the CLOSE, and the server closed that open, too.
            self.open_again(state).await;
        }
    }
}
