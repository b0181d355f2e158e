//! A file system without handles can be served: overlayfs as in containers.

use super::*;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// An overlayfs that is unmounted at the end of its test, with its layers.
struct Overlay {
    merged: Dir,
    state: Dir,
    _parts: Dir,
}

impl Overlay {
    fn new(fill: impl FnOnce(&Path)) -> Self {
        let (merged, parts, state) = (Dir::new(), Dir::new(), Dir::new());
        for part in ["lower", "upper", "work"] {
            std::fs::create_dir(parts.path(part)).unwrap();
        }
        fill(&parts.path("lower"));
        let part = |name| std::fs::canonicalize(parts.path(name)).unwrap().display().to_string();
        let data = format!("lowerdir={},upperdir={},workdir={}", part("lower"), part("upper"), part("work"));
        let data = std::ffi::CString::new(data).unwrap();
        mount("overlay", &merged.0, "overlay", MountFlags::empty(), data.as_c_str()).unwrap();
        Self { merged, state, _parts: parts }
    }

    fn open(&self) -> Result<Local> {
        let state_dir = Some(self.state.path("state"));
        Local::open(&self.merged.0, LocalOptions { state_dir, export_id: 1, ..Default::default() }, env())
    }

    /// Waits for the previous server to end: its threads hold the table a moment longer.
    async fn open_after(&self) -> Result<Local> {
        for _ in 0..1000 {
            match self.open() {
                Err(e) if e.errno == libc::EBUSY => tokio::time::sleep(Duration::from_millis(10)).await,
                other => return other,
            }
        }
        panic!("the table is in use for ten seconds");
    }

    async fn serve(&self) -> Local {
        self.open_after().await.unwrap()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        unmount(&self.merged.0, UnmountFlags::DETACH).unwrap();
    }
}

async fn write_at(l: &Local, cx: &RequestContext, fh: &Fh, bytes: &'static [u8]) -> Result<()> {
    let data = Data::from(Bytes::from_static(bytes));
    l.write(cx, File { fh, open: None }, 0, data, Stability::Stable).await.map(drop)
}

async fn rename(l: &Local, from: (&Fh, &str), to: (&Fh, &str)) {
    let none = RenameFlags::empty();
    l.rename(&root(), (from.0, &name(from.1)), (to.0, &name(to.1)), None, none).await.unwrap();
}

async fn fh_of(l: &Local, path: &str) -> Fh {
    find(l, &root(), path).await.unwrap().fh
}

async fn is_stale(l: &Local, fh: &Fh) -> bool {
    errno(l.getattr(&root(), File { fh, open: None }).await) == libc::ESTALE
}

/// Filehandles of a table survive restarts, renames, links and the copying up of a file.
/// Promise: S3
#[tokio::test]
async fn table_handles_survive_copy_up() {
    let o = Overlay::new(|lower| {
        std::fs::create_dir_all(lower.join("d/deep")).unwrap();
        for name in ["d/f", "d/deep/g"] {
            std::fs::write(lower.join(name), b"below").unwrap();
        }
    });
    let cx = root();
    let (f, g, deep, new, inner, base) = {
        let l = o.serve().await;
        let (f, g, deep) = (fh_of(&l, "d/f").await, fh_of(&l, "d/deep/g").await, fh_of(&l, "d/deep").await);
        let new = l.mkdir(&cx, &deep, &name("new"), &mode(0o755)).await.unwrap().node.fh;
        let inner = create(&l, &cx, &new, "inner", 0o644).await.unwrap();
        put(&l, &cx, &inner, 0, b"inner").await.unwrap();
        assert!(f.0.len() <= 64 && f != g);
        (f, g, deep, new, inner.node.fh, top(&l).await)
    };
    {
        let l = o.serve().await;
        assert_eq!(top(&l).await, base);
        assert_eq!(&read_all(&l, &cx, &f).await.unwrap()[..], b"below");
        // overlayfs copies the file up. The inode changes, and the filehandle stays.
        write_at(&l, &cx, &g, b"above").await.unwrap();
    }
    {
        let l = o.serve().await;
        assert_eq!(&read_all(&l, &cx, &g).await.unwrap()[..], b"above");
        assert_eq!(fh_of(&l, "d/deep/g").await, g);
        rename(&l, (&deep, "new"), (&base, "moved")).await;
        rename(&l, (&deep, "g"), (&new, "h")).await;
        l.link(&cx, &f, &new, &name("linked")).await.unwrap();
        l.unlink(&cx, &fh_of(&l, "d").await, &name("f"), None).await.unwrap();
    }
    let l = o.serve().await;
    for (fh, bytes) in [(&inner, "inner"), (&g, "above"), (&f, "below")] {
        assert_eq!(read_all(&l, &cx, fh).await.unwrap(), bytes);
    }
    assert_eq!(fh_of(&l, "moved/inner").await, inner);
    assert_eq!(fh_of(&l, "moved/h").await, g);
    assert!(!is_stale(&l, &deep).await);
    assert_eq!(find(&l, &cx, "d/f").await.map_err(|e| e.errno).unwrap_err(), libc::ENOENT);
}

/// A new file with the inode number of a removed file gets another filehandle. The old filehandle
/// is stale.
/// Promise: S3
#[tokio::test]
async fn table_detects_reused_inodes() {
    let o = Overlay::new(|_| ());
    let cx = root();
    let mut seen = std::collections::HashSet::new();
    let mut reused = 0;
    let mut inodes = std::collections::HashSet::new();
    for round in 0..20 {
        std::fs::write(o.merged.path("f"), b"x").unwrap();
        reused += usize::from(!inodes.insert(std::fs::metadata(o.merged.path("f")).unwrap().ino()));
        let l = o.serve().await;
        let fh = fh_of(&l, "f").await;
        assert!(seen.insert(fh.clone()), "round {round}: the handle of a file that is gone");
        for old in seen.iter().filter(|old| **old != fh) {
            assert!(is_stale(&l, old).await, "round {round}");
        }
        if round % 2 == 0 {
            l.unlink(&cx, &top(&l).await, &name("f"), None).await.unwrap();
            assert!(is_stale(&l, &fh).await);
        } else {
            drop(l);
            std::fs::remove_file(o.merged.path("f")).unwrap();
        }
    }
    assert!(reused > 0, "no inode number came again: this says nothing");
}

/// A torn table is read up to the tear. A file that is no table is refused.
/// Promise: S3
#[tokio::test]
async fn torn_table_keeps_whole_entries() {
    let o = Overlay::new(|lower| {
        for n in 0..10 {
            std::fs::write(lower.join(n.to_string()), b"x").unwrap();
        }
    });
    let path = o.state.path("state/handles-1");
    let mut handles = Vec::new();
    {
        let l = o.serve().await;
        for n in 0..10 {
            handles.push(fh_of(&l, &n.to_string()).await);
        }
    }
    drop(o.serve().await);
    let whole = std::fs::read(&path).unwrap();
    let mut lost = 0;
    for cut in (0..whole.len()).rev().step_by(97) {
        let mut torn = whole[..cut].to_vec();
        torn.extend_from_slice(&[0xa5; 40][..cut % 40]);
        std::fs::write(&path, torn).unwrap();
        let l = o.serve().await;
        let mut alive = 0;
        for (n, fh) in handles.iter().enumerate() {
            match read_all(&l, &root(), fh).await {
                Ok(bytes) => {
                    assert_eq!(fh_of(&l, &n.to_string()).await, *fh);
                    assert_eq!(bytes, "x");
                    alive += 1;
                }
                Err(e) => assert_eq!(e.errno, libc::ESTALE),
            }
        }
        assert!(alive <= 10 - lost);
        lost = 10 - alive;
    }
    assert_eq!(lost, 10);
    std::fs::write(&path, b"something that is no table, but has a certain length to it").unwrap();
    assert!(o.open_after().await.unwrap_err().to_string().contains("remove it"));
}

/// A damaged table is kept beside the new one. The handles of other records stay valid, and no
/// handle leads to another file.
/// Promise: S3
#[tokio::test]
async fn damaged_table_is_kept_aside() {
    let o = Overlay::new(|lower| {
        for n in 0..10 {
            std::fs::write(lower.join(n.to_string()), n.to_string()).unwrap();
        }
    });
    let mut handles = Vec::new();
    {
        let l = o.serve().await;
        for n in 0..10 {
            handles.push(fh_of(&l, &n.to_string()).await);
        }
    }
    drop(o.serve().await);
    let path = o.state.path("state/handles-1");
    let mut damaged = std::fs::read(&path).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let l = o.serve().await;
    let mut alive = 0;
    for (n, fh) in handles.iter().enumerate() {
        match read_all(&l, &root(), fh).await {
            Ok(bytes) => {
                assert_eq!(bytes, n.to_string());
                alive += 1;
            }
            Err(e) => assert_eq!(e.errno, libc::ESTALE),
        }
    }
    assert_eq!(alive, 9);
    assert!(std::fs::read(o.state.path("state/handles-1.damaged-0")).unwrap() == damaged);
}

/// A table serves one server at a time. It cannot be combined with a journal.
/// Promise: S3
#[tokio::test]
async fn table_admits_one_server() {
    let o = Overlay::new(|_| ());
    let _first = o.serve().await;
    assert_eq!(errno(o.open()), libc::EBUSY);
    let journal = JournalOptions { path: o.state.path("j"), size_bytes: 1 << 20, discard: false };
    let state_dir = Some(o.state.path("other"));
    let options = LocalOptions { state_dir, journal: Some(journal), ..Default::default() };
    let refused = Local::open(&o.merged.0, options, env()).unwrap_err();
    assert!(refused.to_string().contains("no handles"), "{refused}");
}

/// The table finds the parent of a directory. The exported directory has none.
#[tokio::test]
async fn table_finds_parent_directory() {
    let o = Overlay::new(|lower| std::fs::create_dir_all(lower.join("d/deep")).unwrap());
    let cx = root();
    let (d, deep) = {
        let l = o.serve().await;
        (fh_of(&l, "d").await, fh_of(&l, "d/deep").await)
    };
    let l = o.serve().await;
    assert_eq!(l.parent(&cx, &deep).await.unwrap().fh, d);
    assert_eq!(l.parent(&cx, &d).await.unwrap().fh, top(&l).await);
    assert_eq!(errno(l.parent(&cx, &top(&l).await).await), libc::ENOENT);
}
