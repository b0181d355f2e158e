//! NFSv4.0 (RFC 7530), 4.1 (RFC 8881) and 4.2 (RFC 7862), with extended attributes (RFC 8276) and
//! `mode_umask` (RFC 8275). Every operation, attribute and callback is present in both directions.
//!
//! This module has no RPC, no session state and no policy. Two tables list the operations
//! ([`compound`], [`callback`]) and one table lists the attributes ([`attrs`]). Numbers, names,
//! encoding and typed results all derive from these tables. Minor versions share all types; a minor
//! version does not send the types that it lacks.

pub mod attr_types;
pub mod attrs;
pub mod bitmap;
pub mod build;
pub mod callback;
pub mod compound;
pub mod ops40;
pub mod ops41;
pub mod ops42;
pub mod pnfs;
pub mod results;
#[cfg(any(test, feature = "sample"))]
mod sample;
pub mod status;
pub mod table;
pub mod types;

pub use attr_types::*;
pub use attrs::{Attrs, RareAttrs, UnknownAttrs, attr};
pub use bitmap::Bitmap4;
pub use callback::*;
pub use compound::{Compound, CompoundReply, NfsOpnum4, OPS_MAX, Op, OpRes, op};
pub use ops40::*;
pub use ops41::*;
pub use ops42::*;
pub use pnfs::*;
pub use results::{OpError, Results};
pub use status::{Fail, Nfsstat4};
pub use table::{AnyResult, Operation};
pub use types::*;

use crate::{rpc_program, xdr_struct};
use status::fail_arm;

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// Version of the program.
pub const VERSION: u32 = 4;
/// The well-known port.
pub const PORT: u16 = 2049;
/// Version of the callback program. The client chooses the program number.
pub const CB_VERSION: u32 = 1;
/// The callback procedure NULL.
pub const CB_PROC_NULL: u32 = 0;
/// The callback procedure COMPOUND.
pub const CB_PROC_COMPOUND: u32 = 1;

rpc_program! {
    /// NFS version 4, all minor versions.
    program 100003 version 4, Proc4, Call4, Reply4 {
        /// Does nothing.
        NULL = 0, Null(NullArgs) -> ();
        /// Executes a list of operations.
        COMPOUND = 1, Compound(Compound) -> CompoundReply;
    }
}

xdr_struct! {
    /// Arguments of NULL (none).
    #[derive(Copy)]
    pub struct NullArgs {}
}

#[cfg(test)]
mod tests;
