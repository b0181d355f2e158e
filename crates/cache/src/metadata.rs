//! The metadata cache: names, attributes, directories and small files, answered from memory.
//!
//! This module knows nothing of NFS and FUSE: it is a [`Vfs`] over a [`Vfs`]. A *request* is a call
//! to the layer below. A *local change* is a call through this layer that changes an object.
//!
//! - `table` and `objects` keep objects by filehandle, `names` keeps the names of a directory.
//! - `walk` follows a path in memory, and sends one request for the rest.
//! - `revalidate` revalidates expired objects in batches.
//! - `list` and `own` list directories from memory.
//! - `ahead` lists directories that a traversal reaches next.
//! - `snapshot` and `revalidate_restored` keep the metadata over a restart, and revalidate it
//!   before its use.
//! - `opens` answers opens for reading without a request. `tries` sends some of them to the server,
//!   to get leases.
//! - `contents` keeps the bytes of small files, `prefetch` fetches them ahead.
//!
//! # Which answers are used
//!
//! Attributes are used until the end of the validity that came with them, or under a lease. A call
//! may ask for freshness ([`RequestContext::fresh_since`]). For such a call, attributes without a
//! lease hold only if their request was sent at or after that moment.
//!
//! A name is used for the validity of its own answer. After that, the name is used as long as its
//! *label* holds: the directory's `change` as it was known before the request for the name. New
//! attributes of the directory decide about all labeled names, present and absent. With the same
//! `change`, labeled names hold as long as these attributes. With another `change`, all names are
//! dropped. The cache assumes that a `change` value never returns. Some servers make `change` from
//! a clock (`coarse_change`). An equal `change` then proves nothing about a directory that changed
//! a moment ago, and names learned in that time are not renewed.
//!
//! Absence has further limits, which only a lease lifts. A requested name is believed absent for
//! `absent_max` after its answer, or after the directory's `change` came again unchanged. An
//! inferred absence follows from the complete listing of a directory. It is believed for
//! `inferred_max`. The next look-up of such a name then sends one request for the name and for the
//! directory's attributes. Other look-ups wait for its answer, which confirms all inferred absences
//! of the directory. A call that makes the name
//! ([`RequestContext::makes_last`](hither_vfs::RequestContext::makes_last)) needs no confirmation.
//!
//! A name is answered only to a caller that may search the directory. The cache knows this right
//! from an earlier request of that caller, while the directory's attributes hold, or from a right
//! that came with them. Nothing is concluded from mode bits.
//!
//! # Which answers are kept
//!
//! Calls run concurrently, and their replies arrive in any order. Each request takes the current
//! number of a global sequence. Each local change marks its object from before the request until
//! its reply is processed. At that moment the object gets a *barrier*: the next number of the
//! sequence.
//!
//! 1. An answer about an object is kept under two conditions. No local change of the object is
//!    running, and the request's number is not below the object's barrier. Such a request was sent
//!    after every local change had ended.
//! 2. The reply of a local change is kept only if that change was alone. No other change of the
//!    object was running when it began, and none has ended or begun since. Otherwise the attributes
//!    expire.
//! 3. Of two answers, the answer to the later request stays.
//! 4. The names that a local change affects are taken from its reply, unless another local change
//!    affected the same name meanwhile. The directory's `change` is followed from `before` to
//!    `after` over all local changes, in any order of replies. A gap in that chain is a change by
//!    another client: the directory's names are dropped. A server may report neither value (NQNFS).
//!    Names then keep their remaining validity, and nothing renews them. Without a local change, a
//!    change by another client would not be noticed sooner.
//! 5. An object that is dropped from memory leaves its barrier to the later objects of its shard.
//! 6. A local change may end unseen, because its caller gave up or the server did not answer. The
//!    object is then not cached for a minute.
//! 7. A local change of an unknown object expires all attributes that were requested before it
//!    ended. So does the removal or rename of a name that is bound to no known object, or that
//!    another local change affects. So does the removal or rename of a name if another client
//!    changed the directory, or may have changed it. The exception is a lease on the object that
//!    proves the name before and after the call.
//! 8. An answer under a lease counts only if no lease was withdrawn since its request.
//! 9. Names that were requested after a directory's lease is known hold under that lease,
//!    regardless of earlier answers.
//!
//! Random histories of two clients check these rules in the tests.

mod ahead;
mod change;
mod contents;
mod explain;
mod learn;
mod list;
mod moment;
mod names;
mod near;
mod objects;
mod opens;
mod own;
mod pass;
mod prefetch;
mod racy;
mod revalidate;
mod revalidate_restored;
mod single_flight;
mod snapshot;
mod stats;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod tries;
mod walk;

pub use explain::{FactValidity, KnownObject};
pub use near::Near;
pub use stats::MetadataCacheStats;

use bytes::Bytes;
use contents::Contents;
use hither_vfs::{Attrs, BoxFuture, Cred, Env, Fh, Unsent, Upcalls, Vfs};
use learn::Ticket;
use moment::{Clock, LEASE, nanos};
use objects::{Limits, Object};
use parking_lot::Mutex;
use single_flight::SingleFlight;
use stats::Counters;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Most credentials that are told apart at a time.
const CREDS_MAX: usize = 4096;

/// Longest time that an inferred absence is believed after the server confirmed it. The Linux NFS
/// client sends a request for each such name; a burst of look-ups within this time costs one
/// request.
pub const INFERRED_MAX: Duration = Duration::from_secs(1);

/// Whether small files are fetched ahead of their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// Never.
    Off,
    /// The small files of a directory, when a second file of it is opened.
    Small,
}

/// Which names are answered from memory (nfs(5), `lookupcache`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupCache {
    /// Present and absent names.
    All,
    /// Present names.
    Positive,
    /// No names.
    None,
}

/// Options of the metadata cache.
#[derive(Debug, Clone)]
pub struct MetadataCacheOptions {
    /// Memory for names and attributes, in bytes.
    pub memory_bytes: usize,
    /// Memory for contents of small files, in bytes.
    pub contents_bytes: usize,
    /// Whether small files are fetched ahead.
    pub prefetch: Prefetch,
    /// Largest size of a small file, in bytes.
    pub small_file_bytes: u32,
    /// Size of the listing that is requested with the first walk into a directory, in bytes; 0: no
    /// listing.
    pub listing_bytes: u32,
    /// Most expired objects in one request; 1: only the needed object.
    pub batch_objects: usize,
    /// Number of expired entries from which on a directory is listed instead of revalidating each
    /// entry: as many as one message holds.
    pub worth_listing: usize,
    /// Longest validity of a name after its request, even if its object holds for longer
    /// (`acdirmax`).
    pub names_max: Duration,
    /// Longest time that a requested name is believed absent after a request confirmed it
    /// (`acnegmax`).
    pub absent_max: Duration,
    /// Longest time that an inferred absence is believed: the name was never requested, and the
    /// complete listing of its directory lacks it.
    pub inferred_max: Duration,
    /// Which names are answered from memory.
    pub lookup_cache: LookupCache,
    /// Opens leave no state at the server, and an open by name costs one request more than an open
    /// by filehandle (NFSv3). The look-up and the open are then sent concurrently.
    pub stateless_opens: bool,
    /// Whether the server makes `change` from a clock: two changes within one tick have the same
    /// `change`.
    pub coarse_change: bool,
    /// Opens ask for freshness (close-to-open): only leases save their requests.
    pub fresh_opens: bool,
    /// An equal `change` proves nothing. Bytes and rights are used only under the lease that was
    /// held when they were requested.
    pub strict: bool,
}

impl Default for MetadataCacheOptions {
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            contents_bytes: 64 << 20,
            prefetch: Prefetch::Small,
            small_file_bytes: 64 << 10,
            listing_bytes: 32 << 10,
            batch_objects: 256,
            worth_listing: 24,
            names_max: Duration::MAX,
            absent_max: Duration::MAX,
            inferred_max: INFERRED_MAX,
            lookup_cache: LookupCache::All,
            stateless_opens: false,
            coarse_change: true,
            fresh_opens: true,
            strict: false,
        }
    }
}

/// The metadata cache.
pub struct MetadataCache {
    below: Arc<dyn Vfs>,
    options: MetadataCacheOptions,
    env: Env,
    limits: Limits,
    clock: Clock,
    table: table::Table,
    /// Orders requests and local changes.
    seq: AtomicU64,
    /// The epoch of leases: it grows when all leases are lost.
    leases: AtomicU64,
    /// When the last answer under a lease arrived.
    leased: AtomicU64,
    /// Attributes requested before this moment do not hold: a local change affected an unknown
    /// object.
    fence: AtomicU64,
    /// Expired answers hold ([`MetadataCache::answer_stale`]).
    stale: AtomicBool,
    creds: Mutex<(HashMap<Arc<Cred>, u32>, u32)>,
    single_flight: SingleFlight,
    opens: opens::Opens,
    contents: Contents,
    ring: revalidate::Ring,
    readers: list::Readers,
    server_clock: racy::ServerClock,
    mark: own::Mark,
    counters: Counters,
    above: OnceLock<Arc<dyn Upcalls>>,
    near: OnceLock<Arc<dyn Near>>,
    /// Opens that probed whether the server grants leases.
    probes: AtomicU32,
    /// Opens that replaced a revalidation, to get a lease.
    tries: AtomicU32,
    /// Requests that opened many remembered files.
    openings: revalidate_restored::Openings,
}

impl std::fmt::Debug for MetadataCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataCache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl MetadataCache {
    /// A cache over `below`. The cache subscribes to the upcalls of `below`.
    pub fn new(below: Arc<dyn Vfs>, options: MetadataCacheOptions, env: Env) -> Arc<Self> {
        let meta = Arc::new(Self {
            table: table::Table::new(options.memory_bytes),
            contents: Contents::new(options.contents_bytes),
            below,
            limits: Limits {
                asked_nanos: nanos(options.absent_max),
                inferred_nanos: nanos(options.inferred_max),
            },
            options,
            clock: Clock::new(),
            seq: AtomicU64::new(1),
            leases: AtomicU64::new(0),
            leased: AtomicU64::new(0),
            fence: AtomicU64::new(0),
            stale: AtomicBool::new(false),
            creds: Mutex::default(),
            single_flight: SingleFlight::default(),
            opens: opens::Opens::default(),
            ring: revalidate::Ring::new(),
            readers: list::Readers::default(),
            server_clock: racy::ServerClock::default(),
            mark: own::Mark::new((env.random)()),
            env,
            counters: Counters::default(),
            above: OnceLock::new(),
            near: OnceLock::new(),
            probes: AtomicU32::new(0),
            tries: AtomicU32::new(0),
            openings: revalidate_restored::Openings::default(),
        });
        meta.below.subscribe(Arc::new(Hearer(Arc::downgrade(&meta))));
        meta
    }

    /// The counters and the memory in use.
    pub fn stats(&self) -> MetadataCacheStats {
        MetadataCacheStats {
            memory_bytes: (self.table.memory_bytes() + self.contents.memory_bytes()) as u64,
            objects: self.table.objects() as u64,
            ..self.counters.snapshot()
        }
    }

    /// Number of a credential. Rights under a dropped number are never found again.
    fn cred(&self, cred: &Arc<Cred>) -> u32 {
        let mut creds = self.creds.lock();
        if let Some(&n) = creds.0.get(cred) {
            return n;
        }
        if creds.0.len() >= CREDS_MAX {
            creds.0.clear();
        }
        creds.1 = creds.1.wrapping_add(1);
        let n = creds.1;
        creds.0.insert(cred.clone(), n);
        n
    }

    /// Whether expired answers hold, because the server is away. Changes made here still need its
    /// answer.
    pub fn answer_stale(&self, stale: bool) {
        self.stale.store(stale, Ordering::Relaxed);
    }

    /// Expires all attributes: a local change affected an unknown object.
    fn raise_fence(&self) {
        self.fence.fetch_max(self.clock.now(), Ordering::AcqRel);
        stats::add(&self.counters.fences, 1);
    }

    /// Drops the contents of an object, and expires its attributes and names. Attributes in `kept`
    /// are right, unless a local change has overtaken them.
    fn let_go(&self, fh: &Fh, kept: Option<(&Attrs, &Ticket)>) {
        self.contents.drop_file(fh, &self.counters);
        let barrier = self.next_seq();
        self.table.ensure(fh, |_, object| {
            let kept = kept.filter(|(_, ticket)| self.may_keep(object, ticket));
            object.barrier = object.barrier.max(barrier);
            object.expire();
            if let Some((attrs, ticket)) = kept {
                self.store_attrs(object, attrs, ticket, false);
            }
            if let Some(dir) = object.known_dir() {
                dir.expire_names(self.clock.now());
            }
        });
    }

    /// Whether the object's attributes hold under a lease.
    fn is_leased(&self, fh: &Fh) -> bool {
        let when = self.at_present();
        self.table.with(fh, |_, object| object.until & LEASE != 0 && object.holds(&when)).unwrap_or(false)
    }

    /// Ends the lease on an object; its attributes and contents are kept as expired.
    fn expire(&self, fh: &Fh) {
        let barrier = self.next_seq();
        let held = self.table.ensure(fh, |_, object| {
            object.barrier = object.barrier.max(barrier);
            // Contents held under the lease are bound to their `change` from now on. The object is
            // old enough that the next change has another `change` value.
            let lasts = object.until & LEASE != 0 && !self.is_racy(object) && !self.options.strict;
            let held = lasts.then(|| object.version());
            object.end_lease();
            held
        });
        if let Some(version) = held {
            self.contents.prove(fh, version);
        }
    }
}

/// The filehandle of an object.
fn handle(object: &Object) -> Fh {
    Fh(Bytes::copy_from_slice(object.fh.raw()))
}

/// Subscriber to the layer below that does not keep the cache alive.
struct Hearer(Weak<MetadataCache>);

impl Upcalls for Hearer {
    fn revoke(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        meta.let_go(fh, None);
        let withdrawn = match meta.above.get() {
            Some(above) => above.revoke(fh),
            None => Box::pin(std::future::ready(())),
        };
        if meta.options.stateless_opens || meta.opens.virtuals(fh).is_empty() {
            return withdrawn;
        }
        let fh = fh.clone();
        Box::pin(async move {
            tokio::join!(withdrawn, meta.secure(&fh));
        })
    }

    fn withdraw_unused(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        meta.let_go(fh, None);
        match meta.above.get() {
            Some(above) => above.withdraw_unused(fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn expire(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        files.iter().for_each(|fh| meta.expire(fh));
        match meta.above.get() {
            Some(above) => above.expire(files),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn flush(&self, fh: &Fh) -> BoxFuture<()> {
        match self.0.upgrade().as_ref().and_then(|meta| meta.above.get()) {
            Some(above) => above.flush(fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn flush_unused(&self, fh: &Fh) -> BoxFuture<()> {
        match self.0.upgrade().as_ref().and_then(|meta| meta.above.get()) {
            Some(above) => above.flush_unused(fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn path(&self, fh: &Fh) -> Option<String> {
        self.0.upgrade()?.above.get()?.path(fh)
    }

    fn unsent(&self, fh: &Fh) -> Unsent {
        let meta = self.0.upgrade();
        meta.as_ref().and_then(|meta| meta.above.get()).map_or(Unsent::More, |above| above.unsent(fh))
    }

    fn revoke_all(&self) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        meta.leases.fetch_add(1, Ordering::AcqRel);
        match meta.above.get() {
            Some(above) => above.revoke_all(),
            None => Box::pin(std::future::ready(())),
        }
    }
}
