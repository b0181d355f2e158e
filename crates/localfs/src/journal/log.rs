//! The file of the journal: it stores records and returns them after a crash. All acknowledged
//! records are returned.
//!
//! The log knows nothing of the contents of a record. The file has two headers, written in turn,
//! and a ring of batches. A batch holds the records that were appended while the previous batch was
//! written. A batch is one write and is durable when the write returns; many callers may wait for
//! one batch (group commit). Each batch has its number, a checksum and the epoch of the journal.
//! The first batch that is missing, torn or of another epoch ends the journal. A later whole batch
//! shows that this batch was durable and is damaged ([`Found::check`]). A batch does not wrap
//! around: a batch that does not fit at the end starts at the beginning.
//!
//! Checkpoints free the space of records ([`checkpoint`]). When the ring is full, appending waits.
//!
//! When the device of the journal fails, the callbacks of waiting records get `false`. The layer
//! above makes their changes stable in the file system below before it acknowledges them. From then
//! on [`Log::failed`] tells the layer above to do without the journal.

mod checkpoint;
mod damage;
mod head;
mod health;
mod scan;

pub use checkpoint::{Goal, Settle};
pub use damage::Survey;
pub use head::Owner;

use super::device::Device;
use head::Head;
use health::Health;
pub use health::LogStats;
use parking_lot::{Condvar, Mutex, MutexGuard};
use scan::each_record;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use twox_hash::XxHash3_64;

/// Unit of writing, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Offset of the ring: after the two headers.
const RING_AT: u64 = 2 * BLOCK_BYTES as u64;
/// Smallest journal, in bytes.
pub const SIZE_MIN_BYTES: u64 = 1 << 20;
/// The first word of a batch.
const BATCH_MAGIC: u64 = 0x6869_7468_6261_7463;
/// Length of the header of a batch, in bytes.
const BATCH_HEAD_BYTES: usize = 48;
/// The writer waits until as many records are pending as the last batch had. The wait takes at most
/// the write time of the last batch divided by this number.
const GATHER_PART: u32 = 4;
/// The longest wait of the writer for more records.
const GATHER_MAX: Duration = Duration::from_millis(1);

/// A place in the journal: the batch at the place, and the first record in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    batch: u64,
    offset: u64,
    seq: u64,
}

/// The reasons why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Neither block holds a valid header.
    #[error("no journal")]
    None,
    /// The journal has the format of another version of hither.
    #[error("the journal of another version of hither")]
    Version,
    /// The journal belongs to another machine, file system or export.
    #[error("the journal of another machine or file system")]
    Foreign,
    /// The device fails, or is too small.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A journal that was found. Its records are read before it is written again.
pub struct Found {
    device: Arc<dyn Device>,
    head: Head,
    /// Offset of a block that lacks its header.
    headless_at: Option<u64>,
}

impl Found {
    /// Formats the device as an empty journal. Existing contents are lost.
    pub fn format(device: Arc<dyn Device>, owner: Owner, epoch: u64) -> io::Result<Self> {
        let size = device.size()? / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        if size < SIZE_MIN_BYTES {
            let why = format!("a journal needs at least {SIZE_MIN_BYTES} bytes");
            return Err(io::Error::new(ErrorKind::StorageFull, why));
        }
        let tail = Position { batch: 1, offset: RING_AT, seq: 1 };
        let head = Head { owner, epoch, size, generation: 1, tail };
        head.write(&*device)?;
        Head { generation: 2, ..head }.write(&*device)?;
        Ok(Self { device, head: Head { generation: 2, ..head }, headless_at: None })
    }

    /// Finds the journal on a device. Without `owner`, the journal of any owner.
    pub fn open(device: Arc<dyn Device>, owner: Option<Owner>) -> Result<Self, OpenError> {
        let mut best: Option<Head> = None;
        let mut has_other_version = false;
        let mut headless_at = None;
        let mut block = [0; BLOCK_BYTES];
        for at in [0, BLOCK_BYTES as u64] {
            match device.read_at(&mut block, at) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => continue,
                Err(e) => return Err(e.into()),
            }
            has_other_version |= Head::has_other_version(&block);
            let head = Head::parse(&block);
            if head.is_none() {
                headless_at = Some(at);
            }
            best = [best, head].into_iter().flatten().max_by_key(|h| h.generation);
        }
        if has_other_version {
            return Err(OpenError::Version);
        }
        let head = best.ok_or(OpenError::None)?;
        if owner.is_some_and(|owner| head.owner != owner) {
            return Err(OpenError::Foreign);
        }
        if device.size()? < head.size {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "the journal was truncated").into());
        }
        Ok(Self { device, head, headless_at })
    }

    /// Hands all records since the last checkpoint to `each`, in order, with the number and the
    /// offset on the device. Returns the end of the journal.
    fn read_all(&self, mut each: impl FnMut(u64, u64, &[u8]) -> io::Result<()>) -> io::Result<Position> {
        let mut here = self.head.tail;
        loop {
            let batch = match self.batch_at(here)? {
                Some(batch) => batch,
                None if here.offset != RING_AT => {
                    match self.batch_at(Position { offset: RING_AT, ..here })? {
                        Some(batch) => {
                            here.offset = RING_AT;
                            batch
                        }
                        None => return Ok(here),
                    }
                }
                None => return Ok(here),
            };
            let payload_at = here.offset + BATCH_HEAD_BYTES as u64;
            let seq = each_record(&batch.payload, batch.first_seq, |seq, at, record| {
                if seq < self.head.tail.seq { Ok(()) } else { each(seq, payload_at + at, record) }
            })?;
            here = Position { batch: here.batch + 1, offset: here.offset + batch.room, seq };
            if here.offset >= self.head.size {
                here.offset = RING_AT;
            }
        }
    }

    /// Hands all records since the last checkpoint to `each`, in order. Changes nothing.
    pub fn read(&self, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        self.read_all(|seq, _, record| each(seq, record)).map(drop)
    }

    /// The number of this journal, from the moment at which it was formatted. No other journal has
    /// it.
    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    /// The batch at `here`; `None` unless the expected batch is there and whole.
    fn batch_at(&self, here: Position) -> io::Result<Option<Batch>> {
        if here.offset + BLOCK_BYTES as u64 > self.head.size {
            return Ok(None);
        }
        let mut first = [0; BLOCK_BYTES];
        self.device.read_at(&mut first, here.offset)?;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&first[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (magic, epoch, number, first_seq, len, sum) =
            (word(0), word(8), word(16), word(24), word(32), word(40));
        let room = room_of(len);
        let fits = room.is_some_and(|room| here.offset + room <= self.head.size);
        if magic != BATCH_MAGIC || epoch != self.head.epoch || number != here.batch || !fits {
            return Ok(None);
        }
        let room = room.unwrap_or_default();
        let mut whole = vec![0; room as usize];
        whole[..BLOCK_BYTES].copy_from_slice(&first);
        if room as usize > BLOCK_BYTES {
            self.device.read_at(&mut whole[BLOCK_BYTES..], here.offset + BLOCK_BYTES as u64)?;
        }
        let used = BATCH_HEAD_BYTES + len as usize;
        if checksum(&whole[..40], &whole[BATCH_HEAD_BYTES..used]) != sum {
            return Ok(None);
        }
        whole.truncate(used);
        whole.drain(..BATCH_HEAD_BYTES);
        Ok(Some(Batch { first_seq, payload: whole, room }))
    }

    /// Reads all records and has `settle` make their changes stable. Then starts an empty journal.
    /// Record numbers continue.
    pub fn start(
        mut self,
        mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
        settle: Arc<Settle>,
    ) -> io::Result<Log> {
        let end = self.read_all(|seq, _, record| each(seq, record))?;
        if end != self.head.tail {
            let last = end.seq - 1;
            if settle(Goal::all(last))? < last {
                return Err(io::Error::other("records of the journal are not stable"));
            }
            self.head.tail = end;
            self.head.generation += 1;
            self.head.write(&*self.device)?;
        }
        Log::new(self, settle)
    }
}

struct Batch {
    first_seq: u64,
    payload: Vec<u8>,
    /// Bytes that the batch takes in the ring.
    room: u64,
}

/// Bytes that a batch with a payload of `len` bytes takes in the ring; `None` when the sum
/// overflows.
fn room_of(len: u64) -> Option<u64> {
    let block = BLOCK_BYTES as u64;
    len.checked_add(BATCH_HEAD_BYTES as u64 + block - 1).map(|n| n / block * block)
}

fn checksum(head: &[u8], payload: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(head), payload)
}

/// Called once with whether a record became durable; must not block.
pub type Then = Box<dyn FnOnce(bool) + Send>;

/// A journal in use.
pub struct Log {
    shared: Arc<Shared>,
    durable: watch::Receiver<u64>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

struct Shared {
    device: Arc<dyn Device>,
    state: Mutex<State>,
    /// Signals that records are pending.
    work: Condvar,
    /// Signals free space in the ring, or room to append.
    room: Condvar,
    /// Signals that a checkpoint is wanted.
    wanted: Condvar,
    /// Signals that records became durable, or never will.
    done: Condvar,
    durable: watch::Sender<u64>,
    settle: Arc<Settle>,
    failed: AtomicBool,
    settled: Arc<AtomicU64>,
    pressed: Arc<AtomicBool>,
    /// Held during a checkpoint: an older checkpoint must not move the tail back.
    turn: Mutex<()>,
}

struct State {
    head: Head,
    /// Space for the header of a batch, then the records that the writer has not taken. Each record
    /// follows its length.
    pending: Vec<u8>,
    /// Number of the next record.
    next_seq: u64,
    /// Number of the first record in `pending`.
    pending_seq: u64,
    /// The callbacks of the pending records.
    waiting: Vec<Then>,
    /// Set while the writer works (`u64::MAX`), or gathers this many records. Fewer records need
    /// not wake it.
    wake_at: Option<u64>,
    /// Number of records of the last batch, and the time of its write.
    last: (u64, Duration),
    /// A caller of [`Log::see_to`] writes in place of the writer.
    leading: bool,
    /// The memory of the previous batch.
    spare: Vec<u8>,
    /// Position of the next batch.
    end: Position,
    /// Batches since the tail.
    live: VecDeque<LiveBatch>,
    used: u64,
    /// The writer waits for a checkpoint.
    hurry: bool,
    /// A checkpoint failed, or [`Log::keep_all`] was called: no space is freed.
    stuck: bool,
    /// Calls of [`Log::keep_all`].
    kept_all: u64,
    closed: bool,
    health: Health,
}

/// A durable batch with records that are not settled.
struct LiveBatch {
    last_seq: u64,
    /// Bytes that the batch takes, with the bytes skipped before it.
    taken: u64,
    position: Position,
    durable_at: Instant,
}

impl Log {
    fn new(found: Found, settle: Arc<Settle>) -> io::Result<Self> {
        let tail = found.head.tail;
        let (durable_tx, durable) = watch::channel(tail.seq - 1);
        let state = State {
            head: found.head,
            pending: vec![0; BATCH_HEAD_BYTES],
            next_seq: tail.seq,
            pending_seq: tail.seq,
            waiting: Vec::new(),
            wake_at: None,
            last: (0, Duration::ZERO),
            leading: false,
            spare: Vec::new(),
            end: tail,
            live: VecDeque::new(),
            used: 0,
            hurry: false,
            stuck: false,
            kept_all: 0,
            closed: false,
            health: Health::default(),
        };
        let shared = Arc::new(Shared {
            device: found.device,
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            wanted: Condvar::new(),
            done: Condvar::new(),
            durable: durable_tx,
            settle,
            failed: AtomicBool::new(false),
            settled: Arc::new(AtomicU64::new(tail.seq - 1)),
            pressed: Arc::default(),
            turn: Mutex::default(),
        });
        let thread = |name: &str, run: fn(&Shared)| {
            let shared = shared.clone();
            std::thread::Builder::new().name(name.into()).spawn(move || run(&shared))
        };
        let threads = vec![thread("hither-journal", Shared::write)?, thread("hither-settle", Shared::check)?];
        Ok(Self { shared, durable, threads: Mutex::new(threads) })
    }

    /// Appends a record, given in parts, and returns its number. Blocks while the journal is full.
    /// The record may be lost until [`Log::durable`] returns.
    pub fn append(&self, parts: &[&[u8]]) -> u64 {
        let seq = self.push(parts, None, |_| ());
        self.shared.work.notify_one();
        seq
    }

    /// As [`Log::append`], with callbacks. The writer calls `then` with `true` when the record is
    /// durable, and with `false` when it is unknown whether the record ever will be. One thread
    /// calls all callbacks: that is cheaper than to wake a thread for each record. `numbered` is
    /// called with the number of the record before any checkpoint knows the record; it must not
    /// block. Call [`Log::see_to`] soon, when no lock is held.
    pub fn append_then(&self, parts: &[&[u8]], then: Then, numbered: impl FnOnce(u64)) -> u64 {
        self.push(parts, Some(then), numbered)
    }

    fn push(&self, parts: &[&[u8]], then: Option<Then>, numbered: impl FnOnce(u64)) -> u64 {
        let shared = &*self.shared;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = shared.state.lock();
        let most = state.pending_max();
        while !state.is_empty() && state.pending.len() + len + 4 > most && !self.failed() {
            // The thread that appended the pending records may not have called `see_to` yet.
            shared.work.notify_one();
            shared.room.wait(&mut state);
        }
        let seq = state.next_seq;
        state.next_seq += 1;
        if self.failed() {
            drop(state);
            if let Some(then) = then {
                then(false);
            }
            return seq;
        }
        numbered(seq);
        state.pending.extend_from_slice(&(len as u32).to_le_bytes());
        for part in parts {
            state.pending.extend_from_slice(part);
        }
        state.waiting.extend(then);
        // The last record that a gathering writer waits for wakes it.
        let enough = |count| state.next_seq - state.pending_seq >= count;
        let wake = state.wake_at.is_some_and(|count| enough(count) || state.pending.len() >= most / 2);
        drop(state);
        if wake {
            shared.work.notify_one();
        }
        seq
    }

    /// Has the appended records written. This thread writes when it appends alone: to wake the
    /// writer takes more than half of the time of the write. The writer writes when many threads
    /// append, or when this thread has more to append (not `alone`). A batch of the writer then
    /// holds the records of all.
    pub fn see_to(&self, alone: bool) {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        if state.wake_at.is_some() || state.is_empty() || self.failed() {
            return;
        }
        if !alone || state.last.0 > 1 || state.closed {
            drop(state);
            shared.work.notify_one();
            return;
        }
        state.leading = true;
        state.wake_at = Some(u64::MAX);
        let written = shared.batch(state);
        let mut state = shared.state.lock();
        state.leading = false;
        state.wake_at = None;
        if !written || state.closed || !state.is_empty() {
            shared.work.notify_one();
        }
    }

    /// As [`Log::durable`], for a thread that may block.
    pub fn wait_durable(&self, seq: u64) -> bool {
        self.see_to(true);
        let durable = || *self.durable.borrow() >= seq;
        let mut state = self.shared.state.lock();
        while !durable() && !self.failed() {
            self.shared.done.wait(&mut state);
        }
        durable()
    }

    /// The last settled record. The changes of this record and of all earlier ones are stable in
    /// the file system below.
    pub fn settled(&self) -> Arc<AtomicU64> {
        self.shared.settled.clone()
    }

    /// Longest record, in bytes.
    pub fn record_max(&self) -> usize {
        self.shared.state.lock().pending_max() - 4
    }

    /// Returns when a record and all earlier records are durable. `false`: the journal failed, and
    /// it is unknown whether the record is durable.
    pub async fn durable(&self, seq: u64) -> bool {
        let mut durable = self.durable.clone();
        let done = durable.wait_for(|&d| d >= seq || self.failed()).await;
        done.is_ok_and(|d| *d >= seq)
    }

    /// Whether the device of the journal failed. Records appended after that never become durable.
    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::SeqCst)
    }

    /// Writes the pending records and ends. With `settle`, a last checkpoint leaves no records for
    /// the next start.
    pub fn close(&self, settle: bool) -> io::Result<()> {
        {
            let mut state = self.shared.state.lock();
            state.closed = true;
            self.shared.pressed.store(true, Ordering::SeqCst);
        }
        self.shared.work.notify_all();
        self.shared.wanted.notify_all();
        self.shared.room.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        let settled = if settle { self.shared.checkpoint(true) } else { Ok(()) };
        // Records appended after this are never written.
        self.shared.end(Vec::new());
        settled
    }

    /// Whether the writer waits for space.
    #[cfg(test)]
    pub fn waits_for_room(&self) -> bool {
        self.shared.state.lock().hurry
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = self.close(false);
    }
}

impl State {
    /// Whether no record is pending.
    fn is_empty(&self) -> bool {
        self.pending.len() == BATCH_HEAD_BYTES
    }

    /// Most bytes that may be pending: no batch takes more than a quarter of the ring.
    fn pending_max(&self) -> usize {
        (((self.head.size - RING_AT) / 4) as usize).min(4 << 20) - BATCH_HEAD_BYTES - BLOCK_BYTES
    }

    /// Offset for a batch that takes `room` bytes, and the bytes that it takes with the skipped
    /// ones; `None` when the ring lacks the space.
    fn place(&self, room: u64) -> Option<(u64, u64)> {
        let skip = if self.end.offset + room > self.head.size { self.head.size - self.end.offset } else { 0 };
        let offset = if skip > 0 { RING_AT } else { self.end.offset };
        // The ring is never filled wholly: a full ring would look like an empty one.
        (self.used + skip + room < self.head.size - RING_AT).then_some((offset, skip + room))
    }
}

impl Shared {
    /// The writer thread: takes the pending records and makes them durable.
    fn write(&self) {
        while let Some(state) = self.gather() {
            if !self.batch(state) {
                return;
            }
        }
    }

    /// Makes the pending records durable and calls their callbacks. `false`: the journal failed.
    fn batch(&self, mut state: MutexGuard<'_, State>) -> bool {
        let mut asked = false;
        let place = loop {
            // Computed again in each turn: records are appended during the wait, and this batch
            // holds all pending records.
            let room = room_of((state.pending.len() - BATCH_HEAD_BYTES) as u64).unwrap_or(u64::MAX);
            match state.place(room) {
                Some((offset, taken)) => break Some((offset, taken, room)),
                // Only checkpoints free space, and none will come any more.
                None if state.closed || self.failed.load(Ordering::SeqCst) => break None,
                // The checkpoint that this batch waited for failed.
                None if state.stuck && asked && !state.hurry => break None,
                None => {
                    asked = true;
                    state.hurry = true;
                    self.pressed.store(true, Ordering::SeqCst);
                    self.wanted.notify_one();
                    self.room.wait(&mut state);
                }
            }
        };
        let waiting = std::mem::take(&mut state.waiting);
        let Some((offset, taken, room)) = place else {
            drop(state);
            self.fail("its ring is full, and no checkpoint succeeds", waiting);
            return false;
        };
        let last = state.next_seq - 1;
        let count = state.next_seq - state.pending_seq;
        let number = state.end.batch;
        let mut buf = take_frame(&mut state, number);
        state.pending_seq = last + 1;
        drop(state);
        // The next batch is appended meanwhile.
        self.room.notify_all();
        finish_frame(&mut buf);
        let began = Instant::now();
        if let Err(e) = self.device.write_at(&buf, offset) {
            self.fail(&e.to_string(), waiting);
            return false;
        }
        self.written(
            Position { batch: number, offset, seq: last },
            (taken, room),
            (count, began.elapsed()),
            buf,
        );
        waiting.into_iter().for_each(|then| then(true));
        true
    }

    /// Waits for records, and then a moment for more; `None` at the end. The callers that waited
    /// for the last batch append again in a moment. Without this pause, callers in step divide into
    /// two halves that wait for each other.
    fn gather(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        state.wake_at = None;
        while state.leading || (state.is_empty() && !state.closed) {
            self.work.wait(&mut state);
        }
        let (last_count, last_took) = state.last;
        let until = Instant::now() + (last_took / GATHER_PART).min(GATHER_MAX);
        while state.next_seq - state.pending_seq < last_count
            && state.pending.len() < state.pending_max() / 2
            && !state.closed
        {
            state.wake_at = Some(last_count);
            if self.work.wait_until(&mut state, until.into_std()).timed_out() {
                break;
            }
        }
        state.wake_at = Some(u64::MAX);
        // A caller that wrote in place of the writer may have found that the journal fails.
        if state.is_empty() || self.failed.load(Ordering::SeqCst) { None } else { Some(state) }
    }

    /// Notes a durable batch; `at.seq` is its last record.
    fn written(&self, at: Position, (taken, room): (u64, u64), last: (u64, Duration), spare: Vec<u8>) {
        let mut state = self.state.lock();
        state.last = last;
        state.health.written(last.0);
        state.spare = spare;
        let position = Position { seq: 0, ..at };
        state.live.push_back(LiveBatch { last_seq: at.seq, taken, position, durable_at: Instant::now() });
        state.used += taken;
        let mut next = at.offset + room;
        if next >= state.head.size {
            next = RING_AT;
        }
        state.end = Position { batch: at.batch + 1, offset: next, seq: at.seq + 1 };
        let wanted = state.wants_checkpoint();
        self.pressed.store(state.is_pressed(), Ordering::SeqCst);
        // Under the lock: otherwise a waiter could look before this and wait after it.
        self.durable.send_replace(at.seq);
        drop(state);
        self.done.notify_all();
        if wanted {
            self.wanted.notify_one();
        }
    }

    fn fail(&self, why: &str, waiting: Vec<Then>) {
        if !self.failed.load(Ordering::SeqCst) {
            tracing::error!("the journal fails, and calls are slower from now on: {why}");
        }
        self.end(waiting);
    }

    /// No further record becomes durable: calls all waiting callbacks with `false`.
    fn end(&self, mut waiting: Vec<Then>) {
        // Under the lock: otherwise a waiter could look before this and wait after it. Each waiter
        // looks again.
        let mut state = self.state.lock();
        self.failed.store(true, Ordering::SeqCst);
        self.durable.send_modify(|_| ());
        waiting.append(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|then| then(false));
        self.room.notify_all();
        self.done.notify_all();
    }
}

/// Takes the pending records as a batch without checksum.
fn take_frame(state: &mut State, number: u64) -> Vec<u8> {
    let mut next = std::mem::take(&mut state.spare);
    next.clear();
    next.resize(BATCH_HEAD_BYTES, 0);
    let mut buf = std::mem::replace(&mut state.pending, next);
    let len = (buf.len() - BATCH_HEAD_BYTES) as u64;
    let words = [BATCH_MAGIC, state.head.epoch, number, state.pending_seq, len, 0];
    for (to, word) in buf.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    buf
}

/// Adds the checksum and pads the batch to whole blocks.
fn finish_frame(buf: &mut Vec<u8>) {
    let (head, payload) = buf.split_at(BATCH_HEAD_BYTES);
    let sum = checksum(&head[..BATCH_HEAD_BYTES - 8], payload);
    buf[BATCH_HEAD_BYTES - 8..BATCH_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    buf.resize(buf.len().next_multiple_of(BLOCK_BYTES), 0);
}
