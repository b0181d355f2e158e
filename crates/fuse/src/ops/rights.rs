//! Rights that the kernel decides wrongly from attributes.
//!
//! Without `default_permissions` the kernel does not check rights for some actions that a local
//! file system would refuse. It also ignores sticky bits. With the option, mode bits would decide
//! although the server uses access control lists and squashed identities. So the checks are made at
//! the lookup of the name, because the kernel opens special files and follows links without another
//! request. Such names are looked up for each call ([`Call::keeps_name`]). The use is read from the
//! caller's system call ([`Use`]).
//!
//! The rights of special files are checked against the caller. So a caller whose call is not
//! visible needs the rights for every use. Its memory, which it can change, decides nothing. The
//! protected names protect the caller itself from other users.

use super::Call;
use crate::hint::uses::Use;
use crate::hint::{Hints, Missed};
use crate::inode::Inode;
use hither_vfs::{Access, Attr, Error, FileKind, Name, Node, Result};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Time for which the machine's settings are cached.
const SETTINGS_HOLD: Duration = Duration::from_secs(1);

/// Maximum wait for a caller to sleep. Before that its call is not visible.
const SLEEP_WAIT: Duration = Duration::from_secs(5);
/// Looks at such a caller without a pause. Most callers sleep after some microseconds.
const EARLY_LOOKS: u32 = 20;
/// The longest pause between two later looks.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(5);

/// The protected names in sticky directories (proc_sys_fs(5)).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    symlinks: u8,
    fifos: u8,
    regular: u8,
}

/// The last read settings.
pub(crate) type KnownSettings = Mutex<Option<(Instant, Settings)>>;

impl Settings {
    fn read() -> Self {
        let level = |name: &str| {
            let value = std::fs::read(format!("/proc/sys/fs/protected_{name}")).unwrap_or_default();
            value.first().map_or(0, |digit| digit.saturating_sub(b'0'))
        };
        Self { symlinks: level("symlinks"), fifos: level("fifos"), regular: level("regular") }
    }

    /// Whether this use of an object in a directory is refused to `uid`, as in the kernel's
    /// may_follow_link() and may_create_in_sticky().
    fn refuse(self, (dir_mode, dir_uid): (u32, u32), object: &Attr, uid: u32, used: Use) -> bool {
        if dir_mode & libc::S_ISVTX == 0 || object.uid == dir_uid || object.uid == uid {
            return false;
        }
        let level = match object.kind {
            FileKind::Symlink => {
                return self.symlinks > 0 && dir_mode & libc::S_IWOTH != 0 && used.follows;
            }
            FileKind::Regular => self.regular,
            FileKind::Fifo => self.fifos,
            _ => return false,
        };
        let creates = used.opens.is_some_and(|flags| flags & libc::O_CREAT != 0);
        let writable =
            level > 0 && dir_mode & libc::S_IWOTH != 0 || level > 1 && dir_mode & libc::S_IWGRP != 0;
        creates && writable
    }

    /// Whether any use of the object may be refused.
    fn concern(self, (dir_mode, dir_uid): (u32, u32), object: &Attr) -> bool {
        let level = match object.kind {
            FileKind::Symlink => self.symlinks,
            FileKind::Regular => self.regular,
            FileKind::Fifo => self.fifos,
            _ => 0,
        };
        level > 0
            && dir_mode & libc::S_ISVTX != 0
            && dir_mode & (libc::S_IWOTH | libc::S_IWGRP) != 0
            && object.uid != dir_uid
    }
}

/// Whether the kernel opens such an object without a check of the right.
fn is_special(kind: FileKind) -> bool {
    use FileKind::{BlockDevice, CharDevice, Fifo, Socket};
    matches!(kind, BlockDevice | CharDevice | Fifo | Socket)
}

impl Call {
    /// Lets the kernel request the attributes of a set-id file again, because the server may have
    /// cleared the bits.
    pub(super) fn drop_set_id(&self, inode: &Inode) {
        if inode.is_set_id() {
            inode.attrs_dropped();
            self.session.drop_attrs(inode);
        }
    }

    /// Whether the caller may link the file under `fs.protected_hardlinks` (proc_sys_fs(5)).
    /// Another user's file must be readable and writable for the caller. The kernel itself checks
    /// that it is a regular file without set-id bits.
    pub(super) async fn may_link(&self, inode: &Inode) -> Result<()> {
        let (uid, (_, owner)) = (self.cred().uid, inode.mode_and_owner());
        let protected =
            || std::fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|v| !v.starts_with(b"0"));
        if uid == 0 || owner == uid || !protected() {
            return Ok(());
        }
        let want = Access::READ | Access::MODIFY;
        let have = self.session.vfs.access(&self.cx(), &inode.fh(), want).await?;
        if have.contains(want) { Ok(()) } else { Err(Error::new(libc::EPERM)) }
    }

    fn settings(&self) -> Settings {
        let now = Instant::now();
        let mut known = self.session.settings.lock();
        let fresh = known.filter(|(read, _)| now.saturating_duration_since(*read) < SETTINGS_HOLD);
        let (_, settings) = *known.insert(fresh.unwrap_or_else(|| (now, Settings::read())));
        settings
    }

    /// Whether the kernel may cache the name of an object. It may not when each use of the object
    /// is checked.
    pub(super) fn keeps_name(&self, dir: &Inode, object: &Attr) -> bool {
        let at = dir.mode_and_owner();
        let sticky = at.0 & libc::S_ISVTX != 0;
        let judged = is_special(object.kind) || sticky && self.settings().concern(at, object);
        !judged
    }

    /// Whether the caller's system call may use an object.
    ///
    /// # Errors
    /// `EACCES`.
    pub(super) async fn may_use(&self, dir: &Inode, name: &Name, node: &Node) -> Result<()> {
        let attr = &node.attrs.attr;
        if self.keeps_name(dir, attr) {
            return Ok(());
        }
        let (used, uid) = (self.visible_use().await, self.cred().uid);
        let parts = self.session.hints.last_parts(self.head.tid);
        let is_last = parts.is_empty() || parts.iter().any(|part| part == name.bytes());
        let refused = |used| self.settings().refuse(dir.mode_and_owner(), attr, uid, used);
        if is_last && used.is_some_and(refused) {
            return Err(Error::new(libc::EACCES));
        }
        let want = special_rights(attr.kind, used);
        if want.is_empty() || uid == 0 {
            return Ok(());
        }
        let have = self.session.vfs.access(&self.cx(), &node.fh, want).await?;
        if have.contains(want) { Ok(()) } else { Err(Error::new(libc::EACCES)) }
    }

    /// The use of the caller's system call; `None` when the call is not visible.
    pub(super) async fn visible_use(&self) -> Option<Use> {
        self.visible(|hints, tid| hints.purpose(tid)).await
    }

    /// Whether the caller's system call makes this name, and fails if it exists.
    pub(super) async fn makes(&self, name: &Name) -> bool {
        let made = self.visible(|hints, tid| hints.made_name(tid)).await.flatten();
        made.is_some_and(|made| made == name.bytes())
    }

    /// The result of `look` at the caller's system call; `None` when the call is not visible. A
    /// caller waits for the answer to its request, but it may not be asleep yet.
    async fn visible<T>(&self, look: impl Fn(&Hints, u32) -> std::result::Result<T, Missed>) -> Option<T> {
        let (until, mut pause) = (Instant::now() + SLEEP_WAIT, Duration::from_millis(1));
        let mut early = 0;
        loop {
            match look(&self.session.hints, self.head.tid) {
                Err(Missed::Running | Missed::Busy) if early < EARLY_LOOKS => {
                    early += 1;
                    tokio::task::yield_now().await;
                }
                Err(Missed::Running | Missed::Busy) if Instant::now() < until => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LOOK_PAUSE_MAX);
                }
                found => return found.ok(),
            }
        }
    }

    /// As [`Call::may_use`] for an existing object under the name of a CREATE.
    pub(super) fn may_create_over(&self, dir: &Inode, object: &Attr) -> Result<()> {
        let used = Use { opens: Some(libc::O_CREAT), follows: true, ..Use::default() };
        if self.settings().refuse(dir.mode_and_owner(), object, self.cred().uid, used) {
            Err(Error::new(libc::EACCES))
        } else {
            Ok(())
        }
    }
}

/// The rights that a use of a special file needs.
fn special_rights(kind: FileKind, used: Option<Use>) -> Access {
    let all = Access::READ | Access::MODIFY;
    match used {
        _ if !is_special(kind) => Access::empty(),
        None | Some(Use { doubtful: true, .. }) => all,
        Some(Use { connects: true, .. }) => Access::MODIFY,
        Some(Use { opens: Some(flags), .. }) if flags & libc::O_PATH == 0 && kind != FileKind::Socket => {
            match flags & libc::O_ACCMODE {
                libc::O_RDONLY => Access::READ,
                libc::O_WRONLY => Access::MODIFY,
                _ => all,
            }
        }
        Some(_) => Access::empty(),
    }
}
