//! Comparison of the tables with the numbers of the C library.

use super::*;

fn of(number: libc::c_long) -> Shape {
    shape(number as u64).unwrap_or_else(|| panic!("no shape for {number}"))
}

/// The numbers of this architecture are those of the C library.
#[test]
fn numbers_match_c_library() {
    let other = |path| Shape { paths: (path, None), purpose: Purpose::Other };
    assert_eq!(of(libc::SYS_openat), Shape { paths: (1, None), purpose: Purpose::Open(2) });
    assert_eq!(of(libc::SYS_openat2), Shape { paths: (1, None), purpose: Purpose::OpenHow(2) });
    assert_eq!(of(libc::SYS_faccessat), Shape { paths: (1, None), purpose: Purpose::Access(2) });
    assert_eq!(of(libc::SYS_faccessat2), Shape { paths: (1, None), purpose: Purpose::Access(2) });
    assert_eq!(of(libc::SYS_execve), Shape { paths: (0, None), purpose: Purpose::Execute });
    assert_eq!(of(libc::SYS_execveat), Shape { paths: (1, None), purpose: Purpose::Execute });
    for number in [libc::SYS_chdir, libc::SYS_chroot] {
        assert_eq!(of(number), Shape { paths: (0, None), purpose: Purpose::Enter });
    }
    for number in [libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_linkat] {
        assert_eq!(of(number), Shape { paths: (1, Some(3)), purpose: Purpose::Other });
        assert_eq!(renames(number as u64), number != libc::SYS_linkat);
    }
    for number in [
        libc::SYS_truncate,
        libc::SYS_statfs,
        libc::SYS_setxattr,
        libc::SYS_lsetxattr,
        libc::SYS_getxattr,
        libc::SYS_lgetxattr,
        libc::SYS_listxattr,
        libc::SYS_llistxattr,
        libc::SYS_removexattr,
        libc::SYS_lremovexattr,
    ] {
        assert_eq!(of(number), other(0), "{number}");
    }
    for number in [
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_unlinkat,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_fchmodat,
        libc::SYS_fchownat,
        libc::SYS_utimensat,
        libc::SYS_name_to_handle_at,
        libc::SYS_inotify_add_watch,
    ] {
        assert_eq!(of(number), other(1), "{number}");
    }
    assert_eq!(of(libc::SYS_readlinkat), Shape { paths: (1, None), purpose: Purpose::ReadLink });
    assert_eq!(of(libc::SYS_symlinkat), other(2));
    assert_eq!(of(libc::SYS_fanotify_mark), other(4));
    for number in [libc::SYS_read, libc::SYS_close, libc::SYS_fstat, libc::SYS_getdents64] {
        assert_eq!(shape(number as u64), None, "{number}");
    }
}

/// Calls that create a name are listed.
#[test]
fn creating_calls_are_listed() {
    for number in [
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_symlinkat,
        libc::SYS_linkat,
        libc::SYS_renameat,
        libc::SYS_renameat2,
    ] {
        assert!(makes_last(number as u64), "{number}");
    }
    #[cfg(target_arch = "x86_64")]
    for number in [
        libc::SYS_mkdir,
        libc::SYS_mknod,
        libc::SYS_symlink,
        libc::SYS_link,
        libc::SYS_rename,
        libc::SYS_creat,
    ] {
        assert!(makes_last(number as u64), "{number}");
    }
    for number in [libc::SYS_unlinkat, libc::SYS_openat, libc::SYS_newfstatat, libc::SYS_faccessat] {
        assert!(!makes_last(number as u64), "{number}");
    }
}

/// The old calls of x86_64 have the path as their first argument.
#[cfg(target_arch = "x86_64")]
#[test]
fn old_x86_calls_have_path_first() {
    assert_eq!(of(libc::SYS_open), Shape { paths: (0, None), purpose: Purpose::Open(1) });
    assert_eq!(of(libc::SYS_access), Shape { paths: (0, None), purpose: Purpose::Access(1) });
    assert_eq!(of(libc::SYS_readlink), Shape { paths: (0, None), purpose: Purpose::ReadLink });
    for number in [libc::SYS_rename, libc::SYS_link] {
        assert_eq!(of(number), Shape { paths: (0, Some(1)), purpose: Purpose::Other });
    }
    for number in [
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_creat,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_unlink,
        libc::SYS_chmod,
        libc::SYS_chown,
        libc::SYS_lchown,
        libc::SYS_mknod,
        libc::SYS_utime,
        libc::SYS_utimes,
    ] {
        assert_eq!(of(number), Shape { paths: (0, None), purpose: Purpose::Other }, "{number}");
    }
    for number in [libc::SYS_symlink, libc::SYS_futimesat] {
        assert_eq!(of(number), Shape { paths: (1, None), purpose: Purpose::Other }, "{number}");
    }
}

/// Both tables have the common calls, with equal shapes.
#[test]
fn both_tables_have_common_calls() {
    // Numbers from the kernel's tables, because the C library has only those of this architecture.
    for (x86, arm) in
        [(257, 56), (262, 79), (332, 291), (269, 48), (59, 221), (263, 35), (316, 276), (437, 437)]
    {
        assert!(x86_64(x86).is_some());
        assert_eq!(x86_64(x86), aarch64(arm), "{x86} and {arm}");
    }
    for beyond in [u64::MAX, 1 << 30 | 257, 10_000] {
        assert_eq!((x86_64(beyond), aarch64(beyond)), (None, None));
    }
}
