//! Recovery with a limited rate of calls: delayed writes come before any read, however long they
//! wait for their turn.

use super::*;

/// The pause of a client after "try later".
async fn pause() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

/// One call a second. Sixteen connections send delayed writes and other connections flood the
/// server. The time between two delayed writes is longer than the write slack. The last write comes
/// long after the leases have ended, and a read waits for it.
/// Promise: S12
#[tokio::test(start_paused = true)]
async fn paced_delayed_writes_precede_reads() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = Lab::new(&model, 1, Some(dir.path().into()));
    let mut w = lab.client(1).await;
    let f = w.create("f").await;
    assert!(w.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    lab.acceptor.shutdown();
    drop(lab);

    let lab = Lab::at_pace(&model, 2, Some(dir.path().into()), 1);
    let began = tokio::time::Instant::now();
    let (mut w, mut r) = (lab.client(1).await, lab.client(2).await);
    let mut floods = Vec::new();
    for _ in 0..8 {
        let mut flood = lab.client(0).await;
        floods.push(tokio::spawn(async move {
            while flood.read(f).await.is_err() {
                pause().await
            }
        }));
    }
    let reader = tokio::spawn(async move {
        while r.read(f).await == Err(Stat::TRYLATER) {
            pause().await;
        }
        let read = r.read(f).await;
        (read.unwrap().0, tokio::time::Instant::now())
    });
    for n in 0..8 {
        w.write(f, LeaseRequest::None, &format!("{n}")).await.unwrap();
    }
    let written = tokio::time::Instant::now();
    assert!(
        written - began > Duration::from_secs(2 * u64::from(TERM) + SKEW + 2 * SLACK),
        "{:?}",
        written - began
    );
    let (read, at) = reader.await.unwrap();
    assert_eq!(read, b"7");
    assert!(at > written);
    floods.iter().for_each(tokio::task::JoinHandle::abort);
}
