//! The storage of a journal's segments. Tests replace this lowest interface to tear writes and to
//! fill the disk.

use rustix::fs::{Mode, OFlags};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that exists while all writes are journaled.
const WORKS: &str = "works";
/// The name of that file while writes bypass the journal.
const FAILED: &str = "failed";

/// A directory of segments. All calls block.
pub trait SegmentStore: Send + Sync + 'static {
    /// Creates an empty segment.
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>>;
    /// Removes a segment. Succeeds when the segment does not exist.
    fn remove(&self, number: u64) -> io::Result<()>;
    /// Makes the directory entries of the segments durable.
    fn sync_names(&self) -> io::Result<()>;
    /// Sets or clears the mark of a failed journal. Writes bypass a failed journal, so that its
    /// records are incomplete after a crash. Durable on return.
    fn set_failed(&self, failed: bool) -> io::Result<()>;
}

/// A segment being written.
pub trait Segment: Send + Sync + 'static {
    /// Appends bytes.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;
    /// Makes the appended bytes durable.
    fn sync(&self) -> io::Result<()>;
}

/// A real directory. It is locked during the life of this value.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    names: File,
    _lock: File,
}

impl Dir {
    /// Locks the directory. A missing directory is created with mode 0700. `WouldBlock` when
    /// another process holds the lock.
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        private(path)?;
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock: File = rustix::fs::open(path.join("lock"), flags, Mode::RUSR | Mode::WUSR)?.into();
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
            Err(std::fs::TryLockError::Error(e)) => return Err(e),
        }
        let this = Self { path: path.to_path_buf(), names: File::open(path)?, _lock: lock };
        if !this.is_failed() {
            // The file exists in advance, because a rename succeeds on a full disk.
            rustix::fs::open(path.join(WORKS), flags, Mode::RUSR | Mode::WUSR)?;
        }
        Ok(this)
    }

    /// Writes a small file, durably. An unchanged file is not written again.
    pub fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.path.join(name);
        if std::fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(());
        }
        let new = self.path.join(format!("{name}.new"));
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file: File = rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR)?.into();
        (&file).write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)?;
        self.names.sync_all()
    }

    /// Whether writes bypassed the journal at the end of its last use.
    pub fn is_failed(&self) -> bool {
        std::fs::symlink_metadata(self.path.join(FAILED)).is_ok()
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn segment(&self, number: u64) -> PathBuf {
        segment_path(&self.path, number)
    }

    /// Truncates a segment after its last whole record. With `head`, the segment is rewritten with
    /// that head alone.
    pub fn mend(&self, number: u64, keep_bytes: u64, head: Option<&[u8]>) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file: File = rustix::fs::open(self.segment(number), flags, Mode::empty())?.into();
        match head {
            Some(head) => {
                file.set_len(0)?;
                file.write_all_at(head, 0)?;
            }
            None if file.metadata()?.len() != keep_bytes => file.set_len(keep_bytes)?,
            None => return Ok(()),
        }
        file.sync_all()
    }
}

/// Checks that the path is a directory, not a link, and that only the present user can access it.
fn private(path: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    let refused = |why: String| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if !meta.is_dir() {
        return refused("is not a directory; choose another one (journal-dir=DIR)".into());
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        let uid = meta.uid();
        return refused(format!("belongs to uid {uid}; choose another one (journal-dir=DIR)"));
    }
    if meta.mode() & 0o077 != 0 {
        return refused(format!("other users can access it; chmod 700 {}", path.display()));
    }
    Ok(())
}

/// The numbers of the segments in a directory, ascending.
pub fn segments(dir: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".wal"));
        numbers.extend(number.and_then(|hex| u64::from_str_radix(hex, 16).ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// All bytes of a segment.
pub fn read_segment(dir: &Path, number: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_segment(dir, number)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a segment for reading.
pub fn open_segment(dir: &Path, number: u64) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(segment_path(dir, number), flags, Mode::empty())?.into())
}

fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.wal"))
}

impl SegmentStore for Dir {
    fn create(&self, number: u64) -> io::Result<Arc<dyn Segment>> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        let file: File = rustix::fs::open(self.segment(number), flags, Mode::RUSR | Mode::WUSR)?.into();
        Ok(Arc::new(RealSegment(file)))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        match std::fs::remove_file(self.segment(number)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn sync_names(&self) -> io::Result<()> {
        self.names.sync_all()
    }

    fn set_failed(&self, failed: bool) -> io::Result<()> {
        let (from, to) = if failed { (WORKS, FAILED) } else { (FAILED, WORKS) };
        match std::fs::rename(self.path.join(from), self.path.join(to)) {
            Err(e) if e.kind() == ErrorKind::NotFound && self.is_failed() == failed => {}
            done => done?,
        }
        self.sync_names()
    }
}

struct RealSegment(File);

impl Segment for RealSegment {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.0).write_all(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
