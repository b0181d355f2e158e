//! An NQNFS server (R. Macklem, "Not Quite NFS", 1994; docs/NQNFS.md) becomes a `Vfs`.
//!
//! It knows nothing of opens, hidden names, listings and uncommitted writes: those are the NFSv3
//! client's ([`crate::v3`]). NQNFS is NFS version 2 with leases, NFSv3 the same with more to say in
//! each answer, so the NFSv3 client's questions become calls of NQNFS one by one ([`speak`]), and
//! what NQNFS does not say the NFSv3 client asks for, as it does of servers that leave it out. A
//! connection begins with HELLO ([`greeting`]), by which the server knows the client again after a
//! lost connection.
//!
//! Leases for reading are asked for along with the calls that read ([`leases`]); what is not under
//! one holds as long as it does in NFSv3 (close-to-open). Nothing is delayed here under a lease for
//! writing: every write is on stable storage when it is answered. One that is right only under such
//! a lease ends with the server's life ([`held`]).

mod convert;
mod greeting;
mod held;
mod leases;
mod speak;
#[cfg(test)]
mod tests;

pub(crate) use leases::Leases;
pub(crate) use speak::{Nqnfs, ONLY_HELD};

use crate::error::{MountError, Service};
use crate::mountd;
use crate::v3::{Beginning, Mount3, V3, machine_name, rpc_client};
use crate::{Options, Version};
use greeting::Greeting;
use hither_proto::nfs3::PORT;
use hither_rpc::{Endpoint, Stats, TcpConnect};
use hither_vfs::Env;
use std::net::SocketAddr;
use std::sync::Arc;

/// Mounts `opts.path` with NQNFS. The addresses are tried in their order until one answers; there
/// is no rpcbind: NQNFS is at `port=` (2049), and MOUNT at `mountport=` or the same. Must be called
/// inside a tokio runtime, in which the file system's tasks then live.
///
/// # Errors
/// See [`MountError`]; the last address's when none answers.
pub async fn connect_nqnfs(opts: &Options, env: &Env, stats: Arc<Stats>) -> Result<Mount3, MountError> {
    let mut last = None;
    for addr in &opts.addrs {
        match connect_to(opts, env, stats.clone(), *addr).await {
            Ok(mounted) => return Ok(mounted),
            Err(e) if e.is_transient() => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| MountError::NoSuchHost {
        server: opts.server.clone(),
        cause: "it has no address".into(),
    }))
}

async fn connect_to(
    opts: &Options,
    env: &Env,
    stats: Arc<Stats>,
    addr: SocketAddr,
) -> Result<Mount3, MountError> {
    let addr = SocketAddr::new(addr.ip(), opts.port.unwrap_or(PORT));
    let mountd = SocketAddr::new(addr.ip(), opts.mount_port.unwrap_or(addr.port()));
    let machine = machine_name();
    let mounted = mountd::mount1(opts, mountd, machine.clone()).await?;
    let endpoint =
        Endpoint { addr, resvport: opts.resvport, keepalive: true, connect_timeout: mountd::PATIENCE };
    let greeting = Greeting::new(Arc::new(TcpConnect::new(endpoint)), (env.random)());
    let client = rpc_client(opts, env, greeting.clone(), stats.clone());
    let failed = |e| MountError::from_call(&opts.server, &opts.path, Service::Nfs, addr, "NQNFS", e);
    client.connect_now().await.map_err(failed)?;
    let (root, end) = (mounted.root.clone(), Some(mounted.clone()));
    match V3::begin_as(opts, env, client, stats, root, end, machine, Some(Nqnfs::new(greeting))).await {
        Ok(v3) => Ok(v3.mounted(addr)),
        Err(e) => {
            mounted.unmount().await;
            Err(match e {
                Beginning::Call(e) => failed(e),
                Beginning::Mount(e) => e,
            })
        }
    }
}

impl Version {
    /// Whether it has neither opens nor locks: what the client does about them is its own matter.
    pub fn is_stateless(self) -> bool {
        matches!(self, Version::V3 | Version::Nqnfs)
    }
}
