//! NFS client: turns an NFS server into a `Vfs`.
//!
//! This crate knows neither FUSE nor the caches above it. The protocol modules [`v3`] and [`v4`]
//! implement `hither_vfs::Vfs`. [`nqnfs`] runs [`v3`] over another protocol. The shared parts are
//! options, errors, validity of attributes, uncommitted writes and id mapping. [`connect`]
//! negotiates the version and returns the file system.

mod connect;
mod detach;
pub mod error;
pub mod idmap;
mod mountd;
pub mod nqnfs;
mod options;
mod security;
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
pub use mountd::{exported_root, exports};
pub use options::{AttrCache, LookupCache, Options, Recovery, Version};
pub use security::Security;
