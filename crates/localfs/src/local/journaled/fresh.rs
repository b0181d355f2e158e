//! Calls whose changes were made and whose records are not durable yet, for a server that is killed
//! while the machine goes on.
//!
//! What a killed server had changed is in the kernel's memory, and so is what it wrote to a file
//! that is never synced: before a change what it will be ([`Fresh::begun`]), then that it was made
//! or failed. The next server takes the calls that were made for answered, without a record. Of one
//! that was begun only, a look at its names tells, unless others were begun at the same names. The
//! file is of one boot of the machine and one epoch of the journal: after a power cut, which takes
//! the changes with it, it says nothing.
//!
//! A change without a record is named when it was made only: between the two the server can be
//! killed as well.

use super::names::{Change, Look};
use super::{answered, keep};
use bytes::Bytes;
use hither_vfs::{Answered, Fh};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use twox_hash::XxHash3_64;

/// Name of the file.
pub(in crate::local) const FILE: &str = "journal-begun";
/// Bytes of an entry: two names, five handles, and the call's name.
pub(in crate::local) const ENTRY_BYTES: usize = 1024;
/// Entries: some for each call that can be under way.
pub(in crate::local) const ENTRIES: u64 = 4096;
/// Checksum, number, kind, length.
const HEAD_BYTES: usize = 8 + 8 + 1 + 2;

const BEGUN: u8 = 1;
const MADE: u8 = 2;
const FAILED: u8 = 3;

/// The file, open to be written.
pub(in crate::local) struct Fresh {
    file: File,
    /// Of the machine's boot and the journal's epoch.
    key: u64,
    next: Mutex<u64>,
}

/// What the file says of a call.
enum State {
    Begun(Change),
    Made(Fh),
    Failed,
}

impl Fresh {
    /// Opens the file, and says which calls were made; `boot` names this boot of the machine.
    /// `None`: there is no room for it.
    pub(in crate::local) fn open(
        dir: &Path,
        epoch: u64,
        boot: &[u8],
        look: &Look<'_>,
    ) -> io::Result<Option<(Self, Vec<Answered>)>> {
        let key = XxHash3_64::oneshot_with_seed(epoch, boot);
        let path = dir.join(FILE);
        let mut raw = match fs::read(&path) {
            Ok(raw) => raw,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        let size = ENTRIES as usize * ENTRY_BYTES;
        if raw.len() != size {
            raw = vec![0; size];
            match keep(dir, FILE, &raw) {
                Err(e) if matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                    tracing::warn!(
                        "{FILE}: {e}; what a killed server had made and not answered will not be known"
                    );
                    return Ok(None);
                }
                done => done?,
            }
        }
        let entries: BTreeMap<u64, (u8, &[u8])> =
            raw.chunks_exact(ENTRY_BYTES).filter_map(|entry| parse(entry, key)).collect();
        let mut states = HashMap::new();
        for (kind, body) in entries.values() {
            if let Some((call, state)) = state(*kind, body) {
                states.insert(call, state);
            }
        }
        let next = entries.last_key_value().map_or(0, |(number, _)| number + 1);
        let file = File::options().write(true).open(&path)?;
        let fresh = Self { file, key, next: Mutex::new(next) };
        let made = fresh.judge(states, look)?;
        Ok(Some((fresh, made)))
    }

    /// Which calls were made; says so of those of which it was not known.
    fn judge(&self, states: HashMap<Bytes, State>, look: &Look<'_>) -> io::Result<Vec<Answered>> {
        let mut names = HashMap::<(Fh, Bytes), u32>::new();
        for state in states.values() {
            let State::Begun(change) = state else { continue };
            change.names().into_iter().for_each(|name| *names.entry(name).or_default() += 1);
        }
        let alone = |change: &Change| change.names().iter().all(|name| names.get(name) == Some(&1));
        let mut made = Vec::new();
        for (call, state) in states {
            let fh = match state {
                State::Made(fh) => fh,
                State::Failed => continue,
                State::Begun(change) => {
                    match alone(&change) && look.was_made(&change).map_err(super::plain)? {
                        true => {
                            self.made(&call, change.object());
                            change.object().clone()
                        }
                        false => {
                            self.failed(&call);
                            continue;
                        }
                    }
                }
            };
            made.push(Answered { call, fh, bytes: 0 });
        }
        Ok(made)
    }

    /// A change is about to be made.
    pub fn begun(&self, call: &Bytes, change: &Change) {
        self.write(BEGUN, call, &change.encode(0));
    }

    /// It was made.
    pub fn made(&self, call: &Bytes, object: &Fh) {
        self.write(MADE, call, &object.0);
    }

    /// It was not made.
    pub fn failed(&self, call: &Bytes) {
        self.write(FAILED, call, &[]);
    }

    fn write(&self, kind: u8, call: &Bytes, rest: &[u8]) {
        let mut body = Vec::with_capacity(256);
        answered::put(&mut body, call);
        body.extend_from_slice(rest);
        if HEAD_BYTES + body.len() > ENTRY_BYTES {
            return;
        }
        let mut next = self.next.lock();
        let number = *next;
        *next += 1;
        let mut entry = vec![0; 8];
        entry.extend_from_slice(&number.to_le_bytes());
        entry.push(kind);
        entry.extend_from_slice(&(body.len() as u16).to_le_bytes());
        entry.extend_from_slice(&body);
        let sum = XxHash3_64::oneshot_with_seed(self.key, &entry[8..]);
        entry[..8].copy_from_slice(&sum.to_le_bytes());
        // It is a help: without it the call may be made again, as after a power cut.
        if let Err(e) = self.file.write_all_at(&entry, number % ENTRIES * ENTRY_BYTES as u64) {
            tracing::debug!("{FILE}: {e}");
        }
    }
}

/// This boot of the machine; `None`: it does not tell.
pub(super) fn boot() -> Option<Vec<u8>> {
    fs::read("/proc/sys/kernel/random/boot_id").ok().filter(|id| !id.is_empty())
}

fn parse(entry: &[u8], key: u64) -> Option<(u64, (u8, &[u8]))> {
    let (sum, rest) = entry.split_first_chunk::<8>()?;
    let (number, tail) = rest.split_first_chunk::<8>()?;
    let (&kind, tail) = tail.split_first()?;
    let (len, tail) = tail.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    let body = tail.get(..len)?;
    let whole = rest.get(..HEAD_BYTES - 8 + len)?;
    let is_right = XxHash3_64::oneshot_with_seed(key, whole) == u64::from_le_bytes(*sum);
    is_right.then(|| (u64::from_le_bytes(*number), (kind, body)))
}

fn state(kind: u8, mut body: &[u8]) -> Option<(Bytes, State)> {
    let call = answered::take(&mut body)?;
    let state = match kind {
        BEGUN => State::Begun(Change::parse(body)?.1),
        MADE => State::Made(Fh(Bytes::copy_from_slice(body))),
        FAILED => State::Failed,
        _ => return None,
    };
    Some((call, state))
}

/// Those of `more` that `all` has not.
pub(super) fn unknown<'a>(all: impl Iterator<Item = &'a Answered>, more: Vec<Answered>) -> Vec<Answered> {
    let known: HashSet<&Bytes> = all.map(|one| &one.call).collect();
    more.into_iter().filter(|one| !known.contains(&one.call)).collect()
}
