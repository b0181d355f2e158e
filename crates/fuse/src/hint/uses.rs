//! The use of the last object of a path by a system call: whether it opens the object, and whether
//! it follows a symbolic link.

use super::Missed;
use super::caller::{self, SystemCall};
use super::calls::{Purpose, makes_last, renames, shape};

/// The use of the last name of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Use {
    /// Flags of open(2), for a call that opens.
    pub opens: Option<i32>,
    /// The flags come from the program's memory, which the program may have changed since.
    pub doubtful: bool,
    /// The call sends to a socket or connects to it.
    pub connects: bool,
    /// The call runs a program.
    pub executes: bool,
    /// The call follows a symbolic link.
    pub follows: bool,
    /// The call makes the name, and fails if it exists. Renames do not count: mv(1) first tries
    /// each one with `RENAME_NOREPLACE`, also when it replaces a file.
    pub makes: bool,
}

impl Use {
    /// Whether the kernel opens the file.
    pub fn opens_file(self) -> bool {
        self.opens.is_some() || self.executes
    }
}

/// The use of thread `tid`'s call.
pub(crate) fn of(tid: u32) -> Result<Use, Missed> {
    let call = SystemCall::of(tid)?;
    if call.is_narrow() {
        return Err(Missed::OtherCall);
    }
    let how = |at: usize| caller::number(tid, call.args.get(at).copied().unwrap_or(0));
    Ok(of_call(&call, &how))
}

fn of_call(call: &SystemCall, how: &dyn Fn(usize) -> Option<u64>) -> Use {
    let number = call.number as i64;
    let arg = |at: usize| call.args.get(at).copied().unwrap_or(0);
    let purpose = shape(call.number).map(|shape| shape.purpose);
    let opens = match purpose {
        Some(Purpose::Open(flags)) => Some(arg(flags) as i32),
        // An unreadable structure may have any flags.
        Some(Purpose::OpenHow(at)) => {
            Some(how(at).map_or(libc::O_RDWR | libc::O_CREAT, |flags| flags as i32))
        }
        _ if is_creat(number) => Some(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC),
        _ => None,
    };
    let connects =
        matches!(number, libc::SYS_connect | libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg);
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    let makes = match opens {
        Some(flags) => flags & exclusive == exclusive,
        None => makes_last(call.number) && !renames(call.number),
    };
    let follows = match opens {
        Some(flags) => flags & libc::O_NOFOLLOW == 0 && !makes,
        None => !connects && follows(number, &arg),
    };
    let doubtful = matches!(purpose, Some(Purpose::OpenHow(_)));
    let executes = matches!(number, libc::SYS_execve | libc::SYS_execveat);
    Use { opens, doubtful, connects, executes, follows, makes }
}

/// Whether a call without an open follows a symbolic link at the end of its path.
fn follows(number: i64, arg: &dyn Fn(usize) -> u64) -> bool {
    const NOFOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;
    const FOLLOW: u64 = libc::AT_SYMLINK_FOLLOW as u64;
    const FCHMODAT2: i64 = 452;
    match number {
        libc::SYS_newfstatat | libc::SYS_utimensat | libc::SYS_faccessat2 | FCHMODAT2 => {
            arg(3) & NOFOLLOW == 0
        }
        libc::SYS_statx | libc::SYS_open_tree => arg(2) & NOFOLLOW == 0,
        libc::SYS_fchownat | libc::SYS_execveat => arg(4) & NOFOLLOW == 0,
        libc::SYS_linkat | libc::SYS_name_to_handle_at => arg(4) & FOLLOW != 0,
        libc::SYS_inotify_add_watch => arg(2) & u64::from(libc::IN_DONT_FOLLOW) == 0,
        libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_unlinkat | libc::SYS_symlinkat => false,
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_readlinkat => false,
        libc::SYS_lsetxattr | libc::SYS_lgetxattr | libc::SYS_llistxattr | libc::SYS_lremovexattr => false,
        _ => !is_old_without_following(number) && shape(number as u64).is_some(),
    }
}

#[cfg(target_arch = "x86_64")]
fn is_creat(number: i64) -> bool {
    number == libc::SYS_creat
}

#[cfg(not(target_arch = "x86_64"))]
fn is_creat(_: i64) -> bool {
    false
}

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn is_old_without_following(number: i64) -> bool {
    let of_names = [libc::SYS_rename, libc::SYS_rmdir, libc::SYS_link, libc::SYS_unlink, libc::SYS_symlink];
    let others = [libc::SYS_lstat, libc::SYS_readlink, libc::SYS_lchown, libc::SYS_mkdir, libc::SYS_mknod];
    of_names.contains(&number) || others.contains(&number)
}

#[cfg(not(target_arch = "x86_64"))]
fn is_old_without_following(_: i64) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(number: i64, args: [u64; 6]) -> Use {
        of_call(&SystemCall { number: number as u64, args, at: (0, 0) }, &|_| None)
    }

    /// Flags decide whether a call opens the object and follows a symbolic link.
    #[test]
    fn flags_decide_use_of_object() {
        let openat = |flags: i32| used(libc::SYS_openat, [0, 0, flags as u64, 0, 0, 0]);
        assert_eq!(openat(libc::O_RDONLY), Use { opens: Some(0), follows: true, ..Use::default() });
        for flags in [libc::O_NOFOLLOW, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY] {
            assert!(!openat(flags).follows);
        }
        assert!(openat(libc::O_CREAT).follows);
        let nofollow = libc::AT_SYMLINK_NOFOLLOW as u64;
        for (number, at) in [(libc::SYS_newfstatat, 3), (libc::SYS_statx, 2), (libc::SYS_fchownat, 4)] {
            let mut args = [0; 6];
            assert!(used(number, args).follows);
            args[at] = nofollow;
            assert!(!used(number, args).follows);
        }
        for number in [libc::SYS_readlinkat, libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_linkat] {
            assert!(!used(number, [0; 6]).follows, "{number}");
        }
        assert!(used(libc::SYS_execve, [0; 6]).opens_file() && !used(libc::SYS_statx, [0; 6]).opens_file());
        assert!(used(libc::SYS_execve, [0; 6]).follows && used(libc::SYS_chdir, [0; 6]).follows);
        for number in [libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_symlinkat, libc::SYS_linkat] {
            assert!(used(number, [0; 6]).makes, "{number}");
        }
        assert!(openat(libc::O_CREAT | libc::O_EXCL).makes && !openat(libc::O_CREAT).makes);
        assert!(!used(libc::SYS_unlinkat, [0; 6]).makes && !used(libc::SYS_renameat2, [0; 6]).makes);
        let connect = used(libc::SYS_connect, [0; 6]);
        assert_eq!((connect.connects, connect.follows, connect.opens), (true, false, None));
    }
}
