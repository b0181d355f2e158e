//! Delayed changes: layers between a frontend and the server. Each layer is a `Vfs` over a `Vfs`.
//!
//! The crate knows nothing of NFS and FUSE.
//!
//! - [`pending_writes`] answers writes at once. The server receives them later, merged.
//! - [`pending_creates`] creates new objects in memory. The server receives them later, complete.
//! - [`pending_removes`] answers removals at once. The server receives them later, in batches.
//! - [`wal`] keeps acknowledged changes of these layers on the local disk until the server has
//!   them.

#![forbid(unsafe_code)]

mod clock;
pub mod pending_creates;
pub mod pending_removes;
pub mod pending_writes;
mod shown;
pub mod wal;
