//! A server that is killed and restarted under many mounts with delayed writes. The server serves
//! all mounts again and loses no data. It recovers no faster than its rate allows.

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
/// Calls a second that the recovery rate allows.
const RATE: usize = 10;
/// Options of a server of NQNFS. Leases may be valid for a minute after a restart, which is longer
/// than any test may wait.
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

/// Mounts that each delay the writes to their files.
fn dirty(server: &Serve, options: &str) -> Vec<(PathBuf, Vec<File>)> {
    let mounts: Vec<PathBuf> = (0..MOUNTS).map(|n| server.mnt(&format!("m{n}"))).collect();
    for mnt in &mounts {
        // These options keep the data on the client: neither its age nor a request for attributes
        // of open files sends it.
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

/// Synchronises all files and checks their data at the server. Returns the time of the
/// synchronisation.
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

/// Delayed writes do not wait after a restart. Those of NQNFS do not wait for other clients'
/// leases. Those of NFSv4 do not wait for the grace period when all clients have come back. The
/// server does not know the clients of NFSv3, so their writes do not wait either. With a rate,
/// writes arrive as fast as it allows.
/// Promise: S12
#[test]
#[ignore = "needs root"]
fn many_delayed_writes_survive_restart() {
    let rate = RATE.to_string();
    let (leases, paced) = (&LEASES[..], &["--recovery-rate", &rate][..]);
    for (version, words) in [
        ("nqnfs", &[leases][..]),
        ("nqnfs", &[leases, paced][..]),
        ("4.2", &[leases, paced][..]),
        // An NFSv3 client does not announce its recovery.
        ("3", &[paced][..]),
    ] {
        let mut server = served(words);
        let mounts = dirty(&server, &format!("vers={version}"));
        for n in 0..MOUNTS {
            assert_eq!(
                fs::metadata(server.export(&format!("f{n}-0"))).unwrap().len(),
                0,
                "{version}: the data waits"
            );
        }
        server.kill();
        pause(500);
        server.serve();
        let took = synced(&server, &mounts);
        assert!(took < Duration::from_secs(40), "{version} {words:?}: {took:?}");
        // Each file needs a call, and with NFSv4 and NQNFS each mount needs one more. The rate
        // allows a burst of one.
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

/// Mounts that ended in an orderly way have given up their leases, so the next server serves at
/// once.
#[test]
#[ignore = "needs root"]
fn orderly_unmount_frees_next_server() {
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
