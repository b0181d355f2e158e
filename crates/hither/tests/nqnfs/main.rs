//! NQNFS of `hither serve` over TCP. The tests cover shared leases, evictions, expiry, restarts of
//! the server, stale reads, and hostile messages.
//!
//! The tests need root. They have their own client. The module [`mount`] tests `hither mount`.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod client;
#[path = "../common/mod.rs"]
mod common;
mod counts;
mod leases;
mod many;
mod mount;
mod writing;

use client::{Cacher, Wire, now};
use common::serve::Serve;
use common::{HITHER, pause, run};
use hither_proto::nqnfs::{
    Asking, Cachetype, Fh, GetattrArgs, LeaseRequest, NullArgs, PROGRAM, ReadArgs, Stat, VERSION, VacatedArgs,
};
use hither_proto::rpc::{OpaqueAuth, call};
use hither_proto::xdr::Enc;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Term of leases in seconds. `SKEW` is the clock skew that the server allows for, and `SLACK` the
/// write slack.
const TERM: u32 = 2;
const SKEW: u64 = 3;
const SLACK: u64 = 1;

/// A term in seconds that does not end during a test. `SHORT` is a term and write slack for a
/// client that may not be scheduled for seconds.
const LONG: u32 = 120;
const SHORT: (u32, u64) = (2, 20);

/// A term in seconds that leaves a busy machine time for some calls before its end. `LATE` is the
/// allowed delay of the effects of that end.
const MIDDLE: u32 = 8;
const LATE: Duration = Duration::from_secs(60);

fn serve() -> Serve {
    serve_with(TERM)
}

/// Starts a server with this lease term in seconds.
fn serve_with(term: u32) -> Serve {
    serve_with_slack(term, SLACK)
}

fn serve_with_slack(term: u32, slack: u64) -> Serve {
    let (term, slack) = (term.to_string(), slack.to_string());
    let words = ["--nqnfs", "--nqnfs-term", &term, "--nqnfs-write-slack", &slack, "-o", "insecure"];
    let mut server = Serve::of_directory().with(&words);
    server.serve();
    server
}

/// Waits until the server evicts a lease.
fn wait_for_eviction(wire: &mut Wire) {
    let began = now();
    while wire.evicted.is_empty() {
        assert!(
            wire.pump(Duration::from_millis(50)) && began.elapsed() < Duration::from_secs(60),
            "no eviction"
        );
    }
}

/// Asks for a lease until the server grants it, and returns the time of that request. The server
/// grants no lease on a file that changed a moment ago.
fn until_cachable(wire: &mut Wire, file: Fh, rw: Cachetype, term: u32) -> Instant {
    let began = now();
    loop {
        let asked = now();
        if wire.lease(file, rw, term).cachable {
            return asked;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no lease");
        pause(100);
    }
}

/// Two clients share read leases on a file. A third client's write evicts both, and returns when
/// both have given up their leases.
#[test]
#[ignore = "needs root"]
fn write_evicts_shared_read_leases() {
    let server = serve_with(LONG);
    let (mut a, mut b, mut w) = (Wire::connect(2049, 1), Wire::connect(2049, 2), Wire::connect(2049, 3));
    let dir = w.mount();
    let f = w.create(dir, "f");
    for wire in [&mut a, &mut b] {
        until_cachable(wire, f, Cachetype::READ, LONG);
    }
    let args = hither_proto::nqnfs::WriteArgs {
        file: f,
        offset: 0,
        append: false,
        data: hither_proto::xdr::Opaque::copy(b"new"),
    };
    let xid = w.send(&Asking::nothing(args));
    for wire in [&mut a, &mut b] {
        wait_for_eviction(wire);
    }
    w.pump(Duration::from_millis(300));
    assert!(w.answer(xid).is_none(), "both still cache the file");
    a.ask(LeaseRequest::None, VacatedArgs { file: f });
    w.pump(Duration::from_millis(300));
    assert!(w.answer(xid).is_none(), "one still caches the file");
    b.ask(LeaseRequest::None, VacatedArgs { file: f });
    while w.pump(Duration::from_millis(50)) && w.answer(xid).is_none() {}
    assert_eq!(a.read(f).unwrap().0, b"new");
    assert_eq!(std::fs::read(server.export("f")).unwrap(), b"new");
}

/// A change by a local program evicts leases, and waits until the holders have given them up.
#[test]
#[ignore = "needs root"]
fn local_programs_make_leases_end() {
    let server = serve_with(LONG);
    let mut a = Wire::connect(2049, 1);
    let dir = a.mount();
    let f = a.create(dir, "f");
    until_cachable(&mut a, f, Cachetype::READ, LONG);
    let before = a.read(f).unwrap().1;
    let path = server.export("f");
    let local = std::thread::spawn(move || std::fs::write(path, "local").unwrap());
    wait_for_eviction(&mut a);
    assert!(!local.is_finished(), "the write waits for the holder of the lease");
    a.ask(LeaseRequest::None, VacatedArgs { file: f });
    local.join().unwrap();
    let (bytes, revision) = a.read(f).unwrap();
    assert_eq!(bytes, b"local");
    assert!(revision > before);
    // Without a lease no client is notified, but the revision shows the change.
    std::fs::write(server.export("f"), "again").unwrap();
    assert!(a.read(f).unwrap().1 > revision);
}

/// Waits for another thread's call, which returns only when the lease was given up.
fn gives_up<T>(wire: &mut Wire, file: Fh, delayed: Option<&[u8]>, other: std::thread::JoinHandle<T>) -> T {
    wait_for_eviction(wire);
    assert!(!other.is_finished(), "a client still caches the file");
    if let Some(bytes) = delayed {
        wire.write(file, LeaseRequest::None, bytes).unwrap();
    }
    wire.ask(LeaseRequest::None, VacatedArgs { file });
    wire.evicted.clear();
    let began = now();
    while !other.is_finished() && began.elapsed() < Duration::from_secs(30) {
        wire.pump(Duration::from_millis(20));
    }
    other.join().unwrap()
}

/// A read by an NFSv3 or NFSv4 mount gets data that an NQNFS client delayed. A write by such a
/// mount ends read leases.
#[test]
#[ignore = "needs root"]
fn nfs_mounts_end_write_leases() {
    let server = serve_with(LONG);
    let mut a = Wire::connect(2049, 1);
    let dir = a.mount();
    for version in ["3", "4.1", "4.2"] {
        let mnt = server.mnt(version);
        server.mount(&format!("vers={version}"), &mnt).ok();
        let (f, path) = (a.create(dir, version), mnt.join(version));
        a.write(f, LeaseRequest::None, b"old").unwrap();
        until_cachable(&mut a, f, Cachetype::WRITE, LONG);
        let name = path.clone();
        let other = std::thread::spawn(move || std::fs::read(name).unwrap());
        assert_eq!(gives_up(&mut a, f, Some(b"delayed"), other), b"delayed", "{version}");
        until_cachable(&mut a, f, Cachetype::READ, LONG);
        let before = a.read(f).unwrap().1;
        let other = std::thread::spawn(move || std::fs::write(path, "by others").unwrap());
        gives_up(&mut a, f, None, other);
        let (bytes, revision) = a.read(f).unwrap();
        assert_eq!(bytes, b"by others", "{version}");
        assert!(revision > before);
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
    }
}

/// The leases of a killed client expire, and its late write is refused.
#[test]
#[ignore = "needs root"]
fn killed_client_leases_expire() {
    let _server = serve();
    let (mut w, mut r) = (Wire::connect(2049, 1), Wire::connect(2049, 2));
    let dir = w.mount();
    let f = w.create(dir, "f");
    w.write(f, LeaseRequest::None, b"old").unwrap();
    let asked = until_cachable(&mut w, f, Cachetype::WRITE, TERM);
    let began = now();
    // A killed process leaves only the end of its connections.
    drop(w);
    while r.read(f) == Err(Stat::TRYLATER) {
        pause(50);
    }
    let (waited, least) = (began.elapsed(), Duration::from_secs(u64::from(TERM) + SKEW + SLACK));
    assert!(
        asked.elapsed() + Duration::from_millis(100) > least && waited < least + LATE,
        "{:?}, {waited:?}",
        asked.elapsed()
    );
    let mut w = Wire::connect(2049, 1);
    assert_eq!(w.write(f, LeaseRequest::None, b"late").err(), Some(Stat::EXPIRED));
    assert_eq!(r.read(f).unwrap().0, b"old");
}

/// A restarted server lets clients send delayed writes first. It refuses reads and new writes until
/// old leases have expired.
#[test]
#[ignore = "needs root"]
fn restarted_server_prefers_delayed_writes() {
    let mut server = serve_with(MIDDLE);
    let mut w = Wire::connect(2049, 1);
    let dir = w.mount();
    let f = w.create(dir, "f");
    let revision = w.write(f, LeaseRequest::None, b"one").unwrap().rev;
    until_cachable(&mut w, f, Cachetype::WRITE, MIDDLE);
    server.kill();
    let starts = now();
    server.serve();
    let began = now();
    let (mut w, mut r) = (Wire::connect(2049, 1), Wire::connect(2049, 2));
    assert_eq!(r.read(f), Err(Stat::TRYLATER));
    assert_eq!(r.write(f, LeaseRequest::Write(MIDDLE), b"fresh").err(), Some(Stat::TRYLATER));
    assert!(w.write(f, LeaseRequest::None, b"delayed").unwrap().rev > revision);
    let read = loop {
        match r.read(f) {
            Err(Stat::TRYLATER) => pause(100),
            read => break read.unwrap(),
        }
    };
    assert_eq!(read.0, b"delayed");
    // The waiting time is that of the default term, because no client has asked for a longer lease.
    let (waited, least) = (began.elapsed(), Duration::from_secs(u64::from(MIDDLE) + SKEW + SLACK));
    assert!(starts.elapsed() > least && waited < least + LATE, "{:?}, {waited:?}", starts.elapsed());
    // After an orderly end without leases the server does not wait.
    pause((u64::from(2 * MIDDLE) + SKEW) * 1000);
    drop((w, r));
    assert_eq!(server.stop(), 0);
    server.serve();
    assert_eq!(Wire::connect(2049, 2).read(f).unwrap().0, b"delayed");
}

/// Three clients cache files and delay writes. No read returns a stale number.
#[test]
#[ignore = "needs root"]
fn caching_clients_read_nothing_stale() {
    const NAMES: [&str; 3] = ["f0", "f1", "f2"];
    let _server = serve_with_slack(SHORT.0, SHORT.1);
    let truth: Arc<Vec<Mutex<u64>>> = Arc::new(NAMES.iter().map(|_| Mutex::new(0)).collect());
    let (over, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
    let clients = (1..=3u64).map(|number| {
        let (truth, over, next) = (truth.clone(), over.clone(), next.clone());
        std::thread::spawn(move || {
            let mut c = Cacher::new(Wire::connect(2049, number), &NAMES, SHORT.0);
            let (mut random, mut switches) = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0u64);
            while !over.load(SeqCst) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Prefers one file for a while, and sometimes takes another one.
                let n = if random & 31 == 0 {
                    (random >> 8) as usize % 3
                } else {
                    (number + switches) as usize % 3
                };
                switches += u64::from(random >> 40 & 1023 == 0);
                // The holder of the lock is the only user of the file, so a read must show the last
                // write. The other clients give back their leases while they wait.
                let Ok(mut last) = truth[n].try_lock() else {
                    c.serve(Duration::from_millis(1));
                    continue;
                };
                if random >> 20 & 3 == 0 {
                    *last = next.fetch_add(1, SeqCst);
                    c.set(n, *last);
                } else {
                    assert_eq!(c.get(n), *last, "client {number} read something stale");
                }
                drop(last);
                if random >> 32 & 0x7ff == 0 {
                    // The client pauses longer than a lease lasts and obeys no eviction. Its own
                    // clock must show the expired leases.
                    c.serve(Duration::from_millis(1));
                    pause(u64::from(SHORT.0) * 1000 + 300);
                }
            }
            // A running client renews its leases and may delay writes. It sends them all before it
            // ends.
            c.sync();
            (c.here, c.wire.calls)
        })
    });
    let clients: Vec<_> = clients.collect();
    pause(20_000);
    over.store(true, SeqCst);
    let done: Vec<_> = clients.into_iter().map(|c| c.join().unwrap()).collect();
    let [read, written] = done.iter().fold([0; 2], |n, (here, _)| [n[0] + here[0], n[1] + here[1]]);
    let calls = |name| done.iter().map(|(_, calls)| calls.get(name).copied().unwrap_or(0)).sum::<u64>();
    let (vacated, reads, writes) = (calls("VACATED"), calls("READ"), calls("WRITE"));
    println!(
        "{read} reads and {written} writes without a call, {reads} READ, {writes} WRITE, {vacated} VACATED"
    );
    assert!(read > 100 && written > 100 && vacated > 5, "they did not cache, or did not meet");
    let mut judge = Wire::connect(2049, 9);
    let dir = judge.mount();
    for (n, name) in NAMES.iter().enumerate() {
        let file = judge.create(dir, name);
        let bytes = loop {
            match judge.read(file) {
                Err(Stat::TRYLATER) => pause(100),
                read => break read.unwrap().0,
            }
        };
        let last = *truth[n].lock().unwrap();
        assert_eq!(bytes.try_into().map_or(0, u64::from_be_bytes), last, "{name} at the end");
    }
}

/// The server refuses malformed and hostile calls, and goes on serving other clients.
#[test]
#[ignore = "needs root"]
fn hostile_messages_are_refused() {
    let _server = serve();
    let mut good = Wire::connect(2049, 1);
    let dir = good.mount();
    let f = good.create(dir, "f");
    let mut random = 88_172_645_463_325_252u64;
    for round in 0..2000u32 {
        let mut bad = std::net::TcpStream::connect("127.0.0.1:2049").unwrap();
        let mut bytes = Vec::new();
        while bytes.len() < 200 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes.extend(random.to_be_bytes());
        }
        // A valid handle with random bytes before and behind it.
        bytes.splice(4..4, f.bytes());
        bytes[..4].copy_from_slice(&(round % 3).to_be_bytes());
        bytes.truncate((random % 200) as usize);
        let mut args = Enc::new();
        args.raw(&bytes);
        let message = call(round, PROGRAM, VERSION, round % 25, &OpaqueAuth::none(), args);
        let _ = std::io::Write::write_all(&mut bad, &hither_proto::record::frame(message).concat());
        if round % 100 == 0 {
            let ok = good.ask(LeaseRequest::None, GetattrArgs { file: f });
            assert!(ok.into_result().is_ok_and(|ok| ok.1.rev > 0));
        }
    }
    // A client that neither answers nor reads delays others no longer than its lease lasts.
    let mut deaf = Wire::connect(2049, 5);
    until_cachable(&mut deaf, f, Cachetype::READ, TERM);
    let began = now();
    while good.write(f, LeaseRequest::Write(TERM), b"new").err() == Some(Stat::TRYLATER) {}
    assert!(began.elapsed() < Duration::from_secs(u64::from(TERM) + SKEW) + LATE);
    let xid = good.send(&Asking::nothing(ReadArgs { file: f, offset: u64::MAX, count: u32::MAX }));
    while good.pump(Duration::from_millis(20)) {
        if let Some(body) = good.answer(xid) {
            assert_eq!(body.len() % 4, 0);
            break;
        }
    }
    good.call(&NullArgs {});
}

/// Without `--nqnfs` the server answers PROG_UNAVAIL.
#[test]
#[ignore = "needs root"]
fn nqnfs_is_off_by_default() {
    let mut server = Serve::of_directory();
    server.serve();
    let mut stream = std::net::TcpStream::connect("127.0.0.1:2049").unwrap();
    let message = call(1, PROGRAM, VERSION, 0, &OpaqueAuth::none(), Enc::new());
    std::io::Write::write_all(&mut stream, &hither_proto::record::frame(message).concat()).unwrap();
    let mut reply = [0; 28];
    std::io::Read::read_exact(&mut stream, &mut reply).unwrap();
    // Accepted, no verifier, PROG_UNAVAIL.
    assert_eq!(reply[12..28], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}
