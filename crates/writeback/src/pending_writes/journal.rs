//! The part of a file in the journal of delayed writes, and its release.
//!
//! The module knows nothing of the journal's files (`wal`). A written byte needs a record until it
//! is known to be on the server's stable storage. The module tracks the record with the newest
//! version of each such byte. A flight takes bytes of records up to a number. When the flight
//! lands, its bytes that were not rewritten meanwhile have arrived. Arrived bytes are stable after
//! a stable WRITE, or after a commit that began later succeeded. A record without such bytes is
//! dead. The dead records are reported from the oldest one on.
//!
//! Records that are appended under the lock of the file's state have the order of the events.

use super::file::{File, Names};
use super::stats::Reason;
use super::{WriteBack, extents::Flight, lazy::LAZY_MAX};
use crate::wal::{Base, Event, Record, Ticket, Wal, Write};
use hither_vfs::{
    Attrs, Cred, Data, Fh, File as At, Name, Node, OpenId, PathRef, RequestContext, Result, Stability, Time,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The longest time before arrived bytes are committed, so that they can leave the journal.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// The most states that are remembered: the most WRITEs of a file in flight, and a few more.
const RECENT: usize = 32;

/// The newest version of some bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    end: u64,
    seq: u64,
    /// The number of the landing with which the bytes arrived. 0: they have not arrived.
    landed: u64,
}

/// Bytes in flight.
#[derive(Debug, Clone, Copy)]
struct Flying {
    start: u64,
    end: u64,
    /// The first and last record that may be in the flight.
    low: u64,
    upto: u64,
    stable: bool,
}

#[derive(Debug)]
struct LiveRecord {
    segment: u64,
    bytes: u64,
}

/// One file's part in the journal. Empty without a journal.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    to: Option<(Arc<Wal>, Fh)>,
    spans: BTreeMap<u64, Span>,
    held: BTreeMap<u64, LiveRecord>,
    flights: HashMap<u64, Flying>,
    last: u64,
    /// The first record since no record was live and all earlier ones were durable.
    first: u64,
    /// The last record of any kind.
    noted: Option<Ticket>,
    landings: u64,
    retired: u64,
    base: Option<Base>,
    /// The last states that the server reported. Replies overtake each other, so the present state
    /// may be any of them.
    recent: VecDeque<Base>,
    /// Changes of names or attributes in flight, or with an unknown end.
    touching: u32,
    /// The end of the last such change, until a later request reports a state. The change attribute
    /// has changed, the bytes have not.
    touched: Option<Instant>,
    fileid: u64,
    /// The number of unstable writes that bypassed the journal, and the number of them that are on
    /// stable storage.
    past: (u64, u64),
    /// The file has no name, so it cannot be found after a crash.
    nameless: bool,
    /// The modification time of the last write, if a program saw it.
    seen: Option<Time>,
    /// The server does not have this time. The records stay until it has.
    awaits_time: bool,
}

impl Tracks {
    /// The empty part of a file.
    pub fn of(wal: Option<&Arc<Wal>>, fh: &Fh) -> Self {
        Self { to: wal.map(|wal| (wal.clone(), fh.clone())), ..Self::default() }
    }

    /// Whether the journal has no live record of the file.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Number of the last record with bytes.
    pub fn last(&self) -> u64 {
        self.last
    }

    fn note(&mut self, event: Event) -> Option<Ticket> {
        let (wal, fh) = self.to.as_ref()?;
        self.noted = Some(wal.log().append(Record::of(fh, event)));
        self.noted
    }

    /// Notes attributes that the server reported.
    pub fn saw(&mut self, attrs: &Attrs) {
        if self.to.is_none() {
            return;
        }
        self.fileid = attrs.attr.fileid;
        if attrs.attr.nlink > 0 {
            self.nameless = false;
        }
        let base = Base::of(attrs);
        if self.base != Some(base) {
            self.told_state(base);
            if !self.is_empty() {
                self.note(Event::State(base));
            }
        }
        self.told_since(attrs.asked);
    }

    /// Notes the attributes in the answer to a change of names or attributes.
    pub fn told_after(&mut self, attrs: &Attrs) {
        self.saw(attrs);
        self.touched = None;
    }

    /// Notes that the state at `asked` is known.
    fn told_since(&mut self, asked: Instant) {
        self.touched = self.touched.filter(|at| asked <= *at);
    }

    fn told_state(&mut self, base: Base) {
        self.base = Some(base);
        if !self.recent.contains(&base) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(base);
        }
    }

    /// Journals a write of a program.
    pub fn wrote(&mut self, cred: &Arc<Cred>, offset_bytes: u64, data: &Data, wall_s: i64) -> Option<Ticket> {
        let (wal, fh) = self.to.clone().filter(|_| !self.nameless)?;
        (self.seen, self.awaits_time) = (None, false);
        let (path, fileid, base) = (wal.path(&fh), self.fileid, self.base);
        let write = Write { fileid, path, cred: cred.clone(), offset_bytes, base, wall_s };
        let ticket = wal.log().append(Record { fh, event: Event::Data(write), data: data.clone() });
        let (start, end) = (offset_bytes, offset_bytes + data.len() as u64);
        // The earlier records may be lost together with this one.
        if self.held.is_empty() && self.noted.is_none_or(|noted| noted.seq <= wal.log().durable_upto()) {
            self.first = ticket.seq;
        }
        // The write is acknowledged only after the journal has the states and changes that explain
        // the file.
        let mut told = ticket;
        if self.held.is_empty() {
            wal.counters().files.fetch_add(1, Relaxed);
            for base in self.recent.clone().into_iter().filter(|b| Some(*b) != base) {
                told = self.note(Event::State(base)).unwrap_or(told);
            }
            if self.touching > 0 || self.touched.is_some() {
                told = self.note(Event::Touched).unwrap_or(told);
            }
        }
        wal.counters().writes.fetch_add(1, Relaxed);
        self.held.insert(ticket.seq, LiveRecord { segment: ticket.segment, bytes: 0 });
        self.last = ticket.seq;
        self.carve(start, end, |_| true);
        self.put(start, Span { end, seq: ticket.seq, landed: 0 });
        self.told();
        Some(told)
    }

    /// Journals the modification time that a program saw. A replay sets it as the owner of the
    /// file. `waits`: the server does not have it. Returns whether there is a new record.
    pub fn see(&mut self, owner: &Arc<Cred>, mtime: Time, waits: bool) -> bool {
        if self.is_empty() {
            return false;
        }
        self.awaits_time = waits;
        self.seen.replace(mtime) != Some(mtime) && self.note(Event::Seen(owner.clone(), mtime)).is_some()
    }

    /// Notes that no modification time is missing at the server.
    pub fn times_are_there(&mut self) {
        if std::mem::take(&mut self.awaits_time) {
            self.told();
        }
    }

    /// Journals a flight. Returns the record that must precede the WRITE.
    pub fn sending(&mut self, flight: &Flight, stable: bool) -> Option<Ticket> {
        let (start_bytes, end_bytes) = (flight.start_bytes, flight.start_bytes + flight.data.len() as u64);
        self.to.as_ref()?;
        let first = self.spans.range(..start_bytes).next_back().filter(|(_, s)| s.end > start_bytes);
        let first = first.map_or(start_bytes, |(at, _)| *at);
        let low = self.spans.range(first..end_bytes).map(|(_, s)| s.seq).min().unwrap_or(self.last);
        let flying = Flying { start: start_bytes, end: end_bytes, low, upto: self.last, stable };
        self.flights.insert(flight.id, flying);
        self.note(Event::Sent { start_bytes, end_bytes, upto: self.last })
    }

    /// Journals a truncation that this client is about to send. The record explains a file that
    /// ends there.
    pub fn cutting(&mut self, start_bytes: u64) -> Option<Ticket> {
        if self.is_empty() {
            return None;
        }
        self.note(Event::Sent { start_bytes, end_bytes: u64::MAX, upto: self.last })
    }

    /// Ends a flight: its first `bytes` bytes arrived, or are given up (`lost`). Returns true when
    /// bytes wait for a commit.
    pub fn landed(&mut self, id: u64, bytes: u64, lost: bool, attrs: Option<&Attrs>) -> bool {
        let Some(Flying { start, end, upto, stable, .. }) = self.flights.remove(&id) else { return false };
        let end = end.min(start + bytes);
        let base = attrs.map(Base::of);
        if let (Some(base), Some(attrs)) = (base, attrs) {
            self.told_state(base);
            self.told_since(attrs.asked);
        }
        if end > start && !lost && !self.is_empty() {
            self.note(Event::Landed { start_bytes: start, end_bytes: end, upto, base });
        }
        self.landings += 1;
        let landing = self.landings;
        let mut arrived = self.carve(start, end, |s| s.seq <= upto && s.landed == 0);
        if !stable && !lost {
            for (at, span) in arrived.drain(..) {
                if let Some(held) = self.held.get_mut(&span.seq) {
                    held.bytes += span.end - at;
                }
                self.live(span.end - at, true);
                self.spans.insert(at, Span { landed: landing, ..span });
            }
        }
        self.told();
        !stable && !lost && !self.is_empty()
    }

    /// The numbers of the last landing and of the last write that bypassed the journal. A commit
    /// that begins now covers both.
    pub fn landings(&self) -> (u64, u64) {
        (self.landings, self.past.0)
    }

    /// Notes that all bytes up to these numbers are on stable storage.
    pub fn committed(&mut self, (landings, past): (u64, u64)) {
        self.past.1 = self.past.1.max(past);
        if self.to.is_none() || self.spans.is_empty() {
            return;
        }
        self.carve(0, u64::MAX, |s| s.landed != 0 && s.landed <= landings);
        self.told();
    }

    /// Voids earlier writes to a range.
    pub fn void(&mut self, start_bytes: u64, end_bytes: u64) {
        if !self.is_empty() {
            (self.seen, self.awaits_time) = (None, false);
            self.note(Event::Void { start_bytes, end_bytes });
            self.carve(start_bytes, end_bytes, |_| true);
            self.told();
        }
    }

    /// Notes a coming change of names or attributes. [`Tracks::was_touched`] must follow, whether
    /// the change succeeds or fails.
    pub fn touch(&mut self) {
        self.touching += 1;
        if !self.is_empty() {
            self.note(Event::Touched);
        }
    }

    /// Notes the end of such a change. Later writes record it until a new state is reported.
    pub fn was_touched(&mut self) {
        self.touching = self.touching.saturating_sub(1);
        self.touched = Some(Instant::now());
    }

    /// The last name of the file was removed in this mount. The bytes of a file without a name are
    /// not needed after a crash.
    pub fn lost_its_names(&mut self) {
        self.nameless = true;
        self.void(0, u64::MAX);
    }

    /// Notes a write that bypassed the journal and may not be on stable storage.
    pub fn went_past(&mut self, stability: Stability) {
        self.past.0 += u64::from(stability == Stability::Unstable);
    }

    fn live(&self, bytes: u64, more: bool) {
        let Some((wal, _)) = &self.to else { return };
        if more {
            wal.counters().live_bytes.fetch_add(bytes, Relaxed);
        } else {
            wal.counters().live_bytes.fetch_sub(bytes, Relaxed);
        }
    }

    fn put(&mut self, start: u64, span: Span) {
        if let Some(held) = self.held.get_mut(&span.seq) {
            held.bytes += span.end - start;
        }
        self.live(span.end - start, true);
        self.spans.insert(start, span);
    }

    /// Removes and returns the spans within a range for which `which` is true.
    fn carve(&mut self, start: u64, end: u64, which: impl Fn(&Span) -> bool) -> Vec<(u64, Span)> {
        if start >= end {
            return Vec::new();
        }
        let first =
            self.spans.range(..start).next_back().filter(|(_, s)| s.end > start).map_or(start, |(at, _)| *at);
        let within: Vec<_> =
            self.spans.range(first..end).filter(|(_, s)| which(s)).map(|(at, s)| (*at, *s)).collect();
        let mut out = Vec::with_capacity(within.len());
        for (at, span) in within {
            let (from, to) = (at.max(start), span.end.min(end));
            self.spans.remove(&at);
            if at < from {
                self.spans.insert(at, Span { end: from, ..span });
            }
            if to < span.end {
                self.spans.insert(to, span);
            }
            if let Some(held) = self.held.get_mut(&span.seq) {
                held.bytes -= to - from;
            }
            self.live(to - from, false);
            out.push((from, Span { end: to, ..span }));
        }
        out
    }

    /// Reports dead records to the journal.
    fn told(&mut self) {
        let Some((wal, _)) = self.to.clone().filter(|_| !self.awaits_time) else { return };
        let mut dead: BTreeMap<u64, u64> = BTreeMap::new();
        // Records die roughly in the order of their writing. A dead record after a live one waits.
        while let Some(first) = self.held.first_entry() {
            // A flight without an answer explains the state of the file, so its records stay.
            let seq = *first.key();
            let flies = self.flights.values().any(|f| f.low <= seq && seq <= f.upto);
            if first.get().bytes > 0 || flies {
                break;
            }
            self.retired = *first.key();
            *dead.entry(first.remove().segment).or_default() += 1;
        }
        if dead.is_empty() {
            return;
        }
        self.note(Event::Retire(self.retired));
        dead.into_iter().for_each(|(segment, records)| wal.log().dead(segment, records));
        if self.held.is_empty() {
            wal.counters().files.fetch_sub(1, Relaxed);
        }
    }
}

/// Files with arrived bytes that are not committed.
#[derive(Debug, Default)]
pub(super) struct Uncommitted {
    files: Mutex<HashMap<Fh, Weak<File>>>,
    /// Signals that the journal is half full, or has failed.
    hurry: Notify,
}

impl WriteBack {
    /// Whether a write may be delayed: the journal, if there is one, must take it.
    pub(super) fn journal_takes(&self, len: u64) -> bool {
        let Some(wal) = &self.wal else { return true };
        let takes = wal.takes(len);
        if !takes || wal.is_half_full() {
            self.uncommitted.hurry.notify_one();
        }
        if !takes {
            wal.counters().writes_through.fetch_add(1, Relaxed);
        }
        takes
    }

    /// Whether fsync and close of a file wait for the journal only.
    pub(super) fn commits_locally(&self, fh: &Fh) -> bool {
        self.wal.as_ref().is_some_and(|wal| wal.log().works())
            && (self.options.exclusive || self.may_wait(fh))
    }

    /// Waits until a write survives a kill of this process. When the journal fails, waits until the
    /// server has the write.
    pub(super) async fn journaled(&self, file: &Arc<File>, ticket: Option<Ticket>) -> Result<()> {
        let (Some(wal), Some(ticket)) = (&self.wal, ticket) else { return Ok(()) };
        if wal.log().written(ticket.seq).await.is_ok() {
            return Ok(());
        }
        self.uncommitted.hurry.notify_one();
        wal.counters().writes_through.fetch_add(1, Relaxed);
        self.flush(file, Reason::Order, true).await?;
        self.commit_below(file).await
    }

    /// Waits until all writes of a file are durable in the journal. Returns false when the journal
    /// cannot ensure that.
    pub(super) async fn durable_here(&self, file: &Arc<File>) -> bool {
        let Some(wal) = self.wal.as_ref().filter(|_| self.commits_locally(&file.fh)) else { return false };
        if self.lazy.load(Relaxed) >= LAZY_MAX {
            // Too many opens wait for the server. This caller waits for the server, too.
            return false;
        }
        let (last, empty) = {
            let s = file.state.lock();
            // The journal lacks these bytes, and the server may lack them, too.
            let nowhere = s.journal.is_empty() && !s.extents.is_clean();
            if nowhere || s.journal.past.0 > s.journal.past.1 {
                return false;
            }
            (s.journal.last().max(s.journal.noted.map_or(0, |t| t.seq)), s.journal.is_empty())
        };
        let durable = empty || wal.log().durable(last).await.is_ok();
        wal.counters().local_commits.fetch_add(u64::from(durable), Relaxed);
        durable
    }

    /// Waits until the journal has a record that must precede a call.
    pub(super) async fn announced(&self, ticket: Option<Ticket>) {
        if let (Some(wal), Some(ticket)) = (&self.wal, ticket) {
            // A failure is ignored, because a failed journal promises nothing.
            let _ = wal.log().written(ticket.seq).await;
        }
    }

    /// Waits until the journal has all events of a file, before the caller gets its answer.
    pub(super) async fn noted(&self, file: &File) {
        let noted = file.state.lock().journal.noted;
        self.announced(noted).await;
    }

    /// Like [`WriteBack::noted`], and waits until the records are durable. Otherwise the journal
    /// after a power cut would contradict an answer about the bytes of the file.
    pub(super) async fn noted_for_good(&self, file: &File) {
        let (Some(wal), (first, Some(noted))) = (&self.wal, {
            let s = file.state.lock();
            (s.journal.first, s.journal.noted)
        }) else {
            return;
        };
        self.announced(Some(noted)).await;
        // A power cut leaves no records that are neither durable nor being synced.
        if wal.log().durable_soon_upto() >= first {
            // A failure is ignored, because a failed journal promises nothing.
            let _ = wal.log().durable(noted.seq).await;
        }
    }

    /// Commits the bytes that the layer below has of a file.
    pub(super) async fn commit_journaled(
        &self,
        cx: &RequestContext,
        file: &Arc<File>,
        open: Option<OpenId>,
    ) -> Result<()> {
        self.commit_counted(cx, file, open).await?;
        self.noted_for_good(file).await;
        Ok(())
    }

    async fn commit_counted(&self, cx: &RequestContext, file: &File, open: Option<OpenId>) -> Result<()> {
        let landings = file.state.lock().journal.landings();
        self.below.commit(cx, At { fh: &file.fh, open }).await?;
        file.state.lock().journal.committed(landings);
        Ok(())
    }

    /// Prepares a change that bypasses the journal and overwrites written bytes: all bytes of the
    /// file become stable at the server first.
    pub(super) async fn leave_journal(&self, file: &Arc<File>) -> Result<()> {
        let left = !file.state.lock().journal.is_empty();
        if left {
            return self.commit_below(file).await;
        }
        self.noted_for_good(file).await;
        Ok(())
    }

    /// Queues a file with arrived bytes for a commit.
    pub(super) fn to_commit(&self, file: &Arc<File>) {
        let mut files = self.uncommitted.files.lock();
        files.entry(file.fh.clone()).or_insert_with(|| Arc::downgrade(file));
    }

    /// Closes the open below, which commits. Bytes that are still in the journal are committed
    /// afterwards.
    pub(super) async fn close_below(
        &self,
        cx: &RequestContext,
        file: &Arc<File>,
        open: OpenId,
    ) -> Result<()> {
        let closed = self.below.close(cx, &file.fh, open).await;
        let left = {
            let s = file.state.lock();
            s.is_settled() && !s.journal.is_empty()
        };
        if left && closed.is_ok() {
            return self.commit_below(file).await;
        }
        self.noted_for_good(file).await;
        closed
    }

    /// Runs a call that changes names or attributes of files without reporting them. The outcome of
    /// a dropped call stays unknown.
    pub(super) async fn touching<T>(&self, files: &[Option<&Fh>], call: impl Future<Output = T>) -> T {
        let known = |fh: &Fh| self.known(fh).filter(|_| self.wal.is_some());
        let files: Vec<_> = files.iter().flatten().filter_map(|fh| known(fh)).collect();
        let mut noted = Vec::new();
        for file in &files {
            let mut s = file.state.lock();
            s.journal.touch();
            noted.extend(s.journal.noted);
        }
        for ticket in noted {
            self.announced(Some(ticket)).await;
        }
        let done = call.await;
        files.iter().for_each(|file| file.state.lock().journal.was_touched());
        done
    }

    /// Reads the state of a file after a call that did not report it. Later writes are based on
    /// that state.
    pub(super) async fn look_what_it_is(&self, file: &File) {
        if self.wal.is_none() {
            return;
        }
        let at = At { fh: &file.fh, open: file.state.lock().errors.first_open() };
        // Without an answer, later writes may become a conflict.
        if let Ok(attrs) = self.below.getattr(&self.own_cx().fresh(Instant::now()), at).await {
            file.state.lock().journal.saw(&attrs);
        }
    }

    /// Notes the names of objects for the paths that humans see.
    pub(super) fn note_names(&self, at: PathRef<'_>, steps: &[Node]) {
        let Some(wal) = &self.wal else { return };
        let mut dir = at.base;
        for (name, node) in at.path.iter().zip(steps) {
            wal.named(&node.fh, dir, name);
            dir = &node.fh;
        }
    }

    /// Handles the removal of a name of a file.
    pub(super) async fn lost_a_name(&self, target: Option<&Fh>) {
        if let Some(file) = target.and_then(|fh| self.known(fh)) {
            {
                let mut s = file.state.lock();
                (s.names, s.nameless_since) = (Names::OneLess, self.questions.next());
                s.lost_while_open |= s.opening > 0 || s.errors.opens() > s.lazy;
            }
            self.times_end(&file.fh);
            let journaled = self.wal.is_some() && !file.state.lock().journal.is_empty();
            if journaled && self.has_no_name(&file).await {
                file.state.lock().journal.lost_its_names();
            }
            file.changed.notify_waiters();
            self.noted(&file).await;
        }
    }

    /// Asks the server whether a file has no name. The file may have had more names than this layer
    /// knew.
    async fn has_no_name(&self, file: &File) -> bool {
        let at = At { fh: &file.fh, open: file.state.lock().errors.first_open() };
        match self.below.getattr(&self.own_cx().fresh(Instant::now()), at).await {
            Ok(attrs) => attrs.attr.nlink == 0,
            Err(e) => matches!(e.errno, libc::ESTALE | libc::ENOENT),
        }
    }

    /// The object of a name, as far as this layer knows it.
    pub(super) fn moving(&self, cx: &RequestContext, from: (&Fh, &Name)) -> Option<Fh> {
        let wal = self.wal.as_ref()?;
        let trail = self.below.peek(cx, PathRef::name(from.0, from.1));
        let moved = trail.and_then(|trail| trail.steps.last().map(|node| node.fh.clone()));
        moved.or_else(|| self.files.read().keys().find(|fh| wal.is_named(fh, from.0, from.1)).cloned())
    }

    /// Notes the root directory, which has no name.
    pub(super) fn is_root(&self, fh: &Fh) {
        if let Some(wal) = &self.wal {
            wal.is_root(fh);
        }
    }

    /// Closes the journal. Unsent records stay for the next mount.
    pub(super) fn end_journal(&self) {
        if let Some(wal) = &self.wal {
            wal.close();
        }
    }

    /// Notes the name of a file.
    pub(super) fn named(&self, fh: Option<&Fh>, (dir, name): (&Fh, &Name)) {
        if let (Some(wal), Some(fh)) = (&self.wal, fh) {
            wal.named(fh, dir, name);
        }
    }

    /// Handles an open that truncated a file to zero.
    pub(super) async fn was_cut(&self, fh: &Fh) {
        if let Some(file) = self.known(fh) {
            file.state.lock().journal.void(0, u64::MAX);
            self.noted_for_good(&file).await;
        }
    }

    /// Waits until all writes of a file are durable in the journal, or at the server if the journal
    /// has failed.
    pub(super) async fn durable_somewhere(&self, file: &Arc<File>) -> Result<()> {
        if self.durable_here(file).await {
            return Ok(());
        }
        self.flush(file, Reason::Order, true).await?;
        self.commit_below(file).await
    }

    /// Commits all arrived bytes, at the end of the mount.
    pub(super) async fn commit_journal(&self) -> Result<()> {
        // This includes files that another task may be committing.
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let mut outcome = Ok(());
        for file in files {
            let left = {
                let s = file.state.lock();
                s.is_settled() && !s.journal.is_empty()
            };
            if left {
                outcome = outcome.and(self.commit_for_room(&file).await);
            }
        }
        outcome
    }

    /// Commits a file without a waiting caller, so that its records can leave the journal.
    async fn commit_for_room(&self, file: &Arc<File>) -> Result<()> {
        file.state.lock().unstable = false;
        let committed = self.commit_counted(&self.own_cx(), file, None).await;
        match &committed {
            Ok(()) => self.noted(file).await,
            Err(_) => file.state.lock().unstable = true,
        }
        committed
    }

    /// Commits arrived bytes, so that their records leave the journal. Sends all bytes first when
    /// the journal is half full or has failed.
    async fn make_room(&self) {
        let Some(wal) = &self.wal else { return };
        if wal.is_half_full() || !wal.log().works() {
            // Bytes that cannot be sent are kept, and the files record the errors.
            let _ = self.flush_all(Reason::Pressure).await;
        }
        let files = std::mem::take(&mut *self.uncommitted.files.lock());
        for (_, file) in files {
            let Some(file) = file.upgrade() else { continue };
            if file.state.lock().journal.is_empty() {
                continue;
            }
            if let Err(e) = self.commit_for_room(&file).await {
                file.state.lock().errors.record(e);
                self.to_commit(&file);
            }
            self.tidy(&file);
        }
        let again = wal.clone();
        let restart = move || !again.log().works() && again.log().restart();
        if tokio::task::spawn_blocking(restart).await.unwrap_or(false) {
            tracing::info!("the journal of delayed writes has restarted");
        }
    }
}

/// Releases space of the journal during the life of the layer.
pub(super) async fn make_room(layer: Weak<WriteBack>) {
    loop {
        let Some(this) = layer.upgrade() else { return };
        let uncommitted = this.uncommitted.clone();
        drop(this);
        tokio::select! {
            () = uncommitted.hurry.notified() => {}
            () = tokio::time::sleep(COMMIT_EVERY) => {}
        }
        let Some(this) = layer.upgrade() else { return };
        this.make_room().await;
        if this.wal.as_ref().is_some_and(|wal| !wal.log().works()) {
            drop(this);
            // The pause avoids a busy loop.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
