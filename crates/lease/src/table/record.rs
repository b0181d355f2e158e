//! The records and their links.
//!
//! One hash table finds a lease by client and file. Each lease is in two lists: the leases of its
//! file, and the leases of its client. A file counts its leases by kind, so that a conflict is
//! found without visiting them. A list is walked only to change each of its elements.

use super::{Access, Table, Ticket};
use crate::heap::{OUT, Timed};
use crate::{ClientId, FileKey, Kind, Ms};

/// Index of no record.
pub(super) const NONE: u32 = u32::MAX;
/// The deadline of a record without one.
pub(super) const NEVER: Ms = Ms::MAX;

/// One lease of one client on one file, caching or not.
#[derive(Debug, Clone)]
pub(super) struct LeaseRec {
    /// Expiry without clock skew. For a lease without expiry it is [`NEVER`] until the revocation.
    pub expiry_ms: Ms,
    /// Time of the next check.
    pub deadline_ms: Ms,
    /// Time of the first eviction.
    pub evict_ms: Ms,
    pub file: u32,
    pub client: u32,
    pub next_in_file: u32,
    pub prev_in_file: u32,
    pub next_in_client: u32,
    pub prev_in_client: u32,
    pub place: u32,
    pub seq: u32,
    pub kind: Kind,
    pub cachable: bool,
    pub state: LeaseState,
    /// Number of evictions sent.
    pub attempts: u8,
}

/// The state of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LeaseState(u8);

impl LeaseState {
    /// The lease lasts as long as its client renews itself.
    pub const HELD: Self = Self(1);
    /// The lease is being evicted and is not renewed.
    pub const EVICTING: Self = Self(2);
    /// The lease was [`Self::HELD`] and is revoked: it has an expiry.
    pub const REVOKED: Self = Self(4);
    /// The holder also writes through. The lease will become a non-caching write lease.
    pub const WRITES: Self = Self(8);

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    pub fn set(&mut self, other: Self) {
        self.0 |= other.0;
    }
    #[cfg(any(test, feature = "sim"))]
    pub fn bits(self) -> u8 {
        self.0
    }
}

impl Timed for LeaseRec {
    fn deadline_ms(&self) -> Ms {
        self.deadline_ms
    }
    fn place(&mut self) -> &mut u32 {
        &mut self.place
    }
}

/// A file with leases, waiting operations, changes under way, or a stored modify revision.
#[derive(Debug, Clone)]
pub(super) struct FileRec {
    pub key: FileKey,
    pub revision: u64,
    pub last_write_ms: Ms,
    /// First lease. For an idle file: the next idle file.
    pub leases: u32,
    /// Last waiting operation, in a ring. For an idle file: the previous idle file.
    pub waiters: u32,
    /// Caching write lease.
    pub writer: u32,
    /// Number of caching read leases.
    pub readers: u32,
    /// Number of non-caching read leases.
    pub sharing_readers: u32,
    /// Number of non-caching write leases.
    pub sharing_writers: u32,
    /// The client of the changes under way, [`MANY`], or [`NONE`] for callers without leases.
    pub in_flight_client: u32,
    /// Number of changes under way.
    pub in_flight: u16,
    pub idle: bool,
    /// All its caching leases are being evicted.
    pub evicted_all: bool,
}

/// Several clients have changes under way.
pub(super) const MANY: u32 = u32::MAX - 1;

/// One incarnation of a client.
#[derive(Debug, Clone)]
pub(super) struct ClientRec {
    pub id: ClientId,
    /// The client renews itself, and does not only hold leases with expiry.
    pub known: bool,
    pub term_ms: u32,
    pub renewed_ms: Ms,
    pub leases: u32,
}

/// A waiting operation.
#[derive(Debug, Clone)]
pub(super) struct Waiter {
    pub access: Access,
    /// The number of its ticket, which distinguishes the current user of a slot from earlier users.
    pub number: u32,
    pub live: bool,
    /// The file of its ring, or [`NONE`] when it waits for a lease record.
    pub file: u32,
    pub next: u32,
    pub prev: u32,
}

/// A file with a recent eviction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quiet {
    /// No client gets a lease before this time.
    pub until_ms: Ms,
    /// Time of the last eviction.
    pub taken_ms: Ms,
    /// Number of evictions in a short time.
    pub times: u8,
}

impl Table {
    fn mix(&self, words: [u64; 2]) -> u64 {
        let mut h = self.config.hash_seed;
        for w in words {
            h = (h ^ w).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            h ^= h >> 31;
        }
        h.wrapping_mul(0x94d0_49bb_1331_11eb) ^ (h >> 29)
    }

    fn owner_hash(&self, client: u32, file: u32) -> u64 {
        self.mix([u64::from(client), u64::from(file)])
    }

    pub(super) fn file(&self, key: FileKey) -> Option<u32> {
        self.by_key.find(self.mix(key.0), |&f| self.files[f].key == key).copied()
    }

    pub(super) fn client(&self, id: ClientId) -> Option<u32> {
        self.by_client.find(self.mix([u64::from(id.0), 1]), |&c| self.clients[c].id == id).copied()
    }

    pub(super) fn lease_at(&self, client: u32, file: u32) -> Option<u32> {
        let same = |&i: &u32| self.leases[i].client == client && self.leases[i].file == file;
        self.by_owner.find(self.owner_hash(client, file), same).copied()
    }

    pub(super) fn lease_of(&self, client: ClientId, file: FileKey) -> Option<u32> {
        self.lease_at(self.client(client)?, self.file(file)?)
    }

    /// The record of a file, created on demand; `None` without a free record.
    pub(super) fn file_or_insert(&mut self, key: FileKey) -> Option<u32> {
        if let Some(f) = self.file(key) {
            self.wake_from_idle(f);
            return Some(f);
        }
        if self.files.is_full() {
            self.forget_idle_file()?;
        }
        let revision = self.revisions.floor();
        let f = self.files.add(FileRec {
            key,
            revision,
            last_write_ms: 0,
            leases: NONE,
            waiters: NONE,
            writer: NONE,
            readers: 0,
            sharing_readers: 0,
            sharing_writers: 0,
            in_flight_client: NONE,
            in_flight: 0,
            idle: false,
            evicted_all: false,
        })?;
        let hash = self.mix(key.0);
        let mut index = std::mem::take(&mut self.by_key);
        index.insert_unique(hash, f, |&f| self.mix(self.files[f].key.0));
        self.by_key = index;
        Some(f)
    }

    /// The record of a client, created on demand; `None` without a free record.
    pub(super) fn client_or_insert(&mut self, id: ClientId) -> Option<u32> {
        if let Some(c) = self.client(id) {
            return Some(c);
        }
        let c = self.clients.add(ClientRec { id, known: false, term_ms: 0, renewed_ms: 0, leases: NONE })?;
        let hash = self.mix([u64::from(id.0), 1]);
        let mut index = std::mem::take(&mut self.by_client);
        index.insert_unique(hash, c, |&c| self.mix([u64::from(self.clients[c].id.0), 1]));
        self.by_client = index;
        Some(c)
    }

    pub(super) fn drop_client_if_unused(&mut self, c: u32) {
        if self.clients[c].known || self.clients[c].leases != NONE {
            return;
        }
        let hash = self.mix([u64::from(self.clients[c].id.0), 1]);
        if let Ok(entry) = self.by_client.find_entry(hash, |&x| x == c) {
            entry.remove();
        }
        self.clients.remove(c);
    }

    /// Adds a lease to its file and client. The caller has checked that a record is free.
    pub(super) fn add_lease(&mut self, mut lease: LeaseRec) -> Option<u32> {
        let (c, f) = (lease.client, lease.file);
        lease.place = OUT;
        (lease.prev_in_file, lease.next_in_file) = (NONE, self.files[f].leases);
        (lease.prev_in_client, lease.next_in_client) = (NONE, self.clients[c].leases);
        let i = self.leases.add(lease)?;
        if self.files[f].leases != NONE {
            let next = self.files[f].leases;
            self.leases[next].prev_in_file = i;
        }
        if self.clients[c].leases != NONE {
            let next = self.clients[c].leases;
            self.leases[next].prev_in_client = i;
        }
        self.files[f].leases = i;
        self.clients[c].leases = i;
        let hash = self.owner_hash(c, f);
        let mut index = std::mem::take(&mut self.by_owner);
        index.insert_unique(hash, i, |&i| self.owner_hash(self.leases[i].client, self.leases[i].file));
        self.by_owner = index;
        self.count(i, true);
        Some(i)
    }

    /// Removes a lease from its lists, the hash table and the timers.
    pub(super) fn remove_lease(&mut self, i: u32) {
        self.count(i, false);
        self.timers.take(&mut self.leases, i);
        let l = self.leases[i].clone();
        match l.prev_in_file {
            NONE => self.files[l.file].leases = l.next_in_file,
            prev => self.leases[prev].next_in_file = l.next_in_file,
        }
        if l.next_in_file != NONE {
            self.leases[l.next_in_file].prev_in_file = l.prev_in_file;
        }
        match l.prev_in_client {
            NONE => self.clients[l.client].leases = l.next_in_client,
            prev => self.leases[prev].next_in_client = l.next_in_client,
        }
        if l.next_in_client != NONE {
            self.leases[l.next_in_client].prev_in_client = l.prev_in_client;
        }
        let hash = self.owner_hash(l.client, l.file);
        if let Ok(entry) = self.by_owner.find_entry(hash, |&x| x == i) {
            entry.remove();
        }
        self.leases.remove(i);
        self.drop_client_if_unused(l.client);
    }

    /// Adds a lease to the counts of its file, or subtracts it. To be called before and after every
    /// change of its kind.
    pub(super) fn count(&mut self, i: u32, add: bool) {
        let l = &self.leases[i];
        let f = &mut self.files[l.file];
        let n = match (l.cachable, l.kind) {
            (true, Kind::Write) => {
                f.writer = if add { i } else { NONE };
                return;
            }
            (true, Kind::Read) => &mut f.readers,
            (false, Kind::Read) => &mut f.sharing_readers,
            (false, Kind::Write) => &mut f.sharing_writers,
        };
        if add {
            *n += 1;
        } else {
            *n -= 1;
        }
    }

    /// Changes a lease's kind, and the counts of its file.
    pub(super) fn turn(&mut self, i: u32, cachable: bool, kind: Kind) {
        self.count(i, false);
        (self.leases[i].cachable, self.leases[i].kind) = (cachable, kind);
        self.count(i, true);
    }

    /// Sets the time of the next check of a lease.
    pub(super) fn arm(&mut self, i: u32, deadline_ms: Ms) {
        self.leases[i].deadline_ms = deadline_ms;
        match deadline_ms {
            NEVER => self.timers.take(&mut self.leases, i),
            _ => self.timers.put(&mut self.leases, i),
        }
    }

    /// Moves an unused file to the idle files. They keep their modify revision while there is room.
    pub(super) fn rest(&mut self, f: u32) {
        let file = &self.files[f];
        let needed = file.leases != NONE || file.waiters != NONE || file.in_flight > 0;
        if file.idle || needed {
            return;
        }
        if file.revision == self.revisions.floor() && !self.quiet.contains_key(&f) {
            return self.remove_file(f);
        }
        let last = self.idle_last;
        let file = &mut self.files[f];
        (file.idle, file.waiters, file.leases) = (true, last, NONE);
        match last {
            NONE => self.idle_first = f,
            last => self.files[last].leases = f,
        }
        self.idle_last = f;
    }

    fn wake_from_idle(&mut self, f: u32) {
        if !self.files[f].idle {
            return;
        }
        let (next, prev) = (self.files[f].leases, self.files[f].waiters);
        match prev {
            NONE => self.idle_first = next,
            prev => self.files[prev].leases = next,
        }
        match next {
            NONE => self.idle_last = prev,
            next => self.files[next].waiters = prev,
        }
        let file = &mut self.files[f];
        (file.idle, file.waiters, file.leases) = (false, NONE, NONE);
    }

    fn forget_idle_file(&mut self) -> Option<()> {
        let f = self.idle_first;
        if f == NONE {
            return None;
        }
        self.wake_from_idle(f);
        self.remove_file(f);
        Some(())
    }

    fn remove_file(&mut self, f: u32) {
        self.revisions.forget(self.files[f].revision);
        self.quiet.remove(&f);
        let hash = self.mix(self.files[f].key.0);
        if let Ok(entry) = self.by_key.find_entry(hash, |&x| x == f) {
            entry.remove();
        }
        self.files.remove(f);
    }

    /// The number of a lease for clients.
    pub(super) fn seq_of(&self, i: u32) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.leases[i].seq)
    }

    pub(super) fn ticket(&self, slot: u32) -> Ticket {
        Ticket { slot, number: self.waiters[slot].number }
    }
}
