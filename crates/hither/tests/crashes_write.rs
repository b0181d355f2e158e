//! A mount with a journal of delayed writes whose daemon is killed at random moments, over and
//! over, while programs write. After the next mount every acknowledged write is at the server or in
//! a reported conflict. No other byte is wrong.
//!
//! A record carries number, writer, place and checksum. The tests need root and nfs-ganesha.
//! `HITHER_SEED` repeats a history as far as scheduling allows. `HITHER_CRASHES` is the number of
//! kills. `make crashes-write` runs the campaign.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Random, daemons, pause, record, run, wait_for};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The knowledge of one writer: its file, and the acknowledged data.
struct Writer {
    id: u64,
    path: PathBuf,
    len: usize,
    /// Whether the writer overwrites old places. Other writers only append.
    overwrites: bool,
    number: u64,
    /// Newest acknowledged number of each place. `synced` has the numbers that a successful fsync
    /// covers.
    acked: BTreeMap<u64, u64>,
    synced: BTreeMap<u64, u64>,
    /// The place and number of a write that began and was not acknowledged.
    tried: Option<(u64, u64)>,
    /// First place of a truncation that began and was not acknowledged. Later places may be gone.
    cut: Option<u64>,
}

impl Writer {
    fn open(&self, mnt: &Path) -> std::io::Result<File> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mnt.join(&self.path))
    }

    /// Writes until the daemon is gone. Returns the number of acknowledged writes.
    fn write(&mut self, mnt: &Path, mut r: Random) -> u64 {
        let mut acknowledged = 0;
        (self.tried, self.cut) = (None, None);
        let Ok(mut file) = self.open(mnt) else { return 0 };
        loop {
            let end = self.acked.keys().next_back().map_or(0, |last| last + 1);
            let place = if self.overwrites && end > 4 { r.below(end + 2) } else { end };
            self.number += 1;
            self.tried = Some((place, self.number));
            let bytes = record(self.id, place, self.number, self.len);
            if file.write_all_at(&bytes, place * self.len as u64).is_err() {
                return acknowledged;
            }
            self.acked.insert(place, self.number);
            self.tried = None;
            acknowledged += 1;
            match r.below(60) {
                0 | 1 => {
                    if file.sync_all().is_err() {
                        return acknowledged;
                    }
                    self.synced = self.acked.clone();
                }
                2 => {
                    drop(file);
                    let Ok(again) = self.open(mnt) else { return acknowledged };
                    file = again;
                }
                3 if self.overwrites && end > 8 => {
                    let keep = end / 2 + r.below(end / 2);
                    self.cut = Some(keep);
                    if file.set_len(keep * self.len as u64).is_err() {
                        return acknowledged;
                    }
                    self.acked.split_off(&keep);
                    self.synced.split_off(&keep);
                    self.cut = None;
                }
                4 => pause(r.below(20)),
                _ => {}
            }
        }
    }

    /// Compares a copy of the file with the acknowledged or synced data. Returns the fault.
    fn wrong(&self, bytes: &[u8], promised: &BTreeMap<u64, u64>) -> Option<String> {
        for (&place, &number) in promised {
            if self.cut.is_some_and(|cut| place >= cut) {
                continue;
            }
            // A record that was synced and written again has one of the versions in between.
            let again = self.acked.get(&place) != Some(&number)
                || self.tried.is_some_and(|(tried, _)| tried == place);
            if again && !std::ptr::eq(promised, &self.acked) {
                continue;
            }
            let at = place as usize * self.len;
            let Some(is) = bytes.get(at..at + self.len) else {
                return Some(format!(
                    "place {place}: number {number} is lost, the file ends at {}",
                    bytes.len()
                ));
            };
            if let Some((_, tried)) = self.tried.filter(|(tried, _)| *tried == place) {
                // A write that was not acknowledged may be present in part. Each byte belongs to
                // that write or to the one before.
                let (old, new) =
                    (record(self.id, place, number, self.len), record(self.id, place, tried, self.len));
                if let Some(i) = (0..is.len()).find(|&i| is[i] != old[i] && is[i] != new[i]) {
                    return Some(format!(
                        "place {place}, byte {i}: neither of {number} nor of {tried}, which was tried"
                    ));
                }
                continue;
            }
            let told = u64::from_le_bytes(is[..8].try_into().unwrap());
            let known = told == number;
            if !known || is != record(self.id, place, told, self.len) {
                return Some(format!("place {place}: number {told} instead of {number}"));
            }
        }
        None
    }
}

/// Kills the daemon by a system call. A kill command would be a child of this process. The child
/// would close copies of the open files, and a close flushes.
fn kill(mnt: &Path) {
    for pid in daemons(mnt) {
        let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

struct Campaign {
    ganesha: Ganesha,
    mnt: PathBuf,
    other: PathBuf,
    options: String,
    exclusive: bool,
    writers: Vec<Writer>,
    random: Random,
    conflicts: u64,
    replayed: u64,
}

impl Drop for Campaign {
    fn drop(&mut self) {
        for mnt in [&self.mnt, &self.other] {
            let _ = Command::new("umount").arg("-l").arg(mnt).stderr(std::process::Stdio::null()).status();
        }
    }
}

fn kept(mnt: &Path) -> Vec<(String, String)> {
    let said = run(Command::new(HITHER).args(["conflicts", "ls", "--json"]).arg(mnt)).ok();
    let all: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    all["conflicts"].as_array().unwrap().iter().map(|c| (text(&c["name"]), text(&c["path"]))).collect()
}

fn counter(mnt: &Path, name: &str) -> u64 {
    counter_of(mnt, "journal", name)
}

fn report(mnt: &Path) -> serde_json::Value {
    let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(mnt));
    serde_json::from_str(&said.out).unwrap_or_default()
}

fn counter_of(mnt: &Path, layer: &str, name: &str) -> u64 {
    report(mnt)["layers"][layer][name].as_u64().unwrap_or(0)
}

/// Messages whose main operation is `op`.
fn calls_of(mnt: &Path, op: &str) -> u64 {
    let report = report(mnt);
    let all = report["operations"].as_array().into_iter().flatten();
    all.filter(|o| o["name"] == op).map(|o| o["calls"].as_u64().unwrap_or(0)).sum()
}

impl Campaign {
    fn start(seed: u64, version: &str, exclusive: bool) -> Self {
        let ganesha = Ganesha::start();
        let (mnt, other) = (ganesha.mnt(), ganesha.dir.path().join("mnt2"));
        std::fs::create_dir(&other).unwrap();
        ganesha.mount(&format!("vers={version}"), &other).ok();
        let journal = ganesha.dir.path().join("journals");
        let word = if exclusive { ",exclusive" } else { "" };
        let options = format!(
            "vers={version},writeback=journal,journal-dir={}{word},dirty-age=2,dirty-max=32M",
            journal.display()
        );
        let writer = |(id, (len, overwrites)): (usize, (usize, bool))| Writer {
            id: id as u64,
            path: format!("f{id}").into(),
            len,
            overwrites,
            number: 0,
            acked: BTreeMap::new(),
            synced: BTreeMap::new(),
            tried: None,
            cut: None,
        };
        let kinds =
            [(100, false), (1000, true), (9000, false), (8192, true), (300_000, false), (150_000, true)];
        let writers = kinds.into_iter().enumerate().map(writer).collect();
        let random = Random(seed);
        Self { ganesha, mnt, other, options, exclusive, writers, random, conflicts: 0, replayed: 0 }
    }

    fn mount(&self) {
        self.ganesha.mount(&self.options, &self.mnt).ok();
    }

    fn kill(&self) {
        kill(&self.mnt);
    }

    fn bury(&self) {
        run(Command::new("umount").arg("-l").arg(&self.mnt)).ok();
        wait_for("the end of the daemon", 60, || daemons(&self.mnt).is_empty());
    }

    /// Runs one life of the daemon and checks the data in the next. Returns the number of
    /// acknowledged writes.
    fn life(&mut self) -> u64 {
        self.mount();
        self.replayed += counter(&self.mnt, "journal_replayed_files");
        let mut acknowledged = 0;
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for writer in &mut self.writers {
                if self.random.below(4) > 0 {
                    let (mnt, random) = (&self.mnt, Random(self.random.next()));
                    running.push(scope.spawn(move || writer.write(mnt, random)));
                } else {
                    (writer.tried, writer.cut) = (None, None);
                }
            }
            pause(self.random.below(1500));
            kill(&self.mnt);
            acknowledged = running.into_iter().map(|r| r.join().unwrap()).sum();
        });
        if !self.exclusive {
            for w in &self.writers {
                let bytes = std::fs::read(self.ganesha.export(w.path.to_str().unwrap())).unwrap_or_default();
                assert_eq!(
                    w.wrong(&bytes, &w.synced),
                    None,
                    "f{} before the next mount: fsync is the server's",
                    w.id
                );
            }
        }
        self.bury();
        self.mount();
        self.replayed += counter(&self.mnt, "journal_replayed_files");
        for (name, _) in kept(&self.mnt) {
            assert!(!self.exclusive, "no other client wrote: {name}");
            self.conflicts += 1;
            run(Command::new(HITHER).args(["conflicts", "apply"]).arg(&self.mnt).arg(name)).ok();
        }
        for w in &self.writers {
            let bytes = std::fs::read(self.ganesha.export(w.path.to_str().unwrap())).unwrap_or_default();
            assert_eq!(w.wrong(&bytes, &w.acked), None, "f{} after the next mount", w.id);
        }
        assert_eq!(kept(&self.mnt), [], "an applied conflict is still listed");
        self.settle();
        acknowledged
    }

    /// Looks for each unacknowledged write at the server, so that its state is known in the next
    /// life.
    fn settle(&mut self) {
        for w in &mut self.writers {
            let bytes = std::fs::read(self.ganesha.export(w.path.to_str().unwrap())).unwrap_or_default();
            if let Some(cut) = w.cut.take() {
                // The server may have cut the file before writes of the journal extended it again.
                let (id, len) = (w.id, w.len);
                w.acked.retain(|&place, number| {
                    let at = place as usize * len;
                    place < cut || bytes.get(at..at + len) == Some(&record(id, place, *number, len))
                });
                let left = &w.acked;
                w.synced.retain(|place, _| left.contains_key(place));
            }
            if let Some((place, number)) = w.tried.take() {
                let at = place as usize * w.len;
                let is = bytes.get(at..at + w.len);
                if is.is_some_and(|is| is == record(w.id, place, number, w.len)) {
                    w.acked.insert(place, number);
                } else if is.is_some_and(|is| {
                    w.acked.get(&place).is_some_and(|old| is != record(w.id, place, *old, w.len))
                }) {
                    // The write is present in part. The next write overwrites it.
                    w.acked.remove(&place);
                    w.synced.remove(&place);
                }
            }
        }
        if self.random.below(4) == 0 {
            run(Command::new(HITHER).arg("umount").arg(&self.mnt)).ok();
        } else {
            self.kill();
            self.bury();
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|n| n.parse().ok())
}

/// Acknowledged writes survive kills of the daemon, with and without `exclusive`.
/// Promise: 6c
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn acknowledged_writes_survive_daemon_kill() {
    let seed = number("HITHER_SEED").unwrap_or_else(rand::random);
    let crashes = number("HITHER_CRASHES").unwrap_or(8);
    println!("HITHER_SEED={seed}");
    let mut replayed = 0;
    for (version, exclusive) in [("4.2", false), ("4.2", true), ("3", false), ("3", true)] {
        let mut campaign = Campaign::start(seed, version, exclusive);
        let mut acknowledged = 0;
        // Goes on while no life lasted until the first write.
        for life in 0.. {
            if life >= crashes.div_ceil(4) && acknowledged > 0 {
                break;
            }
            assert!(life < 10 * crashes, "nothing was tested");
            acknowledged += campaign.life();
        }
        println!(
            "NFS {version}{}: {acknowledged} writes acknowledged; {} files replayed, {} conflicts reported and applied",
            if exclusive { ", exclusive" } else { "" },
            campaign.replayed,
            campaign.conflicts
        );
        replayed += campaign.replayed;
    }
    assert!(replayed > 0, "nothing was replayed");
}

/// Another client's change is not overwritten. The acknowledged data is kept, shown, and applied on
/// request.
/// Promise: 6d
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn foreign_change_causes_conflict() {
    for version in ["4.2", "3"] {
        let campaign = Campaign::start(1, version, false);
        let options = campaign.options.replace("dirty-age=2", "dirty-age=600");
        let (mnt, other) = (&campaign.mnt, &campaign.other);
        let mount = || campaign.ganesha.mount(&options, mnt);
        mount().ok();
        for name in ["same", "changed", "removed", "cut"] {
            std::fs::write(mnt.join(name), [b'.'; 1000]).unwrap();
        }
        let files: Vec<File> = ["same", "changed", "removed", "cut"]
            .iter()
            .map(|name| OpenOptions::new().write(true).open(mnt.join(name)).unwrap())
            .collect();
        for file in &files {
            file.write_all_at(b"ours", 10).unwrap();
        }
        files[3].set_len(12).unwrap();
        campaign.kill();
        drop(files);
        campaign.bury();
        let theirs = OpenOptions::new().write(true).open(other.join("changed")).unwrap();
        theirs.write_all_at(b"theirs", 10).unwrap();
        drop(theirs);
        std::fs::remove_file(other.join("removed")).unwrap();
        let said = mount().ok();
        assert!(said.err.contains("kept, not sent"), "{}", said.err);
        let read = |name: &str| std::fs::read(campaign.ganesha.export(name)).unwrap();
        assert_eq!(&read("same")[8..16], b"..ours..", "vers={version}");
        assert_eq!(&read("changed")[8..18], b"..theirs..", "not written over, vers={version}");
        assert_eq!(read("cut"), b"..........ou", "vers={version}");
        assert!(!campaign.ganesha.export("removed").exists());
        let mut all = kept(mnt);
        all.sort_by(|a, b| a.1.cmp(&b.1));
        let paths: Vec<&str> = all.iter().map(|(_, path)| path.as_str()).collect();
        assert_eq!(paths, ["changed", "removed"]);
        assert_eq!(counter(mnt, "conflicts"), 2);
        let merged = campaign.ganesha.dir.path().join("merged");
        let conflicts = |what: &str| {
            let mut command = Command::new(HITHER);
            command.args(["conflicts", what]).arg(mnt);
            command
        };
        run(conflicts("show").arg(&all[0].0).args(["--merged", "-o"]).arg(&merged)).ok();
        assert_eq!(&std::fs::read(&merged).unwrap()[8..18], b"..oursrs..");
        assert_eq!(&read("changed")[8..18], b"..theirs..", "showing changes nothing");
        run(conflicts("apply").arg(&all[0].0)).ok();
        assert_eq!(&read("changed")[8..18], b"..oursrs..");
        let refused = run(conflicts("apply").arg(&all[1].0));
        assert!(refused.code == 2 && refused.err.contains("--to PATH"), "{refused:?}");
        run(conflicts("drop").arg(&all[1].0)).ok();
        assert_eq!(kept(mnt), []);
        run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
    }
}

/// A mount with another protocol version is refused while the journal holds writes from before a
/// crash. An empty journal allows any version.
/// Promise: 6d
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn journal_blocks_mount_by_other_version() {
    let campaign = Campaign::start(1, "4.2", false);
    let options = campaign.options.replace("dirty-age=2", "dirty-age=600");
    let (mnt, ganesha) = (&campaign.mnt, &campaign.ganesha);
    ganesha.mount(&options, mnt).ok();
    let file = File::create(mnt.join("f")).unwrap();
    file.write_all_at(b"acknowledged", 0).unwrap();
    campaign.kill();
    drop(file);
    campaign.bury();
    let refused = ganesha.mount(&options.replace("vers=4.2", "vers=3"), mnt);
    assert!(refused.code == 2 && refused.err.contains("mount that first"), "{refused:?}");
    // A mount without a journal works, and says that writes are left.
    let without = format!("vers=4.2,cache={}", ganesha.dir.path().join("journals").display());
    let said = ganesha.mount(&without, mnt).ok();
    assert!(said.err.contains("mount with writeback=journal to send them"), "{}", said.err);
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
    let said = ganesha.mount(&options, mnt).ok();
    assert!(said.err.contains("12 bytes of 1 files were sent"), "{}", said.err);
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
    ganesha.mount(&options.replace("vers=4.2", "vers=3"), mnt).ok();
    // All data of this journal is at the server, so the journal refuses no mount.
    std::fs::write(mnt.join("g"), "closed").unwrap();
    campaign.kill();
    campaign.bury();
    ganesha.mount(&options, mnt).ok();
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// `creates=here`: new trees wait on the client and survive a kill of the daemon. A message carries
/// many files.
/// Promise: 6g
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn delayed_creates_survive_daemon_kill() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    for version in ["4.2", "3"] {
        let campaign = Campaign::start(2, version, true);
        let options = campaign.options.replace("dirty-age=2", "dirty-age=600,creates=here");
        let mnt = &campaign.mnt;
        campaign.ganesha.mount(&options, mnt).ok();
        std::fs::write(mnt.join("first"), "shows whose new files are").unwrap();
        let grow = |tree: &str| {
            let top = mnt.join(tree);
            std::fs::create_dir_all(top.join("sub")).unwrap();
            for i in 0..20 {
                std::fs::write(top.join(format!("sub/{i}")), format!("contents {i}")).unwrap();
            }
            std::fs::remove_file(top.join("sub/0")).unwrap();
            std::fs::rename(top.join("sub/1"), top.join("one")).unwrap();
            std::fs::set_permissions(top.join("sub/2"), std::fs::Permissions::from_mode(0o600)).unwrap();
            File::options().write(true).open(top.join("sub/3")).unwrap().set_len(4).unwrap();
            symlink("one", top.join("link")).unwrap();
            let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
            File::open(top.join("sub")).unwrap().set_modified(long_ago).unwrap();
        };
        let check = |top: &std::path::Path| {
            let text = |name: &str| std::fs::read_to_string(top.join(name)).unwrap();
            assert!(!top.join("sub/0").exists() && !top.join("sub/1").exists());
            assert_eq!(
                (text("one"), text("link"), text("sub/3")),
                ("contents 1".into(), "contents 1".into(), "cont".into())
            );
            (4..20).for_each(|i| assert_eq!(text(&format!("sub/{i}")), format!("contents {i}")));
            let mode = std::fs::metadata(top.join("sub/2")).unwrap().mode();
            assert_eq!((mode & 0o777, text("sub/2")), (0o600, "contents 2".into()));
            assert_eq!(std::fs::metadata(top.join("sub")).unwrap().mtime(), 1_000_000);
        };
        grow("killed");
        assert_eq!(counter_of(mnt, "ahead", "ahead_objects"), 22, "19 files, a link and two directories");
        check(&mnt.join("killed"));
        assert!(!campaign.ganesha.export("killed").exists(), "nothing was sent");
        campaign.kill();
        campaign.bury();
        let said = campaign.ganesha.mount(&options, mnt).ok();
        assert!(said.err.contains("files were sent"), "{}", said.err);
        check(&campaign.ganesha.export("killed"));
        check(&mnt.join("killed"));
        std::fs::write(mnt.join("second"), "the next daemon learns anew").unwrap();
        run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
        let calls = |op: &str| calls_of(mnt, op);
        let before = (calls("WRITE"), calls("OPEN"));
        grow("synced");
        run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
        if version == "4.2" {
            // One OPEN tests whether the server accepts several per message. The other three carry
            // the entries of the upper directory, fifteen files, and three files.
            assert_eq!((calls("WRITE") - before.0, calls("OPEN") - before.1), (0, 4), "many files a message");
        }
        check(&campaign.ganesha.export("synced"));
        check(&mnt.join("synced"));
        run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
    }
}

/// `creates=here` with `hither serve`: a new tree is sent in few messages, and all of it arrives.
/// Promise: 6g
#[test]
#[ignore = "needs root"]
fn new_tree_is_sent_in_batches() {
    let mut server = common::serve::Serve::of_directory();
    server.serve();
    let mnt = &server.mnt("mnt");
    let journal = server.mnt("journal");
    let options = format!(
        "vers=4.2,writeback=journal,exclusive,creates=here,dirty-age=600,journal-dir={}",
        journal.display()
    );
    server.mount(&options, mnt).ok();
    std::fs::write(mnt.join("first"), "shows whose new files are").unwrap();
    run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
    let text = |dir: u32, file: u32| format!("{dir} {file} ").repeat(500 + file as usize);
    for dir in 0..10 {
        std::fs::create_dir(mnt.join(dir.to_string())).unwrap();
        for file in 0..9 {
            std::fs::write(mnt.join(format!("{dir}/{file}")), text(dir, file)).unwrap();
        }
    }
    assert_eq!(counter_of(mnt, "ahead", "ahead_objects"), 100);
    // The CLOSE of the first file may come at any time, so it does not count.
    let calls = || ["OPEN", "CREATE", "WRITE", "SETATTR"].map(|op| calls_of(mnt, op));
    let before = calls();
    run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
    let made: Vec<u64> = calls().iter().zip(before).map(|(now, before)| now - before).collect();
    // The directories take one message, and the files of each directory take one. One more OPEN
    // tests the server's ability.
    assert_eq!(made, [11, 1, 0, 0]);
    for dir in 0..10 {
        for file in 0..9 {
            let there = std::fs::read_to_string(server.export(&format!("{dir}/{file}"))).unwrap();
            assert_eq!(there, text(dir, file), "{dir}/{file}");
        }
    }
    let left =
        std::fs::read_dir(server.export("")).unwrap().chain(std::fs::read_dir(server.export("0")).unwrap());
    assert!(left.into_iter().all(|e| !e.unwrap().file_name().to_string_lossy().starts_with(".nfs")));
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
    assert_eq!(server.stop(), 0);
}

/// `creates=here`: a tree is removed while the server is silent. The tree stays removed although
/// the daemon is killed.
/// Promise: 6g
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn delayed_removals_survive_daemon_kill() {
    for version in ["4.2", "3"] {
        let campaign = Campaign::start(2, version, true);
        let options = campaign.options.clone() + ",creates=here,actimeo=3600,nocto";
        let mnt = &campaign.mnt;
        campaign.ganesha.mount(&options, mnt).ok();
        std::fs::create_dir_all(mnt.join("tree/sub")).unwrap();
        for i in 0..20 {
            std::fs::write(mnt.join(format!("tree/sub/{i}")), format!("contents {i}")).unwrap();
        }
        std::fs::write(mnt.join("kept"), "kept").unwrap();
        run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
        // After this the mount has cached all needed facts: access rights and objects.
        for dir in ["tree", "tree/sub"] {
            std::fs::write(mnt.join(dir).join("more"), "").unwrap();
        }
        run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
        run(Command::new("ls").arg("-lR").arg(mnt)).ok();

        campaign.ganesha.freeze();
        let tree = mnt.join("tree");
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(std::fs::remove_dir_all(tree)));
        let removed = ended.recv_timeout(std::time::Duration::from_secs(60));
        assert!(matches!(removed, Ok(Ok(()))), "the removal waits for the server: {removed:?}");
        assert!(campaign.ganesha.export("tree").exists(), "the server was silent");
        File::open(mnt).unwrap().sync_all().unwrap();
        assert_eq!(counter_of(mnt, "removals", "removals_waiting"), 24, "22 files and two directories");

        campaign.kill();
        campaign.ganesha.thaw();
        campaign.bury();
        campaign.ganesha.mount(&options, mnt).ok();
        assert!(!campaign.ganesha.export("tree").exists() && !mnt.join("tree").exists());
        assert_eq!(std::fs::read_to_string(mnt.join("kept")).unwrap(), "kept");
        run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
    }
}

/// `exclusive`: close and fsync wait for the local disk. `hither sync` and umount wait for the
/// server.
/// Promise: 6e
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn exclusive_waits_for_the_journal() {
    for version in ["4.2", "3"] {
        let campaign = Campaign::start(1, version, true);
        let options = campaign.options.replace("dirty-age=2", "dirty-age=600");
        let mnt = &campaign.mnt;
        campaign.ganesha.mount(&options, mnt).ok();
        let at_server = |name: &str| std::fs::read(campaign.ganesha.export(name)).unwrap();
        let file = File::create(mnt.join("open")).unwrap();
        file.write_all_at(b"synced", 0).unwrap();
        file.sync_all().unwrap();
        std::fs::write(mnt.join("closed"), "closed").unwrap();
        assert_eq!(
            (at_server("open").len(), at_server("closed").len()),
            (0, 0),
            "neither waits for the server"
        );
        std::fs::rename(mnt.join("closed"), mnt.join("renamed")).unwrap();
        assert_eq!(counter(mnt, "journal_files"), 2);
        assert_eq!(counter(mnt, "journal_bytes"), 12);
        campaign.kill();
        drop(file);
        campaign.bury();
        let said = campaign.ganesha.mount(&options, mnt).ok();
        assert!(said.err.contains("12 bytes of 2 files were sent"), "{}", said.err);
        assert_eq!(at_server("open"), b"synced");
        assert_eq!(at_server("renamed"), b"closed");
        std::fs::write(mnt.join("later"), "later").unwrap();
        run(Command::new(HITHER).arg("sync").arg(mnt)).ok();
        assert_eq!(at_server("later"), b"later");
        wait_for("an empty journal", 60, || counter(mnt, "journal_files") == 0);
        std::fs::write(mnt.join("last"), "last").unwrap();
        run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
        assert_eq!(at_server("last"), b"last");
    }
}
