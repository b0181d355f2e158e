//! Negotiation of the capabilities with the kernel.

use crate::abi::init_flags;
use crate::mount::Config;

/// The capabilities that the daemon uses.
///
/// These flags are left out:
/// - WRITEBACK_CACHE would make the kernel the authority for length and times, hide other clients'
///   writes, and exclude passthrough.
/// - AUTO_INVAL_DATA drops a file's pages after each own write, because the modification time
///   changed. It is used for mounts that need its GETATTR before each read(2). With
///   EXPLICIT_INVAL_DATA the daemon decides, by the change attribute. But the kernel ignores
///   attributes that arrive together with an invalidation of pages, and strict mounts need those
///   attributes.
/// - With ATOMIC_O_TRUNC the kernel checks only after the truncation whether the file is a running
///   program. An `O_RDONLY | O_TRUNC` would truncate it.
/// - POSIX_ACL does not exist in NFSv4.
pub(super) fn wanted(config: &Config) -> u64 {
    use init_flags::*;
    let mut flags = ASYNC_READ
        | BIG_WRITES
        | DONT_MASK
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | ABORT_ERROR
        | MAX_PAGES
        | HANDLE_KILLPRIV_V2
        | SETXATTR_EXT
        | INIT_EXT
        | CREATE_SUPP_GROUP
        | HAS_EXPIRE_ONLY
        | DIRECT_IO_ALLOW_MMAP
        | NO_EXPORT_SUPPORT;
    flags |= if config.strict || config.strict_parts {
        AUTO_INVAL_DATA
    } else if config.may_be_shared {
        AUTO_INVAL_DATA | CACHE_SYMLINKS
    } else {
        EXPLICIT_INVAL_DATA | CACHE_SYMLINKS
    };
    if config.passthrough {
        flags |= PASSTHROUGH;
    }
    if config.server_locks {
        flags |= POSIX_LOCKS | FLOCK_LOCKS;
    }
    flags
}
