//! Write-back: writes are answered from memory, merged, and sent later.
//!
//! The layer knows nothing of NFS. The layer below is a [`Vfs`] that keeps acknowledged unstable
//! bytes until they are committed. This layer promises as much as a local page cache, and
//! close-to-open. A write is answered at once, and every read through this layer sees it. `commit`
//! (fsync) and `close` return when all bytes are on stable storage, or return the error.
//!
//! **Sending.** Written bytes become dirty extents (`extents.rs`) under the open and credential of
//! their writer. A chunk of `wsize_bytes` without gaps is sent at once, so that a sequential writer
//! keeps several WRITEs in flight. Other bytes are sent at fsync or close, by age, for lack of
//! room, or before a call that needs the server to have them. Overlapping versions of a byte reach
//! the server one after the other. The remaining bytes at fsync or close are written with
//! `Stability::Stable` when they fit into one WRITE, which saves the COMMIT. Bytes with gaps are
//! sent in parallel, with one COMMIT after them.
//!
//! **Room.** A mount has at most `dirty_max_bytes` of dirty bytes. A file may have as many bytes as
//! are free, and at most `file_max_bytes`. Under n files at top speed 1/(n+1) of the room therefore
//! stays free for others. A writer without room waits until some bytes of its own file were sent. A
//! file without dirty bytes that finds no room is written through.
//!
//! **Order.** A change of length waits for the bytes in flight beyond the new length, and drops the
//! dirty bytes there. Other changes of attributes, allocation, hole punching, copies, locks and
//! `O_SYNC` writes send the file first. A later WRITE would spoil their effect, or another client
//! must see the bytes. Two handles of one file are two files in this layer.
//!
//! **Attributes** that a file's creator sets wait for the file's last bytes (`deferred.rs`). One
//! call sends both (`finish.rs`) when the bytes fit into one WRITE. A small file thus costs its
//! creation and that call.
//!
//! **Errors.** A permanent refusal (EACCES, EROFS, EFBIG, ESTALE and the like) drops the bytes, as
//! Linux does. After any other error (ENOSPC, EDQUOT, EIO of a silent server) the bytes are kept.
//! The same holds when the server judged nothing, because no ticket of the user worked
//! ([`Error::is_unproven`](hither_vfs::Error)). They are sent again by every fsync, by writes, and
//! by a timer with growing pauses. The close of the open that wrote them drops the bytes and
//! returns the error. Each open of the file gets an error once, at its next write, fsync or close.
//! An fsync whose own attempt fails always returns the error. While bytes are kept after an error,
//! writes fail with the same error and take no bytes, so that a full server looks full. Where the
//! server judged nothing, each write tries again first, because the ticket may work by now.
//!
//! **Journal** ([`WriteBack::with_journal`]). A write is acknowledged when a journal on the local
//! disk has it. The record leaves the journal when the server has the bytes on stable storage. See
//! `journal.rs` and [`crate::wal`].
//!
//! **Gaps** (`fills_gaps`). Under a write delegation, the file has no bytes beyond the server's
//! length except those of this layer. A small gap between two pieces there is sent as zeros, so
//! that both pieces are one WRITE. Such a flight is valid under the delegation only
//! (`RequestContext::only_held`). After a refusal or without an answer the pieces are sent
//! separately, because others may have written into the gap.
//!
//! **Lazy closes** (`lazy_close`). A close leaves unsent bytes to the timer and returns the errors
//! known so far. See `lazy.rs`.
//!
//! **Visible attributes.** The size is the larger of the server's size and the end of the local
//! bytes. While a file has local bytes, the times are those of the last write by the server's
//! clock, as this machine knows it ([`crate::clock`]). They are valid for one answer only.
//!
//! A program that writes a file and reads its times before the close (git, tar) gets the final
//! times. Where this mount is the authority for the file, the times that a program saw are sent
//! with the bytes (`seen.rs`). Elsewhere the server sets its own times. A request for the
//! attributes of a file with few dirty bytes (`stat_flush_bytes`) therefore sends these first, at
//! most once in `dirty_age`. Nothing of that happens when no program sees the times
//! ([`RequestContext::times_unseen`](hither_vfs::RequestContext)). The kernel asks for attributes
//! before each read(2) that follows a write(2).
//!
//! From the first local write on, the change attribute is a value of this layer, with a new one for
//! each write. The value stays when own bytes are sent: the server's value then changes without new
//! content, and the kernel must not drop its pages. Once no own change is in flight, the layer
//! remembers the server's value. A different server value later is a change by another client, and
//! a new value is shown.
//!
//! A write by another client between two own writes looks like an own write. Each open after own
//! bytes were sent therefore gets a new value, so that it does not trust pages read earlier. Under
//! a lease no other client can write, and the value stays.

mod alone;
mod deferred;
mod errors;
mod extents;
mod file;
mod finish;
mod flush;
mod journal;
mod lazy;
mod leaving;
mod many;
mod questions;
mod read;
mod seen;
mod send_deferred;
mod stats;
mod vfs;
mod wait;
mod write;

#[cfg(test)]
pub(crate) mod tests;

pub use stats::WriteBackStats;
pub(crate) use wait::patient;

use crate::clock::Clock;
use crate::shown::ShownTimes;
use crate::wal::Wal;
use file::File;
use flush::Ages;
use hither_vfs::{
    Attrs, BoxFuture, Env, Fh, FileKind, LeaseAuthority, Name, Node, RequestContext, Result, Unsent, Upcalls,
    Vfs,
};
use journal::Uncommitted;
use parking_lot::{Mutex, RwLock};
use questions::{Keep, Questions};
use stats::{Counters, Reason};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::TaskTracker;

/// Options of the layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteBackOptions {
    /// No write is delayed. Every call is passed on at once (`sync`).
    pub write_through: bool,
    /// The close of a file does not wait until the file is sent (`close=lazy`).
    pub lazy_close: bool,
    /// Like `lazy_close`, for files under a write delegation. With a journal, their close and fsync
    /// wait for the journal only (`close=delegated`).
    pub delegated_close: bool,
    /// The most bytes of one WRITE. A chunk of this size is sent at once.
    pub wsize_bytes: u32,
    /// The age at which bytes are sent.
    pub dirty_age: Duration,
    /// The most dirty bytes of all files.
    pub dirty_max_bytes: u64,
    /// The most dirty bytes of one file.
    pub file_max_bytes: u64,
    /// The most separate pieces of one file. This bounds their memory beside the bytes.
    pub most_pieces: usize,
    /// The most WRITEs of whole chunks in flight for one file.
    pub flights_per_file: usize,
    /// The most smaller WRITEs in flight for one file. Together they have no more bytes than the
    /// whole chunks.
    pub small_flights_per_file: usize,
    /// The most WRITEs in flight.
    pub flights: usize,
    /// A request for attributes sends at most this many dirty bytes of the file first, where the
    /// server is the authority for its times. 0: never.
    pub stat_flush_bytes: u64,
    /// Times and permissions that a file's creator sets wait for the file's last bytes.
    pub delay_attributes: bool,
    /// Small gaps between bytes are sent as zeros while no other client can change the file. The
    /// layer below must honour `RequestContext::only_held`.
    pub fills_gaps: bool,
    /// The caller makes copies of at most this many bytes itself (`EOPNOTSUPP`). The open of the
    /// source brings these bytes, and the end of the target sends them, while a copy at the server
    /// needs extra calls. 0: the server makes all copies.
    pub small_copy_bytes: u64,
    /// The user promises that no other client writes. With a journal, fsync and close wait for the
    /// journal only.
    pub exclusive: bool,
}

impl Default for WriteBackOptions {
    fn default() -> Self {
        Self {
            write_through: false,
            lazy_close: false,
            delegated_close: false,
            wsize_bytes: 1 << 20,
            dirty_age: Duration::from_secs(5),
            dirty_max_bytes: 256 << 20,
            file_max_bytes: 64 << 20,
            most_pieces: 16 << 10,
            flights_per_file: 8,
            small_flights_per_file: 24,
            flights: 64,
            stat_flush_bytes: 8 << 20,
            delay_attributes: true,
            fills_gaps: false,
            small_copy_bytes: 0,
            exclusive: false,
        }
    }
}

/// The layer. See the module.
pub struct WriteBack {
    below: Arc<dyn Vfs>,
    leases: Arc<dyn LeaseAuthority>,
    options: WriteBackOptions,
    /// The files with state. Locked before a file's state, never across an await.
    files: RwLock<HashMap<Fh, Arc<File>>>,
    /// Bytes dirty, in flight, and reserved for a write.
    total: AtomicU64,
    /// Wakes writers: `total` became smaller.
    freed: Notify,
    slots: Semaphore,
    /// Opens that the program has closed and the layer below has not.
    lazy: AtomicUsize,
    /// The tasks that close them.
    lazy_closes: TaskTracker,
    /// The last files whose unsent bytes were dropped.
    abandoned: Mutex<VecDeque<Arc<File>>>,
    ages: Arc<Ages>,
    questions: Questions,
    /// The number of files that left the table.
    forgotten: AtomicU64,
    /// Names that are being opened.
    opening: Mutex<Vec<(Option<Fh>, Name)>>,
    counters: Counters,
    wal: Option<Arc<Wal>>,
    uncommitted: Arc<Uncommitted>,
    last_change: AtomicU64,
    clock: Clock,
    /// Users whose new files belong to them at the server, each with the file system.
    owners: RwLock<HashSet<((u64, u64), u32)>>,
    /// Times that programs saw before the server had the bytes. Locked after a file's state.
    shown: Mutex<ShownTimes>,
    above: OnceLock<Arc<dyn Upcalls>>,
    this: Weak<Self>,
}

impl WriteBack {
    /// A layer over `below` without written bytes. Must be called inside a tokio runtime, because a
    /// task sends old bytes.
    pub fn new(
        below: Arc<dyn Vfs>,
        leases: Arc<dyn LeaseAuthority>,
        env: Env,
        options: WriteBackOptions,
    ) -> Arc<Self> {
        Self::with_journal(below, leases, env, options, None)
    }

    /// Like [`WriteBack::new`], with a journal that has each write before its acknowledgement.
    pub fn with_journal(
        below: Arc<dyn Vfs>,
        leases: Arc<dyn LeaseAuthority>,
        env: Env,
        options: WriteBackOptions,
        wal: Option<Arc<Wal>>,
    ) -> Arc<Self> {
        let journaled = wal.is_some();
        let ages = Arc::new(Ages::default());
        let this = Arc::new_cyclic(|this: &Weak<Self>| Self {
            below,
            leases,
            files: RwLock::default(),
            total: AtomicU64::new(0),
            freed: Notify::new(),
            slots: Semaphore::new(options.flights.max(1)),
            lazy: AtomicUsize::new(0),
            lazy_closes: TaskTracker::new(),
            abandoned: Mutex::default(),
            ages: ages.clone(),
            questions: Questions::default(),
            forgotten: AtomicU64::new(0),
            opening: Mutex::default(),
            counters: Counters::default(),
            wal,
            uncommitted: Arc::default(),
            last_change: AtomicU64::new((env.random)()),
            above: OnceLock::new(),
            this: this.clone(),
            clock: Clock::new(env),
            owners: RwLock::default(),
            shown: Mutex::default(),
            options,
        });
        tokio::spawn(flush::age(Arc::downgrade(&this), ages));
        if journaled {
            tokio::spawn(journal::make_room(Arc::downgrade(&this)));
        }
        this
    }

    /// Counters of the layer, and its present load.
    pub fn stats(&self) -> WriteBackStats {
        let files = self.dirty().len() as u64;
        self.counters.read(files, self.total.load(Ordering::Relaxed), self.options.dirty_max_bytes)
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a method runs, so the object lives")
    }

    /// A change value that was not shown before.
    fn next_change(&self) -> u64 {
        self.last_change.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    fn known(&self, fh: &Fh) -> Option<Arc<File>> {
        self.files.read().get(fh).cloned()
    }

    fn file(&self, fh: &Fh) -> Arc<File> {
        if let Some(file) = self.known(fh) {
            return file;
        }
        // The copy does not keep the received message in memory.
        let fh = Fh(bytes::Bytes::copy_from_slice(&fh.0));
        let chunk = u64::from(self.options.wsize_bytes);
        self.files
            .write()
            .entry(fh.clone())
            .or_insert_with(|| Arc::new(File::new(fh, chunk, self.wal.as_ref())))
            .clone()
    }

    /// Whether the table has no files besides those of [`WriteBack::remember`].
    #[cfg(test)]
    pub(crate) fn holds_no_file(&self) -> bool {
        let is_over = |file: &Arc<File>| {
            let s = file.state.lock();
            s.is_done() && s.is_remembered
        };
        self.files.read().values().all(is_over)
    }

    fn dirty(&self) -> Vec<Arc<File>> {
        self.files.read().values().filter(|f| !f.state.lock().is_settled()).cloned().collect()
    }

    /// Drops a file without state from the table.
    fn tidy(&self, file: &Arc<File>) {
        let spoilt = {
            let mut s = file.state.lock();
            if !s.is_idle() || s.lingers || s.forgotten {
                return;
            }
            // Since the file was last kept, all older questions were answered, and no own change
            // ended.
            if s.view.ended == s.kept {
                Keep::No
            } else {
                s.kept = s.view.ended;
                let keep = self.questions.keep(file);
                s.lingers = matches!(keep, Keep::Yes);
                keep
            }
        };
        match spoilt {
            Keep::Yes => return,
            Keep::Spoil(files) => self.let_go(files),
            Keep::No => {}
        }
        let mut files = self.files.write();
        let mut s = file.state.lock();
        if s.is_idle() && !s.lingers && !s.forgotten {
            s.forgotten = true;
            self.forgotten.fetch_add(1, Ordering::SeqCst);
            if let Some(place) = s.queued.take() {
                self.ages.remove(place);
            }
            files.remove(&file.fh);
        }
    }

    /// Adjusts attributes from below to the local state.
    fn show(&self, fh: &Fh, attrs: &mut Attrs) {
        if attrs.attr.kind == FileKind::Regular {
            if let Some(file) = self.known(fh) {
                file.state.lock().show(attrs, self.next_change());
            }
            self.shown.lock().show(fh, attrs, true);
        }
    }

    fn show_nodes<'a>(&self, nodes: impl Iterator<Item = &'a mut Node>) {
        if self.files.read().is_empty() && self.shown.lock().is_empty() {
            return;
        }
        nodes.for_each(|node| self.show(&node.fh, &mut node.attrs));
    }

    /// Sends all dirty bytes of all files.
    async fn flush_all(&self, reason: Reason) -> Result<()> {
        let mut flushes = tokio::task::JoinSet::new();
        for file in self.dirty() {
            let this = self.this();
            flushes.spawn(async move { this.flush(&file, reason, false).await });
        }
        flushes.join_all().await.into_iter().collect()
    }

    async fn flush_delayed(&self, fh: &Fh) {
        let Some(file) = self.known(fh) else { return };
        // The file records its errors.
        let _ = self.flush(&file, Reason::Recall, false).await;
        // This also waits for a commit of another task.
        if let Err(e) = self.commit_below(&file).await {
            file.state.lock().errors.record(e);
        }
        self.tidy(&file);
    }

    /// Reports acknowledged bytes of a file that the server will never have.
    fn report_loss(&self, file: &File, bytes: Option<u64>, why: &hither_vfs::Error) {
        let path = self.above.get().and_then(|above| above.path(&file.fh));
        tracing::error!(
            path = path.as_deref().unwrap_or("unknown"), fh = ?file.fh, bytes, error = %why,
            "written data is lost: mend the cause, and write the file again"
        );
    }

    fn own_cx(&self) -> RequestContext {
        RequestContext::new(Arc::new(hither_vfs::Cred::root()))
    }
}

/// Whether another attempt would get the same refusal.
pub(crate) fn is_final(e: &hither_vfs::Error) -> bool {
    if e.is_lost || e.is_unproven {
        return e.is_lost;
    }
    matches!(
        e.errno,
        libc::EACCES
            | libc::EBADF
            | libc::EFBIG
            | libc::EINVAL
            | libc::EISDIR
            | libc::ENOENT
            | libc::ENXIO
            | libc::EPERM
            | libc::EROFS
            | libc::ESTALE
    )
}

impl std::fmt::Debug for WriteBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteBack").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.ages.wake();
    }
}

/// Passes withdrawn answers from the layers below to those above.
struct Relay(Weak<WriteBack>);

impl Upcalls for Relay {
    /// The layers above withdraw first, because the kernel may have pages to write back. Then the
    /// dirty bytes are sent and committed. At the end a delegation may be returned.
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        if let Some(file) = layer.known(fh) {
            file.state.lock().view.forget();
        }
        let above = layer.above.get().map(|above| above.revoke(fh));
        let fh = fh.clone();
        finished(async move {
            if let Some(above) = above {
                above.await;
            }
            layer.flush_delayed(&fh).await;
        })
    }

    /// The dirty bytes are sent when the removal fails ([`leaving::Losing`]).
    fn withdraw_unused(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        if let Some(file) = layer.known(fh) {
            let mut s = file.state.lock();
            if !s.losing_name {
                // Another part of the mount removes another name.
                drop(s);
                return self.revoke(fh);
            }
            s.view.forget();
        }
        match layer.above.get() {
            Some(above) => above.revoke(fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    /// Dirty bytes stay delayed, because a lapsed validity never excluded other writers.
    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        for file in files.iter().filter_map(|fh| layer.known(fh)) {
            file.state.lock().view.forget();
        }
        match layer.above.get() {
            Some(above) => above.expire(files),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn flush(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let fh = fh.clone();
        finished(async move { layer.flush_delayed(&fh).await })
    }

    fn flush_unused(&self, fh: &Fh) -> BoxFuture<()> {
        let is_losing =
            |layer: Arc<WriteBack>| layer.known(fh).is_some_and(|file| file.state.lock().losing_name);
        if self.0.upgrade().is_some_and(is_losing) {
            // The bytes are sent when the removal fails ([`leaving::Losing`]).
            return Box::pin(std::future::ready(()));
        }
        self.flush(fh)
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        self.0.upgrade()?.above.get()?.path(fh)
    }

    /// The layers above have no acknowledged bytes.
    fn unsent(&self, fh: &Fh) -> Unsent {
        let Some(layer) = self.0.upgrade() else { return Unsent::More };
        layer.known(fh).map_or(Unsent::Nothing, |file| layer.unsent_of(&file))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        for file in layer.files.read().values() {
            file.state.lock().view.forget();
        }
        let above = layer.above.get().map(|above| above.revoke_all());
        finished(async move {
            if let Some(above) = above {
                above.await;
            }
            // The files record refusals. Kept bytes are sent again later.
            let _ = layer.flush_all(Reason::Recall).await;
        })
    }
}

/// Starts a task at once. The task runs to its end even when the returned future is dropped.
fn finished(task: impl Future<Output = ()> + Send + 'static) -> BoxFuture<()> {
    let task = tokio::spawn(task);
    Box::pin(async move {
        let _ = task.await;
    })
}
