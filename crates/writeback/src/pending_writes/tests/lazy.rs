//! Tests of closes that do not wait (`close=lazy`), and of the wait for all files.

use super::*;
use hither_vfs::Unsent;

async fn stack() -> Stack {
    Stack::new(WriteBackOptions { lazy_close: true, ..WriteBackOptions::default() }).await
}

async fn long() {
    tokio::time::sleep(3 * WriteBackOptions::default().dirty_age).await;
}

/// A close does not wait, and its bytes stay readable. They are sent by age, and the open below is
/// closed after them.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn a_lazy_close_waits_for_nothing() {
    let s = stack().await;
    let f = s.open("f").await;
    s.write(&f, 0, "later").await.unwrap();
    s.close(&f).await.unwrap();
    settle().await;
    assert_eq!((s.gate.calls("write"), s.gate.calls("close")), (0, 0));
    let again = s.open("f").await;
    assert_eq!(s.read(&again, 0, 10).await, b"later");
    s.close(&again).await.unwrap();
    long().await;
    assert_eq!(s.below(&f.0).await, b"later");
    let log = s.gate.log();
    let at = |op: &str| log.iter().position(|o| o == op);
    assert!(at("write").unwrap() < at("close").unwrap());
    assert_eq!(s.gate.calls("close"), 2);
    assert!(s.dirty.holds_no_file());
    assert_eq!(s.dirty.stats().lazy_closes, 2);
}

/// `sync` waits until the server has all bytes of open and closed files.
/// Promise: 6b
#[tokio::test(start_paused = true)]
async fn sync_waits_for_everything() {
    let s = stack().await;
    let (a, b) = (s.open("a").await, s.open("b").await);
    s.write(&a, 0, "aaa").await.unwrap();
    s.write(&b, 0, "bbb").await.unwrap();
    s.close(&a).await.unwrap();
    s.dirty.sync().await.unwrap();
    assert_eq!((s.below(&a.0).await, s.below(&b.0).await), (b"aaa".to_vec(), b"bbb".to_vec()));
    s.close(&b).await.unwrap();
}

/// Bytes are sent to a full server until it has room, without a waiting caller. `sync` returns the
/// error meanwhile.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn full_server_receives_bytes_later() {
    let s = stack().await;
    let f = s.open("f").await;
    s.write(&f, 0, "kept").await.unwrap();
    s.gate.fail("write", libc::ENOSPC);
    s.close(&f).await.unwrap();
    assert_eq!(s.dirty.sync().await.unwrap_err().errno, libc::ENOSPC);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    s.gate.fail("write", 0);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(s.below(&f.0).await, b"kept");
    assert_eq!(s.dirty.stats().bytes_dropped, 0);
    s.dirty.sync().await.unwrap();
    // Programs get an error once, as always.
    let next = s.open("f").await;
    assert_eq!(s.commit(&next).await.unwrap_err().errno, libc::ENOSPC);
    s.close(&next).await.unwrap();
}

/// The next open reports a permanent refusal after the close, once.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn next_open_reports_refusal() {
    let s = stack().await;
    let f = s.open("f").await;
    s.write(&f, 0, "refused").await.unwrap();
    s.gate.fail("write", libc::EACCES);
    s.close(&f).await.unwrap();
    long().await;
    s.gate.fail("write", 0);
    let next = s.open("f").await;
    assert_eq!(s.commit(&next).await.unwrap_err().errno, libc::EACCES);
    s.commit(&next).await.unwrap();
    s.close(&next).await.unwrap();
}

/// A close that does not wait does not report an earlier refusal, because no program sees its
/// result. The next open reports it.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn next_open_reports_earlier_failure() {
    let s = stack().await;
    let f = s.open("f").await;
    s.write(&f, 0, "refused").await.unwrap();
    s.gate.fail("write", libc::EACCES);
    long().await;
    s.gate.fail("write", 0);
    s.close(&f).await.unwrap();
    let next = s.open("f").await;
    assert_eq!(s.commit(&next).await.unwrap_err().errno, libc::EACCES);
    s.close(&next).await.unwrap();
}

/// A file that is removed before it is sent is never sent, and its open below is closed.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn removed_lazy_file_is_not_sent() {
    let s = stack().await;
    let f = s.open("f").await;
    s.write(&f, 0, "never").await.unwrap();
    s.close(&f).await.unwrap();
    s.dirty.unlink(&cx(), &s.root, &name("f"), Some(&f.0)).await.unwrap();
    long().await;
    assert_eq!((s.gate.calls("write"), s.gate.calls("close")), (0, 1));
    assert_eq!(s.dirty.stats().bytes_unsent, 5);
    assert!(s.dirty.holds_no_file());
}

/// The removal of a directory waits for removed files that the server still has, and for nothing
/// else.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn rmdir_waits_for_leaving_files() {
    let s = stack().await;
    let (dir, set) = (name("d"), SetAttr::default());
    s.dirty.mkdir(&cx(), &s.root, &dir, &set).await.unwrap();
    let (f, kept) = (s.open("f").await, s.open("kept").await);
    s.dirty.link(&cx(), &kept.0, &s.root, &name("other")).await.unwrap();
    for (file, called) in [(&f, "f"), (&kept, "kept")] {
        s.write(file, 0, "never").await.unwrap();
        s.close(file).await.unwrap();
        s.gate.shut("close");
        s.dirty.unlink(&cx(), &s.root, &name(called), Some(&file.0)).await.unwrap();
    }
    settle().await;
    // The answer of a server that keeps a hidden name of the file in the directory until the close.
    s.gate.fail("rmdir", libc::ENOTEMPTY);
    let (dirty, root, name) = (s.dirty.clone(), s.root.clone(), dir.clone());
    let removal = tokio::spawn(async move { dirty.rmdir(&cx(), &root, &name).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((s.gate.calls("rmdir"), s.gate.calls("write"), removal.is_finished()), (1, 0, false));
    s.gate.fail("rmdir", 0);
    s.gate.open_all();
    removal.await.unwrap().unwrap();
    assert_eq!(
        (s.gate.calls("rmdir"), s.gate.calls("write")),
        (2, 0),
        "the file with another name is not sent"
    );
    // Other reasons for a directory that is not empty are reported at once.
    s.dirty.mkdir(&cx(), &s.root, &dir, &set).await.unwrap();
    s.gate.fail("rmdir", libc::ENOTEMPTY);
    assert_eq!(s.dirty.rmdir(&cx(), &s.root, &dir).await.unwrap_err().errno, libc::ENOTEMPTY);
    assert_eq!((s.gate.calls("rmdir"), s.gate.calls("write")), (3, 0));
}

/// A file with another name that lost a name while it was open may have a hidden name. The removal
/// of the directory sends and closes the file, and waits for that.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn rmdir_waits_for_hidden_names() {
    let s = stack().await;
    let (dir, set) = (name("d"), SetAttr::default());
    s.dirty.mkdir(&cx(), &s.root, &dir, &set).await.unwrap();
    let file = s.open("f").await;
    s.dirty.link(&cx(), &file.0, &s.root, &name("other")).await.unwrap();
    s.write(&file, 0, "bytes").await.unwrap();
    s.dirty.unlink(&cx(), &s.root, &name("f"), Some(&file.0)).await.unwrap();
    s.close(&file).await.unwrap();
    settle().await;
    assert_eq!((s.gate.calls("write"), s.gate.calls("close")), (0, 0));
    s.gate.shut("close");
    s.gate.fail("rmdir", libc::ENOTEMPTY);
    let (dirty, root, name) = (s.dirty.clone(), s.root.clone(), dir.clone());
    let removal = tokio::spawn(async move { dirty.rmdir(&cx(), &root, &name).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((s.gate.calls("rmdir"), s.gate.calls("write"), s.gate.calls("close")), (1, 1, 1));
    assert!(!removal.is_finished(), "the file is not closed yet");
    s.gate.fail("rmdir", 0);
    s.gate.open_all();
    removal.await.unwrap().unwrap();
    assert_eq!(s.gate.calls("rmdir"), 2);
}

/// The end of the mount sends lazily closed files.
#[tokio::test(start_paused = true)]
async fn unmount_sends_lazily_closed_files() {
    let s = stack().await;
    let f = s.open("f").await;
    s.write(&f, 0, "at last").await.unwrap();
    s.close(&f).await.unwrap();
    s.dirty.shutdown(&cx()).await.unwrap();
    assert_eq!(s.below(&f.0).await, b"at last");
}

/// A server without answers does not collect an unlimited number of opens: a close beyond the limit
/// waits.
/// Promise: 6a
#[tokio::test(start_paused = true)]
async fn lazy_opens_are_bounded() {
    let s = Arc::new(stack().await);
    s.gate.shut("write");
    for i in 0..super::super::lazy::LAZY_MAX {
        let f = s.open(&format!("f{i}")).await;
        s.write(&f, 0, "x").await.unwrap();
        s.close(&f).await.unwrap();
    }
    let f = s.open("one more").await;
    s.write(&f, 0, "x").await.unwrap();
    let (this, file) = (s.clone(), f.clone());
    let waits = tokio::spawn(async move { this.close(&file).await });
    settle().await;
    assert!(!waits.is_finished());
    s.gate.open_all();
    waits.await.unwrap().unwrap();
    assert_eq!(s.below(&f.0).await, b"x");
    s.dirty.sync().await.unwrap();
    settle().await;
    assert!(s.dirty.holds_no_file());
    let f = s.open("after").await;
    s.write(&f, 0, "x").await.unwrap();
    let before = s.gate.calls("write");
    s.close(&f).await.unwrap();
    assert_eq!(s.gate.calls("write"), before, "a later close does not wait");
}

fn delegated() -> WriteBackOptions {
    WriteBackOptions {
        delegated_close: true,
        dirty_age: Duration::from_secs(3600),
        ..WriteBackOptions::default()
    }
}

/// The close of a delegated file does not wait. The recall waits until all bytes are stable at the
/// server.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn recall_sends_delegated_bytes() {
    let s = Stack::new(delegated()).await;
    s.dirty.subscribe(Arc::new(histories::Nobody));
    s.gate.delegate(true);
    let f = s.open("f").await;
    let before = s.gate.total_calls();
    s.write(&f, 0, "later").await.unwrap();
    s.close(&f).await.unwrap();
    settle().await;
    assert_eq!(s.gate.total_calls() - before, 0, "{:?}", s.gate.log());
    assert_eq!((s.dirty.stats().lazy_closes, s.below(&f.0).await), (1, vec![]));
    s.gate.shut("write");
    s.gate.delegate(false);
    let recall = s.gate.upcalls().revoke(&f.0);
    let mut recall = std::pin::pin!(recall);
    assert!(tokio::time::timeout(Duration::from_secs(60), &mut recall).await.is_err(), "no bytes were sent");
    s.gate.open_all();
    recall.await;
    assert_eq!(s.below(&f.0).await, b"later");
    settle().await;
    assert_eq!(s.gate.calls("close"), 1);
}

/// The answer about a delegated file's length includes all acknowledged bytes, in flight or not.
/// Other delayed changes are not reported in detail.
/// Promise: S10c
#[tokio::test(start_paused = true)]
async fn length_reply_includes_delayed_bytes() {
    let s = Stack::new(delegated()).await;
    s.dirty.subscribe(Arc::new(histories::Nobody));
    s.gate.delegate(true);
    let f = s.create("f", 0o600).await;
    let unsent = || s.gate.upcalls().unsent(&f.0);
    assert_eq!(unsent(), Unsent::Nothing);
    s.write(&f, 90, pattern(1, 10)).await.unwrap();
    assert_eq!(unsent(), Unsent::Bytes { size_bytes: 100, mtime: None });
    s.gate.shut("write");
    let (dirty, at) = (s.dirty.clone(), f.clone());
    let flush = tokio::spawn(async move { dirty.commit(&cx(), At { fh: &at.0, open: Some(at.1) }).await });
    settle().await;
    assert_eq!(unsent(), Unsent::Bytes { size_bytes: 100, mtime: None }, "the bytes are in flight");
    s.gate.open_all();
    flush.await.unwrap().unwrap();
    assert_eq!(unsent(), Unsent::Nothing);
    // The length includes the server's bytes.
    s.write(&f, 0, "x").await.unwrap();
    assert_eq!(unsent(), Unsent::Bytes { size_bytes: 100, mtime: None });
    // The length of this file is no longer known.
    drop(s.gate.upcalls().expire(std::slice::from_ref(&f.0)));
    assert_eq!(unsent(), Unsent::More);
    let g = s.create("g", 0o600).await;
    s.write(&g, 0, "x").await.unwrap();
    s.set(&g, &SetAttr { mode: Some(0o644), ..SetAttr::default() }).await;
    assert_eq!(s.gate.upcalls().unsent(&g.0), Unsent::More, "permissions wait");
}

/// A write that may not be delayed is at the server when it returns, even if the right to delay
/// ends during the write. A request to settle sends delayed bytes.
/// Promise: 8a''
#[tokio::test(start_paused = true)]
async fn undelayable_write_reaches_server() {
    let s =
        Stack::new(WriteBackOptions { dirty_age: Duration::from_secs(3600), ..WriteBackOptions::default() })
            .await;
    s.dirty.subscribe(Arc::new(histories::Nobody));
    let f = s.open("f").await;
    s.gate.can_cache_writes(&[false, true], true);
    s.write(&f, 0, "waits").await.unwrap();
    settle().await;
    assert_eq!(s.below(&f.0).await, b"");
    s.gate.upcalls().flush(&f.0).await;
    assert_eq!(s.below(&f.0).await, b"waits");
    s.gate.can_cache_writes(&[false], false);
    s.write(&f, 0, "goes ").await.unwrap();
    assert_eq!(s.below(&f.0).await, b"goes ");
    // The earlier bytes are sent first.
    s.write(&f, 5, "waits").await.unwrap();
    s.gate.can_cache_writes(&[false], false);
    s.write(&f, 8, "on").await.unwrap();
    assert_eq!(s.below(&f.0).await, b"goes waion");
    s.gate.can_cache_writes(&[true, false], false);
    s.write(&f, 0, "taken").await.unwrap();
    assert_eq!(s.below(&f.0).await, b"takenwaion");
    // When the user promises that no other client writes, the layer below is not asked.
    let s = Stack::new(WriteBackOptions { exclusive: true, ..delegated() }).await;
    let f = s.open("f").await;
    s.gate.can_cache_writes(&[false, false], false);
    s.write(&f, 0, "waits").await.unwrap();
    settle().await;
    assert_eq!(s.below(&f.0).await, b"");
    s.gate.can_cache_writes(&[], true);
    s.close(&f).await.unwrap();
}

/// fsync still waits for the server, and so does the close of a file that is not delegated.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn undelegated_close_waits_for_server() {
    let s = Stack::new(delegated()).await;
    let f = s.open("f").await;
    s.write(&f, 0, "closed").await.unwrap();
    s.close(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, b"closed");
    s.gate.delegate(true);
    let g = s.open("g").await;
    s.write(&g, 0, "synced").await.unwrap();
    s.commit(&g).await.unwrap();
    assert_eq!(s.below(&g.0).await, b"synced");
    s.close(&g).await.unwrap();
    assert_eq!(s.dirty.stats().lazy_closes, 0);
    // A file above the promised room is sent.
    let h = s.open("h").await;
    s.write(&h, 0, pattern(1, 1001)).await.unwrap();
    s.close(&h).await.unwrap();
    assert_eq!(s.below(&h.0).await, pattern(1, 1001));
    // Without the option the delegation has no effect.
    let s = Stack::new(WriteBackOptions { delegated_close: false, ..delegated() }).await;
    s.gate.delegate(true);
    let f = s.open("f").await;
    s.write(&f, 0, "closed").await.unwrap();
    s.close(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, b"closed");
}

/// A call that removes a name returns the delegation. The bytes of a file with another name are
/// sent before, and no other bytes.
/// Promise: 6a'
#[tokio::test(start_paused = true)]
async fn unlink_sends_hard_linked_bytes() {
    let s = Stack::new(delegated()).await;
    s.gate.delegate(true);
    for replaced in [false, true] {
        let f = s.open("one").await;
        s.dirty.link(&cx(), &f.0, &s.root, &name("two")).await.unwrap();
        s.write(&f, 0, "delayed").await.unwrap();
        s.close(&f).await.unwrap();
        let over = s.open("other").await;
        let held = s.gate.calls("write");
        s.gate.shut("unlink");
        s.gate.shut("rename");
        let (dirty, root, fh) = (s.dirty.clone(), s.root.clone(), f.0.clone());
        let call = tokio::spawn(async move {
            let (one, other) = (name("one"), name("other"));
            let none = hither_vfs::RenameFlags::empty();
            if replaced {
                dirty.rename(&cx(), (&root, &other), (&root, &one), Some(&fh), none).await.map(drop)
            } else {
                dirty.unlink(&cx(), &root, &one, Some(&fh)).await.map(drop)
            }
        });
        settle().await;
        assert_eq!((s.gate.calls("write") - held, s.below(&f.0).await), (1, b"delayed".to_vec()));
        s.gate.open_all();
        call.await.unwrap().unwrap();
        s.close(&over).await.unwrap();
        s.dirty.unlink(&cx(), &s.root, &name("two"), Some(&f.0)).await.unwrap();
    }
    let f = s.open("only").await;
    s.write(&f, 0, "delayed").await.unwrap();
    s.close(&f).await.unwrap();
    let held = s.gate.calls("write");
    s.dirty.unlink(&cx(), &s.root, &name("only"), Some(&f.0)).await.unwrap();
    long().await;
    assert_eq!(s.gate.calls("write"), held);
}
