//! `hither gateway`: serves exports of other servers, the origins, through the layers of a mount.
//! It mounts nothing.
//!
//! This module checks the options and keeps the origins. [`crate::serve`] does the rest: files of
//! origins take the place of local directories. [`guard`] checks rights and freshness, as the
//! kernel does on a mount. [`origins`] reads the configuration, [`origin`] connects, and [`found`]
//! finds exports.

mod absence;
mod found;
mod guard;
mod origin;
mod origins;
mod relayed;

use crate::cli::GatewayArgs;
use crate::exit::Failure;
use crate::mount::Job;
use crate::options::Wanted;
use crate::serve;
use crate::stack;
use guard::Guard;
use hither_localfs::local::handle_secret;
use hither_server::handle::seal_handles;
use hither_server::long_handles::LongHandles;
use hither_server::numbers::number_of;
pub use origin::Branch;
use origin::RootAt;
use origin::{Origin, Settings};
use origins::OriginLine;
use rustix::mount::MountFlags;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Serves origins until a signal ends the gateway.
///
/// # Errors
/// One line for each possible fault.
pub fn run(args: &GatewayArgs) -> Result<(), Failure> {
    refuse_server_options(args).map_err(Failure::usage)?;
    origins::read(args)?;
    serve::run(&args.serve, Some(args))
}

/// Refuses options of `hither serve` that need a local directory.
fn refuse_server_options(args: &GatewayArgs) -> Result<(), String> {
    let serve = &args.serve;
    let refused = [
        (serve.memory, "--memory", "the files are those of the origin"),
        (serve.nqnfs, "--nqnfs", "clients use NFSv3 or NFSv4"),
        (serve.journal != Path::new("none"), "--journal", "writes are stable when the origin has them"),
        (serve.journal_discard, "--journal-discard", "there is no journal"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => Err(format!("option '{option}' is not for a gateway: {why}")),
        None => Ok(()),
    }
}

/// An export of an origin, and its path for clients.
pub struct Offered {
    pub path: String,
    pub origin: Arc<Origin>,
    pub at: RootAt,
}

/// The origins of a gateway.
pub struct Gateway {
    args: GatewayArgs,
    /// The gateway's name at its origins, if it has a state directory.
    name: Option<String>,
    /// The origins by the text of their lines.
    origins: BTreeMap<String, Arc<Origin>>,
    /// The text of all lines as last read.
    lines: HashSet<String>,
    /// Told when an origin is connected.
    changed: Arc<Notify>,
}

impl Gateway {
    /// Connects to the origins. Several origins connect in the background, so that one that is away
    /// does not delay the others.
    ///
    /// # Errors
    /// The reason why the only origin is not available, or a fault of the configuration.
    pub async fn start(args: &GatewayArgs, state_dir: Option<&Path>) -> Result<Self, Failure> {
        let name = state_dir.map(client_name).transpose()?;
        let key = handle_secret(state_dir, &stack::env()).map_err(|e| Failure::system(e.to_string()))?;
        seal_handles(&key, long_handles(state_dir, &key)?);
        let lines = origins::read(args)?;
        let (origins, changed) = (BTreeMap::new(), Arc::default());
        let mut gateway = Self { args: args.clone(), name, origins, lines: HashSet::new(), changed };
        if let ([only], true) = (&lines[..], args.origins.is_empty())
            && !only.is_pattern()
        {
            let origin = Origin::connect(gateway.settings(only)).await?;
            gateway.origins.insert(only.text.clone(), origin);
            return Ok(gateway);
        }
        gateway.offered()?;
        let all = lines.iter().map(|line| (gateway.origin(line), line.is_pattern()));
        let all: Vec<_> = all.collect();
        let all = all.iter().map(|(origin, is_pattern)| origin.settled(*is_pattern));
        let _ = tokio::time::timeout(START_WITHIN, futures_util::future::join_all(all)).await;
        Ok(gateway)
    }

    /// Told when the exports may have changed, because an origin is connected.
    pub fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Reads the origins again, starts new ones and returns all exports.
    ///
    /// # Errors
    /// A fault of the configuration. The origins stay as they are.
    pub fn offered(&mut self) -> Result<Vec<Offered>, Failure> {
        let lines = origins::read(&self.args)?;
        self.lines = lines.iter().map(|line| line.text.clone()).collect();
        let mut offered = Vec::new();
        for line in &lines {
            let origin = self.origin(line);
            if !line.is_pattern() {
                offered.push(Offered { path: line.path.clone(), origin, at: RootAt::Mounted });
            }
        }
        // A line of its own counts before a pattern, and the first pattern before others.
        let mut paths: HashSet<String> = offered.iter().map(|export| export.path.clone()).collect();
        for line in lines.iter().filter(|line| line.is_pattern()) {
            let origin = self.origin(line);
            for export in origin.found() {
                let path = line.path_of(&export.path);
                if paths.insert(path.clone()) {
                    offered.push(Offered { path, origin: origin.clone(), at: export.at });
                }
            }
        }
        Ok(offered)
    }

    /// The origin of a line, which starts to connect if it is new.
    fn origin(&mut self, line: &OriginLine) -> Arc<Origin> {
        if let Some(origin) = self.origins.get(&line.text) {
            return origin.clone();
        }
        let (settings, changed) = (self.settings(line), self.changed.clone());
        let origin = if line.is_pattern() {
            let line = line.clone();
            Origin::search(settings, move |export| line.includes(export), changed)
        } else {
            Origin::start(settings, changed)
        };
        self.origins.insert(line.text.clone(), origin.clone());
        origin
    }

    /// Looks for exports of all origins now.
    pub fn search_again(&self) {
        self.origins.values().for_each(|origin| origin.again.notify_one());
    }

    /// Ends the origins that the configuration no longer has. Unstable bytes of clients are sent
    /// now. When another line for the same server replaces the origin, the new write verifier makes
    /// the clients send them again.
    pub fn end_unused(&mut self) {
        let is_unused = |text: &&String| !self.lines.contains(*text);
        let gone: Vec<String> = self.origins.keys().filter(is_unused).cloned().collect();
        for origin in gone.iter().filter_map(|text| self.origins.remove(text)) {
            tracing::info!("origin {} is no longer served", origin.job.source.shown());
            tokio::spawn(async move {
                origin.recall(LEAVE_WITHIN).await;
                origin.flush(LEAVE_WITHIN).await;
                tokio::time::sleep(LEAVE_WITHIN).await;
                origin.end(FAREWELL).await;
            });
        }
    }

    /// Recalls the delegations of all clients, before the gateway ends.
    pub async fn recall(&self, within: Duration) {
        let all = self.origins.values().map(|origin| origin.recall(within));
        futures_util::future::join_all(all).await;
    }

    /// Flushes all data and releases all state at all origins.
    pub async fn end(&self, within: Duration) {
        let all = self.origins.values().map(|origin| origin.end(within));
        futures_util::future::join_all(all).await;
    }

    /// The job of a mount of the origin, without a mount point. Each origin has a client name of
    /// its own, because a server takes two clients with one name for a restart.
    fn settings(&self, line: &OriginLine) -> Settings {
        let number = number_of(line.text.as_bytes());
        let client_name = self.name.as_ref().map(|name| format!("{name}-{number:016x}"));
        let (source, mut wanted) = (line.source.clone(), line.wanted.clone());
        wanted.withdraw_max = RELAYED_RECALL_MAX;
        wanted.delay_attributes = false;
        let job = Job { source, dir: PathBuf::new(), wanted, client_name };
        Settings { job, stale_ok: line.stale_ok }
    }
}

/// Longest time for clients to return delegations of a file that the origin recalls. An origin
/// revokes the gateway's delegation after its lease time.
const RELAYED_RECALL_MAX: Duration = Duration::from_secs(600);
/// Time for several origins to connect before clients are served.
const START_WITHIN: Duration = Duration::from_secs(3);
/// Time for calls in progress of an origin that is no longer served.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for the end of an origin that is no longer served.
const FAREWELL: Duration = Duration::from_secs(20);

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

/// The table of filehandles that are too long for NFSv3.
fn long_handles(state_dir: Option<&Path>, key: &[u8; 16]) -> Result<LongHandles, Failure> {
    let Some(dir) = state_dir else { return Ok(LongHandles::in_memory(key)) };
    let path = dir.join("long-handles");
    LongHandles::open(&path, key).map_err(|e| Failure::system(format!("{}: {e}", path.display())))
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
        (!wanted.subtrees.is_empty(), "subtree", "export the subtree as an origin of its own, with its mode"),
        (wanted.remount, "remount", "start the gateway again"),
        (wanted.background, "bg", "start it by a unit or with &"),
    ];
    match refused.iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => Err(format!("mount option '{option}' is not for a gateway: {why}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn line_of(words: &[&str]) -> Result<OriginLine, String> {
        let words = [&["hither", "gateway"], words].concat();
        let Command::Gateway(args) = Cli::parse_from(words).command else { panic!("it is gateway") };
        refuse_server_options(&args)?;
        origins::read(&args).map(|mut all| all.remove(0)).map_err(|failure| failure.line)
    }

    /// Options that a gateway cannot honour are refused by name.
    #[test]
    fn gateway_refuses_options() {
        let writes = "writeback=journal,exclusive";
        for option in ["ro", "nosuid", "socket=/x", "metrics=127.0.0.1:9", "remount", "bg", writes] {
            let line = line_of(&["s:/x", "--mount", option]).map(|_| ()).unwrap_err();
            assert!(line.contains("is not for a gateway: "), "{line}");
        }
        for option in ["close=lazy", "close=delegated"] {
            let line = line_of(&["s:/x", "--mount", option]).map(|_| ()).unwrap_err();
            assert!(line.contains(option), "{line}");
        }
        for option in [&["--nqnfs"][..], &["--journal", "/j"]] {
            let line = line_of(&[&["s:/x"], option].concat()).map(|_| ()).unwrap_err();
            assert!(line.contains(option[0]), "{line}");
        }
        assert!(line_of(&["/srv"]).map(|_| ()).unwrap_err().contains("names no server"));
        let line = line_of(&["s:/x", "--mount", "vers=4.2,cache=/c", "--mount", "acregmax=5"]).unwrap();
        assert_eq!((line.source.shown().as_str(), line.wanted.close_to_open), ("s:/x", true));
    }
}
