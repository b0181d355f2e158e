//! Fetches small files ahead of their use. When a second file of a directory is opened for reading,
//! its other files will most likely follow. In a directory with few bytes, the first open is
//! enough, as long as most prefetched bytes were read. Its files then come with the one request
//! that the open needs anyway.
//!
//! Under close-to-open, an open needs a request in any case, and the answer may carry the bytes. So
//! for callers that ask for freshness, files are fetched ahead only while the server grants leases.
//! A file fetched under a lease is opened without a request. The attributes of the directory follow
//! the files in the same request. They prove that its names led to the files under these leases.

use super::moment::LEASE;
use super::objects::When;
use super::{MetadataCache, Prefetch, stats};
use hither_vfs::{Access, Fh, File, FileKind, RequestContext, Validity, Why, bytes_prove_reading};
use std::sync::atomic::Ordering;

/// Longest time between two opens of one burst in a directory, in nanoseconds.
const BURST_NANOS: u64 = 10_000_000_000;
/// A server that granted a lease within this time, in nanoseconds, will most likely grant another.
const LATELY_NANOS: u64 = 60_000_000_000;
/// Most files and bytes of one fetch.
const FILES: usize = 256;
const BYTES: u64 = 4 << 20;
/// Most files and bytes of a fetch at the first open in a directory.
const FIRST_FILES: usize = 16;
const FIRST_BYTES: u64 = 256 << 10;
/// Unread prefetched bytes up to which the first open in a directory starts a fetch.
const UNREAD_BYTES: u64 = 4 << 20;
/// Smallest size of a READ, in bytes.
const READ_BYTES: u64 = 4096;

/// A planned fetch.
struct Fetch {
    /// The directory's slot, and its filehandle.
    slot: u32,
    dir: Fh,
    files: Vec<Fh>,
    /// Size of the longest file, in bytes.
    longest_bytes: u64,
}

impl MetadataCache {
    /// Fetches `fh` with its neighbours before it is opened for reading, if the open is part of a
    /// burst.
    pub(super) async fn prefetch(&self, cx: &RequestContext, fh: &Fh) {
        let when = self.when(cx);
        let leased = self.leased.load(Ordering::Relaxed);
        let leases = leased != 0 && when.now.saturating_sub(leased) < LATELY_NANOS;
        if self.options.prefetch == Prefetch::Off || when.stale || cx.fresh_since.is_some() && !leases {
            return;
        }
        let Some(Fetch { slot, dir, files, longest_bytes }) = self.neighbours(fh, &when) else { return };
        let _fetching = Fetching { meta: self, slot };
        let ticket = self.ticket();
        let holder = cx.fresh_since.map(|_| &dir);
        // A short READ length lets more files fit into one reply. A file that has grown meanwhile
        // is not stored.
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
            // The files filled the message. A second request then proves the names.
            None if holder.is_some() && leased => {
                drop(self.ask_attrs(cx, File { fh: &dir, open: None }).await)
            }
            None => {}
        }
    }

    /// Whether most prefetched bytes were read, or few bytes were prefetched yet. The first open in
    /// a directory then starts a fetch.
    fn guesses_well(&self) -> bool {
        let fetched = self.counters.prefetched_bytes.load(Ordering::Relaxed);
        let used = self.counters.prefetch_used_bytes.load(Ordering::Relaxed);
        fetched.saturating_sub(used) <= UNREAD_BYTES.max(used)
    }

    /// Files to fetch: `fh` and the small files of its directory that are not in memory. `None`
    /// when the open is in no burst, or another call is fetching.
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
                // At the first open, all files of the directory are fetched or none.
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

/// Marks the only running fetch of a directory; ends when dropped.
struct Fetching<'a> {
    meta: &'a MetadataCache,
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
