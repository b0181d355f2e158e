//! The command line of `hither`.

mod cert;
mod journal;

use crate::exit::Failure;
pub use cert::*;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hither_tools::bench::BenchArgs;
use hither_tools::doctor::DoctorArgs;
use hither_tools::trace::TraceArgs;
pub use journal::*;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Mounts NFS servers (versions 4.2, 4.1 and 3) through FUSE, and serves directories to NFS
/// clients.
#[derive(Parser)]
#[command(name = "hither", version, disable_help_subcommand = false, max_term_width = 100)]
#[command(
    after_help = "The links mount.hither and umount.hither in /sbin let mount(8), fstab and umount(8) use this \
                        program."
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Mount an export of an NFS server on a directory
    Mount(MountArgs),
    /// Unmount a directory, also with a dead server
    Umount(UmountArgs),
    /// Show a mount's requests to its server, and their times
    Stat(StatArgs),
    /// Wait until the server has all data written on a mount
    Sync(MountSyncArgs),
    /// List, apply or drop delayed writes that could not be sent after a crash
    Conflicts(ConflictsArgs),
    /// Show a mount's current requests to its server, by operation, process and file
    Top(TopArgs),
    /// Show the cached state of a file, the promise behind it and its end, and the cost of the last
    /// calls
    Why(WhyArgs),
    /// Measure a server, the network path to it and this machine, and name remedies
    Doctor(DoctorArgs),
    /// Offer an export to programs through a socket, without a mount
    Daemon(DaemonArgs),
    /// Check fstab, exports and mount options without using them
    Config(ConfigArgs),
    /// Serve a directory of this machine to NFS clients (versions 3, 4.1 and 4.2)
    Serve(Box<ServeArgs>),
    /// Serve the export of another server to NFS clients, through the caches of a mount
    Gateway(Box<GatewayArgs>),
    /// Make a certificate authority, and certificates of servers and clients for TLS
    Cert(CertArgs),
    /// Show, check, adopt or flush the journal of a server
    Journal(JournalArgs),
    /// Examine, fill or clean a disk cache
    Cache(CacheArgs),
    /// Record the files that a program reads, and replay them ahead of it
    Trace(TraceArgs),
    /// Run the papers' experiments in a directory or against an NFS server; compare, plot, report
    Bench(BenchArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages
    Man(ManArgs),
}

/// `hither mount`.
#[derive(Debug, Args, Clone)]
pub struct MountArgs {
    /// The export: SERVER:/PATH; an IPv6 address stands in brackets, [ADDRESS]:/PATH
    #[arg(value_name = "SERVER:/PATH")]
    pub source: String,
    /// The mount point
    pub dir: PathBuf,
    /// Mount options, separated by commas; may be given several times; listed below
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, log to the terminal, unmount on Ctrl-C
    #[arg(short, long)]
    pub foreground: bool,
    #[command(flatten)]
    pub log: LogArgs,
    /// Run as the background half of a mount, with standard output as a pipe to the other half
    #[arg(long, hide = true)]
    pub daemon: bool,
    /// Check source, options, device and directory, and do not mount
    #[arg(long)]
    pub fake: bool,
    /// Ignore unknown mount options
    #[arg(long)]
    pub sloppy: bool,
    /// Serve a live page for a browser on this machine, and print its address; loopback only, any
    /// free port unless given
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:0",
          value_parser = crate::dashboard::address)]
    pub dashboard: Option<std::net::SocketAddr>,
}

/// The destination of the daemon's log.
#[derive(Debug, Args, Clone, Default)]
pub struct LogArgs {
    /// Log to this file instead of the system's log (opened again on SIGHUP)
    #[arg(long = "log", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// error, warn, info, debug, trace; or per part: `info,hither_nfs=debug`
    #[arg(long = "log-level", value_name = "LEVEL", env = "HITHER_LOG")]
    pub level: Option<String>,
    /// Log more, like --log-level debug
    #[arg(short, long)]
    pub verbose: bool,
}

/// `hither umount`.
#[derive(Debug, Args, Clone)]
pub struct UmountArgs {
    /// The directory, or the SERVER:/PATH mounted there
    pub dir: PathBuf,
    /// Detach at once; the mount ends when its last user closes it
    #[arg(short, long)]
    pub lazy: bool,
    /// Fail all calls that wait for the server; unsent data is lost
    #[arg(short, long)]
    pub force: bool,
    /// Seconds to wait until the daemon has sent all data and ended
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
    /// Report each step
    #[arg(short, long)]
    pub verbose: bool,
}

/// `hither stat`.
#[derive(Debug, Args, Clone)]
pub struct StatArgs {
    /// A directory of the mount, or the socket of `hither daemon`
    #[arg(required_unless_present = "server")]
    pub dir: Option<PathBuf>,
    /// Show a running `hither serve` or `hither gateway` instead, by its state directory or control
    /// socket; default: the only one with a state directory in /var/lib/hither
    #[arg(long, value_name = "STATE-DIR|SOCKET", num_args = 0..=1, conflicts_with = "dir")]
    pub server: Option<Option<PathBuf>>,
    /// Print JSON; the same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Repeat every N seconds until interrupted; text shows the increase
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// `hither sync`.
#[derive(Debug, Args, Clone)]
pub struct MountSyncArgs {
    /// A directory of the mount
    pub dir: PathBuf,
    /// Seconds to wait; remaining data is sent later
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// `hither conflicts`.
#[derive(Debug, Args, Clone)]
pub struct ConflictsArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: ConflictsCommand,
}

/// Actions on conflicts. WHERE is a directory of a mount with a journal, or a directory given as
/// `cache` or `journal-dir`.
#[derive(Debug, Subcommand, Clone)]
pub enum ConflictsCommand {
    /// List conflicts: name, path, bytes, age, reason
    Ls {
        /// A directory of a mount, or of caches or journals
        place: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the kept data of one conflict: its ranges, or the file merged with them
    Show {
        /// A directory of a mount, or of caches or journals
        place: PathBuf,
        /// The conflict
        name: String,
        /// Write the server's file, overlaid with the kept data, to standard output (only for a
        /// mount)
        #[arg(long)]
        merged: bool,
        /// Write to this file instead; without --merged only the kept data, with holes between
        /// ranges
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// As JSON
        #[arg(long, conflicts_with_all = ["merged", "output"])]
        json: bool,
    },
    /// Write the kept data over the present content of the file, and drop the conflict (only for a
    /// mount)
    Apply {
        /// A directory of the mount
        place: PathBuf,
        /// The conflict
        name: String,
        /// Write to this file of the mount instead; a path below the mount point
        #[arg(long, value_name = "PATH")]
        to: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete the kept data
    Drop {
        /// A directory of a mount, or of caches or journals
        place: PathBuf,
        /// The conflict
        name: String,
    },
}

/// `hither top`.
#[derive(Debug, Args, Clone)]
#[command(after_help = "On a terminal `q` ends the display. Elsewhere each round is printed below the last.")]
pub struct TopArgs {
    /// A directory of the mount
    #[arg(required_unless_present = "server")]
    pub dir: Option<PathBuf>,
    /// Show a running `hither serve` or `hither gateway` instead, by its state directory or control
    /// socket; default: the only one with a state directory in /var/lib/hither
    #[arg(long, value_name = "STATE-DIR|SOCKET", num_args = 0..=1, conflicts_with = "dir")]
    pub server: Option<Option<PathBuf>>,
    /// Seconds of a round
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub delay: u64,
    /// End after this number of rounds
    #[arg(short = 'n', long, value_name = "N")]
    pub rounds: Option<u64>,
}

/// `hither completions`.
#[derive(Debug, Args, Clone)]
#[command(after_help = "bash:  hither completions bash > /etc/bash_completion.d/hither")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `hither man`.
#[derive(Debug, Args, Clone)]
pub struct ManArgs {
    /// Directory for hither.1 and a page for each command
    pub dir: PathBuf,
}

/// `hither why`.
#[derive(Debug, Args, Clone)]
pub struct WhyArgs {
    /// A file or directory in a mount; it is not accessed, and need not exist
    pub path: PathBuf,
    /// Maximum calls to show, newest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub calls: usize,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `hither daemon`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "The daemon stays in the foreground until SIGTERM or Ctrl-C, and notifies systemd when programs can \
                  connect (Type=notify). docs/SOCKET.md states the promises. Paths begin at the export's root."
)]
pub struct DaemonArgs {
    /// The export: SERVER:/PATH; an IPv6 address stands in brackets, [ADDRESS]:/PATH
    #[arg(value_name = "SERVER:/PATH")]
    pub source: String,
    /// Path of the socket
    #[arg(short, long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Mount options, separated by commas; options of mount points have no effect. socket-mode= and
    /// socket-group= restrict the users that may connect. `hither mount --help` lists all options
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `hither config`.
#[derive(Debug, Args, Clone)]
pub struct ConfigArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: ConfigCommand,
}

/// Actions on the configuration.
#[derive(Debug, Subcommand, Clone)]
pub enum ConfigCommand {
    /// Look for faults: a line for each, with file, line and remedy
    Check(ConfigCheck),
}

/// `hither config check`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "By default it checks the files that the units and mount(8) use: /etc/hither/exports, \
                  /etc/hither/exports.d/*.exports, and the lines of /etc/fstab whose type is hither. It mounts and serves \
                  nothing and asks no server. It asks a name service only for the group of socket-group. Exit status: 0 no \
                  fault (lines that begin with `note:` are none), 3 faults, 1 a file cannot be read (the faults of the others \
                  are printed)."
)]
pub struct ConfigCheck {
    /// An exports(5) file, or a directory of files *.exports; may be given several times
    #[arg(short, long, value_name = "FILE")]
    pub exports: Vec<PathBuf>,
    /// A file in the syntax of fstab(5); may be given several times
    #[arg(short, long, value_name = "FILE")]
    pub fstab: Vec<PathBuf>,
    /// Mount options, as for `hither mount`
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Check the usual files of the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/", conflicts_with_all = ["exports", "fstab", "options"])]
    pub root: PathBuf,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// When the server registers itself with rpcbind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WithRpcbind {
    /// When other machines can reach the server
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// `hither serve`.
#[derive(Debug, Args, Clone)]
pub struct ServeArgs {
    /// The directory; clients mount it as HOST:/
    #[arg(value_name = "DIR", required_unless_present_any = ["memory", "export", "config"])]
    pub dir: Option<PathBuf>,
    /// An export as in exports(5), `PATH CLIENT(OPTIONS)...`, instead of DIR; may be given several
    /// times
    #[arg(short, long, value_name = "LINE", conflicts_with = "dir")]
    pub export: Vec<String>,
    /// A file in the syntax of exports(5), or a directory of files *.exports; read again on SIGHUP
    #[arg(short, long, value_name = "FILE", conflicts_with = "dir")]
    pub config: Vec<PathBuf>,
    /// Address to listen on, with one port for all protocols; may be given several times
    #[arg(short, long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049")]
    pub listen: Vec<SocketAddr>,
    /// Rights of clients of DIR, in the words of exports(5), separated by commas: rw, ro,
    /// root_squash, no_root_squash, all_squash, anonuid=N, anongid=N, secure, insecure,
    /// manage-gids. Default: `rw,root_squash,secure`; on loopback addresses only,
    /// `rw,no_root_squash,secure`
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Networks and addresses of clients that may use DIR; default: all that can reach the server
    #[arg(long, value_name = "ADDRESS[/BITS]")]
    pub allow: Vec<String>,
    /// NFS versions to offer
    #[arg(long, value_name = "LIST", default_value = "3,4", value_parser = ["3", "4", "3,4", "4,3"])]
    pub versions: String,
    /// Register the ports of NFS and MOUNT with rpcbind, where NFSv3 clients query them. `auto`
    /// registers unless the server listens on loopback addresses only. If rpcbind is absent or has
    /// another NFS server, the server prints a line, and clients need `port=` and `mountport=`
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WithRpcbind::Auto)]
    pub rpcbind: WithRpcbind,
    /// Seconds that a silent client keeps its opens and locks
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease: u64,
    /// Seconds after a restart in which clients reclaim their state; default: the lease
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub grace: Option<u64>,
    /// Maximum calls a second, of all clients together, while clients recover from a restart;
    /// further calls wait. 0: no limit
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub recovery_rate: u32,
    /// Maximum files and directories delegated to NFSv4 clients at a time. Clients with a
    /// delegation need not revalidate, or may delay writes. Default: none. For local file systems
    /// only; docs/SEMANTICS.md, S10, states the limits
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    pub max_delegations: u32,
    /// Serve metrics for Prometheus at http://ADDRESS:PORT/metrics, or on a UNIX socket for the
    /// server's user only
    #[arg(long, value_name = "ADDRESS:PORT|SOCKET")]
    pub metrics: Option<crate::metrics::endpoint::EndpointAddr>,
    /// Also offer NQNFS (Macklem's "Not Quite NFS" of 1994: NFS version 2 with leases, program
    /// 300105), with MOUNT version 1; see docs/NQNFS.md
    #[arg(long)]
    pub nqnfs: bool,
    /// Seconds of an NQNFS lease if the client requests no term; the longest lease is twice this
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "nqnfs", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub nqnfs_term: u64,
    /// Seconds without a write after which the write lease of a silent NQNFS client ends
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "nqnfs", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub nqnfs_write_slack: u64,
    /// Directory for state that a restart must not lose; default: /var/lib/hither/serve-PORT, or
    /// ~/.local/state/hither/serve-PORT without root
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A file or block device in which stable writes become durable first, many clients' writes by
    /// one sequential write. For one exported directory; not below it, and if possible on another
    /// disk
    #[arg(long, value_name = "PATH|none", default_value = "none")]
    pub journal: PathBuf,
    /// Size of a new journal file in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub journal_size: u64,
    /// Start with an empty journal and discard its content: acknowledged writes may be lost
    #[arg(long)]
    pub journal_discard: bool,
    /// Longest READ and WRITE in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(4096..=16 << 20))]
    pub max_io: u32,
    /// Maximum connections; at 32 KiB each they take half of --max-memory at most
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Maximum memory in MiB of the server, its connections, and their calls and replies
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    pub max_memory: u32,
    /// Serve an empty file system in memory, for trials; its content ends with the server
    #[arg(long, conflicts_with_all = ["dir", "export", "config"])]
    pub memory: bool,
    #[command(flatten)]
    pub tls: crate::serve::TlsArgs,
    #[command(flatten)]
    pub kerberos: crate::serve::KerberosArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `hither gateway`. The options of `hither serve` that need a local directory are refused.
#[derive(Debug, Args, Clone)]
#[command(mut_arg("dir", |dir| dir
    .index(1)
    .value_name("SERVER:/PATH")
    .required_unless_present(clap::builder::Resettable::Reset)
    .required_unless_present("origins")
    .help("The origin's export; clients mount it as HOST:/. A pattern, `SERVER:/*`, stands for all exports \
           of the origin, each at its own path")))]
#[command(mut_arg("export", |export| export
    .conflicts_with(clap::builder::Resettable::Reset)
    .help("Rights of clients at PATH and all exports below it, as in exports(5), `PATH CLIENT(OPTIONS)...`; \
           other exports have the rights of -o and --allow; may be given several times")))]
#[command(mut_arg("config", |config| config
    .conflicts_with(clap::builder::Resettable::Reset)
    .help("A file of such lines, or a directory of files *.exports; read again on SIGHUP")))]
#[command(mut_args(|arg| match arg.get_id().as_str() {
    "memory" | "nqnfs" | "nqnfs_term" | "nqnfs_write_slack" | "journal" | "journal_size" | "journal_discard" => {
        arg.hide(true)
    }
    "max_delegations" => arg.help(
        "Maximum files and directories delegated to NFSv4 clients at a time, while the origin \
         delegates them to the gateway. Default: none",
    ),
    _ => arg,
}))]
pub struct GatewayArgs {
    #[command(flatten)]
    pub serve: ServeArgs,
    /// Further origins; with more than one, clients mount each as HOST:/PATH
    #[arg(value_name = "SERVER:/PATH", index = 2, requires = "dir")]
    pub more: Vec<String>,
    /// Origins in the syntax of fstab(5), `SERVER:/PATH /PATH-FOR-CLIENTS hither MOUNT-OPTIONS`;
    /// read again on SIGHUP; may be given several times
    #[arg(long, value_name = "FILE")]
    pub origins: Vec<PathBuf>,
    /// Mount options for the origins, separated by commas, such as `vers=4.2,cache`; may be given
    /// several times; see `hither mount --help`
    #[arg(long, value_name = "OPTIONS")]
    pub mount: Vec<String>,
}

/// `hither cache`.
#[derive(Debug, Args, Clone)]
pub struct CacheArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: CacheCommand,
}

/// Commands on a disk cache. WHERE is a directory of a mount with a disk cache, the socket of
/// `hither daemon`, or a cache directory. In a cache directory, only parts that no mount uses can
/// be examined.
#[derive(Debug, Subcommand, Clone)]
pub enum CacheCommand {
    /// Show the size of the cache, and its counters since the mount
    Status(CacheWhere),
    /// List cached files, largest first
    Ls(CacheLs),
    /// Compare all data with its checksums, and drop damaged data
    Check(CacheWhere),
    /// Compare all data with the files at the server, and drop data that differs
    Verify(CacheVerify),
    /// Drop the cached data of files, or of all unpinned files
    Evict(CacheEvict),
    /// Protect files, in every version, from eviction
    Pin(CacheFiles),
    /// End the protection of pinned files
    Unpin(CacheFiles),
    /// Read files through their mount into the cache
    Warm(CacheWarm),
}

/// A cache.
#[derive(Debug, Args, Clone)]
pub struct CacheWhere {
    /// A directory of a mount, or a cache directory
    #[arg(value_name = "WHERE")]
    pub place: PathBuf,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `hither cache ls`.
#[derive(Debug, Args, Clone)]
pub struct CacheLs {
    #[command(flatten)]
    pub at: CacheWhere,
    /// List the index in memory only, in eviction order: fast with any number of files
    #[arg(long)]
    pub index: bool,
}

/// `hither cache verify`.
#[derive(Debug, Args, Clone)]
pub struct CacheVerify {
    /// A directory of a mount
    #[arg(value_name = "WHERE")]
    pub place: PathBuf,
    /// Read the files from the server: as many bytes as are cached
    #[arg(long, required = true)]
    pub against_server: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Files of a mount.
#[derive(Debug, Args, Clone)]
pub struct CacheFiles {
    /// Files in a mount; with --keys, a directory of a mount
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Read the keys of the files (of `ls --json`) from standard input, a line each
    #[arg(long)]
    pub keys: bool,
    /// As JSON: the number of files concerned
    #[arg(long)]
    pub json: bool,
}

/// `hither cache evict`.
#[derive(Debug, Args, Clone)]
pub struct CacheEvict {
    /// Files in a mount; with --all, a directory of a mount or a cache directory; with --keys, a
    /// directory of a mount
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// All files that are not pinned
    #[arg(long, conflicts_with = "keys")]
    pub all: bool,
    /// Read the keys of the files (of `ls --json`) from standard input, a line each; pinned files
    /// stay
    #[arg(long)]
    pub keys: bool,
    /// As JSON: the number of files concerned
    #[arg(long)]
    pub json: bool,
}

/// `hither cache warm`.
#[derive(Debug, Args, Clone)]
pub struct CacheWarm {
    /// Files, and directories with all files in them; `-` reads a list of paths from standard
    /// input, one a line
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Number of files to read at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// Formats of `hither stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people
    Text,
    /// One JSON object a line
    Json,
    /// Print like /proc/self/mountstats, for `mountstats -f FILE` and similar tools
    Mountstats,
    /// Print in the layout of `nfsstat -c`
    Nfsstat,
    /// For Prometheus; the mount option metrics= serves the same over HTTP
    Prometheus,
}

/// The first fault that clap found, in one line with clap's tip.
pub fn usage_failure(e: &clap::Error) -> Failure {
    let text = e.to_string();
    // Takes the lines up to the blank line before "Usage:". A list of missing arguments is
    // indented.
    let mut message: Vec<&str> = Vec::new();
    for line in text.lines() {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        if !line.trim().is_empty() {
            message.push(line.trim());
        }
    }
    let message = message.join(" ").replace(" tip: ", "; ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    Failure::usage(format!("{message}; see `hither --help`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_one_line() {
        for (args, line) in [
            (
                &["hither", "mount", "s:/x"][..],
                "the following required arguments were not provided: <DIR>; see `hither --help`",
            ),
            (
                &["hither", "mount", "--foregrond", "s:/x", "/mnt"],
                "unexpected argument '--foregrond' found; a similar argument exists: '--foreground'; see \
                 `hither --help`",
            ),
            (
                &["hither", "stat", "--format", "xml", "/mnt"],
                "invalid value 'xml' for '--format <FORMAT>' [possible values: text, json, mountstats, nfsstat, prometheus]; see \
                 `hither --help`",
            ),
        ] {
            let e = Cli::try_parse_from(args).map(|_| ()).unwrap_err();
            assert_eq!(usage_failure(&e), Failure { code: 1, line: line.into() });
        }
    }
}
