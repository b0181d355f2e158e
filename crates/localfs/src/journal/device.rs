//! The disk below the journal. This is the lowest interface: tests tear writes and cut the power in
//! it.

use super::log::BLOCK_BYTES;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::Duration;

/// Number of attempts to lock a journal that another process uses, and the pause between two
/// attempts.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// O_DSYNC. `OFlags::DSYNC` is O_SYNC on Linux. With O_SYNC every append also writes the times of
/// the file. That commits the log of the file system that holds the journal, with the changes of
/// other files in that log.
const DSYNC: OFlags = OFlags::from_bits_retain(libc::O_DSYNC.cast_unsigned());

/// A file or block device. All calls block. Offsets and lengths are multiples of a block.
pub trait Device: Send + Sync + 'static {
    /// Fills the buffer; `UnexpectedEof` at the end.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes all bytes. They are on stable storage when the call returns.
    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()>;
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// A real device. I/O bypasses the page cache where the file system supports O_DIRECT.
pub struct RealDevice {
    file: File,
    /// Memory aligned for O_DIRECT.
    aligned: Mutex<Vec<u8>>,
}

impl RealDevice {
    /// Opens a journal. With `size` (in bytes), a missing file is created with all its blocks.
    pub fn open(path: &Path, size: Option<u64>) -> io::Result<Self> {
        let flags = OFlags::RDWR | DSYNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = if size.is_some() { OFlags::CREATE } else { OFlags::empty() };
        let mode = Mode::RUSR | Mode::WUSR;
        let open = |more| rustix::fs::open(path, flags | create | more, mode);
        let file: File = match open(OFlags::DIRECT) {
            Err(rustix::io::Errno::INVAL) => open(OFlags::empty())?.into(),
            other => other?.into(),
        };
        lock(&file)?;
        let meta = file.metadata()?;
        if let Some(size) = size.filter(|_| meta.is_file() && meta.len() == 0) {
            let size = size / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            preallocate(&file, size)?;
            if let Some(dir) = path.parent() {
                File::open(if dir.as_os_str().is_empty() { Path::new(".") } else { dir })?.sync_all()?;
            }
        } else if !meta.is_file() && !meta.file_type().is_block_device() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "neither file nor block device"));
        }
        Ok(Self { file, aligned: Mutex::default() })
    }

    /// Opens a journal to read it. Servers cannot use it meanwhile.
    ///
    /// # Errors
    /// Those of open(2); `WouldBlock` when a server uses the journal.
    pub fn open_to_read(path: &Path) -> io::Result<Self> {
        use rustix::fs::{FlockOperation, flock};
        let open = |more| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | more, Mode::empty());
        let file: File = match open(OFlags::DIRECT) {
            Err(rustix::io::Errno::INVAL) => open(OFlags::empty())?.into(),
            other => other?.into(),
        };
        let meta = file.metadata()?;
        if !meta.is_file() && !meta.file_type().is_block_device() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "neither file nor block device"));
        }
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(io::Error::new(ErrorKind::WouldBlock, "a running server uses it"))
            }
            Err(e) => Err(e.into()),
            Ok(()) => Ok(Self { file, aligned: Mutex::default() }),
        }
    }

    /// Whether the header area is blank: zeros, or no bytes at all.
    pub fn is_blank(&self) -> io::Result<bool> {
        let mut start = [0; 2 * BLOCK_BYTES];
        match self.read_at(&mut start, 0) {
            Ok(()) => Ok(start.iter().all(|&b| b == 0)),
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(self.size()? == 0),
            Err(e) => Err(e),
        }
    }

    fn with_aligned<T>(&self, len: usize, act: impl FnOnce(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
        let mut buf = self.aligned.lock();
        if buf.len() < len + BLOCK_BYTES {
            buf.resize(len + BLOCK_BYTES, 0);
        }
        let skip = buf.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        act(&mut buf[skip..skip + len])
    }
}

/// Locks the journal: two servers with one journal would destroy its records. A server that was
/// just killed may take a moment to end.
fn lock(file: &File) -> io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    let (never, timer) = (Mutex::new(()), parking_lot::Condvar::new());
    for _ in 0..LOCK_TRIES {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                timer.wait_for(&mut never.lock(), LOCK_PAUSE);
            }
            other => return Ok(other?),
        }
    }
    Err(io::Error::new(ErrorKind::WouldBlock, "another server uses it"))
}

/// Writes every block once. A write into allocated but unwritten space changes metadata, and needs
/// more than one flush.
fn preallocate(file: &File, size: u64) -> io::Result<()> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size)?;
    let zeros = vec![0; (1 << 20) + BLOCK_BYTES];
    let skip = zeros.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
    let mut at = 0;
    while at < size {
        let len = (size - at).min(1 << 20) as usize;
        file.write_all_at(&zeros[skip..skip + len], at)?;
        at += len as u64;
    }
    file.sync_all()
}

impl Device for RealDevice {
    fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        self.with_aligned(out.len(), |buf| {
            self.file.read_exact_at(buf, at)?;
            out.copy_from_slice(buf);
            Ok(())
        })
    }

    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.with_aligned(data.len(), |buf| {
            buf.copy_from_slice(data);
            self.file.write_all_at(buf, at)
        })
    }

    fn size(&self) -> io::Result<u64> {
        use std::io::{Seek, SeekFrom};
        (&self.file).seek(SeekFrom::End(0))
    }
}
