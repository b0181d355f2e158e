//! The conflicts of an operation, and its execution without conflicts.

use super::grant::Granted;
use super::record::{MANY, NONE};
use super::{Access, Action, Attempt, Decision, Go, Op, Permit, Table};
use crate::{ClientId, Kind, Ms};

impl Access {
    /// Whether read leases of other clients also conflict.
    fn is_exclusive(&self) -> bool {
        let wants = self.lease.is_some_and(|w| w.kind == Kind::Write && !w.optional);
        wants || self.changes()
    }

    fn changes(&self) -> bool {
        matches!(self.op, Op::Write | Op::Push)
    }
}

impl Table {
    /// Whether another client may have cached state in conflict with the operation.
    pub(super) fn conflicts(&self, a: &Access) -> bool {
        let Some(f) = self.file(a.file) else { return false };
        let own = a.client.and_then(|id| self.client(id)).and_then(|c| self.lease_at(c, f));
        let own = own.filter(|&i| self.leases[i].cachable);
        let file = &self.files[f];
        let writer = file.writer != NONE && own != Some(file.writer);
        let own_reads = own.is_some() && own != Some(file.writer);
        writer || (a.is_exclusive() && file.readers > u32::from(own_reads))
    }

    /// Lets an operation without conflicts go ahead.
    pub(super) fn attempt(&mut self, now: Ms, a: &Access) -> Attempt {
        if a.op == Op::Push && self.rules.expired && !self.may_push(a) {
            return Attempt::Done(Decision::Expired);
        }
        if self.conflicts(a) {
            return match (a.op, a.lease) {
                (Op::Lease, Some(want)) if want.optional => Attempt::Done(Decision::Go(self.go(a, None))),
                _ => Attempt::Blocked,
            };
        }
        let mut grant = None;
        if let (Some(client), Some(want)) = (a.client, a.lease) {
            match self.grant(now, client, a.file, want) {
                Granted::Yes(g) => grant = Some(g),
                Granted::No => {}
                Granted::NoRoom => return Attempt::NoRoom,
            }
        }
        let mut go = self.go(a, grant);
        if a.changes() {
            match self.permit(now, a) {
                Some(permit) => go.permit = Some(permit),
                None => return Attempt::Done(self.try_later()),
            }
        }
        Attempt::Done(Decision::Go(go))
    }

    fn go(&self, a: &Access, grant: Option<super::Grant>) -> Go {
        Go { permit: None, grant, revision: self.revision(a.file) }
    }

    /// Whether the client holds the claimed write lease, caching or not. During recovery: whether
    /// it can have held the lease right before the restart.
    fn may_push(&self, a: &Access) -> bool {
        let Some(client) = a.client else { return false };
        if self.recovery.is_some() {
            let last = u64::from(self.last_epoch);
            let older = self.rules.claim && a.claim.is_some_and(|seq| seq >> 32 != last);
            let fenced = self.fenced.get(&(client, a.file)).filter(|_| self.rules.fence);
            return !older && fenced.is_none_or(|&seq| a.claim.is_some_and(|claim| claim != seq));
        }
        let held = self.lease_of(client, a.file).filter(|&i| self.leases[i].kind == Kind::Write);
        held.is_some_and(|i| a.claim.is_none_or(|seq| seq == self.seq_of(i)))
    }

    /// Counts a change as under way.
    fn permit(&mut self, now: Ms, a: &Access) -> Option<Permit> {
        let f = self.file_or_insert(a.file)?;
        let client = a.client.map_or(NONE, |ClientId(id)| id.min(MANY));
        let file = &mut self.files[f];
        if file.in_flight == u16::MAX {
            return None;
        }
        file.in_flight_client = match file.in_flight {
            0 => client,
            _ if file.in_flight_client == client => client,
            _ => MANY,
        };
        file.in_flight += 1;
        file.last_write_ms = now;
        self.writes_in_flight += 1;
        self.note_write(now);
        Some(Permit { file: f })
    }

    /// Evicts the leases that conflict with an operation.
    pub(super) fn evict_for(&mut self, now: Ms, a: &Access) {
        let Some(f) = self.file(a.file) else { return };
        let own = a.client.and_then(|id| self.client(id)).and_then(|c| self.lease_at(c, f));
        let taken = if a.is_exclusive() {
            self.evict_all(now, f, own)
        } else {
            let writer = self.files[f].writer;
            writer != NONE && own != Some(writer) && self.evict(now, writer)
        };
        if taken {
            self.count_taking(now, f, a.client.is_none());
        }
    }

    fn evict_all(&mut self, now: Ms, f: u32, own: Option<u32>) -> bool {
        if self.files[f].evicted_all {
            return false;
        }
        let mut taken = false;
        let mut i = self.files[f].leases;
        while i != NONE {
            let next = self.leases[i].next_in_file;
            if self.leases[i].cachable && own != Some(i) {
                taken |= self.evict(now, i);
            }
            i = next;
        }
        self.files[f].evicted_all = own.is_none_or(|i| !self.leases[i].cachable);
        taken
    }

    /// With a rule off: ends conflicting leases without waiting for a reply.
    pub(super) fn drop_conflicting(&mut self, now: Ms, a: &Access) {
        let Some(f) = self.file(a.file) else { return };
        let mut held = Vec::new();
        let mut i = self.files[f].leases;
        while i != NONE {
            let lease = &self.leases[i];
            let client = self.clients[lease.client].id;
            if lease.cachable && Some(client) != a.client && (a.is_exclusive() || lease.kind == Kind::Write) {
                held.push(client);
            }
            i = lease.next_in_file;
        }
        for client in held {
            if let Some(i) = self.lease_of(client, a.file) {
                self.end_caching(now, i, true);
            }
        }
    }

    /// Evicts one lease. Returns false when it is already being evicted.
    pub(super) fn evict(&mut self, now: Ms, i: u32) -> bool {
        use super::record::LeaseState;
        let lease = &mut self.leases[i];
        if lease.state.has(LeaseState::EVICTING) {
            return false;
        }
        lease.state.set(LeaseState::EVICTING);
        (lease.evict_ms, lease.attempts) = (now, 0);
        self.send_eviction(i);
        let deadline = self.next_look(now, i);
        self.arm(i, deadline);
        true
    }

    pub(super) fn send_eviction(&mut self, i: u32) {
        let lease = &mut self.leases[i];
        let attempt = lease.attempts;
        lease.attempts = attempt.saturating_add(1);
        let (client, file) = (self.clients[lease.client].id, self.files[lease.file].key);
        let kind = lease.kind;
        let seq = self.seq_of(i);
        self.actions.push_back(Action::Evict { client, file, seq, kind, attempt });
    }

    /// Counts the evictions of a file. After several in a short time no client gets a lease on it
    /// for a while.
    fn count_taking(&mut self, now: Ms, f: u32, by_leaseless: bool) {
        let c = &self.config;
        let (unit, max) = (u64::from(c.quiet_ms), u64::from(c.quiet_max_ms));
        let q = self.quiet.entry(f).or_default();
        if now.saturating_sub(q.taken_ms) > max {
            q.times = 0;
        }
        // Callers without leases do not appear among the clients that share the file. So they count
        // twice.
        q.times = (q.times + 1 + u8::from(by_leaseless)).min(32);
        q.taken_ms = now;
        if q.times > 1 {
            q.until_ms = q.until_ms.max(now + (unit << (q.times - 2)).min(max));
        }
    }

    /// No client gets a lease on the file until `until_ms`.
    pub(super) fn keep_free(&mut self, f: u32, until_ms: Ms) {
        let q = self.quiet.entry(f).or_default();
        q.until_ms = q.until_ms.max(until_ms);
    }
}
