//! Reads without a copy return the bytes of the file.

use super::*;
use hither_vfs::{Extra, Pipe};

const LEN: usize = (3 << 20) + 1234;

fn content() -> Vec<u8> {
    (0..LEN as u32).map(|i| (i / 7 + i) as u8).collect()
}

fn taken(pipe: &dyn Pipe, most: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(most);
    while out.len() < most
        && rustix::io::read(pipe.fd(), rustix::buffer::spare_capacity(&mut out)).is_ok_and(|n| n > 0)
    {}
    out
}

/// Bytes in the page cache are read through a pipe, without a copy. A short range or a caller
/// without permission gets no pipe.
/// Promise: S4
#[tokio::test]
async fn cached_bytes_are_piped() {
    for place in [None, Some("/dev/shm")] {
        let dir = place.map_or_else(Dir::new, Dir::on);
        let (l, admin, owner, other) = (local(&dir), root(), cx(10, 10, &[]), cx(11, 11, &[]));
        let content = content();
        std::fs::write(dir.path("f"), &content).unwrap();
        std::os::unix::fs::chown(dir.path("f"), Some(10), Some(10)).unwrap();
        let f = find(&l, &admin, "f").await.unwrap().fh;
        let file = File { fh: &f, open: None };
        assert!(l.read_piped(&admin, file, 0, 1 << 20).is_none(), "nothing is open yet");
        read_all(&l, &admin, &f).await.unwrap();
        for (at, len) in
            [(0, 1 << 20), (65536, 65536), (5, 70_000), (LEN - 20_000, 1 << 20), (2 << 20, 1 << 20)]
        {
            for cx in [&admin, &owner] {
                let read = l.read_piped(cx, file, at as u64, len as u32).expect("it is in memory");
                let end = (at + len).min(LEN);
                assert_eq!(read.data.len(), end - at);
                assert_eq!(read.eof, end == LEN);
                assert!(taken(&*read.data, LEN) == content[at..end], "{at} {len}");
            }
        }
        // A file of another owner, an empty range, a short one, and one that is larger than a pipe.
        assert!(l.read_piped(&other, file, 0, 65536).is_none());
        assert!(l.read_piped(&admin, file, LEN as u64, 65536).is_none());
        assert!(l.read_piped(&admin, file, u64::MAX, 65536).is_none());
        assert!(l.read_piped(&admin, file, 0, 4096).is_none());
        assert!(l.read_piped(&admin, file, 1, 1 << 20).is_none());
        let opened = l.open(&owner, PathRef::fh(&f), &how(OpenAccess::READ, Create::No)).await.unwrap();
        let opened_file = File { fh: &f, open: Some(opened.open) };
        let read = l.read_piped(&other, opened_file, 0, 65536).expect("the open decides");
        assert!(taken(&*read.data, LEN) == content[..65536]);
        let for_writing = l.open(&owner, PathRef::fh(&f), &how(OpenAccess::WRITE, Create::No)).await.unwrap();
        assert!(l.read_piped(&owner, File { fh: &f, open: Some(for_writing.open) }, 0, 65536).is_none());
    }
}

/// Bytes that are left in a pipe do not appear in the next read. When all pipes are in use, reads
/// are copied.
#[tokio::test]
async fn unread_pipe_bytes_are_discarded() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    let content = content();
    std::fs::write(dir.path("f"), &content).unwrap();
    let f = find(&l, &cx, "f").await.unwrap().fh;
    read_all(&l, &cx, &f).await.unwrap();
    let file = File { fh: &f, open: None };
    for i in 0..100 {
        let at = i % 20 * 65536;
        let read = l.read_piped(&cx, file, at as u64, 65536).unwrap();
        let most = [0, 1000, 65536][i % 3];
        assert!(taken(&*read.data, most)[..] == content[at..at + most]);
    }
    // Takes as many pipes as are available. Then reads are copied.
    let many: Vec<_> = (0..1000).map_while(|_| l.read_piped(&cx, file, 0, 65536)).collect();
    assert!((2..1000).contains(&many.len()), "{}", many.len());
    drop(many);
    assert!(l.read_piped(&cx, file, 0, 65536).is_some());
}

/// A truncation after a read leaves the bytes in the pipe.
/// Promise: S4
#[tokio::test]
async fn truncation_keeps_piped_bytes() {
    let dir = Dir::new();
    let (l, cx) = (local(&dir), root());
    std::fs::write(dir.path("f"), content()).unwrap();
    let f = find(&l, &cx, "f").await.unwrap().fh;
    read_all(&l, &cx, &f).await.unwrap();
    let file = File { fh: &f, open: None };
    let read = l.read_piped(&cx, file, 0, 1 << 20).unwrap();
    std::fs::File::options().write(true).open(dir.path("f")).unwrap().set_len(10).unwrap();
    assert_eq!(taken(&*read.data, LEN).len(), 1 << 20);
    assert_eq!(read_all(&l, &cx, &f).await.unwrap().len(), 10);
    // Bytes that are not cached need a read that may wait.
    std::fs::File::options().write(true).open(dir.path("f")).unwrap().set_len(1 << 30).unwrap();
    assert!(l.read_piped(&cx, file, 512 << 20, 65536).is_none());
}
