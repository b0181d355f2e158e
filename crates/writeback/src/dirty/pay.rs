//! When attributes wait, and when they no longer may.
//!
//! It knows nothing of which may wait (`owed.rs`) and of how they are sent (`finish.rs`). What
//! waits is shown to everybody on this machine, and permissions that wait only add rights: so a
//! question is put right afterwards, a call that the server allows is right as it is, and only what
//! it might refuse for lack of them needs them there. Then the permissions of that one file go, by
//! themselves, without its bytes and without those of others.
//!
//! | Call | What it does | Why |
//! |---|---|---|
//! | `walk`, `peek`, `getattr`, `getattr_many`, `readdir`, `list_many`, `root` | shows what waits; rights that a walk brings are left out | nothing is decided |
//! | `open` by name or handle | asks, and after a refusal pays for the file that is meant and asks again | the permissions only add rights |
//! | `open` that cuts, by handle | pays before | what is cut is void, whoever is refused |
//! | `access`, `prove_many` | pay before | the answer is the server's |
//! | `setattr` | waits as well, or: sends the file first; with a length, an owner or a group it pays before, whatever the bytes do | a cut is allowed by the permissions, and who gives a file away may not set them later |
//! | `getxattr`, `listxattr` | pay before | the permissions decide, and access control lists show them |
//! | `setxattr`, `removexattr` | pay before, and fail when that fails | access control lists are permissions, and come after |
//! | `link` | pays before | servers refuse links to what the caller may not use |
//! | `read_many`, `seek`, `lock`, `unlock`, `copy`, `allocate`, `deallocate`, synchronous writes | send the whole file first | they are about its bytes |
//! | `commit`, the last `close`, `sync`, recalls, `shutdown` | send everything and tell what went wrong | that is what they are for |
//! | `read`, `write`, `test_lock` | nothing | the open has been allowed |
//! | `unlink`, `rename`, `rmdir` | nothing | directories decide; what has no name left needs nothing |
//! | `readlink`, `mkdir`, `mknod`, `symlink`, `statfs` | nothing | they are about other objects |

use super::Dirty;
use super::file::{File, State};
use super::questions::ask;
use super::stats::Counters;
use super::wait::patient;
use hither_vfs::{Access, Attrs, Cx, Error, Fh, OpenHow, Opened, Result, SetAttr, SetTime, Want, Where};
use std::sync::Arc;
use tokio::time::Instant;

impl Dirty {
    /// Keeps a change of attributes for the end of the file, where that may be.
    pub(super) fn owe(&self, cx: &Cx, file: &Arc<File>, set: &SetAttr) -> Option<Attrs> {
        if !self.options.delay_attributes {
            return None;
        }
        let (now, wall) = (Instant::now(), self.wall());
        let mut s = file.state.lock();
        let shown = s.shown()?;
        let mut set = s.owed.may_wait(&cx.cred, set, &shown, !s.extents.is_clean())?;
        if set.atime == Some(SetTime::Now) {
            // What is shown is what it will be.
            set.atime = Some(SetTime::To(wall));
        }
        s.owed.add(&set, now, wall);
        if s.owed.is_sealed() {
            // Others wait for what waits: what was written in between is to be there before.
            s.seal();
        }
        self.look_after(&mut s, file, now);
        let shown = s.shown();
        drop(s);
        Counters::add(&self.counters.attributes_merged, 1);
        self.pump(file);
        shown
    }

    /// What is kept of a file is sent after a while.
    pub(super) fn look_after(&self, s: &mut State, file: &Arc<File>, now: Instant) {
        if s.queued.is_none() {
            s.queued = Some(self.ages.push(now + self.options.dirty_age, file));
        }
    }

    /// Sends permissions that wait, before somebody is asked what may be done with the file.
    ///
    /// # Errors
    /// Why they are not there yet; the caller's interruption. A refusal for good is told by fsync
    /// or close.
    pub(super) async fn pay_mode(&self, cx: &Cx, fh: &Fh) -> Result<()> {
        match self.known(fh).filter(|file| self.urge(file)) {
            Some(file) => patient(cx, Self::paid(&file)).await,
            None => Ok(()),
        }
    }

    /// The same for many files side by side, as far as possible.
    ///
    /// # Errors
    /// The caller's interruption.
    pub(super) async fn pay_modes(&self, cx: &Cx, files: &[Fh]) -> Result<()> {
        let owing: Vec<_> =
            files.iter().filter_map(|fh| self.known(fh)).filter(|file| self.urge(file)).collect();
        patient(cx, async {
            for file in &owing {
                let _ = Self::paid(file).await;
            }
            Ok(())
        })
        .await
    }

    /// True when there is something to wait for.
    fn urge(&self, file: &Arc<File>) -> bool {
        {
            let mut s = file.state.lock();
            if !s.owed.has_mode() {
                return false;
            }
            s.owed.urge();
        }
        self.pump(file);
        true
    }

    async fn paid(file: &Arc<File>) -> Result<()> {
        file.when(|s| match (s.owed.has_mode(), s.owed.mode_goes()) {
            (false, _) => Some(Ok(())),
            (true, true) => None,
            (true, false) => Some(Err(s.owed.trouble().cloned().unwrap_or_else(|| Error::new(libc::EIO)))),
        })
        .await
    }

    /// Opens a file below; when the server refuses for want of permissions that wait here, it gets
    /// them and is asked again.
    pub(super) async fn open_paid(&self, cx: &Cx, at: Where<'_>, how: &OpenHow) -> Result<Opened> {
        let since = Instant::now();
        let refused = match self.below.open(cx, at, how).await {
            Err(e) if matches!(e.errno, libc::EACCES | libc::EPERM) && self.is_used() => e,
            outcome => return outcome,
        };
        let meant = match at.path {
            [] => Some(at.base.clone()),
            path => {
                let trail = self.below.walk(cx, at, Want::default()).await;
                let whole = trail.ok().filter(|trail| trail.steps.len() == path.len());
                whole.and_then(|mut trail| trail.steps.pop()).map(|node| node.fh)
            }
        };
        // They may have got there while the refusal was on its way.
        let owes = |s: &State| s.owed.has_mode() || s.owed.mode_landed_since(since);
        let owes = |fh: &Fh| self.known(fh).is_some_and(|file| owes(&file.state.lock()));
        let Some(fh) = meant.filter(owes) else { return Err(refused) };
        match self.pay_mode(cx, &fh).await {
            Ok(()) => self.below.open(cx, at, how).await,
            Err(e) if matches!(e.errno, libc::EINTR | libc::ETIMEDOUT) => Err(e),
            // Why they could not be set is told to who set them.
            Err(_) => Err(refused),
        }
    }

    /// Permissions may be others than they were.
    pub(super) fn forget_shown(&self, fh: &Fh) {
        if let Some(file) = self.known(fh) {
            file.state.lock().view.forget();
        }
    }

    /// Whether any file may owe something.
    fn is_used(&self) -> bool {
        self.options.delay_attributes && !self.files.read().is_empty()
    }

    /// As [`hither_vfs::Vfs::prove_many`] does: permissions that wait are there first.
    pub(super) async fn proven(&self, cx: &Cx, objects: &[Fh], want: Access) -> Vec<Result<(Attrs, Access)>> {
        if let Err(e) = self.pay_modes(cx, objects).await {
            return objects.iter().map(|_| Err(e.clone())).collect();
        }
        let (_asking, mut all) = ask!(self, cx => self.below.prove_many(cx, objects, want).await);
        for (fh, proven) in objects.iter().zip(&mut all) {
            if let Ok((attrs, _)) = proven {
                self.show(fh, attrs);
            }
        }
        all
    }
}
