//! Calls by path on an object that is removed between its lookup and the call.
//!
//! The first ESTALE lets the kernel walk the path again ([`crate::path_retry`]). When the object of
//! the second walk is gone too, the call is answered with the state at the lookup. A change has no
//! effect, because the object has none of its names any more.

use super::Call;
use super::attr::wanted;
use super::xattr::sized;
use crate::abi::{Op, ROOT_ID, SetattrIn, attr_out, fattr};
use crate::call::{Answer, Body, Undo};
use crate::hint::uses::Use;
use crate::inode::Inode;
use crate::path_retry::{Found, Reads};
use bytes::Bytes;
use hither_vfs::{Attr, Cred, Error, File, FileKind, Result, SetAttr, SetTime};
use std::time::Duration;
use tokio::time::Instant;

/// A call that the kernel sends for a path, without a handle.
#[derive(Debug, Clone)]
pub(super) enum PathCall {
    Getattr,
    Setattr(SetattrIn),
    Access(u32),
    Statfs,
    Readlink,
    Opendir,
    /// Space for the list in bytes.
    Listxattr(u32),
    /// Name of the value, and space for it in bytes.
    Getxattr(Bytes, u32),
    Setxattr,
    Removexattr(Bytes),
    /// A call on a name in the directory.
    Name,
}

impl PathCall {
    /// `None` for calls by handle, for opens and for lookups.
    pub fn of(op: &Op) -> Option<Self> {
        Some(match op {
            Op::Getattr { fh: None } => Self::Getattr,
            Op::Setattr(set) if set.valid & fattr::FH == 0 => Self::Setattr(set.clone()),
            Op::Access { mask } => Self::Access(*mask),
            Op::Statfs => Self::Statfs,
            Op::Readlink => Self::Readlink,
            Op::Opendir => Self::Opendir,
            Op::Listxattr { size } => Self::Listxattr(*size),
            Op::Getxattr { name, size } => Self::Getxattr(name.clone(), *size),
            Op::Setxattr { .. } => Self::Setxattr,
            Op::Removexattr { name } => Self::Removexattr(name.clone()),
            Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Create { .. } => Self::Name,
            _ => return None,
        })
    }

    /// Whether the call changes something.
    pub fn changes(&self) -> bool {
        matches!(self, Self::Setattr(_) | Self::Setxattr | Self::Removexattr(_) | Self::Name)
    }

    fn reads(&self) -> Reads {
        match self {
            Self::Listxattr(_) => Reads::XattrNames,
            Self::Getxattr(name, _) | Self::Removexattr(name) => Reads::Xattr(name.clone()),
            _ => Reads::Nothing,
        }
    }
}

impl Call {
    /// The answer to a call by path that failed with `e`. `found` is its object, if the thread has
    /// walked the path again.
    pub(super) async fn after_removal(
        &self,
        call: PathCall,
        found: Option<Found>,
        e: Error,
    ) -> Result<Answer> {
        let reads = call.reads();
        let is_for_call = |found: &Found| found.attr.kind == FileKind::Symlink || found.has(&reads);
        let Some(found) = found.or_else(|| self.removed_dir()).filter(is_for_call) else {
            self.walks_again(reads).await;
            return Err(Error { errno: libc::ESTALE, ..e });
        };
        // A server fault may have another cause, and the object of a name may be gone instead.
        let is_certain = e.errno == libc::ESTALE && !matches!(call, PathCall::Name);
        if is_certain || self.is_gone().await { self.as_found(call, &found, e).await } else { Err(e) }
    }

    /// The thread is about to get ESTALE for another request than an open, and walks its path
    /// again. The system call may be an open, and the file that it finds then must stay.
    pub(super) async fn walks_again(&self, reads: Reads) {
        let (session, tid, now) = (&self.session, self.head.tid, Instant::now());
        session.path_retries.send(tid, reads);
        if self.visible_use().await.is_some_and(Use::opens_file) {
            session.stale_retries.send(tid, now, Instant::now());
        }
    }

    /// Whether the server does not know the object of the request any more.
    async fn is_gone(&self) -> bool {
        let Ok(inode) = self.inode() else { return true };
        let cx = self.cx().fresh(Instant::now());
        let asked = self.session.vfs.getattr(&cx, File { fh: &inode.fh(), open: None }).await;
        asked.is_err_and(|e| e.errno == libc::ESTALE)
    }

    /// A directory that this mount has removed while it was open. For a directory the kernel sends
    /// the same requests for a descriptor, and it repeats no call on a descriptor.
    fn removed_dir(&self) -> Option<Found> {
        let id = self.head.nodeid;
        let inode = self.inode().ok().filter(|inode| inode.in_use.is_dir_removed())?;
        let open = self.session.dirs.find_like(|dir| dir.inode.id == inode.id)?;
        Some(Found { id, attr: Attr { nlink: 0, ..open.attr.clone() }, read: None, reads: Reads::Nothing })
    }

    /// The bytes that the thread's repeated call may read from an object.
    pub(super) async fn bytes_to_read(&self, object: &Inode) -> Result<Option<Bytes>> {
        let (vfs, cx, fh) = (&self.session.vfs, self.cx(), object.fh());
        if object.kind == FileKind::Symlink {
            return vfs.readlink(&cx, &fh).await.map(Some);
        }
        match self.session.path_retries.reads(self.head.tid) {
            Reads::Nothing => Ok(None),
            Reads::XattrNames => self.xattr_names(&fh).await.map(Some),
            Reads::Xattr(name) => vfs.getxattr(&cx, &fh, &name).await.map(Some),
        }
    }

    /// The answer to a call with the state of its object at the lookup, or else `e`.
    async fn as_found(&self, call: PathCall, found: &Found, e: Error) -> Result<Answer> {
        let (cred, mut attr) = (self.cred(), found.attr.clone());
        // A symbolic link has no attributes of users.
        let has_xattrs = attr.kind != FileKind::Symlink;
        let writes = mode_permits(&cred, &attr, libc::W_OK as u32);
        match call {
            PathCall::Getattr => {}
            PathCall::Setattr(set) => {
                let set = wanted(&set);
                if !may_set(&cred, &attr, &set) {
                    return Err(e);
                }
                apply(&set, &mut attr);
            }
            PathCall::Access(mask) => {
                let enough = mode_permits(&cred, &attr, mask);
                return if enough { Ok(Answer::empty()) } else { Err(Error::new(libc::EACCES)) };
            }
            // The mount point is on the same file system.
            PathCall::Statfs if self.session.inodes.root_ident().sibling(attr.fileid).is_of(&attr) => {
                return self.statfs(ROOT_ID).await;
            }
            PathCall::Statfs => return Err(e),
            PathCall::Readlink => {
                let target = read_before(found, e)?;
                return Ok(Answer { body: Body::Data(target.into()), undo: Undo::Nothing });
            }
            PathCall::Opendir if mode_permits(&cred, &attr, libc::R_OK as u32) => {
                return Ok(self.opened_dir(self.inode()?, attr, 0, self.asked()));
            }
            PathCall::Opendir => return Err(Error::new(libc::EACCES)),
            PathCall::Listxattr(size) if !has_xattrs => return sized(Bytes::new(), size),
            PathCall::Listxattr(size) | PathCall::Getxattr(_, size) if has_xattrs => {
                return sized(read_before(found, e)?, size);
            }
            PathCall::Removexattr(_) if has_xattrs && writes => {
                return read_before(found, e).map(|_| Answer::empty());
            }
            PathCall::Setxattr if has_xattrs && writes => return Ok(Answer::empty()),
            PathCall::Listxattr(_)
            | PathCall::Getxattr(..)
            | PathCall::Removexattr(_)
            | PathCall::Setxattr => return Err(e),
            PathCall::Name => return Err(Error::new(libc::ENOENT)),
        }
        Ok(Answer::bytes(attr_out(self.session.ino(&attr), &attr, Duration::ZERO)))
    }
}

/// The bytes that were read when the thread looked up the object, or else the error `e`.
fn read_before(found: &Found, e: Error) -> Result<Bytes> {
    found.read.clone().unwrap_or(Err(e))
}

/// Whether the mode of an object permits the rights in a mask of access(2).
fn mode_permits(cred: &Cred, attr: &Attr, mask: u32) -> bool {
    let mask = mask & 0o7;
    let execute = libc::X_OK as u32;
    if cred.uid == 0 {
        return mask & execute == 0 || attr.kind == FileKind::Directory || attr.mode & 0o111 != 0;
    }
    let shift = if cred.uid == attr.uid {
        6
    } else if cred.gid == attr.gid || cred.groups.contains(&attr.gid) {
        3
    } else {
        0
    };
    attr.mode >> shift & mask == mask
}

/// Whether a caller certainly may set these attributes. Other users get the server's error.
fn may_set(cred: &Cred, attr: &Attr, set: &SetAttr) -> bool {
    let owns = cred.uid == attr.uid && set.uid.is_none() && set.gid.is_none();
    let writes = set.size_bytes.is_none() || mode_permits(cred, attr, libc::W_OK as u32);
    cred.uid == 0 || owns && writes
}

fn apply(set: &SetAttr, attr: &mut Attr) {
    attr.mode = set.mode.unwrap_or(attr.mode);
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    attr.size_bytes = set.size_bytes.unwrap_or(attr.size_bytes);
    for (given, time) in [(set.atime, &mut attr.atime), (set.mtime, &mut attr.mtime)] {
        if let Some(SetTime::To(given)) = given {
            *time = given;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::tests::node;

    /// The owner, a group member, another user and the superuser have the rights of the mode.
    #[test]
    fn mode_decides_rights() {
        let attr = |mode, kind| Attr { mode, uid: 1, gid: 2, ..node("o", 7, kind).attrs.attr };
        let user = |uid, gid, groups: &[u32]| Cred { uid, gid, groups: groups.into() };
        let file = attr(0o640, FileKind::Regular);
        let (read, write, execute) = (4, 2, 1);
        for (cred, most) in [
            (user(1, 9, &[]), read | write),
            (user(7, 2, &[]), read),
            (user(7, 9, &[8, 2]), read),
            (user(7, 9, &[]), 0),
            (user(0, 0, &[]), read | write),
        ] {
            for mask in 0..8 {
                assert_eq!(mode_permits(&cred, &file, mask), mask & !most == 0, "{cred:?} {mask}");
            }
        }
        assert!(mode_permits(&user(0, 0, &[]), &attr(0o600, FileKind::Directory), execute));
        assert!(mode_permits(&user(0, 0, &[]), &attr(0o001, FileKind::Regular), execute));
        let mode = SetAttr { mode: Some(0o600), ..Default::default() };
        let owner = SetAttr { uid: Some(7), ..Default::default() };
        assert!(may_set(&user(1, 1, &[]), &file, &mode) && !may_set(&user(7, 2, &[]), &file, &mode));
        assert!(!may_set(&user(1, 1, &[]), &file, &owner) && may_set(&user(0, 0, &[]), &file, &owner));
    }
}
