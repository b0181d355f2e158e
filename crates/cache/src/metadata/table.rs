//! All objects by filehandle: sharded hash tables over slabs, within a bound of memory.
//!
//! A reused slot gets a new generation, so that a stale [`Id`] of the slot finds nothing. A clock
//! over the slots of each shard keeps the memory bound. An insertion beyond the bound moves the
//! hands of a few shards by a few slots. The hand drops each object that was not used since its
//! last pass. So the work per insertion is bounded. A directory is dropped with all its names at
//! once.

use super::moment::Moment;
use super::names::Id;
use super::objects::{Object, Packed};
use hashbrown::HashTable;
use hither_vfs::{Attr, Fh};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Locks over the table: a power of two.
const SHARDS: usize = 64;
/// Slots that are allocated at once.
const CHUNK: usize = 128;
/// Memory of a slot with its share of the hash table, in bytes.
const SLOT_BYTES: usize = size_of::<Object>() + 8;
/// Slots that a shard's hand passes per insertion, and shards per insertion.
const STEPS: usize = 16;
const TRIES: usize = 4;

/// File systems by number, and numbers by file system.
type FileSystems = (Vec<(u64, u64)>, HashMap<(u64, u64), u16>);

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
    pub hasher: RandomState,
    file_systems: RwLock<FileSystems>,
    memory_bytes: AtomicUsize,
    most_bytes: usize,
    objects: AtomicUsize,
    next_victim: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashTable<u32>,
    chunks: Vec<Vec<Object>>,
    free: Vec<u32>,
    hand: usize,
    /// The highest barrier of the dropped objects: new objects of the shard start with it.
    floor: u64,
}

impl Shard {
    fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    fn at(&self, i: u32) -> &Object {
        &self.chunks[i as usize / CHUNK][i as usize % CHUNK]
    }

    fn at_mut(&mut self, i: u32) -> &mut Object {
        &mut self.chunks[i as usize / CHUNK][i as usize % CHUNK]
    }

    fn find(&self, hash: u64, raw: &[u8]) -> Option<u32> {
        self.index.find(hash, |&i| self.at(i).fh.raw() == raw).copied()
    }

    fn insert(&mut self, hasher: &RandomState, hash: u64, raw: &[u8]) -> u32 {
        let i = match self.free.pop() {
            Some(i) => {
                let generation = self.at(i).generation;
                *self.at_mut(i) = Object::new(raw, generation, self.floor);
                i
            }
            None => {
                let i = self.len() as u32;
                if (i as usize).is_multiple_of(CHUNK) {
                    self.chunks.push(Vec::with_capacity(CHUNK));
                }
                let new = Object::new(raw, 0, self.floor);
                self.chunks.last_mut().expect("the last chunk has room").push(new);
                i
            }
        };
        let Self { index, chunks, .. } = self;
        index.insert_unique(hash, i, |&i| {
            hasher.hash_one(chunks[i as usize / CHUNK][i as usize % CHUNK].fh.raw())
        });
        i
    }

    /// Removes an object from its slot; returns the memory that it used, in bytes.
    fn remove(&mut self, hasher: &RandomState, i: u32) -> usize {
        let hash = hasher.hash_one(self.at(i).fh.raw());
        if let Ok(found) = self.index.find_entry(hash, |&j| j == i) {
            found.remove();
        }
        let object = self.at_mut(i);
        let bytes = object.memory_bytes() + SLOT_BYTES;
        object.live = false;
        object.generation = object.generation.wrapping_add(1);
        object.extra = None;
        object.asked = 0;
        let barrier = object.barrier;
        self.floor = self.floor.max(barrier);
        self.free.push(i);
        bytes
    }
}

impl Table {
    /// A table of about `most_bytes` bytes of memory.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            file_systems: RwLock::default(),
            memory_bytes: AtomicUsize::new(0),
            most_bytes,
            objects: AtomicUsize::new(0),
            next_victim: AtomicUsize::new(0),
        }
    }

    /// Memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Number of objects.
    pub fn objects(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    /// Most memory for the names of one directory, in bytes.
    pub fn directory_most_bytes(&self) -> usize {
        self.most_bytes / 2
    }

    /// The ids of all objects.
    pub fn ids(&self) -> Vec<Id> {
        let mut out = Vec::with_capacity(self.objects());
        for (number, shard) in self.shards.iter().enumerate() {
            let guard = shard.lock();
            for i in 0..guard.len() as u32 {
                let object = guard.at(i);
                if object.live {
                    out.push(Id { slot: i * SHARDS as u32 + number as u32, generation: object.generation });
                }
            }
        }
        out
    }

    /// The id of an object.
    pub fn find(&self, fh: &Fh) -> Option<Id> {
        self.with(fh, |id, _| id)
    }

    /// Calls `f` on a known object.
    pub fn with<R>(&self, fh: &Fh, f: impl FnOnce(Id, &mut Object) -> R) -> Option<R> {
        let (hash, shard) = self.place(fh);
        let mut guard = self.shards[shard].lock();
        let i = guard.find(hash, &fh.0)?;
        Some(self.act(&mut guard, shard, i, f))
    }

    /// Calls `f` on an object, which is added if it is unknown.
    pub fn ensure<R>(&self, fh: &Fh, f: impl FnOnce(Id, &mut Object) -> R) -> R {
        let (hash, shard) = self.place(fh);
        let mut guard = self.shards[shard].lock();
        let i = match guard.find(hash, &fh.0) {
            Some(i) => i,
            None => {
                self.memory_bytes.fetch_add(SLOT_BYTES, Ordering::Relaxed);
                self.objects.fetch_add(1, Ordering::Relaxed);
                guard.insert(&self.hasher, hash, &fh.0)
            }
        };
        self.act(&mut guard, shard, i, f)
    }

    /// Calls `f` on the object of an id, if its slot was not reused.
    pub fn with_id<R>(&self, id: Id, f: impl FnOnce(&mut Object) -> R) -> Option<R> {
        let shard = id.slot as usize % SHARDS;
        let i = id.slot / SHARDS as u32;
        let mut guard = self.shards[shard].lock();
        if i as usize >= guard.len() {
            return None;
        }
        let object = guard.at(i);
        if !object.live || object.generation != id.generation {
            return None;
        }
        Some(self.act(&mut guard, shard, i, |_, object| f(object)))
    }

    /// Reads the object of an id, if its slot was not reused, without marking it as used.
    pub fn peek_id<R>(&self, id: Id, f: impl FnOnce(&Object) -> R) -> Option<R> {
        let guard = self.shards[id.slot as usize % SHARDS].lock();
        let i = id.slot / SHARDS as u32;
        let object = ((i as usize) < guard.len()).then(|| guard.at(i))?;
        (object.live && object.generation == id.generation).then(|| f(object))
    }

    /// Calls `f` on the present object of a slot, of any generation. Used for guesses.
    pub fn with_slot<R>(&self, slot: u32, f: impl FnOnce(Id, &mut Object) -> R) -> Option<R> {
        let shard = slot as usize % SHARDS;
        let i = slot / SHARDS as u32;
        let mut guard = self.shards[shard].lock();
        if i as usize >= guard.len() || !guard.at(i).live {
            return None;
        }
        Some(self.act(&mut guard, shard, i, f))
    }

    /// Drops an object. An object with a running local change only expires.
    pub fn forget(&self, fh: &Fh, barrier: u64) {
        let (hash, shard) = self.place(fh);
        let mut guard = self.shards[shard].lock();
        let Some(i) = guard.find(hash, &fh.0) else { return };
        let object = guard.at_mut(i);
        object.barrier = object.barrier.max(barrier);
        if object.modifying > 0 {
            object.expire();
            return;
        }
        let bytes = guard.remove(&self.hasher, i);
        self.gone(bytes);
    }

    fn gone(&self, bytes: usize) {
        self.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.objects.fetch_sub(1, Ordering::Relaxed);
    }

    fn act<R>(&self, shard: &mut Shard, number: usize, i: u32, f: impl FnOnce(Id, &mut Object) -> R) -> R {
        let object = shard.at_mut(i);
        object.referenced = true;
        let before = object.memory_bytes();
        let id = Id { slot: i * SHARDS as u32 + number as u32, generation: object.generation };
        let out = f(id, object);
        let after = object.memory_bytes();
        if after >= before {
            self.memory_bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.memory_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        out
    }

    /// Drops a few objects when the memory bound is exceeded; returns their number. Called after
    /// each addition.
    pub fn relieve(&self, now: Moment) -> u64 {
        let mut dropped = 0;
        for _ in 0..TRIES {
            if self.memory_bytes() <= self.most_bytes {
                break;
            }
            let shard = self.next_victim.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let Some(mut guard) = self.shards[shard].try_lock() else { continue };
            for _ in 0..STEPS.min(guard.len()) {
                let i = guard.hand;
                guard.hand = (i + 1) % guard.len();
                let object = guard.at_mut(i as u32);
                let unsettled = object.extra.as_ref().is_some_and(|e| now < e.unsettled_until);
                if !object.live || object.modifying > 0 || unsettled {
                    continue;
                }
                if std::mem::take(&mut object.referenced) {
                    continue;
                }
                let bytes = guard.remove(&self.hasher, i as u32);
                self.gone(bytes);
                dropped += 1;
            }
        }
        dropped
    }

    /// Packs attributes; `None` when there are more than 65,536 file systems.
    pub fn pack(&self, attr: &Attr) -> Option<Packed> {
        if let Some(&n) = self.file_systems.read().1.get(&attr.fsid) {
            return Some(Packed::new(attr, n));
        }
        let mut all = self.file_systems.write();
        let n = match all.1.get(&attr.fsid) {
            Some(&n) => n,
            None => {
                let n = u16::try_from(all.0.len()).ok()?;
                all.0.push(attr.fsid);
                all.1.insert(attr.fsid, n);
                n
            }
        };
        Some(Packed::new(attr, n))
    }

    /// Unpacks attributes.
    pub fn unpack(&self, packed: &Packed) -> Attr {
        let fsid = self.file_systems.read().0.get(usize::from(packed.fsid())).copied();
        packed.attr(fsid.unwrap_or_default())
    }

    /// Hash of a name.
    pub fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    fn place(&self, fh: &Fh) -> (u64, usize) {
        let hash = self.hasher.hash_one(&fh.0[..]);
        // Neither the lowest nor the highest bits. The hash tables use the lowest bits for the
        // position, and the highest bits to tell entries apart.
        (hash, (hash >> 40) as usize % SHARDS)
    }
}
