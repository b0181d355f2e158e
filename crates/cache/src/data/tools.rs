//! Tools for people: lists, checksums, comparison with the server, pins.

use super::entry::Entry;
use super::format::{BLOCK, Key, Version, sum};
use super::shelf::Shelf;
use super::{DataCache, home};
use hither_vfs::{Fh, File, RequestContext};
use std::sync::Arc;

/// A cached file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DataCacheEntry {
    /// Key of the entry, in hexadecimal.
    pub key: String,
    /// Filehandle in hexadecimal.
    pub filehandle: String,
    /// Change attribute of the version.
    pub change: u64,
    /// Length of the remote file, in bytes.
    pub size_bytes: u64,
    /// Cached bytes of it.
    pub cached_bytes: u64,
    /// Time of the last use, in seconds since 1970.
    pub used_s: u64,
    /// The cleaner does not evict the entry.
    pub pinned: bool,
}

/// An entry as known without the disk: enough to choose entries to evict.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DataCacheSlot {
    /// Key of the entry, in hexadecimal.
    pub key: String,
    /// Space of the entry, in bytes.
    pub disk_bytes: u64,
    /// Time of the last use, in seconds since 1970.
    pub used_s: u64,
    /// Number of uses, as far as the policy counts them.
    pub uses: u8,
    /// The cleaner does not evict the entry.
    pub pinned: bool,
    /// The entry is open.
    pub open: bool,
}

/// Limits of the cache, and its present size.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DataCacheRoom {
    /// The cleaner's policy.
    pub policy: &'static str,
    /// Space of all entries, in bytes.
    pub entry_bytes: u64,
    /// Size above which the cleaner works, in bytes.
    pub soft_bytes: u64,
    /// Size above which nothing is added, in bytes.
    pub hard_bytes: u64,
    /// Space of all parts of the directory, in bytes; `None` without a limit for the directory.
    pub dir_bytes: Option<u64>,
    /// Size of the directory above which entries are evicted, in bytes.
    pub dir_soft_bytes: Option<u64>,
    /// Size of the directory above which nothing is added, in bytes.
    pub dir_hard_bytes: Option<u64>,
    /// Free space in the file system, in bytes.
    pub free_bytes: u64,
    /// Free space below which the cleaner works, in bytes.
    pub min_free_bytes: u64,
    /// Files that changed within so many seconds are not cached.
    pub age_s: u64,
    /// Shorter files are not cached, in bytes.
    pub min_file_bytes: u64,
    /// Longer files are not cached, in bytes.
    pub max_file_bytes: u64,
}

/// An action on entries given by their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAct {
    /// Evicts them.
    Evict,
    /// Pins them.
    Pin,
    /// Unpins them.
    Unpin,
}

/// Result of [`DataCache::check`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct DataCacheCheck {
    /// Entries checked.
    pub entries: u64,
    /// Blocks compared with their checksums.
    pub blocks: u64,
    /// Bytes compared with their checksums.
    pub bytes: u64,
    /// Entries that were damaged and dropped.
    pub damaged: u64,
}

/// Result of [`DataCache::verify`].
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct DataCacheVerify {
    /// Entries checked.
    pub entries: u64,
    /// Entries with a file that has changed or is gone at the server. They would not be used.
    pub outdated: u64,
    /// Entries that could not be compared: damaged in the cache, or not readable at the server.
    pub unknown: u64,
    /// Blocks compared with the server's bytes.
    pub blocks: u64,
    /// Bytes compared with the server's bytes.
    pub bytes: u64,
    /// Entries that differ although the server reports the file as unchanged. They were dropped.
    pub wrong: u64,
}

impl DataCacheCheck {
    pub(super) fn add(&mut self, one: EntryCheck) {
        self.entries += 1;
        self.blocks += one.blocks;
        self.bytes += one.bytes;
        self.damaged += u64::from(one.damaged);
    }
}

pub(super) fn told(shelf: &Shelf, entry: &Entry, used_s: u64) -> DataCacheEntry {
    DataCacheEntry {
        key: entry.key.hex(),
        filehandle: home::hex(&entry.fh.0),
        change: entry.version.change,
        size_bytes: entry.version.size,
        cached_bytes: entry.bytes(),
        used_s,
        pinned: shelf.is_pinned(entry.key),
    }
}

/// The result of a comparison of one entry with its checksums.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EntryCheck {
    /// Number of matching blocks, and of their bytes.
    blocks: u64,
    bytes: u64,
    /// Whether the entry differed.
    damaged: bool,
}

/// Compares an entry with its checksums, and drops it if it differs.
pub(super) fn check_one(shelf: &Shelf, key: Key) -> EntryCheck {
    let before = shelf.has(key);
    let Some((entry, ..)) = shelf.look(key) else {
        return EntryCheck { damaged: before, ..EntryCheck::default() };
    };
    let mut check = EntryCheck::default();
    for block in entry.blocks() {
        match entry.read_verified(block) {
            Ok(data) => check.bytes += data.len() as u64,
            Err(e) => {
                shelf.damaged(key, entry.id, &e);
                check.damaged = true;
                return check;
            }
        }
        check.blocks += 1;
    }
    check
}

impl DataCache {
    /// Compares all blocks with their checksums and drops entries that differ. Takes as long as
    /// reading all of them.
    pub async fn check(&self) -> DataCacheCheck {
        let Some(shelf) = self.shelf() else { return DataCacheCheck::default() };
        let mut report = DataCacheCheck::default();
        for key in shelf.keys() {
            let shelf = shelf.clone();
            let one = self.blocking(move || check_one(&shelf, key)).await;
            let Ok(one) = one else { break };
            report.add(one);
        }
        report
    }

    /// Compares all blocks with the server's bytes, as far as `cx` may read them, and drops entries
    /// that differ. Takes as long as reading all of them from the server.
    pub async fn verify(&self, cx: &RequestContext) -> DataCacheVerify {
        let Some(shelf) = self.shelf() else { return DataCacheVerify::default() };
        let mut report = DataCacheVerify::default();
        for key in shelf.keys() {
            report.entries += 1;
            let looker = shelf.clone();
            let Ok(Some((entry, ..))) = self.blocking(move || looker.look(key)).await else {
                report.unknown += 1;
                continue;
            };
            let before = report.clone();
            match self.compare(cx, &entry, &mut report).await {
                Some(true) => {}
                Some(false) => report.outdated += 1,
                None => report.unknown += 1,
            }
            if report.wrong > before.wrong {
                tracing::warn!(fh = ?entry.fh, "disk cache: an entry differs from the server's file; dropped");
                shelf.forget(key, Some(entry.id));
            }
        }
        report
    }

    /// Whether the file still has the entry's version, before and after its bytes were compared.
    async fn compare(
        &self,
        cx: &RequestContext,
        entry: &Arc<Entry>,
        report: &mut DataCacheVerify,
    ) -> Option<bool> {
        let version = async || {
            let cx = cx.fresh(tokio::time::Instant::now());
            let attr = self.below.getattr(&cx, File { fh: &entry.fh, open: None }).await.ok()?.attr;
            Some(Version { change: attr.change, size: attr.size_bytes })
        };
        if version().await? != entry.version {
            return Some(false);
        }
        let mut differs = false;
        for block in entry.blocks() {
            let (at, len) = (block * BLOCK, entry.version.extent(block).1);
            let theirs =
                self.below.read(cx, File { fh: &entry.fh, open: None }, at, len as u32).await.ok()?;
            let reader = entry.clone();
            let ours = self.blocking(move || reader.read_verified(block)).await.ok()?.ok()?;
            let theirs: Vec<u8> = theirs.data.parts().iter().flat_map(|part| part.iter().copied()).collect();
            differs |= theirs.len() != ours.len() || sum(&theirs) != sum(&ours);
            report.blocks += 1;
            report.bytes += ours.len() as u64;
        }
        if version().await? != entry.version {
            return Some(false);
        }
        report.wrong += u64::from(differs);
        Some(true)
    }

    /// All entries, in no order.
    pub async fn list(&self) -> Vec<DataCacheEntry> {
        let Some(shelf) = self.shelf() else { return Vec::new() };
        let all = move || {
            let looked = shelf.keys().into_iter().filter_map(|key| shelf.look(key));
            looked.map(|(entry, _, used_s)| told(&shelf, &entry, used_s)).collect()
        };
        self.blocking(all).await.unwrap_or_default()
    }

    /// Drops the entry of a file; returns whether there was one.
    pub fn evict(&self, fh: &Fh) -> bool {
        self.shelf().is_some_and(|shelf| shelf.forget(Key::of(fh), None))
    }

    /// Drops all entries that are not pinned; returns their number.
    pub fn evict_all(&self) -> u64 {
        let Some(shelf) = self.shelf() else { return 0 };
        shelf.keys().into_iter().filter(|key| !shelf.is_pinned(*key) && shelf.forget(*key, None)).count()
            as u64
    }

    /// Pins or unpins a file: the cleaner does not evict any version of a pinned file. Pins survive
    /// restarts.
    ///
    /// # Errors
    /// The cache directory is not in use, or cannot be written: a line for the user.
    pub async fn pin(&self, fh: &Fh, pinned: bool) -> Result<(), String> {
        let shelf = self.shelf().ok_or("the disk cache is not in use")?;
        let dir = self.lock.lock().as_ref().map(|home| home.dir.clone());
        let dir = dir.ok_or("the disk cache is not in use")?;
        let key = Key::of(fh);
        let write = move || home::write_pins(&dir, &shelf.pin(&[key], pinned)).map_err(|e| e.to_string());
        self.blocking(write).await.map_err(|e| e.to_string())?
    }

    /// All entries as known in memory, in the order of their eviction.
    pub async fn slots(&self) -> Vec<DataCacheSlot> {
        let Some(shelf) = self.shelf() else { return Vec::new() };
        self.blocking(move || shelf.slots()).await.unwrap_or_default()
    }

    /// The limits, and the present sizes.
    ///
    /// # Errors
    /// The cache directory is not in use: a line for the user.
    pub async fn room(&self) -> Result<DataCacheRoom, String> {
        let shelf = self.shelf().ok_or("the disk cache is not in use")?;
        let o = &self.options;
        let (age_s, min_file_bytes, max_file_bytes) =
            (o.cache_age.as_secs(), o.cache_min_file, o.cache_max_file);
        let look = move || {
            let entry_bytes = shelf.size().1;
            let total = shelf.total.get().filter(|total| total.is_limited());
            DataCacheRoom {
                policy: shelf.limits.policy.name(),
                entry_bytes,
                dir_bytes: total.map(|total| total.bytes(entry_bytes)),
                dir_soft_bytes: total.map(|total| total.soft_bytes),
                dir_hard_bytes: total.map(|total| total.hard_bytes),
                soft_bytes: shelf.limits.soft_bytes,
                hard_bytes: shelf.limits.hard_bytes,
                free_bytes: shelf.io.free_bytes().unwrap_or(0),
                min_free_bytes: shelf.limits.min_free_bytes,
                age_s,
                min_file_bytes,
                max_file_bytes,
            }
        };
        self.blocking(look).await.map_err(|e| e.to_string())
    }

    /// Acts on the entries with these keys; returns their number. Pinned entries are not evicted.
    ///
    /// # Errors
    /// A key is invalid, or the cache directory is not in use or cannot be written: a line for the
    /// user.
    pub async fn by_key(&self, act: KeyAct, keys: &[String]) -> Result<u64, String> {
        let shelf = self.shelf().ok_or("the disk cache is not in use")?;
        let dir = self.lock.lock().as_ref().map(|home| home.dir.clone());
        let parsed = keys.iter().map(|key| Key::of_hex(key).ok_or_else(|| format!("'{key}' is not a key")));
        let mut keys = parsed.collect::<Result<Vec<_>, _>>()?;
        let work = move || {
            keys.retain(|key| shelf.has(*key));
            if act == KeyAct::Evict {
                keys.retain(|key| !shelf.is_pinned(*key) && shelf.forget(*key, None));
                shelf.empty_trash();
                return Ok(keys.len() as u64);
            }
            let dir = dir.ok_or("the disk cache is not in use")?;
            home::write_pins(&dir, &shelf.pin(&keys, act == KeyAct::Pin)).map_err(|e| e.to_string())?;
            Ok(keys.len() as u64)
        };
        self.blocking(work).await.map_err(|e| e.to_string())?
    }

    /// The object at the end of a path of names, looked up in the layer below.
    ///
    /// # Errors
    /// The errors of the look-up.
    pub async fn resolve(&self, cx: &RequestContext, path: &[hither_vfs::Name]) -> hither_vfs::Result<Fh> {
        hither_vfs::resolve(&*self.below, cx, path).await
    }
}
