//! WRITEs that the server refuses before a crash.

use super::*;

/// A WRITE that a full server refuses changes times, and no bytes. The next mount sends the bytes.
/// Promise: 6c
#[tokio::test]
async fn refused_write_explains_times() {
    for (errno, exclusive) in
        [libc::ENOSPC, libc::EDQUOT].into_iter().flat_map(|errno| [(errno, false), (errno, true)])
    {
        let j = Journaled::new(WriteBackOptions { wsize_bytes: 1000, ..options(exclusive) }).await;
        let f = j.s.open("f").await;
        j.s.gate.shut("write");
        j.s.write(&f, 0, pattern(1, 2500)).await.unwrap();
        writes_under_way(&j, 2).await;
        let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
        j.s.gate.below().setattr(&cx(), At { fh: &f.0, open: None }, &set).await.unwrap();
        let looks = j.s.gate.calls("getattr");
        j.s.gate.fail("write", errno);
        j.s.gate.open_all();
        until("the state is read", async || j.s.gate.calls("getattr") >= looks + 2).await;
        until("the last attempt has ended", async || j.s.dirty.stats().writes_failed >= 2).await;
        settle().await;
        j.noted().await;
        let (outcome, kept) = j.crash(exclusive, async |_| {}).await;
        assert_eq!((outcome.files, kept.len()), (1, 0), "{errno} {exclusive}: {outcome:?}");
        assert_eq!(j.s.below(&f.0).await, pattern(1, 2500));
    }
}
