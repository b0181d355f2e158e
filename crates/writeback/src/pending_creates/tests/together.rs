//! Objects of a directory that are created in one call. Each has its own result.

use super::super::send::{BATCH_BYTES, BATCH_OBJECTS};
use super::*;

async fn below(s: &Stack, path: &str) -> Option<Vec<u8>> {
    match find(s.gate.below(), &s.root, path).await {
        Some(node) => Some(read(s.gate.below(), &node.fh).await),
        None => None,
    }
}

/// The new objects of a directory are sent in one batch. An object that a caller waits for is sent
/// alone.
/// Promise: 6g
#[tokio::test]
async fn directory_objects_are_sent_together() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    for file in ["a", "b", "c"] {
        s.file(&s.root, file, b"bytes").await;
        s.file(&dir, file, b"bytes").await;
    }
    s.ahead.symlink(&cx(), &dir, &name("link"), &Bytes::from_static(b"a"), &mode(0o777)).await.unwrap();
    s.ahead.sync().await.unwrap();
    assert_eq!(s.gate.batches(), [4, 4], "three files and a directory, then three files and a link");
    assert!(find(s.gate.below(), &s.root, "dir/link").await.is_some());
    for file in ["a", "b", "c", "dir/a", "dir/b", "dir/c"] {
        assert_eq!(below(&s, file).await.as_deref(), Some(&b"bytes"[..]), "{file}");
    }
    // An object that a caller waits for is sent alone.
    let (one, _other) = (s.file(&dir, "one", b"one").await, s.file(&dir, "other", b"other").await);
    s.ahead.send(&one.fh).await.unwrap();
    assert_eq!((s.gate.batches().last(), below(&s, "dir/other").await), (Some(&1), None));
    // Large objects and many objects are split into several calls.
    let big = vec![7; BATCH_BYTES / 2 + 1];
    let before = s.gate.batches().len();
    for file in ["x", "y", "z"] {
        s.file(&dir, file, &big).await;
    }
    for n in 0..BATCH_OBJECTS {
        s.file(&s.root, &format!("many{n}"), b"x").await;
    }
    s.ahead.sync().await.unwrap();
    let mut now = s.gate.batches()[before..].to_vec();
    now.sort_unstable();
    assert_eq!(now, [1, 1, 2, BATCH_OBJECTS], "the first large one came with the one left over");
}

/// One object is refused, one must wait, and one was created without a received reply. The others
/// are created, and these three end as if each was sent alone.
/// Promise: 6g
#[tokio::test]
async fn batched_objects_fail_separately() {
    let s = Stack::new().await;
    for file in ["a", "full", "unheard", "z"] {
        s.file(&s.root, file, file.as_bytes()).await;
    }
    s.gate.fail_name(&name("full"), libc::ENOSPC, false);
    s.gate.fail_name(&name("unheard"), libc::EAGAIN, true);
    s.ahead.sync().await.unwrap_err();
    assert_eq!(s.gate.batches(), [4]);
    for file in ["a", "z", "unheard"] {
        assert_eq!(below(&s, file).await.as_deref(), Some(file.as_bytes()), "{file}");
    }
    assert_eq!((below(&s, "full").await, s.ahead.stats().ahead_objects), (None, 2));
    s.gate.fail_name(&name("full"), 0, false);
    s.gate.fail_name(&name("unheard"), 0, false);
    s.ahead.sync().await.unwrap();
    assert_eq!(below(&s, "full").await.as_deref(), Some(&b"full"[..]));
    assert_eq!(below(&s, "unheard").await.as_deref(), Some(&b"unheard"[..]));
    assert_eq!((s.ahead.stats().ahead_objects, s.ahead.stats().ahead_refused), (0, 0));
    // An object that is refused for good is kept, and only its own name is reported.
    for file in ["m", "never", "n"] {
        s.file(&s.root, file, file.as_bytes()).await;
    }
    s.gate.fail_name(&name("never"), libc::EACCES, false);
    assert_eq!(s.ahead.sync().await.map_err(|e| e.errno), Err(libc::EACCES));
    assert!(s.find("never").await.is_none() && s.find("m").await.is_some() && s.find("n").await.is_some());
    let kept = s.ahead.wal.conflicts().list().unwrap();
    let about = kept[0].1.as_ref().unwrap();
    assert_eq!((kept.len(), about.path.as_str(), s.ahead.stats().ahead_refused), (1, "never", 1));
    assert_eq!(s.ahead.wal.log().stats().live_records, 0);
}

/// The daemon is killed when the server has created some of the objects and no reply was received.
/// Promise: 6g
#[tokio::test]
async fn kill_during_batch_duplicates_nothing() {
    let s = Stack::new().await;
    let dir = s.mkdir(&s.root, "dir").await;
    for file in ["a", "b", "c"] {
        s.file(&dir, file, file.as_bytes()).await;
    }
    s.gate.fail_name(&name("b"), libc::EAGAIN, false);
    s.gate.shut("create_whole answer");
    let ahead = s.ahead.clone();
    let sync = tokio::spawn(async move { ahead.sync().await });
    while below(&s, "dir/a").await.is_none() || below(&s, "dir/c").await.is_none() {
        tokio::task::yield_now().await;
    }
    let (outcome, kept) = s.crash().await;
    assert!(outcome.kept.is_empty() && kept.is_empty(), "{outcome:?}");
    for file in ["a", "b", "c"] {
        assert_eq!(below(&s, &format!("dir/{file}")).await.as_deref(), Some(file.as_bytes()), "{file}");
    }
    sync.abort();
}
