//! `subtree=PATH:MODE`: each directory keeps its own promise in a mount, while another client
//! changes files.
//!
//! The tests need root and nfs-ganesha: `cargo test -p hither --test subtree -- --include-ignored`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{Ganesha, HITHER, hither, run};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The server, and the protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ganesha(&'static str),
    /// `hither serve --max-delegations`.
    Delegating,
}

const KINDS: [Kind; 3] = [Kind::Ganesha("4.2"), Kind::Ganesha("3"), Kind::Delegating];

enum Server {
    Ganesha(Ganesha),
    Hither(Serve),
}

/// A mount with subtrees, and a mount of another client.
struct Two {
    a: PathBuf,
    b: PathBuf,
    server: Server,
    version: &'static str,
}

const RULES: &str =
    "subtree=datasets:frozen,subtree=queue:strict,subtree=deep/er/queue:strict,subtree=seconds:bounded=2";

impl Two {
    fn mount(kind: Kind, options: &str) -> Self {
        let server = match kind {
            Kind::Ganesha(_) => Server::Ganesha(Ganesha::start()),
            Kind::Delegating => {
                let mut server = Serve::of_directory().with(&["--max-delegations", "1000"]);
                server.serve();
                Server::Hither(server)
            }
        };
        let version = if let Kind::Ganesha(version) = kind { version } else { "4.2" };
        let dir = |name: &str| match &server {
            Server::Ganesha(ganesha) => ganesha.dir.path().join(name),
            Server::Hither(server) => server.mnt(name),
        };
        let (a, b) = (dir("a"), dir("b"));
        let two = Self { a, b, server, version };
        for dir in [&two.a, &two.b] {
            fs::create_dir_all(dir).unwrap();
        }
        // The other client sees new files of this mount at once.
        two.mount_on(&two.b, "actimeo=0,lookupcache=none");
        for dir in ["datasets/v1", "queue/in", "rest", "deep/er/queue", "seconds"] {
            fs::create_dir_all(two.b.join(dir)).unwrap();
        }
        two.mount_on(&two.a, options);
        two
    }

    fn mount_on(&self, dir: &Path, options: &str) {
        let options = format!("vers={},{options}", self.version);
        match &self.server {
            Server::Ganesha(ganesha) => ganesha.mount(&options, dir).ok(),
            Server::Hither(server) => server.mount(&options, dir).ok(),
        };
    }

    fn unmount(self) {
        for mnt in [&self.a, &self.b] {
            run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        }
    }
}

impl Drop for Two {
    /// Unmounts after a failed test. The fixture's directory cannot be removed while its mounts
    /// wait for its server.
    fn drop(&mut self) {
        for mnt in [&self.a, &self.b] {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Calls to the server since the mount, by operation.
fn operations(mnt: &Path) -> BTreeMap<String, u64> {
    let out = Command::new(HITHER).args(["stat", "--json"]).arg(mnt).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let operations = report["operations"].as_array().unwrap();
    let one = |o: &serde_json::Value| (o["name"].as_str().unwrap().to_owned(), o["calls"].as_u64().unwrap());
    operations.iter().map(one).collect()
}

/// Number of all calls, without lease renewals and CLOSE.
fn calls(mnt: &Path) -> u64 {
    let counted = operations(mnt).into_iter().filter(|(op, _)| !matches!(&op[..], "SEQUENCE" | "CLOSE"));
    counted.map(|(_, calls)| calls).sum()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The mount asks for a frozen part only once. A strict part is never stale, and the rest keeps
/// close-to-open.
/// Promise: 8e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn each_subtree_keeps_its_mode() {
    for kind in KINDS {
        let two = Two::mount(kind, RULES);
        let (a, b) = (&two.a, &two.b);
        let files = ["datasets/v1/f", "queue/in/f", "rest/f", "deep/er/queue/f", "seconds/f", "deep/er/f"];
        for file in files {
            fs::write(b.join(file), "1").unwrap();
        }
        for file in files {
            assert_eq!(read(&a.join(file)), "1", "{kind:?}: {file}");
        }
        std::thread::sleep(Duration::from_secs(4));
        let frozen = a.join("datasets/v1/f");
        let before = calls(a);
        for _ in 0..20 {
            assert_eq!(read(&frozen), "1");
            assert_eq!(fs::metadata(&frozen).unwrap().len(), 1);
            assert_eq!(names(&a.join("datasets/v1")).len(), 1);
        }
        // The first listing sends requests. Later listings send none.
        let listed = calls(a);
        assert!(listed - before <= 3, "{kind:?}: {} calls", listed - before);
        for _ in 0..20 {
            assert_eq!(read(&frozen), "1");
            assert_eq!(names(&a.join("datasets/v1")).len(), 1);
        }
        assert_eq!(calls(a), listed, "{kind:?}: warm opens of frozen files");
        strict(kind, &a.join("queue/in"), &b.join("queue/in"));
        strict(kind, &a.join("deep/er/queue"), &b.join("deep/er/queue"));
        for file in files {
            fs::write(b.join(file), "22").unwrap();
        }
        for file in ["rest/f", "deep/er/f", "queue/in/f"] {
            assert_eq!(read(&a.join(file)), "22", "{kind:?}: {file}");
        }
        assert_eq!(read(&frozen), "1", "{kind:?}: the first contents stay");
        common::wait_for("the end of the bound", 6, || read(&a.join("seconds/f")) == "22");
        two.unmount();
    }
}

/// Changes of all kinds by another client. The next call of this mount sees each of them.
fn strict(kind: Kind, here: &Path, there: &Path) {
    let (f, g) = ("f", "g");
    for i in 0..12 {
        let bytes = "x".repeat(1 + i);
        fs::write(there.join(f), &bytes).unwrap();
        assert_eq!(fs::metadata(here.join(f)).unwrap().len(), bytes.len() as u64, "{kind:?}: stat {i}");
        assert_eq!(read(&here.join(f)), bytes, "{kind:?}: read {i}");
        assert_eq!(fs::metadata(here.join(g)).unwrap_err().kind(), ErrorKind::NotFound, "{kind:?}");
        fs::rename(there.join(f), there.join(g)).unwrap();
        assert_eq!(read(&here.join(g)), bytes, "{kind:?}: the new name {i}");
        assert!(!here.join(f).exists(), "{kind:?}: the old name {i}");
        assert_eq!(names(here), names(there), "{kind:?}: the listing {i}");
        fs::write(there.join(f), "other").unwrap();
        assert_eq!(read(&here.join(f)), "other", "{kind:?}: another file {i}");
        fs::remove_file(there.join(g)).unwrap();
        assert!(!here.join(g).exists(), "{kind:?}: removed {i}");
    }
    // A file that is held open shows later writes. This mount's writes are at the server at once.
    let held = fs::OpenOptions::new().read(true).write(true).open(here.join(f)).unwrap();
    use std::os::unix::fs::FileExt;
    for i in 0..12_u8 {
        let (mut seen, bytes) = ([0; 8], [b'a' + i; 8]);
        fs::write(there.join(f), bytes).unwrap();
        held.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, bytes, "{kind:?}: an open file {i}");
        held.write_all_at(&[b'A' + i; 8], 0).unwrap();
        assert_eq!(fs::read(there.join(f)).unwrap(), [b'A' + i; 8], "{kind:?}: written through {i}");
    }
}

/// A directory that is made later follows its rule from the beginning. A file of that name follows
/// the rule of its directory only.
/// Promise: 8e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn new_names_follow_their_rule() {
    for kind in KINDS {
        let two = Two::mount(kind, "subtree=later/on:strict,subtree=file:frozen");
        let (a, b) = (&two.a, &two.b);
        assert!(!a.join("later").exists());
        fs::create_dir_all(a.join("later/on/in")).unwrap();
        strict(kind, &a.join("later/on/in"), &b.join("later/on/in"));
        fs::write(a.join("file"), "1").unwrap();
        fs::write(b.join("file"), "22").unwrap();
        assert_eq!(read(&a.join("file")), "22", "{kind:?}: close-to-open");
        fs::remove_dir_all(a.join("later")).unwrap();
        assert!(!b.join("later").exists());
        two.unmount();
    }
}

/// Renames and links from one subtree into another fail, so only a copy moves data. Within a
/// subtree they work as usual.
/// Promise: 8e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn renames_and_links_stay_within() {
    for kind in KINDS {
        let two = Two::mount(kind, RULES);
        let a = &two.a;
        fs::write(a.join("queue/in/f"), "f").unwrap();
        fs::write(a.join("rest/r"), "r").unwrap();
        let across = [
            ("queue/in/f", "rest/f"),
            ("rest/r", "queue/r"),
            ("rest", "datasets/rest"),
            ("deep", "other"),
            ("queue", "q2"),
        ];
        for (from, to) in across {
            let e = fs::rename(a.join(from), a.join(to)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::CrossesDevices, "{kind:?}: {from}");
        }
        for (from, to) in [("queue/in/f", "rest/l"), ("rest/r", "datasets/l")] {
            let e = fs::hard_link(a.join(from), a.join(to)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::CrossesDevices, "{kind:?}: {from}");
        }
        fs::rename(a.join("queue/in/f"), a.join("queue/g")).unwrap();
        // Two subtrees of one mode, and directories beside the path of a subtree.
        fs::rename(a.join("queue/g"), a.join("deep/er/queue/g")).unwrap();
        fs::rename(a.join("rest"), a.join("deep/rest")).unwrap();
        fs::hard_link(a.join("deep/rest/r"), a.join("deep/er/r")).unwrap();
        assert_eq!((read(&a.join("deep/er/queue/g")), read(&a.join("deep/er/r"))), ("f".into(), "r".into()));
        run(Command::new("mv").arg(a.join("deep/er/queue/g")).arg(a.join("deep/er/g"))).ok();
        assert_eq!(read(&two.b.join("deep/er/g")), "f");
        fs::copy(a.join("deep/er/g"), a.join("queue/copy")).unwrap();
        assert_eq!(read(&a.join("queue/copy")), "f");
        two.unmount();
    }
}

/// By each of its names a file follows the promise of that name's subtree. All names show this
/// mount's changes.
/// Promise: 8e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn hard_links_follow_their_subtrees() {
    for kind in KINDS {
        let two = Two::mount(kind, RULES);
        let (a, b) = (&two.a, &two.b);
        fs::write(b.join("rest/l"), "1").unwrap();
        for other in ["queue/l", "datasets/l"] {
            fs::hard_link(b.join("rest/l"), b.join(other)).unwrap();
        }
        let [rest, queue, datasets] = ["rest/l", "queue/l", "datasets/l"].map(|name| a.join(name));
        for name in [&rest, &queue, &datasets] {
            assert_eq!(read(name), "1");
            assert_eq!(fs::metadata(name).unwrap().ino(), fs::metadata(&rest).unwrap().ino(), "{kind:?}");
        }
        for i in 2..8 {
            let bytes = "2".repeat(i);
            fs::write(b.join("rest/l"), &bytes).unwrap();
            assert_eq!(fs::metadata(&queue).unwrap().len(), i as u64, "{kind:?}");
            assert_eq!(read(&queue), bytes, "{kind:?}");
            assert_eq!(read(&rest), bytes, "{kind:?}");
            assert_eq!(read(&datasets), "1", "{kind:?}");
        }
        for (i, by) in [&rest, &queue, &datasets].into_iter().cycle().take(9).enumerate() {
            let bytes = "own".repeat(i + 1);
            fs::write(by, &bytes).unwrap();
            for name in [&rest, &queue, &datasets] {
                assert_eq!(read(name), bytes, "{kind:?}: {} after {}", name.display(), by.display());
            }
        }
        two.unmount();
    }
}

/// A directory that another client moves into a strict subtree is strict from then on. This
/// includes its earlier cached state.
/// Promise: 8e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn foreign_move_changes_mode() {
    for kind in KINDS {
        let two = Two::mount(kind, RULES);
        let (a, b) = (&two.a, &two.b);
        fs::create_dir_all(b.join("datasets/d/e")).unwrap();
        fs::write(b.join("datasets/d/e/f"), "1").unwrap();
        assert_eq!(read(&a.join("datasets/d/e/f")), "1");
        assert_eq!(names(&a.join("datasets/d/e")), ["f"]);
        let inside = fs::File::open(a.join("datasets/d/e/f")).unwrap();
        fs::rename(b.join("datasets/d"), b.join("queue/d")).unwrap();
        strict(kind, &a.join("queue/d/e"), &b.join("queue/d/e"));
        drop(inside);
        two.unmount();
    }
}

/// Frozen data is kept on the local disk and requested once, also by the next mount. A strict part
/// bypasses the disk.
/// Promise: 8e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn with_a_disk_cache() {
    for kind in KINDS {
        let keep = tempfile::tempdir().unwrap();
        let options =
            format!("{RULES},cache={},cache-age=0,prefetch=off", keep.path().join("cache").display());
        let two = Two::mount(kind, &options);
        let (a, b) = (&two.a, &two.b);
        let (here, big) = (a.join("datasets/v1/big"), "b".repeat(300_000));
        fs::write(b.join("datasets/v1/big"), &big).unwrap();
        // A file that has just changed could change again without a new time stamp.
        std::thread::sleep(Duration::from_secs(7));
        assert_eq!(read(&here), big);
        std::thread::sleep(Duration::from_secs(4));
        let before = calls(a);
        for _ in 0..10 {
            assert_eq!(read(&here), big);
        }
        assert_eq!(calls(a), before, "{kind:?}: warm opens");
        strict(kind, &a.join("queue/in"), &b.join("queue/in"));
        run(Command::new(HITHER).arg("umount").arg(a)).ok();
        two.mount_on(a, &options);
        common::wait_for("the disk cache to be in use", 120, || {
            let said = hither(&["cache", "status", "--json", a.to_str().unwrap()]);
            let status: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
            status["room"].is_object()
        });
        assert_eq!(read(&here), big);
        // With NFSv3 the mount may send a READ together with the first open.
        let (asked, most) = (operations(a).get("READ").copied().unwrap_or(0), u64::from(two.version == "3"));
        assert!(asked <= most, "{kind:?}: the file is cached, {asked} READs");
        strict(kind, &a.join("queue/in"), &b.join("queue/in"));
        two.unmount();
    }
}

/// `hither why` names the rule of a file, and `hither stat` shows all rules.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn rules_are_told() {
    let two = Two::mount(Kind::Ganesha("4.2"), RULES);
    for (file, promise) in [
        (
            "datasets/v1/f",
            "consistency=frozen: the export does not change, nothing is asked twice (subtree=datasets:frozen)",
        ),
        ("deep/er/queue/f", "(subtree=deep/er/queue:strict)"),
        ("rest/f", "close-to-open: an open asks the server"),
    ] {
        fs::write(two.b.join(file), "1").unwrap();
        assert_eq!(read(&two.a.join(file)), "1");
        let said = hither(&["why", two.a.join(file).to_str().unwrap()]).ok();
        assert!(said.out.contains(promise), "{file}: {}", said.out);
        // All parts of the path are cached, in whichever cache of the mount they are.
        assert!(!said.out.contains("the rest of the path: not cached"), "{file}: {}", said.out);
    }
    let said = hither(&["stat", two.a.to_str().unwrap()]).ok();
    assert!(said.out.contains("subtree=datasets:frozen,subtree=queue:strict"), "{}", said.out);
    two.unmount();
}

/// A recall of a delegation drops no cached state of a mount that is frozen as a whole.
/// Promise: 8c
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn frozen_mount_outlives_recalls() {
    for kind in KINDS {
        let two = Two::mount(kind, "consistency=frozen");
        fs::write(two.b.join("rest/f"), "1").unwrap();
        assert_eq!(read(&two.a.join("rest/f")), "1");
        for len in 2..8 {
            fs::write(two.b.join("rest/f"), "2".repeat(len)).unwrap();
            assert_eq!(read(&two.a.join("rest/f")), "1", "{kind:?}");
            assert_eq!(fs::metadata(two.a.join("rest/f")).unwrap().len(), 1, "{kind:?}");
        }
        fs::write(two.a.join("rest/f"), "own").unwrap();
        assert_eq!(read(&two.a.join("rest/f")), "own", "{kind:?}");
        two.unmount();
    }
}
