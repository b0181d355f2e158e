//! `hither trace`: records the files that a program reads, in order, and replays them ahead of it.
//! It also records each call, and evaluates its cost under other conditions ([`whatif`]).
//!
//! The daemons record opens or calls while a process records, each for its own mount. This command
//! starts and ends the recordings, runs the program in between, and merges the results into one
//! list. Children whose parent ends become children of this process, so that they are recorded too.

mod args;
mod whatif;

use crate::exit::Failure;
use crate::{Host, MountDaemon};
pub use args::{TraceArgs, TraceReplay};
use args::{TraceCommand, TraceRecord};
use hither_fuse::{Traced, TracedCall};
use hither_vfs::Name;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::{Command, ExitStatus};
use tokio::signal::unix::{SignalKind, signal};
use whatif::policy;

/// Requests to the recorder. Process ids are those of the daemon's name space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceAsk {
    /// Process `by` records the calls of process `below` and its children, or of all processes.
    Start {
        /// The recording process.
        by: u32,
        /// The recorded process.
        below: Option<u32>,
        /// Whether to record each call, or only the opened files.
        #[serde(default)]
        calls: bool,
    },
    /// Ends the recording and returns the files or the calls.
    Stop {
        /// The recording process.
        by: u32,
    },
}

/// The recording of one daemon.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Trace {
    /// Microseconds since the start of the recording, and a path below the mount point.
    files: Vec<(u64, String)>,
    /// Calls in the order of their answers.
    #[serde(default)]
    calls: Vec<NotedCall>,
    /// Paths of the objects below the mount point; empty for an object without a usable path.
    #[serde(default)]
    objects: Vec<String>,
    /// Files without a usable name, and calls for which there was no room.
    lost: u64,
}

/// A call as the daemon reports it. Times are in microseconds.
#[derive(Debug, Serialize, Deserialize)]
struct NotedCall {
    at_us: u64,
    took_us: u64,
    op: String,
    object: u32,
    offset: u64,
    bytes: u64,
    asked: u32,
    asked_us: u64,
}

/// A line of a trace of calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    /// Arrival of the call, in microseconds since the start of the recording.
    at_us: u64,
    /// Duration until the answer in microseconds.
    took_us: u64,
    /// The kernel's request (`READ`).
    op: String,
    /// The object of the call: `DIR/./PATH`; absent if it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Distinguishes objects without a name.
    object: u32,
    /// Offset and number of bytes that the call read or wrote.
    #[serde(default, skip_serializing_if = "is_nothing")]
    offset: u64,
    #[serde(default, skip_serializing_if = "is_nothing")]
    bytes: u64,
    /// Number of requests to the server that the call waited for, and their duration.
    #[serde(default, skip_serializing_if = "is_nothing")]
    asked: u64,
    #[serde(default, skip_serializing_if = "is_nothing")]
    asked_us: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's way")]
fn is_nothing(n: &u64) -> bool {
    *n == 0
}

fn us(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A path as text, or `None` if it does not fit into a line.
fn shown(path: &[Name]) -> Option<String> {
    let names: Vec<&[u8]> = path.iter().map(|name| name.as_bytes()).collect();
    String::from_utf8(names.join(&b'/')).ok().filter(|path| !path.contains('\n'))
}

impl From<TracedCall> for NotedCall {
    fn from(call: TracedCall) -> Self {
        Self {
            at_us: us(call.after),
            took_us: us(call.took),
            op: call.op.into(),
            object: call.object,
            offset: call.range.0,
            bytes: call.range.1,
            asked: call.asked,
            asked_us: us(call.asked_for),
        }
    }
}

impl From<Traced> for Trace {
    fn from(traced: Traced) -> Self {
        let mut trace = Self { lost: traced.lost, ..Self::default() };
        for file in traced.files {
            match shown(&file.path) {
                Some(path) => trace.files.push((us(file.after), path)),
                None => trace.lost += 1,
            }
        }
        let paths = traced.objects.into_iter();
        trace.objects = paths.map(|path| path.as_deref().and_then(shown).unwrap_or_default()).collect();
        trace.calls = traced.calls.into_iter().map(NotedCall::from).collect();
        trace
    }
}

impl Trace {
    /// Lines with the start times of their opens or calls. Objects without a name are numbered from
    /// `first`.
    fn lines(self, root: &str, first: u32) -> impl Iterator<Item = (u64, String)> {
        let (files_root, calls_root) = (root.to_string(), root.to_string());
        let files = self.files.into_iter().map(move |(at, path)| (at, format!("{files_root}/./{path}\n")));
        let objects = self.objects;
        let calls = self.calls.into_iter().filter_map(move |call| {
            let path = objects.get(call.object as usize).filter(|path| !path.is_empty());
            let line = Line {
                at_us: call.at_us,
                took_us: call.took_us,
                op: call.op,
                path: path.map(|path| format!("{calls_root}/./{path}")),
                object: first + call.object,
                offset: call.offset,
                bytes: call.bytes,
                asked: call.asked.into(),
                asked_us: call.asked_us,
            };
            Some((line.at_us, serde_json::to_string(&line).ok()? + "\n"))
        });
        files.chain(calls)
    }
}

/// Runs a command.
///
/// # Errors
/// There is no mount, another process is recording, the program cannot be run, or the trace cannot
/// be written or read.
pub fn run(host: &dyn Host, args: &TraceArgs) -> Result<(), Failure> {
    match &args.what {
        TraceCommand::Record(args) => record(host, args),
        TraceCommand::Replay(args) => host.replay(args),
        TraceCommand::WhatIf(args) => whatif::run(args),
    }
}

fn warn(line: &str) {
    let _ = writeln!(std::io::stderr(), "hither: {line}");
}

fn mounts(host: &dyn Host, args: &TraceRecord) -> Result<Vec<Box<dyn MountDaemon>>, Failure> {
    if !args.mounts.is_empty() {
        return args.mounts.iter().map(|dir| host.daemon(dir)).collect();
    }
    let all = host.daemons()?;
    if all.is_empty() { Err(Failure::usage("there is no mount of hither")) } else { Ok(all) }
}

fn record(host: &dyn Host, args: &TraceRecord) -> Result<(), Failure> {
    let shown = args.file.display();
    let unwritable = |e: std::io::Error| Failure::system(format!("{shown}: {e}"));
    let mut out = std::io::BufWriter::new(std::fs::File::create(&args.file).map_err(unwritable)?);
    let by = std::process::id();
    let below = (!args.program.is_empty()).then_some(by);
    let mut started = Vec::new();
    let begun = mounts(host, args)?.into_iter().try_for_each(|daemon| {
        daemon.trace(TraceAsk::Start { by, below, calls: args.calls })?;
        started.push(daemon);
        Ok(())
    });
    let ended = begun.and_then(|()| watch(&args.program));
    let (mut all, mut lost, mut objects) = (Vec::new(), 0, 0);
    for daemon in started {
        let dir = daemon.dir();
        // The recording of a mount that has ended in the meantime is lost.
        match daemon.trace(TraceAsk::Stop { by }).map(serde_json::from_value::<Trace>) {
            Ok(Ok(trace)) => {
                lost += trace.lost;
                let root = dir.trim_end_matches('/');
                let first = objects;
                objects += trace.objects.len() as u32;
                all.extend(trace.lines(root, first));
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
        let what = if args.calls { "calls had no room" } else { "files have names that a trace cannot hold" };
        warn(&format!("{lost} {what}"));
    }
    match status.map(|status| status.code().unwrap_or(1)) {
        None | Some(0) => Ok(()),
        Some(code) => std::process::exit(code),
    }
}

/// Runs the program to its end. Without a program, waits for Ctrl-C.
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
        // Orphaned descendants become children of this process. If that is refused, they are not
        // recorded.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let cannot = |e: std::io::Error| Failure::usage(format!("{}: {e}", name.display()));
        let mut child = Command::new(name).args(words).spawn().map_err(cannot)?;
        // A signal of the terminal also reaches the program, which decides its effect.
        let waited = tokio::task::spawn_blocking(move || child.wait()).await;
        waited.map_err(|e| Failure::system(e.to_string()))?.map(Some).map_err(cannot)
    })
}
