//! OPEN, CLOSE and OPEN_DOWNGRADE.
//!
//! An open by filehandle is one compound, and so is an open by path ([`Core::open_by_name`]). After
//! each change [`Core::settle`] makes the server's open state equal to the local one. An open whose
//! caller no longer waits is closed like any other.

use super::attrs::NODE_ATTRS;
use super::by_name::{ByName, Naming};
use super::call::{Answer, Compound};
use super::core::Core;
use super::fail::{Answered, Fail, is_state_lost};
use super::state::{Further, OpenState, Step, share, wire_fh};
use crate::writes::OpenMark;
use hither_proto::nfs4::{
    Attrs as WireAttrs, CreateHow, Nfsstat4, Op, OpenArgs, OpenClaim, OpenOk, StateOwner, Stateid, access,
    open,
};
use hither_vfs::{
    Access, Attrs, ChangeInfo, Create, Error, Fh, File, Name, Node, OpenAccess, OpenHow, OpenId, Opened,
    Read, RequestContext, SetAttr,
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
                self.open_by_name(cx, ByName { base, before, name }, how, naming).await?
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

    /// `ops` of an OPEN, and a READ at the end when first bytes are requested and available.
    pub(super) fn with_first_bytes(&self, mut ops: Vec<Op>, how: &OpenHow) -> Compound {
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

    pub(super) fn open_op(
        &self,
        owner: &[u8],
        how: &OpenHow,
        create: Option<CreateHow>,
        claim: OpenClaim,
    ) -> Op {
        Op::Open(OpenArgs {
            seqid: 0,
            share_access: share(how.access) | self.wanted_with(how.access.contains(OpenAccess::WRITE)),
            share_deny: open::SHARE_DENY_NONE,
            owner: StateOwner { clientid: 0, owner: owner.into() },
            how: create,
            claim,
        })
    }

    /// Registers a granted open, and the delegation of its reply.
    pub(super) fn granted(
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
    pub(super) async fn finish_open(
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
    pub(super) async fn may_open(
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

    pub(super) async fn or_close<T>(self: &Arc<Self>, id: OpenId, outcome: Answered<T>) -> Answered<T> {
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
        let _ending = self.closer.ending();
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
                self.release_soon(&entry.state).await;
            } else {
                self.release(&entry.state).await;
            }
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
            self.files.leaving.end(&state.file.fh);
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
            let (stateid, failed) = match step {
                Step::None => return Ok(()),
                Step::Close(stateid) => match self.send_close(&cx, state, seq(stateid)).await {
                    Ok(()) => {
                        state.gone(&stateid);
                        // An open by name has overtaken the CLOSE, and the server closed that open,
                        // too.
                        self.open_again(state).await;
                        continue;
                    }
                    Err(f) => (stateid, f),
                },
                Step::Downgrade(stateid, access) => {
                    match self.send_downgrade(&cx, state, seq(stateid), access).await {
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

    async fn send_close(
        self: &Arc<Self>,
        cx: &RequestContext,
        state: &Arc<OpenState>,
        stateid: Stateid,
    ) -> Answered<()> {
        // A server may refuse to close a locked file (ganesha does).
        self.drop_locks(state).await;
        let c = Compound::new("CLOSE", [Op::Putfh(wire_fh(&state.file.fh)), Op::close(stateid)]);
        let mut answer = self.compound(cx, c).await?;
        answer.results.putfh()?;
        answer.results.close()?;
        Ok(())
    }

    async fn send_downgrade(
        self: &Arc<Self>,
        cx: &RequestContext,
        state: &Arc<OpenState>,
        stateid: Stateid,
        access: u32,
    ) -> Answered<Stateid> {
        let op = Op::open_downgrade(stateid, access, open::SHARE_DENY_NONE);
        let c = Compound::new("OPEN_DOWNGRADE", [Op::Putfh(wire_fh(&state.file.fh)), op]);
        let mut answer = self.compound(cx, c).await?;
        answer.results.putfh()?;
        Ok(answer.results.open_downgrade()?)
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

/// The rights that the open of an existing file needs and OPEN does not check. Servers grant OPEN
/// for reading to users with execute access, because a client must read a program to run it.
/// An open for reading with truncation needs the right to modify. The SETATTR alone would also
/// succeed for an owner without that right.
pub(super) fn right_to_open(how: &OpenHow) -> Option<u32> {
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
pub(super) fn cuts_at_once(how: &OpenHow) -> bool {
    how.truncate && right_to_open(how).is_none()
}

/// The granted rights among the requested ones.
pub(super) fn told_right(how: &OpenHow, answer: &mut Answer) -> Answered<u32> {
    match right_to_open(how) {
        Some(_) => Ok(answer.results.access()?.access),
        None => Ok(0),
    }
}

/// Operations on the opened file in the same compound.
pub(super) fn after_open(how: &OpenHow) -> Vec<Op> {
    let mut ops: Vec<Op> = right_to_open(how).map(Op::Access).into_iter().collect();
    if cuts_at_once(how) {
        let size = WireAttrs { size: Some(0), ..WireAttrs::default() };
        ops.push(Op::setattr(Stateid::CURRENT, size));
    }
    ops
}

/// Change of a directory in the types of the `Vfs` interface.
pub(crate) fn change_info(c: &hither_proto::nfs4::ChangeInfo) -> ChangeInfo {
    ChangeInfo { atomic: c.atomic, before: c.before, after: c.after, attrs: None }
}
