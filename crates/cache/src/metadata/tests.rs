//! Number of requests to the layer below, and validity of all answers.

mod absence;
mod ahead;
mod histories;
mod leases;
mod opens;
mod own;
mod passing;
mod promises;
mod single_flight;
mod snapshot;
mod tries;

use super::*;
use hither_vfs::model::Model;
use hither_vfs::model::wire::Wire;
use hither_vfs::*;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

const VALID: Duration = Duration::from_secs(30);

fn env() -> Env {
    let ticks = AtomicU64::new(1);
    Env {
        random: Arc::new(|| 4),
        wall: Arc::new(move || {
            let tick = ticks.fetch_add(1, Ordering::Relaxed);
            SystemTime::UNIX_EPOCH + Duration::from_millis(tick)
        }),
    }
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn names(path: &str) -> Vec<Name> {
    path.split('/').map(name).collect()
}

fn root_cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

fn user(uid: u32) -> RequestContext {
    RequestContext::new(Arc::new(Cred { uid, gid: uid, groups: Default::default() }))
}

fn options() -> MetadataCacheOptions {
    MetadataCacheOptions { coarse_change: false, prefetch: Prefetch::Off, ..Default::default() }
}

const READ: OpenHow = OpenHow {
    access: OpenAccess::READ,
    create: Create::No,
    truncate: false,
    execute: false,
    first_bytes: 65536,
    known: None,
};

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..Default::default() }
}

fn creating(bits: u32) -> OpenHow {
    let access = OpenAccess::READ | OpenAccess::WRITE;
    OpenHow { access, create: Create::IfMissing(mode(bits)), first_bytes: 0, ..READ }
}

/// A server, the wire to it, and the cache.
struct Lab {
    model: Arc<Model>,
    wire: Arc<Wire>,
    meta: Arc<MetadataCache>,
    top: Fh,
    cx: RequestContext,
}

async fn lab_with(options: MetadataCacheOptions, valid: Duration) -> Lab {
    let model = Arc::new(Model::new(env(), valid, 1 << 40));
    let wire = Wire::new(model.clone());
    let meta = MetadataCache::new(wire.clone(), options, env());
    let cx = root_cx();
    let top = meta.root(&cx).await.unwrap().fh;
    wire.take();
    Lab { model, wire, meta, top, cx }
}

async fn lab() -> Lab {
    lab_with(options(), VALID).await
}

/// Makes a directory; on the model, it stands for another client.
async fn make_dir(v: &dyn Vfs, cx: &RequestContext, dir: &Fh, n: &str) -> Fh {
    v.mkdir(cx, dir, &name(n), &mode(0o755)).await.unwrap().node.fh
}

async fn make_file(v: &dyn Vfs, cx: &RequestContext, dir: &Fh, n: &str, text: &str) -> Fh {
    let opened = v.open(cx, PathRef::name(dir, &name(n)), &creating(0o644)).await.unwrap();
    let file = File { fh: &opened.node.fh, open: Some(opened.open) };
    let data = Bytes::copy_from_slice(text.as_bytes()).into();
    v.write(cx, file, 0, data, Stability::Unstable).await.unwrap();
    v.close(cx, &opened.node.fh, opened.open).await.unwrap();
    opened.node.fh
}

/// A walk at a moment of its own.
async fn walk(v: &dyn Vfs, cx: &RequestContext, from: &Fh, path: &str) -> WalkResult {
    tokio::time::advance(Duration::from_millis(1)).await;
    v.walk(cx, PathRef { base: from, path: &names(path) }, WalkRequest::default()).await.unwrap()
}

fn peek(l: &Lab, cx: &RequestContext, path: &str) -> Option<WalkResult> {
    l.meta.peek(cx, PathRef { base: &l.top, path: &names(path) })
}

async fn read_all(v: &dyn Vfs, cx: &RequestContext, fh: &Fh) -> Result<String> {
    let opened = v.open(cx, PathRef::fh(fh), &READ).await?;
    let text = match opened.first {
        Some(first) if first.eof => first.data.into_bytes(),
        _ => {
            let file = File { fh, open: Some(opened.open) };
            v.read(cx, file, 0, 1 << 20).await?.data.into_bytes()
        }
    };
    v.close(cx, fh, opened.open).await?;
    Ok(String::from_utf8(text.to_vec()).unwrap())
}

async fn read_named(v: &dyn Vfs, cx: &RequestContext, dir: &Fh, n: &str) -> Result<(Fh, String)> {
    let opened = v.open(cx, PathRef::name(dir, &name(n)), &READ).await?;
    let fh = opened.node.fh;
    let file = File { fh: &fh, open: Some(opened.open) };
    let text = v.read(cx, file, 0, 1 << 20).await?.data.into_bytes();
    v.close(cx, &fh, opened.open).await?;
    Ok((fh, String::from_utf8(text.to_vec()).unwrap()))
}

/// Another client rotates a log.
async fn rotate(l: &Lab, dir: &Fh, n: &str, text: &str) -> Fh {
    let (from, to) = (name(n), name(&format!("{n}.1")));
    l.model.rename(&l.cx, (dir, &from), (dir, &to), None, RenameFlags::empty()).await.unwrap();
    make_file(&*l.model, &l.cx, dir, n, text).await
}

/// A tree a/b/c with files f and g.
async fn tree(l: &Lab) {
    let a = make_dir(&*l.model, &l.cx, &l.top, "a").await;
    let b = make_dir(&*l.model, &l.cx, &a, "b").await;
    let c = make_dir(&*l.model, &l.cx, &b, "c").await;
    make_file(&*l.model, &l.cx, &c, "f", "one").await;
    make_file(&*l.model, &l.cx, &c, "g", "two").await;
    tokio::time::advance(Duration::from_secs(100)).await;
}

/// The walk of a path costs one request. The path, its siblings and absent names are then known.
#[tokio::test(start_paused = true)]
async fn path_costs_one_walk() {
    let l = lab().await;
    tree(&l).await;
    assert!(peek(&l, &l.cx, "a/b/c/f").is_none());
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    assert_eq!(trail.steps.len(), 4);
    assert_eq!(l.wire.take(), "walk 1");
    let again = peek(&l, &l.cx, "a/b/c/f").unwrap();
    assert_eq!(again.steps.last(), trail.steps.last());
    // The walk brought the listing: siblings and absent names are known.
    assert!(peek(&l, &l.cx, "a/b/c/g").is_some());
    assert!(matches!(peek(&l, &l.cx, "a/b/c/nothing").unwrap().stop, Stop::Missing(_)));
    assert!(matches!(peek(&l, &l.cx, "a/b/c/f/below").unwrap().stop, Stop::NotDirectory));
    assert_eq!(l.wire.take(), "");
}

/// An object that is busy in a request about many is asked for alone, and waits there.
#[tokio::test(start_paused = true)]
async fn busy_object_is_asked_alone() {
    let l = lab().await;
    tree(&l).await;
    let steps = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps;
    let get = async || {
        for node in steps.iter().rev() {
            let file = File { fh: &node.fh, open: None };
            assert_eq!(l.meta.getattr(&l.cx, file).await.unwrap().attr.kind, node.attrs.attr.kind);
        }
        l.wire.take()
    };
    get().await;
    tokio::time::advance(2 * VALID).await;
    assert_eq!(get().await, "getattr_many 1", "one request serves all");
    tokio::time::advance(2 * VALID).await;
    *l.wire.busy.lock() = true;
    assert!(get().await.starts_with("getattr 4, getattr_many"), "each is asked for alone");
}

/// After expiry one request revalidates all objects of a path. The names stay known.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn expired_path_revalidates_in_one_request() {
    let l = lab().await;
    tree(&l).await;
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    tokio::time::advance(VALID).await;
    assert!(peek(&l, &l.cx, "a/b/c/f").is_none());
    l.wire.take();
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    assert_eq!(l.wire.take(), "getattr_many 1");
    assert!(peek(&l, &l.cx, "a/b/c/f").is_some());
    assert!(matches!(peek(&l, &l.cx, "a/b/c/nothing").unwrap().stop, Stop::Missing(_)));
}

/// Promise: 8
#[tokio::test(start_paused = true)]
async fn a_changed_directory_loses_its_names() {
    let l = lab().await;
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    make_file(&*l.model, &l.cx, &c, "new", "").await;
    assert!(matches!(peek(&l, &l.cx, "a/b/c/new").unwrap().stop, Stop::Missing(_)), "still within its time");
    tokio::time::advance(VALID).await;
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/new").await;
    assert!(matches!(trail.stop, Stop::Complete));
}

/// The cache serves names and contents to a caller only after the server has granted access to that
/// caller.
#[tokio::test(start_paused = true)]
async fn cached_data_respects_permissions() {
    let l = lab().await;
    tree(&l).await;
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    let fh = &trail.steps[3].fh;
    read_all(&*l.meta, &l.cx, fh).await.unwrap();
    l.meta.setattr(&l.cx, File { fh, open: None }, &mode(0o600)).await.unwrap();
    let (b, me) = (&trail.steps[1].fh, user(7));
    read_all(&*l.meta, &l.cx, fh).await.unwrap();
    assert!(peek(&l, &me, "a/b/c/f").is_none(), "another caller is not known to be let in");
    assert!(matches!(walk(&*l.meta, &me, &l.top, "a/b/c/f").await.stop, Stop::Complete));
    assert!(peek(&l, &me, "a/b/c/f").is_some());
    assert_eq!(read_all(&*l.meta, &me, fh).await.unwrap_err().errno, libc::EACCES);
    // The right is removed here: the change is visible at once.
    l.meta.setattr(&l.cx, File { fh: b, open: None }, &mode(0o700)).await.unwrap();
    assert!(peek(&l, &me, "a/b/c/f").is_none());
    let trail = walk(&*l.meta, &me, &l.top, "a/b/c/f").await;
    assert!(matches!(&trail.stop, Stop::Failed(e) if e.errno == libc::EACCES), "{:?}", trail.stop);
    assert!(peek(&l, &l.cx, "a/b").is_some(), "the superuser sees it as before");
}

#[tokio::test(start_paused = true)]
async fn own_changes_keep_a_directory_known() {
    let l = lab().await;
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    make_file(&*l.meta, &l.cx, &c, "new", "text").await;
    l.meta.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
    l.meta.rename(&l.cx, (&c, &name("f")), (&c, &name("h")), None, RenameFlags::empty()).await.unwrap();
    l.wire.take();
    // The directory's names hold; the rename brought the attributes of the file.
    for (path, here) in [("f", false), ("g", false), ("h", true), ("new", true), ("never", false)] {
        let trail = walk(&*l.meta, &l.cx, &c, path).await;
        assert_eq!(matches!(trail.stop, Stop::Complete), here, "{path}");
    }
    assert_eq!(l.wire.take(), "");
    tokio::time::advance(VALID).await;
    assert!(matches!(walk(&*l.meta, &l.cx, &c, "never").await.stop, Stop::Missing(_)));
    assert!(matches!(walk(&*l.meta, &l.cx, &c, "new").await.stop, Stop::Complete));
    assert_eq!(l.wire.take(), "getattr_many 1");
}

/// A large listing is fetched once. Later listings are served from memory, page by page.
#[tokio::test(start_paused = true)]
async fn listing_is_fetched_once() {
    let l = lab().await;
    let dir = make_dir(&*l.model, &l.cx, &l.top, "many").await;
    for i in 0..1000 {
        l.model
            .mknod(&l.cx, &dir, &name(&format!("file{i:04}")), &Special::Regular, &mode(0o644))
            .await
            .unwrap();
    }
    for (round, pages) in [(0, "list_many 1, readdir 2"), (1, "")] {
        let (mut seen, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
        loop {
            let page = l.meta.readdir(&l.cx, &dir, cookie, verifier, 4096, true).await.unwrap();
            (cookie, verifier) = (page.entries.last().unwrap().cookie, page.verifier);
            seen.extend(page.entries.iter().map(|e| e.name.clone()));
            if page.eof {
                break;
            }
        }
        assert_eq!(seen.len(), 1000);
        assert!(seen.is_sorted(), "the server's order");
        assert_eq!(l.wire.take(), pages, "round {round}");
    }
    walk(&*l.meta, &l.cx, &dir, "file0000").await;
    assert_eq!(l.wire.take(), "walk 1", "that the caller may search is asked once");
    assert!(matches!(walk(&*l.meta, &l.cx, &dir, "absent").await.stop, Stop::Missing(_)));
    assert_eq!(l.wire.take(), "");
}

/// 40 directories of 5 files each.
async fn forest(l: &Lab) -> Vec<(Fh, Vec<Fh>)> {
    let mut all = Vec::new();
    for d in 0..40 {
        let dir = make_dir(&*l.model, &l.cx, &l.top, &format!("d{d}")).await;
        let mut files = Vec::new();
        for f in 0..5 {
            files.push(make_file(&*l.model, &l.cx, &dir, &format!("f{f}"), "text").await);
        }
        all.push((dir, files));
    }
    tokio::time::advance(Duration::from_secs(100)).await;
    all
}

async fn visit(l: &Lab) {
    for d in 0..40 {
        for f in 0..5 {
            for miss in ["x", "y", "z"] {
                let path = format!("d{d}/{miss}{f}");
                if peek(l, &l.cx, &path).is_none() {
                    walk(&*l.meta, &l.cx, &l.top, &path).await;
                }
            }
            let path = names(&format!("d{d}/f{f}"));
            let at = PathRef { base: &l.top, path: &path };
            let fh = match l.meta.peek(&l.cx, at) {
                Some(trail) => trail.steps[1].fh.clone(),
                None => {
                    let want = WalkRequest { read_bytes: 65536, access: Access::READ, ..Default::default() };
                    l.meta.walk(&l.cx, at, want).await.unwrap().steps[1].fh.clone()
                }
            };
            assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "text");
        }
    }
}

/// A visit of many small files stays within the promised number of calls: cold, warm and after
/// expiry.
#[tokio::test(start_paused = true)]
async fn small_file_page_keeps_call_budget() {
    for (prefetch, cold) in [(Prefetch::Off, 240), (Prefetch::Small, 100)] {
        let l = lab_with(MetadataCacheOptions { prefetch, ..options() }, VALID).await;
        forest(&l).await;
        visit(&l).await;
        let calls = l.wire.total();
        assert!(calls <= cold, "{calls} calls cold with {prefetch:?}");
        visit(&l).await;
        assert_eq!(l.wire.total(), 0, "again");
        tokio::time::advance(VALID).await;
        visit(&l).await;
        let again = l.wire.take();
        assert!(again.split(", ").count() <= 2 && !again.contains("open"), "after the time: {again}");
        let stats = l.meta.stats();
        assert_eq!(stats.prefetch_wasted_bytes, 0);
        assert_eq!(stats.prefetched_bytes, stats.prefetch_used_bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn expired_objects_are_asked_for_together() {
    let l = lab().await;
    let all = forest(&l).await;
    let files: Vec<_> = all.iter().flat_map(|(_, files)| files.iter().cloned()).collect();
    for fh in &files {
        l.meta.getattr(&l.cx, File { fh, open: None }).await.unwrap();
    }
    assert_eq!(l.wire.total(), 200);
    tokio::time::advance(VALID).await;
    for fh in &files {
        l.meta.getattr(&l.cx, File { fh, open: None }).await.unwrap();
    }
    assert_eq!(l.wire.take(), "getattr_many 1");
}

/// An answer that is valid for one call serves that call and no other.
#[tokio::test(start_paused = true)]
async fn single_call_validity_is_not_cached() {
    let l = lab_with(options(), Duration::ZERO).await;
    tree(&l).await;
    for _ in 0..2 {
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/none").await;
        assert_eq!(l.wire.take(), "walk 2");
        assert!(peek(&l, &l.cx, "a/b/c/f").is_none());
    }
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[3].fh.clone();
    l.wire.take();
    for _ in 0..2 {
        tokio::time::advance(Duration::from_millis(1)).await;
        l.meta.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
        assert_eq!(l.wire.take(), "getattr 1");
    }
    // The answer serves the call that requested it.
    let fresh = l.cx.fresh(Instant::now());
    walk(&*l.meta, &fresh, &l.top, "a/b/c/f").await;
    assert!(peek(&l, &fresh, "a/b/c/f").is_some());
}

#[tokio::test(start_paused = true)]
async fn lookupcache_limits_names() {
    for (cache, present, absent) in
        [(LookupCache::Positive, "", "walk 1"), (LookupCache::None, "walk 1", "walk 1")]
    {
        let l = lab_with(MetadataCacheOptions { lookup_cache: cache, ..options() }, VALID).await;
        tree(&l).await;
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
        l.wire.take();
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
        assert_eq!(l.wire.take(), present);
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/none").await;
        assert_eq!(l.wire.take(), absent);
    }
}

#[tokio::test(start_paused = true)]
async fn memory_stays_within_its_bound() {
    let l =
        lab_with(MetadataCacheOptions { memory_bytes: 200_000, contents_bytes: 20_000, ..options() }, VALID)
            .await;
    for d in 0..30 {
        let dir = make_dir(&*l.model, &l.cx, &l.top, &format!("d{d}")).await;
        for f in 0..100 {
            make_file(&*l.model, &l.cx, &dir, &format!("f{f}"), &"z".repeat(500)).await;
        }
    }
    for d in 0..30 {
        for f in 0..100 {
            let path = names(&format!("d{d}/f{f}"));
            let want = WalkRequest { read_bytes: 65536, access: Access::READ, ..Default::default() };
            l.meta.walk(&l.cx, PathRef { base: &l.top, path: &path }, want).await.unwrap();
            let stats = l.meta.stats();
            assert!(stats.memory_bytes <= 260_000, "{stats:?}");
        }
    }
    assert!(l.meta.stats().evictions > 1000);
}

/// After a change call that was dropped before its end, the directory is not cached for a minute.
#[tokio::test(start_paused = true)]
async fn interrupted_change_suspends_metadata_caching() {
    let model = Arc::new(Model::new(env(), VALID, 1 << 30));
    let wire = Wire::slow(model.clone(), Some(5), Duration::from_millis(50));
    let meta = MetadataCache::new(wire.clone(), options(), env());
    let cx = root_cx();
    let top = meta.root(&cx).await.unwrap().fh;
    walk(&*meta, &cx, &top, "d").await;
    assert!(meta.peek(&cx, PathRef::name(&top, &name("d"))).is_some());
    let (m, c, t) = (meta.clone(), cx.clone(), top.clone());
    let task = tokio::spawn(async move { m.mkdir(&c, &t, &name("d"), &mode(0o755)).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(meta.peek(&cx, PathRef::name(&top, &name("d"))).is_none());
    wire.take();
    walk(&*meta, &cx, &top, "e").await;
    walk(&*meta, &cx, &top, "e").await;
    assert_eq!(wire.take(), "walk 2", "for a while nothing is believed");
    tokio::time::advance(Duration::from_secs(61)).await;
    walk(&*meta, &cx, &top, "e").await;
    walk(&*meta, &cx, &top, "e").await;
    assert_eq!(wire.take(), "walk 1");
}

#[tokio::test(start_paused = true)]
async fn a_stale_handle_is_walked_again() {
    let l = lab().await;
    tree(&l).await;
    walk(&*l.meta, &l.cx, &l.top, "a/b").await;
    // Another client replaces the directory; the names in it were never requested.
    let top = [name("a"), name("old")];
    l.model.rename(&l.cx, (&l.top, &top[0]), (&l.top, &top[1]), None, RenameFlags::empty()).await.unwrap();
    let a = make_dir(&*l.model, &l.cx, &l.top, "a").await;
    let b = make_dir(&*l.model, &l.cx, &a, "b").await;
    make_file(&*l.model, &l.cx, &b, "q", "").await;
    let old = walk(&*l.model, &l.cx, &l.top, "old/b/c").await;
    for n in ["f", "g"] {
        l.model.unlink(&l.cx, &old.steps[2].fh, &name(n), None).await.unwrap();
    }
    l.model.rmdir(&l.cx, &old.steps[1].fh, &name("c")).await.unwrap();
    l.model.rmdir(&l.cx, &old.steps[0].fh, &name("b")).await.unwrap();
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/q").await;
    assert!(matches!(trail.stop, Stop::Complete), "{:?}", trail.stop);
    assert_eq!(trail.steps[0].fh, a);
}

/// Where a clock makes `change`, an equal value proves no names of a directory that changed
/// recently.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn coarse_change_proves_no_recent_names() {
    for (coarse, calls) in [(true, "walk 1"), (false, "getattr_many 1")] {
        let l = lab_with(MetadataCacheOptions { coarse_change: coarse, ..options() }, VALID).await;
        tree(&l).await;
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
        assert!(peek(&l, &l.cx, "a/b/c/none").is_some(), "within its time");
        tokio::time::advance(VALID).await;
        l.wire.take();
        walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
        assert_eq!(l.wire.take(), calls);
    }
}

/// A directory created by this client is known to be empty. Its look-ups and listings send no
/// requests until it expires.
#[tokio::test(start_paused = true)]
async fn new_directory_is_known_empty() {
    let l = lab().await;
    let d = make_dir(&*l.meta, &l.cx, &l.top, "new").await;
    l.wire.take();
    for i in 0..20 {
        let n = format!("f{i}");
        assert!(matches!(walk(&*l.meta, &l.cx, &d, &n).await.stop, Stop::Missing(_)));
        assert_eq!(l.wire.take(), "", "{i}");
        make_file(&*l.meta, &l.cx, &d, &n, "text").await;
        l.wire.take();
    }
    l.meta.unlink(&l.cx, &d, &name("f3"), None).await.unwrap();
    l.wire.take();
    assert!(matches!(walk(&*l.meta, &l.cx, &d, "f3").await.stop, Stop::Missing(_)));
    assert_eq!(l.wire.take(), "");
    let page = l.meta.readdir(&l.cx, &d, 0, [0; 8], 1 << 20, true).await.unwrap();
    assert_eq!((page.entries.len(), page.eof), (19, true));
    assert_eq!(l.wire.take(), "");
    // Another user's rights are requested.
    l.meta.readdir(&user(7), &d, 0, [0; 8], 1 << 20, true).await.unwrap();
    assert_ne!(l.wire.take(), "");
    // Another client's name is found when the directory has expired.
    make_file(&*l.model, &l.cx, &d, "theirs", "").await;
    tokio::time::advance(VALID).await;
    assert!(matches!(walk(&*l.meta, &l.cx, &d, "theirs").await.stop, Stop::Complete));
}

/// Names that a listing may lack, such as `.snapshot` and non-ASCII names, are looked up at the
/// server.
#[tokio::test(start_paused = true)]
async fn unlistable_names_are_looked_up() {
    let l = lab().await;
    tree(&l).await;
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    l.wire.take();
    for (n, calls) in [(".snapshot", "walk 1"), ("\u{e4}", "walk 1"), ("plain", "")] {
        walk(&*l.meta, &l.cx, &l.top, &format!("a/b/c/{n}")).await;
        assert_eq!(l.wire.take(), calls, "{n}");
    }
}

/// Under leases the small files of a directory are fetched ahead of their opens, in one request for
/// each directory.
#[tokio::test(start_paused = true)]
async fn leased_small_files_are_prefetched() {
    let l = lab_with(MetadataCacheOptions { prefetch: Prefetch::Small, ..options() }, VALID).await;
    forest(&l).await;
    l.wire.lease(true);
    // One request for the listing of each directory and one for its files. The first opens do not
    // know of leases yet. After expiry, one request for all directories.
    for (most, wait) in [(81, Duration::ZERO), (0, VALID), (1, Duration::ZERO)] {
        for d in 0..40 {
            let path = names(&format!("d{d}/none"));
            if peek(&l, &l.cx, &format!("d{d}/none")).is_none() {
                l.meta
                    .walk(&l.cx, PathRef { base: &l.top, path: &path }, WalkRequest::default())
                    .await
                    .unwrap();
            }
            let dir = peek(&l, &l.cx, &format!("d{d}")).unwrap().steps[0].fh.clone();
            for f in 0..5 {
                tokio::time::advance(Duration::from_millis(1)).await;
                let fresh = l.cx.fresh(Instant::now());
                assert_eq!(read_named(&*l.meta, &fresh, &dir, &format!("f{f}")).await.unwrap().1, "text");
            }
        }
        let calls = l.wire.total();
        assert!(calls <= most, "{calls} calls");
        assert_eq!(l.meta.stats().prefetch_wasted_bytes, 0);
        tokio::time::advance(wait).await;
    }
}

/// After expiry the look-up and open of a file that was only listed cost one request.
#[tokio::test(start_paused = true)]
async fn expired_listed_file_costs_one_request() {
    let l = lab().await;
    tree(&l).await;
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    for calls in ["walk 1", "getattr_many 1"] {
        tokio::time::advance(VALID).await;
        l.wire.take();
        let cx = l.cx.fresh(Instant::now());
        let want = WalkRequest { read_bytes: 65536, ..Default::default() };
        // As in the kernel client: a look-up of any age, and an open as fresh as that.
        let trail =
            l.meta.walk(&l.cx, PathRef { base: &l.top, path: &names("a/b/c/g") }, want).await.unwrap();
        let (dir, fh) = (trail.steps[2].fh.clone(), trail.steps[3].fh.clone());
        assert_eq!(read_named(&*l.meta, &cx, &dir, "g").await.unwrap(), (fh, "two".into()));
        assert_eq!(l.wire.take(), calls);
    }
}
