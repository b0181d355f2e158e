//! The calls: answered for pending objects, or passed down with the server's handles.

use super::PendingCreates;
use super::Relay;
use super::begin::{Began, Making};
use super::table::{Body, Change, Status, Table};
use crate::pending_writes::patient;
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use std::sync::Arc;

impl PendingCreates {
    /// Adjusts attributes from below for the layers above.
    fn shown(&self, seen: &Fh, mut attrs: Attrs) -> Attrs {
        self.table().show(seen, &mut attrs);
        attrs
    }

    /// Adjusts the reply to a change of names for the layers above.
    fn shown_info(&self, dir: &Fh, info: ChangeInfo) -> ChangeInfo {
        if info.is_told() && info.before == info.after {
            return self.shown_unchanged(dir, info);
        }
        let mut t = self.table();
        t.changed_there(dir, Change::Names, self.clock.now());
        // This change supersedes the delayed times of the directory.
        self.drop_deferred(&mut t, dir);
        drop(t);
        self.shown_unchanged(dir, info)
    }

    /// Adjusts the reply to a call that changed no name.
    fn shown_unchanged(&self, dir: &Fh, mut info: ChangeInfo) -> ChangeInfo {
        info.attrs = info.attrs.map(|attrs| self.shown(dir, attrs));
        info
    }

    fn shown_made(&self, dir: &Fh, mut made: Made) -> Made {
        self.table().show_node(&mut made.node);
        Made { dir: self.shown_info(dir, made.dir), ..made }
    }

    fn began_made(began: Box<Began>) -> Made {
        Made { node: began.node, dir: began.dir }
    }

    async fn open_created(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        how: &OpenHow,
        set: &SetAttr,
    ) -> Result<Opened> {
        let child = self.table().child(dir, name).cloned();
        if let Some(child) = child {
            // The object is pending, perhaps since this moment.
            if matches!(how.create, Create::Exclusive(_)) {
                return Err(Error::new(libc::EEXIST));
            }
            let how = OpenHow { create: Create::No, ..how.clone() };
            return self.open(cx, PathRef::fh(&child), &how).await;
        }
        let may_begin = how.access.contains(OpenAccess::WRITE) && !how.execute;
        let making = if may_begin {
            self.begin(cx, (dir, name), Body::File(Vec::new()), set, Some(how.access)).await
        } else {
            self.at_server(cx, dir).await.map(Making::Below)
        };
        let real = match making {
            Ok(Making::Here(began)) => {
                let Began { node, open, dir } = *began;
                let open = open.ok_or_else(|| Error::new(libc::EIO))?;
                return Ok(Opened { node, open, created: true, dir: Some(dir), first: None, backing: None });
            }
            Ok(Making::Below(real)) => real,
            // The file exists, and the caller accepts an existing file.
            Err(e) if e.errno == libc::EEXIST && !matches!(how.create, Create::Exclusive(_)) => {
                if self.table().child(dir, name).is_some() {
                    return Box::pin(self.open_created(cx, (dir, name), how, set)).await;
                }
                self.at_server(cx, dir).await?
            }
            Err(e) => return Err(e),
        };
        let mut opened = self.below.open(cx, PathRef::name(&real, name), how).await?;
        if opened.created {
            self.learn(cx, &real, &opened.node.attrs).await;
        }
        opened.dir = opened.dir.map(|info| {
            if opened.created { self.shown_info(dir, info) } else { self.shown_unchanged(dir, info) }
        });
        self.table().show_node(&mut opened.node);
        Ok(opened)
    }

    /// Answers for the pending objects, asks the layer below for the others, and merges the
    /// answers.
    async fn each<T, F>(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        here: impl Fn(&Self, &Fh) -> Option<Result<T>>,
        ask: impl FnOnce(Vec<Fh>) -> F,
    ) -> Vec<Result<T>>
    where
        F: Future<Output = Vec<Result<T>>>,
    {
        let (mut known, mut missing) = (Vec::with_capacity(objects.len()), Vec::new());
        for fh in objects {
            known.push(match here(self, fh) {
                Some(answer) => Some(answer),
                None => match self.at_server(cx, fh).await {
                    Ok(real) => {
                        missing.push(real);
                        None
                    }
                    Err(e) => Some(Err(e)),
                },
            });
        }
        let answers = if missing.is_empty() { Vec::new() } else { ask(missing).await };
        let mut answers = answers.into_iter();
        let none = || Err(Error::because(libc::EIO, "fewer answers than questions"));
        known.into_iter().map(|k| k.unwrap_or_else(|| answers.next().unwrap_or_else(none))).collect()
    }
}

#[async_trait]
impl Vfs for PendingCreates {
    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        let mut node = self.below.root(cx).await?;
        self.wal.is_root(&node.fh);
        self.table().show_node(&mut node);
        Ok(node)
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        self.peek_over(cx, at)
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        self.walk_over(cx, at, want).await
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        let real = self.at_server(cx, dir).await?;
        let mut node = self.below.parent(cx, &real).await?;
        self.table().show_node(&mut node);
        Ok(node)
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        if let Some(attrs) = self.attrs_here(file.fh) {
            return Ok(attrs);
        }
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        let attrs = self.below.getattr(cx, File { fh: &fh, open }).await?;
        Ok(self.shown(file.fh, attrs))
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        if let Some(attrs) = self.set_here(cx, (file.fh, file.open), set).await? {
            return Ok(attrs);
        }
        if self.defer_times(cx, file.fh, set).await? {
            let file = File { fh: file.fh, open: None };
            return self.getattr(cx, file).await;
        }
        let sets_times = set.mtime.is_some() || set.atime.is_some();
        if sets_times {
            // A later creation at the server would change the directory's times.
            self.send_all_in(cx, file.fh).await?;
        }
        let what = if sets_times || set.size_bytes.is_some() { Change::Data } else { Change::Attributes };
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.table().changes_there(file.fh, what);
        let attrs = self.below.setattr(cx, File { fh: &fh, open }, set).await?;
        self.table().changed_there(file.fh, what, self.clock.now());
        Ok(self.shown(file.fh, attrs))
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        {
            let t = self.table();
            if let Some(object) = t.here.get(fh).filter(|object| object.is_of(&cx.cred)) {
                return Ok(object.rights() & want);
            }
        }
        let real = self.at_server(cx, fh).await?;
        self.below.access(cx, &real, want).await
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        {
            let t = self.table();
            match t.here.get(fh).map(|object| &object.body) {
                Some(Body::Link(target)) => return Ok(target.clone()),
                Some(_) => return Err(Error::new(libc::EINVAL)),
                None => {}
            }
        }
        let real = self.at_server(cx, fh).await?;
        self.below.readlink(cx, &real).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        if let Create::IfMissing(set) | Create::Exclusive(set) = &how.create {
            let Some((name, before)) = at.path.split_last() else {
                return Err(Error::because(libc::EINVAL, "creating needs a name"));
            };
            let dir = match before {
                [] => at.base.clone(),
                before => {
                    let trail = self
                        .walk(cx, PathRef { base: at.base, path: before }, WalkRequest::default())
                        .await?;
                    match (trail.stop, trail.steps.last()) {
                        (Stop::Complete, Some(node)) => node.fh.clone(),
                        (Stop::Failed(e), _) => return Err(e),
                        (Stop::Missing(_), _) => return Err(Error::new(libc::ENOENT)),
                        _ => return Err(Error::new(libc::ENOTDIR)),
                    }
                }
            };
            return self.open_created(cx, (&dir, name), how, set).await;
        }
        let unused = self.table().is_unused();
        if unused {
            return self.below.open(cx, at, how).await;
        }
        if !at.path.is_empty() {
            // The path may contain pending objects.
            let trail = self.walk(cx, at, WalkRequest::default()).await?;
            match (trail.stop, trail.steps.last()) {
                (Stop::Complete, Some(node)) => return self.open(cx, PathRef::fh(&node.fh), how).await,
                (Stop::Failed(e), _) => return Err(e),
                (Stop::Missing(_), _) => return Err(Error::new(libc::ENOENT)),
                (Stop::NotDirectory, _) => return Err(Error::new(libc::ENOTDIR)),
                _ => {}
            }
            let base = self.at_server(cx, at.base).await?;
            let mut opened = self.below.open(cx, PathRef { base: &base, path: at.path }, how).await?;
            self.table().show_node(&mut opened.node);
            return Ok(opened);
        }
        if let Some((opened, seq)) = self.open_here(cx, at.base, how)? {
            if how.truncate && self.wal.log().written(seq).await.is_err() {
                self.send(at.base).await?;
            }
            return Ok(opened);
        }
        let real = self.at_server(cx, at.base).await?;
        let known = how.known.as_ref().map(|attrs| self.table().as_below(at.base, attrs));
        let how = OpenHow { known, ..how.clone() };
        let mut opened = self.below.open(cx, PathRef::fh(&real), &how).await?;
        self.table().show_node(&mut opened.node);
        Ok(opened)
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        if !Table::is_own(open) {
            let real = self.at_server(cx, fh).await?;
            return self.below.close(cx, &real, open).await;
        }
        if self.close_here(fh, open).await?.is_some() {
            return Ok(());
        }
        // An interrupt or a deadline of the caller does not end this wait.
        let real = match self.send(fh).await {
            Ok(real) => real,
            Err(e) => {
                // The object stays pending after a failed attempt, or was refused.
                let _ = self.close_here(fh, open).await;
                self.table().opens.remove(&open);
                return Err(e);
            }
        };
        let entry = self.table().opens.remove(&open);
        match entry.and_then(|entry| entry.below) {
            Some(Ok(below)) => self.below.close(cx, &real, below).await,
            Some(Err(errno)) => Err(Error::new(errno)),
            None => Ok(()),
        }
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        if let Some(read) = self.read_here(file.fh, file.open, offset_bytes, len_bytes)? {
            return Ok(read);
        }
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.read(cx, File { fh: &fh, open }, offset_bytes, len_bytes).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let at = (file.fh, file.open);
        if let Some(wrote) = self.write_here(cx, at, offset_bytes, &data, stability).await? {
            return Ok(wrote);
        }
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.table().changes_there(file.fh, Change::Data);
        let wrote = self.below.write(cx, File { fh: &fh, open }, offset_bytes, data, stability).await?;
        Ok(Wrote { attrs: wrote.attrs.map(|attrs| self.shown(file.fh, attrs)), ..wrote })
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        finish_in_steps(self, cx, file, piece, set).await
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        if file.open.is_none() && self.getattr(cx, file).await?.attr.kind == FileKind::Directory {
            // This covers all earlier changes of names, in this directory and in others.
            if self.wal.log().durable(self.wal.log().last()).await.is_err() {
                self.sync().await?;
                let dir = self.at_server(cx, file.fh).await?;
                return self.below.commit(cx, File { fh: &dir, open: None }).await;
            }
            return Ok(());
        }
        if !self.durable(file.fh).await? {
            return Ok(());
        }
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.commit(cx, File { fh: &fh, open }).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        create_in_steps(self, cx, (dir, name), set, data).await
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let real = match self.begin(cx, (dir, name), Body::Directory, set, None).await? {
            Making::Here(began) => return Ok(Self::began_made(began)),
            Making::Below(real) => real,
        };
        let made = self.below.mkdir(cx, &real, name, set).await?;
        self.learn(cx, &real, &made.node.attrs).await;
        Ok(self.shown_made(dir, made))
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        if self.table().child(dir, name).is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        let real = self.at_server(cx, dir).await?;
        Ok(self.shown_made(dir, self.below.mknod(cx, &real, name, what, set).await?))
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        let body = Body::Link(Bytes::copy_from_slice(target));
        let set_here = SetAttr { mode: None, ..set.clone() };
        let real = match self.begin(cx, (dir, name), body, &set_here, None).await? {
            Making::Here(began) => return Ok(Self::began_made(began)),
            Making::Below(real) => real,
        };
        Ok(self.shown_made(dir, self.below.symlink(cx, &real, name, target, set).await?))
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        if self.table().child(dir, name).is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        let (real, real_dir) = (self.at_server(cx, fh).await?, self.at_server(cx, dir).await?);
        Ok(self.shown_made(dir, self.below.link(cx, &real, &real_dir, name).await?))
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        if let Some(info) = self.remove_here(cx, (dir, name), false).await? {
            return Ok(info);
        }
        if let Some(info) = self.remove_tried(cx, (dir, name), false).await? {
            return Ok(info);
        }
        let child = self.table().child(dir, name).cloned();
        if let Some(child) = child {
            self.at_server(cx, &child).await?;
        }
        let real = self.at_server(cx, dir).await?;
        let target = match target {
            Some(fh) => Some(self.at_server(cx, fh).await?),
            None => None,
        };
        let info = self.below.unlink(cx, &real, name, target.as_ref()).await?;
        Ok(self.shown_info(dir, info))
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        if let Some(info) = self.remove_here(cx, (dir, name), true).await? {
            return Ok(info);
        }
        if let Some(info) = self.remove_tried(cx, (dir, name), true).await? {
            return Ok(info);
        }
        let trail = self.walk(cx, PathRef::name(dir, name), WalkRequest::default()).await?;
        if let (Stop::Complete, Some(node)) = (&trail.stop, trail.steps.last()) {
            if node.attrs.attr.kind == FileKind::Directory && self.is_filled(&node.fh) {
                return Err(Error::new(libc::ENOTEMPTY));
            }
            self.at_server(cx, &node.fh).await?;
        }
        let real = self.at_server(cx, dir).await?;
        let info = self.below.rmdir(cx, &real, name).await?;
        Ok(self.shown_info(dir, info))
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        if let Some(moved) = self.move_here(cx, from, to, flags).await? {
            return Ok(moved);
        }
        for (dir, name) in [from, to] {
            let child = self.table().child(dir, name).cloned();
            if let Some(child) = child {
                self.at_server(cx, &child).await?;
            }
        }
        // The pending objects are sent, so that the server sees that the directory is not empty.
        if let Some(fh) = replaced {
            self.send_all_in(cx, fh).await?;
        }
        let (real_from, real_to) = (self.at_server(cx, from.0).await?, self.at_server(cx, to.0).await?);
        let replaced = match replaced {
            Some(fh) => Some(self.at_server(cx, fh).await?),
            None => None,
        };
        let (from_real, to_real) = ((&real_from, from.1), (&real_to, to.1));
        let moved = self.below.rename(cx, from_real, to_real, replaced.as_ref(), flags).await?;
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
        let real = self.send_all_in(cx, dir).await?;
        let mut page = self.below.readdir(cx, &real, cookie, verifier, max_bytes, nodes).await?;
        self.table().show_page(&mut page);
        Ok(page)
    }

    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        let real = self.at_server(cx, fh).await?;
        self.below.statfs(cx, &real).await
    }

    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        if self.table().here.contains_key(fh) {
            // A pending object has no extended attributes.
            return Err(Error::new(libc::ENODATA));
        }
        let real = self.at_server(cx, fh).await?;
        self.below.getxattr(cx, &real, name).await
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let real = self.at_server(cx, fh).await?;
        self.table().changes_there(fh, Change::Attributes);
        self.below.setxattr(cx, &real, name, value, mode).await?;
        self.table().changed_there(fh, Change::Attributes, self.clock.now());
        Ok(())
    }

    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>> {
        let real = self.at_server(cx, fh).await?;
        self.below.listxattr(cx, &real).await
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        let real = self.at_server(cx, fh).await?;
        self.table().changes_there(fh, Change::Attributes);
        self.below.removexattr(cx, &real, name).await?;
        self.table().changed_there(fh, Change::Attributes, self.clock.now());
        Ok(())
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
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.lock(cx, File { fh: &fh, open }, owner, kind, range, wait).await
    }

    async fn unlock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()> {
        if self.table().here.contains_key(file.fh) {
            // Only the server has locks.
            return Ok(());
        }
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.unlock(cx, File { fh: &fh, open }, owner, range).await
    }

    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.test_lock(cx, File { fh: &fh, open }, owner, kind, range).await
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.seek(cx, File { fh: &fh, open }, offset_bytes, what).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.allocate(cx, File { fh: &fh, open }, range).await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let (fh, open) = self.down(cx, file.fh, file.open).await?;
        self.below.deallocate(cx, File { fh: &fh, open }, range).await
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
        if self.table().here.contains_key(to.fh) && len_bytes <= self.options.file_max_bytes as u64 {
            // The caller copies the bytes by writes, and they are sent with the file.
            return Err(Error::new(libc::EOPNOTSUPP));
        }
        let (from_fh, from_open) = self.down(cx, from.fh, from.open).await?;
        let (to_fh, to_open) = self.down(cx, to.fh, to.open).await?;
        let from = File { fh: &from_fh, open: from_open };
        let to = File { fh: &to_fh, open: to_open };
        self.below.copy(cx, from, from_offset_bytes, to, to_offset_bytes, len_bytes).await
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        let _ = self.above.set(upcalls);
        self.below.subscribe(Arc::new(Relay(self.this.clone())));
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        // An object that cannot be sent stays in the journal for the next mount.
        let sent = patient(cx, self.sync()).await;
        let below = self.below.shutdown(cx).await;
        sent.and(below)
    }
}

#[async_trait]
impl BatchOps for PendingCreates {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let ask = |real: Vec<Fh>| async move { self.below.getattr_many(cx, &real).await };
        let mut all =
            self.each(cx, objects, |this, fh| this.table().here.get(fh).map(|o| Ok(o.attrs())), ask).await;
        for (fh, attrs) in objects.iter().zip(&mut all) {
            if let Ok(attrs) = attrs {
                self.table().show(fh, attrs);
            }
        }
        all
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let here = |this: &Self, fh: &Fh| {
            let t = this.table();
            let object = t.here.get(fh).filter(|object| object.is_of(&cx.cred))?;
            Some(Ok((object.attrs(), object.rights() & want)))
        };
        let ask = |real: Vec<Fh>| async move { self.below.revalidate_many(cx, &real, want).await };
        let mut all = self.each(cx, objects, here, ask).await;
        for (fh, proof) in objects.iter().zip(&mut all) {
            if let Ok((attrs, _)) = proof {
                self.table().show(fh, attrs);
            }
        }
        all
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let here = |this: &Self, fh: &Fh| {
            let t = this.table();
            let object = t.here.get(fh).filter(|object| object.is_of(&cx.cred))?;
            let Body::File(data) = &object.body else { return None };
            if !object.rights().contains(Access::READ) {
                return None;
            }
            let len = data.len().min(max_bytes as usize);
            let read = Read { data: Bytes::copy_from_slice(&data[..len]).into(), eof: len == data.len() };
            Some(Ok(Fetched { attrs: object.attrs(), read }))
        };
        let below_holder = match holder {
            Some(dir) => match self.table().status(dir) {
                Status::There(real) => Some(real),
                _ => None,
            },
            None => None,
        };
        let mut told = None;
        let ask = |real: Vec<Fh>| {
            let told = &mut told;
            async move {
                let starts = self.below.read_many(cx, &real, below_holder.as_ref(), max_bytes).await;
                *told = starts.holder;
                starts.files
            }
        };
        let mut all = self.each(cx, files, here, ask).await;
        for (fh, fetched) in files.iter().zip(&mut all) {
            if let Ok(fetched) = fetched {
                self.table().show(fh, &mut fetched.attrs);
            }
        }
        let holder = match (holder, told) {
            (Some(dir), Some(attrs)) => Some(self.shown(dir, attrs)),
            _ => None,
        };
        ReadManyResult { files: all, holder }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        for dir in dirs {
            // A failure to send does not fail the listing, which shows the server's names.
            let _ = self.send_all_in(cx, dir).await;
        }
        let ask = |real: Vec<Fh>| async move { self.below.list_many(cx, &real, max_bytes).await };
        let mut all = self.each(cx, dirs, |_, _| None, ask).await;
        for (dir, listed) in dirs.iter().zip(&mut all) {
            if let Ok((attrs, page)) = listed {
                let t = self.table();
                t.show(dir, attrs);
                t.show_page(page);
            }
        }
        all
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        create_many_in_steps(self, cx, dir, new).await
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        remove_many_in_steps(self, cx, dir, gone).await
    }
}
