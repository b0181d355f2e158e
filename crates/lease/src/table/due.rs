//! The expiry of leases, and its effects.
//!
//! A read lease has ended when its term and the clock skew are over. The holder of a write lease
//! may still be sending delayed writes then. So the paper has three conditions (section 5) for its
//! end:
//! 1. the clock is past expiry plus clock skew;
//! 2. a server worker waits for work, so that every write that has arrived is served;
//! 3. no write came for the file within the write slack after the corrected expiry.
//!
//! A write lease that is being evicted ends after
//! [`Config::flush_max_ms`](crate::Config::flush_max_ms) in any case. From then on no further write
//! of its holder begins. The lease ends with the last write under way.
//!
//! A lease without expiry (a delegation) expires when its client did not renew itself for the
//! client's term. It is revoked when it was recalled and not returned in time. From then on a
//! renewal of the client does not prolong it, and it expires like other leases. A client that is
//! still connected learns of the revocation with the next reply.

use super::record::{LeaseState, NEVER};
use super::{Access, Action, Ended, Table};
use crate::{Kind, Ms};

/// Time in milliseconds after which a lease is checked again that has not ended only because of
/// condition 2.
pub(super) const RECHECK_MS: Ms = 100;

/// Maximum number of evictions per lease.
const ATTEMPTS_MAX: u8 = 250;

impl Table {
    pub(super) fn run_due(&mut self, now: Ms) {
        while let Some(i) = self.timers.first().filter(|&i| self.leases[i].deadline_ms <= now) {
            self.look(now, i);
        }
    }

    /// Checks a lease at its deadline.
    fn look(&mut self, now: Ms, i: u32) {
        let lease = &self.leases[i];
        if !lease.cachable {
            if now > lease.expiry_ms && self.rules.sharing_ends {
                self.free_lease(now, i);
            } else {
                self.arm(i, lease.expiry_ms.max(now).saturating_add(1));
            }
            return;
        }
        if let Some(how) = self.has_ended(now, i) {
            let (client, file) = (self.clients[lease.client].id, self.files[lease.file].key);
            let (seq, kind) = (self.seq_of(i), lease.kind);
            if self.is_held(i) {
                // The client may renew itself, and must not use the lease again.
                self.actions.push_back(Action::Revoked { client, file, seq });
            }
            self.actions.push_back(Action::Ended { client, file, seq, kind, how });
            return self.end_caching(now, i, false);
        }
        if lease.state.has(LeaseState::EVICTING) {
            if self.is_held(i) && now >= self.revocation(i) {
                self.revoke(now, i);
                if !self.rules.revoke_waits {
                    return self.end_caching(now, i, false);
                }
            }
            if self.rules.evict_retry && now >= self.next_eviction(i) {
                self.send_eviction(i);
            }
        }
        let deadline = self.next_look(now, i).max(now + 1);
        self.arm(i, deadline);
    }

    /// Whether the lease lasts while its client renews itself, and is not revoked.
    fn is_held(&self, i: u32) -> bool {
        let state = self.leases[i].state;
        state.has(LeaseState::HELD) && !state.has(LeaseState::REVOKED)
    }

    /// The latest expiry on the holder's clock, without clock skew.
    fn expiry(&self, i: u32) -> Ms {
        let lease = &self.leases[i];
        let client = &self.clients[lease.client];
        if self.is_held(i) { client.renewed_ms + u64::from(client.term_ms) } else { lease.expiry_ms }
    }

    fn corrected_expiry(&self, i: u32) -> Ms {
        let skew = if self.rules.skew { self.config.skew_ms } else { 0 };
        self.expiry(i) + u64::from(skew)
    }

    /// The earliest end of a write lease by condition 3.
    fn slack_end(&self, i: u32) -> Ms {
        let slack = if self.rules.slack { self.config.write_slack_ms } else { 0 };
        let file = &self.files[self.leases[i].file];
        self.corrected_expiry(i).max(file.last_write_ms) + u64::from(slack)
    }

    fn has_ended(&self, now: Ms, i: u32) -> Option<Ended> {
        let lease = &self.leases[i];
        let evicting = lease.state.has(LeaseState::EVICTING);
        // A client without contact keeps its delegation until another client wants the file.
        if (self.is_held(i) && !evicting) || now <= self.corrected_expiry(i) {
            return None;
        }
        if lease.kind == Kind::Read {
            return Some(Ended::Expired);
        }
        let writing = self.files[lease.file].in_flight > 0;
        if self.is_overdue(now, i) {
            return (!writing).then_some(Ended::Overdue);
        }
        let idle = self.idle_workers || !self.rules.idle;
        (idle && !writing && now >= self.slack_end(i)).then_some(Ended::Expired)
    }

    /// Whether the holder of an evicted write lease flushes for too long. The caller has checked
    /// that the lease is past its expiry.
    fn is_overdue(&self, now: Ms, i: u32) -> bool {
        let lease = &self.leases[i];
        let evicting = lease.state.has(LeaseState::EVICTING);
        evicting && now >= lease.evict_ms + u64::from(self.config.flush_max_ms)
    }

    /// Whether a change comes from the holder of an overdue lease, which ends when its changes
    /// under way have ended.
    pub(super) fn comes_overdue(&self, now: Ms, a: &Access) -> bool {
        let own = a.client.and_then(|client| self.lease_of(client, a.file));
        own.is_some_and(|i| {
            let lease = &self.leases[i];
            let writes = lease.cachable && lease.kind == Kind::Write;
            writes && now > self.corrected_expiry(i) && self.is_overdue(now, i)
        })
    }

    fn revocation(&self, i: u32) -> Ms {
        self.leases[i].evict_ms + u64::from(self.config.recall_timeout_ms)
    }

    fn revoke(&mut self, now: Ms, i: u32) {
        let expiry = self.expiry(i).min(now + u64::from(self.config.recall_timeout_ms));
        let lease = &mut self.leases[i];
        lease.state.set(LeaseState::REVOKED);
        lease.expiry_ms = expiry;
        let (client, file) = (self.clients[lease.client].id, self.files[lease.file].key);
        let seq = self.seq_of(i);
        self.actions.push_back(Action::Revoked { client, file, seq });
    }

    /// The time of the next eviction. The interval doubles up to eight times the first.
    fn next_eviction(&self, i: u32) -> Ms {
        let lease = &self.leases[i];
        let sent = u64::from(lease.attempts);
        if lease.attempts >= ATTEMPTS_MAX || !self.rules.evict_retry {
            return NEVER;
        }
        let intervals = match sent {
            0..=3 => (1 << sent) - 1,
            _ => 7 + 8 * (sent - 3),
        };
        lease.evict_ms + intervals * u64::from(self.config.evict_retry_ms.max(1))
    }

    /// The time of the next check of a lease.
    pub(super) fn next_look(&self, now: Ms, i: u32) -> Ms {
        let lease = &self.leases[i];
        let evicting = lease.state.has(LeaseState::EVICTING);
        if !lease.cachable {
            return lease.expiry_ms.saturating_add(1);
        }
        if self.is_held(i) && !evicting {
            return NEVER;
        }
        let mut next = self.corrected_expiry(i) + 1;
        if lease.kind == Kind::Write && now >= next {
            let overdue = lease.evict_ms + u64::from(self.config.flush_max_ms);
            next = match self.slack_end(i) {
                end if end > now && !self.is_overdue(now, i) => end,
                _ => now + RECHECK_MS,
            };
            if evicting && overdue > now {
                next = next.min(overdue);
            }
        }
        if evicting {
            next = next.min(self.next_eviction(i));
            if self.is_held(i) {
                next = next.min(self.revocation(i));
            }
        }
        next
    }

    /// Ends a caching lease. A holder that still uses the file counts as sharing it.
    pub(super) fn end_caching(&mut self, now: Ms, i: u32, in_use: bool) {
        let lease = &self.leases[i];
        let f = lease.file;
        if in_use && !lease.state.has(LeaseState::HELD) && lease.expiry_ms > now {
            let writes = lease.kind == Kind::Write || lease.state.has(LeaseState::WRITES);
            let expiry = lease.expiry_ms;
            self.turn(i, false, if writes { Kind::Write } else { Kind::Read });
            self.leases[i].state = LeaseState::default();
            self.arm(i, expiry.saturating_add(1));
            self.wake(now, f);
            self.rest(f);
        } else {
            self.free_lease(now, i);
        }
    }

    /// Removes a lease of any kind.
    pub(super) fn free_lease(&mut self, now: Ms, i: u32) {
        let f = self.leases[i].file;
        self.remove_lease(i);
        self.wake(now, f);
        self.rest(f);
        self.wake_for_room(now);
    }
}
