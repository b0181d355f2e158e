//! The files of a hither mount for programs, without the kernel in between.
//!
//! [`Client::connect`] takes the mount point (or the socket itself). A client sees the same data as
//! a program of the mount, as promptly, with the same rights. It adds many files in few round trips
//! ([`Client::read_many`], [`Client::stat_many`], [`Client::walk`]). A client is cheap to clone and
//! may be used by many threads, whose requests travel side by side. Paths are relative to the
//! mount's root, or absolute below the mount point.
//!
//! ```no_run
//! let client = hither_client::Client::connect("/mnt/share")?;
//! for (name, bytes) in ["a", "b"].iter().zip(client.read_many(&["a", "b"])?) {
//!     println!("{name}: {} bytes", bytes?.len());
//! }
//! # std::io::Result::Ok(())
//! ```
//!
//! There are no dependencies. The protocol is in [`wire`] and, in words, in docs/SOCKET.md.

#![deny(unsafe_code)]

mod calls;
mod descriptor;
mod file;
mod find;
mod lists;
pub mod wire;

pub use file::{File, OpenOptions};
pub use lists::{Changes, DirEntry, Walk};
pub use wire::{Attr, Kind};

use calls::Connection;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{IO_MAX_BYTES, NO_FOLLOW, PATH_MAX_BYTES, Part, Piece, Reader, Request, Stated};

/// Linux's number, which the daemon's answers use as well.
const ENAMETOOLONG: i32 = 36;
/// Most paths in one request. `BATCH_BYTES` is the most bytes of them.
const BATCH_PATHS: usize = 4096;
const BATCH_BYTES: usize = 512 << 10;

/// A connection to a mount.
#[derive(Debug, Clone)]
pub struct Client {
    conn: Arc<Connection>,
}

impl Client {
    /// Connects to the mount that contains `path`, or to `path` itself when it is a socket.
    ///
    /// # Errors
    /// `NotFound` when the path is in no hither mount or the mount has no socket.
    /// `PermissionDenied` when the socket is not for this user. `InvalidData` when the peer does
    /// not speak this protocol.
    pub fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        let stream = UnixStream::connect(find::socket(path.as_ref())?)?;
        Ok(Self { conn: Arc::new(Connection::greet(stream)?) })
    }

    /// The mount point.
    pub fn dir(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsStr::from_bytes(&self.conn.hello.dir))
    }

    /// The mounted export: `server:/path`.
    pub fn source(&self) -> String {
        String::from_utf8_lossy(&self.conn.hello.source).into_owned()
    }

    /// Whether the mount is read-only.
    pub fn is_read_only(&self) -> bool {
        self.conn.hello.read_only
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Creates a file, or truncates it to length 0, and opens it for writing.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// Those of open(2) and read(2).
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let mut all = self.read_many(&[path])?;
        all.pop().unwrap_or_else(|| Err(ErrorKind::NotFound.into()))
    }

    /// Writes a file with these bytes. They are on stable storage when this returns.
    ///
    /// # Errors
    /// Those of open(2), write(2) and close(2).
    pub fn write(&self, path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let file = self.create(path)?;
        file.write_all_at(bytes.as_ref(), 0)?;
        file.close()
    }

    /// All bytes of many files, in the order of the paths. Small files need few round trips.
    ///
    /// # Errors
    /// When the connection is lost. Each file has its own result besides.
    pub fn read_many(&self, paths: &[impl AsRef<Path>]) -> io::Result<Vec<io::Result<Vec<u8>>>> {
        let mut out: Vec<_> = paths.iter().map(|_| Err(ErrorKind::UnexpectedEof.into())).collect();
        let mut longer = Vec::new();
        let parts: Vec<_> = paths.iter().map(|path| (path, 0, IO_MAX_BYTES)).collect();
        self.read_parts(&parts, |i, read| {
            if let Ok((size, data)) = &read
                && *size > data.len() as u64
            {
                longer.push(i);
            }
            out[i] = read.map(|(_, data)| data.to_vec());
        })?;
        for i in longer {
            out[i] = self.open(&paths[i]).and_then(|file| file.read_all());
        }
        Ok(out)
    }

    /// Reads parts of many files. A part is a path, an offset, and a length of at most a megabyte.
    /// `take` gets each part, in any order: its index, and the file's length with the bytes.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn read_parts(
        &self,
        parts: &[(impl AsRef<Path>, u64, u32)],
        mut take: impl FnMut(usize, io::Result<(u64, &[u8])>),
    ) -> io::Result<()> {
        let mut asked = Vec::with_capacity(parts.len());
        for (i, (path, offset, len)) in parts.iter().enumerate() {
            match self.relative(path.as_ref()) {
                Ok(path) => asked.push((i, path, *offset, (*len).min(IO_MAX_BYTES))),
                Err(e) => take(i, Err(e)),
            }
        }
        for batch in batches(&asked, |(_, path, ..)| path.len()) {
            let parts = batch.iter().map(|(_, path, offset, len)| Part { path, offset: *offset, len: *len });
            let mut call = self.conn.begin(&Request::ReadMany(parts.collect()))?;
            while let Some(body) = call.next()? {
                let mut r = Reader(&body);
                while !r.is_empty() {
                    let piece = Piece::decode(&mut r)?;
                    let (i, ..) = batch.get(piece.index as usize).ok_or(wire::Malformed("an index"))?;
                    take(*i, piece.read.map_err(io::Error::from_raw_os_error));
                }
            }
        }
        Ok(())
    }

    /// Attributes of a path. A symbolic link is followed.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn stat(&self, path: impl AsRef<Path>) -> io::Result<Attr> {
        self.stat_one(path.as_ref(), 0)
    }

    /// As [`Client::stat`], for a symbolic link itself.
    ///
    /// # Errors
    /// Those of lstat(2).
    pub fn lstat(&self, path: impl AsRef<Path>) -> io::Result<Attr> {
        self.stat_one(path.as_ref(), NO_FOLLOW)
    }

    fn stat_one(&self, path: &Path, flags: u32) -> io::Result<Attr> {
        let mut all = self.stat_paths(&[path], flags)?;
        all.pop().unwrap_or_else(|| Err(ErrorKind::NotFound.into()))
    }

    /// Attributes of many paths, in their order, in few round trips.
    ///
    /// # Errors
    /// When the connection is lost. Each path has its own result besides.
    pub fn stat_many(&self, paths: &[impl AsRef<Path>]) -> io::Result<Vec<io::Result<Attr>>> {
        self.stat_paths(paths, 0)
    }

    fn stat_paths(&self, paths: &[impl AsRef<Path>], flags: u32) -> io::Result<Vec<io::Result<Attr>>> {
        let mut out: Vec<_> = paths.iter().map(|_| Err(ErrorKind::UnexpectedEof.into())).collect();
        let mut asked = Vec::with_capacity(paths.len());
        for (i, path) in paths.iter().enumerate() {
            match self.relative(path.as_ref()) {
                Ok(path) => asked.push((i, path)),
                Err(e) => out[i] = Err(e),
            }
        }
        for batch in batches(&asked, |(_, path)| path.len()) {
            let paths = batch.iter().map(|(_, path)| &path[..]).collect();
            let mut call = self.conn.begin(&Request::StatMany(flags, paths))?;
            while let Some(body) = call.next()? {
                let mut r = Reader(&body);
                while !r.is_empty() {
                    let one = Stated::decode(&mut r)?;
                    let (i, _) = batch.get(one.index as usize).ok_or(wire::Malformed("an index"))?;
                    out[*i] = one.attr.map_err(io::Error::from_raw_os_error);
                }
            }
        }
        Ok(out)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// Those of readlink(2).
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let path = self.relative(path.as_ref())?;
        let target = self.conn.call(&Request::ReadLink(&path))?;
        Ok(PathBuf::from(std::ffi::OsString::from(std::ffi::OsStr::from_bytes(&target))))
    }

    /// Makes a directory (permissions 0755).
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.create_dir_as(path, 0o755)
    }

    /// Makes a directory with these permissions; no umask is applied.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn create_dir_as(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let path = self.relative(path.as_ref())?;
        self.conn.call(&Request::Mkdir(&path, mode)).map(drop)
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = self.relative(path.as_ref())?;
        self.conn.call(&Request::Remove(&path, 0)).map(drop)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of rmdir(2).
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = self.relative(path.as_ref())?;
        self.conn.call(&Request::Remove(&path, 1)).map(drop)
    }

    /// Renames an object. An object with the new name is replaced.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (self.relative(from.as_ref())?, self.relative(to.as_ref())?);
        self.conn.call(&Request::Rename(&from, &to, 0)).map(drop)
    }

    /// Makes a symbolic link at `path`.
    ///
    /// # Errors
    /// Those of symlink(2).
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> io::Result<()> {
        let path = self.relative(path.as_ref())?;
        let target = sendable(target.as_ref().as_os_str().as_bytes())?;
        self.conn.call(&Request::Symlink(target, &path)).map(drop)
    }

    /// A path in the form of the protocol.
    fn relative(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = path.as_os_str().as_bytes();
        if !path.is_absolute() {
            return sendable(bytes).map(<[u8]>::to_vec);
        }
        let below = path.strip_prefix(self.dir()).map_err(|_| {
            let why = format!("{} is not below {}", path.display(), self.dir().display());
            io::Error::new(ErrorKind::InvalidInput, why)
        })?;
        let mut below = below.as_os_str().as_bytes().to_vec();
        if bytes.ends_with(b"/") && !below.is_empty() {
            below.push(b'/');
        }
        sendable(&below)?;
        Ok(below)
    }
}

/// Checks a path for a request. The daemon would refuse any other path with the same error.
fn sendable(path: &[u8]) -> io::Result<&[u8]> {
    if path.len() > PATH_MAX_BYTES {
        return Err(io::Error::from_raw_os_error(ENAMETOOLONG));
    }
    if path.contains(&0) {
        Err(io::Error::new(ErrorKind::InvalidInput, "a path with a NUL"))
    } else {
        Ok(path)
    }
}

/// Divides items into requests.
fn batches<T>(all: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fits = rest.iter().take(BATCH_PATHS).take_while(|one| {
            sum += bytes(one) + 16;
            sum <= BATCH_BYTES
        });
        let n = fits.count().max(1).min(rest.len());
        let (batch, after) = rest.split_at(n);
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

#[cfg(test)]
mod tests;
