//! Serves a directory of this machine as a [`Vfs`](hither_vfs::Vfs): the bottom of a server.
//!
//! The module knows nothing of NFS, exports or clients. A caller is a uid, a gid and groups; the
//! layer above has squashed them.
//!
//! Each call is one hop to a thread that may wait for the disk (`pool`). The thread takes on the
//! file system identity of the caller, and the kernel checks the permissions. Calls that need no
//! disk (attributes of a known object, bytes in the page cache) are answered at once. Objects are
//! found by kernel handles inside filehandles that only this server can make (`handle`). Names are
//! looked up one component at a time below a descriptor (`names`). So no call reaches an object
//! outside of the directory: there is no path in which a symbolic link or `..` could be followed.
//! The tree is a private mount without the mounts below it, without devices and set-id programs.
//! The module caches only descriptors (`object`), and facts that hold while the `change` of a
//! directory stays the same (`known`). So changes by local programs are seen by the next call.
//! Large pieces of cached files are passed on and not copied (`piped`).
//!
//! Changes are on stable storage when their calls are answered ([`LocalOptions::stable`]). Unstable
//! writes are the exception; `commit` makes them stable. One caller gets an error of the disk
//! during write-back. The error also changes [`Local::write_epoch`], from which a server makes its
//! write verifier.
//!
//! A filehandle opens its object as long as the object exists, even after a move within the file
//! system. Clients cannot forge filehandles, so the place of a file needs no check. A directory
//! that a local program moved out of the exported one is refused at the next call that names it
//! (`place`). So the tree below it is not given away.

mod acl;
mod attr;
mod covered;
mod descriptors;
mod handle;
mod handles;
mod io;
mod journaled;
mod known;
mod list;
mod locks;
mod names;
mod new;
mod object;
mod open;
mod piped;
mod place;
mod pool;
mod queue;
mod set;
mod sys;
mod table;
#[cfg(test)]
mod tests;
mod vfs;
mod watch;

use attr::Attributer;
use handle::Sealer;
use hither_vfs::{
    Answered, Attrs, Env, Error, Fh, FileKind, Node, OpenAccess, OpenId, RequestContext, Result,
};
use journaled::{JournalTarget, Journaled};
use object::{Object, Objects, os};
use parking_lot::Mutex;
use pool::{Pool, Worker};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, StatFs, Statx, StatxFlags};
use std::collections::HashMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use table::Table;

/// The time between two searches for unused descriptors.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// Objects that a search looks at in each shard of the table.
const TIDY_EACH: usize = 64;
/// Threads that apply writes to the page cache. There is more than one because a thread may have to
/// wait for a page.
const LANE_THREADS: usize = 4;

pub use covered::CoveredDir;
pub use descriptors::Descriptors;
pub use journaled::inspect::{JournalInspection, adopt_journal, inspect_journal};
pub use journaled::{JournalOptions, JournalStats, give_up_journal};
pub use watch::Watchers;

/// Options of a served directory.
#[derive(Debug, Clone)]
pub struct LocalOptions {
    /// The directory that keeps the secret of the filehandles, created when it is missing. It
    /// should not be reachable through the served directory. `None`: a new secret at each start, so
    /// filehandles end with the process.
    pub state_dir: Option<PathBuf>,
    /// Number of the export. Filehandles of one export are not valid in another.
    pub export_id: u64,
    /// File system number for clients; `None`: derived from the id of the file system.
    pub fsid: Option<(u64, u64)>,
    /// How long the layer above may use answers; zero: for the call only.
    pub validity: Duration,
    /// Whether changes are on stable storage when their calls are answered. Set this to false only
    /// below a layer that makes changes stable itself.
    pub stable: bool,
    /// The journal in which stable writes become durable first; only with `stable`.
    pub journal: Option<JournalOptions>,
    /// Whether this process alone changes the directory. Then changes of directories are reported
    /// as atomic.
    pub exclusive: bool,
    /// Whether the owner of a file may change its length by handle despite its permissions, as the
    /// owner may read and write it. An NFSv3 client sends only the handle for a file that it opened
    /// before the permissions changed.
    pub owner_may_resize: bool,
    /// Whether one ctime may stand for several changes, even on a file system and kernel with
    /// multigrain timestamps.
    pub coarse_times: bool,
    /// Whether all calls run with the identity of this process, whichever caller asks. This is for
    /// a process without privileges that serves only its own user. Without CAP_DAC_READ_SEARCH a
    /// filehandle is valid while its object is among the known ones (`known_max`).
    pub as_this_process: bool,
    /// Threads that wait for the disk.
    pub threads_max: usize,
    /// Descriptors kept of objects that are not open; at most a quarter of all descriptors.
    pub known_max: usize,
    /// The budget of descriptors, which several directories may share.
    pub descriptors: Arc<Descriptors>,
    /// The watchers of local changes, which several directories may share.
    pub watchers: Arc<Watchers>,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            state_dir: None,
            export_id: 0,
            fsid: None,
            validity: Duration::ZERO,
            stable: true,
            journal: None,
            exclusive: false,
            owner_may_resize: true,
            coarse_times: false,
            as_this_process: false,
            threads_max: 64,
            known_max: 4096,
            descriptors: Descriptors::new(usize::MAX),
            watchers: Arc::default(),
        }
    }
}

/// A directory of this machine.
pub struct Local {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Local")
    }
}

struct Inner {
    /// The served directory, open for reading: names the file system and the mount to the kernel.
    top: OwnedFd,
    top_id: (u64, u64),
    /// Whether the directory is not the root of its file system.
    is_subtree: bool,
    /// `None` when `top` is a private mount. Otherwise the number of the mount, and other mounts
    /// are not entered.
    mount: Option<i32>,
    /// /proc/self/fd.
    proc_fd: OwnedFd,
    sealer: Sealer,
    /// Replaces the handles of a file system that has none.
    table: Option<Table>,
    attributer: Attributer,
    objects: Objects,
    known_budget: known::Budget,
    pipes: Arc<piped::Pipes>,
    root: Arc<Object>,
    covered: covered::CoveredDirs,
    opens: Mutex<HashMap<u64, Open>>,
    next_open: AtomicU64,
    locks: locks::LockTable,
    pool: Pool,
    /// A few threads for writes to the page cache and the journal. One wake-up serves many writes.
    lane: Pool,
    /// One thread for changes with records, which are made one at a time. The thread waits for no
    /// other, and one wake-up serves many changes.
    changes: Pool,
    journal: Option<Journaled>,
    clone_block_bytes: Option<u32>,
    has_acls: bool,
    order: Order,
    options: LocalOptions,
    write_epoch: AtomicU64,
    watch: watch::Slot,
    /// Whether an error of the disk occurred; the log reports it once.
    failed: AtomicBool,
}

/// An open file. Its object is in the table of objects, or is opened again by its filehandle.
struct Open {
    fh: Fh,
    access: OpenAccess,
}

/// The order in which a file system makes changes stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Metadata changes reach the disk in the order in which they were made. So a sync of the last
    /// touched object is enough (ext4, xfs).
    Total,
    /// Each object needs its own sync.
    Each,
}

impl Local {
    /// Serves `dir`.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOENT` and others of opening the directory; `EPERM` without the privileges to
    /// act for other users; `EOPNOTSUPP` when its file system has neither handles nor birth times,
    /// or when its handles are too long; errors of reading or making the secret in the state
    /// directory.
    pub fn open(dir: &Path, options: LocalOptions, env: Env) -> Result<Self> {
        let at = |e: Error| Error::because(e.errno, format!("cannot serve {}", dir.display()));
        let inner =
            Arc::new(Inner::open(dir, options, env).map_err(|e| if e.why.is_some() { e } else { at(e) })?);
        if let Some(journal) = &inner.journal {
            journal.serve(&inner);
        }
        tidy_now_and_then(Arc::downgrade(&inner));
        Ok(Self { inner })
    }

    /// A number that changes when unstable writes may have been lost. A server uses it as its write
    /// verifier, so clients send uncommitted writes again.
    pub fn write_epoch(&self) -> u64 {
        self.inner.write_epoch.load(Ordering::SeqCst)
    }

    /// Recent calls with a name ([`RequestContext::call`]) that were made and are durable according
    /// to the journal, oldest first.
    pub fn answered(&self) -> Vec<Answered> {
        self.inner.journal.as_ref().map(Journaled::answered).unwrap_or_default()
    }

    /// The state of the journal; `None` without a journal.
    pub fn journal_stats(&self) -> Option<JournalStats> {
        self.inner.journal.as_ref().map(Journaled::stats)
    }

    /// Settles all records of the journal in the file system below. Blocks.
    ///
    /// # Errors
    /// There is no journal, or it or the disk below failed. The journal keeps its records.
    pub fn flush_journal(&self) -> Result<()> {
        let journal =
            self.inner.journal.as_ref().ok_or(Error::because(libc::ENOENT, "there is no journal"))?;
        journal.flush().map_err(|e| {
            Error::because(
                e.raw_os_error().unwrap_or(libc::EIO),
                format!("the journal keeps its records: {e}"),
            )
        })
    }

    /// Number of opens that were not closed.
    pub fn open_count(&self) -> usize {
        self.inner.opens.lock().len()
    }

    /// Number of objects with a descriptor.
    pub fn known_count(&self) -> usize {
        self.inner.objects.len()
    }

    /// Runs a job on a thread that can take on the identity of the caller.
    async fn run<T: Send + 'static>(
        &self,
        cx: &RequestContext,
        job: impl FnOnce(&Inner, &mut Worker) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = self.inner.clone();
        self.inner.pool.run(cx, move |worker| job(&inner, worker)).await
    }
}

impl Inner {
    fn open(dir: &Path, options: LocalOptions, env: Env) -> Result<Self> {
        if !options.as_this_process {
            need_privileges()?;
        }
        let Top { top, mount } = Top::open(dir)?;
        let proc_fd = open_path(rustix::fs::CWD, c"/proc/self/fd")
            .map_err(|e| Error::because(e.raw_os_error(), "cannot open /proc/self/fd; mount /proc"))?;
        let stat = object::stat(top.as_fd())?;
        let fs = rustix::fs::fstatfs(&top).map_err(os)?;
        let fs_id = fs_id(top.as_fd())?;
        let key = handle_secret(options.state_dir.as_deref(), &env)?;
        let table = handle_table(dir, top.as_fd(), &fs_id, &options, &env)?;
        let sealer = Sealer::new(&key, options.export_id, &table.as_ref().map_or(fs_id, Table::id));
        let top_id = attr::id(&stat);
        let kind = FsKind::of(fs.f_type as u64);
        let logged_ext = kind == FsKind::Ext && has_log(top_id.0);
        let fsid = options.fsid.unwrap_or_else(|| made_fsid(&fs_id));
        let mut attributer =
            Attributer::new(env.clone(), kind.multigrain() && !options.coarse_times, fsid, top_id.0);
        attributer.validity = options.validity;
        attributer.exclusive = options.exclusive;
        let ordered = (logged_ext && !options.as_this_process).then_some(top_id.0);
        let target = JournalTarget { top: top.as_fd(), fs_id: &fs_id, ordered };
        let journal = open_journal(&options, &target, &sealer, &env)?;
        let settled = journal.as_ref().map_or_else(Default::default, Journaled::settled);
        let log = journal.as_ref().map(|journal| Arc::downgrade(&journal.log)).unwrap_or_default();
        let reopens = table.is_none() && handles::can_be_opened(top.as_fd());
        let objects = Objects::new(options.known_max, settled, options.descriptors.clone(), reopens);
        let path = open_path(top.as_fd(), c".").map_err(os)?;
        let fh = handles::of_root(table.as_ref(), path.as_fd(), &sealer)?.ok_or_else(|| {
            Error::because(
                libc::EOPNOTSUPP,
                format!("{}: the handles of its file system are too long", dir.display()),
            )
        })?;
        let root = objects.open(&objects.add(fh, path, &stat)?);
        Ok(Self {
            is_subtree: !is_fs_root(top.as_fd(), top_id),
            top_id,
            mount,
            proc_fd,
            sealer,
            table,
            attributer,
            objects,
            known_budget: known::Budget::default(),
            pipes: Arc::default(),
            root,
            covered: covered::CoveredDirs::default(),
            opens: Mutex::default(),
            next_open: AtomicU64::new(1),
            locks: locks::LockTable::default(),
            pool: Pool::new(options.threads_max, !options.as_this_process, log.clone()),
            lane: Pool::new(LANE_THREADS, !options.as_this_process, log.clone()),
            changes: Pool::new(1, !options.as_this_process, log),
            journal,
            has_acls: acl::are_there(top.as_fd()),
            clone_block_bytes: clone_block_bytes(top.as_fd(), &fs),
            order: if kind == FsKind::Ext && !logged_ext { Order::Each } else { kind.order() },
            write_epoch: AtomicU64::new((env.random)()),
            watch: watch::Slot::default(),
            failed: AtomicBool::new(false),
            options,
            top,
        })
    }

    /// The object behind a filehandle.
    fn resolve(&self, worker: &mut Worker, fh: &Fh) -> Result<Arc<Object>> {
        if let Some(object) = self.objects.find(fh) {
            self.check_place_in(worker, &object)?;
            return Ok(object);
        }
        let handle = self.sealer.open(fh)?;
        worker.root(|| {
            let fd = self.open_handle(&handle, libc::O_PATH | libc::O_NOFOLLOW);
            let fd = fd.map_err(|e| match e.errno {
                libc::ENOENT | libc::EINVAL => Error::new(libc::ESTALE),
                // A process without privileges can open by handle only objects that it still holds.
                libc::EPERM if self.options.as_this_process => Error::new(libc::ESTALE),
                _ => e,
            })?;
            let stat = object::stat(fd.as_fd())?;
            if stat.stx_nlink == 0 {
                return Err(Error::new(libc::ESTALE));
            }
            if self.is_subtree && attr::kind(&stat)? == FileKind::Directory {
                self.check_below(fd.as_fd())?;
            }
            self.objects.add(fh.clone(), fd, &stat)
        })
    }

    /// Attributes of an object; `ESTALE` when its last name is gone and it is not open.
    fn attrs(&self, object: &Arc<Object>) -> Result<Attrs> {
        self.attrs_since(object, tokio::time::Instant::now())
    }

    fn attrs_since(&self, object: &Arc<Object>, asked: tokio::time::Instant) -> Result<Attrs> {
        let attrs = self.attributer.attrs_since(object, asked)?;
        self.renew(object)?;
        if attrs.attr.nlink == 0 && !object.is_open() {
            self.objects.forget(object);
            return Err(Error::new(libc::ESTALE));
        }
        Ok(attrs)
    }

    fn node(&self, object: &Arc<Object>) -> Result<Node> {
        Ok(Node { fh: object.fh.clone(), attrs: self.attrs(object)? })
    }

    /// The node of an object that was just made, even if another program has removed its name
    /// since.
    fn new_node(&self, object: &Arc<Object>) -> Result<Node> {
        self.renew(object)?;
        Ok(Node { fh: object.fh.clone(), attrs: self.attributer.attrs(object)? })
    }

    /// `EBADF` unless `open` is an open of this file with this access.
    fn check_open(&self, fh: &Fh, open: OpenId, access: OpenAccess) -> Result<()> {
        match self.opens.lock().get(&open.0) {
            Some(open) if open.fh == *fh && open.access.contains(access) => Ok(()),
            _ => Err(Error::new(libc::EBADF)),
        }
    }

    /// The object of an open; `EBADF` unless `open` is an open of this file with this access.
    fn find_open(
        &self,
        worker: &mut Worker,
        fh: &Fh,
        open: OpenId,
        access: OpenAccess,
    ) -> Result<Arc<Object>> {
        self.check_open(fh, open, access)?;
        self.resolve(worker, fh)
    }

    /// Makes changes of objects stable. The object touched last is the last one in `touched`.
    fn sync(&self, worker: &mut Worker, touched: &[&Object]) -> Result<()> {
        if !self.options.stable {
            return Ok(());
        }
        if let Some(table) = &self.table {
            table.sync().inspect_err(|e| self.lost(e))?;
        }
        let all = match self.order {
            Order::Total => &touched[touched.len().saturating_sub(1)..],
            Order::Each => touched,
        };
        for object in all {
            self.sync_one(worker, object)?;
        }
        Ok(())
    }

    /// Makes one object stable.
    fn sync_one(&self, worker: &mut Worker, object: &Object) -> Result<()> {
        let records = {
            // The lock keeps this from running between a write and its record. Otherwise the sync
            // would count as older than the write that it covered.
            let _order = object.order.lock();
            self.records_of(object)
        };
        self.sync_with(worker, object, records)
    }

    /// The same, when the number of the last record of the object is known.
    fn sync_with(&self, worker: &mut Worker, object: &Object, records: Option<u64>) -> Result<()> {
        let told = |done: Result<()>| done.inspect_err(|e| self.disk_failed(e));
        worker.root(|| match object.kind {
            FileKind::Regular => {
                let fd = object.io_now(true).map_or_else(|| object.io(self.proc_fd.as_fd(), false), Ok);
                told(sys::fsync(fd.inspect_err(|e| self.lost(e))?.as_fd()))
            }
            FileKind::Directory => {
                let fd = object.reopen(self.proc_fd.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY);
                told(sys::fsync(fd.inspect_err(|e| self.lost(e))?.as_fd()))
            }
            // An open of these kinds of objects would have side effects.
            _ => told(rustix::fs::syncfs(&self.top).map_err(os)),
        })?;
        records.map_or(Ok(()), |upto| self.void_records(worker, object, upto))
    }

    /// One caller got an error of the disk. The kernel does not report it to others.
    fn disk_failed(&self, e: &Error) {
        if let Some(journal) = &self.journal {
            journal.disk_failed();
        }
        self.lost(e);
    }

    /// Notes that the disk lost data.
    fn lost(&self, e: &Error) {
        self.write_epoch.fetch_add(1, Ordering::SeqCst);
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!("the disk below the served directory fails: {e}");
        }
    }

    fn tidy(&self) {
        if let Some(Err(e)) = self.table.as_ref().map(Table::sync) {
            self.lost(&e);
        }
        for object in self.objects.tidy(TIDY_EACH) {
            self.sync_late(&object);
        }
    }

    /// Syncs writes that no client has committed.
    fn sync_late(&self, object: &Object) {
        object.unsynced.store(false, Ordering::SeqCst);
        if let Some(fd) = object.io_now(true)
            && let Err(e) = rustix::fs::fsync(&*fd)
        {
            self.disk_failed(&os(e));
        }
    }

    /// Makes sure that a descriptor for one more file is available.
    ///
    /// # Errors
    /// `EMFILE`: all descriptors are in use, and no other file can release its own.
    fn room(&self) -> Result<()> {
        self.make_room();
        self.objects.room()
    }

    /// Closes descriptors of other files when none is left for one more. Open files remain usable.
    fn make_room(&self) {
        if !self.objects.are_used_up() {
            return;
        }
        for object in self.objects.some(TIDY_EACH) {
            if object.unsynced.load(Ordering::SeqCst) {
                self.sync_late(&object);
            }
            object.close_idle();
            if !self.objects.are_used_up() {
                break;
            }
        }
    }
}

/// The descriptor of a served directory.
struct Top {
    /// See [`Inner::top`].
    top: OwnedFd,
    /// See [`Inner::mount`].
    mount: Option<i32>,
}

impl Top {
    /// Opens a directory in a private mount. Without the right to make one, opens it in the present
    /// mount.
    fn open(dir: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let outside = rustix::fs::open(dir, flags, Mode::empty()).map_err(os)?;
        match sys::private_mount(outside.as_fd()) {
            Ok(tree) => {
                let top = rustix::fs::openat(&tree, c".", flags, Mode::empty()).map_err(os)?;
                Ok(Self { top, mount: None })
            }
            Err(e) => {
                tracing::debug!("no private mount of {}: {e}", dir.display());
                let mount = handles::mount_of(outside.as_fd())?;
                Ok(Self { top: outside, mount: Some(mount) })
            }
        }
    }
}

/// Opens a directory as a place for lookups, without reading (`O_PATH`).
fn open_path(at: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The table that replaces the handles of a file system without handles.
///
/// # Errors
/// A journal needs handles.
fn handle_table(
    dir: &Path,
    top: BorrowedFd<'_>,
    fs_id: &[u8; 16],
    options: &LocalOptions,
    env: &Env,
) -> Result<Option<Table>> {
    let state = options.state_dir.as_deref().map(|dir| (dir, options.export_id));
    let table = handles::table_for(top, fs_id, state, env)
        .map_err(|e| Error::because(e.errno, format!("{}: {e}", dir.display())))?;
    if table.is_some() && options.journal.is_some() {
        let why = "its file system has no handles, and a journal needs them; serve it without a journal";
        return Err(Error::because(libc::EOPNOTSUPP, format!("{}: {why}", dir.display())));
    }
    Ok(table)
}

/// The journal of a served directory, after its records were applied. `None`: the options name
/// none.
fn open_journal(
    options: &LocalOptions,
    target: &JournalTarget<'_>,
    sealer: &Sealer,
    env: &Env,
) -> Result<Option<Journaled>> {
    match options.journal.as_ref().filter(|_| options.stable) {
        Some(journal) => Journaled::open(options, journal, target, sealer, env).map(Some),
        None => journaled::nothing_left(options.state_dir.as_deref(), None).map(|()| None),
    }
}

/// The directories whose unused descriptors one thread closes.
static TIDIED: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// Has the unused descriptors of a directory closed. The first directory starts the thread, which
/// ends with the last one.
fn tidy_now_and_then(inner: Weak<Inner>) {
    let mut tidied = TIDIED.lock();
    tidied.push(inner);
    if tidied.len() > 1 {
        return;
    }
    if let Err(e) = std::thread::Builder::new().name("hither-tidy".into()).spawn(tidy_all) {
        tracing::warn!("cannot start a thread: {e}");
        tidied.clear();
    }
}

fn tidy_all() {
    let (never, timer) = (Mutex::new(()), parking_lot::Condvar::new());
    loop {
        timer.wait_for(&mut never.lock(), TIDY_EVERY);
        let open: Vec<Arc<Inner>> = {
            let mut tidied = TIDIED.lock();
            tidied.retain(|inner| inner.strong_count() > 0);
            if tidied.is_empty() {
                return;
            }
            tidied.iter().filter_map(Weak::upgrade).collect()
        };
        open.iter().for_each(|inner| inner.tidy());
    }
}

fn need_privileges() -> Result<()> {
    use rustix::thread::CapabilitySet;
    let need = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::DAC_READ_SEARCH;
    if rustix::thread::capabilities(None).map_err(os)?.effective.contains(need) {
        return Ok(());
    }
    Err(Error::because(
        libc::EPERM,
        "acting for several users needs root (CAP_SETUID, CAP_SETGID, CAP_DAC_READ_SEARCH)",
    ))
}

/// The secret of filehandles in a state directory, which is made when it is missing. Without a
/// directory, a new secret.
///
/// # Errors
/// The file is damaged, others may read it, or it cannot be read or written.
pub fn handle_secret(state_dir: Option<&Path>, env: &Env) -> Result<[u8; 16]> {
    let Some(dir) = state_dir else {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&(env.random)().to_ne_bytes());
        key[8..].copy_from_slice(&(env.random)().to_ne_bytes());
        return Ok(key);
    };
    handle::make_state_dir(dir).and_then(|()| handle::secret(dir, env)).map_err(|e| {
        Error::because(
            e.raw_os_error().unwrap_or(libc::EIO),
            format!("state directory {}: {e}", dir.display()),
        )
    })
}

/// An id that distinguishes the file system from all others, as far as possible.
fn fs_id(fd: BorrowedFd<'_>) -> Result<[u8; 16]> {
    if let Some(uuid) = sys::fs_uuid(fd) {
        return Ok(uuid);
    }
    let fs = rustix::fs::fstatvfs(fd).map_err(os)?;
    let mut id = [0; 16];
    id[..8].copy_from_slice(&fs.f_fsid.to_be_bytes());
    Ok(id)
}

fn made_fsid(fs_id: &[u8; 16]) -> (u64, u64) {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&fs_id[at..at + 8]);
        u64::from_be_bytes(bytes)
    };
    (half(0), half(8))
}

/// Whether a directory is the root of its file system; `false` when that is unknown.
fn is_fs_root(dir: BorrowedFd<'_>, id: (u64, u64)) -> bool {
    // The inode number of roots: 2 on ext2 to ext4, 256 on btrfs, 1 on tmpfs. Xfs has no fixed one.
    let Ok(fs) = rustix::fs::fstatfs(dir) else { return false };
    matches!(
        (FsKind::of(fs.f_type as u64), id.1),
        (FsKind::Ext, 2) | (FsKind::Btrfs, 256) | (FsKind::Tmpfs, 1)
    )
}

/// File systems that need different treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FsKind {
    Ext,
    Xfs,
    Btrfs,
    Tmpfs,
    Other,
}

impl FsKind {
    /// The kind for a magic number (statfs(2)).
    fn of(magic: u64) -> Self {
        match magic {
            0xef53 => Self::Ext,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0x0102_1994 => Self::Tmpfs,
            _ => Self::Other,
        }
    }

    fn order(self) -> Order {
        if matches!(self, Self::Ext | Self::Xfs) { Order::Total } else { Order::Each }
    }

    /// Whether the timestamps are multigrain: on these three since Linux 6.13. Tmpfs gives a
    /// directory the new time of the linked or removed file, which can be the directory's old one.
    fn multigrain(self) -> bool {
        matches!(self, Self::Ext | Self::Xfs | Self::Btrfs) && kernel_version() >= (6, 13)
    }
}

/// The block size, if files can share blocks. This is tried with a file that never has a name.
fn clone_block_bytes(dir: BorrowedFd<'_>, fs: &StatFs) -> Option<u32> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, c".", flags, Mode::RUSR | Mode::WUSR).ok()?;
    sys::clone_range((file.as_fd(), 0), (file.as_fd(), 0), 0).ok()?;
    u32::try_from(fs.f_bsize).ok().filter(|&bytes| bytes > 0)
}

/// Whether an ext4 file system has a log. Ext2, and ext4 without a log, keep no order.
fn has_log(dev: u64) -> bool {
    let number = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let device = std::fs::read_link(number).ok();
    let name = device.as_deref().and_then(Path::file_name);
    let task = name.map(|name| Path::new("/sys/fs/ext4").join(name).join("journal_task"));
    task.and_then(|task| std::fs::read_to_string(task).ok()).is_some_and(|task| task.trim() != "<none>")
}

fn kernel_version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut parts = release.split(['.', '-', '+']).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Attributes of `name` in `dir`, without following a symbolic link.
fn stat_name(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Statx> {
    let want = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, want).map_err(os)
}
