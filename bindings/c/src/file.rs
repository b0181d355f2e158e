//! Open files.

use crate::{CAttr, Hither, array, fail, given, many, path, put, run};
use hither_client::{File, OpenOptions};
use libc::{c_char, c_int, c_void};
use std::io;
use std::os::fd::IntoRawFd;

/// The size of a piece. The client keeps this many bytes under way.
const PIECE_BYTES: usize = 8 << 20;

/// `hither_file_t`.
pub struct OpenFile {
    file: File,
}

/// Converts the flags of open(2) that the library supports.
fn options(flags: c_int, mode: u32) -> io::Result<OpenOptions> {
    let others = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // Some compilers add O_LARGEFILE to O_RDONLY. It stands for the default behaviour.
    if flags & !(libc::O_ACCMODE | others | libc::O_LARGEFILE) != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a flag other than O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_NOFOLLOW and O_CLOEXEC",
        ));
    }
    let mut options = OpenOptions::new();
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(fail(libc::EINVAL)),
    };
    let has = |flag| flags & flag != 0;
    options.read(read).write(write).mode(mode & 0o7777);
    // As in open(2), O_EXCL without O_CREAT has no meaning.
    match (has(libc::O_CREAT), has(libc::O_EXCL)) {
        (true, true) => options.create_new(true),
        (create, _) => options.create(create),
    };
    options.truncate(has(libc::O_TRUNC)).no_follow(has(libc::O_NOFOLLOW));
    Ok(options)
}

/// open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_open(
    h: *mut Hither,
    at: *const c_char,
    flags: c_int,
    mode: u32,
) -> *mut OpenFile {
    // SAFETY: as the header says.
    let (h, at) = unsafe { (h.as_ref(), path(at)) };
    run("open", at, std::ptr::null_mut(), || {
        let file = options(flags, mode)?.open(&given(h)?.client, given(at)?)?;
        Ok(Box::into_raw(Box::new(OpenFile { file })))
    })
}

/// Checks that one answer can report this length.
fn room(len: usize) -> io::Result<usize> {
    isize::try_from(len).map(|_| len).map_err(|_| fail(libc::EINVAL))
}

/// pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_pread(f: *mut OpenFile, data: *mut c_void, len: usize, offset: u64) -> isize {
    // SAFETY: as the header says.
    let f = unsafe { f.as_ref() };
    run("pread", None, -1, || {
        let len = room(len)?;
        offset.checked_add(len as u64).ok_or_else(|| fail(libc::EINVAL))?;
        let f = given(f)?;
        if len == 0 {
            return Ok(0);
        }
        // SAFETY: the program provides `len` bytes.
        unsafe { read_into(&f.file, data.cast(), len, offset) }.map(|n| n as isize)
    })
}

/// Reads until `len` bytes are read or the file ends. Returns the number of bytes. The program's
/// memory may be uninitialised, so the data is read into the library's own memory, a piece at a
/// time.
pub(crate) unsafe fn read_into(file: &File, data: *mut u8, len: usize, offset: u64) -> io::Result<usize> {
    let mut piece = vec![0; len.min(PIECE_BYTES)];
    let mut done = 0;
    while done < len {
        let want = piece.len().min(len - done);
        let at = offset.checked_add(done as u64).ok_or_else(|| fail(libc::EINVAL))?;
        let n = file.read_at(&mut piece[..want], at)?;
        // SAFETY: the program provides `len` bytes. They have room for `want` more behind the bytes
        // already read.
        done += unsafe { many::fill(data.wrapping_add(done), want, &piece[..n]) }?;
        if n < want {
            break;
        }
    }
    Ok(done)
}

/// pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_pwrite(
    f: *mut OpenFile,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> isize {
    // SAFETY: as the header says.
    let (f, data) = unsafe { (f.as_ref(), array(data.cast::<u8>(), len)) };
    run("pwrite", None, -1, || {
        let data = data?;
        offset.checked_add(len as u64).ok_or_else(|| fail(libc::EFBIG))?;
        given(f)?.file.write_all_at(data, offset).map(|()| len as isize)
    })
}

/// write(2) to a file that was opened with O_APPEND.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_append(f: *mut OpenFile, data: *const c_void, len: usize) -> isize {
    // SAFETY: as the header says.
    let (f, data) = unsafe { (f.as_ref(), array(data.cast::<u8>(), len)) };
    run("append", None, -1, || {
        given(f)?.file.append(data?)?;
        Ok(len as isize)
    })
}

/// fsync(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_fsync(f: *mut OpenFile) -> c_int {
    // SAFETY: as the header says.
    let f = unsafe { f.as_ref() };
    run("fsync", None, -1, || given(f)?.file.sync_all().map(|()| 0))
}

/// ftruncate(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_ftruncate(f: *mut OpenFile, len: u64) -> c_int {
    // SAFETY: as the header says.
    let f = unsafe { f.as_ref() };
    run("ftruncate", None, -1, || given(f)?.file.set_len(len).map(|()| 0))
}

/// fstat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_fstat(f: *mut OpenFile, attr: *mut CAttr) -> c_int {
    // SAFETY: as the header says.
    let f = unsafe { f.as_ref() };
    run("fstat", None, -1, || {
        let found = given(f)?.file.stat()?;
        // SAFETY: as the header says.
        unsafe { put(attr, (&found).into()) }.map(|()| 0)
    })
}

/// A descriptor of the file's data on the local disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_lend(f: *mut OpenFile) -> c_int {
    // SAFETY: as the header says.
    let f = unsafe { f.as_ref() };
    run("lend", None, -1, || Ok(given(f)?.file.lend()?.into_raw_fd()))
}

/// close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_close(f: *mut OpenFile) -> c_int {
    if f.is_null() {
        return 0;
    }
    // SAFETY: the library made the box, and the program gives it back.
    let owned = unsafe { Box::from_raw(f) };
    run("close", None, -1, || owned.file.close().map(|()| 0))
}
