//! The cable is pulled for longer than the server's lease, and the old connections are dead when it
//! is plugged in again. The server may have forgotten the client. The client must then establish a
//! new client id, reopen its files, and lose no acknowledged data.

use super::{EVERY, Scenario, Stage};
use crate::clock;
use crate::lab::Res;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "cut-long", versions: EVERY, quick: false, play };

/// Longer than the servers' lease.
const CUT: Duration = Duration::from_secs(45);

fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let writer = stage.writer(&mount, Duration::from_secs(2))?;
    stage.relay("cut")?;
    clock::pause(CUT);
    stage.relay("break")?;
    stage.relay("heal")?;
    writer.must_advance(Duration::from_secs(120))?;
    clock::pause(Duration::from_secs(2));
    stage.verify(&mount, writer)
}
