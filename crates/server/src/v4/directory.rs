//! GET_DIR_DELEGATION (RFC 8881 section 18.39), and what waits for directories that are delegated.
//!
//! A directory is delegated like a file for reading, in the same table: until it is recalled nobody
//! changes its names or attributes through the server but its holder, who learns what he did
//! himself from the `change_info4` of his own operations. There are no notifications: whatever
//! somebody else is about to do recalls it. Nothing of the objects in it is promised.

use super::delegation::{Changing, PATIENCE_V4, Wish};
use super::exec::{Exec, Here, Object};
use crate::error::stat4;
use hither_lease::Kind;
use hither_proto::nfs4::{Bitmap4, DirDelegation, GetDirDelegationOk, Nfsstat4};
use hither_vfs::{Access, FileKind, Name, Want, Where};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Not now, and no word when.
const UNAVAILABLE: GetDirDelegationOk = GetDirDelegationOk::Unavail(false);

impl Exec<'_> {
    pub(super) async fn get_dir_delegation(&mut self) -> Result<GetDirDelegationOk, Nfsstat4> {
        if !self.nfs.leases.delegates() {
            // As by a server that does not know of it: clients need not ask again.
            return Err(Nfsstat4::NOTSUPP);
        }
        let client = self.client()?;
        let dir = match self.here()? {
            Here::Object(dir) => dir.clone(),
            Here::Above(_) => return Ok(UNAVAILABLE),
        };
        if self.attrs(&dir).await?.attr.kind != FileKind::Directory {
            return Err(Nfsstat4::NOTDIR);
        }
        // It is nothing that could be taken back after a restart (RFC 8881 section 18.39 has no
        // claim): whoever had one asks again.
        let early = self.nfs.in_grace() || self.nfs.may_be_delegated() || !client.reclaim_done.load(Relaxed);
        if early || self.nfs.registry.is_full() {
            return Ok(UNAVAILABLE);
        }
        // Others wait for whoever holds it: it is for those who may use the directory.
        let wanted = Access::READ | Access::LOOKUP;
        let may = dir.export.vfs.access(&dir.cx, &dir.fh, wanted).await.map_err(|e| stat4(&e))?;
        if may.is_empty() || !self.may_delegate(Kind::Read).await {
            return Ok(UNAVAILABLE);
        }
        let wish = Wish { kind: Kind::Read, directory: true, reclaim: false, minor: self.minor };
        let granted = self.nfs.leases.grant(&self.nfs.registry, &client, (&dir.export, &dir.fh), wish).await;
        let Some(d) = granted else { return Ok(UNAVAILABLE) };
        if !Arc::ptr_eq(&self.r.table, &self.r.server.table()) {
            // The exports have changed since the call began: recalled as all others were.
            self.nfs.leases.changed_elsewhere(&dir.fh);
        }
        // What was seen before may have been changed since.
        self.changed();
        Ok(GetDirDelegationOk::Granted(DirDelegation {
            // Cookies are not bound to it.
            cookieverf: [0; 8],
            stateid: d.stateid(),
            notification: Bitmap4::EMPTY,
            child_attributes: Bitmap4::EMPTY,
            dir_attributes: Bitmap4::EMPTY,
        }))
    }

    /// Waits until nobody else relies on the names of a directory in which an OPEN may make a file.
    /// `None`: the name is there, and nothing is to be made under it.
    pub(super) async fn for_new_name(
        &self,
        dir: &Object,
        name: &Name,
        exclusive: bool,
    ) -> Result<Option<Changing>, Nfsstat4> {
        // Programs open with O_CREAT what has long been there: that is no change of the directory.
        if !exclusive && self.nfs.leases.any() {
            let trail = dir.export.vfs.walk(&dir.cx, Where::name(&dir.fh, name), Want::default()).await;
            if trail.is_ok_and(|t| !t.steps.is_empty()) {
                return Ok(None);
            }
        }
        self.for_entries(dir).await.map(Some)
    }

    /// Waits until nobody else relies on the names of a directory that are about to change, and
    /// nobody begins to until the result is dropped.
    pub(super) async fn for_entries(&self, dir: &Object) -> Result<Changing, Nfsstat4> {
        if self.nfs.may_be_delegated() {
            return Err(Nfsstat4::GRACE);
        }
        self.nfs.leases.change_entries(self.client.as_ref(), &dir.fh, PATIENCE_V4).await
    }
}
