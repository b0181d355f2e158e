//! Objects of the model, and the permission rules of a POSIX server.

use super::locks::Locks;
use super::pages::Pages;
use crate::{Access, Attr, Cred, Error, FileKind, Name, Read, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// First cookie of a directory entry: 0, 1 and 2 are reserved (RFC 8881 section 18.23.3).
const FIRST_COOKIE: u64 = 3;

#[derive(Debug)]
pub(super) struct Object {
    pub attr: Attr,
    pub generation: u64,
    pub body: Body,
    pub xattrs: BTreeMap<Vec<u8>, Bytes>,
    pub locks: Locks,
    /// Number of opens that keep an unlinked file alive.
    pub opens: u32,
}

#[derive(Debug)]
pub(super) enum Body {
    File(Pages),
    Dir(Dir),
    Symlink(Bytes),
    Special,
}

/// Entries of a directory in order of creation. Cookies stay valid when other entries are created
/// or removed.
#[derive(Debug)]
pub(super) struct Dir {
    names: HashMap<Name, (u64, u64)>,
    order: BTreeMap<u64, Name>,
    next_cookie: u64,
    /// The parent directory; the root is its own parent.
    pub parent: u64,
}

impl Dir {
    pub fn new(parent: u64) -> Self {
        Self { names: HashMap::new(), order: BTreeMap::new(), next_cookie: FIRST_COOKIE, parent }
    }

    pub fn find(&self, name: &Name) -> Option<u64> {
        self.names.get(name).map(|&(_, ino)| ino)
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Adds a name. An existing name gets the new object and keeps its cookie.
    pub fn insert(&mut self, name: &Name, ino: u64) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.1 = ino;
            return;
        }
        self.names.insert(name.clone(), (self.next_cookie, ino));
        self.order.insert(self.next_cookie, name.clone());
        self.next_cookie += 1;
    }

    pub fn remove(&mut self, name: &Name) {
        if let Some((cookie, _)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }

    /// Entries after `cookie`: cookie, name, object.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Name, u64)> {
        self.order
            .range(cookie.saturating_add(1)..)
            .filter_map(|(&c, name)| Some((c, name, self.find(name)?)))
    }
}

impl Object {
    pub fn dir(&self) -> Result<&Dir> {
        match &self.body {
            Body::Dir(d) => Ok(d),
            _ => Err(Error::new(libc::ENOTDIR)),
        }
    }

    pub fn dir_mut(&mut self) -> Result<&mut Dir> {
        match &mut self.body {
            Body::Dir(d) => Ok(d),
            _ => Err(Error::new(libc::ENOTDIR)),
        }
    }

    /// The target of a symbolic link.
    pub fn target(&self) -> Option<&Bytes> {
        match &self.body {
            Body::Symlink(target) => Some(target),
            _ => None,
        }
    }

    pub fn pages(&self) -> Result<&Pages> {
        match &self.body {
            Body::File(p) => Ok(p),
            Body::Dir(_) => Err(Error::new(libc::EISDIR)),
            _ => Err(Error::new(libc::EINVAL)),
        }
    }

    /// The first bytes of a file, if some are wanted.
    pub fn first(&self, most: u32) -> Option<Read> {
        let (size, most) = (self.attr.size_bytes, u64::from(most));
        let pages = self.pages().ok().filter(|_| most > 0)?;
        Some(Read { data: pages.read(0, size.min(most) as usize).into(), eof: size <= most })
    }

    pub fn pages_mut(&mut self) -> Result<&mut Pages> {
        match &mut self.body {
            Body::File(p) => Ok(p),
            Body::Dir(_) => Err(Error::new(libc::EISDIR)),
            _ => Err(Error::new(libc::EINVAL)),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// Permission bits (rwx as 4, 2, 1) that `cred` has.
    pub fn bits(&self, cred: &Cred) -> u32 {
        let a = &self.attr;
        if cred.uid == 0 {
            // The superuser may execute only files that some user may execute.
            let x = if self.is_dir() || a.mode & 0o111 != 0 { 1 } else { 0 };
            return 6 | x;
        }
        if cred.uid == a.uid {
            (a.mode >> 6) & 7
        } else if in_group(cred, a.gid) {
            (a.mode >> 3) & 7
        } else {
            a.mode & 7
        }
    }

    /// `EACCES` unless `cred` has all rights in `bits`.
    pub fn need(&self, cred: &Cred, bits: u32) -> Result<()> {
        if self.bits(cred) & bits == bits { Ok(()) } else { Err(Error::new(libc::EACCES)) }
    }

    /// `EPERM` unless `cred` owns the object or is the superuser.
    pub fn need_owner(&self, cred: &Cred) -> Result<()> {
        if self.owned_by(cred) { Ok(()) } else { Err(Error::new(libc::EPERM)) }
    }

    pub fn owned_by(&self, cred: &Cred) -> bool {
        cred.uid == 0 || cred.uid == self.attr.uid
    }

    /// Whether a sticky directory forbids a removal or rename. Only owners of the directory or of
    /// the entry may do it.
    pub fn sticky_forbids(&self, cred: &Cred, victim: &Object) -> bool {
        self.attr.mode & 0o1000 != 0 && !self.owned_by(cred) && !victim.owned_by(cred)
    }

    pub fn access(&self, cred: &Cred, want: Access) -> Access {
        let bits = self.bits(cred);
        let mut have = Access::empty();
        if bits & 4 != 0 {
            have |= Access::READ;
        }
        if bits & 2 != 0 {
            have |= Access::MODIFY | Access::EXTEND;
            if self.is_dir() {
                have |= Access::DELETE;
            }
        }
        if bits & 1 != 0 {
            have |= if self.is_dir() { Access::LOOKUP } else { Access::EXECUTE };
        }
        have & want
    }

    /// Removes the set-id bits after a write by an unprivileged user.
    pub fn drop_set_id(&mut self, cred: &Cred) {
        if cred.uid != 0 {
            self.attr.mode = without_set_id(self.attr.mode);
        }
    }
}

/// The mode without set-uid, and without set-gid when the group may execute the file.
pub(super) fn without_set_id(mode: u32) -> u32 {
    let sgid = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | sgid)
}

pub(super) fn in_group(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}
