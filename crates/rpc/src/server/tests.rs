//! A test service with nine procedures, with clients that behave and clients that misbehave.

use super::*;
use hither_proto::record;
use hither_proto::rpc::{
    AcceptStat, AuthFlavor, DeniedReply, Message, OpaqueAuth, ReplyBody, ReplyHeader, VersionRange, call,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;

mod tls;

const PROG: u32 = 400_000;

/// Procedures: 0 does nothing. 1 waits until 2 is called. 2 releases one call of 1. 3 panics. 4
/// returns as many bytes as the argument says. 5 calls the client. 6 uses the only worker for a
/// millisecond. 7 returns the bytes of a pipe and a word after them. 8 calls the client and does
/// not wait for the answer. 9 is 1 with memory for as many bytes as the argument says.
#[derive(Default)]
struct Echo {
    work: tokio::sync::Mutex<()>,
    gate: Notify,
    running: AtomicU32,
    /// Calls of 9 that have their memory.
    begun: AtomicU32,
    closed: AtomicU32,
    /// Milliseconds for which the last call of 2 had waited.
    waited_ms: AtomicU32,
    /// Calls of 8 that the client did not answer.
    unanswered: AtomicU32,
    pace: Option<Pace>,
}

impl Service for Echo {
    fn programs(&self) -> &[Program] {
        &[Program { number: PROG, low: 3, high: 4 }]
    }

    fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    fn call(self: Arc<Self>, call: Incoming) -> BoxFuture<'static, Outcome> {
        Box::pin(async move {
            self.running.fetch_add(1, Relaxed);
            match call.proc {
                0 => Outcome::Done(Enc::new()),
                1 => {
                    self.gate.notified().await;
                    Outcome::Done(Enc::new())
                }
                2 => {
                    self.waited_ms.store(call.room.waited().as_millis() as u32, Relaxed);
                    self.gate.notify_one();
                    Outcome::Done(Enc::new())
                }
                3 => panic!("a bug of the service"),
                4 => {
                    let Some(len) = call.args.first_chunk().map(|b| u32::from_be_bytes(*b)) else {
                        return Outcome::GarbageArgs;
                    };
                    call.room.expect(len as usize).await;
                    let mut out = Enc::new();
                    out.opaque(&vec![7; len as usize].into());
                    Outcome::Done(out)
                }
                5 => {
                    let back =
                        CallBack { prog: 9, vers: 1, proc: 1, cred: OpaqueAuth::none(), args: Enc::new() };
                    match call.peer.call(back, Duration::from_secs(5)).await {
                        Ok(body) => {
                            let mut out = Enc::new();
                            out.raw(&body);
                            Outcome::Done(out)
                        }
                        Err(_) => Outcome::SystemErr,
                    }
                }
                6 => {
                    let _work = self.work.lock().await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    Outcome::Done(Enc::new())
                }
                7 => {
                    let len = call.args.first_chunk().map_or(0, |b| u32::from_be_bytes(*b)) as usize;
                    call.room.expect(len).await;
                    let (mut before, mut after) = (Enc::new(), Enc::new());
                    before.u32(len as u32);
                    after.u32(0x600d);
                    Outcome::Piped(before, Box::new(Pipe::with(len)), after)
                }
                8 => {
                    tokio::spawn(async move {
                        let back = CallBack {
                            prog: 9,
                            vers: 1,
                            proc: 1,
                            cred: OpaqueAuth::none(),
                            args: Enc::new(),
                        };
                        if call.peer.call(back, Duration::from_secs(60)).await.is_err() {
                            self.unanswered.fetch_add(1, Relaxed);
                        }
                    });
                    tokio::task::yield_now().await;
                    Outcome::Done(Enc::new())
                }
                9 => {
                    let len = call.args.first_chunk().map_or(0, |b| u32::from_be_bytes(*b)) as usize;
                    call.room.expect(len).await;
                    self.begun.fetch_add(1, Relaxed);
                    self.gate.notified().await;
                    Outcome::Done(Enc::new())
                }
                _ => Outcome::ProcUnavail,
            }
        })
    }

    fn closed(&self, _: &Peer) {
        self.closed.fetch_add(1, Relaxed);
    }
}

#[derive(Debug)]
struct Pipe {
    from: OwnedFd,
    len: usize,
}

impl Pipe {
    fn with(len: usize) -> Self {
        let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        rustix::pipe::fcntl_setpipe_size(&to, 1 << 20).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| (i / 3) as u8).collect();
        assert_eq!(rustix::io::write(&to, &bytes), Ok(len));
        Self { from, len }
    }
}

impl Piped for Pipe {
    fn fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }

    fn len(&self) -> usize {
        self.len
    }
}

struct Wire<S = DuplexStream> {
    stream: S,
    records: record::Reader,
}

impl Wire {
    fn new(acceptor: &Acceptor) -> Self {
        Self::from(acceptor, "192.0.2.1:700")
    }

    fn from(acceptor: &Acceptor, addr: &str) -> Self {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (reader, writer) = tokio::io::split(far);
        let addr = addr.parse().unwrap();
        acceptor.serve(reader, writer, addr, addr);
        Self::over(near)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    fn over(stream: S) -> Self {
        Self { stream, records: record::Reader::new(Default::default()) }
    }

    async fn send(&mut self, message: Enc) {
        self.stream.write_all(&record::frame(message).concat()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    async fn ask(&mut self, xid: u32, vers: u32, proc: u32, args: &[u8]) {
        let mut body = Enc::new();
        body.raw(args);
        self.send(call(xid, PROG, vers, proc, &OpaqueAuth::none(), body)).await;
    }

    /// The next message; `None` when the server has closed the connection.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(record) = self.records.next_record().unwrap() {
                return Some(Message::decode(&record).unwrap());
            }
            match self.stream.read_buf(&mut self.records.space()).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn stat(&mut self) -> AcceptStat {
        match self.next().await {
            Some(Message::Reply(ReplyHeader { body: ReplyBody::Accepted(a), .. }, _)) => a.stat,
            other => panic!("{other:?}"),
        }
    }
}

fn acceptor(limits: ServerLimits) -> (Acceptor, Arc<Echo>) {
    let service = Arc::new(Echo::default());
    (Acceptor::new(service.clone(), limits), service)
}

/// Two calls in progress are both answered, in any order.
#[tokio::test]
async fn server_replies_in_any_order() {
    let (acceptor, _) = acceptor(ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 1, &[]).await;
    wire.ask(2, 3, 2, &[]).await;
    let mut xids = [wire.next().await.unwrap().xid(), wire.next().await.unwrap().xid()];
    xids.sort_unstable();
    assert_eq!(xids, [1, 2]);
    drop(wire);
    while acceptor.connections() > 0 {
        tokio::task::yield_now().await;
    }
}

/// The server answers RPC's own errors: unknown programs, versions, procedures, arguments,
/// credentials and RPC versions. A panic of the service is answered SYSTEM_ERR.
#[tokio::test]
async fn rpc_errors_are_answered() {
    let (acceptor, _) = acceptor(ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.send(call(1, PROG + 1, 3, 0, &OpaqueAuth::none(), Enc::new())).await;
    assert_eq!(wire.stat().await, AcceptStat::ProgUnavail);
    wire.ask(2, 2, 0, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::ProgMismatch(VersionRange { low: 3, high: 4 }));
    wire.ask(3, 4, 99, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::ProcUnavail);
    wire.ask(4, 4, 4, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::GarbageArgs);
    wire.ask(5, 4, 3, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::SystemErr);
    for (flavor, body, why) in [
        (AuthFlavor::SYS, &b"nonsense"[..], AuthStat::BADCRED),
        (AuthFlavor::GSS, b"", AuthStat::TOOWEAK),
        (AuthFlavor::SHORT, b"", AuthStat::REJECTEDCRED),
    ] {
        let cred = OpaqueAuth { flavor, body: body.into() };
        wire.send(call(6, PROG, 3, 1, &cred, Enc::new())).await;
        let Some(Message::Reply(header, _)) = wire.next().await else { panic!("no reply") };
        assert_eq!(header.body, ReplyBody::Denied(DeniedReply::AuthError(why)));
    }
    let mut old = Enc::new();
    [7, 0, 1, PROG, 3, 0].into_iter().for_each(|v| old.u32(v));
    wire.send(old).await;
    let Some(Message::Reply(header, _)) = wire.next().await else { panic!("no reply") };
    let versions = VersionRange { low: 2, high: 2 };
    assert_eq!(header.body, ReplyBody::Denied(DeniedReply::RpcMismatch(versions)));
}

/// The server drops a connection for a record beyond the limit, and for a message that is not RPC.
/// It also drops one for a record that stays incomplete too long.
#[tokio::test(start_paused = true)]
async fn misbehaving_client_is_disconnected() {
    let limits = ServerLimits { record_max_bytes: 1000, ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    // A record beyond the limit, a message that is not RPC, and an incomplete record.
    for (i, bytes) in
        [&b"\x80\x00\x10\x00"[..], b"\x80\0\0\x04abcd", b"\x80\0\0\x10abcd"].into_iter().enumerate()
    {
        let mut wire = Wire::new(&acceptor);
        wire.stream.write_all(bytes).await.unwrap();
        assert!(wire.next().await.is_none());
        while service.closed.load(Relaxed) <= i as u32 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(acceptor.connections(), 0);
}

/// A client calls and does not read its replies. A few replies wait, no more calls are executed,
/// and the connection ends after the stall time.
#[tokio::test(start_paused = true)]
async fn nonreading_client_is_dropped() {
    let limits = ServerLimits { calls_max: 4, queued_max_bytes: 1 << 20, ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    let mut wire = Wire::new(&acceptor);
    let mut other = Wire::new(&acceptor);
    for xid in 0..64 {
        wire.ask(xid, 3, 4, &(1u32 << 20).to_be_bytes()).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(service.running.load(Relaxed) <= 6, "{:?} were executed", service.running);
    other.ask(1, 3, 0, &[]).await;
    assert_eq!(other.stat().await, AcceptStat::Success);
    tokio::time::sleep(ServerLimits::default().stall * 2).await;
    assert_eq!(acceptor.connections(), 1);
}

/// Connections that never read hold no more memory than the limit, all together. Other clients of
/// their address and of other addresses are still answered.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn unread_replies_stay_within_the_budget() {
    const LIMIT: usize = 64 << 20;
    let limits = ServerLimits { memory_max_bytes: LIMIT, ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    let mut flood = Vec::new();
    for n in 0..200 {
        let mut wire = Wire::new(&acceptor);
        for xid in 0..16 {
            // Half of the connections also send part of a long call and stop.
            if xid == 15 && n % 2 == 0 {
                wire.stream.write_all(b"\x80\x10\0\0abcd").await.unwrap()
            } else {
                wire.ask(xid, 3, 4, &(1u32 << 20).to_be_bytes()).await
            }
        }
        flood.push(wire);
        assert!(acceptor.memory_bytes() <= LIMIT);
    }
    let worst = Arc::new(AtomicU32::new(0));
    let ask = async |addr: &str, bytes: u32| {
        let mut wire = Wire::from(&acceptor, addr);
        for xid in 0..20 {
            let begun = Instant::now();
            wire.ask(xid, 3, 4, &bytes.to_be_bytes()).await;
            assert_eq!(wire.stat().await, AcceptStat::Success);
            worst.fetch_max(begun.elapsed().as_millis() as u32, Relaxed);
            assert!(acceptor.memory_bytes() <= LIMIT, "{} bytes", acceptor.memory_bytes());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        worst.swap(0, Relaxed)
    };
    // Calls from another address, and small calls from any address, are answered at once.
    assert_eq!(ask("192.0.2.2:700", 1 << 20).await, 0);
    assert_eq!(ask("192.0.2.1:701", 4096).await, 0);
    // Large calls of the same address are answered when the stalled connections have ended.
    let large = ask("192.0.2.1:702", 1 << 20).await;
    assert!(large <= 1500, "{large} ms");
    assert!(service.closed.load(Relaxed) > 0);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!((acceptor.connections(), acceptor.memory_bytes()), (0, 0));
    assert!(acceptor.global.budget.is_clear());
}

/// An idle connection ends to make room for a new one. The oldest one of an address at its limit
/// ends, or of the address with the most connections. Connections with calls in progress stay.
/// Promise: S7
#[tokio::test]
async fn oldest_idle_connection_gives_way() {
    let limits = ServerLimits { connections_max: 8, ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    let connect = |addr: &str| {
        let room = acceptor.global.make_room(addr.parse::<SocketAddr>().unwrap().ip());
        room.then(|| Wire::from(&acceptor, addr))
    };
    let settle = async |count: usize| {
        while acceptor.connections() > count {
            tokio::task::yield_now().await;
        }
    };
    let mut busy = connect("192.0.2.1:1").unwrap();
    busy.ask(1, 3, 1, &[]).await;
    let mut idle: Vec<_> = (2..5).map(|port| connect(&format!("192.0.2.1:{port}")).unwrap()).collect();
    idle[0].ask(1, 3, 0, &[]).await;
    assert_eq!(idle[0].stat().await, AcceptStat::Success);
    // The address is at its half. The second connection ends, because the first was active later.
    idle.push(connect("192.0.2.1:5").unwrap());
    settle(4).await;
    assert!(idle[1].next().await.is_none());
    // All connections are in use. A connection of the address with the most connections ends.
    let mut others: Vec<_> = (0..4).map(|n| connect(&format!("192.0.2.{}:1", 10 + n)).unwrap()).collect();
    let mut late = connect("192.0.2.99:1").unwrap();
    settle(8).await;
    assert!(idle[2].next().await.is_none());
    late.ask(1, 3, 2, &[]).await;
    assert_eq!(late.stat().await, AcceptStat::Success);
    assert_eq!(busy.stat().await, AcceptStat::Success);
    for wire in others.iter_mut().chain([&mut idle[0]]) {
        wire.ask(2, 3, 0, &[]).await;
        assert_eq!(wire.stat().await, AcceptStat::Success);
    }
    // No connection of the address is idle.
    drop((busy, idle, others, late));
    settle(0).await;
    let mut all = Vec::new();
    let running = service.running.load(Relaxed);
    for port in 1..5 {
        let mut wire = connect(&format!("192.0.2.1:{port}")).unwrap();
        wire.ask(1, 3, 1, &[]).await;
        all.push(wire);
    }
    while service.running.load(Relaxed) < running + 4 {
        tokio::task::yield_now().await;
    }
    assert!(connect("192.0.2.1:9").is_none());
}

/// Many connections of one address share the turns of one address. A call from another address
/// waits for those turns only.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn one_address_shares_its_turns() {
    let limits = ServerLimits { calls_max: 64, host_calls_max: 100, ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    let mut flood = Vec::new();
    for _ in 0..50 {
        let mut wire = Wire::new(&acceptor);
        for xid in 0..64 {
            wire.ask(xid, 3, 6, &[]).await;
        }
        flood.push(wire);
    }
    let mut other = Wire::from(&acceptor, "192.0.2.2:700");
    let begun = Instant::now();
    other.ask(1, 3, 6, &[]).await;
    assert_eq!(other.stat().await, AcceptStat::Success);
    assert!(begun.elapsed() <= Duration::from_millis(220), "{:?}", begun.elapsed());
    for wire in &mut flood {
        for _ in 0..64 {
            assert_eq!(wire.stat().await, AcceptStat::Success);
        }
    }
    assert_eq!(service.running.load(Relaxed), 50 * 64 + 1);
    drop((flood, other));
    while acceptor.connections() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(acceptor.global.hosts.lock().is_empty());
}

/// A service learns for how long a call waited for its turn.
#[tokio::test(start_paused = true)]
async fn service_sees_wait_for_turn() {
    let (acceptor, service) = acceptor(ServerLimits { host_calls_max: 1, ..ServerLimits::default() });
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 1, &[]).await;
    wire.ask(2, 3, 2, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    assert_eq!(u128::from(service.waited_ms.load(Relaxed)), HOST_TURN.as_millis());
    assert_eq!(wire.stat().await, AcceptStat::Success);
    wire.ask(3, 3, 2, &[]).await;
    assert_eq!(wire.stat().await, AcceptStat::Success);
    assert_eq!(service.waited_ms.load(Relaxed), 0);
}

/// A call gives its turn back after [`HOST_TURN`]. Slow calls do not block the other connections of
/// their address.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn slow_calls_give_their_turn_back() {
    let (acceptor, _) = acceptor(ServerLimits { host_calls_max: 2, ..ServerLimits::default() });
    let mut stuck = Wire::new(&acceptor);
    for xid in 0..4 {
        stuck.ask(xid, 3, 1, &[]).await;
    }
    let mut other = Wire::new(&acceptor);
    let begun = Instant::now();
    for xid in 0..3 {
        other.ask(xid, 3, 0, &[]).await;
        assert_eq!(other.stat().await, AcceptStat::Success);
    }
    assert!(begun.elapsed() <= 3 * HOST_TURN, "{:?}", begun.elapsed());
}

/// Few calls with large replies execute at once. One that waits for a disk or another server counts
/// for [`LARGE_TURN`] only. Small calls do not wait for them.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn large_calls_take_turns() {
    const LARGE: [u8; 4] = (200_u32 << 10).to_be_bytes();
    let (acceptor, service) = acceptor(ServerLimits { large_calls_max: 2, ..ServerLimits::default() });
    let (mut large, mut small) = (Wire::new(&acceptor), Wire::new(&acceptor));
    for xid in 0..7 {
        large.ask(xid, 3, 9, &LARGE).await;
    }
    let begun = Instant::now();
    small.ask(1, 3, 9, &1000_u32.to_be_bytes()).await;
    let passed = |time| tokio::time::sleep_until(begun + time);
    passed(LARGE_TURN / 2).await;
    assert_eq!(service.begun.load(Relaxed), 3, "two large calls, and the small one");
    passed(LARGE_TURN * 3 / 2).await;
    assert_eq!(service.begun.load(Relaxed), 5);
    // The end of a call is the end of its turn. The first waiters ended their turns before.
    for _ in 0..4 {
        service.gate.notify_one();
    }
    passed(LARGE_TURN * 8 / 5).await;
    assert_eq!(service.begun.load(Relaxed), 6);
    passed(LARGE_TURN * 14 / 5).await;
    assert_eq!(service.begun.load(Relaxed), 8);
    service.gate.notify_waiters();
}

/// A program has many connections with slow calls. Another program at the same address is answered
/// at once, because a part of the turns is reserved for connections that use little time.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn slow_calls_spare_light_connections() {
    let limits = ServerLimits { host_calls_max: 64, ..ServerLimits::default() };
    let (acceptor, _) = acceptor(limits);
    let mut near = Wire::new(&acceptor);
    let mut ask = async |count: u32| {
        let mut worst = Duration::ZERO;
        for xid in 0..count {
            let begun = Instant::now();
            near.ask(xid, 3, 0, &[]).await;
            assert_eq!(near.stat().await, AcceptStat::Success);
            worst = worst.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        worst
    };
    let alone = ask(40).await;
    let mut flood = Vec::new();
    for _ in 0..500 {
        let mut wire = Wire::new(&acceptor);
        for xid in 0..16 {
            wire.ask(xid, 3, 1, &[]).await;
        }
        flood.push(wire);
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let worst = ask(400).await;
    println!("the neighbour waited {alone:?} alone, {worst:?} with others");
    assert!(worst <= alone * 2, "{worst:?}");
}

/// Many connections of one address make small calls. A connection without other calls in progress
/// still gets memory.
/// Promise: S7
#[tokio::test(start_paused = true)]
async fn small_calls_leave_reserved_memory() {
    let limits =
        ServerLimits { memory_max_bytes: 4 << 20, host_calls_max: 1 << 20, ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    let mut flood = Vec::new();
    for _ in 0..100 {
        let mut wire = Wire::new(&acceptor);
        for xid in 0..64 {
            wire.ask(xid, 3, 1, &[]).await;
        }
        flood.push(wire);
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut near = Wire::new(&acceptor);
    let begun = Instant::now();
    for xid in 0..20 {
        near.ask(xid, 3, 0, &[]).await;
        let answered = tokio::time::timeout(Duration::from_secs(60), near.stat()).await;
        assert_eq!(answered.ok(), Some(AcceptStat::Success), "after {:?}", begun.elapsed());
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(service.running.load(Relaxed) > 100 && acceptor.memory_bytes() <= 4 << 20);
}

/// Under a pace, a connection with many calls gets as many turns as a connection with few. Every
/// call is answered.
/// Promise: S12
#[tokio::test(start_paused = true)]
async fn a_pace_is_shared_by_connections() {
    let service = Arc::new(Echo { pace: Some(Pace::new(10, Duration::from_secs(3600))), ..Echo::default() });
    let acceptor = Acceptor::new(service.clone(), ServerLimits::default());
    let mut flood = Wire::new(&acceptor);
    for xid in 0..200 {
        flood.ask(xid, 3, 0, &[]).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!((10..=12).contains(&service.running.load(Relaxed)), "{:?}", service.running);
    // The other connection's call waits behind one call of the flood, not behind all.
    let mut other = Wire::new(&acceptor);
    let begun = Instant::now();
    for xid in 0..5 {
        other.ask(xid, 3, 0, &[]).await;
        assert_eq!(other.stat().await, AcceptStat::Success);
    }
    assert!(begun.elapsed() <= Duration::from_millis(1_250), "{:?}", begun.elapsed());
    for _ in 0..200 {
        assert_eq!(flood.stat().await, AcceptStat::Success);
    }
    assert_eq!(service.running.load(Relaxed), 205);
}

/// At most [`DROPS_LOGGED`] dropped connections are logged in a period. The rest are counted.
#[tokio::test(start_paused = true)]
async fn not_every_dropped_connection_is_logged() {
    let (acceptor, _) = acceptor(ServerLimits::default());
    let addr = "192.0.2.1:700".parse().unwrap();
    for _ in 0..1000 {
        acceptor.global.dropped(addr, "is a test");
    }
    assert_eq!(acceptor.global.drops.lock().more, 1000 - u64::from(DROPS_LOGGED));
    tokio::time::advance(DROPS_WITHIN).await;
    acceptor.global.dropped(addr, "is a test");
    let drops = acceptor.global.drops.lock();
    assert_eq!((drops.logged, drops.more), (1, 0));
}

/// The server calls the client on the client's connection and gets the answer.
#[tokio::test]
async fn the_server_calls_its_client() {
    let (acceptor, _) = acceptor(ServerLimits::default());
    let mut wire = Wire::new(&acceptor);
    wire.ask(1, 3, 5, &[]).await;
    let Some(Message::Call(header, _)) = wire.next().await else { panic!("no call") };
    assert_eq!((header.prog, header.proc), (9, 1));
    let mut body = Enc::new();
    body.u32(42);
    wire.send(hither_proto::rpc::reply(header.xid, body)).await;
    let Some(Message::Reply(header, body)) = wire.next().await else { panic!("no reply") };
    assert_eq!((header.xid, &body[..]), (1, &[0, 0, 0, 42][..]));
}

/// Reads replies of procedures 4 and 7, several at a time, and compares them with the expected
/// bytes.
async fn payloads<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let mut records = record::Reader::new(Default::default());
    let sizes = [1, 65_536, 1 << 20, 100_001, 70_000, 3];
    for round in 0..20 {
        for (i, len) in sizes.iter().enumerate() {
            let mut body = Enc::new();
            body.u32(*len);
            // Replies without a pipe between replies with a pipe.
            let proc = if (i + round).is_multiple_of(3) { 4 } else { 7 };
            let call = call(i as u32, PROG, 3, proc, &OpaqueAuth::none(), body);
            stream.write_all(&record::frame(call).concat()).await.unwrap();
        }
        for _ in sizes {
            let record = loop {
                if let Some(record) = records.next_record().unwrap() {
                    break record;
                }
                assert_ne!(stream.read_buf(&mut records.space()).await.unwrap(), 0);
            };
            let Message::Reply(header, body) = Message::decode(&record).unwrap() else { panic!("no reply") };
            let len = sizes[header.xid as usize] as usize;
            assert_eq!(body[..4], (len as u32).to_be_bytes());
            if (header.xid as usize + round).is_multiple_of(3) {
                assert!(body[4..4 + len].iter().all(|b| *b == 7));
            } else {
                assert!(body[4..4 + len].iter().enumerate().all(|(i, b)| *b == (i / 3) as u8));
                assert_eq!(body[4 + len..], 0x600d_u32.to_be_bytes());
            }
        }
    }
}

/// Payloads in pipes arrive at their place in the reply, over a socket and over another stream.
#[tokio::test]
async fn piped_payloads_keep_their_place() {
    let (acceptor, _) = acceptor(ServerLimits::default());
    let (near, far) = tokio::io::duplex(64 << 10);
    let (reader, writer) = tokio::io::split(far);
    let addr = "192.0.2.1:700".parse().unwrap();
    acceptor.serve(reader, writer, addr, addr);
    payloads(near).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::select! {
        () = acceptor.listen(listener) => panic!("it listens"),
        () = async { payloads(TcpStream::connect(addr).await.unwrap()).await } => {}
    }
}

/// A client that does not read payloads in pipes is dropped after the stall time.
#[tokio::test(start_paused = true)]
async fn unread_piped_payload_drops_client() {
    let limits = ServerLimits { stall: Duration::from_secs(5), ..ServerLimits::default() };
    let (acceptor, service) = acceptor(limits);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let client = async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        for xid in 0..40 {
            let mut body = Enc::new();
            body.u32(1 << 20);
            let call = call(xid, PROG, 3, 7, &OpaqueAuth::none(), body);
            // Writes fail once the server has dropped the connection.
            let _ = stream.write_all(&record::frame(call).concat()).await;
        }
        while service.closed.load(Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = acceptor.listen(listener) => panic!("it listens"),
        () = client => {}
    }
}

/// The orderly end answers the calls in progress and executes no later one. Clients read all
/// replies and then the end of the connection, also when they have sent more calls.
#[tokio::test]
async fn drained_connections_lose_no_reply() {
    const CLIENTS: u32 = 20;
    let (acceptor, service) = acceptor(ServerLimits::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let clients = async {
        let mut wires = Vec::new();
        for _ in 0..=CLIENTS {
            wires.push(Wire::over(TcpStream::connect(addr).await.unwrap()));
        }
        let (_idle, busy) = wires.split_last_mut().unwrap();
        for wire in &mut *busy {
            wire.ask(1, 3, 1, &[]).await;
        }
        while service.running.load(Relaxed) < CLIENTS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let drained = acceptor.drain(Duration::from_secs(60));
        let work = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            for wire in &mut *busy {
                for xid in 2..10 {
                    wire.ask(xid, 3, 0, &[]).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            service.gate.notify_waiters();
            for wire in &mut *busy {
                assert_eq!(wire.next().await.map(|reply| reply.xid()), Some(1));
                assert_eq!(wire.stream.read(&mut [0]).await.unwrap(), 0, "no reset");
            }
        };
        tokio::join!(drained, work);
        assert_eq!((service.running.load(Relaxed), acceptor.connections()), (CLIENTS, 0));
    };
    tokio::join!(acceptor.listen(listener), tokio::time::timeout(Duration::from_secs(30), clients))
        .1
        .expect("connections end soon");
}
