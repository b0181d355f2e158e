//! The checked form of nfs(5) options for one mount.

use crate::security::Security;
use hither_rpc::tls::ClientTls;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Protocol version on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// NQNFS version 1 (R. Macklem, 1994) with MOUNT v1. Never negotiated.
    Nqnfs,
    /// NFSv3 (RFC 1813) with MOUNT v3.
    V3,
    /// NFSv4.1 (RFC 8881).
    V41,
    /// NFSv4.2 (RFC 7862).
    V42,
}

impl Version {
    /// The name as in `vers=`.
    pub fn name(self) -> &'static str {
        match self {
            Version::Nqnfs => "nqnfs",
            Version::V3 => "3",
            Version::V41 => "4.1",
            Version::V42 => "4.2",
        }
    }
}

/// Handling of a call that the server does not answer (nfs(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Retry for ever.
    Hard,
    /// `EIO` after `retrans` retries.
    Soft,
    /// `ETIMEDOUT` after `retrans` retries.
    Softerr,
}

/// `lookupcache=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupCache {
    /// Positive and negative names.
    All,
    /// Positive names only.
    Positive,
    /// No names.
    None,
}

/// Attribute cache times of nfs(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttrCache {
    /// Shortest time for files (`acregmin`, 3 s).
    pub regular_min: Duration,
    /// Longest time for files (`acregmax`, 60 s).
    pub regular_max: Duration,
    /// Shortest time for directories (`acdirmin`, 30 s).
    pub directory_min: Duration,
    /// Longest time for directories (`acdirmax`, 60 s).
    pub directory_max: Duration,
    /// Longest time for absent names (`acnegmax`, 60 s).
    pub negative_max: Duration,
}

impl Default for AttrCache {
    fn default() -> Self {
        Self {
            regular_min: Duration::from_secs(3),
            regular_max: Duration::from_secs(60),
            directory_min: Duration::from_secs(30),
            directory_max: Duration::from_secs(60),
            negative_max: Duration::from_secs(60),
        }
    }
}

impl AttrCache {
    /// `noac`: no attribute is kept.
    pub const NONE: Self = Self {
        regular_min: Duration::ZERO,
        regular_max: Duration::ZERO,
        directory_min: Duration::ZERO,
        directory_max: Duration::ZERO,
        negative_max: Duration::ZERO,
    };
}

/// Options of one mount. Names and defaults are those of nfs(5).
#[derive(Debug, Clone)]
pub struct Options {
    /// Server name as the user wrote it, for messages and owner strings.
    pub server: String,
    /// Addresses of the server in order of preference. The port is that of `port`, else 0.
    pub addrs: Vec<SocketAddr>,
    /// Exported path, absolute.
    pub path: String,
    /// `vers=`; `None` negotiates 4.2, 4.1, 3.
    pub version: Option<Version>,
    /// `port=`. Without it: 2049 for v4, rpcbind's answer for v3.
    pub port: Option<u16>,
    /// `mountport=` (v3).
    pub mount_port: Option<u16>,
    /// `hard`, `soft`, `softerr`.
    pub recovery: Recovery,
    /// `timeo=` (tenths of a second in nfs(5); TCP default 60 s).
    pub timeo: Duration,
    /// `retrans=` (TCP default 2).
    pub retrans: u32,
    /// `nconnect=` (1 to 16).
    pub nconnect: usize,
    /// `resvport`/`noresvport`.
    pub resvport: bool,
    /// `xprtsec=` and `tls-*`; `None`: connections without TLS.
    pub tls: Option<Arc<ClientTls>>,
    /// `sec=`.
    pub security: Security,
    /// `rsize=` in bytes, at most 1 MiB; `None` takes the server's preferred size.
    pub rsize_bytes: Option<u32>,
    /// `wsize=` in bytes, at most 1 MiB; `None` takes the server's preferred size.
    pub wsize_bytes: Option<u32>,
    /// `ac*`, `actimeo`, `noac`.
    pub attr_cache: AttrCache,
    /// `lookupcache=`.
    pub lookup_cache: LookupCache,
    /// The client requests delegations. Attributes and data under a delegation stay valid until its
    /// recall. False with `noac`.
    pub delegations: bool,
    /// Longest time for the layers above to drop data of a recalled file that they have not
    /// changed.
    pub withdraw_max: Duration,
    /// `cto`/`nocto`.
    pub close_to_open: bool,
    /// `sync`: every write is stable before it is acknowledged.
    pub sync: bool,
    /// `rdirplus`/`nordirplus`.
    pub readdirplus: bool,
    /// `chain`/`nochain`. With `chain` a compound has several names, objects and additional
    /// operations. With `nochain` a compound has one name.
    pub chains: bool,
    /// `chain-max=`: most names in one compound; `None` follows the server's limits.
    pub chain_max: Option<u32>,
    /// `acl`/`noacl`: `system.nfs4_acl` is offered.
    pub acl: bool,
    /// Domain of `user@domain` names (v4). `None` takes the domain of idmapd.conf, else of the host
    /// name.
    pub idmap_domain: Option<String>,
    /// A unique name that the client keeps over restarts. The server then ends the state of the
    /// previous instance at once. `None`: each instance has a random name.
    pub client_name: Option<String>,
    /// How long the mount command retries (`retry=`, minutes in nfs(5)). Zero: one attempt.
    pub retry: Duration,
}
