//! Minimal asynchronous I/O (AIO): one write, and a wait for its end.

use std::fs::File;
use std::os::fd::AsRawFd;

/// `struct iocb`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// Writes through io_submit(2). Returns the number of bytes written, or a negative errno.
pub fn aio_write(file: &File, data: &[u8], offset: i64) -> i64 {
    const PWRITE: u16 = 1;
    let mut context = 0usize;
    let mut control = Iocb {
        opcode: PWRITE,
        fd: file.as_raw_fd() as u32,
        buffer: data.as_ptr() as u64,
        bytes: data.len() as u64,
        offset,
        ..Iocb::default()
    };
    let mut list = [&raw mut control];
    // `struct io_event`: data, object, two results.
    let mut event = [0i64; 4];
    // SAFETY: the structures live until the write has ended, which the third call waits for.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &raw mut context), 0);
        assert_eq!(libc::syscall(libc::SYS_io_submit, context, 1usize, list.as_mut_ptr()), 1);
        let none = std::ptr::null_mut::<libc::timespec>();
        let n = libc::syscall(libc::SYS_io_getevents, context, 1usize, 1usize, &raw mut event, none);
        assert_eq!(n, 1);
        libc::syscall(libc::SYS_io_destroy, context);
    }
    event[2]
}
