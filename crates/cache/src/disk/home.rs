//! The cache directory: whose it is, and that only one daemon at a time uses a part of it.
//!
//! `DIR/hither-cache` marks it as ours. Each identity (a server and what of it is mounted) has a
//! part of its own, `DIR/HASH/`, and a file `DIR/HASH.lock` that whoever uses the part holds locked
//! (flock), and in which he says how much it takes. `DIR/HASH/format` says version and identity; a
//! part that says something else is renamed to `DIR/HASH.aside-N` and a new one begun. A directory
//! with other things in it is left alone.

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

/// In the cache directory.
const MARK: &str = "hither-cache";
/// In each part.
const FORMAT: &str = "format";
/// In each part: files that the cleaner leaves alone, a line each.
const PINS: &str = "pins";

/// What a file is called until all of it is on the disk.
const NEW: &str = "new";
/// Directories whose files are counted for all.
const SUBS_COUNTED: usize = 4;

/// Why a directory cannot be the cache.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DiskError(String);

impl DiskError {
    pub(super) fn unusable(dir: &Path, e: &io::Error) -> Self {
        Self(format!("cache directory {}: {e}", dir.display()))
    }
}

/// A part of the cache directory, ours while this lives.
#[derive(Debug)]
pub(super) struct Home {
    pub dir: PathBuf,
    /// Its lock file, locked; it says how much the part takes (`total`).
    pub lock: Arc<File>,
    pub lock_path: PathBuf,
}

/// Whether a part is there for those to clean who do not use it.
pub(super) enum Unused {
    /// Yes, and taken for that.
    Yes(Home),
    /// Somebody else is at it.
    Cleaned,
    /// No: it is in use, or none of this version.
    No,
}

impl Home {
    /// Takes the part of an identity; `None` when somebody else has it.
    pub fn open(dir: &Path, identity: &[u8], env: &Env) -> Result<Option<Self>, DiskError> {
        let unusable = |e: io::Error| DiskError::unusable(dir, &e);
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
            // Somebody has cleaned it.
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

    /// Takes the part that a lock file is of, if nobody has it and it is one of this version.
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
            // Somebody has removed it by hand; its lock file may be in use by then, and stays.
            let _ = total::announce(&lock, 0, false);
        }
        let identity = std::fs::read(part.join(FORMAT)).ok().and_then(|text| identity_of(&text));
        match identity.is_some_and(|identity| part == dir.join(hash_of(&identity))) {
            true => Unused::Yes(Self { dir: part, lock: Arc::new(lock), lock_path }),
            false => Unused::No,
        }
    }

    /// Whether the part of an identity is taken by somebody who only cleans it.
    pub fn is_being_cleaned(dir: &Path, identity: &[u8]) -> bool {
        let lock = File::open(dir.join(format!("{}.lock", hash_of(identity))));
        lock.ok().and_then(|lock| total::said(&lock)).is_some_and(|(_, cleaning)| cleaning)
    }
}

impl Home {
    /// About how many files there are: keys are hashes, so that one directory is like the others.
    pub fn file_count(&self) -> u64 {
        let count = |dir: &Path| std::fs::read_dir(dir).map_or(0, |all| all.count() as u64);
        let subs = std::fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|sub| sub.path());
        let subs: Vec<_> = subs.filter(|sub| sub.is_dir()).collect();
        let tried: u64 = subs.iter().take(SUBS_COUNTED).map(|sub| count(sub)).sum();
        tried * subs.len() as u64 / subs.len().clamp(1, SUBS_COUNTED) as u64
    }
}

/// Makes the directory, or checks that it is ours alone.
fn private(dir: &Path) -> Result<(), DiskError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| DiskError::unusable(dir, &e))?;
    let meta = std::fs::symlink_metadata(dir).map_err(|e| DiskError::unusable(dir, &e))?;
    let shown = dir.display();
    if !meta.is_dir() {
        return Err(DiskError(format!("cache directory {shown}: is no directory; give another one")));
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        return Err(DiskError(format!(
            "cache directory {shown}: belongs to uid {}; give another one",
            meta.uid()
        )));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(DiskError(format!("cache directory {shown}: others may use it; chmod 700 {shown}")));
    }
    Ok(())
}

fn mark(dir: &Path) -> Result<(), DiskError> {
    let unusable = |e: io::Error| DiskError::unusable(dir, &e);
    if dir.join(MARK).exists() {
        return Ok(());
    }
    let mut others = std::fs::read_dir(dir).map_err(unusable)?;
    // The mark itself, when the power failed before it had its name.
    let begun = Path::new(MARK).with_extension(NEW);
    // Journals of delayed writes are beside caches, and may be there first.
    let ours =
        |name: &std::ffi::OsStr| name == "lost+found" || name == "journal" || name == begun.as_os_str();
    if others.any(|e| e.is_ok_and(|e| !ours(&e.file_name()))) {
        let shown = dir.display();
        return Err(DiskError(format!(
            "cache directory {shown}: holds other files; give an empty directory"
        )));
    }
    write_whole(&dir.join(MARK), b"a disk cache of hither\n").map_err(unusable)
}

/// The identities that have a part in a cache directory.
pub(super) fn identities(dir: &Path) -> Result<Vec<Vec<u8>>, DiskError> {
    let unusable = |e: io::Error| DiskError::unusable(dir, &e);
    if !dir.join(MARK).exists() {
        return Err(DiskError(format!("cache directory {}: there is no disk cache in it", dir.display())));
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
    // It is made first of all, so a part that has nothing else was begun when the power failed.
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

/// All of it or nothing, on stable storage.
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

/// Files that are pinned in a part; what is not understood is left out.
pub(super) fn read_pins(part: &Path) -> Vec<Key> {
    let text = std::fs::read_to_string(part.join(PINS)).unwrap_or_default();
    let hex = |s: &str| u64::from_str_radix(s, 16).ok();
    text.lines().filter_map(|line| Some(Key(hex(line.get(..16)?)?, hex(line.get(16..)?)?))).collect()
}

/// Notes which files are pinned.
pub(super) fn write_pins(part: &Path, pins: &[Key]) -> io::Result<()> {
    let text: String = pins.iter().map(|key| format!("{:016x}{:016x}\n", key.0, key.1)).collect();
    write_whole(&part.join(PINS), text.as_bytes())
}
