//! A sequential journal in which changes become durable before they are where they belong (P3's
//! reliable write cache).
//!
//! It knows nothing of NFS. What it does: a changing call is applied to the file system at once but
//! not synced, so that the page cache is the merged and sorted state that reads see; a record of it
//! is appended to the journal; the call is answered when the record is durable, which is one
//! sequential write for all calls that came together. Now and then a checkpoint syncs the file
//! system and gives the journal's room back; overwritten and removed data never reaches the disk
//! below. After a crash the records since the last checkpoint are applied again to whatever the
//! file system kept.
//!
//! [`Log`] is the journal's file.

mod device;
mod log;
#[cfg(test)]
mod tests;

pub use device::{Device, RealDevice};
pub use log::{Found, Log, OpenError, Owner, Position, SIZE_MIN_BYTES, Settle, Then};
