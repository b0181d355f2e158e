//! Removals wait here: a name is gone for this mount at once, and at the server a little later.
//!
//! For mounts whose user declares that nobody else uses them
//! (`writeback=journal,exclusive,creates=here`). It lies below the new objects that wait (`ahead`)
//! and above the delayed writes. What a program removes is noted in the journal, is not found here
//! any more, and is removed at the server right away, in many directories side by side; only the
//! program does not wait for that.
//!
//! - `table.rs`: which names are gone. `remove.rs`: what may wait, and removing at the server.
//!   `vfs.rs`: the calls.
//!
//! **What waits.** Names of regular files that nobody has open and that have no other name, of
//! symbolic links, and of directories in which the server has nothing but what waits here as well;
//! in directories that the caller may change and that are not sticky. Everything else is the
//! server's to do, and to refuse.
//!
//! **Order.** A directory is removed after everything in it. A call that makes or moves something
//! under a name that is gone, that lists a directory or sets its attributes, waits until the server
//! has removed what it is about.
//!
//! **Errors.** What may work later is tried again, and meanwhile nothing new waits. What the server
//! refuses for good is there again, and the log says so.
//!
//! **Journal.** A removal is acknowledged when its record is where a kill of this process does not
//! reach it. After a crash a name is removed when it still leads to the object that it led to.

mod remove;
mod table;
#[cfg(test)]
mod tests;
mod vfs;

use crate::wal::Wal;
use hither_vfs::{BoxFuture, Env, Fh, Upcalls, Vfs};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use table::Table;
use tokio::sync::Semaphore;

/// What may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovalsOptions {
    /// Most names that wait: further ones are the server's to remove.
    pub most: usize,
    /// Directories in which names are removed at the server at a time.
    pub at_once: usize,
}

impl Default for RemovalsOptions {
    fn default() -> Self {
        Self { most: 16 << 10, at_once: 32 }
    }
}

/// What it did so far, and what waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct RemovalsStats {
    /// Names that wait to be removed at the server.
    pub removals_waiting: u64,
    /// Names that were removed here first.
    pub removals_noted: u64,
    /// Of them, refused by the server for good.
    pub removals_refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    noted: AtomicU64,
    refused: AtomicU64,
}

/// The layer; see the module.
pub struct Removals {
    below: Arc<dyn Vfs>,
    wal: Arc<Wal>,
    env: Env,
    options: RemovalsOptions,
    /// Never held across an await.
    table: Mutex<Table>,
    slots: Semaphore,
    counters: Counters,
    above: OnceLock<Arc<dyn Upcalls>>,
    this: Weak<Self>,
}

impl Removals {
    /// A layer over `below` in which nothing waits. `wal` is the journal that the delayed writes
    /// have as well. Its calls need a tokio runtime.
    pub fn new(below: Arc<dyn Vfs>, env: Env, options: RemovalsOptions, wal: Arc<Wal>) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            below,
            wal,
            table: Mutex::new(Table::new((env.random)())),
            env,
            slots: Semaphore::new(options.at_once.max(1)),
            options,
            counters: Counters::default(),
            above: OnceLock::new(),
            this: this.clone(),
        })
    }

    /// What was done so far, and what waits.
    pub fn stats(&self) -> RemovalsStats {
        let c = &self.counters;
        RemovalsStats {
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

    fn withdraw(&self, dir: &Fh) -> BoxFuture<()> {
        match self.above.get() {
            Some(above) => above.withdraw(dir),
            None => Box::pin(std::future::ready(())),
        }
    }
}

impl std::fmt::Debug for Removals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removals").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
