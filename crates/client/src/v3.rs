//! NFSv3 client (RFC 1813): turns a server into a `Vfs`.
//!
//! This module knows neither FUSE nor caches. NFSv3 has no opens. An open is a check with ACCESS, a
//! table entry, and a commit of uncommitted writes before its end. The reply of ACCESS has the
//! fresh attributes that close-to-open needs. Files that are removed while open are renamed to a
//! hidden name ([`crate::silly`]). Calls that change something run in separate tasks
//! ([`crate::detach`]). An interrupted program therefore returns at once, and its call still
//! completes.
//!
//! Limits of the protocol: byte-range locks are not taken at the server (`nolock`; the frontend
//! keeps them local). Extended attributes, SEEK, ALLOCATE and COPY give `EOPNOTSUPP`. RENAME with
//! flags gives `EINVAL`.

mod convert;
mod io;
mod listing_sizes;
mod lookup;
mod make;
mod many;
mod mount;
mod open;
mod readdir;
mod remove;
#[cfg(test)]
mod tests;
mod walk;
pub(crate) mod wire;

pub(crate) use convert::attr;
pub(crate) use mount::{Beginning, machine_name, rpc_client};
pub use mount::{Mount3, connect_v3};

use crate::Options;
use crate::detach::patient;
use crate::mountd::Mounted;
use crate::writes::Uncommitted;
use async_trait::async_trait;
use bytes::Bytes;
use hither_proto::nfs3::FsstatArgs;
use hither_vfs::{
    Access, Attrs, BatchOps, ChangeInfo, Creation, Data, DirPage, Error, Fh, File, FileRange, Finished,
    FsStat, LeaseAuthority, LockConflict, LockKind, LockOwner, LockWait, Made, Moved, Name, Node, OpenHow,
    OpenId, Opened, PathRef, Read, ReadManyResult, Removal, RenameFlags, RequestContext, Result, Seek,
    SetAttr, Special, Stability, Upcalls, Vfs, WalkRequest, WalkResult, Wrote, XattrMode, create_in_steps,
    create_many_in_steps, finish_in_steps, remove_many_in_steps,
};
use listing_sizes::ListingSizes;
use open::Opens;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::{Caller, Patience};

/// A mounted NFSv3 export; cheap to clone.
#[derive(Clone)]
pub(crate) struct V3 {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    caller: Arc<Caller>,
    writes: Arc<Uncommitted>,
    opens: Arc<Opens>,
    opts: Options,
    root: Fh,
    /// The mountd to call at unmount; absent in tests.
    mounted: Option<Mounted>,
    /// The server has refused READDIRPLUS as not supported.
    no_readdirplus: AtomicBool,
    /// Attributes beside the answer may be older than the call.
    old_beside: bool,
    listing_sizes: ListingSizes,
    /// PATHCONF of the root says that names match by exact spelling.
    exact_names: bool,
    /// Recognises exclusive creations.
    stamps: crate::stamp::Stamps,
    root_fsid: (u64, u64),
}

impl std::ops::Deref for V3 {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

#[async_trait]
impl LeaseAuthority for V3 {
    fn delegated_bytes(&self, fh: &Fh) -> Option<u64> {
        // The protocol reserves no room.
        self.leases().filter(|leases| leases.is_for_writing(fh)).map(|_| u64::MAX)
    }

    fn can_cache_writes(&self, fh: &Fh) -> bool {
        self.leases().is_none_or(|leases| leases.can_cache_writes(fh))
    }

    async fn request_write_caching(&self, cx: &RequestContext, fh: &Fh) -> bool {
        match self.leases() {
            Some(leases) => leases.request_write_caching(&cx.cred, &Patience::of(cx), fh).await,
            None => true,
        }
    }

    fn is_noncacheable(&self, fh: &Fh) -> bool {
        self.leases().is_some_and(|leases| leases.is_noncacheable(fh))
    }

    fn delegates_times(&self, _fh: &Fh) -> bool {
        false
    }
}

#[async_trait]
impl Vfs for V3 {
    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        self.node(cx, self.root.clone(), None).await
    }

    fn peek(&self, _: &RequestContext, _: PathRef<'_>) -> Option<WalkResult> {
        None
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        patient(cx, self.walk_path(cx, at, want)).await
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        self.directory_above(cx, dir).await
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        Ok(self.node(cx, file.fh.clone(), None).await?.attrs)
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        self.set_attributes(cx, file, set).await
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        Ok(self.rights(cx, fh, want).await?.0)
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        self.link_target(cx, fh).await
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        self.open_file(cx, at, how).await
    }

    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()> {
        self.close_file(cx, fh, open).await
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        self.read_range(cx, file, offset_bytes, len_bytes).await
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        self.write_range(cx, file, offset_bytes, data, stability).await
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        finish_in_steps(self, cx, file, piece, set).await
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        let open = file.open.and_then(|id| self.opens.find(id));
        self.writes.commit(cx, file.fh, open.as_ref().map(|o| &o.mark)).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        create_in_steps(self, cx, (dir, name), set, data).await
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        self.make_directory(cx, dir, name, set).await
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        self.make_special(cx, dir, name, what, set).await
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        self.make_symlink(cx, dir, name, target, set).await
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        self.make_link(cx, fh, dir, name).await
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        self.remove_name(cx, dir, name, target).await
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        self.remove_directory(cx, dir, name).await
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        self.rename_name(cx, from, to, replaced, flags).await
    }

    async fn readdir(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        Ok(self.list(cx, dir, cookie, verifier, max_bytes, nodes).await?.page)
    }

    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        let args = FsstatArgs { fsroot: convert::fh3(fh)? };
        let ok = self.caller.expect(&cx.cred, &Patience::of(cx), &args).await?;
        Ok(FsStat {
            total_bytes: ok.tbytes,
            free_bytes: ok.fbytes,
            avail_bytes: ok.abytes,
            total_files: ok.tfiles,
            free_files: ok.ffiles,
            avail_files: ok.afiles,
            name_max_bytes: self.caller.sizes.name_max_bytes,
        })
    }

    async fn getxattr(&self, _: &RequestContext, _: &Fh, _: &[u8]) -> Result<Bytes> {
        Err(unsupported())
    }

    async fn setxattr(&self, _: &RequestContext, _: &Fh, _: &[u8], _: &Bytes, _: XattrMode) -> Result<()> {
        Err(unsupported())
    }

    async fn listxattr(&self, _: &RequestContext, _: &Fh) -> Result<Vec<Bytes>> {
        Err(unsupported())
    }

    async fn removexattr(&self, _: &RequestContext, _: &Fh, _: &[u8]) -> Result<()> {
        Err(unsupported())
    }

    async fn lock(
        &self,
        _: &RequestContext,
        _: File<'_>,
        _: LockOwner,
        _: LockKind,
        _: FileRange,
        _: LockWait,
    ) -> Result<Option<Attrs>> {
        Err(unsupported())
    }

    async fn unlock(&self, _: &RequestContext, _: File<'_>, _: LockOwner, _: FileRange) -> Result<()> {
        Err(unsupported())
    }

    async fn test_lock(
        &self,
        _: &RequestContext,
        _: File<'_>,
        _: LockOwner,
        _: LockKind,
        _: FileRange,
    ) -> Result<Option<LockConflict>> {
        Err(unsupported())
    }

    async fn seek(&self, _: &RequestContext, _: File<'_>, _: u64, _: Seek) -> Result<u64> {
        Err(unsupported())
    }

    async fn allocate(&self, _: &RequestContext, _: File<'_>, _: FileRange) -> Result<()> {
        Err(unsupported())
    }

    async fn deallocate(&self, _: &RequestContext, _: File<'_>, _: FileRange) -> Result<()> {
        Err(unsupported())
    }

    async fn copy(
        &self,
        _: &RequestContext,
        _: File<'_>,
        _: u64,
        _: File<'_>,
        _: u64,
        _: u64,
    ) -> Result<u64> {
        Err(unsupported())
    }

    /// NFSv3 attributes are valid by time only. Only leases of NQNFS can be withdrawn.
    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        // A second subscriber would be a mistake of the caller.
        let _ = self.caller.above.set(upcalls.clone());
        if let Some(nqnfs) = self.caller.nqnfs.as_ref().filter(|_| self.opts.delegations) {
            nqnfs.subscribe(&self.caller, upcalls);
        }
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        let flushed = patient(cx, self.writes.flush_all()).await;
        if let Some(leases) = self.leases() {
            leases.give_up().await;
        }
        if let Some(mounted) = &self.mounted {
            let told = async {
                mounted.unmount().await;
                Ok(())
            };
            let _ = patient(cx, told).await;
        }
        self.caller.client.shutdown();
        flushed
    }
}

#[async_trait]
impl BatchOps for V3 {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        self.attributes_of_many(cx, objects).await
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        self.proofs_of_many(cx, objects, want).await
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        _: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        // NFSv3 has no leases that cover names. The holder's attributes are not worth a call.
        ReadManyResult { files: self.starts_of_many(cx, files, max_bytes).await, holder: None }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        self.listings_of_many(cx, dirs, max_bytes).await
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        create_many_in_steps(self, cx, dir, new).await
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        remove_many_in_steps(self, cx, dir, gone).await
    }
}

/// The error of an operation that NFSv3 lacks.
fn unsupported() -> Error {
    Error::new(libc::EOPNOTSUPP)
}
