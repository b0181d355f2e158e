//! The procedures that change nothing, except READDIR and READDIRLOOK.

use super::convert::stat;
use super::{At, Begun, Caller, Done, name, request};
use hither_lease::Op;
use hither_proto::nqnfs::{
    AccessArgs, Asking, Fattr, GetattrArgs, GetleaseArgs, GetleaseOk, LeaseReply, LeaseRequest, LookupArgs,
    LookupOk, PATH_MAX_BYTES, Path, ReadArgs, ReadOk, ReadlinkArgs, Stat, StatfsArgs, StatfsOk,
};
use hither_vfs::{Access, Attr, FileKind, Node, PathRef, Stop, WalkRequest};

pub(super) async fn getattr(c: &Caller<'_>, a: &Asking<GetattrArgs>) -> Done<Fattr> {
    let at = c.at(&a.args.file).await?;
    let (attr, begun) = at.begin(Op::Read, a.lease).await?;
    Ok((begun.lease(begun.revision), at.wire(&attr, begun.revision)))
}

pub(super) async fn getlease(c: &Caller<'_>, a: &Asking<GetleaseArgs>) -> Done<GetleaseOk> {
    let at = c.at(&a.args.file).await?;
    let (attr, begun) = at.begin(Op::Lease, request(a.args.rw, a.args.duration)).await?;
    let wire = at.wire(&attr, begun.revision);
    let (cachable, duration, rev) = match begun.lease(begun.revision) {
        LeaseReply::Read(l) | LeaseReply::Write(l) => (l.cachable, l.duration, l.rev),
        // Without a lease the duration is zero.
        LeaseReply::None | LeaseReply::Other(_) => (false, 0, begun.revision),
    };
    Ok((LeaseReply::None, GetleaseOk { cachable, duration, rev, attr: wire }))
}

pub(super) async fn lookup(c: &Caller<'_>, a: &Asking<LookupArgs>) -> Done<LookupOk> {
    let dir = c.at(&a.args.dir).await?;
    let mut found = find(&dir, &a.args.name).await?;
    for _ in 0..LOOKUP_ROUNDS {
        let file = dir.handle(&found.fh)?;
        let at = dir.with(found.fh.clone());
        // The reply has attributes, so delayed writes must arrive first, with or without a lease
        // request.
        let (attr, begun) = at.begin(Op::Read, LeaseRequest::Read(a.args.duration)).await?;
        let attr = at.wire(&attr, begun.revision);
        let lookup_lease = begun.lease(begun.revision);
        if lookup_lease != LeaseReply::None {
            // The client trusts the name under the lease. A rename before the grant did not end the
            // lease, so the name is looked up again.
            let again = find(&dir, &a.args.name).await?;
            if again.fh != found.fh {
                found = again;
                continue;
            }
        }
        return Ok((LeaseReply::None, LookupOk { lookup_lease, file, attr }));
    }
    Err(Stat::TRYLATER)
}

/// Most look-ups of a name that leads to another file each time. After them the call gets "try
/// later".
const LOOKUP_ROUNDS: u32 = 4;

async fn find(dir: &At<'_>, wanted: &hither_proto::nqnfs::Filename) -> Result<Node, Stat> {
    match &wanted[..] {
        b"." => itself(dir).await,
        b".." => above(dir).await,
        _ => walk(dir, &name(wanted)?).await,
    }
}

async fn itself(dir: &At<'_>) -> Result<Node, Stat> {
    let attrs = dir.export.vfs.getattr(&dir.cx, dir.file()).await.map_err(|e| stat(&e))?;
    Ok(Node { fh: dir.fh.clone(), attrs })
}

/// The parent directory. The root of an export is its own parent.
pub(super) async fn above(dir: &At<'_>) -> Result<Node, Stat> {
    if dir.export.is_root(&dir.fh) {
        return itself(dir).await;
    }
    match dir.export.vfs.parent(&dir.cx, &dir.fh).await {
        Err(e) if e.errno == libc::ENOENT => itself(dir).await,
        parent => parent.map_err(|e| stat(&e)),
    }
}

/// The object that a name leads to.
pub(super) async fn walk(dir: &At<'_>, name: &hither_vfs::Name) -> Result<Node, Stat> {
    let trail = dir.export.vfs.walk(&dir.cx, PathRef::name(&dir.fh, name), WalkRequest::default()).await;
    let trail = trail.map_err(|e| stat(&e))?;
    match (trail.stop, trail.steps.into_iter().next()) {
        (Stop::Complete | Stop::Limit, Some(node)) => Ok(node),
        (Stop::Missing(_), _) => Err(Stat::NOENT),
        (Stop::Symlink | Stop::NotDirectory, _) => Err(Stat::NOTDIR),
        (Stop::Failed(e), _) => Err(stat(&e)),
        (Stop::Complete | Stop::Limit, None) => Err(Stat::IO),
    }
}

pub(super) async fn readlink(c: &Caller<'_>, a: &Asking<ReadlinkArgs>) -> Done<Path> {
    let at = c.at(&a.args.file).await?;
    let text = at.export.vfs.readlink(&at.cx, &at.fh).await.map_err(|e| stat(&e))?;
    if text.len() > PATH_MAX_BYTES {
        return Err(Stat::NAMETOOLONG);
    }
    Ok((LeaseReply::None, text.into()))
}

pub(super) async fn read(c: &Caller<'_>, a: &Asking<ReadArgs>) -> Done<ReadOk> {
    let at = c.at(&a.args.file).await?;
    let (_, begun) = at.begin(Op::Read, a.lease).await?;
    let count = a.args.count.min(c.r.server.options.io_max_bytes);
    let read = at.export.vfs.read(&at.cx, at.file(), a.args.offset, count).await;
    let read = read.map_err(|e| stat(&e))?;
    let attributes = at.wire(&at.attr().await?, begun.revision);
    Ok((begun.lease(begun.revision), ReadOk { attributes, data: read.data.into_bytes().into() }))
}

pub(super) async fn access(c: &Caller<'_>, a: &Asking<AccessArgs>) -> Done<()> {
    let at = c.at(&a.args.file).await?;
    let (attr, begun): (Attr, Begun) = at.begin(Op::Read, a.lease).await?;
    let dir = attr.kind == FileKind::Directory;
    let mut want = Access::default();
    if a.args.read {
        want |= Access::READ;
    }
    if a.args.write {
        want |= if dir {
            Access::MODIFY | Access::EXTEND | Access::DELETE
        } else {
            Access::MODIFY | Access::EXTEND
        };
    }
    if a.args.exec {
        want |= if dir { Access::LOOKUP } else { Access::EXECUTE };
    }
    if a.args.write && at.rights.read_only {
        return Err(Stat::ROFS);
    }
    let may = at.export.vfs.access(&at.cx, &at.fh, want).await.map_err(|e| stat(&e))?;
    if may.contains(want) { Ok((begun.lease(begun.revision), ())) } else { Err(Stat::ACCES) }
}

pub(super) async fn statfs(c: &Caller<'_>, a: &Asking<StatfsArgs>) -> Done<StatfsOk> {
    let at = c.at(&a.args.file).await?;
    let s = at.export.vfs.statfs(&at.cx, &at.fh).await.map_err(|e| stat(&e))?;
    // All clients store numbers of blocks in at least 31 bits. Large file systems therefore get
    // large blocks.
    let mut bsize = 4096;
    while s.total_bytes / u64::from(bsize) > i32::MAX as u64 && bsize < 1 << 30 {
        bsize *= 2;
    }
    let blocks = |bytes: u64| u32::try_from(bytes / u64::from(bsize)).unwrap_or(u32::MAX);
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let ok = StatfsOk {
        tsize: c.r.server.options.io_max_bytes,
        bsize,
        blocks: blocks(s.total_bytes),
        bfree: blocks(s.free_bytes),
        bavail: blocks(s.avail_bytes),
        files: count(s.total_files),
        files_free: count(s.avail_files),
    };
    Ok((LeaseReply::None, ok))
}
