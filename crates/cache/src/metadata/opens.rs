//! Opens: sent below, or virtual while they need nothing from below.
//!
//! A virtual open gets a number of this layer and sends no request. Such an open is for reading
//! only. The file's attributes are fresh, and the caller is known to have the right to read. The
//! first call that needs an open below makes it real, once, with the credential of its opener.
//!
//! An open also becomes real before a local change removes a name or right that it would need
//! later, and before the withdrawal of a lease ends (RFC 8881, 10.4.1). The server then keeps the
//! file for the open when another client removes it.

use super::learn::{Found, Ticket};
use super::moment::LEASE;
use super::objects::{Object, When};
use super::{MetadataCache, stats};
use hither_vfs::{
    Access, Backing, Create, Cred, Data, Error, Fh, File, FileKind, Name, Node, OpenAccess, OpenHow, OpenId,
    Opened, PathRef, Read, RequestContext, Result, Stop, Validity, WalkRequest,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An open of this layer.
#[derive(Debug)]
pub(super) struct Open {
    pub fh: Fh,
    cred: Arc<Cred>,
    execute: bool,
    reads: bool,
    /// The open below, if it exists.
    real: OnceLock<OpenId>,
    making: tokio::sync::Mutex<()>,
}

/// An open below, and the data that its reply brought.
pub(super) struct Real {
    pub id: OpenId,
    pub first: Option<Read>,
    pub backing: Option<Backing>,
    /// `change` of the file that the data belongs to.
    pub change: Option<u64>,
}

impl Real {
    /// An open that was made before.
    fn of(id: OpenId) -> Self {
        Self { id, first: None, backing: None, change: None }
    }
}

/// All opens.
#[derive(Debug, Default)]
pub(super) struct Opens {
    all: Mutex<HashMap<OpenId, Arc<Open>>>,
    /// Virtual opens, by file.
    virtuals: Mutex<HashMap<Fh, Vec<OpenId>>>,
    next: AtomicU64,
}

impl Opens {
    fn add(&self, open: Open) -> OpenId {
        let id = OpenId(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        if open.real.get().is_none() {
            self.virtuals.lock().entry(open.fh.clone()).or_default().push(id);
        }
        self.all.lock().insert(id, Arc::new(open));
        id
    }

    pub fn find(&self, id: OpenId) -> Result<Arc<Open>> {
        self.all.lock().get(&id).cloned().ok_or_else(|| Error::new(libc::EBADF))
    }

    fn take(&self, id: OpenId) -> Result<Arc<Open>> {
        let open = self.all.lock().remove(&id).ok_or_else(|| Error::new(libc::EBADF))?;
        self.not_virtual(&open.fh, id);
        Ok(open)
    }

    fn not_virtual(&self, fh: &Fh, id: OpenId) {
        let mut virtuals = self.virtuals.lock();
        if let Some(ids) = virtuals.get_mut(fh) {
            ids.retain(|i| *i != id);
            if ids.is_empty() {
                virtuals.remove(fh);
            }
        }
    }

    /// The virtual opens of a file.
    pub fn virtuals(&self, fh: &Fh) -> Vec<OpenId> {
        self.virtuals.lock().get(fh).cloned().unwrap_or_default()
    }

    /// Number of opens.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.lock().len()
    }
}

/// An open that replaces a revalidation: it requests no bytes that the revalidation would not
/// request.
fn instead_of(want: &WalkRequest, how: &OpenHow) -> OpenHow {
    let first_bytes = if want.read_bytes == 0 { 0 } else { how.first_bytes };
    OpenHow { first_bytes, ..how.clone() }
}

impl MetadataCache {
    /// See [`Vfs::open`](hither_vfs::Vfs::open).
    pub(super) async fn open_file(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        how: &OpenHow,
    ) -> Result<Opened> {
        let reads_only = how.access == OpenAccess::READ && !how.truncate && how.create == Create::No;
        if !reads_only {
            return self.open_changing(cx, at, how).await;
        }
        match at.path {
            // Opens below may be the only ones that keep a file that lost a name here.
            [] if self.lost_name(at.base) => return self.open_real(cx, at, how).await,
            [] => return self.open_reading(cx, at.base, how).await,
            [name] => return self.open_named(cx, at.base, name, how).await,
            _ => {}
        }
        if let Some(trail) = self.peek_known(cx, at)
            && let (Stop::Complete, Some(node)) = (&trail.stop, trail.steps.last())
        {
            return self.open_reading(cx, &node.fh, how).await;
        }
        self.open_real(cx, at, how).await
    }

    async fn open_reading(&self, cx: &RequestContext, fh: &Fh, how: &OpenHow) -> Result<Opened> {
        let right = if how.execute { Access::EXECUTE } else { Access::READ };
        let when = self.when(cx).beginning();
        self.prefetch(cx, fh).await;
        if let Some(opened) = self.open_virtual(cx, fh, how, right, &When { since: None, ..when }) {
            return Ok(self.brought_near(opened, how).await);
        }
        if let Some(want) = self.question(cx, fh, how, right, &when) {
            if self.asks_for_lease(fh) {
                return self.open_real(cx, PathRef::fh(fh), &instead_of(&want, how)).await;
            }
            if want == WalkRequest::default() {
                self.ask_attrs(cx, File { fh, open: None }).await?;
            } else {
                self.ask_exactly(cx, PathRef::fh(fh), want).await?;
            }
            if let Some(opened) = self.open_virtual(cx, fh, how, right, &when) {
                return Ok(self.brought_near(opened, how).await);
            }
        }
        self.open_real(cx, PathRef::fh(fh), how).await
    }

    /// The request that makes a virtual open possible, in addition to the attributes; `None` when
    /// it is not worth trying.
    fn question(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        how: &OpenHow,
        right: Access,
        when: &When,
    ) -> Option<WalkRequest> {
        let cred = self.cred(&cx.cred);
        let any = when.any_age();
        let near = self.is_near_enough(fh, cx.fresh_since.is_some());
        let (usual, small, may, read, ours) = self.table.with(fh, |_, o| {
            let small = o.attr.size_bytes <= u64::from(self.options.small_file_bytes);
            let usual = o.asked != 0 && o.attr.kind() == FileKind::Regular;
            let lasts = o.until & LEASE != 0 || o.until > o.asked || o.until == 0;
            let may = o.rights(cred, right, &When { now: 0, ..any }) == Some(right);
            let read = o.extra.as_ref().is_some_and(|e| e.read_change == Some(o.attr.change));
            let read = read || near || self.contents.has(fh, o.version());
            (usual && lasts, small || near, may, read, o.until == 0)
        })?;
        // Bytes read before under this `change` are in the kernel, in this layer or below:
        // revalidation is enough. If the bytes of a small file are wanted, the same request reads
        // all of it. The same holds for a small file that was changed here: the kernel treats its
        // pages of that file as outdated.
        let wanted = (how.first_bytes > 0 || ours) && !read;
        let read_bytes = if wanted { self.options.small_file_bytes.max(how.first_bytes) } else { 0 };
        if usual && may && read {
            Some(WalkRequest::default())
        } else if usual && small {
            Some(WalkRequest { read_bytes, access: right, ..WalkRequest::default() })
        } else {
            None
        }
    }

    /// An open for reading by a name. The one request that it needs also looks up the name. The
    /// known binding only selects the rest of the request.
    async fn open_named(&self, cx: &RequestContext, dir: &Fh, name: &Name, how: &OpenHow) -> Result<Opened> {
        let right = if how.execute { Access::EXECUTE } else { Access::READ };
        let when = self.when(cx).beginning();
        let Some(known) = self.child_of(dir, name) else {
            return self.open_real(cx, PathRef::name(dir, name), how).await;
        };
        self.prefetch(cx, &known).await;
        if let Some(fh) = self.leads_still(cx, dir, name) {
            return self.open_reading(cx, &fh, how).await;
        }
        let fh = match self.question(cx, &known, how, right, &when) {
            Some(want) if self.asks_for_lease(&known) => {
                return self.open_real(cx, PathRef::name(dir, name), &instead_of(&want, how)).await;
            }
            Some(want) => self.ask_name(cx, dir, name, &known, want).await?,
            None if self.options.stateless_opens => {
                let (fh, opened) = tokio::join!(
                    self.ask_name(cx, dir, name, &known, WalkRequest::default()),
                    self.open_real(cx, PathRef::fh(&known), how)
                );
                return self.agreed(cx, &known, fh, opened).await;
            }
            None => {
                // The first bytes are in a layer below.
                let first_bytes = if self.is_near(&known) { 0 } else { how.first_bytes };
                let how = OpenHow { first_bytes, ..how.clone() };
                return self.open_real(cx, PathRef::name(dir, name), &how).await;
            }
        };
        match self.open_virtual(cx, &fh, how, right, &when) {
            Some(opened) => Ok(self.brought_near(opened, how).await),
            None => self.open_real(cx, PathRef::fh(&fh), how).await,
        }
    }

    /// The result of an open by the filehandle that a name was known to lead to, if the name still
    /// leads to it.
    async fn agreed(
        &self,
        cx: &RequestContext,
        known: &Fh,
        now: Result<Fh>,
        opened: Result<Opened>,
    ) -> Result<Opened> {
        match now {
            Ok(fh) if fh == *known => opened,
            other => {
                if let Ok(opened) = opened {
                    let _ = self.close_file(cx, known, opened.open).await;
                }
                Err(other.err().unwrap_or_else(|| Error::new(libc::ESTALE)))
            }
        }
    }

    /// The object that a name is known to lead to, as fresh as the caller asks, or under a lease on
    /// the object.
    fn leads_still(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Option<Fh> {
        let when = &self.when(cx);
        let hash = self.table.hash(name.as_bytes());
        let cred = self.cred(&cx.cred);
        let answer = self.table.with(dir, |_, o| {
            // The caller had this right before. The look-up of the name checks it again.
            let may = o.rights(cred, Access::LOOKUP, &When { now: 0, ..when.any_age() });
            (may == Some(Access::LOOKUP)).then(|| o.dir()?.answer(hash, name.as_bytes(), self.limits))?
        })??;
        let fits = if self.trusts_names(false) {
            when.fits(answer.until, answer.asked)
        } else {
            when.just_asked(answer.asked)
        };
        self.table.with_id(answer.child?, |o| {
            let leads = fits || self.trusts_names(false) && o.keeps_name(answer.asked, when);
            leads.then(|| super::handle(o))
        })?
    }

    /// Requests the binding of a name, with `want` of its object. `known`: the object that the name
    /// led to before.
    async fn ask_name(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        known: &Fh,
        want: WalkRequest,
    ) -> Result<Fh> {
        let at = PathRef::name(dir, name);
        let aside = self.options.stateless_opens && want != WalkRequest::default();
        let trail = if aside {
            let known = self.ask_exactly(cx, PathRef::fh(known), want);
            tokio::join!(self.ask_exactly(cx, at, WalkRequest::default()), known).0?
        } else {
            self.ask_exactly(cx, at, want).await?
        };
        match (trail.stop, trail.steps.into_iter().next()) {
            (Stop::Failed(e), _) => Err(e),
            (_, Some(node)) => Ok(node.fh),
            (Stop::Missing(_), None) => Err(Error::new(libc::ENOENT)),
            (Stop::NotDirectory | Stop::Symlink, None) => Err(Error::new(libc::ENOTDIR)),
            (_, None) => Err(Error::because(libc::EIO, "the walk of one name returned no step")),
        }
    }

    /// A virtual open, if nothing is needed from below.
    fn open_virtual(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        how: &OpenHow,
        right: Access,
        when: &When,
    ) -> Option<Opened> {
        let cred = self.cred(&cx.cred);
        let (attrs, open) = self.table.with(fh, |_, o| {
            let may = o.rights(cred, right, &when.any_age()) == Some(right);
            // Attributes that hold for one call only would be requested again with every read.
            let lasts = when.valid(o.until);
            // Opens below are the only ones that keep a file without a name.
            let named = o.attr.kind() == FileKind::Regular && !o.attr.is_nameless();
            if !(o.holds(when) && may && lasts && named) {
                return None;
            }
            // Added while the object is locked: a withdrawal of the lease finds each open that
            // relied on it.
            let open = self.opens.add(Open {
                fh: fh.clone(),
                cred: cx.cred.clone(),
                execute: how.execute,
                reads: true,
                real: OnceLock::new(),
                making: Default::default(),
            });
            Some((self.attrs_of(o, when), open))
        })??;
        let first = (how.first_bytes > 0).then(|| self.held_start(fh, &attrs, how.first_bytes)).flatten();
        stats::add(&self.counters.virtual_opens, 1);
        let node = Node { fh: fh.clone(), attrs };
        Some(Opened { node, open, created: false, dir: None, first, backing: None })
    }

    /// Opens an existing object below, without truncating it.
    async fn open_real(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let label = self.label(at.base);
        let ticket = self.ticket();
        let outcome = self.below.open(cx, at, how).await;
        self.learn_opened_name(cx, at, label, outcome.as_ref(), &ticket);
        let opened = outcome.map_err(|e| self.failed(at.base, e))?;
        self.learn_opened(cx, &opened, how, &ticket);
        Ok(self.adopt(cx, opened, how))
    }

    /// Stores the binding of a name from an open by that name that created nothing.
    fn learn_opened_name(
        &self,
        cx: &RequestContext,
        at: PathRef<'_>,
        label: Option<u64>,
        outcome: std::result::Result<&Opened, &Error>,
        ticket: &Ticket,
    ) {
        let [name] = at.path else { return };
        match outcome {
            Ok(Opened { node, .. }) => {
                let child = Some(self.learn_attrs(&node.fh, &node.attrs, ticket));
                let (asked, valid) = (self.clock.of(node.attrs.asked), node.attrs.valid);
                let found = Found { name, child, asked, valid };
                self.learn_name(self.cred(&cx.cred), at.base, label, &found, ticket);
            }
            Err(e) if matches!(e.errno, libc::EACCES | libc::EPERM) => {}
            Err(_) => {
                self.table.with(at.base, |_, o| {
                    if let Some(dir) = o.known_dir() {
                        self.doubt(dir, name);
                    }
                });
            }
        }
    }

    fn learn_opened(&self, cx: &RequestContext, opened: &Opened, how: &OpenHow, ticket: &Ticket) {
        stats::add(&self.counters.real_opens, 1);
        let node = &opened.node;
        let id = self.learn_attrs(&node.fh, &node.attrs, ticket);
        self.note_use(id);
        if how.access.contains(OpenAccess::READ) && !opened.created {
            let right = if how.execute { Access::EXECUTE } else { Access::READ };
            self.learn_rights(&cx.cred, (&node.fh, node.attrs.attr.change), right, right, ticket);
        }
        if opened.created {
            self.learn_owned(cx, &node.fh, &node.attrs, ticket);
            if node.attrs.valid == Validity::Lease && node.attrs.attr.size_bytes == 0 {
                let nothing = Read { data: Data::default(), eof: true };
                self.learn_contents(&node.fh, &node.attrs, &nothing, ticket, false);
            }
        }
        if let Some(read) = &opened.first {
            self.learn_contents(&node.fh, &node.attrs, read, ticket, false);
        }
    }

    /// Registers an open below as an open of this layer.
    fn adopt(&self, cx: &RequestContext, opened: Opened, how: &OpenHow) -> Opened {
        let open = self.opens.add(Open {
            fh: opened.node.fh.clone(),
            cred: cx.cred.clone(),
            execute: how.execute,
            reads: how.access.contains(OpenAccess::READ),
            real: opened.open.into(),
            making: Default::default(),
        });
        Opened { open, ..opened }
    }

    /// Opens that create, truncate or write.
    async fn open_changing(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let parent;
        let mut at = at;
        if let [above @ .., _] = at.path
            && !above.is_empty()
        {
            parent = self.parent_of(cx, at.base, above).await?;
            at = PathRef { base: &parent, path: &at.path[above.len()..] };
        }
        let proven;
        if let [name] = at.path
            && self.options.stateless_opens
            && how.create == Create::No
            && cx.fresh_since.is_some()
            && let Some(fh) = self.leads_still(cx, at.base, name)
        {
            // The look-ups of this call have just returned that binding.
            proven = fh;
            at = PathRef::fh(&proven);
        }
        if let [name] = at.path
            && self.options.stateless_opens
            && how.create == Create::No
            && !how.truncate
            && let Some(known) = self.child_of(at.base, name)
        {
            let (fh, opened) = tokio::join!(
                self.ask_name(cx, at.base, name, &known, WalkRequest::default()),
                self.open_real(cx, PathRef::fh(&known), how)
            );
            return self.agreed(cx, &known, fh, opened).await;
        }
        let target = match at.path {
            [] => Some(at.base.clone()),
            [name, ..] => self.child_of(at.base, name),
        };
        let cut = target.as_ref().filter(|_| how.truncate).map(|fh| self.changing(fh));
        let creating = match at.path {
            [name, ..] if how.create != Create::No => Some((name, self.renaming(at.base, &[name]))),
            _ => None,
        };
        let label = self.label(at.base);
        let ticket = self.ticket();
        let outcome = self.below.open(cx, at, how).await;
        if how.create == Create::No {
            self.learn_opened_name(cx, at, label, outcome.as_ref(), &ticket);
        }
        if let Some(cut) = cut {
            // The name may lead to another file by now. The attributes of the known file then
            // expire.
            let same = outcome.as_ref().ok().filter(|o| Some(&o.node.fh) == target.as_ref());
            match &outcome {
                Ok(_) => cut.done(Ok(same.map(|o| &o.node.attrs))),
                Err(e) => cut.done(Err(e)),
            }
        }
        if let Some((name, creating)) = creating {
            self.created(creating, name, &outcome);
        }
        match outcome {
            Ok(opened) => {
                if how.truncate {
                    self.contents.drop_file(&opened.node.fh, &self.counters);
                }
                self.learn_opened(cx, &opened, how, &ticket);
                Ok(self.adopt(cx, opened, how))
            }
            Err(e) => Err(self.failed(at.base, e)),
        }
    }

    fn created(&self, creating: super::change::Changing<'_>, name: &Name, outcome: &Result<Opened>) {
        use super::change::Renamed;
        if let Ok(Opened { dir: None, created: false, node, .. }) = outcome {
            return creating.found(name, node);
        }
        match outcome {
            Ok(opened) => {
                creating.renamed(Ok(opened.dir.as_ref().as_slice()), &[(name, Renamed::To(&opened.node))])
            }
            Err(e) => creating.renamed(Err(e), &[(name, Renamed::Unknown)]),
        };
    }

    /// The directory at the end of a path.
    async fn parent_of(&self, cx: &RequestContext, base: &Fh, above: &[Name]) -> Result<Fh> {
        let cx = RequestContext { fresh_since: None, ..cx.clone() };
        let trail = self.walk_on(&cx, PathRef { base, path: above }, WalkRequest::default()).await?;
        let errno = match (trail.stop, trail.steps.last()) {
            (Stop::Complete, Some(node)) => return Ok(node.fh.clone()),
            (Stop::Failed(e), _) => return Err(e),
            (Stop::Missing(_), _) => libc::ENOENT,
            (Stop::Symlink, _) => libc::ELOOP,
            (Stop::NotDirectory, _) => libc::ENOTDIR,
            _ => libc::EIO,
        };
        Err(Error::new(errno))
    }

    /// Whether a lease on the object proves that a name leads to it. Other clients cannot rename or
    /// remove it before the lease is withdrawn.
    pub(super) fn is_sure(&self, dir: &Fh, name: &Name, target: Option<&Fh>) -> bool {
        let hash = self.table.hash(name.as_bytes());
        let bound = self.table.with(dir, |_, o| o.dir()?.names.find(hash, name.as_bytes())).flatten();
        let Some((bound, child)) = bound.and_then(|b| Some((b, b.child?))) else { return false };
        let when = self.at_present();
        let sure = |o: &Object| o.keeps_name(bound.asked, &when) && target == Some(&super::handle(o));
        self.table.with_id(child, |o| sure(o)).unwrap_or(false)
    }

    /// The object that a name was last known to be bound to.
    pub(super) fn child_of(&self, dir: &Fh, name: &Name) -> Option<Fh> {
        self.named(dir, name).map(|(fh, _)| fh)
    }

    /// The same, and whether the binding holds as long as the directory's label.
    pub(super) fn named(&self, dir: &Fh, name: &Name) -> Option<(Fh, bool)> {
        let hash = self.table.hash(name.as_bytes());
        let bound = self.table.with(dir, |_, o| o.dir()?.names.find(hash, name.as_bytes()))??;
        Some((self.fh_of(bound.child?)?, bound.labeled))
    }

    /// The open below of an open of this layer. A new open below returns the first bytes with it.
    pub(super) async fn make_real(&self, id: OpenId, first_bytes: u32) -> Result<Real> {
        let open = self.opens.find(id)?;
        if let Some(real) = open.real.get() {
            return Ok(Real::of(*real));
        }
        let _making = open.making.lock().await;
        if let Some(real) = open.real.get() {
            return Ok(Real::of(*real));
        }
        let how = OpenHow {
            execute: open.execute,
            first_bytes,
            known: self.known_open(&open),
            ..OpenHow::existing(OpenAccess::READ)
        };
        let cx = RequestContext::new(open.cred.clone());
        let ticket = self.ticket();
        let opened = self.below.open(&cx, PathRef::fh(&open.fh), &how).await;
        let opened = opened.map_err(|e| self.failed(&open.fh, e))?;
        stats::add(&self.counters.virtual_made_real, 1);
        self.learn_opened(&cx, &opened, &how, &ticket);
        let real = *open.real.get_or_init(|| opened.open);
        self.opens.not_virtual(&open.fh, id);
        if self.opens.find(id).is_err() {
            // The open was closed meanwhile.
            let _ = self.below.close(&cx, &open.fh, real).await;
            return Err(Error::new(libc::EBADF));
        }
        let change = Some(opened.node.attrs.attr.change);
        Ok(Real { id: real, first: opened.first, backing: opened.backing, change })
    }

    /// The attributes under which the open is known to be allowed, if they hold.
    fn known_open(&self, open: &Open) -> Option<hither_vfs::Attrs> {
        let when = self.when(&RequestContext::new(open.cred.clone()));
        let cred = self.cred(&open.cred);
        let right = if open.execute { Access::EXECUTE } else { Access::READ };
        self.table.with(&open.fh, |_, o| {
            let may = o.holds(&when) && o.rights(cred, right, &when) == Some(right);
            may.then(|| self.attrs_of(o, &when))
        })?
    }

    /// Called before a local change removes a name of a file. Makes the virtual opens of the file
    /// real; later opens by filehandle are sent below.
    pub(super) async fn losing_name(&self, fh: &Fh) {
        self.table.with(fh, |_, o| {
            if o.attr.kind() == FileKind::Regular {
                o.extra().lost_name = true;
            }
        });
        self.secure(fh).await;
    }

    fn lost_name(&self, fh: &Fh) -> bool {
        self.table.with(fh, |_, o| o.extra.as_ref().is_some_and(|extra| extra.lost_name)) == Some(true)
    }

    /// Called before a local change removes a name or right of a file, and before a lease on it
    /// ends. Makes the virtual opens real.
    pub(super) async fn secure(&self, fh: &Fh) {
        for id in self.opens.virtuals(fh) {
            if let Err(e) = self.make_real(id, 0).await {
                tracing::debug!(?fh, "a virtual open could not be opened below: {e}");
            }
        }
    }

    /// The open below of an open file; a virtual open becomes real.
    pub(super) async fn real(&self, file: File<'_>) -> Result<Option<OpenId>> {
        match file.open {
            Some(id) => Ok(Some(self.make_real(id, 0).await?.id)),
            None => Ok(None),
        }
    }

    /// The same for calls that work without an open.
    pub(super) fn real_if_any(&self, file: File<'_>) -> Result<Option<OpenId>> {
        match file.open {
            Some(id) => Ok(self.opens.find(id)?.real.get().copied()),
            None => Ok(None),
        }
    }

    /// See [`Vfs::close`](hither_vfs::Vfs::close).
    pub(super) async fn close_file(&self, cx: &RequestContext, fh: &Fh, id: OpenId) -> Result<()> {
        let open = self.opens.take(id)?;
        let closed = match open.real.get() {
            Some(real) => self.below.close(cx, fh, *real).await,
            None => Ok(()),
        };
        self.table.with(fh, |_, o| {
            if o.attr.is_nameless() {
                // The last open of the file is closed, so the file is gone. Earlier requests no
                // longer answer for it.
                o.barrier = o.barrier.max(self.next_seq());
                o.expire();
            }
        });
        closed
    }

    /// See [`Vfs::read`](hither_vfs::Vfs::read).
    pub(super) async fn read_file(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        at: u64,
        len: u32,
    ) -> Result<Read> {
        let Some(id) = file.open else {
            return self.read_below(cx, file, at, len).await;
        };
        let open = self.opens.find(id)?;
        if open.reads && &open.fh == file.fh {
            if let Some(read) = self.read_held(cx, file.fh, at, len) {
                return Ok(read);
            }
            let known = self.table.with(file.fh, |_, o| o.version());
            let old = known.is_some_and(|version| self.contents.has(file.fh, version));
            if old && open.real.get().is_none() {
                // The attributes have expired: revalidate the contents.
                self.attrs(cx, file, File { fh: file.fh, open: None }).await?;
                if let Some(read) = self.read_held(cx, file.fh, at, len) {
                    return Ok(read);
                }
            }
        }
        let Real { id: real, first, .. } = self.make_real(id, if at == 0 { len } else { 0 }).await?;
        if let Some(first) = first.filter(|f| at == 0 && (f.eof || f.data.len() >= len as usize)) {
            self.note_read(file.fh);
            return Ok(first);
        }
        self.read_below(cx, File { fh: file.fh, open: Some(real) }, at, len).await
    }

    async fn read_below(&self, cx: &RequestContext, below: File<'_>, at: u64, len: u32) -> Result<Read> {
        let read = self.below.read(cx, below, at, len).await.map_err(|e| self.failed(below.fh, e))?;
        self.note_read(below.fh);
        Ok(read)
    }

    /// Records that contents of the present `change` were returned.
    fn note_read(&self, fh: &Fh) {
        self.table.with(fh, |_, o| {
            if o.asked != 0 {
                let change = o.attr.change;
                o.extra().read_change = Some(change);
            }
        });
    }

    /// Bytes of a file that is completely in memory, while its attributes hold.
    fn read_held(&self, cx: &RequestContext, fh: &Fh, at: u64, len: u32) -> Option<Read> {
        let when = self.when(cx).any_age();
        let version = self.table.with(fh, |_, o| o.holds(&when).then(|| o.version()))??;
        let held = self.contents.find(fh, version, &self.counters)?;
        stats::add(&self.counters.content_hits, 1);
        self.note_read(fh);
        let from = usize::try_from(at).unwrap_or(usize::MAX).min(held.len());
        let to = from.saturating_add(len as usize).min(held.len());
        Some(Read { data: held.slice(from..to).into(), eof: to == held.len() })
    }
}
