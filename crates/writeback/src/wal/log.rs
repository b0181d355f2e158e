//! The journal's files while they are written: appending, becoming durable, giving room back.
//!
//! It knows nothing of what the records say. Records are appended to segments of some 16 MiB by one
//! thread, which takes all that came together meanwhile; [`Log::written`] ends when a record is
//! where a kill of the process does not reach it (the kernel has it), [`Log::durable`] when a power
//! cut does not either: another thread syncs, for all who wait at once, and by itself a second
//! later. A record with bytes is dead when the layer above says so; segments are removed from the
//! front as long as nothing in them lives. When the device fails nothing is acknowledged any more
//! until [`Log::restart`] finds that nothing lives and begins anew.

use super::place::{Place, Segment};
use super::record::{Record, SEGMENT_HEAD_BYTES, padding, segment_head};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A segment is ended when it would become longer.
const SEGMENT_BYTES: u64 = 16 << 20;
/// What was written is synced by itself after that time.
const SYNC_AFTER: Duration = Duration::from_secs(1);
/// Parts from this length on are written from where they are.
const LARGE_BYTES: usize = 32 << 10;

/// A record that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Its number.
    pub seq: u64,
    /// The segment it is in.
    pub segment: u64,
}

/// The journal has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

/// A journal in use; see the module.
pub struct Log {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

/// How far it is; changes together with `generation` when it begins anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Progress {
    written: u64,
    durable: u64,
    /// Records up to this one are in a journal that failed.
    lost: u64,
    failed: bool,
}

struct Shared {
    place: Box<dyn Place>,
    state: Mutex<State>,
    /// There is something to write.
    work: Condvar,
    /// There is something to sync or to remove.
    sync: Condvar,
    progress: watch::Sender<Progress>,
    segment_bytes: u64,
}

struct State {
    key: u64,
    next_seq: u64,
    pending: Vec<(Ticket, Record)>,
    /// All there are, the one being written last.
    segments: VecDeque<Room>,
    /// Segments whose names are to go, each when the record beside it is durable: what makes it
    /// useless may be that one.
    removing: Vec<(u64, u64)>,
    /// Records were taken to be written.
    writing: bool,
    /// Files with something that is not synced.
    unsynced: Vec<Arc<dyn Segment>>,
    /// A segment was made since the names were synced.
    new_name: bool,
    /// The last record that a sync under way is about.
    syncing: u64,
    /// Somebody waits for this record.
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
    /// Records with bytes that live.
    pub live_records: u64,
    /// Bytes appended so far.
    pub appended_bytes: u64,
    /// Syncs so far.
    pub syncs: u64,
}

impl Log {
    /// Goes on behind what `old` says is there already: segments, their bytes and live records.
    ///
    /// # Errors
    /// No threads.
    pub fn start(
        place: Box<dyn Place>,
        key: u64,
        last_seq: u64,
        old: &[(u64, u64, u64)],
    ) -> io::Result<Self> {
        Self::start_with(place, key, last_seq, old, SEGMENT_BYTES)
    }

    pub(super) fn start_with(
        place: Box<dyn Place>,
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

    /// Appends a record; one with bytes lives until [`Log::dead`]. Never waits: nothing is promised
    /// before [`Log::written`].
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

    /// Records of that segment live no more; what only held them is removed.
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

    /// Waits until the kernel has a record: killing this process loses nothing of it.
    ///
    /// # Errors
    /// It will not.
    pub async fn written(&self, seq: u64) -> Result<(), Failed> {
        self.wait(seq, |p| p.written).await
    }

    /// The last record that was appended.
    pub fn last(&self) -> u64 {
        self.shared.state.lock().next_seq - 1
    }

    /// The last record that is on stable storage.
    pub fn durable_upto(&self) -> u64 {
        self.shared.progress.borrow().durable
    }

    /// The last record that may be: it is being synced.
    pub fn durable_soon_upto(&self) -> u64 {
        let syncing = self.shared.state.lock().syncing;
        syncing.max(self.durable_upto())
    }

    /// Waits until a record is on stable storage.
    ///
    /// # Errors
    /// It will not be.
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

    /// Why nothing is written now.
    pub fn trouble(&self) -> Option<String> {
        self.shared.state.lock().failed.clone()
    }

    /// Whether it takes records.
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

    /// After a failure, when nothing lives: removes what there is and takes records again. False
    /// when something lives, and when the disk does not let go of the old records: the next mount
    /// would take them for what is left. Blocks.
    pub fn restart(&self) -> bool {
        let old = {
            let state = self.shared.state.lock();
            if state.failed.is_none() || state.live_records > 0 {
                return false;
            }
            let gone = state.removing.iter().map(|(number, _)| *number);
            gone.chain(state.segments.iter().map(|s| s.number)).collect::<Vec<_>>()
        };
        let place = &self.shared.place;
        let removed = old.iter().try_for_each(|number| place.remove(*number));
        if let Err(e) = removed.and_then(|()| place.sync_names()).and_then(|()| place.set_failed(false)) {
            tracing::debug!("the journal of delayed writes is not begun anew: {e}");
            return false;
        }
        let mut state = self.shared.state.lock();
        if state.live_records > 0 {
            // Written meanwhile, and lost: its removal is still to come.
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

    /// What a failure left is somewhere else now.
    ///
    /// # Errors
    /// That cannot be written down.
    pub fn trust(&self) -> io::Result<()> {
        self.shared.place.set_failed(false)
    }

    /// Ends the threads; what was appended is written and synced. When nothing lives, nothing
    /// stays.
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
    /// The writer: takes what has come together.
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
            // Under the lock: the thread that syncs has either not looked yet, or waits already.
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
                "the journal of delayed writes fails, writes wait for the server from now on: {e}"
            );
            state.failed = Some(e.to_string());
        }
        self.progress.send_modify(|p| p.failed = true);
    }

    /// Syncs when somebody waits, and by itself; removes what is dead.
    fn make_durable(&self) {
        loop {
            // When the first of the records was there that nobody waits for.
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
                    // Not anew with every write: there may always be one more.
                    if self.sync.wait_until(&mut state, until.into_std()).timed_out() {
                        break;
                    }
                }
                // Before the files are looked at: what is written by now is in them.
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
                    tracing::warn!("journal of delayed writes: removing segment {number:016x}: {e}");
                }
            }
            if closed && self.progress.borrow().failed {
                return;
            }
        }
    }

    /// Segments that nothing needs any more: what says so is durable.
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
        // The newest one is written on.
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
