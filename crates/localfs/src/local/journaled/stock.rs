//! Files and directories that are durable already and have no name for clients yet.
//!
//! The handle of a new object names an inode. An inode that a power cut loses does not come back
//! with its number. So new objects are made and synced in advance, many with one sync, where no
//! client sees them. A client's create moves one of them to its name, with its owner and
//! permissions (`local::new`). That changes names and attributes of a durable object, and needs one
//! record of the journal (`names::Change::Make`).
//!
//! The stock directory is beside the mark. It is reached through the served mount, because a rename
//! cannot cross mounts. The move runs with the caller's own permissions, so the kernel decides
//! whether the caller may make the name. Therefore every user may write to the stock directory. No
//! user can reach it, because only the superuser may enter its parent.
//!
//! Objects left by a previous run are removed at the start, after the journal was applied and
//! emptied. An orderly end leaves none.

use super::super::handle::Sealer;
use super::super::object::{os, stat};
use super::super::{attr, sys};
use super::names::{self, Names};
use super::{CheckpointFiles, plain};
use hither_vfs::{Fh, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// The directory beside the mark that only the superuser may enter.
const OUTER: &str = "journal-new";
/// The directory in it.
const INNER: &str = "stock";
/// The group of the directory. If new files also have it, they got the group of their directory
/// (mount option `grpid`).
const GROUP: u32 = 65534;
/// Objects of each kind kept at first. In tests there are few, so that new ones are made all the
/// time.
const FIRST: [usize; KINDS] = if cfg!(test) { [4, 2] } else { [64, 16] };
/// Most objects of each kind. The number grows while a stock lasts less than [`LASTS`].
const MAX: [usize; KINDS] = if cfg!(test) { [8, 4] } else { [2048, 256] };
const KINDS: usize = 2;
/// A stock should last this long. Each filling is a commit of the file system's log, and changes of
/// a block that a commit writes wait for it. The log commits as often by itself.
const LASTS: Duration = Duration::from_secs(5);
/// Longest wait for new objects. Then the caller's object is made and synced. Tests expect objects
/// from the stock.
const WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });
/// Pause after a failure to make objects.
const PAUSE: Duration = Duration::from_secs(10);

/// The kinds of objects in stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::local) enum Kind {
    File,
    Directory,
}

/// Files and directories without a name for clients.
pub(in crate::local) struct Stock {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    /// Locked until this is dropped.
    _outer: OwnedFd,
    /// The directory, through the served mount.
    dir: OwnedFd,
    fh: Fh,
    state: Mutex<State>,
    /// Signals that objects are to be made, or that the stock is closed.
    work: Condvar,
    /// Signals that objects were made, or that this failed.
    filled: Condvar,
    names: Arc<Names>,
    checkpoint: Arc<CheckpointFiles>,
    #[cfg(test)]
    given: AtomicU64,
}

struct State {
    /// Numbers of the durable objects, which are also their names.
    ready: [VecDeque<u64>; KINDS],
    want: [usize; KINDS],
    /// Permissions that were wanted last. New objects get them, so that they need not be set.
    modes: [u32; KINDS],
    /// A call found no object of the kind.
    short: [bool; KINDS],
    /// The beginning of the last filling with the kind.
    filled_at: [Option<Instant>; KINDS],
    next: u64,
    /// Making objects fails at present.
    failed: bool,
    over: bool,
}

/// An object that was taken. It is removed when this is dropped before it got a name.
pub(in crate::local) struct Taken {
    shared: Arc<Shared>,
    kind: Kind,
    name: String,
    kept: bool,
}

impl Stock {
    /// Makes the stock directory in the first of `places` that is on the file system `dev` of the
    /// directory `top`, and begins to fill it. `None` where that is impossible; the log gives the
    /// reason.
    pub(super) fn open(
        places: &[PathBuf],
        dev: u64,
        (top, sealer): (BorrowedFd<'_>, &Sealer),
        names: &Arc<Names>,
        checkpoint: &Arc<CheckpointFiles>,
    ) -> Option<Self> {
        let place = places.iter().find(|place| names::is_on(place, dev))?;
        let stock = Self::open_in(place, (top, sealer), names, checkpoint);
        stock
            .inspect_err(|e| {
                tracing::info!("{}: {e}; new files and directories are synced", place.join(OUTER).display());
            })
            .ok()
    }

    fn open_in(
        place: &Path,
        (top, sealer): (BorrowedFd<'_>, &Sealer),
        names: &Arc<Names>,
        checkpoint: &Arc<CheckpointFiles>,
    ) -> io::Result<Self> {
        if is_below(place, top)? {
            return Err(io::Error::other("clients would see the directory"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let outer = made(rustix::fs::CWD, &place.join(OUTER), Mode::RWXU, rustix::process::getegid())?;
        // Another journal kept in the same place has a mark of its own, and would empty this
        // directory.
        rustix::fs::flock(&outer, FlockOperation::NonBlockingLockExclusive)?;
        let dir = made(outer.as_fd(), Path::new(INNER), Mode::from_raw_mode(0o777), Gid::from_raw(GROUP))?;
        empty(dir.as_fd())?;
        if !is_plain(dir.as_fd()).map_err(plain)? {
            return Err(io::Error::other("new files in the directory inherit properties of it"));
        }
        let (handle, _) = sys::name_to_handle(dir.as_fd(), c"").map_err(plain)?;
        let fh = sealer.seal(&handle).ok_or_else(|| io::Error::other("its handle is too long"))?;
        let dir = sys::open_by_handle(top, &handle, flags.bits() as i32).map_err(plain)?;
        let state = State {
            ready: Default::default(),
            want: FIRST,
            modes: [0o644, 0o755],
            short: [false; KINDS],
            filled_at: [None; KINDS],
            next: 1,
            failed: false,
            over: false,
        };
        let shared = Arc::new(Shared {
            _outer: outer,
            dir,
            fh,
            state: Mutex::new(state),
            work: Condvar::new(),
            filled: Condvar::new(),
            names: names.clone(),
            checkpoint: checkpoint.clone(),
            #[cfg(test)]
            given: AtomicU64::new(0),
        });
        let run = shared.clone();
        let thread = std::thread::Builder::new().name("hither-stock".into()).spawn(move || run.fill())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// A durable object of a kind, if possible with the permissions `mode`. Waits a little for new
    /// objects when there is none; `None` when there is still none.
    pub fn take(&self, kind: Kind, mode: u32) -> Option<Taken> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        loop {
            if let Some(taken) = shared.take(&mut state, kind, mode) {
                return Some(taken);
            }
            if state.over || state.failed || shared.filled.wait_for(&mut state, WAIT_MAX).timed_out() {
                return None;
            }
        }
    }

    /// An object of a kind, if there is one now.
    pub fn take_now(&self, kind: Kind, mode: u32) -> Option<Taken> {
        self.shared.take(&mut self.shared.state.lock(), kind, mode)
    }

    /// Stops making objects. The existing ones stay, as after a kill.
    pub fn stop(&self) {
        self.shared.state.lock().over = true;
        self.shared.work.notify_all();
        self.shared.filled.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    /// Ends, and removes all objects.
    pub fn close(&self) -> io::Result<()> {
        self.stop();
        empty(self.shared.dir.as_fd())
    }

    /// Names of the objects that are ready.
    #[cfg(test)]
    pub fn ready(&self) -> Vec<String> {
        self.shared.state.lock().ready.iter().flatten().map(u64::to_string).collect()
    }

    /// Number of objects that got a name.
    #[cfg(test)]
    pub fn given(&self) -> u64 {
        self.shared.given.load(Ordering::SeqCst)
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Taken {
    /// The directory of the object.
    pub fn dir(&self) -> (BorrowedFd<'_>, &Fh) {
        (self.shared.dir.as_fd(), &self.shared.fh)
    }

    /// The name of the object in that directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes that the object got a name for clients.
    pub fn keep(&mut self) {
        self.kept = true;
        #[cfg(test)]
        self.shared.given.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.kept {
            remove(self.shared.dir.as_fd(), self.kind, &self.name);
        }
    }
}

impl State {
    /// Whether less than half of the wanted number is ready.
    fn lacks(&self) -> bool {
        (0..KINDS).any(|kind| self.lacks_kind(kind))
    }

    fn lacks_kind(&self, kind: usize) -> bool {
        self.short[kind] || self.ready[kind].len() * 2 < self.want[kind]
    }

    /// Doubles the wanted number of each kind whose last stock did not last.
    fn want_more(&mut self) {
        let now = Instant::now();
        for (kind, most) in MAX.into_iter().enumerate() {
            if self.lacks_kind(kind) {
                self.short[kind] = false;
                let lasted = self.filled_at[kind].replace(now).map(|filled| now - filled);
                if lasted.is_some_and(|lasted| lasted < LASTS) {
                    self.want[kind] = (self.want[kind] * 2).min(most);
                }
            }
        }
    }
}

impl Shared {
    fn take(self: &Arc<Self>, state: &mut State, kind: Kind, mode: u32) -> Option<Taken> {
        if state.over {
            return None;
        }
        let number = state.ready[kind as usize].pop_front();
        state.short[kind as usize] |= number.is_none();
        state.modes[kind as usize] = mode;
        if state.lacks() {
            self.work.notify_one();
        }
        let shared = self.clone();
        number.map(|number| Taken { shared, kind, name: number.to_string(), kept: false })
    }

    /// The thread that makes objects.
    fn fill(&self) {
        if let Err(e) = sys::own_umask() {
            // Without its own umask, the permissions are set when an object is taken.
            tracing::debug!("the thread has no umask of its own: {e}");
        }
        let mut state = self.state.lock();
        while !state.over {
            if !state.lacks() {
                self.work.wait(&mut state);
                continue;
            }
            state.want_more();
            let counts = [Kind::File, Kind::Directory]
                .map(|kind| (kind, state.want[kind as usize] - state.ready[kind as usize].len()));
            let (first, modes) = (state.next, state.modes.map(Mode::from_raw_mode));
            state.next += counts.iter().map(|(_, count)| *count as u64).sum::<u64>();
            let result = MutexGuard::unlocked(&mut state, || self.make(first, &counts, modes));
            match result {
                Ok(made) => {
                    state.failed = false;
                    made.into_iter().for_each(|(kind, number)| state.ready[kind as usize].push_back(number));
                    self.filled.notify_all();
                }
                Err(e) => {
                    if !std::mem::replace(&mut state.failed, true) {
                        tracing::warn!("new files and directories are synced for a while: {e}");
                    }
                    self.filled.notify_all();
                    // Only the end wakes this wait. A call that finds no object goes on without
                    // one.
                    let until = Instant::now() + PAUSE;
                    while !state.over && !self.work.wait_until(&mut state, until.into_std()).timed_out() {}
                }
            }
        }
    }

    /// Makes objects, which are durable when this returns.
    fn make(
        &self,
        first: u64,
        counts: &[(Kind, usize)],
        modes: [Mode; KINDS],
    ) -> io::Result<Vec<(Kind, u64)>> {
        let kinds = counts.iter().flat_map(|&(kind, count)| std::iter::repeat_n(kind, count));
        let all: Vec<(Kind, u64)> = kinds.zip(first..).collect();
        let done = all.iter().enumerate().try_for_each(|(i, &(kind, number))| {
            let (name, mode) = (number.to_string(), modes[kind as usize]);
            match kind {
                Kind::Directory => Ok(rustix::fs::mkdirat(&self.dir, &name, mode)?),
                Kind::File => {
                    let flags =
                        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(&self.dir, &name, flags, mode)?;
                    if i == 0 { bare(&file) } else { Ok(()) }
                }
            }
        });
        let done = done.and_then(|()| {
            // The kernel reports this error to no other descriptor.
            self.names.settle().inspect_err(|_| self.checkpoint.note_failure())
        });
        if done.is_err() {
            all.iter().for_each(|(kind, number)| remove(self.dir.as_fd(), *kind, &number.to_string()));
        }
        done.map(|()| all)
    }
}

/// Fails for a file with labels, or with the group of its directory.
fn bare(file: &OwnedFd) -> io::Result<()> {
    let stat = stat(file.as_fd()).map_err(plain)?;
    let mut list: [u8; 0] = [];
    let labels = match rustix::fs::flistxattr(file, &mut list[..]) {
        Ok(len) => len > 0,
        Err(Errno::OPNOTSUPP) => false,
        Err(e) => return Err(e.into()),
    };
    if labels || stat.stx_gid == GROUP {
        return Err(io::Error::other(
            "the file system gives new files labels, or the group of their directory",
        ));
    }
    Ok(())
}

fn remove(dir: BorrowedFd<'_>, kind: Kind, name: &str) {
    let flags = if kind == Kind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    // An object that stays is removed at the next start.
    let _ = rustix::fs::unlinkat(dir, name, flags);
}

/// A directory with these permissions and group, created when it is missing.
fn made(at: BorrowedFd<'_>, path: &Path, mode: Mode, group: Gid) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(at, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(at, path, flags, Mode::empty())?;
    rustix::fs::fchown(&dir, Some(Uid::ROOT), Some(group))?;
    rustix::fs::fchmod(&dir, mode)?;
    Ok(dir)
}

/// Removes all entries of a directory.
fn empty(dir: BorrowedFd<'_>) -> io::Result<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is_dir = entry.file_type() == FileType::Directory;
        let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        match rustix::fs::unlinkat(dir, name, flags) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Whether a path is that of `dir` or of an object in it.
fn is_below(path: &Path, dir: BorrowedFd<'_>) -> io::Result<bool> {
    let id = attr::id(&stat(dir).map_err(plain)?);
    for above in std::fs::canonicalize(path)?.ancestors() {
        let here = std::fs::metadata(above)?;
        if (here.dev(), here.ino()) == id {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether objects made in a directory of ext4 inherit nothing from it: no default ACL, no flag
/// (ioctl_iflags(2)), no encryption, no project.
pub(in crate::local) fn is_plain(dir: BorrowedFd<'_>) -> Result<bool> {
    /// FS_EXTENT_FL, FS_INDEX_FL, FS_TOPDIR_FL, FS_INLINE_DATA_FL: the storage of the directory
    /// itself.
    const OF_ITSELF: u32 = 0x0008_0000 | 0x0000_1000 | 0x0002_0000 | 0x1000_0000;
    let flags = rustix::fs::ioctl_getflags(dir).map_err(os)?.bits();
    let mut value: [u8; 0] = [];
    let acl = match rustix::fs::fgetxattr(dir, super::super::acl::DEFAULT, &mut value[..]) {
        Ok(_) | Err(Errno::RANGE) => true,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
        Err(e) => return Err(os(e)),
    };
    Ok(!acl && flags & !OF_ITSELF == 0)
}
