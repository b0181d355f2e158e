//! One version of one file: its entry on disk, blocks in memory on their way there, and calls for
//! more.
//!
//! A block is in one of four places, and moves in this order: nowhere, in a call below
//! (`fetching`), in memory (`ready`), in the entry. Each move happens under one lock, and the block
//! enters the next place before it leaves the last one. So a reader always finds it. A reader that
//! needs a block that is nowhere starts a call. A reader that needs a block in a call waits for it.
//! A call runs to its end, even if the reader that started it is gone. When the version has ended,
//! fetched blocks go to the waiting readers and are stored nowhere.

use super::entry::{Entry, Have};
use super::fill::Job;
use super::format::{BLOCK, Key, Version};
use super::opens::Open;
use super::stats::add;
use super::{DataCache, QUEUE_UNIT};
use bytes::{Bytes, BytesMut};
use hither_vfs::{Data, Error, Fh, File, RequestContext};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// How long a call without a waiting reader waits for memory.
const ROOM_WITHIN: Duration = Duration::from_secs(5);

/// Interval at which waiting calls check for free queue memory.
const ROOMY_EVERY: Duration = Duration::from_millis(20);

/// One version of a file.
pub(super) struct CachedVersion {
    pub fh: Fh,
    pub version: Version,
    dead: AtomicBool,
    inner: Mutex<Inner>,
    /// One caller searches the disk; the others wait.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    fetching: HashMap<u64, Arc<Fetch>>,
    ready: HashMap<u64, Bytes>,
    entry: Option<Arc<Entry>>,
    /// The disk was searched.
    looked: bool,
}

/// A call below for a run of blocks.
pub(super) struct Fetch {
    first: u64,
    count: u64,
    done: watch::Receiver<Option<Came>>,
}

/// The result of a call below.
#[derive(Debug, Clone)]
pub(super) enum Came {
    /// One buffer per block.
    Blocks(Arc<[Bytes]>),
    /// Not as many bytes as the version has: the file has another version.
    Odd,
    /// The call failed.
    Failed(Error),
}

impl Fetch {
    /// The first block, after the call has ended.
    pub async fn first_block(&self) -> Result<Bytes, Came> {
        self.block(self.first).await
    }

    /// A block, after the call has ended.
    pub async fn block(&self, block: u64) -> Result<Bytes, Came> {
        let mut done = self.done.clone();
        let Ok(came) = done.wait_for(Option::is_some).await else { return Err(Came::Odd) };
        match came.as_ref() {
            Some(Came::Blocks(blocks)) => {
                block.checked_sub(self.first).and_then(|i| blocks.get(i as usize)).cloned().ok_or(Came::Odd)
            }
            Some(other) => Err(other.clone()),
            None => Err(Came::Odd),
        }
    }
}

/// A call to be made.
pub(super) struct Start {
    fetch: Arc<Fetch>,
    told: watch::Sender<Option<Came>>,
}

impl Start {
    /// The blocks of the call.
    pub fn blocks(&self) -> std::ops::Range<u64> {
        self.fetch.first..self.fetch.first + self.fetch.count
    }
}

/// Where a block is.
pub(super) enum BlockSource {
    /// In memory.
    Ready(Bytes),
    /// On disk, in this entry. The file may have another entry a moment later.
    Disk(Arc<Entry>),
    /// In a call below.
    Coming(Arc<Fetch>),
}

impl CachedVersion {
    pub fn new(fh: &Fh, version: Version) -> Self {
        Self {
            fh: fh.clone(),
            version,
            dead: AtomicBool::new(false),
            inner: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Ends the version.
    pub fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// The entry on disk, if it was found.
    pub fn entry(&self) -> Option<Arc<Entry>> {
        self.inner.lock().entry.clone()
    }

    pub fn set_entry(&self, entry: &Arc<Entry>) {
        self.inner.lock().entry = Some(entry.clone());
    }

    /// Removes a useless entry.
    pub fn drop_entry(&self, entry: &Arc<Entry>) {
        let mut inner = self.inner.lock();
        if inner.entry.as_ref().is_some_and(|e| Arc::ptr_eq(e, entry)) {
            inner.entry = None;
        }
    }

    /// Removes a block from memory: it is in the entry, or was given up.
    pub fn unready(&self, block: u64) {
        self.inner.lock().ready.remove(&block);
    }

    /// Bytes on their way to the disk.
    pub fn waiting_bytes(&self) -> u64 {
        self.inner.lock().ready.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Whether there is no entry, no block in memory and no running call.
    pub fn is_bare(&self) -> bool {
        let inner = self.inner.lock();
        inner.entry.is_none() && inner.ready.is_empty() && inner.fetching.is_empty()
    }

    /// Whether the first block is present or in a call.
    pub fn has_first(&self) -> bool {
        Self::has(&self.inner.lock(), 0)
    }

    /// Whether a block is present or in a call.
    fn has(inner: &Inner, block: u64) -> bool {
        inner.ready.contains_key(&block)
            || inner.fetching.contains_key(&block)
            || inner.entry.as_ref().is_some_and(|e| e.have(block) != Have::No)
    }

    /// The place of each block of `first..=last`. Blocks that are nowhere are put into calls of at
    /// most `most` blocks, which the caller must make. With `only_if_missing`, returns `None`
    /// without a change when any block is present or in a call.
    pub fn places(
        &self,
        first: u64,
        last: u64,
        most: u64,
        only_if_missing: bool,
    ) -> Option<(Vec<BlockSource>, Vec<Start>)> {
        let mut inner = self.inner.lock();
        let mut places: Vec<Option<BlockSource>> = Vec::with_capacity((last - first + 1) as usize);
        for block in first..=last {
            places.push(if let Some(bytes) = inner.ready.get(&block) {
                Some(BlockSource::Ready(bytes.clone()))
            } else if let Some(entry) = inner.entry.as_ref().filter(|e| e.have(block) != Have::No) {
                Some(BlockSource::Disk(entry.clone()))
            } else {
                inner.fetching.get(&block).map(|f| BlockSource::Coming(f.clone()))
            });
        }
        let here = |p: &Option<BlockSource>| {
            matches!(p, Some(BlockSource::Ready(_) | BlockSource::Disk(_) | BlockSource::Coming(_)))
        };
        if only_if_missing && places.iter().any(here) {
            return None;
        }
        let (mut starts, mut at) = (Vec::new(), 0);
        while let Some(from) = (at..places.len()).find(|i| places[*i].is_none()) {
            let to = (from..places.len()).find(|i| places[*i].is_some() || (i - from) as u64 == most);
            let to = to.unwrap_or(places.len());
            let start = Self::start(&mut inner, first + from as u64, (to - from) as u64);
            places[from..to].fill_with(|| Some(BlockSource::Coming(start.fetch.clone())));
            starts.push(start);
            at = to;
        }
        Some((places.into_iter().flatten().collect(), starts))
    }

    /// Puts the blocks among `first..first + count` that are nowhere into calls.
    pub fn missing(&self, first: u64, count: u64) -> Vec<Start> {
        let mut inner = self.inner.lock();
        let (mut starts, mut at) = (Vec::new(), first);
        let end = first + count;
        while let Some(from) = (at..end).find(|b| !Self::has(&inner, *b)) {
            let to = (from..end).find(|b| Self::has(&inner, *b)).unwrap_or(end);
            starts.push(Self::start(&mut inner, from, to - from));
            at = to;
        }
        starts
    }

    fn start(inner: &mut Inner, first: u64, count: u64) -> Start {
        let (told, done) = watch::channel(None);
        let fetch = Arc::new(Fetch { first, count, done });
        for block in first..first + count {
            inner.fetching.insert(block, fetch.clone());
        }
        Start { fetch, told }
    }

    /// Stores a block in memory that came with another answer; `false` when it is already present.
    fn take_ready(&self, block: u64, bytes: &Bytes) -> bool {
        let mut inner = self.inner.lock();
        if self.is_dead() || inner.ready.contains_key(&block) {
            return false;
        }
        if inner.entry.as_ref().is_some_and(|e| e.have(block) != Have::No) {
            return false;
        }
        inner.ready.insert(block, bytes.clone());
        true
    }

    /// Searches the disk once, and again after an entry was added there.
    pub async fn look(&self, disk: &DataCache) {
        let Some(shelf) = disk.shelf() else { return };
        let is_there = || shelf.has(Key::of(&self.fh)) || disk.own.has(&self.fh, self.version);
        let wanted = || {
            // Called before the lock of `inner` is taken: it takes other locks.
            let there = is_there();
            let inner = self.inner.lock();
            inner.entry.is_none() && (!inner.looked || there)
        };
        if !wanted() || !is_there() {
            self.inner.lock().looked = true;
            return;
        }
        let _looking = self.looking.lock().await;
        if !wanted() {
            return;
        }
        let (shelf, fh, version, now_s) = (shelf.clone(), self.fh.clone(), self.version, disk.now_s());
        let me = disk.me.clone();
        let find = move || {
            let inherited = me.upgrade().and_then(|disk| disk.inherit(&shelf, &fh, version));
            inherited.or_else(|| shelf.find(&fh, version, now_s))
        };
        let found = disk.blocking(find).await.ok().flatten();
        let mut inner = self.inner.lock();
        inner.looked = true;
        if inner.entry.is_none() && !self.is_dead() {
            inner.entry = found;
        }
    }
}

impl DataCache {
    /// Makes a call below, in a task of its own. `room`: memory reserved for its blocks.
    pub(super) fn fetch(
        &self,
        cx: &RequestContext,
        open: &Arc<Open>,
        held: &Arc<CachedVersion>,
        start: Start,
        room: Option<OwnedSemaphorePermit>,
    ) {
        let Some(disk) = self.me.upgrade() else { return };
        self.needs_link();
        add(&self.counters.fetches, 1);
        let cx = RequestContext { fresh_since: None, deadline: None, ..RequestContext::new(cx.cred.clone()) };
        let (open, held) = (open.clone(), held.clone());
        tokio::spawn(async move {
            let came = disk.ask_bytes(&cx, &open, &held, &start.fetch).await;
            if matches!(came, Came::Odd) {
                open.live.distrust(&held);
            }
            disk.arrived(&held, &start.fetch, &came, room);
            let _ = start.told.send(Some(came));
        });
    }

    /// The same by filehandle without an open, with no waiting reader.
    pub(super) fn fetch_unopened(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        held: &Arc<CachedVersion>,
        live: &Arc<super::live::Live>,
        start: Start,
        room: OwnedSemaphorePermit,
    ) -> Arc<Fetch> {
        let fetch = start.fetch.clone();
        let (disk, cx, fh) = (self.me.clone(), cx.clone(), fh.clone());
        let (held, live) = (held.clone(), live.clone());
        tokio::spawn(async move {
            let Some(disk) = disk.upgrade() else { return };
            let came = disk.ask_at(&cx, File { fh: &fh, open: None }, &held, &start.fetch).await;
            if matches!(came, Came::Odd) {
                live.distrust(&held);
            }
            disk.arrived(&held, &start.fetch, &came, Some(room));
            let _ = start.told.send(Some(came));
        });
        fetch
    }

    async fn ask_bytes(
        &self,
        cx: &RequestContext,
        open: &Arc<Open>,
        held: &CachedVersion,
        fetch: &Fetch,
    ) -> Came {
        let _busy = open.busy.clone().read_owned().await;
        if open.closed.load(Ordering::Acquire) {
            return Came::Failed(Error::new(libc::EBADF));
        }
        match self.real(open).await {
            Ok(real) => self.ask_at(cx, File { fh: &open.fh, open: Some(real) }, held, fetch).await,
            Err(e) => Came::Failed(e),
        }
    }

    async fn ask_at(&self, cx: &RequestContext, file: File<'_>, held: &CachedVersion, fetch: &Fetch) -> Came {
        let at = fetch.first * BLOCK;
        let len = (held.version.size - at).min(fetch.count * BLOCK);
        match self.below.read(cx, file, at, len as u32).await {
            Ok(read) if read.data.len() as u64 == len => {
                add(&self.counters.fetched_bytes, len);
                Came::Blocks(split(&read.data, BLOCK as usize).into())
            }
            Ok(_) => Came::Odd,
            Err(e) => Came::Failed(e),
        }
    }

    /// Puts fetched blocks into memory and into the queue to the disk, as far as there is room.
    fn arrived(
        &self,
        held: &Arc<CachedVersion>,
        fetch: &Fetch,
        came: &Came,
        room: Option<OwnedSemaphorePermit>,
    ) {
        let mut jobs = Vec::new();
        let using = Arc::new(self.using(&held.fh));
        if let Came::Blocks(blocks) = came
            && self.may_store()
        {
            let mut room = room;
            for (block, bytes) in (fetch.first..).zip(blocks.iter()) {
                let units = units(bytes.len());
                let one = match room.as_mut() {
                    Some(room) => room.split(units),
                    None => self.queue.clone().try_acquire_many_owned(units as u32).ok(),
                };
                match one {
                    Some(room) => {
                        let (held, bytes, using) = (held.clone(), bytes.clone(), using.clone());
                        jobs.push(Job { held, block, bytes, room, _using: using });
                    }
                    None => add(&self.counters.queue_full, 1),
                }
            }
        }
        let mut inner = held.inner.lock();
        let dead = held.is_dead();
        for job in jobs {
            if !dead {
                inner.ready.insert(job.block, job.bytes.clone());
                // Fails only after this layer has ended.
                let _ = self.jobs.send(job);
            }
        }
        for block in fetch.first..fetch.first + fetch.count {
            inner.fetching.remove(&block);
        }
    }

    /// Stores bytes from the start of the file that came with attributes of exactly this version.
    pub(super) fn keep_first(&self, held: &Arc<CachedVersion>, data: &Data) {
        if !self.may_store() || data.len() as u64 > held.version.size {
            return;
        }
        let using = Arc::new(self.using(&held.fh));
        for (block, bytes) in (0..).zip(split(data, BLOCK as usize)) {
            if bytes.len() != held.version.extent(block).1 {
                return;
            }
            let Ok(room) = self.queue.clone().try_acquire_many_owned(units(bytes.len()) as u32) else {
                add(&self.counters.queue_full, 1);
                return;
            };
            // A copy: the slice would keep a larger reply in memory.
            let bytes = Bytes::copy_from_slice(&bytes);
            if held.take_ready(block, &bytes) {
                let (held, using) = (held.clone(), using.clone());
                let _ = self.jobs.send(Job { held, block, bytes, room, _using: using });
            }
        }
    }

    /// Reserves memory for the blocks of a call ahead of its reader.
    pub(super) fn room_for(&self, start: &Start, version: Version) -> Option<OwnedSemaphorePermit> {
        let all: usize = start.blocks().map(|b| units(version.extent(b).1)).sum();
        self.queue.clone().try_acquire_many_owned(all as u32).ok()
    }

    /// The same, waiting a limited time for free memory.
    pub(super) async fn room_in_time(&self, start: &Start, version: Version) -> Option<OwnedSemaphorePermit> {
        let all: usize = start.blocks().map(|b| units(version.extent(b).1)).sum();
        let room = self.queue.clone().acquire_many_owned(all as u32);
        tokio::time::timeout(ROOM_WITHIN, room).await.ok()?.ok()
    }

    /// Returns when half the queue memory is free, or nothing can be added. For callers that read
    /// only to fill the cache, faster than the disk writes. It reserves nothing, so several waiting
    /// callers may continue at once.
    pub async fn roomy(&self) {
        let half = usize::try_from(self.options.queue_bytes / QUEUE_UNIT / 2).unwrap_or(usize::MAX);
        while self.queue.available_permits() < half && self.may_store() {
            tokio::time::sleep(ROOMY_EVERY).await;
        }
    }

    /// Cancels a call that is not made.
    pub(super) fn cancel(&self, held: &Arc<CachedVersion>, start: Start) {
        self.arrived(held, &start.fetch, &Came::Odd, None);
        let _ = start.told.send(Some(Came::Failed(Error::new(libc::EAGAIN))));
    }
}

/// Memory of a block, in units of the queue.
fn units(bytes: usize) -> usize {
    bytes.div_ceil(QUEUE_UNIT as usize)
}

/// Splits data into blocks; copies only blocks that span several buffers.
fn split(data: &Data, block: usize) -> Vec<Bytes> {
    let mut out = Vec::with_capacity(data.len().div_ceil(block));
    let mut partial = BytesMut::new();
    for part in data.parts() {
        let mut part = part.clone();
        while !part.is_empty() {
            if partial.is_empty() && part.len() >= block {
                out.push(part.split_to(block));
                continue;
            }
            let piece = part.split_to(part.len().min(block - partial.len()));
            partial.extend_from_slice(&piece);
            if partial.len() == block {
                out.push(partial.split().freeze());
            }
        }
    }
    if !partial.is_empty() {
        out.push(partial.freeze());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data splits into the same blocks for any sizes of its buffers.
    #[test]
    fn split_ignores_buffer_boundaries() {
        let all: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for cut in [1, 7, 64, 100, 999] {
            let mut data = Data::default();
            all.chunks(cut).for_each(|c| data.push(Bytes::copy_from_slice(c)));
            let blocks = split(&data, 64);
            assert!(blocks[..15].iter().all(|b| b.len() == 64) && blocks[15].len() == 40);
            assert_eq!(blocks.concat(), all);
        }
    }
}
