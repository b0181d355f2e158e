//! Uncommitted writes: the server acknowledged them and may still lose them.
//!
//! A [`Wire`] sends one WRITE or COMMIT of either NFS version. After an UNSTABLE reply this module
//! keeps the bytes (refcounted) with the write verifier. They are kept until COMMIT returns the
//! same verifier. Another verifier means that the server restarted. The bytes under other verifiers
//! are then written and committed again. The last attempts use FILE_SYNC, which the server cannot
//! lose. The state of one file is a pure state machine ([`log::Log`]). Range locks
//! ([`ranges::Ranges`]) order overlapping writes, second writes and truncations.
//!
//! Memory is bounded by [`Limits::most_bytes`] per mount. At half of it a COMMIT of the file with
//! the most bytes starts in the background. At the limit writers wait for such a COMMIT. A COMMIT
//! is tried for all bytes older than [`Limits::most_age`]. No bytes are dropped to make room.
//!
//! Errors follow Linux's errseq. The file remembers an error of a background COMMIT or second
//! write. Each open that existed at the error reports it once, at commit or close. Without such an
//! open the next open reports it once. When the server *refuses* (stale handle, no permission), the
//! bytes are lost, as in Linux. When the server has no room or its disk fails, or when it does not
//! answer (`soft`), the bytes are kept. The next commit sends them again. A successful commit
//! therefore never hides a loss.
//!
//! Until lost data is written again, the server returns its state before the write.
//! [`Uncommitted::overlay`] puts kept bytes over such reads. It uses only bytes from before the
//! last reconnection. Without a reconnection the server has all bytes, and may have newer bytes of
//! other clients.

mod errors;
mod log;
mod ranges;
#[cfg(test)]
mod tests;

pub use errors::OpenMark;

use crate::detach::detached;
use async_trait::async_trait;
use errors::Errors;
use hither_vfs::{Attr, Cred, Data, Error, Fh, OpenId, Read, RequestContext, Result, Stability, note_loss};
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

/// Differs for each run of the server (`writeverf3`, `verifier4`).
pub type Verifier = [u8; 8];

/// Rounds of COMMIT and second writes before a flush gives up on a server that restarts repeatedly.
const ROUNDS: u32 = 8;
/// From this round on, lost bytes are written with FILE_SYNC.
const STABLE_ROUND: u32 = 2;
/// Interval of the search for old writes.
const AGE_CHECK: Duration = Duration::from_secs(5);

/// Identity of the writer. A second write uses the same identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Credential of the writer.
    pub cred: Arc<Cred>,
    /// The open of the write.
    pub open: Option<OpenId>,
    /// See [`RequestContext::only_held`].
    pub only_held: bool,
}

/// Outcome of one WRITE.
#[derive(Debug, Clone)]
pub struct WriteReply {
    /// Bytes that the server accepted: at most the bytes sent.
    pub bytes: u64,
    /// Whether the bytes are on stable storage (`FILE_SYNC`, or `DATA_SYNC`).
    pub stable: bool,
    /// The server's write verifier.
    pub verifier: Verifier,
    /// Attributes after the write, when the reply has them.
    pub attr: Option<Attr>,
}

/// Reason for a failed WRITE or COMMIT.
#[derive(Debug, Clone)]
pub enum Failure {
    /// The server refused. Another attempt may succeed when a full disk has room again.
    Refused(Error),
    /// No answer within the mount's timeout. A later attempt may succeed.
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

/// Whether the server may accept the same bytes later.
fn is_for_now(e: &Error) -> bool {
    !e.is_lost && matches!(e.errno, libc::EIO | libc::ENOSPC | libc::EDQUOT)
}

/// Sends WRITE and COMMIT. The implementor retries while a server is down, busy (JUKEBOX, DELAY) or
/// recovering.
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

    /// Grows with every reconnection. After a reconnection the server may be another instance.
    fn epoch(&self) -> u64;

    /// The path of a file, for messages to people.
    fn path(&self, fh: &Fh) -> Option<String>;
}

/// Bounds of the kept bytes of a mount.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Writers wait at this many bytes. COMMITs start at half of it.
    pub most_bytes: u64,
    /// Age of a write at which a COMMIT starts. Linux's writeback also uses 30 s.
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
    /// A COMMIT to make room is in progress.
    relieving: AtomicBool,
    this: Weak<Self>,
}

struct File {
    fh: Fh,
    log: Mutex<Log>,
    ranges: Ranges,
    /// Serialises COMMITs: one COMMIT with its second writes at a time.
    committing: tokio::sync::Mutex<()>,
    errors: Errors,
    /// Time at which the log became non-empty.
    since: Mutex<Option<Instant>>,
    flushing: AtomicBool,
}

impl Uncommitted {
    /// Starts without writes. Must be called inside a tokio runtime: a task commits old writes.
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

    /// Bytes kept and bytes reserved for writes in progress.
    pub fn kept_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Registers an open of a file; [`Uncommitted::close`] ends it.
    pub fn opened(&self, fh: &Fh) -> OpenMark {
        self.file(fh).errors.open()
    }

    /// Sends a write and keeps the bytes that are not stable. Returns the number of bytes written
    /// and the attributes of the last reply. The number is smaller than given when the server's
    /// disk fills up during the write. An interrupted caller returns at once, and its write
    /// continues.
    ///
    /// # Errors
    /// The server's error; `EINTR` or `ETIMEDOUT` when the caller stops waiting.
    pub async fn write(
        &self,
        cx: &RequestContext,
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

    /// Returns when all writes answered before the call are stable. Reports errors that this open
    /// has not reported yet.
    ///
    /// # Errors
    /// An earlier or present failure to write; `EINTR` or `ETIMEDOUT` when the caller stops
    /// waiting.
    pub async fn commit(&self, cx: &RequestContext, fh: &Fh, open: Option<&OpenMark>) -> Result<()> {
        let Some(file) = self.known(fh) else { return Ok(()) };
        if !file.log.lock().is_empty() {
            let (this, file) = (self.this(), file.clone());
            // An interrupted caller gets EINTR. The write error waits for the next commit.
            detached(cx, async move { this.flush(&file).await.map_err(|f| f.error().clone()) }).await?;
        }
        self.tidy(&file);
        file.errors.report(open)
    }

    /// Commits a file before an operation that a later second write would spoil (new times, owner
    /// or mode). The Linux client does the same before SETATTR. Refusals stay with the file until
    /// the next commit or close.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn settle(&self, fh: &Fh) -> Result<()> {
        match self.known(fh) {
            Some(file) => match self.flush(&file).await {
                // Its cure may be the very operation.
                Ok(()) | Err(Failure::Refused(_)) => Ok(()),
                Err(Failure::Unanswered(e)) => Err(e),
            },
            None => Ok(()),
        }
    }

    /// Forgets bytes of a refused COMMIT before the release of a lock. Sent again, they could
    /// overwrite the bytes of the next holder. The next commit or close reports the loss.
    pub fn releasing(&self, fh: &Fh) {
        let Some(file) = self.known(fh) else { return };
        if self.update(&file, Log::drop_uncertain) {
            let why = "the server refused these bytes before the release of their lock";
            self.record_loss(&file, Error::because(libc::EIO, why));
        }
    }

    /// Ends an open: commits and reports errors. The last close forgets bytes that could not be
    /// written.
    ///
    /// # Errors
    /// As [`Uncommitted::commit`]. The open has ended in either case.
    pub async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenMark) -> Result<()> {
        let Some(file) = self.known(fh) else { return Ok(()) };
        let this = self.this();
        detached(cx, async move {
            let flushed = this.flush(&file).await;
            let last = file.errors.close();
            let told = file.errors.report(Some(&open));
            if last && flushed.is_err() {
                note_loss();
                this.update(&file, |log| log.abandon(log.latest()));
            }
            this.tidy(&file);
            flushed.map_err(|f| f.error().clone()).and(told)
        })
        .await
    }

    /// Locks a range for stable writes that another path sends. Other writes to the range wait.
    pub async fn finishing(&self, fh: &Fh, start_bytes: u64, end_bytes: u64) -> Finishing {
        let file = self.file(fh);
        let range = file.ranges.lock(start_bytes, end_bytes).await;
        Finishing { owner: self.this(), file, _range: range }
    }

    /// Locks the file from `size_bytes` on, for a change of its length. Writes to that range wait.
    pub async fn truncating(&self, fh: &Fh, size_bytes: u64) -> Truncating {
        let file = self.file(fh);
        let range = file.ranges.lock(size_bytes, u64::MAX).await;
        Truncating { owner: self.this(), file, size_bytes, _range: range }
    }

    /// Puts kept bytes over the server's answer, where the server may have lost them. See the
    /// module.
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
        // There may be a hole between the file's end on the server and its real end.
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

    /// Length of a file for which the server reports `size_bytes`. Lost writes that will be written
    /// again count.
    pub fn size(&self, fh: &Fh, size_bytes: u64) -> u64 {
        match self.known(fh) {
            Some(file) => size_bytes.max(file.log.lock().doubtful_end_bytes(self.wire.epoch())),
            None => size_bytes,
        }
    }

    /// Commits all files now, because the server may have restarted.
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
    /// The first failure. The other files are still tried.
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

    /// Forgets a file without kept bytes and without unreported errors.
    fn tidy(&self, file: &Arc<File>) {
        let mut files = self.files.lock();
        let idle = file.errors.is_idle() && file.log.lock().is_empty();
        // Two references are those of the map and of the caller: the file has no other user. With a
        // third reference an empty entry stays in the map until its next use.
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

    /// Reserves room for `bytes` more. Commits the file with the most kept bytes when there is no
    /// room.
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

    /// Reserves room for `bytes` more, when there is room now.
    fn reserve(self: Arc<Self>, bytes: u64) -> Option<Room> {
        // A write larger than the whole limit waits until no other bytes are kept.
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
            // A server that answers FILE_SYNC with a lower stability needs a COMMIT. The COMMIT may
            // also cover older writes elsewhere in the file, without harm.
            self.flush(&file).await.map_err(|f| f.error().clone())?;
            file.errors.report(None)?;
        }
        self.relieve();
        self.tidy(&file);
        outcome
    }

    /// Above half of the limit: commits the file with the most kept bytes in the background, one
    /// file at a time.
    fn relieve(&self) {
        if self.total.load(Ordering::Relaxed) <= self.limits.most_bytes / 2
            || self.relieving.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let this = self.this();
        tokio::spawn(async move {
            if let Some(file) = this.biggest() {
                // Refusals are recorded with the file. Without an answer the bytes stay for the
                // next try.
                let _ = this.flush(&file).await;
                this.tidy(&file);
            }
            this.relieving.store(false, Ordering::Relaxed);
        });
    }

    /// Sends all chunks at the same time. The outcome is that of the longest prefix without a gap.
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
                    // The order of the replies is unknown. The attributes with the largest change
                    // value and size are the newest.
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
                    // The count is limited to the bytes sent. A count of zero is an error, because
                    // the write makes no progress.
                    let bytes = reply.bytes.min(part.len() as u64);
                    if bytes == 0 {
                        return done_or(done, attr, Error::because(libc::EIO, "the server writes no bytes"));
                    }
                    let part = slice(&part, 0, bytes as usize);
                    self.update(&file, |log| {
                        if reply.stable {
                            log.wrote_stable(at, at + bytes)
                        } else {
                            log.wrote(at, &part, reply.verifier, epoch, &origin)
                        }
                    });
                    done += bytes as usize;
                    attr = reply.attr;
                }
                Err(failure) => return done_or(done, attr, failure.error().clone()),
            }
        }
        Ok((done as u64, attr))
    }

    /// Commits the writes from before the call. A final refusal is recorded with the file. A
    /// missing answer and a refusal for now are returned, and the bytes stay.
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
                Err(Failure::Refused(e)) if is_for_now(&e) => {
                    self.update(file, |log| log.uncertain(plan.through));
                    return Err(Failure::Refused(e));
                }
                Err(Failure::Refused(e)) => {
                    self.record_loss(file, e);
                    self.update(file, |log| log.abandon(plan.through));
                    return Ok(());
                }
                Err(silence) => return Err(silence),
            }
        }
        if file.log.lock().has_through(target) {
            let why = "the server keeps losing writes; they are kept and sent again later";
            Err(Failure::Unanswered(Error::because(libc::EIO, why)))
        } else {
            Ok(())
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
                        self.update(file, |log| {
                            if reply.stable {
                                log.wrote_stable(at, at + bytes)
                            } else {
                                log.resent(at, at + bytes, reply.verifier, epoch)
                            }
                        });
                        done += bytes as usize;
                    }
                    Ok(_) => {
                        self.record_loss(file, Error::because(libc::EIO, "the server writes no bytes"));
                        self.update(file, |log| log.wrote_stable(at, at + sent));
                        break;
                    }
                    Err(Failure::Refused(e)) if !is_for_now(&e) => {
                        self.record_loss(file, e);
                        self.update(file, |log| log.wrote_stable(at, at + sent));
                        break;
                    }
                    Err(kept) => return Err(kept),
                }
            }
        }
        Ok(())
    }

    /// Records an error of bytes that the server will never have.
    fn record_loss(&self, file: &File, e: Error) {
        let path = self.wire.path(&file.fh);
        tracing::error!(
            path = path.as_deref().unwrap_or("unknown"), fh = ?file.fh, error = %e,
            "written data is lost: mend the cause, and write the file again"
        );
        file.errors.record(e);
    }

    fn flush_in_background(&self, file: &Arc<File>) {
        if file.flushing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, file) = (self.this(), file.clone());
        tokio::spawn(async move {
            // Refusals are recorded with the file. Without an answer the bytes stay for the next
            // try.
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

/// A change of length in progress. A drop without [`Truncating::done`] leaves the kept writes as
/// they are.
pub struct Truncating {
    owner: Arc<Uncommitted>,
    file: Arc<File>,
    size_bytes: u64,
    _range: RangeGuard,
}

impl Truncating {
    /// The server has changed the length. Kept bytes beyond the new length are forgotten.
    pub fn done(self) {
        self.owner.update(&self.file, |log| log.truncated(self.size_bytes));
    }
}

impl Drop for Truncating {
    fn drop(&mut self) {
        self.owner.tidy(&self.file);
    }
}

/// Stable writes of a range in progress. Other writers of the range wait.
pub struct Finishing {
    owner: Arc<Uncommitted>,
    file: Arc<File>,
    _range: RangeGuard,
}

impl Finishing {
    /// These bytes are on stable storage. Older kept bytes in these ranges are forgotten.
    pub fn done(&self, ranges: impl Iterator<Item = (u64, u64)>) {
        self.owner.update(&self.file, |log| ranges.for_each(|(start, end)| log.wrote_stable(start, end)));
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        self.owner.tidy(&self.file);
    }
}

/// Bytes reserved for a write without a reply yet.
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

/// Bytes written before a failure give a successful short write. The next write meets the failure.
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
