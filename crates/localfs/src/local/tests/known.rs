//! Cached facts about directories are used, and agree with the kernel.

use super::*;
use rustix::fs::{StatVfsMountFlags, fstatvfs};

/// Looks the path up three times, so that the answers are cached.
async fn settle(l: &Local, cx: &RequestContext, path: &str) -> Node {
    for _ in 0..2 {
        find(l, cx, path).await.unwrap();
    }
    find(l, cx, path).await.unwrap()
}

fn known(l: &Local, cx: &RequestContext, base: &Fh, n: &str) -> bool {
    l.inner.walk_known(cx, PathRef::name(base, &name(n)), WalkRequest::default()).is_some()
}

fn ino(node: &Node) -> u64 {
    node.attrs.attr.fileid
}

/// Directories on file systems with multigrain timestamps. On others no facts are cached.
fn places() -> Vec<Dir> {
    [Dir::new(), Dir::on("/dev/shm")]
        .into_iter()
        .filter(|dir| {
            let top = std::fs::File::open(&dir.0).unwrap();
            let local = local(dir);
            assert!(!fstatvfs(&top).unwrap().f_flag.contains(StatVfsMountFlags::RDONLY));
            local.inner.attributer.multigrain
        })
        .collect()
}

/// A name changed by a local program or through the server leads to the present file at once.
/// Attributes are always the present ones.
/// Promise: S4
#[tokio::test]
async fn local_renames_are_seen_at_once() {
    for dir in places() {
        let (l, cx) = (local(&dir), root());
        let base = top(&l).await;
        std::fs::write(dir.path("f"), b"one").unwrap();
        let first = settle(&l, &cx, "f").await;
        assert!(known(&l, &cx, &base, "f"), "what was asked for often is known");
        // The present attributes are answered, not cached ones.
        std::fs::write(dir.path("f"), b"three").unwrap();
        assert!(known(&l, &cx, &base, "f"));
        assert_eq!(find(&l, &cx, "f").await.unwrap().attrs.attr.size_bytes, 5);
        for i in 0..200 {
            let was = settle(&l, &cx, "f").await;
            std::fs::write(dir.path("g"), b"").unwrap();
            std::fs::rename(dir.path("g"), dir.path("f")).unwrap();
            let is = find(&l, &cx, "f").await.unwrap();
            assert_ne!(is.fh, was.fh, "{i}");
            assert_eq!(ino(&is), std::fs::metadata(dir.path("f")).unwrap().ino());
            // The same for changes through the server.
            let turned = settle(&l, &cx, "f").await;
            l.rename(&cx, (&base, &name("f")), (&base, &name("h")), None, RenameFlags::empty())
                .await
                .unwrap();
            assert_eq!(errno(find(&l, &cx, "f").await), libc::ENOENT);
            assert_eq!(settle(&l, &cx, "h").await.fh, turned.fh);
            l.rename(&cx, (&base, &name("h")), (&base, &name("f")), None, RenameFlags::empty())
                .await
                .unwrap();
        }
        settle(&l, &cx, "f").await;
        std::fs::remove_file(dir.path("f")).unwrap();
        assert_eq!(errno(find(&l, &cx, "f").await), libc::ENOENT);
        assert_ne!(first.fh, base);
    }
}

/// Each change of a directory's names changes the change attribute that a client saw before, on all
/// file systems. The looked-up names are the present ones.
/// Promise: S4
#[tokio::test]
async fn each_change_of_names_changes_directory() {
    for dir in [Dir::new(), Dir::on("/dev/shm")] {
        let (l, cx) = (local(&dir), root());
        let base = top(&l).await;
        let change = async || l.getattr(&cx, File { fh: &base, open: None }).await.unwrap().attr.change;
        let at = |name: &str| dir.path(name);
        // Each restores the names that it needs in the last steps.
        type Step = fn(&dyn Fn(&str) -> PathBuf) -> std::io::Result<()>;
        let steps: [Step; 10] = [
            |at| std::fs::write(at("new"), b""),
            |at| std::fs::hard_link(at("new"), at("link")),
            |at| std::fs::create_dir(at("dir")),
            |at| std::os::unix::fs::symlink("new", at("symbolic")),
            |at| std::fs::write(at("other"), b"other"),
            |at| std::fs::rename(at("other"), at("link")),
            |at| std::fs::rename(at("link"), at("renamed")),
            |at| std::fs::remove_file(at("new")),
            |at| std::fs::remove_dir(at("dir")),
            |at| std::fs::remove_file(at("symbolic")),
        ];
        for round in 0..50 {
            for (n, step) in steps.iter().enumerate() {
                for path in ["new", "link", "renamed", "dir"] {
                    let _ = find(&l, &cx, path).await;
                }
                let before = change().await;
                step(&at).unwrap();
                assert_ne!(change().await, before, "{:?}, step {n} of round {round}", dir.0);
                for path in ["new", "link", "renamed", "dir"] {
                    let found = find(&l, &cx, path).await.ok().map(|node| ino(&node));
                    let real = std::fs::symlink_metadata(at(path)).ok().map(|meta| meta.ino());
                    assert_eq!(found, real, "{:?}, {path} after step {n} of round {round}", dir.0);
                }
            }
        }
    }
}

/// The kernel shows the time of a change before the names in its memory have changed. Concurrent
/// look-ups leave no outdated name in the cache.
/// Promise: S4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_lookups_cache_no_old_name() {
    for dir in places() {
        let (l, cx) = (Arc::new(local(&dir)), root());
        std::fs::write(dir.path("f"), b"").unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let askers: Vec<_> = (0..2)
            .map(|_| {
                let (l, cx, over) = (l.clone(), cx.clone(), over.clone());
                tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        let _ = find(&l, &cx, "f").await;
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for i in 0..500 {
            std::fs::write(dir.path("g"), b"").unwrap();
            std::fs::rename(dir.path("g"), dir.path("f")).unwrap();
            let now = std::fs::metadata(dir.path("f")).unwrap().ino();
            for _ in 0..5 {
                assert_eq!(ino(&find(&l, &cx, "f").await.unwrap()), now, "{i}");
            }
        }
        over.store(true, Ordering::Relaxed);
        for asker in askers {
            asker.await.unwrap();
        }
    }
}

/// A change of a directory's mode applies to cached names and listings at once. The cached access
/// of one caller counts for no other.
/// Promise: S1
#[tokio::test]
async fn changed_permissions_apply_at_once() {
    for dir in places() {
        let (l, admin) = (local(&dir), root());
        let base = top(&l).await;
        let (one, other) = (cx(10, 10, &[77]), cx(11, 11, &[]));
        std::fs::create_dir(dir.path("d")).unwrap();
        std::fs::write(dir.path("d/f"), b"").unwrap();
        let mode =
            |bits| std::fs::set_permissions(dir.path("d"), std::fs::Permissions::from_mode(bits)).unwrap();
        mode(0o750);
        std::os::unix::fs::chown(dir.path("d"), Some(0), Some(77)).unwrap();
        let d = find(&l, &admin, "d").await.unwrap().fh;
        for _ in 0..50 {
            settle(&l, &one, "d/f").await;
            assert!(known(&l, &one, &d, "f"));
            let page = || l.readdir(&one, &d, 0, [0; 8], 4096, true);
            assert!(page().await.unwrap().entries[0].node.is_some());
            assert!(l.inner.page_known(&one, &d, 0, 4096).is_some());
            // The cached access of one caller does not count for another.
            assert!(!known(&l, &other, &d, "f") && l.inner.page_known(&other, &d, 0, 4096).is_none());
            assert_eq!(errno(find(&l, &other, "d/f").await), libc::EACCES);
            assert_eq!(errno(l.readdir(&other, &d, 0, [0; 8], 4096, true).await), libc::EACCES);
            mode(0o700);
            assert_eq!(errno(find(&l, &one, "d/f").await), libc::EACCES);
            assert_eq!(errno(page().await), libc::EACCES);
            // A caller without search permission gets names only.
            mode(0o740);
            assert_eq!(errno(find(&l, &one, "d/f").await), libc::EACCES);
            assert!(page().await.unwrap().entries[0].node.is_none());
            mode(0o750);
        }
        assert_ne!(d, base);
    }
}

/// Listings from the cache show the current names and attributes, also after changes by local
/// programs.
/// Promise: S4
#[tokio::test]
async fn cached_listings_show_current_state() {
    for dir in places() {
        let (l, cx) = (local(&dir), root());
        let base = top(&l).await;
        for i in 0..20 {
            std::fs::write(dir.path(&format!("f{i}")), b"").unwrap();
        }
        // Half of the objects are held, half are not.
        for i in 0..10 {
            find(&l, &cx, &format!("f{i}")).await.unwrap();
        }
        let page = async || l.readdir(&cx, &base, 0, [0; 8], 8192, true).await.unwrap();
        let first = page().await;
        assert!(first.eof && first.entries.len() == 20);
        for i in 0..100 {
            let n = i % 20;
            let path = dir.path(&format!("f{n}"));
            std::fs::write(&path, vec![0; i + 1]).unwrap();
            let again = page().await;
            let entry = again.entries.iter().find(|e| e.name == name(&format!("f{n}"))).unwrap();
            assert_eq!(entry.node.as_ref().unwrap().attrs.attr.size_bytes, i as u64 + 1);
            let told = |e: &hither_vfs::DirEntry| (e.name.clone(), e.cookie, e.fileid);
            assert!(again.entries.iter().map(told).eq(first.entries.iter().map(told)));
        }
        for i in 0..20 {
            find(&l, &cx, &format!("f{i}")).await.unwrap();
        }
        page().await;
        let all = l.inner.page_known(&cx, &base, 0, 8192).expect("all objects are held and all names known");
        assert_eq!(all.entries.len(), 20);
        assert!(l.inner.page_known(&cx, &base, 0, 1000).is_none(), "it does not fit");
        for i in 0..50 {
            let is_there = async |n: &str| page().await.entries.iter().any(|e| e.name == name(n));
            std::fs::write(dir.path("new"), b"").unwrap();
            assert!(is_there("new").await, "{i}");
            std::fs::rename(dir.path("new"), dir.path("newer")).unwrap();
            assert!(is_there("newer").await && !is_there("new").await);
            std::fs::remove_file(dir.path("newer")).unwrap();
            assert!(!is_there("newer").await);
        }
    }
}

/// On a file system with coarse times no names are cached.
#[tokio::test]
async fn coarse_times_disable_name_cache() {
    let dir = Dir::new();
    let options = LocalOptions { stable: false, coarse_times: true, ..Default::default() };
    let l = Local::open(&dir.0, options, env()).unwrap();
    let cx = root();
    std::fs::write(dir.path("f"), b"").unwrap();
    tokio::time::sleep(Duration::from_millis(40)).await;
    settle(&l, &cx, "f").await;
    assert!(!known(&l, &cx, &top(&l).await, "f"));
}

/// Cached names that are not used are forgotten, and their memory is freed.
#[tokio::test]
async fn unused_names_are_forgotten() {
    for dir in places() {
        let (l, cx) = (local(&dir), root());
        std::fs::write(dir.path("f"), b"").unwrap();
        let base = top(&l).await;
        settle(&l, &cx, "f").await;
        let object = l.inner.objects.find(&base).unwrap();
        object.forget_unused();
        assert!(known(&l, &cx, &base, "f"), "it was just used");
        object.forget_unused();
        object.forget_unused();
        assert!(!known(&l, &cx, &base, "f"));
        assert_eq!(l.inner.known_budget.bytes(), 0, "and gives its memory back");
    }
}
