//! Containment: whether a directory is below the exported one, and which directory holds it.
//!
//! Local programs can move a directory out of the exported one while clients use it. So each call
//! that names a directory by handle checks its place first. In a private mount that check is one
//! look-up of `..`: the kernel walks the tree in memory, without races with renames. It refuses
//! `..` of a directory that is not below the root of the mount (since Linux 4.3). Without a private
//! mount each directory on the way up is opened.
//!
//! Files are not checked: clients cannot forge their handles, and a file may have names in several
//! directories.

use super::object::{Object, os, stat};
use super::pool::Worker;
use super::{Inner, attr, handles};
use hither_vfs::{Error, Fh, FileKind, Node, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use std::sync::Arc;

/// Deepest directory whose place is checked.
const DEPTH_MAX: usize = 4096;

impl Inner {
    /// A known object that is still in its place. `None`: the object is to be resolved.
    pub(super) fn find_in_place(&self, fh: &Fh) -> Option<Arc<Object>> {
        self.objects.find(fh).filter(|object| self.check_place(object).is_ok())
    }

    /// `ESTALE` when a known directory is no longer below the exported one; checked with the
    /// present identity of the thread. A directory whose parent this process may not search counts
    /// as in its place.
    pub(super) fn check_place(&self, object: &Object) -> Result<()> {
        if !self.may_be_moved_out(object) {
            return Ok(());
        }
        match self.check_below(object.path()) {
            Err(e) if e.errno == libc::EACCES => Ok(()),
            checked => checked,
        }
    }

    /// As [`Inner::check_place`], in a job. The superuser checks when the caller may not search.
    pub(super) fn check_place_in(&self, worker: &mut Worker, object: &Object) -> Result<()> {
        if !self.may_be_moved_out(object) {
            return Ok(());
        }
        match self.check_below(object.path()) {
            Err(e) if e.errno == libc::EACCES => worker.root(|| self.check_place(object)),
            checked => checked,
        }
    }

    fn may_be_moved_out(&self, object: &Object) -> bool {
        self.is_subtree && object.kind == FileKind::Directory && object.fh != self.root.fh
    }

    /// `ESTALE` unless a directory is below the exported one; `EACCES` when that cannot be
    /// determined.
    pub(super) fn check_below(&self, dir: BorrowedFd<'_>) -> Result<()> {
        if self.mount.is_some() {
            return self.climb(dir);
        }
        match rustix::fs::statx(dir, c"..", AtFlags::NO_AUTOMOUNT, StatxFlags::empty()) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::NOENT) => Err(moved_out()),
            Err(e) => Err(os(e)),
        }
    }

    pub(super) fn climb(&self, dir: BorrowedFd<'_>) -> Result<()> {
        let mut here = attr::id(&stat(dir)?);
        let mut above: Option<OwnedFd> = None;
        for _ in 0..DEPTH_MAX {
            if here == self.top_id {
                return Ok(());
            }
            let up = open_parent(above.as_ref().map_or(dir, |fd| fd.as_fd()))?;
            let id = attr::id(&stat(up.as_fd())?);
            if id == here {
                break;
            }
            here = id;
            above = Some(up);
        }
        Err(moved_out())
    }

    /// The directory that holds a directory, looked up as the caller; `ENOENT` for the exported
    /// one.
    pub(super) fn parent_of(&self, worker: &mut Worker, dir: &Fh) -> Result<Node> {
        let dir = self.resolve(worker, dir)?;
        dir.need_dir()?;
        if dir.fh == self.root.fh {
            return Err(Error::new(libc::ENOENT));
        }
        if dir.stat()?.stx_nlink == 0 {
            return Err(Error::new(libc::ESTALE));
        }
        let up = worker.caller(|| open_parent(dir.path())).map_err(|e| match e.errno {
            // The parent is outside of the private mount.
            libc::ENOENT => moved_out(),
            _ => e,
        })?;
        if let Some(ours) = self.mount {
            if handles::mount_of(up.as_fd())? != ours {
                return Err(Error::new(libc::EXDEV));
            }
            worker.root(|| self.climb(up.as_fd()))?;
        }
        let fh = self.handle_of_holder(up.as_fd())?;
        let attributes = stat(up.as_fd())?;
        let parent = self.objects.add(fh, up, &attributes)?;
        self.node(&parent)
    }
}

fn moved_out() -> Error {
    Error::because(libc::ESTALE, "a directory was moved out of the exported one")
}

fn open_parent(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c"..", flags, Mode::empty()).map_err(os)
}
