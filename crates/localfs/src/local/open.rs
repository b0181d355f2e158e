//! Open and close.

use super::names::{Path, c_name};
use super::object::{Object, os};
use super::pool::Worker;
use super::{Inner, Open};
use hither_vfs::{
    Access, ChangeInfo, Create, Error, Fh, FileKind, Name, OpenAccess, OpenHow, OpenId, Opened, Read, Result,
    SetAttr,
};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of attempts of an open that creates a file while its name comes and goes.
const TRIES: usize = 8;

impl Inner {
    pub(super) fn open_file(&self, worker: &mut Worker, at: &Path, how: &OpenHow) -> Result<Opened> {
        if at.path.is_empty() {
            let object = self.resolve(worker, &at.base)?;
            return self.open_existing(worker, &object, how);
        }
        let (dir, name) = self.parent(worker, at)?;
        for _ in 0..TRIES {
            let found = match how.create {
                Create::Exclusive(_) => None,
                _ => self.lookup(worker, &dir, name)?,
            };
            let set = match (&how.create, found) {
                (_, Some(object)) => return self.open_existing(worker, &object, how),
                (Create::No, None) => return Err(Error::new(libc::ENOENT)),
                (Create::IfMissing(set) | Create::Exclusive(set), None) => set,
            };
            match self.create(worker, &dir, name, set, how.access) {
                Err(e) if e.errno == libc::EEXIST && matches!(how.create, Create::IfMissing(_)) => {}
                other => return other,
            }
        }
        Err(Error::because(libc::EBUSY, "a name came and went while it was opened"))
    }

    pub(super) fn open_existing(
        &self,
        worker: &mut Worker,
        object: &Arc<Object>,
        how: &OpenHow,
    ) -> Result<Opened> {
        if object.kind == FileKind::Symlink {
            return Err(Error::new(libc::ELOOP));
        }
        object.need_regular()?;
        let writes = how.access.contains(OpenAccess::WRITE) || how.truncate;
        let mut bits = 0;
        if how.execute {
            bits |= 1;
        } else if how.access.contains(OpenAccess::READ) {
            bits |= 4;
        }
        if writes {
            bits |= 2;
        }
        worker.caller(|| object.access(bits))?;
        if !object.is_open() {
            self.room()?;
        }
        let object = self.objects.open(object);
        // The open is counted from this line on. It is taken back when a later step fails.
        let opened = self.opened(worker, &object, how, writes);
        if opened.is_err() {
            self.objects.close(&object.fh);
        }
        opened
    }

    fn opened(
        &self,
        worker: &mut Worker,
        object: &Arc<Object>,
        how: &OpenHow,
        writes: bool,
    ) -> Result<Opened> {
        let fd = worker.root(|| object.io_to_open(self.proc_fd.as_fd(), writes))?;
        if how.truncate {
            let _changing = object.changes.begin();
            self.resize(worker, object, 0)?;
            self.sync(worker, &[object])?;
        }
        let node = self.node(object)?;
        let mut first = None;
        if how.first_bytes > 0 && how.access.contains(OpenAccess::READ) {
            first = self.read_object((object, fd.as_fd()), 0, how.first_bytes, false).ok();
            // The bytes must belong to the attributes, so they are dropped when the file changed
            // meanwhile.
            if self.node(object)?.attrs.attr.change != node.attrs.attr.change {
                first = None;
            }
        }
        let open = self.add_open(object, how.access);
        Ok(Opened { node, open, created: false, dir: None, first, backing: None })
    }

    fn create(
        &self,
        worker: &mut Worker,
        dir: &Arc<Object>,
        name: &Name,
        set: &SetAttr,
        access: OpenAccess,
    ) -> Result<Opened> {
        self.need_uncovered(dir)?;
        self.check_new(worker.cred(), set)?;
        self.room()?;
        let mut unsynced = self.unsynced();
        let before = self.attributer.before(dir)?;
        let mode = Mode::from_raw_mode(self.new_mode(worker, dir, set, 0o666)?);
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let object = {
            let _changing = dir.changes.begin();
            let open = || {
                rustix::fs::openat2(dir.path(), name.as_bytes(), flags, mode, self.resolve_flags())
                    .map_err(os)
            };
            let fd = worker.caller(open)?;
            if let Some(unsynced) = &mut unsynced {
                unsynced.dirty = true;
            }
            // The object keeps an `O_PATH` descriptor.
            let path = Object::path_of(&fd, self.proc_fd.as_fd())?;
            let object = self.adopt(path, Some((dir, &c_name(name)?)))?;
            object.keep_io(fd);
            self.just_made(worker, Some(&object.fh));
            object
        };
        let object = self.objects.open(&object);
        let created = self.created(worker, dir, &object, set, &before);
        if let Some(unsynced) = &mut unsynced {
            unsynced.dirty = created.is_err();
        }
        match created {
            Ok(dir) => {
                let node = self.node(&object)?;
                let open = self.add_open(&object, access);
                Ok(Opened { node, open, created: true, dir: Some(dir), first: None, backing: None })
            }
            Err(e) => {
                self.objects.close(&object.fh);
                Err(e)
            }
        }
    }

    fn created(
        &self,
        worker: &mut Worker,
        dir: &Arc<Object>,
        object: &Arc<Object>,
        set: &SetAttr,
        before: &super::attr::Before,
    ) -> Result<ChangeInfo> {
        let size_bytes = set.size_bytes.filter(|&size| size > 0);
        let rest = SetAttr { mode: None, size_bytes, ..set.clone() };
        if self.apply(worker, object, &rest)? {
            self.sync(worker, &[dir, object])?;
        } else {
            self.sync(worker, &[object, dir])?;
        }
        self.attributer.change_info(dir, before)
    }

    pub(super) fn add_open(&self, object: &Arc<Object>, access: OpenAccess) -> OpenId {
        let id = self.next_open.fetch_add(1, Ordering::Relaxed);
        self.opens.lock().insert(id, Open { fh: object.fh.clone(), access });
        OpenId(id)
    }

    pub(super) fn close(&self, worker: &mut Worker, fh: &Fh, id: OpenId) -> Result<()> {
        self.check_open(fh, id, OpenAccess::empty())?;
        if self.opens.lock().remove(&id.0).is_none() {
            return Err(Error::new(libc::EBADF));
        }
        // An object that is not known was synced before its eviction.
        let unsynced = self.objects.find(fh).filter(|object| object.unsynced.load(Ordering::SeqCst));
        let synced = match unsynced.filter(|_| self.options.stable) {
            Some(object) => self.commit_object(worker, &object),
            None => Ok(()),
        };
        self.objects.close(fh);
        synced
    }

    pub(super) fn access(&self, worker: &mut Worker, fh: &Fh, want: Access) -> Result<Access> {
        let object = self.resolve(worker, fh)?;
        self.rights(worker, &object, want)
    }

    /// Those rights in `want` that the caller has.
    pub(super) fn rights(&self, worker: &mut Worker, object: &Object, want: Access) -> Result<Access> {
        let is_dir = object.kind == FileKind::Directory;
        let write = if is_dir {
            Access::MODIFY | Access::EXTEND | Access::DELETE
        } else {
            Access::MODIFY | Access::EXTEND
        };
        let execute = if is_dir { Access::LOOKUP } else { Access::EXECUTE };
        worker.caller(|| {
            let mut have = Access::empty();
            for (bit, rights) in [(4, Access::READ), (2, write), (1, execute)] {
                if !want.intersects(rights) {
                    continue;
                }
                match object.access(bit) {
                    Ok(()) => have |= rights,
                    Err(e) if matches!(e.errno, libc::EACCES | libc::EPERM | libc::EROFS) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(have & want)
        })
    }

    /// The first bytes of a file that the caller may read.
    pub(super) fn first(&self, worker: &mut Worker, object: &Arc<Object>, max_bytes: u32) -> Result<Read> {
        object.need_regular()?;
        worker.caller(|| object.access(4))?;
        let fd = worker.root(|| object.io(self.proc_fd.as_fd(), false))?;
        self.read_object((object, fd.as_fd()), 0, max_bytes, false)
    }
}
