//! Messages of programs that traverse trees, and the age of the attributes that they see.
//!
//! The tests need root, nfs-ganesha and git. `cargo test -p hither --test traversals` prints the
//! counts with `-- --include-ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::messages::{SERVERS, Server};
use common::{pause, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// A test tree: 111 directories with 10 files in each of the lowest 100.
fn tree(root: &Path) {
    for a in 0..10 {
        for b in 0..10 {
            let dir = root.join(format!("dir{a}/sub{b}"));
            fs::create_dir_all(&dir).unwrap();
            for f in 0..10 {
                fs::write(dir.join(format!("file{f}")), "contents").unwrap();
            }
        }
    }
}

/// A server with a tree in its directory `tree`.
fn start(kind: &str) -> Server {
    let server = Server::start(kind);
    tree(&server.exported("tree"));
    server
}

/// A traversal costs few messages, cold and after all timeouts. It shows another client's changes
/// made before the timeouts.
/// Promise: 8
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn traversals_cost_few_messages() {
    for kind in SERVERS {
        let server = start(kind);
        pause(3000);
        let other = server.mount("vers=4.2", "other");
        for script in ["find . -type f | wc -l", "ls -lR | grep -c file", "du -a | grep -c file"] {
            println!("{kind}");
            let mount = server.mount("vers=4.2,actimeo=3", "mnt");
            let (out, cold) = mount.messages("tree", script);
            assert_eq!(out.trim(), "1000");
            assert!(cold <= 20, "{kind}, {script}: {cold} messages cold");
            let added = other.0.join("tree/dir7/sub7/file10");
            fs::write(&added, "").unwrap();
            pause(3500);
            let (out, expired) = mount.messages("tree", script);
            assert_eq!(out.trim(), "1001");
            assert!(expired <= 14, "{kind}, {script}: {expired} messages after all timeouts");
            fs::remove_file(&added).unwrap();
        }
    }
}

/// Attributes that were fetched ahead are no older than `acregmax` allows, and an open finds what
/// another client wrote.
/// Promise: 7, 8
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn attributes_ahead_keep_their_age() {
    for kind in SERVERS {
        let server = start(kind);
        let [mount, other] = ["mnt", "other"].map(|name| server.mount("vers=4.2,actimeo=2", name));
        let [seen, there] = [&mount, &other].map(|mount| mount.0.join("tree/dir9/sub9/file9"));
        for round in 0..3u32 {
            mount.messages("tree", "find . -type f > /dev/null");
            let text = format!("contents of round {round}");
            fs::write(&there, &text).unwrap();
            fs::set_permissions(&there, PermissionsExt::from_mode(0o600 + round)).unwrap();
            assert_eq!(fs::read_to_string(&seen).unwrap(), text, "close-to-open");
            fs::set_permissions(&there, PermissionsExt::from_mode(0o700 + round)).unwrap();
            pause(2100);
            let found = fs::metadata(&seen).unwrap();
            assert_eq!((found.len(), found.mode() & 0o777), (text.len() as u64, 0o700 + round));
        }
    }
}

/// readlink(2) of a path costs one message, and none for another object of a listed directory.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn readlink_costs_one_message() {
    for kind in SERVERS {
        let server = start(kind);
        std::os::unix::fs::symlink("../dir2/sub3", server.exported("tree/dir3/link")).unwrap();
        let mount = server.mount("vers=4.2", "mnt");
        mount.messages("tree", "true");
        let (out, sent) = mount.messages("tree", "readlink dir3/link");
        assert_eq!((out.trim(), sent), ("../dir2/sub3", 1), "{kind}");
        let (out, sent) = mount.messages("tree", "readlink dir3/sub3 || echo no link");
        assert_eq!((out.trim(), sent), ("no link", 0), "{kind}: the listing is known");
    }
}

/// `git status` on a cold mount: two threads look up the entries of the index, each one after the
/// other.
#[test]
#[ignore = "needs root, nfs-ganesha and git"]
fn cold_git_status_costs_few_messages() {
    for kind in SERVERS {
        println!("{kind}");
        let server = start(kind);
        let status = "git -c safe.directory=* status -s";
        let new = "git init -q . && git add . && git -c user.name=a -c user.email=a@b.c commit -q -m all";
        run(Command::new("sh").args(["-ec", new]).current_dir(server.exported("tree"))).ok();
        pause(3000);
        // The index gets the inode numbers of this mount.
        server.mount("vers=4.2", "mnt").messages("tree", status);
        for _ in 0..2 {
            let mount = server.mount("vers=4.2", "mnt");
            let (out, sent) = mount.messages("tree", status);
            assert_eq!(out, "");
            assert!(sent <= 60, "{kind}: {sent} messages");
        }
    }
}
