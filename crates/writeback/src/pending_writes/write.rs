//! Writes: delayed or written through.
//!
//! The module does not know how bytes are sent.

use super::WriteBack;
use super::alone::Through;
use super::file::{File as Delayed, Origin};
use super::flush::Room;
use super::stats::{Counters, Reason};
use super::wait::patient;
use crate::wal::Ticket;
use hither_vfs::*;
use std::sync::Arc;
use tokio::time::Instant;

impl WriteBack {
    /// Delays a write, if that is permitted and there is room.
    pub(super) async fn write_delayed(
        &self,
        cx: &RequestContext,
        file: &Arc<Delayed>,
        open: OpenId,
        offset_bytes: u64,
        data: Data,
    ) -> Result<Wrote> {
        let len = data.len() as u64;
        loop {
            let gate = match file.gate.try_read() {
                Ok(gate) => gate,
                Err(_) => patient(cx, async { Ok(file.gate.read().await) }).await?,
            };
            let alone = self.options.exclusive || self.leases.can_cache_writes(&file.fh);
            if !alone
                && !patient(cx, async { Ok(self.leases.request_write_caching(cx, &file.fh).await) }).await?
            {
                drop(gate);
                return self.write_on(cx, file, open, offset_bytes, data, self.straight_on()).await;
            }
            if !self.journal_takes(len) {
                drop(gate);
                return self.write_on(cx, file, open, offset_bytes, data, Stability::Stable).await;
            }
            match self.room(file, len) {
                Room::Taken => {
                    let origin = Origin { cred: cx.cred.clone(), open };
                    let (attrs, ticket) = self.take(file, &origin, offset_bytes, &data);
                    drop(gate);
                    self.journaled(file, ticket).await?;
                    self.pump(file);
                    if !self.options.exclusive && !self.leases.can_cache_writes(&file.fh) {
                        // The right to delay ended meanwhile, and its recall may not have waited
                        // for these bytes. Bytes that cannot be sent are kept, and the error is
                        // reported, as for all delayed bytes.
                        let _ = patient(cx, self.flush_bytes(file, Reason::Recall, false)).await;
                    }
                    return Ok(Wrote { bytes: len, attrs });
                }
                Room::Never => {
                    drop(gate);
                    return self.write_on(cx, file, open, offset_bytes, data, self.straight_on()).await;
                }
                Room::Later => {
                    drop(gate);
                    patient(cx, async {
                        self.some_room(file, len).await;
                        Ok(())
                    })
                    .await?;
                }
                Room::Failing(failing) if failing.pauses(Instant::now()) => return Err(failing.error),
                Room::Failing(_) => {
                    drop(gate);
                    patient(cx, self.flush_bytes(file, Reason::Pressure, false)).await?;
                }
            }
        }
    }

    /// The stability of a write that is not delayed. With a journal it is stable, because the
    /// journal lacks the write.
    fn straight_on(&self) -> Stability {
        if self.wal.is_some() { Stability::Stable } else { Stability::Unstable }
    }

    /// Keeps bytes with reserved room.
    fn take(
        &self,
        file: &Arc<Delayed>,
        origin: &Origin,
        offset_bytes: u64,
        data: &Data,
    ) -> (Option<hither_vfs::Attrs>, Option<Ticket>) {
        let (now, fresh) = (Instant::now(), self.next_change());
        let len = data.len() as u64;
        let (attrs, merged, ticket) = self.with_room(file, len, |s| {
            let wall = self.clock.after(s.shown().map(|shown| shown.attr.mtime).unwrap_or_default());
            let merged = s.extents.insert(offset_bytes, data, origin, now);
            if s.queued.is_none() {
                s.queued = Some(self.ages.push(now + self.options.dirty_age, file));
            }
            let ticket = s.journal.wrote(&origin.cred, offset_bytes, data, wall.secs);
            self.shown.lock().forget(&file.fh);
            (s.written(origin, wall, fresh), merged, ticket)
        });
        self.relieve_old();
        Counters::add(&self.counters.writes_in, 1);
        Counters::add(&self.counters.bytes_in, len);
        Counters::add(&self.counters.writes_merged, u64::from(merged > 0));
        (attrs, ticket)
    }

    /// Writes through, after the earlier bytes.
    pub(super) async fn write_on(
        &self,
        cx: &RequestContext,
        file: &Arc<Delayed>,
        open: OpenId,
        offset_bytes: u64,
        data: Data,
        stability: Stability,
    ) -> Result<Wrote> {
        let before = async {
            let gate = file.gate.read().await;
            self.flush_bytes(file, Reason::Order, false).await?;
            self.leave_journal(file).await.map(|()| gate)
        };
        let _gate = patient(cx, before).await?;
        Counters::add(&self.counters.writes_through, 1);
        let through = Through::new(file);
        if stability == Stability::Unstable {
            file.state.lock().unstable = true;
        }
        let at = File { fh: &file.fh, open: Some(open) };
        let wrote = self.below.write(cx, at, offset_bytes, data, stability).await;
        drop(through);
        let mut wrote = wrote?;
        let fresh = self.next_change();
        let mut s = file.state.lock();
        s.journal.went_past(stability);
        s.deferred.modified(None);
        s.seen = None;
        if !s.deferred.is_mtime_near() {
            s.journal.times_are_there();
        }
        self.shown.lock().forget(&file.fh);
        let end = if wrote.bytes > 0 { offset_bytes.saturating_add(wrote.bytes) } else { 0 };
        s.view.changed(Instant::now(), end, wrote.attrs.as_ref(), false);
        if let Some(attrs) = &mut wrote.attrs {
            s.show(attrs, fresh);
        }
        Ok(wrote)
    }
}
