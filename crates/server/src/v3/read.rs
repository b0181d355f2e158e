//! The procedures that change nothing, except READDIR and READDIRPLUS.

use super::{At, is_delayed, name};
use crate::error::stat3;
use crate::piped;
use crate::server::Request;
use hither_proto::nfs3::*;
use hither_proto::xdr::Enc;
use hither_rpc::server::Outcome;
use hither_vfs::{Access, PathRef, Stop, WalkRequest};

/// Preferred size of a READDIR reply, in bytes.
const LISTING_BYTES: u32 = 64 << 10;
/// READ and WRITE sizes should be multiples of this.
const BLOCK_BYTES: u32 = 4096;
/// Longest file, in bytes.
const FILE_MAX_BYTES: u64 = i64::MAX as u64;
/// Most hard links: the limit of ext4, which is the lowest of the usual file systems.
pub(crate) const LINK_MAX: u32 = 65_000;

pub(super) async fn getattr(r: &Request, a: &GetattrArgs) -> GetattrRes {
    match At::of(r, &a.object).await {
        Ok(at) => match at.look(r).await {
            Ok(attr) => Res::Ok(at.wire(&attr)),
            Err(status) => Res::Err(status, ()),
        },
        Err(status) => Res::Err(status, ()),
    }
}

pub(super) async fn lookup(r: &Request, a: &LookupArgs) -> LookupRes {
    let dir = match At::of(r, &a.what.dir).await {
        Ok(dir) => dir,
        Err(status) => return Res::Err(status, None),
    };
    match look(r, &dir, &a.what.name).await {
        Ok(ok) => Res::Ok(ok),
        Err((status, attr)) => Res::Err(status, attr),
    }
}

async fn look(r: &Request, dir: &At, wanted: &Name3) -> Result<LookupOk, (Nfsstat3, PostOpAttr)> {
    if matches!(&wanted[..], b"." | b"..") {
        let attr = dir.attr().await.map_err(|status| (status, None))?;
        let base = Some(dir.wire(&attr));
        let above = if &wanted[..] == b".." { dir.above().await } else { Ok(None) };
        let (fh, attr) = match above.map_err(|status| (status, base))? {
            Some(node) => {
                dir.need_on_top(r, &node.fh).map_err(|status| (status, base))?;
                (node.fh, node.attrs.attr)
            }
            None => (dir.fh.clone(), attr),
        };
        let object = dir.handle(&fh).ok_or((Nfsstat3::SERVERFAULT, base))?;
        return Ok(LookupOk { object, obj_attributes: Some(dir.wire(&attr)), dir_attributes: base });
    }
    let wanted = name(wanted).map_err(|status| (status, None))?;
    let at = PathRef::name(&dir.fh, &wanted);
    let trail =
        dir.export.vfs.walk(&dir.cx, at, WalkRequest::default()).await.map_err(|e| (stat3(&e), None))?;
    let base = match trail.along.base {
        Some(base) => Some(dir.wire(&base.attr)),
        None => dir.after().await,
    };
    let status = match (trail.stop, trail.steps.first()) {
        (Stop::Complete | Stop::Limit, Some(node)) => {
            if let Some(inside) = dir.crossing(r, &node.fh) {
                let root = At::root_of(r, inside).await.map_err(|status| (status, base))?;
                let attr = root.attr().await.map_err(|status| (status, base))?;
                let object = root.handle(&root.fh).ok_or((Nfsstat3::SERVERFAULT, base))?;
                return Ok(LookupOk { object, obj_attributes: Some(root.wire(&attr)), dir_attributes: base });
            }
            let object = dir.handle(&node.fh).ok_or((Nfsstat3::SERVERFAULT, base))?;
            // While a client may delay writes to the file, the server's attributes may be wrong.
            let known = !is_delayed(r, &node.fh);
            let obj_attributes = known.then(|| dir.wire(&node.attrs.attr));
            return Ok(LookupOk { object, obj_attributes, dir_attributes: base });
        }
        (Stop::Missing(_), _) => Nfsstat3::NOENT,
        (Stop::Symlink | Stop::NotDirectory, _) => Nfsstat3::NOTDIR,
        (Stop::Failed(e), _) => stat3(&e),
        (Stop::Complete | Stop::Limit, None) => Nfsstat3::SERVERFAULT,
    };
    Err((status, base))
}

pub(super) async fn access(r: &Request, a: &AccessArgs) -> AccessRes {
    let at = match At::of(r, &a.object).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, None),
    };
    if let Err(status) = at.for_reading(r).await {
        return Res::Err(status, None);
    }
    let mut want = Access::from_bits_truncate(a.access);
    if at.rights.read_only {
        want -= Access::MODIFY | Access::EXTEND | Access::DELETE;
    }
    match at.export.vfs.access(&at.cx, &at.fh, want).await {
        Ok(may) => Res::Ok(AccessOk { obj_attributes: at.after().await, access: (may & want).bits() }),
        Err(e) => Res::Err(stat3(&e), at.after().await),
    }
}

pub(super) async fn readlink(r: &Request, a: &ReadlinkArgs) -> ReadlinkRes {
    let at = match At::of(r, &a.symlink).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, None),
    };
    match at.export.vfs.readlink(&at.cx, &at.fh).await {
        Ok(data) if data.len() <= PATH_MAX_BYTES => {
            Res::Ok(ReadlinkOk { symlink_attributes: at.after().await, data: data.into() })
        }
        Ok(_) => Res::Err(Nfsstat3::NAMETOOLONG, at.after().await),
        Err(e) => Res::Err(stat3(&e), at.after().await),
    }
}

/// READ of bytes in memory, through a pipe and without a copy. `None`: the caller uses the ordinary
/// way.
pub(super) async fn read_piped(r: &Request, a: &ReadArgs) -> Option<Outcome> {
    let at = At::of(r, &a.file).await.ok()?;
    let extra = at.export.extra.as_ref()?;
    // A READ that may have to wait for delayed writes uses the ordinary way.
    let v4 = &r.server.v4;
    if v4.may_be_dirty() || v4.leases.may_be_delayed() {
        return None;
    }
    let count = a.count.min(r.server.options.io_max_bytes);
    let read = extra.read_piped(&at.cx, at.file(), a.offset, count)?;
    let count = read.data.len() as u32;
    let file_attributes = at.after().await;
    let ok = ReadOk { file_attributes, count, eof: read.eof, data: Default::default() };
    let mut before = Enc::new();
    Reply3::Read(Res::Ok(ok)).encode(&mut before);
    let mut after = Enc::new();
    piped::around(&mut before, count, &mut after);
    Some(Outcome::Piped(before, piped::payload(read.data), after))
}

pub(super) async fn read(r: &Request, a: &ReadArgs) -> ReadRes {
    let at = match At::of(r, &a.file).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, None),
    };
    if let Err(status) = at.for_reading(r).await {
        return Res::Err(status, None);
    }
    let count = a.count.min(r.server.options.io_max_bytes);
    match at.export.vfs.read(&at.cx, at.file(), a.offset, count).await {
        Ok(read) => {
            let data = read.data.into_bytes();
            Res::Ok(ReadOk {
                file_attributes: at.after().await,
                count: data.len() as u32,
                eof: read.eof,
                data: data.into(),
            })
        }
        Err(e) => Res::Err(stat3(&e), at.after().await),
    }
}

pub(super) async fn fsstat(r: &Request, a: &FsstatArgs) -> FsstatRes {
    let at = match At::of(r, &a.fsroot).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, None),
    };
    match at.export.vfs.statfs(&at.cx, &at.fh).await {
        Ok(s) => Res::Ok(FsstatOk {
            obj_attributes: at.after().await,
            tbytes: s.total_bytes,
            fbytes: s.free_bytes,
            abytes: s.avail_bytes,
            tfiles: s.total_files,
            ffiles: s.free_files,
            afiles: s.avail_files,
            invarsec: 0,
        }),
        Err(e) => Res::Err(stat3(&e), at.after().await),
    }
}

pub(super) async fn fsinfo(r: &Request, a: &FsinfoArgs) -> FsinfoRes {
    let at = match At::of(r, &a.fsroot).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, None),
    };
    let most = r.server.options.io_max_bytes;
    match at.attr().await {
        Ok(attr) => Res::Ok(FsinfoOk {
            obj_attributes: Some(at.wire(&attr)),
            rtmax: most,
            rtpref: most,
            rtmult: BLOCK_BYTES,
            wtmax: most,
            wtpref: most,
            wtmult: BLOCK_BYTES,
            dtpref: LISTING_BYTES,
            maxfilesize: FILE_MAX_BYTES,
            time_delta: Nfstime3 { seconds: 0, nseconds: 1 },
            properties: fsf::LINK
                | fsf::SYMLINK
                | fsf::HOMOGENEOUS
                | fsf::CANSETTIME
                | if at.export.is_of_gateway() { fsf::OLD_BESIDE } else { 0 },
        }),
        Err(status) => Res::Err(status, None),
    }
}

pub(super) async fn pathconf(r: &Request, a: &PathconfArgs) -> PathconfRes {
    let at = match At::of(r, &a.object).await {
        Ok(at) => at,
        Err(status) => return Res::Err(status, None),
    };
    match at.export.vfs.statfs(&at.cx, &at.fh).await {
        Ok(s) => Res::Ok(PathconfOk {
            obj_attributes: at.after().await,
            linkmax: LINK_MAX,
            name_max: s.name_max_bytes,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }),
        Err(e) => Res::Err(stat3(&e), at.after().await),
    }
}
