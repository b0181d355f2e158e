//! Changes of attributes, and their permission checks.

use super::journaled::names::{Became, Change, Done};
use super::object::{Object, os};
use super::pool::Worker;
use super::{Inner, sys};
use hither_vfs::{Attrs, Cred, Error, Fh, FileKind, OpenAccess, OpenId, Result, SetAttr, SetTime};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Inner {
    pub(super) fn setattr(
        &self,
        worker: &mut Worker,
        fh: &Fh,
        open: Option<OpenId>,
        set: &SetAttr,
    ) -> Result<Attrs> {
        let object = self.resolve(worker, fh)?;
        self.need_uncovered(&object)?;
        let may_write = open.is_some_and(|open| self.check_open(fh, open, OpenAccess::WRITE).is_ok());
        if set.size_bytes.is_some() {
            self.check_size(worker, &object, set, may_write)?;
        }
        if self.apply(worker, &object, set)? {
            self.sync(worker, &[&object])?;
        }
        self.attrs(&object)
    }

    /// Sets attributes other than the length.
    pub(super) fn set_others(&self, worker: &mut Worker, fh: &Fh, set: &SetAttr) -> Result<Done<Attrs>> {
        let object = self.resolve(worker, fh)?;
        self.need_uncovered(&object)?;
        if !self.apply(worker, &object, set)? {
            return Ok(Done {
                result: self.attrs(&object)?,
                object: None,
                touched: SmallVec::new(),
                change: None,
            });
        }
        let change = Change::Attrs { fh: fh.clone(), set: Became::of(&object, set)? };
        let result = self.attrs(&object)?;
        Ok(Done { result, object: Some(fh.clone()), touched: smallvec![object], change: Some(change) })
    }

    /// Checks the permission to change the length, and the permissions for the other attributes.
    /// Thus a call does not fail after a part of its changes.
    fn check_size(&self, worker: &mut Worker, object: &Object, set: &SetAttr, may_write: bool) -> Result<()> {
        object.need_regular()?;
        let cred = worker.cred().clone();
        let owns = cred.uid == 0 || object.stat()?.stx_uid == cred.uid;
        if !(may_write || owns && self.options.owner_may_resize) {
            worker.caller(|| object.access(2))?;
        }
        let explicit = |t: Option<SetTime>| matches!(t, Some(SetTime::To(_)));
        let others = set.uid.is_some() || set.gid.is_some() || set.mode.is_some();
        if (others || explicit(set.atime) || explicit(set.mtime)) && !owns {
            return Err(Error::new(libc::EPERM));
        }
        // An open for writing gives the right to the length and not to the times.
        if (set.atime.is_some() || set.mtime.is_some()) && !owns {
            worker.caller(|| object.access(2))?;
        }
        self.check_ids(&cred, set)
    }

    /// Whether the maker of a new object may set these attributes. The check comes first, so that
    /// no half-made object is left.
    pub(super) fn check_new(&self, cred: &Cred, set: &SetAttr) -> Result<()> {
        if set.uid.is_some_and(|uid| uid != cred.uid && cred.uid != 0) {
            return Err(Error::new(libc::EPERM));
        }
        self.check_ids(cred, set)
    }

    fn check_ids(&self, cred: &Cred, set: &SetAttr) -> Result<()> {
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(Error::new(libc::EINVAL));
        }
        let foreign = |gid| cred.gid != gid && !cred.groups.contains(&gid) && cred.uid != 0;
        if set.gid.is_some_and(foreign) { Err(Error::new(libc::EPERM)) } else { Ok(()) }
    }

    /// Sets attributes as the caller. The length needs no further check. Returns whether `set` had
    /// any attribute.
    pub(super) fn apply(&self, worker: &mut Worker, object: &Arc<Object>, set: &SetAttr) -> Result<bool> {
        if *set == SetAttr::default() {
            return Ok(false);
        }
        // The kernel takes this number as "no change".
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return Err(Error::new(libc::EINVAL));
        }
        let _changing = object.changes.begin();
        let _modes =
            (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()).then(|| object.modes.begin());
        if let Some(size) = set.size_bytes {
            self.resize(worker, object, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            let chown = || rustix::fs::chownat(object.path(), c"", uid, gid, AtFlags::EMPTY_PATH).map_err(os);
            worker.caller(chown)?;
        }
        if let Some(mode) = set.mode {
            worker.caller(|| self.chmod(object, mode & 0o7777))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
            let touch = || rustix::fs::utimensat(object.path(), c"", &times, AtFlags::EMPTY_PATH).map_err(os);
            worker.caller(touch)?;
        }
        Ok(true)
    }

    /// Truncates or extends a file as the caller, whose permission was checked before.
    pub(super) fn resize(&self, worker: &mut Worker, object: &Object, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Error::new(libc::EFBIG));
        }
        self.make_room();
        let fd = worker.root(|| object.io(self.proc_fd.as_fd(), true))?;
        let _order = object.order.lock();
        self.quiesce(worker, object)?;
        if !self.options.stable {
            object.unsynced.store(true, Ordering::SeqCst);
        }
        worker.caller(|| rustix::fs::ftruncate(&*fd, size).map_err(os))
    }

    pub(super) fn chmod(&self, object: &Object, mode: u32) -> Result<()> {
        match sys::chmod(object.path(), mode) {
            Err(e) if e.errno == libc::ENOSYS && object.kind != FileKind::Symlink => {
                let mode = Mode::from_raw_mode(mode);
                rustix::fs::chmodat(self.proc_fd.as_fd(), object.proc_name(), mode, AtFlags::empty())
                    .map_err(os)
            }
            other => other,
        }
    }
}

/// The time in the form of utimensat(2); `None`: no change.
pub(super) fn time(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        // Nanoseconds are clamped: two larger values mean UTIME_NOW and UTIME_OMIT to the kernel.
        Some(SetTime::To(t)) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.min(999_999_999).into() },
    }
}
