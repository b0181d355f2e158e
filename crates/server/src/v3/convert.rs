//! Conversion between values of the `Vfs` and of RFC 1813.
//!
//! Times before 1970 and after 2106 do not fit the protocol. They are clamped to its range.

use crate::table::Export;
use hither_proto::nfs3::{Fattr3, Ftype3, Nfstime3, Sattr3, SetTime as SetTime3, Specdata3};
use hither_vfs::{Attr, FileKind, SetAttr, SetTime, Time};

pub(super) fn fattr(a: &Attr, export: &Export) -> Fattr3 {
    let fsid = export.fsid(a.fsid);
    Fattr3 {
        ftype: match a.kind {
            FileKind::Regular => Ftype3::REG,
            FileKind::Directory => Ftype3::DIR,
            FileKind::Symlink => Ftype3::LNK,
            FileKind::BlockDevice => Ftype3::BLK,
            FileKind::CharDevice => Ftype3::CHR,
            FileKind::Socket => Ftype3::SOCK,
            FileKind::Fifo => Ftype3::FIFO,
        },
        mode: a.mode & 0o7777,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size_bytes,
        used: a.used_bytes,
        rdev: Specdata3 { specdata1: a.rdev.0, specdata2: a.rdev.1 },
        fsid: fsid.0 ^ fsid.1.rotate_left(32),
        fileid: a.fileid,
        atime: to_wire(a.atime),
        mtime: to_wire(a.mtime),
        ctime: to_wire(a.ctime),
    }
}

pub(super) fn to_wire(t: Time) -> Nfstime3 {
    match u32::try_from(t.secs) {
        Ok(seconds) => Nfstime3 { seconds, nseconds: t.nanos.min(999_999_999) },
        Err(_) if t.secs < 0 => Nfstime3::default(),
        Err(_) => Nfstime3 { seconds: u32::MAX, nseconds: 0 },
    }
}

/// The attributes to set. `None` when a time is invalid.
pub(super) fn set(s: &Sattr3) -> Option<SetAttr> {
    let time = |t: SetTime3| {
        Some(match t {
            SetTime3::DontChange => None,
            SetTime3::ToServerTime => Some(SetTime::Now),
            SetTime3::ToClientTime(t) if t.nseconds < 1_000_000_000 => {
                Some(SetTime::To(Time { secs: i64::from(t.seconds), nanos: t.nseconds }))
            }
            SetTime3::ToClientTime(_) => return None,
        })
    };
    Some(SetAttr {
        mode: s.mode.map(|m| m & 0o7777),
        unmasked: None,
        uid: s.uid,
        gid: s.gid,
        size_bytes: s.size,
        atime: time(s.atime)?,
        mtime: time(s.mtime)?,
    })
}
