//! `hither mount -o vers=nqnfs`: changes by programs reach the server, and no data is lost or
//! stale.

use crate::client::{Wire, now};
use crate::common::serve::Serve;
use crate::common::{HITHER, pause, run, wait_for};
use crate::{LATE, gives_up, serve, serve_with};
use hither_proto::nqnfs::{Cachetype, Fh, LeaseRequest, Stat};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

pub fn mounted(server: &Serve, name: &str, options: &str) -> PathBuf {
    let mnt = server.mnt(name);
    server.mount(&format!("vers=nqnfs{options}"), &mnt).ok();
    mnt
}

/// A lease term in seconds that outlasts the delays of a busy machine in a test.
const LONG: u32 = 20;

/// Asks for a lease of that term until the server grants it.
fn until_leased(wire: &mut Wire, file: Fh, rw: Cachetype) {
    wait_for("a lease", 60, || wire.lease(file, rw, LONG).cachable);
}

pub fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// Bytes without a repeated pattern.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// The common calls of programs work on a mount: data, truncation, links, renames, attributes,
/// special files, and files removed while open.
/// Promise: 7a
#[test]
#[ignore = "needs root"]
fn mount_supports_common_calls() {
    let server = serve();
    let mnt = mounted(&server, "m", "");
    let (here, there) = (|name: &str| mnt.join(name), |name: &str| server.export(name));
    fs::create_dir(here("d")).unwrap();
    let big = bytes(5_000_001);
    fs::write(here("d/big"), &big).unwrap();
    assert!(fs::read(there("d/big")).unwrap() == big, "the data is at the server after the close");
    let mut f = OpenOptions::new().read(true).write(true).open(here("d/big")).unwrap();
    f.write_all_at(b"middle", 3_000_000).unwrap();
    f.set_len(3_000_004).unwrap();
    f.seek(SeekFrom::End(0)).unwrap();
    f.write_all(b"end").unwrap();
    f.sync_all().unwrap();
    let tail = [&big[2_999_990..3_000_000], b"middend"].concat();
    let server_has = fs::read(there("d/big")).unwrap();
    assert!(server_has[..3_000_000] == big[..3_000_000] && server_has[2_999_990..] == tail);
    // Removes the file while it is open.
    fs::remove_file(here("d/big")).unwrap();
    let mut all = Vec::new();
    f.seek(SeekFrom::Start(0)).unwrap();
    f.read_to_end(&mut all).unwrap();
    assert!(all == server_has);
    drop(f);
    // The kernel reports the last close at a time of its choice.
    wait_for("the end of the hidden file", 120, || fs::read_dir(there("d")).unwrap().next().is_none());
    fs::remove_dir(here("d")).unwrap();

    fs::write(here("a"), "one").unwrap();
    assert_eq!(
        OpenOptions::new().write(true).create_new(true).open(here("a")).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    fs::hard_link(here("a"), here("b")).unwrap();
    assert_eq!(fs::metadata(here("a")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(here("a")).unwrap().ino(), fs::metadata(here("b")).unwrap().ino());
    fs::rename(here("b"), here("c")).unwrap();
    symlink("c", here("l")).unwrap();
    assert_eq!(fs::read_to_string(here("l")).unwrap(), "one");
    fs::set_permissions(here("c"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(here("c"), Some(1001), Some(1002)).unwrap();
    let at = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
    File::options().write(true).open(here("c")).unwrap().set_modified(at).unwrap();
    let m = fs::metadata(there("a")).unwrap();
    assert_eq!((m.mode() & 0o7777, m.uid(), m.gid()), (0o640, 1001, 1002));
    assert_eq!(m.modified().unwrap(), at);
    run(Command::new("mkfifo").arg(here("p"))).ok();
    run(Command::new("mknod").arg(here("n")).args(["c", "1", "3"])).ok();
    assert!(fs::symlink_metadata(there("p")).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(here("n")).unwrap().file_type().is_char_device());
    assert_eq!(
        fs::symlink_metadata(there("n")).unwrap().rdev(),
        fs::symlink_metadata(here("n")).unwrap().rdev()
    );
    // The creator writes to a file without write permission.
    let f = OpenOptions::new().write(true).create_new(true).mode(0o444).open(here("r")).unwrap();
    (&f).write_all(b"x").unwrap();
    drop(f);
    assert_eq!(fs::read(there("r")).unwrap(), b"x");
    umount(&mnt);
}

/// A mount gives up its leases at its end. The next server then serves without a wait.
#[test]
#[ignore = "needs root"]
fn returned_leases_spare_restart_wait() {
    let mut server = serve_with(crate::LONG);
    let mnt = mounted(&server, "m", "");
    fs::write(mnt.join("f"), "one").unwrap();
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"one");
    umount(&mnt);
    assert_eq!(server.stop(), 0);
    server.serve();
    let mut wire = Wire::connect(2049, 1);
    let dir = wire.mount();
    // CREATE of an existing name opens the file. Earlier leases would last for four minutes.
    let began = now();
    let f = wire.create(dir, "f");
    assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
    assert_eq!(wire.read(f).unwrap().0, b"one");
}

/// A directory of 1200 long names is listed completely and removed.
#[test]
#[ignore = "needs root"]
fn a_large_directory_is_listed_whole() {
    let server = serve();
    let mnt = mounted(&server, "m", "");
    let name = |n: usize| format!("{n:05}-{}", "x".repeat(n % 200));
    fs::create_dir(server.export("d")).unwrap();
    let wanted: Vec<String> = (0..1200).map(name).collect();
    wanted.iter().for_each(|name| fs::write(server.export("d").join(name), name).unwrap());
    let list = |dir: PathBuf| {
        let mut names: Vec<(String, u64)> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len())).unwrap())
            .collect();
        names.sort();
        names
    };
    let listed = list(mnt.join("d"));
    assert_eq!(listed, list(server.export("d")));
    assert_eq!(listed.len(), wanted.len());
    run(Command::new("rm").arg("-r").arg(mnt.join("d"))).ok();
    assert!(!server.export("d").exists());
    umount(&mnt);
}

/// An open sees the data that another mount closed before.
/// Promise: 7a
#[test]
#[ignore = "needs root"]
fn open_sees_other_mounts_close() {
    let server = serve();
    let (a, b) = (mounted(&server, "a", ""), mounted(&server, "b", ""));
    for round in 0..20 {
        let (w, r) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        // All texts have one length, so that only the contents tell them apart.
        let text = format!("round {round:04}");
        fs::write(w.join("f"), &text).unwrap();
        // The pause gives the next write another ctime, which distinguishes versions.
        pause(30);
        assert_eq!(fs::read_to_string(r.join("f")).unwrap(), text);
    }
    umount(&a);
    umount(&b);
}

/// CREATE of NQNFS also opens an existing file. The client's own mechanism decides that exactly one
/// of several mounts is the creator.
/// Promise: 7a
#[test]
#[ignore = "needs root"]
fn exclusive_create_has_one_winner() {
    let server = serve();
    let mounts = [mounted(&server, "a", ""), mounted(&server, "b", ""), mounted(&server, "c", "")];
    let won: Arc<Vec<AtomicUsize>> = Arc::new((0..60).map(|_| AtomicUsize::new(0)).collect());
    let workers: Vec<_> = mounts
        .iter()
        .cloned()
        .map(|mnt| {
            let won = won.clone();
            std::thread::spawn(move || {
                for (n, won) in won.iter().enumerate() {
                    let new =
                        OpenOptions::new().write(true).create_new(true).open(mnt.join(format!("lock{n}")));
                    match new {
                        Ok(_) => drop(won.fetch_add(1, SeqCst)),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::AlreadyExists),
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|w| w.join().unwrap());
    assert!(won.iter().all(|n| n.load(SeqCst) == 1), "{won:?}");
    mounts.iter().for_each(|mnt| umount(mnt));
}

/// Calls of a mount end another client's leases, and the mount sees that client's delayed data.
/// Promise: 7a
#[test]
#[ignore = "needs root"]
fn mount_ends_other_clients_leases() {
    let server = serve_with(LONG);
    let mut w = Wire::connect(2049, 1);
    let dir = w.mount();
    let mnt = mounted(&server, "m", "");
    let f = w.create(dir, "f");
    w.write(f, LeaseRequest::None, b"old").unwrap();
    until_leased(&mut w, f, Cachetype::WRITE);
    let path = mnt.join("f");
    let read = std::thread::spawn(move || fs::read(path).unwrap());
    assert_eq!(gives_up(&mut w, f, Some(b"delayed"), read), b"delayed");
    until_leased(&mut w, f, Cachetype::READ);
    let path = mnt.join("f");
    let written = std::thread::spawn(move || fs::write(path, "by the mount").unwrap());
    gives_up(&mut w, f, None, written);
    assert_eq!(w.read(f).unwrap().0, b"by the mount");
    umount(&mnt);
}

/// Written and synchronised data survives repeated kills of the server. Programs only wait.
/// Promise: 7a
#[test]
#[ignore = "needs root"]
fn a_mount_outlives_its_server() {
    let mut server = serve();
    let mnt = mounted(&server, "m", "");
    // The file is created before the first kill. A repeated CREATE whose first reply was lost would
    // find the file.
    let file = OpenOptions::new().write(true).create_new(true).open(mnt.join("f")).unwrap();
    let writer = std::thread::spawn(move || {
        for n in 0..400u64 {
            file.write_all_at(&n.to_be_bytes().repeat(1000), n * 8000).unwrap();
            file.sync_data().unwrap();
        }
    });
    for _ in 0..3 {
        pause(300);
        server.kill();
        server.serve();
    }
    writer.join().unwrap();
    let want: Vec<u8> = (0..400u64).flat_map(|n| n.to_be_bytes().repeat(1000)).collect();
    assert!(fs::read(server.export("f")).unwrap() == want);
    assert!(fs::read(mnt.join("f")).unwrap() == want);
    umount(&mnt);
}

/// After a restart of the server, delayed data comes first. A mount's new write does not count as
/// delayed data.
/// Promise: 7a
#[test]
#[ignore = "needs root"]
fn fresh_write_follows_delayed_write() {
    let mut server = serve_with(LONG);
    let mut w = Wire::connect(2049, 1);
    let dir = w.mount();
    let mnt = mounted(&server, "m", "");
    let f = w.create(dir, "f");
    w.write(f, LeaseRequest::None, b"first").unwrap();
    // The mount knows the file, so it needs no request except the write.
    let file = OpenOptions::new().write(true).open(mnt.join("f")).unwrap();
    until_leased(&mut w, f, Cachetype::WRITE);
    server.kill();
    server.serve();
    let mut w = Wire::connect(2049, 1);
    assert_eq!(w.read(f), Err(Stat::TRYLATER), "the server waits for delayed writes");
    // Both writes arrive while the server waits. In either order, the fresh write has to try later.
    let write = std::thread::spawn(move || {
        file.write_all_at(b"fresh", 0).unwrap();
        file.sync_all().unwrap();
    });
    w.write(f, LeaseRequest::None, b"delay").unwrap();
    write.join().unwrap();
    assert_eq!(fs::read(server.export("f")).unwrap(), b"fresh");
    umount(&mnt);
}

/// A mount with `vers=nqnfs` of a server without NQNFS fails with a clear line.
#[test]
#[ignore = "needs root"]
fn missing_nqnfs_is_reported() {
    let mut server = Serve::of_directory();
    server.serve();
    let said = server.mount("vers=nqnfs", &server.mnt("m"));
    said.fails(
        32,
        "hither: 127.0.0.1: the server does not offer MOUNT version 1, which NQNFS needs (it offers 3); try another vers=, or none to \
         negotiate",
    );
}
