//! [`Vfs`] of a [`Local`]: each call moves its arguments to a thread of the pool.

use super::io::FileAt;
use super::journaled::named;
use super::journaled::names::{Done, Recorded};
use super::journaled::stock::Kind;
use super::names::{Path, wanted};
use super::new::{Begun, Got};
use super::object::os;
use super::pool::{Answer, Worker};
use super::{Inner, Local};
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::{
    Access, Attrs, BatchOps, ChangeInfo, Create, Creation, Data, DirPage, Error, Extra, Fh, File, FileKind,
    FileRange, FsStat, LockConflict, LockKind, LockOwner, LockWait, Made, Moved, Name, Node, OpenHow, OpenId,
    Opened, PathRef, PosixAcls, Read, ReadManyResult, ReadPiped, Removal, RenameFlags, RequestContext,
    Result, Seek, SetAttr, Special, Stability, Stop, Upcalls, Vfs, WalkRequest, WalkResult, Wrote, XattrMode,
};
use rustix::fd::AsFd;
use std::sync::Arc;

fn owned(file: File<'_>) -> super::io::FileAt {
    (file.fh.clone(), file.open)
}

#[async_trait]
impl Vfs for Local {
    async fn root(&self, _cx: &RequestContext) -> Result<Node> {
        self.inner.node(&self.inner.root)
    }

    fn peek(&self, _cx: &RequestContext, _at: PathRef<'_>) -> Option<WalkResult> {
        None
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        if let Some(trail) = self.inner.walk_known(cx, at, want) {
            return Ok(trail);
        }
        wanted(cx)?;
        let at = Path::from(at);
        self.run(cx, move |inner, worker| {
            let (objects, mut trail) = inner.steps(worker, &at)?;
            let last = at.path.len().checked_sub(1);
            if want.listing_bytes > 0
                && let Some(last) = last.filter(|&last| objects.len() >= last)
            {
                let dir = match last.checked_sub(1) {
                    Some(above) => objects.get(above).cloned(),
                    None => inner.resolve(worker, &at.base).ok(),
                };
                let page = dir.and_then(|dir| inner.page(worker, &dir, 0, want.listing_bytes, true).ok());
                trail.along.listing = page;
            }
            if let (Stop::Complete, Some(object)) = (&trail.stop, objects.last()) {
                if !want.access.is_empty() {
                    trail.along.access = inner.rights(worker, object, want.access).ok();
                }
                if want.read_bytes > 0
                    && object.kind == FileKind::Regular
                    && let Some(node) = trail.steps.last()
                {
                    let first = inner.first(worker, object, want.read_bytes).ok();
                    // The bytes must belong to the attributes of the step. They are dropped when
                    // the file changed meanwhile.
                    let same = inner.attrs(object).is_ok_and(|a| a.attr.change == node.attrs.attr.change);
                    trail.along.first = first.filter(|_| same);
                }
            }
            Ok(trail)
        })
        .await
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        wanted(cx)?;
        let dir = dir.clone();
        self.run(cx, move |inner, worker| inner.parent_of(worker, &dir)).await
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        // The attributes of a held object need no disk, and every caller may read them.
        if let Some(object) = self.inner.find_in_place(file.fh) {
            return self.inner.attrs(&object);
        }
        wanted(cx)?;
        let fh = file.fh.clone();
        self.run(cx, move |inner, worker| {
            let object = inner.resolve(worker, &fh)?;
            inner.attrs(&object)
        })
        .await
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        let ((fh, open), set) = (owned(file), set.clone());
        if set.size_bytes.is_none() {
            return self.change(cx, move |inner, worker| inner.set_others(worker, &fh, &set)).await;
        }
        let object = fh.clone();
        let act = move |inner: &Inner, worker: &mut Worker| inner.setattr(worker, &fh, open, &set);
        self.known(cx, act, move |_| Some(object)).await
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        wanted(cx)?;
        let fh = fh.clone();
        self.run(cx, move |inner, worker| inner.access(worker, &fh, want)).await
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        wanted(cx)?;
        let fh = fh.clone();
        self.run(cx, move |inner, worker| inner.readlink(worker, &fh)).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let (at, how) = (Arc::new(Path::from(at)), how.clone());
        if how.create != Create::No && self.inner.has_stock() {
            let (at, how) = (at.clone(), how.clone());
            let access = how.access;
            match self
                .make(cx, move |inner, worker, waits| inner.begin_open(worker, &at, &how, waits))
                .await?
            {
                Got::Opened(opened) => return Ok(opened),
                Got::Made(Made { node, dir }, object) => {
                    let object = self.inner.objects.open(&object);
                    let open = self.inner.add_open(&object, access);
                    return Ok(Opened {
                        node,
                        open,
                        created: true,
                        dir: Some(dir),
                        first: None,
                        backing: None,
                    });
                }
                Got::Otherwise | Got::Waits => {}
            }
        }
        let made = |opened: &Opened| opened.created.then(|| opened.node.fh.clone());
        self.known(cx, move |inner, worker| inner.open_file(worker, &at, &how), made).await
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        let fh = fh.clone();
        self.run(cx, move |inner, worker| inner.close(worker, &fh, open)).await
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let file = owned(file);
        if let Some(read) = self.inner.read_now(&cx.cred, &file, offset_bytes, len_bytes) {
            return Ok(read);
        }
        wanted(cx)?;
        self.run(cx, move |inner, worker| inner.read(worker, &file, offset_bytes, len_bytes)).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let file = owned(file);
        if stability == Stability::Stable && self.inner.journals(data.len()) {
            return self.write_journaled(cx, file, offset_bytes, data).await;
        }
        self.run(cx, move |inner, worker| inner.write(worker, &file, offset_bytes, &data, stability)).await
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<hither_vfs::Finished> {
        hither_vfs::finish_in_steps(self, cx, file, piece, set).await
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        let file = owned(file);
        self.run(cx, move |inner, worker| inner.commit(worker, &file)).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        hither_vfs::create_in_steps(self, cx, (dir, name), set, data).await
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let (dir, name, set) = (dir.clone(), name.clone(), set.clone());
        if let Some(made) = self.make_in(cx, (&dir, &name), Kind::Directory, &set).await? {
            return Ok(made);
        }
        self.known(cx, move |inner, worker| inner.mkdir(worker, &dir, &name, &set), made).await
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        let (dir, name, what, set) = (dir.clone(), name.clone(), what.clone(), set.clone());
        if what == Special::Regular
            && let Some(made) = self.make_in(cx, (&dir, &name), Kind::File, &set).await?
        {
            return Ok(made);
        }
        self.known(cx, move |inner, worker| inner.mknod(worker, &dir, &name, &what, &set), made).await
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        let (dir, name, target, set) = (dir.clone(), name.clone(), target.clone(), set.clone());
        self.known(cx, move |inner, worker| inner.symlink(worker, &dir, &name, &target, &set), made).await
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let (fh, dir, name) = (fh.clone(), dir.clone(), name.clone());
        self.change(cx, move |inner, worker| inner.link(worker, &fh, &dir, &name)).await
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        _target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let (dir, name) = (dir.clone(), name.clone());
        self.change(cx, move |inner, worker| inner.remove(worker, &dir, &name, false)).await
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let (dir, name) = (dir.clone(), name.clone());
        self.change(cx, move |inner, worker| inner.remove(worker, &dir, &name, true)).await
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        _replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let (from, to) = ((from.0.clone(), from.1.clone()), (to.0.clone(), to.1.clone()));
        self.change(cx, move |inner, worker| inner.rename(worker, (&from.0, &from.1), (&to.0, &to.1), flags))
            .await
    }

    async fn readdir(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        _verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        let known = if nodes { self.inner.page_known(cx, dir, cookie, max_bytes) } else { None };
        if let Some(page) = known {
            return Ok(page);
        }
        wanted(cx)?;
        let dir = dir.clone();
        self.run(cx, move |inner, worker| inner.readdir(worker, &dir, cookie, max_bytes, nodes)).await
    }

    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        wanted(cx)?;
        let fh = fh.clone();
        self.run(cx, move |inner, worker| {
            let object = inner.resolve(worker, &fh)?;
            let fs = rustix::fs::fstatvfs(object.path()).map_err(os)?;
            let blocks = |n: u64| n.saturating_mul(fs.f_frsize);
            Ok(FsStat {
                total_bytes: blocks(fs.f_blocks),
                free_bytes: blocks(fs.f_bfree),
                avail_bytes: blocks(fs.f_bavail),
                total_files: fs.f_files,
                free_files: fs.f_ffree,
                avail_files: fs.f_favail,
                name_max_bytes: fs.f_namemax as u32,
            })
        })
        .await
    }

    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        let (fh, name) = (fh.clone(), name.to_vec());
        self.run(cx, move |inner, worker| inner.getxattr(worker, &fh, &name)).await
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let (fh, name, value) = (fh.clone(), name.to_vec(), value.clone());
        self.run(cx, move |inner, worker| inner.setxattr(worker, &fh, &name, &value, mode)).await
    }

    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>> {
        let fh = fh.clone();
        self.run(cx, move |inner, worker| inner.listxattr(worker, &fh)).await
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        let (fh, name) = (fh.clone(), name.to_vec());
        self.run(cx, move |inner, worker| inner.removexattr(worker, &fh, &name)).await
    }

    async fn lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<Option<Attrs>> {
        self.check_lockable(cx, file).await?;
        self.inner.locks.lock(cx, file.fh, owner, kind, range, wait).await?;
        Ok(None)
    }

    async fn unlock(
        &self,
        _cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()> {
        self.inner.locks.unlock(file.fh, owner, range);
        Ok(())
    }

    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        self.check_lockable(cx, file).await?;
        Ok(self.inner.locks.test(file.fh, owner, kind, range))
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        let file = owned(file);
        self.run(cx, move |inner, worker| inner.seek(worker, &file, offset_bytes, what)).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let file = owned(file);
        self.run(cx, move |inner, worker| inner.space(worker, &file, range, false)).await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let file = owned(file);
        self.run(cx, move |inner, worker| inner.space(worker, &file, range, true)).await
    }

    async fn copy(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let (from, to) = (owned(from), owned(to));
        self.run(cx, move |inner, worker| {
            inner.copy(worker, (&from, from_offset_bytes), (&to, to_offset_bytes), len_bytes)
        })
        .await
    }

    fn subscribe(&self, _upcalls: Arc<dyn Upcalls>) {
        // No answer is valid after its validity, so there is nothing to call back.
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        self.run(cx, |inner, worker| {
            inner.opens.lock().clear();
            let synced = worker.root(|| rustix::fs::syncfs(inner.top.as_fd()).map_err(os));
            synced.inspect_err(|e| inner.disk_failed(e))?;
            match &inner.journal {
                Some(journal) => journal.close().map_err(|e| {
                    Error::because(
                        libc::EIO,
                        format!("the journal keeps its records until the next start: {e}"),
                    )
                }),
                None => Ok(()),
            }
        })
        .await
    }
}

#[async_trait]
impl BatchOps for Local {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let objects = objects.to_vec();
        let count = objects.len();
        let all = self.run(cx, move |inner, worker| {
            let attrs = |fh: &Fh| inner.resolve(worker, fh).and_then(|object| inner.attrs(&object));
            Ok(objects.iter().map(attrs).collect())
        });
        each(all.await, count)
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let objects = objects.to_vec();
        let count = objects.len();
        let all = self.run(cx, move |inner, worker| {
            let mut revalidate = |fh: &Fh| {
                let have = inner.access(worker, fh, want)?;
                Ok((inner.resolve(worker, fh).and_then(|object| inner.attrs(&object))?, have))
            };
            Ok(objects.iter().map(&mut revalidate).collect())
        });
        each(all.await, count)
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let (files, holder) = (files.to_vec(), holder.cloned());
        let count = files.len();
        let all = self.run(cx, move |inner, worker| {
            let files = files.into_iter().map(|fh| inner.start(worker, fh, max_bytes)).collect();
            let holder = holder.and_then(|fh| {
                let holder = inner.resolve(worker, &fh).ok()?;
                inner.attrs(&holder).ok()
            });
            Ok(ReadManyResult { files, holder })
        });
        all.await.unwrap_or_else(|e| ReadManyResult { files: each(Err(e), count), holder: None })
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let dirs = dirs.to_vec();
        let count = dirs.len();
        let all = self.run(cx, move |inner, worker| {
            Ok(dirs.iter().map(|dir| inner.list(worker, dir, max_bytes)).collect())
        });
        each(all.await, count)
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        hither_vfs::create_many_in_steps(self, cx, dir, new).await
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        hither_vfs::remove_many_in_steps(self, cx, dir, gone).await
    }
}

#[async_trait]
impl Extra for Local {
    fn clone_block_bytes(&self) -> Option<u32> {
        self.inner.clone_block_bytes
    }

    async fn clone_range(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let (from, to) = (owned(from), owned(to));
        self.run(cx, move |inner, worker| {
            inner.clone_range(worker, (&from, from_offset_bytes), (&to, to_offset_bytes), len_bytes)
        })
        .await
    }

    fn read_piped(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Option<ReadPiped> {
        self.inner.read_piped(&cx.cred, &owned(file), offset_bytes, len_bytes)
    }

    fn has_acls(&self) -> bool {
        self.inner.has_acls
    }

    async fn acls(&self, cx: &RequestContext, fh: &Fh) -> Result<PosixAcls> {
        let fh = fh.clone();
        self.run(cx, move |inner, worker| inner.acls(worker, &fh)).await
    }

    async fn set_acls(&self, cx: &RequestContext, fh: &Fh, acls: &PosixAcls) -> Result<Attrs> {
        let (fh, acls) = (fh.clone(), acls.clone());
        self.change_synced(cx, move |inner, worker| inner.set_acls(worker, &fh, &acls)).await
    }
}

impl Local {
    /// A stable write through the journal. The thread that applied the write does not wait.
    pub(super) async fn write_journaled(
        &self,
        cx: &RequestContext,
        file: FileAt,
        at: u64,
        data: Data,
    ) -> Result<Wrote> {
        let (inner, call) = (self.inner.clone(), cx.call.clone());
        let job = move |worker: &mut Worker, then: Answer<(Wrote, bool)>| {
            inner.journaled_write(worker, (&file, at, &data), call, then);
        };
        let (wrote, durable) = self.inner.lane.run_then(cx, job).await?;
        if !durable {
            self.run(cx, |inner, worker| inner.stable_all_the_same(worker)).await?;
        }
        Ok(wrote)
    }

    /// A change of names or attributes, with a record if possible.
    async fn change<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        act: impl FnOnce(&Inner, &mut Worker) -> Result<Done<T>> + Send + 'static,
    ) -> Result<T> {
        if !self.inner.has_records() {
            return self.change_synced(cx, act).await;
        }
        let (inner, call) = (self.inner.clone(), cx.call.clone());
        let job = move |worker: &mut Worker, then: Answer<_>| inner.recorded(worker, call, act, then);
        let made = self.inner.changes.run_then(cx, job).await?;
        self.recorded(cx, made).await
    }

    /// Completes a change that the thread for changes began.
    async fn recorded<T: Send + 'static, A>(&self, cx: &RequestContext, made: Recorded<T, A>) -> Result<T>
    where
        A: FnOnce(&Inner, &mut Worker) -> Result<Done<T>> + Send + 'static,
    {
        match made {
            Recorded::Made(result, true) => Ok(result),
            Recorded::Made(result, false) => {
                self.run(cx, |inner, worker| inner.stable_all_the_same(worker)).await?;
                Ok(result)
            }
            Recorded::Not(act) => self.change_synced(cx, act).await,
            Recorded::Unsynced(done, unsynced) => {
                let (inner, call) = (self.inner.clone(), cx.call.clone());
                let job = move |worker: &mut Worker, then: Answer<T>| {
                    inner.sync_done(worker, call, (*done, Some(unsynced)), then);
                };
                self.inner.pool.run_then(cx, job).await
            }
        }
    }

    /// A change without a record.
    async fn change_synced<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        act: impl FnOnce(&Inner, &mut Worker) -> Result<Done<T>> + Send + 'static,
    ) -> Result<T> {
        let (inner, call) = (self.inner.clone(), cx.call.clone());
        let job = move |worker: &mut Worker, then: Answer<T>| inner.unrecorded(worker, call, act, then);
        self.inner.pool.run_then(cx, job).await
    }

    /// Makes a new object with one record, if possible. The last argument of `begin` says whether
    /// it may wait.
    async fn make(
        &self,
        cx: &RequestContext,
        begin: impl Fn(&Inner, &mut Worker, bool) -> Result<Begun> + Send + Sync + 'static,
    ) -> Result<Got> {
        let (inner, call, begin) = (self.inner.clone(), cx.call.clone(), Arc::new(begin));
        let first = begin.clone();
        let job = move |worker: &mut Worker, then: Answer<_>| match first(&inner, worker, false) {
            Ok(Begun::Ready(ready)) => {
                inner.recorded(
                    worker,
                    call,
                    |inner: &Inner, worker: &mut Worker| inner.place(worker, ready),
                    then,
                );
            }
            Ok(Begun::Opened(opened)) => then(Ok(Recorded::Made(Got::Opened(*opened), true))),
            Ok(Begun::Otherwise) => then(Ok(Recorded::Made(Got::Otherwise, true))),
            Ok(Begun::Waits) => then(Ok(Recorded::Made(Got::Waits, true))),
            Err(e) => then(Err(e)),
        };
        let made = self.inner.changes.run_then(cx, job).await?;
        match self.recorded(cx, made).await? {
            Got::Waits => {}
            got => return Ok(got),
        }
        match self.run(cx, move |inner, worker| begin(inner, worker, true)).await? {
            Begun::Ready(ready) => self.change(cx, move |inner, worker| inner.place(worker, ready)).await,
            Begun::Opened(opened) => Ok(Got::Opened(*opened)),
            Begun::Otherwise | Begun::Waits => Ok(Got::Otherwise),
        }
    }

    /// Makes a new file or directory with one record. `None`: it must be made in another way.
    async fn make_in(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        kind: Kind,
        set: &SetAttr,
    ) -> Result<Option<Made>> {
        if !self.inner.has_stock() {
            return Ok(None);
        }
        let (dir, name, set) = (dir.clone(), name.clone(), set.clone());
        let begin = move |inner: &Inner, worker: &mut Worker, waits| {
            inner.begin_in(worker, (&dir, &name), (kind, &set), waits)
        };
        match self.make(cx, begin).await? {
            Got::Made(made, _) => Ok(Some(made)),
            Got::Opened(_) | Got::Otherwise | Got::Waits => Ok(None),
        }
    }

    /// A change that is stable when `act` returns. `which` returns the changed object. A call with
    /// a name is remembered after a restart.
    async fn known<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        act: impl FnOnce(&Inner, &mut Worker) -> Result<T> + Send + 'static,
        which: impl FnOnce(&T) -> Option<Fh> + Send + 'static,
    ) -> Result<T> {
        let (inner, call) = (self.inner.clone(), cx.call.clone());
        let job = move |worker: &mut Worker, then: Answer<T>| {
            worker.call = call.clone();
            match act(&inner, worker) {
                Ok(result) => {
                    let call = which(&result).and_then(|fh| named(call, &fh, 0));
                    inner.answer_known(call, result, then);
                }
                Err(e) => then(Err(e)),
            }
        };
        self.inner.pool.run_then(cx, job).await
    }

    /// Fails unless the object exists: only existing objects can be locked.
    async fn check_lockable(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        if self.inner.objects.find(file.fh).is_some() {
            return Ok(());
        }
        self.getattr(cx, file).await.map(drop)
    }
}

fn made(made: &Made) -> Option<Fh> {
    Some(made.node.fh.clone())
}

/// One answer each. If the whole job failed, each answer is its error.
fn each<T>(all: Result<Vec<Result<T>>>, count: usize) -> Vec<Result<T>> {
    match all {
        Ok(all) => all,
        Err(e) => (0..count).map(|_| Err(e.clone())).collect(),
    }
}
