//! The calls of [`Vfs`]: answers from memory, and requests below that keep the memory consistent.

use super::change::{Changing, Renamed};
use super::names::Id;
use super::single_flight::Question;
use super::{MetadataCache, stats};
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::{
    Access, Attrs, BatchOps, ChangeInfo, Creation, Data, DirPage, Fh, File, FileRange, Finished,
    LockConflict, LockKind, LockOwner, LockWait, Made, Moved, Name, NewKind, Node, OpenHow, OpenId, Opened,
    PathRef, Read, ReadManyResult, Removal, RenameFlags, RequestContext, Result, Seek, SetAttr, Special,
    Stability, Upcalls, Vfs, WalkRequest, WalkResult, Wrote, XattrMode, bytes_prove_reading,
};
use std::sync::Arc;

impl MetadataCache {
    /// Makes a name in a directory.
    async fn make<F>(&self, dir: &Fh, name: &Name, call: F) -> Result<Made>
    where
        F: Future<Output = Result<Made>>,
    {
        let changing = self.renaming(dir, &[name]);
        let made = call.await;
        self.made(dir, name, changing, made)
    }

    /// Processes the result of a call that makes a name.
    fn made(&self, dir: &Fh, name: &Name, changing: Changing<'_>, mut made: Result<Made>) -> Result<Made> {
        match &made {
            Ok(made) => changing.renamed(Ok(&[&made.dir]), &[(name, Renamed::To(&made.node))]),
            Err(e) => changing.renamed(Err(e), &[(name, Renamed::Unknown)]),
        };
        if let Ok(made) = &mut made {
            self.name_holds(&mut made.node.attrs);
        }
        made.map_err(|e| self.failed(dir, e))
    }

    /// Makes several names in a directory, with the same effect on memory as concurrent calls.
    async fn make_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        let ticket = self.ticket();
        let changing: Vec<_> = new.iter().map(|one| self.renaming(dir, &[&one.name])).collect();
        let made = self.below.create_many(cx, dir, new).await;
        let mut out = Vec::with_capacity(new.len());
        for ((one, changing), made) in new.iter().zip(changing).zip(made) {
            out.push(self.made(dir, &one.name, changing, made));
            if let (NewKind::Directory, Some(Ok(made))) = (&one.kind, out.last()) {
                self.learn_empty(cx, &made.node, &ticket);
            }
        }
        out
    }

    /// Removes a name. `target`: the object that the name is believed to be bound to.
    async fn take<F>(&self, dir: &Fh, name: &Name, target: Option<Fh>, call: F) -> Result<ChangeInfo>
    where
        F: Future<Output = Result<ChangeInfo>>,
    {
        let sure = self.is_sure(dir, name, target.as_ref());
        let gone = target.as_ref().map(|fh| self.changing(fh));
        let mut changing = self.renaming(dir, &[name]);
        let outcome = call.await;
        changing.sure(sure && self.is_sure(dir, name, target.as_ref()));
        self.taken(dir, name, (gone, changing), outcome)
    }

    /// Removes several names.
    async fn take_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        let known: Vec<_> =
            gone.iter().map(|one| one.target.clone().or_else(|| self.child_of(dir, &one.name))).collect();
        for (one, fh) in gone.iter().zip(&known) {
            if let (false, Some(fh)) = (one.is_dir, fh) {
                self.losing_name(fh).await;
            }
        }
        let begin = |(one, fh): (&Removal, &Option<Fh>)| {
            (fh.as_ref().map(|fh| self.changing(fh)), self.renaming(dir, &[&one.name]))
        };
        let changing: Vec<_> = gone.iter().zip(&known).map(begin).collect();
        let outcomes = self.below.remove_many(cx, dir, gone).await;
        let ended = gone.iter().zip(changing).zip(outcomes);
        ended.map(|((one, changing), outcome)| self.taken(dir, &one.name, changing, outcome)).collect()
    }

    /// Processes the result of a call that removes a name.
    fn taken(
        &self,
        dir: &Fh,
        name: &Name,
        (gone, changing): (Option<Changing<'_>>, Changing<'_>),
        outcome: Result<ChangeInfo>,
    ) -> Result<ChangeInfo> {
        match gone {
            Some(gone) if outcome.is_ok() => gone.removed(),
            Some(gone) => gone.done(outcome.as_ref().map(|_| None)),
            None if outcome.is_ok() => self.raise_fence(),
            None => {}
        }
        match &outcome {
            Ok(change) => changing.renamed(Ok(&[change]), &[(name, Renamed::Gone)]),
            Err(e) => changing.renamed(Err(e), &[(name, Renamed::Unknown)]),
        };
        outcome.map_err(|e| self.failed(dir, e))
    }

    /// Changes a file. `attrs` takes the attributes from the result.
    async fn change<T, F>(&self, fh: &Fh, call: F, attrs: impl Fn(&T) -> Option<&Attrs>) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let changing = self.changing(fh);
        let outcome = call.await;
        changing.done(outcome.as_ref().map(attrs));
        outcome.map_err(|e| self.failed(fh, e))
    }

    async fn rename_names(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let (moved, certain) = match self.named(from.0, from.1) {
            Some((fh, certain)) => (Some(fh), certain),
            None => (None, false),
        };
        let target = replaced.cloned().or_else(|| self.child_of(to.0, to.1));
        if let Some(target) = &target {
            self.losing_name(target).await;
        }
        let same_object = moved.is_some() && moved == target;
        let others: Vec<_> =
            [moved.as_ref(), target.as_ref().filter(|_| !same_object)].into_iter().flatten().collect();
        let touched: Vec<_> = others.into_iter().map(|fh| self.changing(fh)).collect();
        let same_dir = from.0 == to.0;
        let one =
            if same_dir { self.renaming(from.0, &[from.1, to.1]) } else { self.renaming(from.0, &[from.1]) };
        let other = (!same_dir).then(|| self.renaming(to.0, &[to.1]));
        let mut outcome = self.below.rename(cx, from, to, replaced, flags).await;
        let node =
            outcome.as_ref().ok().and_then(|m| Some(Node { fh: m.object.clone()?, attrs: m.attrs.clone()? }));
        for changing in touched {
            let attrs = node.as_ref().filter(|node| node.fh == changing.fh).map(|node| &node.attrs);
            changing.done(outcome.as_ref().map(|_| attrs));
        }
        if moved.is_none() && node.is_none() && outcome.is_ok() {
            self.raise_fence();
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let believed = [&moved, &target].map(Option::as_ref);
        let [left, right] = self.both_names(&outcome, node.as_ref(), believed, certain, exchange);
        let kept = end_rename((one, from.1, left), (other, to.1, right), &outcome);
        if let Ok(m) = &mut outcome {
            m.object = m.object.take().or(moved.filter(|_| certain && kept && !exchange));
        }
        outcome.map_err(|e| self.failed(from.0, e))
    }

    /// The effect of a rename on the old and the new name. `node`: the moved object that the server
    /// reported. `believed`: the objects that both names led to before. `certain`: the old binding
    /// holds unless another client changed the directory.
    fn both_names<'a>(
        &self,
        outcome: &Result<Moved>,
        node: Option<&'a Node>,
        believed: [Option<&Fh>; 2],
        certain: bool,
        exchange: bool,
    ) -> [Renamed<'a>; 2] {
        let known = |fh: Option<&Fh>, how: fn(Id) -> Renamed<'a>| {
            fh.and_then(|fh| self.table.find(fh)).map_or(Renamed::Unknown, how)
        };
        let [moved, target] = believed;
        // Both names of one object remain.
        let nothing = matches!(outcome, Ok(m) if m.from.before == m.from.after && m.to.before == m.to.after);
        let stay = nothing || moved.is_some() && moved == target;
        let left = if stay {
            Renamed::Unknown
        } else if exchange {
            known(target, Renamed::Believed)
        } else {
            Renamed::Gone
        };
        let told = outcome.as_ref().ok().and_then(|m| m.object.as_ref());
        let right = match (node, told) {
            (Some(node), _) => Renamed::To(node),
            (None, Some(_)) => known(told, Renamed::Moved),
            (None, None) if certain && !stay => known(moved, Renamed::Believed),
            (None, None) => Renamed::Unknown,
        };
        [left, right]
    }

    async fn set_attributes(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if rights {
            self.secure(file.fh).await;
        }
        let below = File { fh: file.fh, open: self.real_if_any(file)? };
        let changing = self.changing(file.fh);
        let outcome = self.below.setattr(cx, below, set).await;
        if rights {
            changing.done_rights(outcome.as_ref().map(Some));
        } else {
            changing.done(outcome.as_ref().map(Some));
        }
        outcome.map_err(|e| self.failed(file.fh, e))
    }

    pub(super) async fn ask_rights(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        let cred = self.cred(&cx.cred);
        let (mut waits, all) = (0, Access::all());
        let (_flight, holds) = loop {
            let when = self.when(cx);
            let (known, holds) = self
                .table
                .with(fh, |_, o| {
                    (o.rights(cred, want, &when.any_age()).filter(|_| o.holds(&when)), o.holds(&when))
                })
                .unwrap_or_default();
            if let Some(have) = known {
                stats::add(&self.counters.access_hits, 1);
                return Ok(have);
            }
            match self.single_flight.register(&(fh.clone(), Question::Rights(cred)), waits) {
                Ok(flight) => break (flight, holds),
                Err(waiting) => waiting.wait(cx).await?,
            }
            waits += 1;
        };
        stats::add(&self.counters.access_misses, 1);
        if !holds {
            // The request includes the attributes: the answer is kept as long as they hold.
            let want_all = WalkRequest { access: all, ..WalkRequest::default() };
            let trail = self.ask_walk(cx, PathRef::fh(fh), want_all).await?;
            if let Some(have) = trail.along.access {
                return Ok(have & want);
            }
        }
        let ticket = self.ticket();
        let change = self.table.with(fh, |_, o| o.attr.change);
        let have = self.below.access(cx, fh, all).await.map_err(|e| self.failed(fh, e))?;
        if let Some(change) = change {
            self.learn_rights(&cx.cred, (fh, change), all, have, &ticket);
        }
        Ok(have & want)
    }

    async fn link_target(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        let when = self.when(cx);
        let known = self.table.with(fh, |_, o| {
            let (change, target) = o.extra.as_ref()?.target.as_ref()?;
            (o.holds(&when) && *change == o.attr.change).then(|| target.clone())
        });
        if let Some(Some(target)) = known {
            return Ok(target);
        }
        let ticket = self.ticket();
        let change = self.table.with(fh, |_, o| (o.asked != 0).then_some(o.attr.change)).flatten();
        let target = self.below.readlink(cx, fh).await.map_err(|e| self.failed(fh, e))?;
        if let Some(change) = change {
            self.learn_target((fh, change), &target, &ticket);
        }
        Ok(target)
    }
}

/// Processes the result of a rename. Within one directory, `one` is the change of both names.
/// Returns whether no other client can have changed the directory of the old name.
fn end_rename(
    (one, old, left): (Changing<'_>, &Name, Renamed<'_>),
    (other, new, right): (Option<Changing<'_>>, &Name, Renamed<'_>),
    outcome: &Result<Moved>,
) -> bool {
    match (outcome, other) {
        // Unequal change pairs are two steps; an equal pair is one step reported twice.
        (Ok(m), None) if (m.from.before, m.from.after) == (m.to.before, m.to.after) => {
            one.renamed(Ok(&[&m.to]), &[(old, left), (new, right)])
        }
        (Ok(m), None) => one.renamed(Ok(&[&m.from, &m.to]), &[(old, left), (new, right)]),
        (Ok(m), Some(other)) => {
            let kept = one.renamed(Ok(&[&m.from]), &[(old, left)]);
            let right = if matches!(right, Renamed::Believed(_)) && !kept { Renamed::Unknown } else { right };
            other.renamed(Ok(&[&m.to]), &[(new, right)]);
            kept
        }
        (Err(e), other) => {
            one.renamed(Err(e), &[(old, left)]);
            if let Some(other) = other {
                other.renamed(Err(e), &[(new, right)]);
            }
            false
        }
    }
}

#[async_trait]
impl Vfs for MetadataCache {
    hither_vfs::delegate!(self.below; statfs, getxattr, listxattr, shutdown);

    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        let ticket = self.ticket();
        let node = self.below.root(cx).await?;
        self.learn_attrs(&node.fh, &node.attrs, &ticket);
        Ok(node)
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        self.peek_known(cx, at)
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let mut trail = self.walk_on(cx, at, want).await?;
        if !at.path.is_empty() {
            trail.steps.iter_mut().for_each(|node| self.name_holds(&mut node.attrs));
        }
        Ok(trail)
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        self.ask_parent(cx, dir).await
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        let below = File { fh: file.fh, open: self.real_if_any(file)? };
        self.attrs(cx, file, below).await
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        self.set_attributes(cx, file, set).await
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        self.ask_rights(cx, fh, want).await
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        self.link_target(cx, fh).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let mut opened = self.open_file(cx, at, how).await?;
        if !at.path.is_empty() {
            self.name_holds(&mut opened.node.attrs);
        }
        Ok(opened)
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
        let below = File { fh: file.fh, open: self.real(file).await? };
        let whole = self.whole(offset_bytes, &data);
        let call = self.below.write(cx, below, offset_bytes, data, stability);
        let wrote = self.change(file.fh, call, |wrote| wrote.attrs.as_ref()).await?;
        self.learn_written(cx, file.fh, whole, &wrote);
        Ok(wrote)
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        let below = File { fh: file.fh, open: self.real(file).await? };
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if rights {
            self.secure(file.fh).await;
        }
        let whole = piece.as_ref().and_then(|(at, data)| self.whole(*at, data));
        let changing = self.changing(file.fh);
        let outcome = self.below.finish(cx, below, piece, set).await;
        let attrs = outcome.as_ref().map(|f| f.wrote.attrs.as_ref());
        if rights {
            changing.done_rights(attrs);
        } else {
            changing.done(attrs);
        }
        let finished = outcome.map_err(|e| self.failed(file.fh, e))?;
        self.learn_written(cx, file.fh, whole, &finished.wrote);
        Ok(finished)
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        let below = File { fh: file.fh, open: self.real_if_any(file)? };
        self.below.commit(cx, below).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        self.make(dir, name, self.below.create_whole(cx, dir, name, set, data)).await
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let ticket = self.ticket();
        let made = self.make(dir, name, self.below.mkdir(cx, dir, name, set)).await?;
        self.learn_empty(cx, &made.node, &ticket);
        Ok(made)
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        self.make(dir, name, self.below.mknod(cx, dir, name, what, set)).await
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        self.make(dir, name, self.below.symlink(cx, dir, name, target, set)).await
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let linked = self.changing(fh);
        let call = async {
            let made = self.below.link(cx, fh, dir, name).await;
            linked.done(made.as_ref().map(|made| Some(&made.node.attrs).filter(|_| made.node.fh == *fh)));
            made
        };
        self.make(dir, name, call).await
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let known = target.cloned().or_else(|| self.child_of(dir, name));
        if let Some(fh) = &known {
            self.losing_name(fh).await;
        }
        self.take(dir, name, known, self.below.unlink(cx, dir, name, target)).await
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let known = self.child_of(dir, name);
        self.take(dir, name, known, self.below.rmdir(cx, dir, name)).await
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        self.rename_names(cx, from, to, replaced, flags).await
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
        let mut page = self.list(cx, dir, cookie, verifier, max_bytes, nodes).await?;
        page.entries.iter_mut().filter_map(|e| e.node.as_mut()).for_each(|n| self.name_holds(&mut n.attrs));
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
        self.secure(fh).await;
        let changing = self.changing(fh);
        let outcome = self.below.setxattr(cx, fh, name, value, mode).await;
        // The attribute may be an access control list.
        changing.done_rights(outcome.as_ref().map(|()| None));
        outcome
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        self.secure(fh).await;
        let changing = self.changing(fh);
        let outcome = self.below.removexattr(cx, fh, name).await;
        changing.done_rights(outcome.as_ref().map(|()| None));
        outcome
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
        let below = File { fh: file.fh, open: self.real(file).await? };
        let ticket = self.ticket();
        let attrs = self.below.lock(cx, below, owner, kind, range, wait).await?;
        // The new holder of a lock must see the data of the previous holder. Under a lease, no
        // other client has written since the lease is known.
        if !self.is_leased(file.fh) {
            self.let_go(file.fh, attrs.as_ref().map(|attrs| (attrs, &ticket)));
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
        let open = self.real_if_any(file)?;
        if file.open.is_some() && open.is_none() {
            return Ok(());
        }
        self.below.unlock(cx, File { fh: file.fh, open }, owner, range).await
    }

    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        let below = File { fh: file.fh, open: self.real(file).await? };
        self.below.test_lock(cx, below, owner, kind, range).await
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        let below = File { fh: file.fh, open: self.real(file).await? };
        self.below.seek(cx, below, offset_bytes, what).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let below = File { fh: file.fh, open: self.real(file).await? };
        self.change(file.fh, self.below.allocate(cx, below, range), |()| None).await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let below = File { fh: file.fh, open: self.real(file).await? };
        self.change(file.fh, self.below.deallocate(cx, below, range), |()| None).await
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
        let source = File { fh: from.fh, open: self.real(from).await? };
        let sink = File { fh: to.fh, open: self.real(to).await? };
        let call = self.below.copy(cx, source, from_offset_bytes, sink, to_offset_bytes, len_bytes);
        self.change(to.fh, call, |_| None).await
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        // A second subscriber would be a mistake of the caller; it is ignored.
        let _ = self.above.set(upcalls);
    }
}

#[async_trait]
impl BatchOps for MetadataCache {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let when = self.when(cx);
        let known: Vec<_> = objects.iter().map(|fh| self.known_attrs(fh, &when)).collect();
        let missing: Vec<_> =
            objects.iter().zip(&known).filter(|(_, k)| k.is_none()).map(|(fh, _)| fh.clone()).collect();
        stats::add(&self.counters.attr_hits, (objects.len() - missing.len()) as u64);
        stats::add(&self.counters.attr_misses, missing.len() as u64);
        let ticket = self.ticket();
        let answers =
            if missing.is_empty() { Vec::new() } else { self.below.getattr_many(cx, &missing).await };
        let mut answers = missing.iter().zip(answers).map(|(fh, answer)| {
            let attrs = answer.map_err(|e| self.failed(fh, e))?;
            self.learn_attrs(fh, &attrs, &ticket);
            Ok(attrs)
        });
        let none = || Err(hither_vfs::Error::because(libc::EIO, "fewer answers than requested objects"));
        known.into_iter().map(|k| k.map_or_else(|| answers.next().unwrap_or_else(none), Ok)).collect()
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        self.ask_revalidations(cx, objects, want).await
    }

    async fn read_many(
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
                self.learn_attrs(fh, &fetched.attrs, &ticket);
                if max_bytes > 0 && bytes_prove_reading(fetched.attrs.attr.mode) {
                    let under = (fh, fetched.attrs.attr.change);
                    self.learn_rights(&cx.cred, under, Access::READ, Access::READ, &ticket);
                }
                self.learn_contents(fh, &fetched.attrs, &fetched.read, &ticket, false);
            }
        }
        if let (Some(fh), Some(attrs)) = (holder, &answers.holder) {
            self.learn_attrs(fh, attrs, &ticket);
        }
        answers
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        self.list_each(cx, dirs, max_bytes).await
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        self.make_many(cx, dir, new).await
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        self.take_many(cx, dir, gone).await
    }
}
