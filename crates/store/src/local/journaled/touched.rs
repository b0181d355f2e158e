//! Files with records since the last checkpoint, and what a checkpoint does to them.

use super::super::object::{Object, os};
use super::super::pool::Worker;
use super::super::sys;
use super::plain;
use hither_vfs::Result;
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode as FileMode, OFlags};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Files that a checkpoint syncs one by one; with more, the file system as a whole.
const LISTED_MAX: usize = 256;
/// Of the others, so many are known.
const OTHERS_MAX: usize = 16384;
/// A checkpoint takes so long at most for handing bytes to the disk little by little, and
const UNHURRIED: Duration = Duration::from_secs(10);
/// so many of a file at a time, or this part of a large one. All of them are gone through again when that took longer than this.
const PIECE_BYTES: u64 = 64 << 10;
const PIECES_MAX: u64 = 1 << 16;
const SHORT: Duration = Duration::from_millis(250);

/// Files with records since the last checkpoint.
pub(super) struct Touched {
    /// Opened for checkpoints only: errors that are told to others are told here, too.
    pub whole: OwnedFd,
    proc_fd: OwnedFd,
    files: Mutex<Files>,
    /// An error of the disk below was told to somebody: what the journal holds may be nowhere else.
    pub disk_failed: AtomicBool,
    /// Whether a checkpoint should be over soon; nothing as long as there is no journal.
    pressed: OnceLock<Arc<AtomicBool>>,
}

#[derive(Default)]
struct Files {
    /// Each with a descriptor for the checkpoint only, for the same reason.
    listed: Vec<(Arc<Object>, OwnedFd)>,
    /// Others, as far as they are known.
    others: Vec<Weak<Object>>,
    /// There are others; in the beginning, those that records were applied to.
    more: bool,
}

impl Touched {
    pub fn new(top: BorrowedFd<'_>) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let whole = rustix::fs::openat(top, c".", flags, FileMode::empty()).map_err(os)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc_fd = rustix::fs::open("/proc/self/fd", flags, FileMode::empty()).map_err(os)?;
        let files = Mutex::new(Files { more: true, ..Files::default() });
        Ok(Self { whole, proc_fd, files, disk_failed: AtomicBool::new(false), pressed: OnceLock::new() })
    }

    /// To be called after bytes were written and before their record is made.
    pub fn add(&self, worker: &mut Worker, object: &Arc<Object>) {
        if object.listed.swap(true, Ordering::SeqCst) {
            return;
        }
        let full = self.files.lock().listed.len() >= LISTED_MAX || object.alone.load(Ordering::SeqCst);
        let fd = (!full).then(|| worker.root(|| object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY)).ok());
        let mut files = self.files.lock();
        match fd.flatten() {
            Some(fd) => files.listed.push((object.clone(), fd)),
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

    /// Hands what was written to these files to the disk, a little at a time: whatever else has to wait for that disk, an append to a
    /// journal on it above all, waits behind a few requests and not behind all. Not when the journal fills up. Again while it takes long: what
    /// is written meanwhile is to be few, too.
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

    /// `false`: there is no time.
    fn write_back_one(&self, object: &Object, fd: &OwnedFd, until: Instant) -> io::Result<bool> {
        let is_pressed = || self.pressed.get().is_none_or(|pressed| pressed.load(Ordering::SeqCst));
        let stat = object.stat().map_err(plain)?;
        // What has no name may never have to be written.
        let size = if stat.stx_nlink > 0 { stat.stx_size } else { 0 };
        let piece = PIECE_BYTES.max((size / PIECES_MAX).next_multiple_of(PIECE_BYTES));
        let mut at = 0;
        while at < size {
            if is_pressed() || Instant::now() >= until {
                return Ok(false);
            }
            sys::write_back(fd.as_fd(), at, piece).map_err(plain)?;
            at += piece;
        }
        Ok(true)
    }

    /// From now on checkpoints hurry when `pressed` says so; before, they always do.
    pub fn hurry_when(&self, pressed: Arc<AtomicBool>) {
        let _ = self.pressed.set(pressed);
    }

    /// Syncs them, and nothing else if they are few: what others write to the file system is not ours to wait for. With
    /// `removals_last`, all removals until now are made durable after this.
    pub fn settle(&self, removals_last: bool) -> io::Result<()> {
        let files = std::mem::take(&mut *self.files.lock());
        let others = files.others.iter().filter_map(Weak::upgrade);
        for object in files.listed.iter().map(|(object, _)| object.clone()).chain(others) {
            // Before the disk is asked: what is written from now on is for the next checkpoint.
            object.listed.store(false, Ordering::SeqCst);
        }
        self.write_back(&files)?;
        let Files { listed, more, .. } = files;
        if more {
            return sys::syncfs(self.whole.as_fd()).map_err(plain);
        }
        for (object, fd) in listed {
            // What has no name and is not open is of no use to anybody, once it surely has none.
            let unused = removals_last && object.opens.load(Ordering::SeqCst) == 0;
            if !unused || object.stat().map_err(plain)?.stx_nlink > 0 {
                // With its times: those were answered, too.
                sys::fsync(fd.as_fd()).map_err(plain)?;
            }
        }
        Ok(())
    }

    /// Somebody was told that the disk failed.
    pub fn note_failure(&self) {
        if !self.disk_failed.swap(true, Ordering::SeqCst) {
            tracing::error!("the disk below fails; what the journal holds is kept until the next start");
        }
    }

    /// Fails when somebody was told that the disk failed: others may be told that all is well.
    pub fn sound(&self) -> io::Result<()> {
        match self.disk_failed.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}
