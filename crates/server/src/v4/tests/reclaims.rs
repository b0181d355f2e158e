//! A client that lost its state reclaims nothing after a kill of the server at any moment (RFC 8881
//! section 8.4.3).

use super::*;
use hither_proto::nfs4::Fh;
use std::path::Path;

/// Starts a server over the state of a killed one.
fn restarted(model: &Arc<hither_vfs::model::Model>, seed: u64, state: &Path) -> Lab {
    Lab::new(model, "/", seed, Some(state.to_path_buf()))
}

async fn reclaims(client: &mut Client, fh: &Fh, owner: &'static str) -> Option<Nfsstat4> {
    let reclaim = Op::Open(open_args(owner, RW, 0, OpenClaim::Previous(DelegationType::NONE), false));
    let mut r = client.run(vec![Op::putfh(fh), reclaim]).await;
    r.putfh().unwrap();
    r.open().err().and_then(|e| e.status())
}

/// A silent client loses its lock to another client, and the server is killed at once. The silent
/// client reclaims nothing.
/// Promise: S5
#[tokio::test(start_paused = true)]
async fn silent_client_reclaims_nothing() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = restarted(&model, 2, dir.path());
    let mut a = lab.client("a").await;
    let mut b = lab.client("b").await;
    a.reclaim_complete().await;
    b.reclaim_complete().await;
    let (open_a, fh) = a.open("f", "x", RW, 0).await.unwrap();
    let (open_b, _) = b.open("f", "x", RW, 0).await.unwrap();
    a.lock(&fh, open_a, "p", (0, 10)).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        b.run(vec![]).await;
    }
    b.lock(&fh, open_b, "q", (0, 10)).await.unwrap();
    let lab_after_kill = restarted(&model, 3, dir.path());
    let mut a = lab_after_kill.client("a").await;
    assert_eq!(reclaims(&mut a, &fh, "x").await, Some(Nfsstat4::NO_GRACE));
    let mut b = lab_after_kill.client("b").await;
    assert_eq!(reclaims(&mut b, &fh, "x").await, None);
}

/// A client reclaims nothing in the grace period. Another client opens its file as soon as that
/// period ends, and the server is killed at once. The first client reclaims nothing later.
/// Promise: S5
#[tokio::test(start_paused = true)]
async fn late_client_reclaims_nothing() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = restarted(&model, 2, dir.path());
    let mut a = lab.client("a").await;
    a.reclaim_complete().await;
    let (_, fh) = a.open("f", "x", RW, 0).await.unwrap();
    drop(lab);
    let lab = restarted(&model, 3, dir.path());
    tokio::spawn(lab.server.clone().tend());
    let mut b = lab.client("b").await;
    b.reclaim_complete().await;
    let began = tokio::time::Instant::now();
    while let Err(e) = b.open("f", "x", RW, 0).await {
        assert_eq!(e, Nfsstat4::GRACE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let grace = lab.server.options.grace;
    let took = began.elapsed();
    assert!(took >= grace && took < grace + Duration::from_secs(1), "{took:?}");
    let lab_after_kill = restarted(&model, 4, dir.path());
    let mut a = lab_after_kill.client("a").await;
    assert_eq!(reclaims(&mut a, &fh, "x").await, Some(Nfsstat4::NO_GRACE));
    let mut b = lab_after_kill.client("b").await;
    assert_eq!(reclaims(&mut b, &fh, "x").await, None);
}

/// A client that comes back while its former instance is ended keeps its record.
#[tokio::test(start_paused = true)]
async fn next_instance_keeps_its_record() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = restarted(&model, 2, dir.path());
    let mut a = lab.client("a").await;
    a.reclaim_complete().await;
    let former = lab.server.v4.clients.all().pop().unwrap();
    let mut again = Client::new(lab.connect(), "a", 2).await;
    let (_, ()) = tokio::join!(lab.server.v4.expire(&former), again.reclaim_complete());
    let (_, fh) = again.open("f", "x", RW, 0).await.unwrap();
    let lab_after_kill = restarted(&model, 3, dir.path());
    let mut a = lab_after_kill.client("a").await;
    assert_eq!(reclaims(&mut a, &fh, "x").await, None);
}
