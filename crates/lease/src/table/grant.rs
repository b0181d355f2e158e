//! The grant of a lease: a caching lease, a non-caching lease, none, or a wait for a record.

use super::record::{LeaseRec, LeaseState, NEVER, NONE};
use super::{Access, Grant, Op, Table, Term, Want};
use crate::{ClientId, FileKey, Kind, Ms};

/// The decision about a request for a lease.
pub(super) enum Granted {
    Yes(Grant),
    /// The client gets no lease.
    No,
    /// There is no record for the lease.
    NoRoom,
}

impl Table {
    /// Decides a request for a lease. No caching lease of another client conflicts with the
    /// operation of the request.
    pub(super) fn grant(&mut self, now: Ms, client: ClientId, key: FileKey, want: Want) -> Granted {
        let full = if want.optional { Granted::No } else { Granted::NoRoom };
        let Some(f) = self.file_or_insert(key) else { return full };
        let Some(c) = self.client_or_insert(client) else {
            self.rest(f);
            return full;
        };
        let own = self.lease_at(c, f);
        let untrusted = want.term == Term::Held && !self.clients[c].known;
        let granted = if untrusted {
            Granted::No
        } else if self.is_shared(now, f, own, client, want.kind) {
            self.share(now, c, f, own, want).unwrap_or(full)
        } else {
            self.give(now, c, f, own, want).unwrap_or(full)
        };
        self.rest(f);
        self.drop_client_if_unused(c);
        granted
    }

    /// A client claims a lease that it held before a restart (CLAIM_PREVIOUS). Only during
    /// recovery.
    pub fn reclaim(&mut self, now: Ms, client: ClientId, file: FileKey, want: Want) -> Option<Grant> {
        self.handle_timeout(now);
        self.recovery.as_ref()?;
        let access = Access { client: Some(client), file, op: Op::Lease, lease: Some(want), claim: None };
        if self.conflicts(&Access { lease: Some(Want { optional: false, ..want }), ..access }) {
            return None;
        }
        match self.grant(now, client, file, want) {
            Granted::Yes(grant) if grant.cachable => Some(grant),
            _ => None,
        }
    }

    /// Whether a client's caching read lease can become a write lease now without an eviction.
    pub fn may_write_too(&self, now: Ms, client: ClientId, file: FileKey) -> bool {
        let Some((c, f)) = self.client(client).zip(self.file(file)) else { return false };
        let own = self.lease_at(c, f).filter(|&i| self.leases[i].cachable);
        own.is_some() && !self.is_shared(now, f, own, client, Kind::Write)
    }

    /// Whether a lease of this kind would conflict with the use of the file by other clients, now
    /// or soon.
    fn is_shared(&self, now: Ms, f: u32, own: Option<u32>, client: ClientId, kind: Kind) -> bool {
        let file = &self.files[f];
        let own = own.map(|i| &self.leases[i]);
        let own_shares = |k: Kind| u32::from(own.is_some_and(|l| !l.cachable && l.kind == k));
        let writers = file.sharing_writers - own_shares(Kind::Write);
        let readers = file.sharing_readers - own_shares(Kind::Read);
        let sharing = self.rules.noncaching && (writers > 0 || (kind == Kind::Write && readers > 0));
        let quiet = self.rules.noncaching && self.quiet.get(&f).is_some_and(|q| now < q.until_ms);
        let own_caches = own.is_some_and(|l| l.cachable);
        let others_write = file.writer != NONE && !(own_caches && own.is_some_and(|l| l.kind == Kind::Write));
        let own_reads = own.is_some_and(|l| l.cachable && l.kind == Kind::Read);
        let others_read = kind == Kind::Write && file.readers > u32::from(own_reads);
        let wanted = self.rules.no_renewal_when_wanted
            && (file.waiters != NONE || own.is_some_and(|l| l.state.has(LeaseState::EVICTING)));
        let written = self.rules.in_flight && file.in_flight > 0 && file.in_flight_client != client.0;
        sharing || quiet || others_write || others_read || wanted || written
    }

    /// Grants or renews a caching lease. `None` without a free record.
    fn give(&mut self, now: Ms, c: u32, f: u32, own: Option<u32>, want: Want) -> Option<Granted> {
        let term_ms = self.term(want.term);
        let held = want.term == Term::Held;
        let i = match own {
            Some(i) => {
                let lease = &self.leases[i];
                let kind = if lease.cachable { want.kind.max(lease.kind) } else { want.kind };
                if !lease.cachable {
                    self.leases[i].seq = self.seq();
                }
                self.turn(i, true, kind);
                i
            }
            None => self.new_lease(c, f, true, want.kind)?,
        };
        let evicting = self.leases[i].state.has(LeaseState::EVICTING);
        let lease = &mut self.leases[i];
        lease.state = LeaseState::default();
        if held {
            lease.state.set(LeaseState::HELD);
        }
        if evicting {
            // Only with a rule off: it is renewed although an operation waits for the file.
            lease.state.set(LeaseState::EVICTING);
        }
        lease.expiry_ms = if held { NEVER } else { now + u64::from(term_ms) };
        let kind = lease.kind;
        let grant = Grant { kind, cachable: true, term_ms, seq: self.seq_of(i) };
        self.files[f].evicted_all = false;
        let deadline = self.next_look(now, i);
        self.arm(i, deadline);
        Some(Granted::Yes(grant))
    }

    /// Grants or renews a non-caching lease. `None` without a free record.
    fn share(&mut self, now: Ms, c: u32, f: u32, own: Option<u32>, want: Want) -> Option<Granted> {
        if want.optional || want.term == Term::Held {
            return Some(Granted::No);
        }
        let term_ms = self.sharing_term(now, f, want.term);
        let expiry = now + u64::from(term_ms);
        let i = match own {
            Some(i) if self.leases[i].cachable => {
                // The client must return its present lease first. The reply is equivalent to the
                // eviction.
                if want.kind == Kind::Write {
                    self.leases[i].state.set(LeaseState::WRITES);
                }
                self.evict(now, i);
                // The grant covers only this operation. While the caching lease has a record, other
                // clients wait for it. After its end they may cache.
                let seq = self.seq_of(i);
                return Some(Granted::Yes(Grant { kind: want.kind, cachable: false, term_ms: 0, seq }));
            }
            Some(i) => {
                let kind = self.leases[i].kind.max(want.kind);
                self.turn(i, false, kind);
                i
            }
            None => self.new_lease(c, f, false, want.kind)?,
        };
        self.leases[i].expiry_ms = expiry;
        let kind = self.leases[i].kind;
        let grant = Grant { kind, cachable: false, term_ms, seq: self.seq_of(i) };
        let deadline = self.next_look(now, i);
        self.arm(i, deadline);
        Some(Granted::Yes(grant))
    }

    fn new_lease(&mut self, c: u32, f: u32, cachable: bool, kind: Kind) -> Option<u32> {
        if self.leases.is_full() {
            return None;
        }
        let seq = self.seq();
        self.add_lease(LeaseRec {
            expiry_ms: 0,
            deadline_ms: NEVER,
            evict_ms: 0,
            file: f,
            client: c,
            next_in_file: NONE,
            prev_in_file: NONE,
            next_in_client: NONE,
            prev_in_client: NONE,
            place: NONE,
            seq,
            kind,
            cachable,
            state: LeaseState::default(),
            attempts: 0,
        })
    }

    fn seq(&mut self) -> u32 {
        self.next_seq = self.next_seq.wrapping_add(1).max(1);
        self.next_seq
    }

    fn term(&self, term: Term) -> u32 {
        match term {
            Term::Held => 0,
            Term::For(0) => self.config.term_ms.min(self.config.term_max_ms),
            Term::For(ms) => ms.min(self.config.term_max_ms),
        }
    }

    /// The term of a non-caching lease. When the file is only kept free for a while, the client may
    /// ask again right afterwards.
    fn sharing_term(&self, now: Ms, f: u32, term: Term) -> u32 {
        let term = self.term(term);
        let file = &self.files[f];
        let quiet = self.quiet.get(&f).map_or(0, |q| q.until_ms.saturating_sub(now));
        match quiet {
            1.. if file.sharing_writers == 0 => term.min(u32::try_from(quiet).unwrap_or(term)),
            _ => term,
        }
    }
}
