//! The calls of the layer. Most are passed to the layer below.

use super::PendingRemoves;
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use std::sync::Arc;

/// The most repetitions of a walk. The last result is used as it is.
const TRIES: u32 = 16;

impl PendingRemoves {
    pub(super) fn shown(&self, fh: &Fh, mut attrs: Attrs) -> Attrs {
        self.table().show(fh, &mut attrs);
        attrs
    }

    /// Adjusts the reply to a change of names for the layers above.
    fn shown_info(&self, dir: &Fh, info: ChangeInfo) -> ChangeInfo {
        if info.is_told() && info.before == info.after {
            return self.shown_unchanged(dir, info);
        }
        if let Some(attrs) = &info.attrs {
            self.clock.heard(attrs.attr.ctime, attrs.asked);
        }
        self.table().names_changed(dir, self.clock.now());
        self.shown_unchanged(dir, info)
    }

    /// Adjusts the reply to a call that changed no name.
    fn shown_unchanged(&self, dir: &Fh, mut info: ChangeInfo) -> ChangeInfo {
        info.attrs = info.attrs.map(|attrs| self.shown(dir, attrs));
        info
    }

    /// The object of a name, if any removal is delayed. `None` otherwise.
    async fn found(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<Option<Fh>> {
        let none = self.table().count() == 0;
        if none {
            return Ok(None);
        }
        let trail = self.walk(cx, PathRef::name(dir, name), WalkRequest::default()).await?;
        Ok(trail.steps.into_iter().next().map(|node| node.fh))
    }

    /// Waits until the name to be created is free. Fails with `ENOENT` when a removed name is to be
    /// opened.
    async fn free(&self, cx: &RequestContext, at: PathRef<'_>, creates: bool) -> Result<()> {
        match at.path {
            [] => Ok(()),
            [name] if creates => self.settled(cx, at.base, name).await,
            [name] if self.table().get(at.base, name).is_some() => Err(Error::new(libc::ENOENT)),
            [_] => Ok(()),
            _ if self.table().count() == 0 => Ok(()),
            _ => crate::pending_writes::patient(cx, self.sync()).await,
        }
    }
}

#[async_trait]
impl Vfs for PendingRemoves {
    hither_vfs::delegate!(self.below;
        access, readlink, read, write, finish, statfs, getxattr, listxattr,
        lock, unlock, test_lock, seek, allocate, deallocate, copy,
    );

    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        let mut node = self.below.root(cx).await?;
        self.table().show(&node.fh, &mut node.attrs);
        Ok(node)
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let since = self.table().generation();
        let trail = self.below.peek(cx, at)?;
        let t = self.table();
        (!t.is_late(since, at, &trail)).then(|| t.put_over(at, trail))
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let mut tries = 0;
        loop {
            let since = self.table().generation();
            let trail = self.below.walk(cx, at, want).await?;
            let t = self.table();
            tries += 1;
            if tries == TRIES || !t.is_late(since, at, &trail) {
                return Ok(t.put_over(at, trail));
            }
        }
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        let mut node = self.below.parent(cx, dir).await?;
        self.table().show(&node.fh, &mut node.attrs);
        Ok(node)
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        Ok(self.shown(file.fh, self.below.getattr(cx, file).await?))
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        // A later removal would change the directory's times.
        self.settled_in(cx, file.fh).await?;
        let sets_times = set.mtime.is_some() || set.atime.is_some();
        self.table().attributes_change(file.fh, sets_times);
        let attrs = self.below.setattr(cx, file, set).await?;
        self.table().attributes_change(file.fh, sets_times);
        Ok(self.shown(file.fh, attrs))
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        self.settled_in(cx, fh).await?;
        self.table().attributes_change(fh, false);
        self.below.setxattr(cx, fh, name, value, mode).await?;
        self.table().attributes_change(fh, false);
        Ok(())
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        self.settled_in(cx, fh).await?;
        self.table().attributes_change(fh, false);
        self.below.removexattr(cx, fh, name).await?;
        self.table().attributes_change(fh, false);
        Ok(())
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        self.free(cx, at, !matches!(how.create, Create::No)).await?;
        // The open is counted before the call, so that the file is not removed meanwhile.
        let known = at.path.is_empty().then(|| at.base.clone());
        if let Some(fh) = &known {
            self.table().opened(fh)?;
        }
        match self.below.open(cx, at, how).await {
            Ok(mut opened) => {
                let fh = &opened.node.fh;
                let counted = known.map_or_else(|| self.table().opened(fh), |_| Ok(()));
                if let Err(removed) = counted {
                    let _ = self.below.close(cx, fh, opened.open).await;
                    return Err(removed);
                }
                if let [_] = at.path {
                    opened.dir = opened.dir.map(|info| {
                        if opened.created {
                            self.shown_info(at.base, info)
                        } else {
                            self.shown_unchanged(at.base, info)
                        }
                    });
                }
                Ok(opened)
            }
            Err(e) => {
                if let Some(fh) = &known {
                    self.table().closed(fh);
                }
                Err(e)
            }
        }
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        let closed = self.below.close(cx, fh, open).await;
        self.table().closed(fh);
        closed
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        if file.open.is_none() && self.below.getattr(cx, file).await?.attr.kind == FileKind::Directory {
            // The server's reply to a removal means that the change is on stable storage.
            return crate::pending_writes::patient(cx, self.sync()).await;
        }
        self.below.commit(cx, file).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        self.settled(cx, dir, name).await?;
        let made = self.below.create_whole(cx, dir, name, set, data).await?;
        Ok(Made { dir: self.shown_info(dir, made.dir), ..made })
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        self.settled(cx, dir, name).await?;
        let made = self.below.mkdir(cx, dir, name, set).await?;
        Ok(Made { dir: self.shown_info(dir, made.dir), ..made })
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        self.settled(cx, dir, name).await?;
        let made = self.below.mknod(cx, dir, name, what, set).await?;
        Ok(Made { dir: self.shown_info(dir, made.dir), ..made })
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        self.settled(cx, dir, name).await?;
        let made = self.below.symlink(cx, dir, name, target, set).await?;
        Ok(Made { dir: self.shown_info(dir, made.dir), ..made })
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        self.settled(cx, dir, name).await?;
        let made = self.below.link(cx, fh, dir, name).await?;
        Ok(Made { dir: self.shown_info(dir, made.dir), ..made })
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        if let Some(info) = self.remove_here(cx, (dir, name), target, false).await? {
            return Ok(info);
        }
        if let Some(target) = target {
            self.table().loses_name(target);
        }
        Ok(self.shown_info(dir, self.below.unlink(cx, dir, name, target).await?))
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        if let Some(info) = self.remove_here(cx, (dir, name), None, true).await? {
            return Ok(info);
        }
        if let Some(fh) = self.found(cx, dir, name).await? {
            self.settled_in(cx, &fh).await?;
        }
        Ok(self.shown_info(dir, self.below.rmdir(cx, dir, name).await?))
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        if self.table().get(from.0, from.1).is_some() {
            return Err(Error::new(libc::ENOENT));
        }
        self.settled(cx, to.0, to.1).await?;
        // A directory with delayed removals may be empty only after these.
        let over = match replaced {
            Some(fh) => Some(fh.clone()),
            None => self.found(cx, to.0, to.1).await?,
        };
        if let Some(fh) = over {
            self.table().loses_name(&fh);
            self.settled_in(cx, &fh).await?;
        }
        let moved = self.below.rename(cx, from, to, replaced, flags).await?;
        let (a, b) = (self.shown_info(from.0, moved.from), self.shown_info(to.0, moved.to));
        Ok(Moved { from: a, to: b, ..moved })
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
        self.settled_in(cx, dir).await?;
        self.below.readdir(cx, dir, cookie, verifier, max_bytes, nodes).await
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        let _ = self.above.set(upcalls.clone());
        self.below.subscribe(upcalls);
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        // A removal that fails stays in the journal for the next mount.
        let removed = crate::pending_writes::patient(cx, self.sync()).await;
        let below = self.below.shutdown(cx).await;
        removed.and(below)
    }
}

#[async_trait]
impl BatchOps for PendingRemoves {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let all = self.below.getattr_many(cx, objects).await;
        objects.iter().zip(all).map(|(fh, attrs)| attrs.map(|attrs| self.shown(fh, attrs))).collect()
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let all = self.below.revalidate_many(cx, objects, want).await;
        let shown = |fh, (attrs, access)| (self.shown(fh, attrs), access);
        objects.iter().zip(all).map(|(fh, proof)| proof.map(|proof| shown(fh, proof))).collect()
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let starts = self.below.read_many(cx, files, holder, max_bytes).await;
        let told = match (holder, starts.holder) {
            (Some(dir), Some(attrs)) => Some(self.shown(dir, attrs)),
            (_, told) => told,
        };
        ReadManyResult { holder: told, ..starts }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        for dir in dirs {
            // A failed removal does not fail the listing, which shows the server's names.
            let _ = self.settled_in(cx, dir).await;
        }
        self.below.list_many(cx, dirs, max_bytes).await
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        for one in new {
            if let Err(e) = self.settled(cx, dir, &one.name).await {
                return new.iter().map(|_| Err(e.clone())).collect();
            }
        }
        let made = self.below.create_many(cx, dir, new).await;
        let shown = |made: Made| Made { dir: self.shown_info(dir, made.dir), ..made };
        made.into_iter().map(|made| made.map(shown)).collect()
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        remove_many_in_steps(self, cx, dir, gone).await
    }
}
