//! The server is killed and started again, twice, during a verified write workload (`kill -9`; for
//! knfsd the power of its machine is cut). The writer sees no error and goes on after the grace
//! period. All data that fsync acknowledged is at the server.

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
        // The limit covers the grace period, the reclaim, and the client's pause between attempts
        // to connect.
        writer.must_advance(Duration::from_secs(240))?;
        clock::pause(Duration::from_secs(3));
    }
    stage.verify(&mount, writer)
}
