//! `cargo xtask test`: cargo's tests, and a second look at what failed.
//!
//! Thousands of tests with real daemons, kills and clocks run on machines that stand still for seconds. One that fails, and passes
//! three times when it is repeated alone, is reported as unsteady, which is a fault to mend, and no reason to refuse a change.
//! Never so a test of what must not be lost or wrong ([`GATES`]), a test program that died, or more than [`UNSTEADY_MOST`] tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode};

/// Packages and test programs that keep data safe: what fails once there has failed.
const GATES: [&str; 10] = [
    "-p hither-store ",
    "-p hither-lease ",
    "-p hither-vfs ",
    "-p hither --test campaign ",
    "-p hither --test crashes ",
    "-p hither --test crashes_write ",
    "-p hither --test histories ",
    "-p hither --test delayed ",
    "-p hither --test delegations ",
    "-p hither --test semantics ",
];
/// More than this many at once are no bad luck.
const UNSTEADY_MOST: usize = 3;
/// How often a test has to pass.
const REPEATS: usize = 3;

/// What a run of cargo told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    /// Failed tests of each program that has some, in order.
    failed: Vec<Vec<String>>,
    /// How cargo would run each program that failed again, in order: `-p hither --test mounts`.
    programs: Vec<String>,
    /// Whether failed tests of the program that runs now have a place.
    begun: bool,
}

impl Told {
    fn line(&mut self, line: &str) {
        let start = line.trim_start();
        if start.starts_with("Running ") || start.starts_with("Doc-tests ") {
            self.begun = false;
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            if !self.begun {
                self.failed.push(Vec::new());
                self.begun = true;
            }
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            self.failed.last_mut().into_iter().for_each(|names| names.push(name.into()));
        } else if let Some(program) = start.strip_prefix("`-p ").and_then(|p| p.strip_suffix('`')) {
            self.programs.push(format!("-p {program}"));
        }
    }

    /// Each failed test with its program, when all of them may be repeated; otherwise why not.
    fn repeatable(self) -> Result<Vec<(String, String)>, String> {
        if self.programs.is_empty() || self.programs.len() != self.failed.len() {
            return Err("something else than a test failed".into());
        }
        let each = |(program, names): (String, Vec<String>)| {
            names.into_iter().map(move |name| (program.clone(), name))
        };
        let all: Vec<_> = self.programs.into_iter().zip(self.failed).flat_map(each).collect();
        let gate =
            |(program, _): &&(String, String)| GATES.iter().any(|g| format!("{program} ").starts_with(g));
        if let Some((program, name)) = all.iter().find(gate) {
            return Err(format!("{name} ({program}) keeps data safe"));
        }
        if all.len() > UNSTEADY_MOST {
            return Err(format!("{} tests failed", all.len()));
        }
        match all.iter().find(|(program, _)| program.ends_with("--doc")) {
            Some((_, name)) => Err(format!("{name} is an example")),
            None => Ok(all),
        }
    }
}

/// Runs `cargo test --no-fail-fast` with these arguments.
pub fn run(args: &[String]) -> ExitCode {
    match tests(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask test: {why}");
            ExitCode::FAILURE
        }
    }
}

fn tests(args: &[String]) -> Result<(), String> {
    let cannot = |e: std::io::Error| format!("cargo cannot be run: {e}");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    // One pipe for both: which program a line belongs to is told by the other stream.
    let (reader, writer) = std::io::pipe().map_err(cannot)?;
    let mut command = Command::new(&cargo);
    command.args(["test", "--no-fail-fast"]).args(args);
    command.stdout(writer.try_clone().map_err(cannot)?).stderr(writer);
    let mut child = command.spawn().map_err(cannot)?;
    drop(command);
    let (mut told, mut out) = (Told::default(), std::io::stdout().lock());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(cannot)?;
        let shown = out.write_all(&line).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
        shown.map_err(cannot)?;
        told.line(&String::from_utf8_lossy(&line));
    }
    if child.wait().map_err(cannot)?.success() {
        return Ok(());
    }
    let failed = told.repeatable().map_err(|why| format!("failed, and not repeated: {why}"))?;
    for (program, name) in &failed {
        for n in 1..=REPEATS {
            let again = Command::new(&cargo)
                .arg("test")
                .args(program.split(' '))
                .args(["--", "--include-ignored", "--exact", name])
                .output()
                .map_err(cannot)?;
            let text = String::from_utf8_lossy(&again.stdout);
            if !again.status.success() || !text.contains("1 passed; 0 failed") {
                text.lines().for_each(|line| println!("  {line}"));
                return Err(format!("{name} ({program}) fails alone as well, the {n}. time"));
            }
        }
    }
    for (program, name) in failed {
        println!(
            "unsteady: {name} ({program}): failed once, passed {REPEATS} times alone; it is to be mended"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Told {
        let mut told = Told::default();
        text.lines().for_each(|line| told.line(line));
        told
    }

    fn program(path: &str, failed: &[&str]) -> String {
        let lines: String = failed.iter().map(|name| format!("test {name} ... FAILED\n")).collect();
        format!("     Running {path} (target/debug/deps/x-1)\ntest good ... ok\n{lines}")
    }

    #[test]
    fn each_failed_test_has_its_program() {
        let text = program("unittests src/lib.rs", &["a::b", "c"])
            + &program("tests/fine.rs", &[])
            + &program("tests/top.rs", &["d - should panic"])
            + "error: 2 targets failed:\n    `-p hither-rpc --lib`\n    `-p hither --test top`\n";
        let want =
            [("-p hither-rpc --lib", "a::b"), ("-p hither-rpc --lib", "c"), ("-p hither --test top", "d")];
        let want: Vec<_> = want.iter().map(|(p, n)| (p.to_string(), n.to_string())).collect();
        assert_eq!(told(&text).repeatable(), Ok(want));
    }

    #[test]
    fn what_keeps_data_safe_is_never_repeated() {
        for gate in ["-p hither --test crashes", "-p hither-store --lib", "-p hither --test histories"] {
            let text = program("tests/x.rs", &["a"]) + &format!("error: 1 target failed:\n    `{gate}`\n");
            assert!(told(&text).repeatable().is_err(), "{gate}");
        }
        let top = program("tests/x.rs", &["a"]) + "    `-p hither --test top`\n";
        assert!(told(&top).repeatable().is_ok());
    }

    #[test]
    fn a_dead_program_and_many_failures_are_failures() {
        let dead = program("tests/x.rs", &[]) + "    `-p hither --test top`\n";
        assert!(told(&dead).repeatable().is_err());
        assert!(told("error: could not compile `hither`\n").repeatable().is_err());
        let many = program("tests/x.rs", &["a", "b", "c", "d"]) + "    `-p hither --test top`\n";
        assert!(told(&many).repeatable().is_err());
    }
}
