//! A server that is killed and started under many mounts with delayed writes: all are served again,
//! nothing is lost, and no faster than its rate allows.

use crate::client::now;
use crate::common::pause;
use crate::common::serve::Serve;
use crate::mount::umount;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

const MOUNTS: usize = 5;
const FILES: usize = 4;
/// Calls a second.
const RATE: usize = 10;
/// A server of NQNFS. For a minute after a restart leases may be out: longer than any test may have
/// to wait here.
const LEASES: [&str; 3] = ["--nqnfs", "--nqnfs-term", "60"];

fn served(words: &[&[&str]]) -> Serve {
    let server = Serve::of_directory().with(&["-o", "insecure"]);
    let mut server = words.iter().fold(server, |server, words| server.with(words));
    server.serve();
    server
}

fn body(mount: usize, file: usize) -> Vec<u8> {
    format!("{mount} {file} ").repeat(4000).into_bytes()
}

/// Every mount delays the writes to its files.
fn dirty(server: &Serve, options: &str) -> Vec<(PathBuf, Vec<File>)> {
    let mounts: Vec<PathBuf> = (0..MOUNTS).map(|n| server.mnt(&format!("m{n}"))).collect();
    for mnt in &mounts {
        // Nor is it sent to ask for attributes of files that are held open.
        server.mount(&format!("{options},dirty-age=3600,actimeo=600"), mnt).ok();
    }
    let write = |(n, mnt): (usize, PathBuf)| {
        let write = |i| {
            let file = File::create(mnt.join(format!("f{n}-{i}"))).unwrap();
            file.write_all_at(&body(n, i), 0).unwrap();
            file
        };
        let files = (0..FILES).map(write).collect();
        (mnt, files)
    };
    mounts.into_iter().enumerate().map(write).collect()
}

/// Delayed data is at the server when every mount has synchronised it; returns the time that took.
fn synced(server: &Serve, mounts: &[(PathBuf, Vec<File>)]) -> Duration {
    let began = now();
    std::thread::scope(|scope| {
        for (_, files) in mounts {
            scope.spawn(|| files.iter().for_each(|file| file.sync_all().unwrap()));
        }
    });
    let took = began.elapsed();
    for n in 0..MOUNTS {
        for i in 0..FILES {
            let name = format!("f{n}-{i}");
            assert!(fs::read(server.export(&name)).unwrap() == body(n, i), "{name}");
        }
    }
    took
}

/// Delayed writes are not kept waiting: those of NQNFS not for other clients' leases, those of
/// NFSv4 not for the grace period when all clients have come back, and those of NFSv3, whose
/// clients a server does not know, not at all. With a rate they come as fast as it allows.
/// Promise: S12
#[test]
#[ignore = "needs root"]
fn what_many_mounts_delayed_outlives_the_server() {
    let rate = RATE.to_string();
    let (leases, paced) = (&LEASES[..], &["--recovery-rate", &rate][..]);
    for (version, words) in [
        ("nqnfs", &[leases][..]),
        ("nqnfs", &[leases, paced][..]),
        ("4.2", &[leases, paced][..]),
        // No client announces its recovery.
        ("3", &[paced][..]),
    ] {
        let mut server = served(words);
        let mounts = dirty(&server, &format!("vers={version}"));
        for n in 0..MOUNTS {
            assert_eq!(
                fs::metadata(server.export(&format!("f{n}-0"))).unwrap().len(),
                0,
                "{version}: it waits"
            );
        }
        server.kill();
        pause(500);
        server.serve();
        let took = synced(&server, &mounts);
        assert!(took < Duration::from_secs(40), "{version} {words:?}: {took:?}");
        // A call of each mount to begin with, but for NFSv3, and one for each file, but for a burst
        // of one.
        let begins = if version == "3" { 0 } else { MOUNTS };
        let least = (begins + MOUNTS * FILES - 2) * 1000 / RATE;
        if words.contains(&paced) {
            assert!(took >= Duration::from_millis(least as u64), "{version}: {took:?}");
        }
        for (mnt, files) in mounts {
            drop(files);
            umount(&mnt);
        }
    }
}

/// Mounts that ended in order have given up their leases: the next server serves at once.
#[test]
#[ignore = "needs root"]
fn an_orderly_end_leaves_nobody_to_wait_for() {
    let mut server = served(&[&LEASES]);
    let mounts = dirty(&server, "vers=nqnfs");
    for (mnt, files) in mounts {
        drop(files);
        umount(&mnt);
    }
    server.stop();
    server.serve();
    let began = now();
    let mnt = server.mnt("again");
    server.mount("vers=nqnfs", &mnt).ok();
    assert!(fs::read(mnt.join("f0-0")).unwrap() == body(0, 0));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    umount(&mnt);
}
