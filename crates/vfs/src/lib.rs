//! The file-system interface between the layers of hither, and its types.
//!
//! An NFS client (`hither-nfs`), caches and local file systems implement [`Vfs`]. The FUSE frontend
//! (`hither-fuse`) and the servers call it. An address ([`PathRef`]) contains a path. Every answer
//! has attributes and the time for which they hold ([`Validity`]). [`RequestContext`] has the
//! caller's identity, the deadline and the cancellation of a call.
//!
//! Architecture Invariant: this crate depends on neither NFS nor FUSE, and does no I/O.

#![forbid(unsafe_code)]

mod account;
mod acl;
mod attr;
mod batch;
mod consistency_domain;
mod context;
mod data;
mod delegate;
mod error;
mod extra;
mod handle;
mod invalidator;
mod lease_authority;
mod lock_ranges;
mod losses;

pub mod model;
mod ops;
mod spent;
mod upcalls;
mod watch;

pub use account::{Account, Question, Why};
pub use acl::{AclWho, PosixAcl, PosixAcls};
pub use attr::{
    Attr, Attrs, CHANGE_OF_SERVER, CHANGE_ONCE, ChangeInfo, FileKind, FsStat, Moved, SetAttr, SetTime, Time,
    VERIFIER_NANOS, Validity, bytes_prove_reading, is_given_once,
};
pub use batch::{BatchOps, Creation, NewKind, Removal, create_many_in_steps, remove_many_in_steps};
pub use consistency_domain::{Asks, ConsistencyDomain, ConsistencyDomains};
pub use context::{Answered, CALL_MAX_BYTES, Cred, Env, RequestContext};
pub use data::{Data, Slice};
pub use error::{Error, Result};
pub use extra::{Extra, Pipe, ReadPiped};
pub use handle::{Fh, Name, PathRef};
pub use invalidator::{Invalidator, Touched, Work};
pub use lease_authority::{LeaseAuthority, NoLeases};
pub use lock_ranges::LockRanges;
pub use losses::{losses, note_loss};
pub use ops::{
    Access, Along, Backing, Create, DirEntry, DirPage, Fetched, File, FileRange, Finished, LockConflict,
    LockKind, LockOwner, LockWait, Made, Node, OpenAccess, OpenHow, OpenId, Opened, Read, ReadManyResult,
    RenameFlags, Seek, Special, Stability, Stop, Vfs, WalkRequest, WalkResult, Wrote, XattrMode,
    create_in_steps, finish_in_steps, resolve,
};
pub use spent::Spent;
pub use upcalls::{BoxFuture, Unsent, Upcalls};
pub use watch::{ChangeListener, Watch, Watched, WatchedAlone};
