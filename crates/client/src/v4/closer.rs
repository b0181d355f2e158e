//! CLOSE of many files in one compound.
//!
//! It knows nothing of why files are closed, nor what becomes of them afterwards. Nobody waits for
//! a CLOSE: the program's close(2) has ended before it. So a file whose last open has ended waits a
//! moment for others, and they are closed together. A file that is opened again meanwhile is not
//! closed at all. Whatever a batch leaves undone (a refusal, a state that somebody else is at) is
//! [`Core::release`]'s to do alone.

use super::call::Compound;
use super::core::Core;
use super::state::{FileState, OpenState, Step, wire_fh};
use hither_proto::nfs4::{Op, Stateid};
use hither_vfs::{Cx, Fh};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a file waits for others.
const WAIT: Duration = Duration::from_millis(200);
/// So many files do not wait any longer.
const MOST: usize = 16;

/// Files that wait to be closed at the server.
#[derive(Default)]
pub(crate) struct Closer {
    waiting: Mutex<Vec<Waiting>>,
}

struct Waiting {
    state: Arc<OpenState>,
    done: oneshot::Sender<()>,
}

impl Core {
    /// Closes `state` at the server together with others, if it needs closing and can wait for
    /// that.
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
            let full = (waiting.len() >= MOST).then(|| std::mem::take(&mut *waiting));
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
        // However it ended.
        let _ = told.await;
    }

    /// Closes a file that waits before its last name may go: by a handle without a name it could
    /// not be closed at some servers.
    pub async fn close_first(self: &Arc<Self>, fh: &Fh) {
        if self.closer.waiting.lock().iter().any(|w| w.state.file.fh == *fh) {
            self.close_waiting().await;
        }
        let states = |file: Arc<FileState>| file.inner.lock().states.values().cloned().collect::<Vec<_>>();
        for state in self.files.file(fh).map(states).unwrap_or_default() {
            // One that is on its way.
            drop(state.closing.lock().await);
        }
    }

    /// Closes at once what waits.
    pub async fn close_waiting(self: &Arc<Self>) {
        let batch = std::mem::take(&mut *self.closer.waiting.lock());
        self.close_many(batch).await;
    }

    async fn close_many(self: &Arc<Self>, mut batch: Vec<Waiting>) {
        let Ok(session) = self.ready().await else { return };
        let most = (session.limits.max_ops as usize).saturating_sub(1) / 2;
        let most = most.min(self.ops_limit.load(Ordering::Relaxed) / 2).clamp(1, MOST);
        while let Some(first) = batch.first() {
            let cred = first.state.cred.clone();
            let (mut some, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|w| w.state.cred == cred);
            batch = rest;
            while !some.is_empty() {
                let now: Vec<_> = some.drain(..most.min(some.len())).collect();
                self.close_together(&Cx::new(cred.clone()), &now).await;
                for waiting in now {
                    // It may have stopped waiting.
                    let _ = waiting.done.send(());
                }
            }
        }
    }

    /// One compound with the CLOSE of all that still need it.
    async fn close_together(self: &Arc<Self>, cx: &Cx, batch: &[Waiting]) {
        // Opens of these files wait until this ends, as for every CLOSE.
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
            // An open by name has passed us, and the server closed that, too.
            self.open_again(state).await;
        }
    }
}
