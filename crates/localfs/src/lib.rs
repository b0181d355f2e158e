//! A directory of this machine as a `Vfs`, and the journal of its changes.
//!
//! It knows nothing of NFS and FUSE.
//!
//! - [`local`] serves a directory.
//! - [`journal`] makes changes durable before they are in the directory.

pub mod journal;
pub mod local;
