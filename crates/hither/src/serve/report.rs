//! The report of a server: the messages of its control socket and of `hither stat --server --json`.
//!
//! Field names and meanings stay. New fields may be added. `version` grows when a meaning changes.

use hither_localfs::local::JournalStats;
use hither_proto::{mount, nfs3, nlm, nqnfs};
use hither_rpc::server::{AcceptorFigures, ConnectionFigures};
use hither_server::{ClientFigures, ErrorClass, OperationCounts, ServerFigures, Times};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Version of the field names.
pub const VERSION: u32 = 1;
/// Number of [`Phase::below_us`]: up to 4^12 microseconds, 16.8 seconds.
pub const POWERS: usize = 13;

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the program.
    pub program_version: String,
    /// Process id of the server.
    pub pid: u32,
    /// Addresses on which the server listens.
    pub listen: Vec<String>,
    /// Seconds since the start.
    pub age_s: u64,
    /// Names of the exports.
    pub exports: Vec<String>,
    /// The grace period, while it lasts.
    pub grace: Option<GracePart>,
    /// Procedures of NFSv3, NFSv4, NQNFS, MOUNT and NLM, and operations of NFSv4 (`nfs4op`), that
    /// were called.
    pub operations: Vec<ServerOperation>,
    /// The connections.
    pub connections: ConnectionsPart,
    /// The clients of NFSv4.
    pub clients: Vec<ClientPart>,
    /// The limits and their use.
    pub limits: LimitsPart,
    /// The reply cache of NFSv3 and NQNFS.
    pub reply_cache: ReplyCachePart,
    /// Delegations of NFSv4.
    pub delegations: DelegationsPart,
    /// Leases of NQNFS, if it is offered.
    pub nqnfs: Option<NqnfsPart>,
    /// The journal, if there is one.
    pub journal: Option<JournalPart>,
}

/// The grace period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GracePart {
    /// Milliseconds until it ends at the latest.
    pub left_ms: u64,
    /// Clients that may still reclaim their state.
    pub reclaimers: usize,
}

/// A procedure or an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerOperation {
    /// `nfs3`, `nfs4`, `nfs4op`, `nqnfs`, `mount`, `nlm` or `other`.
    pub protocol: String,
    /// Name in the protocol.
    pub name: String,
    /// Answered calls, or executed operations.
    pub calls: u64,
    /// Calls with an error, by the kind of the error.
    pub errors: BTreeMap<String, u64>,
    /// Bytes of calls, without record marks; of an operation, its arguments.
    pub received_bytes: u64,
    /// Bytes of replies, likewise.
    pub sent_bytes: u64,
    /// From the arrival of the call to its result.
    pub total: Phase,
    /// Waits for permits, memory, the rate limit and the turn of the address.
    pub queue: Phase,
    /// Waits for the files.
    pub store: Phase,
    /// Waits for the journal.
    pub journal: Phase,
}

/// The durations of a part of all calls. Percentiles are upper bounds, at most half too high.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Sum in microseconds.
    pub sum_us: u64,
    /// Median in microseconds.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Numbers of durations below 1, 4, 16, ... microseconds.
    pub below_us: Vec<u64>,
}

/// The connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionsPart {
    /// Most connections.
    pub max: usize,
    /// Connections since the start.
    pub accepted: u64,
    /// Connections that the server ended because of their client.
    pub dropped: u64,
    /// Calls since the start.
    pub calls: u64,
    /// Bytes read since the start, with record marks.
    pub received_bytes: u64,
    /// Bytes written since the start, with record marks.
    pub sent_bytes: u64,
    /// The present connections.
    pub list: Vec<ConnectionPart>,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConnectionPart {
    /// The client's address and port.
    pub address: String,
    /// The server's address and port.
    pub local: String,
    /// Its protection: `none`, `tls`, or `mtls` and the first name of the client certificate.
    pub transport: String,
    /// Protocol of the last call.
    pub protocol: Option<String>,
    /// User of the last call.
    pub uid: Option<u32>,
    /// Seconds since its start.
    pub age_s: u64,
    /// Milliseconds since the client's last message.
    pub idle_ms: u64,
    /// Calls.
    pub calls: u64,
    /// Bytes read, with record marks.
    pub received_bytes: u64,
    /// Bytes written, with record marks.
    pub sent_bytes: u64,
    /// Bytes of replies that wait for the client.
    pub queued_bytes: usize,
    /// Memory of calls and replies in bytes.
    pub memory_bytes: usize,
}

/// A client of NFSv4.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientPart {
    /// The server's number for the client, in hexadecimal digits.
    pub id: String,
    /// The client's name, with escapes.
    pub name: String,
    /// The client's address.
    pub address: String,
    /// The protection of its connections, as in [`ConnectionPart::transport`].
    pub transport: String,
    /// `4.1` or `4.2`; `4` before the first call of a session.
    pub nfs_version: String,
    /// The user that introduced the client.
    pub uid: Option<u32>,
    /// Opens.
    pub opens: usize,
    /// Owners with locks in a file.
    pub locks: usize,
    /// Delegations.
    pub delegations: usize,
    /// Milliseconds since the client's last call.
    pub silent_ms: u64,
    /// Calls in sessions.
    pub calls: u64,
    /// Bytes of these calls.
    pub received_bytes: u64,
    /// Bytes of the replies.
    pub sent_bytes: u64,
}

/// The limits and their use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsPart {
    /// Memory of calls and replies in bytes.
    pub memory_bytes: usize,
    /// Most memory of calls and replies.
    pub memory_max_bytes: usize,
    /// Most clients of NFSv4.
    pub clients_max: usize,
    /// Opens, locks and delegations of NFSv4.
    pub states: usize,
    /// Most opens and locks.
    pub states_max: usize,
}

/// The reply cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyCachePart {
    /// Stored replies and calls in progress.
    pub entries: usize,
    /// Most stored replies.
    pub entries_max: usize,
    /// Repeated calls that got a stored reply.
    pub hits: u64,
}

/// Delegations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegationsPart {
    /// Files delegated for reading.
    pub read: usize,
    /// Files delegated for writing.
    pub write: usize,
    /// Delegated directories.
    pub directory: usize,
    /// Most delegations.
    pub max: usize,
    /// Recalls sent since the start.
    pub recalls: u64,
    /// Questions for attributes sent to holders since the start.
    pub getattrs: u64,
    /// Operations that wait until clients have given up delegations or leases.
    pub waiters: usize,
}

/// Leases of NQNFS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NqnfsPart {
    /// Clients that are connected or may hold leases.
    pub clients: usize,
    /// Connected clients.
    pub connected: usize,
    /// Leases.
    pub leases: usize,
    /// Of these, write leases.
    pub write_leases: usize,
}

/// The journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPart {
    /// Bytes that records take.
    pub used_bytes: u64,
    /// Bytes that records may take.
    pub room_bytes: u64,
    /// Milliseconds since the oldest record became durable that no checkpoint has settled.
    pub oldest_ms: Option<u64>,
    /// Records since the start.
    pub records: u64,
    /// Writes of these records: one for all records that wait together.
    pub batches: u64,
    /// Checkpoints since the start.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoint_failures: u64,
    /// Duration of the last checkpoint that succeeded, in milliseconds.
    pub last_checkpoint_ms: u64,
    /// The disk below fails, and the journal keeps all records.
    pub disk_fails: bool,
    /// The journal is out of use until the next start.
    pub has_failed: bool,
    /// Reads that were answered from the journal.
    pub reads: u64,
    /// Bytes of records that were written again after a failure.
    pub rewritten_bytes: u64,
}

/// The sources of a report.
pub struct Sources<'a> {
    /// The connections.
    pub acceptor: AcceptorFigures,
    /// Clients, limits and leases.
    pub server: ServerFigures,
    /// Procedures and operations.
    pub operations: Vec<OperationCounts>,
    /// The journal.
    pub journal: Option<JournalStats>,
    /// Addresses on which the server listens.
    pub listen: &'a [std::net::SocketAddr],
    /// The time since the start.
    pub age: Duration,
}

impl ServerReport {
    /// Makes a report.
    pub fn new(from: Sources<'_>) -> Self {
        let Sources { acceptor, server, operations, journal, listen, age } = from;
        let counts = server.delegations;
        Self {
            version: VERSION,
            program_version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            listen: listen.iter().map(ToString::to_string).collect(),
            age_s: age.as_secs(),
            grace: server
                .grace
                .map(|left| GracePart { left_ms: millis(left), reclaimers: server.reclaimers }),
            operations: operations.iter().map(ServerOperation::from).collect(),
            clients: server.clients.iter().map(ClientPart::from).collect(),
            limits: LimitsPart {
                memory_bytes: acceptor.memory_bytes,
                memory_max_bytes: acceptor.memory_max_bytes,
                clients_max: server.clients_max,
                states: server.states,
                states_max: server.states_max,
            },
            reply_cache: ReplyCachePart {
                entries: server.replies.entries,
                entries_max: server.replies.entries_max,
                hits: server.replies.hits,
            },
            delegations: DelegationsPart {
                read: counts.reading,
                write: counts.writing,
                directory: counts.directories,
                max: server.delegations_max,
                recalls: counts.recalls,
                getattrs: counts.getattrs,
                waiters: server.waiters,
            },
            nqnfs: server.nqnfs.map(|n| NqnfsPart {
                clients: n.clients,
                connected: n.connected,
                leases: n.leases,
                write_leases: n.write_leases,
            }),
            exports: server.exports,
            journal: journal.map(JournalPart::from),
            connections: ConnectionsPart::from(&acceptor),
        }
    }

    /// The reasons why the server cannot serve as promised.
    pub fn troubles(&self) -> Vec<&'static str> {
        let journal = |is: fn(&JournalPart) -> bool| self.journal.as_ref().is_some_and(is);
        let all = [
            (self.exports.is_empty(), "no export is served"),
            (journal(|j| j.has_failed), "the journal has failed"),
            (journal(|j| j.disk_fails), "the disk below the journal fails"),
        ];
        all.into_iter().filter(|(is, _)| *is).map(|(_, trouble)| trouble).collect()
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

impl From<&OperationCounts> for ServerOperation {
    fn from(counts: &OperationCounts) -> Self {
        let errors = ErrorClass::ALL.iter().zip(counts.errors).filter(|(_, n)| *n > 0);
        Self {
            protocol: counts.protocol.into(),
            name: counts.name.clone(),
            calls: counts.calls,
            errors: errors.map(|(class, n)| (class.name().to_string(), n)).collect(),
            received_bytes: counts.received_bytes,
            sent_bytes: counts.sent_bytes,
            total: Phase::from(&counts.total),
            queue: Phase::from(&counts.queue),
            store: Phase::from(&counts.store),
            journal: Phase::from(&counts.journal),
        }
    }
}

impl From<&Times> for Phase {
    fn from(times: &Times) -> Self {
        Self {
            sum_us: u64::try_from(times.sum.as_micros()).unwrap_or(u64::MAX),
            p50_us: times.quantile_us(0.5),
            p90_us: times.quantile_us(0.9),
            p99_us: times.quantile_us(0.99),
            below_us: (0..POWERS).map(|power| times.below_power_of_four(power)).collect(),
        }
    }
}

impl From<&AcceptorFigures> for ConnectionsPart {
    fn from(figures: &AcceptorFigures) -> Self {
        Self {
            max: figures.connections_max,
            accepted: figures.accepted,
            dropped: figures.dropped,
            calls: figures.calls,
            received_bytes: figures.received_bytes,
            sent_bytes: figures.sent_bytes,
            list: figures.connections.iter().map(ConnectionPart::from).collect(),
        }
    }
}

impl From<&ConnectionFigures> for ConnectionPart {
    fn from(c: &ConnectionFigures) -> Self {
        let protocol = c.program.map(|(prog, vers)| match prog {
            nfs3::PROGRAM => format!("nfs{vers}"),
            nqnfs::PROGRAM => "nqnfs".into(),
            mount::PROGRAM => "mount".into(),
            nlm::PROGRAM => "nlm".into(),
            other => other.to_string(),
        });
        Self {
            address: c.addr.to_string(),
            local: c.local.to_string(),
            transport: c.transport.to_string(),
            protocol,
            uid: c.uid,
            age_s: c.age.as_secs(),
            idle_ms: millis(c.idle),
            calls: c.calls,
            received_bytes: c.received_bytes,
            sent_bytes: c.sent_bytes,
            queued_bytes: c.queued_bytes,
            memory_bytes: c.memory_bytes,
        }
    }
}

impl From<&ClientFigures> for ClientPart {
    fn from(c: &ClientFigures) -> Self {
        Self {
            id: format!("{:016x}", c.id),
            name: c.owner.escape_ascii().to_string(),
            address: c.host.to_string(),
            transport: c.transport.to_string(),
            nfs_version: if c.minor_version > 0 { format!("4.{}", c.minor_version) } else { "4".into() },
            uid: c.uid,
            opens: c.opens,
            locks: c.locks,
            delegations: c.delegations,
            silent_ms: millis(c.silent),
            calls: c.calls,
            received_bytes: c.received_bytes,
            sent_bytes: c.sent_bytes,
        }
    }
}

impl From<JournalStats> for JournalPart {
    fn from(stats: JournalStats) -> Self {
        Self {
            used_bytes: stats.used_bytes,
            room_bytes: stats.room_bytes,
            oldest_ms: stats.log.oldest.map(millis),
            records: stats.log.records,
            batches: stats.log.batches,
            checkpoints: stats.log.checkpoints,
            checkpoint_failures: stats.log.checkpoint_failures,
            last_checkpoint_ms: millis(stats.log.last_checkpoint),
            disk_fails: stats.disk_fails,
            has_failed: stats.has_failed,
            reads: stats.reads,
            rewritten_bytes: stats.rewritten_bytes,
        }
    }
}
