//! The small files of the state directory that say which journal belongs to it, and whether that
//! journal is in use or void.

use super::JournalOptions;
use crate::journal::Found;
use hither_vfs::{Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the mark in the state directory.
pub(super) const MARK_FILE: &str = "journal-void";
/// Name of the file in the state directory that names the journal in use.
pub(super) const IN_USE_FILE: &str = "journal-in-use";
/// Name of the file in the state directory with the epoch of the journal that belongs to it.
pub(super) const OURS_FILE: &str = "journal-epoch";

/// Writes a small file, durably. Only its owner may read it: it can hold filehandles. A file with
/// the same text stays, so that a server starts on a full disk.
pub(super) fn keep(dir: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    if std::fs::read(dir.join(name)).is_ok_and(|now| now == text) {
        return File::open(dir)?.sync_all();
    }
    let new = dir.join(format!("{name}.new"));
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&new, dir.join(name))?;
    File::open(dir)?.sync_all()
}

/// Removes such a file, durably.
pub(super) fn remove(dir: &Path, name: &str) -> io::Result<()> {
    match std::fs::remove_file(dir.join(name)) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => File::open(dir)?.sync_all(),
    }
}

/// The error for a journal with records of another state directory.
pub(super) const OF_ANOTHER: &str = "it holds writes that a server with another state directory acknowledged: start that server once more \
     (--state-dir) and end it in an orderly way, or give the writes up (--journal-discard)";

/// Fails when a journal other than `now` was in use and not closed. Its writes were acknowledged
/// and may be stored nowhere else. If it were applied later, it would overwrite newer data.
pub(in crate::local) fn nothing_left(state_dir: Option<&Path>, now: Option<&Path>) -> Result<()> {
    let Some(dir) = state_dir else { return Ok(()) };
    let was = match std::fs::read(dir.join(IN_USE_FILE)) {
        Ok(was) => PathBuf::from(OsString::from_vec(was)),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::because(libc::EIO, format!("{}: {e}", dir.display()))),
    };
    if now.is_some_and(|now| std::fs::canonicalize(now).is_ok_and(|now| now == was)) {
        return Ok(());
    }
    let was = was.display();
    Err(Error::because(
        libc::EBUSY,
        format!(
            "the journal {was} holds acknowledged writes: start the server with it (--journal {was}) once more and end the server \
             in an orderly way, or give the writes up (--journal-discard)"
        ),
    ))
}

/// Whether a journal belongs to this state directory, which keeps its epoch. For a state directory
/// of an earlier version, the path of the journal is compared.
pub(super) fn is_ours(state_dir: Option<&Path>, journal: &JournalOptions, found: &Found) -> io::Result<bool> {
    let Some(dir) = state_dir else { return Ok(true) };
    if let Some(ours) = marked(state_dir, OURS_FILE)? {
        return Ok(ours == found.epoch());
    }
    let Ok(was) = std::fs::read(dir.join(IN_USE_FILE)) else { return Ok(false) };
    Ok(std::fs::canonicalize(&journal.path).is_ok_and(|now| now == OsString::from_vec(was)))
}

/// Forgets the journal that was in use with this state directory. Its records are lost.
///
/// # Errors
/// Those of removing a file.
pub fn give_up_journal(state_dir: &Path) -> Result<()> {
    let failed = |e| Error::because(libc::EIO, format!("{}: {e}", state_dir.display()));
    remove(state_dir, IN_USE_FILE).map_err(failed)
}

/// The epoch of a journal in a file of the state directory: of a void journal, or of its own.
pub(super) fn marked(state_dir: Option<&Path>, name: &str) -> io::Result<Option<u64>> {
    let Some(dir) = state_dir else { return Ok(None) };
    let mut raw = Vec::new();
    match File::open(dir.join(name)) {
        Ok(file) => file.take(16).read_to_end(&mut raw)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let raw =
        raw.try_into().map_err(|_| io::Error::new(ErrorKind::InvalidData, format!("{name} is damaged")));
    raw.map(|raw| Some(u64::from_le_bytes(raw)))
}
