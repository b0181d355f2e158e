//! Attributes from the kernel, and the `change` value made of them.
//!
//! `change` is ctime in nanoseconds. Since Linux 6.13, ext4, xfs and btrfs have multigrain
//! timestamps. There the first change after a query of the ctime gives the file a new ctime. So an
//! answered `change` never stays the same after a change.
//!
//! Elsewhere ctime advances with the timer tick, some milliseconds, and two changes within a tick
//! look like one. There a ctime younger than [`SETTLE_NS`] is not answered as `change`. A number
//! that is given out only once replaces it. A later query then sees a change that did not happen.
//! That costs the client one needless read, and nothing else. The same happens while a change
//! through this server is in progress: the kernel sets the time before the data. Numbers given out
//! once have the top bit set, which no ctime has ([`CHANGE_ONCE`]).
//!
//! Two gaps remain. A write of a local program through a memory map is seen at the first write to
//! its page, not at each store. And a clock that is set back may repeat a time.

use super::object::{Changes, Object};
use hither_vfs::{
    Attr, Attrs, CHANGE_OF_SERVER, CHANGE_ONCE, ChangeInfo, Error, FileKind, Result, Time, Validity,
};
use rustix::fs::{FileType, Statx, StatxTimestamp};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// Two timer ticks at 100 Hz: a ctime of this age is not given to another change.
const SETTLE_NS: u64 = 20_000_000;

/// Whether a `change` is a ctime of the kernel, which stays the same until the next change.
pub(super) fn is_lasting(change: u64) -> bool {
    change & CHANGE_ONCE == 0
}

/// Makes attributes.
pub(super) struct Attributer {
    /// Whether the file system has multigrain timestamps: a ctime that was queried is not given to
    /// another change.
    pub multigrain: bool,
    /// File system number for clients.
    pub fsid: (u64, u64),
    /// Device number of the exported directory.
    pub dev: u64,
    /// How long answers are valid.
    pub validity: std::time::Duration,
    /// Whether this process alone changes the directory.
    pub exclusive: bool,
    once: AtomicU64,
    env: hither_vfs::Env,
}

/// `change` of a directory before an operation in it.
pub(super) struct Before {
    change: u64,
    quiet: Option<u64>,
}

impl Attributer {
    pub fn new(env: hither_vfs::Env, multigrain: bool, fsid: (u64, u64), dev: u64) -> Self {
        // The counter starts at the wall time, so it does not repeat numbers of an earlier run.
        // Those were counted from the start of that run, and fewer numbers were given out than
        // nanoseconds have passed.
        let once = AtomicU64::new(wall_ns(&env));
        let validity = std::time::Duration::ZERO;
        Self { multigrain, fsid, dev, validity, exclusive: false, once, env }
    }

    /// Attributes of an object now.
    pub fn attrs(&self, object: &Object) -> Result<Attrs> {
        self.attrs_since(object, Instant::now())
    }

    /// The same, for a question that was asked at `asked`.
    pub fn attrs_since(&self, object: &Object, asked: Instant) -> Result<Attrs> {
        let quiet = object.changes.quiet();
        let stat = object.stat()?;
        self.finish(&object.changes, quiet, &stat, asked)
    }

    /// As [`Attributer::attrs`], from the statx result of an object that was just found.
    pub fn new_found(&self, stat: &Statx, asked: Instant) -> Result<Attrs> {
        self.finish(&Changes::default(), Some(0), stat, asked)
    }

    fn finish(&self, changes: &Changes, quiet: Option<u64>, stat: &Statx, asked: Instant) -> Result<Attrs> {
        let change = match quiet {
            Some(begun) if changes.still(begun) => self.settled(stat),
            _ => self.once(),
        };
        let valid = match self.validity {
            std::time::Duration::ZERO => Validity::Once,
            time => Validity::Until(asked + time),
        };
        Ok(Attrs { attr: self.attr(stat, change)?, valid, asked })
    }

    fn settled(&self, stat: &Statx) -> u64 {
        let ctime = ctime_ns(stat);
        if self.multigrain || wall_ns(&self.env).saturating_sub(ctime) > SETTLE_NS {
            ctime
        } else {
            self.once()
        }
    }

    fn once(&self) -> u64 {
        CHANGE_ONCE | self.once.fetch_add(1, Ordering::Relaxed) & !CHANGE_OF_SERVER
    }

    fn attr(&self, stat: &Statx, change: u64) -> Result<Attr> {
        let (dev, fileid) = id(stat);
        // A subvolume has a device number of its own.
        let within = if dev == self.dev { self.fsid.1 } else { self.fsid.1 ^ dev };
        Ok(Attr {
            kind: kind(stat)?,
            mode: u32::from(stat.stx_mode) & 0o7777,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            size_bytes: stat.stx_size,
            used_bytes: stat.stx_blocks.saturating_mul(512),
            fsid: (self.fsid.0, within),
            fileid,
            atime: time(&stat.stx_atime),
            mtime: time(&stat.stx_mtime),
            ctime: time(&stat.stx_ctime),
            change,
        })
    }

    /// Notes `change` of a directory; to be called before a change begins.
    pub fn before(&self, dir: &Object) -> Result<Before> {
        let quiet = dir.changes.quiet();
        let attrs = self.attrs(dir)?;
        Ok(Before { change: attrs.attr.change, quiet })
    }

    /// The change of the directory, to be called after the one change that began since `before` has
    /// ended.
    pub fn change_info(&self, dir: &Object, before: &Before) -> Result<ChangeInfo> {
        let attrs = self.attrs(dir)?;
        let alone = before.quiet.is_some_and(|begun| dir.changes.still(begun + 1));
        let atomic = self.exclusive && self.multigrain && alone;
        Ok(ChangeInfo { atomic, before: before.change, after: attrs.attr.change, attrs: Some(attrs) })
    }
}

fn wall_ns(env: &hither_vfs::Env) -> u64 {
    let since = (env.wall)().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 & !CHANGE_ONCE
}

fn ctime_ns(stat: &Statx) -> u64 {
    let ctime = &stat.stx_ctime;
    (ctime.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ctime.tv_nsec.into()) & !CHANGE_ONCE
}

fn time(t: &StatxTimestamp) -> Time {
    Time { secs: t.tv_sec, nanos: t.tv_nsec }
}

/// Device and inode number.
pub(super) fn id(stat: &Statx) -> (u64, u64) {
    let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    (dev, stat.stx_ino)
}

/// Type of an object.
pub(super) fn kind(stat: &Statx) -> Result<FileKind> {
    file_kind(FileType::from_raw_mode(stat.stx_mode.into())).ok_or_else(|| Error::new(libc::EIO))
}

/// Type of an object; `None` when the kernel does not know it.
pub(super) fn file_kind(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Socket => FileKind::Socket,
        FileType::Fifo => FileKind::Fifo,
        FileType::Unknown => return None,
    })
}
