//! The layer below all stacks, as each stack sees it: the validity of its answers, and the changes
//! through other stacks.

use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Validity of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As the layer below states.
    Told,
    /// For a time after the request, or until the lease ends.
    For {
        /// Validity of attributes and names.
        most: Duration,
        /// Validity of an absent name.
        absent: Duration,
    },
    /// For a time after the request, even if a lease ends.
    Frozen {
        /// Validity of attributes and names.
        most: Duration,
        /// Validity of an absent name.
        absent: Duration,
    },
    /// For the requesting call only, or until the lease ends.
    Once,
}

/// The layer below all stacks, which they share.
pub struct Trunk {
    below: Arc<dyn Vfs>,
    hearers: RwLock<Vec<Heard>>,
    branches: AtomicUsize,
}

/// A branch and the receiver of its upcalls.
#[derive(Clone)]
struct Heard {
    number: usize,
    frozen: bool,
    hearer: Arc<dyn Upcalls>,
}

/// The lower layer for one stack.
pub struct Branch {
    trunk: Arc<Trunk>,
    number: usize,
    keep: Keep,
}

/// Waits for all futures.
pub(super) fn all(them: Vec<BoxFuture<()>>) -> BoxFuture<()> {
    Box::pin(async move {
        for one in them {
            one.await;
        }
    })
}

impl Trunk {
    /// A trunk over `below`. It receives the upcalls of `below`.
    pub fn new(below: Arc<dyn Vfs>) -> Arc<Self> {
        let trunk = Arc::new(Self { below, hearers: RwLock::default(), branches: AtomicUsize::new(0) });
        trunk.below.subscribe(Arc::new(Hearer(Arc::downgrade(&trunk))));
        trunk
    }

    /// Adds a branch.
    pub fn branch(self: &Arc<Self>, keep: Keep) -> Arc<Branch> {
        let number = self.branches.fetch_add(1, Ordering::AcqRel);
        Arc::new(Branch { trunk: self.clone(), number, keep })
    }

    fn hearers(&self) -> Vec<Heard> {
        self.hearers.read().clone()
    }
}

/// Receives the upcalls of the layer below and does not keep that layer alive.
struct Hearer(std::sync::Weak<Trunk>);

impl Hearer {
    fn tell(&self, what: impl Fn(&Heard) -> BoxFuture<()>) -> BoxFuture<()> {
        let Some(trunk) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        all(trunk.hearers().iter().map(what).collect())
    }
}

impl Upcalls for Hearer {
    /// A frozen branch keeps its answers. It sends its delayed data before the lease is returned.
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        self.tell(|heard| if heard.frozen { heard.hearer.flush(fh) } else { heard.hearer.revoke(fh) })
    }

    fn withdraw_unused(&self, fh: &Fh) -> BoxFuture<()> {
        self.tell(|heard| {
            if heard.frozen {
                return heard.hearer.flush_unused(fh);
            }
            heard.hearer.withdraw_unused(fh)
        })
    }

    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        self.tell(|heard| {
            if heard.frozen {
                return Box::pin(std::future::ready(()));
            }
            heard.hearer.expire(files)
        })
    }

    fn flush(&self, fh: &Fh) -> BoxFuture<()> {
        self.tell(|heard| heard.hearer.flush(fh))
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        self.0.upgrade()?.hearers().iter().find_map(|heard| heard.hearer.path(fh))
    }

    fn unsent(&self, fh: &Fh) -> Unsent {
        let Some(trunk) = self.0.upgrade() else { return Unsent::More };
        let hearers = trunk.hearers();
        hearers.iter().fold(Unsent::Nothing, |sum, heard| sum.and(heard.hearer.unsent(fh)))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        self.tell(|heard| heard.hearer.revoke_all())
    }
}

impl Branch {
    fn below(&self) -> &dyn Vfs {
        &*self.trunk.below
    }

    /// Invalidates an object in the other branches after a call through this branch that may have
    /// changed it. A server does not report a client's own changes to that client.
    fn changed(&self, fh: &Fh) {
        for heard in self.trunk.hearers().iter().filter(|heard| heard.number != self.number) {
            // The caches drop the object at once. The kernel drops its pages later, without a wait.
            drop(heard.hearer.revoke(fh));
        }
    }

    fn attrs(&self, mut attrs: Attrs) -> Attrs {
        attrs.valid = match (attrs.valid, self.keep) {
            (Validity::Until(_), Keep::For { most, .. })
            | (Validity::Until(_) | Validity::Lease, Keep::Frozen { most, .. }) => {
                Validity::Until(attrs.asked + most)
            }
            (Validity::Until(_), Keep::Once) => Validity::Once,
            (told, _) => told,
        };
        attrs
    }

    fn node(&self, node: Node) -> Node {
        Node { attrs: self.attrs(node.attrs), ..node }
    }

    fn info(&self, info: ChangeInfo) -> ChangeInfo {
        ChangeInfo { attrs: info.attrs.map(|attrs| self.attrs(attrs)), ..info }
    }

    fn made(&self, made: Made) -> Made {
        Made { node: self.node(made.node), dir: self.info(made.dir) }
    }

    fn wrote(&self, wrote: Wrote) -> Wrote {
        Wrote { attrs: wrote.attrs.map(|attrs| self.attrs(attrs)), ..wrote }
    }

    fn page(&self, mut page: DirPage) -> DirPage {
        for entry in &mut page.entries {
            entry.node = entry.node.take().map(|node| self.node(node));
        }
        page
    }

    /// Applies the validity of this branch to the result of a walk that began at `asked`.
    fn trail(&self, trail: WalkResult, asked: Instant) -> WalkResult {
        let WalkResult { steps, stop, along } = trail;
        let stop = match (stop, self.keep) {
            (Stop::Missing(Validity::Until(_)), Keep::For { most, absent })
            | (Stop::Missing(Validity::Until(_) | Validity::Lease), Keep::Frozen { most, absent }) => {
                Stop::Missing(Validity::Until(asked + most.min(absent)))
            }
            (Stop::Missing(Validity::Until(_)), Keep::Once) => Stop::Missing(Validity::Once),
            (stop, _) => stop,
        };
        let along = Along {
            listing: along.listing.map(|page| self.page(page)),
            base: along.base.map(|attrs| self.attrs(attrs)),
            ..along
        };
        WalkResult { steps: steps.into_iter().map(|node| self.node(node)).collect(), stop, along }
    }
}

#[async_trait]
impl Vfs for Branch {
    hither_vfs::delegate!(self.trunk.below;
        access, readlink, close, read, commit, statfs, getxattr, listxattr, lock, unlock, test_lock,
        seek,
    );

    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        Ok(self.node(self.below().root(cx).await?))
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let asked = Instant::now();
        Some(self.trail(self.below().peek(cx, at)?, asked))
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let asked = Instant::now();
        Ok(self.trail(self.below().walk(cx, at, want).await?, asked))
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        Ok(self.node(self.below().parent(cx, dir).await?))
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        Ok(self.attrs(self.below().getattr(cx, file).await?))
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        let done = self.below().setattr(cx, file, set).await;
        self.changed(file.fh);
        Ok(self.attrs(done?))
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let opened = self.below().open(cx, at, how).await;
        match &opened {
            Ok(opened) if how.truncate => self.changed(&opened.node.fh),
            Err(_) if how.truncate && at.path.is_empty() => self.changed(at.base),
            _ => {}
        }
        let opened = opened?;
        let dir = opened.dir.map(|dir| self.info(dir));
        Ok(Opened { node: self.node(opened.node), dir, ..opened })
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let done = self.below().write(cx, file, offset_bytes, data, stability).await;
        self.changed(file.fh);
        Ok(self.wrote(done?))
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        let done = self.below().finish(cx, file, piece, set).await;
        self.changed(file.fh);
        let Finished { wrote, set } = done?;
        Ok(Finished { wrote: self.wrote(wrote), set })
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        Ok(self.made(self.below().create_whole(cx, dir, name, set, data).await?))
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        Ok(self.made(self.below().mkdir(cx, dir, name, set).await?))
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        Ok(self.made(self.below().mknod(cx, dir, name, what, set).await?))
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        Ok(self.made(self.below().symlink(cx, dir, name, target, set).await?))
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let made = self.below().link(cx, fh, dir, name).await;
        self.changed(fh);
        Ok(self.made(made?))
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let done = self.below().unlink(cx, dir, name, target).await;
        if let Some(fh) = target {
            self.changed(fh);
        }
        Ok(self.info(done?))
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        Ok(self.info(self.below().rmdir(cx, dir, name).await?))
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let done = self.below().rename(cx, from, to, replaced, flags).await;
        if let Some(fh) = replaced {
            self.changed(fh);
        }
        let Moved { from, to, object, attrs } = done?;
        let attrs = attrs.map(|attrs| self.attrs(attrs));
        Ok(Moved { from: self.info(from), to: self.info(to), object, attrs })
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
        Ok(self.page(self.below().readdir(cx, dir, cookie, verifier, max_bytes, nodes).await?))
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let done = self.below().setxattr(cx, fh, name, value, mode).await;
        self.changed(fh);
        done
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        let done = self.below().removexattr(cx, fh, name).await;
        self.changed(fh);
        done
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let done = self.below().allocate(cx, file, range).await;
        self.changed(file.fh);
        done
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let done = self.below().deallocate(cx, file, range).await;
        self.changed(file.fh);
        done
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
        let done = self.below().copy(cx, from, from_offset_bytes, to, to_offset_bytes, len_bytes).await;
        self.changed(to.fh);
        done
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        let frozen = matches!(self.keep, Keep::Frozen { .. });
        self.trunk.hearers.write().push(Heard { number: self.number, frozen, hearer: upcalls });
    }

    /// The last branch shuts down the trunk.
    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        match self.trunk.branches.fetch_sub(1, Ordering::AcqRel) {
            1 => self.below().shutdown(cx).await,
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl BatchOps for Branch {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let all = self.below().getattr_many(cx, objects).await;
        all.into_iter().map(|one| one.map(|attrs| self.attrs(attrs))).collect()
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let all = self.below().revalidate_many(cx, objects, want).await;
        all.into_iter().map(|one| one.map(|(attrs, have)| (self.attrs(attrs), have))).collect()
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let ReadManyResult { files, holder } = self.below().read_many(cx, files, holder, max_bytes).await;
        let fetched = |one: Fetched| Fetched { attrs: self.attrs(one.attrs), ..one };
        let files = files.into_iter().map(|one| one.map(fetched)).collect();
        ReadManyResult { files, holder: holder.map(|attrs| self.attrs(attrs)) }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let all = self.below().list_many(cx, dirs, max_bytes).await;
        all.into_iter().map(|one| one.map(|(attrs, page)| (self.attrs(attrs), self.page(page)))).collect()
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        let all = self.below().create_many(cx, dir, new).await;
        all.into_iter().map(|one| one.map(|made| self.made(made))).collect()
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        let all = self.below().remove_many(cx, dir, gone).await;
        gone.iter().filter_map(|one| one.target.as_ref()).for_each(|fh| self.changed(fh));
        all.into_iter().map(|one| one.map(|info| self.info(info))).collect()
    }
}
