//! The cache directory: its owner, and the lock that lets only one daemon at a time use a part of
//! it.
//!
//! `DIR/hither-cache` marks a cache directory. Each identity (a server and the mounted export) has
//! a part, `DIR/HASH/`, and a lock file, `DIR/HASH.lock`. The daemon that uses the part holds the
//! lock (flock), and announces its size in that file. `DIR/HASH/format` has the version and the
//! identity. A part with another content there is renamed to `DIR/HASH.aside-N`, and a new one is
//! begun. A directory with other files is left alone.

use super::format::Key;
use super::total;
use hither_vfs::Env;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use twox_hash::XxHash3_64;

/// Mark of a cache directory.
const MARK: &str = "hither-cache";
/// Format file of a part.
const FORMAT: &str = "format";
/// Pin file of a part: files that the cleaner does not evict, one per line.
const PINS: &str = "pins";

/// Extension of a file until all of it is on the disk.
const NEW: &str = "new";
/// Number of subdirectories whose files are counted as a sample.
const SUBS_COUNTED: usize = 4;

/// Why a directory cannot be used as the cache.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DataCacheError(String);

impl DataCacheError {
    pub(super) fn unusable(dir: &Path, e: &io::Error) -> Self {
        Self(format!("cache directory {}: {e}", dir.display()))
    }
}

/// A part of the cache directory, locked by this daemon while this value lives.
#[derive(Debug)]
pub(super) struct Home {
    pub dir: PathBuf,
    /// The locked lock file; it holds the announced size of the part (`total`).
    pub lock: Arc<File>,
    pub lock_path: PathBuf,
}

/// Whether a part can be cleaned by a daemon that does not use it.
pub(super) enum Unused {
    /// Yes; the part is locked.
    Yes(Home),
    /// Another daemon is cleaning the part.
    Cleaned,
    /// No: the part is in use, or not of this version.
    No,
}

impl Home {
    /// Locks the part of an identity; `None` when another process has it.
    pub fn open(dir: &Path, identity: &[u8], env: &Env) -> Result<Option<Self>, DataCacheError> {
        let unusable = |e: io::Error| DataCacheError::unusable(dir, &e);
        private(dir)?;
        mark(dir)?;
        let hash = hash_of(identity);
        let lock_path = dir.join(format!("{hash}.lock"));
        let mut how = File::options();
        let lock =
            how.create(true).truncate(false).read(true).write(true).open(&lock_path).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(e)) => return Err(unusable(e)),
        }
        if let Some((bytes, true)) = total::said(&lock) {
            // A cleaner left its flag.
            let _ = total::announce(&lock, bytes, false);
        }
        let part = dir.join(&hash);
        let format = format_text(identity);
        match state_of(&part, &format).map_err(unusable)? {
            State::Ours => {}
            State::Empty => begin(&part, &format).map_err(unusable)?,
            State::Strange => {
                let aside = dir.join(format!("{hash}.aside-{:016x}", (env.random)()));
                std::fs::rename(&part, &aside).map_err(unusable)?;
                tracing::warn!(
                    "disk cache: {} is damaged or of another version; set aside as {} (remove it when you do not need it)",
                    part.display(),
                    aside.display()
                );
                begin(&part, &format).map_err(unusable)?;
            }
        }
        Ok(Some(Self { dir: part, lock: Arc::new(lock), lock_path }))
    }

    /// Locks the part of a lock file, if no process has it and it is of this version.
    pub fn unused(dir: &Path, lock_name: &OsStr) -> Unused {
        let lock_path = dir.join(lock_name);
        let Ok(lock) = File::options().read(true).write(true).open(&lock_path) else { return Unused::No };
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return match total::said(&lock) {
                    Some((_, true)) => Unused::Cleaned,
                    _ => Unused::No,
                };
            }
            Err(std::fs::TryLockError::Error(_)) => return Unused::No,
        }
        let part = lock_path.with_extension("");
        if !part.exists() {
            // A user has removed the part. The lock file stays, because a process may be opening
            // it.
            let _ = total::announce(&lock, 0, false);
        }
        let identity = std::fs::read(part.join(FORMAT)).ok().and_then(|text| identity_of(&text));
        if identity.is_some_and(|identity| part == dir.join(hash_of(&identity))) {
            Unused::Yes(Self { dir: part, lock: Arc::new(lock), lock_path })
        } else {
            Unused::No
        }
    }

    /// Whether a process that only cleans has locked the part of an identity.
    pub fn is_being_cleaned(dir: &Path, identity: &[u8]) -> bool {
        let lock = File::open(dir.join(format!("{}.lock", hash_of(identity))));
        lock.ok().and_then(|lock| total::said(&lock)).is_some_and(|(_, cleaning)| cleaning)
    }
}

impl Home {
    /// Approximate number of files. Keys are hashes, so subdirectories have about the same number
    /// of files.
    pub fn file_count(&self) -> u64 {
        let count = |dir: &Path| std::fs::read_dir(dir).map_or(0, |all| all.count() as u64);
        let subs = std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|sub| sub.path());
        let subs: Vec<_> = subs.filter(|sub| sub.is_dir()).collect();
        let tried: u64 = subs.iter().take(SUBS_COUNTED).map(|sub| count(sub)).sum();
        tried * subs.len() as u64 / subs.len().clamp(1, SUBS_COUNTED) as u64
    }
}

/// Creates the directory, or checks that only this user has access.
fn private(dir: &Path) -> Result<(), DataCacheError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| DataCacheError::unusable(dir, &e))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| DataCacheError::unusable(dir, &e))?;
    let shown = dir.display();
    if !meta.is_dir() {
        return Err(DataCacheError(format!("cache directory {shown}: is not a directory; give another one")));
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        return Err(DataCacheError(format!(
            "cache directory {shown}: belongs to uid {}; give another one",
            meta.uid()
        )));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(DataCacheError(format!(
            "cache directory {shown}: others have access; chmod 700 {shown}"
        )));
    }
    Ok(())
}

fn mark(dir: &Path) -> Result<(), DataCacheError> {
    let unusable = |e: io::Error| DataCacheError::unusable(dir, &e);
    if dir.join(MARK).exists() {
        return Ok(());
    }
    let mut others = std::fs::read_dir(dir).map_err(unusable)?;
    // The unfinished mark of an attempt that a power cut ended.
    let begun = Path::new(MARK).with_extension(NEW);
    // Journals of delayed writes lie beside caches, and may exist first.
    let ours =
        |name: &std::ffi::OsStr| name == "lost+found" || name == "journal" || name == begun.as_os_str();
    if others.any(|e| e.is_ok_and(|e| !ours(&e.file_name()))) {
        let shown = dir.display();
        return Err(DataCacheError(format!(
            "cache directory {shown}: holds other files; give an empty directory"
        )));
    }
    write_whole(&dir.join(MARK), b"a disk cache of hither\n").map_err(unusable)
}

/// The identities that have a part in a cache directory.
pub(super) fn identities(dir: &Path) -> Result<Vec<Vec<u8>>, DataCacheError> {
    let unusable = |e: io::Error| DataCacheError::unusable(dir, &e);
    if !dir.join(MARK).exists() {
        return Err(DataCacheError(format!("cache directory {}: it contains no disk cache", dir.display())));
    }
    let mut out = Vec::new();
    for part in std::fs::read_dir(dir).map_err(unusable)? {
        let part = part.map_err(unusable)?.path();
        let Ok(text) = std::fs::read(part.join(FORMAT)) else { continue };
        let identity = identity_of(&text).filter(|identity| part == dir.join(hash_of(identity)));
        out.extend(identity);
    }
    out.sort();
    Ok(out)
}

fn hash_of(identity: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(identity))
}

fn identity_of(text: &[u8]) -> Option<Vec<u8>> {
    let hex = text.rsplit(|b| *b == b' ').next()?.strip_suffix(b"\n")?;
    let pairs = hex.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    let identity: Vec<u8> = pairs.collect::<Option<_>>()?;
    (format_text(&identity) == text).then_some(identity)
}

enum State {
    Ours,
    Empty,
    Strange,
}

fn format_text(identity: &[u8]) -> Vec<u8> {
    let mut text = b"hither disk cache, version 1\nidentity ".to_vec();
    identity.iter().for_each(|b| text.extend(format!("{b:02x}").bytes()));
    text.push(b'\n');
    text
}

fn state_of(part: &Path, format: &[u8]) -> io::Result<State> {
    match std::fs::read(part.join(FORMAT)) {
        Ok(text) if text == format => return Ok(State::Ours),
        Ok(_) => return Ok(State::Strange),
        Err(e) if e.kind() != ErrorKind::NotFound && e.kind() != ErrorKind::NotADirectory => {
            return Ok(State::Strange);
        }
        Err(_) => {}
    }
    // The format file is created first: a part without other files was begun when the power failed.
    let begun = Path::new(FORMAT).with_extension(NEW);
    match std::fs::read_dir(part) {
        Ok(mut all) => {
            let only_begun = all.all(|e| e.is_ok_and(|e| e.file_name() == begun.as_os_str()));
            Ok(if only_begun { State::Empty } else { State::Strange })
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(State::Empty),
        Err(e) if e.kind() == ErrorKind::NotADirectory => Ok(State::Strange),
        Err(e) => Err(e),
    }
}

fn begin(part: &Path, format: &[u8]) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(part) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    write_whole(&part.join(FORMAT), format)
}

/// Writes all bytes or none to stable storage.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(NEW);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

/// Bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The pinned files of a part; invalid lines are left out.
pub(super) fn read_pins(part: &Path) -> Vec<Key> {
    let text = std::fs::read_to_string(part.join(PINS)).unwrap_or_default();
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    text.lines().filter_map(|line| Some(Key(hex(line.get(..16)?)?, hex(line.get(16..)?)?))).collect()
}

/// Writes the pinned files of a part.
pub(super) fn write_pins(part: &Path, pins: &[Key]) -> io::Result<()> {
    let text: String = pins.iter().map(|key| format!("{:016x}{:016x}\n", key.0, key.1)).collect();
    write_whole(&part.join(PINS), text.as_bytes())
}
