//! A sequential journal: changes become durable in the journal first, and in the file system later
//! (P3's reliable write cache).
//!
//! The journal knows nothing of NFS. A changing call is applied to the file system at once, without
//! a sync. So the page cache is the merged and sorted state that reads see. A record of the change
//! is appended to the journal. The call is answered when the record is durable. One sequential
//! write makes the records of all concurrent calls durable. Checkpoints make the changes of old
//! records stable in the file system, and free their space in the journal. Data that is overwritten
//! or removed before its write-back never reaches the disk below. After a crash the records that
//! are not settled are applied again to the state that the file system kept.
//!
//! [`Log`] is the file of the journal.

mod device;
mod log;
#[cfg(test)]
mod tests;

pub use device::{Device, RealDevice};
#[cfg(test)]
pub use log::BLOCK_BYTES;
pub use log::{Found, Goal, Log, LogStats, OpenError, Owner, Position, SIZE_MIN_BYTES, Settle, Survey, Then};
