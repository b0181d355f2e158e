//! The client side of RPC.

use crate::call::{Call, CallbackHandler, Reply};
use crate::error::CallError;
use crate::policy::RetryPolicy;
use crate::stats::Stats;
use crate::transport::Connect;
use std::sync::Arc;
use tokio::sync::watch;

/// How a [`Client`] behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Number of connections (`nconnect`), at least 1.
    pub nconnect: usize,
    /// `timeo`, `retrans` and `hard`/`soft`/`softerr`.
    pub policy: RetryPolicy,
    /// Longest record that is sent or accepted, without its marks.
    pub max_record_bytes: usize,
    /// Most bytes of calls in flight, on all connections together; further callers wait.
    pub max_queued_bytes: usize,
    /// Fail calls with [`CallError::Connect`] when the connection cannot be made, instead of
    /// trying again: for helpers that are used once (portmap, MOUNT).
    pub fail_when_unreachable: bool,
    /// First xid and the jitter of back-offs; random by default, fixed in simulations.
    pub seed: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            nconnect: 1,
            policy: RetryPolicy::default(),
            max_record_bytes: 4 << 20,
            max_queued_bytes: 64 << 20,
            fail_when_unreachable: false,
            seed: rand::random(),
        }
    }
}

/// Calls one server. Cheap to clone; the connections close when the last clone is dropped.
#[derive(Clone)]
pub struct Client {
    cfg: Arc<ClientConfig>,
}

impl Client {
    /// A client that connects at its first call or at [`Client::connect_now`].
    pub fn new(connect: Arc<dyn Connect>, cfg: ClientConfig, stats: Arc<Stats>) -> Client {
        let _ = (connect, stats);
        Self { cfg: Arc::new(cfg) }
    }

    /// Connects now, once, and says precisely what went wrong. At mount time; without it the first
    /// call connects, as patiently as the policy says.
    ///
    /// # Errors
    /// [`CallError::Connect`] with the cause (refused, no route, timed out); [`CallError::Shutdown`].
    pub async fn connect_now(&self) -> Result<(), CallError> {
        Err(CallError::Shutdown)
    }

    /// Calls the server and waits for the result. Dropping the future abandons the call: the server
    /// may execute it all the same, and its late reply is ignored.
    ///
    /// # Errors
    /// See [`CallError`]; never `TimedOut` on a hard mount.
    pub async fn call(&self, c: Call) -> Result<Reply, CallError> {
        let _ = c;
        Err(CallError::Shutdown)
    }

    /// Who answers calls that come from the server. Without a handler they are answered with
    /// PROG_UNAVAIL.
    pub fn set_callback_handler(&self, handler: Arc<dyn CallbackHandler>) {
        let _ = handler;
    }

    /// Number of connections.
    pub fn nconnect(&self) -> usize {
        self.cfg.nconnect
    }

    /// For each connection how many times it was established; 0: not yet. The value changes after
    /// a reconnect, which is when a session must be bound to the connection again for its
    /// backchannel (RFC 8881 section 2.10.3.1): send that call with [`Call::connection`].
    pub fn generations(&self) -> watch::Receiver<Vec<u64>> {
        watch::channel(vec![0; self.cfg.nconnect]).1
    }

    /// Ends all connections; calls in flight and later ones fail with [`CallError::Shutdown`].
    pub fn shutdown(&self) {}
}
