//! Two clients of one server, the Linux kernel's and hither, take turns in a random history. Each
//! opens files that the other has closed. Each finds the names that the other made or removed, or
//! those made more than a second before. Both agree with a model. `HITHER_SEED` repeats a history.
//! `HITHER_STEPS` makes it longer.

use super::stage::{Job, Stage};
use super::{EVERY, Scenario};
use crate::client::Client;
use crate::lab::{Fail, HOST_IP, Res};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "histories", versions: EVERY, quick: false, play };

/// Port over which the two programs take turns.
const MEETING: u16 = 7790;

/// Promise: 7
fn play(stage: &Stage<'_>) -> Res<()> {
    let other = match stage.client {
        Client::Kernel => Client::hither(stage.lab, false)?,
        _ => Client::Kernel,
    };
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let any = RandomState::new().build_hasher().finish();
    let (seed, steps) = (number("HITHER_SEED").unwrap_or(any), number("HITHER_STEPS").unwrap_or(500));
    let careful = |client: &Client| match client {
        Client::Kernel if stage.vers == "3" => " careful",
        _ => "",
    };
    // Close-to-open concerns contents. A client that caches no names also sees changed names at
    // once.
    for (kind, opts) in [("contents", ""), ("names", "lookupcache=none"), ("newcomers", "")] {
        let (mine, theirs) = (stage.mount(0, opts)?, stage.mount_with(&other, stage.kind, 1, opts)?);
        let dir = stage.directory(&mine)?;
        let name = dir.file_name().map(Path::new).unwrap_or(&dir);
        let program = stage.program("histories.py");
        let words = format!(
            "{program} drive {HOST_IP} {MEETING} {} {kind} {seed} {steps}{}",
            dir.display(),
            careful(stage.client)
        );
        let driver = Job::start(&mine, &words);
        driver.expect("listening", Duration::from_secs(60))?;
        let there = theirs.mp.join(name);
        let words = format!("{program} follow {HOST_IP} {MEETING} {}{}", there.display(), careful(&other));
        let follower = Job::start(&theirs, &words);
        let end = driver.wait(Duration::from_secs(600))?;
        stage.say(&format!("{kind}: {}", end.last()));
        follower.wait(Duration::from_secs(60))?;
        if end.code != 0 {
            return Err(Fail(format!("{kind}: {}", end.last())));
        }
        mine.umount()?;
        theirs.umount()?;
    }
    Ok(())
}
