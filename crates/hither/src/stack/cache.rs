//! The disk cache of a mount: what its options say, and whose contents it holds.

use super::env;
use crate::control::CacheAsk;
use crate::mount::Job;
use hither_client::{Connected, Version};
use hither_store::disk::{Disk, DiskOptions};
use hither_store::meta::Meta;
use hither_vfs::{Cred, Cx, Fh, Name};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// The layer, when one is wanted.
pub async fn disk(job: &Job, connected: &Connected) -> Option<Arc<Disk>> {
    let cache = &job.wanted.cache;
    let dir = cache.dir.as_ref()?;
    let options = DiskOptions {
        soft_bytes: cache.size_bytes / 10 * 9,
        hard_bytes: cache.size_bytes,
        min_free_bytes: cache.min_free_bytes,
        cache_min_file: cache.min_file_bytes,
        cache_max_file: cache.max_file_bytes,
        cache_age: cache.age,
        read_only: cache.read_only,
        fill: cache.fill,
        ..DiskOptions::default()
    };
    let identity = identity(job, connected).await;
    Some(Disk::start(connected.vfs.clone(), dir, &identity, options, env()).await)
}

/// How often names and attributes are written beside what was read, at most.
const REMEMBER_EVERY: Duration = Duration::from_secs(60);
/// Writing them takes at most this part of the time.
const REMEMBER_PART: u32 = 50;
/// Most that they take, in bytes.
const NAMES_MOST: u64 = 64 << 20;

/// What names and attributes may take of a cache of so many bytes.
pub fn names_bytes(cache_bytes: u64) -> usize {
    usize::try_from((cache_bytes / 20).min(NAMES_MOST)).unwrap_or(usize::MAX)
}

/// Takes back the names and attributes of before, and sees to it that they are written now and then.
pub async fn recall(disk: &Arc<Disk>, meta: &Arc<Meta>, cache_bytes: u64) {
    let pieces = disk.memo().await;
    if !pieces.is_empty() {
        let count = meta.recall(&pieces);
        tracing::debug!("disk cache: {count} objects are remembered");
    }
    tokio::spawn(now_and_then(Arc::downgrade(disk), Arc::downgrade(meta), names_bytes(cache_bytes)));
}

async fn now_and_then(disk: Weak<Disk>, meta: Weak<Meta>, most: usize) {
    let (mut every, mut asked) = (REMEMBER_EVERY, 0);
    loop {
        tokio::time::sleep(every).await;
        let (Some(disk), Some(meta)) = (disk.upgrade(), meta.upgrade()) else { return };
        let s = meta.stats();
        // Nothing was asked below: nothing new is known.
        let now = s.walks + s.attr_misses + s.listing_misses + s.access_misses + s.real_opens;
        if now == asked {
            continue;
        }
        asked = now;
        let began = Instant::now();
        remember(&disk, &meta, most).await;
        every = REMEMBER_EVERY.max(began.elapsed() * REMEMBER_PART);
    }
}

/// Writes what is known of names and attributes.
pub async fn remember(disk: &Arc<Disk>, meta: &Arc<Meta>, most: usize) {
    let meta = meta.clone();
    if let Ok(pieces) = tokio::task::spawn_blocking(move || meta.remember(most)).await {
        disk.set_memo(pieces).await;
    }
}

/// The server as it was named, what of it is mounted, and the handle of that: handles of another server, of a file system
/// made anew, or of another protocol (NFSv3 and NFSv4 make them differently) are never taken for these.
async fn identity(job: &Job, connected: &Connected) -> Vec<u8> {
    let family = if connected.version == Version::V3 { "3" } else { "4" };
    let root = connected.vfs.root(&Cx::new(Arc::new(Cred::root()))).await;
    let (handle, fsid) = match &root {
        Ok(node) => (node.fh.0.to_vec(), node.attrs.attr.fsid),
        // Nobody may look at it: the mount will say so.
        Err(_) => (Vec::new(), (0, 0)),
    };
    let words = format!("nfs{family} {} port {} ", job.source.shown(), connected.server.port());
    let mut identity = words.into_bytes();
    identity.extend(fsid.0.to_be_bytes());
    identity.extend(fsid.1.to_be_bytes());
    identity.extend(handle);
    identity
}

/// Answers what is asked about the cache of a mount.
///
/// # Errors
/// A line for the user.
pub async fn answer(disk: &Disk, ask: CacheAsk) -> Result<serde_json::Value, String> {
    let cx = Cx::new(Arc::new(Cred::root()));
    let value = |value: Result<serde_json::Value, serde_json::Error>| value.map_err(|e| e.to_string());
    match ask {
        CacheAsk::List => value(serde_json::to_value(disk.list().await)),
        CacheAsk::Check => value(serde_json::to_value(disk.check().await)),
        CacheAsk::Verify => value(serde_json::to_value(disk.verify(&cx).await)),
        CacheAsk::Evict(None) => Ok(serde_json::json!({ "evicted": disk.evict_all() })),
        CacheAsk::Evict(Some(path)) => {
            let gone = disk.evict(&find(disk, &cx, &path).await?);
            Ok(serde_json::json!({ "evicted": u64::from(gone) }))
        }
        CacheAsk::Pin(path) => pin(disk, &find(disk, &cx, &path).await?, true).await,
        CacheAsk::Unpin(path) => pin(disk, &find(disk, &cx, &path).await?, false).await,
    }
}

async fn pin(disk: &Disk, fh: &Fh, pinned: bool) -> Result<serde_json::Value, String> {
    disk.pin(fh, pinned).await.map(|()| serde_json::json!({ "pinned": pinned }))
}

async fn find(disk: &Disk, cx: &Cx, path: &str) -> Result<Fh, String> {
    let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
    let names: Result<Vec<Name>, _> = names.map(|name| Name::new(name.as_bytes().to_vec())).collect();
    let found = async { disk.resolve(cx, &names?).await };
    found.await.map_err(|e| format!("{path}: {e}"))
}
