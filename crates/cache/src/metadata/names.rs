//! Names of one directory: bound to objects, or absent.
//!
//! One buffer holds the bytes of all names, one vector the entries, and a hash table the entry
//! numbers. A name takes about 60 bytes. A directory of any size is dropped by freeing three
//! blocks. Removed entries leave holes; the vectors are rebuilt when more than half of the entries
//! are holes.

use super::moment::Moment;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// The name is known to be absent.
const ABSENT: u8 = 1;
/// Learned under the directory's label: the name holds as long as the label.
const LABELED: u8 = 2;
/// A removed entry.
const DEAD: u8 = 4;
/// `cookie` is the server's.
const HAS_COOKIE: u8 = 8;

/// Slot of an object in the table, with the generation of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub slot: u32,
    pub generation: u32,
}

impl Id {
    /// No object.
    pub const NONE: Id = Id { slot: u32::MAX, generation: 0 };
}

/// The known binding of a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    /// The object; `None` when the name is absent.
    pub child: Option<Id>,
    /// When the request was sent.
    pub asked: Moment,
    /// Validity of the answer itself, from the request on, in whole seconds. Two bytes hold it.
    pub valid_s: u16,
    /// Whether the name holds as long as the directory's label.
    pub labeled: bool,
    /// The server's cookie after this entry, when the entry came from a listing.
    pub cookie: Option<u64>,
}

/// A second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// The whole seconds from a request to the end of its validity.
pub(super) fn whole_seconds(asked: Moment, until: Moment) -> u16 {
    u16::try_from(until.saturating_sub(asked) / SECOND).unwrap_or(u16::MAX)
}

impl Bound {
    /// End of the answer's own validity.
    pub fn until(&self) -> Moment {
        self.asked.saturating_add(u64::from(self.valid_s) * SECOND)
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    asked: Moment,
    cookie: u64,
    at: u32,
    slot: u32,
    generation: u32,
    valid_s: u16,
    len: u8,
    flags: u8,
}

impl Entry {
    fn bound(&self) -> Bound {
        let child = Id { slot: self.slot, generation: self.generation };
        Bound {
            child: (self.flags & ABSENT == 0).then_some(child),
            asked: self.asked,
            valid_s: self.valid_s,
            labeled: self.flags & LABELED != 0,
            cookie: (self.flags & HAS_COOKIE != 0).then_some(self.cookie),
        }
    }
}

/// The names, and the order of the listing.
#[derive(Debug, Default)]
pub(super) struct Names {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    index: HashTable<u32>,
    dead: u32,
    /// Entry numbers in the server's order, from the start of the directory.
    order: Vec<u32>,
}

impl Names {
    /// The binding of a name, if known.
    pub fn find(&self, hash: u64, name: &[u8]) -> Option<Bound> {
        let at = *self.index.find(hash, |&i| self.name(i) == name)?;
        Some(self.entries[at as usize].bound())
    }

    /// Stores the binding of a name; returns the entry number. `None` without storing it
    /// when the name is over 255 bytes long or a number overflows.
    pub fn put(&mut self, hasher: &RandomState, name: &[u8], bound: Bound) -> Option<u32> {
        let hash = hasher.hash_one(name);
        let found = self.index.find(hash, |&i| self.name(i) == name).copied();
        let number = match found {
            Some(number) => number,
            None => {
                let number = u32::try_from(self.entries.len()).ok()?;
                let at = u32::try_from(self.bytes.len()).ok()?;
                let len = u8::try_from(name.len()).ok()?;
                self.bytes.extend_from_slice(name);
                let (bytes, entries) = (&self.bytes, &mut self.entries);
                entries.push(Entry {
                    asked: 0,
                    cookie: 0,
                    at,
                    slot: 0,
                    generation: 0,
                    valid_s: 0,
                    len,
                    flags: 0,
                });
                let of = |&i: &u32| hasher.hash_one(name_of(bytes, &entries[i as usize]));
                self.index.insert_unique(hash, number, of);
                number
            }
        };
        let child = bound.child.unwrap_or(Id::NONE);
        let entry = &mut self.entries[number as usize];
        // A listed name keeps its cookie when an answer without a cookie replaces its binding.
        let kept = (entry.flags & (ABSENT | HAS_COOKIE) == HAS_COOKIE && bound.child.is_some())
            .then_some(entry.cookie);
        let cookie = bound.cookie.or(kept);
        entry.asked = bound.asked;
        entry.valid_s = bound.valid_s;
        entry.slot = child.slot;
        entry.generation = child.generation;
        // The cookie stays when the name is removed: it still marks a position of the listing.
        entry.cookie = cookie.unwrap_or(entry.cookie);
        entry.flags = 0;
        for (on, flag) in
            [(bound.child.is_none(), ABSENT), (bound.labeled, LABELED), (cookie.is_some(), HAS_COOKIE)]
        {
            entry.flags |= if on { flag } else { 0 };
        }
        Some(number)
    }

    /// Drops the binding of a name.
    pub fn remove(&mut self, hasher: &RandomState, name: &[u8]) {
        let hash = hasher.hash_one(name);
        let Self { index, entries, bytes, .. } = self;
        let same = |&i: &u32| name_of(bytes, &entries[i as usize]) == name;
        let Ok(found) = index.find_entry(hash, same) else { return };
        let (number, _) = found.remove();
        self.entries[number as usize].flags = DEAD | ABSENT;
        self.dead += 1;
        if self.dead > 32 && self.dead as usize * 2 > self.entries.len() {
            self.squeeze(hasher);
        }
    }

    /// Rebuilds all parts without the holes.
    fn squeeze(&mut self, hasher: &RandomState) {
        let old = std::mem::take(self);
        let mut moved = vec![u32::MAX; old.entries.len()];
        for (i, entry) in old.entries.iter().enumerate().filter(|(_, e)| e.flags & DEAD == 0) {
            if let Some(to) = self.put(hasher, name_of(&old.bytes, entry), entry.bound()) {
                moved[i] = to;
            }
        }
        self.order = old.order.iter().map(|&i| moved[i as usize]).filter(|&i| i != u32::MAX).collect();
    }

    /// Drops the order of the listing.
    pub fn unlist(&mut self) {
        self.order = Vec::new();
    }

    /// Appends an entry to the order of the listing.
    pub fn list(&mut self, number: u32) {
        self.order.push(number);
    }

    /// Drops the present names that are not in the listing.
    pub fn keep_listed(&mut self, hasher: &RandomState) {
        let mut others = vec![true; self.entries.len()];
        self.order.iter().for_each(|&i| others[i as usize] = false);
        let of = |i: usize| {
            let there = self.entries[i].flags & (DEAD | ABSENT) == 0;
            (others[i] && there).then(|| self.name(i as u32).to_vec())
        };
        let others: Vec<Vec<u8>> = (0..self.entries.len()).filter_map(of).collect();
        others.iter().for_each(|name| self.remove(hasher, name));
    }

    /// Drops the present names, and the order of the listing.
    pub fn keep_absent(&mut self, hasher: &RandomState) {
        let old = std::mem::take(self);
        let absent = old.entries.iter().filter(|e| e.flags & (DEAD | ABSENT) == ABSENT);
        for entry in absent {
            self.put(hasher, name_of(&old.bytes, entry), entry.bound());
        }
    }

    /// Entries of the listing from a position on, without removed names.
    pub fn listed(&self, from: usize) -> impl Iterator<Item = (usize, &[u8], Bound)> {
        let rest = self.order.get(from..).unwrap_or_default();
        rest.iter().enumerate().filter_map(move |(i, &number)| {
            let entry = &self.entries[number as usize];
            let here = entry.flags & (ABSENT | DEAD) == 0;
            here.then(|| (from + i, self.name(number), entry.bound()))
        })
    }

    /// The cookie that precedes a position of the listing, even if the name of that cookie was
    /// removed.
    pub fn cookie_before(&self, at: usize) -> Option<u64> {
        let number = *self.order.get(at.checked_sub(1)?)?;
        Some(self.entries[number as usize].cookie)
    }

    /// All present names, in no order.
    pub fn present(&self) -> impl Iterator<Item = (&[u8], Id)> {
        let here = |e: &&Entry| e.flags & (ABSENT | DEAD) == 0;
        self.entries.iter().filter(here).map(|e| {
            let child = Id { slot: e.slot, generation: e.generation };
            (name_of(&self.bytes, e), child)
        })
    }

    /// All known names, present and absent.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], Bound)> {
        let known = self.entries.iter().filter(|e| e.flags & DEAD == 0);
        known.map(|e| (name_of(&self.bytes, e), e.bound()))
    }

    /// Frees the spare capacity of the vectors.
    pub fn settle(&mut self, hasher: &RandomState) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
        self.order.shrink_to_fit();
        let (bytes, entries) = (&self.bytes, &self.entries);
        self.index.shrink_to_fit(|&i| hasher.hash_one(name_of(bytes, &entries[i as usize])));
    }

    /// Number of known names, present and absent.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.index.allocation_size()
            + self.order.capacity() * 4
    }

    fn name(&self, number: u32) -> &[u8] {
        name_of(&self.bytes, &self.entries[number as usize])
    }
}

fn name_of<'a>(bytes: &'a [u8], entry: &Entry) -> &'a [u8] {
    &bytes[entry.at as usize..entry.at as usize + usize::from(entry.len)]
}
