//! Path hints: one walk for a whole path, and right answers when there is no hint, a wrong one or a forged one.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, mounted, mounted_with};
use hither_vfs::Access;
use std::ffi::{CString, c_char};
use std::fs;
use std::path::Path;

/// Validity so long that it plays no part.
const LONG: u64 = 600_000;

fn c(path: impl AsRef<Path>) -> CString {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

/// A directory of depth 7 below `top` with a file, as another client makes them.
fn tree(m: &Mount, top: &str) -> String {
    let dir = format!("{top}/b/c/d/e/f/g");
    m.foreign_dirs(&dir);
    m.foreign_write(&format!("{dir}/h"), 0, b"contents");
    format!("{dir}/h")
}

/// Walks that `call` makes, as their paths.
fn walks(m: &Mount, call: impl FnOnce()) -> Vec<String> {
    m.gate.walks();
    call();
    m.gate.walks().into_iter().map(|w| w.path).collect()
}

/// A system call with a path that the test makes itself.
type Raw = fn(*const c_char) -> i64;

/// What the C library would not call in just this way.
const CALLS: [(&str, Raw); 18] = [
    // SAFETY (all): each passes a NUL-terminated path and buffers that live across the call.
    ("open", |p| close(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, p, libc::O_RDONLY) })),
    ("O_PATH", |p| close(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, p, libc::O_PATH) })),
    ("O_NOFOLLOW", |p| {
        close(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, p, libc::O_NOFOLLOW) })
    }),
    ("for writing", |p| close(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, p, libc::O_RDWR) })),
    ("openat2", |p| close(openat2(p, 0))),
    ("openat2 RESOLVE_NO_SYMLINKS", |p| close(openat2(p, libc::RESOLVE_NO_SYMLINKS))),
    ("fstatat", |p| unsafe {
        let mut s = std::mem::zeroed::<libc::stat>();
        libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, p, &mut s, 0)
    }),
    ("statx", |p| unsafe {
        let mut s = std::mem::zeroed::<libc::statx>();
        libc::syscall(libc::SYS_statx, libc::AT_FDCWD, p, 0, libc::STATX_BASIC_STATS, &mut s)
    }),
    ("access", |p| unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, p, libc::R_OK) }),
    ("access of effective ids", |p| unsafe {
        libc::syscall(libc::SYS_faccessat2, libc::AT_FDCWD, p, libc::R_OK, libc::AT_EACCESS)
    }),
    ("chmod", |p| unsafe { libc::syscall(libc::SYS_fchmodat, libc::AT_FDCWD, p, 0o600) }),
    ("chown", |p| unsafe { libc::syscall(libc::SYS_fchownat, libc::AT_FDCWD, p, 0, 0, 0) }),
    ("truncate", |p| unsafe { libc::syscall(libc::SYS_truncate, p, 4) }),
    ("utimens", |p| unsafe { libc::syscall(libc::SYS_utimensat, libc::AT_FDCWD, p, 0usize, 0) }),
    ("statfs", |p| unsafe {
        let mut s = std::mem::zeroed::<libc::statfs>();
        libc::syscall(libc::SYS_statfs, p, &mut s)
    }),
    ("setxattr", |p| unsafe {
        libc::syscall(libc::SYS_setxattr, p, c"user.x".as_ptr(), c"y".as_ptr(), 1, 0)
    }),
    ("listxattr", |p| unsafe { libc::syscall(libc::SYS_listxattr, p, 0usize, 0) }),
    ("unlink", |p| unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, p, 0) }),
];

fn openat2(path: *const c_char, resolve: u64) -> i64 {
    // SAFETY: a path and a structure that live across the call.
    unsafe {
        let mut how = std::mem::zeroed::<libc::open_how>();
        how.resolve = resolve;
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path, &how, size_of_val(&how))
    }
}

fn close(fd: i64) -> i64 {
    // SAFETY: a descriptor that nobody else knows, or an error, which close(2) refuses.
    if fd >= 0 { unsafe { libc::close(fd as i32) as i64 } } else { fd }
}

#[test]
fn one_walk_for_a_path_of_depth_8_whatever_the_call() {
    for validity in [LONG, 0] {
        let Some(m) = mounted(validity) else { return };
        for (i, (what, call)) in CALLS.into_iter().enumerate() {
            let path = tree(&m, &format!("a{i}"));
            let text = c(m.path(&path));
            let walked = walks(&m, || assert!(call(text.as_ptr()) >= 0, "{what}"));
            assert_eq!(walked, [path], "{what}, validity {validity}");
        }
        let stats = m.mounted().hints();
        assert_eq!((stats.used, stats.wrong), (CALLS.len() as u64, 0), "{stats:?}");
        assert_eq!((stats.ahead, stats.answered), (7 * stats.used, 7 * stats.used), "{stats:?}");
        m.end();
    }
}

#[test]
fn the_walk_asks_for_what_the_call_will_want() {
    let Some(m) = mounted(LONG) else { return };
    let want = |what: &str, call: &dyn Fn(&Path)| {
        let path = tree(&m, what);
        m.gate.walks();
        call(&m.path(&path));
        let mut walks = m.gate.walks();
        assert_eq!(walks.len(), 1, "{what}");
        walks.remove(0)
    };
    let read = want("read", &|p| assert_eq!(fs::read(p).unwrap(), b"contents"));
    assert_eq!(read.want.read_bytes, 64 << 10);
    assert!(read.cx.fresh_since.is_some());
    let stat = want("stat", &|p| assert_eq!(fs::metadata(p).unwrap().len(), 8));
    assert_eq!((stat.want, stat.cx.fresh_since), (Default::default(), None));
    let write = want("write", &|p| drop(fs::OpenOptions::new().write(true).open(p).unwrap()));
    assert_eq!(write.want.read_bytes, 0);
    // SAFETY: a NUL-terminated path.
    let access = want("access", &|p| assert_eq!(unsafe { libc::access(c(p).as_ptr(), libc::W_OK) }, 0));
    assert_eq!(access.want.access, Access::MODIFY | Access::EXTEND);
    let list = want("list", &|p| assert_eq!(fs::read_dir(p.parent().unwrap()).unwrap().count(), 1));
    assert_eq!((list.want.access, list.want.read_bytes), (Access::READ, 0));
    m.end();
}

#[test]
fn a_small_file_is_read_without_a_read() {
    let Some(m) = mounted(LONG) else { return };
    let path = tree(&m, "a");
    assert_eq!(fs::read(m.path(&path)).unwrap(), b"contents");
    assert_eq!((m.gate.calls("walk"), m.gate.calls("open"), m.gate.calls("read")), (1, 1, 0));
    // A larger one from its 65537th byte on.
    let large: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    m.foreign_write("large", 0, &large);
    assert_eq!(fs::read(m.path("large")).unwrap(), large);
    m.end();
}

#[test]
fn without_hints_names_are_asked_one_by_one() {
    let Some(m) = mounted_with(LONG, |c| c.hints = false) else { return };
    let path = tree(&m, "a");
    let walked = walks(&m, || assert_eq!(fs::metadata(m.path(&path)).unwrap().len(), 8));
    assert_eq!(walked, ["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert_eq!(m.mounted().hints().used, 0);
    m.end();
}
