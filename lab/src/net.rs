//! The laboratory's network: a namespace with a bridge and one tap device per guest.
//!
//! A holder process (a shell that sleeps) owns a network and a mount namespace. Every command of
//! the laboratory enters them. No name is global, so no names collide.

use crate::args::Args;
use crate::clock;
use crate::guest;
use crate::lab::{Fail, HOST_IP, Lab, Res};
use crate::process::{command, sh};
use crate::relay;
use crate::server::{Kind, Server};
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::ExitCode;
use std::time::Duration;

/// Starts the namespaces and the relay. Does nothing when they run.
pub fn up(lab: &Lab) -> Res<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Fail("the laboratory needs root (namespaces, tap devices, NFS servers)".into()));
    }
    if [&lab.run, &lab.repo].iter().any(|p| p.starts_with("/mnt") || p.starts_with("/run")) {
        return Err(Fail("the source tree and HITHER_LAB_RUN must not be below /mnt or /run".into()));
    }
    if lab.holder().pid().is_none() {
        for tool in ["ip", "nsenter", "unshare", "gcc"] {
            if sh(&format!("command -v {tool}")).is_err() {
                return Err(Fail(format!("{tool} is missing; install the packages in lab/packages.txt")));
            }
        }
        let ready = lab.run.join("net.ready");
        let _ = fs::remove_file(&ready);
        let script = format!(
            "ip link set lo up
             ip link add br0 type bridge stp_state 0 forward_delay 0
             ip addr add {HOST_IP}/24 dev br0
             for t in tapc taps; do ip tuntap add $t mode tap; ip link set $t master br0; ip link set $t up; done
             ip link set br0 up
             mount -t tmpfs -o mode=755 tmpfs /mnt
             {helpers}
             touch '{}'
             exec sleep infinity",
            ready.display(),
            helpers = helpers(lab),
        );
        let log = lab.run.join("net.log");
        let holder =
            command(&["unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec", &script]);
        lab.holder().start(holder, &log)?;
        if !clock::wait_until(Duration::from_secs(60), || ready.exists()) {
            let why = fs::read_to_string(&log).unwrap_or_default();
            return Err(Fail(format!("the namespace did not come up: {}", why.trim())));
        }
    }
    relay::start(lab)
}

/// Shell lines that put hither's mount(8) helpers into the `/sbin` of the namespace only.
fn helpers(lab: &Lab) -> String {
    let (dir, hither) = (lab.run.join("sbin").display().to_string(), lab.hither().display().to_string());
    format!(
        "mkdir -p '{dir}/up' '{dir}/work'
         for l in mount.hither mount.fuse.hither umount.hither; do ln -sf '{hither}' '{dir}/up/'$l; done
         sbin=$(readlink -f /sbin)
         mount -t overlay -o \"lowerdir=$sbin,upperdir={dir}/up,workdir={dir}/work\" overlay \"$sbin\""
    )
}

/// Ends all processes of the laboratory and removes its namespaces.
pub fn down(lab: &Lab) -> Res<ExitCode> {
    if lab.holder().pid().is_none() {
        println!("laboratory {} is down", lab.name);
        return Ok(ExitCode::SUCCESS);
    }
    lab.enter()?;
    unmount_all(lab);
    guest::stop(lab)?;
    for kind in Kind::ALL {
        Server::new(lab, kind).stop()?;
    }
    relay::daemon(lab).stop(Duration::from_secs(3))?;
    lab.holder().stop(Duration::from_secs(3))?;
    println!("laboratory {} is down", lab.name);
    Ok(ExitCode::SUCCESS)
}

/// Detaches all mounts below the run directory, so that their daemons end.
fn unmount_all(lab: &Lab) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below = format!("{}/", lab.run.display());
    let ours = |p: &&str| p.starts_with(&below) || p.starts_with("/mnt/");
    let points = mounts.lines().filter_map(|l| l.split(' ').nth(1)).filter(ours);
    for point in points {
        let _ = sh(&format!("umount -l '{point}'"));
    }
}

/// `link up|down guest|knfsd`: the cable of a guest.
pub fn link(args: &mut Args) -> Res<ExitCode> {
    let state = args.word().filter(|s| s == "up" || s == "down");
    let tap = match args.word().as_deref() {
        Some("guest") => Some("tapc"),
        Some("knfsd") => Some("taps"),
        _ => None,
    };
    let (Some(state), Some(tap)) = (state, tap) else {
        return Err(Fail("link up|down guest|knfsd".into()));
    };
    sh(&format!("ip link set {tap} {state}"))?;
    Ok(ExitCode::SUCCESS)
}

/// `exec -- CMD`: executes the command in place of this process.
pub fn exec(args: &mut Args) -> Res<ExitCode> {
    let user = args.value("-u")?;
    let words = args.rest();
    if words.is_empty() {
        return Err(Fail("exec -- CMD...".into()));
    }
    let mut c = match user {
        Some(u) => command(&["setpriv", "--reuid", &u, "--regid", &u, "--init-groups", "--"]),
        None => command(&["env", "--"]),
    };
    let status = c.args(&words).exec();
    Err(Fail(format!("{}: {status}", words[0])))
}

/// The exit code of a finished child, or 128 + signal when a signal ended the child.
pub fn exit_code(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
