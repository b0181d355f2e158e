//! How many descriptors objects have, and what is done when they become scarce.
//!
//! An object that is known has one, which holds the inode. Those to read and write with are kept
//! beside it while there are plenty, and are opened anew for each use when there are not. Idle open
//! objects are then forgotten as well (`object`). Files cannot be opened when all descriptors are
//! those of objects that cannot be opened by handle, or are in use.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Descriptors of objects, of all directories that a process serves together.
#[derive(Debug)]
pub struct Descriptors {
    held: AtomicUsize,
    max: usize,
}

impl Descriptors {
    /// At most about so many.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), max })
    }

    /// How many there are.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// How many there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether those that can be opened again are to be closed.
    pub(super) fn are_scarce(&self) -> bool {
        self.held() >= self.max / 2
    }

    /// Whether there are none for one more file.
    pub(super) fn are_gone(&self) -> bool {
        self.held() >= self.max
    }
}

/// A descriptor that is counted.
#[derive(Debug)]
pub(super) struct Counted {
    fd: OwnedFd,
    among: Arc<Descriptors>,
}

impl Counted {
    pub fn new(fd: OwnedFd, among: &Arc<Descriptors>) -> Self {
        among.held.fetch_add(1, Ordering::Relaxed);
        Self { fd, among: among.clone() }
    }

    pub fn among(&self) -> &Arc<Descriptors> {
        &self.among
    }
}

impl AsFd for Counted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Counted {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.among.held.fetch_sub(1, Ordering::Relaxed);
    }
}
