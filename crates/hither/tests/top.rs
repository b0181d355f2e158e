//! `hither top` without a terminal, and on one.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, run};
use std::process::{Command, Stdio};

/// What is asked while it looks is shown by operation, process and file; on a terminal it ends with `q` and leaves the screen
/// as it was.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn what_is_asked_now() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::create_dir(ganesha.export("sub")).unwrap();
    std::fs::write(ganesha.export("sub/file"), "x").unwrap();
    ganesha.mount("vers=4.2,noac,lookupcache=none", &mnt).ok();
    let script = format!(
        "exec >/dev/null; while [ -e /proc/{} ]; do stat {}/sub/file; done",
        std::process::id(),
        mnt.display()
    );
    let mut busy = Command::new("bash")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let said = run(Command::new(HITHER).args(["top", "-n", "2"]).arg(&mnt));
    // script(1) makes a terminal and types what it reads.
    let typed = format!(
        "(sleep 2.5; printf q; sleep 2) | timeout 30 script -qec 'timeout --foreground 15 {HITHER} top {}' /dev/null",
        mnt.display()
    );
    let on_a_terminal = run(Command::new("sh").args(["-c", &typed]));
    busy.kill().unwrap();
    busy.wait().unwrap();
    let text = said.ok().out;
    assert_eq!(text.matches("OPERATION").count(), 2, "{text}");
    let last = text.rsplit("programs  ").next().unwrap();
    for words in ["PROCESS", "stat[", "] uid 0", "FILE", "/sub/file"] {
        assert!(last.contains(words), "{words} in {last}");
    }
    let rate = last.lines().find(|line| line.ends_with("/sub/file")).unwrap();
    assert!(rate.split_whitespace().next().unwrap().parse::<f64>().unwrap() > 1.0, "{rate}");
    assert_eq!(on_a_terminal.code, 0, "{on_a_terminal:?}");
    let screen = &on_a_terminal.out;
    assert!(screen.contains("OPERATION") && screen.contains("\x1b[?1049h"), "{screen:?}");
    assert!(screen.trim_end().ends_with("\x1b[?25h") || screen.contains("\x1b[?1049l"), "{screen:?}");
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
}
