//! More files are open than there are descriptors to read and write them.

use super::*;

fn scarce(dir: &Dir, max: usize) -> (Local, Arc<Descriptors>) {
    let descriptors = Descriptors::new(max);
    let options = LocalOptions { stable: false, descriptors: descriptors.clone(), ..Default::default() };
    (Local::open(&dir.0, options, env()).unwrap(), descriptors)
}

async fn text_of(l: &Local, f: &Opened) -> Bytes {
    let file = File { fh: &f.node.fh, open: Some(f.open) };
    l.read(&root(), file, 0, 100).await.unwrap().data.into_bytes()
}

/// Waits until no descriptor is held. The threads of the directory answer a call before they drop
/// the call, and the last thread ends the directory.
async fn are_given_back(descriptors: &Descriptors) {
    let given_back = async {
        while descriptors.held() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), given_back).await;
    assert!(waited.is_ok(), "{} are held", descriptors.held());
}

/// Open files without a name keep their descriptors. When no descriptor is left, an open fails.
/// Promise: S7a
#[tokio::test]
async fn unlinked_open_file_keeps_descriptor() {
    let dir = Dir::new();
    let (l, descriptors) = scarce(&dir, 100);
    let (cx, top) = (root(), top(&l).await);
    let mut files = Vec::new();
    let refused = loop {
        let n = files.len();
        match create(&l, &cx, &top, &format!("f{n}"), 0o600).await {
            Ok(file) => files.push(file),
            Err(e) => break e.errno,
        }
        l.unlink(&cx, &top, &name(&format!("f{n}")), None).await.unwrap();
    };
    assert_eq!(refused, libc::EMFILE);
    assert!(files.len() > 60, "{} files were opened", files.len());
    assert!(!dir.path(&format!("f{}", files.len())).exists(), "what could not be opened was not made");
    for file in &files {
        put(&l, &cx, file, 0, b"text").await.unwrap();
        assert_eq!(text_of(&l, file).await, "text");
        l.commit(&cx, File { fh: &file.node.fh, open: Some(file.open) }).await.unwrap();
    }
    // Descriptors for writing are closed to free some for others.
    assert!(descriptors.held() <= 101, "{} are held", descriptors.held());
    for file in &files {
        assert_eq!(text_of(&l, file).await, "text");
    }
    // A file that is open already may be opened again.
    l.open(&cx, PathRef::fh(&files[0].node.fh), &how(both(), Create::No)).await.unwrap();
    for file in files.drain(10..20) {
        l.close(&cx, &file.node.fh, file.open).await.unwrap();
    }
    l.inner.tidy();
    for n in 0..5 {
        files.push(create(&l, &cx, &top, &format!("g{n}"), 0o600).await.unwrap());
    }
    for file in files {
        l.close(&cx, &file.node.fh, file.open).await.unwrap();
    }
    drop(l);
    are_given_back(&descriptors).await;
}

/// A file with its expected bytes and opens.
struct ExpectedFile {
    fh: Fh,
    opens: Vec<OpenId>,
    bytes: Vec<u8>,
    name: Option<String>,
}

/// Ten times as many files are open as there are descriptors. Clients read, write, truncate, rename
/// and remove each. `HITHER_OPENS` is the number of opens; the number of descriptors is a fifth of
/// it.
/// Promise: S7a
#[tokio::test]
async fn idle_opens_give_descriptors_back() {
    let long: Option<usize> = std::env::var("HITHER_OPENS").ok().map(|n| n.parse().unwrap());
    let (count, max) = long.map_or((1_000, 100), |n| (n, n / 5));
    let dir = Dir::new();
    let (l, descriptors) = scarce(&dir, max);
    let (cx, top) = (root(), top(&l).await);
    let mut files = Vec::new();
    for n in 0..count {
        let name = format!("f{n}");
        let file = create(&l, &cx, &top, &name, 0o600).await.unwrap();
        let bytes = format!("text of {n}").into_bytes();
        let at = File { fh: &file.node.fh, open: Some(file.open) };
        l.write(&cx, at, 0, Bytes::from(bytes.clone()).into(), Stability::Unstable).await.unwrap();
        files.push(ExpectedFile { fh: file.node.fh, opens: vec![file.open], bytes, name: Some(name) });
        assert!(descriptors.held() <= max + 2, "{} are held", descriptors.held());
    }
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let mut nameless = 0;
    for step in 0..count * 3 {
        let file = &mut files[random(count)];
        let kept = File { fh: &file.fh, open: file.opens.last().copied() };
        match random(8) {
            0 => {
                let text = format!("step {step}").into_bytes();
                let at = random(20);
                file.bytes.resize(file.bytes.len().max(at + text.len()), 0);
                file.bytes[at..at + text.len()].copy_from_slice(&text);
                l.write(&cx, kept, at as u64, Bytes::from(text).into(), Stability::Unstable).await.unwrap();
            }
            1 => {
                let size = random(20);
                file.bytes.resize(size, 0);
                let set = SetAttr { size_bytes: Some(size as u64), ..Default::default() };
                l.setattr(&cx, kept, &set).await.unwrap();
            }
            2 if step % 16 == 0 => l.commit(&cx, kept).await.unwrap(),
            3 => {
                let opened = l.open(&cx, PathRef::fh(&file.fh), &how(both(), Create::No)).await.unwrap();
                file.opens.push(opened.open);
            }
            4 if file.opens.len() > 1 => l.close(&cx, &file.fh, file.opens.swap_remove(0)).await.unwrap(),
            5 if nameless < max / 5 => {
                if let Some(old) = file.name.take() {
                    l.unlink(&cx, &top, &name(&old), None).await.unwrap();
                    nameless += 1;
                }
            }
            6 => {
                if let Some(old) = file.name.replace(format!("g{step}")) {
                    std::fs::rename(dir.path(&old), dir.path(&format!("g{step}"))).unwrap();
                } else {
                    file.name = None;
                }
            }
            _ => {
                let read = l.read(&cx, kept, 0, 100).await.unwrap();
                assert_eq!(read.data.into_bytes(), file.bytes, "step {step}");
            }
        }
        assert!(descriptors.held() <= max + 2, "{} are held", descriptors.held());
    }
    // One file replaces another.
    let (moved, replaced) = (files.iter().rposition(|f| f.name.is_some()).unwrap(), 0);
    let to = files[replaced].name.clone().unwrap_or("h".into());
    let from = files[moved].name.take().unwrap();
    l.rename(&cx, (&top, &name(&from)), (&top, &name(&to)), None, RenameFlags::empty()).await.unwrap();
    for file in &files {
        let kept = File { fh: &file.fh, open: file.opens.last().copied() };
        assert_eq!(l.read(&cx, kept, 0, 100).await.unwrap().data.into_bytes(), file.bytes);
        assert_eq!(l.getattr(&cx, kept).await.unwrap().attr.size_bytes, file.bytes.len() as u64);
    }
    for file in &files {
        for open in &file.opens {
            l.close(&cx, &file.fh, *open).await.unwrap();
        }
    }
    assert_eq!(l.open_count(), 0);
    drop(l);
    are_given_back(&descriptors).await;
}

/// A descriptor with unsynced writes is closed only after a sync. A later write opens the file
/// again.
/// Promise: S7a
#[tokio::test]
async fn descriptor_close_syncs_writes_first() {
    let dir = Dir::new();
    let (l, _) = scarce(&dir, 20);
    let (cx, top) = (root(), top(&l).await);
    let mut files = Vec::new();
    for n in 0..12 {
        files.push(create(&l, &cx, &top, &format!("f{n}"), 0o600).await.unwrap());
    }
    let file = &files[11];
    put(&l, &cx, file, 0, b"text").await.unwrap();
    let object = l.inner.objects.find(&file.node.fh).unwrap();
    let fd = object.io_now(true).expect("who has written keeps what he is told of errors by");
    drop(fd);
    assert!(object.unsynced.load(Ordering::SeqCst));
    for _ in 0..4 {
        l.inner.tidy();
    }
    assert!(!object.unsynced.load(Ordering::SeqCst));
    for _ in 0..4 {
        l.inner.tidy();
    }
    assert!(object.io_now(true).is_none());
    put(&l, &cx, file, 4, b"more").await.unwrap();
    assert_eq!(text_of(&l, file).await, "textmore");
}
