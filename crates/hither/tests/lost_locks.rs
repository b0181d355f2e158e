//! Locks that are lost while their holder has unsent bytes. The next holder's bytes stay.
//!
//! The test needs root.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, daemons, has_stopped, run, wait_for};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The locked range. Each file is one record longer.
const RECORD_BYTES: usize = 10;

/// The calls of a program after the loss of its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Releases all of the file, locks it again and reads.
    UnlockAll,
    /// Releases the locked range only, locks it again and reads.
    UnlockRange,
    /// Asks for the bytes to be safe, and then releases the lock.
    Fsync,
    Close,
    /// Closes after bytes have become old enough to be sent.
    LateClose,
    /// Asks for the lock again while the next holder has it.
    WhileHeld,
}

const WAYS: [Way; 6] =
    [Way::UnlockAll, Way::UnlockRange, Way::Fsync, Way::Close, Way::LateClose, Way::WhileHeld];

/// One file, open at the client that loses its lock and at the next holder.
struct Contended {
    way: Way,
    /// The file in the served directory.
    there: PathBuf,
    loser: Option<File>,
    next: File,
}

/// A lock of the open file description. `len` 0: to the end of the file.
fn lock(file: &File, kind: i32, len: usize) -> io::Result<()> {
    // SAFETY: all zeros is a valid flock. The descriptor is open, and fcntl(2) only reads the
    // structure.
    let done = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence) = (kind as i16, libc::SEEK_SET as i16);
        lock.l_len = len as i64;
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn record(letter: u8) -> [u8; RECORD_BYTES] {
    [letter; RECORD_BYTES]
}

fn first_record(file: &File) -> io::Result<[u8; RECORD_BYTES]> {
    let mut bytes = [0; RECORD_BYTES];
    file.read_exact_at(&mut bytes, 0).map(|()| bytes)
}

impl Contended {
    fn new(way: Way, served: &Path, (a, b): (&Path, &Path)) -> Self {
        let name = format!("{way:?}");
        let open = |mnt: &Path| File::options().read(true).write(true).open(mnt.join(&name)).unwrap();
        Self { way, there: served.join(&name), loser: Some(open(a)), next: open(b) }
    }

    fn loser(&self) -> &File {
        self.loser.as_ref().unwrap()
    }

    /// Locks, and writes bytes that are not sent at once.
    fn write_under_lock(&self) {
        lock(self.loser(), libc::F_WRLCK, RECORD_BYTES).unwrap();
        assert_eq!(first_record(self.loser()).unwrap(), record(b'0'));
        self.loser().write_all_at(&record(b'A'), 0).unwrap();
    }

    /// Takes the expired lock, and writes bytes that are safe.
    fn take_over(&self) {
        wait_for("the end of the lost lock", 120, || lock(&self.next, libc::F_WRLCK, RECORD_BYTES).is_ok());
        self.next.write_all_at(&record(b'B'), 0).unwrap();
        self.next.sync_all().unwrap();
        if self.way != Way::WhileHeld {
            lock(&self.next, libc::F_UNLCK, RECORD_BYTES).unwrap();
        }
    }

    fn go_on(&mut self) {
        match self.way {
            Way::UnlockAll | Way::UnlockRange => {
                let len = if self.way == Way::UnlockAll { 0 } else { RECORD_BYTES };
                lock(self.loser(), libc::F_UNLCK, len).unwrap();
                lock(self.loser(), libc::F_WRLCK, RECORD_BYTES).unwrap();
                assert_eq!(first_record(self.loser()).unwrap(), record(b'B'), "{:?}", self.way);
            }
            Way::Fsync => {
                let told = self.loser().sync_all().map_err(|e| e.raw_os_error());
                assert_eq!(told, Err(Some(libc::EIO)), "the bytes are lost");
                lock(self.loser(), libc::F_UNLCK, 0).unwrap();
            }
            Way::Close => drop(self.loser.take()),
            Way::LateClose => {}
            Way::WhileHeld => {
                lock(self.loser(), libc::F_UNLCK, 0).unwrap();
                assert!(lock(self.loser(), libc::F_WRLCK, RECORD_BYTES).is_err());
                assert_eq!(first_record(&self.next).unwrap(), record(b'B'));
                lock(&self.next, libc::F_UNLCK, 0).unwrap();
            }
        }
    }

    fn keeps_next_bytes(&self) {
        let there = fs::read(&self.there).unwrap();
        assert_eq!(there, [record(b'B'), record(b'0')].concat(), "{:?}", self.way);
    }
}

/// The daemon of one client is stopped until the server gives its locks to another client.
fn lose_locks(what: &str, served: &Path, a: &Path, b: &Path) {
    println!("{what}");
    let mut files: Vec<_> = WAYS.iter().map(|way| Contended::new(*way, served, (a, b))).collect();
    files.iter().for_each(Contended::write_under_lock);
    let daemon = daemons(a);
    let signal = |signal| {
        daemon.iter().for_each(|pid| {
            // SAFETY: kill takes numbers; the daemon is alive.
            assert_eq!(unsafe { libc::kill(*pid as libc::pid_t, signal) }, 0);
        })
    };
    signal(libc::SIGSTOP);
    wait_for("a stopped daemon", 60, || daemon.iter().all(|pid| has_stopped(*pid)));
    files.iter().for_each(Contended::take_over);
    signal(libc::SIGCONT);
    files.iter_mut().for_each(Contended::go_on);
    // Bytes are sent at this age at the latest.
    std::thread::sleep(Duration::from_secs(7));
    files.iter().for_each(Contended::keeps_next_bytes);
    drop(files.iter_mut().map(|file| file.loser.take()).collect::<Vec<_>>());
    files.iter().for_each(Contended::keeps_next_bytes);
    for mnt in [a, b] {
        run(Command::new(HITHER).arg("umount").arg(mnt));
    }
    files.iter().for_each(Contended::keeps_next_bytes);
}

/// Bytes that a program wrote under a lost lock do not reach the server, whether it releases the
/// lock, asks for it again, closes the file or goes on.
/// Promise: 17
#[test]
#[ignore = "needs root"]
fn bytes_of_lost_lock_are_not_sent() {
    for (version, delegations) in [("4.2", "1000"), ("4.2", "0"), ("4.1", "1000")] {
        let mut server = Serve::of_directory().with(&["--max-delegations", delegations]);
        server.serve();
        let (a, b) = (server.mnt("a"), server.mnt("b"));
        for way in WAYS {
            let zeros = [record(b'0'), record(b'0')].concat();
            fs::write(server.export(&format!("{way:?}")), zeros).unwrap();
        }
        for mnt in [&a, &b] {
            server.mount(&format!("vers={version}"), mnt).ok();
        }
        lose_locks(&format!("hither serve, {version}, {delegations}"), &server.export(""), &a, &b);
    }
}
