//! Questions on their way: who would ask the same waits for the answer instead.

use hither_vfs::{Cx, Error, Fh, Name, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use tokio::sync::watch;

/// A walk: from where, and which names.
pub(super) type Key = (Fh, Vec<Name>);

/// Questions on their way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flying: Mutex<HashMap<Key, watch::Receiver<()>>>,
}

/// A question of our own; over when dropped.
pub(super) struct Flight<'a> {
    flights: &'a Flights,
    key: Option<Key>,
    _landed: watch::Sender<()>,
}

/// Somebody else's question.
pub(super) struct Landing(watch::Receiver<()>);

impl Landing {
    /// Waits for its answer, or its end.
    pub async fn wait(mut self, cx: &Cx) -> Result<()> {
        tokio::select! {
            // The sender never sends: it is dropped at the end.
            _ = self.0.changed() => Ok(()),
            () = cx.cancel.cancelled() => Err(Error::new(libc::EINTR)),
        }
    }
}

impl Flights {
    /// Asks, unless somebody is asking the same already. `alone`: asks in any case.
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
