//! `hither gateway`: serves the export of another server, the origin, through the layers of a
//! mount. It mounts nothing.
//!
//! This module checks the options and connects to the origin. [`crate::serve`] does the rest: the
//! layers of the mount take the place of a local directory. [`guard`] checks rights and freshness,
//! as the kernel does on a mount.

mod guard;

use crate::cli::GatewayArgs;
use crate::daemon::{self, Voice};
use crate::exit::Failure;
use crate::mount::Job;
use crate::options::Wanted;
use crate::serve;
use crate::source::Source;
use crate::stack::Client;
use guard::Guard;
use hither_vfs::{BoxFuture, Fh, Unsent, Upcalls, Vfs};
use rustix::mount::MountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Serves an origin until a signal ends the gateway.
///
/// # Errors
/// One line for each possible fault.
pub fn run(args: &GatewayArgs) -> Result<(), Failure> {
    let job = job(args).map_err(Failure::usage)?;
    serve::run(&args.serve, Some(job))
}

/// The job of a mount of the origin, without a mount point.
fn job(args: &GatewayArgs) -> Result<Job, String> {
    let origin = args.serve.dir.as_deref().unwrap_or(Path::new("")).to_string_lossy();
    let source = Source::parse(&origin)?;
    let wanted = Wanted::parse(&args.mount, false)?;
    refuse_mount_options(&wanted)?;
    let serve = &args.serve;
    let refused = [
        (!serve.export.is_empty(), "--export", "clients mount the origin's export as HOST:/"),
        (!serve.config.is_empty(), "--config", "clients mount the origin's export as HOST:/"),
        (serve.memory, "--memory", "the files are those of the origin"),
        (serve.nqnfs, "--nqnfs", "clients use NFSv3 or NFSv4"),
        (serve.max_delegations > 0, "--max-delegations", "others may change the files at the origin"),
        (serve.journal != Path::new("none"), "--journal", "writes are stable when the origin has them"),
        (serve.journal_discard, "--journal-discard", "there is no journal"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => Err(format!("option '{option}' is not for a gateway: {why}")),
        None => Ok(Job { source, dir: PathBuf::new(), wanted, client_name: None }),
    }
}

/// The gateway's name at the origin, from its state directory. A restarted gateway has the same
/// name, so the origin ends the locks of its previous life, and the clients reclaim theirs.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn client_name(state_dir: &Path) -> Result<String, Failure> {
    let path = state_dir.join("client-name");
    let failed = |e: io::Error| Failure::system(format!("{}: {e}", path.display()));
    match std::fs::read_to_string(&path) {
        Ok(name) if is_name(&name) => return Ok(name),
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let name = format!("gateway-{:016x}", rand::random::<u64>());
    std::fs::write(&path, &name).map_err(failed)?;
    Ok(name)
}

/// Whether a file has a whole name. A crash can leave an empty or shorter file.
fn is_name(text: &str) -> bool {
    text.strip_prefix("gateway-").is_some_and(|number| number.len() == 16)
}

/// Refuses mount options that need a mount, and those that delay what clients count as done.
fn refuse_mount_options(wanted: &Wanted) -> Result<(), String> {
    let read_only = wanted.flags.contains(MountFlags::RDONLY);
    let refused = [
        (read_only, "ro", "-o ro is for the clients of the gateway"),
        (!wanted.flags.is_empty(), "a flag of mount(2)", "nothing is mounted: clients mount with it"),
        (wanted.socket.path.is_some(), "socket", "programs mount the gateway"),
        (wanted.metrics.is_some(), "metrics", "use --metrics"),
        (wanted.journal.is_some(), "writeback=journal", "clients count a write as done at the origin"),
        (wanted.exclusive, "exclusive", "clients count a change as done at the origin"),
        (wanted.lazy_close, "close=lazy", "clients count a closed file as done at the origin"),
        (wanted.delegated_close, "close=delegated", "clients count a closed file as done at the origin"),
        (!wanted.subtrees.is_empty(), "subtree", "one mode serves the whole export"),
        (wanted.remount, "remount", "start the gateway again"),
        (wanted.background, "bg", "start it by a unit or with &"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => Err(format!("mount option '{option}' is not for a gateway: {why}")),
        None => Ok(()),
    }
}

/// A connected origin.
pub struct Origin {
    client: Client,
    /// Its files, with checked rights.
    pub files: Arc<dyn Vfs>,
}

impl Origin {
    /// Connects, and tries again for as long as the option `retry` says.
    ///
    /// # Errors
    /// The reason why the origin is not available.
    pub async fn connect(job: &Job) -> Result<Self, Failure> {
        let client = daemon::connect(job, &mut Voice::Terminal, || Ok(())).await?;
        tracing::info!("origin {} ({})", job.source.shown(), client.summary());
        let layers = client.layers();
        layers.vfs.subscribe(Arc::new(NoKernel));
        let files = Arc::new(Guard::new(layers.vfs, &job.wanted));
        Ok(Self { client, files })
    }

    /// Flushes all data and releases all state at the origin.
    pub async fn end(&self, within: Duration) {
        daemon::farewell(&self.client, within).await;
    }
}

/// The layer above the layers of the mount. It caches nothing, and delays nothing.
struct NoKernel;

impl Upcalls for NoKernel {
    fn revoke(&self, _fh: &Fh) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }

    fn unsent(&self, _fh: &Fh) -> Unsent {
        Unsent::Nothing
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn job_of(words: &[&str]) -> Result<Job, String> {
        let words = [&["hither", "gateway"], words].concat();
        let Command::Gateway(args) = Cli::parse_from(words).command else { panic!("it is gateway") };
        job(&args)
    }

    /// Options that a gateway cannot honour are refused by name.
    #[test]
    fn gateway_refuses_options() {
        let writes = "writeback=journal,exclusive";
        for option in ["ro", "nosuid", "socket=/x", "metrics=127.0.0.1:9", "remount", "bg", writes] {
            let line = job_of(&["s:/x", "--mount", option]).map(|_| ()).unwrap_err();
            assert!(line.contains("is not for a gateway: "), "{line}");
        }
        for option in ["close=lazy", "close=delegated"] {
            let line = job_of(&["s:/x", "--mount", option]).map(|_| ()).unwrap_err();
            assert!(line.contains(option), "{line}");
        }
        for option in [&["--nqnfs"][..], &["--max-delegations", "9"], &["--journal", "/j"]] {
            let line = job_of(&[&["s:/x"], option].concat()).map(|_| ()).unwrap_err();
            assert!(line.contains(option[0]), "{line}");
        }
        assert!(job_of(&["/srv"]).map(|_| ()).unwrap_err().contains("names no server"));
        let job = job_of(&["s:/x", "--mount", "vers=4.2,cache=/c", "--mount", "acregmax=5"]).unwrap();
        assert_eq!((job.source.shown().as_str(), job.wanted.close_to_open), ("s:/x", true));
    }
}
