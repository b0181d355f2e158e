//! The [`Vfs`] trait and the types of its calls.

use crate::{
    Attrs, BatchOps, ChangeInfo, Data, Error, Fh, FileKind, FsStat, Moved, Name, PathRef, RequestContext,
    Result, SetAttr, Upcalls, Validity,
};
use async_trait::async_trait;
use bitflags::bitflags;
use bytes::Bytes;
use std::sync::Arc;

/// An object: its handle and attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Filehandle.
    pub fh: Fh,
    /// Attributes with validity. For an object found by name, the binding of the name has the same
    /// validity.
    pub attrs: Attrs,
}

/// The objects that a walk found, and the reason of its end.
#[derive(Debug, Clone)]
pub struct WalkResult {
    /// One node per name walked, in order. There are fewer nodes than names when the walk stopped
    /// early.
    pub steps: Vec<Node>,
    /// Why the walk ended.
    pub stop: Stop,
    /// The extras of the reply.
    pub along: Along,
}

impl WalkResult {
    /// A trail without extras.
    pub fn new(steps: Vec<Node>, stop: Stop) -> Self {
        Self { steps, stop, along: Along::default() }
    }
}

/// The extras to fetch with a walk. They are optional: a layer leaves out an extra that would cost
/// one more round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalkRequest {
    /// Maximum size in bytes of a listing with nodes; 0: no listing. The listed directory is the
    /// one that holds the last name. The listing is fetched even when the last name is absent.
    pub listing_bytes: u32,
    /// Maximum number of first bytes of the last object; 0: none. Only a regular file that the
    /// caller may read has first bytes.
    pub read_bytes: u32,
    /// Rights on the last object to check.
    pub access: Access,
    /// Whether to read the target of the last object, if it is a symbolic link. Takes the place of
    /// the first bytes.
    pub target: bool,
}

/// The extras that a walk has fetched ([`WalkRequest`]).
#[derive(Debug, Clone, Default)]
pub struct Along {
    /// The listing from its start. For a path of one name the listed directory is the base. For a
    /// longer path it is the last step but one, or the last step when the last name is absent.
    pub listing: Option<DirPage>,
    /// The first bytes of the last step. `eof` is set when they are the whole file. The bytes
    /// belong to the attributes of that step.
    pub first: Option<Read>,
    /// The checked rights that the caller has on the last step.
    pub access: Option<Access>,
    /// The target of the last step, a symbolic link, as of the attributes of that step.
    pub target: Option<Bytes>,
    /// Attributes of the base, for a path that is not empty. They were taken no later than the
    /// lookups in the base. Names found in the base hold while its `change` stays the same.
    pub base: Option<Attrs>,
}

/// The attributes and first bytes of a file, read by [`BatchOps::read_many`].
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Attributes of the file at the time of the read.
    pub attrs: Attrs,
    /// The bytes from the start of the file.
    pub read: Read,
}

/// First bytes of many files, in the order of the request ([`BatchOps::read_many`]).
#[derive(Debug, Clone)]
pub struct ReadManyResult {
    /// One result per file.
    pub files: Vec<Result<Fetched>>,
    /// Attributes of the directory that the request named as the holder of the files. They were
    /// taken after all files were read and leases were granted. Names found in the directory under
    /// this `change` led to these files at that time. `None` when they would cost one more round
    /// trip.
    pub holder: Option<Attrs>,
}

/// Why a walk ended.
#[derive(Debug, Clone)]
pub enum Stop {
    /// All names were walked.
    Complete,
    /// The next name does not exist; the absence holds for the given time.
    Missing(Validity),
    /// The last step is a symbolic link and names remain.
    Symlink,
    /// The last step is no directory and names remain.
    NotDirectory,
    /// The layer below does not walk further in one call. The caller continues from the last step.
    Limit,
    /// The next name could not be looked up.
    Failed(crate::Error),
}

/// Number of an open file at the layer that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// The file of a call: a filehandle, and an open when there is one.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// Filehandle.
    pub fh: &'a Fh,
    /// The open that the call uses; `None` for calls by filehandle only.
    pub open: Option<OpenId>,
}

bitflags! {
    /// The access of an open file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct OpenAccess: u8 {
        /// Reading.
        const READ = 1;
        /// Writing.
        const WRITE = 2;
    }

    /// Access rights, requested or granted (RFC 1813 section 3.3.4).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// Read data, list a directory.
        const READ = 1;
        /// Look up a name in a directory.
        const LOOKUP = 2;
        /// Change data or entries.
        const MODIFY = 4;
        /// Add data or entries.
        const EXTEND = 8;
        /// Remove entries.
        const DELETE = 16;
        /// Execute a file.
        const EXECUTE = 32;
    }

    /// renameat2(2) flags.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` when the target exists.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
    }
}

/// The treatment of existing and missing files in an open by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Create {
    /// The file must exist.
    No,
    /// Create when missing, with these attributes.
    IfMissing(SetAttr),
    /// Create; `EEXIST` when the name exists. The file is created exactly once even when the call
    /// is retransmitted.
    Exclusive(SetAttr),
}

/// The parameters of an open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenHow {
    /// Access of the open.
    pub access: OpenAccess,
    /// Treatment of existing and missing files. Every value except `No` needs an address that ends
    /// in a name.
    pub create: Create,
    /// Truncate an existing file to length zero.
    pub truncate: bool,
    /// The open is for execve(2). It needs the right to execute instead of the right to read.
    pub execute: bool,
    /// Maximum number of first bytes to return from an existing file opened for reading; 0: none.
    /// The bytes are optional.
    pub first_bytes: u32,
    /// Attributes that the caller holds and that are fresh enough for this open. The server has
    /// allowed this credential to read the file (or to execute it, for `execute`). A layer that
    /// holds the whole file as of exactly these attributes may skip the request to the server. Only
    /// for opens by filehandle for reading.
    pub known: Option<Attrs>,
}

impl OpenHow {
    /// An open of an existing file, without truncation and without first bytes.
    pub fn existing(access: OpenAccess) -> Self {
        Self { access, create: Create::No, truncate: false, execute: false, first_bytes: 0, known: None }
    }
}

/// An open file.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The file.
    pub node: Node,
    /// Number of the open for further calls. It is valid until [`Vfs::close`].
    pub open: OpenId,
    /// Whether the call created the file (always true for `Exclusive`).
    pub created: bool,
    /// The directory's change, when the file was opened by name and may have been created.
    pub dir: Option<ChangeInfo>,
    /// First bytes, when the layer returned them. They belong to `node.attrs`.
    pub first: Option<Read>,
    /// A local file with all bytes of the file as of `node.attrs`, when there is one.
    pub backing: Option<Backing>,
}

/// A local file with all bytes of a remote file. The bytes are neither changed nor truncated while
/// this value exists. That holds even when the layer that made the local file has dropped it.
#[derive(Debug, Clone)]
pub struct Backing(pub Arc<std::fs::File>);

/// A new object.
#[derive(Debug, Clone)]
pub struct Made {
    /// The object.
    pub node: Node,
    /// Change of its directory.
    pub dir: ChangeInfo,
}

/// Objects without contents to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Special {
    /// Named pipe.
    Fifo,
    /// UNIX socket.
    Socket,
    /// Character device with major and minor number.
    CharDevice(u32, u32),
    /// Block device with major and minor number.
    BlockDevice(u32, u32),
    /// Regular file, created without an open.
    Regular,
}

/// Bytes read.
#[derive(Debug, Clone)]
pub struct Read {
    /// The bytes. They are fewer than requested only at the end of the file.
    pub data: Data,
    /// Whether the end of the file was reached.
    pub eof: bool,
}

/// The storage that a write must reach before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// The server's memory. [`Vfs::commit`] moves the bytes to stable storage. The layer keeps the
    /// bytes until then and sends them again when the server lost them.
    Unstable,
    /// The server's stable storage, with all metadata (O_SYNC, O_DSYNC).
    Stable,
}

/// Outcome of a write.
#[derive(Debug, Clone)]
pub struct Wrote {
    /// Number of bytes written. It is less than requested only when the server's disk became full.
    pub bytes: u64,
    /// Attributes after the write, when the reply has them.
    pub attrs: Option<Attrs>,
}

/// Outcome of [`Vfs::finish`].
#[derive(Debug, Clone)]
pub struct Finished {
    /// Outcome of the write of the piece, and the attributes after the whole call.
    pub wrote: Wrote,
    /// Whether the attributes were set. They were not set when this is an error or when not all
    /// bytes were written.
    pub set: Result<()>,
}

/// The object at the end of a path below the root, looked up one name at a time.
///
/// # Errors
/// Those of the lookups.
pub async fn resolve(vfs: &(impl Vfs + ?Sized), cx: &RequestContext, path: &[Name]) -> Result<Fh> {
    let mut at = vfs.root(cx).await?.fh;
    for name in path {
        let trail = vfs.walk(cx, PathRef::name(&at, name), WalkRequest::default()).await?;
        at = match (trail.stop, trail.steps.into_iter().next()) {
            (Stop::Failed(e), _) => return Err(e),
            (_, Some(node)) => node.fh,
            (_, None) => return Err(Error::new(libc::ENOENT)),
        };
    }
    Ok(at)
}

/// [`Vfs::finish`] by the layer's own `write` and `setattr`, for layers without a combined request.
///
/// # Errors
/// As [`Vfs::finish`].
pub async fn finish_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &RequestContext,
    file: File<'_>,
    piece: Option<(u64, Data)>,
    set: &SetAttr,
) -> Result<Finished> {
    let mut wrote = Wrote { bytes: 0, attrs: None };
    if let Some((offset_bytes, data)) = piece {
        let len = data.len() as u64;
        wrote = vfs.write(cx, file, offset_bytes, data, Stability::Stable).await?;
        if wrote.bytes < len {
            return Ok(Finished { wrote, set: Ok(()) });
        }
    }
    if *set == SetAttr::default() {
        return Ok(Finished { wrote, set: Ok(()) });
    }
    match vfs.setattr(cx, file, set).await {
        Ok(attrs) => Ok(Finished { wrote: Wrote { attrs: Some(attrs), ..wrote }, set: Ok(()) }),
        Err(e) => Ok(Finished { wrote, set: Err(e) }),
    }
}

/// [`Vfs::create_whole`] by the layer's own `open`, `finish` and `close`, for layers without a
/// combined request.
///
/// # Errors
/// As [`Vfs::create_whole`].
pub async fn create_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &RequestContext,
    (dir, name): (&Fh, &Name),
    set: &SetAttr,
    data: Data,
) -> Result<Made> {
    let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
    let create = Create::Exclusive(SetAttr { atime: None, mtime: None, ..set.clone() });
    let how = OpenHow { create, ..OpenHow::existing(OpenAccess::WRITE) };
    let Opened { mut node, open, dir, .. } = vfs.open(cx, PathRef::name(dir, name), &how).await?;
    let file = File { fh: &node.fh, open: Some(open) };
    let len = data.len() as u64;
    let piece = (len > 0).then_some((0, data));
    let filled = if piece.is_some() || times != SetAttr::default() {
        vfs.finish(cx, file, piece, &times).await
    } else {
        Ok(Finished { wrote: Wrote { bytes: 0, attrs: None }, set: Ok(()) })
    };
    let closed = vfs.close(cx, &node.fh, open).await;
    let Finished { wrote, set } = filled?;
    set?;
    closed?;
    if wrote.bytes < len {
        return Err(Error::because(libc::ENOSPC, "the server wrote only a part of a file"));
    }
    if let Some(attrs) = wrote.attrs {
        node.attrs = attrs;
    }
    Ok(Made { node, dir: dir.unwrap_or_default() })
}

/// A range of a file. `end_bytes` is exclusive; `u64::MAX` means the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// First byte.
    pub start_bytes: u64,
    /// One past the last byte.
    pub end_bytes: u64,
}

/// Owner of byte-range locks, with the number that the local kernel gives. Owners of flock(2) and
/// fcntl(2) locks are different even when their numbers are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner {
    /// The local kernel's number.
    pub id: u64,
    /// Owner of flock(2) locks.
    pub flock: bool,
}

/// Kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// Whether to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockWait {
    /// Fail with `EAGAIN` when another owner has the lock.
    No,
    /// Wait until the lock is granted or the call is cancelled (`EINTR`).
    Yes,
}

/// A lock that conflicts with the requested one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockConflict {
    /// Its kind.
    pub kind: LockKind,
    /// Its range.
    pub range: FileRange,
    /// Process id of the holder when the holder runs on this machine, otherwise 0.
    pub pid: u32,
}

/// An entry of a directory page.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// Name, never `.` or `..`.
    pub name: Name,
    /// Cookie for a listing that continues after this entry.
    pub cookie: u64,
    /// Number of the object.
    pub fileid: u64,
    /// Type, when known.
    pub kind: Option<FileKind>,
    /// The object, when the reply has its filehandle and attributes.
    pub node: Option<Node>,
}

/// A part of a directory.
#[derive(Debug, Clone)]
pub struct DirPage {
    /// Entries in the server's order.
    pub entries: Vec<DirEntry>,
    /// Verifier for the request of the next page.
    pub verifier: [u8; 8],
    /// Whether this is the last page.
    pub eof: bool,
    /// All rights that the caller has on the directory, if the request for the listing checked
    /// them. They are of the same moment as the directory's attributes, or newer.
    pub access: Option<Access>,
}

/// The target of lseek(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

/// setxattr(2) flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Either,
    /// `EEXIST` when it exists.
    Create,
    /// `ENODATA` when it does not exist.
    Replace,
}

/// A file system. Calls may run concurrently in any order. A call that changes the file system runs
/// to its end even when the caller stopped waiting.
///
/// The trait is object-safe by `async_trait`: each call allocates one box, about 30 ns. Each call
/// costs at least one system call anyway. There are no default methods, so a layer that leaves out
/// an operation does not compile. A layer lists the calls that it passes on
/// ([`delegate!`](crate::delegate)).
#[async_trait]
pub trait Vfs: BatchOps + Send + Sync + 'static {
    /// The root directory.
    async fn root(&self, cx: &RequestContext) -> Result<Node>;

    /// The answer to [`Vfs::walk`] from cached state. With an empty path the answer is the
    /// attributes of the base. `None` when the server has to be asked. Never waits.
    fn peek(&self, cx: &RequestContext, at: PathRef<'_>) -> Option<WalkResult>;

    /// Looks up a path. A walk that stops early is no error. `Err` means that no step was looked
    /// up.
    async fn walk(&self, cx: &RequestContext, at: PathRef<'_>, want: WalkRequest) -> Result<WalkResult>;

    /// The directory that holds `dir`. The caller needs the right to search `dir`. `ENOENT` for the
    /// root, `ENOTDIR` for an object that is no directory.
    async fn parent(&self, cx: &RequestContext, dir: &Fh) -> Result<Node>;

    /// Attributes: cached ones that hold and are fresh enough for `cx`, or those of the server.
    async fn getattr(&self, cx: &RequestContext, file: File<'_>) -> Result<Attrs>;

    /// Sets attributes. With a size, `file.open` should be an open for writing when the caller has
    /// one.
    async fn setattr(&self, cx: &RequestContext, file: File<'_>, set: &SetAttr) -> Result<Attrs>;

    /// The rights in `want` that the caller has.
    async fn access(&self, cx: &RequestContext, fh: &Fh, want: Access) -> Result<Access>;

    /// Target of a symbolic link.
    async fn readlink(&self, cx: &RequestContext, fh: &Fh) -> Result<Bytes>;

    /// Opens a file by filehandle (`at.path` empty) or by name, and creates it according to `how`.
    async fn open(&self, cx: &RequestContext, at: PathRef<'_>, how: &OpenHow) -> Result<Opened>;

    /// Ends an open. All written data is stable before the call returns, or the call returns the
    /// error. The open is gone in either case.
    async fn close(&self, cx: &RequestContext, fh: &Fh, open: OpenId) -> Result<()>;

    /// Reads up to `len_bytes` at `offset_bytes`.
    async fn read(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Read>;

    /// Writes at `offset_bytes`.
    async fn write(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote>;

    /// Writes `piece` (offset in bytes, bytes) to stable storage and then sets `set`, in as few
    /// round trips as possible. `set` has no length. Without a piece the call only sets attributes.
    /// The call fails when no data is known to be written; see [`Finished`] for the other outcomes.
    ///
    /// There is only one piece, because servers write wrong bytes of a second WRITE in one message.
    /// Several pieces are faster as concurrent unstable writes with one [`Vfs::commit`].
    async fn finish(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished>;

    /// Waits until all data written to the file before the call is on stable storage. That includes
    /// writes through every open of this layer. Returns errors of earlier unstable writes.
    async fn commit(&self, cx: &RequestContext, file: File<'_>) -> Result<()>;

    /// Creates a regular file with all its bytes, mode and times, in as few round trips as
    /// possible. The bytes fit into one WRITE. On success all of it is on stable storage and no
    /// open is left. `EEXIST` when the name exists. After another error the file may exist without
    /// its bytes.
    async fn create_whole(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        set: &SetAttr,
        data: Data,
    ) -> Result<Made>;

    /// Creates a directory.
    async fn mkdir(&self, cx: &RequestContext, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made>;

    /// Creates a pipe, socket, device or unopened file.
    async fn mknod(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        what: &Special,
        set: &SetAttr,
    ) -> Result<Made>;

    /// Creates a symbolic link.
    async fn symlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: &Bytes,
        set: &SetAttr,
    ) -> Result<Made>;

    /// Creates a hard link to `fh`. Returns the attributes after the call.
    async fn link(&self, cx: &RequestContext, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made>;

    /// Removes a name of an object that is no directory. `target` is the object when the caller
    /// knows it. A target that is open at this layer stays readable and writable until its last
    /// close.
    async fn unlink(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        name: &Name,
        target: Option<&Fh>,
    ) -> Result<ChangeInfo>;

    /// Removes an empty directory.
    async fn rmdir(&self, cx: &RequestContext, dir: &Fh, name: &Name) -> Result<ChangeInfo>;

    /// Renames. `replaced` is the object at the target when the caller knows it, as for
    /// [`Vfs::unlink`]. The server decides which object is renamed. It may be another object than
    /// the one that the caller knows under the name.
    async fn rename(
        &self,
        cx: &RequestContext,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved>;

    /// Lists a directory after `cookie` (0: from the start, with a zero verifier). A page has at
    /// most about `max_bytes` of names and attributes. With `nodes`, entries have filehandles and
    /// attributes where the server returns them without another request. A page that is not `eof`
    /// has at least one entry.
    async fn readdir(
        &self,
        cx: &RequestContext,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage>;

    /// Space of the file system that holds `fh`.
    async fn statfs(&self, cx: &RequestContext, fh: &Fh) -> Result<FsStat>;

    /// Value of an extended attribute, by its full Linux name (`user.x`, `system.nfs4_acl`).
    /// `ENODATA` when it does not exist. `EOPNOTSUPP` when the server or the name space has no
    /// extended attributes.
    async fn getxattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<Bytes>;

    /// Sets an extended attribute.
    async fn setxattr(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        name: &[u8],
        value: &Bytes,
        mode: XattrMode,
    ) -> Result<()>;

    /// Full Linux names of all extended attributes.
    async fn listxattr(&self, cx: &RequestContext, fh: &Fh) -> Result<Vec<Bytes>>;

    /// Removes an extended attribute.
    async fn removexattr(&self, cx: &RequestContext, fh: &Fh, name: &[u8]) -> Result<()>;

    /// Takes or changes a byte-range lock. May return the attributes that the file had with the
    /// lock held, when they cost nothing.
    async fn lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<Option<Attrs>>;

    /// Releases locks in a range. No locks in the range is no error.
    async fn unlock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        range: FileRange,
    ) -> Result<()>;

    /// A lock of another owner that conflicts.
    async fn test_lock(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>>;

    /// Next data or hole at or after an offset; `ENXIO` beyond the end of the file.
    async fn seek(&self, cx: &RequestContext, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64>;

    /// Reserves space for a range. A shorter file grows to the end of the range.
    async fn allocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()>;

    /// Makes a hole. The length of the file stays.
    async fn deallocate(&self, cx: &RequestContext, file: File<'_>, range: FileRange) -> Result<()>;

    /// Copies bytes on the server. Returns the number of copied bytes, which may be less than
    /// requested. `EOPNOTSUPP` when the caller has to copy by itself, `ENOSYS` when that is so for
    /// all files.
    async fn copy(
        &self,
        cx: &RequestContext,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64>;

    /// Sets the layer above, which is called when answers end before their time. Called once,
    /// before the first call.
    fn subscribe(&self, upcalls: Arc<dyn Upcalls>);

    /// Ends the use of this layer within `cx.deadline`: flushes data and returns all state to the
    /// server.
    async fn shutdown(&self, cx: &RequestContext) -> Result<()>;
}
