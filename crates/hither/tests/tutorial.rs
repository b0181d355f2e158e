//! Runs the tutorial as written.
//!
//! The test needs root. Mounts, network and processes are in their own namespaces. The tutorial
//! writes to file systems in memory.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::{HITHER, Said, run};
use std::path::Path;
use std::process::Command;

/// The text between ```` ```sh ```` and ```` ``` ````.
fn commands(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => out += &format!("{line}\n"),
            _ => {}
        }
    }
    out
}

#[test]
#[ignore = "needs root"]
fn every_command_works_as_written() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/TUTORIAL.md");
    let commands = commands(&std::fs::read_to_string(text).unwrap());
    let bin = Path::new(HITHER).parent().unwrap().display().to_string();
    let script = format!(
        "ip link set lo up\n\
         for d in /mnt /var/cache /var/lib /run/hither; do mkdir -p $d; mount -t tmpfs tutorial $d; done\n\
         PATH={bin}:$PATH; cd /; set -e\n{commands}wait %1 || true\n"
    );
    // A reader of the tutorial has an idle machine. A mount waits only seconds for its cache, and
    // its end waits only seconds for the disk. On a busy machine the second pass may therefore send
    // READs, but not in each attempt.
    for attempt in 1.. {
        let said = run(Command::new("timeout")
            .args(["-k", "5", "600", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"])
            .args(["--mount-proc", "bash", "-c", &script]))
        .ok();
        let table = judged(&said);
        if !table.contains("\nREAD ") {
            return;
        }
        assert!(attempt < 4, "{table}");
    }
}

/// Checks the output of the commands. Returns the second table.
fn judged(said: &Said) -> String {
    let out = &said.out;
    let has = |what: &str| assert!(out.contains(what), "no {what:?} in {out}\n{}", said.err);
    has("serving /usr/share/doc *(ro,root_squash,secure)");
    has(" files read, ");
    has("127.0.0.1:/usr/share/doc on /mnt/share: NFS 4.2");
    has("stat now");
    has("round trip");
    // The second pass read no file from the server.
    let second = out
        .split(" files read, ")
        .nth(1)
        .unwrap()
        .split("127.0.0.1:/usr/share/doc on /mnt/share")
        .nth(1)
        .unwrap();
    second.split("\n\n").nth(1).unwrap().to_string()
}
