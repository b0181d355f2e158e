//! The cache directory: whose it is, and that only one daemon at a time uses a part of it.
//!
//! `DIR/hither-cache` marks it as ours. Each identity (a server and what of it is mounted) has a part of its own, `DIR/HASH/`,
//! and a file `DIR/HASH.lock` that whoever uses the part holds locked (flock). `DIR/HASH/format` says version and identity; a part
//! that says something else is renamed to `DIR/HASH.aside-N` and a new one begun. A directory with other things in it is left alone.

use super::format::Key;
use hither_vfs::Env;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// In the cache directory.
const MARK: &str = "hither-cache";
/// In each part.
const FORMAT: &str = "format";
/// In each part: files that the cleaner leaves alone, a line each.
const PINS: &str = "pins";

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
    _lock: File,
}

impl Home {
    /// Takes the part of an identity; `None` when somebody else has it.
    pub fn open(dir: &Path, identity: &[u8], env: &Env) -> Result<Option<Self>, DiskError> {
        let unusable = |e: io::Error| DiskError::unusable(dir, &e);
        private(dir)?;
        mark(dir)?;
        let hash = hash_of(identity);
        let lock = dir.join(format!("{hash}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(lock).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(e)) => return Err(unusable(e)),
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
        Ok(Some(Self { dir: part, _lock: lock }))
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
    if others.any(|e| e.is_ok_and(|e| e.file_name() != "lost+found")) {
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
    match std::fs::read_dir(part) {
        Ok(mut any) => Ok(if any.next().is_none() { State::Empty } else { State::Strange }),
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

/// All of it or nothing.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
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
