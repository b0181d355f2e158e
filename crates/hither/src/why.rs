//! `hither why PATH`: shows the cached state of a path, the promise for it, and the end of its
//! validity. It also shows the present cost of a call, and the cost and reasons of the last calls.
//!
//! The daemon answers from memory. The command accesses neither the path nor the server, so it
//! changes nothing.

use crate::cli::WhyArgs;
use crate::control::{self, Ask, locate};
use crate::exit::Failure;
use crate::stat::print;
use hither_tools::units::{bytes, duration};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// The daemon's answer. `--json` prints it after `path`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Explained {
    /// The promise for the cached state.
    pub promise: String,
    /// The cached state of each known object on the path, from the mount point on.
    pub objects: Value,
    /// The cached ranges on the local disk.
    pub disk: Value,
    /// The present cost of calls.
    pub costs: Vec<Cost>,
    /// The last calls that asked the server, newest first.
    pub calls: Vec<PastCall>,
}

/// The present cost of a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cost {
    /// `stat`, `open`, `read`.
    pub call: String,
    /// Whether the call would send a request to the server.
    pub asks: bool,
    /// The reason.
    pub why: String,
}

/// A past call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PastCall {
    /// Time since its end.
    pub ago_ms: u64,
    /// The kernel's request: `LOOKUP`, `OPEN`, ...
    pub request: String,
    /// The name in the directory, if the call has one.
    pub name: Option<String>,
    /// The path below the mount point, if known. Only for `hither top`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Process, program and user of the call; 0 if unknown.
    pub pid: u32,
    /// See `pid`.
    pub program: String,
    /// See `pid`.
    pub uid: u32,
    /// Duration of the call.
    pub took_us: u64,
    /// Error number, or 0.
    pub errno: i32,
    /// Requests to the server for the call, and the number of further ones.
    pub asked: Vec<Asked>,
    /// See `asked`.
    pub more: u32,
}

/// A request to the server: one round trip, unless it is too large for one message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asked {
    /// Operation name as in `hither stat`.
    pub operation: String,
    /// Duration until the answer.
    pub took_us: u64,
    /// Why the request was needed.
    pub why: String,
}

/// Shows the explanation.
///
/// # Errors
/// The path is not in a mount of hither; those of [`control::ask`].
pub fn run(args: &WhyArgs) -> Result<(), Failure> {
    let (daemon, below) = locate::file(&args.path)?;
    let path = Path::new(&daemon.dir).join(&below);
    let answer = control::ask(&daemon, Ask::Why(below.clone()))?;
    let other = |e| Failure::system(format!("the daemon of {} is of another version: {e}", daemon.dir));
    let mut explained: Explained = serde_json::from_value(answer).map_err(other)?;
    explained.calls.truncate(args.calls);
    if args.json {
        let mut value = serde_json::to_value(&explained).map_err(|e| Failure::system(e.to_string()))?;
        value["path"] = Value::String(path.to_string_lossy().into_owned());
        return print(&format!("{value}\n"));
    }
    let text = text(&path.to_string_lossy(), &below, &explained);
    // Names of files and programs must not move the cursor.
    let plain: String = text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect();
    print(&plain)
}

/// The explanation as text.
fn text(path: &str, below: &str, e: &Explained) -> String {
    let objects = e.objects.as_array().map(Vec::as_slice).unwrap_or_default();
    let whole = objects.len() == 1 + below.split('/').filter(|name| !name.is_empty()).count();
    let last = objects.last().filter(|_| whole);
    let mut out = match last {
        Some(o) if o["absent"] == true => format!("{path}: cached as absent\n"),
        Some(o) if !o["kind"].is_null() => format!(
            "{path}: {}, {}, version {}\n",
            o["kind"].as_str().unwrap_or_default(),
            bytes(o["size_bytes"].as_u64().unwrap_or(0)),
            o["change"]
        ),
        _ => format!("{path}: not cached\n"),
    };
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<12} {value}");
    };
    line("promise", e.promise.clone());
    for object in objects {
        let name = object["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("/");
        line(name, known(object));
    }
    if last.is_some_and(|o| o["contents"] == true) {
        line("in memory", "all of its bytes".into());
    }
    if let Some(ranges) = e.disk["ranges"].as_array() {
        let range = |r: &Value| {
            format!("{} to {}", bytes(r[0].as_u64().unwrap_or(0)), bytes(r[1].as_u64().unwrap_or(0)))
        };
        let ranges: Vec<String> = ranges.iter().take(20).map(range).collect();
        let same = last.is_some_and(|o| o["change"] == e.disk["change"]);
        let version = if same { "of this version" } else { "of another version: dropped at the next open" };
        let pinned = if e.disk["pinned"] == true { ", pinned" } else { "" };
        line("local disk", format!("{}, {version}{pinned}", ranges.join(", ")));
    }
    for cost in &e.costs {
        let asks = if cost.asks { "asks the server" } else { "asks nothing" };
        line(&format!("{} now", cost.call), format!("{asks}: {}", cost.why));
    }
    if e.calls.is_empty() {
        out.push_str("no recent call asked the server about it\n");
        return out;
    }
    out.push_str("calls that asked the server, newest first:\n");
    e.calls.iter().for_each(|call| past(&mut out, call));
    out
}

fn known(object: &Value) -> String {
    let held = |what: &str, known: &Value| {
        let ms = |value: &Value| value.as_u64().map(|ms| duration(ms * 1000));
        let asked = ms(&known["asked_ms_ago"])
            .map_or_else(|| "changed here".into(), |ago| format!("asked {ago} ago"));
        let left = match known["left_ms"].as_u64() {
            None => "until the server recalls it".into(),
            Some(0) => "expired".into(),
            Some(ms) => format!("for {} more", duration(ms * 1000)),
        };
        format!("{what} {asked}, {left}")
    };
    let mut parts = Vec::new();
    if !object["binding"].is_null() {
        let what = if object["absent"] == true { "absence" } else { "name" };
        parts.push(held(what, &object["binding"]));
    }
    if !object["attributes"].is_null() {
        parts.push(held("attributes", &object["attributes"]));
    }
    match (object["names"].as_u64().unwrap_or(0), object["complete"] == true) {
        (n, true) => parts.push(format!("all of its {n} names")),
        (0, false) => {}
        (n, false) => parts.push(format!("{n} of its names")),
    }
    if parts.is_empty() { "not cached".into() } else { parts.join("; ") }
}

fn past(out: &mut String, call: &PastCall) {
    let name = call.name.as_ref().map_or_else(String::new, |name| format!(" '{name}'"));
    let errno = match call.errno {
        0 => String::new(),
        errno => format!(": {}", std::io::Error::from_raw_os_error(errno)),
    };
    let _ = writeln!(
        out,
        "  {} ago  {}{name} of {}[{}], uid {}, {}{errno}",
        duration(call.ago_ms * 1000),
        call.request,
        call.program,
        call.pid,
        call.uid,
        duration(call.took_us)
    );
    for asked in &call.asked {
        let _ = writeln!(out, "      {} {}: {}", asked.operation, duration(asked.took_us), asked.why);
    }
    if call.more > 0 {
        let _ = writeln!(out, "      and {} more", call.more);
    }
}
