//! The times of retransmissions and of errors, as nfs(5) defines them.

use super::*;
use crate::policy::RetryPolicy;

type Log = Arc<Mutex<Vec<(u64, u64, u32)>>>;

/// Serves `net` with a server that notes (connection, second, xid) of each call. It answers from
/// connection `answers_from` on.
fn deaf_server(net: &Net, answers_from: u64) -> Log {
    let log = Log::default();
    let (seen, start) = (log.clone(), Instant::now());
    net.answer(move |connection, call, args| {
        seen.lock().push((connection, start.elapsed().as_secs(), call.xid));
        let reply = (connection >= answers_from).then(|| doubled(&call, &args));
        async move { reply }
    });
    log
}

fn policy(mode: Mode, timeo_s: u64, retrans: u32) -> impl FnOnce(&mut ClientConfig) {
    move |cfg| cfg.policy = RetryPolicy { timeo: timeo_s as u32 * SECOND, retrans, mode }
}

fn times(log: &Log) -> Vec<(u64, u64)> {
    log.lock().iter().map(|&(connection, second, _)| (connection, second)).collect()
}

/// A soft call fails after exactly `timeo * (retrans + 1)`, with EIO or ETIMEDOUT. NFSv3
/// retransmits at `timeo`; NFSv4 sends the call once.
#[tokio::test(start_paused = true)]
async fn soft_calls_fail_in_time() {
    for (mode, c, sent) in [
        (Mode::Soft, call_v3(1), vec![(0, 0), (0, 60)]),
        (Mode::Softerr, call_v3(1), vec![(0, 0), (0, 60)]),
        (Mode::Soft, call(1), vec![(0, 0)]),
    ] {
        let net = net();
        let log = deaf_server(&net, 1);
        let client = client_with(&net, policy(mode, 60, 2));
        client.connect_now().await.unwrap();
        let started = Instant::now();
        let error = client.call(c).await.unwrap_err();
        assert!(matches!(error, CallError::TimedOut(m) if m == mode));
        assert_eq!(started.elapsed(), 180 * SECOND);
        assert_eq!(times(&log), sent);
        let stats = client.stats().snapshot();
        let op = stats.op("TEST").unwrap();
        assert_eq!((op.major_timeouts, op.errors, op.transmissions), (1, 1, sent.len() as u64));
    }
}

/// The same holds without a connection, whether the server refuses it or stays silent.
#[tokio::test(start_paused = true)]
async fn soft_calls_fail_without_connection() {
    for black_hole in [false, true] {
        let net = net();
        good_server(&net);
        if black_hole {
            net.cut(Cut::BlackHole);
        } else {
            net.refuse(true);
        }
        let client = client_with(&net, policy(Mode::Soft, 5, 3));
        let started = Instant::now();
        let waiting = spawn(&client, call(1));
        tokio::time::sleep(SECOND).await;
        let in_flight = || client.stats().snapshot().transports[0].in_flight;
        assert_eq!(in_flight(), 1, "a call that waits for a connection");
        assert!(matches!(waiting.await.unwrap(), Err(CallError::TimedOut(Mode::Soft))));
        assert_eq!((in_flight(), started.elapsed()), (0, 20 * SECOND));
    }
}

/// The back-off between retransmissions is linear.
#[tokio::test(start_paused = true)]
async fn v3_retransmits_with_linear_backoff() {
    let net = net();
    let log = deaf_server(&net, 1);
    let client = client_with(&net, policy(Mode::Soft, 10, 9));
    client.call(call_v3(1)).await.unwrap_err();
    assert_eq!(times(&log), [(0, 0), (0, 10), (0, 30), (0, 60)]);
    let xids: Vec<_> = log.lock().iter().map(|e| e.2).collect();
    assert!(xids.windows(2).all(|w| w[0] == w[1]));
}

/// A hard call survives a server that accepts connections and never answers. The client drops the
/// silent connection at the major timeout and sends the same xid on the new connection.
#[tokio::test(start_paused = true)]
async fn hard_calls_leave_a_silent_connection() {
    let net = net();
    let log = deaf_server(&net, 1);
    let client = client_with(&net, policy(Mode::Hard, 60, 2));
    let reply = client.call(call(21)).await.unwrap();
    assert_eq!(number(&reply), 42);
    let log = log.lock().clone();
    assert_eq!(log.len(), 2);
    assert_eq!((log[0].0, log[0].1), (0, 0));
    assert_eq!((log[1].0, log[1].1), (1, 180));
    assert_eq!(log[0].2, log[1].2);
}

/// A connection made shortly before a major timeout is not dropped for the silence before it
/// existed.
#[tokio::test(start_paused = true)]
async fn new_connection_survives_major_timeout() {
    let net = net();
    net.answer(|connection, call, args| async move {
        sleep(50 * SECOND).await;
        (connection > 0).then(|| doubled(&call, &args))
    });
    let client = client_with(&net, policy(Mode::Hard, 60, 2));
    let task = spawn(&client, call(1));
    sleep(150 * SECOND).await;
    net.cut(Cut::Reset);
    task.await.unwrap().unwrap();
    assert_eq!(net.accepted(), 2);
}

/// A server may need longer than the timeouts and have no reply cache. Each new connection waits
/// longer than the one before, so that its answer arrives.
#[tokio::test(start_paused = true)]
async fn slow_answers_outlast_timeouts() {
    let net = net();
    net.answer(|_, call, args| async move {
        sleep(1000 * SECOND).await;
        Some(doubled(&call, &args))
    });
    for c in [call(1), call_v3(1)] {
        let started = Instant::now();
        client_with(&net, policy(Mode::Hard, 60, 2)).call(c).await.unwrap();
        assert!(started.elapsed() < 3000 * SECOND, "{:?}", started.elapsed());
    }
    assert!((4..=8).contains(&net.accepted()), "{}", net.accepted());
}

/// A slow call does not break a connection on which other calls receive replies. The client does
/// not retransmit the slow call on it.
#[tokio::test(start_paused = true)]
async fn slow_calls_are_waited_for() {
    let net = net();
    net.answer(|_, call, args| async move {
        if arg(&args) == 1 {
            sleep(500 * SECOND).await;
        }
        Some(doubled(&call, &args))
    });
    let client = client(&net);
    let slow = spawn(&client, call(1));
    for i in 2..502 {
        sleep(SECOND).await;
        client.call(call(i)).await.unwrap();
    }
    slow.await.unwrap().unwrap();
    assert_eq!(net.accepted(), 1);
    let op = client.stats().snapshot().op("TEST").unwrap().clone();
    assert_eq!((op.ops, op.transmissions, op.major_timeouts), (501, 501, 2));
}

/// The client finally makes a new connection when a reply is lost on a live connection.
#[tokio::test(start_paused = true)]
async fn lost_replies_are_asked_for_again() {
    let net = net();
    net.answer(|connection, call, args| async move {
        (arg(&args) != 1 || connection > 0).then(|| doubled(&call, &args))
    });
    let client = client(&net);
    let (started, lost) = (Instant::now(), spawn(&client, call(1)));
    let others = client.clone();
    let noise = tokio::spawn(async move {
        loop {
            others.call(call(2)).await.unwrap();
            sleep(SECOND).await;
        }
    });
    assert_eq!(number(&lost.await.unwrap().unwrap()), 2);
    assert_eq!(started.elapsed().as_secs(), 3 * 180);
    noise.abort();
}

/// A cut network heals. All hard calls of both protocols complete. The client keeps the connection
/// when TCP can recover it.
#[tokio::test(start_paused = true)]
async fn black_hole_then_heal() {
    for dark_s in [30, 100, 1000] {
        let net = net();
        good_server(&net);
        let client = client(&net);
        client.connect_now().await.unwrap();
        net.cut(Cut::BlackHole);
        let started = Instant::now();
        let calls = [spawn(&client, call(1)), spawn(&client, call_v3(2))];
        sleep(dark_s * SECOND).await;
        net.heal();
        for (task, result) in calls.into_iter().zip([2, 4]) {
            assert_eq!(number(&task.await.unwrap().unwrap()), result);
        }
        let late = started.elapsed() - dark_s * SECOND;
        assert!(late < 11 * SECOND, "{late:?} after the network healed");
        assert_eq!(client.stats().snapshot().op("TEST").unwrap().errors, 0);
        if dark_s < 180 {
            assert_eq!(net.accepted(), 1);
        }
    }
}

/// The client finds a restarted server within seconds, with one connection attempt per back-off
/// step.
#[tokio::test(start_paused = true)]
async fn server_restart() {
    let net = net();
    good_server(&net);
    let client = client(&net);
    client.call(call(1)).await.unwrap();
    net.refuse(true);
    net.cut(Cut::Reset);
    let task = spawn(&client, call(2));
    sleep(60 * SECOND).await;
    let attempts = net.attempts();
    assert!((8..=16).contains(&attempts), "{attempts} attempts in a minute");
    net.refuse(false);
    let healed = Instant::now();
    task.await.unwrap().unwrap();
    assert!(healed.elapsed() < 13 * SECOND, "{:?}", healed.elapsed());
}

/// A connection that the server closes while idle stays closed until a call needs it.
#[tokio::test(start_paused = true)]
async fn idle_connections_may_close() {
    let net = net();
    net.serve(|mut peer| async move {
        if let Some((header, args)) = peer.recv_call().await {
            peer.send(doubled(&header, &args));
        }
        sleep(SECOND).await;
    });
    let client = client(&net);
    client.call(call(1)).await.unwrap();
    sleep(1000 * SECOND).await;
    assert_eq!(net.attempts(), 1);
    let started = Instant::now();
    client.call(call(2)).await.unwrap();
    assert!(started.elapsed() < SECOND);
    assert_eq!(net.attempts(), 2);
}
