//! Contents of a sparse file in memory: pages of 4 KiB. Absent pages are holes.

use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;

const PAGE: u64 = 4096;

/// A sparse byte array without a length. Bytes that were never written read as zero.
#[derive(Debug, Default)]
pub(super) struct Pages {
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Pages {
    /// Allocated space in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Upper bound of the space in bytes that a write of `len` bytes at `at` allocates.
    pub fn growth_bytes(&self, at: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (at / PAGE, (at + len - 1) / PAGE);
        let present = self.pages.range(first..=last).count() as u64;
        (last - first + 1 - present) * PAGE
    }

    /// Copies `len` bytes at `at`.
    pub fn read(&self, at: u64, len: usize) -> Bytes {
        let mut out = BytesMut::zeroed(len);
        let end = at + len as u64;
        if len > 0 {
            for (&index, page) in self.pages.range(at / PAGE..=(end - 1) / PAGE) {
                let page_at = index * PAGE;
                let from = at.max(page_at);
                let to = end.min(page_at + PAGE);
                let src = &page[(from - page_at) as usize..(to - page_at) as usize];
                out[(from - at) as usize..(to - at) as usize].copy_from_slice(src);
            }
        }
        out.freeze()
    }

    /// Writes `data` at `at`.
    pub fn write(&mut self, mut at: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let inside = (at % PAGE) as usize;
            let n = data.len().min(PAGE as usize - inside);
            let page = self.page(at / PAGE);
            page[inside..inside + n].copy_from_slice(&data[..n]);
            data = &data[n..];
            at += n as u64;
        }
    }

    /// Makes `start..end` read as zeros, and frees whole pages.
    pub fn punch(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first_whole = start.div_ceil(PAGE);
        let end_whole = end / PAGE;
        if first_whole < end_whole {
            let gone: Vec<u64> = self.pages.range(first_whole..end_whole).map(|(&i, _)| i).collect();
            for index in gone {
                self.pages.remove(&index);
            }
        }
        for index in [start / PAGE, end / PAGE] {
            let page_at = index * PAGE;
            let (from, to) = (start.max(page_at), end.min(page_at.saturating_add(PAGE)));
            if from < to
                && let Some(page) = self.pages.get_mut(&index)
            {
                page[(from - page_at) as usize..(to - page_at) as usize].fill(0);
            }
        }
    }

    /// Allocates pages of zeros for the holes in `start..end`.
    pub fn reserve(&mut self, start: u64, end: u64) {
        if start < end {
            for index in start / PAGE..=(end - 1) / PAGE {
                self.page(index);
            }
        }
    }

    /// First byte at or after `at` in an allocated page, below `size`.
    pub fn next_data(&self, at: u64, size: u64) -> Option<u64> {
        let (&index, _) = self.pages.range(at / PAGE..).next()?;
        let found = at.max(index * PAGE);
        (found < size).then_some(found)
    }

    /// First byte at or after `at` in a hole; `size` when there is none before it.
    pub fn next_hole(&self, at: u64, size: u64) -> u64 {
        let mut index = at / PAGE;
        while index * PAGE < size && self.pages.contains_key(&index) {
            index += 1;
        }
        at.max(index * PAGE).min(size)
    }

    fn page(&mut self, index: u64) -> &mut [u8] {
        self.pages.entry(index).or_insert_with(|| vec![0; PAGE as usize].into_boxed_slice())
    }
}
