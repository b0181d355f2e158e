//! Marks of a file's contents that a change of its attributes leaves as they are.

use hither_vfs::{Attr, Time};

/// Modification time and length of a file, in bytes. A write changes them, a change of attributes
/// does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    mtime: Time,
    size_bytes: u64,
}

impl Contents {
    pub fn of(attr: &Attr) -> Self {
        Self { mtime: attr.mtime, size_bytes: attr.size_bytes }
    }
}
