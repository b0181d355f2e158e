//! No client and no local program reaches an object outside of the directory.

use super::*;
use std::sync::atomic::AtomicBool;

fn kept(dir: &Dir, state: &Dir, export_id: u64) -> Local {
    let options =
        LocalOptions { stable: false, state_dir: Some(state.path("state")), export_id, ..Default::default() };
    Local::open(&dir.0, options, env()).unwrap()
}

/// Filehandles survive restarts and renames. They are stale at another export and under another
/// secret.
/// Promise: S3
#[tokio::test]
async fn handles_survive_restart_and_rename() {
    for place in [None, Some("/dev/shm")] {
        let dir = place.map_or_else(Dir::new, Dir::on);
        let state = Dir::new();
        std::fs::create_dir(dir.path("d")).unwrap();
        std::fs::write(dir.path("d/f"), b"x").unwrap();
        let cx = root();
        let (f, d, base) = {
            let l = kept(&dir, &state, 1);
            let (f, d) = (find(&l, &cx, "d/f").await.unwrap().fh, find(&l, &cx, "d").await.unwrap().fh);
            (f, d, top(&l).await)
        };
        std::fs::rename(dir.path("d"), dir.path("e")).unwrap();
        std::fs::rename(dir.path("e/f"), dir.path("g")).unwrap();
        {
            let l = kept(&dir, &state, 1);
            assert_eq!(&read_all(&l, &cx, &f).await.unwrap()[..], b"x");
            assert_eq!(find(&l, &cx, "g").await.unwrap().fh, f);
            assert_eq!(find(&l, &cx, "e").await.unwrap().fh, d);
            l.getattr(&cx, File { fh: &d, open: None }).await.unwrap();
            assert_eq!(top(&l).await, base);
        }
        let other_export = kept(&dir, &state, 2);
        assert_eq!(errno(other_export.getattr(&cx, File { fh: &f, open: None }).await), libc::ESTALE);
        let key = state.path("state/handle-key");
        assert_eq!(std::fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(key).unwrap();
        let other_key = kept(&dir, &state, 1);
        assert_eq!(errno(other_key.getattr(&cx, File { fh: &f, open: None }).await), libc::ESTALE);
        std::fs::remove_file(dir.path("g")).unwrap();
        let l = kept(&dir, &state, 1);
        assert_eq!(errno(l.getattr(&cx, File { fh: &f, open: None }).await), libc::ESTALE);
    }
}

/// A handle secret is refused if it is damaged or if other users can read it.
#[tokio::test]
async fn damaged_handle_secret_is_refused() {
    let (dir, state) = (Dir::new(), Dir::new());
    drop(kept(&dir, &state, 1));
    let key = state.path("state/handle-key");
    let open = || {
        let options = LocalOptions { state_dir: Some(state.path("state")), ..Default::default() };
        Local::open(&dir.0, options, env())
    };
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(open().unwrap_err().to_string().contains("chmod 600"));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&key, b"hithkey1short").unwrap();
    assert!(open().unwrap_err().to_string().contains("damaged"));
}

/// Promise: S2
#[tokio::test]
async fn forged_handles_are_stale() {
    let (dir, outside) = (Dir::new(), Dir::new());
    std::fs::write(dir.path("f"), b"x").unwrap();
    std::fs::write(outside.path("secret"), b"s").unwrap();
    let (l, cx) = (local(&dir), root());
    let good = find(&l, &cx, "f").await.unwrap().fh;
    // Each changed bit of a good handle makes it stale, and so does each other length.
    for bit in 0..good.0.len() * 8 {
        let mut raw = good.0.to_vec();
        raw[bit / 8] ^= 1 << (bit % 8);
        let fh = Fh(raw.into());
        assert_eq!(errno(l.getattr(&cx, File { fh: &fh, open: None }).await), libc::ESTALE, "bit {bit}");
    }
    for len in 0..=200 {
        let mut raw = good.0.to_vec();
        raw.resize(len, 0);
        let fh = Fh(raw.into());
        let known = fh == good;
        assert_eq!(l.getattr(&cx, File { fh: &fh, open: None }).await.is_ok(), known, "{len}");
    }
    // The kernel handle of a file beside the directory, in the same file system. Only the secret is
    // wrong.
    let there = rustix::fs::open(outside.path("secret"), OFlags::PATH, Mode::empty()).unwrap();
    let (handle, _) = sys::name_to_handle(there.as_fd(), c"").unwrap();
    let forger = Sealer::new(&[0; 16], 0, &fs_id(l.inner.top.as_fd()).unwrap());
    let fh = forger.seal(&handle).unwrap();
    assert_eq!(errno(read_all(&l, &cx, &fh).await), libc::ESTALE);
    assert_eq!(errno(l.open(&cx, PathRef::fh(&fh), &how(both(), Create::No)).await), libc::ESTALE);
    // With the secret the handle is opened: the authenticator refused it above.
    let made = l.inner.sealer.seal(&handle).unwrap();
    assert_eq!(&read_all(&l, &cx, &made).await.unwrap()[..], b"s");
}

/// After a restart a directory that was moved out of the export is stale. So are directories above
/// the export, even with the right secret.
/// Promise: S2
#[tokio::test]
async fn moved_out_directory_is_stale() {
    let (dir, outside) = (Dir::new(), Dir::new());
    std::fs::create_dir_all(dir.path("a/d")).unwrap();
    std::fs::write(dir.path("a/d/f"), b"x").unwrap();
    let state = Dir::new();
    let (l, cx) = (kept(&dir, &state, 1), root());
    let (d, f) = (find(&l, &cx, "a/d").await.unwrap().fh, find(&l, &cx, "a/d/f").await.unwrap().fh);
    drop(l);
    let l = kept(&dir, &state, 1);
    l.getattr(&cx, File { fh: &d, open: None }).await.unwrap();
    drop(l);
    std::fs::rename(dir.path("a/d"), outside.path("d")).unwrap();
    let l = kept(&dir, &state, 1);
    assert_eq!(errno(l.getattr(&cx, File { fh: &d, open: None }).await), libc::ESTALE);
    let n = name("f");
    assert_eq!(errno(l.walk(&cx, PathRef::name(&d, &n), WalkRequest::default()).await), libc::ESTALE);
    // The filehandle of the file was given out, and still opens the file.
    assert_eq!(&read_all(&l, &cx, &f).await.unwrap()[..], b"x");
    // Handles of the directories above are refused even with the right secret.
    for above in ["..", "../.."] {
        let there = rustix::fs::open(dir.path(above), OFlags::PATH, Mode::empty()).unwrap();
        let (handle, _) = sys::name_to_handle(there.as_fd(), c"").unwrap();
        let fh = l.inner.sealer.seal(&handle).unwrap();
        assert_eq!(errno(l.getattr(&cx, File { fh: &fh, open: None }).await), libc::ESTALE, "{above}");
    }
}

/// Promise: S2
#[tokio::test]
async fn names_that_become_links_lead_nowhere() {
    let (dir, outside) = (Dir::new(), Dir::new());
    std::fs::write(outside.path("f"), b"secret").unwrap();
    std::fs::create_dir(dir.path("real")).unwrap();
    std::fs::write(dir.path("real/f"), b"inside").unwrap();
    symlink(&outside.0, dir.path("link")).unwrap();
    let (l, cx) = (Arc::new(local(&dir)), root());
    assert_eq!(errno(find(&l, &cx, "link/f").await), libc::ELOOP);
    let base = top(&l).await;
    let at = names("link/f");
    let opened = l.open(&cx, PathRef { base: &base, path: &at }, &how(both(), Create::No)).await;
    assert_eq!(errno(opened), libc::ENOTDIR);
    // A local program keeps exchanging directory and link.
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let racer = {
        let (stop, turns, a, b) = (stop.clone(), turns.clone(), dir.path("real"), dir.path("link"));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags).unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let (mut inside, mut refused) = (0, 0);
    // Repeats until the threads have raced, whenever the other thread begins.
    for i in 0.. {
        if i >= 4000 && turns.load(Ordering::Relaxed) > 100 && inside > 100 && refused > 100 {
            break;
        }
        let path = if i % 2 == 0 { "real/f" } else { "link/f" };
        let opened = l
            .open(&cx, PathRef { base: &base, path: &names(path) }, &how(OpenAccess::READ, Create::No))
            .await;
        match opened {
            Ok(o) => {
                let file = File { fh: &o.node.fh, open: Some(o.open) };
                let data = l.read(&cx, file, 0, 100).await.unwrap().data.into_bytes();
                assert_eq!(&data[..], b"inside");
                l.close(&cx, &o.node.fh, o.open).await.unwrap();
                inside += 1;
            }
            Err(e) => {
                assert!(matches!(e.errno, libc::ELOOP | libc::ENOTDIR | libc::ENOENT), "{e}");
                refused += 1;
            }
        }
        let n = format!("new{}", i % 7);
        let made = names(&format!("{}/{n}", path.split('/').next().unwrap()));
        let how = how(both(), Create::IfMissing(mode(0o644)));
        if let Ok(o) = l.open(&cx, PathRef { base: &base, path: &made }, &how).await {
            l.close(&cx, &o.node.fh, o.open).await.unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    racer.join().unwrap();
    assert_eq!(std::fs::read_dir(&outside.0).unwrap().count(), 1, "something was made outside");
}

/// Promise: S2, S2a
#[tokio::test]
async fn mounts_below_are_not_entered() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("m")).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", dir.path("m"), "tmpfs", flags, None).unwrap();
    let guard = Unmount(dir.path("m"));
    std::fs::write(dir.path("m/inside"), b"x").unwrap();
    let (l, cx) = (local(&dir), root());
    assert_eq!(errno(find(&l, &cx, "m/inside").await), libc::ENOENT);
    let page = l.readdir(&cx, &top(&l).await, 0, [0; 8], 4096, true).await.unwrap();
    let dev = page.entries[0].node.as_ref().unwrap().attrs.attr.fsid;
    assert_eq!(dev, l.root(&cx).await.unwrap().attrs.attr.fsid);
    // A later mount is not entered either.
    std::fs::create_dir(dir.path("n")).unwrap();
    let n = find(&l, &cx, "n").await.unwrap();
    rustix::mount::mount("none", dir.path("n"), "tmpfs", flags, None).unwrap();
    let second = Unmount(dir.path("n"));
    std::fs::write(dir.path("n/inside"), b"x").unwrap();
    assert_eq!(errno(find(&l, &cx, "n/inside").await), libc::ENOENT);
    assert_eq!(find(&l, &cx, "n").await.unwrap().fh, n.fh);
    drop((guard, second));
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
