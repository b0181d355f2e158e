//! A large tree in the disk cache, after an orderly end of its daemon and after a kill. A message
//! revalidates many files, and no byte of them is fetched again.
//!
//! The test needs root and nfs-ganesha. `HITHER_FILES` is the number of files. This command prints
//! the cost:
//! `HITHER_FILES=10000 cargo test -p hither --test revalidation -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, daemons, hither, mix, pause, run, wait_for};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of directories of the tree.
const DIRS: usize = 40;

/// A tree, and the contents of its files.
struct Tree {
    files: usize,
}

impl Tree {
    fn name(n: usize) -> PathBuf {
        format!("t/d{}/f{n}", n % DIRS).into()
    }

    fn bytes(n: usize) -> Vec<u8> {
        let lines = 30 + mix(n as u64) % 300;
        (0..lines).flat_map(|i| format!("{n:07}:{i:07}\n").into_bytes()).collect()
    }

    fn make(&self, root: &Path) {
        for d in 0..DIRS {
            std::fs::create_dir_all(root.join(format!("t/d{d}"))).unwrap();
        }
        for n in 0..self.files {
            std::fs::write(root.join(Self::name(n)), Self::bytes(n)).unwrap();
        }
    }

    fn read(&self, mnt: &Path) {
        for n in 0..self.files {
            assert!(std::fs::read(mnt.join(Self::name(n))).unwrap() == Self::bytes(n), "{n}");
        }
    }
}

fn report(mnt: &Path) -> Value {
    let said = hither(&["stat", "--json", mnt.to_str().unwrap()]).ok();
    serde_json::from_str(&said.out).unwrap()
}

fn sum(report: &Value, of: &str, what: &str) -> u64 {
    report[of].as_array().unwrap().iter().map(|o| o[what].as_u64().unwrap()).sum()
}

/// Calls sent and bytes received since the mount.
fn cost(mnt: &Path) -> (u64, u64) {
    let report = report(mnt);
    (sum(&report, "operations", "calls"), sum(&report, "connections", "bytes_received"))
}

fn counter(mnt: &Path, layer: &str, name: &str) -> u64 {
    report(mnt)["layers"][layer][name].as_u64().unwrap()
}

fn umount(mnt: &Path) {
    hither(&["umount", mnt.to_str().unwrap()]).ok();
}

fn kill(mnt: &Path) {
    for pid in daemons(mnt) {
        run(Command::new("kill").args(["-KILL", &pid.to_string()])).ok();
    }
    run(Command::new("umount").arg("-l").arg(mnt)).ok();
    wait_for("the end of the daemon", 60, || daemons(mnt).is_empty());
}

/// The next mount revalidates a large cached tree with many files in a message, and fetches no byte
/// again.
/// Promise: 11b
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn large_tree_revalidates_in_batches() {
    let files = std::env::var("HITHER_FILES").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000);
    let tree = Tree { files };
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    tree.make(&ganesha.export(""));
    // A file that changed a moment ago may change again without a new time stamp, so its stamp
    // proves nothing.
    pause(7_000);
    for version in ["4.2", "3"] {
        let dir = ganesha.dir.path().join(format!("cache-{version}"));
        // Attributes stay valid for longer than the test takes, so the mount asks for nothing
        // twice.
        let options = format!("vers={version},nocto,actimeo=3600,cache={},cache-age=0", dir.display());
        let learn = || {
            tree.read(&mnt);
            let cost = cost(&mnt);
            wait_for("all files in the cache", 120, || {
                counter(&mnt, "disk", "entries") == files as u64 && counter(&mnt, "disk", "queue_bytes") == 0
            });
            cost
        };
        ganesha.mount_with_cache(&options, &mnt);
        let first = learn();
        umount(&mnt);
        println!("vers={version}: {files} files, {first:?} calls and bytes at first");
        for killed in [true, false] {
            ganesha.mount_with_memory(&options, &mnt, files as u64, || {
                learn();
            });
            let before = cost(&mnt);
            tree.read(&mnt);
            let after = cost(&mnt);
            let (calls, bytes) = (after.0 - before.0, after.1 - before.1);
            let questions = counter(&mnt, "meta", "batches");
            println!("vers={version}: {calls} calls in {questions} questions, {bytes} bytes received");
            assert_eq!(counter(&mnt, "disk", "fetched_bytes"), 0);
            assert_eq!(counter(&mnt, "disk", "passed_reads"), 0);
            // NFSv3 needs a call for each file.
            if version != "3" {
                // A request covers at least 11 files, and a message about as many.
                assert!(calls <= files as u64 / 8, "{calls} calls");
                assert!(bytes < first.1 / 4, "{bytes} bytes of {}", first.1);
            }
            if killed { kill(&mnt) } else { umount(&mnt) }
        }
    }
}
