//! Reads without a copy: cached pages of a file are moved into a pipe, and from there to the reader
//! of the pipe.
//!
//! The pipe holds the pages of the file, not copies. So it may show a write that happens before the
//! pages leave the pipe, as a concurrent read may. The bytes are counted before the answer promises
//! them, and they stay in the pipe when the file is truncated.

use super::io::FileAt;
use super::object::Object;
use super::{Inner, sys};
use hither_vfs::{Cred, FileKind, OpenAccess, Pipe, ReadPiped};
use parking_lot::Mutex;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::pipe::{PipeFlags, SpliceFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Shorter reads are copied.
const LEAST_BYTES: u64 = 16 << 10;
/// Size of a pipe: the kernel's limit for all users (`/proc/sys/fs/pipe-max-size`). Each slot holds
/// one page.
const PIPE_BYTES: usize = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// Most idle pipes that are kept, and most pipes in flight. Beyond these limits bytes are copied.
const IDLE_MAX: usize = 32;
const OUT_MAX: usize = 256;

/// The pipes.
#[derive(Default)]
pub(super) struct Pipes {
    idle: Mutex<Vec<Ends>>,
    out: AtomicUsize,
    /// The kernel refused a pipe of this size.
    refused: AtomicBool,
}

#[derive(Debug)]
struct Ends {
    from: OwnedFd,
    to: OwnedFd,
}

/// Pages in a pipe.
struct Pages {
    /// Set until the pipe is returned.
    ends: Option<Ends>,
    len: usize,
    pipes: Arc<Pipes>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pages({})", self.len)
    }
}

impl Pipe for Pages {
    fn fd(&self) -> BorrowedFd<'_> {
        self.ends.as_ref().expect("they are there until the end").from.as_fd()
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.pipes.out.fetch_sub(1, Ordering::Relaxed);
        // A pipe with unread bytes must not be used again.
        if let Some(ends) = self.ends.take().filter(|ends| rustix::io::ioctl_fionread(&ends.from) == Ok(0)) {
            let mut idle = self.pipes.idle.lock();
            if idle.len() < IDLE_MAX {
                idle.push(ends);
            }
        }
    }
}

impl Pipes {
    /// An empty pipe.
    fn take(self: &Arc<Self>) -> Option<Pages> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        if self.out.fetch_add(1, Ordering::Relaxed) >= OUT_MAX {
            self.out.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mut pages = Pages { ends: self.idle.lock().pop(), len: 0, pipes: self.clone() };
        if pages.ends.is_none() {
            pages.ends = Some(self.make()?);
        }
        Some(pages)
    }

    fn make(&self) -> Option<Ends> {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        match rustix::pipe::fcntl_setpipe_size(&to, PIPE_BYTES) {
            Ok(room) if room >= PIPE_BYTES => Some(Ends { from, to }),
            _ => {
                self.refused.store(true, Ordering::Relaxed);
                None
            }
        }
    }
}

impl Inner {
    /// See [`hither_vfs::Extra::read_piped`].
    pub(super) fn read_piped(&self, cred: &Cred, file: &FileAt, at: u64, len: u32) -> Option<ReadPiped> {
        if u64::from(len) < LEAST_BYTES {
            return None;
        }
        let object = self.readable_now(cred, file)?;
        let fd = object.io_now(false)?;
        let want = u64::from(len).min(object.stat().ok()?.stx_size.checked_sub(at)?);
        let span = at % PAGE_BYTES + want;
        if want < LEAST_BYTES || span > PIPE_BYTES as u64 || !sys::is_cached(fd.as_fd(), at, want) {
            return None;
        }
        let mut pages = self.pipes.take()?;
        let ends = pages.ends.as_ref()?;
        let (mut offset, mut got) = (at, 0);
        while got < want {
            let rest = usize::try_from(want - got).ok()?;
            let flags = SpliceFlags::NONBLOCK;
            match rustix::pipe::splice(&*fd, Some(&mut offset), &ends.to, None, rest, flags) {
                Ok(0) => break,
                Ok(n) => got += n as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        if got == 0 || self.need_sound(&object, fd.as_fd()).is_err() {
            return None;
        }
        pages.len = got as usize;
        // As in `read_fd`.
        let eof = got < want || at + got >= object.stat().ok()?.stx_size;
        Some(ReadPiped { data: Box::new(pages), eof })
    }

    /// The file of a call, if it is certain that the caller may read it: by an open, or as its
    /// owner.
    pub(super) fn readable_now(&self, cred: &Cred, (fh, open): &FileAt) -> Option<Arc<Object>> {
        if let Some(open) = open {
            self.check_open(fh, *open, OpenAccess::READ).ok()?;
            return self.objects.find(fh);
        }
        let object = self.objects.find(fh).filter(|object| object.kind == FileKind::Regular)?;
        let his = cred.uid == 0 || object.stat().ok()?.stx_uid == cred.uid;
        his.then_some(object)
    }
}
