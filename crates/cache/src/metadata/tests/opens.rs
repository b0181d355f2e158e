//! Opens: the requests that they cost, by name and by filehandle.

use super::*;

/// A cold walk, open and read of a small file cost one request, which brings the bytes.
#[tokio::test(start_paused = true)]
async fn cold_open_costs_one_walk() {
    let l = lab().await;
    tree(&l).await;
    let path = names("a/b/c/f");
    let cx = l.cx.fresh(Instant::now());
    let want = WalkRequest { read_bytes: 65536, access: Access::READ, ..Default::default() };
    let trail = l.meta.walk(&cx, PathRef { base: &l.top, path: &path }, want).await.unwrap();
    let fh = trail.steps.last().unwrap().fh.clone();
    let opened = l.meta.open(&cx, PathRef::fh(&fh), &READ).await.unwrap();
    assert_eq!(opened.first.unwrap().data.into_bytes(), "one");
    let file = File { fh: &fh, open: Some(opened.open) };
    assert_eq!(l.meta.read(&l.cx, file, 1, 10).await.unwrap().data.into_bytes(), "ne");
    l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
    assert_eq!(l.wire.take(), "walk 1");
    assert_eq!(l.meta.stats().virtual_opens, 1);
}

/// Under close-to-open consistency a warm open costs one GETATTR. An open without an age limit
/// sends no request.
/// Promise: 7
#[tokio::test(start_paused = true)]
async fn warm_open_costs_one_getattr() {
    let l = lab().await;
    tree(&l).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps.pop().unwrap().fh;
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "one");
    tokio::time::advance(Duration::from_secs(1)).await;
    l.wire.take();
    let fresh = l.cx.fresh(Instant::now());
    assert_eq!(read_all(&*l.meta, &fresh, &fh).await.unwrap(), "one");
    assert_eq!(l.wire.take(), "getattr 1");
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "one");
    assert_eq!(l.wire.take(), "");
    // Another client writes a new version.
    make_file(&*l.model, &l.cx, &walk(&*l.model, &l.cx, &l.top, "a/b/c").await.steps[2].fh, "f", "other")
        .await;
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "one", "no age limit was passed");
    let fresh = l.cx.fresh(Instant::now());
    assert_eq!(read_all(&*l.meta, &fresh, &fh).await.unwrap(), "other");
    assert_eq!(l.model.open_count(), 0);
}

/// A warm open by name costs one request. It opens the file that another client has put under the
/// name.
/// Promise: 7
#[tokio::test(start_paused = true)]
async fn named_open_costs_one_request() {
    for (stateless, moved) in [(false, "open 1, walk 1"), (true, "open 1, walk 1")] {
        let l = lab_with(MetadataCacheOptions { stateless_opens: stateless, ..options() }, VALID).await;
        tree(&l).await;
        let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
        let old = read_named(&*l.meta, &l.cx, &c, "f").await.unwrap().0;
        tokio::time::advance(Duration::from_secs(1)).await;
        l.wire.take();
        let fresh = l.cx.fresh(Instant::now());
        assert_eq!(read_named(&*l.meta, &fresh, &c, "f").await.unwrap(), (old.clone(), "one".into()));
        assert_eq!(l.wire.take(), "walk 1");
        assert_eq!(read_named(&*l.meta, &l.cx, &c, "f").await.unwrap().1, "one");
        assert_eq!(l.wire.take(), "", "without close-to-open validity decides");
        let new = rotate(&l, &c, "f", "other").await;
        tokio::time::advance(Duration::from_secs(1)).await;
        let fresh = l.cx.fresh(Instant::now());
        let opened = l.meta.open(&fresh, PathRef::name(&c, &name("f")), &READ).await.unwrap();
        assert_eq!(l.wire.take(), moved);
        assert_eq!(opened.node.fh, new);
        l.meta.close(&l.cx, &new, opened.open).await.unwrap();
        // A look-up that must be as fresh as the open is answered from memory.
        let again = l.meta.peek(&fresh, PathRef::name(&c, &name("f"))).unwrap();
        assert_eq!(again.steps[0].fh, new);
        assert_eq!(read_named(&*l.meta, &fresh, &c, "f.1").await.unwrap().1, "one");
        assert_eq!(read_all(&*l.meta, &fresh, &old).await.unwrap(), "one");
        // Another client removes the name.
        l.model.unlink(&l.cx, &c, &name("f"), None).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let fresh = l.cx.fresh(Instant::now());
        let gone = read_named(&*l.meta, &fresh, &c, "f").await.unwrap_err();
        assert_eq!(gone.errno, libc::ENOENT);
        assert!(matches!(l.meta.peek(&l.cx, PathRef::name(&c, &name("f"))).unwrap().stop, Stop::Missing(_)));
        assert_eq!(l.model.open_count(), 0);
    }
}

/// An open for writing, or of a large file, finds the present object of its name in one round trip.
/// A stateless open of a replaced file may fail with ESTALE.
#[tokio::test(start_paused = true)]
async fn big_file_open_follows_its_name() {
    let write = OpenHow { access: OpenAccess::WRITE, first_bytes: 0, ..READ };
    let big = "x".repeat(100_000);
    for (stateless, how, calls) in [
        (false, READ, "open 1"),
        (true, READ, "open 1, walk 1"),
        (false, write.clone(), "open 1"),
        (true, write, "open 1, walk 1"),
    ] {
        let l = lab_with(MetadataCacheOptions { stateless_opens: stateless, ..options() }, VALID).await;
        let old = make_file(&*l.model, &l.cx, &l.top, "log", &big).await;
        walk(&*l.meta, &l.cx, &l.top, "log").await;
        tokio::time::advance(Duration::from_secs(1)).await;
        l.wire.take();
        let at = name("log");
        let fresh = l.cx.fresh(Instant::now());
        let opened = l.meta.open(&fresh, PathRef::name(&l.top, &at), &how).await.unwrap();
        assert_eq!(l.wire.take(), calls);
        assert_eq!(opened.node.fh, old);
        l.meta.close(&l.cx, &old, opened.open).await.unwrap();
        let new = rotate(&l, &l.top, "log", &big).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        let fresh = l.cx.fresh(Instant::now());
        match l.meta.open(&fresh, PathRef::name(&l.top, &at), &how).await {
            Ok(opened) => {
                assert_eq!(opened.node.fh, new);
                l.meta.close(&l.cx, &new, opened.open).await.unwrap();
            }
            Err(e) => assert!(stateless && e.errno == libc::ESTALE, "{e}"),
        }
        l.wire.take();
        assert_eq!(l.meta.peek(&fresh, PathRef::name(&l.top, &at)).unwrap().steps[0].fh, new);
        assert_eq!(l.model.open_count(), 0);
    }
}

/// A lease on a file covers its name only if the lease was held when the name was proven.
/// Promise: 7
#[tokio::test(start_paused = true)]
async fn lease_covers_only_proven_names() {
    let l = lab().await;
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    read_named(&*l.meta, &l.cx, &c, "f").await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    // The lease comes without the name: another client may have renamed the file.
    l.wire.lease(true);
    let fh = l.meta.child_of(&c, &name("f")).unwrap();
    let fresh = l.cx.fresh(Instant::now());
    l.meta.getattr(&fresh, File { fh: &fh, open: None }).await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    l.wire.take();
    for calls in ["walk 1", "", ""] {
        tokio::time::advance(VALID * 2).await;
        let fresh = l.cx.fresh(Instant::now());
        assert_eq!(read_named(&*l.meta, &fresh, &c, "f").await.unwrap().1, "one");
        assert_eq!(l.wire.take(), calls);
    }
    l.wire.upcalls.get().unwrap().revoke(&fh).await;
    rotate(&l, &c, "f", "new").await;
    let fresh = l.cx.fresh(Instant::now());
    assert_eq!(read_named(&*l.meta, &fresh, &c, "f").await.unwrap().1, "new");
}

/// An open that wants no first bytes fetches none.
#[tokio::test(start_paused = true)]
async fn open_fetches_no_unwanted_bytes() {
    let l = lab().await;
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    let fresh = l.cx.fresh(Instant::now());
    let how = OpenHow { first_bytes: 0, ..READ };
    let opened = l.meta.open(&fresh, PathRef::name(&c, &name("f")), &how).await.unwrap();
    l.meta.close(&l.cx, &opened.node.fh, opened.open).await.unwrap();
    assert_eq!(l.meta.contents.memory_bytes(), 0);
    assert_eq!(l.model.open_count(), 0);
}

/// Under a lease opens and reads send no request. After the withdrawal of one lease or all leases
/// they do.
/// Promise: 8a
#[tokio::test(start_paused = true)]
async fn lease_saves_requests_until_withdrawn() {
    let l = lab().await;
    tree(&l).await;
    l.wire.lease(true);
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps.pop().unwrap().fh;
    read_all(&*l.meta, &l.cx, &fh).await.unwrap();
    tokio::time::advance(VALID * 10).await;
    l.wire.take();
    let fresh = l.cx.fresh(Instant::now());
    assert_eq!(read_all(&*l.meta, &fresh, &fh).await.unwrap(), "one");
    assert!(l.meta.peek(&fresh, PathRef::fh(&fh)).is_some());
    assert_eq!(l.wire.take(), "");
    l.wire.upcalls.get().unwrap().revoke(&fh).await;
    assert!(l.meta.peek(&l.cx, PathRef::fh(&fh)).is_none());
    read_all(&*l.meta, &fresh, &fh).await.unwrap();
    assert_ne!(l.wire.take(), "");
    // All leases are withdrawn at once.
    assert!(l.meta.peek(&fresh, PathRef::fh(&fh)).is_some());
    l.wire.upcalls.get().unwrap().revoke_all().await;
    assert!(l.meta.peek(&l.cx, PathRef::fh(&fh)).is_none());
}

/// The open of a large file brings its first bytes. One READ brings the others.
#[tokio::test(start_paused = true)]
async fn big_file_open_brings_first_bytes() {
    let l = lab().await;
    let text = "x".repeat(100_000);
    let fh = make_file(&*l.model, &l.cx, &l.top, "big", &text).await;
    walk(&*l.meta, &l.cx, &l.top, "big").await;
    tokio::time::advance(Duration::from_secs(1)).await;
    l.wire.take();
    let fresh = l.cx.fresh(Instant::now());
    assert_eq!(read_all(&*l.meta, &fresh, &fh).await.unwrap().len(), 100_000);
    assert_eq!(l.wire.take(), "close 1, open 1, read 1");
}

/// A virtual open becomes real before a local call removes or replaces its file, or takes the read
/// permission away. Its reads continue.
#[tokio::test(start_paused = true)]
async fn virtual_open_survives_local_removal() {
    let l = lab().await;
    let big = "y".repeat(100_000);
    let me = user(7);
    for (n, how) in [("gone", 0), ("locked", 1), ("replaced", 2)] {
        let fh = make_file(&*l.model, &l.cx, &l.top, n, &big).await;
        walk(&*l.meta, &me, &l.top, n).await;
        l.meta.access(&me, &fh, Access::READ).await.unwrap();
        let opened = l.meta.open(&me, PathRef::fh(&fh), &READ).await.unwrap();
        assert_eq!(l.model.open_count(), 0, "virtual");
        match how {
            0 => drop(l.meta.unlink(&l.cx, &l.top, &name(n), None).await.unwrap()),
            1 => drop(l.meta.setattr(&l.cx, File { fh: &fh, open: None }, &mode(0o600)).await.unwrap()),
            _ => {
                make_file(&*l.model, &l.cx, &l.top, "other", "").await;
                let (from, to) = (name("other"), name(n));
                l.meta
                    .rename(&l.cx, (&l.top, &from), (&l.top, &to), Some(&fh), RenameFlags::empty())
                    .await
                    .unwrap();
            }
        }
        let file = File { fh: &fh, open: Some(opened.open) };
        assert_eq!(l.meta.read(&me, file, 99_990, 100).await.unwrap().data.len(), 10, "{n}");
        l.meta.close(&me, &fh, opened.open).await.unwrap();
    }
    assert_eq!(l.model.open_count(), 0);
    assert_eq!(l.meta.stats().virtual_made_real, 3);
    assert_eq!(l.meta.opens.len(), 0);
}

/// A virtual open that relied on a lease becomes real before the withdrawal of the lease ends. So
/// the server keeps the file for it when the waiting client removes the file.
/// Promise: S7a
#[tokio::test(start_paused = true)]
async fn virtual_open_outlives_lease_and_name() {
    let l = lab().await;
    tree(&l).await;
    l.wire.lease(true);
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    let (c, fh) = (trail.steps[2].fh.clone(), trail.steps[3].fh.clone());
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "one");
    l.wire.take();
    let opened = l.meta.open(&l.cx, PathRef::fh(&fh), &READ).await.unwrap();
    assert_eq!(l.wire.take(), "");
    l.wire.lease(false);
    l.wire.upcalls.get().unwrap().revoke(&fh).await;
    assert_eq!(l.wire.take(), "open 1");
    l.model.unlink(&l.cx, &c, &name("f"), None).await.unwrap();
    let file = File { fh: &fh, open: Some(opened.open) };
    assert_eq!(l.meta.read(&l.cx, file, 0, 10).await.unwrap().data.into_bytes(), "one");
    l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
    assert_eq!(l.model.open_count(), 0);
}
