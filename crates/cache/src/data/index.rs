//! The index of a shelf in memory: entries by key, ordered by the cleaner's policy.
//!
//! An entry takes about ninety bytes: a slot in the order's slab, and five bytes in a hash table of
//! places. This module knows nothing of the disk.

use super::entry::Entry;
use super::format::Key;
use crate::policy::{Item, ItemId, Order, Policy, SavedUse};
use hashbrown::HashTable;
use std::sync::{Arc, Weak};

/// An entry as known without its files.
pub(super) struct Slot {
    pub key: Key,
    pub id: u64,
    /// Space of the data file, in bytes: the length of the remote file, or less.
    pub data_bytes: u64,
    /// Time of the last use, in seconds since 1970.
    pub used_s: u64,
    pub entry: Weak<Entry>,
}

impl Slot {
    /// Whether the entry is in use by a reader. The reference of an unsynced entry in the sync
    /// queue does not count.
    pub fn is_open(&self) -> bool {
        let open = |e: Arc<Entry>| Arc::strong_count(&e) > 1 + usize::from(e.is_unsynced());
        self.entry.strong_count() > 0 && self.entry.upgrade().is_some_and(open)
    }
}

impl Item for Slot {
    fn mark(&self) -> u32 {
        self.key.0 as u32
    }
}

pub(super) struct Index {
    order: Order<Slot>,
    places: HashTable<ItemId>,
    /// The server chooses filehandles. The seed keeps the server from choosing their position in
    /// the table.
    seed: u64,
    bytes: u64,
    /// Size to which the cleaner is reducing the shelf, in bytes.
    pub goal: Option<u64>,
}

fn hash(key: Key, seed: u64) -> u64 {
    // The key is already a hash. The product spreads the seed over the bits that the table uses.
    (key.0 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.1.rotate_left((seed & 63) as u32)
}

impl Index {
    pub fn new(policy: Policy, seed: u64) -> Self {
        Self { order: Order::new(policy), places: HashTable::new(), seed, bytes: 0, goal: None }
    }

    /// Reserves space for so many more entries.
    pub fn reserve(&mut self, entries: usize) {
        self.order.reserve(entries);
        let (order, seed) = (&self.order, self.seed);
        self.places.reserve(entries, |p| hash(order.at(*p).key, seed));
    }

    pub fn policy(&self) -> Policy {
        self.order.policy()
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Space of all entries, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn place(&self, key: Key) -> Option<ItemId> {
        self.places.find(hash(key, self.seed), |p| self.order.at(*p).key == key).copied()
    }

    pub fn get(&self, key: Key) -> Option<&Slot> {
        self.place(key).map(|place| self.order.at(place))
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.place(key).map(|place| self.order.at_mut(place))
    }

    /// Space of an entry, and its number of uses as far as the policy counts them.
    pub fn size_and_uses(&self, key: Key) -> Option<(u64, u8)> {
        self.place(key).map(|place| (self.order.bytes(place), self.order.uses(place)))
    }

    /// Adds a new entry; the key must have none.
    pub fn insert(&mut self, slot: Slot, bytes: u64) {
        let key = slot.key;
        let place = self.order.insert(slot, bytes);
        self.add(key, place, bytes);
    }

    /// Adds an entry from before a restart, in the order that [`Order::restore`] needs.
    pub fn restore(&mut self, slot: Slot, bytes: u64, kept: Option<SavedUse>) {
        let key = slot.key;
        let place = self.order.restore(slot, bytes, kept);
        self.add(key, place, bytes);
    }

    fn add(&mut self, key: Key, place: ItemId, bytes: u64) {
        let (order, seed) = (&self.order, self.seed);
        self.places.insert_unique(hash(key, seed), place, |p| hash(order.at(*p).key, seed));
        self.bytes += bytes;
    }

    /// Removes the entry of a key. With `id`, removes only the entry with that id.
    pub fn remove(&mut self, key: Key, id: Option<u64>) -> Option<Slot> {
        let place = self.place(key)?;
        if id.is_some_and(|id| id != self.order.at(place).id) {
            return None;
        }
        self.bytes -= self.order.bytes(place);
        self.lose(key, place);
        Some(self.order.remove(place))
    }

    fn lose(&mut self, key: Key, place: ItemId) {
        if let Ok(found) = self.places.find_entry(hash(key, self.seed), |p| *p == place) {
            found.remove();
        }
    }

    /// Records a use now; returns the time of the previous use, in seconds since 1970.
    pub fn used(&mut self, key: Key, now_s: u64) -> Option<u64> {
        let place = self.place(key)?;
        self.order.used(place);
        Some(std::mem::replace(&mut self.order.at_mut(place).used_s, now_s))
    }

    /// Adds to the size of an entry.
    pub fn grow(&mut self, key: Key, id: u64, bytes: u64) {
        let Some(place) = self.place(key).filter(|place| self.order.at(*place).id == id) else { return };
        self.order.at_mut(place).data_bytes += bytes;
        self.order.resize(place, self.order.bytes(place) + bytes);
        self.bytes += bytes;
    }

    /// Whether an entry may grow by `more` bytes by evicting others; see [`Order::may_displace`].
    pub fn may_displace(&self, key: Key, more: u64, whole_bytes: u64, soft_bytes: u64) -> bool {
        self.place(key).is_some_and(|place| self.order.may_displace(place, more, whole_bytes, soft_bytes))
    }

    /// Excludes an entry from eviction, or includes it again.
    pub fn set_aside(&mut self, key: Key, aside: bool) {
        if let Some(place) = self.place(key) {
            self.order.set_aside(place, aside);
        }
    }

    /// Evicts the next entry; returns it with its space. Open entries are skipped, up to 64 in a
    /// row.
    pub fn evict(&mut self) -> Option<(Slot, u64)> {
        let (place, slot, bytes) = self.order.evict(Slot::is_open)?;
        self.lose(slot.key, place);
        self.bytes -= bytes;
        Some((slot, bytes))
    }

    /// All entries with their space, in the order that [`Index::restore`] needs.
    pub fn iter(&self) -> impl Iterator<Item = (&Slot, u64, SavedUse)> {
        self.order.iter().map(|(place, slot, kept)| (slot, self.order.bytes(place), kept))
    }
}
