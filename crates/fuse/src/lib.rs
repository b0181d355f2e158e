//! A Vfs becomes a mount: the `/dev/fuse` layer and the frontend that maps the kernel's requests
//! onto [`Vfs`](hither_vfs::Vfs) calls.
//!
//! It knows the kernel's protocol and the [`Vfs`](hither_vfs::Vfs) interface, and nothing of NFS or
//! caches. From the bottom: `abi` has the protocol's bytes, and `device` reads and writes them.
//! `call` is one request until its answer (with interrupts), and `hint` the caller's whole path.
//! `inode` and `handles` map the kernel's numbers and know its caches. `lease` has the state that
//! may be withdrawn. `beside` handles changes by another frontend. `ops` serves each request,
//! `session` runs the threads, `mount` begins and ends it all.
//!
//! Lock order: `Inodes`' table, then one `Inode`'s state; nothing else is locked while they are
//! held, and neither is held across an await.

#![deny(unsafe_code)]

mod abi;
mod beside;
mod call;
mod cred;
#[allow(unsafe_code)]
mod device;
mod handles;
mod hint;
mod in_use;
mod inode;
mod lease;
#[allow(unsafe_code)]
mod mount;
#[allow(unsafe_code)]
mod mounts;
mod ops;
mod passthrough;
mod recent;
mod sent_back;
mod session;
mod stats;
mod trace;
mod watch;

pub use hint::HintStats;
pub use mount::{CloseWaits, Config, MountError, Mounted, mount};
pub use recent::{RecentCall, RecentCalls};
pub use stats::OpCount;
pub use trace::{Record, Traced, TracedCall, TracedFile};
