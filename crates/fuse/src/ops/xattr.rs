//! Extended attributes.

use super::Call;
use crate::abi::Out;
use crate::call::{Answer, Body, Undo};
use bytes::Bytes;
use hither_vfs::{Error, Fh, Result, XattrMode};
use std::sync::atomic::Ordering;

/// The kernel requests it before the first write to each file.
const CAPABILITY: &[u8] = b"security.capability";
/// NFSv4 has no POSIX ACLs. `ls -l` and `cp -p` request them for every file.
const POSIX_ACL: &[u8] = b"system.posix_acl_";

impl Call {
    pub(super) async fn getxattr(&self, name: Bytes, size: u32) -> Result<Answer> {
        let inode = self.inode()?;
        refuse_posix_acl(&name)?;
        let no_capabilities = &self.session.no_capabilities;
        let is_capability = &name[..] == CAPABILITY;
        if is_capability && no_capabilities.load(Ordering::Relaxed) {
            return Err(Error::new(libc::EOPNOTSUPP));
        }
        match self.session.vfs.getxattr(&self.cx(), &inode.fh(), &name).await {
            Ok(value) => sized(value, size),
            Err(e) => {
                if is_capability && e.errno == libc::EOPNOTSUPP {
                    no_capabilities.store(true, Ordering::Relaxed);
                }
                Err(e)
            }
        }
    }

    pub(super) async fn listxattr(&self, size: u32) -> Result<Answer> {
        sized(self.xattr_names(&self.inode()?.fh()).await?, size)
    }

    /// Names of the extended attributes of an object, each with a NUL.
    pub(super) async fn xattr_names(&self, fh: &Fh) -> Result<Bytes> {
        let mut list = Vec::new();
        for name in self.session.vfs.listxattr(&self.cx(), fh).await? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list.into())
    }

    pub(super) async fn setxattr(&self, name: Bytes, value: Bytes, flags: u32) -> Result<Answer> {
        let inode = self.inode()?;
        refuse_posix_acl(&name)?;
        let mode = match flags as i32 {
            0 => XattrMode::Either,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Error::new(libc::EINVAL)),
        };
        let _changing = inode.changing(&self.session.inodes.clock);
        self.session.vfs.setxattr(&self.cx(), &inode.fh(), &name, &value, mode).await?;
        Ok(Answer::empty())
    }

    pub(super) async fn removexattr(&self, name: Bytes) -> Result<Answer> {
        let inode = self.inode()?;
        refuse_posix_acl(&name)?;
        let _changing = inode.changing(&self.session.inodes.clock);
        self.session.vfs.removexattr(&self.cx(), &inode.fh(), &name).await?;
        Ok(Answer::empty())
    }
}

fn refuse_posix_acl(name: &[u8]) -> Result<()> {
    if name.starts_with(POSIX_ACL) { Err(Error::new(libc::EOPNOTSUPP)) } else { Ok(()) }
}

/// A value for a caller with space for `size` bytes; 0 requests only the length.
pub(super) fn sized(value: Bytes, size: u32) -> Result<Answer> {
    if size == 0 {
        let mut out = Out::with_capacity(8);
        out.u32(value.len() as u32).u32(0);
        return Ok(Answer::bytes(out.into_vec()));
    }
    if value.len() > size as usize {
        return Err(Error::new(libc::ERANGE));
    }
    Ok(Answer { body: Body::Data(value.into()), undo: Undo::Nothing })
}
