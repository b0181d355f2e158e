//! A file system in memory with POSIX semantics, the reference for implementations of [`Vfs`].
//!
//! It replaces a server in tests. All objects are in one table under one lock. Each call checks the
//! caller's permissions like a server, and returns fresh attributes. A test that calls the
//! [`Model`] directly acts as another client of the server.

mod extra;
mod locks;
mod object;
mod pages;
mod state;
#[cfg(test)]
mod tests;
pub mod wire;

use crate::{
    Access, Along, Attrs, BatchOps, ChangeInfo, Create, Creation, Data, DirEntry, DirPage, Env, Error,
    Fetched, Fh, File, FileKind, FileRange, Finished, FsStat, LockConflict, LockKind, LockOwner, LockWait,
    Made, Moved, Name, Node, OpenAccess, OpenHow, OpenId, Opened, PathRef, Read, ReadManyResult, Removal,
    RenameFlags, RequestContext, Result, Seek, SetAttr, Special, Stability, Stop, Time, Upcalls, Validity,
    Vfs, WalkRequest, WalkResult, Wrote, XattrMode,
};
use async_trait::async_trait;
use bytes::Bytes;
use extra::check_xattr_name;
use object::{Body, Dir};
use parking_lot::Mutex;
use state::{New, Open, ROOT, State};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Largest extended attribute, in bytes (`XATTR_SIZE_MAX`).
const XATTR_MAX_BYTES: usize = 65536;
/// Size in bytes that a listing page counts for an entry, without its name.
const ENTRY_BYTES: usize = 32;
/// As [`ENTRY_BYTES`], for an entry with filehandle and attributes.
const NODE_ENTRY_BYTES: usize = 160;

/// The file system. Calls are cheap and do no I/O. It is shared by reference.
pub struct Model {
    state: Mutex<State>,
    env: Env,
    validity: Duration,
    unlocked: Notify,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

impl Model {
    /// An empty file system of `capacity_bytes`. The root has mode 0755 and belongs to the
    /// superuser. Answers are valid for `validity` (zero: [`Validity::Once`]).
    pub fn new(env: Env, validity: Duration, capacity_bytes: u64) -> Self {
        let now = wall(&env);
        Self { state: Mutex::new(State::new(capacity_bytes, now)), env, validity, unlocked: Notify::new() }
    }

    /// Number of opens without a close; zero after an orderly end.
    pub fn open_count(&self) -> usize {
        self.state.lock().opens.len()
    }

    /// Number of objects, including unlinked ones that are still open.
    pub fn object_count(&self) -> usize {
        self.state.lock().objects.len()
    }

    fn now(&self) -> Time {
        wall(&self.env)
    }

    fn valid(&self) -> Validity {
        if self.validity.is_zero() { Validity::Once } else { Validity::Until(Instant::now() + self.validity) }
    }

    fn attrs(&self, s: &State, ino: u64) -> Attrs {
        Attrs { attr: s.object(ino).attr.clone(), valid: self.valid(), asked: Instant::now() }
    }

    fn node(&self, s: &State, ino: u64) -> Node {
        Node { fh: s.fh(ino), attrs: self.attrs(s, ino) }
    }

    fn steps(&self, s: &State, cx: &RequestContext, at: PathRef<'_>) -> Result<(Vec<Node>, Stop)> {
        let mut here = s.ino(at.base)?;
        if at.path.is_empty() {
            return Ok((vec![self.node(s, here)], Stop::Complete));
        }
        let mut steps = Vec::with_capacity(at.path.len());
        for name in at.path {
            let stop = match s.object(here).attr.kind {
                FileKind::Directory => match s.lookup(&cx.cred, here, name) {
                    Ok(Some(ino)) => {
                        here = ino;
                        steps.push(self.node(s, ino));
                        continue;
                    }
                    Ok(None) => Stop::Missing(self.valid()),
                    Err(e) => Stop::Failed(e),
                },
                FileKind::Symlink => Stop::Symlink,
                _ => Stop::NotDirectory,
            };
            return Ok((steps, stop));
        }
        Ok((steps, Stop::Complete))
    }

    fn page(
        &self,
        s: &State,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        let dir = s.ino(dir)?;
        let object = s.object(dir);
        let listing = object.dir()?;
        object.need(&cx.cred, 4)?;
        let nodes = nodes && object.need(&cx.cred, 1).is_ok();
        let each = if nodes { NODE_ENTRY_BYTES } else { ENTRY_BYTES };
        let (mut entries, mut bytes, mut eof) = (Vec::new(), 0, true);
        for (cookie, name, ino) in listing.after(cookie) {
            bytes += each + name.as_bytes().len();
            if bytes > max_bytes as usize && !entries.is_empty() {
                eof = false;
                break;
            }
            entries.push(DirEntry {
                name: name.clone(),
                cookie,
                fileid: ino,
                kind: Some(s.object(ino).attr.kind),
                node: nodes.then(|| self.node(s, ino)),
            });
        }
        Ok(DirPage { entries, verifier: *b"model\0\0\0", eof, access: None })
    }

    fn make(&self, cx: &RequestContext, dir: &Fh, name: &Name, new: New, set: &SetAttr) -> Result<Made> {
        let mut s = self.state.lock();
        let dir = s.ino(dir)?;
        let (ino, dir) = s.create(&cx.cred, dir, name, new, set, self.now())?;
        Ok(Made { node: self.node(&s, ino), dir })
    }

    /// Walks to the directory that holds the last name of a path.
    fn parent_of<'a>(&self, s: &State, cx: &RequestContext, at: PathRef<'a>) -> Result<(u64, &'a Name)> {
        let (last, above) = at.path.split_last().ok_or_else(|| Error::new(libc::EINVAL))?;
        let mut dir = s.ino(at.base)?;
        for name in above {
            dir = s.lookup(&cx.cred, dir, name)?.ok_or_else(|| Error::new(libc::ENOENT))?;
        }
        Ok((dir, last))
    }

    fn add_open(&self, s: &mut State, ino: u64, access: OpenAccess) -> OpenId {
        let id = s.next_open;
        s.next_open += 1;
        s.opens.insert(id, Open { ino, access });
        s.object_mut(ino).opens += 1;
        OpenId(id)
    }

    /// Object of a file address. With an open, the open decides the right to `access`.
    fn file(&self, s: &State, cx: &RequestContext, file: File<'_>, access: OpenAccess) -> Result<u64> {
        let ino = s.ino(file.fh)?;
        match file.open {
            Some(id) => match s.opens.get(&id.0) {
                Some(open) if open.ino == ino && open.access.contains(access) => Ok(ino),
                _ => Err(Error::new(libc::EBADF)),
            },
            None => {
                let bits = if access.contains(OpenAccess::WRITE) { 2 } else { 4 };
                let object = s.object(ino);
                // As on NFS servers: the owner may always read and write the file.
                if !object.owned_by(&cx.cred) {
                    object.need(&cx.cred, bits)?;
                }
                Ok(ino)
            }
        }
    }

    fn write_now(&self, cx: &RequestContext, file: File<'_>, at: u64, data: &Data) -> Result<Wrote> {
        let mut s = self.state.lock();
        let ino = self.file(&s, cx, file, OpenAccess::WRITE)?;
        let len = data.len() as u64;
        let end = at.checked_add(len).filter(|&e| e <= i64::MAX as u64);
        let end = end.ok_or_else(|| Error::new(libc::EFBIG))?;
        self.room(&s, s.object(ino).pages()?.growth_bytes(at, len))?;
        let o = s.object_mut(ino);
        let mut to = at;
        for part in data.parts() {
            o.pages_mut()?.write(to, part);
            to += part.len() as u64;
        }
        o.attr.size_bytes = o.attr.size_bytes.max(end);
        o.drop_set_id(&cx.cred);
        s.settle(ino)?;
        s.touch_data(ino, self.now());
        Ok(Wrote { bytes: len, attrs: Some(self.attrs(&s, ino)) })
    }

    fn room(&self, s: &State, growth_bytes: u64) -> Result<()> {
        if growth_bytes > 0
            && s.capacity_bytes != u64::MAX
            && s.used_bytes() + growth_bytes > s.capacity_bytes
        {
            return Err(Error::new(libc::ENOSPC));
        }
        Ok(())
    }

    fn open_existing(&self, s: &mut State, cx: &RequestContext, ino: u64, how: &OpenHow) -> Result<OpenId> {
        let o = s.object(ino);
        match o.attr.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Error::new(libc::EISDIR)),
            FileKind::Symlink => return Err(Error::new(libc::ELOOP)),
            _ => return Err(Error::new(libc::EINVAL)),
        }
        let mut bits = 0;
        if how.execute {
            bits |= 1;
        } else if how.access.contains(OpenAccess::READ) {
            bits |= 4;
        }
        if how.access.contains(OpenAccess::WRITE) || how.truncate {
            bits |= 2;
        }
        o.need(&cx.cred, bits)?;
        if how.truncate {
            let set = SetAttr { size_bytes: Some(0), ..Default::default() };
            s.set_attr(&cx.cred, ino, &set, true, self.now())?;
        }
        Ok(self.add_open(s, ino, how.access))
    }
}

fn wall(env: &Env) -> Time {
    let since = (env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

#[async_trait]
impl Vfs for Model {
    async fn root(&self, _cx: &RequestContext) -> Result<Node> {
        Ok(self.node(&self.state.lock(), ROOT))
    }

    fn peek(&self, _cx: &RequestContext, _at: PathRef<'_>) -> Option<WalkResult> {
        None
    }

    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult> {
        let s = self.state.lock();
        let (steps, stop) = self.steps(&s, cx, at)?;
        let last = at.path.len().checked_sub(1);
        let base = last.is_some().then(|| s.ino(at.base).map(|base| self.attrs(&s, base))).transpose()?;
        let mut along = Along { base, ..Along::default() };
        if want.listing_bytes > 0 && last.is_some_and(|last| steps.len() >= last) {
            let dir = last.and_then(|last| last.checked_sub(1)).map_or(at.base, |i| &steps[i].fh);
            along.listing = self.page(&s, cx, dir, 0, want.listing_bytes, true).ok();
        }
        if let (Stop::Complete, Some(node)) = (&stop, steps.last()) {
            let object = s.object(s.ino(&node.fh)?);
            if !want.access.is_empty() {
                along.access = Some(object.access(&cx.cred, want.access));
            }
            if want.target {
                along.target = object.target().cloned();
            }
            if object.need(&cx.cred, 4).is_ok() {
                along.first = object.first(want.read_bytes);
            }
        }
        Ok(WalkResult { steps, stop, along })
    }

    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node> {
        let s = self.state.lock();
        let dir = s.object(s.ino(dir)?);
        let parent = dir.dir()?.parent;
        if dir.attr.fileid == ROOT {
            return Err(Error::new(libc::ENOENT));
        }
        dir.need(&cx.cred, 1)?;
        if !s.objects.contains_key(&parent) {
            return Err(Error::new(libc::ESTALE));
        }
        Ok(self.node(&s, parent))
    }

    async fn getattr(&self, _cx: &RequestContext, file: File<'_>) -> Result<Attrs> {
        let s = self.state.lock();
        let ino = s.ino(file.fh)?;
        Ok(self.attrs(&s, ino))
    }

    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs> {
        let mut s = self.state.lock();
        let ino = s.ino(file.fh)?;
        let may_write = match file.open {
            Some(_) => self.file(&s, cx, file, OpenAccess::WRITE).is_ok(),
            None => false,
        };
        s.set_attr(&cx.cred, ino, set, may_write, self.now())?;
        Ok(self.attrs(&s, ino))
    }

    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access> {
        let s = self.state.lock();
        let ino = s.ino(fh)?;
        Ok(s.object(ino).access(&cx.cred, want))
    }

    async fn readlink(&self, _cx: &RequestContext, fh: &Fh) -> Result<Bytes> {
        let s = self.state.lock();
        let ino = s.ino(fh)?;
        s.object(ino).target().cloned().ok_or(Error::new(libc::EINVAL))
    }

    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened> {
        let mut s = self.state.lock();
        let reads = how.access.contains(OpenAccess::READ) && how.create == Create::No && !how.truncate;
        let first = |s: &State, ino| s.object(ino).first(how.first_bytes).filter(|_| reads);
        let done = |s: &State, ino, open, created, dir| Opened {
            node: self.node(s, ino),
            open,
            created,
            dir,
            first: first(s, ino),
            backing: None,
        };
        if at.path.is_empty() {
            let ino = s.ino(at.base)?;
            let open = self.open_existing(&mut s, cx, ino, how)?;
            return Ok(done(&s, ino, open, false, None));
        }
        let (dir, name) = self.parent_of(&s, cx, at)?;
        let found = s.lookup(&cx.cred, dir, name)?;
        let set = match (&how.create, found) {
            (Create::Exclusive(_), Some(_)) => return Err(Error::new(libc::EEXIST)),
            (Create::No, None) => return Err(Error::new(libc::ENOENT)),
            (_, Some(ino)) => {
                let open = self.open_existing(&mut s, cx, ino, how)?;
                return Ok(done(&s, ino, open, false, None));
            }
            (Create::IfMissing(set) | Create::Exclusive(set), None) => set,
        };
        let new = New { kind: FileKind::Regular, body: Body::File(Default::default()), rdev: (0, 0) };
        let (ino, change) = s.create(&cx.cred, dir, name, new, set, self.now())?;
        let open = self.add_open(&mut s, ino, how.access);
        Ok(done(&s, ino, open, true, Some(change)))
    }

    async fn close(&self, _cx: &RequestContext, _fh: &Fh, open: OpenId) -> Result<()> {
        let mut s = self.state.lock();
        let open = s.opens.remove(&open.0).ok_or_else(|| Error::new(libc::EBADF))?;
        s.object_mut(open.ino).opens -= 1;
        s.reap(open.ino);
        Ok(())
    }

    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read> {
        let mut s = self.state.lock();
        let ino = self.file(&s, cx, file, OpenAccess::READ)?;
        let o = s.object(ino);
        let left = o.attr.size_bytes.saturating_sub(offset_bytes);
        let len = left.min(u64::from(len_bytes));
        let data = o.pages()?.read(offset_bytes, len as usize);
        if o.attr.atime <= o.attr.mtime {
            s.object_mut(ino).attr.atime = self.now();
        }
        Ok(Read { data: data.into(), eof: len == left })
    }

    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        _stability: Stability,
    ) -> Result<Wrote> {
        self.write_now(cx, file, offset_bytes, &data)
    }

    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished> {
        crate::finish_in_steps(self, cx, file, piece, set).await
    }

    async fn commit(&self, _cx: &RequestContext, file: File<'_>) -> Result<()> {
        self.state.lock().ino(file.fh).map(drop)
    }

    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made> {
        crate::create_in_steps(self, cx, (dir, name), set, data).await
    }

    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made> {
        let new = New { kind: FileKind::Directory, body: Body::Dir(Dir::new(ROOT)), rdev: (0, 0) };
        self.make(cx, dir, name, new, set)
    }

    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made> {
        let (kind, rdev) = match *what {
            Special::Fifo => (FileKind::Fifo, (0, 0)),
            Special::Socket => (FileKind::Socket, (0, 0)),
            Special::CharDevice(major, minor) => (FileKind::CharDevice, (major, minor)),
            Special::BlockDevice(major, minor) => (FileKind::BlockDevice, (major, minor)),
            Special::Regular => (FileKind::Regular, (0, 0)),
        };
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        if is_device && cx.cred.uid != 0 {
            return Err(Error::new(libc::EPERM));
        }
        let body = if kind == FileKind::Regular { Body::File(Default::default()) } else { Body::Special };
        self.make(cx, dir, name, New { kind, body, rdev }, set)
    }

    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made> {
        let set = SetAttr { mode: Some(0o777), ..set.clone() };
        let body = Body::Symlink(target.clone());
        self.make(cx, dir, name, New { kind: FileKind::Symlink, body, rdev: (0, 0) }, &set)
    }

    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made> {
        let mut s = self.state.lock();
        let (ino, dir) = (s.ino(fh)?, s.ino(dir)?);
        let dir = s.link(&cx.cred, ino, dir, name, self.now())?;
        Ok(Made { node: self.node(&s, ino), dir })
    }

    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        _target: Option<&Fh>,
    ) -> Result<ChangeInfo> {
        let mut s = self.state.lock();
        let dir = s.ino(dir)?;
        s.remove(&cx.cred, dir, name, false, self.now())
    }

    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo> {
        let mut s = self.state.lock();
        let dir = s.ino(dir)?;
        s.remove(&cx.cred, dir, name, true, self.now())
    }

    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        _replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved> {
        let mut s = self.state.lock();
        let (from_dir, to_dir) = (s.ino(from.0)?, s.ino(to.0)?);
        let mut moved = s.rename(&cx.cred, (from_dir, from.1), (to_dir, to.1), flags, self.now())?;
        if let Some(object) = &moved.object {
            moved.attrs = Some(self.attrs(&s, s.ino(object)?));
        }
        Ok(moved)
    }

    async fn readdir(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        _verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage> {
        self.page(&self.state.lock(), cx, dir, cookie, max_bytes, nodes)
    }

    async fn statfs(&self, _cx: &RequestContext, fh: &Fh) -> Result<FsStat> {
        let s = self.state.lock();
        s.ino(fh)?;
        let total_bytes = s.capacity_bytes.min(1 << 50);
        let free_bytes = total_bytes.saturating_sub(s.used_bytes());
        let total_files = 1 << 32;
        let free_files = total_files - s.objects.len() as u64;
        Ok(FsStat {
            total_bytes,
            free_bytes,
            avail_bytes: free_bytes,
            total_files,
            free_files,
            avail_files: free_files,
            name_max_bytes: Name::MAX_BYTES as u32,
        })
    }

    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes> {
        let s = self.state.lock();
        let ino = s.ino(fh)?;
        check_xattr_name(name)?;
        s.object(ino).need(&cx.cred, 4)?;
        s.object(ino).xattrs.get(name).cloned().ok_or_else(|| Error::new(libc::ENODATA))
    }

    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()> {
        let mut s = self.state.lock();
        let ino = s.ino(fh)?;
        check_xattr_name(name)?;
        let o = s.object_mut(ino);
        if !matches!(o.attr.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Error::new(libc::EPERM));
        }
        o.need(&cx.cred, 2)?;
        if value.len() > XATTR_MAX_BYTES {
            return Err(Error::new(libc::E2BIG));
        }
        match (mode, o.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Error::new(libc::EEXIST)),
            (XattrMode::Replace, false) => return Err(Error::new(libc::ENODATA)),
            _ => {}
        }
        // A copy, because the caller's buffer may be much larger than the value.
        o.xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value));
        s.touch(ino, self.now());
        Ok(())
    }

    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>> {
        let s = self.state.lock();
        let ino = s.ino(fh)?;
        let o = s.object(ino);
        o.need(&cx.cred, 4)?;
        Ok(o.xattrs.keys().map(|name| Bytes::copy_from_slice(name)).collect())
    }

    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()> {
        let mut s = self.state.lock();
        let ino = s.ino(fh)?;
        check_xattr_name(name)?;
        s.object(ino).need(&cx.cred, 2)?;
        s.object_mut(ino).xattrs.remove(name).ok_or_else(|| Error::new(libc::ENODATA))?;
        s.touch(ino, self.now());
        Ok(())
    }

    async fn lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<Option<Attrs>> {
        loop {
            let released = self.unlocked.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            {
                let mut s = self.state.lock();
                let ino = s.ino(file.fh)?;
                let locks = &mut s.object_mut(ino).locks;
                if locks.conflict(owner, kind, range).is_none() {
                    // A downgrade may unblock another waiter.
                    if locks.release(owner, range) && kind == LockKind::Read {
                        self.unlocked.notify_waiters();
                    }
                    locks.take(owner, kind, range);
                    return Ok(Some(self.attrs(&s, ino)));
                }
            }
            if wait == LockWait::No {
                return Err(Error::new(libc::EAGAIN));
            }
            tokio::select! {
                () = released => {}
                () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR)),
            }
        }
    }

    async fn unlock(
        &self,
        _cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()> {
        let mut s = self.state.lock();
        let ino = s.ino(file.fh)?;
        let locks = &mut s.object_mut(ino).locks;
        if !locks.is_empty() && locks.release(owner, range) {
            self.unlocked.notify_waiters();
        }
        Ok(())
    }

    async fn test_lock(
        &self,
        _cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>> {
        let s = self.state.lock();
        let ino = s.ino(file.fh)?;
        Ok(s.object(ino).locks.conflict(owner, kind, range))
    }

    async fn seek(&self, _cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64> {
        let s = self.state.lock();
        let ino = s.ino(file.fh)?;
        let o = s.object(ino);
        let size = o.attr.size_bytes;
        if offset_bytes >= size {
            return Err(Error::new(libc::ENXIO));
        }
        match what {
            Seek::Data => o.pages()?.next_data(offset_bytes, size).ok_or_else(|| Error::new(libc::ENXIO)),
            Seek::Hole => Ok(o.pages()?.next_hole(offset_bytes, size)),
        }
    }

    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let mut s = self.state.lock();
        let ino = self.file(&s, cx, file, OpenAccess::WRITE)?;
        let len = range.end_bytes.saturating_sub(range.start_bytes);
        self.room(&s, s.object(ino).pages()?.growth_bytes(range.start_bytes, len))?;
        if range.end_bytes > 1 << 40 {
            return Err(Error::new(libc::ENOSPC));
        }
        let o = s.object_mut(ino);
        o.pages_mut()?.reserve(range.start_bytes, range.end_bytes);
        o.attr.size_bytes = o.attr.size_bytes.max(range.end_bytes);
        o.drop_set_id(&cx.cred);
        s.settle(ino)?;
        s.touch_data(ino, self.now());
        Ok(())
    }

    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()> {
        let mut s = self.state.lock();
        let ino = self.file(&s, cx, file, OpenAccess::WRITE)?;
        let o = s.object_mut(ino);
        o.pages_mut()?.punch(range.start_bytes, range.end_bytes);
        o.drop_set_id(&cx.cred);
        s.settle(ino)?;
        s.touch_data(ino, self.now());
        Ok(())
    }

    async fn copy(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        // At most 1 MiB per call, so that callers are tested with short copies.
        let len = len_bytes.min(1 << 20) as u32;
        let read = self.read(cx, from, from_offset_bytes, len).await?;
        if read.data.is_empty() {
            return Ok(0);
        }
        Ok(self.write_now(cx, to, to_offset_bytes, &read.data)?.bytes)
    }

    fn subscribe(&self, _upcalls: std::sync::Arc<dyn Upcalls>) {}

    async fn shutdown(&self, _cx: &RequestContext) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl BatchOps for Model {
    async fn getattr_many(&self, cx: &RequestContext, objects: &[Fh]) -> Vec<Result<Attrs>> {
        let mut out = Vec::with_capacity(objects.len());
        for fh in objects {
            out.push(self.getattr(cx, File { fh, open: None }).await);
        }
        out
    }

    async fn revalidate_many(
        &self,
        cx: &RequestContext,
        objects: &[Fh],
        want: Access,
    ) -> Vec<Result<(Attrs, Access)>> {
        let s = self.state.lock();
        let prove = |fh| {
            let ino = s.ino(fh)?;
            Ok((self.attrs(&s, ino), s.object(ino).access(&cx.cred, want)))
        };
        objects.iter().map(prove).collect()
    }

    async fn read_many(
        &self,
        cx: &RequestContext,
        files: &[Fh],
        holder: Option<&Fh>,
        max_bytes: u32,
    ) -> ReadManyResult {
        let mut all = Vec::with_capacity(files.len());
        for fh in files {
            let read = self.read(cx, File { fh, open: None }, 0, max_bytes).await;
            let attrs = self.getattr(cx, File { fh, open: None }).await;
            all.push(read.and_then(|read| Ok(Fetched { attrs: attrs?, read })));
        }
        let holder = match holder {
            Some(fh) => self.getattr(cx, File { fh, open: None }).await.ok(),
            None => None,
        };
        ReadManyResult { files: all, holder }
    }

    async fn list_many(
        &self,
        cx: &RequestContext,
        dirs: &[Fh],
        max_bytes: u32,
    ) -> Vec<Result<(Attrs, DirPage)>> {
        let s = self.state.lock();
        let list = |dir| {
            let mut page = self.page(&s, cx, dir, 0, max_bytes, true)?;
            let ino = s.ino(dir)?;
            // As NFSv4 does for several directories.
            page.access = (dirs.len() > 1).then(|| s.object(ino).access(&cx.cred, Access::all()));
            Ok((self.attrs(&s, ino), page))
        };
        dirs.iter().map(list).collect()
    }

    async fn create_many(&self, cx: &RequestContext, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>> {
        crate::create_many_in_steps(self, cx, dir, new).await
    }

    async fn remove_many(&self, cx: &RequestContext, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>> {
        crate::remove_many_in_steps(self, cx, dir, gone).await
    }
}
