//! Inspection of the caller of a request: the system call of its thread, and its memory.
//!
//! The thread waits in the kernel for the answer to the request, so `/proc/TID/syscall` shows its
//! call. process_vm_readv(2) reads the memory that the arguments point to. Other threads of the
//! program may change or unmap that memory meanwhile. So the result is only a guess of the
//! program's path.
//!
//! The read waits for the lock of the program's memory. A thread of the program that meets a page
//! fault holds this lock until the daemon has answered a READ. So the read never blocks a thread on
//! which other requests depend.

use super::Missed;
use std::ffi::c_void;
use std::os::unix::fs::FileExt;
use tokio::runtime::RuntimeFlavor;

/// Maximum length of a path in bytes, with its NUL (`PATH_MAX`).
pub(crate) const PATH_MAX_BYTES: usize = 4096;
const PAGE_BYTES: u64 = 4096;
/// Maximum number of reads of a thread's state. A thread that has just sent its request may not be
/// asleep yet.
const TRIES: usize = 4;

/// A running system call. Two equal values are the same call, unless a thread repeats a call in a
/// loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SystemCall {
    /// Number on this architecture.
    pub number: u64,
    /// Arguments.
    pub args: [u64; 6],
    /// Stack pointer and program counter.
    pub at: (u64, u64),
}

/// A thread that is inspected more than once.
#[derive(Debug)]
pub(crate) struct Caller {
    file: std::fs::File,
}

impl Caller {
    /// Opens thread `tid`, numbered as in the daemon's namespace.
    pub fn open(tid: u32) -> Result<Self, Missed> {
        if tid == 0 {
            return Err(Missed::Unseen);
        }
        let file = std::fs::File::open(format!("/proc/{tid}/syscall"));
        file.map(|file| Self { file }).map_err(|_| Missed::Unreadable)
    }

    /// The current system call of the thread.
    pub fn call(&self) -> Result<SystemCall, Missed> {
        for _ in 0..TRIES {
            let mut text = [0; 256];
            // Read at offset 0, because only then the kernel generates the file again.
            let len = self.file.read_at(&mut text, 0).map_err(|_| Missed::Unreadable)?;
            match &text[..len] {
                b"running\n" => std::thread::yield_now(),
                line => return SystemCall::parse(line).ok_or(Missed::OtherCall),
            }
        }
        Err(Missed::Running)
    }
}

impl SystemCall {
    /// The current system call of thread `tid`.
    pub fn of(tid: u32) -> Result<Self, Missed> {
        Caller::open(tid)?.call()
    }

    /// Parses a line of `/proc/TID/syscall` (proc(5)): `number arg0 … arg5 sp pc`. The line `-1 sp
    /// pc` means no system call.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty());
        let number = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let mut hex = || {
            let word = std::str::from_utf8(words.next()?).ok()?;
            u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
        };
        let mut args = [0; 6];
        for arg in &mut args {
            *arg = hex()?;
        }
        Some(Self { number, args, at: (hex()?, hex()?) })
    }

    /// Whether the call is of a 32-bit program, which has other call numbers. Its stack and code
    /// are below 4 GiB.
    pub fn is_narrow(&self) -> bool {
        self.at.0 >> 32 == 0 && self.at.1 >> 32 == 0
    }
}

/// Bytes of the NUL-terminated string at `address` in the memory of thread `tid`. `None` when it is
/// unreadable or longer than a path.
pub(crate) fn string(tid: u32, address: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buf = [0; PAGE_BYTES as usize];
    while bytes.len() < PATH_MAX_BYTES {
        let from = address.checked_add(bytes.len() as u64)?;
        // Never across a page, because the memory after the string may be unmapped.
        let piece = &mut buf[..(PAGE_BYTES - from % PAGE_BYTES) as usize];
        let read = memory(tid, from, piece)?;
        if let Some(end) = piece[..read].iter().position(|&b| b == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return (bytes.len() < PATH_MAX_BYTES).then_some(bytes);
        }
        if read < piece.len() {
            return None;
        }
        bytes.extend_from_slice(piece);
    }
    None
}

/// The 64-bit number at `address` in the memory of thread `tid`.
pub(crate) fn number(tid: u32, address: u64) -> Option<u64> {
    let mut buf = [0; 8];
    (memory(tid, address, &mut buf)? == buf.len()).then(|| u64::from_ne_bytes(buf))
}

/// Reads memory of thread `tid`. The tasks of a runtime's thread go to another thread first.
fn memory(tid: u32, address: u64, buf: &mut [u8]) -> Option<usize> {
    match tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| memory_here(tid, address, buf)),
        _ => memory_here(tid, address, buf),
    }
}

fn memory_here(tid: u32, address: u64, buf: &mut [u8]) -> Option<usize> {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut c_void, iov_len: buf.len() };
    // SAFETY: `local` describes `buf`, which is borrowed mutably across the call; `remote` is an
    // address of another process, which the kernel checks.
    let n = unsafe { libc::process_vm_readv(tid as libc::pid_t, &local, 1, &remote, 1, 0) };
    usize::try_from(n).ok().filter(|&n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// A line of `/proc/TID/syscall` is parsed, and malformed lines are refused.
    #[test]
    fn syscall_line_is_parsed() {
        let line = b"257 0xffffff9c 0x7ffd1000 0x80000 0x0 0x1 0x2 0x7ffd0ff8 0x7f2a00\n";
        let call = SystemCall::parse(line).unwrap();
        assert_eq!((call.number, call.args[0], call.args[1]), (257, 0xffff_ff9c, 0x7ffd_1000));
        assert_eq!(call.at, (0x7ffd_0ff8, 0x7f_2a00));
        assert!(call.is_narrow());
        for bad in [
            &b"running\n"[..],
            b"",
            b"-1 0x7ffd0ff8 0x7f2a00\n",
            b"257 0x1 0x2\n",
            b"257 1 2 3 4 5 6 7 8\n",
            b"x 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8\n",
            b"257 0x1ffffffffffffffff 0x2 0x3 0x4 0x5 0x6 0x7 0x8\n",
        ] {
            assert_eq!(SystemCall::parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    /// A page whose first access waits until it gets contents (userfaultfd(2)).
    struct Withheld {
        faults: OwnedFd,
        at: u64,
    }

    impl Withheld {
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        const COPY: libc::c_ulong = 0xc028_aa03;

        fn new() -> Self {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            let rw = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh mapping of one page, and a fresh descriptor.
            let (at, faults) = unsafe {
                let at = mmap_anonymous(std::ptr::null_mut(), 4096, rw, MapFlags::PRIVATE).unwrap();
                let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
                assert!(fd >= 0, "{}", std::io::Error::last_os_error());
                (at as u64, OwnedFd::from_raw_fd(fd as i32))
            };
            let page = Self { faults, at };
            page.ioctl(Self::API, &mut [0xaa, 0, 0]);
            page.ioctl(Self::REGISTER, &mut [at, 4096, 1, 0]);
            page
        }

        fn give(&self, text: &[u8]) {
            let mut page = [0u8; 4096];
            page[..text.len()].copy_from_slice(text);
            self.ioctl(Self::COPY, &mut [self.at, page.as_ptr() as u64, 4096, 0, 0]);
        }

        fn ioctl(&self, request: libc::c_ulong, words: &mut [u64]) {
            // SAFETY: the kernel's structure for this request is these words.
            let done = unsafe { libc::ioctl(self.faults.as_raw_fd(), request, words.as_mut_ptr()) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
    }

    /// While the memory of a program cannot be read, other tasks run: those that the reading task
    /// woke, those that wait for the time, and those that read as well. The runtime has one thread.
    #[test]
    #[ignore = "needs root"]
    fn blocked_read_blocks_no_other_task() {
        let me = std::process::id();
        let page = std::sync::Arc::new(Withheld::new());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (ran, others) = std::sync::mpsc::channel();
        let read = |wake: tokio::sync::oneshot::Sender<()>| {
            let at = page.at;
            runtime.spawn(async move {
                wake.send(()).unwrap();
                string(me, at)
            })
        };
        let mut reads = Vec::new();
        for _ in 0..3 {
            let (wake, woken) = tokio::sync::oneshot::channel();
            let ran = ran.clone();
            runtime.spawn(async move {
                woken.await.unwrap();
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                ran.send(()).unwrap();
            });
            reads.push(read(wake));
        }
        let patience = std::time::Duration::from_secs(20);
        let all = (0..3).all(|_| others.recv_timeout(patience).is_ok());
        assert!(reads.iter().all(|read| !read.is_finished()), "the page has no contents yet");
        page.give(b"a/b\0");
        for read in reads {
            assert_eq!(runtime.block_on(read).unwrap().unwrap(), b"a/b");
        }
        assert!(all, "a blocked read held up other tasks");
    }

    /// A string is read up to its NUL, across pages, and never beyond readable memory or PATH_MAX.
    #[test]
    fn string_read_ends_at_nul() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of four pages, the last of which is then made unreadable.
        let base = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), 4 * 4096, rw, MapFlags::PRIVATE).unwrap();
            mprotect(at.add(3 * 4096), 4096, MprotectFlags::empty()).unwrap();
            at.cast::<u8>()
        };
        let put = |at: usize, bytes: &[u8]| {
            // SAFETY: inside the three readable pages.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(at), bytes.len()) }
        };
        let text = |at: usize| string(me, base as u64 + at as u64);
        put(100, b"a/b\0");
        assert_eq!(text(100).unwrap(), b"a/b");
        // A string across a page boundary, and a string at the end of readable memory.
        put(4090, b"0123456789\0");
        assert_eq!(text(4090).unwrap(), b"0123456789");
        put(3 * 4096 - 4, b"end\0");
        assert_eq!(text(3 * 4096 - 4).unwrap(), b"end");
        put(3 * 4096 - 4, b"none");
        assert_eq!(text(3 * 4096 - 4), None);
        put(0, &[b'x'; 4095]);
        put(4095, b"\0");
        assert_eq!(text(0).unwrap().len(), 4095);
        put(4095, b"x\0");
        assert_eq!(text(0), None, "longer than PATH_MAX");
        assert_eq!(text(3 * 4096), None);
        assert_eq!(string(me, 0), None);
        assert_eq!(string(me, u64::MAX), None);
        put(8, &77u64.to_ne_bytes());
        assert_eq!((number(me, base as u64 + 8), number(me, 8)), (Some(77), None));
        // SAFETY: mapped above and not used any more.
        unsafe { munmap(base.cast(), 4 * 4096) }.unwrap();
    }

    /// Invisible and missing threads are reported as such.
    #[test]
    fn missing_thread_is_unreadable() {
        assert_eq!(SystemCall::of(0), Err(Missed::Unseen));
        assert_eq!(SystemCall::of(i32::MAX as u32), Err(Missed::Unreadable));
        assert_eq!(string(i32::MAX as u32, 4096), None);
    }
}
