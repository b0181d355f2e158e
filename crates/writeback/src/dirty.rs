//! Writes on their way: answered from memory, merged, sent later.
//!
//! It knows nothing of NFS: below is a [`Vfs`], which keeps what it acknowledged as unstable until
//! it is committed. It promises what a local page cache promises, and what close-to-open needs: a
//! write is answered at once and every read through this layer sees it; `commit` (fsync) and
//! `close` return when everything is on stable storage, or with the reason why not.
//!
//! **Sending.** Written bytes become dirty extents (`extents.rs`) under the open and credential of
//! their writer. A chunk of `wsize_bytes` without gaps is sent at once, so that a sequential writer
//! keeps several WRITEs in flight; the rest waits for fsync, close, age, lack of room, or a call
//! that needs the server to have it. Overlapping versions of a byte reach the server one after the
//! other. What is left at fsync or close and fits into one WRITE is written with
//! `Stability::Stable`, which saves the COMMIT; what has gaps goes side by side, with one COMMIT
//! behind it.
//!
//! **Room.** At most `dirty_max_bytes` for the mount; a file may have as much as is free (and at
//! most `file_max_bytes`), so that n files at top speed leave 1/(n+1) free for others. A writer
//! without room waits until something of its own file was sent; a file that has nothing here and
//! finds no room is written through.
//!
//! **Order.** A change of length waits for what is in flight beyond it and voids what is dirty
//! there; other changes of attributes, allocating, punching, copying, locks and `O_SYNC` writes
//! send the file first, because a later WRITE would spoil their effect or because another client is
//! meant to see it. Two handles of one file are two files here.
//!
//! **Attributes** that a file's creator sets wait for its last bytes (`owed.rs`), and all of that
//! goes in one call (`finish.rs`) when it fits into one WRITE's worth of bytes: a small file costs
//! its creation and that call.
//!
//! **Errors.** A refusal that will not change (EACCES, EROFS, EFBIG, ESTALE and the like) drops the
//! bytes, as Linux does. Anything else (ENOSPC, EDQUOT, EIO of a silent server) keeps them: they
//! are tried again by every fsync, by writes and by themselves with growing pauses, until the open
//! they were written through is closed, which drops them and says so. Either way the error is told
//! once to each open of the file, at its next write, fsync or close; an fsync whose own try fails
//! always says so. While bytes are kept like that, writes fail with the same error and take
//! nothing, so that a full server looks full.
//!
//! **Journal** ([`Dirty::with_journal`]): a write is acknowledged when it is in a journal on the
//! local disk, and leaves that when the server has it on stable storage; see `journal.rs` and
//! [`crate::wal`].
//!
//! **Gaps** (`fills_gaps`). Beyond the length that the server told under the right to write alone
//! there is nothing but what is here, so a small gap between two pieces there goes as the zeros
//! that it is read as, and both are one WRITE. Such a flight holds for that right only
//! (`Cx::only_held`): refused, or without an answer, its pieces go again by themselves, for others
//! may have written into the gap.
//!
//! **Lazy closes** (`lazy_close`): a close leaves what is not sent yet to age, and tells what is
//! known to be wrong; see `lazy.rs`.
//!
//! **What is shown.** Size: the larger of the server's and the end of what is here. Times, while
//! something is here: the moment of the last write by the local clock, valid for one answer only;
//! the server will give its own. A question for the attributes of a file with little dirty data
//! (`stat_flush_bytes`) therefore sends it first, at most once in `dirty_age`: who writes a file
//! and looks at its times before closing it (git, tar) finds those that stay. Not when nobody is
//! shown the times ([`Cx::times_unseen`](hither_vfs::Cx)): the kernel asks before each read(2) that
//! follows a write(2), and who reads what he writes, as assemblers do, would be sent piece by
//! piece.
//! Change value: from the first local write on a value of this layer's own, a new one for each
//! write. It stays when own data is sent, because the server's value moves then without anything
//! new, and the kernel must not drop its pages for that. Once nothing of ours is under way, the
//! server's value is remembered beside it; another one later is somebody else's change and is
//! shown. A write by somebody else between two of ours cannot be told from ours, so each open after
//! own data was sent is shown a different value than before: pages read earlier are not trusted by
//! it. (Under a lease nobody else can write, and the value stays.)

mod alone;
mod errors;
mod extents;
mod file;
mod finish;
mod flush;
mod journal;
mod lazy;
mod leaving;
mod many;
mod owed;
mod pay;
mod questions;
mod read;
mod stats;
mod vfs;
mod wait;
mod write;

#[cfg(test)]
pub(crate) mod tests;

pub use stats::DirtyStats;
pub(crate) use wait::patient;

use crate::wal::Wal;
use file::File;
use flush::Ages;
use hither_vfs::{Attrs, BoxFuture, Cx, Env, Fh, FileKind, Name, Node, Result, Time, Unsent, Upcalls, Vfs};
use journal::Uncommitted;
use parking_lot::{Mutex, RwLock};
use questions::{Keep, Questions};
use stats::{Counters, Reason};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, Semaphore};

/// What a mount may have under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyOptions {
    /// Nothing is delayed: every call goes straight on (`sync`).
    pub write_through: bool,
    /// Closing a file does not wait until it is sent (`close=lazy`).
    pub lazy_close: bool,
    /// The same of files that the server has delegated for writing; with a journal, close and fsync
    /// of those wait for that alone (`close=delegated`).
    pub delegated_close: bool,
    /// Bytes of one WRITE, at most; a chunk of them is sent at once.
    pub wsize_bytes: u32,
    /// Age at which bytes are sent by themselves.
    pub dirty_age: Duration,
    /// Most bytes of all files together.
    pub dirty_max_bytes: u64,
    /// Most bytes of one file.
    pub file_max_bytes: u64,
    /// Most pieces of one file that are apart from each other: what they cost beside their bytes is
    /// bounded by this.
    pub most_pieces: usize,
    /// WRITEs in flight for one file, whole chunks.
    pub flights_per_file: usize,
    /// The same when they are smaller, and together no more bytes than those.
    pub small_flights_per_file: usize,
    /// WRITEs in flight.
    pub flights: usize,
    /// A question for the attributes of a file with no more dirty bytes than these sends them
    /// first; 0: never.
    pub stat_flush_bytes: u64,
    /// Times and permissions that a file's creator sets wait for its last bytes.
    pub delay_attributes: bool,
    /// Small gaps between bytes of a file that nobody else can change go as zeros with them: the
    /// layer below heeds `Cx::only_held`.
    pub fills_gaps: bool,
    /// A copy of no more bytes than these is the caller's to make (`EOPNOTSUPP`): they come along
    /// with the open of its source and go along with the end of its target, where the server's copy
    /// takes calls of its own; 0: the server makes all copies.
    pub small_copy_bytes: u64,
    /// Nobody else writes, says the user: with a journal, fsync and close wait for that alone.
    pub exclusive: bool,
}

impl Default for DirtyOptions {
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

/// The layer; see the module.
pub struct Dirty {
    below: Arc<dyn Vfs>,
    env: Env,
    options: DirtyOptions,
    /// Files open here. Taken before a file's state, never across an await.
    files: RwLock<HashMap<Fh, Arc<File>>>,
    /// Bytes dirty, in flight and about to be taken.
    total: AtomicU64,
    /// The total shrank.
    freed: Notify,
    slots: Semaphore,
    /// Opens that are closed here and not below.
    lazy: AtomicUsize,
    ages: Arc<Ages>,
    questions: Questions,
    /// Files that left the table, so far.
    forgotten: AtomicU64,
    /// Names that are being opened.
    opening: Mutex<Vec<(Option<Fh>, Name)>>,
    counters: Counters,
    wal: Option<Arc<Wal>>,
    uncommitted: Arc<Uncommitted>,
    last_change: AtomicU64,
    above: OnceLock<Arc<dyn Upcalls>>,
    this: Weak<Self>,
}

impl Dirty {
    /// A layer over `below` with nothing written. Must be called inside a tokio runtime: a task
    /// looks after age.
    pub fn new(below: Arc<dyn Vfs>, env: Env, options: DirtyOptions) -> Arc<Self> {
        Self::with_journal(below, env, options, None)
    }

    /// The same with a journal that each write is in before it is acknowledged.
    pub fn with_journal(
        below: Arc<dyn Vfs>,
        env: Env,
        options: DirtyOptions,
        wal: Option<Arc<Wal>>,
    ) -> Arc<Self> {
        let journaled = wal.is_some();
        let ages = Arc::new(Ages::default());
        let this = Arc::new_cyclic(|this: &Weak<Self>| Self {
            below,
            files: RwLock::default(),
            total: AtomicU64::new(0),
            freed: Notify::new(),
            slots: Semaphore::new(options.flights.max(1)),
            lazy: AtomicUsize::new(0),
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
            env,
            options,
        });
        tokio::spawn(flush::age(Arc::downgrade(&this), ages));
        if journaled {
            tokio::spawn(journal::make_room(Arc::downgrade(&this)));
        }
        this
    }

    /// What was done so far, and what is waiting.
    pub fn stats(&self) -> DirtyStats {
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

    fn wall(&self) -> Time {
        let since = (self.env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }

    fn known(&self, fh: &Fh) -> Option<Arc<File>> {
        self.files.read().get(fh).cloned()
    }

    fn file(&self, fh: &Fh) -> Arc<File> {
        if let Some(file) = self.known(fh) {
            return file;
        }
        // Not a slice of the message that the handle came in.
        let fh = Fh(bytes::Bytes::copy_from_slice(&fh.0));
        let chunk = u64::from(self.options.wsize_bytes);
        self.files
            .write()
            .entry(fh.clone())
            .or_insert_with(|| Arc::new(File::new(fh, chunk, self.wal.as_ref())))
            .clone()
    }

    fn dirty(&self) -> Vec<Arc<File>> {
        self.files.read().values().filter(|f| !f.state.lock().is_settled()).cloned().collect()
    }

    /// Forgets a file about which there is nothing to remember.
    fn tidy(&self, file: &Arc<File>) {
        let spoilt = {
            let mut s = file.state.lock();
            if !s.is_idle() || s.lingers || s.forgotten {
                return;
            }
            // Whoever asked before it was kept last has his answer, and nothing of ours ended
            // since.
            match s.view.ended == s.kept {
                true => Keep::No,
                false => {
                    s.kept = s.view.ended;
                    let keep = self.questions.keep(file);
                    s.lingers = matches!(keep, Keep::Yes);
                    keep
                }
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

    /// Puts what is known here over attributes from below.
    fn show(&self, fh: &Fh, attrs: &mut Attrs) {
        if attrs.attr.kind == FileKind::Regular
            && let Some(file) = self.known(fh)
        {
            file.state.lock().show(attrs, self.next_change());
        }
    }

    fn show_nodes<'a>(&self, nodes: impl Iterator<Item = &'a mut Node>) {
        let files = self.files.read();
        if files.is_empty() {
            return;
        }
        for node in nodes.filter(|n| n.attrs.attr.kind == FileKind::Regular) {
            if let Some(file) = files.get(&node.fh) {
                file.state.lock().show(&mut node.attrs, self.next_change());
            }
        }
    }

    /// Sends all there is of all files.
    async fn flush_all(&self, reason: Reason) -> Result<()> {
        let mut flushes = tokio::task::JoinSet::new();
        for file in self.dirty() {
            let this = self.this();
            flushes.spawn(async move { this.flush(&file, reason, false).await });
        }
        flushes.join_all().await.into_iter().collect()
    }

    async fn settle(&self, fh: &Fh) {
        let Some(file) = self.known(fh) else { return };
        // What could not be sent is recorded with the file.
        let _ = self.flush(&file, Reason::Recall, false).await;
        // Also when somebody else's commit is under way: it is waited for.
        if let Err(e) = self.commit_below(&file).await {
            file.state.lock().errors.record(e);
        }
        self.tidy(&file);
    }

    fn own_cx(&self) -> Cx {
        Cx::new(Arc::new(hither_vfs::Cred::root()))
    }
}

/// Refusals that another try would meet again.
pub(crate) fn is_final(errno: i32) -> bool {
    matches!(
        errno,
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

impl std::fmt::Debug for Dirty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dirty").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Drop for Dirty {
    fn drop(&mut self) {
        self.ages.wake();
    }
}

/// Stands between the layers below and above when answers are withdrawn.
struct Relay(Weak<Dirty>);

impl Upcalls for Relay {
    /// Those above let go first (the kernel may have pages to write back), then what is dirty is
    /// sent and committed: when this ends, a delegation may be returned.
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        if let Some(file) = layer.known(fh) {
            file.state.lock().view.forget();
        }
        let above = layer.above.get().map(|above| above.withdraw(fh));
        let fh = fh.clone();
        finished(async move {
            if let Some(above) = above {
                above.await;
            }
            layer.settle(&fh).await;
        })
    }

    /// What is dirty waits on: it was not promised that nobody else writes.
    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        for file in files.iter().filter_map(|fh| layer.known(fh)) {
            file.state.lock().view.forget();
        }
        match layer.above.get() {
            Some(above) => above.lapse(files),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn settle(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        let fh = fh.clone();
        finished(async move { layer.settle(&fh).await })
    }

    /// Nothing that was acknowledged waits further up.
    fn unsent(&self, fh: &Fh) -> Unsent {
        let Some(layer) = self.0.upgrade() else { return Unsent::More };
        layer.known(fh).map_or(Unsent::Nothing, |file| file.state.lock().unsent())
    }

    fn withdraw_all(&self) -> BoxFuture<()> {
        let Some(layer) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        for file in layer.files.read().values() {
            file.state.lock().view.forget();
        }
        let above = layer.above.get().map(|above| above.withdraw_all());
        finished(async move {
            if let Some(above) = above {
                above.await;
            }
            // Refusals are recorded with the files; what is kept is tried again.
            let _ = layer.flush_all(Reason::Recall).await;
        })
    }
}

/// Runs at once and to its end, whether or not somebody waits.
fn finished(task: impl Future<Output = ()> + Send + 'static) -> BoxFuture<()> {
    let task = tokio::spawn(task);
    Box::pin(async move {
        let _ = task.await;
    })
}
