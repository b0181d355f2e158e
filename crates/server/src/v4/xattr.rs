//! Extended attributes (RFC 8276) of the name space `user.`. The wire omits that prefix.

use super::exec::{Exec, Object};
use super::names::wire_change;
use crate::error::stat4;
use bytes::Bytes;
use hither_proto::nfs4::{
    ChangeInfo as WireChange, ListxattrsArgs, ListxattrsOk, Nfsstat4, SetxattrArgs, SetxattrOption,
    XattrValue,
};
use hither_vfs::{ChangeInfo, FileKind, XattrMode};

const PREFIX: &[u8] = b"user.";
/// Longest name with its prefix, in bytes (`XATTR_NAME_MAX` of Linux).
const NAME_MAX_BYTES: usize = 255;
/// Longest value, in bytes (`XATTR_SIZE_MAX` of Linux).
const VALUE_MAX_BYTES: usize = 65_536;

fn full(name: &[u8]) -> Result<Vec<u8>, Nfsstat4> {
    match name {
        [] => Err(Nfsstat4::INVAL),
        n if n.len() + PREFIX.len() > NAME_MAX_BYTES => Err(Nfsstat4::NAMETOOLONG),
        n if n.contains(&0) => Err(Nfsstat4::BADCHAR),
        n => Ok([PREFIX, n].concat()),
    }
}

/// Whether the file system of an object has extended attributes. The origin of a gateway may have
/// none.
pub(super) async fn supports(o: &Object, kind: FileKind) -> bool {
    // On Linux only these objects have attributes of users. A list may be empty instead of refused.
    let can_ask = matches!(kind, FileKind::Regular | FileKind::Directory);
    let asked = o.export.vfs.getxattr(&o.cx, &o.fh, b"user.any");
    !can_ask || !asked.await.is_err_and(|e| e.errno == libc::EOPNOTSUPP)
}

impl Exec<'_> {
    pub(super) async fn getxattr(&mut self, name: &Bytes) -> Result<XattrValue, Nfsstat4> {
        let o = self.object(Nfsstat4::NOXATTR)?;
        let value = o.export.vfs.getxattr(&o.cx, &o.fh, &full(name)?).await.map_err(|e| stat4(&e))?;
        if value.len() > self.room_bytes { Err(Nfsstat4::REP_TOO_BIG) } else { Ok(value.into()) }
    }

    /// The object's change attribute. The client compares it before and after its own call.
    async fn change(&self, o: &Object) -> Result<u64, Nfsstat4> {
        Ok(o.export.vfs.getattr(&o.cx, o.file(None)).await.map_err(|e| stat4(&e))?.attr.change)
    }

    async fn changed_since(&mut self, o: &Object, before: u64) -> Result<WireChange, Nfsstat4> {
        self.changed();
        let after = self.change(o).await?;
        Ok(wire_change(&ChangeInfo { atomic: false, before, after, attrs: None }))
    }

    pub(super) async fn setxattr(&mut self, a: &SetxattrArgs) -> Result<WireChange, Nfsstat4> {
        let o = self.object(Nfsstat4::ROFS)?.writable()?;
        let mode = match a.option {
            SetxattrOption::EITHER => XattrMode::Either,
            SetxattrOption::CREATE => XattrMode::Create,
            SetxattrOption::REPLACE => XattrMode::Replace,
            _ => return Err(Nfsstat4::INVAL),
        };
        if a.value.len() > VALUE_MAX_BYTES {
            return Err(Nfsstat4::XATTR2BIG);
        }
        let name = full(&a.key)?;
        let _changing = self.for_change(&o, false).await?;
        let before = self.change(&o).await?;
        let set = o.export.vfs.setxattr(&o.cx, &o.fh, &name, &a.value.0, mode).await;
        set.map_err(|e| stat4(&e))?;
        self.changed_since(&o, before).await
    }

    pub(super) async fn removexattr(&mut self, name: &Bytes) -> Result<WireChange, Nfsstat4> {
        let o = self.object(Nfsstat4::ROFS)?.writable()?;
        let name = full(name)?;
        let _changing = self.for_change(&o, false).await?;
        let before = self.change(&o).await?;
        o.export.vfs.removexattr(&o.cx, &o.fh, &name).await.map_err(|e| stat4(&e))?;
        self.changed_since(&o, before).await
    }

    pub(super) async fn listxattrs(&mut self, a: &ListxattrsArgs) -> Result<ListxattrsOk, Nfsstat4> {
        const HEAD_BYTES: usize = 8 + 4 + 4;
        let o = self.object(Nfsstat4::NOXATTR)?;
        let all = o.export.vfs.listxattr(&o.cx, &o.fh).await.map_err(|e| stat4(&e))?;
        let mut all: Vec<Bytes> =
            all.into_iter().filter(|n| n.starts_with(PREFIX)).map(|n| n.slice(PREFIX.len()..)).collect();
        // All calls use the same order, because a cookie is an index into it.
        all.sort();
        let from = usize::try_from(a.cookie).unwrap_or(usize::MAX).min(all.len());
        let (mut bytes, max) = (HEAD_BYTES, (a.maxcount as usize).min(self.room_bytes));
        let mut names = Vec::new();
        for name in &all[from..] {
            bytes += 4 + name.len().next_multiple_of(4);
            if bytes > max {
                break;
            }
            names.push(name.clone().into());
        }
        let next = from + names.len();
        if names.is_empty() && next < all.len() {
            return Err(Nfsstat4::TOOSMALL);
        }
        Ok(ListxattrsOk { cookie: next as u64, names: names.into(), eof: next == all.len() })
    }
}
