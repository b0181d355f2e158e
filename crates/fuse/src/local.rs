//! Reads of local files: the bytes of a [`Slice`] on their way to the kernel.
//!
//! A change of thread costs as much as a read from a fast disk. So the thread that read the request
//! also reads the local file, as long as another thread is left that reads requests. Otherwise a
//! thread of the blocking pool does it.

use bytes::Bytes;
use hither_vfs::Slice;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Semaphore;

/// Most threads of the blocking pool that read local files. Others must be left for invalidations.
pub(crate) const THREADS_MAX: usize = 64;

/// Readers of local files.
#[derive(Debug)]
pub(crate) struct LocalReads {
    /// Threads that read requests and wait for a local file now.
    waiting: AtomicUsize,
    waiting_max: usize,
    threads: Semaphore,
}

/// A thread that reads requests and may wait for a local file, until dropped.
struct Waiting<'a>(&'a LocalReads);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LocalReads {
    /// For a mount whose requests are read by so many threads.
    pub fn new(threads: usize) -> Self {
        let waiting_max = threads.saturating_sub(1);
        Self { waiting: AtomicUsize::new(0), waiting_max, threads: Semaphore::new(THREADS_MAX) }
    }

    /// The bytes of a slice; `None` when they cannot be read. `on_reader`: the calling thread reads
    /// requests.
    pub async fn read(&self, slice: &Slice, on_reader: bool) -> Option<Bytes> {
        if on_reader {
            if let Some(_waiting) = self.may_wait() {
                return read_all(slice);
            }
            if let Some(bytes) = read_now(slice) {
                return Some(bytes);
            }
        }
        let _turn = self.threads.acquire().await.ok()?;
        let slice = slice.clone();
        tokio::task::spawn_blocking(move || read_all(&slice)).await.ok()?
    }

    fn may_wait(&self) -> Option<Waiting<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = Waiting(self);
        (before < self.waiting_max).then_some(waiting)
    }
}

/// The bytes of a slice that are in memory; `None` when some are not.
fn read_now(slice: &Slice) -> Option<Bytes> {
    let mut buf = vec![0; slice.len];
    let mut bufs = [IoSliceMut::new(&mut buf)];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    let n = rustix::io::preadv2(&*slice.file, &mut bufs, slice.offset_bytes, flags).ok()?;
    (n == slice.len).then(|| buf.into())
}

/// The bytes of a slice; `None` when the file is shorter or cannot be read.
fn read_all(slice: &Slice) -> Option<Bytes> {
    let mut buf = Vec::with_capacity(slice.len);
    while buf.len() < slice.len {
        let at = slice.offset_bytes + buf.len() as u64;
        match rustix::io::pread(&*slice.file, rustix::buffer::spare_capacity(&mut buf), at) {
            Ok(0) => return None,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    // A vector may have more room than was asked for.
    buf.truncate(slice.len);
    Some(buf.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    fn slice_of(data: &[u8], offset_bytes: u64, len: usize) -> Slice {
        let name = format!("hither-local-{}-{offset_bytes}-{len}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut how = std::fs::File::options();
        let mut file = how.read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(data).unwrap();
        Slice { file: Arc::new(file), offset_bytes, len }
    }

    /// A slice has its bytes, whichever thread reads it. The last thread that reads requests does
    /// not wait for the disk.
    #[tokio::test]
    async fn local_reads_return_the_slice() {
        let data: Vec<u8> = (0..1_usize << 20).map(|i| ((i * 31) >> 3) as u8).collect();
        let reads = LocalReads::new(2);
        let first = reads.may_wait();
        assert!(first.is_some());
        assert!(reads.may_wait().is_none(), "no thread would be left");
        for (at, len) in [(0, 100), (4096, 4096), (0, 1 << 20), (5, (1 << 20) - 5)] {
            let slice = slice_of(&data, at, len);
            for on_reader in [true, false] {
                let bytes = reads.read(&slice, on_reader).await.unwrap();
                assert!(bytes == data[at as usize..at as usize + len], "{at} {len} {on_reader}");
            }
        }
        drop(first);
        let slice = slice_of(&data, 7, 1000);
        assert!(reads.read(&slice, true).await.unwrap() == data[7..1007]);
        assert_eq!(reads.waiting.load(Ordering::Relaxed), 0);
        assert!(LocalReads::new(1).may_wait().is_none());
    }

    /// A local file that became shorter yields no bytes.
    #[tokio::test]
    async fn truncated_slice_is_not_read() {
        let reads = LocalReads::new(2);
        for on_reader in [true, false] {
            assert!(reads.read(&slice_of(&[7; 8191], 0, 8192), on_reader).await.is_none());
        }
        assert!(read_now(&slice_of(&[7; 8191], 0, 8192)).is_none());
    }
}
