//! Names, listings and absences under a lease on their directory.

use super::*;

async fn leased(options: MetadataCacheOptions) -> (Lab, Fh) {
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

/// Whether a walk finds the path, from memory or not.
async fn finds(l: &Lab, path: &str) -> bool {
    matches!(walk(&*l.meta, &l.cx, &l.top, path).await.stop, Stop::Complete)
}

/// After the withdrawal all names are requested again, even names with validity left.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn leased_names_hold_until_withdrawal() {
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
    // As in the client: the lease is withdrawn first, then the waiting client makes its changes.
    l.wire.lease(false);
    l.wire.upcalls.get().unwrap().revoke(&c).await;
    make_dir(&*l.model, &l.cx, &c, "none").await;
    l.model.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
    for path in ["a/b/c/f", "a/b/c/g", "a/b/c/none"] {
        assert!(peek(&l, &l.cx, path).is_none(), "{path}");
    }
    assert!(peek(&l, &l.cx, "a/b/c").is_none() && peek(&l, &fresh, "a/b").is_some());
    assert!(finds(&l, "a/b/c/none").await && !finds(&l, "a/b/c/g").await && finds(&l, "a/b/c/f").await);
    assert_eq!(listed(&l, &c).await, ["f", "none"]);
}

/// Under a lease, local changes are known to be the only ones, even if `change` is made from a
/// clock.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn own_changes_keep_leased_names() {
    for coarse_change in [false, true] {
        let (l, c) = leased(MetadataCacheOptions { coarse_change, ..options() }).await;
        listed(&l, &c).await;
        tokio::time::advance(VALID * 10).await;
        l.meta.mkdir(&l.cx, &c, &name("new"), &mode(0o755)).await.unwrap();
        l.meta.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
        // The replies do not bring the directory's new attributes.
        assert!(finds(&l, "a/b/c").await);
        l.wire.take();
        tokio::time::advance(VALID * 10).await;
        assert!(finds(&l, "a/b/c/f").await && finds(&l, "a/b/c/new").await, "{coarse_change}");
        assert!(!finds(&l, "a/b/c/g").await && !finds(&l, "a/b/c/none").await, "{coarse_change}");
        assert_eq!(listed(&l, &c).await, ["f", "new"]);
        assert_eq!(l.wire.take(), "", "{coarse_change}");
        l.wire.lease(false);
        l.wire.upcalls.get().unwrap().revoke(&c).await;
        make_dir(&*l.model, &l.cx, &c, "other").await;
        assert!(finds(&l, "a/b/c/other").await);
        assert_eq!(listed(&l, &c).await, ["f", "new", "other"]);
    }
}

/// Where an equal `change` proves nothing, names from before a lease do not hold under it. Names
/// from under the lease do not hold after it.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn coarse_change_limits_names_to_lease() {
    for under in [false, true] {
        let l = lab_with(MetadataCacheOptions { coarse_change: true, ..options() }, VALID).await;
        let c = make_dir(&*l.model, &l.cx, &l.top, "c").await;
        make_file(&*l.model, &l.cx, &c, "g", "two").await;
        // All following changes happen in one tick.
        *l.wire.tick.lock() = l.model.getattr(&l.cx, File { fh: &c, open: None }).await.unwrap().attr.change;
        *l.wire.directories.lock() = true;
        l.wire.lease(under);
        listed(&l, &c).await;
        assert!(finds(&l, "c/g").await);
        if under {
            l.wire.lease(false);
            l.wire.upcalls.get().unwrap().revoke(&c).await;
        }
        l.model.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
        make_dir(&*l.model, &l.cx, &c, "h").await;
        l.wire.lease(!under);
        tokio::time::advance(VALID * 2).await;
        assert!(!finds(&l, "c/g").await && finds(&l, "c/h").await, "{under}");
        assert_eq!(listed(&l, &c).await, ["h"], "{under}");
    }
}

/// A page with its objects: `name` with its object, `-name` without.
async fn listed_with_objects(l: &Lab, dir: &Fh) -> Vec<String> {
    let page = l.meta.readdir(&l.cx, dir, 0, [0; 8], 1 << 20, true).await.unwrap();
    assert!(page.eof);
    let text = |e: DirEntry| {
        let bare = if e.node.is_some() { "" } else { "-" };
        format!("{bare}{}", String::from_utf8_lossy(e.name.as_bytes()))
    };
    let mut names: Vec<String> = page.entries.into_iter().map(text).collect();
    names.sort();
    names
}

/// Expired attributes of a few entries do not cause a new listing, which would bring no leases on
/// them. Those of many entries do.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn leased_listing_tolerates_expired_attributes() {
    for made_here in [false, true] {
        let (l, c) = leased(options()).await;
        *l.wire.itself.lock() = true;
        let v: &dyn Vfs = if made_here { &*l.meta } else { &*l.model };
        let new = make_dir(v, &l.cx, &c, "new").await;
        if !made_here {
            l.wire.upcalls.get().unwrap().revoke(&c).await;
        }
        assert!(finds(&l, "a/b/c/f").await);
        listed_with_objects(&l, &c).await;
        for _ in 0..3 {
            tokio::time::advance(VALID * 2).await;
            l.wire.take();
            let names = listed_with_objects(&l, &c).await;
            assert_eq!(l.wire.take(), "", "{made_here}: {names:?}");
            assert!(names.contains(&"-new".into()), "{made_here}: {names:?}");
        }
        // A caller that needs the attributes revalidates all of them, and they are under leases.
        assert!(finds(&l, "a/b/c/new").await && finds(&l, "a/b/c/g").await);
        assert_eq!(l.wire.take(), if made_here { "getattr 1" } else { "getattr_many 1" });
        tokio::time::advance(VALID * 2).await;
        assert_eq!(listed_with_objects(&l, &c).await, ["f", "g", "new"]);
        assert!(finds(&l, "a/b/c/new").await);
        assert_eq!(l.wire.take(), "", "{made_here}");
        // Many expired entries are worth a listing.
        for i in 0..30 {
            make_dir(&*l.model, &l.cx, &new, &format!("{i}")).await;
        }
        l.wire.upcalls.get().unwrap().revoke(&new).await;
        l.meta.getattr(&l.cx, File { fh: &new, open: None }).await.unwrap();
        listed_with_objects(&l, &new).await;
        tokio::time::advance(VALID * 2).await;
        l.wire.take();
        let names = listed_with_objects(&l, &new).await;
        assert!(names.len() == 30 && names.iter().all(|n| !n.starts_with('-')), "{names:?}");
        assert_eq!(l.wire.take(), "readdir 1", "{made_here}");
    }
}

/// Names that arrived with the lease, before it was known, do not hold under it where an equal
/// `change` proves nothing. Names listed or looked up again do, and not beyond the lease.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn names_requested_under_lease_hold() {
    for list in [true, false] {
        let options = MetadataCacheOptions { coarse_change: true, ..options() };
        let model = Arc::new(Model::new(env(), VALID, 1 << 40));
        let wire = Wire::slow(model.clone(), Some(7), Duration::from_millis(3));
        let meta = MetadataCache::new(wire.clone(), options, env());
        let cx = root_cx();
        let top = meta.root(&cx).await.unwrap().fh;
        let l = Lab { model, wire, meta, top, cx };
        let c = make_dir(&*l.model, &l.cx, &l.top, "c").await;
        make_file(&*l.model, &l.cx, &c, "g", "two").await;
        // All following changes happen in one tick.
        *l.wire.tick.lock() = l.model.getattr(&l.cx, File { fh: &c, open: None }).await.unwrap().attr.change;
        *l.wire.directories.lock() = true;
        l.wire.lease(true);
        l.meta.getattr(&l.cx, File { fh: &l.top, open: None }).await.unwrap();
        tokio::time::advance(VALID * 2).await;
        assert!(finds(&l, "c/g").await);
        tokio::time::advance(VALID * 2).await;
        for round in 0..3 {
            l.wire.take();
            if list {
                assert_eq!(listed(&l, &c).await, ["g"]);
            } else {
                assert!(finds(&l, "c/g").await && !finds(&l, "c/none").await);
            }
            let asked = l.wire.total();
            assert!(asked == 0 || round == 0, "{list}: {asked} in round {round}");
            tokio::time::advance(VALID * 2).await;
        }
        l.wire.lease(false);
        l.wire.upcalls.get().unwrap().revoke(&c).await;
        l.model.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
        make_dir(&*l.model, &l.cx, &c, "none").await;
        assert!(!finds(&l, "c/g").await && finds(&l, "c/none").await, "{list}");
        assert_eq!(listed(&l, &c).await, ["none"], "{list}");
    }
}

/// An answer from before the lease arrives after the lease is known, with an equal `change`. Later
/// requests do not make it hold under the lease.
/// Promise: 8f
#[tokio::test(start_paused = true)]
async fn late_listing_gains_no_lease() {
    let l = lab_with(MetadataCacheOptions { coarse_change: true, ..options() }, VALID).await;
    let c = make_dir(&*l.model, &l.cx, &l.top, "c").await;
    make_file(&*l.model, &l.cx, &c, "g", "two").await;
    // All following changes happen in one tick.
    let tick = l.model.getattr(&l.cx, File { fh: &c, open: None }).await.unwrap().attr.change;
    *l.wire.tick.lock() = tick;
    let ticket = l.meta.ticket();
    let belated = l.wire.readdir(&l.cx, &c, 0, [0; 8], 1 << 20, true).await.unwrap();
    l.model.unlink(&l.cx, &c, &name("g"), None).await.unwrap();
    make_dir(&*l.model, &l.cx, &c, "h").await;
    *l.wire.directories.lock() = true;
    tokio::time::advance(VALID * 2).await;
    l.wire.lease(true);
    l.meta.getattr(&l.cx, File { fh: &l.top, open: None }).await.unwrap();
    assert!(finds(&l, "c").await);
    l.meta.learn_page(&l.cx, &c, 0, &belated, Some(tick), &ticket);
    tokio::time::advance(VALID * 2).await;
    let (none, ticket) = (name("none"), l.meta.ticket());
    let valid = Validity::Until(Instant::now() + VALID);
    let absent = learn::Found { name: &none, child: None, asked: ticket.asked, valid };
    l.meta.learn_name(l.meta.cred(&l.cx.cred), &c, Some(tick), &absent, &ticket);
    assert!(matches!(peek(&l, &l.cx, "c/none").unwrap().stop, Stop::Missing(Validity::Lease)));
    assert!(peek(&l, &l.cx, "c/h").is_none() && peek(&l, &l.cx, "c/g").is_none());
    assert!(finds(&l, "c/h").await && !finds(&l, "c/g").await);
    assert_eq!(listed(&l, &c).await, ["h"]);
}

/// A lock revalidates its file, unless a lease proves that no other client has changed it.
/// Promise: 16a
#[tokio::test(start_paused = true)]
async fn lock_keeps_leased_file_valid() {
    let (l, _) = leased(options()).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[3].fh.clone();
    let before = read_all(&*l.meta, &l.cx, &fh).await.unwrap();
    let opened = l.meta.open(&l.cx, PathRef::fh(&fh), &READ).await.unwrap();
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
    l.wire.upcalls.get().unwrap().revoke(&fh).await;
    lock_shows_change(&l, file, me).await;
}

/// Another client changes a file whose attributes are valid here. After a lock, the file shows the
/// change without a further request for attributes.
pub(super) async fn lock_shows_change(l: &Lab, file: File<'_>, me: LockOwner) {
    let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
    let before = l.meta.getattr(&l.cx, file).await.unwrap();
    read_all(&*l.meta, &l.cx, file.fh).await.unwrap();
    let how = OpenHow { create: Create::No, ..creating(0) };
    let theirs = l.model.open(&l.cx, PathRef::fh(file.fh), &how).await.unwrap();
    let at = File { open: Some(theirs.open), ..file };
    let text = Bytes::from_static(b"of another client, and longer than before");
    l.model.write(&l.cx, at, 0, text.clone().into(), Stability::Stable).await.unwrap();
    l.model.close(&l.cx, file.fh, theirs.open).await.unwrap();
    assert_eq!(l.meta.getattr(&l.cx, file).await.unwrap().attr, before.attr, "still believed");
    l.wire.take();
    let locked = l.meta.lock(&l.cx, file, me, LockKind::Read, all, LockWait::No).await.unwrap();
    let after = l.meta.getattr(&l.cx, file).await.unwrap();
    assert_eq!(after.attr, locked.unwrap().attr);
    assert_eq!(after.attr.size_bytes, text.len() as u64);
    assert!(!l.wire.take().contains("getattr"));
    assert_eq!(read_all(&*l.meta, &l.cx, file.fh).await.unwrap(), text);
}

/// A lease that has ended is none while the server is away, although its answers hold. A gateway
/// would delegate the files to its clients.
/// Promise: G7
#[tokio::test(start_paused = true)]
async fn ended_lease_is_none_while_server_is_away() {
    let (l, c) = leased(options()).await;
    let file = File { fh: &c, open: None };
    assert_eq!(l.meta.getattr(&l.cx, file).await.unwrap().valid, Validity::Lease);
    l.wire.upcalls.get().unwrap().revoke_all().await;
    l.meta.answer_stale(true);
    l.wire.take();
    assert!(matches!(l.meta.getattr(&l.cx, file).await.unwrap().valid, Validity::Until(_)));
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c").await;
    assert!(trail.steps.iter().all(|node| node.attrs.valid != Validity::Lease), "{trail:?}");
    assert_eq!(l.wire.take(), "");
}
