//! Start of an NFSv3 mount: mountd, NFS port, sizes, root.

use super::listing_sizes::ListingSizes;
use super::wire::{Caller, Patience, Sizes};
use super::{Inner, V3, convert};
use crate::connect::connector;
use crate::error::{MountError, Service};
use crate::mountd;
use crate::nqnfs::Nqnfs;
use crate::security::Credentials;
use crate::validity::ValidityRules;
use crate::writes::{Limits, Uncommitted};
use crate::{LookupCache, Options, Recovery};
use bytes::Bytes;
use hither_proto::nfs3::{FsinfoArgs, FsinfoOk, GetattrArgs, PORT, PROGRAM, PathconfArgs, VERSION, fsf};
use hither_rpc::tls::Program;
use hither_rpc::{CallError, Client, ClientConfig, Connect, Endpoint, Mode, RetryPolicy, Stats};
use hither_vfs::{Cred, Env, Fh, FileKind, LeaseAuthority, Name, Vfs};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use tokio::time::Instant;

/// Largest READ and WRITE, as in nfs(5).
const IO_MAX_BYTES: u32 = 1 << 20;
/// Smallest useful READ and WRITE. A smaller maximum of the server is still respected.
const IO_LEAST_BYTES: u32 = 1024;
/// Room in a record beside the payload: RPC header with credential, filehandle, attributes.
const RECORD_SLACK_BYTES: usize = 16 << 10;

/// An export mounted with NFSv3.
#[derive(Clone)]
pub struct Mount3 {
    /// The file system.
    pub vfs: Arc<dyn Vfs>,
    /// Which data may be cached.
    pub leases: Arc<dyn LeaseAuthority>,
    /// Address of the server.
    pub server: SocketAddr,
    /// Most bytes of one READ.
    pub rsize_bytes: u32,
    /// Most bytes of one WRITE.
    pub wsize_bytes: u32,
    /// Names that may be remembered.
    pub lookup_cache: LookupCache,
}

/// Mounts `opts.path` with NFSv3. The addresses are tried in order until one answers. Must be
/// called inside a tokio runtime, which then runs the tasks of the file system.
///
/// # Errors
/// See [`MountError`]; the error of the last address when none answers.
pub async fn connect_v3(opts: &Options, env: &Env, stats: Arc<Stats>) -> Result<Mount3, MountError> {
    let machine = machine_name();
    let mut last = None;
    for addr in &opts.addrs {
        match connect_to(opts, env, stats.clone(), *addr, machine.clone()).await {
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
    machine: Bytes,
) -> Result<Mount3, MountError> {
    let mounted = mountd::mount(opts, addr.ip(), machine.clone()).await?;
    let port = nfs_port(opts, addr).await?;
    let addr = SocketAddr::new(addr.ip(), port);
    let endpoint =
        Endpoint { addr, resvport: opts.resvport, keepalive: true, connect_timeout: mountd::PATIENCE };
    let connect = connector(opts.tls.as_ref(), endpoint, Program { number: PROGRAM, version: VERSION });
    let client = rpc_client(opts, env, connect, stats.clone());
    let failed = |e| MountError::from_call(&opts.server, &opts.path, Service::Nfs, addr, "NFS version 3", e);
    client.connect_now().await.map_err(failed)?;
    let root = mounted.root.clone();
    let v3 = V3::begin(opts, env, client, stats, root, Some(mounted.clone()), machine).await;
    match v3 {
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

/// `port=`, or rpcbind's answer. With `mountport=` the server may have no rpcbind: then the
/// well-known port.
async fn nfs_port(opts: &Options, addr: SocketAddr) -> Result<u16, MountError> {
    if let Some(port) = opts.port {
        return Ok(port);
    }
    match mountd::port(opts, addr.ip(), Service::Nfs, "port=2049").await {
        Err(_) if opts.mount_port.is_some() => Ok(PORT),
        found => found,
    }
}

/// An RPC client with the retry policy of the mount.
pub(crate) fn rpc_client(opts: &Options, env: &Env, connect: Arc<dyn Connect>, stats: Arc<Stats>) -> Client {
    let mode = match opts.recovery {
        Recovery::Hard => Mode::Hard,
        Recovery::Soft => Mode::Soft,
        Recovery::Softerr => Mode::Softerr,
    };
    let cfg = ClientConfig {
        nconnect: opts.nconnect,
        policy: RetryPolicy { timeo: opts.timeo, retrans: opts.retrans, mode },
        max_record_bytes: IO_MAX_BYTES as usize + RECORD_SLACK_BYTES,
        seed: (env.random)(),
        ..ClientConfig::default()
    };
    Client::new(connect, cfg, stats)
}

/// Reason for a failed mount after mountd.
#[derive(Debug)]
pub(crate) enum Beginning {
    /// A call had no answer.
    Call(CallError),
    /// The server's answers do not allow a mount.
    Mount(MountError),
}

impl From<CallError> for Beginning {
    fn from(e: CallError) -> Self {
        Self::Call(e)
    }
}

impl V3 {
    /// Requests sizes and limits, and checks that the root is a directory.
    pub(super) async fn begin(
        opts: &Options,
        env: &Env,
        client: Client,
        stats: Arc<Stats>,
        root: Fh,
        mounted: Option<mountd::Mounted>,
        machine: Bytes,
    ) -> Result<V3, Beginning> {
        Self::begin_as(opts, env, client, stats, root, mounted, machine, None).await
    }

    /// As [`V3::begin`], with an optional NQNFS layer that sends the calls.
    #[expect(clippy::too_many_arguments, reason = "what a mount is made of")]
    pub(crate) async fn begin_as(
        opts: &Options,
        env: &Env,
        client: Client,
        stats: Arc<Stats>,
        root: Fh,
        mounted: Option<mountd::Mounted>,
        machine: Bytes,
        nqnfs: Option<Nqnfs>,
    ) -> Result<V3, Beginning> {
        let rules = ValidityRules::new(opts, env);
        let credentials = Credentials::new(&opts.security, &opts.server, machine);
        let mut caller = Caller::new(client, stats, env.clone(), rules, credentials);
        caller.nqnfs = nqnfs;
        let patience = Patience::until(Instant::now() + mountd::PATIENCE);
        let cred = Cred::root();
        let fail = |cause: String| {
            let (server, path) = (opts.server.clone(), opts.path.clone());
            Beginning::Mount(MountError::Failed { server, path, cause })
        };
        let handle = convert::fh3(&root).map_err(|e| fail(e.to_string()))?;
        let (fsroot, object) = (handle.clone(), handle.clone());
        let (info, limits, attr) =
            (FsinfoArgs { fsroot }, PathconfArgs { object }, GetattrArgs { object: handle });
        let (info, limits, attr) = tokio::join!(
            caller.ask(&cred, &patience, &info),
            caller.ask(&cred, &patience, &limits),
            caller.ask(&cred, &patience, &attr),
        );
        let info = info?.map_err(|(status, _)| fail(format!("FSINFO: NFS3ERR_{status:?}")))?;
        // Servers may refuse PATHCONF. Then the usual limits apply.
        let limits = limits?.ok();
        if limits.as_ref().is_some_and(|l| l.case_insensitive) {
            caller.rules.ignore_case();
        }
        let exact_names = limits.as_ref().is_some_and(|l| !l.case_insensitive);
        caller.sizes = sizes(opts, &info, limits.map(|l| l.name_max));
        if info.properties & fsf::CANSETTIME == 0 {
            tracing::warn!(server = opts.server, "the server cannot set times exactly");
        }
        let attr = attr?.map_err(|(status, _)| fail(format!("GETATTR: NFS3ERR_{status:?}")))?;
        let Some(attr) = convert::attr(&attr).filter(|a| a.kind == FileKind::Directory) else {
            let (server, path) = (opts.server.clone(), opts.path.clone());
            return Err(Beginning::Mount(MountError::NotDirectory { server, path }));
        };
        let caller = Arc::new(caller);
        let writes = Uncommitted::new(caller.clone(), Limits::default());
        tokio::spawn(watch_reconnections(caller.client.generations(), Arc::downgrade(&writes)));
        let inner = Inner {
            caller,
            writes,
            opens: Arc::default(),
            stamps: Default::default(),
            opts: opts.clone(),
            root,
            mounted,
            no_readdirplus: AtomicBool::new(false),
            old_beside: info.properties & fsf::OLD_BESIDE != 0,
            listing_sizes: ListingSizes::default(),
            exact_names,
            root_fsid: attr.fsid,
        };
        Ok(V3 { inner: Arc::new(inner) })
    }

    /// The result of the mount for its caller.
    pub(crate) fn mounted(self, server: SocketAddr) -> Mount3 {
        let Sizes { rsize_bytes, wsize_bytes, .. } = self.caller.sizes;
        let lookup_cache = self.caller.rules.lookup_cache();
        let vfs = Arc::new(self);
        Mount3 { leases: vfs.clone(), vfs, server, rsize_bytes, wsize_bytes, lookup_cache }
    }
}

/// The server's preferred sizes, or the configured sizes within the server's maximum.
fn sizes(opts: &Options, info: &FsinfoOk, name_max: Option<u32>) -> Sizes {
    let size = |wanted: Option<u32>, pref: u32, max: u32| {
        let most = if max == 0 { IO_MAX_BYTES } else { max.min(IO_MAX_BYTES) };
        let wanted = wanted.unwrap_or(if pref == 0 { most } else { pref });
        wanted.clamp(IO_LEAST_BYTES.min(most), most)
    };
    Sizes {
        rsize_bytes: size(opts.rsize_bytes, info.rtpref, info.rtmax),
        wsize_bytes: size(opts.wsize_bytes, info.wtpref, info.wtmax),
        name_max_bytes: name_max.filter(|n| *n > 0).unwrap_or(255).min(Name::MAX_BYTES as u32),
        file_max_bytes: if info.maxfilesize == 0 { i64::MAX as u64 } else { info.maxfilesize },
    }
}

/// Commits all files after a reconnection. The server may have lost unstable writes, and COMMIT
/// shows that.
async fn watch_reconnections(mut generations: watch::Receiver<Vec<u64>>, writes: Weak<Uncommitted>) {
    // Generation 1 is the first connection, which is no reconnection.
    let again = |g: &Vec<u64>| g.iter().map(|n| n.saturating_sub(1)).sum::<u64>();
    let mut known = again(&generations.borrow_and_update());
    while generations.changed().await.is_ok() {
        let now = again(&generations.borrow_and_update());
        let Some(writes) = writes.upgrade() else { return };
        if now != known {
            known = now;
            writes.reconnected();
        }
    }
}

/// The machine's name for credentials, at most 255 bytes.
pub(crate) fn machine_name() -> Bytes {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim_ascii();
    Bytes::copy_from_slice(&name[..name.len().min(255)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::options;

    fn info(rtmax: u32, rtpref: u32) -> FsinfoOk {
        FsinfoOk {
            obj_attributes: None,
            rtmax,
            rtpref,
            rtmult: 0,
            wtmax: rtmax,
            wtpref: rtpref,
            wtmult: 0,
            dtpref: 0,
            maxfilesize: 0,
            time_delta: Default::default(),
            properties: 0,
        }
    }

    /// The read size is the `rsize` option or the server's preference, within the limits of the
    /// client and of the server.
    #[test]
    fn transfer_size_respects_both_limits() {
        let rsize = |asked, max, pref| {
            let opts = Options { rsize_bytes: asked, ..options() };
            sizes(&opts, &info(max, pref), None).rsize_bytes
        };
        assert_eq!(rsize(None, 1 << 20, 65536), 65536);
        assert_eq!(rsize(None, 64 << 20, 64 << 20), 1 << 20, "never above nfs(5)'s maximum");
        assert_eq!(rsize(Some(8192), 1 << 20, 65536), 8192);
        assert_eq!(rsize(Some(1 << 20), 32768, 32768), 32768);
        assert_eq!(rsize(Some(1), 32768, 32768), 1024);
        assert_eq!(rsize(None, 512, 512), 512, "a server's small maximum counts");
        assert_eq!(rsize(None, 0, 0), 1 << 20, "a server that says nothing");
    }
}
