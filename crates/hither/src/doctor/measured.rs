//! The doctor's measurements: the words of `hither doctor --json`. Durations are in microseconds,
//! `None` is "not measured".

use super::tcp::Tcp;
use serde::Serialize;
use std::time::Duration;

/// Everything.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// The subject of the measurement.
    pub target: String,
    /// The server's address.
    pub server: String,
    /// From SYN to the end of the handshake.
    pub connect_us: Option<u64>,
    /// NULL calls: the network, and a server that does nothing.
    pub rtt_us: Option<Spread>,
    /// GETATTR calls: the same with the least work of a file system.
    pub getattr_us: Option<Spread>,
    /// Versions, and why one is not spoken.
    pub versions: Vec<Offered>,
    /// The version that the rest was measured with.
    pub version: Option<String>,
    /// The results of negotiation with the server.
    pub limits: Option<Limits>,
    /// The connection that was measured with, at the end.
    pub tcp: Option<Tcp>,
    /// Calls made on it.
    pub calls: u64,
    /// READs of a large file.
    pub read: Option<Throughput>,
    /// WRITEs of a new file, with the COMMIT (`--write`).
    pub write: Option<Throughput>,
    /// WRITEs of 4 KiB that the server may keep in memory (`--write`).
    pub unstable_write_us: Option<Spread>,
    /// WRITEs of 4 KiB to stable storage (`--write`).
    pub stable_write_us: Option<Spread>,
    /// How far the server's clock is ahead, and the error of that (`--write`).
    pub clock_ahead_us: Option<(i64, u64)>,
    /// Whether an open for reading brought a delegation.
    pub delegation: Option<bool>,
    /// The local disk that a cache is on.
    pub disk: Option<LocalDisk>,
    /// This machine.
    pub kernel: Kernel,
    /// The mount that was asked about, since it was made.
    pub mount: Option<Mix>,
    /// Measurements that failed, and the reasons.
    pub skipped: Vec<String>,
}

/// Several measurements of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Spread {
    /// The least.
    pub min: u64,
    /// Half took no longer.
    pub median: u64,
    /// The most.
    pub max: u64,
    /// How many.
    pub samples: u64,
}

impl Spread {
    /// Of some durations.
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
    /// It is spoken, and the path can be mounted with it.
    pub works: bool,
    /// Else the reason.
    pub why: Option<String>,
}

/// Sizes and numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes of a READ.
    pub rsize_bytes: u32,
    /// Bytes of a WRITE.
    pub wsize_bytes: u32,
    /// Requests in flight (NFSv4).
    pub slots: Option<u32>,
    /// Operations of a compound (NFSv4).
    pub operations: Option<u32>,
    /// Longest request (NFSv4).
    pub request_bytes: Option<u32>,
    /// Longest reply (NFSv4).
    pub response_bytes: Option<u32>,
    /// Lease (NFSv4).
    pub lease_s: Option<u64>,
}

/// Bytes moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Throughput {
    /// How many.
    pub bytes: u64,
    /// In which time.
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
    /// Reading data that the page cache has dropped, as far as the file system allows that.
    pub read: Throughput,
    /// Writes of 4 KiB with an fdatasync(2) each.
    pub sync_us: Spread,
}

/// This machine.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// Minor version of the FUSE protocol that the mount speaks.
    pub fuse_minor: Option<u32>,
    /// Whether there is a /dev/fuse.
    pub fuse: bool,
    /// Most bytes of a TCP receive window, and of unacknowledged bytes.
    pub tcp_rmem_max_bytes: Option<u64>,
    /// See `tcp_rmem_max_bytes`.
    pub tcp_wmem_max_bytes: Option<u64>,
}

/// The past work of a mount.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Mix {
    /// Where.
    pub dir: String,
    /// Calls, those sent again, and time-outs.
    pub calls: u64,
    /// See `calls`.
    pub resent: u64,
    /// See `calls`.
    pub timeouts: u64,
    /// Times that a connection was lost.
    pub drops: u64,
    /// Sums over calls: waiting here before they were sent, from sending to the reply, and all.
    pub queue_ms: u64,
    /// See `queue_ms`.
    pub rtt_ms: u64,
    /// See `queue_ms`.
    pub execute_ms: u64,
    /// Calls that carried data: READ and WRITE and the compounds that contain them.
    pub bytes: u64,
    /// Writers that had to wait for room.
    pub pushbacks: u64,
    /// The operations that took most of the time: name, calls, and milliseconds.
    pub most: Vec<(String, u64, u64)>,
    /// Its connections as the kernel sees them.
    pub tcp: Vec<Tcp>,
}
