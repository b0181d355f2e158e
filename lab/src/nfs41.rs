//! `hither-lab nfs41`: checks that a server answers each operation of NFSv4.1 and 4.2 as RFC 8881
//! says.
//!
//! A case consists of one or a few compounds, and of the statuses that chapters 15 and 18 allow for
//! the last operation. Where the chapters leave a choice, all are allowed. The client is a separate
//! one, neither that of Linux nor that of hither. It sends exactly the compounds of a case.
//! `suites/nfs41/expected.txt` lists the cases that a server fails, with reasons. An unlisted
//! failure fails the run, and so does a listed case that passes. A `!` before a case means that the
//! case kills the server. Such a case is not run.

mod bench;
mod files;
mod names;
mod newer;
mod payloads;
mod sessions;
mod state;

use crate::args::Args;
use crate::lab::{Fail, Lab, Res};
use crate::server::{Kind, Options, Server};
use crate::suite::{Outcome, Tally, judge, parse};
use bench::{Bench, Checked, Target};
use std::fs;
use std::process::ExitCode;

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

/// All cases; `minor` is 1 or 2.
fn cases(minor: u32) -> Vec<Case> {
    let mut all = sessions::cases();
    all.extend(names::cases());
    all.extend(files::cases());
    all.extend(payloads::cases());
    all.extend(state::cases());
    if minor >= 2 {
        all.extend(newer::cases());
    }
    all
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
    let minor = |vers: &str| match vers {
        "4.1" => Ok(1),
        "4.2" => Ok(2),
        other => Err(Fail(format!("no version {other}: 4.1 or 4.2"))),
    };
    let mut tally = Tally::default();
    let mut run = |server: &str, target: &Target, vers: &str| -> Res<()> {
        let list = fs::read_to_string(lab.file("suites/nfs41/expected.txt")).unwrap_or_default();
        let (deadly, list): (Vec<_>, Vec<_>) =
            parse(&list, server, vers)?.into_iter().partition(|e| e.case.starts_with(DEADLY));
        let is_deadly = |name: &str| deadly.iter().any(|e| e.case[1..] == name.replace(' ', "_"));
        let (mut ok, mut failed) = (Vec::new(), Vec::new());
        let all = cases(minor(vers)?);
        for case in all.iter().filter(|case| case.name.contains(&only) && !is_deadly(case.name)) {
            // Each case has its own session, so that no case affects another.
            let checked = Bench::new(target, minor(vers)?).and_then(|mut bench| (case.check)(&mut bench));
            let name = case.name.replace(' ', "_");
            match checked {
                Ok(()) => ok.push(name),
                Err(why) => failed.push(format!("{name}: {why}")),
            }
        }
        if verbose {
            ok.iter().for_each(|name| println!("  ok {name}"));
            failed.iter().for_each(|text| println!("  not ok {text}"));
        }
        let Outcome { ok, expected, wrong } = judge(&list, &ok, &failed, !only.is_empty());
        let verdict = if wrong.is_empty() { "passed" } else { "FAILED" };
        println!(
            "{verdict} nfs41 {server} {vers}: {ok} ok, {expected} failed as listed, {} wrong",
            wrong.len()
        );
        wrong.iter().for_each(|w| println!("    {w}"));
        tally.passed += ok + expected;
        tally.failed += wrong.len();
        Ok(())
    };
    if let Some(at) = at {
        let target = Target::parse(&at)?;
        versions.iter().try_for_each(|vers| run("other", &target, vers))?;
        return Ok(tally.finish());
    }
    lab.enter()?;
    for name in &servers {
        let kind = Kind::parse(name)?;
        let server = Server::new(lab, kind);
        server.start(&Options::default(), true)?;
        let at = kind.direct();
        let target = Target::parse(&format!("{}:{}{}", at.ip, at.port, at.export("4.2")))?;
        versions.iter().try_for_each(|vers| run(&server.label(), &target, vers))?;
    }
    Ok(tally.finish())
}
