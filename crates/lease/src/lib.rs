//! Cache leases: the lease [`Table`] of a server and the lease [`Holder`] of a client (R. Macklem,
//! "Not Quite NFS", 1994; C. Gray and D. Cheriton, "Leases", 1989).
//!
//! Both are pure state machines without sockets, runtime, clock, storage, RPC or NFS version. Time
//! is an argument, in milliseconds of a monotonic clock. Tasks are actions that the caller fetches
//! ([`Table::poll_action`], [`Holder::poll_action`]). One table serves leases that expire (NQNFS)
//! and leases that last while the client renews itself (NFSv4 delegations). It also serves accesses
//! without a lease (NFSv3, local processes).
//!
//! All rules follow from one: **an operation waits until no other client can have cached state in
//! conflict with it**. A read conflicts with another client's write lease. A write conflicts with
//! every other client's lease.

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

/// Milliseconds of a monotonic clock. The table uses the server's clock, the holder the client's.
pub type Ms = u64;

/// A file or directory, by a number from the caller: a file system and inode number, or a 128-bit
/// hash of a filehandle. The number is unique among all objects. It stays the same as long as the
/// object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey(pub [u64; 2]);

/// One incarnation of a client. A client that lost its memory returns with another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// The right of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The right to cache read data. Many clients may hold it at once.
    Read,
    /// The right to cache read data and to delay writes. One client may hold it at a time.
    Write,
}
