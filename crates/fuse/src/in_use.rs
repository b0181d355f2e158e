//! Tracks whether a file is open, for the removal of its names.
//!
//! A starting open holds the gate of its file shared, from before its first request until its
//! handle is registered. The removal of a name (unlink(2), or rename(2) to it) holds the gate
//! exclusively. So a removal sees an open, or precedes it.
//!
//! A removal also holds the gate of the directory shared. The lookup of a thread that must find a
//! file before its removal holds that gate exclusively.
//!
//! The kernel sends RELEASE just before close(2) returns, but does not wait for the answer. The
//! next removal of the program can overtake the RELEASE. A handle that was flushed and not used
//! since is probably being released, unless the program has a second descriptor of it. A removal
//! waits a short time for such handles. A lock that is refused waits for them, too, because a
//! closed handle has no locks any more.
//!
//! When an open file loses its name, the layer below renames it to a hidden name, and removes that
//! at the close. The removal of the directory waits for such closes.

use crate::handles::OpenFile;
use crate::inode::{Ident, Inode};
use crate::session::Session;
use hither_vfs::{Cred, OpenAccess, OpenHow, PathRef, RequestContext, Result};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{Notify, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::{Instant, timeout_at};

/// Maximum wait for the release of flushed handles. The first is for the removal of a file's name,
/// the second for the removal of a directory with files that were in it.
const RELEASE_WAIT: Duration = Duration::from_millis(100);
const EMPTY_WAIT: Duration = Duration::from_secs(5);
/// Maximum wait of the removal of a directory for running closes.
const CLOSE_WAIT: Duration = Duration::from_secs(30);

/// Opens and handles of a file.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    /// Of a file: opens shared, removals of its names exclusively. Of a directory: removals of
    /// names in it shared, lookups between removals exclusively.
    gate: RwLock<()>,
    handles: Mutex<Handles>,
    /// Notified when a handle is released or used.
    changed: Notify,
    /// This mount is removing the directory, or has removed it.
    dir_removed: AtomicBool,
}

#[derive(Debug, Default)]
struct Handles {
    open: usize,
    /// Number of handles that may be closed already.
    quiet: usize,
    /// Number of handles through which a program can store into a shared mapping.
    mappable: usize,
    /// Number of handles that the layer below is closing.
    closing: usize,
    /// Number of handles that the layer below has closed.
    closes: u64,
    /// Directories in which a name was removed while a handle was open. The layer below may have a
    /// hidden name there.
    left: SmallVec<[Ident; 1]>,
}

/// Files that lost a name while a handle was open, by the directory of the name. The kernel may
/// forget the directory in the meantime and find it again with another number.
#[derive(Debug, Default)]
pub(crate) struct Removed(Mutex<HashMap<Ident, Vec<Arc<Inode>>>>);

/// Whether the kernel may be releasing a handle.
#[derive(Debug)]
pub(crate) struct Quiet {
    now: AtomicBool,
    /// The kernel sends no FLUSH for the handle, so it may be closed at any time.
    untold: bool,
    /// A program can store into a shared mapping through the handle.
    mappable: bool,
}

impl InUse {
    /// Starts an open, which ends when the result is dropped.
    pub async fn opening(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// Starts the removal of a name. Waits for running opens, and blocks new ones until the result
    /// is dropped.
    pub async fn removing(&self) -> RwLockWriteGuard<'_, ()> {
        self.wait_for_releases(RELEASE_WAIT).await;
        self.gate.write().await
    }

    /// Starts the removal of a name in this directory, which ends when the result is dropped.
    pub async fn removing_name(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// Waits for running removals of names in this directory, and blocks new ones until the result
    /// is dropped.
    pub async fn names_stay(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    /// The removal of a directory starts, or has failed.
    pub fn removes_dir(&self, removed: bool) {
        self.dir_removed.store(removed, Ordering::Relaxed);
    }

    /// Whether this mount is removing the directory, or has removed it.
    pub fn is_dir_removed(&self) -> bool {
        self.dir_removed.load(Ordering::Relaxed)
    }

    /// Waits for running opens.
    pub async fn opens_end(&self) {
        drop(self.gate.write().await);
    }

    /// Waits until no handle is open, or one is certainly in use. Returns false after the timeout.
    async fn wait_for_releases(&self, most: Duration) -> bool {
        self.when(most, |handles| handles.open == 0 || handles.quiet < handles.open).await
    }

    /// Whether a handle is open or being closed. The removal of a name must find such a file.
    pub fn is_held(&self) -> bool {
        let handles = self.handles.lock();
        handles.open + handles.closing > 0
    }

    /// Number of handles that the layer below has closed.
    pub fn closes(&self) -> u64 {
        self.handles.lock().closes
    }

    /// Waits a short time until no handle may be closed already, or is being closed. Returns false
    /// when there was none, and none was closed after the count `before` of [`InUse::closes`]. The
    /// locks of a handle end with its close at the latest.
    pub async fn closed_handles_end(&self, before: u64) -> bool {
        {
            let handles = self.handles.lock();
            if handles.quiet + handles.closing == 0 {
                return handles.closes != before;
            }
        }
        self.when(RELEASE_WAIT, |handles| handles.quiet + handles.closing == 0).await;
        true
    }

    /// Waits until the layer below has closed all handles. Returns false when one may be in use.
    async fn closes_end(&self) -> bool {
        self.wait_for_releases(EMPTY_WAIT).await
            && self.when(CLOSE_WAIT, |handles| handles.open > 0 || handles.closing == 0).await
            && self.handles.lock().open == 0
    }

    async fn when(&self, most: Duration, is_so: impl Fn(&Handles) -> bool) -> bool {
        let until = Instant::now() + most;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&self.handles.lock()) {
                return true;
            }
            if timeout_at(until, changed).await.is_err() {
                return false;
            }
        }
    }

    /// Registers a handle. `told`: the kernel sends a FLUSH at each close.
    pub fn opened(&self, access: OpenAccess, told: bool) -> Quiet {
        let mappable = access.contains(OpenAccess::READ | OpenAccess::WRITE);
        let mut handles = self.handles.lock();
        handles.open += 1;
        handles.quiet += usize::from(!told);
        handles.mappable += usize::from(mappable);
        Quiet { now: AtomicBool::new(!told), untold: !told, mappable }
    }

    /// Whether a program may have stored into a shared mapping of the file.
    pub fn may_be_mapped(&self) -> bool {
        self.handles.lock().mappable > 0
    }

    /// A descriptor of the handle was closed.
    pub fn flushed(&self, handle: &Quiet) {
        self.set(handle, true);
    }

    /// A program uses the handle.
    pub fn used(&self, handle: &Quiet) {
        if handle.now.load(Ordering::Relaxed) != handle.untold {
            self.set(handle, handle.untold);
        }
    }

    /// The layer below has started to close the handle.
    pub fn released(&self, handle: &Quiet) {
        {
            let mut handles = self.handles.lock();
            handles.quiet -= usize::from(handle.now.swap(false, Ordering::Relaxed));
            handles.open -= 1;
            handles.mappable -= usize::from(handle.mappable);
            handles.closing += 1;
        }
        self.changed.notify_waiters();
    }

    /// A close has ended, of a file that lost no name.
    #[cfg(test)]
    pub fn closed_alone(&self) {
        self.handles.lock().closing -= 1;
    }

    fn set(&self, handle: &Quiet, quiet: bool) {
        let mut handles = self.handles.lock();
        match (handle.now.swap(quiet, Ordering::Relaxed), quiet) {
            (false, true) => handles.quiet += 1,
            (true, false) => handles.quiet -= 1,
            _ => return,
        }
        drop(handles);
        self.changed.notify_waiters();
    }
}

impl Removed {
    /// A name of a file in directory `dir` was removed.
    pub fn add(&self, file: &Arc<Inode>, dir: Ident) {
        let mut handles = file.in_use.handles.lock();
        if handles.open + handles.closing > 0 && !handles.left.contains(&dir) {
            handles.left.push(dir);
            self.0.lock().entry(dir).or_default().push(file.clone());
        }
    }

    /// Files that lost a name in this directory and have not been closed since.
    pub fn of(&self, dir: Ident) -> Vec<Arc<Inode>> {
        self.0.lock().get(&dir).cloned().unwrap_or_default()
    }

    /// The layer below has closed a handle of a file.
    fn closed(&self, file: &Inode) {
        let mut handles = file.in_use.handles.lock();
        handles.closing -= 1;
        handles.closes += 1;
        if handles.open + handles.closing == 0 {
            let mut removed = self.0.lock();
            for dir in handles.left.drain(..) {
                let Some(files) = removed.get_mut(&dir) else { continue };
                files.retain(|f| !std::ptr::eq(&**f, file));
                if files.is_empty() {
                    removed.remove(&dir);
                }
            }
        }
        drop(handles);
        file.in_use.changed.notify_waiters();
    }
}

impl Session {
    /// Closes an open that was removed from the table. Removals of the file's names wait until the
    /// layer below has started the close, and no longer.
    pub async fn close_below(&self, cx: &RequestContext, file: &OpenFile) -> Result<()> {
        let fh = file.inode.fh();
        let mut close = std::pin::pin!(self.vfs.close(cx, &fh, file.open));
        let begun = std::future::poll_fn(|task| Poll::Ready(close.as_mut().poll(task))).await;
        file.inode.in_use.released(&file.quiet);
        let closed = match begun {
            Poll::Ready(closed) => closed,
            Poll::Pending => close.await,
        };
        self.closed(&file.inode);
        closed
    }

    /// The layer below has closed a handle of a file.
    fn closed(&self, file: &Inode) {
        self.removed.closed(file);
        self.forget(file.id, 0);
    }

    /// Waits until the layer below has closed all handles of a file that lost a name. Returns false
    /// when one may be in use. A thread that found the file may never open it, so the file is not
    /// kept for it any longer.
    pub async fn closes_end(&self, file: &Inode) -> bool {
        if !file.in_use.wait_for_releases(RELEASE_WAIT).await {
            self.stale_retries.give_up(file.id);
        }
        file.in_use.closes_end().await
    }

    /// Keeps a file open until the thread that found it has opened it. `cred` is the identity of
    /// the thread.
    pub async fn keep_open(self: &Arc<Self>, inode: &Arc<Inode>, cred: Arc<Cred>) {
        let (fh, cx) = (inode.fh(), RequestContext::new(cred));
        for access in [OpenAccess::READ, OpenAccess::WRITE] {
            let how = OpenHow::existing(access);
            let Ok(opened) = self.vfs.open(&cx, PathRef::fh(&fh), &how).await else { continue };
            let (session, inode) = (self.clone(), inode.clone());
            let quiet = inode.in_use.opened(access, false);
            self.aside(async move {
                session.stale_retries.expected(inode.id).await;
                // The open of the thread has ended.
                inode.in_use.opens_end().await;
                inode.in_use.released(&quiet);
                let _ = session.vfs.close(&cx, &fh, opened.open).await;
                session.closed(&inode);
            });
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Duration of a removal of a name in milliseconds.
    async fn removal_ms(file: &InUse) -> u128 {
        let began = Instant::now();
        drop(file.removing().await);
        began.elapsed().as_millis()
    }

    #[tokio::test(start_paused = true)]
    async fn removal_waits_for_a_release() {
        let file = InUse::default();
        assert_eq!(removal_ms(&file).await, 0);
        let (told, other) = (file.opened(OpenAccess::READ, true), file.opened(OpenAccess::READ, true));
        assert_eq!(removal_ms(&file).await, 0, "both are in use");
        file.flushed(&told);
        assert_eq!(removal_ms(&file).await, 0, "the other one is");
        file.released(&other);
        assert_eq!(removal_ms(&file).await, 100, "a second descriptor is open");
        file.used(&told);
        assert_eq!(removal_ms(&file).await, 0);
        file.flushed(&told);
        let released = async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            file.released(&told);
        };
        assert_eq!(tokio::join!(removal_ms(&file), released).0, 3);
        let untold = file.opened(OpenAccess::READ, false);
        file.used(&untold);
        assert_eq!(removal_ms(&file).await, 100);
        file.released(&untold);
        assert_eq!(removal_ms(&file).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn empty_directory_waits_for_closes() {
        let file = InUse::default();
        assert!(file.closes_end().await);
        let (closed, used) = (file.opened(OpenAccess::READ, true), file.opened(OpenAccess::READ, true));
        file.flushed(&closed);
        file.released(&closed);
        assert!(!file.closes_end().await, "the other one is in use");
        file.flushed(&used);
        let (began, late) = (Instant::now(), Duration::from_secs(20));
        let close = async {
            file.released(&used);
            tokio::time::sleep(late).await;
            file.handles.lock().closing -= 2;
            file.changed.notify_waiters();
        };
        assert!(tokio::join!(file.closes_end(), close).0);
        assert_eq!(began.elapsed(), late);
    }

    #[tokio::test(start_paused = true)]
    async fn removal_and_open_exclude_each_other() {
        let file = InUse::default();
        let opening = file.opening().await;
        assert!(timeout_at(Instant::now(), file.removing()).await.is_err());
        drop(opening);
        let removing = file.removing().await;
        assert!(timeout_at(Instant::now(), file.opening()).await.is_err());
        drop(removing);
        drop(file.opening().await);
    }
}
