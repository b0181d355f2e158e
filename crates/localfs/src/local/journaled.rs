//! Stable writes through a journal: one sequential write makes many of them durable, and the file
//! system writes them back later.
//!
//! A stable write goes to the page cache, and a record with its bytes to the journal. The write is
//! answered when the record is durable. The kernel writes dirty pages back when it chooses, merged
//! and sorted. Data that is overwritten or removed before its write-back is never written. Some
//! file systems keep the order of changes. There removals, renames, links and attributes also have
//! records (`names`), and so have new files and directories (`stock`). Other changes (other new
//! objects, lengths, commits of unstable writes) are made stable at once, as without a journal.
//!
//! For each file, bytes are written and their records are made in the same order (`Object::order`).
//! So a replay of the records since the last checkpoint, in order, gives the acknowledged bytes.
//! Two rules keep a replay from writing old bytes over new ones:
//!
//! - When a file was synced in another way, a record says so before the sync is acknowledged.
//!   Earlier records of the file are then void.
//! - A file with records is synced, and the sync is recorded, before its length or its holes
//!   change.
//!
//! A write that was never answered may be lost or not, as without a journal.
//!
//! When the device of the journal fails, the whole file system is synced. A mark in the state
//! directory says that the records of the journal are void. From then on stable writes are synced
//! one by one. No call that needs the sync or the mark is acknowledged before both are done.
//!
//! The kernel may report an error of the disk below to one caller only. So after the first error
//! the journal frees no space and declares no record void. Reads of journaled bytes are answered
//! from the journal. This ends when the records were written again without an error (`readback`),
//! or when the next start applies them.
//!
//! One gap remains. A local program may change the same bytes or the length of a file in the
//! seconds between a stable write and the next checkpoint. After a power cut or a kill of the
//! server, it finds the bytes of the client there.

mod answered;
mod checkpoint;
pub(super) mod fresh;
pub(super) mod inspect;
pub(super) mod names;
mod readback;
mod replay;
mod start;
mod state_files;
pub(super) mod stock;

use super::io::FileAt;
use super::object::Object;
use super::pool::{Answer, Worker, measured};
use super::{Inner, sys};
#[cfg(test)]
use crate::journal::Owner;
use crate::journal::{Log, LogStats, Then};
use answered::Calls;
pub(super) use answered::named;
use bytes::Bytes;
use checkpoint::CheckpointFiles;
use hither_vfs::{Answered, Data, Error, Fh, OpenAccess, Result, Wrote};
use names::{Change, Names};
use parking_lot::Mutex;
use readback::Readback;
use rustix::fd::{AsFd, BorrowedFd};
use smallvec::SmallVec;
use state_files::{IN_USE_FILE, MARK_FILE, keep, remove};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use stock::Stock;

#[cfg(test)]
pub(super) use start::live_writes;
pub use state_files::give_up_journal;
pub(super) use state_files::nothing_left;

/// A record of bytes.
const WRITE: u8 = 1;
/// A record that says which earlier records of a file are void.
const SETTLED: u8 = 2;
/// The prefix of another record: the name of its call. The kinds 3 to 6 are changes (`names`).
const CALLED: u8 = 7;
/// A record that says only that a call was made.
const DONE: u8 = 8;
/// Longest record of a write without its bytes, in bytes, with a margin.
const RECORD_HEAD_MAX: u64 = 256;

/// A journal for stable writes.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// A file, which is created when it is missing, or a block device.
    pub path: PathBuf,
    /// Size of a new file in bytes; at least 1 MiB.
    pub size_bytes: u64,
    /// Formats an empty journal. Existing contents of the file or device are lost.
    pub discard: bool,
}

/// The journal of a directory.
pub(super) struct Journaled {
    pub log: Arc<Log>,
    record_max: u64,
    checkpoint: Arc<CheckpointFiles>,
    calls: Arc<Calls>,
    /// `None`: changes of names and attributes have no records.
    names: Option<Arc<Names>>,
    /// `None`: new objects are synced.
    stock: Option<Stock>,
    /// Counts of the last start. First the changes of names and attributes that were made again,
    /// then those that could not be. The third counts the new objects among the first.
    #[cfg(test)]
    pub redone: (u64, u64, u64),
    settled: Arc<AtomicU64>,
    epoch: u64,
    #[cfg(test)]
    owner: Owner,
    state_dir: Option<PathBuf>,
    mode: Mutex<Mode>,
    /// Whether `mode` is `PassThrough`.
    is_void: AtomicBool,
    readback: Readback,
    /// The directory. Checkpoints need it after a failure of the disk below.
    inner: Arc<OnceLock<Weak<Inner>>>,
}

/// The state of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Bytes that records take.
    pub used_bytes: u64,
    /// Bytes that records may take.
    pub room_bytes: u64,
    /// Whether the disk below fails, so that the journal keeps all records.
    pub disk_fails: bool,
    /// Whether the journal is out of use until the next start.
    pub has_failed: bool,
    /// Reads answered from the journal because the disk below failed.
    pub reads: u64,
    /// Bytes of records that were written again after a failure.
    pub rewritten_bytes: u64,
    /// Batches and checkpoints.
    pub log: LogStats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Journal,
    /// The journal is void, and all changes are synced one by one.
    PassThrough,
}

/// A parsed record.
enum Record {
    Write {
        fh: Fh,
        at: u64,
        mtime: (i64, u32),
        data: Bytes,
    },
    Settled {
        fh: Fh,
        upto: u64,
    },
    Changed {
        number: u64,
        change: Change,
    },
    /// `bytes`: of a write.
    Done {
        fh: Fh,
        bytes: u32,
    },
}

/// The directory that a journal is for.
pub(super) struct JournalTarget<'a> {
    /// The directory.
    pub top: BorrowedFd<'a>,
    pub fs_id: &'a [u8; 16],
    /// The device number of its file system, if that keeps the order of changes on disk.
    pub ordered: Option<u64>,
}

impl Journaled {
    /// Sets the directory. From now on records can be written again.
    pub fn serve(&self, inner: &Arc<Inner>) {
        let _ = self.inner.set(Arc::downgrade(inner));
    }

    pub fn stats(&self) -> JournalStats {
        let (used_bytes, room_bytes) = self.log.used();
        JournalStats {
            used_bytes,
            room_bytes,
            disk_fails: self.checkpoint.sound().is_err(),
            has_failed: !self.is_on(),
            reads: self.readback.reads.load(Ordering::Relaxed),
            rewritten_bytes: self.readback.rewritten_bytes.load(Ordering::Relaxed),
            log: self.log.stats(),
        }
    }

    /// Writes the pending records and settles them. The next start may run without the journal.
    pub fn close(&self) -> io::Result<()> {
        self.log.close(true)?;
        if let Some(stock) = &self.stock {
            stock.close()?;
        }
        self.state_dir.as_ref().map_or(Ok(()), |dir| remove(dir, IN_USE_FILE))
    }

    /// Recent calls that were made and are durable, oldest first.
    pub fn answered(&self) -> Vec<Answered> {
        self.calls.all()
    }

    /// Appends the record of a call. A call with a name is remembered from then on.
    fn append_for(&self, call: Option<Answered>, record: &[&[u8]], then: Then) -> u64 {
        let head = answered::head(call.as_ref());
        let parts: SmallVec<[&[u8]; 4]> = std::iter::once(&head[..]).chain(record.iter().copied()).collect();
        self.log.append_then(&parts, measured(then), |seq| {
            if let Some(call) = call {
                self.calls.add(seq, call);
            }
        })
    }

    #[cfg(test)]
    pub fn names(&self) -> Option<&Names> {
        self.names.as_deref()
    }

    #[cfg(test)]
    pub fn stock(&self) -> Option<&Stock> {
        self.stock.as_ref()
    }

    /// Simulates a disk below that fails at every attempt.
    #[cfg(test)]
    pub fn break_disk(&self) {
        self.checkpoint.is_broken.store(true, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The last settled record: the changes of all records up to it are stable in the file system.
    pub fn settled(&self) -> Arc<AtomicU64> {
        self.settled.clone()
    }

    /// Whether records are made.
    fn is_on(&self) -> bool {
        *self.mode.lock() == Mode::Journal && !self.log.failed()
    }

    fn holds(&self, object: &Object) -> bool {
        object.journaled.load(Ordering::SeqCst) > self.settled.load(Ordering::SeqCst)
    }

    /// Notes that one caller got an error of the disk below.
    pub fn disk_failed(&self) {
        self.checkpoint.note_failure();
    }

    /// Makes all changes stable in the file system.
    fn sync_all(&self) -> Result<()> {
        // Checkpoints use this descriptor too, so an error of this sync must be noted.
        sys::syncfs(self.checkpoint.whole.as_fd()).inspect_err(|_| self.disk_failed())?;
        self.checkpoint.sound().map_err(|_| {
            Error::because(
                libc::EIO,
                "the disk below failed: the next start applies the records of the journal",
            )
        })
    }

    /// Gives the journal up for this run. All acknowledged changes are made stable in the file
    /// system first. `false`: the journal was given up before.
    fn abandon(&self) -> Result<bool> {
        let mut mode = self.mode.lock();
        if *mode == Mode::PassThrough {
            return Ok(false);
        }
        self.sync_all()?;
        let dir = self.state_dir.as_deref();
        let dir = dir
            .ok_or_else(|| Error::because(libc::EIO, "the journal fails and there is no state directory"))?;
        let mark = keep(dir, MARK_FILE, &self.epoch.to_le_bytes()).and_then(|()| remove(dir, IN_USE_FILE));
        mark.map_err(|e| {
            Error::because(libc::EIO, format!("the journal fails, and {}: {e}", dir.display()))
        })?;
        *mode = Mode::PassThrough;
        self.is_void.store(true, Ordering::SeqCst);
        tracing::warn!("the journal is out of use; stable writes are synced one by one");
        Ok(true)
    }
}

impl Inner {
    /// Whether a stable write of `len` bytes goes through the journal, as far as is known now.
    pub(super) fn journals(&self, len: usize) -> bool {
        let journal = self.journal.as_ref().filter(|_| self.options.stable);
        journal.is_some_and(|j| len > 0 && j.is_on() && len as u64 + RECORD_HEAD_MAX <= j.record_max)
    }

    /// A stable write through the journal. The write is applied, and `then` is called when it is
    /// durable, or with the error. `Ok((_, false))`: the write was applied, and the journal failed.
    pub(super) fn journaled_write(
        &self,
        worker: &mut Worker,
        (file, at, data): (&FileAt, u64, &Data),
        call: Option<Bytes>,
        then: impl FnOnce(Result<(Wrote, bool)>) + Send + 'static,
    ) {
        let Some(journal) = &self.journal else { return then(Err(Error::new(libc::EIO))) };
        journal.log.admit();
        let (object, fd) = match self.io(worker, file, OpenAccess::WRITE) {
            Ok(found) => found,
            Err(e) => return then(Err(e)),
        };
        let order = object.order.lock();
        let modes = object.modes.quiet();
        let set_id = match object.stat() {
            Ok(stat) => stat.stx_mode & 0o6000 != 0,
            Err(e) => return then(Err(e)),
        };
        let wrote = {
            let _changing = object.changes.begin();
            worker.caller(|| sys::write(fd.as_fd(), data, at))
        };
        let wrote = wrote.inspect_err(|e| {
            if e.errno == libc::EIO {
                self.disk_failed(e);
            }
        });
        let wrote = wrote.and_then(|bytes| Ok(Wrote { bytes, attrs: Some(self.attrs(&object)?) }));
        let (wrote, mtime) = match wrote {
            Ok(wrote) => {
                let mtime = wrote.attrs.as_ref().map(|a| a.attr.mtime).unwrap_or_default();
                (wrote, mtime)
            }
            Err(e) => return then(Err(e)),
        };
        if set_id || !modes.is_some_and(|modes| object.modes.still(modes)) {
            // A write clears set-id bits. A replay of its record, as the superuser, would not clear
            // them: then the bits would apply to bytes that they were not set for.
            drop(order);
            return match self.sync_one(worker, &object) {
                Ok(()) => {
                    let call = answered::named(call, &object.fh, wrote.bytes as u32);
                    self.answer_known(call, (wrote, true), Box::new(then));
                }
                Err(e) => then(Err(e)),
            };
        }
        let mut head = Vec::with_capacity(RECORD_HEAD_MAX as usize);
        head.push(WRITE);
        put_fh(&mut head, &object.fh);
        head.extend_from_slice(&at.to_le_bytes());
        head.extend_from_slice(&mtime.secs.to_le_bytes());
        head.extend_from_slice(&mtime.nanos.to_le_bytes());
        let mut parts: Vec<&[u8]> = vec![&head];
        let mut left = wrote.bytes as usize;
        for part in data.parts() {
            parts.push(&part[..part.len().min(left)]);
            left -= part.len().min(left);
        }
        journal.checkpoint.add(worker, &object);
        let call = answered::named(call, &object.fh, wrote.bytes as u32);
        let seq = journal.append_for(call, &parts, Box::new(move |durable| then(Ok((wrote, durable)))));
        object.journaled.fetch_max(seq, Ordering::SeqCst);
    }

    /// A call was made and is stable. Makes a record so that a restart remembers the call, then
    /// answers it.
    pub(super) fn answer_known<T: Send + 'static>(&self, call: Option<Answered>, result: T, then: Answer<T>) {
        match (&self.journal, call) {
            (Some(journal), Some(call)) if self.options.stable && journal.is_on() => {
                let record = answered::done(&call);
                journal.append_for(Some(call), &[&record], Box::new(move |_| then(Ok(result))));
            }
            _ => then(Ok(result)),
        }
    }

    /// Makes a change stable after the journal failed during it.
    pub(super) fn stable_all_the_same(&self, worker: &mut Worker) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let done = worker.root(|| {
            // An earlier sync of the file system may not include the change.
            if self.abandon(journal)? { Ok(()) } else { journal.sync_all() }
        });
        done.inspect_err(|e| self.lost(e))
    }

    fn without_journal(&self, worker: &mut Worker) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        worker.root(|| self.abandon(journal)).map(drop).inspect_err(|e| self.lost(e))
    }

    /// See [`Journaled::abandon`]. After a failure of the disk below, the records are written again
    /// first.
    fn abandon(&self, journal: &Journaled) -> Result<bool> {
        if journal.checkpoint.sound().is_err() && !journal.is_void.load(Ordering::SeqCst) {
            self.write_again_soon(journal).map_err(|e| {
                let why = format!("the disk below failed, and the journal keeps its records: {e}");
                Error::because(libc::EIO, why)
            })?;
        }
        journal.abandon()
    }

    /// As [`Inner::without_journal`], if the journal has failed.
    pub(super) fn without_failed_journal(&self, worker: &mut Worker) -> Result<()> {
        match &self.journal {
            Some(journal) if !journal.is_on() => self.without_journal(worker),
            _ => Ok(()),
        }
    }

    /// The last record of a file that a sync beginning now covers.
    pub(super) fn records_of(&self, object: &Object) -> Option<u64> {
        let journal = self.journal.as_ref()?;
        journal.holds(object).then(|| object.journaled.load(Ordering::SeqCst))
    }

    /// Declares the records of a file void after a sync of the file. Returns when that is durable.
    pub(super) fn void_records(&self, worker: &mut Worker, object: &Object, upto: u64) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        // The sync may have succeeded because the kernel reported its error to another descriptor.
        journal.checkpoint.sound().map_err(|_| {
            Error::because(libc::EIO, "the disk below failed, and the journal holds older bytes of the file")
        })?;
        if journal.is_on() {
            let mut record = vec![SETTLED];
            put_fh(&mut record, &object.fh);
            record.extend_from_slice(&upto.to_le_bytes());
            if journal.log.wait_durable(journal.log.append(&[&record])) {
                return Ok(());
            }
        }
        self.without_journal(worker)
    }

    /// Called before the length or holes of a file change. Afterwards no record of the journal is
    /// applied to the file again. The caller holds `order`.
    pub(super) fn quiesce(&self, worker: &mut Worker, object: &Object) -> Result<()> {
        match self.records_of(object) {
            Some(upto) => self.sync_with(worker, object, Some(upto)),
            None => Ok(()),
        }
    }
}

/// See [`Inner::write_again`].
fn write_again(inner: &OnceLock<Weak<Inner>>) -> io::Result<()> {
    let inner = inner.get().and_then(Weak::upgrade);
    match inner.as_ref().and_then(|inner| Some((inner, inner.journal.as_ref()?))) {
        Some((inner, journal)) => inner.write_again(journal),
        None => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

fn put_fh(out: &mut Vec<u8>, fh: &Fh) {
    out.push(fh.0.len() as u8);
    out.extend_from_slice(&fh.0);
}

impl Record {
    fn parse(raw: &[u8]) -> Option<Self> {
        if let Some((number, change)) = Change::parse(raw) {
            return Some(Self::Changed { number, change });
        }
        let (&kind, rest) = raw.split_first()?;
        let (&len, rest) = rest.split_first()?;
        let (fh, rest) = rest.split_at_checked(len.into())?;
        let fh = Fh(Bytes::copy_from_slice(fh));
        let (word, rest) = rest.split_first_chunk::<8>()?;
        let word = u64::from_le_bytes(*word);
        match kind {
            SETTLED => Some(Self::Settled { fh, upto: word }),
            DONE => Some(Self::Done { fh, bytes: word.try_into().ok()? }),
            WRITE => {
                let (secs, rest) = rest.split_first_chunk::<8>()?;
                let (nanos, data) = rest.split_first_chunk::<4>()?;
                let mtime = (i64::from_le_bytes(*secs), u32::from_le_bytes(*nanos));
                Some(Self::Write { fh, at: word, mtime, data: Bytes::copy_from_slice(data) })
            }
            _ => None,
        }
    }
}

/// A record, and the name of its call if it has one.
fn parse(raw: &[u8]) -> io::Result<(Option<Bytes>, Record)> {
    let parsed = answered::split(raw).and_then(|(call, raw)| Some((call, Record::parse(raw)?)));
    parsed.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a record cannot be parsed"))
}

fn plain(e: Error) -> io::Error {
    io::Error::from_raw_os_error(e.errno)
}

/// The id of this machine (machine-id(5)); zeros when it has none.
fn host_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    u128::from_str_radix(text.trim(), 16).unwrap_or(0).to_be_bytes()
}
