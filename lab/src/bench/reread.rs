//! The cost of a read when the disk cache has the file, against the same bytes in a file of the
//! same local file system. A second part compares a first read with and without a cache.
//!
//! All places are on the host. Each round measures all places one after the other and begins with
//! another one, so that other work of the machine affects all alike. A figure is a ratio of medians
//! over the rounds. The state of memory before a measurement is one of [`STATES`]. The daemon's
//! counters show whether the kernel alone read the place that it should read alone.

use crate::args::Args;
use crate::bench::on_server;
use crate::client::{Ask, Client, Mount};
use crate::clock;
use crate::guest::quote;
use crate::lab::{Fail, Lab, Res};
use crate::process::sh;
use crate::server::{Kind, Options, Server};
use rustix::fs::{Advice, Mode, OFlags};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The state of memory before a file is read.
const STATES: [(&str, &str); 3] = [
    ("memory", "as the last reader left it"),
    ("daemon", "the local file and the cache's own, but no pages of the mount"),
    ("disk", "nothing: all pages of the machine were dropped"),
];

/// Ways to read a file.
const WAYS: [&str; 3] = ["sequential", "random 4 KiB", "mmap"];

/// A measured file.
struct MeasuredFile {
    name: &'static str,
    file: PathBuf,
    mount: Option<Mount>,
}

/// Options of the mounts that are read again: reads by the kernel alone, and reads through the
/// daemon.
const AGAIN: [(&str, &str); 2] = [
    ("passthrough", "ro,consistency=frozen,cache-age=0,cache="),
    ("through the daemon", "cache-age=0,cache="),
];

/// Times of all rounds in seconds.
type Rounds = Vec<f64>;

struct Figure {
    state: &'static str,
    way: &'static str,
    place: &'static str,
    rounds: Rounds,
}

/// `bench reread [--server ganesha] [--vers 4.2] [--rounds N] [--mib N] [--out F.jsonl] [--table
/// F.md]`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    let server = args.value("--server")?.unwrap_or_else(|| "ganesha".into());
    let vers = args.value("--vers")?.unwrap_or_else(|| "4.2".into());
    let rounds = args.number("--rounds")?.unwrap_or(9.0).max(1.0) as usize;
    let bytes = args.number("--mib")?.unwrap_or(256.0).max(1.0) as u64 * MIB;
    let (out, table) = (args.value("--out")?, args.value("--table")?);
    if let Some(binary) = args.value("--hither")? {
        lab.set_hither(PathBuf::from(binary));
    }
    args.no_more_options()?;
    lab.enter()?;
    let kind = Kind::parse(&server)?;
    Server::new(lab, kind).start(&Options::default(), true)?;
    on_server(lab, kind, |dir| {
        format!("mkdir -p {dir} && head -c {bytes} /dev/urandom >{dir}/reread && chmod 644 {dir}/reread")
    })?;
    let dir = lab.dir("reread")?;
    let mut places = vec![];
    let measured =
        mounted(lab, kind, &vers, &dir, &mut places).and_then(|()| measure(lab, &places, bytes, rounds));
    for mount in places.iter().filter_map(|p| p.mount.as_ref()) {
        if mount.umount().is_err() {
            mount.force_umount();
        }
    }
    fs::remove_dir_all(&dir)?;
    on_server(lab, kind, |dir| format!("rm -f {dir}/reread"))?;
    let figures = measured?;
    if let Some(out) = out {
        let line = |f: &Figure| {
            json!({"workload": "reread", "server": server, "vers": vers, "state": f.state, "way": f.way,
                   "place": f.place, "bytes": bytes, "secs": f.rounds})
            .to_string()
        };
        fs::write(out, figures.iter().map(line).collect::<Vec<_>>().join("\n") + "\n")?;
    }
    let text = markdown(&figures);
    match table {
        Some(file) => fs::write(file, text)?,
        None => print!("{text}"),
    }
    println!("{} passed, 0 failed", figures.len());
    Ok(ExitCode::SUCCESS)
}

/// Prepares the local file, the mounts for repeated reads, and the two mounts for first reads.
fn mounted(lab: &Lab, kind: Kind, vers: &str, dir: &Path, places: &mut Vec<MeasuredFile>) -> Res<()> {
    let client = Client::hither(lab, false)?;
    let mut nth = 0;
    let mut mount = |opts: &str| -> Res<Mount> {
        let ask = Ask { opts, nth, ..Ask::new(kind.direct(), vers) };
        nth += 1;
        client.mount(lab, &ask)
    };
    let plain = mount("")?;
    let source = plain.mp.join("bench/reread");
    let local = dir.join("local");
    fs::copy(&source, &local)?;
    fs::File::open(&local)?.sync_all()?;
    places.push(MeasuredFile { name: "local", file: local, mount: None });
    for (name, opts) in AGAIN {
        let cache = dir.join(format!("cache{}", places.len()));
        let mount = mount(&format!("{opts}{}", cache.display()))?;
        places.push(MeasuredFile { name, file: mount.mp.join("bench/reread"), mount: Some(mount) });
    }
    let cache = dir.join("cache0");
    let cold = mount(&format!("cache-age=0,cache={}", cache.display()))?;
    places.push(MeasuredFile { name: "without a cache", file: source, mount: Some(plain) });
    places.push(MeasuredFile { name: "with a cache", file: cold.mp.join("bench/reread"), mount: Some(cold) });
    Ok(())
}

fn measure(lab: &Lab, places: &[MeasuredFile], bytes: u64, rounds: usize) -> Res<Vec<Figure>> {
    let again = &places[..=AGAIN.len()];
    for place in &again[1..] {
        fill(lab, place, bytes)?;
    }
    let mut figures = vec![];
    for (state, _) in STATES {
        for way in WAYS {
            let mut all: Vec<Rounds> = vec![vec![]; again.len()];
            for round in 0..rounds {
                for turn in 0..again.len() {
                    let at = (round + turn) % again.len();
                    bring_about(state, again)?;
                    all[at].push(read(lab, &again[at].file, way, state, bytes)?);
                }
            }
            figures.extend(again.iter().zip(all).map(|(p, rounds)| told(state, way, p.name, rounds)));
        }
    }
    read_by_the_kernel(lab, &again[1])?;
    let first = &places[AGAIN.len() + 1..];
    let mut all: Vec<Rounds> = vec![vec![]; first.len()];
    for round in 0..rounds {
        for turn in 0..first.len() {
            let at = (round + turn) % first.len();
            forget(lab, &first[at])?;
            all[at].push(read(lab, &first[at].file, WAYS[0], "first", bytes)?);
        }
    }
    figures.extend(first.iter().zip(all).map(|(p, rounds)| told("first", WAYS[0], p.name, rounds)));
    Ok(figures)
}

fn told(state: &'static str, way: &'static str, place: &'static str, rounds: Rounds) -> Figure {
    println!("{state:8} {way:14} {place:20} {:.4} s", median(&rounds));
    Figure { state, way, place, rounds }
}

/// A part of the daemon's report about a mount.
fn report(lab: &Lab, place: &MeasuredFile) -> Res<Value> {
    let Some(mount) = &place.mount else { return Err(Fail(format!("{}: no mount", place.name))) };
    let ask = format!("{} stat --json {}", quote(&lab.hither().display().to_string()), mount.mp.display());
    Ok(serde_json::from_str(&sh(&ask)?)?)
}

/// Reads a file until the cache of its mount has all of it.
fn fill(lab: &Lab, place: &MeasuredFile, bytes: u64) -> Res<()> {
    for _ in 0..30 {
        read(lab, &place.file, WAYS[0], "memory", bytes)?;
        clock::pause(Duration::from_secs(2));
        drop_pages(&place.file)?;
        let disk = &report(lab, place)?["layers"]["disk"];
        if disk["queue_bytes"] == 0 && disk["entry_bytes"].as_u64().is_some_and(|kept| kept >= bytes) {
            return Ok(());
        }
    }
    Err(Fail(format!("{}: the cache does not get to have the whole file", place.name)))
}

/// Drops a file from the client's caches, so that the next read asks the server.
fn forget(lab: &Lab, place: &MeasuredFile) -> Res<()> {
    drop_pages(&place.file)?;
    let mp = place.file.parent().unwrap_or(Path::new("/"));
    if report(lab, place)?["layers"]["disk"].is_object() {
        let bin = quote(&lab.hither().display().to_string());
        sh(&format!("{bin} cache evict --all {}", quote(&mp.display().to_string())))?;
    }
    Ok(())
}

/// Checks that the kernel alone did the measured reads.
fn read_by_the_kernel(lab: &Lab, place: &MeasuredFile) -> Res<()> {
    match report(lab, place)?["layers"]["passthrough"]["opens"].as_u64() {
        Some(1..) => Ok(()),
        other => Err(Fail(format!("{}: no open went to the local file ({other:?})", place.name))),
    }
}

fn bring_about(state: &str, places: &[MeasuredFile]) -> Res<()> {
    match state {
        "daemon" => places.iter().filter(|p| p.mount.is_some()).try_for_each(|p| drop_pages(&p.file)),
        "disk" => Ok(fs::write("/proc/sys/vm/drop_caches", "1")?),
        _ => Ok(()),
    }
}

/// Drops the kernel's pages of a file.
fn drop_pages(file: &Path) -> Res<()> {
    let fd = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed)?)
}

/// Reads a file and returns the time in seconds.
fn read(lab: &Lab, file: &Path, way: &str, state: &str, bytes: u64) -> Res<f64> {
    if way == "mmap" {
        let program = quote(&lab.file("work/mapped.py").display().to_string());
        let said = sh(&format!("/usr/bin/python3 {program} {}", quote(&file.display().to_string())))?;
        return said.trim().parse().map_err(|_| Fail(format!("mapped.py: {said}")));
    }
    let mut buffer = vec![0; if way == "sequential" { MIB as usize } else { 4096 }];
    let begun = clock::now();
    let file = fs::File::open(file)?;
    if way == "sequential" {
        for at in (0..bytes).step_by(buffer.len()) {
            file.read_exact_at(&mut buffer, at)?;
        }
    } else {
        // The same offsets each time, over the whole file. There are fewer when each read costs a
        // seek.
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..if state == "disk" { 3000 } else { 60_000 } {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            file.read_exact_at(&mut buffer, x % (bytes / 4096) * 4096)?;
        }
    }
    drop(file);
    Ok(begun.elapsed().as_secs_f64())
}

fn median(rounds: &[f64]) -> f64 {
    let mut sorted = rounds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Speeds relative to the first place with the same state and way.
fn markdown(figures: &[Figure]) -> String {
    let find = |state: &str, way: &str, place: &str| {
        let found = figures.iter().find(|f| f.state == state && f.way == way && f.place == place);
        found.map_or(f64::NAN, |f| median(&f.rounds))
    };
    let mut s = String::from("| in memory | way | ");
    s += &AGAIN.map(|(name, _)| name).join(" | ");
    s += " |\n|---|---|---|---|\n";
    for (state, meaning) in STATES {
        for way in WAYS {
            let _ = write!(s, "| {meaning} | {way} |");
            for (name, _) in AGAIN {
                let _ = write!(s, " {:.2} |", find(state, way, "local") / find(state, way, name));
            }
            s += "\n";
        }
    }
    let first = |place| find("first", WAYS[0], place);
    let _ = writeln!(
        s,
        "\nFirst read with a cache, as a part of the speed without: {:.2}.",
        first("without a cache") / first("with a cache")
    );
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_relative_to_local() {
        let figure =
            |state, way, place, secs: f64| Figure { state, way, place, rounds: vec![secs, secs, 99.0] };
        let text = markdown(&[
            figure("memory", "mmap", "local", 1.0),
            figure("memory", "mmap", "passthrough", 1.25),
            figure("memory", "mmap", "through the daemon", 2.0),
            figure("first", "sequential", "without a cache", 0.9),
            figure("first", "sequential", "with a cache", 1.0),
        ]);
        assert!(text.contains("| as the last reader left it | mmap | 0.80 | 0.50 |"), "{text}");
        assert!(text.contains("without: 0.90."), "{text}");
    }
}
