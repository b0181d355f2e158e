//! Recovery with a limited rate of calls: a client that waits for its turn beyond its lease and the
//! grace period loses no state.

use super::*;

const LEASE: Duration = Duration::from_secs(20);
const CLIENTS: usize = 12;
const FILES: usize = 12;

fn lab(model: &Arc<hither_vfs::model::Model>, dir: &std::path::Path, seed: u64, rate: u32) -> Lab {
    let options = Options {
        state_dir: Some(dir.to_path_buf()),
        lease: LEASE,
        grace: LEASE,
        recovery_rate: rate,
        ..Options::new(env(seed))
    };
    let lab = Lab::with(model, "/", options, Others::Nobody);
    tokio::spawn(lab.server.clone().tend());
    lab
}

fn name(n: usize) -> &'static str {
    Box::leak(format!("client {n}").into_boxed_str())
}

/// Reclaims a client's opens, one in each call, and sends RECLAIM_COMPLETE. Returns the time since
/// `began`.
async fn recover(wire: crate::tests::Wire, n: usize, held: Vec<Fh>, began: Instant) -> (Client, Duration) {
    let mut c = Client::new(wire, name(n), 1).await;
    for (i, fh) in held.iter().enumerate() {
        let claim = OpenClaim::Previous(DelegationType::NONE);
        let open = open_args(&format!("{i}"), RW, bits::SHARE_DENY_BOTH, claim, false);
        let mut r = c.run(vec![Op::putfh(fh), Op::Open(open)]).await;
        r.putfh().unwrap();
        r.open().unwrap();
    }
    c.reclaim_complete().await;
    (c, began.elapsed())
}

/// Twelve clients with twelve files each, at three calls a second. The last client waits three
/// times as long as the lease and the grace period. A client that held no state floods the server
/// all the time. It gets no file that another client may still reclaim.
/// Promise: S12
#[tokio::test(start_paused = true)]
async fn paced_clients_reclaim_all_state() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let before = lab(&model, dir.path(), 2, 0);
    let mut held = Vec::new();
    for n in 0..CLIENTS {
        let mut c = before.client(name(n)).await;
        c.reclaim_complete().await;
        let mut files = Vec::new();
        for i in 0..FILES {
            files.push(
                c.open(&format!("f{n}-{i}"), &format!("{i}"), RW, bits::SHARE_DENY_BOTH).await.unwrap().1,
            );
        }
        held.push(files);
    }
    drop(before);

    let after = lab(&model, dir.path(), 3, 3);
    let began = Instant::now();
    let mut flood = after.connect();
    let flooded = tokio::spawn(async move {
        loop {
            flood.call(&Compound::new(2, vec![Op::Putrootfh])).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let clients: Vec<_> = held
        .into_iter()
        .enumerate()
        .map(|(n, files)| tokio::spawn(recover(after.connect(), n, files, began)))
        .collect();
    let mut other = Client::new(after.connect(), "other", 1).await;
    other.reclaim_complete().await;
    let mut refused = 0;
    let last = format!("f{}-{}", CLIENTS - 1, FILES - 1);
    let opened = loop {
        match other.open(&last, "o", RW, 0).await {
            Err(Nfsstat4::GRACE) => refused += 1,
            opened => break opened,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(opened.unwrap_err(), Nfsstat4::SHARE_DENIED, "it was reclaimed first");
    let mut times = Vec::new();
    let mut all = Vec::new();
    for client in clients {
        let (client, took) = client.await.unwrap();
        times.push(took.as_secs());
        all.push(client);
    }
    // 14 connections with one call at a time, and 15 calls of each client.
    assert!(times.iter().all(|t| (65..75).contains(t)), "all clients have the same share: {times:?}");
    assert!(refused >= 10, "{refused}");
    // No client's state has ended in the meantime.
    assert_eq!(after.server.v4.registry.count(), CLIENTS * FILES);
    assert!(after.server.v4.reclaimers.lock().is_empty());
    for c in &mut all {
        c.run(vec![]).await;
    }
    flooded.abort();
}

/// The grace period ends although a client does not come back and other clients call all the time.
/// It is prolonged by five minutes at most.
/// Promise: S12
#[tokio::test(start_paused = true)]
async fn grace_period_always_ends() {
    for (rate, most) in [(0, LEASE), (1, HELD_UP_MAX + LEASE * 2)] {
        let (model, dir) = (model(), tempfile::tempdir().unwrap());
        let before = lab(&model, dir.path(), 2, 0);
        let mut gone = before.client("gone").await;
        gone.reclaim_complete().await;
        gone.open("f", "x", RW, bits::SHARE_DENY_BOTH).await.unwrap();
        drop(before);
        let after = lab(&model, dir.path(), 3, rate);
        let began = Instant::now();
        let floods: Vec<_> = (0..if rate > 0 { 10 } else { 0 })
            .map(|_| {
                let mut flood = after.connect();
                tokio::spawn(async move {
                    loop {
                        flood.call(&Compound::new(2, vec![Op::Putrootfh])).await;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                })
            })
            .collect();
        let mut other = Client::new(after.connect(), "other", 1).await;
        other.reclaim_complete().await;
        while other.open("g", "o", RW, 0).await == Err(Nfsstat4::GRACE) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let took = began.elapsed();
        assert!(took >= LEASE && took <= most + LEASE / 2, "{took:?}");
        assert_eq!(rate > 0, took > LEASE * 2, "{took:?}");
        floods.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
