//! Modification times that a mount maintains under a write delegation (RFC 9754): other clients see
//! them, and the mount keeps its delegation.
//!
//! The tests need root. Several mounts of one server are several clients.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "tests of processes wait in real time"
)]

mod common;

use common::serve::Serve;
use common::{HITHER, Random, daemons, hither, pause, run, wait_for};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Closed files wait, and nothing is sent because of its age.
const WAITS: &str = "vers=4.2,close=delegated,dirty-age=3600,lookupcache=none";
/// Each stat(2) asks the server.
const ASKS: &str = "lookupcache=none,noac";
/// The server asks for up to eight files of a listing, which a lookup may bring.
const FILES: usize = 5;

fn served() -> Serve {
    let mut server = Serve::of_directory().with(&["--max-delegations", "1000", "-o", "insecure"]);
    server.serve();
    server
}

fn mounted(server: &Serve, options: &str, name: &str) -> PathBuf {
    let mnt = server.mnt(name);
    server.mount(options, &mnt).ok();
    mnt
}

fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// Writes files until one waits after its close. The first ones find a server that does not know
/// yet whether its client can be called.
fn warm_up(server: &Serve, mnt: &Path) {
    let mut n = 0;
    wait_for("a close that does not wait", 60, || {
        n += 1;
        fs::write(mnt.join(format!("warm{n}")), "x").unwrap();
        fs::metadata(server.export(&format!("warm{n}"))).is_ok_and(|m| m.len() == 0)
    });
    hither(&["sync", mnt.to_str().unwrap()]).ok();
}

/// Counters of a mount: WRITEs sent, CB_RECALLs, and CB_GETATTRs.
fn counts(mnt: &Path) -> [u64; 3] {
    let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let writes = json["operations"].as_array().unwrap().iter().find(|o| o["name"] == "WRITE");
    let lease = |name: &str| json["layers"]["leases"][name].as_u64().unwrap();
    [writes.map_or(0, |o| o["calls"].as_u64().unwrap()), lease("recalls"), lease("getattrs")]
}

/// Length and modification time.
fn shown(path: &Path) -> (u64, i64, i64) {
    let m = fs::metadata(path).unwrap();
    (m.len(), m.mtime(), m.mtime_nsec())
}

fn write(path: &Path, bytes: &str) {
    let mut file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(bytes.as_bytes()).unwrap();
}

/// Other mounts, of NFSv4.2 and NFSv3, see the length and the modification time of the holder's
/// file, by stat(2) and in a listing. The holder sends no data and keeps its delegation. The times
/// are the server's after the data was sent.
/// Promise: S10c
#[test]
#[ignore = "needs root"]
fn other_mounts_see_delegated_times() {
    let server = served();
    let a = mounted(&server, WAITS, "a");
    let b = mounted(&server, &format!("vers=4.2,{ASKS}"), "b");
    let c = mounted(&server, &format!("vers=3,mountport=2049,{ASKS}"), "c");
    warm_up(&server, &a);
    let before = counts(&a);
    let names: Vec<String> = (0..FILES).map(|i| format!("f{i}")).collect();
    names.iter().for_each(|name| write(&a.join(name), "delayed bytes"));
    // A listing asks for few files only, and recalls more.
    fs::create_dir(a.join("dir")).unwrap();
    let few: Vec<String> = (0..3).map(|i| format!("dir/g{i}")).collect();
    few.iter().for_each(|name| write(&a.join(name), "delayed bytes"));
    // The clock of a file system ticks: a time of the question would differ.
    pause(100);
    let seen: Vec<_> = names.iter().map(|name| [&b, &c].map(|mnt| shown(&mnt.join(name)))).collect();
    let listed = run(Command::new("ls").args(["-l", "--time-style=+%s.%N"]).arg(b.join("dir"))).ok();
    for name in &few {
        let (len, secs, nanos) = shown(&a.join(name));
        let line = format!(" {len} {secs}.{nanos:09} {}", &name["dir/".len()..]);
        assert!(listed.out.contains(&line), "{line} in {}", listed.out);
    }
    let after = counts(&a);
    assert_eq!(after[..2], before[..2], "neither a WRITE nor a recall");
    assert!(after[2] >= before[2] + 2 * FILES as u64, "the holder was asked");
    for (name, others) in names.iter().zip(&seen) {
        assert_eq!([shown(&a.join(name)); 2], *others, "{name}");
        assert_eq!(others[0].0, 13);
        assert_eq!(fs::metadata(server.export(name)).unwrap().len(), 0, "nothing was sent");
    }
    // A later write has a later time.
    write(&a.join("f0"), "more");
    let later = shown(&b.join("f0"));
    assert!(later > seen[0][0] && later == shown(&a.join("f0")), "{later:?}");
    assert_eq!(counts(&a)[..2], before[..2]);
    hither(&["sync", a.to_str().unwrap()]).ok();
    for (name, others) in names.iter().zip(&seen).skip(1) {
        for mnt in [&a, &b, &c, &server.export("")] {
            assert_eq!(shown(&mnt.join(name)), others[0], "{name} in {}", mnt.display());
        }
    }
    [&a, &b, &c].into_iter().for_each(|mnt| umount(mnt));
}

/// A writer who does not own the file sends no data for stat(2), and the server takes the time from
/// the holder. With NFSv4.1, which has no such times, the data is sent first.
/// Promise: 5
#[test]
#[ignore = "needs root"]
fn delegated_time_needs_no_owner() {
    for (version, sent) in [("vers=4.2", 0), ("vers=4.1", 1)] {
        let server = served();
        let a = mounted(&server, &WAITS.replace("vers=4.2", version), "a");
        warm_up(&server, &a);
        let there = server.export("other's");
        fs::write(&there, "").unwrap();
        fs::set_permissions(&there, fs::Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::chown(&there, Some(1234), Some(1234)).unwrap();
        fs::set_permissions(server.export(""), fs::Permissions::from_mode(0o755)).unwrap();
        pause(1100);
        let before = counts(&a)[0];
        write(&a.join("other's"), "bytes");
        let seen = shown(&a.join("other's"));
        assert_eq!(counts(&a)[0] - before, sent, "{version}");
        hither(&["sync", a.to_str().unwrap()]).ok();
        assert_eq!((shown(&there), shown(&a.join("other's"))), (seen, seen), "{version}");
        umount(&a);
    }
}

/// The present by the clock that the file system of the export reads. Its writes get times of this
/// clock, which is one timer tick or more behind the precise clock. A local program that sets a
/// time of the precise clock and then writes can move the time back, too.
fn file_system_now() -> SystemTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Modification times only grow for each mount, in random histories of writes and of times set to
/// the present, on both mounts. At the end all see one time.
/// Promise: S10c
#[test]
#[ignore = "needs root"]
fn delegated_times_are_monotonic() {
    let server = served();
    let mnts = [mounted(&server, WAITS, "a"), mounted(&server, &format!("vers=4.2,{ASKS}"), "b")];
    warm_up(&server, &mnts[0]);
    for seed in 1..=12 {
        let mut random = Random(seed);
        let name = format!("f{seed}");
        write(&mnts[0].join(&name), "new");
        let (mut last, mut len, mut done) = ([(0, 0); 2], 3, Vec::new());
        for _ in 0..60 {
            // The first mount writes most, so that it is the holder for a while.
            let (who, what) = (usize::from(random.below(4) == 0), random.below(8));
            let path = mnts[who].join(&name);
            done.push((who, what));
            match what {
                0 | 1 if who == 0 || random.below(3) == 0 => {
                    write(&path, "more");
                    len += 4;
                }
                2 if random.below(4) == 0 => {
                    let file = File::options().write(true).open(&path).unwrap();
                    file.set_modified(file_system_now()).unwrap();
                }
                3 => pause(random.below(30)),
                _ => {
                    let (size, secs, nanos) = shown(&path);
                    assert!(
                        (secs, nanos) >= last[who],
                        "seed {seed}: {:?} after {:?}: {done:?}",
                        (secs, nanos),
                        last[who]
                    );
                    assert!(who == 0 || size == len, "seed {seed}: {size}, not {len}: {done:?}");
                    last[who] = (secs, nanos);
                }
            }
        }
        hither(&["sync", mnts[0].to_str().unwrap()]).ok();
        let there = shown(&server.export(&name));
        assert_eq!(there, shown(&mnts[1].join(&name)), "seed {seed}: {done:?}");
        assert!((there.1, there.2) >= last[0].max(last[1]), "seed {seed}: {there:?} {last:?}: {done:?}");
    }
    mnts.iter().for_each(|mnt| umount(mnt));
}

/// The times stay when the server is killed: the holder reclaims its delegation, and sets them.
/// Promise: S10c
#[test]
#[ignore = "needs root"]
fn delegated_times_survive_server_kill() {
    let mut server = served();
    let a = mounted(&server, WAITS, "a");
    warm_up(&server, &a);
    // Opens keep the files reclaimable.
    let open: Vec<File> = (0..FILES)
        .map(|i| {
            let mut file = File::create(a.join(format!("f{i}"))).unwrap();
            file.write_all(b"delayed bytes").unwrap();
            file
        })
        .collect();
    let b = mounted(&server, &format!("vers=4.2,{ASKS}"), "b");
    let seen: Vec<_> = (0..FILES).map(|i| shown(&b.join(format!("f{i}")))).collect();
    server.kill();
    pause(1000);
    server.serve();
    for (i, seen) in seen.iter().enumerate() {
        let name = format!("f{i}");
        assert_eq!((shown(&a.join(&name)), shown(&b.join(&name))), (*seen, *seen), "{name}");
    }
    drop(open);
    hither(&["sync", a.to_str().unwrap()]).ok();
    for (i, seen) in seen.iter().enumerate() {
        assert_eq!(shown(&server.export(&format!("f{i}"))), *seen, "f{i}");
    }
    [&a, &b].into_iter().for_each(|mnt| umount(mnt));
}

/// A killed holder with a journal sets the times that other clients saw when it is mounted again.
/// Promise: 6c
#[test]
#[ignore = "needs root"]
fn delegated_times_survive_holder_kill() {
    let server = served();
    let journal = server.dir.path().join("journal");
    let options = format!("{WAITS},writeback=journal,journal-dir={}", journal.display());
    let a = mounted(&server, &options, "a");
    warm_up(&server, &a);
    let b = mounted(&server, &format!("vers=4.2,{ASKS}"), "b");
    (0..FILES).for_each(|i| write(&a.join(format!("f{i}")), "delayed bytes"));
    let seen: Vec<_> = (0..FILES).map(|i| shown(&b.join(format!("f{i}")))).collect();
    std::thread::sleep(Duration::from_millis(500));
    for pid in daemons(&a) {
        // SAFETY: kill takes numbers.
        assert_eq!(unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) }, 0);
    }
    wait_for("the daemon's end", 60, || daemons(&a).is_empty());
    run(Command::new("umount").arg("-l").arg(&a)).ok();
    server.mount(&options, &a).ok();
    for (i, seen) in seen.iter().enumerate() {
        let name = format!("f{i}");
        assert_eq!((shown(&a.join(&name)), shown(&b.join(&name))), (*seen, *seen), "{name}");
    }
    [&a, &b].into_iter().for_each(|mnt| umount(mnt));
    for (i, seen) in seen.iter().enumerate() {
        assert_eq!(shown(&server.export(&format!("f{i}"))), *seen, "f{i}");
    }
}
