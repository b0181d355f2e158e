//! Fill-in: partly read files are completed while the link is idle.
//!
//! When an open for reading ends, its file may become a candidate, with the reader's credential.
//! More than a tenth of the file must be cached, but not all of it. The candidate with the fewest
//! missing bytes is completed first; of equals, the smaller file (P0, nfsfillind). The version of a
//! candidate is requested. Its missing blocks are read below by filehandle, a few calls at a time.
//! No open is used, so the server and the layers below have no state that a removal of the file
//! would meet. A call that needs the link stops further calls until the link has been quiet for a
//! moment. Fetched blocks are stored as if a reader had requested them.

use super::format::{BLOCK, Key};
use super::held::{CachedVersion, Came, Fetch};
use super::live::Live;
use super::opens::Open;
use super::stats::add;
use super::{DataCache, Fill};
use hither_vfs::{Cred, Fh, File, RequestContext};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Most candidates; beyond that, those with the most missing bytes are dropped.
const CANDIDATES: usize = 1024;
/// A file is a candidate when more than this part of it is cached: P0's 10 %.
const PART: u64 = 10;
/// The link is idle after so long without a call.
const QUIET: Duration = Duration::from_millis(500);
/// Interval at which idleness is checked.
const TICK: Duration = Duration::from_millis(250);
/// Concurrent calls.
const AT_ONCE: usize = 4;
/// A file is not completed if it exceeds this part of the cache: one in so many.
const SHARE: u64 = 2;

/// Missing bytes, length, key: the order in which candidates are completed.
type Rank = (u64, u64, Key);

/// Files to be completed.
#[derive(Default)]
pub(super) struct Candidates(Mutex<(BTreeMap<Rank, Candidate>, HashMap<Key, Rank>)>);

struct Candidate {
    fh: Fh,
    cred: Arc<Cred>,
}

impl Candidates {
    fn put(&self, key: Key, (missing, size): (u64, u64), candidate: Candidate) {
        let mut all = self.0.lock();
        let (ranks, by_key) = &mut *all;
        if let Some(old) = by_key.insert(key, (missing, size, key)) {
            ranks.remove(&old);
        }
        ranks.insert((missing, size, key), candidate);
        if ranks.len() > CANDIDATES
            && let Some(((.., key), _)) = ranks.pop_last()
        {
            by_key.remove(&key);
        }
    }

    fn next(&self) -> Option<(Rank, Candidate)> {
        let mut all = self.0.lock();
        let (rank, candidate) = all.0.pop_first()?;
        all.1.remove(&rank.2);
        Some((rank, candidate))
    }

    /// Number of candidates.
    pub fn len(&self) -> usize {
        self.0.lock().0.len()
    }
}

/// Result of an attempt.
enum Outcome {
    /// The file is complete, or completing it is of no use.
    Over,
    /// Another call needs the link, or there is no room: retry later.
    Later,
}

/// Runs until the cache is dropped.
pub(super) async fn run(disk: Weak<DataCache>) {
    loop {
        tokio::time::sleep(TICK).await;
        let Some(disk) = disk.upgrade().filter(|disk| !disk.is_ended()) else { return };
        while disk.may_fill()
            && let Some((rank, candidate)) = disk.candidates.next()
        {
            match disk.complete(&candidate).await {
                Outcome::Over => {}
                Outcome::Later => {
                    disk.candidates.put(rank.2, (rank.0, rank.1), candidate);
                    break;
                }
            }
        }
    }
}

impl DataCache {
    /// Records that a call needs the link.
    pub(super) fn needs_link(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        self.asked_ms.store(now, Ordering::Relaxed);
    }

    fn is_quiet(&self) -> bool {
        let now = self.began.elapsed().as_millis() as u64;
        now.saturating_sub(self.asked_ms.load(Ordering::Relaxed)) >= QUIET.as_millis() as u64
    }

    fn may_fill(&self) -> bool {
        let now = match self.options.fill {
            Fill::Off => false,
            Fill::Idle => self.is_quiet(),
            Fill::Rate(_) => true,
        };
        // Blocks that would need an eviction are not worth it.
        let room = || self.shelf().is_some_and(|shelf| shelf.is_roomy(BLOCK));
        now && self.may_store() && room()
    }

    /// Considers the file of a closed open as a candidate.
    pub(super) fn consider(&self, open: &Open) {
        if self.options.fill == Fill::Off || !open.reads || !self.may_store() {
            return;
        }
        let Some(held) = open.live.here() else { return };
        let entry = held.entry().filter(|entry| !entry.is_dead());
        let (size, waiting) = (held.version.size, held.waiting_bytes());
        let here = entry.as_ref().map_or(0, |entry| entry.bytes()).saturating_add(waiting);
        // Bytes that were read faster than the disk writes count as read.
        let known = here.max(open.taken_bytes.load(Ordering::Relaxed));
        if here > 0 && here < size && known.saturating_mul(PART) > size && self.is_worth(size) {
            let candidate = Candidate { fh: open.fh.clone(), cred: open.cred.clone() };
            self.candidates.put(Key::of(&open.fh), (size - here, size), candidate);
        }
    }

    fn is_worth(&self, size: u64) -> bool {
        size <= self.options.hard_bytes.min(self.options.dir_hard_bytes) / SHARE
    }

    async fn complete(&self, candidate: &Candidate) -> Outcome {
        let (cx, using) = (RequestContext::new(candidate.cred.clone()), self.using(&candidate.fh));
        let ticket = self.ticket_quietly();
        let file = File { fh: &candidate.fh, open: None };
        let Ok(attrs) = self.below.getattr(&cx.fresh(Instant::now()), file).await else {
            return Outcome::Over;
        };
        let Some(held) = self.learn(&candidate.fh, &attrs, ticket) else { return Outcome::Over };
        held.look(self).await;
        if held.entry().is_none() && self.queued_bytes() > 0 {
            // The disk may not have taken the bytes of the reader yet. They belong to the version
            // that the reader held, which is another one after the reader's close.
            return Outcome::Later;
        }
        if !held.entry().is_some_and(|entry| !entry.is_dead() && !entry.is_complete()) {
            // The entry is complete, or dropped, or has another version.
            return Outcome::Over;
        }
        let outcome = self.read_missing(&cx, &candidate.fh, &held, using.arc()).await;
        if matches!(outcome, Outcome::Over) && !held.is_dead() {
            add(&self.counters.filled_files, 1);
        }
        outcome
    }

    async fn read_missing(
        &self,
        cx: &RequestContext,
        fh: &Fh,
        held: &Arc<CachedVersion>,
        live: &Arc<Live>,
    ) -> Outcome {
        let unit = (self.options.fetch_bytes / BLOCK).max(1);
        let mut running: VecDeque<Arc<Fetch>> = VecDeque::new();
        let mut block = 0;
        while block < held.version.blocks() {
            let count = unit.min(held.version.blocks() - block);
            let mut starts: VecDeque<_> = held.missing(block, count).into();
            while let Some(start) = starts.pop_front() {
                let go_on = !held.is_dead() && self.may_fill();
                let room = if go_on { self.room_in_time(&start, held.version).await } else { None };
                let Some(room) = room else {
                    // Other readers wait for these calls: after the cancellation they make their
                    // own.
                    std::iter::once(start).chain(starts).for_each(|start| self.cancel(held, start));
                    return Outcome::Later;
                };
                let bytes = start.blocks().map(|b| held.version.extent(b).1 as u64).sum();
                add(&self.counters.filled_bytes, bytes);
                running.push_back(self.fetch_unopened(cx, fh, held, live, start, room));
                let well = running.len() < AT_ONCE || ended_well(&mut running).await;
                if !well {
                    starts.into_iter().for_each(|start| self.cancel(held, start));
                    return Outcome::Over;
                }
                self.pace(bytes).await;
            }
            block += count;
        }
        while !running.is_empty() {
            if !ended_well(&mut running).await {
                return Outcome::Over;
            }
        }
        Outcome::Over
    }

    async fn pace(&self, bytes: u64) {
        if let Fill::Rate(rate) = self.options.fill {
            tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)).await;
        }
    }
}

/// Waits for the oldest call; returns whether its bytes arrived.
async fn ended_well(running: &mut VecDeque<Arc<Fetch>>) -> bool {
    let Some(fetch) = running.pop_front() else { return true };
    match fetch.first_block().await {
        Ok(_) => true,
        Err(Came::Failed(_) | Came::Odd | Came::Blocks(_)) => false,
    }
}
