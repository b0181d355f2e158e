//! Calls whose changes were made and whose records are not durable yet. This serves a server that
//! is killed while the machine keeps running.
//!
//! The changes of a killed server are in the memory of the kernel. So are its writes to a file that
//! is never synced. Before a change the server writes the change to the file ([`Fresh::begun`]),
//! then that the change was made or failed. The next server counts the made calls as answered,
//! without a record. For a call that was only begun, the next server looks at the names of the
//! change, unless other calls used the same names. The file belongs to one boot of the machine and
//! one epoch of the journal. After a power cut, which loses the changes, the file is not used.
//!
//! A change without a record is noted only after it was made. The server can also be killed between
//! the change and the note.

use super::answered;
use super::names::{Change, Look};
use super::state_files::keep;
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
/// Bytes of an entry: two names, five handles, and the name of the call.
pub(in crate::local) const ENTRY_BYTES: usize = 1024;
/// Number of entries: several for each call that can be in flight.
pub(in crate::local) const ENTRIES: u64 = 4096;
/// Bytes of checksum, number, kind and length.
const HEAD_BYTES: usize = 8 + 8 + 1 + 2;

const BEGUN: u8 = 1;
const MADE: u8 = 2;
const FAILED: u8 = 3;

/// The file, open for writing.
pub(in crate::local) struct Fresh {
    file: File,
    /// Hash of the boot of the machine and the epoch of the journal.
    key: u64,
    next: Mutex<u64>,
}

/// The state of a call according to the file.
enum State {
    Begun(Change),
    Made(Fh),
    Failed,
}

impl Fresh {
    /// Opens the file, and returns the calls that were made. `boot` identifies this boot of the
    /// machine. `None`: the disk is full.
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
                        "{FILE}: {e}; after a kill, calls that were made and not answered may be made again"
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

    /// Returns the calls that were made. Writes the result for calls that were only begun.
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
                    if alone(&change) && look.was_made(&change).map_err(super::plain)? {
                        self.made(&call, change.object());
                        change.object().clone()
                    } else {
                        self.failed(&call);
                        continue;
                    }
                }
            };
            made.push(Answered { call, fh, bytes: 0 });
        }
        Ok(made)
    }

    /// Notes a change that is about to be made.
    pub fn begun(&self, call: &Bytes, change: &Change) {
        self.write(BEGUN, call, &change.encode(0));
    }

    /// Notes that the change was made.
    pub fn made(&self, call: &Bytes, object: &Fh) {
        self.write(MADE, call, &object.0);
    }

    /// Notes that the change was not made.
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
        // The file is a help. Without the entry the call may be made again, as after a power cut.
        if let Err(e) = self.file.write_all_at(&entry, number % ENTRIES * ENTRY_BYTES as u64) {
            tracing::debug!("{FILE}: {e}");
        }
    }
}

/// The id of this boot of the machine; `None` when it is unknown.
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

/// The calls in `more` that are not in `all`.
pub(super) fn unknown<'a>(all: impl Iterator<Item = &'a Answered>, more: Vec<Answered>) -> Vec<Answered> {
    let known: HashSet<&Bytes> = all.map(|one| &one.call).collect();
    more.into_iter().filter(|one| !known.contains(&one.call)).collect()
}
