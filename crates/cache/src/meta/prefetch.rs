//! Small files fetched before they are asked for: when a second file of a directory is opened for
//! reading, the others will most likely follow. In a directory with few bytes the first open is
//! sign enough, as long as such guesses have proved right: its files come with the one question
//! that the open needs anyway.
//!
//! Under close-to-open an open has to ask the server in any case, and the answer may as well carry
//! the bytes; so for callers who insist on fresh attributes, files are fetched ahead only where the
//! server has been granting leases: what is fetched under one is opened without a question. The
//! directory's own attributes come behind the files and prove that its names led to them when the
//! leases were there.

use super::moment::LEASE;
use super::objects::When;
use super::{Meta, Prefetch, stats};
use hither_vfs::{Access, Cx, Fh, File, FileKind, Validity, Why, bytes_prove_reading};
use std::sync::atomic::Ordering;

/// Opens in one directory within this time are a burst.
const BURST_NANOS: u64 = 10_000_000_000;
/// A server that granted a lease within this time will most likely grant another.
const LATELY_NANOS: u64 = 60_000_000_000;
/// Most files and bytes of one fetch.
const FILES: usize = 256;
const BYTES: u64 = 4 << 20;
/// The same for a fetch at the first open in a directory.
const FIRST_FILES: usize = 16;
const FIRST_BYTES: u64 = 256 << 10;
/// Guesses are bold until so many bytes were fetched and not read.
const UNREAD_BYTES: u64 = 4 << 20;
/// A READ is never for less.
const READ_BYTES: u64 = 4096;

/// What to fetch.
struct Fetch {
    /// The directory's slot, and its handle.
    slot: u32,
    dir: Fh,
    files: Vec<Fh>,
    /// The longest of them.
    longest_bytes: u64,
}

impl Meta {
    /// Before `fh` is opened for reading: fetches it with its neighbours if this is a burst.
    pub(super) async fn prefetch(&self, cx: &Cx, fh: &Fh) {
        let when = self.when(cx);
        let leased = self.leased.load(Ordering::Relaxed);
        let leases = leased != 0 && when.now.saturating_sub(leased) < LATELY_NANOS;
        if self.options.prefetch == Prefetch::Off || cx.fresh_since.is_some() && !leases {
            return;
        }
        let Some(Fetch { slot, dir, files, longest_bytes }) = self.neighbours(fh, &when) else { return };
        let _fetching = Fetching { meta: self, slot };
        let ticket = self.ticket();
        let holder = cx.fresh_since.map(|_| &dir);
        // As many as fit into one reply; a file that has grown meanwhile is not kept.
        let most = u32::try_from(longest_bytes.max(READ_BYTES)).unwrap_or(u32::MAX);
        cx.because(|| Why::Ahead);
        let fetched = self.below.read_many(cx, &files, holder, most).await;
        let mut leased = false;
        for (fh, fetched) in files.iter().zip(fetched.files) {
            let Ok(fetched) = fetched.map_err(|e| self.failed(fh, e)) else { continue };
            self.learn_attrs(fh, &fetched.attrs, &ticket);
            leased |= fetched.attrs.valid == Validity::Lease;
            if bytes_prove_reading(fetched.attrs.attr.mode) {
                let under = (fh, fetched.attrs.attr.change);
                self.learn_rights(&cx.cred, under, Access::READ, Access::READ, &ticket);
            }
            if self.learn_contents(fh, &fetched.attrs, &fetched.read, &ticket, true) {
                stats::add(&self.counters.prefetched_files, 1);
                stats::add(&self.counters.prefetched_bytes, fetched.read.data.len() as u64);
            }
        }
        match &fetched.holder {
            Some(attrs) => drop(self.learn_attrs(&dir, attrs, &ticket)),
            // Too many for one message: then the names are proven by another.
            None if holder.is_some() && leased => {
                drop(self.ask_attrs(cx, File { fh: &dir, open: None }).await)
            }
            None => {}
        }
    }

    /// Whether most of what was fetched ahead was read, or little was fetched yet: then the first
    /// open in a directory is sign enough.
    fn guesses_well(&self) -> bool {
        let fetched = self.counters.prefetched_bytes.load(Ordering::Relaxed);
        let used = self.counters.prefetch_used_bytes.load(Ordering::Relaxed);
        fetched.saturating_sub(used) <= UNREAD_BYTES.max(used)
    }

    /// Files to fetch: this one and small ones of its directory that are not held; `None` when
    /// there is no burst, or another call is fetching.
    fn neighbours(&self, fh: &Fh, when: &When) -> Option<Fetch> {
        let (me, parent) = self.table.with(fh, |id, o| (id, o.parent))?;
        if parent == u32::MAX {
            return None;
        }
        let enough = if self.guesses_well() { 1 } else { 2 };
        let (dir, first, children) = self.table.with_slot(parent, |_, o| {
            let dir = o.known_dir()?;
            let (last, count) = dir.opened;
            let count = if when.now.saturating_sub(last) > BURST_NANOS { 1 } else { count.saturating_add(1) };
            dir.opened = (when.now, count);
            if count < enough || dir.prefetching || !dir.is_complete() {
                return None;
            }
            dir.prefetching = true;
            let listed = dir.names.listed(0).filter_map(|(_, _, bound)| bound.child);
            let children = listed.take(FILES * 4).collect::<Vec<_>>();
            Some((super::handle(o), count < 2, children))
        })??;
        let (most_files, most_bytes) = if first { (FIRST_FILES, FIRST_BYTES) } else { (FILES, BYTES) };
        let (mut bytes, mut longest_bytes) = (0, 0);
        let mut files = Vec::new();
        let mut mine = false;
        for id in children {
            let small = self.table.with_id(id, |o| {
                let small = o.attr.size_bytes <= u64::from(self.options.small_file_bytes);
                let regular = o.asked != 0 && o.attr.kind() == FileKind::Regular && o.attr.size_bytes > 0;
                let fh = super::handle(o);
                let near =
                    o.until & LEASE != 0 && o.holds(when) && self.is_near_whole(&fh, o.attr.size_bytes);
                let held = near || self.contents.has(&fh, o.version());
                (small && regular && !held).then_some((fh, o.attr.size_bytes))
            });
            let Some(Some((fh, size))) = small else { continue };
            if bytes + size > most_bytes || files.len() >= most_files {
                // All of a directory at the first open, or none.
                mine &= !first;
                break;
            }
            bytes += size;
            longest_bytes = longest_bytes.max(size);
            mine |= id == me;
            files.push(fh);
        }
        if !mine || files.len() < 2 {
            drop(Fetching { meta: self, slot: parent });
            return None;
        }
        Some(Fetch { slot: parent, dir, files, longest_bytes })
    }
}

/// One fetch at a time in a directory; over when dropped.
struct Fetching<'a> {
    meta: &'a Meta,
    slot: u32,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.meta.table.with_slot(self.slot, |_, o| {
            if let Some(dir) = o.known_dir() {
                dir.prefetching = false;
            }
        });
    }
}
