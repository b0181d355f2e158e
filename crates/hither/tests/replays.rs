//! NFSv4 calls that a server with a journal executed before a kill. The client sends them again to
//! the restarted server.
//!
//! The test needs root and loop devices. The server listens on a loopback address. The test starts
//! no foreign server.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::serve::Serve;
use common::wire::Wire;
use common::{pause, run, wait_for};
use hither_proto::nfs4::open as bits;
use hither_proto::nfs4::*;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A client of NFSv4.2 that sends each call in its own slot, and can repeat the calls.
struct Client {
    wire: Wire,
    session: Sessionid,
    slot: u32,
    /// The calls sent, with the handles that the replies contained.
    sent: Vec<(Compound, Vec<Fh>)>,
}

impl Client {
    fn new(port: u16) -> Self {
        let mut client = Self { wire: Wire::connect(port), session: [0; 16], slot: 0, sent: Vec::new() };
        client.begin("replays");
        client
    }

    /// Begins a session and sends RECLAIM_COMPLETE. The client reclaims nothing.
    fn begin(&mut self, name: &str) {
        let args = ExchangeIdArgs {
            clientowner: ClientOwner { verifier: [1; 8], ownerid: name.as_bytes().into() },
            flags: 0,
            state_protect: StateProtectArgs::None,
            impl_id: None,
        };
        let who = self.reply(vec![Op::ExchangeId(args)]).results().exchange_id().unwrap();
        let channel = ChannelAttrs {
            maxrequestsize: 1 << 20,
            maxresponsesize: 1 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 200,
            maxrequests: 64,
            ..ChannelAttrs::default()
        };
        let args = CreateSessionArgs {
            clientid: who.clientid,
            sequence: who.sequenceid,
            flags: create_session::PERSIST,
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 1,
            sec_parms: Vec::new().into(),
        };
        let made = self.reply(vec![Op::CreateSession(args)]).results().create_session().unwrap();
        assert_eq!(made.flags & create_session::PERSIST, 0, "that would be more than is kept");
        self.session = made.sessionid;
        let done = self.reply(vec![self.sequence(63, 1), Op::ReclaimComplete(false)]);
        assert_eq!(done.status, Nfsstat4::OK);
    }

    fn reply(&mut self, ops: Vec<Op>) -> CompoundReply {
        self.wire.call(&Compound::new(2, ops))
    }

    fn sequence(&self, slotid: u32, sequenceid: u32) -> Op {
        let highest_slotid = 63;
        Op::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid,
            slotid,
            highest_slotid,
            cachethis: true,
        })
    }

    /// Sends a call that must succeed and that [`Client::repeat`] repeats.
    fn done(&mut self, ops: Vec<Op>) -> Vec<Fh> {
        let all = [vec![self.sequence(self.slot, 1), Op::Putrootfh], ops].concat();
        self.slot += 1;
        let call = Compound::new(2, all);
        let reply = self.wire.call(&call);
        assert_eq!(reply.status, Nfsstat4::OK, "{call:?}: {reply:?}");
        let handles = handles(&reply);
        self.sent.push((call, handles.clone()));
        handles
    }

    /// Sends all calls again. Each must be answered as the first time.
    fn repeat(&mut self) {
        for (call, known) in &self.sent {
            for _ in 0..2 {
                let reply = self.wire.call(call);
                assert_eq!(reply.status, Nfsstat4::OK, "{call:?}: {reply:?}");
                assert_eq!(
                    (reply.results.len(), handles(&reply)),
                    (call.ops.len(), known.clone()),
                    "{call:?}"
                );
            }
        }
    }

    fn status(&mut self, ops: Vec<Op>) -> Nfsstat4 {
        self.wire.call(&Compound::new(2, ops)).status
    }
}

fn handles(reply: &CompoundReply) -> Vec<Fh> {
    let handle = |r: &OpRes| if let OpRes::Getfh(Ok(fh)) = r { Some(fh.clone()) } else { None };
    reply.results.iter().filter_map(handle).collect()
}

fn mode(mode: u32) -> Attrs {
    Attrs { mode: Some(mode), ..Attrs::default() }
}

fn mkdir(name: &str) -> Op {
    Op::create(CreateType::Dir, name.as_bytes(), mode(0o750))
}

fn open(name: &str, how: CreateHow) -> Op {
    Op::Open(OpenArgs {
        seqid: 0,
        share_access: bits::SHARE_ACCESS_BOTH,
        share_deny: 0,
        owner: StateOwner { clientid: 0, owner: b"owner"[..].into() },
        how: Some(how),
        claim: OpenClaim::Null(name.as_bytes().into()),
    })
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename(RenameArgs { oldname: from.as_bytes().into(), newname: to.as_bytes().into() })
}

fn names(server: &Serve) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(server.export("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names.into_iter().map(|n| n.into_string().unwrap()).collect()
}

/// A restarted server answers repeated calls of before the kill and does not execute them again.
/// Both parts are one test, because a tokio runtime and a second thread with a private file table
/// conflict.
/// Promise: S8c
#[test]
#[ignore = "needs root"]
fn replayed_nfsv4_calls_run_once() {
    each_kind_of_call();
    whoever_sends_again_what_was_not_answered_finds_it_done_once();
}

fn each_kind_of_call() {
    let mut server = Serve::of_directory();
    let journal = server.dir.path().join("journal").display().to_string();
    server = server.with(&["--journal", &journal, "--journal-size", "8"]);
    server.serve();
    let mut c = Client::new(server.port);
    let file = c.done(vec![open("f", CreateHow::Guarded(mode(0o640))), Op::Getfh]).remove(0);
    let link = Op::create(CreateType::Link(b"f"[..].into()), b"s", Attrs::default());
    c.done(vec![link, Op::Getfh]);
    // Several changes in one call, with lookups in between.
    c.done(vec![
        mkdir("d"),
        Op::Getfh,
        Op::Putrootfh,
        mkdir("gone"),
        Op::Getfh,
        Op::Putrootfh,
        Op::remove(b"s"),
        Op::lookup(b"d"),
        Op::Getfh,
    ]);
    let verf = CreateHow::Exclusive41(CreateVerfAttr { verf: *b"verifier", attrs: mode(0o600) });
    c.done(vec![open("x", verf), Op::Getfh, Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT })]);
    let change = c.wire.call(&Compound::new(
        2,
        vec![c.sequence(0, 2), Op::putfh(&file), Op::Getattr(Bitmap4::of(&[attr::CHANGE]))],
    ));
    let OpRes::Getattr(Ok(change)) = change.results[2].clone() else { panic!("{change:?}") };
    c.done(vec![Op::putfh(&file), Op::Verify(change), Op::setattr(Stateid::ANONYMOUS, mode(0o600))]);
    let write = |data: &'static [u8]| {
        let data = bytes::Bytes::from_static(data).into();
        Op::Write(WriteArgs { stateid: Stateid::ANONYMOUS, offset: 3, stable: StableHow::FILE_SYNC, data })
    };
    c.done(vec![Op::putfh(&file), write(b"stable")]);
    c.done(vec![Op::putfh(&file), Op::Savefh, Op::Putrootfh, Op::lookup(b"d"), Op::Link(b"l"[..].into())]);
    c.done(vec![Op::Savefh, rename("f", "g"), Op::lookup(b"g"), Op::Getfh]);
    c.done(vec![Op::remove(b"gone")]);
    // Later changes of another client, which must survive the repetitions.
    let sent = c.sent.len();
    c.done(vec![Op::putfh(&file), write(b"newer!")]);
    for name in ["f", "s", "gone"] {
        c.done(vec![mkdir(name)]);
    }
    c.sent.truncate(sent);
    // The replies come from the journal, then from the saved replies after journal records were
    // freed, then from the state of an orderly end.
    for life in 0..4 {
        match life {
            2 => assert_eq!(server.stop(), 0),
            _ => server.kill(),
        }
        server.serve();
        c.wire.reconnect();
        c.repeat();
        assert_eq!(names(&server), ["d", "f", "g", "gone", "s", "x"], "life {life}");
        assert_eq!(fs::read(server.export("g")).unwrap(), b"\0\0\0newer!", "life {life}");
        // The server knows only the exact call. It refuses the next call of the slot, and other
        // calls with the same number or session.
        let (mut call, _) = c.sent[2].clone();
        let Op::Sequence(first) = call.ops[0].clone() else { panic!("no session") };
        let mut sessionid = first.sessionid;
        sessionid[15] ^= 1;
        for forged in [
            SequenceArgs { sequenceid: 2, ..first },
            SequenceArgs { slotid: 60, ..first },
            SequenceArgs { sessionid, ..first },
        ] {
            let ops = [vec![Op::Sequence(forged)], call.ops[1..].to_vec()].concat();
            assert_eq!(c.status(ops), Nfsstat4::BADSESSION, "{forged:?}");
        }
        call.ops[2] = mkdir("e");
        assert_eq!(c.status(call.ops.clone()), Nfsstat4::BADSESSION);
        assert_eq!(c.status(vec![c.sequence(62, 1), Op::Putrootfh]), Nfsstat4::BADSESSION);
        assert_eq!(names(&server), ["d", "f", "g", "gone", "s", "x"], "life {life}");
    }
    assert_eq!(server.stop(), 0);
}

/// A client that makes and removes objects, one call at a time. It goes on when the server is back.
struct Worker {
    client: Client,
    name: String,
    dir: Fh,
    seqid: u32,
    /// Number of repeated calls that were answered in the lost session.
    answered: u64,
}

impl Worker {
    fn new(port: u16, number: u16) -> Self {
        let wire = Wire::connect_from(port, 800 + number);
        let mut client = Client { wire, session: [0; 16], slot: 0, sent: Vec::new() };
        let name = format!("worker {number}");
        client.begin(&name);
        let dir = client.done(vec![mkdir(&name), Op::Getfh]).remove(0);
        Self { client, name, dir, seqid: 1, answered: 0 }
    }

    /// Makes a change in the directory and repeats it until the server reports success. Any other
    /// final answer is a fault.
    fn must(&mut self, what: &str, ops: Vec<Op>) {
        loop {
            self.seqid += 1;
            let ops = [vec![self.client.sequence(0, self.seqid), Op::putfh(&self.dir)], ops.clone()].concat();
            let call = Compound::new(2, ops);
            let mut again = false;
            let reply = loop {
                match self.client.wire.try_call(&call) {
                    Ok(reply) => break reply,
                    Err(_) => {
                        again = true;
                        self.client.wire.reconnect();
                    }
                }
            };
            match reply.status {
                Nfsstat4::OK => {
                    self.answered += u64::from(again);
                    return;
                }
                Nfsstat4::BADSESSION => {
                    while self.try_begin().is_none() {
                        self.client.wire.reconnect();
                    }
                    self.seqid = 0;
                }
                Nfsstat4::GRACE => pause(20),
                status => panic!("{what} of {}, sent again: {again}: {status:?} {reply:?}", self.name),
            }
        }
    }

    /// Begins a new session. `None` when the server was killed meanwhile.
    fn try_begin(&mut self) -> Option<()> {
        let (client, name) = (&mut self.client, self.name.clone());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.begin(&name))).ok()
    }

    fn round(&mut self) {
        self.must("mkdir", vec![mkdir("d")]);
        self.must("rename of it", vec![Op::Savefh, rename("d", "e")]);
        let close = Op::Close(CloseArgs { seqid: 0, stateid: Stateid::CURRENT });
        self.must("create", vec![open("f", CreateHow::Guarded(mode(0o600))), close]);
        let link = Op::Link(b"l"[..].into());
        self.must("link", vec![Op::lookup(b"f"), Op::Savefh, Op::putfh(&self.dir.clone()), link]);
        self.must("rename", vec![Op::Savefh, rename("f", "g")]);
        self.must("remove", vec![Op::remove(b"l")]);
        self.must("another remove", vec![Op::remove(b"g")]);
        self.must("rmdir", vec![Op::remove(b"e")]);
    }
}

/// Clients repeat unanswered calls while the server is killed again and again. No call is executed
/// twice, and no executed call is reported as failed.
fn whoever_sends_again_what_was_not_answered_finds_it_done_once() {
    let rounds = std::env::var("HITHER_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(12_u64);
    let mut server = Serve::prepare();
    let at = |name: &str| server.dir.path().join(name).display().to_string();
    fs::File::create(at("image")).unwrap().set_len(96 << 20).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", &at("image")])).ok();
    fs::create_dir(at("disk")).unwrap();
    run(Command::new("mount").args(["-o", "loop", &at("image"), &at("disk")])).ok();
    fs::create_dir(at("disk/export")).unwrap();
    let (export, journal) = (at("disk/export"), at("disk/journal"));
    server = server.with(&[&export, "--journal", &journal, "--journal-size", "8"]);
    server.serve();
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let port = server.port;
    let workers: Vec<Worker> = (0..6).map(|number| Worker::new(port, number)).collect();
    let workers: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            let (over, count) = (over.clone(), count.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    worker.round();
                    count.fetch_add(1, Ordering::Relaxed);
                }
                worker.answered
            })
        })
        .collect();
    let alive = |workers: &[std::thread::JoinHandle<u64>]| workers.iter().all(|w| !w.is_finished());
    for round in 0..rounds {
        let before = count.load(Ordering::Relaxed);
        wait_for("work to go on after a restart", 180, || {
            !alive(&workers) || count.load(Ordering::Relaxed) > before + 12
        });
        pause(13 * round % 31);
        server.kill();
        server.serve();
    }
    over.store(true, Ordering::Relaxed);
    let answered: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
    assert!(answered > 0, "nothing was answered in a session of before");
    for dir in fs::read_dir(&export).unwrap() {
        assert_eq!(fs::read_dir(dir.unwrap().path()).unwrap().count(), 0);
    }
    assert_eq!(server.stop(), 0);
}
