//! Names: MKDIR, MKNOD, SYMLINK, LINK, UNLINK, RMDIR, RENAME.

use super::Call;
use crate::abi::NewMode;
use crate::call::Answer;
use crate::inode::Inode;
use bytes::Bytes;
use hither_vfs::{Error, FileKind, Made, Name, PathRef, RenameFlags, Result, SetAttr, Special};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLockWriteGuard;
use tokio::time::Instant;

/// The permissions of a new object.
pub(super) fn permissions(new: NewMode) -> SetAttr {
    let (unmasked, masked) = (new.mode & 0o7777, new.mode & 0o7777 & !new.umask);
    SetAttr { mode: Some(masked), unmasked: (masked != unmasked).then_some(unmasked), ..Default::default() }
}

impl Call {
    pub(super) async fn mkdir(&self, name: Name, mode: NewMode) -> Result<Answer> {
        let dir = self.inode()?;
        let set = permissions(mode);
        let _changing = self.changing(&dir);
        let asked = self.asked();
        let made = self.session.vfs.mkdir(&self.cx(), &dir.fh(), &name, &set).await?;
        self.made(&dir, &name, &made, asked).await
    }

    pub(super) async fn mknod(&self, name: Name, mode: NewMode, rdev: u32) -> Result<Answer> {
        let dir = self.inode()?;
        let (major, minor) = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
        let what = match mode.mode & libc::S_IFMT {
            libc::S_IFIFO => Special::Fifo,
            libc::S_IFSOCK => Special::Socket,
            libc::S_IFCHR => Special::CharDevice(major, minor),
            libc::S_IFBLK => Special::BlockDevice(major, minor),
            libc::S_IFREG | 0 => Special::Regular,
            _ => return Err(Error::new(libc::EINVAL)),
        };
        let set = permissions(mode);
        let _changing = self.changing(&dir);
        let asked = self.asked();
        let made = self.session.vfs.mknod(&self.cx(), &dir.fh(), &name, &what, &set).await?;
        self.made(&dir, &name, &made, asked).await
    }

    pub(super) async fn symlink(&self, name: Name, target: Bytes) -> Result<Answer> {
        let dir = self.inode()?;
        let _changing = self.changing(&dir);
        let asked = self.asked();
        let made =
            self.session.vfs.symlink(&self.cx(), &dir.fh(), &name, &target, &SetAttr::default()).await?;
        self.made(&dir, &name, &made, asked).await
    }

    pub(super) async fn link(&self, old: u64, name: Name) -> Result<Answer> {
        let (dir, inode) = (self.inode()?, self.inode_of(old)?);
        self.may_link(&inode).await?;
        let _changing = (self.changing(&dir), self.changing(&inode));
        let asked = self.asked();
        let made = self.session.vfs.link(&self.cx(), &inode.fh(), &dir.fh(), &name).await?;
        // The kernel accepts an answer only for the inode in its request.
        let node = hither_vfs::Node { fh: inode.fh(), attrs: made.node.attrs };
        self.entry_answer(&dir, (&name, self.now_named()), &node, asked).await.map(|(answer, _)| answer)
    }

    async fn made(
        &self,
        dir: &Inode,
        name: &Name,
        made: &Made,
        asked: crate::inode::Moment,
    ) -> Result<Answer> {
        self.session.inodes.note_new(&made.node);
        self.entry_answer(dir, (name, self.now_named()), &made.node, asked).await.map(|(answer, _)| answer)
    }

    pub(super) async fn unlink(&self, name: Name) -> Result<Answer> {
        let dir = self.inode()?;
        let _removing = dir.in_use.removing_name().await;
        let target = self.bound_to(&dir, &name);
        let _changing = (self.changing(&dir), target.as_ref().map(|t| self.changing(t)));
        let alone = self.alone_with(target.as_ref()).await;
        let fh = target.as_ref().map(|t| t.fh());
        let (cx, dir_fh) = (self.cx(), dir.fh());
        let unlink = || self.session.vfs.unlink(&cx, &dir_fh, &name, fh.as_ref());
        match unlink().await {
            // A hidden name, of a file that is kept for a thread. The close removes the name, too.
            Err(e) if e.errno == libc::EBUSY && self.is_kept(target.as_deref()) => {
                drop(alone);
                self.hidden_names_go(target.as_slice()).await;
                unlink().await.map(drop).or_else(|e| if e.errno == libc::ENOENT { Ok(()) } else { Err(e) })
            }
            removed => removed.map(drop),
        }?;
        self.session.inodes.unbind(dir.id, &name);
        if let Some(target) = &target {
            self.session.removed.add(target, dir.ident);
        }
        Ok(Answer::empty())
    }

    pub(super) async fn rmdir(&self, name: Name) -> Result<Answer> {
        let dir = self.inode()?;
        let _changing = self.changing(&dir);
        // Read before, because the file that blocks the removal may be closed when it fails.
        let emptied = self.session.inodes.child(dir.id, &name);
        let removed = emptied.as_ref().map(|emptied| self.session.removed.of(emptied.ident));
        let removed = removed.unwrap_or_default();
        note_dir_removal(emptied.as_deref(), true);
        let removed = match self.session.vfs.rmdir(&self.cx(), &dir.fh(), &name).await {
            Err(e) if e.errno == libc::ENOTEMPTY && self.hidden_names_go(&removed).await => {
                self.session.vfs.rmdir(&self.cx(), &dir.fh(), &name).await
            }
            removed => removed,
        };
        if let Err(e) = removed {
            note_dir_removal(emptied.as_deref(), false);
            return Err(e);
        }
        self.session.inodes.unbind(dir.id, &name);
        Ok(Answer::empty())
    }

    pub(super) async fn rename(&self, from: Name, new_dir: u64, to: Name, flags: u32) -> Result<Answer> {
        let flags = match RenameFlags::from_bits(flags) {
            Some(flags) => flags,
            // RENAME_WHITEOUT and unknown flags.
            None => return Err(Error::new(libc::EINVAL)),
        };
        self.session.rename_retries.over(self.head.tid);
        let (dir, to_dir) = (self.inode()?, self.inode_of(new_dir)?);
        let inodes = &self.session.inodes;
        let _removing = to_dir.in_use.removing_name().await;
        let (known, replaced) = (self.bound_to(&dir, &from), self.bound_to(&to_dir, &to));
        let _changing = (self.changing(&dir), self.changing(&to_dir));
        let _objects = [&known, &replaced].map(|i| i.as_ref().map(|i| self.changing(i)));
        let _alone = self.alone_with(replaced.as_ref()).await;
        let target = replaced.as_ref().map(|i| i.fh());
        let (from_fh, to_fh) = (dir.fh(), to_dir.fh());
        let vfs = &self.session.vfs;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let replaced_dir = replaced.as_deref().filter(|_| !exchange);
        note_dir_removal(replaced_dir, true);
        let renamed = vfs.rename(&self.cx(), (&from_fh, &from), (&to_fh, &to), target.as_ref(), flags).await;
        let moved = match renamed {
            Ok(moved) => moved,
            Err(e) => {
                note_dir_removal(replaced_dir, false);
                // A rename that is executed twice fails the second time, although the new name
                // exists. The kernel may have cached its absence. The kernel itself looks up the
                // old name again, and new names that it has cached as existing.
                if matches!(e.errno, libc::ENOENT | libc::EEXIST | libc::EINTR | libc::EIO) {
                    self.session.doubt_name(to_dir.id, &to).await;
                }
                return Err(e);
            }
        };
        let [moved_id, replaced_id] = [&known, &replaced].map(|i| i.as_ref().map(|i| i.id));
        inodes.rename((dir.id, &from), (to_dir.id, &to), (moved_id, replaced_id), exchange);
        if let (Some(replaced), false) = (&replaced, exchange) {
            self.session.removed.add(replaced, to_dir.ident);
        }
        // The kernel takes the object for the one that it has cached under the old name.
        if moved.object.is_none() || moved.object != known.as_ref().map(|i| i.fh()) {
            if moved.object.is_some() {
                inodes.unbind(to_dir.id, &to);
            }
            self.session.doubt_name(to_dir.id, &to).await;
        } else {
            // The kernel keeps a moved name as long as under its old directory, and does not check
            // the search permission of the new one.
            let keeps = |dir: &Inode| !self.name_valid(dir, Duration::MAX).is_zero();
            if keeps(&dir) && !keeps(&to_dir) {
                self.session.doubt_name(to_dir.id, &to).await;
            }
            if exchange && keeps(&to_dir) && !keeps(&dir) {
                self.session.doubt_name(dir.id, &from).await;
            }
        }
        Ok(Answer::empty())
    }

    /// The last seen object of a name, without a request. The layers below may cache more names
    /// than the table of inodes.
    fn bound_to(&self, dir: &Inode, name: &Name) -> Option<Arc<Inode>> {
        let (inodes, fh) = (&self.session.inodes, dir.fh());
        inodes.child(dir.id, name).or_else(|| {
            let trail = self.session.vfs.peek(&self.cx(), PathRef::name(&fh, name))?;
            inodes.by_fh(&trail.steps.first()?.fh)
        })
    }

    /// Blocks opens of a file while a name of it is removed. A file that a thread is about to open
    /// after ESTALE is kept open.
    async fn alone_with<'a>(&self, target: Option<&'a Arc<Inode>>) -> Option<RwLockWriteGuard<'a, ()>> {
        let target = target.filter(|target| target.kind == FileKind::Regular)?;
        let alone = target.in_use.removing().await;
        if let Some(cred) = self.session.stale_retries.expects(target.id, Instant::now()) {
            self.session.keep_open(target, cred).await;
        }
        Some(alone)
    }

    /// Whether a thread is expected to open the file after ESTALE.
    fn is_kept(&self, file: Option<&Inode>) -> bool {
        file.is_some_and(|file| self.session.stale_retries.expects(file.id, Instant::now()).is_some())
    }

    /// Waits for closes of files that were removed while open. Returns whether there were any.
    async fn hidden_names_go(&self, removed: &[Arc<Inode>]) -> bool {
        let mut any = false;
        for file in removed {
            any |= self.session.closes_end(file).await;
        }
        any
    }

    /// Marks an object's attributes as changing during a call. Answers to earlier and concurrent
    /// requests are not used.
    fn changing<'a>(&'a self, inode: &'a Inode) -> crate::inode::Changing<'a> {
        inode.changing(&self.session.inodes.clock)
    }
}

/// The removal of a directory starts, or has failed.
fn note_dir_removal(object: Option<&Inode>, removed: bool) {
    if let Some(dir) = object.filter(|object| object.kind == FileKind::Directory) {
        dir.in_use.removes_dir(removed);
    }
}
