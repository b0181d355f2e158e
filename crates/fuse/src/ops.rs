//! The implementation of each request by [`Vfs`](hither_vfs::Vfs) calls, one module per family.

mod attr;
mod dir;
mod file;
mod gone;
mod late;
mod lock;
mod lookup;
mod name;
mod range;
mod rights;
mod xattr;

use crate::abi::{EntryReply, Header, Op, entry_out};
use crate::call::{Answer, Body, Pending, Undo};
use crate::device::Delivery;
use crate::handles::{OpenDir, OpenFile};
use crate::inode::extending::Extends;
use crate::inode::{Inode, Moment, QUEUED_MAX};
use crate::lease::{Grant, LEASE_TIME};
use crate::session::Session;
use crate::unprocessed::Answered;
use gone::PathCall;
pub(crate) use rights::KnownSettings;

use hither_vfs::{
    Account, Attrs, Cred, Error, Fh, File, FileKind, Name, Node, RequestContext, Result, Time, Validity,
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// A request being served.
pub(crate) struct Call {
    pub session: Arc<Session>,
    pub head: Header,
    pub pending: Arc<Pending>,
    cred: OnceLock<Arc<Cred>>,
    /// The name in the request.
    pub name: Option<Name>,
    /// See [`Op::range`].
    pub range: (u64, u64),
    /// See [`Op::contents`].
    pub contents: Option<(u64, u64, u64)>,
    /// See [`Op::changed_names`].
    pub names: SmallVec<[(u64, Name); 1]>,
    /// The cost of the call.
    account: OnceLock<Arc<Account>>,
    /// Exists from passing on a lease until the reply is written.
    grant: OnceLock<Option<Grant>>,
    /// Effects of the reply in the kernel.
    unprocessed: Mutex<Answered>,
}

impl Call {
    pub fn new(session: Arc<Session>, head: Header, pending: Arc<Pending>, op: &Op) -> Self {
        let (cred, account, grant, unprocessed) = Default::default();
        let (name, range) = (op.name().cloned(), op.range());
        let (contents, names) = (op.contents(head.nodeid), op.changed_names(head.nodeid));
        Self { session, head, pending, cred, name, range, contents, names, account, grant, unprocessed }
    }

    /// Serves the request.
    pub async fn serve(&self, op: Op) -> Result<Answer> {
        if !matches!(op, Op::Lookup { .. } | Op::Readlink | Op::Open { .. }) {
            self.session.hints.over(self.head.tid);
        }
        if self.is_never_served(&op) {
            // The kernel does not send such requests any more.
            return Err(Error::new(libc::ENOSYS));
        }
        if let Op::Lookup { name } = op {
            return self.lookup(name).await;
        }
        let path_call = PathCall::of(&op);
        let changes = path_call.as_ref().is_some_and(PathCall::changes);
        let found = self.session.path_retries.arrived(self.head.tid, self.head.nodeid, changes);
        let Some(path_call) = path_call else { return self.serve_once(op).await };
        match self.serve_once(op).await {
            Err(e) if file::may_be_gone(&e) => self.after_removal(path_call, found, e).await,
            served => served,
        }
    }

    async fn serve_once(&self, op: Op) -> Result<Answer> {
        match op {
            Op::Getattr { fh } => self.getattr(fh).await,
            Op::Setattr(set) => self.setattr(set).await,
            Op::Access { mask } => self.access(mask).await,
            Op::Statfs => self.statfs(self.head.nodeid).await,
            Op::Readlink => self.readlink().await,
            Op::Symlink { name, target } => self.symlink(name, target).await,
            Op::Mknod { mode, rdev, name } => self.mknod(name, mode, rdev).await,
            Op::Mkdir { mode, name } => self.mkdir(name, mode).await,
            Op::Unlink { name } => self.unlink(name).await,
            Op::Rmdir { name } => self.rmdir(name).await,
            Op::Rename { from, new_dir, to, flags } => self.rename(from, new_dir, to, flags).await,
            Op::Link { old, name } => self.link(old, name).await,
            Op::Open { flags } => self.open(flags).await,
            Op::Create { flags, mode, name } => self.create(name, flags, mode).await,
            Op::Read { fh, offset, size, read_flags } => self.read(fh, offset, size, read_flags).await,
            Op::Write { fh, offset, write_flags, flags, data } => {
                self.write(fh, offset, write_flags, flags, data).await
            }
            Op::Flush { fh, lock_owner } => self.flush(fh, lock_owner).await,
            Op::Release { fh } => self.release(fh).await,
            Op::Fsync { fh } => self.fsync(fh).await,
            Op::Opendir => self.opendir().await,
            Op::Readdir { fh, offset, size, plus } => self.readdir(fh, offset, size, plus).await,
            Op::Releasedir { fh } => {
                self.session.take_dir(fh);
                Ok(Answer::empty())
            }
            Op::Fsyncdir => self.fsyncdir().await,
            Op::Setxattr { name, value, flags } => self.setxattr(name, value, flags).await,
            Op::Getxattr { name, size } => self.getxattr(name, size).await,
            Op::Listxattr { size } => self.listxattr(size).await,
            Op::Removexattr { name } => self.removexattr(name).await,
            Op::Getlk(lock) => self.getlk(lock).await,
            Op::Setlk(lock) => self.setlk(lock, false).await,
            Op::Setlkw(lock) => self.setlk(lock, true).await,
            Op::Fallocate { fh, offset, length, mode } => self.fallocate(fh, offset, length, mode).await,
            Op::Lseek { fh, offset, whence } => self.lseek(fh, offset, whence).await,
            Op::CopyRange { fh, from, to_node, to_fh, to, length, wide } => {
                self.copy_range(fh, from, to_node, to_fh, to, length, wide).await
            }
            Op::Syncfs => self.syncfs().await,
            Op::Ioctl => Err(Error::new(libc::ENOTTY)),
            Op::Unserved => Err(Error::new(libc::ENOSYS)),
            Op::Lookup { .. }
            | Op::Destroy
            | Op::Forget { .. }
            | Op::BatchForget { .. }
            | Op::Init(_)
            | Op::Interrupt { .. } => Ok(Answer::empty()),
        }
    }

    /// Writes the answer. Later answers are dropped.
    pub fn answer(&self, result: std::result::Result<&Body, i32>) -> Delivery {
        let effects = std::mem::take(&mut *self.unprocessed.lock());
        let extends = effects.extends.is_some();
        self.session.unprocessed.add(self.head.tid, effects);
        let delivery = self.pending.answer(result);
        if extends {
            self.session.unprocessed.written(self.head.tid);
        }
        delivery
    }

    /// Whether the layer below does not support the request for any file.
    fn is_never_served(&self, op: &Op) -> bool {
        let config = &self.session.config;
        match op {
            Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. } => {
                !config.xattrs
            }
            Op::CopyRange { .. } => !config.server_copy,
            _ => false,
        }
    }

    /// Identity of the caller.
    fn cred(&self) -> Arc<Cred> {
        self.cred.get_or_init(|| self.session.creds.of(&self.head)).clone()
    }

    /// Context of the caller.
    fn cx(&self) -> RequestContext {
        self.cx_of(self.cred())
    }

    /// Context of another user, the opener of a file.
    fn cx_of(&self, cred: Arc<Cred>) -> RequestContext {
        let account = self.account.get_or_init(Arc::default).clone();
        RequestContext {
            cancel: self.pending.cancel.clone(),
            account: Some(account),
            ..RequestContext::new(cred)
        }
    }

    /// The cost of the call, when it sent a request to the server.
    pub fn account(&self) -> Option<&Account> {
        self.account.get().map(|account| &**account).filter(|account| !account.is_empty())
    }

    /// The inode of the request.
    fn inode(&self) -> Result<Arc<Inode>> {
        self.inode_of(self.head.nodeid)
    }

    fn inode_of(&self, id: u64) -> Result<Arc<Inode>> {
        self.session.inodes.find(id).ok_or_else(|| Error::new(libc::ESTALE))
    }

    /// The open file that the request uses.
    fn file(&self, fh: u64) -> Result<Arc<OpenFile>> {
        let file = self.session.files.find(fh).ok_or_else(|| Error::new(libc::EBADF))?;
        file.inode.in_use.used(&file.quiet);
        Ok(file)
    }

    fn dir(&self, fh: u64) -> Result<Arc<OpenDir>> {
        self.session.dirs.find(fh).ok_or_else(|| Error::new(libc::EBADF))
    }

    /// The current moment of modifications and withdrawals. Must be read before a call of the layer
    /// below.
    fn asked(&self) -> Moment {
        self.session.inodes.clock.now()
    }

    /// A time at which the kernel had not sent this request yet, as late as known.
    fn sent(&self) -> Instant {
        let kept = self.session.kept_opens.of(self.head.tid);
        let started = self.pending.started;
        kept.map_or_else(|| started.checked_sub(QUEUED_MAX).unwrap_or(started), |open| open.sent)
    }

    /// The moment of a name that the mount has just created, later than all earlier requests.
    fn now_named(&self) -> Moment {
        self.session.inodes.clock.tick()
    }

    /// Updates the kernel's caches for attributes that are about to be answered.
    async fn saw(&self, inode: &Arc<Inode>, attrs: &Attrs, asked: Moment) {
        let seen = inode.observe(attrs, asked, true);
        if seen.distrusts_names {
            self.session.distrust_names(inode).await;
        }
        if seen.sooner {
            self.session.watch.hasten(inode);
        }
        if seen.pages_stale && !self.session.is_strict(inode) && self.session.drop_pages(inode).await {
            inode.pages_dropped(&attrs.attr, asked);
        }
        if inode.shows_early(attrs.attr.size_bytes) && !self.session.is_strict(inode) {
            // The kernel ignores these attributes, and keeps its length. stat(2) shows them
            // nevertheless.
            self.session.drop_attrs(inode);
        } else {
            self.tells(inode, attrs);
        }
    }

    /// Starts the answer with attributes of a file.
    fn tells(&self, inode: &Arc<Inode>, attrs: &Attrs) {
        if inode.kind == FileKind::Regular {
            self.unprocessed.lock().tells.push(inode.telling(attrs.attr.size_bytes, self.sent()));
        }
    }

    /// Starts a change that may extend a file to `end`.
    fn extends(&self, inode: &Arc<Inode>, end: u64) {
        self.unprocessed.lock().extends = Extends::begin(inode, self.head.tid, end);
    }

    /// The inode of an object from the layer below, with one more lookup. `at` is the name of the
    /// object, and the moment of the name.
    async fn remember(
        &self,
        at: Option<(u64, &hither_vfs::Name, Moment)>,
        node: &Node,
    ) -> Result<Arc<Inode>> {
        let inodes = &self.session.inodes;
        for _ in 0..3 {
            let known = match inodes.remember(at, node) {
                Ok(inode) => return Ok(inode),
                Err(crate::inode::Ambiguous(known)) => known,
            };
            if self.has_handle(&known, node).await? {
                inodes.add_alias(&known, &node.fh);
            } else {
                inodes.retire(&known);
            }
        }
        Err(Error::because(libc::EIO, "the server keeps changing the filehandle of one object"))
    }

    /// Whether the handle of `node` is another handle of the object of `known`, which has the same
    /// numbers at the server.
    ///
    /// A file system gives the number of a removed object to a new one, and a server may answer for
    /// the removed object from its cache (nfs-ganesha 4.3 does for a minute). So both handles are
    /// asked: handles of one object have the same ctime. An object that changes between all
    /// questions is taken for one object.
    ///
    /// # Errors
    ///
    /// `ESTALE` when the object of `node` is gone, else the error of a question.
    async fn has_handle(&self, known: &Inode, node: &Node) -> Result<bool> {
        let vfs = &self.session.vfs;
        let ctime = async |fh: &Fh| -> Result<Option<Time>> {
            // Cached attributes are older than the doubt.
            let cx = self.cx().fresh(Instant::now());
            let attr = vfs.getattr(&cx, File { fh, open: None }).await?.attr;
            let is_known = known.ident.is_of(&attr) && attr.kind == known.kind;
            Ok(is_known.then_some(attr.ctime))
        };
        let known_ctime = async || match ctime(&known.fh()).await {
            Err(e) if e.errno == libc::ESTALE => Ok(None),
            answer => answer,
        };
        if known.kind == FileKind::Regular {
            // Delayed bytes have times of this machine.
            let _ = vfs.commit(&self.cx(), File { fh: &known.fh(), open: None }).await;
        }
        let mut before = known_ctime().await?;
        for _ in 0..3 {
            if before.is_none() {
                return Ok(false);
            }
            if ctime(&node.fh).await? == before {
                return Ok(true);
            }
            let after = known_ctime().await?;
            if after == before {
                return Ok(false);
            }
            before = after;
        }
        Ok(true)
    }

    /// The validity in the kernel of names in `dir` with validity `valid`. The kernel does not
    /// check search permission for cached names. So it may cache only names that all users may look
    /// up.
    fn name_valid(&self, dir: &Inode, valid: Duration) -> Duration {
        let config = &self.session.config;
        let may_keep = config.keeps_names && config.trusts_modes && dir.world_searchable();
        if may_keep { valid } else { Duration::ZERO }
    }

    /// The validity in the kernel of a name in `dir`, and of the attributes of its object. Must be
    /// called after the last wait, because the withdrawal of a passed on lease waits until the
    /// reply is written.
    fn times(
        &self,
        (dir, name): (&Inode, &Name),
        inode: &Inode,
        attrs: &Attrs,
        asked: Moment,
    ) -> (Duration, Duration) {
        let attr_valid = self.attr_valid(inode, attrs, asked);
        let holds = match attrs.valid {
            // A lease on a file does not cover its names.
            Validity::Lease if !attr_valid.is_zero() => self.name_left(dir, name, inode),
            _ => attr_valid,
        };
        let keeps = self.keeps_name(dir, &attrs.attr);
        (if keeps { self.name_valid(dir, holds) } else { Duration::ZERO }, attr_valid)
    }

    /// The validity of a name of an object under a lease. It is that of the lease on its directory,
    /// when the name was found under that lease. That lease is not withdrawn before the reply is
    /// written.
    fn name_left(&self, dir: &Inode, name: &Name, inode: &Inode) -> Duration {
        let fh = dir.fh();
        let known = self.session.vfs.peek(&self.cx(), hither_vfs::PathRef::name(&fh, name));
        let known = known.as_ref().and_then(|trail| trail.steps.first()).filter(|n| inode.knows(&n.fh));
        match known.map(|node| node.attrs.valid) {
            Some(Validity::Lease) => self.leased_names(),
            Some(valid) => valid.left(Instant::now()),
            None => match self.dir_valid(dir) {
                Validity::Lease => Duration::ZERO,
                valid => valid.left(Instant::now()),
            },
        }
    }

    /// The validity in the kernel of an absent name, requested at `asked`.
    fn absent_valid(&self, (dir, name): (&Inode, &Name), valid: Validity, asked: Moment) -> Duration {
        let left = match valid {
            Validity::Lease if self.may_pass_on(asked) && dir.leases_absent(name) => self.leased_names(),
            Validity::Lease => Duration::ZERO,
            valid => valid.left(Instant::now()),
        };
        self.name_valid(dir, left)
    }

    /// The validity in the kernel of names under a lease on their directory. It is zero when the
    /// kernel cannot drop them before the lease is returned.
    fn leased_names(&self) -> Duration {
        if self.session.can_distrust_names() { LEASE_TIME } else { Duration::ZERO }
    }

    /// Whether a lease that was requested at `asked` may be passed on. From then on no lease is
    /// withdrawn until the reply is written.
    fn may_pass_on(&self, asked: Moment) -> bool {
        let leases = &self.session.leases;
        // With a grant no lease is withdrawn, but the answer may have been requested before the
        // grant.
        self.grant.get_or_init(|| leases.grant(asked)).is_some() && leases.none_since(asked)
    }

    /// The validity in the kernel of attributes that were requested at `asked`.
    fn attr_valid(&self, inode: &Inode, attrs: &Attrs, asked: Moment) -> Duration {
        if attrs.valid != Validity::Lease {
            return attrs.valid.left(Instant::now());
        }
        if !self.may_pass_on(asked) {
            if inode.note_revoked() {
                self.session.watch.hasten(inode);
            }
            return Duration::ZERO;
        }
        self.session.leases.passed_on(inode.id);
        inode.leased();
        LEASE_TIME
    }

    /// The validity of names in a directory without a shorter one.
    fn dir_valid(&self, dir: &Inode) -> Validity {
        let fh = dir.fh();
        let known = self.session.vfs.peek(&self.cx(), hither_vfs::PathRef::fh(&fh));
        let known = known.as_ref().and_then(|trail| trail.steps.first()).map(|node| node.attrs.valid);
        known.unwrap_or_else(|| dir.valid())
    }

    /// Body of an entry reply.
    fn entry(
        &self,
        out: &mut crate::abi::Out,
        at: (&Inode, &Name),
        inode: &Inode,
        attrs: &Attrs,
        asked: Moment,
    ) {
        let (entry_valid, attr_valid) = self.times(at, inode, attrs, asked);
        let ino = self.session.ino(&attrs.attr);
        entry_out(
            out,
            &EntryReply { nodeid: inode.id, ino, entry_valid, attr_valid, attr: Some(&attrs.attr) },
        );
    }

    /// Answer of LOOKUP and of requests that create a name, and the inode. `named` is the moment of
    /// the name.
    async fn entry_answer(
        &self,
        dir: &Inode,
        (name, named): (&hither_vfs::Name, Moment),
        node: &Node,
        asked: Moment,
    ) -> Result<(Answer, u64)> {
        let inode = self.remember(Some((dir.id, name, named)), node).await?;
        self.saw(&inode, &node.attrs, asked).await;
        let mut out = crate::abi::Out::with_capacity(128);
        self.entry(&mut out, (dir, name), &inode, &node.attrs, asked);
        Ok((Answer::bytes(out.into_vec()).or(Undo::Forget(vec![inode.id])), inode.id))
    }
}

/// Every request is answered: with `EIO` when serving it panicked.
impl Drop for Call {
    fn drop(&mut self) {
        self.pending.answer(Err(libc::EIO));
        self.session.calls.end(self.pending.unique);
    }
}
