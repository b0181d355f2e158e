//! Answers that arrive late, or from a layer above that has had them for some time.

use super::*;

/// A read lock of the whole range.
async fn lock(l: &Lab, o: &Opened) {
    let file = File { fh: &o.node.fh, open: Some(o.open) };
    let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
    l.disk
        .lock(&l.cx, file, LockOwner { id: 1, flock: false }, LockKind::Read, all, LockWait::No)
        .await
        .unwrap();
}

/// The holder of a lock sees the data written under the previous lock, even if a request was sent
/// just before.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn late_reply_after_lock_is_ignored() {
    for leased in [false, true] {
        let l = Lab::new(options()).await;
        l.wire.lease(leased);
        let (old, new) = (pattern(1, 100_000), pattern(2, 100_000));
        let fh = l.file("f", &old).await;
        let o = l.open(&fh).await;
        assert!(l.read(&o, 0, 100_000).await == old);
        l.settle().await;
        let late = l.disk.ticket();
        let answer = l.wire.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        l.file("f", &new).await;
        lock(&l, &o).await;
        l.disk.learn(&fh, &answer, late);
        assert!(l.read(&o, 0, 100_000).await == new);
        // Answers to later requests are valid.
        l.settle().await;
        l.wire.take();
        assert!(l.read(&o, 0, 100_000).await == new && l.wire.take().is_empty());
        l.close(o).await;
    }
}

/// A layer above may use attributes a moment longer than this layer, which has already seen newer
/// ones. The older attributes do not replace the newer ones.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn older_known_attributes_are_ignored() {
    let l = Lab::new(options()).await;
    let (old, new) = (pattern(1, 100_000), pattern(2, 150_000));
    let fh = l.file("f", &old).await;
    let o = l.open(&fh).await;
    assert!(l.read(&o, 0, 100_000).await == old);
    let believed = l.disk.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    l.file("f", &new).await;
    l.disk.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
    assert!(l.read(&o, 0, 150_000).await == new);
    l.settle().await;
    l.wire.take();
    let using = l.disk.using(&fh);
    assert!(l.disk.learn_known(&fh, &using, &believed).is_none());
    assert!(l.read(&o, 0, 150_000).await == new && l.wire.take().is_empty());
    drop(using);
    l.close(o).await;
}

/// The end of a local change is remembered after the last close of the file. Attributes from before
/// the change prove nothing after the close.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn attributes_before_write_stay_void() {
    let l = Lab::new(options()).await;
    let fh = l.file("f", &pattern(1, 100_000)).await;
    let believed = l.disk.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let w = l.disk.open(&l.cx, PathRef::fh(&fh), &OpenHow { create: Create::No, ..writing() }).await.unwrap();
    let file = File { fh: &fh, open: Some(w.open) };
    l.disk.write(&l.cx, file, 100_000, Bytes::from_static(b"more").into(), Stability::Stable).await.unwrap();
    l.close(w).await;
    let new = l.cat(&fh, 65536).await;
    assert_eq!(new.len(), 100_004);
    l.settle().await;
    let dropped = l.disk.stats().dropped_by_change;
    let how = OpenHow { known: Some(believed.clone()), ..READ };
    {
        let using = l.disk.using(&fh);
        assert!(l.disk.learn_known(&fh, &using, &believed).is_none());
    }
    let o = l.disk.open(&l.cx, PathRef::fh(&fh), &how).await.unwrap();
    l.wire.take();
    assert!(l.read(&o, 0, 200_000).await == new && l.wire.take().is_empty());
    l.close(o).await;
    assert_eq!(l.disk.stats().dropped_by_change, dropped, "what is here stays");
}
