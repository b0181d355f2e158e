//! Fault scenarios: the behaviour of a client when the server dies, freezes or comes back, or when
//! the cable is cut.
//!
//! Each scenario is one file of `lab/scenarios`. Its doc comment is the promise that it checks. It
//! lists the versions to which it applies. It gets a [`Stage`] (a running server, a client, a relay
//! between them) and causes the faults there.

mod stage;

#[path = "../scenarios/break_connection.rs"]
mod break_connection;
#[path = "../scenarios/cut.rs"]
mod cut;
#[path = "../scenarios/cut_long.rs"]
mod cut_long;
#[path = "../scenarios/freeze.rs"]
mod freeze;
#[path = "../scenarios/full.rs"]
mod full;
#[path = "../scenarios/histories.rs"]
mod histories;
#[path = "../scenarios/interrupt.rs"]
mod interrupt;
#[path = "../scenarios/isolation.rs"]
mod isolation;
#[path = "../scenarios/locks.rs"]
mod locks;
#[path = "../scenarios/power.rs"]
mod power;
#[path = "../scenarios/restart.rs"]
mod restart;
#[path = "../scenarios/soft.rs"]
mod soft;
#[path = "../scenarios/umount_dead.rs"]
mod umount_dead;

use crate::args::Args;
use crate::client::Client;
use crate::clock;
use crate::lab::{Lab, Res};
use crate::server::{Kind, Options, Server};
use crate::suite::{Tally, chosen};
use stage::Stage;
use std::process::ExitCode;

/// A scenario.
pub struct Scenario {
    /// Name on the command line.
    name: &'static str,
    /// Protocol versions to which the scenario applies.
    versions: &'static [&'static str],
    /// Whether `--quick` includes the scenario.
    quick: bool,
    /// The events of the scenario.
    play: fn(&Stage<'_>) -> Res<()>,
}

const ALL: [&Scenario; 13] = [
    &restart::SCENARIO,
    &freeze::SCENARIO,
    &cut::SCENARIO,
    &cut_long::SCENARIO,
    &break_connection::SCENARIO,
    &locks::SCENARIO,
    &interrupt::SCENARIO,
    &umount_dead::SCENARIO,
    &isolation::SCENARIO,
    &soft::SCENARIO,
    &full::SCENARIO,
    &power::SCENARIO,
    &histories::SCENARIO,
];

/// Every version, for scenarios without special needs.
const EVERY: &[&str] = &["4.2", "4.1", "3"];

/// The names of all scenarios.
pub fn names(_lab: &Lab) -> Res<Vec<String>> {
    Ok(ALL.iter().map(|s| s.name.to_string()).collect())
}

/// `scenario NAME... [--quick] [--server ganesha,knfsd] [--vers 4.2,3] [--client hither,kernel]`.
pub fn main(lab: &Lab, args: &mut Args) -> Res<ExitCode> {
    let quick = args.flag("--quick");
    let verbose = args.flag("--verbose");
    let servers = args.list("--server", if quick { &["ganesha"] } else { &["ganesha", "knfsd"] })?;
    let servers: Vec<Kind> = servers.iter().map(|s| Kind::parse(s)).collect::<Res<_>>()?;
    let versions = args.list("--vers", if quick { &["4.2"] } else { &["4.2", "3"] })?;
    let clients = Client::from_args(lab, args, &["hither"])?;
    let every = args.words_left() == 0;
    let names = chosen(args, &names(lab)?)?;
    lab.enter()?;
    let mut tally = Tally::default();
    for client in &clients {
        for kind in &servers {
            for vers in &versions {
                for s in ALL.iter().filter(|s| names.iter().any(|n| n == s.name)) {
                    let wanted = s.versions.contains(&vers.as_str()) && (!quick || s.quick || !every);
                    if wanted {
                        play(lab, s, client, *kind, vers, verbose, &mut tally);
                    }
                }
            }
        }
    }
    Ok(tally.finish())
}

fn play(lab: &Lab, s: &Scenario, client: &Client, kind: Kind, vers: &str, verbose: bool, tally: &mut Tally) {
    let begun = clock::now();
    let stage = Stage::new(lab, client, kind, vers, s.name, verbose);
    let outcome = Server::new(lab, kind).start(&Options::default(), true).and_then(|()| (s.play)(&stage));
    // The next scenario finds the cables plugged in and the servers running in every case.
    let cleaned = stage.restore();
    let secs = begun.elapsed().as_secs_f64();
    let label = format!("{} {} {vers} {}", s.name, Server::new(lab, kind).label(), client.name());
    match outcome.and(cleaned) {
        Ok(()) => {
            tally.passed += 1;
            println!("passed {label} {secs:.1} s");
        }
        Err(why) => {
            tally.failed += 1;
            println!("FAILED {label} {secs:.1} s: {why}");
        }
    }
}
