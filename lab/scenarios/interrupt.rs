//! A dead server blocks only its callers, and signals end the callers. Ctrl-C and kill end a
//! process within seconds, in any call. When the server is back, the mount works as before. The
//! kernel's client reacts only to SIGKILL, and not while it closes files of the killed process. It
//! therefore fails `read` and `write-fsync`.

use super::stage::{Job, Stage};
use super::{EVERY, Scenario};
use crate::clock;
use crate::lab::{Fail, Res};
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "interrupt", versions: EVERY, quick: true, play };

/// A name, the preparation before the fault, and a call that needs the server.
const CALLS: [(&str, &str, &str); 7] = [
    ("stat", "", "os.stat(d + '/never-seen-é')"),
    ("open", "", "open(d + '/file2')"),
    ("create", "", "open(d + '/new', 'w')"),
    ("readdir", "", "os.listdir(d + '/sub')"),
    ("rename", "", "os.rename(d + '/file3', d + '/file4')"),
    ("read", "f = os.open(d + '/file1', os.O_RDONLY)", "os.pread(f, 4096, 1 << 20)"),
    (
        "write-fsync",
        "f = os.open(d + f'/w{os.getpid()}', os.O_CREAT | os.O_WRONLY)",
        "(os.pwrite(f, b'x' * 5000, 0), os.fsync(f))",
    ),
];

/// Longest time until a signal has ended a call.
const SOON: Duration = Duration::from_secs(5);

/// Promise: 24
fn play(stage: &Stage<'_>) -> Res<()> {
    let mount = stage.mount(0, "")?;
    let dir = stage.directory(&mount)?;
    let d = dir.display();
    let limit = Duration::from_secs(60);
    let signals: &[&str] = if mount.is_kernel() { &["KILL"] } else { &["INT", "TERM", "KILL"] };
    // Each program has its own directory. A call that changes a directory holds the kernel's lock
    // on it, and a program that waits for that lock cannot be interrupted.
    for (name, _, _) in CALLS {
        for signal in signals {
            let script = "mkdir sub && touch file2 file3 sub/x && head -c 2M /dev/zero >file1";
            mount.shell(&format!("mkdir {d}/{name}{signal} && cd {d}/{name}{signal} && {script}"), limit)?;
        }
    }
    // An unmount empties the caches, so that each call needs the server.
    mount.umount()?;
    let mount = stage.mount(0, "")?;
    let mut waiting = vec![];
    for (name, before, call) in CALLS {
        for signal in signals {
            let program = format!(
                "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); d = '{d}/{name}{signal}'\n\
                 {before}\n\
                 print('pid', os.getpid(), flush=True)\n\
                 while not os.path.exists('/tmp/go.{pid}'): __import__('time').sleep(0.1)\n\
                 {call}; print('answered', flush=True)",
                pid = std::process::id(),
            );
            let job = Job::start(&mount, &format!("exec /usr/bin/python3 -c \"{program}\""));
            let pid = job.expect("pid", limit)?;
            waiting.push((name, *signal, pid, job));
        }
    }
    stage.server().freeze(true)?;
    mount.shell(&format!("touch /tmp/go.{}", std::process::id()), limit)?;
    clock::pause(Duration::from_secs(3));
    let (mut wrong, mut late, all) = (vec![], vec![], waiting.len());
    for (name, signal, pid, job) in waiting {
        if job.ended() {
            wrong.push(format!(
                "{name} did not wait for the server: {}",
                job.text().trim().replace('\n', " / ")
            ));
            continue;
        }
        mount.shell(&format!("kill -{signal} {pid}"), limit)?;
        let begun = clock::now();
        match job.wait(limit) {
            Ok(end) if end.code > 128 => {}
            Ok(end) => wrong.push(format!("{name} with SIG{signal}: code {}: {}", end.code, end.last())),
            Err(_) => wrong.push(format!("{name} ignores SIG{signal} for {} s", limit.as_secs())),
        }
        if begun.elapsed() > SOON {
            late.push(format!("{name} after SIG{signal}"));
        }
    }
    // A busy machine may be late in some calls, but not in most.
    if late.len() > all / 2 {
        wrong.push(format!("{} ended more than {} s late", late.join(", "), SOON.as_secs()));
    }
    stage.server().freeze(false)?;
    mount.shell(
        &format!("rm -f /tmp/go.{}; ls {d} >/dev/null && echo y >{d}/after", std::process::id()),
        limit,
    )?;
    mount.umount()?;
    if wrong.is_empty() { Ok(()) } else { Err(Fail(wrong.join("; "))) }
}
