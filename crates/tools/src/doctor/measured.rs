//! The doctor's measurements, with the field names of `hither doctor --json`. Durations are in
//! microseconds. `None` means "not measured".

use super::tcp::Tcp;
use serde::Serialize;
use std::time::Duration;

/// All measurements.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// The subject of the measurement.
    pub target: String,
    /// The server's address.
    pub server: String,
    /// From SYN to the end of the handshake.
    pub connect_us: Option<u64>,
    /// Round trips of NULL calls: the network and the server's RPC layer.
    pub rtt_us: Option<Spread>,
    /// Round trips of GETATTR calls, with the least work of a file system.
    pub getattr_us: Option<Spread>,
    /// NFS versions, and the reason why one is not offered.
    pub versions: Vec<Offered>,
    /// The version of the other measurements.
    pub version: Option<String>,
    /// The results of negotiation with the server.
    pub limits: Option<Limits>,
    /// The connection of the measurement, at its end.
    pub tcp: Option<Tcp>,
    /// Number of calls on that connection.
    pub calls: u64,
    /// READs of a large file.
    pub read: Option<Throughput>,
    /// WRITEs of a new file with a COMMIT (`--write`).
    pub write: Option<Throughput>,
    /// WRITEs of 4 KiB that the server may keep in memory (`--write`).
    pub unstable_write_us: Option<Spread>,
    /// WRITEs of 4 KiB to stable storage (`--write`).
    pub stable_write_us: Option<Spread>,
    /// How far the server's clock is ahead, and the error of that figure (`--write`).
    pub clock_ahead_us: Option<(i64, u64)>,
    /// Whether an open for reading returned a delegation.
    pub delegation: Option<bool>,
    /// The local disk of a cache.
    pub disk: Option<LocalDisk>,
    /// This machine.
    pub kernel: Kernel,
    /// The figures of the measured mount since it was mounted.
    pub mount: Option<Mix>,
    /// Measurements that failed, and the reasons.
    pub skipped: Vec<String>,
}

/// Several measurements of one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Spread {
    /// Minimum.
    pub min: u64,
    /// Median.
    pub median: u64,
    /// Maximum.
    pub max: u64,
    /// Number of measurements.
    pub samples: u64,
}

impl Spread {
    /// The spread of some durations.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let us = |t: &Duration| t.as_micros() as u64;
        let median = us(times.get(times.len() / 2)?);
        let (min, max) = (us(times.first()?), us(times.last()?));
        Some(Self { min, median, max, samples: times.len() as u64 })
    }
}

/// A version of NFS.
#[derive(Debug, Clone, Serialize)]
pub struct Offered {
    /// `3`, `4.1`, `4.2`.
    pub version: &'static str,
    /// Whether the path can be mounted with this version.
    pub works: bool,
    /// The reason if it cannot.
    pub why: Option<String>,
}

/// Negotiated sizes and numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Most bytes of a READ.
    pub rsize_bytes: u32,
    /// Most bytes of a WRITE.
    pub wsize_bytes: u32,
    /// Most requests in flight (NFSv4).
    pub slots: Option<u32>,
    /// Most operations of a compound (NFSv4).
    pub operations: Option<u32>,
    /// Longest request in bytes (NFSv4).
    pub request_bytes: Option<u32>,
    /// Longest reply in bytes (NFSv4).
    pub response_bytes: Option<u32>,
    /// Lease time in seconds (NFSv4).
    pub lease_s: Option<u64>,
}

/// Transferred bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Throughput {
    /// Number of bytes.
    pub bytes: u64,
    /// Duration.
    pub took_us: u64,
}

impl Throughput {
    /// Bytes a second.
    pub fn per_second(&self) -> u64 {
        (u128::from(self.bytes) * 1_000_000 / u128::from(self.took_us.max(1))) as u64
    }
}

/// A local disk.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LocalDisk {
    /// Directory on it.
    pub dir: String,
    /// Writing with fdatasync(2) at the end.
    pub write: Throughput,
    /// Reading. The page cache has dropped the data if the file system permits.
    pub read: Throughput,
    /// Writes of 4 KiB, each with an fdatasync(2).
    pub sync_us: Spread,
}

/// This machine.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// Minor version of the mount's FUSE protocol.
    pub fuse_minor: Option<u32>,
    /// Whether /dev/fuse exists.
    pub fuse: bool,
    /// Largest TCP receive buffer, and largest send buffer.
    pub tcp_rmem_max_bytes: Option<u64>,
    /// See `tcp_rmem_max_bytes`.
    pub tcp_wmem_max_bytes: Option<u64>,
}

/// Figures of a mount since it was mounted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Mix {
    /// Mount point.
    pub dir: String,
    /// Number of calls, of retransmissions, and of timeouts.
    pub calls: u64,
    /// See `calls`.
    pub resent: u64,
    /// See `calls`.
    pub timeouts: u64,
    /// Number of lost connections.
    pub drops: u64,
    /// Sums over calls: the wait before sending, the time from sending to the reply, and the whole
    /// time.
    pub queue_ms: u64,
    /// See `queue_ms`.
    pub rtt_ms: u64,
    /// See `queue_ms`.
    pub execute_ms: u64,
    /// Bytes of calls with data: READ, WRITE and the compounds that contain them.
    pub bytes: u64,
    /// Number of writers that waited for room.
    pub pushbacks: u64,
    /// The operations with the most time: name, calls and milliseconds.
    pub most: Vec<(String, u64, u64)>,
    /// The mount's connections as the kernel reports them.
    pub tcp: Vec<Tcp>,
}
