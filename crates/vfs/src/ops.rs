//! The [`Vfs`] trait and the types of its calls.

use crate::{
    Attrs, ChangeInfo, Creation, Cx, Data, Error, Fh, FileKind, FsStat, Moved, Name, Realm, Removal, Result,
    SetAttr, Validity, Where,
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
    /// Attributes with validity. For an object found by name, the name's binding holds as long.
    pub attrs: Attrs,
}

/// Everything a walk saw, and why it stopped.
#[derive(Debug, Clone)]
pub struct Trail {
    /// One node per name walked, in order; shorter than the path when the walk stopped early.
    pub steps: Vec<Node>,
    /// Why the walk ended.
    pub stop: Stop,
    /// The extras of the reply.
    pub along: Along,
}

impl Trail {
    /// A trail that brought nothing but its steps.
    pub fn new(steps: Vec<Node>, stop: Stop) -> Self {
        Self { steps, stop, along: Along::default() }
    }
}

/// The extras to fetch with a walk. Wishes, not orders: a layer leaves out those that would cost a
/// round trip more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// At most so many bytes of a listing with nodes of the directory that holds the last name; 0:
    /// none. It comes even when the last name is absent.
    pub listing_bytes: u32,
    /// At most so many first bytes of the last object, when it is a regular file that the caller
    /// may read; 0: none.
    pub read_bytes: u32,
    /// Rights on the last object to ask for.
    pub access: Access,
}

/// The extras that came with a walk ([`Want`]).
#[derive(Debug, Clone, Default)]
pub struct Along {
    /// The listing from its start: of the base for a path of one name, else of the last step but
    /// one (or the last, when the last name is absent).
    pub listing: Option<DirPage>,
    /// The first bytes of the last step; `eof` when that is all of it. They belong to that step's
    /// attributes.
    pub first: Option<Read>,
    /// The rights asked for that the caller has on the last step.
    pub access: Option<Access>,
    /// Attributes of the base of a path that is not empty, from no later than the lookups below it:
    /// names found in the base hold as long as its `change` stays.
    pub base: Option<Attrs>,
}

/// A file brought whole or in part by [`Vfs::read_many`].
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Attributes of the file with these bytes.
    pub attrs: Attrs,
    /// From the start of the file.
    pub read: Read,
}

/// Starts of many files, in the order of the question ([`Vfs::read_many`]).
#[derive(Debug, Clone)]
pub struct Starts {
    /// Each file's.
    pub files: Vec<Result<Fetched>>,
    /// Attributes of the directory that was named as their holder, asked for when all the files had
    /// been looked at (and leases granted): names found in it under this `change` led to the files
    /// then. `None` where that would cost a round trip.
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
    /// The layer below does not walk further at once: go on from the last step.
    Limit,
    /// The next name could not be looked up.
    Failed(crate::Error),
}

/// Number of an open file at the layer that opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// A file to act on: by handle, and through an open when there is one.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// Filehandle.
    pub fh: &'a Fh,
    /// The open under which to act; `None` for calls by handle alone.
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

    /// Rights, to ask for and as granted (RFC 1813 section 3.3.4).
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

/// The behaviour about existence when opening by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Create {
    /// The file must exist.
    No,
    /// Create when missing, with these attributes.
    IfMissing(SetAttr),
    /// Create; `EEXIST` when it exists. Exactly once even when the call is retransmitted.
    Exclusive(SetAttr),
}

/// How to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenHow {
    /// Use.
    pub access: OpenAccess,
    /// Existence. Anything but `No` needs an address that ends in a name.
    pub create: Create,
    /// Cut an existing file to length zero.
    pub truncate: bool,
    /// The open is for execve(2): the right to execute is needed instead of the right to read.
    pub execute: bool,
    /// At most so many first bytes to bring along from an existing file opened for reading; 0:
    /// none. A wish.
    pub first_bytes: u32,
    /// The caller holds attributes of the file that are fresh enough for this open, and the server
    /// has allowed this credential to read it (or execute, for `execute`): a layer that holds all
    /// of it as of exactly these attributes need not ask. Only for opens by handle for reading. A
    /// permission, not an order.
    pub known: Option<Attrs>,
}

impl OpenHow {
    /// A file that is there, as it is; without its first bytes.
    pub fn existing(access: OpenAccess) -> Self {
        Self { access, create: Create::No, truncate: false, execute: false, first_bytes: 0, known: None }
    }
}

/// An open file.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The file.
    pub node: Node,
    /// Number to pass to further calls; ends with [`Vfs::close`].
    pub open: OpenId,
    /// Whether the call created the file (always true for `Exclusive`).
    pub created: bool,
    /// The directory's change, when the file was opened by name and may have been created.
    pub dir: Option<ChangeInfo>,
    /// First bytes, when they came along; they belong to `node.attrs`.
    pub first: Option<Read>,
    /// A local file that holds all of its bytes as of `node.attrs`, when there is one.
    pub backing: Option<Backing>,
}

/// A local file with the bytes of a remote one, from its first to its last. Its bytes never change
/// and are never cut while this is held, even when the layer that made it has no more use for it.
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
    /// Regular file without opening it.
    Regular,
}

/// Bytes read.
#[derive(Debug, Clone)]
pub struct Read {
    /// The bytes; shorter than asked only at the end of the file.
    pub data: Data,
    /// Whether the end of the file was reached.
    pub eof: bool,
}

/// The storage that a write must have reached before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// The server; [`Vfs::commit`] makes it stable. The layer keeps the bytes until then and sends
    /// them again when the server lost them.
    Unstable,
    /// The server's stable storage, with all metadata (O_SYNC, O_DSYNC).
    Stable,
}

/// Outcome of a write.
#[derive(Debug, Clone)]
pub struct Wrote {
    /// Bytes written: all of them, or fewer when the server's disk filled up in the middle.
    pub bytes: u64,
    /// Attributes afterwards, when they came along.
    pub attrs: Option<Attrs>,
}

/// Outcome of [`Vfs::finish`].
#[derive(Debug, Clone)]
pub struct Finished {
    /// The written bytes of the piece, and the attributes after everything.
    pub wrote: Wrote,
    /// Whether the attributes were set; with an error, or when fewer bytes than all were written,
    /// they were not.
    pub set: Result<()>,
}

/// The object at the end of a path of names below the root, one step at a time.
///
/// # Errors
/// Those of looking it up.
pub async fn resolve(vfs: &(impl Vfs + ?Sized), cx: &Cx, path: &[Name]) -> Result<Fh> {
    let mut at = vfs.root(cx).await?.fh;
    for name in path {
        let trail = vfs.walk(cx, Where::name(&at, name), Want::default()).await?;
        at = match (trail.stop, trail.steps.into_iter().next()) {
            (Stop::Failed(e), _) => return Err(e),
            (_, Some(node)) => node.fh,
            (_, None) => return Err(Error::new(libc::ENOENT)),
        };
    }
    Ok(at)
}

/// [`Vfs::finish`] step by step, by the layer's own `write` and `setattr`: for those that have
/// nothing better.
///
/// # Errors
/// As [`Vfs::finish`].
pub async fn finish_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &Cx,
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

/// [`Vfs::create_whole`] step by step, by the layer's own `open`, `finish` and `close`: for those
/// that have nothing better.
///
/// # Errors
/// As [`Vfs::create_whole`].
pub async fn create_in_steps(
    vfs: &(impl Vfs + ?Sized),
    cx: &Cx,
    (dir, name): (&Fh, &Name),
    set: &SetAttr,
    data: Data,
) -> Result<Made> {
    let times = SetAttr { atime: set.atime, mtime: set.mtime, ..SetAttr::default() };
    let create = Create::Exclusive(SetAttr { atime: None, mtime: None, ..set.clone() });
    let how = OpenHow { create, ..OpenHow::existing(OpenAccess::WRITE) };
    let Opened { mut node, open, dir, .. } = vfs.open(cx, Where::name(dir, name), &how).await?;
    let file = File { fh: &node.fh, open: Some(open) };
    let len = data.len() as u64;
    let piece = (len > 0).then_some((0, data));
    let filled = match piece.is_some() || times != SetAttr::default() {
        true => vfs.finish(cx, file, piece, &times).await,
        false => Ok(Finished { wrote: Wrote { bytes: 0, attrs: None }, set: Ok(()) }),
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

/// A part of a file. `end_bytes` is exclusive; `u64::MAX` reaches to the end, wherever that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// First byte.
    pub start_bytes: u64,
    /// One past the last byte.
    pub end_bytes: u64,
}

/// Owner of byte-range locks: as the local kernel numbers them. flock(2) owners and fcntl(2) owners
/// are different even when the numbers agree.
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
    /// `EAGAIN` when it is taken.
    No,
    /// Wait until it is granted or the call is cancelled (`EINTR`).
    Yes,
}

/// A lock in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockConflict {
    /// Its kind.
    pub kind: LockKind,
    /// Its range.
    pub range: FileRange,
    /// Process id of the holder when it is known to be on this machine, else 0.
    pub pid: u32,
}

/// An entry of a directory page.
#[derive(Debug, Clone)]
pub struct DirEntry {
    /// Name: neither `.` nor `..`.
    pub name: Name,
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Number of the object.
    pub fileid: u64,
    /// Type, when known.
    pub kind: Option<FileKind>,
    /// The object, when handle and attributes came along.
    pub node: Option<Node>,
}

/// A part of a directory.
#[derive(Debug, Clone)]
pub struct DirPage {
    /// Entries in the server's order.
    pub entries: Vec<DirEntry>,
    /// Verifier to pass with the next page's cookie.
    pub verifier: [u8; 8],
    /// Whether this is the last page.
    pub eof: bool,
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
    /// `ENODATA` when it does not.
    Replace,
}

/// A file system. Calls return answers; they may run concurrently in any order, and a call that
/// changes something runs to its end even when its caller stopped waiting.
///
/// Object-safe by `async_trait`: one box a call, about 30 ns against at least a system call each.
/// There are no default methods: a layer that forgets an operation must not compile. It lists the
/// calls that it only passes on ([`delegate!`](crate::delegate)).
#[async_trait]
pub trait Vfs: Send + Sync + 'static {
    /// The root directory.
    async fn root(&self, cx: &Cx) -> Result<Node>;

    /// The answer to [`Vfs::walk`] (with an empty path: the attributes of the base) when it is
    /// known here: never waits. `None` when the server has to be asked.
    fn peek(&self, cx: &Cx, at: Where<'_>) -> Option<Trail>;

    /// Up to which length in bytes a file may be left unsent when it is closed, because no other
    /// client sees it before [`Upcalls::withdraw`] of it has ended: a delegation for writing, and
    /// its limit (RFC 8881 sections 10.4 and 18.16.3). Never waits.
    fn delegated_bytes(&self, fh: &Fh) -> Option<u64>;

    /// Whether writes to a file may be delayed above before they are written here, where other
    /// clients would have to be kept from the file meanwhile. The layer notes that writes are
    /// delayed, so that [`Upcalls::settle`] asks for them in time. Never waits.
    fn may_delay(&self, fh: &Fh) -> bool;

    /// The same, and asks for the right if it is not there.
    async fn ask_to_delay(&self, cx: &Cx, fh: &Fh) -> bool;

    /// Whether other clients use the file so that nothing of it may be kept: each read and write
    /// has to come here. Never waits.
    fn is_shared(&self, fh: &Fh) -> bool;

    /// The part of the mount that an object was found in. Never waits.
    fn realm(&self, fh: &Fh) -> Realm;

    /// Looks up a path. Stopping early is an answer, not an error; `Err` means that nothing was
    /// learnt.
    async fn walk(&self, cx: &Cx, at: Where<'_>, want: Want) -> Result<Trail>;

    /// The directory that holds `dir`. The caller needs the right to search `dir`. `ENOENT` for the
    /// root, `ENOTDIR` for an object that is no directory.
    async fn parent(&self, cx: &Cx, dir: &Fh) -> Result<Node>;

    /// Attributes: known ones that still hold and are fresh enough for `cx`, or the authority's.
    async fn getattr(&self, cx: &Cx, file: File<'_>) -> Result<Attrs>;

    /// Attributes of many objects in as few round trips as possible, in order.
    async fn getattr_many(&self, cx: &Cx, objects: &[Fh]) -> Vec<Result<Attrs>>;

    /// Attributes of many objects, always the authority's, with the rights in `want` that the
    /// caller has on each, in as few round trips as possible, in order.
    async fn prove_many(&self, cx: &Cx, objects: &[Fh], want: Access) -> Vec<Result<(Attrs, Access)>>;

    /// At most `max_bytes` of the start of each of many regular files in as few round trips as
    /// possible, in order, and then attributes of `holder`, a directory that all of them are in.
    /// With 0 bytes it only proves that the caller may read each, and brings its attributes, under
    /// a lease where there are leases.
    async fn read_many(&self, cx: &Cx, files: &[Fh], holder: Option<&Fh>, max_bytes: u32) -> Starts;

    /// The first pages with nodes, at most about `max_bytes` each, of many directories in as few
    /// round trips as possible, with the directories' own attributes from the same moment, in
    /// order.
    async fn list_many(&self, cx: &Cx, dirs: &[Fh], max_bytes: u32) -> Vec<Result<(Attrs, DirPage)>>;

    /// Changes attributes; with a size, `file.open` should be an open for writing where the caller
    /// has one.
    async fn setattr(&self, cx: &Cx, file: File<'_>, set: &SetAttr) -> Result<Attrs>;

    /// Which of the rights in `want` the caller has.
    async fn access(&self, cx: &Cx, fh: &Fh, want: Access) -> Result<Access>;

    /// Target of a symbolic link.
    async fn readlink(&self, cx: &Cx, fh: &Fh) -> Result<Bytes>;

    /// Opens a file by handle (`at.path` empty) or by name, creating it as `how` says.
    async fn open(&self, cx: &Cx, at: Where<'_>, how: &OpenHow) -> Result<Opened>;

    /// Ends an open. All written data is stable before, or its error is returned; the open is gone
    /// in either case.
    async fn close(&self, cx: &Cx, fh: &Fh, open: OpenId) -> Result<()>;

    /// Reads up to `len_bytes` at `offset_bytes`.
    async fn read(&self, cx: &Cx, file: File<'_>, offset_bytes: u64, len_bytes: u32) -> Result<Read>;

    /// Writes at `offset_bytes`.
    async fn write(
        &self,
        cx: &Cx,
        file: File<'_>,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote>;

    /// Writes `piece` (offset in bytes, bytes) to stable storage, and then sets `set`, which has no
    /// length: the end of writing a file, in as few round trips as possible. Without a piece it
    /// only sets. Fails when nothing is known to be written; see [`Finished`] for the rest. (One
    /// piece: servers write wrong bytes of a second WRITE in a message, and several in messages of
    /// their own go faster unstable, side by side, with one [`Vfs::commit`].)
    async fn finish(
        &self,
        cx: &Cx,
        file: File<'_>,
        piece: Option<(u64, Data)>,
        set: &SetAttr,
    ) -> Result<Finished>;

    /// Returns when everything written to the file before the call, through any open of this layer,
    /// is on stable storage; reports errors of earlier unstable writes.
    async fn commit(&self, cx: &Cx, file: File<'_>) -> Result<()>;

    /// Creates a regular file with all its bytes (no more than one WRITE takes), mode and times, in
    /// as few round trips as possible; everything is on stable storage then, and nothing is left
    /// open. `EEXIST` when the name exists; after another error the file may be there without its
    /// bytes.
    async fn create_whole(&self, cx: &Cx, dir: &Fh, name: &Name, set: &SetAttr, data: Data) -> Result<Made>;

    /// Creates several objects in a directory in as few round trips as possible, in no particular
    /// order: the promises of [`Vfs::create_whole`] and its like hold for each, whatever the
    /// outcome of the others. Outcomes in the order of `new`.
    async fn create_many(&self, cx: &Cx, dir: &Fh, new: &[Creation]) -> Vec<Result<Made>>;

    /// Creates a directory.
    async fn mkdir(&self, cx: &Cx, dir: &Fh, name: &Name, set: &SetAttr) -> Result<Made>;

    /// Creates a pipe, socket, device or unopened file.
    async fn mknod(&self, cx: &Cx, dir: &Fh, name: &Name, what: &Special, set: &SetAttr) -> Result<Made>;

    /// Creates a symbolic link.
    async fn symlink(&self, cx: &Cx, dir: &Fh, name: &Name, target: &Bytes, set: &SetAttr) -> Result<Made>;

    /// Creates a hard link to `fh`; returns its attributes afterwards.
    async fn link(&self, cx: &Cx, fh: &Fh, dir: &Fh, name: &Name) -> Result<Made>;

    /// Removes a name that is no directory. `target` is the object when the caller knows it: a file
    /// that is open here stays readable and writable until its last close.
    async fn unlink(&self, cx: &Cx, dir: &Fh, name: &Name, target: Option<&Fh>) -> Result<ChangeInfo>;

    /// Removes an empty directory.
    async fn rmdir(&self, cx: &Cx, dir: &Fh, name: &Name) -> Result<ChangeInfo>;

    /// Removes several names of a directory in as few round trips as possible, one after the other:
    /// the promises of [`Vfs::unlink`] and [`Vfs::rmdir`] hold for each, whatever the outcome of
    /// the others. Outcomes in the order of `gone`.
    async fn remove_many(&self, cx: &Cx, dir: &Fh, gone: &[Removal]) -> Vec<Result<ChangeInfo>>;

    /// Renames. `replaced` is the object at the target when the caller knows it, as for
    /// [`Vfs::unlink`]. Which object is renamed is the server's to say: another one may have the
    /// name than was known.
    async fn rename(
        &self,
        cx: &Cx,
        from: (&Fh, &Name),
        to: (&Fh, &Name),
        replaced: Option<&Fh>,
        flags: RenameFlags,
    ) -> Result<Moved>;

    /// Lists a directory after `cookie` (0: from the start, with a zero verifier): at most about
    /// `max_bytes` of names and attributes. With `nodes`, entries have handles and attributes where
    /// the server gives them and no question more is needed. A page that is not `eof` has at least
    /// one entry.
    async fn readdir(
        &self,
        cx: &Cx,
        dir: &Fh,
        cookie: u64,
        verifier: [u8; 8],
        max_bytes: u32,
        nodes: bool,
    ) -> Result<DirPage>;

    /// Space of the file system that holds `fh`.
    async fn statfs(&self, cx: &Cx, fh: &Fh) -> Result<FsStat>;

    /// Value of an extended attribute, by its full Linux name (`user.x`, `system.nfs4_acl`);
    /// `ENODATA` when there is none, `EOPNOTSUPP` when the server or name space has none.
    async fn getxattr(&self, cx: &Cx, fh: &Fh, name: &[u8]) -> Result<Bytes>;

    /// Sets an extended attribute.
    async fn setxattr(&self, cx: &Cx, fh: &Fh, name: &[u8], value: &Bytes, mode: XattrMode) -> Result<()>;

    /// Full Linux names of all extended attributes.
    async fn listxattr(&self, cx: &Cx, fh: &Fh) -> Result<Vec<Bytes>>;

    /// Removes an extended attribute.
    async fn removexattr(&self, cx: &Cx, fh: &Fh, name: &[u8]) -> Result<()>;

    /// Takes or changes a byte-range lock.
    async fn lock(
        &self,
        cx: &Cx,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
        wait: LockWait,
    ) -> Result<()>;

    /// Gives up locks in a range; fine when there are none.
    async fn unlock(&self, cx: &Cx, file: File<'_>, owner: LockOwner, range: FileRange) -> Result<()>;

    /// Another owner's lock that is in conflict.
    async fn test_lock(
        &self,
        cx: &Cx,
        file: File<'_>,
        owner: LockOwner,
        kind: LockKind,
        range: FileRange,
    ) -> Result<Option<LockConflict>>;

    /// Next data or hole at or after an offset; `ENXIO` beyond the end.
    async fn seek(&self, cx: &Cx, file: File<'_>, offset_bytes: u64, what: Seek) -> Result<u64>;

    /// Reserves space for a range, growing the file to its end when it is shorter.
    async fn allocate(&self, cx: &Cx, file: File<'_>, range: FileRange) -> Result<()>;

    /// Makes a hole; the length stays.
    async fn deallocate(&self, cx: &Cx, file: File<'_>, range: FileRange) -> Result<()>;

    /// Copies bytes on the server; returns how many, which may be fewer. `EOPNOTSUPP` when the
    /// caller has to copy itself, `ENOSYS` when that will always be so.
    async fn copy(
        &self,
        cx: &Cx,
        from: File<'_>,
        from_offset_bytes: u64,
        to: File<'_>,
        to_offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<u64>;

    /// Names the layer above, which learns when answers stop holding before their time. Once,
    /// before the first call.
    fn subscribe(&self, upcalls: Arc<dyn Upcalls>);

    /// Ends the use of this layer: flushes, gives up all state at the server, within `cx.deadline`.
    async fn shutdown(&self, cx: &Cx) -> Result<()>;
}

/// The data of a file that waits in layers above ([`Upcalls::unsent`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// No change that a program counts as done.
    Nothing,
    /// Bytes. With them the file is so long.
    Bytes {
        /// Length of the file as programs see it here.
        size_bytes: u64,
    },
    /// Something else, or that is not known.
    More,
}

impl Unsent {
    /// The sum of the data that waits in two places.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Bytes { size_bytes: a }, Self::Bytes { size_bytes: b }) => {
                Self::Bytes { size_bytes: a.max(b) }
            }
            (Self::More, _) | (_, Self::More) => Self::More,
        }
    }
}

/// The calls of a layer to the one above. Calls return at once and wait for nothing.
pub trait Upcalls: Send + Sync + 'static {
    /// Earlier answers about an object's attributes and contents hold no longer. The returned
    /// future ends when all layers above have dropped them; it may be dropped.
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()>;

    /// Leases on these objects have ended by themselves: answers about them hold no longer than
    /// they would have without. No change is known, so contents of the version that the next
    /// attributes show may be used on.
    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        let withdrawn: Vec<_> = files.iter().map(|fh| self.withdraw(fh)).collect();
        Box::pin(async move {
            for one in withdrawn {
                one.await;
            }
        })
    }

    /// The delayed data of an object is wanted ([`Vfs::may_delay`]). The returned future ends when
    /// it was written, or could not be.
    fn settle(&self, _fh: &Fh) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    /// The delayed data of a file above, at this moment. Never waits.
    fn unsent(&self, _fh: &Fh) -> Unsent {
        Unsent::More
    }

    /// As [`Upcalls::withdraw`], for everything under [`Validity::Lease`](crate::Validity): all
    /// leases are lost.
    fn withdraw_all(&self) -> BoxFuture<()>;
}

/// A boxed future.
pub type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;
