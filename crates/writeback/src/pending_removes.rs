//! Delayed removals: a removed name disappears from this mount at once, and from the server soon
//! after.
//!
//! The layer is for mounts whose user declares that no other client uses the file system
//! (`writeback=journal,exclusive,creates=here`). The layer is below the pending creates
//! (`pending_creates`) and above the delayed writes. The journal records each removal, and the name
//! is no longer found in this mount. The server receives the REMOVE right away, for many
//! directories in parallel. The program does not wait for the reply.
//!
//! - `table.rs`: the removed names.
//! - `remove.rs`: the conditions for a delay, and removal at the server.
//! - `vfs.rs`: the calls.
//!
//! **Delayed removals.** A removal is delayed for three kinds of names:
//!
//! - a regular file that is not open and has no other name;
//! - a symbolic link;
//! - a directory in which the server has only names whose removal is delayed too.
//!
//! The caller must have the right to change the parent directory, and the parent must not be
//! sticky. The server executes, or refuses, all other removals before the caller gets an answer.
//!
//! **Order.** A directory is removed after all of its names. Some calls wait for the server to
//! remove the names that they depend on:
//!
//! - a call that creates or moves an object under a removed name;
//! - a call that lists a directory or sets its attributes.
//!
//! **Times.** While removals of a directory wait, it shows the times of the last change by a
//! program. It shows them afterwards, too, until it changes again (`shown`).
//!
//! **Errors.** A removal that may succeed later is repeated. Meanwhile no further removal is
//! delayed. A name whose removal the server refuses for good exists again, and the log reports it.
//!
//! **Journal.** A removal is acknowledged when its record survives a kill of this process. After a
//! crash a name is removed if it still leads to the same object.

mod remove;
mod table;
#[cfg(test)]
mod tests;
mod vfs;

use crate::clock::Clock;
use crate::wal::Wal;
use hither_vfs::{BoxFuture, Env, Fh, Upcalls, Vfs};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use table::Table;
use tokio::sync::Semaphore;

/// Limits of delayed removals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRemovesOptions {
    /// The most delayed removals. Beyond this number the server removes names at once.
    pub most: usize,
    /// Directories in which names are removed at the server at a time.
    pub at_once: usize,
}

impl Default for PendingRemovesOptions {
    fn default() -> Self {
        Self { most: 16 << 10, at_once: 32 }
    }
}

/// Counters of the layer, and its present load.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct PendingRemovesStats {
    /// Names to be removed at the server.
    pub removals_waiting: u64,
    /// Removals that were delayed.
    pub removals_noted: u64,
    /// Delayed removals that the server refused for good.
    pub removals_refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    noted: AtomicU64,
    refused: AtomicU64,
}

/// The layer. See the module.
pub struct PendingRemoves {
    below: Arc<dyn Vfs>,
    wal: Arc<Wal>,
    clock: Clock,
    options: PendingRemovesOptions,
    /// Never held across an await.
    table: Mutex<Table>,
    slots: Semaphore,
    counters: Counters,
    above: OnceLock<Arc<dyn Upcalls>>,
    this: Weak<Self>,
}

impl PendingRemoves {
    /// A layer over `below` without delayed removals. The layer of delayed writes uses the same
    /// journal `wal`. The calls need a tokio runtime.
    pub fn new(below: Arc<dyn Vfs>, env: Env, options: PendingRemovesOptions, wal: Arc<Wal>) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            below,
            wal,
            table: Mutex::new(Table::new((env.random)())),
            clock: Clock::new(env),
            slots: Semaphore::new(options.at_once.max(1)),
            options,
            counters: Counters::default(),
            above: OnceLock::new(),
            this: this.clone(),
        })
    }

    /// Counters of the layer, and its present load.
    pub fn stats(&self) -> PendingRemovesStats {
        let c = &self.counters;
        PendingRemovesStats {
            removals_waiting: self.table().count() as u64,
            removals_noted: c.noted.load(Relaxed),
            removals_refused: c.refused.load(Relaxed),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a method runs, so the object lives")
    }

    fn revoke(&self, dir: &Fh) -> BoxFuture<()> {
        match self.above.get() {
            Some(above) => above.revoke(dir),
            None => Box::pin(std::future::ready(())),
        }
    }
}

impl std::fmt::Debug for PendingRemoves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingRemoves").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
