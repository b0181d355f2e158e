//! The promises of docs/SEMANTICS.md, tested on real mounts of a real server. Two mounts are two
//! clients.
//!
//! The tests need root and nfs-ganesha: `cargo test -p hither -- --include-ignored`, as in
//! `make test`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::{Ganesha, HITHER, Random, daemons, is_mounted, run, wait_for};
use std::fs::{File, FileTimes, OpenOptions, Permissions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Versions that differ enough to test both.
const VERSIONS: [&str; 2] = ["4.2", "3"];

/// Two mounts of one export with the same options. A passing test unmounts both successfully.
struct Two<'a> {
    ganesha: &'a Ganesha,
    a: PathBuf,
    b: PathBuf,
}

impl<'a> Two<'a> {
    fn mount(ganesha: &'a Ganesha, options: &str) -> Self {
        let (a, b) = (ganesha.mnt(), ganesha.dir.path().join("mnt2"));
        let _ = std::fs::create_dir(&b);
        ganesha.mount(options, &a).ok();
        ganesha.mount(options, &b).ok();
        Self { ganesha, a, b }
    }

    fn unmount(self) {
        for dir in [&self.a, &self.b] {
            run(Command::new(HITHER).arg("umount").arg(dir)).ok();
        }
        assert!(!is_mounted(&self.a) && !is_mounted(&self.b));
    }
}

impl Drop for Two<'_> {
    fn drop(&mut self) {
        // Unmounts after a failed test. The first mount point belongs to the fixture.
        let _ = Command::new("umount").arg("-l").arg(&self.b).stderr(std::process::Stdio::null()).status();
        let _ = self.ganesha;
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Data acknowledged by close(2) and fsync(2) is at the server, also when the daemon is killed
/// right after the call.
/// Promise: 1
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn close_and_fsync_mean_the_server() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for version in VERSIONS {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        let data = vec![b'x'; 5_000_000];
        let (closed, synced) = (format!("closed{version}"), format!("synced{version}"));
        std::fs::write(mnt.join(&closed), &data).unwrap();
        let mut file = File::create(mnt.join(&synced)).unwrap();
        file.write_all(&data).unwrap();
        file.sync_all().unwrap();
        run(Command::new("kill").arg("-9").arg(daemons(&mnt)[0].to_string())).ok();
        assert!(std::fs::read(ganesha.export(&closed)).unwrap() == data);
        assert!(std::fs::read(ganesha.export(&synced)).unwrap() == data);
        drop(file);
        wait_for("the daemon is gone", 60, || daemons(&mnt).is_empty());
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
}

/// A lazy close waits for no server. Another client sees the data after a sync of the first client,
/// or after `dirty-age`. fsync waits for the server.
/// Promise: 6a, 6b
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn a_lazy_close_and_sync() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},close=lazy,dirty-age=600"));
        let file = |what: &str| format!("{what}{version}");
        std::fs::write(two.a.join(file("lazy")), "later").unwrap();
        assert_eq!(std::fs::read(ganesha.export(&file("lazy"))).unwrap(), b"", "close has not waited");
        assert_eq!(read(&two.a.join(file("lazy"))), "later");
        let mut synced = File::create(two.a.join(file("synced"))).unwrap();
        synced.write_all(b"now").unwrap();
        synced.sync_all().unwrap();
        assert_eq!(std::fs::read(ganesha.export(&file("synced"))).unwrap(), b"now");
        std::fs::write(two.a.join(file("removed")), "never").unwrap();
        std::fs::remove_file(two.a.join(file("removed"))).unwrap();
        run(Command::new(HITHER).arg("sync").arg(&two.a)).ok();
        assert_eq!(std::fs::read(ganesha.export(&file("lazy"))).unwrap(), b"later");
        assert_eq!(read(&two.b.join(file("lazy"))), "later");
        std::fs::write(two.a.join(file("last")), "at umount").unwrap();
        drop(synced);
        two.unmount();
        assert_eq!(std::fs::read(ganesha.export(&file("last"))).unwrap(), b"at umount");
    }
}

/// Trees of closed, unsent files can be removed, also where the server keeps a hidden name of each
/// file until the removal.
/// Promise: 6a
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn unsent_trees_can_be_removed() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},close=lazy,dirty-age=600"));
        let tree = two.a.join(format!("tree{version}"));
        for dir in 0..5 {
            let dir = tree.join(dir.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            (0..10).for_each(|file| std::fs::write(dir.join(file.to_string()), "never sent").unwrap());
        }
        run(Command::new("rm").arg("-r").arg(&tree)).ok();
        assert!(!ganesha.export(&format!("tree{version}")).exists());
        two.unmount();
    }
}

/// Times and permissions that the creator of a file sets wait for its data. They are visible to
/// every open, after a close, and after `dirty-age`. A change that removes permissions is not
/// delayed.
/// Promise: 5
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn new_file_attributes_wait_for_data() {
    let ganesha = Ganesha::start();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},dirty-age=600"));
        let dir = two.a.clone();
        let create = |name: &str| {
            let name = format!("{name}{version}");
            let mut options = OpenOptions::new();
            options.create_new(true).write(true).mode(0o600);
            let mut file = options.open(dir.join(&name)).unwrap();
            file.write_all(b"bytes").unwrap();
            file.set_permissions(Permissions::from_mode(0o644)).unwrap();
            file.set_times(FileTimes::new().set_accessed(long_ago).set_modified(long_ago)).unwrap();
            (file, name)
        };
        let theirs = |name: &str| ganesha.export(name).metadata().unwrap();
        let mode = |name: &str| theirs(name).mode() & 0o7777;
        let (closed, closed_name) = create("closed");
        let shown = two.a.join(&closed_name).metadata().unwrap();
        assert_eq!((shown.mode() & 0o7777, shown.mtime(), shown.len()), (0o644, 1_000_000_000, 5));
        assert_eq!(mode(&closed_name), 0o600, "they wait");
        drop(closed);
        let (opened, opened_name) = create("opened");
        let mut other = Command::new("setpriv");
        other
            .args(["--reuid=1000", "--regid=1000", "--clear-groups", "cat", &opened_name])
            .current_dir(&two.a);
        assert_eq!(run(&mut other).ok().out, "bytes");
        assert_eq!(mode(&opened_name), 0o644, "another user needed them");
        let (private, private_name) = create("private");
        private.set_permissions(Permissions::from_mode(0o400)).unwrap();
        assert_eq!(mode(&private_name), 0o400);
        drop((opened, private));
        two.unmount();
        let two = Two::mount(&ganesha, &format!("vers={version},dirty-age=2"));
        let (kept, kept_name) = create("kept");
        wait_for("attributes after dirty-age", 60, || theirs(&kept_name).mtime() == 1_000_000_000);
        drop(kept);
        for name in [&closed_name, &opened_name, &kept_name] {
            let (here, theirs, there) =
                (two.a.join(name).metadata().unwrap(), theirs(name), two.b.join(name).metadata().unwrap());
            for seen in [here, theirs, there] {
                let seen = (seen.mode() & 0o7777, seen.mtime(), seen.len());
                assert_eq!(seen, (0o644, 1_000_000_000, 5), "vers={version} {name}");
            }
        }
        two.unmount();
    }
}

/// An open shows the data that another client closed before it, even when attributes and pages are
/// cached.
/// Promise: 7
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn close_to_open() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},actimeo=600"));
        let name = format!("cto{version}");
        let (a, b) = (two.a.join(&name), two.b.join(&name));
        std::fs::write(&a, "first").unwrap();
        assert_eq!(read(&b), "first");
        for n in 0..5 {
            // All texts have the same length, so neither the size nor the whole seconds of mtime
            // tell them apart.
            let text = format!("turn{n}");
            std::fs::write(&a, &text).unwrap();
            assert_eq!(read(&b), text, "vers={version}");
        }
        two.unmount();
    }
}

/// The bytes of version `n` of a file from `at` on, at most `max`, none of them zero.
fn version_bytes(n: u64, len: usize, at: usize, max: usize) -> Vec<u8> {
    (at..len.min(at + max)).map(|i| (1 + (n + i as u64 / 512) % 250) as u8).collect()
}

/// Opens a file and reads it in one of several ways. Some ask for the length first. Returns the
/// offset, the maximum number of bytes and the bytes.
fn read_somewhere(path: &Path, r: &mut Random) -> (usize, usize, Vec<u8>) {
    if r.below(8) == 0 {
        std::fs::metadata(path).unwrap();
    }
    let mut file = File::open(path).unwrap();
    let (at, max) = (r.below(300_000) as usize, 1 + r.below(100_000) as usize);
    match r.below(3) {
        0 => {
            let mut all = Vec::new();
            file.read_to_end(&mut all).unwrap();
            (0, usize::MAX >> 1, all)
        }
        _ => {
            let mut some = vec![0; max];
            let got = file.read_at(&mut some, at as u64).unwrap();
            some.truncate(got);
            (at, max, some)
        }
    }
}

/// Another client truncates and rewrites a file. Each later open reads all bytes of the new version
/// and ends at its end, also when many programs open and read the file at once.
/// Promise: 7
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn reads_end_at_new_length() {
    let ganesha = Ganesha::start();
    for options in ["vers=4.2", "vers=3", "vers=4.2,acregmin=0,acregmax=0"] {
        let two = Two::mount(&ganesha, options);
        let (a, b) = (two.a.join("f"), two.b.join("f"));
        let mut random = Random(7);
        std::fs::write(&a, version_bytes(0, 300_000, 0, 300_000)).unwrap();
        let mut early = File::open(&b).unwrap();
        for n in 1..=60 {
            let largest = [100, 5_000, 70_000, 300_000][random.below(4) as usize];
            let len = random.below(largest) as usize;
            std::fs::write(&a, version_bytes(n, len, 0, len)).unwrap();
            std::thread::scope(|threads| {
                for _ in 0..6 {
                    let (mut r, b) = (Random(random.next()), &b);
                    threads.spawn(move || {
                        for _ in 0..6 {
                            let (at, max, got) = read_somewhere(b, &mut r);
                            let want = version_bytes(n, len, at, max);
                            let same = got.iter().zip(&want).take_while(|(a, b)| a == b).count();
                            let (got, want) = (got.len(), want.len());
                            assert!(
                                same == got && got == want,
                                "{options}: version {n} of {len} bytes: {got} bytes at {at}, {want} \
                                 expected, the first {same} are right"
                            );
                        }
                    });
                }
                // A descriptor from before the change may see either version.
                let mut ignored = [0; 4096];
                while early.read(&mut ignored).unwrap() > 0 {}
            });
            early = File::open(&b).unwrap();
        }
        drop(early);
        two.unmount();
    }
}

/// Another client appends to a file that a program here has open. An append here goes to the new
/// end, also after the daemon has seen the new length and the kernel has not.
/// Promise: 7
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn appends_go_to_new_end() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},acregmin=1,acregmax=1"));
        let (a, b) = (two.a.join("f"), two.b.join("f"));
        std::fs::write(&a, "begun").unwrap();
        let mut open = File::open(&b).unwrap();
        open.read_to_string(&mut String::new()).unwrap();
        let mut want = String::from("begun");
        for n in 0..3 {
            for (path, text) in [(&a, format!(" theirs{n}")), (&b, format!(" ours{n}"))] {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                file.write_all(text.as_bytes()).unwrap();
                want += &text;
                drop(file);
                // The daemon checks the open file several times.
                std::thread::sleep(Duration::from_millis(3_500));
            }
            assert_eq!(read(&a), want, "vers={version}");
        }
        drop(open);
        two.unmount();
    }
}

/// Several programs of a mount append to one file, and others ask for its length and open it. Each
/// record is whole, in its order, and nothing is between the records.
/// Promise: 3
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn records_of_several_programs_are_whole() {
    const RECORDS: usize = 100;
    let ganesha = Ganesha::start();
    for options in ["vers=4.2", "vers=4.1", "vers=3", "vers=4.2,close=lazy", "vers=4.2,noac"] {
        let two = Two::mount(&ganesha, options);
        for round in 0..10 {
            let path = two.a.join(format!("log{round}"));
            let append = |program: char| {
                let mut file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
                for n in 0..RECORDS {
                    file.write_all(format!("{:x<99}\n", format!("{program}:{n:06}:")).as_bytes()).unwrap();
                    // New opens and requests for attributes bring lengths to the kernel.
                    if n % 7 == 0 {
                        File::open(&path).unwrap().metadata().unwrap();
                    }
                }
            };
            std::thread::scope(|s| {
                ['a', 'b', 'c'].into_iter().for_each(|p| drop(s.spawn(move || append(p))))
            });
            let seen = read(&path);
            assert_eq!(seen.len(), 3 * RECORDS * 100, "{options}, round {round}");
            assert!(seen.lines().all(|line| line.len() == 99), "{options}, round {round}");
            for program in ['a', 'b', 'c'] {
                let own: Vec<&str> = seen.lines().filter(|line| line.starts_with(program)).collect();
                let in_order = |n: usize| own[n].starts_with(&format!("{program}:{n:06}:"));
                assert!(own.len() == RECORDS && (0..RECORDS).all(in_order), "{options}, round {round}");
            }
            std::fs::remove_file(&path).unwrap();
        }
        two.unmount();
    }
}

/// Attributes are cached for at most `acregmax` and `acdirmax`, and absent names likewise.
/// Promise: 8
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn attributes_and_names_age() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},actimeo=1"));
        let name = format!("age{version}");
        let (a, b) = (two.a.join(&name), two.b.join(&name));
        assert!(!b.exists());
        std::fs::write(&a, "12345").unwrap();
        wait_for("the new name", 3, || b.exists());
        assert_eq!(std::fs::metadata(&b).unwrap().len(), 5);
        std::fs::write(&a, "1234567").unwrap();
        wait_for("the new length", 3, || std::fs::metadata(&b).unwrap().len() == 7);
        std::fs::remove_file(&a).unwrap();
        wait_for("the absent name", 3, || !b.exists());
        two.unmount();
    }
}

/// With `noac`, nothing is cached for any time.
/// Promise: 9
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn noac_is_always_fresh() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},noac,lookupcache=none"));
        let name = format!("noac{version}");
        let (a, b) = (two.a.join(&name), two.b.join(&name));
        assert!(!b.exists());
        for n in 1..20 {
            std::fs::write(&a, vec![0; n]).unwrap();
            assert_eq!(std::fs::metadata(&b).unwrap().len(), n as u64, "vers={version}");
        }
        std::fs::remove_file(&a).unwrap();
        assert!(!b.exists());
        two.unmount();
    }
}

/// With `consistency=bounded`, no data is older than the bound, and within the bound the mount
/// sends no request.
/// Promise: 8b
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn bounded_has_a_bound() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},consistency=bounded=2"));
        let name = format!("bound{version}");
        let (a, b) = (two.a.join(&name), two.b.join(&name));
        std::fs::write(&a, "1").unwrap();
        wait_for("the new name", 4, || b.exists());
        assert_eq!(read(&b), "1");
        std::fs::write(&a, "22").unwrap();
        wait_for("the new contents", 4, || read(&b) == "22");
        // A recently written file may change again without a new time stamp. In its first five
        // seconds the bytes are fetched again at each end of the bound.
        let written = std::fs::metadata(&b).unwrap().modified().unwrap();
        wait_for("the file's old age", 9, || {
            assert_eq!(read(&b), "22");
            written.elapsed().is_ok_and(|age| age > std::time::Duration::from_secs(8))
        });
        // A pass in which the bound ends sends requests. A later pass sends none.
        wait_for(&format!("vers={version}: 50 opens that ask nothing"), 60, || {
            let before = calls(&two.b);
            (0..50).for_each(|_| assert_eq!(read(&b), "22"));
            calls(&two.b) == before
        });
        two.unmount();
    }
}

/// A frozen mount asks for cached state only once. It shows its own changes.
/// Promise: 8c
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn frozen_asks_once() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version},consistency=frozen"));
        let name = format!("frozen{version}");
        let (a, b) = (two.a.join(&name), two.b.join(&name));
        std::fs::write(&a, "1").unwrap();
        assert_eq!(read(&b), "1");
        std::thread::sleep(std::time::Duration::from_secs(4));
        let calls = calls(&two.b);
        for _ in 0..20 {
            assert_eq!(read(&b), "1");
            assert_eq!(std::fs::metadata(&b).unwrap().len(), 1);
        }
        assert_eq!(calls, self::calls(&two.b), "vers={version}");
        std::fs::write(&b, "own").unwrap();
        assert_eq!(read(&b), "own");
        two.unmount();
    }
}

/// Calls to the server since the mount, without lease renewals and CLOSE.
fn calls(mnt: &Path) -> u64 {
    let out = Command::new(HITHER).args(["stat", "--json"]).arg(mnt).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let operations = report["operations"].as_array().unwrap();
    let counted = operations.iter().filter(|o| !matches!(o["name"].as_str(), Some("SEQUENCE" | "CLOSE")));
    counted.map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// With NFSv4 a lock holds between machines. With NFSv3 it holds on one machine only.
/// Promise: 16, 18
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn lock_scope_depends_on_version() {
    let ganesha = Ganesha::start();
    for version in VERSIONS {
        let two = Two::mount(&ganesha, &format!("vers={version}"));
        let name = format!("lock{version}");
        let open = |dir: &Path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.join(&name))
                .unwrap()
        };
        let (here, here_too, there) = (open(&two.a), open(&two.a), open(&two.b));
        here.lock().unwrap();
        assert!(matches!(here_too.try_lock(), Err(TryLockError::WouldBlock)), "vers={version}");
        match version {
            "3" => there.try_lock().unwrap(),
            _ => assert!(matches!(there.try_lock(), Err(TryLockError::WouldBlock))),
        }
        here.unlock().unwrap();
        here_too.try_lock().unwrap();
        drop((here, here_too, there));
        two.unmount();
    }
}

/// A file that is removed while open stays readable and writable until its last close. Then no part
/// of it is left at the server.
/// Promise: 13
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn removed_open_files_live_on() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    for version in VERSIONS {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        let dir = format!("unlink{version}");
        std::fs::create_dir(mnt.join(&dir)).unwrap();
        let path = mnt.join(&dir).join("file");
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"still here").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!path.exists());
        file.write_all(b", and longer").unwrap();
        let mut text = String::new();
        File::open(format!("/proc/thread-self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "still here, and longer");
        drop(file);
        wait_for("an empty directory", 60, || {
            std::fs::read_dir(ganesha.export(&dir)).unwrap().next().is_none()
        });
        std::fs::remove_dir(mnt.join(&dir)).unwrap();
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
}

/// The server decides about permissions, by uid, gid and supplementary groups of the caller. New
/// files belong to the caller.
/// Promise: 19
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn permissions_are_the_servers() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::set_permissions(ganesha.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(ganesha.export(""), PermissionsExt::from_mode(0o777)).unwrap();
    for version in VERSIONS {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        let as_user = |groups: &str, script: &str| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=12345", "--regid=12345", groups, "--", "sh", "-ec", script]);
            run(command.current_dir(&mnt))
        };
        let name = format!("secret{version}");
        std::fs::write(mnt.join(&name), "secret").unwrap();
        std::os::unix::fs::chown(mnt.join(&name), None, Some(777)).unwrap();
        std::fs::set_permissions(mnt.join(&name), PermissionsExt::from_mode(0o640)).unwrap();
        let cat = format!("cat {name}");
        assert_eq!(as_user("--groups=777", &cat).ok().out, "secret");
        assert!(as_user("--clear-groups", &cat).err.contains("Permission denied"), "vers={version}");
        as_user("--clear-groups", &format!("echo mine > mine{version}")).ok();
        let meta = std::fs::metadata(ganesha.export(&format!("mine{version}"))).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (12345, 12345));
        // A program file that others may execute but not read. READ does not distinguish the two
        // permissions, but the answer to ACCESS does.
        let program = mnt.join(format!("program{version}"));
        std::fs::copy("/bin/true", &program).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o711)).unwrap();
        let shown = program.display();
        for _ in 0..2 {
            as_user("--clear-groups", &shown.to_string()).ok();
            let said = as_user("--clear-groups", &format!("cat {shown}"));
            assert!(said.err.contains("Permission denied"), "vers={version}: {} bytes", said.out.len());
        }
        // An open with O_CREAT of an existing file needs the same permission. An open that creates
        // an unreadable file needs none.
        let create = "import os, sys; os.umask(0); os.open(sys.argv[1], os.O_RDONLY | os.O_CREAT, 0o200)";
        let late = ganesha.export(&format!("late{version}"));
        assert!(!mnt.join(format!("late{version}")).exists());
        std::fs::copy("/bin/true", &late).unwrap();
        std::fs::set_permissions(&late, PermissionsExt::from_mode(0o711)).unwrap();
        for there in [shown.to_string(), format!("late{version}")] {
            let said = as_user("--clear-groups", &format!("python3 -c '{create}' {there}"));
            assert!(said.err.contains("Permission denied"), "vers={version}: {there}: {}", said.err);
        }
        as_user("--clear-groups", &format!("python3 -c '{create}' unread{version}")).ok();
        let said = as_user("--clear-groups", &format!("python3 -c '{create}' unread{version}"));
        assert!(said.err.contains("Permission denied"), "vers={version}: {}", said.err);
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
}

/// `soft` and `softerr` end calls to a dead server with their errno after `timeo` and `retrans`.
/// `hard` waits, and the waiting program can be killed. When the server is back, all mounts go on.
/// Promise: 22, 23
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn hard_and_soft() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::write(ganesha.export("file"), "x").unwrap();
    for version in VERSIONS {
        for (word, errno) in [("soft", Some(5)), ("softerr", Some(110)), ("hard", None)] {
            // On a busy machine this server may be late, too.
            let options = format!("vers={version},{word},timeo=20,retrans=1,noac");
            wait_for("the mount", 60, || ganesha.mount(&options, &mnt).code == 0);
            wait_for("the file", 60, || std::fs::read(mnt.join("file")).is_ok_and(|text| text == b"x"));
            ganesha.freeze();
            match errno {
                Some(errno) => {
                    let errno_seen = std::fs::metadata(mnt.join("file")).err().and_then(|e| e.raw_os_error());
                    assert_eq!(errno_seen, Some(errno), "vers={version},{word}");
                }
                None => {
                    let said = run(Command::new("timeout").args(["8", "stat"]).arg(mnt.join("file")));
                    assert_eq!(said.code, 124, "{said:?}");
                }
            }
            ganesha.thaw();
            if errno.is_none() {
                assert_eq!(read(&mnt.join("file")), "x", "vers={version},{word}");
            }
            wait_for("the server's answer", 60, || {
                std::fs::read(mnt.join("file")).is_ok_and(|text| text == b"x")
            });
            run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
        }
    }
}

/// A read-only mount refuses changes without a request.
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn read_only() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    ganesha.mount("ro", &mnt).ok();
    assert_eq!(File::create(mnt.join("file")).unwrap_err().raw_os_error(), Some(30));
    assert_eq!(std::fs::create_dir(mnt.join("dir")).unwrap_err().raw_os_error(), Some(30));
    run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
}

/// A refused open truncates no file. Not every server checks the read permission, so the client
/// checks it before a truncation.
/// Promise: 19
#[test]
#[ignore = "needs root and nfs-ganesha"]
fn refused_opens_cut_nothing() {
    let ganesha = Ganesha::start();
    let mnt = ganesha.mnt();
    std::fs::set_permissions(ganesha.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let script = "import os, sys\n\
        flags = {'r': os.O_RDONLY, 'w': os.O_WRONLY, 'rw': os.O_RDWR}[sys.argv[2]] | os.O_TRUNC\n\
        os.open(sys.argv[1], flags | (os.O_CREAT if sys.argv[3] == 'create' else 0), 0o600)";
    // A Python in root's home directory may not be executable for other users.
    let program = if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" };
    let mut cases = Vec::new();
    // Files of another user and of the caller.
    for (owner, mode, open, allowed) in [
        (0, 0o733, "rw", false),
        (0, 0o733, "w", true),
        (0, 0o755, "rw", false),
        (0, 0o755, "r", false),
        (0, 0o755, "w", false),
        (0, 0o766, "rw", true),
        (0, 0o766, "r", true),
        (12345, 0o300, "rw", false),
        (12345, 0o200, "w", true),
    ] {
        for (known, create) in [(false, ""), (false, "create"), (true, ""), (true, "create")] {
            cases.push((owner, mode, open, allowed, known, create));
        }
    }
    let name = |version: &str, i: usize| format!("{version}.{i}");
    // Makes all files before the server has read the directory.
    for version in VERSIONS {
        for (i, (owner, mode, ..)) in cases.iter().enumerate() {
            let there = ganesha.export(&name(version, i));
            std::fs::write(&there, "data").unwrap();
            std::os::unix::fs::chown(&there, Some(*owner), None).unwrap();
            std::fs::set_permissions(&there, PermissionsExt::from_mode(*mode)).unwrap();
        }
    }
    for version in VERSIONS {
        ganesha.mount(&format!("vers={version}"), &mnt).ok();
        for (i, (owner, mode, open, allowed, known, create)) in cases.iter().enumerate() {
            if *known {
                std::fs::metadata(mnt.join(name(version, i))).unwrap();
            }
            let mut python = Command::new("setpriv");
            python.args(["--reuid=12345", "--regid=12345", "--clear-groups", "--", program, "-c", script]);
            let said = run(python.args([&name(version, i), *open, *create]).current_dir(&mnt));
            let what = format!("vers={version} {owner} {mode:o} {open} {known} {create}: {}", said.err);
            assert_eq!(said.err.contains("Permission denied"), !allowed, "{what}");
            let left = std::fs::read_to_string(ganesha.export(&name(version, i))).unwrap();
            assert_eq!(left, if *allowed { "" } else { "data" }, "{what}");
        }
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
}
