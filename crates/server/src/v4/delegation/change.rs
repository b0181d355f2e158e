//! The start of operations that change a file or its names: no other client may cache the old
//! state.
//!
//! A holder keeps its own read delegation if its file can still be watched while the holder changes
//! it. That is not possible while a local program has the file open. If the holder removes a name
//! of a delegated file, its delegation of the file is recalled.

use super::{Changing, Delegation, Inner, Leases, Life, Naming, id, key};
use crate::table::Export;
use crate::v4::clients::Client;
use hither_lease::{Access, FileKey, Kind, Op};
use hither_proto::nfs4::Nfsstat4;
use hither_vfs::{Fh, FileKind, Name, PathRef, RequestContext};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

impl Leases {
    /// Waits until no other client caches a file that is about to change, for at most `patience`. A
    /// client keeps its own read delegation as long as no local program uses the file.
    ///
    /// # Errors
    /// `DELAY`: a client still caches the file, and the operation should be repeated.
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

    /// A client's own read delegation of a file, unless it is being recalled.
    pub(super) fn held_for_reading(&self, client: &Client, key: FileKey) -> Option<Arc<Delegation>> {
        let d = self.inner.lock().held.get(&(id(client), key))?.clone();
        let reads = d.kind() == Kind::Read && !d.directory && *d.life.lock() == Life::Held;
        (reads && !d.is_recalled()).then_some(d)
    }

    /// As [`Leases::change`], for operations that also conflict with the client's own read
    /// delegation.
    async fn change_all(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        key: FileKey,
        patience: Duration,
    ) -> Result<Changing, Nfsstat4> {
        let access = |inner: &Inner| {
            // A client's own delegation of a directory does not conflict. The reply tells the
            // holder whether other clients changed the directory.
            let reads =
                |id| inner.held.get(&(id, key)).is_some_and(|d| d.kind() == Kind::Read && !d.directory);
            let client = client.map(|c| id(c)).filter(|id| !reads(*id));
            Ok(Access { client, file: key, op: Op::Write, lease: None, claim: None })
        };
        let going = self.begin_with(patience, access).await;
        going.map(|going| going.changing).map_err(|_| Nfsstat4::DELAY)
    }

    /// As [`Leases::change`], for names in a directory. NQNFS leases only files.
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

    /// Waits until no client caches the target of a name. The name is about to be removed, or
    /// opened for writing.
    ///
    /// # Errors
    /// As [`Leases::change`].
    pub async fn change_name(
        self: &Arc<Self>,
        client: Option<&Arc<Client>>,
        dir: (&Export, &RequestContext, &Fh),
        (name, removes): (&Name, bool),
        patience: Duration,
    ) -> Result<Naming, Nfsstat4> {
        let mut naming = self.naming(removes);
        let (export, cx, dir) = dir;
        if !self.any() {
            return Ok(naming);
        }
        // A failed look-up is ignored: the operation itself then fails in the same way.
        let trail = export.vfs.walk(cx, PathRef::name(dir, name), hither_vfs::WalkRequest::default()).await;
        let found = trail.ok().and_then(|t| t.steps.into_iter().next());
        let is_delegated = |kind| matches!(kind, FileKind::Regular | FileKind::Directory);
        if let Some(node) = found.filter(|n| is_delegated(n.attrs.attr.kind)) {
            let changing = if removes && (self.most > 0 || self.short.is_some()) {
                self.change_all(client, key(&node.fh), patience).await?
            } else {
                self.change(client, &node.fh, patience).await?
            };
            naming.file = Some((node.fh, changing));
        }
        Ok(naming)
    }

    /// Starts a change of names. No client gets any delegation until the result is dropped.
    pub(crate) fn naming(self: &Arc<Self>, removes: bool) -> Naming {
        self.naming.fetch_add(1, SeqCst);
        Naming { leases: self.clone(), removes, file: None }
    }

    /// Number of ended operations that may have removed a name.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(SeqCst)
    }
}

impl Delegation {
    /// Whether the file stays watched while its holder changes it. From then on the watch also
    /// reports local programs that read the file.
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
        // The delegation may have ended in the meantime. Dropping the watch then lets operations
        // proceed that wait for it.
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
