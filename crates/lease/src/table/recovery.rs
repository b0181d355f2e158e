//! Recovery after a restart. No lease is stored, so the table waits until all old leases have
//! ended.
//!
//! During recovery only writes under a lease are served: delayed writes, and writes of clients that
//! know that a file is shared. Recovery ends when the longest old lease has ended, clock skew
//! included, and no write came within the write slack. All other calls have to try later (section
//! 4.1 of the paper). A write that claims no lease is refused as well, because an older, delayed
//! write could overtake it. Writes prolong recovery by at most
//! [`Config::flush_max_ms`](crate::Config::flush_max_ms). A client with delayed writes after that
//! time has to try later, and its lease is gone.

use super::due::RECHECK_MS;
use super::{Access, Decision, Op, Table};
use crate::Ms;

/// The state of recovery.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    /// Time at which all leases of the previous lifetime have expired.
    pub until_ms: Ms,
    /// Time of the last write.
    pub last_write_ms: Ms,
    /// Earliest time of the next check.
    pub recheck_ms: Ms,
}

impl Table {
    /// True while only writes under leases are served.
    pub fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// This client's write lease ended before the restart without being returned
    /// ([`Action::Ended`](super::Action)). Other clients may have seen the file without its delayed
    /// writes.
    pub fn fence(&mut self, client: crate::ClientId, file: crate::FileKey, seq: u64) {
        if self.recovery.is_some() {
            self.fenced.insert((client, file), seq);
        }
    }

    pub(super) fn start_recovery(&mut self, now: Ms, outstanding_ms: u32) {
        if outstanding_ms > 0 {
            let until_ms = now + u64::from(outstanding_ms) + u64::from(self.config.skew_ms);
            self.recovery = Some(Recovery { until_ms, last_write_ms: now, recheck_ms: 0 });
        }
    }

    pub(super) fn recovery_end(&self, r: &Recovery) -> Ms {
        (r.until_ms.max(r.last_write_ms.min(self.flushed(r))) + self.grace_slack()).max(r.recheck_ms)
    }

    /// Writes after this time do not prolong recovery.
    fn flushed(&self, r: &Recovery) -> Ms {
        r.until_ms.saturating_add(self.config.flush_max_ms.into())
    }

    fn grace_slack(&self) -> Ms {
        if self.rules.grace_slack { u64::from(self.config.write_slack_ms) } else { 0 }
    }

    pub(super) fn end_recovery(&mut self, now: Ms) {
        let Some(r) = &self.recovery else { return };
        if now <= self.recovery_end(r) {
            return;
        }
        let over = (self.idle_workers || !self.rules.idle) && self.writes_in_flight == 0;
        if over && self.epoch == 0 {
            self.ask_for_epoch();
        }
        if over && self.epoch != 0 {
            self.recovery = None;
            self.fenced.clear();
            self.settle_from_ms = now;
            self.settle_until_ms = now + u64::from(self.config.settle_ms);
        } else if let Some(r) = &mut self.recovery {
            r.recheck_ms = now + RECHECK_MS;
        }
    }

    /// Records the time of a write or of its end.
    pub(super) fn note_write(&mut self, now: Ms) {
        if let Some(r) = &mut self.recovery {
            r.last_write_ms = now;
        }
    }

    /// Whether an operation is not served because of a restart.
    pub(super) fn refuse_in_recovery(&mut self, now: Ms, a: &Access) -> Option<Decision> {
        if a.op == Op::Push {
            // No later push begins. Recovery ends when the changes under way have ended.
            let late = self.recovery.as_ref().is_some_and(|r| now > self.flushed(r) + self.grace_slack());
            return late.then(|| self.try_later());
        }
        if let Some(r) = &self.recovery {
            let left = (self.recovery_end(r) + 1).saturating_sub(now);
            let after_ms = u32::try_from(left).unwrap_or(u32::MAX).max(self.config.try_later_ms);
            return Some(Decision::TryLater { after_ms });
        }
        let rate = u64::from(self.config.recovery_rate_per_s);
        if rate == 0 || now >= self.settle_until_ms {
            return None;
        }
        let allowed = (now - self.settle_from_ms) * rate / 1000 + 1;
        if self.admitted < allowed {
            self.admitted += 1;
            return None;
        }
        let after_ms = ((self.admitted + 1 - allowed) * 1000 / rate).max(1);
        Some(Decision::TryLater { after_ms: u32::try_from(after_ms).unwrap_or(u32::MAX) })
    }
}
