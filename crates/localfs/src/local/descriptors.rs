//! Counts the descriptors of objects, and defines when they are scarce.
//!
//! Each known object has a descriptor that holds the inode. While descriptors are plentiful, an
//! object also keeps descriptors for reading and writing. When descriptors are scarce, those are
//! opened anew for each use, and idle open objects are forgotten as well (`object`). No file can be
//! opened when every descriptor is in use, or belongs to an object that cannot be opened by handle.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of object descriptors, shared by all directories that a process serves.
#[derive(Debug)]
pub struct Descriptors {
    held: AtomicUsize,
    max: usize,
}

impl Descriptors {
    /// At most about `max` descriptors.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), max })
    }

    /// Number of descriptors now.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Largest number of descriptors.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether descriptors that can be opened again are to be closed.
    pub(super) fn are_scarce(&self) -> bool {
        self.held() >= self.max / 2
    }

    /// Whether no descriptor is left for one more file.
    pub(super) fn are_gone(&self) -> bool {
        self.held() >= self.max
    }
}

/// A counted descriptor.
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
