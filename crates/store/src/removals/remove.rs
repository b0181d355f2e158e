//! What may wait, and removing at the server.

use super::Removals;
use super::table::{Gone, Place};
use crate::dirty::{is_final, patient};
use crate::wal::{Event, Record, Removed};
use hither_vfs::{
    Access, BoxFuture, ChangeInfo, Cx, Data, Error, Fh, File, FileKind, Name, Node, Result, Stop, Time, Want,
    Where,
};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// First and longest wait before what could not be removed is tried again.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MOST: Duration = Duration::from_secs(30);
/// What a journal must still take, in bytes, so that a removal may wait.
const ROOM_BYTES: u64 = 64 << 10;
/// In a directory with this bit owners decide.
const STICKY: u32 = 0o1000;
/// Bytes of a page of names that is looked at to see whether a directory is empty.
const PAGE_BYTES: u32 = 32 << 10;

impl Removals {
    /// Removes a name here, when that may be; `None`: it is the server's to do.
    pub(super) async fn remove_here(
        &self,
        cx: &Cx,
        (dir, name): (&Fh, &Name),
        target: Option<&Fh>,
        is_dir: bool,
    ) -> Result<Option<ChangeInfo>> {
        if self.table().get(dir, name).is_some() {
            return Err(Error::new(libc::ENOENT));
        }
        let Some(node) = self.may_wait(cx, (dir, name), target, is_dir).await? else { return Ok(None) };
        let (info, seq) = {
            let mut t = self.table();
            if t.get(dir, name).is_some() {
                return Err(Error::new(libc::ENOENT));
            }
            // Opened meanwhile, or in a directory that is going itself.
            if t.is_open(&node.fh) {
                return Ok(None);
            }
            let event = Event::Removed(Removed { dir: dir.clone(), cred: cx.cred.clone(), is_dir });
            let data = Data::from(name.bytes().clone());
            let ticket = self.wal.log().append(Record { fh: node.fh.clone(), event, data });
            let tried = watch::Sender::new(0);
            let gone = Gone { fh: node.fh, is_dir, cred: cx.cred.clone(), ticket, error: None, tried };
            (t.insert(dir, name, gone, self.now()), ticket.seq)
        };
        self.counters.noted.fetch_add(1, Relaxed);
        let noted = self.wal.log().written(seq).await;
        let (this, place) = (self.this(), (dir.clone(), name.clone()));
        tokio::spawn(async move { this.remove(place).await });
        if noted.is_err() {
            // The journal has just failed: the server has removed it before anybody is told.
            self.settle(&(dir.clone(), name.clone())).await?;
        }
        Ok(Some(info))
    }

    fn now(&self) -> Time {
        let since = (self.env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }

    /// What a name leads to, when removing it may wait.
    async fn may_wait(
        &self,
        cx: &Cx,
        (dir, name): (&Fh, &Name),
        target: Option<&Fh>,
        is_dir: bool,
    ) -> Result<Option<Node>> {
        {
            let t = self.table();
            if t.stuck > 0 || t.count() >= self.options.most || !self.wal.takes(ROOM_BYTES) {
                return Ok(None);
            }
        }
        let mut trail = self.below.walk(cx, Where::name(dir, name), Want::default()).await?;
        let (Stop::Complete, Some(node)) = (trail.stop, trail.steps.pop()) else { return Ok(None) };
        let attr = &node.attrs.attr;
        let fits = match attr.kind {
            FileKind::Directory => is_dir,
            FileKind::Regular => !is_dir && attr.nlink == 1,
            FileKind::Symlink => !is_dir,
            _ => false,
        };
        if !fits || target.is_some_and(|target| *target != node.fh) || self.table().is_open(&node.fh) {
            return Ok(None);
        }
        let need = Access::MODIFY | Access::LOOKUP;
        if self.below.access(cx, dir, need).await? != need {
            return Ok(None);
        }
        let parent = self.below.getattr(cx, File { fh: dir, open: None }).await?;
        if parent.attr.mode & STICKY != 0 || parent.attr.fsid != node.attrs.attr.fsid {
            return Ok(None);
        }
        if is_dir && !self.is_emptied(cx, &node.fh).await? {
            return Ok(None);
        }
        Ok(Some(node))
    }

    /// Whether nothing is left in a directory but what waits to be removed.
    async fn is_emptied(&self, cx: &Cx, dir: &Fh) -> Result<bool> {
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

    /// Removes a name at the server, however long that takes.
    fn remove(&self, (dir, name): Place) -> BoxFuture<()> {
        let this = self.this();
        Box::pin(async move {
            let mut pause = BACKOFF_FIRST;
            loop {
                let Some(gone) = this.table().get(&dir, &name).cloned() else { return };
                match this.try_to_remove(&dir, &name, &gone).await {
                    Ok(()) => return this.ended(&dir, &name, None).await,
                    Err(e) if matches!(e.errno, libc::ENOENT | libc::ESTALE) => {
                        return this.ended(&dir, &name, None).await;
                    }
                    Err(e)
                        if is_final(e.errno)
                            || matches!(e.errno, libc::ENOTEMPTY | libc::EBUSY | libc::EEXIST) =>
                    {
                        return this.ended(&dir, &name, Some(e)).await;
                    }
                    Err(e) => {
                        let mut t = this.table();
                        let Some(gone) = t.get_mut(&dir, &name) else { return };
                        let fresh = gone.error.replace(e).is_none();
                        gone.tried.send_modify(|n| *n += 1);
                        t.stuck += usize::from(fresh);
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF_MOST);
            }
        })
    }

    async fn try_to_remove(&self, dir: &Fh, name: &Name, gone: &Gone) -> Result<()> {
        if gone.is_dir {
            self.settle_all_in(&gone.fh).await?;
        }
        // Never closed.
        let _slot = self.slots.acquire().await.map_err(|_| Error::new(libc::EIO))?;
        let cx = Cx::new(gone.cred.clone());
        match gone.is_dir {
            true => self.below.rmdir(&cx, dir, name).await,
            false => self.below.unlink(&cx, dir, name, Some(&gone.fh)).await,
        }
        .map(drop)
    }

    /// It is gone, or the server refuses that.
    async fn ended(&self, dir: &Fh, name: &Name, refused: Option<Error>) {
        let gone = self.table().end(dir, name, refused.is_none());
        let Some(gone) = gone else { return };
        self.wal.log().append(Record::of(&gone.fh, Event::Settled));
        self.wal.log().dead(gone.ticket.segment, 1);
        if let Some(e) = refused {
            let path = String::from_utf8_lossy(&self.wal.path(&gone.fh)).into_owned();
            tracing::error!(%path, name = %String::from_utf8_lossy(name.as_bytes()), error = %e,
                "the server refuses to remove what was removed here: it is there again");
            self.counters.refused.fetch_add(1, Relaxed);
            self.withdraw(dir).await;
        }
        gone.tried.send_modify(|n| *n += 1);
    }

    /// Returns when a name is gone at the server, or was refused.
    ///
    /// # Errors
    /// Why it is still there.
    pub(super) async fn settle(&self, (dir, name): &Place) -> Result<()> {
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

    /// The same for everything in a directory.
    pub(super) async fn settle_all_in(&self, dir: &Fh) -> Result<()> {
        let names = self.table().names_in(dir);
        for name in names {
            self.settle(&(dir.clone(), name)).await?;
        }
        Ok(())
    }

    /// The same for all names.
    pub async fn sync(&self) -> Result<()> {
        let places = self.table().places();
        for place in &places {
            self.settle(place).await?;
        }
        Ok(())
    }

    pub(super) async fn settled(&self, cx: &Cx, dir: &Fh, name: &Name) -> Result<()> {
        if self.table().get(dir, name).is_none() {
            return Ok(());
        }
        patient(cx, self.settle(&(dir.clone(), name.clone()))).await
    }

    pub(super) async fn settled_in(&self, cx: &Cx, dir: &Fh) -> Result<()> {
        if !self.table().has_names(dir) {
            return Ok(());
        }
        patient(cx, self.settle_all_in(dir)).await
    }
}
