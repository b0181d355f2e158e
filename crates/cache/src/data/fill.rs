//! Writing behind: blocks are written to the disk after they were returned to the reader, and
//! become durable a little later.
//!
//! One task takes blocks from the queue and writes them. Another task makes entries durable. Both
//! use threads for disk calls. A semaphore bounds the memory of the queue; when it is exhausted,
//! blocks are not added. A disk error drops the entry and stops additions for a while. The writing
//! task also calls the cleaner, for which no reader waits.

use super::entry::Entry;
use super::held::CachedVersion;
use super::live::Using;
use super::shelf::Shelf;
use super::stats::{Counters, add};
use super::{DataCache, QUEUE_UNIT};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

/// Blocks written in one turn.
const BATCH: usize = 64;
/// Interval at which written entries are made durable together.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Entries that the writer evicts per batch, more than a batch adds. The syncing task evicts the
/// rest.
const CLEAN_TURN: u64 = 128;
/// Pause between such turns of the syncing task: readers use the same disk.
const CLEAN_EVERY: Duration = Duration::from_millis(10);
/// Entries waiting to become durable (two open files each) above which the writer makes them
/// durable.
const UNSYNCED_MAX: usize = 128;

/// A block on its way to the disk.
pub(super) struct Job {
    pub held: Arc<CachedVersion>,
    pub block: u64,
    pub bytes: Bytes,
    /// Keeps the version in use, so that an open that follows the last close finds the block.
    pub _using: Arc<Using>,
    /// Released last: a job whose memory is free refers to nothing.
    pub room: OwnedSemaphorePermit,
}

/// Result of an attempt to store a block.
pub(super) enum Put {
    /// The entry took the block.
    Kept(Arc<Entry>),
    /// The file already has its share of a full cache.
    Refused,
    /// The block is present, or there is no room, or the version has ended.
    No,
}

/// The state of disk errors.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    since: Mutex<Option<(Instant, String)>>,
    told: AtomicBool,
    /// The file system has less free space than required.
    low: AtomicBool,
}

impl Trouble {
    /// Counts an error, logs the first one, and stops additions.
    pub fn note(&self, counters: &Counters, e: &io::Error) {
        add(&counters.errors, 1);
        *self.since.lock() = Some((Instant::now(), e.to_string()));
        if !self.told.swap(true, Ordering::AcqRel) {
            tracing::warn!("disk cache: {e}; continuing without adding to it, with retries");
        }
    }

    /// Whether additions are stopped now.
    pub fn is_on(&self, retry: Duration) -> bool {
        self.since.lock().as_ref().is_some_and(|(since, _)| since.elapsed() < retry)
    }

    /// The error, for the user.
    pub fn line(&self, retry: Duration) -> Option<String> {
        let since = self.since.lock();
        let (_, what) = since.as_ref().filter(|(since, _)| since.elapsed() < retry)?;
        Some(format!("the disk of the cache fails: {what}"))
    }

    /// Whether the file system has less free space than required.
    pub fn is_low(&self) -> bool {
        self.low.load(Ordering::Relaxed)
    }

    fn over(&self) {
        *self.since.lock() = None;
        if self.told.swap(false, Ordering::AcqRel) {
            tracing::info!("disk cache: the disk works again");
        }
    }
}

/// Entries with blocks that are not durable.
#[derive(Default)]
struct Unsynced(Mutex<HashMap<u64, Arc<Entry>>>);

/// Runs until the cache is dropped.
pub(super) async fn run(disk: Weak<DataCache>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let unsynced = Arc::new(Unsynced::default());
    let syncer = tokio::spawn(sync_now_and_then(disk.clone(), unsynced.clone()));
    let mut batch = Vec::with_capacity(BATCH);
    while jobs.recv_many(&mut batch, BATCH).await > 0 {
        let Some(disk) = disk.upgrade() else { break };
        let (todo, unsynced) = (std::mem::take(&mut batch), unsynced.clone());
        let worked = disk.clone();
        if disk.blocking(move || worked.write_batch(todo, &unsynced)).await.is_err() {
            break;
        }
    }
    syncer.abort();
}

async fn sync_now_and_then(disk: Weak<DataCache>, unsynced: Arc<Unsynced>) {
    let mut behind = false;
    loop {
        if !behind {
            tokio::time::sleep(SYNC_EVERY).await;
        }
        let Some(disk) = disk.upgrade() else { return };
        let (worked, unsynced) = (disk.clone(), unsynced.clone());
        let Ok(mut cleaned) = disk.blocking(move || worked.tidy(&unsynced)).await else { return };
        // At most until the next sync is due.
        let until = Instant::now() + SYNC_EVERY;
        while cleaned == CLEAN_TURN && Instant::now() < until {
            tokio::time::sleep(CLEAN_EVERY).await;
            let worked = disk.clone();
            let Ok(more) = disk.blocking(move || worked.clean_some()).await else { return };
            cleaned = more;
        }
        behind = cleaned == CLEAN_TURN;
    }
}

impl DataCache {
    /// Whether fetched bytes are to be written to the disk.
    pub(super) fn may_store(&self) -> bool {
        !self.options.read_only
            && self.is_on()
            && !self.trouble.is_low()
            && self.shelf().is_some_and(|shelf| !shelf.is_full())
    }

    fn write_batch(&self, batch: Vec<Job>, unsynced: &Unsynced) {
        let Some(shelf) = self.shelf() else {
            batch.iter().for_each(|job| job.held.unready(job.block));
            return;
        };
        for job in batch {
            if !job.held.is_dead() && self.is_on() {
                match self.put_job(&shelf, &job) {
                    Ok(Put::Kept(entry)) => {
                        unsynced.0.lock().insert(entry.id, entry);
                    }
                    Ok(Put::Refused) => {
                        add(&self.counters.refused_large, 1);
                        self.passing.take(job);
                        continue;
                    }
                    Ok(Put::No) => {}
                    Err(e) => self.failed(&shelf, &job.held, &e),
                }
            }
            job.held.unready(job.block);
        }
        if unsynced.0.lock().len() >= UNSYNCED_MAX {
            self.sync_all(&shelf, unsynced);
        }
        // The cleaner works in small turns: the queue waits meanwhile.
        self.clean(&shelf, CLEAN_TURN);
    }

    /// Stores a block, if its file may have more.
    pub(super) fn put_job(&self, shelf: &Shelf, job: &Job) -> io::Result<Put> {
        let held = &job.held;
        let entry = match held.entry().filter(|e| !e.is_dead()) {
            Some(entry) => entry,
            None => {
                let entry = match self.inherit(shelf, &held.fh, held.version) {
                    Some(entry) => entry,
                    None => shelf.create(&held.fh, held.version, self.now_s())?,
                };
                held.set_entry(&entry);
                entry
            }
        };
        let admitted = shelf.admits(&entry, job.bytes.len() as u64);
        let put = admitted && shelf.put(&entry, job.block, &job.bytes)?;
        if held.is_dead() {
            // The call that ended the version dropped its entry, possibly just before this one was
            // created. With a slow clock, the next version may look the same.
            shelf.forget(entry.key, Some(entry.id));
        }
        Ok(if put {
            Put::Kept(entry)
        } else if admitted {
            Put::No
        } else {
            Put::Refused
        })
    }

    fn failed(&self, shelf: &Shelf, held: &CachedVersion, e: &io::Error) {
        if let Some(entry) = held.entry() {
            held.drop_entry(&entry);
            shelf.forget(entry.key, Some(entry.id));
        }
        shelf.empty_trash();
        self.trouble.note(&self.counters, e);
    }

    fn sync_all(&self, shelf: &Shelf, unsynced: &Unsynced) {
        let mut todo = std::mem::take(&mut *unsynced.0.lock()).into_iter();
        let mut worked = false;
        while let Some((_, entry)) = todo.next() {
            match entry.sync() {
                Ok(()) => worked = true,
                Err(e) => {
                    // The entry may have lost bytes.
                    shelf.forget(entry.key, Some(entry.id));
                    self.trouble.note(&self.counters, &e);
                    // The others may still become durable.
                    unsynced.0.lock().extend(todo);
                    return;
                }
            }
        }
        if worked && !self.trouble.is_on(self.options.retry) {
            self.trouble.over();
        }
    }

    fn tidy(&self, unsynced: &Unsynced) -> u64 {
        let Some(shelf) = self.shelf() else { return 0 };
        self.sync_all(&shelf, unsynced);
        self.own.drop_old(&shelf);
        shelf.empty_trash();
        self.share(&shelf);
        self.clean(&shelf, CLEAN_TURN)
    }

    /// Keeps the limits of the whole directory.
    fn share(&self, shelf: &Shelf) {
        let Some(total) = shelf.total.get() else { return };
        let bytes = || shelf.size().1;
        total.set_over(self.emptied.make_room(total, bytes, &self.counters, &self.env.random));
    }

    fn clean_some(&self) -> u64 {
        self.shelf().map_or(0, |shelf| self.clean(&shelf, CLEAN_TURN))
    }

    /// Evicts at most `most` entries; returns their number.
    fn clean(&self, shelf: &Shelf, most: u64) -> u64 {
        if self.options.read_only {
            return 0;
        }
        let gone = shelf.clean(most);
        self.trouble.low.store(!shelf.is_space_left(), Ordering::Relaxed);
        gone
    }

    /// Returns when all queued blocks are on the disk and durable, or the wait for the queue
    /// exceeds `within`.
    pub(super) async fn drain(&self, within: Duration) {
        let all = u32::try_from(self.options.queue_bytes / QUEUE_UNIT).unwrap_or(u32::MAX);
        let _no_more = self.passing.close();
        if tokio::time::timeout(within, self.queue.acquire_many(all)).await.is_err() {
            tracing::debug!("disk cache: some queued blocks were not written before the shutdown");
        }
        let Some(shelf) = self.shelf() else { return };
        let sync = move || {
            for key in shelf.keys() {
                if let Some(entry) = shelf.in_use(key)
                    && entry.is_unsynced()
                    && entry.sync().is_err()
                {
                    shelf.forget(key, Some(entry.id));
                }
            }
            shelf.empty_trash();
        };
        let _ = self.blocking(sync).await;
    }
}
