//! Calls that are mostly sent below.

use super::*;

/// A lock makes a virtual open real, and shows the changes of its last holder.
#[tokio::test(start_paused = true)]
async fn lock_makes_open_real() {
    let l = lab().await;
    tree(&l).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[3].fh.clone();
    read_all(&*l.meta, &l.cx, &fh).await.unwrap();
    let opened = l.meta.open(&l.cx, PathRef::fh(&fh), &READ).await.unwrap();
    assert_eq!(l.model.open_count(), 0, "virtual");
    let (file, all) =
        (File { fh: &fh, open: Some(opened.open) }, FileRange { start_bytes: 0, end_bytes: u64::MAX });
    let (me, other) = (LockOwner { id: 1, flock: false }, LockOwner { id: 2, flock: false });
    l.meta.unlock(&l.cx, file, me, all).await.unwrap();
    assert_eq!(l.model.open_count(), 0, "nothing was locked");
    l.meta.lock(&l.cx, file, me, LockKind::Read, all, LockWait::No).await.unwrap();
    assert_eq!(l.model.open_count(), 1);
    leases::lock_shows_change(&l, file, me).await;
    let conflict = l.meta.test_lock(&l.cx, file, other, LockKind::Write, all).await.unwrap();
    assert_eq!(conflict.unwrap().kind, LockKind::Read);
    l.meta.unlock(&l.cx, file, me, all).await.unwrap();
    assert!(l.meta.test_lock(&l.cx, file, other, LockKind::Write, all).await.unwrap().is_none());
    l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
    assert_eq!(l.model.open_count(), 0);
}

/// Calls about extended attributes pass to the server. SETXATTR and REMOVEXATTR expire the cached
/// attributes of the file.
#[tokio::test(start_paused = true)]
async fn setxattr_expires_cached_attributes() {
    let l = lab().await;
    tree(&l).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[3].fh.clone();
    let (n, value) = (b"user.x", Bytes::from_static(b"v"));
    l.meta.setxattr(&l.cx, &fh, n, &value, XattrMode::Create).await.unwrap();
    assert!(l.meta.peek(&l.cx, PathRef::fh(&fh)).is_none(), "its attributes are others now");
    assert_eq!(l.meta.getxattr(&l.cx, &fh, n).await.unwrap(), value);
    assert_eq!(l.meta.listxattr(&l.cx, &fh).await.unwrap(), [Bytes::from_static(n)]);
    l.meta.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
    l.meta.removexattr(&l.cx, &fh, n).await.unwrap();
    assert!(l.meta.peek(&l.cx, PathRef::fh(&fh)).is_none());
    assert_eq!(l.meta.getxattr(&l.cx, &fh, n).await.unwrap_err().errno, libc::ENODATA);
}

/// Expired attributes hold while the server is away, and not after its return.
/// Promise: G7
#[tokio::test(start_paused = true)]
async fn expired_attributes_hold_while_server_is_away() {
    let l = lab().await;
    tree(&l).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[3].fh.clone();
    let file = File { fh: &fh, open: None };
    let known = l.meta.getattr(&l.cx, file).await.unwrap();
    tokio::time::advance(2 * VALID).await;
    l.wire.take();
    l.meta.answer_stale(true);
    assert_eq!(l.meta.getattr(&l.cx, file).await.unwrap().attr, known.attr);
    assert!(!l.wire.take().contains("getattr"));
    l.meta.answer_stale(false);
    l.meta.getattr(&l.cx, file).await.unwrap();
    assert!(l.wire.take().contains("getattr"));
}
