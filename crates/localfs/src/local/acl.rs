//! POSIX ACLs of the file system. The kernel reads and writes them as extended attributes.

use super::Inner;
use super::journaled::names::Done;
use super::object::{Object, os};
use super::pool::Worker;
use hither_vfs::{Attrs, Error, Fh, FileKind, PosixAcl, PosixAcls, Result, SetAttr};
use rustix::fd::BorrowedFd;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use smallvec::smallvec;
use std::sync::Arc;

const ACCESS: &str = "system.posix_acl_access";
pub(super) const DEFAULT: &str = "system.posix_acl_default";
/// Longest value in bytes (`XATTR_SIZE_MAX`).
const VALUE_MAX_BYTES: usize = 65536;

/// Whether objects in the file system of a directory can have ACLs.
pub(super) fn are_there(dir: BorrowedFd<'_>) -> bool {
    let tried = rustix::fs::fgetxattr(dir, ACCESS, &mut [0_u8; 0][..]);
    matches!(tried, Ok(_) | Err(Errno::NODATA | Errno::RANGE))
}

impl Inner {
    /// As [`Inner::new_mode`], for the handle of the directory.
    pub(super) fn mode_in(&self, worker: &mut Worker, dir: &Fh, set: &SetAttr, usual: u32) -> Result<u32> {
        if set.unmasked.is_none() {
            return Ok(set.mode.unwrap_or(usual) & 0o7777);
        }
        let dir = self.resolve(worker, dir)?;
        self.new_mode(worker, &dir, set, usual)
    }

    /// Permission bits of a new object in `dir`. A default ACL takes the place of the umask.
    pub(super) fn new_mode(
        &self,
        worker: &mut Worker,
        dir: &Object,
        set: &SetAttr,
        usual: u32,
    ) -> Result<u32> {
        let mode = set.mode.unwrap_or(usual) & 0o7777;
        let Some(unmasked) = set.unmasked else { return Ok(mode) };
        let inherits = worker.root(|| {
            let found = rustix::fs::getxattr(path(dir), DEFAULT, &mut [0_u8; 0][..]);
            Ok(matches!(found, Ok(_) | Err(Errno::RANGE)))
        })?;
        Ok(if inherits { unmasked & 0o7777 } else { mode })
    }

    pub(super) fn acls(&self, worker: &mut Worker, fh: &Fh) -> Result<PosixAcls> {
        let object = self.with_acls(worker, fh)?;
        worker.root(|| {
            let access = value(&object, ACCESS)?;
            let is_dir = object.kind == FileKind::Directory;
            let default = if is_dir { value(&object, DEFAULT)? } else { None };
            Ok(PosixAcls { access, default })
        })
    }

    /// Sets ACLs. The change has no record; its sync also makes all earlier changes with records
    /// durable.
    pub(super) fn set_acls(&self, worker: &mut Worker, fh: &Fh, acls: &PosixAcls) -> Result<Done<Attrs>> {
        let object = self.with_acls(worker, fh)?;
        self.need_uncovered(&object)?;
        {
            let _changing = object.changes.begin();
            let _modes = object.modes.begin();
            let is_dir = object.kind == FileKind::Directory;
            let old =
                worker.root(|| if is_dir { value(&object, DEFAULT) } else { Ok(None) }).unwrap_or_default();
            worker.caller(|| {
                set_default(&object, acls.default.as_ref())?;
                let access = acls.access.as_ref().map_or(Ok(()), |access| set(&object, ACCESS, access));
                // Both are set, or none. The former default ACL has had its room before.
                access.inspect_err(|_| drop(set_default(&object, old.as_ref())))
            })?;
        }
        let result = self.attrs(&object)?;
        Ok(Done { result, object: Some(fh.clone()), touched: smallvec![object], change: None })
    }

    fn with_acls(&self, worker: &mut Worker, fh: &Fh) -> Result<Arc<Object>> {
        let object = self.resolve(worker, fh)?;
        match object.kind {
            FileKind::Symlink => Err(Error::new(libc::EOPNOTSUPP)),
            _ => Ok(object),
        }
    }
}

/// The path of an object in /proc. The calls by descriptor reject `O_PATH` descriptors.
fn path(object: &Object) -> String {
    format!("/proc/self/fd/{}", object.proc_name())
}

fn value(object: &Object, name: &str) -> Result<Option<PosixAcl>> {
    let mut buf = Vec::with_capacity(VALUE_MAX_BYTES);
    match rustix::fs::getxattr(path(object), name, rustix::buffer::spare_capacity(&mut buf)) {
        Ok(_) => {}
        Err(Errno::NODATA) => return Ok(None),
        Err(e) => return Err(os(e)),
    }
    let acl = PosixAcl::parse(&buf);
    acl.map(Some).ok_or_else(|| Error::because(libc::EIO, "the file system has an ACL in an unknown format"))
}

fn set(object: &Object, name: &str, acl: &PosixAcl) -> Result<()> {
    rustix::fs::setxattr(path(object), name, &acl.to_bytes(), XattrFlags::empty()).map_err(os)
}

/// Sets the default ACL of a directory. `None` removes it.
fn set_default(object: &Object, acl: Option<&PosixAcl>) -> Result<()> {
    match (acl, object.kind) {
        (Some(acl), _) => set(object, DEFAULT, acl),
        (None, FileKind::Directory) => match rustix::fs::removexattr(path(object), DEFAULT) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(e) => Err(os(e)),
        },
        (None, _) => Ok(()),
    }
}
