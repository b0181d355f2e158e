//! Mounting and unmounting.

use crate::device::Device;
use crate::hint::HintStats;
use crate::lease::Revoker;
use crate::recent::{RecentCall, RecentCalls};
use crate::session::{Phase, Session};
use crate::stats::OpCount;
use crate::trace::{Record, Traced};
use hither_vfs::{ConsistencyDomains, Fh, LeaseAuthority, Name, NoLeases, Vfs};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Type of the mounted file system in mount(8) and findmnt(8), for `-t hither`.
const FS_TYPE: &str = "fuse.hither";

/// The layers below a mount.
#[derive(Clone)]
pub struct Layers {
    /// The top layer.
    pub vfs: Arc<dyn Vfs>,
    /// Which data may be cached.
    pub leases: Arc<dyn LeaseAuthority>,
    /// The consistency domains of the objects; `None`: all are in one.
    pub domains: Option<Arc<dyn ConsistencyDomains>>,
}

impl Layers {
    /// A file system without leases and with one consistency domain.
    pub fn alone(vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, leases: Arc::new(NoLeases), domains: None }
    }
}

/// Settings of a mount.
#[derive(Debug, Clone)]
pub struct Config {
    /// The displayed source of the mount: `server:/export`.
    pub source: String,
    /// mount(2) flags: `MS_RDONLY`, `MS_NOSUID`, `MS_NODEV`, `MS_NOEXEC`, `MS_NOATIME`,
    /// `MS_SYNCHRONOUS`, `MS_DIRSYNC`, …
    pub mount_flags: libc::c_ulong,
    /// Other users than the mounting user may use the mount.
    pub allow_other: bool,
    /// The kernel's read-ahead in KiB; `None` keeps the kernel's default.
    pub read_ahead_kb: Option<u32>,
    /// Number of threads that read requests.
    pub threads: usize,
    /// flock(2) and fcntl(2) locks are locks of the server. Otherwise they are locks between
    /// processes of this machine.
    pub server_locks: bool,
    /// Files may have extended attributes. Without them the kernel asks only once.
    pub xattrs: bool,
    /// The server can copy bytes. When it cannot copy for any file, the kernel asks only once.
    pub server_copy: bool,
    /// Maximum size of READ and WRITE in bytes: a multiple of 4096, at most 1 MiB.
    pub max_io_bytes: u32,
    /// Maximum number of asynchronous requests (read-ahead, direct I/O in parts).
    pub max_background: u16,
    /// For a lookup with a request to the server, read the caller's whole path and look all of it
    /// up at once.
    pub hints: bool,
    /// Maximum number of first bytes to fetch with the lookup or the open of a file that is opened
    /// for reading.
    pub first_bytes: u32,
    /// An open shows data that other clients closed before it, even when cached state is still
    /// valid.
    pub close_to_open: bool,
    /// read(2) and write(2) of all files bypass the kernel's pages. An append writes at the current
    /// end of the file. State that is valid for one call is not shared between calls: the kernel
    /// looks up each name of a path for each call.
    pub strict: bool,
    /// The rules of `strict` also hold for single files that the layer below names
    /// ([`ConsistencyDomains`]).
    pub strict_parts: bool,
    /// Other clients may start to use a file so that its data must not be cached
    /// ([`LeaseAuthority::is_noncacheable`]), also while it is open. The
    /// kernel then requests attributes before each read(2) without valid ones. It drops the pages
    /// of a file when its times have changed.
    pub may_be_shared: bool,
    /// The kernel may cache names while they are valid. Otherwise it looks each name up for each
    /// call.
    pub keeps_names: bool,
    /// The mode of a directory proves the rights of all users to list and search it. False where a
    /// user of this machine may be none of the server.
    pub trusts_modes: bool,
    /// Changes of names may be answered before they are on stable storage. fsync(2) of a directory
    /// makes them stable.
    pub names_wait: bool,
    /// The exported files never change. The kernel itself reads files that are completely on the
    /// local disk, if it supports passthrough.
    pub passthrough: bool,
    /// The cases in which close(2) returns only after the written data is on stable storage, or
    /// with the write error.
    pub close_waits: CloseWaits,
    /// Data that is stable after an fsync stays stable. Without a later write the next fsync sends
    /// no request.
    pub commits_last: bool,
    /// Time for which an interrupted call continues to wait when its program handles the signal
    /// (SIGINT and similar).
    pub interrupt_patience: Duration,
}

/// The closes that wait for stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseWaits {
    /// All closes.
    Always,
    /// Closes of files that other clients may read meanwhile
    /// ([`LeaseAuthority::delegated_bytes`]).
    UnlessDelegated,
    /// No close.
    Never,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            source: "hither".into(),
            mount_flags: libc::MS_NOSUID | libc::MS_NODEV,
            allow_other: true,
            read_ahead_kb: Some(4096),
            threads: std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
            server_locks: true,
            xattrs: true,
            server_copy: true,
            max_io_bytes: 1 << 20,
            max_background: 64,
            hints: true,
            first_bytes: 64 << 10,
            close_to_open: true,
            trusts_modes: true,
            strict: false,
            strict_parts: false,
            may_be_shared: false,
            close_waits: CloseWaits::Always,
            commits_last: true,
            keeps_names: true,
            names_wait: false,
            passthrough: false,
            interrupt_patience: Duration::from_secs(5),
        }
    }
}

/// The reason why a mount failed. Each has its own message for the user.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Mounting needs the superuser.
    #[error("only root can mount: run as root or with sudo")]
    NotRoot,
    /// `/dev/fuse` is missing or cannot be opened.
    #[error("cannot open /dev/fuse: {0} (is the kernel module loaded? try: modprobe fuse)")]
    NoDevice(io::Error),
    /// The mount point does not exist.
    #[error("mount point {} does not exist: create it with mkdir", .0.display())]
    NoSuchDirectory(PathBuf),
    /// The mount point is no directory.
    #[error("mount point {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// The mount point is in use.
    #[error("mount point {} is busy", .0.display())]
    Busy(PathBuf),
    /// The layer below returned an error for the root directory.
    #[error("cannot read the root directory: {0}")]
    Root(hither_vfs::Error),
    /// The kernel's protocol version is not supported.
    #[error("{0}")]
    Protocol(String),
    /// Another error.
    #[error("{0}: {1}")]
    Os(&'static str, io::Error),
}

/// A running mount. Dropping it detaches the mount.
pub struct Mounted {
    session: Arc<Session>,
    dir: PathBuf,
    device: (u32, u32),
    phase: watch::Receiver<Phase>,
    unmounted: AtomicBool,
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").field("dir", &self.dir).field("device", &self.device).finish()
    }
}

/// Mounts `layers` on `dir`. Returns when programs can use the mount. Must run inside a tokio
/// runtime with time enabled, which then serves the mount.
///
/// After the end of the mount ([`Mounted::wait`]) all opens of `layers.vfs` are closed. The caller
/// calls [`Vfs::shutdown`].
///
/// # Errors
/// See [`MountError`]. After an error nothing is mounted.
pub async fn mount(dir: &Path, config: Config, layers: Layers) -> Result<Mounted, MountError> {
    let withdrawer = Arc::new(Revoker::default());
    layers.vfs.subscribe(withdrawer.clone());
    let root = layers.vfs.root(&Session::own_cx()).await.map_err(MountError::Root)?;
    let (path, options) = (dir.to_owned(), config.clone());
    let attach = move || attach(&path, &options);
    let (device, dir) = blocking("cannot mount", attach).await?;
    let session = Session::new(device, config, layers, (&root, &dir), tokio::runtime::Handle::current());
    withdrawer.serves(&session);
    let mut phase = session.phase();
    let detach_on_error = |e| {
        let _ = detach(&dir, true);
        e
    };
    session.start().map_err(|e| detach_on_error(MountError::Os("cannot start a thread", e)))?;
    let greeted = phase.wait_for(|p| *p != Phase::Starting).await.map(|p| p.clone());
    match greeted {
        Ok(Phase::Running) => {}
        Ok(Phase::Refused(why)) => return Err(detach_on_error(MountError::Protocol(why))),
        _ => return Err(detach_on_error(MountError::Protocol("the mount ended at once".into()))),
    }
    session.widen().map_err(|e| detach_on_error(MountError::Os("cannot read /dev/fuse in parallel", e)))?;
    let path = dir.clone();
    let number = blocking("cannot find the mount", move || {
        device_number(&path).map_err(|e| MountError::Os("cannot find the mount", e))
    });
    let device = number.await.map_err(detach_on_error)?;
    let _ = session.number.set(device);
    if let Some(kb) = session.config.read_ahead_kb {
        set_read_ahead(device, kb);
    }
    Ok(Mounted { session, dir, device, phase, unmounted: AtomicBool::new(false) })
}

async fn blocking<T: Send + 'static>(
    what: &'static str,
    f: impl FnOnce() -> Result<T, MountError> + Send + 'static,
) -> Result<T, MountError> {
    let join = tokio::task::spawn_blocking(f).await;
    join.unwrap_or_else(|e| Err(MountError::Os(what, io::Error::other(e))))
}

impl Mounted {
    /// Major and minor number of the mount's device, as in `/proc/self/mountinfo` and `st_dev`. The
    /// minor number is the name of the connection in `/sys/fs/fuse/connections`.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// FUSE minor version and capability bits negotiated with the kernel.
    pub fn negotiated(&self) -> (u32, u64) {
        self.session.negotiated()
    }

    /// Waits until the mount has ended, by umount(8) or by abort, and all opens are closed.
    pub async fn wait(&self) {
        let mut phase = self.phase.clone();
        let _ = phase.wait_for(|p| *p == Phase::Ended).await;
        self.unmounted.store(true, Ordering::Release);
    }

    /// Unmounts. `lazy` detaches at once, and the mount ends with its last user. Blocks while dirty
    /// pages are written. So it must not be called on a thread of the mount's runtime.
    ///
    /// # Errors
    /// `EBUSY` while the mount is in use, unless `lazy`.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        detach(&self.dir, lazy)?;
        self.unmounted.store(true, Ordering::Release);
        Ok(())
    }

    /// Requests by kind since the start of the mount.
    pub fn stats(&self) -> Vec<OpCount> {
        self.session.stats.list()
    }

    /// Directory entries in replies to the kernel since the start of the mount.
    pub fn entries_listed(&self) -> u64 {
        self.session.stats.entries.load(Ordering::Relaxed)
    }

    /// Path hints since the start of the mount.
    pub fn hints(&self) -> HintStats {
        self.session.hints.stats()
    }

    /// Number of opens until now with reads by the kernel.
    pub fn passthrough_opens(&self) -> u64 {
        self.session.passthrough.opens()
    }

    /// Number of objects that the kernel keeps under a lease, and number of withdrawals until now.
    pub fn leases(&self) -> (u64, u64) {
        self.session.leases.counts()
    }

    /// The receiver of changes by another frontend of the same stack. The kernel shows them at
    /// once.
    pub fn invalidator(&self) -> Arc<dyn hither_vfs::Invalidator> {
        Arc::new(crate::invalidator::KernelInvalidator(self.session.clone()))
    }

    /// The filehandle of the root directory.
    pub fn root(&self) -> Fh {
        self.session.inodes.root()
    }

    /// The recent calls with requests to the server about an object or about names in directories,
    /// newest first.
    pub fn recent(&self, object: Option<&Fh>, names: &[(Fh, Name)]) -> Vec<RecentCall> {
        self.session.recent.about(object, names)
    }

    /// The calls with requests to the server since the call with number `from`.
    pub fn calls_since(&self, from: u64) -> RecentCalls {
        let (next, lost, calls) = self.session.recent.since(from);
        let inodes = &self.session.inodes;
        let found = calls.into_iter().map(|(fh, call)| {
            let mut path = fh.and_then(|fh| inodes.path_of(&fh));
            if let (Some(path), Some(name)) = (&mut path, &call.name) {
                path.push(name.clone());
            }
            (path, call)
        });
        RecentCalls { next, lost, calls: found.collect() }
    }

    /// Starts a recording for process `by`: the calls of process `below` and its children, or of
    /// all processes. Returns `false` when another process is recording.
    pub fn trace(&self, by: u32, below: Option<u32>, record: Record) -> bool {
        self.session.tracer.start(by, below, record)
    }

    /// Ends the recording for process `by`.
    pub fn end_trace(&self, by: u32) -> Option<Traced> {
        self.session.tracer.stop(by)
    }

    /// The present numbers of objects and requests.
    pub fn counts(&self) -> crate::MountCounts {
        self.session.counts()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.unmounted.load(Ordering::Acquire) && *self.phase.borrow() != Phase::Ended {
            let _ = detach(&self.dir, true);
        }
    }
}

/// Opens the device and calls mount(2). Returns the mount point without symbolic links.
fn attach(dir: &Path, config: &Config) -> Result<(Device, PathBuf), MountError> {
    if !rustix::process::geteuid().is_root() {
        return Err(MountError::NotRoot);
    }
    let device = Device::open().map_err(MountError::NoDevice)?;
    let dir = dir.canonicalize().map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => MountError::NoSuchDirectory(dir.to_owned()),
        Some(libc::ENOTDIR) => MountError::NotDirectory(dir.to_owned()),
        _ => MountError::Os("cannot examine the mount point", e),
    })?;
    match dir.metadata() {
        Ok(m) if m.is_dir() => {}
        Ok(_) => return Err(MountError::NotDirectory(dir)),
        Err(e) => return Err(MountError::Os("cannot examine the mount point", e)),
    }
    let mut options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.raw());
    options.push_str(&format!(",max_read={}", config.max_io_bytes));
    if config.allow_other {
        options.push_str(",allow_other");
    }
    let text = |s: &[u8]| CString::new(s).map_err(|e| MountError::Os("a NUL in a mount option", e.into()));
    let (source, target) = (text(config.source.as_bytes())?, text(dir.as_os_str().as_bytes())?);
    let (kind, data) = (text(FS_TYPE.as_bytes())?, text(options.as_bytes())?);
    // SAFETY: four NUL-terminated strings that live across the call.
    let r = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), config.mount_flags, data.as_ptr().cast())
    };
    if r == 0 {
        return Ok((device, dir));
    }
    let e = io::Error::last_os_error();
    Err(match e.raw_os_error() {
        Some(libc::EBUSY) => MountError::Busy(dir),
        Some(libc::EPERM) => MountError::NotRoot,
        Some(libc::ENODEV) => MountError::NoDevice(e),
        _ => MountError::Os("mount(2) failed", e),
    })
}

fn detach(dir: &Path, lazy: bool) -> io::Result<()> {
    let dir = CString::new(dir.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: a NUL-terminated string that lives across the call.
    let r = unsafe { libc::umount2(dir.as_ptr(), flags) };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Device number of the mounted root, from the kernel without a FUSE request.
fn device_number(dir: &Path) -> io::Result<(u32, u32)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    let flags = AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    let s = statx(CWD, dir, flags, StatxFlags::TYPE)?;
    Ok((s.stx_dev_major, s.stx_dev_minor))
}

fn set_read_ahead((major, minor): (u32, u32), kb: u32) {
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, kb.to_string()) {
        tracing::debug!(%path, %error, "cannot set the read-ahead");
    }
}
