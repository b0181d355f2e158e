//! Tests of errors of delayed writes.

use super::gate::Verdict;
use super::*;
use hither_vfs::{FileRange, LockKind, LockOwner, LockWait};

const OWNER: LockOwner = LockOwner { id: 1, flock: false };

fn errno<T: std::fmt::Debug>(outcome: Result<T>) -> i32 {
    outcome.unwrap_err().errno
}

async fn second_open(s: &Stack, f: &(Fh, OpenId)) -> (Fh, OpenId) {
    let how = OpenHow { create: Create::No, ..how(false) };
    let opened = s.dirty.open(&cx(), PathRef::fh(&f.0), &how).await.unwrap();
    (f.0.clone(), opened.open)
}

async fn pass_time(secs: u64) {
    tokio::time::sleep(Duration::from_secs(secs)).await;
}

/// Bytes that the server refuses for good are dropped. Each open gets the error once.
/// Promise: 3
#[tokio::test(start_paused = true)]
async fn refusal_is_reported_once_per_open() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 10)).await.unwrap();
    s.commit(&f).await.unwrap();
    let g = second_open(&s, &f).await;
    s.gate.fail("write", libc::EACCES);
    s.write(&f, 0, pattern(2, 100)).await.unwrap();
    pass_time(6).await;
    let seen = s.dirty.getattr(&cx(), At { fh: &f.0, open: None }).await.unwrap();
    assert_eq!((s.read(&f, 0, 200).await, seen.attr.size_bytes), (pattern(1, 10).to_vec(), 10));
    s.gate.fail("write", 0);
    assert_eq!(errno(s.write(&f, 0, pattern(3, 10)).await), libc::EACCES);
    s.write(&f, 0, pattern(3, 10)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!(errno(s.commit(&g).await), libc::EACCES);
    s.commit(&g).await.unwrap();
    let h = second_open(&s, &f).await;
    for open in [&f, &g, &h] {
        s.close(open).await.unwrap();
    }
    assert_eq!(s.below(&f.0).await, pattern(3, 10));
    assert_eq!(s.dirty.stats().bytes_dropped, 100);
}

/// A close returns an error that was not reported.
#[tokio::test(start_paused = true)]
async fn close_reports_pending_error() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.fail("write", libc::EROFS);
    s.write(&f, 0, pattern(2, 100)).await.unwrap();
    assert_eq!(errno(s.close(&f).await), libc::EROFS);
    assert_eq!((s.gate.calls("close"), s.dirty.stats().dirty_bytes), (1, 0));
    settle().await;
    assert!(s.dirty.holds_no_file());
}

/// A full server looks full. When it has room again, no bytes are missing.
/// Promise: 3
#[tokio::test(start_paused = true)]
async fn full_server_keeps_open_file_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    let g = second_open(&s, &f).await;
    s.write(&f, 0, pattern(1, 5 * MIB)).await.unwrap();
    s.gate.fail("write", libc::ENOSPC);
    s.write(&f, 5 * MIB, pattern(2, 100)).await.unwrap();
    pass_time(6).await;
    // The first error is the reported one. Then the write's own bytes are refused.
    for _ in 0..5 {
        assert_eq!(errno(s.write(&f, 9 * MIB, pattern(3, 100)).await), libc::ENOSPC);
    }
    assert_eq!(errno(s.commit(&f).await), libc::ENOSPC);
    assert_eq!(errno(s.commit(&g).await), libc::ENOSPC);
    assert_eq!(s.read(&f, 5 * MIB, 1000).await, pattern(2, 100));
    let tries = s.gate.calls("write");
    pass_time(3600).await;
    let tries = s.gate.calls("write") - tries;
    assert!((100..2000).contains(&tries), "{tries} tries in an hour, at most 8 at a time");
    s.gate.fail("write", 0);
    pass_time(31).await;
    assert_eq!(s.dirty.stats().dirty_bytes, 0, "the bytes were sent again");
    s.commit(&f).await.unwrap();
    s.commit(&g).await.unwrap();
    let all = s.below(&f.0).await;
    assert_eq!(all[..5 * MIB as usize], pattern(1, 5 * MIB)[..]);
    assert_eq!(all[5 * MIB as usize..], pattern(2, 100)[..]);
    assert_eq!(s.dirty.stats().bytes_dropped, 0);
}

/// A write succeeds as soon as a ticket of its user works again, during any pause.
/// Promise: 21c
#[tokio::test(start_paused = true)]
async fn write_with_new_ticket_succeeds() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.fail("write", libc::EKEYEXPIRED);
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    for _ in 0..5 {
        assert_eq!(errno(s.commit(&f).await), libc::EACCES);
        assert_eq!(errno(s.write(&f, 100, pattern(2, 100)).await), libc::EACCES);
    }
    s.gate.fail("write", 0);
    // The open gets the error of the last attempt, and then no other.
    let _ = s.write(&f, 100, pattern(2, 100)).await;
    s.write(&f, 100, pattern(2, 100)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, [pattern(1, 100), pattern(2, 100)].concat());
    s.close(&f).await.unwrap();
}

/// An fsync sends kept bytes at once, during any pause.
#[tokio::test(start_paused = true)]
async fn fsync_tries_kept_bytes_again() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.fail("write", libc::EDQUOT);
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    for _ in 0..10 {
        assert_eq!(errno(s.commit(&f).await), libc::EDQUOT);
    }
    s.gate.fail("write", 0);
    s.commit(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, pattern(1, 100));
    s.close(&f).await.unwrap();
}

/// A close on a full server drops the unsent bytes of its open and reports ENOSPC. Another open
/// keeps its own bytes.
/// Promise: 3
#[tokio::test(start_paused = true)]
async fn close_on_full_server_drops_bytes() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    let g = second_open(&s, &f).await;
    s.gate.fail("write", libc::ENOSPC);
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    s.write(&g, 100, pattern(2, 100)).await.unwrap();
    assert_eq!(errno(s.close(&f).await), libc::ENOSPC);
    assert_eq!(s.dirty.stats().dirty_bytes, 100, "the other open keeps its own");
    s.gate.fail("write", 0);
    assert_eq!(errno(s.commit(&g).await), libc::ENOSPC, "this open gets the error, too");
    s.commit(&g).await.unwrap();
    s.close(&g).await.unwrap();
    let all = s.below(&f.0).await;
    assert_eq!((&all[..100], &all[100..]), (&[0; 100][..], &pattern(2, 100)[..]));
}

/// The server's disk fills up in the middle of a WRITE. Another WRITE sends the rest.
#[tokio::test(start_paused = true)]
async fn short_writes_continue() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.decide(Box::new(|_, len| Verdict::Short(Duration::ZERO, len.div_ceil(2))));
    s.write(&f, 0, pattern(1, 3000)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, pattern(1, 3000));
    let mut left = 2;
    s.gate.decide(Box::new(move |_, len| {
        left -= 1;
        if left > 0 {
            Verdict::Short(Duration::ZERO, len / 3)
        } else {
            Verdict::Fail(Duration::ZERO, libc::ENOSPC)
        }
    }));
    s.write(&f, 0, pattern(2, 3000)).await.unwrap();
    assert_eq!(errno(s.commit(&f).await), libc::ENOSPC);
    assert_eq!(s.read(&f, 0, 3000).await, pattern(2, 3000));
    s.gate.decide(Box::new(|_, _| Verdict::Pass(Duration::ZERO)));
    s.commit(&f).await.unwrap();
    assert_eq!(s.gate.writes().last(), Some(&(1000, 2000)));
    assert_eq!(s.below(&f.0).await, pattern(2, 3000));
    s.gate.decide(Box::new(|_, _| Verdict::Short(Duration::ZERO, 0)));
    s.write(&f, 0, pattern(3, 10)).await.unwrap();
    assert_eq!(errno(s.commit(&f).await), libc::EIO, "a WRITE of no bytes fails");
}

/// The caller gets the error of the COMMIT, and unstable bytes are not taken for stable.
#[tokio::test(start_paused = true)]
async fn failed_commit_is_reported() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.write(&f, 0, pattern(1, 2 * MIB)).await.unwrap();
    s.gate.fail("commit", libc::EIO);
    assert_eq!(errno(s.commit(&f).await), libc::EIO);
    s.gate.fail("commit", 0);
    // A small rest is not written stably while other bytes need a commit.
    s.write(&f, 0, pattern(1, 10)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!((s.gate.stable_writes(), s.gate.calls("commit")), (0, 2));
}

/// The model's disk fills up. When another file is removed, fsync succeeds and no bytes are
/// missing.
#[tokio::test(start_paused = true)]
async fn fsync_succeeds_after_space_returns() {
    let s = Stack::with_capacity(WriteBackOptions::default(), 2 * MIB).await;
    let (f, big) = (s.open("f").await, s.open("big").await);
    s.write(&big, 0, pattern(1, MIB)).await.unwrap();
    s.commit(&big).await.unwrap();
    s.write(&f, 0, pattern(2, 2 * MIB)).await.unwrap();
    assert_eq!(errno(s.commit(&f).await), libc::ENOSPC);
    s.close(&big).await.unwrap();
    s.dirty.unlink(&cx(), &s.root, &name("big"), Some(&big.0)).await.unwrap();
    s.commit(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, pattern(2, 2 * MIB));
}

/// Calls about bytes fail when the bytes cannot be sent, because a copy without them would be
/// wrong.
#[tokio::test(start_paused = true)]
async fn unsent_bytes_fail_dependent_calls() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let (f, g) = (s.open("f").await, s.open("g").await);
    s.write(&f, 0, pattern(1, 100)).await.unwrap();
    s.gate.fail("write", libc::ENOSPC);
    let (from, to) = (At { fh: &f.0, open: Some(f.1) }, At { fh: &g.0, open: Some(g.1) });
    assert_eq!(errno(s.dirty.copy(&cx(), from, 0, to, 0, 100).await), libc::ENOSPC);
    assert_eq!(errno(s.dirty.seek(&cx(), from, 0, hither_vfs::Seek::Hole).await), libc::ENOSPC);
    let hole = hither_vfs::FileRange { start_bytes: 0, end_bytes: 10 };
    assert_eq!(errno(s.dirty.deallocate(&cx(), from, hole).await), libc::ENOSPC);
    s.gate.fail("write", 0);
    assert_eq!(s.dirty.copy(&cx(), from, 0, to, 0, 100).await.unwrap(), 100);
    assert_eq!(s.below(&g.0).await, pattern(1, 100));
}

/// Bytes that a full server did not take before the release of a lock are not sent later: the next
/// holder may have changed them. The program gets the error.
/// Promise: 3, 17
#[tokio::test(start_paused = true)]
async fn released_lock_keeps_no_refused_bytes() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let s = Stack::new(WriteBackOptions::default()).await;
        let (f, other) = (s.open("f").await, s.open("other").await);
        let at = At { fh: &f.0, open: Some(f.1) };
        let all = FileRange { start_bytes: 0, end_bytes: u64::MAX };
        s.dirty.lock(&cx(), at, OWNER, LockKind::Write, all, LockWait::No).await.unwrap();
        s.write(&f, 0, pattern(2, 100)).await.unwrap();
        s.write(&other, 0, pattern(4, 100)).await.unwrap();
        s.gate.fail("write", errno);
        s.dirty.unlock(&cx(), at, OWNER, all).await.unwrap();
        s.gate.fail("write", 0);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(s.below(&f.0).await.len(), 0, "{errno}");
        assert_eq!(s.commit(&f).await.unwrap_err().errno, errno);
        assert_eq!(s.below(&other.0).await, pattern(4, 100), "other files are kept");
        s.write(&f, 0, pattern(3, 100)).await.unwrap();
        s.commit(&f).await.unwrap();
        assert_eq!(s.below(&f.0).await, pattern(3, 100));
        assert_eq!(s.dirty.stats().bytes_dropped, 100);
    }
}
