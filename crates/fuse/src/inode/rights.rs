//! Mode and owners that the kernel has of an object. It uses them for an exec without asking.

use super::Inode;
use hither_vfs::{Attr, FileKind};

/// Mode and owners in the attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Rights {
    pub fn of(attr: &Attr) -> Self {
        Self { mode: attr.mode & 0o7777, uid: attr.uid, gid: attr.gid }
    }

    pub fn is_set_id(self) -> bool {
        self.mode & (libc::S_ISUID | libc::S_ISGID) != 0
    }
}

/// Comparison of the file's attributes with those that the kernel uses for an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnExec {
    /// Set-id bits and owners are equal, or there are no set-id bits.
    Same,
    /// The kernel lacks set-id bits or owners of the file.
    Less,
    /// The kernel may have set-id bits that the file lacks or has with another owner.
    More,
}

impl Inode {
    /// Records that the kernel gets mode and owners, which it may ignore.
    pub fn observe_rights(&self, attr: &Attr) {
        self.state.lock().ignores(Rights::of(attr));
    }

    /// Whether the owner is this user, and has no right to write by the last seen mode.
    pub fn forbids_owner_to_write(&self, uid: u32) -> bool {
        let s = self.state.lock();
        s.uid == uid && s.mode & libc::S_IWUSR == 0
    }

    /// Compares `attr` with the attributes that the kernel would use for an exec of the file.
    pub fn on_exec(&self, attr: &Attr) -> OnExec {
        let (s, rights) = (self.state.lock(), Rights::of(attr));
        let same = s.told_rights == Some(rights) || !s.told_set_id && !rights.is_set_id();
        if same {
            return OnExec::Same;
        }
        if s.told_set_id { OnExec::More } else { OnExec::Less }
    }

    /// Whether the last seen attributes of the file have set-id bits.
    pub fn is_set_id(&self) -> bool {
        self.kind == FileKind::Regular && self.state.lock().mode & (libc::S_ISUID | libc::S_ISGID) != 0
    }

    /// Last seen permission bits and owner.
    pub fn mode_and_owner(&self) -> (u32, u32) {
        let s = self.state.lock();
        (s.mode, s.uid)
    }
}
