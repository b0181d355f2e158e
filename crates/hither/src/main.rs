//! The hither binary: `hither mount`, `umount`, `stat`, `sync`, `cache` and `serve`, and the
//! helpers `mount.hither` and `umount.hither` of mount(8).
//!
//! Architecture Invariant: only this crate stacks a client below FUSE. [`stack`] assembles the
//! layers in one screen of code. The rest of this crate is user interface: options, errors,
//! reports. [`host`] hands the tools of `hither-tools` their services.

mod cache;
mod cert;
mod cli;
mod config;
mod conflicts;
mod control;
mod daemon;
mod dashboard;
mod gateway;
mod helper;
mod host;
mod journal;
mod kerberos;
mod log;
mod metrics;
mod mount;
mod mountstats;
mod options;
mod pages;
mod programs;
mod serve;
mod stack;
mod stat;
mod sync;
mod top;
mod turn;
mod umount;
mod why;

use clap::FromArgMatches;
use cli::{Cli, Command};
use hither_tools::exit::{self, Failure};
use hither_tools::{bench, doctor, mountinfo, report, source, trace};
use host::Binary;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let called = args.next().unwrap_or_default();
    let called = Path::new(&called).file_name().map(|name| name.to_string_lossy().into_owned());
    match called.as_deref() {
        Some(name) if name.starts_with("mount.") => exit::finish(name, mount_helper(args, name)),
        Some(name) if name.starts_with("umount.") => exit::finish(name, umount_helper(args)),
        _ => main_command(),
    }
}

fn mount_helper(args: impl Iterator<Item = OsString>, name: &str) -> Result<(), Failure> {
    let (args, namespace) = helper::mount_args(args)?;
    if let Some(namespace) = namespace {
        helper::enter(&namespace)?;
    }
    mount::run(&args, name)
}

fn umount_helper(args: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let (args, namespace) = helper::umount_args(args)?;
    if let Some(namespace) = namespace {
        helper::enter(&namespace)?;
    }
    umount::run(&args)
}

fn main_command() -> ExitCode {
    let parsed = pages::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) if e.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = e.print();
            return ExitCode::from(exit::USAGE);
        }
        Err(e) => return exit::finish("hither", Err(cli::usage_failure(&e))),
    };
    exit::finish(
        "hither",
        match &cli.command {
            Command::Mount(args) => mount::run(args, "hither"),
            Command::Umount(args) => umount::run(args),
            Command::Stat(args) => stat::run(args),
            Command::Sync(args) => sync::run(args),
            Command::Conflicts(args) => conflicts::run(&args.what),
            Command::Why(args) => why::run(args),
            Command::Top(args) => top::run(args),
            Command::Completions(args) => pages::completions(args),
            Command::Man(args) => pages::man(args),
            Command::Doctor(args) => doctor::run(&Binary, args),
            Command::Daemon(args) => daemon::alone::run(args),
            Command::Config(args) => config::run(args),
            Command::Serve(args) => serve::run(args, None),
            Command::Gateway(args) => gateway::run(args),
            Command::Cert(args) => cert::run(&args.command),
            Command::Journal(args) => journal::run(&args.what),
            Command::Cache(args) => cache::run(&args.what),
            Command::Trace(args) => trace::run(&Binary, args),
            Command::Bench(args) => bench::run(&Binary, args),
        },
    )
}
