//! recvmsg(2), for descriptors that arrive with bytes. The standard library reads the bytes and
//! drops the descriptors.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

// The lengths are those of the kernel, with 64 bits. musl's lengths are the lower halves, so
// big-endian musl has another layout.
#[cfg(all(target_env = "musl", target_endian = "big", target_pointer_width = "64"))]
compile_error!("descriptors cannot be received: musl's msghdr is another one here");

const SOL_SOCKET: c_int = 1;
const SCM_RIGHTS: c_int = 1;
const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;

#[repr(C)]
struct IoVec {
    base: *mut c_void,
    len: usize,
}

#[repr(C)]
struct MsgHdr {
    name: *mut c_void,
    name_len: u32,
    iov: *mut IoVec,
    iov_len: usize,
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}

/// A control message's header, and room for the one descriptor that a frame may carry. Where
/// lengths have 64 bits, two descriptors fit.
#[repr(C)]
struct Control {
    len: usize,
    level: c_int,
    kind: c_int,
    fds: [c_int; 2],
}

const CONTROL_HEADER_BYTES: usize = size_of::<Control>() - size_of::<[c_int; 2]>();

unsafe extern "C" {
    fn recvmsg(socket: c_int, message: *mut MsgHdr, flags: c_int) -> isize;
}

/// Fills `into`. Stores the first descriptor that arrives with its bytes in `fd`, with
/// close-on-exec set. Closes all other descriptors.
///
/// # Errors
/// `UnexpectedEof` when the connection ends before, and those of recvmsg(2).
pub(crate) fn receive_exact(
    stream: &UnixStream,
    mut into: &mut [u8],
    fd: &mut Option<OwnedFd>,
) -> io::Result<()> {
    while !into.is_empty() {
        match receive(stream, into, fd) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive(stream: &UnixStream, into: &mut [u8], fd: &mut Option<OwnedFd>) -> io::Result<usize> {
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1; 2] };
    let mut bytes = IoVec { base: into.as_mut_ptr().cast(), len: into.len() };
    let mut message = MsgHdr {
        name: ptr::null_mut(),
        name_len: 0,
        iov: &raw mut bytes,
        iov_len: 1,
        control: (&raw mut control).cast(),
        control_len: size_of::<Control>(),
        flags: 0,
    };
    // SAFETY: all memory of the message stays valid until the call has returned, with the given
    // lengths.
    let n = unsafe { recvmsg(stream.as_raw_fd(), &raw mut message, MSG_CMSG_CLOEXEC) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    let filled = message.control_len.min(size_of::<Control>());
    if filled >= CONTROL_HEADER_BYTES && (control.level, control.kind) == (SOL_SOCKET, SCM_RIGHTS) {
        let count = control.len.saturating_sub(CONTROL_HEADER_BYTES) / size_of::<c_int>();
        for &raw in control.fds.iter().take(count).filter(|&&raw| raw >= 0) {
            // SAFETY: the kernel has just made the descriptor for this process, and no other owner
            // exists.
            let one = unsafe { OwnedFd::from_raw_fd(raw) };
            fd.get_or_insert(one);
        }
    }
    Ok(n)
}
