//! Names: look-up, creation, link, removal and rename.
//!
//! A name is looked up alone, below the descriptor of its directory, without following a symbolic
//! link. So no path can lead out of the directory.

use super::journaled::names::{Change, Done};
use super::known::SEARCH;
use super::object::{Object, os, stat};
use super::pool::Worker;
use super::{Inner, sys};
use bytes::Bytes;
use hither_vfs::{
    ChangeInfo, Error, Fh, FileKind, Made, Moved, Name, Node, PathRef, RenameFlags, RequestContext, Result,
    SetAttr, Special, Stop, Validity, WalkResult,
};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use smallvec::smallvec;
use std::ffi::{CStr, CString};
use std::sync::Arc;

/// Number of attempts to make or look up an object while its name comes and goes.
const TRIES: usize = 8;

/// Flags to open a name: no symbolic link is followed, and the look-up stays below the directory.
/// `crosses`: mounts may be entered.
pub(super) fn resolve_flags(crosses: bool) -> ResolveFlags {
    let flags = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if crosses { flags } else { flags | ResolveFlags::NO_XDEV }
}

pub(super) fn owned(name: &Name) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

pub(super) fn c_name(name: &Name) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Error::new(libc::EINVAL))
}

impl Inner {
    /// Flags for a name. A private mount contains no other mounts.
    pub(super) fn resolve_flags(&self) -> ResolveFlags {
        resolve_flags(self.mount.is_none())
    }

    /// The object under a name, looked up as the caller; `None` when the name does not exist.
    pub(super) fn lookup(
        &self,
        worker: &mut Worker,
        dir: &Object,
        name: &Name,
    ) -> Result<Option<Arc<Object>>> {
        dir.need_dir()?;
        if self.is_covered(&dir.fh) {
            return Ok(None);
        }
        let found = worker.caller(|| self.find_name(dir, name))?;
        if found.is_none() && dir.stat()?.stx_nlink == 0 {
            return Err(Error::new(libc::ESTALE));
        }
        Ok(found)
    }

    /// As [`Inner::lookup`], with cached facts about a directory that has this `change`.
    fn find_again(
        &self,
        worker: &mut Worker,
        dir: &Object,
        name: &Name,
        change: u64,
    ) -> Result<Option<Arc<Object>>> {
        let known = self.known(worker, dir, change, false);
        if let Some(known) = &known
            && known.may(worker.cred(), SEARCH)
            && let Some(object) = known.find(name).and_then(|fh| self.objects.find(&fh))
        {
            return Ok(Some(object));
        }
        let found = self.lookup(worker, dir, name)?;
        if let (Some(known), Some(object)) = (known, &found) {
            known.note(name, &object.fh, worker.cred());
        }
        Ok(found)
    }

    /// The same, with the attributes of the object.
    fn find_node(
        &self,
        worker: &mut Worker,
        dir: &Object,
        name: &Name,
        change: u64,
    ) -> Result<Option<(Arc<Object>, Node)>> {
        let mut found = self.find_again(worker, dir, name, change)?;
        for _ in 0..TRIES {
            let Some(object) = found else { return Ok(None) };
            match self.node(&object) {
                // The last name of the object was removed since. Now the name is free, or leads to
                // another object.
                Err(e) if e.errno == libc::ESTALE => found = self.lookup(worker, dir, name)?,
                node => return Ok(Some((object, node?))),
            }
        }
        Err(Error::because(libc::EBUSY, "a name came and went while it was looked up"))
    }

    /// The object under a name, with the present identity of the thread.
    fn find_name(&self, dir: &Object, name: &Name) -> Result<Option<Arc<Object>>> {
        let missing = |e: Error| if e.errno == libc::ENOENT { Ok(None) } else { Err(e) };
        let raw = c_name(name)?;
        let (handle, mount) = match self.handle_at(dir, &raw) {
            Ok(found) => found,
            Err(e) => return missing(e),
        };
        if self.mount.is_some_and(|ours| ours != mount) {
            return Err(Error::new(libc::EXDEV));
        }
        if let Some(object) = self.sealer.seal(&handle).and_then(|fh| self.objects.find(&fh)) {
            return Ok(Some(object));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat2(dir.path(), name.as_bytes(), flags, Mode::empty(), self.resolve_flags());
        match opened {
            Ok(fd) => self.adopt(fd, Some((dir, &raw))).map(Some),
            Err(e) => missing(os(e)),
        }
    }

    /// The object behind an `O_PATH` descriptor. `met` is the place where a client may find it.
    pub(super) fn adopt(
        &self,
        fd: rustix::fd::OwnedFd,
        met: Option<(&Object, &CStr)>,
    ) -> Result<Arc<Object>> {
        let handle = self.handle_of(fd.as_fd(), met)?;
        let fh = self.sealer.seal(&handle).ok_or_else(|| {
            Error::because(libc::EOVERFLOW, "the file system's handle does not fit into a filehandle")
        })?;
        let stat = stat(fd.as_fd())?;
        self.objects.add(fh, fd, &stat)
    }

    /// Walks a path and notes each step.
    pub(super) fn steps(&self, worker: &mut Worker, at: &Path) -> Result<(Vec<Arc<Object>>, WalkResult)> {
        let base = self.resolve(worker, &at.base)?;
        if at.path.is_empty() {
            let node = self.node(&base)?;
            return Ok((vec![base], WalkResult::new(vec![node], Stop::Complete)));
        }
        let before = self.attrs(&base)?;
        let (mut objects, mut nodes) = (Vec::new(), Vec::new());
        let mut change = before.attr.change;
        let mut here = base;
        let mut stop = Stop::Complete;
        for name in &at.path {
            let next = match here.kind {
                FileKind::Directory => self.find_node(worker, &here, name, change),
                FileKind::Symlink => {
                    stop = Stop::Symlink;
                    break;
                }
                _ => {
                    stop = Stop::NotDirectory;
                    break;
                }
            };
            match next {
                Ok(Some((object, node))) => {
                    here = object;
                    change = node.attrs.attr.change;
                    nodes.push(node);
                }
                Ok(None) => {
                    stop = Stop::Missing(self.validity());
                    break;
                }
                Err(e) => {
                    stop = Stop::Failed(e);
                    break;
                }
            }
            objects.push(here.clone());
        }
        let mut trail = WalkResult::new(nodes, stop);
        trail.along.base = Some(before);
        Ok((objects, trail))
    }

    pub(super) fn validity(&self) -> Validity {
        match self.options.validity {
            std::time::Duration::ZERO => Validity::Once,
            time => Validity::Until(tokio::time::Instant::now() + time),
        }
    }

    /// The directory that holds the last name of a path, and that name.
    pub(super) fn parent<'a>(&self, worker: &mut Worker, at: &'a Path) -> Result<(Arc<Object>, &'a Name)> {
        let (last, above) = at.path.split_last().ok_or_else(|| Error::new(libc::EINVAL))?;
        let mut dir = self.resolve(worker, &at.base)?;
        for name in above {
            if dir.kind == FileKind::Symlink {
                return Err(Error::new(libc::ELOOP));
            }
            dir = self.lookup(worker, &dir, name)?.ok_or_else(|| Error::new(libc::ENOENT))?;
        }
        dir.need_dir()?;
        Ok((dir, last))
    }

    /// Makes an object by `act`, sets the attributes that `act` did not set, and makes it stable.
    fn make(
        &self,
        worker: &mut Worker,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        act: impl Fn(&Object) -> rustix::io::Result<()>,
    ) -> Result<Made> {
        let dir = self.resolve(worker, dir)?;
        dir.need_dir()?;
        self.need_uncovered(&dir)?;
        self.check_new(worker.cred(), set)?;
        let mut unsynced = self.unsynced();
        let before = self.attributer.before(&dir)?;
        let made = {
            let _changing = dir.changes.begin();
            let mut tries = 0;
            loop {
                worker.caller(|| act(&dir).map_err(os))?;
                if let Some(unsynced) = &mut unsynced {
                    unsynced.dirty = true;
                }
                match worker.caller(|| self.find_name(&dir, name))? {
                    Some(made) => break made,
                    // Another program has removed the object.
                    None if tries < TRIES => tries += 1,
                    None => {
                        return Err(Error::because(libc::EBUSY, "a name was removed each time it was made"));
                    }
                }
            }
        };
        self.just_made(worker, Some(&made.fh));
        let touched = self.apply(worker, &made, set)?;
        if touched {
            self.sync(worker, &[&dir, &made])?;
        } else {
            self.sync(worker, &[&made, &dir])?;
        }
        if let Some(unsynced) = &mut unsynced {
            unsynced.dirty = false;
        }
        Ok(Made { node: self.new_node(&made)?, dir: self.attributer.change_info(&dir, &before)? })
    }

    pub(super) fn mkdir(&self, worker: &mut Worker, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let mode = self.mode_in(worker, dir, set, 0o777)?;
        // mkdir(2) ignores set-id bits.
        let rest = SetAttr { mode: (mode & 0o6000 != 0).then_some(mode), size_bytes: None, ..set.clone() };
        self.make(worker, dir, name, &rest, |dir| {
            rustix::fs::mkdirat(dir.path(), name.as_bytes(), Mode::from_raw_mode(mode & 0o1777))
        })
    }

    pub(super) fn mknod(
        &self,
        worker: &mut Worker,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        let (kind, dev) = match *what {
            Special::Fifo => (FileType::Fifo, 0),
            Special::Socket => (FileType::Socket, 0),
            Special::CharDevice(major, minor) => {
                (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
            }
            Special::BlockDevice(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
            Special::Regular => (FileType::RegularFile, 0),
        };
        let mode = Mode::from_raw_mode(self.mode_in(worker, dir, set, 0o666)?);
        let size_bytes = set.size_bytes.filter(|_| kind == FileType::RegularFile);
        let rest = SetAttr { mode: None, size_bytes, ..set.clone() };
        self.make(worker, dir, name, &rest, |dir| {
            rustix::fs::mknodat(dir.path(), name.as_bytes(), kind, mode, dev)
        })
    }

    pub(super) fn symlink(
        &self,
        worker: &mut Worker,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        if target.is_empty() {
            return Err(Error::new(libc::ENOENT));
        }
        let rest = SetAttr { mode: None, size_bytes: None, ..set.clone() };
        self.make(worker, dir, name, &rest, |dir| {
            rustix::fs::symlinkat(&target[..], dir.path(), name.as_bytes())
        })
    }

    pub(super) fn link(&self, worker: &mut Worker, fh: &Fh, dir: &Fh, name: &Name) -> Result<Done<Made>> {
        let (object, dir) = (self.resolve(worker, fh)?, self.resolve(worker, dir)?);
        dir.need_dir()?;
        self.need_uncovered(&dir)?;
        if object.kind == FileKind::Directory {
            return Err(Error::new(libc::EPERM));
        }
        let before = self.attributer.before(&dir)?;
        let change = Change::Link { fh: object.fh.clone(), dir: dir.fh.clone(), name: owned(name) };
        if worker.call.is_some() && self.fh_at(worker, &dir, name).is_none() {
            self.about_to(worker, Some(&change));
        }
        {
            let _changing = dir.changes.begin();
            let from = object.proc_name();
            // The flag resolves the entry in /proc to the object. If the object is a symbolic link,
            // that link is not followed.
            let link = || {
                rustix::fs::linkat(
                    self.proc_fd.as_fd(),
                    from,
                    dir.path(),
                    name.as_bytes(),
                    AtFlags::SYMLINK_FOLLOW,
                )
            };
            worker.caller(|| link().map_err(os))?;
        }
        // The table notes the new place of the object.
        self.fh_at(worker, &dir, name);
        let result = Made { node: self.new_node(&object)?, dir: self.attributer.change_info(&dir, &before)? };
        let fh = object.fh.clone();
        Ok(Done { result, object: Some(fh), touched: smallvec![object, dir], change: Some(change) })
    }

    /// The handle of the object under a name. The record of the change needs it, and so does the
    /// check whether that was its last name.
    fn fh_at(&self, worker: &mut Worker, dir: &Object, name: &Name) -> Option<Fh> {
        let name = c_name(name).ok()?;
        let (handle, _) = worker.caller(|| self.handle_at(dir, &name)).ok()?;
        self.sealer.seal(&handle)
    }

    /// Resolves the object under a name before the name is removed, if the object must be held. The
    /// kernel cannot open an object without a name by its handle.
    fn hold_open(&self, worker: &mut Worker, fh: Option<&Fh>) -> Result<Option<Arc<Object>>> {
        let Some(fh) = fh.filter(|fh| self.objects.is_to_be_held(fh)) else { return Ok(None) };
        match self.resolve(worker, fh) {
            // A local program removed the object first, or moved it out. The removal reports that.
            Err(e) if e.errno == libc::ESTALE => Ok(None),
            held => held.map(Some),
        }
    }

    pub(super) fn remove(
        &self,
        worker: &mut Worker,
        dir: &Fh,
        name: &Name,
        is_dir: bool,
    ) -> Result<Done<ChangeInfo>> {
        let dir = self.resolve(worker, dir)?;
        dir.need_dir()?;
        self.need_uncovered(&dir)?;
        let before = self.attributer.before(&dir)?;
        let victim = self.fh_at(worker, &dir, name);
        self.need_no_mount_point(victim.as_ref())?;
        let _held = self.hold_open(worker, victim.as_ref())?;
        let last = self.is_last(&dir, &c_name(name)?);
        let object = victim.clone();
        let change = victim.clone().map(|victim| Change::Remove {
            dir: dir.fh.clone(),
            name: owned(name),
            victim,
            is_dir,
        });
        self.about_to(worker, change.as_ref());
        {
            let _changing = dir.changes.begin();
            let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            worker.caller(|| rustix::fs::unlinkat(dir.path(), name.as_bytes(), flags).map_err(os))?;
        }
        self.unnamed(victim.as_ref(), &dir, name.as_bytes(), last);
        if let Some(victim) = victim.as_ref().and_then(|fh| self.objects.find(fh)) {
            self.objects.forget_if_gone(&victim);
        }
        let result = self.attributer.change_info(&dir, &before)?;
        Ok(Done { result, object, touched: smallvec![dir], change })
    }

    pub(super) fn rename(
        &self,
        worker: &mut Worker,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        flags: RenameFlags,
    ) -> Result<Done<Moved>> {
        let from_dir = self.resolve(worker, from.0)?;
        let to_dir = self.resolve(worker, to.0)?;
        from_dir.need_dir()?;
        to_dir.need_dir()?;
        self.need_uncovered(&from_dir)?;
        self.need_uncovered(&to_dir)?;
        let same = Arc::ptr_eq(&from_dir, &to_dir);
        let before = (self.attributer.before(&from_dir)?, self.attributer.before(&to_dir)?);
        let moved = self.fh_at(worker, &from_dir, from.1);
        let replaced = self.fh_at(worker, &to_dir, to.1);
        self.need_no_mount_point(moved.as_ref())?;
        self.need_no_mount_point(replaced.as_ref())?;
        let _held = self.hold_open(worker, replaced.as_ref())?;
        let last = moved != replaced && self.is_last(&to_dir, &c_name(to.1)?);
        // A rename between two names of one file does nothing.
        let plain = !flags.contains(RenameFlags::EXCHANGE) && moved != replaced;
        let change = moved.clone().filter(|_| plain).map(|moved| Change::Rename {
            from: (from_dir.fh.clone(), owned(from.1)),
            to: (to_dir.fh.clone(), owned(to.1)),
            moved,
            replaced: replaced.clone(),
        });
        self.about_to(worker, change.as_ref());
        {
            let _changing = (from_dir.changes.begin(), (!same).then(|| to_dir.changes.begin()));
            let mut how = rustix::fs::RenameFlags::empty();
            how.set(rustix::fs::RenameFlags::NOREPLACE, flags.contains(RenameFlags::NOREPLACE));
            how.set(rustix::fs::RenameFlags::EXCHANGE, flags.contains(RenameFlags::EXCHANGE));
            let (a, b) = (from.1.as_bytes(), to.1.as_bytes());
            let rename = || rustix::fs::renameat_with(from_dir.path(), a, to_dir.path(), b, how);
            worker.caller(|| rename().map_err(os))?;
        }
        self.moved((moved.as_ref(), &from_dir, from.1), (replaced.as_ref(), &to_dir, to.1), last, flags)?;
        if let Some(replaced) = replaced.as_ref().and_then(|fh| self.objects.find(fh)) {
            self.objects.forget_if_gone(&replaced);
        }
        let object = moved;
        let info = |dir: &Object, before| self.attributer.change_info(dir, before);
        let (from, to) = (info(&from_dir, &before.0)?, info(&to_dir, &before.1)?);
        let result = Moved { from, to, object: object.clone(), attrs: None };
        let touched = if same { smallvec![to_dir] } else { smallvec![from_dir, to_dir] };
        Ok(Done { result, object, touched, change })
    }

    /// Updates the places of the moved and of the replaced object in the table.
    fn moved(
        &self,
        (moved, from_dir, from): (Option<&Fh>, &Object, &Name),
        (replaced, to_dir, to): (Option<&Fh>, &Object, &Name),
        last: bool,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if self.table.is_none() || moved == replaced {
            return Ok(());
        }
        self.unnamed(moved, from_dir, from.as_bytes(), false);
        self.unnamed(replaced, to_dir, to.as_bytes(), last && !exchange);
        // The table notes the places when it looks them up. A thread that moves an object on
        // meanwhile updates the table itself.
        let _ = self.handle_at(to_dir, &c_name(to)?);
        if exchange {
            let _ = self.handle_at(from_dir, &c_name(from)?);
        }
        Ok(())
    }

    pub(super) fn readlink(&self, worker: &mut Worker, fh: &Fh) -> Result<Bytes> {
        let object = self.resolve(worker, fh)?;
        if object.kind != FileKind::Symlink {
            return Err(Error::new(libc::EINVAL));
        }
        let target = rustix::fs::readlinkat(object.path(), c"", Vec::new()).map_err(os)?;
        Ok(target.into_bytes().into())
    }

    /// The node under a name for a listing. The object gets no descriptor.
    pub(super) fn glance(&self, worker: &mut Worker, dir: &Object, name: &Name) -> Result<Node> {
        let asked = tokio::time::Instant::now();
        let raw = c_name(name)?;
        worker.caller(|| {
            let (handle, mount) = self.handle_at(dir, &raw)?;
            if self.mount.is_some_and(|ours| ours != mount) {
                return Err(Error::new(libc::EXDEV));
            }
            let fh = self.sealer.seal(&handle).ok_or_else(|| Error::new(libc::EOVERFLOW))?;
            if let Some(object) = self.objects.find(&fh) {
                return self.node(&object);
            }
            let stat = super::stat_name(dir.path(), name.as_bytes())?;
            if says_ino(&handle, stat.stx_ino) {
                return Ok(Node { fh, attrs: self.attributer.new_found(&stat, asked)? });
            }
            // The name may mean another object by now, so handle and attributes come from one
            // descriptor.
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::openat2(dir.path(), &raw, flags, Mode::empty(), self.resolve_flags());
            let fd = fd.map_err(os)?;
            let handle = self.handle_of(fd.as_fd(), Some((dir, &raw)))?;
            let fh = self.sealer.seal(&handle).ok_or_else(|| Error::new(libc::EOVERFLOW))?;
            Ok(Node { fh, attrs: self.attributer.new_found(&stat_of(&fd)?, asked)? })
        })
    }
}

impl Inner {
    /// As [`Inner::glance`], for an object whose handle is known.
    pub(super) fn glance_at(&self, worker: &mut Worker, dir: &Object, name: &Name, fh: &Fh) -> Result<Node> {
        if let Some(object) = self.objects.find(fh) {
            return self.node(&object);
        }
        let asked = tokio::time::Instant::now();
        let stat = worker.caller(|| super::stat_name(dir.path(), name.as_bytes()))?;
        if says_ino(&self.sealer.open(fh)?, stat.stx_ino) {
            Ok(Node { fh: fh.clone(), attrs: self.attributer.new_found(&stat, asked)? })
        } else {
            self.glance(worker, dir, name)
        }
    }
}

fn stat_of(fd: &rustix::fd::OwnedFd) -> Result<rustix::fs::Statx> {
    stat(fd.as_fd())
}

/// Whether a handle has a format that contains the inode number (FILEID_INO32_GEN of ext4, the
/// 64-bit format of xfs), and contains `ino`.
fn says_ino(handle: &sys::KernelHandle, ino: u64) -> bool {
    match (handle.kind(), handle.bytes()) {
        (1, [a, b, c, d, ..]) => u64::from(u32::from_ne_bytes([*a, *b, *c, *d])) == ino,
        (0x81, [a, b, c, d, e, f, g, h, ..]) => u64::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) == ino,
        _ => false,
    }
}

/// An owned address, for jobs.
pub(super) struct Path {
    pub base: Fh,
    pub path: Vec<Name>,
}

impl From<PathRef<'_>> for Path {
    fn from(at: PathRef<'_>) -> Self {
        Self { base: at.base.clone(), path: at.path.to_vec() }
    }
}

/// `EINTR` when a call was cancelled. A call that only reads is then not begun.
pub(super) fn wanted(cx: &RequestContext) -> Result<()> {
    if cx.cancel.is_cancelled() { Err(Error::new(libc::EINTR)) } else { Ok(()) }
}
