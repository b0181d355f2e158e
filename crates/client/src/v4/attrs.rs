//! Conversion of attributes between the wire and the `Vfs` interface.
//!
//! An omitted attribute gets the least harmful value. A missing type is an error of the server.

use super::call::Answer;
use super::core::Core;
use super::delegation::Noted;
use super::fail::Answered;
use super::state::own_fh;
use crate::idmap::{IdMap, NOBODY, Who};
use hither_proto::nfs4::{self, Attrs as WireAttrs, Bitmap4, Ftype, ModeUmask, SetattrArgs, Stateid, attr};
use hither_vfs::{Attr, Attrs, Error, Fh, FileKind, FsStat, Node, SetAttr, SetTime, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// The attributes of a [`hither_vfs::Attr`].
pub(crate) const NODE_ATTRS: Bitmap4 = Bitmap4::of(&[
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FSID,
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
]);

/// The attributes of a [`FsStat`].
pub(crate) const FS_ATTRS: Bitmap4 = Bitmap4::of(&[
    attr::SPACE_TOTAL,
    attr::SPACE_FREE,
    attr::SPACE_AVAIL,
    attr::FILES_TOTAL,
    attr::FILES_FREE,
    attr::FILES_AVAIL,
    attr::MAXNAME,
]);

/// The type for the `Vfs` interface. Named attributes and their directories become files and
/// directories.
pub(crate) fn kind(t: Ftype) -> Option<FileKind> {
    Some(match t {
        Ftype::REG | Ftype::NAMEDATTR => FileKind::Regular,
        Ftype::DIR | Ftype::ATTRDIR => FileKind::Directory,
        Ftype::LNK => FileKind::Symlink,
        Ftype::BLK => FileKind::BlockDevice,
        Ftype::CHR => FileKind::CharDevice,
        Ftype::SOCK => FileKind::Socket,
        Ftype::FIFO => FileKind::Fifo,
        _ => return None,
    })
}

/// The attributes for the `Vfs` interface; `None` when the server does not return the type.
pub(crate) async fn to_attr(a: &WireAttrs, ids: &IdMap) -> Option<Attr> {
    let kind = kind(a.ftype?)?;
    let time = |t: Option<nfs4::Time>| {
        let t = t.unwrap_or_default();
        Time { secs: t.seconds, nanos: t.nseconds.min(999_999_999) }
    };
    let size = a.size.unwrap_or(0);
    let ctime = time(a.time_metadata);
    Some(Attr {
        kind,
        mode: a.mode.map_or(if kind == FileKind::Directory { 0o755 } else { 0o644 }, |m| m & 0o7777),
        nlink: a.numlinks.unwrap_or(1),
        uid: id(ids, Who::User, a.owner.as_ref()).await,
        gid: id(ids, Who::Group, a.owner_group.as_ref()).await,
        rdev: a.rawdev.map_or((0, 0), |d| (d.major, d.minor)),
        size_bytes: size,
        used_bytes: a.space_used.unwrap_or(size),
        fsid: a.fsid.map_or((0, 0), |f| (f.major, f.minor)),
        fileid: a.fileid.unwrap_or(0),
        atime: time(a.time_access),
        mtime: time(a.time_modify),
        ctime,
        // RFC 8881 section 5.6 requires a change attribute. Without it the ctime is used.
        change: a.change.unwrap_or_else(|| (ctime.secs as u64) << 30 | u64::from(ctime.nanos)),
    })
}

async fn id(ids: &IdMap, who: Who, owner: Option<&nfs4::OwnerName>) -> u32 {
    let Some(owner) = owner else { return NOBODY };
    match ids.known_id(who, owner) {
        Some(id) => id,
        // A copy, which lives longer than the message.
        None => ids.id(who, &bytes::Bytes::copy_from_slice(owner)).await,
    }
}

/// The attributes of `set`, for SETATTR and creation.
async fn from_set(set: &SetAttr, ids: &IdMap) -> WireAttrs {
    let time = |t: SetTime| match t {
        SetTime::Now => nfs4::SetTime::Server,
        SetTime::To(t) => nfs4::SetTime::Client(nfs4::Time { seconds: t.secs, nseconds: t.nanos }),
    };
    let (mut owner, mut owner_group) = (None, None);
    if let Some(uid) = set.uid {
        owner = Some(ids.owner(Who::User, uid).await.into());
    }
    if let Some(gid) = set.gid {
        owner_group = Some(ids.owner(Who::Group, gid).await.into());
    }
    WireAttrs {
        mode: set.mode.map(|m| m & 0o7777),
        owner,
        owner_group,
        size: set.size_bytes,
        time_access_set: set.atime.map(time),
        time_modify_set: set.mtime.map(time),
        ..WireAttrs::default()
    }
}

/// Space and limits.
pub(crate) fn to_fsstat(a: &WireAttrs) -> FsStat {
    let n = |v: Option<&u64>| v.copied().unwrap_or(0);
    FsStat {
        total_bytes: n(a.space_total()),
        free_bytes: n(a.space_free()),
        avail_bytes: n(a.space_avail()),
        total_files: n(a.files_total()),
        free_files: n(a.files_free()),
        avail_files: n(a.files_avail()),
        name_max_bytes: a.maxname().copied().unwrap_or(255).min(255),
    }
}

impl Core {
    /// Attributes of `fh` from a call sent at `asked`.
    pub async fn attrs(self: &Arc<Self>, fh: &Fh, wire: &WireAttrs, asked: Instant) -> Answered<Attrs> {
        let attr = self.attr(fh, wire).await?;
        Ok(self.leased(fh, self.valid.attrs(fh, attr, asked)))
    }

    /// An object that was found by name.
    pub async fn node(self: &Arc<Self>, fh: &nfs4::Fh, wire: &WireAttrs, asked: Instant) -> Answered<Node> {
        let fh = own_fh(fh);
        let attr = self.attr(&fh, wire).await?;
        let attrs = self.leased(&fh, self.valid.named(&fh, attr, asked));
        Ok(Node { fh, attrs })
    }

    /// The attributes of `fh` for the `Vfs` interface, corrected for this client. The size includes
    /// written data that the server lost. The link count excludes the hidden name of a removed open
    /// file.
    pub async fn attr(self: &Arc<Self>, fh: &Fh, wire: &WireAttrs) -> Answered<Attr> {
        let Some(mut attr) = to_attr(wire, &self.ids).await else {
            return Err(Error::because(libc::EIO, "the server gives no type for a file").into());
        };
        if attr.kind == FileKind::Regular {
            attr.size_bytes = self.writes().size(fh, attr.size_bytes);
            self.note_attr(fh, &mut attr);
        }
        Ok(attr)
    }

    fn note_attr(&self, fh: &Fh, attr: &mut Attr) {
        self.delegations.note(fh, Noted::of(attr));
        let Some(file) = self.files.file(fh) else { return };
        let mut inner = file.inner.lock();
        inner.change = attr.change;
        inner.size_bytes = attr.size_bytes;
        if inner.silly.is_some() && self.files.silly.load(Ordering::Relaxed) > 0 {
            attr.nlink = attr.nlink.saturating_sub(1);
        }
        inner.links = Some(attr.nlink);
    }
}

impl Core {
    /// Attributes of the directory after an operation in it.
    pub async fn dir_attrs(self: &Arc<Self>, dir: &Fh, answer: &mut Answer) -> Option<Attrs> {
        let wire = answer.results.getattr().ok()?;
        self.attrs(dir, &wire, answer.asked).await.ok()
    }

    /// The attributes and the stateid of a SETATTR. The holder of a delegation sets the
    /// modification time of a write under the delegation (`times`, RFC 9754 section 5).
    pub async fn set_with(&self, set: &SetAttr, stateid: Stateid, times: Option<Stateid>) -> SetattrArgs {
        let mut attrs = self.wire_set(set).await;
        let Some(held) = times else { return SetattrArgs { stateid, attrs } };
        if let Some(nfs4::SetTime::Client(mtime)) = attrs.time_modify_set.take() {
            attrs.rare_mut().time_deleg_modify = Some(mtime);
        }
        SetattrArgs { stateid: held, attrs }
    }

    /// `set` as attributes of the wire. The umask of a creation replaces the mode, if the server
    /// takes it.
    pub async fn wire_set(&self, set: &SetAttr) -> WireAttrs {
        let mut attrs = from_set(set, &self.ids).await;
        if let (Some(unmasked), Some(masked)) = (set.unmasked, attrs.mode)
            && self.facts().umask
        {
            attrs.mode = None;
            attrs.mode_umask = Some(ModeUmask { mode: unmasked, umask: unmasked & !masked });
        }
        attrs
    }
}
