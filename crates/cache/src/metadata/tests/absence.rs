//! Inferred absences: how long they are believed, and their cost.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A server with the directory `d`, of which the cache knows all names: the cache listed it or made
/// it.
async fn whole(options: MetadataCacheOptions, made_here: bool) -> (Lab, Fh) {
    let l = lab_with(options, VALID).await;
    let dir = if made_here {
        make_dir(&*l.meta, &l.cx, &l.top, "d").await
    } else {
        let dir = make_dir(&*l.model, &l.cx, &l.top, "d").await;
        make_file(&*l.model, &l.cx, &dir, "known", "").await;
        tokio::time::advance(VALID * 2).await;
        walk(&*l.meta, &l.cx, &l.top, "d/known").await;
        dir
    };
    l.wire.take();
    (l, dir)
}

async fn is_there(l: &Lab, dir: &Fh, n: &str) -> bool {
    let at = name(n);
    let trail = match l.meta.peek(&l.cx, PathRef::name(dir, &at)) {
        Some(trail) => trail,
        None => l.meta.walk(&l.cx, PathRef::name(dir, &at), WalkRequest::default()).await.unwrap(),
    };
    assert!(matches!(trail.stop, Stop::Complete | Stop::Missing(_)), "{:?}", trail.stop);
    !trail.steps.is_empty()
}

fn cases() -> impl Iterator<Item = (MetadataCacheOptions, bool)> {
    let all = (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0));
    all.map(|(coarse_change, stateless_opens, made_here)| {
        (MetadataCacheOptions { coarse_change, stateless_opens, ..options() }, made_here)
    })
}

/// A second after the directory was last confirmed, the look-up of a never requested name finds
/// another client's file. Its one request confirms all other names for another second.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn unrequested_absence_is_confirmed_again() {
    for (options, made_here) in cases() {
        let shown = format!("{options:?}, made here: {made_here}");
        let (l, dir) = whole(options, made_here).await;
        assert!(!is_there(&l, &dir, "first").await, "{shown}");
        assert_eq!(l.wire.take(), "", "{shown}: within the second");
        tokio::time::advance(SECOND).await;
        for n in 0..20 {
            assert!(!is_there(&l, &dir, &format!("none{n}")).await, "{shown}");
        }
        let proven = l.meta.options.stateless_opens
            && l.meta.table.with(&dir, |_, o| o.dir().unwrap().unproven).unwrap();
        let asked = l.wire.take();
        assert!(asked == "walk 1" || proven, "{shown}: {asked}");
        make_file(&*l.model, &l.cx, &dir, "theirs", "").await;
        make_file(&*l.model, &l.cx, &dir, "more", "").await;
        tokio::time::advance(SECOND).await;
        assert!(is_there(&l, &dir, "theirs").await, "{shown}");
        assert_eq!(l.wire.take(), "walk 1", "{shown}");
        assert!(is_there(&l, &dir, "more").await, "{shown}");
    }
}

/// A name that was answered from a recent confirmation was not asked for. It is found a second
/// later, although a call has asked for it here.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn inferred_answer_is_no_request() {
    for (options, made_here) in cases() {
        let (l, dir) = whole(options, made_here).await;
        assert!(!is_there(&l, &dir, "theirs").await);
        make_file(&*l.model, &l.cx, &dir, "theirs", "").await;
        tokio::time::advance(SECOND / 2).await;
        assert!(!is_there(&l, &dir, "theirs").await, "the same confirmation");
        tokio::time::advance(SECOND).await;
        assert!(is_there(&l, &dir, "theirs").await, "made here: {made_here}");
    }
}

/// A looked-up name is believed absent as long as the directory's attributes hold. This includes
/// answers inferred from a listing that was confirmed for the look-up.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn lookup_absence_lasts_with_attributes() {
    for (options, made_here) in cases() {
        let (l, dir) = whole(options, made_here).await;
        tokio::time::advance(SECOND * 2).await;
        assert!(!is_there(&l, &dir, "asked").await);
        tokio::time::advance(SECOND * 10).await;
        l.wire.take();
        assert!(!is_there(&l, &dir, "asked").await);
        assert_eq!(l.wire.take(), "");
        let at = name("asked");
        let known = l.meta.peek(&l.cx, PathRef::name(&dir, &at)).unwrap();
        let Stop::Missing(Validity::Until(until)) = known.stop else { panic!("{:?}", known.stop) };
        assert!(until <= Instant::now() + VALID - SECOND * 10);
    }
}

/// `acnegmax` limits both kinds of absence. The time counts from the last request that confirmed
/// the directory.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn absence_has_its_own_limit() {
    let limits = MetadataCacheOptions { absent_max: SECOND * 2, inferred_max: SECOND * 2, ..options() };
    let (l, dir) = whole(limits, false).await;
    assert!(!is_there(&l, &dir, "asked").await);
    tokio::time::advance(SECOND).await;
    for n in ["asked", "not asked"] {
        let at = name(n);
        let Stop::Missing(Validity::Until(until)) =
            l.meta.peek(&l.cx, PathRef::name(&dir, &at)).unwrap().stop
        else {
            panic!()
        };
        assert!(until <= Instant::now() + SECOND, "{n}");
    }
    make_file(&*l.model, &l.cx, &dir, "asked", "").await;
    make_file(&*l.model, &l.cx, &dir, "never asked", "").await;
    tokio::time::advance(SECOND).await;
    assert!(is_there(&l, &dir, "asked").await && is_there(&l, &dir, "never asked").await);
    let none = MetadataCacheOptions { absent_max: Duration::ZERO, inferred_max: Duration::ZERO, ..options() };
    let (l, dir) = whole(none, false).await;
    for _ in 0..2 {
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!is_there(&l, &dir, "a").await);
    }
    assert_eq!(l.wire.take(), "walk 2");
}

/// Concurrent look-ups wait for one request.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn one_confirmation_serves_a_burst() {
    let (l, dir) = whole(options(), false).await;
    tokio::time::advance(SECOND * 2).await;
    let slow = Wire::slow(l.wire.clone(), Some(7), Duration::from_millis(300));
    let meta = MetadataCache::new(slow, options(), env());
    let l = Lab { meta, ..l };
    walk(&*l.meta, &l.cx, &l.top, "d/known").await;
    tokio::time::advance(SECOND * 2).await;
    l.wire.take();
    let names: Vec<Name> = (0..30).map(|n| name(&format!("none{n}"))).collect();
    let walks = names.iter().map(|n| l.meta.walk(&l.cx, PathRef::name(&dir, n), WalkRequest::default()));
    let mut running: Vec<_> = walks.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        running.retain_mut(|walk| match walk.as_mut().poll(cx) {
            std::task::Poll::Ready(trail) => {
                assert!(matches!(trail.unwrap().stop, Stop::Missing(_)));
                false
            }
            std::task::Poll::Pending => true,
        });
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    assert_eq!(l.wire.take(), "walk 1");
}

/// The search for a name along a path of directories costs a look-up and one request for the other
/// directories.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn search_path_is_confirmed_at_once() {
    let l = lab().await;
    let mut dirs = Vec::new();
    for n in 0..10 {
        let dir = make_dir(&*l.model, &l.cx, &l.top, &format!("d{n}")).await;
        make_file(&*l.model, &l.cx, &dir, "known", "").await;
        dirs.push(dir);
    }
    tokio::time::advance(VALID * 2).await;
    for n in 0..10 {
        walk(&*l.meta, &l.cx, &l.top, &format!("d{n}/known")).await;
    }
    for round in 0..5 {
        tokio::time::advance(SECOND * 2).await;
        l.wire.take();
        for dir in &dirs {
            assert!(!is_there(&l, dir, &format!("none{round}")).await);
        }
        assert_eq!(l.wire.take(), "getattr_many 1, walk 1", "round {round}");
    }
}

/// The look-up of a call that makes the name sends no request, because the server decides. Its
/// answer holds for that call alone.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn create_lookup_sends_no_request() {
    for (options, made_here) in cases() {
        let (l, dir) = whole(options, made_here).await;
        tokio::time::advance(SECOND * 5).await;
        make_file(&*l.model, &l.cx, &dir, "theirs", "").await;
        let at = name("theirs");
        let makes = RequestContext { makes_last: true, ..l.cx.clone() };
        let trail = l.meta.walk(&makes, PathRef::name(&dir, &at), WalkRequest::default()).await.unwrap();
        assert!(matches!(trail.stop, Stop::Missing(Validity::Once)), "{:?}", trail.stop);
        assert_eq!(l.wire.take(), "");
        assert!(is_there(&l, &dir, "theirs").await);
        let below = names("theirs/below");
        let trail =
            l.meta.walk(&makes, PathRef { base: &dir, path: &below }, WalkRequest::default()).await.unwrap();
        assert!(matches!(trail.stop, Stop::NotDirectory), "{:?}", trail.stop);
    }
}

/// A directory under a lease needs no confirmation.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn leases_confirm_absence() {
    let l = lab().await;
    tree(&l).await;
    l.wire.lease(true);
    *l.wire.directories.lock() = true;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    l.meta.getattr(&l.cx, File { fh: &c, open: None }).await.unwrap();
    walk(&*l.meta, &l.cx, &l.top, "a/b/c/none").await;
    l.meta.readdir(&l.cx, &c, 0, [0; 8], 1 << 20, true).await.unwrap();
    l.wire.take();
    for n in ["one", "two"] {
        tokio::time::advance(VALID * 2).await;
        let at = name(n);
        assert!(matches!(
            l.meta.peek(&l.cx, PathRef::name(&c, &at)).unwrap().stop,
            Stop::Missing(Validity::Lease)
        ));
    }
    assert_eq!(l.wire.take(), "");
}

/// A call that would make a name shows that the name exists: it opens the file of another client,
/// or fails with EEXIST. The known absence of the name ends then.
/// Promise: 7'
#[tokio::test(start_paused = true)]
async fn found_object_ends_absence() {
    for (options, made_here) in cases() {
        let shown = format!("{options:?}, made here: {made_here}");
        let (l, dir) = whole(options, made_here).await;
        for call in ["open", "exclusive", "mkdir", "symlink", "link"] {
            let n = name(call);
            assert!(!is_there(&l, &dir, call).await, "{shown}");
            make_file(&*l.model, &l.cx, &dir, call, "").await;
            let (cx, at) = (&l.cx, PathRef::name(&dir, &n));
            let errno = match call {
                "open" => {
                    let opened = l.meta.open(cx, at, &creating(0o644)).await.unwrap();
                    assert!(!opened.created);
                    l.meta.close(cx, &opened.node.fh, opened.open).await.unwrap();
                    None
                }
                "exclusive" => {
                    let how = OpenHow { create: Create::Exclusive(mode(0o644)), ..creating(0o644) };
                    l.meta.open(cx, at, &how).await.err()
                }
                "mkdir" => l.meta.mkdir(cx, &dir, &n, &mode(0o755)).await.err(),
                "symlink" => l.meta.symlink(cx, &dir, &n, &"to".into(), &mode(0o777)).await.err(),
                _ => {
                    let file = make_file(&*l.meta, cx, &l.top, "linked", "").await;
                    l.meta.link(cx, &file, &dir, &n).await.err()
                }
            };
            assert_eq!(errno.map(|e| e.errno), (call != "open").then_some(libc::EEXIST), "{shown}: {call}");
            assert!(is_there(&l, &dir, call).await, "{shown}: after {call}");
        }
    }
}
