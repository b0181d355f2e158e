//! The cable is pulled and plugged in again while the server's lease lasts. Bytes arrive late, and
//! no connection is closed. No call fails, and no data is lost.

use super::{EVERY, Scenario, Stage};
use crate::clock;
use crate::lab::Res;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "cut", versions: EVERY, quick: false, play };

/// Promise: 22
fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let writer = stage.writer(&mount, Duration::from_secs(2))?;
    for cut_s in [2, 15] {
        stage.relay("cut")?;
        clock::pause(Duration::from_secs(cut_s));
        stage.relay("heal")?;
        writer.must_advance(Duration::from_secs(240))?;
    }
    stage.verify(&mount, writer)
}
