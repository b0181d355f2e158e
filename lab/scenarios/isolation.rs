//! A dead server blocks only its callers. The mount of another server is as fast as before while
//! many processes hang in the first mount.

use super::stage::{Job, Stage};
use super::{EVERY, Scenario};
use crate::clock;
use crate::lab::{Fail, Res};
use crate::server::{Kind, Options, Server};
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "isolation", versions: EVERY, quick: false, play };

/// Promise: 25
fn play(stage: &Stage<'_>) -> Res<()> {
    let alive = match stage.kind {
        Kind::Ganesha | Kind::Gateway => Kind::Knfsd,
        Kind::Knfsd | Kind::Hither => Kind::Ganesha,
    };
    Server::new(stage.lab, alive).start(&Options::default(), true)?;
    let dead = stage.mount(0, "")?;
    let good = stage.mount_with(stage.client, alive, 1, "")?;
    let (d, g) = (stage.directory(&dead)?, stage.directory(&good)?);
    let limit = Duration::from_secs(120);
    let work = format!(
        "cd {} && for i in $(seq 30); do echo $i >f$i && cat f$i >/dev/null && mv f$i g$i && rm g$i; done && ls",
        g.display()
    );
    let timed = || -> Res<f64> {
        let begun = clock::now();
        good.shell(&work, limit)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let mut before = timed()?;
    for _ in 0..3 {
        before = before.min(timed()?);
    }
    stage.server().freeze(true)?;
    // Creating files needs the server. A lookup of an absent name might not.
    let hang = format!("for i in $(seq 40); do touch {}/n$i & done; wait", d.display());
    let hanging = Job::start(&dead, &hang);
    clock::pause(Duration::from_secs(3));
    // Other work of the machine slows some rounds. A blocked mount is slow in each round.
    let (mut during, mut rounds) = (timed()?, 1);
    while rounds < 10 && during > bound(before) {
        during = during.min(timed()?);
        rounds += 1;
    }
    stage.say(&format!("{before:.2} s before, {during:.2} s while 40 processes hang in the other mount"));
    let hung = !hanging.ended();
    stage.server().freeze(false)?;
    hanging.wait(Duration::from_secs(90))?;
    dead.umount()?;
    good.umount()?;
    if !hung {
        return Err(Fail("nothing hung in the mount of the dead server".into()));
    }
    if during > bound(before) {
        return Err(Fail(format!(
            "the mount of the living server: {before:.2} s before, {during:.2} s during"
        )));
    }
    Ok(())
}

/// Twice the time, and a second for the noise of a busy machine.
fn bound(before: f64) -> f64 {
    2.0 * before + 1.0
}
