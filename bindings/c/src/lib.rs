//! libhither: the crate `hither-client` for C. `include/hither.h` states the promise of each
//! function. This crate contains only the implementation.
//!
//! The crate knows no protocol. Handles are boxes that C sees as incomplete types. Every function
//! calls [`run`]. A failure sets errno, a line for [`hither_error`] and the function's value for
//! failure. [`run`] stops panics, because they may not unwind into C. Safety is that of the header:
//! a pointer is NULL, or as the header describes it.

#![allow(clippy::missing_safety_doc, reason = "the header states the rules for pointers")]

mod file;
mod lists;
mod many;
#[cfg(test)]
mod tests;

use hither_client::{Attr, Client, Kind};
use libc::{c_char, c_int};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// `hither_t`.
pub struct Hither {
    client: Client,
    dir: CString,
    source: CString,
}

/// `struct hither_time`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Time {
    sec: i64,
    nsec: u32,
}

/// `struct hither_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CAttr {
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev_major: u32,
    rdev_minor: u32,
    size: u64,
    used: u64,
    fsid_major: u64,
    fsid_minor: u64,
    fileid: u64,
    atime: Time,
    mtime: Time,
    ctime: Time,
    change: u64,
}

impl From<&Attr> for CAttr {
    fn from(a: &Attr) -> Self {
        let kind = match a.kind {
            Kind::File => libc::S_IFREG,
            Kind::Directory => libc::S_IFDIR,
            Kind::Symlink => libc::S_IFLNK,
            Kind::BlockDevice => libc::S_IFBLK,
            Kind::CharDevice => libc::S_IFCHR,
            Kind::Socket => libc::S_IFSOCK,
            Kind::Fifo => libc::S_IFIFO,
        };
        let time = |(sec, nsec)| Time { sec, nsec };
        Self {
            mode: kind | a.mode,
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev_major: a.rdev.0,
            rdev_minor: a.rdev.1,
            size: a.size,
            used: a.used,
            fsid_major: a.fsid.0,
            fsid_minor: a.fsid.1,
            fileid: a.fileid,
            atime: time(a.atime),
            mtime: time(a.mtime),
            ctime: time(a.ctime),
            change: a.change,
        }
    }
}

/// Attributes and errno of a result.
fn outcome(attr: &io::Result<Attr>) -> (CAttr, c_int) {
    match attr {
        Ok(attr) => (attr.into(), 0),
        Err(e) => (CAttr::default(), errno(e)),
    }
}

/// The errno of an error. Errors of the library itself have no errno of the system.
fn errno(e: &io::Error) -> c_int {
    e.raw_os_error().unwrap_or(match e.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof => libc::EPROTO,
        ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::FileTooLarge => libc::EFBIG,
        _ => libc::EIO,
    })
}

/// An error with an errno of the system.
fn fail(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// The object behind a pointer of the program. NULL is `EFAULT`.
fn given<T: ?Sized>(pointer: Option<&T>) -> io::Result<&T> {
    pointer.ok_or_else(|| fail(libc::EFAULT))
}

/// Makes a call and returns its value. A failure sets errno and a line of text, and returns
/// `failed`.
fn run<T>(what: &str, path: Option<&Path>, failed: T, call: impl FnOnce() -> io::Result<T>) -> T {
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(e)) => e,
        Err(_) => io::Error::other("a defect in libhither (the panic message is on standard error)"),
    };
    let errno = errno(&error);
    let mut line = error.to_string();
    if let Some(at) = error.raw_os_error().and_then(|_| line.rfind(" (os error ")) {
        line.truncate(at);
    }
    let line = match path {
        Some(path) => format!("{what} {}: {line}", path.display()),
        None => format!("{what}: {line}"),
    };
    // During the end of a thread the place for the line is already gone.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text(line.as_bytes()));
    // SAFETY: each thread has an errno, and its address is always valid.
    unsafe { *libc::__errno_location() = errno };
    failed
}

/// Bytes as a C string. Bytes after a NUL are dropped.
fn text(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// A path that the program passed.
unsafe fn path<'a>(path: *const c_char) -> Option<&'a Path> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the string belongs to the program and stays valid until the call returns.
    let path = unsafe { CStr::from_ptr(path) };
    Some(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// An array that the program passed. An empty array may be NULL. A length that exceeds all memory,
/// for example a count of -1, is `EINVAL`.
unsafe fn array<'a, T>(first: *const T, count: usize) -> io::Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(fail(libc::EINVAL));
    }
    if first.is_null() {
        return Err(fail(libc::EFAULT));
    }
    // SAFETY: the program says that there are `count` elements, and they fit into memory.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Stores an answer at the program's address.
unsafe fn put<T>(place: *mut T, value: T) -> io::Result<()> {
    if place.is_null() {
        return Err(fail(libc::EFAULT));
    }
    // SAFETY: the address has room for one value, and the old value needs no drop.
    unsafe { place.write(value) };
    Ok(())
}

/// Ends a handle.
unsafe fn drop_handle<T>(what: &str, handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the library made the box, and the program gives it back.
        let owned = unsafe { Box::from_raw(handle) };
        run(what, None, (), || {
            drop(owned);
            Ok(())
        });
    }
}

/// Runs `work` with all signals blocked. Threads that `work` starts inherit the blocked mask, so
/// the program's signals do not reach them.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: both are plain memory that the calls fill and read.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        (libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) == 0).then_some(before)
    };
    let out = work();
    if let Some(before) = before {
        // SAFETY: this is the former mask of the thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    out
}

/// Connects in a thread of its own. The library's thread for replies starts there with all signals
/// blocked. The program's thread may wait long for a silent daemon, and keeps its signals.
fn connect(to: &Path) -> io::Result<Client> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("hither-connect".into());
        let thread = without_signals(|| thread.spawn_scoped(scope, || Client::connect(to)))?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// The version.
#[unsafe(no_mangle)]
pub extern "C" fn hither_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The last failure in words.
#[unsafe(no_mangle)]
pub extern "C" fn hither_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Connects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_connect(to: *const c_char) -> *mut Hither {
    // SAFETY: as the header says.
    let to = unsafe { path(to) };
    run("connect", to, std::ptr::null_mut(), || {
        let client = connect(given(to)?)?;
        let (dir, source) = (text(client.dir().as_os_str().as_bytes()), text(client.source().as_bytes()));
        Ok(Box::into_raw(Box::new(Hither { client, dir, source })))
    })
}

/// Closes the connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_disconnect(h: *mut Hither) {
    // SAFETY: as the header says.
    unsafe { drop_handle("disconnect", h) };
}

/// The mount point.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_dir(h: *const Hither) -> *const c_char {
    // SAFETY: as the header says.
    let h = unsafe { h.as_ref() };
    run("dir", None, std::ptr::null(), || Ok(given(h)?.dir.as_ptr()))
}

/// The mounted export.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_source(h: *const Hither) -> *const c_char {
    // SAFETY: as the header says.
    let h = unsafe { h.as_ref() };
    run("source", None, std::ptr::null(), || Ok(given(h)?.source.as_ptr()))
}

/// Whether the mount is read-only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_is_read_only(h: *const Hither) -> c_int {
    // SAFETY: as the header says.
    let h = unsafe { h.as_ref() };
    run("is_read_only", None, -1, || Ok(given(h)?.client.is_read_only().into()))
}

/// Makes a call with one path whose answer is only success or failure.
unsafe fn change(
    what: &str,
    h: *mut Hither,
    at: *const c_char,
    call: impl FnOnce(&Client, &Path) -> io::Result<()>,
) -> c_int {
    // SAFETY: as the header says.
    let (h, at) = unsafe { (h.as_ref(), path(at)) };
    run(what, at, -1, || call(&given(h)?.client, given(at)?).map(|()| 0))
}

/// mkdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_mkdir(h: *mut Hither, at: *const c_char, mode: u32) -> c_int {
    // SAFETY: as the header says.
    unsafe { change("mkdir", h, at, |client, at| client.create_dir_as(at, mode)) }
}

/// unlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_unlink(h: *mut Hither, at: *const c_char) -> c_int {
    // SAFETY: as the header says.
    unsafe { change("unlink", h, at, |client, at| client.remove_file(at)) }
}

/// rmdir(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_rmdir(h: *mut Hither, at: *const c_char) -> c_int {
    // SAFETY: as the header says.
    unsafe { change("rmdir", h, at, |client, at| client.remove_dir(at)) }
}

/// rename(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_rename(h: *mut Hither, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as the header says.
    let to = unsafe { path(to) };
    // SAFETY: the same.
    unsafe { change("rename", h, from, |client, from| client.rename(from, given(to)?)) }
}

/// symlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_symlink(h: *mut Hither, target: *const c_char, at: *const c_char) -> c_int {
    // SAFETY: as the header says.
    let target = unsafe { path(target) };
    // SAFETY: the same.
    unsafe { change("symlink", h, at, |client, at| client.symlink(given(target)?, at)) }
}

/// readlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_readlink(
    h: *mut Hither,
    at: *const c_char,
    data: *mut c_char,
    len: usize,
) -> isize {
    // SAFETY: as the header says.
    let (h, at) = unsafe { (h.as_ref(), path(at)) };
    run("readlink", at, -1, || {
        let target = given(h)?.client.read_link(given(at)?)?;
        let target = target.as_os_str().as_bytes();
        // SAFETY: the program has room for `len` bytes there.
        unsafe { many::fill(data.cast(), len, target) }.map(|n| n as isize)
    })
}

/// stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_stat(h: *mut Hither, at: *const c_char, attr: *mut CAttr) -> c_int {
    // SAFETY: as the header says.
    unsafe { change("stat", h, at, |client, at| put(attr, (&client.stat(at)?).into())) }
}

/// lstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_lstat(h: *mut Hither, at: *const c_char, attr: *mut CAttr) -> c_int {
    // SAFETY: as the header says.
    unsafe { change("lstat", h, at, |client, at| put(attr, (&client.lstat(at)?).into())) }
}
