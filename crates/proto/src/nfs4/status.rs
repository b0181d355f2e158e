//! `nfsstat4`: the status of an operation.
//!
//! This module has no operations. Values are named integers without their `NFS4ERR_` prefix.
//! [`std::fmt::Display`] prints the protocol's full name. An unknown status keeps its number.

use crate::xdr::{self, Dec, Enc, Xdr};
use std::fmt;

crate::xdr_enum! {
    /// Status of an operation or a whole compound (RFC 7530 section 13, RFC 8881 section 15,
    /// RFC 7862 section 11, RFC 8276 section 8.2).
    pub enum Nfsstat4 {
        OK = 0, PERM = 1, NOENT = 2, IO = 5, NXIO = 6, ACCESS = 13, EXIST = 17, XDEV = 18, NOTDIR = 20,
        ISDIR = 21, INVAL = 22, FBIG = 27, NOSPC = 28, ROFS = 30, MLINK = 31, NAMETOOLONG = 63,
        NOTEMPTY = 66, DQUOT = 69, STALE = 70, BADHANDLE = 10001, BAD_COOKIE = 10003, NOTSUPP = 10004,
        TOOSMALL = 10005, SERVERFAULT = 10006, BADTYPE = 10007, DELAY = 10008, SAME = 10009,
        DENIED = 10010, EXPIRED = 10011, LOCKED = 10012, GRACE = 10013, FHEXPIRED = 10014,
        SHARE_DENIED = 10015, WRONGSEC = 10016, CLID_INUSE = 10017, RESOURCE = 10018, MOVED = 10019,
        NOFILEHANDLE = 10020, MINOR_VERS_MISMATCH = 10021, STALE_CLIENTID = 10022,
        STALE_STATEID = 10023, OLD_STATEID = 10024, BAD_STATEID = 10025, BAD_SEQID = 10026,
        NOT_SAME = 10027, LOCK_RANGE = 10028, SYMLINK = 10029, RESTOREFH = 10030, LEASE_MOVED = 10031,
        ATTRNOTSUPP = 10032, NO_GRACE = 10033, RECLAIM_BAD = 10034, RECLAIM_CONFLICT = 10035,
        BADXDR = 10036, LOCKS_HELD = 10037, OPENMODE = 10038, BADOWNER = 10039, BADCHAR = 10040,
        BADNAME = 10041, BAD_RANGE = 10042, LOCK_NOTSUPP = 10043, OP_ILLEGAL = 10044,
        DEADLOCK = 10045, FILE_OPEN = 10046, ADMIN_REVOKED = 10047, CB_PATH_DOWN = 10048,
        // NFSv4.1
        BADIOMODE = 10049, BADLAYOUT = 10050, BAD_SESSION_DIGEST = 10051, BADSESSION = 10052,
        BADSLOT = 10053, COMPLETE_ALREADY = 10054, CONN_NOT_BOUND_TO_SESSION = 10055,
        DELEG_ALREADY_WANTED = 10056, BACK_CHAN_BUSY = 10057, LAYOUTTRYLATER = 10058,
        LAYOUTUNAVAILABLE = 10059, NOMATCHING_LAYOUT = 10060, RECALLCONFLICT = 10061,
        UNKNOWN_LAYOUTTYPE = 10062, SEQ_MISORDERED = 10063, SEQUENCE_POS = 10064,
        REQ_TOO_BIG = 10065, REP_TOO_BIG = 10066, REP_TOO_BIG_TO_CACHE = 10067,
        RETRY_UNCACHED_REP = 10068, UNSAFE_COMPOUND = 10069, TOO_MANY_OPS = 10070,
        OP_NOT_IN_SESSION = 10071, HASH_ALG_UNSUPP = 10072, CLIENTID_BUSY = 10074,
        PNFS_IO_HOLE = 10075, SEQ_FALSE_RETRY = 10076, BAD_HIGH_SLOT = 10077, DEADSESSION = 10078,
        ENCR_ALG_UNSUPP = 10079, PNFS_NO_LAYOUT = 10080, NOT_ONLY_OP = 10081, WRONG_CRED = 10082,
        WRONG_TYPE = 10083, DIRDELEG_UNAVAIL = 10084, REJECT_DELEG = 10085, RETURNCONFLICT = 10086,
        DELEG_REVOKED = 10087,
        // NFSv4.2
        PARTNER_NOTSUPP = 10088, PARTNER_NO_AUTH = 10089, UNION_NOTSUPP = 10090,
        OFFLOAD_DENIED = 10091, WRONG_LFS = 10092, BADLABEL = 10093, OFFLOAD_NO_REQS = 10094,
        // RFC 8276
        NOXATTR = 10095, XATTR2BIG = 10096,
    }
}

impl fmt::Display for Nfsstat4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some("OK") => f.write_str("NFS4_OK"),
            Some(name) => write!(f, "NFS4ERR_{name}"),
            None => write!(f, "nfsstat4 {}", self.0),
        }
    }
}

/// The failure of an operation: its status and, for a few statuses, further data. Most failures are
/// the status alone. A result is `Result<T, F>` with `F: Fail`. On the wire it is a union on the
/// status, so a failure never contains [`Nfsstat4::OK`].
pub trait Fail: Sized {
    /// The status; never [`Nfsstat4::OK`].
    fn status(&self) -> Nfsstat4;
    /// Appends the data after the status.
    fn enc_arm(&self, e: &mut Enc);
    /// Reads the data after `status`.
    fn dec_arm(status: Nfsstat4, d: &mut Dec<'_>) -> xdr::Result<Self>;
}

impl Fail for Nfsstat4 {
    fn status(&self) -> Nfsstat4 {
        *self
    }
    fn enc_arm(&self, _: &mut Enc) {}
    fn dec_arm(status: Nfsstat4, _: &mut Dec<'_>) -> xdr::Result<Self> {
        Ok(status)
    }
}

impl<T: Xdr, F: Fail> Xdr for Result<T, F> {
    fn enc(&self, e: &mut Enc) {
        match self {
            Ok(v) => {
                Nfsstat4::OK.enc(e);
                v.enc(e);
            }
            Err(f) => {
                debug_assert_ne!(f.status(), Nfsstat4::OK, "a failure says OK");
                f.status().enc(e);
                f.enc_arm(e);
            }
        }
    }
    fn dec(d: &mut Dec<'_>) -> xdr::Result<Self> {
        Ok(match Nfsstat4::dec(d)? {
            Nfsstat4::OK => Ok(T::dec(d)?),
            status => Err(F::dec_arm(status, d)?),
        })
    }
}

/// The status of a result.
pub(super) fn status_of<T, F: Fail>(r: &Result<T, F>) -> Nfsstat4 {
    r.as_ref().map_or_else(Fail::status, |_| Nfsstat4::OK)
}

/// Declares a failure that has data for one status and none for the others.
macro_rules! fail_arm {
    ($($(#[$m:meta])* pub enum $name:ident { $(#[$am:meta])* $arm:ident($t:ty) = $status:ident })*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $(#[$am])* $arm($t),
            /// Any other status.
            Status($crate::nfs4::Nfsstat4),
        }
        impl $crate::nfs4::Fail for $name {
            fn status(&self) -> $crate::nfs4::Nfsstat4 {
                match self {
                    Self::$arm(_) => $crate::nfs4::Nfsstat4::$status,
                    Self::Status(s) => *s,
                }
            }
            fn enc_arm(&self, e: &mut $crate::xdr::Enc) {
                debug_assert_ne!(self, &Self::Status($crate::nfs4::Nfsstat4::$status), "the arm is missing");
                if let Self::$arm(v) = self {
                    $crate::xdr::Xdr::enc(v, e);
                }
            }
            fn dec_arm(
                status: $crate::nfs4::Nfsstat4, d: &mut $crate::xdr::Dec<'_>,
            ) -> $crate::xdr::Result<Self> {
                Ok(match status {
                    $crate::nfs4::Nfsstat4::$status => Self::$arm($crate::xdr::Xdr::dec(d)?),
                    other => Self::Status(other),
                })
            }
        }
        impl From<$crate::nfs4::Nfsstat4> for $name {
            fn from(s: $crate::nfs4::Nfsstat4) -> Self { Self::Status(s) }
        }
        #[cfg(any(test, feature = "sample"))]
        impl $crate::nfs4::sample::FailSample for $name {
            fn sample(status: $crate::nfs4::Nfsstat4, s: &mut $crate::sample::Source<'_>) -> Self {
                match status {
                    $crate::nfs4::Nfsstat4::$status => Self::$arm($crate::sample::Sample::sample(s)),
                    other => Self::Status(other),
                }
            }
        }
    )*};
}
pub(super) use fail_arm;
