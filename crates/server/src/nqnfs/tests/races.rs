//! Concurrent calls of one client, and events at the wrong moment by the client, the server and
//! local programs.

use super::*;
use crate::nqnfs::leases::GrantedLeases;
use crate::v4::delegation::key;
use hither_lease::{Boot, Config, Decision, Table as LeaseTable};
use hither_proto::nfs3;
use hither_vfs::{BoxFuture, ChangeListener, Data, Fh, Watched, WatchedAlone};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

async fn seconds(s: f64) {
    tokio::time::sleep(Duration::from_secs_f64(s)).await;
}

/// The server records a lease that the table grants to a waiting call, independent of the client's
/// other requests in the meantime.
#[tokio::test(start_paused = true)]
async fn waiting_grant_is_recorded() {
    let lab = Lab::new(&model(), 1, None);
    let (mut c, mut d, mut other) = (lab.client(1).await, lab.client(2).await, lab.client(3).await);
    let f = c.create("f").await;
    assert!(d.lease(f, Cachetype::READ).await.unwrap().cachable);
    d.gives_up = false;
    seconds(f64::from(TERM) - 1.0).await;
    let waits =
        c.send(&Asking::nothing(GetleaseArgs { file: f, rw: Cachetype::WRITE, duration: TERM })).await;
    d.take().await;
    assert_eq!(d.evicted.pop_front(), Some(f));
    c.ask(GetattrArgs { file: f }).await.into_result().unwrap();
    c.read(f).await.unwrap();
    // The client's lease has ended on its own clock, so it does not still use the file.
    seconds(1.5).await;
    d.ask(VacatedArgs { file: f }).await;
    let lease: Res<GetleaseOk> = c.answer(waits).await;
    assert!(lease.into_result().unwrap().1.cachable);
    c.gives_up = false;
    let xid = other.send(&nfs3::ReadArgs { file: of_v3(f), offset: 0, count: 100 }).await;
    c.take().await;
    assert_eq!(c.evicted.pop_front(), Some(f), "other clients read its delayed writes");
    c.write(f, LeaseRequest::None, "delayed").await.unwrap();
    c.ask(VacatedArgs { file: f }).await;
    let nfs3::Res::Ok(read) = other.answer::<nfs3::ReadRes>(xid).await else { panic!() };
    assert_eq!(&read.data[..], b"delayed");
}

/// A client that disconnected before its requested lease was granted is evicted like others.
#[tokio::test(start_paused = true)]
async fn disconnected_client_is_evicted() {
    let lab = Lab::new(&model(), 1, None);
    let (mut c, mut d) = (lab.client(1).await, lab.client(2).await);
    let f = c.create("f").await;
    assert!(d.lease(f, Cachetype::READ).await.unwrap().cachable);
    d.gives_up = false;
    seconds(f64::from(TERM) - 1.0).await;
    c.send(&Asking::nothing(GetleaseArgs { file: f, rw: Cachetype::WRITE, duration: TERM })).await;
    d.take().await;
    drop(c);
    seconds(1.5).await;
    d.ask(VacatedArgs { file: f }).await;
    let mut c = lab.client(1).await;
    let read = c.until(d.read(f)).await.unwrap();
    assert_eq!(read.0, b"");
}

/// Files that a local program may change, if they can be watched.
#[derive(Default)]
struct Watcher {
    cannot: AtomicBool,
    watched: Arc<AtomicUsize>,
    /// Runs as a local program just before a file is watched.
    before: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Watch for Watcher {
    fn watch(&self, _: &Fh, _: bool) -> BoxFuture<Option<Watched>> {
        if let Some(before) = self.before.lock().take() {
            before();
        }
        let watched = (!self.cannot.load(SeqCst)).then(|| {
            self.watched.fetch_add(1, SeqCst);
            Box::new(Counted(self.watched.clone())) as Watched
        });
        Box::pin(async move { watched })
    }

    fn watch_alone(&self, _: &Fh, watched: Watched) -> BoxFuture<WatchedAlone> {
        Box::pin(async move { Ok(watched) })
    }

    fn tell(&self, _: Arc<ChangeListener>) {}
}

async fn read_renewing(c: &mut Client, file: WireFh) -> LeaseReply {
    let args = ReadArgs { file, offset: 0, count: 100 };
    let read = c.call(&Asking { lease: LeaseRequest::Read(TERM), args }).await;
    read.into_result().unwrap().0
}

/// A lease that its client knows of does not end because its file cannot be watched any more. The
/// server evicts it.
#[tokio::test(start_paused = true)]
async fn unwatchable_lease_is_evicted() {
    let watcher = Arc::new(Watcher::default());
    let lab = Lab::beside(&model(), 1, None, Others::Watched(watcher.clone()));
    let (mut c, mut w) = (lab.client(1).await, lab.client(2).await);
    let f = c.create("f").await;
    assert!(c.lease(f, Cachetype::READ).await.unwrap().cachable);
    assert_eq!(watcher.watched.load(SeqCst), 1);
    c.gives_up = false;
    c.write(f, LeaseRequest::None, "mine").await.unwrap();
    assert_eq!(watcher.watched.load(SeqCst), 0, "the holder's change would look like a local program's");
    watcher.cannot.store(true, SeqCst);
    let renewed = read_renewing(&mut c, f).await;
    assert!(matches!(renewed, LeaseReply::Read(l) if !l.cachable && l.duration == 0), "{renewed:?}");
    let args = WriteArgs { file: f, offset: 0, append: false, data: Opaque::copy(b"other") };
    let xid = w.send(&Asking::nothing(args)).await;
    while c.evicted.is_empty() {
        c.take().await;
    }
    assert!(tokio::time::timeout(Duration::from_secs(1), w.take()).await.is_err(), "it may still read");
    c.ask(VacatedArgs { file: f }).await;
    let wrote: Res<Fattr> = w.answer(xid).await;
    wrote.into_result().unwrap();
    assert_eq!(c.read(f).await.unwrap().0, b"other");
}

/// A file that cannot be watched gets no lease, and no operation waits for one.
#[tokio::test(start_paused = true)]
async fn unwatchable_file_gets_no_lease() {
    let watcher = Arc::new(Watcher::default());
    watcher.cannot.store(true, SeqCst);
    let lab = Lab::beside(&model(), 1, None, Others::Watched(watcher.clone()));
    let (mut c, mut w) = (lab.client(1).await, lab.client(2).await);
    let f = c.create("f").await;
    assert_eq!(read_renewing(&mut c, f).await, LeaseReply::None);
    w.write(f, LeaseRequest::None, "new").await.unwrap();
    seconds(1.0).await;
    assert!(tokio::time::timeout(Duration::from_secs(1), c.take()).await.is_err(), "it has no lease");
    watcher.cannot.store(false, SeqCst);
    assert!(c.lease(f, Cachetype::READ).await.unwrap().cachable);
}

/// A change by a local program between the look at the file and the watch is noticed. The lease is
/// then non-caching.
#[tokio::test(start_paused = true)]
async fn change_before_watch_prevents_caching() {
    use hither_vfs::Vfs;
    let (model, watcher) = (model(), Arc::new(Watcher::default()));
    let lab = Lab::beside(&model, 1, None, Others::Watched(watcher.clone()));
    let mut c = lab.client(1).await;
    let f = c.create("f").await;
    c.write(f, LeaseRequest::None, "old").await.unwrap();
    let first = c.read(f).await.unwrap().1;
    let Some(Handle::Object(_, fh)) = f.unpack().and_then(|own| Handle::read(&own)) else { panic!() };
    let program = model.clone();
    *watcher.before.lock() = Some(Box::new(move || {
        let (data, file) = (Data::from(Bytes::from_static(b"new")), File { fh: &fh, open: None });
        let cx = RequestContext::new(Arc::new(hither_vfs::Cred::root()));
        let write = program.write(&cx, file, 0, data, hither_vfs::Stability::Stable);
        futures_now(write).unwrap();
    }));
    let lease = c.lease(f, Cachetype::READ).await.unwrap();
    assert!(!lease.cachable, "{lease:?}");
    assert_eq!(watcher.watched.load(SeqCst), 0);
    c.until(seconds(1.0)).await;
    let (data, revision) = c.read(f).await.unwrap();
    assert!(data == b"new" && revision > first);
}

/// The result of a future that never waits.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

/// A table with one client that holds a lease.
struct Alone {
    table: LeaseTable,
    held: GrantedLeases,
    file: Fh,
}

const HOLDER: ClientId = ClientId(7);

impl Alone {
    fn new(kind: Kind) -> Self {
        let mut alone = Self {
            table: LeaseTable::new(Config::default(), Boot::FIRST, 0),
            held: GrantedLeases::default(),
            file: Fh(Bytes::from_static(b"file")),
        };
        alone.evictions();
        let file = alone.key();
        alone.held.asked(HOLDER, file, (1, alone.file.clone()));
        let want = Want { kind, term: Term::For(0), optional: false };
        let access = Access { client: Some(HOLDER), file, op: Op::Lease, lease: Some(want), claim: None };
        assert!(matches!(alone.table.begin(0, access), Decision::Go(_)));
        alone.held.answered(HOLDER, file);
        alone.held.settle(HOLDER, file, alone.table.held(HOLDER, file));
        alone
    }

    fn key(&self) -> FileKey {
        key(&self.file)
    }

    /// Performs the table's actions. Returns the number of evictions.
    fn evictions(&mut self) -> usize {
        let mut evictions = 0;
        while let Some(action) = self.table.poll_action() {
            match action {
                hither_lease::Action::Reserve { end, epoch } => self.table.reserved(end, epoch),
                hither_lease::Action::Evict { .. } => evictions += 1,
                _ => {}
            }
        }
        evictions
    }

    fn write(&mut self) -> hither_lease::Permit {
        let access =
            Access { client: Some(HOLDER), file: self.key(), op: Op::Write, lease: None, claim: None };
        let Decision::Go(go) = self.table.begin(1, access) else { panic!() };
        go.permit.unwrap()
    }

    fn seen(&mut self, change: u64, since: Since) -> u64 {
        let key = self.key();
        self.held.seen(&mut self.table, 1, key, change, since)
    }
}

/// Attributes that were read during or before a change through the table do not count as a change
/// by a local program.
#[test]
fn concurrent_holder_writes_keep_lease() {
    let mut a = Alone::new(Kind::Write);
    let now = Since::now(&a.table);
    let first = a.seen(10, now);
    let (one, other) = (a.write(), a.write());
    // The first write has changed the file and is not answered yet.
    let before = Since::now(&a.table);
    assert_eq!(a.seen(11, before), first);
    let second = a.table.finish(2, one, true);
    let key = a.key();
    a.held.changed(key, second, 11);
    // The other write has changed the file by now.
    let now = Since::now(&a.table);
    assert_eq!(a.seen(12, now), second);
    let third = a.table.finish(2, other, true);
    a.held.changed(key, third, 12);
    // Read before both writes.
    assert_eq!(a.seen(10, before), third);
    assert_eq!(a.evictions(), 0);
    let now = Since::now(&a.table);
    assert_eq!(a.seen(12, now), third);
    assert_eq!(a.evictions(), 0);
    // This is a local program's change.
    assert!(a.seen(13, now) > third);
    assert_eq!(a.evictions(), 1);
}

/// A change that the table could not number is seen again later.
#[test]
fn unnumbered_change_is_seen_later() {
    let config = Config { revision_step: 8, ..Config::default() };
    let mut a = Alone::new(Kind::Read);
    a.table = LeaseTable::new(config, Boot::FIRST, 0);
    a.evictions();
    let since = Since::now(&a.table);
    let first = a.seen(10, since);
    let mut change = 10;
    // Until the next numbers are durable.
    let stuck = loop {
        change += 1;
        let before = a.table.revision(a.key());
        let since = Since::now(&a.table);
        if a.seen(change, since) == before {
            break before;
        }
        assert!(change < 100);
    };
    assert!(stuck >= first);
    a.evictions();
    let since = Since::now(&a.table);
    assert!(a.seen(change, since) > stuck);
}

/// A delayed write is late as soon as the table has ended the lease, even before the action is
/// processed.
#[test]
fn ended_lease_makes_write_late() {
    let mut a = Alone::new(Kind::Write);
    let key = a.key();
    assert!(!a.held.is_late(HOLDER, key, a.table.held(HOLDER, key)));
    a.table.handle_timeout(600_000);
    assert!(a.held.is_late(HOLDER, key, a.table.held(HOLDER, key)));
    a.held.ended(HOLDER, key, Kind::Write);
    assert!(a.held.is_late(HOLDER, key, a.table.held(HOLDER, key)));
    a.held.renewed(HOLDER, key);
    assert!(!a.held.is_late(HOLDER, key, a.table.held(HOLDER, key)));
}

/// A caller without the right to read a file gets no read lease. Writers would have to wait for
/// such a lease.
#[tokio::test(start_paused = true)]
async fn unreadable_file_gets_no_lease() {
    let lab = Lab::new(&model(), 1, None);
    let (mut c, mut w) = (lab.client(1).await, lab.client(2).await);
    let f = w.create("f").await;
    let attributes = Sattr { mode: 0o600, ..Sattr::NOTHING };
    w.ask(SetattrArgs { file: f, attributes }).await.into_result().unwrap();
    c.uid = 1000;
    assert!(!c.lease(f, Cachetype::READ).await.unwrap().cachable);
    w.write(f, LeaseRequest::None, "new").await.unwrap();
    assert!(c.evicted.is_empty());
    c.uid = 0;
    assert!(c.lease(f, Cachetype::READ).await.unwrap().cachable);
}

/// Two clients at one address use the same transaction ids. A call of one client is no repetition
/// of the other client's call.
#[tokio::test(start_paused = true)]
async fn reply_cache_separates_clients() {
    let lab = Lab::new(&model(), 1, None);
    let (mut a, mut b) = (lab.client(1).await, lab.client(2).await);
    let f = a.create("f").await;
    for c in [&mut a, &mut b] {
        c.xid = 77_777;
        let args = WriteArgs { file: f, offset: 0, append: true, data: Opaque::copy(b"same") };
        c.ask(args).await.into_result().unwrap();
    }
    assert_eq!(a.read(f).await.unwrap().0, b"samesame");
    // The same client on another connection: it has not received the reply.
    drop(a);
    let mut a = lab.client(1).await;
    a.xid = 77_777;
    let args = WriteArgs { file: f, offset: 0, append: true, data: Opaque::copy(b"same") };
    a.ask(args).await.into_result().unwrap();
    assert_eq!(a.read(f).await.unwrap().0, b"samesame");
}

/// When the lease table is full, files are used without leases, and no call waits. Holders renew
/// their leases.
/// Promise: S16
#[tokio::test(start_paused = true)]
async fn full_table_grants_no_lease() {
    let few = |options: &mut Options| {
        options.nqnfs.as_mut().unwrap().leases_max = 4;
    };
    let lab = Lab::with(&model(), 1, None, Others::Nobody, few);
    let (mut c, mut other) = (lab.client(1).await, lab.client(2).await);
    let mut files = Vec::new();
    for i in 0..20 {
        files.push(c.create(&format!("f{i}")).await);
    }
    let began = tokio::time::Instant::now();
    let mut leased = Vec::new();
    for f in &files {
        if c.lease(*f, Cachetype::READ).await.unwrap().cachable {
            leased.push(*f);
        }
        let (lease, _) = c.write(*f, LeaseRequest::Write(TERM), "bytes").await.unwrap();
        assert_eq!(matches!(lease, LeaseReply::Write(l) if l.cachable), leased.contains(f));
    }
    assert!((4..=5).contains(&leased.len()), "{}", leased.len());
    let last = *files.last().unwrap();
    assert!(!other.lease(last, Cachetype::WRITE).await.unwrap().cachable);
    assert_eq!(other.read(last).await.unwrap().0, b"bytes");
    assert!(c.lease(leased[0], Cachetype::WRITE).await.unwrap().cachable, "it is renewed");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    seconds(f64::from(2 * TERM) + (SKEW + SLACK) as f64).await;
    assert!(c.lease(last, Cachetype::READ).await.unwrap().cachable, "the others have ended");
}

/// Disconnected clients make room for others, even when no lease ends and no other event occurs.
#[tokio::test(start_paused = true)]
async fn clients_that_are_gone_make_room() {
    let lab = Lab::new(&model(), 1, None);
    let clients = &lab.server.v4.leases.short.as_ref().unwrap().clients;
    clients.set_most(3);
    let all = [lab.client(1).await, lab.client(2).await, lab.client(3).await];
    let mut crowded = lab.client(0).await;
    let f = crowded.create("f").await;
    assert!(!crowded.lease(f, Cachetype::READ).await.unwrap().cachable, "there are too many");
    drop(all);
    seconds(10.0).await;
    assert!(!crowded.lease(f, Cachetype::READ).await.unwrap().cachable, "they may come back");
    seconds(f64::from(2 * TERM) + (SKEW + SLACK) as f64 + 60.0).await;
    assert!(crowded.lease(f, Cachetype::READ).await.unwrap().cachable);
}

/// A call that is answered after the end of its connection leaves no trace of the connection.
#[tokio::test(start_paused = true)]
async fn ended_connection_leaves_no_client() {
    let lab = Lab::new(&model(), 1, None);
    let clients = &lab.server.v4.leases.short.as_ref().unwrap().clients;
    let (one, nameless) = (lab.client(1).await, lab.client(0).await);
    let mut asks = lab.client(0).await;
    let f = asks.create("f").await;
    asks.lease(f, Cachetype::READ).await.unwrap();
    drop(nameless);
    let peers = clients.peers();
    assert_eq!(peers.len(), 2);
    drop((one, asks));
    seconds(1.0).await;
    assert!(clients.peers().is_empty());
    for peer in peers {
        let hello = HelloArgs { client: 1, fh_max: 64, transfer_max: 0 };
        assert!(!clients.hello(&peer, &hello, true));
        assert!(clients.of(&peer).is_none());
        let new = HelloArgs { client: 2, fh_max: 64, transfer_max: 0 };
        assert!(!clients.hello(&peer, &new, true));
    }
    assert!(clients.peers().is_empty());
}
