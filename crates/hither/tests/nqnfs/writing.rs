//! Write leases that mounts hold. Other users of a file see the data delayed under a lease. No
//! acknowledged data is lost when a client, the server or the network fails.

use crate::common::serve::Serve;
use crate::common::{Random, daemons, has_stopped, pause, run, wait_for};
use crate::mount::{mounted, umount};
use crate::{serve_with, serve_with_slack};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Options under which data is not sent because of its age, and no cached state expires during a
/// test.
const DELAYED: &str = ",dirty-age=3600,actimeo=3600,lookupcache=none";
/// Term of leases in seconds. Mounts ask for at most 30.
const TERM: u32 = 60;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn write_only(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

/// Makes a new open file on a mount that delays the file's writes. The server grants no lease for a
/// while after an eviction.
fn delayed(server: &Serve, mnt: &Path, name: &str, body: &str) -> File {
    let file = File::create(mnt.join(name)).unwrap();
    wait_for("a write that waits", 200, || {
        file.set_len(0).unwrap();
        file.write_all_at(body.as_bytes(), 0).unwrap();
        pause(50);
        at_server(server, name) == 0
    });
    file
}

/// Length of the file at the server. stat(2) on the server makes no client send data. A child
/// process would send it, because the child closes its copies of open files.
fn at_server(server: &Serve, name: &str) -> u64 {
    fs::metadata(server.export(name)).unwrap().len()
}

fn signal(pids: &[u32], signal: i32) {
    for pid in pids {
        // SAFETY: kill takes numbers. The daemon belongs to this test and is alive.
        assert_eq!(unsafe { libc::kill(*pid as libc::pid_t, signal) }, 0);
    }
}

/// A lone writer writes to its memory. Other users of the file see all of the data, by any version
/// and through an earlier descriptor.
/// Promise: 8a''
#[test]
#[ignore = "needs root"]
fn delayed_data_is_visible_to_others() {
    let server = serve_with(TERM);
    let a = mounted(&server, "a", DELAYED);
    for version in ["nqnfs", "3", "4.2"] {
        let b = server.mnt(&format!("b{version}"));
        let mountport = if version == "3" { ",mountport=2049" } else { "" };
        server.mount(&format!("vers={version}{mountport}{DELAYED}"), &b).ok();
        for how in ["open", "stat", "held"] {
            let name = format!("{version}-{how}");
            fs::write(server.export(&name), "").unwrap();
            // A mount that holds a file open revalidates the file now and then.
            let held = (how == "held").then(|| File::open(b.join(&name)).unwrap());
            let file = delayed(&server, &a, &name, "first");
            for i in 0..100 {
                file.write_all_at(format!("{i:04}").as_bytes(), 4 * i).unwrap();
            }
            if held.is_none() {
                assert_eq!(at_server(&server, &name), 0, "{name}: no client looks");
            }
            match (how, held) {
                ("open", _) => assert_eq!(read(&b.join(&name)).len(), 400, "{name}"),
                ("stat", _) => assert_eq!(fs::metadata(b.join(&name)).unwrap().len(), 400, "{name}"),
                // Only NQNFS promises this to a client that has the file open already.
                (_, Some(held)) if version == "nqnfs" => {
                    let mut bytes = [0; 400];
                    held.read_exact_at(&mut bytes, 0).unwrap();
                    assert!(bytes.ends_with(b"0099"));
                }
                _ => assert_eq!(read(&b.join(&name)).len(), 400, "{name}"),
            }
            assert_eq!(at_server(&server, &name), 400);
        }
        umount(&b);
    }
    umount(&a);
}

/// Two mounts keep two files open. Each writes one file and reads the other, for longer than the
/// server lets either cache. No read shows less than the writes before it began.
/// Promise: 8a''
#[test]
#[ignore = "needs root"]
fn open_files_show_nothing_stale() {
    for options in ["", ",consistency=strict"] {
        let server = serve_with(TERM);
        let dirs = ["a", "b"].map(|name| mounted(&server, name, &format!(",dirty-age=3600{options}")));
        for n in 0..2 {
            fs::write(server.export(&format!("f{n}")), 0_u64.to_le_bytes()).unwrap();
        }
        let own = [0, 1].map(|n| write_only(&dirs[n].join(format!("f{n}"))));
        let other = [0, 1].map(|n| File::open(dirs[n].join(format!("f{}", 1 - n))).unwrap());
        let seen = |n: usize| {
            let mut bytes = [0; 8];
            other[n].read_exact_at(&mut bytes, 0).unwrap();
            u64::from_le_bytes(bytes)
        };
        let mut random = Random(1);
        for version in 1..=200_u64 {
            for (n, mine) in own.iter().enumerate() {
                mine.write_all_at(&version.to_le_bytes(), 0).unwrap();
                assert_eq!(seen(1 - n), version, "{options} of {n}");
            }
            // Now and then one mount pauses, so that the other is alone.
            if random.below(20) == 0 {
                pause(200);
            }
        }
        drop((own, other));
        dirs.iter().for_each(|mnt| umount(mnt));
    }
}

/// `close=delegated`: a close under a lease does not wait for the server. An open by another client
/// shows the closed data.
/// Promise: 6a'
#[test]
#[ignore = "needs root"]
fn leased_close_does_not_wait() {
    let server = serve_with(TERM);
    let (a, b) =
        (mounted(&server, "a", &format!("{DELAYED},close=delegated")), mounted(&server, "b", DELAYED));
    for i in 0..20 {
        let (name, body) = (format!("f{i}"), format!("body {i}"));
        fs::write(a.join(&name), &body).unwrap();
        assert_eq!(at_server(&server, &name), 0, "{name} was waited for");
        if i % 2 == 0 {
            assert_eq!(read(&b.join(&name)), body);
        }
    }
    // fsync(2) waits for the server.
    write_only(&a.join("f1")).sync_all().unwrap();
    assert_eq!(at_server(&server, "f1"), 6);
    umount(&a);
    for i in 0..20 {
        assert_eq!(fs::read_to_string(server.export(&format!("f{i}"))).unwrap(), format!("body {i}"));
    }
    umount(&b);
}

/// A client with delayed data is killed. Its synced data is at the server, and other clients wait
/// only until its lease has expired.
/// Promise: 8a''
#[test]
#[ignore = "needs root"]
fn killed_writer_keeps_synced_data() {
    let server = serve_with_slack(8, 1);
    let (a, b) = (mounted(&server, "a", DELAYED), mounted(&server, "b", ""));
    let file = delayed(&server, &a, "f", "unsynced");
    file.write_all_at(b"synced!!", 0).unwrap();
    file.sync_all().unwrap();
    wait_for("a write that waits", 60, || {
        file.write_all_at(b"later", 8).unwrap();
        at_server(&server, "f") == 8
    });
    signal(&daemons(&a), libc::SIGKILL);
    let path = b.join("f");
    let reader = std::thread::spawn(move || read(&path));
    wait_for("the end of the lease", 60, || reader.is_finished());
    assert_eq!(reader.join().unwrap(), "synced!!");
    fs::write(b.join("f"), "new").unwrap();
    assert_eq!(read(&server.export("f")), "new");
    drop(file);
    let _ = run(Command::new("umount").arg("-l").arg(&a));
    umount(&b);
}

/// The server is killed while a client has delayed data, and restarts before or after the lease has
/// ended. The delayed data arrives before any read of the file, or late. It is never lost.
/// Promise: 8a''
#[test]
#[ignore = "needs root"]
fn delayed_data_survives_server_kill() {
    for away_ms in [0, 20_000] {
        let mut server = serve_with_slack(8, 4);
        let (a, b) = (mounted(&server, "a", DELAYED), mounted(&server, "b", ""));
        let file = delayed(&server, &a, "f", "delayed");
        server.kill();
        pause(away_ms);
        server.serve();
        if away_ms == 0 {
            assert_eq!(read(&b.join("f")), "delayed", "the lease was still held");
        }
        file.sync_all().unwrap();
        assert_eq!(read(&server.export("f")), "delayed");
        assert_eq!(read(&b.join("f")), "delayed");
        drop(file);
        umount(&a);
        umount(&b);
    }
}

/// A client that is silent for longer than its lease loses the lease. Other clients use the file
/// meanwhile. The client sends its delayed data when it is back.
/// Promise: 8a''
#[test]
#[ignore = "needs root"]
fn isolated_writer_sends_data_late() {
    let server = serve_with_slack(8, 1);
    let (a, b) = (mounted(&server, "a", DELAYED), mounted(&server, "b", ""));
    let file = delayed(&server, &a, "f", "delayed");
    let holder = daemons(&a);
    signal(&holder, libc::SIGSTOP);
    wait_for("a stopped holder", 60, || holder.iter().all(|pid| has_stopped(*pid)));
    let path = b.join("f");
    let reader = std::thread::spawn(move || read(&path));
    wait_for("the end of the lease", 120, || reader.is_finished());
    assert_eq!(reader.join().unwrap(), "");
    signal(&holder, libc::SIGCONT);
    file.sync_all().unwrap();
    assert_eq!(read(&server.export("f")), "delayed");
    assert_eq!(read(&b.join("f")), "delayed");
    drop(file);
    umount(&a);
    umount(&b);
}
