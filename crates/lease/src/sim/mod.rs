//! How the protocol is judged: whole worlds of clients, a network and a server on virtual time.
//!
//! [`world`] plays long random histories with message loss, duplication, reordering, partitions,
//! drifting clocks and crashes; [`history`] decides whether the programs' view could have happened
//! on one copy of each file; [`model`] visits every state that a small configuration can reach. All
//! use the very [`Table`](crate::Table) and [`Holder`](crate::Holder) that are shipped, and nothing
//! here is compiled into them.

pub mod history;
pub mod model;
mod net;
pub mod random;
mod server;
mod side;
pub mod world;
