//! Writes the bytes of records again at the start.
//!
//! A file may refuse the bytes, because another program made it immutable or executes it. The
//! server starts anyway: the bytes go to a file of their own in the state directory, at their
//! offsets, and the log reports it. When the refusing file has the bytes already, as after a kill
//! of the server, that file is removed.
//!
//! A file that has the bytes is not written, and keeps its times: a local program may have changed
//! them since.

use super::super::handle::Sealer;
use super::super::sys;
use super::names::Change;
use super::plain;
use super::state_files::IN_USE_FILE;
use crate::journal::Found;
use bytes::Bytes;
use hither_vfs::Fh;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, StatxFlags, Timespec, Timestamps, UTIME_OMIT};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Most files kept open while records are applied.
const OPEN_MAX: usize = 256;
/// Prefix of the names of files with refused bytes. The inode number follows.
const KEPT_FILE: &str = "journal-kept";
/// Bytes compared at a time.
const PIECE_BYTES: usize = 64 << 10;

/// The advice for a damaged journal. Writes reach the page cache first, so only a power cut or a
/// failing disk makes the directory lack them.
const DAMAGED: &str = "acknowledged writes would be lost, and the journal was left as it is: if the machine has not lost power \
     since, the directory has them, so start with --journal-discard; else restore the journal, or copy it first";

/// Fails when the journal is damaged so that acknowledged records are lost.
pub(super) fn refuse_damage(found: &Found) -> io::Result<()> {
    match found.check()? {
        Some(damage) => Err(io::Error::new(ErrorKind::InvalidData, format!("{damage}; {DAMAGED}"))),
        None => Ok(()),
    }
}

/// Fails when a blank journal was in use and not closed: its records were erased.
pub(super) fn refuse_blank(state_dir: Option<&Path>) -> io::Result<()> {
    if state_dir.is_none_or(|dir| !dir.join(IN_USE_FILE).exists()) {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidData, format!("it is blank, but was in use; {DAMAGED}")))
}

/// The files that records are applied to.
pub(super) struct Replay<'a> {
    sealer: &'a Sealer,
    top: BorrowedFd<'a>,
    kept_in: Option<&'a Path>,
    /// `None`: the file is gone.
    open: HashMap<Fh, Option<OwnedFd>>,
    times: HashMap<Fh, Times>,
    refused: HashMap<Fh, Refused>,
}

/// A time in seconds and nanoseconds.
type Stamp = (i64, u32);

/// The times of a file that has records.
struct Times {
    /// Those that the file had before.
    mtime: Stamp,
    ctime: Stamp,
    /// The time of the last record with bytes.
    written: Stamp,
    /// The mtime that a client has set since.
    set: Option<Stamp>,
    /// Whether the file lacked bytes.
    lacked: bool,
}

impl Times {
    fn of(fd: &OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MTIME | StatxFlags::CTIME)?;
        let stamp = |time: rustix::fs::StatxTimestamp| (time.tv_sec, time.tv_nsec);
        let (mtime, ctime) = (stamp(stat.stx_mtime), stamp(stat.stx_ctime));
        Ok(Self { mtime, ctime, written: Stamp::default(), set: None, lacked: false })
    }

    /// The mtime that the file gets; `None`: it keeps its own. `redone`: changes of names and
    /// attributes were made again, so that ctimes show nothing.
    fn mtime(&self, redone: bool) -> Option<Stamp> {
        let changed_since = !redone && self.ctime >= self.written;
        if !self.lacked && (changed_since || self.mtime >= self.written) {
            return None;
        }
        Some(self.set.unwrap_or(self.written.max(self.mtime)))
    }
}

/// A file that refuses bytes.
struct Refused {
    why: i32,
    file: File,
    kept: File,
    kept_at: PathBuf,
    /// Offset and length of the refused bytes.
    ranges: Vec<(u64, u64)>,
}

impl<'a> Replay<'a> {
    /// Refused bytes are kept in `kept_in`. Without it they are an error.
    pub fn new(sealer: &'a Sealer, top: BorrowedFd<'a>, kept_in: Option<&'a Path>) -> Self {
        let (open, times, refused) = Default::default();
        Self { sealer, top, kept_in, open, times, refused }
    }

    /// Writes the bytes; `false` when the file is gone.
    pub fn write(&mut self, fh: &Fh, at: u64, mtime: (i64, u32), data: Bytes) -> io::Result<bool> {
        if self.open.len() >= OPEN_MAX && !self.open.contains_key(fh) {
            self.open.clear();
        }
        if !self.open.contains_key(fh) && !self.refused.contains_key(fh) {
            match self.open(fh, libc::O_RDWR) {
                Ok(fd) => drop(self.open.insert(fh.clone(), fd)),
                Err(e) => drop(self.refused.insert(fh.clone(), self.refuse(fh, e)?)),
            }
        }
        if let Some(refused) = self.refused.get_mut(fh) {
            refused.kept.write_all_at(&data, at)?;
            refused.ranges.push((at, data.len() as u64));
            return Ok(true);
        }
        let Some(Some(fd)) = self.open.get(fh) else { return Ok(false) };
        let times = match self.times.entry(fh.clone()) {
            Entry::Occupied(times) => times.into_mut(),
            Entry::Vacant(first) => first.insert(Times::of(fd)?),
        };
        (times.written, times.set) = (mtime, None);
        if has(fd, at, &data)? {
            return Ok(true);
        }
        times.lacked = true;
        let len = data.len() as u64;
        let wrote = sys::write(fd.as_fd(), &data.into(), at).map_err(plain)?;
        if wrote != len {
            return Err(io::Error::new(
                ErrorKind::StorageFull,
                "no space to apply it; free some and start again",
            ));
        }
        Ok(true)
    }

    /// Notes a change of attributes: the last change of a file's mtime is the one that counts.
    pub fn note(&mut self, change: &Change) {
        if let Change::Attrs { fh, set } = change
            && let Some(mtime) = set.mtime
            && let Some(times) = self.times.get_mut(fh)
        {
            times.set = Some((mtime.secs, mtime.nanos));
        }
    }

    fn open(&self, fh: &Fh, access: i32) -> io::Result<Option<OwnedFd>> {
        let handle = self.sealer.open(fh).map_err(|_| {
            io::Error::new(
                ErrorKind::InvalidData,
                "its filehandles were made with another secret (handle-key)",
            )
        })?;
        match sys::open_by_handle(self.top, &handle, access | libc::O_NOFOLLOW | libc::O_NONBLOCK) {
            Ok(fd) => Ok(Some(fd)),
            Err(e) if matches!(e.errno, libc::ESTALE | libc::ENOENT) => Ok(None),
            Err(e) => Err(plain(e)),
        }
    }

    /// A file that `e` keeps from being opened for writing, with a new file for its bytes.
    fn refuse(&self, fh: &Fh, e: io::Error) -> io::Result<Refused> {
        let why = e.raw_os_error().filter(|e| matches!(*e, libc::EPERM | libc::EACCES | libc::ETXTBSY));
        let (Some(why), Some(dir)) = (why, self.kept_in) else { return Err(e) };
        let Some(fd) = self.open(fh, libc::O_RDONLY)? else { return Err(e) };
        let ino = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?.stx_ino;
        // Bytes kept at an earlier start are not overwritten.
        for n in 0..1000 {
            let kept_at = dir.join(format!("{KEPT_FILE}-{ino}-{n}"));
            match File::options().read(true).write(true).create_new(true).mode(0o600).open(&kept_at) {
                Ok(kept) => return Ok(Refused { why, file: fd.into(), kept, kept_at, ranges: Vec::new() }),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(e)
    }

    /// Sets the answered times, and keeps or drops the refused bytes. `redone`: changes of names
    /// and attributes were made again.
    pub fn finish(&mut self, redone: bool) -> io::Result<()> {
        for (fh, times) in std::mem::take(&mut self.times) {
            let Some((secs, nanos)) = times.mtime(redone) else { continue };
            let Some(fd) = self.open(&fh, libc::O_RDWR)? else { continue };
            let last_modification = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
            let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let times = Timestamps { last_access, last_modification };
            rustix::fs::utimensat(&fd, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        let Some(dir) = self.kept_in.filter(|_| !self.refused.is_empty()) else { return Ok(()) };
        for refused in std::mem::take(&mut self.refused).into_values() {
            refused.finish()?;
        }
        File::open(dir)?.sync_all()
    }
}

/// Whether the file has the bytes at this place.
fn has(fd: &OwnedFd, at: u64, data: &[u8]) -> io::Result<bool> {
    let mut there = [0; 8 << 10];
    for (n, part) in data.chunks(there.len()).enumerate() {
        let place = at + (n * there.len()) as u64;
        let mut got = 0;
        while got < part.len() {
            match rustix::io::pread(fd, &mut there[got..part.len()], place + got as u64) {
                Ok(0) => return Ok(false),
                Ok(count) => got += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if there[..part.len()] != *part {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Refused {
    fn finish(&self) -> io::Result<()> {
        if self.has_all()? {
            return std::fs::remove_file(&self.kept_at);
        }
        self.kept.sync_all()?;
        let name =
            std::fs::read_link(format!("/proc/self/fd/{}", rustix::fd::AsRawFd::as_raw_fd(&self.file)));
        tracing::error!(
            "journal: {} refuses writes ({}); acknowledged bytes that it lacks are kept in {}, each at its offset",
            name.unwrap_or_default().display(),
            io::Error::from_raw_os_error(self.why),
            self.kept_at.display()
        );
        Ok(())
    }

    /// Whether the file has the refused bytes already.
    fn has_all(&self) -> io::Result<bool> {
        let (mut there, mut wanted) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        for &(at, len) in &self.ranges {
            let mut here = at;
            while here < at + len {
                let count = PIECE_BYTES.min((at + len - here) as usize);
                self.kept.read_exact_at(&mut wanted[..count], here)?;
                match self.file.read_exact_at(&mut there[..count], here) {
                    Ok(()) if there[..count] == wanted[..count] => here += count as u64,
                    Ok(()) => return Ok(false),
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(true)
    }
}
