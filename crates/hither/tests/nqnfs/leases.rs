//! Leases that mounts hold. A mount sends no request under a lease. A change returns only when no
//! mount shows the old file any more. An expired lease costs a request and no READ.

use crate::common::serve::Serve;
use crate::common::{HITHER, daemons, has_stopped, pause, run, wait_for};
use crate::mount::{mounted, umount};
use crate::{SHORT, serve_with, serve_with_slack};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Options under which names stay cached for long and attributes do not. Requests about attributes
/// are saved by leases only.
const SHORTLY: &str = ",acregmin=1,acregmax=1,acdirmin=60,acdirmax=60";
/// An option under which no cached state expires during a test.
const FOREVER: &str = ",actimeo=3600";
/// Term of leases in seconds. Mounts ask for at most 30.
const TERM: u32 = 60;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// As `read`, without a wait before the file is replaced. The replacement may come between open(2)
/// and read(2), and then the open file is gone (promise 13). open(2) itself finds the file of the
/// name, and the next open finds the new file.
fn read_what_is_replaced(path: &Path) -> String {
    let (mut file, mut body) = (File::open(path).unwrap(), String::new());
    match file.read_to_string(&mut body) {
        Err(e) if e.raw_os_error() == Some(libc::ESTALE) => read(path),
        done => done.map(|_| body).unwrap(),
    }
}

/// Number of calls that a mount has sent. `of` names a procedure. `None` counts all except those
/// that renew or give up leases.
pub fn calls(mnt: &Path, of: Option<&str>) -> u64 {
    let said = run(Command::new(HITHER).arg("stat").arg("--json").arg(mnt)).ok();
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let counted = json["operations"].as_array().unwrap().iter().filter(|o| match (of, o["name"].as_str()) {
        (Some(of), name) => name == Some(of),
        (None, name) => !matches!(name, Some("GETLEASE" | "VACATED" | "STATFS")),
    });
    counted.map(|o| o["calls"].as_u64().unwrap()).sum()
}

/// Reads a file until the read is done under a lease, so that a second read sends no request. The
/// server grants no lease for a while after an eviction.
fn until_leased(mnt: &Path, path: &Path, body: &str) {
    wait_for("a lease", 120, || {
        pause(100);
        assert_eq!(read(path), body);
        // A name that was looked up before the lease is looked up once more.
        read(path);
        let before = calls(mnt, None);
        read(path);
        calls(mnt, None) == before
    });
}

/// A leased file is opened, read and checked by stat without a request, whether it is open or
/// closed. This lasts longer than any time limit of attributes.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn leased_file_costs_no_requests() {
    let server = serve_with(TERM);
    let (a, b) = (mounted(&server, "a", SHORTLY), mounted(&server, "b", ""));
    fs::write(server.export("f"), "leased").unwrap();
    let f = a.join("f");
    let asked = || {
        until_leased(&a, &f, "leased");
        // Both readers hold a lease.
        assert_eq!(read(&b.join("f")), "leased");
        let before = calls(&a, None);
        for _ in 0..60 {
            assert_eq!(read(&f), "leased");
            fs::metadata(&f).unwrap();
            pause(50);
        }
        calls(&a, None) - before
    };
    // The lease may end soon after the loop begins.
    assert!((0..20).any(|_| asked() == 0), "a leased file cost requests");
    // A mount with `noac` holds no lease.
    let c = mounted(&server, "c", ",noac");
    read(&c.join("f"));
    let before = calls(&c, None);
    read(&c.join("f"));
    assert!(calls(&c, None) > before);
    [a, b, c].iter().for_each(|mnt| umount(mnt));
}

/// A change by another NQNFS mount, by NFSv3, by NFSv4 or by a local program is visible when it
/// returns. This holds for open(2), for stat(2) and for earlier descriptors.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn change_reaches_lease_holders() {
    for writer in ["nqnfs", "3", "4.2", "local"] {
        let server = serve_with(TERM);
        let a = mounted(&server, "a", FOREVER);
        let b = server.mnt("b");
        if writer != "local" {
            let mountport = if writer == "3" { ",mountport=2049" } else { "" };
            server.mount(&format!("vers={writer}{mountport}"), &b).ok();
        }
        let path = if writer == "local" { server.export("f") } else { b.join("f") };
        let f = a.join("f");
        for round in 1..=2 {
            fs::write(&path, "leased").unwrap();
            until_leased(&a, &f, "leased");
            let (held, mut bytes) = (File::open(&f).unwrap(), vec![0; 6]);
            held.read_exact_at(&mut bytes, 0).unwrap();
            for i in 0..4 {
                let body = format!("{round}-{i}-{}", "x".repeat(i + 5));
                fs::write(&path, &body).unwrap();
                assert_eq!(read(&f), body, "{writer}");
                assert_eq!(fs::metadata(&f).unwrap().len(), body.len() as u64);
                bytes.resize(body.len(), 0);
                held.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(bytes, body.as_bytes(), "{writer}: a descriptor that was there");
            }
        }
        umount(&a);
        if writer != "local" {
            umount(&b);
        }
    }
}

/// A change without new bytes ends leases as well. Mounts see it at once when it comes through the
/// server, and a moment later otherwise.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn permissions_and_names_end_leases() {
    let server = serve_with(TERM);
    // Absent names are cached for the same time.
    ["f0", "f1"].iter().for_each(|name| fs::write(server.export(name), "leased").unwrap());
    let (a, b) = (mounted(&server, "a", FOREVER), mounted(&server, "b", ""));
    for (i, through) in [b.clone(), server.export("")].into_iter().enumerate() {
        let name = format!("f{i}");
        let (seen, other) = (a.join(&name), through.join(&name));
        until_leased(&a, &seen, "leased");
        fs::set_permissions(&other, fs::Permissions::from_mode(0o640)).unwrap();
        let mode = || fs::metadata(&seen).unwrap().permissions().mode() & 0o777;
        if i == 0 {
            assert_eq!(mode(), 0o640);
        } else {
            wait_for("the new permissions", 120, || mode() == 0o640);
        }
        until_leased(&a, &seen, "leased");
        let fresh = through.join("fresh");
        fs::write(&fresh, "new").unwrap();
        fs::rename(&fresh, &other).unwrap();
        if i == 0 {
            assert_eq!(read(&seen), "new");
        } else {
            wait_for("the new file", 120, || read_what_is_replaced(&seen) == "new");
        }
    }
    umount(&a);
    umount(&b);
}

/// A listing grants leases. The listed files are opened without a request about their names.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn a_listing_brings_leases() {
    const FILES: usize = 40;
    let server = serve_with(TERM);
    let a = mounted(&server, "a", SHORTLY);
    fs::create_dir(server.export("d")).unwrap();
    let name = |i: usize| format!("f{i:02}");
    for i in 0..FILES {
        fs::write(server.export("d").join(name(i)), name(i)).unwrap();
    }
    let d = a.join("d");
    let list = || fs::read_dir(&d).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
    wait_for("leases of a listing", 120, || {
        list();
        let before = calls(&a, Some("LOOKUP"));
        for i in 0..FILES {
            assert_eq!(read(&d.join(name(i))), name(i));
        }
        let asked = calls(&a, Some("LOOKUP")) - before;
        if asked > 2 {
            // These files had leases before the listing, and those leases are about to end.
            pause(1000);
        }
        asked <= 2
    });
    umount(&a);
}

/// After a lease has expired, the next open asks whether the file is unchanged. It reads no byte
/// again.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn expired_lease_costs_no_reads() {
    let server = serve_with_slack(SHORT.0, 1);
    let a = mounted(&server, "a", SHORTLY);
    let big = "0123456789abcdef".repeat(1 << 16);
    fs::write(server.export("f"), &big).unwrap();
    let f = a.join("f");
    // The kernel may drop pages of a file that changed a moment ago.
    pause(100);
    assert!(read(&f) == big);
    // The kernel may reclaim pages at any time, so one round may read. A mount that dropped pages
    // at the end of each lease would read in every round.
    let costs_no_bytes = (0..10).any(|_| {
        until_leased(&a, &f, &big);
        let (reads, before) = (calls(&a, Some("READ")), calls(&a, None));
        wait_for("the end of a lease", 120, || {
            pause(1000);
            assert!(read(&f) == big);
            calls(&a, None) > before
        });
        calls(&a, Some("READ")) == reads
    });
    assert!(costs_no_bytes);
    umount(&a);
}

/// A stopped holder delays a writer until its lease has expired. It shows nothing stale when it
/// goes on.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn stopped_holder_delays_until_expiry() {
    let server = serve_with_slack(SHORT.0, 1);
    let (a, b) = (mounted(&server, "a", FOREVER), mounted(&server, "b", ""));
    fs::write(b.join("f"), "leased").unwrap();
    let f = a.join("f");
    let holder = daemons(&a);
    let signal = |signal| {
        holder.iter().for_each(|pid| {
            // SAFETY: kill takes numbers; the daemon is alive.
            assert_eq!(unsafe { libc::kill(*pid as libc::pid_t, signal) }, 0);
        })
    };
    for round in 0..3 {
        let body = format!("round {round}");
        let before = read(&f);
        until_leased(&a, &f, &before);
        signal(libc::SIGSTOP);
        wait_for("a stopped holder", 60, || holder.iter().all(|pid| has_stopped(*pid)));
        let path = b.join("f");
        let wanted = body.clone();
        let writer = std::thread::spawn(move || fs::write(path, wanted).unwrap());
        wait_for("the writer, after the end of the lease", 120, || writer.is_finished());
        writer.join().unwrap();
        signal(libc::SIGCONT);
        wait_for("the new contents", 60, || read(&f) == body);
    }
    umount(&a);
    umount(&b);
}

/// A restarted server honours leases that it does not remember. A write returns only when they have
/// expired.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn restarted_server_honours_leases() {
    let mut server = serve_with_slack(SHORT.0, 1);
    let (a, b) = (mounted(&server, "a", FOREVER), mounted(&server, "b", ""));
    let f = a.join("f");
    for round in 0..3 {
        let (old, new) = (format!("old {round}"), format!("new {round}"));
        fs::write(b.join("f"), &old).unwrap();
        until_leased(&a, &f, &old);
        server.kill();
        server.serve();
        fs::write(b.join("f"), &new).unwrap();
        assert_eq!(read(&f), new);
    }
    umount(&a);
    umount(&b);
}

/// A reader has many files under leases while writers of all kinds write at once. No read shows
/// less than the writes acknowledged before it began.
/// Promise: 8a'
#[test]
#[ignore = "needs root"]
fn nothing_stale_is_ever_read() {
    const FILES: usize = 24;
    let server: Serve = serve_with(TERM);
    let (a, b) = (mounted(&server, "a", FOREVER), mounted(&server, "b", ""));
    let others = [("c", "vers=3,mountport=2049"), ("d", "vers=4.2")].map(|(name, options)| {
        let mnt = server.mnt(name);
        server.mount(options, &mnt).ok();
        mnt
    });
    let dirs: Vec<PathBuf> =
        [b.clone()].into_iter().chain(others.clone()).chain([server.export("")]).collect();
    let acknowledged: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    for i in 0..FILES {
        fs::write(server.export(&format!("f{i}")), format!("{:016}", 0)).unwrap();
    }
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let all_leased = || {
        wait_for("leases on all files", 120, || {
            pause(100);
            let read_all = || (0..FILES).for_each(|i| drop(read(&a.join(format!("f{i}")))));
            read_all();
            let before = calls(&a, None);
            read_all();
            calls(&a, None) == before
        });
    };
    all_leased();
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for (w, dir) in dirs.iter().enumerate() {
            let (acknowledged, over) = (&acknowledged, &over);
            writers.push(scope.spawn(move || {
                // Each file has one writer, so that its versions grow.
                for version in 1..=4 {
                    for i in (w..FILES).step_by(4) {
                        // Overwrites in place: the name stays, and all bytes change at once.
                        let file = File::options().write(true).open(dir.join(format!("f{i}"))).unwrap();
                        file.write_all_at(format!("{version:016}").as_bytes(), 0).unwrap();
                        file.sync_all().unwrap();
                        drop(file);
                        acknowledged[i].store(version, SeqCst);
                        if over.load(SeqCst) {
                            return;
                        }
                        pause(500);
                    }
                }
            }));
        }
        let mut i = 0;
        while !writers.iter().all(|w| w.is_finished()) {
            i = (i * 7 + 5) % 1_000_003;
            let n = i % FILES;
            let least = acknowledged[n].load(SeqCst);
            let seen = read(&a.join(format!("f{n}"))).parse::<u64>();
            if !seen.as_ref().is_ok_and(|seen| *seen >= least) {
                over.store(true, SeqCst);
                panic!("f{n}: {seen:?} was read after {least} was acknowledged");
            }
            reads.fetch_add(1, SeqCst);
        }
    });
    assert!(reads.into_inner() > 0 && calls(&a, Some("VACATED")) > 0, "nothing was leased");
    all_leased();
    for mnt in [&a, &b, &others[0], &others[1]] {
        umount(mnt);
    }
}
