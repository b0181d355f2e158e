//! `/dev/fuse`: reading requests, writing replies and notifications.
//!
//! The module handles the framing of messages, not their contents. Every clone has its own queue of
//! requests in the kernel. So a reply must be written to the descriptor that its request was read
//! from. Request buffers come from a bounded pool. The WRITE payload in them is page-aligned.

use crate::abi::{OUT_HEADER_BYTES, WRITE_HEAD_BYTES};
use bytes::Bytes;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE: usize = 4096;

/// An open `/dev/fuse` descriptor.
#[derive(Debug)]
pub(crate) struct Device {
    fd: OwnedFd,
}

/// The outcome of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The kernel accepted the reply.
    Delivered,
    /// The caller is gone.
    Unwanted,
}

impl Device {
    /// Opens the device. The descriptor is closed on exec.
    pub fn open() -> io::Result<Self> {
        let file = File::options().read(true).write(true).open("/dev/fuse")?;
        Ok(Self { fd: file.into() })
    }

    /// Another descriptor of the same mount, for parallel reads. It works only after the mount.
    pub fn duplicate(&self) -> io::Result<Self> {
        // _IOR(229, 0, u32)
        const FUSE_DEV_IOC_CLONE: libc::c_ulong = 0x8004_e500;
        let new = Self::open()?;
        let mut source = self.fd.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, which lives across the call; both descriptors are open.
        let r = unsafe { libc::ioctl(new.fd.as_raw_fd(), FUSE_DEV_IOC_CLONE as _, &mut source) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(new) }
    }

    /// Lets the kernel read from a local file. Returns the number of the file in the kernel.
    ///
    /// # Errors
    /// `EPERM`, `EOPNOTSUPP`, `ELOOP` and others when the kernel cannot.
    pub fn lend(&self, file: &File) -> io::Result<u32> {
        // _IOW(229, 1, struct fuse_backing_map): fd, flags, padding.
        const FUSE_DEV_IOC_BACKING_OPEN: libc::c_ulong = 0x4010_e501;
        let mut map = [file.as_raw_fd() as u32, 0, 0, 0];
        // SAFETY: the ioctl reads 16 bytes, which live across the call; both descriptors are open.
        let id = unsafe { libc::ioctl(self.fd.as_raw_fd(), FUSE_DEV_IOC_BACKING_OPEN as _, &mut map) };
        if id <= 0 { Err(io::Error::last_os_error()) } else { Ok(id as u32) }
    }

    /// Ends a [`Device::lend`]. Running opens continue to use the file.
    ///
    /// # Errors
    /// The number does not exist.
    pub fn take_back(&self, mut id: u32) -> io::Result<()> {
        // _IOW(229, 2, u32)
        const FUSE_DEV_IOC_BACKING_CLOSE: libc::c_ulong = 0x4004_e502;
        // SAFETY: the ioctl reads one u32, which lives across the call; the descriptor is open.
        let r = unsafe { libc::ioctl(self.fd.as_raw_fd(), FUSE_DEV_IOC_BACKING_CLOSE as _, &mut id) };
        if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The number of the descriptor, for mount(2).
    pub fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Reads one request into `buf`; blocks. `ENODEV` after unmounting, `ECONNABORTED` after an
    /// abort.
    pub fn read(&self, buf: &mut Buffer) -> io::Result<usize> {
        let space = buf.space();
        // SAFETY: `space` is valid for writes of its length for the duration of the call.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), space.as_mut_ptr().cast(), space.len()) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }

    /// Answers a request. `error` is 0 or a positive errno. `body` is sent only when `error` is 0.
    ///
    /// # Errors
    /// The kernel refused the reply as malformed, which is a bug of the daemon.
    pub fn reply(&self, unique: u64, error: i32, body: &[IoSlice<'_>]) -> io::Result<Delivery> {
        match self.send(unique, -error, body) {
            Ok(()) => Ok(Delivery::Delivered),
            Err(e) => match e.raw_os_error() {
                // The request is gone, or the mount is.
                Some(libc::ENOENT | libc::ENODEV | libc::EPERM | libc::ECONNABORTED) => {
                    Ok(Delivery::Unwanted)
                }
                _ => Err(e),
            },
        }
    }

    /// Sends a notification. Some notifications wait for locks in the kernel, so threads that
    /// answer requests must not send them.
    pub fn notify(&self, code: i32, body: &[IoSlice<'_>]) -> io::Result<()> {
        self.send(0, code, body)
    }

    fn send(&self, unique: u64, error: i32, body: &[IoSlice<'_>]) -> io::Result<()> {
        let len = OUT_HEADER_BYTES + body.iter().map(|s| s.len()).sum::<usize>();
        let mut head = [0; OUT_HEADER_BYTES];
        head[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        head[4..8].copy_from_slice(&error.to_ne_bytes());
        head[8..].copy_from_slice(&unique.to_ne_bytes());
        let mut parts: smallvec::SmallVec<[IoSlice<'_>; 8]> = smallvec::SmallVec::new();
        parts.push(IoSlice::new(&head));
        parts.extend(body.iter().copied());
        // SAFETY: IoSlice is layout-compatible with iovec; all slices live across the call.
        let n = unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as i32) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Memory for one request of the maximum size. Its offset makes the payload of a WRITE
/// page-aligned.
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    layout: Layout,
    pool: Arc<Mutex<Vec<Buffer>>>,
    spare_max: usize,
}

// SAFETY: the buffer owns its memory alone.
unsafe impl Send for Buffer {}
// SAFETY: shared access is reading only.
unsafe impl Sync for Buffer {}

impl Buffer {
    const START: usize = PAGE - WRITE_HEAD_BYTES;

    fn space(&mut self) -> &mut [u8] {
        let len = self.layout.size() - Self::START;
        // SAFETY: START + len is the size of the zero-initialized allocation, and `self` is
        // borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().add(Self::START), len) }
    }

    /// The bytes of the last read.
    pub fn filled(&self, len: usize) -> &[u8] {
        &self.as_ref()[..len]
    }

    /// The bytes of the last read, together with the buffer. The buffer returns to the pool with
    /// the last reference.
    pub fn into_bytes(self, len: usize) -> Bytes {
        Bytes::from_owner(Lent(Some(self))).slice(..len)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        let len = self.layout.size() - Self::START;
        // SAFETY: as in `space`, borrowed for reading.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(Self::START), len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

/// A buffer that returns to its pool.
struct Lent(Option<Buffer>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |b| b.as_ref())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take() {
            let pool = buffer.pool.clone();
            let mut spare = pool.lock();
            if spare.len() < buffer.spare_max {
                spare.push(buffer);
            }
        }
    }
}

/// Request buffers. The kernel bounds the used ones, because each belongs to a waiting caller or a
/// background slot. At most `spare_max` unused ones are kept.
#[derive(Clone)]
pub(crate) struct BufferPool {
    spare: Arc<Mutex<Vec<Buffer>>>,
    spare_max: usize,
    payload_bytes: usize,
}

impl BufferPool {
    /// A pool for payloads of at most `payload_bytes`.
    pub fn new(payload_bytes: usize, spare_max: usize) -> Self {
        Self { spare: Arc::default(), spare_max, payload_bytes }
    }

    /// A reused or a new buffer.
    pub fn take(&self) -> Buffer {
        if let Some(buffer) = self.spare.lock().pop() {
            return buffer;
        }
        let size = PAGE + self.payload_bytes + PAGE;
        let layout = Layout::from_size_align(size, PAGE).expect("a sane size");
        // SAFETY: the layout has a size above zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Buffer { memory, layout, pool: self.spare.clone(), spare_max: self.spare_max }
    }
}
