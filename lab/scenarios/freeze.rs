//! The server stops answering for a while without dropping its connections (SIGSTOP, SIGCONT), as
//! an overloaded server does. No call fails, and no data is lost.

use super::{EVERY, Scenario, Stage};
use crate::clock;
use crate::lab::Res;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "freeze", versions: EVERY, quick: false, play };

/// Promise: 22
fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let writer = stage.writer(&mount, Duration::from_secs(2))?;
    for frozen_s in [3, 20] {
        stage.server().freeze(true)?;
        clock::pause(Duration::from_secs(frozen_s));
        stage.server().freeze(false)?;
        writer.must_advance(Duration::from_secs(240))?;
    }
    stage.verify(&mount, writer)
}
