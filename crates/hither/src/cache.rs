//! `hither cache`: examines and fills a disk cache, checks its checksums, evicts and pins files.
//!
//! The command queries the daemon of a mounted cache over the control socket. It reads the parts of
//! a cache directory that no mount uses directly. `warm` reads files through the mount, like any
//! program.

mod batch;
mod keys;
pub mod warm;

use crate::cli::{CacheCommand, CacheFiles, CacheLs, CacheWhere};
use crate::control::locate::{self, Daemon};
use crate::control::{self, Ask, CacheAsk, KeyDo};
use crate::exit::Failure;
use crate::report::Counters;
use crate::stat::{self, print};
use hither_cache::data::{self, DataCachePart};
use hither_tools::units::bytes;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Runs a command.
///
/// # Errors
/// The path is neither in a mount nor a cache directory, the daemon does not answer, or damaged
/// data was found.
pub fn run(what: &CacheCommand) -> Result<(), Failure> {
    match what {
        CacheCommand::Status(place) => status(place),
        CacheCommand::Ls(args) => ls(args),
        CacheCommand::Check(place) => check(place),
        CacheCommand::Verify(args) => {
            let daemon = locate::daemon(&args.place)?;
            let found = control::ask(&daemon, Ask::Cache(CacheAsk::Verify))?;
            tell(&found, args.json)?;
            wrong(&found, "wrong", "differed from the server's files and were dropped")
        }
        CacheCommand::Evict(args) if args.all => {
            args.files.iter().try_for_each(|place| evict_all(place, args.json))
        }
        CacheCommand::Evict(args) if args.keys => keys::run(&args.files, KeyDo::Evict, args.json),
        CacheCommand::Evict(args) => {
            let evicted = each(&args.files, |path| CacheAsk::Evict(Some(path)))?;
            let count = evicted.iter().filter_map(|one| one["evicted"].as_u64()).sum::<u64>();
            done("evicted", count, args.json)
        }
        CacheCommand::Pin(args) => pin(args, KeyDo::Pin),
        CacheCommand::Unpin(args) => pin(args, KeyDo::Unpin),
        CacheCommand::Warm(args) => warm::run(args),
    }
}

/// Location of a cache.
enum CacheLocation {
    Mount(Daemon),
    Directory,
}

fn place(path: &Path) -> Result<CacheLocation, Failure> {
    if path.join("hither-cache").is_file() {
        return Ok(CacheLocation::Directory);
    }
    locate::daemon(path).map(CacheLocation::Mount).map_err(|e| Failure {
        line: format!("{} is neither in a mount of hither nor a cache directory", path.display()),
        ..e
    })
}

fn survey(path: &Path, check: bool) -> Result<Vec<DataCachePart>, Failure> {
    data::survey(path, check, &crate::stack::env()).map_err(|e| Failure::system(e.to_string()))
}

/// The identity of a part as text.
fn named(part: &DataCachePart) -> String {
    let words = part.identity.split(|b| !(b' '..=b'~').contains(b)).next().unwrap_or_default();
    String::from_utf8_lossy(words).trim().to_string()
}

fn status(at: &CacheWhere) -> Result<(), Failure> {
    match place(&at.place)? {
        CacheLocation::Mount(daemon) => {
            let report = stat::report(&daemon)?;
            let Some(cache) = &report.mount.cache else {
                return Err(Failure::usage(format!("{} is without a disk cache", daemon.dir)));
            };
            let counters = report.layers.get("disk").cloned();
            let counters = counters.unwrap_or(Counters::Group(Default::default()));
            let room = control::ask(&daemon, Ask::Cache(CacheAsk::Room)).unwrap_or(Value::Null);
            if at.json {
                let trouble = &report.mount.cache_trouble;
                let all =
                    json!({ "directory": cache, "trouble": trouble, "room": room, "counters": counters });
                return print(&format!("{all}\n"));
            }
            let mut out = format!("directory   {cache}\n");
            if let Some(why) = &report.mount.cache_trouble {
                let _ = writeln!(out, "trouble     {why}");
            }
            if let Some(policy) = room["policy"].as_str() {
                let shown = |name: &str| bytes(room[name].as_u64().unwrap_or(0));
                let _ = writeln!(out, "policy      {policy}");
                let _ =
                    writeln!(out, "limits      {} soft, {} hard", shown("soft_bytes"), shown("hard_bytes"));
                if room["dir_hard_bytes"].is_u64() {
                    let (all, soft) = (shown("dir_bytes"), shown("dir_soft_bytes"));
                    let hard = shown("dir_hard_bytes");
                    let _ =
                        writeln!(out, "all mounts  {all} in the directory; limits {soft} soft, {hard} hard");
                }
                let (free, least) = (shown("free_bytes"), shown("min_free_bytes"));
                let _ = writeln!(out, "file system {free} free, {least} stay free");
            }
            if let Counters::Group(group) = &counters {
                for (name, count) in group {
                    let Counters::Count(n) = count else { continue };
                    let shown = if name.ends_with("_bytes") { bytes(*n) } else { n.to_string() };
                    let _ = writeln!(out, "{name:<18} {shown}");
                }
            }
            print(&out)
        }
        CacheLocation::Directory => {
            let parts = survey(&at.place, false)?;
            let each = parts.iter().map(|part| {
                let cached: u64 = part.entries.iter().map(|e| e.cached_bytes).sum();
                json!({ "export": named(part), "in_use": part.in_use, "entries": part.entries.len(), "cached_bytes": cached })
            });
            let each: Vec<Value> = each.collect();
            if at.json {
                return print(&format!("{}\n", Value::from(each)));
            }
            let mut out = String::new();
            for part in &parts {
                let cached: u64 = part.entries.iter().map(|e| e.cached_bytes).sum();
                let _ = if part.in_use {
                    writeln!(out, "{}: in use by a mount, give that mount's directory", named(part))
                } else {
                    writeln!(out, "{}: {} files, {}", named(part), part.entries.len(), bytes(cached))
                };
            }
            print(&out)
        }
    }
}

/// Prints the action's report for programs. People get no output on success.
fn done(what: &str, count: u64, json: bool) -> Result<(), Failure> {
    if json { print(&format!("{}\n", json!({ what: count }))) } else { Ok(()) }
}

fn pin(args: &CacheFiles, act: KeyDo) -> Result<(), Failure> {
    if args.keys {
        return keys::run(&args.files, act, args.json);
    }
    let (ask, what): (fn(String) -> CacheAsk, _) = match act {
        KeyDo::Unpin => (CacheAsk::Unpin, "unpinned"),
        KeyDo::Pin | KeyDo::Evict => (CacheAsk::Pin, "pinned"),
    };
    let count = each(&args.files, ask)?.len() as u64;
    done(what, count, args.json)
}

fn ls(args: &CacheLs) -> Result<(), Failure> {
    let at = &args.at;
    if args.index {
        return index(at);
    }
    let entries = match place(&at.place)? {
        CacheLocation::Mount(daemon) => control::ask(&daemon, Ask::Cache(CacheAsk::List))?,
        CacheLocation::Directory => {
            let parts = survey(&at.place, false)?;
            let all: Vec<_> = parts.into_iter().flat_map(|part| part.entries).collect();
            serde_json::to_value(all).map_err(|e| Failure::system(e.to_string()))?
        }
    };
    if at.json {
        return print(&format!("{entries}\n"));
    }
    let Value::Array(mut entries) = entries else {
        return Err(Failure::system("the daemon is of another version"));
    };
    let number = |entry: &Value, name: &str| entry[name].as_u64().unwrap_or(0);
    entries.sort_by_key(|entry| std::cmp::Reverse(number(entry, "cached_bytes")));
    let mut out = format!("{:>10} {:>10}  {:<6} filehandle\n", "cached", "of", "");
    for entry in &entries {
        let pinned = if entry["pinned"] == Value::Bool(true) { "pinned" } else { "" };
        let (cached, size) = (number(entry, "cached_bytes"), number(entry, "size_bytes"));
        let handle = entry["filehandle"].as_str().unwrap_or_default();
        let _ = writeln!(out, "{:>10} {:>10}  {pinned:<6} {handle}", bytes(cached), bytes(size));
    }
    print(&out)
}

/// Prints the index in memory, without disk access.
fn index(at: &CacheWhere) -> Result<(), Failure> {
    let daemon = locate::daemon(&at.place)?;
    let slots = control::ask(&daemon, Ask::Cache(CacheAsk::Slots))?;
    if at.json {
        return print(&format!("{slots}\n"));
    }
    let mut out = format!("{:>10} {:>11} {:>4}  {:<6} key\n", "on disk", "used", "uses", "");
    for slot in slots.as_array().into_iter().flatten() {
        let number = |name: &str| slot[name].as_u64().unwrap_or(0);
        let is = |what: &str| slot[what] == Value::Bool(true);
        let kept = ["pinned", "open"].into_iter().find(|what| is(what)).unwrap_or_default();
        let (space, key) = (bytes(number("disk_bytes")), slot["key"].as_str().unwrap_or_default());
        let _ = writeln!(out, "{space:>10} {:>11} {:>4}  {kept:<6} {key}", number("used_s"), number("uses"));
    }
    print(&out)
}

fn check(at: &CacheWhere) -> Result<(), Failure> {
    let found = match place(&at.place)? {
        CacheLocation::Mount(daemon) => control::ask(&daemon, Ask::Cache(CacheAsk::Check))?,
        CacheLocation::Directory => {
            let parts = survey(&at.place, true)?;
            let in_use = parts.iter().filter(|part| part.in_use).count();
            let mut sum = json!({ "entries": 0, "blocks": 0, "bytes": 0, "damaged": 0 });
            for check in parts.iter().filter_map(|part| part.check.as_ref()) {
                let one = serde_json::to_value(check).map_err(|e| Failure::system(e.to_string()))?;
                for name in ["entries", "blocks", "bytes", "damaged"] {
                    sum[name] = json!(sum[name].as_u64().unwrap_or(0) + one[name].as_u64().unwrap_or(0));
                }
            }
            sum["parts_in_use"] = json!(in_use);
            sum
        }
    };
    tell(&found, at.json)?;
    wrong(&found, "damaged", "were damaged and dropped")
}

/// Prints names and numbers on one line, or as JSON.
fn tell(found: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return print(&format!("{found}\n"));
    }
    let Value::Object(fields) = found else { return print(&format!("{found}\n")) };
    let parts: Vec<String> = fields
        .iter()
        .map(|(name, n)| match (name.as_str(), n.as_u64()) {
            ("bytes", Some(n)) => bytes(n),
            (name, _) => format!("{} {n}", name.replace('_', " ")),
        })
        .collect();
    print(&format!("{}\n", parts.join(", ")))
}

fn wrong(found: &Value, name: &str, what: &str) -> Result<(), Failure> {
    match found[name].as_u64() {
        Some(0) | None => Ok(()),
        Some(n) => Err(Failure::system(format!("{n} entries {what}"))),
    }
}

fn evict_all(path: &Path, json: bool) -> Result<(), Failure> {
    match place(path)? {
        CacheLocation::Mount(daemon) => {
            tell(&control::ask(&daemon, Ask::Cache(CacheAsk::Evict(None)))?, json)
        }
        CacheLocation::Directory => {
            let (gone, in_use) =
                data::evict_all(path, &crate::stack::env()).map_err(|e| Failure::system(e.to_string()))?;
            tell(&json!({ "evicted": gone, "parts_in_use": in_use }), json)
        }
    }
}

/// Sends one request for each file of a mount.
fn each(files: &[std::path::PathBuf], ask: impl Fn(String) -> CacheAsk) -> Result<Vec<Value>, Failure> {
    let mut answers = Vec::new();
    for file in files {
        let (daemon, below) = locate::file(file)?;
        answers.push(control::ask(&daemon, Ask::Cache(ask(below)))?);
    }
    Ok(answers)
}
