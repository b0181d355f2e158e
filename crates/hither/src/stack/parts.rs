//! The layers above the client: a metadata cache with delayed writes. With `subtree=` there is one
//! such pair for each mode (`crate::stack::subtrees`).

use super::env;
use crate::options::{Promise, Wanted};
use crate::stack::subtrees::{Keep, Stack, Subtrees, Trunk};
use futures_util::future::BoxFuture;
use hither_cache::data::DataCache;
use hither_cache::metadata::{KnownObject, MetadataCache, MetadataCacheOptions, Prefetch};
use hither_fuse::Layers;
use hither_nfs::{Connected, LookupCache, Version};
use hither_vfs::{Asks, Fh, Name, Vfs};
use hither_writeback::pending_writes::{WriteBack, WriteBackOptions, WriteBackStats};
use hither_writeback::wal::Wal;
use std::sync::Arc;

/// The layers of one mode.
#[derive(Clone)]
pub struct Part {
    pub meta: Arc<MetadataCache>,
    pub dirty: Arc<WriteBack>,
}

/// The layers of all modes.
#[derive(Clone)]
pub struct Parts {
    /// The layers of the mount's own mode.
    pub own: Part,
    others: Vec<Part>,
    subtrees: Option<Arc<Subtrees>>,
}

/// The layers below the parts.
pub struct Below<'a> {
    pub connected: &'a Connected,
    /// The client or a layer in its place.
    pub client: Arc<dyn Vfs>,
    pub wal: Option<Arc<Wal>>,
}

impl Parts {
    /// Builds the parts. `disk` makes the disk cache over its argument, if one is requested. The
    /// disk cache is returned as well.
    pub async fn new<'b>(
        w: &Wanted,
        below: Below<'_>,
        disk: impl FnOnce(Arc<dyn Vfs>) -> BoxFuture<'b, Option<Arc<DataCache>>>,
    ) -> (Self, Option<Arc<DataCache>>) {
        let Some(rules) = w.rules().filter(|_| !w.subtrees.is_empty()) else {
            let client = match keep(w) {
                frozen @ Keep::Frozen { .. } => Trunk::new(below.client.clone()).branch(frozen),
                _ => below.client.clone(),
            };
            let disk = disk(client.clone()).await;
            let client = disk.clone().map_or(client, |disk| disk as Arc<dyn Vfs>);
            let own = Part::new(w, 1, &below, client, disk.as_ref());
            return (Self { own, others: Vec::new(), subtrees: None }, disk);
        };
        let trunk = Trunk::new(below.client.clone());
        let disk = match &w.cache.dir {
            Some(_) => disk(trunk.branch(Keep::Told)).await,
            None => None,
        };
        // A strict part does not use the disk cache.
        let kept = disk.clone().map_or_else(|| trunk.clone(), |disk| Trunk::new(disk));
        let count = w.all_parts().count();
        let mut parts = Vec::with_capacity(count);
        let mut stacks = Vec::with_capacity(count);
        for part in w.all_parts() {
            let (trunk, disk) = if part.is_strict() { (&trunk, None) } else { (&kept, disk.as_ref()) };
            let made = Part::new(part, count, &below, trunk.branch(keep(part)), disk);
            stacks.push(Stack { vfs: made.dirty.clone(), leases: made.dirty.clone(), asks: asks(part) });
            parts.push(made);
        }
        let own = parts.remove(0);
        (Self { own, others: parts, subtrees: Some(Subtrees::new(rules, stacks)) }, disk)
    }

    /// The layers for a frontend.
    pub fn layers(&self) -> Layers {
        match &self.subtrees {
            Some(all) => Layers { vfs: all.clone(), leases: all.clone(), domains: Some(all.clone()) },
            None => Layers { vfs: self.own.dirty.clone(), leases: self.own.dirty.clone(), domains: None },
        }
    }

    /// All parts, the mount's own first.
    pub fn all(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.own).chain(&self.others)
    }

    /// Waits until the server has all written data.
    ///
    /// # Errors
    /// The first write that failed.
    pub async fn sync(&self) -> hither_vfs::Result<()> {
        let mut synced = Ok(());
        for part in self.all() {
            synced = synced.and(part.dirty.sync().await);
        }
        synced
    }

    /// The number of bytes and of files that wait to be written.
    pub fn unsent(&self) -> (u64, u64) {
        let stats = self.all().map(|part| part.dirty.stats());
        stats.fold((0, 0), |sum, WriteBackStats { dirty_bytes, dirty_files, .. }| {
            (sum.0 + dirty_bytes, sum.1 + dirty_files)
        })
    }

    /// The client's filehandle of an object.
    pub fn below(&self, fh: &Fh) -> Fh {
        let below = self.subtrees.as_ref().and_then(|subtrees| subtrees.below(fh).ok());
        below.map_or_else(|| fh.clone(), |(_, raw)| raw)
    }

    /// The cached state of the root and of each name below it, each from its own part.
    pub fn explain(&self, root: &Fh, path: &[Name]) -> Vec<KnownObject> {
        let Some(subtrees) = &self.subtrees else { return self.own.meta.explain(root, path) };
        let Ok((mut number, mut fh)) = subtrees.below(root) else { return Vec::new() };
        let (mut out, mut done) = (Vec::<KnownObject>::new(), 0);
        while let Some(part) = self.all().nth(number) {
            let (names, next) = subtrees.names_of_stack(path, done);
            let mut found = part.meta.explain(&fh, &path[done..done + names]);
            if let (Some(named), Some(dir)) = (out.pop(), found.first_mut()) {
                // The name comes from the upper part, the directory's state from this part.
                *dir = KnownObject {
                    name: named.name,
                    binding: named.binding,
                    absent: named.absent,
                    ..dir.clone()
                };
            }
            out.extend(found);
            done += names;
            let last = out.last().filter(|last| out.len() == done + 1 && last.kind == Some("directory"));
            let (Some(below), Some(last)) = (next, last.and_then(|last| last.fh.clone())) else { break };
            (number, fh) = (below, last);
        }
        for (i, object) in out.iter_mut().enumerate() {
            let directory = object.kind == Some("directory");
            object.fh = object.fh.as_ref().map(|fh| subtrees.shown(&path[..i], fh, directory));
        }
        out
    }
}

impl Part {
    fn new(
        w: &Wanted,
        parts: usize,
        below: &Below<'_>,
        client: Arc<dyn Vfs>,
        disk: Option<&Arc<DataCache>>,
    ) -> Self {
        let connected = below.connected;
        let meta = MetadataCache::new(client, meta_options(w, parts as u64, connected), env());
        if let Some(disk) = disk {
            meta.keeper(disk.clone());
        }
        let dirty = dirty_options(w, parts as u64, connected);
        // Delayed attributes are not in the journal, so a journal excludes them.
        let delay_attributes = w.delay_attributes && below.wal.is_none();
        let dirty = WriteBackOptions { exclusive: w.exclusive, delay_attributes, ..dirty };
        let dirty =
            WriteBack::with_journal(meta.clone(), connected.leases.clone(), env(), dirty, below.wal.clone());
        Self { meta, dirty }
    }
}

fn keep(w: &Wanted) -> Keep {
    let (most, absent) = (w.attr_cache.regular_max, w.attr_cache.negative_max);
    match w.promise() {
        Promise::CloseToOpen | Promise::NoCloseToOpen | Promise::Nothing => Keep::Told,
        Promise::Bounded(_) => Keep::For { most, absent },
        Promise::Frozen => Keep::Frozen { most, absent },
        Promise::Strict => Keep::Once,
    }
}

fn asks(w: &Wanted) -> Asks {
    if w.is_strict() {
        Asks::Always
    } else if w.close_to_open {
        Asks::AtOpens
    } else {
        Asks::WhenOver
    }
}

fn meta_options(w: &Wanted, parts: u64, connected: &Connected) -> MetadataCacheOptions {
    let v3 = connected.version.is_stateless();
    // Directories are listed without a request, because a listing also brings attributes.
    let listings = w.chains && w.readdirplus && !w.is_strict();
    MetadataCacheOptions {
        memory_bytes: usize::try_from(w.meta_cache_bytes / parts).unwrap_or(usize::MAX),
        contents_bytes: MetadataCacheOptions::default().contents_bytes / parts as usize,
        prefetch: if w.prefetch { Prefetch::Small } else { Prefetch::Off },
        listing_bytes: if listings { MetadataCacheOptions::default().listing_bytes } else { 0 },
        lookup_cache: match (w.lookup_cache, connected.lookup_cache) {
            (LookupCache::None, _) | (_, LookupCache::None) => hither_cache::metadata::LookupCache::None,
            (_, LookupCache::Positive) => hither_cache::metadata::LookupCache::Positive,
            (_, LookupCache::All) => hither_cache::metadata::LookupCache::All,
        },
        stateless_opens: v3,
        names_max: w.attr_cache.directory_max,
        absent_max: w.attr_cache.negative_max,
        inferred_max: w.inferred_max(),
        // NFSv4 queries many objects in one message, NFSv3 with one call each.
        batch_objects: if v3 { 16 } else { MetadataCacheOptions::default().batch_objects },
        worth_listing: if !listings {
            usize::MAX
        } else if v3 {
            3
        } else {
            MetadataCacheOptions::default().worth_listing
        },
        // Linux file systems take timestamps from a clock that ticks, and servers derive `change`
        // from them.
        coarse_change: true,
        fresh_opens: w.close_to_open,
        strict: w.is_strict(),
        ..MetadataCacheOptions::default()
    }
}

fn dirty_options(w: &Wanted, parts: u64, connected: &Connected) -> WriteBackOptions {
    let most = w.dirty_max_bytes / parts;
    WriteBackOptions {
        write_through: w.sync || w.is_strict(),
        lazy_close: w.lazy_close,
        delegated_close: w.delegated_close,
        wsize_bytes: connected.wsize_bytes,
        dirty_age: w.dirty_age,
        dirty_max_bytes: most,
        file_max_bytes: most / 2,
        small_copy_bytes: 64 << 10,
        fills_gaps: connected.version != Version::V3,
        ..WriteBackOptions::default()
    }
}
