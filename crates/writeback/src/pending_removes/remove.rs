//! The conditions for a delayed removal, and removal at the server.

use super::PendingRemoves;
use super::table::{Gone, RemovedName};
use crate::pending_writes::{is_final, patient};
use crate::wal::{Event, Record, Removed};
use hither_vfs::{
    Access, ChangeInfo, Data, Error, Fh, File, FileKind, Name, Node, PathRef, Removal, RequestContext,
    Result, Stop, Time, WalkRequest,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;

/// First and longest pause before a failed removal is repeated.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Free space that the journal must have for a removal to be delayed, in bytes.
const ROOM_BYTES: u64 = 64 << 10;
/// The sticky bit: the owners of files and directory decide about a removal.
const STICKY: u32 = 0o1000;
/// Bytes of a page of names, in the check for an empty directory.
const PAGE_BYTES: u32 = 32 << 10;
/// The most names of a directory in one call to the server. A limit is needed because a caller may
/// wait for one of the names, or for a later one.
const BATCH_NAMES: usize = 64;

impl PendingRemoves {
    /// Delays a removal, if the conditions hold. `None`: the server must remove the name.
    pub(super) async fn remove_here(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        target: Option<&Fh>,
        is_dir: bool,
    ) -> Result<Option<ChangeInfo>> {
        if self.table().get(dir, name).is_some() {
            return Err(Error::new(libc::ENOENT));
        }
        let Some((node, last)) = self.may_wait(cx, (dir, name), target, is_dir).await? else {
            return Ok(None);
        };
        let (info, seq, begin) = {
            let mut t = self.table();
            if t.get(dir, name).is_some() {
                return Err(Error::new(libc::ENOENT));
            }
            // The file was opened meanwhile.
            if t.is_open(&node.fh) {
                return Ok(None);
            }
            let event = Event::Removed(Removed { dir: dir.clone(), cred: cx.cred.clone(), is_dir });
            let data = Data::from(name.bytes().clone());
            let ticket = self.wal.log().append(Record { fh: node.fh.clone(), event, data });
            let tried = watch::Sender::new(0);
            let (fh, fsid, cred) = (node.fh, node.attrs.attr.fsid, cx.cred.clone());
            let gone = Gone { fh, is_dir, fsid, cred, ticket, error: None, tried };
            let info = t.insert(dir, name, gone, self.clock.after(last).max(last));
            (info, ticket.seq, t.enqueue(dir, name.clone()))
        };
        self.counters.noted.fetch_add(1, Relaxed);
        if begin {
            let (this, dir) = (self.this(), dir.clone());
            tokio::spawn(async move { this.work_on(dir).await });
        }
        if self.wal.log().written(seq).await.is_err() {
            // The journal has just failed. The server removes the name before the caller gets an
            // answer.
            self.settle(&(dir.clone(), name.clone())).await?;
        }
        Ok(Some(info))
    }

    /// The object of a name, if its removal may be delayed, and the last time of the directory.
    async fn may_wait(
        &self,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        target: Option<&Fh>,
        is_dir: bool,
    ) -> Result<Option<(Node, Time)>> {
        {
            let t = self.table();
            if t.stuck > 0 || t.count() >= self.options.most || !self.wal.takes(ROOM_BYTES) {
                return Ok(None);
            }
        }
        let node = match target {
            // While names are being removed from a directory, its names are less cached than the
            // objects.
            Some(fh) => {
                let attrs = self.below.getattr(cx, File { fh, open: None }).await?;
                Node { fh: fh.clone(), attrs }
            }
            None => {
                let mut trail = self.below.walk(cx, PathRef::name(dir, name), WalkRequest::default()).await?;
                let (Stop::Complete, Some(node)) = (trail.stop, trail.steps.pop()) else { return Ok(None) };
                node
            }
        };
        let attr = &node.attrs.attr;
        let fits = match attr.kind {
            FileKind::Directory => is_dir,
            // The journal knows one name of an object.
            FileKind::Regular | FileKind::Symlink => !is_dir && attr.nlink == 1,
            _ => false,
        };
        if !fits || self.table().is_open(&node.fh) {
            return Ok(None);
        }
        let Some(last) = self.may_remove(cx, dir, attr.fsid).await? else { return Ok(None) };
        if is_dir {
            if self.table().may_hide_names() {
                return Ok(None);
            }
            match self.is_emptied(cx, &node.fh).await {
                Ok(true) => {}
                // Without the right to list the directory, the server decides.
                Err(e) if !matches!(e.errno, libc::EACCES | libc::EPERM) => return Err(e),
                _ => return Ok(None),
            }
        }
        Ok(Some((node, last)))
    }

    /// The last time of a directory, if the caller may remove names from it, and it is of file
    /// system `fsid`.
    async fn may_remove(&self, cx: &RequestContext, dir: &Fh, fsid: (u64, u64)) -> Result<Option<Time>> {
        // The caller removed a name here before. A later change of the rights would have waited for
        // that removal.
        if self.table().has_removed(dir, &cx.cred, fsid) {
            return Ok(Some(Time::default()));
        }
        let need = Access::MODIFY | Access::LOOKUP;
        if self.below.access(cx, dir, need).await? != need {
            return Ok(None);
        }
        let parent = self.below.getattr(cx, File { fh: dir, open: None }).await?;
        let parent = self.shown(dir, parent).attr;
        Ok((parent.mode & STICKY == 0 && parent.fsid == fsid).then(|| parent.mtime.max(parent.ctime)))
    }

    /// Whether every name of a directory has a delayed removal. Listings lack the client's own
    /// hidden names.
    async fn is_emptied(&self, cx: &RequestContext, dir: &Fh) -> Result<bool> {
        let (mut cookie, mut verifier) = (0, [0; 8]);
        loop {
            let page = self.below.readdir(cx, dir, cookie, verifier, PAGE_BYTES, false).await?;
            let left = {
                let t = self.table();
                page.entries.iter().any(|entry| t.get(dir, &entry.name).is_none())
            };
            match page.entries.last() {
                _ if left => return Ok(false),
                _ if page.eof => return Ok(true),
                Some(last) => (cookie, verifier) = (last.cookie, page.verifier),
                None => return Ok(false),
            }
        }
    }

    /// Removes names of a directory at the server until none is left. The calls run one after
    /// another. With several changes of a directory at once, the client could not exclude a change
    /// by another client.
    async fn work_on(&self, dir: Fh) {
        let mut pause = BACKOFF_FIRST;
        loop {
            let mut failed = Vec::new();
            loop {
                // The work continues while a removal has failed.
                let next = self.table().dequeue(&dir, BATCH_NAMES, !failed.is_empty());
                if next.is_empty() {
                    break;
                }
                failed.extend(self.remove(&dir, next, pause < BACKOFF_MAX).await);
            }
            if failed.is_empty() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF_MAX);
            let mut t = self.table();
            for name in failed {
                t.enqueue(&dir, name);
            }
        }
    }

    /// Tries to remove names at the server that one caller removed. Returns the names without a
    /// final result. With `patient`, a directory with nothing but hidden names of this client is
    /// tried again: the close of their files is in progress.
    async fn remove(&self, dir: &Fh, names: Vec<(Name, Gone)>, patient: bool) -> Vec<Name> {
        let outcomes = match self.try_to_remove(dir, &names).await {
            Ok(outcomes) => outcomes,
            Err(e) => names.iter().map(|_| Err(e.clone())).collect(),
        };
        let mut failed = Vec::new();
        for ((name, gone), outcome) in names.into_iter().zip(outcomes) {
            let refused = match outcome {
                Err(e) if is_not_empty(&e) && gone.is_dir && patient && self.hides_names(&gone).await => {
                    failed.push(name);
                    continue;
                }
                Ok(_) => None,
                Err(e) if matches!(e.errno, libc::ENOENT | libc::ESTALE) => None,
                Err(e) if is_final(&e) || is_not_empty(&e) || e.errno == libc::EBUSY => Some(e),
                Err(e) => {
                    let mut t = self.table();
                    let Some(gone) = t.get_mut(dir, &name) else { continue };
                    let fresh = gone.error.replace(e).is_none();
                    gone.tried.send_modify(|n| *n += 1);
                    t.stuck += usize::from(fresh);
                    failed.push(name);
                    continue;
                }
            };
            self.ended(dir, &name, refused).await;
        }
        failed
    }

    /// Whether a removed directory has nothing but hidden names of this client.
    async fn hides_names(&self, gone: &Gone) -> bool {
        let cx = RequestContext::new(gone.cred.clone());
        matches!(self.is_emptied(&cx, &gone.fh).await, Ok(true))
    }

    async fn try_to_remove(&self, dir: &Fh, names: &[(Name, Gone)]) -> Result<Vec<Result<ChangeInfo>>> {
        let Some((_, first)) = names.first() else { return Ok(Vec::new()) };
        // No removal is pending in the other directories.
        if first.is_dir {
            self.settle_all_in(&first.fh).await?;
        }
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await.map_err(|_| Error::new(libc::EIO))?;
        let removal = |(name, gone): &(Name, Gone)| Removal {
            name: name.clone(),
            target: (!gone.is_dir).then(|| gone.fh.clone()),
            is_dir: gone.is_dir,
        };
        let gone: Vec<_> = names.iter().map(removal).collect();
        Ok(self.below.remove_many(&RequestContext::new(first.cred.clone()), dir, &gone).await)
    }

    /// Ends a delayed removal: the server has removed the name, or refuses to.
    async fn ended(&self, dir: &Fh, name: &Name, refused: Option<Error>) {
        let gone = self.table().end(dir, name, refused.is_none());
        let Some(gone) = gone else { return };
        self.wal.log().append(Record::of(&gone.fh, Event::Settled));
        self.wal.log().dead(gone.ticket.segment, 1);
        if let Some(e) = refused {
            let path = String::from_utf8_lossy(&self.wal.path(&gone.fh)).into_owned();
            tracing::error!(%path, name = %String::from_utf8_lossy(name.as_bytes()), error = %e,
                "the server refuses a delayed removal: the name exists again");
            self.counters.refused.fetch_add(1, Relaxed);
            self.revoke(dir).await;
        }
        gone.tried.send_modify(|n| *n += 1);
    }

    /// Waits until a name is removed at the server, or the server has refused its removal.
    ///
    /// # Errors
    /// The error of the last attempt, while the removal is not final.
    pub(super) async fn settle(&self, (dir, name): &RemovedName) -> Result<()> {
        let mut tried = {
            let t = self.table();
            let Some(gone) = t.get(dir, name) else { return Ok(()) };
            if let Some(e) = &gone.error {
                return Err(e.clone());
            }
            gone.tried.subscribe()
        };
        let _ = tried.changed().await;
        match self.table().get(dir, name).and_then(|gone| gone.error.clone()) {
            Some(e) => Err(e),
            None => Ok(()),
        }
    }

    /// Like [`Self::settle`], for all names of a directory.
    pub(super) async fn settle_all_in(&self, dir: &Fh) -> Result<()> {
        let names = self.table().names_in(dir);
        for name in names {
            self.settle(&(dir.clone(), name)).await?;
        }
        Ok(())
    }

    /// Waits until the server has executed, or refused, all delayed removals.
    ///
    /// # Errors
    /// The error of the last attempt of a removal that is not final.
    pub async fn sync(&self) -> Result<()> {
        let places = self.table().places();
        for place in &places {
            self.settle(place).await?;
        }
        Ok(())
    }

    pub(super) async fn settled(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<()> {
        if self.table().get(dir, name).is_none() {
            return Ok(());
        }
        patient(cx, self.settle(&(dir.clone(), name.clone()))).await
    }

    pub(super) async fn settled_in(&self, cx: &RequestContext, dir: &Fh) -> Result<()> {
        if !self.table().has_names(dir) {
            return Ok(());
        }
        patient(cx, self.settle_all_in(dir)).await
    }
}

/// Whether a directory has names at the server.
fn is_not_empty(e: &Error) -> bool {
    matches!(e.errno, libc::ENOTEMPTY | libc::EEXIST)
}
