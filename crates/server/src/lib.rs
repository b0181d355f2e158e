//! Serves a [`Vfs`](hither_vfs::Vfs) over NFS: NFSv3 with MOUNT, NFSv4.1, NFSv4.2 and, on demand,
//! NQNFS, on one port.
//!
//! The crate knows nothing of disks, caches or FUSE. Sockets belong to `hither-rpc`, which hands
//! over each call with its RPC header already read. [`Server`] finds the program of a call. The
//! program's module decodes the arguments and finds the export in the filehandle ([`handle`]). The
//! module maps the caller to the identity that the export gives it ([`access`]). It then calls the
//! export's `Vfs` and encodes the reply. State between calls is in two places: the reply cache of
//! NFSv3 (`drc`) and the state of NFSv4 (`v4`).
//!
//! Locks: all are leaves and never held across an await, except where a module documents otherwise.

#![forbid(unsafe_code)]

pub mod access;
mod counters;
mod creator;
mod drc;
mod error;
mod exclusive;
pub mod exports;
mod figures;
pub mod handle;
pub mod long_handles;
mod mountd;
pub mod nlm;
mod nqnfs;
pub mod numbers;
pub mod pattern;
mod piped;
mod scarcity;
mod server;
pub mod table;
#[cfg(test)]
mod tests;
mod v3;
mod v4;

pub use counters::{ErrorClass, OperationCounts, Times};
pub use figures::{ClientFigures, NqnfsFigures, ReplyCacheFigures, ServerFigures};
pub use nqnfs::NqnfsOptions;
pub use server::{Options, Server};
pub use v4::delegation::DelegationCounts;
