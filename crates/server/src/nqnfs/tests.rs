//! The promises of NQNFS, over connections in memory and on virtual time.

mod paced;
mod races;

use super::*;
use crate::table::{ExportSpec, Table};
use crate::tests::{env, model};
use crate::{Options, Server};
use bytes::Bytes;
use hither_proto::nqnfs::mount1::Mnt1Args;
use hither_proto::nqnfs::*;
use hither_proto::record;
use hither_proto::rpc::{AuthSys, Message, OpaqueAuth, Procedure, ReplyHeader, call};
use hither_proto::xdr::{Opaque, Xdr};
use hither_rpc::server::{Acceptor, ServerLimits};
use hither_vfs::model::Model;
use hither_vfs::{Extra, Vfs};
use std::collections::VecDeque;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const TERM: u32 = 10;
const SKEW: u64 = 3;
const SLACK: u64 = 5;
/// Longer than any lease or timer lasts.
const SILENCE: Duration = Duration::from_secs(600);

struct Lab {
    server: Arc<Server>,
    acceptor: Acceptor,
}

impl Lab {
    fn new(model: &Arc<Model>, seed: u64, state_dir: Option<PathBuf>) -> Self {
        Self::beside(model, seed, state_dir, Others::Nobody)
    }

    /// A server whose files local programs may change.
    fn beside(model: &Arc<Model>, seed: u64, state_dir: Option<PathBuf>, others: Others) -> Self {
        Self::with(model, seed, state_dir, others, |_| {})
    }

    /// A server with a limit of calls a second while clients recover.
    fn at_pace(model: &Arc<Model>, seed: u64, state_dir: Option<PathBuf>, recovery_rate: u32) -> Self {
        Self::with(model, seed, state_dir, Others::Nobody, |options| {
            // Without NFSv3, because its clients have a recovery time of their own.
            (options.v3, options.recovery_rate) = (recovery_rate == 0, recovery_rate);
        })
    }

    fn with(
        model: &Arc<Model>,
        seed: u64,
        state_dir: Option<PathBuf>,
        others: Others,
        adjust: impl FnOnce(&mut Options),
    ) -> Self {
        Self::of(model.clone(), seed, state_dir, others, adjust)
    }

    /// The same for any file system.
    fn of<V: Vfs + Extra>(
        vfs: Arc<V>,
        seed: u64,
        state_dir: Option<PathBuf>,
        others: Others,
        adjust: impl FnOnce(&mut Options),
    ) -> Self {
        let rights = Rights { squash: crate::access::Squash::None, secure: false, ..Rights::default() };
        let rights = Rights { read_only: false, ..rights };
        let spec = ExportSpec {
            path: "/".into(),
            aliases: vec![],
            vfs: vfs.clone(),
            extra: Some(vfs),
            admit: Arc::new(move |_: &crate::access::Asker<'_>| Some(rights.clone())),
            epoch: None,
            others,
            covers: None,
        };
        let nqnfs = NqnfsOptions { term: Duration::from_secs(TERM.into()), ..NqnfsOptions::default() };
        let mut options =
            Options { state_dir, nqnfs: Some(nqnfs), delegations_max: 0, ..Options::new(env(seed)) };
        adjust(&mut options);
        let server = Server::new(options, Table::new(vec![spec]).unwrap()).unwrap();
        let acceptor = Acceptor::new(server.clone(), ServerLimits::default());
        tokio::spawn(server.clone().tend());
        Self { server, acceptor }
    }

    async fn client(&self, number: u64) -> Client {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(far);
        let addr = "192.0.2.1:700".parse().unwrap();
        self.acceptor.serve(reader, writer, addr, addr);
        let records = record::Reader::new(Default::default());
        let mut c = Client {
            stream: near,
            records,
            xid: number as u32 * 100_000,
            uid: 0,
            evicted: VecDeque::new(),
            dir: None,
            gives_up: true,
            early: Vec::new(),
        };
        if number > 0 {
            let hello = HelloArgs { client: number, fh_max: 64, transfer_max: 1 << 20 };
            let (_, ok) = c.ask(hello).await.into_result().unwrap();
            assert_eq!((ok.fh_max, ok.transfer_max, ok.term_max), (64, 1 << 20, 2 * TERM));
        }
        let Fhstatus::Granted(dir) = c.call(&Mnt1Args { dirpath: Opaque::copy(b"/") }).await else {
            panic!()
        };
        c.dir = Some(dir);
        c
    }
}

/// A connection of a client.
struct Client {
    stream: DuplexStream,
    records: record::Reader,
    xid: u32,
    uid: u32,
    /// Evicted files that the test has not looked at yet.
    evicted: VecDeque<WireFh>,
    dir: Option<WireFh>,
    /// The client answers evictions with VACATED at once.
    gives_up: bool,
    /// Replies to other calls than the one that the test waits for.
    early: Vec<(u32, Bytes)>,
}

impl Client {
    async fn send<P: Procedure>(&mut self, args: &P) -> u32 {
        self.xid += 1;
        let cred = AuthSys {
            stamp: 0,
            machinename: Default::default(),
            uid: self.uid,
            gid: 0,
            gids: Vec::new().into(),
        };
        let message = call(self.xid, P::PROG, P::VERS, P::PROC, &OpaqueAuth::sys(&cred), Enc::of(args));
        self.stream.write_all(&record::frame(message).concat()).await.unwrap();
        self.xid
    }

    /// Receives one message. Answers EVICTED according to `gives_up`.
    async fn take(&mut self) {
        let record = loop {
            if let Some(record) = self.records.next_record().unwrap() {
                break record;
            }
            let mut space = self.records.space();
            let read = tokio::time::timeout(SILENCE, self.stream.read_buf(&mut space));
            assert_ne!(read.await.expect("nothing comes").unwrap(), 0, "disconnected");
        };
        match Message::decode(&record).unwrap() {
            Message::Reply(header, body) => {
                assert!(header.is_success(), "{header:?}");
                self.early.push((header.xid, body));
            }
            Message::Call(header, body) => {
                assert_eq!((header.prog, header.vers, header.proc), (PROGRAM, VERSION, 21));
                let args: EvictedArgs = Dec::all(&body).unwrap();
                self.evicted.push_back(args.file);
                let reply = Enc::of(&ReplyHeader::success(header.xid));
                self.stream.write_all(&record::frame(reply).concat()).await.unwrap();
                if self.gives_up {
                    self.send(&Asking::nothing(VacatedArgs { file: args.file })).await;
                }
            }
            Message::UnknownVersion { .. } => panic!("no RPC"),
        }
    }

    async fn answer<T: Xdr>(&mut self, xid: u32) -> T {
        loop {
            if let Some(at) = self.early.iter().position(|(x, _)| *x == xid) {
                return Dec::all(&self.early.swap_remove(at).1).unwrap();
            }
            self.take().await;
        }
    }

    async fn call<P: Procedure>(&mut self, args: &P) -> P::Reply {
        let xid = self.send(args).await;
        self.answer(xid).await
    }

    async fn ask<A>(&mut self, args: A) -> <Asking<A> as Procedure>::Reply
    where
        Asking<A>: Procedure,
    {
        self.call(&Asking::nothing(args)).await
    }

    async fn create(&mut self, name: &str) -> WireFh {
        let r#where = Diropargs { dir: self.dir.unwrap(), name: Opaque::copy(name.as_bytes()) };
        let made =
            self.ask(CreateArgs { r#where, attributes: Sattr { mode: 0o644, ..Sattr::NOTHING } }).await;
        made.into_result().unwrap().1.file
    }

    async fn lease(&mut self, file: WireFh, rw: Cachetype) -> Result<GetleaseOk, Stat> {
        self.ask(GetleaseArgs { file, rw, duration: TERM }).await.into_result().map(|r| r.1)
    }

    async fn read(&mut self, file: WireFh) -> Result<(Vec<u8>, u64), Stat> {
        let read = self.ask(ReadArgs { file, offset: 0, count: 8192 }).await.into_result()?.1;
        Ok((read.data.to_vec(), read.attributes.rev))
    }

    async fn write(
        &mut self,
        file: WireFh,
        lease: LeaseRequest,
        text: &str,
    ) -> Result<(LeaseReply, Fattr), Stat> {
        let args = WriteArgs { file, offset: 0, append: false, data: Opaque::copy(text.as_bytes()) };
        self.call(&Asking { lease, args }).await.into_result()
    }

    /// Serves evictions until another future completes.
    async fn until<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                done = &mut other => return done,
                () = self.take() => {}
            }
        }
    }
}

/// Several clients hold read leases of a file together. A write by another client evicts all of
/// them.
#[tokio::test(start_paused = true)]
async fn writer_evicts_all_readers() {
    let lab = Lab::new(&model(), 1, None);
    let (mut a, mut b, mut w) = (lab.client(1).await, lab.client(2).await, lab.client(3).await);
    let f = w.create("f").await;
    for c in [&mut a, &mut b] {
        let lease = c.lease(f, Cachetype::READ).await.unwrap();
        assert!(lease.cachable && lease.duration == TERM, "{lease:?}");
    }
    let before = a.read(f).await.unwrap().1;
    let wrote = a.until(b.until(w.write(f, LeaseRequest::None, "new"))).await.unwrap();
    assert_eq!((a.evicted.pop_front(), b.evicted.pop_front()), (Some(f), Some(f)));
    assert!(wrote.1.rev > before);
    assert_eq!(a.read(f).await.unwrap(), (b"new".to_vec(), wrote.1.rev));
}

/// A read by another client is answered after the holder of the write lease has sent its delayed
/// write.
#[tokio::test(start_paused = true)]
async fn read_waits_for_delayed_write() {
    let lab = Lab::new(&model(), 1, None);
    let (mut w, mut r) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    assert!(w.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    w.gives_up = false;
    let xid = r.send(&Asking::nothing(ReadArgs { file: f, offset: 0, count: 100 })).await;
    w.take().await;
    assert_eq!(w.evicted.pop_front(), Some(f));
    // The read is not answered before the writer has pushed its delayed write.
    assert!(tokio::time::timeout(Duration::from_millis(500), r.take()).await.is_err());
    w.write(f, LeaseRequest::None, "delayed").await.unwrap();
    w.ask(VacatedArgs { file: f }).await;
    let read: Res<ReadOk> = r.answer(xid).await;
    assert_eq!(&read.into_result().unwrap().1.data[..], b"delayed");
}

/// A file that several clients write gets only non-caching leases. A caching lease is granted after
/// a term without another client.
#[tokio::test(start_paused = true)]
async fn shared_writers_get_noncaching_leases() {
    let lab = Lab::new(&model(), 1, None);
    let (mut a, mut b) = (lab.client(1).await, lab.client(2).await);
    let f = a.create("f").await;
    assert!(a.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    let shared = a.until(b.lease(f, Cachetype::WRITE)).await.unwrap();
    assert!(!shared.cachable, "the first client still uses it: {shared:?}");
    assert!(!a.lease(f, Cachetype::READ).await.unwrap().cachable);
    a.write(f, LeaseRequest::Write(TERM), "one").await.unwrap();
    assert_eq!(b.read(f).await.unwrap().0, b"one");
    b.write(f, LeaseRequest::Write(TERM), "two").await.unwrap();
    assert_eq!(a.read(f).await.unwrap().0, b"two");
    tokio::time::sleep(Duration::from_secs(u64::from(2 * TERM) + 1)).await;
    assert!(a.lease(f, Cachetype::READ).await.unwrap().cachable, "no other client has used it for a term");
}

/// The lease of a disconnected writer ends after its term, the clock skew and the write slack. Its
/// delayed writes then get EXPIRED.
#[tokio::test(start_paused = true)]
async fn dead_writer_loses_lease() {
    let lab = Lab::new(&model(), 1, None);
    let (mut w, mut r) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    w.write(f, LeaseRequest::Write(TERM), "old").await.unwrap();
    assert!(w.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    let began = tokio::time::Instant::now();
    drop(w);
    while r.read(f).await == Err(Stat::TRYLATER) {}
    let waited = began.elapsed().as_secs();
    // The term, clock skew and write slack.
    assert!(
        (u64::from(TERM) + SKEW + SLACK..u64::from(TERM) + SKEW + SLACK + 5).contains(&waited),
        "{waited}"
    );
    // The client was only disconnected. Its delayed write conflicts with reads by other clients
    // since.
    let mut w = lab.client(1).await;
    assert_eq!(w.write(f, LeaseRequest::None, "late").await, Err(Stat::EXPIRED));
    assert_eq!(r.read(f).await.unwrap().0, b"old");
    w.write(f, LeaseRequest::Write(TERM), "new").await.unwrap();
    w.write(f, LeaseRequest::None, "newer").await.unwrap();
}

/// The lease of a disconnected reader ends after its term and the clock skew. A waiting write then
/// succeeds.
#[tokio::test(start_paused = true)]
async fn dead_reader_loses_lease() {
    let lab = Lab::new(&model(), 1, None);
    let (mut r, mut w) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    assert!(r.lease(f, Cachetype::READ).await.unwrap().cachable);
    let began = tokio::time::Instant::now();
    drop(r);
    while w.write(f, LeaseRequest::Write(TERM), "new").await.err() == Some(Stat::TRYLATER) {}
    let waited = began.elapsed().as_secs();
    assert!((u64::from(TERM) + SKEW..u64::from(TERM) + SKEW + 5).contains(&waited), "{waited}");
}

/// After a restart the server accepts only delayed writes until earlier leases and the write slack
/// have ended. All other calls get "try later".
#[tokio::test(start_paused = true)]
async fn restart_serves_only_delayed_writes() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = Lab::new(&model, 1, Some(dir.path().into()));
    let mut w = lab.client(1).await;
    let f = w.create("f").await;
    let lease = w.lease(f, Cachetype::WRITE).await.unwrap();
    assert!(lease.cachable);
    let revision = w.write(f, LeaseRequest::None, "one").await.unwrap().1.rev;
    lab.acceptor.shutdown();
    drop(lab);
    let lab = Lab::new(&model, 2, Some(dir.path().into()));
    let began = tokio::time::Instant::now();
    let (mut w, mut r) = (lab.client(1).await, lab.client(2).await);
    assert_eq!(r.read(f).await, Err(Stat::TRYLATER));
    assert_eq!(r.write(f, LeaseRequest::Write(TERM), "fresh").await.err(), Some(Stat::TRYLATER));
    assert_eq!(w.lease(f, Cachetype::READ).await.err(), Some(Stat::TRYLATER));
    let pushed = w.write(f, LeaseRequest::None, "delayed").await.unwrap().1.rev;
    assert!(pushed > revision, "revisions never repeat");
    let read = loop {
        match r.read(f).await {
            Err(Stat::TRYLATER) => tokio::time::sleep(Duration::from_millis(500)).await,
            read => break read.unwrap(),
        }
    };
    assert_eq!(read.0, b"delayed");
    let waited = began.elapsed().as_secs();
    // No client had requested more than the default term.
    let end = u64::from(TERM) + SKEW + SLACK;
    assert!((end..end + 3).contains(&waited), "{waited}");
    assert!(r.lease(f, Cachetype::READ).await.unwrap().cachable);
}

/// A server that ended without leases serves all calls at once after its restart. Expired and
/// returned leases do not count.
#[tokio::test(start_paused = true)]
async fn leaseless_shutdown_needs_no_wait() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = Lab::new(&model, 1, Some(dir.path().into()));
    let mut c = lab.client(1).await;
    let f = c.create("f").await;
    let first = c.write(f, LeaseRequest::None, "one").await.unwrap().1.rev;
    assert!(c.lease(f, Cachetype::READ).await.unwrap().cachable);
    tokio::time::sleep(Duration::from_secs(u64::from(TERM) + SKEW + 1)).await;
    lab.server.end();
    drop(lab);
    let lab = Lab::new(&model, 2, Some(dir.path().into()));
    let mut c = lab.client(1).await;
    assert!(c.read(f).await.unwrap().1 > first, "cached data may be old");
    // The same is true for a server whose clients have given up their leases and are still
    // connected.
    assert!(c.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    c.ask(VacatedArgs { file: f }).await;
    lab.server.end();
    drop(lab);
    let lab = Lab::new(&model, 3, Some(dir.path().into()));
    lab.client(1).await.read(f).await.unwrap();
}

/// After a restart the server also waits for leases with a longer term than the default.
#[tokio::test(start_paused = true)]
async fn restart_waits_for_longest_lease() {
    let (model, dir) = (model(), tempfile::tempdir().unwrap());
    let lab = Lab::new(&model, 1, Some(dir.path().into()));
    let mut c = lab.client(1).await;
    let f = c.create("f").await;
    let getlease = |duration| GetleaseArgs { file: f, rw: Cachetype::READ, duration };
    for duration in [TERM, TERM + 1, TERM] {
        c.ask(getlease(duration)).await.into_result().unwrap();
    }
    lab.acceptor.shutdown();
    drop(lab);
    let lab = Lab::new(&model, 2, Some(dir.path().into()));
    let (began, mut c) = (tokio::time::Instant::now(), lab.client(1).await);
    while c.read(f).await == Err(Stat::TRYLATER) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let end = 2 * u64::from(TERM) + SKEW + SLACK;
    assert!((end..end + 3).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

/// Each connection without a client number is a separate client. A connection cannot change its
/// client.
#[tokio::test(start_paused = true)]
async fn nameless_connections_are_separate_clients() {
    let lab = Lab::new(&model(), 1, None);
    let (mut a, mut b) = (lab.client(0).await, lab.client(0).await);
    let f = a.create("f").await;
    assert!(a.lease(f, Cachetype::READ).await.unwrap().cachable);
    a.until(b.write(f, LeaseRequest::None, "new")).await.unwrap();
    assert_eq!(a.evicted.pop_front(), Some(f));
    // A connection of one client cannot become a connection of another client.
    let hello = HelloArgs { client: 9, fh_max: 32, transfer_max: 0 };
    assert_eq!(a.ask(hello).await, Res::Err(Stat::PERM));
}

/// A client that reconnects keeps its leases. Evictions use the new connection.
#[tokio::test(start_paused = true)]
async fn reconnected_client_keeps_lease() {
    let lab = Lab::new(&model(), 1, None);
    let (mut a, mut b) = (lab.client(1).await, lab.client(2).await);
    let f = a.create("f").await;
    assert!(a.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    drop(a);
    let mut a = lab.client(1).await;
    a.write(f, LeaseRequest::None, "delayed").await.unwrap();
    // The eviction uses the new connection.
    let read = a.until(b.read(f)).await.unwrap();
    assert_eq!((read.0, a.evicted.pop_front()), (b"delayed".to_vec(), Some(f)));
}

/// Concurrent appending writes are all stored, and none overwrites another.
#[tokio::test(start_paused = true)]
async fn concurrent_appends_lose_nothing() {
    let lab = Lab::new(&model(), 1, None);
    let mut c = lab.client(1).await;
    let f = c.create("f").await;
    let mut xids = Vec::new();
    for n in 0..32u8 {
        let args = WriteArgs { file: f, offset: 0, append: true, data: Opaque::copy(&[n; 7]) };
        xids.push(c.send(&Asking::nothing(args)).await);
    }
    for xid in xids {
        let _: Fattr = c.answer::<Res<Fattr>>(xid).await.into_result().unwrap().1;
    }
    let mut bytes = c.read(f).await.unwrap().0;
    assert_eq!(bytes.len(), 32 * 7);
    bytes.sort_unstable();
    assert!(bytes.chunks(7).enumerate().all(|(n, part)| part == [n as u8; 7]));
}

/// READDIRLOOK lists each entry once, with its filehandle, attributes and lease. A file that
/// another client may be writing gets no lease.
#[tokio::test(start_paused = true)]
async fn readdirlook_grants_leases() {
    let lab = Lab::new(&model(), 1, None);
    let (mut c, mut w) = (lab.client(1).await, lab.client(2).await);
    let mut handles = Vec::new();
    for n in 0..100 {
        handles.push(c.create(&format!("file{n}")).await);
    }
    assert!(w.lease(handles[7], Cachetype::WRITE).await.unwrap().cachable);
    let (mut cookie, mut names, mut leased) = (0, std::collections::BTreeMap::new(), 0);
    loop {
        let args = ReaddirlookArgs { file: c.dir.unwrap(), cookie, cnt: 2000, duration: TERM };
        let page = c.ask(args).await.into_result().unwrap().1;
        cookie = page.entries.last().unwrap().cookie;
        for e in page.entries.0 {
            leased += u32::from(e.cachable == 1 && e.duration == TERM);
            assert_eq!(e.entry_fh == handles[7], e.duration == 0, "another client may have delayed writes");
            assert!(e.rev > 0 && e.entry_attrib.ftype == Ftype::REG);
            assert!(names.insert(e.name.to_vec(), e.entry_fh).is_none());
        }
        if page.eof {
            break;
        }
    }
    assert_eq!((names.len(), leased), (100, 99));
    assert!(handles.iter().enumerate().all(|(n, fh)| names[format!("file{n}").as_bytes()] == *fh));
    assert!(w.evicted.is_empty());
    let list = c.ask(ReaddirArgs { dir: c.dir.unwrap(), cookie: 0, count: 1 << 20 }).await;
    let list = list.into_result().unwrap().1;
    assert_eq!((list.entries.len(), list.eof, &list.entries[1].name[..]), (102, true, &b".."[..]));
}

#[tokio::test(start_paused = true)]
async fn dot_dot_is_the_directory_above() {
    let model = model();
    let lab = Lab::new(&model, 1, None);
    let mut c = lab.client(1).await;
    let cx = hither_vfs::RequestContext::new(Arc::new(hither_vfs::Cred::root()));
    let set = hither_vfs::SetAttr::default();
    let mut at = model.root(&cx).await.unwrap();
    for name in ["d", "e"] {
        let name = hither_vfs::Name::new(name.to_owned()).unwrap();
        let made = model.mkdir(&cx, &at.fh, &name, &set).await.unwrap().node;
        let dir = c.dir.unwrap();
        let down = c.ask(LookupArgs { duration: 0, dir, name: name.bytes()[..].into() }).await;
        let below = down.into_result().unwrap().1.file;
        let up = c.ask(LookupArgs { duration: 0, dir: below, name: b".."[..].into() }).await;
        assert_eq!(up.into_result().unwrap().1.file, dir);
        let list = c.ask(ReaddirArgs { dir: below, cookie: 0, count: 4096 }).await.into_result().unwrap().1;
        let above = list.entries.iter().find(|e| &e.name[..] == b"..").unwrap();
        assert_eq!(above.fileid, convert::fold(at.attrs.attr.fileid));
        (at, c.dir) = (made, Some(below));
    }
}

/// A LOOKUP is answered after another client's delayed writes have arrived, and its attributes
/// include them.
#[tokio::test(start_paused = true)]
async fn lookup_includes_delayed_writes() {
    let lab = Lab::new(&model(), 1, None);
    let (mut w, mut r) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    assert!(w.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    w.gives_up = false;
    let args = LookupArgs { duration: TERM, dir: r.dir.unwrap(), name: Opaque::copy(b"f") };
    let xid = r.send(&Asking::nothing(args)).await;
    w.take().await;
    w.write(f, LeaseRequest::None, "delayed").await.unwrap();
    w.ask(VacatedArgs { file: f }).await;
    let found: Res<LookupOk> = r.answer(xid).await;
    let found = found.into_result().unwrap().1;
    assert_eq!((found.file, found.attr.size), (f, 7));
    assert!(matches!(found.lookup_lease, LeaseReply::Read(l) if !l.cachable), "{found:?}");
}

/// Invalid filehandles, durations, offsets, times and cookies do not stop the server. It serves the
/// same client afterwards.
#[tokio::test(start_paused = true)]
async fn invalid_arguments_are_harmless() {
    let lab = Lab::new(&model(), 1, None);
    let mut c = lab.client(1).await;
    let f = c.create("f").await;
    for file in [WireFh::from_bytes(&[0xff; 32]).unwrap(), WireFh::from_bytes(&[0; 32]).unwrap()] {
        assert_eq!(c.ask(GetattrArgs { file }).await, Res::Err(Stat::STALE));
        assert_eq!(c.read(file).await.err(), Some(Stat::STALE));
        assert_eq!(c.lease(file, Cachetype::WRITE).await.err(), Some(Stat::STALE));
        // The server does not know the file, and the reply does not say so.
        c.ask(VacatedArgs { file }).await;
    }
    // The client holds no lease. The number of seconds is the largest possible.
    c.ask(VacatedArgs { file: f }).await;
    let long = c.ask(GetleaseArgs { file: f, rw: Cachetype::READ, duration: u32::MAX }).await;
    assert_eq!(long.into_result().unwrap().1.duration, 2 * TERM);
    let none = c.ask(GetleaseArgs { file: f, rw: Cachetype(77), duration: 5 }).await;
    assert!(!none.into_result().unwrap().1.cachable);
    let dir = c.dir.unwrap();
    assert!(!c.lease(dir, Cachetype::READ).await.unwrap().cachable, "directories are not leased");
    let far = WriteArgs { file: f, offset: u64::MAX - 1, append: false, data: Opaque::copy(b"xyz") };
    assert_eq!(c.ask(far).await, Res::Err(Stat::FBIG));
    let time = Time { seconds: 1, nano_seconds: 2_000_000_000 };
    let attributes = Sattr { mtime: time, ..Sattr::NOTHING };
    assert_eq!(c.ask(SetattrArgs { file: f, attributes }).await, Res::Err(Stat::IO));
    for cookie in [77, u32::MAX, 1 << 31] {
        let _ = c.ask(ReaddirArgs { dir, cookie, count: 0 }).await;
        let _ = c.ask(ReaddirlookArgs { file: dir, cookie, cnt: u32::MAX, duration: u32::MAX }).await;
    }
    c.write(f, LeaseRequest::Other(9), "works").await.unwrap();
    assert_eq!(c.read(f).await.unwrap().0, b"works");
}

/// READDIRLOOK leaves out entries that vanish meanwhile. A reply has an entry or ends the
/// directory, even when all entries of a part have vanished.
#[tokio::test(start_paused = true)]
async fn readdirlook_skips_vanished_entries() {
    let vfs = crate::tests::fading::Fading::new(model());
    let lab = Lab::of(vfs, 1, None, Others::Nobody, |_| {});
    let mut c = lab.client(1).await;
    for n in 0..60 {
        c.create(&format!("gone{n:02}")).await;
    }
    c.create("z").await;
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let args = ReaddirlookArgs { file: c.dir.unwrap(), cookie, cnt: 2000, duration: 0 };
        let page = c.ask(args).await.into_result().unwrap().1;
        names.extend(page.entries.iter().map(|e| e.name.to_vec()));
        match page.entries.last() {
            Some(last) if !page.eof => cookie = last.cookie,
            last => break assert!(page.eof || last.is_some(), "a part of the directory is missing"),
        }
    }
    assert_eq!(names, [b"z"]);
}

/// The NFSv3 handle of a file.
fn of_v3(file: WireFh) -> hither_proto::nfs3::Fh3 {
    Bytes::from(file.unpack().unwrap()).into()
}

/// READ, GETATTR and ACCESS of NFSv3 wait for the delayed writes of an NQNFS client. A WRITE of
/// NFSv3 evicts readers.
#[tokio::test(start_paused = true)]
async fn nfsv3_calls_evict_leases() {
    use hither_proto::nfs3;
    let lab = Lab::new(&model(), 1, None);
    let (mut w, mut other) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    for what in ["READ", "GETATTR", "ACCESS"] {
        let lease = loop {
            let lease = w.lease(f, Cachetype::WRITE).await.unwrap();
            if lease.cachable {
                break lease;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        w.gives_up = false;
        let file = of_v3(f);
        let xid = match what {
            "READ" => other.send(&nfs3::ReadArgs { file, offset: 0, count: 100 }).await,
            "GETATTR" => other.send(&nfs3::GetattrArgs { object: file }).await,
            _ => other.send(&nfs3::AccessArgs { object: file, access: 63 }).await,
        };
        w.take().await;
        assert_eq!(w.evicted.pop_front(), Some(f));
        let pushed = w.write(f, LeaseRequest::None, &format!("delayed {what}")).await.unwrap().1;
        assert!(pushed.rev > lease.rev);
        w.ask(VacatedArgs { file: f }).await;
        let size = match what {
            "READ" => {
                let nfs3::Res::Ok(ok) = other.answer::<nfs3::ReadRes>(xid).await else { panic!() };
                assert_eq!(&ok.data[..], b"delayed READ");
                ok.file_attributes.unwrap().size
            }
            "GETATTR" => match other.answer::<nfs3::GetattrRes>(xid).await {
                nfs3::Res::Ok(attr) => attr.size,
                nfs3::Res::Err(status, ()) => panic!("{status:?}"),
            },
            _ => match other.answer::<nfs3::AccessRes>(xid).await {
                nfs3::Res::Ok(ok) => ok.obj_attributes.unwrap().size,
                nfs3::Res::Err(status, _) => panic!("{status:?}"),
            },
        };
        assert_eq!(size, 12.max(pushed.size), "{what}");
        w.gives_up = true;
        tokio::time::sleep(Duration::from_secs(u64::from(2 * TERM) + 60)).await;
    }
    let lease = w.lease(f, Cachetype::READ).await.unwrap();
    assert!(lease.cachable);
    let args = nfs3::WriteArgs {
        file: of_v3(f),
        offset: 0,
        count: 3,
        stable: nfs3::StableHow::FILE_SYNC,
        data: Opaque::copy(b"new"),
    };
    let wrote = w.until(other.call(&args)).await;
    assert!(matches!(wrote, nfs3::Res::Ok(_)), "{wrote:?}");
    assert_eq!(w.evicted.pop_front(), Some(f));
    assert!(w.read(f).await.unwrap().1 > lease.rev);
}

/// A RENAME evicts other clients' leases of the file and of its target. A REMOVE does not wait for
/// the client's own lease.
#[tokio::test(start_paused = true)]
async fn rename_evicts_both_files() {
    let lab = Lab::new(&model(), 1, None);
    let (mut a, mut b) = (lab.client(1).await, lab.client(2).await);
    let dir = a.dir.unwrap();
    let at = |name: &str| Diropargs { dir, name: Opaque::copy(name.as_bytes()) };
    let (f, g) = (a.create("f").await, a.create("g").await);
    assert!(a.lease(f, Cachetype::READ).await.unwrap().cachable);
    assert!(a.lease(g, Cachetype::READ).await.unwrap().cachable);
    let renamed = a.until(b.ask(RenameArgs { from: at("f"), to: at("g") })).await;
    assert_eq!(renamed, Res::Ok(LeaseReply::None, ()));
    let mut evicted: Vec<WireFh> = a.evicted.drain(..).collect();
    evicted.sort_unstable();
    let mut both = vec![f, g];
    both.sort_unstable();
    assert_eq!(evicted, both);
    // A client's own lease does not delay its REMOVE.
    tokio::time::sleep(Duration::from_secs(u64::from(2 * TERM) + 60)).await;
    assert!(b.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    assert_eq!(b.ask(RemoveArgs { what: at("g") }).await, Res::Ok(LeaseReply::None, ()));
    assert!(b.evicted.is_empty());
    assert_eq!(b.read(f).await.err(), Some(Stat::STALE));
}

/// A CREATE that truncates an existing file waits for another client's delayed writes. The
/// truncation includes them.
#[tokio::test(start_paused = true)]
async fn create_truncates_delayed_writes() {
    let lab = Lab::new(&model(), 1, None);
    let (mut w, mut c) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    assert!(w.lease(f, Cachetype::WRITE).await.unwrap().cachable);
    w.gives_up = false;
    let r#where = Diropargs { dir: c.dir.unwrap(), name: Opaque::copy(b"f") };
    // The file is empty at the server.
    let args = CreateArgs { r#where, attributes: Sattr { size: 0, ..Sattr::NOTHING } };
    let xid = c.send(&Asking::nothing(args)).await;
    w.take().await;
    w.write(f, LeaseRequest::None, "delayed").await.unwrap();
    w.ask(VacatedArgs { file: f }).await;
    let made: Res<DiropOk> = c.answer(xid).await;
    let made = made.into_result().unwrap().1;
    assert_eq!((made.file, made.attributes.size), (f, 0));
    assert_eq!(c.read(f).await.unwrap().0, b"");
}
