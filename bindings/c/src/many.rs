//! Calls about many files at once.

use crate::file::read_into;
use crate::{CAttr, Hither, array, errno, fail, given, outcome, path, run};
use hither_client::wire::IO_MAX_BYTES;
use hither_client::{Client, OpenOptions};
use libc::{c_char, c_int, c_void};
use std::io;
use std::path::Path;

/// `struct hither_part`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CPart {
    pub(crate) path: *const c_char,
    pub(crate) offset: u64,
    pub(crate) data: *mut c_void,
    pub(crate) len: usize,
    pub(crate) read: usize,
    pub(crate) size: u64,
    pub(crate) error: c_int,
}

/// `struct hither_content`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CContent {
    pub(crate) data: *mut c_void,
    pub(crate) len: usize,
    pub(crate) error: c_int,
}

/// `struct hither_stated`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CStated {
    pub(crate) attr: CAttr,
    pub(crate) error: c_int,
}

/// Copies as many bytes as fit into the program's memory. Returns their number.
pub(crate) unsafe fn fill(to: *mut u8, room: usize, bytes: &[u8]) -> io::Result<usize> {
    let n = bytes.len().min(room);
    if n == 0 {
        return Ok(0);
    }
    if to.is_null() {
        return Err(fail(libc::EFAULT));
    }
    // SAFETY: the program provides `room` bytes, which the library does not own.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n) };
    Ok(n)
}

/// Reads parts of many files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_readv(h: *mut Hither, parts: *mut CPart, count: usize) -> c_int {
    // SAFETY: as the header says.
    let (h, given_parts) = unsafe { (h.as_ref(), array(parts, count)) };
    run("readv", None, -1, || {
        // Two parts may name the same memory, so the parts are never borrowed mutably.
        let mut copies = given_parts?.to_vec();
        let client = &given(h)?.client;
        read_parts(client, &mut copies)?;
        for (i, part) in copies.iter().enumerate() {
            // SAFETY: the element is in the program's array.
            unsafe { parts.add(i).write(*part) };
        }
        Ok(0)
    })
}

fn read_parts(client: &Client, parts: &mut [CPart]) -> io::Result<()> {
    let mut asked: Vec<(&Path, u64, u32)> = Vec::with_capacity(parts.len());
    let mut which = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter_mut().enumerate() {
        (part.read, part.size, part.error) = (0, 0, libc::EPROTO);
        // SAFETY: as the header says of a part.
        match unsafe { path(part.path) } {
            Some(path) if !part.data.is_null() || part.len == 0 => {
                asked.push((path, part.offset, part.len.min(IO_MAX_BYTES as usize) as u32));
                which.push(i);
            }
            _ => part.error = libc::EFAULT,
        }
    }
    let mut longer = Vec::new();
    client.read_parts(&asked, |answer, read| {
        let i = which[answer];
        let part = &mut parts[i];
        match read {
            Ok((size, bytes)) => {
                // SAFETY: as the header says of a part.
                let filled = unsafe { fill(part.data.cast(), part.len, bytes) };
                part.read = filled.unwrap_or(0);
                (part.size, part.error) = (size, 0);
                let end = part.offset.saturating_add(part.read as u64);
                if part.len > part.read && end < size && part.read == IO_MAX_BYTES as usize {
                    longer.push((i, answer));
                }
            }
            Err(e) => part.error = errno(&e),
        }
    })?;
    for (i, answer) in longer {
        let part = &mut parts[i];
        match read_long(client, asked[answer].0, part) {
            Ok((read, size)) => (part.read, part.size, part.error) = (read, size, 0),
            Err(e) => (part.read, part.size, part.error) = (0, 0, errno(&e)),
        }
    }
    Ok(())
}

/// Reads a part through its own open, so that all bytes belong to one file. Returns the number of
/// bytes and the file's length.
fn read_long(client: &Client, path: &Path, part: &CPart) -> io::Result<(usize, u64)> {
    let file = OpenOptions::new().read(true).open(client, path)?;
    let size = file.stat()?.size;
    let there = size.saturating_sub(part.offset).min(part.len as u64) as usize;
    // SAFETY: as the header says of a part.
    let n = unsafe { read_into(&file, part.data.cast(), there, part.offset) }?;
    Ok((n, size))
}

/// The program's paths. A NULL path is an error.
unsafe fn paths<'a>(all: *const *const c_char, count: usize) -> io::Result<Vec<&'a Path>> {
    // SAFETY: as the header says.
    let all = unsafe { array(all, count) }?;
    // SAFETY: the same, for each path.
    all.iter().map(|one| unsafe { path(*one) }.ok_or_else(|| fail(libc::EFAULT))).collect()
}

/// Reads many whole files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_read_files(
    h: *mut Hither,
    names: *const *const c_char,
    count: usize,
    contents: *mut CContent,
) -> c_int {
    let content = |read: io::Result<Vec<u8>>| match read {
        Ok(bytes) if bytes.is_empty() => CContent { data: std::ptr::null_mut(), len: 0, error: 0 },
        Ok(bytes) => {
            let len = bytes.len();
            CContent { data: Box::into_raw(bytes.into_boxed_slice()).cast(), len, error: 0 }
        }
        Err(e) => CContent { data: std::ptr::null_mut(), len: 0, error: errno(&e) },
    };
    // SAFETY: as the header says.
    unsafe {
        each("read_files", h, (names, count), contents, |client, names| client.read_many(names), content)
    }
}

/// Makes a call about many paths and stores each result in the program's array.
unsafe fn each<A, C>(
    what: &str,
    h: *mut Hither,
    (names, count): (*const *const c_char, usize),
    to: *mut C,
    ask: impl FnOnce(&Client, &[&Path]) -> io::Result<Vec<A>>,
    told: impl Fn(A) -> C,
) -> c_int {
    // SAFETY: as the header says.
    let (h, names) = unsafe { (h.as_ref(), paths(names, count)) };
    run(what, None, -1, || {
        let names = names?;
        let client = &given(h)?.client;
        if to.is_null() && count > 0 {
            return Err(fail(libc::EFAULT));
        }
        for (i, answer) in ask(client, &names)?.into_iter().enumerate() {
            // SAFETY: the element is in the program's array, and its old value needs no drop.
            unsafe { to.add(i).write(told(answer)) };
        }
        Ok(0)
    })
}

/// Frees the data of `hither_read_files`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_free_contents(contents: *mut CContent, count: usize) {
    if contents.is_null() {
        return;
    }
    for i in 0..count {
        // SAFETY: the element is in the program's array, which `hither_read_files` filled.
        let content = unsafe { &mut *contents.add(i) };
        if !content.data.is_null() {
            let bytes = std::ptr::slice_from_raw_parts_mut(content.data.cast::<u8>(), content.len);
            // SAFETY: the library made the box with this length, and the pointer is cleared at
            // once.
            drop(unsafe { Box::from_raw(bytes) });
        }
        (content.data, content.len) = (std::ptr::null_mut(), 0);
    }
}

/// Writes a whole file to stable storage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_write_file(
    h: *mut Hither,
    at: *const c_char,
    data: *const c_void,
    len: usize,
    mode: u32,
) -> c_int {
    // SAFETY: as the header says.
    let (h, at, data) = unsafe { (h.as_ref(), path(at), array(data.cast::<u8>(), len)) };
    run("write", at, -1, || {
        let (data, client) = (data?, &given(h)?.client);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode & 0o7777);
        let file = options.open(client, given(at)?)?;
        file.write_all_at(data, 0)?;
        file.close().map(|()| 0)
    })
}

/// Attributes of many paths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hither_stat_many(
    h: *mut Hither,
    names: *const *const c_char,
    count: usize,
    stated: *mut CStated,
) -> c_int {
    let told = |attr| {
        let (attr, error) = outcome(&attr);
        CStated { attr, error }
    };
    // SAFETY: as the header says.
    unsafe { each("stat_many", h, (names, count), stated, |client, names| client.stat_many(names), told) }
}

/// Watches paths.
pub(crate) unsafe fn watch(
    h: *mut Hither,
    names: *const *const c_char,
    count: usize,
) -> io::Result<hither_client::Changes> {
    // SAFETY: as the header says.
    let (h, names) = unsafe { (h.as_ref(), paths(names, count)) };
    let names = names?;
    given(h)?.client.watch(&names)
}
