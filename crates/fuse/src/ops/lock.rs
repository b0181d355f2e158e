//! GETLK, SETLK, SETLKW: byte-range and flock(2) locks of the server.

use super::Call;
use crate::abi::{LK_FLOCK, LockCall, Out};
use crate::call::{Answer, Undo};
use hither_vfs::{Error, File, FileRange, LockKind, LockOwner, LockWait, Result};

/// The kernel's largest offset: a lock up to there goes on for ever.
const OFFSET_MAX: u64 = i64::MAX as u64;

fn range(call: &LockCall) -> FileRange {
    let end_bytes = if call.end >= OFFSET_MAX { u64::MAX } else { call.end + 1 };
    FileRange { start_bytes: call.start, end_bytes }
}

fn kind(call: &LockCall) -> Result<LockKind> {
    match call.kind as i32 {
        libc::F_RDLCK => Ok(LockKind::Read),
        libc::F_WRLCK => Ok(LockKind::Write),
        _ => Err(Error::new(libc::EINVAL)),
    }
}

fn owner(call: &LockCall) -> LockOwner {
    LockOwner { id: call.owner, flock: call.flags & LK_FLOCK != 0 }
}

impl Call {
    pub(super) async fn getlk(&self, call: LockCall) -> Result<Answer> {
        let file = self.file(call.fh)?;
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let cx = self.cx_of(file.cred.clone());
        let found = self.session.vfs.test_lock(&cx, at, owner(&call), kind(&call)?, range(&call)).await?;
        let mut out = Out::with_capacity(24);
        match found {
            None => out.u64(call.start).u64(call.end).u32(libc::F_UNLCK as u32).u32(0),
            Some(c) => {
                let end = match c.range.end_bytes {
                    0 => 0,
                    end => (end - 1).min(OFFSET_MAX),
                };
                let kind = if c.kind == LockKind::Read { libc::F_RDLCK } else { libc::F_WRLCK };
                out.u64(c.range.start_bytes).u64(end).u32(kind as u32).u32(c.pid)
            }
        };
        Ok(Answer::bytes(out.into_vec()))
    }

    pub(super) async fn setlk(&self, call: LockCall, wait: bool) -> Result<Answer> {
        let file = self.file(call.fh)?;
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let cx = self.cx_of(file.cred.clone());
        let (owner, range) = (owner(&call), range(&call));
        if call.kind as i32 == libc::F_UNLCK {
            // Others may read what was written under the lock, once it is gone.
            if let Err(error) = self.commit(&file).await {
                file.inode.keep_error(error);
            }
            self.session.vfs.unlock(&cx, at, owner, range).await?;
            return Ok(Answer::empty());
        }
        let wait = if wait { LockWait::Yes } else { LockWait::No };
        let held = file.locking.clone().read_owned().await;
        file.inode.note_lock_owner(owner);
        if !owner.flock {
            file.lockers.lock().insert(owner);
        }
        self.session.vfs.lock(&cx, at, owner, kind(&call)?, range, wait).await?;
        // A lock promises to see what its former holders wrote (nfs(5), "Using file locks with NFS").
        let asked = self.asked();
        if let Ok(attrs) = self.session.vfs.getattr(&cx, at).await {
            self.saw_under_lock(&file.inode, &attrs, asked).await;
        }
        Ok(Answer::empty().or(Undo::Unlock { file, owner, range, held }))
    }

    /// Brings the kernel's caches in line with the file as its lock found it: unless every page is known to be right, all go.
    async fn saw_under_lock(
        &self,
        inode: &crate::inode::Inode,
        attrs: &hither_vfs::Attrs,
        asked: crate::inode::Moment,
    ) {
        if inode.pages_are_right(&attrs.attr) {
            return;
        }
        inode.attrs_dropped();
        if self.session.drop_pages(inode.id).await {
            inode.pages_dropped(attrs.attr.change, asked);
        }
    }
}
