//! Listings, walks, and changes.

use crate::Client;
use crate::calls::Call;
use crate::wire::{self, Attr, Entry, Reader, Request, Stated};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most paths that one connection may watch.
const WATCHED_MAX: usize = 1024;

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    /// The entry's name. In a walk, its path below the directory where the walk began.
    pub path: PathBuf,
    /// The entry's attributes, for a symbolic link those of the link itself.
    pub attr: io::Result<Attr>,
}

/// Entries of a walk, as they arrive.
#[derive(Debug)]
pub struct Walk {
    call: Option<Call>,
    ready: VecDeque<DirEntry>,
}

/// Changes of watched paths, as the mount notices them.
#[derive(Debug)]
pub struct Changes {
    call: Call,
    /// Number of watched paths.
    count: usize,
    ready: VecDeque<(usize, io::Result<Attr>)>,
}

impl Client {
    /// A directory's entries with attributes.
    ///
    /// # Errors
    /// Those of opendir(3) and readdir(3).
    pub fn list(&self, dir: impl AsRef<Path>) -> io::Result<Vec<DirEntry>> {
        let dir = self.relative(dir.as_ref())?;
        let call = self.conn.begin(&Request::List(&dir))?;
        Walk { call: Some(call), ready: VecDeque::new() }.collect()
    }

    /// All objects below a directory with their attributes, at most `depth` levels deep. The order
    /// is free, except that each directory comes before its entries.
    ///
    /// # Errors
    /// When the connection is lost, or `WouldBlock` while 128 walks and watches of this connection
    /// are held. Other errors come with the entries.
    pub fn walk(&self, dir: impl AsRef<Path>, depth: u32) -> io::Result<Walk> {
        let dir = self.relative(dir.as_ref())?;
        let call = self.conn.begin_held(&Request::Walk(&dir, depth))?;
        Ok(Walk { call: Some(call), ready: VecDeque::new() })
    }

    /// Reports the attributes of paths, and again after each change that the mount notices. The
    /// mount notices changes when leases are recalled and when cached answers expire.
    ///
    /// # Errors
    /// `InvalidInput` for more than 1024 paths, or a megabyte of them. `WouldBlock` while 128 walks
    /// and watches of this connection are held. Other errors: a path is too long, the connection is
    /// lost, or the connection's watches have too many paths together.
    pub fn watch(&self, paths: &[impl AsRef<Path>]) -> io::Result<Changes> {
        if paths.len() > WATCHED_MAX {
            let why = format!("more than {WATCHED_MAX} paths to watch");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let paths: Vec<Vec<u8>> =
            paths.iter().map(|p| self.relative(p.as_ref())).collect::<io::Result<_>>()?;
        let call = self.conn.begin_held(&Request::Watch(paths.iter().map(|p| &p[..]).collect()))?;
        Ok(Changes { call, count: paths.len(), ready: VecDeque::new() })
    }
}

impl Iterator for Walk {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(Ok(entry));
            }
            let frame = self.call.as_mut()?.next();
            match frame.and_then(|body| body.map(|body| entries(&body)).transpose()) {
                Ok(Some(entries)) => self.ready.extend(entries),
                Ok(None) => {
                    self.call = None;
                    return None;
                }
                Err(e) => {
                    self.call = None;
                    return Some(Err(e));
                }
            }
        }
    }
}

impl Changes {
    /// The next change: the index of the path, and its attributes (`NotFound` when the object is
    /// gone). Fails with `TimedOut` after `within`.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn next_within(&mut self, within: Duration) -> io::Result<(usize, io::Result<Attr>)> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            let body = self.call.next_within(within)?.ok_or(io::ErrorKind::ConnectionAborted)?;
            let mut r = Reader(&body);
            while !r.is_empty() {
                let one = Stated::decode(&mut r)?;
                if one.index as usize >= self.count {
                    return Err(wire::Malformed("an index").into());
                }
                let attr = one.attr.map_err(io::Error::from_raw_os_error);
                self.ready.push_back((one.index as usize, attr));
            }
        }
    }
}

fn entries(body: &[u8]) -> io::Result<Vec<DirEntry>> {
    let (mut r, mut out) = (Reader(body), Vec::new());
    while !r.is_empty() {
        let Entry { name, attr } = Entry::decode(&mut r)?;
        let path = PathBuf::from(OsString::from_vec(name.to_vec()));
        out.push(DirEntry { path, attr: attr.map_err(io::Error::from_raw_os_error) });
    }
    Ok(out)
}
