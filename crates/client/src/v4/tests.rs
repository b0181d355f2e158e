//! Tests with a server in memory, on virtual time: slots, recovery, interrupted calls, recalls.

mod batches;
mod chains;
mod locks;
mod opens;
mod replay_check;
mod server;
mod times;

use super::*;
use crate::Recovery;
use crate::testing::options;
use bytes::Bytes;
use hither_proto::nfs4::{NfsOpnum4, Stateid, seq4_status};
use hither_rpc::sim::{Conditions, Cut, Net};
use hither_vfs::{Create, Cred, OpenAccess, SetTime, Time};
use server::Server;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const RW: OpenAccess = OpenAccess::READ.union(OpenAccess::WRITE);
const ALL: FileRange = FileRange { start_bytes: 0, end_bytes: u64::MAX };
const ME: LockOwner = LockOwner { id: 1, flock: false };

/// Time after which a CLOSE was sent.
const CLOSE_DELAY: Duration = Duration::from_millis(250);

struct Test {
    net: Net,
    server: Server,
    v4: Arc<V4>,
    root: Fh,
}

fn env() -> Env {
    let n = Arc::new(AtomicU64::new(1));
    Env {
        random: Arc::new(move || n.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)),
        wall: Arc::new(|| std::time::UNIX_EPOCH),
    }
}

impl Test {
    /// Restarts the server. Its grace period lasts twenty seconds.
    fn restart(&self) {
        self.server.restart();
        self.net.cut(Cut::Reset);
        let server = self.server.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            server.lock().grace = false;
        });
    }

    async fn new() -> Self {
        Self::with(options(), Conditions::default(), |_| {}).await
    }

    async fn with(options: Options, conditions: Conditions, prepare: impl Fn(&Server)) -> Self {
        let net = Net::new(7, conditions);
        let server = Server::new(&net);
        prepare(&server);
        let addr = options.addrs[0];
        let v4 = V4::mount(options, Version::V42, env(), Arc::new(Stats::new()), net.connector(), addr);
        let v4 = Arc::new(v4.await.expect("mount"));
        let root = v4.root(&cx()).await.unwrap().fh;
        Test { net, server, v4, root }
    }

    async fn create(&self, file: &str) -> Opened {
        let how = how(Create::IfMissing(SetAttr::default()));
        self.v4.open(&cx(), PathRef::name(&self.root, &name(file)), &how).await.unwrap()
    }

    async fn write(&self, o: &Opened, at: u64, data: &'static str) -> Result<Wrote> {
        self.v4.write(&cx(), file(o), at, Bytes::from(data).into(), Stability::Unstable).await
    }

    async fn read(&self, o: &Opened) -> Result<Bytes> {
        Ok(self.v4.read(&cx(), file(o), 0, 1000).await?.data.into_bytes())
    }

    async fn lock(&self, o: &Opened) {
        self.v4.lock(&cx(), file(o), ME, LockKind::Write, ALL, LockWait::No).await.unwrap();
    }

    /// Closes a file. Returns after its CLOSE, for which no program waits.
    async fn close(&self, o: &Opened) {
        self.v4.close(&cx(), &o.node.fh, o.open).await.unwrap();
        tokio::time::sleep(CLOSE_DELAY).await;
    }

    /// Checks that the client broke no rule.
    fn check(&self) {
        assert_eq!(self.server.lock().violations, Vec::<String>::new());
    }
}

fn cx() -> RequestContext {
    RequestContext::new(Arc::new(Cred::root()))
}

fn name(s: &str) -> Name {
    Name::new(s.to_owned()).unwrap()
}

fn how(create: Create) -> OpenHow {
    OpenHow { access: RW, create, truncate: false, execute: false, first_bytes: 0, known: None }
}

fn file(o: &Opened) -> File<'_> {
    File { fh: &o.node.fh, open: Some(o.open) }
}

fn errno<T>(r: Result<T>) -> i32 {
    r.err().map_or(0, |e| e.errno)
}

/// After a server restart opens and locks are reclaimed before any other operation. Unstable writes
/// are sent again.
/// Promise: 2, 16
#[tokio::test(start_paused = true)]
async fn restart_is_survived() {
    let t = Test::new().await;
    let (a, b) = (t.create("a").await, t.create("b").await);
    t.lock(&a).await;
    t.write(&a, 0, "before").await.unwrap();
    t.restart();
    t.write(&a, 6, " after").await.unwrap();
    t.v4.commit(&cx(), file(&a)).await.unwrap();
    assert_eq!(t.server.lock().files["a"].stable, b"before after");
    assert_eq!(t.read(&b).await.unwrap(), "");
    let log = t.server.lock().log.clone();
    let since = &log[log.iter().position(|l| l == "RESTART").unwrap()..];
    let at = |what: &str| since.iter().position(|l| l == what).unwrap_or_else(|| panic!("{what}: {since:?}"));
    assert!(at("CREATE_SESSION") < at("OPEN previous"));
    assert!(at("OPEN previous") < at("LOCK reclaim"));
    assert!(at("LOCK reclaim") < at("RECLAIM_COMPLETE"));
    assert!(at("RECLAIM_COMPLETE") < at("WRITE"));
    assert_eq!(since.iter().filter(|l| *l == "OPEN previous").count(), 2);
    assert_eq!(since.iter().filter(|l| *l == "RECLAIM_COMPLETE").count(), 1);
    t.check();
}

/// A request whose reply was lost with its connection is executed once. The server answers the
/// repetition from its reply cache.
/// Promise: 15
#[tokio::test(start_paused = true)]
async fn slot_replays_lost_reply() {
    let t = Test::new().await;
    for (op, label) in [(NfsOpnum4::CREATE, "CREATE"), (NfsOpnum4::REMOVE, "REMOVE")] {
        t.server.lock().lose_reply = Some(op);
        let net = t.net.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            net.cut(Cut::Reset);
        });
        match label {
            "CREATE" => drop(t.v4.mkdir(&cx(), &t.root, &name("dir"), &SetAttr::default()).await.unwrap()),
            _ => drop(t.v4.rmdir(&cx(), &t.root, &name("dir")).await.unwrap()),
        }
        assert_eq!(t.server.count(label), 1);
    }
    t.check();
}

/// The lease expires while the link is down. Files are opened anew. A lock is taken anew only when
/// the file is unchanged; otherwise I/O on the file fails.
/// Promise: 17
#[tokio::test(start_paused = true)]
async fn lost_lease() {
    for touched in [false, true] {
        let t = Test::new().await;
        let (a, b) = (t.create("a").await, t.create("b").await);
        t.write(&a, 0, "data").await.unwrap();
        t.v4.commit(&cx(), file(&a)).await.unwrap();
        t.lock(&a).await;
        t.net.cut(Cut::Reset);
        t.server.expire();
        if touched {
            t.server.lock().files.get_mut("a").unwrap().change += 1;
        }
        assert_eq!(t.read(&b).await.unwrap(), "");
        if touched {
            assert_eq!(errno(t.read(&a).await), libc::EIO);
            // An unlock of the lost lock makes the file usable again.
            t.v4.unlock(&cx(), file(&a), ME, ALL).await.unwrap();
            assert_eq!(t.read(&a).await.unwrap(), "data");
        } else {
            assert_eq!(t.read(&a).await.unwrap(), "data");
        }
        let held = t.server.lock().locks.values().any(|l| !l.ranges.is_empty());
        assert_eq!(held, !touched);
        assert_eq!(t.server.count("EXCHANGE_ID"), 2);
        t.check();
    }
}

/// The session is lost and the clientid is not: a new session, and no reclaim.
#[tokio::test(start_paused = true)]
async fn lost_session() {
    let t = Test::new().await;
    let a = t.create("a").await;
    t.write(&a, 0, "x").await.unwrap();
    let mut many = tokio::task::JoinSet::new();
    let t = Arc::new(t);
    for i in 0..20 {
        let (t, opened) = (t.clone(), a.clone());
        if i == 5 {
            t.server.forget_sessions();
        }
        many.spawn(async move { t.read(&opened).await.unwrap() });
    }
    while let Some(read) = many.join_next().await {
        assert_eq!(read.unwrap(), "x");
    }
    assert_eq!((t.server.count("EXCHANGE_ID"), t.server.count("CREATE_SESSION")), (1, 2));
    assert_eq!(t.server.count("OPEN"), 1);
    t.check();
}

/// One open is revoked: only that open is made again.
#[tokio::test(start_paused = true)]
async fn revoked_state() {
    let t = Test::new().await;
    let (a, b) = (t.create("a").await, t.create("b").await);
    t.write(&a, 0, "data").await.unwrap();
    t.server.lock().opens.retain(|_, o| o.file != "a");
    assert_eq!(t.read(&a).await.unwrap(), "data");
    // The server announces the loss, and the client finds it without using the file.
    {
        let mut s = t.server.lock();
        s.opens.retain(|_, o| o.file != "b");
        s.status_flags = seq4_status::ADMIN_STATE_REVOKED;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    t.read(&a).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(t.server.lock().opens.values().any(|o| o.file == "b"));
    t.close(&b).await;
    assert_eq!(t.server.count("EXCHANGE_ID"), 1);
    t.check();
}

/// An interrupted caller returns at once. Its open is closed when the reply arrives.
#[tokio::test(start_paused = true)]
async fn interrupted_open_is_closed() {
    let t = Test::new().await;
    t.server.lock().hold = Some(NfsOpnum4::OPEN);
    let mut cx = cx();
    cx.cancel = CancellationToken::new();
    let cancel = cx.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel();
    });
    let n = name("a");
    let open = how(Create::Exclusive(SetAttr::default()));
    let began = Instant::now();
    assert_eq!(errno(t.v4.open(&cx, PathRef::name(&t.root, &n), &open).await), libc::EINTR);
    assert!(began.elapsed() < Duration::from_millis(100));
    assert_eq!(t.server.lock().opens.len(), 1);
    t.server.lock().hold = None;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(t.server.lock().opens.len(), 0);
    t.check();
}

/// DELAY is retried with growing intervals. The caller can be interrupted in between.
#[tokio::test(start_paused = true)]
async fn delay_does_not_spin() {
    let t = Test::new().await;
    t.server.lock().fail = vec![(NfsOpnum4::OPEN, Nfsstat4::DELAY); 12];
    let began = Instant::now();
    t.create("a").await;
    let waited = began.elapsed();
    // 20 ms, doubled up to 5 s.
    assert!(waited > Duration::from_secs(20) && waited < Duration::from_secs(40), "{waited:?}");
    assert_eq!(t.server.count("OPEN"), 13);
    t.check();
}

/// Many calls over few slots, with replies in any order and connection cuts at any time: each is
/// executed once.
#[tokio::test(start_paused = true)]
async fn slots_under_stress() {
    let jitter = Conditions { jitter: Duration::from_millis(20), loss: 0.02, ..Conditions::default() };
    let t = Arc::new(Test::with(options(), jitter, |s| s.lock().slots = 4).await);
    let mut many = tokio::task::JoinSet::new();
    for i in 0..200 {
        let t = t.clone();
        many.spawn(async move {
            t.v4.mkdir(&cx(), &t.root, &name(&format!("d{i}")), &SetAttr::default()).await.unwrap();
            t.v4.rmdir(&cx(), &t.root, &name(&format!("d{i}"))).await.unwrap();
        });
    }
    for i in 0..20 {
        tokio::time::sleep(Duration::from_millis(97)).await;
        t.server.lock().target = Some(i % 4);
        if i % 3 == 0 {
            t.net.cut(Cut::Reset);
        }
    }
    while let Some(done) = many.join_next().await {
        done.unwrap();
    }
    assert_eq!((t.server.count("CREATE"), t.server.count("REMOVE")), (200, 200));
    assert_eq!(t.server.count("CREATE_SESSION"), 1);
    t.check();
}

/// An idle mount renews its lease.
#[tokio::test(start_paused = true)]
async fn lease_is_renewed() {
    let t = Test::new().await;
    let before = t.v4.core.stats.snapshot().op("SEQUENCE").map_or(0, |o| o.ops);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let after = t.v4.core.stats.snapshot().op("SEQUENCE").map_or(0, |o| o.ops);
    // Every 30 s, with a lease of 60 s.
    assert!((18..=22).contains(&(after - before)), "{before} {after}");
}

/// A dead server: a hard mount waits and continues afterwards. A soft mount gives up after `timeo`
/// times `retrans` + 1. An interrupted caller returns.
#[tokio::test(start_paused = true)]
async fn dead_server() {
    for (recovery, errno_then) in [(Recovery::Soft, libc::EIO), (Recovery::Softerr, libc::ETIMEDOUT)] {
        let o = Options { recovery, timeo: Duration::from_secs(5), retrans: 1, ..options() };
        let t = Test::with(o, Conditions::default(), |_| {}).await;
        t.net.cut(Cut::BlackHole);
        let began = Instant::now();
        assert_eq!(errno(t.v4.getattr(&cx(), File { fh: &t.root, open: None }).await), errno_then);
        assert_eq!(began.elapsed().as_secs(), 10);
        t.net.heal();
        t.v4.getattr(&cx(), File { fh: &t.root, open: None }).await.unwrap();
        t.check();
    }
    let t = Arc::new(Test::new().await);
    t.net.cut(Cut::BlackHole);
    let hard = tokio::spawn({
        let t = t.clone();
        async move { t.v4.getattr(&cx(), File { fh: &t.root, open: None }).await }
    });
    let mut cx = cx();
    cx.cancel = CancellationToken::new();
    cx.cancel.cancel();
    assert_eq!(errno(t.v4.getattr(&cx, File { fh: &t.root, open: None }).await), libc::EINTR);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!hard.is_finished());
    t.net.heal();
    hard.await.unwrap().unwrap();
    t.check();
}

/// A delegation is accepted, and returned after its recall.
#[tokio::test(start_paused = true)]
async fn recall_returns_delegation() {
    let t = Test::new().await;
    t.server.lock().delegate = true;
    let a = t.create("a").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(t.server.count("DELEGRETURN"), 0);
    t.server.recall(Stateid { seqid: 1, other: server::delegation("a").other }, "a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(t.server.count("DELEGRETURN"), 1);
    assert_eq!(t.server.lock().callbacks_answered, [Nfsstat4::OK]);
    t.server.recall(Stateid { seqid: 1, other: [0xdf; 12] }, "a");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A delegation that this client never received is returned as well, because the server waits
    // for it.
    assert_eq!(t.server.lock().callbacks_answered, [Nfsstat4::OK, Nfsstat4::OK]);
    assert_eq!(t.server.count("DELEGRETURN"), 2);
    t.close(&a).await;
    t.check();
}

/// Opens of one user share a state. Of two closes the first lowers the access, and the second
/// closes the state.
#[tokio::test(start_paused = true)]
async fn downgrade_and_close() {
    let t = Test::new().await;
    let both = t.create("a").await;
    let read = OpenHow { access: OpenAccess::READ, ..how(Create::No) };
    let reader = t.v4.open(&cx(), PathRef::fh(&both.node.fh), &read).await.unwrap();
    assert_eq!(t.server.lock().opens.len(), 1);
    t.close(&both).await;
    assert_eq!(t.server.lock().opens.values().map(|o| o.access).collect::<Vec<_>>(), [1]);
    t.close(&reader).await;
    assert_eq!(t.server.lock().opens.len(), 0);
    assert_eq!((t.server.count("OPEN_DOWNGRADE"), t.server.count("CLOSE")), (1, 1));
    t.check();
}

/// An open by the name of a file with a CLOSE in progress waits for that CLOSE. A server with both
/// calls at once may close both opens.
#[tokio::test(start_paused = true)]
async fn open_waits_for_pending_close() {
    let t = Test::new().await;
    let (a, n) = (t.create("a").await, name("a"));
    t.server.lock().hold = Some(NfsOpnum4::CLOSE);
    let cx = cx();
    let close = t.v4.close(&cx, &a.node.fh, a.open);
    let open = async {
        // After the CLOSE was sent.
        tokio::time::sleep(Duration::from_millis(300)).await;
        t.v4.open(&cx, PathRef::name(&t.root, &n), &how(Create::No)).await.unwrap()
    };
    let watch = async {
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!((t.server.count("CLOSE"), t.server.count("OPEN")), (1, 1));
        t.server.lock().hold = None;
    };
    let (closed, b, ()) = tokio::join!(close, open, watch);
    closed.unwrap();
    assert_eq!(t.server.count("OPEN"), 2);
    t.lock(&b).await;
    t.close(&b).await;
    assert_eq!(t.server.lock().opens.len(), 0);
    t.check();
}

/// A lock request waits while its open is closed at the server. The request continues under the
/// open that replaces the closed one.
#[tokio::test(start_paused = true)]
async fn lock_continues_after_lost_open() {
    let t = Test::new().await;
    let a = t.create("a").await;
    t.lock(&a).await;
    t.v4.unlock(&cx(), file(&a), ME, ALL).await.unwrap();
    {
        let mut s = t.server.lock();
        s.opens.clear();
        s.locks.clear();
    }
    t.lock(&a).await;
    assert_eq!(t.server.lock().locks.len(), 1);
    t.close(&a).await;
    t.check();
}

/// An open that the server grants and that fails afterwards (no right to execute) is closed, by
/// name and by filehandle.
#[tokio::test(start_paused = true)]
async fn failure_after_the_open() {
    let t = Test::new().await;
    let a = t.create("a").await;
    t.close(&a).await;
    let execute = OpenHow { access: OpenAccess::READ, execute: true, ..how(Create::No) };
    let n = name("a");
    for at in [PathRef::fh(&a.node.fh), PathRef::name(&t.root, &n)] {
        let before = Instant::now();
        assert_ne!(errno(t.v4.open(&cx(), at, &execute).await), 0);
        assert_eq!(t.server.lock().opens.len(), 0);
        // Without a wait for other CLOSEs.
        assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
    }
    let cut = OpenHow { truncate: true, ..how(Create::No) };
    for at in [PathRef::fh(&a.node.fh), PathRef::name(&t.root, &n)] {
        let o = t.create("a").await;
        t.write(&o, 0, "data").await.unwrap();
        let cut = t.v4.open(&cx(), at, &cut).await.unwrap();
        assert_eq!(cut.node.attrs.attr.size_bytes, 0);
        // A restart does not bring back the bytes that were cut off.
        t.server.restart();
        t.server.lock().grace = false;
        t.net.cut(Cut::Reset);
        t.v4.commit(&cx(), file(&o)).await.unwrap();
        assert_eq!(t.read(&o).await.unwrap(), "");
        t.close(&o).await;
        t.close(&cut).await;
    }
    t.check();
}

/// An open with creation does not give access to an existing file that the caller may not read. The
/// creator of a file has it open with any permissions.
/// Promise: 19
#[tokio::test(start_paused = true)]
async fn create_respects_existing_permissions() {
    let t = Test::new().await;
    let a = t.create("a").await;
    t.close(&a).await;
    let create = how(Create::IfMissing(SetAttr::default()));
    for (file, refused) in [("a", libc::EACCES), ("b", 0)] {
        t.server.lock().fail = vec![(NfsOpnum4::ACCESS, Nfsstat4::ACCESS)];
        let opened = t.v4.open(&cx(), PathRef::name(&t.root, &name(file)), &create).await;
        assert_eq!(t.server.lock().opens.len(), usize::from(opened.is_ok()));
        assert_eq!((file, opened.as_ref().err().map_or(0, |e| e.errno)), (file, refused));
        assert!(opened.is_err() || opened.unwrap().created);
    }
    t.check();
}

/// A shutdown leaves no state at the server.
#[tokio::test(start_paused = true)]
async fn shutdown_gives_everything_back() {
    let t = Test::new().await;
    let a = t.create("a").await;
    t.lock(&a).await;
    t.write(&a, 0, "data").await.unwrap();
    t.v4.shutdown(&cx()).await.unwrap();
    assert_eq!(t.server.lock().files["a"].stable, b"data");
    assert_eq!(t.server.lock().opens.len(), 0);
    assert_eq!((t.server.count("DESTROY_SESSION"), t.server.count("DESTROY_CLIENTID")), (1, 1));
    assert_eq!(errno(t.v4.root(&cx()).await), libc::EIO);
    t.check();
}

/// The server keeps the stamp of the first exclusive creation. Later creations then cost one
/// compound. A repetition after a restart is recognised. Another client's file is not.
/// Promise: 12
#[tokio::test(start_paused = true)]
async fn stamp_identifies_repeated_creation() {
    for first in [None, Some(SetTime::To(Time { secs: 7, nanos: 987_654_321 }))] {
        stamp_identifies(first).await;
    }
}

/// `first` is the access time of the first creation.
async fn stamp_identifies(first: Option<SetTime>) {
    let t = Test::with(options(), Conditions::default(), |s| s.lock().verifier_in_times = true).await;
    // A gateway passes on the stamp of its client.
    let given = Some(SetTime::To(Time { secs: 7, nanos: 123_456_789 }));
    let create = async |file: &str, atime| {
        let exclusive = how(Create::Exclusive(SetAttr { atime, ..SetAttr::default() }));
        t.v4.open(&cx(), PathRef::name(&t.root, &name(file)), &exclusive).await
    };
    create("first", first).await.unwrap();
    assert_eq!((t.server.count("OPEN"), t.server.count("SETATTR")), (1, 1));
    create("second", None).await.unwrap();
    create("third", given).await.unwrap();
    assert_eq!((t.server.count("OPEN"), t.server.count("SETATTR")), (3, 1));
    assert_eq!(errno(create("second", None).await), libc::EEXIST);
    assert_eq!(errno(create("third", given).await), libc::EEXIST);
    for (theirs, atime) in [(false, None), (true, None), (false, given), (true, given)] {
        let file = format!("again{theirs}{atime:?}");
        t.server.lock().lose_reply = Some(NfsOpnum4::OPEN);
        let (server, net, lost) = (t.server.clone(), t.net.clone(), file.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.restart();
            if theirs {
                server.lock().files.get_mut(&lost).unwrap().atime.nseconds ^= 1;
            }
            net.cut(Cut::Reset);
            tokio::time::sleep(Duration::from_secs(5)).await;
            server.lock().grace = false;
        });
        match (theirs, create(&file, atime).await) {
            (false, Ok(opened)) => assert!(opened.created),
            (true, Err(e)) => assert_eq!(e.errno, libc::EEXIST),
            (_, other) => panic!("{other:?}"),
        }
    }
    t.check();
}

/// Files that are closed at about the same time share one compound. A file that is opened again in
/// between stays open.
#[tokio::test(start_paused = true)]
async fn many_files_are_closed_together() {
    let t = Test::new().await;
    let mut opened = Vec::new();
    for i in 0..5 {
        opened.push(t.create(&format!("f{i}")).await);
    }
    let (before, began) = (t.server.lock().compounds.len(), Instant::now());
    let closes: Vec<_> = opened
        .iter()
        .map(|o| {
            let (v4, fh, open) = (t.v4.clone(), o.node.fh.clone(), o.open);
            tokio::spawn(async move { v4.close(&cx(), &fh, open).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let again = t.create("f3").await;
    for close in closes {
        close.await.unwrap().unwrap();
    }
    // The data is stable, and no program waits for the CLOSE.
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    assert_eq!(t.server.count("CLOSE"), 0);
    tokio::time::sleep(CLOSE_DELAY).await;
    assert_eq!(t.server.count("CLOSE"), 4);
    // One OPEN, and one compound with all CLOSEs.
    let after = t.server.lock().compounds.len();
    assert_eq!(after - before, 2);
    t.write(&again, 0, "still open").await.unwrap();
    t.close(&again).await;
    assert!(t.server.lock().opens.is_empty());
    t.check();
}

/// The last bytes and attributes of a file are one compound, with one WRITE directly after the
/// filehandle.
#[tokio::test(start_paused = true)]
async fn finish_sends_one_compound() {
    let t = Test::new().await;
    let a = t.create("a").await;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let piece = |at: u64, text: &'static str| Some((at, Data::from(Bytes::from(text))));
    let before = t.server.lock().compounds.len();
    let done = t.v4.finish(&cx(), file(&a), piece(0, "one"), &set).await.unwrap();
    assert_eq!((done.wrote.bytes, done.set), (3, Ok(())));
    assert_eq!(done.wrote.attrs.unwrap().attr.size_bytes, 3);
    for (at, text) in [(3, "two"), (10, "3")] {
        let done = t.v4.finish(&cx(), file(&a), piece(at, text), &SetAttr::default()).await.unwrap();
        assert_eq!((done.wrote.bytes, done.set), (text.len() as u64, Ok(())));
        assert_eq!(done.wrote.attrs.unwrap().attr.size_bytes, at + text.len() as u64);
    }
    let done = t.v4.finish(&cx(), file(&a), None, &set).await.unwrap();
    assert_eq!((done.wrote.bytes, done.set), (0, Ok(())));
    assert_eq!(done.wrote.attrs.unwrap().attr.size_bytes, 11);
    let compounds = t.server.lock().compounds[before..].to_vec();
    use NfsOpnum4 as N;
    let expected = [
        vec![N::PUTFH, N::WRITE, N::SETATTR, N::GETATTR],
        vec![N::PUTFH, N::WRITE, N::GETATTR],
        vec![N::PUTFH, N::WRITE, N::GETATTR],
        vec![N::PUTFH, N::SETATTR, N::GETATTR],
    ];
    assert_eq!(compounds, expected);
    assert_eq!(t.server.lock().files["a"].stable, b"onetwo\0\0\0\x003");
    // A refusal of the attributes does not affect the bytes.
    t.server.lock().fail = vec![(N::SETATTR, Nfsstat4::PERM); 2];
    let done = t.v4.finish(&cx(), file(&a), piece(0, "ONE"), &set).await.unwrap();
    assert_eq!((done.wrote.bytes, done.set.unwrap_err().errno), (3, libc::EPERM));
    assert!(t.server.lock().files["a"].stable.starts_with(b"ONE"));
    t.check();
}

/// A whole file is one compound. An error in it leaves no open behind.
#[tokio::test(start_paused = true)]
async fn a_whole_file_is_one_message() {
    use NfsOpnum4 as N;
    let t = Test::new().await;
    let time = hither_vfs::SetTime::To(hither_vfs::Time { secs: 7, nanos: 0 });
    let set = SetAttr { mode: Some(0o640), mtime: Some(time), ..Default::default() };
    let whole = |file: &'static str, bytes: &'static str| {
        let (t, set) = (&t, set.clone());
        async move { t.v4.create_whole(&cx(), &t.root, &name(file), &set, Data::from(Bytes::from(bytes))).await }
    };
    t.server.lock().compounds.clear();
    let made = whole("a", "contents").await.unwrap();
    assert_eq!(made.node.attrs.attr.size_bytes, 8);
    let ops = [N::PUTFH, N::OPEN, N::GETFH, N::WRITE, N::SETATTR, N::CLOSE, N::GETATTR, N::PUTFH, N::GETATTR];
    {
        let server = t.server.lock();
        assert_eq!(server.compounds, [ops.to_vec()]);
        assert_eq!((&server.files["a"].stable[..], server.opens.len()), (&b"contents"[..], 0));
    }
    assert_eq!(whole("a", "contents").await.unwrap_err().errno, libc::EEXIST);
    for (n, op) in [N::WRITE, N::SETATTR, N::CLOSE].into_iter().enumerate() {
        t.server.lock().fail = vec![(op, Nfsstat4::NOSPC)];
        let refused = whole(["b", "c", "d"][n], "contents").await.unwrap_err();
        assert_eq!(refused.errno, libc::ENOSPC, "{op:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(t.server.lock().opens.len(), 0, "{op:?}");
    }
    t.check();
}

/// A removal while the server makes a page does not end the listing.
#[tokio::test(start_paused = true)]
async fn removals_do_not_end_a_listing() {
    let t = Test::new().await;
    t.create("a").await;
    let list = async || t.v4.readdir(&cx(), &t.root, 0, [0; 8], 4096, true).await;
    t.server.lock().fail = vec![(NfsOpnum4::READDIR, Nfsstat4::NOENT); 3];
    assert_eq!(list().await.unwrap().entries.len(), 1);
    t.server.lock().fail = vec![(NfsOpnum4::READDIR, Nfsstat4::NOENT); 20];
    assert_eq!(list().await.unwrap_err().errno, libc::EIO, "never the end of a directory that has none");
}
