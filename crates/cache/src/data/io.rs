//! The disk interface of the cache: the lowest interface, where tests inject faults and power cuts.
//!
//! Names are relative to a directory that only the cache uses: `ab/name`, two levels. All calls
//! block.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

/// A file in a listing.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub name: String,
    /// Space on the disk, in bytes.
    pub used_bytes: u64,
    /// Modification time, in seconds since 1970.
    pub touched_s: u64,
}

/// A directory.
pub(super) trait Io: Send + Sync + 'static {
    /// Creates a file; fails when it exists.
    fn create(&self, name: &str) -> io::Result<Arc<dyn IoFile>>;
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn IoFile>>;
    /// Removes a file; readers that have it open may continue.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Renames a file to a name that no file has.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Returns when earlier changes of names in the directory of `name` are on stable storage.
    fn sync_names(&self, name: &str) -> io::Result<()>;
    /// Lists all files.
    fn list(&self) -> io::Result<Vec<Listed>>;
    /// Names of the files in one directory; none when the directory does not exist.
    fn list_in(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Sets the time in [`Listed::touched_s`].
    fn touch(&self, name: &str, at_s: u64) -> io::Result<()>;
    /// Free space of the file system, in bytes.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// An open file.
pub(super) trait IoFile: Send + Sync + 'static {
    /// Fills the buffer from an offset; `UnexpectedEof` when the file ends before.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()>;
    /// The same from memory; `WouldBlock` when the read needs the disk.
    fn read_at_now(&self, buf: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes all bytes.
    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Truncates or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Returns when the written bytes and the length are on stable storage.
    fn sync_data(&self) -> io::Result<()>;
    /// Starts write-back of the written bytes. Without this call, write-back may start half a
    /// minute later.
    fn write_soon(&self);
    /// The file itself, for other readers.
    fn backing(&self) -> Option<Arc<File>>;
}

/// A real directory.
#[derive(Debug)]
pub(super) struct RealIo {
    pub dir: PathBuf,
}

impl Io for RealIo {
    fn create(&self, name: &str) -> io::Result<Arc<dyn IoFile>> {
        let path = self.dir.join(name);
        let mut how = File::options();
        how.read(true).write(true).create_new(true);
        let file = match how.open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = path.parent() {
                    match std::fs::create_dir(parent) {
                        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                        _ => {}
                    }
                }
                how.open(&path)?
            }
            other => other?,
        };
        Ok(Arc::new(RealFile(Arc::new(file))))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn IoFile>> {
        let file = File::options().read(true).write(true).open(self.dir.join(name))?;
        Ok(Arc::new(RealFile(Arc::new(file))))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))
    }

    fn sync_names(&self, name: &str) -> io::Result<()> {
        let path = self.dir.join(name);
        File::open(path.parent().unwrap_or(&self.dir))?.sync_all()
    }

    fn list(&self) -> io::Result<Vec<Listed>> {
        let mut out = Vec::new();
        for sub in std::fs::read_dir(&self.dir)? {
            let sub = sub?;
            if !sub.file_type()?.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(sub.path())? {
                let entry = entry?;
                let (Some(dir), Some(file)) = (
                    sub.file_name().to_str().map(String::from),
                    entry.file_name().to_str().map(String::from),
                ) else {
                    continue;
                };
                let Ok(meta) = entry.metadata() else { continue };
                out.push(Listed {
                    name: format!("{dir}/{file}"),
                    used_bytes: meta.blocks() * 512,
                    touched_s: meta.mtime().max(0) as u64,
                });
            }
        }
        Ok(out)
    }

    fn list_in(&self, dir: &str) -> io::Result<Vec<String>> {
        let all = match std::fs::read_dir(self.dir.join(dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            all => all?,
        };
        let mut out = Vec::new();
        for entry in all {
            out.extend(entry?.file_name().to_str().map(|name| format!("{dir}/{name}")));
        }
        Ok(out)
    }

    fn touch(&self, name: &str, at_s: u64) -> io::Result<()> {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(at_s);
        File::open(self.dir.join(name))?.set_modified(at)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

struct RealFile(Arc<File>);

impl IoFile for RealFile {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, at)
    }

    fn read_at_now(&self, buf: &mut [u8], at: u64) -> io::Result<()> {
        let len = buf.len();
        let mut bufs = [io::IoSliceMut::new(buf)];
        match rustix::io::preadv2(&*self.0, &mut bufs, at, rustix::io::ReadWriteFlags::NOWAIT) {
            Ok(n) if n == len => Ok(()),
            // Only the first bytes are in memory, or the file system does not support the flag.
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write_at(&self, data: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(data, at)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write_soon(&self) {
        // On Linux this starts write-back without waiting. The page that it drops is not needed.
        let _ = rustix::fs::fadvise(&*self.0, 0, None, rustix::fs::Advice::DontNeed);
    }

    fn backing(&self) -> Option<Arc<File>> {
        Some(self.0.clone())
    }
}
