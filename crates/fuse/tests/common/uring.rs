//! Minimal io_uring(7) client: one openat.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Opens a file for reading through io_uring. Returns a descriptor or a negative errno; `None` when
/// io_uring is not allowed.
pub fn uring_open(path: &CStr) -> Option<i32> {
    const OPENAT: u8 = 18;
    const ENTER_GETEVENTS: usize = 1;
    const OFF_CQ: i64 = 0x800_0000;
    const OFF_SQES: i64 = 0x1000_0000;
    // `struct io_uring_params`: entries and offsets of both rings.
    let mut params = [0u32; 30];
    // SAFETY: the structure is 120 bytes and lives across the call.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, params.as_mut_ptr()) } as i32;
    if ring < 0 {
        return None;
    }
    let map = |offset| {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping of the ring, which lives until the process ends.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, ring, offset)
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>()
    };
    let (sq, cq, sqes) = (map(0), map(OFF_CQ), map(OFF_SQES));
    let (sq_off, cq_off) = (&params[10..20], &params[20..30]);
    // SAFETY: the offsets are inside the rings, as set by the kernel. The kernel reads and writes
    // the rings only by the protocol.
    unsafe {
        let at = |ring: *mut u8, offset: u32| &*ring.add(offset as usize).cast::<AtomicU32>();
        let mut entry = [0u8; 64];
        entry[0] = OPENAT;
        entry[4..8].copy_from_slice(&libc::AT_FDCWD.to_ne_bytes());
        entry[16..24].copy_from_slice(&(path.as_ptr() as u64).to_ne_bytes());
        std::ptr::copy_nonoverlapping(entry.as_ptr(), sqes, 64);
        // Ring offsets: head, tail, mask, entries, flags, dropped, array; and head, tail, mask,
        // entries, overflow, cqes.
        at(sq, sq_off[6]).store(0, Ordering::Release);
        at(sq, sq_off[1]).store(1, Ordering::Release);
        let sent = libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, ENTER_GETEVENTS, 0usize, 0);
        assert_eq!(sent, 1, "{}", std::io::Error::last_os_error());
        assert_eq!(at(cq, cq_off[1]).load(Ordering::Acquire), 1);
        let result = cq.add(cq_off[5] as usize + 8).cast::<i32>().read_volatile();
        libc::close(ring);
        Some(result)
    }
}
