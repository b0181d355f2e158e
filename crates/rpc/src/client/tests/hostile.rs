//! Servers that send forbidden bytes. The connection ends, and no other state is harmed.

use super::*;
use crate::sim::Peer;

/// Serves `net` with a server that runs `evil` on each connection until the returned flag is set.
fn evil_server<F>(net: &Net, evil: F) -> Arc<AtomicBool>
where
    F: Fn(&Peer, CallHeader) + Send + Sync + 'static,
{
    let good = Arc::new(AtomicBool::new(false));
    let (evil, is_good) = (Arc::new(evil), good.clone());
    net.serve(move |mut peer| {
        let (evil, is_good) = (evil.clone(), is_good.clone());
        async move {
            while let Some((header, args)) = peer.recv_call().await {
                if is_good.load(Relaxed) { peer.send(doubled(&header, &args)) } else { evil(&peer, header) }
            }
        }
    });
    good
}

/// Checks that the client reconnects at a bounded rate while the server misbehaves. The call
/// succeeds when the server behaves.
async fn is_survived(net: &Net, good: Arc<AtomicBool>) {
    let client = client(net);
    let task = spawn(&client, call(1));
    sleep(60 * SECOND).await;
    let attempts = net.attempts();
    assert!((5..=16).contains(&attempts), "{attempts} connections in a minute");
    good.store(true, Relaxed);
    assert_eq!(number(&task.await.unwrap().unwrap()), 2);
    assert!(client.stats().snapshot().transports[0].drops >= attempts - 1);
}

fn raw(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

#[tokio::test(start_paused = true)]
async fn record_longer_than_agreed() {
    let net = net();
    let good = evil_server(&net, |peer, _| peer.send_raw(raw(&[0xff, 0xff, 0xff, 0xff])));
    is_survived(&net, good).await;
}

#[tokio::test(start_paused = true)]
async fn endless_fragments() {
    let net = net();
    let good = evil_server(&net, |peer, _| peer.send_raw(Bytes::from(vec![0; 1 << 16])));
    is_survived(&net, good).await;
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_call_never_made() {
    let net = net();
    let good = evil_server(&net, |peer, h| peer.send(rpc::reply(h.xid.wrapping_add(1), Enc::new())));
    is_survived(&net, good).await;
}

#[tokio::test(start_paused = true)]
async fn not_rpc() {
    let net = net();
    let good = evil_server(&net, |peer, _| peer.send_raw(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")));
    is_survived(&net, good).await;
    let net = self::net();
    let good = evil_server(&net, |peer, _| peer.send_raw(raw(&[0x80, 0, 0, 2, 1, 2])));
    is_survived(&net, good).await;
}

/// The server closes (in this test: resets) each connection inside a record.
#[tokio::test(start_paused = true)]
async fn close_inside_a_record() {
    let net = net();
    net.serve(|mut peer| async move {
        match (peer.recv_call().await, peer.connection) {
            (Some(_), 0..5) => peer.send_raw(raw(&[0x80, 0, 0, 100, 1, 2, 3])),
            (Some((header, args)), _) => peer.send(doubled(&header, &args)),
            _ => {}
        }
        sleep(SECOND).await;
    });
    let client = client(&net);
    assert_eq!(number(&client.call(call(1)).await.unwrap()), 2);
    assert_eq!(net.accepted(), 6);
}

/// A call fails when its reply cannot be decoded, because a retransmission would fail again. Other
/// calls are sent again.
#[tokio::test(start_paused = true)]
async fn undecodable_reply() {
    let net = net();
    net.serve(|mut peer| async move {
        while let Some((header, args)) = peer.recv_call().await {
            match arg(&args) {
                // A reply that is neither accepted nor denied.
                13 => {
                    let mut e = Enc::new();
                    [header.xid, 1, 2].iter().for_each(|&w| e.u32(w));
                    peer.send(e);
                }
                _ => {
                    sleep(SECOND).await;
                    peer.send(doubled(&header, &args));
                }
            }
        }
    });
    let client = client(&net);
    let other = spawn(&client, call(1));
    let error = client.call(call(13)).await.unwrap_err();
    assert!(matches!(error, CallError::PeerMisbehaved(_)), "{error}");
    assert_eq!(number(&other.await.unwrap().unwrap()), 2);
}

/// A second answer to a retransmitted call is not misbehaviour.
#[tokio::test(start_paused = true)]
async fn answer_given_twice() {
    let net = net();
    net.serve(|mut peer| async move {
        while let Some((header, args)) = peer.recv_call().await {
            peer.send(doubled(&header, &args));
            peer.send(doubled(&header, &args));
        }
    });
    let client = client(&net);
    for i in 0..10 {
        assert_eq!(number(&client.call(call(i)).await.unwrap()), 2 * i);
    }
    sleep(SECOND).await;
    assert_eq!(net.accepted(), 1);
    assert_eq!(client.stats().snapshot().transports[0].bad_xids, 10);
}

/// No received bytes make the client panic. The client works afterwards.
#[tokio::test(start_paused = true)]
async fn random_bytes() {
    use rand::{Rng, SeedableRng};
    for seed in 0..200 {
        let net = net();
        let good = evil_server(&net, move |peer, header| {
            let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
            let mut bytes: Vec<u8> = (0..rng.random_range(0..300)).map(|_| rng.random()).collect();
            // Half of the inputs begin with the header of a record that answers the call.
            if seed % 2 == 0 && bytes.len() >= 12 {
                let len = bytes.len() as u32 - 4;
                bytes[..4].copy_from_slice(&(len | 1 << 31).to_be_bytes());
                bytes[4..8].copy_from_slice(&header.xid.to_be_bytes());
                bytes[8..12].copy_from_slice(&1u32.to_be_bytes());
            }
            peer.send_raw(bytes.into());
        });
        let client = client_with(&net, |cfg| cfg.policy.timeo = SECOND);
        let task = spawn(&client, call(1));
        sleep(SECOND).await;
        good.store(true, Relaxed);
        match task.await.unwrap() {
            Ok(reply) => assert!(number(&reply) == 2 || seed % 2 == 0),
            Err(CallError::PeerMisbehaved(_) | CallError::Denied(_) | CallError::RpcMismatch { .. }) => {}
            Err(e) if seed % 2 == 0 => drop(e),
            Err(e) => panic!("{e}"),
        }
        assert_eq!(number(&client.call(call(4)).await.unwrap()), 8);
    }
}
