//! The disk cache of a mount: its options, and the identity of the file system in it.

use super::env;
use crate::control::{CacheAsk, KeyDo};
use crate::mount::Job;
use hither_cache::data::{DataCache, DataCacheOptions, KeyAct};
use hither_cache::metadata::MetadataCache;
use hither_cache::policy::max_file_bytes;
use hither_nfs::{Connected, Version};
use hither_vfs::{BatchOps, Cred, Fh, FileKind, Name, Node, PathRef, RequestContext, Stop, Vfs, WalkRequest};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// The disk cache, if one is requested.
pub async fn disk(job: &Job, connected: &Connected, client: Arc<dyn Vfs>) -> Option<Arc<DataCache>> {
    let cache = &job.wanted.cache;
    let dir = cache.dir.as_ref()?;
    let soft = |bytes: u64| bytes / 100 * cache.soft_percent;
    let most = cache.size_bytes.min(cache.dir_size_bytes.unwrap_or(u64::MAX));
    let options = DataCacheOptions {
        soft_bytes: soft(cache.size_bytes),
        hard_bytes: cache.size_bytes,
        dir_soft_bytes: cache.dir_size_bytes.map_or(u64::MAX, soft),
        dir_hard_bytes: cache.dir_size_bytes.unwrap_or(u64::MAX),
        policy: cache.policy,
        min_free_bytes: cache.min_free_bytes,
        cache_min_file: cache.min_file_bytes,
        cache_max_file: cache.max_file_bytes.unwrap_or_else(|| max_file_bytes(most)),
        cache_age: cache.age,
        read_only: cache.read_only,
        fill: cache.fill,
        ..DataCacheOptions::default()
    };
    let root = root(connected).await;
    // The root may be inaccessible to this user. The mount reports that error later.
    let identity =
        identity_of(job, connected, &root).unwrap_or_else(|_| identity(job, connected, &[], (0, 0)));
    Some(DataCache::start(client, dir, &identity, options, env()).await)
}

/// Shortest interval between two saves of names and attributes next to the data.
const REMEMBER_EVERY: Duration = Duration::from_secs(60);
/// A save takes at most one part in this many of the time.
const REMEMBER_PART: u32 = 50;
/// Most bytes of saved names and attributes.
const NAMES_MAX: u64 = 64 << 20;

/// The limit of saved names and attributes for a cache of `cache_bytes`.
pub fn names_bytes(cache_bytes: u64) -> usize {
    usize::try_from((cache_bytes / 20).min(NAMES_MAX)).unwrap_or(usize::MAX)
}

/// Loads the saved names and attributes. If another daemon still holds the directory, they are
/// loaded later. Also starts the task that saves them regularly.
pub async fn restore_snapshot(disk: &Arc<DataCache>, meta: &Arc<MetadataCache>, cache_bytes: u64) {
    let mut taken = disk.taken();
    let here = *taken.borrow_and_update();
    if here {
        take_back(disk, meta).await;
    }
    let (disk, meta) = (Arc::downgrade(disk), Arc::downgrade(meta));
    tokio::spawn(async move {
        if !here {
            if taken.wait_for(|taken| *taken).await.is_err() {
                return;
            }
            let (Some(disk), Some(meta)) = (disk.upgrade(), meta.upgrade()) else { return };
            take_back(&disk, &meta).await;
        }
        now_and_then(disk, meta, names_bytes(cache_bytes)).await;
    });
}

async fn take_back(disk: &DataCache, meta: &Arc<MetadataCache>) {
    let (pieces, meta) = (disk.memo().await, meta.clone());
    if pieces.is_empty() {
        return;
    }
    if let Ok(count) = tokio::task::spawn_blocking(move || meta.restore_snapshot(&pieces)).await {
        tracing::debug!("disk cache: {count} objects are remembered");
    }
}

async fn now_and_then(disk: Weak<DataCache>, meta: Weak<MetadataCache>, most: usize) {
    let (mut every, mut asked) = (REMEMBER_EVERY, 0);
    loop {
        tokio::time::sleep(every).await;
        let (Some(disk), Some(meta)) = (disk.upgrade(), meta.upgrade()) else { return };
        let s = meta.stats();
        // Without requests to the layers below there is nothing new to save.
        let now = s.walks + s.attr_misses + s.listing_misses + s.access_misses + s.real_opens;
        if now == asked {
            continue;
        }
        asked = now;
        let began = Instant::now();
        save_snapshot(&disk, &meta, most).await;
        every = REMEMBER_EVERY.max(began.elapsed() * REMEMBER_PART);
    }
}

/// Saves the known names and attributes.
pub async fn save_snapshot(disk: &Arc<DataCache>, meta: &Arc<MetadataCache>, most: usize) {
    let meta = meta.clone();
    if let Ok(pieces) = tokio::task::spawn_blocking(move || meta.take_snapshot(most)).await {
        disk.set_memo(pieces).await;
    }
}

/// The identity: the server's name, the mounted path, and the filehandle of that path. It differs
/// for another server, for a recreated file system, and for another protocol (NFSv3 and NFSv4 have
/// different handles).
///
/// # Errors
/// The root is not known.
pub(super) fn identity_of(
    job: &Job,
    connected: &Connected,
    root: &hither_vfs::Result<Node>,
) -> hither_vfs::Result<Vec<u8>> {
    let node = root.as_ref().map_err(Clone::clone)?;
    Ok(identity(job, connected, &node.fh.0, node.attrs.attr.fsid))
}

/// Protocol, file system and root of the mount as text.
pub(super) fn file_system(connected: &Connected, root: &Node) -> String {
    let handle: String = root.fh.0.iter().map(|b| format!("{b:02x}")).collect();
    let (major, minor) = root.attrs.attr.fsid;
    format!("{} {major:x}.{minor:x} {handle}", family(connected))
}

fn family(connected: &Connected) -> &'static str {
    match connected.version {
        Version::Nqnfs => "nqnfs",
        Version::V3 => "nfs3",
        Version::V41 | Version::V42 => "nfs4",
    }
}

/// The root of the mounted export.
pub(super) async fn root(connected: &Connected) -> hither_vfs::Result<Node> {
    connected.vfs.root(&RequestContext::new(Arc::new(Cred::root()))).await
}

fn identity(job: &Job, connected: &Connected, handle: &[u8], fsid: (u64, u64)) -> Vec<u8> {
    let words = format!("{} {} port {} ", family(connected), job.source.shown(), connected.server.port());
    let mut identity = words.into_bytes();
    identity.extend(fsid.0.to_be_bytes());
    identity.extend(fsid.1.to_be_bytes());
    identity.extend(handle);
    identity
}

/// Answers requests about the cache of a mount.
///
/// # Errors
/// A message for the user.
pub async fn answer(
    disk: &DataCache,
    meta: &MetadataCache,
    ask: CacheAsk,
) -> Result<serde_json::Value, String> {
    let cx = RequestContext::new(Arc::new(Cred::root()));
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
        CacheAsk::Slots => value(serde_json::to_value(disk.slots().await)),
        CacheAsk::Room => value(serde_json::to_value(disk.room().await?)),
        CacheAsk::Keys(act, keys) => {
            let (act, name) = match act {
                KeyDo::Evict => (KeyAct::Evict, "evicted"),
                KeyDo::Pin => (KeyAct::Pin, "pinned"),
                KeyDo::Unpin => (KeyAct::Unpin, "unpinned"),
            };
            Ok(serde_json::json!({ name: disk.by_key(act, &keys).await? }))
        }
        CacheAsk::Warm { paths, longest_bytes } => {
            value(serde_json::to_value(warm(disk, meta, &cx, &paths, longest_bytes).await))
        }
        CacheAsk::Unpin(path) => pin(disk, &find(disk, &cx, &path).await?, false).await,
    }
}

/// Reads small files through the disk cache, many in a message. The caller has listed them, so
/// their names are cached and only their bytes are requested. Returns the bytes of each file, or
/// `None` for a file that must be opened and read.
async fn warm(
    disk: &DataCache,
    meta: &MetadataCache,
    cx: &RequestContext,
    paths: &[String],
    longest_bytes: u32,
) -> Vec<Option<u64>> {
    let mut done = vec![None; paths.len()];
    let Ok(root) = meta.root(cx).await else { return done };
    let (mut places, mut files) = (Vec::new(), Vec::new());
    for (i, path) in paths.iter().enumerate() {
        let Ok(names) = Name::of_path(path) else { continue };
        let at = PathRef { base: &root.fh, path: &names };
        let Ok(trail) = meta.walk(cx, at, WalkRequest::default()).await else { continue };
        // The whole path must resolve without a symbolic link, to a regular file.
        let whole = matches!(trail.stop, Stop::Complete) && trail.steps.len() == names.len();
        let Some(node) = trail.steps.last().filter(|_| whole) else { continue };
        let attr = &node.attrs.attr;
        if attr.kind == FileKind::Regular && attr.size_bytes <= u64::from(longest_bytes) {
            places.push(i);
            files.push(node.fh.clone());
        }
    }
    disk.roomy().await;
    let brought = disk.read_many(cx, &files, None, longest_bytes.max(1)).await;
    for (i, file) in places.into_iter().zip(brought.files) {
        let whole = file.ok().filter(|f| f.read.data.len() as u64 == f.attrs.attr.size_bytes);
        done[i] = whole.map(|f| f.attrs.attr.size_bytes);
    }
    done
}

async fn pin(disk: &DataCache, fh: &Fh, pinned: bool) -> Result<serde_json::Value, String> {
    disk.pin(fh, pinned).await.map(|()| serde_json::json!({ "pinned": pinned }))
}

async fn find(disk: &DataCache, cx: &RequestContext, path: &str) -> Result<Fh, String> {
    let found = async { disk.resolve(cx, &Name::of_path(path)?).await };
    found.await.map_err(|e| format!("{path}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hither_cache::metadata::MetadataCacheOptions;
    use hither_vfs::SetAttr;
    use hither_vfs::model::Model;

    /// A mount gets its cache directory late, because another daemon still held it. The mount then
    /// loads the names that the other daemon saved.
    #[tokio::test]
    async fn late_cache_directory_restores_names() {
        let home = tempfile::tempdir().unwrap();
        let (dir, cx) = (home.path().join("cache"), RequestContext::new(Arc::new(Cred::root())));
        let model = Arc::new(Model::new(env(), Duration::from_secs(3), u64::MAX));
        let top = model.root(&cx).await.unwrap().fh;
        let name = Name::new(b"d".to_vec()).unwrap();
        model.mkdir(&cx, &top, &name, &SetAttr::default()).await.unwrap();
        let start = async || {
            let retry = Duration::from_millis(20);
            let options = DataCacheOptions { retry, min_free_bytes: 0, ..DataCacheOptions::default() };
            let disk = DataCache::start(model.clone(), &dir, b"server", options, env()).await;
            let meta = MetadataCache::new(disk.clone(), MetadataCacheOptions::default(), env());
            restore_snapshot(&disk, &meta, 1 << 30).await;
            (disk, meta)
        };
        let (disk, meta) = start().await;
        let root = meta.root(&cx).await.unwrap().fh;
        meta.walk(&cx, PathRef::name(&root, &name), WalkRequest::default()).await.unwrap();
        let (late_disk, late) = start().await;
        assert!(!*late_disk.taken().borrow() && late_disk.trouble().is_some());
        save_snapshot(&disk, &meta, 1 << 20).await;
        disk.shutdown(&cx).await.unwrap();
        let began = Instant::now();
        while late.stats().recalled_objects == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing is found of it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
