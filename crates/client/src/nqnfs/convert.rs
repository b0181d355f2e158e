//! Conversion between the types of NQNFS and of NFSv3.
//!
//! The conversion of the NFSv3 client checks types and times from the wire. This module checks the
//! parts that only NQNFS has.

use hither_proto::nfs3::{
    Diropargs3, Fattr3, Fh3, Ftype3, Nfsstat3, Nfstime3, PostOpAttr, Sattr3, SetTime, Specdata3,
};
use hither_proto::nqnfs::{
    DONT_SET, Diropargs, FH_BYTES, Fattr, Fh, Filename, Ftype, NAME_MAX_BYTES, SERVER_TIME, Sattr, Stat, Time,
};
use std::time::{Duration, SystemTime};

/// Bits of the type in a mode.
const TYPE_BITS: u32 = 0o170_000;
pub(super) const FIFO_BITS: u32 = 0o010_000;
pub(super) const CHR_BITS: u32 = 0o020_000;
pub(super) const BLK_BITS: u32 = 0o060_000;
pub(super) const REG_BITS: u32 = 0o100_000;
pub(super) const SOCK_BITS: u32 = 0o140_000;

/// The NFSv3 status of an NQNFS status. Numbers that only NFSv3 has become SERVERFAULT.
pub(super) fn status(s: Stat) -> Nfsstat3 {
    match s {
        Stat::TRYLATER => Nfsstat3::JUKEBOX,
        Stat::AUTHERR => Nfsstat3::ACCES,
        Stat::WFLUSH | Stat::EXPIRED => Nfsstat3::IO,
        s if s.name().is_some() && s != Stat::OK => Nfsstat3(s.0),
        _ => Nfsstat3::SERVERFAULT,
    }
}

/// A filehandle as on the wire.
pub(super) fn fh(fh: &Fh3) -> Result<Fh, Nfsstat3> {
    Fh::from_bytes(fh).ok_or(Nfsstat3::BADHANDLE)
}

pub(super) fn fh3(fh: &Fh) -> Fh3 {
    bytes::Bytes::from(fh.bytes()).into()
}

pub(super) fn filename(name: &bytes::Bytes) -> Result<Filename, Nfsstat3> {
    if name.len() > NAME_MAX_BYTES { Err(Nfsstat3::NAMETOOLONG) } else { Ok(name.clone().into()) }
}

pub(super) fn dirop(what: &Diropargs3) -> Result<Diropargs, Nfsstat3> {
    Ok(Diropargs { dir: fh(&what.dir)?, name: filename(&what.name)? })
}

/// The fileid. The wire has 32 bits, into which servers fold longer numbers. Two files of one file
/// system may thus have the same number. The kernel keeps one page cache per fileid. Therefore the
/// fileid includes a hash of the filehandle.
pub(super) fn fileid(fid: u32, handle: &Fh) -> u64 {
    let hash = hash(&handle.bytes());
    (hash ^ hash << 32) >> 32 << 32 | u64::from(fid)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// An entry's cookie. Servers fold longer cookies into the 32 bits of the wire, so two entries may
/// have the same cookie. A hash of the name makes them different.
pub(super) fn cookie3(cookie: u32, name: &[u8]) -> u64 {
    (hash(name) >> 33) << 32 | u64::from(cookie)
}

/// The cookie on the wire.
pub(super) fn cookie(cookie: u64) -> u32 {
    cookie as u32
}

pub(super) fn attr(f: &Fattr, handle: &Fh) -> Fattr3 {
    Fattr3 {
        ftype: ftype(f),
        mode: f.mode & !TYPE_BITS,
        nlink: f.nlink,
        uid: f.uid,
        gid: f.gid,
        size: f.size,
        used: f.bytes,
        rdev: device(f.rdev),
        fsid: f.fsid.into(),
        fileid: fileid(f.fid, handle),
        atime: time3(f.atime),
        mtime: time3(f.mtime),
        ctime: time3(f.ctime),
    }
}

pub(super) fn came(f: &Fattr, handle: &Fh) -> PostOpAttr {
    Some(attr(f, handle))
}

fn ftype(f: &Fattr) -> Ftype3 {
    match f.ftype {
        Ftype::REG => Ftype3::REG,
        Ftype::DIR => Ftype3::DIR,
        Ftype::BLK => Ftype3::BLK,
        Ftype::CHR => Ftype3::CHR,
        Ftype::LNK => Ftype3::LNK,
        // The protocol has no types for FIFOs and sockets. The mode contains the type.
        Ftype::NON if f.mode & TYPE_BITS == FIFO_BITS => Ftype3::FIFO,
        Ftype::NON if f.mode & TYPE_BITS == SOCK_BITS => Ftype3::SOCK,
        _ => Ftype3(0),
    }
}

/// A device number of 4.4BSD: eight bits of the major number, then eight bits of the minor number.
/// The upper bits hold the rest of the minor number.
fn device(n: u32) -> Specdata3 {
    Specdata3 { specdata1: n >> 8 & 0xff, specdata2: n & 0xff | n >> 8 & !0xff }
}

/// The device number of `d`; `None` when the format cannot represent it.
pub(super) fn device_number(d: &Specdata3) -> Option<u32> {
    let number = (d.specdata1 & 0xff) << 8 | (d.specdata2 & 0xff) | (d.specdata2 & !0xff) << 8;
    (device(number) == *d).then_some(number)
}

fn time3(t: Time) -> Nfstime3 {
    Nfstime3 { seconds: t.seconds, nseconds: t.nano_seconds }
}

/// A time to set. A time of all ones would mean "do not change".
pub(super) fn time(t: Nfstime3) -> Time {
    Time { seconds: t.seconds.min(DONT_SET - 1), nano_seconds: t.nseconds.min(999_999_999) }
}

/// The present time for the server.
pub(super) enum Now {
    /// The server supports the extension for its own time.
    Server,
    /// The client sends its own time.
    Client(SystemTime),
}

impl Now {
    fn time(&self) -> Time {
        match self {
            Now::Server => SERVER_TIME,
            Now::Client(now) => wall(*now),
        }
    }
}

/// The client's time.
pub(super) fn wall(now: SystemTime) -> Time {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
    time(Nfstime3 { seconds, nseconds: since.subsec_nanos() })
}

pub(super) fn sattr(s: &Sattr3, now: &Now) -> Sattr {
    let when = |t: SetTime| match t {
        SetTime::DontChange => Sattr::NOTHING.atime,
        SetTime::ToServerTime => now.time(),
        SetTime::ToClientTime(t) => time(t),
    };
    Sattr {
        mode: s.mode.map_or(DONT_SET, |m| m & 0o7777),
        uid: s.uid.unwrap_or(DONT_SET),
        gid: s.gid.unwrap_or(DONT_SET),
        size: s.size.unwrap_or(u64::MAX),
        atime: when(s.atime),
        mtime: when(s.mtime),
        ..Sattr::NOTHING
    }
}

const _: () = assert!(FH_BYTES * 2 == hither_proto::nfs3::FH_MAX_BYTES);
