//! Operations on names and attributes: LOOKUP, ACCESS, READLINK, CREATE, REMOVE, RENAME, LINK,
//! SETATTR.
//!
//! A run of LOOKUPs is one walk. Operations that only read the found object (GETFH, GETATTR,
//! ACCESS, READDIR, VERIFY, SAVEFH) may stand between the LOOKUPs. Clients that look up a whole
//! path send such compounds. In a gateway the walk also brings the bytes that a READ behind it
//! asks for.

use super::acl;
use super::attrs::{OF_HOLDER, SETTABLE, SETTABLE_LATER, to_create, to_set};
use super::delegation::HolderTimes;
use super::exec::{Exec, Here, Object};
use super::state::State;
use crate::error::stat4;
use bytes::Bytes;
use hither_proto::nfs4::{
    AccessOk, Ace, Bitmap4, ChangeInfo as WireChange, Component, CreateArgs, CreateOk, CreateType,
    LINKTEXT_MAX_BYTES, Linktext, Nfsstat4, Op, OpenClaim, RenameArgs, RenameOk, SetattrArgs, SetattrFail,
    access, attr, open,
};
use hither_vfs::{
    Access, Attrs, ChangeInfo, Cred, FileKind, Name, OpenAccess, PathRef, PosixAcls, RenameFlags,
    RequestContext, SetAttr, Special, Stop, WalkRequest, WalkResult,
};
use std::sync::Arc;

/// Longest run of LOOKUPs in one walk.
const WALK_MAX: usize = 256;

/// Most bytes of a file that its walk brings.
const FIRST_BYTES_MAX: u32 = 64 << 10;

/// Rights that the `Vfs` has under the same bits.
const RIGHTS: u32 =
    access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE | access::EXECUTE;
/// Extended attributes need the same rights as data (RFC 8276 section 8.4.1).
const XATTR_READ: u32 = access::XAREAD | access::XALIST;

/// Checks the name of an object.
pub(super) fn name(wire: &Bytes) -> Result<Name, Nfsstat4> {
    match &wire[..] {
        [] => Err(Nfsstat4::INVAL),
        b"." | b".." => Err(Nfsstat4::BADNAME),
        name if name.iter().any(|b| *b == b'/' || *b == 0) => Err(Nfsstat4::BADCHAR),
        _ => Name::new(Bytes::copy_from_slice(wire)).map_err(|e| stat4(&e)),
    }
}

/// Whether an operation only reads the current object, so that a walk goes on behind it.
fn reads_only(op: &Op) -> bool {
    matches!(
        op,
        Op::Getfh
            | Op::Getattr(_)
            | Op::Access(_)
            | Op::Readdir(_)
            | Op::Verify(_)
            | Op::Nverify(_)
            | Op::Savefh
    )
}

/// The names of the LOOKUPs that follow, up to the first other change of the current object.
fn path_of(rest: &[Op]) -> Vec<Name> {
    let names = rest.iter().filter(|op| !reads_only(op)).map_while(|op| match op {
        Op::Lookup(wire) => name(wire).ok(),
        _ => None,
    });
    names.take(WALK_MAX - 1).collect()
}

/// The bytes that the operations behind the LOOKUPs of `rest` read from the start of the file, if
/// they open it for reading. hither's own client reads a small file with its lookup.
fn first_bytes_of(rest: &[Op]) -> u32 {
    let mut behind = rest.iter().filter(|op| !reads_only(op)).skip_while(|op| matches!(op, Op::Lookup(_)));
    match (behind.next(), behind.next()) {
        (Some(Op::Open(open)), Some(Op::Read(read)))
            if matches!(open.claim, OpenClaim::Fh)
                && open.how.is_none()
                && open.share_access & open::SHARE_ACCESS_BOTH == open::SHARE_ACCESS_READ
                && read.offset == 0 =>
        {
            read.count.min(FIRST_BYTES_MAX)
        }
        _ => 0,
    }
}

/// The extras of a walk. The caches of a gateway keep the first bytes for the operations that
/// follow, so that lookup, open and read of a small file are one message to the origin.
fn wanted_with(dir: &Object, rest: &[Op]) -> WalkRequest {
    let read_bytes = if dir.export.is_of_gateway() { first_bytes_of(rest) } else { 0 };
    WalkRequest { read_bytes, ..WalkRequest::default() }
}

/// A directory's change on the wire.
pub(super) fn wire_change(c: &ChangeInfo) -> WireChange {
    WireChange { atomic: c.atomic, before: c.before, after: c.after }
}

impl Exec<'_> {
    pub(super) async fn lookup(&mut self, wanted: &Bytes, rest: &[Op]) -> Result<(), Nfsstat4> {
        let dir = match self.here()?.clone() {
            Here::Above(at) => return self.lookup_above(at, wanted).await,
            Here::Object(dir) => dir,
        };
        let first = name(wanted)?;
        if self.ahead.is_empty() && self.ahead_stop.is_none() {
            let path: Vec<_> = std::iter::once(first).chain(path_of(rest)).collect();
            let at = PathRef { base: &dir.fh, path: &path };
            let trail = dir.export.vfs.walk(&dir.cx, at, wanted_with(&dir, rest)).await;
            self.keep_ahead(trail.map_err(|e| stat4(&e))?);
        }
        if let Some(node) = self.ahead.pop_front() {
            if let Some(inside) = self.r.crossing(&dir.export, &node.fh) {
                // The rest of the walk found objects in the covered directory.
                let root = self.root_of(inside).await?;
                self.go(Here::Object(root));
                return Ok(());
            }
            self.stateid = None;
            self.current = Some(Here::Object(dir.with(node)));
            return Ok(());
        }
        match self.ahead_stop.take() {
            Some(Stop::Missing(_)) => Err(Nfsstat4::NOENT),
            Some(Stop::Symlink) => Err(Nfsstat4::SYMLINK),
            Some(Stop::NotDirectory) => Err(Nfsstat4::NOTDIR),
            Some(Stop::Failed(e)) => Err(stat4(&e)),
            Some(Stop::Complete | Stop::Limit) | None => Err(Nfsstat4::SERVERFAULT),
        }
    }

    /// Walks the path of the LOOKUPs in `rest`, before a GETATTR of the directory where they begin.
    /// One message to the origin of a gateway then has the directory's attributes and all objects.
    /// Without this, each would be a message, because a GETATTR does not use older attributes.
    pub(super) async fn look_ahead(&mut self, rest: &[Op]) {
        if !self.ahead.is_empty() || self.ahead_stop.is_some() {
            return;
        }
        let path = path_of(rest);
        let Some(Here::Object(dir)) = &mut self.current else { return };
        if path.is_empty() || dir.known.is_some() {
            return;
        }
        let at = PathRef { base: &dir.fh, path: &path };
        let cx = dir.cx.fresh(self.r.began);
        let Ok(trail) = dir.export.vfs.walk(&cx, at, wanted_with(dir, rest)).await else { return };
        dir.known = trail.along.base.clone().filter(|base| base.asked >= self.r.began);
        self.keep_ahead(trail);
    }

    fn keep_ahead(&mut self, trail: WalkResult) {
        self.ahead = trail.steps.into();
        self.ahead_stop = match trail.stop {
            Stop::Complete | Stop::Limit => None,
            stop => Some(stop),
        };
    }

    async fn lookup_above(&mut self, at: usize, wanted: &Bytes) -> Result<(), Nfsstat4> {
        name(wanted)?;
        let child = self.r.table.place(at).children.get(&wanted[..]).copied();
        let visible = child.filter(|c| self.r.table.is_visible(*c, &self.r.peer));
        let here = self.at_place(visible.ok_or(Nfsstat4::NOENT)?).await?;
        self.go(here);
        Ok(())
    }

    pub(super) async fn access(&mut self, asked: u32) -> Result<AccessOk, Nfsstat4> {
        let xattrs = if self.minor >= 2 { XATTR_READ | access::XAWRITE } else { 0 };
        let supported = asked & (RIGHTS | xattrs);
        let o = match self.here()?.clone() {
            Here::Above(_) => {
                let access = supported & (access::READ | access::LOOKUP | XATTR_READ);
                return Ok(AccessOk { supported, access });
            }
            Here::Object(o) => o,
        };
        let mut want = Access::from_bits_truncate(supported & RIGHTS);
        want.set(Access::READ, supported & (access::READ | XATTR_READ) != 0);
        want.set(Access::MODIFY, supported & (access::MODIFY | access::XAWRITE) != 0);
        let mut may = o.export.vfs.access(&o.cx, &o.fh, want).await.map_err(|e| stat4(&e))?;
        if o.rights.read_only {
            may -= Access::MODIFY | Access::EXTEND | Access::DELETE;
        }
        let mut access = may.bits() & RIGHTS;
        if may.contains(Access::READ) {
            access |= XATTR_READ;
        }
        if may.contains(Access::MODIFY) {
            access |= access::XAWRITE;
        }
        Ok(AccessOk { supported, access: access & supported })
    }

    pub(super) async fn readlink(&mut self) -> Result<Linktext, Nfsstat4> {
        let o = self.object(Nfsstat4::WRONG_TYPE)?;
        let text = o.export.vfs.readlink(&o.cx, &o.fh).await;
        text.map(Into::into).map_err(|e| match e.errno {
            libc::EINVAL => Nfsstat4::WRONG_TYPE,
            _ => stat4(&e),
        })
    }

    /// SETATTR. A failure names the attributes that were set before it (RFC 8881 section 18.30.3).
    pub(super) async fn setattr(&mut self, a: &SetattrArgs) -> Result<Bitmap4, SetattrFail> {
        let o = self.object(Nfsstat4::ROFS)?.writable()?;
        let set = to_set(&a.attrs, SETTABLE_LATER, self.have(&o))?;
        let times = self.times_of_holder(&o, a)?;
        let acls = match a.attrs.acl() {
            Some(aces) => Some(self.acls_of(&o, aces).await?),
            None => None,
        };
        let open = match set.size_bytes {
            Some(_) => self.open_for(&o, &a.stateid, OpenAccess::WRITE).await?,
            None => None,
        };
        let of_holder = set.size_bytes.is_some() || times.is_some();
        let held = open.is_some() || of_holder && self.is_held(&o, &a.stateid);
        let _changing = self.for_change(&o, held).await?;
        self.changed();
        let all = a.attrs.mask();
        let first = all.without(attr::ACL).difference(OF_HOLDER);
        let after = |done: Bitmap4| move |status| SetattrFail { status, attrsset: done };
        let mut attrs = match times {
            Some(times) if set == SetAttr::default() && acls.is_none() => {
                self.set_holder_times(&o, times, true).await?
            }
            times => {
                // With an ACL or times of a holder, this is only the first of several changes, so
                // the journal does not name it.
                let cx = if acls.is_none() && times.is_none() { self.named(&o.cx) } else { o.cx.clone() };
                let file = o.file(open.as_ref().map(|b| b.id));
                let attrs = o.export.vfs.setattr(&cx, file, &set).await.map_err(|e| stat4(&e))?;
                match times {
                    Some(times) => self.set_holder_times(&o, times, false).await.map_err(after(first))?,
                    None => attrs,
                }
            }
        };
        if let Some(client) = self.client.as_ref().filter(|_| set.mtime.is_some() || set.atime.is_some()) {
            self.nfs.leases.times_were_set(client, &o.fh, &attrs.attr);
        }
        if let (Some(acls), Some(extra)) = (acls, &o.export.extra) {
            // The ACL is set after the mode, because it replaces the mode's permissions (RFC 8881
            // section 6.4.1.3).
            let set = extra.set_acls(&o.cx, &o.fh, &acls).await.map_err(|e| stat4(&e));
            attrs = set.map_err(after(all.without(attr::ACL)))?;
        }
        if let Some(Here::Object(here)) = &mut self.current {
            here.known = Some(attrs);
        }
        Ok(all)
    }

    /// The times that a SETATTR by the holder of a write delegation presents, as far as the server
    /// accepts them (RFC 9754 section 5). `None` when it presents none.
    ///
    /// # Errors
    /// `BAD_STATEID`: the client does not maintain the times under this stateid. `DELEG_REVOKED`:
    /// no longer. `INVAL`: a time is invalid, or is also set without the delegation.
    fn times_of_holder(&self, o: &Object, a: &SetattrArgs) -> Result<Option<HolderTimes>, Nfsstat4> {
        let presented = HolderTimes::of(&a.attrs)?;
        if presented.is_none() {
            return Ok(None);
        }
        let twice = presented.access.is_some() && a.attrs.time_access_set.is_some()
            || presented.modify.is_some() && a.attrs.time_modify_set.is_some();
        if twice {
            return Err(Nfsstat4::INVAL);
        }
        match self.nfs.registry.find(&*self.client()?, &self.actual(&a.stateid)?)? {
            State::Delegation(d) if d.is_revoked() => Err(Nfsstat4::DELEG_REVOKED),
            State::Delegation(d) if d.file == o.key() => {
                let original = d.original_times().ok_or(Nfsstat4::BAD_STATEID)?;
                Ok(Some(self.nfs.leases.accepted_times(original, presented)))
            }
            _ => Err(Nfsstat4::BAD_STATEID),
        }
    }

    /// Sets accepted times of a holder. The holder need not own the file: it was open for writing,
    /// and these times lie between the grant and the present. `named`: the journal names the call.
    async fn set_holder_times(&self, o: &Object, times: HolderTimes, named: bool) -> Result<Attrs, Nfsstat4> {
        let attrs = o.export.vfs.getattr(&o.cx, o.file(None)).await.map_err(|e| stat4(&e))?;
        let Some(set) = times.to_set() else { return Ok(attrs) };
        let owner = Cred { uid: attrs.attr.uid, gid: attrs.attr.gid, ..Cred::root() };
        let cx = if named { self.named(&o.cx) } else { o.cx.clone() };
        let cx = RequestContext { cred: Arc::new(owner), ..cx };
        o.export.vfs.setattr(&cx, o.file(None), &set).await.map_err(|e| stat4(&e))
    }

    /// Converts the ACLs for an object. The caller must own the object. This is checked here, so
    /// that a SETATTR without the right to set an ACL sets no other attribute either.
    async fn acls_of(&self, o: &Object, aces: &[Ace]) -> Result<PosixAcls, Nfsstat4> {
        let attr = self.attrs(o).await?.attr;
        let acls = match attr.kind {
            FileKind::Symlink => return Err(Nfsstat4::ATTRNOTSUPP),
            kind => acl::from_wire(aces, kind == FileKind::Directory)?,
        };
        let owns = o.cx.cred.uid == 0 || o.cx.cred.uid == attr.uid;
        if owns { Ok(acls) } else { Err(Nfsstat4::PERM) }
    }

    pub(super) async fn create(&mut self, a: &CreateArgs) -> Result<CreateOk, Nfsstat4> {
        let dir = self.object(Nfsstat4::ROFS)?.writable()?;
        let name = name(&a.objname)?;
        let (set, attrset) = to_create(&a.createattrs, SETTABLE.without(attr::SIZE), &dir, self.have(&dir))?;
        let vfs = &dir.export.vfs;
        let special = |what| Some((what, set.clone()));
        let special = match &a.objtype {
            CreateType::Block(d) => special(Special::BlockDevice(d.major, d.minor)),
            CreateType::Char(d) => special(Special::CharDevice(d.major, d.minor)),
            CreateType::Socket => special(Special::Socket),
            CreateType::Fifo => special(Special::Fifo),
            CreateType::Dir | CreateType::Link(_) => None,
            CreateType::Other(_) => return Err(Nfsstat4::BADTYPE),
        };
        let _entries = self.for_entries(&dir).await?;
        let cx = self.named(&dir.cx);
        let made = match (&a.objtype, special) {
            (_, Some((what, set))) => vfs.mknod(&cx, &dir.fh, &name, &what, &set).await,
            (CreateType::Link(text), _) => {
                if text.is_empty() {
                    return Err(Nfsstat4::INVAL);
                }
                if text.len() > LINKTEXT_MAX_BYTES {
                    return Err(Nfsstat4::NAMETOOLONG);
                }
                let set = SetAttr { mode: None, ..set };
                vfs.symlink(&cx, &dir.fh, &name, &Bytes::copy_from_slice(text), &set).await
            }
            _ => vfs.mkdir(&cx, &dir.fh, &name, &set).await,
        };
        let made = made.map_err(|e| stat4(&e))?;
        self.changed();
        self.go(Here::Object(dir.with(made.node)));
        Ok(CreateOk { cinfo: wire_change(&made.dir), attrset })
    }

    pub(super) async fn remove(&mut self, wanted: &Component) -> Result<WireChange, Nfsstat4> {
        let dir = self.object(Nfsstat4::ROFS)?.writable()?;
        let name = name(wanted)?;
        let vfs = &dir.export.vfs;
        let _entries = self.for_entries(&dir).await?;
        let naming = self.for_change_of(&dir, &name, true).await?;
        let cx = self.named(&dir.cx);
        let change = match vfs.unlink(&cx, &dir.fh, &name, None).await {
            Err(e) if e.errno == libc::EISDIR => {
                let gone = vfs.rmdir(&cx, &dir.fh, &name).await;
                if let (Ok(_), Some((fh, _))) = (&gone, &naming.file) {
                    // The client itself may hold a delegation of the directory. It knows the
                    // directory by its filehandle, not by the removed name.
                    self.nfs.leases.changed_elsewhere(fh);
                }
                gone
            }
            other => other,
        };
        self.changed();
        change.map(|c| wire_change(&c)).map_err(|e| stat4(&e))
    }

    pub(super) async fn rename(&mut self, a: &RenameArgs) -> Result<RenameOk, Nfsstat4> {
        let to = self.object(Nfsstat4::ROFS)?.writable()?;
        let from = self.saved_object()?.writable()?;
        let (old, new) = (name(&a.oldname)?, name(&a.newname)?);
        if from.export.number != to.export.number {
            return Err(Nfsstat4::XDEV);
        }
        let vfs = &to.export.vfs;
        let flags = RenameFlags::empty();
        let _entries = (self.for_entries(&from).await?, self.for_entries(&to).await?);
        let _naming =
            (self.for_change_of(&from, &old, true).await?, self.for_change_of(&to, &new, true).await?);
        let result = vfs.rename(&self.named(&to.cx), (&from.fh, &old), (&to.fh, &new), None, flags).await;
        self.changed();
        let moved = result.map_err(|e| stat4(&e))?;
        Ok(RenameOk { source_cinfo: wire_change(&moved.from), target_cinfo: wire_change(&moved.to) })
    }

    pub(super) async fn link(&mut self, wanted: &Component) -> Result<WireChange, Nfsstat4> {
        let dir = self.object(Nfsstat4::ROFS)?.writable()?;
        let file = self.saved_object()?.writable()?;
        let name = name(wanted)?;
        if file.export.number != dir.export.number {
            return Err(Nfsstat4::XDEV);
        }
        let _changing = (self.for_change(&file, false).await?, self.for_entries(&dir).await?);
        let made = dir.export.vfs.link(&self.named(&dir.cx), &file.fh, &dir.fh, &name).await;
        self.changed();
        made.map(|m| wire_change(&m.dir)).map_err(|e| stat4(&e))
    }
}
