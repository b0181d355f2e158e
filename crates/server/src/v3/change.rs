//! The procedures that change files and directories.

use super::convert::{set, to_wire};
use super::{At, UNKNOWN, entry};
use crate::creator;
use crate::error::stat3;
use crate::exclusive::{is_of_verifier, verifier_times};
use crate::server::Request;
use hither_proto::nfs3::*;
use hither_vfs::{
    Attr, Data, FileKind, Made, Name, Node, PathRef, RenameFlags, RequestContext, SetAttr, SetTime, Special,
    Stability, Stop, WalkRequest,
};

pub(super) async fn setattr(r: &Request, a: &SetattrArgs) -> SetattrRes {
    let at = match At::to_change(r, &a.object).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    let before = match at.attr().await {
        Ok(attr) => attr,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    if a.guard.is_some_and(|ctime| ctime != to_wire(before.ctime)) {
        return Res::Err(Nfsstat3::NOT_SYNC, at.wcc(Some(&before), None).await);
    }
    let _changing = match at.for_change(r, &at.fh).await {
        Ok(changing) => changing,
        Err(status) => return Res::Err(status, at.wcc(Some(&before), None).await),
    };
    let Some(set) = set(&a.new_attributes) else {
        return Res::Err(Nfsstat3::INVAL, at.wcc(Some(&before), None).await);
    };
    match at.export.vfs.setattr(&at.cx, at.file(), &set).await {
        Ok(attrs) => Res::Ok(WccData { before: None, after: Some(at.wire(&attrs.attr)) }),
        Err(e) => Res::Err(stat3(&e), at.wcc(None, None).await),
    }
}

pub(super) async fn write(r: &Request, a: WriteArgs) -> WriteRes {
    let at = match At::to_change(r, &a.file).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    let most = r.server.options.io_max_bytes;
    if a.count as usize > a.data.len() || a.stable.name().is_none() {
        return Res::Err(Nfsstat3::INVAL, at.wcc(None, None).await);
    }
    let len = a.count.min(most) as usize;
    let (stability, committed) = match a.stable {
        StableHow::UNSTABLE => (Stability::Unstable, StableHow::UNSTABLE),
        _ => (Stability::Stable, StableHow::FILE_SYNC),
    };
    let _changing = match at.for_change(r, &at.fh).await {
        Ok(changing) => changing,
        Err(status) => return Res::Err(status, at.wcc(None, None).await),
    };
    // Read before the write: a verifier that changes during the write must not cover this data.
    let verf = r.server.write_verifier(&at.export);
    let data = Data::from(a.data.0.slice(..len));
    match at.export.vfs.write(&at.cx, at.file(), a.offset, data, stability).await {
        Ok(wrote) => {
            let after = match wrote.attrs {
                Some(attrs) => Some(at.wire(&attrs.attr)),
                None => at.after().await,
            };
            let file_wcc = WccData { before: None, after };
            Res::Ok(WriteOk { file_wcc, count: wrote.bytes as u32, committed, verf })
        }
        Err(e) => Res::Err(stat3(&e), at.wcc(None, None).await),
    }
}

pub(super) async fn commit(r: &Request, a: &CommitArgs) -> CommitRes {
    let at = match At::to_change(r, &a.file).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    match at.export.vfs.commit(&at.cx, at.file()).await {
        Ok(()) => {
            // Read after the commit. An error that another COMMIT got has changed it before.
            let verf = r.server.write_verifier(&at.export);
            Res::Ok(CommitOk { file_wcc: at.wcc(None, None).await, verf })
        }
        Err(e) => {
            r.server.commit_failed(&e);
            Res::Err(stat3(&e), at.wcc(None, None).await)
        }
    }
}

pub(super) async fn create(r: &Request, a: &CreateArgs) -> CreateRes {
    let (dir, name) = match entry(r, &a.r#where).await {
        Ok(found) => found,
        Err(Nfsstat3::ROFS) => return exists_read_only(r, a).await,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    let before = dir.attr().await.ok();
    let _entries = match dir.for_entries(r).await {
        Ok(changing) => changing,
        Err(status) => return created(&dir, before, Err(status)).await,
    };
    let result = match &a.how {
        Createhow3::Unchecked(sattr) => unchecked(r, &dir, &name, sattr).await,
        Createhow3::Guarded(sattr) => guarded(&dir, &name, sattr).await,
        Createhow3::Exclusive(verf) => exclusive(&dir, &name, verf).await,
    };
    created(&dir, before, result).await
}

/// CREATE in a read-only export. It succeeds when the file exists and stays unchanged.
async fn exists_read_only(r: &Request, a: &CreateArgs) -> CreateRes {
    let found = async {
        let dir = At::of(r, &a.r#where.dir).await?;
        let name = super::name(&a.r#where.name)?;
        Ok::<_, Nfsstat3>((existing(&dir, &name).await, dir))
    };
    let (found, dir) = match found.await {
        Ok(found) => found,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    let result = match (found, &a.how) {
        (Err(Nfsstat3::NOENT), _) => Err(Nfsstat3::ROFS),
        (Err(status), _) => Err(status),
        (Ok(old), Createhow3::Unchecked(set)) if old.attrs.attr.kind == FileKind::Regular => {
            if set.size.is_some() { Err(Nfsstat3::ROFS) } else { Ok(Got::Old(old)) }
        }
        (Ok(_), _) => Err(Nfsstat3::EXIST),
    };
    created(&dir, None, result).await
}

/// Most attempts to make a file while another program makes and removes its name.
const TRIES: usize = 8;

/// A new object, or an existing one that satisfies the call.
enum Got {
    New(Made),
    Old(Node),
}

async fn guarded(dir: &At, name: &Name, sattr: &Sattr3) -> Result<Got, Nfsstat3> {
    let set = creator::allowed(set(sattr).ok_or(Nfsstat3::INVAL)?, &dir.cx.cred);
    let first = SetAttr { size_bytes: None, ..set };
    let has_size = set.size_bytes.is_some_and(|size| size > 0);
    // The journal names the call with its last step, which is the resize when there is one.
    let call = dir.cx.call.clone().filter(|_| !has_size);
    let cx = RequestContext { call, ..dir.cx.clone() };
    let made = dir.export.vfs.mknod(&cx, &dir.fh, name, &Special::Regular, &first).await;
    let mut made = made.map_err(|e| stat3(&e))?;
    if has_size {
        match resize(dir, &mut made.node, set.size_bytes).await {
            // Another program has removed the new file. The creation succeeded all the same.
            Err(Nfsstat3::STALE) => {}
            done => done?,
        }
    }
    Ok(Got::New(made))
}

async fn resize(dir: &At, node: &mut Node, size_bytes: Option<u64>) -> Result<(), Nfsstat3> {
    let set = SetAttr { size_bytes, ..SetAttr::default() };
    let file = hither_vfs::File { fh: &node.fh, open: None };
    node.attrs = dir.export.vfs.setattr(&dir.cx, file, &set).await.map_err(|e| stat3(&e))?;
    Ok(())
}

async fn unchecked(r: &Request, dir: &At, name: &Name, sattr: &Sattr3) -> Result<Got, Nfsstat3> {
    let mut last = Nfsstat3::JUKEBOX;
    for _ in 0..TRIES {
        match guarded(dir, name, sattr).await {
            Err(Nfsstat3::EXIST) => {}
            other => return other,
        }
        match existing_as(r, dir, name, sattr).await {
            // The existing file has been removed in the meantime.
            Err(status @ (Nfsstat3::NOENT | Nfsstat3::STALE)) => last = status,
            other => return other,
        }
        dir.attr().await?;
    }
    Err(last)
}

/// The existing object of that name, if it satisfies the call.
async fn existing_as(r: &Request, dir: &At, name: &Name, sattr: &Sattr3) -> Result<Got, Nfsstat3> {
    let mut old = existing(dir, name).await?;
    if old.attrs.attr.kind != FileKind::Regular {
        return Err(Nfsstat3::EXIST);
    }
    if sattr.size.is_some() {
        let _changing = dir.for_change(r, &old.fh).await?;
        resize(dir, &mut old, sattr.size).await?;
    }
    Ok(Got::Old(old))
}

async fn existing(dir: &At, name: &Name) -> Result<Node, Nfsstat3> {
    let trail = dir.export.vfs.walk(&dir.cx, PathRef::name(&dir.fh, name), WalkRequest::default()).await;
    let trail = trail.map_err(|e| stat3(&e))?;
    match (trail.steps.into_iter().next(), trail.stop) {
        (Some(node), _) => Ok(node),
        (None, Stop::Failed(e)) => Err(stat3(&e)),
        (None, _) => Err(Nfsstat3::NOENT),
    }
}

async fn exclusive(dir: &At, name: &Name, verf: &Createverf3) -> Result<Got, Nfsstat3> {
    let (atime, mtime) = verifier_times(verf);
    let set = SetAttr {
        mode: Some(0o600),
        atime: Some(SetTime::To(atime)),
        mtime: Some(SetTime::To(mtime)),
        ..SetAttr::default()
    };
    for _ in 0..TRIES {
        match dir.export.vfs.mknod(&dir.cx, &dir.fh, name, &Special::Regular, &set).await {
            Ok(made) => return Ok(Got::New(made)),
            Err(e) if e.errno == libc::EEXIST => {}
            Err(e) => return Err(stat3(&e)),
        }
        match existing(dir, name).await {
            Ok(old) if is_of_verifier(&old.attrs.attr, verf) => return Ok(Got::Old(old)),
            // The existing file has been removed in the meantime.
            Err(Nfsstat3::NOENT) => {}
            Ok(_) => break,
            Err(status) => return Err(status),
        }
    }
    Err(Nfsstat3::EXIST)
}

async fn created(dir: &At, before: Option<Attr>, result: Result<Got, Nfsstat3>) -> CreateRes {
    match result {
        Ok(Got::New(made)) => Res::Ok(CreateOk {
            obj: dir.handle(&made.node.fh),
            obj_attributes: Some(dir.wire(&made.node.attrs.attr)),
            dir_wcc: dir.wcc(before.as_ref(), Some(&made.dir)).await,
        }),
        Ok(Got::Old(node)) => Res::Ok(CreateOk {
            obj: dir.handle(&node.fh),
            obj_attributes: Some(dir.wire(&node.attrs.attr)),
            dir_wcc: dir.wcc(before.as_ref(), None).await,
        }),
        Err(status) => Res::Err(status, dir.wcc(before.as_ref(), None).await),
    }
}

/// An object to make.
enum What {
    Dir,
    Symlink(bytes::Bytes),
    Special(Special),
}

pub(super) async fn mkdir(r: &Request, a: &MkdirArgs) -> CreateRes {
    make(r, &a.r#where, &a.attributes, What::Dir).await
}

pub(super) async fn symlink(r: &Request, a: &SymlinkArgs) -> CreateRes {
    // A copy, because the text may be kept longer than the message.
    if a.symlink_data.len() > PATH_MAX_BYTES {
        return Res::Err(Nfsstat3::NAMETOOLONG, UNKNOWN);
    }
    let target = bytes::Bytes::copy_from_slice(&a.symlink_data);
    let attributes = Sattr3 { mode: None, ..a.symlink_attributes };
    make(r, &a.r#where, &attributes, What::Symlink(target)).await
}

pub(super) async fn mknod(r: &Request, a: &MknodArgs) -> CreateRes {
    let device = |d: &Devicedata3| (d.spec.specdata1, d.spec.specdata2);
    let (what, attributes) = match &a.what {
        Mknoddata3::Blk(d) => (Special::BlockDevice(device(d).0, device(d).1), &d.dev_attributes),
        Mknoddata3::Chr(d) => (Special::CharDevice(device(d).0, device(d).1), &d.dev_attributes),
        Mknoddata3::Sock(attributes) => (Special::Socket, attributes),
        Mknoddata3::Fifo(attributes) => (Special::Fifo, attributes),
        Mknoddata3::Other(_) => return Res::Err(Nfsstat3::BADTYPE, UNKNOWN),
    };
    make(r, &a.r#where, attributes, What::Special(what)).await
}

async fn make(r: &Request, at: &Diropargs3, attributes: &Sattr3, what: What) -> CreateRes {
    let (dir, name) = match entry(r, at).await {
        Ok(found) => found,
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    let before = dir.attr().await.ok();
    let Some(set) = set(&Sattr3 { size: None, ..*attributes }) else {
        return Res::Err(Nfsstat3::INVAL, dir.wcc(before.as_ref(), None).await);
    };
    let _entries = match dir.for_entries(r).await {
        Ok(changing) => changing,
        Err(status) => return Res::Err(status, dir.wcc(before.as_ref(), None).await),
    };
    let set = creator::allowed(set, &dir.cx.cred);
    let vfs = &dir.export.vfs;
    let made = match &what {
        What::Dir => vfs.mkdir(&dir.cx, &dir.fh, &name, &set).await,
        What::Symlink(target) => vfs.symlink(&dir.cx, &dir.fh, &name, target, &set).await,
        What::Special(what) => vfs.mknod(&dir.cx, &dir.fh, &name, what, &set).await,
    };
    created(&dir, before, made.map(Got::New).map_err(|e| stat3(&e))).await
}

pub(super) async fn remove(r: &Request, what: &Diropargs3, is_dir: bool) -> RemoveRes {
    let (dir, name) = match entry(r, what).await {
        Ok(found) => found,
        // '.' and '..' are never removed.
        Err(Nfsstat3::EXIST) => return Res::Err(Nfsstat3::INVAL, UNKNOWN),
        Err(status) => return Res::Err(status, UNKNOWN),
    };
    let before = dir.attr().await.ok();
    let both = async { Ok::<_, Nfsstat3>((dir.for_entries(r).await?, dir.for_change_of(r, &name).await?)) };
    let _changing = match both.await {
        Ok(changing) => changing,
        Err(status) => return Res::Err(status, dir.wcc(before.as_ref(), None).await),
    };
    let vfs = &dir.export.vfs;
    let result = if is_dir {
        vfs.rmdir(&dir.cx, &dir.fh, &name).await
    } else {
        vfs.unlink(&dir.cx, &dir.fh, &name, None).await
    };
    match result {
        Ok(change) => Res::Ok(dir.wcc(before.as_ref(), Some(&change)).await),
        Err(e) => Res::Err(stat3(&e), dir.wcc(before.as_ref(), None).await),
    }
}

pub(super) async fn rename(r: &Request, a: &RenameArgs) -> RenameRes {
    let nothing = RenameWcc { fromdir_wcc: UNKNOWN, todir_wcc: UNKNOWN };
    let both = async { Ok::<_, Nfsstat3>((entry(r, &a.from).await?, entry(r, &a.to).await?)) };
    let ((from, old), (to, new)) = match both.await {
        Ok(both) => both,
        Err(Nfsstat3::EXIST) => return Res::Err(Nfsstat3::INVAL, nothing),
        Err(status) => return Res::Err(status, nothing),
    };
    if from.export.number != to.export.number {
        return Res::Err(Nfsstat3::XDEV, nothing);
    }
    let all = async {
        let entries = (from.for_entries(r).await?, to.for_entries(r).await?);
        Ok::<_, Nfsstat3>((entries, from.for_change_of(r, &old).await?, to.for_change_of(r, &new).await?))
    };
    let _changing = match all.await {
        Ok(changing) => changing,
        Err(status) => return Res::Err(status, nothing),
    };
    let before = (from.attr().await.ok(), to.attr().await.ok());
    let vfs = &from.export.vfs;
    let result = vfs.rename(&from.cx, (&from.fh, &old), (&to.fh, &new), None, RenameFlags::empty()).await;
    let (moved, error) = match result {
        Ok(moved) => (Some(moved), None),
        Err(e) => (None, Some(stat3(&e))),
    };
    let wcc = RenameWcc {
        fromdir_wcc: from.wcc(before.0.as_ref(), moved.as_ref().map(|m| &m.from)).await,
        todir_wcc: to.wcc(before.1.as_ref(), moved.as_ref().map(|m| &m.to)).await,
    };
    match error {
        None => Res::Ok(wcc),
        Some(status) => Res::Err(status, wcc),
    }
}

pub(super) async fn link(r: &Request, a: &LinkArgs) -> LinkRes {
    let nothing = LinkWcc { file_attributes: None, linkdir_wcc: UNKNOWN };
    let both = async { Ok::<_, Nfsstat3>((At::to_change(r, &a.file).await?, entry(r, &a.link).await?)) };
    let (file, (dir, name)) = match both.await {
        Ok(both) => both,
        Err(status) => return Res::Err(status, nothing),
    };
    if file.export.number != dir.export.number {
        return Res::Err(Nfsstat3::XDEV, nothing);
    }
    let both = async { Ok::<_, Nfsstat3>((dir.for_change(r, &file.fh).await?, dir.for_entries(r).await?)) };
    let _changing = match both.await {
        Ok(changing) => changing,
        Err(status) => return Res::Err(status, nothing),
    };
    let before = dir.attr().await.ok();
    match dir.export.vfs.link(&dir.cx, &file.fh, &dir.fh, &name).await {
        Ok(made) => Res::Ok(LinkWcc {
            file_attributes: Some(file.wire(&made.node.attrs.attr)),
            linkdir_wcc: dir.wcc(before.as_ref(), Some(&made.dir)).await,
        }),
        Err(e) => Res::Err(
            stat3(&e),
            LinkWcc {
                file_attributes: file.after().await,
                linkdir_wcc: dir.wcc(before.as_ref(), None).await,
            },
        ),
    }
}
