//! Connections break again and again (a firewall, a server that limits them) while the server runs.
//! The client sends calls again without a second execution, and no data is lost.

use super::{EVERY, Scenario, Stage};
use crate::clock;
use crate::lab::Res;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "break", versions: EVERY, quick: true, play };

fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let writer = stage.writer(&mount, Duration::from_secs(2))?;
    for _ in 0..5 {
        stage.relay("break")?;
        clock::pause(Duration::from_millis(1500));
    }
    writer.must_advance(Duration::from_secs(240))?;
    stage.verify(&mount, writer)
}
