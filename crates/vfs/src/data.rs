//! File contents, passed between layers without copies.

use bytes::Bytes;
use smallvec::SmallVec;

/// Bytes of a file: one or more reference-counted buffers in order. A frontend passes them to
/// `writev`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Data {
    parts: SmallVec<[Bytes; 1]>,
}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }

    /// The buffers in order.
    pub fn parts(&self) -> &[Bytes] {
        &self.parts
    }

    /// Appends a buffer.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.parts.push(part);
        }
    }

    /// All bytes in one buffer. They are copied only when there is more than one part.
    pub fn into_bytes(mut self) -> Bytes {
        match self.parts.len() {
            0 => Bytes::new(),
            1 => self.parts.remove(0),
            _ => self.parts.concat().into(),
        }
    }
}

impl From<Bytes> for Data {
    fn from(b: Bytes) -> Self {
        let mut d = Self::default();
        d.push(b);
        d
    }
}
