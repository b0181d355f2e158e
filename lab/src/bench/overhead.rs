//! The cost of a system call that needs no server, for cached names and attributes. Three places
//! are measured: a mount of hither, a FUSE daemon without any further layer (the in-memory model of
//! `crates/vfs`), and the local disk.
//!
//! All three are on the host. One thread runs the same loop over the same thousand files. The best
//! of many rounds counts, because other work of the machine can only make a round slower. RPCs are
//! counted, so that a zero is proven.

use crate::args::Args;
use crate::bench::table::duration;
use crate::client::{Ask, Client, Mount};
use crate::clock;
use crate::guest::quote;
use crate::lab::{Fail, Lab, Res};
use crate::process::sh;
use crate::relay;
use crate::server::{Kind, Options, Server};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

const DIRS: usize = 10;
const FILES_PER_DIR: usize = 100;

/// A measured directory, with the processes and mounts that must end afterwards.
struct MeasuredDir {
    name: String,
    dir: PathBuf,
    mount: Option<Mount>,
}

/// Nanoseconds and RPCs per operation.
struct Cost {
    ns: f64,
    rpcs: f64,
}

type Operation = fn(&Path) -> Res<()>;

/// Prefix of operations that are measured after the kernel has dropped its names and inodes. The
/// daemon is then asked again, and ext4 reads its buffers.
const DROPPED: &str = "after a drop:";

/// The measured calls. They use files, except `list`, which uses directories.
const OPERATIONS: [(&str, Operation); 6] = [
    ("stat", |f| Ok(rustix::fs::stat(f).map(drop)?)),
    ("stat of an absent name", |f| match rustix::fs::stat(f.with_extension("absent")) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => Err(Fail(format!("{}: an absent name gives {other:?}", f.display()))),
    }),
    ("open, close", |f| open(f).map(drop)),
    ("open, read 1 KB, close", |f| {
        let mut buffer = [0; 1024];
        match rustix::io::read(open(f)?, &mut buffer)? {
            1024 => Ok(()),
            n => Err(Fail(format!("{}: {n} bytes instead of 1024", f.display()))),
        }
    }),
    ("list a directory of 100", |d| match fs::read_dir(d)?.count() {
        FILES_PER_DIR => Ok(()),
        n => Err(Fail(format!("{}: {n} entries", d.display()))),
    }),
    ("after a drop: stat", |f| Ok(rustix::fs::stat(f).map(drop)?)),
];

fn open(file: &Path) -> Res<rustix::fd::OwnedFd> {
    Ok(rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// `bench overhead [--server ganesha,knfsd] [--vers 4.2] [--rounds N] [--empty-fuse FILE] [--out
/// F.jsonl] [--table F.md]`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    let servers = args.list("--server", &["ganesha", "knfsd"])?;
    let versions = args.list("--vers", &["4.2"])?;
    let rounds = args.number("--rounds")?.unwrap_or(30.0) as usize;
    let built = || {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| lab.repo.join("target"), PathBuf::from);
        target.join("release/examples/mount_model")
    };
    let empty = args.value("--empty-fuse")?.map_or_else(built, PathBuf::from);
    let (out, table) = (args.value("--out")?, args.value("--table")?);
    if let Some(binary) = args.value("--hither")? {
        lab.set_hither(PathBuf::from(binary));
    }
    args.no_more_options()?;
    if !empty.exists() {
        return Err(Fail(format!(
            "{} does not exist; `cargo build --release -p hither-fuse --example mount_model` makes it",
            empty.display()
        )));
    }
    lab.enter()?;
    relay::ctl("rtt 0")?;
    let mut daemon = EmptyFuse::start(&empty)?;
    let measured = everywhere(lab, &daemon.dir, &servers, &versions, rounds);
    daemon.stop();
    let columns = measured?;
    if let Some(out) = out {
        let lines: Vec<String> = columns.iter().flat_map(|(name, costs)| json_lines(name, costs)).collect();
        fs::write(out, lines.join("\n") + "\n")?;
    }
    let text = markdown(&columns);
    match table {
        Some(file) => fs::write(file, text)?,
        None => print!("{text}"),
    }
    println!("{} passed, 0 failed", columns.len());
    Ok(ExitCode::SUCCESS)
}

/// A FUSE daemon without a server behind it.
struct EmptyFuse {
    child: Child,
    dir: PathBuf,
}

impl EmptyFuse {
    fn start(binary: &Path) -> Res<Self> {
        let dir = PathBuf::from("/mnt/empty-fuse");
        fs::create_dir_all(&dir)?;
        // Answers are valid for an hour, so the kernel sends only the requests that it must send to
        // any FUSE daemon.
        let child = Command::new(binary)
            .arg(&dir)
            .arg("3600000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| Fail(format!("{}: {e}", binary.display())))?;
        let mut me = Self { child, dir };
        if !clock::wait_until(Duration::from_secs(10), || mounted(&me.dir)) {
            me.stop();
            return Err(Fail(format!("{} did not mount", binary.display())));
        }
        Ok(me)
    }

    fn stop(&mut self) {
        let _ = sh(&format!("umount -l {}", quote(&self.dir.display().to_string())));
        let child = &mut self.child;
        if !clock::wait_until(Duration::from_secs(5), || matches!(child.try_wait(), Ok(Some(_)))) {
            let _ = child.kill();
        }
    }
}

fn mounted(dir: &Path) -> bool {
    let line = format!(" {} ", dir.display());
    fs::read_to_string("/proc/self/mounts").is_ok_and(|t| t.contains(&line))
}

type Columns = Vec<(String, Vec<Cost>)>;

fn everywhere(
    lab: &Lab,
    empty: &Path,
    servers: &[String],
    versions: &[String],
    rounds: usize,
) -> Res<Columns> {
    let mut columns = vec![];
    let disk = MeasuredDir { name: "local disk".into(), dir: lab.dir("overhead")?, mount: None };
    fill(&disk.dir)?;
    columns.push((disk.name.clone(), measure(&disk, rounds)?));
    let fuse = MeasuredDir { name: "empty FUSE".into(), dir: empty.to_path_buf(), mount: None };
    fill(&fuse.dir)?;
    columns.push((fuse.name.clone(), measure(&fuse, rounds)?));
    for server in servers {
        let kind = Kind::parse(server)?;
        Server::new(lab, kind).start(&Options::default(), true)?;
        for vers in versions {
            for opts in ["", "nocto,actimeo=600"] {
                let ask = Ask { opts, ..Ask::new(kind.relayed(), vers) };
                let mount = Client::hither(lab, false)?.mount(lab, &ask)?;
                let name = format!("hither {vers} {opts}").trim_end().to_string() + ", " + server;
                let place = MeasuredDir { name, dir: mount.mp.join("overhead"), mount: Some(mount) };
                let cost = fill(&place.dir).and_then(|()| measure(&place, rounds));
                if let Some(mount) = &place.mount {
                    mount.umount().inspect_err(|_| mount.force_umount())?;
                }
                columns.push((place.name, cost?));
            }
        }
    }
    Ok(columns)
}

fn directories(top: &Path) -> Vec<PathBuf> {
    (0..DIRS).map(|d| top.join(format!("d{d}"))).collect()
}

fn files(top: &Path) -> Vec<PathBuf> {
    directories(top)
        .iter()
        .flat_map(|d| (0..FILES_PER_DIR).map(|f| d.join(format!("f{f:03}"))).collect::<Vec<_>>())
        .collect()
}

fn fill(top: &Path) -> Res<()> {
    for d in directories(top) {
        fs::create_dir_all(d)?;
    }
    for f in files(top) {
        if !f.exists() {
            fs::write(f, [b'x'; 1024])?;
        }
    }
    Ok(())
}

/// The best round of each operation.
fn measure(place: &MeasuredDir, rounds: usize) -> Res<Vec<Cost>> {
    // The client trusts attributes of a recently written file less than those of an older file.
    clock::pause(Duration::from_secs(2));
    let (dirs, files) = (directories(&place.dir), files(&place.dir));
    let mut costs = vec![];
    for (name, operation) in OPERATIONS {
        let paths = if name.starts_with("list") { &dirs } else { &files };
        let mut best = Cost { ns: f64::MAX, rpcs: f64::MAX };
        let dropped = name.starts_with(DROPPED);
        // A drop affects all programs of this machine, so it has fewer rounds.
        let rounds = if dropped { rounds.min(5) } else { rounds };
        for round in 0..rounds + 2 {
            if dropped {
                fs::write("/proc/sys/vm/drop_caches", "2")?;
            }
            relay::ctl("reset")?;
            let begun = clock::now();
            for p in paths {
                operation(p).map_err(|Fail(why)| Fail(format!("{}: {name}: {why}", place.name)))?;
            }
            let ns = begun.elapsed().as_nanos() as f64 / paths.len() as f64;
            if round >= 2 && ns < best.ns {
                best = Cost { ns, rpcs: calls()? / paths.len() as f64 };
            }
        }
        println!("{:40} {name:24} {:>10}  {} RPCs", place.name, duration(best.ns * 1e-9), best.rpcs);
        costs.push(best);
    }
    Ok(costs)
}

/// Number of calls through the relay since its reset.
fn calls() -> Res<f64> {
    let snap: Value = serde_json::from_str(&relay::ctl("snap")?)?;
    let all = snap["calls"].as_object().into_iter().flatten();
    let calls: u64 = all.filter(|(k, _)| !k.starts_with("cb.")).filter_map(|(_, c)| c["n"].as_u64()).sum();
    Ok(calls as f64)
}

fn json_lines(name: &str, costs: &[Cost]) -> Vec<String> {
    let each = OPERATIONS.iter().zip(costs);
    each.map(|((op, _), c)| {
        json!({"workload": "overhead", "place": name, "phase": op, "ns": c.ns, "rpcs": c.rpcs}).to_string()
    })
    .collect()
}

/// A row per place, with ratios to the first two places.
fn markdown(columns: &Columns) -> String {
    let heads: Vec<&str> = OPERATIONS.iter().map(|(op, _)| *op).collect();
    let mut s = format!("\n### System calls on cached names\n\n| | {} |\n", heads.join(" | "));
    s += &"|---".repeat(heads.len() + 1);
    s += "|\n";
    for (at, (name, costs)) in columns.iter().enumerate() {
        let _ = write!(s, "| {name} |");
        for (i, c) in costs.iter().enumerate() {
            let ratio = |to: usize| c.ns / columns[to].1[i].ns;
            let _ = write!(s, " {}", duration(c.ns * 1e-9));
            match at {
                0 => {}
                1 => drop(write!(s, ", {:.1} × disk", ratio(0))),
                _ => drop(write!(s, ", {:.1} × disk, {:.1} × empty, {:.2} RPCs", ratio(0), ratio(1), c.rpcs)),
            }
            s += " |";
        }
        s += "\n";
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table shows each cost, and its ratios to the disk and to the empty daemon.
    #[test]
    fn ratios_name_both_baselines() {
        let costs = |ns| OPERATIONS.iter().map(|_| Cost { ns, rpcs: 0.5 }).collect::<Vec<_>>();
        let text = markdown(&vec![
            ("local disk".into(), costs(500.0)),
            ("empty FUSE".into(), costs(1000.0)),
            ("hither".into(), costs(3000.0)),
        ]);
        assert!(text.contains("| local disk | 0.50 µs | 0.50 µs |"), "{text}");
        assert!(text.contains("| empty FUSE | 1.00 µs, 2.0 × disk |"), "{text}");
        assert!(text.contains("| hither | 3.00 µs, 6.0 × disk, 3.0 × empty, 0.50 RPCs |"), "{text}");
    }
}
