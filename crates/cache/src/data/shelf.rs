//! All entries of one part of a cache directory: their index, size and eviction. All calls block,
//! except [`Shelf::has`], [`Shelf::forget`] and calls documented as not blocking.
//!
//! The index in memory is read from the last orderly shutdown (`saved`), or built from file names
//! and sizes at the start. A map is read at the first use of its entry. A filehandle has one entry:
//! another version replaces it. Entries leave the index at once, and the disk a little later.

use super::entry::Entry;
use super::format::{Key, Version, names, parse_name};
use super::index::{Index, Slot};
use super::io::Io;
use super::saved;
use super::stats::{Counters, add};
use super::tools::DataCacheSlot;
use super::total::Total;
use crate::policy::{Policy, SavedUse};
use hither_vfs::Fh;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Space of an entry besides its blocks, in bytes: two inodes and a map.
const ENTRY_COST: u64 = 8 << 10;
/// Most entries remembered as verified; after that, entries are compared again.
const WHOLE_MAX: usize = 1 << 18;
/// Locks for creating and loading entries.
const LOCKS: usize = 16;
/// Interval after which the time of an entry's last use is written to the disk again, in seconds.
const TOUCH_EVERY_S: u64 = 60;

/// Limits of a shelf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub soft_bytes: u64,
    pub hard_bytes: u64,
    pub min_free_bytes: u64,
    /// Which entries are evicted first.
    pub policy: Policy,
    /// Nothing on the disk is changed.
    pub read_only: bool,
}

pub(super) struct Shelf {
    pub io: Arc<dyn Io>,
    pub index: Mutex<Index>,
    makers: [Mutex<()>; LOCKS],
    trash: Mutex<Vec<String>>,
    /// Complete entries with every block verified since the start, or stored since then. They are
    /// not compared again at their next load.
    whole: Mutex<HashSet<u64>>,
    pub cleaning: Mutex<()>,
    /// Size at the last shortage of space in the file system, less the missing bytes; `u64::MAX`
    /// without a shortage.
    pub tight_bytes: AtomicU64,
    /// Space of entries outside the index, because they are being written.
    withheld_bytes: AtomicU64,
    /// Files that the cleaner does not evict.
    pins: Mutex<HashSet<Key>>,
    pub limits: Limits,
    /// Total size of the directory that contains this shelf.
    pub total: OnceLock<Total>,
    pub counters: Arc<Counters>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

/// Space of one file of an entry, and its modification time.
type Half = (u64, u64);

impl Shelf {
    /// Opens the entries in a directory. Files with other names are left alone.
    pub fn open(
        io: Arc<dyn Io>,
        limits: Limits,
        counters: Arc<Counters>,
        random: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> io::Result<Self> {
        let shelf = Self {
            index: Mutex::new(Index::new(limits.policy, random())),
            io,
            makers: Default::default(),
            trash: Mutex::default(),
            whole: Mutex::default(),
            cleaning: Mutex::default(),
            tight_bytes: AtomicU64::new(u64::MAX),
            withheld_bytes: AtomicU64::new(0),
            pins: Mutex::default(),
            limits,
            total: OnceLock::new(),
            counters,
            random,
        };
        let saved = saved::read(&*shelf.io, limits.policy);
        if !limits.read_only {
            saved::invalidate(&*shelf.io)?;
        }
        match saved {
            Some(all) => {
                let mut index = shelf.index.lock();
                index.reserve(all.len());
                all.into_iter().for_each(|(slot, bytes, kept)| index.restore(slot, bytes, kept));
            }
            None => shelf.scan()?,
        }
        shelf.empty_trash();
        Ok(shelf)
    }

    /// Scans all files.
    fn scan(&self) -> io::Result<()> {
        let mut halves: HashMap<(Key, u64), [Option<Half>; 2]> = HashMap::new();
        for file in self.io.list()? {
            if let Some((key, id, map)) = parse_name(&file.name) {
                halves.entry((key, id)).or_default()[usize::from(map)] =
                    Some((file.used_bytes, file.touched_s));
            }
        }
        let mut whole = Vec::with_capacity(halves.len());
        for ((key, id), halves) in halves {
            match halves {
                [Some((data, _)), Some((map, used_s))] => whole.push((used_s, key, id, data, map)),
                // A crash left half of the entry.
                _ => self.throw_away(key, id),
            }
        }
        whole.sort_unstable();
        let mut index = self.index.lock();
        index.reserve(whole.len());
        for (used_s, key, id, data_bytes, map_bytes) in whole {
            if let Some(older) = index.remove(key, None) {
                self.throw_away(key, older.id);
            }
            let slot = Slot { key, id, data_bytes, used_s, entry: Weak::new() };
            index.restore(slot, data_bytes + map_bytes, None);
        }
        Ok(())
    }

    /// Saves the index for a quick start. No entry may be added or removed afterwards.
    pub fn save(&self) {
        if self.limits.read_only {
            return;
        }
        self.empty_trash();
        let written = saved::write(&*self.io, &self.index.lock());
        if let Err(e) = written {
            // The next start then scans all files.
            tracing::debug!("disk cache: the index cannot be written: {e}");
        }
        if let Some(total) = self.total.get() {
            total.leave(self.size().1);
        }
    }

    /// Whether nothing more may be added. Does not block.
    pub fn is_full(&self) -> bool {
        let bytes = self.size().1;
        bytes >= self.limits.hard_bytes || self.total.get().is_some_and(|total| total.is_full(bytes))
    }

    /// Whether `more` bytes can be added without eviction. Does not block.
    pub fn is_roomy(&self, more: u64) -> bool {
        let bytes = self.size().1.saturating_add(more);
        let all = self.total.get().is_none_or(|total| total.bytes(bytes) <= total.soft_bytes);
        bytes <= self.soft_bytes() && all
    }

    /// Size above which entries are evicted: a soft limit, or the space of the file system.
    fn soft_bytes(&self) -> u64 {
        let all = self.total.get().map_or(u64::MAX, |total| total.soft_bytes);
        self.limits.soft_bytes.min(all).min(self.tight_bytes.load(Ordering::Relaxed))
    }

    /// Whether a block of an entry is stored. A large file that is read once does not evict used
    /// files. Does not block.
    pub fn admits(&self, entry: &Entry, more: u64) -> bool {
        let whole_bytes = entry.version.size.saturating_add(ENTRY_COST);
        self.is_roomy(more) || self.index.lock().may_displace(entry.key, more, whole_bytes, self.soft_bytes())
    }

    /// Number of entries, and their space in bytes.
    pub fn size(&self) -> (u64, u64) {
        let index = self.index.lock();
        (index.len() as u64, index.bytes() + self.withheld())
    }

    /// Space of entries outside the index, in bytes.
    pub fn withheld(&self) -> u64 {
        self.withheld_bytes.load(Ordering::Relaxed)
    }

    /// Whether a file has an entry, of any version.
    pub fn has(&self, key: Key) -> bool {
        self.index.lock().get(key).is_some()
    }

    /// Whether a file of this length is most likely complete.
    pub fn has_all(&self, key: Key, size_bytes: u64) -> bool {
        self.index.lock().get(key).is_some_and(|slot| slot.data_bytes >= size_bytes)
    }

    /// The entry of a version of a file. An entry of another version is dropped.
    pub fn find(&self, fh: &Fh, version: Version, now_s: u64) -> Option<Arc<Entry>> {
        let key = Key::of(fh);
        let _making = self.makers[key.0 as usize % LOCKS].lock();
        let entry = self.load(key)?;
        if entry.version != version || entry.fh != *fh {
            add(&self.counters.dropped_by_change, 1);
            self.forget(key, Some(entry.id));
            return None;
        }
        let before_s = self.index.lock().used(key, now_s)?;
        if !self.limits.read_only && now_s >= before_s.saturating_add(TOUCH_EVERY_S) {
            // The order of use survives a restart. If the touch fails, only the order is lost.
            let _ = self.io.touch(&names(key, entry.id).1, now_s);
        }
        Some(entry)
    }

    fn load(&self, key: Key) -> Option<Arc<Entry>> {
        let id = {
            let index = self.index.lock();
            let slot = index.get(key)?;
            if let Some(entry) = slot.entry.upgrade() {
                return Some(entry);
            }
            slot.id
        };
        match Entry::load(&self.io, key, id, !self.limits.read_only) {
            Ok(entry) => {
                if self.whole.lock().contains(&id) {
                    entry.trust();
                }
                let entry = Arc::new(entry);
                let mut index = self.index.lock();
                let slot = index.get_mut(key).filter(|slot| slot.id == id)?;
                slot.entry = Arc::downgrade(&entry);
                Some(entry)
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::NotFound
                ) =>
            {
                self.damaged(key, id, &e);
                None
            }
            Err(e) => {
                // Out of descriptors or memory, or a disk error: the entry may be intact.
                add(&self.counters.errors, 1);
                tracing::debug!("disk cache: cannot load {}: {e}", names(key, id).0);
                None
            }
        }
    }

    /// Drops an entry that is damaged or cannot be read.
    pub fn damaged(&self, key: Key, id: u64, e: &io::Error) {
        if e.kind() == ErrorKind::InvalidData || e.kind() == ErrorKind::UnexpectedEof {
            add(&self.counters.damaged, 1);
            tracing::warn!("disk cache: dropped a damaged entry, {}: {e}", names(key, id).0);
        } else if e.kind() != ErrorKind::NotFound {
            add(&self.counters.errors, 1);
            tracing::warn!("disk cache: dropped an entry that cannot be read, {}: {e}", names(key, id).0);
        }
        self.forget(key, Some(id));
    }

    /// The entry of a version of a file, created if necessary.
    pub fn create(&self, fh: &Fh, version: Version, now_s: u64) -> io::Result<Arc<Entry>> {
        let key = Key::of(fh);
        let _making = self.makers[key.0 as usize % LOCKS].lock();
        if let Some(entry) = self.load(key) {
            if entry.version == version && entry.fh == *fh && !entry.is_dead() {
                return Ok(entry);
            }
            self.forget(key, Some(entry.id));
        }
        let id = (self.random)();
        let entry = Arc::new(Entry::create(&self.io, id, fh, version)?);
        self.take_in(
            Slot { key, id, data_bytes: 0, used_s: now_s, entry: Arc::downgrade(&entry) },
            ENTRY_COST,
        );
        Ok(entry)
    }

    /// Stores a block in an entry, if there is room; returns whether it did.
    pub fn put(&self, entry: &Entry, block: u64, data: &[u8]) -> io::Result<bool> {
        let bytes = self.size().1 + data.len() as u64;
        let admitted = || self.total.get().is_none_or(|total| total.admit(bytes));
        if bytes > self.limits.hard_bytes || !admitted() {
            add(&self.counters.refused_full, 1);
            return Ok(false);
        }
        if !entry.put(block, data)? {
            return Ok(false);
        }
        self.index.lock().grow(entry.key, entry.id, data.len() as u64);
        self.note_whole(entry);
        add(&self.counters.stored_bytes, data.len() as u64);
        Ok(true)
    }

    /// Remembers an entry that is complete and verified.
    pub fn note_whole(&self, entry: &Entry) {
        if entry.is_whole() {
            let mut whole = self.whole.lock();
            if whole.len() >= WHOLE_MAX {
                whole.clear();
            }
            whole.insert(entry.id);
        }
    }

    /// Drops the entry of a key. With `id`, drops only the entry with that id. Readers of the entry
    /// may continue. Does not block.
    pub fn forget(&self, key: Key, id: Option<u64>) -> bool {
        let Some(slot) = self.index.lock().remove(key, id) else { return false };
        self.gone(&slot);
        true
    }

    /// Removes the files of an entry that has left the index.
    pub fn gone(&self, slot: &Slot) {
        if let Some(entry) = slot.entry.upgrade() {
            entry.kill();
        }
        self.whole.lock().remove(&slot.id);
        self.throw_away(slot.key, slot.id);
    }

    /// Removes an entry like [`Shelf::forget`], but keeps its data on the disk for [`Shelf::adopt`]
    /// or [`Shelf::discard`]. The data still take `bytes` of space.
    pub fn withhold(&self, entry: &Entry, bytes: u64) -> bool {
        if self.limits.read_only || !self.forget(entry.key, Some(entry.id)) {
            return false;
        }
        let data = names(entry.key, entry.id).0;
        let mut trash = self.trash.lock();
        let before = trash.len();
        trash.retain(|name| *name != data);
        // If the name is missing, another thread has just emptied the trash.
        let withheld = trash.len() < before;
        if withheld {
            self.withheld_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        withheld
    }

    /// Removes the data of a withheld entry.
    pub fn discard(&self, entry: &Entry, bytes: u64) {
        self.withheld_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.trash.lock().push(names(entry.key, entry.id).0);
    }

    /// Turns the data of a withheld entry into an entry of a later version, without the `touched`
    /// blocks.
    pub fn adopt(
        &self,
        (old, bytes): (&Entry, u64),
        version: Version,
        touched: &BTreeSet<u64>,
        now_s: u64,
    ) -> io::Result<Arc<Entry>> {
        let _making = self.makers[old.key.0 as usize % LOCKS].lock();
        // An entry created under the later version meanwhile has fewer blocks.
        self.forget(old.key, None);
        // The old map is removed first: it must not be found with the new data.
        self.empty_trash();
        let id = (self.random)();
        let entry = Arc::new(old.heir(id, version, touched)?);
        self.withheld_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let data_bytes = entry.bytes();
        let slot = Slot { key: old.key, id, data_bytes, used_s: now_s, entry: Arc::downgrade(&entry) };
        self.take_in(slot, ENTRY_COST + data_bytes);
        Ok(entry)
    }

    /// Adds a new entry, replacing any entry of its key.
    fn take_in(&self, slot: Slot, bytes: u64) {
        let key = slot.key;
        let pins = self.pins.lock();
        let mut index = self.index.lock();
        if let Some(other) = index.remove(key, None) {
            self.throw_away(key, other.id);
        }
        index.insert(slot, bytes);
        index.set_aside(key, pins.contains(&key));
    }

    fn throw_away(&self, key: Key, id: u64) {
        if self.limits.read_only {
            return;
        }
        let (data, map) = names(key, id);
        self.trash.lock().extend([map, data]);
    }

    /// Removes the files of dropped entries.
    pub fn empty_trash(&self) {
        let names = std::mem::take(&mut *self.trash.lock());
        for name in names {
            match self.io.remove(&name) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    // The next start finds the file again, and its version is compared then.
                    tracing::debug!("disk cache: cannot remove {name}: {e}");
                }
                _ => {}
            }
        }
    }

    /// Whether the cleaner does not evict a file.
    pub fn is_pinned(&self, key: Key) -> bool {
        self.pins.lock().contains(&key)
    }

    /// Pins or unpins files; returns all pins.
    pub fn pin(&self, keys: &[Key], pinned: bool) -> Vec<Key> {
        let mut pins = self.pins.lock();
        for key in keys {
            if pinned {
                pins.insert(*key);
            } else {
                pins.remove(key);
            }
            self.index.lock().set_aside(*key, pinned);
        }
        pins.iter().copied().collect()
    }

    /// All entries as known in the index.
    pub fn slots(&self) -> Vec<DataCacheSlot> {
        // Readers need these locks: the strings are built after their release.
        let known: Vec<_> = {
            let pins = self.pins.lock();
            let index = self.index.lock();
            let known = |(slot, disk_bytes, kept): (&Slot, u64, SavedUse)| {
                (slot.key, disk_bytes, slot.used_s, kept.uses, pins.contains(&slot.key), slot.is_open())
            };
            index.iter().map(known).collect()
        };
        let told = |(key, disk_bytes, used_s, uses, pinned, open): (Key, _, _, _, _, _)| DataCacheSlot {
            key: key.hex(),
            disk_bytes,
            used_s,
            uses,
            pinned,
            open,
        };
        known.into_iter().map(told).collect()
    }

    /// Sets the pins from before a restart.
    pub fn set_pins(&self, all: Vec<Key>) {
        let mut pins = self.pins.lock();
        let mut index = self.index.lock();
        all.iter().for_each(|key| index.set_aside(*key, true));
        *pins = all.into_iter().collect();
    }

    /// Whether the file system has the required free space.
    pub fn is_space_left(&self) -> bool {
        self.io.free_bytes().is_ok_and(|free| free >= self.limits.min_free_bytes)
    }

    /// All keys.
    pub fn keys(&self) -> Vec<Key> {
        self.index.lock().iter().map(|(slot, ..)| slot.key).collect()
    }

    /// The entry of a key, if it is loaded.
    pub fn in_use(&self, key: Key) -> Option<Arc<Entry>> {
        self.index.lock().get(key)?.entry.upgrade()
    }

    /// An entry for inspection, with its space and last use.
    pub fn look(&self, key: Key) -> Option<(Arc<Entry>, u64, u64)> {
        let _making = self.makers[key.0 as usize % LOCKS].lock();
        let entry = self.load(key)?;
        let index = self.index.lock();
        let (bytes, _) = index.size_and_uses(key)?;
        Some((entry, bytes, index.get(key)?.used_s))
    }

    /// Names of files that belong to no entry of the index.
    #[cfg(test)]
    pub fn strays(&self) -> Vec<String> {
        let known: HashSet<_> = self.index.lock().iter().map(|(s, ..)| (s.key, s.id)).collect();
        let all = self.io.list().expect("the disk can be listed");
        let stray = |name: &String| parse_name(name).is_none_or(|(k, id, _)| !known.contains(&(k, id)));
        all.into_iter().map(|l| l.name).filter(|name| name != saved::NAME).filter(stray).collect()
    }
}
