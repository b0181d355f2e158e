//! Delayed changes: layers between a frontend and the server, each a `Vfs` over a `Vfs`.
//!
//! It knows nothing of NFS and FUSE.
//!
//! - [`dirty`] answers writes at once and sends them later, merged.
//! - [`ahead`] makes new objects here and sends them later, whole.
//! - [`removals`] answers removals at once and sends them later, together.
//! - [`wal`] keeps what these layers have acknowledged on the local disk until the server has it.

#![forbid(unsafe_code)]

pub mod ahead;
pub mod dirty;
pub mod removals;
pub mod wal;
