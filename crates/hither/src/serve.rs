//! `hither serve`: a directory of this machine for NFS clients.
//!
//! It knows neither protocols nor files: it puts the layers together, listens, and waits for the end. Order of its life: log,
//! limits, runtime; the files; the server, which reads what it remembers; the sockets; the word to whoever started it (systemd
//! by sd_notify(3), a person by the lines that mount it); then nothing but waiting for a signal. Connections are closed at the
//! end, and clients make new ones to the next server: what they hold is taken back.

mod notify;
mod rights;

use crate::cli::ServeArgs;
use crate::daemon::process;
use crate::exit::Failure;
use crate::log::{self, Place};
use crate::stack;
use hither_rpc::server::{Acceptor, ServerLimits};
use hither_server::table::{Epoch, ExportSpec, Table};
use hither_server::{Options, Server};
use hither_store::local::{Local, LocalOptions};
use hither_vfs::model::Model;
use hither_vfs::{Cred, Cx, Vfs};
use notify::Notify;
use rights::Rules;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long the last writes may take.
const FAREWELL: Duration = Duration::from_secs(20);

/// Most bytes of files in memory.
const MEMORY_MAX_BYTES: u64 = 8 << 30;

/// The files to be served.
struct Files {
    vfs: Arc<dyn Vfs>,
    epoch: Option<Arc<Epoch>>,
    /// For people.
    name: String,
}

/// Serves until a signal ends it.
///
/// # Errors
/// Why nothing could be served.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let log = log::init(&args.log, Place::Foreground)?;
    log::log_panics();
    process::prepare();
    let runtime = process::runtime()?;
    let result = runtime.block_on(live(args, &log));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn live(args: &ServeArgs, log: &log::Log) -> Result<(), Failure> {
    let handlers = |e: io::Error| Failure::system(format!("signal handlers: {e}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(handlers)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(handlers)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(handlers)?;
    let rules = Rules::new(args)?;
    let state_dir = state_dir(args);
    if let Some(dir) = &state_dir {
        std::fs::create_dir_all(dir).map_err(|e| {
            Failure::usage(format!("state directory {}: {e}; --state-dir names another", dir.display()))
        })?;
    }
    let listeners = args.listen.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let files = open_files(args, state_dir.clone()).await?;
    let server = make_server(args, &files, &rules, state_dir)?;
    let limits = ServerLimits {
        record_max_bytes: args.max_io as usize + (64 << 10),
        connections_max: args.max_connections as usize,
        memory_max_bytes: (args.max_memory as usize) << 20,
        ..ServerLimits::default()
    };
    let acceptor = Arc::new(Acceptor::new(server.clone(), limits));
    tokio::spawn(server.clone().tend());
    for listener in listeners {
        let acceptor = acceptor.clone();
        tokio::spawn(async move { acceptor.listen(listener).await });
    }
    tell(args, &files, &rules);
    let notify = Notify::from_environment();
    notify.ready();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {
                notify.reloading();
                log.reopen();
                notify.ready();
            }
        }
    }
    notify.stopping();
    acceptor.shutdown();
    let mut cx = Cx::new(Arc::new(Cred::root()));
    cx.deadline = Some(tokio::time::Instant::now() + FAREWELL);
    if let Err(e) = files.vfs.shutdown(&cx).await {
        tracing::error!("at the end, not everything could be made stable: {e}");
    }
    tracing::info!("{} is served no more", files.name);
    Ok(())
}

/// The files: a directory, or nothing but memory.
async fn open_files(args: &ServeArgs, state_dir: Option<PathBuf>) -> Result<Files, Failure> {
    let Some(dir) = args.dir.clone().filter(|_| !args.memory) else {
        let vfs = Arc::new(Model::new(stack::env(), Duration::ZERO, MEMORY_MAX_BYTES));
        return Ok(Files { vfs, epoch: None, name: "an empty file system in memory".into() });
    };
    let options = LocalOptions {
        state_dir,
        as_this_process: !rustix::process::geteuid().is_root(),
        ..LocalOptions::default()
    };
    let name = dir.display().to_string();
    let opened = tokio::task::spawn_blocking(move || Local::open(&dir, options, stack::env())).await;
    let local = opened.map_err(|e| Failure::system(format!("opening {name}: {e}")))?;
    let local = Arc::new(local.map_err(|e| Failure::usage(e.to_string()))?);
    let epoch = local.clone();
    Ok(Files { vfs: local, epoch: Some(Arc::new(move || epoch.write_epoch())), name })
}

fn make_server(
    args: &ServeArgs,
    files: &Files,
    rules: &Rules,
    state_dir: Option<PathBuf>,
) -> Result<Arc<Server>, Failure> {
    let aliases =
        args.dir.iter().filter_map(|d| std::fs::canonicalize(d).ok()).map(|d| d.display().to_string());
    let spec = ExportSpec {
        path: "/".into(),
        aliases: aliases.collect(),
        vfs: files.vfs.clone(),
        admit: rules.admit(),
        epoch: files.epoch.clone(),
    };
    let table = Table::new(vec![spec]).map_err(|e| Failure::usage(e.to_string()))?;
    let options = Options {
        io_max_bytes: args.max_io,
        v3: args.versions.contains('3'),
        v4: args.versions.contains('4'),
        lease: Duration::from_secs(args.lease),
        grace: Duration::from_secs(args.grace.unwrap_or(args.lease)),
        state_dir,
        ..Options::new(stack::env())
    };
    Server::new(options, table)
        .map_err(|e| Failure::system(format!("state directory: {e}; --state-dir names another")))
}

/// Where the server's memory is: one for each port.
fn state_dir(args: &ServeArgs) -> Option<PathBuf> {
    if args.memory && args.state_dir.is_none() {
        return None;
    }
    let name = || format!("serve-{}", args.listen.first().map_or(0, SocketAddr::port));
    let usual = || match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/lib/hither").join(name()),
        false => {
            let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/state"));
            let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
            state.unwrap_or_else(|| PathBuf::from("/tmp")).join("hither").join(name())
        }
    };
    Some(args.state_dir.clone().unwrap_or_else(usual))
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

/// Says how to mount what is served.
fn tell(args: &ServeArgs, files: &Files, rules: &Rules) {
    println!("serving {} ({rules})", files.name);
    for addr in &args.listen {
        let host = match addr {
            _ if addr.ip().is_unspecified() => "HOST".to_string(),
            SocketAddr::V4(a) => a.ip().to_string(),
            SocketAddr::V6(a) => format!("[{}]", a.ip()),
        };
        let port = addr.port();
        println!("  hither mount -o port={port} {host}:/ DIR");
        if args.versions.contains('4') {
            println!("  mount -t nfs -o vers=4.2,port={port} {host}:/ DIR");
        }
        if args.versions.contains('3') {
            println!(
                "  mount -t nfs -o vers=3,port={port},mountport={port},nolock,proto=tcp,mountproto=tcp {host}:/ DIR"
            );
        }
    }
}
