//! Whether a directory will fit on one page: judged by how its last listing ended, else by its
//! size.
//!
//! A guess decides only between asking one question and two at once, so it may be wrong. What is
//! remembered stands in a direct-mapped table of fixed size; directories that share a slot push
//! each other out.

use hither_vfs::{Attr, Fh, FileKind};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};

/// Slots of the table: about 128 KiB. A power of two.
const SLOTS: usize = 1 << 12;

/// Bytes of a READDIRPLUS reply for each byte of a directory's size. An entry of READDIRPLUS takes
/// some 180 bytes more than its name, where a disk takes 8 (ext4) to 32 more; but directories grow
/// by blocks of which few are full, and most fill less than the half.
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

/// How a listing of that directory ended.
#[derive(Debug, Clone, Copy)]
enum Listed {
    Never,
    /// On a page of so many bytes at most.
    Whole(u32),
    /// Not on a page of so many bytes.
    More(u32),
}

impl Default for ListingSizes {
    fn default() -> Self {
        Self { hasher: RandomState::new(), slots: Mutex::new(vec![None; SLOTS]) }
    }
}

impl ListingSizes {
    /// Takes note of a directory's attributes. Another size means other entries.
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

    /// A page of at most `most_bytes` came, or failed to.
    pub fn listed(&self, fh: &Fh, most_bytes: u32, whole: bool) {
        let (tag, index) = self.place(fh);
        if let Some(slot) = self.slots.lock()[index].as_mut().filter(|s| s.tag == tag) {
            slot.last = if whole { Listed::Whole(most_bytes) } else { Listed::More(most_bytes) };
        }
    }

    /// Whether a page of at most `most_bytes` is likely to hold the whole directory. Never for a
    /// directory of which nothing is known.
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
