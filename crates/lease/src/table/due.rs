//! The times at which leases end by themselves, and the effects of their ends.
//!
//! A read lease has ended when its term and the clock skew have passed. A write lease has not,
//! because its holder may just be sending delayed writes; the paper's three conditions (section 5)
//! are:
//! 1. the clock is past expiry plus clock skew;
//! 2. a server worker waits for work, so that no write that has arrived is still unserved;
//! 3. no write came for the file within the write slack after the corrected expiry.
//!
//! A write lease that is being evicted ends after
//! [`Config::flush_max_ms`](crate::Config::flush_max_ms) in any case: no further write of its
//! holder begins then, and it ends with the last of those under way.
//!
//! A lease without an end of its own (a delegation) expires when its client was not heard of for
//! the client's term. One that was recalled and did not come back is revoked: from then on hearing
//! of the client does not prolong it, and it expires like the others. A client that is still there
//! learns of it with the next answer.

use super::record::{LeaseState, NEVER};
use super::{Access, Action, Ended, Table};
use crate::{Kind, Ms};

/// A lease that should have ended but for condition 2 is looked at again after this.
pub(super) const RECHECK_MS: Ms = 100;

/// After so many evictions none is sent any more.
const ATTEMPTS_MAX: u8 = 250;

impl Table {
    pub(super) fn run_due(&mut self, now: Ms) {
        while let Some(i) = self.timers.first().filter(|&i| self.leases[i].deadline_ms <= now) {
            self.look(now, i);
        }
    }

    /// Looks at a lease whose deadline has come.
    fn look(&mut self, now: Ms, i: u32) {
        let lease = &self.leases[i];
        if !lease.cachable {
            match now > lease.expiry_ms && self.rules.sharing_ends {
                true => self.free_lease(now, i),
                false => self.arm(i, lease.expiry_ms.max(now).saturating_add(1)),
            }
            return;
        }
        if let Some(how) = self.has_ended(now, i) {
            let (client, file) = (self.clients[lease.client].id, self.files[lease.file].key);
            let (seq, kind) = (self.seq_of(i), lease.kind);
            if self.is_held(i) {
                // Its client may come back, and would take it for good again.
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

    /// Held without an end of its own, and not revoked.
    fn is_held(&self, i: u32) -> bool {
        let state = self.leases[i].state;
        state.has(LeaseState::HELD) && !state.has(LeaseState::REVOKED)
    }

    /// When it expires on its holder's clock at the latest, if the clocks agree.
    fn expiry(&self, i: u32) -> Ms {
        let lease = &self.leases[i];
        let client = &self.clients[lease.client];
        match self.is_held(i) {
            true => client.renewed_ms + u64::from(client.term_ms),
            false => lease.expiry_ms,
        }
    }

    fn corrected_expiry(&self, i: u32) -> Ms {
        let skew = if self.rules.skew { self.config.skew_ms } else { 0 };
        self.expiry(i) + u64::from(skew)
    }

    /// When a write lease may end as far as condition 3 goes.
    fn slack_end(&self, i: u32) -> Ms {
        let slack = if self.rules.slack { self.config.write_slack_ms } else { 0 };
        let file = &self.files[self.leases[i].file];
        self.corrected_expiry(i).max(file.last_write_ms) + u64::from(slack)
    }

    fn has_ended(&self, now: Ms, i: u32) -> Option<Ended> {
        let lease = &self.leases[i];
        let evicting = lease.state.has(LeaseState::EVICTING);
        // A delegation is left to a silent client until another client wants the file.
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

    /// Whether an evicted write lease has gone on for too long. The caller has seen that it is past
    /// its expiry.
    fn is_overdue(&self, now: Ms, i: u32) -> bool {
        let lease = &self.leases[i];
        let evicting = lease.state.has(LeaseState::EVICTING);
        evicting && now >= lease.evict_ms + u64::from(self.config.flush_max_ms)
    }

    /// Whether a change comes from a client whose lease ends as soon as its changes under way have
    /// ended.
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

    /// When the next eviction is sent: the interval doubles, to eight times.
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

    /// When a lease is to be looked at next.
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

    /// A caching lease has ended. If its holder goes on using the file, it counts as sharing it.
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

    /// A lease of any kind is over.
    pub(super) fn free_lease(&mut self, now: Ms, i: u32) {
        let f = self.leases[i].file;
        self.remove_lease(i);
        self.wake(now, f);
        self.rest(f);
        self.wake_for_room(now);
    }
}
