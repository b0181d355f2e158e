//! Containment and parents: a directory is served only below the exported one, and `..` never leads
//! above it.

use super::*;
use hither_vfs::{BatchOps, Creation, NewKind, Removal};

/// A directory served with a stock of new objects (`journal`), or without.
fn serve(dir: &Dir, state: &Dir, journaled: bool) -> Local {
    let journal = JournalOptions { path: state.path("journal"), size_bytes: 16 << 20, discard: false };
    let options = LocalOptions {
        state_dir: Some(state.path("state")),
        export_id: 1,
        journal: journaled.then_some(journal),
        stable: journaled,
        ..Default::default()
    };
    Local::open(&dir.0, options, env()).unwrap()
}

async fn parent(l: &Local, fh: &Fh) -> Result<Fh> {
    l.parent(&root(), fh).await.map(|node| node.fh)
}

/// Promise: S2
#[tokio::test]
async fn parent_is_the_directory_above() {
    for place in [None, Some("/dev/shm")] {
        let dir = place.map_or_else(Dir::new, Dir::on);
        let state = Dir::new();
        std::fs::create_dir_all(dir.path("a/b/c")).unwrap();
        std::fs::create_dir(dir.path("e")).unwrap();
        std::fs::write(dir.path("a/f"), b"x").unwrap();
        let l = serve(&dir, &state, false);
        let base = top(&l).await;
        let mut all = vec![base.clone()];
        for path in ["a", "a/b", "a/b/c"] {
            all.push(find(&l, &root(), path).await.unwrap().fh);
        }
        let file = find(&l, &root(), "a/f").await.unwrap().fh;
        drop(l);
        // A server that has not seen the directories finds them as well.
        let l = serve(&dir, &state, false);
        for pair in all.windows(2).rev() {
            let node = l.parent(&root(), &pair[1]).await.unwrap();
            assert_eq!(node.fh, pair[0]);
            assert_eq!(node.attrs.attr.kind, FileKind::Directory);
        }
        assert_eq!(errno(parent(&l, &base).await), libc::ENOENT);
        assert_eq!(errno(parent(&l, &file).await), libc::ENOTDIR);
        std::fs::rename(dir.path("a/b"), dir.path("e/b")).unwrap();
        let e = find(&l, &root(), "e").await.unwrap().fh;
        assert_eq!(parent(&l, &all[2]).await.unwrap(), e);
        let user = cx(1000, 1000, &[]);
        assert_eq!(l.parent(&user, &all[2]).await.unwrap().fh, e);
        std::fs::set_permissions(dir.path("e/b"), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(errno(l.parent(&user, &all[2]).await), libc::EACCES);
        std::fs::remove_dir(dir.path("e/b/c")).unwrap();
        assert_eq!(errno(parent(&l, &all[3]).await), libc::ESTALE);
    }
}

/// While a local program moves a directory in and out, its parent is one inside or none.
/// Promise: S2
#[tokio::test]
async fn parent_is_never_outside() {
    let (dir, outside) = (Dir::new(), Dir::new());
    std::fs::create_dir_all(dir.path("a/d/deep")).unwrap();
    let (l, cx) = (Arc::new(local(&dir)), root());
    let deep = find(&l, &cx, "a/d/deep").await.unwrap().fh;
    let (d, a) = (find(&l, &cx, "a/d").await.unwrap().fh, find(&l, &cx, "a").await.unwrap().fh);
    let (from, to) = (dir.path("a/d"), outside.path("d"));
    let racer = std::thread::spawn(move || {
        for _ in 0..2000 {
            std::fs::rename(&from, &to).unwrap();
            std::fs::rename(&to, &from).unwrap();
        }
    });
    let (mut inside, mut refused) = (0, 0);
    while !racer.is_finished() {
        for (below, above) in [(&deep, &d), (&d, &a)] {
            match parent(&l, below).await {
                Ok(fh) => {
                    assert_eq!(fh, *above);
                    inside += 1;
                }
                Err(e) => {
                    assert_eq!(e.errno, libc::ESTALE);
                    refused += 1;
                }
            }
        }
    }
    racer.join().unwrap();
    assert!(inside > 0 && refused > 0, "{inside} and {refused}: no race");
    assert_eq!(parent(&l, &d).await.unwrap(), a);
}

/// Errors of every call that names `dir`, which holds `f` and `sub`; `other` is a directory in its
/// place, `file` a file in it.
async fn every_call(l: &Local, dir: &Fh, other: &Fh, file: &Fh) -> Vec<(&'static str, i32)> {
    let (cx, none) = (root(), RenameFlags::empty());
    let (f, sub, new, g) = (name("f"), name("sub"), name("new"), name("g"));
    let set = mode(0o755);
    let at = File { fh: dir, open: None };
    let walk = async |want| match l.walk(&cx, PathRef::name(dir, &f), want).await {
        Ok(trail) => trail.steps.into_iter().next().map(drop).ok_or(Error::new(libc::ENOENT)),
        Err(e) => Err(e),
    };
    let listing = WalkRequest { listing_bytes: 4096, ..WalkRequest::default() };
    let target = Bytes::from_static(b"t");
    let creation = Creation { name: name("many"), set: set.clone(), kind: NewKind::File(Data::default()) };
    let removal = Removal { name: f.clone(), target: None, is_dir: false };
    let first = |all: Vec<Result<()>>| all.into_iter().next().unwrap();
    let drop_each = |all: Vec<Result<Made>>| all.into_iter().map(|one| one.map(drop)).collect::<Vec<_>>();
    vec![
        ("getattr", errno(l.getattr(&cx, at).await)),
        ("getattr_many", errno(l.getattr_many(&cx, std::slice::from_ref(dir)).await.remove(0))),
        (
            "revalidate_many",
            errno(l.revalidate_many(&cx, std::slice::from_ref(dir), Access::LOOKUP).await.remove(0)),
        ),
        ("list_many", errno(l.list_many(&cx, std::slice::from_ref(dir), 4096).await.remove(0))),
        ("walk", errno(walk(WalkRequest::default()).await)),
        ("walk with a listing", errno(walk(listing).await)),
        ("walk of no name", errno(l.walk(&cx, PathRef::fh(dir), WalkRequest::default()).await)),
        ("parent", errno(l.parent(&cx, dir).await)),
        ("access", errno(l.access(&cx, dir, Access::LOOKUP).await)),
        ("readdir", errno(l.readdir(&cx, dir, 0, [0; 8], 4096, false).await)),
        ("readdir with nodes", errno(l.readdir(&cx, dir, 0, [0; 8], 4096, true).await)),
        ("statfs", errno(l.statfs(&cx, dir).await)),
        ("listxattr", errno(l.listxattr(&cx, dir).await)),
        ("setxattr", errno(l.setxattr(&cx, dir, b"user.x", &target, XattrMode::Either).await)),
        ("getxattr", errno(l.getxattr(&cx, dir, b"user.x").await)),
        ("removexattr", errno(l.removexattr(&cx, dir, b"user.x").await)),
        ("setattr", errno(l.setattr(&cx, at, &set).await)),
        ("open", errno(l.open(&cx, PathRef::name(dir, &f), &how(both(), Create::No)).await)),
        ("create", errno(create(l, &cx, dir, "new", 0o644).await)),
        ("create_many", errno(first(drop_each(l.create_many(&cx, dir, &[creation]).await)))),
        ("mkdir", errno(l.mkdir(&cx, dir, &name("newdir"), &set).await)),
        ("mknod", errno(l.mknod(&cx, dir, &name("fifo"), &Special::Fifo, &set).await)),
        ("mknod of a file", errno(l.mknod(&cx, dir, &name("reg"), &Special::Regular, &set).await)),
        ("symlink", errno(l.symlink(&cx, dir, &name("link"), &target, &set).await)),
        ("link", errno(l.link(&cx, file, dir, &name("hard")).await)),
        ("rename out of it", errno(l.rename(&cx, (dir, &new), (other, &new), None, none).await)),
        ("rename into it", errno(l.rename(&cx, (other, &g), (dir, &g), None, none).await)),
        ("unlink", errno(l.unlink(&cx, dir, &f, None).await)),
        ("rmdir", errno(l.rmdir(&cx, dir, &sub).await)),
        (
            "remove_many",
            errno(first(
                l.remove_many(&cx, dir, &[removal]).await.into_iter().map(|one| one.map(drop)).collect(),
            )),
        ),
    ]
}

fn names_in(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// A directory in use is refused by every call as soon as a local program has moved it out, or a
/// directory above it. It is served again when it is back.
/// Promise: S2
#[tokio::test]
async fn used_directory_moved_out_is_refused() {
    for (journaled, moved, used) in
        [(false, "a/d", "a/d"), (false, "a", "a/d"), (true, "a/d", "a/d"), (true, "a", "a/d")]
    {
        let (dir, outside, state) = (Dir::new(), Dir::new(), Dir::new());
        std::fs::create_dir_all(dir.path("a/d/sub")).unwrap();
        std::fs::create_dir(dir.path("other")).unwrap();
        for path in ["a/d/f", "other/g", "other/file"] {
            std::fs::write(dir.path(path), b"x").unwrap();
        }
        let (l, cx) = (serve(&dir, &state, journaled), root());
        let d = find(&l, &cx, used).await.unwrap().fh;
        let (other, file) =
            (find(&l, &cx, "other").await.unwrap().fh, find(&l, &cx, "other/file").await.unwrap().fh);
        // Fills the cache of facts about the directory.
        for _ in 0..3 {
            l.readdir(&cx, &d, 0, [0; 8], 4096, true).await.unwrap();
            l.walk(&cx, PathRef::name(&d, &name("f")), WalkRequest::default()).await.unwrap();
        }
        let there = outside.path("there");
        std::fs::rename(dir.path(moved), &there).unwrap();
        let used_there = if moved == used { there.clone() } else { there.join("d") };
        let before = names_in(&used_there);
        for (call, errno) in every_call(&l, &d, &other, &file).await {
            assert_eq!(errno, libc::ESTALE, "{call} in {used}, journal: {journaled}, moved: {moved}");
        }
        assert_eq!(names_in(&used_there), before);
        std::fs::rename(&there, dir.path(moved)).unwrap();
        for (call, errno) in every_call(&l, &d, &other, &file).await {
            // Earlier calls have made or removed entries, which changes the outcome of some calls.
            assert_ne!(errno, libc::ESTALE, "{call} in {used}, journal: {journaled}, moved back: {moved}");
        }
    }
}

/// Without a private mount each step up is checked. The climb ends at the exported directory or
/// fails with ESTALE.
#[tokio::test]
async fn climb_stays_inside_export() {
    let (dir, outside) = (Dir::new(), Dir::new());
    std::fs::create_dir_all(dir.path("a/b/c")).unwrap();
    let (l, open) =
        (local(&dir), |path: PathBuf| rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap());
    for inside in ["", "a", "a/b/c"] {
        l.inner.climb(open(dir.path(inside)).as_fd()).unwrap();
    }
    let c = open(dir.path("a/b/c"));
    std::fs::rename(dir.path("a/b"), outside.path("b")).unwrap();
    assert_eq!(errno(l.inner.climb(c.as_fd())), libc::ESTALE);
    assert_eq!(errno(l.inner.climb(open(dir.path("..")).as_fd())), libc::ESTALE);
}
