//! How messages travel: ONC RPC (RFC 5531) over TCP and over a simulated network.
//!
//! It knows nothing of NFS: programs and procedures are numbers, arguments and results are bytes. A
//! [`Client`] spreads calls over one or more connections. Each connection has a table of calls in
//! flight, a writer task that sends queued calls with vectored writes, and a reader task that
//! matches replies, in any order, to calls by their xid. A broken connection is made again. The
//! calls that were in flight on it are sent again with the same xid, so that a server with a reply
//! cache executes each of them once. [`RetryPolicy`] decides when a caller learns that the server
//! does not answer (nfs(5) `timeo`, `retrans`, `soft`, `softerr`, `hard`).
//!
//! A [`server::Acceptor`] is the other side: it hands the calls of many clients to a service.
//!
//! Transports are made by a [`Connect`]: [`TcpConnect`] for the world, `sim::Net` for tests on
//! virtual time.

#![forbid(unsafe_code)]

mod call;
mod client;
mod connection;
mod error;
mod policy;
mod portmap;
pub mod server;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod stats;
mod tcp;
mod transport;

pub use call::{Call, CallbackHandler, Credential, Reply, Retransmit};
pub use client::{Client, ClientConfig};
pub use error::CallError;
pub use policy::{Mode, RetryPolicy};
pub use portmap::{PortmapError, RPCBIND_SOCKET, Registered, Registration, Rpcbind, getport, getport_via};
pub use stats::Stats;
pub use tcp::{Endpoint, TcpConnect};
pub use transport::{BoxFuture, Connect, Link};
