//! A byte-range lock is still held after a restart of the server. The client reclaims the lock in
//! the grace period, and another client cannot take it, neither then nor later. When the lock is
//! released, the other client gets it.

use super::Scenario;
use super::stage::{Job, Stage};
use crate::client::{Client, Mount};
use crate::clock;
use crate::lab::{Fail, Res};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

// NFSv3 locks are local to the client in this laboratory (nolock).
pub const SCENARIO: Scenario = Scenario { name: "locks", versions: &["4.2", "4.1"], quick: false, play };

/// Promise: 16
fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let dir = stage.directory(&mount)?;
    let name = dir.file_name().map(Path::new).unwrap_or(&dir);
    // The other client has its own identity. A second mount of the kernel would share one identity.
    let other = match stage.client {
        Client::Kernel => Client::hither(stage.lab, false)?,
        _ => Client::Kernel,
    };
    let rival = stage.mount_with(&other, stage.kind, 1, "")?;
    let theirs = rival.mp.join(name).join("locked");
    let holder = Job::start(&mount, &format!("{} hold {}/locked", stage.program("locker.py"), dir.display()));
    holder.expect("held", Duration::from_secs(30))?;
    steal(stage, &rival, &theirs, "before the fault")?;
    stage.server().kill9()?;
    clock::pause(Duration::from_secs(1));
    stage.server().restart()?;
    for when in ["in the grace period", "after it"] {
        steal(stage, &rival, &theirs, when)?;
        clock::pause(Duration::from_secs(15));
    }
    let state = mount.shell(
        &format!("{} check {}/locked", stage.program("locker.py"), dir.display()),
        Duration::from_secs(60),
    )?;
    stage.say(&state);
    mount.shell(&format!("touch {}/release", dir.display()), Duration::from_secs(60))?;
    let end = holder.wait(Duration::from_secs(60))?;
    if end.code != 0 {
        return Err(Fail(format!("the holder of the lock failed: {}", end.last())));
    }
    let taken = rival.shell(
        &format!("{} take {}", stage.program("locker.py"), theirs.display()),
        Duration::from_secs(60),
    )?;
    stage.say(&taken);
    rival.umount()?;
    mount.umount()
}

/// The other client tries to take the lock and must fail.
fn steal(stage: &Stage<'_>, rival: &Arc<Mount>, file: &Path, when: &str) -> Res<()> {
    let words = format!("{} steal {}", stage.program("locker.py"), file.display());
    let mut text = String::new();
    let code = rival.run(&words, Duration::from_secs(120), |l| text = l.to_string())?;
    stage.say(&format!("{when}: {text}"));
    match code {
        0 => Ok(()),
        7 => Err(Fail(format!("the lock was stolen {when}"))),
        code => Err(Fail(format!("the other client failed {when} with code {code}: {text}"))),
    }
}
