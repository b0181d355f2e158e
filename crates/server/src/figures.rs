//! The present state of a server, for reports: its clients, exports, limits and leases.

use crate::nqnfs::clients::ClientCounts;
use crate::server::Server;
use crate::v4::clients::{StateCounts, own_name};
use crate::v4::delegation::{DelegationCounts, LeaseCounts};
use bytes::Bytes;
use hither_rpc::server::Transport;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The state of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFigures {
    /// Names of the exports.
    pub exports: Vec<String>,
    /// The time until the grace period ends at the latest. `None`: it is over.
    pub grace: Option<Duration>,
    /// Clients that may still reclaim their state.
    pub reclaimers: usize,
    /// The clients of NFSv4.
    pub clients: Vec<ClientFigures>,
    /// Most clients of NFSv4.
    pub clients_max: usize,
    /// Opens, locks and delegations of all clients.
    pub states: usize,
    /// Most opens and locks.
    pub states_max: usize,
    /// Delegations, and the calls to clients about them.
    pub delegations: DelegationCounts,
    /// Most delegations.
    pub delegations_max: usize,
    /// Operations that wait until clients have given up delegations or leases.
    pub waiters: usize,
    /// The reply cache of NFSv3 and NQNFS.
    pub replies: ReplyCacheFigures,
    /// Leases of NQNFS. `None`: NQNFS is not offered.
    pub nqnfs: Option<NqnfsFigures>,
}

/// A client of NFSv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFigures {
    /// The client's number.
    pub id: u64,
    /// The name that the client gave itself.
    pub owner: Bytes,
    /// The address that introduced the client.
    pub host: IpAddr,
    /// The user that introduced the client. `None`: no user.
    pub uid: Option<u32>,
    /// The transport of its connections.
    pub transport: Transport,
    /// Minor version of the last call. 0 before the first call of a session.
    pub minor_version: u32,
    /// Opens.
    pub opens: usize,
    /// Owners with locks in a file.
    pub locks: usize,
    /// Delegations.
    pub delegations: usize,
    /// The time since the client's last call.
    pub silent: Duration,
    /// Calls in sessions.
    pub calls: u64,
    /// Bytes of these calls, without record marks.
    pub received_bytes: u64,
    /// Bytes of the replies.
    pub sent_bytes: u64,
}

/// The reply cache of NFSv3 and NQNFS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplyCacheFigures {
    /// Stored replies and calls in progress.
    pub entries: usize,
    /// Most stored replies.
    pub entries_max: usize,
    /// Repeated calls that got a stored reply.
    pub hits: u64,
}

/// Leases of NQNFS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NqnfsFigures {
    /// Clients that are connected or may hold leases.
    pub clients: usize,
    /// Connected clients.
    pub connected: usize,
    /// Leases.
    pub leases: usize,
    /// Of these, write leases.
    pub write_leases: usize,
}

/// Calls and bytes of a client.
#[derive(Default)]
pub(crate) struct Traffic {
    calls: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    minor_version: AtomicU32,
}

impl Traffic {
    /// Counts a call of NFSv4.
    pub fn add(&self, minor_version: u32, received_bytes: usize, sent_bytes: usize) {
        self.calls.fetch_add(1, Relaxed);
        self.received_bytes.fetch_add(received_bytes as u64, Relaxed);
        self.sent_bytes.fetch_add(sent_bytes as u64, Relaxed);
        self.minor_version.store(minor_version, Relaxed);
    }
}

impl Server {
    /// The present state.
    pub fn figures(&self) -> ServerFigures {
        let v4 = &self.v4;
        let LeaseCounts { leases, write_leases, waiters } = v4.leases.lease_counts();
        let nqnfs = v4.leases.short.as_ref().map(|short| {
            let ClientCounts { clients, connected } = short.clients.counts();
            NqnfsFigures { clients, connected, leases, write_leases }
        });
        let mut clients: Vec<ClientFigures> =
            v4.clients.all().iter().map(|c| self.client_figures(c)).collect();
        clients.sort_by_key(|client| client.id);
        let (grace, reclaimers) = v4.grace();
        ServerFigures {
            exports: self.table().exports().iter().map(|export| export.path.clone()).collect(),
            grace,
            reclaimers,
            clients,
            clients_max: self.options.clients_max,
            states: v4.registry.count(),
            states_max: v4.registry.max(),
            delegations: self.delegations(),
            delegations_max: self.options.delegations_max,
            waiters,
            replies: self.replies.figures(),
            nqnfs,
        }
    }

    fn client_figures(&self, client: &crate::v4::clients::Client) -> ClientFigures {
        let StateCounts { opens, locks, delegations } = client.state_counts();
        let traffic = &client.traffic;
        ClientFigures {
            id: client.id,
            owner: own_name(&client.owner),
            host: client.host,
            uid: client.principal.uid(),
            transport: client.transport.clone(),
            minor_version: traffic.minor_version.load(Relaxed),
            opens,
            locks,
            delegations,
            silent: self.v4.clients.silent(client),
            calls: traffic.calls.load(Relaxed),
            received_bytes: traffic.received_bytes.load(Relaxed),
            sent_bytes: traffic.sent_bytes.load(Relaxed),
        }
    }
}
