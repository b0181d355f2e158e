//! A directory of this machine as a `Vfs`, and the journal of its changes.
//!
//! The crate knows nothing of NFS and FUSE.
//!
//! - [`local`] serves a directory.
//! - [`journal`] makes changes durable before the file system has written them.

pub mod journal;
pub mod local;
