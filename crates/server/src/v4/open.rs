//! OPEN, CLOSE and OPEN_DOWNGRADE.
//!
//! The `Vfs` opens the file with the caller's rights. Then the server compares the share
//! reservation with those of other opens. An open-owner has one stateid for a file, however often
//! it opens the file: access and deny bits accumulate.

use super::attrs::{SETTABLE, SETTABLE_EXCLUSIVELY, to_create};
use super::delegation::{Changing, Naming, PATIENCE_V4, Times, Wish};
use super::exec::{Exec, Here, Object};
use super::names::{name, wire_change};
use super::stable::Delegated;
use super::state::{Open, OpenInner, State, VfsOpen, access, excludes, next};
use crate::error::stat4;
use crate::exclusive::{is_of_verifier, verifier_times};
use crate::scarcity;
use crate::table::Export;
use bytes::Bytes;
use hither_lease::Kind;
use hither_proto::nfs4::{
    Ace, Bitmap4, ChangeInfo as WireChange, ClaimDelegateCur, CloseArgs, CreateHow, DelegationType, Nfsstat4,
    OpenArgs, OpenArguments, OpenClaim, OpenDelegation, OpenDowngradeArgs, OpenOk, ReadDelegation,
    SpaceLimit, Stateid, WhyNoDelegation, WriteDelegation, attr, open,
};
use hither_vfs::{
    Create, Cred, Fh, Name, Node, OpenHow, OpenId, Opened, PathRef, RequestContext, SetAttr, SetTime, Stop,
    WalkRequest,
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::timeout;

/// Delegation wants that may accompany the access bits.
const WANTS: u32 = open::WANT_DELEG_MASK
    | open::WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
    | open::WANT_PUSH_DELEG_WHEN_UNCONTENDED
    | open::WANT_DELEG_TIMESTAMPS
    | open::WANT_OPEN_XOR_DELEGATION;
/// Attributes that hold the verifier after an exclusive creation. They tell the client that the
/// times must still be set.
pub(super) const VERIFIER_ATTRS: Bitmap4 =
    Bitmap4::of(&[attr::TIME_ACCESS, attr::TIME_ACCESS_SET, attr::TIME_MODIFY, attr::TIME_MODIFY_SET]);

/// Most attempts of an exclusive creation while another client makes and removes the name.
const TRIES: usize = 8;

/// An OPEN whose arguments are valid.
struct Opening<'a> {
    args: Cow<'a, OpenArgs>,
    /// The directory of a claim by name; otherwise the file.
    at: Object,
    /// The access bits.
    share: u32,
    /// Whether the client reclaims the open while NQNFS leases from before the restart may be out.
    early: bool,
    /// Whether other clients must not cache the file.
    writes: bool,
}

/// Longest wait of a CLOSE for OPENs of the same open in progress.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// The creation that an OPEN requests.
struct Creation<'a> {
    create: Create,
    /// The requested size, which `create` leaves out, in bytes.
    size: Option<u64>,
    /// Attributes that the creation sets.
    set: Bitmap4,
    /// The verifier of an exclusive creation.
    verf: Option<&'a [u8; 8]>,
}

/// The result of an open of the `Vfs`.
struct Got {
    /// Closes the file when the OPEN fails.
    below: Arc<VfsOpen>,
    node: Node,
    created: bool,
    /// Attributes that the creation set.
    set: Bitmap4,
    /// The size to which an existing file must be truncated, in bytes.
    cut: Option<u64>,
    /// The change of the directory, if it is known.
    dir: Option<WireChange>,
}

impl Got {
    /// A file of `export` that was opened with `share`.
    fn of(export: &Arc<Export>, share: u32, opened: Opened) -> Self {
        let Opened { node, open: id, created, dir, .. } = opened;
        let dir = dir.filter(|_| created).map(|change| wire_change(&change));
        let below = VfsOpen { export: export.clone(), fh: node.fh.clone(), id, access: access(share) };
        Self { below: Arc::new(below), node, created, set: Bitmap4::EMPTY, cut: None, dir }
    }
}

/// Prevents other clients from caching a file while it is opened for writing.
#[derive(Default)]
struct CachingGuard {
    naming: Option<Naming>,
    itself: Option<Changing>,
}

impl CachingGuard {
    /// Whether the guard covers this file.
    fn covers(&self, fh: &Fh) -> bool {
        let named = self.naming.as_ref().and_then(|n| n.file.as_ref());
        self.itself.is_some() || named.is_some_and(|(file, _)| file == fh)
    }
}

/// Whether an OPEN may set the size of an existing file.
fn cuts(a: &OpenArgs) -> bool {
    matches!(&a.how, Some(CreateHow::Unchecked(attrs)) if attrs.size.is_some())
}

impl Exec<'_> {
    /// OPEN. In a shortage, the state of clients with expired leases ends, and the client may try
    /// again.
    pub(super) async fn open(&mut self, a: &OpenArgs) -> Result<OpenOk, Nfsstat4> {
        let before = scarcity::times();
        match self.open_now(a).await {
            Err(status) => Err(self.relieved(status, before).await),
            opened => opened,
        }
    }

    /// The status for a call that failed with `status`. In a shortage since `before`
    /// ([`scarcity::times`]), the state of clients with expired leases ends.
    pub(super) async fn relieved(&self, status: Nfsstat4, before: u64) -> Nfsstat4 {
        let is_scarce = scarcity::times() != before;
        match (status, self.client()) {
            (Nfsstat4::DELAY | Nfsstat4::SERVERFAULT, Ok(own)) if is_scarce => {
                if self.nfs.relieve(&own).await { Nfsstat4::DELAY } else { status }
            }
            _ => status,
        }
    }

    /// Checks that the server and the client have room for one more state.
    pub(super) fn check_room(&self) -> Result<(), Nfsstat4> {
        if self.nfs.registry.is_full() || self.client()?.state_count() >= self.nfs.states_of_client_max {
            return Err(stat4(&hither_vfs::Error::new(libc::EMFILE)));
        }
        Ok(())
    }

    async fn open_now(&mut self, a: &OpenArgs) -> Result<OpenOk, Nfsstat4> {
        self.check_open(a)?;
        let removals = self.nfs.leases.removals();
        let opening = self.opening(a).await?;
        let Opening { args: a, at, share, .. } = &opening;
        let mut changing = self.guard_caching(&opening).await?;
        let entries = match (&a.claim, &a.how) {
            (OpenClaim::Null(n), Some(how)) => {
                self.for_new_name(at, &name(n)?, !matches!(how, CreateHow::Unchecked(_))).await?
            }
            _ => None,
        };
        let got = self.open_claimed(&opening, entries.is_some()).await?;
        let Got { below, node, created, set, cut, dir } = got;
        let cinfo = dir.unwrap_or_default();
        let mut file = at.with(node);
        if opening.writes && !changing.covers(&file.fh) {
            match self.for_change(&file, false).await {
                Ok(itself) => changing.itself = Some(itself),
                // The file is new. Another client has opened it in the meantime. That client's
                // delegation is recalled at the first write.
                Err(_) if created && cut.is_none() => {}
                Err(status) => return Err(status),
            }
        }
        // To cut the file is to write to it.
        let cutting = if cut.is_some() { open::SHARE_ACCESS_WRITE } else { 0 };
        let claim = (*share | cutting, a.share_deny);
        let mut open = self.reserve(&file, a, claim).await?;
        self.changed();
        scarcity::is_over();
        if let Err(status) = self.complete_open(&opening, &mut file, below.id, cut).await {
            self.undo(&open, claim).await;
            return Err(status);
        }
        let granted = (*share, a.share_deny);
        let stateid = loop {
            match confirm(&open, claim, granted, &below).await {
                Some(stateid) => break stateid,
                // The client has closed its open meanwhile.
                None => open = self.reserve(&file, a, claim).await?,
            }
        };
        drop((changing, entries));
        let wish = wish(a, *share, self.minor, removals);
        let delegation = self.delegate(a, wish, &mut file).await;
        self.go(Here::Object(file));
        self.stateid = Some(stateid);
        let told = self.session.as_ref().is_some_and(|s| s.back_is_up());
        let rflags = open::RESULT_LOCKTYPE_POSIX | if told { open::RESULT_MAY_NOTIFY_LOCK } else { 0 };
        Ok(OpenOk { stateid, cinfo, rflags, attrset: set, delegation })
    }

    /// Fails unless the access and deny bits are valid and the server may open files now.
    fn check_open(&self, a: &OpenArgs) -> Result<(), Nfsstat4> {
        if a.share_access & open::SHARE_ACCESS_BOTH == 0
            || a.share_access & !(open::SHARE_ACCESS_BOTH | WANTS) != 0
            || a.share_deny > open::SHARE_DENY_BOTH
        {
            return Err(Nfsstat4::INVAL);
        }
        let reclaims = matches!(a.claim, OpenClaim::Previous(_));
        self.check_grace(reclaims)?;
        self.check_room()?;
        if self.nfs.may_be_dirty() && !reclaims {
            return Err(Nfsstat4::GRACE);
        }
        Ok(())
    }

    /// An OPEN of the current object. In a read-only export an OPEN creates nothing.
    async fn opening<'a>(&self, a: &'a OpenArgs) -> Result<Opening<'a>, Nfsstat4> {
        let at = self.object(Nfsstat4::ISDIR)?;
        let mut args = Cow::Borrowed(a);
        if at.rights.read_only && a.how.is_some() {
            self.exists_read_only(&at, a).await?;
            args.to_mut().how = None;
        }
        let share = args.share_access & open::SHARE_ACCESS_BOTH;
        let is_for_writing = share & open::SHARE_ACCESS_WRITE != 0;
        let at = if is_for_writing || args.how.is_some() { at.writable()? } else { at };
        // A reclaimed open changes no bytes. While NQNFS leases from before the restart may be out,
        // no lease is granted, and the client's writes wait for them. The reclaim itself must not
        // wait, or the grace period would end first.
        let early = matches!(args.claim, OpenClaim::Previous(_)) && self.nfs.leases.is_recovering();
        // A reservation against reading also ends the caches of others: their holders read without
        // a call.
        let denies_reading = a.share_deny & open::SHARE_DENY_READ != 0;
        let writes = !early && (is_for_writing || cuts(&args) || denies_reading);
        Ok(Opening { args, at, share, early, writes })
    }

    /// Waits until no other client caches the file of an OPEN for writing.
    async fn guard_caching(&self, opening: &Opening<'_>) -> Result<CachingGuard, Nfsstat4> {
        if !opening.writes {
            return Ok(CachingGuard::default());
        }
        let at = &opening.at;
        Ok(match &opening.args.claim {
            OpenClaim::Null(n) | OpenClaim::DelegateCur(ClaimDelegateCur { file: n, .. }) => {
                CachingGuard { naming: Some(self.for_change_of(at, &name(n)?, false).await?), itself: None }
            }
            // The client reclaims an open for writing. It held that open before the restart, so no
            // other client had the file delegated.
            OpenClaim::Previous(_) => {
                CachingGuard { naming: None, itself: Some(self.for_change(at, true).await?) }
            }
            _ => CachingGuard { naming: None, itself: Some(self.for_change(at, false).await?) },
        })
    }

    /// Opens the file of the claim.
    async fn open_claimed(&self, opening: &Opening<'_>, may_create: bool) -> Result<Got, Nfsstat4> {
        let Opening { args: a, at, share, .. } = opening;
        match &a.claim {
            OpenClaim::Null(wanted) => self.open_name(opening, &name(wanted)?, may_create).await,
            OpenClaim::Fh | OpenClaim::Previous(_) if a.how.is_some() => Err(Nfsstat4::INVAL),
            OpenClaim::Fh => self.open_handle(at, *share, false).await,
            OpenClaim::Previous(_) => self.open_handle(at, *share, true).await,
            OpenClaim::DelegateCur(_) | OpenClaim::DelegCurFh(_) if a.how.is_some() => Err(Nfsstat4::INVAL),
            OpenClaim::DelegateCur(c) => {
                let got = self.open_name(opening, &name(&c.file)?, false).await?;
                self.delegated(&c.delegate_stateid, &(at.export.number, got.node.fh.clone()))?;
                Ok(got)
            }
            OpenClaim::DelegCurFh(id) => {
                self.delegated(id, &at.key())?;
                self.open_handle(at, *share, true).await
            }
            OpenClaim::DelegatePrev(_) | OpenClaim::DelegPrevFh => Err(Nfsstat4::NOTSUPP),
        }
    }

    /// Waits for a write delegation that another client got just before this open for reading was
    /// registered. Then truncates the file to `cut` bytes.
    async fn complete_open(
        &self,
        opening: &Opening<'_>,
        file: &mut Object,
        open: OpenId,
        cut: Option<u64>,
    ) -> Result<(), Nfsstat4> {
        // Since the registration no client gets a write delegation of the file. A client may have
        // got one just before.
        if !opening.writes
            && !opening.early
            && self.nfs.leases.read(self.client.as_ref(), &file.fh, PATIENCE_V4).await?
        {
            file.known = None;
        }
        if let Some(size) = cut {
            let size = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            let at = &opening.at;
            let attrs = at.export.vfs.setattr(&at.cx, file.file(Some(open)), &size).await;
            file.known = Some(attrs.map_err(|e| stat4(&e))?);
        }
        Ok(())
    }

    /// Fails unless an OPEN with creation finds its file in a read-only export and does not change
    /// it.
    async fn exists_read_only(&self, dir: &Object, a: &OpenArgs) -> Result<(), Nfsstat4> {
        let OpenClaim::Null(wanted) = &a.claim else { return Err(Nfsstat4::INVAL) };
        let wanted = name(wanted)?;
        let trail =
            dir.export.vfs.walk(&dir.cx, PathRef::name(&dir.fh, &wanted), WalkRequest::default()).await;
        let trail = trail.map_err(|e| stat4(&e))?;
        match (trail.steps.is_empty(), trail.stop, &a.how) {
            (true, Stop::Failed(e), _) => Err(stat4(&e)),
            (true, Stop::NotDirectory, _) => Err(Nfsstat4::NOTDIR),
            (true, ..) => Err(Nfsstat4::ROFS),
            (false, _, Some(CreateHow::Unchecked(_))) if cuts(a) => Err(Nfsstat4::ROFS),
            (false, _, Some(CreateHow::Unchecked(_))) => Ok(()),
            (false, ..) => Err(Nfsstat4::EXIST),
        }
    }

    /// Undoes a refused OPEN. The open ends with it, unless another OPEN has succeeded or may.
    async fn undo(&self, open: &Arc<Open>, claim: (u32, u32)) {
        let _order = open.file.order.lock().await;
        let is_unused = {
            let inner = open.settle(claim);
            inner.seqid == 0 && inner.pending.is_empty() && !inner.closed
        };
        if is_unused {
            self.nfs.close(open).await;
        }
    }

    /// Delegates the file that was just opened, if the client wants that and no other use
    /// conflicts.
    async fn delegate(&self, a: &OpenArgs, wish: Option<Wish>, file: &mut Object) -> OpenDelegation {
        let none = no_delegation(a.share_access);
        let Some(wish) = wish else { return none };
        let Some(client) = &self.client else { return none };
        // Without a backchannel no delegation is granted, so none is recorded. Otherwise a restart
        // would wait for a delegation that no client has.
        if !client.sessions().iter().any(|s| s.back_is_up()) {
            return none;
        }
        if !self.may_delegate(wish.kind).await {
            return none;
        }
        let leases = &self.nfs.leases;
        let granted = leases.grant(&self.nfs.registry, client, (&file.export, &file.fh), wish).await;
        let Some(d) = granted else { return none };
        // The attributes from before the grant may be out of date.
        file.known = None;
        let permissions = Ace { ace_type: 0, flag: 0, access_mask: 0, who: Bytes::new().into() };
        let (stateid, recall) = (d.stateid(), d.is_recalled());
        match wish.kind {
            Kind::Read => OpenDelegation::Read(ReadDelegation { stateid, recall, permissions }),
            Kind::Write => {
                let space_limit = SpaceLimit::Size(self.room_for(file).await);
                if let Some(known) = file.known.as_ref().filter(|_| wish.times) {
                    let original = if wish.reclaim { Times::EARLIEST } else { Times::of(&known.attr) };
                    d.maintain_times(original);
                }
                let write = WriteDelegation { stateid, recall, space_limit, permissions };
                match d.original_times() {
                    Some(_) => OpenDelegation::WriteAttrs(write),
                    None => OpenDelegation::Write(write),
                }
            }
        }
    }

    /// Makes durable that delegations of this kind exist, before any client relies on one. False
    /// when that fails.
    pub(super) async fn may_delegate(&self, kind: Kind) -> bool {
        let leases = &self.nfs.leases;
        if leases.is_marked(kind) {
            return true;
        }
        // One call at a time: a mark for reading must not overwrite a mark for writing.
        let _marking = leases.marking.lock().await;
        if !leases.is_marked(kind) {
            let mark = Delegated { believed: self.nfs.lease, writing: kind == Kind::Write };
            if let Err(e) = self.nfs.stable.mark_delegated(mark).await {
                tracing::warn!("delegations cannot be recorded, so none is granted: {e}");
                return false;
            }
            leases.marked(kind);
        }
        true
    }

    /// The size up to which the holder of a write delegation may delay writes, in bytes. It is the
    /// file's size plus the holder's share of the free space.
    async fn room_for(&self, file: &mut Object) -> u64 {
        let Ok(attrs) = self.attrs(file).await else { return 0 };
        let size_bytes = attrs.attr.size_bytes;
        file.known = Some(attrs);
        let free_bytes = match file.export.vfs.statfs(&file.cx, &file.fh).await {
            Ok(s) => s.avail_bytes,
            Err(_) => 0,
        };
        size_bytes.saturating_add(self.nfs.leases.share_of(free_bytes))
    }

    /// Fails unless a stateid belongs to a delegation of the file.
    fn delegated(&self, id: &Stateid, file: &(u32, Fh)) -> Result<(), Nfsstat4> {
        match self.nfs.registry.find(&*self.client()?, &self.actual(id)?)? {
            State::Delegation(d) if d.is_revoked() => Err(Nfsstat4::DELEG_REVOKED),
            State::Delegation(d) if d.file == *file => Ok(()),
            _ => Err(Nfsstat4::BAD_STATEID),
        }
    }

    pub(super) fn delegreturn(&mut self, id: &Stateid) -> Result<(), Nfsstat4> {
        let o = self.object(Nfsstat4::BAD_STATEID)?;
        match self.nfs.registry.find(&*self.client()?, &self.actual(id)?)? {
            State::Delegation(d) if d.file != o.key() => Err(Nfsstat4::BAD_STATEID),
            // The client does not know yet that the delegation is revoked.
            State::Delegation(d) if d.is_revoked() => Err(Nfsstat4::DELEG_REVOKED),
            State::Delegation(d) => {
                self.nfs.leases.end(&self.nfs.registry, &d);
                Ok(())
            }
            _ => Err(Nfsstat4::BAD_STATEID),
        }
    }

    /// Whether the client may get state now. During the grace period only reclaims are granted.
    pub(super) fn check_grace(&self, reclaim: bool) -> Result<(), Nfsstat4> {
        let client = self.client()?;
        let done = client.reclaim_done.load(Relaxed);
        match (reclaim, self.nfs.in_grace()) {
            (true, true) if client.may_reclaim && !done => Ok(()),
            (true, _) => Err(Nfsstat4::NO_GRACE),
            (false, true) => Err(Nfsstat4::GRACE),
            (false, false) if !done => Err(Nfsstat4::GRACE),
            (false, false) => Ok(()),
        }
    }

    /// Opens a name in the directory. `may_create`: no other client relies on the absence of the
    /// name.
    async fn open_name(&self, opening: &Opening<'_>, name: &Name, may_create: bool) -> Result<Got, Nfsstat4> {
        let dir = &opening.at;
        let mut creation = self.creation(dir, opening.args.how.as_ref())?;
        if !may_create {
            creation.create = Create::No;
        }
        let mut got = self.open_or_create(opening, name, &creation).await?;
        if got.dir.is_none() {
            let attrs = dir.export.vfs.getattr(&dir.cx, dir.file(None)).await.map_err(|e| stat4(&e))?;
            let now = attrs.attr.change;
            got.dir = Some(WireChange { atomic: true, before: now, after: now });
        }
        got.cut = creation.size.filter(|size| if got.created { *size > 0 } else { true });
        if got.created || creation.verf.is_some() {
            got.set = creation.set;
        } else if got.cut.is_some() {
            got.set = Bitmap4::of(&[attr::SIZE]);
        }
        Ok(got)
    }

    /// The creation in a directory that an OPEN requests.
    fn creation<'a>(&self, dir: &Object, how: Option<&'a CreateHow>) -> Result<Creation<'a>, Nfsstat4> {
        let (create, set, verf) = match how {
            None => (Create::No, Bitmap4::EMPTY, None),
            Some(CreateHow::Unchecked(attrs)) => {
                let (set, attrset) = to_create(attrs, SETTABLE, dir, self.have(dir))?;
                (Create::IfMissing(set), attrset, None)
            }
            Some(CreateHow::Guarded(attrs)) => {
                let (set, attrset) = to_create(attrs, SETTABLE, dir, self.have(dir))?;
                (Create::Exclusive(set), attrset, None)
            }
            Some(CreateHow::Exclusive(verf)) => {
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                (Create::Exclusive(with_verifier(set, verf)), VERIFIER_ATTRS, Some(verf))
            }
            Some(CreateHow::Exclusive41(c)) => {
                let (set, attrset) = to_create(&c.attrs, SETTABLE_EXCLUSIVELY, dir, self.have(dir))?;
                let create = Create::Exclusive(with_verifier(set, &c.verf));
                (create, attrset.union(VERIFIER_ATTRS), Some(&c.verf))
            }
        };
        let mut creation = Creation { create, size: None, set, verf };
        if let Create::IfMissing(set) | Create::Exclusive(set) = &mut creation.create {
            creation.size = set.size_bytes.take();
        }
        Ok(creation)
    }

    /// Opens a name, or creates it. An exclusive creation opens an existing file that holds its
    /// verifier.
    async fn open_or_create(
        &self,
        opening: &Opening<'_>,
        name: &Name,
        creation: &Creation<'_>,
    ) -> Result<Got, Nfsstat4> {
        let (dir, share) = (&opening.at, opening.share);
        let vfs = &dir.export.vfs;
        let at = PathRef::name(&dir.fh, name);
        let creates = opening.args.how.is_some();
        let how = how(share, creation.create.clone());
        // A file with a requested size above zero needs a second step. The journal must then not
        // name the creation as the whole operation.
        let whole = creation.size.is_none_or(|size| size == 0);
        let cx = if creates && whole { self.named(&dir.cx) } else { dir.cx.clone() };
        let cx = cx.fresh(self.r.began);
        let mut tries = 0;
        let failure = loop {
            match (vfs.open(&cx, at, &how).await, creation.verf) {
                (Ok(opened), _) => return Ok(Got::of(&dir.export, share, opened)),
                (Err(e), Some(verf)) if e.errno == libc::EEXIST => {
                    match self.open_again(dir, name, share, verf).await? {
                        Some(got) => return Ok(got),
                        // The existing file has been removed in the meantime.
                        None if tries < TRIES => tries += 1,
                        None => break e,
                    }
                }
                (Err(e), _) => break e,
            }
        };
        match failure.errno {
            libc::EACCES if !creates && share == open::SHARE_ACCESS_READ => {
                // A client reads a file in order to execute it. The right to execute therefore
                // suffices for an open for reading.
                let how = OpenHow { execute: true, ..how };
                let opened = vfs.open(&dir.cx, at, &how).await.map_err(|_| Nfsstat4::ACCESS)?;
                Ok(Got::of(&dir.export, share, opened))
            }
            // The file existed a moment ago, so delegations of the directory were not recalled. The
            // client must try again.
            libc::ENOENT if creates && creation.create == Create::No => Err(Nfsstat4::DELAY),
            _ => Err(stat_of_open(&failure)),
        }
    }

    /// The existing file of an exclusive creation, when it holds the same verifier. `None`: the
    /// file is gone.
    async fn open_again(
        &self,
        dir: &Object,
        name: &Name,
        share: u32,
        verf: &[u8; 8],
    ) -> Result<Option<Got>, Nfsstat4> {
        let vfs = &dir.export.vfs;
        let at = PathRef::name(&dir.fh, name);
        let trail = vfs.walk(&dir.cx, at, WalkRequest::default()).await.map_err(|e| stat4(&e))?;
        let node: Node = match (trail.steps.into_iter().next(), trail.stop) {
            (Some(node), _) => node,
            (None, Stop::Missing(_)) => return Ok(None),
            (None, _) => return Err(Nfsstat4::EXIST),
        };
        if !is_of_verifier(&node.attrs.attr, verf) {
            return Err(Nfsstat4::EXIST);
        }
        let file = dir.with(node);
        Ok(Some(self.open_handle(&file, share, true).await?))
    }

    /// Opens the object itself. `held`: the file was open before or is new, so its owner needs no
    /// permission.
    async fn open_handle(&self, file: &Object, share: u32, held: bool) -> Result<Got, Nfsstat4> {
        let vfs = &file.export.vfs;
        let at = PathRef::fh(&file.fh);
        let mut opened = vfs.open(&file.cx.fresh(self.r.began), at, &how(share, Create::No)).await;
        if let Err(e) = &opened
            && e.errno == libc::EACCES
        {
            let attr = self.attrs(file).await?.attr;
            if held && attr.uid == file.cx.cred.uid {
                let root = RequestContext::new(Arc::new(Cred::root()));
                opened = vfs.open(&root, at, &how(share, Create::No)).await;
            } else if share == open::SHARE_ACCESS_READ {
                let how = OpenHow { execute: true, ..how(share, Create::No) };
                opened = vfs.open(&file.cx, at, &how).await;
            }
        }
        Ok(Got::of(&file.export, share, opened.map_err(|e| stat_of_open(&e))?))
    }

    /// Finds or makes the open of the client, and registers the access and deny bits of the OPEN
    /// `a` with it. [`confirm`] or [`Exec::undo`] ends the registration.
    async fn reserve(&self, file: &Object, a: &OpenArgs, claim: (u32, u32)) -> Result<Arc<Open>, Nfsstat4> {
        let reserved = self.reserve_bits(file, Bytes::copy_from_slice(&a.owner.owner), claim).await;
        reserved.map_err(|status| match (status, &a.claim) {
            (Nfsstat4::SHARE_DENIED, OpenClaim::Previous(_)) => Nfsstat4::RECLAIM_CONFLICT,
            _ => status,
        })
    }

    async fn reserve_bits(
        &self,
        file: &Object,
        owner: Bytes,
        claim: (u32, u32),
    ) -> Result<Arc<Open>, Nfsstat4> {
        let client = self.client()?;
        let registry = &self.nfs.registry;
        loop {
            let state = registry.file_or_new(&file.export, &file.fh);
            let order = state.order.lock().await;
            let in_the_way = {
                let mut opens = state.opens.lock();
                let is_own = |o: &Arc<Open>| o.client.id == client.id && o.owner == owner;
                let conflict =
                    opens.iter().filter(|o| !is_own(o)).find(|o| excludes(claim, o.inner.lock().claims()));
                match conflict {
                    Some(open) => open.client.clone(),
                    None => {
                        if let Some(open) = opens.iter().find(|o| is_own(o)) {
                            open.inner.lock().pending.push(claim);
                            return Ok(open.clone());
                        }
                        let inner = OpenInner {
                            seqid: 0,
                            access: 0,
                            deny: 0,
                            pending: smallvec::smallvec![claim],
                            below: SmallVec::new(),
                            closed: false,
                        };
                        let open = Arc::new(Open {
                            other: registry.other(),
                            client: client.clone(),
                            owner,
                            file: state.clone(),
                            inner: Mutex::new(inner),
                        });
                        registry.add(State::Open(open.clone()))?;
                        opens.push(open.clone());
                        return Ok(open);
                    }
                }
            };
            drop(order);
            if in_the_way.id == client.id || !self.nfs.end_courtesy(&in_the_way).await {
                return Err(Nfsstat4::SHARE_DENIED);
            }
        }
    }

    /// The open that a stateid names on the current file. The caller must look it up again under
    /// the file's `order`.
    fn open_of(&self, id: &Stateid) -> Result<Arc<Open>, Nfsstat4> {
        let o = self.object(Nfsstat4::BAD_STATEID)?;
        match self.nfs.registry.find(&*self.client()?, &self.actual(id)?)? {
            State::Open(open) if open.file.key == o.key() => Ok(open),
            _ => Err(Nfsstat4::BAD_STATEID),
        }
    }

    /// A stateid, with the compound's current stateid substituted (RFC 8881 section 16.2.3.1.2).
    pub(super) fn actual(&self, id: &Stateid) -> Result<Stateid, Nfsstat4> {
        if *id == Stateid::CURRENT {
            return self.stateid.ok_or(Nfsstat4::BAD_STATEID);
        }
        Ok(*id)
    }

    pub(super) async fn close(&mut self, a: &CloseArgs) -> Result<Stateid, Nfsstat4> {
        let open = self.open_of(&a.stateid)?;
        let _order = loop {
            let settled = open.file.settled.notified();
            let order = open.file.order.lock().await;
            // An OPEN of the same owner may have changed the stateid, or may change it soon. The
            // client must then see that reply first.
            self.open_of(&a.stateid)?;
            if open.inner.lock().pending.is_empty() {
                break order;
            }
            drop(order);
            timeout(CLOSE_PATIENCE, settled).await.map_err(|_| Nfsstat4::DELAY)?;
        };
        self.nfs.close(&open).await;
        self.stateid = None;
        Ok(Stateid::INVALID)
    }

    pub(super) async fn open_downgrade(&mut self, a: &OpenDowngradeArgs) -> Result<Stateid, Nfsstat4> {
        let open = self.open_of(&a.stateid)?;
        let _order = open.file.order.lock().await;
        self.open_of(&a.stateid)?;
        let share = a.share_access & open::SHARE_ACCESS_BOTH;
        {
            let mut inner = open.inner.lock();
            if share == 0 || share & !inner.access != 0 || a.share_deny & !inner.deny != 0 {
                return Err(Nfsstat4::INVAL);
            }
            inner.access = share;
            inner.deny = a.share_deny;
            inner.seqid = next(inner.seqid);
            // Closes the opens of the `Vfs` that are not needed any more, when one of them has
            // exactly the remaining access.
            let need = access(share);
            if let Some(exact) = inner.below.iter().position(|b| b.access == need) {
                let keep = inner.below.swap_remove(exact);
                inner.below = smallvec::smallvec![keep];
            }
        }
        let stateid = open.stateid();
        self.stateid = Some(stateid);
        Ok(stateid)
    }
}

/// The arguments of OPEN that the server supports (RFC 9754 section 3), as the numbers of bits.
pub(super) fn open_arguments() -> OpenArguments {
    OpenArguments {
        share_access: Bitmap4::of(&[1, 2, 3]),
        share_deny: Bitmap4::of(&[0, 1, 2, 3]),
        // Any delegation, none, the end of a wish, and times maintained by the holder.
        share_access_want: Bitmap4::of(&[3, 4, 5, open::ARGS_WANT_DELEG_TIMESTAMPS]),
        // By name, after a restart, under a delegation, by handle, by handle under a delegation.
        open_claim: Bitmap4::of(&[0, 1, 2, 4, 5]),
        create_mode: Bitmap4::of(&[0, 1, 2, 3]),
    }
}

/// Ends an OPEN that has succeeded: the open gets its bits (access, deny) and its open of the
/// `Vfs`. Returns the stateid that this call made. No other call returns the same stateid. `None`
/// when the open has been closed.
async fn confirm(
    open: &Open,
    claim: (u32, u32),
    (access, deny): (u32, u32),
    below: &Arc<VfsOpen>,
) -> Option<Stateid> {
    let _order = open.file.order.lock().await;
    let mut inner = open.settle(claim);
    if inner.closed {
        return None;
    }
    inner.seqid = next(inner.seqid);
    inner.access |= access;
    inner.deny |= deny;
    if !inner.below.iter().any(|b| b.access.contains(below.access)) {
        inner.below.push(below.clone());
    }
    Some(Stateid { seqid: inner.seqid, other: open.other })
}

fn how(share: u32, create: Create) -> OpenHow {
    OpenHow { create, ..OpenHow::existing(access(share)) }
}

/// The status of an object that OPEN cannot open (RFC 8881 section 18.16.3).
fn stat_of_open(e: &hither_vfs::Error) -> Nfsstat4 {
    match e.errno {
        libc::EINVAL | libc::ENXIO | libc::ENODEV => Nfsstat4::WRONG_TYPE,
        _ => stat4(e),
    }
}

/// The delegation to grant with an open. `None`: the client wants none, or may not have one.
fn wish(a: &OpenArgs, share: u32, minor: u32, removals: u64) -> Option<Wish> {
    let usual = if share == open::SHARE_ACCESS_READ { Kind::Read } else { Kind::Write };
    let (kind, reclaim) = match &a.claim {
        OpenClaim::Null(_) | OpenClaim::Fh => (usual, false),
        OpenClaim::Previous(DelegationType::READ | DelegationType::READ_ATTRS) if usual == Kind::Read => {
            (Kind::Read, true)
        }
        // A write delegation may outlive the open for writing with which it was granted.
        OpenClaim::Previous(DelegationType::WRITE | DelegationType::WRITE_ATTRS) => (Kind::Write, true),
        _ => return None,
    };
    let wanted = match a.share_access & open::WANT_DELEG_MASK {
        open::WANT_NO_DELEG | open::WANT_CANCEL => false,
        open::WANT_READ_DELEG => kind == Kind::Read,
        _ => true,
    };
    let maintained = matches!(a.claim, OpenClaim::Previous(DelegationType::WRITE_ATTRS));
    let times = minor >= 2 && (maintained || a.share_access & open::WANT_DELEG_TIMESTAMPS != 0);
    (wanted && a.share_deny == 0).then_some(Wish { kind, directory: false, reclaim, times, minor, removals })
}

fn no_delegation(share_access: u32) -> OpenDelegation {
    match share_access & open::WANT_DELEG_MASK {
        open::WANT_NO_PREFERENCE => OpenDelegation::None,
        open::WANT_NO_DELEG | open::WANT_CANCEL => OpenDelegation::NoneExt(WhyNoDelegation::NotWanted),
        _ => OpenDelegation::NoneExt(WhyNoDelegation::Resource(false)),
    }
}

fn with_verifier(set: SetAttr, verf: &[u8; 8]) -> SetAttr {
    let (atime, mtime) = verifier_times(verf);
    SetAttr { atime: Some(SetTime::To(atime)), mtime: Some(SetTime::To(mtime)), ..set }
}
