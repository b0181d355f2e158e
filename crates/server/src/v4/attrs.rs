//! Conversion of attributes between the `Vfs` and the wire, and the sets of supported attributes.
//!
//! The module knows nothing of operations. Owners are decimal numbers, which all clients accept
//! with AUTH_SYS (RFC 8881 section 5.9).

use super::exec::Object;
use crate::creator;
use crate::table::Export;
use hither_proto::nfs4::{self, Attrs as Wire, Bitmap4, Fsid, Ftype, Nfsstat4, Specdata, attr};
use hither_vfs::{Attr, FileKind, FsStat, SetAttr, SetTime, Time};

/// Longest file, in bytes.
const FILE_MAX_BYTES: u64 = i64::MAX as u64;
/// Most hard links: the limit of ext4.
const LINK_MAX: u32 = 65_000;
/// Granularity of times.
const NANOSECOND: nfs4::Time = nfs4::Time { seconds: 0, nseconds: 1 };

/// Attributes that SETATTR can set. They include the ACL, and the times of a delegation.
pub(crate) const SETTABLE_LATER: Bitmap4 =
    SETTABLE.without(attr::MODE_UMASK).union(Bitmap4::of(&[attr::ACL])).union(OF_HOLDER);

/// Times that the holder of a delegation maintains (RFC 9754 section 5).
pub(crate) const OF_HOLDER: Bitmap4 = Bitmap4::of(&[attr::TIME_DELEG_ACCESS, attr::TIME_DELEG_MODIFY]);

/// Attributes that no operation can read (RFC 8881 section 5.5, RFC 8275, RFC 9754 section 5).
pub(crate) const SET_ONLY: Bitmap4 =
    Bitmap4::of(&[attr::TIME_ACCESS_SET, attr::TIME_MODIFY_SET, attr::MODE_UMASK]).union(OF_HOLDER);

/// Attributes of NFSv4.2 and its extensions.
const OF_MINOR_2: Bitmap4 =
    Bitmap4::of(&[attr::CLONE_BLKSIZE, attr::XATTR_SUPPORT, attr::OPEN_ARGUMENTS, attr::MODE_UMASK])
        .union(OF_HOLDER);

/// Attributes that creations can set.
pub(crate) const SETTABLE: Bitmap4 = Bitmap4::of(&[
    attr::SIZE,
    attr::MODE,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::TIME_ACCESS_SET,
    attr::TIME_MODIFY_SET,
    attr::MODE_UMASK,
]);

/// Attributes that an exclusive creation can set. The times hold its verifier.
pub(crate) const SETTABLE_EXCLUSIVELY: Bitmap4 =
    Bitmap4::of(&[attr::MODE, attr::OWNER, attr::OWNER_GROUP, attr::MODE_UMASK]);

/// Attributes of the file system. They need one more call of the `Vfs`.
const OF_FILE_SYSTEM: Bitmap4 = Bitmap4::of(&[
    attr::FILES_AVAIL,
    attr::FILES_FREE,
    attr::FILES_TOTAL,
    attr::MAXNAME,
    attr::SPACE_AVAIL,
    attr::SPACE_FREE,
    attr::SPACE_TOTAL,
]);

/// Attributes of the object itself, and those that follow from its identity.
const OF_OBJECT: Bitmap4 = Bitmap4::of(&[
    attr::SUPPORTED_ATTRS,
    attr::TYPE,
    attr::FH_EXPIRE_TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::LINK_SUPPORT,
    attr::SYMLINK_SUPPORT,
    attr::NAMED_ATTR,
    attr::FSID,
    attr::UNIQUE_HANDLES,
    attr::LEASE_TIME,
    attr::RDATTR_ERROR,
    attr::ACL,
    attr::ACLSUPPORT,
    attr::CANSETTIME,
    attr::CASE_INSENSITIVE,
    attr::CASE_PRESERVING,
    attr::CHOWN_RESTRICTED,
    attr::FILEHANDLE,
    attr::FILEID,
    attr::HOMOGENEOUS,
    attr::MAXFILESIZE,
    attr::MAXLINK,
    attr::MAXREAD,
    attr::MAXWRITE,
    attr::MODE,
    attr::NO_TRUNC,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_ACCESS_SET,
    attr::TIME_DELTA,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::TIME_MODIFY_SET,
    attr::MOUNTED_ON_FILEID,
    attr::SUPPATTR_EXCLCREAT,
    attr::CLONE_BLKSIZE,
    attr::XATTR_SUPPORT,
    attr::TIME_DELEG_ACCESS,
    attr::TIME_DELEG_MODIFY,
    attr::OPEN_ARGUMENTS,
    attr::MODE_UMASK,
]);

/// Attributes of a READDIR entry that need no access to the object.
pub(crate) const OF_ENTRY: Bitmap4 =
    Bitmap4::of(&[attr::RDATTR_ERROR, attr::FILEID, attr::MOUNTED_ON_FILEID]);

/// The set of supported attributes.
#[derive(Clone, Copy)]
pub(crate) struct Have {
    /// The minor version.
    pub minor: u32,
    /// Alignment of clones in bytes. `None`: there are no clones.
    pub clone_block_bytes: Option<u32>,
    /// Whether ACLs are supported.
    pub acls: bool,
}

impl Have {
    /// The attributes of objects in an export. `None`: of directories above the exports.
    pub fn of(minor: u32, export: Option<&Export>) -> Self {
        let extra = export.and_then(|e| e.extra.as_ref());
        let clone_block_bytes = extra.and_then(|e| e.clone_block_bytes());
        Self { minor, clone_block_bytes, acls: extra.is_some_and(|e| e.has_acls()) }
    }

    /// All supported attributes.
    pub fn all(self) -> Bitmap4 {
        let all = OF_OBJECT.union(OF_FILE_SYSTEM);
        let all = if self.minor < 2 { all.difference(OF_MINOR_2) } else { all };
        let all = if self.acls { all } else { all.without(attr::ACL) };
        if self.clone_block_bytes.is_some() { all } else { all.without(attr::CLONE_BLKSIZE) }
    }
}

/// Whether these attributes need more calls than the object's own attributes.
pub(crate) fn cost_more(wanted: Bitmap4) -> bool {
    needs_fsstat(wanted) || wanted.has(attr::ACL) || wanted.has(attr::XATTR_SUPPORT)
}

/// Whether these attributes include some of the file system.
pub(crate) fn needs_fsstat(wanted: Bitmap4) -> bool {
    !wanted.intersection(OF_FILE_SYSTEM).is_empty()
}

/// The values from which attributes are made.
pub(crate) struct Source<'a> {
    pub attr: &'a Attr,
    pub fsid: (u64, u64),
    /// The wire handle.
    pub handle: &'a bytes::Bytes,
    /// Fileid of the covered directory, for the root of an export.
    pub mounted_on: Option<u64>,
    pub fs: Option<FsStat>,
    pub acl: Option<Vec<nfs4::Ace>>,
    /// Whether the file system has extended attributes of users (RFC 8276).
    pub xattrs: bool,
    pub have: Have,
    pub io_max_bytes: u32,
    pub lease_s: u32,
}

impl Source<'_> {
    /// Those of the `wanted` attributes that are supported.
    pub fn wire(&self, wanted: Bitmap4) -> Wire {
        let a = self.attr;
        let mut out = Wire {
            ftype: Some(kind(a.kind)),
            change: Some(a.change),
            size: Some(a.size_bytes),
            fsid: Some(Fsid { major: self.fsid.0, minor: self.fsid.1 }),
            filehandle: wanted.has(attr::FILEHANDLE).then(|| self.handle.clone().into()),
            fileid: Some(a.fileid),
            mode: Some(a.mode & 0o7777),
            numlinks: Some(a.nlink),
            owner: wanted.has(attr::OWNER).then(|| number(a.uid)),
            owner_group: wanted.has(attr::OWNER_GROUP).then(|| number(a.gid)),
            rawdev: Some(Specdata { major: a.rdev.0, minor: a.rdev.1 }),
            space_used: Some(a.used_bytes),
            time_access: Some(time(a.atime)),
            time_metadata: Some(time(a.ctime)),
            time_modify: Some(time(a.mtime)),
            mounted_on_fileid: Some(self.mounted_on.unwrap_or(a.fileid)),
            // Only an entry without attributes has an error.
            rdattr_error: Some(Nfsstat4::OK),
            ..Wire::default()
        };
        if wanted.iter().any(out_of_the_ordinary) {
            self.rare(&mut out);
        }
        out.retain(wanted.intersection(self.have.all()));
        out
    }

    fn rare(&self, out: &mut Wire) {
        let rare = out.rare_mut();
        rare.supported_attrs = Some(self.have.all());
        rare.fh_expire_type = Some(0);
        rare.link_support = Some(true);
        rare.symlink_support = Some(true);
        rare.named_attr = Some(false);
        rare.unique_handles = Some(true);
        rare.lease_time = Some(self.lease_s);
        rare.acl = self.acl.clone().map(Into::into);
        rare.aclsupport =
            Some(if self.have.acls { nfs4::ace::SUPPORT_ALLOW | nfs4::ace::SUPPORT_DENY } else { 0 });
        rare.cansettime = Some(true);
        rare.case_insensitive = Some(false);
        rare.case_preserving = Some(true);
        rare.chown_restricted = Some(true);
        rare.homogeneous = Some(true);
        rare.maxfilesize = Some(FILE_MAX_BYTES);
        rare.maxlink = Some(LINK_MAX);
        rare.maxread = Some(u64::from(self.io_max_bytes));
        rare.maxwrite = Some(u64::from(self.io_max_bytes));
        rare.no_trunc = Some(true);
        rare.time_delta = Some(NANOSECOND);
        rare.suppattr_exclcreat = Some(SETTABLE_EXCLUSIVELY.intersection(self.have.all()));
        rare.clone_blksize = self.have.clone_block_bytes;
        rare.xattr_support = Some(self.xattrs);
        rare.open_arguments = Some(super::open::open_arguments());
        if let Some(fs) = &self.fs {
            rare.files_avail = Some(fs.avail_files);
            rare.files_free = Some(fs.free_files);
            rare.files_total = Some(fs.total_files);
            rare.maxname = Some(fs.name_max_bytes);
            rare.space_avail = Some(fs.avail_bytes);
            rare.space_free = Some(fs.free_bytes);
            rare.space_total = Some(fs.total_bytes);
        }
    }
}

/// Attributes of an entry of which only the fileid is known.
pub(crate) fn bare_entry(fileid: u64, wanted: Bitmap4, error: Nfsstat4) -> Wire {
    let mut out = Wire {
        rdattr_error: Some(error),
        fileid: Some(fileid),
        mounted_on_fileid: Some(fileid),
        ..Wire::default()
    };
    out.retain(wanted);
    out
}

fn out_of_the_ordinary(n: u32) -> bool {
    const ORDINARY: Bitmap4 = Bitmap4::of(&[
        attr::TYPE,
        attr::CHANGE,
        attr::SIZE,
        attr::FSID,
        attr::RDATTR_ERROR,
        attr::FILEHANDLE,
        attr::FILEID,
        attr::MODE,
        attr::NUMLINKS,
        attr::OWNER,
        attr::OWNER_GROUP,
        attr::RAWDEV,
        attr::SPACE_USED,
        attr::TIME_ACCESS,
        attr::TIME_METADATA,
        attr::TIME_MODIFY,
        attr::MOUNTED_ON_FILEID,
    ]);
    !ORDINARY.has(n)
}

fn kind(kind: FileKind) -> Ftype {
    match kind {
        FileKind::Regular => Ftype::REG,
        FileKind::Directory => Ftype::DIR,
        FileKind::Symlink => Ftype::LNK,
        FileKind::BlockDevice => Ftype::BLK,
        FileKind::CharDevice => Ftype::CHR,
        FileKind::Socket => Ftype::SOCK,
        FileKind::Fifo => Ftype::FIFO,
    }
}

fn time(t: Time) -> nfs4::Time {
    nfs4::Time { seconds: t.secs, nseconds: t.nanos }
}

fn number(id: u32) -> nfs4::OwnerName {
    bytes::Bytes::from(id.to_string()).into()
}

/// Whether a mode has bits that the protocol does not define (RFC 8881 section 6.2.4).
pub(super) fn has_undefined_mode(wire: &Wire) -> bool {
    let of_new = wire.mode_umask;
    wire.mode.is_some_and(|mode| mode & !0o7777 != 0)
        || of_new.is_some_and(|new| new.mode & !0o7777 != 0 || new.umask & !0o777 != 0)
}

/// The attributes that SETATTR or a creation sets.
///
/// # Errors
/// `ATTRNOTSUPP`: an attribute is not supported. `INVAL`: it is not among `settable`, a time is
/// invalid, there are two modes, or a mode has undefined bits. `BADOWNER`: an owner is not a
/// number.
pub(crate) fn to_set(wire: &Wire, settable: Bitmap4, have: Have) -> Result<SetAttr, Nfsstat4> {
    let mask = wire.mask();
    if !mask.is_subset(have.all()) {
        return Err(Nfsstat4::ATTRNOTSUPP);
    }
    let two_modes = mask.has(attr::MODE) && mask.has(attr::MODE_UMASK);
    if !mask.is_subset(settable) || two_modes || has_undefined_mode(wire) {
        return Err(Nfsstat4::INVAL);
    }
    let time = |t: Option<nfs4::SetTime>| match t {
        None => Ok(None),
        Some(nfs4::SetTime::Server) => Ok(Some(SetTime::Now)),
        Some(nfs4::SetTime::Client(t)) if t.nseconds < 1_000_000_000 => {
            Ok(Some(SetTime::To(Time { secs: t.seconds, nanos: t.nseconds })))
        }
        Some(nfs4::SetTime::Client(_)) => Err(Nfsstat4::INVAL),
    };
    let owner = |o: &Option<nfs4::OwnerName>| o.as_ref().map(|o| id(o)).transpose();
    let of_new = wire.mode_umask;
    Ok(SetAttr {
        mode: wire.mode.or(of_new.map(|new| new.mode & !new.umask)),
        unmasked: of_new.map(|new| new.mode),
        uid: owner(&wire.owner)?,
        gid: owner(&wire.owner_group)?,
        size_bytes: wire.size,
        atime: time(wire.time_access_set.clone())?,
        mtime: time(wire.time_modify_set.clone())?,
    })
}

/// The attributes that a creation sets, and the attributes that its reply names as set. An owner
/// that the creator may not set is in neither.
///
/// # Errors
/// As [`to_set`].
pub(super) fn to_create(
    wire: &Wire,
    settable: Bitmap4,
    dir: &Object,
    have: Have,
) -> Result<(SetAttr, Bitmap4), Nfsstat4> {
    let wanted = to_set(wire, settable, have)?;
    let set = creator::allowed(wanted.clone(), &dir.cx.cred);
    let mut mask = wire.mask();
    // The creator is the owner even when the client names no owner.
    if set.uid != wanted.uid && wanted.uid != Some(dir.cx.cred.uid) {
        mask.remove(attr::OWNER);
    }
    if set.gid != wanted.gid {
        mask.remove(attr::OWNER_GROUP);
    }
    Ok((set, mask))
}

pub(super) fn id(owner: &[u8]) -> Result<u32, Nfsstat4> {
    let text = std::str::from_utf8(owner).map_err(|_| Nfsstat4::BADOWNER)?;
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let id = if digits { text.parse().ok() } else { None };
    // -1 means "no change" to the kernel.
    id.filter(|id| *id != u32::MAX).ok_or(Nfsstat4::BADOWNER)
}

/// File system number of an object of an export.
pub(crate) fn fsid(attr: &Attr, export: &Export) -> (u64, u64) {
    export.fsid(attr.fsid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers() {
        assert_eq!(id(b"1000"), Ok(1000));
        for bad in [&b""[..], b"root@x", b"-1", b"4294967295", b"4294967296", b"\xff"] {
            assert_eq!(id(bad), Err(Nfsstat4::BADOWNER));
        }
    }

    /// Setting a read-only attribute, or an undefined bit of the mode, is INVAL. Setting an
    /// unsupported attribute is ATTRNOTSUPP.
    #[test]
    fn readonly_attribute_is_invalid() {
        let have = Have::of(2, None);
        let change = Wire { change: Some(1), ..Wire::default() };
        assert_eq!(to_set(&change, SETTABLE, have), Err(Nfsstat4::INVAL));
        let mut hidden = Wire::default();
        hidden.rare_mut().hidden = Some(true);
        assert_eq!(to_set(&hidden, SETTABLE, have), Err(Nfsstat4::ATTRNOTSUPP));
        let mode = Wire { mode: Some(0o17777), ..Wire::default() };
        assert_eq!(to_set(&mode, SETTABLE, have), Err(Nfsstat4::INVAL));
    }

    /// Every announced attribute can be read.
    #[test]
    fn announced_attributes_are_readable() {
        let attr = Attr {
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size_bytes: 0,
            used_bytes: 0,
            fsid: (0, 0),
            fileid: 1,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            change: 1,
        };
        let have = Have { minor: 2, clone_block_bytes: Some(4096), acls: true };
        let source = Source {
            attr: &attr,
            fsid: (1, 2),
            handle: &bytes::Bytes::from_static(b"h"),
            mounted_on: None,
            fs: Some(FsStat::default()),
            acl: Some(Vec::new()),
            xattrs: true,
            have,
            io_max_bytes: 1 << 20,
            lease_s: 90,
        };
        assert_eq!(source.wire(have.all()).mask(), have.all().difference(SET_ONLY));
        let earlier = Have { minor: 1, ..have };
        assert!(earlier.all().intersection(OF_MINOR_2).is_empty());
        let sent = hither_proto::xdr::Enc::of(&source.wire(have.all())).to_bytes();
        assert!(hither_proto::xdr::Dec::all::<Wire>(&sent).is_ok());
    }
}
