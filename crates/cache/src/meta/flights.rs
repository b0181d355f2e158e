//! Requests on their way. A call that would send the same request waits for the answer instead.

use hither_vfs::{Cx, Error, Fh, Name, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio::sync::watch;

/// A walk: its start, and its names.
pub(super) type Key = (Fh, Vec<Name>);

/// The requests on their way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flying: Mutex<HashMap<Key, watch::Receiver<()>>>,
}

/// A request of this call, registered until it is dropped.
pub(super) struct Flight<'a> {
    flights: &'a Flights,
    key: Option<Key>,
    _landed: watch::Sender<()>,
}

/// The same request of another call.
pub(super) struct Landing(watch::Receiver<()>);

impl Landing {
    /// Waits until the request has ended, with or without an answer.
    pub async fn wait(mut self, cx: &Cx) -> Result<()> {
        tokio::select! {
            // The sender never sends a value: it is dropped when the request ends.
            _ = self.0.changed() => Ok(()),
            () = cx.cancel.cancelled() => Err(Error::new(libc::EINTR)),
        }
    }
}

impl Flights {
    /// Registers a request, or returns the one on its way. `alone`: sends a request in any case.
    pub fn board(&self, key: &Key, alone: bool) -> std::result::Result<Flight<'_>, Landing> {
        let (landed, watched) = watch::channel(());
        let mut flying = self.flying.lock();
        if let Some(other) = flying.get(key) {
            if !alone {
                return Err(Landing(other.clone()));
            }
            return Ok(Flight { flights: self, key: None, _landed: landed });
        }
        flying.insert(key.clone(), watched);
        Ok(Flight { flights: self, key: Some(key.clone()), _landed: landed })
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            self.flights.flying.lock().remove(key);
        }
    }
}
