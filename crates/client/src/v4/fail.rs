//! Reasons for an operation without a result, inside the v4 client.

use crate::error;
use hither_proto::nfs4::{Nfsstat4, OpError};
use hither_vfs::Error;

/// Reason for an operation without a result.
#[derive(Debug, Clone)]
pub(crate) enum Fail {
    /// The server returned this status.
    Nfs(Nfsstat4),
    /// The reply cannot be decoded.
    Garbled,
    /// Any other error. It is final.
    Final(Error),
}

/// Result of an operation.
pub(crate) type Answered<T> = Result<T, Fail>;

impl Fail {
    /// The server's status, when there is one.
    pub fn status(&self) -> Option<Nfsstat4> {
        match self {
            Fail::Nfs(s) => Some(*s),
            Fail::Garbled | Fail::Final(_) => None,
        }
    }
}

impl From<OpError> for Fail {
    fn from(e: OpError) -> Self {
        match e.status() {
            Some(s) => Fail::Nfs(s),
            None => Fail::Final(Error::because(libc::EIO, e.to_string())),
        }
    }
}

impl From<Error> for Fail {
    fn from(e: Error) -> Self {
        Fail::Final(e)
    }
}

impl From<Fail> for Error {
    fn from(f: Fail) -> Self {
        match f {
            Fail::Nfs(Nfsstat4::MOVED) => Error::because(
                libc::EREMOTE,
                "the server has moved this file system elsewhere (NFS4ERR_MOVED); mount it from its new server",
            ),
            Fail::Nfs(s) => error::nfs4(s),
            Fail::Garbled => Error::because(libc::EIO, "the server's reply cannot be decoded"),
            Fail::Final(e) => e,
        }
    }
}

/// Whether the server finds the compound or its reply too long.
pub(crate) fn is_too_long(status: Option<Nfsstat4>) -> bool {
    matches!(
        status,
        Some(
            Nfsstat4::TOO_MANY_OPS
                | Nfsstat4::REQ_TOO_BIG
                | Nfsstat4::REP_TOO_BIG
                | Nfsstat4::REP_TOO_BIG_TO_CACHE
                | Nfsstat4::RESOURCE
        )
    )
}

/// Whether the stateid is no longer valid, so that its state has to be recovered.
pub(crate) fn is_state_lost(s: Nfsstat4) -> bool {
    matches!(
        s,
        Nfsstat4::BAD_STATEID
            | Nfsstat4::STALE_STATEID
            | Nfsstat4::EXPIRED
            | Nfsstat4::ADMIN_REVOKED
            | Nfsstat4::DELEG_REVOKED
    )
}
