//! Requests on their way. A call that would send the same request waits for the answer instead.

use hither_vfs::{Error, Fh, Name, RequestContext, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio::sync::watch;

/// A walk: its start, and its names.
pub(super) type Key = (Fh, Vec<Name>);

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
    /// Registers a request, or returns the one on its way. `alone`: sends a request in any case.
    pub fn register(&self, key: &Key, alone: bool) -> std::result::Result<InFlight<'_>, Waiting> {
        let (done, watched) = watch::channel(());
        let mut in_flight = self.in_flight.lock();
        if let Some(other) = in_flight.get(key) {
            if !alone {
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
