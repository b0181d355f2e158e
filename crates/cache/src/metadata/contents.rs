//! Contents of small files, complete, each with the `change` it belongs to.
//!
//! Contents have no validity of their own: the caller compares them with the file's present
//! version. The total size is bounded. Files that were not used since the clock hand last passed
//! are dropped first.

use super::moment::Moment;
use super::stats::{Counters, add};
use bytes::Bytes;
use hither_vfs::{Attr, Fh, FileKind, Read};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

/// Memory per file besides its bytes.
const FILE_BYTES: usize = 200;
/// Files that the hand passes per insertion.
const STEPS: usize = 32;

/// The files.
#[derive(Debug)]
pub(super) struct Contents {
    state: Mutex<State>,
    most_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Fh, CachedContents>,
    /// Filehandles in order of arrival, with the number of the arrival. Entries of dropped or
    /// replaced files are skipped.
    queue: VecDeque<(Fh, u64)>,
    arrivals: u64,
    bytes: usize,
}

/// A version of a file: its `change`, and the request time of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub change: u64,
    pub asked: Moment,
    /// When the present lease was requested: no other client has changed the file since.
    pub leased: Option<Moment>,
}

#[derive(Debug)]
struct CachedContents {
    data: Bytes,
    version: Version,
    /// Whether a later answer with the same `change` proves these contents.
    proves: bool,
    arrival: u64,
    referenced: bool,
    /// Prefetched, and not read yet.
    guessed: bool,
}

impl CachedContents {
    fn is(&self, version: Version) -> bool {
        let kept = |since| self.version.asked >= since;
        self.version.change == version.change
            && (self.proves || self.version.asked == version.asked || version.leased.is_some_and(kept))
    }
}

impl State {
    fn remove(&mut self, fh: &Fh, counters: Option<&Counters>) {
        if let Some(held) = self.files.remove(fh) {
            self.bytes -= held.data.len() + FILE_BYTES;
            if let Some(counters) = counters.filter(|_| held.guessed) {
                add(&counters.prefetch_wasted_bytes, held.data.len() as u64);
            }
        }
    }
}

impl Contents {
    /// A store of at most `most_bytes` bytes.
    pub fn new(most_bytes: usize) -> Self {
        Self { state: Mutex::default(), most_bytes }
    }

    /// Stores a file that arrived complete with its attributes, requested at that moment. `proves`:
    /// its `change` remains good after these attributes expire. `guessed`: the file was prefetched.
    /// Returns whether the file was stored.
    pub fn learn(
        &self,
        fh: &Fh,
        (attr, asked): (&Attr, Moment),
        read: &Read,
        small_bytes: u32,
        (proves, guessed): (bool, bool),
    ) -> bool {
        let len = read.data.len();
        let whole = read.eof && len as u64 == attr.size_bytes && attr.kind == FileKind::Regular;
        if !whole || len > small_bytes as usize || len + FILE_BYTES > self.most_bytes {
            return false;
        }
        // A copy: the received bytes are a slice of a reply that may be much larger.
        let mut data = Vec::with_capacity(len);
        read.data.parts().iter().for_each(|part| data.extend_from_slice(part));
        let mut s = self.state.lock();
        if s.files.get(fh).is_some_and(|held| held.proves && held.version.change == attr.change) {
            return false;
        }
        s.remove(fh, None);
        s.arrivals += 1;
        let arrival = s.arrivals;
        s.bytes += len + FILE_BYTES;
        s.queue.push_back((fh.clone(), arrival));
        let version = Version { change: attr.change, asked, leased: None };
        let held = CachedContents { data: data.into(), version, proves, arrival, referenced: false, guessed };
        s.files.insert(fh.clone(), held);
        true
    }

    /// Drops files while the store is too large; the work per call is bounded.
    pub fn relieve(&self, counters: &Counters) {
        let mut s = self.state.lock();
        let slack = s.files.len() * 2 + STEPS;
        for _ in 0..STEPS {
            if s.bytes <= self.most_bytes && s.queue.len() <= slack {
                return;
            }
            let Some((fh, arrival)) = s.queue.pop_front() else { return };
            match s.files.get_mut(&fh) {
                Some(held) if held.arrival == arrival => {
                    if std::mem::take(&mut held.referenced) || s.bytes <= self.most_bytes {
                        s.queue.push_back((fh, arrival));
                    } else {
                        s.remove(&fh, Some(counters));
                    }
                }
                _ => {}
            }
        }
    }

    /// The contents of this version of a file.
    pub fn find(&self, fh: &Fh, version: Version, counters: &Counters) -> Option<Bytes> {
        let mut s = self.state.lock();
        let held = s.files.get_mut(fh).filter(|held| held.is(version))?;
        held.referenced = true;
        if std::mem::take(&mut held.guessed) {
            add(&counters.prefetch_used_bytes, held.data.len() as u64);
        }
        Some(held.data.clone())
    }

    /// Whether the store has this version of a file.
    pub fn has(&self, fh: &Fh, version: Version) -> bool {
        self.state.lock().files.get(fh).is_some_and(|held| held.is(version))
    }

    /// Binds the contents of this version to its `change`: a later answer with the same `change`
    /// proves them.
    pub fn prove(&self, fh: &Fh, version: Version) {
        if let Some(held) = self.state.lock().files.get_mut(fh) {
            held.proves |= held.is(version);
        }
    }

    /// Drops a file.
    pub fn drop_file(&self, fh: &Fh, counters: &Counters) {
        let mut s = self.state.lock();
        if !s.files.is_empty() {
            s.remove(fh, Some(counters));
        }
    }

    /// Memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.state.lock().bytes
    }
}
