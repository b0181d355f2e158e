//! Small workloads cost no more messages than bench/trend/messages.json records.
//!
//! Each workload has its own directory and its own mount. With `HITHER_RENEW=1`
//! the test records the numbers (`make trend`). It needs root and nfs-ganesha.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::messages::{SERVERS, Server};
use common::{pause, run};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Versions of the protocol that each server is mounted with.
const VERSIONS: [&str; 2] = ["4.2", "3"];
/// Messages above the recorded number that are no fault: this part of it, and at least this many.
/// Prefetches and replies race.
const TOLERANCE_PART: u64 = 8;
const TOLERANCE_MIN: u64 = 2;

/// A few system calls of programs.
struct Workload {
    name: &'static str,
    /// Makes the files, in the server's own file system.
    prepare: &'static str,
    /// Runs on the mount before the workload, and is not counted.
    warm: &'static str,
    script: &'static str,
}

const fn cold(name: &'static str, prepare: &'static str, script: &'static str) -> Workload {
    Workload { name, prepare, warm: "true", script }
}

const fn warm(
    name: &'static str,
    prepare: &'static str,
    warm: &'static str,
    script: &'static str,
) -> Workload {
    Workload { name, prepare, warm, script }
}

const FILES: &str = "for i in $(seq 100); do echo contents of $i > f$i; done";
const TREE: &str =
    "for d in a b c d e; do mkdir $d; for i in $(seq 10); do echo contents > $d/f$i; done; done";
const LARGE: &str = "head -c 8388608 /dev/zero > large";

const WORKLOADS: &[Workload] = &[
    cold("open a file", "echo contents > f", "cat f > /dev/null"),
    cold(
        "open a file at depth 8",
        "mkdir -p a/b/c/d/e/f/g; echo contents > a/b/c/d/e/f/g/file",
        "cat a/b/c/d/e/f/g/file > /dev/null",
    ),
    cold(
        "stat a file at depth 8",
        "mkdir -p a/b/c/d/e/f/g; touch a/b/c/d/e/f/g/file",
        "stat a/b/c/d/e/f/g/file",
    ),
    cold(
        "look for an absent file, 10 times",
        FILES,
        "for i in 1 2 3 4 5 6 7 8 9 10; do [ ! -e absent ]; done",
    ),
    cold(
        "open through a symbolic link",
        "mkdir d; echo contents > d/f; ln -s d/f link",
        "cat link > /dev/null",
    ),
    cold("readlink", "ln -s nowhere link", "readlink link"),
    cold("read 100 files", FILES, "cat f* > /dev/null"),
    warm("read 100 files again", FILES, "cat f* > /dev/null", "cat f* > /dev/null"),
    cold("stat 100 files", FILES, "stat f* > /dev/null"),
    cold("list 100 files with attributes", FILES, "ls -l > /dev/null"),
    cold("list 5,000 names", "seq 5000 | xargs touch", "ls -f | wc -l"),
    cold("find in 6 directories", TREE, "find . -type f | wc -l"),
    warm("find in 6 directories again", TREE, "find . -type f | wc -l", "find . -type f | wc -l"),
    cold("grep -r in 6 directories", TREE, "grep -r contents . | wc -l"),
    cold("make 20 empty files", "true", "for i in $(seq 20); do : > f$i; done"),
    cold("make 20 files of 4 KiB", "true", "for i in $(seq 20); do head -c 4096 /dev/zero > f$i; done"),
    cold(
        "write over a file, 10 times",
        "echo contents > f",
        "for i in 1 2 3 4 5 6 7 8 9 10; do echo again > f; done",
    ),
    cold(
        "append a line with an open each, 10 times",
        "echo contents > f",
        "for i in 1 2 3 4 5 6 7 8 9 10; do echo again >> f; done",
    ),
    cold(
        "append 100 lines with one open",
        "echo contents > f",
        "for i in $(seq 100); do echo again; done >> f",
    ),
    cold(
        "replace a file by rename, 10 times",
        "echo contents > f",
        "for i in 1 2 3 4 5 6 7 8 9 10; do echo again > t; mv t f; done",
    ),
    cold("make 10 directories", "true", "mkdir 1 2 3 4 5 6 7 8 9 10"),
    cold("make 10 hard links", "echo contents > f", "for i in 1 2 3 4 5 6 7 8 9 10; do ln f l$i; done"),
    cold("make 10 symbolic links", "true", "for i in 1 2 3 4 5 6 7 8 9 10; do ln -s f l$i; done"),
    cold("rename 10 files", FILES, "for i in 1 2 3 4 5 6 7 8 9 10; do mv f$i g$i; done"),
    cold("remove 100 files", FILES, "rm f*"),
    cold("remove a tree of 6 directories", TREE, "rm -r a b c d e"),
    cold("chmod of 10 files", FILES, "chmod 600 f1 f2 f3 f4 f5 f6 f7 f8 f9 f10"),
    cold("times of 10 files", FILES, "touch -d 2020-01-01 f1 f2 f3 f4 f5 f6 f7 f8 f9 f10"),
    cold("truncate a file", LARGE, "truncate -s 4096 large"),
    cold(
        "copy a tree of 6 directories",
        "mkdir from; cd from; for d in a b c; do mkdir $d; echo contents > $d/f; done",
        "cp -r from to",
    ),
    cold(
        "unpack a tar of 23 members",
        "mkdir -p m/a m/b; for i in $(seq 20); do echo contents > m/a/f$i; done; tar cf ../unpack.tar m; rm -r m",
        "tar xf ../unpack.tar",
    ),
    cold("read 8 MiB", LARGE, "cat large > /dev/null"),
    cold("write 8 MiB", "true", "head -c 8388608 /dev/zero > large"),
    cold("copy 8 MiB", LARGE, "cp large copy"),
    cold(
        "write 4 KiB and fsync, 10 times",
        "echo contents > f",
        "dd if=/dev/zero of=f bs=4096 count=10 oflag=sync status=none",
    ),
    cold(
        "lock and unlock, 10 times",
        "echo contents > f",
        "for i in 1 2 3 4 5 6 7 8 9 10; do flock f true; done",
    ),
    cold("ask for the free space, 2 times", "true", "stat -f . > /dev/null; stat -f . > /dev/null"),
    cold(
        "read 10 files as another user",
        FILES,
        "setpriv --reuid 1000 --clear-groups cat f1 f2 f3 f4 f5 f6 f7 f8 f9 f10 > /dev/null",
    ),
];

/// By workload and mount (`ganesha 4.2`), the number of messages.
type Costs = BTreeMap<String, BTreeMap<String, u64>>;

fn bench(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench").join(name)
}

/// The directory of a workload, relative to the export.
fn place(at: usize) -> String {
    format!("work/{at}")
}

/// Makes the files of all workloads.
fn prepare(server: &Server) {
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let dir = server.exported(&place(at));
        fs::create_dir_all(&dir).unwrap();
        run(Command::new("sh").args(["-ec", workload.prepare]).current_dir(dir)).ok();
    }
}

fn measure(server: &Server, (kind, version): (&str, &str), costs: &mut Costs) {
    let name = format!("{kind} {version}");
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let mount = server.mount(&format!("vers={version}"), "mnt");
        mount.messages(&place(at), workload.warm);
        let (_, sent) = mount.messages(&place(at), workload.script);
        costs.entry(workload.name.into()).or_default().insert(name.clone(), sent);
    }
}

#[test]
#[ignore = "needs root and nfs-ganesha"]
fn workloads_cost_no_more_messages() {
    let mut costs = Costs::new();
    for version in VERSIONS {
        for kind in SERVERS {
            let server = Server::start(kind);
            prepare(&server);
            // A file that has just changed is treated with more care.
            pause(3000);
            measure(&server, (kind, version), &mut costs);
        }
    }
    if std::env::var_os("HITHER_RENEW").is_some() {
        let mut text = serde_json::to_string_pretty(&costs).unwrap();
        text.push('\n');
        fs::write(bench("trend/messages.json"), text).unwrap();
        return;
    }
    let recorded: Costs = serde_json::from_slice(&fs::read(bench("trend/messages.json")).unwrap()).unwrap();
    let mut faults = Vec::new();
    for (workload, by_mount) in &costs {
        for (mount, &sent) in by_mount {
            let Some(&expected) = recorded.get(workload).and_then(|by_mount| by_mount.get(mount)) else {
                faults.push(format!("{workload}, {mount}: {sent} messages, nothing recorded (make trend)"));
                continue;
            };
            if sent > expected + (expected / TOLERANCE_PART).max(TOLERANCE_MIN) {
                faults.push(format!("{workload}, {mount}: {sent} messages, recorded are {expected}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
