//! What is here of files that this mount writes, when nobody else can have written them.
//!
//! A write makes another version of its file, and an answer that tells the new version does not
//! tell whether somebody else wrote besides: a WRITE and the attributes around it are not one step
//! at the server, and change attributes are made of clocks, so that they do not tell how many
//! changes there were (RFC 8881 section 5.8.1.4; NFSv3's attributes of before a WRITE, RFC 1813
//! section 2.6, are left out by nfs-ganesha 4.3 and Linux 6.1). So own writes drop what is here of
//! a file (`changing`), except under a lease: as long as it is not withdrawn nobody else writes,
//! and the first version told when all writes are over differs from the one before in the bytes
//! that were written here and in nothing else.
//!
//! From the beginning of a write under a lease the file's entry is withheld here: out of the shelf,
//! its data still on the disk. Blocks that are written from then on are noted as touched. When a
//! version is told under the same lease by an answer that was asked for after the end of all
//! writes, the others are that version's; and when the file is kept under it (`live`), its entry is
//! made of them. Whatever ends the lease ends this too, at once, and so does every change that is
//! not a write.

use super::Disk;
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

/// Files that are withheld at a time.
const FILES_MAX: usize = 256;
/// Their part of what may be kept.
const PART: u64 = 16;
/// How long after its last write a file is withheld, waiting for somebody to read it.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// One file.
struct Kept {
    entry: Arc<Entry>,
    bytes: u64,
    touched: BTreeSet<u64>,
    /// Where the file ends after the writes so far.
    end: u64,
    /// The version that the untouched blocks are of, when it was told after the last write.
    told: Option<Version>,
    /// When it was last written.
    since: Instant,
}

/// All of them.
#[derive(Default)]
pub(super) struct Own {
    files: Mutex<HashMap<Fh, Kept>>,
}

impl Own {
    /// Files withheld now.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.files.lock().len()
    }

    /// What is withheld of a file goes.
    pub fn drop_file(&self, shelf: Option<&Shelf>, fh: &Fh) {
        let kept = self.files.lock().remove(fh);
        if let (Some(kept), Some(shelf)) = (kept, shelf) {
            shelf.discard(&kept.entry, kept.bytes);
        }
    }

    /// What nobody has written or told of for long goes: its file may never be read again.
    pub fn drop_old(&self, shelf: &Shelf) {
        let old = |_: &Fh, kept: &mut Kept| kept.since.elapsed() >= KEPT_FOR;
        let all: Vec<_> = self.files.lock().extract_if(old).collect();
        all.iter().for_each(|(_, kept)| shelf.discard(&kept.entry, kept.bytes));
    }

    /// All that is withheld goes.
    pub fn drop_all(&self, shelf: Option<&Shelf>) {
        let all = std::mem::take(&mut *self.files.lock());
        if let Some(shelf) = shelf {
            all.values().for_each(|kept| shelf.discard(&kept.entry, kept.bytes));
        }
    }

    /// A version was told of a file none of whose changes is running, by an answer that was asked
    /// for after their end.
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

    fn take(&self, fh: &Fh, version: Version) -> Option<Kept> {
        let mut files = self.files.lock();
        files.get(fh).filter(|kept| kept.told == Some(version))?;
        files.remove(fh)
    }
}

impl Disk {
    /// A write of a file begins; its state is locked. What is here of the file is withheld if it
    /// can be used afterwards, or goes.
    pub(super) fn withhold(&self, s: &State, fh: &Fh, range: FileRange) {
        let (first, last) = (block_of(range.start_bytes), block_of(range.end_bytes.saturating_sub(1)));
        let written = |entry: &Entry| {
            let here = (first..=last).filter(|block| entry.have(*block) != Have::No);
            here.collect::<Vec<_>>()
        };
        let here = s.held.as_ref().and_then(|held| held.entry());
        let mut files = self.own.files.lock();
        if let Some(kept) = files.get_mut(fh) {
            // The lease is still the one of the first write.
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
            files.insert(fh.clone(), Kept { entry, bytes, touched, end, told: None, since: Instant::now() });
        }
    }

    /// The entry of a version, made of what was withheld; blocks.
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

    /// A lease was withdrawn, after which nothing may be concluded from it.
    pub(super) fn own_ends(&self, fh: Option<&Fh>) {
        let shelf = self.shelf();
        match fh {
            Some(fh) => self.own.drop_file(shelf.as_deref(), fh),
            None => self.own.drop_all(shelf.as_deref()),
        }
    }

    /// Before a write: what is here of its file is looked up on the disk if it might be withheld.
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
