//! NFSv4.1 and 4.2 client (RFC 8881, RFC 7862): turns a server into a `Vfs`.
//!
//! This module knows neither FUSE nor caches. [`V4`] is the interface: each call becomes a task
//! that works in compounds. The task runs to its end even when the caller stops waiting. The
//! modules, from the wire upwards:
//!
//! | module | content |
//! |---|---|
//! | `session` | slots, which bound the requests in flight |
//! | `call` | one compound, executed exactly once |
//! | `mount`, `lease`, `recover` | creation, renewal and replacement of clientid, session and state |
//! | `callback`, `delegation` | calls from the server, and delegations |
//! | `state`, `ranges`, `closer` | open files and their locks; CLOSE of many files at once |
//! | `lock_authority` | authority over locks: the server, or this client under a write delegation |
//! | `walk`, `list`, `many`, `bring` | many results in one compound |
//! | `open`, `by_name`, `lock`, `io`, `names`, `attrs`, `xattr` | the operations |
//! | `replay_check` | the outcome of a change whose reply was lost with its session |
//!
//! Exactly once: a call on a broken connection is repeated in its slot. The server answers it from
//! its reply cache. When the session is lost (the server restarted), the call is sent again in the
//! new session, as by the Linux client. An exclusive create is recognised by its verifier. A
//! repeated REMOVE that finds no file counts as success. The names show whether a LINK or RENAME
//! was executed before (`replay_check`). A MKDIR or SYMLINK can report `EEXIST`.

mod attrs;
mod batch;
mod bring;
mod by_name;
mod call;
mod callback;
mod closer;
mod core;
mod delegation;
mod directory;
mod fail;
mod io;
mod late_locks;
mod lease;
mod list;
mod lock;
mod lock_authority;
mod many;
mod mount;
mod names;
mod open;
mod recover;
mod replay_check;
mod session;
mod shutdown;
mod state;
mod walk;
mod whole;
mod xattr;

use crate::error::{MountError, Service};
use crate::{LookupCache, Options, Version};
use ::core::time::Duration;
use async_trait::async_trait;
use bytes::Bytes;
use callback::Callbacks;
use core::Core;
use hither_proto::nfs4::{CreateType, Nfsstat4};
use hither_rpc::{Client, ClientConfig, Connect, Mode, RetryPolicy, Stats};
use hither_vfs::{
    Access, Attrs, BatchOps, ChangeInfo, Creation, Data, DirPage, Env, Error, Fh, File, FileRange, Finished,
    FsStat, LeaseAuthority, LockConflict, LockKind, LockOwner, LockWait, Made, Moved, Name, NewKind, Node,
    OpenHow, OpenId, Opened, PathRef, Read, ReadManyResult, Removal, RenameFlags, RequestContext, Result,
    Seek, SetAttr, Special, Stability, Upcalls, Vfs, WalkRequest, WalkResult, Wrote, XattrMode,
    create_in_steps, finish_in_steps,
};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

pub use delegation::DelegationCounts;

/// A mounted NFSv4.1 or 4.2 file system.
pub struct V4 {
    core: Arc<Core>,
}

impl std::fmt::Debug for V4 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("V4").field("server", &self.core.opts.server).field("minor", &self.core.minor).finish()
    }
}

impl V4 {
    /// Mounts `options.path` from the server of `connect`. `addr` is the server's address, for
    /// messages.
    ///
    /// # Errors
    /// The reason for the failed mount; [`MountError::VersionNotSupported`] when another version
    /// may work.
    pub async fn mount(
        options: Options,
        version: Version,
        env: Env,
        stats: Arc<Stats>,
        connect: Arc<dyn Connect>,
        addr: SocketAddr,
    ) -> std::result::Result<Self, MountError> {
        let minor = match version {
            Version::V41 => 1,
            Version::V42 => 2,
            Version::V3 | Version::Nqnfs => {
                let (server, what) = (options.server, format!("NFS {} in the v4 client", version.name()));
                return Err(MountError::VersionNotSupported { server, what, offered: None });
            }
        };
        // Soft mounts bound the wait of the caller, not of the call: see `Core::detached`.
        let policy = RetryPolicy { timeo: options.timeo, retrans: options.retrans, mode: Mode::Hard };
        let cfg = ClientConfig {
            nconnect: options.nconnect.clamp(1, 16),
            policy,
            seed: (env.random)(),
            ..ClientConfig::default()
        };
        let rpc = Client::new(connect, cfg, stats.clone());
        let what = format!("NFS version 4.{minor}");
        rpc.connect_now().await.map_err(|e| {
            MountError::from_call(&options.server, &options.path, Service::Nfs, addr, &what, e)
        })?;
        let core = Core::new(options, env, rpc, stats, minor);
        core.rpc.set_callback_handler(Callbacks::new(&core));
        match core.mount(addr).await {
            Ok(()) => Ok(Self { core }),
            Err(e) => {
                core.leave(Duration::from_secs(5)).await;
                Err(e)
            }
        }
    }

    /// Largest READ and largest WRITE in bytes.
    pub fn transfer_sizes(&self) -> (u32, u32) {
        let facts = self.core.facts();
        (facts.rsize, facts.wsize)
    }

    /// Statistics of delegations.
    pub fn delegated(&self) -> Delegated {
        Delegated(Arc::downgrade(&self.core))
    }

    /// Names that may be remembered.
    pub fn lookup_cache(&self) -> LookupCache {
        self.core.valid.lookup_cache()
    }
}

/// Access to the statistics of delegations of a mount.
#[derive(Clone)]
pub struct Delegated(Weak<Core>);

impl Delegated {
    /// The present counts.
    pub fn counts(&self) -> DelegationCounts {
        self.0.upgrade().map(|core| core.delegations.counts()).unwrap_or_default()
    }
}

impl Drop for V4 {
    fn drop(&mut self) {
        self.core.stop();
    }
}

/// Runs work in a task. Clones the core and the context: one pair waits, the other works in the
/// task.
macro_rules! detached {
    ($self:ident, $cx:ident, |$core:ident, $own:ident| $work:expr) => {{
        let waiting = $cx;
        let ($core, $own) = ($self.core.clone(), waiting.clone());
        $self.core.detached(waiting, async move { $work.await }).await
    }};
}

/// The answer for each of `objects`. When the whole call failed, its error for each.
fn each<T>(answers: Result<Vec<Result<T>>>, objects: &[Fh]) -> Vec<Result<T>> {
    answers.unwrap_or_else(|e| objects.iter().map(|_| Err(e.clone())).collect())
}

#[async_trait]
impl LeaseAuthority for V4 {
    fn delegated_bytes(&self, fh: &Fh) -> Option<u64> {
        self.core.delegated_bytes(fh)
    }

    // NFSv4 promises close-to-open consistency, so delayed writes need no delegation until close.
    fn can_cache_writes(&self, _fh: &Fh) -> bool {
        true
    }

    async fn request_write_caching(&self, _cx: &RequestContext, _fh: &Fh) -> bool {
        true
    }

    fn is_noncacheable(&self, _fh: &Fh) -> bool {
        false
    }

    fn delegates_times(&self, fh: &Fh) -> bool {
        self.core.delegates_times(fh)
    }
}

#[async_trait]
impl Vfs for V4 {
    async fn root(&self, cx: &RequestContext) -> Result<Node> {
        detached!(self, cx, |core, cx| async {
            let fh = core.facts().root.clone();
            Ok(Node { attrs: core.getattr(&cx, &fh).await?, fh })
        })
    }

    fn peek(&self, _: &RequestContext, _: PathRef<'_>) -> Option<WalkResult> {
        None
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let (base, path) = (at.base.clone(), at.path.to_vec());
        detached!(self, cx, |core, cx| core.walk(&cx, &base, &path, want))
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        let dir = dir.clone();
        detached!(self, cx, |core, cx| core.parent(&cx, &dir))
    }

    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        let fh = file.fh.clone();
        detached!(self, cx, |core, cx| core.getattr(&cx, &fh))
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        let (fh, open, set) = (file.fh.clone(), file.open, set.clone());
        detached!(self, cx, |core, cx| core.setattr(&cx, File { fh: &fh, open }, &set))
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        let fh = fh.clone();
        detached!(self, cx, |core, cx| core.access(&cx, &fh, want))
    }

    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        let fh = fh.clone();
        detached!(self, cx, |core, cx| core.readlink(&cx, &fh))
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let (base, path, how) = (at.base.clone(), at.path.to_vec(), how.clone());
        let (core, own, undo) = (self.core.clone(), cx.clone(), self.core.clone());
        let work = async move {
            match core.open(&own, &base, &path, &how).await {
                Err(f) if f.status() == Some(Nfsstat4::BADOWNER) && core.ids.bad_owner() => {
                    core.open(&own, &base, &path, &how).await
                }
                opened => opened,
            }
        };
        self.core.detached_or(cx, work, move |opened: Opened| undo.close_unwanted(opened.open)).await
    }

    async fn close(&self, cx: &RequestContext, _: &Fh, open: OpenId) -> Result<()> {
        self.core.files.closing(open);
        detached!(self, cx, |core, cx| core.close(&cx, open))
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let (fh, open) = (file.fh.clone(), file.open);
        let read = detached!(self, cx, |core, cx| core.read(&cx, &fh, open, offset_bytes, len_bytes))?;
        Ok(self.core.writes().overlay(file.fh, offset_bytes, len_bytes, read))
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let stability = if self.core.opts.sync { Stability::Stable } else { stability };
        let asked = tokio::time::Instant::now();
        let writes = self.core.writes();
        let (bytes, attr) = writes.write(cx, file.fh, file.open, offset_bytes, data, stability).await?;
        let leased = |attr| self.core.leased(file.fh, self.core.valid.attrs(file.fh, attr, asked));
        Ok(Wrote { bytes, attrs: attr.map(leased) })
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        let (fh, open, wanted, step) = (file.fh.clone(), file.open, set.clone(), piece.clone());
        let done = detached!(self, cx, |core, cx| core.finish(&cx, &fh, open, piece, &wanted))?;
        match done {
            Some(done) => Ok(done),
            None => finish_in_steps(self, cx, file, step, set).await,
        }
    }

    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()> {
        let mark = match file.open {
            Some(id) => self.core.files.entry(id)?.mark.lock().clone(),
            None => None,
        };
        self.core.writes().commit(cx, file.fh, mark.as_deref()).await
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        let (at, wanted, bytes) = ((dir.clone(), name.clone()), set.clone(), data.clone());
        match detached!(self, cx, |core, cx| core.create_whole(&cx, &at.0, &at.1, &wanted, bytes))? {
            Some(made) => Ok(made),
            None => create_in_steps(self, cx, (dir, name), set, data).await,
        }
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let (dir, name, set) = (dir.clone(), name.clone(), set.clone());
        detached!(self, cx, |core, cx| core.create(&cx, &dir, &name, CreateType::Dir, &set))
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        let (dir, name, what, set) = (dir.clone(), name.clone(), what.clone(), set.clone());
        detached!(self, cx, |core, cx| core.mknod(&cx, &dir, &name, &what, &set))
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        let (dir, name, set) = (dir.clone(), name.clone(), set.clone());
        let what = CreateType::Link(target.clone().into());
        detached!(self, cx, |core, cx| core.create(&cx, &dir, &name, what, &set))
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let (fh, dir, name) = (fh.clone(), dir.clone(), name.clone());
        detached!(self, cx, |core, cx| core.link(&cx, &fh, &dir, &name))
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let (dir, name, target) = (dir.clone(), name.clone(), target.cloned());
        detached!(self, cx, |core, cx| core.unlink(&cx, &dir, &name, target.as_ref()))
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let (dir, name) = (dir.clone(), name.clone());
        detached!(self, cx, |core, cx| core.rmdir(&cx, &dir, &name))
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let (from, to) = ((from.0.clone(), from.1.clone()), (to.0.clone(), to.1.clone()));
        let replaced = replaced.cloned();
        detached!(self, cx, |core, cx| core.rename(
            &cx,
            (&from.0, &from.1),
            (&to.0, &to.1),
            replaced.as_ref(),
            flags
        ))
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
        let dir = dir.clone();
        let nodes = nodes && self.core.opts.readdirplus;
        detached!(self, cx, |core, cx| core.readdir(&cx, &dir, cookie, verifier, max_bytes, nodes))
    }

    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        let fh = fh.clone();
        detached!(self, cx, |core, cx| core.statfs(&cx, &fh))
    }

    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        let (fh, name) = (fh.clone(), name.to_vec());
        detached!(self, cx, |core, cx| core.getxattr(&cx, &fh, &name))
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let (fh, name, value) = (fh.clone(), name.to_vec(), value.clone());
        detached!(self, cx, |core, cx| core.setxattr(&cx, &fh, &name, &value, mode))
    }

    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>> {
        let fh = fh.clone();
        detached!(self, cx, |core, cx| core.listxattr(&cx, &fh))
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        let (fh, name) = (fh.clone(), name.to_vec());
        detached!(self, cx, |core, cx| core.removexattr(&cx, &fh, &name))
    }

    async fn lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<Option<Attrs>> {
        let late_locks = &self.core.files.late_locks;
        self.core.wait_for(cx, late_locks.end(file.fh, owner)).await?;
        if cx.cancel.is_cancelled() {
            return Err(Error::new(libc::EINTR));
        }
        let (_caller, call) = late_locks.call(file.fh, owner);
        let (open, fh) = (file.open, file.fh.clone());
        // The wait for a taken lock ends with its caller, also when the caller has timed out.
        let cancel = cx.cancel.child_token();
        let _stop = cancel.clone().drop_guard();
        let own = RequestContext { cancel, ..cx.clone() };
        let (core, undo) = (self.core.clone(), self.core.clone());
        let work = async move { core.lock(&own, open, owner, kind, range, wait).await };
        // A lock granted after its caller was interrupted must be released.
        let unlock = move |_| {
            tokio::spawn(async move {
                if let Err(f) = undo.unlock(&fh, owner, range).await {
                    tracing::warn!("giving up a lock whose caller has ended: {}", Error::from(f));
                }
                drop(call);
            });
        };
        self.core.detached_or(cx, work, unlock).await
    }

    async fn unlock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()> {
        let fh = file.fh.clone();
        let (_caller, call) = self.core.files.late_locks.call(&fh, owner);
        detached!(self, cx, |core, _own| async {
            core.writes().releasing(&fh);
            let unlocked = core.unlock(&fh, owner, range).await;
            drop(call);
            unlocked
        })
    }

    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        let fh = file.fh.clone();
        detached!(self, cx, |core, cx| core.test_lock(&cx, &fh, owner, kind, range))
    }

    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        let (fh, open) = (file.fh.clone(), file.open);
        detached!(self, cx, |core, cx| core.seek(&cx, &fh, open, offset_bytes, what))
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let (fh, open) = (file.fh.clone(), file.open);
        detached!(self, cx, |core, cx| core.reserve(&cx, &fh, open, range, false))
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        // Unstable writes into the hole would reappear, if the server lost them and they were
        // written again.
        self.core.writes().commit(cx, file.fh, None).await?;
        let (fh, open) = (file.fh.clone(), file.open);
        detached!(self, cx, |core, cx| core.reserve(&cx, &fh, open, range, true))
    }

    async fn copy(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        // As for `deallocate`, for both files.
        self.core.writes().commit(cx, from.fh, None).await?;
        self.core.writes().commit(cx, to.fh, None).await?;
        let (from_fh, from_open) = (from.fh.clone(), from.open);
        let (to_fh, to_open) = (to.fh.clone(), to.open);
        detached!(self, cx, |core, cx| core.copy(
            &cx,
            (&from_fh, from_open, from_offset_bytes),
            (&to_fh, to_open, to_offset_bytes),
            len_bytes
        ))
    }

    fn subscribe(&self, upcalls: Arc<dyn Upcalls>) {
        self.core.delegations.subscribe(upcalls);
    }

    async fn shutdown(&self, cx: &RequestContext) -> Result<()> {
        self.core.shutdown(cx).await
    }
}

#[async_trait]
impl BatchOps for V4 {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let own = objects.to_vec();
        let answers = detached!(self, cx, |core, cx| core.many(&cx, own, || many::Stats));
        each(answers, objects)
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let own = objects.to_vec();
        let answers = detached!(self, cx, |core, cx| core.many(&cx, own, || many::Proofs { want }));
        each(answers, objects)
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let (own, holder) = (files.to_vec(), holder.cloned());
        let max_bytes = max_bytes.min(self.core.facts().rsize);
        let answers = detached!(self, cx, |core, cx| async {
            if max_bytes == 0 {
                let parts = || many::Opens { turn: core.turn() };
                return core.many_and(&cx, own, holder.as_ref(), parts).await;
            }
            let several = core.data_anywhere.load(std::sync::atomic::Ordering::Relaxed);
            let parts = || many::Reads { max_bytes, several, turn: core.turn() };
            core.many_and(&cx, own, holder.as_ref(), parts).await
        });
        let (files, holder) = match answers {
            Ok((answers, holder)) => (each(Ok(answers), files), holder),
            Err(e) => (each(Err(e), files), None),
        };
        ReadManyResult { files, holder }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let own = dirs.to_vec();
        let answers = detached!(self, cx, |core, cx| async {
            let limits = core.ready().await?.limits;
            let max_bytes = core.listing_room(limits.max_response_bytes, 4096, max_bytes.max(1));
            let max_bytes = max_bytes.unwrap_or(list::READDIR_MIN_BYTES);
            let several = core.data_anywhere.load(std::sync::atomic::Ordering::Relaxed);
            let rights = own.len() > 1;
            core.many(&cx, own, || list::Lists { max_bytes, several, rights }).await
        });
        each(answers, dirs)
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        let (own_dir, own) = (dir.clone(), new.to_vec());
        let made = match detached!(self, cx, |core, cx| core.create_many(&cx, &own_dir, own)) {
            Ok(made) => made,
            Err(e) => return new.iter().map(|_| Err(e.clone())).collect(),
        };
        let mut out = Vec::with_capacity(new.len());
        for (one, made) in new.iter().zip(made) {
            out.push(match (made, &one.kind) {
                (Some(made), _) => made,
                (None, NewKind::File(data)) => {
                    create_in_steps(self, cx, (dir, &one.name), &one.set, data.clone()).await
                }
                (None, _) => Err(Error::new(libc::EINVAL)),
            });
        }
        out
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        let (own_dir, own) = (dir.clone(), gone.to_vec());
        let removed =
            detached!(self, cx, |core, cx| async { Ok(core.remove_many(&cx, &own_dir, &own).await) });
        removed.unwrap_or_else(|e| gone.iter().map(|_| Err(e.clone())).collect())
    }
}

#[cfg(test)]
mod tests;
