//! Conversion between values of the `Vfs` and of the wire.

use crate::table::Export;
use hither_proto::nqnfs::{DONT_SET, Fattr, Ftype, SERVER_TIME, Sattr, Stat, Time as WireTime};
use hither_vfs::{Attr, Error, FileKind, SetAttr, SetTime, Time};

/// Type bits of a mode, as in every UNIX.
const TYPES: [(FileKind, u32); 7] = [
    (FileKind::Fifo, 0o010_000),
    (FileKind::CharDevice, 0o020_000),
    (FileKind::Directory, 0o040_000),
    (FileKind::BlockDevice, 0o060_000),
    (FileKind::Regular, 0o100_000),
    (FileKind::Symlink, 0o120_000),
    (FileKind::Socket, 0o140_000),
];
/// Preferred size of transfers, in bytes.
const BLOCK_BYTES: u32 = 8192;

/// The status of an error: those of RFC 1094 and of the paper. An error without a status of its own
/// is an I/O error.
pub(super) fn stat(e: &Error) -> Stat {
    use hither_proto::nfs3::Nfsstat3 as S3;
    match crate::error::stat3(e) {
        S3::JUKEBOX => Stat::TRYLATER,
        S3::BADHANDLE => Stat::STALE,
        S3(n) if Stat(n).name().is_some() => Stat(n),
        _ => Stat::IO,
    }
}

pub(super) fn fattr(a: &Attr, export: &Export, revision: u64) -> Fattr {
    let fsid = export.fsid(a.fsid);
    let fsid = fsid.0 ^ fsid.1.rotate_left(32);
    let (ftype, rdev) = match a.kind {
        FileKind::Regular => (Ftype::REG, 0),
        FileKind::Directory => (Ftype::DIR, 0),
        FileKind::Symlink => (Ftype::LNK, 0),
        FileKind::BlockDevice => (Ftype::BLK, device(a.rdev)),
        FileKind::CharDevice => (Ftype::CHR, device(a.rdev)),
        // The protocol has no type for sockets and FIFOs. The mode has it.
        FileKind::Socket | FileKind::Fifo => (Ftype::NON, 0),
    };
    let kind = TYPES.iter().find(|(kind, _)| *kind == a.kind).map_or(0, |t| t.1);
    Fattr {
        ftype,
        mode: kind | (a.mode & 0o7777),
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        size: a.size_bytes,
        blocksize: BLOCK_BYTES,
        rdev,
        bytes: a.used_bytes,
        fsid: fold(fsid),
        fid: fold(a.fileid),
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        flags: 0,
        gen_number: 0,
        rev: revision,
    }
}

/// Folds a number to 32 bits. On the wire, numbers of files and file systems have 32 bits.
pub(super) fn fold(n: u64) -> u32 {
    (n ^ (n >> 32)) as u32
}

/// A device's number in the layout of 4.4BSD: bits 8 to 15 are the major number. The other bits are
/// the minor number.
fn device((major, minor): (u32, u32)) -> u32 {
    (major & 0xff) << 8 | (minor & 0xff) | (minor & !0xff) << 8
}

fn time(t: Time) -> WireTime {
    match u32::try_from(t.secs) {
        Ok(seconds) => WireTime { seconds, nano_seconds: t.nanos.min(999_999_999) },
        Err(_) if t.secs < 0 => WireTime::default(),
        Err(_) => WireTime { seconds: u32::MAX - 1, nano_seconds: 0 },
    }
}

/// The attributes to set. `None` when a time is invalid.
pub(super) fn set(s: &Sattr) -> Option<SetAttr> {
    let word = |n: u32| (n != DONT_SET).then_some(n);
    let time = |t: WireTime| match t {
        WireTime { seconds: DONT_SET, .. } => Some(None),
        SERVER_TIME => Some(Some(SetTime::Now)),
        WireTime { seconds, nano_seconds } if nano_seconds < 1_000_000_000 => {
            Some(Some(SetTime::To(Time { secs: i64::from(seconds), nanos: nano_seconds })))
        }
        _ => None,
    };
    Some(SetAttr {
        mode: word(s.mode).map(|m| m & 0o7777),
        unmasked: None,
        uid: word(s.uid),
        gid: word(s.gid),
        size_bytes: (s.size != u64::MAX).then_some(s.size),
        atime: time(s.atime)?,
        mtime: time(s.mtime)?,
    })
}
