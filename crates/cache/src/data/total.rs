//! The total size of a cache directory, and the limit that the sharing mounts keep.
//!
//! The lock file of each part (`home`) has the size that its daemon last announced. A daemon
//! announces a larger size before it exceeds its last announcement. Then it reads the announcements
//! of the others. If the sum exceeds the limit, the daemon returns to its former announcement. So
//! both of two daemons that grow at the same time may be refused, and the directory never exceeds
//! the limit. Announcements are multiples of 1 MiB, so that few blocks need such a check.
//!
//! Above the soft limit, parts without a daemon are reduced first, the least recently used before
//! others (`unused`). Each daemon gives up its proportional part of the remaining excess
//! ([`Total::take_short`]).
//!
//! Announcements are not durable: after a power cut, the daemon announces the size of the files
//! that it finds. All calls block.

use parking_lot::Mutex;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use twox_hash::XxHash3_64;

/// First bytes of an announcement in a lock file; the last one is the version.
const MAGIC: [u8; 8] = *b"hitherU\x01";
/// Length of an announcement, in bytes: magic, size, whether the part is being cleaned, checksum.
const SAID: usize = 32;
/// Announcements are multiples of this, in bytes.
const STEP: u64 = 1 << 20;
/// Most attempts to read an announcement that is being written.
const TRIES: u32 = 100;

/// Announces the size of a part in its lock file.
pub(super) fn announce(lock: &File, bytes: u64, cleaning: bool) -> io::Result<()> {
    let mut out = [0; SAID];
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&bytes.to_le_bytes());
    out[16] = u8::from(cleaning);
    let check = XxHash3_64::oneshot(&out[..24]);
    out[24..].copy_from_slice(&check.to_le_bytes());
    lock.write_all_at(&out, 0)
}

/// The announcement in a lock file: size in bytes, and whether the part is being cleaned. `None`
/// when there is no valid one.
pub(super) fn said(lock: &File) -> Option<(u64, bool)> {
    for _ in 0..TRIES {
        let mut out = [0; SAID];
        if lock.read_exact_at(&mut out, 0).is_err() || out[..8] != MAGIC {
            return None;
        }
        if out[24..] == XxHash3_64::oneshot(&out[..24]).to_le_bytes() {
            return Some((u64::from_le_bytes(out[8..16].try_into().ok()?), out[16] != 0));
        }
    }
    None
}

/// The total as one daemon sees it.
#[derive(Debug)]
pub(super) struct Total {
    /// The cache directory.
    pub dir: PathBuf,
    /// Name of the daemon's own lock file in the directory.
    name: OsString,
    lock: Arc<File>,
    pub soft_bytes: u64,
    pub hard_bytes: u64,
    state: Mutex<State>,
    /// Size of the other parts at the last check, in bytes.
    others_bytes: AtomicU64,
    /// A block was refused since the last check.
    full: AtomicBool,
    /// Excess over the soft limit that only the daemons can give up, in bytes; 0 after
    /// [`Total::take_short`].
    over_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    announced: u64,
    /// A size was announced.
    begun: bool,
    others: Vec<(OsString, File)>,
    /// Modification time of the directory at the last search for lock files.
    dir_changed: Option<(i64, i64)>,
}

impl Total {
    /// The total for the part with this lock file, which has a size of `bytes`.
    pub fn new(lock: Arc<File>, path: &Path, limits: (u64, u64), bytes: u64) -> Self {
        let total = Self {
            dir: path.parent().map(Path::to_path_buf).unwrap_or_default(),
            name: path.file_name().unwrap_or_default().to_os_string(),
            lock,
            soft_bytes: limits.0,
            hard_bytes: limits.1,
            state: Mutex::default(),
            others_bytes: AtomicU64::new(0),
            full: AtomicBool::new(false),
            over_bytes: AtomicU64::new(0),
        };
        total.settle(bytes);
        total
    }

    /// Whether this daemon's part, which is smaller now, may grow to `bytes`.
    pub fn admit(&self, bytes: u64) -> bool {
        let mut s = self.state.lock();
        if bytes <= s.announced {
            return true;
        }
        let before = s.announced;
        for next in [bytes.next_multiple_of(STEP), bytes] {
            if !self.is_limited() {
                // Other daemons may have a limit.
                let _ = announce(&self.lock, next, false);
                s.announced = next;
                return true;
            }
            if announce(&self.lock, next, false).is_ok()
                && self.look(&mut s).is_some_and(|others| others.saturating_add(next) <= self.hard_bytes)
            {
                s.announced = next;
                return true;
            }
        }
        let _ = announce(&self.lock, before, false);
        self.full.store(true, Ordering::Relaxed);
        false
    }

    /// Whether the directory has a limit.
    pub fn is_limited(&self) -> bool {
        self.hard_bytes < u64::MAX
    }

    /// Checks the directory again; this daemon's part has a size of `bytes`. Returns the total
    /// size; without a limit, the size of this part.
    pub fn settle(&self, bytes: u64) -> u64 {
        let mut s = self.state.lock();
        // One step more, for admitted blocks on their way.
        let next = bytes.saturating_add(STEP).next_multiple_of(STEP);
        if next < s.announced || bytes > s.announced || !s.begun {
            // The part may be larger than announced; its files exist already.
            s.announced = if bytes > s.announced || !s.begun { bytes } else { next };
            s.begun = true;
            let _ = announce(&self.lock, s.announced, false);
        }
        if !self.is_limited() {
            return bytes;
        }
        // The modification time of the directory has a granularity: a new name within one tick goes
        // unnoticed.
        s.dir_changed = None;
        let others = self.look(&mut s).unwrap_or_else(|| self.others_bytes.load(Ordering::Relaxed));
        let all = others.saturating_add(bytes);
        self.full.store(all >= self.hard_bytes, Ordering::Relaxed);
        all
    }

    /// Size of the other parts, in bytes; `None` when the directory cannot be read.
    fn look(&self, s: &mut State) -> Option<u64> {
        let at = std::fs::metadata(&self.dir).ok()?;
        let changed = Some((at.mtime(), at.mtime_nsec()));
        if s.dir_changed != changed {
            s.others = self.find().ok()?;
            s.dir_changed = changed;
        }
        let all = s
            .others
            .iter()
            .filter_map(|(_, lock)| said(lock))
            .fold(0, |sum: u64, (n, _)| sum.saturating_add(n));
        self.others_bytes.store(all, Ordering::Relaxed);
        Some(all)
    }

    fn find(&self) -> io::Result<Vec<(OsString, File)>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            if name != self.name && Path::new(&name).extension().is_some_and(|e| e == "lock") {
                out.push((name.clone(), File::options().read(true).write(true).open(self.dir.join(&name))?));
            }
        }
        Ok(out)
    }

    /// The last known total size, with `bytes` of this part.
    pub fn bytes(&self, bytes: u64) -> u64 {
        self.others_bytes.load(Ordering::Relaxed).saturating_add(bytes)
    }

    /// Whether nothing more may be added, with `bytes` of this part; does not block.
    pub fn is_full(&self, bytes: u64) -> bool {
        self.full.load(Ordering::Relaxed) || self.bytes(bytes) >= self.hard_bytes
    }

    /// Sets the excess that remains after the reduction of unused parts, for [`Total::take_short`].
    pub fn set_over(&self, bytes: u64) {
        self.over_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How many of this part's `bytes` are to be evicted: its proportional part of the excess.
    /// Returns it once per call of [`Total::set_over`].
    pub fn take_short(&self, bytes: u64) -> u64 {
        let over = self.over_bytes.swap(0, Ordering::Relaxed);
        if over == 0 {
            return 0;
        }
        let part = u128::from(over) * u128::from(bytes) / u128::from(self.bytes(bytes).max(1));
        // Rounded up, so that the excess reaches zero.
        u64::try_from(part).unwrap_or(u64::MAX).saturating_add(1).min(bytes)
    }

    /// The last announcement of this part.
    pub fn leave(&self, bytes: u64) {
        let _ = announce(&self.lock, bytes, false);
    }

    /// Lock files of other parts without a valid announcement.
    pub fn silent(&self) -> Vec<OsString> {
        let s = self.state.lock();
        s.others.iter().filter(|(_, lock)| said(lock).is_none()).map(|(name, _)| name.clone()).collect()
    }

    /// Lock files of other parts, the least recently used part first.
    pub fn others(&self) -> Vec<OsString> {
        let s = self.state.lock();
        let at = |lock: &File| lock.metadata().map(|m| (m.mtime(), m.mtime_nsec())).unwrap_or_default();
        let mut all: Vec<_> = s.others.iter().map(|(name, lock)| (at(lock), name.clone())).collect();
        all.sort();
        all.into_iter().map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests;
