//! Conversion between the types of RFC 1813 and of the `Vfs` interface.
//!
//! All values from the wire are checked in this module. It rejects unknown types and invalid
//! filehandles, and clamps impossible nanoseconds.

use hither_proto::nfs3::{self, Fattr3, Fh3, Ftype3, Nfstime3, Sattr3, WccData};
use hither_vfs::{Attr, ChangeInfo, Error, Fh, FileKind, Result, SetAttr, SetTime, Time};

/// Attributes; `None` for an unknown file type.
pub(crate) fn attr(f: &Fattr3) -> Option<Attr> {
    Some(Attr {
        kind: kind(f.ftype)?,
        mode: f.mode & 0o7777,
        nlink: f.nlink,
        uid: f.uid,
        gid: f.gid,
        rdev: (f.rdev.specdata1, f.rdev.specdata2),
        size_bytes: f.size,
        used_bytes: f.used,
        fsid: (f.fsid, 0),
        fileid: f.fileid,
        atime: time(f.atime),
        mtime: time(f.mtime),
        ctime: time(f.ctime),
        change: change(f.ctime),
    })
}

fn kind(t: Ftype3) -> Option<FileKind> {
    Some(match t {
        Ftype3::REG => FileKind::Regular,
        Ftype3::DIR => FileKind::Directory,
        Ftype3::LNK => FileKind::Symlink,
        Ftype3::BLK => FileKind::BlockDevice,
        Ftype3::CHR => FileKind::CharDevice,
        Ftype3::SOCK => FileKind::Socket,
        Ftype3::FIFO => FileKind::Fifo,
        _ => return None,
    })
}

/// The change attribute, which NFSv3 lacks, made from ctime. The seconds (32 bits) are above the
/// nanoseconds (30 bits), so the value grows as ctime does. Two changes within one tick of the
/// server's clock look like one. RFC 1813 has no better value.
pub(super) fn change(ctime: Nfstime3) -> u64 {
    (u64::from(ctime.seconds) << 30) | u64::from(ctime.nseconds & 0x3fff_ffff)
}

/// A directory's change values around an operation. A server that returns attributes from before
/// promises that no other change came between (RFC 1813 section 2.6).
pub(super) fn change_info(wcc: &WccData) -> ChangeInfo {
    let after = wcc.after.as_ref().map(|a| change(a.ctime));
    let before = wcc.before.as_ref().map(|b| change(b.ctime));
    ChangeInfo {
        atomic: before.is_some() && after.is_some(),
        before: before.unwrap_or_default(),
        after: after.unwrap_or_default(),
        attrs: None,
    }
}

/// The protocol's seconds are unsigned, as in the Linux client: 1970 to 2106.
fn time(t: Nfstime3) -> Time {
    Time { secs: i64::from(t.seconds), nanos: t.nseconds.min(999_999_999) }
}

fn wire_time(t: Time) -> Nfstime3 {
    match u32::try_from(t.secs) {
        Ok(seconds) => Nfstime3 { seconds, nseconds: t.nanos.min(999_999_999) },
        // Clamped, as the Linux VFS does for file systems with a narrower range.
        Err(_) if t.secs < 0 => Nfstime3 { seconds: 0, nseconds: 0 },
        Err(_) => Nfstime3 { seconds: u32::MAX, nseconds: 0 },
    }
}

/// Attributes to set.
pub(super) fn sattr(set: &SetAttr) -> Sattr3 {
    let time = |t: Option<SetTime>| match t {
        None => nfs3::SetTime::DontChange,
        Some(SetTime::Now) => nfs3::SetTime::ToServerTime,
        Some(SetTime::To(t)) => nfs3::SetTime::ToClientTime(wire_time(t)),
    };
    Sattr3 {
        mode: set.mode.map(|m| m & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size_bytes,
        atime: time(set.atime),
        mtime: time(set.mtime),
    }
}

/// A filehandle for the wire.
///
/// # Errors
/// `ESTALE`: the filehandle is not from a server of this version.
pub(super) fn fh3(fh: &Fh) -> Result<Fh3> {
    match fh.0.len() {
        1..=nfs3::FH_MAX_BYTES => Ok(fh.0.clone().into()),
        _ => Err(Error::new(libc::ESTALE)),
    }
}

/// A filehandle to keep. It is a copy, because a slice would keep the whole received message alive.
/// `None` when it is empty.
pub(super) fn fh(fh: &Fh3) -> Option<Fh> {
    (!fh.0.is_empty()).then(|| Fh(bytes::Bytes::copy_from_slice(&fh.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_proto::nfs3::WccAttr;

    #[test]
    fn change_grows_with_ctime() {
        let t = |seconds, nseconds| change(Nfstime3 { seconds, nseconds });
        assert!(t(1, 0) > t(0, 999_999_999));
        assert!(t(1, 1) > t(1, 0));
        assert!(t(u32::MAX, 999_999_999) > t(u32::MAX, 0));
    }

    /// A change of a directory is atomic only when the reply has the attributes from before and
    /// from after the change.
    #[test]
    fn atomic_change_needs_both_attributes() {
        let ctime = Nfstime3 { seconds: 5, nseconds: 6 };
        let before = Some(WccAttr { size: 0, mtime: ctime, ctime });
        let after = Some(Fattr3 { ctime, ..Fattr3::default() });
        assert!(change_info(&WccData { before, after }).atomic);
        assert!(!change_info(&WccData { before: None, after }).atomic);
        assert!(!change_info(&WccData { before, after: None }).atomic);
    }

    #[test]
    fn times_outside_the_protocol_are_clamped() {
        let wire = |secs| wire_time(Time { secs, nanos: 7 });
        assert_eq!(wire(-1), Nfstime3 { seconds: 0, nseconds: 0 });
        assert_eq!(wire(1 << 33), Nfstime3 { seconds: u32::MAX, nseconds: 0 });
        assert_eq!(wire(1_700_000_000), Nfstime3 { seconds: 1_700_000_000, nseconds: 7 });
    }

    /// Unknown file types and empty filehandles from the server are refused. A filehandle that is
    /// too long for NFSv3 gives ESTALE.
    #[test]
    fn bad_types_and_handles_fail() {
        assert_eq!(attr(&Fattr3 { ftype: Ftype3(99), ..Fattr3::default() }), None);
        assert_eq!(fh(&Fh3::default()), None);
        assert_eq!(fh3(&Fh(vec![0; 65].into())).unwrap_err().errno, libc::ESTALE);
    }
}
