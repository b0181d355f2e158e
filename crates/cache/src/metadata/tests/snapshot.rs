//! Metadata restored after a restart saves requests. It is not used before the server has confirmed
//! it.

use super::*;

/// Another daemon with the metadata of the first one, on a wire of its own.
fn restarted(
    l: &Lab,
    options: MetadataCacheOptions,
    near: Option<Arc<dyn Near>>,
) -> (Arc<Wire>, Arc<MetadataCache>) {
    let wire = Wire::new(l.model.clone());
    let meta = MetadataCache::new(wire.clone(), options, env());
    if let Some(near) = near {
        meta.keeper(near);
    }
    assert!(meta.restore_snapshot(&l.meta.take_snapshot(1 << 20)) > 0);
    (wire, meta)
}

struct All;

impl Near for All {
    fn has(&self, _: &Fh) -> bool {
        true
    }

    fn has_all(&self, _: &Fh, _: u64) -> bool {
        true
    }
}

/// After a restart a remembered path is confirmed as a whole, with the other names of its
/// directory. No name is answered without that request.
#[tokio::test(start_paused = true)]
async fn remembered_path_is_confirmed_at_once() {
    let l = lab().await;
    tree(&l).await;
    let before = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/g").await;
    let (wire, meta) = restarted(&l, options(), None);
    // Nothing is answered from restored metadata without a request.
    assert!(meta.peek(&l.cx, PathRef { base: &l.top, path: &names("a/b/c/f") }).is_none());
    assert!(meta.peek(&l.cx, PathRef { base: &l.top, path: &names("a/b/c/nothing") }).is_none());
    let after = walk(&*meta, &l.cx, &l.top, "a/b/c/f").await;
    assert_eq!(wire.take(), "getattr_many 1, revalidate_many 1");
    assert_eq!(before.steps.last().unwrap().fh, after.steps.last().unwrap().fh);
    // The same requests brought the other names of the directory, and confirmed its absent names.
    assert!(walk(&*meta, &l.cx, &l.top, "a/b/c/g").await.steps.len() == 4);
    assert!(matches!(walk(&*meta, &l.cx, &l.top, "a/b/c/nothing").await.stop, Stop::Missing(_)));
    assert_eq!(wire.take(), "");
}

/// Names that another client changed during a restart lead to the present objects.
/// Promise: 11b
#[tokio::test(start_paused = true)]
async fn changes_during_restart_are_noticed() {
    let l = lab().await;
    tree(&l).await;
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    let (c, f) = (trail.steps[2].fh.clone(), trail.steps[3].fh.clone());
    let pieces = l.meta.take_snapshot(1 << 20);
    // Another file takes the name, and a new file is created.
    let g = walk(&*l.meta, &l.cx, &l.top, "a/b/c/g").await.steps[3].fh.clone();
    l.model.rename(&l.cx, (&c, &name("g")), (&c, &name("f")), None, RenameFlags::empty()).await.unwrap();
    make_file(&*l.model, &l.cx, &c, "new", "three").await;
    let meta = MetadataCache::new(Wire::new(l.model.clone()), options(), env());
    assert!(meta.restore_snapshot(&pieces) > 0);
    let now = walk(&*meta, &l.cx, &l.top, "a/b/c/f").await;
    assert_eq!(now.steps[3].fh, g);
    assert_ne!(now.steps[3].fh, f);
    assert_eq!(walk(&*meta, &l.cx, &l.top, "a/b/c/new").await.steps.len(), 4);
    assert!(matches!(walk(&*meta, &l.cx, &l.top, "a/b/c/g").await.stop, Stop::Missing(_)));
}

/// A server with a file below a directory of this mode. Two such servers differ in nothing else,
/// not even in `change`.
async fn server(bits: u32) -> (Arc<Model>, Fh) {
    let model = Arc::new(Model::new(env(), VALID, 1 << 40));
    let cx = root_cx();
    let top = model.root(&cx).await.unwrap().fh;
    let dir = model.mkdir(&cx, &top, &name("p"), &mode(bits)).await.unwrap().node.fh;
    make_file(&*model, &cx, &dir, "f", "secret").await;
    (model, top)
}

/// Remembered access rights are requested from the server again. No user gets the rights of another
/// user.
/// Promise: 11b
#[tokio::test(start_paused = true)]
async fn remembered_rights_are_requested_again() {
    let (model, top) = server(0o755).await;
    tokio::time::advance(Duration::from_secs(100)).await;
    let (may, other) = (user(7), user(8));
    let meta = MetadataCache::new(Wire::new(model.clone()), options(), env());
    assert_eq!(walk(&*meta, &may, &top, "p/f").await.steps.len(), 2);
    let pieces = meta.take_snapshot(1 << 20);
    let wire = Wire::new(model.clone());
    let meta = MetadataCache::new(wire.clone(), options(), env());
    assert!(meta.restore_snapshot(&pieces) > 0);
    // A user unknown before the restart walks as usual.
    assert_eq!(walk(&*meta, &other, &top, "p/f").await.steps.len(), 2);
    assert_eq!(wire.take(), "walk 1");
    // A user known before the restart is not trusted either: the rights are requested.
    assert_eq!(walk(&*meta, &may, &top, "p/f").await.steps.len(), 2);
    let asked = wire.take();
    assert!(asked.contains("revalidate_many 1"), "{asked}");
    // The server's present answer counts, even if `change` is equal.
    let (strict, strict_top) = server(0o700).await;
    assert_eq!(strict_top, top);
    tokio::time::advance(Duration::from_secs(100)).await;
    let meta = MetadataCache::new(Wire::new(strict.clone()), options(), env());
    assert!(meta.restore_snapshot(&pieces) > 0);
    let trail = walk(&*meta, &may, &top, "p/f").await;
    assert_eq!(trail.steps.len(), 1, "{trail:?}");
    assert!(matches!(trail.stop, Stop::Failed(_)));
    assert!(meta.peek(&may, PathRef { base: &top, path: &names("p/f") }).is_none());
}

/// Where opens bring leases, remembered files are opened together in one request after a restart.
#[tokio::test(start_paused = true)]
async fn remembered_files_open_for_leases() {
    let l = lab().await;
    tree(&l).await;
    for file in ["f", "g"] {
        walk(&*l.meta, &l.cx, &l.top, &format!("a/b/c/{file}")).await;
    }
    let (wire, meta) = restarted(&l, options(), Some(Arc::new(All)));
    wire.lease(true);
    let c = walk(&*meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    assert_eq!(wire.take(), "getattr_many 1, read_many 1, revalidate_many 1".replace("getattr_many 1, ", ""));
    tokio::time::advance(Duration::from_secs(5)).await;
    for file in ["f", "g"] {
        let cx = l.cx.fresh(Instant::now());
        let opened =
            meta.open(&cx, PathRef::name(&c, &name(file)), &OpenHow { first_bytes: 0, ..READ }).await;
        let asked = wire.take();
        // The bytes come from the layer below. The open costs no request there.
        assert!(opened.is_ok() && (asked.is_empty() || asked == "open 1"), "{asked}");
    }
}

/// A remembered directory is listed after its entries are confirmed in at most two requests.
#[tokio::test(start_paused = true)]
async fn remembered_directory_lists_after_confirmation() {
    let l = lab().await;
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c").await.steps[2].fh.clone();
    let list = async |meta: &MetadataCache| {
        let page = meta.readdir(&l.cx, &c, 0, [0; 8], 4096, true).await.unwrap();
        assert!(page.eof);
        let mut all: Vec<_> = page.entries.into_iter().map(|e| (e.name, e.node.unwrap().fh)).collect();
        all.sort();
        all
    };
    let before = list(&l.meta).await;
    assert_eq!(before.len(), 2);
    let (wire, meta) = restarted(&l, options(), None);
    walk(&*meta, &l.cx, &l.top, "a/b/c").await;
    wire.take();
    assert_eq!(list(&meta).await, before);
    assert!(wire.total() <= 2);
    assert_eq!(list(&meta).await, before);
    assert_eq!(wire.total(), 0);
}

/// After a restart 10,000 remembered files are confirmed in at most 24 requests.
#[tokio::test(start_paused = true)]
async fn confirmation_batches_many_files() {
    let l = lab().await;
    for d in 0..100 {
        let dir = make_dir(&*l.model, &l.cx, &l.top, &format!("d{d}")).await;
        for f in 0..100 {
            l.model
                .mknod(&l.cx, &dir, &name(&format!("f{f}")), &Special::Regular, &mode(0o644))
                .await
                .unwrap();
        }
    }
    tokio::time::advance(Duration::from_secs(100)).await;
    let all: Vec<_> = (0..100).flat_map(|d| (0..100).map(move |f| format!("d{d}/f{f}"))).collect();
    for path in &all {
        assert_eq!(walk(&*l.meta, &l.cx, &l.top, path).await.steps.len(), 2);
    }
    let options = MetadataCacheOptions { memory_bytes: 64 << 20, ..options() };
    let (wire, meta) = restarted_all(&l, options);
    for path in &all {
        assert_eq!(walk(&*meta, &l.cx, &l.top, path).await.steps.len(), 2);
    }
    let questions = wire.total();
    assert!(questions <= 24, "{questions}");
}

/// A shell's `*/f` after a restart. The listing of the top brings the attributes of its
/// directories. The rights on these and the files in them come in batches, although each path was
/// only walked once before.
#[tokio::test(start_paused = true)]
async fn paths_below_listing_confirm_together() {
    // With listings ahead of their use and without; a directory of one page and of many.
    for (dirs, ahead, most) in [(60, true, 12), (200, true, 30), (60, false, 12), (200, false, 30)] {
        below_a_listing(dirs, ahead, most).await;
    }
}

async fn below_a_listing(dirs: usize, ahead: bool, most: usize) {
    let l = lab().await;
    for d in 0..dirs {
        let dir = make_dir(&*l.model, &l.cx, &l.top, &format!("d{d}")).await;
        for f in ["f", "g"] {
            l.model.mknod(&l.cx, &dir, &name(f), &Special::Regular, &mode(0o644)).await.unwrap();
        }
    }
    tokio::time::advance(Duration::from_secs(100)).await;
    let list = async |meta: &MetadataCache| {
        let (mut cookie, mut verifier, mut found) = (0, [0; 8], 0);
        loop {
            let page = meta.readdir(&l.cx, &l.top, cookie, verifier, 4096, true).await.unwrap();
            found += page.entries.len();
            (cookie, verifier) = (page.entries.last().map_or(cookie, |e| e.cookie), page.verifier);
            if page.eof {
                return found;
            }
        }
    };
    let all = async |meta: &MetadataCache| {
        for d in 0..dirs {
            assert_eq!(walk(meta, &l.cx, &l.top, &format!("d{d}/f")).await.steps.len(), 2);
        }
    };
    assert_eq!(list(&l.meta).await, dirs);
    all(&l.meta).await;
    let listing_bytes = if ahead { options().listing_bytes } else { 0 };
    let (wire, meta) = restarted(&l, MetadataCacheOptions { listing_bytes, ..options() }, None);
    assert_eq!(list(&meta).await, dirs);
    wire.take();
    all(&meta).await;
    let questions = wire.total();
    assert!(questions <= most, "{dirs} directories, {ahead}: {questions}");
}

fn restarted_all(l: &Lab, options: MetadataCacheOptions) -> (Arc<Wire>, Arc<MetadataCache>) {
    let wire = Wire::new(l.model.clone());
    let meta = MetadataCache::new(wire.clone(), options, env());
    assert!(meta.restore_snapshot(&l.meta.take_snapshot(64 << 20)) > 10_000);
    (wire, meta)
}

/// A truncated piece of remembered metadata costs requests and causes no wrong answer.
/// Promise: 11b
#[tokio::test(start_paused = true)]
async fn damaged_pieces_cost_requests_only() {
    let l = lab().await;
    tree(&l).await;
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    let pieces = l.meta.take_snapshot(1 << 20);
    for cut in 0..pieces[1].len() {
        let mut torn = pieces.clone();
        torn[1].truncate(cut);
        let meta = MetadataCache::new(Wire::new(l.model.clone()), options(), env());
        meta.restore_snapshot(&torn);
        let trail =
            meta.walk(&l.cx, PathRef { base: &l.top, path: &names("a/b/c/f") }, WalkRequest::default()).await;
        assert_eq!(trail.unwrap().steps.len(), 4);
    }
}
