//! A running server under mutated calls. The test records the calls of clients on their way to the
//! server. It changes the calls at random places and sends them again on its own connections and
//! sessions. Meanwhile the bytes of another client are compared.
//!
//! `HITHER_SECONDS` is the duration (`make fuzz-serve`). `HITHER_SEED` is the seed of the random
//! choices.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::{HITHER, Random, record as body_of, run, sh};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most records kept of a client. `RECORD_MAX_BYTES` is the size of the longest kept record.
const RECORDS_MAX: usize = 4000;
const RECORD_MAX_BYTES: usize = 64 << 10;
/// Operations that begin an NFSv4 session, by their numbers (RFC 8881 section 16.2).
const EXCHANGE_ID: u32 = 42;
const CREATE_SESSION: u32 = 43;
const SEQUENCE: u32 = 53;
const RECLAIM_COMPLETE: u32 = 58;
/// Statuses after which the fuzzer begins another session: BADSESSION, BADSLOT, SEQ_MISORDERED,
/// DEADSESSION (RFC 8881 section 15.1).
const NEW_SESSION: [u32; 4] = [10_052, 10_053, 10_063, 10_078];

#[expect(clippy::disallowed_methods, reason = "tests of processes measure in real time")]
fn now() -> Instant {
    Instant::now()
}

type Records = Arc<Mutex<Vec<Vec<u8>>>>;

fn word(raw: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(raw.get(at..at + 4)?.try_into().unwrap()))
}

fn read_record(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let mut mark = [0; 4];
        from.read_exact(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let begin = out.len();
        out.resize(begin + (mark & 0x7fff_ffff) as usize, 0);
        from.read_exact(&mut out[begin..])?;
        if mark >> 31 == 1 {
            return Ok(out);
        }
    }
}

fn write_record(to: &mut TcpStream, record: &[u8]) -> io::Result<()> {
    let mut out = (record.len() as u32 | 1 << 31).to_be_bytes().to_vec();
    out.extend_from_slice(record);
    to.write_all(&out)
}

/// Relays between a client and the server, and records the client's calls.
fn recorder(server: u16) -> (u16, Records) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let records = Records::default();
    let kept = records.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut there) =
                (client.unwrap(), TcpStream::connect(("127.0.0.1", server)).unwrap());
            let (mut back, mut answers) = (client.try_clone().unwrap(), there.try_clone().unwrap());
            let kept = kept.clone();
            std::thread::spawn(move || {
                while let Ok(record) = read_record(&mut client) {
                    if write_record(&mut there, &record).is_err() {
                        break;
                    }
                    let mut kept = kept.lock().unwrap();
                    // Records calls, not replies to callbacks.
                    if word(&record, 4) == Some(0)
                        && record.len() <= RECORD_MAX_BYTES
                        && kept.len() < RECORDS_MAX
                    {
                        kept.push(record);
                    }
                }
                let _ = there.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let _ = io::copy(&mut answers, &mut back);
                let _ = back.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (port, records)
}

/// Offset of a call's arguments, behind its credential and verifier.
fn args_at(record: &[u8]) -> Option<usize> {
    let verf = 32 + (word(record, 28)? as usize).next_multiple_of(4);
    Some(verf + 8 + (word(record, verf + 4)? as usize).next_multiple_of(4))
}

/// The first operation of an NFSv4 compound, and the offset of its arguments.
fn first_op(record: &[u8]) -> Option<(u32, usize)> {
    if (word(record, 12)?, word(record, 16)?, word(record, 20)?) != (100_003, 4, 1) {
        return None;
    }
    let tag = args_at(record)?;
    let op = tag + 4 + (word(record, tag)? as usize).next_multiple_of(4) + 8;
    Some((word(record, op)?, op + 4))
}

/// The results of the first operation in a successful reply. They follow the reply's header, the
/// compound's status, its tag, the number of results, the operation and its status.
fn first_result(reply: &[u8]) -> Option<&[u8]> {
    let verf = 12;
    let at = verf + 8 + (word(reply, verf + 4)? as usize).next_multiple_of(4) + 4;
    let tag = at + 4;
    let result = tag + 4 + (word(reply, tag)? as usize).next_multiple_of(4) + 4;
    let good = word(reply, at - 4)? == 0 && word(reply, result + 4)? == 0;
    if good { reply.get(result + 8..) } else { None }
}

struct Fuzzer {
    port: u16,
    dice: Random,
    corpus: Vec<Vec<u8>>,
    stream: Option<TcpStream>,
    /// Session id and next sequence number of slot 0.
    session: Option<([u8; 16], u32)>,
    answered: u64,
    good: u64,
}

impl Fuzzer {
    fn call(&mut self, record: &[u8]) -> io::Result<Vec<u8>> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.set_write_timeout(Some(Duration::from_secs(30)))?;
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().unwrap();
        write_record(stream, record)?;
        // A call that mutation turned into a reply gets no reply.
        if word(record, 4) == Some(1) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        loop {
            let reply = read_record(stream)?;
            // A reply, not a callback.
            if word(&reply, 4) == Some(1) {
                return Ok(reply);
            }
        }
    }

    /// Begins a session as a recorded client did, under another owner name.
    fn begin_session(&mut self) -> Option<()> {
        let find = |op| self.corpus.iter().find(|r| first_op(r).is_some_and(|(o, _)| o == op)).cloned();
        let (mut exchange, mut create) = (find(EXCHANGE_ID)?, find(CREATE_SESSION)?);
        let at = first_op(&exchange)?.1;
        // The verifier, and the last bytes of the owner's name.
        let owner = at + 12 + word(&exchange, at + 8)? as usize;
        for at in [at, at + 4, owner - 4] {
            exchange[at..at + 4].copy_from_slice(&(self.dice.next() as u32).to_be_bytes());
        }
        let reply = self.call(&exchange).ok()?;
        let result = first_result(&reply)?;
        let at = first_op(&create)?.1;
        create[at..at + 12].copy_from_slice(result.get(..12)?);
        let reply = self.call(&create).ok()?;
        self.session = Some((first_result(&reply)?.get(..16)?.try_into().unwrap(), 1));
        let complete = self.corpus.iter().find(|r| {
            let Some((SEQUENCE, at)) = first_op(r) else { return false };
            word(r, at + 32) == Some(RECLAIM_COMPLETE)
        });
        let mut complete = complete?.clone();
        self.in_session(&mut complete);
        let reply = self.call(&complete).ok()?;
        self.learn(&reply);
        Some(())
    }

    fn in_session(&self, record: &mut [u8]) {
        if let (Some((SEQUENCE, at)), Some((id, seq))) = (first_op(record), self.session)
            && record.len() >= at + 32
        {
            record[at..at + 16].copy_from_slice(&id);
            record[at + 16..at + 20].copy_from_slice(&seq.to_be_bytes());
            record[at + 20..at + 24].copy_from_slice(&[0; 4]);
        }
    }

    fn learn(&mut self, reply: &[u8]) {
        self.answered += 1;
        match (first_result(reply), &mut self.session) {
            (Some(_), Some((_, seq))) => {
                *seq += 1;
                self.good += 1;
            }
            (Some(_), None) => self.good += 1,
            (None, session) if word(reply, 24).is_some_and(|status| NEW_SESSION.contains(&status)) => {
                *session = None
            }
            _ => {}
        }
    }

    fn change(&mut self, record: &mut Vec<u8>) {
        let from = match first_op(record) {
            // A call with a refused session is not executed.
            Some((SEQUENCE, at)) if self.dice.below(20) > 0 => at + 32,
            _ if self.dice.below(10) > 0 => args_at(record).unwrap_or(0),
            _ => 0,
        };
        for _ in 0..=self.dice.below(3) {
            let words = record.len().saturating_sub(from) / 4;
            if words == 0 {
                return;
            }
            let at = from + self.dice.below(words as u64) as usize * 4;
            let was = word(record, at).unwrap();
            let odd = [
                0,
                1,
                u32::MAX,
                i32::MAX as u32,
                1 << 31,
                was ^ 1 << self.dice.below(32),
                was.wrapping_add(1),
                was.wrapping_sub(1),
            ];
            match self.dice.below(12) {
                0..=6 => {
                    let to = odd[self.dice.below(odd.len() as u64) as usize];
                    record[at..at + 4].copy_from_slice(&to.to_be_bytes());
                }
                7 => record[at] ^= 1 << self.dice.below(8),
                8 => record.truncate(at),
                9 => {
                    let again = record[at..].to_vec();
                    record.extend_from_slice(&again[..again.len().min(2048)]);
                }
                10 => {
                    let other = &self.corpus[self.dice.below(self.corpus.len() as u64) as usize];
                    let tail = other[other.len() / 2 / 4 * 4..].to_vec();
                    record.truncate(at);
                    record.extend_from_slice(&tail);
                }
                _ => drop(record.splice(at..at, self.dice.next().to_be_bytes())),
            }
        }
    }

    fn run(mut self, over: &AtomicBool, answered: &AtomicU64, good: &AtomicU64) {
        while !over.load(Ordering::Relaxed) {
            if self.session.is_none() && self.corpus.iter().any(|r| first_op(r).is_some()) {
                let _ = self.begin_session();
            }
            let mut record = self.corpus[self.dice.below(self.corpus.len() as u64) as usize].clone();
            let xid = (self.dice.next() as u32).to_be_bytes();
            record[..4].copy_from_slice(&xid);
            self.in_session(&mut record);
            // One call in eight stays unchanged, after other calls than in the recording.
            if self.dice.below(8) > 0 {
                self.change(&mut record);
            }
            match self.call(&record) {
                Ok(reply) => self.learn(&reply),
                Err(e) => {
                    let waited = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                    assert!(!waited, "no answer in 30 s to {record:02x?}");
                    self.stream = None;
                }
            }
        }
        answered.fetch_add(self.answered, Ordering::Relaxed);
        good.fetch_add(self.good, Ordering::Relaxed);
    }
}

/// Makes every kind of file system call.
fn play(mnt: &Path) {
    let script = format!(
        "cd {} && rm -rf d && mkdir -p d/e && echo text > d/a && dd if=/dev/zero of=d/b bs=4096 count=20 conv=fsync status=none && cat d/a d/b > /dev/null \
         && ln -s ../a d/e/s && ln d/a d/h && mv d/h d/i && chmod 640 d/a && touch -d @1000000 d/a && truncate -s 7 d/b && mkfifo d/p \
         && cp d/a d/c && ls -lR . > /dev/null && readlink d/e/s && df . > /dev/null && (flock -n 9 && echo x >&9) 9> d/l && sync d/b && rm d/c d/i",
        mnt.display()
    );
    sh(&script).ok();
    // Not every mount supports user attributes and holes.
    let _ = run(Command::new("sh").arg("-c").arg(format!(
        "cd {}/d; setfattr -n user.x -v y a; getfattr -d a; fallocate -l 9000 a; fallocate -p -o 0 -l 4096 a; cp --reflink=auto a r; rm r",
        mnt.display()
    )));
}

/// Mutated calls harm no other client of the server.
/// Promise: S7
#[test]
#[ignore = "needs root"]
fn mutated_calls_harm_no_client() {
    let seconds = std::env::var("HITHER_SECONDS").map_or(15, |s| s.parse().unwrap());
    let seed: u64 = std::env::var("HITHER_SEED").map_or(1, |s| s.parse().unwrap());
    let prepared = Serve::prepare();
    let exports = prepared.dir.path().join("a.exports");
    let (fuzzed, kept) = (prepared.export("fuzzed"), prepared.export("kept"));
    for dir in [&fuzzed, &kept] {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let line = |dir: &Path| format!("{} 127.0.0.1(rw,insecure,no_root_squash)\n", dir.display());
    fs::write(&exports, line(&fuzzed) + &line(&kept)).unwrap();
    let mut server = prepared.with(&[
        "--config",
        exports.to_str().unwrap(),
        "--max-memory",
        "64",
        "--max-delegations",
        "100",
    ]);
    server.serve();
    let good_mnt = server.mnt("good");
    server.mount_path("vers=4.2", &kept.display().to_string(), &good_mnt).ok();

    let mut fuzzers = Vec::new();
    for (n, vers) in ["4.2", "3", "4.1"].iter().enumerate() {
        let (port, records) = recorder(server.port);
        let mnt = server.mnt(&format!("recorded-{vers}"));
        let options = format!("retry=0,port={port},mountport={port},vers={vers}");
        let options =
            if vers.starts_with('4') { options.replace(&format!("mountport={port},"), "") } else { options };
        let from = format!("127.0.0.1:{}", fuzzed.display());
        run(Command::new(HITHER).args(["mount", "-o", &options]).arg(from).arg(&mnt)).ok();
        play(&mnt);
        run(Command::new(HITHER).arg("umount").arg(&mnt)).ok();
        let corpus = records.lock().unwrap().clone();
        assert!(corpus.len() > 30, "{vers}: {} calls recorded", corpus.len());
        let dice = Random(seed << 8 | n as u64);
        fuzzers.push(Fuzzer {
            port: server.port,
            dice,
            corpus,
            stream: None,
            session: None,
            answered: 0,
            good: 0,
        });
    }

    let over = Arc::new(AtomicBool::new(false));
    let (answered, good) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = fuzzers
        .into_iter()
        .map(|fuzzer| {
            let (over, answered, good) = (over.clone(), answered.clone(), good.clone());
            std::thread::spawn(move || fuzzer.run(&over, &answered, &good))
        })
        .collect();
    let (began, mut slowest, mut early_kib) = (now(), Duration::ZERO, 0);
    for i in 0_u64.. {
        if began.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        let (from, body) = (now(), body_of(seed, i % 10, i, 50_000));
        let path = good_mnt.join(format!("f{}", i % 10));
        fs::write(&path, &body).unwrap();
        assert!(fs::read(&path).unwrap() == body, "wrong bytes in {}", path.display());
        slowest = slowest.max(from.elapsed());
        if began.elapsed() < Duration::from_secs(seconds / 3) {
            early_kib = server.memory_peak_kib();
        }
    }
    over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    let (answered, good) = (answered.load(Ordering::Relaxed), good.load(Ordering::Relaxed));
    let peak_kib = server.memory_peak_kib();
    println!(
        "{answered} changed calls were answered, {good} well to begin with; {early_kib} KiB after a third, {peak_kib} KiB at most; slowest file {slowest:?}"
    );
    assert!(good > 100 && answered > good, "{good} of {answered}: the calls reach nothing");
    assert!(slowest < Duration::from_secs(20), "a file took {slowest:?}");
    assert!(peak_kib < 256 << 10, "{peak_kib} KiB of memory");
    run(Command::new(HITHER).arg("umount").arg(&good_mnt)).ok();
    assert_eq!(server.stop(), 0, "the server ended in an orderly way");
    let said = server.complaints();
    assert!(!said.contains("panicked"), "{said}");
}
