//! Writes the journal's files: append, sync, and release of disk space.
//!
//! The module does not interpret the records. One thread appends them to segments of about 16 MiB.
//! The thread writes all records that arrived since its last write together.
//!
//! [`Log::written`] ends when the kernel has a record, so that it survives a kill of the process.
//! [`Log::durable`] ends when the record also survives a power cut. Another thread syncs for all
//! waiting callers at once. Without a waiting caller it syncs after one second.
//!
//! A record with bytes lives until the layer above calls [`Log::dead`]. Segments without live
//! records are removed, from the oldest one on. After a device failure no record is acknowledged
//! until [`Log::restart`] succeeds. A restart requires that no record lives.

use super::record::{Record, SEGMENT_HEAD_BYTES, padding, segment_head};
use super::storage::{Segment, SegmentStore};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The longest segment, in bytes. A record that would exceed it begins the next segment.
const SEGMENT_BYTES: u64 = 16 << 20;
/// Written records are synced after this time at the latest.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// Parts of at least this length are written without a copy.
const LARGE_BYTES: usize = 32 << 10;

/// An appended record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Sequence number of the record.
    pub seq: u64,
    /// The segment that holds the record.
    pub segment: u64,
}

/// The journal has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

/// A journal in use. See the module.
pub struct Log {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

/// The progress of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    written: u64,
    durable: u64,
    /// Records up to this one belong to a journal that failed.
    lost: u64,
    failed: bool,
}

struct Shared {
    place: Box<dyn SegmentStore>,
    state: Mutex<State>,
    /// Wakes the writer: a record is pending.
    work: Condvar,
    /// Wakes the syncing thread: a sync or a removal is due.
    sync: Condvar,
    progress: watch::Sender<Progress>,
    segment_bytes: u64,
}

struct State {
    key: u64,
    next_seq: u64,
    pending: Vec<(Ticket, Record)>,
    /// All segments. The last one is being written.
    segments: VecDeque<Room>,
    /// Segments to be removed, each with a record number. The segment is removed when that record
    /// is durable, because a record up to that number may have replaced its content.
    removing: Vec<(u64, u64)>,
    /// The writer has taken records and not yet written all of them.
    writing: bool,
    /// Files with records that are not synced.
    unsynced: Vec<Arc<dyn Segment>>,
    /// A segment was created since the last sync of the directory.
    new_name: bool,
    /// The last record that the running sync covers.
    syncing: u64,
    /// The last record for which a caller waits.
    wanted: u64,
    bytes: u64,
    live_records: u64,
    failed: Option<String>,
    closed: bool,
    syncs: u64,
    appended_bytes: u64,
}

struct Room {
    number: u64,
    bytes: u64,
    live: u64,
}

/// Counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes of all segments.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
    /// Live records with bytes.
    pub live_records: u64,
    /// Bytes appended so far.
    pub appended_bytes: u64,
    /// Syncs so far.
    pub syncs: u64,
}

impl Log {
    /// Starts a log after the existing segments. `old` lists number, bytes and live records of
    /// each.
    ///
    /// # Errors
    /// The threads cannot be started.
    pub fn start(
        place: Box<dyn SegmentStore>,
        key: u64,
        last_seq: u64,
        old: &[(u64, u64, u64)],
    ) -> io::Result<Self> {
        Self::start_with(place, key, last_seq, old, SEGMENT_BYTES)
    }

    pub(super) fn start_with(
        place: Box<dyn SegmentStore>,
        key: u64,
        last_seq: u64,
        old: &[(u64, u64, u64)],
        segment_bytes: u64,
    ) -> io::Result<Self> {
        let mut segments: VecDeque<_> =
            old.iter().map(|&(number, bytes, live)| Room { number, bytes, live }).collect();
        let number = segments.back().map_or(1, |s| s.number + 1);
        segments.push_back(Room { number, bytes: 0, live: 0 });
        let start = Progress { written: last_seq, durable: last_seq, ..Progress::default() };
        let (progress, receiver) = watch::channel(start);
        let state = State {
            key,
            next_seq: last_seq + 1,
            pending: Vec::new(),
            bytes: segments.iter().map(|s| s.bytes).sum(),
            live_records: segments.iter().map(|s| s.live).sum(),
            segments,
            removing: Vec::new(),
            writing: false,
            unsynced: Vec::new(),
            new_name: false,
            syncing: 0,
            wanted: 0,
            failed: None,
            closed: false,
            syncs: 0,
            appended_bytes: 0,
        };
        let shared = Arc::new(Shared {
            place,
            state: Mutex::new(state),
            work: Condvar::new(),
            sync: Condvar::new(),
            progress,
            segment_bytes,
        });
        let thread = |name: &str, run: fn(&Shared)| {
            let shared = shared.clone();
            std::thread::Builder::new().name(name.into()).spawn(move || run(&shared))
        };
        let threads =
            vec![thread("hither-wal", Shared::write)?, thread("hither-wal-sync", Shared::make_durable)?];
        Ok(Self { shared, progress: receiver, threads: Mutex::new(threads) })
    }

    /// Appends a record. A record with bytes lives until [`Log::dead`]. Never waits. The record is
    /// safe only after [`Log::written`].
    pub fn append(&self, record: Record) -> Ticket {
        let (len, lives) = (record.room_bytes(), !record.data.is_empty());
        let mut state = self.shared.state.lock();
        let seq = state.next_seq;
        state.next_seq += 1;
        let full =
            state.segments.back().is_none_or(|s| s.bytes > 0 && s.bytes + len > self.shared.segment_bytes);
        if full {
            let number = state.segments.back().map_or(1, |s| s.number + 1);
            state.segments.push_back(Room { number, bytes: 0, live: 0 });
        }
        let Some(segment) = state.segments.back_mut() else { return Ticket { seq, segment: 0 } };
        let head = if segment.bytes == 0 { SEGMENT_HEAD_BYTES as u64 } else { 0 };
        segment.bytes += head + len;
        segment.live += u64::from(lives);
        let ticket = Ticket { seq, segment: segment.number };
        state.live_records += u64::from(lives);
        state.bytes += head + len;
        state.appended_bytes += head + len;
        if state.failed.is_none() && !state.closed {
            state.pending.push((ticket, record));
            drop(state);
            self.shared.work.notify_one();
        }
        ticket
    }

    /// Ends the life of `records` records of a segment. Leading segments without live records are
    /// removed.
    pub fn dead(&self, segment: u64, records: u64) {
        let mut state = self.shared.state.lock();
        state.live_records = state.live_records.saturating_sub(records);
        if let Ok(i) = state.segments.binary_search_by_key(&segment, |s| s.number) {
            let room = &mut state.segments[i];
            room.live = room.live.saturating_sub(records);
        }
        let mut removed = false;
        while state.segments.len() > 1 && state.segments.front().is_some_and(|s| s.live == 0) {
            let Some(gone) = state.segments.pop_front() else { break };
            state.bytes -= gone.bytes;
            let behind = (gone.number, state.next_seq - 1);
            state.removing.push(behind);
            removed = true;
        }
        drop(state);
        if removed {
            self.shared.sync.notify_one();
        }
    }

    /// Waits until the kernel has a record. The record then survives a kill of the process.
    ///
    /// # Errors
    /// The journal failed before the record was written.
    pub async fn written(&self, seq: u64) -> Result<(), Failed> {
        self.wait(seq, |p| p.written).await
    }

    /// The last appended record.
    pub fn last(&self) -> u64 {
        self.shared.state.lock().next_seq - 1
    }

    /// The last record on stable storage.
    pub fn durable_upto(&self) -> u64 {
        self.shared.progress.borrow().durable
    }

    /// The last record that may be on stable storage, because a sync that covers it has begun.
    pub fn durable_soon_upto(&self) -> u64 {
        let syncing = self.shared.state.lock().syncing;
        syncing.max(self.durable_upto())
    }

    /// Waits until a record is on stable storage.
    ///
    /// # Errors
    /// The journal failed before the record was durable.
    pub async fn durable(&self, seq: u64) -> Result<(), Failed> {
        {
            let mut state = self.shared.state.lock();
            state.wanted = state.wanted.max(seq);
        }
        self.shared.sync.notify_one();
        self.wait(seq, |p| p.durable).await
    }

    async fn wait(&self, seq: u64, of: impl Fn(&Progress) -> u64) -> Result<(), Failed> {
        let mut progress = self.progress.clone();
        let there = progress.wait_for(|p| seq <= p.lost || of(p) >= seq || p.failed).await;
        match there {
            Ok(p) if seq > p.lost && of(&p) >= seq => Ok(()),
            _ => Err(Failed),
        }
    }

    /// The reason of the failure, while the journal has failed.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state.lock().failed.clone()
    }

    /// Whether the journal takes records.
    pub fn works(&self) -> bool {
        !self.progress.borrow().failed
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.shared.state.lock().bytes
    }

    /// Counters.
    pub fn stats(&self) -> LogStats {
        let s = self.shared.state.lock();
        LogStats {
            bytes: s.bytes,
            segments: s.segments.len() as u64,
            live_records: s.live_records,
            appended_bytes: s.appended_bytes,
            syncs: s.syncs,
        }
    }

    /// Restarts the journal after a failure when no record lives. The old segments are removed
    /// first, because the next mount would replay them. Returns false when a record lives or when
    /// the disk does not remove the old segments. Blocks.
    pub fn restart(&self) -> bool {
        let old = {
            let state = self.shared.state.lock();
            // The writer may still create a segment for its batch.
            let is_busy = state.writing || !state.pending.is_empty();
            if state.failed.is_none() || state.live_records > 0 || is_busy {
                return false;
            }
            let gone = state.removing.iter().map(|(number, _)| *number);
            gone.chain(state.segments.iter().map(|s| s.number)).collect::<Vec<_>>()
        };
        let place = &self.shared.place;
        let removed = old.iter().try_for_each(|number| place.remove(*number));
        if let Err(e) = removed.and_then(|()| place.sync_names()).and_then(|()| place.set_failed(false)) {
            tracing::debug!("the journal of delayed writes cannot restart: {e}");
            return false;
        }
        let mut state = self.shared.state.lock();
        if state.live_records > 0 {
            // A record was appended meanwhile and lost. The layer above still has to call
            // [`Log::dead`].
            return false;
        }
        let number = state.segments.back().map_or(1, |s| s.number + 1);
        state.segments.clear();
        state.removing.clear();
        state.segments.push_back(Room { number, bytes: 0, live: 0 });
        state.bytes = 0;
        state.unsynced.clear();
        state.failed = None;
        let lost = state.next_seq - 1;
        self.shared
            .progress
            .send_modify(|p| *p = Progress { written: lost, durable: lost, lost, failed: false });
        drop(state);
        self.shared.sync.notify_one();
        true
    }

    /// Clears the mark of a failure, once the records before the failure are kept elsewhere.
    ///
    /// # Errors
    /// The mark cannot be cleared.
    pub fn trust(&self) -> io::Result<()> {
        self.shared.place.set_failed(false)
    }

    /// Writes and syncs all appended records and ends the threads. When no record lives, all
    /// segments are removed.
    pub fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        self.shared.sync.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        let mut state = self.shared.state.lock();
        if state.live_records == 0 {
            let gone: Vec<u64> = state.removing.drain(..).map(|(number, _)| number).collect();
            let old: Vec<u64> = state.segments.drain(..).map(|s| s.number).collect();
            let failed = state.failed.is_some();
            drop(state);
            let place = &self.shared.place;
            let removed = gone.into_iter().chain(old).try_for_each(|number| place.remove(number));
            if failed && removed.and_then(|()| place.sync_names()).is_ok() {
                let _ = place.set_failed(false);
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// The writer: writes all pending records in batches.
    fn write(&self) {
        let mut current: Option<(u64, Arc<dyn Segment>)> = None;
        loop {
            let batch = {
                let mut state = self.state.lock();
                while state.pending.is_empty() && !state.closed {
                    self.work.wait(&mut state);
                }
                if state.pending.is_empty() {
                    break;
                }
                state.writing = true;
                std::mem::take(&mut state.pending)
            };
            let last = batch.last().map_or(0, |(t, _)| t.seq);
            if let Err(e) = self.write_batch(&mut current, batch) {
                current = None;
                self.fail(&e);
                self.state.lock().writing = false;
                self.sync.notify_one();
                continue;
            }
            self.progress.send_modify(|p| p.written = p.written.max(last));
            // The lock orders this with the syncing thread: that thread either has not checked yet,
            // or already waits.
            self.state.lock().writing = false;
            self.sync.notify_one();
        }
        drop(self.state.lock());
        self.sync.notify_all();
    }

    fn write_batch(
        &self,
        current: &mut Option<(u64, Arc<dyn Segment>)>,
        batch: Vec<(Ticket, Record)>,
    ) -> io::Result<()> {
        let (mut buf, durable) = (Vec::new(), self.progress.borrow().durable);
        let key = self.state.lock().key;
        for (ticket, record) in batch {
            let file = match current {
                Some((number, file)) if *number == ticket.segment => file.clone(),
                _ => {
                    if let Some((_, old)) = current.take() {
                        old.append(&std::mem::take(&mut buf))?;
                    }
                    let file: Arc<dyn Segment> = self.place.create(ticket.segment)?;
                    buf.extend_from_slice(&segment_head(ticket.segment, key));
                    let mut state = self.state.lock();
                    state.unsynced.push(file.clone());
                    state.new_name = true;
                    *current = Some((ticket.segment, file.clone()));
                    file
                }
            };
            let front = record.encode(ticket.seq, durable, key);
            let payload = front.len() + record.data.len() - super::record::HEAD_BYTES;
            buf.extend_from_slice(&front);
            for part in record.data.parts() {
                if part.len() < LARGE_BYTES {
                    buf.extend_from_slice(part);
                } else {
                    file.append(&std::mem::take(&mut buf))?;
                    file.append(part)?;
                }
            }
            buf.extend_from_slice(padding(payload));
        }
        match current {
            Some((_, file)) => file.append(&buf),
            None => Ok(()),
        }
    }

    fn fail(&self, e: &io::Error) {
        if !self.progress.borrow().failed
            && let Err(e) = self.place.set_failed(true)
        {
            tracing::error!("the journal of delayed writes cannot be marked as failed: {e}");
        }
        let mut state = self.state.lock();
        state.pending.clear();
        if state.failed.is_none() {
            tracing::error!(
                "the journal of delayed writes has failed, writes wait for the server from now on: {e}"
            );
            state.failed = Some(e.to_string());
        }
        self.progress.send_modify(|p| p.failed = true);
    }

    /// The syncing thread: syncs for waiting callers and after [`SYNC_AFTER`], and removes dead
    /// segments.
    fn make_durable(&self) {
        loop {
            // The deadline for records without a waiting caller.
            let mut since = None;
            let (files, names, target, closed) = {
                let mut state = self.state.lock();
                loop {
                    let p = *self.progress.borrow();
                    let idle = p.written <= p.durable || p.failed;
                    let quiet = state.pending.is_empty() && !state.writing;
                    let removable = !p.failed && state.removing.iter().any(|(_, seq)| *seq <= p.written);
                    if state.closed && quiet && idle && !removable {
                        return;
                    }
                    let wanted = !p.failed && state.wanted > p.durable && p.written > p.durable;
                    if wanted || removable || (state.closed && quiet) {
                        break;
                    }
                    if idle || state.closed {
                        self.sync.wait(&mut state);
                        continue;
                    }
                    let until = *since.get_or_insert_with(|| Instant::now() + SYNC_AFTER);
                    // Later writes do not extend the deadline, since they might never stop.
                    if self.sync.wait_until(&mut state, until.into_std()).timed_out() {
                        break;
                    }
                }
                // This precedes the copy of the files: they contain all records written so far.
                let target = self.progress.borrow().written;
                state.syncing = target;
                (state.unsynced.clone(), std::mem::take(&mut state.new_name), target, state.closed)
            };
            let synced = self.sync_all(&files, names);
            match synced {
                Ok(()) => self.synced(&files, target),
                Err(e) => self.fail(&e),
            }
            for number in self.removable() {
                if let Err(e) = self.place.remove(number) {
                    tracing::warn!("the journal of delayed writes cannot remove segment {number:016x}: {e}");
                }
            }
            if closed && self.progress.borrow().failed {
                return;
            }
        }
    }

    /// Segments that may be removed, because the records that replaced their content are durable.
    fn removable(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        let p = *self.progress.borrow();
        if p.failed {
            return Vec::new();
        }
        let (gone, stay): (Vec<_>, Vec<_>) = state.removing.drain(..).partition(|(_, seq)| *seq <= p.durable);
        state.removing = stay;
        gone.into_iter().map(|(number, _)| number).collect()
    }

    fn sync_all(&self, files: &[Arc<dyn Segment>], names: bool) -> io::Result<()> {
        let p = *self.progress.borrow();
        if p.failed || (p.written <= p.durable && !names) {
            return Ok(());
        }
        files.iter().try_for_each(|file| file.sync())?;
        if names { self.place.sync_names() } else { Ok(()) }
    }

    fn synced(&self, files: &[Arc<dyn Segment>], target: u64) {
        let mut state = self.state.lock();
        state.syncs += 1;
        // The newest segment is still being written.
        let done = files.len().saturating_sub(1);
        state.unsynced.retain(|file| !files[..done].iter().any(|f| Arc::ptr_eq(f, file)));
        drop(state);
        self.progress.send_modify(|p| {
            if !p.failed && target > p.lost {
                p.durable = p.durable.max(target);
            }
        });
    }
}
