//! The command line.

mod bench;

use crate::exit::Failure;
pub use bench::*;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Mounts NFS servers (versions 4.2, 4.1 and 3) through FUSE, and serves directories to NFS clients.
#[derive(Parser)]
#[command(name = "hither", version, disable_help_subcommand = false, max_term_width = 100)]
#[command(
    after_help = "As mount.hither and umount.hither (links to this program in /sbin) it serves mount(8), \
                        fstab and umount(8)."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Mount an export of an NFS server on a directory
    Mount(MountArgs),
    /// Unmount a directory; works when the server is dead, too
    Umount(UmountArgs),
    /// Show what a mount has asked of its server, and how fast it answered
    Stat(StatArgs),
    /// Wait until everything that was written on a mount is at the server
    Sync(MountSyncArgs),
    /// Delayed writes of before a crash that could not be sent: look at them, write them, drop them
    Conflicts(ConflictsArgs),
    /// Show what a mount asks its server for right now, by operation, by process and by file
    Top(TopArgs),
    /// Show what is known of a file, by which promise and until when, and what the last calls on it cost
    Why(WhyArgs),
    /// Measure a server, the way to it and this machine, and say what to change
    Doctor(DoctorArgs),
    /// Offer an export to programs by a socket, without mounting it
    Daemon(DaemonArgs),
    /// Check fstab, exports and mount options without using them
    Config(ConfigArgs),
    /// Serve a directory of this machine to NFS clients (versions 3, 4.1 and 4.2)
    Serve(Box<ServeArgs>),
    /// Look at a disk cache, fill it, clean it
    Cache(CacheArgs),
    /// Record which files a program reads, and read them again ahead of it
    Trace(TraceArgs),
    /// Measure: the papers' experiments in a directory, an NFS server; compare, plot, report
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
    /// The directory that it is mounted on
    pub dir: PathBuf,
    /// Mount options, separated by commas; may be given several times. The list is below
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, log to the terminal, unmount on Ctrl-C
    #[arg(short, long)]
    pub foreground: bool,
    #[command(flatten)]
    pub log: LogArgs,
    /// The process is the background half of a mount: its standard output is a pipe to the other half
    #[arg(long, hide = true)]
    pub daemon: bool,
    /// Check everything that can be checked here and do not mount
    #[arg(long)]
    pub fake: bool,
    /// Ignore unknown mount options
    #[arg(long)]
    pub sloppy: bool,
    /// A page for a browser on this machine with what goes on; its address is printed. Only loopback, any free port unless given
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:0",
          value_parser = crate::dashboard::address)]
    pub dashboard: Option<std::net::SocketAddr>,
}

/// Where the daemon's log goes.
#[derive(Debug, Args, Clone, Default)]
pub struct LogArgs {
    /// Log to this file instead of the system's log (opened again on SIGHUP)
    #[arg(long = "log", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// error, warn, info, debug, trace; or per part: `info,hither_nfs=debug`
    #[arg(long = "log-level", value_name = "LEVEL", env = "HITHER_LOG")]
    pub level: Option<String>,
    /// Log more: as --log-level debug
    #[arg(short, long)]
    pub verbose: bool,
}

/// `hither umount`.
#[derive(Debug, Args, Clone)]
pub struct UmountArgs {
    /// The directory, or the SERVER:/PATH mounted there
    pub dir: PathBuf,
    /// Detach at once; the mount ends when its last user leaves
    #[arg(short, long)]
    pub lazy: bool,
    /// End all calls that wait for the server with an error; what was not written is lost
    #[arg(short, long)]
    pub force: bool,
    /// Seconds to wait until everything is written and the daemon has gone
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
    /// Say what is done
    #[arg(short, long)]
    pub verbose: bool,
}

/// `hither stat`.
#[derive(Debug, Args, Clone)]
pub struct StatArgs {
    /// A directory of the mount
    pub dir: PathBuf,
    /// As JSON: the same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// How to show it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Show again every N seconds, until interrupted; as text what was added since
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

/// `hither sync`.
#[derive(Debug, Args, Clone)]
pub struct MountSyncArgs {
    /// A directory of the mount
    pub dir: PathBuf,
    /// Seconds to wait; what is not sent by then is sent all the same
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// `hither conflicts`.
#[derive(Debug, Args, Clone)]
pub struct ConflictsArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: ConflictsCommand,
}

/// What can be done about conflicts. WHERE is a directory of a mount with a journal, or a directory given as `cache` or `journal-dir`.
#[derive(Debug, Subcommand, Clone)]
pub enum ConflictsCommand {
    /// List them: name, path, bytes, age, why
    Ls {
        /// A directory of a mount, or of caches or journals
        place: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what is kept of one: its ranges, or the file with them
    Show {
        /// A directory of a mount, or of caches or journals
        place: PathBuf,
        /// The conflict
        name: String,
        /// Write the file as it is at the server, with what is kept over it, to standard output (of a mount only)
        #[arg(long)]
        merged: bool,
        /// Write to this file instead; without --merged only what is kept, with holes between
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// As JSON
        #[arg(long, conflicts_with_all = ["merged", "output"])]
        json: bool,
    },
    /// Write what is kept over the file, whatever it holds now, and drop the conflict (of a mount only)
    Apply {
        /// A directory of the mount
        place: PathBuf,
        /// The conflict
        name: String,
        /// Write over this file of the mount instead; a path below the mount point
        #[arg(long, value_name = "PATH")]
        to: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete what is kept
    Drop {
        /// A directory of a mount, or of caches or journals
        place: PathBuf,
        /// The conflict
        name: String,
    },
}

/// `hither top`.
#[derive(Debug, Args, Clone)]
#[command(after_help = "On a terminal `q` ends it. Elsewhere each round is printed below the last.")]
pub struct TopArgs {
    /// A directory of the mount
    pub dir: PathBuf,
    /// Seconds of a round
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub delay: u64,
    /// End after so many rounds
    #[arg(short = 'n', long, value_name = "N")]
    pub rounds: Option<u64>,
}

/// `hither completions`.
#[derive(Debug, Args, Clone)]
#[command(after_help = "bash:  hither completions bash > /etc/bash_completion.d/hither")]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: clap_complete::Shell,
}

/// `hither man`.
#[derive(Debug, Args, Clone)]
pub struct ManArgs {
    /// Where to write them: hither.1 and a page for each command
    pub dir: PathBuf,
}

/// `hither why`.
#[derive(Debug, Args, Clone)]
pub struct WhyArgs {
    /// A file or directory in a mount; it is not touched, and need not exist
    pub path: PathBuf,
    /// Most calls to show, newest first
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub calls: usize,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `hither doctor`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "Exit status: 0 nothing to change, 3 something to change, 32 the server cannot be reached."
)]
pub struct DoctorArgs {
    /// SERVER, SERVER:/PATH, or a directory of a mount
    #[arg(value_name = "SERVER[:/PATH]|DIR")]
    pub target: PathBuf,
    /// Mount options: how to speak to the server (vers=, port=, ...)
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Make a file at the server for a while, named .hither-doctor-..., to measure writing, stable storage and the clock
    #[arg(short, long)]
    pub write: bool,
    /// Most MiB to read and to write
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub size: u32,
    /// Measure the local disk that this directory is on; usually that of the mount's disk cache
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `hither daemon`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "It stays in the foreground until SIGTERM or Ctrl-C, and says so to systemd when programs can come (Type=notify). What may be \
                  relied on is in docs/SOCKET.md; paths begin at the export's root."
)]
pub struct DaemonArgs {
    /// The export: SERVER:/PATH; an IPv6 address stands in brackets, [ADDRESS]:/PATH
    #[arg(value_name = "SERVER:/PATH")]
    pub source: String,
    /// Where the socket is made; programs connect to it by this path
    #[arg(short, long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Mount options, separated by commas, of which those about mount points mean nothing here; socket-mode= and socket-group= say who may
    /// connect. `hither mount --help` lists them
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `hither config`.
#[derive(Debug, Args, Clone)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: ConfigCommand,
}

/// What is done with configuration.
#[derive(Debug, Subcommand, Clone)]
pub enum ConfigCommand {
    /// Look for faults: a line for each, with file and line and how to mend it
    Check(ConfigCheck),
}

/// `hither config check`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "Without options that name something else it checks what the units and mount(8) use: /etc/hither/exports, \
                  /etc/hither/exports.d/*.exports, and the lines of /etc/fstab whose type is hither. Nothing is mounted or served, no \
                  server is asked, nor a name service but for the group of socket-group. Exit status: 0 no fault (lines that begin \
                  with `note:` are none), 3 faults, 1 a file cannot be read (what was found in the others is printed)."
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
    /// The usual files of a system that is below this directory
    #[arg(long, value_name = "DIR", default_value = "/", conflicts_with_all = ["exports", "fstab", "options"])]
    pub root: PathBuf,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// When rpcbind is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WithRpcbind {
    /// When others than this machine can reach the server
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
    /// An export as in exports(5), `PATH CLIENT(OPTIONS)...`, instead of DIR; may be given several times
    #[arg(short, long, value_name = "LINE", conflicts_with = "dir")]
    pub export: Vec<String>,
    /// A file in the syntax of exports(5), or a directory of files *.exports; read again on SIGHUP
    #[arg(short, long, value_name = "FILE", conflicts_with = "dir")]
    pub config: Vec<PathBuf>,
    /// Where to listen, on one port for everything; may be given several times
    #[arg(short, long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049")]
    pub listen: Vec<SocketAddr>,
    /// What clients of DIR may do, in the words of exports(5), separated by commas: rw, ro, root_squash, no_root_squash,
    /// all_squash, anonuid=N, anongid=N, secure, insecure, manage-gids. Usually `rw,root_squash,secure`; when it listens on
    /// loopback addresses only, `rw,no_root_squash,secure`
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Networks and addresses whose clients may use DIR; usually all that can reach the address
    #[arg(long, value_name = "ADDRESS[/BITS]")]
    pub allow: Vec<String>,
    /// NFS versions to offer
    #[arg(long, value_name = "LIST", default_value = "3,4", value_parser = ["3", "4", "3,4", "4,3"])]
    pub versions: String,
    /// Whether rpcbind is told the port, as NFSv3 clients ask it for those of NFS and MOUNT: `auto` unless it listens on loopback addresses
    /// only. Without rpcbind, or when it has another NFS server, a line says so and clients are to be told `port=` and `mountport=`
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WithRpcbind::Auto)]
    pub rpcbind: WithRpcbind,
    /// Seconds that a silent client keeps what it has open and locked
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease: u64,
    /// Seconds after a restart in which clients take back what they held; the lease unless given
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub grace: Option<u64>,
    /// Most calls a second while clients recover from a restart, all together; the others wait for their turn. 0: as many as come
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub recovery_rate: u32,
    /// Most files and directories that are delegated to clients of NFSv4 at a time, so that they need not ask whether these have
    /// changed, or may delay what they write; none unless given. For local file systems only; S10 in docs/SEMANTICS.md says what is not covered yet
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1 << 24))]
    pub max_delegations: u32,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics, or on a UNIX socket that only the server's user may connect to
    #[arg(long, value_name = "ADDRESS:PORT|SOCKET")]
    pub metrics: Option<crate::metrics::endpoint::Place>,
    /// Offer NQNFS, too (Macklem's "Not Quite NFS" of 1994: NFS version 2 with leases, program 300105), with MOUNT version 1. For
    /// clients that speak it and for experiments; docs/NQNFS.md
    #[arg(long)]
    pub nqnfs: bool,
    /// Seconds of a lease of NQNFS when the client names none; the longest is twice this
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "nqnfs", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub nqnfs_term: u64,
    /// Seconds without a write after which the write leases of silent clients of NQNFS are over
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "nqnfs", value_parser = clap::value_parser!(u64).range(1..=300))]
    pub nqnfs_write_slack: u64,
    /// Where the server remembers what a restart must not lose; /var/lib/hither/serve-PORT unless given
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A file or block device in which stable writes become durable before they are where they belong: one sequential write for
    /// many clients. For one exported directory; not below it, and on another disk if there is one
    #[arg(long, value_name = "PATH|none", default_value = "none")]
    pub journal: PathBuf,
    /// How large a new journal file is made, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub journal_size: u64,
    /// Start with an empty journal, whatever is in it: writes that were acknowledged may be lost
    #[arg(long)]
    pub journal_discard: bool,
    /// Longest READ and WRITE in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(4096..=16 << 20))]
    pub max_io: u32,
    /// Most connections
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Most memory in MiB for calls and replies under way
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(16..=1 << 20))]
    pub max_memory: u32,
    /// Serve an empty file system in memory, which ends with the server: for trying clients
    #[arg(long, conflicts_with_all = ["dir", "export", "config"])]
    pub memory: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `hither cache`.
#[derive(Debug, Args, Clone)]
pub struct CacheArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: CacheCommand,
}

/// Commands about a disk cache. WHERE is a directory of a mount that has one, or a cache directory, of which only those parts
/// can be looked at that no mount uses.
#[derive(Debug, Subcommand, Clone)]
pub enum CacheCommand {
    /// How much is kept, and what the cache has done since the mount
    Status(CacheWhere),
    /// What is kept, largest first
    Ls(CacheLs),
    /// Compare everything with its checksums; what is damaged is dropped
    Check(CacheWhere),
    /// Compare everything with the files at the server; what differs is dropped
    Verify(CacheVerify),
    /// Drop what is kept of files, or of all that are not pinned
    Evict(CacheEvict),
    /// Keep the cleaner from files, in whatever version they come
    Pin(CacheFiles),
    /// Let the cleaner have pinned files
    Unpin(CacheFiles),
    /// Read files through their mount, so that the cache has them
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
    /// Only what the daemon has in memory, in the order in which files would go: fast, however many they are
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
    /// The files are those whose keys (of `ls --json`) come on standard input, a line each
    #[arg(long)]
    pub keys: bool,
    /// As JSON: how many files it concerned
    #[arg(long)]
    pub json: bool,
}

/// `hither cache evict`.
#[derive(Debug, Args, Clone)]
pub struct CacheEvict {
    /// Files in a mount; with --all, a directory of a mount or a cache directory; with --keys, a directory of a mount
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// All files that are not pinned
    #[arg(long, conflicts_with = "keys")]
    pub all: bool,
    /// The files are those whose keys (of `ls --json`) come on standard input, a line each; pinned ones stay
    #[arg(long)]
    pub keys: bool,
    /// As JSON: how many files it concerned
    #[arg(long)]
    pub json: bool,
}

/// `hither cache warm`.
#[derive(Debug, Args, Clone)]
pub struct CacheWarm {
    /// Files, and directories with all that is below; `-` reads a list from standard input, a path a line
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Files that are read at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// `hither trace`.
#[derive(Debug, Args, Clone)]
pub struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: TraceCommand,
}

/// What is done with traces.
#[derive(Debug, Subcommand, Clone)]
pub enum TraceCommand {
    /// Note which files are opened for reading, in the order in which that first happens, or each call
    Record(TraceRecord),
    /// Read the files of a trace, in its order, so that the cache has them
    Replay(TraceReplay),
    /// Play a trace of calls with other disk caches, policies and round trips
    WhatIf(TraceWhatIf),
}

/// `hither trace record`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "A trace is a list of paths, a line each; `/./` stands where the mount begins. `hither cache warm - < FILE` reads it, too."
)]
pub struct TraceRecord {
    /// Where the trace is written
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A directory of a mount; all mounts unless given
    #[arg(short, long = "mount", value_name = "DIR")]
    pub mounts: Vec<PathBuf>,
    /// Note each call that reaches the daemon, with what it read, cost and waited for, for `hither trace what-if`
    #[arg(long)]
    pub calls: bool,
    /// The program to run: what it and its children open counts. Without one everybody counts, until Ctrl-C
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
}

/// `hither trace replay`.
#[derive(Debug, Args, Clone)]
pub struct TraceReplay {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where the mount is now, if it was elsewhere when the trace was recorded
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Files that are read at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// `hither trace what-if`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "The disk cache is played by the code of its own policies, from empty; of other calls the round trips stay, with another length. What the kernel answered from its memory \
is not in the trace, and stays so. Times are sums over all calls, also of those that waited at the same time."
)]
pub struct TraceWhatIf {
    /// The trace, of `hither trace record --calls`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Sizes of disk caches, such as 100M or 2G; up to five unless given, the largest for all that was read
    #[arg(long = "cache-size", value_name = "LIST", value_delimiter = ',', value_parser = crate::options::bytes)]
    pub cache_sizes: Vec<u64>,
    /// What goes first when the cache is full: lru, s3-fifo, gdsf; all three unless given
    #[arg(long = "cache-policy", value_name = "LIST", value_delimiter = ',', value_parser = crate::trace::policy)]
    pub policies: Vec<hither_cache::policy::Policy>,
    /// Round trips in milliseconds
    #[arg(long = "rtt", value_name = "LIST", value_delimiter = ',', default_value = "1,10,50,200")]
    pub rtts_ms: Vec<f64>,
    /// As JSON, a line each
    #[arg(long)]
    pub json: bool,
}

/// Formats of `hither stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people
    Text,
    /// One JSON object a line
    Json,
    /// As /proc/self/mountstats, for `mountstats -f FILE` and its like
    Mountstats,
    /// In the layout of `nfsstat -c`
    Nfsstat,
    /// For Prometheus; the mount option metrics= serves the same over HTTP
    Prometheus,
}

/// What clap found wrong, in one line: its first line, and its tip when it has one.
pub fn usage_failure(e: &clap::Error) -> Failure {
    let text = e.to_string();
    // Lines up to the blank line before "Usage:"; a list of missing arguments is indented.
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
