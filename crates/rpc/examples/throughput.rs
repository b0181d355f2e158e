//! Measures the throughput of the RPC client over loopback, and the cost of its counters.
//!
//! `cargo run --release -p hither-rpc --example throughput [-- small|read|write ...]`
//!
//! The responder runs on its own thread and runtime. Compare ratios rather than single figures:
//! client and responder share the machine's cores.

use bytes::Bytes;
use hither_proto::record;
use hither_proto::rpc::{self, Message};
use hither_proto::xdr::Enc;
use hither_rpc::{Call, Client, ClientConfig, Credential, Endpoint, Retransmit, Stats, TcpConnect};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

const SMALL_BYTES: usize = 100;
const LARGE_BYTES: usize = 1 << 20;

/// Answers procedure 0 with 100 bytes, procedure 1 with 1 MiB, and procedure 2 (a write) with 100
/// bytes.
async fn respond(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (small, large) = (Bytes::from(vec![1; SMALL_BYTES]), Bytes::from(vec![2; LARGE_BYTES]));
    let mut records = record::Reader::new(record::Limits::default());
    loop {
        let mut out = Vec::new();
        while let Ok(Some(record)) = records.next_record() {
            if let Ok(Message::Call(header, _)) = Message::decode(&record) {
                let mut body = Enc::new();
                body.opaque(if header.proc == 1 { &large } else { &small });
                out.extend(record::frame(rpc::reply(header.xid, body)));
            }
        }
        match out.len() {
            0 => {}
            1..=200 => {
                // A small reply leaves in one write.
                if out.iter().map(Bytes::len).sum::<usize>() < 256 << 10 {
                    stream.write_all(&out.concat()).await?;
                } else {
                    for segment in out {
                        stream.write_all(&segment).await?;
                    }
                }
            }
            _ => stream.write_all(&out.concat()).await?,
        }
        if stream.read_buf(&mut records.space()).await? == 0 {
            return Ok(());
        }
    }
}

fn call(proc: u32, args: Enc) -> Call {
    Call {
        prog: 100_003,
        vers: 3,
        proc,
        op: ["GETATTR", "READ", "WRITE"][proc as usize],
        cred: Credential::None,
        args,
        connection: None,
        retransmit: Retransmit::OnReconnect,
        deadline: None,
        cancel: None,
    }
}

/// Calls per second with `width` calls in flight.
async fn rate(client: &Client, proc: u32, width: usize, payload: &Bytes, total: usize) -> f64 {
    let started = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..width {
        let (client, payload) = (client.clone(), payload.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..total / width {
                let mut args = Enc::new();
                args.opaque(&payload);
                client.call(call(proc, args)).await.expect("a reply");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    (total / width * width) as f64 / started.elapsed().as_secs_f64()
}

/// Round trips per second of the same bytes over a bare socket of the same runtime, one call at a
/// time. The client's rate is compared with this rate.
async fn bare_rate(addr: std::net::SocketAddr, proc: u32, payload: &Bytes, total: usize) -> f64 {
    let mut stream = TcpStream::connect(addr).await.expect("the responder listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let mut args = Enc::new();
    args.opaque(payload);
    let none = rpc::OpaqueAuth::none();
    let request = record::frame(rpc::call(1, 100_003, 3, proc, &none, args)).concat();
    let reply_bytes = 4 + 28 + if proc == 1 { LARGE_BYTES } else { SMALL_BYTES };
    let mut reply = vec![0; reply_bytes];
    let started = Instant::now();
    for _ in 0..total {
        stream.write_all(&request).await.expect("the responder reads");
        stream.read_exact(&mut reply).await.expect("a reply");
    }
    total as f64 / started.elapsed().as_secs_f64()
}

fn main() {
    let (send, recv) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        rt.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            send.send(listener.local_addr().expect("an address")).expect("main waits");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(respond(stream));
            }
        });
    });
    let addr = recv.recv().expect("the responder listens");
    for workers in [1, 2] {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
        rt.expect("a runtime").block_on(measure(addr, workers));
    }
}

async fn measure(addr: std::net::SocketAddr, workers: usize) {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| name.starts_with(o));
    let connect_timeout = Duration::from_secs(5);
    let endpoint = Endpoint { addr, resvport: false, keepalive: true, connect_timeout };
    let stats = Arc::new(Stats::new());
    let (small, large) = (Bytes::from(vec![3; SMALL_BYTES]), Bytes::from(vec![4; LARGE_BYTES]));
    for nconnect in [1, 2] {
        let cfg = ClientConfig { nconnect, ..ClientConfig::default() };
        let connect = Arc::new(TcpConnect::new(endpoint.clone()));
        let client = Client::new(connect, cfg, stats.clone());
        client.connect_now().await.expect("a connection");
        rate(&client, 0, 1, &small, 2_000).await;
        println!("-- {workers} worker threads, nconnect={nconnect}");
        if nconnect == 1 {
            for (name, proc, payload, total) in
                [("small", 0, &small, 50_000), ("read", 1, &small, 4_000), ("write", 2, &large, 4_000)]
            {
                if wanted(name) {
                    // The client runs as a task, because the runtime's main thread is slower.
                    let payload = payload.clone();
                    let bare = tokio::spawn(async move { bare_rate(addr, proc, &payload, total).await });
                    let r = bare.await.expect("no panic");
                    println!("{name}: bare socket, 1 in flight: {r:8.0}/s, {:6.2} us each", 1e6 / r);
                }
            }
        }
        for width in [1, 8, 64] {
            if wanted("small") {
                let r = rate(&client, 0, width, &small, 50_000).await;
                println!("small: 100 bytes, {width:2} in flight: {r:8.0} calls/s, {:6.2} us each", 1e6 / r);
            }
        }
        for (name, proc, payload) in [("read", 1, &small), ("write", 2, &large)] {
            for width in [1, 8] {
                if wanted(name) {
                    let r = rate(&client, proc, width, payload, 4_000).await;
                    println!("{name}: 1 MiB, {width} in flight: {r:8.0} MiB/s");
                }
            }
        }
        client.shutdown();
    }
}
