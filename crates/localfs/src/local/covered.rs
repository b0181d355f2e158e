//! Covered directories: on this machine a mount, or an export of its own, lies over them.
//!
//! The private mount shows the directory below. Programs of this machine do not see that directory,
//! so clients must not write to it. It shows no entries, and its names do not exist. Changes fail
//! with `EROFS`, and it cannot be removed or renamed (`EBUSY`). The layer above decides whether a
//! client crosses into the file system on top.

use super::handles::stale;
use super::object::{Object, os};
use super::{Inner, Local};
use hither_vfs::{Error, Fh, Name, Result};
use parking_lot::RwLock;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// The covered directories of an export.
#[derive(Default)]
pub(super) struct CoveredDirs {
    any: AtomicBool,
    dirs: RwLock<HashSet<Fh>>,
}

/// A covered directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoveredDir {
    /// Its filehandle.
    pub fh: Fh,
    /// Its inode number.
    pub fileid: u64,
}

impl Local {
    /// Covers the directories at these paths below the exported one, and no others. Returns the
    /// results in the order of `paths`; an error where no directory exists. Blocks.
    pub fn cover(&self, paths: &[Vec<Name>]) -> Vec<Result<CoveredDir>> {
        let found: Vec<_> = paths.iter().map(|path| self.inner.directory_at(path)).collect();
        let covered = &self.inner.covered;
        let mut dirs = covered.dirs.write();
        *dirs = found.iter().flatten().map(|dir| dir.fh.clone()).collect();
        covered.any.store(!dirs.is_empty(), Ordering::Release);
        found
    }
}

impl Inner {
    fn directory_at(&self, path: &[Name]) -> Result<CoveredDir> {
        let path = path.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(&self.top, path, flags, Mode::empty(), self.resolve_flags());
        let fd = fd.map_err(os)?;
        let fileid = super::object::stat(fd.as_fd())?.stx_ino;
        let fh = self.handle_of_holder(fd.as_fd())?;
        if fh == self.root.fh { Err(stale()) } else { Ok(CoveredDir { fh, fileid }) }
    }

    pub(super) fn is_covered(&self, fh: &Fh) -> bool {
        self.covered.any.load(Ordering::Acquire) && self.covered.dirs.read().contains(fh)
    }

    /// `EROFS` for a covered directory.
    pub(super) fn need_uncovered(&self, object: &Object) -> Result<()> {
        if self.is_covered(&object.fh) {
            Err(Error::because(libc::EROFS, "a mount or an export covers the directory"))
        } else {
            Ok(())
        }
    }

    /// `EBUSY` when a name leads to a covered directory.
    pub(super) fn need_no_mount_point(&self, found: Option<&Fh>) -> Result<()> {
        if found.is_some_and(|fh| self.is_covered(fh)) {
            Err(Error::because(libc::EBUSY, "a mount or an export covers the directory"))
        } else {
            Ok(())
        }
    }
}
