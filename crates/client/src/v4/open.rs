//! OPEN, CLOSE and OPEN_DOWNGRADE.
//!
//! An open by filehandle is one compound. An open by path is one compound too: it looks up the
//! names before the last. After each change [`Core::settle`] makes the server's open state equal to
//! the local one. An open whose caller no longer waits is closed like any other.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::{Answered, Fail, is_state_lost};
use super::state::{Files, Further, OpenState, Step, own_fh, share, wire_fh, wire_name};
use crate::stamp::Stamp;
use crate::writes::OpenMark;
use hither_proto::nfs4::{
    Attrs as WireAttrs, Bitmap4, CreateHow, CreateVerfAttr, Nfsstat4, Op, OpenArgs, OpenClaim, OpenOk,
    StateOwner, Stateid, access, attr, open,
};
use hither_vfs::{
    Access, Attrs, ChangeInfo, Create, Error, Fh, File, Name, Node, OpenAccess, OpenHow, OpenId, Opened,
    Read, RequestContext, SetAttr, SetTime, Time,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Interval and number of retries of a CLOSE that gets OLD_STATEID, while the reply to a concurrent
/// open is in flight. After [`OLD_ROUNDS`] the CLOSE uses the current state. After as many rounds
/// again the client gives up.
const OLD_WAIT: Duration = Duration::from_millis(5);
const OLD_ROUNDS: u32 = 100;

/// An open by name in progress. Drop ends it.
struct Naming<'a>(&'a Files);

impl<'a> Naming<'a> {
    fn new(files: &'a Files) -> Self {
        files.naming.fetch_add(1, Ordering::SeqCst);
        Self(files)
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        self.0.naming.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Core {
    /// Opens a file; see `Vfs::open`. Runs in its own task.
    pub async fn open(
        self: &Arc<Self>,
        cx: &RequestContext,
        base: &Fh,
        path: &[Name],
        how: &OpenHow,
    ) -> Answered<Opened> {
        let mut opened = match path.split_last() {
            None => self.open_by_handle(cx, base, how).await?,
            Some((name, before)) => {
                let naming = Naming::new(&self.files);
                self.open_by_name(cx, base, before, name, how, naming).await?
            }
        };
        // The server may wrongly report that it created the file, after another change of the
        // directory. Therefore the length counts, too.
        let is_new = opened.created && opened.node.attrs.attr.size_bytes == 0;
        if how.truncate && !cuts_at_once(how) && !is_new {
            opened.node.attrs = self.cut_opened(cx, &opened, how).await?;
        }
        Ok(opened)
    }

    /// Cuts an opened file, after all checks that could refuse the open. An open for reading gives
    /// no right to cut (ganesha answers BAD_STATEID or OPENMODE). Such a file is cut by filehandle.
    async fn cut_opened(
        self: &Arc<Self>,
        cx: &RequestContext,
        opened: &Opened,
        how: &OpenHow,
    ) -> Answered<Attrs> {
        let open = how.access.contains(OpenAccess::WRITE).then_some(opened.open);
        let set = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
        let cut = self.setattr(cx, File { fh: &opened.node.fh, open }, &set).await;
        self.or_close(opened.open, cut).await
    }

    pub(super) async fn open_by_handle(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        how: &OpenHow,
    ) -> Answered<Opened> {
        if how.create != Create::No {
            return Err(Error::because(libc::EINVAL, "creating needs a name").into());
        }
        // Writes in progress must not arrive after the cut, nor be sent again after a restart of
        // the server.
        let cut = if cuts_at_once(how) { Some(self.writes().truncating(fh, 0).await) } else { None };
        let state = self.files.begin(fh, &cx.cred).await;
        // Waits for a CLOSE of the same owner in progress. If both run concurrently, a server may
        // close the state that this OPEN is granted (ganesha does). No new CLOSE begins, because an
        // open is in progress.
        drop(state.closing.lock().await);
        let mut ops = vec![Op::Putfh(wire_fh(fh)), self.open_op(&state.owner, how, None, OpenClaim::Fh)];
        ops.extend(after_open(how));
        ops.push(Op::Getattr(NODE_ATTRS));
        let c = self.with_first_bytes(ops, how);
        let granted = self.compound(cx, c).await.and_then(|mut answer| {
            answer.results.putfh()?;
            let ok = answer.results.open()?;
            Ok((answer, ok))
        });
        let (answer, ok) = match granted {
            Ok(granted) => granted,
            Err(f) => {
                self.files.abandoned(&state);
                drop(cut);
                self.release(&state).await;
                return Err(f);
            }
        };
        let (id, granted) = self.granted(&state, how.access, &ok, answer.asked);
        let rest = self.finish_open(cx, fh, id, how, granted, answer).await;
        match (cut, rest.is_ok()) {
            (Some(cut), true) => cut.done(),
            (cut, _) => drop(cut),
        }
        let (node, first) = self.or_close(id, rest).await?;
        Ok(Opened { node, open: id, created: false, dir: None, first, backing: None })
    }

    async fn open_by_name(
        self: &Arc<Self>,
        cx: &RequestContext,
        base: &Fh,
        before: &[Name],
        name: &Name,
        how: &OpenHow,
        naming: Naming<'_>,
    ) -> Answered<Opened> {
        // The owner belongs to the credential. The file is known only after the OPEN.
        let owner = self.files.owner(&cx.cred);
        let create = self.create_how(how).await;
        let (asked, later, stamp) = (create.asked, create.later, create.stamp);
        let mut ops = vec![Op::Putfh(wire_fh(base))];
        ops.extend(before.iter().map(|n| Op::Lookup(wire_name(n))));
        ops.push(self.open_op(&owner, how, create.how, OpenClaim::Null(wire_name(name))));
        ops.push(Op::Getfh);
        match how.create {
            Create::No => ops.extend(after_open(how)),
            // The file may exist already.
            Create::IfMissing(_) => ops.extend(right_to_open(how).map(Op::Access)),
            Create::Exclusive(_) => {}
        }
        ops.push(Op::Getattr(NODE_ATTRS));
        let creates = how.create != Create::No;
        if creates && before.is_empty() {
            ops.extend([Op::Putfh(wire_fh(base)), Op::Getattr(NODE_ATTRS)]);
        }
        let guess = match before {
            [] => self.guess(base, name, cx).await,
            _ => None,
        };
        let mut repeated = false;
        let granted = self.compound(cx, self.with_first_bytes(ops, how)).await.and_then(|mut answer| {
            let results = &mut answer.results;
            results.putfh()?;
            for _ in before {
                results.lookup()?;
            }
            repeated = answer.repeated;
            let ok = answer.results.open()?;
            let fh = own_fh(&answer.results.getfh()?);
            Ok((answer, ok, fh))
        });
        let state = match (&granted, guess) {
            (Ok((_, _, fh)), Some(state)) if state.file.fh == *fh => Ok(state),
            (_, wrong) => {
                let state = granted.as_ref().map(|(_, _, fh)| self.files.start(fh, &cx.cred));
                if let Some(wrong) = wrong {
                    self.files.abandoned(&wrong);
                    let core = self.clone();
                    // This open need not wait for the CLOSE of another file.
                    tokio::spawn(async move {
                        core.close_soon(&wrong).await;
                        core.release(&wrong).await;
                    });
                }
                state.map_err(Fail::clone)
            }
        };
        if let (Err(Fail::Nfs(Nfsstat4::EXIST)), Some(stamp), true) = (&granted, &stamp, repeated)
            && let Some(fh) = self.made_before(cx, base, before, name, stamp).await
        {
            let how = OpenHow { create: Create::No, truncate: false, ..how.clone() };
            let opened = self.open_by_handle(cx, &fh, &how).await?;
            return Ok(Opened { created: true, dir: Some(ChangeInfo::default()), ..opened });
        }
        if let (Err(Fail::Nfs(Nfsstat4::ATTRNOTSUPP)), Some(stamp)) = (&granted, &stamp)
            && stamp.trusted
        {
            self.stamps.refused();
            return Box::pin(self.open_by_name(cx, base, before, name, how, naming)).await;
        }
        let state = state?;
        let (mut answer, ok, fh) = granted?;
        if before.is_empty() {
            self.files.note_name(&state.file, base, name);
        }
        let (id, granted) = self.granted(&state, how.access, &ok, answer.asked);
        // The open is registered. If it is refused later, its CLOSE need not wait for a reply.
        drop(naming);
        let cut = match how.create {
            Create::Exclusive(_) => None,
            _ if cuts_at_once(how) => Some(self.writes().truncating(&fh, 0).await),
            _ => None,
        };
        // Servers that cannot read both values atomically (ganesha) still show whether the open
        // changed the directory. The Linux client uses the same test.
        let created = match how.create {
            Create::No => false,
            Create::IfMissing(_) => ok.cinfo.before != ok.cinfo.after,
            Create::Exclusive(_) => true,
        };
        let allowed = match how.create {
            Create::IfMissing(_) => {
                let found = told_right(how, &mut answer);
                // After two executions the first may have created the file, with a mode without the
                // right to read.
                if created || repeated { Ok(()) } else { self.may_open(cx, &fh, how, found).await }
            }
            _ => Ok(()),
        };
        let rest = if let Err(refused) = allowed {
            Err(refused)
        } else if creates {
            let missing = match (&how.create, stamp) {
                (Create::Exclusive(_), Some(stamp)) if !stamp.trusted => {
                    let mut missing = exclusive_leftover(&ok.attrset, asked, later);
                    if missing.atime.is_some() {
                        missing.atime = Some(SetTime::To(stamp.time));
                    } else {
                        // The server keeps its verifiers elsewhere, without a cost for the client.
                        self.stamps.refused();
                    }
                    missing
                }
                (Create::Exclusive(_), None) => exclusive_leftover(&ok.attrset, asked, later),
                _ => SetAttr::default(),
            };
            let wire = answer.results.getattr().ok();
            let mut dir = change_info(&ok.cinfo);
            if before.is_empty() && answer.results.putfh().is_ok() {
                dir.attrs = self.dir_attrs(base, &mut answer).await;
            }
            let node = self.finish_create(cx, &fh, id, missing, wire, granted, answer.asked).await;
            if let (Some(stamp), Ok(node)) = (stamp, &node) {
                self.stamps.seen(&stamp, node.attrs.attr.atime);
            }
            node.map(|node| (node, None, Some(dir)))
        } else {
            let rest = self.finish_open(cx, &fh, id, how, granted, answer).await;
            rest.map(|(node, first)| (node, first, None))
        };
        // With creation OPEN itself has cut the file.
        match (cut, creates || rest.is_ok()) {
            (Some(cut), true) => cut.done(),
            (cut, _) => drop(cut),
        }
        let (node, first, dir) = self.or_close(id, rest).await?;
        Ok(Opened { node, open: id, created, dir, first, backing: None })
    }

    /// Guesses that the name still belongs to the file that was opened by it and is still open.
    /// Then the CLOSE of that file must not overtake this OPEN, as for opens by filehandle.
    async fn guess(&self, dir: &Fh, name: &Name, cx: &RequestContext) -> Option<Arc<OpenState>> {
        let fh = self.files.by_name(dir, name)?;
        let state = self.files.try_begin(&fh, &cx.cred)?;
        drop(state.closing.lock().await);
        Some(state)
    }

    /// `ops` of an OPEN, and a READ at the end when first bytes are requested and available.
    fn with_first_bytes(&self, mut ops: Vec<Op>, how: &OpenHow) -> Compound {
        match self.first_wanted(how) {
            0 => Compound::new("OPEN", ops),
            bytes => {
                ops.push(Op::read(Stateid::CURRENT, 0, bytes));
                // Two executions give one open of its owner, which one CLOSE ends.
                Compound::new("OPEN", ops).uncached()
            }
        }
    }

    /// Number of first bytes that an open reads.
    fn first_wanted(&self, how: &OpenHow) -> u32 {
        let can = how.create == Create::No && how.access.contains(OpenAccess::READ) && !how.truncate;
        if can && self.opts.chains { how.first_bytes.min(self.facts().rsize) } else { 0 }
    }

    fn open_op(&self, owner: &[u8], how: &OpenHow, create: Option<CreateHow>, claim: OpenClaim) -> Op {
        Op::Open(OpenArgs {
            seqid: 0,
            share_access: share(how.access) | self.wanted_with(how.access.contains(OpenAccess::WRITE)),
            share_deny: open::SHARE_DENY_NONE,
            owner: StateOwner { clientid: 0, owner: owner.into() },
            how: create,
            claim,
        })
    }

    /// The parameters of a creation. The first exclusive creation of a mount uses a verifier and
    /// finds out whether the server keeps stamps ([`crate::stamp`]). Later creations use a stamp,
    /// which saves the SETATTR.
    async fn create_how(&self, how: &OpenHow) -> Creation {
        match &how.create {
            Create::No => Creation::default(),
            Create::IfMissing(set) => {
                let mut attrs = self.wire_set(set).await;
                if cuts_at_once(how) {
                    attrs.size = Some(0);
                }
                Creation { how: Some(CreateHow::Unchecked(attrs)), ..Creation::default() }
            }
            Create::Exclusive(set) => {
                let takes_umask = self.facts().exclusive_attrs.has(attr::MODE_UMASK);
                let unmasked = set.unmasked.filter(|_| takes_umask);
                let set = &SetAttr { unmasked, ..set.clone() };
                let stamp = self.stamps.make(&self.env, set);
                if let Some(trusted) = stamp.filter(|s| s.trusted) {
                    let set = SetAttr { atime: Some(SetTime::To(trusted.time)), ..set.clone() };
                    let how = Some(CreateHow::Guarded(self.wire_set(&set).await));
                    return Creation { how, stamp, ..Creation::default() };
                }
                let mut attrs = self.wire_set(set).await;
                let all = attrs.mask();
                attrs.retain(self.facts().exclusive_attrs);
                let later = all.difference(attrs.mask());
                let verf = (self.env.random)().to_be_bytes();
                let how = Some(CreateHow::Exclusive41(CreateVerfAttr { verf, attrs }));
                Creation { how, asked: set.clone(), later, stamp }
            }
        }
    }

    /// The filehandle of an existing file, if an earlier execution of this exclusive creation made
    /// it. That happens when the reply was lost with a server that restarted.
    async fn made_before(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        before: &[Name],
        name: &Name,
        stamp: &Stamp,
    ) -> Option<Fh> {
        let mut ops = vec![Op::Putfh(wire_fh(dir))];
        ops.extend(before.iter().chain([name]).map(|n| Op::Lookup(wire_name(n))));
        ops.extend([Op::Getfh, Op::Getattr(Bitmap4::of(&[attr::TIME_ACCESS, attr::TIME_MODIFY]))]);
        let mut answer = self.compound(cx, Compound::new("LOOKUP", ops)).await.ok()?;
        answer.results.putfh().ok()?;
        for _ in 0..=before.len() {
            answer.results.lookup().ok()?;
        }
        let fh = own_fh(&answer.results.getfh().ok()?);
        let wire = answer.results.getattr().ok()?;
        let [atime, mtime] = [wire.time_access, wire.time_modify]
            .map(|time| time.map(|time| Time { secs: time.seconds, nanos: time.nseconds }));
        stamp.is_of(atime?, mtime).then_some(fh)
    }

    /// Registers a granted open, and the delegation of its reply.
    fn granted(
        self: &Arc<Self>,
        state: &Arc<OpenState>,
        access: OpenAccess,
        ok: &OpenOk,
        asked: Instant,
    ) -> (OpenId, Option<Stateid>) {
        state.granted(ok.stateid, access);
        // Before the open ends: a recall of this delegation then finds either the open or the
        // delegation.
        let delegation = self.note_delegation(&state.file.fh, ok);
        if let Some(stateid) = &delegation {
            self.delegations.confirm(&state.file.fh, stateid, asked);
        }
        let id = self.files.opened(state, access);
        if let Ok(entry) = self.files.entry(id) {
            *entry.mark.lock() = Some(Arc::new(self.writes().opened(&state.file.fh)));
        }
        state.file.inner.lock().preserved |= ok.rflags & open::RESULT_PRESERVE_UNLINKED != 0;
        (id, delegation)
    }

    /// Reads the results after OPEN (and GETFH). Repeats failed parts alone. GETATTR precedes READ:
    /// see `bring`.
    async fn finish_open(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        id: OpenId,
        how: &OpenHow,
        granted: Option<Stateid>,
        mut answer: Answer,
    ) -> Answered<(Node, Option<Read>)> {
        let found = told_right(how, &mut answer);
        self.may_open(cx, fh, how, found).await?;
        if cuts_at_once(how) && answer.results.setattr().is_err() {
            let set = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
            let attrs = self.send_setattr(cx, File { fh, open: Some(id) }, &set).await?;
            return Ok((Node { fh: fh.clone(), attrs }, None));
        }
        let Ok(wire) = answer.results.getattr() else {
            let attrs = self.getattr(cx, fh).await?;
            return Ok((Node { fh: fh.clone(), attrs }, None));
        };
        let attrs = self.leased_by(fh, self.attrs(fh, &wire, answer.asked).await?, granted);
        let wanted = self.first_wanted(how);
        let first = match wanted {
            0 => None,
            _ => {
                let read = answer.results.read().ok();
                read.and_then(|read| self.first_bytes(fh, wire.size.unwrap_or(0), wanted, read).ok())
            }
        };
        Ok((Node { fh: fh.clone(), attrs }, first))
    }

    /// Checks the right that an open needs. ACCESS may have no result in the open's compound
    /// (NFS4ERR_DELAY while a delegation is recalled). Then it is sent alone and retried as usual.
    async fn may_open(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        how: &OpenHow,
        told: Answered<u32>,
    ) -> Answered<()> {
        let Some(right) = right_to_open(how) else { return Ok(()) };
        let have = match told {
            Err(f) if !matches!(f.status(), Some(Nfsstat4::ACCESS | Nfsstat4::PERM)) => {
                self.access(cx, fh, Access::from_bits_truncate(right)).await?.bits()
            }
            told => told?,
        };
        if have & right == right { Ok(()) } else { Err(Fail::Nfs(Nfsstat4::ACCESS)) }
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is about one open")]
    async fn finish_create(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        id: OpenId,
        missing: SetAttr,
        wire: Option<WireAttrs>,
        granted: Option<Stateid>,
        asked: Instant,
    ) -> Answered<Node> {
        let attrs = match wire {
            _ if missing != SetAttr::default() => {
                self.setattr(cx, File { fh, open: Some(id) }, &missing).await?
            }
            Some(wire) => self.leased_by(fh, self.attrs(fh, &wire, asked).await?, granted),
            None => self.getattr(cx, fh).await?,
        };
        Ok(Node { fh: fh.clone(), attrs })
    }

    async fn or_close<T>(self: &Arc<Self>, id: OpenId, outcome: Answered<T>) -> Answered<T> {
        if outcome.is_err() {
            // Alone: a refused open does not wait for other CLOSEs.
            let _ = self.end(&self.own_cx(), id, false).await;
        }
        outcome
    }

    /// Ends an open: commits its writes, then sends CLOSE. Runs in its own task.
    pub async fn close(self: &Arc<Self>, cx: &RequestContext, id: OpenId) -> Answered<()> {
        self.end(cx, id, true).await
    }

    /// As [`Core::close`]. With `together` the CLOSE may be sent a moment later, with others.
    async fn end(self: &Arc<Self>, cx: &RequestContext, id: OpenId, together: bool) -> Answered<()> {
        let entry = self.files.entry(id)?;
        self.files.closing(id);
        let mark = entry.mark.lock().take();
        let patient = RequestContext { cancel: Default::default(), ..cx.clone() };
        let written = match mark {
            Some(mark) => self.writes().close(&patient, &entry.state.file.fh, alone(mark).await).await,
            None => Ok(()),
        };
        if let Some(entry) = self.files.closed(id) {
            // First, so that the CLOSE of the state ends both opens, without an OPEN_DOWNGRADE
            // before it.
            if let Further::Open(further) = entry.further.lock().await.end() {
                let _ = Box::pin(self.end(&patient, further, together)).await;
            }
            entry.state.file.unused(&entry.state);
            if together {
                self.close_soon(&entry.state).await;
            }
            self.release(&entry.state).await;
        }
        written.map_err(Fail::Final)
    }

    /// Closes an open whose caller no longer waits.
    pub fn close_unwanted(self: &Arc<Self>, id: OpenId) {
        self.files.closing(id);
        let core = self.clone();
        tokio::spawn(async move {
            if let Err(f) = core.close(&core.own_cx(), id).await {
                tracing::warn!("closing an open whose caller has ended: {}", Error::from(f));
            }
        });
    }

    /// Ends a use of `state`: makes the server's state equal to the local one, and cleans up after
    /// the last use of the file.
    pub async fn release(self: &Arc<Self>, state: &Arc<OpenState>) {
        state.file.unused(state);
        if let Err(f) = self.settle(state).await {
            tracing::warn!(fh = ?state.file.fh, "CLOSE: {}", Error::from(f));
        }
        if let Some(left) = self.files.leave(&state.file) {
            self.remove_silly(&left.silly, Some(&state.file.fh)).await;
            self.files.going.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Closes or downgrades at the server until its state equals the local opens.
    async fn settle(self: &Arc<Self>, state: &Arc<OpenState>) -> Answered<()> {
        let _one = state.closing.lock().await;
        let cx = RequestContext::new(state.cred.clone());
        let (mut current, mut old) = (false, 0);
        loop {
            let step = state.next_step();
            // After OLD_STATEID without an open in progress: the current seqid.
            let seq = |s: Stateid| if current { s.any_seqid() } else { s };
            let fh = wire_fh(&state.file.fh);
            let (stateid, failed) = match step {
                Step::None => return Ok(()),
                Step::Close(stateid) => {
                    // A server may refuse to close a locked file (ganesha does).
                    self.drop_locks(state).await;
                    let c = Compound::new("CLOSE", [Op::Putfh(fh), Op::close(seq(stateid))]);
                    let closed = self.compound(&cx, c).await.and_then(|mut a| {
                        a.results.putfh()?;
                        Ok(a.results.close()?)
                    });
                    match closed {
                        Ok(_) => {
                            state.gone(&stateid);
                            // An open by name has overtaken the CLOSE, and the server closed that
                            // open, too.
                            self.open_again(state).await;
                            continue;
                        }
                        Err(f) => (stateid, f),
                    }
                }
                Step::Downgrade(stateid, access) => {
                    let op = Op::open_downgrade(seq(stateid), access, open::SHARE_DENY_NONE);
                    let c = Compound::new("OPEN_DOWNGRADE", [Op::Putfh(fh), op]);
                    let lowered = self.compound(&cx, c).await.and_then(|mut a| {
                        a.results.putfh()?;
                        Ok(a.results.open_downgrade()?)
                    });
                    match lowered {
                        Ok(new) => {
                            state.downgraded(access, Some(new));
                            continue;
                        }
                        // The server never had this access (a reclaimed open). The state stays as
                        // it is.
                        Err(f) if f.status() == Some(Nfsstat4::INVAL) => return Ok(()),
                        Err(f) => (stateid, f),
                    }
                }
            };
            match failed.status() {
                Some(Nfsstat4::OLD_STATEID) if old < 2 * OLD_ROUNDS => {
                    // An open by name has overtaken the CLOSE, and its reply is in flight; or the
                    // server counts differently. An open that is closed with this state is made
                    // again.
                    old += 1;
                    current = self.files.naming.load(Ordering::SeqCst) == 0 || old >= OLD_ROUNDS;
                    tokio::time::sleep(OLD_WAIT).await;
                }
                Some(s) if is_state_lost(s) || s == Nfsstat4::STALE => {
                    state.gone(&stateid);
                    if matches!(step, Step::Downgrade(..)) {
                        self.state_lost(state, &stateid).await;
                        return Ok(());
                    }
                }
                _ => {
                    state.gone(&stateid);
                    return Err(failed);
                }
            }
        }
    }
}

/// The mark, after commits that use it have ended.
async fn alone(mut mark: Arc<OpenMark>) -> OpenMark {
    loop {
        match Arc::try_unwrap(mark) {
            Ok(mark) => return mark,
            Err(shared) => mark = shared,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Parameters of a creation.
#[derive(Default)]
struct Creation {
    how: Option<CreateHow>,
    /// Requested attributes, of which some may be left to set.
    asked: SetAttr,
    /// Attributes that the server does not set in the same step.
    later: Bitmap4,
    /// The stamp that identifies a repetition of this creation, or of later creations.
    stamp: Option<Stamp>,
}

/// The rights that the open of an existing file needs and OPEN does not check. Servers grant OPEN
/// for reading to users with execute access, because a client must read a program to run it.
/// An open for reading with truncation needs the right to modify. The SETATTR alone would also
/// succeed for an owner without that right.
fn right_to_open(how: &OpenHow) -> Option<u32> {
    let read = if how.execute {
        access::EXECUTE
    } else if how.access.contains(OpenAccess::READ) {
        access::READ
    } else {
        0
    };
    let cut = if how.truncate && !how.access.contains(OpenAccess::WRITE) { access::MODIFY } else { 0 };
    Some(read | cut).filter(|&right| right != 0)
}

/// Whether the compound of the open can cut the file: no check in it may refuse the open. A refused
/// open must not have cut the file.
fn cuts_at_once(how: &OpenHow) -> bool {
    how.truncate && right_to_open(how).is_none()
}

/// The granted rights among the requested ones.
fn told_right(how: &OpenHow, answer: &mut Answer) -> Answered<u32> {
    match right_to_open(how) {
        Some(_) => Ok(answer.results.access()?.access),
        None => Ok(0),
    }
}

/// Operations on the opened file in the same compound.
fn after_open(how: &OpenHow) -> Vec<Op> {
    let mut ops: Vec<Op> = right_to_open(how).map(Op::Access).into_iter().collect();
    if cuts_at_once(how) {
        let size = WireAttrs { size: Some(0), ..WireAttrs::default() };
        ops.push(Op::setattr(Stateid::CURRENT, size));
    }
    ops
}

/// Attributes left to set after an exclusive create: those that the server could not set, and times
/// that held the verifier (RFC 8881 section 18.16.3).
pub(super) fn exclusive_leftover(attrset: &Bitmap4, mut asked: SetAttr, later: Bitmap4) -> SetAttr {
    let done = |n: u32| attrset.has(n) && !later.has(n);
    if done(attr::MODE) || done(attr::MODE_UMASK) {
        asked.mode = None;
    }
    asked.unmasked = None;
    if done(attr::OWNER) {
        asked.uid = None;
    }
    if done(attr::OWNER_GROUP) {
        asked.gid = None;
    }
    if done(attr::SIZE) || asked.size_bytes == Some(0) {
        asked.size_bytes = None;
    }
    // A time that the client did not ask for is the verifier.
    let left = |asked: Option<SetTime>, time, set| match asked {
        Some(_) if done(set) => None,
        None if attrset.has(time) || attrset.has(set) => Some(SetTime::Now),
        asked => asked,
    };
    asked.atime = left(asked.atime, attr::TIME_ACCESS, attr::TIME_ACCESS_SET);
    asked.mtime = left(asked.mtime, attr::TIME_MODIFY, attr::TIME_MODIFY_SET);
    asked
}

/// Change of a directory in the types of the `Vfs` interface.
pub(crate) fn change_info(c: &hither_proto::nfs4::ChangeInfo) -> ChangeInfo {
    ChangeInfo { atomic: c.atomic, before: c.before, after: c.after, attrs: None }
}
