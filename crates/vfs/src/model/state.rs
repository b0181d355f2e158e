//! The tree of the model: all objects, their names, and the rules for create, remove and rename.

use super::object::{Body, Dir, Object, in_group};
use crate::{
    Attr, ChangeInfo, Cred, Error, Fh, FileKind, Moved, Name, RenameFlags, Result, SetAttr, SetTime, Time,
};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};

/// Inode number of the root directory.
pub(super) const ROOT: u64 = 2;

#[derive(Debug)]
pub(super) struct State {
    pub objects: HashMap<u64, Object>,
    pub opens: HashMap<u64, Open>,
    pub next_open: u64,
    pub capacity_bytes: u64,
    used_bytes: u64,
    next_ino: u64,
    change: u64,
}

/// An open file of the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub ino: u64,
    pub access: crate::OpenAccess,
}

/// A new object without inode number.
pub(super) struct New {
    pub kind: FileKind,
    pub body: Body,
    pub rdev: (u32, u32),
}

impl State {
    pub fn new(capacity_bytes: u64, now: Time) -> Self {
        let mut s = Self {
            objects: HashMap::new(),
            opens: HashMap::new(),
            next_open: 1,
            capacity_bytes,
            used_bytes: 0,
            next_ino: ROOT,
            change: 1,
        };
        let root = New { kind: FileKind::Directory, body: Body::Dir(Dir::new(ROOT)), rdev: (0, 0) };
        let root = s.add(root, 0o755, (0, 0), now);
        s.object_mut(root).attr.nlink = 2;
        s
    }

    /// Filehandle of an object: its inode number and generation.
    pub fn fh(&self, ino: u64) -> Fh {
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&ino.to_be_bytes());
        raw[8..].copy_from_slice(&self.object(ino).generation.to_be_bytes());
        Fh(Bytes::copy_from_slice(&raw))
    }

    /// Inode number of a filehandle; `ESTALE` when the object is gone.
    pub fn ino(&self, fh: &Fh) -> Result<u64> {
        let stale = || Error::new(libc::ESTALE);
        let raw: &[u8; 16] = fh.0.as_ref().try_into().map_err(|_| stale())?;
        let (ino, generation) = raw.split_at(8);
        let ino = u64::from_be_bytes(ino.try_into().map_err(|_| stale())?);
        let generation = u64::from_be_bytes(generation.try_into().map_err(|_| stale())?);
        match self.objects.get(&ino) {
            Some(o) if o.generation == generation => Ok(ino),
            _ => Err(stale()),
        }
    }

    /// An existing object.
    pub fn object(&self, ino: u64) -> &Object {
        self.objects.get(&ino).expect("the object exists while it has names or opens")
    }

    /// As [`State::object`], mutable.
    pub fn object_mut(&mut self, ino: u64) -> &mut Object {
        self.objects.get_mut(&ino).expect("the object exists while it has names or opens")
    }

    /// Allocated space in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Updates the space of a file after its contents changed.
    pub fn settle(&mut self, ino: u64) -> Result<()> {
        let o = self.object_mut(ino);
        let (before, after) = (o.attr.used_bytes, o.pages()?.used_bytes());
        o.attr.used_bytes = after;
        self.used_bytes = self.used_bytes - before + after;
        Ok(())
    }

    /// Updates times and change attribute after the data of an object changed.
    pub fn touch_data(&mut self, ino: u64, now: Time) {
        self.touch(ino, now);
        self.object_mut(ino).attr.mtime = now;
    }

    /// Updates ctime and change attribute of an object.
    pub fn touch(&mut self, ino: u64, now: Time) {
        self.change += 1;
        let change = self.change;
        let attr = &mut self.object_mut(ino).attr;
        attr.ctime = now;
        attr.change = change;
    }

    /// Looks up `name` for `cred`, which needs the right to search the directory.
    pub fn lookup(&self, cred: &Cred, dir: u64, name: &Name) -> Result<Option<u64>> {
        let object = self.object(dir);
        let entries = object.dir()?;
        object.need(cred, 1)?;
        Ok(entries.find(name))
    }

    fn add(&mut self, new: New, mode: u32, owner: (u32, u32), now: Time) -> u64 {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.change += 1;
        let size_bytes = if let Body::Symlink(target) = &new.body { target.len() as u64 } else { 0 };
        let attr = Attr {
            kind: new.kind,
            mode: mode & 0o7777,
            nlink: 1,
            uid: owner.0,
            gid: owner.1,
            rdev: new.rdev,
            size_bytes,
            used_bytes: 0,
            fsid: (0x6869_7468, 1),
            fileid: ino,
            atime: now,
            mtime: now,
            ctime: now,
            change: self.change,
        };
        let generation = self.change;
        let object = Object {
            attr,
            generation,
            body: new.body,
            xattrs: BTreeMap::new(),
            locks: Default::default(),
            opens: 0,
        };
        self.objects.insert(ino, object);
        ino
    }

    /// Creates an object in a directory for `cred`. Group and set-gid bit follow the directory.
    pub fn create(
        &mut self,
        cred: &Cred,
        dir: u64,
        name: &Name,
        mut new: New,
        set: &SetAttr,
        now: Time,
    ) -> Result<(u64, ChangeInfo)> {
        if self.lookup(cred, dir, name)?.is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        let parent = self.object(dir);
        if parent.attr.nlink == 0 {
            return Err(Error::new(libc::ENOENT));
        }
        parent.need(cred, 3)?;
        let inherits = parent.attr.mode & 0o2000 != 0;
        let gid = if inherits { parent.attr.gid } else { cred.gid };
        let is_dir = new.kind == FileKind::Directory;
        let mut mode = set.mode.unwrap_or(if is_dir { 0o777 } else { 0o666 });
        if is_dir && inherits {
            mode |= 0o2000;
        } else if mode & 0o2010 == 0o2010 && cred.uid != 0 && !in_group(cred, gid) {
            mode &= !0o2000;
        }
        if let Body::Dir(d) = &mut new.body {
            d.parent = dir;
        }
        let ino = self.add(new, mode, (cred.uid, gid), now);
        let extra = SetAttr { mode: None, size_bytes: None, ..set.clone() };
        if let Err(e) = self.set_attr(cred, ino, &extra, true, now) {
            self.objects.remove(&ino);
            return Err(e);
        }
        if is_dir {
            self.object_mut(ino).attr.nlink = 2;
            self.object_mut(dir).attr.nlink += 1;
        }
        let change = self.change_dir(dir, now, |d| d.insert(name, ino))?;
        Ok((ino, change))
    }

    /// Changes the entries of a directory and updates its times.
    fn change_dir(&mut self, dir: u64, now: Time, f: impl FnOnce(&mut Dir)) -> Result<ChangeInfo> {
        let before = self.object(dir).attr.change;
        f(self.object_mut(dir).dir_mut()?);
        self.touch_data(dir, now);
        Ok(ChangeInfo { atomic: true, before, after: self.object(dir).attr.change, attrs: None })
    }

    /// Sets attributes. `may_write`: the caller has an open for writing.
    pub fn set_attr(
        &mut self,
        cred: &Cred,
        ino: u64,
        set: &SetAttr,
        may_write: bool,
        now: Time,
    ) -> Result<()> {
        self.check_set(cred, ino, set, may_write)?;
        let changes_data = set.size_bytes.is_some();
        if let Some(size) = set.size_bytes {
            self.resize(cred, ino, size)?;
        }
        let root = cred.uid == 0;
        let o = self.object_mut(ino);
        if set.uid.is_some() || set.gid.is_some() {
            o.attr.uid = set.uid.unwrap_or(o.attr.uid);
            o.attr.gid = set.gid.unwrap_or(o.attr.gid);
            if !o.is_dir() {
                o.attr.mode = super::object::without_set_id(o.attr.mode);
            }
        }
        if let Some(mode) = set.mode {
            let keeps_group_id =
                root || o.is_dir() && in_group(cred, o.attr.gid) || in_group(cred, o.attr.gid);
            o.attr.mode = if keeps_group_id { mode & 0o7777 } else { mode & 0o5777 };
        }
        if changes_data {
            self.touch_data(ino, now);
        } else if *set != SetAttr::default() {
            self.touch(ino, now);
        }
        let a = &mut self.object_mut(ino).attr;
        if let Some(t) = set.atime {
            a.atime = time(t, now);
        }
        if let Some(t) = set.mtime {
            a.mtime = time(t, now);
        }
        Ok(())
    }

    fn check_set(&self, cred: &Cred, ino: u64, set: &SetAttr, may_write: bool) -> Result<()> {
        let o = self.object(ino);
        if set.size_bytes.is_some() {
            o.pages()?;
            if !may_write {
                o.need(cred, 2)?;
            }
        }
        if set.mode.is_some() {
            o.need_owner(cred)?;
        }
        if set.uid.is_some_and(|uid| cred.uid != 0 && (uid != o.attr.uid || cred.uid != o.attr.uid)) {
            return Err(Error::new(libc::EPERM));
        }
        if let Some(gid) = set.gid
            && cred.uid != 0
            && (cred.uid != o.attr.uid || gid != o.attr.gid && !in_group(cred, gid))
        {
            return Err(Error::new(libc::EPERM));
        }
        for t in [set.atime, set.mtime].into_iter().flatten() {
            match t {
                SetTime::To(_) => o.need_owner(cred)?,
                SetTime::Now if o.owned_by(cred) => {}
                SetTime::Now => o.need(cred, 2)?,
            }
        }
        Ok(())
    }

    /// Sets the length of a file, as truncate(2) does.
    pub fn resize(&mut self, cred: &Cred, ino: u64, size: u64) -> Result<()> {
        if size > i64::MAX as u64 {
            return Err(Error::new(libc::EFBIG));
        }
        let o = self.object_mut(ino);
        if size < o.attr.size_bytes {
            let end = o.attr.size_bytes;
            o.pages_mut()?.punch(size, end.next_multiple_of(4096));
        }
        o.attr.size_bytes = size;
        o.drop_set_id(cred);
        self.settle(ino)
    }

    /// Removes an object without names and opens.
    pub fn reap(&mut self, ino: u64) {
        if self.objects.get(&ino).is_some_and(|o| o.attr.nlink == 0 && o.opens == 0) {
            let gone = self.objects.remove(&ino);
            self.used_bytes -= gone.map_or(0, |o| o.attr.used_bytes);
        }
    }

    fn may_remove(&self, cred: &Cred, dir: u64, victim: u64) -> Result<()> {
        let parent = self.object(dir);
        parent.need(cred, 3)?;
        if parent.sticky_forbids(cred, self.object(victim)) {
            return Err(Error::new(libc::EPERM));
        }
        Ok(())
    }

    fn drop_link(&mut self, ino: u64, now: Time) {
        self.touch(ino, now);
        let o = self.object_mut(ino);
        o.attr.nlink = if o.is_dir() { 0 } else { o.attr.nlink - 1 };
        self.reap(ino);
    }

    /// unlink(2) and rmdir(2).
    pub fn remove(
        &mut self,
        cred: &Cred,
        dir: u64,
        name: &Name,
        is_dir: bool,
        now: Time,
    ) -> Result<ChangeInfo> {
        let victim = self.lookup(cred, dir, name)?.ok_or_else(|| Error::new(libc::ENOENT))?;
        self.may_remove(cred, dir, victim)?;
        match (&self.object(victim).body, is_dir) {
            (Body::Dir(d), true) if !d.is_empty() => return Err(Error::new(libc::ENOTEMPTY)),
            (Body::Dir(_), false) => return Err(Error::new(libc::EISDIR)),
            (Body::Dir(_), true) => self.object_mut(dir).attr.nlink -= 1,
            (_, true) => return Err(Error::new(libc::ENOTDIR)),
            (_, false) => {}
        }
        let change = self.change_dir(dir, now, |d| d.remove(name))?;
        self.drop_link(victim, now);
        Ok(change)
    }

    /// link(2).
    pub fn link(&mut self, cred: &Cred, ino: u64, dir: u64, name: &Name, now: Time) -> Result<ChangeInfo> {
        if self.object(ino).is_dir() {
            return Err(Error::new(libc::EPERM));
        }
        if self.lookup(cred, dir, name)?.is_some() {
            return Err(Error::new(libc::EEXIST));
        }
        self.object(dir).need(cred, 3)?;
        if self.object(ino).attr.nlink == 0 || self.object(dir).attr.nlink == 0 {
            return Err(Error::new(libc::ENOENT));
        }
        self.object_mut(ino).attr.nlink += 1;
        self.touch(ino, now);
        self.change_dir(dir, now, |d| d.insert(name, ino))
    }

    /// renameat2(2).
    pub fn rename(
        &mut self,
        cred: &Cred,
        from: (u64, &Name),
        to: (u64, &Name),
        flags: RenameFlags,
        now: Time,
    ) -> Result<Moved> {
        let source = self.lookup(cred, from.0, from.1)?.ok_or_else(|| Error::new(libc::ENOENT))?;
        let target = self.lookup(cred, to.0, to.1)?;
        self.check_rename(cred, (from.0, source), (to.0, target), flags)?;
        let unchanged = |s: &Self, dir: u64| {
            let change = s.object(dir).attr.change;
            ChangeInfo { atomic: true, before: change, after: change, attrs: None }
        };
        if target == Some(source) {
            let (from, to) = (unchanged(self, from.0), unchanged(self, to.0));
            return Ok(Moved { from, to, object: Some(self.fh(source)), attrs: None });
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let source_is_dir = self.object(source).is_dir();
        let target_is_dir = target.is_some_and(|t| self.object(t).is_dir());
        let from_change = self.change_dir(from.0, now, |d| match target {
            Some(target) if exchange => d.insert(from.1, target),
            _ => d.remove(from.1),
        })?;
        let to_change = self.change_dir(to.0, now, |d| d.insert(to.1, source))?;
        self.move_parent(source, source_is_dir, from.0, to.0)?;
        self.touch(source, now);
        if let Some(target) = target {
            if exchange {
                self.move_parent(target, target_is_dir, to.0, from.0)?;
                self.touch(target, now);
            } else {
                if target_is_dir {
                    self.object_mut(to.0).attr.nlink -= 1;
                }
                self.drop_link(target, now);
            }
        }
        Ok(Moved { from: from_change, to: to_change, object: Some(self.fh(source)), attrs: None })
    }

    fn move_parent(&mut self, ino: u64, is_dir: bool, from: u64, to: u64) -> Result<()> {
        if is_dir && from != to {
            self.object_mut(ino).dir_mut()?.parent = to;
            self.object_mut(from).attr.nlink -= 1;
            self.object_mut(to).attr.nlink += 1;
        }
        Ok(())
    }

    /// The rules of rename(2) for the directories and objects on both sides.
    fn check_rename(
        &self,
        cred: &Cred,
        (from, source): (u64, u64),
        (to, target): (u64, Option<u64>),
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        self.may_remove(cred, from, source)?;
        self.object(to).need(cred, 3)?;
        let source_is_dir = self.object(source).is_dir();
        if source_is_dir && self.is_below(to, source) {
            return Err(Error::new(libc::EINVAL));
        }
        if source_is_dir && from != to {
            self.object(source).need(cred, 2)?;
        }
        if self.object(to).attr.nlink == 0 {
            return Err(Error::new(libc::ENOENT));
        }
        let Some(target) = target else {
            return if exchange { Err(Error::new(libc::ENOENT)) } else { Ok(()) };
        };
        if flags.contains(RenameFlags::NOREPLACE) {
            return Err(Error::new(libc::EEXIST));
        }
        if target == source {
            return Ok(());
        }
        self.may_remove(cred, to, target)?;
        let object = self.object(target);
        if exchange {
            if object.is_dir() && self.is_below(from, target) {
                return Err(Error::new(libc::EINVAL));
            }
            if object.is_dir() && from != to {
                object.need(cred, 2)?;
            }
            return Ok(());
        }
        match (source_is_dir, &object.body) {
            (true, Body::Dir(d)) if !d.is_empty() => Err(Error::new(libc::ENOTEMPTY)),
            (true, Body::Dir(_)) => Ok(()),
            (true, _) => Err(Error::new(libc::ENOTDIR)),
            (false, Body::Dir(_)) => Err(Error::new(libc::EISDIR)),
            (false, _) => Ok(()),
        }
    }

    /// Whether `dir` is `top` or lies below it.
    fn is_below(&self, mut dir: u64, top: u64) -> bool {
        loop {
            if dir == top {
                return true;
            }
            match &self.object(dir).body {
                Body::Dir(d) if d.parent != dir && self.objects.contains_key(&d.parent) => dir = d.parent,
                _ => return false,
            }
        }
    }
}

fn time(set: SetTime, now: Time) -> Time {
    match set {
        SetTime::Now => now,
        SetTime::To(t) => t,
    }
}
