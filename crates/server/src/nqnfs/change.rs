//! The procedures that change files and directories.

use super::convert::{set, stat};
use super::read::walk;
use super::{At, Begun, Caller, Done, WRITE_LOCKS};
use crate::creator;
use crate::v4::delegation::{Changing, Naming, PATIENCE_V3, key};
use hither_lease::Op;
use hither_proto::nqnfs::{
    Asking, CreateArgs, DiropOk, Fattr, LeaseReply, LeaseRequest, LinkArgs, MkdirArgs, RenameArgs, Sattr,
    SetattrArgs, Stat, SymlinkArgs, WriteArgs,
};
use hither_vfs::{Data, FileKind, Name, Node, RenameFlags, SetAttr, Special, Stability};

impl At<'_> {
    /// The lock that orders the writes to this file.
    fn write_lock(&self) -> &tokio::sync::Mutex<()> {
        &self.c.r.server.nqnfs.writes[key(&self.fh).0[0] as usize % WRITE_LOCKS]
    }

    /// Begins a change of this object without a lease for the caller. [`Begun::done`] records the
    /// result.
    async fn begin_change(&self) -> Result<Begun, Stat> {
        Ok(self.begin(Op::Write, LeaseRequest::None).await?.1)
    }

    /// Begins a change of names in this directory. Recalls NFSv4 delegations of the directory and
    /// prevents new ones. NQNFS clients lease no directories.
    async fn begin_entries(&self) -> Result<Changing, Stat> {
        let changing = self.c.leases().change_entries(None, &self.fh, PATIENCE_V3).await;
        changing.map_err(|_| Stat::TRYLATER)
    }

    /// Begins a change of the object that a name in this directory leads to. Waits until no other
    /// client caches that file or directory, and prevents new leases.
    async fn begin_name(&self, name: &Name) -> Result<(Naming, Option<Begun>), Stat> {
        let mut naming = self.c.leases().naming(true);
        // A failed look-up is ignored: the operation itself then fails in the same way.
        let begun = match walk(self, name).await {
            Ok(node) if node.attrs.attr.kind == FileKind::Regular => {
                Some(self.with(node.fh).begin_change().await?)
            }
            Ok(node) if node.attrs.attr.kind == FileKind::Directory => {
                let dir = self.with(node.fh);
                naming.file = Some((dir.fh.clone(), dir.begin_entries().await?));
                None
            }
            _ => None,
        };
        Ok((naming, begun))
    }
}

pub(super) async fn setattr(c: &Caller<'_>, a: &Asking<SetattrArgs>) -> Done<Fattr> {
    let at = c.at_to_change(&a.args.file).await?;
    let set = set(&a.args.attributes).ok_or(Stat::IO)?;
    let (_, mut begun) = at.begin(Op::Write, a.lease).await?;
    let _turn = at.write_lock().lock().await;
    let attr = at.export.vfs.setattr(&at.cx, at.file(), &set).await.map_err(|e| stat(&e))?.attr;
    let revision = begun.done(&at, attr.change);
    Ok((begun.lease(revision), at.wire(&attr, revision)))
}

pub(super) async fn write(c: &Caller<'_>, a: Asking<WriteArgs>) -> Done<Fattr> {
    let at = c.at_to_change(&a.args.file).await?;
    if a.args.data.len() > c.r.server.options.io_max_bytes as usize {
        return Err(Stat::FBIG);
    }
    // A write without a lease request is a write under the client's lease, or a delayed write.
    let delayed = a.lease == LeaseRequest::None;
    let (_, mut begun) = at.begin_any(Op::Write, a.lease, delayed).await?;
    let _turn = at.write_lock().lock().await;
    let offset = if a.args.append { at.attr().await?.size_bytes } else { a.args.offset };
    let len = a.args.data.len() as u64;
    if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Stat::FBIG);
    }
    let data = Data::from(a.args.data.0);
    let wrote = at.export.vfs.write(&at.cx, at.file(), offset, data, Stability::Stable).await;
    let wrote = wrote.map_err(|e| stat(&e))?;
    let attr = match wrote.attrs {
        Some(attrs) => attrs.attr,
        None => at.attr().await?,
    };
    let revision = begun.done(&at, attr.change);
    if wrote.bytes < len {
        // The reply has no field for the number of written bytes.
        return Err(Stat::NOSPC);
    }
    Ok((begun.lease(revision), at.wire(&attr, revision)))
}

pub(super) async fn create(c: &Caller<'_>, a: &Asking<CreateArgs>) -> Done<DiropOk> {
    let (dir, name) = c.entry(&a.args.r#where).await?;
    let wanted = creator::allowed(set(&a.args.attributes).ok_or(Stat::IO)?, &dir.cx.cred);
    let first = SetAttr { size_bytes: None, ..wanted };
    let what = special(&a.args.attributes);
    let entries = dir.begin_entries().await?;
    let made = dir.export.vfs.mknod(&dir.cx, &dir.fh, &name, &what, &first).await;
    let (node, old) = match made {
        Ok(made) => (made.node, false),
        Err(e) if e.errno == libc::EEXIST && what == Special::Regular => (walk(&dir, &name).await?, true),
        Err(e) => return Err(stat(&e)),
    };
    drop(entries);
    if node.attrs.attr.kind != FileKind::Regular {
        return match what {
            Special::Regular => Err(Stat::EXIST),
            _ => Ok((LeaseReply::None, made_ok(&dir, node)?)),
        };
    }
    let at = dir.with(node.fh);
    // An existing file is truncated, together with the delayed writes of other clients. The
    // requested lease is granted on new and old files.
    let size = wanted.size_bytes.filter(|size| old || *size > 0);
    let op = if size.is_some() { Op::Write } else { Op::Read };
    let (mut attr, mut begun) = at.begin(op, a.lease).await?;
    if size.is_some_and(|size| size != attr.size_bytes) {
        let _turn = at.write_lock().lock().await;
        let size = SetAttr { size_bytes: size, ..SetAttr::default() };
        attr = at.export.vfs.setattr(&at.cx, at.file(), &size).await.map_err(|e| stat(&e))?.attr;
    }
    let revision = begun.done(&at, attr.change);
    let ok = DiropOk { file: at.handle(&at.fh)?, attributes: at.wire(&attr, revision) };
    Ok((begun.lease(revision), ok))
}

/// The kind of object that CREATE makes. The type is in the mode and a device's number is in the
/// size, as in 4.2BSD and its descendants.
fn special(s: &Sattr) -> Special {
    let number = s.size as u32;
    let device = (number >> 8 & 0xff, number & 0xff | number >> 8 & !0xff);
    match s.mode & 0o170_000 {
        _ if s.mode == u32::MAX => Special::Regular,
        0o010_000 => Special::Fifo,
        0o140_000 => Special::Socket,
        0o020_000 => Special::CharDevice(device.0, device.1),
        0o060_000 => Special::BlockDevice(device.0, device.1),
        _ => Special::Regular,
    }
}

fn made_ok(dir: &At<'_>, node: Node) -> Result<DiropOk, Stat> {
    // No client caches a new object, and directories are never cached.
    let revision = dir.c.leases().act(|inner, _| inner.table.revision(key(&node.fh)));
    Ok(DiropOk { file: dir.handle(&node.fh)?, attributes: dir.wire(&node.attrs.attr, revision) })
}

pub(super) async fn mkdir(c: &Caller<'_>, a: &Asking<MkdirArgs>) -> Done<DiropOk> {
    let (dir, name) = c.entry(&a.args.r#where).await?;
    let set = set(&Sattr { size: u64::MAX, ..a.args.attributes }).ok_or(Stat::IO)?;
    let set = creator::allowed(set, &dir.cx.cred);
    let _entries = dir.begin_entries().await?;
    let made = dir.export.vfs.mkdir(&dir.cx, &dir.fh, &name, &set).await.map_err(|e| stat(&e))?;
    Ok((LeaseReply::None, made_ok(&dir, made.node)?))
}

pub(super) async fn symlink(c: &Caller<'_>, a: &Asking<SymlinkArgs>) -> Done<()> {
    let (dir, name) = c.entry(&a.args.from).await?;
    // A copy, because the text may be kept longer than the message.
    let target = bytes::Bytes::copy_from_slice(&a.args.to);
    let sattr = Sattr { mode: u32::MAX, size: u64::MAX, ..a.args.attributes };
    let set = creator::allowed(set(&sattr).ok_or(Stat::IO)?, &dir.cx.cred);
    let _entries = dir.begin_entries().await?;
    dir.export.vfs.symlink(&dir.cx, &dir.fh, &name, &target, &set).await.map_err(|e| stat(&e))?;
    Ok((LeaseReply::None, ()))
}

pub(super) async fn remove(c: &Caller<'_>, what: &hither_proto::nqnfs::Diropargs, is_dir: bool) -> Done<()> {
    let (dir, name) = c.entry(what).await.map_err(|status| match status {
        // '.' and '..' are never removed.
        Stat::EXIST => Stat::IO,
        status => status,
    })?;
    let vfs = &dir.export.vfs;
    let _entries = dir.begin_entries().await?;
    let _changing = dir.begin_name(&name).await?;
    let result = if is_dir {
        vfs.rmdir(&dir.cx, &dir.fh, &name).await
    } else {
        vfs.unlink(&dir.cx, &dir.fh, &name, None).await
    };
    result.map_err(|e| stat(&e))?;
    Ok((LeaseReply::None, ()))
}

pub(super) async fn rename(c: &Caller<'_>, a: &Asking<RenameArgs>) -> Done<()> {
    let (from, old) = c.entry(&a.args.from).await?;
    let (to, new) = c.entry(&a.args.to).await?;
    if from.export.number != to.export.number {
        return Err(Stat::IO);
    }
    let _entries = (from.begin_entries().await?, to.begin_entries().await?);
    let _from = from.begin_name(&old).await?;
    let _to = to.begin_name(&new).await?;
    let vfs = &from.export.vfs;
    let result = vfs.rename(&from.cx, (&from.fh, &old), (&to.fh, &new), None, RenameFlags::empty()).await;
    result.map_err(|e| stat(&e))?;
    Ok((LeaseReply::None, ()))
}

pub(super) async fn link(c: &Caller<'_>, a: &Asking<LinkArgs>) -> Done<()> {
    let file = c.at_to_change(&a.args.from).await?;
    let (dir, name) = c.entry(&a.args.to).await?;
    if file.export.number != dir.export.number {
        return Err(Stat::IO);
    }
    let _begun = file.begin_change().await?;
    let _entries = dir.begin_entries().await?;
    dir.export.vfs.link(&dir.cx, &file.fh, &dir.fh, &name).await.map_err(|e| stat(&e))?;
    Ok((LeaseReply::None, ()))
}
