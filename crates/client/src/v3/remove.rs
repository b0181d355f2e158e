//! Removal of names: REMOVE, RMDIR, RENAME, and hidden names of open files (silly rename).
//!
//! A file that is removed while open on this client is renamed to a hidden name in the same
//! directory. A file that a RENAME replaces gets the hidden name as a second name before the
//! RENAME. The last close removes the hidden name. Until then other clients see it, as with every
//! NFSv3 client.

use super::V3;
use super::convert;
use super::lookup::dirop;
use super::open::{Claim, Silly};
use super::wire::Patience;
use crate::detach::detached;
use crate::error;
use crate::silly;
use hither_proto::nfs3::{LinkArgs, Nfsstat3, RemoveArgs, RenameArgs, RenameWcc, RmdirArgs};
use hither_vfs::{ChangeInfo, Cred, Error, Fh, Moved, Name, RenameFlags, RequestContext, Result};
use std::sync::Arc;
use tokio::time::Instant;

/// Hidden names to try before giving up. A name is taken only when another client chose the same
/// 32-bit number for the same file.
const HIDE_TRIES: u32 = 16;
const NO_NAME_FREE: &str = "no hidden name is free for an open file";

impl V3 {
    pub(super) async fn remove_name(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let (this, cred, dir, name) = (self.clone(), cx.cred.clone(), dir.clone(), name.clone());
        let (target, unused) = (target.cloned(), cx.target_unused);
        detached(cx, async move {
            let target = match target {
                Some(fh) => Some(fh),
                // Some files are open. A LOOKUP finds out whether this name is one of them.
                None if this.opens.any() => {
                    this.lookup(&cred, &Patience::policy(), &dir, &name).await?.map(|n| n.fh)
                }
                None => None,
            };
            let Some(fh) = target else { return this.remove(&cred, &dir, &name).await };
            match this.opens.claim(&fh).await {
                Claim::Open(_, Some(hidden)) if !unused && hidden.dir == dir && hidden.name == name => {
                    Err(Error::new(libc::EBUSY))
                }
                Claim::Open(fileid, None) if !unused => {
                    let (change, hidden) = this.hide(&cred, &fh, fileid, &dir, &name).await?;
                    this.gone(&fh, &hidden).await;
                    Ok(change)
                }
                Claim::Open(..) => this.remove(&cred, &dir, &name).await,
                Claim::Alone(_alone) => this.remove(&cred, &dir, &name).await,
            }
        })
        .await
    }

    pub(super) async fn remove_directory(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
    ) -> Result<ChangeInfo> {
        let (this, cred, dir, name) = (self.clone(), cx.cred.clone(), dir.clone(), name.clone());
        detached(cx, async move {
            let gone = this.opens.hidden_names_gone();
            let removed = this.rmdir(&cred, &dir, &name).await;
            if !removed.as_ref().is_err_and(|e| e.errno == libc::ENOTEMPTY) {
                return removed;
            }
            if let Some(node) = this.lookup(&cred, &Patience::policy(), &dir, &name).await? {
                this.opens.hidden_names_go(&node.fh).await;
            }
            // Hidden names of closed files have been removed since.
            if this.opens.hidden_names_gone() == gone {
                removed
            } else {
                this.rmdir(&cred, &dir, &name).await
            }
        })
        .await
    }

    async fn rmdir(&self, cred: &Arc<Cred>, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let (args, asked) = (RmdirArgs { object: dirop(dir, name)? }, Instant::now());
        let wcc = self.caller.expect(cred, &Patience::policy(), &args).await?;
        Ok(self.dir_change(dir, &wcc, asked))
    }

    pub(super) async fn rename_name(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        if !flags.is_empty() {
            // NFS has no RENAME with flags. The Linux client also answers EINVAL.
            return Err(Error::new(libc::EINVAL));
        }
        let (this, cred) = (self.clone(), cx.cred.clone());
        let from = (from.0.clone(), from.1.clone());
        let to = (to.0.clone(), to.1.clone());
        let replaced = replaced.cloned();
        if cx.target_unused && replaced.is_some() {
            return detached(cx, async move { this.rename(&cred, &from, &to).await }).await;
        }
        detached(cx, async move { this.rename_over(&cred, &from, &to, replaced).await }).await
    }

    async fn rename_over(
        &self,
        cred: &Arc<Cred>,
        from: &(Fh, Name),
        to: &(Fh, Name),
        replaced: Option<Fh>,
    ) -> Result<Moved> {
        let policy = Patience::policy();
        let replaced = match replaced {
            Some(fh) => Some(fh),
            None if self.opens.any() => self.lookup(cred, &policy, &to.0, &to.1).await?.map(|n| n.fh),
            None => None,
        };
        let Some(fh) = replaced else { return self.rename(cred, from, to).await };
        let fileid = match self.opens.claim(&fh).await {
            Claim::Open(fileid, None) => fileid,
            _claim => return self.rename(cred, from, to).await,
        };
        // Two names of one file: RENAME does nothing (rename(2)), and no name is hidden.
        let moved = match self.lookup(cred, &policy, &from.0, &from.1).await? {
            None => return Err(Error::new(libc::ENOENT)),
            Some(node) if node.fh == fh => return self.rename(cred, from, to).await,
            Some(node) => node.fh,
        };
        let hidden = match self.second_name(cred, &fh, fileid, &to.0).await {
            Err(e) if matches!(e.errno, libc::ENOENT | libc::ESTALE) => {
                // Another client may have removed or replaced the file.
                let now = self.lookup(cred, &policy, &to.0, &to.1).await?.map(|node| node.fh);
                if now.as_ref() == Some(&fh) {
                    return Err(e);
                }
                return Box::pin(self.rename_over(cred, from, to, now)).await;
            }
            hidden => hidden?,
        };
        if let Some(hidden) = hidden {
            return self.rename_over_linked(cred, from, to, (&fh, &hidden)).await;
        }
        // As the Linux client always does: the name is absent for a moment.
        let (_, hidden) = self.hide(cred, &fh, fileid, &to.0, &to.1).await?;
        let renamed = self.rename(cred, from, to).await;
        if renamed.is_ok() {
            self.gone(&fh, &hidden).await;
            return renamed;
        }
        let back = match self.lookup(cred, &policy, &to.0, &to.1).await {
            // No other file has the name: the file gets its name back.
            Ok(None) => self.rename(cred, &(hidden.dir.clone(), hidden.name.clone()), to).await.map(|_| ()),
            // The RENAME was executed. After a restart the repetition was reported as failed.
            Ok(Some(node)) if node.fh == moved => {
                self.gone(&fh, &hidden).await;
                return renamed;
            }
            Ok(Some(_)) => Err(Error::new(libc::EEXIST)),
            Err(e) => Err(e),
        };
        match back {
            Ok(()) => self.opens.shown(&fh),
            Err(e) => tracing::warn!(
                name = ?to.1, hidden = ?hidden.name, error = %e,
                "a rename failed, and its target keeps its hidden name"
            ),
        }
        renamed
    }

    /// Renames over an open file that has a hidden name beside the name that it loses.
    async fn rename_over_linked(
        &self,
        cred: &Arc<Cred>,
        from: &(Fh, Name),
        to: &(Fh, Name),
        (fh, hidden): (&Fh, &Silly),
    ) -> Result<Moved> {
        let renamed = self.rename(cred, from, to).await;
        let lost = match &renamed {
            Ok(_) => true,
            // The RENAME may have been executed before, when the server did not recognise the
            // repetition.
            Err(_) => {
                let now = self.lookup(cred, &Patience::policy(), &to.0, &to.1).await;
                !matches!(now, Ok(Some(node)) if node.fh == *fh)
            }
        };
        if lost {
            self.opens.hidden(fh, hidden);
            self.gone(fh, hidden).await;
        } else {
            self.remove_hidden(hidden).await;
        }
        renamed
    }

    /// Gives an open file a hidden name beside the name that it will lose. The old name is then
    /// never absent, neither for other clients nor after a crash of this client. `None` when the
    /// server makes no second names.
    async fn second_name(
        &self,
        cred: &Arc<Cred>,
        fh: &Fh,
        fileid: Option<u64>,
        dir: &Fh,
    ) -> Result<Option<Silly>> {
        let policy = Patience::policy();
        for _ in 0..HIDE_TRIES {
            let name = self.hidden_name(fileid);
            let args = LinkArgs { file: convert::fh3(fh)?, link: dirop(dir, &name)? };
            let linked = self.caller.ask(cred, &policy, &args).await.map_err(|e| error::call(&e));
            let silly = Silly { dir: dir.clone(), name, cred: cred.clone() };
            match linked {
                Ok(Ok(_)) => return Ok(Some(silly)),
                // The name is taken, or this call was executed before.
                Ok(Err((Nfsstat3::EXIST, _))) => match self.lookup(cred, &policy, dir, &silly.name).await? {
                    Some(node) if node.fh == *fh => return Ok(Some(silly)),
                    _ => continue,
                },
                // A full file system has no room for a link, but often for a rename.
                Ok(Err((
                    Nfsstat3::NOTSUPP | Nfsstat3::MLINK | Nfsstat3::PERM | Nfsstat3::NOSPC | Nfsstat3::DQUOT,
                    _,
                ))) => return Ok(None),
                Ok(Err((status, _))) => return Err(error::nfs3(status)),
                Err(e) if e.errno == libc::EOPNOTSUPP => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Err(Error::because(libc::EBUSY, NO_NAME_FREE))
    }

    /// A hidden name. Without a fileid, which is known after a successful open, the name is random.
    fn hidden_name(&self, fileid: Option<u64>) -> Name {
        let random = &self.caller.env.random;
        silly::name(fileid.unwrap_or_else(|| random()), random() as u32)
    }

    /// Records that the file's name is removed permanently. When the file is not open under the
    /// hidden name, the hidden name is removed too.
    async fn gone(&self, fh: &Fh, hidden: &Silly) {
        while !self.opens.removed(fh, hidden) {
            match self.opens.claim(fh).await {
                // The file was closed and opened again.
                Claim::Open(_, None) => self.opens.hidden(fh, hidden),
                // The file was closed, or has another hidden name.
                _claim => return self.remove_hidden(hidden).await,
            }
        }
    }

    /// Renames an open file to a hidden name. The last close does not remove it before the call of
    /// [`V3::gone`].
    async fn hide(
        &self,
        cred: &Arc<Cred>,
        fh: &Fh,
        fileid: Option<u64>,
        dir: &Fh,
        name: &Name,
    ) -> Result<(ChangeInfo, Silly)> {
        let policy = Patience::policy();
        for _ in 0..HIDE_TRIES {
            let hidden = self.hidden_name(fileid);
            // RENAME would replace an existing file.
            if self.lookup(cred, &policy, dir, &hidden).await?.is_some() {
                continue;
            }
            let to = (dir.clone(), hidden.clone());
            let change = self.rename(cred, &(dir.clone(), name.clone()), &to).await?.to;
            let silly = Silly { dir: dir.clone(), name: hidden, cred: cred.clone() };
            self.opens.hidden(fh, &silly);
            return Ok((change, silly));
        }
        Err(Error::because(libc::EBUSY, NO_NAME_FREE))
    }

    /// Removes a hidden name after the last close. A failure leaves a `.nfs...` file behind, as
    /// administrators expect of crashed clients. A listing that was read meanwhile may have the
    /// name.
    pub(super) async fn remove_hidden(&self, silly: &Silly) {
        let removed = self.remove(&silly.cred, &silly.dir, &silly.name).await;
        if let Some(above) = self.caller.above.get() {
            drop(above.revoke(&silly.dir));
        }
        // Programs can remove the hidden name of a file that is closed but not sent yet.
        if let Err(e) = removed.map(drop)
            && e.errno != libc::ENOENT
        {
            tracing::warn!(name = ?silly.name, error = %e, "a removed file keeps its hidden name");
        }
    }

    async fn remove(&self, cred: &Arc<Cred>, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let asked = Instant::now();
        let args = RemoveArgs { object: dirop(dir, name)? };
        let wcc = self.caller.expect(cred, &Patience::policy(), &args).await?;
        Ok(self.dir_change(dir, &wcc, asked))
    }

    async fn rename(&self, cred: &Arc<Cred>, from: &(Fh, Name), to: &(Fh, Name)) -> Result<Moved> {
        let asked = Instant::now();
        let args = RenameArgs { from: dirop(&from.0, &from.1)?, to: dirop(&to.0, &to.1)? };
        let RenameWcc { fromdir_wcc, todir_wcc } =
            self.caller.expect(cred, &Patience::policy(), &args).await?;
        let left = self.dir_change(&from.0, &fromdir_wcc, asked);
        let to = self.dir_change(&to.0, &todir_wcc, asked);
        Ok(Moved { from: left, to, object: None, attrs: None })
    }
}
