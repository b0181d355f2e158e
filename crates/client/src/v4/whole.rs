//! Whole objects in one compound. A file needs OPEN with creation, WRITE, SETATTR and CLOSE. Other
//! objects need CREATE. `batch` decides which objects share a compound.
//!
//! WRITE and CLOSE use the current stateid, and the opens have a separate owner, as in `bring`. A
//! creation that is sent again to a server without the session is not recognised. The caller then
//! finds the object (`EEXIST`), and knows the data that it wrote.

use super::attrs::NODE_ATTRS;
use super::bring::Turn;
use super::call::{Answer, Compound};
use super::core::Core;
use super::delegation::Noted;
use super::fail::{Answered, Fail};
use super::open::change_info;
use super::state::{own_fh, wire_fh, wire_name};
use hither_proto::nfs4::{
    Attrs as WireAttrs, CreateHow, CreateType, Op, OpenArgs, OpenClaim, OpenOk, StableHow, StateOwner,
    Stateid, attr, open,
};
use hither_vfs::{
    Creation, Data, Error, Fh, Made, Name, NewKind, Node, RequestContext, SetAttr, Stop, WalkRequest,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most operations for one object.
pub(crate) const CREATION_OPS: usize = 7;
/// Operations beside the objects: the directory's attributes afterwards.
pub(crate) const AROUND_OPS: usize = 2;

impl Core {
    /// See `Vfs::create_whole`; `None` when the bytes do not fit into one WRITE. Runs in its own
    /// task.
    pub async fn create_whole(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Answered<Option<Made>> {
        let new = Creation { name: name.clone(), kind: NewKind::File(data), set: set.clone() };
        if !self.fits(&new) {
            return Ok(None);
        }
        match self.create_some(cx, dir, &[new]).await?.pop() {
            Some(made) => made.map(Some),
            None => Err(Fail::Garbled),
        }
    }

    /// Whether an object can be created in one compound.
    pub fn fits(&self, new: &Creation) -> bool {
        new.len_bytes() <= self.facts().wsize as usize && new.set.size_bytes.is_none()
    }

    /// Creates objects in one compound. Returns the outcomes of the executed objects in order, at
    /// least one. The last outcome may be a failure. The objects after it were not executed.
    pub async fn create_some(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        new: &[Creation],
    ) -> Answered<Vec<Answered<Made>>> {
        // For several objects the filehandles are attributes, which saves one operation each.
        let getfh = new.len() == 1 || self.needs_getfh.load(Ordering::Relaxed);
        let turn = self.turn();
        let mut ops = Vec::with_capacity(new.len() * CREATION_OPS + AROUND_OPS);
        for one in new {
            self.creation_ops(dir, one, &turn, getfh, &mut ops).await;
        }
        ops.extend([Op::Putfh(wire_fh(dir)), Op::Getattr(NODE_ATTRS)]);
        let label =
            if new.iter().any(|one| matches!(one.kind, NewKind::File(_))) { "OPEN" } else { "CREATE" };
        let mut answer = self.compound(cx, Compound::new(label, ops)).await?;
        let mut out: Vec<Answered<Made>> = Vec::with_capacity(new.len());
        for one in new {
            if !out.is_empty() && answer.results.remaining() == 0 {
                break;
            }
            let made = self.created(cx, dir, one, &turn, getfh, &mut answer).await;
            let failed = made.is_err();
            out.push(made);
            if failed {
                return Ok(out);
            }
        }
        if let (true, Some(Ok(last))) = (answer.results.putfh().is_ok(), out.last_mut()) {
            last.dir.attrs = self.dir_attrs(dir, &mut answer).await;
        }
        Ok(out)
    }

    async fn creation_ops(&self, dir: &Fh, new: &Creation, turn: &Turn, getfh: bool, ops: &mut Vec<Op>) {
        ops.push(Op::Putfh(wire_fh(dir)));
        let times = SetAttr { atime: new.set.atime, mtime: new.set.mtime, ..SetAttr::default() };
        let at_once = SetAttr { atime: None, mtime: None, ..new.set.clone() };
        match &new.kind {
            NewKind::File(_) => ops.push(Op::Open(OpenArgs {
                seqid: 0,
                share_access: open::SHARE_ACCESS_WRITE | open::WANT_NO_DELEG,
                share_deny: open::SHARE_DENY_NONE,
                owner: StateOwner { clientid: 0, owner: turn.owner().clone().into() },
                how: Some(CreateHow::Guarded(self.wire_set(&at_once).await)),
                claim: OpenClaim::Null(wire_name(&new.name)),
            })),
            kind => {
                let what = match kind {
                    NewKind::Link(target) => CreateType::Link(target.clone().into()),
                    _ => CreateType::Dir,
                };
                ops.push(Op::create(what, new.name.as_bytes(), self.wire_set(&at_once).await));
            }
        }
        if getfh {
            ops.push(Op::Getfh);
        }
        if let (NewKind::File(data), true) = (&new.kind, new.len_bytes() > 0) {
            let bytes = data.clone().into_bytes();
            ops.push(Op::write(Stateid::CURRENT, 0, StableHow::FILE_SYNC, bytes));
        }
        if times != SetAttr::default() {
            ops.push(Op::setattr(Stateid::ANONYMOUS, self.wire_set(&times).await));
        }
        if matches!(new.kind, NewKind::File(_)) {
            ops.push(Op::close(Stateid::CURRENT));
        }
        ops.push(Op::Getattr(if getfh { NODE_ATTRS } else { NODE_ATTRS.with(attr::FILEHANDLE) }));
    }

    /// Reads the results of one object.
    async fn created(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        new: &Creation,
        turn: &Arc<Turn>,
        getfh: bool,
        answer: &mut Answer,
    ) -> Answered<Made> {
        answer.results.putfh()?;
        let (opened, cinfo) = match &new.kind {
            NewKind::File(_) => {
                let ok = answer.results.open()?;
                let cinfo = change_info(&ok.cinfo);
                (Some(ok), cinfo)
            }
            _ => (None, change_info(&answer.results.create()?.cinfo)),
        };
        let mut fh = None;
        let filled = filled(new, getfh, answer, &mut fh);
        if let (Err(_), Some(ok)) = (&filled, &opened) {
            self.leave_open(cx, (dir, &new.name), fh.clone(), ok, turn);
        }
        filled?;
        let wire: Option<WireAttrs> = answer.results.getattr().ok();
        let fh = fh.or_else(|| wire.as_ref().and_then(|wire| wire.filehandle.as_ref().map(own_fh)));
        let node = match (fh, wire) {
            (Some(fh), Some(wire)) => Node { attrs: self.attrs(&fh, &wire, answer.asked).await?, fh },
            (Some(fh), None) => Node { attrs: self.getattr(cx, &fh).await?, fh },
            (None, wire) => {
                if wire.is_some() {
                    self.needs_getfh.store(true, Ordering::Relaxed);
                }
                self.just_made(cx, dir, &new.name).await?
            }
        };
        if let Some(ok) = &opened {
            // The client did not request a delegation.
            self.note_delegation(&node.fh, ok);
            self.delegations.note(&node.fh, Noted::of(&node.attrs.attr));
        }
        Ok(Made { node, dir: cinfo })
    }

    /// Looks up an object that was just created.
    async fn just_made(self: &Arc<Self>, cx: &RequestContext, dir: &Fh, name: &Name) -> Answered<Node> {
        let mut trail = self.walk(cx, dir, std::slice::from_ref(name), WalkRequest::default()).await?;
        match (trail.stop, trail.steps.pop()) {
            (Stop::Failed(e), _) => Err(e.into()),
            (_, Some(node)) => Ok(node),
            (_, None) => Err(Error::new(libc::ESTALE).into()),
        }
    }

    /// Closes a file when the compound ended between OPEN and CLOSE.
    fn leave_open(
        self: &Arc<Self>,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        fh: Option<Fh>,
        ok: &OpenOk,
        turn: &Arc<Turn>,
    ) {
        let (core, cx, dir, name) = (self.clone(), cx.clone(), dir.clone(), name.clone());
        let (ok, turn) = (ok.clone(), turn.clone());
        tokio::spawn(async move {
            let fh = match fh {
                Some(fh) => fh,
                None => match core.just_made(&cx, &dir, &name).await {
                    Ok(node) => node.fh,
                    Err(f) => return tracing::debug!("the file to close is missing: {}", Error::from(f)),
                },
            };
            core.note_delegation(&fh, &ok);
            core.close_brought(&fh, ok.stateid, &turn);
        });
    }
}

/// Reads the results between the creation of an object and its attributes.
fn filled(new: &Creation, getfh: bool, answer: &mut Answer, fh: &mut Option<Fh>) -> Answered<()> {
    if getfh {
        *fh = Some(own_fh(&answer.results.getfh()?));
    }
    let len = new.len_bytes();
    if len > 0 {
        let wrote = answer.results.write()?;
        if wrote.committed == StableHow::UNSTABLE || wrote.count as usize != len {
            return Err(Fail::from(Error::because(libc::ENOSPC, "the server wrote only a part of a file")));
        }
    }
    if new.set.atime.is_some() || new.set.mtime.is_some() {
        answer.results.setattr()?;
    }
    if matches!(new.kind, NewKind::File(_)) {
        answer.results.close()?;
    }
    Ok(())
}
