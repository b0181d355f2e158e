//! Tests with a scripted NQNFS server on a simulated network.

mod leases;
mod writing;

use super::convert::{attr, device_number, fileid, status};
use super::greeting::Greeting;
use super::{Nqnfs, V3};
use crate::{Options, testing};
use bytes::Bytes;
use hither_proto::nfs3::{Ftype3, Nfsstat3, Specdata3};
use hither_proto::nqnfs::*;
use hither_proto::rpc::{AcceptStat, CallHeader, Message, ReplyHeader, reply};
use hither_proto::xdr::{Chain, Enc, Xdr};
use hither_rpc::{Client, ClientConfig, Mode, RetryPolicy, Stats, sim};
use hither_vfs::{
    Access, Create, Cred, Data, Env, File, FileKind, Name, OpenAccess, OpenHow, PathRef, RequestContext,
    SetAttr, SetTime, Stability, Vfs, WalkRequest,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The server's reply to a call; `None` loses the reply.
type Script = Box<dyn FnMut(&NqCall) -> Option<NqReply> + Send>;

struct Server {
    net: sim::Net,
    script: Mutex<Script>,
    calls: Mutex<Vec<NqCall>>,
    /// The reply to HELLO; `None`: the procedure is unknown.
    hello: Mutex<Option<Res<HelloOk>>>,
    /// Connections to the clients, the newest last.
    peers: Mutex<Vec<sim::PeerSender>>,
    /// Replies to this procedure wait in `held`.
    hold: Mutex<Option<NqProc>>,
    held: Mutex<Vec<Enc>>,
}

const HELLO: HelloOk = HelloOk { server: 1, fh_max: 64, transfer_max: 1 << 20, term_max: 60 };

fn handle(n: u8) -> Fh {
    Fh::pack(&[n; 9]).unwrap()
}

fn file() -> Fattr {
    Fattr { ftype: Ftype::REG, mode: 0o100_644, nlink: 1, size: 6, fsid: 1, fid: 7, ..Fattr::default() }
}

fn dir() -> Fattr {
    Fattr { ftype: Ftype::DIR, mode: 0o040_755, nlink: 2, fsid: 1, fid: 2, ..Fattr::default() }
}

/// Default replies of the server.
fn usual(call: &NqCall) -> NqReply {
    match call {
        NqCall::Getattr(a) if a.args.file == handle(0) => NqReply::Getattr(Res::Ok(LeaseReply::None, dir())),
        NqCall::Getattr(_) => NqReply::Getattr(Res::Ok(LeaseReply::None, file())),
        NqCall::Setattr(_) => NqReply::Setattr(Res::Ok(LeaseReply::None, file())),
        NqCall::Write(_) => NqReply::Write(Res::Ok(LeaseReply::None, file())),
        NqCall::Access(_) => NqReply::Access(Res::Ok(LeaseReply::None, ())),
        NqCall::Statfs(_) => NqReply::Statfs(Res::Ok(LeaseReply::None, StatfsOk::default())),
        NqCall::Lookup(_) => NqReply::Lookup(Res::Ok(
            LeaseReply::None,
            LookupOk { lookup_lease: LeaseReply::None, file: handle(1), attr: file() },
        )),
        other => panic!("the script has no reply to {other:?}"),
    }
}

fn created(a: &Asking<CreateArgs>, atime: Time) -> NqReply {
    let attributes = Fattr { atime, mode: a.args.attributes.mode, ..file() };
    NqReply::Create(Res::Ok(LeaseReply::None, DiropOk { file: handle(3), attributes }))
}

impl Server {
    fn new() -> Arc<Self> {
        let net = sim::Net::new(7, sim::Conditions::default());
        let server = Arc::new(Self {
            net: net.clone(),
            script: Mutex::new(Box::new(|call| Some(usual(call)))),
            calls: Mutex::default(),
            hello: Mutex::new(Some(Res::Ok(LeaseReply::None, HELLO))),
            peers: Mutex::default(),
            hold: Mutex::default(),
            held: Mutex::default(),
        });
        let weak = Arc::downgrade(&server);
        net.serve(move |mut peer| {
            let server = weak.clone();
            async move {
                if let Some(server) = server.upgrade() {
                    server.peers.lock().push(peer.sender());
                }
                while let Some(record) = peer.recv().await {
                    let (Ok(message), Some(server)) = (Message::decode(&record), server.upgrade()) else {
                        return;
                    };
                    let Message::Call(header, args) = message else { continue };
                    let proc = NqProc(header.proc);
                    match server.answer(header, &args) {
                        Some(reply) if *server.hold.lock() == Some(proc) => server.held.lock().push(reply),
                        Some(reply) => peer.send(reply),
                        None => {}
                    }
                }
            }
        });
        server
    }

    fn answer(&self, header: CallHeader, args: &Bytes) -> Option<Enc> {
        let call = NqCall::decode(NqProc(header.proc), args).unwrap().unwrap();
        self.calls.lock().push(call.clone());
        let said = match &call {
            NqCall::Hello(_) => match self.hello.lock().clone() {
                Some(said) => NqReply::Hello(said),
                None => return Some(Enc::of(&ReplyHeader::accepted(header.xid, AcceptStat::ProcUnavail))),
            },
            _ => (self.script.lock())(&call)?,
        };
        let mut e = Enc::new();
        said.encode(&mut e);
        Some(reply(header.xid, e))
    }

    fn script(&self, script: impl FnMut(&NqCall) -> Option<NqReply> + Send + 'static) {
        *self.script.lock() = Box::new(script);
        self.calls.lock().clear();
    }

    /// Calls since the last script.
    fn called(&self) -> Vec<NqCall> {
        self.calls.lock().clone()
    }

    async fn mount(self: &Arc<Self>) -> V3 {
        self.mount_with(testing::options()).await
    }

    async fn mount_with(self: &Arc<Self>, opts: Options) -> V3 {
        let stats = Arc::new(Stats::new());
        let policy = RetryPolicy { timeo: Duration::from_secs(10), retrans: 2, mode: Mode::Hard };
        let cfg = ClientConfig { policy, seed: 1, nconnect: opts.nconnect, ..ClientConfig::default() };
        let next = AtomicU64::new(1);
        let env = Env {
            random: Arc::new(move || next.fetch_add(1, Ordering::Relaxed)),
            wall: Arc::new(|| std::time::UNIX_EPOCH + Duration::from_secs(1000)),
        };
        let greeting = Greeting::new(self.net.connector(), 4711);
        let client = Client::new(greeting.clone(), cfg, stats.clone());
        let nqnfs = Some(Nqnfs::new(greeting));
        let machine = Bytes::from_static(b"client");
        V3::begin_as(&opts, &env, client, stats, root(), None, machine, nqnfs).await.unwrap()
    }
}

fn fh(wire: Fh) -> hither_vfs::Fh {
    hither_vfs::Fh(wire.bytes().into())
}

fn root() -> hither_vfs::Fh {
    fh(handle(0))
}

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

fn name(s: &str) -> Name {
    Name::new(s.to_owned()).unwrap()
}

fn creating(create: Create) -> OpenHow {
    OpenHow { create, ..OpenHow::existing(OpenAccess::all()) }
}

/// HELLO is the first call on every connection, even with calls in progress on the previous one.
/// Promise: 7a
#[tokio::test(start_paused = true)]
async fn each_connection_begins_with_hello() {
    let server = Server::new();
    let fs = server.mount().await;
    assert!(matches!(server.called()[0], NqCall::Hello(_)));
    let mut cut = Some(server.net.clone());
    server.script(move |call| match cut.take() {
        // The reply is lost with its connection. The client sends the call again on the next one.
        Some(net) => {
            net.cut(sim::Cut::Reset);
            None
        }
        None => Some(usual(call)),
    });
    fs.getattr(&cx(), File { fh: &fh(handle(1)), open: None }).await.unwrap();
    let called = server.called();
    let hello = called.iter().position(|c| matches!(c, NqCall::Hello(_))).expect("a second connection");
    assert!(
        matches!(called[hello - 1], NqCall::Getattr(_)) && matches!(called[hello + 1], NqCall::Getattr(_))
    );
    let NqCall::Hello(hello) = &called[hello] else { unreachable!() };
    assert_eq!((hello.args.client, hello.args.fh_max), (4711, 64), "the same client");
}

/// With a server without extensions the client uses the protocol of the paper.
#[tokio::test(start_paused = true)]
async fn calls_omit_unsupported_extensions() {
    let server = Server::new();
    *server.hello.lock() = None;
    let fs = server.mount().await;
    assert_eq!(fs.clone().mounted("127.0.0.1:1".parse().unwrap()).rsize_bytes, DATA_SAFE_BYTES);
    let touch = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
    server.script(|call| Some(usual(call)));
    fs.setattr(&cx(), File { fh: &fh(handle(1)), open: None }, &touch).await.unwrap();
    let [NqCall::Setattr(a)] = &server.called()[..] else { panic!("{:?}", server.called()) };
    assert_eq!(a.args.attributes.mtime, Time { seconds: 1000, nano_seconds: 0 }, "this client's time");

    let server = Server::new();
    let fs = server.mount().await;
    assert_eq!(fs.clone().mounted("127.0.0.1:1".parse().unwrap()).rsize_bytes, 1 << 20);
    server.script(|call| Some(usual(call)));
    fs.setattr(&cx(), File { fh: &fh(handle(1)), open: None }, &touch).await.unwrap();
    let [NqCall::Setattr(a)] = &server.called()[..] else { panic!("{:?}", server.called()) };
    assert_eq!(a.args.attributes.mtime, SERVER_TIME);
}

/// CREATE returns an existing file as if it were created. Only a file whose access time is the
/// stamp counts as created.
/// Promise: 7a
#[tokio::test(start_paused = true)]
async fn exclusive_create_checks_stamp() {
    let server = Server::new();
    let fs = server.mount().await;
    let exclusive = creating(Create::Exclusive(SetAttr { mode: Some(0o600), ..SetAttr::default() }));
    server.script(|call| match call {
        NqCall::Create(a) => Some(created(a, Time { seconds: 1000, nano_seconds: 1_000_000 })),
        other => Some(usual(other)),
    });
    let e = fs.open(&cx(), PathRef::name(&root(), &name("there")), &exclusive).await.unwrap_err();
    assert_eq!(e.errno, libc::EEXIST);
    server.script(|call| match call {
        NqCall::Create(a) => Some(created(a, a.args.attributes.atime)),
        other => Some(usual(other)),
    });
    let opened = fs.open(&cx(), PathRef::name(&root(), &name("new")), &exclusive).await.unwrap();
    assert!(opened.created);
    let [NqCall::Create(a)] = &server.called()[..] else { panic!("{:?}", server.called()) };
    assert_eq!((a.args.attributes.mode, a.args.attributes.size), (0o100_600, u64::MAX), "nothing is cut");
}

/// An open with CREATE of an existing file does not treat the file as new.
#[tokio::test(start_paused = true)]
async fn create_opens_existing_file() {
    let server = Server::new();
    let fs = server.mount().await;
    server.script(|call| match call {
        NqCall::Create(a) => Some(created(a, Time::default())),
        other => Some(usual(other)),
    });
    let how = creating(Create::IfMissing(SetAttr { mode: Some(0o600), ..SetAttr::default() }));
    let opened = fs.open(&cx(), PathRef::name(&root(), &name("there")), &how).await.unwrap();
    assert!(!opened.created);
    assert_eq!(opened.node.fh, fh(handle(1)), "what LOOKUP found");
    assert!(
        server.called().iter().any(|c| matches!(c, NqCall::Access(_))),
        "the caller's rights are asked for"
    );
}

/// The server may create the file and answer TRYLATER. The next CREATE finds the file and
/// recognises the stamp.
#[tokio::test(start_paused = true)]
async fn a_stamp_outlives_a_busy_server() {
    let server = Server::new();
    let fs = server.mount().await;
    let mut first = None;
    server.script(move |call| match call {
        NqCall::Create(a) => match first {
            None => {
                first = Some(a.args.attributes.atime);
                Some(NqReply::Create(Res::Err(Stat::TRYLATER)))
            }
            Some(stamp) => Some(created(a, stamp)),
        },
        other => Some(usual(other)),
    });
    let how = creating(Create::Exclusive(SetAttr::default()));
    fs.open(&cx(), PathRef::name(&root(), &name("new")), &how).await.unwrap();
    assert_eq!(server.called().len(), 2);
}

/// The server does not treat a write of this client as delayed. No write counts as lost before it
/// is stable.
/// Promise: 7a
#[tokio::test(start_paused = true)]
async fn writes_are_new_and_stable() {
    let server = Server::new();
    let fs = server.mount().await;
    server.script(|call| Some(usual(call)));
    let (f, data) = (fh(handle(1)), Data::from(Bytes::from_static(b"abcdef")));
    let file = File { fh: &f, open: None };
    fs.write(&cx(), file, 0, data, Stability::Unstable).await.unwrap();
    fs.commit(&cx(), file).await.unwrap();
    let [NqCall::Write(a)] = &server.called()[..] else { panic!("{:?}", server.called()) };
    assert_eq!((a.lease, a.args.append), (LeaseRequest::Write(0), false));
}

/// ACCESS answers all rights together. After a no the client asks for each right.
#[tokio::test(start_paused = true)]
async fn access_asks_each_right() {
    let server = Server::new();
    let fs = server.mount().await;
    server.script(|call| match call {
        NqCall::Access(a) if a.args.write => Some(NqReply::Access(Res::Err(Stat::ROFS))),
        NqCall::Access(a) if a.args.exec => Some(NqReply::Access(Res::Err(Stat::ACCES))),
        other => Some(usual(other)),
    });
    let want = Access::READ | Access::MODIFY | Access::EXTEND | Access::EXECUTE;
    assert_eq!(fs.access(&cx(), &fh(handle(1)), want).await.unwrap(), Access::READ);
    assert_eq!(server.called().len(), 4);
    server.script(|call| Some(usual(call)));
    assert_eq!(fs.access(&cx(), &fh(handle(1)), want).await.unwrap(), want);
    assert_eq!(server.called().len(), 1);
}

/// A cookie of a removed entry does not mean that the directory is removed.
#[tokio::test(start_paused = true)]
async fn stale_cookie_keeps_directory() {
    let server = Server::new();
    let fs = server.mount().await;
    let stale = NqReply::Readdirlook(Res::Err(Stat::STALE));
    let said = stale.clone();
    server.script(move |call| match call {
        NqCall::Readdirlook(_) => Some(said.clone()),
        other => Some(usual(other)),
    });
    let errno = async |at| fs.readdir(&cx(), &root(), at, [0; 8], 4096, true).await.unwrap_err().errno;
    assert_eq!((errno(9).await, errno(0).await), (libc::EIO, libc::ESTALE));
    server.script(move |call| match call {
        NqCall::Readdirlook(_) => Some(stale.clone()),
        _ => Some(NqReply::Getattr(Res::Err(Stat::STALE))),
    });
    assert_eq!(errno(9).await, libc::ESTALE);
}

/// Listings have filehandles with and without attributes. A file has the same fileid in both.
/// Promise: 7a
#[tokio::test(start_paused = true)]
async fn a_file_has_one_number() {
    let server = Server::new();
    let fs = server.mount().await;
    server.script(|call| match call {
        NqCall::Readdirlook(_) => {
            let entry = |n: u8, name: &'static [u8]| EntryLook {
                cachable: 0,
                duration: 0,
                rev: 1,
                entry_fh: handle(n),
                entry_attrib: file(),
                fid: 7,
                name: Filename::copy(name),
                // The server folds two longer cookies to this one.
                cookie: 5,
            };
            let entries = Chain(vec![entry(1, b"a"), entry(2, b"b")]);
            Some(NqReply::Readdirlook(Res::Ok(LeaseReply::None, ReaddirlookOk { entries, eof: true })))
        }
        other => Some(usual(other)),
    });
    let bare = fs.readdir(&cx(), &root(), 0, [0; 8], 4096, false).await.unwrap().entries;
    let full = fs.readdir(&cx(), &root(), 0, [0; 8], 4096, true).await.unwrap().entries;
    assert_ne!(bare[0].cookie, bare[1].cookie);
    assert_eq!(bare.iter().map(|e| e.cookie as u32).collect::<Vec<_>>(), [5, 5]);
    let found = fs.walk(&cx(), PathRef::name(&root(), &name("a")), WalkRequest::default()).await.unwrap();
    assert_eq!(bare[0].fileid, full[0].node.as_ref().unwrap().attrs.attr.fileid);
    assert_eq!(bare[0].fileid, found.steps[0].attrs.attr.fileid);
    assert_ne!(bare[0].fileid, bare[1].fileid, "the server folds both to 7");
}

/// Malformed replies give errors and no panic, HELLO included.
#[tokio::test(start_paused = true)]
async fn nonsense_is_refused() {
    let server = Server::new();
    let fs = server.mount().await;
    let f = fh(handle(1));
    server.script(|call| match call {
        NqCall::Getattr(_) => Some(NqReply::Getattr(Res::Ok(LeaseReply::None, Fattr::default()))),
        NqCall::Read(a) => {
            let data = vec![0; a.args.count as usize + 1].into();
            Some(NqReply::Read(Res::Ok(
                LeaseReply::None,
                ReadOk { attributes: file(), data: hither_proto::xdr::Opaque(data) },
            )))
        }
        // The reply of another procedure.
        NqCall::Readlink(_) => Some(NqReply::Getattr(Res::Ok(LeaseReply::None, file()))),
        NqCall::Access(_) => Some(NqReply::Access(Res::Err(Stat(Nfsstat3::JUKEBOX.0)))),
        other => Some(usual(other)),
    });
    let file = File { fh: &f, open: None };
    assert_eq!(fs.getattr(&cx(), file).await.unwrap_err().errno, libc::EIO, "no such type");
    assert_eq!(fs.read(&cx(), file, 0, 100).await.unwrap_err().errno, libc::EIO, "more than was asked for");
    assert_eq!(fs.readlink(&cx(), &f).await.unwrap_err().errno, libc::EIO);
    assert_eq!(
        fs.access(&cx(), &f, Access::READ).await.unwrap_err().errno,
        libc::EREMOTEIO,
        "not NQNFS's number"
    );
    let short = hither_vfs::Fh(Bytes::from_static(b"short"));
    assert_eq!(fs.getattr(&cx(), File { fh: &short, open: None }).await.unwrap_err().errno, libc::ESTALE);

    let server = Server::new();
    *server.hello.lock() = Some(Res::Err(Stat::PERM));
    let client = Client::new(
        Greeting::new(server.net.connector(), 1),
        ClientConfig::default(),
        Arc::new(Stats::new()),
    );
    let refused = client.connect_now().await.unwrap_err().to_string();
    assert!(refused.contains("HELLO"), "{refused}");
}

#[test]
fn numbers_of_devices_and_files_survive() {
    for (major, minor) in [(0, 0), (8, 1), (255, 255), (1, 0x00ff_ffff)] {
        let d = Specdata3 { specdata1: major, specdata2: minor };
        let number = device_number(&d).unwrap();
        let f = Fattr { ftype: Ftype::CHR, rdev: number, ..Fattr::default() };
        assert_eq!(attr(&f, &handle(1)).rdev, d);
    }
    assert_eq!(device_number(&Specdata3 { specdata1: 256, specdata2: 0 }), None);
    assert_eq!(fileid(9, &handle(1)) as u32, 9);
    assert_ne!(fileid(9, &handle(1)), fileid(9, &handle(2)));
}

/// NQNFS has no types for FIFOs and sockets. The mode then gives the type.
#[test]
fn mode_gives_missing_file_type() {
    let kind = |mode| attr(&Fattr { ftype: Ftype::NON, mode, ..Fattr::default() }, &handle(1)).ftype;
    assert_eq!((kind(0o010_644), kind(0o140_644)), (Ftype3::FIFO, Ftype3::SOCK));
    assert_eq!(kind(0o644).name(), None);
    let _ = FileKind::Fifo;
}

/// Each NQNFS status becomes a named status of NFSv3. Numbers that only NFSv3 has become
/// SERVERFAULT.
#[test]
fn statuses_map_to_nfsv3() {
    assert_eq!(status(Stat::TRYLATER), Nfsstat3::JUKEBOX);
    assert_eq!(status(Stat::NOTEMPTY), Nfsstat3::NOTEMPTY);
    assert_eq!(status(Stat(Nfsstat3::JUKEBOX.0)), Nfsstat3::SERVERFAULT);
    assert_eq!(status(Stat::EXPIRED), Nfsstat3::IO);
    // Each converted status has a name in NFSv3, so that an errno exists.
    for n in 1..=600 {
        assert!(status(Stat(n)).name().is_some(), "{n}");
    }
}

/// A reply that is cut short at any byte is an error.
#[test]
fn truncated_reply_is_error() {
    let whole = Enc::of(&Res::Ok(LeaseReply::None, file())).to_bytes();
    for len in 0..whole.len() {
        assert!(hither_proto::xdr::Dec::all::<Res<Fattr>>(&whole.slice(..len)).is_err());
    }
    let mut e = Enc::new();
    HELLO.enc(&mut e);
    assert_eq!(e.to_bytes().len(), 20);
}
