//! `hither-lab nfs41`: checks that a server answers each operation of NFSv4.1 and 4.2 as RFC 8881
//! says.
//!
//! A case consists of one or a few compounds, and of the statuses that chapters 15 and 18 allow for
//! the last operation. Where the chapters leave a choice, all are allowed. The client is a separate
//! one, neither that of Linux nor that of hither. It sends exactly the compounds of a case. The
//! last cases restart the server once, and check reclaims.
//! `suites/nfs41/expected.txt` lists the cases that a server fails, with reasons. An unlisted
//! failure fails the run, and so does a listed case that passes. A `!` before a case means that the
//! case kills the server. Such a case is not run.

mod bench;
mod copies;
mod files;
mod names;
mod newer;
mod payloads;
mod read_only;
mod recovery;
mod sessions;
mod state;

use crate::args::Args;
use crate::clock;
use crate::lab::{Fail, Lab, Res};
use crate::server::{Kind, Options, READ_ONLY, Server};
use crate::suite::{Expected, Outcome, Tally, judge, parse};
use bench::{Bench, Checked, Target};
use recovery::{Recovery, Step};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

/// Marks a case in the list that kills the server and is not run.
const DEADLY: char = '!';

/// A case: `OPERATION STATUS`, with words that distinguish it from other cases.
pub struct Case {
    name: &'static str,
    check: Box<dyn Fn(&mut Bench) -> Checked>,
}

/// Makes a case.
fn case(name: &'static str, check: impl Fn(&mut Bench) -> Checked + 'static) -> Case {
    Case { name, check: Box::new(check) }
}

/// All cases for a target, without those of a restart. `minor` is 1 or 2.
fn cases(target: &Target, minor: u32) -> Vec<Case> {
    let mut all = sessions::cases();
    all.extend(names::cases());
    all.extend(files::cases());
    all.extend(payloads::cases());
    all.extend(state::cases());
    if minor >= 2 {
        all.extend(newer::cases());
        all.extend(copies::cases());
    }
    if target.has_read_only() {
        all.extend(read_only::cases(minor));
    }
    all
}

/// The run of all cases of a version on a server.
struct Run<'a> {
    title: String,
    minor: u32,
    /// Text in the names of the cases that count. Empty for all cases.
    only: &'a str,
    expected: Vec<Expected>,
    /// Names of the cases that are not run.
    deadly: Vec<String>,
    ok: Vec<String>,
    failed: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(lab: &Lab, server: &str, vers: &str, only: &'a str) -> Res<Self> {
        let minor = match vers {
            "4.1" => 1,
            "4.2" => 2,
            other => return Err(Fail(format!("no version {other}: 4.1 or 4.2"))),
        };
        let list = fs::read_to_string(lab.file("suites/nfs41/expected.txt")).unwrap_or_default();
        let (deadly, expected): (Vec<_>, Vec<_>) =
            parse(&list, server, vers)?.into_iter().partition(|e| e.case.starts_with(DEADLY));
        let deadly = deadly.iter().map(|e| e.case[1..].to_string()).collect();
        let title = format!("{server} {vers}");
        Ok(Self { title, minor, only, expected, deadly, ok: vec![], failed: vec![] })
    }

    fn is_deadly(&self, name: &str) -> bool {
        self.deadly.contains(&name.replace(' ', "_"))
    }

    /// Notes the result of a case, if it counts.
    fn note(&mut self, name: &str, checked: Checked) {
        if !name.contains(self.only) {
            return;
        }
        let name = name.replace(' ', "_");
        match checked {
            Ok(()) => self.ok.push(name),
            Err(why) => self.failed.push(format!("{name}: {why}")),
        }
    }

    fn cases(&mut self, target: &Target) {
        let minor = self.minor;
        for case in cases(target, minor) {
            if case.name.contains(self.only) && !self.is_deadly(case.name) {
                // Each case has its own session, so that no case affects another.
                let checked = Bench::new(target, minor).and_then(|mut bench| (case.check)(&mut bench));
                self.note(case.name, checked);
            }
        }
    }

    /// Takes steps after a restart. Later steps need all of them, so all are taken.
    fn steps(&mut self, recovery: &mut Recovery, steps: Vec<Step>) {
        for (name, check) in steps {
            if !self.is_deadly(name) {
                let checked = check(recovery);
                self.note(name, checked);
            }
        }
    }

    /// Whether any step after a restart counts.
    fn needs_restart(&self) -> bool {
        let mut steps = recovery::in_grace(self.minor).into_iter().chain(recovery::after_grace());
        steps.any(|(name, _)| name.contains(self.only))
    }

    fn report(&self, verbose: bool, tally: &mut Tally) {
        if verbose {
            self.ok.iter().for_each(|name| println!("  ok {name}"));
            self.failed.iter().for_each(|text| println!("  not ok {text}"));
        }
        let Outcome { ok, expected, wrong } =
            judge(&self.expected, &self.ok, &self.failed, !self.only.is_empty());
        let verdict = if wrong.is_empty() { "passed" } else { "FAILED" };
        let (title, faults) = (&self.title, wrong.len());
        println!("{verdict} nfs41 {title}: {ok} ok, {expected} failed as listed, {faults} wrong");
        wrong.iter().for_each(|w| println!("    {w}"));
        tally.passed += ok + expected;
        tally.failed += wrong.len();
    }
}

/// Runs all cases of all versions on a server of the laboratory.
fn on_server(server: &Server<'_>, kind: Kind, runs: &mut [Run<'_>]) -> Res<()> {
    let at = kind.direct();
    let target = Target::parse(&format!("{}:{}{}", at.ip, at.port, at.export("4.2")))?;
    let target = if server.export_read_only()? { target.with_read_only(READ_ONLY) } else { target };
    let sees = || Bench::new(&target, 1).and_then(|mut bench| bench.read_only()).is_ok();
    if target.has_read_only() && !clock::wait_until(Duration::from_secs(10), sees) {
        return Err(Fail(format!("{} has no read-only export", kind.name())));
    }
    runs.iter_mut().for_each(|run| run.cases(&target));
    server.unexport_read_only()?;
    restart(server, &target, runs)
}

/// Restarts the server once for all versions, and takes the steps after that.
fn restart(server: &Server<'_>, target: &Target, runs: &mut [Run<'_>]) -> Res<()> {
    let mut all = vec![];
    for run in runs.iter_mut().filter(|run| run.needs_restart()) {
        let recovery = Recovery::prepare(target, run.minor);
        all.push((recovery.map_err(|why| Fail(format!("{}: {why}", run.title)))?, run));
    }
    if all.is_empty() {
        return Ok(());
    }
    server.restart()?;
    // The sockets of a killed process may outlive it for a moment.
    if !clock::wait_until(Duration::from_secs(20), || target.answers()) {
        return Err(Fail("the server does not answer after its restart".into()));
    }
    for (recovery, run) in &mut all {
        run.steps(recovery, recovery::in_grace(run.minor));
    }
    for (recovery, run) in &mut all {
        run.steps(recovery, recovery::after_grace());
    }
    Ok(())
}

/// `nfs41 [--server hither,ganesha,knfsd] [--vers 4.2,4.1] [--only TEXT] [--verbose] [--at
/// ADDRESS:PORT/PATH]`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    let servers = args.list("--server", &["hither"])?;
    let versions = args.list("--vers", &["4.2", "4.1"])?;
    let only = args.value("--only")?.unwrap_or_default();
    let verbose = args.flag("--verbose");
    let at = args.value("--at")?;
    args.no_more_options()?;
    let runs = |server: &str| -> Res<Vec<Run<'_>>> {
        versions.iter().map(|vers| Run::new(lab, server, vers, &only)).collect()
    };
    let mut tally = Tally::default();
    if let Some(at) = at {
        let target = Target::parse(&at)?;
        for mut run in runs("other")? {
            run.cases(&target);
            run.report(verbose, &mut tally);
        }
        return Ok(tally.finish());
    }
    lab.enter()?;
    for name in &servers {
        let kind = Kind::parse(name)?;
        let server = Server::new(lab, kind);
        server.start(&Options::default(), true)?;
        let mut runs = runs(&server.label())?;
        on_server(&server, kind, &mut runs)?;
        runs.iter().for_each(|run| run.report(verbose, &mut tally));
    }
    Ok(tally.finish())
}
