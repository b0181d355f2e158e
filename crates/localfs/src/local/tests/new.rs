//! New objects come from the stock; clients see no difference except the speed. On a real ext4, in
//! an image.

use super::clones::Disk;
use super::journaled::mix;
use super::*;
use std::collections::BTreeSet;
use std::process::Command;

fn disk(options: &[&str]) -> Option<Disk> {
    Disk::new("ext4", &[&["-q", "-b", "4096", "-J", "size=8"], options].concat())
}

fn run(program: &str, args: &[&str], path: &Path) -> String {
    let out = Command::new(program).args(args).arg(path).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// A directory of the same disk, without a journal.
fn plain(disk: &Disk, dir: &str) -> Local {
    std::fs::create_dir_all(disk.path(dir)).unwrap();
    Local::open(&disk.path(dir), LocalOptions::default(), env()).unwrap()
}

/// Number of objects that came from the stock.
fn given(l: &Local) -> u64 {
    l.inner.journal.as_ref().unwrap().stock().unwrap().given()
}

fn left(disk: &Disk) -> usize {
    std::fs::read_dir(disk.path("state/journal-new/stock")).unwrap().count()
}

/// Kinds of directories, each with whether new objects there can come from the stock.
const DIRS: [(&str, bool); 10] = [
    ("usual", true),
    ("sticky", true),
    ("set-gid", false),
    ("default-acl", false),
    ("no-atime", false),
    ("sync", false),
    ("no-dump", false),
    ("not-theirs", true),
    ("immutable", false),
    ("append-only", false),
];

fn prepare(at: &Path) {
    for (dir, _) in DIRS {
        std::fs::create_dir(at.join(dir)).unwrap();
        std::fs::set_permissions(at.join(dir), std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let set_mode = |dir: &str, mode: u32| {
        std::fs::set_permissions(at.join(dir), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode("sticky", 0o1777);
    run("chgrp", &["77"], &at.join("set-gid"));
    set_mode("set-gid", 0o2777);
    run("setfacl", &["-d", "-m", "u::rwx,g::r,o::-,u:1001:rw,m::rwx"], &at.join("default-acl"));
    run("chattr", &["+A"], &at.join("no-atime"));
    run("chattr", &["+S"], &at.join("sync"));
    run("chattr", &["+d"], &at.join("no-dump"));
    set_mode("not-theirs", 0o755);
    for dir in DIRS {
        std::fs::write(at.join(dir.0).join("old"), b"").unwrap();
    }
    run("chattr", &["+i"], &at.join("immutable"));
    run("chattr", &["+a"], &at.join("append-only"));
}

/// The visible properties of a new object, or the error.
async fn outcome(
    l: &Local,
    cx: &RequestContext,
    at: &Path,
    dir: &str,
    n: u64,
    what: (&str, usize, &SetAttr),
) -> String {
    let (kind, i, set) = what;
    let fh = find(l, &root(), dir).await.unwrap().fh;
    let last = if i == 99 { "old".to_string() } else { format!("{kind}{n}-{i}") };
    let last = name(&last);
    let result = match kind {
        "mknod" => l.mknod(cx, &fh, &last, &Special::Regular, set).await.map(|made| made.node),
        "mkdir" => l.mkdir(cx, &fh, &last, set).await.map(|made| made.node),
        "fifo" => l.mknod(cx, &fh, &last, &Special::Fifo, set).await.map(|made| made.node),
        _ => {
            let create = match kind {
                "exclusive" => Create::Exclusive(set.clone()),
                _ => Create::IfMissing(set.clone()),
            };
            match l.open(cx, PathRef::name(&fh, &last), &how(both(), create)).await {
                Ok(opened) => {
                    let file = File { fh: &opened.node.fh, open: Some(opened.open) };
                    let data = Bytes::from_static(b"bytes");
                    // The maker of the file may write to it despite its permissions.
                    let wrote = l.write(cx, file, 0, data.into(), Stability::Stable).await.unwrap();
                    assert_eq!(wrote.bytes, 5);
                    l.close(cx, &opened.node.fh, opened.open).await.unwrap();
                    Ok(opened.node)
                }
                Err(e) => Err(e),
            }
        }
    };
    let node = match result {
        Ok(node) => node,
        Err(e) => return format!("errno {}", e.errno),
    };
    let attr = node.attrs.attr;
    let now = now();
    for (time, set) in [(attr.atime, set.atime), (attr.mtime, set.mtime), (attr.ctime, None)] {
        match set {
            Some(SetTime::To(to)) => assert_eq!(time, to),
            _ => assert!((now - 120..=now + 1).contains(&time.secs), "{time:?}, now {now}"),
        }
    }
    let path = at.join(dir).join(std::str::from_utf8(last.as_bytes()).unwrap());
    assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), attr.fileid);
    assert_eq!(
        find(l, &root(), &format!("{dir}/{}", path.file_name().unwrap().display())).await.unwrap().fh,
        node.fh
    );
    // Flags of the storage (extents) and the path of the directory are left out.
    let flags = match attr.kind {
        FileKind::Regular | FileKind::Directory => run("lsattr", &["-d"], &path),
        _ => String::new(),
    };
    let flags: String = flags.split(' ').filter(|word| !word.starts_with('/')).collect::<Vec<_>>().join(" ");
    let acl = run("getfacl", &["-cEpn"], &path).replace('\n', " ");
    format!(
        "{:?} {:o} links {} owner {} {} size {} flags {} acl {acl}",
        attr.kind,
        attr.mode,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size_bytes,
        flags.trim().replace('e', "-")
    )
}

fn now() -> i64 {
    (env().wall)().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64
}

/// An object from the stock has the attributes of an object that the kernel creates. A refused
/// creation has the same error.
/// Promise: S8b
#[tokio::test]
async fn stock_objects_match_kernel_objects() {
    let Some(disk) = disk(&[]) else { return };
    let (l, other) = (disk.serve(), plain(&disk, "other"));
    let (ours, theirs) = (disk.path("export"), disk.path("other"));
    prepare(&ours);
    prepare(&theirs);
    let callers = [root(), cx(1000, 1000, &[]), cx(1001, 1001, &[77, 5])];
    let time = |secs| Some(SetTime::To(Time { secs, nanos: 9 }));
    let sets = [
        SetAttr::default(),
        mode(0o640),
        mode(0o444),
        mode(0o6755),
        mode(0o1700),
        SetAttr { atime: time(5), mtime: time(6), ..mode(0o600) },
        SetAttr { uid: Some(1001), ..mode(0o600) },
        SetAttr { gid: Some(77), ..mode(0o4711) },
        SetAttr { gid: Some(5), ..mode(0o660) },
    ];
    let (mut n, mut outcomes) = (0, BTreeSet::new());
    for (dir, is_stock) in DIRS {
        let before = given(&l);
        for cx in &callers {
            for kind in ["mknod", "mkdir", "open", "exclusive", "fifo"] {
                n += 1;
                for (i, set) in sets.iter().enumerate().chain([(99, &sets[0])]) {
                    let a = outcome(&l, cx, &ours, dir, n, (kind, i, set)).await;
                    let b = outcome(&other, cx, &theirs, dir, n, (kind, i, set)).await;
                    assert_eq!(a, b, "{kind} in {dir} by {}: {set:?}", cx.cred.uid);
                    outcomes.insert(a);
                }
            }
        }
        let some = given(&l) - before;
        assert_eq!(some > 0, is_stock, "{dir}: {some} out of stock");
    }
    assert!(outcomes.len() > 20 && outcomes.iter().any(|o| o.starts_with("errno")), "{outcomes:?}");
    for at in [ours, theirs] {
        run("chattr", &["-i"], &at.join("immutable"));
        run("chattr", &["-a"], &at.join("append-only"));
    }
}

/// Concurrent creations get distinct objects, each with the identity of its caller. Unused objects
/// of the stock are not visible in the export.
/// Promise: S8b
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_creates_get_distinct_objects() {
    let Some(disk) = disk(&[]) else { return };
    let l = Arc::new(disk.serve());
    let base = top(&l).await;
    std::fs::set_permissions(disk.path("export"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let tasks: Vec<_> = (0..32_u64)
        .map(|client| {
            let (l, base) = (l.clone(), base.clone());
            tokio::spawn(async move {
                let (mut all, cx) = (Vec::new(), cx(1000 + client as u32, 1000, &[]));
                for i in 0..60 {
                    // Two clients at a time make half of the names: one of them gets EEXIST.
                    let last = name(&format!("{}-{i}", if i % 2 == 0 { client / 2 } else { client + 100 }));
                    let made = match mix(client / 2 * 1000 + i) % 3 {
                        0 => l.mkdir(&cx, &base, &last, &mode(0o700)).await,
                        _ => l.mknod(&cx, &base, &last, &Special::Regular, &mode(0o600)).await,
                    };
                    match made {
                        Ok(made) => {
                            let attr = made.node.attrs.attr;
                            assert_eq!((attr.uid, attr.gid), (cx.cred.uid, 1000));
                            all.push((last, made.node.fh));
                        }
                        Err(e) => assert_eq!((e.errno, i % 2), (libc::EEXIST, 0)),
                    }
                }
                all
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    assert_eq!(all.len(), 16 * 30 + 32 * 30);
    let different: BTreeSet<_> = all.iter().map(|(_, fh)| fh.0.clone()).collect();
    assert_eq!(different.len(), all.len());
    let seen: BTreeSet<_> =
        std::fs::read_dir(disk.path("export")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(seen.len(), all.len(), "only what clients made");
    assert_eq!(given(&l), all.len() as u64);
    let shown = l.readdir(&root(), &base, 0, [0; 8], 1 << 20, true).await.unwrap();
    assert!(shown.eof && shown.entries.len() == all.len());
}

/// An orderly end removes the unused objects of the stock. After a power cut the next start removes
/// them.
/// Promise: S8b
#[tokio::test]
async fn unused_stock_is_removed() {
    let Some(mut disk) = disk(&[]) else { return };
    let l = disk.serve();
    create(&l, &root(), &top(&l).await, "a", 0o644).await.unwrap();
    assert!(left(&disk) > 0, "some are there before they are needed");
    l.shutdown(&root()).await.unwrap();
    assert_eq!(left(&disk), 0);
    drop(l);
    // After a power cut the objects of the last run are removed, and new ones are made.
    let l = disk.serve();
    let base = top(&l).await;
    for i in 0..30 {
        l.mknod(&root(), &base, &name(&format!("b{i}")), &Special::Regular, &mode(0o644)).await.unwrap();
    }
    let number = |disk: &Disk, one: &String| {
        std::fs::symlink_metadata(disk.path("state/journal-new/stock").join(one))
            .map(|found| found.ino())
            .ok()
    };
    let stock = l.inner.journal.as_ref().unwrap().stock().unwrap();
    stock.stop();
    let ready: Vec<_> = stock.ready().iter().map(|one| (one.clone(), number(&disk, one))).collect();
    disk.cut();
    drop(l);
    assert!(!ready.is_empty());
    for (one, is) in &ready {
        assert_eq!(number(&disk, one), *is, "{one} was durable");
    }
    let l = disk.serve();
    for i in 0..30 {
        assert!(std::fs::metadata(disk.path("export").join(format!("b{i}"))).is_ok(), "it was acknowledged");
    }
    create(&l, &root(), &top(&l).await, "c", 0o644).await.unwrap();
    assert!(left(&disk) < 30, "{}", left(&disk));
    // Only the superuser may enter the directory.
    assert_eq!(std::fs::metadata(disk.path("state/journal-new")).unwrap().mode() & 0o7777, 0o700);
}

/// Without a stock a new object is synced before the reply, so it survives a power cut.
/// Promise: S8b
#[tokio::test]
async fn create_without_stock_is_synced() {
    let Some(mut disk) = disk(&[]) else { return };
    let l = disk.serve();
    let base = top(&l).await;
    create(&l, &root(), &base, "before", 0o644).await.unwrap();
    l.inner.journal.as_ref().unwrap().stock().unwrap().stop();
    let before = given(&l);
    create(&l, &root(), &base, "a", 0o644).await.unwrap();
    l.mkdir(&root(), &base, &name("b"), &mode(0o755)).await.unwrap();
    assert_eq!(given(&l), before);
    disk.cut();
    drop(l);
    // The journal was not applied.
    for last in ["before", "a", "b"] {
        assert!(disk.path("export").join(last).exists(), "{last}");
    }
}

/// There is no stock if the state directory is in the export or on another file system.
/// Promise: S8b
#[tokio::test]
async fn stock_needs_private_state_directory() {
    let Some(disk) = disk(&[]) else { return };
    let has_stock = |dir: PathBuf, state: PathBuf, journal: PathBuf| {
        let journal = JournalOptions { path: journal, size_bytes: 1 << 20, discard: true };
        let options = LocalOptions { state_dir: Some(state), journal: Some(journal), ..Default::default() };
        let l = Local::open(&dir, options, env()).unwrap();
        let journal = l.inner.journal.as_ref().unwrap();
        (journal.names().is_some(), journal.stock().is_some())
    };
    let (export, elsewhere) = (disk.path("export"), Dir::new());
    let there = |state: &str| (disk.path(state), disk.path("journal"));
    let (state, journal) = there("state");
    assert_eq!(has_stock(export.clone(), state, journal), (true, true));
    let (state, journal) = there("export/state");
    assert_eq!(has_stock(export.clone(), state, journal), (true, false), "clients would see it");
    let (state, journal) = (elsewhere.path("state"), elsewhere.path("journal"));
    assert_eq!(has_stock(export, state, journal), (false, false), "another file system");
}

/// When the inodes are used up, a creation fails with ENOSPC. All acknowledged objects survive a
/// power cut.
/// Promise: S8b
#[tokio::test]
async fn full_disk_keeps_acknowledged_creates() {
    let Some(mut disk) = disk(&["-N", "256"]) else { return };
    let (l, user) = (disk.serve(), cx(1000, 1000, &[]));
    std::fs::set_permissions(disk.path("export"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let base = top(&l).await;
    let mut made = Vec::new();
    let why = loop {
        let last = format!("f{}", made.len());
        match l.mknod(&user, &base, &name(&last), &Special::Regular, &mode(0o600)).await {
            Ok(node) => made.push((last, node.node.fh)),
            Err(e) => break e.errno,
        }
    };
    assert_eq!(why, libc::ENOSPC);
    assert!(made.len() > 100, "{}", made.len());
    for (last, _) in made.drain(..20) {
        l.unlink(&user, &base, &name(&last), None).await.unwrap();
    }
    let again = l.mknod(&user, &base, &name("again"), &Special::Regular, &mode(0o600)).await.unwrap();
    made.push(("again".into(), again.node.fh));
    disk.cut();
    drop(l);
    let l = disk.serve();
    for (last, fh) in &made {
        assert_eq!(find(&l, &user, last).await.unwrap().fh, *fh);
    }
    assert_eq!(std::fs::read_dir(disk.path("export")).unwrap().count(), made.len());
}

/// The file system gives new files the group of their directory. New objects then do not come from
/// the stock, and each is synced.
/// Promise: S8b
#[tokio::test]
async fn grpid_mount_uses_no_stock() {
    let Some(disk) = disk(&[]) else { return };
    run("mount", &["-o", "remount,grpid"], &disk.path(""));
    std::fs::set_permissions(disk.path("export"), std::fs::Permissions::from_mode(0o777)).unwrap();
    run("chgrp", &["88"], &disk.path("export"));
    let l = disk.serve();
    let made = create(&l, &cx(1000, 1000, &[]), &top(&l).await, "f", 0o644).await.unwrap();
    assert_eq!((made.node.attrs.attr.uid, made.node.attrs.attr.gid), (1000, 88));
    assert_eq!(given(&l), 0);
}
