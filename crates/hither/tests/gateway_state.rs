//! The state that clients have at `hither gateway`: locks.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, own_files, run};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn umount(mnt: &Path) {
    run(Command::new(HITHER).arg("umount").arg(mnt)).ok();
}

/// A lock of a client is held at the origin. After a kill of the gateway the client reclaims it.
/// Promise: G4
#[test]
#[ignore = "needs root"]
fn locks_are_held_at_origin() {
    own_files();
    let mut origin = Serve::of_directory();
    origin.serve();
    let mut gateway = Serve::gateway(&origin, "vers=4.2");
    gateway.serve();
    let (through, direct) = (gateway.mnt("through"), origin.mnt("direct"));
    gateway.mount("vers=4.2", &through).ok();
    origin.mount("vers=4.2", &direct).ok();
    let lock = |dir: &Path| {
        let file = File::options().create(true).truncate(false).write(true).open(dir.join("l")).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map(|()| file)
    };
    let held = lock(&through).unwrap();
    assert_eq!(lock(&direct).unwrap_err(), rustix::io::Errno::AGAIN);
    gateway.kill();
    gateway.serve();
    // The client reclaims when it learns of the restart.
    held.write_all_at(b"x", 0).unwrap();
    held.sync_all().unwrap();
    assert_eq!(lock(&direct).unwrap_err(), rustix::io::Errno::AGAIN);
    drop(held);
    common::wait_for("the end of the lock", 20, || lock(&direct).is_ok());
    umount(&through);
    umount(&direct);
}

/// Whether F_GETLK finds a lock of another owner.
fn is_locked(file: &File) -> bool {
    // SAFETY: a number structure, which lives through the call.
    let told = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock), 0);
        lock.l_type
    };
    told != libc::F_UNLCK as libc::c_short
}

/// Locks hold between the clients of a gateway, whatever versions the origin and the clients speak.
/// Promise: G4
#[test]
#[ignore = "needs root"]
fn locks_hold_between_clients() {
    own_files();
    let mut origin = Serve::of_directory();
    origin.serve();
    for (origin_version, client_version) in
        [("vers=3", "vers=4.1"), ("vers=3", "vers=4.2"), ("vers=4.1", "vers=4.2"), ("vers=4.2", "vers=4.1")]
    {
        let when = format!("{origin_version} at the origin, {client_version} at the clients");
        let mut gateway = Serve::gateway(&origin, origin_version);
        gateway.serve();
        let mounts = ["one", "other"].map(|name| gateway.mnt(name));
        mounts.iter().for_each(|mnt| drop(gateway.mount(client_version, mnt).ok()));
        let [one, other] = mounts.each_ref().map(|mnt| {
            File::options().create(true).truncate(false).read(true).write(true).open(mnt.join("l")).unwrap()
        });
        let again = Err(rustix::io::Errno::AGAIN);
        type Lock = fn(&File, FlockOperation) -> rustix::io::Result<()>;
        for lock in [|f, how| rustix::fs::flock(f, how), |f, how| rustix::fs::fcntl_lock(f, how)] as [Lock; 2]
        {
            assert_eq!(lock(&one, FlockOperation::NonBlockingLockExclusive), Ok(()), "{when}");
            assert_eq!(lock(&other, FlockOperation::NonBlockingLockExclusive), again, "{when}");
            assert_eq!(lock(&other, FlockOperation::NonBlockingLockShared), again, "{when}");
            assert!(is_locked(&other), "{when}");
            assert_eq!(lock(&one, FlockOperation::NonBlockingUnlock), Ok(()), "{when}");
            assert_eq!(lock(&other, FlockOperation::NonBlockingLockExclusive), Ok(()), "{when}");
            assert_eq!(lock(&other, FlockOperation::NonBlockingUnlock), Ok(()), "{when}");
        }
        drop((one, other));
        mounts.iter().for_each(|mnt| umount(mnt));
        gateway.kill();
    }
}
