//! Reads: from the cache as far as it is valid, from below for the rest, and ahead of sequential
//! readers.
//!
//! The read-ahead window doubles whenever the reader still has to wait for a call. So the window
//! reaches the product of latency and bandwidth.

use super::entry::{Entry, Have, block_of};
use super::format::BLOCK;
use super::held::{BlockSource, CachedVersion, Came};
use super::opens::Open;
use super::stats::add;
use super::{DataCache, format};
use bytes::Bytes;
use hither_vfs::{
    Attrs, Data, Error, Fh, File, OpenAccess, OpenHow, OpenId, PathRef, Read, RequestContext, Result, Slice,
};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// First read-ahead window, in bytes.
const WINDOW: u64 = 512 << 10;
/// Largest distance of sequential reads, in bytes: the kernel's own read-ahead arrives out of
/// order.
const NEAR: u64 = 1 << 20;
/// Attempts to answer from the cache before the read is sent below.
const TRIES: u32 = 4;

enum Served {
    /// The answer, and whether the reader waited for a call below.
    Yes(Read, bool),
    /// The attributes have expired.
    Expired,
    /// The file or its entry changed meanwhile.
    Again,
    /// A call of another reader failed; its error may not apply to this reader.
    Failed,
}

/// The bytes of a range, taken from the places of its blocks.
enum Gathered {
    /// `came_bytes`: bytes from calls below.
    Bytes { data: Data, came_bytes: u64 },
    /// See [`Served::Again`].
    Again,
    /// See [`Served::Failed`].
    Failed,
}

impl DataCache {
    /// See [`Vfs::read`](hither_vfs::Vfs::read).
    pub(super) async fn read_file(
        &self,
        cx: &RequestContext,
        file: File<'_>,
        at: u64,
        len: u32,
    ) -> Result<Read> {
        let Some(id) = file.open else {
            return self.below.read(cx, file, at, len).await;
        };
        let open = self.opens.find(id)?;
        let began = Instant::now();
        for _ in 0..TRIES {
            if !open.reads || open.fh != *file.fh || len == 0 {
                break;
            }
            let Some((held, holds)) = open.live.held(cx, began) else { break };
            let holds = holds || self.is_stale();
            held.look(self).await;
            if held.is_bare() && !self.may_store() {
                break;
            }
            match self.serve(cx, &open, &held, (at, len), holds).await? {
                Served::Yes(read, waited) => {
                    open.taken_bytes.fetch_add(read.data.len() as u64, Ordering::Relaxed);
                    self.ahead(cx, &open, &held, at, at + read.data.len() as u64, waited);
                    return Ok(read);
                }
                Served::Expired => {
                    let real = open.real.get().copied();
                    self.revalidate(cx, &open.fh, &open.live, real, began).await?;
                }
                Served::Again => {}
                Served::Failed => break,
            }
        }
        self.needs_link();
        add(&self.counters.passed_reads, 1);
        let real = self.real(&open).await?;
        self.below.read(cx, File { fh: file.fh, open: Some(real) }, at, len).await
    }

    async fn serve(
        &self,
        cx: &RequestContext,
        open: &Arc<Open>,
        held: &Arc<CachedVersion>,
        (at, len): (u64, u32),
        holds: bool,
    ) -> Result<Served> {
        let size = held.version.size;
        if at >= size {
            let nothing = Read { data: Data::default(), eof: true };
            return Ok(if holds { Served::Yes(nothing, false) } else { Served::Expired });
        }
        let end = at.saturating_add(u64::from(len)).min(size);
        if !holds && end - at < u64::from(len) {
            // The end of the file is no longer certain.
            return Ok(Served::Expired);
        }
        let (first, last) = (block_of(at), block_of(end - 1));
        if first == 0 && !held.has_first() {
            tokio::select! {
                _ = open.live.start.read() => {}
                () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR)),
            }
        }
        let most = (self.options.fetch_bytes / BLOCK).max(1);
        let Some((places, starts)) = held.places(first, last, most, !holds) else {
            return Ok(Served::Expired);
        };
        let asked = !starts.is_empty();
        let own: Vec<_> = starts.iter().map(|start| start.blocks()).collect();
        starts.into_iter().for_each(|start| self.fetch(cx, open, held, start, None));
        if cx.takes_slice
            && let Some(slice) = whole_slice(&places, (first, last), (at, end))
        {
            self.count(slice.len as u64, 0, false, false);
            add(&self.counters.slices, 1);
            return Ok(Served::Yes(Read { eof: end == size, data: slice.into() }, false));
        }
        let waited = asked || places.iter().any(|place| matches!(place, BlockSource::Coming(_)));
        match self.gather(cx, held, &places, (at, end), &own).await? {
            Gathered::Bytes { data, came_bytes } => {
                self.count(data.len() as u64, came_bytes, asked, waited);
                Ok(Served::Yes(Read { eof: end == size, data }, waited))
            }
            Gathered::Again => Ok(Served::Again),
            Gathered::Failed => Ok(Served::Failed),
        }
    }

    /// Gathers the bytes `at..end` from the places of their blocks. `own`: the blocks that this
    /// reader requested.
    async fn gather(
        &self,
        cx: &RequestContext,
        held: &Arc<CachedVersion>,
        places: &[BlockSource],
        (at, end): (u64, u64),
        own: &[Range<u64>],
    ) -> Result<Gathered> {
        let first = block_of(at);
        let mut data = Data::default();
        let mut came_bytes = 0;
        let mut i = 0;
        while i < places.len() {
            let block = first + i as u64;
            match &places[i] {
                BlockSource::Ready(bytes) => data.push(cut(bytes, block, at, end)),
                BlockSource::Coming(fetch) => {
                    let got = tokio::select! {
                        got = fetch.block(block) => got,
                        () = cx.cancel.cancelled() => return Err(Error::new(libc::EINTR)),
                    };
                    match got {
                        Ok(bytes) => {
                            let piece = cut(&bytes, block, at, end);
                            came_bytes += piece.len() as u64;
                            data.push(piece);
                        }
                        Err(Came::Failed(e)) if own.iter().any(|run| run.contains(&block)) => return Err(e),
                        Err(Came::Failed(_)) => return Ok(Gathered::Failed),
                        Err(_) => return Ok(Gathered::Again),
                    }
                }
                BlockSource::Disk(entry) => {
                    // All places were read under one lock, so all of them are in the same entry.
                    let run = places[i..].iter().take_while(|p| matches!(p, BlockSource::Disk(_))).count();
                    let from = at.max(block * BLOCK);
                    let to = end.min((block + run as u64) * BLOCK);
                    let Some(bytes) = self.on_disk(held, entry, from, to).await else {
                        return Ok(Gathered::Again);
                    };
                    data.push(bytes);
                    i += run;
                    continue;
                }
            }
            i += 1;
        }
        Ok(Gathered::Bytes { data, came_bytes })
    }

    fn count(&self, all: u64, came: u64, asked: bool, waited: bool) {
        let c = &self.counters;
        add(if asked { &c.misses } else { &c.hits }, 1);
        add(&c.hit_bytes, all - came);
        add(&c.miss_bytes, came);
        add(&c.shared_fetches, u64::from(waited && !asked));
    }

    /// Bytes of blocks in an entry; `None` when they cannot be read.
    async fn on_disk(
        &self,
        held: &Arc<CachedVersion>,
        entry: &Arc<Entry>,
        from: u64,
        to: u64,
    ) -> Option<Bytes> {
        let (first, last) = (block_of(from), block_of(to - 1));
        let verified = entry.verified_until(first, last - first + 1) > last;
        let len = (to - from) as usize;
        if verified && let Some(bytes) = entry.read_now(from, len) {
            return Some(bytes);
        }
        let reader = entry.clone();
        let read = move || if verified { reader.read(from, len) } else { verify(&reader, from, to) };
        match self.blocking(read).await.and_then(|read| read) {
            Ok(bytes) => {
                if let Some(shelf) = self.shelf().filter(|_| !verified) {
                    shelf.note_whole(entry);
                }
                Some(bytes)
            }
            Err(e) => {
                held.drop_entry(entry);
                // The data file of a dead entry may belong to another entry by now.
                if let Some(shelf) = self.shelf().filter(|_| !entry.is_dead()) {
                    shelf.damaged(entry.key, entry.id, &e);
                }
                None
            }
        }
    }

    /// Reads ahead of a sequential reader that has read `at..end`.
    fn ahead(
        &self,
        cx: &RequestContext,
        open: &Arc<Open>,
        held: &Arc<CachedVersion>,
        at: u64,
        end: u64,
        waited: bool,
    ) {
        if end <= at || !self.may_store() || self.options.ahead_max_bytes == 0 {
            return;
        }
        let unit = self.options.fetch_bytes.max(BLOCK);
        let (from, to) = {
            let mut a = open.ahead.lock();
            if at.abs_diff(a.next) > NEAR {
                (a.next, a.run, a.window, a.upto) = (end, 0, 0, 0);
                return;
            }
            a.next = a.next.max(end);
            a.run = a.run.saturating_add(1);
            if a.run < 2 {
                return;
            }
            a.window = match a.window {
                0 => WINDOW.min(self.options.ahead_max_bytes),
                w if waited => (w * 2).min(self.options.ahead_max_bytes),
                w => w,
            };
            let from = a.upto.max(a.next);
            let goal = (a.next + a.window).min(held.version.size);
            // Avoids small calls.
            if goal <= from || (goal - from < (a.window / 2).min(unit) && goal < held.version.size) {
                return;
            }
            a.upto = goal;
            (block_of(from), goal.div_ceil(BLOCK))
        };
        let mut block = from;
        while block < to {
            let next = (block * BLOCK / unit + 1) * unit / BLOCK;
            let count = next.min(to) - block;
            for start in held.missing(block, count) {
                match self.room_for(&start, held.version) {
                    Some(room) => {
                        add(&self.counters.ahead_fetches, 1);
                        self.fetch(cx, open, held, start, Some(room));
                    }
                    None => self.cancel(held, start),
                }
            }
            block += count;
        }
    }

    /// The open below, made now if there is none.
    pub(super) async fn real(&self, open: &Open) -> Result<OpenId> {
        let make = || async {
            let how = OpenHow { execute: open.execute, ..OpenHow::existing(OpenAccess::READ) };
            let cx = RequestContext::new(open.cred.clone());
            let ticket = self.ticket();
            let opened = self.below.open(&cx, PathRef::fh(&open.fh), &how).await?;
            self.learn(&open.fh, &opened.node.attrs, ticket);
            add(&self.counters.virtual_made_real, 1);
            Ok(opened.open)
        };
        open.real.get_or_try_init(make).await.copied()
    }

    /// The first bytes of a file with exactly these attributes, if they are cached.
    pub(super) async fn first_here(
        &self,
        held: &Arc<CachedVersion>,
        attrs: &Attrs,
        most: u32,
    ) -> Option<Read> {
        let size = attrs.attr.size_bytes;
        if held.version.size != size || held.version.change != attrs.attr.change {
            return None;
        }
        held.look(self).await;
        let to = size.min(u64::from(most));
        let entry = held.entry()?;
        if to == 0 || (0..to.div_ceil(BLOCK)).any(|b| entry.have(b) == Have::No) {
            return None;
        }
        let bytes = self.on_disk(held, &entry, 0, to).await?;
        add(&self.counters.hits, 1);
        add(&self.counters.hit_bytes, to);
        Some(Read { data: bytes.into(), eof: to == size })
    }

    /// Whether the file has an entry, of any version.
    pub(super) fn is_on_disk(&self, fh: &Fh) -> bool {
        self.shelf().is_some_and(|shelf| shelf.has(format::Key::of(fh)))
    }
}

/// The slice of the data file with `at..end`, when its entry has all blocks and they are verified.
fn whole_slice(places: &[BlockSource], (first, last): (u64, u64), (at, end): (u64, u64)) -> Option<Slice> {
    // All places were read under one lock, so all of them are in the same entry.
    let Some(BlockSource::Disk(entry)) = places.first() else { return None };
    let on_disk = places.iter().all(|place| matches!(place, BlockSource::Disk(_)));
    let verified = on_disk && entry.verified_until(first, last - first + 1) > last;
    verified.then(|| entry.slice(at, (end - at) as usize)).flatten()
}

/// Reads `from..to`, comparing every touched block with its checksum.
fn verify(entry: &Entry, from: u64, to: u64) -> io::Result<Bytes> {
    let mut out = Vec::with_capacity((to - from) as usize);
    for block in block_of(from)..=block_of(to - 1) {
        let start = block * BLOCK;
        let bytes = entry.read_verified(block)?;
        let (a, b) = (from.saturating_sub(start) as usize, (to - start).min(bytes.len() as u64) as usize);
        out.extend_from_slice(bytes.get(a..b).ok_or(ErrorKind::InvalidData)?);
    }
    Ok(out.into())
}

/// The part of a block's bytes within a range.
fn cut(bytes: &Bytes, block: u64, at_bytes: u64, end_bytes: u64) -> Bytes {
    let start = block * BLOCK;
    let to = (end_bytes - start).min(bytes.len() as u64) as usize;
    bytes.slice(at_bytes.saturating_sub(start) as usize..to)
}
