//! Reads from the journal while the disk below fails, and writes its records again.
//!
//! After a failed write-back the kernel marks dirty pages clean, keeps them for an arbitrary time,
//! and then reads the disk. So from the first failure on, the file's bytes of unsettled records may
//! be wrong. Each read of a file with such records then asks the kernel whether a write-back of the
//! file failed (`sys::write_error`). From the first failure on, an index of the journal locates the
//! bytes of these records. Reads of their ranges come from the journal.
//!
//! The next checkpoint first writes the bytes of all records to their files again, and syncs each
//! file by a descriptor of its own. When no error occurred, the journal may be trimmed, and reads
//! come from the files as before.
//!
//! Bytes without a record (UNSTABLE writes) that were written over those of a record are newer than
//! the index. Reads of their ranges fail with EIO. After records were written again the write
//! verifier differs, so clients send such bytes again.

mod extents;

use super::super::Inner;
use super::super::object::Object;
use super::super::sys;
use super::{Journaled, Record, parse, plain};
use bytes::Bytes;
use extents::{Extents, Source};
use hither_vfs::{Data, Error, Fh, Read, Result};
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait of a checkpoint for a call that uses a file. Then the checkpoint is tried again
/// later.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// Shortest time between two attempts of calls to write the records again.
const RETRY_EVERY: Duration = Duration::from_secs(5);
/// Bytes of a record that are written again at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The places of the bytes of records, while the disk below fails.
#[derive(Default)]
pub(super) struct Readback {
    index: Mutex<Option<Index>>,
    /// Locked while records are written again; holds the time of the last attempt.
    again: Mutex<Option<Instant>>,
    /// Reads answered from the journal.
    pub reads: AtomicU64,
    /// Bytes that were written again.
    pub rewritten_bytes: AtomicU64,
}

/// Records that are not settled, by file.
#[derive(Default)]
struct Index {
    durable: HashMap<Fh, Extents>,
    /// Records that are not durable yet; read anew each time.
    pending: HashMap<Fh, Extents>,
    next: Option<crate::journal::Position>,
}

impl Index {
    /// Extends the index to the last record.
    fn extend(&mut self, journal: &Journaled) -> io::Result<()> {
        let durable = &mut self.durable;
        let (next, pending) = journal.log.scan(self.next, |seq, at, raw| {
            match parse(raw)?.1 {
                Record::Write { fh, at: start, data, .. } => {
                    // The bytes are the end of the record.
                    let data_at = at + (raw.len() - data.len()) as u64;
                    durable.entry(fh).or_default().insert(
                        start,
                        data.len() as u64,
                        seq,
                        Source::Journal(data_at),
                    );
                }
                Record::Settled { fh, upto } => {
                    if let Some(extents) = durable.get_mut(&fh) {
                        extents.void(upto);
                    }
                }
                Record::Changed { .. } | Record::Done { .. } => {}
            }
            Ok(())
        })?;
        self.next = Some(next);
        self.pending.clear();
        for (seq, raw) in pending {
            if let Record::Write { fh, at, data, .. } = parse(&raw)?.1 {
                let len = data.len() as u64;
                self.pending.entry(fh).or_default().insert(at, len, seq, Source::Memory(data));
            }
        }
        Ok(())
    }

    /// The pieces of a range that are in records, in order: offset, length, record and source of
    /// each.
    fn pieces(&self, fh: &Fh, start: u64, end: u64) -> Vec<(u64, u64, u64, Source)> {
        let mut all = Extents::default();
        for extents in [self.durable.get(fh), self.pending.get(fh)].into_iter().flatten() {
            for (at, len, seq, source) in extents.over(start, end) {
                all.insert(at, len, seq, source);
            }
        }
        all.over(start, end)
    }
}

impl Journaled {
    /// Whether bytes of a file are in the journal and may be stored nowhere else.
    pub(in super::super) fn guards(&self, object: &Object) -> bool {
        self.holds(object) && !self.is_void.load(Ordering::SeqCst)
    }

    /// Bytes of a record.
    fn bytes_of(&self, source: &Source, len: u64) -> io::Result<Bytes> {
        match source {
            Source::Journal(at) => Ok(self.log.bytes_at(*at, len as usize)?.into()),
            Source::Memory(bytes) => Ok(bytes.slice(..bytes.len().min(len as usize))),
        }
    }

    /// Whether a write-back of this or another file failed, as far as the descriptors of this
    /// process report it.
    fn fails(&self, object: &Object, fd: BorrowedFd<'_>) -> bool {
        // The lock is held until the failure is noted. A checkpoint that hands the file over takes
        // it before it looks for failures.
        let probe = object.probe.lock();
        let told = match &*probe {
            Some(probe) => sys::write_error(probe.as_fd()),
            None => sys::write_error(fd),
        };
        if told.is_err() {
            self.checkpoint.note_failure();
        }
        drop(probe);
        self.checkpoint.sound().is_err()
    }
}

impl Inner {
    /// Reads up to `len` bytes of a file, some of them from the journal if necessary. With `now`,
    /// `EAGAIN` when a disk is needed.
    pub(in super::super) fn read_object(
        &self,
        (object, fd): (&Object, BorrowedFd<'_>),
        at: u64,
        len: u32,
        now: bool,
    ) -> Result<Read> {
        let Some(journal) = self.journal.as_ref().filter(|journal| journal.guards(object)) else {
            return self.read_fd(fd, at, len, now);
        };
        loop {
            let failures = journal.checkpoint.failures();
            let read = self.read_fd(fd, at, len, now);
            if read.as_ref().is_err_and(|e| e.errno == libc::EIO) {
                journal.checkpoint.note_failure();
            }
            // The check follows the read: a failed write-back may drop pages at any time before the
            // read.
            let fails = journal.fails(object, fd);
            if !fails && journal.checkpoint.failures() == failures {
                return read;
            }
            if now {
                return Err(Error::new(libc::EAGAIN));
            }
            if fails && let Some(read) = self.read_back(journal, (object, fd), at, len)? {
                return Ok(read);
            }
        }
    }

    /// Reads ranges with records from the journal, and others from the file. `None`: the disk works
    /// again.
    fn read_back(
        &self,
        journal: &Journaled,
        (object, fd): (&Object, BorrowedFd<'_>),
        at: u64,
        len: u32,
    ) -> Result<Option<Read>> {
        let size = object.stat()?.stx_size;
        let end = size.min(at.saturating_add(len.into()));
        if at >= end {
            return Ok(Some(Read { data: Data::default(), eof: at >= size }));
        }
        let lost = |why: &str| Error::because(libc::EIO, format!("the disk below fails, and {why}"));
        let mut index = journal.readback.index.lock();
        if journal.checkpoint.sound().is_ok() {
            return Ok(None);
        }
        let found = index.get_or_insert_default();
        if let Err(e) = found.extend(journal) {
            *index = None;
            return Err(lost(&format!("the journal cannot be read: {e}")));
        }
        let bare = object.bare.load(Ordering::SeqCst);
        let mut out = Vec::with_capacity((end - at) as usize);
        let mut here = at;
        for (start, len, seq, source) in found.pieces(&object.fh, at, end) {
            if seq <= bare {
                return Err(lost("uncommitted bytes are newer than those of the journal"));
            }
            self.fill(fd, &mut out, here, start)?;
            let bytes = journal.bytes_of(&source, len).map_err(|e| lost(&e.to_string()))?;
            out.extend_from_slice(&bytes);
            here = start + len;
        }
        self.fill(fd, &mut out, here, end)?;
        drop(index);
        journal.readback.reads.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Read { data: Bytes::from(out).into(), eof: end >= size }))
    }

    /// Appends the bytes of a file between two offsets.
    fn fill(&self, fd: BorrowedFd<'_>, out: &mut Vec<u8>, from: u64, end: u64) -> Result<()> {
        let Some(len) = end.checked_sub(from).filter(|&len| len > 0) else { return Ok(()) };
        let bytes = self.read_fd(fd, from, len as u32, false)?.data.into_bytes();
        if bytes.len() as u64 != len {
            return Err(Error::because(libc::EIO, "the file was truncated while the disk below fails"));
        }
        out.extend_from_slice(&bytes);
        Ok(())
    }

    /// `EIO` while the disk below fails and the journal has bytes of the file. For calls that use
    /// the bytes of the file only.
    pub(in super::super) fn need_sound(&self, object: &Object, fd: BorrowedFd<'_>) -> Result<()> {
        match self.journal.as_ref().filter(|journal| journal.guards(object)) {
            Some(journal) if journal.fails(object, fd) => {
                Err(Error::because(libc::EIO, "the disk below fails, and only the journal has these bytes"))
            }
            _ => Ok(()),
        }
    }

    /// Notes bytes without a record; to be called after they were written.
    pub(in super::super) fn note_bare(&self, object: &Object) {
        if self.journal.as_ref().is_some_and(|journal| journal.guards(object)) {
            object.bare.fetch_max(object.journaled.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    /// As [`Inner::write_again`], for a call that needs the disk. Does nothing within `RETRY_EVERY`
    /// of the last attempt.
    pub(super) fn write_again_soon(&self, journal: &Journaled) -> io::Result<()> {
        let mut last = journal.readback.again.lock();
        if last.is_some_and(|last| last.elapsed() < RETRY_EVERY) {
            return journal.checkpoint.sound();
        }
        *last = Some(Instant::now());
        self.write_all_again(journal)
    }

    /// After a failure of the disk below: writes the bytes of all records to their files again and
    /// syncs the files. The failure is over when all of this succeeded.
    pub(super) fn write_again(&self, journal: &Journaled) -> io::Result<()> {
        let mut last = journal.readback.again.lock();
        *last = Some(Instant::now());
        self.write_all_again(journal)
    }

    fn write_all_again(&self, journal: &Journaled) -> io::Result<()> {
        journal.checkpoint.try_disk()?;
        let failures = journal.checkpoint.failures();
        // Earlier failures are known, and this sync keeps them from being reported to the next
        // start.
        let _ = sys::syncfs(journal.checkpoint.whole.as_fd());
        let files: Vec<Fh> = {
            let mut index = journal.readback.index.lock();
            let index = index.get_or_insert_default();
            index.extend(journal)?;
            index.durable.keys().chain(index.pending.keys()).cloned().collect()
        };
        let mut bytes = 0;
        for fh in &files {
            bytes += self.write_file_again(journal, fh)?;
        }
        journal.readback.rewritten_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut index = journal.readback.index.lock();
        if journal.checkpoint.failures() != failures {
            return journal.checkpoint.sound();
        }
        journal.checkpoint.works_again();
        if journal.checkpoint.failures() != failures {
            journal.checkpoint.note_failure();
            return journal.checkpoint.sound();
        }
        *index = None;
        self.failed.store(false, Ordering::Relaxed);
        tracing::warn!(
            "the disk below works again: {bytes} bytes of {} files were written again from the journal",
            files.len()
        );
        Ok(())
    }

    /// Writes the bytes that records have of a file again. Returns their number.
    fn write_file_again(&self, journal: &Journaled, fh: &Fh) -> io::Result<u64> {
        let object = match self.resolve_as_root(fh) {
            Ok(object) => object,
            // The file was removed.
            Err(e) if e.errno == libc::ESTALE => return Ok(0),
            Err(e) => return Err(plain(e)),
        };
        let fd = object.reopen(self.proc_fd.as_fd(), OFlags::RDWR).map_err(plain)?;
        let mut bytes = 0;
        {
            let busy = || io::Error::new(io::ErrorKind::WouldBlock, "a call uses a file");
            let _order = object.order.try_lock_for(BUSY_MAX).ok_or_else(busy)?;
            let pieces = {
                let mut index = journal.readback.index.lock();
                let index = index.get_or_insert_default();
                // The lock keeps new records of the file from being made.
                index.extend(journal)?;
                index.pieces(fh, 0, u64::MAX)
            };
            forget_failures(&object, fd.as_fd());
            let before = object.stat().map_err(plain)?;
            self.write_epoch.fetch_add(1, Ordering::SeqCst);
            let _changing = object.changes.begin();
            for (start, len, _, source) in pieces {
                let mut done = 0;
                while done < len {
                    let piece = PIECE_BYTES.min(len - done);
                    let data = journal.bytes_of(&source.skip(done), piece)?;
                    let wrote = sys::write(fd.as_fd(), &data.into(), start + done).map_err(plain)?;
                    if wrote != piece {
                        return Err(io::Error::from(io::ErrorKind::StorageFull));
                    }
                    done += piece;
                }
                bytes += len;
            }
            let mtime = before.stx_mtime;
            let last_modification = Timespec { tv_sec: mtime.tv_sec, tv_nsec: mtime.tv_nsec.into() };
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            rustix::fs::futimens(&fd, &Timestamps { last_access, last_modification })?;
        }
        sys::fsync(fd.as_fd()).map_err(plain)?;
        Ok(bytes)
    }

    /// The object behind a filehandle, for a thread of the superuser.
    fn resolve_as_root(&self, fh: &Fh) -> Result<Arc<Object>> {
        if let Some(object) = self.objects.find(fh) {
            return Ok(object);
        }
        let handle = self.sealer.open(fh)?;
        let fd = self.open_handle(&handle, libc::O_PATH | libc::O_NOFOLLOW).map_err(|e| match e.errno {
            libc::ENOENT | libc::EINVAL => Error::new(libc::ESTALE),
            _ => e,
        })?;
        let stat = super::super::object::stat(fd.as_fd())?;
        if stat.stx_nlink == 0 {
            return Err(Error::new(libc::ESTALE));
        }
        self.objects.add(fh.clone(), fd, &stat)
    }
}

/// Reads earlier failures, which are known, from all descriptors of a file. So the descriptors
/// report only new ones. Clients send bytes without records again, because the verifier differs.
fn forget_failures(object: &Object, own: BorrowedFd<'_>) {
    let shared = [true, false].map(|write| object.io_now(write));
    let mut probe = object.probe.lock();
    let all = std::iter::once(own).chain(shared.iter().flatten().map(|fd| fd.as_fd()));
    for fd in all.chain(probe.iter().map(|fd| fd.as_fd())) {
        let _ = sys::write_error(fd);
    }
    if !object.listed.load(Ordering::SeqCst) {
        *probe = None;
    }
}
