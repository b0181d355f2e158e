//! The start of a journal: its records are applied to the directory, then the log begins.
//!
//! A journal belongs to one state directory, and to one export of a file system. A journal of
//! another server is refused while it holds records.

use super::super::handle::Sealer;
use super::super::{Inner, LocalOptions};
use super::answered::Calls;
use super::checkpoint::CheckpointFiles;
use super::names::{self, Look, Names, Redo};
use super::readback::Readback;
use super::replay::{self, Replay};
use super::state_files::{IN_USE_FILE, MARK_FILE, OF_ANOTHER, OURS_FILE, is_ours, keep, marked};
use super::stock::Stock;
use super::{
    JournalOptions, JournalTarget, Journaled, Mode, Record, host_id, nothing_left, parse, write_again,
};
use crate::journal::{Found, Goal, OpenError, Owner, RealDevice, SIZE_MIN_BYTES};
use hither_vfs::{Env, Error, Fh, Result};
use parking_lot::Mutex;
use rustix::fd::BorrowedFd;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};

impl Journaled {
    /// Opens the journal and applies its records to the directory.
    pub fn open(
        options: &LocalOptions,
        journal: &JournalOptions,
        target: &JournalTarget<'_>,
        sealer: &Sealer,
        env: &Env,
    ) -> Result<Self> {
        let JournalTarget { top, fs_id, ordered } = *target;
        let fail = |e: io::Error| {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            Error::because(errno, format!("journal {}: {e}", journal.path.display()))
        };
        let state_dir = options.state_dir.clone();
        if !journal.discard {
            nothing_left(state_dir.as_deref(), Some(&journal.path))?;
        }
        let owner = Owner { host: host_id(), fs: fs_part(fs_id, options.export_id) };
        let file = JournalFile::open(journal, state_dir.as_deref(), owner, env).map_err(fail)?;
        let found = file.find_own().map_err(fail)?;
        let epoch = found.epoch();
        let parent = journal.path.parent().map(Path::to_path_buf);
        let places: Vec<PathBuf> = state_dir.iter().cloned().chain(parent).collect();
        let (names, _redone) =
            apply_all(&found, sealer, top, (&places, ordered), state_dir.as_deref()).map_err(fail)?;
        let names = names.map(Arc::new);
        if ordered.is_some() && names.is_none() {
            tracing::info!(
                "neither the state directory nor the journal is on the served file system: only bytes go through the journal"
            );
        }
        let checkpoint = Arc::new(CheckpointFiles::new(top, names.is_none())?);
        let calls = Arc::new(Calls::of(&found, state_dir.as_deref(), &Look { sealer, top }).map_err(fail)?);
        let inner = Arc::default();
        let settler = Settler {
            checkpoint: checkpoint.clone(),
            names: names.clone(),
            calls: calls.clone(),
            inner: Arc::clone(&inner),
        };
        let settle = Arc::new(move |goal| settler.settle(goal));
        let log = Arc::new(found.start(|_, _| Ok(()), settle).map_err(fail)?);
        checkpoint.begin(&log);
        // After the start of the log no record refers to an object in the stock directory.
        let stock = match (&names, ordered) {
            (Some(names), Some(dev)) => Stock::open(&places, dev, (top, sealer), names, &checkpoint),
            _ => None,
        };
        if let Some(dir) = &state_dir {
            note_use(dir, &journal.path, epoch).map_err(fail)?;
        }
        Ok(Self {
            record_max: log.record_max() as u64,
            checkpoint,
            calls,
            names,
            stock,
            #[cfg(test)]
            redone: _redone,
            settled: log.settled(),
            log,
            epoch,
            #[cfg(test)]
            owner,
            state_dir,
            mode: Mutex::new(Mode::Journal),
            is_void: AtomicBool::new(false),
            readback: Readback::default(),
            inner,
        })
    }
}

/// The file or device of a journal.
struct JournalFile<'a> {
    journal: &'a JournalOptions,
    state_dir: Option<&'a Path>,
    device: Arc<RealDevice>,
    owner: Owner,
    env: &'a Env,
}

impl<'a> JournalFile<'a> {
    fn open(
        journal: &'a JournalOptions,
        state_dir: Option<&'a Path>,
        owner: Owner,
        env: &'a Env,
    ) -> io::Result<Self> {
        let size = journal.size_bytes.max(SIZE_MIN_BYTES);
        let device = Arc::new(RealDevice::open(&journal.path, Some(size))?);
        Ok(Self { journal, state_dir, device, owner, env })
    }

    /// An empty journal in the place of the present contents.
    fn format(&self) -> io::Result<Found> {
        Found::format(self.device.clone(), self.owner, (self.env.random)())
    }

    /// The journal of the state directory, after checks for damage. A void or foreign journal
    /// without records is formatted again.
    fn find_own(&self) -> io::Result<Found> {
        let found = self.find()?;
        let void = marked(self.state_dir, MARK_FILE)? == Some(found.epoch());
        if !void {
            replay::refuse_damage(&found)?;
        }
        let ours = self.journal.discard || void || is_ours(self.state_dir, self.journal, &found)?;
        if !ours && !found.is_empty()? {
            return Err(invalid(OF_ANOTHER.into()));
        }
        // An empty journal of another state directory is formatted again. Otherwise the calls that
        // it remembers would count as calls of this server.
        if void || !ours { self.format() } else { Ok(found) }
    }

    /// The journal in the file. A blank file gets an empty journal.
    fn find(&self) -> io::Result<Found> {
        match Found::open(self.device.clone(), Some(self.owner)) {
            _ if self.journal.discard => self.format(),
            Ok(found) => Ok(found),
            Err(OpenError::None) if self.device.is_blank()? => {
                replay::refuse_blank(self.state_dir)?;
                self.format()
            }
            Err(OpenError::Io(e)) => Err(e),
            Err(e @ OpenError::Version) => {
                Err(invalid(format!("it is {e}; start that version, or name another journal")))
            }
            Err(e @ (OpenError::None | OpenError::Foreign)) => Err(invalid(format!(
                "it is {e}; discard it (--journal-discard) if its records are of no use, else name another journal"
            ))),
        }
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Notes in the state directory which journal belongs to it and is in use.
fn note_use(state_dir: &Path, journal: &Path, epoch: u64) -> io::Result<()> {
    let path = std::fs::canonicalize(journal)?;
    keep(state_dir, OURS_FILE, &epoch.to_le_bytes())?;
    keep(state_dir, IN_USE_FILE, path.as_os_str().as_bytes())
}

/// The parts of a journal that make the changes of its records stable.
struct Settler {
    checkpoint: Arc<CheckpointFiles>,
    names: Option<Arc<Names>>,
    calls: Arc<Calls>,
    inner: Arc<OnceLock<Weak<Inner>>>,
}

impl Settler {
    /// Makes the changes of records stable in the file system. Returns the last such record.
    fn settle(&self, goal: Goal) -> io::Result<u64> {
        if self.checkpoint.sound().is_err() {
            write_again(&self.inner)?;
        }
        let done = self.checkpoint.settle(goal, self.names.is_some());
        let done =
            done.and_then(|settled| self.names.as_ref().map_or(Ok(()), |n| n.settle()).map(|()| settled));
        // An error reported by this sync is not reported again to the sync that follows a journal
        // failure.
        let settled = done.inspect_err(|_| self.checkpoint.note_failure())?;
        self.checkpoint.sound()?;
        self.calls.keep(settled).map(|()| settled)
    }
}

/// A summary of a journal, made before its records are applied.
#[derive(Default)]
struct Overview {
    /// By file, the last void record.
    void: HashMap<Fh, u64>,
    /// The number of the last change; 0: there is none.
    last_change: u64,
}

impl Overview {
    fn of(found: &Found) -> io::Result<Self> {
        let mut all = Self::default();
        found.read(|_, raw| {
            match parse(raw)?.1 {
                Record::Settled { fh, upto } => {
                    let most = all.void.entry(fh).or_default();
                    *most = upto.max(*most);
                }
                Record::Changed { number, .. } => all.last_change = number.max(all.last_change),
                Record::Write { .. } | Record::Done { .. } => {}
            }
            Ok(())
        })?;
        Ok(all)
    }
}

/// Handle, offset and length of all writes that a start would apply.
#[cfg(test)]
pub(in crate::local) fn live_writes(found: &Found) -> io::Result<Vec<(Fh, u64, usize)>> {
    let (void, mut out) = (Overview::of(found)?.void, Vec::new());
    found.read(|seq, raw| {
        if let Record::Write { fh, at, data, .. } = parse(raw)?.1
            && void.get(&fh).is_none_or(|&upto| seq > upto)
        {
            out.push((fh, at, data.len()));
        }
        Ok(())
    })?;
    Ok(out)
}

/// Applies all records that are not void. Returns the state for later changes of names, where those
/// have records. Also returns the counts of changes that were made again and that could not be
/// made.
fn apply_all(
    found: &Found,
    sealer: &Sealer,
    top: BorrowedFd<'_>,
    (places, ordered): (&[PathBuf], Option<u64>),
    kept_in: Option<&Path>,
) -> io::Result<(Option<Names>, (u64, u64, u64))> {
    let Overview { void, last_change } = Overview::of(found)?;
    let mark = match ordered {
        Some(dev) => Names::find(places, dev, found.epoch())?,
        None => None,
    };
    let (mark, kept) = match (names::checked(mark, last_change)?, ordered) {
        (Some((mark, kept)), _) => (Some(mark), kept),
        (None, Some(dev)) => (Names::make(places, dev, found.epoch())?, 0),
        (None, None) => (None, 0),
    };
    let names = mark.map(|mark| Names::new(mark, kept.max(last_change) + 1));
    let mut redo =
        names.as_ref().map(|names| Redo { look: Look { sealer, top }, names, kept, count: (0, 0, 0) });
    let mut files = Replay::new(sealer, top, kept_in);
    let (mut applied, mut gone) = (0_u64, 0_u64);
    found.read(|seq, raw| {
        match parse(raw)?.1 {
            Record::Write { fh, .. } if void.get(&fh).is_some_and(|&upto| seq <= upto) => {}
            Record::Write { fh, at, mtime, data } => {
                if files.write(&fh, at, mtime, data)? {
                    applied += 1;
                } else {
                    gone += 1;
                }
            }
            Record::Changed { number, change } => {
                files.note(&change);
                if let Some(redo) = &mut redo {
                    redo.again(number, &change)?;
                }
            }
            Record::Settled { .. } | Record::Done { .. } => {}
        }
        Ok(())
    })?;
    let count = redo.map_or((0, 0, 0), |redo| redo.count);
    files.finish(count.0 > 0)?;
    let (redone, missed, _) = count;
    if applied + gone + redone + missed > 0 {
        tracing::info!(
            "journal: {applied} writes applied again, {gone} to files that were removed since; {redone} changes of names and \
             attributes made again, {missed} that cannot be made again"
        );
    }
    if names.is_some() {
        // Changes of the previous run without records must not be lost while later changes build on
        // them.
        rustix::fs::syncfs(top)?;
    }
    Ok((names, count))
}

/// File system and export in one number.
fn fs_part(fs_id: &[u8; 16], export_id: u64) -> [u8; 16] {
    (u128::from_be_bytes(*fs_id) ^ u128::from(export_id)).to_be_bytes()
}
