//! The server is killed (`kill -9`; for knfsd the power of its machine is cut) and started again,
//! twice, during a verified write workload. The writer sees no error, it goes on after the grace
//! period, and everything that fsync acknowledged is there.

use super::{EVERY, Scenario, Stage};
use crate::clock;
use crate::lab::Res;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "restart", versions: EVERY, quick: true, play };

/// Promise: 2
fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let writer = stage.writer(&mount, Duration::from_secs(4))?;
    for pause_s in [1, 6] {
        stage.server().kill9()?;
        clock::pause(Duration::from_secs(pause_s));
        stage.server().restart()?;
        stage.say("the server is back");
        // Grace period, reclaim, and the time a client waits between attempts to connect.
        writer.must_advance(Duration::from_secs(240))?;
        clock::pause(Duration::from_secs(3));
    }
    stage.verify(&mount, writer)
}
