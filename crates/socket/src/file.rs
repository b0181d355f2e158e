//! Open files. They belong to the connection and the identity that opened them.

use crate::conn::{Connection, told};
use crate::frames::Reply;
use crate::path::{Found, wants_directory};
use crate::stats::add;
use bytes::Bytes;
use hither_client::wire::{
    self, APPEND_AT, NO_FOLLOW, OPEN_CREATE, OPEN_EXCLUSIVE, OPEN_READ, OPEN_TRUNCATE, OPEN_WRITE,
    WRITE_APPEND, WRITE_STABLE,
};
use hither_vfs::{
    Access, Backing, Create, Data, Error, Fh, File, FileKind, Name, OpenAccess, OpenHow, OpenId, Opened,
    PathRef, RequestContext, Result, SetAttr, Stability, Touched, WalkRequest,
};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, RwLock};
use tokio::time::Instant;

/// Maximum offset in a file, as in system calls.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Maximum number of open files per connection.
const FILES_MAX: usize = 1024;
/// Maximum number of attempts to open a path that changes meanwhile.
const TRIES: usize = 4;
/// Maximum number of first bytes that an open for reading fetches.
pub(crate) const FIRST_BYTES: u32 = 64 << 10;

/// Maximum number of running closes of read opens per connection. Beyond it a program waits for its
/// close.
const CLOSING_MAX: usize = 1024;

/// Number of locks for appends. Several files share one lock, so an append may wait for an append
/// to another file.
const APPENDING: usize = 64;

/// The locks for appends. A program holds the lock of the file during an append.
pub(crate) struct Appending {
    locks: [tokio::sync::Mutex<()>; APPENDING],
    hashed: RandomState,
}

impl Default for Appending {
    fn default() -> Self {
        Self { locks: std::array::from_fn(|_| Default::default()), hashed: RandomState::new() }
    }
}

impl Appending {
    fn of(&self, fh: &Fh) -> &tokio::sync::Mutex<()> {
        &self.locks[self.hashed.hash_one(fh) as usize % APPENDING]
    }
}

/// An open file.
pub(crate) struct OpenFile {
    fh: Fh,
    open: OpenId,
    access: OpenAccess,
    written: AtomicBool,
    /// The error of a partial write.
    failed: Mutex<Option<Error>>,
    backing: Option<Backing>,
    /// Calls hold it for reading, the close for writing.
    using: RwLock<()>,
}

impl OpenFile {
    fn at(&self) -> File<'_> {
        File { fh: &self.fh, open: Some(self.open) }
    }

    fn contents(&self) -> [Touched; 1] {
        [Touched::Contents(self.fh.clone())]
    }

    /// Returns the error of an earlier partial write once.
    fn check(&self) -> Result<()> {
        self.failed.lock().take().map_or(Ok(()), Err)
    }
}

impl Connection {
    /// Opens a path.
    pub async fn open(
        &self,
        cx: &RequestContext,
        path: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<wire::Opened> {
        let has = |flag| flags & flag != 0;
        let mut access = OpenAccess::empty();
        access.set(OpenAccess::READ, has(OPEN_READ));
        access.set(OpenAccess::WRITE, has(OPEN_WRITE));
        if access.is_empty() || has(OPEN_TRUNCATE) && !has(OPEN_WRITE) {
            return Err(Error::new(libc::EINVAL));
        }
        if has(OPEN_WRITE) || has(OPEN_CREATE) {
            self.writable()?;
        }
        if self.files.lock().len() >= FILES_MAX {
            return Err(Error::new(libc::EMFILE));
        }
        let mut tries = TRIES;
        let opened = loop {
            tries -= 1;
            match self.open_once(cx, path, flags, mode, access).await {
                // The name leads to another object now.
                Err(e) if tries > 0 && matches!(e.errno, libc::ESTALE | libc::ELOOP) => {}
                Err(e) if tries > 0 && e.errno == libc::ENOENT && has(OPEN_CREATE) => {}
                Err(e) if tries > 0 && e.errno == libc::EEXIST && !has(OPEN_EXCLUSIVE) => {}
                outcome => break outcome?,
            }
        };
        let Opened { node, open, backing, .. } = opened;
        let file = OpenFile {
            fh: node.fh,
            open,
            access,
            written: AtomicBool::new(has(OPEN_TRUNCATE)),
            failed: Mutex::default(),
            backing: backing.filter(|_| self.shared.options.lends),
            using: RwLock::new(()),
        };
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        add(&self.shared.stats.files_open, 1);
        self.files.lock().insert(number, Arc::new(file));
        Ok(wire::Opened { file: number, attr: told(&node.attrs.attr) })
    }

    async fn open_once(
        &self,
        cx: &RequestContext,
        path: &[u8],
        flags: u32,
        mode: u32,
        access: OpenAccess,
    ) -> Result<Opened> {
        let cx = &self.opening(cx);
        let has = |flag| flags & flag != 0;
        let reads = access == OpenAccess::READ;
        let want = if reads {
            WalkRequest { read_bytes: FIRST_BYTES, access: Access::READ, ..WalkRequest::default() }
        } else {
            WalkRequest::default()
        };
        let how = |create: Create, truncate: bool| OpenHow {
            create,
            truncate,
            first_bytes: if reads { FIRST_BYTES } else { 0 },
            ..OpenHow::existing(access)
        };
        let plain = RequestContext { fresh_since: None, ..cx.clone() };
        let follow = !has(NO_FOLLOW) && !has(OPEN_EXCLUSIVE);
        match self.shared.find(&plain, path, follow, want).await? {
            Found::Object { .. } if has(OPEN_EXCLUSIVE) && has(OPEN_CREATE) => Err(Error::new(libc::EEXIST)),
            Found::Object { node, at, .. } => {
                let (dir, name) = match (node.attrs.attr.kind, at) {
                    (FileKind::Regular, Some(at)) => at,
                    (FileKind::Directory, _) => return Err(Error::new(libc::EISDIR)),
                    (FileKind::Symlink, _) => return Err(Error::new(libc::ELOOP)),
                    _ => return Err(Error::new(libc::EOPNOTSUPP)),
                };
                let how = how(Create::No, has(OPEN_TRUNCATE));
                let call = self.shared.vfs.open(cx, PathRef::name(&dir, &name), &how);
                if how.truncate {
                    self.shared.change(&[Touched::Contents(node.fh.clone())], call).await
                } else {
                    call.await
                }
            }
            Found::Missing { .. } if has(OPEN_CREATE) && wants_directory(path) => {
                Err(Error::new(libc::EISDIR))
            }
            Found::Missing { dir, name } if has(OPEN_CREATE) => {
                let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
                let create =
                    if has(OPEN_EXCLUSIVE) { Create::Exclusive(set) } else { Create::IfMissing(set) };
                let how = how(create, has(OPEN_TRUNCATE));
                let call = self.shared.vfs.open(cx, PathRef::name(&dir, &name), &how);
                self.shared.change(&created(&dir, &name), call).await
            }
            Found::Missing { .. } => Err(Error::new(libc::ENOENT)),
        }
    }

    fn file(&self, number: u64) -> Result<Arc<OpenFile>> {
        self.files.lock().get(&number).cloned().ok_or_else(|| Error::new(libc::EBADF))
    }

    /// An open file with this access.
    fn file_for(&self, number: u64, access: OpenAccess) -> Result<Arc<OpenFile>> {
        let file = self.file(number)?;
        if file.access.contains(access) { Ok(file) } else { Err(Error::new(libc::EBADF)) }
    }

    /// Reads. Returns the reply and its reserved bytes.
    pub async fn read(
        &self,
        cx: &RequestContext,
        reply: &Reply,
        number: u64,
        offset: u64,
        len: u32,
    ) -> Result<(Vec<Bytes>, OwnedSemaphorePermit)> {
        let file = self.file_for(number, OpenAccess::READ)?;
        let allowance = reply.allow(len as usize).await?;
        let using = file.using.read().await;
        let (data, eof) = read_on(self, cx, file.at(), offset, len).await?;
        drop(using);
        let mut parts = vec![Bytes::from_static(if eof { &[1] } else { &[0] })];
        parts.extend(data.parts().iter().cloned());
        add(&self.shared.stats.read_bytes, data.len() as u64);
        Ok((parts, allowance))
    }

    /// Writes. Returns the number of written bytes and their offset.
    pub async fn write(
        &self,
        cx: &RequestContext,
        number: u64,
        offset: u64,
        flags: u32,
        data: Bytes,
    ) -> Result<(u32, u64)> {
        let file = self.file_for(number, OpenAccess::WRITE)?;
        let appends = flags & WRITE_APPEND != 0;
        if flags & !(WRITE_STABLE | WRITE_APPEND) != 0 || appends && offset != APPEND_AT {
            return Err(Error::new(libc::EINVAL));
        }
        let _using = file.using.read().await;
        let stability = if flags & WRITE_STABLE != 0 { Stability::Stable } else { Stability::Unstable };
        // Appends are serial: each starts at the end of the previous one.
        let _alone = if appends { Some(self.shared.appending.of(&file.fh).lock().await) } else { None };
        let offset = if appends { self.end_of(cx, &file).await? } else { offset };
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > OFFSET_MAX) {
            return Err(Error::new(libc::EFBIG));
        }
        file.check()?;
        file.written.store(true, Ordering::Relaxed);
        let most = self.shared.options.max_io_bytes.max(4096) as usize;
        let call = async {
            let mut done = 0;
            while done < data.len() {
                let part = data.slice(done..data.len().min(done + most));
                let at = offset + done as u64;
                let wrote = self.shared.vfs.write(cx, file.at(), at, Data::from(part), stability).await;
                let wrote = match wrote {
                    Ok(wrote) if wrote.bytes == 0 => Err(Error::because(libc::EIO, "nothing was written")),
                    wrote => wrote,
                };
                match wrote {
                    Ok(wrote) => done += wrote.bytes as usize,
                    Err(e) if done == 0 => return Err(e),
                    Err(e) => {
                        *file.failed.lock() = Some(e);
                        break;
                    }
                }
            }
            Ok(done as u32)
        };
        let n = self.shared.change(&file.contents(), call).await?;
        add(&self.shared.stats.written_bytes, u64::from(n));
        Ok((n, offset))
    }

    /// The current end of a file. The server is asked unless a lease covers the attributes, so that
    /// an append does not overwrite other clients' appends.
    async fn end_of(&self, cx: &RequestContext, file: &OpenFile) -> Result<u64> {
        let asking = RequestContext { times_unseen: true, ..cx.fresh(Instant::now()) };
        self.shared.vfs.getattr(&asking, file.at()).await.map(|attrs| attrs.attr.size_bytes)
    }

    /// Makes all written data stable.
    pub async fn sync(&self, cx: &RequestContext, number: u64) -> Result<()> {
        let file = self.file(number)?;
        let _using = file.using.read().await;
        file.check()?;
        let call = self.shared.vfs.commit(cx, file.at());
        if file.written.load(Ordering::Relaxed) {
            // From now on the times are the server's.
            self.shared.change(&file.contents(), call).await
        } else {
            call.await
        }
    }

    /// Sets the length.
    pub async fn set_len(&self, cx: &RequestContext, number: u64, len: u64) -> Result<()> {
        let file = self.file_for(number, OpenAccess::WRITE)?;
        if len > OFFSET_MAX {
            return Err(Error::new(libc::EFBIG));
        }
        let _using = file.using.read().await;
        file.written.store(true, Ordering::Relaxed);
        let set = SetAttr { size_bytes: Some(len), ..SetAttr::default() };
        let call = self.shared.vfs.setattr(cx, file.at(), &set);
        self.shared.change(&file.contents(), call).await.map(drop)
    }

    /// Attributes.
    pub async fn stat_file(&self, cx: &RequestContext, number: u64) -> Result<wire::Attr> {
        let file = self.file(number)?;
        let _using = file.using.read().await;
        // By filehandle, as for stat(2) on a mount, so that the times are final. A getattr with an
        // open means that a read follows.
        let at = File { open: None, ..file.at() };
        self.shared.vfs.getattr(cx, at).await.map(|attrs| told(&attrs.attr))
    }

    /// Ends an open.
    pub async fn close(&self, cx: &RequestContext, number: u64) -> Result<()> {
        let file = self.files.lock().remove(&number).ok_or_else(|| Error::new(libc::EBADF))?;
        if !file.access.contains(OpenAccess::WRITE) {
            // Calls that still use the open delay the close, as in the kernel.
            let using = file.using.write().await;
            self.shared.stats.files_open.fetch_sub(1, Ordering::Relaxed);
            drop(using);
            self.close_aside(cx, &file.fh, file.open).await;
            return Ok(());
        }
        self.end(cx, &file).await?;
        file.check()
    }

    /// Ends a read open without waiting. It has no error to report. Several closes are sent to the
    /// server together, which takes some time.
    pub(crate) async fn close_aside(&self, cx: &RequestContext, fh: &Fh, open: OpenId) {
        let (vfs, cx, fh) = (self.shared.vfs.clone(), RequestContext::new(cx.cred.clone()), fh.clone());
        let close = async move {
            if let Err(error) = vfs.close(&cx, &fh, open).await {
                tracing::debug!(%error, "closing a file that was open for reading");
            }
        };
        if self.closing.len() < CLOSING_MAX { drop(self.closing.spawn(close)) } else { close.await }
    }

    async fn end(&self, cx: &RequestContext, file: &OpenFile) -> Result<()> {
        let _using = file.using.write().await;
        self.shared.stats.files_open.fetch_sub(1, Ordering::Relaxed);
        let call = self.shared.vfs.close(cx, &file.fh, file.open);
        if file.written.load(Ordering::Relaxed) {
            self.shared.change(&file.contents(), call).await
        } else {
            call.await
        }
    }

    /// Ends all opens. No program gets their errors.
    pub async fn close_all(&self) {
        self.closing.close();
        self.closing.wait().await;
        let files: Vec<_> = self.files.lock().drain().collect();
        for (_, file) in files {
            if let Err(error) = self.end(&RequestContext::new(self.cred.clone()), &file).await {
                tracing::warn!(%error, "closing a file that its program left open");
            }
        }
    }

    /// A read-only descriptor with all bytes of a file.
    pub fn lend(&self, number: u64) -> Result<std::fs::File> {
        use std::os::fd::AsRawFd;
        let file = self.file_for(number, OpenAccess::READ)?;
        let none =
            || Error::because(libc::EOPNOTSUPP, "the file is not fully on the local disk, or may change");
        let backing = file.backing.as_ref().ok_or_else(none)?;
        // The daemon's own descriptor is writable. The new one is not, and opening it again needs
        // rights on the cache directory.
        let path = format!("/proc/self/fd/{}", backing.0.as_raw_fd());
        std::fs::File::open(path).map_err(|e| Error::new(e.raw_os_error().unwrap_or(libc::EIO)))
    }
}

/// The change of a created name.
pub(crate) fn created(dir: &Fh, name: &Name) -> [Touched; 1] {
    [Touched::Name(dir.clone(), name.clone(), None)]
}

/// Reads in the sizes that the stack supports.
pub(crate) async fn read_on(
    conn: &Connection,
    cx: &RequestContext,
    file: File<'_>,
    offset: u64,
    len: u32,
) -> Result<(Data, bool)> {
    if offset > OFFSET_MAX {
        return Err(Error::new(libc::EINVAL));
    }
    let most = conn.shared.options.max_io_bytes.max(4096);
    let len = u64::from(len).min(OFFSET_MAX - offset) as u32;
    let (mut data, mut left) = (Data::default(), len);
    loop {
        let part = left.min(most);
        let at = offset + (len - left) as u64;
        let read = conn.shared.vfs.read(cx, file, at, part).await?;
        let n = (read.data.len() as u32).min(part);
        read.data.parts().iter().for_each(|bytes| data.push(bytes.clone()));
        left -= n;
        if read.eof || n < part || left == 0 {
            return Ok((data, read.eof));
        }
    }
}
