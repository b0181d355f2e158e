//! Loss, delays, cuts, cancelled calls and several connections together, for many seeds.

use super::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;

/// How often each call was received, by xid and connection.
type Seen = Arc<Mutex<HashMap<(u32, u64), u32>>>;

async fn run(seed: u64) {
    let conditions = Conditions {
        latency: 5 * MS,
        jitter: 20 * MS,
        bandwidth: Some(1 << 20),
        loss: 0.05,
        window_bytes: 20_000,
        ..Conditions::default()
    };
    let net = Net::new(seed, conditions);
    good_server(&net);
    let client = client_with(&net, |cfg| {
        cfg.nconnect = 3;
        cfg.policy.timeo = SECOND;
        cfg.max_queued_bytes = 32 << 10;
    });
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut calls = Vec::new();
    for i in 0..300 {
        let c = if i % 3 == 0 { call_v3(i) } else { call(i) };
        let (client, patience) = (client.clone(), rng.random_bool(0.1).then_some(20 * MS));
        calls.push((
            i,
            tokio::spawn(async move {
                match patience {
                    Some(t) => tokio::time::timeout(t, client.call(c)).await.ok(),
                    None => Some(client.call(c).await),
                }
            }),
        ));
        sleep(rng.random_range(0..20) * MS).await;
        match rng.random_range(0..60) {
            0 => net.cut(Cut::Reset),
            1 => net.cut(Cut::BlackHole),
            2 => net.heal(),
            _ => {}
        }
    }
    net.heal();
    for (i, task) in calls {
        if let Some(reply) = task.await.unwrap() {
            assert_eq!(number(&reply.unwrap()), 2 * i, "seed {seed}");
        }
    }
    assert!(client.shared().connections.iter().all(|c| c.load() == 0));
    assert_eq!(client.shared().room.available_permits(), 32 << 10);
}

/// Each call receives its own answer under any network fault, and no call leaks.
#[tokio::test(start_paused = true)]
async fn every_call_gets_its_answer() {
    for seed in 0..40 {
        run(seed).await;
    }
}

/// An NFSv4 call is sent at most once on each connection, however long the reply takes.
#[tokio::test(start_paused = true)]
async fn nfs4_calls_sent_once_per_connection() {
    for seed in 0..20 {
        let net = Net::new(seed, Conditions { loss: 0.2, jitter: 3 * SECOND, ..Conditions::default() });
        let seen = Seen::default();
        let log = seen.clone();
        net.answer(move |connection, call, args| {
            *log.lock().entry((call.xid, connection)).or_default() += 1;
            async move {
                sleep(u32::from(arg(&args).is_multiple_of(7)) * 5 * SECOND).await;
                Some(doubled(&call, &args))
            }
        });
        let client = client_with(&net, |cfg| {
            cfg.nconnect = 2;
            cfg.policy.timeo = SECOND;
        });
        let calls: Vec<_> = (0..100).map(|i| spawn(&client, call(i))).collect();
        for _ in 0..3 {
            sleep(2 * SECOND).await;
            net.cut(Cut::Reset);
        }
        for (i, task) in calls.into_iter().enumerate() {
            assert_eq!(number(&task.await.unwrap().unwrap()), 2 * i as u32);
        }
        let seen = seen.lock();
        assert!(seen.values().all(|&times| times == 1), "seed {seed}");
        assert!(seen.len() > 100, "some were sent again on another connection");
    }
}
