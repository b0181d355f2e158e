//! The server's disk fills up. Every way of writing reports ENOSPC in the call that nfs(5) and
//! close(2) promise: write, fsync or close. Data that fsync acknowledged before stays readable.
//! When the disk has space again, the same descriptors and new files work without a new mount.

use super::stage::{Job, Stage};
use super::{EVERY, Scenario};
use crate::guest::Agent;
use crate::lab::{Fail, KNFSD_IP, Res};
use crate::process::sh;
use crate::server::{Kind, Options};
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "full", versions: EVERY, quick: true, play };

/// Space of the ballast file, which is freed later.
const BALLAST_MIB: u32 = 32;
/// Free space beside the ballast.
const FREE_MIB: u32 = 24;

/// Promise: 3
fn play(stage: &Stage<'_>) -> Res<()> {
    let disk = Disk::small(stage)?;
    let outcome = fill_and_free(stage, &disk);
    // The next scenario needs the large disk in every case.
    disk.large_again().and(outcome)
}

fn fill_and_free(stage: &Stage<'_>, disk: &Disk<'_>) -> Res<()> {
    let limit = Duration::from_secs(120);
    let mount = stage.mount(0, "")?;
    let dir = stage.directory(&mount)?.display().to_string();
    let tmp = mount.scratch("full")?.display().to_string();
    let program = stage.program("full.py");
    let job = Job::start(&mount, &format!("{program} fill {dir} {tmp}/log {tmp}/go"));
    job.expect("waiting", limit)?;
    disk.free()?;
    stage.say("there is space again");
    mount.shell(&format!("touch {tmp}/go"), limit)?;
    let end = job.wait(limit)?;
    stage.say(&end.text);
    if end.code != 0 {
        return Err(Fail(format!("the writer failed with code {}: {}", end.code, end.last())));
    }
    // The Linux client reports the error to a new descriptor as well. A write error is to be
    // reported once.
    if end.text.contains("again:") && stage.client.name() != "kernel" {
        return Err(Fail(format!("an error was reported twice: {}", end.text)));
    }
    mount.umount()?;
    let fresh = stage.mount(0, "")?;
    stage.say(&fresh.shell(&format!("{program} verify {dir} {tmp}/log"), limit)?);
    fresh.shell(&format!("rm -rf {dir}"), limit)?;
    fresh.umount()
}

/// An exported file system with little space. For ganesha it is a small tmpfs over the exported
/// directory. For knfsd a file takes nearly all space of its disk.
struct Disk<'a> {
    stage: &'a Stage<'a>,
}

impl<'a> Disk<'a> {
    fn small(stage: &'a Stage<'a>) -> Res<Self> {
        let disk = Self { stage };
        let made = match stage.kind {
            Kind::Ganesha | Kind::Hither | Kind::Gateway => disk.cover(),
            // Free space as root sees it, including the blocks that are reserved for root.
            Kind::Knfsd => disk.in_guest(&format!(
                "rm -f /srv/ballast; free=$(($(stat -f -c '%f * %S' /srv) >> 20)); \
                 fallocate -l $((free - {FREE_MIB}))M /srv/ballast"
            )),
        };
        match made {
            Ok(()) => Ok(disk),
            Err(e) => disk.large_again().and(Err(e)),
        }
    }

    fn cover(&self) -> Res<()> {
        let server = self.stage.server();
        let dir = server.export_dir()?;
        server.stop()?;
        sh(&format!(
            "mount -t tmpfs -o size={}m,mode=755 full '{d}'; fallocate -l {BALLAST_MIB}M '{d}/ballast'",
            BALLAST_MIB + FREE_MIB,
            d = dir.display()
        ))?;
        server.start(&Options::default(), true)
    }

    /// Frees the ballast.
    fn free(&self) -> Res<()> {
        match self.stage.kind {
            Kind::Ganesha | Kind::Hither | Kind::Gateway => {
                sh(&format!("rm '{}/ballast'", self.stage.server().export_dir()?.display())).map(|_| ())
            }
            Kind::Knfsd => self.in_guest("rm /srv/ballast"),
        }
    }

    /// Restores the server's former disk. Does not start the server.
    fn large_again(&self) -> Res<()> {
        match self.stage.kind {
            Kind::Ganesha | Kind::Hither | Kind::Gateway => {
                let server = self.stage.server();
                server.stop()?;
                let dir = server.export_dir()?;
                sh(&format!("while mountpoint -q '{d}'; do umount '{d}'; done", d = dir.display()))
                    .map(|_| ())
            }
            Kind::Knfsd => self.in_guest("rm -f /srv/ballast"),
        }
    }

    fn in_guest(&self, script: &str) -> Res<()> {
        let mut last = String::new();
        let agent = Agent { ip: KNFSD_IP };
        match agent.run(script, Duration::from_secs(60), |line| last = line.to_string())? {
            0 => Ok(()),
            code => Err(Fail(format!("{script:?} in the server's guest: code {code}, {last}"))),
        }
    }
}
