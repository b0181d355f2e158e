//! The arguments of `hither trace`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `hither trace`.
#[derive(Debug, Args, Clone)]
pub struct TraceArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub what: TraceCommand,
}

/// Actions on traces.
#[derive(Debug, Subcommand, Clone)]
pub enum TraceCommand {
    /// Record the files opened for reading, in the order of their first open, or record each call
    Record(TraceRecord),
    /// Read the files of a trace in its order into the cache
    Replay(TraceReplay),
    /// Evaluate a trace of calls with other disk caches, policies and round trips
    WhatIf(TraceWhatIf),
}

/// `hither trace record`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "A trace is a list of paths, a line each; `/./` marks the mount point. `hither cache warm - < FILE` reads it, too."
)]
pub struct TraceRecord {
    /// File for the trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A directory of a mount; all mounts unless given
    #[arg(short, long = "mount", value_name = "DIR")]
    pub mounts: Vec<PathBuf>,
    /// Record each call that reaches the daemon, with its data, cost and waits, for `hither trace
    /// what-if`
    #[arg(long)]
    pub calls: bool,
    /// The program to run; the trace has its opens and those of its children. Without it, the opens
    /// of all programs until Ctrl-C
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<std::ffi::OsString>,
}

/// `hither trace replay`.
#[derive(Debug, Args, Clone)]
pub struct TraceReplay {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The present mount point, if it differs from that of the recording
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Number of files to read at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
    /// Show no progress
    #[arg(short, long)]
    pub quiet: bool,
}

/// `hither trace what-if`.
#[derive(Debug, Args, Clone)]
#[command(
    after_help = "The code of the cache policies plays the disk cache from empty; other calls keep their round trips, with the \
                  new length. A trace lacks the calls that the kernel answered from its memory. Times are sums over all calls, also over calls \
                  that waited at the same time."
)]
pub struct TraceWhatIf {
    /// The trace, of `hither trace record --calls`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Sizes of disk caches, such as 100M or 2G; default: up to five, the largest for all data read
    #[arg(long = "cache-size", value_name = "LIST", value_delimiter = ',', value_parser = crate::units::cache_size)]
    pub cache_sizes: Vec<u64>,
    /// Eviction orders: lru, s3-fifo, gdsf; default: all three
    #[arg(long = "cache-policy", value_name = "LIST", value_delimiter = ',', value_parser = super::policy)]
    pub policies: Vec<hither_cache::policy::Policy>,
    /// Round trips in milliseconds
    #[arg(long = "rtt", value_name = "LIST", value_delimiter = ',', default_value = "1,10,50,200")]
    pub rtts_ms: Vec<f64>,
    /// As JSON, a line each
    #[arg(long)]
    pub json: bool,
}
