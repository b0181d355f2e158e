//! Equal questions of many callers at once, and the directory above.

use super::*;
use hither_vfs::{Access, Attrs};
use std::pin::Pin;

type Answering = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A question about a directory, for a caller.
type Question = fn(Arc<MetadataCache>, RequestContext, Fh) -> Answering;

const QUESTIONS: [(&str, Question, &str); 3] = [
    (
        "listing",
        |meta, cx, fh| {
            Box::pin(async move {
                let page = meta.readdir(&cx, &fh, 0, [0; 8], 1 << 20, true).await.unwrap();
                assert_eq!(page.entries.iter().filter(|e| e.name.as_bytes() == b"f").count(), 1);
            })
        },
        "list_many 1",
    ),
    (
        "rights",
        |meta, cx, fh| {
            Box::pin(async move {
                assert_eq!(meta.access(&cx, &fh, Access::LOOKUP).await.unwrap(), Access::LOOKUP);
            })
        },
        "walk 1",
    ),
    // The first request was sent before the other calls began. One more suffices for all of them.
    (
        "fresh attributes",
        |meta, cx, fh| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let began = Instant::now();
                let attrs = fresh(&meta, &cx, &fh).await;
                assert!(attrs.asked >= began, "older than the call");
            })
        },
        "getattr 2",
    ),
];

async fn fresh(meta: &MetadataCache, cx: &RequestContext, fh: &Fh) -> Attrs {
    meta.getattr(&cx.fresh(Instant::now()), File { fh, open: None }).await.unwrap()
}

/// Twenty concurrent walks of one path send one request.
#[tokio::test(start_paused = true)]
async fn concurrent_walks_share_one_request() {
    let model = Arc::new(Model::new(env(), VALID, 1 << 30));
    let wire = Wire::slow(model.clone(), Some(5), Duration::from_millis(50));
    let meta = MetadataCache::new(wire.clone(), options(), env());
    let cx = root_cx();
    let top = meta.root(&cx).await.unwrap().fh;
    make_dir(&*model, &cx, &top, "d").await;
    wire.take();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (meta, cx, top) = (meta.clone(), cx.clone(), top.clone());
        all.spawn(async move { walk(&*meta, &cx, &top, "d/none").await.steps.len() });
    }
    assert_eq!(all.join_all().await, [1; 20]);
    assert_eq!(wire.take(), "walk 1");
    assert_eq!(meta.stats().shared_walks, 19);
}

/// Twenty callers with the same question send one request, or two where the answer must be as new
/// as the call.
#[tokio::test(start_paused = true)]
async fn callers_share_requests() {
    for (what, question, wanted) in QUESTIONS {
        let model = Arc::new(Model::new(env(), VALID, 1 << 30));
        let wire = Wire::slow(model.clone(), Some(5), Duration::from_millis(50));
        let meta = MetadataCache::new(wire.clone(), options(), env());
        let cx = root_cx();
        let top = meta.root(&cx).await.unwrap().fh;
        let dir = make_dir(&*model, &cx, &top, "d").await;
        make_file(&*model, &cx, &dir, "f", "text").await;
        wire.take();
        let mut all = tokio::task::JoinSet::new();
        for n in 0..20 {
            let (asked, began) = (question(meta.clone(), cx.clone(), dir.clone()), n);
            all.spawn(async move {
                tokio::time::sleep(Duration::from_micros(began)).await;
                asked.await;
            });
        }
        all.join_all().await;
        assert_eq!(wire.take(), wanted, "{what}");
    }
}

/// The directory above a directory is known from the names in it. Own renames show at once, and
/// those of other clients after the validity of names.
#[tokio::test(start_paused = true)]
async fn parent_is_known_by_name() {
    let l = lab().await;
    let (a, b) =
        (make_dir(&*l.model, &l.cx, &l.top, "a").await, make_dir(&*l.model, &l.cx, &l.top, "b").await);
    make_dir(&*l.model, &l.cx, &a, "d").await;
    let (a_d, b_d) = ((&a, &name("d")), (&b, &name("d")));
    let dir = walk(&*l.meta, &l.cx, &l.top, "a/d").await.steps.pop().unwrap().fh;
    walk(&*l.meta, &l.cx, &l.top, "b").await;
    l.meta.access(&l.cx, &dir, Access::LOOKUP).await.unwrap();
    l.wire.take();
    let above = async || l.meta.parent(&l.cx, &dir).await.map(|node| node.fh).unwrap();
    assert_eq!(above().await, a);
    assert_eq!(l.wire.take(), "", "the walk brought it");
    l.meta.rename(&l.cx, a_d, b_d, None, RenameFlags::empty()).await.unwrap();
    assert_eq!(above().await, b);
    l.model.rename(&l.cx, b_d, a_d, None, RenameFlags::empty()).await.unwrap();
    tokio::time::advance(VALID + Duration::from_secs(1)).await;
    assert_eq!(above().await, a);

    // Another user has to prove the right to search the directory.
    l.model.setattr(&l.cx, File { fh: &dir, open: None }, &mode(0o700)).await.unwrap();
    tokio::time::advance(VALID + Duration::from_secs(1)).await;
    assert_eq!(above().await, a);
    let refused = l.meta.parent(&user(7), &dir).await.map(|node| node.fh);
    assert_eq!(refused, l.model.parent(&user(7), &dir).await.map(|node| node.fh));
}
