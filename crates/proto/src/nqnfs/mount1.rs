//! MNT of MOUNT version 1 (RFC 1094 appendix A), which maps a path to the first filehandle. The
//! other procedures of version 1 have the messages of version 3 ([`crate::mount`]).

use super::Fh;
use crate::mount::{Dirpath, PROGRAM};
use crate::{rpc_program, xdr_struct, xdr_union};

/// Version of MOUNT for NFS version 2 and NQNFS.
pub const VERSION: u32 = 1;

rpc_program! {
    /// MNT of MOUNT version 1, which differs from version 3.
    program 100005 version 1, Mount1Proc, Mount1Call, Mount1Reply {
        /// Maps a path to a handle.
        MNT = 1, Mnt(Mnt1Args) -> Fhstatus;
    }
}

const _: () = assert!(PROGRAM == 100_005);

xdr_struct! {
    /// MNT.
    pub struct Mnt1Args { /// The path to mount.
        pub dirpath: Dirpath }
}

xdr_union! {
    /// The result of MNT (`fhstatus`): a handle, or an errno.
    #[derive(Copy)]
    pub enum Fhstatus else Refused {
        /// Handle of the mounted directory.
        Granted(Fh) = 0,
    }
}
