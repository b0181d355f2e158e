//! Files with records since the last checkpoint, and how a checkpoint makes them stable.

use super::super::object::{Object, os, stat};
use super::super::pool::Worker;
use super::super::sys;
use super::plain;
use crate::journal::{Goal, Log};
use hither_vfs::Result;
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode as FileMode, OFlags};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Files that a checkpoint syncs one by one, if a part of all descriptors is enough for them. With
/// more files, the whole file system is synced.
const LISTED_MAX: usize = 4096;
const LISTED_MIN: usize = 256;
const DESCRIPTORS_PART: u64 = 8;
/// Most other files that are known.
const OTHERS_MAX: usize = 16384;
/// A checkpoint hands bytes to the disk little by little for this time at most. Where the log is
/// committed once, this holds for each file.
const UNHURRIED: Duration = Duration::from_secs(10);
/// Files that are handed over in the order of their inodes, or at once when the journal fills up.
const TOGETHER: usize = 16;
/// Bytes of a file that are handed over at a time, or this part of a large file. If a pass over all
/// files took longer than `SHORT`, another one follows.
const PIECE_BYTES: u64 = 16 << 10;
const PIECES_MAX: u64 = 1 << 16;
const SHORT: Duration = Duration::from_millis(250);

/// Files with records since the last checkpoint.
pub(super) struct CheckpointFiles {
    /// A descriptor opened for checkpoints only, so it also gets errors that others got.
    pub whole: OwnedFd,
    proc_fd: OwnedFd,
    files: Mutex<Files>,
    listed_max: usize,
    /// One caller got an error of the disk below. The bytes of records may be stored only in the
    /// journal.
    disk_failed: AtomicBool,
    /// Number of reported errors.
    failures: AtomicU64,
    /// The journal; not set before there is one.
    log: OnceLock<Weak<Log>>,
    /// Whether a checkpoint should hurry; not set before there is a journal.
    pressed: OnceLock<Arc<AtomicBool>>,
    /// The disk fails at every attempt.
    #[cfg(test)]
    pub is_broken: AtomicBool,
}

#[derive(Default)]
struct Files {
    listed: Vec<ListedFile>,
    /// Other files, as far as they are known.
    others: Vec<Weak<Object>>,
    /// There are other files. At the start these are the files that records were applied to, unless
    /// the file system was synced after that.
    more: bool,
}

/// A file with bytes that may not be on disk.
struct ListedFile {
    object: Arc<Object>,
    /// For the checkpoint only, so it also gets errors that others got.
    fd: Arc<OwnedFd>,
    /// The records of these bytes have this number or a higher one.
    since: u64,
}

impl ListedFile {
    /// Later writes belong to another checkpoint. To be called before the bytes are handed over.
    fn leave_list(&self) {
        self.object.listed.store(false, Ordering::SeqCst);
    }

    /// The disk has the bytes.
    fn is_handed_over(&self) {
        let mut probe = self.object.probe.lock();
        // Unless there are newer records.
        if probe.as_ref().is_some_and(|probe| Arc::ptr_eq(probe, &self.fd)) {
            *probe = None;
        }
    }
}

impl CheckpointFiles {
    /// `more`: records were applied, and the file system was not synced after that.
    pub fn new(top: BorrowedFd<'_>, more: bool) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let whole = rustix::fs::openat(top, c".", flags, FileMode::empty()).map_err(os)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc_fd = rustix::fs::open("/proc/self/fd", flags, FileMode::empty()).map_err(os)?;
        let files = Mutex::new(Files { more, ..Files::default() });
        let descriptors =
            getrlimit(Resource::Nofile).current.map_or(LISTED_MAX, |n| (n / DESCRIPTORS_PART) as usize);
        let listed_max = descriptors.clamp(LISTED_MIN, LISTED_MAX);
        Ok(Self {
            whole,
            proc_fd,
            files,
            listed_max,
            disk_failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            log: OnceLock::new(),
            pressed: OnceLock::new(),
            #[cfg(test)]
            is_broken: AtomicBool::new(false),
        })
    }

    /// Adds a file. To be called after bytes were written and before their record is made.
    pub fn add(&self, worker: &mut Worker, object: &Arc<Object>) {
        if object.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        let full = self.files.lock().listed.len() >= self.listed_max || object.alone.load(Ordering::SeqCst);
        let fd = (!full).then(|| worker.root(|| object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY)).ok());
        let mut files = self.files.lock();
        // Under the lock: no checkpoint in between has settled this record.
        let since = self.log.get().and_then(Weak::upgrade).map_or(0, |log| log.next_seq());
        match fd.flatten() {
            Some(fd) => {
                let fd = Arc::new(fd);
                *object.probe.lock() = Some(fd.clone());
                files.listed.push(ListedFile { object: object.clone(), fd, since });
            }
            // There are too many, or this process may not open the file, at least not now.
            None => {
                files.more = true;
                if files.others.len() < OTHERS_MAX {
                    files.others.push(Arc::downgrade(object))
                } else {
                    object.listed.store(false, Ordering::SeqCst)
                }
            }
        }
    }

    /// Hands dirty pages of these files to the disk, a little at a time. So other requests to that
    /// disk, above all appends to a journal on it, wait behind a few requests and not behind all.
    /// Stops when the journal fills up. Repeats while a pass takes long, so that few new dirty
    /// pages are left.
    fn write_back(&self, files: &Files) -> io::Result<()> {
        let until = Instant::now() + UNHURRIED;
        loop {
            let began = Instant::now();
            if !self.write_back_once(files, until)? || began.elapsed() < SHORT {
                return Ok(());
            }
        }
    }

    /// `false`: the time is over.
    fn write_back_once(&self, Files { listed, others, .. }: &Files, until: Instant) -> io::Result<bool> {
        for ListedFile { object, fd, .. } in listed {
            if !self.write_back_one(object, fd, until)? {
                return Ok(false);
            }
        }
        let others = others.iter().filter_map(Weak::upgrade);
        for object in others.filter(|object| !object.alone.load(Ordering::SeqCst)) {
            let Ok(fd) = object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY) else { continue };
            if !self.write_back_one(&object, &fd, until)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_pressed(&self) -> bool {
        self.pressed.get().is_none_or(|pressed| pressed.load(Ordering::SeqCst))
    }

    /// `false`: the time is over.
    fn write_back_one(&self, object: &Object, fd: &OwnedFd, until: Instant) -> io::Result<bool> {
        let stat = object.stat().map_err(plain)?;
        // The blocks of a file without a name may never be needed.
        let size = if stat.stx_nlink > 0 { stat.stx_size } else { 0 };
        let piece = PIECE_BYTES.max((size / PIECES_MAX).next_multiple_of(PIECE_BYTES));
        let mut at = 0;
        while at < size {
            if self.is_pressed() || Instant::now() >= until {
                return Ok(false);
            }
            sys::write_back(fd.as_fd(), at, piece).map_err(plain)?;
            at += piece;
        }
        Ok(true)
    }

    /// Sets the journal. From now on checkpoints hurry when `log` says so; before, they always
    /// hurry. When the disk fails, `log` keeps all records.
    pub fn begin(&self, log: &Arc<Log>) {
        let _ = self.pressed.set(log.pressed());
        let _ = self.log.set(Arc::downgrade(log));
    }

    /// Makes the bytes of records stable, and returns the last record before those of files that
    /// wait. `logged`: a log keeps the order of changes on disk, and is made durable after this.
    /// Then it is enough that the disk has the bytes, and files without due records may wait.
    pub fn settle(&self, goal: Goal, logged: bool) -> io::Result<u64> {
        if logged && !self.files.lock().more && !self.keeps_times_back() {
            return self.hand_over_due(goal);
        }
        self.sync_all().map(|()| goal.upto)
    }

    /// Syncs the files, and nothing else unless they are too many: writes of other programs to the
    /// file system need no wait.
    fn sync_all(&self) -> io::Result<()> {
        let files = std::mem::take(&mut *self.files.lock());
        files.listed.iter().for_each(ListedFile::leave_list);
        for object in files.others.iter().filter_map(Weak::upgrade) {
            object.listed.store(false, Ordering::SeqCst);
        }
        self.write_back(&files)?;
        if files.more {
            sys::syncfs(self.whole.as_fd()).map_err(plain)?
        } else {
            // This sync includes the times, which were answered, too.
            files.listed.iter().try_for_each(|file| sys::fsync(file.fd.as_fd()).map_err(plain))?
        }
        files.listed.iter().for_each(ListedFile::is_handed_over);
        Ok(())
    }

    /// Whether the log may lack times that a change set (mount option `lazytime`). Only a sync of
    /// the file writes them.
    fn keeps_times_back(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        stat(self.whole.as_fd())
            .map_or(true, |stat| is_lazy(&mounts, (stat.stx_dev_major, stat.stx_dev_minor)))
    }

    /// Hands the bytes of due files to the disk, a little at a time while there is no hurry, and
    /// commits nothing. The log commits sizes, times and block locations. A sync of each file, or
    /// of all at once, would be a commit behind hundreds of writes. Each change of a block that the
    /// commit writes would wait for it. Returns the last record before those of files that wait.
    fn hand_over_due(&self, goal: Goal) -> io::Result<u64> {
        let mut due: Vec<ListedFile> = {
            let mut files = self.files.lock();
            let is_crowded = files.listed.len() > self.listed_max / 2;
            let last = if is_crowded { goal.upto } else { goal.due };
            files.listed.extract_if(.., |file| file.since <= last).collect()
        };
        // The space of the oldest records is freed first.
        due.sort_by_key(|file| file.since);
        let until = goal.within.map(|within| Instant::now() + within);
        let mut done = Ok(());
        while !due.is_empty() && done.is_ok() && until.is_none_or(|until| Instant::now() < until) {
            done = self.hand_over(due.drain(..TOGETHER.min(due.len())).collect());
        }
        let mut files = self.files.lock();
        files.listed.append(&mut due);
        let waiting = files.listed.iter().map(|file| file.since.saturating_sub(1)).min();
        done.map(|()| waiting.map_or(goal.upto, |before| before.min(goal.upto)))
    }

    /// Hands all bytes of these files to the disk. After an error, the bytes of all records are
    /// written again.
    fn hand_over(&self, mut files: Vec<ListedFile>) -> io::Result<()> {
        files.iter().for_each(ListedFile::leave_list);
        // The disk's head moves in one direction, as far as inodes show the place of bytes.
        files.sort_by_cached_key(|file| file.object.stat().map_or(0, |stat| stat.stx_ino));
        if self.is_pressed() {
            // The kernel sorts the writes.
            files.iter().try_for_each(|file| sys::begin_write_back(file.fd.as_fd()).map_err(plain))?;
        }
        for file in &files {
            let ListedFile { object, fd, .. } = file;
            // A file without a name that is not open is of no use after its removal is durable.
            if object.is_open() || object.stat().map_err(plain)?.stx_nlink > 0 {
                self.write_back_one(object, fd, Instant::now() + UNHURRIED)?;
                // To the present end of the file.
                sys::write_back(fd.as_fd(), 0, 0).map_err(plain)?;
            }
            file.is_handed_over();
        }
        Ok(())
    }

    /// Notes that one caller got an error of the disk.
    pub fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
        // Before a read is answered from the journal because of the error.
        if let Some(log) = self.log.get().and_then(Weak::upgrade) {
            log.keep_all();
        }
        if !self.disk_failed.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "the disk below fails; the journal keeps its records, answers reads of them, and writes them again"
            );
        }
    }

    /// Number of errors that were reported.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// Notes that all records are settled, and that no error occurred since they were written
    /// again.
    pub fn works_again(&self) {
        self.disk_failed.store(false, Ordering::SeqCst);
    }

    /// Fails where a test simulates a failure of the disk.
    pub fn try_disk(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// Fails after a reported error of the disk: the kernel may report success to later syncs.
    pub fn sound(&self) -> io::Result<()> {
        if self.disk_failed.load(Ordering::SeqCst) {
            Err(io::Error::from_raw_os_error(libc::EIO))
        } else {
            Ok(())
        }
    }
}

/// Whether mountinfo (proc(5)) shows a file system as mounted with `lazytime`. A file system that
/// is missing there counts as such.
fn is_lazy(mounts: &str, (major, minor): (u32, u32)) -> bool {
    let device = format!("{major}:{minor}");
    let mut found = mounts.lines().filter(|line| line.split(' ').nth(2) == Some(&device)).peekable();
    let says_so =
        |line: &str| line.rsplit(' ').next().is_some_and(|all| all.split(',').any(|o| o == "lazytime"));
    found.peek().is_none() || found.any(says_so)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount with `lazytime` is detected. An unknown mount counts as one.
    #[test]
    fn lazytime_mount_is_detected() {
        let mounts = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
                      60 25 7:1 / /a rw,noatime - ext4 /dev/loop1 rw,lazytime,errors=continue\n\
                      61 25 7:11 / /lazytime rw - ext4 /dev/loop11 rw\n";
        assert!(!is_lazy(mounts, (254, 0)));
        assert!(is_lazy(mounts, (7, 1)));
        assert!(!is_lazy(mounts, (7, 11)));
        assert!(is_lazy(mounts, (7, 2)), "one that is not known");
    }
}
