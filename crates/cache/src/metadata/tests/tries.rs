//! Opens that ask for a lease where a revalidation would do.

use super::*;

/// A file that was read here before, without a lease. One revalidation was sent for it.
async fn known_file(options: MetadataCacheOptions) -> (Lab, Fh) {
    let l = lab_with(options, VALID).await;
    tree(&l).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps.pop().unwrap().fh;
    read_all(&*l.meta, &l.cx, &fh).await.unwrap();
    l.wire.take();
    (l, fh)
}

/// Opens and reads the file at a moment of its own; returns the requests.
async fn again(l: &Lab, fh: &Fh) -> String {
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(read_all(&*l.meta, &l.cx.fresh(Instant::now()), fh).await.unwrap(), "one");
    l.wire.take()
}

/// A file is refused a lease at first, and is opened repeatedly. Some of its revalidations are
/// replaced by opens, one for one, until the server grants a lease. Then no request is sent.
#[tokio::test(start_paused = true)]
async fn refused_lease_is_requested_again() {
    let (l, fh) = known_file(options()).await;
    l.wire.refuse_leases(2);
    let mut sent = Vec::new();
    for _ in 0..30 {
        sent.push(again(&l, &fh).await);
    }
    let opens = ["close 1, open 1"; 3].into_iter();
    let asked: Vec<_> = sent.iter().filter(|s| s.starts_with("close")).collect();
    assert_eq!(asked, opens.collect::<Vec<_>>(), "{sent:?}");
    assert!(sent.iter().filter(|s| *s == "getattr 1").count() == 12, "{sent:?}");
    assert_eq!((sent[14].as_str(), sent[15].as_str()), ("close 1, open 1", ""), "{sent:?}");
    assert!(sent[15..].iter().all(String::is_empty), "{sent:?}");
}

/// The same by name, in the place of the look-up.
#[tokio::test(start_paused = true)]
async fn names_are_opened_for_a_lease() {
    let (l, fh) = known_file(options()).await;
    let dir = walk(&*l.meta, &l.cx, &l.top, "a/b/c").await.steps.pop().unwrap().fh;
    l.wire.refuse_leases(0);
    let mut sent = Vec::new();
    for _ in 0..8 {
        tokio::time::advance(Duration::from_millis(1)).await;
        l.wire.take();
        let fresh = l.cx.fresh(Instant::now());
        let opened = l.meta.open(&fresh, PathRef::name(&dir, &name("f")), &READ).await.unwrap();
        assert_eq!(opened.node.fh, fh);
        sent.push(l.wire.take());
        l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
    }
    assert_eq!(sent, ["walk 1", "walk 1", "open 1", "", "", "", "", ""]);
}

/// A file that each revalidation finds changed is not worth a lease, which would be recalled at
/// once.
#[tokio::test(start_paused = true)]
async fn changing_file_requests_no_lease() {
    let (l, fh) = known_file(options()).await;
    let theirs = l.model.open(&l.cx, PathRef::fh(&fh), &OpenHow::existing(OpenAccess::WRITE)).await.unwrap();
    let file = File { fh: &fh, open: Some(theirs.open) };
    for _ in 0..40 {
        l.model.write(&l.cx, file, 0, Bytes::from_static(b"o").into(), Stability::Stable).await.unwrap();
        let sent = again(&l, &fh).await;
        assert!(
            sent.contains("walk") || sent.contains("getattr"),
            "an open in the place of a question: {sent}"
        );
    }
}

/// A server that grants no lease soon gets no more such opens, for any file. A server without state
/// for opens gets none.
#[tokio::test(start_paused = true)]
async fn lease_refusing_server_gets_few_opens() {
    for (stateless_opens, most) in [(false, 64), (true, 0)] {
        let (l, fh) = known_file(MetadataCacheOptions { stateless_opens, ..options() }).await;
        let g = walk(&*l.meta, &l.cx, &l.top, "a/b/c/g").await.steps.pop().unwrap().fh;
        read_all(&*l.meta, &l.cx, &g).await.unwrap();
        let mut opens = 0;
        for _ in 0..3000 {
            for fh in [&fh, &g] {
                tokio::time::advance(Duration::from_millis(1)).await;
                l.wire.take();
                read_all(&*l.meta, &l.cx.fresh(Instant::now()), fh).await.unwrap();
                opens += usize::from(l.wire.take().contains("open"));
            }
        }
        assert_eq!(opens, most);
    }
}
