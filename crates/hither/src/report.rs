//! The report of a mount about itself: the words of the control socket and of `hither stat --json`.
//!
//! Names and meanings stay; new ones may be added. `version` grows when one changes its meaning.

use hither_fuse::OpCount;
use hither_rpc::stats::{OpSnapshot, Snapshot, TransportSnapshot};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of these words.
pub const VERSION: u32 = 1;

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The mount.
    pub mount: MountPart,
    /// Its TCP connections, in order of creation.
    pub connections: Vec<Connection>,
    /// Per operation (NFSv3 procedure, NFSv4 main operation of a compound) that was ever called.
    pub operations: Vec<Operation>,
    /// Requests of the kernel, by name.
    pub fuse: BTreeMap<String, u64>,
    /// Those among them that were answered with an error, such as "no such file".
    #[serde(default)]
    pub fuse_errors: BTreeMap<String, u64>,
    /// The counters of the layers, by layer: `hints` (paths read from callers), `meta` (names,
    /// attributes and small files answered from memory), `dirty` (delayed writes), `ahead` (new
    /// objects that wait), `removals` (names that wait to be removed), `disk` (contents kept on the
    /// local disk), `passthrough` (opens that the kernel reads by itself), `leases` (objects that
    /// the kernel keeps until the server recalls them).
    #[serde(default)]
    pub layers: BTreeMap<String, Counters>,
}

/// Counters by name, with a group of them below a name in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Counters {
    /// One.
    Count(u64),
    /// Several.
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

    /// The counters of several layers of one kind.
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

    /// The counters of a layer; empty when it is no map of numbers.
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
    /// NFS version spoken: `3`, `4.1`, `4.2`.
    pub nfs_version: String,
    /// The server's address.
    pub server: String,
    /// Options in effect, with their values.
    pub options: String,
    /// Bytes in one READ.
    pub rsize_bytes: u32,
    /// Bytes in one WRITE.
    pub wsize_bytes: u32,
    /// Seconds since it was mounted.
    pub age_s: u64,
    /// The daemon.
    pub pid: u32,
    /// Directory of the disk cache.
    #[serde(default)]
    pub cache: Option<String>,
    /// Why the disk cache takes nothing now.
    #[serde(default)]
    pub cache_trouble: Option<String>,
    /// Directory of the journal of delayed writes.
    #[serde(default)]
    pub journal: Option<String>,
    /// Why it takes nothing now.
    #[serde(default)]
    pub journal_trouble: Option<String>,
    /// Minor version of the FUSE protocol, 7.N.
    #[serde(default)]
    pub fuse_minor: Option<u32>,
}

/// One TCP connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Established now.
    pub connected: bool,
    /// Our port.
    pub local_port: u16,
    /// Times it was established; more than one: it was lost in between.
    pub connects: u64,
    /// Times it could not be established.
    pub connect_failures: u64,
    /// Calls sent, with those sent again.
    pub sends: u64,
    /// Replies received.
    pub receives: u64,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
    /// Seconds since the last message.
    pub idle_s: u64,
    /// Times it was lost.
    #[serde(default)]
    pub drops: u64,
    /// Replies to no call in flight.
    #[serde(default)]
    pub bad_xids: u64,
    /// Most calls ever in flight.
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
    /// Its name.
    pub name: String,
    /// Calls that ended.
    pub calls: u64,
    /// Times a call was sent again.
    pub retransmissions: u64,
    /// Major timeouts: `timeo` and `retrans` were used up.
    pub timeouts: u64,
    /// Calls that failed or were answered with an error status.
    pub errors: u64,
    /// Bytes of calls.
    pub bytes_sent: u64,
    /// Bytes of replies.
    pub bytes_received: u64,
    /// Sum of waiting before the first transmission.
    pub queue_ms: u64,
    /// Sum of the times from transmission to reply.
    pub rtt_ms: u64,
    /// Sum of the times from beginning to end.
    pub execute_ms: u64,
    /// Time from beginning to end of a call.
    pub latency_us: Latency,
    /// Time from the last transmission to the reply.
    #[serde(default)]
    pub rtt_us: Latency,
}

/// Percentiles, right to 1 %.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Half of the calls took no longer.
    pub p50: u64,
    /// 90 % took no longer.
    pub p90: u64,
    /// 99 % took no longer.
    pub p99: u64,
    /// The longest.
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
    /// Joins the counters of layers.
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

    /// The same with the counters of the layers since `before` (of present values, their growth).
    pub fn since(&self, before: &Report) -> Report {
        let minus = |(layer, now): (&String, &Counters)| {
            (layer.clone(), before.layers.get(layer).map_or_else(|| now.clone(), |old| now.minus(old)))
        };
        Report { layers: self.layers.iter().map(minus).collect(), ..self.clone() }
    }

    /// A counter of a layer; 0 when there is none.
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
