//! An NQNFS client (R. Macklem, "Not Quite NFS", 1994; docs/NQNFS.md): turns a server into a `Vfs`.
//!
//! Opens, hidden names, listings and uncommitted writes are those of the NFSv3 client
//! ([`crate::v3`]). NQNFS is NFS version 2 with leases. NFSv3 is NFS version 2 with more data in
//! each reply. Each request of the NFSv3 client becomes a call of NQNFS ([`speak`]). The NFSv3
//! client requests data that a reply lacks, as with servers that omit it. A connection begins with
//! HELLO ([`greeting`]). By HELLO the server recognises the client after a lost connection.
//!
//! Calls that read also request read leases ([`leases`]). Data without a lease is valid for the
//! same time as in NFSv3 (close-to-open). This module delays no writes under a write lease: every
//! write is on stable storage when it is answered. A write that is correct only under such a lease
//! ends when the server restarts ([`held`]).

mod convert;
mod greeting;
mod held;
mod leases;
mod speak;
#[cfg(test)]
mod tests;

pub(crate) use leases::Leases;
pub(crate) use speak::{Nqnfs, ONLY_HELD};

use crate::connect::connector;
use crate::error::{MountError, Service};
use crate::mountd;
use crate::v3::{Beginning, Mount3, V3, machine_name, rpc_client};
use crate::{Options, Version};
use greeting::Greeting;
use hither_proto::nfs3::PORT;
use hither_proto::nqnfs::{PROGRAM, VERSION};
use hither_rpc::tls::Program;
use hither_rpc::{Endpoint, Stats};
use hither_vfs::Env;
use std::net::SocketAddr;
use std::sync::Arc;

/// Mounts `opts.path` with NQNFS. The addresses are tried in order until one answers. There is no
/// rpcbind: NQNFS is at `port=` (2049), MOUNT at `mountport=` or the same port. Must be called
/// inside a tokio runtime, which then runs the tasks of the file system.
///
/// # Errors
/// See [`MountError`]; the error of the last address when none answers.
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
        cause: "the name has no address".into(),
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
    let program = Program { number: PROGRAM, version: VERSION };
    let greeting = Greeting::new(connector(opts.tls.as_ref(), endpoint, program), (env.random)());
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
    /// Whether the version has neither opens nor locks. Opens and locks then stay within the
    /// client.
    pub fn is_stateless(self) -> bool {
        matches!(self, Version::V3 | Version::Nqnfs)
    }
}
