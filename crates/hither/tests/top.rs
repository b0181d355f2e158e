//! `hither top` with and without a terminal.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, run, wait_for};
use std::process::{Command, Stdio};

/// Requests during the display are shown by operation, process and file. On a terminal, `q` ends
/// the program and restores the screen.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn top_shows_current_requests() {
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
    // On a busy machine the loop may send too few requests in an interval.
    let mut said = run(Command::new(HITHER).args(["top", "-n", "2"]).arg(&mnt));
    let rate = |text: &str| {
        let last = text.rsplit("programs  ").next().unwrap();
        let line = last.lines().find(|line| line.ends_with("/sub/file"))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    let shows = |text: &str| rate(text) > Some(1.0);
    for _ in 0..60 {
        if shows(&said.out) {
            break;
        }
        said = run(Command::new(HITHER).args(["top", "-n", "2"]).arg(&mnt));
    }
    // script(1) provides a terminal and types `q` when there is output.
    let typed = format!(
        "(until grep -aq OPERATION {screen}; do sleep 0.1; done; while printf q; do sleep 1; done) 2>/dev/null \
         | timeout 120 script -qefc 'timeout --foreground 90 {HITHER} top {}' {screen} >/dev/null",
        mnt.display(),
        screen = ganesha.dir.path().join("screen").display()
    );
    std::fs::write(ganesha.dir.path().join("screen"), "").unwrap();
    let on_a_terminal = run(Command::new("sh").args(["-c", &typed]));
    let screen = std::fs::read(ganesha.dir.path().join("screen")).unwrap();
    busy.kill().unwrap();
    busy.wait().unwrap();
    let text = said.ok().out;
    assert_eq!(text.matches("OPERATION").count(), 2, "{text}");
    let last = text.rsplit("programs  ").next().unwrap();
    for words in ["PROCESS", "stat[", "] uid 0", "FILE", "/sub/file"] {
        assert!(last.contains(words), "{words} in {last}");
    }
    assert!(shows(&text), "{last}");
    assert_eq!(on_a_terminal.code, 0, "{on_a_terminal:?}");
    let screen = String::from_utf8_lossy(&screen);
    assert!(screen.contains("OPERATION") && screen.contains("\x1b[?1049h"), "{screen:?}");
    assert!(screen.trim_end().ends_with("\x1b[?25h") || screen.contains("\x1b[?1049l"), "{screen:?}");
    // A child process of the loop may still be running.
    wait_for("an idle mount", 60, || run(Command::new(HITHER).arg("umount").arg(&mnt)).code == 0);
}
