//! The last load of a file: the remaining bytes and the delayed attributes, in one call.
//!
//! The module does not know when that happens. A load is the last under these conditions:
//!
//! - No bytes of the file are in flight.
//! - All dirty bytes are to be sent.
//! - They have one origin and no gaps, and fit into one WRITE.
//!
//! The bytes are then sent with the attributes, stable, without a COMMIT. Bytes with gaps are sent
//! like all others, with many WRITEs in flight and one COMMIT.
//!
//! A modification time is sent after all bytes that were written before it. It is also sent after a
//! commit of the bytes that the layer below still keeps, because a second write would change the
//! time. Permissions and access times wait for no bytes. A continuous writer, or bytes that a full
//! server refuses, cannot keep them from the server.

use super::deferred::Deferred;
use super::extents::{Extents, Flight, Rules};
use super::file::{File, State};
use super::stats::Counters;
use super::{WriteBack, is_final};
use hither_vfs::{Attrs, Error, File as At, OpenId, RequestContext, Stability};
use std::sync::Arc;
use tokio::time::Instant;

/// The next load of a worker.
pub(super) enum Load {
    /// One piece.
    One(Flight, Stability),
    /// All remaining bytes with attributes, or attributes that are independent of bytes.
    Last(Option<Flight>, Deferred),
}

/// The bytes of a last load.
#[derive(Clone, Copy)]
struct LastBytes {
    /// The number of the flight.
    id: u64,
    /// Offset of the first byte.
    start: u64,
    /// Length in bytes.
    len: u64,
}

impl LastBytes {
    fn of(flight: &Flight) -> Self {
        Self { id: flight.id, start: flight.start_bytes, len: flight.data.len() as u64 }
    }
}

/// The server's answer to a last load.
struct Landing<'a> {
    bytes: Option<LastBytes>,
    /// Bytes that the server wrote.
    wrote: u64,
    /// The server wrote all bytes.
    whole: bool,
    /// The server set the attributes.
    is_set: bool,
    /// The attributes have a modification time.
    sets_mtime: bool,
    /// The attributes after the call.
    attrs: Option<&'a Attrs>,
}

/// The fate of attributes after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// They are sent again.
    Waits,
    /// They are given up, and a program that set them gets the error.
    Lost,
    /// A time that a program saw is given up. No program asked for the call.
    Unasked,
}

impl State {
    /// Whether attributes are to be sent that have no bytes before them.
    pub fn has_deferred_alone(&self, rules: Rules) -> bool {
        self.deferred.is_due() && !self.extents.is_flying() && !self.extents.has_work(rules)
    }

    /// Whether something can be sent now. No bytes are sent together with a modification time,
    /// because a later write would change the time.
    pub fn has_load(&self) -> bool {
        if self.losing_name {
            return false;
        }
        let work =
            |rules| self.extents.has_work(rules) || self.has_deferred_alone(rules) || self.deferred.is_free();
        self.deferred.is_pressing() || !self.deferred.holds() && self.rules().is_some_and(work)
    }

    /// The next load. `alone`: no other client can change the file before the load arrives, or the
    /// load is refused.
    pub fn load(&mut self, alone: bool) -> Option<Load> {
        if self.losing_name {
            return None;
        }
        if self.deferred.is_pressing() {
            return Some(Load::Last(None, self.deferred.take_free()?));
        }
        let rules = self.rules().filter(|_| !self.deferred.holds())?;
        if self.has_deferred_alone(rules) || self.goes_together(rules) {
            let deferred = self.deferred.take()?;
            return Some(Load::Last(self.extents.take_whole(rules), deferred));
        }
        if let Some(deferred) = self.deferred.take_free() {
            return Some(Load::Last(None, deferred));
        }
        let rules = self.rules_alone().filter(|_| alone).unwrap_or(rules);
        let flight = self.extents.take(rules)?;
        // A flight that is valid under a delegation only is stable, so that the layer below does
        // not keep it for another attempt.
        let stable = flight.filled || self.stable && flight.last && !self.unstable;
        self.unstable |= !stable;
        Some(Load::One(flight, if stable { Stability::Stable } else { Stability::Unstable }))
    }

    /// Whether all bytes and the attributes may be sent in one call.
    fn goes_together(&self, rules: Rules) -> bool {
        let by = self.deferred.waiting().filter(|_| self.deferred.is_due()).map(|o| &o.by.cred);
        by.is_some() && !self.unstable && self.extents.is_last(rules) && self.extents.first_cred() == by
    }
}

impl Extents {
    /// Whether all bytes fit into one flight.
    fn is_last(&self, rules: Rules) -> bool {
        rules.hold_from == u64::MAX
            && !self.is_flying()
            && self.runs() == 1
            && self.bytes() <= self.chunk_bytes()
            && self.is_one(rules.flush_to)
    }
}

impl WriteBack {
    /// Sends a last load.
    pub(super) async fn finish(&self, file: &Arc<File>, flight: Option<Flight>, deferred: Deferred) {
        let cx = RequestContext {
            sets_write_time: deferred.is_seen_time(),
            ..RequestContext::new(deferred.by.cred.clone())
        };
        let open = flight.as_ref().map_or(deferred.by.open, |f| f.origin.open);
        // The open may have ended before its attributes, when a call that was to replace them
        // failed.
        let open = file.state.lock().errors.access(open).map(|_| open);
        let at = At { fh: &file.fh, open };
        if flight.is_none() && deferred.set.mtime.is_some() {
            self.commit_before_times(&cx, file, open).await;
        }
        // Whether another own change is in flight meanwhile.
        let flights = usize::from(flight.is_some());
        let only = |s: &State| s.view.through == 0 && s.extents.flying() == flights;
        let before = {
            let s = file.state.lock();
            only(&s).then(|| s.extents.taken())
        };
        let bytes = flight.as_ref().map(LastBytes::of);
        let len = bytes.map_or(0, |bytes| bytes.len);
        let piece = flight.map(|f| (f.start_bytes, f.data));
        let call = self.below.finish(&cx, at, piece, &deferred.set);
        let sent = match self.touching(&[Some(&file.fh)], call).await {
            Ok(f) if f.wrote.bytes == 0 && len > 0 => {
                Err(Error::because(libc::EIO, "the server writes no bytes"))
            }
            sent => sent,
        };
        let done = match sent {
            Ok(done) => done,
            Err(e) => {
                let errno = e.errno;
                self.not_sent(file, bytes.map(|bytes| (bytes.id, bytes.len)), true, e);
                return self.look_after_refusal(file, errno).await;
            }
        };
        let wrote = done.wrote.bytes.min(len);
        Counters::add(&self.counters.writes_out, flights as u64);
        Counters::add(&self.counters.bytes_out, wrote);
        Counters::add(&self.counters.finishes, 1);
        let whole = wrote == len;
        let refused = done.set.err().filter(|_| whole);
        let landing = Landing {
            bytes,
            wrote,
            whole,
            is_set: whole && refused.is_none(),
            sets_mtime: deferred.set.mtime.is_some(),
            attrs: done.wrote.attrs.as_ref(),
        };
        self.with(file, |s| {
            let alone = only(s) && before == Some(s.extents.taken());
            self.note_landing(file, s, &landing, alone);
        });
        if let Some(e) = refused {
            self.not_sent(file, None, true, e);
        }
        file.changed.notify_waiters();
    }

    /// Commits the bytes that the layer below keeps. A second write would change the times that are
    /// about to be set.
    async fn commit_before_times(&self, cx: &RequestContext, file: &Arc<File>, open: Option<OpenId>) {
        if !std::mem::take(&mut file.state.lock().unstable) {
            return;
        }
        // The program's fsync or close returns an error of the commit. The attributes are set in
        // any case.
        if let Err(e) = self.commit_journaled(cx, file, open).await {
            let mut s = file.state.lock();
            s.unstable = true;
            s.errors.record(e);
        }
    }

    /// Notes the answer to a last load. `alone`: no other change of this client was in flight.
    fn note_landing(&self, file: &Arc<File>, s: &mut State, landing: &Landing<'_>, alone: bool) {
        let &Landing { bytes, wrote, attrs, .. } = landing;
        if let Some(LastBytes { id, .. }) = bytes {
            s.extents.landed(id, wrote);
            s.journal.landed(id, wrote, false, attrs);
        }
        if let Some(attrs) = attrs.filter(|_| landing.is_set) {
            s.journal.told_after(attrs);
        }
        let start = bytes.map_or(0, |bytes| bytes.start);
        let end = if wrote > 0 { start + wrote } else { 0 };
        let now = Instant::now();
        s.view.changed(now, end, attrs, alone);
        if bytes.is_some() {
            s.backoff = None;
        }
        if !landing.whole {
            s.deferred_failed();
        } else if landing.is_set {
            s.deferred.landed(now, attrs);
            if landing.sets_mtime && s.extents.is_clean() {
                // The server's times are the requested ones.
                s.view.time = None;
            }
            // Of two changes that programs saw, the last one gives the times.
            if s.is_settled() {
                self.keep_seen(file, s, attrs);
            }
        }
    }

    /// Gives up attributes that the server refuses for good.
    pub(super) fn refuse_deferred(&self, s: &mut State, e: &Error) -> Refusal {
        let is_final = is_final(e) || matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS);
        // No program asked for a seen time, so no call fails for it and no later attempt sets it
        // over another client's change.
        if !is_final && !s.deferred.sends_seen_time() {
            s.deferred_failed();
            return Refusal::Waits;
        }
        if is_final && let Some(owner) = s.deferred.refused_seen_time() {
            // The refusal may concern the time only. The attributes that a program set are sent
            // alone, and a refusal of these is reported.
            s.seal();
            self.end_seen_times(s, owner.uid);
            return Refusal::Unasked;
        }
        match s.deferred.refused() {
            Some(seen) if seen.is_seen_time() => {
                if is_final {
                    self.end_seen_times(s, seen.by.cred.uid);
                }
                s.seen = None;
                Refusal::Unasked
            }
            _ => Refusal::Lost,
        }
    }

    /// The server's times apply, also to later files of this user.
    fn end_seen_times(&self, s: &mut State, uid: u32) {
        self.owners.write().retain(|(_, owner)| *owner != uid);
        s.seen = None;
    }
}
