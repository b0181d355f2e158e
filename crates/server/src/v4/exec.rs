//! The execution of a compound: its current and saved filehandles, and its operations one after the
//! other.
//!
//! The module knows nothing of slots or replies. The current filehandle is an object of an export,
//! with the caller's identity there, or a directory above the exports. Objects that a walk has
//! found before their LOOKUPs wait in `ahead`. Attributes that came with an object are used until
//! an operation of the compound changes state.

use super::Nfs4;
use super::acl;
use super::attrs::{self, Have, Source};
use super::clients::Client;
use super::delegation::{Changing, HolderAnswer, Look, Naming, PATIENCE_V4};
use super::replay::{self, CallId, Done};
use super::session::Session;
use crate::access::Rights;
use crate::error::stat4;
use crate::handle::{self, Handle};
use crate::server::Request;
use crate::table::Export;
use bytes::Bytes;
use hither_proto::nfs4::{
    Ace, Attrs as Wire, Bitmap4, Nfsstat4, Op, OpRes, OpenClaim, SequenceArgs, SequenceOk, Stateid, attr,
    seq4_status,
};
use hither_vfs::{
    Attr, Attrs, Fh, File, FileKind, Name, Node, OpenId, PathRef, Pipe, RequestContext, Stop, Time,
    WalkRequest,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// File system number of the directories above the exports.
const ABOVE_FSID: (u64, u64) = (0x6869_7468_6572, 0);

/// An object of an export, with the identity and rights of the caller.
#[derive(Clone)]
pub(super) struct Object {
    pub export: Arc<Export>,
    pub fh: Fh,
    pub cx: RequestContext,
    pub rights: Rights,
    /// Attributes that came with the object and are still valid.
    pub known: Option<Attrs>,
}

impl Object {
    pub fn file(&self, open: Option<OpenId>) -> File<'_> {
        File { fh: &self.fh, open }
    }

    /// The object, for a change. Fails with `ROFS` when the export is read-only for the client.
    pub fn writable(self) -> Result<Self, Nfsstat4> {
        if self.rights.read_only { Err(Nfsstat4::ROFS) } else { Ok(self) }
    }

    /// Another object of the same export.
    pub fn with(&self, node: Node) -> Self {
        Self { fh: node.fh, known: Some(node.attrs), ..self.clone() }
    }

    pub fn key(&self) -> (u32, Fh) {
        (self.export.number, self.fh.clone())
    }
}

/// A current filehandle.
#[expect(clippy::large_enum_variant, reason = "a compound has two of them; a box would be one for each name")]
#[derive(Clone)]
pub(super) enum Here {
    /// A directory above the exports, by its index.
    Above(usize),
    Object(Object),
}

/// A compound in progress.
pub(super) struct Exec<'a> {
    pub r: &'a Request,
    pub nfs: &'a Nfs4,
    pub minor: u32,
    pub session: Option<Arc<Session>>,
    pub client: Option<Arc<Client>>,
    /// The session, slot and sequence number of the call. `None` outside of sessions.
    pub call: Option<CallId>,
    /// Index of the current operation in the compound.
    pub at: usize,
    /// [`Leases::removals`](super::delegation::Leases::removals) at the start of the compound.
    pub removals: u64,
    /// The effects of the call in an earlier process of the server.
    done: Option<Done>,
    pub current: Option<Here>,
    pub saved: Option<Here>,
    pub stateid: Option<Stateid>,
    saved_stateid: Option<Stateid>,
    pub ahead: VecDeque<Node>,
    pub ahead_stop: Option<Stop>,
    /// Bytes that the current result may have.
    pub room_bytes: usize,
    /// Bytes that a listing may have.
    pub listing_room_bytes: usize,
    /// Whether the payload of a READ may stay in a pipe, because the reply is not cached.
    pub may_pipe: bool,
    /// The payload of the last READ. Its result lacks the payload.
    pub piped: Option<Box<dyn Pipe>>,
    /// The answer of the delegation's holder, for the current GETATTR.
    told: Option<HolderAnswer>,
}

/// Whether an operation changes state that would have to be undone. The results of these operations
/// are short.
pub(super) fn changes(op: &Op) -> bool {
    matches!(
        op,
        Op::Open(_)
            | Op::OpenDowngrade(_)
            | Op::Close(_)
            | Op::Lock(_)
            | Op::Locku(_)
            | Op::Delegreturn(_)
            | Op::GetDirDelegation(_)
            | Op::FreeStateid(_)
            | Op::ReclaimComplete(_)
            | Op::Create(_)
            | Op::Remove(_)
            | Op::Rename(_)
            | Op::Link(_)
            | Op::Setattr(_)
            | Op::Write(_)
            | Op::Allocate(_)
            | Op::Deallocate(_)
            | Op::Copy(_)
            | Op::Clone(_)
            | Op::Setxattr(_)
            | Op::Removexattr(_)
            | Op::CreateSession(_)
            | Op::DestroySession(_)
            | Op::DestroyClientid(_)
            | Op::BindConnToSession(_)
            | Op::BackchannelCtl(_)
    )
}

impl<'a> Exec<'a> {
    pub fn new(r: &'a Request, minor: u32) -> Self {
        Self {
            r,
            nfs: &r.server.v4,
            minor,
            session: None,
            client: None,
            call: None,
            at: 0,
            removals: r.server.v4.leases.removals(),
            done: None,
            current: None,
            saved: None,
            stateid: None,
            saved_stateid: None,
            ahead: VecDeque::new(),
            ahead_stop: None,
            room_bytes: 1 << 16,
            listing_room_bytes: r.server.options.listing_max_bytes as usize,
            may_pipe: false,
            piped: None,
            told: None,
        }
    }

    /// Starts a compound of a session.
    pub fn begin(&mut self, session: Arc<Session>, client: Arc<Client>, call: CallId) {
        (self.session, self.client, self.call) = (Some(session), Some(client), Some(call));
    }

    /// Starts a repeated compound of an earlier process. `done` has its effects there.
    pub fn begin_again(&mut self, done: Done, call: CallId) {
        (self.done, self.call) = (Some(done), Some(call));
    }

    /// The result of SEQUENCE.
    pub fn sequence(&self, args: &SequenceArgs) -> OpRes {
        let Some(session) = &self.session else { return replay::sequence(args) };
        let highest = session.highest_slot();
        let mut status_flags = if session.back_is_down() { seq4_status::CB_PATH_DOWN_SESSION } else { 0 };
        if let Some(client) = &self.client {
            if client.revoked.load(Relaxed) > 0 {
                status_flags |= seq4_status::RECALLABLE_STATE_REVOKED;
            }
            if client.delegations.load(Relaxed) > 0 && !client.sessions().iter().any(|s| s.back_is_up()) {
                status_flags |= seq4_status::CB_PATH_DOWN;
            }
        }
        OpRes::Sequence(Ok(SequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: highest,
            target_highest_slotid: highest,
            status_flags,
        }))
    }

    /// Executes an operation, or returns its result from an earlier process. `rest` are the
    /// operations after it.
    pub async fn execute_or_again(&mut self, op: &Op, rest: &[Op]) -> OpRes {
        match self.done.clone() {
            Some(done) => self.execute_again(&done, op, rest).await,
            None => self.execute(op, rest).await,
        }
    }

    /// Executes an operation. `rest` are the operations after it.
    pub async fn execute(&mut self, op: &Op, rest: &[Op]) -> OpRes {
        let ready = match self.may_use(op) {
            Ok(()) => self.for_reading(op).await,
            wrong => wrong,
        };
        if let Err(status) = ready {
            return OpRes::failed(op.number(), status);
        }
        let result = self.perform(op, rest).await;
        match self.may_follow(op, rest) {
            Err(status) if result.status() == Nfsstat4::OK => OpRes::failed(op.number(), status),
            _ => result,
        }
    }

    async fn perform(&mut self, op: &Op, rest: &[Op]) -> OpRes {
        match op {
            Op::Getattr(mask) => {
                self.look_ahead(rest).await;
                OpRes::Getattr(self.getattr(*mask).await)
            }
            Op::Putfh(fh) => OpRes::Putfh(self.putfh(fh, rest).await),
            Op::Lookup(name) => OpRes::Lookup(self.lookup(name, rest).await),
            Op::Getfh => OpRes::Getfh(self.getfh()),
            Op::Access(a) => OpRes::Access(self.access(*a).await),
            Op::Read(a) => OpRes::Read(self.read(a).await),
            Op::Write(a) => OpRes::Write(self.write(a).await),
            Op::Commit(a) => OpRes::Commit(self.commit(a).await),
            Op::Open(a) => OpRes::Open(self.open(a).await),
            Op::Close(a) => OpRes::Close(self.close(a).await),
            Op::OpenDowngrade(a) => OpRes::OpenDowngrade(self.open_downgrade(a).await),
            Op::Readdir(a) => OpRes::Readdir(self.readdir(a).await),
            Op::Readlink => OpRes::Readlink(self.readlink().await),
            Op::Setattr(a) => OpRes::Setattr(self.setattr(a).await),
            Op::Create(a) => OpRes::Create(self.create(a).await),
            Op::Remove(name) => OpRes::Remove(self.remove(name).await),
            Op::Rename(a) => OpRes::Rename(self.rename(a).await),
            Op::Link(name) => OpRes::Link(self.link(name).await),
            Op::Lock(a) => OpRes::Lock(self.lock(a).await),
            Op::Lockt(a) => OpRes::Lockt(self.lockt(a).await),
            Op::Locku(a) => OpRes::Locku(self.locku(a).await),
            Op::Savefh => OpRes::Savefh(self.savefh()),
            Op::Restorefh => OpRes::Restorefh(self.restorefh()),
            Op::Putrootfh => OpRes::Putrootfh(self.putrootfh().await),
            Op::Putpubfh => OpRes::Putpubfh(self.putrootfh().await),
            Op::Lookupp => OpRes::Lookupp(self.lookupp().await),
            Op::Verify(a) => OpRes::Verify(self.verify(a, true).await),
            Op::Nverify(a) => OpRes::Nverify(self.verify(a, false).await),
            Op::Secinfo(name) => OpRes::Secinfo(self.secinfo(name).await),
            Op::SecinfoNoName(style) => OpRes::SecinfoNoName(self.secinfo_no_name(*style).await),
            Op::ExchangeId(a) => OpRes::ExchangeId(self.exchange_id(a).await),
            Op::CreateSession(a) => OpRes::CreateSession(self.create_session(a).await),
            Op::DestroySession(id) => OpRes::DestroySession(self.destroy_session(id, rest)),
            Op::BindConnToSession(a) => OpRes::BindConnToSession(self.bind_conn_to_session(a)),
            Op::DestroyClientid(id) => OpRes::DestroyClientid(self.destroy_clientid(*id).await),
            Op::ReclaimComplete(one_fs) => OpRes::ReclaimComplete(self.reclaim_complete(*one_fs).await),
            Op::BackchannelCtl(a) => OpRes::BackchannelCtl(self.backchannel_ctl(a)),
            Op::TestStateid(ids) => OpRes::TestStateid(self.test_stateid(ids)),
            Op::FreeStateid(id) => OpRes::FreeStateid(self.free_stateid(id).await),
            Op::Delegreturn(id) => OpRes::Delegreturn(self.delegreturn(id)),
            Op::GetDirDelegation(_) => OpRes::GetDirDelegation(self.get_dir_delegation().await),
            _ if self.minor >= 2 => self.execute_42(op).await,
            _ => self.not_here(op),
        }
    }

    async fn execute_42(&mut self, op: &Op) -> OpRes {
        match op {
            Op::Seek(a) => OpRes::Seek(self.seek(a).await),
            Op::Allocate(a) => OpRes::Allocate(self.allocate(a, true).await),
            Op::Deallocate(a) => OpRes::Deallocate(self.allocate(a, false).await),
            Op::Copy(a) => OpRes::Copy(self.copy(a).await.map_err(Into::into)),
            Op::Clone(a) => OpRes::Clone(self.clone_range(a).await),
            Op::IoAdvise(_) => OpRes::IoAdvise(Ok(Bitmap4::EMPTY)),
            Op::Getxattr(name) => OpRes::Getxattr(self.getxattr(name).await),
            Op::Setxattr(a) => OpRes::Setxattr(self.setxattr(a).await),
            Op::Listxattrs(a) => OpRes::Listxattrs(self.listxattrs(a).await),
            Op::Removexattr(name) => OpRes::Removexattr(self.removexattr(name).await),
            _ => self.not_here(op),
        }
    }

    /// The result of an operation that this server does not support.
    fn not_here(&self, op: &Op) -> OpRes {
        const FIRST_OF_42: u32 = 59;
        match op {
            Op::Illegal(_) => OpRes::Illegal(Nfsstat4::OP_ILLEGAL),
            _ if self.minor < 2 && op.number().0 >= FIRST_OF_42 => OpRes::Illegal(Nfsstat4::OP_ILLEGAL),
            _ => OpRes::failed(op.number(), Nfsstat4::NOTSUPP),
        }
    }

    /// The current filehandle.
    pub fn here(&self) -> Result<&Here, Nfsstat4> {
        self.current.as_ref().ok_or(Nfsstat4::NOFILEHANDLE)
    }

    /// The current object. `above` is the error when the current filehandle is a directory above
    /// the exports.
    pub fn object(&self, above: Nfsstat4) -> Result<Object, Nfsstat4> {
        match self.here()? {
            Here::Object(o) => Ok(o.clone()),
            Here::Above(_) => Err(above),
        }
    }

    pub fn saved_object(&self) -> Result<Object, Nfsstat4> {
        match self.saved.as_ref().ok_or(Nfsstat4::NOFILEHANDLE)? {
            Here::Object(o) => Ok(o.clone()),
            Here::Above(_) => Err(Nfsstat4::ROFS),
        }
    }

    pub fn client(&self) -> Result<Arc<Client>, Nfsstat4> {
        self.client.clone().ok_or(Nfsstat4::OP_NOT_IN_SESSION)
    }

    /// Waits until no client caches an object that is about to change. No client can begin to cache
    /// it until the result is dropped. `opened`: the client has the file open for writing, so no
    /// other client has held a delegation of it since before a restart.
    pub async fn for_change(&self, o: &Object, opened: bool) -> Result<Changing, Nfsstat4> {
        if !opened && self.nfs.may_be_delegated() {
            return Err(Nfsstat4::GRACE);
        }
        self.nfs.leases.change(self.client.as_ref(), &o.fh, PATIENCE_V4).await
    }

    /// Waits until no other client has delayed writes to a file that an operation is about to read
    /// or open. A GETATTR asks the holder of the write delegation instead.
    async fn for_reading(&mut self, op: &Op) -> Result<(), Nfsstat4> {
        if !self.nfs.leases.may_be_delayed() && !self.nfs.may_be_dirty() {
            return Ok(());
        }
        let here = match (op, &self.current) {
            (Op::Open(a), Some(Here::Object(dir))) => {
                // The wait comes before the OPEN. After the OPEN the client has the file open even
                // if a later operation fails.
                if let OpenClaim::Null(wanted) = &a.claim
                    && let Ok(wanted) = Name::new(Bytes::copy_from_slice(wanted))
                {
                    let at = PathRef::name(&dir.fh, &wanted);
                    let found = dir.export.vfs.walk(&dir.cx, at, WalkRequest::default()).await.ok();
                    if let Some(node) = found.and_then(|t| t.steps.into_iter().next()) {
                        self.nfs.leases.read(self.client.as_ref(), &node.fh, PATIENCE_V4).await?;
                    }
                }
                return Ok(());
            }
            (Op::Copy(_) | Op::Clone(_), _) => &self.saved,
            (
                Op::Read(_)
                | Op::Getattr(_)
                | Op::Access(_)
                | Op::Seek(_)
                | Op::Verify(_)
                | Op::Nverify(_)
                | Op::Lockt(_),
                _,
            ) => &self.current,
            _ => return Ok(()),
        };
        let Some(Here::Object(o)) = here else { return Ok(()) };
        if self.nfs.may_be_dirty() && !self.is_user(o) && self.attrs(o).await?.attr.kind == FileKind::Regular
        {
            return Err(Nfsstat4::DELAY);
        }
        if !matches!(op, Op::Getattr(_)) {
            if self.nfs.leases.read(self.client.as_ref(), &o.fh, PATIENCE_V4).await? {
                self.changed();
            }
            return Ok(());
        }
        let look = self.nfs.leases.look(self.client.as_ref(), &o.fh, PATIENCE_V4).await?;
        if look != Look::Own {
            self.changed();
        }
        self.told = if let Look::Told(told) = look { Some(told) } else { None };
        Ok(())
    }

    /// Whether the client has the file open or delegated. No other client can then have delayed
    /// writes from before a restart.
    fn is_user(&self, o: &Object) -> bool {
        let Some(client) = &self.client else { return false };
        let opened =
            |f: Arc<super::state::FileState>| f.opens.lock().iter().any(|o| o.client.id == client.id);
        self.nfs.registry.file(&o.key()).is_some_and(opened) || self.nfs.leases.holds(client, &o.fh)
    }

    /// As [`Exec::for_change`], for the file that a name leads to. The name is about to be removed
    /// or changed, or opened for writing.
    pub async fn for_change_of(&self, dir: &Object, name: &Name, removes: bool) -> Result<Naming, Nfsstat4> {
        if self.nfs.may_be_delegated() {
            return Err(Nfsstat4::GRACE);
        }
        let at = (&*dir.export, &dir.cx, &dir.fh);
        self.nfs.leases.change_name(self.client.as_ref(), at, (name, removes), PATIENCE_V4).await
    }

    /// Sets the current filehandle.
    pub fn go(&mut self, here: Here) {
        self.current = Some(here);
        self.stateid = None;
        self.ahead.clear();
        self.ahead_stop = None;
    }

    /// Drops cached attributes after a change.
    pub fn changed(&mut self) {
        for here in [&mut self.current, &mut self.saved].into_iter().flatten() {
            if let Here::Object(o) = here {
                o.known = None;
            }
        }
    }

    async fn putfh(&mut self, fh: &Bytes, rest: &[Op]) -> Result<(), Nfsstat4> {
        let here = match Handle::read(fh).ok_or(Nfsstat4::BADHANDLE)? {
            Handle::Foreign => return Err(Nfsstat4::STALE),
            Handle::Above(number) => {
                let at = self.r.table.place_numbered(number).ok_or(Nfsstat4::STALE)?;
                if !self.r.table.is_visible(at, &self.r.peer) {
                    return Err(Nfsstat4::ACCESS);
                }
                Here::Above(at)
            }
            Handle::Object(number, fh) => {
                let export = self.r.table.export(number).ok_or(Nfsstat4::STALE)?.clone();
                let gives_back = rest.iter().any(|op| matches!(op, Op::Delegreturn(_)));
                if !gives_back {
                    self.need_on_top(&export, &fh)?;
                }
                Here::Object(self.enter(export, fh, None).await?)
            }
        };
        self.go(here);
        Ok(())
    }

    /// Fails with `STALE` for a directory that another export covers: a LOOKUP of its name leads to
    /// the other export.
    fn need_on_top(&self, export: &Export, fh: &Fh) -> Result<(), Nfsstat4> {
        self.r.crossing(export, fh).map_or(Ok(()), |_| Err(Nfsstat4::STALE))
    }

    /// An object of an export, with the caller's identity and rights. The export may refuse the
    /// connection (`transport`).
    async fn enter(&self, export: Arc<Export>, fh: Fh, known: Option<Attrs>) -> Result<Object, Nfsstat4> {
        let (cx, rights) = self.r.enter_any(&export).await.map_err(|_| Nfsstat4::ACCESS)?;
        Ok(Object { export, fh, cx, rights, known })
    }

    async fn putrootfh(&mut self) -> Result<(), Nfsstat4> {
        let here = self.at_place(0).await?;
        self.go(here);
        Ok(())
    }

    /// A directory above the exports, or the root of the export that begins at this place.
    pub async fn at_place(&self, at: usize) -> Result<Here, Nfsstat4> {
        let place = self.r.table.place(at);
        match &place.export {
            None => Ok(Here::Above(at)),
            // The place leads to an export inside this one that the client may use.
            Some(export) if !place.children.is_empty() && export.rights(&self.r.peer).is_none() => {
                Ok(Here::Above(at))
            }
            Some(export) => Ok(Here::Object(self.root_of(export).await?)),
        }
    }

    /// The root of an export.
    pub async fn root_of(&self, export: &Arc<Export>) -> Result<Object, Nfsstat4> {
        let root = export.root().await.map_err(|e| stat4(&e))?;
        self.enter(export.clone(), root.fh, Some(root.attrs)).await
    }

    fn getfh(&self) -> Result<hither_proto::nfs4::Fh, Nfsstat4> {
        Ok(match self.here()? {
            Here::Above(at) => Handle::Above(self.r.table.place(*at).number).write().into(),
            Here::Object(o) => handle::object(o.export.number, &o.fh).into(),
        })
    }

    fn savefh(&mut self) -> Result<(), Nfsstat4> {
        self.saved = Some(self.here()?.clone());
        self.saved_stateid = self.stateid;
        Ok(())
    }

    fn restorefh(&mut self) -> Result<(), Nfsstat4> {
        let saved = self.saved.clone().ok_or(Nfsstat4::NOFILEHANDLE)?;
        self.go(saved);
        self.stateid = self.saved_stateid;
        Ok(())
    }

    async fn lookupp(&mut self) -> Result<(), Nfsstat4> {
        let here = match self.here()?.clone() {
            Here::Above(at) => self.above(at).await?,
            Here::Object(o) if o.export.is_root(&o.fh) => self.above_export(&o.export).await?,
            Here::Object(o) => match o.export.vfs.parent(&o.cx, &o.fh).await {
                Ok(node) => {
                    self.need_on_top(&o.export, &node.fh)?;
                    Here::Object(o.with(node))
                }
                // The object is the root of the export, which this server has not looked up yet.
                Err(e) if e.errno == libc::ENOENT => self.above_export(&o.export).await?,
                Err(e) => return Err(stat4(&e)),
            },
        };
        self.go(here);
        Ok(())
    }

    /// The directory above the root of an export. It is in the export around this one, if the
    /// client may use that export.
    async fn above_export(&self, export: &Export) -> Result<Here, Nfsstat4> {
        let client = &self.r.peer;
        let around = self.r.table.around(export).filter(|(around, _)| around.rights(client).is_some());
        let Some((around, covered)) = around else { return self.above(self.r.table.place_of(export)).await };
        let covered = self.enter(around.clone(), covered.clone(), None).await?;
        let above = around.vfs.parent(&covered.cx, &covered.fh).await.map_err(|e| stat4(&e))?;
        Ok(Here::Object(covered.with(above)))
    }

    /// The directory above a place. The root has none (RFC 8881 section 18.14.3).
    async fn above(&self, at: usize) -> Result<Here, Nfsstat4> {
        match at {
            0 => Err(Nfsstat4::NOENT),
            at => self.at_place(self.r.table.place(at).parent).await,
        }
    }

    /// Attributes of an object, as the `Vfs` has them.
    pub async fn attrs(&self, o: &Object) -> Result<Attrs, Nfsstat4> {
        match &o.known {
            Some(known) => Ok(known.clone()),
            None => o.export.vfs.getattr(&o.cx, o.file(None)).await.map_err(|e| stat4(&e)),
        }
    }

    async fn getattr(&mut self, wanted: Bitmap4) -> Result<Wire, Nfsstat4> {
        if !wanted.intersection(attrs::SET_ONLY).is_empty() {
            return Err(Nfsstat4::INVAL);
        }
        let told = self.told.take();
        match self.here()?.clone() {
            Here::Above(at) => Ok(self.above_attrs(at, wanted)),
            Here::Object(o) => {
                // Clients revalidate with a GETATTR, also when the `Vfs` has a cache.
                let fresh = Object { cx: o.cx.fresh(self.r.began), ..o.clone() };
                let mut attrs = self.attrs(&fresh).await?;
                if let Some(Here::Object(here)) = &mut self.current {
                    here.known = Some(attrs.clone());
                }
                match (told, &self.client) {
                    (Some(told), _) => self.nfs.leases.tell(told, &mut attrs.attr),
                    (None, Some(client)) if wanted.has(attr::CHANGE) => {
                        self.nfs.leases.told_holder(client, &o.fh, attrs.attr.change);
                    }
                    _ => {}
                }
                self.object_attrs(&o, &attrs.attr, wanted).await
            }
        }
    }

    /// Wire attributes of an object.
    pub async fn object_attrs(&self, o: &Object, attr: &Attr, wanted: Bitmap4) -> Result<Wire, Nfsstat4> {
        let fs = if attrs::needs_fsstat(wanted) {
            Some(o.export.vfs.statfs(&o.cx, &o.fh).await.map_err(|e| stat4(&e))?)
        } else {
            None
        };
        let mut source = self.source(&o.export, attr, &o.fh, wanted);
        source.fs = fs;
        source.acl = self.acl(o, attr, wanted).await?;
        source.xattrs = wanted.has(attr::XATTR_SUPPORT) && super::xattr::supports(o, attr.kind).await;
        let handle = handle_if(wanted, &o.export, &o.fh);
        source.handle = &handle;
        Ok(source.wire(wanted))
    }

    /// The ACL of an object, when it is requested.
    async fn acl(&self, o: &Object, attr: &Attr, wanted: Bitmap4) -> Result<Option<Vec<Ace>>, Nfsstat4> {
        let extra = o.export.extra.as_ref().filter(|e| wanted.has(attr::ACL) && e.has_acls());
        let Some(extra) = extra.filter(|_| attr.kind != FileKind::Symlink) else { return Ok(None) };
        let acls = extra.acls(&o.cx, &o.fh).await.map_err(|e| stat4(&e))?;
        Ok(Some(acl::to_wire(&acls, attr.mode, attr.kind == FileKind::Directory)))
    }

    /// The attributes that an object has.
    pub fn have(&self, o: &Object) -> Have {
        Have::of(self.minor, Some(&o.export))
    }

    /// The source of an object's attributes, without the file system's attributes and the
    /// filehandle.
    pub fn source<'s>(&self, export: &Export, attr: &'s Attr, fh: &Fh, wanted: Bitmap4) -> Source<'s> {
        static NONE: Bytes = Bytes::new();
        let covers = wanted.has(attr::MOUNTED_ON_FILEID) && export.is_root(fh);
        let place = self.r.table.place_of(export);
        let in_tree = (place != 0).then(|| u64::from(self.r.table.place(place).number));
        let covered = export.covers.as_ref().map(|covers| covers.fileid);
        Source {
            attr,
            fsid: attrs::fsid(attr, export),
            handle: &NONE,
            mounted_on: covered.or(in_tree).filter(|_| covers),
            fs: None,
            acl: None,
            xattrs: false,
            have: Have::of(self.minor, Some(export)),
            io_max_bytes: self.r.server.options.io_max_bytes,
            lease_s: self.nfs.lease.as_secs().max(1) as u32,
        }
    }

    /// Attributes of a directory above the exports.
    pub fn above_attrs(&self, at: usize, wanted: Bitmap4) -> Wire {
        let place = self.r.table.place(at);
        let generation = self.nfs.generation.load(Relaxed);
        let time =
            Time { secs: (generation / 1_000_000_000) as i64, nanos: (generation % 1_000_000_000) as u32 };
        let attr = Attr {
            kind: FileKind::Directory,
            mode: 0o555,
            nlink: 2 + place.children.len() as u32,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size_bytes: 0,
            used_bytes: 0,
            fsid: ABOVE_FSID,
            fileid: u64::from(place.number),
            atime: time,
            mtime: time,
            ctime: time,
            change: generation,
        };
        let handle = Handle::Above(place.number).write();
        let fs = hither_vfs::FsStat { name_max_bytes: 255, ..Default::default() };
        let source = Source {
            attr: &attr,
            fsid: ABOVE_FSID,
            handle: &handle,
            mounted_on: None,
            fs: Some(fs),
            acl: None,
            xattrs: true,
            have: Have::of(self.minor, None),
            io_max_bytes: self.r.server.options.io_max_bytes,
            lease_s: self.nfs.lease.as_secs().max(1) as u32,
        };
        source.wire(wanted)
    }

    /// VERIFY (`same`) and NVERIFY.
    async fn verify(&mut self, given: &Wire, same: bool) -> Result<(), Nfsstat4> {
        let mask = given.mask();
        let have = match self.here()? {
            Here::Above(_) => Have::of(self.minor, None),
            Here::Object(o) => self.have(o),
        };
        if !mask.is_subset(have.all()) {
            return Err(Nfsstat4::ATTRNOTSUPP);
        }
        let set_only = !mask.intersection(attrs::SET_ONLY).is_empty();
        if mask.has(attr::RDATTR_ERROR) || set_only || attrs::has_undefined_mode(given) {
            return Err(Nfsstat4::INVAL);
        }
        let equal = self.getattr(mask).await? == *given;
        match (same, equal) {
            (true, false) => Err(Nfsstat4::NOT_SAME),
            (false, true) => Err(Nfsstat4::SAME),
            _ => Ok(()),
        }
    }
}

/// The wire handle, when it is requested. Empty otherwise.
pub(super) fn handle_if(wanted: Bitmap4, export: &Export, fh: &Fh) -> Bytes {
    if wanted.has(attr::FILEHANDLE) { handle::object(export.number, fh) } else { Bytes::new() }
}
