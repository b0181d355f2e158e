//! An NFS server becomes a `Vfs`.
//!
//! It knows nothing of FUSE and of caches above it. Two protocol modules, [`v3`] and [`v4`],
//! implement `hither_vfs::Vfs`, and [`nqnfs`] puts the first of them on another protocol; what they
//! share (options, errors, validity of attributes, uncommitted writes, id mapping) stands beside
//! them. [`connect`] negotiates the version and hands back the file system.

mod connect;
mod detach;
pub mod error;
pub mod idmap;
mod mountd;
pub mod nqnfs;
mod options;
mod silly;
mod stamp;
#[cfg(test)]
mod testing;
pub mod v3;
pub mod v4;
pub mod validity;
pub mod writes;

pub use connect::{Connected, SessionLimits, connect};
pub use error::MountError;
pub use options::{AttrCache, LookupCache, Options, Recovery, Version};
