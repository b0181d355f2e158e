//! The calls that delay attributes, and the calls that need them at the server.
//!
//! The module knows nothing of the conditions for a delay (`deferred.rs`) and of sending
//! (`finish.rs`). All programs on this machine see delayed attributes, and delayed permissions only
//! add rights. A request for attributes is therefore answered and then corrected. A call that the
//! server allows is right. Only a call that the server may refuse for lack of the permissions needs
//! them there. The permissions of that file are then sent alone, without its bytes and without
//! other files.
//!
//! | Call | Effect | Reason |
//! |---|---|---|
//! | `walk`, `peek`, `getattr`, `getattr_many`, `readdir`, `list_many`, `root` | show delayed attributes; the access rights in a walk are omitted | nothing is decided |
//! | `open` by name or handle | calls the server; after a refusal sends the permissions of that file and calls again | the permissions only add rights |
//! | `open` by handle with truncation | sends the permissions first | truncated bytes are void even if the open is refused |
//! | `access`, `revalidate_many` | send the permissions first | the server decides the answer |
//! | `setattr` | is delayed too, or sends the file first; with a length, an owner or a group it sends the permissions first, whatever happens to the bytes | the permissions allow a truncation, and after a change of owner the caller may no longer set them |
//! | `getxattr`, `listxattr` | send the permissions first | the permissions decide, and access control lists show them |
//! | `setxattr`, `removexattr` | send the permissions first, and fail if that fails | access control lists are permissions, and come after |
//! | `link` | sends the permissions first | servers refuse links to files that the caller may not use |
//! | `read_many`, `seek`, `lock`, `unlock`, `copy`, `allocate`, `deallocate`, synchronous writes | send the whole file first | these calls concern its bytes |
//! | `commit`, the last `close`, `sync`, recalls, `shutdown` | send the whole file and return errors | this is their purpose |
//! | `read`, `write`, `test_lock` | no effect | the open was allowed |
//! | `unlink`, `rename`, `rmdir` | no effect | the directory decides; a file without names needs no attributes |
//! | `readlink`, `mkdir`, `mknod`, `symlink`, `statfs` | no effect | these calls concern other objects |

use super::WriteBack;
use super::file::{File, State};
use super::questions::ask;
use super::stats::Counters;
use super::wait::patient;
use hither_vfs::{
    Access, Attrs, Error, Fh, OpenHow, Opened, PathRef, RequestContext, Result, SetAttr, SetTime, WalkRequest,
};
use std::sync::Arc;
use tokio::time::Instant;

impl WriteBack {
    /// Delays a change of attributes until the end of the file, if that is permitted.
    pub(super) fn defer(&self, cx: &RequestContext, file: &Arc<File>, set: &SetAttr) -> Option<Attrs> {
        if !self.options.delay_attributes {
            return None;
        }
        let (now, wall) = (Instant::now(), self.clock.now());
        let mut s = file.state.lock();
        let shown = s.shown()?;
        let mut set = s.deferred.may_wait(&cx.cred, set, &shown, !s.extents.is_clean())?;
        if set.atime == Some(SetTime::Now) {
            // The visible time is the final one.
            set.atime = Some(SetTime::To(wall));
        }
        s.deferred.add(&set, now, wall);
        s.seen = None;
        self.shown.lock().forget(&file.fh);
        if s.deferred.is_sealed() {
            // A caller waits for the waiting attributes, so bytes written in between are sent
            // first.
            s.seal();
        }
        self.look_after(&mut s, file, now);
        let shown = s.shown();
        drop(s);
        Counters::add(&self.counters.attributes_merged, 1);
        self.pump(file);
        shown
    }

    /// Queues a file to be sent by age.
    pub(super) fn look_after(&self, s: &mut State, file: &Arc<File>, now: Instant) {
        if s.queued.is_none() {
            s.queued = Some(self.ages.push(now + self.options.dirty_age, file));
        }
    }

    /// Sends delayed permissions, before a request whose answer depends on them.
    ///
    /// # Errors
    /// The error of the attempt, or the caller's interruption. A later fsync or close returns a
    /// permanent refusal.
    pub(super) async fn send_mode(&self, cx: &RequestContext, fh: &Fh) -> Result<()> {
        match self.known(fh).filter(|file| self.urge(file)) {
            Some(file) => patient(cx, Self::mode_sent(&file)).await,
            None => Ok(()),
        }
    }

    /// Like [`Self::send_mode`], for many files in parallel, as far as possible.
    ///
    /// # Errors
    /// The caller's interruption.
    pub(super) async fn send_modes(&self, cx: &RequestContext, files: &[Fh]) -> Result<()> {
        let deferred: Vec<_> =
            files.iter().filter_map(|fh| self.known(fh)).filter(|file| self.urge(file)).collect();
        patient(cx, async {
            for file in &deferred {
                let _ = Self::mode_sent(file).await;
            }
            Ok(())
        })
        .await
    }

    /// Urges delayed permissions. Returns whether there are any.
    fn urge(&self, file: &Arc<File>) -> bool {
        {
            let mut s = file.state.lock();
            if !s.deferred.has_mode() {
                return false;
            }
            s.deferred.urge();
        }
        self.pump(file);
        true
    }

    async fn mode_sent(file: &Arc<File>) -> Result<()> {
        file.when(|s| match (s.deferred.has_mode(), s.deferred.mode_goes()) {
            (false, _) => Some(Ok(())),
            (true, true) => None,
            (true, false) => {
                Some(Err(s.deferred.trouble().cloned().unwrap_or_else(|| Error::new(libc::EIO))))
            }
        })
        .await
    }

    /// Opens a file below. After a refusal for lack of delayed permissions, sends these and opens
    /// again.
    pub(super) async fn open_with_modes_sent(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        how: &OpenHow,
    ) -> Result<Opened> {
        let since = Instant::now();
        let refused = match self.below.open(cx, at, how).await {
            Err(e) if matches!(e.errno, libc::EACCES | libc::EPERM) && self.is_used() => e,
            outcome => return outcome,
        };
        let meant = match at.path {
            [] => Some(at.base.clone()),
            path => {
                let trail = self.below.walk(cx, at, WalkRequest::default()).await;
                let whole = trail.ok().filter(|trail| trail.steps.len() == path.len());
                whole.and_then(|mut trail| trail.steps.pop()).map(|node| node.fh)
            }
        };
        // The permissions may have reached the server while the refusal was in flight.
        let has_deferred = |s: &State| s.deferred.has_mode() || s.deferred.mode_landed_since(since);
        let has_deferred = |fh: &Fh| self.known(fh).is_some_and(|file| has_deferred(&file.state.lock()));
        let Some(fh) = meant.filter(has_deferred) else { return Err(refused) };
        match self.send_mode(cx, &fh).await {
            Ok(()) => self.below.open(cx, at, how).await,
            Err(e) if matches!(e.errno, libc::EINTR | libc::ETIMEDOUT) => Err(e),
            // The program that set the permissions gets their error.
            Err(_) => Err(refused),
        }
    }

    /// Drops the known attributes, because the permissions may have changed.
    pub(super) fn forget_shown(&self, fh: &Fh) {
        if let Some(file) = self.known(fh) {
            file.state.lock().view.forget();
        }
        self.times_end(fh);
    }

    /// Whether any file may have delayed attributes.
    fn is_used(&self) -> bool {
        self.options.delay_attributes && !self.files.read().is_empty()
    }

    /// Like [`hither_vfs::BatchOps::revalidate_many`], after sending delayed permissions.
    pub(super) async fn revalidated(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        if let Err(e) = self.send_modes(cx, objects).await {
            return objects.iter().map(|_| Err(e.clone())).collect();
        }
        let (_asking, mut all) = ask!(self, cx => self.below.revalidate_many(cx, objects, want).await);
        for (fh, revalidated) in objects.iter().zip(&mut all) {
            if let Ok((attrs, _)) = revalidated {
                self.show(fh, attrs);
            }
        }
        all
    }
}
