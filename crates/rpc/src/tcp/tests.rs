//! TCP connections over real sockets on loopback.

use super::*;
use crate::{Call, CallError, Client, ClientConfig, Credential, Retransmit, Stats};
use bytes::Bytes;
use hither_proto::record;
use hither_proto::rpc::{self, Message};
use hither_proto::xdr::{Dec, Enc};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(60);

fn endpoint(addr: SocketAddr) -> Endpoint {
    Endpoint { addr, resvport: false, keepalive: true, connect_timeout: LIMIT }
}

fn client(endpoint: Endpoint) -> Client {
    let cfg = ClientConfig::default();
    Client::new(Arc::new(TcpConnect::new(endpoint)), cfg, Arc::new(Stats::new()))
}

fn call(payload: &Bytes) -> Call {
    let mut args = Enc::new();
    args.opaque(payload);
    Call {
        prog: 100_003,
        vers: 4,
        proc: 1,
        op: "ECHO",
        cred: Credential::None,
        args,
        connection: None,
        retransmit: Retransmit::OnReconnect,
        deadline: None,
        cancel: None,
    }
}

/// An idle connection survives three lost keepalive probes before the kernel breaks it.
/// Promise: S7
#[test]
fn lost_keepalives_break_no_connection() {
    for secs in [6, 60, 300] {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        break_after(&SockRef::from(&socket), Duration::from_secs(secs), true).unwrap();
        let (idle, interval) =
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap());
        assert!(socket.keepalive().unwrap());
        assert!(idle + 3 * interval < socket.tcp_user_timeout().unwrap().unwrap(), "{secs} s");
    }
}

/// Echoes arguments, reports each connection's peer address, and drops a connection after `calls`
/// calls.
async fn echo(listener: TcpListener, peers: mpsc::UnboundedSender<SocketAddr>, calls: usize) {
    while let Ok((mut stream, peer)) = listener.accept().await {
        let _ = peers.send(peer);
        tokio::spawn(async move {
            let mut records = record::Reader::new(record::Limits::default());
            let mut left = calls;
            while left > 0 {
                while let Some(record) = records.next_record().unwrap() {
                    let Message::Call(header, args) = Message::decode(&record).unwrap() else { panic!() };
                    let mut body = Enc::new();
                    body.opaque(&Dec::new(&args).opaque(usize::MAX).unwrap());
                    let reply = record::frame_in(rpc::reply(header.xid, body), 100_000);
                    stream.write_all(&reply.concat()).await.unwrap();
                    left -= 1;
                }
                if left > 0 && stream.read_buf(&mut records.space()).await.unwrap_or(0) == 0 {
                    return;
                }
            }
            // A linger time of zero makes the drop send RST.
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        });
    }
}

async fn server(calls: usize) -> (SocketAddr, mpsc::UnboundedReceiver<SocketAddr>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (send, peers) = mpsc::unbounded_channel();
    tokio::spawn(echo(listener, send, calls));
    (addr, peers)
}

/// Short and long messages, many at the same time, arrive whole over real sockets.
#[tokio::test]
async fn messages_of_all_sizes() {
    let (addr, _peers) = server(usize::MAX).await;
    let client = client(endpoint(addr));
    client.connect_now().await.unwrap();
    let mut tasks = Vec::new();
    for i in 0..60usize {
        let len = [0, 1, 100, 3000, 70_000, 1 << 20][i % 6] + i;
        let (client, payload) = (client.clone(), Bytes::from(vec![i as u8; len]));
        tasks.push(tokio::spawn(async move {
            let reply = client.call(call(&payload)).await.unwrap();
            assert_eq!(Dec::new(&reply.body).opaque(2 << 20).unwrap(), payload);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// A connection that the server resets is made again from the same port. The server's reply cache
/// then recognises repeated calls.
#[tokio::test]
async fn reconnects_from_the_same_port() {
    let (addr, mut peers) = server(3).await;
    for resvport in [false, true] {
        let client = client(Endpoint { resvport, ..endpoint(addr) });
        for _ in 0..7 {
            let reply = client.call(call(&Bytes::from_static(b"x"))).await.unwrap();
            assert_eq!(reply.body.len(), 8);
        }
        let first = peers.recv().await.unwrap();
        for _ in 0..2 {
            assert_eq!(peers.recv().await.unwrap(), first);
        }
        assert_eq!(client.stats().snapshot().transports[0].local_port, first.port());
    }
}

/// Unsent bytes of a dropped connection are not executed later. The server sees an error and not
/// the remaining bytes.
#[tokio::test]
async fn unsent_bytes_die_with_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let link = TcpConnect::new(endpoint(listener.local_addr().unwrap())).connect(None).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    // The writer stops when both socket buffers are full. The rest of the bytes is then unsent.
    let mut writer = link.writer;
    let mut sent = 0;
    while let Ok(n) = tokio::time::timeout(LIMIT / 10, writer.write(&[7; 1 << 16])).await {
        sent += n.unwrap();
    }
    drop((writer, link.reader));
    let (mut got, mut buf) = (0, vec![0; 1 << 20]);
    let ended = loop {
        match stream.read(&mut buf).await {
            Ok(0) => break None,
            Ok(n) => got += n,
            Err(e) => break Some(e.kind()),
        }
    };
    assert_eq!(ended, Some(ErrorKind::ConnectionReset), "{got} of {sent} bytes");
    assert!(got < sent, "{got} of {sent} bytes");
}

/// With `resvport` the server sees a port below 1024, a different one for each connection. Without
/// root privileges the client warns and uses an ordinary port.
#[tokio::test]
async fn privileged_source_port() {
    let (addr, mut peers) = server(usize::MAX).await;
    let cfg = ClientConfig { nconnect: 4, ..ClientConfig::default() };
    let connect = TcpConnect::new(Endpoint { resvport: true, ..endpoint(addr) });
    let client = Client::new(Arc::new(connect), cfg, Arc::new(Stats::new()));
    client.connect_now().await.unwrap();
    let may_bind = TcpListener::bind("127.0.0.1:1007").await.is_ok();
    let mut ports = Vec::new();
    for _ in 0..4 {
        ports.push(peers.recv().await.unwrap().port());
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 4);
    assert!(!may_bind || ports.iter().all(|p| (512..1024).contains(p)), "{ports:?}");
}

/// Each cause of a failed connection has its own error, without delay.
#[tokio::test]
async fn connect_errors() {
    let kind = |r: Result<(), CallError>| match r {
        Err(CallError::Connect(e)) => e.kind(),
        other => panic!("{other:?}"),
    };
    // The port is bound but not listening, so that no other process can listen on it.
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let refused = bound.local_addr().unwrap().as_socket().unwrap();
    for resvport in [false, true] {
        let result = client(Endpoint { resvport, ..endpoint(refused) }).connect_now().await;
        assert_eq!(kind(result), ErrorKind::ConnectionRefused);
    }
    // A listener with a full backlog lets the handshake of further clients hang.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let addr = full.local_addr().unwrap().as_socket().unwrap();
    let limit = Duration::from_millis(300);
    let mut last = Ok(());
    let mut held = Vec::new();
    for _ in 0..4 {
        let client = client(Endpoint { connect_timeout: limit, ..endpoint(addr) });
        last = client.connect_now().await;
        held.push(client);
        if last.is_err() {
            break;
        }
    }
    assert_eq!(last.as_ref().unwrap_err().to_string(), "no answer within 0.3 s");
    assert_eq!(kind(last), ErrorKind::TimedOut);
}

/// The port sequence contains each privileged port once, except the reserved ports.
#[test]
fn privileged_port_sequence() {
    for start in [0, 1, 400, u16::MAX] {
        let mut ports: Vec<u16> = privileged_ports(start).collect();
        assert!(ports[0] >= RESVPORT_PREFERRED);
        ports.sort_unstable();
        let all: Vec<u16> = (512..=1023).filter(|p| !RESVPORT_AVOID.contains(p)).collect();
        assert_eq!(ports, all);
    }
}
