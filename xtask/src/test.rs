//! `cargo xtask test`: the workspace's tests, several programs side by side, with failures
//! repeated.
//!
//! Cargo runs one test program after the other. Most tests of mounts wait for a server, a kill or a
//! timeout, and each has its own network and mount name space. So [`SIDE_BY_SIDE`] programs run at
//! once, the longest first.
//!
//! A shared machine may stand still for seconds. A test that fails, and then passes three times
//! alone, is reported as unsteady. An unsteady test is a fault to fix, and not a reason to refuse a
//! change. This does not hold for a test that keeps data safe ([`GATES`]), for a program that died,
//! or for more than [`UNSTEADY_MAX`] tests.

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// Packages and test programs that keep data safe. A single failure in one of them fails the run.
const GATES: [&str; 18] = [
    "-p hither-cache ",
    "-p hither-localfs ",
    "-p hither-writeback ",
    "-p hither-lease ",
    "-p hither-vfs ",
    "-p hither-fuse ",
    "-p hither --bin hither ",
    "-p hither --test campaign ",
    "-p hither --test crashes ",
    "-p hither --test crashes_write ",
    "-p hither --test histories ",
    "-p hither --test delayed ",
    "-p hither --test delegations ",
    "-p hither --test gateway ",
    "-p hither --test gateway_raw ",
    "-p hither --test gateway_state ",
    "-p hither --test semantics ",
    "-p hither --test replaced_lengths ",
];
/// Programs that take the longest, in this order. The others follow.
const LONGEST: [&str; 16] = [
    "-p hither --test nqnfs",
    "-p hither --test replacing",
    "-p hither --test gateway",
    "-p hither --test semantics",
    "-p hither --test strict",
    "-p hither --test delegations",
    "-p hither --test subtree",
    "-p hither --test programs",
    "-p hither --test gateway_state",
    "-p hither --test kerberos",
    "-p hither --test steering",
    "-p hither --test stat_times",
    "-p hither --test costs",
    "-p hither-writeback --lib",
    "-p hither --test tls_mount",
    "-p hither-cache --lib",
];
/// The variable with the seed of random tests, and its value for a plain `cargo test`, from
/// `.cargo/config.toml`.
const SEED: &str = "PROPTEST_RNG_SEED";
const PLAIN_SEED: &str = "20";
const SECONDS_OF_A_DAY: u64 = 86_400;
/// Number of test programs that run at once.
const SIDE_BY_SIDE: usize = 4;
/// Most unsteady tests of a successful run.
const UNSTEADY_MAX: usize = 3;
/// Number of times that an unsteady test has to pass alone.
const REPEATS: usize = 3;

/// A test program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// The arguments with which cargo would run the program: `-p hither --test mounts`.
    label: String,
    /// The file.
    file: PathBuf,
    /// The directory of the program's package, in which cargo would run the program.
    directory: PathBuf,
}

impl Program {
    /// The test program in a line of `cargo test --no-run --message-format=json`, if the line
    /// describes one.
    fn built(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let file = message["executable"].as_str()?.into();
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        // Either `path+file:///…/crates/rpc#hither-rpc@0.1.0` or `path+file:///…/xtask#0.1.0`.
        let id = message["package_id"].as_str()?;
        let (path, fragment) = id.rsplit_once('#')?;
        let package = match fragment.split_once('@') {
            Some((name, _)) => name,
            None => path.rsplit('/').next()?,
        };
        let target = &message["target"];
        let name = target["name"].as_str()?;
        let kind = match target["kind"][0].as_str()? {
            kind @ ("test" | "bin" | "example" | "bench") => format!("--{kind} {name}"),
            _ => "--lib".into(),
        };
        Some(Self { label: format!("-p {package} {kind}"), file, directory })
    }

    /// The command that runs the program. Tests of the binary need root and nfs-ganesha, which a
    /// plain `cargo test` may lack. They are marked as ignored, and this command includes them.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command.stdin(Stdio::null()).env(SEED, seed());
        if self.label.starts_with("-p hither ") {
            command.arg("--include-ignored");
        }
        command
    }

    /// Position of the program in the order of starts.
    fn place(&self) -> usize {
        LONGEST.iter().position(|longest| *longest == self.label).unwrap_or(LONGEST.len())
    }
}

/// How a run of a test program ended.
#[derive(Debug)]
struct Ended {
    program: Program,
    /// The names of its failed tests.
    failed: Vec<String>,
    /// Whether the program failed without naming a failed test.
    died: bool,
}

/// The names of the failed tests in the output of a test program.
fn failed_tests(output: &str) -> Vec<String> {
    let failed = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.strip_suffix(" - should panic").unwrap_or(name).to_owned())
    };
    output.lines().filter_map(failed).collect()
}

/// Each failed test with its program, when all of them may be repeated. Otherwise the reason why
/// they may not.
fn repeatable(ended: Vec<Ended>) -> Result<Vec<(Program, String)>, String> {
    if let Some(died) = ended.iter().find(|e| e.died) {
        return Err(format!("{} died", died.program.label));
    }
    let each = |e: Ended| e.failed.into_iter().map(move |name| (e.program.clone(), name));
    let all: Vec<_> = ended.into_iter().flat_map(each).collect();
    let gate = |(program, _): &&(Program, String)| {
        GATES.iter().any(|gate| format!("{} ", program.label).starts_with(gate))
    };
    if let Some((program, name)) = all.iter().find(gate) {
        return Err(format!("{name} ({}) keeps data safe", program.label));
    }
    if all.len() > UNSTEADY_MAX {
        return Err(format!("{} tests failed", all.len()));
    }
    Ok(all)
}

/// Runs the tests of `cargo test ARGS...`. Arguments after `--` are passed to each test program.
/// `--workspace` also tests the examples in documentation.
pub fn run(args: &[String]) -> ExitCode {
    match tests(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask test: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The seed of random tests: a given one, or the number of the day. So each day tries other cases,
/// and a failure can be repeated.
#[expect(clippy::disallowed_methods, reason = "the date of a run, not logic")]
fn seed() -> String {
    let day = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (now.as_secs() / SECONDS_OF_A_DAY).to_string()
    };
    std::env::var(SEED).ok().filter(|seed| seed != PLAIN_SEED).unwrap_or_else(day)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn cannot(error: std::io::Error) -> String {
    format!("a program cannot be run: {error}")
}

fn tests(args: &[String]) -> Result<(), String> {
    let (args, words) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    let programs = build(args)?;
    println!("random tests: {SEED}={} repeats their cases", seed());
    // Compiles the examples in documentation while other tests wait.
    let mut examples = cargo();
    examples.args(["test", "--doc", "--quiet"]).args(args).stdin(Stdio::null());
    let (ended, examples) = std::thread::scope(|scope| {
        let whole = args.iter().any(|arg| arg == "--workspace");
        let examples = scope.spawn(move || whole.then(|| examples.output()).transpose());
        let ended = side_by_side(programs, words);
        (ended, examples.join())
    });
    let ended = ended?;
    match examples {
        Ok(Ok(Some(output))) if !output.status.success() => {
            return Err(format!("examples in documentation fail:\n{}", text(&output)));
        }
        Ok(Ok(_)) => (),
        Ok(Err(error)) => return Err(cannot(error)),
        Err(_) => return Err("the run of the examples panicked".into()),
    }
    let failed = repeatable(ended).map_err(|why| format!("failed, and not repeated: {why}"))?;
    for (program, name) in &failed {
        for n in 1..=REPEATS {
            let mut again = program.command();
            let output = again.args(words).args(["--exact", name]).output();
            let output = text(&output.map_err(cannot)?);
            if !output.contains("1 passed; 0 failed") {
                output.lines().for_each(|line| println!("  {line}"));
                return Err(format!("{name} ({}) fails alone as well, the {n}. time", program.label));
            }
        }
    }
    for (Program { label, .. }, name) in failed {
        println!("unsteady: {name} ({label}): failed once, passed {REPEATS} times alone; to be mended");
    }
    Ok(())
}

/// Builds the test programs.
fn build(args: &[String]) -> Result<Vec<Program>, String> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--message-format=json-render-diagnostics"]).args(args);
    let output = command.stderr(Stdio::inherit()).output().map_err(cannot)?;
    if !output.status.success() {
        return Err("the tests do not compile".into());
    }
    let mut programs: Vec<_> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::built).collect();
    programs.sort_by_key(Program::place);
    if programs.is_empty() { Err("no tests were found".into()) } else { Ok(programs) }
}

/// Runs the programs, and prints the output of each when it ends. Returns the failed programs.
fn side_by_side(programs: Vec<Program>, words: &[String]) -> Result<Vec<Ended>, String> {
    let waiting = Mutex::new(VecDeque::from(programs));
    let ended = Mutex::new(Vec::new());
    let work = || -> Result<(), String> {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(program) = next else { return Ok(()) };
            #[expect(clippy::disallowed_methods, reason = "tells how long a program took")]
            let begin = Instant::now();
            let output = program.command().args(words).output().map_err(cannot)?;
            let told = text(&output);
            let seconds = begin.elapsed().as_secs();
            let shown = format!("     Running {} ({seconds} s)\n{told}", program.label);
            let mut out = std::io::stdout().lock();
            out.write_all(shown.as_bytes()).and_then(|()| out.flush()).map_err(cannot)?;
            if !output.status.success() {
                let failed = failed_tests(&told);
                let died = failed.is_empty();
                let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.push(Ended { program, failed, died });
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..SIDE_BY_SIDE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".into())))
    })?;
    Ok(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The standard output and standard error of a program.
fn text(output: &std::process::Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(label: &str) -> Program {
        Program { label: label.into(), file: "x".into(), directory: "/".into() }
    }

    fn ended(label: &str, failed: &[&str]) -> Ended {
        let failed: Vec<_> = failed.iter().map(|name| (*name).to_owned()).collect();
        Ended { program: program(label), died: failed.is_empty(), failed }
    }

    #[test]
    fn program_labels_match_cargo() {
        let line = |id: &str, kind: &str, name: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"path+file:///x/{id}","manifest_path":"/x/y/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":true}},"executable":"/t/a"}}"#
            )
        };
        let label = |id, kind, name| Program::built(&line(id, kind, name)).map(|p| p.label);
        assert_eq!(
            label("crates/rpc#hither-rpc@0.1.0", "lib", "rpc").as_deref(),
            Some("-p hither-rpc --lib")
        );
        let want = "-p hither --test top";
        assert_eq!(label("crates/hither#0.1.0", "test", "top").as_deref(), Some(want));
        assert_eq!(label("xtask#0.1.0", "bin", "xtask").as_deref(), Some("-p xtask --bin xtask"));
        let not_built = line("xtask#0.1.0", "bin", "xtask").replace("\"/t/a\"", "null");
        assert_eq!(Program::built(&not_built), None);
    }

    #[test]
    fn failed_tests_are_found() {
        let output = "test a::b ... ok\ntest c ... FAILED\ntest d - should panic ... FAILED\n";
        assert_eq!(failed_tests(output), ["c", "d"]);
    }

    #[test]
    fn data_safety_tests_are_never_repeated() {
        for gate in ["-p hither-writeback --lib", "-p hither --test crashes", "-p hither --test histories"] {
            assert!(repeatable(vec![ended(gate, &["a"])]).is_err(), "{gate}");
        }
        let top = program("-p hither --test top");
        assert_eq!(repeatable(vec![ended(&top.label, &["a"])]), Ok(vec![(top, "a".into())]));
    }

    /// A program that died, or more failures than [`UNSTEADY_MAX`], fail the run without a
    /// repetition.
    #[test]
    fn dead_programs_are_failures() {
        assert!(repeatable(vec![ended("-p hither --test top", &[])]).is_err());
        assert!(repeatable(vec![ended("-p hither --test top", &["a", "b", "c", "d"])]).is_err());
        assert_eq!(repeatable(Vec::new()), Ok(Vec::new()));
    }
}
