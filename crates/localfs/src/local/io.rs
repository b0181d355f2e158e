//! File contents: reads, writes, commits, holes and copies; and extended attributes.

use super::descriptors::Counted;
use super::object::{Object, os};
use super::pool::Worker;
use super::{Inner, sys};
use bytes::Bytes;
use hither_vfs::{
    Cred, Data, Error, Fetched, Fh, FileKind, FileRange, OpenAccess, OpenId, Read, Result, Seek, Stability,
    Wrote, XattrMode,
};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes copied in one call. The limit keeps a thread from being busy for long.
const COPY_MAX_BYTES: u64 = 16 << 20;
/// Largest extended attribute, and largest list of names, in bytes (`XATTR_SIZE_MAX`).
const XATTR_MAX_BYTES: usize = 65536;

/// The file of a call, owned.
pub(super) type FileAt = (Fh, Option<OpenId>);

impl Inner {
    /// The object of a call and a descriptor to read or write it. With an open, the open decides
    /// about the access. Without one, the permissions of the caller decide. The owner always has
    /// access, as with other NFS servers: a client may use an open file by handle after its
    /// permissions change.
    pub(super) fn io(
        &self,
        worker: &mut Worker,
        (fh, open): &FileAt,
        access: OpenAccess,
    ) -> Result<(Arc<Object>, Arc<Counted>)> {
        let object = match open {
            Some(open) => self.find_open(worker, fh, *open, access)?,
            None => {
                let object = self.resolve(worker, fh)?;
                object.need_regular()?;
                self.may(worker, &object, access)?;
                object
            }
        };
        let write = access.contains(OpenAccess::WRITE);
        let fd = match object.io_now(write) {
            Some(fd) => fd,
            None => {
                self.make_room();
                worker.root(|| object.io(self.proc_fd.as_fd(), write))?
            }
        };
        Ok((object, fd))
    }

    fn may(&self, worker: &mut Worker, object: &Object, access: OpenAccess) -> Result<()> {
        let uid = worker.cred().uid;
        if uid == 0 || object.stat()?.stx_uid == uid {
            return Ok(());
        }
        worker.caller(|| {
            if access.contains(OpenAccess::WRITE) {
                object.access(2)
            } else {
                // A caller that may execute a file may read its bytes.
                object.access(4).or_else(|e| object.access(1).map_err(|_| e))
            }
        })
    }

    pub(super) fn read(&self, worker: &mut Worker, file: &FileAt, at: u64, len: u32) -> Result<Read> {
        let (object, fd) = self.io(worker, file, OpenAccess::READ)?;
        self.read_object((&object, fd.as_fd()), at, len, false)
    }

    /// The first bytes of a file and the attributes that belong to them. `EAGAIN` when the file
    /// changed during the read.
    pub(super) fn start(&self, worker: &mut Worker, fh: Fh, max_bytes: u32) -> Result<Fetched> {
        let object = self.resolve(worker, &fh)?;
        let attrs = self.attrs(&object)?;
        let read = self.read(worker, &(fh, None), 0, max_bytes)?;
        if self.attrs(&object)?.attr.change == attrs.attr.change {
            Ok(Fetched { attrs, read })
        } else {
            Err(Error::because(libc::EAGAIN, "a file changed while it was read"))
        }
    }

    /// Reads if neither the disk nor a check of permissions is needed; `None` otherwise.
    pub(super) fn read_now(&self, cred: &Cred, file: &FileAt, at: u64, len: u32) -> Option<Read> {
        let object = self.readable_now(cred, file)?;
        let fd = object.io_now(false)?;
        self.read_object((&object, fd.as_fd()), at, len, true).ok()
    }

    /// Reads up to `len` bytes at `at`, without a look at the journal ([`Inner::read_object`]).
    /// With `now`, `EAGAIN` when the disk is needed.
    pub(super) fn read_fd(&self, fd: BorrowedFd<'_>, at: u64, len: u32, now: bool) -> Result<Read> {
        let len = len as usize;
        let size = size_of(fd)?;
        if at >= size || len == 0 {
            return Ok(Read { data: Data::default(), eof: at >= size });
        }
        // The buffer is no larger than the rest of the file.
        let mut buf = Vec::with_capacity(len.min(usize::try_from(size - at).unwrap_or(len)));
        let whole = buf.capacity().min(len);
        while buf.len() < whole {
            let (from, rest) = (at + buf.len() as u64, whole - buf.len());
            match sys::read(fd, &mut buf, from, rest, now) {
                Ok(0) => break,
                Ok(_) if now && buf.len() < whole => return Err(Error::new(libc::EAGAIN)),
                Ok(_) => {}
                Err(e) if e.errno == libc::EINTR => {}
                Err(e) => return Err(e),
            }
        }
        let end = at + buf.len() as u64;
        // The file was truncated during the read: it ends after the last byte that was read.
        let eof = buf.len() < whole || end >= size_of(fd)?;
        Ok(Read { data: Bytes::from(buf).into(), eof })
    }

    /// Writes without the journal.
    pub(super) fn write(
        &self,
        worker: &mut Worker,
        file: &FileAt,
        at: u64,
        data: &Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let (object, fd) = self.io(worker, file, OpenAccess::WRITE)?;
        if data.is_empty() {
            return Ok(Wrote { bytes: 0, attrs: Some(self.attrs(&object)?) });
        }
        let stable = stability == Stability::Stable && self.options.stable;
        if stable {
            // A failed journal must be known to be void before this write is answered.
            self.without_failed_journal(worker)?;
        }
        let bytes = {
            let _changing = object.changes.begin();
            object.unsynced.store(true, Ordering::SeqCst);
            let wrote = worker.caller(|| sys::write(fd.as_fd(), data, at));
            self.note_bare(&object);
            wrote.inspect_err(|e| {
                if e.errno == libc::EIO {
                    self.disk_failed(e);
                }
            })?
        };
        if stable {
            // Not by RWF_SYNC: its error would not tell whether this write found no space, or bytes
            // of earlier writes were lost.
            self.commit_object(worker, &object)?;
        }
        Ok(Wrote { bytes, attrs: Some(self.attrs(&object)?) })
    }

    pub(super) fn commit(&self, worker: &mut Worker, (fh, open): &FileAt) -> Result<()> {
        let object = match open {
            Some(open) => self.find_open(worker, fh, *open, OpenAccess::empty())?,
            None => self.resolve(worker, fh)?,
        };
        object.need_regular()?;
        self.commit_object(worker, &object)
    }

    /// Makes written data stable.
    pub(super) fn commit_object(&self, worker: &mut Worker, object: &Object) -> Result<()> {
        // The flag is cleared before the sync: the sync does not cover later writes.
        let unsynced = object.unsynced.swap(false, Ordering::SeqCst);
        let synced = self.sync_one(worker, object);
        if synced.is_err() && unsynced {
            object.unsynced.store(true, Ordering::SeqCst);
        }
        synced
    }

    pub(super) fn seek(&self, worker: &mut Worker, file: &FileAt, at: u64, what: Seek) -> Result<u64> {
        let (object, fd) = self.io(worker, file, OpenAccess::empty())?;
        if at > i64::MAX as u64 {
            return Err(Error::new(libc::ENXIO));
        }
        let pos = match what {
            Seek::Data => SeekFrom::Data(at),
            Seek::Hole => SeekFrom::Hole(at),
        };
        // Only this function uses the position of the descriptor.
        let found = rustix::fs::seek(&*fd, pos).map_err(os);
        self.need_sound(&object, fd.as_fd())?;
        found
    }

    /// Reserves a range; with `punch`, makes a hole of the range.
    pub(super) fn space(
        &self,
        worker: &mut Worker,
        file: &FileAt,
        range: FileRange,
        punch: bool,
    ) -> Result<()> {
        let (object, fd) = self.io(worker, file, OpenAccess::WRITE)?;
        let end = range.end_bytes.min(i64::MAX as u64);
        let len = end.checked_sub(range.start_bytes).filter(|&len| len > 0);
        let len = len.ok_or_else(|| Error::new(if punch { libc::EINVAL } else { libc::EFBIG }))?;
        let flags = if punch {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::empty()
        };
        {
            let _order = object.order.lock();
            self.quiesce(worker, &object)?;
            let _changing = object.changes.begin();
            if !self.options.stable {
                object.unsynced.store(true, Ordering::SeqCst);
            }
            worker.caller(|| rustix::fs::fallocate(&*fd, flags, range.start_bytes, len).map_err(os))?;
        }
        self.sync(worker, &[&object])
    }

    pub(super) fn copy(
        &self,
        worker: &mut Worker,
        (from, from_at): (&FileAt, u64),
        (to, to_at): (&FileAt, u64),
        len: u64,
    ) -> Result<u64> {
        let (source_object, source) = self.io(worker, from, OpenAccess::READ)?;
        let (object, target) = self.io(worker, to, OpenAccess::WRITE)?;
        let len = len.min(COPY_MAX_BYTES) as usize;
        let (mut from_at, mut to_at) = (from_at, to_at);
        let _order = object.order.lock();
        self.quiesce(worker, &object)?;
        let _changing = object.changes.begin();
        object.unsynced.store(true, Ordering::SeqCst);
        let copied = worker.caller(|| {
            let copied =
                rustix::fs::copy_file_range(&*source, Some(&mut from_at), &*target, Some(&mut to_at), len);
            copied.map_err(|e| match e {
                rustix::io::Errno::XDEV | rustix::io::Errno::NOSYS => Error::new(libc::EOPNOTSUPP),
                e => os(e),
            })
        })?;
        self.need_sound(&source_object, source.as_fd())?;
        Ok(copied as u64)
    }

    /// See [`hither_vfs::Extra::clone_range`]. The bytes of the source are all in the page cache,
    /// with or without a journal. The file system writes them back before it shares their blocks.
    /// Records of the target are void before the clone. Otherwise a replay would write their bytes
    /// over the clone.
    pub(super) fn clone_range(
        &self,
        worker: &mut Worker,
        (from, from_at): (&FileAt, u64),
        (to, to_at): (&FileAt, u64),
        len: u64,
    ) -> Result<()> {
        let (source_object, source) = self.io(worker, from, OpenAccess::READ)?;
        let (object, target) = self.io(worker, to, OpenAccess::WRITE)?;
        {
            let _order = object.order.lock();
            self.quiesce(worker, &object)?;
            let _changing = object.changes.begin();
            if !self.options.stable {
                object.unsynced.store(true, Ordering::SeqCst);
            }
            worker.caller(|| sys::clone_range((source.as_fd(), from_at), (target.as_fd(), to_at), len))?;
        }
        self.need_sound(&source_object, source.as_fd())?;
        self.sync(worker, &[&object])
    }

    /// The object of an extended attribute, and its path. The calls by descriptor reject `O_PATH`
    /// descriptors.
    fn xattr_at(&self, worker: &mut Worker, fh: &Fh, name: Option<&[u8]>) -> Result<(Arc<Object>, String)> {
        if let Some(name) = name {
            check_xattr_name(name)?;
        }
        let object = self.resolve(worker, fh)?;
        let path = format!("/proc/self/fd/{}", object.proc_name());
        Ok((object, path))
    }

    pub(super) fn getxattr(&self, worker: &mut Worker, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        let (object, path) = self.xattr_at(worker, fh, Some(name))?;
        if !matches!(object.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Error::new(libc::ENODATA));
        }
        let mut buf = Vec::with_capacity(XATTR_MAX_BYTES);
        worker.caller(|| {
            rustix::fs::getxattr(&path, name, rustix::buffer::spare_capacity(&mut buf)).map_err(os)
        })?;
        Ok(Bytes::copy_from_slice(&buf))
    }

    pub(super) fn setxattr(
        &self,
        worker: &mut Worker,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let (object, path) = self.xattr_at(worker, fh, Some(name))?;
        self.need_uncovered(&object)?;
        let flags = match mode {
            XattrMode::Either => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        worker.caller(|| rustix::fs::setxattr(&path, name, value, flags).map_err(os))?;
        self.sync(worker, &[&object])
    }

    pub(super) fn listxattr(&self, worker: &mut Worker, fh: &Fh) -> Result<Vec<Bytes>> {
        let (object, path) = self.xattr_at(worker, fh, None)?;
        if !matches!(object.kind, FileKind::Regular | FileKind::Directory) {
            return Ok(Vec::new());
        }
        let mut buf = Vec::with_capacity(XATTR_MAX_BYTES);
        worker.caller(|| {
            // listxattr(2) checks no permission, so this checks for read permission.
            object.access(4)?;
            rustix::fs::listxattr(&path, rustix::buffer::spare_capacity(&mut buf)).map_err(os)
        })?;
        let names = buf.split(|&b| b == 0).filter(|name| name.starts_with(b"user."));
        Ok(names.map(Bytes::copy_from_slice).collect())
    }

    pub(super) fn removexattr(&self, worker: &mut Worker, fh: &Fh, name: &[u8]) -> Result<()> {
        let (object, path) = self.xattr_at(worker, fh, Some(name))?;
        self.need_uncovered(&object)?;
        worker.caller(|| rustix::fs::removexattr(&path, name).map_err(os))?;
        self.sync(worker, &[&object])
    }
}

fn size_of(fd: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstat(fd).map_err(os)?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// Only `user.` attributes (RFC 8276) are served.
fn check_xattr_name(name: &[u8]) -> Result<()> {
    match name {
        n if n.len() > 255 => Err(Error::new(libc::ERANGE)),
        n if n.contains(&0) => Err(Error::new(libc::EINVAL)),
        n if n.starts_with(b"user.") && n.len() > 5 => Ok(()),
        _ => Err(Error::new(libc::EOPNOTSUPP)),
    }
}
