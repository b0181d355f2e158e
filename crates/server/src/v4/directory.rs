//! GET_DIR_DELEGATION (RFC 8881 section 18.39), and operations that wait for delegated directories.
//!
//! A directory is delegated like a file for reading, in the same table. Until the recall, only the
//! holder changes its names or attributes through the server. The `change_info4` of the holder's
//! operations reports the holder's own changes. There are no notifications: an operation of another
//! client recalls the delegation. The delegation covers no attributes of the objects in the
//! directory.

use super::delegation::{Changing, PATIENCE_V4, Wish};
use super::exec::{Exec, Here, Object};
use crate::error::stat4;
use hither_lease::Kind;
use hither_proto::nfs4::{Bitmap4, DirDelegation, GetDirDelegationOk, Nfsstat4};
use hither_vfs::{Access, FileKind, Name, PathRef, WalkRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// No delegation now, and no signal when one becomes available.
const UNAVAILABLE: GetDirDelegationOk = GetDirDelegationOk::Unavail(false);

impl Exec<'_> {
    pub(super) async fn get_dir_delegation(&mut self) -> Result<GetDirDelegationOk, Nfsstat4> {
        if !self.nfs.leases.delegates() {
            // The reply of a server without directory delegations: clients need not ask again.
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
        // Directory delegations cannot be reclaimed after a restart (RFC 8881 section 18.39 has no
        // claim). Clients ask again.
        let early = self.nfs.in_grace() || self.nfs.may_be_delegated() || !client.reclaim_done.load(Relaxed);
        if early || self.nfs.registry.is_full() {
            return Ok(UNAVAILABLE);
        }
        // A delegation makes other clients wait, so only callers that may use the directory get
        // one.
        let wanted = Access::READ | Access::LOOKUP;
        let may = dir.export.vfs.access(&dir.cx, &dir.fh, wanted).await.map_err(|e| stat4(&e))?;
        if may.is_empty() || !self.may_delegate(Kind::Read).await {
            return Ok(UNAVAILABLE);
        }
        let (kind, minor, removals) = (Kind::Read, self.minor, self.removals);
        let wish = Wish { kind, directory: true, reclaim: false, times: false, minor, removals };
        let granted = self.nfs.leases.grant(&self.nfs.registry, &client, (&dir.export, &dir.fh), wish).await;
        let Some(d) = granted else { return Ok(UNAVAILABLE) };
        if !Arc::ptr_eq(&self.r.table, &self.r.server.table()) {
            // The exports have changed since the call began. The delegation is recalled like all
            // earlier ones.
            self.nfs.leases.changed_elsewhere(&dir.fh);
        }
        // The attributes from before the grant may be out of date.
        self.changed();
        Ok(GetDirDelegationOk::Granted(DirDelegation {
            // Cookies do not depend on the delegation.
            cookieverf: [0; 8],
            stateid: d.stateid(),
            notification: Bitmap4::EMPTY,
            child_attributes: Bitmap4::EMPTY,
            dir_attributes: Bitmap4::EMPTY,
        }))
    }

    /// Waits until no other client relies on the names of a directory in which an OPEN may create a
    /// file. `None`: the name exists, and the OPEN must not create it.
    pub(super) async fn for_new_name(
        &self,
        dir: &Object,
        name: &Name,
        exclusive: bool,
    ) -> Result<Option<Changing>, Nfsstat4> {
        // An open with O_CREAT of an existing file does not change the directory.
        if !exclusive && self.nfs.leases.any() {
            let trail =
                dir.export.vfs.walk(&dir.cx, PathRef::name(&dir.fh, name), WalkRequest::default()).await;
            if trail.is_ok_and(|t| !t.steps.is_empty()) {
                return Ok(None);
            }
        }
        self.for_entries(dir).await.map(Some)
    }

    /// Waits until no other client relies on the names of a directory that are about to change. No
    /// client can begin to rely on them until the result is dropped.
    pub(super) async fn for_entries(&self, dir: &Object) -> Result<Changing, Nfsstat4> {
        if self.nfs.may_be_delegated() {
            return Err(Nfsstat4::GRACE);
        }
        self.nfs.leases.change_entries(self.client.as_ref(), &dir.fh, PATIENCE_V4).await
    }
}
