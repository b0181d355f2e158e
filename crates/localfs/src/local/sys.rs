//! System calls without a safe wrapper. They serve kernel handles, the file-system identity of a
//! thread, permission checks by descriptor, private mounts, file leases, and notifications of
//! changes.
//!
//! The module is thin: each function is one call, and its errors are the kernel's errnos.

use hither_vfs::{Data, Error, Result};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ffi::{CStr, CString};
use std::io::IoSlice;

/// Longest kernel handle (`MAX_HANDLE_SZ`), in bytes.
const HANDLE_MAX_BYTES: usize = 128;

/// A kernel handle (name_to_handle_at(2)).
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct KernelHandle {
    len: libc::c_uint,
    kind: libc::c_int,
    raw: [u8; HANDLE_MAX_BYTES],
}

impl KernelHandle {
    /// A handle from its parts; `None` when `bytes` is too long.
    pub fn new(kind: i32, bytes: &[u8]) -> Option<Self> {
        let mut raw = [0; HANDLE_MAX_BYTES];
        raw.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len: bytes.len() as libc::c_uint, kind, raw })
    }

    /// The handle type of the file system.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The bytes of the handle.
    pub fn bytes(&self) -> &[u8] {
        self.raw.get(..self.len as usize).unwrap_or_default()
    }
}

fn last_error() -> Error {
    Error::new(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn done(ret: libc::c_long) -> Result<libc::c_long> {
    if ret < 0 { Err(last_error()) } else { Ok(ret) }
}

fn owned(ret: libc::c_long) -> Result<OwnedFd> {
    let fd = done(ret)?;
    // SAFETY: the kernel has just made this descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Handle of `name` in `dir` (of `dir` itself for an empty name), and the number of its mount. A
/// symbolic link is not followed.
pub(super) fn name_to_handle(dir: BorrowedFd<'_>, name: &CStr) -> Result<(KernelHandle, i32)> {
    let mut handle = KernelHandle { len: HANDLE_MAX_BYTES as u32, kind: 0, raw: [0; HANDLE_MAX_BYTES] };
    let mut mount = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: `handle` is laid out as the kernel's file_handle with room for `len` bytes, `name`
    // ends in NUL, and all live through the call.
    let ret = unsafe {
        libc::name_to_handle_at(
            dir.as_raw_fd(),
            name.as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            flags,
        )
    };
    done(ret.into())?;
    Ok((handle, mount))
}

/// Opens the object behind a handle in the file system of `mount`.
pub(super) fn open_by_handle(mount: BorrowedFd<'_>, handle: &KernelHandle, flags: i32) -> Result<OwnedFd> {
    let mut handle = *handle;
    // SAFETY: `handle` is laid out as the kernel's file_handle with `len` valid bytes, and lives
    // through the call.
    let ret = unsafe {
        libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags | libc::O_CLOEXEC)
    };
    owned(ret.into())
}

/// Makes `uid` the file-system user of this thread. The kernel removes the file-system capabilities
/// with a user other than 0, and restores them with user 0 (capabilities(7)).
pub(super) fn set_fs_uid(uid: u32) -> Result<()> {
    // The kernel takes this number as "no change". No user has it.
    if uid == u32::MAX {
        return Err(Error::new(libc::EACCES));
    }
    // SAFETY: changes only the credentials of this thread. The second call shows whether the first
    // one succeeded.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX)
    };
    if now as u32 == uid { Ok(()) } else { Err(refused()) }
}

/// Makes `gid` the file-system group of this thread.
pub(super) fn set_fs_gid(gid: u32) -> Result<()> {
    if gid == u32::MAX {
        return Err(Error::new(libc::EACCES));
    }
    // SAFETY: as in `set_fs_uid`.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX)
    };
    if now as u32 == gid { Ok(()) } else { Err(refused()) }
}

fn refused() -> Error {
    Error::because(libc::EACCES, "this process may not act for other users (CAP_SETUID, CAP_SETGID)")
}

/// Sets the supplementary groups of this thread.
pub(super) fn set_groups(groups: &[u32]) -> Result<()> {
    // The system call is used because the libc function changes all threads.
    // SAFETY: the pointer and length are those of a slice of gid_t that lives through the call.
    let ret = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    done(ret).map(drop)
}

/// Gives this thread its own umask, of zero.
pub(super) fn own_umask() -> Result<()> {
    // SAFETY: the thread's working directory and umask become its own; nothing in this process
    // relies on their being shared.
    done(unsafe { libc::unshare(libc::CLONE_FS) }.into())?;
    rustix::process::umask(rustix::fs::Mode::empty());
    Ok(())
}

/// Fails unless the file-system identity of this thread has all of `bits` (rwx as 4, 2, 1) on an
/// object.
pub(super) fn access(fd: BorrowedFd<'_>, bits: u32) -> Result<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: the path ends in NUL; the other arguments are numbers.
    let ret = unsafe {
        libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), bits as libc::c_int, flags)
    };
    done(ret).map(drop)
}

/// Sets the permission bits of any object by descriptor. `ENOSYS` before Linux 6.6.
pub(super) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    // SAFETY: the path ends in NUL; the other arguments are numbers.
    let ret = unsafe {
        libc::syscall(libc::SYS_fchmodat2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH)
    };
    done(ret).map(drop)
}

/// A second, private mount of the tree at `dir`, without the mounts below it. On it, devices and
/// set-id bits have no effect, and symbolic links are not followed.
pub(super) fn private_mount(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_int = 1;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC | libc::AT_EMPTY_PATH;
    // SAFETY: the path ends in NUL; the other arguments are numbers.
    let tree = owned(unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), c"".as_ptr(), flags) })?;
    // struct mount_attr: set, clear, propagation, userns_fd. NOSUID, NODEV, NOSYMFOLLOW.
    let attr: [u64; 4] = [0x2 | 0x4 | 0x0020_0000, 0, 0, 0];
    // SAFETY: `attr` is laid out as struct mount_attr and lives through the call.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    done(ret)?;
    Ok(tree)
}

/// The UUID of the file system; `None` when it has none, and before Linux 6.9.
pub(super) fn fs_uuid(fd: BorrowedFd<'_>) -> Option<[u8; 16]> {
    const FS_IOC_GETFSUUID: u32 = 0x8011_1500;
    // struct fsuuid2: length, then 16 bytes.
    let mut out = [0_u8; 17];
    // SAFETY: the kernel writes at most the 17 bytes of struct fsuuid2.
    let ret = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_GETFSUUID as _, out.as_mut_ptr()) };
    let uuid: [u8; 16] = out.get(1..)?.try_into().ok()?;
    (ret == 0 && out.first() == Some(&16) && uuid != [0; 16]).then_some(uuid)
}

/// Makes a range of `target` share the blocks of `source`, all or nothing. A length of 0 reaches to
/// the end of `source` (ioctl_ficlonerange(2)).
pub(super) fn clone_range(
    (source, from): (BorrowedFd<'_>, u64),
    (target, to): (BorrowedFd<'_>, u64),
    len: u64,
) -> Result<()> {
    let range = libc::file_clone_range {
        src_fd: source.as_raw_fd().into(),
        src_offset: from,
        src_length: len,
        dest_offset: to,
    };
    // SAFETY: the call reads struct file_clone_range, which lives through it.
    let ret = unsafe { libc::ioctl(target.as_raw_fd(), libc::FICLONERANGE as _, &raw const range) };
    done(ret.into()).map(drop).map_err(|e| match e.errno {
        // The file system does not support the call.
        libc::ENOTTY => Error::new(libc::EOPNOTSUPP),
        _ => e,
    })
}

/// Reads at most `len` bytes into the spare capacity of `buf` and extends `buf` by them. Returns
/// their number. With `now`, `EAGAIN` when the disk is needed.
pub(super) fn read(fd: BorrowedFd<'_>, buf: &mut Vec<u8>, at: u64, len: usize, now: bool) -> Result<usize> {
    let at = libc::off_t::try_from(at).map_err(|_| Error::new(libc::EINVAL))?;
    let room = buf.spare_capacity_mut();
    let iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: len.min(room.len()) };
    let flags = if now { libc::RWF_NOWAIT } else { 0 };
    // SAFETY: the one vector is within the spare capacity of `buf`, which lives through the call.
    let got = done(unsafe { libc::preadv2(fd.as_raw_fd(), &raw const iov, 1, at, flags) } as libc::c_long)?;
    let got = got as usize;
    // SAFETY: the kernel has filled `got` bytes of the spare capacity.
    unsafe { buf.set_len(buf.len() + got) };
    Ok(got)
}

/// Whether all pages of a range of a file are cached (cachestat(2), Linux 6.5); `false` when that
/// is unknown.
pub(super) fn is_cached(fd: BorrowedFd<'_>, at: u64, len: u64) -> bool {
    const CACHESTAT: libc::c_long = 451;
    const PAGE_BYTES: u64 = 4096;
    let range: [u64; 2] = [at, len];
    // struct cachestat: pages in memory, dirty, under writeback, evicted, recently evicted.
    let mut told = [0_u64; 5];
    // SAFETY: `range` and `told` are laid out as the two structs of the call and live through it.
    let ret = unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), range.as_ptr(), told.as_mut_ptr(), 0) };
    ret == 0 && told[0] >= (at % PAGE_BYTES + len).div_ceil(PAGE_BYTES)
}

/// Writes all of `data` at `at` and returns the number of bytes written. Fewer bytes are written
/// when the disk fills up.
///
/// # Errors
/// `EFBIG` also for bytes beyond the largest offset, where pwrite(2) says `EINVAL`.
pub(super) fn write(fd: BorrowedFd<'_>, data: &Data, at: u64) -> Result<u64> {
    let mut slices: Vec<IoSlice<'_>> = data.parts().iter().map(|p| IoSlice::new(p)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    let len: usize = rest.iter().map(|slice| slice.len()).sum();
    let end = at.checked_add(len as u64).and_then(|end| libc::off_t::try_from(end).ok());
    let end = end.ok_or_else(|| Error::new(libc::EFBIG))?;
    let mut total = 0;
    while !rest.is_empty() {
        let offset = end - len as libc::off_t + total as libc::off_t;
        let count = rest.len().min(libc::UIO_MAXIOV as usize) as libc::c_int;
        // SAFETY: IoSlice has the layout of iovec, and the slices live through the call.
        let ret = unsafe { libc::pwritev(fd.as_raw_fd(), rest.as_ptr().cast(), count, offset) };
        match done(ret as libc::c_long) {
            Ok(0) => break,
            Ok(n) => {
                total += n as u64;
                IoSlice::advance_slices(&mut rest, n as usize);
            }
            Err(e) if e.errno == libc::EINTR => {}
            Err(e) if total > 0 && matches!(e.errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

/// The signal for a lease that another program breaks: a real-time signal with no other use.
fn broken_lease() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// Blocks the signals of leases in this thread. Returns a descriptor to read them from.
pub(super) fn lease_signals() -> Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is made by sigemptyset before it is used, and lives through the calls; only
    // this thread's mask changes.
    let fd = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), broken_lease());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGIO);
        if libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(last_error());
        }
        libc::signalfd(-1, set.as_ptr(), libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
    };
    owned(fd.into())
}

/// Takes a read lease: `thread` gets a signal when another program wants to write. With `alone`,
/// takes a write lease: the signal also comes when another program wants to read.
pub(super) fn take_lease(fd: BorrowedFd<'_>, thread: libc::pid_t, alone: bool) -> Result<()> {
    const F_SETSIG: libc::c_int = 10;
    const F_SETOWN_EX: libc::c_int = 15;
    const F_OWNER_TID: libc::c_int = 0;
    // struct f_owner_ex: type and number.
    let owner: [libc::c_int; 2] = [F_OWNER_TID, thread];
    let (fd, kind) = (fd.as_raw_fd(), if alone { libc::F_WRLCK } else { libc::F_RDLCK });
    // SAFETY: `owner` is laid out as struct f_owner_ex and lives through the call; the other
    // arguments are numbers.
    let done = unsafe {
        libc::fcntl(fd, F_SETOWN_EX, owner.as_ptr()) == 0
            && libc::fcntl(fd, F_SETSIG, broken_lease()) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, kind) == 0
    };
    if done { Ok(()) } else { Err(last_error()) }
}

/// Releases the lease on a descriptor, if there is one. Programs that wait for it continue.
pub(super) fn give_up_lease(fd: BorrowedFd<'_>) {
    // SAFETY: the arguments are numbers. The call fails without a lease.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// A queue of notifications of changes, with the thread that made each. The number of marks is
/// unlimited.
pub(super) fn fanotify() -> Result<OwnedFd> {
    let flags = libc::FAN_CLASS_NOTIF
        | libc::FAN_REPORT_FID
        | libc::FAN_REPORT_TID
        | libc::FAN_UNLIMITED_MARKS
        | libc::FAN_NONBLOCK
        | libc::FAN_CLOEXEC;
    // SAFETY: the arguments are numbers.
    let fd = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
    owned(fd.into())
}

/// Adds a mark on the object of the descriptor `of`, or removes the events `what` from its mark.
pub(super) fn fanotify_mark(queue: BorrowedFd<'_>, of: BorrowedFd<'_>, what: u64, add: bool) -> Result<()> {
    let path =
        CString::new(format!("/proc/self/fd/{}", of.as_raw_fd())).map_err(|_| Error::new(libc::EINVAL))?;
    let how = if add { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    // SAFETY: the path ends in NUL and lives through the call; the other arguments are numbers.
    let ret = unsafe { libc::fanotify_mark(queue.as_raw_fd(), how, what, libc::AT_FDCWD, path.as_ptr()) };
    done(ret.into()).map(drop)
}

/// The name of a file in fanotify notifications: the id of its file system, then length, type and
/// bytes of its handle.
pub(super) fn file_key(of: BorrowedFd<'_>) -> Result<Box<[u8]>> {
    let mut fs = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the buffer has room for the struct that the kernel writes.
    let ret = unsafe { libc::fstatfs(of.as_raw_fd(), fs.as_mut_ptr()) };
    done(ret.into())?;
    // SAFETY: the kernel has filled the struct; the id is two 32-bit numbers.
    let fsid: [u8; 8] = unsafe { std::mem::transmute(fs.assume_init().f_fsid) };
    let (handle, _) = name_to_handle(of, c"")?;
    let len = handle.bytes().len() as u32;
    Ok([&fsid, &len.to_ne_bytes()[..], &handle.kind().to_ne_bytes(), handle.bytes()].concat().into())
}

/// Makes an object stable.
pub(super) fn fsync(fd: BorrowedFd<'_>) -> Result<()> {
    let sync = || rustix::fs::fsync(fd).map_err(super::object::os);
    sync()?;
    // A sync in progress while a test cuts the power may report success. The next sync does not.
    #[cfg(test)]
    sync()?;
    Ok(())
}

/// Writes the dirty pages of a part of a file back (`len` 0: to its end) and waits until the disk
/// has them. That does not make them stable. An error reported by this call is not reported to this
/// descriptor again.
pub(super) fn write_back(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<()> {
    let (Ok(at), Ok(len)) = (libc::off64_t::try_from(at), libc::off64_t::try_from(len)) else {
        return Err(Error::new(libc::EINVAL));
    };
    let how =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes numbers.
    done(unsafe { libc::sync_file_range(fd.as_raw_fd(), at, len, how) }.into()).map(drop)
}

/// Reports an error of an earlier write-back of the file's pages, once to each descriptor. Does not
/// wait.
pub(super) fn write_error(fd: BorrowedFd<'_>) -> Result<()> {
    // The range is past the end of any file. So the call waits for no pages, and reports the error
    // of the whole file.
    let (at, len) = (i64::MAX - 1, 1);
    // SAFETY: the call takes numbers.
    let told = unsafe { libc::sync_file_range(fd.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    done(told.into()).map(drop)
}

/// Begins the write-back of all dirty pages of a file. A later wait reports errors.
pub(super) fn begin_write_back(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the call takes numbers.
    done(unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) }.into()).map(drop)
}

/// Makes a file system stable.
pub(super) fn syncfs(fd: BorrowedFd<'_>) -> Result<()> {
    let sync = || rustix::fs::syncfs(fd).map_err(super::object::os);
    sync()?;
    // As in `fsync`.
    #[cfg(test)]
    sync()?;
    Ok(())
}

/// Simulates a power cut. An ext4 file system keeps the state on disk without the part of its log
/// that is in memory, and stops (`EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`).
#[cfg(test)]
pub(super) fn power_off(fs: BorrowedFd<'_>) -> Result<()> {
    const SHUTDOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;
    let how: u32 = 2;
    // SAFETY: the call reads one number, which lives through it.
    done(unsafe { libc::ioctl(fs.as_raw_fd(), SHUTDOWN, &raw const how) }.into()).map(drop)
}
