//! The power of the client's machine fails, again and again. Meanwhile its mount with a disk cache
//! is read, and its files change from both sides. Data that was not yet on the cache's disk is
//! lost, and the machine starts again with the rest. Every byte read afterwards equals the
//! server's. Some of these bytes come from the cache.
//!
//! The machine is the guest with the kernel's NFS client, which is also the other client. The cache
//! is on an ext4 of its own disk. `LAB_POWER_CUTS` is the number of power cuts.

use super::stage::{Job, Stage};
use super::{EVERY, Scenario};
use crate::client::Client;
use crate::clock;
use crate::guest;
use crate::lab::{Fail, Res};
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "power", versions: EVERY, quick: false, play };

/// Power cuts without `LAB_POWER_CUTS`.
const CUTS: u64 = 3;
/// The file system of the cache, in the guest.
const DISK: &str = "/run/cachedisk";
const LIMIT: Duration = Duration::from_secs(120);

fn play(stage: &Stage<'_>) -> Res<()> {
    let cuts = std::env::var("LAB_POWER_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(CUTS);
    let hither = Client::hither(stage.lab, true)?;
    guest::stop(stage.lab)?;
    guest::start(stage.lab)?;
    run("mkfs.ext4 -q -F -E lazy_itable_init=1,nodiscard /dev/ubda")?;
    let (mut kept, mut cut) = (0, 0);
    loop {
        run(&format!("mkdir -p {DISK} && mount -t ext4 /dev/ubda {DISK}"))?;
        // The cache keeps files that did not change for a second, because the servers' clocks tick
        // coarsely.
        let cached = stage.mount_with(
            &hither,
            stage.kind,
            0,
            &format!("cache={DISK}/hither,cache-age=1,cache-min-free=0"),
        )?;
        let plain = stage.mount_with(&Client::Kernel, stage.kind, 0, "")?;
        let dir = cached.mp.join("power");
        let program = stage.program("power.py");
        let words = |verb: &str| {
            let other = plain.mp.join("power");
            format!("{program} {verb} {} {} {cut}", dir.display(), other.display())
        };
        if cut > 0 {
            let before = hits(stage, &cached.mp.display().to_string())?;
            let out = cached.shell(&words("verify"), LIMIT)?;
            let found = hits(stage, &cached.mp.display().to_string())? - before;
            kept += found;
            stage.say(&format!("{}; {found} bytes of the cache", out.trim()));
        }
        // More and later cuts, when the disk of the machine held no data yet.
        if cut < cuts || (kept == 0 && cut < 4 * cuts) {
            let job = Job::start(&cached, &words("work"));
            job.expect("working", LIMIT)?;
            // Every other life lasts longer than data needs to reach the disk.
            let longer = if cut % 2 == 0 { 8_000 * (1 + cut.saturating_sub(cuts)) } else { 0 };
            clock::pause(Duration::from_millis(longer + cut.wrapping_mul(1_618_034) % 6_000));
            if job.ended() {
                let end = job.wait(LIMIT)?;
                return Err(Fail(format!("the reader ended with code {}: {}", end.code, end.last())));
            }
            guest::stop(stage.lab)?;
            guest::start(stage.lab)?;
            cut += 1;
        } else {
            cached.umount()?;
            plain.umount()?;
            // The check fails on damaged data. The cache writes bytes to the disk before it records
            // that they are present.
            run(&format!("{} cache check {DISK}/hither && umount {DISK}", binary(stage)))?;
            break;
        }
    }
    match kept {
        0 => Err(Fail("nothing of the cache survived any cut, so nothing was tested".into())),
        _ => Ok(()),
    }
}

fn binary(stage: &Stage<'_>) -> String {
    guest::quote(&stage.lab.hither().display().to_string())
}

/// Bytes that the cache has served since the mount.
fn hits(stage: &Stage<'_>, mp: &str) -> Res<u64> {
    let mut text = String::new();
    let ask = format!("{} stat --json {mp}", binary(stage));
    guest::CLIENT.run(&ask, LIMIT, |line| text.push_str(line))?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    report["layers"]["disk"]["hit_bytes"].as_u64().ok_or_else(|| Fail(format!("no disk cache: {text}")))
}

fn run(script: &str) -> Res<()> {
    let mut last = String::new();
    match guest::CLIENT.run(script, LIMIT, |line| last = line.to_string())? {
        0 => Ok(()),
        code => Err(Fail(format!("{script:?} in the guest: code {code}, {last}"))),
    }
}
