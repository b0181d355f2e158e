//! The arguments of `hither bench`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// `hither bench`.
#[derive(Debug, Args, Clone)]
pub struct BenchArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: BenchCommand,
}

/// Measurements.
#[derive(Debug, Subcommand, Clone)]
pub enum BenchCommand {
    /// List the experiments and their commands
    List(ListArgs),
    /// Run experiments in a directory of a local disk or of a mount
    Run(RunArgs),
    /// Compare two results: ratios of medians, with minimum and maximum
    Compare(CompareArgs),
    /// Draw results, as SVG
    Plot(PlotArgs),
    /// Judge the papers' claims by results: a page (HTML) and a table (Markdown)
    Report(ReportArgs),
    /// Measure the reply times of Moran's mix of operations at fixed rates (NFSv3)
    Nhfsstone(NhfsstoneArgs),
    /// Count stable changes a second, with each client as fast as the server answers (NFSv3)
    Sync(SyncArgs),
    /// Count calls that change nothing, with each client as fast as the server answers: per second,
    /// and per second of the server's processor time (NFSv3)
    Reads(ReadsArgs),
    /// Measure two mounts that share a file: rate, calls and stale reads
    Sharing(SharingArgs),
}

/// `hither bench list`.
#[derive(Debug, Args, Clone)]
pub struct ListArgs {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// `hither bench run`.
#[derive(Debug, Args, Clone)]
pub struct RunArgs {
    /// Directory; files are created below DIR/hither-bench and removed at the end
    pub dir: PathBuf,
    /// Experiment (see `hither bench list`); may be given several times
    #[arg(value_name = "EXPERIMENT", required = true)]
    pub experiments: Vec<String>,
    /// File for the JSON lines; they are appended
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Number of runs of each experiment
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub reps: u32,
    /// Smaller workloads, without waits for timeouts and without parallel runs
    #[arg(long)]
    pub quick: bool,
    /// A shell command that empties DIR's caches by unmounting and mounting. Without it no cache is
    /// empty
    #[arg(long, value_name = "COMMAND")]
    pub fresh: Option<String>,
    /// Empty the machine's page cache when an experiment requests it (root)
    #[arg(long)]
    pub drop_caches: bool,
    /// Name of the measured system in results; default: the file system's type
    #[arg(long, value_name = "WORD")]
    pub label: Option<String>,
    /// Leave the files, for the next run
    #[arg(long)]
    pub keep: bool,
}

/// `hither bench compare`.
#[derive(Debug, Args, Clone)]
pub struct CompareArgs {
    /// Results, or a part of them: FILE or FILE#WORD,!WORD; words are client, version, mount
    /// options (`default`: none), server, rttN
    #[arg(value_name = "A")]
    pub a: String,
    /// Results to divide by A
    #[arg(value_name = "B")]
    pub b: String,
}

/// `hither bench plot`.
#[derive(Debug, Args, Clone)]
pub struct PlotArgs {
    /// Results: FILE or FILE#WORD,WORD, as with compare
    #[arg(value_name = "RESULTS", required = true)]
    pub results: Vec<String>,
    /// File for the picture
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Quantity to draw
    #[arg(long, value_enum, default_value_t = PlotMetric::Rpcs)]
    pub metric: PlotMetric,
}

/// Quantities of `hither bench plot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlotMetric {
    /// RPCs
    Rpcs,
    /// Seconds
    Secs,
}

/// `hither bench report`.
#[derive(Debug, Args, Clone)]
pub struct ReportArgs {
    /// The directory with claims.json and the results
    #[arg(value_name = "DIR", default_value = "bench")]
    pub dir: PathBuf,
    /// File for the page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// File for the table
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// The server to measure.
#[derive(Debug, Args, Clone)]
pub struct BenchTarget {
    /// The export: SERVER:/PATH. A directory hither-bench.PID is created there and removed
    #[arg(value_name = "SERVER:/PATH")]
    pub source: String,
    /// The NFS port
    #[arg(long, value_name = "N", default_value_t = 2049)]
    pub port: u16,
    /// The MOUNT port; the NFS port unless given
    #[arg(long, value_name = "N")]
    pub mountport: Option<u16>,
    /// A label for the JSON lines
    #[arg(long, value_name = "WORD", default_value = "")]
    pub label: String,
    /// A shell command to run between the preparation and the measurement
    #[arg(long, value_name = "COMMAND")]
    pub prepared: Option<String>,
    /// A shell command to run between the measurement and the removal of files
    #[arg(long, value_name = "COMMAND")]
    pub measured: Option<String>,
}

/// `hither bench nhfsstone`.
#[derive(Debug, Args, Clone)]
pub struct NhfsstoneArgs {
    #[command(flatten)]
    pub target: BenchTarget,
    /// Calls a second, one rate after another; the first rate with fewer than four fifths answered
    /// is the last
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "100,200,500,1000,2000,5000,10000,20000",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub rates: Vec<u32>,
    /// Seconds for each rate
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Percentage of modifying calls; 19 is the paper's mix
    #[arg(long, value_name = "PERCENT", default_value_t = 19, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub modifying: u32,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Print a JSON object for each rate
    #[arg(long)]
    pub json: bool,
}

/// `hither bench sync`.
#[derive(Debug, Args, Clone)]
pub struct SyncArgs {
    #[command(flatten)]
    pub target: BenchTarget,
    /// Kinds of changes: write (FILE_SYNC), commit (UNSTABLE and COMMIT), create, create-write
    /// (CREATE and WRITE with FILE_SYNC: two calls), remove (of a file made before: two calls),
    /// rename, setattr (the mode)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "write")]
    pub kinds: Vec<SyncKind>,
    /// Clients at a time
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,64",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: Vec<u32>,
    /// Bytes of a write
    #[arg(long, value_name = "BYTES", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub size: u32,
    /// Seconds for each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Print a JSON object for each measurement
    #[arg(long)]
    pub json: bool,
}

/// Kinds of `hither bench sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SyncKind {
    /// WRITE with FILE_SYNC
    Write,
    /// WRITE with UNSTABLE, and COMMIT
    Commit,
    /// CREATE
    Create,
    /// CREATE, and WRITE with FILE_SYNC
    CreateWrite,
    /// CREATE and REMOVE
    Remove,
    /// RENAME
    Rename,
    /// SETATTR of the mode
    Setattr,
}

/// `hither bench reads`.
#[derive(Debug, Args, Clone)]
pub struct ReadsArgs {
    #[command(flatten)]
    pub target: BenchTarget,
    /// Kinds of calls: getattr, lookup, readdirplus (of 100 files), read
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "getattr,lookup,readdirplus,read"
    )]
    pub kinds: Vec<ReadKind>,
    /// Clients at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Bytes of a read, each size measured separately
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "65536,1048576",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub sizes: Vec<u32>,
    /// The server's process on this machine, whose processor time is counted
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Seconds for each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Print a JSON object for each measurement
    #[arg(long)]
    pub json: bool,
}

/// Kinds of `hither bench reads`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReadKind {
    /// GETATTR
    Getattr,
    /// LOOKUP
    Lookup,
    /// READDIRPLUS
    Readdirplus,
    /// READ
    Read,
}

/// `hither bench sharing`.
#[derive(Debug, Args, Clone)]
pub struct SharingArgs {
    /// A directory
    pub a: PathBuf,
    /// Another mount's directory, which shows the same files
    pub b: PathBuf,
    /// Kinds of sharing: reads, sequential, tight. In reads both clients open and read a file that
    /// is not written. In sequential each client in turn reads and writes the file that the other
    /// has closed. In tight each client writes a file that the other reads, and both keep the files
    /// open
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "reads,sequential,tight")]
    pub kinds: Vec<SharingKind>,
    /// Bytes of a file
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(8..=1 << 30))]
    pub size: u32,
    /// Seconds for each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// A label for the JSON lines
    #[arg(long, value_name = "WORD", default_value = "")]
    pub label: String,
    /// Print a JSON object for each measurement
    #[arg(long)]
    pub json: bool,
}

/// Kinds of `hither bench sharing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SharingKind {
    /// Reads only
    Reads,
    /// Reads and writes in turn
    Sequential,
    /// Reads and writes at the same time
    Tight,
}
