//! The process behind a mount: connects, mounts, serves until the unmount, flushes and ends.
//!
//! This module uses the layers only through [`stack`]. The daemon sets up its session, standard
//! streams, log, limits and runtime. It tries to connect until it succeeds or `retry` is over. It
//! then mounts, opens the control socket and notifies the waiting command. It serves until the
//! unmount or a signal. At the end it writes all data within a deadline.

pub mod alone;
pub mod privileges;
pub mod process;
mod voice;

use crate::cli::MountArgs;
use crate::control::{Answer, Ask, Control};
use crate::daemon::privileges::Role;
use crate::dashboard;
use crate::exit::Failure;
use crate::log::{self, Log, LogDestination};
use crate::metrics::{self, endpoint};
use crate::mount::{Job, NoDir, check_dir};
use crate::mountinfo;
use crate::programs::{self, Bound};
use crate::source::NoAddress;
use crate::stack::{self, Client, NoClient, Teller};
use hither_fuse::Mounted;
use hither_socket::Programs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;
pub use voice::Voice;

/// Pause after the first failed attempt; it doubles up to [`PAUSE_MAX`], as mount.nfs does.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time limit of the last writes and of the release of state at the server. Programs' data is on
/// the server when close(2) and umount(2) return, so this limit concerns only the remaining state.
const FAREWELL: Duration = Duration::from_secs(20);
/// The time limit with `close=lazy`, where close(2) does not wait and programs' data may be unsent.
/// `hither umount` waits for the end, and reports a long wait.
const LAZY_FAREWELL: Duration = Duration::from_secs(24 * 3600);
/// Time for the last replies of the control socket: `hither umount` waits for one.
const REPLIES_WITHIN: Duration = Duration::from_secs(2);
/// Time for users of a busy mount to leave it after a signal.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// Runs the mount until its end. In the background the daemon also reports failures before the
/// mount is usable to the waiting command.
///
/// # Errors
/// The reason why there was no mount.
pub fn run(job: Job, args: &MountArgs) -> Result<(), Failure> {
    let mut voice = if args.daemon { Voice::pipe()? } else { Voice::Terminal };
    let result = set_up(args, uses_kerberos(&job)).and_then(|log| {
        let runtime = process::runtime()?;
        let result = runtime.block_on(live(&job, args, &log, &mut voice));
        // A blocked task (for example in the name service) does not keep the process alive.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    });
    if let Err(failure) = &result {
        if args.daemon {
            tracing::error!("{}: {}", job.source.shown(), failure.line);
        }
        voice.failed(failure);
    }
    result
}

fn uses_kerberos(job: &Job) -> bool {
    job.wanted.flavors.iter().any(|flavor| flavor.service().is_some())
}

fn set_up(args: &MountArgs, uses_kerberos: bool) -> Result<Log, Failure> {
    let log = log::init(
        &args.log,
        if args.daemon { LogDestination::Background } else { LogDestination::Foreground },
    )?;
    log::log_panics();
    process::prepare();
    privileges::give_up(if uses_kerberos { Role::MountKerberos } else { Role::Mount });
    Ok(log)
}

/// Serves the mount from the first attempt to connect to the end.
async fn live(job: &Job, args: &MountArgs, log: &Log, voice: &mut Voice) -> Result<(), Failure> {
    let mut signals = Signals::new().map_err(|e| Failure::system(format!("signal handlers: {e}")))?;
    // The port is bound before the server is contacted, because a busy port is a permanent error.
    let metrics = match &job.wanted.metrics {
        Some(place) => Some(endpoint::bind(place).await.map_err(|e| {
            Failure::usage(format!("option 'metrics={place}': {e}; give another address or path"))
        })?),
        None => None,
    };
    let board = match args.dashboard {
        Some(addr) => Some(
            endpoint::bind(&endpoint::EndpointAddr::Tcp(addr))
                .await
                .map_err(|e| Failure::usage(format!("--dashboard={addr}: {e}; give another port")))?,
        ),
        None => None,
    };
    let socket = programs::bind(&job.wanted.socket)?;
    let client = tokio::select! {
        client = connect(job, voice, || fit(job)) => client?,
        () = signals.end(log) => return Err(Failure::interrupted()),
    };
    let dir = check_dir(&job.dir, &job.source)?;
    let mounted = Arc::new(stack::mount(job, &dir, &client).await?);
    let programs = offer(job, socket, &client, &mounted).await;
    let served = programs.as_ref().map(|(served, _)| served.clone());
    let teller = Arc::new(Teller::new(job, &dir, &client, mounted.root(), Some(mounted.clone()), served));
    let told = teller.clone();
    let metrics = metrics.map(|bound| bound.serve(Arc::new(move || metrics::render(&told.report()))));
    let board = board.map(|bound| show(bound, &teller, voice));
    let (ended, end) = watch::channel(None);
    let control = Control::start(mounted.device(), answer(teller, &dir, end))
        .inspect_err(|e| tracing::warn!("no control socket, `hither stat` will not work: {e}"));
    if let Some(note) = client.note() {
        voice.note(note);
    }
    if let Some(why) = client.cache_trouble() {
        voice.note(&format!("the disk cache is off: {why}"));
    }
    if voice.ready() {
        tracing::info!("{} mounted on {} ({})", job.source.shown(), dir.display(), client.summary());
        serve(&mounted, &mut signals, log).await;
    } else {
        tracing::info!("the mount command ended: unmounting {}", dir.display());
        unmount(&mounted).await;
    }
    if let Some((programs, socket)) = programs {
        drop(socket);
        // Files that programs have open are closed before the state at the server is released.
        programs.end(FAREWELL).await;
    }
    let outcome = last_writes(job, &client, &mut signals, log).await;
    ended.send_replace(Some(outcome));
    if let Ok(control) = control {
        control.end(REPLIES_WITHIN).await;
    }
    drop((metrics, board));
    tracing::info!("{} unmounted from {}", job.source.shown(), dir.display());
    Ok(())
}

/// Flushes all data after the unmount. A signal ends a long wait.
///
/// # Errors
/// The reason why the server does not have everything.
async fn last_writes(job: &Job, client: &Client, signals: &mut Signals, log: &Log) -> Result<(), String> {
    // With these options close(2) does not wait for the server.
    let lazy = job.wanted.lazy_close || job.wanted.delegated_close || job.wanted.exclusive;
    let within = if lazy { LAZY_FAREWELL } else { FAREWELL };
    tokio::select! {
        outcome = farewell(client, within) => outcome.map_err(|why| match job.wanted.journal {
            Some(_) => format!("{why}; the journal keeps the rest for the next mount"),
            None => why,
        }),
        () = signals.end(log), if lazy => {
            let why = match job.wanted.journal {
                Some(_) => "unsent data stays in the journal for the next mount",
                None => "unsent data is lost",
            };
            tracing::error!("signal: {why}");
            Err(format!("a signal ended the daemon, and {why}"))
        }
    }
}

/// Starts to serve the dashboard and prints its address. The address is shown to the mounting user
/// and not logged, because it gives access to file names.
fn show(bound: endpoint::Bound, teller: &Arc<Teller>, voice: &mut Voice) -> endpoint::Endpoint {
    let secret = rand::random();
    if let Ok(addr) = bound.address() {
        voice.note(&dashboard::told(addr, secret));
    }
    let (figures, calls) = (teller.clone(), teller.clone());
    let source = dashboard::Source {
        report: Box::new(move || figures.report()),
        calls: Box::new(move |from| calls.calls(from).unwrap_or_default()),
    };
    bound.serve_site(dashboard::site(secret, source))
}

/// Offers the socket for programs if requested. Without the socket the mount still works.
async fn offer(
    job: &Job,
    bound: Option<Bound>,
    client: &Client,
    mounted: &Mounted,
) -> Option<(Arc<Programs>, impl Send + Sync + use<>)> {
    let wanted = &job.wanted.socket;
    if !wanted.offered {
        return None;
    }
    let none = |e: &dyn std::fmt::Display| tracing::warn!("no socket for programs: {e}");
    let listening = Bound::of_mount(bound, mounted.device(), wanted).and_then(Bound::listen);
    let (listener, files) = listening.inspect_err(|e| none(e)).ok()?;
    let programs =
        stack::programs(job, client, Some(mounted), listener).await.inspect_err(|e| none(e)).ok()?;
    Some((Arc::new(programs), files))
}

/// Waits for the end of the mount. A signal unmounts. Users of a busy mount get some time to leave,
/// which a second signal ends.
async fn serve(mounted: &Arc<Mounted>, signals: &mut Signals, log: &Log) {
    tokio::select! {
        () = mounted.wait() => return,
        () = signals.end(log) => {}
    }
    let dir = mounted.dir().display();
    tracing::info!("signal: unmounting {dir}");
    unmount(mounted).await;
    tokio::select! {
        () = mounted.wait() => {}
        () = signals.end(log) => tracing::warn!("second signal: not waiting for the users of {dir}"),
        () = tokio::time::sleep(LEAVE_WITHIN) => {
            tracing::warn!("{dir} is still in use after {} s: ending all the same", LEAVE_WITHIN.as_secs());
        }
    }
}

/// Unmounts the mount. A busy mount is detached. The unmount runs outside the runtime, because the
/// kernel first writes dirty pages, which this process must serve.
async fn unmount(mounted: &Arc<Mounted>) {
    let mounted = mounted.clone();
    let work = move || {
        let dir = mounted.dir();
        let on_top = mountinfo::read().ok().and_then(|m| Some(mountinfo::at(&m, dir)?.dev));
        if on_top != Some(mounted.device()) {
            tracing::warn!("{}: another mount covers this one, which stays below it", dir.display());
            return;
        }
        let result = mounted.unmount(false).or_else(|e| {
            tracing::warn!("{}: {e}; detaching it", dir.display());
            mounted.unmount(true)
        });
        if let Err(e) = result {
            tracing::error!("unmounting {}: {e}", dir.display());
        }
    };
    let _ = tokio::task::spawn_blocking(work).await;
}

/// Flushes all data and releases all state at the server. `within` limits the time.
///
/// # Errors
/// The reason why the server does not have everything, which is logged.
pub async fn farewell(client: &Client, within: Duration) -> Result<(), String> {
    match tokio::time::timeout(within + Duration::from_secs(1), client.shutdown(within)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) => Err(format!("not everything reached the server: {e}")),
        Err(_) => Err(format!("the server did not answer within {} s", within.as_secs())),
    }
    .inspect_err(|why| tracing::error!("at the end, {why}"))
}

/// The outcome of the [`farewell`], when it has ended.
type End = watch::Receiver<Option<Result<(), String>>>;

/// Waits for the outcome of the [`farewell`]. The daemon may end without one.
async fn unsent(mut end: End) -> serde_json::Value {
    let unsent = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone()?.err());
    unsent.map_or_else(|| serde_json::json!({}), |why| serde_json::json!({ "unsent": why }))
}

/// Answers requests of the control socket.
fn answer(teller: Arc<Teller>, dir: &Path, end: End) -> Answer {
    let dir = dir.to_path_buf();
    Arc::new(move |ask| {
        let (dir, teller, end) = (dir.clone(), teller.clone(), end.clone());
        Box::pin(async move {
            match ask {
                Ask::Stat => serde_json::to_value(teller.report()).map_err(|e| e.to_string()),
                Ask::Mountstats => {
                    let mounts = mountinfo::read().unwrap_or_default();
                    let flags = mountinfo::at(&mounts, &dir).map_or("rw", |mount| &mount.options);
                    Ok(serde_json::Value::String(teller.mountstats(flags)))
                }
                Ask::Calls(from) => teller.calls(from),
                Ask::Why(path) => teller.why(&path).await,
                Ask::Cache(ask) => teller.cache(ask).await,
                Ask::Apply(name, to) => teller.apply(&name, to.as_deref()).await,
                Ask::Trace(ask) => teller.trace(ask),
                Ask::Flush => Err("only servers have this journal (hither serve --journal)".into()),
                Ask::Sync { within_s } => Ok(teller.sync(Duration::from_secs(within_s)).await),
                Ask::End => Ok(unsent(end).await),
            }
        })
    })
}

/// A failed attempt: with a permanent or a transient error.
pub enum Missed {
    Never(Failure),
    Now(Failure),
}

/// Attempts to connect until one attempt succeeds, fails permanently, or `retry` is over. `fit` is
/// checked before each attempt.
pub async fn connect(
    job: &Job,
    voice: &mut Voice,
    fit: impl Fn() -> Result<(), Missed>,
) -> Result<Client, Failure> {
    let until = Instant::now() + job.wanted.retry();
    let mut grown = PAUSE_MIN;
    let mut told = false;
    loop {
        let tried = match fit() {
            Ok(()) => attempt(job).await,
            Err(missed) => Err(missed),
        };
        let failure = match tried {
            Ok(client) => return Ok(client),
            Err(Missed::Never(failure)) => return Err(failure),
            Err(Missed::Now(failure)) => failure,
        };
        // The last attempt is at the end of the time.
        let pause = grown.min(until.saturating_duration_since(Instant::now()));
        if pause.is_zero() {
            return Err(failure);
        }
        if !told {
            tracing::info!("{}; trying again", failure.line);
            voice.waiting(&failure.line, job.wanted.retry(), job.wanted.background);
            told = true;
        }
        tokio::time::sleep(pause).await;
        grown = (grown * 2).min(PAUSE_MAX);
    }
}

/// Checks that the mount point is usable.
fn fit(job: &Job) -> Result<(), Missed> {
    match check_dir(&job.dir, &job.source) {
        Err(NoDir::Missing(line)) if job.wanted.background => Err(Missed::Now(Failure::mount(line))),
        Err(why) => Err(Missed::Never(why.into())),
        Ok(_) => Ok(()),
    }
}

/// One attempt to connect.
pub async fn attempt(job: &Job) -> Result<Client, Missed> {
    let (source, family) = (job.source.clone(), job.wanted.family);
    let addrs = tokio::task::spawn_blocking(move || source.resolve(family)).await;
    let addrs = match addrs {
        Ok(Ok(addrs)) => addrs,
        Ok(Err(NoAddress::Never(line))) => return Err(Missed::Never(Failure::mount(line))),
        Ok(Err(NoAddress::Now(line))) => return Err(Missed::Now(Failure::mount(line))),
        Err(e) => return Err(Missed::Never(Failure::system(format!("looking up the host: {e}")))),
    };
    stack::connect(job, addrs).await.map_err(|e| match e {
        NoClient::Local(line) => Missed::Never(Failure::system(line)),
        NoClient::Server(e) => {
            let failure = Failure { code: e.exit_code(), line: e.to_string() };
            if e.is_transient() { Missed::Now(failure) } else { Missed::Never(failure) }
        }
    })
}

/// The handled signals.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at SIGTERM and SIGINT; SIGHUP opens the log file again.
    async fn end(&mut self, log: &Log) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => log.reopen(),
            }
        }
    }
}
