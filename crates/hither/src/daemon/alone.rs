//! `hither daemon`: the layers of a mount with the socket for programs, without a mount.
//!
//! It needs no FUSE and mounts nothing, so it runs where mounts are not permitted. Programs that
//! connect have their own access rights, as on a mount. `hither stat` and similar commands find the
//! daemon by the path of its socket. Beside it is the control socket ([`locate::beside`]).

use super::{FAREWELL, LAZY_FAREWELL, Signals, answer, connect, farewell, privileges, process};
use crate::cli::DaemonArgs;
use crate::control::{Control, locate};
use crate::daemon::privileges::Role;
use crate::daemon::voice::Voice;
use crate::exit::Failure;
use crate::log::{self, Log, LogDestination};
use crate::metrics::{self, endpoint};
use crate::mount::Job;
use crate::options::Wanted;
use crate::programs;
use crate::serve::Notify;
use crate::source::Source;
use crate::stack::{self, Client, Teller};
use crate::stat::print;
use hither_vfs::{Cred, RequestContext};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Serves until a signal ends the daemon.
///
/// # Errors
/// The reason why programs could not be served.
pub fn run(args: &DaemonArgs) -> Result<(), Failure> {
    let job = job(args).map_err(Failure::usage)?;
    let log = log::init(&args.log, LogDestination::Foreground)?;
    log::log_panics();
    process::prepare();
    privileges::give_up(Role::Serve);
    let runtime = process::runtime()?;
    let result = runtime.block_on(live(&job, &log));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// The job of a mount, without a mount point.
fn job(args: &DaemonArgs) -> Result<Job, String> {
    let source = Source::parse(&args.source)?;
    let mut wanted = Wanted::parse(&args.options, false)?;
    let path = std::path::absolute(&args.socket).map_err(|e| format!("{}: {e}", args.socket.display()))?;
    let refused = [
        (wanted.socket.path.is_some(), "socket", "--socket gives its path"),
        (!wanted.socket.offered, "nosocket", "the daemon offers nothing but the socket: leave it out"),
        (wanted.journal.is_some(), "writeback=journal", "only mounts handle conflicts: mount it"),
        (wanted.remount, "remount", "remove it"),
        (wanted.background, "bg", "remove it, and start it by a unit or with &"),
    ];
    if let Some((_, option, why)) = refused.iter().find(|(given, ..)| *given) {
        return Err(format!("option '{option}' needs a mount: {why}"));
    }
    wanted.socket.path = Some(path);
    Ok(Job { source, dir: PathBuf::new(), wanted, client_name: None })
}

async fn live(job: &Job, log: &Log) -> Result<(), Failure> {
    let system = |e: std::io::Error| Failure::system(format!("the socket: {e}"));
    let mut signals = Signals::new().map_err(|e| Failure::system(format!("signal handlers: {e}")))?;
    let metrics = match &job.wanted.metrics {
        Some(place) => Some(endpoint::bind(place).await.map_err(|e| {
            Failure::usage(format!("option 'metrics={place}': {e}; give another address or path"))
        })?),
        None => None,
    };
    let socket = programs::bind(&job.wanted.socket)?;
    let mut voice = Voice::Terminal;
    let client = tokio::select! {
        client = connect(job, &mut voice, || Ok(())) => client?,
        () = signals.end(log) => return Err(Failure::interrupted()),
    };
    let Some(bound) = socket else { return Err(Failure::system("the socket was not made")) };
    let (listener, files) = bound.listen().map_err(system)?;
    let served = stack::programs(job, &client, None, listener).await;
    let served = served.map_err(|e| Failure::system(format!("the socket: {e}")))?;
    let path = job.wanted.socket.path.as_deref().unwrap_or(&job.dir);
    let at = path.display();
    let served = Arc::new(served);
    let teller = teller(job, path, &client, served.clone()).await?;
    let control = control(path, &teller);
    let metrics = metrics.map(|bound| bound.serve(Arc::new(move || metrics::render(&teller.report()))));
    print(&format!("{} for programs at {at}\n", job.source.shown()))?;
    tracing::info!("{} for programs at {at} ({})", job.source.shown(), client.summary());
    let notify = Notify::from_environment();
    notify.ready();
    signals.end(log).await;
    notify.stopping();
    drop((control, metrics));
    // No further programs connect. Files that programs have open are closed before the state at the
    // server is released.
    drop(files);
    served.end(FAREWELL).await;
    let within = if job.wanted.lazy_close || job.wanted.delegated_close { LAZY_FAREWELL } else { FAREWELL };
    tokio::select! {
        outcome = farewell(&client, within) => outcome.map_err(Failure::system),
        () = signals.end(log) => {
            tracing::error!("second signal: unsent data is lost");
            Ok(())
        }
    }
}

/// Answers requests about the daemon.
async fn teller(
    job: &Job,
    path: &Path,
    client: &Client,
    served: Arc<hither_socket::Programs>,
) -> Result<Arc<Teller>, Failure> {
    let root = client.layers().vfs.root(&RequestContext::new(Arc::new(Cred::root()))).await;
    let root = root.map_err(|e| Failure::system(format!("the root of {}: {e}", job.source.shown())))?;
    Ok(Arc::new(Teller::new(job, path, client, root.fh, None, Some(served))))
}

/// The control socket beside the socket for programs. Without it, the daemon serves programs
/// nevertheless.
fn control(path: &Path, teller: &Arc<Teller>) -> Option<(Control, impl Send + Sync + use<>)> {
    let beside = locate::beside(path);
    let bound = programs::bind_private(&beside).and_then(programs::Bound::listen);
    let none = |e: &std::io::Error| {
        tracing::warn!("no control socket {}, `hither stat` will not work: {e}", beside.display());
    };
    let (listener, files) = bound.inspect_err(none).ok()?;
    // No program waits for the end of a daemon without a mount.
    let (_, end) = tokio::sync::watch::channel(None);
    Some((Control::on(listener, answer(teller.clone(), path, end)), files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn job_of(options: &str) -> Result<Job, String> {
        let words = ["hither", "daemon", "s:/x", "--socket", "/run/s", "-o", options];
        let Command::Daemon(args) = Cli::parse_from(words).command else { panic!("it is daemon") };
        job(&args)
    }

    /// Options that need a mount are refused by name.
    #[test]
    fn daemon_refuses_mount_options() {
        for option in ["socket=/x", "nosocket", "writeback=journal", "remount", "bg"] {
            let line = job_of(option).map(|_| ()).unwrap_err();
            let name = option.split('=').next().unwrap();
            assert!(line.contains(name) && line.contains("needs a mount: "), "{line}");
        }
        let job = job_of("vers=4.2,cache,socket-mode=0660").unwrap();
        assert_eq!(job.wanted.socket.path, Some("/run/s".into()));
        assert_eq!(job.wanted.socket.mode, 0o660);
    }
}
