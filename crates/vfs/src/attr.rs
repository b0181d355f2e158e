//! The attributes of an object, and the time for which they hold.

use crate::Fh;
use tokio::time::Instant;

/// Seconds and nanoseconds since 1970; negative seconds are before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Whole seconds.
    pub secs: i64,
    /// 0 to 999,999,999, counted forward from `secs`.
    pub nanos: u32,
}

impl Time {
    /// Nanoseconds since 1970.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.secs) * 1_000_000_000 + i128::from(self.nanos)
    }
}

/// Type of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharDevice,
    /// UNIX socket.
    Socket,
    /// Named pipe.
    Fifo,
}

/// Attributes of an object with numeric ids of the client machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (07777).
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device major and minor numbers, for devices.
    pub rdev: (u32, u32),
    /// Length in bytes.
    pub size_bytes: u64,
    /// Space taken on the server's disk, in bytes.
    pub used_bytes: u64,
    /// The server's file system that holds the object.
    pub fsid: (u64, u64),
    /// Number of the object, unique within `fsid`.
    pub fileid: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// Change attribute: differs whenever data or attributes differ (v4 `change`; for v3 made of
    /// ctime).
    pub change: u64,
}

/// Nanoseconds of the times of a new file while they hold the verifier of an exclusive creation.
pub const VERIFIER_NANOS: u32 = 1;

/// Values of [`Attr::change`] with these bits are made by a server, for changes that its file
/// system does not show. No file system has such values.
pub const CHANGE_OF_SERVER: u64 = 3 << 62;

/// Values of [`Attr::change`] with this bit, and without the next one, are given out once. A server
/// with coarse file times answers such a value for a recent change, and the time of the change
/// later.
pub const CHANGE_ONCE: u64 = 1 << 63;

/// Whether a value of [`Attr::change`] is given out once.
pub fn is_given_once(change: u64) -> bool {
    change & CHANGE_OF_SERVER == CHANGE_ONCE
}

/// How long an answer may be used without a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// For the calling request only.
    Once,
    /// Until this moment.
    Until(Instant),
    /// Until the layer below withdraws the answer
    /// ([`Upcalls::revoke`](crate::Upcalls::revoke)): a delegation or lease.
    Lease,
}

impl Validity {
    /// Time left at `now`; zero when it is over. A lease has no end: `Duration::MAX`.
    pub fn left(&self, now: Instant) -> std::time::Duration {
        match self {
            Validity::Once => std::time::Duration::ZERO,
            Validity::Until(end) => end.saturating_duration_since(now),
            Validity::Lease => std::time::Duration::MAX,
        }
    }
}

/// Attributes with their validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attrs {
    /// The attributes.
    pub attr: Attr,
    /// How long they hold.
    pub valid: Validity,
    /// The time at which the request was sent. The attributes are at least as new as that.
    /// Freshness ([`RequestContext::fresh_since`](crate::RequestContext)) is compared with it.
    pub asked: Instant,
}

/// Change attribute of a directory around an operation in it (RFC 8881 section 3.3.4). When
/// `atomic` is set and `before` equals the known value, no other client changed the directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangeInfo {
    /// Whether the server took `before` and `after` atomically with the operation.
    pub atomic: bool,
    /// Change value before.
    pub before: u64,
    /// Change value after.
    pub after: u64,
    /// The directory's attributes after the operation, when the reply has them.
    pub attrs: Option<Attrs>,
}

impl ChangeInfo {
    /// Whether the reply has the change attribute of the directory. Without it, other clients may
    /// have changed the directory.
    pub fn is_told(&self) -> bool {
        self.atomic || self.before != 0 || self.after != 0
    }
}

/// The outcome of a rename.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moved {
    /// Change of the source directory.
    pub from: ChangeInfo,
    /// Change of the target directory.
    pub to: ChangeInfo,
    /// The object that has the new name now. `None` when it may be another object than the one that
    /// was known under the old name.
    pub object: Option<Fh>,
    /// Attributes of the object after the rename, when the reply has them.
    pub attrs: Option<Attrs>,
}

/// New time for `setattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The server's present time.
    Now,
    /// This time.
    To(Time),
}

/// Attributes to set. `None` leaves an attribute unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// At a creation, the permission bits before the caller's umask. They replace `mode` in a
    /// directory with a default ACL (RFC 8275). A layer that does not know them uses `mode`.
    pub unmasked: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// Space and limits of a file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Total size in bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes for the caller.
    pub avail_bytes: u64,
    /// Total objects (inodes).
    pub total_files: u64,
    /// Free objects.
    pub free_files: u64,
    /// Free objects for the caller.
    pub avail_files: u64,
    /// Longest name in bytes.
    pub name_max_bytes: u32,
}

/// Whether a successful READ by filehandle proves the right to read. Servers also return data to
/// the owner of a file, independent of the mode. They also return data to users with the right to
/// execute it (RFC 1813 section 4.4).
pub fn bytes_prove_reading(mode: u32) -> bool {
    let (read, execute) = (mode >> 2 & 0o111, mode & 0o111);
    read & 0o100 != 0 && execute & !read == 0
}
