//! System calls with paths: the position of the path in the arguments, and the purpose of the call.
//!
//! The numbers are those of x86_64 and aarch64 (the generic table), from the kernel's
//! `syscall_64.tbl` and `asm-generic/unistd.h`. Mount and quota calls are left out, because their
//! speed is not important.

/// The purpose of a system call, as far as it predicts further requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// open(2) with flags in this argument.
    Open(usize),
    /// openat2(2) with `struct open_how` at this argument.
    OpenHow(usize),
    /// execve(2): runs a program.
    Execute,
    /// access(2) with a mask in this argument.
    Access(usize),
    /// Changes the working or root directory.
    Enter,
    /// readlink(2).
    ReadLink,
    /// Another purpose.
    Other,
}

/// The argument numbers of a call's paths: the first, and for renames and links the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub paths: (usize, Option<usize>),
    pub purpose: Purpose,
}

const fn one(path: usize, purpose: Purpose) -> Option<Shape> {
    Some(Shape { paths: (path, None), purpose })
}

const fn two(first: usize, second: usize) -> Option<Shape> {
    Some(Shape { paths: (first, Some(second)), purpose: Purpose::Other })
}

/// Shape of a system call on this architecture.
pub(crate) fn shape(number: u64) -> Option<Shape> {
    if cfg!(target_arch = "x86_64") {
        x86_64(number)
    } else if cfg!(target_arch = "aarch64") {
        aarch64(number)
    } else {
        None
    }
}

/// Whether a call creates the last name of its last path. For open(2) the flags decide.
pub(crate) fn makes_last(number: u64) -> bool {
    if cfg!(target_arch = "x86_64") {
        // rename, mkdir, creat, link, symlink, mknod, mkdirat, mknodat, renameat, linkat,
        // symlinkat, renameat2
        matches!(number, 82 | 83 | 85 | 86 | 88 | 133 | 258 | 259 | 264..=266 | 316)
    } else {
        // mknodat, mkdirat, symlinkat, linkat, renameat, renameat2
        cfg!(target_arch = "aarch64") && matches!(number, 33 | 34 | 36..=38 | 276)
    }
}

/// Whether a call is rename(2), renameat(2) or renameat2(2).
pub(crate) fn renames(number: u64) -> bool {
    if cfg!(target_arch = "x86_64") {
        matches!(number, 82 | 264 | 316)
    } else {
        cfg!(target_arch = "aarch64") && matches!(number, 38 | 276)
    }
}

/// Newer calls, with the same numbers on all architectures.
fn common(number: u64) -> Option<Shape> {
    match number {
        // open_tree, fchmodat2, setxattrat to removexattrat, file_getattr, file_setattr
        428 | 452 | 463..=466 | 468 | 469 => one(1, Purpose::Other),
        // openat2
        437 => one(1, Purpose::OpenHow(2)),
        // faccessat2
        439 => one(1, Purpose::Access(2)),
        _ => None,
    }
}

pub(crate) fn x86_64(number: u64) -> Option<Shape> {
    match number {
        // open
        2 => one(0, Purpose::Open(1)),
        // openat
        257 => one(1, Purpose::Open(2)),
        // access, faccessat
        21 => one(0, Purpose::Access(1)),
        269 => one(1, Purpose::Access(2)),
        // execve, execveat
        59 => one(0, Purpose::Execute),
        322 => one(1, Purpose::Execute),
        // chdir, chroot
        80 | 161 => one(0, Purpose::Enter),
        // rename, link; renameat, linkat, renameat2
        82 | 86 => two(0, 1),
        264 | 265 | 316 => two(1, 3),
        // stat, lstat, truncate, mkdir, rmdir, creat, unlink, readlink
        4 | 6 | 76 | 83 | 84 | 85 | 87 => one(0, Purpose::Other),
        // readlink, readlinkat
        89 => one(0, Purpose::ReadLink),
        267 => one(1, Purpose::ReadLink),
        // chmod, chown, lchown, utime, mknod, statfs
        90 | 92 | 94 | 132 | 133 | 137 => one(0, Purpose::Other),
        // setxattr, lsetxattr, getxattr, lgetxattr, listxattr, llistxattr, removexattr,
        // lremovexattr, utimes
        188 | 189 | 191 | 192 | 194 | 195 | 197 | 198 | 235 => one(0, Purpose::Other),
        // symlink, inotify_add_watch, mkdirat, mknodat, fchownat, futimesat, newfstatat, unlinkat
        88 | 254 | 258..=263 => one(1, Purpose::Other),
        // fchmodat, utimensat, name_to_handle_at, statx
        268 | 280 | 303 | 332 => one(1, Purpose::Other),
        // symlinkat
        266 => one(2, Purpose::Other),
        // fanotify_mark
        301 => one(4, Purpose::Other),
        _ => common(number),
    }
}

pub(crate) fn aarch64(number: u64) -> Option<Shape> {
    match number {
        // openat
        56 => one(1, Purpose::Open(2)),
        // faccessat
        48 => one(1, Purpose::Access(2)),
        // execve, execveat
        221 => one(0, Purpose::Execute),
        281 => one(1, Purpose::Execute),
        // chdir, chroot
        49 | 51 => one(0, Purpose::Enter),
        // linkat, renameat, renameat2
        37 | 38 | 276 => two(1, 3),
        // setxattr, lsetxattr, getxattr, lgetxattr, listxattr, llistxattr, removexattr,
        // lremovexattr, statfs, truncate
        5 | 6 | 8 | 9 | 11 | 12 | 14 | 15 | 43 | 45 => one(0, Purpose::Other),
        // inotify_add_watch, mknodat, mkdirat, unlinkat, fchmodat, fchownat, newfstatat
        27 | 33 | 34 | 35 | 53 | 54 | 79 => one(1, Purpose::Other),
        // readlinkat
        78 => one(1, Purpose::ReadLink),
        // utimensat, name_to_handle_at, statx
        88 | 264 | 291 => one(1, Purpose::Other),
        // symlinkat
        36 => one(2, Purpose::Other),
        // fanotify_mark
        263 => one(4, Purpose::Other),
        _ => common(number),
    }
}

#[cfg(test)]
mod tests;
