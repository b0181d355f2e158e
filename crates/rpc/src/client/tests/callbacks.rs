//! Calls from the server on connections that the client made.

use super::*;
use crate::call::CallbackHandler;
use crate::transport::BoxFuture;
use hither_proto::rpc::{Message, OpaqueAuth, ReplyBody};

struct Adder;

impl CallbackHandler for Adder {
    fn call(&self, header: CallHeader, body: Bytes) -> BoxFuture<'static, Enc> {
        Box::pin(async move {
            sleep(SECOND).await;
            rpc::reply(header.xid, Enc::of(&(arg(&body) + header.proc)))
        })
    }
}

fn callback(xid: u32, proc: u32, value: u32) -> Enc {
    rpc::call(xid, 0x4000_0000, 1, proc, &OpaqueAuth::none(), Enc::of(&value))
}

/// Serves `net` with a server that makes `calls` calls on the connection for each call it receives.
/// Its reply is the sum of the results; a refused call counts -1.
fn calling_server(net: &Net, calls: u32) {
    net.serve(move |mut peer| async move {
        while let Some((header, _)) = peer.recv_call().await {
            // Server and client choose xids independently, so equal xids must not clash.
            (0..calls).for_each(|i| peer.send(callback(header.xid.wrapping_add(i), 10 * i, 1)));
            let mut sum = 0u32;
            for _ in 0..calls {
                let Some(record) = peer.recv().await else { return };
                match Message::decode(&record).unwrap() {
                    Message::Reply(ReplyHeader { body: ReplyBody::Accepted(a), .. }, body) => match a.stat {
                        AcceptStat::Success => sum += arg(&body),
                        AcceptStat::ProgUnavail => sum = sum.wrapping_sub(1),
                        other => panic!("{other:?}"),
                    },
                    other => panic!("{other:?}"),
                }
            }
            peer.send(rpc::reply(header.xid, Enc::of(&sum)));
        }
    });
}

/// The client answers calls of the server on the connection that carried them. It answers several
/// at a time while its own call waits.
#[tokio::test(start_paused = true)]
async fn callbacks_use_their_own_connection() {
    let net = net();
    calling_server(&net, 3);
    let client = client_with(&net, |cfg| cfg.nconnect = 3);
    client.set_callback_handler(Arc::new(Adder));
    for connection in [2, 0, 1] {
        let started = Instant::now();
        let reply = client.call(Call { connection: Some(connection), ..call(0) }).await.unwrap();
        assert_eq!((number(&reply), reply.connection), (33, connection));
        assert!(started.elapsed() < 2 * SECOND, "the three ran together");
    }
}

/// Without a handler the client refuses calls from the server.
#[tokio::test(start_paused = true)]
async fn callbacks_without_handler() {
    let net = net();
    calling_server(&net, 1);
    assert_eq!(number(&client(&net).call(call(0)).await.unwrap()), u32::MAX);
}

/// The client sends an answer only on the connection that carried the call. After a reconnect it
/// drops the answer.
#[tokio::test(start_paused = true)]
async fn late_callback_answers_are_dropped() {
    let net = net();
    let (send, mut seen) = tokio::sync::mpsc::unbounded_channel();
    net.serve(move |mut peer| {
        let send = send.clone();
        async move {
            if peer.connection == 0 {
                peer.send(callback(5, 0, 0));
            }
            while let Some(record) = peer.recv().await {
                send.send((peer.connection, record)).unwrap();
            }
        }
    });
    let client = client(&net);
    client.set_callback_handler(Arc::new(Adder));
    client.connect_now().await.unwrap();
    sleep(SECOND / 2).await;
    net.cut(Cut::Reset);
    sleep(10 * SECOND).await;
    assert_eq!(net.accepted(), 2, "the backchannel is kept up although no call needs it");
    assert!(seen.try_recv().is_err());
}

/// The client drops the connection to a server that floods it with calls.
#[tokio::test(start_paused = true)]
async fn callback_flood() {
    let net = net();
    net.serve(|mut peer| async move {
        if peer.connection == 0 {
            (0..1000).for_each(|i| peer.send(callback(i, 0, 0)));
        }
        while let Some((header, args)) = peer.recv_call().await {
            peer.send(doubled(&header, &args));
        }
    });
    let client = client(&net);
    client.set_callback_handler(Arc::new(Adder));
    client.connect_now().await.unwrap();
    sleep(10 * SECOND).await;
    assert_eq!(net.accepted(), 2);
    client.call(call(1)).await.unwrap();
}
