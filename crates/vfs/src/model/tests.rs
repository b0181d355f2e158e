//! Tests of the model rules that tests of other crates rely on.

use super::*;
use crate::Cred;
use std::sync::Arc;

fn env() -> Env {
    let ticks = std::sync::atomic::AtomicU64::new(1);
    Env {
        random: Arc::new(|| 4),
        wall: Arc::new(move || {
            let tick = ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            SystemTime::UNIX_EPOCH + Duration::from_millis(tick)
        }),
    }
}

fn model() -> Model {
    Model::new(env(), Duration::ZERO, 1 << 20)
}

fn cx(uid: u32, gid: u32, groups: &[u32]) -> RequestContext {
    RequestContext::new(Arc::new(Cred { uid, gid, groups: groups.into() }))
}

fn root() -> RequestContext {
    cx(0, 0, &[])
}

fn name(n: &str) -> Name {
    Name::new(n.as_bytes().to_vec()).unwrap()
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..Default::default() }
}

async fn create(m: &Model, cx: &RequestContext, dir: &Fh, n: &str, bits: u32) -> Result<Opened> {
    let how = OpenHow {
        access: OpenAccess::READ | OpenAccess::WRITE,
        create: Create::Exclusive(mode(bits)),
        truncate: false,
        execute: false,
        first_bytes: 0,
        known: None,
    };
    m.open(cx, PathRef::name(dir, &name(n)), &how).await
}

fn errno<T>(r: Result<T>) -> i32 {
    r.err().map_or(0, |e| e.errno)
}

/// Holes read as zeros, SEEK_DATA and SEEK_HOLE find them, and truncated bytes read as zeros after
/// growth.
#[tokio::test]
async fn holes_read_zeros() {
    let (m, cx) = (model(), root());
    let top = m.root(&cx).await.unwrap().fh;
    let f = create(&m, &cx, &top, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    m.write(&cx, file, 10_000, Bytes::from_static(b"abc").into(), Stability::Unstable).await.unwrap();
    let read = m.read(&cx, file, 9_998, 100).await.unwrap();
    assert_eq!(&read.data.into_bytes()[..], b"\0\0abc");
    assert!(read.eof);
    assert_eq!(m.seek(&cx, file, 0, Seek::Data).await.unwrap(), 8192);
    assert_eq!(m.seek(&cx, file, 9_000, Seek::Hole).await.unwrap(), 10_003);
    assert_eq!(errno(m.seek(&cx, file, 10_003, Seek::Hole).await), libc::ENXIO);
    // Truncation and growth must not show old bytes.
    for size in [10_001, 10_003] {
        let set = SetAttr { size_bytes: Some(size), ..Default::default() };
        m.setattr(&cx, file, &set).await.unwrap();
    }
    let read = m.read(&cx, file, 10_000, 100).await.unwrap();
    assert_eq!(&read.data.into_bytes()[..], b"a\0\0");
}

/// An unlinked file stays readable until its last close. Then its filehandle is stale.
#[tokio::test]
async fn unlink_keeps_open_file() {
    let (m, cx) = (model(), root());
    let top = m.root(&cx).await.unwrap().fh;
    let f = create(&m, &cx, &top, "f", 0o644).await.unwrap();
    m.unlink(&cx, &top, &name("f"), None).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    assert_eq!(m.getattr(&cx, file).await.unwrap().attr.nlink, 0);
    m.close(&cx, &f.node.fh, f.open).await.unwrap();
    assert_eq!(errno(m.getattr(&cx, file).await), libc::ESTALE);
    assert_eq!(m.object_count(), 1);
}

/// Access is checked by owner, group and supplementary groups.
#[tokio::test]
async fn permissions_follow_owner_and_groups() {
    let m = model();
    let admin = root();
    let top = m.root(&admin).await.unwrap().fh;
    let set = SetAttr { mode: Some(0o750), uid: Some(10), gid: Some(77), ..Default::default() };
    let d = m.mkdir(&admin, &top, &name("d"), &set).await.unwrap().node.fh;
    assert_eq!(errno(create(&m, &cx(11, 11, &[]), &d, "f", 0o644).await), libc::EACCES);
    assert_eq!(errno(create(&m, &cx(11, 11, &[77]), &d, "f", 0o644).await), libc::EACCES);
    let f = create(&m, &cx(10, 10, &[]), &d, "f", 0o640).await.unwrap();
    assert_eq!((f.node.attrs.attr.uid, f.node.attrs.attr.gid), (10, 10));
    let member = cx(11, 11, &[77]);
    let n = name("f");
    let trail = m.walk(&member, PathRef::name(&d, &n), WalkRequest::default()).await.unwrap();
    assert!(matches!(trail.stop, Stop::Complete));
    let how = OpenHow {
        access: OpenAccess::READ,
        create: Create::No,
        truncate: false,
        execute: false,
        first_bytes: 0,
        known: None,
    };
    assert_eq!(errno(m.open(&member, PathRef::name(&d, &n), &how).await), libc::EACCES);
    assert_eq!(
        errno(m.setattr(&member, File { fh: &f.node.fh, open: None }, &mode(0o777)).await),
        libc::EPERM
    );
}

/// A rename keeps link counts, and refuses loops and non-empty targets.
#[tokio::test]
async fn rename_keeps_link_counts() {
    let (m, cx) = (model(), root());
    let top = m.root(&cx).await.unwrap().fh;
    let a = m.mkdir(&cx, &top, &name("a"), &mode(0o755)).await.unwrap().node.fh;
    let b = m.mkdir(&cx, &a, &name("b"), &mode(0o755)).await.unwrap().node.fh;
    let none = RenameFlags::empty();
    let loops = m.rename(&cx, (&top, &name("a")), (&b, &name("c")), None, none).await;
    assert_eq!(errno(loops), libc::EINVAL);
    m.rename(&cx, (&a, &name("b")), (&top, &name("b")), None, none).await.unwrap();
    let nlink = |fh: Fh| {
        let (m, cx) = (&m, &cx);
        async move { m.getattr(cx, File { fh: &fh, open: None }).await.unwrap().attr.nlink }
    };
    assert_eq!((nlink(top.clone()).await, nlink(a.clone()).await, nlink(b.clone()).await), (4, 2, 2));
    create(&m, &cx, &b, "x", 0o644).await.unwrap();
    let full = m.rename(&cx, (&top, &name("a")), (&top, &name("b")), None, none).await;
    assert_eq!(errno(full), libc::ENOTEMPTY);
    m.rename(&cx, (&top, &name("a")), (&top, &name("b")), None, RenameFlags::EXCHANGE).await.unwrap();
    let trail = m
        .walk(&cx, PathRef { base: &top, path: &[name("a"), name("x")] }, WalkRequest::default())
        .await
        .unwrap();
    assert!(matches!(trail.stop, Stop::Complete));
}

/// A listing shows each name once although the test removes names between its pages.
#[tokio::test]
async fn listing_survives_removals() {
    let (m, cx) = (model(), root());
    let top = m.root(&cx).await.unwrap().fh;
    for i in 0..100 {
        create(&m, &cx, &top, &format!("f{i}"), 0o644).await.unwrap();
    }
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let page = m.readdir(&cx, &top, cookie, [0; 8], 500, false).await.unwrap();
        for e in &page.entries {
            cookie = e.cookie;
            seen.push(e.name.clone());
            m.unlink(&cx, &top, &e.name, None).await.unwrap();
        }
        if page.eof {
            break;
        }
    }
    assert_eq!(seen.len(), 100);
}

/// A blocked lock is granted on release and ends with EINTR on cancellation.
#[tokio::test]
async fn release_grants_waiting_lock() {
    let m = Arc::new(model());
    let cx = root();
    let top = m.root(&cx).await.unwrap().fh;
    let f = create(&m, &cx, &top, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
    let owner = |id| LockOwner { id, flock: false };
    m.lock(&cx, file, owner(1), LockKind::Write, all, LockWait::No).await.unwrap();
    assert_eq!(errno(m.lock(&cx, file, owner(2), LockKind::Read, all, LockWait::No).await), libc::EAGAIN);
    let waiter = |cx: RequestContext| {
        let (m, fh, open) = (m.clone(), f.node.fh.clone(), f.open);
        tokio::spawn(async move {
            let file = File { fh: &fh, open: Some(open) };
            m.lock(&cx, file, owner(2), LockKind::Read, all, LockWait::Yes).await
        })
    };
    let cancelled = RequestContext::new(cx.cred.clone());
    let task = waiter(cancelled.clone());
    tokio::task::yield_now().await;
    cancelled.cancel.cancel();
    assert_eq!(errno(task.await.unwrap()), libc::EINTR);
    let task = waiter(cx.clone());
    tokio::task::yield_now().await;
    // Locks are split: the first owner keeps the middle.
    m.unlock(&cx, file, owner(1), FileRange { start_bytes: 0, end_bytes: 10 }).await.unwrap();
    m.unlock(&cx, file, owner(1), FileRange { start_bytes: 20, end_bytes: u64::MAX }).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    let found = m.test_lock(&cx, file, owner(3), LockKind::Read, all).await.unwrap().unwrap();
    assert_eq!((found.range.start_bytes, found.range.end_bytes), (10, 20));
    m.unlock(&cx, file, owner(1), all).await.unwrap();
    task.await.unwrap().unwrap();
}

/// A write to a full disk fails with ENOSPC. Freed space can be used again.
#[tokio::test]
async fn full_disk_fails_write() {
    let (m, cx) = (model(), root());
    let top = m.root(&cx).await.unwrap().fh;
    let f = create(&m, &cx, &top, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    let data = Bytes::from(vec![7; 2 << 20]);
    assert_eq!(errno(m.write(&cx, file, 0, data.into(), Stability::Stable).await), libc::ENOSPC);
    // Freed space can be used again.
    for _ in 0..10 {
        let most = Bytes::from(vec![7; 1 << 20]);
        m.write(&cx, file, 0, most.into(), Stability::Stable).await.unwrap();
        let set = SetAttr { size_bytes: Some(0), ..Default::default() };
        m.setattr(&cx, file, &set).await.unwrap();
    }
    m.write(&cx, file, 0, Bytes::from(vec![7; 1 << 20]).into(), Stability::Stable).await.unwrap();
    m.unlink(&cx, &top, &name("f"), None).await.unwrap();
    assert_eq!(m.statfs(&cx, &top).await.unwrap().free_bytes, 0);
    m.close(&cx, &f.node.fh, f.open).await.unwrap();
    assert_eq!(m.statfs(&cx, &top).await.unwrap().free_bytes, 1 << 20);
}
