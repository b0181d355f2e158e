//! Files with records since the last checkpoint, and what a checkpoint does to them.

use super::super::object::{Object, os, stat};
use super::super::pool::Worker;
use super::super::sys;
use super::plain;
use crate::journal::Log;
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

/// Files that a checkpoint goes through one by one, if a part of all descriptors suffices for them;
/// with more, the file system as a whole is synced.
const LISTED_MAX: usize = 4096;
const LISTED_MIN: usize = 256;
const DESCRIPTORS_PART: u64 = 8;
/// Of the others, so many are known.
const OTHERS_MAX: usize = 16384;
/// A checkpoint takes so long at most for handing bytes to the disk little by little, for each file
/// where the log is committed once, and
const UNHURRIED: Duration = Duration::from_secs(10);
/// so many of a file at a time, or this part of a large one. All of them are gone through again
/// when that took longer than this.
const PIECE_BYTES: u64 = 16 << 10;
const PIECES_MAX: u64 = 1 << 16;
const SHORT: Duration = Duration::from_millis(250);

/// Files with records since the last checkpoint.
pub(super) struct Touched {
    /// Opened for checkpoints only: errors that are told to others are told here, too.
    pub whole: OwnedFd,
    proc_fd: OwnedFd,
    files: Mutex<Files>,
    listed_max: usize,
    /// An error of the disk below was told to somebody: what the journal holds may be nowhere else.
    disk_failed: AtomicBool,
    /// Errors that were told.
    failures: AtomicU64,
    /// The journal; nothing as long as there is none.
    log: OnceLock<Weak<Log>>,
    /// Whether a checkpoint should be over soon; nothing as long as there is no journal.
    pressed: OnceLock<Arc<AtomicBool>>,
    /// The disk fails whatever is tried again.
    #[cfg(test)]
    pub is_broken: AtomicBool,
}

#[derive(Default)]
struct Files {
    /// Each with a descriptor for the checkpoint only, for the same reason.
    listed: Vec<(Arc<Object>, Arc<OwnedFd>)>,
    /// Others, as far as they are known.
    others: Vec<Weak<Object>>,
    /// There are others; in the beginning, those that records were applied to, unless all was
    /// synced after that.
    more: bool,
}

impl Touched {
    /// `more`: records were applied, and nothing was synced after that.
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

    /// To be called after bytes were written and before their record is made.
    pub fn add(&self, worker: &mut Worker, object: &Arc<Object>) {
        if object.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        let full = self.files.lock().listed.len() >= self.listed_max || object.alone.load(Ordering::SeqCst);
        let fd = (!full).then(|| worker.root(|| object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY)).ok());
        let mut files = self.files.lock();
        match fd.flatten() {
            Some(fd) => {
                let fd = Arc::new(fd);
                *object.probe.lock() = Some(fd.clone());
                files.listed.push((object.clone(), fd));
            }
            // Too many, or not to be opened by this process, or not now.
            None => {
                files.more = true;
                match files.others.len() < OTHERS_MAX {
                    true => files.others.push(Arc::downgrade(object)),
                    false => object.listed.store(false, Ordering::SeqCst),
                }
            }
        }
    }

    /// Hands what was written to these files to the disk, a little at a time: whatever else has to
    /// wait for that disk, an append to a journal on it above all, waits behind a few requests and
    /// not behind all. Not when the journal fills up. Again while it takes long: what is written
    /// meanwhile is to be few, too.
    fn write_back(&self, files: &Files) -> io::Result<()> {
        let until = Instant::now() + UNHURRIED;
        loop {
            let began = Instant::now();
            if !self.write_back_once(files, until)? || began.elapsed() < SHORT {
                return Ok(());
            }
        }
    }

    /// `false`: there is no time.
    fn write_back_once(&self, Files { listed, others, .. }: &Files, until: Instant) -> io::Result<bool> {
        for (object, fd) in listed {
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

    /// `false`: there is no time.
    fn write_back_one(&self, object: &Object, fd: &OwnedFd, until: Instant) -> io::Result<bool> {
        let stat = object.stat().map_err(plain)?;
        // What has no name may never have to be written.
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

    /// From now on checkpoints hurry when `log` says so (before, they always do), and it keeps all
    /// when the disk fails.
    pub fn begin(&self, log: &Arc<Log>) {
        let _ = self.pressed.set(log.pressed());
        let _ = self.log.set(Arc::downgrade(log));
    }

    /// Syncs them, and nothing else if they are not too many: what others write to the file system
    /// is not ours to wait for. `logged`: a log keeps the order of changes on disk, and is made
    /// durable after this; then it is enough that the disk has the bytes by then.
    pub fn settle(&self, logged: bool) -> io::Result<()> {
        let files = std::mem::take(&mut *self.files.lock());
        let others = files.others.iter().filter_map(Weak::upgrade);
        for object in files.listed.iter().map(|(object, _)| object.clone()).chain(others) {
            // Before the disk is asked: what is written from now on is for the next checkpoint.
            object.listed.store(false, Ordering::SeqCst);
        }
        let listed = &files.listed;
        if logged && !files.more && !self.keeps_times_back() {
            self.hand_over(listed)?;
        } else {
            self.write_back(&files)?;
            match files.more {
                true => sys::syncfs(self.whole.as_fd()).map_err(plain)?,
                // With its times: those were answered, too.
                false => listed.iter().try_for_each(|(_, fd)| sys::fsync(fd.as_fd()).map_err(plain))?,
            }
        }
        for (object, fd) in listed {
            let mut probe = object.probe.lock();
            // Unless there are newer records.
            if probe.as_ref().is_some_and(|probe| Arc::ptr_eq(probe, fd)) {
                *probe = None;
            }
        }
        Ok(())
    }

    /// Whether times may be in no log yet although a change set them (mount option `lazytime`): the
    /// file's own sync writes them.
    fn keeps_times_back(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        stat(self.whole.as_fd())
            .map_or(true, |stat| is_lazy(&mounts, (stat.stx_dev_major, stat.stx_dev_minor)))
    }

    /// Has the disk take all bytes of these files, a little at a time while there is no hurry, and
    /// commits nothing: sizes, times and where the bytes are go with the log. A sync of each file,
    /// or of all at once, would be a commit behind hundreds of writes, and whoever changes what a
    /// commit is writing waits for it.
    fn hand_over(&self, listed: &[(Arc<Object>, Arc<OwnedFd>)]) -> io::Result<()> {
        let mut begun = false;
        for (at, (object, fd)) in listed.iter().enumerate() {
            // What has no name and is not open is of no use to anybody, once it surely has none.
            if !object.is_open() && object.stat().map_err(plain)?.stx_nlink == 0 {
                continue;
            }
            if !self.write_back_one(object, fd, Instant::now() + UNHURRIED)? && !begun && self.is_pressed() {
                // All of them at once, which the kernel sorts.
                for (_, fd) in &listed[at..] {
                    sys::begin_write_back(fd.as_fd()).map_err(plain)?;
                }
                begun = true;
            }
            // To the end, wherever that is by now.
            sys::write_back(fd.as_fd(), 0, 0).map_err(plain)?;
        }
        Ok(())
    }

    /// Somebody was told that the disk failed.
    pub fn note_failure(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
        // Before anybody reads the journal because of it.
        if let Some(log) = self.log.get().and_then(Weak::upgrade) {
            log.keep_all();
        }
        if !self.disk_failed.swap(true, Ordering::SeqCst) {
            tracing::error!(
                "the disk below fails; the journal keeps its records, answers reads of them, and writes them again"
            );
        }
    }

    /// How often somebody was told that the disk failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }

    /// All records are where they belong, and nothing failed since they were written again.
    pub fn works_again(&self) {
        self.disk_failed.store(false, Ordering::SeqCst);
    }

    /// Fails where a test has the disk fail.
    pub fn try_disk(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// Fails when somebody was told that the disk failed: others may be told that all is well.
    pub fn sound(&self) -> io::Result<()> {
        match self.disk_failed.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

/// Whether a file system is mounted with `lazytime`, as mountinfo (proc(5)) says; one that is not
/// there may be.
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

    #[test]
    fn a_mount_that_keeps_times_back_is_found() {
        let mounts = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
                      60 25 7:1 / /a rw,noatime - ext4 /dev/loop1 rw,lazytime,errors=continue\n\
                      61 25 7:11 / /lazytime rw - ext4 /dev/loop11 rw\n";
        assert!(!is_lazy(mounts, (254, 0)));
        assert!(is_lazy(mounts, (7, 1)));
        assert!(!is_lazy(mounts, (7, 11)));
        assert!(is_lazy(mounts, (7, 2)), "one that is not known");
    }
}
