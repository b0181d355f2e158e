//! Cached blocks of files that this mount writes while no other client can write them.
//!
//! A write makes another version of its file. An answer with the new version does not show whether
//! another client wrote besides. A WRITE and the attributes around it are not one step at the
//! server. Change attributes made from clocks do not show the number of changes (RFC 8881 section
//! 5.8.1.4). nfs-ganesha 4.3 and Linux 6.1 leave out NFSv3's attributes from before a WRITE (RFC
//! 1813 section 2.6). So local writes drop the cached blocks of a file (`changing`), except under a
//! lease. Until a lease is withdrawn, no other client writes. So the first version after all writes
//! differs from the one before only in the bytes written here.
//!
//! From the start of a write under a lease, the file's entry is withheld: it leaves the shelf, and
//! its data stay on the disk. Blocks written from then on are recorded as touched. A later answer
//! may report a version under the same lease. If its request was sent after the end of all writes,
//! the untouched blocks are of that version. When the file is cached under that version (`live`),
//! its entry is made of these blocks. The end of the lease ends this at once, as does every change
//! that is not a write.

use super::DataCache;
use super::entry::{Entry, Have, block_of};
use super::format::Version;
use super::live::State;
use super::shelf::Shelf;
use super::stats::add;
use hither_vfs::{Fh, FileRange, Validity};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Most files withheld at a time.
const FILES_MAX: usize = 256;
/// Part of the soft limit that withheld files may take: one in so many.
const PART: u64 = 16;
/// How long after its last write a file is withheld, waiting for a reader.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// A withheld file.
struct WithheldFile {
    entry: Arc<Entry>,
    bytes: u64,
    touched: BTreeSet<u64>,
    /// End of the file after the writes so far.
    end: u64,
    /// The version of the untouched blocks, if it was reported after the last write.
    told: Option<Version>,
    /// When the file was last written.
    since: Instant,
}

/// All withheld files.
#[derive(Default)]
pub(super) struct Own {
    files: Mutex<HashMap<Fh, WithheldFile>>,
}

impl Own {
    /// Number of withheld files.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.files.lock().len()
    }

    /// Drops the withheld data of a file.
    pub fn drop_file(&self, shelf: Option<&Shelf>, fh: &Fh) {
        let kept = self.files.lock().remove(fh);
        if let (Some(kept), Some(shelf)) = (kept, shelf) {
            shelf.discard(&kept.entry, kept.bytes);
        }
    }

    /// Drops files that were not written for long: they may never be read again.
    pub fn drop_old(&self, shelf: &Shelf) {
        let old = |_: &Fh, kept: &mut WithheldFile| kept.since.elapsed() >= KEPT_FOR;
        let all: Vec<_> = self.files.lock().extract_if(old).collect();
        all.iter().for_each(|(_, kept)| shelf.discard(&kept.entry, kept.bytes));
    }

    /// Drops all withheld data.
    pub fn drop_all(&self, shelf: Option<&Shelf>) {
        let all = std::mem::take(&mut *self.files.lock());
        if let Some(shelf) = shelf {
            all.values().for_each(|kept| shelf.discard(&kept.entry, kept.bytes));
        }
    }

    /// Processes a reported version of a file without running changes; the request was sent after
    /// their end.
    pub fn told(&self, shelf: Option<&Shelf>, fh: &Fh, version: Version, valid: Validity) {
        let mut files = self.files.lock();
        let Some(kept) = files.get_mut(fh) else { return };
        let holds = match kept.told {
            Some(told) => told == version,
            None => valid == Validity::Lease && version.size == kept.end,
        };
        if holds {
            kept.told = Some(version);
            return;
        }
        drop(files);
        self.drop_file(shelf, fh);
    }

    /// Whether the untouched blocks of a file are of a version.
    pub fn has(&self, fh: &Fh, version: Version) -> bool {
        self.files.lock().get(fh).is_some_and(|kept| kept.told == Some(version))
    }

    fn take(&self, fh: &Fh, version: Version) -> Option<WithheldFile> {
        let mut files = self.files.lock();
        files.get(fh).filter(|kept| kept.told == Some(version))?;
        files.remove(fh)
    }
}

impl DataCache {
    /// A write of a file begins; its state is locked. Withholds the entry of the file if it can be
    /// used afterwards; otherwise leaves it to be dropped.
    pub(super) fn withhold(&self, s: &State, fh: &Fh, range: FileRange) {
        let (first, last) = (block_of(range.start_bytes), block_of(range.end_bytes.saturating_sub(1)));
        let written = |entry: &Entry| {
            let here = (first..=last).filter(|block| entry.have(*block) != Have::No);
            here.collect::<Vec<_>>()
        };
        let here = s.held.as_ref().and_then(|held| held.entry());
        let mut files = self.own.files.lock();
        if let Some(kept) = files.get_mut(fh) {
            // The lease is still that of the first write.
            (kept.told, kept.since) = (None, Instant::now());
            kept.end = kept.end.max(range.end_bytes);
            kept.touched.extend(written(&kept.entry));
            return;
        }
        let (Some(shelf), Some(known), Some(held)) = (self.shelf(), &s.known, &s.held) else { return };
        if s.changing > 0 || !known.is_leased() || held.version != known.version || held.is_dead() {
            return;
        }
        let Some(entry) = here.filter(|entry| !entry.is_dead()) else { return };
        let bytes = entry.bytes();
        let all: u64 = files.values().map(|kept| kept.bytes).sum();
        if files.len() >= FILES_MAX || all + bytes > self.options.soft_bytes / PART {
            return;
        }
        if shelf.withhold(&entry, bytes) {
            let end = held.version.size.max(range.end_bytes);
            let touched = written(&entry).into_iter().collect();
            files.insert(
                fh.clone(),
                WithheldFile { entry, bytes, touched, end, told: None, since: Instant::now() },
            );
        }
    }

    /// The entry of a version, made of the withheld data; blocks.
    pub(super) fn inherit(&self, shelf: &Shelf, fh: &Fh, version: Version) -> Option<Arc<Entry>> {
        let kept = self.own.take(fh, version)?;
        match shelf.adopt((&kept.entry, kept.bytes), version, &kept.touched, self.now_s()) {
            Ok(entry) => {
                add(&self.counters.kept_over_writes, 1);
                Some(entry)
            }
            Err(e) => {
                shelf.discard(&kept.entry, kept.bytes);
                self.trouble.note(&self.counters, &e);
                None
            }
        }
    }

    /// A lease was withdrawn: nothing may be concluded from it any more.
    pub(super) fn own_ends(&self, fh: Option<&Fh>) {
        let shelf = self.shelf();
        match fh {
            Some(fh) => self.own.drop_file(shelf.as_deref(), fh),
            None => self.own.drop_all(shelf.as_deref()),
        }
    }

    /// Called before a write: searches the disk for the entry of the file, if it may be withheld.
    pub(super) async fn before_write(&self, fh: &Fh) {
        let Some(live) = self.used(fh) else { return };
        let held = {
            let s = live.state.lock();
            if s.changing > 0 || !s.known.as_ref().is_some_and(|known| known.is_leased()) {
                return;
            }
            s.held.clone()
        };
        if let Some(held) = held.filter(|held| held.entry().is_none()) {
            held.look(self).await;
        }
    }
}
