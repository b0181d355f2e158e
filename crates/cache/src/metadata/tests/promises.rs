//! The validity of answers, and answers that prove nothing.

use super::*;
use hither_vfs::bytes_prove_reading;

const HOUR: Duration = Duration::from_secs(3600);

/// The wall clock of the cache is an hour ahead of the server's: no object looks recently changed.
fn late() -> Env {
    let inner = env();
    let wall = inner.wall.clone();
    Env { wall: Arc::new(move || wall() + HOUR), ..inner }
}

/// A name in a listing from memory holds no longer than its directory, even where the file's
/// attributes are newer.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn listed_names_expire_with_directory() {
    let l = lab().await;
    tree(&l).await;
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    let (c, f) = (trail.steps[2].fh.clone(), trail.steps[3].fh.clone());
    let end = Instant::now() + VALID;
    tokio::time::advance(VALID - Duration::from_secs(5)).await;
    l.meta.getattr(&l.cx.fresh(Instant::now()), File { fh: &f, open: None }).await.unwrap();
    l.meta.access(&l.cx, &c, Access::READ).await.unwrap();
    l.wire.take();
    let page = l.meta.readdir(&l.cx, &c, 0, [0; 8], 1 << 20, true).await.unwrap();
    assert_eq!((page.entries.len(), l.wire.take().as_str()), (2, ""));
    for entry in page.entries {
        let Validity::Until(until) = entry.node.unwrap().attrs.valid else { panic!("no lease here") };
        assert!(until <= end, "{:?} too long", until - end);
    }
}

/// Names have a limit of their own (`acdirmax`), even if attributes of files hold longer
/// (`acregmax`).
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn acdirmax_limits_names() {
    let most = Duration::from_secs(2);
    let l = lab_with(MetadataCacheOptions { names_max: most, ..options() }, VALID).await;
    tree(&l).await;
    let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
    assert!(trail.steps.iter().all(|n| n.attrs.valid.left(Instant::now()) <= most));
    let made = l.meta.mkdir(&l.cx, &l.top, &name("new"), &mode(0o755)).await.unwrap();
    assert!(made.node.attrs.valid.left(Instant::now()) <= most);
    let page = l.meta.readdir(&l.cx, &trail.steps[2].fh, 0, [0; 8], 1 << 20, true).await.unwrap();
    assert!(page.entries.iter().all(|e| {
        let node = e.node.as_ref().unwrap();
        node.attrs.valid.left(Instant::now()) <= most
    }));
}

/// Another client's change leaves no trace in `change`, if a local change was made in the same tick
/// of the server's clock.
/// Promise: 8
#[tokio::test(start_paused = true)]
async fn same_tick_changes_prove_nothing() {
    let model = Arc::new(Model::new(env(), VALID, 1 << 40));
    let wire = Wire::new(model.clone());
    let meta =
        MetadataCache::new(wire.clone(), MetadataCacheOptions { coarse_change: true, ..options() }, late());
    let cx = root_cx();
    let top = meta.root(&cx).await.unwrap().fh;
    let l = Lab { model, wire, meta, top, cx };
    tree(&l).await;
    let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
    let change = l.model.getattr(&l.cx, File { fh: &c, open: None }).await.unwrap().attr.change;
    *l.wire.tick.lock() = change + 1;
    make_file(&*l.meta, &l.cx, &c, "mine", "").await;
    make_file(&*l.model, &l.cx, &c, "theirs", "").await;
    assert!(matches!(walk(&*l.meta, &l.cx, &c, "theirs").await.stop, Stop::Missing(_)), "within its time");
    for _ in 0..3 {
        tokio::time::advance(VALID).await;
        assert!(matches!(walk(&*l.meta, &l.cx, &c, "mine").await.stop, Stop::Complete));
    }
    assert!(matches!(walk(&*l.meta, &l.cx, &c, "theirs").await.stop, Stop::Complete));
}

/// Servers return bytes to the owner of a file and to users that may execute it. So returned bytes
/// prove the right to read only for ordinary modes.
/// Promise: 20
#[test]
fn ordinary_modes_prove_read_permission() {
    for ordinary in [0o644, 0o600, 0o755, 0o700, 0o444, 0o640, 0o750] {
        assert!(bytes_prove_reading(ordinary), "{ordinary:o}");
    }
    for odd in [0o200, 0o711, 0o111, 0o044, 0o751, 0o000] {
        assert!(!bytes_prove_reading(odd), "{odd:o}");
    }
}

/// The server's answer about rights overrules the returned bytes.
/// Promise: 20
#[tokio::test(start_paused = true)]
async fn access_reply_overrules_returned_bytes() {
    let l = lab().await;
    tree(&l).await;
    let path = names("a/b/c/f");
    let want = WalkRequest { read_bytes: 65536, access: Access::READ, ..Default::default() };
    let ticket = l.meta.ticket();
    let mut trail = l.model.walk(&l.cx, PathRef { base: &l.top, path: &path }, want).await.unwrap();
    assert!(trail.along.first.is_some());
    trail.along.access = Some(Access::empty());
    l.meta.learn_trail(&l.cx, &l.top, &path, None, Access::READ, &trail, &ticket);
    let f = &trail.steps[3].fh;
    assert_eq!(l.meta.access(&l.cx, f, Access::READ).await.unwrap(), Access::empty());
    assert_eq!(l.wire.take(), "");
}

/// Where an equal `change` is no proof (`strict`), bytes and rights from before a lease are
/// requested under it, once. An answer that holds for one call only is used for no other.
/// Promise: 8d
#[tokio::test(start_paused = true)]
async fn strict_lease_revalidates_older_bytes() {
    for strict in [true, false] {
        let options = MetadataCacheOptions { strict, lookup_cache: LookupCache::None, ..options() };
        let l = lab_with(options, VALID).await;
        tree(&l).await;
        let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps.pop().unwrap().fh;
        read_all(&*l.meta, &l.cx, &fh).await.unwrap();
        assert!(peek(&l, &l.cx, "a/b/c/f").is_none(), "names are of the call that asked");
        tokio::time::advance(VALID * 2).await;
        l.wire.lease(true);
        let attrs = l.meta.getattr(&l.cx, File { fh: &fh, open: None }).await.unwrap();
        assert_eq!(attrs.valid, Validity::Lease);
        l.wire.take();
        assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "one");
        assert_eq!(l.wire.take().is_empty(), !strict);
        // Now the bytes and rights are known under the lease.
        read_all(&*l.meta, &l.cx, &fh).await.unwrap();
        assert_eq!(l.wire.take(), "", "strict: {strict}");
    }
}

/// A rename moves the object that the server has under that name, even if the cache believed
/// another one. `blind`: the server does not report the moved object.
/// Promise: 12
#[tokio::test(start_paused = true)]
async fn rename_moves_servers_object() {
    for blind in [false, true] {
        for (across, changed_before) in [(false, false), (false, true), (true, false), (true, true)] {
            let l = lab().await;
            *l.wire.blind.lock() = blind;
            tree(&l).await;
            let trail = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await;
            let [b, c, f] = [1, 2, 3].map(|i| trail.steps[i].fh.clone());
            let to = if across { &b } else { &c };
            l.meta.readdir(&l.cx, &c, 0, [0; 8], 1 << 20, true).await.unwrap();
            l.meta.readdir(&l.cx, to, 0, [0; 8], 1 << 20, true).await.unwrap();
            let other = rotate(&l, &c, "f", "other").await;
            if changed_before {
                make_file(&*l.meta, &l.cx, &c, "new", "text").await;
            }
            let none = RenameFlags::empty();
            let moved = l.meta.rename(&l.cx, (&c, &name("f")), (to, &name("h")), None, none).await.unwrap();
            assert_eq!(moved.object, (!blind).then_some(other.clone()));
            // The attributes of the object believed moved are known again.
            l.meta.getattr(&l.cx, File { fh: &f, open: None }).await.unwrap();
            l.meta.access(&l.cx, to, Access::LOOKUP).await.unwrap();
            let trail = walk(&*l.meta, &l.cx, to, "h").await;
            let case = format!("blind {blind}, across {across}, changed before {changed_before}");
            assert_eq!(trail.steps.last().map(|n| &n.fh), Some(&other), "{case}");

            // If no other client changes the directory, the moved object is known without a report.
            let moved = l.meta.rename(&l.cx, (to, &name("h")), (to, &name("i")), None, none).await.unwrap();
            assert_eq!(moved.object, Some(other), "{case}");
        }
    }
}

/// A lease that lapsed costs one request for the attributes. The cached contents are used if the
/// attributes are the same.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn lapsed_lease_costs_one_request() {
    let l = lab().await;
    tree(&l).await;
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps.pop().unwrap().fh;
    // The file changed long ago, so an equal version proves it unchanged.
    tokio::time::advance(VALID * 10).await;
    l.wire.lease(true);
    let fresh = || l.cx.fresh(Instant::now());
    assert_eq!(read_all(&*l.meta, &fresh(), &fh).await.unwrap(), "one");
    let expire = || l.wire.upcalls.get().unwrap().expire(std::slice::from_ref(&fh));
    l.wire.take();
    assert_eq!(read_all(&*l.meta, &fresh(), &fh).await.unwrap(), "one");
    assert_eq!(l.wire.take(), "");
    expire().await;
    // The answer serves the call that requested it.
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(l.meta.peek(&l.cx, PathRef::fh(&fh)).is_none());
    assert_eq!(read_all(&*l.meta, &fresh(), &fh).await.unwrap(), "one");
    assert_eq!(l.wire.take(), "getattr 1");
}

/// A local program of the server may replace a file without waiting for its lease. If that happens
/// before an open under the lease, the read of the open file fails with ESTALE. The next open finds
/// the new file under the name, even while the old binding is valid.
/// Promise: 8a'
#[tokio::test(start_paused = true)]
async fn stale_read_drops_name_binding() {
    for asks in [false, true] {
        let l = lab().await;
        tree(&l).await;
        let c = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps[2].fh.clone();
        l.wire.lease(true);
        tokio::time::advance(VALID * 2).await;
        let cx = || if asks { l.cx.fresh(Instant::now()) } else { l.cx.clone() };
        let fh = read_named(&*l.meta, &cx(), &c, "f").await.unwrap().0;
        l.wire.take();
        make_file(&*l.model, &l.cx, &c, "fresh", "new").await;
        let names = [name("fresh"), name("f")];
        l.model.rename(&l.cx, (&c, &names[0]), (&c, &names[1]), None, RenameFlags::empty()).await.unwrap();
        let opened = l.meta.open(&cx(), PathRef::name(&c, &names[1]), &READ).await.unwrap();
        assert_eq!((opened.node.fh, l.wire.take().as_str()), (fh.clone(), ""), "under the lease");
        l.wire.upcalls.get().unwrap().revoke(&fh).await;
        let read = l.meta.read(&l.cx, File { fh: &fh, open: Some(opened.open) }, 0, 1 << 20).await;
        assert_eq!(read.unwrap_err().errno, libc::ESTALE);
        assert_eq!(read_named(&*l.meta, &cx(), &c, "f").await.unwrap().1, "new", "{asks}");
        l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
    }
}

/// A file that this client wrote completely under a lease is opened and read without a request, if
/// the mode allows the owner to read. After the lease is withdrawn, the open sends a request.
/// Promise: 8a
#[tokio::test(start_paused = true)]
async fn leased_write_is_read_locally() {
    for (leased, mode, asks) in [(true, 0o644, false), (false, 0o644, true), (true, 0o244, true)] {
        let l = lab().await;
        l.wire.lease(leased);
        let opened = l.meta.open(&l.cx, PathRef::name(&l.top, &name("new")), &creating(mode)).await.unwrap();
        let fh = opened.node.fh.clone();
        let file = File { fh: &fh, open: Some(opened.open) };
        l.wire.take();
        assert!(l.meta.read(&l.cx, file, 0, 100).await.is_ok_and(|read| read.eof && read.data.is_empty()));
        assert_eq!(l.wire.take().is_empty(), leased, "nothing is in it yet");
        for (at, text) in [(0, "first"), (0, "all of it")] {
            let data = Bytes::copy_from_slice(text.as_bytes()).into();
            l.meta.write(&l.cx, file, at, data, Stability::Unstable).await.unwrap();
        }
        l.meta.close(&l.cx, &fh, opened.open).await.unwrap();
        l.wire.take();
        let fresh = || l.cx.fresh(Instant::now());
        assert_eq!(read_all(&*l.meta, &fresh(), &fh).await.unwrap(), "all of it");
        assert_eq!(!l.wire.take().is_empty(), asks, "leased: {leased}, {mode:o}");
        l.wire.upcalls.get().unwrap().revoke(&fh).await;
        let theirs =
            l.model.open(&l.cx, PathRef::fh(&fh), &OpenHow::existing(OpenAccess::WRITE)).await.unwrap();
        let at = File { fh: &fh, open: Some(theirs.open) };
        l.model.write(&l.cx, at, 0, Bytes::from_static(b"theirs").into(), Stability::Stable).await.unwrap();
        assert_eq!(read_all(&*l.meta, &fresh(), &fh).await.unwrap(), "theirs it");
    }
}

/// A partial write does not count as the complete file. Nor does a write that overlaps another
/// local change.
/// Promise: 8a
#[tokio::test(start_paused = true)]
async fn partial_write_proves_no_contents() {
    let l = lab().await;
    tree(&l).await;
    l.wire.lease(true);
    let fh = walk(&*l.meta, &l.cx, &l.top, "a/b/c/f").await.steps.pop().unwrap().fh;
    let opened = l.meta.open(&l.cx, PathRef::fh(&fh), &OpenHow::existing(OpenAccess::WRITE)).await.unwrap();
    let file = File { fh: &fh, open: Some(opened.open) };
    l.meta.write(&l.cx, file, 0, Bytes::from_static(b"O").into(), Stability::Unstable).await.unwrap();
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "One");
    let write = |at, text: &'static [u8]| {
        l.meta.write(&l.cx, file, at, Bytes::from_static(text).into(), Stability::Unstable)
    };
    let (a, b) = tokio::join!(write(0, b"two"), write(1, b"xyz"));
    a.and(b).unwrap();
    assert_eq!(read_all(&*l.meta, &l.cx, &fh).await.unwrap(), "txyz");
}

/// Contents that arrived under a lease are valid as long as it is held. Repeated requests for
/// attributes do not end that, even if an equal `change` proves nothing about a recent change.
/// After the lease has lapsed, an equal `change` proves the contents, if the change was long ago.
#[tokio::test(start_paused = true)]
async fn leased_contents_hold_until_lapse() {
    for old in [true, false] {
        let l = lab_with(MetadataCacheOptions { coarse_change: true, ..options() }, VALID).await;
        l.wire.lease(true);
        let fh = make_file(&*l.meta, &l.cx, &l.top, "f", "text").await;
        let again = async || {
            tokio::time::advance(Duration::from_millis(1)).await;
            l.wire.take();
            assert_eq!(read_all(&*l.meta, &l.cx.fresh(Instant::now()), &fh).await.unwrap(), "text");
            l.wire.take()
        };
        tokio::time::advance(Duration::from_millis(1)).await;
        l.meta.readdir(&l.cx.fresh(Instant::now()), &l.top, 0, [0; 8], 1 << 20, true).await.unwrap();
        assert_eq!(again().await, "", "although it was listed since");
        if old {
            // Each read of the wall clock advances it.
            for _ in 0..6000 {
                (l.meta.env.wall)();
            }
        }
        l.wire.upcalls.get().unwrap().expire(std::slice::from_ref(&fh)).await;
        assert_eq!(again().await == "getattr 1", old);
    }
}
