//! A client that sends the compounds of a case: a connection, a session, and named objects.

use crate::clock;
use crate::lab::{Fail, Res};
use bytes::Bytes;
use hither_proto::nfs4::*;
use hither_proto::record;
use hither_proto::rpc::{AuthSys, Message, OpaqueAuth, Procedure, call};
use hither_proto::xdr::{Dec, Enc};
use rustix::net::{AddressFamily, SocketType};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The result of a case.
pub type Checked = Result<(), String>;
/// Longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of attempts for a delayed call.
const TRIES: u32 = 100;
/// Source ports of calls. Exports may require a privileged port.
const PORTS: std::ops::Range<u16> = 600..1000;
/// Number that distinguishes the names of clients and directories.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The address of a server, and the directory in which cases work.
pub struct Target {
    addr: SocketAddr,
    path: Vec<Vec<u8>>,
    /// A second path to the directory, where it is exported read-only.
    read_only: Option<Vec<Vec<u8>>>,
}

fn names(path: &str) -> Vec<Vec<u8>> {
    path.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect()
}

impl Target {
    /// `ADDRESS:PORT/PATH`.
    pub fn parse(text: &str) -> Res<Self> {
        let (addr, path) = text.split_once('/').unwrap_or((text, ""));
        let addr = addr.parse().map_err(|_| Fail(format!("{text}: not ADDRESS:PORT/PATH")))?;
        Ok(Self { addr, path: names(path), read_only: None })
    }

    /// The target with its read-only path.
    pub fn with_read_only(self, path: &str) -> Self {
        Self { read_only: Some(names(path)), ..self }
    }

    /// Whether the server answers calls.
    pub fn answers(&self) -> bool {
        let empty = Compound::new(1, vec![]);
        Wire::connect(self.addr).and_then(|mut wire| wire.call(&empty)).is_ok()
    }

    /// Whether the target has a read-only path.
    pub fn has_read_only(&self) -> bool {
        self.read_only.is_some()
    }
}

/// A connection of a user.
pub struct Wire {
    stream: TcpStream,
    records: record::Reader,
    xid: u32,
    cred: OpaqueAuth,
}

impl Wire {
    /// Connects as the superuser, from a privileged port.
    pub fn connect(addr: SocketAddr) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("{addr}: {e}");
        let mut last = "no port is free".to_string();
        for _ in PORTS {
            let port = PORTS.start + (NEXT.fetch_add(1, Relaxed) % u32::from(PORTS.end - PORTS.start)) as u16;
            let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket =
                rustix::net::socket(family, SocketType::STREAM, None).map_err(|e| failed(e.into()))?;
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true).map_err(|e| failed(e.into()))?;
            let any: SocketAddr =
                SocketAddr::new(if addr.is_ipv4() { [0_u8; 4].into() } else { [0_u16; 8].into() }, port);
            let connected =
                rustix::net::bind(&socket, &any).and_then(|()| rustix::net::connect(&socket, &addr));
            if let Err(e) = connected {
                last = e.to_string();
                continue;
            }
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            let xid = NEXT.fetch_add(1, Relaxed) << 12;
            return Ok(Self { stream, records: record::Reader::new(Default::default()), xid, cred: cred(0) });
        }
        Err(format!("{addr}: {last}"))
    }

    /// Sends later calls as this user.
    pub fn become_user(&mut self, uid: u32) {
        self.cred = cred(uid);
    }

    /// Sends a compound and returns its reply.
    pub fn call(&mut self, compound: &Compound) -> Result<CompoundReply, String> {
        self.xid += 1;
        let args = Enc::of(compound);
        let message = call(self.xid, Compound::PROG, Compound::VERS, Compound::PROC, &self.cred, args);
        self.stream.write_all(&record::frame(message).concat()).map_err(|e| format!("sending: {e}"))?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = self.stream.read(&mut buffer).map_err(|e| format!("no reply: {e}"))?;
            if n == 0 {
                return Err("the server has closed the connection".into());
            }
            let mut input = &buffer[..n];
            while !input.is_empty() {
                let record = self.records.feed(&mut input).map_err(|e| format!("no records: {e}"))?;
                let Some(record) = record else { continue };
                match Message::decode(&record).map_err(|e| format!("no RPC: {e}"))? {
                    Message::Reply(header, body) if header.xid == self.xid => {
                        if !header.is_success() {
                            return Err(format!("refused by RPC: {header:?}"));
                        }
                        return Dec::all(&body).map_err(|e| format!("the reply cannot be decoded: {e}"));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn cred(uid: u32) -> OpaqueAuth {
    let machinename = b"lab"[..].into();
    OpaqueAuth::sys(&AuthSys { stamp: 0, machinename, uid, gid: uid, gids: Vec::new().into() })
}

/// A client with a session.
pub struct Client {
    pub wire: Wire,
    pub minor: u32,
    pub id: Clientid,
    pub owner: ClientOwner,
    /// The next sequence number of CREATE_SESSION.
    pub next: u32,
    pub session: Sessionid,
    pub seq: u32,
}

/// The limits that a client asks for.
pub fn channel() -> ChannelAttrs {
    ChannelAttrs {
        maxrequestsize: 64 << 10,
        maxresponsesize: 64 << 10,
        maxresponsesize_cached: 4096,
        maxoperations: 16,
        maxrequests: 4,
        ..ChannelAttrs::default()
    }
}

/// EXCHANGE_ID of a client.
pub fn exchange(owner: &ClientOwner, flags: u32) -> Op {
    let (clientowner, state_protect) = (owner.clone(), StateProtectArgs::None);
    Op::ExchangeId(ExchangeIdArgs { clientowner, flags, state_protect, impl_id: None })
}

/// CREATE_SESSION of a client with these limits.
pub fn create_session(clientid: Clientid, sequence: u32, fore: ChannelAttrs) -> CreateSessionArgs {
    CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_chan_attrs: fore,
        back_chan_attrs: channel(),
        cb_program: 1 << 30,
        sec_parms: vec![CallbackSec::None].into(),
    }
}

/// A client owner that no other client has.
pub fn new_owner() -> ClientOwner {
    let name = format!("hither-lab {} {}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    ClientOwner { verifier: [1; 8], ownerid: name.as_bytes().into() }
}

impl Client {
    /// A new client that has not sent RECLAIM_COMPLETE.
    pub fn early(wire: Wire, minor: u32, fore: ChannelAttrs) -> Result<Self, String> {
        let owner = new_owner();
        let mut c = Self { wire, minor, id: 0, owner, next: 0, session: [0; 16], seq: 0 };
        c.introduce(fore)?;
        Ok(c)
    }

    /// Introduces the client to the server, again after a restart of the server. Makes a session.
    pub fn introduce(&mut self, fore: ChannelAttrs) -> Result<(), String> {
        let who = self.alone(exchange(&self.owner, 0))?.results().exchange_id().map_err(|e| e.to_string())?;
        (self.id, self.next) = (who.clientid, who.sequenceid);
        self.make_session(fore).map(drop)
    }

    /// A new client after RECLAIM_COMPLETE.
    pub fn new(wire: Wire, minor: u32) -> Result<Self, String> {
        let mut c = Self::early(wire, minor, channel())?;
        c.ok(vec![Op::ReclaimComplete(false)])?;
        Ok(c)
    }

    /// Makes a session and uses it for later calls.
    pub fn make_session(&mut self, fore: ChannelAttrs) -> Result<CreateSessionOk, String> {
        let args = create_session(self.id, self.next, fore);
        let made = self.alone(Op::CreateSession(args))?.results().create_session();
        let made = made.map_err(|e| e.to_string())?;
        self.next += 1;
        (self.session, self.seq) = (made.sessionid, 0);
        Ok(made)
    }

    /// Sends an operation outside of sessions.
    pub fn alone(&mut self, op: Op) -> Result<CompoundReply, String> {
        self.wire.call(&Compound::new(self.minor, vec![op]))
    }

    /// SEQUENCE of the first slot.
    pub fn sequence(&self, cachethis: bool) -> SequenceArgs {
        let (sessionid, sequenceid) = (self.session, self.seq);
        SequenceArgs { sessionid, sequenceid, slotid: 0, highest_slotid: 0, cachethis }
    }

    /// Sends operations in the session. Repeats them while the server asks for a delay.
    pub fn run(&mut self, ops: Vec<Op>) -> Result<Results<OpRes>, String> {
        let mut tries = 0;
        loop {
            self.seq += 1;
            let all = std::iter::once(Op::Sequence(self.sequence(false))).chain(ops.clone());
            let reply = self.wire.call(&Compound::new(self.minor, all.collect()))?;
            tries += 1;
            if reply.status == Nfsstat4::DELAY && tries < TRIES {
                clock::pause(Duration::from_millis(100));
                continue;
            }
            let mut results = reply.results();
            results.sequence().map_err(|e| e.to_string())?;
            return Ok(results);
        }
    }

    /// Sends operations that must succeed.
    pub fn ok(&mut self, ops: Vec<Op>) -> Result<Results<OpRes>, String> {
        let last = ops.last().map(|op| format!("{:?}", op.number())).unwrap_or_default();
        let results = self.run(ops)?;
        match results.status() {
            Nfsstat4::OK => Ok(results),
            status => Err(format!("up to {last}: {status}")),
        }
    }

    /// Checks that the last operation, and none before it, ends with one of these statuses.
    pub fn ends(&mut self, ops: Vec<Op>, expected: &[Nfsstat4]) -> Checked {
        let len = ops.len();
        let results = self.run(ops)?;
        is_one_of(results.status(), expected)?;
        if results.remaining() == len {
            Ok(())
        } else {
            Err(format!("{} results of {len}", results.remaining()))
        }
    }

    /// Opens or creates a file in a directory.
    pub fn open(&mut self, dir: &Fh, name: &[u8], access: u32, deny: u32) -> Result<(Stateid, Fh), String> {
        let how = Some(CreateHow::Unchecked(mode(0o644)));
        let args =
            OpenArgs { share_deny: deny, how, ..open_args(b"owner", access, OpenClaim::Null(name.into())) };
        let mut r = self.ok(vec![Op::putfh(dir), Op::Open(args), Op::Getfh])?;
        r.putfh().map_err(|e| e.to_string())?;
        let opened = r.open().map_err(|e| e.to_string())?;
        Ok((opened.stateid, r.getfh().map_err(|e| e.to_string())?))
    }

    /// Creates an object.
    pub fn make(&mut self, dir: &Fh, kind: CreateType, name: &[u8]) -> Result<Fh, String> {
        let mut r = self.ok(vec![Op::putfh(dir), Op::create(kind, name, mode(0o755)), Op::Getfh])?;
        r.putfh().map_err(|e| e.to_string())?;
        r.create().map_err(|e| e.to_string())?;
        r.getfh().map_err(|e| e.to_string())
    }
}

impl Drop for Client {
    /// Ends the client with all its state, as a restart of the client would. Servers accept only a
    /// limited number of clients.
    fn drop(&mut self) {
        self.owner.verifier = [3; 8];
        let again = exchange(&self.owner, 0);
        let Ok(Ok(who)) = self.alone(again).map(|reply| reply.results().exchange_id()) else { return };
        (self.id, self.next) = (who.clientid, who.sequenceid);
        if self.make_session(channel()).is_ok() {
            let _ = self.alone(Op::DestroySession(self.session));
            let _ = self.alone(Op::DestroyClientid(self.id));
        }
    }
}

/// Fails unless a status is allowed.
pub fn is_one_of(status: Nfsstat4, expected: &[Nfsstat4]) -> Checked {
    if expected.contains(&status) { Ok(()) } else { Err(format!("{status} instead of {expected:?}")) }
}

/// Attributes of a creation.
pub fn mode(mode: u32) -> Attrs {
    Attrs { mode: Some(mode), ..Attrs::default() }
}

/// OPEN without a creation, and without a delegation.
pub fn open_args(owner: &[u8], access: u32, claim: OpenClaim) -> OpenArgs {
    OpenArgs {
        seqid: 0,
        share_access: access | open::WANT_NO_DELEG,
        share_deny: 0,
        owner: StateOwner { clientid: 0, owner: owner.into() },
        how: None,
        claim,
    }
}

/// The fixture of a case: a client, and a directory with an object of each kind.
pub struct Bench {
    addr: SocketAddr,
    pub client: Client,
    /// The directory. It contains `f`, `d` with `in`, `l`, and `p`.
    pub dir: Fh,
    pub file: Fh,
    pub sub: Fh,
    pub link: Fh,
    pub fifo: Fh,
    /// Name of the directory in its parent.
    name: String,
    parent: Fh,
    read_only: Option<Vec<Vec<u8>>>,
}

/// The objects of a [`Bench`] in the read-only export.
pub struct ReadOnly {
    pub dir: Fh,
    pub file: Fh,
    pub sub: Fh,
    pub link: Fh,
}

impl Bench {
    /// Makes a new client with its own directory.
    pub fn new(target: &Target, minor: u32) -> Result<Self, String> {
        let mut client = Client::new(Wire::connect(target.addr)?, minor)?;
        let mut ops = vec![Op::Putrootfh];
        ops.extend(target.path.iter().map(|name| Op::lookup(name)));
        ops.push(Op::Getfh);
        let mut r = client.ok(ops)?;
        (0..=target.path.len()).for_each(|_| drop(r.take_any()));
        let parent = r.getfh().map_err(|e| e.to_string())?;
        let name = format!("nfs41.{}.{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let dir = client.make(&parent, CreateType::Dir, name.as_bytes())?;
        let (open, file) = client.open(&dir, b"f", open::SHARE_ACCESS_BOTH, 0)?;
        let write = Op::write(open, 0, StableHow::FILE_SYNC, Bytes::from_static(b"0123456789"));
        client.ok(vec![Op::putfh(&file), write, Op::close(open)])?;
        let sub = client.make(&dir, CreateType::Dir, b"d")?;
        client.make(&sub, CreateType::Dir, b"in")?;
        let link = client.make(&dir, CreateType::Link(b"f"[..].into()), b"l")?;
        let fifo = client.make(&dir, CreateType::Fifo, b"p")?;
        let read_only = target.read_only.clone();
        Ok(Self { addr: target.addr, client, dir, file, sub, link, fifo, name, parent, read_only })
    }

    /// Looks the objects up in the read-only export.
    pub fn read_only(&mut self) -> Result<ReadOnly, String> {
        let mut path = self.read_only.clone().ok_or("there is no read-only export")?;
        path.push(self.name.clone().into_bytes());
        let mut find = |name: Option<&[u8]>| -> Result<Fh, String> {
            let names = path.iter().map(Vec::as_slice).chain(name);
            let mut ops: Vec<Op> = std::iter::once(Op::Putrootfh).chain(names.map(Op::lookup)).collect();
            let skipped = ops.len();
            ops.push(Op::Getfh);
            let mut r = self.client.ok(ops)?;
            (0..skipped).for_each(|_| drop(r.take_any()));
            r.getfh().map_err(|e| e.to_string())
        };
        let (dir, file) = (find(None)?, find(Some(b"f"))?);
        Ok(ReadOnly { dir, file, sub: find(Some(b"d"))?, link: find(Some(b"l"))? })
    }

    /// Another client.
    pub fn another(&self) -> Result<Client, String> {
        Client::new(self.wire()?, self.client.minor)
    }

    /// A connection without a client.
    pub fn wire(&self) -> Result<Wire, String> {
        Wire::connect(self.addr)
    }

    /// Sends operations on an object. Checks that the last one ends with one of these statuses.
    pub fn at(&mut self, fh: &Fh, ops: Vec<Op>, expected: &[Nfsstat4]) -> Checked {
        let ops = std::iter::once(Op::putfh(fh)).chain(ops).collect();
        self.client.ends(ops, expected)
    }

    /// As [`Self::at`], on the directory.
    pub fn here(&mut self, ops: Vec<Op>, expected: &[Nfsstat4]) -> Checked {
        let dir = self.dir.clone();
        self.at(&dir, ops, expected)
    }

    /// Checks an operation without a filehandle.
    pub fn nowhere(&mut self, op: Op) -> Checked {
        self.client.ends(vec![op], &[Nfsstat4::NOFILEHANDLE])
    }
}

impl Drop for Bench {
    /// Removes the standard objects. Other objects that a case has made stay.
    fn drop(&mut self) {
        let (dir, sub, parent) = (self.dir.clone(), self.sub.clone(), self.parent.clone());
        let of = |fh: &Fh, name: &[u8]| vec![Op::putfh(fh), Op::remove(name)];
        for ops in [
            of(&sub, b"in"),
            of(&dir, b"d"),
            of(&dir, b"f"),
            of(&dir, b"l"),
            of(&dir, b"p"),
            of(&dir, b"n"),
            of(&parent, self.name.as_bytes()),
        ] {
            let _ = self.client.run(ops);
        }
    }
}
