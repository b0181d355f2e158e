//! Maps protocol errors to errno, and a failed mount to one line for its user.
//!
//! There is one table per protocol version ([`nfs3`], [`nfs4`]) and one for RPC ([`call`]).
//! [`MountError`] covers the failures before a file system exists. The errnos are those of the
//! Linux client. Where Linux returns an errno of the kernel (above 512), the tables have the
//! nearest public errno.
//!
//! Callers handle statuses that mean retry (JUKEBOX, DELAY, GRACE) or recovery (stale sessions and
//! stateids). The tables still contain them, for callers that give up.

mod mount;

pub use mount::{MountError, Service};

use hither_proto::nfs3::Nfsstat3;
use hither_proto::nfs4::Nfsstat4;
use hither_proto::rpc::AuthStat;
use hither_rpc::gss::GssError;
use hither_rpc::{CallError, Mode};
use hither_vfs::Error;

/// The error of an NFSv3 status (RFC 1813 section 2.6). `status` is not OK.
pub fn nfs3(status: Nfsstat3) -> Error {
    match nfs3_errno(status) {
        Some((errno, Tell::No)) => Error::new(errno),
        Some((errno, Tell::Yes)) => Error::because(errno, format!("the server answers NFS3ERR_{status:?}")),
        None => Error::because(libc::EIO, format!("the server answers the unknown status {}", status.0)),
    }
}

/// The error of an NFSv4 status (RFC 8881 section 15, RFC 7862 section 11, RFC 8276 section 8.2).
/// `status` is not OK.
pub fn nfs4(status: Nfsstat4) -> Error {
    match nfs4_errno(status) {
        Some((errno, Tell::No)) => Error::new(errno),
        Some((errno, Tell::Yes)) => Error::because(errno, format!("the server answers {status}")),
        None => Error::because(libc::EIO, format!("the server answers the unknown status {}", status.0)),
    }
}

/// The error of a call that has no result.
pub fn call(e: &CallError) -> Error {
    let errno = match e {
        CallError::TimedOut(Mode::Softerr) => libc::ETIMEDOUT,
        CallError::TimedOut(_) | CallError::GarbageArgs | CallError::SystemErr => libc::EIO,
        CallError::DeadlinePassed => return Error::new(libc::ETIMEDOUT),
        CallError::Cancelled => return Error::new(libc::EINTR),
        CallError::Gss(GssError::Expired(_)) | CallError::ContextEnded(_) => {
            return Error::unproven(libc::EKEYEXPIRED, e.to_string());
        }
        CallError::Gss(_)
        | CallError::Denied(AuthStat::RPCSEC_GSS_CREDPROBLEM | AuthStat::RPCSEC_GSS_CTXPROBLEM) => {
            return Error::unproven(libc::EACCES, e.to_string());
        }
        CallError::Denied(_) => libc::EACCES,
        CallError::RpcMismatch { .. } | CallError::ProgUnavail | CallError::ProgMismatch { .. } => {
            libc::EPROTONOSUPPORT
        }
        CallError::ProcUnavail => return Error::new(libc::EOPNOTSUPP),
        CallError::Connect(e) => e.raw_os_error().unwrap_or(libc::EIO),
        CallError::PeerMisbehaved(_) => libc::EIO,
        CallError::TooLarge { .. } => libc::EMSGSIZE,
        CallError::Shutdown => return Error::new(libc::EIO),
    };
    Error::because(errno, e.to_string())
}

/// Whether a failure is worth a line in the log. Programs cause some statuses all day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tell {
    No,
    Yes,
}

fn nfs3_errno(s: Nfsstat3) -> Option<(i32, Tell)> {
    use Nfsstat3 as S;
    use Tell::{No, Yes};
    Some(match s {
        S::PERM => (libc::EPERM, No),
        S::NOENT => (libc::ENOENT, No),
        S::IO => (libc::EIO, Yes),
        S::NXIO => (libc::ENXIO, No),
        S::ACCES => (libc::EACCES, No),
        S::EXIST => (libc::EEXIST, No),
        S::XDEV => (libc::EXDEV, No),
        S::NODEV => (libc::ENODEV, No),
        S::NOTDIR => (libc::ENOTDIR, No),
        S::ISDIR => (libc::EISDIR, No),
        S::INVAL => (libc::EINVAL, No),
        S::FBIG => (libc::EFBIG, No),
        S::NOSPC => (libc::ENOSPC, No),
        S::ROFS => (libc::EROFS, No),
        S::MLINK => (libc::EMLINK, No),
        S::NAMETOOLONG => (libc::ENAMETOOLONG, No),
        S::NOTEMPTY => (libc::ENOTEMPTY, No),
        S::DQUOT => (libc::EDQUOT, No),
        S::STALE => (libc::ESTALE, No),
        S::REMOTE => (libc::EREMOTE, Yes),
        // The server cannot parse the filehandle. It is as useless as that of a removed file.
        S::BADHANDLE => (libc::ESTALE, Yes),
        // SETATTR's guard did not match. This client never sets a guard.
        S::NOT_SYNC => (libc::EIO, Yes),
        S::BAD_COOKIE => (libc::EIO, Yes),
        S::NOTSUPP => (libc::EOPNOTSUPP, No),
        S::TOOSMALL => (libc::EIO, Yes),
        S::SERVERFAULT => (libc::EREMOTEIO, Yes),
        S::BADTYPE => (libc::EINVAL, No),
        S::JUKEBOX => (libc::EAGAIN, Yes),
        _ => return None,
    })
}

fn nfs4_errno(s: Nfsstat4) -> Option<(i32, Tell)> {
    nfs4_file_errno(s).or_else(|| nfs4_state_errno(s)).or_else(|| nfs4_session_errno(s))
}

/// Statuses about files, names and attributes.
fn nfs4_file_errno(s: Nfsstat4) -> Option<(i32, Tell)> {
    use Nfsstat4 as S;
    use Tell::{No, Yes};
    Some(match s {
        S::PERM => (libc::EPERM, No),
        S::NOENT => (libc::ENOENT, No),
        S::IO => (libc::EIO, Yes),
        S::NXIO => (libc::ENXIO, No),
        S::ACCESS => (libc::EACCES, No),
        S::EXIST => (libc::EEXIST, No),
        S::XDEV => (libc::EXDEV, No),
        S::NOTDIR => (libc::ENOTDIR, No),
        S::ISDIR => (libc::EISDIR, No),
        S::INVAL | S::BADTYPE | S::WRONG_TYPE | S::BADNAME | S::BADCHAR | S::BADLABEL | S::BAD_RANGE => {
            (libc::EINVAL, No)
        }
        S::FBIG => (libc::EFBIG, No),
        S::NOSPC => (libc::ENOSPC, No),
        S::ROFS => (libc::EROFS, No),
        S::MLINK => (libc::EMLINK, No),
        S::NAMETOOLONG => (libc::ENAMETOOLONG, No),
        S::NOTEMPTY => (libc::ENOTEMPTY, No),
        S::DQUOT => (libc::EDQUOT, No),
        S::STALE | S::FHEXPIRED => (libc::ESTALE, No),
        S::BADHANDLE => (libc::ESTALE, Yes),
        // An open or lookup found a symbolic link in place of the file.
        S::SYMLINK => (libc::ELOOP, No),
        S::NOTSUPP | S::ATTRNOTSUPP | S::UNION_NOTSUPP | S::PARTNER_NOTSUPP | S::OFFLOAD_DENIED => {
            (libc::EOPNOTSUPP, No)
        }
        S::PARTNER_NO_AUTH => (libc::EACCES, Yes),
        S::OFFLOAD_NO_REQS => (libc::EAGAIN, Yes),
        S::WRONG_LFS => (libc::EINVAL, Yes),
        S::BAD_COOKIE | S::NOT_SAME | S::TOOSMALL => (libc::EIO, Yes),
        S::SERVERFAULT => (libc::EREMOTEIO, Yes),
        S::BADOWNER => (libc::EINVAL, Yes),
        S::WRONGSEC | S::WRONG_CRED => (libc::EPERM, Yes),
        S::MOVED => (libc::EREMOTE, Yes),
        S::FILE_OPEN => (libc::EBUSY, No),
        S::NOXATTR => (libc::ENODATA, No),
        S::XATTR2BIG => (libc::E2BIG, No),
        S::DELAY => (libc::EAGAIN, Yes),
        _ => return None,
    })
}

/// Statuses about opens, locks, delegations and layouts.
fn nfs4_state_errno(s: Nfsstat4) -> Option<(i32, Tell)> {
    use Nfsstat4 as S;
    use Tell::{No, Yes};
    Some(match s {
        S::SHARE_DENIED => (libc::EACCES, No),
        S::DENIED | S::LOCKED => (libc::EAGAIN, No),
        S::DEADLOCK => (libc::EDEADLK, No),
        S::LOCK_RANGE => (libc::EINVAL, No),
        S::LOCK_NOTSUPP => (libc::ENOLCK, No),
        S::LOCKS_HELD => (libc::EBUSY, No),
        S::OPENMODE => (libc::EBADF, No),
        S::GRACE => (libc::EAGAIN, Yes),
        // The lock or open no longer exists. Linux answers I/O on it with EIO.
        S::EXPIRED | S::ADMIN_REVOKED | S::DELEG_REVOKED | S::BAD_STATEID | S::OLD_STATEID => {
            (libc::EIO, Yes)
        }
        S::STALE_STATEID | S::STALE_CLIENTID | S::NO_GRACE | S::RECLAIM_BAD | S::RECLAIM_CONFLICT => {
            (libc::EIO, Yes)
        }
        S::RESOURCE | S::LAYOUTTRYLATER | S::RECALLCONFLICT | S::RETURNCONFLICT => (libc::EREMOTEIO, Yes),
        S::DELEG_ALREADY_WANTED | S::DIRDELEG_UNAVAIL | S::REJECT_DELEG => (libc::EIO, Yes),
        S::BADIOMODE | S::BADLAYOUT | S::LAYOUTUNAVAILABLE | S::NOMATCHING_LAYOUT => (libc::EIO, Yes),
        S::UNKNOWN_LAYOUTTYPE | S::PNFS_IO_HOLE | S::PNFS_NO_LAYOUT => (libc::EIO, Yes),
        S::BAD_SEQID | S::LEASE_MOVED | S::CB_PATH_DOWN => (libc::EIO, Yes),
        _ => return None,
    })
}

/// Statuses about sessions, clients and the compound, for callers whose recovery gave up.
fn nfs4_session_errno(s: Nfsstat4) -> Option<(i32, Tell)> {
    use Nfsstat4 as S;
    use Tell::Yes;
    Some(match s {
        S::MINOR_VERS_MISMATCH => (libc::EPROTONOSUPPORT, Yes),
        S::CLID_INUSE | S::CLIENTID_BUSY => (libc::EBUSY, Yes),
        S::REQ_TOO_BIG | S::REP_TOO_BIG | S::REP_TOO_BIG_TO_CACHE | S::TOO_MANY_OPS => (libc::EMSGSIZE, Yes),
        S::BADXDR | S::OP_ILLEGAL | S::OP_NOT_IN_SESSION | S::NOT_ONLY_OP | S::UNSAFE_COMPOUND => {
            (libc::EPROTO, Yes)
        }
        S::NOFILEHANDLE | S::RESTOREFH | S::SAME | S::SEQUENCE_POS => (libc::EPROTO, Yes),
        S::BAD_SESSION_DIGEST | S::BADSESSION | S::BADSLOT | S::BAD_HIGH_SLOT | S::DEADSESSION => {
            (libc::EIO, Yes)
        }
        S::COMPLETE_ALREADY | S::CONN_NOT_BOUND_TO_SESSION | S::BACK_CHAN_BUSY => (libc::EIO, Yes),
        S::SEQ_MISORDERED | S::SEQ_FALSE_RETRY | S::RETRY_UNCACHED_REP => (libc::EIO, Yes),
        S::HASH_ALG_UNSUPP | S::ENCR_ALG_UNSUPP => (libc::EIO, Yes),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
