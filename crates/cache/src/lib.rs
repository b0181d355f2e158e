//! Caches: layers between a frontend and the server, each a `Vfs` over a `Vfs`.
//!
//! This crate knows nothing of NFS and FUSE.
//!
//! - [`metadata`] keeps names, attributes, directories and small files in memory, and answers from
//!   them while they are valid.
//! - [`data`] keeps file contents on a local disk.
//! - [`policy`] selects the files that leave the disk first.

#![forbid(unsafe_code)]

pub mod data;
pub mod metadata;
pub mod policy;
