//! The layer between the server and the layers of a mount. On a mount, the kernel opens a file
//! before it reads or writes. Opens check rights and revalidate. NFSv3 clients never open.

use crate::options::Wanted;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use hither_vfs::{
    Access, Attrs, BatchOps, Create, Data, DirPage, Error, Fh, File, FileKind, FileRange, Node, OpenAccess,
    OpenHow, OpenId, Opened, PathRef, Read, RequestContext, Result, Seek, Stability, Vfs, WalkRequest,
    WalkResult, Wrote,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::watch;
use tokio::time::Instant;

/// Most files in [`Guard::uncommitted`].
const UNCOMMITTED_MAX: usize = 16_384;

/// Checks the rights of reads and writes without an open, and the freshness of answers.
pub struct Guard {
    below: Arc<dyn Vfs>,
    close_to_open: bool,
    strict: bool,
    /// Files with UNSTABLE writes without an open, until their COMMIT.
    uncommitted: Mutex<HashSet<Fh>>,
    /// The root as last seen.
    root: Mutex<Option<Node>>,
    /// True while the origin is away and expired answers hold (`stale-ok=`).
    away: watch::Receiver<bool>,
}

/// An open for one read. It is also closed when the read is given up.
struct ReadOpen {
    close: Option<BoxFuture<'static, ()>>,
}

impl ReadOpen {
    fn new(below: &Arc<dyn Vfs>, cx: &RequestContext, fh: &Fh, open: OpenId) -> Self {
        let (below, cx, fh) = (below.clone(), cx.clone(), fh.clone());
        let close = async move { drop(below.close(&cx, &fh, open).await) };
        Self { close: Some(Box::pin(close)) }
    }

    /// Starts the close. Nothing was written through the open, so the reply does not wait for the
    /// CLOSE, which goes along with others.
    async fn close(&mut self) {
        let Some(mut close) = self.close.take() else { return };
        let begun = poll_fn(|task| Poll::Ready(close.as_mut().poll(task))).await;
        if begun.is_pending() {
            tokio::spawn(close);
        }
    }
}

impl Drop for ReadOpen {
    fn drop(&mut self) {
        if let (Some(close), Ok(runtime)) = (self.close.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(close);
        }
    }
}

impl Guard {
    /// A guard over the layers of a mount with these options.
    pub fn new(below: Arc<dyn Vfs>, wanted: &Wanted, away: watch::Receiver<bool>) -> Self {
        let (close_to_open, strict) = (wanted.close_to_open, wanted.is_strict());
        Self { below, close_to_open, strict, uncommitted: Mutex::default(), root: Mutex::default(), away }
    }

    /// The context for a call. `nocto`: answers are as old as the options of the attribute cache
    /// permit, also when a client opens a file.
    fn context(&self, cx: &RequestContext) -> RequestContext {
        if self.strict {
            return cx.fresh(Instant::now());
        }
        let fresh_since = cx.fresh_since.filter(|_| self.close_to_open);
        RequestContext { fresh_since, ..cx.clone() }
    }

    /// Makes a call that changes nothing. When the origin goes away meanwhile, the call is made
    /// again, so that it finds an expired answer.
    async fn ask<'a, T>(&self, call: impl Fn() -> BoxFuture<'a, Result<T>>) -> Result<T> {
        let mut away = self.away.clone();
        if *away.borrow_and_update() {
            return call().await;
        }
        let gone = async {
            // Without `stale-ok=` there is no sender.
            if away.wait_for(|away| *away).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            done = call() => done,
            () = gone => call().await,
        }
    }

    /// Records an UNSTABLE write without an open, or a COMMIT.
    fn written(&self, fh: &Fh, is_stable: bool) {
        let mut files = self.uncommitted.lock();
        if is_stable {
            files.remove(fh);
        } else if files.len() < UNCOMMITTED_MAX {
            files.insert(fh.clone());
        } else {
            // Clients that never commit must not fill the memory.
            files.clear();
        }
    }

    /// Opens a file for one read, because the caches only have bytes of open files. A wholly cached
    /// file costs no request. Fails when the caller may not read, although its owner.
    async fn open_to_read(&self, cx: &RequestContext, fh: &Fh) -> Result<Opened> {
        let attrs = self.below.getattr(cx, File { fh, open: None }).await?;
        let may_read = self.below.access(cx, fh, Access::READ).await?.contains(Access::READ);
        let known = may_read.then_some(attrs);
        let how = OpenHow { execute: !may_read, known, ..OpenHow::existing(OpenAccess::READ) };
        self.below.open(cx, PathRef::fh(fh), &how).await
    }

    /// Reads with a check of rights. `cx` has the freshness of the options.
    async fn read_checked(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        self.check(cx, file, Access::READ | Access::EXECUTE).await?;
        // A close would commit the writes of the file.
        if file.open.is_none()
            && !self.uncommitted.lock().contains(file.fh)
            && let Ok(opened) = self.open_to_read(cx, file.fh).await
        {
            let mut open = ReadOpen::new(&self.below, cx, file.fh, opened.open);
            let at = File { fh: file.fh, open: Some(opened.open) };
            let read = self.below.read(cx, at, offset_bytes, len_bytes).await;
            open.close().await;
            return read;
        }
        self.below.read(cx, file, offset_bytes, len_bytes).await
    }

    /// The answer to a walk from the caches, while the origin is away.
    fn away_answer(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        let away = *self.away.borrow();
        away.then(|| self.below.peek(cx, at)).flatten()
    }

    /// Checks that a caller without an open has one of the rights in `want`. The owner of a file
    /// has them, as at other servers, because NFSv3 clients check rights only when a program opens.
    ///
    /// # Errors
    /// `EACCES`, and those of the layer below.
    async fn check(&self, cx: &RequestContext, file: File<'_>, want: Access) -> Result<()> {
        if file.open.is_some() || self.below.access(cx, file.fh, want).await?.intersects(want) {
            return Ok(());
        }
        let attr = self.below.getattr(cx, file).await?.attr;
        if attr.uid == cx.cred.uid { Ok(()) } else { Err(Error::new(libc::EACCES)) }
    }
}

#[async_trait]
impl Vfs for Guard {
    hither_vfs::delegate!(self.below;
        parent, setattr, close, finish, create_whole, mkdir, mknod, symlink, link, unlink, rmdir,
        rename, statfs, getxattr, setxattr, listxattr, removexattr, lock, unlock, test_lock, subscribe,
        shutdown,
    );

    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        self.ask(|| {
            let away = *self.away.borrow();
            let known = away.then(|| self.root.lock().clone()).flatten();
            Box::pin(async {
                match known {
                    Some(node) => Ok(node),
                    None => self.below.root(cx).await,
                }
            })
        })
        .await
        .inspect(|node| *self.root.lock() = Some(node.clone()))
    }

    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult> {
        self.below.peek(&self.context(cx), at)
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        // NFSv3 clients open a file with the attributes that come with its name. NFSv4 clients open
        // it in the same call.
        let is_file = |node: &Node| node.attrs.attr.kind == FileKind::Regular;
        if let Some(known) = self.peek(cx, at)
            && (*self.away.borrow() || !known.steps.last().is_some_and(is_file))
        {
            return Ok(known);
        }
        let access = want.access | Access::READ | Access::EXECUTE | Access::MODIFY | Access::EXTEND;
        let cx = self.context(&cx.fresh(Instant::now()));
        self.ask(|| match self.away_answer(&cx, at) {
            Some(known) => Box::pin(std::future::ready(Ok(known))),
            None => self.below.walk(&cx, at, WalkRequest { access, ..want }),
        })
        .await
    }

    /// Attributes as of the call. Those of a directory are as old as the options of the attribute
    /// cache permit, because clients revalidate each directory that they list.
    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        let fresh = self.context(cx);
        if !self.strict {
            let cx = RequestContext { fresh_since: None, ..cx.clone() };
            let attrs = self.ask(|| self.below.getattr(&cx, file)).await?;
            let is_fresh = fresh.fresh_since.is_none_or(|since| attrs.asked >= since);
            if is_fresh || attrs.attr.kind == FileKind::Directory {
                return Ok(attrs);
            }
        }
        self.ask(|| self.below.getattr(&fresh, file)).await
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        let cx = self.context(cx);
        self.ask(|| self.below.access(&cx, fh, want)).await
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        let cx = self.context(cx);
        self.ask(|| self.below.readlink(&cx, fh)).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let cx = self.context(cx);
        if how.access == OpenAccess::READ && !how.truncate && how.create == Create::No {
            return self.ask(|| self.below.open(&cx, at, how)).await;
        }
        self.below.open(&cx, at, how).await
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
        let cx = self.context(cx);
        self.ask(|| self.below.readdir(&cx, dir, cookie, verifier, max_bytes, nodes)).await
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let cx = self.context(cx);
        self.ask(|| Box::pin(self.read_checked(&cx, file, offset_bytes, len_bytes))).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        self.check(cx, file, Access::MODIFY | Access::EXTEND).await?;
        if file.open.is_none() && stability == Stability::Unstable {
            self.written(file.fh, false);
        }
        self.below.write(cx, file, offset_bytes, data, stability).await
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        // Without unstable writes the layers of a mount do not ask the origin.
        if !self.uncommitted.lock().contains(file.fh) {
            match self.below.getattr(cx, file).await?.attr.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Error::new(libc::EISDIR)),
                _ => return Err(Error::new(libc::EINVAL)),
            }
        }
        self.below.commit(cx, file).await?;
        self.written(file.fh, true);
        Ok(())
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        self.check(cx, file, Access::READ | Access::EXECUTE).await?;
        self.below.seek(cx, file, offset_bytes, what).await
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        self.check(cx, file, Access::MODIFY | Access::EXTEND).await?;
        self.below.allocate(cx, file, range).await
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        self.check(cx, file, Access::MODIFY).await?;
        self.below.deallocate(cx, file, range).await
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
        self.check(cx, from, Access::READ | Access::EXECUTE).await?;
        self.check(cx, to, Access::MODIFY | Access::EXTEND).await?;
        self.below.copy(cx, from, from_offset_bytes, to, to_offset_bytes, len_bytes).await
    }
}

#[async_trait]
impl BatchOps for Guard {
    hither_vfs::delegate!(self.below;
        getattr_many, revalidate_many, read_many, list_many, create_many, remove_many,
    );
}
