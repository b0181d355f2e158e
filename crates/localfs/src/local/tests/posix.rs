//! The behaviour that programs expect of a file system.

use super::*;
use hither_vfs::BatchOps;

/// A file is created, written, read and closed. It is found by name and by filehandle.
#[tokio::test]
async fn file_is_written_and_read_back() {
    for place in [None, Some("/dev/shm")] {
        let dir = place.map_or_else(Dir::new, Dir::on);
        let (l, cx) = (local(&dir), root());
        let base = top(&l).await;
        let f = create(&l, &cx, &base, "f", 0o640).await.unwrap();
        assert!(f.created && f.node.fh.0.len() <= 24, "{:?}", f.node.fh);
        assert_eq!(f.node.attrs.attr.mode, 0o640);
        assert_eq!(put(&l, &cx, &f, 3, b"abc").await.unwrap(), 3);
        let file = File { fh: &f.node.fh, open: Some(f.open) };
        let read = l.read(&cx, file, 1, 100).await.unwrap();
        assert!(read.eof);
        assert_eq!(&read.data.into_bytes()[..], b"\0\0abc");
        let read = l.read(&cx, file, 0, 3).await.unwrap();
        assert!(!read.eof && read.data.len() == 3);
        assert!(l.read(&cx, file, 6, 3).await.unwrap().eof);
        assert_eq!(std::fs::read(dir.path("f")).unwrap(), b"\0\0\0abc");
        assert_eq!(find(&l, &cx, "f").await.unwrap().fh, f.node.fh);
        l.commit(&cx, file).await.unwrap();
        l.close(&cx, &f.node.fh, f.open).await.unwrap();
        assert_eq!(errno(l.close(&cx, &f.node.fh, f.open).await), libc::EBADF);
        assert_eq!(errno(l.read(&cx, file, 0, 3).await), libc::EBADF);
        assert_eq!(l.open_count(), 0);
    }
}

/// A write or an allocation beyond the largest offset is too big, and changes nothing.
#[tokio::test]
async fn bytes_beyond_largest_offset_are_refused() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o640).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    let most = i64::MAX as u64;
    for at in [most - 1, most, most + 1, u64::MAX - 1, u64::MAX] {
        for stability in [Stability::Unstable, Stability::Stable] {
            let wrote = l.write(&cx, file, at, Bytes::from_static(b"ab").into(), stability).await;
            assert_eq!(errno(wrote), libc::EFBIG, "{at}");
        }
        let range = FileRange { start_bytes: at, end_bytes: at.saturating_add(2) };
        assert_eq!(errno(l.allocate(&cx, file, range).await), libc::EFBIG, "{at}");
    }
    assert_eq!(l.getattr(&cx, file).await.unwrap().attr.size_bytes, 0);
}

/// The kernel checks each call with the identity of its caller, also when many threads serve many
/// callers.
/// Promise: S1
#[tokio::test]
async fn kernel_checks_caller_identity() {
    let dir = Dir::new();
    let (l, admin) = (local(&dir), root());
    let base = top(&l).await;
    let set = SetAttr { mode: Some(0o2770), uid: Some(10), gid: Some(77), ..Default::default() };
    let d = l.mkdir(&admin, &base, &name("d"), &set).await.unwrap().node;
    assert_eq!((d.attrs.attr.mode, d.attrs.attr.uid, d.attrs.attr.gid), (0o2770, 10, 77));
    let d = d.fh;
    // Many threads serve many identities in turn, and mix none of them up.
    let (owner, member, other) = (cx(10, 10, &[]), cx(11, 11, &[5, 77]), cx(12, 12, &[5]));
    let l = &l;
    let turns = (0..60).map(|i| {
        let (d, owner, member, other) = (d.clone(), owner.clone(), member.clone(), other.clone());
        async move {
            let (cx, want) = [(&owner, 0), (&member, 0), (&other, libc::EACCES)][i % 3];
            let made = create(l, cx, &d, &format!("f{i}"), 0o640).await;
            if want != 0 {
                return assert_eq!(errno(made), want);
            }
            let made = made.unwrap();
            let attr = &made.node.attrs.attr;
            assert_eq!((attr.uid, attr.gid), (cx.cred.uid, 77), "set-gid directories give their group");
            l.close(cx, &made.node.fh, made.open).await.unwrap();
        }
    });
    futures_join(turns).await;
    let f = find(l, &owner, "d/f0").await.unwrap();
    assert_eq!(errno(find(l, &other, "d/f0").await), libc::EACCES);
    assert_eq!(read_all(l, &member, &f.fh).await.unwrap().len(), 0);
    assert_eq!(errno(read_all(l, &other, &f.fh).await), libc::EACCES);
    let at = PathRef::fh(&f.fh);
    assert_eq!(errno(l.open(&member, at, &how(OpenAccess::WRITE, Create::No)).await), libc::EACCES);
    let file = File { fh: &f.fh, open: None };
    assert_eq!(errno(l.setattr(&member, file, &mode(0o777)).await), libc::EPERM);
    assert_eq!(errno(l.unlink(&other, &d, &name("f0"), None).await), libc::EACCES);
    let give = SetAttr { uid: Some(11), ..Default::default() };
    assert_eq!(errno(l.setattr(&owner, file, &give).await), libc::EPERM);
    let all = Access::all();
    assert_eq!(l.access(&member, &f.fh, all).await.unwrap(), Access::READ);
    let rights = Access::READ | Access::MODIFY | Access::EXTEND;
    assert_eq!(l.access(&owner, &f.fh, all).await.unwrap(), rights);
    assert_eq!(l.access(&other, &f.fh, all).await.unwrap(), Access::empty());
}

/// A caller with user or group -1 is refused. This number would leave the identity of the server
/// unchanged.
/// Promise: S1
#[tokio::test]
async fn uid_minus_one_is_refused() {
    let dir = Dir::new();
    let l = local(&dir);
    let base = top(&l).await;
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    for cx in [cx(u32::MAX, 0, &[]), cx(5, u32::MAX, &[]), cx(u32::MAX, u32::MAX, &[])] {
        assert_ne!(errno(create(&l, &cx, &base, "f", 0o644).await), 0);
    }
    // The thread that refused serves the next caller with the right identity.
    let made = create(&l, &cx(5, 6, &[]), &base, "f", 0o644).await.unwrap();
    assert_eq!((made.node.attrs.attr.uid, made.node.attrs.attr.gid), (5, 6));
    let file = File { fh: &made.node.fh, open: None };
    let nobody = SetAttr { uid: Some(u32::MAX), ..Default::default() };
    assert_eq!(errno(l.setattr(&root(), file, &nobody).await), libc::EINVAL);
}

/// A new file has its full mode, because no umask of the server applies. A write by an unprivileged
/// caller clears the set-id bits.
#[tokio::test]
async fn unprivileged_write_clears_setid_bits() {
    let dir = Dir::new();
    let (l, admin, user) = (local(&dir), root(), cx(10, 10, &[]));
    let base = top(&l).await;
    let f = create(&l, &admin, &base, "f", 0o6777).await.unwrap();
    assert_eq!(f.node.attrs.attr.mode, 0o6777, "no umask of ours");
    let at = PathRef::fh(&f.node.fh);
    let o = l.open(&user, at, &how(OpenAccess::WRITE, Create::No)).await.unwrap();
    put(&l, &user, &o, 0, b"x").await.unwrap();
    let file = File { fh: &f.node.fh, open: None };
    assert_eq!(l.getattr(&admin, file).await.unwrap().attr.mode, 0o777);
}

/// SETATTR sets times and lengths with the permissions of POSIX. A refused call changes nothing.
#[tokio::test]
async fn setattr_sets_times_and_lengths() {
    let dir = Dir::new();
    let (l, owner, other) = (local(&dir), cx(10, 10, &[]), cx(11, 11, &[]));
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let base = top(&l).await;
    let f = create(&l, &owner, &base, "f", 0o444).await.unwrap();
    let (file, open) = (File { fh: &f.node.fh, open: None }, File { fh: &f.node.fh, open: Some(f.open) });
    let to = |secs, nanos| Some(SetTime::To(Time { secs, nanos }));
    let set = SetAttr { atime: to(5, 6), mtime: to(-7, 8), ..Default::default() };
    let a = l.setattr(&owner, file, &set).await.unwrap().attr;
    assert_eq!((a.atime, a.mtime), (Time { secs: 5, nanos: 6 }, Time { secs: -7, nanos: 8 }));
    let now = SetAttr { mtime: Some(SetTime::Now), ..Default::default() };
    assert_eq!(errno(l.setattr(&other, file, &now).await), libc::EACCES.min(libc::EPERM));
    let now = l.setattr(&owner, file, &now).await.unwrap().attr;
    assert!(now.mtime.secs > 1_700_000_000 && now.atime.secs == 5);
    let cut = |size| SetAttr { size_bytes: Some(size), ..Default::default() };
    assert_eq!(l.setattr(&owner, open, &cut(10)).await.unwrap().attr.size_bytes, 10);
    // The owner can truncate the file despite mode 0444. Another caller may not.
    assert_eq!(errno(l.setattr(&other, file, &cut(0)).await), libc::EACCES);
    let more = SetAttr { mode: Some(0o777), ..cut(0) };
    assert_eq!(errno(l.setattr(&other, open, &more).await), libc::EPERM);
    // An open for writing gives no right to the times.
    for time in [Some(SetTime::Now), to(5, 6)] {
        for more in [SetAttr { mtime: time, ..cut(0) }, SetAttr { atime: time, ..cut(0) }] {
            let refused = errno(l.setattr(&other, open, &more).await);
            assert_eq!(refused, if time == Some(SetTime::Now) { libc::EACCES } else { libc::EPERM });
        }
    }
    assert_eq!(l.getattr(&owner, file).await.unwrap().attr.size_bytes, 10, "nothing was done by halves");
    assert_eq!(errno(l.setattr(&owner, File { fh: &base, open: None }, &cut(0)).await), libc::EISDIR);
}

/// Creations, links, renames and removals of names have the results and errors of POSIX.
#[tokio::test]
async fn namespace_calls_follow_posix() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    let a = l.mkdir(&cx, &base, &name("a"), &mode(0o755)).await.unwrap();
    assert_ne!(a.dir.before, a.dir.after);
    let a = a.node.fh;
    let b = l.mkdir(&cx, &a, &name("b"), &mode(0o755)).await.unwrap().node.fh;
    let none = RenameFlags::empty();
    let loops = l.rename(&cx, (&base, &name("a")), (&b, &name("c")), None, none).await;
    assert_eq!(errno(loops), libc::EINVAL);
    let f = create(&l, &cx, &a, "f", 0o644).await.unwrap();
    let linked = l.link(&cx, &f.node.fh, &b, &name("g")).await.unwrap();
    assert_eq!((linked.node.fh, linked.node.attrs.attr.nlink), (f.node.fh.clone(), 2));
    let s = l.symlink(&cx, &b, &name("s"), &Bytes::from_static(b"../f"), &SetAttr::default()).await.unwrap();
    assert_eq!(&l.readlink(&cx, &s.node.fh).await.unwrap()[..], b"../f");
    // link(2) of a symbolic link links the symbolic link itself.
    l.link(&cx, &s.node.fh, &a, &name("s2")).await.unwrap();
    assert_eq!(std::fs::read_link(dir.path("a/s2")).unwrap(), Path::new("../f"));
    assert_eq!(errno(l.link(&cx, &a, &base, &name("x")).await), libc::EPERM);
    let hither_vfs::Moved { from, to, .. } =
        l.rename(&cx, (&a, &name("f")), (&b, &name("g2")), None, none).await.unwrap();
    assert!(from.before != from.after && to.before != to.after);
    assert_eq!(find(&l, &cx, "a/b/g2").await.unwrap().fh, f.node.fh);
    let keep = l.rename(&cx, (&b, &name("s")), (&b, &name("g")), None, RenameFlags::NOREPLACE).await;
    assert_eq!(errno(keep), libc::EEXIST);
    l.rename(&cx, (&b, &name("s")), (&b, &name("g")), None, RenameFlags::EXCHANGE).await.unwrap();
    assert_eq!(find(&l, &cx, "a/b/s").await.unwrap().fh, f.node.fh);
    assert_eq!(errno(l.rmdir(&cx, &a, &name("b")).await), libc::ENOTEMPTY);
    assert_eq!(errno(l.unlink(&cx, &a, &name("b"), None).await), libc::EISDIR);
    assert_eq!(errno(l.rmdir(&cx, &b, &name("g2")).await), libc::ENOTDIR);
    for n in ["g", "s", "g2"] {
        l.unlink(&cx, &b, &name(n), None).await.unwrap();
    }
    l.rmdir(&cx, &a, &name("b")).await.unwrap();
    assert_eq!(errno(l.getattr(&cx, File { fh: &b, open: None }).await), libc::ESTALE);
    assert_eq!(errno(find(&l, &cx, "a/b").await), libc::ENOENT);
    for (what, n) in [(Special::Fifo, "p"), (Special::Socket, "k"), (Special::CharDevice(1, 3), "c")] {
        let made = l.mknod(&cx, &base, &name(n), &what, &mode(0o600)).await.unwrap();
        assert_eq!(
            errno(l.open(&cx, PathRef::fh(&made.node.fh), &how(both(), Create::No)).await),
            libc::EINVAL
        );
    }
    let user = super::cx(10, 10, &[]);
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    let made = l.mknod(&user, &base, &name("d"), &Special::CharDevice(1, 3), &mode(0o600)).await;
    assert_eq!(errno(made), libc::EPERM);
}

/// An unlinked open file is readable until its last close. Then its filehandle is stale.
#[tokio::test]
async fn unlinked_file_lives_until_close() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    put(&l, &cx, &f, 0, b"abc").await.unwrap();
    l.unlink(&cx, &base, &name("f"), None).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    assert_eq!(l.getattr(&cx, file).await.unwrap().attr.nlink, 0);
    assert_eq!(l.read(&cx, file, 0, 10).await.unwrap().data.len(), 3);
    let by_handle = File { fh: &f.node.fh, open: None };
    assert_eq!(l.read(&cx, by_handle, 0, 10).await.unwrap().data.len(), 3);
    l.close(&cx, &f.node.fh, f.open).await.unwrap();
    assert_eq!(errno(l.getattr(&cx, by_handle).await), libc::ESTALE);
    assert_eq!(errno(l.read(&cx, by_handle, 0, 10).await), libc::ESTALE);
}

/// The server releases a replaced or removed file at once, so that the file system frees its space.
#[tokio::test]
async fn removed_file_is_released_at_once() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    for n in ["f", "g"] {
        let f = create(&l, &cx, &base, n, 0o644).await.unwrap();
        l.close(&cx, &f.node.fh, f.open).await.unwrap();
    }
    let known = l.known_count();
    l.rename(&cx, (&base, &name("f")), (&base, &name("g")), None, RenameFlags::empty()).await.unwrap();
    assert_eq!(l.known_count(), known - 1);
    l.unlink(&cx, &base, &name("g"), None).await.unwrap();
    assert_eq!(l.known_count(), known - 2);
}

/// A listing of a large directory returns each name once, although names are removed meanwhile.
#[tokio::test]
async fn changing_directory_lists_names_once() {
    for place in [None, Some("/dev/shm")] {
        let dir = place.map_or_else(Dir::new, Dir::on);
        let (l, cx) = (local(&dir), root());
        let base = top(&l).await;
        for i in 0..500 {
            std::fs::write(dir.path(&format!("file-{i:03}")), b"x").unwrap();
        }
        let (mut cookie, mut seen) = (0, std::collections::BTreeSet::new());
        let mut pages = 0;
        loop {
            let page = l.readdir(&cx, &base, cookie, [0; 8], 4096, pages % 2 == 0).await.unwrap();
            assert!(page.eof || !page.entries.is_empty());
            for e in &page.entries {
                assert!(e.cookie > 2);
                cookie = e.cookie;
                assert!(seen.insert(e.name.clone()), "{:?} twice", e.name);
                assert_eq!(e.node.is_some(), pages % 2 == 0);
                if let Some(node) = &e.node {
                    assert_eq!(node.attrs.attr.size_bytes, 1);
                    let again = l.getattr(&cx, File { fh: &node.fh, open: None }).await.unwrap();
                    assert_eq!(again.attr.fileid, e.fileid);
                }
                if seen.len() % 3 == 0 {
                    l.unlink(&cx, &base, &e.name, None).await.unwrap();
                }
            }
            pages += 1;
            if page.eof {
                break;
            }
        }
        assert_eq!(seen.len(), 500);
        assert!(pages > 5, "{pages}");
    }
}

/// A walk returns the objects of its path and the reason of its end. It brings the requested
/// listing, bytes and access.
#[tokio::test]
async fn walk_returns_requested_data() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    std::fs::create_dir_all(dir.path("a/b")).unwrap();
    std::fs::write(dir.path("a/b/f"), b"hello").unwrap();
    symlink("b", dir.path("a/s")).unwrap();
    let base = top(&l).await;
    let walk = async |path: &str, want| {
        l.walk(&cx, PathRef { base: &base, path: &names(path) }, want).await.unwrap()
    };
    let want = WalkRequest {
        listing_bytes: 4096,
        read_bytes: 100,
        access: Access::READ | Access::EXECUTE,
        target: false,
    };
    let trail = walk("a/b/f", want).await;
    assert!(matches!(trail.stop, Stop::Complete) && trail.steps.len() == 3);
    assert_eq!(&trail.along.first.unwrap().data.into_bytes()[..], b"hello");
    assert_eq!(trail.along.access, Some(Access::READ));
    assert_eq!(trail.along.listing.unwrap().entries.len(), 1);
    assert!(trail.along.base.is_some());
    let trail = walk("a/b/none/x", want).await;
    assert!(matches!(trail.stop, Stop::Missing(_)) && trail.steps.len() == 2);
    let trail = walk("a/s/f", WalkRequest::default()).await;
    assert!(matches!(trail.stop, Stop::Symlink) && trail.steps.len() == 2);
    let trail = walk("a/b/f/x", WalkRequest::default()).await;
    assert!(matches!(trail.stop, Stop::NotDirectory) && trail.steps.len() == 3);
}

/// Each change by a local program is seen at once and gives the object a new `change`.
/// Promise: S4
#[tokio::test]
async fn local_changes_update_change_attribute() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    std::fs::write(dir.path("f"), b"one").unwrap();
    let f = find(&l, &cx, "f").await.unwrap();
    let file = File { fh: &f.fh, open: None };
    let mut seen = std::collections::HashSet::new();
    let out = std::fs::File::options().write(true).open(dir.path("f")).unwrap();
    for i in 0..200_u64 {
        out.write_all_at(&[b'a' + (i % 26) as u8], i % 3).unwrap();
        let change = l.getattr(&cx, file).await.unwrap().attr.change;
        assert!(seen.insert(change), "{i} changes look like fewer");
        assert_eq!(l.getattr(&cx, file).await.unwrap().attr.change, change, "and no change like one");
    }
    let mut dirs = std::collections::HashSet::new();
    for i in 0..200 {
        std::fs::write(dir.path(&format!("g{i}")), b"").unwrap();
        let change = l.getattr(&cx, File { fh: &base, open: None }).await.unwrap().attr.change;
        assert!(dirs.insert(change));
    }
    std::fs::rename(dir.path("g0"), dir.path("f")).unwrap();
    assert_ne!(find(&l, &cx, "f").await.unwrap().fh, f.fh);
    assert_eq!(errno(l.getattr(&cx, file).await), libc::ESTALE);
}

/// On a file system with coarse times each reply about a recent change has a `change` of its own.
/// Promise: S4
#[tokio::test]
async fn young_change_gets_unique_value() {
    let dir = Dir::new();
    let options = LocalOptions { stable: false, coarse_times: true, ..Default::default() };
    let l = Local::open(&dir.0, options, env()).unwrap();
    let cx = root();
    std::fs::write(dir.path("f"), b"one").unwrap();
    let f = find(&l, &cx, "f").await.unwrap();
    let file = File { fh: &f.fh, open: None };
    // On a busy machine a change may be old before its attributes are read.
    let mut young = false;
    for _ in 0..100 {
        std::fs::write(dir.path("f"), b"two").unwrap();
        let (a, b) = (l.getattr(&cx, file).await.unwrap(), l.getattr(&cx, file).await.unwrap());
        young = a.attr.change >> 63 == 1;
        if young {
            assert_ne!(a.attr.change, b.attr.change);
            break;
        }
    }
    assert!(young, "no change was young");
    tokio::time::sleep(Duration::from_millis(40)).await;
    let (a, b) = (l.getattr(&cx, file).await.unwrap(), l.getattr(&cx, file).await.unwrap());
    assert!(a.attr.change == b.attr.change && a.attr.change >> 63 == 0);
}

/// DEALLOCATE makes holes, SEEK finds them, ALLOCATE extends the file, and COPY copies bytes.
#[tokio::test]
async fn holes_are_punched_and_found() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    let data = Bytes::from(vec![7; 64 << 10]);
    l.write(&cx, file, 0, data.into(), Stability::Stable).await.unwrap();
    l.deallocate(&cx, file, FileRange { start_bytes: 16 << 10, end_bytes: 32 << 10 }).await.unwrap();
    assert_eq!(l.seek(&cx, file, 0, Seek::Hole).await.unwrap(), 16 << 10);
    assert_eq!(l.seek(&cx, file, 20 << 10, Seek::Data).await.unwrap(), 32 << 10);
    assert_eq!(errno(l.seek(&cx, file, 64 << 10, Seek::Data).await), libc::ENXIO);
    l.allocate(&cx, file, FileRange { start_bytes: 0, end_bytes: 100 << 10 }).await.unwrap();
    assert_eq!(l.getattr(&cx, file).await.unwrap().attr.size_bytes, 100 << 10);
    let g = create(&l, &cx, &base, "g", 0o644).await.unwrap();
    let to = File { fh: &g.node.fh, open: Some(g.open) };
    assert_eq!(l.copy(&cx, file, 8 << 10, to, 5, 16 << 10).await.unwrap(), 16 << 10);
    let copied = std::fs::read(dir.path("g")).unwrap();
    assert_eq!(copied.len(), (16 << 10) + 5);
    assert!(copied[5..(8 << 10) + 5].iter().all(|&b| b == 7));
    assert!(copied[(8 << 10) + 5..].iter().all(|&b| b == 0));
}

/// Extended attributes with the prefix `user.` are stored. Calls about others fail with EOPNOTSUPP.
#[tokio::test]
async fn only_user_xattrs_are_served() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o600).await.unwrap().node.fh;
    let value = Bytes::from_static(b"v\0w");
    l.setxattr(&cx, &f, b"user.a", &value, XattrMode::Create).await.unwrap();
    let again = l.setxattr(&cx, &f, b"user.a", &value, XattrMode::Create).await;
    assert_eq!(errno(again), libc::EEXIST);
    let none = l.setxattr(&cx, &f, b"user.b", &value, XattrMode::Replace).await;
    assert_eq!(errno(none), libc::ENODATA);
    assert_eq!(l.getxattr(&cx, &f, b"user.a").await.unwrap(), value);
    assert_eq!(l.listxattr(&cx, &f).await.unwrap(), [Bytes::from_static(b"user.a")]);
    let other = super::cx(9, 9, &[]);
    assert_eq!(errno(l.getxattr(&other, &f, b"user.a").await), libc::EACCES);
    for n in [&b"trusted.x"[..], b"security.capability", b"system.posix_acl_access", b"user."] {
        assert_eq!(errno(l.setxattr(&cx, &f, n, &value, XattrMode::Either).await), libc::EOPNOTSUPP);
    }
    l.removexattr(&cx, &f, b"user.a").await.unwrap();
    assert_eq!(errno(l.getxattr(&cx, &f, b"user.a").await), libc::ENODATA);
}

#[tokio::test]
async fn locks_conflict_split_join_and_wake() {
    let dir = Dir::new();
    let l = Arc::new(local(&dir));
    let cx = root();
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    let range = |start_bytes, end_bytes| FileRange { start_bytes, end_bytes };
    let owner = |id| LockOwner { id, flock: false };
    let lock = async |o, kind, r| l.lock(&cx, file, owner(o), kind, r, LockWait::No).await;
    lock(1, LockKind::Write, range(0, 100)).await.unwrap();
    l.unlock(&cx, file, owner(1), range(40, 60)).await.unwrap();
    lock(2, LockKind::Write, range(40, 60)).await.unwrap();
    assert_eq!(errno(lock(2, LockKind::Read, range(39, 60)).await), libc::EAGAIN);
    let found = l.test_lock(&cx, file, owner(3), LockKind::Read, range(0, u64::MAX)).await.unwrap().unwrap();
    assert!([(0, 40), (40, 60), (60, 100)].contains(&(found.range.start_bytes, found.range.end_bytes)));
    let found = l.test_lock(&cx, file, owner(3), LockKind::Read, range(99, 200)).await.unwrap().unwrap();
    assert_eq!((found.range.start_bytes, found.range.end_bytes), (60, 100));
    l.unlock(&cx, file, owner(2), range(0, u64::MAX)).await.unwrap();
    lock(1, LockKind::Write, range(40, 60)).await.unwrap();
    let found = l.test_lock(&cx, file, owner(3), LockKind::Read, range(50, 51)).await.unwrap().unwrap();
    assert_eq!((found.range.start_bytes, found.range.end_bytes), (0, 100), "neighbours join");
    let waiter = {
        let (l, cx, fh, open) = (l.clone(), cx.clone(), f.node.fh.clone(), f.open);
        tokio::spawn(async move {
            let file = File { fh: &fh, open: Some(open) };
            l.lock(&cx, file, owner(2), LockKind::Write, range(0, u64::MAX), LockWait::Yes).await
        })
    };
    tokio::task::yield_now().await;
    lock(1, LockKind::Read, range(0, 100)).await.unwrap();
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    l.unlock(&cx, file, owner(1), range(0, 100)).await.unwrap();
    waiter.await.unwrap().unwrap();
    l.unlock(&cx, file, owner(2), range(0, u64::MAX)).await.unwrap();
    assert!(l.test_lock(&cx, file, owner(3), LockKind::Write, range(0, u64::MAX)).await.unwrap().is_none());
}

/// The server holds a bounded number of objects. All others stay reachable by their filehandles.
#[tokio::test]
async fn evicted_objects_stay_reachable() {
    let dir = Dir::new();
    let options = LocalOptions { stable: false, known_max: 64, ..Default::default() };
    let (l, cx) = (Local::open(&dir.0, options, env()).unwrap(), root());
    let base = top(&l).await;
    let mut all = Vec::new();
    for i in 0..500 {
        let f = create(&l, &cx, &base, &format!("f{i}"), 0o644).await.unwrap();
        put(&l, &cx, &f, 0, b"x").await.unwrap();
        let file = File { fh: &f.node.fh, open: Some(f.open) };
        l.commit(&cx, file).await.unwrap();
        l.close(&cx, &f.node.fh, f.open).await.unwrap();
        all.push(f.node);
    }
    assert!(l.known_count() <= 80, "{}", l.known_count());
    for node in &all {
        let attrs = l.getattr(&cx, File { fh: &node.fh, open: None }).await.unwrap();
        assert_eq!(attrs.attr.fileid, node.attrs.attr.fileid);
        assert_eq!(&read_all(&l, &cx, &node.fh).await.unwrap()[..], b"x");
    }
    let fhs: Vec<Fh> = all.iter().map(|n| n.fh.clone()).collect();
    assert!(l.getattr_many(&cx, &fhs).await.iter().all(Result::is_ok));
}

/// With stable storage calls work on files, directories, FIFOs and symbolic links.
#[tokio::test]
async fn stable_calls_accept_every_object_type() {
    let dir = Dir::new();
    let (l, cx) = (Local::open(&dir.0, LocalOptions::default(), env()).unwrap(), root());
    let base = top(&l).await;
    let f = create(&l, &cx, &base, "f", 0o644).await.unwrap();
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    l.write(&cx, file, 0, Data::from(Bytes::from_static(b"abc")), Stability::Stable).await.unwrap();
    put(&l, &cx, &f, 3, b"def").await.unwrap();
    l.close(&cx, &f.node.fh, f.open).await.unwrap();
    let d = l.mkdir(&cx, &base, &name("d"), &mode(0o755)).await.unwrap().node.fh;
    let p = l.mknod(&cx, &d, &name("p"), &Special::Fifo, &mode(0o600)).await.unwrap().node.fh;
    l.setattr(&cx, File { fh: &p, open: None }, &mode(0o644)).await.unwrap();
    l.symlink(&cx, &d, &name("s"), &Bytes::from_static(b"x"), &SetAttr::default()).await.unwrap();
    l.link(&cx, &f.node.fh, &d, &name("g")).await.unwrap();
    l.rename(&cx, (&d, &name("g")), (&base, &name("h")), None, RenameFlags::empty()).await.unwrap();
    l.unlink(&cx, &d, &name("s"), None).await.unwrap();
    l.shutdown(&cx).await.unwrap();
    assert_eq!(std::fs::metadata(dir.path("h")).unwrap().nlink(), 2);
}

async fn futures_join(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|f| f.as_mut().poll(cx).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
