//! A [`Vfs`](hither_vfs::Vfs) becomes an NFS server: NFSv3 with MOUNT, NFSv4.1 and 4.2, and on
//! demand NQNFS, on one port.
//!
//! It knows nothing of disks, caches or FUSE, and of sockets only what `hither-rpc` hands it. A
//! call comes in with its RPC header read; [`Server`] finds the program, the program's module
//! decodes the arguments, finds the export in the filehandle ([`handle`]), maps the caller to the
//! identity that the export gives him ([`access`]), calls the export's `Vfs` and encodes the
//! answer. What must be remembered between calls is in two places: the reply cache of NFSv3 (`drc`)
//! and the state of NFSv4 (`v4`).
//!
//! Locks: all are leaves, never held across an await, except where a module says otherwise.

#![forbid(unsafe_code)]

pub mod access;
mod creator;
mod drc;
mod error;
mod exclusive;
pub mod exports;
pub mod handle;
mod mountd;
pub mod nlm;
mod nqnfs;
mod piped;
mod scarcity;
mod server;
pub mod table;
#[cfg(test)]
mod tests;
mod v3;
mod v4;

pub use nqnfs::NqnfsOptions;
pub use server::{Options, Server};
pub use v4::delegation::DelegationCounts;
