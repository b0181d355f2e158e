//! NLM, the lock protocol of NFSv2 and NFSv3 (X/Open XNFS chapter 10). This module has the part for
//! a server that grants no locks.
//!
//! Arguments begin with a cookie, which the result repeats. The lock's description after the cookie
//! is not decoded.

use crate::xdr::{Dec, Enc, Opaque, Result, Xdr};
use crate::{xdr_enum, xdr_struct};

/// Program number.
pub const PROGRAM: u32 = 100_021;
/// Versions 1 (32-bit ranges), 3 (the same for DOS clients) and 4 (64-bit ranges, for NFSv3).
pub const VERSIONS: [u32; 3] = [1, 3, 4];
/// Longest cookie (`MAXNETOBJ_SZ`).
pub const COOKIE_MAX_BYTES: usize = 1024;

/// Identifies a client's call.
pub type Cookie = Opaque<COOKIE_MAX_BYTES>;

xdr_enum! {
    /// Procedures. A `_MSG` procedure returns nothing. The server answers it with a call of the
    /// `_RES` procedure.
    pub enum NlmProc {
        NULL = 0, TEST = 1, LOCK = 2, CANCEL = 3, UNLOCK = 4, GRANTED = 5,
        TEST_MSG = 6, LOCK_MSG = 7, CANCEL_MSG = 8, UNLOCK_MSG = 9, GRANTED_MSG = 10,
        TEST_RES = 11, LOCK_RES = 12, CANCEL_RES = 13, UNLOCK_RES = 14, GRANTED_RES = 15,
        SHARE = 20, UNSHARE = 21, NM_LOCK = 22, FREE_ALL = 23,
    }
    /// `nlm4_stats`. Values from `DEADLCK` on exist only in version 4.
    pub enum NlmStat {
        GRANTED = 0, DENIED = 1, DENIED_NOLOCKS = 2, BLOCKED = 3, DENIED_GRACE_PERIOD = 4,
        DEADLCK = 5, ROFS = 6, STALE_FH = 7, FBIG = 8, FAILED = 9,
    }
}

xdr_struct! {
    /// `nlm4_res`. It also serves as `nlm4_testres`, except for `DENIED`, which contains the
    /// holder.
    pub struct NlmRes {
        /// The cookie of the call.
        pub cookie: Cookie,
        /// The status.
        pub stat: NlmStat,
    }
    /// `nlm4_shareres`.
    pub struct NlmShareRes {
        /// The cookie of the call.
        pub cookie: Cookie,
        /// The status.
        pub stat: NlmStat,
        /// Not used.
        pub sequence: u32,
    }
}

/// Arguments of any procedure but NULL and FREE_ALL: the cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NlmArgs {
    /// The result contains the same cookie.
    pub cookie: Cookie,
}

impl Xdr for NlmArgs {
    fn enc(&self, e: &mut Enc) {
        self.cookie.enc(e);
    }
    fn dec(d: &mut Dec<'_>) -> Result<Self> {
        let cookie = Cookie::dec(d)?;
        d.rest();
        Ok(Self { cookie })
    }
}
