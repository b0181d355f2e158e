//! The state that clients have at `hither gateway`: locks, delegations, and files in use during an
//! upgrade.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, Random, daemons, has_stopped, own_files, pause, run, wait_for};
use rustix::fs::FlockOperation;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// Two gateways of one origin, with a client each, a client of the origin, and the origin's
/// directory. All servers delegate.
struct Delegating {
    origin: Serve,
    gateways: [Serve; 2],
    /// Mounts of the first gateway (twice), of the second, and of the origin.
    mounts: [PathBuf; 4],
}

impl Delegating {
    fn start(version: &str) -> Self {
        own_files();
        let delegates = ["--max-delegations", "1000"];
        let mut origin = Serve::of_directory().with(&delegates);
        origin.serve();
        let mount = format!("retry=0,port={},{version}", origin.port);
        let mut gateways = [1000, 2000].map(|more| {
            let words = ["127.0.0.1:/", "--mount", &mount];
            Serve::gateway_at(origin.port + more, &words).with(&delegates)
        });
        gateways.iter_mut().for_each(Serve::serve);
        let [one, two] = &gateways;
        let places = [(one, "holder"), (one, "beside"), (two, "far"), (&origin, "direct")];
        let mounts = places.map(|(server, name)| {
            let mnt = server.mnt(name);
            server.mount(version, &mnt).ok();
            mnt
        });
        Self { origin, gateways, mounts }
    }

    fn holder(&self) -> &Path {
        &self.mounts[0]
    }

    /// Operations that the holder has sent, without those that renew its lease and end opens.
    fn calls(&self) -> u64 {
        let said = run(Command::new(HITHER).args(["stat", "--json"]).arg(self.holder())).ok();
        let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let counted = |op: &&serde_json::Value| !["SEQUENCE", "CLOSE"].iter().any(|name| op["name"] == *name);
        let operations = json["operations"].as_array().unwrap().iter().filter(counted);
        operations.map(|op| op["calls"].as_u64().unwrap()).sum()
    }

    /// Whether opens, reads and stats of a file by the holder send no call.
    fn is_delegated(&self, name: &str) -> bool {
        let file = self.holder().join(name);
        let before = self.calls();
        for _ in 0..5 {
            fs::read(&file).unwrap();
            fs::metadata(&file).unwrap();
        }
        self.calls() == before
    }

    fn until_delegated(&self, name: &str) {
        wait_for("a delegation", 30, || {
            std::thread::sleep(Duration::from_millis(300));
            // Servers learn late of a file that a program of the origin has made.
            self.holder().join(name).exists() && self.is_delegated(name)
        });
    }

    fn end(self) {
        self.mounts.iter().for_each(|mnt| umount(mnt));
        drop(self.gateways);
        drop(self.origin);
    }
}

/// Gives a file new bytes in one of several ways.
fn change(dir: &Path, name: &str, new: &str, kind: u64) {
    let file = dir.join(name);
    match kind {
        0 => fs::write(&file, new).unwrap(),
        1 => {
            fs::write(dir.join("new"), new).unwrap();
            fs::rename(dir.join("new"), &file).unwrap();
        }
        2 => {
            fs::remove_file(&file).unwrap();
            fs::write(&file, new).unwrap();
        }
        _ => {
            fs::write(&file, new).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(0o604)).unwrap();
        }
    }
}

/// A delegation of the origin reaches the gateway's clients: a file costs them no call. Each change
/// by any other client, or by a program of the origin, shows to the holder when its call has ended.
/// Promise: G8
#[test]
#[ignore = "needs root"]
fn delegations_pass_through() {
    for version in ["vers=4.2", "vers=4.1"] {
        let servers = Delegating::start(version);
        let mut random = Random(7);
        fs::write(servers.origin.export("kept"), "first").unwrap();
        servers.until_delegated("kept");
        let held = Instant::now();
        while held.elapsed() < Duration::from_secs(5) {
            assert!(servers.is_delegated("kept"), "{version}: it does not expire");
        }
        let exported = servers.origin.export("");
        let changers = [&servers.mounts[1], &servers.mounts[2], &servers.mounts[3], &exported];
        for round in 0..16 {
            let (changer, kind, name) = (changers[round % 4], random.next() % 4, format!("f{round}"));
            fs::write(servers.origin.export(&name), "first").unwrap();
            servers.until_delegated(&name);
            let new = format!("bytes of round {round}");
            let began = Instant::now();
            change(changer, &name, &new, kind);
            let took = began.elapsed();
            // Programs of the origin cannot be held up by changes of names and attributes.
            if round % 4 == 3 {
                std::thread::sleep(Duration::from_millis(500));
            }
            let when = format!("{version}: round {round}, kind {kind}, by {}", changer.display());
            println!("{when}: {took:?}");
            let seen = servers.holder().join(&name);
            assert_eq!(fs::read_to_string(&seen).unwrap(), new, "{when}");
            if kind == 3 {
                assert_eq!(fs::metadata(&seen).unwrap().mode() & 0o777, 0o604, "{when}");
            }
        }
        servers.end();
    }
}

/// A change at the origin waits for a client of the gateway that does not answer, until the
/// client's lease has ended, and no longer. The client then shows the new state.
/// Promise: G8
#[test]
#[ignore = "needs root"]
fn stopped_client_delays_change_at_origin() {
    let servers = Delegating::start("vers=4.2");
    fs::write(servers.origin.export("f"), "first").unwrap();
    servers.until_delegated("f");
    let holder = daemons(servers.holder());
    let signal = |signal| {
        holder.iter().for_each(|pid| {
            // SAFETY: kill takes numbers; the daemon is alive.
            assert_eq!(unsafe { libc::kill(*pid as libc::pid_t, signal) }, 0);
        });
    };
    signal(libc::SIGSTOP);
    wait_for("a stopped holder", 60, || holder.iter().all(|pid| has_stopped(*pid)));
    let begun = Instant::now();
    fs::write(servers.mounts[3].join("f"), "new").unwrap();
    let took = begun.elapsed();
    signal(libc::SIGCONT);
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(40), "{took:?}");
    wait_for("the new bytes", 60, || fs::read(servers.holder().join("f")).is_ok_and(|read| read == b"new"));
    servers.end();
}

/// A kill of the gateway leaves no stale bytes with its clients when all is connected again. An
/// orderly end recalls the delegations, so it leaves none at any time.
/// Promise: G8
#[test]
#[ignore = "needs root"]
fn lost_gateway_leaves_no_delegation() {
    for orderly in [false, true] {
        let mut servers = Delegating::start("vers=4.2");
        fs::write(servers.origin.export("f"), "first").unwrap();
        servers.until_delegated("f");
        if orderly {
            assert_eq!(servers.gateways[0].stop(), 0);
        } else {
            servers.gateways[0].kill();
        }
        fs::write(servers.mounts[3].join("f"), "while the gateway was away").unwrap();
        let seen = || fs::read_to_string(servers.mounts[0].join("f")).unwrap();
        if orderly {
            std::thread::scope(|s| {
                let read = s.spawn(seen);
                pause(1_000);
                assert!(!read.is_finished(), "the read waits for the gateway");
                servers.gateways[0].serve();
                assert_eq!(read.join().unwrap(), "while the gateway was away");
            });
        } else {
            servers.gateways[0].serve();
            wait_for("the new bytes", 100, || seen() == "while the gateway was away");
        }
        servers.until_delegated("f");
        servers.end();
    }
}

/// Attributes that a client has set on a new file are at the origin when close(2) has returned, or
/// the call itself on a closed file.
/// Promise: G1
#[test]
#[ignore = "needs root"]
fn attributes_of_new_files_are_at_origin() {
    for (client, version) in [("vers=4.2", "vers=4.2"), ("vers=4.2", "vers=3"), ("vers=3", "vers=4.2")] {
        own_files();
        let mut origin = Serve::of_directory();
        origin.serve();
        let mut gateway = Serve::gateway(&origin, version);
        gateway.serve();
        let mnt = gateway.mnt("mnt");
        gateway.mount(client, &mnt).ok();
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for n in 0..30 {
            let name = format!("f{n}");
            let mut file = File::create(mnt.join(&name)).unwrap();
            file.write_all(b"new").unwrap();
            let mode = Permissions::from_mode(0o750);
            match n % 3 {
                0 => {
                    file.set_permissions(mode).unwrap();
                    file.set_modified(time).unwrap();
                    drop(file);
                }
                1 => {
                    drop(file);
                    let file = File::options().write(true).open(mnt.join(&name)).unwrap();
                    file.set_modified(time).unwrap();
                    file.set_permissions(mode).unwrap();
                }
                _ => {
                    drop(file);
                    fs::set_permissions(mnt.join(&name), mode).unwrap();
                    File::open(mnt.join(&name)).unwrap().set_modified(time).unwrap();
                }
            }
            let there = fs::metadata(origin.export(&name)).unwrap();
            let what = format!("client {client}, origin {version}, {name}");
            assert_eq!((there.mode() & 0o777, there.modified().unwrap()), (0o750, time), "{what}");
        }
        umount(&mnt);
    }
}

/// A program's files in a directory, and the bytes that they must have.
struct Files {
    dir: PathBuf,
    bytes: BTreeMap<u64, Vec<u8>>,
    random: Random,
}

impl Files {
    fn path(&self, file: u64) -> PathBuf {
        self.dir.join(format!("f{file}"))
    }

    /// One of several calls on a file: replace, rename, remove, cut, append with a lock, read.
    fn call(&mut self) -> io::Result<()> {
        let (file, call) = (self.random.below(6), self.random.below(8));
        let path = self.path(file);
        let Some(mut bytes) = self.bytes.remove(&file) else {
            let absent = fs::metadata(&path).map_or_else(|e| e.kind() == ErrorKind::NotFound, |_| false);
            assert!(absent, "{} is there", path.display());
            fs::write(&path, file.to_le_bytes())?;
            self.bytes.insert(file, file.to_le_bytes().to_vec());
            return Ok(());
        };
        let piece = vec![self.random.below(256) as u8; self.random.below(20_000) as usize];
        match call {
            0 => {
                fs::write(&path, &piece)?;
                bytes = piece;
            }
            1 => {
                let to = self.random.below(6);
                fs::rename(&path, self.path(to))?;
                self.bytes.insert(to, bytes);
                return Ok(());
            }
            2 => return fs::remove_file(&path),
            3 => {
                bytes.truncate(self.random.below(20_000) as usize);
                File::options().write(true).open(&path)?.set_len(bytes.len() as u64)?;
            }
            4 | 5 => {
                let mut to = File::options().append(true).open(&path)?;
                rustix::fs::flock(&to, FlockOperation::LockExclusive)?;
                to.write_all(&piece)?;
                to.sync_all()?;
                bytes.extend_from_slice(&piece);
            }
            _ => assert!(fs::read(&path)? == bytes, "{} has wrong bytes", path.display()),
        }
        self.bytes.insert(file, bytes);
        Ok(())
    }

    /// Compares all files with those in another directory.
    fn assert_in(&self, dir: &Path, place: &str) {
        assert_eq!(fs::read_dir(dir).unwrap().count(), self.bytes.len(), "{place}");
        for (file, bytes) in &self.bytes {
            let path = dir.join(format!("f{file}"));
            assert!(fs::read(&path).unwrap() == *bytes, "{place}: {}", path.display());
        }
    }
}

/// Programs use files while gateway and origin are stopped and started by turns, as in an upgrade.
/// No call fails, and no byte is wrong.
/// Promise: G4
#[test]
#[ignore = "needs root"]
fn upgrades_cause_no_error() {
    let versions = [("4.2", "4.2"), ("3", "4.2"), ("4.2", "3"), ("3", "3")];
    for (client, version) in versions.map(|(c, o)| (format!("vers={c}"), format!("vers={o}"))) {
        own_files();
        let mut origin = Serve::of_directory();
        origin.serve();
        let mut gateway = Serve::gateway(&origin, &version);
        gateway.serve();
        let mnt = gateway.mnt("mnt");
        gateway.mount(&client, &mnt).ok();
        let over = AtomicBool::new(false);
        let ended: Vec<(Files, u64)> = std::thread::scope(|s| {
            let work = |n: u64| {
                let mut files =
                    Files { dir: mnt.join(format!("d{n}")), bytes: BTreeMap::new(), random: Random(n + 1) };
                let over = &over;
                move || {
                    fs::create_dir(&files.dir).unwrap();
                    let calls = (0..).take_while(|_| !over.load(Ordering::Relaxed));
                    let count =
                        calls.map(|n| files.call().unwrap_or_else(|e| panic!("call {n}: {e}"))).count();
                    (files, count as u64)
                }
            };
            let workers: Vec<_> = (0..3).map(|n| s.spawn(work(n))).collect();
            for upgrade in 0..6 {
                pause(500);
                let server = if upgrade % 2 == 0 { &mut gateway } else { &mut origin };
                assert_eq!(server.stop(), 0);
                server.serve();
            }
            pause(2_000);
            over.store(true, Ordering::Relaxed);
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        for (files, calls) in &ended {
            let place = format!("client {client}, origin {version}, {calls} calls");
            println!("{place}");
            files.assert_in(&files.dir, &place);
            files.assert_in(&origin.export(files.dir.file_name().unwrap().to_str().unwrap()), &place);
        }
        umount(&mnt);
    }
}
