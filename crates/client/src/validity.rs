//! How long attributes, names and absences may be used without asking again (nfs(5), "Data and
//! metadata coherence").
//!
//! It knows nothing of protocols and holds no attributes, only how stable each object has proved.
//! Like the Linux client, an object starts at `acregmin` (`acdirmin` for directories); whenever its
//! time is over and it has not changed, the time doubles, up to `acregmax` (`acdirmax`); a change
//! sets it back to the least. What is remembered per object (a tag, the `change` value, the present
//! time) stands in a direct-mapped table of fixed size. When two busy objects share a slot they
//! push each other out and both keep the least time: more questions to the server, never staler
//! answers.
//!
//! Times count from the moment a question was *sent*: the answer was true at some moment after it.

use crate::{AttrCache, LookupCache, Options};
use hither_vfs::{Attr, Attrs, Fh, FileKind, Validity};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Slots of the table: about 3 MiB when all are used. A power of two.
const SLOTS: usize = 1 << 16;
/// Locks over the table. A power of two.
const SHARDS: usize = 16;

/// Decides validities for one mount.
pub struct ValidityRules {
    times: AttrCache,
    names: LookupCache,
    /// The server finds a name under other spellings, too.
    ignores_case: AtomicBool,
    hasher: RandomState,
    shards: Vec<Mutex<Vec<Option<Slot>>>>,
}

/// How stable one object has proved.
#[derive(Clone, Copy)]
struct Slot {
    /// Hash of the filehandle. A collision of all 64 bits lends one object the other's time, which
    /// is within the configured bounds all the same.
    tag: u64,
    change: u64,
    time: Duration,
    /// When `time` began to count.
    since: Instant,
    directory: bool,
}

impl ValidityRules {
    /// Rules for a mount with these options.
    pub fn new(options: &Options) -> Self {
        Self {
            times: options.attr_cache,
            names: options.lookup_cache,
            ignores_case: AtomicBool::new(false),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::new(vec![None; SLOTS / SHARDS])).collect(),
        }
    }

    /// The server is one that does not tell `a` from `A`: a name that was absent may be there as
    /// soon as another spelling is created, so absence is not remembered (nor by the Linux client).
    pub fn ignore_case(&self) {
        self.ignores_case.store(true, Ordering::Relaxed);
    }

    /// Which names may be remembered.
    pub fn lookup_cache(&self) -> LookupCache {
        match self.names {
            LookupCache::All if self.ignores_case.load(Ordering::Relaxed) => LookupCache::Positive,
            names => names,
        }
    }

    /// Attributes that a question sent at `asked` brought: stamped with their validity.
    pub fn attrs(&self, fh: &Fh, attr: Attr, asked: Instant) -> Attrs {
        let (least, most) = self.bounds(attr.kind);
        let valid = match most.is_zero() {
            true => Validity::Once,
            false => Validity::Until(asked + self.observe(fh, &attr, least, most, asked)),
        };
        Attrs { attr, valid, asked }
    }

    /// Attributes of an object found by name, where the validity covers the name's binding too:
    /// `lookupcache=none` has every name looked up again.
    pub fn named(&self, fh: &Fh, attr: Attr, asked: Instant) -> Attrs {
        let mut attrs = self.attrs(fh, attr, asked);
        if self.lookup_cache() == LookupCache::None {
            attrs.valid = Validity::Once;
        }
        attrs
    }

    /// How long a name stays absent that a question sent at `asked` did not find in directory
    /// `dir`: as long as the directory's attributes would, and `acnegmax` at most. Nothing is
    /// remembered unless `lookupcache=all`.
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

    /// `change` of an object by the last answer that was stamped; `None` when nothing is remembered
    /// of it.
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

    /// Whether this is a directory that has not changed, as far as was told, for as long as its
    /// attributes held: they are asked for again now.
    pub fn has_proved_stable(&self, fh: &Fh, now: Instant) -> bool {
        let (tag, shard, index) = self.place(fh);
        let known = shard.lock()[index].filter(|slot| slot.tag == tag && slot.directory);
        known.is_some_and(|slot| now.saturating_duration_since(slot.since) >= slot.time)
    }

    fn observe(&self, fh: &Fh, attr: &Attr, least: Duration, most: Duration, now: Instant) -> Duration {
        let (tag, shard, index) = self.place(fh);
        let mut shard = shard.lock();
        let directory = attr.kind == FileKind::Directory;
        let fresh = Slot { tag, change: attr.change, time: least.min(most), since: now, directory };
        let slot = shard[index].get_or_insert(fresh);
        if slot.tag != tag || slot.change != attr.change {
            *slot = fresh;
        } else if now.saturating_duration_since(slot.since) >= slot.time {
            // A time of zero (`acregmin=0`) would never grow by doubling; like Linux it stays.
            slot.time = (slot.time * 2).clamp(least.min(most), most);
            slot.since = now;
        }
        slot.time
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
mod tests;
