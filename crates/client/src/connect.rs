//! Connects to a server: chooses version and address from the options.
//!
//! Without `vers=` the client takes the newest version of the server: 4.2, 4.1, 3. A server may
//! speak version 4 and not show the path in its pseudo file system. In that case the client also
//! tries version 3, as mount.nfs(8) does. Older servers have different exports in version 3.

use crate::error::MountError;
use crate::v4::{Delegated, V4};
use crate::{LookupCache, Options, Version, nqnfs, v3};
use hither_proto::{nfs4, nqnfs as nqnfs_wire};
use hither_rpc::tls::{ClientTls, Program, TlsConnect};
use hither_rpc::{Connect, Endpoint, Flavor, Stats, TcpConnect};
use hither_vfs::{Env, LeaseAuthority, Vfs};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Port of NFSv4.
const NFS_PORT: u16 = 2049;
/// Longest time for one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time between two rounds of `retry=`.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// A connected file system.
#[derive(Clone)]
pub struct Connected {
    /// The file system.
    pub vfs: Arc<dyn Vfs>,
    /// Which data may be cached.
    pub leases: Arc<dyn LeaseAuthority>,
    /// The version in use.
    pub version: Version,
    /// The security flavor in use.
    pub flavor: Flavor,
    /// The server's address.
    pub server: SocketAddr,
    /// Most bytes of one READ.
    pub rsize_bytes: u32,
    /// Most bytes of one WRITE.
    pub wsize_bytes: u32,
    /// Names that may be remembered, as configured. No absent names when the server ignores case.
    pub lookup_cache: LookupCache,
    /// Statistics of the mount.
    pub stats: Arc<Stats>,
    /// Limits negotiated with an NFSv4 server.
    pub session: Option<SessionLimits>,
    /// Statistics of delegations, with NFSv4.
    pub delegated: Option<Delegated>,
}

/// Limits of an NFSv4 session's fore channel (RFC 8881 section 18.36), and the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Requests in flight.
    pub slots: u32,
    /// Operations of a compound.
    pub operations: u32,
    /// Longest request, in bytes.
    pub request_bytes: u32,
    /// Longest reply, in bytes.
    pub response_bytes: u32,
    /// Time after which the server may drop the state of a silent client.
    pub lease: Duration,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, server, rsize_bytes, wsize_bytes, .. } = self;
        write!(f, "NFS {} at {server}, rsize={rsize_bytes}, wsize={wsize_bytes}", version.name())
    }
}

/// Mounts `options.path`. Negotiates the version unless `options.version` sets one. Tries the
/// addresses in their order. Retries for `options.retry` while the server is absent. Must be called
/// inside a tokio runtime, which then runs the tasks of the file system.
///
/// # Errors
/// The reason for the failed mount; see [`MountError`].
pub async fn connect(options: &Options, env: Env) -> Result<Connected, MountError> {
    let give_up = Instant::now() + options.retry;
    let mut options = options.clone();
    loop {
        match connect_once(&options, &env).await {
            Err(MountError::WrongSecurity { ref flavors, .. })
                if let Some(security) = options.security.other(flavors) =>
            {
                options.security = security;
            }
            Err(ref e @ MountError::Kerberos { .. }) if let Some(security) = options.security.next() => {
                tracing::warn!("{e}; trying sec={}", security.flavor);
                options.security = security;
            }
            Err(e) if e.is_transient() && Instant::now() + RETRY_INTERVAL < give_up => {
                tracing::info!("{e}; trying again");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            done => return done,
        }
    }
}

/// Makes the connections of a mount to a program, through TLS if the mount uses TLS. Only queries
/// to rpcbind, which RFC 9289 does not cover, have connections of another kind.
pub(crate) fn connector(
    tls: Option<&Arc<ClientTls>>,
    endpoint: Endpoint,
    program: Program,
) -> Arc<dyn Connect> {
    let tcp = Arc::new(TcpConnect::new(endpoint));
    let Some(tls) = tls else { return tcp };
    let connect = TlsConnect::new(tcp, tls.clone(), program);
    // HELLO must be the first call of a connection of NQNFS, and its reply serves the same end.
    let greets = program.number == nqnfs_wire::PROGRAM;
    Arc::new(if greets { connect.without_confirmation() } else { connect })
}

async fn connect_once(options: &Options, env: &Env) -> Result<Connected, MountError> {
    let Some(version) = options.version else { return negotiate(options, env).await };
    connect_version(options, env, version).await
}

async fn negotiate(options: &Options, env: &Env) -> Result<Connected, MountError> {
    let mut hidden = None;
    for version in [Version::V42, Version::V41] {
        match connect_version(options, env, version).await {
            Err(e) if e.other_version_may_work() => tracing::debug!("{e}"),
            Err(e @ MountError::NoSuchExport { .. }) => {
                hidden = Some(e);
                break;
            }
            done => return done,
        }
    }
    match (connect_version(options, env, Version::V3).await, hidden) {
        (Err(_), Some(said)) => Err(said),
        (done, _) => done,
    }
}

async fn connect_version(options: &Options, env: &Env, version: Version) -> Result<Connected, MountError> {
    let stats = Arc::new(Stats::new());
    if version.is_stateless() {
        let v3::Mount3 { vfs, leases, server, rsize_bytes, wsize_bytes, lookup_cache } = match version {
            Version::Nqnfs => nqnfs::connect_nqnfs(options, env, stats.clone()).await?,
            _ => v3::connect_v3(options, env, stats.clone()).await?,
        };
        return Ok(Connected {
            vfs,
            leases,
            version,
            flavor: options.security.flavor,
            server,
            rsize_bytes,
            wsize_bytes,
            lookup_cache,
            stats,
            session: None,
            delegated: None,
        });
    }
    let mut refused = None;
    for &addr in &options.addrs {
        let port = options.port.unwrap_or(if addr.port() == 0 { NFS_PORT } else { addr.port() });
        let server = SocketAddr::new(addr.ip(), port);
        let endpoint = Endpoint {
            addr: server,
            resvport: options.resvport,
            keepalive: true,
            connect_timeout: CONNECT_TIMEOUT,
        };
        let program = Program { number: nfs4::PROGRAM, version: nfs4::VERSION };
        let connect = connector(options.tls.as_ref(), endpoint, program);
        match V4::mount(options.clone(), version, env.clone(), stats.clone(), connect, server).await {
            Ok(v4) => {
                let (rsize_bytes, wsize_bytes) = v4.transfer_sizes();
                let lookup_cache = v4.lookup_cache();
                let (session, delegated) = (v4.session_limits(), Some(v4.delegated()));
                let vfs = Arc::new(v4);
                return Ok(Connected {
                    leases: vfs.clone(),
                    vfs,
                    version,
                    flavor: options.security.flavor,
                    server,
                    rsize_bytes,
                    wsize_bytes,
                    lookup_cache,
                    stats,
                    session,
                    delegated,
                });
            }
            Err(e) if e.is_transient() => refused = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(refused.unwrap_or_else(|| MountError::NoSuchHost {
        server: options.server.clone(),
        cause: "the name has no address".into(),
    }))
}
