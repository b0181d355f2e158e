//! Rights that the kernel decides from attributes, and that it cannot decide right by itself.
//!
//! Without `default_permissions` the kernel asks nobody for the rights to a file before it does what
//! a local file system would refuse. With it, modes would decide where the server goes by access
//! control lists and squashed identities. So the checks are made here, with the server's word.

use super::Call;
use crate::inode::Inode;
use hither_vfs::{Access, Error, Result};

impl Call {
    /// Has the kernel ask for the attributes of a set-id file again, whose bits the server may have
    /// cleared.
    pub(super) fn drop_set_id(&self, inode: &Inode) {
        if inode.is_set_id() {
            inode.attrs_dropped();
            self.session.drop_attrs(inode.id);
        }
    }

    /// Whether the caller may link the file, with `fs.protected_hardlinks` (proc_sys_fs(5)): a file
    /// of somebody else has to be one that the caller may read and write. That it is a regular file
    /// without set-id bits is the kernel's to check.
    pub(super) async fn may_link(&self, inode: &Inode) -> Result<()> {
        let uid = self.cred().uid;
        if uid == 0 || inode.owner() == Some(uid) || !is_protected("protected_hardlinks") {
            return Ok(());
        }
        let want = Access::READ | Access::MODIFY;
        let have = self.session.vfs.access(&self.cx(), &inode.fh(), want).await?;
        if have.contains(want) { Ok(()) } else { Err(Error::new(libc::EPERM)) }
    }
}

/// Whether the machine has a protection switched on; read each time, as it may change.
fn is_protected(name: &str) -> bool {
    let value = std::fs::read(format!("/proc/sys/fs/{name}"));
    value.is_ok_and(|value| !value.starts_with(b"0"))
}
