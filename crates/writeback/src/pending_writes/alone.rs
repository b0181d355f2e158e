//! Calls that must not be reordered with delayed writes.
//!
//! The module does not know the purpose of such a call. Writes wait while the call runs. Bytes that
//! the call makes void are held back and dropped.

use super::WriteBack;
use super::file::{File as Delayed, State};
use super::stats::Reason;
use hither_vfs::{Attrs, Error, Result, SetAttr};
use std::sync::Arc;
use tokio::time::Instant;

/// A change other than a delayed write, in flight to the layer below. Ends when dropped.
pub(super) struct Through<'a>(&'a Delayed);

impl<'a> Through<'a> {
    pub fn new(file: &'a Delayed) -> Self {
        file.state.lock().view.through += 1;
        Self(file)
    }
}

impl Drop for Through<'_> {
    fn drop(&mut self) {
        let mut s = self.0.state.lock();
        s.view.through -= 1;
        s.view.changed(Instant::now(), 0, None, false);
    }
}

/// While this value lives, no bytes from an offset on are sent.
struct Hold<'a>(&'a Delayed);

impl<'a> Hold<'a> {
    fn new(file: &'a Delayed, from_bytes: u64) -> Self {
        file.state.lock().hold_from = from_bytes;
        Self(file)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.state.lock().hold_from = u64::MAX;
    }
}

/// The order of a call and the file's delayed writes.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// Whether the delayed writes are sent first.
    pub flush: First,
    /// Bytes from this offset on become void.
    pub cut: Option<u64>,
}

/// Whether delayed writes are sent before a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// They are not sent.
    No,
    /// They are sent as far as possible. A later fsync or close returns the error.
    Try,
    /// They must be sent, or the call fails, because it concerns their bytes.
    Must,
}

impl WriteBack {
    /// Runs a call that must not be reordered with writes. `told` returns the attributes in the
    /// call's answer.
    pub(super) async fn alone<T>(
        &self,
        file: &Arc<Delayed>,
        order: Order,
        call: impl Future<Output = Result<T>>,
        told: impl Fn(&T) -> Option<&Attrs>,
    ) -> Result<T> {
        let _gate = file.gate.write().await;
        if order.flush != First::No {
            let flushed = self.flush_bytes(file, Reason::Order, true).await;
            if order.flush == First::Must {
                flushed?;
            }
        }
        let (mut hold, mut old) = (None, None);
        if let Some(size) = order.cut {
            hold = Some(Hold::new(file, size));
            // A modification time that was set before is superseded, unless the call fails.
            let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            let still = |s: &State| !s.extents.is_flying_from(size) && !s.deferred.holds();
            old = file.when(|s| still(s).then(|| s.deferred.withdraw(&set))).await;
            let noted = file.state.lock().journal.cutting(size);
            self.announced(noted).await;
        } else if order.flush == First::Must {
            self.leave_journal(file).await?;
        }
        let through = Through::new(file);
        let outcome = match order {
            // Unsent bytes stay in the journal.
            Order { flush: First::Try, cut: None } => self.touching(&[Some(&file.fh)], call).await,
            _ => call.await,
        };
        drop(through);
        let done = !outcome.as_ref().is_err_and(|e| e.errno == libc::EOPNOTSUPP);
        if order.cut.is_none() && order.flush == First::Must && done {
            self.look_what_it_is(file).await;
        }
        if let (Some(size), Ok(answer)) = (order.cut, &outcome) {
            self.with(file, |s| {
                s.extents.cut(size);
                s.journal.void(size, u64::MAX);
                // The state is recorded together with the void range, and not after the wait. The
                // truncation no longer explains the file. Without the state, the file would look
                // changed by another client.
                if let Some(attrs) = told(answer) {
                    s.journal.saw(attrs);
                }
            });
            self.noted_for_good(file).await;
        }
        let refused = |e: &Error| !matches!(e.errno, libc::EIO | libc::ETIMEDOUT | libc::EINTR);
        match (&outcome, old) {
            (Err(e), Some(old)) if refused(e) => {
                let mut s = file.state.lock();
                s.deferred.restore(old);
                self.look_after(&mut s, file, Instant::now());
            }
            (Err(e), None) if refused(e) => {}
            _ if order.cut.is_some() || order.flush == First::Must => {
                file.state.lock().deferred.modified(None);
                self.times_end(&file.fh);
            }
            _ => {}
        }
        if hold.take().is_some() {
            self.pump(file);
        }
        outcome
    }
}
