//! Delayed changes: layers between a frontend and the server. Each layer is a `Vfs` over a `Vfs`.
//!
//! The crate knows nothing of NFS and FUSE.
//!
//! - [`dirty`] answers writes at once. The server receives them later, merged.
//! - [`ahead`] creates new objects in memory. The server receives them later, complete.
//! - [`removals`] answers removals at once. The server receives them later, in batches.
//! - [`wal`] keeps acknowledged changes of these layers on the local disk until the server has
//!   them.

#![forbid(unsafe_code)]

pub mod ahead;
mod clock;
pub mod dirty;
pub mod removals;
mod shown;
pub mod wal;
