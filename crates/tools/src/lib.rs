//! The tools that measure: `hither bench`, `hither doctor` and `hither trace`, and the report of a
//! mount that they read.
//!
//! The crate knows nothing of mount options, daemons or control sockets. The binary implements
//! [`Host`], which finds daemons, configures clients and makes the runtime. The binary also uses
//! the small modules here: [`exit`] for results of commands, [`mountinfo`], [`source`], [`units`].

#![forbid(unsafe_code)]

pub mod bench;
pub mod doctor;
pub mod exit;
mod host;
pub mod mountinfo;
mod nearest;
pub mod report;
pub mod source;
pub mod trace;
pub mod units;

pub use host::{ClientRequest, ClientSettings, Host, MountDaemon};
pub use nearest::nearest;
