//! The report of a mount: the messages of the control socket and of `hither stat --json`.
//!
//! Field names and meanings stay. New fields may be added. `version` grows when a meaning changes.

#[doc(hidden)]
pub mod sample;

use hither_fuse::OpCount;
use hither_rpc::stats::{OpSnapshot, Snapshot, TransportSnapshot};
use hither_rpc::tls::TlsReport;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the field names.
pub const VERSION: u32 = 1;

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The mount.
    pub mount: MountPart,
    /// Its TCP connections, in order of creation.
    pub connections: Vec<Connection>,
    /// Each operation that was called (NFSv3 procedure, or main operation of an NFSv4 compound).
    pub operations: Vec<Operation>,
    /// Requests of the kernel, by name.
    pub fuse: BTreeMap<String, u64>,
    /// Kernel requests that were answered with an error, such as "no such file".
    #[serde(default)]
    pub fuse_errors: BTreeMap<String, u64>,
    /// The counters of the layers, by layer:
    ///
    /// - `hints`: paths read from callers
    /// - `meta`: names, attributes and small files answered from memory
    /// - `dirty`: delayed writes
    /// - `ahead`: new objects that wait
    /// - `removals`: names that wait to be removed
    /// - `disk`: contents kept on the local disk
    /// - `passthrough`: opens that the kernel reads by itself
    /// - `leases`: objects that the kernel keeps until the server recalls them
    #[serde(default)]
    pub layers: BTreeMap<String, Counters>,
}

/// Counters by name. A group of counters is below a name of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Counters {
    /// One counter.
    Count(u64),
    /// A group of counters.
    Group(BTreeMap<String, Counters>),
}

impl Counters {
    fn minus(&self, old: &Counters) -> Counters {
        match (self, old) {
            (Counters::Count(now), Counters::Count(old)) => Counters::Count(now.saturating_sub(*old)),
            (Counters::Group(now), Counters::Group(old)) => {
                let one = |(name, now): (&String, &Counters)| {
                    (name.clone(), old.get(name).map_or_else(|| now.clone(), |old| now.minus(old)))
                };
                Counters::Group(now.iter().map(one).collect())
            }
            (now, _) => now.clone(),
        }
    }

    /// The sums of the counters of several layers of one kind.
    pub fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.reduce(|sum, one| sum.plus(one)).unwrap_or(Counters::Group(BTreeMap::new()))
    }

    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Counters::Count(a), Counters::Count(b)) => Counters::Count(a.saturating_add(b)),
            (Counters::Group(mut sum), Counters::Group(other)) => {
                for (name, more) in other {
                    let one = sum.remove(&name);
                    sum.insert(name, one.map_or_else(|| more.clone(), |one| one.plus(more.clone())));
                }
                Counters::Group(sum)
            }
            (sum, _) => sum,
        }
    }

    /// The counters of a layer. Empty unless `stats` is a map of numbers.
    pub fn of(stats: &impl Serialize) -> Self {
        let group = serde_json::to_value(stats).and_then(serde_json::from_value);
        group.unwrap_or_else(|_| Counters::Group(BTreeMap::new()))
    }
}

/// The mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPart {
    /// `SERVER:/PATH`.
    pub source: String,
    /// Mount point.
    pub dir: String,
    /// Negotiated NFS version: `3`, `4.1`, `4.2`.
    pub nfs_version: String,
    /// The server's address.
    pub server: String,
    /// Options in effect, with their values.
    pub options: String,
    /// Most bytes of one READ.
    pub rsize_bytes: u32,
    /// Most bytes of one WRITE.
    pub wsize_bytes: u32,
    /// Seconds since it was mounted.
    pub age_s: u64,
    /// Process id of the daemon.
    pub pid: u32,
    /// Directory of the disk cache.
    #[serde(default)]
    pub cache: Option<String>,
    /// Why the disk cache accepts no data now.
    #[serde(default)]
    pub cache_trouble: Option<String>,
    /// Directory of the journal of delayed writes.
    #[serde(default)]
    pub journal: Option<String>,
    /// Why the journal accepts no data now.
    #[serde(default)]
    pub journal_trouble: Option<String>,
    /// Minor version N of the FUSE protocol 7.N.
    #[serde(default)]
    pub fuse_minor: Option<u32>,
    /// The encryption of the connections; `None`: clear text.
    #[serde(default)]
    pub transport: Option<Transport>,
}

/// The encryption of a mount's connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transport {
    /// Always `TLS 1.3`.
    pub protocol: String,
    /// Cipher suite of the latest session.
    pub cipher: String,
    /// The name in the server's certificate.
    pub server_name: String,
    /// Whether the client offers a certificate.
    pub client_certificate: bool,
    /// Number of full handshakes.
    pub handshakes: u64,
    /// Number of resumed sessions.
    pub resumptions: u64,
}

impl From<TlsReport> for Transport {
    fn from(tls: TlsReport) -> Self {
        Self {
            protocol: "TLS 1.3".into(),
            cipher: tls.cipher,
            server_name: tls.server_name,
            client_certificate: tls.has_certificate,
            handshakes: tls.full,
            resumptions: tls.resumed,
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { protocol, cipher, server_name, handshakes, resumptions, .. } = self;
        let own = if self.client_certificate { ", client certificate" } else { "" };
        write!(
            f,
            "{protocol}, {cipher}, server {server_name}{own}; handshakes {handshakes}, resumed {resumptions}"
        )
    }
}

/// One TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Whether the connection is established now.
    pub connected: bool,
    /// Local port.
    pub local_port: u16,
    /// Number of times the connection was established. More than one means that it was lost in
    /// between.
    pub connects: u64,
    /// Number of failed connection attempts.
    pub connect_failures: u64,
    /// Number of transmitted calls, including retransmissions.
    pub sends: u64,
    /// Replies received.
    pub receives: u64,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
    /// Seconds since the last message.
    pub idle_s: u64,
    /// Number of times the connection was lost.
    #[serde(default)]
    pub drops: u64,
    /// Replies that match no call in flight.
    #[serde(default)]
    pub bad_xids: u64,
    /// Number of calls without a reply now, sent or waiting to be sent.
    #[serde(default)]
    pub in_flight: usize,
    /// Largest number of calls in flight.
    #[serde(default)]
    pub max_in_flight: u64,
    /// Sums of queue lengths, one sample for each call sent: calls that waited for room, calls
    /// waiting to be sent, calls in flight.
    #[serde(default)]
    pub backlog_sum: u64,
    /// See `backlog_sum`.
    #[serde(default)]
    pub sending_sum: u64,
    /// See `backlog_sum`.
    #[serde(default)]
    pub pending_sum: u64,
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Name of the operation.
    pub name: String,
    /// Calls that ended.
    pub calls: u64,
    /// Number of retransmissions.
    pub retransmissions: u64,
    /// Number of major timeouts: `timeo` and `retrans` were used up.
    pub timeouts: u64,
    /// Calls that failed or were answered with an error status.
    pub errors: u64,
    /// Bytes of calls.
    pub bytes_sent: u64,
    /// Bytes of replies.
    pub bytes_received: u64,
    /// Sum of the waits before the first transmission.
    pub queue_ms: u64,
    /// Sum of the times from transmission to reply.
    pub rtt_ms: u64,
    /// Sum of the times from the start to the end of a call.
    pub execute_ms: u64,
    /// Time from the start to the end of a call.
    pub latency_us: Latency,
    /// Time from the last transmission to the reply.
    #[serde(default)]
    pub rtt_us: Latency,
}

/// Percentiles, accurate to 1 %.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

impl From<&TransportSnapshot> for Connection {
    fn from(t: &TransportSnapshot) -> Self {
        Self {
            connected: t.connected,
            local_port: t.local_port,
            connects: t.connects,
            connect_failures: t.connect_failures,
            sends: t.sends,
            receives: t.recvs,
            bytes_sent: t.bytes_sent,
            bytes_received: t.bytes_received,
            idle_s: t.idle_s,
            drops: t.drops,
            bad_xids: t.bad_xids,
            in_flight: t.in_flight,
            max_in_flight: t.max_slots,
            backlog_sum: t.bklog_u,
            sending_sum: t.sending_u,
            pending_sum: t.pending_u,
        }
    }
}

impl From<&OpSnapshot> for Operation {
    fn from(op: &OpSnapshot) -> Self {
        Self {
            name: op.name.to_string(),
            calls: op.ops,
            retransmissions: op.transmissions.saturating_sub(op.ops),
            timeouts: op.major_timeouts,
            errors: op.errors,
            bytes_sent: op.bytes_sent,
            bytes_received: op.bytes_received,
            queue_ms: op.queue_ms,
            rtt_ms: op.rtt_ms,
            execute_ms: op.execute_ms,
            latency_us: Latency {
                mean: op.latency_mean_us(),
                p50: op.latency_us(50.0),
                p90: op.latency_us(90.0),
                p99: op.latency_us(99.0),
                max: op.latency_max_us(),
            },
            rtt_us: Latency {
                mean: op.rtt_mean_us(),
                p50: op.rtt_us(50.0),
                p90: op.rtt_us(90.0),
                p99: op.rtt_us(99.0),
                max: op.rtt_max_us(),
            },
        }
    }
}

impl Report {
    /// Combines the counters of the layers.
    pub fn new(
        mount: MountPart,
        rpc: &Snapshot,
        requests: &[OpCount],
        layers: BTreeMap<String, Counters>,
    ) -> Self {
        Self {
            version: VERSION,
            mount,
            connections: rpc.transports.iter().map(Connection::from).collect(),
            operations: rpc.ops.iter().map(Operation::from).collect(),
            fuse: requests.iter().map(|r| (r.op.to_string(), r.count)).collect(),
            fuse_errors: requests
                .iter()
                .filter(|r| r.errors > 0)
                .map(|r| (r.op.to_string(), r.errors))
                .collect(),
            layers,
        }
    }

    /// The same report with the growth of the layers' counters since `before`.
    pub fn since(&self, before: &Report) -> Report {
        let minus = |(layer, now): (&String, &Counters)| {
            (layer.clone(), before.layers.get(layer).map_or_else(|| now.clone(), |old| now.minus(old)))
        };
        Report { layers: self.layers.iter().map(minus).collect(), ..self.clone() }
    }

    /// A counter of a layer, or 0 if it does not exist.
    pub fn count(&self, layer: &str, name: &str) -> u64 {
        match self.layers.get(layer) {
            Some(Counters::Group(group)) => match group.get(name) {
                Some(Counters::Count(n)) => *n,
                _ => 0,
            },
            _ => 0,
        }
    }
}
