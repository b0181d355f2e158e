//! Callers whose paths are unreadable, change during the read, or block the reader. Hints may be
//! lost, answers may not.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{Mount, eventually, mounted, mounted_with, pause, user_can};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const LONG: u64 = 600_000;

/// Memory of this program for a path, on separate pages.
#[derive(Clone, Copy)]
struct Memory(usize);

impl Memory {
    fn with(path: &std::path::Path) -> Self {
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping that lives as long as the program.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), 8192, rw, MapFlags::PRIVATE) }.unwrap();
        let memory = Self(at as usize);
        memory.write(path);
        memory
    }

    fn write(self, path: &std::path::Path) {
        let mut bytes = path.to_str().unwrap().as_bytes().to_vec();
        bytes.push(0);
        assert!(bytes.len() <= 4096);
        for (i, byte) in bytes.into_iter().enumerate() {
            // SAFETY: inside the mapping; a concurrent reader of it expects any value.
            unsafe { (self.0 as *mut u8).add(i).write_volatile(byte) };
        }
    }

    /// stat(2) with a path in this memory: the size or the errno.
    fn stat(self) -> Result<i64, i32> {
        // SAFETY: a structure that lives across the call; the kernel checks the path.
        unsafe {
            let mut s = std::mem::zeroed::<libc::stat>();
            match libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, self.0, &mut s, 0) {
                0 => Ok(s.st_size),
                _ => Err(*libc::__errno_location()),
            }
        }
    }

    fn advise(self, what: i32) {
        // SAFETY: both pages of the mapping; only this test uses their contents.
        assert_eq!(unsafe { libc::madvise(self.0 as *mut _, 8192, what) }, 0);
    }

    fn protect(self, protection: i32) {
        // SAFETY: as above. No code in this program accesses the pages until they are readable
        // again.
        assert_eq!(unsafe { libc::mprotect(self.0 as *mut _, 8192, protection) }, 0);
    }
}

fn trees(m: &Mount) {
    m.foreign_dirs("a/b/c");
    m.foreign_write("a/b/c/f", 0, b"right");
    m.foreign_dirs("a/x/y");
    m.foreign_write("a/x/y/f", 0, b"wrong file");
    m.foreign_write("g", 0, b"at the top");
}

/// A path that changes during its call does not change the answer.
/// Promise: 8
#[test]
fn changing_path_keeps_answer() {
    let others: [&[&str]; 3] = [
        &["a/x/y/f"],
        &["a/b/none", "a/b/c/f/beyond"],
        &["nowhere", "a/../a/b/c/f", "/////", "", "g", "b/b/b/a/b"],
    ];
    for (round, others) in others.into_iter().enumerate() {
        for validity in [0, LONG] {
            let Some(m) = mounted(validity) else { return };
            trees(&m);
            let memory = Memory::with(&m.path("a/b/c/f"));
            let (count, dir) = (AtomicUsize::new(0), m.dir.clone());
            m.gate.at_peek(move |_| {
                let i = count.fetch_add(1, Ordering::SeqCst);
                memory.write(&dir.join(others[i % others.len()]));
            });
            for _ in 0..20 {
                memory.write(&m.path("a/b/c/f"));
                assert_eq!(memory.stat(), Ok(5), "round {round}, validity {validity}");
            }
            memory.write(&m.path("a/b/c/none"));
            assert_eq!(memory.stat(), Err(libc::ENOENT));
            memory.write(&m.path("g/f"));
            assert_eq!(memory.stat(), Err(libc::ENOTDIR));
            m.end();
        }
    }
}

/// A path that another thread overwrites gives the answer for one of its two values, or for a
/// mixture.
#[test]
fn overwritten_path_gives_valid_answer() {
    let Some(m) = mounted(0) else { return };
    trees(&m);
    let memory = Memory::with(&m.path("a/b/c/f"));
    let (stop, dir) = (Arc::new(AtomicUsize::new(0)), m.dir.clone());
    let writer = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while stop.load(Ordering::Relaxed) == 0 {
                memory.write(&dir.join("a/x/y/f"));
                memory.write(&dir.join("a/b/c/f"));
            }
        }
    });
    // The kernel may read either of the two paths, but no third one.
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..2000 {
        match memory.stat() {
            Ok(5) => right += 1,
            Ok(10) => wrong += 1,
            // A mixture of both paths.
            Err(libc::ENOENT) => {}
            other => panic!("{other:?}"),
        }
    }
    stop.store(1, Ordering::Relaxed);
    writer.join().unwrap();
    eprintln!("{right} of one, {wrong} of the other; {:?}", m.mounted().hints());
    m.end();
}

/// An unreadable path is looked up name by name.
#[test]
fn unreadable_path_is_walked_singly() {
    let Some(m) = mounted(0) else { return };
    trees(&m);
    let memory = Memory::with(&m.path("a/b/c/f"));
    m.gate.at_peek(move |_| memory.protect(libc::PROT_NONE));
    m.gate.walks();
    assert_eq!(memory.stat(), Ok(5));
    let walked: Vec<String> = m.gate.walks().into_iter().map(|w| w.path).collect();
    assert_eq!(walked, ["a", "b", "c", "f"]);
    m.gate.at_peek(|_| ());
    memory.protect(libc::PROT_READ | libc::PROT_WRITE);
    m.gate.at_peek(move |_| memory.advise(libc::MADV_DONTNEED));
    assert_eq!(memory.stat(), Ok(5));
    let missed = m.mounted().hints().missed;
    assert_eq!(missed.values().sum::<u64>(), 8, "{missed:?}");
    m.end();
}

/// Makes missing pages of the memory block their reader until the returned file is closed
/// (userfaultfd(2)). `None` when that is not allowed.
fn unanswered(memory: Memory) -> Option<std::fs::File> {
    use std::os::fd::FromRawFd;
    const UFFDIO_API: u64 = 0xc018_aa3f;
    const UFFDIO_REGISTER: u64 = 0xc020_aa00;
    // SAFETY: the two ioctls read and write structures of 3 and 4 words, which live across the
    // calls.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
        if fd < 0 {
            return None;
        }
        let file = std::fs::File::from_raw_fd(fd);
        let mut api = [0xaa_u64, 0, 0];
        assert_eq!(libc::ioctl(fd, UFFDIO_API as _, &mut api), 0);
        let mut register = [memory.0 as u64, 8192, 1, 0];
        assert_eq!(libc::ioctl(fd, UFFDIO_REGISTER as _, &mut register), 0);
        Some(file)
    }
}

/// A caller whose memory blocks its reader does not block other callers.
#[test]
fn blocked_reader_blocks_no_other() {
    let Some(m) = mounted_with(0, |c| c.threads = 2) else { return };
    trees(&m);
    let memory = Memory::with(&m.path("a/b/c/f"));
    let Some(fault) = unanswered(memory) else {
        eprintln!("skipped: no userfaultfd");
        return m.end();
    };
    m.gate.at_peek(move |name| {
        if name == "a" {
            memory.advise(libc::MADV_DONTNEED);
        }
    });
    // A request during the read of another hint has no hint and does not block.
    let stuck = (0..20).find_map(|_| {
        let busy = || m.mounted().hints().missed.get("busy").copied().unwrap_or(0);
        let before = busy();
        let stuck = std::thread::spawn(move || memory.stat());
        // One reading thread is left at first, and soon a second one is started.
        eventually("the reader is blocked, or done", || {
            assert_eq!(fs::metadata(m.path("g")).unwrap().len(), 10);
            busy() > before || stuck.is_finished()
        });
        for _ in 0..30 {
            assert_eq!(fs::metadata(m.path("g")).unwrap().len(), 10);
            pause(50);
        }
        (!stuck.is_finished()).then_some(stuck)
    });
    let stuck = stuck.expect("no reader was blocked");
    let path = m.path("g");
    let many: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || (0..100).map(|_| fs::metadata(&path).unwrap().len()).sum::<u64>())
        })
        .collect();
    for thread in many {
        assert_eq!(thread.join().unwrap(), 1000);
    }
    m.gate.at_peek(|_| ());
    drop(fault);
    assert_eq!(stuck.join().unwrap(), Ok(5));
    // Hints work again.
    let used = m.mounted().hints().used;
    eventually("a hint is used", || {
        assert_eq!(fs::metadata(m.path("a/b/c/f")).unwrap().len(), 5);
        m.mounted().hints().used > used
    });
    m.end();
}

/// A mount ends although a reader of a hint is blocked.
#[test]
fn mount_ends_despite_blocked_reader() {
    let Some(mut m) = mounted_with(0, |c| c.threads = 2) else { return };
    trees(&m);
    let memory = Memory::with(&m.path("a/b/c/f"));
    let Some(fault) = unanswered(memory) else {
        eprintln!("skipped: no userfaultfd");
        return m.end();
    };
    m.gate.at_peek(move |_| memory.advise(libc::MADV_DONTNEED));
    let stuck = std::thread::spawn(move || memory.stat());
    pause(1500);
    m.abort();
    let mounted = m.mounted.take().unwrap();
    mounted.unmount(true).unwrap();
    let ended = m.rt.block_on(async { tokio::time::timeout(common::PATIENCE, mounted.wait()).await });
    assert!(ended.is_ok(), "the end waits for a blocked thread");
    m.gate.at_peek(|_| ());
    drop(fault);
    assert!(stuck.join().unwrap().is_err());
}

/// A caller that is killed during its call leaves no running call and no wrong answer.
#[test]
fn killed_caller_leaves_no_call() {
    let Some(m) = mounted(0) else { return };
    trees(&m);
    for _ in 0..5 {
        m.gate.shut("walk");
        let mut child =
            std::process::Command::new("stat").args(["-c", ""]).arg(m.path("a/b/c/f")).spawn().unwrap();
        eventually("the walk waits", || m.gate.waiting("walk") > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        m.gate.open_all();
        eventually("the call ends", || m.mounted().counts().requests == 0);
        assert_eq!(fs::metadata(m.path("a/b/c/f")).unwrap().len(), 5);
    }
    // Killed before its memory is read.
    let victim = Arc::new(std::sync::Mutex::new(None::<u32>));
    let kill = victim.clone();
    m.gate.at_peek(move |_| {
        if let Some(pid) = kill.lock().unwrap().take() {
            // SAFETY: a signal to a child of this program that has not been waited for.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            pause(50);
        }
    });
    for _ in 0..5 {
        let mut wait = std::process::Command::new("sh");
        wait.args(["-c", "read x; stat -c '' \"$0\""])
            .arg(m.path("a/b/c/f"))
            .stdin(std::process::Stdio::piped());
        let mut child = wait.spawn().unwrap();
        *victim.lock().unwrap() = Some(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        *victim.lock().unwrap() = None;
        assert_eq!(fs::metadata(m.path("a/b/c/f")).unwrap().len(), 5);
    }
    m.end();
}

/// Names that are looked up in advance are checked with the caller's own rights.
#[test]
fn prefetched_names_check_caller_rights() {
    let Some(m) = mounted(0) else { return };
    trees(&m);
    fs::set_permissions(m.path("a/b"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(m.path("a/x/y/f"), fs::Permissions::from_mode(0o600)).unwrap();
    for _ in 0..3 {
        assert!(user_can(&m.dir, 0, 0, &[], "cat $M/a/b/c/f"));
        assert!(!user_can(&m.dir, 5002, 5002, &[], "stat $M/a/b/c/f"));
        assert!(!user_can(&m.dir, 5002, 5002, &[], "cat $M/a/x/y/f"));
        assert!(user_can(&m.dir, 5002, 5002, &[], "stat $M/a/x/y/f && stat $M/a/b"));
    }
    m.end();
}

/// Concurrent threads with hints get the answers for their own paths.
#[test]
fn threads_get_own_answers() {
    for validity in [0, LONG] {
        let Some(m) = mounted(validity) else { return };
        for t in 0..8 {
            m.foreign_dirs(&format!("t{t}/a/a/b"));
            for i in 0..20 {
                m.foreign_write(&format!("t{t}/a/a/b/f{i}"), 0, "x".repeat(t * 20 + i).as_bytes());
            }
        }
        let threads: Vec<_> = (0..8)
            .map(|t| {
                let dir = m.dir.clone();
                std::thread::spawn(move || {
                    for round in 0..5 {
                        for i in 0..20 {
                            let path = dir.join(format!("t{t}/a/./a/b/f{i}"));
                            assert_eq!(fs::metadata(&path).unwrap().len() as usize, t * 20 + i, "{round}");
                            assert_eq!(fs::read(&path).unwrap().len(), t * 20 + i);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        eprintln!("validity {validity}: {:?}", m.mounted().hints());
        m.end();
    }
}
