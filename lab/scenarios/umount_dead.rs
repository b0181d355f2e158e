//! A mount of a dead server can be removed by `umount` and `umount -l`, with and without waiting
//! programs. The command ends within seconds and leaves no daemon.

use super::stage::{Job, Stage};
use super::{EVERY, Scenario};
use crate::client::Mount;
use crate::clock;
use crate::lab::{Fail, Res};
use std::sync::Arc;
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "umount-dead", versions: EVERY, quick: true, play };

const LIMIT: Duration = Duration::from_secs(60);
/// Longest time of an unmount in seconds.
const SOON_S: f64 = 15.0;

/// Promise: 26
fn play(stage: &Stage<'_>) -> Res<()> {
    for (what, busy) in [("umount", false), ("umount -l", false), ("umount -l", true)] {
        // A busy machine may be late in some attempts, but not in each.
        let mut all: Vec<f64> = vec![];
        while all.last().is_none_or(|secs| *secs > SOON_S) {
            if all.len() == 3 {
                return Err(Fail(format!("{what} (busy: {busy}): after {all:.1?} s")));
            }
            all.push(take_away(stage, what, busy)?);
        }
    }
    Ok(())
}

/// Unmounts and returns the time in seconds.
fn take_away(stage: &Stage<'_>, what: &str, busy: bool) -> Res<f64> {
    let mount = stage.mount(0, "")?;
    let dir = stage.directory(&mount)?;
    mount.shell(&format!("echo data >{d}/f && cat {d}/f && sync", d = dir.display()), LIMIT)?;
    let before = daemons(&mount)?;
    // The program starts before the fault and waits for this file. It then works in the mount even
    // if it is scheduled late.
    let go = format!("/tmp/go.{}", std::process::id());
    let words = format!(
        "cd {} && echo pid $$ && while [ ! -e {go} ]; do sleep 0.1; done; exec touch new",
        dir.display()
    );
    let waiter = busy.then(|| Job::start(&mount, &words));
    let pid = waiter.as_ref().map(|job| job.expect("pid", LIMIT)).transpose()?;
    stage.server().freeze(true)?;
    mount.shell(&format!("touch {go}"), LIMIT)?;
    clock::pause(Duration::from_secs(2));
    // The kernel's own client asks the server when it unmounts. Only `-f` gives up on the server.
    let command = if mount.is_kernel() { what.replace("umount", "umount -f") } else { what.to_string() };
    let begun = clock::now();
    let code = mount.run(&format!("{command} {}", mount.mp.display()), LIMIT, |l| stage.say(l))?;
    let secs = begun.elapsed().as_secs_f64();
    stage.say(&format!("{command}: code {code} after {secs:.1} s, busy: {busy}"));
    let gone = !mount.shell("cat /proc/self/mounts", LIMIT)?.contains(&format!(" {} ", mount.mp.display()));
    if code != 0 || !gone {
        return Err(Fail(format!("{command} (busy: {busy}): code {code} after {secs:.1} s, gone: {gone}")));
    }
    mount.shell(&format!("rm -f {go}"), LIMIT)?;
    if let (Some(job), Some(pid)) = (waiter, pid) {
        // The mount is detached, but the program's call still waits. The signal must reach it.
        mount.shell(&format!("kill -KILL {pid}"), LIMIT)?;
        let end = job.wait(LIMIT)?;
        if end.code != 137 {
            return Err(Fail(format!(
                "{command}: the waiting program ended with code {}: {}",
                end.code,
                end.last()
            )));
        }
    }
    let mut left = vec![];
    clock::wait_until(LIMIT, || {
        left = daemons(&mount).unwrap_or_default();
        left.iter().all(|d| !before.contains(d))
    });
    if left.iter().any(|d| before.contains(d)) {
        return Err(Fail(format!(
            "{command} (busy: {busy}): the daemon is still there: {}",
            left.join(", ")
        )));
    }
    stage.server().freeze(false)?;
    Ok(secs)
}

/// Processes of this laboratory that serve this mount point, found by their command lines.
fn daemons(mount: &Arc<Mount>) -> Res<Vec<String>> {
    if mount.is_kernel() {
        return Ok(vec![]);
    }
    let mp = mount.mp.display().to_string();
    let here = std::fs::read_link("/proc/self/ns/mnt").ok();
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|b| b.is_ascii_digit()) || pid == std::process::id().to_string() {
            continue;
        }
        // Another laboratory has mount points of the same names.
        if std::fs::read_link(entry.path().join("ns/mnt")).ok() != here {
            continue;
        }
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if words.split(|b| *b == 0).any(|w| w == mp.as_bytes()) {
            found.push(pid);
        }
    }
    Ok(found)
}
