//! File contents, passed between layers without copies.

use bytes::Bytes;
use smallvec::SmallVec;
use std::fs::File;
use std::sync::Arc;

/// Bytes of a file: one or more reference-counted buffers in order. A frontend passes them to
/// `writev`.
///
/// A caller that sets [`RequestContext::takes_slice`](crate::RequestContext) may get a slice of a
/// local file instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Data {
    parts: SmallVec<[Bytes; 1]>,
    slice: Option<Slice>,
}

/// Bytes in a local file. The layer that returns a slice has verified the bytes. It keeps them in
/// place for as long as a concurrent read may return them.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The local file.
    pub file: Arc<File>,
    /// Position of the first byte in the local file.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len: usize,
}

impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        let range = (self.offset_bytes, self.len);
        Arc::ptr_eq(&self.file, &other.file) && range == (other.offset_bytes, other.len)
    }
}

impl Eq for Slice {}

impl Data {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        let slice = self.slice.as_ref().map_or(0, |slice| slice.len);
        self.parts.iter().map(Bytes::len).sum::<usize>() + slice
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slice of a local file that holds all the bytes. The data has no buffers then.
    pub fn slice(&self) -> Option<&Slice> {
        self.slice.as_ref()
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

impl From<Slice> for Data {
    fn from(slice: Slice) -> Self {
        Self { parts: SmallVec::new(), slice: Some(slice) }
    }
}
