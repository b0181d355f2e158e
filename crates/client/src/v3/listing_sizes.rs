//! Guesses whether a directory fits on one page, from its last listing, else from its size.
//!
//! The guess only decides whether one call or two concurrent calls are sent, so it may be wrong.
//! The data is in a direct-mapped table of fixed size. Directories that share a slot evict each
//! other.

use hither_vfs::{Attr, Fh, FileKind};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};

/// Slots of the table: about 128 KiB. A power of two.
const SLOTS: usize = 1 << 12;

/// Bytes of a READDIRPLUS reply for each byte of a directory's size. An entry of READDIRPLUS takes
/// about 180 bytes more than its name. On disk an entry takes 8 (ext4) to 32 bytes more than its
/// name. But directories grow by blocks, few blocks are full, and most are less than half full.
const PAGE_BYTES_PER_BYTE: u64 = 6;

pub(super) struct ListingSizes {
    hasher: RandomState,
    slots: Mutex<Vec<Option<Slot>>>,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Hash of the filehandle.
    tag: u64,
    size_bytes: u64,
    last: Listed,
}

/// Outcome of the last listing of the directory.
#[derive(Debug, Clone, Copy)]
enum Listed {
    Never,
    /// It fit on a page of at most this many bytes.
    Whole(u32),
    /// It did not fit on a page of this many bytes.
    More(u32),
}

impl Default for ListingSizes {
    fn default() -> Self {
        Self { hasher: RandomState::new(), slots: Mutex::new(vec![None; SLOTS]) }
    }
}

impl ListingSizes {
    /// Records a directory's attributes. A changed size means changed entries.
    pub fn note(&self, fh: &Fh, attr: &Attr) {
        if attr.kind != FileKind::Directory {
            return;
        }
        let (tag, index) = self.place(fh);
        let slot = &mut self.slots.lock()[index];
        if slot.is_none_or(|s| s.tag != tag || s.size_bytes != attr.size_bytes) {
            *slot = Some(Slot { tag, size_bytes: attr.size_bytes, last: Listed::Never });
        }
    }

    /// Records whether a page of at most `most_bytes` held the whole directory.
    pub fn listed(&self, fh: &Fh, most_bytes: u32, whole: bool) {
        let (tag, index) = self.place(fh);
        if let Some(slot) = self.slots.lock()[index].as_mut().filter(|s| s.tag == tag) {
            slot.last = if whole { Listed::Whole(most_bytes) } else { Listed::More(most_bytes) };
        }
    }

    /// Whether a page of at most `most_bytes` is likely to hold the whole directory. Never true for
    /// an unknown directory.
    pub fn likely_whole(&self, fh: &Fh, most_bytes: u32) -> bool {
        let (tag, index) = self.place(fh);
        let Some(slot) = self.slots.lock()[index].filter(|s| s.tag == tag) else { return false };
        match slot.last {
            Listed::Whole(bytes) if most_bytes >= bytes => true,
            Listed::More(bytes) if most_bytes <= bytes => false,
            _ => slot.size_bytes.saturating_mul(PAGE_BYTES_PER_BYTE) <= u64::from(most_bytes),
        }
    }

    fn place(&self, fh: &Fh) -> (u64, usize) {
        let tag = self.hasher.hash_one(fh);
        (tag, tag as usize & (SLOTS - 1))
    }
}
