//! Pending creates: new files, directories and links exist in this mount at once. The server
//! receives them a little later, complete.
//!
//! The layer is for mounts whose user declares that no other client uses the file system
//! (`writeback=journal,exclusive,creates=here`). The layer is above the delayed writes and knows
//! nothing of them. A created object is kept in memory and in the journal, under a handle of this
//! layer. The layer answers writes, reads, attribute calls, renames and removals of the object. An
//! object that is removed soon is never sent.
//!
//! An object is sent when it is old enough, or when a call needs the server to have it. The server
//! then creates the object with all its bytes, mode and times. Its directory is created first. One
//! call creates several objects of a directory, and many calls run in parallel. Later calls use the
//! server's handle. The layers above keep the handle and file number of this layer until this mount
//! ends.
//!
//! - `table.rs`: the pending objects, and the translation of handles.
//! - `begin.rs`: creation of pending objects.
//! - `change.rs`: calls on pending objects.
//! - `names.rs`: walks over pending objects and the server's objects.
//! - `send.rs`: creation at the server.
//! - `vfs.rs`: the calls.
//!
//! **Pending objects.** Regular files, directories and symbolic links without set-id bits may be
//! pending. Two conditions hold for the caller:
//!
//! - The server is known to give the caller's objects the expected owner and group. One creation
//!   is executed by the server at once to learn that.
//! - The caller may create objects in the directory.
//!
//! A file is pending as long as its bytes fit into one WRITE. Some calls send the object first:
//! hard links, locks, extended attributes, changes of the owner, calls of other users, and other
//! calls that are rare for a new file.
//!
//! **Order.** An object is sent after its directory, without any other order. A call to the server
//! first sends the objects that it depends on. A listing sends all objects in the directory. A
//! program may set times of a directory with pending objects. The server receives these times after
//! the last of the objects.
//!
//! **Times.** Pending objects have times of this machine's clock, corrected by the observed
//! difference to the server's clock.
//!
//! **Errors.** After an error like ENOSPC the object stays pending and is sent again later. A
//! close, sync or write of the file returns the error. Meanwhile the server creates all new
//! objects. An object that the server refuses for good is kept as a conflict, and the log reports
//! it. Later calls on the object fail with the server's error.
//!
//! **Journal.** A creation is acknowledged when its record survives a kill of this process. `fsync`
//! and `close` wait until the record is durable. After the server has created an object, a durable
//! record of that precedes any further call on it.

mod begin;
mod change;
mod names;
mod send;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod vfs;

use crate::clock::Clock;
use crate::wal::Wal;
use hither_vfs::{BoxFuture, Env, Fh, Upcalls, Vfs};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use table::Table;
use tokio::sync::{Notify, Semaphore};

/// Limits of pending objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCreatesOptions {
    /// The age at which an object is sent.
    pub age: Duration,
    /// The most bytes of a pending file: the size of one WRITE.
    pub file_max_bytes: usize,
    /// The most bytes of all pending files.
    pub max_bytes: u64,
    /// The most pending objects. The creator of a further object waits for room.
    pub most: usize,
    /// The most objects that are remembered under a handle of this layer. Beyond this number the
    /// server creates new objects.
    pub most_known: usize,
    /// Calls at a time that create objects at the server.
    pub at_once: usize,
}

impl Default for PendingCreatesOptions {
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

/// Counters of the layer, and its present load.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct PendingCreatesStats {
    /// Pending objects.
    pub ahead_objects: u64,
    /// The bytes of pending objects.
    pub ahead_bytes: u64,
    /// Objects that were created as pending.
    pub ahead_made: u64,
    /// Pending objects that the server has created.
    pub ahead_sent: u64,
    /// Pending objects that were removed before they were sent.
    pub ahead_dropped: u64,
    /// Pending objects that the server refused for good.
    pub ahead_refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    made: AtomicU64,
    sent: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

/// The layer. See the module.
pub struct PendingCreates {
    below: Arc<dyn Vfs>,
    wal: Arc<Wal>,
    clock: Clock,
    options: PendingCreatesOptions,
    /// Never held across an await.
    table: Mutex<Table>,
    slots: Semaphore,
    /// Wakes the sending task, because a creator waits for room.
    work: Arc<Notify>,
    room: Notify,
    counters: Counters,
    above: OnceLock<Arc<dyn Upcalls>>,
    this: Weak<Self>,
}

impl PendingCreates {
    /// A layer over `below` without pending objects. The layer of delayed writes uses the same
    /// journal `wal`. Must be called inside a tokio runtime, because a task sends old objects.
    pub fn new(below: Arc<dyn Vfs>, env: Env, options: PendingCreatesOptions, wal: Arc<Wal>) -> Arc<Self> {
        let this = Arc::new_cyclic(|this: &Weak<Self>| Self {
            below,
            wal,
            table: Mutex::new(Table::new((env.random)())),
            clock: Clock::new(env),
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

    /// Counters of the layer, and its present load.
    pub fn stats(&self) -> PendingCreatesStats {
        let (objects, bytes) = {
            let t = self.table();
            (t.here.len() as u64, t.bytes)
        };
        let c = &self.counters;
        PendingCreatesStats {
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
}

impl std::fmt::Debug for PendingCreates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingCreates").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Translates the handles of withdrawn answers for the layers above.
struct Relay(Weak<PendingCreates>);

impl Upcalls for Relay {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let fh = layer.table().as_seen(fh);
        match layer.above.get() {
            Some(above) => above.revoke(&fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let seen: Vec<Fh> = files.iter().map(|fh| layer.table().as_seen(fh)).collect();
        match layer.above.get() {
            Some(above) => above.expire(&seen),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        let layer = self.0.upgrade()?;
        let fh = layer.table().as_seen(fh);
        layer.above.get()?.path(&fh)
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        let layer = self.0.upgrade();
        match layer.as_ref().and_then(|layer| layer.above.get()) {
            Some(above) => above.revoke_all(),
            None => Box::pin(std::future::ready(())),
        }
    }
}
