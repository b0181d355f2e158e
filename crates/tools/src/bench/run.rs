//! Experiments in a directory, with the workloads of `lab/work`. These are Python programs that run
//! in the directory as it is mounted.
//!
//! Results are JSON lines like those of the laboratory: one about the machine, then one for each
//! phase of each run.

use super::Failure;
use super::papers::{EXPERIMENTS, Needs};
use super::results::{self, Selection};
use crate::bench::args::RunArgs;
use crate::exit::print;
use crate::mountinfo;
use crate::nearest;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::hash::Hasher;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use twox_hash::XxHash3_64;

/// The Python programs, which are part of this binary.
const WORK: [(&str, &str); 5] = [
    ("place.py", include_str!("../../../../lab/work/place.py")),
    ("measure.py", include_str!("../../../../lab/work/measure.py")),
    ("workloads.py", include_str!("../../../../lab/work/workloads.py")),
    ("metadata.py", include_str!("../../../../lab/work/metadata.py")),
    ("bounds.py", include_str!("../../../../lab/work/bounds.py")),
];

/// A working directory that is removed at the end.
struct Scratch {
    dir: PathBuf,
    keep: bool,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn io_failure(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Failure {
    let line = format!("{what} {}", path.display());
    move |e| Failure::system(format!("{line}: {e}"))
}

/// Runs the requested experiments.
pub fn run(args: &RunArgs) -> Result<(), Failure> {
    check(args)?;
    let dir = fs::canonicalize(&args.dir).map_err(io_failure("the directory", &args.dir))?;
    let place = place(&dir)?;
    let work = Scratch {
        dir: std::env::temp_dir().join(format!("hither-bench.{}", std::process::id())),
        keep: false,
    };
    fs::create_dir(&work.dir).map_err(io_failure("creating", &work.dir))?;
    for (name, text) in WORK {
        let file = work.dir.join(name);
        fs::write(&file, text).map_err(io_failure("writing", &file))?;
    }
    let top = Scratch { dir: dir.join("hither-bench"), keep: args.keep };
    fs::create_dir_all(&top.dir).map_err(io_failure("creating", &top.dir))?;
    write_lines(args, &[about(args, &place)])?;
    let mut lines = Vec::new();
    let label = args.label.clone().unwrap_or_else(|| place.label());
    for name in &args.experiments {
        for rep in 0..args.reps {
            eprintln!("{name}, {} of {}", rep + 1, args.reps);
            let meta = json!({"workload": name, "server": place.source, "client": label, "vers": "", "opts": "", "rtt": 0.0, "rep": rep});
            // Results are written after each run, so a later failure does not lose them.
            let phases = one(args, name, &top.dir, &work.dir, &meta)?;
            write_lines(args, &phases)?;
            lines.extend(phases);
        }
    }
    let selection = Selection::of_lines("", lines);
    print(&results::summary(&selection))
}

/// Finds faults before any work is done.
fn check(args: &RunArgs) -> Result<(), Failure> {
    for name in &args.experiments {
        let Some(found) = EXPERIMENTS.iter().find(|e| e.name == name) else {
            let near = nearest(name, EXPERIMENTS.iter().map(|e| e.name));
            let near = near.map_or_else(String::new, |near| format!(", did you mean '{near}'?"));
            return Err(Failure::usage(format!(
                "no experiment '{name}'{near} `hither bench list` lists them"
            )));
        };
        if let Needs::Other(command) = found.needs {
            return Err(Failure::usage(format!("'{name}' does not run in a directory: {command}")));
        }
        if let Some(program) = found.program
            && !installed(program)
        {
            return Err(Failure::usage(format!("'{name}' needs {program}, which is not installed")));
        }
    }
    if installed("python3") {
        Ok(())
    } else {
        Err(Failure::usage("the workloads are Python programs: install python3"))
    }
}

fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// The mount that contains a directory.
struct MountEntry {
    fstype: String,
    source: String,
    options: String,
}

impl MountEntry {
    fn label(&self) -> String {
        self.fstype.strip_prefix("fuse.").unwrap_or(&self.fstype).to_string()
    }
}

fn place(dir: &Path) -> Result<MountEntry, Failure> {
    let mounts = mountinfo::read().map_err(|e| Failure::system(format!("/proc/self/mountinfo: {e}")))?;
    let found = mounts.iter().rev().filter(|m| dir.starts_with(&m.point));
    let mount = found.max_by_key(|m| m.point.components().count());
    let mount = mount.ok_or_else(|| Failure::system(format!("{}: not in any mount", dir.display())))?;
    Ok(MountEntry {
        fstype: mount.fstype.clone(),
        source: mount.source.to_string_lossy().into_owned(),
        options: mount.options.clone(),
    })
}

/// Describes the machine, the programs, and which caches were empty.
fn about(args: &RunArgs, place: &MountEntry) -> Value {
    let first = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let word = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
        line.split_once(':').map_or("", |(_, value)| value.trim()).to_string()
    };
    let mut hash = XxHash3_64::with_seed(0);
    WORK.iter().for_each(|(_, text)| hash.write(text.as_bytes()));
    let (cpu, memory) = (first("/proc/cpuinfo"), first("/proc/meminfo"));
    json!({
        "about": {
            "hither": env!("CARGO_PKG_VERSION"),
            "workloads": format!("{:016x}", hash.finish()),
            "seeds": "constants of the workloads",
            "kernel": first("/proc/sys/kernel/osrelease").trim(),
            "cpu": word(&cpu, "model name"),
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "memory": word(&memory, "MemTotal"),
            "load": first("/proc/loadavg").trim(),
            "fstype": place.fstype,
            "source": place.source,
            "mount_options": place.options,
            "quick": args.quick,
            "fresh": args.fresh,
            "drop_caches": args.drop_caches,
            "reps": args.reps,
        }
    })
}

/// Runs one experiment once. Returns its phases.
fn one(args: &RunArgs, name: &str, top: &Path, work: &Path, meta: &Value) -> Result<Vec<Value>, Failure> {
    let params = if args.quick {
        json!({"short": 1, "mib": 64, "number": 200, "transactions": 1000, "files": 200, "single_only": 1})
    } else {
        json!({})
    };
    let program = std::env::current_exe().map_err(|e| Failure::system(format!("this program: {e}")))?;
    let mut command = Command::new("python3");
    command.arg("-B").arg(work.join("place.py")).arg(name).arg("--dir").arg(top).arg("--tmp").arg(work);
    command.args(["--meta", &meta.to_string(), "--params", &params.to_string()]);
    command.arg("--hither").arg(program);
    if let Some(fresh) = &args.fresh {
        command.args(["--fresh", fresh]);
    }
    if args.drop_caches {
        command.arg("--drop");
    }
    let cannot = |e: std::io::Error| Failure::system(format!("python3: {e}"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(cannot)?;
    let mut lines = Vec::new();
    for line in
        BufReader::new(child.stdout.take().ok_or_else(|| cannot(std::io::ErrorKind::BrokenPipe.into()))?)
            .lines()
    {
        let line = line.map_err(cannot)?;
        match line.strip_prefix("DATA ").map(serde_json::from_str::<Value>) {
            Some(Ok(value)) => lines.push(value),
            _ => eprintln!("{line}"),
        }
    }
    let end = child.wait().map_err(cannot)?;
    if end.success() {
        Ok(lines)
    } else {
        Err(Failure::system(format!("{name} failed ({end}): its output is above")))
    }
}

fn write_lines(args: &RunArgs, lines: &[Value]) -> Result<(), Failure> {
    let Some(out) = &args.out else { return Ok(()) };
    let cannot = |e| Failure::system(format!("{}: {e}", out.display()));
    let mut file = OpenOptions::new().create(true).append(true).open(out).map_err(cannot)?;
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    file.write_all(text.as_bytes()).map_err(cannot)
}
