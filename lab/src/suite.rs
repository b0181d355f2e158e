//! Foreign suites: programs below `lab/suites`, run on the requested servers, versions and clients.
//!
//! A suite prints the begin and the end of each case (`begin NAME`, then `ok NAME` or
//! `not ok NAME: why`; see `lab/suites/kit.py`).
//! Failures are compared with the suite's list for that client, `expected-CLIENT.txt`. A line of
//! the list has a case (`*` at the end matches the rest), the servers and versions where it fails,
//! and the reason. A failure outside the list fails the run, and so does a listed case that passes.

use crate::args::Args;
use crate::client::{Ask, Client, Mount};
use crate::clock;
use crate::guest::quote;
use crate::lab::{Fail, Lab, Res};
use crate::process::sh;
use crate::server::{Kind, Options, Server};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Programs from crates.io that suites run, with the versions for which the lists were made.
const TOOLS: [(&str, &str); 2] = [("fsx", "0.3.2"), ("pjdfstest", "0.2.2")];

/// Longest time of a suite.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// The names of all suites.
pub fn names(lab: &Lab) -> Res<Vec<String>> {
    let mut all = vec![];
    for entry in fs::read_dir(lab.file("suites"))? {
        let entry = entry?;
        if entry.path().join("run.py").exists() {
            all.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    all.sort();
    Ok(all)
}

/// Numbers of passed and failed cases over all runs.
#[derive(Default)]
pub struct Tally {
    /// Cases with the expected result.
    pub passed: usize,
    /// Cases with another result.
    pub failed: usize,
}

impl Tally {
    /// Prints the last line of a test command. Returns the exit code.
    pub fn finish(self) -> ExitCode {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

struct Plan {
    suites: Vec<String>,
    servers: Vec<Kind>,
    versions: Vec<String>,
    clients: Vec<Client>,
    quick: bool,
    verbose: bool,
    relayed: bool,
    only: String,
    sub: String,
    opts: String,
}

/// `suite NAME... [--quick] [--server ganesha,knfsd] [--vers 4.2,4.1,3] [--client hither,kernel]`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    let quick = args.flag("--quick");
    let servers = args.list("--server", if quick { &["ganesha"] } else { &["ganesha", "knfsd"] })?;
    let plan = Plan {
        servers: servers.iter().map(|s| Kind::parse(s)).collect::<Res<_>>()?,
        versions: args.list("--vers", if quick { &["4.2", "3"] } else { &["4.2", "4.1", "3"] })?,
        clients: Client::from_args(lab, args, &["hither"])?,
        verbose: args.flag("--verbose"),
        relayed: args.flag("--relay"),
        only: args.value("--only")?.unwrap_or_default(),
        sub: args.value("--sub")?.unwrap_or_default(),
        opts: args.value("--opts")?.unwrap_or_default(),
        quick,
        suites: chosen(args, &names(lab)?)?,
    };
    install_tools(lab, &plan.suites)?;
    lab.enter()?;
    let mut tally = Tally::default();
    for client in &plan.clients {
        if matches!(client, Client::Local) {
            run_on(lab, &plan, client, Kind::Ganesha, "local", &mut tally);
            continue;
        }
        for kind in &plan.servers {
            Server::new(lab, *kind).start(&Options::default(), true)?;
            for vers in &plan.versions {
                run_on(lab, &plan, client, *kind, vers, &mut tally);
            }
        }
    }
    Ok(tally.finish())
}

/// The remaining words, checked against the list of names. "all" means all names.
pub fn chosen(args: &mut Args, all: &[String]) -> Res<Vec<String>> {
    args.no_more_options()?;
    let words = args.rest();
    if words.is_empty() || words == ["all"] {
        return Ok(all.to_vec());
    }
    match words.iter().find(|w| !all.contains(w)) {
        Some(w) => Err(Fail(format!("no {w:?}: {}", all.join(" ")))),
        None => Ok(words),
    }
}

/// Runs all suites of the plan on one mount.
fn run_on(lab: &Lab, plan: &Plan, client: &Client, kind: Kind, vers: &str, tally: &mut Tally) {
    let server = Server::new(lab, kind).label();
    let label = format!("{server} {vers} {}", client.name());
    let at = if plan.relayed { kind.relayed() } else { kind.direct() };
    let mount = match client.mount(lab, &Ask { sub: &plan.sub, opts: &plan.opts, ..Ask::new(at, vers) }) {
        Ok(m) => m,
        Err(why) => {
            println!("FAILED {label}: cannot mount: {why}");
            tally.failed += plan.suites.len();
            return;
        }
    };
    for suite in &plan.suites {
        let begun = clock::now();
        let run = Run { lab, plan, suite, client: client.name(), kind, server: &server, vers };
        let outcome = run.go(&mount);
        let secs = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(Outcome { ok, expected, wrong }) => {
                tally.passed += ok + expected;
                tally.failed += wrong.len();
                let verdict = if wrong.is_empty() { "passed" } else { "FAILED" };
                println!(
                    "{verdict} {suite} {label}: {ok} ok, {expected} failed as listed, {} wrong, {secs:.1} s",
                    wrong.len()
                );
                for w in wrong {
                    println!("    {w}");
                }
            }
            Err(why) => {
                tally.failed += 1;
                println!("FAILED {suite} {label}: {why} ({secs:.1} s)");
            }
        }
    }
    if let Err(why) = mount.umount() {
        tally.failed += 1;
        println!("FAILED {label}: cannot unmount: {why}");
        mount.force_umount();
    }
}

/// The outcome of a suite's cases.
pub struct Outcome {
    /// Number of passed cases.
    pub ok: usize,
    /// Number of cases that failed as listed.
    pub expected: usize,
    /// Lines of all other cases.
    pub wrong: Vec<String>,
}

struct Run<'a> {
    lab: &'a Lab,
    plan: &'a Plan,
    suite: &'a str,
    client: &'a str,
    kind: Kind,
    /// The server with its release, as the lists name it.
    server: &'a str,
    vers: &'a str,
}

impl Run<'_> {
    fn go(&self, mount: &Mount) -> Res<Outcome> {
        let list = self.expectations()?;
        // A unique name, so that files of an earlier run do not matter.
        let dir = mount.mp.join(format!("{}.{}", self.suite, std::process::id()));
        let tmp = mount.scratch(self.suite)?;
        let q = |p: &Path| quote(&p.display().to_string());
        let program = self.lab.file("suites").join(self.suite).join("run.py");
        let tools = tools_dir(self.lab);
        let mut script = format!(
            "mkdir {d} && cd / && exec /usr/bin/python3 {} {d} --tmp {} --tools {} --server {} --vers {}",
            q(&program),
            q(&tmp),
            q(&tools),
            self.kind.name(),
            self.vers,
            d = q(&dir)
        );
        if self.plan.quick {
            script += " --quick";
        }
        if !self.plan.only.is_empty() {
            script += &format!(" --only {}", quote(&self.plan.only));
        }
        let (mut ok, mut failed, mut rest) = (vec![], vec![], vec![]);
        let mut begun = String::new();
        let code = mount.run(&script, LIMIT, |l| {
            if self.plan.verbose {
                println!("  {l}");
            }
            match (l.strip_prefix("ok "), l.strip_prefix("not ok ")) {
                (Some(name), _) => ok.push(name.to_string()),
                (_, Some(text)) => failed.push(text.to_string()),
                _ => match l.strip_prefix("begin ") {
                    Some(name) => begun = name.to_string(),
                    None => rest.push(l.to_string()),
                },
            }
        })?;
        let clean = format!("rm -rf {} {}", q(&dir), q(&tmp));
        let cleaned = mount.run(&clean, Duration::from_secs(300), |_| ())?;
        self.keep_log(&ok, &failed, &rest)?;
        let tail = rest[rest.len().saturating_sub(9)..].join(" / ");
        match code {
            0 if ok.is_empty() && failed.is_empty() => Err(Fail(format!("no case ran: {tail}"))),
            0 if cleaned != 0 => Err(Fail(format!("{} cannot be removed", dir.display()))),
            0 => Ok(judge(&list, &ok, &failed, self.plan.quick || !self.plan.only.is_empty())),
            124 => Err(Fail(format!("took longer than {} s in case {begun}: {tail}", LIMIT.as_secs()))),
            code => Err(Fail(format!("ended with code {code} in case {begun}: {tail}"))),
        }
    }

    /// Writes the whole output to a log, for the analysis of failures.
    fn keep_log(&self, ok: &[String], failed: &[String], rest: &[String]) -> Res<()> {
        let name = format!("{}-{}-{}-{}.log", self.suite, self.server, self.vers, self.client);
        let mut text = String::new();
        for (head, lines) in [("not ok ", failed), ("ok ", ok), ("", rest)] {
            for l in lines {
                text += &format!("{head}{l}\n");
            }
        }
        Ok(fs::write(self.lab.dir("logs")?.join(name), text)?)
    }

    fn expectations(&self) -> Res<Vec<Expected>> {
        // The same client on an older kernel uses the same list.
        let client = self.client.trim_end_matches("-guest");
        let file = self.lab.file("suites").join(self.suite).join(format!("expected-{client}.txt"));
        match fs::read_to_string(&file) {
            Ok(text) => parse(&text, self.server, self.vers)
                .map_err(|Fail(why)| Fail(format!("{}: {why}", file.display()))),
            Err(_) => Ok(vec![]),
        }
    }
}

/// A line of a list that applies to this server and version.
pub struct Expected {
    /// The name of the case, or its beginning followed by `*`.
    pub case: String,
    /// Whether the case fails in some runs only. A pass is then no fault of the list.
    sometimes: bool,
}

impl Expected {
    fn matches(&self, case: &str) -> bool {
        match self.case.strip_suffix('*') {
            Some(head) => case.starts_with(head),
            None => case == self.case,
        }
    }
}

/// Parses lines of the form `CASE SERVERS VERSIONS REASON`, with `*` for all servers or versions. A
/// server such as `knfsd-6.12` is listed by that name, or as `knfsd` with its other releases. A
/// `?` before the case means that it fails in some runs only. Empty lines and lines that begin with
/// `#` are skipped.
pub fn parse(text: &str, server: &str, vers: &str) -> Res<Vec<Expected>> {
    let mut all = vec![];
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (case, servers, versions) = (words.next(), words.next(), words.next());
        let (Some(case), Some(servers), Some(versions), Some(_reason)) =
            (case, servers, versions, words.next())
        else {
            return Err(Fail(format!("{line:?} is not CASE SERVERS VERSIONS REASON")));
        };
        let lists = |list: &str, what: &str| list == "*" || list.split(',').any(|w| w == what);
        let every_release = server.split('-').next().unwrap_or(server);
        if (lists(servers, server) || lists(servers, every_release)) && lists(versions, vers) {
            let sometimes = case.starts_with('?');
            all.push(Expected { case: case.trim_start_matches('?').to_string(), sometimes });
        }
    }
    Ok(all)
}

/// Compares the results with the list. A `partial` run did not run all cases, so it cannot tell
/// which lines are obsolete.
pub fn judge(list: &[Expected], ok: &[String], failed: &[String], partial: bool) -> Outcome {
    let mut wrong = vec![];
    let mut used = BTreeSet::new();
    let mut expected = 0;
    for text in failed {
        let case = text.split(": ").next().unwrap_or(text);
        match list.iter().position(|e| e.matches(case)) {
            Some(i) => {
                used.insert(i);
                expected += 1;
            }
            None => wrong.push(format!("not ok {text}")),
        }
    }
    for (i, e) in list.iter().enumerate().filter(|(i, e)| !e.sometimes && !used.contains(i)) {
        let ran = ok.iter().any(|c| e.matches(c));
        if ran || !partial {
            let what = if ran { "passes" } else { "did not run" };
            wrong.push(format!("the list expects {} to fail, but it {what} (line {})", e.case, i + 1));
        }
    }
    Outcome { ok: ok.len(), expected, wrong }
}

/// Directory of [`TOOLS`], shared by all laboratories of this tree.
fn tools_dir(lab: &Lab) -> PathBuf {
    lab.run.parent().unwrap_or(&lab.run).join("tools")
}

/// Builds the programs that these suites need, once for all laboratories. Runs outside the
/// namespace, because the namespace has no network.
fn install_tools(lab: &Lab, suites: &[String]) -> Res<()> {
    let dir = tools_dir(lab);
    for (name, version) in TOOLS.iter().filter(|(n, _)| suites.iter().any(|s| s == n)) {
        let stamp = dir.join(format!("{name}-{version}"));
        if stamp.exists() {
            continue;
        }
        println!("building {name} {version} from crates.io...");
        std::fs::create_dir_all(&dir)?;
        sh(&format!(
            "exec 9>'{d}/lock'; flock 9; [ ! -e '{stamp}' ] || exit 0
             cargo install --quiet --locked --root '{d}' --target-dir '{d}/build' {name}@{version}
             touch '{stamp}'",
            stamp = stamp.display(),
            d = dir.display()
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        "# comment\n\nrename::* knfsd * the server says so\na::b * 3,4.1 no such thing\n?c * * the clock\n";

    fn strings(v: &[&str]) -> Vec<String> {
        v.iter().map(|s| s.to_string()).collect()
    }

    #[test]
    fn list_selects_servers_and_versions() {
        let cases = |server, vers| -> Vec<String> {
            parse(LIST, server, vers).unwrap().into_iter().map(|e| e.case).collect()
        };
        assert_eq!(cases("knfsd", "4.2"), ["rename::*", "c"]);
        assert_eq!(cases("ganesha", "3"), ["a::b", "c"]);
        assert_eq!(cases("knfsd-6.12", "4.2"), ["rename::*", "c"], "a list without releases");
        let newer = "a knfsd-6.12 * why\nb knfsd-6.1,hither * why\n";
        let only: Vec<_> = parse(newer, "knfsd-6.12", "3").unwrap().into_iter().map(|e| e.case).collect();
        assert_eq!(only, ["a"]);
        assert!(parse("a::b * *", "knfsd", "3").is_err(), "a line without a reason");
    }

    /// An unlisted failure is wrong. A listed case that passes is wrong, and a case that did not
    /// run is not.
    #[test]
    fn unlisted_failures_are_wrong() {
        let list = parse(LIST, "knfsd", "3").unwrap();
        let good = judge(&list, &strings(&["x"]), &strings(&["rename::y: why", "a::b: why"]), false);
        assert_eq!((good.ok, good.expected, good.wrong.len()), (1, 2, 0));
        let new = judge(&list, &[], &strings(&["rename::y: w", "a::b: w", "new: w"]), false);
        assert_eq!(new.wrong, ["not ok new: w"]);
        let passes = judge(&list, &strings(&["a::b"]), &strings(&["rename::y: w"]), true);
        assert_eq!(passes.wrong.len(), 1);
        let unseen = judge(&list, &strings(&["x"]), &strings(&["rename::y: w"]), true);
        assert_eq!(unseen.wrong.len(), 0, "a part of a suite does not judge the rest of the list");
    }
}
