//! Caches: layers between a frontend and the server, each a `Vfs` over a `Vfs`.
//!
//! It knows nothing of NFS and FUSE.
//!
//! - [`meta`] answers questions about names, attributes, directories and small files from memory
//!   while its answers hold.
//! - [`disk`] keeps the bytes of files on a local disk.
//! - [`policy`] says which files leave the disk first.

#![forbid(unsafe_code)]

pub mod disk;
pub mod meta;
pub mod policy;
