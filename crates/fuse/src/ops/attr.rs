//! GETATTR, SETATTR, ACCESS and STATFS.

use super::Call;
use crate::abi::{Out, ROOT_ID, SetattrIn, attr_out, fattr};
use crate::call::Answer;
use crate::handles::OpenFile;
use crate::inode::{Inode, Moment};
use hither_vfs::{
    Access, Attr, Attrs, Error, Fh, File, FileKind, FsStat, OpenAccess, RequestContext, Result, SetAttr,
    SetTime, Time,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Unit of the counts in a STATFS reply.
const STATFS_BLOCK_BYTES: u64 = 4096;

/// Maximum wait of requests for the mount point for the server. After it the last known answer is
/// used. umount(8) sends such requests first, and must work when the server is unreachable.
const ROOT_PATIENCE: Duration = Duration::from_secs(2);

/// Nanoseconds of a second.
const NANOS: u32 = 1_000_000_000;

impl Call {
    pub(super) async fn getattr(&self, fh: Option<u64>) -> Result<Answer> {
        let inode = self.inode()?;
        let (handle, asked) = (inode.fh(), self.asked());
        if let Some(fh) = fh
            .filter(|_| self.session.config.may_be_shared && self.session.authority.is_noncacheable(&handle))
        {
            return self.before_shared_read(&inode, fh).await;
        }
        let mut attrs = match inode.known(Instant::now()) {
            Some(attrs) => attrs,
            None => self.requested_attrs(&handle, fh).await?,
        };
        if fh.is_none() && inode.kind == FileKind::Regular {
            let tid = self.head.tid;
            attrs.attr.size_bytes = inode.shown_length(tid, attrs.attr.size_bytes);
            self.session.unprocessed.length_is_processed(&inode, tid).await;
        }
        self.attr_answer(&inode, &attrs, asked).await
    }

    /// The attributes of an object from the layer below. The kernel sends `fh` to get the length
    /// before a read or a seek, and not for stat(2).
    async fn requested_attrs(&self, handle: &Fh, fh: Option<u64>) -> Result<Attrs> {
        let open = fh.and_then(|fh| self.session.files.find(fh));
        let file = File { fh: handle, open: open.as_ref().map(|f| f.open) };
        let cx = open.as_ref().map_or_else(|| self.cx(), |f| self.cx_of(f.cred.clone()));
        let cx = RequestContext { times_unseen: fh.is_some(), ..cx };
        let call = self.session.vfs.getattr(&cx, file);
        match self.head.nodeid {
            ROOT_ID => patiently(&self.session.last_root, None, call).await,
            _ => call.await,
        }
    }

    /// The kernel is about to read a file from its pages that must not be cached. It sends a handle
    /// then, and not for stat(2).
    ///
    /// The kernel itself drops the pages when the times have changed. So the answer has changed
    /// times. No other way gives the kernel the length of the same answer. The times are valid for
    /// this call only: stat(2) requests the real ones.
    async fn before_shared_read(&self, inode: &Inode, fh: u64) -> Result<Answer> {
        let file = self.file(fh)?;
        let (handle, asked) = (inode.fh(), self.asked());
        let cx = self.cx_of(file.cred.clone()).fresh(self.pending.started);
        let at = File { fh: &handle, open: Some(file.open) };
        let mut attr = self.session.vfs.getattr(&cx, at).await?.attr;
        if attr.kind != inode.kind {
            return Err(Error::new(libc::ESTALE));
        }
        if inode.changed_since(asked) {
            // The kernel ignores an answer after concurrent changes. Its pages are dropped
            // explicitly, and it requests the length again.
            self.session.drop_pages(inode).await;
        }
        inode.observe_rights(&attr);
        inode.attrs_dropped();
        let number = self.session.shared_reads.fetch_add(1, Ordering::Relaxed) % (NANOS - 1);
        attr.mtime.nanos = (attr.mtime.nanos + 1 + number) % NANOS;
        Ok(Answer::bytes(attr_out(self.session.ino(&attr), &attr, Duration::ZERO)))
    }

    async fn attr_answer(&self, inode: &Arc<Inode>, attrs: &Attrs, asked: Moment) -> Result<Answer> {
        if attrs.attr.kind != inode.kind {
            return Err(Error::new(libc::ESTALE));
        }
        self.saw(inode, attrs, asked).await;
        Ok(self.attr_body(inode, attrs, asked))
    }

    fn attr_body(&self, inode: &Inode, attrs: &Attrs, asked: Moment) -> Answer {
        let ino = self.session.ino(&attrs.attr);
        if inode.in_use.is_dir_removed() {
            // The removal may still fail, so the kernel must ask again.
            let attr = Attr { nlink: 0, ..attrs.attr.clone() };
            return Answer::bytes(attr_out(ino, &attr, Duration::ZERO));
        }
        Answer::bytes(attr_out(ino, &attrs.attr, self.attr_valid(inode, attrs, asked)))
    }

    pub(super) async fn setattr(&self, set: SetattrIn) -> Result<Answer> {
        let inode = self.inode()?;
        let handle = inode.fh();
        let wanted = wanted(&set);
        let open = (set.valid & fattr::FH != 0).then(|| self.session.files.find(set.fh)).flatten();
        let file = File { fh: &handle, open: open.as_ref().map(|f| f.open) };
        let vfs = &self.session.vfs;
        if wanted == SetAttr::default() {
            let asked = self.asked();
            let attrs = vfs.getattr(&self.cx(), file).await?;
            return self.attr_answer(&inode, &attrs, asked).await;
        }
        if wanted.size_bytes.is_some() && open.is_none() {
            self.check_truncate(&inode).await?;
        }
        // No passthrough starts during the truncation, and a file with passthrough is not
        // truncated.
        let _not_lent = match wanted.size_bytes {
            Some(_) => self.session.passthrough.open(inode.id, OpenAccess::WRITE, None)?,
            None => None,
        };
        // ftruncate(2) needs the right of the descriptor, like write(2).
        let cx = match &open {
            Some(f) if wanted.size_bytes.is_some() => self.cx_of(f.cred.clone()),
            _ => self.cx(),
        };
        let no_reads = match wanted.size_bytes {
            Some(size_bytes) => inode.truncating(size_bytes).await,
            None => None,
        };
        let modifying = wanted.size_bytes.map(|size| {
            self.extends(&inode, size);
            inode.modify(&self.session.inodes.clock)
        });
        let asked = self.asked();
        let attrs = vfs.setattr(&cx, file, &wanted).await?;
        if wanted.size_bytes.is_some() {
            inode.resized(attrs.attr.size_bytes);
        } else if inode.kind == FileKind::Regular {
            inode.set_attributes();
        }
        drop(modifying);
        inode.touch(&self.session.inodes.clock);
        let seen = inode.observe(&attrs, self.asked(), true);
        // The kernel takes this length in any case.
        inode.has_length(attrs.attr.size_bytes);
        self.tells(&inode, &attrs);
        if seen.distrusts_names {
            self.session.distrust_names(&inode).await;
        }
        if seen.sooner {
            self.session.watch.hasten(&inode);
        }
        let answer = self.attr_body(&inode, &attrs, asked);
        if no_reads.is_some() || seen.pages_stale {
            // During a truncation the kernel writes back no pages, and dropping dirty pages would
            // wait for this answer.
            self.answer(Ok(&answer.body));
        }
        drop(no_reads);
        if seen.pages_stale && self.session.drop_pages(&inode).await {
            inode.pages_dropped(&attrs.attr, asked);
        }
        Ok(answer)
    }

    /// Fails if the caller may not write to the file. truncate(2) needs that right. So does
    /// O_TRUNC, for which the kernel sends no handle. An open for writing has just proved the
    /// right, unless the owner created the file without it. SETATTR does not need it: servers let
    /// the owner of a file set its length independent of the mode, because servers do not know
    /// descriptors.
    async fn check_truncate(&self, inode: &Inode) -> Result<()> {
        let cred = self.cred();
        let writes =
            |f: &OpenFile| f.inode.id == inode.id && f.access.contains(OpenAccess::WRITE) && f.cred == cred;
        if !inode.forbids_owner_to_write(cred.uid) && self.session.files.any(writes) {
            return Ok(());
        }
        let have = self.session.vfs.access(&self.cx(), &inode.fh(), Access::MODIFY).await?;
        if have.contains(Access::MODIFY) { Ok(()) } else { Err(Error::new(libc::EACCES)) }
    }

    pub(super) async fn access(&self, mask: u32) -> Result<Answer> {
        let inode = self.inode()?;
        let want = rights(mask, inode.kind);
        if !want.is_empty() {
            let have = self.session.vfs.access(&self.cx(), &inode.fh(), want).await?;
            if !have.contains(want) {
                return Err(Error::new(libc::EACCES));
            }
        }
        Ok(Answer::empty())
    }

    /// Sizes of the file system of an object.
    pub(super) async fn statfs(&self, nodeid: u64) -> Result<Answer> {
        let inode = self.inode_of(nodeid)?;
        let (cx, handle) = (self.cx(), inode.fh());
        let call = self.session.vfs.statfs(&cx, &handle);
        // No blocks: the size is unknown, and df(1) skips the file system.
        let unknown = FsStat { name_max_bytes: 255, ..FsStat::default() };
        let s = match nodeid {
            ROOT_ID => patiently(&self.session.last_statfs, Some(unknown), call).await?,
            _ => call.await?,
        };
        let mut o = Out::with_capacity(80);
        for bytes in [s.total_bytes, s.free_bytes, s.avail_bytes] {
            o.u64(bytes / STATFS_BLOCK_BYTES);
        }
        // statvfs(3) has a third count of files, which the kernel computes from these two.
        o.u64(s.total_files).u64(s.avail_files.min(s.free_files));
        o.u32(STATFS_BLOCK_BYTES as u32).u32(s.name_max_bytes).u32(STATFS_BLOCK_BYTES as u32).zeros(28);
        Ok(Answer::bytes(o.into_vec()))
    }
}

/// The outcome of a call for the mount point, or `last` or `fallback` after a timeout.
async fn patiently<T: Clone>(
    last: &Mutex<Option<T>>,
    fallback: Option<T>,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let known = last.lock().clone().or(fallback);
    let result = match known {
        None => call.await,
        Some(known) => match tokio::time::timeout(ROOT_PATIENCE, call).await {
            Ok(result) => result,
            Err(_) => return Ok(known),
        },
    };
    if let Ok(value) = &result {
        *last.lock() = Some(value.clone());
    }
    result
}

/// The rights in the mask of access(2).
fn rights(mask: u32, kind: FileKind) -> Access {
    let mask = mask as i32;
    let mut want = Access::empty();
    if mask & libc::R_OK != 0 {
        want |= Access::READ;
    }
    if mask & libc::W_OK != 0 {
        want |= Access::MODIFY | Access::EXTEND;
    }
    if mask & libc::X_OK != 0 {
        want |= if kind == FileKind::Directory { Access::LOOKUP } else { Access::EXECUTE };
    }
    want
}

/// The attributes that a SETATTR sets.
pub(super) fn wanted(set: &SetattrIn) -> SetAttr {
    let has = |bit: u32| set.valid & bit != 0;
    let time = |given: u32, now: u32, (secs, nanos): (i64, u32)| match (has(given), has(now)) {
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::To(Time { secs, nanos })),
        _ => None,
    };
    SetAttr {
        mode: has(fattr::MODE).then_some(set.mode & 0o7777),
        unmasked: None,
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size_bytes: has(fattr::SIZE).then_some(set.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, set.atime),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, set.mtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    /// Requests for the mount point are answered from the last answer, or a fallback, when the
    /// server does not respond.
    #[tokio::test(start_paused = true)]
    async fn mount_point_answers_without_server() {
        let last = Mutex::new(None);
        let began = Instant::now();
        // Without an earlier answer the fallback is used after the timeout.
        assert_eq!(patiently(&last, Some(1), pending()).await, Ok(1));
        assert_eq!(began.elapsed(), ROOT_PATIENCE);
        assert_eq!(*last.lock(), None, "a fallback is not remembered");
        // An answer is remembered, an error is not.
        assert_eq!(patiently(&last, Some(1), ready(Ok(7))).await, Ok(7));
        assert_eq!(
            patiently(&last, Some(1), ready(Err(Error::new(libc::EIO)))).await,
            Err(Error::new(libc::EIO))
        );
        let late = async {
            tokio::time::sleep(2 * ROOT_PATIENCE).await;
            Ok(8)
        };
        assert_eq!(patiently(&last, Some(1), late).await, Ok(7));
        assert_eq!(began.elapsed(), 2 * ROOT_PATIENCE);
        // Without a fallback the call waits.
        let none = Mutex::new(None);
        let waits = tokio::time::timeout(10 * ROOT_PATIENCE, patiently::<u8>(&none, None, pending())).await;
        assert!(waits.is_err());
    }
}
