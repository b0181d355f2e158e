//! Examines and settles a journal for its operator.

use super::state_files::{IN_USE_FILE, MARK_FILE, OURS_FILE, keep, marked};
use super::{Journaled, Record, answered, host_id};
use crate::journal::{Found, OpenError, RealDevice, Survey};
use hither_vfs::{Error, Result};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// A journal that no server uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalInspection {
    /// The number of the journal.
    pub epoch: u64,
    /// Bytes of the journal, with its headers.
    pub size_bytes: u64,
    /// Bytes that records take.
    pub used_bytes: u64,
    /// Records that no checkpoint has settled.
    pub records: u64,
    /// The modification time that the latest write gave its file, in seconds since 1970.
    pub latest_write_s: Option<i64>,
    /// Whether a server on this machine began the journal.
    pub is_of_this_machine: bool,
    /// Whether the journal belongs to the given state directory. `None`: no directory was given.
    pub is_of_state_dir: Option<bool>,
    /// Whether the given state directory declares all records void.
    pub is_void: bool,
    /// Each fault, in a line.
    pub faults: Vec<String>,
}

/// Reads all records of the journal at `path` with their checksums. Changes nothing.
///
/// # Errors
/// The path holds no journal, a running server uses it, or the device cannot be read: `EIO`, or the
/// errno of the device.
pub fn inspect_journal(path: &Path, state_dir: Option<&Path>) -> Result<JournalInspection> {
    let fail = |e: io::Error| {
        Error::because(e.raw_os_error().unwrap_or(libc::EIO), format!("journal {}: {e}", path.display()))
    };
    let device = Arc::new(RealDevice::open_to_read(path).map_err(fail)?);
    inspect(&found(device).map_err(fail)?, state_dir).map_err(fail)
}

fn found(device: Arc<RealDevice>) -> io::Result<Found> {
    Found::open(device, None).map_err(|e| match e {
        OpenError::Io(e) => e,
        other => io::Error::other(format!("it is {other}")),
    })
}

fn inspect(found: &Found, state_dir: Option<&Path>) -> io::Result<JournalInspection> {
    let (mut latest_write_s, mut unknown) = (None, Vec::new());
    let survey = found.survey(|seq, record| {
        match answered::split(record).and_then(|(_, record)| Record::parse(record)) {
            Some(Record::Write { mtime, .. }) => latest_write_s = latest_write_s.max(Some(mtime.0)),
            Some(_) => {}
            None => unknown.push(format!("record {seq} cannot be parsed")),
        }
        Ok(())
    });
    let Survey { owner, epoch, size_bytes, used_bytes, records, damage } = survey?;
    let ours = marked(state_dir, OURS_FILE)?;
    let mut faults: Vec<String> = damage.iter().map(ToString::to_string).collect();
    faults.append(&mut unknown);
    Ok(JournalInspection {
        epoch,
        size_bytes,
        used_bytes: if records == 0 { 0 } else { used_bytes },
        records,
        latest_write_s,
        is_of_this_machine: owner.host == host_id(),
        is_of_state_dir: state_dir.map(|_| ours == Some(epoch)),
        is_void: marked(state_dir, MARK_FILE)? == Some(epoch),
        faults,
    })
}

/// Takes over a journal that came with its state directory from another machine, or to another
/// path. The next start of the server applies its records. A journal of another state directory is
/// refused: only its own directory knows whether its records are void. A kill leaves the journal as
/// it was, or taken over; the call can be repeated.
///
/// # Errors
/// The path holds no sound journal of this state directory, or a server uses it.
pub fn adopt_journal(path: &Path, state_dir: &Path) -> Result<()> {
    let adopt = || -> io::Result<()> {
        let found = found(Arc::new(RealDevice::open(path, None)?))?;
        let inspection = inspect(&found, Some(state_dir))?;
        if inspection.is_of_state_dir != Some(true) {
            return Err(io::Error::other(
                "it belongs to another state directory, which must come along: name that one (--state-dir)",
            ));
        }
        if let Some(fault) = inspection.faults.first() {
            return Err(io::Error::other(format!("{fault}; it was left as it is")));
        }
        if !inspection.is_of_this_machine {
            found.move_to(host_id())?;
        }
        keep(state_dir, IN_USE_FILE, std::fs::canonicalize(path)?.as_os_str().as_bytes())
    };
    adopt().map_err(|e| {
        Error::because(e.raw_os_error().unwrap_or(libc::EIO), format!("journal {}: {e}", path.display()))
    })
}

impl Journaled {
    /// Settles all records of acknowledged calls in the file system below. Blocks.
    ///
    /// # Errors
    /// The disk below or the journal failed. The journal keeps its records.
    pub fn flush(&self) -> io::Result<()> {
        if !self.is_on() {
            return Err(io::Error::other("the journal has failed, and nothing is in it"));
        }
        self.log.checkpoint()
    }
}
