//! The last load of a file: the bytes that are left, and the attributes that waited for them, in
//! one call.
//!
//! It knows nothing of when that is. A load is the last when nothing of the file is in flight,
//! everything that is dirty is to be sent, has one origin, no gaps, and fits into one WRITE: then
//! it goes with the attributes, stable, with no COMMIT to follow. Bytes with gaps go like all
//! others, many WRITEs in flight and one COMMIT. A modification time goes after all bytes that were
//! written before it and after a commit of what the layer below still keeps: a second write would
//! spoil it. Permissions and access times wait for no bytes: a writer who never stops, or bytes
//! that a full server does not take, do not keep them from the server.

use super::extents::{Extents, Flight, Rules};
use super::file::{File, State};
use super::owed::Owed;
use super::stats::Counters;
use super::{Dirty, is_final};
use hither_vfs::{Cx, Error, File as At, Stability};
use std::sync::Arc;
use tokio::time::Instant;

/// What a worker sends next.
pub(super) enum Load {
    /// One piece.
    One(Flight, Stability),
    /// All there is, or attributes that have no order to bytes.
    Last(Option<Flight>, Owed),
}

impl State {
    /// Whether attributes are to be sent that no bytes go before.
    pub fn owes_alone(&self, rules: Rules) -> bool {
        self.owed.is_due() && !self.extents.is_flying() && !self.extents.has_work(rules)
    }

    /// Whether there is something to send now. Nothing goes beside a modification time: what is
    /// written later would spoil it.
    pub fn has_load(&self) -> bool {
        if self.losing_name {
            return false;
        }
        let work = |rules| self.extents.has_work(rules) || self.owes_alone(rules) || self.owed.is_free();
        self.owed.is_pressing() || !self.owed.holds() && self.rules().is_some_and(work)
    }

    /// What to send next. `alone`: nobody else can change the file before it is sent, or it is
    /// refused.
    pub fn load(&mut self, alone: bool) -> Option<Load> {
        if self.losing_name {
            return None;
        }
        if self.owed.is_pressing() {
            return Some(Load::Last(None, self.owed.take_free()?));
        }
        let rules = self.rules().filter(|_| !self.owed.holds())?;
        if self.owes_alone(rules) || self.goes_together(rules) {
            let owed = self.owed.take()?;
            return Some(Load::Last(self.extents.take_whole(rules), owed));
        }
        if let Some(owed) = self.owed.take_free() {
            return Some(Load::Last(None, owed));
        }
        let rules = self.rules_alone().filter(|_| alone).unwrap_or(rules);
        let flight = self.extents.take(rules)?;
        // One that holds for a right only is not kept to be sent again.
        let stable = flight.filled || self.stable && flight.last && !self.unstable;
        self.unstable |= !stable;
        Some(Load::One(flight, if stable { Stability::Stable } else { Stability::Unstable }))
    }

    /// Whether all bytes there are and the attributes may go in one call.
    fn goes_together(&self, rules: Rules) -> bool {
        let by = self.owed.waiting().filter(|_| self.owed.is_due()).map(|o| &o.by.cred);
        by.is_some() && !self.unstable && self.extents.is_last(rules) && self.extents.first_cred() == by
    }
}

impl Extents {
    /// Whether all there is fits into one flight.
    fn is_last(&self, rules: Rules) -> bool {
        rules.hold_from == u64::MAX
            && !self.is_flying()
            && self.runs() == 1
            && self.bytes() <= self.chunk_bytes()
            && self.is_one(rules.flush_to)
    }
}

impl Dirty {
    /// Sends a last load.
    pub(super) async fn finish(&self, file: &Arc<File>, flight: Option<Flight>, owed: Owed) {
        let cx = Cx::new(owed.by.cred.clone());
        let open = flight.as_ref().map_or(owed.by.open, |f| f.origin.open);
        // Attributes may outlive their open when a call that was to replace them failed.
        let open = file.state.lock().errors.access(open).map(|_| open);
        let at = At { fh: &file.fh, open };
        let last = flight.is_none() && owed.set.mtime.is_some();
        if last && std::mem::take(&mut file.state.lock().unstable) {
            // What cannot be committed is for the program's fsync or close to tell; the attributes
            // are set all the same.
            if let Err(e) = self.commit_journaled(&cx, file, open).await {
                let mut s = file.state.lock();
                s.unstable = true;
                s.errors.record(e);
            }
        }
        // Whether anything else of ours is under way in the meantime.
        let flights = usize::from(flight.is_some());
        let only = |s: &State| s.view.through == 0 && s.extents.flying() == flights;
        let before = {
            let s = file.state.lock();
            only(&s).then(|| s.extents.taken())
        };
        let (flight, piece) = match flight {
            Some(f) => (Some((f.id, f.start_bytes, f.data.len() as u64)), Some((f.start_bytes, f.data))),
            None => (None, None),
        };
        let (_, start, len) = flight.unwrap_or_default();
        let call = self.below.finish(&cx, at, piece, &owed.set);
        let sent = match self.touching(&[Some(&file.fh)], call).await {
            Ok(f) if f.wrote.bytes == 0 && len > 0 => {
                Err(Error::because(libc::EIO, "the server writes no bytes"))
            }
            sent => sent,
        };
        let done = match sent {
            Ok(done) => done,
            Err(e) => return self.not_sent(file, flight.map(|(id, _, len)| (id, len)), true, e),
        };
        let wrote = done.wrote.bytes.min(len);
        Counters::add(&self.counters.writes_out, flights as u64);
        Counters::add(&self.counters.bytes_out, wrote);
        Counters::add(&self.counters.finishes, 1);
        let whole = wrote == len;
        let refused = done.set.err().filter(|_| whole);
        self.with(file, |s| {
            let alone = only(s) && before == Some(s.extents.taken());
            if let Some((id, ..)) = flight {
                s.extents.landed(id, wrote);
                s.journal.landed(id, wrote, false, done.wrote.attrs.as_ref());
            }
            if let Some(attrs) = done.wrote.attrs.as_ref().filter(|_| whole && refused.is_none()) {
                s.journal.told_after(attrs);
            }
            let end = if wrote > 0 { start + wrote } else { 0 };
            let (now, attrs) = (Instant::now(), done.wrote.attrs.as_ref());
            s.view.changed(now, end, attrs, alone);
            if flight.is_some() {
                s.backoff = None;
            }
            match whole {
                true if refused.is_some() => {}
                true => {
                    s.owed.landed(now, attrs);
                    if owed.set.mtime.is_some() && s.extents.is_clean() {
                        // The server's times are what was asked for.
                        s.view.time = None;
                    }
                }
                false => s.owed_failed(),
            }
        });
        if let Some(e) = refused {
            self.not_sent(file, None, true, e);
        }
        file.changed.notify_waiters();
    }

    /// Attributes that the server refuses for good are given up.
    pub(super) fn refuse_owed(s: &mut State, e: &Error) -> bool {
        let lost = is_final(e.errno) || matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS);
        match lost {
            true => s.owed.refused(),
            false => s.owed_failed(),
        }
        lost
    }
}
