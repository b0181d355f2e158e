//! POSIX semantics for programs: their changes through the mount reach the server, and the server's
//! changes reach them.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, eventually, mounted, mounted_with};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Timestamps, XattrFlags,
    copy_file_range, fallocate, mknodat, openat, renameat_with, seek, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};

/// The errno of a failed call, or 0.
fn errno<T>(r: std::io::Result<T>) -> i32 {
    r.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

fn new(m: &Mount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(m.path(name)).unwrap()
}

/// Written data is read through the mount and on the server.
/// Promise: 5
#[test]
fn written_data_reads_back() {
    let Some(m) = mounted(1000) else { return };
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(m.path("f"), &data).unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), data);
    assert_eq!(m.foreign_read("f"), data);
    assert_eq!(fs::metadata(m.path("f")).unwrap().len(), data.len() as u64);
    m.end();
}

/// Names of any bytes except `/` and NUL work, up to 255 bytes.
/// Promise: 14
#[test]
fn names_are_bytes() {
    let Some(m) = mounted(1000) else { return };
    for name in [&b"caf\xe9"[..], b"\xff\xfe\x01", b"new\nline", &[b'x'; 255], "漢字".as_bytes()] {
        let path = m.dir.join(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
        let listed: Vec<_> = fs::read_dir(&m.dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(listed.contains(&OsStr::from_bytes(name).to_owned()));
    }
    let long = m.dir.join(OsStr::from_bytes(&[b'x'; 256]));
    assert_eq!(errno(fs::write(&long, b"")), libc::ENAMETOOLONG);
    m.end();
}

/// Hard links share inode number, link count and contents.
#[test]
fn hard_links_are_one_inode() {
    let Some(m) = mounted(60_000) else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("a"), b"one").unwrap();
    fs::hard_link(m.path("a"), m.path("d/b")).unwrap();
    let (a, b) = (fs::metadata(m.path("a")).unwrap(), fs::metadata(m.path("d/b")).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    fs::write(m.path("d/b"), b"other").unwrap();
    assert_eq!(fs::read(m.path("a")).unwrap(), b"other");
    fs::remove_file(m.path("a")).unwrap();
    assert_eq!(fs::metadata(m.path("d/b")).unwrap().nlink(), 1);
    assert_eq!(errno(fs::hard_link(m.path("d"), m.path("e"))), libc::EPERM);
    m.end();
}

/// An unlinked open file stays readable and writable until its last close.
#[test]
fn unlink_keeps_open_file() {
    let Some(m) = mounted(1000) else { return };
    let before = m.model.object_count();
    let mut f = new(&m, "f");
    f.write_all(b"before").unwrap();
    fs::remove_file(m.path("f")).unwrap();
    assert!(!m.path("f").exists());
    f.write_all(b" after").unwrap();
    f.rewind().unwrap();
    let mut text = String::new();
    f.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before after");
    assert_eq!(f.metadata().unwrap().nlink(), 0);
    drop(f);
    common::eventually("the object is gone", || m.model.object_count() == before);
    m.end();
}

/// Lengths are right at once after writes, truncations and appends.
#[test]
fn file_length_is_current() {
    let Some(m) = mounted(60_000) else { return };
    let f = new(&m, "f");
    let size = || fs::metadata(m.path("f")).unwrap().len();
    f.write_all_at(&[1; 10_000], 0).unwrap();
    assert_eq!(size(), 10_000);
    f.set_len(100).unwrap();
    assert_eq!((size(), f.metadata().unwrap().len()), (100, 100));
    f.set_len(5000).unwrap();
    let read = fs::read(m.path("f")).unwrap();
    assert_eq!((read.len(), read[99], read[100], read[4999]), (5000, 1, 0, 0));
    let mut a = OpenOptions::new().append(true).open(m.path("f")).unwrap();
    a.write_all(b"end").unwrap();
    assert_eq!(size(), 5003);
    drop(OpenOptions::new().write(true).truncate(true).open(m.path("f")).unwrap());
    assert_eq!((size(), m.foreign_read("f").len()), (0, 0));
    drop((f, a));
    m.end();
}

/// Holes are found by lseek(2), punched, and filled by fallocate(2).
#[test]
fn holes_are_found_and_punched() {
    let Some(m) = mounted(1000) else { return };
    let f = new(&m, "f");
    const TIB: u64 = 1 << 40;
    f.write_all_at(b"far", TIB - 3).unwrap();
    assert_eq!(f.metadata().unwrap().len(), TIB);
    assert!(f.metadata().unwrap().blocks() < 100);
    assert_eq!(seek(&f, SeekFrom::Data(0)).unwrap(), TIB - 4096);
    assert_eq!(seek(&f, SeekFrom::Hole(0)).unwrap(), 0);
    assert_eq!(seek(&f, SeekFrom::Hole(TIB - 1)).unwrap(), TIB);
    assert_eq!(seek(&f, SeekFrom::Data(TIB)), Err(Errno::NXIO));
    f.set_len(0).unwrap();
    f.write_all_at(&[7; 16_384], 0).unwrap();
    fallocate(&f, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096).unwrap();
    let mut buf = [9; 4096];
    f.read_exact_at(&mut buf, 4096).unwrap();
    assert_eq!((buf, seek(&f, SeekFrom::Hole(0)).unwrap()), ([0; 4096], 4096));
    fallocate(&f, FallocateFlags::ZERO_RANGE, 100, 50).unwrap();
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!((buf[99], buf[100], buf[149], buf[150]), (7, 0, 0, 7));
    fallocate(&f, FallocateFlags::empty(), 0, 100_000).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 100_000);
    assert_eq!(fallocate(&f, FallocateFlags::KEEP_SIZE, 0, 200_000), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    drop(f);
    m.end();
}

/// On a server without SEEK, all bytes up to the end are data.
#[test]
fn seek_without_holes_finds_data() {
    let Some(m) = mounted(1000) else { return };
    m.gate.fail("seek", libc::EOPNOTSUPP);
    let f = new(&m, "f");
    f.set_len(10_000).unwrap();
    assert_eq!(seek(&f, SeekFrom::Data(5)).unwrap(), 5);
    assert_eq!(seek(&f, SeekFrom::Hole(5)).unwrap(), 10_000);
    assert_eq!(seek(&f, SeekFrom::Hole(10_000)), Err(Errno::NXIO));
    drop(f);
    m.end();
}

/// Extended attributes are set, listed, read and removed with the right errors.
#[test]
fn extended_attributes() {
    use rustix::fs::{getxattr, listxattr, removexattr, setxattr};
    let Some(m) = mounted(1000) else { return };
    fs::write(m.path("f"), b"").unwrap();
    let f = m.path("f");
    let either = XattrFlags::empty();
    setxattr(&f, "user.a", b"value", either).unwrap();
    setxattr(&f, "user.empty", b"", either).unwrap();
    assert_eq!(setxattr(&f, "user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&f, "user.b", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    let mut buf = [0; 100];
    let path = std::ffi::CString::new(f.as_os_str().as_bytes()).unwrap();
    // SAFETY: two strings that end with NUL, and no buffer, to get the length. rustix does not
    // offer this.
    let len = unsafe { libc::getxattr(path.as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!(len, 5);
    assert_eq!(getxattr(&f, "user.a", &mut buf[..3]), Err(Errno::RANGE));
    assert_eq!((getxattr(&f, "user.a", &mut buf).unwrap(), &buf[..5]), (5, &b"value"[..]));
    assert_eq!(getxattr(&f, "user.empty", &mut buf).unwrap(), 0);
    let len = listxattr(&f, &mut buf).unwrap();
    assert_eq!(&buf[..len], b"user.a\0user.empty\0");
    removexattr(&f, "user.a").unwrap();
    assert_eq!(getxattr(&f, "user.a", &mut buf), Err(Errno::NODATA));
    assert_eq!(getxattr(&f, "system.posix_acl_access", &mut buf), Err(Errno::OPNOTSUPP));
    let big = vec![7; 65536];
    setxattr(&f, "user.big", &big, either).unwrap();
    let mut back = vec![0; 65536];
    assert_eq!((getxattr(&f, "user.big", &mut back).unwrap(), back), (65536, big));
    m.end();
}

/// Changed attributes are shown at once.
#[test]
fn set_attributes_show_at_once() {
    let Some(m) = mounted(60_000) else { return };
    fs::write(m.path("f"), b"").unwrap();
    let f = m.path("f");
    fs::set_permissions(&f, fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(&f).unwrap().mode() & 0o7777, 0o4751);
    std::os::unix::fs::chown(&f, Some(12), Some(34)).unwrap();
    let a = fs::metadata(&f).unwrap();
    assert_eq!((a.uid(), a.gid(), a.mode() & 0o7777), (12, 34, 0o751));
    let t = |s| rustix::fs::Timespec { tv_sec: s, tv_nsec: 123_456_789 };
    let times = Timestamps { last_access: t(-5), last_modification: t(4_000_000_000) };
    utimensat(CWD, &f, &times, AtFlags::empty()).unwrap();
    let a = fs::metadata(&f).unwrap();
    assert_eq!(
        (a.atime(), a.atime_nsec(), a.mtime(), a.mtime_nsec()),
        (-5, 123_456_789, 4_000_000_000, 123_456_789)
    );
    m.end();
}

/// Symbolic links, FIFOs, devices and sockets work.
#[test]
fn symlinks_pipes_sockets_and_devices() {
    let Some(m) = mounted(1000) else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/f"), b"through").unwrap();
    symlink("d/f", m.path("s")).unwrap();
    assert_eq!(fs::read(m.path("s")).unwrap(), b"through");
    assert_eq!(fs::read_link(m.path("s")).unwrap().as_os_str(), "d/f");
    mknodat(CWD, m.path("p"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let p = m.path("p");
    let writer = std::thread::spawn(move || fs::write(p, b"in the pipe").unwrap());
    assert_eq!(fs::read(m.path("p")).unwrap(), b"in the pipe");
    writer.join().unwrap();
    let dev = rustix::fs::makedev(250, 70_000);
    mknodat(CWD, m.path("c"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), dev).unwrap();
    let a = fs::metadata(m.path("c")).unwrap();
    assert!(a.file_type().is_char_device());
    assert_eq!(a.rdev(), dev);
    let listener = std::os::unix::net::UnixListener::bind(m.path("sock")).unwrap();
    let mut client = std::os::unix::net::UnixStream::connect(m.path("sock")).unwrap();
    client.write_all(b"x").unwrap();
    drop((listener, client));
    m.end();
}

/// Renames replace, exchange, and fail with the right errors.
#[test]
fn renames_replace_exchange_and_refuse() {
    let Some(m) = mounted(60_000) else { return };
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("a"), b"a").unwrap();
    fs::write(m.path("d/b"), b"b").unwrap();
    let (a, b) = (m.path("a"), m.path("d/b"));
    assert_eq!(renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    fs::rename(&a, &b).unwrap();
    assert_eq!((fs::read(&b).unwrap(), a.exists()), (b"b".to_vec(), false));
    assert_eq!(errno(fs::rename(m.path("d"), m.path("d/e"))), libc::EINVAL);
    assert_eq!(errno(fs::remove_dir(m.path("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::read(m.path("d"))), libc::EISDIR);
    m.end();
}

/// Of concurrent exclusive creates exactly one succeeds.
/// Promise: 12
#[test]
fn exclusive_create_has_one_winner() {
    let Some(m) = mounted(1000) else { return };
    for round in 0..20 {
        let path = m.path(&format!("lock{round}"));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || OpenOptions::new().write(true).create_new(true).open(path).is_ok())
            })
            .collect();
        let winners = threads.into_iter().map(|t| t.join().unwrap());
        assert_eq!(winners.filter(|&won| won).count(), 1);
    }
    m.end();
}

/// copy_file_range(2) copies on the server, or through the kernel without the server's COPY.
#[test]
fn copy_file_range_uses_server() {
    let Some(m) = mounted(1000) else { return };
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 253) as u8).collect();
    fs::write(m.path("a"), &data).unwrap();
    let (a, b) = (File::open(m.path("a")).unwrap(), new(&m, "b"));
    let (mut from, mut to) = (1000, 10);
    while to < 2_000_010 {
        let left = (2_000_010 - to) as usize;
        let n = copy_file_range(&a, Some(&mut from), &b, Some(&mut to), left).unwrap();
        assert!(n > 0);
    }
    let back = fs::read(m.path("b")).unwrap();
    assert_eq!((&back[..10], back.len()), (&[0; 10][..], 2_000_010));
    assert!(back[10..] == data[1000..2_001_000]);
    assert!(m.gate.calls("copy") >= 2 && m.gate.calls("write") < 5);
    // Without the server's COPY the kernel copies.
    m.gate.fail("copy", libc::EOPNOTSUPP);
    let n = copy_file_range(&a, Some(&mut 0), &b, Some(&mut 0), 5000).unwrap();
    assert!(n > 0 && fs::read(m.path("b")).unwrap()[..n] == data[..n]);
    drop((a, b));
    m.end();
}

/// O_DIRECT reads and writes bypass the kernel's pages.
#[test]
fn direct_io_bypasses_the_page_cache() {
    let Some(m) = mounted(60_000) else { return };
    fs::write(m.path("f"), [1; 8192]).unwrap();
    let flags = OFlags::RDWR | OFlags::DIRECT;
    let f = File::from(openat(CWD, m.path("f"), flags, Mode::empty()).unwrap());
    let mut buf = vec![0; 100];
    f.read_exact_at(&mut buf, 0).unwrap();
    m.foreign_write("f", 0, &[2; 100]);
    f.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, [2; 100]);
    f.write_all_at(&[3; 3_000_000], 50).unwrap();
    assert!(m.foreign_read("f")[50..3_000_050] == [3; 3_000_000]);
    assert_eq!(f.metadata().unwrap().len(), 3_000_050);
    drop(f);
    m.end();
}

/// A short read reply is not the end of the file.
#[test]
fn short_read_is_not_eof() {
    let Some(m) = mounted(0) else { return };
    let data: Vec<u8> = (0..300_000u32).map(|i| (i % 241) as u8).collect();
    fs::write(m.path("f"), &data).unwrap();
    m.gate.cut_reads(1000);
    assert!(fs::read(m.path("f")).unwrap() == data);
    m.end();
}

/// Errors of writes and COMMIT reach the program.
#[test]
fn server_errors_reach_program() {
    let Some(m) = mounted(1000) else { return };
    let full = fs::write(m.path("full"), vec![1; 65 << 20]);
    assert_eq!(errno(full), libc::ENOSPC);
    fs::remove_file(m.path("full")).unwrap();
    let f = new(&m, "f");
    f.write_all_at(b"x", 0).unwrap();
    m.gate.fail("commit", libc::EDQUOT);
    assert_eq!(errno(f.sync_all()), libc::EDQUOT);
    // The layer below knows the remaining work and the reported errors, so each fsync asks it.
    assert_eq!(errno(f.sync_all()), libc::EDQUOT);
    m.gate.fail("commit", 0);
    f.sync_all().unwrap();
    m.gate.fail("commit", libc::EDQUOT);
    f.write_all_at(b"y", 0).unwrap();
    assert_eq!(close(f), libc::EDQUOT);
    m.gate.fail("commit", 0);
    m.end();
}

/// close(2) with its result, which [`File`] drops.
fn close(f: File) -> i32 {
    let fd = std::os::fd::IntoRawFd::into_raw_fd(f);
    // SAFETY: the descriptor was just released by its owner.
    errno(match unsafe { libc::close(fd) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    })
}

/// close(2) and fsync(2) wait for a COMMIT only after a write.
/// Promise: 1
#[test]
fn close_commits_only_after_write() {
    let Some(m) = mounted(1000) else { return };
    let f = new(&m, "f");
    f.sync_all().unwrap();
    assert_eq!(m.gate.calls("commit"), 0);
    f.write_all_at(b"x", 0).unwrap();
    f.sync_all().unwrap();
    assert_eq!(m.gate.calls("commit"), 1);
    f.write_all_at(b"y", 0).unwrap();
    drop(f);
    assert_eq!(m.gate.calls("commit"), 2);
    // Each O_SYNC write is stable.
    let flags = OFlags::WRONLY | OFlags::SYNC;
    let f = File::from(openat(CWD, m.path("f"), flags, Mode::empty()).unwrap());
    f.write_all_at(b"z", 0).unwrap();
    drop(f);
    assert_eq!(m.gate.calls("commit"), 2);
    m.end();
}

/// When the server may refuse data later, every fsync and close sends a COMMIT.
/// Promise: 6e
#[test]
fn fsync_repeats_commit() {
    let Some(m) = mounted_with(1000, |config| config.commits_last = false) else { return };
    let f = new(&m, "f");
    f.write_all_at(b"x", 0).unwrap();
    f.sync_all().unwrap();
    f.sync_all().unwrap();
    drop(f);
    assert_eq!(m.gate.calls("commit"), 3);
    m.end();
}

/// When names may be delayed, fsync(2) of a directory sends a COMMIT. Otherwise names are already
/// on stable storage.
/// Promise: 6g
#[test]
fn directory_fsync_commits_delayed_names() {
    for waits in [true, false] {
        let Some(m) = mounted_with(1000, |config| config.names_wait = waits) else { return };
        drop(new(&m, "f"));
        let before = m.gate.calls("commit");
        File::open(&m.dir).unwrap().sync_all().unwrap();
        assert_eq!(m.gate.calls("commit") - before, usize::from(waits));
        m.end();
    }
}

/// statfs(2) shows the server's size and name limit.
#[test]
fn statfs_shows_the_server() {
    let Some(m) = mounted(1000) else { return };
    let s = rustix::fs::statvfs(&m.dir).unwrap();
    assert_eq!((s.f_blocks * s.f_frsize, s.f_namemax), (64 << 20, 255));
    m.end();
}

/// Concurrent threads create, rename, read, write and remove files without errors.
#[test]
fn concurrent_threads_change_files() {
    let Some(m) = mounted(100) else { return };
    let shared = new(&m, "shared");
    let threads: Vec<_> = (0..8u8)
        .map(|t| {
            let (dir, shared) = (m.dir.clone(), shared.try_clone().unwrap());
            std::thread::spawn(move || {
                let own = dir.join(format!("d{t}"));
                fs::create_dir(&own).unwrap();
                for i in 0..200u64 {
                    let (a, b) = (own.join(format!("a{i}")), own.join(format!("b{i}")));
                    fs::write(&a, vec![t; i as usize * 37]).unwrap();
                    fs::rename(&a, &b).unwrap();
                    assert_eq!(fs::read(&b).unwrap(), vec![t; i as usize * 37]);
                    shared.write_all_at(&[t; 1000], (i * 8 + u64::from(t)) * 1000).unwrap();
                    if i % 3 == 0 {
                        fs::remove_file(&b).unwrap();
                    }
                }
                assert_eq!(fs::read_dir(&own).unwrap().count(), 133);
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let all = m.foreign_read("shared");
    assert_eq!(all.len(), 1_600_000);
    assert!(all.chunks(1000).enumerate().all(|(i, c)| c == [(i % 8) as u8; 1000]));
    drop(shared);
    m.end();
}

/// A read-only mount refuses changes with EROFS.
#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(m) = common::mounted_with(1000, |c| c.mount_flags = libc::MS_RDONLY) else { return };
    assert_eq!(errno(fs::write(m.path("f"), b"")), libc::EROFS);
    m.foreign_write("g", 0, b"there");
    assert_eq!(fs::read(m.path("g")).unwrap(), b"there");
    m.end();
}

/// An operation that is not supported for any file is requested only once.
#[test]
fn unsupported_operation_is_requested_once() {
    let never = |c: &mut hither_fuse::Config| (c.xattrs, c.server_copy) = (false, false);
    let Some(m) = common::mounted_with(600_000, never) else { return };
    fs::write(m.path("f"), b"contents").unwrap();
    fs::write(m.path("g"), b"").unwrap();
    let path = std::ffi::CString::new(m.path("f").to_str().unwrap()).unwrap();
    for _ in 0..3 {
        // SAFETY: NUL-terminated strings; no buffer is written.
        let n = unsafe { libc::getxattr(path.as_ptr(), c"user.x".as_ptr(), std::ptr::null_mut(), 0) };
        assert_eq!((n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
        let (from, to) = (fs::File::open(m.path("f")).unwrap(), fs::File::create(m.path("g")).unwrap());
        let copied = rustix::fs::copy_file_range(&from, None, &to, None, 8);
        // Old kernels leave copying to the program.
        assert!(copied == Ok(8) || copied == Err(rustix::io::Errno::OPNOTSUPP), "{copied:?}");
    }
    assert_eq!(m.requests("GETXATTR"), 1);
    assert!(m.requests("COPY_FILE_RANGE") <= 1 && m.requests("COPY_FILE_RANGE_64") <= 1);
    assert_ne!(m.requests("COPY_FILE_RANGE") + m.requests("COPY_FILE_RANGE_64"), 0);
    assert_eq!((m.gate.calls("getxattr"), m.gate.calls("copy")), (0, 0));
    m.end();
}

/// The layer below keeps the hidden name of a removed file until it has closed the file. The
/// directory is removed after a late close, also when the kernel has forgotten the directory, or
/// the file, since their last use.
/// Promise: 13
#[test]
fn rmdir_waits_for_late_close() {
    let Some(m) = mounted(60_000) else { return };
    for (removed_open, forgets) in [(true, false), (true, true), (false, false), (false, true)] {
        let (dir, path) = (m.path("d"), m.path("d/f"));
        fs::create_dir(&dir).unwrap();
        let file = File::create(&path).unwrap();
        if removed_open {
            fs::remove_file(&path).unwrap();
        }
        m.gate.shut("close");
        m.gate.fail("rmdir", libc::ENOTEMPTY);
        drop(file);
        eventually("the file is being closed", || m.gate.waiting("close") == 1);
        if forgets {
            let forgets = || m.requests("FORGET") + m.requests("BATCH_FORGET");
            let before = forgets();
            m.forget();
            eventually("the directory is forgotten", || forgets() > before);
        }
        if !removed_open {
            fs::remove_file(&path).unwrap();
        }
        let before = m.gate.calls("rmdir");
        let remover = std::thread::spawn(move || fs::remove_dir(dir));
        eventually("the directory is not empty", || m.gate.calls("rmdir") == before + 1);
        m.gate.fail("rmdir", 0);
        m.gate.open_all();
        let removed = remover.join().unwrap();
        assert!(removed.is_ok(), "{removed_open} {forgets}: {removed:?}");
        eventually("closed objects are forgotten", || m.mounted().counts().inodes == 1);
    }
    m.end();
}
