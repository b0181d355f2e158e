//! Finds the object of a filehandle again: by its kernel handle, or on a file system without
//! handles by its number in a [`Table`].

use super::object::{Object, os, stat};
use super::sys::{self, KernelHandle};
use super::table::{Identity, ROOT, Root, Table};
use super::{Inner, handle::Sealer};
use hither_vfs::{Env, Error, Fh, FileKind, Result};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use std::ffi::CStr;
use std::path::Path;

/// Type of handles that are numbers of the table. It fits in one byte, and no file system uses it.
const TABLE_KIND: i32 = 0xe7;
/// Longest chain of directories that are not held, up to one that is held.
const WAY_MAX: usize = 500;

/// The table for a file system without handles; `None` when the file system has handles.
///
/// # Errors
/// `EOPNOTSUPP` when the file system has no birth times either. Without them a file cannot be told
/// from a later file with the same inode number. Also the errors of the state directory.
pub(super) fn table_for(
    top: BorrowedFd<'_>,
    fs_id: &[u8; 16],
    state: Option<(&Path, u64)>,
    env: &Env,
) -> Result<Option<Table>> {
    match sys::name_to_handle(top, c"") {
        Ok(_) => return Ok(None),
        Err(e) if e.errno == libc::EOPNOTSUPP => {}
        Err(e) => return Err(e),
    }
    let stat = stat(top)?;
    if Identity::of(&stat).is_none() {
        let why = "its file system has neither handles nor birth times; serve a directory of another one";
        return Err(Error::because(libc::EOPNOTSUPP, why));
    }
    Table::open(state, Root { fs_id: *fs_id, ino: stat.stx_ino }, env).map(Some)
}

/// The number of the mount of a descriptor.
pub(super) fn mount_of(fd: BorrowedFd<'_>) -> Result<i32> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map_err(os)?;
    Ok(stat.stx_mnt_id as i32)
}

/// Whether this process may open objects by kernel handle.
pub(super) fn can_be_opened(top: BorrowedFd<'_>) -> bool {
    let handle = sys::name_to_handle(top, c"");
    handle.is_ok_and(|(handle, _)| sys::open_by_handle(top, &handle, libc::O_PATH).is_ok())
}

fn number_of(handle: &KernelHandle) -> Option<u64> {
    let bytes = (handle.kind() == TABLE_KIND).then(|| handle.bytes().try_into().ok()).flatten();
    bytes.map(u64::from_le_bytes)
}

pub(super) fn stale() -> Error {
    Error::new(libc::ESTALE)
}

fn handle_of_number(number: u64) -> Result<KernelHandle> {
    KernelHandle::new(TABLE_KIND, &number.to_le_bytes()).ok_or_else(stale)
}

/// The filehandle of the served directory; `None` when the handle of the file system is too long.
pub(super) fn of_root(table: Option<&Table>, top: BorrowedFd<'_>, sealer: &Sealer) -> Result<Option<Fh>> {
    let handle = match table {
        None => sys::name_to_handle(top, c"")?.0,
        Some(_) => handle_of_number(ROOT)?,
    };
    Ok(sealer.seal(&handle))
}

impl Inner {
    /// Handle of a name in a directory, without following a symbolic link, and the number of its
    /// mount.
    pub(super) fn handle_at(&self, dir: &Object, name: &CStr) -> Result<(KernelHandle, i32)> {
        let Some(table) = &self.table else { return sys::name_to_handle(dir.path(), name) };
        let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let found = rustix::fs::statx(dir.path(), name, AtFlags::SYMLINK_NOFOLLOW, want).map_err(os)?;
        let identity = Identity::of(&found).ok_or_else(stale)?;
        Ok((self.numbered(table, identity, dir, name)?, found.stx_mnt_id as i32))
    }

    /// Handle of the object of a descriptor. `met` is the place where a client may find the object;
    /// a table has no handle for an object without a place.
    pub(super) fn handle_of(
        &self,
        fd: BorrowedFd<'_>,
        met: Option<(&Object, &CStr)>,
    ) -> Result<KernelHandle> {
        let Some(table) = &self.table else { return Ok(sys::name_to_handle(fd, c"")?.0) };
        let (dir, name) = met.ok_or_else(stale)?;
        let identity = Identity::of(&stat(fd)?).ok_or_else(stale)?;
        self.numbered(table, identity, dir, name)
    }

    /// The filehandle of a directory that was found as the parent of another one.
    pub(super) fn handle_of_holder(&self, fd: BorrowedFd<'_>) -> Result<Fh> {
        let handle = match &self.table {
            None => sys::name_to_handle(fd, c"")?.0,
            Some(table) => {
                let identity = Identity::of(&stat(fd)?).ok_or_else(stale)?;
                handle_of_number(table.number(identity, None, |number| self.held_identity(number))?)?
            }
        };
        self.sealer.seal(&handle).ok_or_else(|| Error::new(libc::EOVERFLOW))
    }

    fn numbered(&self, table: &Table, identity: Identity, dir: &Object, name: &CStr) -> Result<KernelHandle> {
        let met = Some((self.number(&dir.fh)?, name.to_bytes()));
        handle_of_number(table.number(identity, met, |number| self.held_identity(number))?)
    }

    /// The present identity of the object with this number; `None` unless the object is held.
    fn held_identity(&self, number: u64) -> Option<Identity> {
        let fh = self.sealer.seal(&handle_of_number(number).ok()?)?;
        Identity::of(&self.objects.find(&fh)?.stat().ok()?)
    }

    fn number(&self, fh: &Fh) -> Result<u64> {
        number_of(&self.sealer.open(fh)?).ok_or_else(stale)
    }

    /// Opens the object of a handle. Runs as the superuser.
    ///
    /// # Errors
    /// `ESTALE` or `ENOENT` when the object is gone.
    pub(super) fn open_handle(&self, handle: &KernelHandle, flags: i32) -> Result<OwnedFd> {
        let Some(table) = &self.table else {
            return sys::open_by_handle(self.top.as_fd(), handle, flags);
        };
        self.open_number(table, number_of(handle).ok_or_else(stale)?, flags, WAY_MAX)
    }

    fn open_number(&self, table: &Table, number: u64, flags: i32, way: usize) -> Result<OwnedFd> {
        let flags = OFlags::from_bits_retain(flags as u32) | OFlags::CLOEXEC;
        if number == ROOT {
            return rustix::fs::openat(&self.top, c".", flags, Mode::empty()).map_err(os);
        }
        let way = way.checked_sub(1).ok_or_else(stale)?;
        let (identity, places) = table.places(number).ok_or_else(stale)?;
        for (dir, name) in places {
            let held = self.sealer.seal(&handle_of_number(dir)?).and_then(|fh| self.objects.find(&fh));
            let opened;
            let dir = match &held {
                Some(object) => object.path(),
                None => match self.open_number(table, dir, libc::O_PATH | libc::O_DIRECTORY, way) {
                    Ok(fd) => {
                        opened = fd;
                        opened.as_fd()
                    }
                    Err(_) => continue,
                },
            };
            let found = rustix::fs::openat2(dir, &name[..], flags, Mode::empty(), self.resolve_flags());
            if let Ok(fd) = found
                && Identity::of(&stat(fd.as_fd())?) == Some(identity)
            {
                return Ok(fd);
            }
        }
        Err(stale())
    }

    /// Notes the identity of an object after it was changed. Does nothing on a file system with
    /// handles.
    pub(super) fn renew(&self, object: &Object) -> Result<()> {
        let Some(table) = self.table.as_ref().filter(|_| object.kind != FileKind::Directory) else {
            return Ok(());
        };
        match Identity::of(&object.stat()?) {
            Some(identity) => table.renew(self.number(&object.fh)?, identity),
            None => Ok(()),
        }
    }

    /// Whether the last name of an object is about to be removed. Always `false` on a file system
    /// with handles.
    pub(super) fn is_last(&self, dir: &Object, name: &CStr) -> bool {
        let Some(_) = &self.table else { return false };
        let found = rustix::fs::statx(dir.path(), name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
        found.is_ok_and(|s| s.stx_nlink <= 1 || s.stx_mode & 0o170_000 == 0o040_000)
    }

    /// A name of an object was removed; with `last`, the object is gone too.
    pub(super) fn unnamed(&self, fh: Option<&Fh>, dir: &Object, name: &[u8], last: bool) {
        let (Some(table), Some(fh)) = (&self.table, fh) else { return };
        let noted = self.number(&dir.fh).and_then(|dir| table.unnamed(self.number(fh)?, (dir, name), last));
        if let Err(e) = noted {
            // The name now leads nowhere, or to another object. The next use of the filehandle
            // finds that.
            tracing::debug!("the table of filehandles: {e}");
        }
    }
}
