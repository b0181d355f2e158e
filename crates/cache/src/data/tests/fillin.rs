//! Partly read files are completed while the link is idle, and only then.

use super::*;
use crate::data::Fill;

fn filling(fill: Fill) -> DataCacheOptions {
    DataCacheOptions { fill, ahead_max_bytes: 0, ..options() }
}

/// Lets `s` seconds pass in small steps.
async fn pass(s: f64) {
    for _ in 0..(s * 50.0) as u32 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Lab {
    async fn read_some(&self, fh: &Fh, bytes: u64) {
        let o = self.open(fh).await;
        for at in (0..bytes).step_by(128 << 10) {
            self.read(&o, at, (bytes - at).min(128 << 10) as u32).await;
        }
        self.settle().await;
        self.close(o).await;
    }

    async fn is_whole(&self, fh: &Fh) -> bool {
        let shown: String = fh.0.iter().map(|b| format!("{b:02x}")).collect();
        let all = self.disk.list().await;
        all.iter().any(|e| e.filehandle == shown && e.cached_bytes == e.size_bytes)
    }
}

/// Fill-in soon completes a file that was read faster than the disk could store. The next read
/// sends no READ.
#[tokio::test(start_paused = true)]
async fn fill_in_completes_fast_reads() {
    let o = DataCacheOptions { queue_bytes: 256 << 10, fetch_bytes: 128 << 10, ..filling(Fill::Idle) };
    let l = Lab::new(o).await;
    let data = pattern(3, 8 * MIB + 77);
    let fh = l.file("f", &data).await;
    tokio::time::advance(Duration::from_secs(100)).await;
    let open = l.open(&fh).await;
    let all: Vec<_> = (0..65).map(|i| l.read(&open, i * (128 << 10), 128 << 10)).collect();
    let mut got = Vec::new();
    for part in futures_in_order(all).await {
        got.extend_from_slice(&part);
    }
    assert_eq!(got, data);
    l.close(open).await;
    assert!(l.disk.stats().queue_full > 0, "{:?}", l.disk.stats());
    pass(10.0).await;
    assert!(l.is_whole(&fh).await, "{:?}", l.disk.stats());
    assert_eq!(l.disk.stats().filled_files, 1);
    l.wire.take();
    assert_eq!(l.cat(&fh, 1 << 20).await, data);
    assert!(!l.wire.take().contains("read"));
}

/// A file is completed even if the disk takes the bytes of the reader after fill-in has looked for
/// them. The reader has closed the file, so the bytes belong to a version that only they hold.
#[tokio::test(start_paused = true)]
async fn fill_in_waits_for_a_slow_disk() {
    let l = Lab::new(filling(Fill::Rate(100 * MIB))).await;
    let fh = l.file("f", &pattern(3, 4 * MIB)).await;
    tokio::time::advance(Duration::from_secs(100)).await;
    let open = l.open(&fh).await;
    let slow = l.disk.pool.acquire_many(DISK_CALLS_MAX as u32).await.unwrap();
    for at in (0..MIB).step_by(128 << 10) {
        l.read(&open, at, 128 << 10).await;
    }
    l.close(open).await;
    assert_eq!(l.disk.stats().fill_waiting, 1);
    pass(2.0).await;
    drop(slow);
    pass(5.0).await;
    assert!(l.is_whole(&fh).await, "{:?}", l.disk.stats());
}

/// Runs all futures concurrently; returns their results in order.
async fn futures_in_order<F: Future<Output = Bytes>>(all: Vec<F>) -> Vec<Bytes> {
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    let mut out: Vec<Option<Bytes>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (one, out) in all.iter_mut().zip(&mut out).filter(|(_, out)| out.is_none()) {
            if let std::task::Poll::Ready(bytes) = one.as_mut().poll(cx) {
                *out = Some(bytes);
            }
        }
        if out.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    out.into_iter().flatten().collect()
}

/// Fill-in completes the file with the fewest missing bytes first. It does not complete a file of
/// which little was read.
#[tokio::test(start_paused = true)]
async fn fill_in_prefers_nearly_complete_files() {
    let l = Lab::new(filling(Fill::Rate(MIB))).await;
    let data = pattern(5, 4 * MIB);
    let (half, most, little) = (l.file("a", &data).await, l.file("b", &data).await, l.file("c", &data).await);
    tokio::time::advance(Duration::from_secs(100)).await;
    for (fh, bytes) in [(&half, 2 * MIB), (&most, 3 * MIB), (&little, MIB / 4)] {
        let o = l.open(fh).await;
        for at in (0..bytes).step_by(128 << 10) {
            l.read(&o, at, 128 << 10).await;
        }
        l.close(o).await;
    }
    pass(1.6).await;
    assert!(l.is_whole(&most).await && !l.is_whole(&half).await, "{:?}", l.disk.stats());
    pass(4.0).await;
    assert!(l.is_whole(&half).await && !l.is_whole(&little).await);
    assert_eq!(l.disk.stats().filled_files, 2);
    assert_eq!(l.cat(&half, 1 << 20).await, data);
}

/// Fill-in runs only while the link is quiet. Any other request stops it.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn other_requests_pause_fill_in() {
    let l = Lab::slow(filling(Fill::Idle), Duration::from_millis(40)).await;
    let data = pattern(6, 40 * MIB);
    let fh = l.file("f", &data).await;
    tokio::time::advance(Duration::from_secs(100)).await;
    l.read_some(&fh, 5 * MIB).await;
    for _ in 0..100 {
        l.disk.getattr(&l.cx, File { fh: &l.top, open: None }).await.unwrap();
        pass(0.1).await;
    }
    assert_eq!(l.disk.stats().filled_bytes, 0, "nobody was quiet");
    // Fill-in begins while the link is quiet. Another call stops it after the running reads.
    while l.disk.stats().filled_bytes == 0 {
        pass(0.02).await;
    }
    l.disk.getattr(&l.cx, File { fh: &l.top, open: None }).await.unwrap();
    let begun = l.disk.stats().filled_bytes;
    for _ in 0..20 {
        l.disk.getattr(&l.cx, File { fh: &l.top, open: None }).await.unwrap();
        pass(0.1).await;
    }
    assert!(l.disk.stats().filled_bytes <= begun + MIB, "{begun} {:?}", l.disk.stats());
    pass(60.0).await;
    assert!(l.is_whole(&fh).await);
    assert_eq!(l.cat(&fh, 1 << 20).await, data);
}

/// Fill-in does not complete a changed file. With the option off it completes no file.
/// Promise: 11a
#[tokio::test(start_paused = true)]
async fn fill_in_skips_changed_files() {
    for (fill, changed) in [(Fill::Off, false), (Fill::Idle, true)] {
        let l = Lab::new(filling(fill)).await;
        let data = pattern(7, 4 * MIB);
        let fh = l.file("f", &data).await;
        tokio::time::advance(Duration::from_secs(100)).await;
        l.read_some(&fh, 2 * MIB).await;
        let new = pattern(8, 4 * MIB);
        if changed {
            l.file("f", &new).await;
        }
        pass(10.0).await;
        assert!(!l.is_whole(&fh).await);
        assert_eq!(l.disk.stats().filled_files, 0);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(l.cat(&fh, 1 << 20).await, if changed { new } else { data });
    }
}
