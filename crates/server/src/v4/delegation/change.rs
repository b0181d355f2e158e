//! How operations that change a file or its names begin: nobody else may cache what they change.
//!
//! A holder's own delegation for reading stays when its file can still be watched while the holder
//! changes it: not when a local program has the file open. A delegation of a file whose name its
//! holder removes is recalled.

use super::{Changing, Delegation, Inner, Leases, Life, Naming, id, key};
use crate::table::Export;
use crate::v4::clients::Client;
use hither_lease::{Access, FileKey, Kind, Op};
use hither_proto::nfs4::Nfsstat4;
use hither_vfs::{Cx, Fh, FileKind, Name, Where};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

impl Leases {
    /// Whoever calls is about to change a file: waits until nobody else caches it, for at most
    /// `patience`. A client keeps its own delegation for reading as long as no local program uses
    /// the file.
    ///
    /// # Errors
    /// Somebody still does: the client should come back.
    pub async fn change(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        fh: &Fh,
        patience: Duration,
    ) -> Result<Changing, Nfsstat4> {
        if self.most == 0 && self.short.is_none() {
            return Ok(Changing { leases: self.clone(), permit: None });
        }
        let key = key(fh);
        if let Some((client, own)) = client.and_then(|c| Some((c, self.held_for_reading(c, key)?))) {
            let access =
                Access { client: Some(id(client)), file: key, op: Op::Write, lease: None, claim: None };
            let going = self.begin(access, patience).await.map_err(|_| Nfsstat4::DELAY)?;
            if own.watch_alone().await {
                return Ok(going.changing);
            }
        }
        self.change_all(client, key, patience).await
    }

    /// A client's delegation of a file for reading that is not on its way back.
    pub(super) fn held_for_reading(&self, client: &Client, key: FileKey) -> Option<Arc<Delegation>> {
        let d = self.inner.lock().held.get(&(id(client), key))?.clone();
        let reads = d.kind() == Kind::Read && !d.directory && *d.life.lock() == Life::Held;
        (reads && !d.is_recalled()).then_some(d)
    }

    /// As [`Leases::change`], for what a delegation for reading of the client's own is in the way
    /// of as well.
    async fn change_all(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        key: FileKey,
        patience: Duration,
    ) -> Result<Changing, Nfsstat4> {
        let access = |inner: &Inner| {
            // That of a directory is in nobody's own way: the reply tells its holder whether others
            // changed it.
            let reads =
                |id| inner.held.get(&(id, key)).is_some_and(|d| d.kind() == Kind::Read && !d.directory);
            let client = client.map(|c| id(c)).filter(|id| !reads(*id));
            Ok(Access { client, file: key, op: Op::Write, lease: None, claim: None })
        };
        let going = self.begin_with(patience, access).await;
        going.map(|going| going.changing).map_err(|_| Nfsstat4::DELAY)
    }

    /// The same for whoever changes names in a directory. Leases of NQNFS are of files only.
    ///
    /// # Errors
    /// As [`Leases::change`].
    pub async fn change_entries(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        dir: &Fh,
        patience: Duration,
    ) -> Result<Changing, Nfsstat4> {
        match self.most {
            0 => Ok(Changing { leases: self.clone(), permit: None }),
            _ => self.change(client, dir, patience).await,
        }
    }

    /// Whoever calls is about to remove a name or to open it for writing: waits until nobody caches
    /// the file or directory that it leads to.
    ///
    /// # Errors
    /// As [`Leases::change`].
    pub async fn change_name(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        dir: (&Export, &Cx, &Fh),
        (name, removes): (&Name, bool),
        patience: Duration,
    ) -> Result<Naming, Nfsstat4> {
        let mut naming = self.naming();
        let (export, cx, dir) = dir;
        if !self.any() {
            return Ok(naming);
        }
        // What cannot be looked up has its failure from the operation itself.
        let trail = export.vfs.walk(cx, Where::name(dir, name), hither_vfs::Want::default()).await;
        let found = trail.ok().and_then(|t| t.steps.into_iter().next());
        let is_delegated = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
        if let Some(node) = found.filter(|n| is_delegated(n.attrs.attr.kind)) {
            let changing = match removes && (self.most > 0 || self.short.is_some()) {
                true => self.change_all(client, key(&node.fh), patience).await?,
                false => self.change(client, &node.fh, patience).await?,
            };
            naming.file = Some((node.fh, changing));
        }
        Ok(naming)
    }

    /// Names are about to lead elsewhere: nobody gets a delegation of anything until the result is
    /// dropped.
    pub(crate) fn naming(self: &Arc<Self>) -> Naming {
        self.naming.fetch_add(1, SeqCst);
        Naming { leases: self.clone(), file: None }
    }
}

impl Delegation {
    /// Whether the file stays watched while its holder changes it: from then on no local program
    /// can read it unnoticed either.
    pub(super) async fn watch_alone(&self) -> bool {
        let Some(watch) = &self.watch else { return true };
        let mut alone = self.alone.lock().await;
        if *alone {
            return true;
        }
        let Some(watched) = self.watched.lock().take() else { return false };
        let turned = watch.watch_alone(&self.file.1, watched).await;
        *alone = turned.is_ok();
        let held = match turned {
            Ok(watched) => Some(watched),
            Err(watched) => watched,
        };
        // It may have ended meanwhile: then whoever waited for that goes on.
        let ended = {
            let life = self.life.lock();
            if *life == Life::Held {
                *self.watched.lock() = held;
                None
            } else {
                held
            }
        };
        drop(ended);
        *alone
    }
}
