//! A client of NQNFS over TCP that makes one call at a time. `hither_lease::Holder` decides about
//! caching and delayed writes.
//!
//! A file holds one number of eight bytes. The client obeys evictions whenever it waits for
//! something.

use crate::common::pause;
use bytes::Bytes;
use hither_lease::{FileKey, Grant, Holder, HolderAction, HolderConfig, Kind, Op, Request};
use hither_proto::nqnfs::mount1::{Fhstatus, Mnt1Args};
use hither_proto::nqnfs::*;
use hither_proto::record;
use hither_proto::rpc::{AuthSys, Message, OpaqueAuth, Procedure, ReplyHeader, call};
use hither_proto::xdr::{Dec, Enc, Opaque};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest wait for an answer. It exceeds the longest lease and the time after it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to the server.
pub struct Wire {
    stream: TcpStream,
    records: record::Reader,
    xid: u32,
    replies: HashMap<u32, Bytes>,
    /// Files whose leases the server evicted.
    pub evicted: Vec<Fh>,
    /// Number of calls sent, by procedure.
    pub calls: HashMap<&'static str, u64>,
}

impl Wire {
    /// Connects, and sends HELLO with `number` unless it is 0.
    pub fn connect(port: u16, number: u64) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        let records = record::Reader::new(Default::default());
        let xid = (number as u32).wrapping_mul(0x1000_0000);
        let (replies, evicted, calls) = Default::default();
        let mut wire = Self { stream, records, xid, replies, evicted, calls };
        if number > 0 {
            let hello = HelloArgs { client: number, fh_max: 64, transfer_max: 1 << 20 };
            wire.ask(LeaseRequest::None, hello).into_result().unwrap();
        }
        wire
    }

    /// The handle of the exported directory.
    pub fn mount(&mut self) -> Fh {
        match self.call(&Mnt1Args { dirpath: Opaque::copy(b"/") }) {
            Fhstatus::Granted(fh) => fh,
            Fhstatus::Refused(errno) => panic!("MNT: {errno}"),
        }
    }

    /// Sends bytes as one record.
    pub fn send_raw(&mut self, message: Enc) {
        self.stream.write_all(&record::frame(message).concat()).unwrap();
    }

    /// Handles messages that have arrived, or arrive within `wait`. Returns false when the server
    /// has closed the connection.
    pub fn pump(&mut self, wait: Duration) -> bool {
        self.stream.set_read_timeout(Some(wait.max(Duration::from_micros(100)))).unwrap();
        let mut buffer = vec![0; 1 << 16];
        let len = match self.stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(len) => len,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return true,
            Err(_) => return false,
        };
        let mut input = &buffer[..len];
        while let Some(message) = self.records.feed(&mut input).unwrap() {
            match Message::decode(&message).unwrap() {
                Message::Reply(header, body) => {
                    assert!(header.is_success(), "{header:?}");
                    self.replies.insert(header.xid, body);
                }
                Message::Call(header, body) => {
                    assert_eq!((header.prog, header.vers, header.proc), (PROGRAM, VERSION, 21));
                    self.evicted.push(Dec::all::<EvictedArgs>(&body).unwrap().file);
                    self.send_raw(Enc::of(&ReplyHeader::success(header.xid)));
                }
                Message::UnknownVersion { .. } => panic!("no RPC"),
            }
        }
        true
    }

    /// Sends a call and returns its xid.
    pub fn send<P: Procedure>(&mut self, args: &P) -> u32 {
        self.xid += 1;
        *self.calls.entry(P::NAME).or_default() += 1;
        let cred =
            AuthSys { stamp: 0, machinename: Default::default(), uid: 0, gid: 0, gids: Vec::new().into() };
        self.send_raw(call(self.xid, P::PROG, P::VERS, P::PROC, &OpaqueAuth::sys(&cred), Enc::of(args)));
        self.xid
    }

    /// The answer to a call, if it has arrived.
    pub fn answer(&mut self, xid: u32) -> Option<Bytes> {
        self.replies.remove(&xid)
    }

    /// Makes a call and returns its answer. Evictions are only recorded meanwhile.
    pub fn call<P: Procedure>(&mut self, args: &P) -> P::Reply {
        let xid = self.send(args);
        let began = now();
        loop {
            if let Some(body) = self.answer(xid) {
                return Dec::all(&body).unwrap();
            }
            assert!(
                self.pump(Duration::from_secs(1)),
                "the connection ended before the answer to {}",
                P::NAME
            );
            assert!(began.elapsed() < PATIENCE, "no answer to {}", P::NAME);
        }
    }

    /// As [`Wire::call`], with a lease request.
    pub fn ask<A>(&mut self, lease: LeaseRequest, args: A) -> <Asking<A> as Procedure>::Reply
    where
        Asking<A>: Procedure,
    {
        self.call(&Asking { lease, args })
    }

    /// Creates a file, or opens an existing one.
    pub fn create(&mut self, dir: Fh, name: &str) -> Fh {
        let r#where = Diropargs { dir, name: Opaque::copy(name.as_bytes()) };
        let attributes = Sattr { mode: 0o644, ..Sattr::NOTHING };
        loop {
            let args = CreateArgs { r#where: r#where.clone(), attributes };
            match self.ask(LeaseRequest::None, args).into_result() {
                // The file exists, and a client may have delayed writes to it.
                Err(Stat::TRYLATER) => pause(100),
                made => return made.unwrap().1.file,
            }
        }
    }

    /// Calls GETLEASE until the server no longer answers "try later".
    pub fn lease(&mut self, file: Fh, rw: Cachetype, duration: u32) -> GetleaseOk {
        loop {
            match self.ask(LeaseRequest::None, GetleaseArgs { file, rw, duration }).into_result() {
                Err(Stat::TRYLATER) => pause(100),
                ok => return ok.unwrap().1,
            }
        }
    }

    /// Sends one READ of the whole file.
    pub fn read(&mut self, file: Fh) -> Result<(Vec<u8>, u64), Stat> {
        let args = ReadArgs { file, offset: 0, count: 8192 };
        let ok = self.ask(LeaseRequest::None, args).into_result()?.1;
        Ok((ok.data.to_vec(), ok.attributes.rev))
    }

    /// Sends one WRITE at offset 0.
    pub fn write(&mut self, file: Fh, lease: LeaseRequest, bytes: &[u8]) -> Result<Fattr, Stat> {
        let args = WriteArgs { file, offset: 0, append: false, data: Opaque::copy(bytes) };
        self.ask(lease, args).into_result().map(|ok| ok.1)
    }
}

#[expect(clippy::disallowed_methods, reason = "tests of processes measure in real time")]
pub fn now() -> Instant {
    Instant::now()
}

struct Cached {
    fh: Fh,
    key: FileKey,
    value: u64,
}

/// A client that caches files and delays writes.
pub struct Cacher {
    pub wire: Wire,
    holder: Holder,
    began: Instant,
    files: Vec<Cached>,
    term: u32,
    /// Numbers of reads and writes without a call to the server.
    pub here: [u64; 2],
}

impl Cacher {
    /// Asks for leases of `term` seconds.
    pub fn new(mut wire: Wire, names: &[&str], term: u32) -> Self {
        let dir = wire.mount();
        let files = names.iter().enumerate().map(|(n, name)| {
            let fh = wire.create(dir, name);
            Cached { fh, key: FileKey([n as u64, 0]), value: 0 }
        });
        let files = files.collect();
        let term_ms = term * 1000;
        let config = HolderConfig {
            term_ms,
            renew_before_ms: term_ms / 3,
            push_before_ms: term_ms / 8,
            renew_retry_ms: u64::from(term_ms) / 6,
        };
        Self { wire, holder: Holder::new(config), began: now(), files, term, here: [0; 2] }
    }

    fn ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Obeys evictions that have arrived, and ends expired leases.
    pub fn serve(&mut self, wait: Duration) {
        assert!(self.wire.pump(wait), "disconnected");
        self.obey();
    }

    fn obey(&mut self) {
        for fh in std::mem::take(&mut self.wire.evicted) {
            let key = self.files.iter().find(|f| f.fh == fh).unwrap().key;
            let ms = self.ms();
            self.holder.evicted(ms, key, 0);
        }
        let ms = self.ms();
        self.holder.handle_timeout(ms);
        while let Some(action) = self.holder.poll_action() {
            match action {
                HolderAction::Renew { file, kind } => self.renew(file, kind),
                HolderAction::Push { file } => self.push(file),
                HolderAction::Vacate { file, .. } => {
                    let args = VacatedArgs { file: self.file(file).fh };
                    self.exchange(&Asking::nothing(args));
                    let ms = self.ms();
                    self.holder.vacated(ms, file);
                }
                HolderAction::Ended { .. } => {}
                HolderAction::Invalidate { file } => self.file(file).value = u64::MAX,
                HolderAction::Lost { file } => panic!("delayed writes of {file:?} are lost"),
            }
        }
    }

    /// Sends all delayed writes and returns when they are at the server.
    pub fn sync(&mut self) {
        for n in 0..self.files.len() {
            let (ms, key) = (self.ms(), self.files[n].key);
            self.holder.push(ms, key);
            while self.holder.is_dirty(key) {
                self.serve(Duration::from_millis(1));
            }
        }
    }

    fn file(&mut self, key: FileKey) -> &mut Cached {
        &mut self.files[key.0[0] as usize]
    }

    /// Makes a call and obeys evictions meanwhile.
    fn exchange<P: Procedure>(&mut self, args: &P) -> P::Reply {
        let (xid, began) = (self.wire.send(args), now());
        loop {
            if let Some(body) = self.wire.answer(xid) {
                return Dec::all(&body).unwrap();
            }
            assert!(began.elapsed() < PATIENCE, "no answer to {}", P::NAME);
            self.serve(Duration::from_millis(20));
        }
    }

    fn asked(&self, request: &Request) -> LeaseRequest {
        match request.want {
            None => LeaseRequest::None,
            Some(want) if want.kind == Kind::Write => LeaseRequest::Write(self.term),
            Some(_) => LeaseRequest::Read(self.term),
        }
    }

    fn renew(&mut self, key: FileKey, kind: Kind) {
        let ms = self.ms();
        let request = self.holder.request(ms, key, kind, Op::Lease, false);
        let rw = if kind == Kind::Write { Cachetype::WRITE } else { Cachetype::READ };
        if request.want.is_none() {
            return;
        }
        let args = GetleaseArgs { file: self.file(key).fh, rw, duration: self.term };
        let answer = self.exchange(&Asking::nothing(args)).into_result();
        let ms = self.ms();
        let Ok((_, ok)) = answer else {
            self.holder.answered(ms, request, None, 0, false);
            return;
        };
        let lease = Lease { cachable: ok.cachable, duration: ok.duration, rev: ok.rev };
        self.holder.answered(ms, request, Some(grant(kind, &lease)), ok.rev, false);
    }

    fn push(&mut self, key: FileKey) {
        loop {
            let ms = self.ms();
            let request = self.holder.request(ms, key, Kind::Write, Op::Push, false);
            let (file, value) = (self.file(key).fh, self.file(key).value);
            let data = Opaque::copy(&value.to_be_bytes());
            let args = WriteArgs { file, offset: 0, append: false, data };
            let answer = self.exchange(&Asking::nothing(args)).into_result();
            let ms = self.ms();
            self.holder.wrote(request);
            match answer {
                Ok((_, attr)) => {
                    self.holder.pushed(ms, key, attr.rev, false);
                    return;
                }
                Err(Stat::TRYLATER) => pause(20),
                Err(Stat::EXPIRED) => return self.holder.expired(ms, key),
                Err(status) => panic!("WRITE of delayed data: {status:?}"),
            }
        }
    }

    /// Reads the number in file `n`.
    pub fn get(&mut self, n: usize) -> u64 {
        let key = self.files[n].key;
        loop {
            self.serve(Duration::ZERO);
            let ms = self.ms();
            if self.holder.may_read(ms, key) {
                self.here[0] += 1;
                return self.files[n].value;
            }
            if self.holder.is_dirty(key) {
                self.holder.push(ms, key);
                continue;
            }
            let request = self.holder.request(ms, key, Kind::Read, Op::Read, false);
            let args = ReadArgs { file: self.files[n].fh, offset: 0, count: 8 };
            let answer = self.exchange(&Asking { lease: self.asked(&request), args }).into_result();
            let ms = self.ms();
            match answer {
                Ok((lease, ok)) => {
                    let value = ok.data[..].try_into().map_or(0, u64::from_be_bytes);
                    if self.holder.answered(ms, request, granted(&lease), ok.attributes.rev, true) {
                        self.files[n].value = value;
                    }
                    return value;
                }
                Err(Stat::TRYLATER) => {
                    self.holder.answered(ms, request, None, 0, false);
                    pause(20);
                }
                Err(status) => panic!("READ: {status:?}"),
            }
        }
    }

    /// Writes a number to file `n`, now or later.
    pub fn set(&mut self, n: usize, value: u64) {
        let key = self.files[n].key;
        loop {
            self.serve(Duration::ZERO);
            let ms = self.ms();
            if self.holder.can_cache_writes(ms, key) {
                self.files[n].value = value;
                self.holder.delayed(ms, key);
                self.here[1] += 1;
                return;
            }
            if self.holder.is_dirty(key) {
                self.holder.push(ms, key);
                continue;
            }
            let request = self.holder.request(ms, key, Kind::Write, Op::Write, false);
            let data = Opaque::copy(&value.to_be_bytes());
            let args = WriteArgs { file: self.files[n].fh, offset: 0, append: false, data };
            let answer = self.exchange(&Asking { lease: self.asked(&request), args }).into_result();
            let ms = self.ms();
            self.holder.wrote(request);
            match answer {
                Ok((lease, attr)) => {
                    if self.holder.answered(ms, request, granted(&lease), attr.rev, true) {
                        self.files[n].value = value;
                    }
                    return;
                }
                Err(Stat::TRYLATER) => {
                    self.holder.answered(ms, request, None, 0, false);
                    pause(20);
                }
                Err(status) => panic!("WRITE: {status:?}"),
            }
        }
    }
}

/// The protocol does not number leases. A new grant continues a lease that was not evicted and has
/// not expired.
fn grant(kind: Kind, lease: &Lease) -> Grant {
    Grant { kind, cachable: lease.cachable, term_ms: lease.duration * 1000, seq: 1 }
}

fn granted(lease: &LeaseReply) -> Option<Grant> {
    match lease {
        LeaseReply::Read(l) => Some(grant(Kind::Read, l)),
        LeaseReply::Write(l) => Some(grant(Kind::Write, l)),
        LeaseReply::None | LeaseReply::Other(_) => None,
    }
}
