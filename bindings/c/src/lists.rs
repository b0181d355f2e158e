//! Listings, walks, and changes.

use crate::{CAttr, Hither, drop_handle, fail, given, many, outcome, path, put, run};
use hither_client::{Changes, Client, DirEntry};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

type Entries = Box<dyn Iterator<Item = io::Result<DirEntry>> + Send>;

/// `hither_walk_t`.
pub struct CWalk {
    pub(crate) entries: Entries,
    /// The path shown to the program.
    pub(crate) shown: CString,
}

/// `struct hither_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CEntry {
    pub(crate) path: *const c_char,
    pub(crate) attr: CAttr,
    pub(crate) error: c_int,
}

/// `hither_watch_t`.
pub struct CWatch {
    changes: Changes,
}

/// `struct hither_changed`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CChanged {
    pub(crate) index: usize,
    pub(crate) attr: CAttr,
    pub(crate) error: c_int,
}

unsafe fn begin(
    what: &str,
    h: *mut Hither,
    at: *const c_char,
    call: impl FnOnce(&Client, &Path) -> io::Result<Entries>,
) -> *mut CWalk {
    // SAFETY: as the header says.
    let (h, at) = unsafe { (h.as_ref(), path(at)) };
    run(what, at, std::ptr::null_mut(), || {
        let entries = call(&given(h)?.client, given(at)?)?;
        Ok(Box::into_raw(Box::new(CWalk { entries, shown: CString::default() })))
    })
}

/// A directory's entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_list(h: *mut Hither, at: *const c_char) -> *mut CWalk {
    let list = |client: &Client, at: &Path| Ok(Box::new(client.list(at)?.into_iter().map(Ok)) as Entries);
    // SAFETY: as the header says.
    unsafe { begin("list", h, at, list) }
}

/// Walks a tree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_walk(h: *mut Hither, at: *const c_char, levels: u32) -> *mut CWalk {
    // SAFETY: as the header says.
    unsafe { begin("walk", h, at, |client, at| Ok(Box::new(client.walk(at, levels)?))) }
}

/// The next entry.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_next(walk: *mut CWalk, entry: *mut CEntry) -> c_int {
    // SAFETY: as the header says, only one thread at a time uses the walk.
    let walk = unsafe { walk.as_mut() };
    run("next", None, -1, || {
        let walk = walk.ok_or_else(|| fail(libc::EFAULT))?;
        // SAFETY: as the header says.
        unsafe { next(walk, entry) }.inspect_err(|_| walk.entries = Box::new(std::iter::empty()))
    })
}

unsafe fn next(walk: &mut CWalk, entry: *mut CEntry) -> io::Result<c_int> {
    let Some(next) = walk.entries.next() else { return Ok(0) };
    let DirEntry { path, attr } = next?;
    walk.shown = CString::new(path.into_os_string().into_vec())
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "a name with a NUL"))?;
    let (attr, error) = outcome(&attr);
    // SAFETY: as the header says.
    unsafe { put(entry, CEntry { path: walk.shown.as_ptr(), attr, error }) }.map(|()| 1)
}

/// Ends a walk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_walk_end(walk: *mut CWalk) {
    // SAFETY: as the header says.
    unsafe { drop_handle("walk_end", walk) };
}

/// Watches paths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_watch(
    h: *mut Hither,
    names: *const *const c_char,
    count: usize,
) -> *mut CWatch {
    run("watch", None, std::ptr::null_mut(), || {
        // SAFETY: as the header says.
        let changes = unsafe { many::watch(h, names, count) }?;
        Ok(Box::into_raw(Box::new(CWatch { changes })))
    })
}

/// The next change.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_change(
    watch: *mut CWatch,
    timeout_ms: c_int,
    changed: *mut CChanged,
) -> c_int {
    // SAFETY: as the header says, only one thread at a time uses the watch.
    let watch = unsafe { watch.as_mut() };
    run("change", None, -1, || {
        let watch = watch.ok_or_else(|| fail(libc::EFAULT))?;
        // A negative time means no time limit.
        let within = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        let (index, attr) = match watch.changes.next_within(within) {
            Ok(change) => change,
            Err(e) if e.kind() == ErrorKind::TimedOut && e.raw_os_error().is_none() => return Ok(0),
            Err(e) => return Err(e),
        };
        let (attr, error) = outcome(&attr);
        // SAFETY: as the header says.
        unsafe { put(changed, CChanged { index, attr, error }) }.map(|()| 1)
    })
}

/// Ends a watch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_watch_end(watch: *mut CWatch) {
    // SAFETY: as the header says.
    unsafe { drop_handle("watch_end", watch) };
}
