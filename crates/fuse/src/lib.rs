//! The FUSE frontend: mounts a Vfs through `/dev/fuse`, and maps the kernel's requests to
//! [`Vfs`](hither_vfs::Vfs) calls.
//!
//! The crate depends on the kernel's protocol and the [`Vfs`](hither_vfs::Vfs) interface, and not
//! on NFS or caches. Its modules, from the bottom:
//! - `abi` has the layouts of the protocol, and `device` reads and writes messages.
//! - `call` is one request until its answer (with interrupts), and `hint` reads the caller's whole
//!   path.
//! - `inode` and `handles` map the kernel's numbers and track its caches.
//! - `lease` has the kernel state under leases.
//! - `invalidator` handles changes by another frontend.
//! - `ops` serves each request, `session` runs the threads, `mount` mounts and unmounts.
//!
//! Lock order: the table of `Inodes`, then the state of one `Inode`. No other lock is taken while
//! they are held. They are not held across an await.

#![deny(unsafe_code)]

mod abi;
mod appends;
mod call;
mod cred;
#[allow(unsafe_code)]
mod device;
mod handles;
mod hint;
mod in_use;
mod inode;
mod invalidator;
mod kept_open;
mod lease;
mod local;
mod lock_waits;
mod lockers;
#[allow(unsafe_code)]
mod mount;
#[allow(unsafe_code)]
mod mounts;
mod ops;
mod passthrough;
mod path_retry;
mod recent;
mod session;
mod stale_retry;
mod stats;
mod trace;
mod unprocessed;
mod watch;

pub use hint::HintStats;
pub use mount::{CloseWaits, Config, Layers, MountError, Mounted, mount};
pub use recent::{RecentCall, RecentCalls};
pub use session::BLOCKING_THREADS_MAX;
pub use stats::{MountCounts, OpCount};
pub use trace::{Record, Traced, TracedCall, TracedFile};
