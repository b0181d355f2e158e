//! The right to cache, and its end: the lease [`Table`] of a server and the lease [`Holder`] of a
//! client (R. Macklem, "Not Quite NFS", 1994; C. Gray and D. Cheriton, "Leases", 1989).
//!
//! Pure state machines: no sockets, no runtime, no clock, no storage, no knowledge of RPC or of any
//! version of NFS. Time comes in as an argument, in milliseconds of a clock that never goes back;
//! tasks come out as actions that the caller fetches ([`Table::poll_action`],
//! [`Holder::poll_action`]). The same table serves leases that end by themselves (NQNFS), leases
//! that last while their client is heard of (NFSv4 delegations), and accesses without any lease
//! (NFSv3, local processes).
//!
//! The rule that everything follows from: **an operation waits until no other client can have
//! cached state that it contradicts**. A read contradicts another client's write lease; a write
//! contradicts every other client's lease.

#![forbid(unsafe_code)]

mod config;
mod heap;
mod holder;
mod revision;
mod rules;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod slab;
mod table;

pub use config::{Boot, Config, HolderConfig};
pub use holder::{Holder, HolderAction, Request};
pub use revision::Revisions;
#[cfg(any(test, feature = "sim"))]
pub use rules::{HolderRules, Rules};
pub use table::{
    Access, Action, Decision, Ended, Go, Grant, Op, Permit, Sizes, Table, Term, Ticket, Usage, Want,
};

/// Milliseconds of a monotone clock: the table's is the server's, the holder's is the client's.
pub type Ms = u64;

/// A file or directory, by a number that the caller gives: unique among all objects, the same for
/// as long as the object exists. A file system and inode number, or a 128-bit hash of a filehandle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey(pub [u64; 2]);

/// One incarnation of a client: a client that lost its memory comes back under another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// The right that a lease gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// To cache read data; many clients may hold it at once.
    Read,
    /// To cache reads and to delay writes; one client at a time.
    Write,
}
