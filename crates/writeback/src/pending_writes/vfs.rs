//! The calls: passed down, delayed, or answered locally.
//!
//! The module does not know how bytes are kept and sent.

use super::alone::{First, Order};
use super::file::{File as Delayed, Names, State};
use super::questions::ask;
use super::stats::Reason;
use super::wait::{detached, patient};
use super::{Relay, WriteBack};
use async_trait::async_trait;
use bytes::Bytes;
use hither_vfs::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// Largest offset of a byte in a file.
const OFFSET_MAX: u64 = i64::MAX as u64;

impl WriteBack {
    /// Notes an open, and adjusts its attributes to the local state.
    fn opened(&self, cred: &Arc<Cred>, opened: &mut Opened, how: &OpenHow) {
        if self.options.write_through {
            return;
        }
        let fresh = (self.next_change(), self.next_change());
        loop {
            let file = self.file(&opened.node.fh);
            let mut s = file.state.lock();
            if s.forgotten {
                continue;
            }
            s.errors.open(opened.open, how.access);
            if opened.created && how.access.contains(OpenAccess::WRITE) {
                s.deferred.created(cred.clone(), opened.open);
            }
            let clean = s.extents.is_clean();
            s.view.opened(clean, fresh.0);
            let asked = opened.node.attrs.asked;
            s.show(&mut opened.node.attrs, fresh.1);
            self.shown.lock().show(&opened.node.fh, &mut opened.node.attrs, true);
            if !s.is_plain(asked) {
                (opened.first, opened.backing) = (None, None);
            }
            return;
        }
    }

    /// Reads the attributes again, because those of the open may be older than a dropped file.
    async fn look_again(&self, cx: &RequestContext, opened: &mut Opened) {
        let at = File { fh: &opened.node.fh, open: Some(opened.open) };
        match self.below.getattr(&cx.fresh(Instant::now()), at).await {
            Ok(attrs) => opened.node.attrs = attrs,
            Err(_) => opened.node.attrs.valid = Validity::Once,
        }
        (opened.first, opened.backing) = (None, None);
    }

    /// Repeats a truncation by an open that did not know its file, because earlier bytes may have
    /// arrived after it.
    async fn cut_again(&self, cx: &RequestContext, opened: &mut Opened) -> Result<()> {
        let fh = &opened.node.fh;
        let touched = |s: &State| !s.extents.is_clean() || s.deferred.is_mtime_near();
        let Some(file) = self.known(fh).filter(|f| touched(&f.state.lock())) else { return Ok(()) };
        let at = File { fh, open: Some(opened.open) };
        let set = SetAttr { size_bytes: Some(0), ..Default::default() };
        let order = Order { flush: First::No, cut: Some(0) };
        let attrs = self.alone(&file, order, self.below.setattr(cx, at, &set), |a| Some(a)).await?;
        file.state.lock().view.resized(Instant::now(), 0, Some(&attrs));
        opened.node.attrs = attrs;
        Ok(())
    }

    async fn open_and_cut(
        self: Arc<Self>,
        cx: RequestContext,
        fh: Fh,
        how: OpenHow,
        file: Arc<Delayed>,
    ) -> Result<Opened> {
        // An error is ignored: the server decides about the open.
        self.send_mode(&cx, &fh).await.ok();
        let order = Order { flush: First::No, cut: Some(0) };
        let call = self.below.open(&cx, PathRef::fh(&fh), &how);
        let mut opened = self.alone(&file, order, call, |opened| Some(&opened.node.attrs)).await?;
        file.state.lock().view.resized(Instant::now(), 0, Some(&opened.node.attrs));
        self.opened(&cx.cred, &mut opened, &how);
        Ok(opened)
    }

    async fn setattr_alone(
        self: Arc<Self>,
        cx: RequestContext,
        file: Arc<Delayed>,
        open: Option<OpenId>,
        set: SetAttr,
    ) -> Result<hither_vfs::Attrs> {
        if let Some(attrs) = self.defer(&cx, &file, &set) {
            return Ok(attrs);
        }
        let size = set.size_bytes;
        if size.is_some() || set.uid.is_some() || set.gid.is_some() {
            // An error is ignored: the server decides about the change.
            self.send_mode(&cx, &file.fh).await.ok();
        }
        let only_size = SetAttr { size_bytes: size, ..Default::default() } == set;
        let at = File { fh: &file.fh, open };
        let flush = if size.is_some() && only_size { First::No } else { First::Try };
        let order = Order { flush, cut: size };
        let call = async {
            // Older attributes that are not sent yet must not arrive later.
            let old = file.when(|s| (!s.deferred.is_sent()).then(|| s.deferred.withdraw(&set))).await;
            let outcome = self.below.setattr(&cx, at, &set).await;
            if let (Err(_), Some(old)) = (&outcome, old) {
                let mut s = file.state.lock();
                s.deferred.restore(old);
                self.look_after(&mut s, &file, Instant::now());
            }
            outcome
        };
        let mut attrs = self.alone(&file, order, call, |attrs| Some(attrs)).await?;
        let fresh = self.next_change();
        {
            let (now, mut s) = (Instant::now(), file.state.lock());
            match size {
                Some(size) => s.view.resized(now, size, Some(&attrs)),
                None => {
                    let alone = s.extents.is_clean() && s.view.through == 0;
                    s.view.changed(now, 0, Some(&attrs), alone);
                }
            }
            s.deferred.has(&set, now, Some(&attrs));
            s.journal.told_after(&attrs);
            if set.mtime.is_some() {
                s.journal.see(&cx.cred, attrs.attr.mtime, false);
            }
            s.seen = None;
            self.shown.lock().forget(&file.fh);
            if s.extents.is_clean() {
                // The server's times are the requested ones.
                s.view.time = None;
            }
            s.show(&mut attrs, fresh);
        }
        self.noted(&file).await;
        self.tidy(&file);
        Ok(attrs)
    }

    async fn move_name(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let known = self.moving(cx, from);
        let asking = self.asking();
        let call = self.below.rename(cx, from, to, replaced, flags);
        let mut moved = self.touching(&[known.as_ref(), replaced], call).await?;
        self.named(moved.object.as_ref().or(known.as_ref()), to);
        if let Some(fh) = &moved.object {
            self.times_end(fh);
        }
        if let (Some(fh), Some(attrs)) = (&moved.object, &mut moved.attrs) {
            self.show(fh, attrs);
        }
        if asking.is_spoiled() {
            moved.attrs = None;
        }
        drop(asking);
        if !flags.contains(RenameFlags::EXCHANGE) {
            self.lost_a_name(replaced).await;
        }
        Ok(moved)
    }

    /// Whether a file that lost a name in this mount has no name left. The server is asked once.
    pub(super) async fn is_nameless(&self, cx: &RequestContext, file: &Delayed, open: OpenId) -> bool {
        loop {
            let (names, since) = file.state.lock().names_seen();
            if names != Names::OneLess {
                return names == Names::None;
            }
            let at = File { fh: &file.fh, open: Some(open) };
            let none = match self.below.getattr(&cx.fresh(Instant::now()), at).await {
                Ok(attrs) => attrs.attr.nlink == 0,
                Err(e) => e.errno == libc::ESTALE,
            };
            let mut s = file.state.lock();
            // An answer from before the loss of another name does not show that one is left.
            if s.names == Names::OneLess && (none || s.nameless_since == since) {
                s.names = if none { Names::None } else { Names::Some };
                // No other event wakes the tasks that wait for this state.
                file.changed.notify_waiters();
            }
        }
    }

    /// Whether a copy is too small for calls of its own. The known length of the source decides.
    fn is_small_copy(&self, from: &Fh, offset_bytes: u64, len_bytes: u64) -> bool {
        let known = self.known(from).and_then(|file| file.state.lock().shown());
        let left = |a: hither_vfs::Attrs| a.attr.size_bytes.saturating_sub(offset_bytes).min(len_bytes);
        known.map(left).is_some_and(|left| left > 0 && left <= self.options.small_copy_bytes)
    }

    /// Sends a file before a call that needs the server to have it.
    async fn flush_first(&self, cx: &RequestContext, fh: &Fh, first: First) -> Result<()> {
        let Some(file) = self.known(fh) else { return Ok(()) };
        patient(cx, async {
            match self.flush_bytes(&file, Reason::Order, false).await {
                Err(e) if first == First::Must => Err(e),
                _ => Ok(()),
            }
        })
        .await
    }
}

/// Ignores the failure of a preparation, since the call itself will fail if it matters. Returns an
/// interruption.
fn unless_interrupted(e: Error) -> Result<()> {
    match e.errno {
        libc::EINTR | libc::ETIMEDOUT => Err(e),
        _ => Ok(()),
    }
}

/// The context of a call that goes on after its caller has given up.
fn without_caller(cx: &RequestContext) -> RequestContext {
    RequestContext { cancel: Default::default(), deadline: None, ..cx.clone() }
}

#[async_trait]
impl Vfs for WriteBack {
    hither_vfs::delegate!(self.below; parent, readlink, mkdir, mknod, symlink, statfs, test_lock);

    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        self.below.root(cx).await.inspect(|root| self.is_root(&root.fh))
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        let mut trail = self.below.peek(cx, at)?;
        self.note_names(at, &trail.steps);
        self.show_nodes(trail.steps.iter_mut());
        // A file that was dropped meanwhile may have had bytes that the answer lacks.
        (self.forgotten.load(Ordering::SeqCst) == forgotten).then_some(trail)
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let (_asking, trail) = ask!(self, cx => self.below.walk(cx, at, want).await);
        let mut trail = trail?;
        let asked = trail.steps.last().map(|last| last.attrs.asked);
        self.note_names(at, &trail.steps);
        self.show_nodes(trail.steps.iter_mut());
        if let Some(page) = &mut trail.along.listing {
            self.show_nodes(page.entries.iter_mut().filter_map(|e| e.node.as_mut()));
        }
        if let (true, Some(last), Some(asked)) = (trail.along.first.is_some(), trail.steps.last(), asked)
            && self.known(&last.fh).is_some_and(|f| !f.state.lock().is_plain(asked))
        {
            // The first bytes may be older than local writes.
            trail.along.first = None;
        }
        if let (true, Some(last)) = (trail.along.access.is_some(), trail.steps.last())
            && self.known(&last.fh).is_some_and(|f| f.state.lock().deferred.has_mode())
        {
            trail.along.access = None;
        }
        Ok(trail)
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<hither_vfs::Attrs> {
        let mut flushed = match self.known(file.fh).filter(|_| !cx.times_unseen) {
            Some(delayed) => self.flush_for_times(cx, &delayed).await,
            None => false,
        };
        let (_asking, attrs) = ask!(self, cx => self.below.getattr(cx, file).await);
        let mut attrs = attrs?;
        let Some(delayed) = self.known(file.fh) else {
            self.show(file.fh, &mut attrs);
            return Ok(attrs);
        };
        if self.show_program(cx, &delayed, &mut attrs).await {
            return Ok(attrs);
        }
        if !flushed && !cx.times_unseen {
            // The delegation may have ended meanwhile.
            flushed = self.flush_for_times(cx, &delayed).await;
        }
        if flushed {
            // The answer precedes the end of the last WRITE.
            attrs = self.below.getattr(&cx.fresh(Instant::now()), file).await?;
            self.show_program(cx, &delayed, &mut attrs).await;
        }
        Ok(attrs)
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<hither_vfs::Attrs> {
        let Some(delayed) = self.known(file.fh) else {
            let asking = self.asking();
            let mut attrs = self.below.setattr(cx, file, set).await?;
            self.times_end(file.fh);
            self.show(file.fh, &mut attrs);
            if asking.is_spoiled() {
                attrs.valid = Validity::Once;
            }
            return Ok(attrs);
        };
        detached(cx, self.this().setattr_alone(cx.clone(), delayed, file.open, set.clone())).await
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        self.send_mode(cx, fh).await.or_else(unless_interrupted)?;
        self.below.access(cx, fh, want).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let _opening = self.opening(at)?;
        if how.truncate
            && at.path.is_empty()
            && let Some(file) = self.known(at.base)
        {
            let open = self.this().open_and_cut(cx.clone(), at.base.clone(), how.clone(), file);
            return detached(cx, open).await;
        }
        let asking = self.asking();
        let mut opened = self.open_with_modes_sent(cx, at, how).await?;
        if asking.is_spoiled() {
            self.look_again(cx, &mut opened).await;
        }
        if let [name] = at.path {
            self.named(Some(&opened.node.fh), (at.base, name));
        }
        if how.truncate && !opened.created {
            self.was_cut(&opened.node.fh).await;
            // The open exists, so an interruption of the caller does not end this.
            let own = RequestContext::new(cx.cred.clone());
            if let Err(e) = self.cut_again(&own, &mut opened).await {
                let _ = self.below.close(&own, &opened.node.fh, opened.open).await;
                return Err(e);
            }
        }
        if opened.created {
            self.note_new(&opened.node.fh);
            self.learn_owner(cx, &opened.node.attrs);
        }
        self.opened(&cx.cred, &mut opened, how);
        Ok(opened)
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        let Some(file) = self.known(fh) else { return self.below.close(cx, fh, open).await };
        let local = self.options.exclusive || self.wal.is_some() && self.may_wait(fh);
        let settled = {
            let mut s = file.state.lock();
            s.deferred.closed(open);
            s.is_settled() && (!local || s.journal.is_empty())
        };
        if settled {
            return self.close_clean(cx, &file, open, Ok(())).await;
        }
        let lazy = self.options.lazy_close || self.wal.is_none() && self.may_wait(fh);
        if (lazy || self.durable_here(&file).await) && self.close_lazily(cx, &file, open) {
            return Ok(());
        }
        detached(cx, self.this().close_dirty(RequestContext::new(cx.cred.clone()), file, open)).await
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        self.read_merged(cx, file, offset_bytes, len_bytes).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let delayed = self.known(file.fh);
        let (Some(delayed), Some(open), false) = (delayed, file.open, data.is_empty()) else {
            self.flush_first(cx, file.fh, First::Try).await?;
            return self.below.write(cx, file, offset_bytes, data, stability).await;
        };
        let writable = {
            let mut s = delayed.state.lock();
            s.errors.report(Some(open))?;
            s.errors.access(open).is_some_and(|a| a.contains(OpenAccess::WRITE))
        };
        let fits = offset_bytes.checked_add(data.len() as u64).is_some_and(|end| end <= OFFSET_MAX);
        let may_delay = writable && fits && !cx.clears_set_id;
        if stability == Stability::Stable && may_delay && self.commits_locally(file.fh) {
            let wrote = self.write_delayed(cx, &delayed, open, offset_bytes, data).await?;
            return self.durable_somewhere(&delayed).await.map(|()| wrote);
        }
        if stability == Stability::Stable || !may_delay {
            return self.write_on(cx, &delayed, open, offset_bytes, data, stability).await;
        }
        self.write_delayed(cx, &delayed, open, offset_bytes, data).await
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
        let Some(delayed) = self.known(file.fh) else { return self.below.commit(cx, file).await };
        if let Some(open) = file.open
            && !delayed.state.lock().is_settled()
            && self.is_nameless(cx, &delayed, open).await
        {
            return delayed.state.lock().errors.report(file.open);
        }
        if let Some(open) = file.open {
            delayed.state.lock().deferred.closed(open);
        }
        if self.durable_here(&delayed).await {
            return delayed.state.lock().errors.report(file.open);
        }
        let flushed = patient(cx, self.flush(&delayed, Reason::Commit, true)).await;
        let told = match &flushed {
            // The next commit reports the error instead.
            Err(e) if matches!(e.errno, libc::EINTR | libc::ETIMEDOUT) => Ok(()),
            _ => delayed.state.lock().errors.report(file.open),
        };
        flushed?;
        delayed.state.lock().unstable = false;
        let committed = self.commit_journaled(cx, &delayed, file.open).await;
        if committed.is_err() {
            delayed.state.lock().unstable = true;
        }
        self.tidy(&delayed);
        told.and(committed)
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        let made = self.below.create_whole(cx, dir, name, set, data).await?;
        self.learn_owner(cx, &made.node.attrs);
        self.named(Some(&made.node.fh), (dir, name));
        Ok(made)
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        self.send_mode(cx, fh).await.or_else(unless_interrupted)?;
        let asking = self.asking();
        let mut made = self.touching(&[Some(fh)], self.below.link(cx, fh, dir, name)).await?;
        if asking.is_spoiled() {
            let now = self.below.getattr(&cx.fresh(Instant::now()), File { fh, open: None }).await;
            made.node.attrs = now.unwrap_or(made.node.attrs);
        }
        if let Some(file) = self.known(fh) {
            file.state.lock().names = Names::Some;
        }
        self.times_end(fh);
        self.show(fh, &mut made.node.attrs);
        Ok(made)
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        self.flush_delegated(cx, target).await?;
        if let Some(losing) = self.losing_name(target, (dir, name)) {
            let (this, own, dir, name) = (self.this(), without_caller(cx), dir.clone(), name.clone());
            let unlink = async move {
                let (cx, target) = (RequestContext { target_unused: true, ..own }, Some(losing.fh()));
                let change = this.below.unlink(&cx, &dir, &name, target);
                match this.touching(&[target], change).await {
                    Ok(change) => {
                        this.lost_a_name(target).await;
                        losing.removed();
                        Ok(change)
                    }
                    Err(e) => {
                        losing.fail().await;
                        Err(e)
                    }
                }
            };
            return detached(cx, unlink).await;
        }
        let change = self.touching(&[target], self.below.unlink(cx, dir, name, target)).await?;
        self.lost_a_name(target).await;
        Ok(change)
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        // The list is taken first: a file that makes the call fail may have left afterwards.
        let leaving = self.leaving();
        match self.below.rmdir(cx, dir, name).await {
            Err(e) if matches!(e.errno, libc::ENOTEMPTY | libc::EEXIST) && !leaving.is_empty() => {
                self.have_left(cx, &leaving).await?;
                self.below.rmdir(cx, dir, name).await
            }
            removed => removed,
        }
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        self.flush_delegated(cx, replaced).await?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let losing = self.losing_name(replaced.filter(|_| !exchange), to);
        let Some(losing) = losing else { return self.move_name(cx, from, to, replaced, flags).await };
        let (this, own) = (self.this(), without_caller(cx));
        let from = (from.0.clone(), from.1.clone());
        let to = (to.0.clone(), to.1.clone());
        detached(cx, async move {
            let (cx, replaced) = (RequestContext { target_unused: true, ..own }, Some(losing.fh()));
            let moved = this.move_name(&cx, (&from.0, &from.1), (&to.0, &to.1), replaced, flags).await;
            match &moved {
                Ok(_) => losing.removed(),
                Err(_) => losing.fail().await,
            }
            moved
        })
        .await
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
        let (_asking, page) =
            ask!(self, cx => self.below.readdir(cx, dir, cookie, verifier, max_bytes, nodes).await);
        let mut page = page?;
        self.show_nodes(page.entries.iter_mut().filter_map(|e| e.node.as_mut()));
        Ok(page)
    }

    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        self.send_mode(cx, fh).await.or_else(unless_interrupted)?;
        self.below.getxattr(cx, fh, name).await
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        self.send_mode(cx, fh).await?;
        let set = self.touching(&[Some(fh)], self.below.setxattr(cx, fh, name, value, mode)).await;
        self.forget_shown(fh);
        set
    }

    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>> {
        self.send_mode(cx, fh).await.or_else(unless_interrupted)?;
        self.below.listxattr(cx, fh).await
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        self.send_mode(cx, fh).await?;
        let removed = self.touching(&[Some(fh)], self.below.removexattr(cx, fh, name)).await;
        self.forget_shown(fh);
        removed
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
        self.flush_first(cx, file.fh, First::Try).await?;
        let mut attrs = self.below.lock(cx, file, owner, kind, range, wait).await?;
        let delayed = self.known(file.fh);
        if let Some(delayed) = &delayed {
            // Writes of an earlier lock holder must become visible.
            delayed.state.lock().view.forget();
        }
        match (&delayed, &mut attrs) {
            (Some(delayed), Some(attrs)) => drop(self.show_program(cx, delayed, attrs).await),
            (None, Some(attrs)) => self.show(file.fh, attrs),
            (_, None) => {}
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
        let Some(delayed) = self.known(file.fh).filter(|f| !f.state.lock().is_settled()) else {
            return self.below.unlock(cx, file, owner, range).await;
        };
        let (this, own, open) = (self.this(), RequestContext::new(cx.cred.clone()), file.open);
        detached(cx, async move {
            // A later fsync or close returns the error. The lock must not stay because of it.
            if let Err(e) = this.flush(&delayed, Reason::Order, false).await {
                this.give_up_refused(&delayed, open, &e).await;
            }
            this.below.unlock(&own, File { fh: &delayed.fh, open }, owner, range).await
        })
        .await
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        self.flush_first(cx, file.fh, First::Must).await?;
        self.below.seek(cx, file, offset_bytes, what).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let Some(delayed) = self.known(file.fh) else { return self.below.allocate(cx, file, range).await };
        let (this, own, open) = (self.this(), cx.clone(), file.open);
        detached(cx, async move {
            let at = File { fh: &delayed.fh, open };
            let call = this.below.allocate(&own, at, range);
            this.alone(&delayed, Order { flush: First::Must, cut: None }, call, |_| None).await?;
            delayed.state.lock().view.changed(Instant::now(), range.end_bytes, None, false);
            Ok(())
        })
        .await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let Some(delayed) = self.known(file.fh) else { return self.below.deallocate(cx, file, range).await };
        let (this, own, open) = (self.this(), cx.clone(), file.open);
        detached(cx, async move {
            let at = File { fh: &delayed.fh, open };
            let call = this.below.deallocate(&own, at, range);
            this.alone(&delayed, Order { flush: First::Must, cut: None }, call, |_| None).await
        })
        .await
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
        if self.is_small_copy(from.fh, from_offset_bytes, len_bytes) {
            return Err(Error::new(libc::EOPNOTSUPP));
        }
        self.flush_first(cx, from.fh, First::Must).await?;
        let Some(delayed) = self.known(to.fh) else {
            return self.below.copy(cx, from, from_offset_bytes, to, to_offset_bytes, len_bytes).await;
        };
        let (this, own, open) = (self.this(), cx.clone(), to.open);
        let (from_fh, from_open) = (from.fh.clone(), from.open);
        detached(cx, async move {
            let from = File { fh: &from_fh, open: from_open };
            let to = File { fh: &delayed.fh, open };
            let call = this.below.copy(&own, from, from_offset_bytes, to, to_offset_bytes, len_bytes);
            let copied =
                this.alone(&delayed, Order { flush: First::Must, cut: None }, call, |_| None).await?;
            let end = if copied > 0 { to_offset_bytes.saturating_add(copied) } else { 0 };
            delayed.state.lock().view.changed(Instant::now(), end, None, false);
            Ok(copied)
        })
        .await
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        // The interface permits one subscription.
        let _ = self.above.set(upcalls);
        self.below.subscribe(Arc::new(Relay(self.this.clone())));
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        let flushed = patient(cx, self.flush_all(Reason::Shutdown)).await;
        let committed = patient(cx, self.commit_journal()).await;
        if flushed.is_ok() {
            // A failure is the layer below's to report: it closes these files, too.
            let _ = patient(cx, self.lazy_closes_end()).await;
        }
        let ended = flushed.and(committed).and(self.below.shutdown(cx).await);
        self.end_journal();
        ended
    }
}

#[async_trait]
impl BatchOps for WriteBack {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<hither_vfs::Attrs>> {
        let (_asking, mut all) = ask!(self, cx => self.below.getattr_many(cx, objects).await);
        for (fh, attrs) in objects.iter().zip(&mut all) {
            match (self.known(fh), attrs) {
                (Some(file), Ok(attrs)) => drop(self.show_program(cx, &file, attrs).await),
                (None, Ok(attrs)) => self.show(fh, attrs),
                (_, Err(_)) => {}
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
        self.revalidated(cx, objects, want).await
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        for fh in files {
            if let Err(e) = self.flush_first(cx, fh, First::Try).await {
                return ReadManyResult {
                    files: files.iter().map(|_| Err(e.clone())).collect(),
                    holder: None,
                };
            }
        }
        let (_asking, mut all) = ask!(self, cx => self.below.read_many(cx, files, holder, max_bytes).await);
        for (fh, fetched) in files.iter().zip(&mut all.files) {
            let (Some(file), Ok(f)) = (self.known(fh), &mut *fetched) else { continue };
            let asked = f.attrs.asked;
            self.show(fh, &mut f.attrs);
            if !file.state.lock().is_plain(asked) {
                // The file was written meanwhile, or could not be sent. The caller must read it
                // alone.
                *fetched = Err(Error::new(libc::EAGAIN));
            }
        }
        all
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(hither_vfs::Attrs, DirPage)>> {
        let (_asking, mut all) = ask!(self, cx => self.below.list_many(cx, dirs, max_bytes).await);
        let pages = all.iter_mut().filter_map(|r| r.as_mut().ok());
        self.show_nodes(pages.flat_map(|(_, p)| p.entries.iter_mut().filter_map(|e| e.node.as_mut())));
        all
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        self.make_many(cx, dir, new).await
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        let (this, own, at, names) = (self.this(), without_caller(cx), dir.clone(), gone.to_vec());
        let all = detached(cx, async move { Ok(this.take_many(&own, &at, &names).await) }).await;
        all.unwrap_or_else(|e| gone.iter().map(|_| Err(e.clone())).collect())
    }
}
