//! `hither trace`: which files a program reads, in which order, and reading them again ahead of it.
//!
//! The daemons note opens while somebody records, each for its mount; this command starts and ends that, runs the program in
//! between, and writes one list of all. Children whose parent ends stay below this process, so that they count as well.

use crate::cache::warm;
use crate::cli::{TraceArgs, TraceCommand, TraceRecord};
use crate::control::{self, Ask, TraceAsk};
use crate::exit::Failure;
use crate::{mountinfo, stat};
use hither_fuse::Traced;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::{Command, ExitStatus};
use tokio::signal::unix::{SignalKind, signal};

/// What a daemon noted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Trace {
    /// Microseconds since recording began, and a path below the mount point.
    files: Vec<(u64, String)>,
    /// Files of which no name can be told.
    lost: u64,
}

impl From<Traced> for Trace {
    fn from(traced: Traced) -> Self {
        let mut trace = Self { files: Vec::with_capacity(traced.files.len()), lost: traced.lost };
        for file in traced.files {
            let names: Vec<&[u8]> = file.path.iter().map(|name| name.as_bytes()).collect();
            match String::from_utf8(names.join(&b'/')) {
                Ok(path) if !path.contains('\n') => {
                    let after_us = u64::try_from(file.after.as_micros()).unwrap_or(u64::MAX);
                    trace.files.push((after_us, path));
                }
                _ => trace.lost += 1,
            }
        }
        trace
    }
}

/// Runs a command.
///
/// # Errors
/// No mount, somebody else records, the program cannot be run, or the trace cannot be written or read.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    match &args.what {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Replay(args) => warm::replay(&args.file, args.root.as_deref(), args.jobs, args.quiet),
    }
}

fn warn(line: &str) {
    let _ = writeln!(std::io::stderr(), "hither: {line}");
}

type Mount = ((u32, u32), String);

fn mounts(args: &TraceRecord) -> Result<Vec<Mount>, Failure> {
    if !args.mounts.is_empty() {
        return args.mounts.iter().map(|dir| stat::locate(dir)).collect();
    }
    let all = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let ours = all.iter().filter(|mount| mount.is_ours());
    let all: Vec<_> = ours.map(|mount| (mount.dev, mount.point.display().to_string())).collect();
    if all.is_empty() { Err(Failure::usage("there is no mount of hither")) } else { Ok(all) }
}

fn record(args: &TraceRecord) -> Result<(), Failure> {
    let shown = args.file.display();
    let unwritable = |e: std::io::Error| Failure::system(format!("{shown}: {e}"));
    let mut out = std::io::BufWriter::new(std::fs::File::create(&args.file).map_err(unwritable)?);
    let by = std::process::id();
    let below = (!args.program.is_empty()).then_some(by);
    let mut started = Vec::new();
    let begun = mounts(args)?.into_iter().try_for_each(|(dev, dir)| {
        control::ask(dev, &dir, Ask::Trace(TraceAsk::Start { by, below }))?;
        started.push((dev, dir));
        Ok(())
    });
    let ended = begun.and_then(|()| watch(&args.program));
    let (mut all, mut lost) = (Vec::new(), 0);
    for (dev, dir) in started {
        // A mount that has gone meanwhile takes what it knew along.
        match control::ask(dev, &dir, Ask::Trace(TraceAsk::Stop { by })).map(serde_json::from_value::<Trace>)
        {
            Ok(Ok(trace)) => {
                lost += trace.lost;
                let root = dir.trim_end_matches('/');
                all.extend(trace.files.into_iter().map(|(at, path)| (at, format!("{root}/./{path}\n"))));
            }
            Ok(Err(e)) => warn(&format!("the daemon of {dir} is of another version: {e}")),
            Err(e) => warn(&e.line),
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all.iter().try_for_each(|(_, line)| out.write_all(line.as_bytes())).map_err(unwritable)?;
    out.flush().map_err(unwritable)?;
    let status = ended?;
    if lost > 0 {
        warn(&format!("{lost} files have names that cannot be told"));
    }
    match status.map(|status| status.code().unwrap_or(1)) {
        None | Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
    }
}

/// Runs the program to its end; without one, waits for Ctrl-C.
fn watch(program: &[std::ffi::OsString]) -> Result<Option<ExitStatus>, Failure> {
    let trouble = |e: std::io::Error| Failure::system(format!("signal handlers: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(trouble)?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(trouble)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(trouble)?;
        let Some((name, words)) = program.split_first() else {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            return Ok(None);
        };
        // Its children come to us when it ends before them. Where that is refused they are not counted.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let cannot = |e: std::io::Error| Failure::usage(format!("{}: {e}", name.display()));
        let mut child = Command::new(name).args(words).spawn().map_err(cannot)?;
        // A signal of the terminal reaches the program as well; what it does about it is its own affair.
        let waited = tokio::task::spawn_blocking(move || child.wait()).await;
        waited.map_err(|e| Failure::system(e.to_string()))?.map(Some).map_err(cannot)
    })
}
