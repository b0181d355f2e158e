//! Requests on their way. A call that would send the same request waits for the answer instead.

use hither_vfs::{Error, Fh, Name, RequestContext, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio::sync::watch;

/// Maximum number of requests that a call waits for.
pub(super) const WAITS_MAX: u32 = 2;

/// A request about an object.
pub(super) type Key = (Fh, Question);

/// The kinds of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Question {
    /// A walk of these names. Without names, attributes or a confirmation of absent names.
    Walk(Vec<Name>),
    /// The page of a listing after this cookie, for a caller with this number.
    Page(u64, u32),
    /// The rights of a caller with this number.
    Rights(u32),
}

/// The requests on their way.
#[derive(Debug, Default)]
pub(super) struct SingleFlight {
    in_flight: Mutex<HashMap<Key, watch::Receiver<()>>>,
}

/// A request of this call, registered until it is dropped.
pub(super) struct InFlight<'a> {
    single_flight: &'a SingleFlight,
    key: Option<Key>,
    _done: watch::Sender<()>,
}

/// The same request of another call.
pub(super) struct Waiting(watch::Receiver<()>);

impl Waiting {
    /// Waits until the request has ended, with or without an answer.
    pub async fn wait(mut self, cx: &RequestContext) -> Result<()> {
        tokio::select! {
            // The sender never sends a value: it is dropped when the request ends.
            _ = self.0.changed() => Ok(()),
            () = cx.cancel.cancelled() => Err(Error::new(libc::EINTR)),
        }
    }
}

impl SingleFlight {
    /// Registers a request, or returns the one on its way. `waits` is the number of requests that
    /// the call has waited for. The first may have been sent before the call began, and may be too
    /// old for it. The second was not. Then the call sends a request in any case.
    pub fn register(&self, key: &Key, waits: u32) -> std::result::Result<InFlight<'_>, Waiting> {
        let (done, watched) = watch::channel(());
        let mut in_flight = self.in_flight.lock();
        if let Some(other) = in_flight.get(key) {
            if waits < WAITS_MAX {
                return Err(Waiting(other.clone()));
            }
            return Ok(InFlight { single_flight: self, key: None, _done: done });
        }
        in_flight.insert(key.clone(), watched);
        Ok(InFlight { single_flight: self, key: Some(key.clone()), _done: done })
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.single_flight.in_flight.lock().remove(key);
        }
    }
}
