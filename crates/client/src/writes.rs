//! Writes that the server has acknowledged and may still lose.
//!
//! It knows nothing of NFS versions: a [`Wire`] sends one WRITE or COMMIT. After an UNSTABLE reply
//! the bytes (refcounted) are kept with the write verifier until COMMIT returns the same verifier.
//! When it returns another one, the server restarted in between: everything kept under other
//! verifiers is written again, the last attempts with FILE_SYNC, which cannot be lost, and
//! committed again. The state of one file is a pure state machine ([`log::Log`]); overlapping
//! writes, second writes and truncations are put in order by range locks ([`ranges::Ranges`]).
//!
//! Bounded: at [`Limits::most_bytes`] kept by a mount, writers wait for a COMMIT of the file that
//! keeps most; at half of it that COMMIT starts in the background; nothing is kept longer than
//! [`Limits::most_age`] without a COMMIT being tried. Nothing is dropped to make room.
//!
//! Errors follow Linux's errseq: an error of a background COMMIT or second write is remembered by
//! the file and reported once to every open that existed when it happened (at commit or close), or
//! once to the next open when there was none. When the server *refuses* (no space, stale handle)
//! the bytes are gone, as in Linux; when it only did not answer (`soft`), they stay kept and the
//! next commit tries again, so a successful commit never hides a loss.
//!
//! Until lost data is written again, reads would show what the server has: the state before the
//! write. [`Uncommitted::overlay`] puts kept bytes over such reads, but only those from before the
//! last reconnection: without one the server has everything, and may have newer bytes of other
//! clients.

mod errors;
mod log;
mod ranges;
#[cfg(test)]
mod tests;

pub use errors::OpenMark;

use crate::detach::detached;
use async_trait::async_trait;
use errors::Errors;
use hither_vfs::{Attr, Cred, Cx, Data, Error, Fh, OpenId, Read, Result, Stability};
use log::{Log, Piece, Plan};
use parking_lot::Mutex;
use ranges::{RangeGuard, Ranges};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Tells one run of the server from another (`writeverf3`, `verifier4`).
pub type Verifier = [u8; 8];

/// Rounds of COMMIT and second writes before a flush gives up on a server that keeps restarting.
const ROUNDS: u32 = 8;
/// From this round on, lost bytes are written with FILE_SYNC.
const STABLE_ROUND: u32 = 2;
/// How often old writes are looked for.
const AGE_CHECK: Duration = Duration::from_secs(5);

/// On whose behalf bytes were written: a second write uses the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Credential of the writer.
    pub cred: Arc<Cred>,
    /// The open written through.
    pub open: Option<OpenId>,
    /// See [`Cx::only_held`].
    pub only_held: bool,
}

/// Outcome of one WRITE.
#[derive(Debug, Clone)]
pub struct WriteReply {
    /// Bytes that the server took: at most those sent.
    pub bytes: u64,
    /// Whether they are on stable storage (`FILE_SYNC`, or `DATA_SYNC`).
    pub stable: bool,
    /// The server's write verifier.
    pub verifier: Verifier,
    /// Attributes afterwards, when they came along.
    pub attr: Option<Attr>,
}

/// Why a WRITE or COMMIT failed.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The server said no: what was to be written is lost.
    Refused(Error),
    /// There was no answer within the mount's patience: it may work later.
    Unanswered(Error),
}

impl Failure {
    /// The error that a program sees.
    pub fn error(&self) -> &Error {
        match self {
            Failure::Refused(e) | Failure::Unanswered(e) => e,
        }
    }
}

/// Sends WRITE and COMMIT. Patience with servers that are down, busy (JUKEBOX, DELAY) or recovering
/// is the implementor's.
#[async_trait]
pub trait Wire: Send + Sync + 'static {
    /// Most bytes of one WRITE.
    fn wsize_bytes(&self) -> u32;

    /// One WRITE of at most `wsize_bytes`, `FILE_SYNC` when `stable`.
    async fn write(
        &self,
        origin: &Origin,
        fh: &Fh,
        offset_bytes: u64,
        data: Data,
        stable: bool,
    ) -> std::result::Result<WriteReply, Failure>;

    /// COMMIT of the whole file.
    async fn commit(&self, origin: &Origin, fh: &Fh) -> std::result::Result<Verifier, Failure>;

    /// Grows with every reconnection after which the server may be another incarnation.
    fn epoch(&self) -> u64;
}

/// Bounds of what a mount keeps.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Writers wait at this many bytes; from half of it on, COMMITs start.
    pub most_bytes: u64,
    /// Age at which a COMMIT starts by itself. Linux's writeback takes 30 s as well.
    pub most_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { most_bytes: 256 << 20, most_age: Duration::from_secs(30) }
    }
}

/// The uncommitted writes of one mount.
pub struct Uncommitted {
    wire: Arc<dyn Wire>,
    limits: Limits,
    files: Mutex<HashMap<Fh, Arc<File>>>,
    /// Kept and reserved bytes.
    total: AtomicU64,
    freed: Notify,
    /// A COMMIT to make room is under way.
    relieving: AtomicBool,
    this: Weak<Self>,
}

struct File {
    fh: Fh,
    log: Mutex<Log>,
    ranges: Ranges,
    /// One COMMIT with its second writes at a time.
    committing: tokio::sync::Mutex<()>,
    errors: Errors,
    /// When the log became non-empty.
    since: Mutex<Option<Instant>>,
    flushing: AtomicBool,
}

impl Uncommitted {
    /// No writes yet. Must be called inside a tokio runtime: a task looks after old writes.
    pub fn new(wire: Arc<dyn Wire>, limits: Limits) -> Arc<Self> {
        let this = Arc::new_cyclic(|this: &Weak<Self>| Self {
            wire,
            limits,
            files: Mutex::default(),
            total: AtomicU64::new(0),
            freed: Notify::new(),
            relieving: AtomicBool::new(false),
            this: this.clone(),
        });
        tokio::spawn(age(Arc::downgrade(&this)));
        this
    }

    /// Bytes kept or about to be.
    pub fn kept_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// A file is opened; [`Uncommitted::close`] ends it.
    pub fn opened(&self, fh: &Fh) -> OpenMark {
        self.file(fh).errors.open()
    }

    /// Writes and keeps what is not stable. Returns the bytes written (fewer than given when the
    /// server's disk filled up on the way) and the attributes of the last reply. An interrupted
    /// caller leaves at once; its write goes on.
    ///
    /// # Errors
    /// What the server says; `EINTR`, `ETIMEDOUT` when the caller's patience ended.
    pub async fn write(
        &self,
        cx: &Cx,
        fh: &Fh,
        open: Option<OpenId>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<(u64, Option<Attr>)> {
        let room = match self.this().reserve(data.len() as u64) {
            Some(room) => room,
            None => detached(cx, self.this().admit(data.len() as u64)).await?,
        };
        let write = self.this().write_admitted(
            room,
            fh.clone(),
            Origin { cred: cx.cred.clone(), open, only_held: cx.only_held },
            offset_bytes,
            data,
            stability,
        );
        detached(cx, write).await
    }

    /// Returns when all writes answered before the call are stable, and reports errors that this
    /// open has not seen yet.
    ///
    /// # Errors
    /// An earlier or present failure to write; `EINTR`, `ETIMEDOUT` when the caller's patience
    /// ended.
    pub async fn commit(&self, cx: &Cx, fh: &Fh, open: Option<&OpenMark>) -> Result<()> {
        let Some(file) = self.known(fh) else { return Ok(()) };
        if !file.log.lock().is_empty() {
            let (this, file) = (self.this(), file.clone());
            // An interrupted caller is told so; what it would have been told waits for the next
            // commit.
            detached(cx, async move { this.flush(&file).await.map_err(|f| f.error().clone()) }).await?;
        }
        self.tidy(&file);
        file.errors.report(open)
    }

    /// Brings what was written to stable storage before an operation that a later second write
    /// would spoil (new times, owner or mode), as the Linux client does before SETATTR. Refusals
    /// wait with the file for the next commit or close.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn settle(&self, fh: &Fh) -> Result<()> {
        match self.known(fh) {
            Some(file) => self.flush(&file).await.map_err(|f| f.error().clone()),
            None => Ok(()),
        }
    }

    /// Ends an open: commits, reports, and after the last open forgets what could not be written.
    ///
    /// # Errors
    /// As [`Uncommitted::commit`]; the open is gone in either case.
    pub async fn close(&self, cx: &Cx, fh: &Fh, open: OpenMark) -> Result<()> {
        let Some(file) = self.known(fh) else { return Ok(()) };
        let this = self.this();
        detached(cx, async move {
            let flushed = this.flush(&file).await;
            let last = file.errors.close();
            let told = file.errors.report(Some(&open));
            if last && flushed.is_err() {
                this.update(&file, |log| log.abandon(log.latest()));
            }
            this.tidy(&file);
            flushed.map_err(|f| f.error().clone()).and(told)
        })
        .await
    }

    /// Takes a range for stable writes that do not go through here: other writes to it wait.
    pub async fn finishing(&self, fh: &Fh, start_bytes: u64, end_bytes: u64) -> Finishing {
        let file = self.file(fh);
        let range = file.ranges.lock(start_bytes, end_bytes).await;
        Finishing { owner: self.this(), file, _range: range }
    }

    /// Takes the file's bytes from `size_bytes` on, for a change of its length: writes to them
    /// wait.
    pub async fn truncating(&self, fh: &Fh, size_bytes: u64) -> Truncating {
        let file = self.file(fh);
        let range = file.ranges.lock(size_bytes, u64::MAX).await;
        Truncating { owner: self.this(), file, size_bytes, _range: range }
    }

    /// Puts kept bytes that the server may have lost since over what it answered; see the module.
    pub fn overlay(&self, fh: &Fh, offset_bytes: u64, len_bytes: u32, mut read: Read) -> Read {
        let Some(file) = self.known(fh) else { return read };
        let end = offset_bytes.saturating_add(u64::from(len_bytes));
        let (pieces, file_end) = {
            let (log, epoch) = (file.log.lock(), self.wire.epoch());
            (log.doubtful(offset_bytes, end, epoch), log.doubtful_end_bytes(epoch))
        };
        if pieces.is_empty() && (file_end <= offset_bytes + read.data.len() as u64 || !read.eof) {
            return read;
        }
        // Between the end that the server knows and the real one there may be a hole.
        let wanted_end = end.min(file_end.max(offset_bytes + read.data.len() as u64));
        let mut bytes = std::mem::take(&mut read.data).into_bytes().to_vec();
        bytes.resize((wanted_end - offset_bytes) as usize, 0);
        for (at, piece) in pieces {
            let from = (at - offset_bytes) as usize;
            bytes[from..from + piece.len()].copy_from_slice(&piece);
        }
        read.eof = read.eof && wanted_end >= file_end;
        read.data = bytes::Bytes::from(bytes).into();
        read
    }

    /// Length of a file that the server says is `size_bytes` long: lost writes that will be written
    /// again count.
    pub fn size(&self, fh: &Fh, size_bytes: u64) -> u64 {
        match self.known(fh) {
            Some(file) => size_bytes.max(file.log.lock().doubtful_end_bytes(self.wire.epoch())),
            None => size_bytes,
        }
    }

    /// The server may have restarted: finds out at once instead of at the next commit.
    pub fn reconnected(&self) {
        let this = self.this();
        tokio::spawn(async move {
            for file in this.dirty() {
                let _ = this.flush(&file).await;
                this.tidy(&file);
            }
        });
    }

    /// Commits every file.
    ///
    /// # Errors
    /// The first failure; the other files are tried all the same.
    pub async fn flush_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        for file in self.dirty() {
            let flushed = self.flush(&file).await.map_err(|f| f.error().clone());
            outcome = outcome.and(flushed).and(file.errors.report(None));
        }
        outcome
    }

    fn this(&self) -> Arc<Self> {
        self.this.upgrade().expect("a method runs, so the object lives")
    }

    fn file(&self, fh: &Fh) -> Arc<File> {
        let new = || {
            Arc::new(File {
                fh: fh.clone(),
                log: Mutex::default(),
                ranges: Ranges::default(),
                committing: tokio::sync::Mutex::default(),
                errors: Errors::default(),
                since: Mutex::new(None),
                flushing: AtomicBool::new(false),
            })
        };
        self.files.lock().entry(fh.clone()).or_insert_with(new).clone()
    }

    fn known(&self, fh: &Fh) -> Option<Arc<File>> {
        self.files.lock().get(fh).cloned()
    }

    fn dirty(&self) -> Vec<Arc<File>> {
        self.files.lock().values().filter(|f| !f.log.lock().is_empty()).cloned().collect()
    }

    /// Forgets a file about which there is nothing to remember.
    fn tidy(&self, file: &Arc<File>) {
        let mut files = self.files.lock();
        let idle = file.errors.is_idle() && file.log.lock().is_empty();
        // The map's and the caller's: nobody else is about to use it. A caller that held one more
        // would only leave an empty entry behind, for the next one to find.
        if idle && Arc::strong_count(file) <= 2 {
            files.remove(&file.fh);
        }
    }

    fn update<R>(&self, file: &File, f: impl FnOnce(&mut Log) -> R) -> R {
        let mut log = file.log.lock();
        let (before, was_empty) = (log.bytes(), log.is_empty());
        let out = f(&mut log);
        self.total.fetch_add(log.bytes(), Ordering::Relaxed);
        self.total.fetch_sub(before, Ordering::Relaxed);
        if log.is_empty() {
            *file.since.lock() = None;
        } else if was_empty {
            *file.since.lock() = Some(Instant::now());
        }
        if log.bytes() < before {
            self.freed.notify_waiters();
        }
        out
    }

    /// Room for `bytes` more; commits the file that keeps most when there is none.
    async fn admit(self: Arc<Self>, bytes: u64) -> Result<Room> {
        let bytes = bytes.min(self.limits.most_bytes);
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            let total = self.total.load(Ordering::Relaxed);
            if total + bytes <= self.limits.most_bytes {
                let swap =
                    self.total.compare_exchange(total, total + bytes, Ordering::Relaxed, Ordering::Relaxed);
                if swap.is_ok() {
                    return Ok(Room { owner: self.clone(), bytes });
                }
                continue;
            }
            match self.biggest() {
                Some(file) => self.flush(&file).await.map_err(|f| f.error().clone())?,
                None => freed.await,
            }
        }
    }

    /// Room for `bytes` more, when there is.
    fn reserve(self: Arc<Self>, bytes: u64) -> Option<Room> {
        // A write of more than all there is waits until it is alone.
        let bytes = bytes.min(self.limits.most_bytes);
        let fits = |total: u64| (total + bytes <= self.limits.most_bytes).then_some(total + bytes);
        self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Room { owner: self, bytes })
    }

    fn biggest(&self) -> Option<Arc<File>> {
        let files = self.files.lock();
        files
            .values()
            .map(|f| (f.log.lock().bytes(), f))
            .filter(|(b, _)| *b > 0)
            .max_by_key(|(b, _)| *b)
            .map(|(_, f)| f.clone())
    }

    async fn write_admitted(
        self: Arc<Self>,
        room: Room,
        fh: Fh,
        origin: Origin,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<(u64, Option<Attr>)> {
        let file = self.file(&fh);
        let range = file.ranges.lock(offset_bytes, offset_bytes.saturating_add(data.len() as u64)).await;
        let stable = stability == Stability::Stable;
        let wsize = self.wire.wsize_bytes().max(1) as usize;
        let outcome = if data.len() <= wsize {
            self.clone().write_chunk(file.clone(), origin, offset_bytes, data, stable).await
        } else {
            self.write_chunks(&file, origin, offset_bytes, data, stable, wsize).await
        };
        drop((range, room));
        if stable && outcome.is_ok() && !file.log.lock().is_empty() {
            // A server that answers FILE_SYNC with less owes a COMMIT; elsewhere in the file it may
            // find older writes, which does no harm.
            self.flush(&file).await.map_err(|f| f.error().clone())?;
            file.errors.report(None)?;
        }
        self.relieve();
        self.tidy(&file);
        outcome
    }

    /// More than half of what may be kept is: the file that keeps most is committed in the
    /// background, one at a time.
    fn relieve(&self) {
        if self.total.load(Ordering::Relaxed) <= self.limits.most_bytes / 2
            || self.relieving.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let this = self.this();
        tokio::spawn(async move {
            if let Some(file) = this.biggest() {
                // Refusals are recorded with the file; silence leaves the bytes for the next try.
                let _ = this.flush(&file).await;
                this.tidy(&file);
            }
            this.relieving.store(false, Ordering::Relaxed);
        });
    }

    /// All chunks at once; the outcome is that of the longest run without a gap.
    async fn write_chunks(
        self: &Arc<Self>,
        file: &Arc<File>,
        origin: Origin,
        offset_bytes: u64,
        data: Data,
        stable: bool,
        wsize: usize,
    ) -> Result<(u64, Option<Attr>)> {
        let mut chunks = JoinSet::new();
        for (i, start) in (0..data.len()).step_by(wsize).enumerate() {
            let part = slice(&data, start, wsize.min(data.len() - start));
            let at = offset_bytes + start as u64;
            let len = part.len() as u64;
            let write = self.clone().write_chunk(file.clone(), origin.clone(), at, part, stable);
            chunks.spawn(async move { (i, len, write.await) });
        }
        let mut outcomes = chunks.join_all().await;
        outcomes.sort_by_key(|(i, ..)| *i);
        let (mut total, mut attr) = (0, None);
        for (_, len, outcome) in outcomes {
            match outcome {
                Err(e) if total == 0 => return Err(e),
                Err(_) => break,
                Ok((bytes, latest)) => {
                    total += bytes;
                    // The last answer to arrive is not known here; the longest file is the latest.
                    attr = newest(attr, latest);
                    if bytes < len {
                        break;
                    }
                }
            }
        }
        Ok((total, attr))
    }

    async fn write_chunk(
        self: Arc<Self>,
        file: Arc<File>,
        origin: Origin,
        offset_bytes: u64,
        data: Data,
        stable: bool,
    ) -> Result<(u64, Option<Attr>)> {
        let (mut done, mut attr) = (0, None);
        while done < data.len() {
            let part = slice(&data, done, data.len() - done);
            let at = offset_bytes + done as u64;
            let epoch = self.wire.epoch();
            match self.wire.write(&origin, &file.fh, at, part.clone(), stable).await {
                Ok(reply) => {
                    // Never more than was sent, whatever the server says; nothing at all is no
                    // progress.
                    let bytes = reply.bytes.min(part.len() as u64);
                    if bytes == 0 {
                        return done_or(done, attr, Error::because(libc::EIO, "the server writes no bytes"));
                    }
                    let part = slice(&part, 0, bytes as usize);
                    self.update(&file, |log| match reply.stable {
                        true => log.wrote_stable(at, at + bytes),
                        false => log.wrote(at, &part, reply.verifier, epoch, &origin),
                    });
                    done += bytes as usize;
                    attr = reply.attr;
                }
                Err(failure) => return done_or(done, attr, failure.error().clone()),
            }
        }
        Ok((done as u64, attr))
    }

    /// Commits what was written before the call. A refusal is recorded with the file; silence is
    /// returned and leaves everything as it was.
    async fn flush(&self, file: &Arc<File>) -> std::result::Result<(), Failure> {
        let target = file.log.lock().latest();
        let _turn = file.committing.lock().await;
        for round in 0..ROUNDS {
            if !file.log.lock().has_through(target) {
                return Ok(());
            }
            let Some(plan) = file.log.lock().plan() else { return Ok(()) };
            match self.wire.commit(&plan.origin, &file.fh).await {
                Ok(verifier) => {
                    let lost = self.update(file, |log| log.committed(&plan, verifier));
                    for range in lost {
                        self.write_again(file, &plan, range, verifier, round >= STABLE_ROUND).await?;
                    }
                }
                Err(Failure::Refused(e)) => {
                    file.record(e);
                    self.update(file, |log| log.abandon(plan.through));
                    return Ok(());
                }
                Err(silence) => return Err(silence),
            }
        }
        match file.log.lock().has_through(target) {
            true => {
                let why = "the server keeps losing writes; they are kept and sent again later";
                Err(Failure::Unanswered(Error::because(libc::EIO, why)))
            }
            false => Ok(()),
        }
    }

    async fn write_again(
        &self,
        file: &Arc<File>,
        plan: &Plan,
        range: (u64, u64),
        verifier: Verifier,
        stable: bool,
    ) -> std::result::Result<(), Failure> {
        let _range = file.ranges.lock(range.0, range.1).await;
        let wsize = u64::from(self.wire.wsize_bytes().max(1));
        let pieces = file.log.lock().lost_in(range, plan.through, verifier, wsize);
        for Piece { offset_bytes, data, origin } in pieces {
            let mut done = 0;
            while done < data.len() {
                let part = slice(&data, done, data.len() - done);
                let at = offset_bytes + done as u64;
                let epoch = self.wire.epoch();
                let sent = part.len() as u64;
                match self.wire.write(&origin, &file.fh, at, part, stable).await {
                    Ok(reply) if reply.bytes > 0 => {
                        let bytes = reply.bytes.min(sent);
                        self.update(file, |log| match reply.stable {
                            true => log.wrote_stable(at, at + bytes),
                            false => log.resent(at, at + bytes, reply.verifier, epoch),
                        });
                        done += bytes as usize;
                    }
                    Ok(_) => {
                        file.record(Error::because(libc::EIO, "the server writes no bytes"));
                        self.update(file, |log| log.wrote_stable(at, at + sent));
                        break;
                    }
                    Err(Failure::Refused(e)) => {
                        file.record(e);
                        self.update(file, |log| log.wrote_stable(at, at + sent));
                        break;
                    }
                    Err(silence) => return Err(silence),
                }
            }
        }
        Ok(())
    }

    fn flush_in_background(&self, file: &Arc<File>) {
        if file.flushing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, file) = (self.this(), file.clone());
        tokio::spawn(async move {
            // Refusals are recorded with the file; silence leaves the bytes for the next try.
            let _ = this.flush(&file).await;
            file.flushing.store(false, Ordering::Relaxed);
            this.tidy(&file);
        });
    }
}

impl std::fmt::Debug for Uncommitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uncommitted").field("kept_bytes", &self.kept_bytes()).finish_non_exhaustive()
    }
}

impl File {
    fn record(&self, e: Error) {
        tracing::warn!(fh = ?self.fh, error = %e, "written data is lost");
        self.errors.record(e);
    }
}

/// A change of length in progress. Dropping it without [`Truncating::done`] leaves the kept writes
/// as they are.
pub struct Truncating {
    owner: Arc<Uncommitted>,
    file: Arc<File>,
    size_bytes: u64,
    _range: RangeGuard,
}

impl Truncating {
    /// The server has changed the length: what was kept beyond it is void.
    pub fn done(self) {
        self.owner.update(&self.file, |log| log.truncated(self.size_bytes));
    }
}

impl Drop for Truncating {
    fn drop(&mut self) {
        self.owner.tidy(&self.file);
    }
}

/// Stable writes in progress, of a range that nobody else writes meanwhile.
pub struct Finishing {
    owner: Arc<Uncommitted>,
    file: Arc<File>,
    _range: RangeGuard,
}

impl Finishing {
    /// These bytes are on stable storage: what was kept of them before is void.
    pub fn done(&self, ranges: impl Iterator<Item = (u64, u64)>) {
        self.owner.update(&self.file, |log| ranges.for_each(|(start, end)| log.wrote_stable(start, end)));
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        self.owner.tidy(&self.file);
    }
}

/// Bytes reserved for a write that is not answered yet.
struct Room {
    owner: Arc<Uncommitted>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.owner.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.owner.freed.notify_waiters();
    }
}

async fn age(writes: Weak<Uncommitted>) {
    loop {
        tokio::time::sleep(AGE_CHECK).await;
        let Some(writes) = writes.upgrade() else { return };
        let now = Instant::now();
        for file in writes.dirty() {
            let since = *file.since.lock();
            if since.is_some_and(|t| now.saturating_duration_since(t) >= writes.limits.most_age) {
                writes.flush_in_background(&file);
            }
        }
    }
}

/// Bytes written before a failure are an answer of their own; the failure meets the next write.
fn done_or(done: usize, attr: Option<Attr>, e: Error) -> Result<(u64, Option<Attr>)> {
    if done > 0 { Ok((done as u64, attr)) } else { Err(e) }
}

fn newest(a: Option<Attr>, b: Option<Attr>) -> Option<Attr> {
    match (a, b) {
        (Some(a), Some(b)) if (a.change, a.size_bytes) > (b.change, b.size_bytes) => Some(a),
        (a, b) => b.or(a),
    }
}

/// A part of `data`, without copying.
pub(crate) fn slice(data: &Data, start: usize, len: usize) -> Data {
    let (mut skip, mut left, mut out) = (start, len, Data::default());
    for part in data.parts() {
        let from = skip.min(part.len());
        let to = part.len().min(from + left);
        out.push(part.slice(from..to));
        skip -= from;
        left -= to - from;
    }
    out
}
