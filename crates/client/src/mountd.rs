//! The MOUNT protocol (RFC 1813 appendix I): gets the root filehandle of an NFSv3 mount by its
//! path.
//!
//! The port of mountd is `mountport=` or rpcbind's answer. Each call uses its own short connection,
//! since calls to mountd are rare. mountd resolves the path. Any directory below an export may be
//! mounted.

use crate::connect::connector;
use crate::error::{MountError, Service};
use crate::options::Options;
use bytes::Bytes;
use hither_proto::mount::{self, ExportArgs, Exportnode, MntArgs, Mountstat3, UmntArgs};
use hither_proto::nqnfs::mount1::{Fhstatus, Mnt1Args};
use hither_proto::rpc::{AuthFlavor, AuthSys, Procedure};
use hither_proto::xdr::{Dec, Enc, List, Opaque};
use hither_rpc::tls::{ClientTls, Program};
use hither_rpc::{
    Call, CallError, Client, ClientConfig, Credential, Endpoint, Flavor, Mode, Retransmit, RetryPolicy,
    Stats, getport,
};
use hither_vfs::Fh;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait for rpcbind or mountd to accept a connection, and for each answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Port that rpcbind listens on.
const RPCBIND_PORT: u16 = 111;

/// A mounted path, its root filehandle, and the mountd for the UMNT call.
#[derive(Debug, Clone)]
pub(crate) struct Mounted {
    /// Root filehandle.
    pub root: Fh,
    mountd: Mountd,
    path: Bytes,
}

/// Address of mountd and the parameters of its calls.
#[derive(Debug, Clone)]
struct Mountd {
    addr: SocketAddr,
    resvport: bool,
    tls: Option<Arc<ClientTls>>,
    machine: Bytes,
}

/// Mounts `opts.path` from the server at `ip`.
///
/// # Errors
/// See [`MountError`].
pub(crate) async fn mount(opts: &Options, ip: IpAddr, machine: Bytes) -> Result<Mounted, MountError> {
    let port = match opts.mount_port {
        Some(port) => port,
        None => port(opts, ip, Service::Mount, "mountport=PORT").await?,
    };
    let mountd = Mountd::new(opts, SocketAddr::new(ip, port), machine);
    let path = Bytes::copy_from_slice(opts.path.as_bytes());
    if path.len() > mount::PATH_MAX_BYTES {
        let (server, path) = (opts.server.clone(), opts.path.clone());
        return Err(MountError::Failed { server, path, cause: "the path is longer than 1024 bytes".into() });
    }
    let args = MntArgs { dirpath: Opaque(path.clone()) };
    let answer = mountd.call(&args).await.map_err(|e| from_call(opts, mountd.addr, e))?;
    let granted = match answer.into_result() {
        Ok(granted) => granted,
        Err(status) => return Err(mountd.refusal(opts, status).await),
    };
    check_flavors(opts, &granted.auth_flavors)?;
    if granted.fhandle.is_empty() {
        let (server, cause) = (opts.server.clone(), "an empty filehandle".into());
        return Err(MountError::Protocol { server, service: Service::Mount, cause });
    }
    Ok(Mounted { root: Fh(Bytes::copy_from_slice(&granted.fhandle)), mountd, path })
}

/// Mounts `opts.path` from the mountd at `addr` with MOUNT version 1, which gives NQNFS
/// filehandles.
///
/// # Errors
/// See [`MountError`].
pub(crate) async fn mount1(opts: &Options, addr: SocketAddr, machine: Bytes) -> Result<Mounted, MountError> {
    let mountd = Mountd::new(opts, addr, machine);
    let path = Bytes::copy_from_slice(opts.path.as_bytes());
    if path.len() > mount::PATH_MAX_BYTES {
        let (server, path) = (opts.server.clone(), opts.path.clone());
        return Err(MountError::Failed { server, path, cause: "the path is longer than 1024 bytes".into() });
    }
    let failed = |e| {
        MountError::from_call(
            &opts.server,
            &opts.path,
            Service::Mount,
            addr,
            "MOUNT version 1, which NQNFS needs",
            e,
        )
    };
    match mountd.call(&Mnt1Args { dirpath: Opaque(path.clone()) }).await.map_err(failed)? {
        Fhstatus::Granted(fh) => Ok(Mounted { root: Fh(fh.bytes().into()), mountd, path }),
        // Version 1 returns errno numbers. The statuses of version 3 that matter are the same
        // numbers.
        Fhstatus::Refused(errno) => Err(mountd.refusal(opts, Mountstat3(errno)).await),
    }
}

/// The exports of the server, from its mountd (`showmount -e`). The addresses are tried in order.
///
/// # Errors
/// See [`MountError`]; the error of the last address when none answers.
pub async fn exports(opts: &Options) -> Result<Vec<String>, MountError> {
    let machine = crate::v3::machine_name();
    let mut last = None;
    for addr in &opts.addrs {
        let port = match opts.mount_port {
            Some(port) => Ok(port),
            None => port(opts, addr.ip(), Service::Mount, "mountport=PORT").await,
        };
        let list = match port {
            Ok(port) => {
                let mountd = Mountd::new(opts, SocketAddr::new(addr.ip(), port), machine.clone());
                mountd.call(&ExportArgs {}).await.map_err(|e| from_call(opts, mountd.addr, e))
            }
            Err(e) => Err(e),
        };
        match list {
            // Names outside of UTF-8 cannot be options of a mount either.
            Ok(list) => {
                let paths = list.0.iter().filter_map(|export| String::from_utf8(export.dir.to_vec()).ok());
                return Ok(paths.filter(|path| path.starts_with('/')).collect());
            }
            Err(e) => last = Some(e),
        }
    }
    Err(last.unwrap_or_else(|| MountError::NoSuchHost {
        server: opts.server.clone(),
        cause: "the name has no address".into(),
    }))
}

/// The root filehandle of the export `opts.path` for NFSv3. The addresses are tried in order.
///
/// # Errors
/// See [`MountError`]; the error of the last address when none answers.
pub async fn exported_root(opts: &Options) -> Result<Fh, MountError> {
    let mut last = None;
    for addr in &opts.addrs {
        match mount(opts, addr.ip(), crate::v3::machine_name()).await {
            Ok(mounted) => return Ok(mounted.root),
            Err(e) if e.is_transient() => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| MountError::NoSuchHost {
        server: opts.server.clone(),
        cause: "the name has no address".into(),
    }))
}

impl Mounted {
    /// Sends UMNT to mountd. A failure has no effect: mountd's list only informs administrators.
    pub async fn unmount(&self) {
        let told = self.mountd.call(&UmntArgs { dirpath: Opaque(self.path.clone()) }).await;
        if let Err(e) = told {
            tracing::debug!(mountd = %self.mountd.addr, error = %e, "UMNT failed");
        }
    }
}

/// The port of NFS version 3 or of mountd, from the server's rpcbind.
pub(crate) async fn port(
    opts: &Options,
    ip: IpAddr,
    service: Service,
    option: &'static str,
) -> Result<u16, MountError> {
    let (prog, vers) = match service {
        Service::Nfs => (hither_proto::nfs3::PROGRAM, hither_proto::nfs3::VERSION),
        Service::Mount | Service::Rpcbind => (mount::PROGRAM, mount::VERSION),
    };
    let rpcbind = SocketAddr::new(ip, RPCBIND_PORT);
    getport(ip, prog, vers, PATIENCE)
        .await
        .map_err(|e| MountError::from_portmap(&opts.server, service, rpcbind, option, e))
}

impl Mountd {
    fn new(opts: &Options, addr: SocketAddr, machine: Bytes) -> Self {
        Self { addr, resvport: opts.resvport, tls: opts.tls.clone(), machine }
    }

    async fn call<P: Procedure>(&self, args: &P) -> Result<P::Reply, CallError> {
        let endpoint = Endpoint {
            addr: self.addr,
            resvport: self.resvport,
            keepalive: false,
            connect_timeout: PATIENCE,
        };
        let cfg = ClientConfig {
            policy: RetryPolicy { timeo: PATIENCE, retrans: 0, mode: Mode::Soft },
            max_record_bytes: 1 << 20,
            fail_when_unreachable: true,
            ..ClientConfig::default()
        };
        // Separate counters: the statistics of a mount count NFS calls only.
        let connect = connector(self.tls.as_ref(), endpoint, Program { number: P::PROG, version: P::VERS });
        let client = Client::new(connect, cfg, Arc::new(Stats::new()));
        let cred = AuthSys {
            stamp: 0,
            machinename: Opaque(self.machine.clone()),
            uid: 0,
            gid: 0,
            gids: List::default(),
        };
        let call = Call {
            prog: P::PROG,
            vers: P::VERS,
            proc: P::PROC,
            op: P::NAME,
            cred: Credential::sys(&cred),
            args: Enc::of(args),
            connection: None,
            retransmit: Retransmit::OnReconnectAndTimeout,
            deadline: Some(Instant::now() + PATIENCE),
            cancel: None,
        };
        let reply = client.call(call).await?;
        Dec::all(&reply.body).map_err(|_| CallError::PeerMisbehaved("a reply cannot be decoded"))
    }

    /// The reason for a refusal by mountd. mountd also denies access to paths that are not
    /// exported. Some servers list only the exports of the calling client. For both reasons, a
    /// denied path outside the list counts as not exported.
    async fn refusal(&self, opts: &Options, status: Mountstat3) -> MountError {
        let (server, path) = (opts.server.clone(), opts.path.clone());
        let exports = self.call(&ExportArgs {}).await.ok().map(|list| list.0);
        let paths = exports.as_ref().map(|e| e.iter().map(|e| lossy(&e.dir)).collect::<Vec<_>>());
        match status {
            Mountstat3::NOENT => MountError::NoSuchExport { server, path, exports: paths },
            Mountstat3::NOTDIR => MountError::NotDirectory { server, path },
            Mountstat3::ACCES | Mountstat3::PERM => match exports.as_deref().map(|e| export_of(e, &path)) {
                Some(None) => MountError::NoSuchExport { server, path, exports: paths },
                Some(Some(export)) => {
                    let hint = allowed_hint(export, &path);
                    MountError::AccessDenied { server, path, hint }
                }
                None => {
                    let hint = "check that the path exists, and the server's export list and its rules for \
                                this client"
                        .into();
                    MountError::AccessDenied { server, path, hint }
                }
            },
            Mountstat3::NOTSUPP => {
                MountError::VersionNotSupported { server, what: "MOUNT version 3".into(), offered: None }
            }
            other => MountError::Failed { server, path, cause: format!("mountd answers MNT3ERR_{other:?}") },
        }
    }
}

/// The export that contains `path`: the longest one.
fn export_of<'a>(exports: &'a [Exportnode], path: &str) -> Option<&'a Exportnode> {
    let contains = |dir: &[u8]| {
        let rest = path.as_bytes().strip_prefix(dir);
        dir == b"/" || rest.is_some_and(|r| r.is_empty() || r[0] == b'/')
    };
    exports.iter().filter(|e| contains(&e.dir)).max_by_key(|e| e.dir.len())
}

/// The remedy for a refusal of `path` inside an export. Some servers (nfs-ganesha) refuse a missing
/// and a forbidden path below an export with the same status. The export itself exists.
fn allowed_hint(export: &Exportnode, path: &str) -> String {
    let groups: Vec<String> = export.groups.iter().take(8).map(|g| lossy(g)).collect();
    let to = if groups.is_empty() { "everybody".to_owned() } else { groups.join(", ") };
    let dir = lossy(&export.dir);
    let rules = format!(
        "{dir} is exported to {to}: this client's address must be allowed; a privileged port (resvport) or TLS (xprtsec) may be needed"
    );
    let name = |path: &str| path.trim_end_matches('/').to_owned();
    if name(path) == name(&dir) {
        rules
    } else {
        format!(
            "either the path does not exist (some servers then deny access), or this client has no access: {rules}"
        )
    }
}

/// The flavor in use must be among those of the export; an empty list allows anything.
fn check_flavors(opts: &Options, flavors: &[AuthFlavor]) -> Result<(), MountError> {
    if flavors.is_empty() || flavors.contains(&opts.security.flavor.number()) {
        return Ok(());
    }
    let name = |number: &AuthFlavor| match (*number, Flavor::of(*number)) {
        (_, Some(flavor)) => flavor.name().to_owned(),
        (AuthFlavor::NONE, _) => "none".to_owned(),
        (other, _) => other.0.to_string(),
    };
    Err(MountError::WrongSecurity {
        server: opts.server.clone(),
        path: opts.path.clone(),
        wanted: opts.security.flavor,
        offered: flavors.iter().take(8).map(name).collect::<Vec<_>>().join(":"),
        flavors: flavors.iter().filter_map(|number| Flavor::of(*number)).collect(),
    })
}

fn from_call(opts: &Options, addr: SocketAddr, e: CallError) -> MountError {
    MountError::from_call(&opts.server, &opts.path, Service::Mount, addr, "MOUNT version 3", e)
}

/// Text from the server for a message: escaped and at most 256 bytes.
fn lossy(b: &[u8]) -> String {
    b[..b.len().min(256)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::options;
    use hither_proto::xdr::Chain;

    fn export(dir: &'static str, groups: &[&'static str]) -> Exportnode {
        let groups = groups.iter().map(|g| Opaque::copy(g.as_bytes())).collect();
        Exportnode { dir: Opaque::copy(dir.as_bytes()), groups: Chain(groups) }
    }

    /// The export of a path is its longest exported prefix of whole names. `/srv/data` is no prefix
    /// of `/srv/database`.
    #[test]
    fn longest_prefix_selects_export() {
        let exports = [export("/", &[]), export("/srv", &[]), export("/srv/data", &[])];
        let dir = |path| export_of(&exports, path).map(|e| lossy(&e.dir));
        assert_eq!(dir("/srv/data/x").as_deref(), Some("/srv/data"));
        assert_eq!(dir("/srv/database").as_deref(), Some("/srv"));
        assert_eq!(dir("/home").as_deref(), Some("/"));
        assert!(export_of(&exports[1..], "/srvx").is_none());
    }

    /// A refused path below an export may be missing or forbidden, and the hint names both reasons.
    /// The refused export itself exists.
    #[test]
    fn mount_refusal_names_both_reasons() {
        let e = export("/srv", &["10.0.0.0/8"]);
        let below = allowed_hint(&e, "/srv/typo");
        for words in
            ["the path does not exist", "this client has no access", "exported to 10.0.0.0/8", "resvport"]
        {
            assert!(below.contains(words), "{below}");
        }
        assert!(!allowed_hint(&export("/", &[]), "/").contains("does not exist"));
        for path in ["/srv", "/srv/"] {
            let itself = allowed_hint(&e, path);
            assert!(itself.starts_with("/srv is exported to 10.0.0.0/8"), "{itself}");
        }
    }

    #[test]
    fn flavors_without_sys_are_named() {
        let opts = options();
        assert!(check_flavors(&opts, &[]).is_ok());
        assert!(check_flavors(&opts, &[AuthFlavor::KRB5, AuthFlavor::SYS]).is_ok());
        let e = check_flavors(&opts, &[AuthFlavor::KRB5P, AuthFlavor(4711)]).unwrap_err();
        assert!(e.to_string().contains("sec=krb5p:4711"), "{e}");
    }

    /// Escape sequences in a server's text do not reach the terminal.
    #[test]
    fn server_text_is_escaped() {
        assert_eq!(lossy(b"a\x1b[2J"), "a\\x1b[2J");
    }
}
