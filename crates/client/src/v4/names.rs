//! Names: creation, links, renames and removal.
//!
//! An open file must not lose its last name at a server that would then delete it. Such a file is
//! renamed to `.nfs…` in the same directory and removed after its last close ("silly rename"). A
//! file that a RENAME replaces gets such a name as a second link, so that the target name is never
//! absent.

use super::attrs::NODE_ATTRS;
use super::call::{Answer, Backoff, Compound, interruptible};
use super::core::Core;
use super::delegation::LastState;
use super::fail::{Answered, Fail};
use super::open::change_info;
use super::state::{Claim, FileState, Hidden, Removing, wire_fh, wire_name};
use crate::silly;
use hither_proto::nfs4::{
    Attrs as WireAttrs, CreateType, Ftype, Nfsstat4, Op, OpError, RenameArgs, RenameOk, Specdata,
};
use hither_vfs::{
    Access, ChangeInfo, Create, Error, Fh, Made, Moved, Name, Node, OpenAccess, OpenHow, RenameFlags,
    RequestContext, SetAttr, Special,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// The hidden name of a removed open file.
#[derive(Debug, Clone)]
pub(crate) struct Silly {
    /// Its directory.
    pub dir: Fh,
    /// Its name in the directory.
    pub name: Name,
}

impl Core {
    /// The rights of `want` that the caller has.
    pub async fn access(self: &Arc<Self>, cx: &RequestContext, fh: &Fh, want: Access) -> Answered<Access> {
        let ops = [Op::Putfh(wire_fh(fh)), Op::Access(want.bits())];
        let mut answer = self.compound(cx, Compound::new("ACCESS", ops)).await?;
        answer.results.putfh()?;
        let ok = answer.results.access()?;
        Ok(Access::from_bits_truncate(ok.access) & want)
    }

    /// Target of a symbolic link.
    pub async fn readlink(self: &Arc<Self>, cx: &RequestContext, fh: &Fh) -> Answered<bytes::Bytes> {
        let ops = [Op::Putfh(wire_fh(fh)), Op::Readlink];
        let mut answer = self.compound(cx, Compound::new("READLINK", ops)).await?;
        answer.results.putfh()?;
        Ok(bytes::Bytes::copy_from_slice(&answer.results.readlink()?))
    }

    /// The parent directory of `dir`: LOOKUPP (RFC 8881 section 18.14).
    pub async fn parent(self: &Arc<Self>, cx: &RequestContext, dir: &Fh) -> Answered<Node> {
        if self.facts().root == *dir {
            return Err(Error::new(libc::ENOENT).into());
        }
        let ops = [Op::Putfh(wire_fh(dir)), Op::Lookupp, Op::Getfh, Op::Getattr(NODE_ATTRS)];
        let mut answer = self.compound(cx, Compound::new("LOOKUPP", ops).uncached()).await?;
        answer.results.putfh()?;
        answer.results.lookupp()?;
        let fh = answer.results.getfh()?;
        let wire = answer.results.getattr()?;
        self.node(&fh, &wire, answer.asked).await
    }

    /// Creates any object except a regular file.
    pub async fn create(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: CreateType,
        set: &SetAttr,
    ) -> Answered<Made> {
        let label = if matches!(what, CreateType::Link(_)) { "SYMLINK" } else { "CREATE" };
        let attrs = self.wire_set(set).await;
        let ops = [
            Op::Putfh(wire_fh(dir)),
            Op::create(what, name.as_bytes(), attrs),
            Op::Getfh,
            Op::Getattr(NODE_ATTRS),
            Op::Putfh(wire_fh(dir)),
            Op::Getattr(NODE_ATTRS),
        ];
        let mut answer = self.compound(cx, Compound::new(label, ops)).await?;
        answer.results.putfh()?;
        let ok = answer.results.create()?;
        let fh = answer.results.getfh()?;
        let mut change = change_info(&ok.cinfo);
        let node = match answer.results.getattr() {
            Ok(wire) => {
                if answer.results.putfh().is_ok() {
                    change.attrs = self.dir_attrs(dir, &mut answer).await;
                }
                self.node(&fh, &wire, answer.asked).await?
            }
            Err(_) => {
                let fh = super::state::own_fh(&fh);
                Node { attrs: self.getattr(cx, &fh).await?, fh }
            }
        };
        Ok(Made { node, dir: change })
    }

    /// Creates a pipe, socket, device or unopened file.
    pub async fn mknod(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Answered<Made> {
        let device = |(major, minor)| Specdata { major, minor };
        let what = match *what {
            Special::Fifo => CreateType::Fifo,
            Special::Socket => CreateType::Socket,
            Special::CharDevice(a, b) => CreateType::Char(device((a, b))),
            Special::BlockDevice(a, b) => CreateType::Block(device((a, b))),
            Special::Regular => return self.create_closed(cx, dir, name, set).await,
        };
        self.create(cx, dir, name, what, set).await
    }

    /// Creates a regular file, which only OPEN can do, and closes it.
    async fn create_closed(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
    ) -> Answered<Made> {
        let create = Create::Exclusive(set.clone());
        let how = OpenHow { create, ..OpenHow::existing(OpenAccess::WRITE) };
        let opened = self.open(cx, dir, std::slice::from_ref(name), &how).await?;
        self.close_unwanted(opened.open);
        Ok(Made { node: opened.node, dir: opened.dir.unwrap_or_default() })
    }

    /// Creates a hard link.
    pub async fn link(
        self: &Arc<Self>,
        cx: &RequestContext,
        fh: &Fh,
        dir: &Fh,
        name: &Name,
    ) -> Answered<Made> {
        let ops = [
            Op::Putfh(wire_fh(fh)),
            Op::Savefh,
            Op::Putfh(wire_fh(dir)),
            Op::Link(wire_name(name)),
            Op::Getattr(NODE_ATTRS),
            Op::Restorefh,
            Op::Getattr(NODE_ATTRS),
        ];
        let mut answer = self.compound(cx, Compound::new("LINK", ops)).await?;
        let results = &mut answer.results;
        results.putfh()?;
        results.savefh()?;
        results.putfh()?;
        let mut change = match results.link() {
            Ok(cinfo) => change_info(&cinfo),
            Err(e) if answer.repeated && e.status() == Some(Nfsstat4::EXIST) => {
                return if self.linked_before(cx, fh, (dir, name)).await? {
                    let node = Node { fh: fh.clone(), attrs: self.getattr(cx, fh).await? };
                    Ok(Made { node, dir: ChangeInfo::default() })
                } else {
                    Err(e.into())
                };
            }
            Err(e) => return Err(e.into()),
        };
        change.attrs = self.dir_attrs(dir, &mut answer).await;
        let after = answer.results.restorefh().and_then(|()| answer.results.getattr());
        let attrs = match after {
            Ok(wire) => {
                let named = self.valid.named(fh, self.attr(fh, &wire).await?, answer.asked);
                self.leased(fh, named)
            }
            Err(_) => self.getattr(cx, fh).await?,
        };
        Ok(Made { node: Node { fh: fh.clone(), attrs }, dir: change })
    }

    /// Removes a name of any object except a directory.
    pub async fn unlink(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Answered<ChangeInfo> {
        if silly::is_silly(name)
            && !cx.target_unused
            && let Some(fh) = target
            && let Claim::Open(_) = self.files.claim(fh).await
        {
            // Its last name: as in the Linux client, the last close removes it.
            return Err(Error::new(libc::EBUSY).into());
        }
        let found = match target {
            // Some files are open. A LOOKUP finds out whether this name is one of them.
            None if self.files.any() => self.leads_to(cx, (dir, name)).await?,
            target => target.cloned(),
        };
        let target = found.as_ref();
        let (hide, _alone) = self.claim_target(cx, target).await;
        match hide {
            Some(file) => self.silly_rename(cx, &file, dir, name).await,
            None => {
                let first = self.take_state(cx, target).await;
                self.remove_checked(cx, (dir, name), false, first).await
            }
        }
    }

    /// Removes an empty directory. A directory may contain only hidden names of files whose last
    /// close is in progress. The removal then waits for these names.
    pub async fn rmdir(self: &Arc<Self>, cx: &RequestContext, dir: &Fh, name: &Name) -> Answered<ChangeInfo> {
        let began = Instant::now();
        loop {
            let patience = self.files.hidden_names_go();
            match self.remove_checked(cx, (dir, name), true, LastState::default()).await {
                Err(Fail::Nfs(Nfsstat4::NOTEMPTY)) if began.elapsed() < patience => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                done => return done,
            }
        }
    }

    /// REMOVE after a check of the object's type, in one compound. REMOVE removes files and
    /// directories (RFC 8881 section 18.25), and another client may have put an object of the other
    /// kind under the name. Without the check when the server refuses to look. `first`: the file's
    /// state, which goes back before.
    ///
    /// # Errors
    /// `NOTDIR` or `ISDIR`: the object has the wrong type.
    async fn remove_checked(
        self: &Arc<Self>,
        cx: &RequestContext,
        (dir, name): (&Fh, &Name),
        is_dir: bool,
        first: LastState,
    ) -> Answered<ChangeInfo> {
        let directory = WireAttrs { ftype: Some(Ftype::DIR), ..WireAttrs::default() };
        let ops = vec![
            Op::Putfh(wire_fh(dir)),
            Op::Lookup(wire_name(name)),
            if is_dir { Op::Verify(directory) } else { Op::Nverify(directory) },
            Op::Putfh(wire_fh(dir)),
            Op::Remove(wire_name(name)),
            Op::Getattr(NODE_ATTRS),
        ];
        let mut answer = self.returning(cx, "REMOVE", first, ops).await?;
        answer.results.putfh()?;
        let looked = answer.results.lookup();
        let checked =
            looked.and_then(|()| if is_dir { answer.results.verify() } else { answer.results.nverify() });
        match checked.map_err(|e| e.status()) {
            Ok(()) => {}
            // The REMOVE was sent before and after a restart of the server: the first one removed
            // the name.
            Err(Some(Nfsstat4::NOENT)) if answer.repeated => return Ok(ChangeInfo::default()),
            Err(Some(Nfsstat4::NOENT)) => return Err(Fail::Nfs(Nfsstat4::NOENT)),
            Err(Some(Nfsstat4::NOT_SAME)) => return Err(Fail::Nfs(Nfsstat4::NOTDIR)),
            Err(Some(Nfsstat4::SAME)) => return Err(Fail::Nfs(Nfsstat4::ISDIR)),
            Err(_) => return self.remove(cx, dir, name, None).await,
        }
        answer.results.putfh()?;
        self.remove_answered(dir, &mut answer).await
    }

    /// REMOVE of a name of this client's own, or of an object of any type.
    pub async fn remove(
        self: &Arc<Self>,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Answered<ChangeInfo> {
        let first = self.take_state(cx, target).await;
        let ops = vec![Op::Putfh(wire_fh(dir)), Op::Remove(wire_name(name)), Op::Getattr(NODE_ATTRS)];
        let mut answer = self.returning(cx, "REMOVE", first, ops).await?;
        answer.results.putfh()?;
        self.remove_answered(dir, &mut answer).await
    }

    /// Reads the results of REMOVE and GETATTR.
    async fn remove_answered(self: &Arc<Self>, dir: &Fh, answer: &mut Answer) -> Answered<ChangeInfo> {
        match answer.results.remove() {
            Ok(cinfo) => {
                let attrs = self.dir_attrs(dir, answer).await;
                Ok(ChangeInfo { attrs, ..change_info(&cinfo) })
            }
            // The REMOVE was sent before and after a restart of the server: the first one removed
            // the name.
            Err(e) if answer.repeated && e.status() == Some(Nfsstat4::NOENT) => Ok(ChangeInfo::default()),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes the state of a file that is about to lose its last name.
    async fn take_state(self: &Arc<Self>, cx: &RequestContext, fh: Option<&Fh>) -> LastState {
        let Some(fh) = fh else { return LastState::default() };
        let closes = self.take_closes(cx, fh).await;
        LastState { closes, delegation: self.delegations.take(fh) }
    }

    /// Prepares the removal of a name of `target`. Returns the file when it is open and the server
    /// would delete it with its last name. Returns a guard against opens when it is not open.
    async fn claim_target(
        &self,
        cx: &RequestContext,
        target: Option<&Fh>,
    ) -> (Option<Arc<FileState>>, Option<Removing<'_>>) {
        let Some(fh) = target else { return (None, None) };
        match self.files.claim(fh).await {
            Claim::Alone(alone) => (None, Some(alone)),
            Claim::Open(file) => {
                let inner = file.inner.lock();
                let needs = !cx.target_unused && inner.silly.is_none() && !inner.preserved;
                drop(inner);
                (needs.then_some(file), None)
            }
        }
    }

    /// A new hidden name: other mounts of the directory must not choose the same.
    pub(super) fn silly_name(&self) -> Name {
        silly::name((self.env.random)(), (self.env.random)() as u32)
    }

    async fn silly_rename(
        self: &Arc<Self>,
        cx: &RequestContext,
        file: &Arc<FileState>,
        dir: &Fh,
        name: &Name,
    ) -> Answered<ChangeInfo> {
        let silly = self.silly_name();
        let ops = [
            Op::Putfh(wire_fh(dir)),
            Op::Savefh,
            Op::Rename(RenameArgs { oldname: wire_name(name), newname: wire_name(&silly) }),
            Op::Getattr(NODE_ATTRS),
        ];
        let mut answer = self.compound(cx, Compound::new("RENAME", ops)).await?;
        answer.results.putfh()?;
        answer.results.savefh()?;
        let renamed = answer.results.rename();
        match renamed {
            Ok(ok) => {
                self.hidden(&file.fh, Silly { dir: dir.clone(), name: silly }).await;
                let attrs = self.dir_attrs(dir, &mut answer).await;
                Ok(ChangeInfo { attrs, ..change_info(&ok.target_cinfo) })
            }
            Err(e) if answer.repeated && e.status() == Some(Nfsstat4::NOENT) => {
                if !self.linked_before(cx, &file.fh, (dir, &silly)).await? {
                    return Err(e.into());
                }
                self.hidden(&file.fh, Silly { dir: dir.clone(), name: silly }).await;
                Ok(ChangeInfo::default())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Records that the formerly open file has only this hidden name.
    async fn hidden(self: &Arc<Self>, fh: &Fh, silly: Silly) {
        // A close in progress finds the hidden name, or has ended.
        let _alone = loop {
            match self.files.claim(fh).await {
                Claim::Alone(alone) => break alone,
                Claim::Open(file) => match file.hide(&silly) {
                    Hidden::Now => {
                        self.files.silly.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    Hidden::Before => return self.remove_silly(&silly, None).await,
                    Hidden::NotOpen => {}
                },
            }
        };
        self.remove_silly(&silly, Some(fh)).await;
    }

    /// Removes the hidden name of a file after its last close. `fh` is the file when the name is
    /// its last. A listing that was read meanwhile may have the name.
    pub async fn remove_silly(self: &Arc<Self>, silly: &Silly, fh: Option<&Fh>) {
        match self.remove(&self.own_cx(), &silly.dir, &silly.name, fh).await {
            Ok(_) | Err(Fail::Nfs(Nfsstat4::NOENT | Nfsstat4::STALE)) => {
                self.delegations.changed_here(&silly.dir);
            }
            Err(f) => {
                tracing::warn!(name = ?silly.name, "a removed file remains at the server: {}", Error::from(f))
            }
        }
    }

    /// Renames.
    pub async fn rename(
        self: &Arc<Self>,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Answered<Moved> {
        if !flags.is_empty() {
            // NFSv4 has no RENAME with flags. The Linux client returns the same error, and programs
            // fall back.
            return Err(Error::new(libc::EINVAL).into());
        }
        let (mut delay, mut grace) = (Backoff::DELAY, Backoff::GRACE);
        loop {
            let (hide, _alone) = self.claim_target(cx, replaced).await;
            let hide = hide.map(|file| (file, self.silly_name()));
            let first = self.take_state(cx, replaced.filter(|_| hide.is_none())).await;
            match self.rename_once(cx, from, to, replaced, hide, first).await {
                // When the link for the replaced file was made first, the compound is not repeated
                // automatically. Some servers allow the link in their grace period.
                Err(Fail::Nfs(status @ (Nfsstat4::DELAY | Nfsstat4::GRACE))) => {
                    let wait = if status == Nfsstat4::GRACE { grace.step() } else { delay.step() };
                    interruptible(Some(&cx.cancel), tokio::time::sleep(wait)).await?;
                }
                Ok(moved) => {
                    self.files.note_renamed(from, to);
                    return Ok(moved);
                }
                Err(f) => return Err(f),
            }
        }
    }

    async fn rename_once(
        self: &Arc<Self>,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        hide: Option<(Arc<FileState>, Name)>,
        first: LastState,
    ) -> Answered<Moved> {
        let mut ops = Vec::with_capacity(8);
        if let Some((file, silly)) = &hide {
            let target = [Op::Putfh(wire_fh(&file.fh)), Op::Savefh, Op::Putfh(wire_fh(to.0))];
            ops.extend(target.into_iter().chain([Op::Link(wire_name(silly))]));
        }
        ops.extend([Op::Putfh(wire_fh(from.0)), Op::Savefh, Op::Putfh(wire_fh(to.0))]);
        ops.push(Op::Rename(RenameArgs { oldname: wire_name(from.1), newname: wire_name(to.1) }));
        // The old name may belong to another object than the client assumed.
        let object = [Op::Lookup(wire_name(to.1)), Op::Getfh, Op::Getattr(NODE_ATTRS)];
        ops.extend([Op::Getattr(NODE_ATTRS)].into_iter().chain(object));
        if from.0 != to.0 {
            ops.extend([Op::Restorefh, Op::Getattr(NODE_ATTRS)]);
        }
        let mut answer = self.returning(cx, "RENAME", first, ops).await?;
        if let Some((file, silly)) = hide {
            match read_link(&mut answer) {
                Err(e) if is_gone(e.status()) => {
                    return self.rename_over_other(cx, from, to, &file.fh, e).await;
                }
                Err(e) if is_no_link(e.status()) => {
                    // As the Linux client always does: the target name is absent for a moment.
                    self.silly_rename(cx, &file, to.0, to.1).await?;
                    return Box::pin(self.rename_once(cx, from, to, None, None, LastState::default())).await;
                }
                Err(e) if answer.repeated && e.status() == Some(Nfsstat4::EXIST) => {
                    // No other client chooses that name: the whole compound, or the link alone, was
                    // executed before.
                    let silly = Silly { dir: to.0.clone(), name: silly };
                    if self.renamed_before(cx, from, to, replaced).await? {
                        self.hidden(&file.fh, silly).await;
                        return Ok(Moved::default());
                    }
                    self.remove_silly(&silly, None).await;
                    return Err(Fail::Nfs(Nfsstat4::DELAY));
                }
                linked => linked?,
            };
            let silly = Silly { dir: to.0.clone(), name: silly };
            let renamed = read_rename(&mut answer);
            if renamed.is_ok() {
                self.hidden(&file.fh, silly).await;
            } else {
                self.remove_silly(&silly, None).await;
            }
            return self.renamed(renamed?, from.0, to.0, answer).await;
        }
        match read_rename(&mut answer) {
            Ok(ok) => self.renamed(ok, from.0, to.0, answer).await,
            Err(Fail::Nfs(Nfsstat4::NOENT)) if answer.repeated => {
                if self.renamed_before(cx, from, to, replaced).await? {
                    Ok(Moved::default())
                } else {
                    Err(Fail::Nfs(Nfsstat4::NOENT))
                }
            }
            Err(e) => Err(e),
        }
    }

    /// Renames over the object that has the target name, when another client has taken that name
    /// from the file `lost`. `e` is the answer about `lost`.
    async fn rename_over_other(
        self: &Arc<Self>,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        lost: &Fh,
        e: OpError,
    ) -> Answered<Moved> {
        match self.leads_to(cx, to).await? {
            Some(found) if found == *lost => Err(e.into()),
            found => Box::pin(self.rename(cx, from, to, found.as_ref(), RenameFlags::empty())).await,
        }
    }

    /// The changes of both directories and the object, with their attributes when the reply has
    /// them.
    async fn renamed(
        self: &Arc<Self>,
        ok: RenameOk,
        from: &Fh,
        to: &Fh,
        mut answer: Answer,
    ) -> Answered<Moved> {
        let (mut source, mut target) = (change_info(&ok.source_cinfo), change_info(&ok.target_cinfo));
        target.attrs = self.dir_attrs(to, &mut answer).await;
        let found =
            answer.results.lookup().and_then(|()| Ok((answer.results.getfh()?, answer.results.getattr()?)));
        let node = match found {
            Ok((fh, wire)) => self.node(&fh, &wire, answer.asked).await.ok(),
            // Another client has renamed or removed the object since.
            Err(_) => None,
        };
        if from == to {
            source.attrs.clone_from(&target.attrs);
        } else if answer.results.restorefh().is_ok() {
            source.attrs = self.dir_attrs(from, &mut answer).await;
        }
        let (object, attrs) = node.map(|node| (node.fh, node.attrs)).unzip();
        Ok(Moved { from: source, to: target, object, attrs })
    }
}

fn read_rename(answer: &mut Answer) -> Answered<RenameOk> {
    answer.results.putfh()?;
    answer.results.savefh()?;
    answer.results.putfh()?;
    Ok(answer.results.rename()?)
}

/// The hidden name of the replaced file, before a RENAME.
fn read_link(answer: &mut Answer) -> Result<(), OpError> {
    answer.results.putfh()?;
    answer.results.savefh()?;
    answer.results.putfh()?;
    answer.results.link().map(drop)
}

/// Whether a file has no name any more.
fn is_gone(status: Option<Nfsstat4>) -> bool {
    matches!(status, Some(Nfsstat4::NOENT | Nfsstat4::STALE))
}

/// Whether the file can have no second name.
fn is_no_link(status: Option<Nfsstat4>) -> bool {
    matches!(status, Some(Nfsstat4::NOTSUPP | Nfsstat4::MLINK | Nfsstat4::PERM | Nfsstat4::OP_ILLEGAL))
}
