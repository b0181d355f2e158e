//! Tests of gaps between written bytes, where no other client can write.

use super::*;
use gate::Verdict;
use hither_vfs::Validity;
use tokio::time::Instant;

/// A file that is empty at the server, as known under a lease, with two local pieces and a gap
/// between them.
async fn gappy(leased: bool, delegated: bool, fills_gaps: bool) -> (Stack, (Fh, OpenId)) {
    let s = Stack::new(WriteBackOptions { fills_gaps, stat_flush_bytes: 0, ..Default::default() }).await;
    let f = s.open("f").await;
    let file = At { fh: &f.0, open: Some(f.1) };
    let attrs = s.dirty.getattr(&cx(), file).await.unwrap();
    let valid = if leased { Validity::Lease } else { attrs.valid };
    tokio::time::sleep(Duration::from_millis(1)).await;
    s.gate.answer_with(Some(Attrs { valid, asked: Instant::now(), ..attrs }));
    s.dirty.getattr(&cx(), file).await.unwrap();
    s.gate.answer_with(None);
    s.gate.delegate(delegated);
    s.write(&f, 0, "ab").await.unwrap();
    s.write(&f, 5, "cd").await.unwrap();
    (s, f)
}

/// Where no other client can write, a small gap is sent as zeros, so that all bytes are one WRITE.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn exclusive_gap_is_zero_filled() {
    for (leased, delegated, fills, writes) in
        [(true, true, true, 1), (false, true, true, 2), (true, false, true, 2), (true, true, false, 2)]
    {
        let (s, f) = gappy(leased, delegated, fills).await;
        let before = s.gate.calls("write");
        s.commit(&f).await.unwrap();
        assert_eq!(s.gate.calls("write") - before, writes, "{leased} {delegated} {fills}");
        assert_eq!(s.below(&f.0).await, b"ab\0\0\0cd");
    }
}

/// When the delegation ended before the WRITE arrived, the gap is not written, because other
/// clients may have used it.
/// Promise: 5
#[tokio::test(start_paused = true)]
async fn ended_delegation_leaves_gap_unwritten() {
    let (s, f) = gappy(true, true, true).await;
    let (file, zeros) = (At { fh: &f.0, open: Some(f.1) }, Bytes::from_static(b"......."));
    s.gate.below().write(&cx(), file, 0, zeros.into(), Stability::Stable).await.unwrap();
    let mut refused = false;
    s.gate.decide(Box::new(move |_, len| {
        if std::mem::replace(&mut refused, true) {
            Verdict::Pass(Duration::ZERO)
        } else {
            assert_eq!(len, 7, "all in one");
            Verdict::Fail(Duration::ZERO, libc::EAGAIN)
        }
    }));
    s.commit(&f).await.unwrap();
    assert_eq!(s.below(&f.0).await, b"ab...cd");
    assert_eq!(s.close(&f).await.ok(), Some(()), "the refusal is not reported");
}

/// Where no other client can write, bytes and gaps are read without a call. A request for the
/// length alone does not send the file.
#[tokio::test(start_paused = true)]
async fn exclusive_dirty_bytes_need_no_request() {
    let s = Stack::new(WriteBackOptions::default()).await;
    let f = s.open("f").await;
    s.gate.delegate(true);
    s.write(&f, 5, "cd").await.unwrap();
    let asked = s.gate.calls("read") + s.gate.calls("write");
    let unseen = RequestContext { times_unseen: true, ..cx() };
    let length = s.dirty.getattr(&unseen, At { fh: &f.0, open: Some(f.1) }).await.unwrap().attr.size_bytes;
    assert_eq!(length, 7);
    assert_eq!(s.read(&f, 0, 100).await, b"\0\0\0\0\0cd");
    assert_eq!(s.gate.calls("read") + s.gate.calls("write"), asked);
}
