//! Opens of this layer: each has an open below, or gets one when bytes are missing.

use super::live::{Live, Using};
use hither_vfs::{Cred, Error, Fh, OpenId, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{OnceCell, RwLock};

/// An open file.
pub(super) struct Open {
    pub fh: Fh,
    pub cred: Arc<Cred>,
    pub execute: bool,
    pub reads: bool,
    pub writes: bool,
    /// The open below.
    pub real: OnceCell<OpenId>,
    /// Held for reading by calls below under this open, for writing by its close.
    pub busy: Arc<RwLock<()>>,
    pub closed: AtomicBool,
    /// Bytes returned to the reader.
    pub taken_bytes: AtomicU64,
    pub ahead: Mutex<Ahead>,
    pub live: Arc<Live>,
    pub _using: Using,
}

/// Read-ahead state of an open.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Offset of the next sequential read.
    pub next: u64,
    /// Sequential reads so far.
    pub run: u32,
    /// Length of the read-ahead window, in bytes.
    pub window: u64,
    /// End of the requested range.
    pub upto: u64,
}

#[derive(Default)]
pub(super) struct Opens {
    all: Mutex<HashMap<OpenId, Arc<Open>>>,
    next: AtomicU64,
}

impl Opens {
    pub fn add(&self, open: Open) -> OpenId {
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        self.all.lock().insert(id, Arc::new(open));
        id
    }

    pub fn find(&self, id: OpenId) -> Result<Arc<Open>> {
        self.all.lock().get(&id).cloned().ok_or_else(|| Error::new(libc::EBADF))
    }

    pub fn take(&self, id: OpenId) -> Result<Arc<Open>> {
        self.all.lock().remove(&id).ok_or_else(|| Error::new(libc::EBADF))
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }
}
