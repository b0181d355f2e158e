//! The client's promises to callers, on a simulated network and virtual time.

mod callbacks;
mod chaos;
mod hostile;
mod timeouts;

use super::*;
use crate::sim::{Conditions, Cut, Net};
use hither_proto::rpc::{
    self, AcceptStat, AuthStat, AuthSys, CallHeader, DeniedReply, ReplyHeader, VersionRange,
};
use hither_proto::xdr::Dec;
use std::time::Duration;
use tokio::time::sleep;

pub(super) const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// An NFSv4-style call whose argument is one number.
pub(super) fn call(arg: u32) -> Call {
    Call {
        prog: 100_003,
        vers: 4,
        proc: 1,
        op: "TEST",
        cred: Credential::None,
        args: Enc::of(&arg),
        connection: None,
        retransmit: Retransmit::OnReconnect,
        deadline: None,
        cancel: None,
    }
}

/// The same call with NFSv3 retransmission.
pub(super) fn call_v3(arg: u32) -> Call {
    Call { vers: 3, retransmit: Retransmit::OnReconnectAndTimeout, ..call(arg) }
}

pub(super) fn client_with(net: &Net, change: impl FnOnce(&mut ClientConfig)) -> Client {
    let mut cfg = ClientConfig { seed: 7, ..ClientConfig::default() };
    change(&mut cfg);
    Client::new(net.connector(), cfg, Arc::new(Stats::new()))
}

pub(super) fn client(net: &Net) -> Client {
    client_with(net, |_| {})
}

pub(super) fn net() -> Net {
    Net::new(1, Conditions::default())
}

/// The argument of a test call.
pub(super) fn arg(args: &Bytes) -> u32 {
    Dec::all(args).expect("test calls carry one number")
}

/// The answer to a test call: its argument doubled.
pub(super) fn doubled(call: &CallHeader, args: &Bytes) -> Enc {
    rpc::reply(call.xid, Enc::of(&(2 * arg(args))))
}

pub(super) fn number(reply: &Reply) -> u32 {
    Dec::all(&reply.body).expect("a number")
}

/// Serves `net` with a server that doubles the argument.
pub(super) fn good_server(net: &Net) {
    net.answer(|_, call, args| async move { Some(doubled(&call, &args)) });
}

pub(super) fn spawn(client: &Client, c: Call) -> tokio::task::JoinHandle<Result<Reply, CallError>> {
    let client = client.clone();
    tokio::spawn(async move { client.call(c).await })
}

/// Replies reach their callers in any order. All calls are in flight together: the server answers
/// only when it has received all calls, and it answers the last call first.
#[tokio::test(start_paused = true)]
async fn replies_match_calls_in_any_order() {
    const CALLS: u32 = 100;
    let net = net();
    net.serve(|mut peer| async move {
        let mut calls = Vec::new();
        while calls.len() < CALLS as usize {
            calls.push(peer.recv_call().await.unwrap());
        }
        for (header, args) in calls.iter().rev() {
            peer.send(doubled(header, args));
        }
        peer.recv().await;
    });
    let client = client(&net);
    let calls: Vec<_> = (0..CALLS).map(|i| spawn(&client, call(i))).collect();
    for (i, task) in calls.into_iter().enumerate() {
        assert_eq!(number(&task.await.unwrap().unwrap()), 2 * i as u32);
    }
    let stats = client.stats().snapshot();
    assert_eq!((stats.transports[0].in_flight, stats.transports[0].max_slots), (0, u64::from(CALLS)));
    assert_eq!(stats.op("TEST").unwrap().transmissions, u64::from(CALLS));
}

/// A link that breaks inside a reply only delays the call. The client sends the call again on the
/// new link with the same xid, so the server's reply cache recognises it.
#[tokio::test(start_paused = true)]
async fn broken_reply_resends_same_xid() {
    let net = net();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    net.answer(move |connection, call, _| {
        log.lock().push((connection, call.xid));
        let body = Bytes::from(vec![9; 5000]);
        async move {
            let mut e = Enc::new();
            e.opaque(&body);
            Some(rpc::reply(call.xid, e))
        }
    });
    net.cut_reply_after(3000);
    let client = client(&net);
    let reply = client.call(call(1)).await.unwrap();
    let body = Dec::new(&reply.body).opaque(5000).unwrap();
    assert_eq!(body, vec![9; 5000]);
    let seen = seen.lock().clone();
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[0].0, seen[1].0), (0, 1));
    assert_eq!(seen[0].1, seen[1].1);
    let op = client.stats().snapshot().op("TEST").unwrap().clone();
    assert_eq!((op.ops, op.transmissions, op.errors), (1, 2, 0));
}

/// After a reconnect the client sends the pending calls in the order of their creation.
#[tokio::test(start_paused = true)]
async fn order_survives_a_reconnect() {
    let net = net();
    let (send, mut recv) = tokio::sync::mpsc::unbounded_channel();
    net.serve(move |mut peer| {
        let send = send.clone();
        async move {
            while let Some((header, args)) = peer.recv_call().await {
                if peer.connection > 0 {
                    send.send(arg(&args)).unwrap();
                    peer.send(doubled(&header, &args));
                }
            }
        }
    });
    let client = client(&net);
    let calls: Vec<_> = (0..50).map(|i| spawn(&client, call(i))).collect();
    sleep(SECOND).await;
    net.cut(Cut::Reset);
    for task in calls {
        task.await.unwrap().unwrap();
    }
    for i in 0..50 {
        assert_eq!(recv.recv().await, Some(i));
    }
}

/// Long arguments and results arrive whole in both directions. The window is smaller than either.
#[tokio::test(start_paused = true)]
async fn long_messages() {
    let net = Net::new(1, Conditions { window_bytes: 10_000, ..Conditions::default() });
    net.answer(|_, call, args| async move {
        let mut body = Enc::new();
        body.opaque(&Dec::new(&args).opaque(1 << 20).unwrap());
        Some(rpc::reply(call.xid, body))
    });
    let client = client(&net);
    let payload: Bytes = (0..1 << 20).map(|i: u32| (i % 251) as u8).collect();
    let mut args = Enc::new();
    args.opaque(&payload);
    let reply = client.call(Call { args, ..call(0) }).await.unwrap();
    assert_eq!(Dec::new(&reply.body).opaque(1 << 20).unwrap(), payload);
}

/// The server receives the header and the credential unchanged.
#[tokio::test(start_paused = true)]
async fn headers_and_credentials() {
    let net = net();
    net.answer(|_, call, _| async move {
        assert_eq!((call.prog, call.vers, call.proc), (100_003, 4, 1));
        let uid = call.cred.as_sys().unwrap().map_or(u32::MAX, |sys| sys.uid);
        Some(rpc::reply(call.xid, Enc::of(&uid)))
    });
    let client = client(&net);
    assert_eq!(number(&client.call(call(0)).await.unwrap()), u32::MAX);
    let sys = AuthSys {
        stamp: 1,
        machinename: Bytes::from_static(b"host").into(),
        uid: 1234,
        gid: 5,
        gids: vec![6, 7].into(),
    };
    let cred = Credential::sys(&sys);
    assert_eq!(number(&client.call(Call { cred, ..call(0) }).await.unwrap()), 1234);
}

/// Each way of refusing a call maps to its own error.
#[tokio::test(start_paused = true)]
async fn refusals() {
    let net = net();
    net.answer(|_, call, args| async move {
        let range = VersionRange { low: 2, high: 3 };
        let accepted = |stat| ReplyHeader::accepted(call.xid, stat);
        Some(Enc::of(&match arg(&args) {
            0 => accepted(AcceptStat::ProgUnavail),
            1 => accepted(AcceptStat::ProgMismatch(range)),
            2 => accepted(AcceptStat::ProcUnavail),
            3 => accepted(AcceptStat::GarbageArgs),
            4 => accepted(AcceptStat::SystemErr),
            5 => accepted(AcceptStat::Other(77)),
            6 => ReplyHeader::denied(call.xid, DeniedReply::AuthError(AuthStat::TOOWEAK)),
            _ => ReplyHeader::denied(call.xid, DeniedReply::RpcMismatch(range)),
        }))
    });
    let client = client(&net);
    let mut errors = Vec::new();
    for i in 0..8 {
        errors.push(client.call(call(i)).await.unwrap_err());
    }
    use CallError::*;
    assert!(matches!(
        errors[..],
        [
            ProgUnavail,
            ProgMismatch { low: 2, high: 3 },
            ProcUnavail,
            GarbageArgs,
            SystemErr,
            PeerMisbehaved(_),
            Denied(AuthStat::TOOWEAK),
            RpcMismatch { low: 2, high: 3 }
        ]
    ));
    assert_eq!(client.stats().snapshot().op("TEST").unwrap().errors, 8);
    assert_eq!(net.accepted(), 1, "a refusal is no reason to reconnect");
}

/// Calls spread evenly over the connections. A pinned call uses its own connection.
#[tokio::test(start_paused = true)]
async fn connections_share_the_load() {
    let net = net();
    net.answer(|_, call, args| async move {
        sleep(SECOND).await;
        Some(doubled(&call, &args))
    });
    let client = client_with(&net, |cfg| cfg.nconnect = 4);
    client.connect_now().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(*client.generations().borrow(), [1, 1, 1, 1]);
    let calls: Vec<_> = (0..400).map(|i| spawn(&client, call(i))).collect();
    let mut per_connection = [0; 4];
    for task in calls {
        per_connection[task.await.unwrap().unwrap().connection] += 1;
    }
    assert_eq!(per_connection, [100; 4]);
    for i in [3, 0, 2, 2] {
        let reply = client.call(Call { connection: Some(i), ..call(1) }).await.unwrap();
        assert_eq!(reply.connection, i);
    }
}

/// A call uses the connection with the fewest calls in flight, not the next one in turn.
#[tokio::test(start_paused = true)]
async fn busy_connections_are_avoided() {
    let net = net();
    net.answer(|_, call, args| async move {
        sleep(u32::from(arg(&args) == 1) * 10 * SECOND).await;
        Some(doubled(&call, &args))
    });
    let client = client_with(&net, |cfg| cfg.nconnect = 3);
    client.connect_now().await.unwrap();
    sleep(SECOND).await;
    let slow = [0, 2].map(|i| spawn(&client, Call { connection: Some(i), ..call(1) }));
    sleep(SECOND).await;
    for i in 2..12 {
        assert_eq!(client.call(call(i)).await.unwrap().connection, 1);
    }
    for task in slow {
        task.await.unwrap().unwrap();
    }
}

/// New calls avoid a connection that cannot be made again, while other connections work.
#[tokio::test(start_paused = true)]
async fn broken_connections_are_avoided() {
    let net = net();
    net.serve(|mut peer| async move {
        while let Some((header, args)) = peer.recv_call().await {
            if arg(&args) == 1 {
                return;
            }
            peer.send(doubled(&header, &args));
        }
    });
    let client = client_with(&net, |cfg| cfg.nconnect = 2);
    client.connect_now().await.unwrap();
    sleep(SECOND).await;
    net.refuse(true);
    let lost = spawn(&client, Call { connection: Some(0), ..call(1) });
    sleep(SECOND).await;
    for i in 2..12 {
        assert_eq!(client.call(call(i)).await.unwrap().connection, 1);
    }
    lost.abort();
}

/// `generations` shows a reconnect, so that a session can be bound to the new connection.
#[tokio::test(start_paused = true)]
async fn generations_tell_of_reconnects() {
    let net = net();
    good_server(&net);
    let client = client(&net);
    let mut generations = client.generations();
    assert_eq!(*generations.borrow_and_update(), [0]);
    client.call(call(1)).await.unwrap();
    assert_eq!(*generations.borrow_and_update(), [1]);
    net.cut(Cut::Reset);
    client.call(call(2)).await.unwrap();
    generations.changed().await.unwrap();
    assert_eq!(*generations.borrow_and_update(), [2]);
}

/// Cancellation frees the caller at once. The late reply disturbs no other call.
#[tokio::test(start_paused = true)]
async fn cancellation() {
    let net = net();
    net.answer(|_, call, args| async move {
        sleep(5 * SECOND).await;
        Some(doubled(&call, &args))
    });
    let client = client(&net);
    let token = CancellationToken::new();
    let task = spawn(&client, Call { cancel: Some(token.clone()), ..call(1) });
    let dropped = spawn(&client, call(2));
    sleep(SECOND).await;
    let before = Instant::now();
    token.cancel();
    assert!(matches!(task.await.unwrap(), Err(CallError::Cancelled)));
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(client.shared().connections[0].load(), 0, "nothing leaks");
    assert_eq!(number(&client.call(call(3)).await.unwrap()), 6);
    let stats = client.stats().snapshot();
    assert_eq!(stats.transports[0].bad_xids, 2);
    assert_eq!(net.accepted(), 1);
    let op = stats.op("TEST").unwrap();
    assert_eq!((op.ops, op.errors), (3, 2));
}

/// A deadline ends a call at its exact time, on a hard mount and without a connection too.
#[tokio::test(start_paused = true)]
async fn deadlines() {
    let net = net();
    net.serve(|mut peer| async move { while peer.recv().await.is_some() {} });
    let client = client(&net);
    for refuse in [false, true] {
        net.refuse(refuse);
        net.cut(Cut::Reset);
        let started = Instant::now();
        let deadline = Some(started + 1234 * MS);
        let error = client.call(Call { deadline, ..call(1) }).await.unwrap_err();
        assert!(matches!(error, CallError::DeadlinePassed));
        assert_eq!(started.elapsed(), 1234 * MS);
    }
    assert_eq!(client.shared().connections[0].load(), 0);
}

/// Bytes in flight are bounded. Calls that wait for room are served in order and can be cancelled.
#[tokio::test(start_paused = true)]
async fn room_in_flight_is_bounded() {
    let net = net();
    let seen = Arc::new(AtomicUsize::new(0));
    let (count, gate) = (seen.clone(), Arc::new(tokio::sync::Notify::new()));
    let open = gate.clone();
    net.answer(move |_, call, _| {
        count.fetch_add(1, Relaxed);
        let gate = gate.clone();
        async move {
            gate.notified().await;
            Some(rpc::reply(call.xid, Enc::of(&0u32)))
        }
    });
    let client = client_with(&net, |cfg| cfg.max_queued_bytes = 64 << 10);
    let big = || {
        let mut args = Enc::new();
        args.opaque(&Bytes::from(vec![0; 10_000]));
        Call { args, ..call(0) }
    };
    let token = CancellationToken::new();
    let calls: Vec<_> = (0..20).map(|_| spawn(&client, big())).collect();
    let waiting = spawn(&client, Call { cancel: Some(token.clone()), ..big() });
    sleep(SECOND).await;
    assert_eq!(seen.load(Relaxed), 6);
    assert_eq!(client.shared().backlog.load(Relaxed), 15);
    token.cancel();
    assert!(matches!(waiting.await.unwrap(), Err(CallError::Cancelled)));
    for _ in 0..20 {
        open.notify_one();
        sleep(SECOND).await;
    }
    for task in calls {
        task.await.unwrap().unwrap();
    }
    assert_eq!(client.shared().backlog.load(Relaxed), 0);
    assert_eq!(client.shared().room.available_permits(), 64 << 10);
}

/// A call longer than the longest record is refused before it is sent.
#[tokio::test(start_paused = true)]
async fn oversized_call_is_refused() {
    let net = net();
    good_server(&net);
    let client = client_with(&net, |cfg| cfg.max_record_bytes = 1000);
    let mut args = Enc::new();
    args.opaque(&Bytes::from(vec![0; 1000]));
    let error = client.call(Call { args, ..call(0) }).await.unwrap_err();
    assert!(matches!(error, CallError::TooLarge { len: 1044, max: 1000 }), "{error}");
    assert_eq!(net.attempts(), 0);
}

/// `connect_now` reports the exact error of the first connection.
#[tokio::test(start_paused = true)]
async fn connect_now_is_precise() {
    let net = net();
    let cause = |r: Result<(), CallError>| match r {
        Err(CallError::Connect(e)) => e.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(cause(client(&net).connect_now().await), std::io::ErrorKind::ConnectionRefused);
    good_server(&net);
    net.cut(Cut::BlackHole);
    let started = Instant::now();
    assert_eq!(cause(client(&net).connect_now().await), std::io::ErrorKind::TimedOut);
    assert_eq!(started.elapsed(), 10 * SECOND);
    net.heal();
    let client = client(&net);
    client.connect_now().await.unwrap();
    client.connect_now().await.unwrap();
    client.call(call(1)).await.unwrap();
    assert_eq!(net.accepted(), 1, "the connection is the one that was tried");
}

/// A client with `fail_when_unreachable` fails instead of waiting for the server to start.
#[tokio::test(start_paused = true)]
async fn fail_when_unreachable() {
    let net = net();
    let client = client_with(&net, |cfg| cfg.fail_when_unreachable = true);
    for _ in 0..2 {
        let error = client.call(call(1)).await.unwrap_err();
        assert!(matches!(error, CallError::Connect(e) if e.kind() == std::io::ErrorKind::ConnectionRefused));
    }
    good_server(&net);
    client.call(call(1)).await.unwrap();
}

/// Shutdown ends the connection, the calls in flight, the waiting calls and later calls.
#[tokio::test(start_paused = true)]
async fn shutdown() {
    let net = net();
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    net.serve(move |mut peer| {
        let closed = closed.clone();
        async move {
            while peer.recv().await.is_some() {}
            closed.send(()).unwrap();
        }
    });
    let first = client_with(&net, |cfg| cfg.max_queued_bytes = 1024);
    let calls = [spawn(&first, call(1)), spawn(&first, call(2))];
    sleep(SECOND).await;
    first.shutdown();
    for task in calls {
        assert!(matches!(task.await.unwrap(), Err(CallError::Shutdown)));
    }
    assert!(matches!(first.call(call(3)).await, Err(CallError::Shutdown)));
    is_closed.recv().await.unwrap();
}

/// Dropping the last clone closes the connections.
#[tokio::test(start_paused = true)]
async fn drop_closes() {
    let net = net();
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    net.serve(move |mut peer| {
        let closed = closed.clone();
        async move {
            while peer.recv().await.is_some() {}
            closed.send(()).unwrap();
        }
    });
    let client = client(&net);
    client.connect_now().await.unwrap();
    let clone = client.clone();
    drop(client);
    sleep(SECOND).await;
    assert!(is_closed.try_recv().is_err());
    drop(clone);
    is_closed.recv().await.unwrap();
}
