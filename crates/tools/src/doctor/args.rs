//! The arguments of `hither doctor`.

use clap::Args;
use std::path::PathBuf;

/// `hither doctor`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "Exit status: 0 nothing to change, 3 a problem was found, 32 the server cannot be reached."
)]
pub struct DoctorArgs {
    /// SERVER, SERVER:/PATH, or a directory of a mount
    #[arg(value_name = "SERVER[:/PATH]|DIR")]
    pub target: PathBuf,
    /// Mount options for the connection to the server (vers=, port=, ...)
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Create a temporary file .hither-doctor-... at the server, to measure writing, stable storage
    /// and the clock
    #[arg(short, long)]
    pub write: bool,
    /// Maximum MiB to read and to write
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub size: u32,
    /// Measure the local disk of this directory; default: the disk of the mount's disk cache
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}
