//! Tests without a mount: the header against the code, and calls that fail before they send a
//! request. Tests with real mounts are in crates/hither/tests/bindings.rs.

use super::*;
use crate::file::{OpenFile, hither_append, hither_close, hither_open, hither_pread, hither_pwrite};
use crate::lists::{
    CChanged, CEntry, CWalk, hither_change, hither_list, hither_next, hither_walk_end, hither_watch,
};
use crate::many::{
    CContent, CPart, CStated, hither_free_contents, hither_read_files, hither_readv, hither_stat_many,
    hither_write_file,
};
use hither_client::DirEntry;
use libc::c_void;
use std::collections::BTreeSet;
use std::mem::{offset_of, size_of};
use std::process::Command;
use std::ptr::{null, null_mut};

const HEADER: &str = include_str!("../include/hither.h");

fn said() -> (c_int, String) {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: the string belongs to this thread and is copied before another call fails.
    let line = unsafe { CStr::from_ptr(hither_error()) };
    (errno, line.to_str().unwrap().to_string())
}

/// Each function of the header exists, and the library exports no other function.
#[test]
fn the_header_has_every_function() {
    let code =
        [include_str!("lib.rs"), include_str!("file.rs"), include_str!("many.rs"), include_str!("lists.rs")];
    let defined: BTreeSet<&str> = code
        .iter()
        .flat_map(|text| text.split("extern \"C\" fn ").skip(1))
        .map(|rest| rest.split('(').next().unwrap())
        .collect();
    let header: String = HEADER.split("*/").map(|part| part.split("/*").next().unwrap()).collect();
    let declared: BTreeSet<&str> = header
        .split(';')
        .filter_map(|statement| statement.split_once('(').map(|(before, _)| before))
        .filter_map(|before| before.rsplit([' ', '*', '\n']).next())
        .filter(|name| name.starts_with("hither_"))
        .collect();
    assert_eq!(declared, defined);
    assert!(defined.len() > 30, "{defined:?}");
}

/// The compiler's layout of the header's structures equals Rust's layout.
#[test]
fn header_layout_matches_code() {
    macro_rules! layout {
        ($($name:literal $ty:ident { $($field:ident)* })*) => {
            vec![$(($name, size_of::<$ty>(), vec![$((stringify!($field), offset_of!($ty, $field))),*])),*]
        };
    }
    let layout = layout! {
        "hither_time" Time { sec nsec }
        "hither_attr" CAttr {
            mode nlink uid gid rdev_major rdev_minor size used fsid_major fsid_minor fileid atime mtime ctime change
        }
        "hither_part" CPart { path offset data len read size error }
        "hither_content" CContent { data len error }
        "hither_stated" CStated { attr error }
        "hither_entry" CEntry { path attr error }
        "hither_changed" CChanged { index attr error }
    };
    let mut program = String::from("#include \"hither.h\"\n");
    for (name, size, fields) in layout {
        program += &format!("_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");\n");
        for (field, at) in fields {
            program +=
                &format!("_Static_assert(offsetof(struct {name}, {field}) == {at}, \"{name}.{field}\");\n");
        }
    }
    compiles(&program);
}

/// The first example of the documentation compiles.
#[test]
fn the_readme_compiles() {
    let text = include_str!("../README.md");
    compiles(text.split("```c\n").nth(1).unwrap().split("```").next().unwrap());
}

/// Asserts that the C compiler accepts a program without a warning.
#[track_caller]
fn compiles(program: &str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("it.c"), program).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
    let out = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11", "-fsyntax-only", "-I", include])
        .arg(dir.path().join("it.c"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// An invalid argument sets errno and the error line, and sends no request.
#[test]
fn invalid_arguments_set_errno() {
    // SAFETY: NULL and constant strings.
    unsafe {
        assert!(hither_connect(null()).is_null());
        assert_eq!(said(), (libc::EFAULT, "connect: Bad address".into()));
        assert!(hither_connect(c"/proc".as_ptr()).is_null());
        let line = "connect /proc: /proc is not in a mount of hither that has a socket";
        assert_eq!(said(), (libc::ENOENT, line.into()));
        assert!(hither_open(null_mut(), c"f".as_ptr(), libc::O_APPEND, 0).is_null());
        let (errno, line) = said();
        assert!(errno == libc::EINVAL && line.contains("a flag other than O_RDONLY"), "{errno} {line}");
        assert!(hither_open(null_mut(), c"f".as_ptr(), libc::O_RDONLY, 0).is_null());
        assert_eq!(said(), (libc::EFAULT, "open f: Bad address".into()));
        assert_eq!(hither_pread(null_mut::<OpenFile>(), null_mut(), 1, 0), -1);
        assert_eq!(hither_readv(null_mut(), null_mut::<CPart>(), 1), -1);
        assert_eq!(hither_read_files(null_mut(), null(), 1, null_mut()), -1);
        assert!(hither_list(null_mut(), c"".as_ptr()).is_null());
        assert_eq!(hither_next(null_mut::<CWalk>(), null_mut()), -1);
        assert_eq!(hither_change(null_mut(), 0, null_mut()), -1);
        assert_eq!(said(), (libc::EFAULT, "change: Bad address".into()));
        // Freeing NULL has no effect.
        hither_disconnect(null_mut());
        hither_walk_end(null_mut());
        hither_free_contents(null_mut(), 7);
        assert_eq!(hither_close(null_mut()), 0);
    }
}

/// Lengths and counts that exceed all memory, for example `-1`, are refused before they are used.
#[test]
fn impossible_lengths_are_refused() {
    let mut parts = [0_u8; 64];
    let huge = [usize::MAX, isize::MAX as usize + 1];
    // SAFETY: the calls read no memory of these lengths.
    unsafe {
        for len in huge {
            let data: *mut c_void = parts.as_mut_ptr().cast();
            assert_eq!(hither_write_file(null_mut(), c"f".as_ptr(), data, len, 0o644), -1);
            assert_eq!(said(), (libc::EINVAL, "write f: Invalid argument".into()));
            assert_eq!(hither_append(null_mut(), data, len), -1);
            assert_eq!(hither_pwrite(null_mut(), data, len, 0), -1);
            assert_eq!(said(), (libc::EINVAL, "pwrite: Invalid argument".into()));
            assert_eq!(hither_pread(null_mut(), data, len, 0), -1);
            assert_eq!(said(), (libc::EINVAL, "pread: Invalid argument".into()));
        }
        let aligned = [const { null() }; 8];
        let names: *const *const c_char = aligned.as_ptr();
        for count in [usize::MAX, isize::MAX as usize / size_of::<usize>() + 1] {
            assert_eq!(hither_readv(null_mut(), names.cast_mut().cast(), count), -1);
            assert_eq!(said(), (libc::EINVAL, "readv: Invalid argument".into()));
            assert_eq!(hither_read_files(null_mut(), names, count, null_mut()), -1);
            assert_eq!(said(), (libc::EINVAL, "read_files: Invalid argument".into()));
            assert_eq!(hither_stat_many(null_mut(), names, count, null_mut()), -1);
            assert_eq!(said(), (libc::EINVAL, "stat_many: Invalid argument".into()));
            assert!(hither_watch(null_mut(), names, count).is_null());
            assert_eq!(said(), (libc::EINVAL, "watch: Invalid argument".into()));
        }
        // The end of a read or written range must fit into 64 bits as well.
        assert_eq!(hither_pread(null_mut(), parts.as_mut_ptr().cast(), 64, u64::MAX - 63), -1);
        assert_eq!(said(), (libc::EINVAL, "pread: Invalid argument".into()));
        assert_eq!(hither_pwrite(null_mut(), parts.as_ptr().cast(), 64, u64::MAX - 63), -1);
        assert_eq!(said(), (libc::EFBIG, "pwrite: File too large".into()));
    }
}

/// A walk that failed once ends instead of continuing.
#[test]
fn failed_entry_ends_the_walk() {
    let walk = |names: &[&str]| {
        let entry = |name: &&str| Ok(DirEntry { path: name.into(), attr: Err(ErrorKind::NotFound.into()) });
        let all: Vec<_> = names.iter().map(entry).collect();
        CWalk { entries: Box::new(all.into_iter()), shown: CString::default() }
    };
    let mut entry = CEntry { path: null(), attr: CAttr::default(), error: 0 };
    // SAFETY: the walk and the entry belong to this test.
    unsafe {
        let mut with_nul = walk(&["a", "b\0c", "d"]);
        assert_eq!(hither_next(&mut with_nul, &mut entry), 1);
        assert_eq!((CStr::from_ptr(entry.path), entry.error), (c"a", libc::ENOENT));
        assert_eq!(hither_next(&mut with_nul, &mut entry), -1);
        assert_eq!(said(), (libc::EPROTO, "next: a name with a NUL".into()));
        assert_eq!(hither_next(&mut with_nul, &mut entry), 0);
        let mut without_place = walk(&["a", "b"]);
        assert_eq!(hither_next(&mut without_place, null_mut()), -1);
        assert_eq!(said().0, libc::EFAULT);
        assert_eq!(hither_next(&mut without_place, &mut entry), 0);
    }
}

/// A panic of the library ends the call and not the program.
#[test]
fn a_panic_becomes_an_error() {
    let value = run("think", None, -1, || if true { panic!("a test's own panic") } else { Ok(0) });
    let (errno, line) = said();
    assert_eq!((value, errno), (-1, libc::EIO));
    assert!(line.starts_with("think: a defect in libhither"), "{line}");
}

/// The library's threads receive no signals.
#[test]
fn library_threads_block_signals() {
    let own = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        u64::from_str_radix(mask, 16).unwrap()
    };
    let before = own();
    let inside = without_signals(|| std::thread::spawn(own).join().unwrap());
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGALRM, libc::SIGUSR1] {
        assert!(inside & (1 << (signal - 1)) != 0, "{signal} in {inside:x}");
    }
    assert_eq!(own(), before);
}

/// The blocked signals of a thread of this process.
fn blocked(thread: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    u64::from_str_radix(mask, 16).unwrap()
}

/// A program that waits for a silent daemon can be interrupted. The library's thread that waits for
/// the daemon blocks all signals.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test of threads waits in real time")]
fn connecting_program_keeps_signals() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let daemon = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (send, own) = std::sync::mpsc::channel();
    let program = std::thread::spawn(move || {
        let own = std::fs::read_link("/proc/thread-self").unwrap();
        send.send(own.file_name().unwrap().to_str().unwrap().to_string()).unwrap();
        let socket = CString::new(socket.into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: the argument is a C string.
        unsafe { hither_connect(socket.as_ptr()) }.is_null()
    });
    let own = own.recv().unwrap();
    let (mut connection, _) = daemon.accept().unwrap();
    // After this greeting the library waits for the daemon's greeting.
    std::io::Read::read_exact(&mut connection, &mut [0; 4]).unwrap();
    let others = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|e| e.unwrap().file_name());
        tasks.map(|id| id.into_string().unwrap()).collect::<Vec<_>>()
    };
    let connecting = others().into_iter().find(|id| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
        name.is_ok_and(|name| name == "hither-connect\n")
    });
    assert!(blocked(&connecting.unwrap()) & (1 << (libc::SIGINT - 1)) != 0);
    // The program's thread restores its mask shortly after it has started the other thread.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while blocked(&own) & (1 << (libc::SIGINT - 1)) != 0 {
        assert!(std::time::Instant::now() < end, "the program takes no signals while it connects");
        std::thread::yield_now();
    }
    drop(connection);
    assert!(program.join().unwrap());
}

/// A directory's attributes as a C program sees them.
#[test]
fn attributes_are_those_of_stat() {
    let attr = Attr {
        kind: Kind::Directory,
        mode: 0o1755,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: (5, 6),
        size: 7,
        used: 8,
        fsid: (9, 10),
        fileid: 11,
        atime: (12, 13),
        mtime: (-14, 15),
        ctime: (16, 17),
        change: 18,
    };
    let c = CAttr::from(&attr);
    assert_eq!(c.mode, libc::S_IFDIR | 0o1755);
    assert_eq!((c.rdev_major, c.rdev_minor, c.fsid_major, c.fsid_minor), (5, 6, 9, 10));
    assert_eq!((c.mtime.sec, c.mtime.nsec, c.change), (-14, 15, 18));
    let (none, errno) = outcome(&Err(ErrorKind::NotFound.into()));
    assert_eq!((none.mode, errno), (0, libc::ENOENT));
}
