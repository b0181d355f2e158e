//! Time for which attributes, names and absences are used without revalidation (nfs(5), "Data and
//! metadata coherence").
//!
//! This module stores no attributes. For each object it stores how long the object stayed
//! unchanged. As in the Linux client, an object starts at `acregmin` (`acdirmin` for directories).
//! When the time ends and the object is unchanged, the time doubles, up to `acregmax` (`acdirmax`).
//! A change resets the time to the minimum. A direct-mapped table of fixed size stores a tag, the
//! `change` value and the current time per object. Two busy objects in one slot evict each other,
//! and both keep the minimum. The cost is more requests to the server, never staler answers.
//!
//! Times count from the moment at which the request was *sent*. The server produced the answer
//! after that moment.

use crate::{AttrCache, LookupCache, Options};
use hither_vfs::{Attr, Attrs, Env, Fh, FileKind, Time, Validity};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Slots of the table: about 3 MiB when all are used. A power of two.
const SLOTS: usize = 1 << 16;
/// Locks over the table. A power of two.
const SHARDS: usize = 16;

/// Decides validities for one mount.
pub struct ValidityRules {
    times: AttrCache,
    names: LookupCache,
    /// The server also finds a name in other spellings.
    ignores_case: AtomicBool,
    env: Env,
    hasher: RandomState,
    shards: Vec<Mutex<Vec<Option<Slot>>>>,
}

/// How long one object stayed unchanged.
#[derive(Clone, Copy)]
struct Slot {
    /// Hash of the filehandle. After a collision of all 64 bits two objects share one time, which
    /// is still within the configured bounds.
    tag: u64,
    change: u64,
    time: Duration,
    /// Start of `time`.
    since: Instant,
    directory: bool,
    /// By its change time, the object was unchanged for `time` when `change` was first seen.
    old: bool,
}

impl ValidityRules {
    /// Rules for a mount with these options.
    pub fn new(options: &Options, env: &Env) -> Self {
        Self {
            env: env.clone(),
            times: options.attr_cache,
            names: options.lookup_cache,
            ignores_case: AtomicBool::new(false),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::new(vec![None; SLOTS / SHARDS])).collect(),
        }
    }

    /// Records that the server ignores case in names. Absent names are then not remembered, as in
    /// the Linux client: a name appears when another spelling of it is created.
    pub fn ignore_case(&self) {
        self.ignores_case.store(true, Ordering::Relaxed);
    }

    /// Names that may be remembered.
    pub fn lookup_cache(&self) -> LookupCache {
        match self.names {
            LookupCache::All if self.ignores_case.load(Ordering::Relaxed) => LookupCache::Positive,
            names => names,
        }
    }

    /// Adds the validity to attributes. The request for them was sent at `asked`.
    pub fn attrs(&self, fh: &Fh, attr: Attr, asked: Instant) -> Attrs {
        let (least, most) = self.bounds(attr.kind);
        let valid = if most.is_zero() {
            Validity::Once
        } else {
            Validity::Until(asked + self.observe(fh, &attr, least, most, asked))
        };
        Attrs { attr, valid, asked }
    }

    /// Attributes of an object found by name. The validity also covers the name: with
    /// `lookupcache=none` each use of a name needs a new lookup.
    pub fn named(&self, fh: &Fh, attr: Attr, asked: Instant) -> Attrs {
        let mut attrs = self.attrs(fh, attr, asked);
        if self.lookup_cache() == LookupCache::None {
            attrs.valid = Validity::Once;
        }
        attrs
    }

    /// How long an absent name in directory `dir` may be used. The request was sent at `asked`. The
    /// time is that of the directory's attributes, and at most `acnegmax`. Only `lookupcache=all`
    /// remembers absent names.
    pub fn missing(&self, dir: &Fh, asked: Instant) -> Validity {
        let (least, most) = self.bounds(FileKind::Directory);
        if self.lookup_cache() != LookupCache::All || most.is_zero() {
            return Validity::Once;
        }
        let (tag, shard, index) = self.place(dir);
        let known = shard.lock()[index].filter(|slot| slot.tag == tag);
        let time = known.map_or(least, |slot| slot.time).min(self.times.negative_max);
        if time.is_zero() { Validity::Once } else { Validity::Until(asked + time) }
    }

    /// The `change` value of an object in the last answer with a validity; `None` when the table
    /// has no entry.
    pub fn known_change(&self, fh: &Fh) -> Option<u64> {
        let (tag, shard, index) = self.place(fh);
        shard.lock()[index].filter(|slot| slot.tag == tag).map(|slot| slot.change)
    }

    fn bounds(&self, kind: FileKind) -> (Duration, Duration) {
        match kind {
            FileKind::Directory => (self.times.directory_min, self.times.directory_max),
            _ => (self.times.regular_min, self.times.regular_max),
        }
    }

    /// Whether the object is a directory that stayed unchanged for the whole validity of its
    /// attributes. The caller revalidates the attributes now. `by_age`: the change time may prove
    /// it, too.
    pub fn has_proved_stable(&self, fh: &Fh, now: Instant, by_age: bool) -> bool {
        let (tag, shard, index) = self.place(fh);
        let known = shard.lock()[index].filter(|slot| slot.tag == tag && slot.directory);
        known.is_some_and(|slot| by_age && slot.old || now.saturating_duration_since(slot.since) >= slot.time)
    }

    /// Notes that another client is about to change the object: the proof of
    /// [`Self::has_proved_stable`] begins anew.
    pub fn doubt(&self, fh: &Fh, now: Instant) {
        let (tag, shard, index) = self.place(fh);
        if let Some(slot) = shard.lock()[index].as_mut().filter(|slot| slot.tag == tag) {
            (slot.old, slot.since) = (false, now);
        }
    }

    fn observe(&self, fh: &Fh, attr: &Attr, least: Duration, most: Duration, now: Instant) -> Duration {
        let (tag, shard, index) = self.place(fh);
        let mut shard = shard.lock();
        let slot = match shard[index].as_mut() {
            Some(slot) if slot.tag == tag && slot.change == attr.change => slot,
            _ => {
                let directory = attr.kind == FileKind::Directory;
                let time = least.min(most);
                let old = directory && self.age(attr.ctime) >= time;
                let fresh = Slot { tag, change: attr.change, time, since: now, directory, old };
                return shard[index].insert(fresh).time;
            }
        };
        if now.saturating_duration_since(slot.since) >= slot.time {
            // A time of zero (`acregmin=0`) never grows by doubling. It stays zero, as in Linux.
            slot.time = (slot.time * 2).clamp(least.min(most), most);
            slot.since = now;
        }
        slot.time
    }

    /// The time since a moment of the server's clock, if that clock is right. Zero for the future.
    fn age(&self, then: Time) -> Duration {
        let now = (self.env.wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        Duration::from_secs(u64::try_from(now.saturating_sub(then.secs)).unwrap_or(0))
    }

    fn place(&self, fh: &Fh) -> (u64, &Mutex<Vec<Option<Slot>>>, usize) {
        let tag = self.hasher.hash_one(fh);
        let slot = tag as usize & (SLOTS - 1);
        (tag, &self.shards[slot % SHARDS], slot / SHARDS)
    }
}

impl std::fmt::Debug for ValidityRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValidityRules").field("times", &self.times).field("names", &self.names).finish()
    }
}

#[cfg(test)]
pub(crate) mod tests;
