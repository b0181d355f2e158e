//! More files are open than there are descriptors to read and write them with.

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

/// Promise: S7a
#[tokio::test]
async fn an_open_file_has_one_when_they_are_scarce() {
    let dir = Dir::new();
    let (l, descriptors) = scarce(&dir, 100);
    let (cx, top) = (root(), top(&l).await);
    let mut files = Vec::new();
    let refused = loop {
        match create(&l, &cx, &top, &format!("f{}", files.len()), 0o600).await {
            Ok(file) => files.push(file),
            Err(e) => break e.errno,
        }
    };
    assert_eq!(refused, libc::EMFILE);
    assert!(files.len() > 60, "{} files were opened", files.len());
    assert!(!dir.path(&format!("f{}", files.len())).exists(), "what could not be opened was not made");
    // Bytes are those of the file, whose name may be gone, by whomever its permissions were taken away.
    std::fs::remove_file(dir.path("f70")).unwrap();
    for file in &files {
        put(&l, &cx, file, 0, b"text").await.unwrap();
        assert_eq!(text_of(&l, file).await, "text");
        l.commit(&cx, File { fh: &file.node.fh, open: Some(file.open) }).await.unwrap();
    }
    // Those to write with are closed for others.
    assert!(descriptors.held() <= 101, "{} are held", descriptors.held());
    for file in &files {
        assert_eq!(text_of(&l, file).await, "text");
    }
    // One that is open already may be opened again.
    l.open(&cx, Where::fh(&files[0].node.fh), &how(both(), Create::No)).await.unwrap();
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
    assert_eq!(descriptors.held(), 0, "none is left");
}

/// Promise: S7a
#[tokio::test]
async fn what_was_written_is_synced_before_its_descriptor_goes() {
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
