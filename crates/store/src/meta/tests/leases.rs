//! Names, listings and absences under a lease on their directory.

use super::*;

async fn leased(options: MetaOptions) -> (Lab, Fh) {
    let l = lab_with(options, VALID).await;
    tree(&l).await;
    *l.wire.directories.lock() = true;
    l.wire.lease(true);
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    l.meta.getattr(&l.cx, File { fh: &l.top, open: None }).await.unwrap();
    l.wire.take();
    (l, c)
}

async fn listed(l: &Lab, dir: &Fh) -> Vec<String> {
    let page = l.meta.readdir(&l.cx, dir, 0, [0; 8], 1 << 20, false).await.unwrap();
    let text = |e: DirEntry| String::from_utf8(e.name.as_bytes().to_vec()).unwrap();
    let mut names: Vec<String> = page.entries.into_iter().map(text).collect();
    names.sort();
    names
}

/// What a walk says, from memory or not.
async fn finds(l: &Lab, path: &str) -> bool {
    matches!(walk(&*l.meta, &l.cx, &l.top, path).await.stop, Stop::Complete)
}

/// Whatever is believed of the names is asked for again after the withdrawal, also what would have held for a while by itself.
#[tokio::test(start_paused = true)]
async fn names_under_a_lease_hold_until_it_is_withdrawn() {
    let (l, c) = leased(options()).await;
    listed(&l, &c).await;
    tokio::time::advance(VALID * 10).await;
    l.wire.take();
    let fresh = l.cx.fresh(Instant::now());
    let there = peek(&l, &fresh, "a/b/c/f").unwrap();
    assert!(there.steps.iter().all(|n| n.attrs.valid == Validity::Lease));
    let absent = peek(&l, &fresh, "a/b/c/none").unwrap();
    assert!(matches!(absent.stop, Stop::Missing(Validity::Lease)));
    assert_eq!(listed(&l, &c).await, ["f", "g"]);
    assert_eq!(l.wire.take(), "");
    // As a client does: first it is withdrawn, then somebody else may do what he waits for.
    l.wire.lease(false);
    l.wire.upcalls.get().unwrap().withdraw(&c).await;
    make_dir(&*l.model, &l.cx, &c, "none").await;
    l.model.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
    for path in ["a/b/c/f", "a/b/c/g", "a/b/c/none"] {
        assert!(peek(&l, &l.cx, path).is_none(), "{path}");
    }
    assert!(peek(&l, &l.cx, "a/b/c").is_none() && peek(&l, &fresh, "a/b").is_some());
    assert!(finds(&l, "a/b/c/none").await && !finds(&l, "a/b/c/g").await && finds(&l, "a/b/c/f").await);
    assert_eq!(listed(&l, &c).await, ["f", "none"]);
}

/// A mount's own changes are known to be the only ones, where `change` is made of a clock, too.
#[tokio::test(start_paused = true)]
async fn own_changes_leave_names_under_a_lease() {
    for coarse_change in [false, true] {
        let (l, c) = leased(MetaOptions { coarse_change, ..options() }).await;
        listed(&l, &c).await;
        tokio::time::advance(VALID * 10).await;
        l.meta.mkdir(&l.cx, &c, &name("new"), &mode(0o755)).await.unwrap();
        l.meta.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
        // The directory's new attributes do not come along here.
        assert!(finds(&l, "a/b/c").await);
        l.wire.take();
        tokio::time::advance(VALID * 10).await;
        assert!(finds(&l, "a/b/c/f").await && finds(&l, "a/b/c/new").await, "{coarse_change}");
        assert!(!finds(&l, "a/b/c/g").await && !finds(&l, "a/b/c/none").await, "{coarse_change}");
        assert_eq!(listed(&l, &c).await, ["f", "new"]);
        assert_eq!(l.wire.take(), "", "{coarse_change}");
        l.wire.lease(false);
        l.wire.upcalls.get().unwrap().withdraw(&c).await;
        make_dir(&*l.model, &l.cx, &c, "other").await;
        assert!(finds(&l, "a/b/c/other").await);
        assert_eq!(listed(&l, &c).await, ["f", "new", "other"]);
    }
}

/// Where an equal `change` proves nothing, names of before a lease do not hold under it, nor those from under it after it.
#[tokio::test(start_paused = true)]
async fn what_proves_nothing_is_not_kept_beyond_the_lease() {
    for under in [false, true] {
        let l = lab_with(MetaOptions { coarse_change: true, ..options() }, VALID).await;
        let c = make_dir(&*l.model, &l.cx, &l.top, "c").await;
        make_file(&*l.model, &l.cx, &c, "g", "two").await;
        // Whatever happens from here on happens in one tick.
        *l.wire.tick.lock() = l.model.getattr(&l.cx, File { fh: &c, open: None }).await.unwrap().attr.change;
        *l.wire.directories.lock() = true;
        l.wire.lease(under);
        listed(&l, &c).await;
        assert!(finds(&l, "c/g").await);
        if under {
            l.wire.lease(false);
            l.wire.upcalls.get().unwrap().withdraw(&c).await;
        }
        l.model.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
        make_dir(&*l.model, &l.cx, &c, "h").await;
        l.wire.lease(!under);
        tokio::time::advance(VALID * 2).await;
        assert!(!finds(&l, "c/g").await && finds(&l, "c/h").await, "{under}");
        assert_eq!(listed(&l, &c).await, ["h"], "{under}");
    }
}

/// Who takes a lock asks nothing about a file that nobody else can have changed, and about every other.
#[tokio::test(start_paused = true)]
async fn a_lock_leaves_what_is_known_under_a_lease() {
    let (l, _) = leased(options()).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[3].fh.clone();
    let before = read_all(&*l.meta, &l.cx, &fh).await.unwrap();
    let opened = l.meta.open(&l.cx, Where::fh(&fh), &READ).await.unwrap();
    let (file, me) = (File { fh: &fh, open: Some(opened.open) }, LockOwner { id: 1, flock: false });
    let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
    l.meta.lock(&l.cx, file, me, LockKind::Read, all, LockWait::No).await.unwrap();
    l.meta.unlock(&l.cx, file, me, all).await.unwrap();
    l.wire.take();
    l.meta.lock(&l.cx, file, me, LockKind::Read, all, LockWait::No).await.unwrap();
    l.meta.getattr(&l.cx, file).await.unwrap();
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), before);
    let asked = l.wire.take();
    assert!(!asked.contains("getattr") && !asked.contains("read"), "{asked}");
    l.wire.lease(false);
    l.wire.upcalls.get().unwrap().withdraw(&fh).await;
    l.meta.getattr(&l.cx, file).await.unwrap();
    l.wire.take();
    l.meta.lock(&l.cx, file, me, LockKind::Read, all, LockWait::No).await.unwrap();
    assert!(l.meta.peek(&l.cx, Where::fh(&fh)).is_none(), "its last holder may have changed it");
    l.meta.getattr(&l.cx, file).await.unwrap();
    assert!(l.wire.take().contains("getattr"));
}
