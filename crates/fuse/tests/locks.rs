//! Locks of the server: between local programs, and against other clients.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, eventually, mounted, mounted_with, once_below, pause, seconds};
use hither_vfs::{File as VfsFile, FileRange, LockKind, LockOwner, LockWait, Vfs};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::RwLock;

const OTHER_CLIENT: LockOwner = LockOwner { id: 1 << 60, flock: false };
const ALL: FileRange = FileRange { start_bytes: 0, end_bytes: u64::MAX };

fn file(m: &Mount) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(m.path("f")).unwrap()
}

/// Another client takes a lock, without waiting.
fn foreign_lock(m: &Mount, kind: LockKind, range: FileRange) -> i32 {
    let fh = m.fh("f");
    let file = VfsFile { fh: &fh, open: None };
    let taken = m.rt.block_on(m.model.lock(&common::root(), file, OTHER_CLIENT, kind, range, LockWait::No));
    taken.err().map_or(0, |e| e.errno)
}

fn foreign_unlock(m: &Mount) {
    let fh = m.fh("f");
    let file = VfsFile { fh: &fh, open: None };
    m.rt.block_on(m.model.unlock(&common::root(), file, OTHER_CLIENT, ALL)).unwrap();
}

/// A new process has all open files of this one until its exec(2), and so keeps their locks. A test
/// of closes excludes forks of other tests.
static FORKS: RwLock<()> = RwLock::new(());

/// A program that locks `f`, reports it, and holds the lock until its standard input closes.
fn holder(m: &Mount, what: &str) -> Child {
    let _forking = FORKS.read().unwrap_or_else(|e| e.into_inner());
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    c.env("CHILD", what).env("CHILD_PATH", m.path("f")).current_dir("/");
    c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn wait_for(child: &mut Child, word: &str) {
    let mut all = Vec::new();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    while !all.ends_with(word.as_bytes()) {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&all));
        all.push(byte[0]);
    }
}

/// Not a test: the program that the tests start.
#[test]
#[ignore = "the program that other tests start"]
fn child() {
    let Ok(what) = std::env::var("CHILD") else { return };
    let path = std::env::var("CHILD_PATH").unwrap();
    let f = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let result = match &*what {
        "fcntl" => fcntl_lock(&f, FlockOperation::LockExclusive),
        "flock" => flock(&f, FlockOperation::LockExclusive),
        _ => panic!("{what}?"),
    };
    println!("{}", if result.is_ok() { "locked!" } else { "failed!" });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// fcntl(2) and flock(2) locks conflict between programs, and with other clients.
#[test]
fn locks_conflict_between_clients() {
    let Some(m) = mounted(1000) else { return };
    let f = file(&m);
    type Lock = fn(&File, FlockOperation) -> Result<(), Errno>;
    let kinds: [(&str, Lock); 2] = [("fcntl", |f, o| fcntl_lock(f, o)), ("flock", |f, o| flock(f, o))];
    for (what, lock) in kinds {
        let mut child = holder(&m, what);
        wait_for(&mut child, "locked!");
        assert_eq!(lock(&f, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN), "{what}");
        assert_eq!(foreign_lock(&m, LockKind::Read, ALL), libc::EAGAIN, "{what}");
        // The end of the program releases the lock.
        drop(child.stdin.take());
        child.wait().unwrap();
        eventually("the lock is free", || lock(&f, FlockOperation::NonBlockingLockExclusive).is_ok());
        lock(&f, FlockOperation::Unlock).unwrap();
        assert_eq!(foreign_lock(&m, LockKind::Write, ALL), 0);
        assert_eq!(lock(&f, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN), "{what}");
        foreign_unlock(&m);
    }
    drop(f);
    m.end();
}

/// Any close of a file releases the process's fcntl(2) locks on it.
#[test]
fn close_releases_fcntl_locks() {
    let Some(m) = mounted(1000) else { return };
    let (f, g) = (file(&m), file(&m));
    fcntl_lock(&f, FlockOperation::LockExclusive).unwrap();
    assert_eq!(foreign_lock(&m, LockKind::Read, ALL), libc::EAGAIN);
    drop(g);
    assert_eq!(foreign_lock(&m, LockKind::Read, ALL), 0);
    foreign_unlock(&m);
    drop(f);
    m.end();
}

/// A waiting lock is granted when another client releases its lock.
#[test]
fn foreign_unlock_grants_waiting_lock() {
    let Some(m) = mounted(1000) else { return };
    let f = file(&m);
    assert_eq!(foreign_lock(&m, LockKind::Write, ALL), 0);
    let mut child = holder(&m, "fcntl");
    eventually("the call waits", || m.gate.calls("lock") == 1);
    pause(300);
    foreign_unlock(&m);
    wait_for(&mut child, "locked!");
    drop(child.stdin.take());
    child.wait().unwrap();
    drop(f);
    m.end();
}

/// A killed program that waits for a lock ends at once and gets no lock.
#[test]
fn killed_waiter_takes_no_lock() {
    let Some(m) = mounted(1000) else { return };
    let f = file(&m);
    for what in ["fcntl", "flock"] {
        once_below("seconds until the program ends", 2.0, || {
            assert_eq!(foreign_lock(&m, LockKind::Write, ALL), 0);
            let before = m.gate.calls("lock");
            let mut child = holder(&m, what);
            eventually("the call waits", || m.gate.calls("lock") == before + 1);
            pause(100);
            child.kill().unwrap();
            let took = seconds(|| assert!(!child.wait().unwrap().success()));
            // The other client still holds the lock.
            eventually("the call below ends", || m.mounted().counts().requests == 0);
            foreign_unlock(&m);
            pause(100);
            assert_eq!(foreign_lock(&m, LockKind::Write, ALL), 0, "{what}: the lock of a dead program");
            foreign_unlock(&m);
            took
        });
    }
    drop(f);
    m.end();
}

/// A lock that is granted after its caller was killed is released.
#[test]
fn late_lock_is_released() {
    let Some(m) = mounted(1000) else { return };
    let f = file(&m);
    once_below("seconds until the program ends", 2.0, || {
        m.gate.shut("lock");
        let mut child = holder(&m, "fcntl");
        eventually("the call waits", || m.gate.waiting("lock") == 1);
        child.kill().unwrap();
        let took = seconds(|| assert!(!child.wait().unwrap().success()));
        m.gate.open_all();
        eventually("the call below ends", || m.mounted().counts().requests == 0);
        eventually("the lock is free", || foreign_lock(&m, LockKind::Write, ALL) == 0);
        foreign_unlock(&m);
        took
    });
    drop(f);
    m.end();
}

/// A lock shows writes under the previous lock, and its own writes are stable before its release.
#[test]
fn lock_shows_earlier_writes() {
    let Some(m) = mounted(600_000) else { return };
    let f = file(&m);
    f.write_all_at(&[b'a'; 8192], 0).unwrap();
    let mut buf = [0; 10];
    for i in 0..5u8 {
        m.foreign_write("f", 100, &[b'0' + i; 10]);
        m.foreign_write("f", 8192 + u64::from(i), b"z");
        fcntl_lock(&f, FlockOperation::LockExclusive).unwrap();
        f.read_exact_at(&mut buf, 100).unwrap();
        assert_eq!(buf, [b'0' + i; 10]);
        assert_eq!(f.metadata().unwrap().len(), 8193 + u64::from(i));
        // Data that was written under the lock is on the server before the unlock.
        let commits = m.gate.calls("commit");
        f.write_all_at(&[b'A' + i], 50).unwrap();
        fcntl_lock(&f, FlockOperation::Unlock).unwrap();
        assert_eq!(m.gate.calls("commit"), commits + 1);
        assert_eq!(m.foreign_read("f")[50], b'A' + i);
    }
    drop(f);
    m.end();
}

/// Byte ranges of a lock are split at an unlock and reported by F_GETLK.
#[test]
fn lock_ranges_are_split() {
    let Some(m) = mounted(1000) else { return };
    let f = file(&m);
    // As in SQLite: single bytes at a high offset.
    let range = |start, len| FileRange { start_bytes: start, end_bytes: start + len };
    let set = |kind: i32, start: i64, len: i64| {
        let lock = libc::flock { l_type: kind as i16, l_whence: 0, l_start: start, l_len: len, l_pid: 0 };
        // SAFETY: the structure lives across the call and the descriptor is open.
        unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&f), libc::F_SETLK, &lock) }
    };
    assert_eq!(set(libc::F_WRLCK, 1 << 30, 512), 0);
    assert_eq!(set(libc::F_UNLCK, (1 << 30) + 100, 10), 0);
    assert_eq!(foreign_lock(&m, LockKind::Write, range((1 << 30) + 100, 10)), 0);
    assert_eq!(foreign_lock(&m, LockKind::Write, range((1 << 30) + 99, 1)), libc::EAGAIN);
    assert_eq!(foreign_lock(&m, LockKind::Write, range((1 << 30) + 110, 1)), libc::EAGAIN);
    let mut ask = libc::flock { l_type: libc::F_RDLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: as above; the kernel writes the conflicting lock into it.
    let r = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&f), libc::F_GETLK, &mut ask) };
    assert_eq!((r, ask.l_type as i32, ask.l_start, ask.l_len), (0, libc::F_WRLCK, (1 << 30) + 100, 10));
    foreign_unlock(&m);
    assert_eq!(set(libc::F_WRLCK, 0, 0), 0);
    assert_eq!(foreign_lock(&m, LockKind::Read, range(i64::MAX as u64 - 1, 1)), libc::EAGAIN);
    drop(f);
    m.end();
}

/// Without server locks, locks conflict only between local programs.
#[test]
fn local_locks_need_no_server() {
    let Some(m) = mounted_with(1000, |c| c.server_locks = false) else { return };
    let f = file(&m);
    let mut child = holder(&m, "fcntl");
    wait_for(&mut child, "locked!");
    assert_eq!(fcntl_lock(&f, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    assert_eq!(foreign_lock(&m, LockKind::Write, ALL), 0);
    assert_eq!(m.gate.calls("lock"), 0);
    drop(child.stdin.take());
    child.wait().unwrap();
    drop(f);
    assert_eq!(fs::read(m.path("f")).unwrap(), b"");
    m.end();
}

/// A lock ends with the close(2) of its descriptor. The next lock of the same program succeeds at
/// once, and F_OFD_GETLK finds none. The same while the kernel forgets the files.
/// Promise: 16
#[test]
fn closed_descriptor_has_no_lock() {
    let Some(m) = mounted(1000) else { return };
    let _no_forks = FORKS.write().unwrap_or_else(|e| e.into_inner());
    closed_descriptors_have_no_locks(&m);
    m.forgetting(|| closed_descriptors_have_no_locks(&m));
    m.end();
}

fn closed_descriptors_have_no_locks(m: &Mount) {
    std::thread::scope(|s| {
        for thread in 0..6 {
            let path = m.path(&format!("f{thread}"));
            s.spawn(move || {
                let open =
                    || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
                for n in 0..150 {
                    let locked = open().unwrap();
                    flock(&locked, FlockOperation::NonBlockingLockExclusive)
                        .unwrap_or_else(|e| panic!("thread {thread}, lock {n}: {e}"));
                    drop(locked);
                    let ranged = open().unwrap();
                    assert_eq!(ofd_lock(&ranged, libc::F_OFD_GETLK), Ok(libc::F_UNLCK), "{thread} {n}");
                    assert_eq!(ofd_lock(&ranged, libc::F_OFD_SETLK), Ok(libc::F_WRLCK), "{thread} {n}");
                }
            });
        }
    });
}

/// Takes a lock of the whole file for writing, and waits for it.
type WaitingLock = fn(&File) -> Result<(), i32>;

const WAITING_LOCKS: [(&str, WaitingLock); 3] = [
    ("flock", |f| flock(f, FlockOperation::LockExclusive).map_err(Errno::raw_os_error)),
    ("F_SETLKW", |f| fcntl_lock(f, FlockOperation::LockExclusive).map_err(Errno::raw_os_error)),
    ("F_OFD_SETLKW", |f| ofd_lock(f, libc::F_OFD_SETLKW).map(drop)),
];

/// Checks that a file's lock excludes other clients when all calls have ended, and ends with the
/// close.
fn locks_until_close(m: &Mount, locked: File, kind: &str) {
    eventually("the calls below end", || m.mounted().counts().requests == 0);
    assert_eq!(foreign_lock(m, LockKind::Read, ALL), libc::EAGAIN, "{kind}");
    drop(locked);
    eventually("the lock is free", || foreign_lock(m, LockKind::Write, ALL) == 0);
    foreign_unlock(m);
}

/// The release of a closed descriptor, however late, ends no lock of a later descriptor. The kernel
/// gives the memory of a closed file to the next one, and its number of the lock owner with it.
/// Promise: 16
#[test]
fn late_release_ends_no_later_lock() {
    let Some(m) = mounted(1000) else { return };
    let _no_forks = FORKS.write().unwrap_or_else(|e| e.into_inner());
    // The close of a file with other locks waits until they are released.
    for (kind, lock) in WAITING_LOCKS.into_iter().filter(|(kind, _)| *kind != "F_SETLKW") {
        for round in 0..30 {
            let closed = file(&m);
            lock(&closed).unwrap();
            m.gate.shut("unlock");
            drop(closed);
            let later = std::thread::scope(|s| {
                s.spawn(|| {
                    pause(20);
                    m.gate.open_all();
                });
                let later = file(&m);
                lock(&later).unwrap();
                later
            });
            locks_until_close(&m, later, &format!("{kind}, round {round}"));
        }
    }
    m.end();
}

/// A lock that was granted after its call was interrupted is released, without the lock of the
/// program's next call.
/// Promise: 16
#[test]
fn interrupted_call_ends_no_later_lock() {
    extern "C" fn ignored(_: libc::c_int) {}
    let Some(m) = mounted(1000) else { return };
    // SAFETY: the handler does nothing. Calls are not restarted after it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignored as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    for (kind, lock) in WAITING_LOCKS {
        let f = file(&m);
        m.gate.shut("lock");
        // SAFETY: the thread lives until the end of the test.
        let this = unsafe { libc::pthread_self() };
        std::thread::scope(|s| {
            s.spawn(|| {
                eventually("the call waits", || m.gate.waiting("lock") == 1);
                // SAFETY: as above.
                unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
            });
            assert_eq!(lock(&f), Err(libc::EINTR), "{kind}");
        });
        std::thread::scope(|s| {
            s.spawn(|| {
                m.gate.shut("unlock");
                m.gate.let_pass("lock");
                eventually("the late lock is being released", || m.gate.waiting("unlock") == 1);
                pause(50);
                m.gate.open_all();
            });
            pause(10);
            assert_eq!(lock(&f), Ok(()), "{kind}");
        });
        locks_until_close(&m, f, kind);
    }
    m.end();
}

/// Calls fcntl(2) with a lock for writing of the whole file. Returns the type in the answer.
fn ofd_lock(file: &File, command: i32) -> Result<i32, i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: all bits zero are a lock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
    // SAFETY: `lock` lives across the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
        0 => Ok(i32::from(lock.l_type)),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}
