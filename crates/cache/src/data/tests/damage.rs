//! Real directories: owners, damage, and full disks.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A directory for one test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static N: AtomicU64 = AtomicU64::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("hither-disk-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    /// All files of entries.
    fn files(&self) -> Vec<PathBuf> {
        let mut out = Vec::new();
        let mut todo = vec![self.0.clone()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    todo.push(path);
                } else if matches!(path.extension().and_then(|e| e.to_str()), Some("d" | "m")) {
                    out.push(path);
                }
            }
        }
        out.sort();
        out
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A cache after the attempt to take its directory. The mount itself waits only for a moment.
async fn started(
    below: Arc<dyn Vfs>,
    dir: &Dir,
    identity: &[u8],
    options: DataCacheOptions,
    at_s: u64,
) -> Arc<DataCache> {
    let disk = DataCache::start(below, &dir.0, identity, options, env_at(at_s)).await;
    let looks = || disk.off.lock().as_ref().is_some_and(|why| why.contains("is being scanned"));
    until("it was looked through", || !looks()).await;
    disk
}

/// A server and a cache in a real directory.
async fn real(model: &Arc<Model>, dir: &Dir, options: DataCacheOptions) -> Lab {
    let wire = Wire::new(model.clone());
    let disk = started(wire.clone(), dir, b"server:/export", options, 100_000).await;
    let top = disk.root(&root_cx()).await.unwrap().fh;
    wire.take();
    Lab { model: model.clone(), wire, disk, io: Sim::new(1), top, cx: root_cx() }
}

fn model() -> Arc<Model> {
    Arc::new(Model::new(env_at(1), VALID, 1 << 40))
}

/// A block that arrives after the end of its version leaves no entry on the disk.
#[tokio::test(start_paused = true)]
async fn outdated_block_creates_no_entry() {
    let l = Lab::new(options()).await;
    let fh = l.file("f", &pattern(1, 100)).await;
    let (shelf, version) = (l.disk.shelf().unwrap(), format::Version { change: 7, size: 100 });
    for over in [false, true] {
        let held = Arc::new(held::CachedVersion::new(&fh, version));
        if over {
            held.kill();
        }
        let room = l.disk.queue.clone().try_acquire_many_owned(1).unwrap();
        let using = Arc::new(l.disk.using(&fh));
        let job = fill::Job { held, block: 0, bytes: pattern(1, 100), room, _using: using };
        l.disk.put_job(&shelf, &job).unwrap();
        assert_eq!(shelf.has(format::Key::of(&fh)), !over);
        shelf.forget(format::Key::of(&fh), None);
    }
}

/// A caller that takes slices gets the place of verified bytes. A slice of a damaged data file is
/// short, and the bytes come from the server then.
#[tokio::test]
async fn verified_bytes_are_read_in_slices() {
    let (dir, model) = (Dir::new(), model());
    let data = pattern(1, 400_000);
    let l = real(&model, &dir, options()).await;
    let fh = l.file("f", &data).await;
    let o = l.open(&fh).await;
    let cx = RequestContext { takes_slice: true, ..l.cx.clone() };
    let at = File { fh: &fh, open: Some(o.open) };
    let read = async |at_bytes, len| l.disk.read(&cx, at, at_bytes, len).await.unwrap();
    let first = read(100, 300_000).await;
    assert!(first.data.slice().is_none(), "nothing is cached");
    assert!(first.data.into_bytes() == data[100..300_100]);
    assert_eq!(l.cat(&fh, 65536).await, data);
    l.settle().await;
    for (from, len) in [(100, 300_000_usize), (4096, 4096), (399_000, 5000)] {
        let read = read(from as u64, len as u32).await;
        let slice = read.data.slice().expect("all of it is here");
        let expected = &data[from..data.len().min(from + len)];
        assert_eq!((slice.len, read.data.len(), read.eof), (expected.len(), expected.len(), from == 399_000));
        let mut bytes = vec![0; slice.len];
        std::os::unix::fs::FileExt::read_exact_at(&*slice.file, &mut bytes, slice.offset_bytes).unwrap();
        assert!(bytes == expected);
    }
    assert_eq!(l.disk.stats().slices, 3);
    let copied = l.disk.read(&l.cx, at, 0, 4096).await.unwrap();
    assert!(copied.data.slice().is_none() && copied.data.into_bytes() == data[..4096]);
    let file = dir.files().into_iter().find(|f| f.extension().unwrap() == "d").unwrap();
    std::fs::File::options().write(true).open(file).unwrap().set_len(1000).unwrap();
    assert!(read(0, 8192).await.data.slice().is_some(), "nobody has looked");
    let mended = l.disk.read(&l.cx, at, 0, 8192).await.unwrap();
    assert!(mended.data.into_bytes() == data[..8192]);
    assert_eq!(l.disk.stats().damaged, 1);
    l.close(o).await;
}

/// A cache in a real directory keeps files over a restart. It lends complete files as backing
/// files. A check finds and drops a damaged block.
#[tokio::test]
async fn real_directory_lends_backing_files() {
    let (dir, model) = (Dir::new(), model());
    let data = pattern(1, 400_000);
    {
        let l = real(&model, &dir, options()).await;
        let fh = l.file("f", &data).await;
        assert_eq!(l.cat(&fh, 65536).await, data);
        l.settle().await;
        let o = l.open(&fh).await;
        let backing = o.backing.clone().expect("all of it is here");
        let mut bytes = vec![0; data.len()];
        std::os::unix::fs::FileExt::read_exact_at(&*backing.0, &mut bytes, 0).unwrap();
        assert_eq!(bytes, data);
        assert!(l.disk.evict(&fh));
        l.settle().await;
        assert_eq!(dir.files(), Vec::<PathBuf>::new());
        std::os::unix::fs::FileExt::read_exact_at(&*backing.0, &mut bytes, 0).unwrap();
        assert_eq!(bytes, data, "who holds it keeps it");
        l.close(o).await;
        assert_eq!(l.cat(&fh, 65536).await, data);
        // The shutdown waits for the disk for a limited time.
        l.settle().await;
        l.disk.shutdown(&l.cx).await.unwrap();
    }
    let l = real(&model, &dir, options()).await;
    assert_eq!(std::fs::metadata(&dir.0).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(l.disk.check().await, DataCacheCheck { entries: 1, blocks: 7, bytes: 400_000, damaged: 0 });
    let parts = survey(&dir.0, false, &env_at(7)).unwrap();
    assert!(parts.len() == 1 && parts[0].in_use && parts[0].identity == b"server:/export");
    let list = l.disk.list().await;
    assert_eq!((list.len(), list[0].size_bytes, list[0].cached_bytes), (1, 400_000, 400_000));
    let fh = l.file("f", &pattern(2, 10)).await;
    let o = l.open(&fh).await;
    assert!(o.backing.is_none(), "it has changed");
    l.close(o).await;
    assert_eq!(l.cat(&fh, 65536).await.len(), 400_000);
    l.settle().await;
    l.disk.shutdown(&l.cx).await.unwrap();
    let data = dir.files().into_iter().find(|f| f.extension().unwrap() == "d").unwrap();
    let parts = survey(&dir.0, false, &env_at(7)).unwrap();
    assert_eq!(
        (parts[0].entries.len(), parts[0].entries[0].cached_bytes, &parts[0].check),
        (1, 400_000, &None)
    );
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[70_000] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    let parts = survey(&dir.0, true, &env_at(7)).unwrap();
    assert_eq!(parts[0].check, Some(DataCacheCheck { entries: 1, blocks: 1, bytes: 65536, damaged: 1 }));
    assert_eq!((parts[0].entries.len(), dir.files().len()), (0, 0));
    assert!(survey(&std::env::temp_dir(), false, &env_at(7)).is_err());
}

/// Flipped bits, truncation and foreign content in any file never cause a wrong byte, and the cache
/// continues.
/// Promise: 11a
#[tokio::test]
async fn damage_is_detected_and_mended() {
    let (mut found, mut r) = (0, 88_172_645_463_325_252u64);
    let mut random = |n: u64| {
        r ^= r << 13;
        r ^= r >> 7;
        r ^= r << 17;
        r % n
    };
    let (dir, model) = (Dir::new(), model());
    let files: Vec<_> = (0..3u64).map(|i| pattern(i, 50_000 + i * 70_000)).collect();
    for round in 0..60 {
        let l = real(&model, &dir, options()).await;
        let mut handles = Vec::new();
        for (i, data) in files.iter().enumerate() {
            handles.push(match round {
                0 => l.file(&format!("f{i}"), data).await,
                _ => {
                    let n = name(&format!("f{i}"));
                    let trail =
                        l.model.walk(&l.cx, PathRef::name(&l.top, &n), WalkRequest::default()).await.unwrap();
                    trail.steps[0].fh.clone()
                }
            });
        }
        if round % 7 == 3 {
            found += l.disk.check().await.damaged;
        }
        for (fh, data) in handles.iter().zip(&files) {
            assert_eq!(l.cat(fh, 30_000).await, data, "round {round}");
        }
        found += l.disk.stats().damaged;
        l.settle().await;
        l.disk.shutdown(&l.cx).await.unwrap();
        drop(l);
        let all = dir.files();
        assert_eq!(all.len(), 6, "mended");
        let victim = &all[random(6) as usize];
        let mut bytes = std::fs::read(victim).unwrap();
        let at = random(bytes.len() as u64) as usize;
        match random(4) {
            0 => bytes.truncate(at),
            1 => bytes = std::fs::read(&all[random(6) as usize]).unwrap(),
            2 => bytes.extend(vec![7; at]),
            _ => bytes[at] ^= 1 << random(8),
        }
        std::fs::write(victim, bytes).unwrap();
    }
    assert!(found > 20, "{found}");
}

/// A second daemon with the same identity runs without the cache until the first one has ended.
#[tokio::test]
async fn identity_admits_one_daemon() {
    let (dir, model) = (Dir::new(), model());
    let quick = DataCacheOptions { retry: Duration::from_millis(50), ..options() };
    let first = real(&model, &dir, options()).await;
    let second = real(&model, &dir, quick).await;
    let other = started(first.wire.clone(), &dir, b"server:/other", options(), 9).await;
    assert!(second.disk.trouble().unwrap().contains("in use by another mount"));
    assert_eq!((first.disk.stats().off, second.disk.stats().off, other.stats().off), (0, 1, 0));
    let fh = first.file("f", &pattern(1, 100_000)).await;
    assert_eq!(second.cat(&fh, 65536).await, pattern(1, 100_000));
    drop(first);
    until("the first has gone", || second.disk.stats().off == 0).await;
    assert_eq!(second.cat(&fh, 65536).await, pattern(1, 100_000));
    second.settle().await;
    assert_eq!(second.disk.stats().entries, 1);
}

/// The cache of another export of the same server, in the same directory.
async fn of_other(model: &Arc<Model>, dir: &Dir, identity: &[u8], options: DataCacheOptions) -> Lab {
    let wire = Wire::new(model.clone());
    let disk = started(wire.clone(), dir, identity, options, 100_000).await;
    let top = disk.root(&root_cx()).await.unwrap().fh;
    Lab { model: model.clone(), wire, disk, io: Sim::new(1), top, cx: root_cx() }
}

/// Waits in real time for an event that happens once a second.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..5000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited in vain: {what}");
}

/// Caches `n` files of 1 MiB.
async fn fill_up(l: &Lab, first: u64, n: u64) {
    for i in first..first + n {
        let fh = l.file(&format!("f{i}"), &pattern(i, MIB)).await;
        assert_eq!(l.cat(&fh, 131_072).await, pattern(i, MIB));
        l.settle().await;
    }
}

/// A limit for the directory. Unused parts are reduced first, by any of the daemons that check at
/// the same time. Then every daemon gives up a part. The limit is never exceeded.
/// Promise: 11a
#[tokio::test]
async fn shared_directory_stays_below_limit() {
    let (dir, model) = (Dir::new(), model());
    let hard = 20 * MIB;
    let shared = DataCacheOptions { dir_soft_bytes: 16 * MIB, dir_hard_bytes: hard, ..options() };
    let bytes = |l: &Lab| l.disk.stats().entry_bytes;
    // The part was used before sizes were announced.
    let old = of_other(&model, &dir, b"server:/old", options()).await;
    fill_up(&old, 100, 6).await;
    let pinned = old
        .model
        .walk(&old.cx, PathRef::name(&old.top, &name("f100")), WalkRequest::default())
        .await
        .unwrap();
    old.disk.pin(&pinned.steps[0].fh, true).await.unwrap();
    old.disk.shutdown(&old.cx).await.unwrap();
    drop(old);
    for file in std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path()) {
        if file.extension().is_some_and(|e| e == "lock") {
            std::fs::write(file, "").unwrap();
        }
    }
    let a = of_other(&model, &dir, b"server:/a", shared.clone()).await;
    until("the old part was measured", || a.disk.shelf().unwrap().total.get().unwrap().bytes(0) > 6 * MIB)
        .await;
    fill_up(&a, 200, 8).await;
    let before = bytes(&a);
    assert!(before > 8 * MIB);
    // Together 14 MiB. With 4 MiB of another mount the limit is exceeded, and the old part is
    // reduced.
    let b = of_other(&model, &dir, b"server:/b", shared.clone()).await;
    fill_up(&b, 300, 4).await;
    let total = |l: &Lab| l.disk.shelf().unwrap().total.get().unwrap().bytes(bytes(l));
    until("the unused part gives way", || total(&a).max(total(&b)) <= 16 * MIB).await;
    assert!(a.disk.stats().evictions > 0 || b.disk.stats().evictions > 0);
    assert_eq!(bytes(&a), before, "nothing goes of what is used");
    // Then all parts in use are reduced. A daemon that is not scheduled meanwhile does so when the
    // other one adds more.
    let mut first = 400;
    while bytes(&a) == before {
        fill_up(&b, first, 10).await;
        first += 10;
        assert!(bytes(&a) + bytes(&b) <= hard);
        assert!(first < 2000, "one gives nothing up");
    }
    until("less than the limit", || {
        assert!(bytes(&a) + bytes(&b) <= hard);
        total(&a).max(total(&b)) <= 16 * MIB
    })
    .await;
    assert!(bytes(&a) < before);
    let old = survey(&dir.0, false, &env_at(7)).unwrap().into_iter().find(|p| p.identity == b"server:/old");
    let left = old.unwrap().entries;
    assert!(left.iter().any(|e| e.pinned) && left.len() < 6, "{left:?}");
    for l in [&a, &b] {
        assert_eq!(l.disk.check().await.damaged, 0);
        let room = l.disk.room().await.unwrap();
        assert_eq!((room.dir_soft_bytes, room.dir_hard_bytes), (Some(16 * MIB), Some(hard)));
        assert!(room.dir_bytes.unwrap() >= room.entry_bytes);
    }
}

/// Parts removed by a user with `rm -r` no longer count.
#[tokio::test]
async fn removed_parts_no_longer_count() {
    let (dir, model) = (Dir::new(), model());
    let shared = DataCacheOptions { dir_soft_bytes: 2 * MIB, dir_hard_bytes: 3 * MIB, ..options() };
    let old = of_other(&model, &dir, b"server:/old", options()).await;
    fill_up(&old, 100, 3).await;
    old.disk.shutdown(&old.cx).await.unwrap();
    drop(old);
    let part = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir()).unwrap();
    std::fs::remove_dir_all(part).unwrap();
    let mut names = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
    let lock = names.find(|p| p.extension().is_some_and(|e| e == "lock")).unwrap();
    assert!(total::said(&std::fs::File::open(lock).unwrap()).unwrap().0 > 3 * MIB);
    let l = of_other(&model, &dir, b"server:/new", shared).await;
    let others = || l.disk.shelf().unwrap().total.get().unwrap().bytes(0);
    until("the old part does not count", || others() == 0).await;
    let fh = l.file("f", &pattern(1, MIB)).await;
    until("nothing is full", || l.disk.trouble().is_none()).await;
    assert_eq!(l.cat(&fh, 131_072).await, pattern(1, MIB));
    l.settle().await;
    assert_eq!(l.disk.stats().entries, 1);
}

/// A mount waits while another daemon cleans its part.
#[tokio::test]
async fn mount_waits_for_part_cleaning() {
    let (dir, model) = (Dir::new(), model());
    let l = real(&model, &dir, options()).await;
    l.disk.shutdown(&l.cx).await.unwrap();
    let mut names = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().path());
    let lock = names.find(|p| p.extension().is_some_and(|e| e == "lock")).unwrap();
    let unused = || home::Home::unused(&dir.0, lock.file_name().unwrap());
    let home::Unused::Yes(home) = unused() else { panic!("nobody has it") };
    assert!(matches!(unused(), home::Unused::No));
    total::announce(&home.lock, 0, true).unwrap();
    assert!(matches!(unused(), home::Unused::Cleaned));
    let release = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(700)).await;
        drop(home);
    });
    let forever = DataCacheOptions { retry: Duration::from_secs(3600), ..options() };
    let l = real(&model, &dir, forever).await;
    release.await.unwrap();
    until("it has its part", || l.disk.trouble().is_none()).await;
    assert!(!home::Home::is_being_cleaned(&dir.0, b"server:/export"));
}

/// A directory with other files, or with access for other users, is refused. A part in another
/// format version is set aside.
/// Promise: 11a
#[tokio::test]
async fn foreign_cache_directory_is_refused() {
    let wire: Arc<dyn Vfs> = Wire::new(model());
    let open = async |dir: &Dir| started(wire.clone(), dir, b"server:/export", options(), 5).await.trouble();
    let foreign = Dir::new();
    std::fs::create_dir(&foreign.0).unwrap();
    std::fs::set_permissions(&foreign.0, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(foreign.0.join("letter"), "dear").unwrap();
    assert!(open(&foreign).await.unwrap().contains("holds other files"));
    assert_eq!(std::fs::read_dir(&foreign.0).unwrap().count(), 1, "nothing was touched");
    let public = Dir::new();
    std::fs::create_dir(&public.0).unwrap();
    std::fs::set_permissions(&public.0, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(open(&public).await.unwrap().contains("chmod 700"));
    let newer = Dir::new();
    assert_eq!(open(&newer).await, None);
    let part = std::fs::read_dir(&newer.0).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir()).unwrap();
    std::fs::write(part.join("format"), "hither disk cache, version 2\n").unwrap();
    assert_eq!(open(&newer).await, None);
    let names = std::fs::read_dir(&newer.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|n| n.contains(".aside-")).count(), 1);
    assert!(std::fs::read(part.join("format")).unwrap().starts_with(b"hither disk cache, version 1"));
}

/// The power fails while a cache directory is created: the directory is empty, and that is no
/// error.
/// Promise: 11a
#[tokio::test]
async fn half_created_directory_is_recreated() {
    let wire: Arc<dyn Vfs> = Wire::new(model());
    let (dir, like) = (Dir::new(), Dir::new());
    let open = async |dir: &Dir| started(wire.clone(), dir, b"server:/export", options(), 5).await.trouble();
    assert_eq!(open(&like).await, None);
    let part = std::fs::read_dir(&like.0).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir()).unwrap();
    let part = dir.0.join(part.file_name().unwrap());
    std::fs::create_dir(&dir.0).unwrap();
    std::fs::set_permissions(&dir.0, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(dir.0.join("hither-cache.new"), "a disk").unwrap();
    assert_eq!(open(&dir).await, None);
    std::fs::remove_dir_all(&part).unwrap();
    std::fs::create_dir(&part).unwrap();
    std::fs::write(part.join("format.new"), "").unwrap();
    assert_eq!(open(&dir).await, None);
    let mut names = std::fs::read_dir(&dir.0).unwrap().map(|e| e.unwrap().file_name());
    assert!(names.all(|name| !name.to_string_lossy().contains("aside")));
}

/// A file system of 1 MiB fills up: reads continue, and no wrong data are kept.
#[tokio::test]
async fn tiny_file_system_serves_reads() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: cannot mount a small file system");
        return;
    }
    let (dir, model) = (Dir::new(), model());
    std::fs::create_dir(&dir.0).unwrap();
    let mount =
        |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).arg(&dir.0).status().unwrap();
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs"]).success() {
        eprintln!("may not mount a small file system");
        return;
    }
    // The long retry time excludes a second attempt.
    let l = real(&model, &dir, DataCacheOptions { retry: Duration::from_secs(3600), ..options() }).await;
    let mut all = Vec::new();
    for i in 0..8u64 {
        let fh = l.file(&format!("f{i}"), &pattern(i, 200_000)).await;
        assert_eq!(l.cat(&fh, 65536).await, pattern(i, 200_000));
        l.settle().await;
        all.push(fh);
    }
    let s = l.disk.stats();
    let check = l.disk.check().await;
    for (i, fh) in all.iter().enumerate() {
        assert_eq!(l.cat(fh, 65536).await, pattern(i as u64, 200_000));
    }
    drop(l);
    tokio::time::sleep(Duration::from_millis(100)).await;
    mount(&["umount", "-l"]);
    assert!(s.errors > 0 && s.off == 1 && s.entries >= 3, "{s:?}");
    assert_eq!(check.damaged, 0);
}
