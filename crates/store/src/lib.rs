//! What is kept near: layers between a frontend and the authority, each a `Vfs` over a `Vfs`.
//!
//! It knows nothing of NFS and FUSE.
//!
//! - [`meta`] answers from what is known of names, attributes, directories and small files while it holds.
//! - [`disk`] keeps what was read of files on a local disk, for good.
//! - [`dirty`] answers writes at once and sends them later, merged.
//! - [`ahead`] makes new objects here and sends them later, whole.
//! - [`journal`] makes changes durable before they are where they belong.
//! - [`wal`] keeps what [`dirty`] has acknowledged on the local disk until the server has it.
//! - [`policy`] says what of it goes first.
//! - [`subtrees`] makes one file system of stacks that believe differently long.
//! - [`local`] serves a directory of this machine.

pub mod ahead;
pub mod dirty;
pub mod disk;
pub mod journal;
pub mod local;
pub mod meta;
pub mod policy;
pub mod removals;
pub mod subtrees;
pub mod wal;
