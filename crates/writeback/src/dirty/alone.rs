//! Calls that no delayed write may overtake or fall behind.
//!
//! It knows nothing of what they do. Writes wait outside for as long as one runs; what it makes
//! void is held back and dropped.

use super::Dirty;
use super::file::{File as Delayed, State};
use super::stats::Reason;
use hither_vfs::{Attrs, Error, Result, SetAttr};
use std::sync::Arc;
use tokio::time::Instant;

/// A change on its way to the layer below that is no delayed write; ends when dropped.
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

/// Nothing from an offset on is sent for as long as this lives.
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

/// How a call stands to the file's delayed writes.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// Whether everything is sent before.
    pub flush: First,
    /// What lies from here on becomes void.
    pub cut: Option<u64>,
}

/// Whether delayed writes are sent before a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// No.
    No,
    /// As far as possible; what cannot be sent is told by fsync or close.
    Try,
    /// The call is about bytes: it fails when they cannot be sent.
    Must,
}

impl Dirty {
    /// Runs a call that no write may overtake or fall behind; `told` are the attributes that its
    /// answer brings.
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
            // A time that was set before is not the last one, unless this fails.
            let set = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            let still = |s: &State| !s.extents.is_flying_from(size) && !s.owed.holds();
            old = file.when(|s| still(s).then(|| s.owed.withdraw(&set))).await;
            let noted = file.state.lock().journal.cutting(size);
            self.announced(noted).await;
        } else if order.flush == First::Must {
            self.leave_journal(file).await?;
        }
        let through = Through::new(file);
        let outcome = match order {
            // Bytes that could not be sent wait in the journal.
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
                // With it, and not after the wait: this cut explains nothing any more, and the file
                // would be somebody else's.
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
                s.owed.restore(old);
                self.look_after(&mut s, file, Instant::now());
            }
            (Err(e), None) if refused(e) => {}
            _ if order.cut.is_some() || order.flush == First::Must => file.state.lock().owed.modified(),
            _ => {}
        }
        if hold.take().is_some() {
            self.pump(file);
        }
        outcome
    }
}
