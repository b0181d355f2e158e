//! Byte-range locks of one file: a list of disjoint ranges per owner.

use crate::{FileRange, LockConflict, LockKind, LockOwner};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ModelLock {
    owner: LockOwner,
    kind: LockKind,
    range: FileRange,
}

/// Locks of one file.
#[derive(Debug, Default)]
pub(super) struct Locks {
    held: Vec<ModelLock>,
}

impl Locks {
    /// A lock of another owner that conflicts with `kind` on `range`.
    pub fn conflict(&self, owner: LockOwner, kind: LockKind, range: FileRange) -> Option<LockConflict> {
        self.held
            .iter()
            .find(|h| {
                h.owner != owner
                    && overlap(h.range, range)
                    && (h.kind == LockKind::Write || kind == LockKind::Write)
            })
            .map(|h| LockConflict { kind: h.kind, range: h.range, pid: 0 })
    }

    /// Takes a lock without conflict ([`Locks::conflict`]). It replaces the owner's locks in the
    /// range.
    pub fn take(&mut self, owner: LockOwner, kind: LockKind, range: FileRange) {
        self.release(owner, range);
        self.held.push(ModelLock { owner, kind, range });
    }

    /// Releases the locks of `owner` in `range` and splits locks at its edges. Returns whether a
    /// lock was released.
    pub fn release(&mut self, owner: LockOwner, range: FileRange) -> bool {
        let mut rest = Vec::new();
        let before = self.held.len();
        self.held.retain(|h| {
            if h.owner != owner || !overlap(h.range, range) {
                return true;
            }
            if h.range.start_bytes < range.start_bytes {
                let range = FileRange { start_bytes: h.range.start_bytes, end_bytes: range.start_bytes };
                rest.push(ModelLock { range, ..*h });
            }
            if h.range.end_bytes > range.end_bytes {
                let range = FileRange { start_bytes: range.end_bytes, end_bytes: h.range.end_bytes };
                rest.push(ModelLock { range, ..*h });
            }
            false
        });
        let released = self.held.len() != before;
        self.held.append(&mut rest);
        released
    }

    /// Whether there are no locks.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

fn overlap(a: FileRange, b: FileRange) -> bool {
    a.start_bytes < b.end_bytes && b.start_bytes < a.end_bytes
}
