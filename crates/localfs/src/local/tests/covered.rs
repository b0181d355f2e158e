//! Covered directories are empty and read-only, and show their contents again when they are
//! uncovered.

use super::*;

fn changes(l: &Local, dir: &Fh, other: &Fh) -> Vec<std::pin::Pin<Box<dyn Future<Output = i32> + Send>>> {
    let l = Local { inner: l.inner.clone() };
    let l = Arc::new(l);
    macro_rules! call {
        (|$l:ident, $cx:ident, $dir:ident, $other:ident| $call:expr) => {{
            let ($l, $cx, $dir, $other) = (l.clone(), root(), dir.clone(), other.clone());
            Box::pin(async move {
                let _ = &$other;
                errno($call.await)
            })
        }};
    }
    vec![
        call!(|l, cx, dir, other| create(&l, &cx, &dir, "new", 0o644)),
        call!(|l, cx, dir, other| l.mkdir(&cx, &dir, &name("newdir"), &mode(0o755))),
        call!(|l, cx, dir, other| l.mknod(&cx, &dir, &name("fifo"), &Special::Fifo, &mode(0o644))),
        call!(|l, cx, dir, other| l.symlink(
            &cx,
            &dir,
            &name("link"),
            &Bytes::from_static(b"t"),
            &mode(0o777)
        )),
        call!(|l, cx, dir, other| l.unlink(&cx, &dir, &name("hidden"), None)),
        call!(|l, cx, dir, other| l.rmdir(&cx, &dir, &name("sub"))),
        call!(|l, cx, dir, other| async {
            let to = name("moved");
            l.rename(&cx, (&other, &name("g")), (&dir, &to), None, RenameFlags::empty()).await
        }),
        call!(|l, cx, dir, other| async {
            let from = name("hidden");
            l.rename(&cx, (&dir, &from), (&other, &from), None, RenameFlags::empty()).await
        }),
        call!(|l, cx, dir, other| async {
            let g = find(&l, &cx, "other/g").await.unwrap().fh;
            l.link(&cx, &g, &dir, &name("hard")).await
        }),
        call!(|l, cx, dir, other| l.setattr(&cx, File { fh: &dir, open: None }, &mode(0o700))),
        call!(|l, cx, dir, other| async {
            l.setxattr(&cx, &dir, b"user.x", &Bytes::from_static(b"v"), XattrMode::Either).await
        }),
    ]
}

/// A covered directory appears empty, and changes in it fail with EROFS. Its removal or rename
/// fails with EBUSY.
/// Promise: S2a
#[tokio::test]
async fn covered_directory_is_read_only() {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.path("a/m/sub")).unwrap();
    std::fs::create_dir(dir.path("other")).unwrap();
    for path in ["a/m/hidden", "other/g"] {
        std::fs::write(dir.path(path), b"x").unwrap();
    }
    let (l, cx) = (local(&dir), root());
    let m = find(&l, &cx, "a/m").await.unwrap().fh;
    let (a, other) = (find(&l, &cx, "a").await.unwrap().fh, find(&l, &cx, "other").await.unwrap().fh);
    let listed = async |l: &Local| l.readdir(&cx, &m, 0, [0; 8], 4096, true).await.unwrap().entries.len();
    for _ in 0..3 {
        assert_eq!(listed(&l).await, 2);
        find(&l, &cx, "a/m/hidden").await.unwrap();
    }
    let found = l.cover(&[names("a/m"), names("a/missing"), names("other/g")]);
    let covered = found[0].clone().unwrap();
    assert_eq!(covered.fh, m);
    assert_eq!(covered.fileid, std::fs::metadata(dir.path("a/m")).unwrap().ino());
    assert!(found[1].is_err() && found[2].is_err());
    assert_eq!(listed(&l).await, 0);
    assert_eq!(errno(find(&l, &cx, "a/m/hidden").await), libc::ENOENT);
    for (i, change) in changes(&l, &m, &other).into_iter().enumerate() {
        assert_eq!(change.await, libc::EROFS, "change {i}");
    }
    let none = RenameFlags::empty();
    assert_eq!(errno(l.rmdir(&cx, &a, &name("m")).await), libc::EBUSY);
    let moved = l.rename(&cx, (&a, &name("m")), (&other, &name("m")), None, none).await;
    assert_eq!(errno(moved), libc::EBUSY);
    l.cover(&[]);
    assert_eq!(listed(&l).await, 2);
    create(&l, &cx, &m, "new", 0o644).await.unwrap();
}

/// A mount point on this machine shows the directory below the mount. It can be covered with or
/// without the mount.
#[tokio::test]
async fn mount_point_can_be_covered() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let dir = Dir::new();
    std::fs::create_dir_all(dir.path("m")).unwrap();
    std::fs::write(dir.path("m/below"), b"x").unwrap();
    let (l, cx) = (local(&dir), root());
    mount("tmpfs", dir.path("m"), "tmpfs", MountFlags::empty(), None).unwrap();
    let m = l.cover(&[names("m")]).remove(0).unwrap();
    let shown = find(&l, &cx, "m").await.unwrap();
    unmount(dir.path("m"), UnmountFlags::DETACH).unwrap();
    assert_eq!((shown.fh, shown.attrs.attr.fileid), (m.fh.clone(), m.fileid));
    assert_eq!(errno(create(&l, &cx, &m.fh, "new", 0o644).await), libc::EROFS);
}
