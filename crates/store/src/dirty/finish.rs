//! The last load of a file: all bytes that are left, and the attributes that waited for them, in one call.
//!
//! It knows nothing of when that is. A load is the last when nothing of the file is in flight, everything that is dirty is to be
//! sent, has one origin and fits into one WRITE's worth of bytes: then the pieces go together, stable, with no COMMIT to follow.
//! Attributes without bytes go alone, after a commit of what the layer below still keeps: a second write would spoil their times.

use super::extents::{Extents, Flight, Rules};
use super::file::{File, State};
use super::owed::Owed;
use super::stats::Counters;
use super::{Dirty, is_final};
use hither_vfs::{Cx, Data, Error, File as At, SetAttr, Stability};
use std::sync::Arc;
use tokio::time::Instant;

/// Most pieces of a last load.
const PIECES_MOST: usize = 16;

/// What a worker sends next.
pub(super) enum Load {
    /// One piece.
    One(Flight, Stability),
    /// All there is.
    Last(Vec<Flight>, Option<Owed>),
}

impl State {
    /// Whether attributes are to be sent that no bytes go before.
    pub fn owes_alone(&self, rules: Rules) -> bool {
        self.owed.is_due() && !self.extents.is_flying() && !self.extents.has_work(rules)
    }

    /// What to send next.
    pub fn load(&mut self) -> Option<Load> {
        let rules = self.rules()?;
        if self.owes_alone(rules) {
            return Some(Load::Last(Vec::new(), self.owed.take()));
        }
        if let Some(flights) = self.last_flights(rules) {
            return Some(Load::Last(flights, self.owed.take()));
        }
        let flight = self.extents.take(rules)?;
        let stable = self.stable && flight.last && !self.unstable;
        self.unstable |= !stable;
        Some(Load::One(flight, if stable { Stability::Stable } else { Stability::Unstable }))
    }

    /// All bytes there are, when they may go together and it is worth it.
    fn last_flights(&mut self, rules: Rules) -> Option<Vec<Flight>> {
        let owes = self.owed.is_due();
        let wanted = (self.stable || owes) && !self.unstable;
        if !wanted || !self.extents.is_last(rules, PIECES_MOST) {
            return None;
        }
        let runs = self.extents.runs();
        if runs < 2 && !owes {
            return None;
        }
        let by = self.owed.waiting().map(|o| &o.by).filter(|_| owes);
        if by.is_some_and(|by| self.extents.first_cred().is_some_and(|cred| *cred != by.cred)) {
            return None;
        }
        let mut flights: Vec<_> = std::iter::from_fn(|| self.extents.take(rules)).collect();
        flights.sort_unstable_by_key(|f| f.start_bytes);
        (!flights.is_empty()).then_some(flights)
    }
}

impl Extents {
    /// Whether all there is could go together.
    fn is_last(&self, rules: Rules, most: usize) -> bool {
        rules.hold_from == u64::MAX
            && !self.is_flying()
            && self.bytes() > 0
            && self.bytes() <= self.chunk_bytes()
            && self.runs() <= most
            && self.is_one(rules.flush_to)
    }
}

impl Dirty {
    /// Sends a last load.
    pub(super) async fn finish(&self, file: &Arc<File>, flights: Vec<Flight>, owed: Option<Owed>) {
        let (cred, open) = match (flights.first(), &owed) {
            (Some(flight), _) => (flight.origin.cred.clone(), flight.origin.open),
            (None, Some(owed)) => (owed.by.cred.clone(), owed.by.open),
            (None, None) => return,
        };
        let (cx, at) = (Cx::new(cred), At { fh: &file.fh, open: Some(open) });
        if flights.is_empty() && std::mem::take(&mut file.state.lock().unstable) {
            // What cannot be committed is for the program's fsync or close to tell; the attributes are set all the same.
            if let Err(e) = self.below.commit(&cx, at).await {
                let mut s = file.state.lock();
                s.unstable = true;
                s.errors.record(e);
            }
        }
        // Whether anything else of ours is under way in the meantime.
        let only = |s: &State| s.view.through == 0 && s.extents.flying() == flights.len();
        let before = {
            let s = file.state.lock();
            only(&s).then(|| s.extents.taken())
        };
        let pieces: Vec<(u64, Data)> = flights.iter().map(|f| (f.start_bytes, f.data.clone())).collect();
        let set = owed.as_ref().map_or_else(SetAttr::default, |o| o.set.clone());
        let total: u64 = pieces.iter().map(|(_, data)| data.len() as u64).sum();
        let sent = match self.below.finish(&cx, at, pieces, &set).await {
            Ok(f) if f.wrote.bytes == 0 && total > 0 => {
                Err(Error::because(libc::EIO, "the server writes no bytes"))
            }
            sent => sent,
        };
        let done = match sent {
            Ok(done) => done,
            Err(e) => {
                let flying: Vec<_> = flights.iter().map(|f| (f.id, f.data.len() as u64)).collect();
                return self.not_sent(file, &flying, owed.is_some(), e);
            }
        };
        if total > 0 {
            Counters::add(&self.counters.writes_out, flights.len() as u64);
            Counters::add(&self.counters.bytes_out, done.wrote.bytes);
        }
        Counters::add(&self.counters.finishes, 1);
        let whole = done.wrote.bytes >= total;
        let refused = done.set.err().filter(|_| whole);
        self.with(file, |s| {
            let alone = only(s) && before == Some(s.extents.taken());
            let (mut left, mut end) = (done.wrote.bytes, 0);
            for flight in &flights {
                let sent = left.min(flight.data.len() as u64);
                left -= sent;
                s.extents.landed(flight.id, sent);
                if sent > 0 {
                    end = flight.start_bytes + sent;
                }
            }
            let attrs = done.wrote.attrs.as_ref();
            s.view.changed(Instant::now(), end, attrs, alone);
            s.backoff = None;
            match (&owed, whole && refused.is_none()) {
                (Some(owed), true) => {
                    s.owed.landed();
                    if owed.set.mtime.is_some() && s.extents.is_clean() {
                        // The server's times are what was asked for.
                        s.view.time = None;
                    }
                }
                (Some(_), false) => s.owed.failed(),
                (None, _) => {}
            }
        });
        if let Some(e) = refused {
            self.not_sent(file, &[], true, e);
        }
        file.changed.notify_waiters();
    }

    /// Attributes that the server refuses for good are given up.
    pub(super) fn refuse_owed(s: &mut State, e: &Error) -> bool {
        let lost = is_final(e.errno) || matches!(e.errno, libc::EOPNOTSUPP | libc::ENOSYS);
        match lost {
            true => {
                s.owed.landed();
                s.owed.forget();
            }
            false => s.owed.failed(),
        }
        lost
    }
}
