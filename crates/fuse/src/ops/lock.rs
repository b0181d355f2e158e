//! GETLK, SETLK, SETLKW: byte-range and flock(2) locks of the server.

use super::Call;
use crate::abi::{LK_FLOCK, LockCall, Out};
use crate::call::{Answer, Undo};
use crate::lockers::Lockers;
use hither_vfs::{Error, File, FileRange, LockKind, LockOwner, LockWait, RequestContext, Result};

/// The kernel's maximum offset: a lock up to it has no end.
const OFFSET_MAX: u64 = i64::MAX as u64;

fn range(call: &LockCall) -> FileRange {
    let end_bytes = if call.end >= OFFSET_MAX { u64::MAX } else { call.end + 1 };
    FileRange { start_bytes: call.start, end_bytes }
}

/// First and last byte of a lock for the kernel. The kernel returns EIO for an offset beyond its
/// maximum, and for an end before the start. So the lock of another client is limited.
fn first_and_last(range: FileRange) -> (u64, u64) {
    let first = range.start_bytes.min(OFFSET_MAX);
    (first, range.end_bytes.saturating_sub(1).clamp(first, OFFSET_MAX))
}

fn kind(call: &LockCall) -> Result<LockKind> {
    match call.kind as i32 {
        libc::F_RDLCK => Ok(LockKind::Read),
        libc::F_WRLCK => Ok(LockKind::Write),
        _ => Err(Error::new(libc::EINVAL)),
    }
}

/// The owner of a lock. See [`crate::lockers`].
fn owner(call: &LockCall) -> LockOwner {
    let flock = call.flags & LK_FLOCK != 0;
    LockOwner { id: if flock { call.fh } else { call.owner }, flock }
}

impl Call {
    pub(super) async fn getlk(&self, call: LockCall) -> Result<Answer> {
        let file = self.file(call.fh)?;
        let handle = file.inode.fh();
        let at = File { fh: &handle, open: Some(file.open) };
        let cx = self.cx_of(file.cred.clone());
        let kind = kind(&call)?;
        let test = || self.session.vfs.test_lock(&cx, at, owner(&call), kind, range(&call));
        let closed = file.inode.in_use.closes();
        let mut found = test().await?;
        if found.is_some() && file.inode.in_use.closed_handles_end(closed).await {
            found = test().await?;
        }
        let mut out = Out::with_capacity(24);
        match found {
            None => out.u64(call.start).u64(call.end).u32(libc::F_UNLCK as u32).u32(0),
            Some(c) => {
                let (first, last) = first_and_last(c.range);
                let holders = file.inode.lockers.holders(owner(&call), kind, c.range);
                // The protocol has no process ids.
                let pid = holders.iter().find(|h| h.lock.kind == c.kind).map_or(c.pid, |h| h.pid);
                let kind = if c.kind == LockKind::Read { libc::F_RDLCK } else { libc::F_WRLCK };
                out.u64(first).u64(last).u32(kind as u32).u32(pid)
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
            // Other clients may read the data after the unlock, so it is stable before.
            if let Err(error) = self.commit(&file).await {
                file.inode.keep_error(error);
            }
            file.inode.lockers.released(owner, range);
            self.session.vfs.unlock(&cx, at, owner, range).await?;
            return Ok(Answer::empty());
        }
        let inode = &file.inode;
        if inode.lockers.has_only_others(owner, call.fh) {
            inode.in_use.closed_handles_end(inode.in_use.closes()).await;
        }
        let locking = Lockers::locks(&file, owner, call.fh, &self.pending).await?;
        let asked = self.asked();
        let kind = kind(&call)?;
        let lock = async || {
            if !wait {
                return self.session.vfs.lock(&cx, at, owner, kind, range, LockWait::No).await;
            }
            let cancel = cx.cancel.child_token();
            let cx = RequestContext { cancel: cancel.clone(), ..cx.clone() };
            let locked = self.session.vfs.lock(&cx, at, owner, kind, range, LockWait::Yes);
            let deadlock = self.session.lock_waits.deadlock(self.head.tid, owner, inode, kind, range);
            tokio::pin!(locked);
            tokio::select! {
                biased;
                locked = &mut locked => return locked,
                () = deadlock => cancel.cancel(),
            }
            // The lock may be granted meanwhile.
            locked.await.map_err(|e| if e.errno == libc::EINTR { Error::new(libc::EDEADLK) } else { e })
        };
        let closed = file.inode.in_use.closes();
        let mut locked = lock().await;
        let is_taken = locked.as_ref().is_err_and(|e| e.errno == libc::EAGAIN);
        if is_taken && file.inode.in_use.closed_handles_end(closed).await {
            locked = lock().await;
        }
        let brought = locked?;
        inode.lockers.granted(owner, kind, range, call.pid);
        // A lock guarantees that its holder sees the writes of earlier holders (nfs(5), "Using file
        // locks with NFS").
        let seen = match brought {
            Some(attrs) => Some((attrs, asked)),
            None => {
                let asked = self.asked();
                self.session.vfs.getattr(&cx, at).await.ok().map(|attrs| (attrs, asked))
            }
        };
        if let Some((attrs, asked)) = seen {
            self.saw_under_lock(&file.inode, &attrs, asked).await;
        }
        Ok(Answer::empty().or(Undo::Unlock { locking, range }))
    }

    /// Updates the kernel's caches after a lock was granted. Unless all pages are known to be
    /// right, all are dropped.
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
        if self.session.drop_pages(inode).await {
            inode.pages_dropped(&attrs.attr, asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every range of the layer below is mapped to a valid range of the kernel.
    #[test]
    fn lock_ranges_fit_kernel() {
        let edges = [0, 1, 4096, OFFSET_MAX - 1, OFFSET_MAX, OFFSET_MAX + 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for (start_bytes, end_bytes) in edges.iter().flat_map(|s| edges.map(|e| (*s, e))) {
            let (first, last) = first_and_last(FileRange { start_bytes, end_bytes });
            assert!(first <= last && last <= OFFSET_MAX, "{start_bytes}..{end_bytes}: {first}..={last}");
        }
        let of = |start_bytes, end_bytes| first_and_last(FileRange { start_bytes, end_bytes });
        assert_eq!(of(10, 20), (10, 19));
        assert_eq!(of(10, u64::MAX), (10, OFFSET_MAX));
    }
}
