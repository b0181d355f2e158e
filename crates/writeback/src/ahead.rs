//! New files, directories and links wait here: they are made on this machine at once, and at the
//! server a little later, whole.
//!
//! For mounts whose user declares that nobody else uses them
//! (`writeback=journal,exclusive,creates=here`). It lies above the delayed writes and knows nothing
//! of them. What a program makes is an object of this layer, with a handle of this layer, in memory
//! and in the journal; calls on it are answered here: writing, reading, attributes, renaming,
//! removing (what is removed soon is never sent). When it has waited long enough, or somebody needs
//! the server to have it, it is created there with all its bytes, mode and times, its directory
//! first, several of a directory in one call, many calls side by side. From then on calls go down
//! with the server's handle; the handle and the number that the layers above know stay as they are
//! until this mount ends.
//!
//! - `table.rs`: what is here, and which handle stands for which. `begin.rs`: making. `change.rs`:
//!   what programs do to an object that is here. `names.rs`: walking over what is here and what is
//!   there. `send.rs`: creating at the server. `vfs.rs`: the calls.
//!
//! **What waits.** Regular files, directories and symbolic links without set-id bits, made by
//! somebody for whom the server was seen to give objects the owner and group expected (one creation
//! goes straight through for that), in a directory in which he may make them. A file waits as long
//! as its bytes fit into one WRITE. Hard links, locks, extended attributes, other owners, other
//! users' calls and whatever else is seldom done to a new file make it go to the server first.
//!
//! **Order.** An object goes after its directory, and after nothing else. A call that goes down
//! sends those objects first that it is about; a listing sends everything that is in the directory.
//! Times of a directory that a program sets while objects of it are here are set when the last of
//! them has gone.
//!
//! **Times.** What is made here has times of this machine's clock, moved by what the server's clock
//! was seen to differ.
//!
//! **Errors.** What may work later (ENOSPC and the like) stays here and is tried again; who closes,
//! syncs or writes the file is told, and new objects are the server's to make as long as it lasts.
//! What the server refuses for good is kept as a conflict and said in the log; calls on the object
//! then fail with the server's error.
//!
//! **Journal.** An object is acknowledged when its record is where a kill of this process does not
//! reach it; `fsync` and `close` wait until it is durable. That the server has it is durable here
//! before anything is done to it there.

mod begin;
mod change;
mod names;
mod send;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod vfs;

use crate::wal::Wal;
use hither_vfs::{BoxFuture, Env, Fh, Time, Upcalls, Vfs};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};
use table::Table;
use tokio::sync::{Notify, Semaphore};

/// What may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AheadOptions {
    /// Age at which an object goes to the server by itself.
    pub age: Duration,
    /// Most bytes of a file that waits: what one WRITE takes.
    pub file_max_bytes: usize,
    /// Most bytes of all of them.
    pub max_bytes: u64,
    /// Most objects that wait: who makes one more waits for room.
    pub most: usize,
    /// Most objects that are remembered under a handle of this layer; then new ones are made at the
    /// server.
    pub most_known: usize,
    /// Calls that create objects at the server at a time.
    pub at_once: usize,
}

impl Default for AheadOptions {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(5),
            file_max_bytes: 1 << 20,
            max_bytes: 64 << 20,
            most: 16 << 10,
            most_known: 512 << 10,
            at_once: 32,
        }
    }
}

/// What it did so far, and what waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct AheadStats {
    /// Objects that wait.
    pub ahead_objects: u64,
    /// Their bytes.
    pub ahead_bytes: u64,
    /// Objects that were made here.
    pub ahead_made: u64,
    /// Of them, created at the server.
    pub ahead_sent: u64,
    /// Of them, removed before.
    pub ahead_dropped: u64,
    /// Of them, refused by the server for good.
    pub ahead_refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    made: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

/// The layer; see the module.
pub struct Ahead {
    below: Arc<dyn Vfs>,
    wal: Arc<Wal>,
    env: Env,
    options: AheadOptions,
    /// Never held across an await.
    table: Mutex<Table>,
    slots: Semaphore,
    /// There is something to send, or less of it.
    work: Arc<Notify>,
    room: Notify,
    counters: Counters,
    above: OnceLock<Arc<dyn Upcalls>>,
    this: Weak<Self>,
}

impl Ahead {
    /// A layer over `below` in which nothing waits. `wal` is the journal that the delayed writes
    /// have as well. Must be called inside a tokio runtime: a task looks after age.
    pub fn new(below: Arc<dyn Vfs>, env: Env, options: AheadOptions, wal: Arc<Wal>) -> Arc<Self> {
        let this = Arc::new_cyclic(|this: &Weak<Self>| Self {
            below,
            wal,
            table: Mutex::new(Table::new((env.random)())),
            env,
            slots: Semaphore::new(options.at_once.max(1)),
            options,
            work: Arc::default(),
            room: Notify::new(),
            counters: Counters::default(),
            above: OnceLock::new(),
            this: this.clone(),
        });
        tokio::spawn(send::look_after_age(Arc::downgrade(&this)));
        this
    }

    /// What was done so far, and what waits.
    pub fn stats(&self) -> AheadStats {
        let (objects, bytes) = {
            let t = self.table();
            (t.here.len() as u64, t.bytes)
        };
        let c = &self.counters;
        AheadStats {
            ahead_objects: objects,
            ahead_bytes: bytes,
            ahead_made: c.made.load(Relaxed),
            ahead_sent: c.sent.load(Relaxed),
            ahead_dropped: c.dropped.load(Relaxed),
            ahead_refused: c.refused.load(Relaxed),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a method runs, so the object lives")
    }

    /// The server's clock, as far as it is known.
    fn now(&self, t: &Table) -> Time {
        let since = (self.env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let nanos = since.as_nanos() as i128 + i128::from(t.offset_nanos);
        let (secs, nanos) = (nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000));
        Time { secs: secs as i64, nanos: nanos as u32 }
    }
}

impl std::fmt::Debug for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ahead").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Stands between the layers below and above when answers are withdrawn: those above know other
/// handles.
struct Relay(Weak<Ahead>);

impl Upcalls for Relay {
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let fh = layer.table().as_seen(fh);
        match layer.above.get() {
            Some(above) => above.withdraw(&fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let seen: Vec<Fh> = files.iter().map(|fh| layer.table().as_seen(fh)).collect();
        match layer.above.get() {
            Some(above) => above.lapse(&seen),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn withdraw_all(&self) -> BoxFuture<()> {
        let layer = self.0.upgrade();
        match layer.as_ref().and_then(|layer| layer.above.get()) {
            Some(above) => above.withdraw_all(),
            None => Box::pin(std::future::ready(())),
        }
    }
}
