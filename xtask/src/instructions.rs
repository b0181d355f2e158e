//! `cargo xtask instructions`: the instructions of hot paths, compared with the recorded numbers.
//!
//! gungraun runs each benchmark once in valgrind. Its runner is a program of its own, which is
//! installed into `target/tools`. `--renew` records the numbers in bench/trend/instructions.json.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::Value;

/// The recorded numbers.
pub const RECORDED: &str = "bench/trend/instructions.json";
/// Directory with the reports of the benchmarks.
const REPORTS: &str = "target/gungraun";
const TOOLS: &str = "target/tools";
/// The crates with a benchmark `instructions`.
const CRATES: [&str; 1] = ["hither-cache"];
/// Instructions above the recorded number that are no fault: this part of it. The seeds of hash
/// tables differ from run to run.
const TOLERANCE_PART: u64 = 10;

/// Instructions by benchmark.
pub type Counts = BTreeMap<String, u64>;

/// Measures, and compares or records.
pub fn run(args: &[String]) -> ExitCode {
    match measure() {
        Err(e) => {
            eprintln!("cargo xtask instructions: {e}");
            ExitCode::FAILURE
        }
        Ok(counts) if args.iter().any(|arg| arg == "--renew") => match record(&counts) {
            Err(e) => {
                eprintln!("{RECORDED}: {e}");
                ExitCode::FAILURE
            }
            Ok(()) => ExitCode::SUCCESS,
        },
        Ok(counts) => compare(&counts, &recorded()),
    }
}

/// The recorded numbers; none when there is no file of them.
pub fn recorded() -> Counts {
    let text = fs::read(RECORDED).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn record(counts: &Counts) -> Result<(), Box<dyn Error>> {
    Ok(fs::write(RECORDED, serde_json::to_string_pretty(counts)? + "\n")?)
}

fn compare(counts: &Counts, recorded: &Counts) -> ExitCode {
    let is_more = |name: &String, now: u64| {
        recorded.get(name).is_none_or(|&before| now > before + before / TOLERANCE_PART)
    };
    let mut failed = 0;
    for (name, &now) in counts {
        let before = recorded.get(name).map_or("nothing".into(), u64::to_string);
        println!("{name}: {now} instructions, recorded {before}");
        failed += usize::from(is_more(name, now));
    }
    for name in recorded.keys().filter(|name| !counts.contains_key(*name)) {
        println!("{name}: recorded, and not measured");
        failed += 1;
    }
    println!("{} passed, {failed} failed", counts.len().saturating_sub(failed));
    if failed > 0 || counts.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn measure() -> Result<Counts, Box<dyn Error>> {
    let runner = runner()?;
    if Path::new(REPORTS).exists() {
        fs::remove_dir_all(REPORTS)?;
    }
    let mut cargo = cargo();
    cargo.args(["bench", "--quiet", "--bench", "instructions"]);
    cargo.args(CRATES.iter().flat_map(|name| ["-p", name]));
    cargo.env("GUNGRAUN_RUNNER", runner).env("GUNGRAUN_SAVE_SUMMARY", "json");
    succeed(&mut cargo)?;
    let mut counts = Counts::new();
    read_reports(Path::new(REPORTS), &mut counts)?;
    Ok(counts)
}

/// The runner in the version that the workspace's manifest pins.
fn runner() -> Result<std::path::PathBuf, Box<dyn Error>> {
    let manifest = fs::read_to_string("Cargo.toml")?;
    let pinned = manifest.lines().find_map(|line| line.strip_prefix("gungraun = \"="));
    let version = pinned.and_then(|rest| rest.strip_suffix('"')).ok_or("Cargo.toml pins no gungraun")?;
    let program = Path::new(TOOLS).join("bin/gungraun-runner");
    let mut install = cargo();
    // Does nothing when that version is there.
    install.args(["install", "--quiet", "--locked", "--root", TOOLS, "--version", version]);
    succeed(install.arg("gungraun-runner"))?;
    Ok(fs::canonicalize(program)?)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn succeed(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

fn read_reports(dir: &Path, counts: &mut Counts) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            read_reports(&path, counts)?;
        } else if path.ends_with("summary.json") {
            let report: Value = serde_json::from_slice(&fs::read(&path)?)?;
            let (name, count) = count_of(&report).ok_or_else(|| format!("{}: no count", path.display()))?;
            counts.insert(name, count);
        }
    }
    Ok(())
}

fn count_of(report: &Value) -> Option<(String, u64)> {
    let name = format!("{}.{}", report["function_name"].as_str()?, report["id"].as_str()?);
    let count = report.pointer("/profiles/0/data/total/metrics/Ir/values/new")?;
    Some((name, count.as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(&str, u64)]) -> Counts {
        all.iter().map(|(name, count)| (name.to_string(), *count)).collect()
    }

    /// More instructions than the tolerance, a new benchmark and a lost benchmark are faults.
    #[test]
    fn more_instructions_fail() {
        let recorded = counts(&[("walk", 1000), ("read", 50)]);
        let fails = |all: &[(&str, u64)]| compare(&counts(all), &recorded) != ExitCode::SUCCESS;
        assert!(!fails(&[("walk", 1100), ("read", 10)]));
        assert!(fails(&[("walk", 1101), ("read", 50)]));
        assert!(fails(&[("walk", 1000)]));
        assert!(fails(&[("walk", 1000), ("read", 50), ("new", 1)]));
        assert!(fails(&[]));
    }

    #[test]
    fn report_is_read() {
        let report = serde_json::json!({
            "function_name": "walk", "id": "depth_4",
            "profiles": [{ "data": { "total": { "metrics": { "Ir": { "values": { "new": 7 } } } } } }],
        });
        assert_eq!(count_of(&report), Some(("walk.depth_4".into(), 7)));
        assert_eq!(count_of(&Value::Null), None);
    }
}
