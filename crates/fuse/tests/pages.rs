//! The kernel's pages after changes that the kernel does not track. These are changes that end
//! after it has dropped pages, interrupted calls, and calls with partial effects.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, aio_write, eventually, mounted, mounted_with, root};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

/// Validity that does not end during a test.
const LONG: u64 = 600_000;
const LEN: usize = 4 * PAGE;
const PAGE: usize = 4096;

/// A page-aligned buffer for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; LEN]);

fn fallocate(file: &File, mode: i32) -> std::io::Result<()> {
    // SAFETY: only numbers are passed.
    let r = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, LEN as i64) };
    if r < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn copy(from: &File, to: &File) {
    let mut at = [0i64; 2];
    let [a, b] = &mut at;
    // SAFETY: both offsets live across the call.
    let n = unsafe { libc::copy_file_range(from.as_raw_fd(), a, to.as_raw_fd(), b, LEN, 0) };
    assert_eq!(n, LEN as isize, "{}", std::io::Error::last_os_error());
}

/// The ways to fill the file `path` with one byte, and the call of the layer below.
const CHANGES: [(&str, &str); 8] = [
    ("direct", "write"),
    ("direct aio", "write"),
    ("direct aio, set later", "write"),
    ("direct aio that extends", "write"),
    ("copy", "copy"),
    ("punch", "deallocate"),
    ("zero", "deallocate"),
    ("buffered", "write"),
];

/// Makes the change. Returns the byte that the file contains afterwards.
fn change(path: &Path, how: &str) -> u8 {
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap();
    let buffer = Aligned([b'z'; LEN]);
    match how {
        "direct" => open(libc::O_DIRECT).write_all_at(&buffer.0, 0).unwrap(),
        "direct aio" => assert_eq!(aio_write(&open(libc::O_DIRECT), &buffer.0, 0), LEN as i64),
        "aio" => assert_eq!(aio_write(&open(0), &buffer.0, 0), LEN as i64),
        "direct aio, set later" => {
            let file = open(0);
            // SAFETY: only numbers are passed.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) }, 0);
            assert_eq!(aio_write(&file, &buffer.0, 0), LEN as i64);
        }
        "direct aio that extends" => {
            let file = open(libc::O_DIRECT);
            assert_eq!(aio_write(&file, &buffer.0[..LEN - PAGE], 2 * PAGE as i64), (LEN - PAGE) as i64);
            return b'a';
        }
        "copy" => copy(&File::open(path.with_file_name("source")).unwrap(), &open(0)),
        "punch" => {
            fallocate(&open(0), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).unwrap();
            return 0;
        }
        "zero" => {
            fallocate(&open(0), libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE).unwrap();
            return 0;
        }
        "buffered" => open(0).write_all_at(&buffer.0, 0).unwrap(),
        _ => panic!("{how}?"),
    }
    b'z'
}

fn page(file: &File, number: usize) -> u8 {
    let mut buf = [0; PAGE];
    file.read_exact_at(&mut buf, (number * PAGE) as u64).unwrap();
    assert!(buf.iter().all(|b| *b == buf[0]), "a torn page");
    buf[0]
}

/// A file of four pages, and a file to copy from.
fn prepare(m: &Mount) -> File {
    m.foreign_write("f", 0, &[b'a'; LEN]);
    m.foreign_write("source", 0, &[b'z'; LEN]);
    File::open(m.path("f")).unwrap()
}

/// A page that a buffered read fills during the change is not shown after it.
/// Promise: 5
#[test]
fn no_page_outlives_a_change() {
    for (how, below) in CHANGES {
        let Some(m) = mounted(LONG) else { return };
        let reader = prepare(&m);
        m.gate.shut(below);
        let new = std::thread::scope(|s| {
            let changer = s.spawn(|| change(&m.path("f"), how));
            eventually("the change is under way", || m.gate.waiting(below) == 1);
            if how != "buffered" {
                assert_eq!([page(&reader, 0), page(&reader, 3)], [b'a'; 2], "{how}");
            }
            m.gate.open_all();
            changer.join().unwrap()
        });
        let last = if how == "direct aio that extends" { b'z' } else { new };
        assert_eq!([page(&reader, 0), page(&reader, 3)], [new, last], "{how}");
        drop(reader);
        m.end();
    }
}

/// A page that a mapping fills during the change is not shown after it, on a mount with reads and
/// writes past the pages.
/// Promise: 5
#[test]
fn no_mapped_page_outlives_a_change() {
    for how in ["direct", "direct aio", "aio"] {
        let Some(m) = mounted_with(LONG, |c| c.strict = true) else { return };
        let reader = prepare(&m);
        // SAFETY: a new mapping of the whole file, which ends with the test's process.
        let map = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, LEN, libc::PROT_READ, libc::MAP_SHARED, reader.as_raw_fd(), 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: inside the mapping.
        let mapped = || unsafe { map.cast::<u8>().read_volatile() };
        m.gate.shut("write");
        std::thread::scope(|s| {
            let changer = s.spawn(|| change(&m.path("f"), how));
            eventually("the change is under way", || m.gate.waiting("write") == 1);
            assert_eq!(mapped(), b'a', "{how}");
            m.gate.open_all();
            changer.join().unwrap()
        });
        assert_eq!(mapped(), b'z', "{how}");
        // SAFETY: the mapping made above, which is not used any more.
        unsafe { libc::munmap(map, LEN) };
        drop(reader);
        m.end();
    }
}

/// Direct writes to a file that was never read through pages send no notification.
#[test]
fn direct_writes_send_no_invalidation() {
    let Some(m) = mounted(LONG) else { return };
    drop(prepare(&m));
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
    let buffer = Aligned([b'z'; LEN]);
    let before = m.requests("GETATTR");
    (0..20).for_each(|_| assert_eq!(aio_write(&file, &buffer.0, 0), LEN as i64));
    assert!(m.requests("GETATTR") <= before + 1);
    drop(file);
    m.end();
}

/// More files than a mount may have threads are read, changed elsewhere, and looked at. Each look
/// drops pages, and waits for the read of a page. Threads for blocking work are left, because the
/// answer to a read may need one.
#[test]
fn page_drops_leave_threads_for_reads() {
    let Some(m) = mounted(0) else { return };
    let files: Vec<String> = (0..2 * hither_fuse::BLOCKING_THREADS_MAX).map(|n| format!("f{n}")).collect();
    // Longer than the first bytes that an open brings.
    const FAR: u64 = 32 * PAGE as u64;
    for file in &files {
        m.foreign_write(file, FAR, &[b'a'; LEN]);
    }
    let at = |file: &String| File::open(m.path(file)).unwrap();
    let opened: Vec<File> = files.iter().map(at).collect();
    m.gate.shut("read");
    std::thread::scope(|s| {
        for file in &opened {
            s.spawn(|| assert_eq!(page(file, FAR as usize / PAGE), b'a'));
        }
        // The kernel sends only some of the reads at once.
        eventually("files are read", || m.gate.waiting("read") >= 12);
        for file in &files {
            m.foreign_write(file, 0, b"b");
            s.spawn(|| assert_eq!(fs::metadata(m.path(file)).unwrap().len(), FAR + LEN as u64));
        }
        let looks = files.len() as u64;
        eventually("files are looked at", || m.requests("GETATTR") + m.requests("LOOKUP") >= looks);
        common::pause(500);
        let (ran, done) = std::sync::mpsc::channel();
        m.rt.spawn_blocking(move || ran.send(()).unwrap());
        let served = done.recv_timeout(std::time::Duration::from_secs(10));
        m.gate.open_all();
        assert!(served.is_ok(), "page drops occupy all threads");
    });
    drop(opened);
    m.end();
}

/// Starts a program that does `what` to `f` or to names (see [`child`]).
fn start(m: &Mount, what: &str) -> Child {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child", "--ignored", "--test-threads=1"]);
    c.env("CHILD", what).env("CHILD_PATH", &m.dir).current_dir("/");
    c.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap()
}

/// Not a test: the program that the tests start.
#[test]
#[ignore = "the program that other tests start"]
fn child() {
    let Ok(what) = std::env::var("CHILD") else { return };
    let dir = std::path::PathBuf::from(std::env::var("CHILD_PATH").unwrap());
    let path = |name: &str| dir.join(name);
    match what.as_str() {
        "truncate" => drop(fs::OpenOptions::new().write(true).open(path("f")).unwrap().set_len(0)),
        "mkdir" => drop(fs::create_dir(path("new"))),
        "create" => drop(File::create_new(path("new"))),
        "symlink" => drop(symlink("f", path("new"))),
        "link" => drop(fs::hard_link(path("f"), path("new"))),
        "unlink" => drop(fs::remove_file(path("old"))),
        "rename" => drop(fs::rename(path("old"), path("new"))),
        how => drop(change(&path("f"), how)),
    }
}

/// A change that the server has executed is shown although the calling program was killed.
/// Promise: 5
#[test]
fn change_of_killed_program_shows() {
    let changes =
        [("copy", "copy"), ("punch", "deallocate"), ("zero", "deallocate"), ("truncate", "setattr")];
    for (how, below) in changes {
        let Some(m) = mounted(LONG) else { return };
        let reader = prepare(&m);
        assert_eq!(page(&reader, 0), b'a', "{how}");
        m.gate.shut_answers(below);
        let mut child = start(&m, how);
        eventually("the call is under way", || m.gate.answers_waiting(below) == 1);
        child.kill().unwrap();
        child.wait().unwrap();
        m.gate.open_all();
        eventually(how, || match how {
            "truncate" => reader.metadata().unwrap().len() == 0,
            "copy" => page(&reader, 0) == b'z',
            _ => page(&reader, 0) == 0,
        });
        drop(reader);
        m.end();
    }
}

/// Names that a killed program creates, renames or removes are shown.
/// Promise: 5
#[test]
fn names_of_killed_program_show() {
    let changes = [
        ("mkdir", "mkdir"),
        ("create", "open"),
        ("symlink", "symlink"),
        ("link", "link"),
        ("unlink", "unlink"),
        ("rename", "rename"),
    ];
    for (what, below) in changes {
        let Some(m) = mounted(LONG) else { return };
        drop(prepare(&m));
        m.foreign_write("old", 0, b"x");
        let seen = || {
            let there = |name| m.path(name).symlink_metadata().is_ok();
            let listed = |name: &str| fs::read_dir(&m.dir).unwrap().any(|e| e.unwrap().file_name() == name);
            [there("old"), there("new"), listed("old"), listed("new")]
        };
        assert_eq!(seen(), [true, false, true, false]);
        m.gate.shut(below);
        let mut child = start(&m, what);
        eventually("the call is under way", || m.gate.waiting(below) == 1);
        child.kill().unwrap();
        child.wait().unwrap();
        m.gate.open_all();
        let [old, new] = match what {
            "unlink" => [false, false],
            "rename" => [false, true],
            _ => [true, true],
        };
        eventually(what, || seen() == [old, new, old, new]);
        m.end();
    }
}

/// The server has punched a hole and then cannot allocate it. The call fails, and the zeros are
/// shown.
/// Promise: 5
#[test]
fn partial_change_shows() {
    for errno in [libc::EIO, libc::EOPNOTSUPP] {
        let Some(m) = mounted(LONG) else { return };
        let reader = prepare(&m);
        assert_eq!(page(&reader, 0), b'a');
        let file = OpenOptions::new().write(true).open(m.path("f")).unwrap();
        m.gate.fail("allocate", errno);
        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(fallocate(&file, mode).unwrap_err().raw_os_error(), Some(errno));
        assert_eq!(page(&reader, 0), 0);
        drop((reader, file));
        m.end();
    }
}

/// A failed write may have been executed. The server's bytes are shown soon.
/// Promise: 5
#[test]
fn failed_write_shows_server_bytes() {
    let Some(m) = mounted(LONG) else { return };
    let reader = prepare(&m);
    assert_eq!(page(&reader, 0), b'a');
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(m.path("f")).unwrap();
    m.gate.fail("write", libc::EIO);
    let buffer = Aligned([b'z'; LEN]);
    assert!(file.write_at(&buffer.0, 0).is_err());
    let fh = m.fh("f");
    let wrote = m.rt.block_on(async {
        let at = hither_vfs::File { fh: &fh, open: None };
        let bytes = bytes::Bytes::copy_from_slice(&buffer.0);
        let how = hither_vfs::Stability::Stable;
        hither_vfs::Vfs::write(&*m.model, &root(), at, 0, bytes.into(), how).await
    });
    wrote.unwrap();
    eventually("the bytes show", || page(&reader, 0) == b'z');
    drop((reader, file));
    m.end();
}

/// Another client's change of the same length shows in an open file, although this mount has
/// changed attributes or names of the file in between.
/// Promise: 10
#[test]
fn own_change_hides_no_foreign_change() {
    for how in ["chmod", "utimes", "link", "rename", "setxattr"] {
        let Some(m) = mounted(100) else { return };
        let (reader, path) = (prepare(&m), m.path("f"));
        assert_eq!(page(&reader, 0), b'a', "{how}");
        m.foreign_write("f", 0, &[b'b'; LEN]);
        match how {
            "chmod" => fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap(),
            "utimes" => reader.set_times(fs::FileTimes::new().set_accessed(UNIX_EPOCH)).unwrap(),
            "link" => fs::hard_link(&path, m.path("g")).unwrap(),
            "rename" => fs::rename(&path, m.path("g")).unwrap(),
            _ => set_xattr(&path),
        }
        eventually(how, || page(&reader, 0) == b'b');
        drop(reader);
        m.end();
    }
}

/// While a program opens a file that another client has extended, a reader that has it open gets no
/// zeros behind the former end.
/// Promise: 7
#[test]
fn extended_file_shows_no_zeros() {
    let Some(m) = mounted(100) else { return };
    let mut written = 100;
    m.foreign_write("f", 0, &[b'x'; 100]);
    let (reader, over) = (File::open(m.path("f")).unwrap(), AtomicBool::new(false));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop(File::open(m.path("f")).unwrap());
            }
        });
        let mut at = 0;
        while written < 40_000 {
            m.foreign_write("f", written, &[b'x'; 37]);
            written += 37;
            for _ in 0..3 {
                let mut buf = [0; 4096];
                let end = reader.metadata().unwrap().len();
                let len = reader.read_at(&mut buf, at).unwrap();
                let zeros = buf[..len].iter().filter(|b| **b == 0).count();
                over.store(zeros > 0, Ordering::Relaxed);
                assert_eq!(zeros, 0, "of {len} at {at}, the length is {end}, {written} are written");
                at += len as u64;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read(m.path("f")).unwrap().len() as u64, written);
    drop(reader);
    m.end();
}

fn set_xattr(path: &Path) {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the strings end with a zero, and the value has one byte.
    let r = unsafe { libc::setxattr(path.as_ptr(), c"user.x".as_ptr(), b"1".as_ptr().cast(), 1, 0) };
    assert_eq!(r, 0, "{}", std::io::Error::last_os_error());
}

/// A reader gets no zeros of a file that another program truncates and writes again.
/// Promise: 5
#[test]
fn truncated_file_shows_no_zeros() {
    let Some(m) = mounted(LONG) else { return };
    let (path, over) = (m.path("f"), AtomicBool::new(false));
    fs::write(&path, [b'x'; 20_000]).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..300 {
                fs::write(&path, [b'x'; 20_000]).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        let (mut reads, mut with_zeros) = (0, 0);
        while !over.load(Ordering::Relaxed) {
            let bytes = fs::read(&path).unwrap();
            reads += 1;
            with_zeros += u32::from(bytes.contains(&0));
        }
        assert_eq!(with_zeros, 0, "of {reads} reads");
    });
    m.end();
}
