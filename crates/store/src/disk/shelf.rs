//! All entries of one cache directory: which there are, how much they take, which go first. All calls block, except
//! [`Shelf::has`] and [`Shelf::forget`].
//!
//! The index in memory is made of file names and sizes at the start; maps are read when their file is first asked for. There
//! is one entry a filehandle: another version replaces it. Entries leave the index at once and the disk a little later.

use super::entry::Entry;
use super::format::{Key, Version, names, parse_name};
use super::io::Io;
use super::stats::{Counters, add};
use hither_vfs::Fh;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Weak};

/// What an entry takes besides its blocks, in bytes: two inodes and a map.
const ENTRY_COST: u64 = 8 << 10;
/// Locks over makers and loaders of entries.
const LOCKS: usize = 16;
/// The time of an entry's last use is noted on the disk when it was noted so long ago.
const TOUCH_EVERY_S: u64 = 60;
/// Of what is cached, the part that the cleaner removes at least: P0's oldest 10 %.
const CLEAN_PART: u64 = 10;

/// How much may be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub soft_bytes: u64,
    pub hard_bytes: u64,
    pub min_free_bytes: u64,
    /// Nothing on the disk is touched.
    pub read_only: bool,
}

pub(super) struct Shelf {
    pub io: Arc<dyn Io>,
    index: Mutex<Index>,
    makers: [Mutex<()>; LOCKS],
    trash: Mutex<Vec<String>>,
    cleaning: Mutex<()>,
    /// Files that the cleaner leaves alone.
    pins: Mutex<HashSet<Key>>,
    limits: Limits,
    counters: Arc<Counters>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
}

#[derive(Default)]
struct Index {
    slots: HashMap<Key, Slot>,
    bytes: u64,
}

/// Space that one file of an entry takes, and when it was touched.
type Half = (u64, u64);

struct Slot {
    id: u64,
    bytes: u64,
    /// Of these, the data file's: all of the remote file, or less.
    data_bytes: u64,
    used_s: u64,
    entry: Weak<Entry>,
}

impl Shelf {
    /// Finds what is in a directory. Names that are none of ours are left alone.
    pub fn open(
        io: Arc<dyn Io>,
        limits: Limits,
        counters: Arc<Counters>,
        random: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> io::Result<Self> {
        let mut halves: HashMap<(Key, u64), [Option<Half>; 2]> = HashMap::new();
        for file in io.list()? {
            if let Some((key, id, map)) = parse_name(&file.name) {
                halves.entry((key, id)).or_default()[usize::from(map)] =
                    Some((file.used_bytes, file.touched_s));
            }
        }
        let shelf = Self {
            io,
            index: Mutex::default(),
            makers: Default::default(),
            trash: Mutex::default(),
            cleaning: Mutex::default(),
            pins: Mutex::default(),
            limits,
            counters,
            random,
        };
        {
            let mut index = shelf.index.lock();
            for ((key, id), halves) in halves {
                let [Some((data, _)), Some((map, used_s))] = halves else {
                    // A crash left half of it.
                    shelf.throw_away(key, id);
                    continue;
                };
                let slot = Slot { id, bytes: data + map, data_bytes: data, used_s, entry: Weak::new() };
                if let Some(older) = index.slots.get(&key)
                    && older.used_s > slot.used_s
                {
                    shelf.throw_away(key, id);
                    continue;
                }
                index.bytes += slot.bytes;
                if let Some(older) = index.slots.insert(key, slot) {
                    index.bytes -= older.bytes;
                    shelf.throw_away(key, older.id);
                }
            }
        }
        shelf.empty_trash();
        Ok(shelf)
    }

    /// Entries, and bytes they take.
    pub fn size(&self) -> (u64, u64) {
        let index = self.index.lock();
        (index.slots.len() as u64, index.bytes)
    }

    /// Whether there is something of a file, of whatever version.
    pub fn has(&self, key: Key) -> bool {
        self.index.lock().slots.contains_key(&key)
    }

    /// Whether there is, most likely, all of a file of this length.
    pub fn has_all(&self, key: Key, size_bytes: u64) -> bool {
        self.index.lock().slots.get(&key).is_some_and(|slot| slot.data_bytes >= size_bytes)
    }

    /// The entry of a version of a file. One of another version goes.
    pub fn find(&self, fh: &Fh, version: Version, now_s: u64) -> Option<Arc<Entry>> {
        let key = Key::of(fh);
        let _making = self.makers[key.0 as usize % LOCKS].lock();
        let entry = self.load(key)?;
        if entry.version != version || entry.fh != *fh {
            add(&self.counters.dropped_by_change, 1);
            self.forget(key, Some(entry.id));
            return None;
        }
        let before_s = {
            let mut index = self.index.lock();
            let slot = index.slots.get_mut(&key)?;
            std::mem::replace(&mut slot.used_s, now_s)
        };
        if !self.limits.read_only && now_s >= before_s.saturating_add(TOUCH_EVERY_S) {
            // The order of use survives a restart; nothing is lost when it does not.
            let _ = self.io.touch(&names(key, entry.id).1, now_s);
        }
        Some(entry)
    }

    fn load(&self, key: Key) -> Option<Arc<Entry>> {
        let id = {
            let index = self.index.lock();
            let slot = index.slots.get(&key)?;
            if let Some(entry) = slot.entry.upgrade() {
                return Some(entry);
            }
            slot.id
        };
        match Entry::load(&self.io, key, id, !self.limits.read_only) {
            Ok(entry) => {
                let entry = Arc::new(entry);
                let mut index = self.index.lock();
                let slot = index.slots.get_mut(&key).filter(|slot| slot.id == id)?;
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
                // Out of descriptors or memory, or the disk fails: it may be all right.
                add(&self.counters.errors, 1);
                tracing::debug!("disk cache: cannot look at {}: {e}", names(key, id).0);
                None
            }
        }
    }

    /// An entry that cannot be believed or read goes.
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

    /// The entry of a version of a file, made if need be.
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
        let slot =
            Slot { id, bytes: ENTRY_COST, data_bytes: 0, used_s: now_s, entry: Arc::downgrade(&entry) };
        let mut index = self.index.lock();
        index.bytes += ENTRY_COST;
        if let Some(other) = index.slots.insert(key, slot) {
            index.bytes -= other.bytes;
            self.throw_away(key, other.id);
        }
        Ok(entry)
    }

    /// Takes a block into an entry, if there is room; tells whether it did.
    pub fn put(&self, entry: &Entry, block: u64, data: &[u8]) -> io::Result<bool> {
        if self.size().1 + data.len() as u64 > self.limits.hard_bytes {
            add(&self.counters.refused_full, 1);
            return Ok(false);
        }
        if !entry.put(block, data)? {
            return Ok(false);
        }
        let mut index = self.index.lock();
        if let Some(slot) = index.slots.get_mut(&entry.key).filter(|slot| slot.id == entry.id) {
            slot.bytes += data.len() as u64;
            slot.data_bytes += data.len() as u64;
            index.bytes += data.len() as u64;
        }
        add(&self.counters.stored_bytes, data.len() as u64);
        Ok(true)
    }

    /// Gives an entry up (that with `id`, or whichever there is). Who reads from it may go on. Does not block.
    pub fn forget(&self, key: Key, id: Option<u64>) -> bool {
        let mut index = self.index.lock();
        if index.slots.get(&key).is_none_or(|slot| id.is_some_and(|id| id != slot.id)) {
            return false;
        }
        let Some(slot) = index.slots.remove(&key) else { return false };
        index.bytes -= slot.bytes;
        drop(index);
        if let Some(entry) = slot.entry.upgrade() {
            entry.kill();
        }
        self.throw_away(key, slot.id);
        true
    }

    fn throw_away(&self, key: Key, id: u64) {
        if self.limits.read_only {
            return;
        }
        let (data, map) = names(key, id);
        self.trash.lock().extend([map, data]);
    }

    /// Removes the files of entries that were given up.
    pub fn empty_trash(&self) {
        let names = std::mem::take(&mut *self.trash.lock());
        for name in names {
            match self.io.remove(&name) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    // It is found again at the next start, and its version is compared then.
                    tracing::debug!("disk cache: cannot remove {name}: {e}");
                }
                _ => {}
            }
        }
    }

    /// Removes what was not used for longest when there is too much, or too little is free: down to the soft limit and at
    /// least a tenth. Tells how many entries went.
    pub fn clean(&self) -> u64 {
        let Some(_alone) = self.cleaning.try_lock() else { return 0 };
        let bytes = self.size().1;
        let free = self.io.free_bytes().unwrap_or(u64::MAX);
        let over = bytes.saturating_sub(self.limits.soft_bytes);
        let short = self.limits.min_free_bytes.saturating_sub(free);
        if over.max(short) == 0 || bytes == 0 {
            return 0;
        }
        let goal = over.max(short).max(bytes / CLEAN_PART);
        // What somebody has open goes last.
        let mut all: Vec<_> = {
            let index = self.index.lock();
            let each = |(key, slot): (&Key, &Slot)| {
                (slot.entry.strong_count() > 0, slot.used_s, *key, slot.id, slot.bytes)
            };
            let pins = self.pins.lock();
            index.slots.iter().filter(|(key, _)| !pins.contains(key)).map(each).collect()
        };
        all.sort_unstable();
        let (mut freed, mut gone) = (0, 0);
        for (_, _, key, id, bytes) in all {
            if freed >= goal {
                break;
            }
            if self.forget(key, Some(id)) {
                freed += bytes;
                gone += 1;
            }
        }
        self.empty_trash();
        add(&self.counters.evictions, gone);
        add(&self.counters.evicted_bytes, freed);
        gone
    }

    /// Whether the cleaner leaves a file alone.
    pub fn is_pinned(&self, key: Key) -> bool {
        self.pins.lock().contains(&key)
    }

    /// Pins a file or lets it go; all pins afterwards.
    pub fn pin(&self, key: Key, pinned: bool) -> Vec<Key> {
        let mut pins = self.pins.lock();
        if pinned {
            pins.insert(key);
        } else {
            pins.remove(&key);
        }
        pins.iter().copied().collect()
    }

    /// The pins of before.
    pub fn set_pins(&self, pins: Vec<Key>) {
        *self.pins.lock() = pins.into_iter().collect();
    }

    /// Whether the file system has as much free as it should.
    pub fn is_space_left(&self) -> bool {
        self.io.free_bytes().is_ok_and(|free| free >= self.limits.min_free_bytes)
    }

    /// All keys, for those who go through everything.
    pub fn keys(&self) -> Vec<Key> {
        self.index.lock().slots.keys().copied().collect()
    }

    /// The entry of a key, if somebody uses it.
    pub fn in_use(&self, key: Key) -> Option<Arc<Entry>> {
        self.index.lock().slots.get(&key)?.entry.upgrade()
    }

    /// An entry for looking at.
    pub fn look(&self, key: Key) -> Option<(Arc<Entry>, u64, u64)> {
        let _making = self.makers[key.0 as usize % LOCKS].lock();
        let entry = self.load(key)?;
        let index = self.index.lock();
        let slot = index.slots.get(&key)?;
        Some((entry, slot.bytes, slot.used_s))
    }

    /// Names of files that belong to no entry of the index, as a test wants to know.
    #[cfg(test)]
    pub fn strays(&self) -> Vec<String> {
        let known: HashSet<_> = self.index.lock().slots.iter().map(|(k, s)| (*k, s.id)).collect();
        let all = self.io.list().expect("a disk that works");
        let stray = |name: &String| parse_name(name).is_none_or(|(k, id, _)| !known.contains(&(k, id)));
        all.into_iter().map(|l| l.name).filter(stray).collect()
    }
}
