//! Changes of watched files by local programs are reported.

use super::*;
use hither_vfs::{ChangeListener, Watch, Watched};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::AtomicBool;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Receives the reports about watched files of a directory.
fn told(local: &Local) -> UnboundedReceiver<Fh> {
    let (tx, rx) = unbounded_channel();
    let told: Arc<ChangeListener> = Arc::new(move |fh: &Fh| drop(tx.send(fh.clone())));
    local.tell(told);
    rx
}

/// Watches a file. Right after a writer has closed it, this may take a moment.
async fn watch(l: &Local, fh: &Fh) -> Watched {
    watch_as(l, fh, false).await
}

async fn watch_as(l: &Local, fh: &Fh, alone: bool) -> Watched {
    for _ in 0..6000 {
        if let Some(watched) = l.watch(fh, alone).await {
            return watched;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it cannot be watched")
}

async fn file(l: &Local, n: &str) -> Fh {
    let made = create(l, &root(), &top(l).await, n, 0o644).await.unwrap();
    put(l, &root(), &made, 0, b"old").await.unwrap();
    let f = File { fh: &made.node.fh, open: Some(made.open) };
    l.commit(&root(), f).await.unwrap();
    l.close(&root(), &made.node.fh, made.open).await.unwrap();
    made.node.fh
}

/// A program that opens a watched file for writing waits until the watch ends, and is reported.
/// Promise: S10a
#[tokio::test]
async fn local_writers_wait_and_are_reported() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    let fh = file(&l, "f").await;
    let watched = watch(&l, &fh).await;
    let path = dir.path("f");
    let writer = tokio::task::spawn_blocking(move || fs::write(path, b"new"));
    assert_eq!(told.recv().await.unwrap(), fh);
    assert_eq!(read_all(&l, &root(), &fh).await.unwrap(), "old", "the writer waits");
    assert!(!writer.is_finished());
    drop(watched);
    writer.await.unwrap().unwrap();
    assert_eq!(read_all(&l, &root(), &fh).await.unwrap(), "new");
}

/// A watched file whose last name a local program removes or replaces stays usable until the watch
/// ends.
/// Promise: S10
#[tokio::test]
async fn removed_file_stays_while_watched() {
    for alone in [false, true] {
        for replaced in [false, true] {
            let dir = Dir::new();
            let l = local(&dir);
            let _told = told(&l);
            let fh = file(&l, "f").await;
            let watched = watch_as(&l, &fh, alone).await;
            if replaced {
                fs::write(dir.path("new"), b"new").unwrap();
                fs::rename(dir.path("new"), dir.path("f")).unwrap();
            } else {
                fs::remove_file(dir.path("f")).unwrap();
            }
            let at = File { fh: &fh, open: None };
            assert_eq!(l.getattr(&root(), at).await.unwrap().attr.nlink, 0);
            assert_eq!(read_all(&l, &root(), &fh).await.unwrap(), "old");
            drop(watched);
            assert_eq!(l.getattr(&root(), at).await.unwrap_err().errno, libc::ESTALE);
        }
    }
}

/// A file that a local program has open for writing is not watched.
/// Promise: S10a
#[tokio::test]
async fn open_writer_prevents_watch() {
    let dir = Dir::new();
    let l = local(&dir);
    let _told = told(&l);
    let fh = file(&l, "f").await;
    let writer = fs::File::options().write(true).open(dir.path("f")).unwrap();
    assert!(l.watch(&fh, false).await.is_none());
    drop(writer);
    drop(watch(&l, &fh).await);
}

/// A read through the descriptor of a writer leaves no descriptor that keeps a watch from starting.
#[tokio::test]
async fn closed_writer_allows_watch() {
    let dir = Dir::new();
    let l = local(&dir);
    let _told = told(&l);
    let fh = file(&l, "f").await;
    let read = |access| OpenHow { access, ..how(both(), Create::No) };
    let opened = l.open(&root(), PathRef::fh(&fh), &read(OpenAccess::READ)).await.unwrap();
    l.close(&root(), &fh, opened.open).await.unwrap();
    for _ in 0..100 {
        if l.watch(&fh, false).await.is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it cannot be watched");
}

/// Changes without new bytes are reported after the fact. Two watches of one file both get reports,
/// also after one of them ends.
/// Promise: S10a
#[tokio::test]
async fn attribute_and_name_changes_are_reported() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    let fh = file(&l, "f").await;
    let (first, second) = (watch(&l, &fh).await, watch(&l, &fh).await);
    fs::set_permissions(dir.path("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(told.recv().await.unwrap(), fh);
    drop(first);
    while told.try_recv().is_ok() {}
    fs::rename(dir.path("f"), dir.path("g")).unwrap();
    assert_eq!(told.recv().await.unwrap(), fh);
    fs::hard_link(dir.path("g"), dir.path("h")).unwrap();
    assert_eq!(told.recv().await.unwrap(), fh);
    drop(second);
    // The server can read and write the file after the watch ended.
    let opened = l.open(&root(), PathRef::fh(&fh), &how(both(), Create::No)).await.unwrap();
    put(&l, &root(), &opened, 0, b"own").await.unwrap();
}

/// A read is no change.
#[tokio::test]
async fn local_reads_are_not_reported() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    let fh = file(&l, "f").await;
    let _watched = watch(&l, &fh).await;
    while told.try_recv().is_ok() {}
    fs::read(dir.path("f")).unwrap();
    find(&l, &root(), "f").await.unwrap();
    read_all(&l, &root(), &fh).await.unwrap();
    fs::metadata(dir.path("f")).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(told.try_recv().is_err());
}

/// A client that watches alone goes on reading and writing, with a journal and without. Other
/// programs wait to read, and are reported.
/// Promise: S10a
#[tokio::test]
async fn exclusive_watch_delays_local_readers() {
    for journaled in [false, true] {
        let dir = Dir::new();
        let state = Dir::new();
        let l = if journaled { super::journaled::over(&dir, &state) } else { local(&dir) };
        let mut told = told(&l);
        let made = create(&l, &root(), &top(&l).await, "f", 0o644).await.unwrap();
        let (fh, path) = (made.node.fh.clone(), dir.path("f"));
        let reader = fs::File::open(&path).unwrap();
        assert!(l.watch(&fh, true).await.is_none(), "somebody reads it");
        drop(reader);
        let watched = watch_as(&l, &fh, true).await;
        put(&l, &root(), &made, 0, b"mine").await.unwrap();
        let f = File { fh: &fh, open: Some(made.open) };
        l.commit(&root(), f).await.unwrap();
        l.close(&root(), &fh, made.open).await.unwrap();
        assert_eq!(read_all(&l, &root(), &fh).await.unwrap(), "mine");
        let again = l.open(&root(), PathRef::fh(&fh), &how(both(), Create::No)).await.unwrap();
        put(&l, &root(), &again, 0, b"more").await.unwrap();
        l.close(&root(), &fh, again.open).await.unwrap();
        let times = SetAttr { mtime: Some(SetTime::To(Time { secs: 7, nanos: 0 })), ..mode(0o600) };
        l.setattr(&root(), File { fh: &fh, open: None }, &times).await.unwrap();
        let base = top(&l).await;
        l.link(&root(), &fh, &base, &name("other")).await.unwrap();
        l.unlink(&root(), &base, &name("other"), None).await.unwrap();
        // Waits for notifications.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(told.try_recv().is_err(), "it is nobody else's doing");
        let from = path.clone();
        let reader = tokio::task::spawn_blocking(move || fs::read(from));
        assert_eq!(told.recv().await.unwrap(), fh);
        put_by_handle(&l, &fh, b"last").await;
        assert!(!reader.is_finished(), "it waits");
        drop(watched);
        assert_eq!(reader.await.unwrap().unwrap(), b"last");
        l.commit(&root(), File { fh: &fh, open: None }).await.unwrap();
        if !journaled {
            // With a journal this may take until the next checkpoint.
            drop(watch(&l, &fh).await);
        }
    }
}

async fn put_by_handle(l: &Local, fh: &Fh, bytes: &'static [u8]) {
    let f = File { fh, open: None };
    l.write(&root(), f, 0, Bytes::from_static(bytes).into(), Stability::Stable).await.unwrap();
}

/// Changes of names in a watched directory, or of its attributes, are reported after the fact. No
/// program waits. Changes of the objects in it, and changes through the server, are not reported.
/// Promise: S10b
#[tokio::test]
async fn directory_changes_are_reported() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    fs::create_dir(dir.path("d")).unwrap();
    fs::write(dir.path("d/old"), "old").unwrap();
    let fh = find(&l, &root(), "d").await.unwrap().fh;
    let watched = watch(&l, &fh).await;
    let at = |n: &str| dir.path(n);
    let changes: [(&str, &dyn Fn() -> std::io::Result<()>); 10] = [
        ("create", &|| fs::write(at("d/new"), "new")),
        ("mkdir", &|| fs::create_dir(at("d/sub"))),
        ("link", &|| fs::hard_link(at("d/old"), at("d/link"))),
        ("symlink", &|| std::os::unix::fs::symlink("old", at("d/sym"))),
        ("rename within", &|| fs::rename(at("d/new"), at("d/newer"))),
        ("rename away", &|| fs::rename(at("d/newer"), at("away"))),
        ("rename to", &|| fs::rename(at("away"), at("d/back"))),
        ("unlink", &|| fs::remove_file(at("d/back"))),
        ("rmdir", &|| fs::remove_dir(at("d/sub"))),
        ("chmod", &|| fs::set_permissions(at("d"), fs::Permissions::from_mode(0o700))),
    ];
    for (what, change) in changes {
        change().unwrap();
        let note = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        assert_eq!(note.unwrap_or_else(|_| panic!("{what} is not told")).unwrap(), fh, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        while told.try_recv().is_ok() {}
    }
    fs::write(at("d/old"), "other").unwrap();
    fs::set_permissions(at("d/old"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::read_dir(at("d")).unwrap().for_each(drop);
    l.mkdir(&root(), &fh, &name("own"), &mode(0o755)).await.unwrap();
    l.rmdir(&root(), &fh, &name("own")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(told.try_recv().is_err(), "that is no change, or its own");
    drop(watched);
    fs::write(at("d/unseen"), "").unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(told.try_recv().is_err(), "it is watched no longer");
}

/// A shared watch becomes a watch alone: the server's open for writing does not wait, and local
/// programs wait as before.
/// Promise: S10a
#[tokio::test]
async fn server_open_upgrades_shared_watch() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    for reads in [false, true] {
        let n = format!("f{reads}");
        let fh = file(&l, &n).await;
        let opened = l.open(&root(), PathRef::fh(&fh), &how(OpenAccess::READ, Create::No)).await.unwrap();
        let watched = until_alone(&l, &fh).await;
        let opened_too = l.open(&root(), PathRef::fh(&fh), &how(both(), Create::No)).await.unwrap();
        put(&l, &root(), &opened_too, 0, b"own").await.unwrap();
        assert_eq!(read_all(&l, &root(), &fh).await.unwrap(), "own");
        assert!(told.try_recv().is_err(), "nothing is told of own changes");
        let path = dir.path(&n);
        let other = tokio::task::spawn_blocking(move || {
            if reads {
                fs::read(path).map(|bytes| assert_eq!(bytes, b"own"))
            } else {
                fs::write(path, b"new")
            }
        });
        assert_eq!(told.recv().await.unwrap(), fh);
        assert!(!other.is_finished());
        drop(watched);
        other.await.unwrap().unwrap();
        for opened in [opened, opened_too] {
            l.close(&root(), &fh, opened.open).await.unwrap();
        }
        while told.try_recv().is_ok() {}
    }
}

/// Watches a file shared, then alone. A recent ctime delays the second step.
async fn until_alone(l: &Local, fh: &Fh) -> Watched {
    let mut watched = watch(l, fh).await;
    for _ in 0..6000 {
        watched = match l.watch_alone(fh, watched).await {
            Ok(alone) => return alone,
            Err(Some(before)) => before,
            // A program that another test starts has this descriptor until its exec.
            Err(None) => watch(l, fh).await,
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it cannot be watched alone")
}

/// A file that a local program reads keeps its shared watch.
/// Promise: S10a
#[tokio::test]
async fn local_reader_prevents_exclusive_watch() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    let fh = file(&l, "f").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let watched = watch(&l, &fh).await;
    let reader = fs::File::open(dir.path("f")).unwrap();
    let watched = l.watch_alone(&fh, watched).await.err().unwrap().expect("still watched");
    assert!(told.try_recv().is_err());
    let path = dir.path("f");
    let writer = tokio::task::spawn_blocking(move || fs::write(path, b"new"));
    assert_eq!(told.recv().await.unwrap(), fh);
    assert!(!writer.is_finished());
    drop((watched, reader));
    writer.await.unwrap().unwrap();
}

/// Local programs keep writing while a shared watch becomes a watch alone: no write is missed.
/// Promise: S10a
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a local program pauses in real time")]
async fn watch_upgrade_misses_no_write() {
    let dir = Dir::new();
    let l = local(&dir);
    let mut told = told(&l);
    let fh = file(&l, "f").await;
    let (path, over) = (dir.path("f"), Arc::new(AtomicBool::new(false)));
    let stop = over.clone();
    let writer = std::thread::spawn(move || {
        let mut n = 0u64;
        while !stop.load(Ordering::SeqCst) {
            // The program does not wait: while there is a lease, it is reported and the open fails.
            let file = fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
            if let Ok(file) = file {
                n += 1;
                file.write_all_at(&n.to_ne_bytes(), 0).unwrap();
            }
            std::thread::sleep(Duration::from_micros(n % 300));
        }
        n
    });
    let (mut alone, mut noticed) = (0, 0);
    for _ in 0..300 {
        let Some(watched) = l.watch(&fh, false).await else { continue };
        let before = read_all(&l, &root(), &fh).await.unwrap();
        match l.watch_alone(&fh, watched).await {
            Ok(watched) => {
                alone += 1;
                assert_eq!(read_all(&l, &root(), &fh).await.unwrap(), before, "no byte changes unseen");
                drop(watched);
            }
            Err(_) => noticed += 1,
        }
        while told.try_recv().is_ok() {}
    }
    over.store(true, Ordering::SeqCst);
    println!("{} writes, {alone} times alone, {noticed} times not", writer.join().unwrap());
}

/// Two directories with one watcher: a local change of a file in both is reported to both, and a
/// change by a client of one only to the other. The watch of one survives the end of the other.
/// Promise: S10a
#[tokio::test]
async fn directories_share_watcher() {
    let dir = Dir::new();
    fs::create_dir(dir.path("sub")).unwrap();
    let watchers = Arc::<Watchers>::default();
    let open = |path: &Path| {
        let watchers = watchers.clone();
        Local::open(path, LocalOptions { stable: false, watchers, ..Default::default() }, env()).unwrap()
    };
    let (outer, inner) = (open(&dir.0), open(&dir.path("sub")));
    let (mut outer_told, mut inner_told) = (told(&outer), told(&inner));
    assert!(Arc::ptr_eq(&outer.inner.watcher().unwrap(), &inner.inner.watcher().unwrap()));
    let in_inner = file(&inner, "f").await;
    let in_outer = find(&outer, &root(), "sub/f").await.unwrap().fh;
    let (outer_watch, inner_watch) = (watch(&outer, &in_outer).await, watch(&inner, &in_inner).await);

    fs::set_permissions(dir.path("sub/f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(outer_told.recv().await.unwrap(), in_outer);
    assert_eq!(inner_told.recv().await.unwrap(), in_inner);

    inner.setattr(&root(), File { fh: &in_inner, open: None }, &mode(0o640)).await.unwrap();
    assert_eq!(outer_told.recv().await.unwrap(), in_outer);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(inner_told.try_recv().is_err(), "a change by its own client");

    drop(outer_watch);
    fs::set_permissions(dir.path("sub/f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(inner_told.recv().await.unwrap(), in_inner);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(outer_told.try_recv().is_err(), "its watch has ended");
    drop(inner_watch);
}

/// While the kernel grants no queue of notifications, no file is watched. Later files are.
/// Promise: S10a
#[tokio::test]
async fn refused_watch_is_tried_again() {
    let dir = Dir::new();
    let l = local(&dir);
    let refused = &l.inner.options.watchers.are_refused;
    refused.store(true, Ordering::SeqCst);
    let mut told = told(&l);
    let fh = file(&l, "f").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(l.watch(&fh, false).await.is_none());
    refused.store(false, Ordering::SeqCst);
    let watched = watch(&l, &fh).await;
    fs::set_permissions(dir.path("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(told.recv().await.unwrap(), fh);
    drop(watched);
}
