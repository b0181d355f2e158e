//! What all parts of a cache directory take together, and the limit that the mounts which share it
//! keep it under.
//!
//! The lock file of each part (`home`) says how much the part takes, as its daemon last announced.
//! Before a daemon takes more in than it has announced it announces that, and then looks at what
//! the others have announced; when it is too much it goes back to what it had. So of two that grow
//! at the same time both may be refused, and the directory never holds more than the limit.
//! Announcements are in steps of a MiB, so that few blocks cost such a look.
//!
//! Above the soft limit parts that no daemon uses give way first, those that have not been used for
//! longest before others (`unused`); what is too much then, each daemon gives up in proportion to
//! what it has ([`Total::take_short`]).
//!
//! What is announced is not made durable: after a power cut it is what the daemon finds when it
//! looks at its files. All calls block.

use parking_lot::Mutex;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use twox_hash::XxHash3_64;

/// First bytes of a lock file that says something; the last one is the version.
const MAGIC: [u8; 8] = *b"hitherU\x01";
/// Magic, bytes, whether it is being cleaned by somebody who does not use it, checksum.
const SAID: usize = 32;
/// What is announced is a multiple of this, in bytes.
const STEP: u64 = 1 << 20;
/// How often one looks again whose look fell into somebody's writing.
const TRIES: u32 = 100;

/// Announces for a part, in its lock file.
pub(super) fn announce(lock: &File, bytes: u64, cleaning: bool) -> io::Result<()> {
    let mut out = [0; SAID];
    out[..8].copy_from_slice(&MAGIC);
    out[8..16].copy_from_slice(&bytes.to_le_bytes());
    out[16] = u8::from(cleaning);
    let check = XxHash3_64::oneshot(&out[..24]);
    out[24..].copy_from_slice(&check.to_le_bytes());
    lock.write_all_at(&out, 0)
}

/// What a lock file says: bytes, and whether the part is being cleaned. `None` when it says nothing
/// that can be understood.
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

/// The sum, as one daemon sees and keeps it.
#[derive(Debug)]
pub(super) struct Total {
    /// The cache directory.
    pub dir: PathBuf,
    /// Name of our own lock file in it.
    name: OsString,
    lock: Arc<File>,
    pub soft_bytes: u64,
    pub hard_bytes: u64,
    state: Mutex<State>,
    /// Of the others, as they were when they were last looked at.
    others_bytes: AtomicU64,
    /// Something was refused since the last look.
    full: AtomicBool,
    /// What is too much for the soft limit and nobody but those who use their parts can give up,
    /// until somebody begins to.
    over_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    announced: u64,
    /// Something was announced.
    begun: bool,
    others: Vec<(OsString, File)>,
    /// When a name in the directory last came or went, as it was when they were looked for.
    dir_changed: Option<(i64, i64)>,
}

impl Total {
    /// For the part that `lock` is the lock file of, which takes `bytes`.
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

    /// Whether our part, which takes less now, may take `bytes`.
    pub fn admit(&self, bytes: u64) -> bool {
        let mut s = self.state.lock();
        if bytes <= s.announced {
            return true;
        }
        let before = s.announced;
        for next in [bytes.next_multiple_of(STEP), bytes] {
            if !self.is_limited() {
                // Others may have a limit.
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

    /// Whether there is a limit for all.
    pub fn is_limited(&self) -> bool {
        self.hard_bytes < u64::MAX
    }

    /// Looks at the directory anew; our part takes so many bytes. Returns what all take, with no
    /// limit what ours does.
    pub fn settle(&self, bytes: u64) -> u64 {
        let mut s = self.state.lock();
        // A step more: blocks that were admitted may be on their way.
        let next = bytes.saturating_add(STEP).next_multiple_of(STEP);
        if next < s.announced || bytes > s.announced || !s.begun {
            // There may be more than was announced; it is there all the same.
            s.announced = if bytes > s.announced || !s.begun { bytes } else { next };
            s.begun = true;
            let _ = announce(&self.lock, s.announced, false);
        }
        if !self.is_limited() {
            return bytes;
        }
        // The time of the directory has a grain, in which a name may have come unseen.
        s.dir_changed = None;
        let others = self.look(&mut s).unwrap_or_else(|| self.others_bytes.load(Ordering::Relaxed));
        let all = others.saturating_add(bytes);
        self.full.store(all >= self.hard_bytes, Ordering::Relaxed);
        all
    }

    /// What the others take; `None` when the directory cannot be looked at.
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

    /// What all take, with `bytes` of our own, as far as is known.
    pub fn bytes(&self, bytes: u64) -> u64 {
        self.others_bytes.load(Ordering::Relaxed).saturating_add(bytes)
    }

    /// Whether nothing more may come in, with `bytes` of our own; does not block.
    pub fn is_full(&self, bytes: u64) -> bool {
        self.full.load(Ordering::Relaxed) || self.bytes(bytes) >= self.hard_bytes
    }

    /// So much is too much, after what others could do about it: what [`Total::take_short`] is to
    /// be a part of.
    pub fn set_over(&self, bytes: u64) {
        self.over_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How much of our own `bytes` is to go: as large a part of what is too much as we have of all.
    /// Told once each time that [`Total::set_over`] was called.
    pub fn take_short(&self, bytes: u64) -> u64 {
        let over = self.over_bytes.swap(0, Ordering::Relaxed);
        if over == 0 {
            return 0;
        }
        let part = u128::from(over) * u128::from(bytes) / u128::from(self.bytes(bytes).max(1));
        // Rounded up, so that it ends.
        u64::try_from(part).unwrap_or(u64::MAX).saturating_add(1).min(bytes)
    }

    /// The last word of our part, which takes so many bytes.
    pub fn leave(&self, bytes: u64) {
        let _ = announce(&self.lock, bytes, false);
    }

    /// Lock files of other parts that say nothing.
    pub fn silent(&self) -> Vec<OsString> {
        let s = self.state.lock();
        s.others.iter().filter(|(_, lock)| said(lock).is_none()).map(|(name, _)| name.clone()).collect()
    }

    /// Lock files of other parts, those first whose part has not been used for longest.
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
