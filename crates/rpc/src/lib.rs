//! ONC RPC (RFC 5531) over TCP and over a simulated network.
//!
//! This crate has no NFS types: programs and procedures are numbers, arguments and results are
//! bytes. A [`Client`] spreads calls over one or more connections. Each connection has a table of
//! calls in flight, a writer task and a reader task. The writer sends queued calls with vectored
//! writes. The reader matches replies to calls by xid, in any order. The client re-establishes a
//! broken connection and sends its calls in flight again with the same xid. A server with a reply
//! cache therefore executes each of them once. [`RetryPolicy`] decides when a call fails because
//! the server does not answer (nfs(5) `timeo`, `retrans`, `soft`, `softerr`, `hard`).
//!
//! [`gss`] protects calls with security contexts (RPCSEC_GSS).
//!
//! A [`server::Acceptor`] is the server side: it passes the calls of many clients to a service.
//!
//! A [`Connect`] makes connections: [`TcpConnect`] over TCP, `sim::Net` for tests on virtual time.

#![forbid(unsafe_code)]

mod call;
mod client;
mod connection;
mod error;
mod flavor;
pub mod gss;
mod policy;
mod portmap;
pub mod server;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod stats;
mod tcp;
pub mod tls;
mod transport;

pub use call::{Call, CallbackHandler, Credential, Reply, Retransmit};
pub use client::{Client, ClientConfig};
pub use error::CallError;
pub use flavor::Flavor;
pub use policy::{Mode, RetryPolicy};
pub use portmap::{PortmapError, RPCBIND_SOCKET, Registered, Registration, Rpcbind, getport, getport_via};
pub use stats::Stats;
pub use tcp::{Endpoint, TcpConnect};
pub use transport::{BoxFuture, Connect, Link, read_record};
