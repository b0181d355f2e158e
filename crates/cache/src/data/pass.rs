//! The calls of [`Vfs`], each sent below. The cache learns versions from returned attributes, and
//! changes drop the cached blocks of a file.

use super::DataCache;
use super::live::{Start, Ticket};
use super::opens::{Ahead, Open};
use super::stats::add;
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::{
    Access, Attrs, Backing, BatchOps, ChangeInfo, Create, Data, DirPage, Error, Fh, File, FileRange,
    Finished, LockConflict, LockKind, LockOwner, LockWait, Made, Moved, Name, Node, OpenAccess, OpenHow,
    OpenId, Opened, PathRef, Read, ReadManyResult, Removal, RenameFlags, RequestContext, Result, Seek,
    SetAttr, Stability, Stop, Upcalls, Vfs, WalkRequest, WalkResult, Wrote, XattrMode,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{OnceCell, RwLock};
use tokio::time::Instant;

/// How long an orderly shutdown waits for queued blocks.
const DRAIN: Duration = Duration::from_secs(5);

impl DataCache {
    /// The same file for the layer below; a virtual open becomes real.
    async fn down<'a>(&self, file: File<'a>) -> Result<File<'a>> {
        let open = match file.open {
            Some(id) => Some(self.real(&*self.opens.find(id)?).await?),
            None => None,
        };
        Ok(File { fh: file.fh, open })
    }

    /// The same for calls that work without an open.
    fn down_if_any<'a>(&self, file: File<'a>) -> Result<File<'a>> {
        let open = match file.open {
            Some(id) => self.opens.find(id)?.real.get().copied(),
            None => None,
        };
        Ok(File { fh: file.fh, open })
    }

    /// Called before a right or the last name of a file is removed: makes its virtual opens real.
    async fn secure(&self, fh: &Fh) {
        let Some(live) = self.used(fh) else { return };
        let ids = live.virtuals.lock().clone();
        for id in ids {
            if let Ok(open) = self.opens.find(id)
                && let Err(e) = self.real(&open).await
            {
                tracing::debug!(?fh, "a virtual open could not be opened below: {e}");
            }
        }
    }

    fn learn_nodes<'a>(&self, nodes: impl IntoIterator<Item = &'a Node>, ticket: Ticket) {
        for node in nodes {
            self.learn(&node.fh, &node.attrs, ticket);
        }
    }

    fn learn_page(&self, page: &DirPage, ticket: Ticket) {
        self.learn_nodes(page.entries.iter().filter_map(|e| e.node.as_ref()), ticket);
    }

    /// A write of these bytes and nothing else.
    async fn write_range<T>(
        &self,
        fh: &Fh,
        written: FileRange,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.needs_link();
        self.before_write(fh).await;
        let changing = self.writing(fh, written);
        let outcome = call.await;
        changing.done(&outcome);
        outcome
    }

    /// A change of a file's bytes.
    async fn change<T>(&self, fh: &Fh, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.needs_link();
        let changing = self.changing(fh);
        let outcome = call.await;
        changing.done(&outcome);
        outcome
    }

    /// Stores the first bytes that came with the attributes of a file.
    fn keep_along(&self, fh: &Fh, attrs: &Attrs, read: &Read, ticket: Ticket) {
        let _using = self.using(fh);
        if let Some(held) = self.learn(fh, attrs, ticket)
            && held.version.change == attrs.attr.change
            && held.version.size == attrs.attr.size_bytes
        {
            self.keep_first(&held, &read.data);
        }
    }

    async fn starts_below(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let ticket = self.ticket();
        let answers = self.below.read_many(cx, files, holder, max_bytes).await;
        for (fh, answer) in files.iter().zip(&answers.files) {
            if let Ok(fetched) = answer {
                self.keep_along(fh, &fetched.attrs, &fetched.read, ticket);
            }
        }
        answers
    }

    /// The first bytes of cached files. The request below asks for no bytes. It returns each
    /// version, proves the caller's right to read, and may bring a lease. The bytes come from the
    /// cache if the version is unchanged.
    async fn starts_here(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let ticket = self.ticket();
        let mut answers = self.below.read_many(cx, files, holder, 0).await;
        for (fh, answer) in files.iter().zip(&mut answers.files) {
            let Ok(fetched) = answer else { continue };
            let _using = self.using(fh);
            let Some(held) = self.learn(fh, &fetched.attrs, ticket) else { continue };
            if let Some(read) = self.first_here(&held, &fetched.attrs, max_bytes).await {
                fetched.read = read;
            }
        }
        answers
    }

    async fn walk_on(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        // Cached bytes are not requested again: the attributes show whether they are valid.
        let spare = at.path.is_empty()
            && want.read_bytes > 0
            && want.access.intersects(Access::READ | Access::EXECUTE)
            && self.is_on_disk(at.base);
        let below = if spare { WalkRequest { read_bytes: 0, ..want } } else { want };
        let using = spare.then(|| self.using(at.base));
        let ticket = self.ticket();
        let mut trail = self.below.walk(cx, at, below).await?;
        self.learn_nodes(&trail.steps, ticket);
        if let Some(page) = &trail.along.listing {
            self.learn_page(page, ticket);
        }
        let (Stop::Complete, Some(node)) = (&trail.stop, trail.steps.last()) else { return Ok(trail) };
        if let Some(first) = &trail.along.first {
            self.keep_along(&node.fh, &node.attrs, first, ticket);
        } else if let Some(using) = using
            && trail
                .along
                .access
                .is_some_and(|have| have.contains(want.access & (Access::READ | Access::EXECUTE)))
            && let Some((held, _)) = using.held(cx, ticket.at())
        {
            trail.along.first = self.first_here(&held, &node.attrs, want.read_bytes).await;
        }
        Ok(trail)
    }

    fn add_open(
        &self,
        cx: &RequestContext,
        how: &OpenHow,
        fh: &Fh,
        real: Option<OpenId>,
    ) -> (OpenId, Arc<super::live::Live>) {
        let using = self.using(fh);
        let live = using.arc().clone();
        let is_virtual = real.is_none();
        let id = self.opens.add(Open {
            fh: fh.clone(),
            cred: cx.cred.clone(),
            execute: how.execute,
            reads: how.access.contains(OpenAccess::READ),
            writes: how.access.contains(OpenAccess::WRITE),
            real: real.map_or_else(OnceCell::new, |real| OnceCell::new_with(Some(real))),
            busy: Arc::new(RwLock::new(())),
            closed: false.into(),
            taken_bytes: 0.into(),
            ahead: Ahead::default().into(),
            live: live.clone(),
            _using: using,
        });
        if is_virtual {
            live.virtuals.lock().push(id);
        }
        (id, live)
    }

    /// An open without a request below.
    async fn open_virtual(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        how: &OpenHow,
        known: &Attrs,
    ) -> Option<Opened> {
        if !self.is_on_disk(fh) {
            return None;
        }
        let using = self.using(fh);
        let held = self.learn_known(fh, &using, known)?;
        held.look(self).await;
        let entry = held.entry().filter(|e| e.is_complete() && !held.is_dead())?;
        let first = match how.first_bytes {
            0 => None,
            most => Some(self.first_here(&held, known, most).await?),
        };
        add(&self.counters.virtual_opens, 1);
        let (open, _) = self.add_open(cx, how, fh, None);
        let node = Node { fh: fh.clone(), attrs: known.clone() };
        let backing = entry.backing().map(Backing);
        Some(Opened { node, open, created: false, dir: None, first, backing })
    }

    async fn open_file(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let reads_only = how.access == OpenAccess::READ && !how.truncate && how.create == Create::No;
        let by_handle = at.path.is_empty();
        if let Some(known) = how.known.as_ref().filter(|_| reads_only && by_handle)
            && let Some(opened) = self.open_virtual(cx, at.base, how, known).await
        {
            return Ok(opened);
        }
        let mut below = OpenHow { known: None, ..how.clone() };
        let using = by_handle.then(|| self.using(at.base));
        let mut start = Start::Alone;
        if let Some(live) = using.as_ref().filter(|_| reads_only && below.first_bytes > 0) {
            start = self.begin_start(at.base, live, how.known.as_ref());
            if matches!(start, Start::Elsewhere) {
                below.first_bytes = 0;
            }
        }
        let cut = (how.truncate && by_handle).then(|| self.changing(at.base));
        let mut ticket = self.ticket();
        let outcome = self.below.open(cx, at, &below).await;
        if let Some(cut) = cut {
            cut.done(&outcome);
            // The attributes were taken after the truncation.
            ticket = self.ticket();
        }
        let mut opened = outcome?;
        let fh = opened.node.fh.clone();
        if how.truncate && !by_handle {
            self.changing(&fh).done(&Ok(()));
            ticket = self.ticket();
        }
        let (open, live) = self.add_open(cx, how, &fh, Some(opened.open));
        opened.open = open;
        if let Some(first) = &opened.first {
            self.keep_along(&fh, &opened.node.attrs, first, ticket);
        }
        drop(start);
        let held = self.learn(&fh, &opened.node.attrs, ticket);
        if let Some(held) = held.filter(|_| reads_only && self.is_on_disk(&fh)) {
            if opened.first.is_none() && how.first_bytes > 0 {
                opened.first = self.first_here(&held, &opened.node.attrs, how.first_bytes).await;
            }
            held.look(self).await;
            let entry = held.entry().filter(|e| {
                let v = e.version;
                !e.is_dead()
                    && v.change == opened.node.attrs.attr.change
                    && v.size == opened.node.attrs.attr.size_bytes
            });
            opened.backing = entry.and_then(|e| e.backing()).map(Backing);
        }
        drop(live);
        Ok(opened)
    }

    async fn close_file(&self, cx: &RequestContext, fh: &Fh, id: OpenId) -> Result<()> {
        let open = self.opens.take(id)?;
        self.consider(&open);
        open.live.virtuals.lock().retain(|v| *v != id);
        // Calls ahead of the reader end before the open that they use.
        open.closed.store(true, Ordering::Release);
        if let Ok(_alone) = open.busy.clone().try_write_owned() {
            return self.close_real(cx, fh, &open).await;
        }
        if open.writes {
            let _alone = open.busy.write().await;
            return self.close_real(cx, fh, &open).await;
        }
        // No caller waits for the close of a file that was only read: it reports nothing.
        let (disk, cx) = (self.me.upgrade(), RequestContext::new(cx.cred.clone()));
        tokio::spawn(async move {
            let _alone = open.busy.write().await;
            if let Some(disk) = disk
                && let Err(e) = disk.close_real(&cx, &open.fh, &open).await
            {
                tracing::debug!(fh = ?open.fh, "a file that was read could not be closed: {e}");
            }
        });
        Ok(())
    }

    async fn close_real(&self, cx: &RequestContext, fh: &Fh, open: &Open) -> Result<()> {
        match open.real.get() {
            Some(real) => self.below.close(cx, fh, *real).await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Vfs for DataCache {
    hither_vfs::delegate!(self.below;
        root, peek, parent, access, readlink, create_whole, mkdir, mknod, symlink, rmdir, statfs,
        getxattr, listxattr,
    );

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        self.walk_on(cx, at, want).await
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        let below = self.down_if_any(file)?;
        let ticket = self.ticket();
        let attrs = self.below.getattr(cx, below).await?;
        self.learn(file.fh, &attrs, ticket);
        Ok(attrs)
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.secure(file.fh).await;
        }
        let below = self.down_if_any(file)?;
        if set.size_bytes.is_some() {
            return self.change(file.fh, self.below.setattr(cx, below, set)).await;
        }
        let ticket = self.ticket();
        let attrs = self.below.setattr(cx, below, set).await?;
        self.learn(file.fh, &attrs, ticket);
        Ok(attrs)
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        self.open_file(cx, at, how).await
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        self.close_file(cx, fh, open).await
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        self.read_file(cx, file, offset_bytes, len_bytes).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let below = self.down(file).await?;
        let end_bytes = offset_bytes.saturating_add(data.len() as u64);
        let written = FileRange { start_bytes: offset_bytes, end_bytes };
        let call = self.below.write(cx, below, offset_bytes, data, stability);
        self.write_range(file.fh, written, call).await
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.secure(file.fh).await;
        }
        let below = self.down(file).await?;
        self.change(file.fh, self.below.finish(cx, below, piece, set)).await
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        self.below.commit(cx, self.down_if_any(file)?).await
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let ticket = self.ticket();
        let made = self.below.link(cx, fh, dir, name).await?;
        self.learn(&made.node.fh, &made.node.attrs, ticket);
        Ok(made)
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        if let Some(fh) = target {
            self.secure(fh).await;
        }
        self.below.unlink(cx, dir, name, target).await
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        if let Some(fh) = replaced {
            self.secure(fh).await;
        }
        self.below.rename(cx, from, to, replaced, flags).await
    }

    async fn readdir(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        let ticket = self.ticket();
        let page = self.below.readdir(cx, dir, cookie, verifier, max_bytes, nodes).await?;
        self.learn_page(&page, ticket);
        Ok(page)
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        // The attribute may be an access control list.
        self.secure(fh).await;
        self.below.setxattr(cx, fh, name, value, mode).await
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        self.secure(fh).await;
        self.below.removexattr(cx, fh, name).await
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
        let ticket = self.ticket_quietly();
        let attrs = self.below.lock(cx, self.down(file).await?, owner, kind, range, wait).await?;
        // The new holder of a lock must see the data of the previous holder.
        if let Some(live) = self.used(file.fh) {
            live.doubt();
            if let Some(attrs) = &attrs {
                // These attributes are of the time after the lock was granted, unlike those of
                // other requests up to now.
                let attrs = Attrs { asked: Instant::now(), ..attrs.clone() };
                self.learn_live(file.fh, &live, &attrs, ticket);
            }
        }
        Ok(attrs)
    }

    async fn unlock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()> {
        let below = self.down_if_any(file)?;
        if file.open.is_some() && below.open.is_none() {
            return Ok(());
        }
        self.below.unlock(cx, below, owner, range).await
    }

    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        self.below.test_lock(cx, self.down(file).await?, owner, kind, range).await
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        self.below.seek(cx, self.down(file).await?, offset_bytes, what).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let below = self.down(file).await?;
        self.change(file.fh, self.below.allocate(cx, below, range)).await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let below = self.down(file).await?;
        self.change(file.fh, self.below.deallocate(cx, below, range)).await
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
        let (source, sink) = (self.down(from).await?, self.down(to).await?);
        let call = self.below.copy(cx, source, from_offset_bytes, sink, to_offset_bytes, len_bytes);
        self.change(to.fh, call).await
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        // A second subscriber would be a mistake of the caller; it is ignored.
        let _ = self.above.set(upcalls);
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        self.own_ends(None);
        self.drain(DRAIN).await;
        self.ended.store(true, Ordering::Release);
        if let Some(shelf) = self.shelf() {
            let _ = self.blocking(move || shelf.save()).await;
        }
        // Another daemon may take the directory at once.
        *self.shelf.write() = None;
        *self.lock.lock() = None;
        self.below.shutdown(cx).await
    }
}

#[async_trait]
impl BatchOps for DataCache {
    hither_vfs::delegate!(self.below; create_many);

    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let ticket = self.ticket();
        let answers = self.below.getattr_many(cx, objects).await;
        for (fh, answer) in objects.iter().zip(&answers) {
            if let Ok(attrs) = answer {
                self.learn(fh, attrs, ticket);
            }
        }
        answers
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let ticket = self.ticket();
        let answers = self.below.revalidate_many(cx, objects, want).await;
        for (fh, answer) in objects.iter().zip(&answers) {
            if let Ok((attrs, _)) = answer {
                self.learn(fh, attrs, ticket);
            }
        }
        answers
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        if max_bytes == 0 {
            return self.starts_below(cx, files, holder, 0).await;
        }
        let is_here: Vec<bool> = files.iter().map(|fh| self.is_on_disk(fh)).collect();
        let pick = |here: bool| files.iter().zip(&is_here).filter(move |(_, is)| **is == here);
        let here: Vec<Fh> = pick(true).map(|(fh, _)| fh.clone()).collect();
        let absent: Vec<Fh> = pick(false).map(|(fh, _)| fh.clone()).collect();
        if here.is_empty() {
            return self.starts_below(cx, files, holder, max_bytes).await;
        }
        if absent.is_empty() {
            return self.starts_here(cx, files, holder, max_bytes).await;
        }
        let mut known = self.starts_here(cx, &here, None, max_bytes).await.files.into_iter();
        let ReadManyResult { files: new, holder } = self.starts_below(cx, &absent, holder, max_bytes).await;
        let mut new = new.into_iter();
        let lost = || Err(Error::because(libc::EIO, "fewer answers than requested files"));
        let all = is_here.iter().map(|here| if *here { known.next() } else { new.next() });
        ReadManyResult { files: all.map(|one| one.unwrap_or_else(lost)).collect(), holder }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let ticket = self.ticket();
        let answers = self.below.list_many(cx, dirs, max_bytes).await;
        answers.iter().flatten().for_each(|(_, page)| self.learn_page(page, ticket));
        answers
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        for fh in gone.iter().filter(|one| !one.is_dir).filter_map(|one| one.target.as_ref()) {
            self.secure(fh).await;
        }
        self.below.remove_many(cx, dir, gone).await
    }
}
