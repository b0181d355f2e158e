//! MNT of MOUNT version 1 (RFC 1094 appendix A): how a path becomes the first handle. The other
//! procedures of version 1 have the messages of version 3 ([`crate::mount`]).

use super::Fh;
use crate::mount::{Dirpath, PROGRAM};
use crate::{rpc_program, xdr_struct, xdr_union};

/// Version of MOUNT that belongs to NFS version 2 and to NQNFS.
pub const VERSION: u32 = 1;

rpc_program! {
    /// MOUNT version 1, as far as it differs from version 3.
    program 100005 version 1, Mount1Proc, Mount1Call, Mount1Reply {
        /// A path becomes a handle.
        MNT = 1, Mnt(Mnt1Args) -> Fhstatus;
    }
}

const _: () = assert!(PROGRAM == 100_005);

xdr_struct! {
    /// MNT.
    pub struct Mnt1Args { /// What to mount.
        pub dirpath: Dirpath }
}

xdr_union! {
    /// The result of MNT (`fhstatus`): a handle, or an errno.
    #[derive(Copy)]
    pub enum Fhstatus else Refused {
        /// The root of the mount.
        Granted(Fh) = 0,
    }
}
