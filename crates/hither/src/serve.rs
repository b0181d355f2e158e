//! `hither serve`: serves a directory of this machine to NFS clients.
//!
//! This module assembles the layers, listens, and waits for the end. It has no protocol and no file
//! system. It sets up log, limits and runtime. It opens the files, and the server, which reads its
//! stored state. It opens the sockets. It reports readiness to systemd (sd_notify(3)), prints the
//! mount commands and registers with rpcbind. It then waits for a signal. SIGHUP reads the exports
//! and the files of TLS again. At the end connections are closed. Clients connect to the next
//! server and reclaim their state.

mod branches;
mod hosts;
mod kerberos;
mod nested;
mod notify;
pub mod report;
mod reporting;
mod rpcbind;
mod tls;
mod what;

use crate::cli::{GatewayArgs, ServeArgs};
use crate::daemon::{privileges, process};
use crate::exit::Failure;
use crate::gateway::Gateway;
use crate::log::{self, LogDestination};
use crate::metrics::endpoint;
use crate::stack;
use bytes::Bytes;
use hither_rpc::server::{Acceptor, Security, ServerLimits};
use hither_server::nlm::answer_datagram;
use hither_server::table::Table;
use hither_server::{NqnfsOptions, Options, Server};
use hither_vfs::{Cred, RequestContext};
pub use kerberos::KerberosArgs;
pub use notify::Notify;
use reporting::Reporter;
pub use reporting::SOCKET;
use rpcbind::Registrations;
use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
pub use tls::TlsArgs;
use tokio::net::{TcpListener, TcpSocket, UdpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use what::Served;
pub use what::files_of as exports_files;

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Longest call in a datagram. A lock call has a filehandle, an owner and a name.
const DATAGRAM_MAX_BYTES: usize = 8 << 10;
/// Time limit of the last writes.
const FAREWELL: Duration = Duration::from_secs(20);
/// Longest time for clients to return delegations at the end.
const RECALL_MAX: Duration = Duration::from_secs(5);
/// Longest time in which calls in progress are answered at the end.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Serves until a signal ends the server. `gateway`: the files are those of other servers.
///
/// # Errors
/// The reason why nothing could be served.
pub fn run(args: &ServeArgs, gateway: Option<&GatewayArgs>) -> Result<(), Failure> {
    let log = log::init(&args.log, LogDestination::Foreground)?;
    log::log_panics();
    process::prepare();
    privileges::give_up(privileges::Role::Serve);
    let runtime = process::runtime()?;
    let result = runtime.block_on(live(args, gateway, &log));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Serves until a signal, and then makes the last writes stable.
async fn live(args: &ServeArgs, gateway: Option<&GatewayArgs>, log: &log::Log) -> Result<(), Failure> {
    let mut end = EndSignals::new()?;
    let mut hangup = signal(SignalKind::hangup()).map_err(no_handlers)?;
    let state_dir = state_dir(args);
    if let Some(dir) = &state_dir {
        make_state_dir(dir)?;
    }
    let security = Security { tls: args.tls.open()?, gss: args.kerberos.open()? };
    let _alone = state_dir.as_deref().map(alone).transpose()?;
    let listeners = args.listen.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let metrics = bind_metrics(args).await?;
    // Watching starts before the mounts are read, so that no change is missed.
    let mounts = nested::Changes::new().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let is_local = gateway.is_none();
    let gateway = tokio::select! {
        gateway = connect(gateway, state_dir.as_deref()) => gateway?,
        () = end.received() => return Err(Failure::interrupted()),
    };
    let origins_changed = gateway.as_ref().map(Gateway::changed).unwrap_or_default();
    let (mut served, table) = load(Served::new(args, state_dir.clone(), gateway)?).await;
    let limits = limits(args, is_local);
    let running = Running::start(args, limits, security, table?, &mut served)?;
    let reporter = Arc::new(Reporter {
        server: running.server.clone(),
        acceptor: running.acceptor.clone(),
        journaled: served.journaled(),
        listen: args.listen.clone(),
        began: tokio::time::Instant::now(),
    });
    let _control = state_dir.as_deref().and_then(|dir| reporter.control(dir));
    let metrics = metrics.map(|bound| bound.serve_site(Arc::new(move |request| reporter.page(request))));
    running.listen(args, listeners);
    tell(args, &served);
    let mut registrations = Registrations::of(args);
    if let Some(line) = registrations.register().await {
        println!("  {line}");
    }
    let notify = Notify::from_environment();
    notify.ready();
    loop {
        tokio::select! {
            () = end.received() => break,
            _ = hangup.recv() => {
                notify.reloading();
                log.reopen();
                served = running.reload(served).await;
                if let Some(line) = registrations.register().await {
                    tracing::info!("{line}");
                }
                notify.ready();
            }
            () = origins_changed.notified() => served = running.origins_changed(served).await,
            () = mounts.next() => served = running.mounts_changed(served).await,
        }
    }
    notify.stopping();
    registrations.end().await;
    drop(metrics);
    served.recall().await;
    running.acceptor.drain(DRAIN_MAX).await;
    running.server.end();
    let mut cx = RequestContext::new(Arc::new(Cred::root()));
    cx.deadline = Some(tokio::time::Instant::now() + FAREWELL);
    served.shutdown(&cx).await;
    tracing::info!("the server has ended");
    Ok(())
}

fn no_handlers(e: io::Error) -> Failure {
    Failure::system(format!("signal handlers: {e}"))
}

/// The signals that end the server.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn new() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(no_handlers)?,
            interrupt: signal(SignalKind::interrupt()).map_err(no_handlers)?,
        })
    }

    /// Returns at SIGTERM and SIGINT.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn make_state_dir(dir: &Path) -> Result<(), Failure> {
    // It holds filehandles and the key of their seals.
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|e| {
        Failure::usage(format!("state directory {}: {e}; --state-dir names another", dir.display()))
    })
}

/// Binds the address of the metrics. `None`: no metrics are wanted.
async fn bind_metrics(args: &ServeArgs) -> Result<Option<endpoint::Bound>, Failure> {
    let Some(place) = &args.metrics else { return Ok(None) };
    let bound = endpoint::bind(place).await;
    bound
        .map(Some)
        .map_err(|e| Failure::usage(format!("option '--metrics {place}': {e}; give another address or path")))
}

/// A server that executes calls.
struct Running {
    acceptor: Arc<Acceptor>,
    server: Arc<Server>,
    security: Security,
}

impl Running {
    fn start(
        args: &ServeArgs,
        limits: ServerLimits,
        security: Security,
        table: Table,
        served: &mut Served,
    ) -> Result<Self, Failure> {
        let server = make_server(args, &limits, table, served)?;
        tell_made_before(&server, served);
        let acceptor = Arc::new(Acceptor::secure(server.clone(), limits, security.clone()));
        tokio::spawn(server.clone().tend());
        Ok(Self { acceptor, server, security })
    }

    /// Accepts connections, and answers datagrams of NFSv3 locks.
    fn listen(&self, args: &ServeArgs, listeners: Vec<TcpListener>) {
        for listener in listeners {
            let acceptor = self.acceptor.clone();
            tokio::spawn(async move { acceptor.listen(listener).await });
        }
        let datagrams = if args.versions.contains('3') { args.listen.as_slice() } else { &[] };
        datagrams.iter().for_each(|addr| answer_locks(*addr));
    }

    /// Reads the exports and the files of TLS and Kerberos again.
    async fn reload(&self, served: Served) -> Served {
        reload_tls(&self.acceptor).await;
        self.security.gss.iter().for_each(|gss| gss.forget_all());
        let (mut served, table) = load(served).await;
        match table {
            Ok(table) => {
                self.server.replace(table);
                tell_made_before(&self.server, &mut served);
                served.search_again();
                tracing::info!("exports read again: {}", served.lines.join("; "));
            }
            Err(failure) => exports_stay(&failure),
        }
        served
    }

    /// Reads the exports again after the origins of a gateway have changed. An origin that is
    /// reached late has no line among those that the start prints.
    async fn origins_changed(&self, served: Served) -> Served {
        let before = served.lines.clone();
        let (served, table) = load(served).await;
        match table {
            Ok(table) => {
                self.server.replace(table);
                if served.lines != before {
                    tracing::info!("exports of origins have changed: {}", served.lines.join("; "));
                }
            }
            Err(failure) => exports_stay(&failure),
        }
        served
    }

    /// Adds and removes exports for the mounts below exports.
    async fn mounts_changed(&self, served: Served) -> Served {
        let (served, table) = in_background(served, Served::mounts_changed).await;
        match table {
            Some(Ok(table)) => {
                self.server.replace(table);
                tracing::info!("mounts below exports have changed: {}", served.lines.join("; "));
            }
            Some(Err(failure)) => exports_stay(&failure),
            None => {}
        }
        served
    }
}

fn exports_stay(failure: &Failure) {
    tracing::error!("the exports stay as they are: {}", failure.line);
}

/// Connects a gateway to its origins.
async fn connect(args: Option<&GatewayArgs>, state_dir: Option<&Path>) -> Result<Option<Gateway>, Failure> {
    match args {
        Some(args) => Gateway::start(args, state_dir).await.map(Some),
        None => Ok(None),
    }
}

/// Reads the exports on a thread for blocking work, because disks and name servers may block.
async fn load(served: Served) -> (Served, Result<Table, Failure>) {
    in_background(served, Served::load).await
}

async fn in_background<T: Send + 'static>(
    mut served: Served,
    work: impl FnOnce(&mut Served) -> T + Send + 'static,
) -> (Served, T) {
    let work = move || {
        let result = work(&mut served);
        (served, result)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

/// Reads the files of TLS again. Files that cannot be used change nothing.
async fn reload_tls(acceptor: &Arc<Acceptor>) {
    let reloading = acceptor.clone();
    match tokio::task::spawn_blocking(move || reloading.reload_tls()).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!("the TLS keys stay as they are: {e}"),
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

/// Limits of the server. Calls of local directories occupy processors. Calls of a gateway wait for
/// its origins.
fn limits(args: &ServeArgs, is_local: bool) -> ServerLimits {
    let processors = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    ServerLimits {
        record_max_bytes: args.max_io as usize + (64 << 10),
        large_calls_max: if is_local { processors } else { usize::MAX },
        ..memory_limits(args.max_memory as usize, args.max_connections as usize)
    }
}

/// Divides `max_mib` of memory. The program itself needs about 20 MiB. The allocator keeps freed
/// buffers for ten milliseconds, which at memory speed is about 20 MiB. A connection has a
/// buffer of 16 KiB and its tasks. Calls and replies get the rest.
fn memory_limits(max_mib: usize, connections_max: usize) -> ServerLimits {
    const PROGRAM_BYTES: usize = 48 << 20;
    const CONNECTION_BYTES: usize = 32 << 10;
    let max_bytes = max_mib << 20;
    let rest = max_bytes - (max_bytes / 2).min(PROGRAM_BYTES);
    let allowed = rest / 2 / CONNECTION_BYTES;
    if allowed < connections_max {
        tracing::warn!("--max-memory {max_mib} allows {allowed} connections only");
    }
    let connections_max = connections_max.min(allowed);
    let memory_max_bytes = rest - connections_max * CONNECTION_BYTES;
    ServerLimits { connections_max, memory_max_bytes, ..ServerLimits::default() }
}

/// Passes on calls that an earlier server process answered. The server answers retransmissions of
/// them and does not execute them again.
fn tell_made_before(server: &Server, served: &mut Served) {
    for (path, calls) in served.made_before.drain(..) {
        server.made_before(&path, &calls);
    }
}

fn make_server(
    args: &ServeArgs,
    limits: &ServerLimits,
    table: Table,
    served: &Served,
) -> Result<Arc<Server>, Failure> {
    let options = Options {
        io_max_bytes: args.max_io,
        listing_max_bytes: Options::listing_within(limits.memory_max_bytes),
        v3: args.versions.contains('3'),
        v4: args.versions.contains('4'),
        lease: Duration::from_secs(args.lease),
        grace: Duration::from_secs(args.grace.unwrap_or(args.lease)),
        recovery_rate: args.recovery_rate,
        delegations_max: descriptors(args.max_delegations as usize),
        nqnfs: args.nqnfs.then(|| nqnfs(args)),
        state_dir: state_dir(args),
        groups: Some(Arc::new(what::groups_of)),
        names: Some(served.names.clone()),
        ..Options::new(stack::env())
    };
    Server::new(options, table)
        .map_err(|e| Failure::system(format!("state directory: {e}; --state-dir names another")))
}

/// Limits the number of delegations or leases. Each delegated or leased file has a descriptor of
/// its own, besides those of open files.
fn descriptors(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX) / 4);
    room.min(wanted)
}

fn nqnfs(args: &ServeArgs) -> NqnfsOptions {
    let usual = NqnfsOptions::default();
    NqnfsOptions {
        term: Duration::from_secs(args.nqnfs_term),
        write_slack: Duration::from_secs(args.nqnfs_write_slack),
        leases_max: descriptors(usual.leases_max as usize) as u32,
        ..usual
    }
}

/// The state directory, one for each port.
fn state_dir(args: &ServeArgs) -> Option<PathBuf> {
    if args.memory && args.state_dir.is_none() {
        return None;
    }
    let name = || format!("serve-{}", args.listen.first().map_or(0, SocketAddr::port));
    let usual = || {
        if rustix::process::geteuid().is_root() {
            PathBuf::from("/var/lib/hither").join(name())
        } else {
            let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/state"));
            let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
            state.unwrap_or_else(|| PathBuf::from("/tmp")).join("hither").join(name())
        }
    };
    Some(args.state_dir.clone().unwrap_or_else(usual))
}

/// Answers lock calls in datagrams, if the address is available.
fn answer_locks(addr: SocketAddr) {
    tokio::spawn(async move {
        let socket = match UdpSocket::bind(addr).await {
            Ok(socket) => socket,
            Err(e) => return tracing::info!("{addr} for datagrams: {e}; clients that lock over UDP wait"),
        };
        let mut buffer = vec![0; DATAGRAM_MAX_BYTES];
        loop {
            // An error concerns one datagram: the peer of an earlier reply did not listen.
            let Ok((len, peer)) = socket.recv_from(&mut buffer).await else { continue };
            if let Some(reply) = answer_datagram(&Bytes::copy_from_slice(&buffer[..len])) {
                let _ = socket.send_to(&reply, peer).await;
            }
        }
    });
}

/// Locks the state directory. Two servers would remove and overwrite each other's records. The lock
/// ends with the process.
fn alone(dir: &Path) -> Result<File, Failure> {
    let failed = |e: io::Error| Failure::usage(format!("state directory {}: {e}", dir.display()));
    let lock = dir.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::usage(format!(
            "state directory {}: another server uses it; --state-dir names another",
            dir.display()
        ))),
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

fn listen(addr: &SocketAddr) -> Result<TcpListener, Failure> {
    let bind = || {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(*addr)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Failure::system(format!(
            "{addr} is in use, perhaps by another NFS server: --listen {}:PORT takes another port",
            addr.ip()
        )),
        io::ErrorKind::PermissionDenied => Failure::system(format!(
            "{addr}: not permitted: --listen {}:PORT takes a port above 1023",
            addr.ip()
        )),
        _ => Failure::system(format!("{addr}: {e}")),
    })
}

/// The command of macOS for NFSv3 (mount_nfs(8)).
fn for_macos(host: &str, port: u16, path: &str) -> String {
    format!("sudo mount -t nfs -o vers=3,tcp,port={port},mountport={port},nolocks,resvport {host}:{path} DIR")
}

/// The command of the NFS client of Windows. It takes no port, so it needs rpcbind and port 2049.
fn for_windows(host: &str, port: u16, path: &str) -> String {
    match port {
        2049 => format!("mount -o anon,nolock {host}:{path} Z:"),
        _ => "needs --listen ADDRESS:2049 and rpcbind".to_owned(),
    }
}

/// Prints the commands that mount the exports.
fn tell(args: &ServeArgs, served: &Served) {
    served.lines.iter().for_each(|line| println!("serving {line}"));
    if args.tls.tls_cert.is_some() {
        let words =
            if args.tls.tls_client_ca.is_some() { "xprtsec=tls or xprtsec=mtls" } else { "xprtsec=tls" };
        println!("  TLS is offered: add the mount option {words}");
    }
    for addr in &args.listen {
        let host = match addr {
            _ if addr.ip().is_unspecified() => "HOST".to_string(),
            SocketAddr::V4(a) => a.ip().to_string(),
            SocketAddr::V6(a) => format!("[{}]", a.ip()),
        };
        let (port, path) = (addr.port(), &served.mounted);
        println!("  hither mount -o port={port} {host}:{path} DIR");
        if args.nqnfs {
            println!("  NQNFS: program 300105 version 1 and MOUNT version 1 on port {port}");
        }
        if args.versions.contains('4') {
            println!("  mount -t nfs -o vers=4.2,port={port} {host}:{path} DIR");
        }
        if args.versions.contains('3') {
            println!(
                "  mount -t nfs -o vers=3,port={port},mountport={port},nolock,proto=tcp,mountproto=tcp {host}:{path} DIR"
            );
        }
        if served.gateway.is_some() && args.versions.contains('3') {
            println!("  macOS:   {}", for_macos(&host, port, path));
            println!("  Windows: {}", for_windows(&host, port, path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// macOS takes ports. Windows takes none, so other ports than 2049 are refused.
    #[test]
    fn foreign_clients_get_commands() {
        let command = for_macos("gw", 3049, "/x");
        assert!(command.contains("port=3049,mountport=3049") && command.ends_with(" gw:/x DIR"), "{command}");
        assert_eq!(for_windows("gw", 2049, "/x"), "mount -o anon,nolock gw:/x Z:");
        assert!(for_windows("gw", 3049, "/x").contains("--listen ADDRESS:2049"));
    }
}
