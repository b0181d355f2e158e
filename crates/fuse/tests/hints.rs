//! Path hints: one walk for a whole path, and right answers with a missing, wrong or forged hint.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, mounted, mounted_with};
use hither_vfs::Access;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::fs;
use std::path::Path;

/// Validity that does not end during a test.
const LONG: u64 = 600_000;

thread_local! {
    /// Unexpected walks.
    static OTHERS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// A call took so long that its lookups may count as those of several calls.
    static LATE: Cell<bool> = const { Cell::new(false) };
}

/// Records a difference in walks, which a busy machine may cause. Answers are compared by
/// assertions.
macro_rules! walked {
    ($seen:expr, $wanted:expr $(, $($what:tt)+)?) => {{
        let (seen, wanted) = (&$seen, &$wanted);
        if seen != wanted {
            let what = String::new() $(+ &format!($($what)+))?;
            let line = line!();
            OTHERS.with_borrow_mut(|all| all.push(format!("line {line}: {what} {seen:?}, not {wanted:?}")));
        }
    }};
}

/// Runs a test of walks, again on a new mount after each disturbance. A caller that is not asleep
/// has no hint. A late request counts as part of another call. In both cases the walks are not
/// compared, but the answers are.
fn undisturbed(begin: impl Fn() -> Option<Mount>, test: impl Fn(&Mount)) {
    for _ in 0..10 {
        OTHERS.take();
        LATE.set(false);
        let Some(m) = begin() else { return };
        test(&m);
        let missed = m.mounted().hints().missed;
        let busy = ["running", "moved-on", "busy"].iter().any(|why| missed.get(why).is_some_and(|n| *n > 0));
        m.end();
        let others = OTHERS.take();
        if others.is_empty() {
            return;
        }
        eprintln!("{others:#?}");
        assert!(LATE.get() || busy, "walks differ without a disturbance: {others:#?}");
    }
    panic!("each attempt was disturbed");
}

fn c(path: impl AsRef<Path>) -> CString {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

/// A directory of depth 7 below `top` with a file, created by another client.
fn tree(m: &Mount, top: &str) -> String {
    let dir = format!("{top}/b/c/d/e/f/g");
    m.foreign_dirs(&dir);
    m.foreign_write(&format!("{dir}/h"), 0, b"contents");
    format!("{dir}/h")
}

/// The paths of the walks of `call`.
fn walks(m: &Mount, call: impl FnOnce()) -> Vec<String> {
    m.gate.walks();
    on_time(call);
    m.gate.walks().into_iter().map(|w| w.path).collect()
}

/// Records a call that takes too long: its lookups may count as those of several calls, or their
/// answers may expire.
fn on_time(call: impl FnOnce()) {
    if common::seconds(call) > 0.05 {
        LATE.set(true);
    }
}

/// A system call with a path.
type Raw = fn(*const c_char) -> i64;

/// A raw system call.
fn sys(number: libc::c_long, args: [usize; 5]) -> i64 {
    // SAFETY: callers pass NUL-terminated paths and buffers that are large enough and live across
    // the call.
    unsafe { libc::syscall(number, args[0], args[1], args[2], args[3], args[4]) }
}

const CWD: usize = libc::AT_FDCWD as isize as usize;

fn open(path: *const c_char, flags: i32) -> i64 {
    close(sys(libc::SYS_openat, [CWD, path as usize, flags as usize, 0, 0]))
}

/// A system call that fills a buffer: the arguments before the path, and those between the path and
/// the buffer.
fn filled(number: libc::c_long, first: &[usize], path: *const c_char, between: &[usize]) -> i64 {
    let mut buf = [0u64; 64];
    let (path, buf) = ([path as usize], [buf.as_mut_ptr() as usize]);
    let args = first.iter().chain(&path).chain(between).chain(&buf);
    let mut all = [0; 5];
    all.iter_mut().zip(args).for_each(|(to, from)| *to = *from);
    sys(number, all)
}

const CALLS: [(&str, Raw); 18] = [
    ("open", |p| open(p, libc::O_RDONLY)),
    ("O_PATH", |p| open(p, libc::O_PATH)),
    ("O_NOFOLLOW", |p| open(p, libc::O_NOFOLLOW)),
    ("for writing", |p| open(p, libc::O_RDWR)),
    ("openat2", |p| close(openat2(p, 0))),
    ("openat2 RESOLVE_NO_SYMLINKS", |p| close(openat2(p, libc::RESOLVE_NO_SYMLINKS))),
    ("fstatat", |p| filled(libc::SYS_newfstatat, &[CWD], p, &[])),
    ("statx", |p| filled(libc::SYS_statx, &[CWD], p, &[0, libc::STATX_BASIC_STATS as usize])),
    ("access", |p| sys(libc::SYS_faccessat, [CWD, p as usize, libc::R_OK as usize, 0, 0])),
    ("access of effective ids", |p| {
        sys(libc::SYS_faccessat2, [CWD, p as usize, libc::R_OK as usize, libc::AT_EACCESS as usize, 0])
    }),
    ("chmod", |p| sys(libc::SYS_fchmodat, [CWD, p as usize, 0o600, 0, 0])),
    ("chown", |p| sys(libc::SYS_fchownat, [CWD, p as usize, 0, 0, 0])),
    ("truncate", |p| sys(libc::SYS_truncate, [p as usize, 4, 0, 0, 0])),
    ("utimens", |p| sys(libc::SYS_utimensat, [CWD, p as usize, 0, 0, 0])),
    ("statfs", |p| filled(libc::SYS_statfs, &[], p, &[])),
    ("setxattr", |p| {
        let (name, value) = (c"user.x".as_ptr() as usize, c"y".as_ptr() as usize);
        sys(libc::SYS_setxattr, [p as usize, name, value, 1, 0])
    }),
    ("listxattr", |p| sys(libc::SYS_listxattr, [p as usize, 0, 0, 0, 0])),
    ("unlink", |p| sys(libc::SYS_unlinkat, [CWD, p as usize, 0, 0, 0])),
];

fn openat2(path: *const c_char, resolve: u64) -> i64 {
    // `struct open_how`: flags, mode, resolve.
    let how = [0u64, 0, resolve];
    sys(libc::SYS_openat2, [CWD, path as usize, how.as_ptr() as usize, size_of_val(&how), 0])
}

fn close(fd: i64) -> i64 {
    if fd >= 0 { sys(libc::SYS_close, [fd as usize, 0, 0, 0, 0]) } else { fd }
}

/// Each system call with a path of depth 8 sends one walk.
#[test]
fn deep_path_needs_one_walk() {
    for validity in [LONG, 0] {
        undisturbed(
            || mounted(validity),
            |m| {
                for (i, (what, call)) in CALLS.into_iter().enumerate() {
                    let path = tree(m, &format!("a{i}"));
                    let text = c(m.path(&path));
                    let walked = walks(m, || assert!(call(text.as_ptr()) >= 0, "{what}"));
                    walked!(walked, [path], "{what}, validity {validity}");
                }
                let stats = m.mounted().hints();
                walked!((stats.used, stats.wrong), (CALLS.len() as u64, 0), "{stats:?}");
                walked!((stats.ahead, stats.answered), (7 * stats.used, 7 * stats.used), "{stats:?}");
            },
        );
    }
}

/// The walk of a call fetches the data that the call needs: first bytes, rights, or no extras.
#[test]
fn walk_fetches_needed_data() {
    undisturbed(
        || mounted(LONG),
        |m| {
            let want = |what: &str, call: &dyn Fn(&Path)| {
                let path = tree(m, what);
                m.gate.walks();
                on_time(|| call(&m.path(&path)));
                let mut walks = m.gate.walks();
                walked!(walks.len(), 1, "{what}");
                walks.remove(0)
            };
            let read = want("read", &|p| assert_eq!(fs::read(p).unwrap(), b"contents"));
            walked!(read.want.read_bytes, 64 << 10);
            let stat = want("stat", &|p| assert_eq!(fs::metadata(p).unwrap().len(), 8));
            walked!(stat.want, hither_vfs::WalkRequest::default());
            let write = want("write", &|p| drop(fs::OpenOptions::new().write(true).open(p).unwrap()));
            walked!(write.want.read_bytes, 0);
            let access = want("access", &|p| {
                let path = c(p);
                assert_eq!(
                    sys(libc::SYS_faccessat, [CWD, path.as_ptr() as usize, libc::W_OK as usize, 0, 0]),
                    0
                );
            });
            walked!(access.want.access, Access::MODIFY | Access::EXTEND);
            let list = want("list", &|p| assert_eq!(fs::read_dir(p.parent().unwrap()).unwrap().count(), 1));
            walked!((list.want.access, list.want.read_bytes), (Access::READ, 0));
        },
    );
}

/// A small file is read with one walk and one open.
#[test]
fn small_file_needs_no_read() {
    undisturbed(
        || mounted(LONG),
        |m| {
            let path = tree(m, "a");
            on_time(|| assert_eq!(fs::read(m.path(&path)).unwrap(), b"contents"));
            walked!((m.gate.calls("walk"), m.gate.calls("open"), m.gate.calls("read")), (1, 1, 0));
            // The bytes of a larger file from byte 65,537 on.
            let large: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
            m.foreign_write("large", 0, &large);
            assert_eq!(fs::read(m.path("large")).unwrap(), large);
        },
    );
}

/// Without hints each name of a path is looked up singly.
#[test]
fn without_hints_names_walk_singly() {
    let Some(m) = mounted_with(LONG, |c| c.hints = false) else { return };
    let path = tree(&m, "a");
    let walked = walks(&m, || assert_eq!(fs::metadata(m.path(&path)).unwrap().len(), 8));
    assert_eq!(walked, ["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert_eq!(m.mounted().hints().used, 0);
    m.end();
}

/// The walks of stat(2) on a path below the mount point.
fn stat_walks(m: &Mount, path: &str, expected: Result<u64, i32>) -> Vec<String> {
    let full = format!("{}/{path}", m.dir.display());
    walks(m, || {
        let found = fs::metadata(&full).map(|s| s.len()).map_err(|e| e.raw_os_error().unwrap());
        assert_eq!(found, expected, "{path}");
    })
}

/// A rename or link sends one walk for each of its paths.
#[test]
fn rename_and_link_walk_once() {
    undisturbed(
        || mounted(LONG),
        |m| {
            let (from, to) = (tree(m, "from"), tree(m, "to"));
            let to = to.replace('h', "new");
            let walked = walks(m, || fs::rename(m.path(&from), m.path(&to)).unwrap());
            walked!(walked, [from, to.clone()]);
            let link = tree(m, "link").replace('h', "new");
            let walked = walks(m, || fs::hard_link(m.path(&to), m.path(&link)).unwrap());
            walked!(walked, [link]);
        },
    );
}

/// execve(2) finds its program with one walk.
#[test]
fn exec_needs_one_walk() {
    undisturbed(
        || mounted(LONG),
        |m| {
            m.foreign_dirs("a/b/c");
            m.foreign_write("a/b/c/true", 0, &fs::read("/bin/true").unwrap());
            let set = hither_vfs::SetAttr { mode: Some(0o755), ..Default::default() };
            m.foreign_setattr("a/b/c/true", &set);
            let run =
                || assert!(std::process::Command::new(m.path("a/b/c/true")).status().unwrap().success());
            walked!(walks(m, run), ["a/b/c/true"]);
        },
    );
}

/// A call that creates a name sends one walk.
#[test]
fn create_needs_one_walk() {
    undisturbed(
        || mounted(LONG),
        |m| {
            tree(m, "a");
            let create = || drop(fs::File::create(m.path("a/b/c/d/e/f/g/new")).unwrap());
            walked!(walks(m, create), ["a/b/c/d/e/f/g/new"]);
            tree(m, "d");
            let mkdir = || fs::create_dir(m.path("d/b/c/d/e/f/g/new")).unwrap();
            walked!(walks(m, mkdir), ["d/b/c/d/e/f/g/new"]);
        },
    );
}

/// A path with a symbolic link continues with a second walk in the target.
#[test]
fn walk_continues_in_link_target() {
    for validity in [LONG, 0] {
        undisturbed(
            || mounted(validity),
            |m| {
                let n = if validity == 0 { 3 } else { 1 };
                for i in 0..n {
                    tree(m, &format!("t{i}"));
                    m.foreign_dirs(&format!("l{i}/x"));
                    m.foreign_symlink(&format!("l{i}/x/down"), "y");
                    m.foreign_dirs(&format!("l{i}/x/y/z"));
                    m.foreign_write(&format!("l{i}/x/y/z/f"), 0, b"12345");
                    let walked = stat_walks(m, &format!("l{i}/x/down/z/f"), Ok(5));
                    walked!(walked, [format!("l{i}/x/down/z/f"), "y/z/f".into()]);
                    // A link with `..`, and a link from the root of the machine.
                    m.foreign_symlink(&format!("l{i}/up"), &format!("../t{i}/b/c"));
                    let walked = stat_walks(m, &format!("l{i}/up/d/e/f/g/h"), Ok(8));
                    let rest = format!("t{i}/b/c/d/e/f/g/h");
                    walked!(walked.last(), Some(&rest), "{walked:?}");
                    m.foreign_symlink(&format!("l{i}/root"), &format!("{}/t{i}/b/c", m.dir.display()));
                    let walked = stat_walks(m, &format!("l{i}/root/d/e/f/g/h"), Ok(8));
                    walked!(walked.len() <= 3, true, "{walked:?}");
                }
            },
        );
    }
}

/// A path with a link in the kernel's cache is walked in the same way as without the cache.
#[test]
fn walk_follows_link_cached_by_kernel() {
    for validity in [0, 100] {
        undisturbed(
            || mounted(validity),
            |m| {
                m.foreign_dirs("l/x/y/z");
                m.foreign_symlink("l/x/down", "y");
                m.foreign_write("l/x/y/z/f", 0, b"12345");
                for _ in 0..4 {
                    walked!(stat_walks(m, "l/x/down/z/f", Ok(5)), ["l/x/down/z/f", "y/z/f"]);
                    common::pause(validity + 50);
                }
                walked!(m.requests("READLINK"), 1, "the kernel keeps the target");
                // Another client changes the target of the link.
                m.foreign_dirs("l/x/new/z");
                m.foreign_write("l/x/new/z/f", 0, b"123");
                m.foreign_unlink("l/x/down");
                m.foreign_symlink("l/x/down", "new");
                // The kernel looks up a name twice when it leads to another object.
                walked!(stat_walks(m, "l/x/down/z/f", Ok(3)), ["l/x/down/z/f", "down/z/f", "new/z/f"]);
            },
        );
    }
}

/// A symbolic link at the end of a path is followed only if the flags of the call say so.
#[test]
fn flags_decide_last_link() {
    undisturbed(
        || mounted(LONG),
        |m| {
            tree(m, "a");
            m.foreign_symlink("a/b/c/d/link", "e/f/g/h");
            m.foreign_symlink("a/b/c/d/loop", "loop");
            m.foreign_symlink("a/b/c/d/dangling", "nowhere/at/all");
            walked!(stat_walks(m, "a/b/c/d/link", Ok(8)), ["a/b/c/d/link", "e/f/g/h"]);
            assert!(fs::symlink_metadata(m.path("a/b/c/d/link")).unwrap().is_symlink());
            assert_eq!(fs::read_link(m.path("a/b/c/d/link")).unwrap(), Path::new("e/f/g/h"));
            assert_eq!(fs::metadata(m.path("a/b/c/d/loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
            walked!(stat_walks(m, "a/b/c/d/dangling", Err(libc::ENOENT)).len(), 2);
            use std::os::unix::fs::OpenOptionsExt;
            let open = |flags: i32, path: &str| {
                let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(m.path(path));
                opened.map(drop).map_err(|e| e.raw_os_error().unwrap())
            };
            assert_eq!(open(libc::O_NOFOLLOW, "a/b/c/d/link"), Err(libc::ELOOP));
            assert_eq!(open(libc::O_NOFOLLOW | libc::O_PATH, "a/b/c/d/link"), Ok(()));
            assert_eq!(open(0, "a/b/c/d/link"), Ok(()));
            assert_eq!(open(libc::O_DIRECTORY, "a/b/c/d/link"), Err(libc::ENOTDIR));
        },
    );
}

/// Paths with dots, repeated slashes, repeated names and missing names have right answers and few
/// walks.
#[test]
fn dots_slashes_and_missing_names() {
    undisturbed(
        || mounted(0),
        |m| {
            tree(m, "a");
            walked!(stat_walks(m, "a/./b//c/././d/e", Ok(0)), ["a/b/c/d/e"]);
            walked!(stat_walks(m, "a/b/c///", Ok(0)), ["a/b/c"]);
            // The walk stops at `..`, and a second walk continues after it.
            walked!(stat_walks(m, "a/b/../b/c/d", Ok(0)), ["a/b", "b/c/d"]);
            walked!(stat_walks(m, "a/b/../../a/b/c", Ok(0)), ["a/b", "a/b/c"]);
            walked!(stat_walks(m, "a/b/c/none", Err(libc::ENOENT)), ["a/b/c/none"]);
            walked!(stat_walks(m, "a/none/c/d", Err(libc::ENOENT)), ["a/none/c/d"]);
            walked!(stat_walks(m, "a/b/c/d/e/f/g/h/i", Err(libc::ENOTDIR)), ["a/b/c/d/e/f/g/h/i"]);
            walked!(stat_walks(m, "a/b/c/d/e/f/g/h/", Err(libc::ENOTDIR)), ["a/b/c/d/e/f/g/h"]);
            // The same buffer with new contents, and repeated calls.
            for _ in 0..3 {
                walked!(stat_walks(m, "a/b/c/d/e/f/g/h/", Err(libc::ENOTDIR)), ["a/b/c/d/e/f/g/h"]);
                walked!(stat_walks(m, "a/b/c/d/e/f/g/x/", Err(libc::ENOENT)), ["a/b/c/d/e/f/g/x"]);
            }
            // The same name several times.
            m.foreign_dirs("b/b/b/a/b/b");
            walked!(stat_walks(m, "b/b/b/a/b/b", Ok(0)), ["b/b/b/a/b/b"]);
        },
    );
}

/// Relative paths and paths below a directory descriptor are walked once.
#[test]
fn relative_paths_and_directory_descriptors() {
    use rustix::fs::{AtFlags, Mode, OFlags, openat, statat};
    undisturbed(
        || mounted(0),
        |m| {
            tree(m, "a");
            let dir = fs::File::open(m.path("a/b/c")).unwrap();
            let walked = walks(m, || assert!(statat(&dir, "d/e/f/g/h", AtFlags::empty()).is_ok()));
            walked!(walked, ["d/e/f/g/h"]);
            walked!(
                walks(m, || drop(openat(&dir, "./d/e/", OFlags::RDONLY, Mode::empty()).unwrap())),
                ["d/e"]
            );
            drop(dir);
            let here = walks(m, || {
                let mut stat = std::process::Command::new("stat");
                assert!(
                    stat.args(["-c", "", "f/g/h"])
                        .current_dir(m.path("a/b/c/d/e"))
                        .status()
                        .unwrap()
                        .success()
                );
            });
            walked!(here, ["a/b/c/d/e", "f/g/h"]);
        },
    );
}

/// The restrictions of openat2(2) hold.
#[test]
fn openat2_restrictions_hold() {
    let Some(m) = mounted(LONG) else { return };
    tree(&m, "a");
    m.foreign_symlink("a/link", "b/c");
    m.foreign_symlink("a/away", "/etc");
    let open = |path: &str, resolve: u64| {
        let got = openat2(c(m.path(path)).as_ptr(), resolve);
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        if close(got) >= 0 { Ok(()) } else { Err(errno) }
    };
    assert_eq!(open("a/link/d/e/f/g/h", libc::RESOLVE_NO_SYMLINKS), Err(libc::ELOOP));
    assert_eq!(open("a/link/d/e/f/g/h", 0), Ok(()));
    assert_eq!(open("a/b/c/d/e/f/g/h", libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS), Ok(()));
    assert_eq!(open("a/b/c/d/e/f/g/h", libc::RESOLVE_NO_XDEV), Err(libc::EXDEV));
    assert_eq!(open("a/b/c/d/e/f/g/h", libc::RESOLVE_BENEATH), Err(libc::EXDEV));
    let dir = fs::File::open(m.path("a")).unwrap();
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    let beneath = |path: &str, resolve| {
        rustix::fs::openat2(&dir, path, OFlags::RDONLY, Mode::empty(), resolve)
            .map(drop)
            .map_err(|e| e.raw_os_error())
    };
    assert_eq!(beneath("link/d/e/f/g/h", ResolveFlags::BENEATH), Ok(()));
    assert_eq!(beneath("link/../../../a/b", ResolveFlags::BENEATH), Err(libc::EXDEV));
    assert_eq!(beneath("away/passwd", ResolveFlags::BENEATH), Err(libc::EXDEV));
    // With IN_ROOT the root of the link is the directory.
    assert_eq!(beneath("away/passwd", ResolveFlags::IN_ROOT), Err(libc::ENOENT));
    assert_eq!(beneath("../../b/c/d/e/f/g/h", ResolveFlags::IN_ROOT), Ok(()));
    drop(dir);
    m.end();
}

/// Mounts over and inside a path have right answers.
#[test]
fn mounts_over_and_inside_the_path() {
    undisturbed(
        || mounted(LONG),
        |m| {
            tree(m, "a");
            tree(m, "z");
            let bind = |from: &str, to: &str| {
                let ok = std::process::Command::new("mount")
                    .args(["--bind"])
                    .args([m.path(from), m.path(to)])
                    .status();
                assert!(ok.unwrap().success());
            };
            let unmount = |at: &str| {
                assert!(std::process::Command::new("umount").arg(m.path(at)).status().unwrap().success());
            };
            // Another file system inside the mount.
            let other = std::env::temp_dir().join(format!("hither-hints-{}", std::process::id()));
            fs::create_dir_all(other.join("d/e")).unwrap();
            fs::write(other.join("d/e/f"), b"other").unwrap();
            let ok =
                std::process::Command::new("mount").arg("--bind").arg(&other).arg(m.path("a/b/c")).status();
            assert!(ok.unwrap().success());
            assert_eq!(fs::read(m.path("a/b/c/d/e/f")).unwrap(), b"other");
            assert_eq!(
                fs::metadata(m.path("a/b/c/d/e/f/g")).unwrap_err().raw_os_error(),
                Some(libc::ENOTDIR)
            );
            unmount("a/b/c");
            assert_eq!(fs::metadata(m.path("a/b/c/d/e/f/g/h")).unwrap().len(), 8);
            // A bind mount inside the mount: the path above it differs from the names of the
            // directory.
            m.foreign_dirs("bound");
            bind("z/b/c", "bound");
            walked!(stat_walks(m, "bound/d/e/f/g/h", Ok(8)).len(), 1);
            unmount("bound");
            fs::remove_dir_all(&other).unwrap();
        },
    );
}

/// Programs in another root, mount namespace or process namespace have hints.
#[test]
fn other_root_and_namespace_have_hints() {
    undisturbed(
        || mounted(0),
        |m| {
            tree(m, "a");
            m.foreign_dirs("bin");
            let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|p| Path::new(p).exists());
            // In its own root the path starts below the mount point: `/a/b/…`.
            if let Some(busybox) = busybox {
                m.foreign_write("bin/busybox", 0, &fs::read(busybox).unwrap());
                let set = hither_vfs::SetAttr { mode: Some(0o755), ..Default::default() };
                m.foreign_setattr("bin/busybox", &set);
                let run = || {
                    let mut c = std::process::Command::new("chroot");
                    c.arg(&m.dir).args(["/bin/busybox", "stat", "-c", "%s", "/a/b/c/d/e/f/g/h"]);
                    assert_eq!(String::from_utf8(c.output().unwrap().stdout).unwrap().trim(), "8");
                };
                walked!(walks(m, run).contains(&"a/b/c/d/e/f/g/h".to_string()), true);
            } else {
                // SAFETY: between fork and exec only a system call is made.
                let run = || unsafe {
                    let (root, file) = (c(&m.dir), c"/a/b/c/d/e/f/g/h");
                    let child = libc::fork();
                    if child == 0 {
                        let mut s = std::mem::zeroed::<libc::stat>();
                        let ok = libc::chroot(root.as_ptr()) == 0 && libc::stat(file.as_ptr(), &mut s) == 0;
                        libc::_exit(if ok && s.st_size == 8 { 0 } else { 1 });
                    }
                    let mut status = 0;
                    assert_eq!((libc::waitpid(child, &mut status, 0), status), (child, 0));
                };
                walked!(walks(m, run), ["a/b/c/d/e/f/g/h"]);
            }
            let elsewhere = || {
                let script =
                    format!("mount --bind {0} /mnt && stat -c %s /mnt/a/b/c/d/e/f/g/h", m.dir.display());
                let mut c = std::process::Command::new("unshare");
                let out = c.args(["--mount", "sh", "-c", &script]).output().unwrap();
                assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), "8");
            };
            walked!(walks(m, elsewhere).contains(&"a/b/c/d/e/f/g/h".to_string()), true);
            // Threads in another process namespace are visible with their numbers in this one.
            let inside = || {
                let mut c = std::process::Command::new("unshare");
                let path = m.path("a/b/c/d/e/f/g/h");
                let out = c.args(["--pid", "--fork", "stat", "-c", "%s"]).arg(path).output().unwrap();
                assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), "8");
            };
            walked!(walks(m, inside), ["a/b/c/d/e/f/g/h"]);
        },
    );
}

/// A walk ends at a directory that the caller may not search.
#[test]
fn unsearchable_directory_ends_walk() {
    let Some(m) = mounted(LONG) else { return };
    tree(&m, "a");
    m.foreign_setattr("a/b/c", &hither_vfs::SetAttr { mode: Some(0o700), ..Default::default() });
    let stat = |uid| common::user_can(&m.dir, uid, uid, &[], "stat $M/a/b/c/d/e/f/g/h");
    assert!(!stat(5001));
    assert!(stat(0));
    assert!(!stat(5001), "the superuser's walk is no answer for other users");
    let list = common::as_user(&m.dir, 5001, 5001, &[], "cat $M/a/b/c/d/e/f/g/h");
    assert!(String::from_utf8_lossy(&list.stderr).contains("Permission denied"));
    m.end();
}

/// An open sees another client's write with one walk, and is as fresh as the first lookup of its
/// call.
#[test]
fn walk_keeps_close_to_open() {
    undisturbed(
        || mounted(0),
        |m| {
            let path = tree(m, "a");
            for i in 0..5 {
                let text = format!("contents {i}");
                m.foreign_write(&path, 0, text.as_bytes());
                assert_eq!(fs::read(m.path(&path)).unwrap(), text.as_bytes());
            }
            // An open without lookups is as fresh as the open, and an open with lookups as fresh as
            // the first lookup.
            let mut opened = None;
            on_time(|| opened = Some(fs::File::open(m.path(&path)).unwrap()));
            let f = opened.unwrap();
            let walk = m.gate.walks().pop().unwrap();
            walked!(m.gate.last_open().fresh_since.unwrap() <= walk.at, true, "as fresh as its first lookup");
            let again =
                fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&f))).unwrap();
            assert!(m.gate.last_open().fresh_since.unwrap() > walk.at);
            drop((f, again));
        },
    );
}

/// Without close-to-open an open has no freshness requirement.
#[test]
fn without_close_to_open_validity_suffices() {
    let Some(m) = mounted_with(0, |c| c.close_to_open = false) else { return };
    let path = tree(&m, "a");
    assert_eq!(fs::read(m.path(&path)).unwrap(), b"contents");
    assert_eq!(m.gate.last_open().fresh_since, None);
    m.end();
}

/// A name that the mount changes during a walk is not answered from the walk.
#[test]
fn local_change_outdates_walk() {
    let Some(m) = mounted(0) else { return };
    tree(&m, "a");
    // Between the first and the last lookup a program of this machine writes, removes and creates
    // names.
    let (dir, path) = (m.path("a/b/c/d/e/f/g"), m.path("a/b/c/d/e/f/g/h"));
    let held = std::os::fd::OwnedFd::from(fs::File::open(&dir).unwrap());
    let held = std::sync::Arc::new(held);
    for round in 0..6 {
        let (once, held) = (std::sync::atomic::AtomicBool::new(false), held.clone());
        let (busy, done) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel::<()>());
        let worker = std::thread::spawn(move || {
            use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
            busy.1.recv().unwrap();
            if round % 2 == 0 {
                let flags = OFlags::WRONLY | OFlags::APPEND;
                let f = fs::File::from(openat(&*held, "h", flags, Mode::empty()).unwrap());
                std::io::Write::write_all(&mut &f, b"more").unwrap();
            } else {
                unlinkat(&*held, "h", AtFlags::empty()).unwrap();
                openat(&*held, "h", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o644)).unwrap();
            }
            done.0.send(()).unwrap();
        });
        let (busy, done) = (busy.0, std::sync::Mutex::new(done.1));
        let started = std::sync::Mutex::new(busy);
        m.gate.at_peek(move |name| {
            // At the lookup of the last but one name, because the worker's own lookups need the
            // other reading thread.
            if name == "f" && !once.swap(true, std::sync::atomic::Ordering::SeqCst) {
                started.lock().unwrap().send(()).unwrap();
                done.lock().unwrap().recv().unwrap();
            }
        });
        let expected = if round % 2 == 0 { 4 } else { 0 };
        let before = if round == 0 { 8 } else { 0 };
        assert_eq!(fs::metadata(&path).unwrap().len(), before + expected, "round {round}");
        m.gate.at_peek(|_| ());
        worker.join().unwrap();
    }
    drop(held);
    m.end();
}

/// Calls of io_uring have no hint and right answers.
#[test]
fn io_uring_open_needs_no_hint() {
    let Some(m) = mounted(0) else { return };
    let path = tree(&m, "a");
    let text = c(m.path(&path));
    let mut opened = None;
    let walked = walks(&m, || opened = common::uring_open(&text));
    match opened {
        None => eprintln!("skipped: no io_uring"),
        Some(fd) => {
            assert!(fd >= 0, "{fd}");
            close(i64::from(fd));
            assert_eq!(walked, ["a", "b", "c", "d", "e", "f", "g", "h"]);
        }
    }
    m.end();
}

/// A hint costs less than 200 µs.
#[test]
fn hint_cost_is_bounded() {
    use rustix::fs::{AtFlags, statat};
    // The fastest calls, because other work of the machine slows single calls, and a hint slows
    // each call.
    let cost = |hints: bool| {
        let m = mounted_with(0, |c| c.hints = hints)?;
        m.foreign_dirs("a");
        m.foreign_write("a/f", 0, b"x");
        let dir = fs::File::open(m.path("a")).unwrap();
        let stat = || assert!(statat(&dir, "f", AtFlags::empty()).is_ok());
        let mut times: Vec<f64> = (0..2000).map(|_| 1e6 * common::seconds(stat)).collect();
        times.sort_by(f64::total_cmp);
        drop(dir);
        assert!(!hints || m.mounted().hints().used > 1000);
        m.end();
        Some([times[200], times[1000], times[1800]])
    };
    common::once_below("µs that a hint costs", 200.0, || {
        let (Some(without), Some(with)) = (cost(false), cost(true)) else { return 0.0 };
        eprintln!("a look-up, p10, median and p90: {without:.1?} µs, with a hint {with:.1?} µs");
        with[0] - without[0]
    });
}
