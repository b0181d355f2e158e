//! What is known of names, attributes, directories and small files, and answered from memory while
//! it holds.
//!
//! It knows nothing of NFS and FUSE: it is a [`Vfs`] over a [`Vfs`]. Objects stand in a table by
//! filehandle (`table`, `objects`), names in their directories (`names`); a walk goes as far as
//! memory is valid and asks below once for the rest (`walk`); expired objects are asked about
//! together (`again`); directories are listed from memory (`list`, `own`); what was known before a
//! restart is asked about before it is used (`recall`, `remembered`); opens for reading may stay
//! here (`opens`), unless one is to bring a lease (`tries`), and with them contents of small files
//! (`contents`, `prefetch`).
//!
//! # Which answers are used
//!
//! Attributes are used until the end of the validity that came with them, or, for a call that asks
//! for freshness ([`Cx::fresh_since`]), when their question was sent at or after that moment, or
//! under a lease.
//! A name is used for the time that its own answer gave it, and beyond that as long as its *label*
//! holds: the directory's `change` as it was known before the name was asked for. When the
//! directory's attributes come again with the same `change`, all labeled names, present and absent,
//! hold as long as these attributes; with another `change` all names go. `change` values are taken
//! to never come back; where they are made of a clock (`coarse_change`), equality proves nothing
//! about a directory that changed a moment ago, and names learnt then are not renewed.
//! Absence has limits beside that, which only a lease lifts. A name that was asked for is believed
//! to be absent for `absent_max` after the answer, or after the directory's `change` came again
//! unchanged. The absence of a name that nobody asked for follows from the listing of its
//! directory, and is believed for `inferred_max`. Then the next look-up of such a name asks for the
//! name and for the directory's attributes in one question. Other look-ups wait for its answer,
//! which confirms all of them. A call that makes the name
//! ([`Cx::makes_last`](hither_vfs::Cx::makes_last)) needs no confirmation.
//! A name is answered only to a caller who is known to be allowed to search the directory: who was
//! let in before while its attributes hold, or whose right came with them. Nothing is concluded
//! from mode bits.
//!
//! # Which answers are kept
//!
//! Calls run side by side and their replies come in any order. Each question takes the number that
//! a global sequence has when it is sent; each call of ours that changes an object marks it from
//! before it is sent until its reply is taken in, and at that moment gives it a *barrier*: the
//! sequence's next number.
//! 1. An answer about an object is kept only if no call of ours is changing the object and the
//!    question's number is not below the object's barrier: it was sent after every change of ours
//!    was done.
//! 2. The reply of a change is kept only if that call was alone: no other change of the object was
//!    running when it began, none ended or is running since. Otherwise the attributes expire.
//! 3. Of two answers the one that was asked later stays.
//! 4. Names that a call changes are taken from its reply unless another call changed the same name
//!    meanwhile; the directory's `change` is followed from `before` to `after` over all changes of
//!    ours, whatever the order of their replies, and a gap in that chain means that somebody else
//!    changed the directory: its names go. Where the server tells nothing (NQNFS), names stay for
//!    the time they have, as somebody else's change would not be noticed sooner without ours
//!    either, and nothing renews them.
//! 5. An object that is dropped from memory leaves its barrier to those who come into its shard.
//! 6. A change whose end is not seen (its caller gave up, the server did not answer) keeps the
//!    object out of memory for a minute.
//! 7. A change of ours to an object that is not known makes all attributes expire that were asked
//!    for before it ended. So it is when a name is removed or renamed that is bound to nothing we
//!    know of, that another call is changing, too, or whose directory somebody else changed
//!    meanwhile, or may have, unless a lease on the object proves the name before and after the
//!    call.
//! 8. An answer under a lease counts only if no lease was withdrawn since it was asked for.
//! 9. Names that were asked for since a lease on their directory is known here hold under it,
//!    whatever was believed before.
//!
//! What is asserted by these rules is checked by random histories of two clients in the tests.

mod again;
mod change;
mod contents;
mod explain;
mod flights;
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
mod recall;
mod remembered;
mod stats;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod tries;
mod walk;
mod young;

pub use explain::{Known, KnownObject};
pub use near::Near;
pub use stats::MetaStats;

use bytes::Bytes;
use contents::Contents;
use flights::Flights;
use hither_vfs::{BoxFuture, Cred, Env, Fh, Unsent, Upcalls, Vfs};
use moment::{Clock, LEASE, nanos};
use objects::{Limits, Object};
use parking_lot::Mutex;
use stats::Counters;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Credentials that are told apart at a time.
const CREDS_MAX: usize = 4096;

/// A name that nobody asked for is believed to be absent for so long after the server confirmed it.
/// The kernel's client asks for each such name; a burst of look-ups within this time costs one
/// question.
pub const INFERRED_MAX: Duration = Duration::from_secs(1);

/// Whether small files are fetched before they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// Never.
    Off,
    /// Those of a directory in which a second file is opened.
    Small,
}

/// Which names may be answered from memory (nfs(5), `lookupcache`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupCache {
    /// Present and absent ones.
    All,
    /// Present ones.
    Positive,
    /// None.
    None,
}

/// How much is kept, and what is asked for unasked.
#[derive(Debug, Clone)]
pub struct MetaOptions {
    /// Memory for names and attributes, in bytes.
    pub memory_bytes: usize,
    /// Memory for contents of small files, in bytes.
    pub contents_bytes: usize,
    /// Whether small files are fetched ahead.
    pub prefetch: Prefetch,
    /// Files up to this size are small, in bytes.
    pub small_file_bytes: u32,
    /// The listing that is asked for with the first walk into a directory, in bytes; 0: none.
    pub listing_bytes: u32,
    /// Expired objects that are asked about in one question; 1: no guesses.
    pub batch_objects: usize,
    /// A directory is listed again, instead of asking about its entries one by one in a question,
    /// when so many of them have expired: as many as one message asks about.
    pub worth_listing: usize,
    /// Most time that a name holds since it was asked for, however long what it leads to does
    /// (`acdirmax`).
    pub names_max: Duration,
    /// Most time that a name that was asked for is believed to be absent after a question has shown
    /// it (`acnegmax`).
    pub absent_max: Duration,
    /// The same of a name that nobody asked for, which is absent because its directory is known as
    /// a whole.
    pub inferred_max: Duration,
    /// Which names may be answered from memory.
    pub lookup_cache: LookupCache,
    /// Opens below leave no state at the server, and by name cost a question more than by handle
    /// (NFSv3): both questions are then asked side by side.
    pub stateless_opens: bool,
    /// Whether `change` is made of a clock, whose tick may hide a change.
    pub coarse_change: bool,
    /// Opens ask for freshness (close-to-open): only leases spare their questions.
    pub fresh_opens: bool,
    /// Nothing is concluded from an equal `change`: bytes and rights are used under the lease that
    /// they came under, and not when they are from before it.
    pub strict: bool,
}

impl Default for MetaOptions {
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

/// The cache.
pub struct Meta {
    below: Arc<dyn Vfs>,
    options: MetaOptions,
    env: Env,
    limits: Limits,
    clock: Clock,
    table: table::Table,
    /// Orders questions and changes of our own.
    seq: AtomicU64,
    /// Grows when all leases are lost.
    leases: AtomicU64,
    /// When an answer last came under a lease.
    leased: AtomicU64,
    /// Attributes that were asked for before this moment do not hold: a call of ours changed an
    /// object that nobody knows.
    fence: AtomicU64,
    creds: Mutex<(HashMap<Arc<Cred>, u32>, u32)>,
    flights: Flights,
    opens: opens::Opens,
    contents: Contents,
    ring: again::Ring,
    readers: list::Readers,
    server_clock: young::ServerClock,
    mark: own::Mark,
    counters: Counters,
    above: OnceLock<Arc<dyn Upcalls>>,
    near: OnceLock<Arc<dyn Near>>,
    /// Opens that tried whether the server grants leases.
    probes: AtomicU32,
    /// Opens that asked for a lease where a question would have done.
    tries: AtomicU32,
    /// Questions that opened many remembered files.
    openings: remembered::Openings,
}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meta").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Meta {
    /// A cache over `below`, whose upcalls it takes.
    pub fn new(below: Arc<dyn Vfs>, options: MetaOptions, env: Env) -> Arc<Self> {
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
            creds: Mutex::default(),
            flights: Flights::default(),
            opens: opens::Opens::default(),
            ring: again::Ring::new(),
            readers: list::Readers::default(),
            server_clock: young::ServerClock::default(),
            mark: own::Mark::new((env.random)()),
            env,
            counters: Counters::default(),
            above: OnceLock::new(),
            near: OnceLock::new(),
            probes: AtomicU32::new(0),
            tries: AtomicU32::new(0),
            openings: remembered::Openings::default(),
        });
        meta.below.subscribe(Arc::new(Hearer(Arc::downgrade(&meta))));
        meta
    }

    /// What was counted.
    pub fn stats(&self) -> MetaStats {
        MetaStats {
            memory_bytes: (self.table.memory_bytes() + self.contents.memory_bytes()) as u64,
            objects: self.table.objects() as u64,
            ..self.counters.snapshot()
        }
    }

    /// Number of a credential. Rights that were kept under a number that was given up are never
    /// found again.
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

    /// Something of ours changed an object, nobody knows which.
    fn raise_fence(&self) {
        self.fence.fetch_max(self.clock.now(), Ordering::AcqRel);
        stats::add(&self.counters.fences, 1);
    }

    /// Nothing known about an object's attributes and contents holds any more.
    fn let_go(&self, fh: &Fh) {
        self.contents.drop_file(fh, &self.counters);
        let barrier = self.next_seq();
        self.table.ensure(fh, |_, object| {
            object.barrier = object.barrier.max(barrier);
            object.expire();
            if let Some(dir) = object.known_dir() {
                dir.withdraw(self.clock.now());
            }
        });
    }

    /// Whether what is known of an object holds under a lease.
    fn is_leased(&self, fh: &Fh) -> bool {
        let when = self.at_present();
        self.table.with(fh, |_, object| object.until & LEASE != 0 && object.holds(&when)).unwrap_or(false)
    }

    /// What is known of an object holds by no lease any more; it is as good as if its time had
    /// passed.
    fn lapse(&self, fh: &Fh) {
        let barrier = self.next_seq();
        let held = self.table.ensure(fh, |_, object| {
            object.barrier = object.barrier.max(barrier);
            // What is held under it until now is known by `change` from now on, where the next one
            // is bound to be another.
            let lasts = object.until & LEASE != 0 && !self.is_young(object) && !self.options.strict;
            let held = lasts.then(|| object.version());
            object.lapse();
            held
        });
        if let Some(version) = held {
            self.contents.prove(fh, version);
        }
    }
}

/// The handle of an object.
fn handle(object: &Object) -> Fh {
    Fh(Bytes::copy_from_slice(object.fh.raw()))
}

/// Hears the layer below without keeping the cache alive.
struct Hearer(Weak<Meta>);

impl Upcalls for Hearer {
    fn withdraw(&self, fh: &Fh) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        meta.let_go(fh);
        match meta.above.get() {
            Some(above) => above.withdraw(fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn lapse(&self, files: &[Fh]) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        files.iter().for_each(|fh| meta.lapse(fh));
        match meta.above.get() {
            Some(above) => above.lapse(files),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn settle(&self, fh: &Fh) -> BoxFuture<()> {
        match self.0.upgrade().as_ref().and_then(|meta| meta.above.get()) {
            Some(above) => above.settle(fh),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn unsent(&self, fh: &Fh) -> Unsent {
        let meta = self.0.upgrade();
        meta.as_ref().and_then(|meta| meta.above.get()).map_or(Unsent::More, |above| above.unsent(fh))
    }

    fn withdraw_all(&self) -> BoxFuture<()> {
        let Some(meta) = self.0.upgrade() else { return Box::pin(std::future::ready(())) };
        meta.leases.fetch_add(1, Ordering::AcqRel);
        match meta.above.get() {
            Some(above) => above.withdraw_all(),
            None => Box::pin(std::future::ready(())),
        }
    }
}
