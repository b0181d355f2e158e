//! Sending of written bytes: workers, flights, waits, room and age.
//!
//! The module does not know the calls above. A file has up to a handful of workers. A worker is a
//! task that takes a chunk, sends it and looks for more. Each WRITE needs one of the mount's slots,
//! which are granted in the order of requests. A worker chooses its bytes when it has the slot, so
//! that bytes merge while they wait. A worker that finds more bytes starts another worker. A file
//! without bytes to send has no task.
//!
//! A file has more than one worker only while it has fewer than the free slots. A few files of a
//! silent server thus leave slots for other files.

use super::extents::Flight;
use super::file::{Failing, File, Names, State};
use super::finish::{Load, Refusal};
use super::stats::{Counters, Reason};
use super::{WriteBack, is_final};
use hither_vfs::{Error, File as At, OpenId, RequestContext, Result, Stability, Wrote};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// First and longest pause before failed bytes are sent again.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The room for a write.
pub(super) enum Room {
    /// The room was reserved.
    Taken,
    /// There will be room when this or another file has sent some bytes.
    Later,
    /// The file has no own bytes to send. The write is passed on at once.
    Never,
    /// The file's bytes cannot be sent for now.
    Failing(Failing),
}

impl WriteBack {
    /// Changes a file's state and updates the total of all bytes. Wakes tasks that wait for room
    /// when the total shrinks.
    pub(super) fn with<R>(&self, file: &File, change: impl FnOnce(&mut State) -> R) -> R {
        self.with_room(file, 0, change)
    }

    /// Like [`WriteBack::with`], after [`WriteBack::room`] reserved `taken` bytes.
    pub(super) fn with_room<R>(&self, file: &File, taken: u64, change: impl FnOnce(&mut State) -> R) -> R {
        let mut s = file.state.lock();
        let before = s.extents.bytes();
        let out = change(&mut s);
        let after = s.extents.bytes();
        if s.is_settled() {
            (s.stable, s.told, s.failing, s.backoff, s.seen) = (false, None, None, None, None);
            s.journal.times_are_there();
        }
        drop(s);
        self.total.fetch_add(after, Relaxed);
        self.total.fetch_sub(before + taken, Relaxed);
        if after < before {
            file.changed.notify_waiters();
        }
        if after < before + taken {
            self.freed.notify_waiters();
        }
        out
    }

    /// Reserves room for `len` bytes. A file may have as many bytes as are free. Any number of
    /// files at top speed thus leaves a share for the next file.
    pub(super) fn room(&self, file: &File, len: u64) -> Room {
        let s = file.state.lock();
        if let Some(failing) = &s.failing {
            return Room::Failing(failing.clone());
        }
        let (own, limits) = (s.extents.bytes(), &self.options);
        let pieces = s.extents.pieces();
        drop(s);
        if pieces >= limits.most_pieces {
            return Room::Later;
        }
        let fits = |total: u64| {
            let free = limits.dirty_max_bytes.saturating_sub(total);
            let share = if own == 0 { free } else { limits.file_max_bytes.min(free).saturating_sub(own) };
            (len <= share).then_some(total + len)
        };
        match self.total.fetch_update(Relaxed, Relaxed, fits) {
            Ok(total) => {
                self.counters.dirty_bytes_peak.fetch_max(total + len, Relaxed);
                Room::Taken
            }
            Err(_) if own == 0 => Room::Never,
            Err(_) => Room::Later,
        }
    }

    /// Waits until this or another file has sent some bytes.
    pub(super) async fn some_room(&self, file: &Arc<File>, len: u64) {
        let mut freed = std::pin::pin!(self.freed.notified());
        freed.as_mut().enable();
        let mut changed = std::pin::pin!(file.changed.notified());
        changed.as_mut().enable();
        match self.room(file, len) {
            Room::Later => {}
            // The writer requests the room again.
            Room::Taken => return self.with_room(file, len, |_| ()),
            Room::Never | Room::Failing(_) => return,
        }
        Counters::add(&self.counters.pushbacks, 1);
        self.relieve(file);
        self.pump(file);
        tokio::select! {
            () = freed => {}
            () = changed => {}
        }
    }

    /// Starts to send a file for lack of room, unless chunks of the file are in flight. The last
    /// bytes of a sequential writer are to become a whole chunk.
    fn relieve(&self, file: &Arc<File>) -> bool {
        let (idle, place) = {
            let mut s = file.state.lock();
            let idle = !s.extents.is_clean() && !s.extents.is_busy() && s.failing.is_none();
            if idle {
                s.seal();
            }
            // The file has no age to watch.
            let place = if idle || s.is_settled() { s.queued.take() } else { None };
            (idle, place)
        };
        if let Some(place) = place {
            self.ages.remove(place);
        }
        if idle {
            self.counters.flush(Reason::Pressure);
            self.pump(file);
        }
        idle
    }

    /// Starts to send old small files when half of the room is used.
    pub(super) fn relieve_old(&self) {
        if self.total.load(Relaxed) > self.options.dirty_max_bytes / 2 {
            for file in self.ages.oldest() {
                if self.relieve(&file) {
                    return;
                }
            }
        }
    }

    /// Sends all bytes written until now and waits for them. The file records permanent refusals.
    /// Bytes that may be accepted later are kept.
    ///
    /// # Errors
    /// The reason why bytes are kept.
    pub(super) async fn flush(&self, file: &Arc<File>, reason: Reason, stable: bool) -> Result<()> {
        self.flush_and(file, reason, stable, true).await
    }

    /// Like [`WriteBack::flush`], for callers that need the bytes only. A later fsync or close
    /// returns errors of the attributes.
    pub(super) async fn flush_bytes(&self, file: &Arc<File>, reason: Reason, stable: bool) -> Result<()> {
        self.flush_and(file, reason, stable, false).await
    }

    async fn flush_and(&self, file: &Arc<File>, reason: Reason, stable: bool, attrs: bool) -> Result<()> {
        let (target, deferred) = {
            let mut s = file.state.lock();
            if s.is_settled() {
                return Ok(());
            }
            if reason == Reason::Recall {
                s.losing_name = false;
            }
            s.failing = None;
            s.deferred.retry(None);
            s.stable |= stable;
            (s.seal(), s.deferred.seal())
        };
        self.counters.flush(reason);
        self.pump(file);
        file.when(|s| match (s.extents.is_done(target), s.deferred.is_done(deferred)) {
            (true, true) => Some(Ok(())),
            // The bytes precede this, so that refused attributes do not keep accepted bytes from
            // the server.
            (true, false) if s.deferred.trouble().is_some() => {
                Some(s.deferred.trouble().filter(|_| attrs).map_or(Ok(()), |e| Err(e.clone())))
            }
            _ => s.failing.as_ref().map(|f| Err(f.error.clone())),
        })
        .await
    }

    /// Starts to send all bytes written until now.
    pub(super) fn flush_in_background(&self, file: &Arc<File>, reason: Reason) {
        file.state.lock().seal();
        self.counters.flush(reason);
        self.pump(file);
    }

    /// Starts a worker, if the file has bytes to send and fewer workers than its share.
    pub(super) fn pump(&self, file: &Arc<File>) {
        {
            let mut s = file.state.lock();
            if s.workers >= self.most_workers(&s) || !s.has_load() {
                return;
            }
            s.workers += 1;
        }
        tokio::spawn(self.this().work(file.clone()));
    }

    /// The file's share of workers, at least one.
    fn most_workers(&self, s: &State) -> usize {
        let limits = &self.options;
        let full = (limits.flights_per_file as u64).saturating_mul(s.extents.chunk_bytes());
        let most = if s.extents.flying_bytes() < full {
            limits.small_flights_per_file.max(limits.flights_per_file)
        } else {
            limits.flights_per_file
        };
        most.min(self.slots.available_permits().max(1))
    }

    async fn work(self: Arc<Self>, file: Arc<File>) {
        loop {
            // The semaphore is never closed.
            let Ok(_slot) = self.slots.acquire().await else { return };
            let alone = self.fills_gaps() && self.leases.delegated_bytes(&file.fh).is_some();
            let (load, noted) = {
                let mut s = file.state.lock();
                let share = s.workers <= self.most_workers(&s) || s.deferred.is_pressing();
                let Some(load) = share.then(|| s.load(alone)).flatten() else {
                    s.workers -= 1;
                    break;
                };
                let noted = match &load {
                    Load::One(flight, stability) => {
                        s.journal.sending(flight, *stability == Stability::Stable)
                    }
                    Load::Last(Some(flight), _) => s.journal.sending(flight, true),
                    Load::Last(None, _) => None,
                };
                (load, noted)
            };
            self.pump(&file);
            self.announced(noted).await;
            match load {
                Load::One(flight, stability) => self.send(&file, flight, stability).await,
                Load::Last(flight, deferred) => self.finish(&file, flight, deferred).await,
            }
        }
        file.changed.notify_waiters();
        self.tidy(&file);
    }

    async fn send(&self, file: &Arc<File>, flight: Flight, stability: Stability) {
        let cx =
            RequestContext { only_held: flight.filled, ..RequestContext::new(flight.origin.cred.clone()) };
        let at = At { fh: &file.fh, open: Some(flight.origin.open) };
        let len = flight.data.len() as u64;
        let sent = self.below.write(&cx, at, flight.start_bytes, flight.data, stability).await;
        let sent = match sent {
            Ok(w) if w.bytes == 0 => Err(Error::because(libc::EIO, "the server writes no bytes")),
            Ok(w) => Ok(Wrote { bytes: w.bytes.min(len), ..w }),
            Err(e) => Err(e),
        };
        match sent {
            Ok(wrote) => self.sent(file, flight.id, flight.start_bytes, wrote),
            Err(_) if flight.filled => self.not_filled(file, flight.id),
            Err(e) => {
                let errno = e.errno;
                self.not_sent(file, Some((flight.id, len)), false, e);
                self.look_after_refusal(file, errno).await;
            }
        }
    }

    /// Reads the state of a file after a WRITE that a full server refused: it has changed times,
    /// and no bytes. After a crash that state shows no change of another client.
    pub(super) async fn look_after_refusal(&self, file: &File, errno: i32) {
        if matches!(errno, libc::ENOSPC | libc::EDQUOT) {
            self.look_what_it_is(file).await;
        }
    }

    fn sent(&self, file: &Arc<File>, id: u64, start: u64, wrote: Wrote) {
        Counters::add(&self.counters.writes_out, 1);
        Counters::add(&self.counters.bytes_out, wrote.bytes);
        let arrived = self.with(file, |s| {
            let alone = s.extents.landed(id, wrote.bytes) && s.view.through == 0;
            let attrs = wrote.attrs.as_ref();
            s.view.changed(Instant::now(), start + wrote.bytes, attrs, alone);
            if let Some(attrs) = attrs {
                self.clock.heard(attrs.attr.ctime, attrs.asked);
            }
            s.backoff = None;
            s.journal.landed(id, wrote.bytes, false, attrs)
        });
        if arrived {
            self.to_commit(file);
        }
    }

    /// Whether gaps may be filled with zeros. A journal has only written bytes, so gaps are not
    /// filled with a journal.
    fn fills_gaps(&self) -> bool {
        self.options.fills_gaps && self.wal.is_none()
    }

    /// Handles the failure of a flight with filled gaps. The delegation may have ended, so the
    /// pieces are sent separately.
    fn not_filled(&self, file: &Arc<File>, id: u64) {
        self.with(file, |s| {
            s.keeps_gaps = true;
            s.extents.landed(id, 0);
            s.view.changed(Instant::now(), 0, None, false);
        });
        file.changed.notify_waiters();
    }

    /// Handles the failure of a flight (number and length) and its attributes.
    pub(super) fn not_sent(&self, file: &Arc<File>, flight: Option<(u64, u64)>, deferred: bool, e: Error) {
        Counters::add(&self.counters.writes_failed, 1);
        let fresh = self.next_change();
        let now = Instant::now();
        let refused = is_final(&e) && flight.is_some();
        // A handle is stale after the last name was removed. The bytes of a file without users are
        // not needed.
        let gone = e.errno == libc::ESTALE && file.state.lock().is_leaving();
        let lost = refused && !gone;
        let retry_at = self.with(file, |s| {
            if let Some((id, len)) = flight {
                let ended_bytes = if refused { len } else { 0 };
                s.extents.landed(id, ended_bytes);
                s.journal.landed(id, ended_bytes, refused, None);
            }
            // The server may have executed the call all the same.
            s.view.changed(now, 0, None, false);
            let owed_end = match (deferred, flight.is_none()) {
                (true, true) => self.refuse_deferred(s, &e),
                (true, false) => {
                    s.deferred_failed();
                    Refusal::Waits
                }
                (false, _) => Refusal::Waits,
            };
            let set_refused = owed_end == Refusal::Lost;
            if owed_end == Refusal::Unasked || gone && (refused || set_refused) {
                return None;
            }
            if lost || set_refused {
                s.errors.record(e.clone());
                s.view.broken(fresh);
                return None;
            }
            if s.told != Some(e.errno) {
                s.told = Some(e.errno);
                s.errors.record_late(e.clone());
            }
            if flight.is_none() && deferred {
                return Some(s.deferred.troubled(e.clone(), now, BACKOFF_FIRST, BACKOFF_MAX));
            }
            if s.failing.is_some() {
                // Another flight of the same attempt has failed before.
                return None;
            }
            let backoff = s.backoff.map_or(BACKOFF_FIRST, |b| (b * 2).min(BACKOFF_MAX));
            s.backoff = Some(backoff);
            s.failing = Some(Failing { error: e.clone(), retry_at: now + backoff });
            Some(now + backoff)
        });
        if let Some(at) = retry_at {
            self.ages.push(at, file);
        }
        if let (true, Some((_, len))) = (refused && gone, flight) {
            Counters::add(&self.counters.bytes_unsent, len);
        }
        if let (true, Some((_, len))) = (lost, flight) {
            Counters::add(&self.counters.bytes_dropped, len);
            self.report_loss(file, Some(len), &e);
        }
        file.changed.notify_waiters();
    }

    /// Waits until no bytes of `open` are in flight, and drops its dirty bytes.
    pub(super) async fn abandon(&self, file: &File, open: OpenId) -> u64 {
        file.when(|s| (!s.extents.is_flying_of(open)).then_some(())).await;
        let fresh = self.next_change();
        self.with(file, |s| {
            let ranges = s.extents.drop_open(open);
            ranges.iter().for_each(|(start, end)| s.journal.void(*start, *end));
            let dropped = ranges.iter().map(|(start, end)| end - start).sum();
            s.deferred.give_up(open);
            if dropped > 0 {
                s.view.broken(fresh);
            }
            if s.is_settled() {
                s.failing = None;
            }
            dropped
        })
    }

    /// Drops the bytes of an open that a full server did not take before the release of a lock. A
    /// later attempt could overwrite bytes of the next holder. A journal keeps them: a program may
    /// have been told that they are safe.
    pub(super) async fn give_up_refused(&self, file: &File, open: Option<OpenId>, e: &Error) {
        let (Some(open), None, libc::ENOSPC | libc::EDQUOT) = (open, &self.wal, e.errno) else { return };
        let dropped = self.abandon(file, open).await;
        if dropped > 0 {
            Counters::add(&self.counters.bytes_dropped, dropped);
            file.state.lock().errors.record(e.clone());
            self.report_loss(file, Some(dropped), e);
        }
    }

    /// Handles the age of a file that lost a name. A file with another name is sent like any other.
    async fn age_unless_nameless(self: Arc<Self>, file: Arc<File>) {
        let open = file.state.lock().errors.first_open();
        let nameless = match open {
            Some(open) => self.is_nameless(&self.own_cx(), &file, open).await,
            None => false,
        };
        if nameless {
            self.look_after(&mut file.state.lock(), &file, Instant::now())
        } else {
            self.flush_in_background(&file, Reason::Age)
        }
    }

    /// Handles the age of a file.
    fn aged(&self, file: &Arc<File>, now: Instant) {
        let again = {
            let mut s = file.state.lock();
            s.queued = None;
            let oldest = [s.extents.oldest(), s.deferred.since()].into_iter().flatten().min();
            let Some(oldest) = oldest else { return };
            let due = oldest + self.options.dirty_age;
            s.deferred.retry(Some(now));
            if s.failing.is_some() && s.deferred.since().is_some_and(|at| at + self.options.dirty_age <= now)
            {
                // Permissions are sent even if the bytes cannot be.
                s.deferred.urge();
            }
            match &s.failing {
                Some(f) if now < f.retry_at => Some(f.retry_at),
                Some(_) => {
                    s.failing = None;
                    None
                }
                // A file without names may wait for its end.
                None if s.names == Names::None => Some(now + self.options.dirty_age),
                None if s.names == Names::OneLess && now >= due => {
                    drop(s);
                    tokio::spawn(self.this().age_unless_nameless(file.clone()));
                    return;
                }
                None => (now < due).then_some(due),
            }
        };
        match again {
            Some(at) => {
                let place = self.ages.push(at, file);
                file.state.lock().queued = Some(place);
                self.pump(file);
            }
            None => self.flush_in_background(file, Reason::Age),
        }
    }
}

/// The number of old files that are checked when room gets scarce.
const OLDEST: usize = 4;

/// The queue of files by the time of their next check.
#[derive(Debug, Default)]
pub(super) struct Ages {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    next: u64,
    files: BTreeMap<QueueKey, Weak<File>>,
}

/// The place of a file in the queue.
pub(super) type QueueKey = (Instant, u64);

impl Ages {
    /// Queues `file` for a check at that time.
    pub fn push(&self, at: Instant, file: &Arc<File>) -> QueueKey {
        let mut q = self.queue.lock();
        let first = q.files.keys().next().is_none_or(|(t, _)| at < *t);
        q.next += 1;
        let place = (at, q.next);
        q.files.insert(place, Arc::downgrade(file));
        drop(q);
        if first {
            self.changed.notify_one();
        }
        place
    }

    /// Removes a place.
    pub fn remove(&self, place: QueueKey) {
        self.queue.lock().files.remove(&place);
    }

    fn oldest(&self) -> Vec<Arc<File>> {
        self.queue.lock().files.values().take(OLDEST).filter_map(Weak::upgrade).collect()
    }

    /// Wakes the task that watches the age.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    fn due(&self, now: Instant) -> (Vec<Arc<File>>, Option<Instant>) {
        let mut q = self.queue.lock();
        let mut due = Vec::new();
        while let Some(entry) = q.files.first_entry() {
            if entry.key().0 > now {
                return (due, Some(entry.key().0));
            }
            due.extend(entry.remove().upgrade());
        }
        (due, None)
    }
}

/// Watches the age of dirty bytes during the life of the layer.
pub(super) async fn age(layer: Weak<WriteBack>, ages: Arc<Ages>) {
    loop {
        let now = Instant::now();
        let (files, next) = ages.due(now);
        {
            let Some(layer) = layer.upgrade() else { return };
            files.iter().for_each(|file| layer.aged(file, now));
        }
        drop(files);
        let later = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ages.changed.notified() => {}
            () = later => {}
        }
    }
}
