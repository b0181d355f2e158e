//! The file-system calls. Each call uses the stack of its handle.

use super::{At, Hearer, Subtrees, tagged};
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use smallvec::SmallVec;
use std::sync::Arc;
use tokio::time::Instant;

/// The objects of one stack in a request: their indices and their handles in the stack.
struct Together<'a> {
    at: At<'a>,
    which: Vec<usize>,
    raw: Vec<Fh>,
}

impl Subtrees {
    /// How many names of a path the stack of its base resolves: all names, or the names up to a
    /// possible subtree of another stack. The second value is true in the latter case.
    fn own(&self, at: &At<'_>, path: &[Name]) -> (usize, bool) {
        let mut place = at.place;
        let other = path.iter().position(|name| {
            let child = self.rules.child(place, name);
            let leaves = !self.same_stack(place, child);
            place = child;
            leaves
        });
        (other.map_or(path.len(), |other| other + 1), other.is_some())
    }

    /// Gives this layer's handles to the objects that a stack found on the way from `at`.
    fn show_steps(&self, at: &At<'_>, path: &[Name], trail: &mut WalkResult) {
        let mut place = at.place;
        let dirs = path.len().saturating_sub(1);
        let mut holder = Some(place).filter(|_| dirs == 0);
        for (i, (name, node)) in path.iter().zip(&mut trail.steps).enumerate() {
            place = self.show(place, name, node);
            if i + 1 == dirs {
                holder = Some(place);
            }
        }
        match (path.is_empty(), trail.steps.first_mut()) {
            (true, Some(node)) => node.fh = tagged(at.place, &node.fh),
            _ => {
                trail.along.listing =
                    trail.along.listing.take().and_then(|page| Some(self.page(holder?, page)));
            }
        }
    }

    /// Gives this layer's handles to a directory page of a stack, for a directory at `place`. A
    /// subtree of another stack appears by name only.
    fn page(&self, place: super::SubtreeId, mut page: DirPage) -> DirPage {
        for entry in &mut page.entries {
            let Some(node) = &mut entry.node else { continue };
            let child = self.show(place, &entry.name, node);
            if !self.same_stack(place, child) {
                entry.node = None;
            }
        }
        page
    }

    /// Whether the last step of a trail is a subtree of another stack than the base's.
    fn enters(&self, at: &At<'_>, own: usize, trail: &WalkResult) -> bool {
        let last = trail.steps.last().filter(|_| trail.steps.len() == own && own > 0);
        last.is_some_and(|node| self.at(&node.fh).is_ok_and(|below| !self.same_stack(at.place, below.place)))
    }

    /// Completes a trail to a subtree of another stack: the directory has that stack's attributes.
    /// The first stack decides how long the name is valid.
    fn entered(
        &self,
        mut trail: WalkResult,
        attrs: Attrs,
        named: Validity,
        asked: Instant,
        more: bool,
    ) -> WalkResult {
        if let Some(node) = trail.steps.last_mut() {
            let valid = match (named, attrs.valid) {
                (Validity::Until(a), Validity::Until(b)) => Validity::Until(a.min(b)),
                (Validity::Until(a), Validity::Lease) => Validity::Until(a),
                _ => Validity::Once,
            };
            node.attrs = Attrs { valid, asked: attrs.asked.min(asked), ..attrs };
        }
        trail.stop = if more { Stop::Limit } else { Stop::Complete };
        WalkResult { along: Along { base: trail.along.base, ..Along::default() }, ..trail }
    }

    async fn walk_own(
        &self,
        cx: &RequestContext,
        at: &At<'_>,
        path: &[Name],
        want: WalkRequest,
    ) -> Result<(WalkResult, Option<Attrs>)> {
        let mut trail = at.stack.vfs.walk(cx, PathRef { base: &at.fh, path }, want).await?;
        let last = trail.steps.last().map(|node| node.attrs.clone());
        self.show_steps(at, path, &mut trail);
        Ok((trail, last))
    }

    async fn walk_in(
        &self,
        cx: &RequestContext,
        at: &At<'_>,
        path: &[Name],
        more: bool,
    ) -> Result<WalkResult> {
        let (mut trail, mut last) = self.walk_own(cx, at, path, WalkRequest::default()).await?;
        for again in [true, false] {
            let (Some(node), Some(named)) = (trail.steps.last(), &last) else { break };
            if !self.enters(at, path.len(), &trail) {
                break;
            }
            let below = self.at(&node.fh)?;
            match below.stack.vfs.getattr(cx, File { fh: &below.fh, open: None }).await {
                Ok(attrs) => {
                    let (named, asked) = (named.valid, named.asked);
                    return Ok(self.entered(trail, attrs, named, asked, more));
                }
                // The name may refer to another directory by now.
                Err(e) if again && e.errno == libc::ESTALE => {
                    (trail, last) =
                        self.walk_own(&cx.fresh(Instant::now()), at, path, WalkRequest::default()).await?;
                }
                Err(e) => return Err(e),
            }
        }
        // The name refers to an object that is not a directory, so it is not a subtree.
        if let (true, Stop::Complete, Some(node)) = (more, &trail.stop, trail.steps.last()) {
            trail.stop = match node.attrs.attr.kind {
                FileKind::Symlink => Stop::Symlink,
                _ => Stop::NotDirectory,
            };
        }
        Ok(trail)
    }

    /// The last directory on a path through several stacks, and the rest of the path.
    async fn last_dir<'p>(
        &self,
        cx: &RequestContext,
        base: &Fh,
        mut path: &'p [Name],
    ) -> Result<(Fh, &'p [Name])> {
        let mut base = base.clone();
        loop {
            let at = self.at(&base)?;
            let (own, leaves) = self.own(&at, path);
            if !leaves {
                return Ok((base, path));
            }
            let trail = self.walk_in(cx, &at, &path[..own], true).await?;
            match (trail.stop, trail.steps.into_iter().nth(own - 1)) {
                (Stop::Limit, Some(node)) => (base, path) = (node.fh, &path[own..]),
                (Stop::Failed(e), _) => return Err(e),
                (Stop::Symlink, _) => return Err(Error::new(libc::ELOOP)),
                (Stop::NotDirectory, _) => return Err(Error::new(libc::ENOTDIR)),
                _ => return Err(Error::new(libc::ENOENT)),
            }
        }
    }

    /// Groups the objects of a request by stack. Invalid handles are omitted.
    fn sorted(&self, objects: &[Fh]) -> SmallVec<[Together<'_>; 2]> {
        let mut out: SmallVec<[Together<'_>; 2]> = SmallVec::new();
        for (i, fh) in objects.iter().enumerate() {
            let Ok(at) = self.at(fh) else { continue };
            let raw = at.fh.clone();
            match out.iter_mut().find(|some| self.same_stack(some.at.place, at.place)) {
                Some(some) => {
                    some.which.push(i);
                    some.raw.push(raw);
                }
                None => out.push(Together { at, which: vec![i], raw: vec![raw] }),
            }
        }
        out
    }

    /// Whether an object may be renamed or linked from one name to the other. Both names must have
    /// the same place, so that the validity of cached state stays the same.
    fn may_move(&self, from: (&At<'_>, &Name), to: (&At<'_>, &Name)) -> Result<()> {
        let same = self.same_stack(from.0.place, to.0.place)
            && self.rules.child(from.0.place, from.1) == self.rules.child(to.0.place, to.1);
        same.then_some(()).ok_or(Error::new(libc::EXDEV))
    }
}

/// Stores answers at the indices of their requests. An invalid handle has no answer.
fn put<T>(out: &mut [Result<T>], which: &[usize], answers: Vec<Result<T>>) {
    for (&i, answer) in which.iter().zip(answers) {
        if let Some(place) = out.get_mut(i) {
            *place = answer;
        }
    }
}

fn unanswered<T>(count: usize) -> Vec<Result<T>> {
    (0..count).map(|_| Err(Error::new(libc::ESTALE))).collect()
}

#[async_trait]
impl LeaseAuthority for Subtrees {
    fn delegated_bytes(&self, fh: &Fh) -> Option<u64> {
        let at = self.at(fh).ok()?;
        at.stack.leases.delegated_bytes(&at.fh)
    }

    fn can_cache_writes(&self, fh: &Fh) -> bool {
        self.at(fh).is_ok_and(|at| at.stack.leases.can_cache_writes(&at.fh))
    }

    async fn request_write_caching(&self, cx: &RequestContext, fh: &Fh) -> bool {
        match self.at(fh) {
            Ok(at) => at.stack.leases.request_write_caching(cx, &at.fh).await,
            Err(_) => false,
        }
    }

    fn is_noncacheable(&self, fh: &Fh) -> bool {
        self.at(fh).is_ok_and(|at| at.stack.leases.is_noncacheable(&at.fh))
    }

    fn delegates_times(&self, fh: &Fh) -> bool {
        self.at(fh).is_ok_and(|at| at.stack.leases.delegates_times(&at.fh))
    }
}

impl ConsistencyDomains for Subtrees {
    fn consistency_domain(&self, fh: &Fh) -> ConsistencyDomain {
        let of = |at: At<'_>| ConsistencyDomain { number: at.place.number(), asks: Some(at.stack.asks) };
        self.at(fh).map_or_else(|_| ConsistencyDomain::default(), of)
    }
}

#[async_trait]
impl Vfs for Subtrees {
    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        let first = self.stacks.first().ok_or(Error::new(libc::EIO))?;
        let node = first.vfs.root(cx).await?;
        Ok(Node { fh: tagged(super::SubtreeId::ROOT, &node.fh), ..node })
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let base = self.at(at.base).ok()?;
        let (own, _) = self.own(&base, at.path);
        let path = &at.path[..own];
        let mut trail = base.stack.vfs.peek(cx, PathRef { base: &base.fh, path })?;
        let named = trail.steps.last().map(|node| (node.attrs.valid, node.attrs.asked));
        self.show_steps(&base, path, &mut trail);
        if own == at.path.len() && !self.enters(&base, own, &trail) {
            return Some(trail);
        }
        let below = self.enters(&base, own, &trail).then(|| self.at(&trail.steps.last()?.fh).ok())??;
        let known = below.stack.vfs.peek(cx, PathRef::fh(&below.fh))?;
        let (attrs, (named, asked)) = (known.steps.into_iter().next()?.attrs, named?);
        Some(self.entered(trail, attrs, named, asked, own < at.path.len()))
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let base = self.at(at.base)?;
        let (own, leaves) = self.own(&base, at.path);
        let path = &at.path[..own];
        if leaves {
            self.walk_in(cx, &base, path, own < at.path.len()).await
        } else {
            Ok(self.walk_own(cx, &base, path, want).await?.0)
        }
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        let at = self.at(dir)?;
        let node = at.stack.vfs.parent(cx, &at.fh).await?;
        for path in self.rules.holders(at.place) {
            let Ok(fh) = resolve(self, cx, &path).await else { continue };
            let holder = self.at(&fh)?;
            if holder.fh != node.fh {
                continue;
            }
            let attrs = if self.same_stack(at.place, holder.place) {
                node.attrs
            } else {
                holder.stack.vfs.getattr(cx, File { fh: &holder.fh, open: None }).await?
            };
            return Ok(Node { fh, attrs });
        }
        Ok(Node { fh: tagged(self.rules.plain(at.place), &node.fh), ..node })
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        let at = self.at(file.fh)?;
        at.stack.vfs.getattr(cx, at.file(file)).await
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        let at = self.at(file.fh)?;
        at.stack.vfs.setattr(cx, at.file(file), set).await
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        let at = self.at(fh)?;
        at.stack.vfs.access(cx, &at.fh, want).await
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        let at = self.at(fh)?;
        at.stack.vfs.readlink(cx, &at.fh).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let dirs = at.path.len().saturating_sub(1);
        // A file is never a subtree, so the stack of its directory opens it.
        let (base, left) = self.last_dir(cx, at.base, &at.path[..dirs]).await?;
        let path = &at.path[dirs - left.len()..];
        let base = self.at(&base)?;
        let mut opened = base.stack.vfs.open(cx, PathRef { base: &base.fh, path }, how).await?;
        let place = if path.is_empty() { base.place } else { self.rules.plain(base.place) };
        opened.node.fh = tagged(place, &opened.node.fh);
        Ok(opened)
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        let at = self.at(fh)?;
        at.stack.vfs.close(cx, &at.fh, open).await
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let at = self.at(file.fh)?;
        at.stack.vfs.read(cx, at.file(file), offset_bytes, len_bytes).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let at = self.at(file.fh)?;
        at.stack.vfs.write(cx, at.file(file), offset_bytes, data, stability).await
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        let at = self.at(file.fh)?;
        at.stack.vfs.finish(cx, at.file(file), piece, set).await
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        let at = self.at(file.fh)?;
        at.stack.vfs.commit(cx, at.file(file)).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        let at = self.at(dir)?;
        let made = at.stack.vfs.create_whole(cx, &at.fh, name, set, data).await?;
        Ok(self.made(at.place, name, made))
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let at = self.at(dir)?;
        Ok(self.made(at.place, name, at.stack.vfs.mkdir(cx, &at.fh, name, set).await?))
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        let at = self.at(dir)?;
        Ok(self.made(at.place, name, at.stack.vfs.mknod(cx, &at.fh, name, what, set).await?))
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        let at = self.at(dir)?;
        Ok(self.made(at.place, name, at.stack.vfs.symlink(cx, &at.fh, name, target, set).await?))
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let (of, at) = (self.at(fh)?, self.at(dir)?);
        if !self.same_stack(of.place, at.place) {
            return Err(Error::new(libc::EXDEV));
        }
        Ok(self.made(at.place, name, at.stack.vfs.link(cx, &of.fh, &at.fh, name).await?))
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let at = self.at(dir)?;
        let target = self.hint(&at, target);
        at.stack.vfs.unlink(cx, &at.fh, name, target.as_ref()).await
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let at = self.at(dir)?;
        at.stack.vfs.rmdir(cx, &at.fh, name).await
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let (a, b) = (self.at(from.0)?, self.at(to.0)?);
        self.may_move((&a, from.1), (&b, to.1))?;
        let replaced = self.hint(&b, replaced);
        let (from, to_raw) = ((&a.fh, from.1), (&b.fh, to.1));
        let mut moved = a.stack.vfs.rename(cx, from, to_raw, replaced.as_ref(), flags).await?;
        let place = match (&moved.attrs, self.rules.child(b.place, to.1), self.rules.plain(b.place)) {
            (Some(attrs), ..) => Some(self.child(b.place, to.1, attrs.attr.kind)),
            (None, as_directory, plain) => Some(plain).filter(|plain| *plain == as_directory),
        };
        moved.object = moved.object.zip(place).map(|(fh, place)| tagged(place, &fh));
        Ok(moved)
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
        let at = self.at(dir)?;
        let page = at.stack.vfs.readdir(cx, &at.fh, cookie, verifier, max_bytes, nodes).await?;
        Ok(self.page(at.place, page))
    }

    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        let at = self.at(fh)?;
        at.stack.vfs.statfs(cx, &at.fh).await
    }

    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        let at = self.at(fh)?;
        at.stack.vfs.getxattr(cx, &at.fh, name).await
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let at = self.at(fh)?;
        at.stack.vfs.setxattr(cx, &at.fh, name, value, mode).await
    }

    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>> {
        let at = self.at(fh)?;
        at.stack.vfs.listxattr(cx, &at.fh).await
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        let at = self.at(fh)?;
        at.stack.vfs.removexattr(cx, &at.fh, name).await
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
        let at = self.at(file.fh)?;
        at.stack.vfs.lock(cx, at.file(file), owner, kind, range, wait).await
    }

    async fn unlock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()> {
        let at = self.at(file.fh)?;
        at.stack.vfs.unlock(cx, at.file(file), owner, range).await
    }

    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        let at = self.at(file.fh)?;
        at.stack.vfs.test_lock(cx, at.file(file), owner, kind, range).await
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        let at = self.at(file.fh)?;
        at.stack.vfs.seek(cx, at.file(file), offset_bytes, what).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let at = self.at(file.fh)?;
        at.stack.vfs.allocate(cx, at.file(file), range).await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let at = self.at(file.fh)?;
        at.stack.vfs.deallocate(cx, at.file(file), range).await
    }

    /// Copies only within a stack. Each stack has its own delayed data, so the caller copies
    /// between two stacks.
    async fn copy(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let (a, b) = (self.at(from.fh)?, self.at(to.fh)?);
        if !self.same_stack(a.place, b.place) {
            return Err(Error::new(libc::EOPNOTSUPP));
        }
        let (from, to) = (a.file(from), b.file(to));
        a.stack.vfs.copy(cx, from, from_offset_bytes, to, to_offset_bytes, len_bytes).await
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        for (number, stack) in self.stacks.iter().enumerate() {
            let (rules, above) = (self.rules.clone(), upcalls.clone());
            stack.vfs.subscribe(Arc::new(Hearer { rules, stack: number, above }));
        }
    }

    /// Shuts down all stacks. Returns the first error.
    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        let mut ended = Ok(());
        for stack in &self.stacks {
            ended = ended.and(stack.vfs.shutdown(cx).await);
        }
        ended
    }
}

#[async_trait]
impl BatchOps for Subtrees {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let mut out = unanswered(objects.len());
        for Together { at, which, raw } in self.sorted(objects) {
            put(&mut out, &which, at.stack.vfs.getattr_many(cx, &raw).await);
        }
        out
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let mut out = unanswered(objects.len());
        for Together { at, which, raw } in self.sorted(objects) {
            put(&mut out, &which, at.stack.vfs.revalidate_many(cx, &raw, want).await);
        }
        out
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let mut out = ReadManyResult { files: unanswered(files.len()), holder: None };
        let sorted = self.sorted(files);
        let alone = sorted.len() == 1;
        for Together { at, which, raw } in sorted {
            let holder = self.hint(&at, holder).filter(|_| alone);
            let starts = at.stack.vfs.read_many(cx, &raw, holder.as_ref(), max_bytes).await;
            put(&mut out.files, &which, starts.files);
            out.holder = starts.holder;
        }
        out
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let mut out = unanswered(dirs.len());
        for Together { at, which, raw } in self.sorted(dirs) {
            put(&mut out, &which, at.stack.vfs.list_many(cx, &raw, max_bytes).await);
        }
        for (fh, listed) in dirs.iter().zip(&mut out) {
            if let (Ok(at), Ok((_, page))) = (self.at(fh), listed) {
                let entries = std::mem::take(&mut page.entries);
                *page = self.page(at.place, DirPage { entries, ..*page });
            }
        }
        out
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        let at = match self.at(dir) {
            Ok(at) => at,
            Err(_) => return unanswered(new.len()),
        };
        let made = at.stack.vfs.create_many(cx, &at.fh, new).await;
        let shown =
            |(one, made): (&Creation, Result<Made>)| made.map(|made| self.made(at.place, &one.name, made));
        new.iter().zip(made).map(shown).collect()
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        let at = match self.at(dir) {
            Ok(at) => at,
            Err(_) => return unanswered(gone.len()),
        };
        let raw = |one: &Removal| Removal { target: self.hint(&at, one.target.as_ref()), ..one.clone() };
        at.stack.vfs.remove_many(cx, &at.fh, &gone.iter().map(raw).collect::<Vec<_>>()).await
    }
}
