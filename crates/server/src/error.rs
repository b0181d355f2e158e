//! The one table from an errno of the `Vfs` to a status of NFSv3 or NFSv4.

use crate::scarcity;
use hither_proto::nfs3::Nfsstat3;
use hither_proto::nfs4::Nfsstat4;
use hither_vfs::Error;

/// Status for NFSv3.
pub(crate) fn stat3(e: &Error) -> Nfsstat3 {
    note(e);
    type S = Nfsstat3;
    match e.errno {
        libc::EPERM => S::PERM,
        libc::ENOENT => S::NOENT,
        libc::ENXIO => S::NXIO,
        libc::EACCES | libc::EBUSY | libc::ETXTBSY => S::ACCES,
        libc::EEXIST => S::EXIST,
        libc::EXDEV => S::XDEV,
        libc::ENODEV => S::NODEV,
        libc::ENOTDIR => S::NOTDIR,
        libc::EISDIR => S::ISDIR,
        libc::EINVAL | libc::ELOOP => S::INVAL,
        libc::EFBIG => S::FBIG,
        libc::ENOSPC => S::NOSPC,
        libc::EROFS => S::ROFS,
        libc::EMLINK => S::MLINK,
        libc::ENAMETOOLONG => S::NAMETOOLONG,
        libc::ENOTEMPTY => S::NOTEMPTY,
        libc::EDQUOT => S::DQUOT,
        libc::ESTALE | libc::EBADF => S::STALE,
        libc::EOPNOTSUPP | libc::ENOSYS => S::NOTSUPP,
        libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR => S::JUKEBOX,
        _ if scarcity::is_one(e) => {
            if scarcity::has_lasted(e) {
                S::SERVERFAULT
            } else {
                S::JUKEBOX
            }
        }
        _ => S::IO,
    }
}

/// Status for NFSv4.
pub(crate) fn stat4(e: &Error) -> Nfsstat4 {
    note(e);
    type S = Nfsstat4;
    match e.errno {
        libc::EPERM => S::PERM,
        libc::ENOENT => S::NOENT,
        libc::ENXIO => S::NXIO,
        libc::EACCES => S::ACCESS,
        libc::EBUSY | libc::ETXTBSY => S::FILE_OPEN,
        libc::EEXIST => S::EXIST,
        libc::EXDEV => S::XDEV,
        libc::ENOTDIR => S::NOTDIR,
        libc::EISDIR => S::ISDIR,
        libc::EINVAL => S::INVAL,
        libc::ELOOP => S::SYMLINK,
        libc::EFBIG => S::FBIG,
        libc::ENOSPC => S::NOSPC,
        libc::EROFS => S::ROFS,
        libc::EMLINK => S::MLINK,
        libc::ENAMETOOLONG => S::NAMETOOLONG,
        libc::ENOTEMPTY => S::NOTEMPTY,
        libc::EDQUOT => S::DQUOT,
        libc::ESTALE => S::STALE,
        libc::EBADF => S::BAD_STATEID,
        libc::EOPNOTSUPP | libc::ENOSYS => S::NOTSUPP,
        libc::ENODATA => S::NOXATTR,
        libc::E2BIG | libc::ERANGE => S::XATTR2BIG,
        libc::EDEADLK => S::DEADLOCK,
        libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR => S::DELAY,
        _ if scarcity::is_one(e) => {
            if scarcity::has_lasted(e) {
                S::SERVERFAULT
            } else {
                S::DELAY
            }
        }
        _ => S::IO,
    }
}

fn note(e: &Error) {
    match (&e.why, e.errno) {
        _ if scarcity::is_one(e) => {}
        (Some(_), _) => tracing::warn!("{e}"),
        (None, libc::EIO) => tracing::warn!("{e}"),
        (None, _) => {}
    }
}
