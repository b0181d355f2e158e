//! Messages of programs that traverse trees, and the age of the attributes that they see.
//!
//! The tests need root, nfs-ganesha and git. `cargo test -p hither --test traversals` prints the
//! counts with `-- --include-ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, hither, is_mounted, pause, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const SERVERS: [&str; 2] = ["ganesha", "hither"];

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
enum Server {
    Ganesha(Ganesha),
    Hither(Serve),
}

impl Server {
    fn start(kind: &str) -> Self {
        let server = match kind {
            "ganesha" => Self::Ganesha(Ganesha::start()),
            _ => {
                let mut server = Serve::of_directory();
                server.serve();
                Self::Hither(server)
            }
        };
        fs::create_dir(server.exported("tree")).unwrap();
        tree(&server.exported("tree"));
        server
    }

    /// A path in the server's own file system.
    fn exported(&self, path: &str) -> PathBuf {
        match self {
            Self::Ganesha(ganesha) => ganesha.export(path),
            Self::Hither(server) => server.export(path),
        }
    }

    /// Mounts the server on a directory of this name.
    fn mount(&self, options: &str, name: &str) -> Mount {
        let mnt = match self {
            Self::Ganesha(ganesha) => ganesha.dir.path().join(name),
            Self::Hither(server) => server.mnt(name),
        };
        let _ = fs::create_dir(&mnt);
        match self {
            Self::Ganesha(ganesha) => ganesha.mount(options, &mnt).ok(),
            Self::Hither(server) => server.mount(options, &mnt).ok(),
        };
        Mount(mnt)
    }
}

struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            hither(&["umount", self.0.to_str().unwrap()]).ok();
        }
    }
}

impl Mount {
    fn operations(&self) -> BTreeMap<String, u64> {
        let said = hither(&["stat", "--json", self.0.to_str().unwrap()]).ok();
        let report: Value = serde_json::from_str(&said.out).unwrap();
        let all = report["operations"].as_array().unwrap().iter();
        all.map(|op| (op["name"].as_str().unwrap().to_string(), op["calls"].as_u64().unwrap())).collect()
    }

    /// The output of a script in the tree, and the number of its messages.
    fn messages(&self, script: &str) -> (String, u64) {
        let before = self.operations();
        let said = run(Command::new("sh").args(["-ec", script]).current_dir(self.0.join("tree"))).ok();
        let mut sent = self.operations();
        for (name, calls) in before {
            sent.entry(name).and_modify(|n| *n -= calls);
        }
        sent.retain(|_, n| *n > 0);
        let total = sent.values().sum();
        println!("{script}: {total} {sent:?}");
        (said.out, total)
    }
}

/// A traversal costs few messages, cold and after all timeouts. It shows another client's changes
/// made before the timeouts.
/// Promise: 8
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn traversals_cost_few_messages() {
    for kind in SERVERS {
        let server = Server::start(kind);
        pause(3000);
        let other = server.mount("vers=4.2", "other");
        for script in ["find . -type f | wc -l", "ls -lR | grep -c file", "du -a | grep -c file"] {
            println!("{kind}");
            let mount = server.mount("vers=4.2,actimeo=3", "mnt");
            let (out, cold) = mount.messages(script);
            assert_eq!(out.trim(), "1000");
            assert!(cold <= 20, "{kind}, {script}: {cold} messages cold");
            let added = other.0.join("tree/dir7/sub7/file10");
            fs::write(&added, "").unwrap();
            pause(3500);
            let (out, expired) = mount.messages(script);
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
        let server = Server::start(kind);
        let [mount, other] = ["mnt", "other"].map(|name| server.mount("vers=4.2,actimeo=2", name));
        let [seen, there] = [&mount, &other].map(|mount| mount.0.join("tree/dir9/sub9/file9"));
        for round in 0..3u32 {
            mount.messages("find . -type f > /dev/null");
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
        let server = Server::start(kind);
        std::os::unix::fs::symlink("../dir2/sub3", server.exported("tree/dir3/link")).unwrap();
        let mount = server.mount("vers=4.2", "mnt");
        mount.messages("true");
        let (out, sent) = mount.messages("readlink dir3/link");
        assert_eq!((out.trim(), sent), ("../dir2/sub3", 1), "{kind}");
        let (out, sent) = mount.messages("readlink dir3/sub3 || echo no link");
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
        let server = Server::start(kind);
        let status = "git -c safe.directory=* status -s";
        let new = "git init -q . && git add . && git -c user.name=a -c user.email=a@b.c commit -q -m all";
        run(Command::new("sh").args(["-ec", new]).current_dir(server.exported("tree"))).ok();
        pause(3000);
        // The index gets the inode numbers of this mount.
        server.mount("vers=4.2", "mnt").messages(status);
        for _ in 0..2 {
            let mount = server.mount("vers=4.2", "mnt");
            let (out, sent) = mount.messages(status);
            assert_eq!(out, "");
            assert!(sent <= 60, "{kind}: {sent} messages");
        }
    }
}
