//! Simulation and model checking of the protocol: clients, a network and a server on virtual time.
//!
//! [`world`] plays long random histories with message loss, duplication, reordering, partitions,
//! drifting clocks and crashes. [`history`] decides whether the programs' view is possible with one
//! copy of each file. [`model`] visits every state that a small configuration can reach. All use
//! the same [`Table`](crate::Table) and [`Holder`](crate::Holder) as a release, which contain no
//! code of the simulation.

pub mod history;
pub mod model;
mod net;
pub mod random;
mod server;
mod side;
pub mod world;
